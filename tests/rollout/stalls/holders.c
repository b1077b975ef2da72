// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes on purpose that threads wait for locks of the memory manager, and interrupts
 * of every CPU for page tables.
 *
 * holders plays most scenes, each until somebody was held up.
 * holders ROUNDS SCENE plays one of all scenes, with the same work each time.
 *
 * Each scene has a holder with the name of the scene, and a waiter, both of which
 * work round after round.  A line "SCENE MS" says how long the waiter was held up at
 * most, or "SCENE NUMBER" how often the interrupts were caused.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

#define PAGE		4096UL
#define HUGE		(2 * MIB)
#define PAGES		24
/* Until the waiter is held up for so long; but not for ever. */
#define ENOUGH_NS	2000000
#define MOST_ROUNDS	300
/* Small pages: from 64 MiB on, the switches act. */
#define SMALL		(128 * MIB)
/* Of a thread that maps memory now and then, and of one that does it often. */
#define PAUSE_US	200000
#define SHORT_PAUSE_US	10000
#define MOMENT_US	1000
#define READ_SIZE	(16 * MIB)
/* For what a kernel thread does within a second. */
#define GIVE_UP_NS	(120 * 1000000000ULL)
/* Of sparse files: each GiB has one page and a page table. */
#define SPARSE		(PAGES * GIB)
#define COLLAPSES	8

static int least_rounds = 4;
/* No more rounds than that, whether or not somebody is held up. */
static bool as_many;

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
	/* Of the waiter, between two rounds. */
	long pause_us;
	/* The waiter gets the CPU when it wants it: there may be only one. */
	bool urgent;
};

static char *memory;
static size_t size;
static const struct scene *scene;
static atomic_bool held;
static _Atomic __u64 longest;
/* Rounds of the waiter. */
static atomic_ulong waits;

static void be_urgent(void)
{
	struct sched_param param = { .sched_priority = 10 };

	if (sched_setscheduler(0, SCHED_FIFO, &param))
		err(1, "SCHED_FIFO");
}

static void *waiter(void *arg)
{
	be("waiter");
	if (scene->urgent)
		be_urgent();
	while (!held) {
		__u64 from = now_ns(), ns;

		scene->wait();
		ns = now_ns() - from;
		if (ns > longest)
			longest = ns;
		waits++;
		if (scene->pause_us)
			usleep(scene->pause_us);
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
	for (i = 0; i < least_rounds || (!as_many && longest < ENOUGH_NS); i++) {
		unsigned long before = waits;

		if (!as_many && i == MOST_ROUNDS)
			errx(1, "%s: nobody was held up", scene->name);
		/* The waiter has its turn, also if a round takes no time. */
		while (as_many && waits == before)
			usleep(100);
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

/* Likewise, of a file. */
static void fill_file(void)
{
	char *p;

	for (p = memory; p < memory + size; p += HUGE)
		touch(p);
	advise(memory, size, MADV_REMOVE);
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

static void fault_on_hugetlb(const struct scene *faults)
{
	size = PAGES * HUGE;
	memory = map_memory(NULL, size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
	play(faults);
	unmap(memory, size);
}

static void hugetlb_faults(void)
{
	static const struct scene faults = { "hugetlb-faults", fault_in, change_mapping };

	fault_on_hugetlb(&faults);
}

static void private_and_pause(void)
{
	static const struct scene faults = { "hugetlb-private", fault_in, change_mapping,
					     MOMENT_US, true };

	fault_on_hugetlb(&faults);
}

static void fill_huge_file(const struct scene *filled)
{
	int fd;

	size = PAGES * HUGE;
	fd = huge_file(size);
	memory = map_memory(NULL, size, MAP_SHARED, fd);
	play(filled);
	unmap(memory, size);
	close(fd);
}

static void hugetlb_filled(void)
{
	static const struct scene filled = { "hugetlb-filled", fill_file, change_mapping };

	fill_huge_file(&filled);
}

/* The same, beside a thread that pauses. */
static void file_and_pause(void)
{
	static const struct scene filled = { "hugetlb-file", fill_file, change_mapping,
					     MOMENT_US, true };

	fill_huge_file(&filled);
}

static void thp_faults(void)
{
	static const struct scene faults = { "thp-faults", fault_in, change_mapping };

	size = PAGES * HUGE;
	memory = map_memory(reserve(size, HUGE, 0), size,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
	advise(memory, size, MADV_HUGEPAGE);
	play(&faults);
	unmap(memory, size);
}

static void hugetlb_dropped(void)
{
	static const struct scene dropped = { "hugetlb-dropped", drop_all, touch_each };
	int fd = huge_file(SPARSE);

	size = SPARSE;
	memory = map_memory(NULL, size, MAP_SHARED | MAP_NORESERVE, fd);
	play(&dropped);
	unmap(memory, size);
	close(fd);
}

/* --- one call for many small pages, beside a thread that maps a page now and then */

static void map_small(void)
{
	size = SMALL;
	memory = map_anon(size);
	advise(memory, size, MADV_NOHUGEPAGE);
}

/* With page faults, which hold up nobody who maps. */
static void fill_small(void)
{
	char *p;

	for (p = memory; p < memory + size; p += PAGE)
		touch(p);
}

static void unmap_small(void)
{
	map_small();
	fill_small();
	unmap(memory, size);
}

static void drop_small(void)
{
	fill_small();
	drop_all();
}

static void lock_small(void)
{
	if (mlock(memory, size) || munlock(memory, size))
		err(1, "mlock");
}

static void map_page(void)
{
	unmap(map_anon(PAGE), PAGE);
}

static void small_unmapped(void)
{
	static const struct scene unmapped = { "unmapped", unmap_small, map_page, PAUSE_US };

	play(&unmapped);
}

static void small_dropped(void)
{
	static const struct scene dropped = { "dropped", drop_small, map_page, PAUSE_US };

	map_small();
	play(&dropped);
	unmap(memory, size);
}

static void lock_and_unlock(const struct scene *locked)
{
	map_small();
	fill_small();
	play(locked);
	unmap(memory, size);
}

static void small_locked(void)
{
	static const struct scene locked = { "locked", lock_small, map_page, PAUSE_US };

	lock_and_unlock(&locked);
}

static void locked_often(void)
{
	static const struct scene locked = { "locked-often", lock_small, map_page, SHORT_PAUSE_US };

	lock_and_unlock(&locked);
}

/* --- the kernel on its own account */

#define KHUGEPAGED	"/sys/kernel/mm/transparent_hugepage/khugepaged/"
#define NUMA_BALANCING	"/proc/sys/kernel/numa_balancing"
#define DEBUGFS		"/sys/kernel/debug"
#define NUMA_TIMES	DEBUGFS "/sched/numa_balancing/"

static void pages_to_collapse(void)
{
	__u64 give_up = now_ns() + GIVE_UP_NS;
	long before = vmstat_read("thp_collapse_alloc");
	long enough = size / HUGE / 2;

	drop_all();
	advise(memory, size, MADV_NOHUGEPAGE);
	fill_small();
	advise(memory, size, MADV_HUGEPAGE);
	while (vmstat_read("thp_collapse_alloc") < before + enough) {
		if (now_ns() > give_up)
			errx(1, "khugepaged makes no huge pages");
		usleep(10000);
	}
}

/* The holder is the kernel thread khugepaged. */
static void huge_pages(void)
{
	static const struct scene pages = { "huge-pages", pages_to_collapse, map_page };

	if (write_text(KHUGEPAGED "scan_sleep_millisecs", "0") ||
	    write_text(KHUGEPAGED "pages_to_scan", "65536"))
		err(1, KHUGEPAGED);
	size = COLLAPSES * HUGE;
	memory = map_memory(reserve(size, HUGE, 0), size,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
	play(&pages);
	unmap(memory, size);
	if (write_text(KHUGEPAGED "scan_sleep_millisecs", "10000"))
		err(1, KHUGEPAGED);
}

/* A thread's memory is scanned after some of its own CPU time. */
static void use_memory(void)
{
	__u64 give_up = now_ns() + GIVE_UP_NS;
	long before = vmstat_read("numa_pte_updates");

	while (vmstat_read("numa_pte_updates") == before) {
		if (now_ns() > give_up)
			errx(1, "NUMA balancing does not scan");
		fill_small();
	}
}

static void numa_scan(void)
{
	static const struct scene scan = { "numa-scan", use_memory, map_page };

	/* Later scans would come once a minute. */
	if (access(NUMA_TIMES, F_OK) && mount("none", DEBUGFS, "debugfs", 0, NULL))
		err(1, DEBUGFS);
	if (write_text(NUMA_TIMES "scan_period_min_ms", "100") ||
	    write_text(NUMA_TIMES "scan_period_max_ms", "200"))
		err(1, NUMA_TIMES);
	if (write_text(NUMA_BALANCING, "1"))
		err(1, NUMA_BALANCING);
	map_small();
	play(&scan);
	unmap(memory, size);
	if (write_text(NUMA_BALANCING, "0"))
		err(1, NUMA_BALANCING);
}

/* --- another process reads the memory, of which there are no pages yet */

static void empty_memory(void)
{
	drop_all();
	usleep(SHORT_PAUSE_US);
}

static void read_memory(pid_t parent, void *buffer)
{
	struct iovec to = { buffer, READ_SIZE }, from = { memory, READ_SIZE };

	be("remote");
	end_with(parent);
	for (;;)
		if (process_vm_readv(parent, &to, 1, &from, 1, 0) != READ_SIZE)
			err(1, "process_vm_readv");
}

/* The holder is the other process. */
static void remote(void)
{
	static const struct scene emptied = { "emptied", empty_memory, map_page };
	pid_t self = getpid(), child;
	void *buffer;

	map_small();
	buffer = map_anon(READ_SIZE);
	child = fork();
	if (child < 0)
		err(1, "fork");
	if (!child)
		read_memory(self, buffer);
	play(&emptied);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	unmap(buffer, READ_SIZE);
	unmap(memory, size);
}

/* --- page faults of one page: one clears it, the other waits */

static pthread_barrier_t both;

static void *fault_each(void *arg)
{
	double *ms = arg;
	char *p;
	int i;

	be("hugetlb-mutex");
	for (i = 0; i < least_rounds; i++) {
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

static void hugetlb_mutex(void)
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
	/* One of them has slept in munmap(): it had to wait for the other. */
	atomic_bool slept;
};

static long sleeps(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage))
		err(1, "getrusage");
	return usage.ru_nvcsw;
}

/*
 * Both map all of the file, touch a page of each GiB, and unmap it at the same time.  If
 * they share no page tables, until one of them has waited.
 */
static void map_and_unmap(struct shared *shared, int which, int fd, size_t shift)
{
	char *place = reserve(SPARSE, GIB, shift * which), *p;
	long before;
	__u64 from;
	double ms;
	int i;

	/* Between the barriers of two rounds, it is the same for both. */
	for (i = 0; i < least_rounds || (shift && !as_many && !shared->slept); i++) {
		if (shift && !as_many && i == MOST_ROUNDS)
			errx(1, "hugetlb-unmap: nobody was held up");
		p = map_memory(place, SPARSE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd);
		for (size_t gib = 0; gib < SPARSE / GIB; gib++)
			touch(p + gib * GIB);
		pthread_barrier_wait(&shared->both);
		before = sleeps();
		from = now_ns();
		unmap(p, SPARSE);
		ms = (now_ns() - from) / 1e6;
		if (sleeps() != before)
			shared->slept = true;
		if (ms > shared->ms[which])
			shared->ms[which] = ms;
		pthread_barrier_wait(&shared->both);
	}
}

/* With @shift 0 they share page tables. */
static void with_processes(const char *name, size_t shift)
{
	struct shared *shared = (void *)map_memory(NULL, sizeof(*shared),
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
		printf("%s %d\n", name, least_rounds);
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
	for (p = memory, end = memory + size; p < end; p += PAGE)
		touch(p);
	advise(memory, size, MADV_HUGEPAGE);
	for (p = memory; p < end; p += HUGE)
		advise(p, HUGE, MADV_COLLAPSE);
	unmap(memory, size);
	printf("collapse %d\n", COLLAPSES);
}

static void hugetlb_unmap(void)
{
	with_processes("hugetlb-unmap", HUGE);
}

static void hugetlb_unshare(void)
{
	with_processes("hugetlb-unshare", 0);
}

/* The name of the scene and of its holder, which find_name() looks for. */
static const struct {
	const char *name;
	void (*run)(void);
	/* Only if asked for. */
	bool asked;
} scenes[] = {
	{ "hugetlb-faults", hugetlb_faults },
	{ "hugetlb-filled", hugetlb_filled },
	{ "thp-faults", thp_faults },
	{ "hugetlb-dropped", hugetlb_dropped },
	{ "hugetlb-mutex", hugetlb_mutex },
	{ "hugetlb-unmap", hugetlb_unmap },
	{ "hugetlb-unshare", hugetlb_unshare },
	{ "collapse", collapse },
	{ "huge-pages", huge_pages },
	{ "numa-scan", numa_scan },
	{ "remote", remote },
	{ "hugetlb-private", private_and_pause, true },
	{ "hugetlb-file", file_and_pause, true },
	{ "unmapped", small_unmapped, true },
	{ "dropped", small_dropped, true },
	{ "locked", small_locked, true },
	{ "locked-often", locked_often, true },
};

int main(int argc, char **argv)
{
	size_t i;

	if (!huge_pool(2 * PAGES))
		errx(1, "no memory for huge pages");
	if (argc == 3) {
		least_rounds = atoi(argv[1]);
		as_many = true;
		scenes[find_name("scene", argv[2], scenes)].run();
		return 0;
	}
	for (i = 0; i < ARRAY_SIZE(scenes); i++)
		if (!scenes[i].asked)
			scenes[i].run();
	return 0;
}
