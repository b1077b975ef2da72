// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes as many short waits for mmap_lock as it can, and counts them.
 *
 * Usage: churn WRITERS MILLISECONDS
 *
 * Once a writer sleeps, those that run take the lock past it, in the slow path, until it
 * has waited for a few milliseconds and is served.  So each call of each thread waits, on
 * one CPU, too, and most of them for a moment.  A probe at the slow path of writers, and
 * the kernel's trace event for readers, count the waits.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench_util.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif

#define WRITERS_MAX	256
/* It takes longer than a time slice to fill. */
#define KICK		(32 * MIB)
#define PROBES		"/sys/kernel/tracing/kprobe_events"

static const struct event_count waits[] = {
	{ "writes", "churn/slow", "comm ~ \"churn*\"" },
	{ "reads", "lock/contention_begin", "comm ~ \"churn*\" && flags == 2" },
};

static char *page;
static atomic_bool over;
static _Atomic unsigned long calls;

static void *writer(void *arg)
{
	long number = (long)arg;
	char name[16];

	/* Two of a pool; more pools than the small maps have room for. */
	snprintf(name, sizeof(name), "churn-%c%ld", (char)('a' + number / 2 % 26),
		 number % 2);
	prctl(PR_SET_NAME, name);
	while (!over) {
		if (madvise(page, 4096, MADV_NORMAL))
			err(1, "madvise");
		calls++;
	}
	return arg;
}

int main(int argc, char **argv)
{
	long writers = argc > 2 ? atol(argv[1]) : 0, i;
	static pthread_t threads[WRITERS_MAX];
	__u64 from, until, ns;

	if (writers < 1 || writers > WRITERS_MAX)
		errx(1, "usage: churn WRITERS MILLISECONDS");
	page = map_anon(KICK + 4096);
	touch(page);
	/* It may be there. */
	write_text(PROBES, "p:churn/slow rwsem_down_write_slowpath");
	if (!events_open(waits, ARRAY_SIZE(waits)))
		errx(1, "this kernel has no lock:contention_begin, or takes no probe");
	from = now_ns();
	until = from + atol(argv[2]) * 1000000ULL;
	for (i = 0; i < writers; i++)
		start_thread(&threads[i], writer, (void *)i);
	/* While this one holds the lock and has lost the CPU, a writer comes, and sleeps. */
	while (now_ns() < until) {
		if (madvise(page + 4096, KICK, MADV_DONTNEED) ||
		    madvise(page + 4096, KICK, MADV_POPULATE_WRITE))
			err(1, "no memory");
	}
	over = true;
	for (i = 0; i < writers; i++)
		pthread_join(threads[i], NULL);
	ns = now_ns() - from;
	for (i = 0; i < (long)ARRAY_SIZE(waits); i++)
		printf("%s %lu\n", waits[i].name, events_counted(&waits[i]));
	printf("calls %lu\nseconds %.3f\n", calls, ns / 1e9);
	events_close(waits, ARRAY_SIZE(waits));
	return 0;
}
