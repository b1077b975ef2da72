// SPDX-License-Identifier: GPL-2.0-only
/*
 * Costs and benefits of the modes of vm.hugetlb_pmd_sharing.
 *
 * Runs in the guest and prints one line per measurement:
 *
 *	sample METRIC UNIT ARM VALUE
 *
 * An arm is a value of vm.hugetlb_pmd_sharing, or a name for the kernel as it
 * is (see --arms).  The arms take turns within a round, in alternating order,
 * so that any drift on the host affects all of them equally.  The host side,
 * `lab bench`, computes medians, tables and verdicts.
 *
 * A mapping keeps the mode that it was created with, so each turn makes new
 * mappings; the file and its pages stay.
 *
 * Page tables of two mappings are shared only if the same part of the file has
 * the same offset within a GiB of address space.  So "shared" maps the file at
 * a multiple of 1 GiB in all processes, and "unshared" 2 MiB further in each.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

#define HUGE		(2 * MIB)
#define TABLE		GIB		/* mapped by one page table */
#define PER_TABLE	(TABLE / HUGE)

#define POOL		"/proc/sys/vm/nr_hugepages"
#define GATES		2

#define ATTACH_LEN	GIB		/* for attach */

/* A multiple of 1 GiB, far from the mappings of a small program. */
#define BASE		((char *)(16 * KIB * GIB))

const char bench_name[] = "hugetlb";
const char *bench_knob = "/proc/sys/vm/hugetlb_pmd_sharing";

/* The command line. */
static struct {
	long rounds;
	long procs;		/* in shared, unshared and tables */
	long gib;		/* of their file */
	long ms;		/* duration of a turn of theirs */
	long storm_procs;
	long storm_gib;
	long span;		/* GiB from which interfere removes pages */
	long ops;		/* how often it does so per turn */
} opt = {
	.rounds		= 5,
	.procs		= 8,
	.gib		= 4,
	.ms		= 1000,
	.storm_procs	= 100,
	.storm_gib	= 512,
	.span		= 256,
	.ops		= 10,
};

/* --- time */

struct timing {
	__u64 sum, max, n;
};

static void timing_add(struct timing *timing, __u64 ns)
{
	timing->sum += ns;
	timing->n++;
	if (ns > timing->max)
		timing->max = ns;
}

static void timing_merge(struct timing *timing, const struct timing *other)
{
	timing->sum += other->sum;
	timing->n += other->n;
	if (other->max > timing->max)
		timing->max = other->max;
}

/* --- memory of the whole system */

/* Page tables of the whole system, after folding the per-CPU counters. */
static unsigned long all_page_tables_kb(void)
{
	write_text("/proc/sys/vm/stat_refresh", "1");
	return meminfo_kb("PageTables");
}

/* --- waits for locks */

/*
 * By the flags of the event (the kernel's LCB_F_*).  Only waits that sleep
 * count: an optimistic spin on a mutex has an additional flag.
 */
static const struct event_count lock_waits[] = {
	{ "mutex", "lock/contention_begin", "flags == 32" },
	{ "rwsem_read", "lock/contention_begin", "flags == 2" },
	{ "rwsem_write", "lock/contention_begin", "flags == 4" },
};

/* --- the file and its pages */

static void need_pool(unsigned long pages)
{
	unsigned long n = 0;
	char text[32];
	FILE *f;

	snprintf(text, sizeof(text), "%lu", pages);
	if (write_text(POOL, text))
		die(POOL ": %s", strerror(errno));
	f = fopen(POOL, "r");
	if (!f || fscanf(f, "%lu", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	if (n < pages)
		die("%lu huge pages of %lu: the guest needs more memory, or smaller sizes",
		    n, pages);
}

static int new_file(size_t len)
{
	int fd = memfd_create("bench", MFD_CLOEXEC | MFD_HUGETLB);
	struct stat st;

	if (fd < 0 || ftruncate(fd, len))
		die("hugetlb memfd of %zu GiB: %s", len / GIB, strerror(errno));
	if (fstat(fd, &st) || st.st_blksize != HUGE)
		die("huge pages have %ld kB, not 2048",
		    (long)(st.st_blksize / KIB));
	return fd;
}

/*
 * Map the file PHASE huge pages after a multiple of 1 GiB.  Nothing is
 * reserved: a sparse file is larger than the pool of pages.
 */
static char *map_file(int fd, size_t len, long phase)
{
	char *place = BASE + phase * HUGE;
	char *p = mmap(place, len, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, 0);

	if (p != place)
		die("mmap of %zu GiB: %s", len / GIB, strerror(errno));
	return p;
}

static void unmap_file(char *p, size_t len)
{
	if (munmap(p, len))
		die("munmap: %s", strerror(errno));
}

static void touch_all(char *p, size_t len, size_t step)
{
	size_t off;

	for (off = 0; off < len; off += step)
		touch(p + off);
}

/* A file with a page at each multiple of STEP. */
static int new_filled_file(size_t len, size_t step)
{
	int fd = new_file(len);
	char *p = map_file(fd, len, 0);

	touch_all(p, len, step);
	unmap_file(p, len);
	return fd;
}

/* --- processes that start together */

struct worker {
	__u64 touches, faults;
	struct timing mmap, touch, munmap;
};

/* Shared by parent and children. */
static struct stage {
	atomic_int ready;
	atomic_bool stop;
	struct worker workers[];
} *stage;

static int gates[GATES][2];

static void gates_open(void)
{
	int i;

	for (i = 0; i < GATES; i++)
		if (pipe2(gates[i], O_CLOEXEC))
			die("pipe: %s", strerror(errno));
}

/* A child waits here until the parent releases all of them. */
static void gate_wait(int gate)
{
	char c;

	atomic_fetch_add(&stage->ready, 1);
	if (read(gates[gate][0], &c, 1))
		_exit(1);
}

static void gate_pass(int gate)
{
	if (gates[gate][1] >= 0)
		close(gates[gate][1]);
	gates[gate][1] = -1;
}

/* Start N children that run WORK with ARG and a number each. */
static pid_t *start_all(long n, void (*work)(long nr, void *arg), void *arg)
{
	pid_t *pids = calloc(n, sizeof(*pids));
	long i;
	int gate;

	if (!pids)
		die("no memory");
	memset(stage->workers, 0, n * sizeof(*stage->workers));
	atomic_store(&stage->ready, 0);
	atomic_store(&stage->stop, false);
	gates_open();
	for (i = 0; i < n; i++) {
		pids[i] = fork_bound();
		if (pids[i] < 0)
			die("cannot start process %ld: %s", i, strerror(errno));
		if (pids[i])
			continue;
		for (gate = 0; gate < GATES; gate++)
			close(gates[gate][1]);
		work(i, arg);
		_exit(0);
	}
	for (gate = 0; gate < GATES; gate++)
		close(gates[gate][0]);
	return pids;
}

static void check_child(int status)
{
	if (WIFSIGNALED(status))
		die("a process was killed by signal %d%s", WTERMSIG(status),
		    WTERMSIG(status) == SIGBUS ? ": too few huge pages" : "");
	if (status)
		die("a process failed");
}

/* Wait until all N children have reached their next gate. */
static void wait_ready(long n)
{
	int status;

	while (atomic_load(&stage->ready) < n) {
		if (waitpid(-1, &status, WNOHANG) > 0) {
			check_child(status);
			die("a process ended too early");
		}
		usleep(500);
	}
	atomic_store(&stage->ready, 0);
}

static void wait_gone(long n)
{
	int status, gate;

	for (gate = 0; gate < GATES; gate++)
		gate_pass(gate);
	for (; n; n--) {
		if (wait(&status) < 0)
			die("wait: %s", strerror(errno));
		check_child(status);
	}
}

/* --- shared, unshared: all processes map, touch everything and unmap */

struct loop {
	int fd;
	size_t len;
	bool shared;
};

static void loop_work(long nr, void *arg)
{
	struct worker *w = &stage->workers[nr];
	const struct loop *loop = arg;
	struct rusage before, after;

	gate_wait(0);
	getrusage(RUSAGE_SELF, &before);
	do {
		__u64 from = now_ns(), to;
		size_t off;
		char *p;

		p = map_file(loop->fd, loop->len, loop->shared ? 0 : nr);
		to = now_ns();
		timing_add(&w->mmap, to - from);
		from = to;
		for (off = 0; off < loop->len && !atomic_load(&stage->stop);
		     off += HUGE) {
			touch(p + off);
			w->touches++;
		}
		to = now_ns();
		/* The last one does not count, as it was interrupted. */
		if (off >= loop->len)
			timing_add(&w->touch, to - from);
		from = to;
		unmap_file(p, loop->len);
		timing_add(&w->munmap, now_ns() - from);
	} while (!atomic_load(&stage->stop));
	getrusage(RUSAGE_SELF, &after);
	w->faults = after.ru_minflt - before.ru_minflt;
}

static void report_timing(const char *what, const char *call, int arm,
			  const struct timing *timing)
{
	if (!timing->n)
		return;
	report(arm, "ms", timing->sum / 1e6 / timing->n, "%s_%s_mean", what,
	       call);
	report(arm, "ms", timing->max / 1e6, "%s_%s_max", what, call);
}

static void loop_turn(struct loop *loop, const char *what, int arm)
{
	struct worker all = { };
	struct counters before;
	double seconds;
	__u64 from;
	long i;

	before = counters_read("hugetlb_");
	free(start_all(opt.procs, loop_work, loop));
	wait_ready(opt.procs);
	from = now_ns();
	gate_pass(0);
	usleep(opt.ms * 1000);
	atomic_store(&stage->stop, true);
	seconds = (now_ns() - from) / 1e9;
	wait_gone(opt.procs);

	for (i = 0; i < opt.procs; i++) {
		const struct worker *w = &stage->workers[i];

		all.touches += w->touches;
		all.faults += w->faults;
		timing_merge(&all.mmap, &w->mmap);
		timing_merge(&all.touch, &w->touch);
		timing_merge(&all.munmap, &w->munmap);
	}
	report(arm, "per_s", all.touches / seconds, "%s_touches", what);
	report(arm, "per_s", all.faults / seconds, "%s_faults", what);
	report_timing(what, "mmap", arm, &all.mmap);
	report_timing(what, "touch", arm, &all.touch);
	report_timing(what, "munmap", arm, &all.munmap);
	report_counters(what, arm, &before);
}

/* A separate pass: tracing takes time. */
static void loop_waits(struct loop *loop, const char *what, int arm)
{
	const int kinds = ARRAY_SIZE(lock_waits);
	int i;

	if (!events_open(lock_waits, kinds))
		return;
	free(start_all(opt.procs, loop_work, loop));
	wait_ready(opt.procs);
	gate_pass(0);
	usleep(opt.ms * 1000);
	atomic_store(&stage->stop, true);
	wait_gone(opt.procs);
	for (i = 0; i < kinds; i++)
		report(arm, "per_s",
		       events_counted(&lock_waits[i]) * 1000.0 / opt.ms,
		       "%s_waits_%s", what, lock_waits[i].name);
	events_close(lock_waits, kinds);
}

static void run_loop(const char *what, int fd, bool shared)
{
	struct loop loop = { fd, opt.gib * GIB, shared };
	long round;
	int turn;

	/* Two turns per round, in both orders: this scene varies most. */
	for (round = 0; round < opt.rounds * 2; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round, turn);

			set_arm(arm);
			loop_turn(&loop, what, arm);
		}
	}
	for (turn = 0; turn < nr_arms; turn++) {
		set_arm(turn);
		loop_waits(&loop, what, turn);
	}
}

/* --- tables: memory for page tables while all processes map everything */

/*
 * One after the other: two at once may both find nothing to share and allocate
 * a table each.
 */
static void tables_work(long nr, void *arg)
{
	const struct loop *loop = arg;
	char *p;

	gate_wait(0);
	while (atomic_load(&stage->ready) < nr)
		usleep(200);
	p = map_file(loop->fd, loop->len, loop->shared ? 0 : nr);
	touch_all(p, loop->len, HUGE);
	gate_wait(1);
}

static void tables_turn(struct loop *loop, const char *what, int arm)
{
	unsigned long before, after, vmpte = 0;
	struct counters counters = counters_read("hugetlb_");
	pid_t *pids = start_all(opt.procs, tables_work, loop);
	char path[64];
	long i;

	wait_ready(opt.procs);
	before = all_page_tables_kb();
	gate_pass(0);
	wait_ready(opt.procs);
	after = all_page_tables_kb();
	for (i = 0; i < opt.procs; i++) {
		snprintf(path, sizeof(path), "/proc/%d/status", pids[i]);
		vmpte += proc_kb(path, "VmPTE");
	}
	free(pids);
	gate_pass(1);
	wait_gone(opt.procs);

	report(arm, "kB", (double)after - before, "%s_all", what);
	report(arm, "kB", ((double)after - before) / opt.procs,
	       "%s_per_process", what);
	report(arm, "kB", ((double)after - before) / opt.procs / opt.gib,
	       "%s_per_process_gib", what);
	/* Per process: a shared table counts in each process that uses it. */
	report(arm, "kB", (double)vmpte / opt.procs, "%s_vmpte", what);
	report_counters(what, arm, &counters);
}

static void run_tables(int fd)
{
	struct loop loop = { .fd = fd, .len = opt.gib * GIB };
	long round;
	int turn;

	for (round = 0; round < opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round, turn);

			set_arm(arm);
			loop.shared = true;
			tables_turn(&loop, "tables_shared", arm);
			loop.shared = false;
			tables_turn(&loop, "tables_unshared", arm);
		}
	}
}

/* --- exit_storm: many processes with a large, nearly empty mapping exit */

/*
 * All of them touch the same page of the file in each GiB, so that one huge
 * page per GiB is enough; each process has its own page table for it.
 */
static void storm_work(long nr, void *arg)
{
	const struct loop *loop = arg;
	char *p;

	gate_wait(0);
	p = map_file(loop->fd, loop->len, nr);
	touch_all(p, loop->len, TABLE);
	gate_wait(1);
}

static void storm_turn(struct loop *loop, int arm)
{
	struct counters before = counters_read("hugetlb_");
	__u64 from;

	free(start_all(opt.storm_procs, storm_work, loop));
	wait_ready(opt.storm_procs);
	from = now_ns();
	gate_pass(0);
	wait_ready(opt.storm_procs);
	report(arm, "ms", (now_ns() - from) / 1e6, "exit_storm_attach");
	from = now_ns();
	gate_pass(1);
	wait_gone(opt.storm_procs);
	report(arm, "ms", (now_ns() - from) / 1e6, "exit_storm_exit");
	report_counters("exit_storm", arm, &before);
}

static void run_storm(void)
{
	struct loop loop = { .len = opt.storm_gib * GIB };
	long round;
	int turn;

	loop.fd = new_filled_file(loop.len, TABLE);
	for (round = 0; round < opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round, turn);

			set_arm(arm);
			storm_turn(&loop, arm);
		}
	}
	close(loop.fd);
}

/* --- interfere: faults while another thread removes pages */

/*
 * One mapping of one process.  A thread touches the first FAULT_PAGES of it
 * again and again, and has the kernel unmap them after each pass.  The other
 * thread removes the pages from everything after the first GiB, where each page
 * table has one page at first and one in REFILL_EVERY after that, and puts them
 * back.  No page is used by both, so in principle neither has to wait.
 */
#define FAULT_PAGES	256UL
#define REFILL_EVERY	8

struct interfere {
	int fd;
	char *p;
	size_t len;			/* in the mapping */
	atomic_long op;			/* odd: an operation is in progress */
	double *us;			/* of each fault during one */
	long n;
};

static void act_punch(struct interfere *in)
{
	if (fallocate(in->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      TABLE, in->len - TABLE))
		die("punching a hole: %s", strerror(errno));
}

static void act_dontneed(struct interfere *in)
{
	if (madvise(in->p + TABLE, in->len - TABLE, MADV_DONTNEED))
		die("MADV_DONTNEED: %s", strerror(errno));
}

static void act_truncate(struct interfere *in)
{
	if (ftruncate(in->fd, TABLE))
		die("ftruncate: %s", strerror(errno));
}

static const struct act {
	const char *name;
	void (*act)(struct interfere *in);
} acts[] = {
	{ "dontneed", act_dontneed },
	{ "punch", act_punch },
	{ "truncate", act_truncate },
};

static void *fault_main(void *arg)
{
	struct interfere *in = arg;
	size_t i = 0;

	/* Otherwise the scheduler may put both threads on one CPU. */
	pin_to(1);
	while (!atomic_load(&stage->stop)) {
		long before = atomic_load(&in->op), after;
		__u64 from = now_ns(), to;

		touch(in->p + i * HUGE);
		to = now_ns();
		after = atomic_load(&in->op);
		if ((before % 2 || before != after) && in->n < (long)SAMPLES_MAX)
			in->us[in->n++] = (to - from) / 1e3;
		if (++i < FAULT_PAGES)
			continue;
		i = 0;
		if (madvise(in->p, FAULT_PAGES * HUGE, MADV_DONTNEED))
			die("MADV_DONTNEED: %s", strerror(errno));
	}
	return NULL;
}

static void interfere_turn(struct interfere *in, const struct act *act, int arm)
{
	struct counters before = counters_read("hugetlb_");
	struct timing ops = { };
	double sum = 0;
	pthread_t thread;
	char what[64];
	long i;

	in->n = 0;
	atomic_store(&stage->stop, false);
	if (pthread_create(&thread, NULL, fault_main, in))
		die("cannot start a thread");
	usleep(5000);
	for (i = 0; i < opt.ops; i++) {
		__u64 from = now_ns();

		atomic_fetch_add(&in->op, 1);
		act->act(in);
		atomic_fetch_add(&in->op, 1);
		timing_add(&ops, now_ns() - from);
		if (ftruncate(in->fd, in->len))
			die("ftruncate: %s", strerror(errno));
		touch_all(in->p + TABLE, in->len - TABLE, REFILL_EVERY * TABLE);
		usleep(2000);
	}
	atomic_store(&stage->stop, true);
	pthread_join(thread, NULL);

	snprintf(what, sizeof(what), "interfere_%s", act->name);
	report_timing(what, "op", arm, &ops);
	report(arm, "faults", in->n, "%s_fault_n", what);
	/* An operation can finish before the other thread runs at all. */
	if (in->n) {
		sort_samples(in->us, in->n);
		for (i = 0; i < in->n; i++)
			sum += in->us[i];
		report(arm, "us", sum / in->n, "%s_fault_mean", what);
		report(arm, "us", p99(in->us, in->n), "%s_fault_p99", what);
		report(arm, "us", in->us[in->n - 1], "%s_fault_max", what);
	}
	report_counters(what, arm, &before);
}

static void run_interfere(void)
{
	struct interfere in = { .len = (opt.span + 1) * GIB };
	long round;
	int turn;
	size_t i;

	in.us = calloc(SAMPLES_MAX, sizeof(*in.us));
	if (!in.us)
		die("no memory for samples");
	in.fd = new_file(in.len);
	pin_to(0);
	for (round = 0; round < opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round, turn);

			set_arm(arm);
			in.p = map_file(in.fd, in.len, 0);
			touch_all(in.p, FAULT_PAGES * HUGE, HUGE);
			touch_all(in.p + TABLE, in.len - TABLE, TABLE);
			for (i = 0; i < ARRAY_SIZE(acts); i++)
				interfere_turn(&in, &acts[i], arm);
			unmap_file(in.p, in.len);
		}
	}
	free(in.us);
	close(in.fd);
}

/* --- attach: a process maps a file that is in memory and touches all of it */

static void attach_work(long nr, void *arg)
{
	struct worker *w = &stage->workers[nr];
	const struct loop *loop = arg;
	struct rusage before, after;
	char *p;

	gate_wait(0);
	p = map_file(loop->fd, loop->len, 0);
	/* The program's own pages are faulted in by now. */
	getrusage(RUSAGE_SELF, &before);
	getrusage(RUSAGE_SELF, &after);
	touch_all(p, loop->len, HUGE);
	getrusage(RUSAGE_SELF, &after);
	w->faults = after.ru_minflt - before.ru_minflt;
}

static void attach_turn(struct loop *loop, int arm)
{
	struct counters before = counters_read("hugetlb_");

	free(start_all(1, attach_work, loop));
	wait_ready(1);
	gate_pass(0);
	wait_gone(1);
	report(arm, "faults", stage->workers[0].faults, "attach_faults");
	report_counters("attach", arm, &before);
}

static void run_attach(void)
{
	struct loop loop = { .len = ATTACH_LEN };
	long round;
	int turn;

	loop.fd = new_filled_file(loop.len, HUGE);
	for (round = 0; round < opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round, turn);

			set_arm(arm);
			attach_turn(&loop, arm);
		}
	}
	close(loop.fd);
}

/* --- cost: one process maps, touches everything and unmaps, in ticks */

#define COST_LEN	GIB

/* Has the page tables that the other process may share. */
static void cost_work(long nr, void *arg)
{
	const struct loop *loop = arg;
	char *p = map_file(loop->fd, loop->len, 0);

	(void)nr;
	touch_all(p, loop->len, HUGE);
	gate_wait(0);
}

static void cost_turn(struct loop *loop, int arm, bool warm)
{
	const char *what = loop->shared ? "shared" : "unshared";
	__u64 start_at, mapped, touched, unmapped;
	char *p;

	free(start_all(1, cost_work, loop));
	wait_ready(1);
	start_at = ticks();
	p = map_file(loop->fd, loop->len, loop->shared ? 0 : 1);
	mapped = ticks();
	touch_all(p, loop->len, HUGE);
	touched = ticks();
	unmap_file(p, loop->len);
	unmapped = ticks();
	gate_pass(0);
	wait_gone(1);
	if (warm)
		return;
	report(arm, "ticks", mapped - start_at, "cost_%s_mmap", what);
	report(arm, "ticks", (double)(touched - mapped) / PER_TABLE,
	       "cost_%s_touch", what);
	report(arm, "ticks", unmapped - touched, "cost_%s_munmap", what);
	report(arm, "ticks", unmapped - start_at, "cost_%s", what);
}

static void run_cost(void)
{
	struct loop loop = { .len = COST_LEN };
	long round;
	int turn;

	loop.fd = new_filled_file(loop.len, HUGE);
	/* The first round is a warm-up. */
	for (round = 0; round <= opt.rounds; round++) {
		for (turn = 0; turn < nr_arms; turn++) {
			int arm = arm_of_turn(round, turn);

			set_arm(arm);
			loop.shared = true;
			cost_turn(&loop, arm, !round);
			loop.shared = false;
			cost_turn(&loop, arm, !round);
		}
	}
	close(loop.fd);
}

/* --- command line */

enum scene {
	SCENE_SHARED,
	SCENE_UNSHARED,
	SCENE_TABLES,
	SCENE_STORM,
	SCENE_INTERFERE,
	SCENE_ATTACH,
	SCENE_COST,
	NR_SCENES,
};

static const char * const scene_names[NR_SCENES] = {
	[SCENE_SHARED]		= "shared",
	[SCENE_UNSHARED]	= "unshared",
	[SCENE_TABLES]		= "tables",
	[SCENE_STORM]		= "exit_storm",
	[SCENE_INTERFERE]	= "interfere",
	[SCENE_ATTACH]		= "attach",
	[SCENE_COST]		= "cost",
};

static void usage(FILE *f)
{
	fprintf(f,
		"Usage: hugetlb --arms ARM,... [OPTION...] SCENE...\n"
		"  ARM    a value of vm.hugetlb_pmd_sharing, or a name to leave the knob alone\n"
		"  SCENE  shared, unshared (all processes map, touch and unmap one file, at\n"
		"         addresses where page tables can or cannot be shared), tables (memory\n"
		"         for them), exit_storm (many sparse mappings exit at once), interfere\n"
		"         (faults while pages are removed), attach (faults of a process that\n"
		"         touches a file in memory), cost (instructions of one)\n"
		"Options, each with a number:\n"
		"  --rounds          of each scene (5)\n"
		"  --procs --gib     in shared, unshared, tables: processes (8), GiB (4)\n"
		"  --ms              duration of a turn of shared and unshared (1000)\n"
		"  --storm-procs --storm-gib  processes (100, at most 512), GiB of each (512)\n"
		"  --span --ops      in interfere: GiB to remove (256), how often (10)\n"
		"The pool of 2 MiB huge pages is set to what the scenes need: 512 for each\n"
		"GiB of --gib, one for each of --storm-gib, %lu and one for each of --span,\n"
		"512 for attach and cost; the largest of these.\n", FAULT_PAGES);
}

static unsigned long pages_of_scene(enum scene scene)
{
	switch (scene) {
	case SCENE_STORM:
		return opt.storm_gib;
	case SCENE_INTERFERE:
		return FAULT_PAGES + opt.span;
	case SCENE_ATTACH:
		return ATTACH_LEN / HUGE;
	case SCENE_COST:
		return COST_LEN / HUGE;
	default:
		return opt.gib * PER_TABLE;
	}
}

static void run_scenes(char **names, int n)
{
	unsigned long pages, most = 0;
	bool wanted[NR_SCENES] = { };
	long workers = opt.procs > opt.storm_procs ? opt.procs :
						     opt.storm_procs;
	int i, fd;

	for (i = 0; i < n; i++) {
		enum scene scene = find_name("scene", names[i], scene_names,
					     NR_SCENES);

		wanted[scene] = true;
		pages = pages_of_scene(scene);
		if (pages > most)
			most = pages;
	}
	need_pool(most);
	stage = map_shared(sizeof(*stage) + workers * sizeof(struct worker));
	if (!stage)
		die("mmap: %s", strerror(errno));

	/* These share a file, as filling it takes longest. */
	if (wanted[SCENE_SHARED] || wanted[SCENE_UNSHARED] ||
	    wanted[SCENE_TABLES]) {
		fd = new_filled_file(opt.gib * GIB, HUGE);
		if (wanted[SCENE_SHARED])
			run_loop("shared", fd, true);
		if (wanted[SCENE_UNSHARED])
			run_loop("unshared", fd, false);
		if (wanted[SCENE_TABLES])
			run_tables(fd);
		close(fd);
	}
	if (wanted[SCENE_STORM])
		run_storm();
	if (wanted[SCENE_ATTACH])
		run_attach();
	if (wanted[SCENE_COST])
		run_cost();
	/* Last, as it pins its threads to CPUs. */
	if (wanted[SCENE_INTERFERE])
		run_interfere();
}

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "rounds", &opt.rounds },
		{ "procs", &opt.procs },
		{ "gib", &opt.gib },
		{ "ms", &opt.ms },
		{ "storm-procs", &opt.storm_procs },
		{ "storm-gib", &opt.storm_gib },
		{ "span", &opt.span },
		{ "ops", &opt.ops },
	};
	int first = parse_options(argc, argv, options, ARRAY_SIZE(options),
				  true, usage);

	/* With more, two would have the same offset within a GiB. */
	if (opt.procs > (long)PER_TABLE || opt.storm_procs > (long)PER_TABLE)
		die("at most %lu processes", PER_TABLE);
	run_scenes(argv + first, argc - first);
	return 0;
}
