// SPDX-License-Identifier: GPL-2.0-only
/*
 * Benefits and costs of vm.speculative_page_fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

#define PAGE		(4 * KIB)
/* The range mapped by one PTE table. */
#define TABLE		(2 * MIB)
#define THREADS_MAX	64

#define THP		"/sys/kernel/mm/transparent_hugepage/"
#define ZRAM		"/dev/zram0"
#define ZRAM_SYS	"/sys/block/zram0/"
#define CGROUPS		"/sys/fs/cgroup/"
#define CGROUP		CGROUPS "bench-spf"

/* The command line: see main(). */
static struct {
	long ms, mib, threads;
} opt = { .ms = 2000, .mib = 32, .threads = 4 };

/* --- memory */

/*
 * 4 KiB pages in a VMA that never merges with another one, as it has
 * inaccessible pages on both sides.  It has its page tables and an anon_vma.
 */
static char *map_area(size_t len)
{
	char *p = mmap(NULL, len + 2 * PAGE, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t off;

	if (p == MAP_FAILED)
		err(1, "%zu MiB", len / MIB);
	p += PAGE;
	if (mprotect(p, len, PROT_READ | PROT_WRITE))
		err(1, "mprotect");
	madvise(p, len, MADV_NOHUGEPAGE);
	for (off = 0; off < len; off += TABLE)
		touch(p + off);
	touch(p + len - PAGE);
	if (madvise(p, len, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
	return p;
}

static void unmap_area(char *p, size_t len)
{
	unmap(p - PAGE, len + 2 * PAGE);
}

/* --- threads that fault */

/* On separate cache lines, so that threads do not contend here. */
struct worker {
	_Alignas(64) pthread_t thread;
	char *start;		/* its part of the memory */
	size_t len;
	int policy;		/* scheduling policy; 0 is SCHED_OTHER */
	bool throttled;		/* in the cgroup with a cpu.max */
	bool gentle;		/* drops pages without making others wait */
	int cpu;		/* its CPU; -1: any */
	unsigned long done;	/* pages, or records */
};

static struct worker workers[THREADS_MAX];
static atomic_bool workers_stop;
/* Of workers that begin, and end, at the same time as the main thread. */
static pthread_barrier_t barrier;

static void set_policy(int policy)
{
	struct sched_param param = { .sched_priority = policy == SCHED_FIFO };

	if (sched_setscheduler(0, policy, &param))
		err(1, "scheduling policy %d", policy);
}

/*
 * Dropping pages holds mmap_lock.  A thread that is preempted with it, or takes
 * it again and again, delays writers on any kernel.  To keep that out of the
 * measured waits, pages are dropped gently: in small pieces with pauses, and
 * with a priority that no other thread has and that is exempt from cpu.max.
 */
static void drop(const struct worker *w, size_t len)
{
	size_t piece = w->gentle ? 16 * PAGE : len, off;

	if (w->gentle)
		set_policy(SCHED_FIFO);
	for (off = 0; off < len; off += piece) {
		if (piece > len - off)
			piece = len - off;
		if (madvise(w->start + off, piece, MADV_DONTNEED))
			err(1, "MADV_DONTNEED");
		if (w->gentle)
			usleep(200);
	}
	if (w->gentle)
		set_policy(w->policy);
}

static void worker_begins(const struct worker *w)
{
	if (w->cpu >= 0)
		pin_to(w->cpu);
	/* 0 is the calling thread; the others stay in their cgroup. */
	if (w->throttled && write_text(CGROUP "/cgroup.threads", "0"))
		err(1, CGROUP "/cgroup.threads");
	set_policy(w->policy);
}

static void *fault_main(void *arg)
{
	struct worker *w = arg;
	size_t off;

	worker_begins(w);
	while (!atomic_load(&workers_stop)) {
		for (off = 0; off < w->len; off += PAGE) {
			if (atomic_load(&workers_stop))
				break;
			touch(w->start + off);
			w->done++;
		}
		drop(w, off);
	}
	return NULL;
}

static void *hog_main(void *arg)
{
	worker_begins(arg);
	while (!atomic_load(&workers_stop))
		;
	return NULL;
}

static void start_worker(struct worker *w, void *(*run)(void *))
{
	w->done = 0;
	start_thread(&w->thread, run, w);
}

/* Returns the total work of all threads. */
static unsigned long stop_workers(int n)
{
	unsigned long done = 0;
	int i;

	atomic_store(&workers_stop, true);
	for (i = 0; i < n; i++) {
		pthread_join(workers[i].thread, NULL);
		done += workers[i].done;
	}
	atomic_store(&workers_stop, false);
	return done;
}

/* --- latency of changing a VMA in which other threads fault */

#define FAULTERS	2
/* Between two changes. */
#define WRITE_PAUSE_US	2000
#define STALL_US	10000

static double write_us[SAMPLES_MAX];

/* Two changes at a time: the first splits the VMA, the second merges it. */
static size_t change_vma(char *page)
{
	static const int advice[] = { MADV_DONTFORK, MADV_DOFORK };
	__u64 until = now_ns() + opt.ms * 1000000ULL, from;
	size_t n = 0, i;

	while (now_ns() < until && n + ARRAY_SIZE(advice) <= SAMPLES_MAX) {
		for (i = 0; i < ARRAY_SIZE(advice); i++) {
			from = now_ns();
			if (madvise(page, PAGE, advice[i]))
				err(1, "madvise");
			write_us[n++] = (now_ns() - from) / 1e3;
		}
		usleep(WRITE_PAUSE_US);
	}
	return n;
}

struct outsider {
	char *page;
	size_t n;
};

static int outsider_main(void *arg)
{
	struct outsider *outsider = arg;

	if (write_text(CGROUPS "cgroup.procs", "0"))
		return 1;
	outsider->n = change_vma(outsider->page);
	return 0;
}

/*
 * A VMA needs kernel memory, and in the cgroup the writer would have to reclaim
 * as well.  So the writer is a separate process that shares the mm: faulted
 * pages are charged to the owner of the mm, but kernel memory to the task that
 * allocates it.
 */
static size_t change_vma_outside(char *page)
{
	static _Alignas(16) char stack[64 * KIB];
	struct outsider outsider = { .page = page };
	int status;
	pid_t pid = clone(outsider_main, stack + sizeof(stack),
			  CLONE_VM | SIGCHLD, &outsider);

	if (pid < 0)
		err(1, "clone");
	if (waitpid(pid, &status, 0) != pid || status)
		errx(1, CGROUPS ": the writer cannot leave the cgroup");
	return outsider.n;
}

/*
 * A writer that waits for a second is one sample, but a thousand other writers
 * that came in that second would have waited, too.  Adds their waits; the
 * samples are then no longer sorted.
 */
static size_t add_others(size_t n)
{
	size_t all = n, i;
	double us;

	for (i = 0; i < n; i++)
		for (us = write_us[i] - WRITE_PAUSE_US;
		     us > 0 && all < SAMPLES_MAX; us -= WRITE_PAUSE_US)
			write_us[all++] = us;
	return all;
}

static void report_waits(const char *scene, const char *what, int arm,
			 size_t n)
{
	size_t stalls = 0;

	sort_samples(write_us, n);
	while (stalls < n && write_us[n - 1 - stalls] > STALL_US)
		stalls++;
	report(arm, "us", write_us[n / 2], "%s_%s_p50", scene, what);
	report(arm, "us", p99(write_us, n), "%s_%s_p99", scene, what);
	report(arm, "us", write_us[n - 1], "%s_%s_max", scene, what);
	report(arm, "operations", n, "%s_%s_n", scene, what);
	report(arm, "operations", stalls, "%s_%s_over_10ms", scene, what);
	n = add_others(n);
	sort_samples(write_us, n);
	report(arm, "us", p99(write_us, n), "%s_%s_any_p99", scene, what);
}

/*
 * With a memory.max, threads have so many times the memory that none of it has
 * to be dropped during a turn: the writer would wait for that on any kernel.
 */
#define MEMCG_TIMES	8

/* Why faulting threads sleep or do not run during a fault. */
enum why {
	WHY_IDLE,		/* SCHED_IDLE: their CPUs run other threads */
	WHY_MEMCG,		/* their process has a memory.max */
	WHY_CPU_MAX,		/* they, not the writer, have a cpu.max */
};

static const char * const why_names[] = {
	[WHY_IDLE]	= "idle",
	[WHY_MEMCG]	= "memcg",
	[WHY_CPU_MAX]	= "cpu_max",
};

static const struct memory_group group = { CGROUPS, CGROUP };

/* How often threads of the cgroup have been throttled so far. */
static long count_throttled(void)
{
	return memory_group_read(&group, "cpu.stat", "nr_throttled");
}

/*
 * The writer's page is the last one in the VMA of the faulting threads (@same),
 * which they do not touch, or in a separate VMA.
 */
static void latency(enum why why, bool same, int arm)
{
	size_t part = opt.mib * MIB / FAULTERS *
		      (why == WHY_MEMCG ? MEMCG_TIMES : 1);
	size_t len = FAULTERS * part + PAGE, n;
	char *area = map_area(len), *other = map_area(3 * PAGE);
	char *page = same ? area + len - PAGE : other + PAGE;
	const char *what = same ? "same" : "other", *scene = why_names[why];
	long throttled = count_throttled();
	struct counters before;
	unsigned long faults;
	int i, nr = 0;

	touch(page);
	before = counters_read("spf_");
	for (i = 0; i < FAULTERS; i++, nr++) {
		workers[nr] = (struct worker){
			.start = area + i * part, .len = part,
			.policy = why == WHY_IDLE ? SCHED_IDLE : SCHED_OTHER,
			.throttled = why == WHY_CPU_MAX, .gentle = true,
			.cpu = why == WHY_MEMCG ? -1 : i,
		};
		start_worker(&workers[nr], fault_main);
	}
	for (i = 0; why == WHY_IDLE && i < FAULTERS; i++, nr++) {
		workers[nr] = (struct worker){ .cpu = i };
		start_worker(&workers[nr], hog_main);
	}
	usleep(10000);
	n = why == WHY_MEMCG ? change_vma_outside(page) : change_vma(page);
	throttled = count_throttled() - throttled;
	faults = stop_workers(nr);

	report_waits(scene, what, arm, n);
	report(arm, "touches", faults, "%s_%s_touches", scene, what);
	if (why == WHY_CPU_MAX)
		report(arm, "times", throttled, "%s_%s_throttled", scene, what);
	if (same)
		report_counters(scene, arm, &before);
	unmap_area(area, len);
	unmap_area(other, 3 * PAGE);
}

static void latency_turn(int arm, void *why)
{
	latency(*(const enum why *)why, true, arm);
	latency(*(const enum why *)why, false, arm);
}

static void need_cpus(const char *scene)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) < FAULTERS)
		errx(1, "%s: needs %d CPUs", scene, FAULTERS);
}

static void run_idle(void *unused)
{
	enum why why = WHY_IDLE;

	need_cpus("idle");
	run_turns(rounds, latency_turn, &why);
}

/* The same as mkswap. */
static bool make_swap(size_t len)
{
	static union {
		struct {
			char boot[1024];
			__u32 version, last_page;
		};
		struct {
			char data[PAGE - 10], magic[10];
		};
	} head;
	char size[32];
	bool written;
	int fd;

	snprintf(size, sizeof(size), "%zu", len);
	if (write_text(ZRAM_SYS "disksize", size))
		return false;
	head.version = 1;
	head.last_page = len / PAGE - 1;
	memcpy(head.magic, "SWAPSPACE2", sizeof(head.magic));
	fd = open(ZRAM, O_WRONLY | O_CLOEXEC);
	written = fd >= 0 && write(fd, &head, sizeof(head)) == sizeof(head);
	if (fd >= 0)
		close(fd);
	return written && !swapon(ZRAM, 0);
}

static void make_cgroup(const char *controller)
{
	if (write_text(CGROUPS "cgroup.subtree_control", controller) ||
	    (mkdir(CGROUP, 0755) && errno != EEXIST))
		err(1, "is cgroup2 mounted? " CGROUP);
}

static void set_cgroup(const char *file, const char *text)
{
	if (memory_group_write(&group, file, text))
		err(1, CGROUP "/%s: %s", file, text);
}

/* Per 100 ms, on all CPUs together. */
#define CPU_MAX		"10000 100000"

/*
 * The faulting threads may use a tenth of one CPU.  Once they have used it up,
 * they are throttled at once, with any lock they hold, until the next period.
 */
static void run_cpu_max(void *unused)
{
	enum why why = WHY_CPU_MAX;

	need_cpus("cpu_max");
	make_cgroup("+cpu");
	/* Allows threads of one process to be in different cgroups. */
	set_cgroup("cgroup.type", "threaded");
	set_cgroup("cpu.max", CPU_MAX);
	run_turns(rounds, latency_turn, &why);
	rmdir(CGROUP);
}

/* The threads fault in more memory than allowed, so they have to reclaim. */
static void run_memcg(void *unused)
{
	size_t len = opt.mib * MIB;
	enum why why = WHY_MEMCG;
	char limit[32];
	pid_t pid;

	if (!make_swap(2 * MEMCG_TIMES * len)) {
		warn(ZRAM " fails: memcg is left out");
		return;
	}
	make_cgroup("+memory");
	snprintf(limit, sizeof(limit), "%zu", len / 2);
	set_cgroup("memory.max", limit);
	/* All threads of a process are in the same cgroup. */
	pid = fork_bound();
	if (!pid) {
		set_cgroup("cgroup.procs", "0");
		run_turns(rounds, latency_turn, &why);
		exit(0);
	}
	if (reap(pid))
		errx(1, "memcg: the process in the cgroup failed");
	rmdir(CGROUP);
	swapoff(ZRAM);
	write_text(ZRAM_SYS "reset", "1");
}

/*
 * --- latency beside faults that allocate huge pages
 *
 * It is meant for one CPU whose clock counts instructions.  Threads that wait have
 * a priority, and a thread that faults lets them in after each base page's worth,
 * so they wait for locks and nothing else.  Several CPUs would take turns of 100 ms
 * there, and a thread could not be woken earlier.
 */

#define HUGE_FAULTERS	2
/* Between two operations of a thread that waits. */
#define HUGE_PAUSE_US	50
/* So many times the memory of other scenes. */
#define HUGE_TIMES	4
#define COMPACT_TIMES	8
/* A page of each so many stays when memory is fragmented. */
#define KEPT_OF		16
/* This is never fragmented, beside the memory that the kernel keeps free. */
#define SPARE		(16 * MIB)
#define MIN_FREE_KIB	8192

/* A thread whose operations wait for locks. */
struct prober {
	const char *name;
	void (*operate)(void);
	double *us;		/* waits */
	size_t n;
	pthread_t thread;
};

static char *huge_reserve, *huge_area;
static size_t huge_len;
/* The next huge page that a thread takes. */
static atomic_size_t huge_next;

/*
 * Operations are measured only while faults run: what this program does between
 * two passes, to get rid of the memory again, makes others wait on any kernel.
 */
static atomic_bool probes_open, probes_stop;
static atomic_int probes_inside;

static bool probe_begins(void)
{
	atomic_fetch_add(&probes_inside, 1);
	if (atomic_load(&probes_open))
		return true;
	atomic_fetch_sub(&probes_inside, 1);
	return false;
}

static void close_probes(void)
{
	atomic_store(&probes_open, false);
	while (atomic_load(&probes_inside))
		usleep(HUGE_PAUSE_US);
}

/* Turn by turn, splits and merges the VMA behind the huge pages. */
static void probe_writer(void)
{
	static int prot = PROT_READ;

	if (mprotect(huge_area + huge_len, PAGE, prot))
		err(1, "mprotect");
	prot ^= PROT_WRITE;
}

static void probe_mapper(void)
{
	unmap(map_anon(PAGE), PAGE);
}

static double map_us[SAMPLES_MAX];

static struct prober probers[] = {
	{ "writer", probe_writer, write_us },
	{ "mapper", probe_mapper, map_us },
};

/* With a priority: it waits for locks, not for a CPU. */
static void *probe_main(void *arg)
{
	struct prober *prober = arg;
	__u64 from;

	set_policy(SCHED_FIFO);
	while (!atomic_load(&probes_stop)) {
		if (prober->n < SAMPLES_MAX && probe_begins()) {
			from = now_ns();
			prober->operate();
			prober->us[prober->n++] = (now_ns() - from) / 1e3;
			atomic_fetch_sub(&probes_inside, 1);
		}
		usleep(HUGE_PAUSE_US);
	}
	return NULL;
}

/* Each pass begins and ends at the barrier. */
static void *fault_huge_main(void *arg)
{
	struct worker *w = arg;
	size_t off;

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (atomic_load(&workers_stop))
			return NULL;
		while ((off = atomic_fetch_add(&huge_next, TABLE)) < huge_len) {
			touch(huge_area + off);
			w->done++;
		}
		pthread_barrier_wait(&barrier);
	}
}

/* At a multiple of a huge page, with a page behind that the writer changes. */
static void map_huge_area(void)
{
	huge_reserve = mmap(NULL, huge_len + 2 * TABLE, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (huge_reserve == MAP_FAILED)
		err(1, "%zu MiB", huge_len / MIB);
	huge_area = huge_reserve + TABLE - (uintptr_t)huge_reserve % TABLE;
	if (mprotect(huge_area, huge_len + PAGE, PROT_READ | PROT_WRITE) ||
	    madvise(huge_area, huge_len + PAGE, MADV_HUGEPAGE))
		err(1, "MADV_HUGEPAGE");
	touch(huge_area + huge_len);
}

/*
 * Fills memory with base pages and frees most of each huge page's worth: there is
 * much free memory, but a huge page has to be compacted.
 */
static char *fragment(size_t *len)
{
	size_t spare = SPARE + 2 * MIN_FREE_KIB * KIB, off;
	size_t free = meminfo_kb("MemFree") * KIB;
	char *p;

	if (free < spare + huge_len + huge_len / 2)
		errx(1, "compact: %zu MiB are free, too few", free / MIB);
	*len = (free - spare) & -TABLE;
	p = map_memory(NULL, *len,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	if (madvise(p, *len, MADV_NOHUGEPAGE) ||
	    madvise(p, *len, MADV_POPULATE_WRITE))
		err(1, "%zu MiB", *len / MIB);
	for (off = 0; off < *len; off += KEPT_OF * PAGE)
		if (madvise(p + off + PAGE, (KEPT_OF - 1) * PAGE, MADV_DONTNEED))
			err(1, "MADV_DONTNEED");
	return p;
}

/* The time of a pass in which threads faulted. */
static __u64 huge_pass(bool compact)
{
	size_t filled = 0;
	char *filler = compact ? fragment(&filled) : NULL;
	__u64 from;

	atomic_store(&huge_next, 0);
	from = now_ns();
	atomic_store(&probes_open, true);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	from = now_ns() - from;
	close_probes();
	if (madvise(huge_area, huge_len, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
	if (filler)
		unmap(filler, filled);
	return from;
}

/* After the time of a turn, until each probe has run. */
#define MORE_NS		(60 * 1000000000ULL)

static bool have_probed(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(probers); i++)
		if (!__atomic_load_n(&probers[i].n, __ATOMIC_RELAXED))
			return false;
	return true;
}

static void report_probes(const char *scene, int arm, struct prober *prober)
{
	if (!prober->n)
		errx(1, "%s: the %s did not run", scene, prober->name);
	sort_samples(prober->us, prober->n);
	report(arm, "us", prober->us[prober->n / 2], "%s_%s_p50", scene,
	       prober->name);
	report(arm, "us", p99(prober->us, prober->n), "%s_%s_p99", scene,
	       prober->name);
	report(arm, "us", prober->us[prober->n - 1], "%s_%s_max", scene,
	       prober->name);
	report(arm, "operations", prober->n, "%s_%s_n", scene, prober->name);
}

static void huge_turn(int arm, void *arg)
{
	bool compact = *(const bool *)arg;
	const char *scene = compact ? "compact" : "huge";
	long stalls, pages, fallbacks;
	struct counters spf;
	__u64 ns = 0;
	size_t i;

	huge_len = (compact ? COMPACT_TIMES : HUGE_TIMES) * opt.mib * MIB &
		   -TABLE;
	map_huge_area();
	pthread_barrier_init(&barrier, NULL, HUGE_FAULTERS + 1);
	for (i = 0; i < HUGE_FAULTERS; i++) {
		workers[i] = (struct worker){ };
		start_worker(&workers[i], fault_huge_main);
	}
	for (i = 0; i < ARRAY_SIZE(probers); i++) {
		probers[i].n = 0;
		start_thread(&probers[i].thread, probe_main, &probers[i]);
	}
	stalls = vmstat_read("compact_stall");
	pages = vmstat_read("thp_fault_alloc");
	fallbacks = vmstat_read("thp_fault_fallback");
	spf = counters_read("spf_");
	/* Longer, if a busy host has left a probe no time. */
	while (ns < opt.ms * 1000000ULL || (!have_probed() && ns < MORE_NS))
		ns += huge_pass(compact);
	stalls = vmstat_read("compact_stall") - stalls;
	pages = vmstat_read("thp_fault_alloc") - pages;
	fallbacks = vmstat_read("thp_fault_fallback") - fallbacks;

	atomic_store(&probes_stop, true);
	for (i = 0; i < ARRAY_SIZE(probers); i++)
		pthread_join(probers[i].thread, NULL);
	atomic_store(&probes_stop, false);
	atomic_store(&workers_stop, true);
	pthread_barrier_wait(&barrier);
	stop_workers(HUGE_FAULTERS);
	pthread_barrier_destroy(&barrier);
	unmap(huge_reserve, huge_len + 2 * TABLE);

	for (i = 0; i < ARRAY_SIZE(probers); i++)
		report_probes(scene, arm, &probers[i]);
	report(arm, "faults", pages, "%s_pages", scene);
	report(arm, "faults", fallbacks, "%s_fallbacks", scene);
	report(arm, "times", stalls, "%s_compactions", scene);
	report_counters(scene, arm, &spf);
	if (!pages)
		errx(1, "%s: there were no huge pages", scene);
	if (compact && !stalls)
		errx(1, "compact: memory was not compacted for %ld huge pages",
		     pages);
}

static const char * const thp_files[][2] = {
	{ "enabled", "madvise" },
	{ "defrag", "madvise" },
	/* No thread of the kernel fills holes or compacts meanwhile. */
	{ "khugepaged/scan_sleep_millisecs", "1000000000" },
	{ "khugepaged/alloc_sleep_millisecs", "1000000000" },
};

static void prepare_huge(void)
{
	char path[96];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(thp_files); i++) {
		snprintf(path, sizeof(path), THP "%s", thp_files[i][0]);
		if (write_text(path, thp_files[i][1]))
			err(1, "%s", path);
	}
	if (vm_sysctl_write("compaction_proactiveness", 0) ||
	    vm_sysctl_write("min_free_kbytes", MIN_FREE_KIB))
		errx(1, "cannot set the sysctls of free memory");
}

static void run_huge(void *arg)
{
	prepare_huge();
	run_turns(rounds, huge_turn, arg);
}

/* --- locks per fault */

static const struct event_count mmap_lock_read = {
	.name	= "spf_mmap_lock",
	.event	= "mmap_lock/mmap_lock_acquire_returned",
	.filter	= "write == 0 && success == 1",
};

static void *touch_main(void *arg)
{
	struct worker *w = arg;
	size_t off;

	pthread_barrier_wait(&barrier);
	for (off = 0; off < w->len; off += PAGE)
		touch(w->start + off);
	pthread_barrier_wait(&barrier);
	return NULL;
}

/* The kernel writes to the memory, so the kernel faults. */
static void *read_main(void *arg)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	struct worker *w = arg;
	size_t off, chunk = 64 * KIB;

	if (fd < 0)
		err(1, "/dev/zero");
	pthread_barrier_wait(&barrier);
	for (off = 0; off < w->len; off += chunk)
		if (read(fd, w->start + off, chunk) != (ssize_t)chunk)
			err(1, "/dev/zero");
	pthread_barrier_wait(&barrier);
	close(fd);
	return NULL;
}

static unsigned long count_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

static void report_locks(const char *what, int arm, unsigned long faults,
			 const struct counters *spf)
{
	struct counters d = counters_since(spf);
	unsigned long eligible, lock_free;

	if (!d.n)
		return;
	/* The first fault in a page table or in a VMA has to change it. */
	eligible = faults - counter(&d, "abort_no_table") -
		   counter(&d, "abort_no_anon_vma");
	lock_free = counter(&d, "zero") + counter(&d, "anon") +
		    counter(&d, "cow") + counter(&d, "reuse") +
		    counter(&d, "access");
	report(arm, "of_eligible", (double)lock_free / eligible,
	       "%s_lock_free", what);
}

static void locks(const char *what, void *(*run)(void *), int arm)
{
	size_t part = opt.mib * MIB / opt.threads & ~(64 * KIB - 1);
	size_t len = part * opt.threads;
	struct counters spf, vma_lock;
	char *area = map_area(len);
	unsigned long faults;
	int i;

	pthread_barrier_init(&barrier, NULL, opt.threads + 1);
	for (i = 0; i < opt.threads; i++) {
		workers[i] = (struct worker){
			.start = area + i * part, .len = part,
		};
		start_worker(&workers[i], run);
	}
	if (!events_open(&mmap_lock_read, 1))
		errx(1, "cannot count mmap_lock:*: is tracefs mounted?");
	spf = counters_read("spf_");
	vma_lock = counters_read("vma_lock_");
	faults = count_faults();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	faults = count_faults() - faults;

	report(arm, "faults", faults, "%s_faults", what);
	report(arm, "per_fault",
	       (double)events_counted(&mmap_lock_read) / faults,
	       "%s_mmap_lock", what);
	report_locks(what, arm, faults, &spf);
	report_counters(what, arm, &spf);
	report_counters(what, arm, &vma_lock);
	events_close(&mmap_lock_read, 1);
	stop_workers(opt.threads);
	pthread_barrier_destroy(&barrier);
	unmap_area(area, len);
}

static void locks_turn(int arm, void *unused)
{
	locks("user", touch_main, arm);
	locks("kernel", read_main, arm);
}

static void run_locks(void *unused)
{
	run_turns(rounds, locks_turn, NULL);
}

/* --- throughput */

#define RECORD_CHUNKS	16
#define RECORD_CHUNK	(256 * KIB)

static __u32 *record_chunks[RECORD_CHUNKS];

static void fill_records(void)
{
	size_t i, j, n = RECORD_CHUNK / sizeof(__u32);

	for (i = 0; i < RECORD_CHUNKS; i++) {
		record_chunks[i] = malloc(RECORD_CHUNK);
		if (!record_chunks[i])
			errx(1, "no memory for records");
		for (j = 0; j < n; j++)
			record_chunks[i][j] = j;
	}
}

static int compare_records(const void *a, const void *b)
{
	__u32 x = *(const __u32 *)a, y = *(const __u32 *)b;

	return (x > y) - (x < y);
}

/* Like ebizzy: copy a chunk to new memory, search it, and free it. */
static void *record_main(void *arg)
{
	struct worker *w = arg;
	unsigned int seed = w - workers;

	while (!atomic_load(&workers_stop)) {
		size_t n = RECORD_CHUNK / sizeof(__u32) /
			   (1 + rand_r(&seed) % 4);
		__u32 *from = record_chunks[rand_r(&seed) % RECORD_CHUNKS];
		__u32 *copy = (__u32 *)map_anon(n * sizeof(*copy));
		__u32 key = rand_r(&seed) % n;

		memcpy(copy, from, n * sizeof(*copy));
		if (!bsearch(&key, copy, n, sizeof(*copy), compare_records))
			errx(1, "a record is not found");
		unmap(copy, n * sizeof(*copy));
		w->done++;
	}
	return NULL;
}

static void report_rate(const char *what, const char *unit, int arm,
			void *(*run)(void *))
{
	struct counters before = counters_read("spf_");
	unsigned long done;
	char metric[32];
	__u64 from;
	int i;

	snprintf(metric, sizeof(metric), "%s_%ld", what, opt.threads);
	for (i = 0; i < opt.threads; i++)
		start_worker(&workers[i], run);
	from = now_ns();
	usleep(opt.ms * 1000);
	done = stop_workers(opt.threads);
	report(arm, unit, done * 1e9 / (now_ns() - from), "%s", metric);
	report_counters(metric, arm, &before);
}

static void throughput_turn(int arm, void *unused)
{
	size_t part = opt.mib * MIB / opt.threads & ~(PAGE - 1);
	size_t len = part * opt.threads;
	char *area = map_area(len);
	int i;

	for (i = 0; i < opt.threads; i++)
		workers[i] = (struct worker){
			.start = area + i * part, .len = part, .cpu = -1,
		};
	report_rate("one_vma", "touches/s", arm, fault_main);
	unmap_area(area, len);

	for (i = 0; i < opt.threads; i++)
		workers[i].start = map_area(part);
	report_rate("own_vma", "touches/s", arm, fault_main);
	for (i = 0; i < opt.threads; i++)
		unmap_area(workers[i].start, part);

	report_rate("records", "records/s", arm, record_main);
}

static void run_throughput(void *unused)
{
	fill_records();
	run_turns(rounds, throughput_turn, NULL);
}

/* --- cost: instructions of a fault, if ticks count instructions */

/*
 * Ticks of each fault on memory at @start, @step apart.
 *
 * Take the median: now and then a fault pays for a batch of pages, for a page
 * table or for a timer.
 */
static double found[2001];

static void cost_of(const char *name, int arm, char *start, size_t step,
		    size_t n, bool write)
{
	size_t i;

	for (i = 0; i < n; i++) {
		char *p = start + i * step;
		__u64 from = ticks();

		if (write)
			touch(p);
		else
			__atomic_load_n(p, __ATOMIC_RELAXED);
		found[i] = ticks() - from;
	}
	sort_samples(found, n);
	report(arm, "ticks", found[n / 2], "%s", name);
}

/* Faults where there is no page table, on base pages or on huge pages. */
#define COST_TABLES	501
#define COST_HUGE	51

static void cost_table(const char *name, int arm, size_t n, int advice,
		       bool write)
{
	size_t len = n * TABLE;

	huge_len = len;
	map_huge_area();
	madvise(huge_area, len, advice);
	cost_of(name, arm, huge_area, TABLE, n, write);
	unmap(huge_reserve, len + 2 * TABLE);
}

/* The first write to each of many VMAs, which do not share an anon_vma. */
#define COST_VMAS	1001

static void cost_vma(const char *name, int arm)
{
	size_t len = 2 * COST_VMAS * PAGE, off;
	char *area = mmap(NULL, len, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (area == MAP_FAILED)
		err(1, "mmap");
	for (off = 0; off < len; off += 2 * PAGE) {
		if (mprotect(area + off, PAGE, PROT_READ | PROT_WRITE))
			err(1, "mprotect");
		/* Only the anon_vma is missing, not the table. */
		__atomic_load_n(area + off, __ATOMIC_RELAXED);
		if (madvise(area + off, PAGE, MADV_DONTNEED))
			err(1, "MADV_DONTNEED");
	}
	cost_of(name, arm, area, 2 * PAGE, COST_VMAS, true);
	unmap(area, len);
}

static void cost_holes_turn(int arm, void *unused)
{
	cost_table("cost_table", arm, COST_TABLES, MADV_NOHUGEPAGE, true);
	cost_table("cost_table_zero", arm, COST_TABLES, MADV_NOHUGEPAGE, false);
	cost_table("cost_huge", arm, COST_HUGE, MADV_HUGEPAGE, true);
	cost_vma("cost_vma", arm);
}

#define COST_PAGES	ARRAY_SIZE(found)

enum cost { COST_ZERO, COST_ANON, COST_COW, COST_REUSE, COST_KERNEL };

static const char * const cost_names[] = {
	[COST_ZERO]	= "cost_zero",
	[COST_ANON]	= "cost_anon",
	[COST_COW]	= "cost_cow",
	[COST_REUSE]	= "cost_reuse",
	[COST_KERNEL]	= "cost_kernel",
};

static int zero_fd;

/* All pages are shared with a child, which stays alive or exits. */
static pid_t share_with_child(char *area, enum cost cost)
{
	size_t i;
	pid_t pid;

	for (i = 0; i < COST_PAGES; i++)
		touch(area + i * PAGE);
	pid = fork();
	if (pid < 0)
		err(1, "fork");
	if (!pid) {
		while (cost == COST_COW)
			pause();
		_exit(0);
	}
	if (cost == COST_REUSE)
		waitpid(pid, NULL, 0);
	return pid;
}

static void cost_turn(int arm, void *arg)
{
	enum cost cost = *(const enum cost *)arg;
	size_t len = COST_PAGES * PAGE, i;
	char *area = map_area(len);
	pid_t pid = 0;

	if (cost == COST_COW || cost == COST_REUSE)
		pid = share_with_child(area, cost);
	if (cost != COST_KERNEL)
		cost_of(cost_names[cost], arm, area, PAGE, COST_PAGES,
			cost != COST_ZERO);
	for (i = 0; cost == COST_KERNEL && i < COST_PAGES; i++) {
		__u64 from = ticks();

		if (read(zero_fd, area + i * PAGE, 1) != 1)
			err(1, "/dev/zero");
		found[i] = ticks() - from;
	}
	if (cost == COST_COW) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	if (cost == COST_KERNEL) {
		sort_samples(found, COST_PAGES);
		report(arm, "ticks", found[COST_PAGES / 2], "%s",
		       cost_names[cost]);
	}
	unmap_area(area, len);
}

static void run_cost(void *unused)
{
	enum cost cost;

	zero_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	if (zero_fd < 0)
		err(1, "/dev/zero");
	for (cost = 0; cost < ARRAY_SIZE(cost_names); cost++) {
		warm_up(cost_turn, &cost);
		run_turns(rounds, cost_turn, &cost);
	}
	close(zero_fd);
	prepare_huge();
	warm_up(cost_holes_turn, NULL);
	run_turns(rounds, cost_holes_turn, NULL);
}

int main(int argc, char **argv)
{
	static bool clears, compacts = true;
	static const struct bench_option options[] = {
		{ "ms", "duration of a turn, but of locks and cost (2000)",
		  .number = &opt.ms },
		{ "mib", "memory that all threads fault in (32); memcg: 8 times, huge: 4 times that",
		  .number = &opt.mib },
		{ "threads", "in locks and throughput (4)",
		  .number = &opt.threads, .max = THREADS_MAX },
		{ }
	};
	static const struct bench_scene scenes[] = {
		{ "idle", "a writer changes a VMA in which SCHED_IDLE threads fault",
		  .run = run_idle },
		{ "memcg", "the same, and the threads have to reclaim",
		  .run = run_memcg },
		{ "cpu_max", "the same, and their CPU time is limited",
		  .run = run_cpu_max },
		{ "huge", "a writer changes a VMA in which threads fault huge pages, beside a mapper",
		  .run = run_huge, .arg = &clears },
		{ "compact", "the same, and huge pages have to be compacted",
		  .run = run_huge, .arg = &compacts },
		{ "locks", "per fault", .run = run_locks },
		{ "throughput", "of faults, and of a program like ebizzy",
		  .run = run_throughput },
		{ "cost", "ticks of a fault", .run = run_cost },
		{ }
	};
	static const struct bench bench = {
		"speculative_page_fault", options, .scenes = scenes,
	};
	int first = bench_parse(argc, argv, &bench);

	if (opt.mib * MIB / opt.threads < 64 * KIB)
		errx(1, "--mib %ld is too little for %ld threads", opt.mib,
		     opt.threads);
	bench_scenes(argc, argv, first, &bench);
	return 0;
}
