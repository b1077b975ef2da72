// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page faults on one CPU after the other, for a plugin that counts the cache
 * lines they move (coherence/plugin.c).
 *
 * Runs in the guest, with a thread on each CPU.  The threads take turns, so
 * that shared data of a fault is always in the cache of the previous CPU.  Only
 * the fault itself is between marks: handing over the turn is not counted.
 *
 * Prints one line per phase, which describes the counts of the plugin:
 *
 *	sample SCENE_WHAT phase ARM NUMBER
 *	sample SCENE_WHAT windows ARM HOW-MANY
 *
 * An arm is a value of vm.speculative_page_fault, or a name for the kernel as
 * it is (see --arms).  The host side is `lab bench coherence`.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench_util.h"
#include "coherence/marks.h"

#define PAGE		(4 * KIB)
/* The range mapped by one PTE table. */
#define TABLE		(2 * MIB)
#define LINE		64
#define THREADS_MAX	64
#define PAGES_MAX	256
/* Turns without marks before counted ones, for lines to settle. */
#define WARM_LAPS	4
#define CHECK_THREADS	3
#define CHECK_LAPS	20

const char bench_name[] = "coherence";
const char *bench_knob = "/proc/sys/vm/speculative_page_fault";

/* The command line. */
static struct {
	long rounds;
	long threads;
	long pages;		/* faulted by each thread per phase */
} opt = {
	.rounds		= 5,
	.threads	= 4,
	.pages		= 30,
};

static __always_inline void mark(const int which)
{
	asm volatile(".byte 0x0f, 0x1f, 0x80\n\t.long %c0"
		     : : "i" (MARK_MAGIC | which) : "memory");
}

static int phases;

static void next_phase(void)
{
	mark(MARK_PHASE);
	phases++;
}

static void report_phase(int arm, long windows, const char *scene,
			 const char *what)
{
	report(arm, "phase", phases - 1, "%s_%s", scene, what);
	report(arm, "windows", windows, "%s_%s", scene, what);
}

/* --- threads that take turns */

struct job {
	void (*turn)(int thread, int lap);
	int threads, laps;
};

static struct job job;
static pthread_barrier_t barrier;
static _Alignas(LINE) atomic_int turn;

/* If CPUs share a host thread, PAUSE lets the next one run. */
static void take_turns(int thread)
{
	int lap;

	for (lap = 0; thread < job.threads && lap < job.laps; lap++) {
		while (atomic_load(&turn) != lap * job.threads + thread)
			__builtin_ia32_pause();
		job.turn(thread, lap);
		atomic_fetch_add(&turn, 1);
	}
}

static void *thread_main(void *arg)
{
	int thread = (long)arg;

	pin_to(thread);
	for (;;) {
		pthread_barrier_wait(&barrier);
		if (!job.turn)
			return NULL;
		take_turns(thread);
		pthread_barrier_wait(&barrier);
	}
}

static void run(void (*do_turn)(int thread, int lap), int threads, int laps)
{
	job = (struct job){ do_turn, threads, laps };
	atomic_store(&turn, 0);
	pthread_barrier_wait(&barrier);
	take_turns(0);
	pthread_barrier_wait(&barrier);
}

static void start_threads(pthread_t *threads)
{
	long i;

	pthread_barrier_init(&barrier, NULL, opt.threads);
	pin_to(0);
	for (i = 1; i < opt.threads; i++)
		if (pthread_create(&threads[i], NULL, thread_main, (void *)i))
			die("cannot start a thread");
}

static void stop_threads(const pthread_t *threads)
{
	long i;

	job.turn = NULL;
	pthread_barrier_wait(&barrier);
	for (i = 1; i < opt.threads; i++)
		pthread_join(threads[i], NULL);
}

/* --- check: phases with known counts */

static _Alignas(LINE) long shared_line[LINE / sizeof(long)];
static _Alignas(LINE) long own_lines[CHECK_THREADS][LINE / sizeof(long)];
/* The same memory at a different address in each thread. */
static long *aliases[CHECK_THREADS];

static void store_marked(long *p)
{
	mark(MARK_BEGIN);
	asm volatile("movq $1, %0" : "=m" (*p));
	mark(MARK_END);
}

static void load_marked(const long *p)
{
	long value;

	mark(MARK_BEGIN);
	asm volatile("movq %1, %0" : "=r" (value) : "m" (*p));
	mark(MARK_END);
}

static void check_store(int thread, int lap)
{
	store_marked(shared_line);
}

static void check_store_and_loads(int thread, int lap)
{
	if (thread)
		load_marked(shared_line);
	else
		store_marked(shared_line);
}

/* The second one shares a line changed by the first; the third one takes it. */
static void check_clean(int thread, int lap)
{
	if (thread == 1)
		load_marked(shared_line);
	else
		store_marked(shared_line);
}

/* Two with a lock prefix, one that locks without a prefix. */
static void check_locked(int thread, int lap)
{
	long value = 1;

	mark(MARK_BEGIN);
	asm volatile("lock incq (%1)\n\t"
		     "lock cmpxchgq %0, 8(%1)\n\t"
		     "xchgq %0, 16(%1)"
		     : "+r" (value) : "r" (shared_line) : "rax", "memory");
	mark(MARK_END);
}

static void check_own(int thread, int lap)
{
	store_marked(own_lines[thread]);
}

/* Each thread has its own words, but all are in one line. */
static void check_words(int thread, int lap)
{
	store_marked(shared_line + 3 * thread);
}

static void check_alias(int thread, int lap)
{
	store_marked(aliases[thread]);
}

/* The last byte of a line and the first bytes of the next. */
static void check_crossing(int thread, int lap)
{
	store_marked((long *)((char *)own_lines + LINE - 1));
}

static void map_aliases(void)
{
	int fd = memfd_create("aliases", MFD_CLOEXEC), i;

	if (fd < 0 || ftruncate(fd, PAGE))
		die("memfd: %s", strerror(errno));
	for (i = 0; i < CHECK_THREADS; i++) {
		aliases[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				  MAP_SHARED, fd, 0);
		if (aliases[i] == MAP_FAILED)
			die("memfd: %s", strerror(errno));
	}
	close(fd);
}

static void scene_check(void)
{
	static const struct {
		const char *name;
		void (*turn)(int thread, int lap);
	} checks[] = {
		{ "store", check_store },
		{ "store_and_loads", check_store_and_loads },
		{ "clean", check_clean },
		{ "locked", check_locked },
		{ "own", check_own },
		{ "words", check_words },
		{ "alias", check_alias },
		{ "crossing", check_crossing },
	};
	size_t i;

	if (opt.threads < CHECK_THREADS)
		die("check: needs %d threads", CHECK_THREADS);
	map_aliases();
	for (i = 0; i < ARRAY_SIZE(checks); i++) {
		/* As many laps uncounted: these belong to an earlier phase. */
		next_phase();
		run(checks[i].turn, CHECK_THREADS, WARM_LAPS);
		next_phase();
		run(checks[i].turn, CHECK_THREADS, CHECK_LAPS);
		report_phase(0, CHECK_THREADS * CHECK_LAPS, "check",
			     checks[i].name);
	}
}

/* --- faults */

static char *area;

static void fault_turn(int thread, int lap)
{
	char *page = area + thread * TABLE + (1 + lap) * PAGE;

	if (lap < WARM_LAPS) {
		touch(page);
		return;
	}
	mark(MARK_BEGIN);
	touch(page);
	mark(MARK_END);
}

/*
 * The first fault in a page table allocates it, the first one in a VMA the
 * anon_vma.  The pages for the phase are faulted in and dropped again: they are
 * then on this CPU's list of free pages, and no CPU has to refill its list from
 * the zone during a phase.  A refill moves some thirty lines, and as all CPUs
 * use the same number of pages, all would refill in the same phase, of one
 * kernel or the other.  The CPU's LRU batches are then empty as well, so each
 * phase adds one batch.
 */
static void prepare_turn(int thread, int lap)
{
	char *part = area + thread * TABLE;
	long i;

	for (i = 1; i <= WARM_LAPS + opt.pages; i++)
		touch(part + i * PAGE);
	touch(part + TABLE - 2 * PAGE);
	if (madvise(part, TABLE - PAGE, MADV_DONTNEED))
		die("MADV_DONTNEED: %s", strerror(errno));
}

/*
 * A part of the address space for each thread, with its own page table: all in
 * one VMA, or a VMA each.  Inaccessible pages keep VMAs from merging.  Nothing
 * is ever unmapped, so pages of the next phase were not on another CPU in this
 * one.  As the VMA tree grows, arms are comparable only between boots, phase by
 * phase.
 */
static void map_area(bool one_vma)
{
	size_t len = opt.threads * TABLE;
	char *p = mmap(NULL, len + 2 * TABLE, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int prot = PROT_READ | PROT_WRITE;
	long i;

	if (p == MAP_FAILED)
		die("%zu MiB: %s", len / MIB, strerror(errno));
	madvise(p, len + 2 * TABLE, MADV_NOHUGEPAGE);
	area = (char *)(((unsigned long)p + TABLE) & ~(TABLE - 1));
	if (one_vma) {
		if (mprotect(area, len, prot))
			die("mprotect: %s", strerror(errno));
		return;
	}
	for (i = 0; i < opt.threads; i++)
		if (mprotect(area + i * TABLE, TABLE - PAGE, prot))
			die("mprotect: %s", strerror(errno));
}

static void faults_phase(bool one_vma, int arm)
{
	const char *layout = one_vma ? "one_vma" : "own_vma";
	struct vm_events before;

	map_area(one_vma);
	set_arm(arm);
	run(prepare_turn, opt.threads, 1);
	before = read_vm_events("spf");
	next_phase();
	run(fault_turn, opt.threads, WARM_LAPS + opt.pages);
	report_phase(arm, opt.threads * opt.pages, "faults", layout);
	report_vm_events(layout, arm, &before);
}

static void scene_faults(void)
{
	long round;
	int turn;

	for (round = 0; round < opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			faults_phase(true, arm_of_turn(round, turn));
			faults_phase(false, arm_of_turn(round, turn));
		}
	}
}

/* --- main */

static void usage(FILE *to)
{
	fprintf(to,
		"usage: coherence --arms NAME[,NAME...] [OPTION...]\n"
		"  --arms    values of vm.speculative_page_fault, or a name for\n"
		"            the kernel as it is\n"
		"  --rounds  phases of each kind (default: 5)\n"
		"  --threads threads, on as many CPUs (default: 4)\n"
		"  --pages   faults of each thread per phase (default: 30)\n"
		"Without the QEMU plugin, nothing is counted.\n");
}

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "rounds", &opt.rounds },
		{ "threads", &opt.threads, THREADS_MAX },
		{ "pages", &opt.pages, PAGES_MAX },
	};
	pthread_t threads[THREADS_MAX];

	parse_options(argc, argv, options, ARRAY_SIZE(options), false, usage);
	start_threads(threads);
	mark(MARK_WATCH);
	/* Give QEMU time to retranslate all code. */
	usleep(10000);
	scene_check();
	scene_faults();
	mark(MARK_WRITE);
	stop_threads(threads);
	return 0;
}
