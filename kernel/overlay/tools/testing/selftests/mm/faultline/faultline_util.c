// SPDX-License-Identifier: GPL-2.0-only
/*
 * Helpers of the Faultline selftests.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <poll.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faultline_util.h"

/*
 * A malloc arena per thread would add and remove 64 MiB of VmSize in the
 * middle of a test that compares VmSize.
 */
static void __attribute__((constructor)) one_malloc_arena(void)
{
	mallopt(M_ARENA_MAX, 1);
}

size_t page_size(void)
{
	static size_t size;

	if (!size)
		size = sysconf(_SC_PAGESIZE);
	return size;
}

size_t pmd_size(void)
{
	static size_t size;
	char text[32];

	if (!size && !read_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
				text, sizeof(text)))
		size = strtoul(text, NULL, 10);
	/*
	 * A kernel without THP does not report it.  Assume that a table fills
	 * a base page with 8-byte entries, as on most machines.
	 */
	if (!size)
		size = page_size() * (page_size() / sizeof(__u64));
	return size;
}

/* --- sysctl */

static void sysctl_path(char *path, size_t size, const char *name)
{
	snprintf(path, size, "/proc/sys/vm/%s", name);
}

int write_text(const char *path, const char *text)
{
	size_t len = strlen(text);
	int fd, ret = 0;

	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, text, len) != (ssize_t)len)
		ret = errno ? -errno : -EIO;
	close(fd);
	return ret;
}

int read_text(const char *path, char *buf, size_t size)
{
	ssize_t n;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, size - 1);
	if (n < 0) {
		n = -errno;
		close(fd);
		return n;
	}
	close(fd);
	buf[n] = '\0';
	return 0;
}

bool vm_sysctl_exists(const char *name)
{
	char path[128];

	sysctl_path(path, sizeof(path), name);
	return !access(path, F_OK);
}

int vm_sysctl_read(const char *name, long *value)
{
	char path[128], buf[64];
	int ret;

	sysctl_path(path, sizeof(path), name);
	ret = read_text(path, buf, sizeof(buf));
	if (!ret)
		*value = strtol(buf, NULL, 10);
	return ret;
}

int vm_sysctl_write_text(const char *name, const char *text)
{
	char path[128];

	sysctl_path(path, sizeof(path), name);
	return write_text(path, text);
}

int vm_sysctl_write(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld\n", value);
	return vm_sysctl_write_text(name, text);
}

/* --- the commit limit */

bool commit_limit_read(struct commit_limit *c)
{
	return !vm_sysctl_read("overcommit_ratio", &c->ratio) &&
	       !vm_sysctl_read("overcommit_kbytes", &c->kbytes) &&
	       !vm_sysctl_read("overcommit_memory", &c->memory);
}

bool commit_limit_set(long kb)
{
	/* Swap counts as well. */
	kb += meminfo_kb("Committed_AS") - meminfo_kb("SwapTotal");
	return !vm_sysctl_write("overcommit_kbytes", kb) &&
	       !vm_sysctl_write("overcommit_memory", 2);
}

void commit_limit_lift(const struct commit_limit *c)
{
	vm_sysctl_write("overcommit_memory", c->memory);
	/* Each of the two sets the other to 0. */
	if (c->kbytes)
		vm_sysctl_write("overcommit_kbytes", c->kbytes);
	else
		vm_sysctl_write("overcommit_ratio", c->ratio);
}

/* --- a knob of a feature */

const char *vm_knob_set(const struct vm_knob *knob, long value)
{
	const char *before = "", *after = "";
	static char why[128];
	long now;

	if (!vm_sysctl_exists(knob->name)) {
		if (value == knob->stock)
			return NULL;
		before = "this kernel has no ";
	} else if (vm_sysctl_read(knob->name, &now)) {
		after = " cannot be read";
	} else if (now == value) {
		return NULL;
	} else if (geteuid()) {
		before = "needs root to set ";
	} else if (vm_sysctl_write(knob->name, value)) {
		after = knob->refused;
	} else {
		return NULL;
	}
	snprintf(why, sizeof(why), "%svm.%s%s", before, knob->name, after);
	return why;
}

int run_in_child(int (*run)(int argc, char **argv), int argc, char **argv)
{
	int status;
	pid_t pid;

	/* Otherwise the child prints the buffered output again. */
	fflush(stdout);
	pid = fork();
	if (!pid)
		exit(run(argc, argv));
	status = reap(pid);
	return status < 0 || status > 255 ? EXIT_FAILURE : status;
}

int vm_knob_kept(const struct vm_knob *knob, int (*run)(int argc, char **argv),
		 int argc, char **argv)
{
	bool have = vm_sysctl_exists(knob->name);
	long saved = 0;
	int status;

	if (have && vm_sysctl_read(knob->name, &saved))
		have = false;
	status = run_in_child(run, argc, argv);
	if (have)
		vm_knob_set(knob, saved);
	return status;
}

bool static_keys_flip(void)
{
	static char info[16384];

	return getenv("FAULTLINE_FLIP_OFF") ||
	       read_text("/proc/cpuinfo", info, sizeof(info)) ||
	       !strstr(info, "QEMU TCG");
}

/* --- races */

bool env_number(const char *name, long *value)
{
	const char *text = getenv(name);
	char *end;
	long n;

	if (!text)
		return true;
	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || end == text || *end || n <= 0) {
		fprintf(stderr, "%s=%s: must be a positive number\n", name,
			text);
		return false;
	}
	*value = n;
	return true;
}

static void *flipper_main(void *arg)
{
	struct flipper *f = arg;
	const struct flips *flips = f->flips;
	int i, n = static_keys_flip() ? flips->n : flips->n_keyless;

	for (i = 0; !atomic_load(&f->stop); i++) {
		long value = flips->values[i % n];

		if (!vm_sysctl_write(flips->name, value))
			atomic_fetch_add(&f->count, 1);
		if (flips->written)
			flips->written(i, value);
		usleep(f->ms * 1000);
	}
	return NULL;
}

int flipper_start(struct flipper *f, const struct flips *flips, int ms)
{
	int err;

	f->flips = flips;
	f->ms = ms;
	atomic_store(&f->stop, false);
	err = pthread_create(&f->thread, NULL, flipper_main, f);
	f->running = !err;
	return err;
}

void flipper_stop(struct flipper *f)
{
	if (!f->running)
		return;
	atomic_store(&f->stop, true);
	pthread_join(f->thread, NULL);
	f->running = false;
}

const char *race_prepare(const struct vm_knob *knob, long value,
			 const struct flips *flips)
{
	const char *why = vm_knob_set(knob, value);

	if (why)
		return why;
	if (flips && !flips->n_keyless && !static_keys_flip())
		return "static keys are not flipped on this emulated CPU";
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return "a race needs two CPUs";
	return NULL;
}

/* --- processes */

void *map_shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

pid_t fork_bound(void)
{
	pid_t parent = getpid(), pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* The parent may have died before that. */
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

int reap(pid_t pid)
{
	int status;

	if (pid <= 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

void meet(struct rendezvous *m, int stage)
{
	atomic_store(&m->stage, stage);
}

void wait_for(struct rendezvous *m, int stage)
{
	while (atomic_load(&m->stage) < stage)
		usleep(1000);
}

char task_state(pid_t pid, pid_t tid)
{
	char path[64], text[512], *end;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	if (read_text(path, text, sizeof(text)))
		return 0;
	end = strrchr(text, ')');
	return end ? end[2] : 0;
}

static __thread struct {
	bool expected;
	sigjmp_buf env;
	siginfo_t info;
} fault;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	if (!fault.expected)
		_exit(100 + sig);
	fault.info = *info;
	siglongjmp(fault.env, sig);
}

void catch_faults(void)
{
	struct sigaction act = {
		.sa_sigaction = on_fault,
		/* No signal is blocked, so no mask needs restoring. */
		.sa_flags = SA_SIGINFO | SA_NODEFER,
	};

	sigaction(SIGSEGV, &act, NULL);
	sigaction(SIGBUS, &act, NULL);
}

int try_read(const void *addr, __u64 *word)
{
	int sig;

	fault.expected = true;
	sig = sigsetjmp(fault.env, 0);
	if (!sig)
		*word = word_read(addr);
	atomic_signal_fence(memory_order_seq_cst);
	fault.expected = false;
	return sig;
}

int try_write(void *addr, __u64 word)
{
	int sig;

	fault.expected = true;
	sig = sigsetjmp(fault.env, 0);
	if (!sig)
		word_write(addr, word);
	atomic_signal_fence(memory_order_seq_cst);
	fault.expected = false;
	return sig;
}

int access_signal(void *addr, bool write, siginfo_t *info)
{
	struct sigaction bus, segv;
	__u64 word;
	int sig;

	sigaction(SIGBUS, NULL, &bus);
	sigaction(SIGSEGV, NULL, &segv);
	catch_faults();
	sig = write ? try_write(addr, 1) : try_read(addr, &word);
	sigaction(SIGBUS, &bus, NULL);
	sigaction(SIGSEGV, &segv, NULL);
	if (sig && info)
		*info = fault.info;
	return sig;
}

/* --- memory cgroups */

int memory_group_write(const struct memory_group *g, const char *file,
		       const char *text)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", g->dir, file);
	return write_text(path, text);
}

/* Moves this process to a group: "0" stands for the writer. */
static int group_enter(const char *dir)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	return write_text(path, "0");
}

bool memory_group_enter(struct memory_group *g)
{
	return control_group_enter(g, "memory");
}

bool control_group_enter(struct memory_group *g, const char *controller)
{
	char path[160], wanted[32];

	/* A mount of our own, wherever the machine has its own or has none. */
	snprintf(g->root, sizeof(g->root), "/tmp/faultline-cgroup-%d",
		 getpid());
	snprintf(g->dir, sizeof(g->dir), "%s/faultline-%d", g->root, getpid());
	mkdir("/tmp", 01777);
	mkdir(g->root, 0700);
	if (mount("none", g->root, "cgroup2", 0, NULL)) {
		rmdir(g->root);
		return false;
	}
	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", g->root);
	snprintf(wanted, sizeof(wanted), "+%s", controller);
	if (!write_text(path, wanted) && !mkdir(g->dir, 0700)) {
		if (!group_enter(g->dir))
			return true;
		rmdir(g->dir);
	}
	umount(g->root);
	rmdir(g->root);
	return false;
}

void memory_group_exit(const struct memory_group *g)
{
	group_enter(g->root);
}

void memory_group_leave(const struct memory_group *g)
{
	memory_group_exit(g);
	rmdir(g->dir);
	umount(g->root);
	rmdir(g->root);
}

bool fault_attr_set(const char *attr, const struct fault_setting *settings,
		    size_t n)
{
	char path[128];
	size_t i;

	for (i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", attr,
			 settings[i].file);
		if (write_text(path, settings[i].text))
			return false;
	}
	return true;
}

/* --- /proc */

static long proc_value(const char *path, const char *field, char end)
{
	size_t len = strlen(field);
	char line[256];
	long value = -1;
	FILE *f;

	f = fopen(path, "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, field, len) && line[len] == end) {
			value = strtol(line + len + 1, NULL, 10);
			break;
		}
	}
	fclose(f);
	return value;
}

long proc_kb(const char *path, const char *field)
{
	return proc_value(path, field, ':');
}

long memory_group_read(const struct memory_group *g, const char *file,
		       const char *field)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/%s", g->dir, file);
	return proc_value(path, field, ' ');
}

long status_kb(const char *field)
{
	return proc_kb("/proc/self/status", field);
}

long page_tables_kb(void)
{
	/* Reading may itself need a table, for the heap or the stack. */
	status_kb("VmPTE");
	return status_kb("VmPTE");
}

long meminfo_kb(const char *field)
{
	return proc_kb("/proc/meminfo", field);
}

long minor_faults(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_SELF, &usage) ? -1 : usage.ru_minflt;
}

#define ZRAM		"/dev/zram0"
#define SWAP_SIZE	(128 * MIB)

static bool swap_started;

bool swap_start(void)
{
	size_t ps = page_size();
	char *header, text[256], size[32];
	__u32 *info;
	int fd;

	if (!read_text("/proc/swaps", text, sizeof(text)) &&
	    strchr(text, '\n') && strchr(text, '\n')[1])
		return true;

	snprintf(size, sizeof(size), "%lu", SWAP_SIZE);
	write_text("/sys/block/zram0/disksize", size);
	fd = open(ZRAM, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	header = calloc(1, ps);
	info = (__u32 *)(header + 1024);
	info[0] = 1;				/* version */
	info[1] = SWAP_SIZE / ps - 1;		/* last page */
	memcpy(header + ps - 10, "SWAPSPACE2", 10);
	swap_started = write(fd, header, ps) == (ssize_t)ps && !fsync(fd) &&
		       !swapon(ZRAM, 0);
	close(fd);
	free(header);
	return swap_started;
}

void swap_stop(void)
{
	if (!swap_started || swapoff(ZRAM))
		return;
	write_text("/sys/block/zram0/reset", "1");
	swap_started = false;
}

long swappable_kb(size_t len)
{
	long wanted = len / KIB, swap = meminfo_kb("SwapTotal");

	return wanted < swap ? wanted : swap;
}

long vmstat_read(const char *name)
{
	return proc_value("/proc/vmstat", name, ' ');
}

struct counters counters_read(const char *prefix)
{
	FILE *f = fopen("/proc/vmstat", "re");
	struct counters c = { .prefix = prefix };
	size_t len = strlen(prefix);
	char line[256];

	while (f && fgets(line, sizeof(line), f) && c.n < COUNTERS_MAX)
		if (!strncmp(line, prefix, len) &&
		    sscanf(line + len, "%31s %ld", c.list[c.n].name,
			   &c.list[c.n].value) == 2)
			c.n++;
	if (f)
		fclose(f);
	return c;
}

struct counters counters_since(const struct counters *before)
{
	struct counters delta = counters_read(before->prefix);
	int i;

	/* The same counters in the same order. */
	for (i = 0; i < delta.n; i++)
		delta.list[i].value -= before->list[i].value;
	return delta;
}

long counter(const struct counters *c, const char *name)
{
	int i;

	for (i = 0; i < c->n; i++)
		if (!strcmp(c->list[i].name, name))
			return c->list[i].value;
	if (c->n) {
		fprintf(stderr, "/proc/vmstat has no %s%s\n", c->prefix, name);
		abort();
	}
	return 0;
}

long counted(const struct counters *before, const char *name)
{
	struct counters delta = counters_since(before);

	return counter(&delta, name);
}

const char *counters_text(const struct counters *c)
{
	static char text[COUNTERS_MAX * 48];
	size_t len = 0;
	int i;

	text[0] = '\0';
	for (i = 0; i < c->n; i++)
		len += snprintf(text + len, sizeof(text) - len, " %s %ld",
				c->list[i].name, c->list[i].value);
	return text;
}

bool vma_header(const char *line, unsigned long *start, unsigned long *end)
{
	char perm;

	return sscanf(line, "%lx-%lx %c", start, end, &perm) == 3;
}

int map_count(void)
{
	char line[512];
	int n = 0;
	FILE *f;

	f = fopen("/proc/self/maps", "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		/* The vsyscall page is listed, but not a VMA of this mm. */
		if (!strstr(line, "[vsyscall]"))
			n++;
	fclose(f);
	return n;
}

/* The VMAs that overlap a range, and the bytes of it in them; -1: cannot say. */
static int overlapping(const void *addr, size_t len, size_t *bytes)
{
	unsigned long lo = (unsigned long)addr, hi = lo + len, start, end;
	char line[512];
	int n = 0;
	FILE *f;

	*bytes = 0;
	f = fopen("/proc/self/maps", "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (!vma_header(line, &start, &end))
			continue;
		start = start < lo ? lo : start;
		end = end > hi ? hi : end;
		if (start < end) {
			n++;
			*bytes += end - start;
		}
	}
	fclose(f);
	return n;
}

size_t mapped_bytes(const void *addr, size_t len)
{
	size_t bytes;

	return overlapping(addr, len, &bytes) < 0 ? SIZE_MAX : bytes;
}

int mappings(const void *addr, size_t len)
{
	size_t bytes;

	return overlapping(addr, len, &bytes);
}

long smaps_kb(const void *addr, size_t len, const char *field)
{
	unsigned long lo = (unsigned long)addr, hi = lo + len, start, end;
	size_t flen = strlen(field);
	bool inside = false;
	char line[512];
	long sum = 0;
	FILE *f;

	f = fopen("/proc/self/smaps", "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (vma_header(line, &start, &end))
			inside = start >= lo && end <= hi;
		else if (inside && !strncmp(line, field, flen) &&
			 line[flen] == ':')
			sum += strtol(line + flen + 1, NULL, 10);
	}
	fclose(f);
	return sum;
}

bool page_is_mapped(const void *addr)
{
	return !msync((void *)addr, page_size(), MS_ASYNC);
}

/* --- page contents */

__u64 page_word(__u64 tag, size_t index)
{
	return (tag ^ (index * 0x9e3779b97f4a7c15ULL)) | 1;
}

void fill_pages(void *addr, size_t len, __u64 tag)
{
	size_t i, ps = page_size();

	for (i = 0; i < len / ps; i++)
		word_write((char *)addr + i * ps, page_word(tag, i));
}

size_t nonzero_pages(const void *addr, size_t len)
{
	size_t i, n = 0, ps = page_size();

	for (i = 0; i < len / ps; i++)
		n += !!word_read((char *)addr + i * ps);
	return n;
}

size_t bad_pages(const void *addr, size_t len, __u64 tag)
{
	size_t i, bad = 0, ps = page_size();

	for (i = 0; i < len / ps; i++)
		bad += word_read((char *)addr + i * ps) != page_word(tag, i);
	return bad;
}

static void *map_private(void *addr, size_t len, int flags)
{
	void *p = mmap(addr, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void *map_fresh(size_t len)
{
	return map_private(NULL, len, 0);
}

void *map_fresh_at(void *addr, size_t len)
{
	return map_private(addr, len, MAP_FIXED);
}

void *decommit(void *addr, size_t len)
{
	void *p = mmap(addr, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE | MAP_FIXED, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void *map_apart(size_t len)
{
	void *p = free_range(len);

	return p ? map_private(p, len, MAP_FIXED_NOREPLACE) : NULL;
}

void *map_filled(size_t len, __u64 tag)
{
	void *p = map_fresh(len);

	if (!p)
		return NULL;
	/* Fails on a kernel without THP, which does not need it. */
	madvise(p, len, MADV_NOHUGEPAGE);
	fill_pages(p, len, tag);
	return p;
}

static void *free_range_of(size_t len, int flags)
{
	size_t size = len + 3 * GIB;
	uintptr_t addr;
	void *p;

	p = mmap(NULL, size, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	munmap(p, size);
	addr = ((uintptr_t)p + 2 * GIB - 1) / GIB * GIB;
	return (void *)addr;
}

void *free_range(size_t len)
{
	return free_range_of(len, 0);
}

void *free_huge_range(size_t len)
{
	return free_range_of((len + pmd_size() - 1) / pmd_size() * pmd_size(),
			     MAP_HUGETLB);
}

/* --- idle thread */

static void *idle_main(void *arg)
{
	struct idle_thread *idle = arg;
	char c;

	idle->tid = syscall(__NR_gettid);
	/* Returns when the write end is closed. */
	while (read(idle->pipe[0], &c, 1) < 0 && errno == EINTR)
		;
	return NULL;
}

int idle_thread_start(struct idle_thread *idle)
{
	int ret;

	if (pipe(idle->pipe))
		return -errno;
	ret = pthread_create(&idle->thread, NULL, idle_main, idle);
	if (ret) {
		close(idle->pipe[0]);
		close(idle->pipe[1]);
		return -ret;
	}
	idle->running = true;
	return 0;
}

void idle_thread_stop(struct idle_thread *idle)
{
	char path[64];

	if (!idle->running)
		return;
	close(idle->pipe[1]);
	pthread_join(idle->thread, NULL);
	/* It may still be about to drop its reference to the mm. */
	snprintf(path, sizeof(path), "/proc/self/task/%d", idle->tid);
	while (!access(path, F_OK))
		usleep(100);
	close(idle->pipe[0]);
	idle->running = false;
}

/* --- time and chance */

__u64 random_next(__u64 *state)
{
	/* xorshift64: reproducible from its seed, which must not be 0 */
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* --- block device */

int loop_device(size_t size)
{
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	int file, dev = -1, n, tries;
	char path[32];

	if (control < 0)
		return -1;
	file = memfd_create("loop", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, size))
		goto out;
	/* Another process may take the free device first. */
	for (tries = 0; dev < 0 && tries < 100; tries++) {
		n = ioctl(control, LOOP_CTL_GET_FREE);
		if (n < 0)
			break;
		snprintf(path, sizeof(path), "/dev/loop%d", n);
		dev = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
		if (dev < 0)
			break;
		if (ioctl(dev, LOOP_SET_FD, file)) {
			close(dev);
			dev = -1;
			usleep(1000);
		}
	}
out:
	if (file >= 0)
		close(file);
	close(control);
	return dev;
}

void loop_device_free(int fd)
{
	if (fd < 0)
		return;
	ioctl(fd, LOOP_CLR_FD);
	close(fd);
}

/* --- userfaultfd */

int uffd_open(__u64 features, __u64 *got)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd;

	fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -1;
	if (ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		return -1;
	}
	if (got)
		*got = api.features;
	return fd;
}

static struct uffdio_range uffd_range(const void *addr, size_t len)
{
	return (struct uffdio_range){ (uintptr_t)addr, len };
}

int uffd_register(int fd, const void *addr, size_t len, __u64 mode)
{
	struct uffdio_register reg = {
		.range = uffd_range(addr, len),
		.mode = mode,
	};

	return ioctl(fd, UFFDIO_REGISTER, &reg);
}

int uffd_unregister(int fd, const void *addr, size_t len)
{
	struct uffdio_range range = uffd_range(addr, len);

	return ioctl(fd, UFFDIO_UNREGISTER, &range);
}

int uffd_protect(int fd, const void *addr, size_t len, bool protect)
{
	struct uffdio_writeprotect wp = {
		.range = uffd_range(addr, len),
		.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return ioctl(fd, UFFDIO_WRITEPROTECT, &wp);
}

size_t pagemap_pages(const void *addr, size_t len, int bit)
{
	size_t size = len / page_size() * sizeof(__u64), i, found = 0;
	off_t offset = (uintptr_t)addr / page_size() * sizeof(__u64);
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	__u64 *entries = malloc(size);

	if (fd >= 0 && entries && pread(fd, entries, size, offset) ==
				  (ssize_t)size)
		for (i = 0; i < size / sizeof(__u64); i++)
			found += entries[i] >> bit & 1;
	free(entries);
	if (fd >= 0)
		close(fd);
	return found;
}

size_t uffd_protected(const void *addr, size_t len)
{
	return pagemap_pages(addr, len, PAGEMAP_UFFD_WP);
}

static void *uffd_reader_main(void *arg)
{
	struct uffd_reader *r = arg;
	struct pollfd fds[2] = {
		{ .fd = r->fd, .events = POLLIN },
		{ .fd = r->stop[0], .events = POLLIN },
	};
	struct uffd_msg msg;
	bool late;

	for (;;) {
		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[0].revents & POLLIN) {
			/*
			 * Wait a while: the caller must still be blocked when
			 * the event is read.
			 */
			usleep(20000);
			late = atomic_load(&r->returned);
			/* The read wakes the caller, so check before it. */
			if (read(r->fd, &msg, sizeof(msg)) != sizeof(msg))
				continue;
			r->late |= late;
			r->events++;
			if (msg.event != r->event)
				continue;
			r->awaited++;
			r->start = msg.arg.remove.start;
			r->end = msg.arg.remove.end;
		} else if (fds[1].revents) {
			return NULL;
		}
	}
}

int uffd_reader_start(struct uffd_reader *r)
{
	if (pipe(r->stop))
		return errno;
	return pthread_create(&r->thread, NULL, uffd_reader_main, r);
}

void uffd_reader_stop(struct uffd_reader *r)
{
	/* The thread first reads the events that are there. */
	close(r->stop[1]);
	pthread_join(r->thread, NULL);
	close(r->stop[0]);
}

/* --- kernel messages */

int kmsg_open(void)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd >= 0)
		lseek(fd, 0, SEEK_END);
	return fd;
}

bool kmsg_next(int fd, char *buf, size_t size)
{
	ssize_t len;

	do {
		len = read(fd, buf, size - 1);
	} while (len < 0 && errno == EPIPE);	/* messages were overwritten */
	if (len <= 0)
		return false;
	buf[len] = '\0';
	return true;
}

/* --- tracing */

static int trace_write(const struct trace_session *t, const char *file,
		       const char *text)
{
	char path[400];

	snprintf(path, sizeof(path), "%s/%s", t->dir, file);
	return write_text(path, text);
}

int trace_start(struct trace_session *t, const char *system)
{
	static const char root[] = "/sys/kernel/tracing";
	char path[128];
	int ret;

	memset(t, 0, sizeof(*t));
	snprintf(path, sizeof(path), "%s/instances", root);
	if (access(path, F_OK))
		/* The check below reports a failure. */
		mount("tracefs", root, "tracefs", 0, NULL);
	if (access(path, F_OK))
		return -ENOENT;
	snprintf(path, sizeof(path), "%s/events/%s/enable", root, system);
	if (access(path, F_OK))
		return -ENOENT;
	snprintf(t->dir, sizeof(t->dir), "%s/instances/selftest-%d-%s", root,
		 getpid(), system);
	if (mkdir(t->dir, 0700))
		return -errno;
	ret = trace_write(t, "buffer_size_kb", "1024");
	/* Task names are not needed and would cost two scheduler events. */
	trace_write(t, "trace_options", "norecord-cmd");
	snprintf(path, sizeof(path), "events/%s/enable", system);
	if (!ret)
		ret = trace_write(t, path, "1");
	if (!ret)
		ret = trace_write(t, "tracing_on", "1");
	if (ret)
		trace_free(t);
	return ret;
}

int trace_stop(struct trace_session *t)
{
	size_t size = 0, room = 64 * KIB;
	char path[400], *text;
	FILE *f;
	int ret;

	ret = trace_write(t, "tracing_on", "0");
	if (ret)
		return ret;
	snprintf(path, sizeof(path), "%s/trace", t->dir);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	text = malloc(room);
	while (text) {
		size_t n = fread(text + size, 1, room - size - 1, f);

		size += n;
		text[size] = '\0';
		if (!n)
			break;
		if (size + 1 == room) {
			char *more = realloc(text, room * 2);

			if (!more) {
				free(text);
				text = NULL;
				break;
			}
			text = more;
			room *= 2;
		}
	}
	fclose(f);
	t->text = text;
	return text ? 0 : -ENOMEM;
}

void trace_free(struct trace_session *t)
{
	free(t->text);
	t->text = NULL;
	if (t->dir[0])
		rmdir(t->dir);
	t->dir[0] = '\0';
}

const char *trace_next(const char *pos, const char *name, char *line,
		       size_t size)
{
	char key[64];
	size_t len;

	snprintf(key, sizeof(key), " %s: ", name);
	pos = strstr(pos, key);
	if (!pos)
		return NULL;
	pos += strlen(key);
	len = strcspn(pos, "\n");
	if (len > size - 1)
		len = size - 1;
	memcpy(line, pos, len);
	line[len] = '\0';
	return pos + len;
}

bool trace_field(const char *line, const char *field, unsigned long *value)
{
	const char *pos = line;
	size_t len = strlen(field);

	while ((pos = strstr(pos, field))) {
		if ((pos == line || pos[-1] == ' ') && pos[len] == '=') {
			pos += len + 1;
			*value = strtoul(pos, NULL, 0);
			return true;
		}
		pos += len;
	}
	return false;
}
