// SPDX-License-Identifier: GPL-2.0-only
/*
 * Waits beside page faults that take new huge pages, and the cost of such faults
 * (vm.hugetlb_zero_ahead).
 *
 * A thread faults on a mapping of hugetlb, page after page, and gives all of it
 * back when it is through.  Meanwhile one thread changes a flag of the same
 * mapping again and again (writer), which needs the lock of the mapping, and
 * another one maps and unmaps a page of its own (mapper), which queues behind the
 * writer.  Both have a real-time priority, so that their waits are those for
 * locks.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "bench_util.h"

#define PAUSE_NS	1000000
#define MAP_HUGE_SHIFT	26

/* The command line: see main(). */
static struct {
	long passes, pages;
} opt = {
	.passes = 20, .pages = 32,
};

/* The mapping that a thread faults on. */
struct area {
	const char *name;
	size_t page;
	long n;			/* 0: opt.pages */
	long passes;		/* 0: opt.passes */
	char *p;
	size_t len;
};

struct waits {
	const char *who;
	void (*act)(struct area *area, long nth);
	struct area *area;
	atomic_bool *stop;
	double *us;
	size_t n;
};

static void act_writer(struct area *area, long nth)
{
	if (madvise(area->p, area->len,
		    nth % 2 ? MADV_DODUMP : MADV_DONTDUMP))
		err(1, "MADV_DONTDUMP");
}

static void act_mapper(struct area *area, long nth)
{
	(void)area;
	(void)nth;
	unmap(map_anon(4 * KIB), 4 * KIB);
}

/* A bound on the noise: what others do waits for the scheduler, and this not. */
static void be_first(int priority)
{
	struct sched_param param = { .sched_priority = priority };

	if (sched_setscheduler(0, SCHED_FIFO, &param))
		err(1, "SCHED_FIFO");
}

static void *wait_main(void *arg)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	struct waits *w = arg;
	long nth = 0;
	__u64 from;

	be_first(10);
	while (!atomic_load(w->stop) && w->n < SAMPLES_MAX) {
		nanosleep(&pause, NULL);
		from = now_ns();
		w->act(w->area, nth++);
		w->us[w->n++] = (now_ns() - from) / 1e3;
	}
	return NULL;
}

static void report_waits(struct waits *w, int arm)
{
	const char *name = w->area->name;

	report(arm, "operations", w->n, "%s_%s_n", name, w->who);
	if (!w->n)
		return;
	sort_samples(w->us, w->n);
	report(arm, "us", w->us[w->n / 2], "%s_%s_p50", name, w->who);
	report(arm, "us", p99(w->us, w->n), "%s_%s_p99", name, w->who);
	report(arm, "us", w->us[w->n - 1], "%s_%s_max", name, w->who);
}

static void map_area(struct area *area)
{
	if (!area->n)
		area->n = opt.pages;
	if (!area->passes)
		area->passes = opt.passes;
	area->len = area->n * area->page;
	area->p = map_memory(NULL, area->len,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
			     __builtin_ctzl(area->page) << MAP_HUGE_SHIFT, -1);
}

static void fault_all(const struct area *area)
{
	long i;

	for (i = 0; i < area->n; i++)
		touch(area->p + i * area->page);
}

static void give_back(const struct area *area)
{
	if (madvise(area->p, area->len, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
}

/* --- 2m, 1g: waits */

static void waits_turn(int arm, void *arg)
{
	struct counters before = counters_read("hugetlb_");
	struct area *area = arg;
	atomic_bool stop = false;
	struct waits waits[] = {
		{ "writer", act_writer, area, &stop },
		{ "mapper", act_mapper, area, &stop },
	};
	pthread_t threads[ARRAY_SIZE(waits)];
	__u64 ns = 0, from;
	size_t i;
	long pass;

	for (i = 0; i < ARRAY_SIZE(waits); i++) {
		waits[i].us = calloc(SAMPLES_MAX, sizeof(*waits[i].us));
		if (!waits[i].us)
			errx(1, "no memory for samples");
		start_thread(&threads[i], wait_main, &waits[i]);
	}
	for (pass = 0; pass < area->passes; pass++) {
		from = now_ns();
		fault_all(area);
		ns += now_ns() - from;
		give_back(area);
	}
	atomic_store(&stop, true);
	for (i = 0; i < ARRAY_SIZE(waits); i++) {
		pthread_join(threads[i], NULL);
		report_waits(&waits[i], arm);
		free(waits[i].us);
	}
	report(arm, "us", ns / 1e3 / area->passes / area->n, "%s_fault_mean",
	       area->name);
	report_counters(area->name, arm, &before);
}

static void run_waits(void *arg)
{
	struct area *area = arg;

	if (area->page == 2 * MIB && !huge_pool(opt.pages))
		errx(1, "no %ld huge pages: the guest needs more memory",
		     opt.pages);
	map_area(area);
	run_turns(rounds, waits_turn, area);
	unmap(area->p, area->len);
}

/* --- cost: the instructions of a fault that nobody disturbs */

static void cost_turn(int arm, void *arg)
{
	struct area *area = arg;
	__u64 from, to;

	give_back(area);
	/* Page tables are there, and this program's own pages. */
	from = ticks();
	fault_all(area);
	to = ticks();
	report(arm, "ticks", (double)(to - from) / area->n, "cost_%s",
	       area->name);
}

static void run_cost(void *arg)
{
	struct area *area = arg;

	if (!huge_pool(opt.pages))
		errx(1, "no %ld huge pages: the guest needs more memory",
		     opt.pages);
	map_area(area);
	warm_up(cost_turn, area);
	run_turns(rounds, cost_turn, area);
	unmap(area->p, area->len);
}

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "passes", "how often all pages of 2 MiB are faulted in (20)",
		  .number = &opt.passes },
		{ "pages", "their number (32)", .number = &opt.pages },
		{ }
	};
	static struct area small = { "2m", 2 * MIB };
	static struct area giant = { "1g", GIB, .n = 1, .passes = 5 };
	static struct area alone = { "2m", 2 * MIB };
	static const struct bench_scene scenes[] = {
		{ "2m", "waits beside faults on pages of 2 MiB",
		  .run = run_waits, .arg = &small },
		{ "1g", "the same for the page of 1 GiB that is reserved",
		  .run = run_waits, .arg = &giant },
		{ "cost", "instructions of a fault", .run = run_cost,
		  .arg = &alone },
		{ }
	};
	static const struct bench bench = {
		"hugetlb_zero_ahead", options, .scenes = scenes,
	};

	bench_scenes(argc, argv, bench_parse(argc, argv, &bench), &bench);
	return 0;
}
