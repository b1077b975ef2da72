// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load the BPF programs, wait, and make a report of their maps.
 */
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "report.h"
#include "stalls.skel.h"

#define BTF_FILE "/sys/kernel/btf/vmlinux"
/* include/linux/proc_ns.h: the first namespaces have these numbers. */
#define FIRST_PID_NAMESPACE "pid:[4026531836]"
#define FIRST_CGROUP_NAMESPACE "cgroup:[4026531835]"
#define ONE_SECOND 1000000000LL

/* --- Symbols of the kernel */

struct symbol {
	unsigned long address;
	char *name;
};

static struct symbol *symbols;
static size_t nr_symbols;

static int by_address(const void *a, const void *b)
{
	const struct symbol *x = a, *y = b;

	return x->address < y->address ? -1 : x->address > y->address;
}

/* Functions by address, and the variable that is looked for. */
static bool read_symbols(const char *variable, unsigned long *found)
{
	FILE *file = fopen("/proc/kallsyms", "re");
	char *line = NULL, *type, *name;
	unsigned long address;
	size_t size = 0;

	if (!file)
		return false;
	while (getline(&line, &size, file) > 0) {
		address = strtoul(line, &type, 16);
		if (!address || strlen(type) < 4)
			continue;
		name = type + 3;
		name[strcspn(name, "\t\n")] = 0;
		if (!strcmp(name, variable))
			*found = address;
		if (!strchr("tTwW", type[1]))
			continue;
		symbols = grow(symbols, nr_symbols, sizeof(*symbols));
		symbols[nr_symbols].address = address;
		symbols[nr_symbols].name = strdup(name);
		if (!symbols[nr_symbols++].name)
			fail("out of memory");
	}
	free(line);
	fclose(file);
	if (nr_symbols)
		qsort(symbols, nr_symbols, sizeof(*symbols), by_address);
	return nr_symbols > 0;
}

static const char *symbol_at(unsigned long address)
{
	size_t low = 0, high = nr_symbols, middle;

	while (low < high) {
		middle = (low + high) / 2;
		if (symbols[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? symbols[low - 1].name : "?";
}

/* --- Reasons why it cannot work here */

static bool first_namespace(const char *kind, const char *number)
{
	char path[64], text[64];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
	length = readlink(path, text, sizeof(text) - 1);
	text[length > 0 ? length : 0] = 0;
	return !strcmp(text, number);
}

/* The ID and the depth of a control group. */
static u64 find_cgroup(const char *name, u32 *level)
{
	char path[PATH_MAX], real[PATH_MAX], *part;
	struct statfs type;
	struct stat status;

	if (!first_namespace("cgroup", FIRST_CGROUP_NAMESPACE))
		fail("--cgroup in a container does not mean what the kernel calls this group: run it on the host");
	if (statfs("/sys/fs/cgroup", &type) || type.f_type != CGROUP2_SUPER_MAGIC)
		fail("--cgroup needs control groups of version 2 in /sys/fs/cgroup, which this host does not have (hybrid or version 1): boot it with systemd.unified_cgroup_hierarchy=1, or use --pid");
	if (strncmp(name, "/sys/fs/cgroup", 14) || !strchr("/", name[14]))
		snprintf(path, sizeof(path), "/sys/fs/cgroup/%s",
			 name + (*name == '/'));
	else
		snprintf(path, sizeof(path), "%s", name);
	if (!realpath(path, real) || stat(real, &status) ||
	    !S_ISDIR(status.st_mode))
		fail("there is no control group %s: give its folder below /sys/fs/cgroup",
		     path);
	if (statfs(real, &type) || type.f_type != CGROUP2_SUPER_MAGIC ||
	    strncmp(real, "/sys/fs/cgroup", 14) || !strchr("/", real[14]))
		fail("%s is not a control group: give its folder below /sys/fs/cgroup",
		     path);
	*level = 0;
	for (part = strtok(real + 14, "/"); part; part = strtok(NULL, "/"))
		++*level;
	if (!*level)
		fail("--cgroup %s is the whole host: leave it out", name);
	return status.st_ino;
}

/* A thread has a folder in /proc, too, which a listing does not show. */
static void check_process(u32 pid)
{
	char path[64], line[256];
	u32 tgid = pid;
	FILE *file;

	if (!first_namespace("pid", FIRST_PID_NAMESPACE))
		fail("--pid in a container does not mean what the kernel calls this process: run it on the host");
	snprintf(path, sizeof(path), "/proc/%u/status", pid);
	file = fopen(path, "re");
	if (!file)
		fail("there is no process %u", pid);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Tgid: %u", &tgid) == 1)
			break;
	fclose(file);
	if (tgid != pid)
		fail("%u is a thread of process %u: use --pid %u", pid, tgid, tgid);
}

static void check_host(const struct wish *wish, u64 *cgroup, u32 *level)
{
	char text[256] = "";
	FILE *file;

	if (geteuid())
		fail("watching the kernel needs root: run it with sudo, or look at a record with '" PROGRAM " show FILE'");
	if (wish->tgid)
		check_process(wish->tgid);
	if (wish->cgroup)
		*cgroup = find_cgroup(wish->cgroup, level);
	file = fopen("/sys/kernel/security/lockdown", "re");
	if (file) {
		if (fgets(text, sizeof(text), file) &&
		    strstr(text, "[confidentiality]"))
			fail("this kernel is locked down (confidentiality), so that nobody can read its memory: boot with lockdown=integrity to use " PROGRAM);
		fclose(file);
	}
	if (access(BTF_FILE, R_OK))
		fail("there is no " BTF_FILE ": mount /sys, in a container run it on the host; else this kernel was built without type information (CONFIG_DEBUG_INFO_BTF), which kernels of distributions have");
}

static bool has_member(const struct btf *btf, const char *name, const char *member)
{
	int id = btf__find_by_name_kind(btf, name, BTF_KIND_STRUCT), i;
	const struct btf_type *type;

	if (id < 0)
		return false;
	type = btf__type_by_id(btf, id);
	for (i = 0; i < btf_vlen(type); i++)
		if (!strcmp(btf__name_by_offset(btf, btf_members(type)[i].name_off),
			    member))
			return true;
	return false;
}

static void check_kernel(struct btf *btf)
{
	struct utsname name;

	uname(&name);
	if (btf__find_by_name_kind(btf, "btf_trace_contention_begin",
				   BTF_KIND_TYPEDEF) < 0)
		fail("Linux %s has no tracepoint lock:contention_begin, which came with 5.19: boot a newer kernel",
		     name.release);
	if (!has_member(btf, "rw_semaphore", "owner"))
		fail("Linux %s is a real-time kernel (PREEMPT_RT), whose locks have no owner to find: boot one that is not",
		     name.release);
}

static void __attribute__((noreturn)) refused(int error)
{
	switch (error) {
	/* EACCES would be the verifier. */
	case EPERM:
		fail("the kernel refuses BPF programs: in a container run it on the host, or give it CAP_BPF and CAP_PERFMON (--verbose shows what libbpf says)");
	case ENOSYS:
		fail("this kernel has no bpf(2): it was built without CONFIG_BPF_SYSCALL");
	default:
		fail("the kernel does not take the BPF programs: %s (--verbose shows what libbpf says)",
		     strerror(error));
	}
}

/* --- The report */

/* Names go to terminals, JSON and metrics, as they are. */
static void clean(char *name)
{
	for (; *name; name++)
		if (*name < ' ' || *name > '~' || *name == '"' || *name == '\\')
			*name = '?';
}

static void note(struct report *report, const char *text)
{
	if (report->nr_notes == MAX_NOTES)
		return;
	snprintf(report->notes[report->nr_notes++], sizeof(report->notes[0]),
		 "%s", text);
}

/* Its waits are those until then, if it had any. */
static void note_end(struct report *report, u32 pid)
{
	char text[64];

	snprintf(text, sizeof(text), "/proc/%u", pid);
	if (!access(text, F_OK))
		return;
	snprintf(text, sizeof(text), "process %u after it ended", pid);
	note(report, text);
}

static void clean_row(struct row *row)
{
	clean(row->holder);
	clean(row->call);
	clean(row->waiter);
	if (!*row->holder)
		strcpy(row->holder, "-");
	if (!*row->waiter)
		strcpy(row->waiter, "-");
}

static void add_group(struct report *report, struct stalls_bpf *bpf,
		      const struct group_key *key, const struct group *group)
{
	const char *frames[STACK_DEPTH];
	unsigned long stack[STACK_DEPTH] = {};
	struct row row = { .which = -1, .write = key->write };
	struct cause cause = key->cause;
	size_t nr = 0;
	int i;

	if (key->cause.stack >= 0 &&
	    !bpf_map_lookup_elem(bpf_map__fd(bpf->maps.stacks),
				 &key->cause.stack, stack))
		for (; nr < STACK_DEPTH && stack[nr]; nr++)
			frames[nr] = symbol_at(stack[nr]);
	memcpy(cause.comm, group->holder, COMM_LEN);
	name_cause(&row, &cause, key->lock, frames, nr);
	snprintf(row.waiter, sizeof(row.waiter), "%.*s", COMM_LEN, group->waiter);
	clean_row(&row);
	row.waits = group->waits;
	row.total = group->total;
	row.max = group->max;
	for (i = 0; i < SLOTS; i++)
		row.slots[i] = group->slots[i];
	/* There are no more groups than rows. */
	add_row(report, &row);
}

/* The name of a thread; false if it has ended, or sleeps as no waiter for a lock does. */
static bool still_waits(u32 pid, char *name, size_t size)
{
	char path[64], text[512], *first, *last = NULL;
	FILE *file;

	strcpy(name, "-");
	/* In another namespace, the number is that of another thread. */
	if (!first_namespace("pid", FIRST_PID_NAMESPACE))
		return true;
	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (fgets(text, sizeof(text), file))
		last = strrchr(text, ')');
	fclose(file);
	first = strchr(text, '(');
	if (!last || last[1] != ' ' || !strchr("RD", last[2]) || !first)
		return false;
	*last = 0;
	snprintf(name, size, "%.*s", COMM_LEN, first + 1);
	return true;
}

static void add_waiter(struct report *report, int histories,
		       const struct waiter *waiter, struct row *row, u64 end)
{
	struct cause cause = waiter->owner;
	struct history history;

	cause.pid = 0;
	/* The owner has released the lock. */
	if (!bpf_map_lookup_elem(histories, &waiter->lock, &history) &&
	    history.releases != waiter->releases)
		cause.flags = history.releases - waiter->releases > SEGMENTS ?
			CAUSE_CROWD : CAUSE_UNKNOWN;
	name_cause(row, &cause, waiter->kind, NULL, 0);
	clean_row(row);
	row->write = waiter->write;
	row->waits = 1;
	row->total = row->max = end - waiter->begin;
	row->slots[slot_of(row->max)] = 1;
	if (!add_row(report, row)) {
		report->counters[LOST_GROUPS]++;
		report->counters[LOST_GROUP_NS] += row->total;
		return;
	}
	report->counters[UNENDED_WAITS]++;
	if (row->max > report->counters[UNENDED_LONGEST_NS])
		report->counters[UNENDED_LONGEST_NS] = row->max;
}

/* Waits that have not ended, of which the longest may matter most. */
static void read_waiters(struct report *report, struct stalls_bpf *bpf, u64 end)
{
	struct waiter *waiters = calloc(MAX_WAITERS, sizeof(*waiters));
	u32 *pids = calloc(MAX_WAITERS, sizeof(*pids)), next, i;
	u32 count = MAX_WAITERS;
	struct row row;
	int error;

	if (!waiters || !pids)
		fail("out of memory");
	/* At once: a walk by keys starts again if a wait ends under it. */
	error = bpf_map_lookup_batch(bpf_map__fd(bpf->maps.waiters), NULL, &next,
				     pids, waiters, &count, NULL);
	if (error && error != -ENOENT)
		fail("cannot read the waits that have not ended: %s",
		     strerror(-error));
	for (i = 0; i < count; i++) {
		row = (struct row){ .which = -1 };
		if (!still_waits(pids[i], row.waiter, sizeof(row.waiter)))
			report->counters[LOST_ENDS]++;
		else if (waiters[i].begin + report->min_ns <= end)
			add_waiter(report, bpf_map__fd(bpf->maps.histories),
				   &waiters[i], &row, end);
	}
	free(waiters);
	free(pids);
}

/* The entry after KEY, of a map that entries are only added to; BEGUN is false for the first. */
static bool next_entry(const struct bpf_map *map, bool *begun, void *key,
		       void *value)
{
	int fd = bpf_map__fd(map);

	if (bpf_map_get_next_key(fd, *begun ? key : NULL, key))
		return false;
	*begun = true;
	return !bpf_map_lookup_elem(fd, key, value);
}

static void read_groups(struct report *report, struct stalls_bpf *bpf)
{
	struct group_key key;
	struct group group;
	bool begun = false;

	while (next_entry(bpf->maps.groups, &begun, &key, &group))
		add_group(report, bpf, &key, &group);
}

static void read_senders(struct report *report, struct stalls_bpf *bpf)
{
	struct broadcaster *sender;
	struct sender key;
	bool begun = false;
	u64 count;

	while (next_entry(bpf->maps.senders, &begun, &key, &count)) {
		report->senders = grow(report->senders, report->nr_senders,
				       sizeof(*sender));
		sender = &report->senders[report->nr_senders++];
		snprintf(sender->program, sizeof(sender->program), "%.*s",
			 COMM_LEN, key.comm);
		clean(sender->program);
		sender->kthread = key.kthread;
		sender->count = count;
	}
}

/* --- Watching */

static bool verbose;

static int say_libbpf(enum libbpf_print_level level, const char *format,
		      va_list arguments)
{
	if (!verbose || level == LIBBPF_DEBUG)
		return 0;
	return vfprintf(stderr, format, arguments);
}

/* Leave out programs whose function is not in the kernel, or that it refuses. */
static void leave_out(struct report *report, struct btf *btf, bool all,
		      struct bpf_program *first, struct bpf_program *second,
		      const char *function, const char *text)
{
	if (!all &&
	    btf__find_by_name_kind(btf, function, BTF_KIND_FUNC) >= 0)
		return;
	bpf_program__set_autoload(first, false);
	if (second)
		bpf_program__set_autoload(second, false);
	if (text)
		note(report, text);
}

/* The IDs and addresses that the BPF programs compare with. */
struct target {
	u64 cgroup;
	u32 level;
	unsigned long table;
};

static void configure(struct stalls_bpf *bpf, const struct wish *wish,
		      const struct target *target)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF), nr = 8;

	bpf->rodata->min_ns = wish->min_ns;
	bpf->rodata->large_bytes =
		switches[switch_named("vm.munmap_section_kbytes")].on * 1024ULL;
	bpf->rodata->only_tgid = wish->tgid;
	bpf->rodata->only_cgroup = target->cgroup;
	bpf->rodata->cgroup_level = target->level;
	/* A pointer: the programs read it, and where the table ends. */
	while (nr < 8 * cpus)
		nr *= 2;
	bpf->rodata->fault_mutex_table = target->table;
	bpf->rodata->fault_mutexes = target->table ? nr : 0;
}

static const char spinning[] = "writers that spin while the holder runs";
static const char exits[] = "exits";
static const char broadcasts[] = "interrupts of every CPU for page tables";

static const char huge_faults[] = "page faults of hugetlb, which look like those of other memory";

static struct stalls_bpf *load(struct report *report, const struct wish *wish,
			       struct btf *btf, const struct target *target,
			       bool least)
{
	struct stalls_bpf *bpf = stalls_bpf__open();
	size_t notes = report->nr_notes;
	int error;

	if (!bpf)
		refused(errno);
	configure(bpf, wish, target);
	leave_out(report, btf, least, bpf->progs.write_begin,
		  bpf->progs.write_end, "rwsem_down_write_slowpath", spinning);
	leave_out(report, btf, least, bpf->progs.exit_begin, bpf->progs.exit_end,
		  "exit_mmap", exits);
	leave_out(report, btf, least, bpf->progs.broadcast, NULL,
		  "tlb_remove_table_sync_one", broadcasts);
	/* A kernel without hugetlb lacks nothing. */
	leave_out(report, btf, least, bpf->progs.huge_fault, NULL,
		  "hugetlb_fault", least ? huge_faults : NULL);
	error = stalls_bpf__load(bpf);
	if (!error)
		return bpf;
	if (least || error == -EPERM)
		refused(-error);
	/* A function may be there in a form that cannot be traced. */
	stalls_bpf__destroy(bpf);
	report->nr_notes = notes;
	return load(report, wish, btf, target, true);
}

static void show_progress(struct stalls_bpf *bpf, long long done,
			  const struct wish *wish)
{
	unsigned long long waits = 0, total = 0;
	struct group_key key;
	struct group group;
	bool begun = false;

	while (next_entry(bpf->maps.groups, &begun, &key, &group)) {
		waits += group.waits;
		total += group.total;
	}
	fprintf(stderr, "\r" PROGRAM ": %.0f of %.0f s, %llu waits, %.1f s in all ",
		done / 1e9, wish->seconds, waits, total / 1e9);
}

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * ONE_SECOND + time.tv_nsec;
}

static sigset_t ending(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	return signals;
}

/* Wait for the end of the window, or for a signal to end it early. */
static long long wait_window(struct stalls_bpf *bpf, const struct wish *wish)
{
	long long begin = now(), end = begin + wish->seconds * ONE_SECOND, left;
	bool terminal = isatty(STDERR_FILENO);
	sigset_t signals = ending();
	struct timespec step;

	fprintf(stderr, PROGRAM ": watching for %g s; Ctrl-C ends it early\n",
		wish->seconds);
	while ((left = end - now()) > 0) {
		if (left > ONE_SECOND)
			left = ONE_SECOND;
		step.tv_sec = left / ONE_SECOND;
		step.tv_nsec = left % ONE_SECOND;
		if (sigtimedwait(&signals, NULL, &step) > 0)
			break;
		if (terminal)
			show_progress(bpf, now() - begin, wish);
	}
	if (terminal)
		fputc('\n', stderr);
	return now() - begin;
}

/* --- What is lost if a program is preempted by itself, as the kernel may do with fentry and fexit */

static const struct bpf_program *counted[8];
static size_t nr_counted;

static u64 lost_calls(void)
{
	struct bpf_prog_info info;
	u64 lost = 0;
	size_t i;

	for (i = 0; i < nr_counted; i++) {
		u32 size = sizeof(info);

		memset(&info, 0, sizeof(info));
		if (!bpf_obj_get_info_by_fd(bpf_program__fd(counted[i]), &info,
					    &size))
			lost += info.recursion_misses;
	}
	return lost;
}

/* --- Links, which end with the window, so that the maps stay as they are. */

static void attach(struct bpf_program *program, struct bpf_link **link)
{
	*link = bpf_program__attach(program);
	if (!*link)
		refused(errno);
}

/* Programs of a feature that the kernel may not have. */
static bool attach_optional(struct report *report, struct bpf_program *end,
			    struct bpf_link **end_link,
			    struct bpf_program *begin,
			    struct bpf_link **begin_link, const char *missing)
{
	if (!bpf_program__autoload(begin))
		return false;
	if (end) {
		counted[nr_counted++] = end;
		*end_link = bpf_program__attach(end);
	}
	if (!end || *end_link) {
		counted[nr_counted++] = begin;
		*begin_link = bpf_program__attach(begin);
		if (*begin_link)
			return true;
	}
	note(report, missing);
	return false;
}

void watch(struct report *report, const struct wish *wish)
{
	struct target target = {};
	struct stalls_bpf *bpf;
	struct utsname name;
	static const struct timespec at_once;
	sigset_t signals = ending();
	struct btf *btf;
	u64 end;

	check_host(wish, &target.cgroup, &target.level);
	verbose = wish->verbose;
	libbpf_set_print(say_libbpf);
	btf = btf__load_vmlinux_btf();
	if (!btf)
		fail("cannot read " BTF_FILE ": %s", strerror(errno));
	check_kernel(btf);
	if (!read_symbols("hugetlb_fault_mutex_table", &target.table))
		note(report, "page faults in system calls, khugepaged and NUMA balancing: kernel.kptr_restrict hides the names of functions");
	if (!target.table &&
	    btf__find_by_name_kind(btf, "hugetlb_fault", BTF_KIND_FUNC) >= 0)
		note(report, "locks of hugetlb page faults, which /proc/kallsyms does not show");
	if (has_member(btf, "vm_area_struct", "vm_refcnt"))
		note(report, "locks of VMAs, for which this kernel has no event");
	bpf = load(report, wish, btf, &target, false);

	/* Not before: nothing has to be told while it loads. */
	sigprocmask(SIG_BLOCK, &signals, NULL);

	/* Ends first: a wait whose end nobody sees would stay in the map. */
	attach(bpf->progs.contention_end, &bpf->links.contention_end);
	attach(bpf->progs.waking, &bpf->links.waking);
	bpf->bss->writers_begin =
		attach_optional(report, bpf->progs.write_end,
				&bpf->links.write_end, bpf->progs.write_begin,
				&bpf->links.write_begin, spinning);
	attach_optional(report, NULL, NULL, bpf->progs.huge_fault,
			&bpf->links.huge_fault, huge_faults);
	attach(bpf->progs.contention_begin, &bpf->links.contention_begin);
	attach_optional(report, bpf->progs.exit_end, &bpf->links.exit_end,
			bpf->progs.exit_begin, &bpf->links.exit_begin, exits);
	attach_optional(report, NULL, NULL, bpf->progs.broadcast,
			&bpf->links.broadcast, broadcasts);

	report->seconds = wait_window(bpf, wish) / 1e9;
	/* A record of no time at all cannot be shown. */
	if (report->seconds < 0.001)
		report->seconds = 0.001;
	/* A second Ctrl-C meant the window, not the report. */
	while (sigtimedwait(&signals, NULL, &at_once) > 0)
		;
	end = now();
	stalls_bpf__detach(bpf);
	sigprocmask(SIG_UNBLOCK, &signals, NULL);
	if (wish->tgid)
		note_end(report, wish->tgid);
	uname(&name);
	snprintf(report->kernel, sizeof(report->kernel), "%s", name.release);
	clean(report->kernel);
	report->min_ns = wish->min_ns;
	read_switches(report);
	read_groups(report, bpf);
	read_waiters(report, bpf, end);
	read_senders(report, bpf);
	report->counters[SHORT_WAITS] = bpf->bss->short_waits;
	report->counters[SHORT_NS] = bpf->bss->short_ns;
	report->counters[LOST_WAITERS] = bpf->bss->lost_waiters;
	report->counters[LOST_GROUPS] += bpf->bss->lost_groups;
	report->counters[LOST_GROUP_NS] += bpf->bss->lost_group_ns;
	report->counters[LOST_ENDS] += bpf->bss->lost_ends;
	report->counters[LOST_CALLS] = lost_calls();
	report->counters[LOST_STACKS] = bpf->bss->lost_stacks;
	report->counters[LOST_SENDERS] = bpf->bss->lost_senders;
	report->counters[LOST_EXITS] = bpf->bss->lost_exits;
	btf__free(btf);
}
