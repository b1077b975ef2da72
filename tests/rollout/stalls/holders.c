// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes on purpose that threads wait for locks of huge pages, and interrupts of
 * every CPU for page tables.
 *
 * Each scene has a holder with the name of the scene, and a waiter, both of which
 * work round after round.  A line "SCENE MS" says how long the waiter was held up at
 * most, or "SCENE NUMBER" how often the interrupts were caused.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench_util.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

#define HUGE		(2 * MIB)
#define GIB		(1024 * MIB)
#define PAGES		24
#define ROUNDS		4
/* Until the waiter is held up for so long; but not for ever. */
#define ENOUGH_NS	2000000
#define MOST_ROUNDS	300
/* Of sparse files: each GiB has one page and a page table. */
#define SPARSE		(PAGES * GIB)
#define COLLAPSES	8

static void be(const char *name)
{
	prctl(PR_SET_NAME, name);
}

/* @count bytes at a multiple of @align plus @shift that nobody else uses. */
static char *reserve(size_t size, size_t align, size_t shift)
{
	char *p = mmap(NULL, size + 2 * align, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		err(1, "%zu MiB of addresses", size / MIB);
	return (char *)(((uintptr_t)p + align - 1) / align * align) + shift;
}

static int huge_file(size_t size)
{
	int fd = memfd_create("holders", MFD_CLOEXEC | MFD_HUGETLB);

	if (fd < 0 || ftruncate(fd, size))
		err(1, "a hugetlb file");
	return fd;
}

static void advise(char *p, size_t size, int advice)
{
	if (madvise(p, size, advice))
		err(1, "madvise(%d)", advice);
}

/* --- a holder and a waiter, threads of one process */

struct scene {
	const char *name;
	/* One round of each. */
	void (*hold)(void);
	void (*wait)(void);
};

static char *memory;
static size_t size;
static const struct scene *scene;
static atomic_bool held;
static _Atomic __u64 longest;

static void *waiter(void *arg)
{
	be("waiter");
	while (!held) {
		__u64 from = now_ns(), ns;

		scene->wait();
		ns = now_ns() - from;
		if (ns > longest)
			longest = ns;
	}
	return arg;
}

static void play(const struct scene *which)
{
	pthread_t thread;
	int i;

	scene = which;
	held = false;
	longest = 0;
	be(scene->name);
	start_thread(&thread, waiter, NULL);
	for (i = 0; i < ROUNDS || longest < ENOUGH_NS; i++) {
		if (i == MOST_ROUNDS)
			errx(1, "%s: nobody was held up", scene->name);
		scene->hold();
	}
	held = true;
	pthread_join(thread, NULL);
	printf("%s %.3f\n", scene->name, longest / 1e6);
}

/* Clears each huge page again. */
static void fault_in(void)
{
	char *p;

	for (p = memory; p < memory + size; p += HUGE)
		touch(p);
	advise(memory, size, MADV_DONTNEED);
}

/* Takes mmap_lock and the lock of the mapping. */
static void change_mapping(void)
{
	advise(memory, size, MADV_DONTFORK);
	advise(memory, size, MADV_DOFORK);
}

static void drop_all(void)
{
	advise(memory, size, MADV_DONTNEED);
}

static void touch_each(void)
{
	char *p;

	for (p = memory; p < memory + size && !held; p += GIB)
		touch(p);
}

static void with_threads(void)
{
	static const struct scene faults = { "hugetlb-faults", fault_in, change_mapping };
	static const struct scene thp = { "thp-faults", fault_in, change_mapping };
	static const struct scene dropped = { "hugetlb-dropped", drop_all, touch_each };
	int fd;

	size = PAGES * HUGE;
	memory = map_memory(NULL, size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
	play(&faults);
	unmap(memory, size);

	memory = map_memory(reserve(size, HUGE, 0), size,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
	advise(memory, size, MADV_HUGEPAGE);
	play(&thp);
	unmap(memory, size);

	size = SPARSE;
	fd = huge_file(size);
	memory = map_memory(NULL, size, MAP_SHARED | MAP_NORESERVE, fd);
	play(&dropped);
	unmap(memory, size);
	close(fd);
}

/* --- page faults of one page: one clears it, the other waits */

static pthread_barrier_t both;

static void *fault_each(void *arg)
{
	double *ms = arg;
	char *p;
	int i;

	be("hugetlb-mutex");
	for (i = 0; i < ROUNDS; i++) {
		for (p = memory; p < memory + size; p += HUGE) {
			__u64 from;

			pthread_barrier_wait(&both);
			from = now_ns();
			touch(p);
			if ((now_ns() - from) / 1e6 > *ms)
				*ms = (now_ns() - from) / 1e6;
		}
		if (pthread_barrier_wait(&both) == PTHREAD_BARRIER_SERIAL_THREAD)
			advise(memory, size, MADV_DONTNEED);
	}
	return NULL;
}

static void with_mutex(void)
{
	double ms[2] = {};
	pthread_t thread;

	size = PAGES * HUGE;
	memory = map_memory(NULL, size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
	pthread_barrier_init(&both, NULL, 2);
	start_thread(&thread, fault_each, &ms[0]);
	fault_each(&ms[1]);
	pthread_join(thread, NULL);
	unmap(memory, size);
	printf("hugetlb-mutex %.3f\n", ms[ms[1] > ms[0]]);
}

/* --- two processes with one hugetlb file */

struct shared {
	pthread_barrier_t both;
	double ms[2];
};

/* Both map all of the file, touch a page of each GiB, and unmap it at the same time. */
static void map_and_unmap(struct shared *shared, int which, int fd, size_t shift)
{
	char *place = reserve(SPARSE, GIB, shift * which), *p;
	__u64 from;
	double ms;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		p = map_memory(place, SPARSE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd);
		for (size_t gib = 0; gib < SPARSE / GIB; gib++)
			touch(p + gib * GIB);
		pthread_barrier_wait(&shared->both);
		from = now_ns();
		unmap(p, SPARSE);
		ms = (now_ns() - from) / 1e6;
		if (ms > shared->ms[which])
			shared->ms[which] = ms;
		pthread_barrier_wait(&shared->both);
	}
}

/* With @shift 0 they share page tables. */
static void with_processes(const char *name, size_t shift)
{
	struct shared *shared = map_memory(NULL, sizeof(*shared),
					   MAP_SHARED | MAP_ANONYMOUS, -1);
	pthread_barrierattr_t attr;
	int fd = huge_file(SPARSE);
	pid_t child;

	be(name);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->both, &attr, 2);
	child = fork();
	if (child < 0)
		err(1, "fork");
	map_and_unmap(shared, !child, fd, shift);
	if (!child)
		_exit(0);
	if (reap(child))
		errx(1, "%s: the second process failed", name);
	if (shift)
		printf("%s %.3f\n", name, shared->ms[shared->ms[1] > shared->ms[0]]);
	else
		printf("%s %d\n", name, ROUNDS);
	close(fd);
}

/* --- small pages become a huge page */

static void collapse(void)
{
	char *p, *end;

	be("collapse");
	size = COLLAPSES * HUGE;
	memory = map_memory(reserve(size, HUGE, 0), size,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
	advise(memory, size, MADV_NOHUGEPAGE);
	for (p = memory, end = memory + size; p < end; p += 4096)
		touch(p);
	advise(memory, size, MADV_HUGEPAGE);
	for (p = memory; p < end; p += HUGE)
		advise(p, HUGE, MADV_COLLAPSE);
	unmap(memory, size);
	printf("collapse %d\n", COLLAPSES);
}

int main(void)
{
	if (!huge_pool(2 * PAGES))
		errx(1, "no memory for huge pages");
	with_threads();
	with_mutex();
	with_processes("hugetlb-unmap", HUGE);
	with_processes("hugetlb-unshare", 0);
	collapse();
	return 0;
}
