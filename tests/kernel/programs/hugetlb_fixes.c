// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regression tests of our three hugetlb fixes, see SECURITY.md.  Not part of
 * any package: on a kernel without the first fix it leaves an unkillable
 * process behind, so run it only in virtual machines.
 *
 *   hugetlb_fixes move      move a mapping between 1 GiB boundaries
 *   hugetlb_fixes truncate  truncate a file while threads touch its pages
 *   hugetlb_fixes lazy      unshare a page table that an idle CPU has cached
 *
 * Exit code: 0 fixed, 1 not fixed, 2 not testable.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB		(1UL << 20)
#define GIB		(1UL << 30)
#define HUGE		(2 * MIB)
#define PAGES		16
#define WORD		0x46617578UL

#define POOL		"/sys/kernel/mm/hugepages/hugepages-2048kB/"

static long pool(const char *name)
{
	char path[128];
	long value = -1;
	FILE *f;

	snprintf(path, sizeof(path), POOL "%s", name);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%ld", &value) != 1)
		value = -1;
	fclose(f);
	return value;
}

static bool pool_set(long pages)
{
	FILE *f = fopen(POOL "nr_hugepages", "we");

	if (!f)
		return false;
	fprintf(f, "%ld\n", pages);
	return !fclose(f) && pool("nr_hugepages") == pages;
}

static int new_file(size_t size)
{
	int fd = memfd_create("fixes", MFD_CLOEXEC | MFD_HUGETLB);

	return fd >= 0 && !ftruncate(fd, size) ? fd : -1;
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* --- move */

#define MOVE_SECONDS	20

/* Address space for two mappings of 1 GiB, each aligned to 1 GiB. */
static char *aligned_pair(void)
{
	char *p = mmap(NULL, 4 * GIB, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	munmap(p, 4 * GIB);
	return (char *)(((uintptr_t)p + GIB - 1) & ~(GIB - 1));
}

static int move_child(int fd)
{
	char *from = aligned_pair(), *to;
	volatile unsigned long *word;

	if (!from || mmap(from, GIB, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
			  0) != from)
		return 2;
	*(volatile unsigned long *)(from + HUGE) = WORD;
	to = mremap(from, GIB, GIB, MREMAP_MAYMOVE | MREMAP_FIXED,
		    from + GIB);
	if (to != from + GIB)
		return 3;
	word = (volatile unsigned long *)(to + HUGE);
	return *word == WORD ? 0 : 4;
}

static int test_move(void)
{
	double end;
	pid_t pid;
	int status, fd = new_file(GIB);

	if (fd < 0)
		return 2;
	pid = fork();
	if (!pid)
		_exit(move_child(fd));
	if (pid < 0)
		return 2;
	for (end = seconds() + MOVE_SECONDS; seconds() < end;) {
		if (waitpid(pid, &status, WNOHANG) == pid) {
			printf("# the move ended with status %#x\n", status);
			if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
				return 2;
			return status ? 1 : 0;
		}
		usleep(20000);
	}
	/* Do not wait for it: it may never end. */
	kill(pid, SIGKILL);
	usleep(500000);
	printf("# still running after %d s, %s\n", MOVE_SECONDS,
	       waitpid(pid, &status, WNOHANG) == pid ? "killed" :
						       "SIGKILL does not help");
	return 1;
}

/* --- truncate */

#define TRUNCATE_SECONDS	8
#define TOUCHERS		4

static char *map;
static atomic_bool stop, pause_all;
static atomic_int parked;
static __thread sigjmp_buf past_end;

static void on_bus(int sig)
{
	siglongjmp(past_end, sig);
}

static void *toucher(void *arg)
{
	volatile unsigned long *word;
	/* volatile: used after longjmp() */
	volatile size_t i = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		if (atomic_load(&pause_all)) {
			atomic_fetch_add(&parked, 1);
			while (atomic_load(&pause_all))
				usleep(100);
			atomic_fetch_sub(&parked, 1);
			continue;
		}
		i = (i + 1) % PAGES;
		word = (volatile unsigned long *)(map + i * HUGE);
		if (!sigsetjmp(past_end, 1))
			*word = WORD;
	}
	return NULL;
}

static int test_truncate(void)
{
	struct sigaction sa = { .sa_handler = on_bus };
	long rounds = 0, left = 0, reserved = pool("resv_hugepages");
	pthread_t threads[TOUCHERS];
	int i, fd = new_file(PAGES * HUGE);
	struct stat st;
	double end;

	if (fd < 0)
		return 2;
	/* Reserve up front, so that a lost reservation shows. */
	map = mmap(NULL, PAGES * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   0);
	if (map == MAP_FAILED)
		return 2;
	sigaction(SIGBUS, &sa, NULL);
	for (i = 0; i < TOUCHERS; i++)
		if (pthread_create(&threads[i], NULL, toucher,
				   (void *)(uintptr_t)(i * PAGES / TOUCHERS)))
			return 2;
	for (end = seconds() + TRUNCATE_SECONDS; seconds() < end; rounds++) {
		usleep(2000 + rounds % 7 * 1500);
		if (ftruncate(fd, 0))
			return 2;
		atomic_store(&pause_all, true);
		while (atomic_load(&parked) < TOUCHERS)
			usleep(100);
		if (fstat(fd, &st))
			return 2;
		left += st.st_blocks > 0;
		if (ftruncate(fd, PAGES * HUGE))
			return 2;
		atomic_store(&pause_all, false);
	}
	atomic_store(&stop, true);
	for (i = 0; i < TOUCHERS; i++)
		pthread_join(threads[i], NULL);
	if (ftruncate(fd, 0) || fstat(fd, &st) || munmap(map, PAGES * HUGE))
		return 2;
	printf("# %ld of %ld truncations left pages beyond the end\n", left,
	       rounds);
	printf("# reserved pages: %ld before, %ld after\n", reserved,
	       pool("resv_hugepages"));
	return left || st.st_blocks || pool("resv_hugepages") != reserved;
}

/* --- lazy */

#define LAZY_ROUNDS	20

static char *shared;
static int wake[2], awake[2];

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* The number of TLB flush interrupts on CPU 1. */
static long tlb_interrupts(void)
{
	FILE *f = fopen("/proc/interrupts", "re");
	long count = -1;
	char line[512];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " TLB: %*d %ld", &count) == 1)
			break;
	if (f)
		fclose(f);
	return count;
}

/* A thread on CPU 1; the CPU is lazy while the thread sleeps. */
static void *sleeper(void *arg)
{
	char c;

	run_on(1);
	while (read(wake[0], &c, 1) == 1) {
		*(volatile unsigned long *)shared;
		if (write(awake[1], &c, 1) != 1)
			break;
	}
	return arg;
}

/* Another process keeps the page table alive, so it is shared each time. */
static int test_lazy(void)
{
	int i, flushed = 0, fd = new_file(GIB);
	char *place = aligned_pair(), c = 0;
	pthread_t thread;
	long before;
	pid_t pid;

	if (fd < 0 || !place || pipe(wake) || pipe(awake) ||
	    tlb_interrupts() < 0)
		return 2;
	run_on(0);
	for (i = -1; i < LAZY_ROUNDS; i++) {
		shared = mmap(place, GIB, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
		if (shared != place)
			return 2;
		*(volatile unsigned long *)shared = WORD;
		if (i < 0) {
			pid = fork();
			if (!pid) {
				*(volatile unsigned long *)shared;
				pause();
			}
			if (pid < 0 ||
			    pthread_create(&thread, NULL, sleeper, NULL))
				return 2;
			usleep(200000);
			continue;
		}
		if (write(wake[1], &c, 1) != 1 || read(awake[0], &c, 1) != 1)
			return 2;
		usleep(20000);
		before = tlb_interrupts();
		/*
		 * Unshares the page table without freeing any.  mprotect()
		 * would not show the bug: it nests mmu_gathers, and so ends up
		 * flushing everything everywhere.
		 */
		if (madvise(shared, GIB, MADV_DONTNEED))
			return 2;
		flushed += tlb_interrupts() > before;
	}
	kill(pid, SIGKILL);
	printf("# the idle CPU was notified %d of %d times\n", flushed,
	       LAZY_ROUNDS);
	/* Now and then it may be busy and have another mm loaded. */
	return flushed < LAZY_ROUNDS / 2;
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	/* Keep the output even if a process never ends. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!pool_set(PAGES + 4)) {
		printf("# cannot get %d huge pages of 2 MiB\n", PAGES + 4);
		return 2;
	}
	if (!strcmp(what, "move"))
		return test_move();
	if (!strcmp(what, "truncate"))
		return test_truncate();
	if (!strcmp(what, "lazy"))
		return test_lazy();
	fprintf(stderr, "usage: hugetlb_fixes move|truncate|lazy\n");
	return 2;
}
