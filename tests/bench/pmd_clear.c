// SPDX-License-Identifier: GPL-2.0-only
/*
 * Benefits and costs of vm.pmd_clear_ipi_free.
 *
 * Runs in the guest and prints one line per measurement:
 *
 *	sample METRIC UNIT ARM VALUE
 *
 * An arm is a value of vm.pmd_clear_ipi_free, or a name for the kernel as it
 * is (see --arms).  The arms take turns within a round, in alternating order.
 * The host side, `lab bench`, computes medians, tables and verdicts.
 *
 * Broadcasts are counted by the kernel function that they run on other CPUs
 * (trace event csd:csd_queue_cpu), and interrupts by /proc/interrupts.  These
 * counts do not depend on how fast the machine is.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

#define POOL		"/proc/sys/vm/nr_hugepages"
#define CPUS_MAX	64

/* A multiple of 1 GiB, far from the mappings of a small program. */
#define BASE		((char *)(16 * KIB * GIB))

const char bench_name[] = "pmd_clear";
const char *bench_knob = "/proc/sys/vm/pmd_clear_ipi_free";

/* The command line. */
static struct {
	long rounds;
	long areas;		/* huge pages' worth of memory per turn */
	long forks;		/* children in unshare */
	long isolated;		/* an otherwise unused CPU */
} opt = {
	.rounds		= 5,
	.areas		= 64,
	.forks		= 30,
	.isolated	= -1,
};

static size_t huge;		/* size of a huge page */

/* --- broadcasts and interrupts */

/* Functions that run on other CPUs by IPI; only one of the last two exists. */
static struct {
	const char *name, *function;
	char filter[48];
} calls[] = {
	{ "walkers", "tlb_remove_table_smp_sync", "" },
	{ "tlb", "flush_tlb_func", "" },
	{ "serialize", "do_serialize", "" },
};

static struct event_count events[ARRAY_SIZE(calls)];
static int nr_events;

/* The event has the function's address, so filters need it. */
static void find_functions(void)
{
	FILE *f = fopen("/proc/kallsyms", "r");
	unsigned long long address;
	char line[256], name[128];
	size_t i;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%llx %*c %127s", &address, name) != 2)
			continue;
		for (i = 0; i < ARRAY_SIZE(calls); i++)
			if (!strcmp(name, calls[i].function) && address)
				snprintf(calls[i].filter,
					 sizeof(calls[i].filter),
					 "func == 0x%llx", address);
	}
	if (f)
		fclose(f);
	for (i = 0; i < ARRAY_SIZE(calls); i++)
		if (calls[i].filter[0])
			events[nr_events++] = (struct event_count) {
				calls[i].name, "csd/csd_queue_cpu",
				calls[i].filter
			};
	if (!nr_events)
		die("/proc/kallsyms has none of the functions: run this as root");
}

/* The number of interrupts on each CPU. */
struct interrupts {
	unsigned long cpu[CPUS_MAX];
	unsigned long all;
};

/* Of one kind, such as "CAL:"; NULL: of all kinds except the timer. */
static struct interrupts read_interrupts(const char *kind)
{
	FILE *f = fopen("/proc/interrupts", "r");
	struct interrupts now = { };
	char line[2048], *p, *end;
	unsigned long n;
	int cpu;

	while (f && fgets(line, sizeof(line), f)) {
		p = line + strspn(line, " ");
		if (kind ? strncmp(p, kind, strlen(kind)) :
			   !strncmp(p, "LOC:", 4))
			continue;
		p = strchr(p, ':');
		if (!p++)
			continue;
		for (cpu = 0; cpu < CPUS_MAX; cpu++, p = end) {
			n = strtoul(p, &end, 10);
			if (end == p)
				break;
			now.cpu[cpu] += n;
			now.all += n;
		}
	}
	if (f)
		fclose(f);
	return now;
}

/* Called around the measured part of a scene. */
struct count {
	struct counters counters;
	struct interrupts cal, tlb, any;
	__u64 from;
};

static void count_start(struct count *count)
{
	if (!events_open(events, nr_events))
		die("cannot count csd:csd_queue_cpu: is tracefs mounted?");
	count->counters = counters_read("pmd_clear_");
	count->cal = read_interrupts("CAL:");
	count->tlb = read_interrupts("TLB:");
	count->any = read_interrupts(NULL);
	count->from = now_ns();
}

static void count_stop(struct count *count, const char *what, int arm, long ops)
{
	double ns = now_ns() - count->from;
	struct interrupts cal = read_interrupts("CAL:");
	struct interrupts tlb = read_interrupts("TLB:");
	struct interrupts any = read_interrupts(NULL);
	long cpu = opt.isolated;
	int i;

	report(arm, "us", ns / ops / 1000, "%s_time", what);
	for (i = 0; i < nr_events; i++)
		report(arm, "per_op", (double)events_counted(&events[i]) / ops,
		       "%s_%s", what, events[i].name);
	report(arm, "per_op", (double)(cal.all - count->cal.all) / ops,
	       "%s_irq_cal", what);
	report(arm, "per_op", (double)(tlb.all - count->tlb.all) / ops,
	       "%s_irq_tlb", what);
	if (cpu >= 0) {
		report(arm, "per_op",
		       (double)(cal.cpu[cpu] - count->cal.cpu[cpu]) / ops,
		       "%s_last_cpu_cal", what);
		report(arm, "per_op",
		       (double)(any.cpu[cpu] - count->any.cpu[cpu]) / ops,
		       "%s_last_cpu_any", what);
	}
	report_counters(what, arm, &count->counters);
	events_close(events, nr_events);
}

/* --- memory */

/* Base pages where huge pages would be possible. */
static char *map_small(size_t len)
{
	size_t off, step = sysconf(_SC_PAGESIZE);
	char *p = mmap(BASE, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
		       0);

	if (p != BASE)
		die("mmap of %zu MiB: %s", len / MIB, strerror(errno));
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	for (off = 0; off < len; off += step)
		touch(p + off);
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	return p;
}

static void collapse(char *p, size_t len)
{
	if (madvise(p, len, MADV_COLLAPSE))
		die("MADV_COLLAPSE of %zu MiB: %s", len / MIB, strerror(errno));
}

static void unmap(char *p, size_t len)
{
	if (munmap(p, len))
		die("munmap: %s", strerror(errno));
}

/* --- threads and a process that keep CPUs busy */

static atomic_bool stop;
static atomic_int busy;

static void *spin(void *arg)
{
	pin_to((long)arg);
	atomic_fetch_add(&busy, 1);
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		;
	return NULL;
}

static long online(void)
{
	return sysconf(_SC_NPROCESSORS_ONLN);
}

/* One thread of this process on every CPU but the first. */
static int spinners_start(pthread_t *threads)
{
	long cpu;
	int n = 0;

	atomic_store(&stop, false);
	atomic_store(&busy, 0);
	for (cpu = 1; cpu < online() && n < CPUS_MAX; cpu++, n++)
		if (pthread_create(&threads[n], NULL, spin, (void *)cpu))
			die("pthread_create: %s", strerror(errno));
	while (atomic_load(&busy) < n)
		sched_yield();
	return n;
}

static void spinners_stop(pthread_t *threads, int n)
{
	int i;

	atomic_store(&stop, true);
	for (i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

/* --- scenes */

/* MADV_COLLAPSE; one operation is one huge page. */
static void collapse_turn(int arm, const char *what, bool spinners)
{
	size_t len = opt.areas * huge;
	pthread_t threads[CPUS_MAX];
	struct count count;
	char *p = map_small(len);
	int n = spinners ? spinners_start(threads) : 0;

	count_start(&count);
	collapse(p, len);
	count_stop(&count, what, arm, opt.areas);
	spinners_stop(threads, n);
	unmap(p, len);
}

static void scene_collapse(int arm)
{
	collapse_turn(arm, "collapse", false);
}

static void scene_collapse_busy(int arm)
{
	collapse_turn(arm, "collapse_busy", true);
}

/*
 * munmap() of huge pages, with the other CPUs running the same process:
 * otherwise a powerpc CPU flushes only its own TLB.
 */
static void scene_zap(int arm)
{
	size_t len = opt.areas * huge;
	pthread_t threads[CPUS_MAX];
	struct count count;
	char *p = map_small(len);
	int n;

	collapse(p, len);
	n = spinners_start(threads);
	count_start(&count);
	unmap(p, len);
	count_stop(&count, "zap", arm, opt.areas);
	spinners_stop(threads, n);
}

/* A child shares its parent's page table and exits. */
static void scene_unshare(int arm)
{
	struct count count;
	char *p;
	long i;
	int fd;

	if (write_text(POOL, "4"))
		die(POOL ": %s", strerror(errno));
	fd = memfd_create("bench", MFD_CLOEXEC | MFD_HUGETLB);
	if (fd < 0 || ftruncate(fd, GIB))
		die("hugetlb memfd: %s", strerror(errno));
	p = mmap(BASE, GIB, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);
	if (p != BASE)
		die("mmap of 1 GiB: %s", strerror(errno));
	touch(p);
	count_start(&count);
	for (i = 0; i < opt.forks; i++) {
		pid_t pid = fork();

		if (!pid) {
			touch(p);
			unmap(p, GIB);
			_exit(0);
		}
		if (reap(pid))
			die("a child could not start, or failed");
	}
	count_stop(&count, "unshare", arm, opt.forks);
	unmap(p, GIB);
	close(fd);
}

/* Another process runs on the isolated CPU and must not be interrupted. */
static void scene_isolated(int arm)
{
	pid_t pid;
	int fds[2];
	char c;

	if (opt.isolated < 0)
		die("isolated needs --isolated CPU");
	if (pipe(fds))
		die("pipe: %s", strerror(errno));
	pid = fork_bound();
	if (!pid) {
		pin_to(opt.isolated);
		if (write(fds[1], "", 1) != 1)
			_exit(1);
		for (;;)
			;
	}
	if (pid < 0 || read(fds[0], &c, 1) != 1)
		die("fork: %s", strerror(errno));
	collapse_turn(arm, "isolated", false);
	if (kill(pid, SIGKILL) || waitpid(pid, NULL, 0) != pid)
		die("the busy process is gone");
	close(fds[0]);
	close(fds[1]);
}

/* --- cost of get_user_pages_fast(), in ticks (see bench_util.h) */

/* From mm/gup_test.h. */
struct gup_test {
	__u64 get_delta_usec;
	__u64 put_delta_usec;
	__u64 addr;
	__u64 size;
	__u32 nr_pages_per_call;
	__u32 gup_flags;
	__u32 test_flags;
	__u32 which_pages[8];
};

#define GUP_FAST_BENCHMARK	_IOWR('g', 1, struct gup_test)
#define PIN_FAST_BENCHMARK	_IOWR('g', 2, struct gup_test)
#define GUP_PAGES		512UL

static void gup_turn(int arm, int fd, const char *what, unsigned long cmd,
		     long per_call, char *p)
{
	struct gup_test gup = {
		.addr = (unsigned long)p,
		.size = GUP_PAGES * sysconf(_SC_PAGESIZE),
		.nr_pages_per_call = per_call,
	};
	__u64 from = ticks();

	if (ioctl(fd, cmd, &gup))
		die("gup_test: %s", strerror(errno));
	report(arm, "ticks", (double)(ticks() - from) * per_call / GUP_PAGES,
	       "%s", what);
}

static void scene_gup(int arm)
{
	size_t len = 2 * huge;
	int fd = open("/sys/kernel/debug/gup_test", O_RDWR | O_CLOEXEC);
	char *p = map_small(len);

	if (fd < 0)
		die("/sys/kernel/debug/gup_test: %s", strerror(errno));
	/* Calls for one page, and for the maximum number of pages. */
	gup_turn(arm, fd, "gup_get_1", GUP_FAST_BENCHMARK, 1, p);
	gup_turn(arm, fd, "gup_pin_1", PIN_FAST_BENCHMARK, 1, p);
	gup_turn(arm, fd, "gup_get_512", GUP_FAST_BENCHMARK, GUP_PAGES, p);
	unmap(p, len);
	close(fd);
}

/* --- the program */

static const char * const scene_names[] = {
	"collapse", "collapse_busy", "zap", "unshare", "isolated", "gup",
};

static void (* const scenes[])(int arm) = {
	scene_collapse, scene_collapse_busy, scene_zap, scene_unshare,
	scene_isolated, scene_gup,
};

static void run_scene(void (*scene)(int arm))
{
	long round;
	int turn;

	/* A warm-up: the memory layout settles after the first time. */
	for (round = -1; round < opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round < 0 ? 0 : round, turn);

			set_arm(arm);
			if (round < 0)
				report_quietly(true);
			scene(arm);
			report_quietly(false);
		}
	}
}

static size_t huge_page_size(void)
{
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
			"r");
	unsigned long size = 0;

	if (f && fscanf(f, "%lu", &size) != 1)
		size = 0;
	if (f)
		fclose(f);
	if (!size)
		die("this kernel has no transparent huge pages");
	return size;
}

static void usage(FILE *to)
{
	size_t i;

	fputs("pmd_clear --arms LIST [OPTION...] SCENE...\n"
	      "  --arms LIST    values of vm.pmd_clear_ipi_free, or a name for the kernel\n"
	      "                 as it is, separated by commas\n"
	      "  --rounds N     turns of each arm\n"
	      "  --areas N      huge pages to collapse or unmap per turn\n"
	      "  --forks N      children of unshare per turn\n"
	      "  --isolated CPU an otherwise unused CPU (isolcpus=CPU)\n"
	      "scenes:", to);
	for (i = 0; i < ARRAY_SIZE(scene_names); i++)
		fprintf(to, " %s", scene_names[i]);
	fputc('\n', to);
}

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "rounds", &opt.rounds },
		{ "areas", &opt.areas },
		{ "forks", &opt.forks },
		{ "isolated", &opt.isolated },
	};
	int first = parse_options(argc, argv, options, ARRAY_SIZE(options),
				  true, usage);

	if (online() > CPUS_MAX || opt.isolated >= online())
		die("CPUs: at most %d, and --isolated must be one of them",
		    CPUS_MAX);
	huge = huge_page_size();
	find_functions();
	pin_to(0);
	for (; first < argc; first++)
		run_scene(scenes[find_name("scene", argv[first], scene_names,
					   ARRAY_SIZE(scene_names))]);
	return 0;
}
