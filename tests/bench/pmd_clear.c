// SPDX-License-Identifier: GPL-2.0-only
/*
 * Benefits and costs of vm.pmd_clear_ipi_free.
 *
 * Broadcasts are counted by the kernel function that they run on other CPUs
 * (trace event csd:csd_queue_cpu), and interrupts by /proc/interrupts.  These
 * counts do not depend on how fast the machine is.
 */
#include <fcntl.h>
#include <mm/gup_test.h>
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

#define CPUS_MAX	64

/* A multiple of 1 GiB, far from the mappings of a small program. */
#define BASE		((char *)(16 * KIB * GIB))

/* The command line: see main(). */
static struct {
	long areas, forks, isolated;
} opt = { .areas = 64, .forks = 30, .isolated = -1 };

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
		errx(1, "/proc/kallsyms has no function: run this as root");
}

/* Descriptions in /proc/interrupts; arm64 needs no interrupt to flush a TLB. */
#define CALLS		"Function call interrupts"
#define SHOOTDOWNS	"TLB shootdowns"

/* The number of interrupts on each CPU. */
struct interrupts {
	unsigned long cpu[CPUS_MAX];
	unsigned long all;
};

/* Of the kind with this description; NULL: of all kinds except the timer. */
static struct interrupts read_interrupts(const char *kind)
{
	FILE *f = fopen("/proc/interrupts", "r");
	struct interrupts now = { };
	char line[2048], *p, *end;
	unsigned long n;
	int cpu;

	while (f && fgets(line, sizeof(line), f)) {
		p = line + strspn(line, " ");
		if (kind ? !strstr(p, kind) :
			   !strncmp(p, "LOC:", 4) || strstr(p, "arch_timer"))
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
		errx(1, "cannot count csd:csd_queue_cpu: is tracefs mounted?");
	count->counters = counters_read("pmd_clear_");
	count->cal = read_interrupts(CALLS);
	count->tlb = read_interrupts(SHOOTDOWNS);
	count->any = read_interrupts(NULL);
	count->from = now_ns();
}

static void count_stop(struct count *count, const char *what, int arm, long ops)
{
	double ns = now_ns() - count->from;
	struct interrupts cal = read_interrupts(CALLS);
	struct interrupts tlb = read_interrupts(SHOOTDOWNS);
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
	size_t off, step = page_size();
	char *p = map_memory(BASE, len, MAP_PRIVATE | MAP_ANONYMOUS |
			     MAP_FIXED_NOREPLACE, -1);

	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	for (off = 0; off < len; off += step)
		touch(p + off);
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	return p;
}

static void collapse(char *p, size_t len)
{
	if (madvise(p, len, MADV_COLLAPSE))
		err(1, "MADV_COLLAPSE of %zu MiB", len / MIB);
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
		start_thread(&threads[n], spin, (void *)cpu);
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
static void collapse_as(int arm, const char *what, bool spinners)
{
	size_t len = opt.areas * pmd_size();
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

static void collapse_turn(int arm, void *unused)
{
	collapse_as(arm, "collapse", false);
}

static void collapse_busy_turn(int arm, void *unused)
{
	collapse_as(arm, "collapse_busy", true);
}

/*
 * munmap() of huge pages, with the other CPUs running the same process:
 * otherwise a powerpc CPU flushes only its own TLB.
 */
static void zap_turn(int arm, void *unused)
{
	size_t len = opt.areas * pmd_size();
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
static void unshare_turn(int arm, void *unused)
{
	struct count count;
	char *p;
	long i;
	int fd;

	if (!huge_pool(4))
		errx(1, "there are no 4 huge pages");
	fd = memfd_create("bench", MFD_CLOEXEC | MFD_HUGETLB);
	if (fd < 0 || ftruncate(fd, GIB))
		err(1, "hugetlb memfd");
	p = map_memory(BASE, GIB,
		       MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd);
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
			errx(1, "a child could not start, or failed");
	}
	count_stop(&count, "unshare", arm, opt.forks);
	unmap(p, GIB);
	close(fd);
}

/* Another process runs on the isolated CPU and must not be interrupted. */
static void isolated_turn(int arm, void *unused)
{
	pid_t pid;
	int fds[2];
	char c;

	if (opt.isolated < 0)
		errx(1, "isolated needs --isolated CPU");
	if (pipe(fds))
		err(1, "pipe");
	pid = fork_bound();
	if (!pid) {
		pin_to(opt.isolated);
		if (write(fds[1], "", 1) != 1)
			_exit(1);
		for (;;)
			;
	}
	if (pid < 0 || read(fds[0], &c, 1) != 1)
		err(1, "fork");
	collapse_as(arm, "isolated", false);
	if (kill(pid, SIGKILL) || waitpid(pid, NULL, 0) != pid)
		errx(1, "the busy process is gone");
	close(fds[0]);
	close(fds[1]);
}

/* --- cost of get_user_pages_fast(), in ticks (see bench_util.h) */

#define GUP_PAGES		512UL

static void gup(int arm, int fd, const char *what, unsigned long cmd,
		long per_call, char *p)
{
	struct gup_test test = {
		.addr = (unsigned long)p,
		.size = GUP_PAGES * page_size(),
		.nr_pages_per_call = per_call,
	};
	__u64 from = ticks();

	if (ioctl(fd, cmd, &test))
		err(1, "gup_test");
	report(arm, "ticks", (double)(ticks() - from) * per_call / GUP_PAGES,
	       "%s", what);
}

static void gup_turn(int arm, void *unused)
{
	size_t len = 2 * pmd_size();
	int fd = open("/sys/kernel/debug/gup_test", O_RDWR | O_CLOEXEC);
	char *p = map_small(len);

	if (fd < 0)
		err(1, "/sys/kernel/debug/gup_test");
	/* Calls for one page, and for the maximum number of pages. */
	gup(arm, fd, "gup_get_1", GUP_FAST_BENCHMARK, 1, p);
	gup(arm, fd, "gup_pin_1", PIN_FAST_BENCHMARK, 1, p);
	gup(arm, fd, "gup_get_512", GUP_FAST_BENCHMARK, GUP_PAGES, p);
	unmap(p, len);
	close(fd);
}

/* --- the program */

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "areas", "huge pages to collapse or unmap per turn (64)",
		  .number = &opt.areas },
		{ "forks", "children of unshare per turn (30)",
		  .number = &opt.forks },
		{ "isolated", "an otherwise unused CPU (isolcpus=CPU)",
		  .number = &opt.isolated },
		{ }
	};
	/* With a warm-up: the memory layout settles after the first time. */
	static const struct bench_scene scenes[] = {
		{ "collapse", "make huge pages of base pages",
		  .turn = collapse_turn },
		{ "collapse_busy", "the same, with the other CPUs in the process",
		  .turn = collapse_busy_turn },
		{ "zap", "unmap huge pages", .turn = zap_turn },
		{ "unshare", "a child shares a hugetlb page table and exits",
		  .turn = unshare_turn },
		{ "isolated", "collapse beside a process on the isolated CPU",
		  .turn = isolated_turn },
		{ "gup", "cost of get_user_pages_fast()", .turn = gup_turn },
		{ }
	};
	static const struct bench bench = {
		"pmd_clear_ipi_free", options, .scenes = scenes,
	};
	int first = bench_parse(argc, argv, &bench);

	if (online() > CPUS_MAX || opt.isolated >= online())
		errx(1, "CPUs: at most %d, and --isolated must be one of them",
		     CPUS_MAX);
	find_functions();
	pin_to(0);
	bench_scenes(argc, argv, first, &bench);
	return 0;
}
