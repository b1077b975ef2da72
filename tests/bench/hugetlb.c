// SPDX-License-Identifier: GPL-2.0-only
/*
 * Costs and benefits of the modes of vm.hugetlb_pmd_sharing.
 *
 * A mapping keeps the mode that it was created with, so each turn makes new
 * mappings; the file and its pages stay.
 *
 * Page tables of two mappings are shared only if the same part of the file has
 * the same offset within a GiB of address space.  So "shared" maps the file at
 * a multiple of 1 GiB in all processes, and "unshared" 2 MiB further in each.
 */
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

#define HUGE		(2 * MIB)
#define TABLE		GIB		/* mapped by one page table */
#define PER_TABLE	(TABLE / HUGE)

#define GATES		2

#define ATTACH_LEN	GIB		/* for attach */

/* A multiple of 1 GiB, far from the mappings of a small program. */
#define BASE		((char *)(16 * KIB * GIB))

/* The command line: see main(). */
static struct {
	long procs, gib, ms, storm_procs, storm_gib, span, ops;
} opt = {
	.procs = 8, .gib = 4, .ms = 1000, .storm_procs = 100, .storm_gib = 512,
	.span = 256, .ops = 10,
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

/* --- the file and its pages */

static void need_pool(unsigned long pages)
{
	static unsigned long most;

	if (pages > most)
		most = pages;
	if (!huge_pool(most))
		errx(1, "no %lu huge pages: the guest needs more memory", most);
}

static int new_file(size_t len)
{
	int fd = memfd_create("bench", MFD_CLOEXEC | MFD_HUGETLB);
	struct stat st;

	if (fd < 0 || ftruncate(fd, len))
		err(1, "hugetlb memfd of %zu GiB", len / GIB);
	if (fstat(fd, &st) || st.st_blksize != HUGE)
		errx(1, "huge pages have %ld kB, not 2048",
		     (long)(st.st_blksize / KIB));
	return fd;
}

/*
 * Map the file PHASE huge pages after a multiple of 1 GiB.  Nothing is
 * reserved: a sparse file is larger than the pool of pages.
 */
static char *map_file(int fd, size_t len, long phase)
{
	return map_memory(BASE + phase * HUGE, len,
			  MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd);
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
	char *p;
	int fd;

	need_pool(len / step);
	fd = new_file(len);
	p = map_file(fd, len, 0);

	touch_all(p, len, step);
	unmap(p, len);
	return fd;
}

/* --- processes that start together */

/* Their file, and whether they may share page tables. */
struct loop {
	const char *name;
	int fd;
	size_t len;
	bool shared;
};

struct worker {
	pid_t pid;
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
			err(1, "pipe");
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

/* Start N children that run WORK with LOOP and a number each. */
static void start_all(long n, void (*work)(long nr, const struct loop *loop),
		      const struct loop *loop)
{
	int gate;
	long i;

	memset(stage->workers, 0, n * sizeof(*stage->workers));
	atomic_store(&stage->ready, 0);
	atomic_store(&stage->stop, false);
	gates_open();
	for (i = 0; i < n; i++) {
		pid_t pid = fork_bound();

		if (pid < 0)
			err(1, "cannot start process %ld", i);
		if (pid) {
			stage->workers[i].pid = pid;
			continue;
		}
		for (gate = 0; gate < GATES; gate++)
			close(gates[gate][1]);
		work(i, loop);
		_exit(0);
	}
	for (gate = 0; gate < GATES; gate++)
		close(gates[gate][0]);
}

static void check_child(int status)
{
	if (WIFSIGNALED(status))
		errx(1, "a process was killed by signal %d%s", WTERMSIG(status),
		     WTERMSIG(status) == SIGBUS ? ": too few huge pages" : "");
	if (status)
		errx(1, "a process failed");
}

/* Wait until all N children have reached their next gate. */
static void wait_ready(long n)
{
	int status;

	while (atomic_load(&stage->ready) < n) {
		if (waitpid(-1, &status, WNOHANG) > 0) {
			check_child(status);
			errx(1, "a process ended too early");
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
			err(1, "wait");
		check_child(status);
	}
}

/* --- shared, unshared: all processes map, touch everything and unmap */

static void loop_work(long nr, const struct loop *loop)
{
	struct worker *w = &stage->workers[nr];
	long before;

	gate_wait(0);
	before = minor_faults();
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
		unmap(p, loop->len);
		timing_add(&w->munmap, now_ns() - from);
	} while (!atomic_load(&stage->stop));
	w->faults = minor_faults() - before;
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

static void loop_turn(int arm, void *arg)
{
	const struct loop *loop = arg;
	struct counters before = counters_read("hugetlb_");
	const char *what = loop->name;
	struct worker all = { };
	double seconds;
	__u64 from;
	long i;

	start_all(opt.procs, loop_work, loop);
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

static void run_loop(void *arg)
{
	struct loop loop = *(const struct loop *)arg;

	loop.len = opt.gib * GIB;
	loop.fd = new_filled_file(loop.len, HUGE);
	/* Two turns per round, in both orders: this scene varies most. */
	run_turns(2 * rounds, loop_turn, &loop);
	close(loop.fd);
}

static void turns_with_file(size_t len, size_t step,
			    void (*turn)(int arm, void *loop))
{
	struct loop loop = { .len = len };

	loop.fd = new_filled_file(len, step);
	run_turns(rounds, turn, &loop);
	close(loop.fd);
}

/* --- tables: memory for page tables while all processes map everything */

/*
 * One after the other: two at once may both find nothing to share and allocate
 * a table each.
 */
static void tables_work(long nr, const struct loop *loop)
{
	char *p;

	gate_wait(0);
	while (atomic_load(&stage->ready) < nr)
		usleep(200);
	p = map_file(loop->fd, loop->len, loop->shared ? 0 : nr);
	touch_all(p, loop->len, HUGE);
	gate_wait(1);
}

static void tables_report(const struct loop *loop, const char *what, int arm)
{
	unsigned long before, after, vmpte = 0;
	struct counters counters = counters_read("hugetlb_");
	char path[64];
	long i;

	start_all(opt.procs, tables_work, loop);
	wait_ready(opt.procs);
	before = all_page_tables_kb();
	gate_pass(0);
	wait_ready(opt.procs);
	after = all_page_tables_kb();
	for (i = 0; i < opt.procs; i++) {
		snprintf(path, sizeof(path), "/proc/%d/status",
			 stage->workers[i].pid);
		vmpte += proc_kb(path, "VmPTE");
	}
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

static void tables_turn(int arm, void *arg)
{
	struct loop *loop = arg;

	loop->shared = true;
	tables_report(loop, "tables_shared", arm);
	loop->shared = false;
	tables_report(loop, "tables_unshared", arm);
}

static void run_tables(void *unused)
{
	turns_with_file(opt.gib * GIB, HUGE, tables_turn);
}

/* --- exit_storm: many processes with a large, nearly empty mapping exit */

/*
 * All of them touch the same page of the file in each GiB, so that one huge
 * page per GiB is enough; each process has its own page table for it.
 */
static void storm_work(long nr, const struct loop *loop)
{
	char *p;

	gate_wait(0);
	p = map_file(loop->fd, loop->len, nr);
	touch_all(p, loop->len, TABLE);
	gate_wait(1);
}

static void storm_turn(int arm, void *loop)
{
	struct counters before = counters_read("hugetlb_");
	__u64 from;

	start_all(opt.storm_procs, storm_work, loop);
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

static void run_storm(void *unused)
{
	turns_with_file(opt.storm_gib * GIB, TABLE, storm_turn);
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
		err(1, "punching a hole");
}

static void act_dontneed(struct interfere *in)
{
	if (madvise(in->p + TABLE, in->len - TABLE, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
}

static void act_truncate(struct interfere *in)
{
	if (ftruncate(in->fd, TABLE))
		err(1, "ftruncate");
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
			err(1, "MADV_DONTNEED");
	}
	return NULL;
}

static void interfere_act(struct interfere *in, const struct act *act, int arm)
{
	struct counters before = counters_read("hugetlb_");
	struct timing ops = { };
	double sum = 0;
	pthread_t thread;
	char what[64];
	long i;

	in->n = 0;
	atomic_store(&stage->stop, false);
	start_thread(&thread, fault_main, in);
	usleep(5000);
	for (i = 0; i < opt.ops; i++) {
		__u64 from = now_ns();

		atomic_fetch_add(&in->op, 1);
		act->act(in);
		atomic_fetch_add(&in->op, 1);
		timing_add(&ops, now_ns() - from);
		if (ftruncate(in->fd, in->len))
			err(1, "ftruncate");
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

static void interfere_turn(int arm, void *arg)
{
	struct interfere *in = arg;
	size_t i;

	in->p = map_file(in->fd, in->len, 0);
	touch_all(in->p, FAULT_PAGES * HUGE, HUGE);
	touch_all(in->p + TABLE, in->len - TABLE, TABLE);
	for (i = 0; i < ARRAY_SIZE(acts); i++)
		interfere_act(in, &acts[i], arm);
	unmap(in->p, in->len);
}

static void run_interfere(void *unused)
{
	struct interfere in = { .len = (opt.span + 1) * GIB };

	need_pool(FAULT_PAGES + opt.span);
	in.us = calloc(SAMPLES_MAX, sizeof(*in.us));
	if (!in.us)
		errx(1, "no memory for samples");
	in.fd = new_file(in.len);
	pin_to(0);
	run_turns(rounds, interfere_turn, &in);
	free(in.us);
	close(in.fd);
}

/* --- attach: a process maps a file that is in memory and touches all of it */

static void attach_work(long nr, const struct loop *loop)
{
	struct worker *w = &stage->workers[nr];
	long before;
	char *p;

	gate_wait(0);
	p = map_file(loop->fd, loop->len, 0);
	/* The second time, the program's own pages are faulted in. */
	minor_faults();
	before = minor_faults();
	touch_all(p, loop->len, HUGE);
	w->faults = minor_faults() - before;
}

static void attach_turn(int arm, void *loop)
{
	struct counters before = counters_read("hugetlb_");

	start_all(1, attach_work, loop);
	wait_ready(1);
	gate_pass(0);
	wait_gone(1);
	report(arm, "faults", stage->workers[0].faults, "attach_faults");
	report_counters("attach", arm, &before);
}

static void run_attach(void *unused)
{
	turns_with_file(ATTACH_LEN, HUGE, attach_turn);
}

/* --- cost: one process maps, touches everything and unmaps, in ticks */

#define COST_LEN	GIB

/* Has the page tables that the other process may share. */
static void cost_work(long nr, const struct loop *loop)
{
	char *p = map_file(loop->fd, loop->len, 0);

	(void)nr;
	touch_all(p, loop->len, HUGE);
	gate_wait(0);
}

static void cost_report(const struct loop *loop, int arm)
{
	const char *what = loop->shared ? "shared" : "unshared";
	__u64 start_at, mapped, touched, unmapped;
	char *p;

	start_all(1, cost_work, loop);
	wait_ready(1);
	start_at = ticks();
	p = map_file(loop->fd, loop->len, loop->shared ? 0 : 1);
	mapped = ticks();
	touch_all(p, loop->len, HUGE);
	touched = ticks();
	unmap(p, loop->len);
	unmapped = ticks();
	gate_pass(0);
	wait_gone(1);
	report(arm, "ticks", mapped - start_at, "cost_%s_mmap", what);
	report(arm, "ticks", (double)(touched - mapped) / PER_TABLE,
	       "cost_%s_touch", what);
	report(arm, "ticks", unmapped - touched, "cost_%s_munmap", what);
	report(arm, "ticks", unmapped - start_at, "cost_%s", what);
}

static void cost_turn(int arm, void *arg)
{
	struct loop *loop = arg;

	loop->shared = true;
	cost_report(loop, arm);
	loop->shared = false;
	cost_report(loop, arm);
}

static void run_cost(void *unused)
{
	struct loop loop = { .len = COST_LEN };

	loop.fd = new_filled_file(loop.len, HUGE);
	warm_up(cost_turn, &loop);
	run_turns(rounds, cost_turn, &loop);
	close(loop.fd);
}

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "procs", "processes in shared, unshared and tables (8)",
		  .number = &opt.procs, .max = PER_TABLE },
		{ "gib", "size of their file (4)", .number = &opt.gib },
		{ "ms", "duration of a turn of shared and unshared (1000)",
		  .number = &opt.ms },
		{ "storm-procs", "processes in exit_storm (100)",
		  .number = &opt.storm_procs, .max = PER_TABLE },
		{ "storm-gib", "GiB of each (512)", .number = &opt.storm_gib },
		{ "span", "GiB from which interfere removes pages (256)",
		  .number = &opt.span },
		{ "ops", "how often it does so in a turn (10)",
		  .number = &opt.ops },
		{ }
	};
	static struct loop shared = { .name = "shared", .shared = true };
	static struct loop unshared = { .name = "unshared" };
	static const struct bench_scene scenes[] = {
		{ "shared", "all processes map, touch and unmap one file",
		  .run = run_loop, .arg = &shared },
		{ "unshared", "the same where page tables cannot be shared",
		  .run = run_loop, .arg = &unshared },
		{ "tables", "memory for page tables", .run = run_tables },
		{ "exit_storm", "many sparse mappings exit at once",
		  .run = run_storm },
		{ "attach", "faults of a process that touches a file in memory",
		  .run = run_attach },
		{ "cost", "its instructions", .run = run_cost },
		/* Last, as it pins its threads to CPUs. */
		{ "interfere", "faults while pages are removed",
		  .run = run_interfere },
		{ }
	};
	static const struct bench bench = {
		"hugetlb_pmd_sharing", options, .scenes = scenes,
	};
	int first = bench_parse(argc, argv, &bench);
	long most = opt.procs > opt.storm_procs ? opt.procs : opt.storm_procs;

	stage = map_shared(sizeof(*stage) + most * sizeof(struct worker));
	if (!stage)
		err(1, "mmap");
	bench_scenes(argc, argv, first, &bench);
	return 0;
}
