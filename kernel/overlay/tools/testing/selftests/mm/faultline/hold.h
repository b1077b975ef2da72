/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Threads that fault, and are held where the kernel lets them be (the *_hold and
 * *_held files in debugfs), until the test lets them go.
 */
#ifndef HOLD_H
#define HOLD_H

#include <stdlib.h>
#include <unistd.h>

#include "faultline_util.h"

/* Until an event comes. */
#define EVENT_NS	(60 * 1000000000ULL)

/* A thread that faults on one page, once it is told to. */
struct faulter {
	char *page;
	__u64 word;		/* that it writes */
	pthread_t thread;
	int signal;		/* what it got */
	atomic_bool done;
};

struct faulters {
	struct faulter *list;
	int n;			/* threads that run */
};

static atomic_bool go;
static atomic_int ready;

static inline void *fault_main(void *arg)
{
	struct faulter *f = arg;

	atomic_fetch_add(&ready, 1);
	while (!atomic_load(&go))
		usleep(1000);
	f->signal = try_write(f->page, f->word);
	atomic_store(&f->done, true);
	return NULL;
}

/*
 * Starts @n threads, each for a huge page of @map.  They have run: a fault on their
 * stacks would be held as well.
 */
static inline bool faulters_start(struct faulters *all, int n, char *map,
				  __u64 word)
{
	if (!all->list)
		all->list = calloc(n, sizeof(*all->list));
	if (!all->list)
		return false;
	atomic_store(&ready, 0);
	atomic_store(&go, false);
	for (; all->n < n; all->n++) {
		struct faulter *f = &all->list[all->n];

		f->page = map + all->n * pmd_size();
		f->word = word;
		if (pthread_create(&f->thread, NULL, fault_main, f))
			return false;
	}
	while (atomic_load(&ready) < n)
		usleep(1000);
	return true;
}

static inline void faulters_join(struct faulters *all)
{
	atomic_store(&go, true);
	while (all->n)
		pthread_join(all->list[--all->n].thread, NULL);
}

/* The number that comes within the time, or the last one that is not @wanted. */
static inline long comes(long wanted, long (*now)(void))
{
	__u64 end = now_ns() + EVENT_NS;
	long n = now();

	while (n != wanted && now_ns() < end) {
		usleep(1000);
		n = now();
	}
	return n;
}

#endif /* HOLD_H */
