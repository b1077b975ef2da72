// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regression tests of our hugetlb fixes, see SECURITY.md.  Not part of any
 * package: on a kernel without the first fix it leaves an unkillable process
 * behind.  So it runs only in a virtual machine, where FAULTLINE_GUEST is set.
 *
 *   hugetlb_fixes move      move a mapping between 1 GiB boundaries
 *   hugetlb_fixes truncate  truncate a file while threads touch its pages
 *   hugetlb_fixes copy      the same, with UFFDIO_COPY instead of touching
 *   hugetlb_fixes own       truncate a file with a page fault in flight
 *   hugetlb_fixes other     truncate a file with one of another file in flight
 *   hugetlb_fixes starved   page fault while a woken truncation cannot run
 *   hugetlb_fixes starved-copy  the same, with UFFDIO_COPY
 *   hugetlb_fixes lazy      unshare a page table that an idle CPU has cached
 *   hugetlb_fixes discard   discard reserved pages of a pool that has shrunk
 *   hugetlb_fixes nodes     the same, with pages on two nodes
 *   hugetlb_fixes min-size  free pages of a mount with min_size, in such a pool
 *   hugetlb_fixes pinned    unmap a pinned page
 *   hugetlb_fixes pinned-mount  free a pinned page of a mount with min_size
 *
 * Exit code: 0 fixed, 1 not fixed, 2 not testable.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faultline_util.h"

#define HUGE		(2 * MIB)
#define PAGES		16
#define WORD		0x46617578UL

#define POOL		"/sys/kernel/mm/hugepages/hugepages-2048kB/"

/* Negative if a counter was decremented below 0, too. */
static long pool(const char *name)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), POOL "%s", name);
	return read_text(path, text, sizeof(text)) ?
		       -1 : (long)strtoul(text, NULL, 10);
}

static bool pool_set(long pages)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld\n", pages);
	return !write_text(POOL "nr_hugepages", text) &&
	       pool("nr_hugepages") == pages;
}

static int new_file(size_t size)
{
	int fd = memfd_create("fixes", MFD_CLOEXEC | MFD_HUGETLB);

	return fd >= 0 && !ftruncate(fd, size) ? fd : -1;
}

static double seconds(void)
{
	return now_ns() / 1e9;
}

static void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* --- move */

/* Until it should have ended, see EVENT_SECONDS. */
#define MOVE_SECONDS	60
#define MOVE_LOOKS	500

static int move_child(int fd)
{
	char *from = free_range(2 * GIB), *to;

	if (!from || mmap(from, GIB, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
			  0) != from)
		return 2;
	word_write(from + HUGE, WORD);
	to = mremap(from, GIB, GIB, MREMAP_MAYMOVE | MREMAP_FIXED,
		    from + GIB);
	if (to != from + GIB)
		return 3;
	return word_read(to + HUGE) == WORD ? 0 : 4;
}

static int test_move(void)
{
	double end;
	pid_t pid;
	int status, looks, fd = new_file(GIB);

	if (fd < 0)
		return 2;
	pid = fork();
	if (!pid)
		_exit(move_child(fd));
	if (pid < 0)
		return 2;
	end = seconds() + MOVE_SECONDS;
	for (looks = 0; looks < MOVE_LOOKS || seconds() < end; looks++) {
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
static atomic_int parked, copied;

static void park(void)
{
	atomic_fetch_add(&parked, 1);
	while (atomic_load(&pause_all))
		usleep(100);
	atomic_fetch_sub(&parked, 1);
}

static void *toucher(void *arg)
{
	size_t i = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		if (atomic_load(&pause_all)) {
			park();
			continue;
		}
		i = (i + 1) % PAGES;
		/* SIGBUS: beyond the end. */
		try_write(map + i * HUGE, WORD);
	}
	return NULL;
}

static int uffd;
static char *source;

/* Opens a userfaultfd for @len bytes of map, and fills a page to copy from. */
static bool copier_prepare(size_t len)
{
	uffd = uffd_open(0, NULL);
	source = malloc(HUGE);
	if (uffd < 0 || !source)
		return false;
	memset(source, 1, HUGE);
	return !uffd_register(uffd, map, len, UFFDIO_REGISTER_MODE_MISSING);
}

static void *copier(void *arg)
{
	size_t i = (uintptr_t)arg;

	while (!atomic_load(&stop)) {
		struct uffdio_copy copy = {
			.src = (uintptr_t)source,
			.len = HUGE,
		};

		if (atomic_load(&pause_all)) {
			park();
			continue;
		}
		i = (i + 1) % PAGES;
		copy.dst = (uintptr_t)map + i * HUGE;
		/* The page is there already, or beyond the end. */
		if (ioctl(uffd, UFFDIO_COPY, &copy) && errno != EEXIST &&
		    errno != EFAULT) {
			perror("# UFFDIO_COPY");
			exit(2);
		}
		atomic_fetch_add(&copied, copy.copy == HUGE);
	}
	return NULL;
}

/* Each thread adds pages to the file until it finds them beyond the end. */
static int test_truncate(void *(*thread)(void *))
{
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
	if (thread == copier && !copier_prepare(PAGES * HUGE))
		return 2;
	catch_faults();
	for (i = 0; i < TOUCHERS; i++)
		if (pthread_create(&threads[i], NULL, thread,
				   (void *)(uintptr_t)(i * PAGES / TOUCHERS)))
			return 2;
	end = seconds() + TRUNCATE_SECONDS;
	/* Longer, if nothing was copied: up to a minute. */
	for (; seconds() < end || (thread == copier && !atomic_load(&copied) &&
				   seconds() < end + 60); rounds++) {
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
	if (thread == copier) {
		printf("# %d pages copied\n", atomic_load(&copied));
		if (!atomic_load(&copied))
			return 2;
	}
	return left || st.st_blocks || pool("resv_hugepages") != reserved;
}

/* --- own, other, starved */

/*
 * A process that is preempted while it clears a huge page in a page fault holds
 * a fault mutex until it runs again.  It does so on HELD_CPU, at a real-time
 * priority below that of the hog, which preempts it for as long as it is told.
 */
#define HELD_CPU	1
#define STARVED_PRIORITY	1
#define HELD_PRIORITY	2
#define HOG_PRIORITY	50
#define HELD_PAGES	4
#define FILE_PAGES	8
/*
 * Bound on waiting for an event: so long, and so many looks.  A host that takes the CPU
 * away lets the time pass with hardly a look, and without the processes on the same CPU.
 */
#define EVENT_SECONDS	50
#define EVENT_LOOKS	1000

static struct {
	atomic_bool run;	/* the hog must run */
	atomic_bool running;	/* the hog does */
	atomic_bool hold;	/* the process must add no further page */
	atomic_bool keep;	/* and then keep its CPU busy */
	atomic_bool keeping;	/* it adds no further page */
} *shared_state;
static int hog_pipe[2];
static pid_t held, hog;

/* For another process, or 0. */
static bool run_real_time(pid_t pid, int priority)
{
	struct sched_param param = { .sched_priority = priority };
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(HELD_CPU, &set);
	return !sched_setaffinity(pid, sizeof(set), &set) &&
	       !sched_setscheduler(pid, SCHED_FIFO, &param);
}

static void hog_main(void)
{
	char c;

	if (!run_real_time(0, HOG_PRIORITY))
		_exit(2);
	while (read(hog_pipe[0], &c, 1) == 1) {
		atomic_store(&shared_state->running, true);
		while (atomic_load(&shared_state->run))
			;
		atomic_store(&shared_state->running, false);
	}
	_exit(0);
}

static void on_bus_exit(int sig)
{
	(void)sig;
	_exit(0);
}

static void held_end(void)
{
	atomic_store(&shared_state->keeping, true);
	while (atomic_load(&shared_state->keep))
		;
	_exit(0);
}

/* Adds pages to the file, and punches them out, again and again. */
static void held_main(int fd)
{
	char *p = mmap(NULL, FILE_PAGES * HUGE, PROT_READ | PROT_WRITE,
		       MAP_SHARED, fd, 0);
	size_t i;

	if (p == MAP_FAILED || !run_real_time(0, HELD_PRIORITY))
		_exit(2);
	signal(SIGBUS, on_bus_exit);
	for (;;) {
		for (i = 0; i < HELD_PAGES; i++) {
			if (atomic_load(&shared_state->hold))
				held_end();
			*(volatile char *)(p + i * HUGE) = 1;
		}
		if (atomic_load(&shared_state->hold))
			held_end();
		if (madvise(p, HELD_PAGES * HUGE, MADV_REMOVE))
			_exit(2);
	}
}

/* The kernel stack of a process; valid until the next call. */
static char *stack_of(pid_t pid)
{
	static char text[4096];
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stack", pid);
	if (read_text(path, text, sizeof(text)))
		text[0] = '\0';
	return text;
}

static bool stack_has(pid_t pid, const char *name)
{
	return strstr(stack_of(pid), name);
}

static void print_stack(pid_t pid)
{
	char *line;

	for (line = strtok(stack_of(pid), "\n"); line;
	     line = strtok(NULL, "\n"))
		printf("#   %s\n", line);
}

/* D: sleeps uninterruptibly, R: runs or could run */
static char state_of(pid_t pid)
{
	return task_state(pid, pid);
}

static bool is_blocked(pid_t pid)
{
	return state_of(pid) == 'D';
}

/* Has the child ended?  It stays a zombie. */
static bool has_ended(pid_t pid)
{
	siginfo_t info = { 0 };

	return !waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) &&
	       info.si_pid == pid;
}

#define WAIT_FOR(condition) ({						\
	double began_ = seconds();					\
	int looks_ = 0;							\
	bool met_;							\
									\
	while (!(met_ = (condition)) &&					\
	       (++looks_ < EVENT_LOOKS ||				\
		seconds() - began_ < EVENT_SECONDS))			\
		usleep(1000);						\
	if (!met_)							\
		printf("# not after %.0f s and %d looks: %s\n",		\
		       seconds() - began_, looks_, #condition);		\
	met_;								\
})

static bool hog_start(void)
{
	char c = 0;

	atomic_store(&shared_state->run, true);
	return write(hog_pipe[1], &c, 1) == 1 &&
	       WAIT_FOR(atomic_load(&shared_state->running));
}

static bool hog_stop(void)
{
	atomic_store(&shared_state->run, false);
	return WAIT_FOR(!atomic_load(&shared_state->running));
}

/* The held process adds a page, and its fault mutex is held. */
static bool is_held(void)
{
	return atomic_load(&shared_state->running) &&
	       stack_has(held, "folio_zero_user");
}

/* Starts the two processes, and preempts the one while it adds a page. */
static bool hold_fault(int fd)
{
	double end = seconds() + EVENT_SECONDS;

	run_on(0);
	shared_state = map_shared(sizeof(*shared_state));
	if (!shared_state || pipe(hog_pipe))
		return false;
	hog = fork();
	if (!hog)
		hog_main();
	held = fork();
	if (!held)
		held_main(fd);
	while (seconds() < end) {
		if (!hog_start())
			return false;
		if (is_held())
			return true;
		if (!hog_stop() || has_ended(held) || has_ended(hog))
			return false;
		usleep(1000);
	}
	printf("# no page fault was preempted\n");
	return false;
}

static bool release_fault(void)
{
	bool ended;

	atomic_store(&shared_state->hold, true);
	ended = hog_stop() && WAIT_FOR(has_ended(held)) && !reap(held);
	kill(hog, SIGKILL);
	waitpid(hog, NULL, 0);
	return ended;
}

static pid_t start_truncation(int fd)
{
	pid_t pid = fork();

	if (!pid)
		_exit(ftruncate(fd, 0) ? 2 : 0);
	return pid;
}

/* Touches a page that the held process does not. */
static pid_t start_fault(void)
{
	pid_t pid = fork();

	if (!pid) {
		signal(SIGBUS, on_bus_exit);
		*(volatile char *)(map + HELD_PAGES * HUGE) = 1;
		_exit(0);
	}
	return pid;
}

/* Does the process wait, but not for a fault mutex? */
static bool waits_outside(pid_t pid)
{
	return is_blocked(pid) && !stack_has(pid, "mutex_lock");
}

/*
 * Maps the file, holds a page fault of it, and starts a truncation, which ends or
 * waits.  Returns the process that truncates, or -1.
 */
static pid_t truncate_beside_fault(int fd)
{
	pid_t truncation;

	if (fd < 0)
		return -1;
	/* Now, because mmap() waits for a truncation. */
	map = mmap(NULL, FILE_PAGES * HUGE, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (map == MAP_FAILED || !hold_fault(fd))
		return -1;
	truncation = start_truncation(fd);
	if (truncation < 0 ||
	    !WAIT_FOR(has_ended(truncation) || is_blocked(truncation)))
		return -1;
	return truncation;
}

static bool ends(pid_t pid)
{
	return WAIT_FOR(has_ended(pid)) && !reap(pid);
}

/* The result: nothing was wrong, no page is left, no reservation lost. */
static int truncated(int fd, long reserved, bool good)
{
	struct stat st;

	if (fstat(fd, &st))
		return 2;
	printf("# %ld blocks are left; reserved pages: %ld before, %ld after\n",
	       (long)st.st_blocks, reserved, pool("resv_hugepages"));
	return !good || st.st_blocks || pool("resv_hugepages") != reserved;
}

/*
 * Truncation either waits for the page fault, or the page fault notices; so no
 * page is left.  While truncation waits, further faults do not wait with a fault
 * mutex held: of two that need the same, both get as far as to wait for the
 * truncation.
 */
static int test_own(void)
{
	long reserved = pool("resv_hugepages");
	int i, fd = new_file(FILE_PAGES * HUGE);
	pid_t truncation, faults[2];
	bool outside = true;

	truncation = truncate_beside_fault(fd);
	if (truncation < 0)
		return 2;
	printf("# the truncation %s\n",
	       has_ended(truncation) ? "has returned" : "waits");
	for (i = 0; i < 2; i++) {
		faults[i] = start_fault();
		if (faults[i] < 0)
			return 2;
	}
	for (i = 0; i < 2; i++)
		if (!WAIT_FOR(has_ended(faults[i]) ||
			      waits_outside(faults[i]))) {
			printf("# a page fault waits for a fault mutex:\n");
			print_stack(faults[i]);
			outside = false;
		}
	if (!is_held()) {
		printf("# the page fault did not stay preempted\n");
		return 2;
	}
	if (!release_fault() || !ends(truncation))
		return 2;
	for (i = 0; i < 2; i++)
		if (!ends(faults[i]))
			return 2;
	return truncated(fd, reserved, outside);
}

/* A page fault of one file does not keep truncation of another one waiting. */
static int test_other(void)
{
	int fd = new_file(FILE_PAGES * HUGE), other = new_file(HUGE);
	bool returned;
	pid_t truncation;

	/* Without pages, or their mutexes may happen to be the one held. */
	if (fd < 0 || other < 0 ||
	    mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
		 other, 0) == MAP_FAILED || !hold_fault(fd))
		return 2;
	truncation = start_truncation(other);
	if (truncation < 0)
		return 2;
	returned = WAIT_FOR(has_ended(truncation));
	if (!is_held()) {
		printf("# the page fault did not stay preempted\n");
		return 2;
	}
	if (!returned) {
		printf("# ftruncate() waits, although the file has no page:\n");
		print_stack(truncation);
	}
	if (!release_fault() || reap(truncation))
		return 2;
	return !returned;
}

/* Copies to a page that the held process does not touch. */
static pid_t start_copy(void)
{
	struct uffdio_copy copy = {
		.dst = (uintptr_t)map + HELD_PAGES * HUGE,
		.len = HUGE,
	};
	pid_t pid = fork();

	if (!pid) {
		if (!copier_prepare(FILE_PAGES * HUGE))
			_exit(2);
		copy.src = (uintptr_t)source;
		_exit(ioctl(uffd, UFFDIO_COPY, &copy) && errno != EFAULT);
	}
	return pid;
}

/* Is the process in the queue of a rwsem? */
static bool waits_in_line(pid_t pid)
{
	return is_blocked(pid) && stack_has(pid, "down_read");
}

/*
 * A truncation that was woken to take invalidate_lock cannot run as long as a
 * real-time process keeps its CPU.  Until it runs, down_read() gets the lock, and
 * down_read_trylock() fails.  So a page fault must not drop the lock that it has
 * waited for and try again: it would spin until the truncation runs.
 *
 * The held process is the reader for which the truncation waits.  When it has
 * dropped the lock, it keeps the CPU.
 */
static int test_starved(pid_t (*start)(void))
{
	long reserved = pool("resv_hugepages");
	int fd = new_file(FILE_PAGES * HUGE);
	pid_t truncation, fault;
	bool spins;

	truncation = truncate_beside_fault(fd);
	if (truncation < 0)
		return 2;
	if (!is_blocked(truncation)) {
		printf("# the truncation does not wait for the page fault\n");
		return 2;
	}
	/*
	 * Not earlier, because a real-time task that waits for the lock asks
	 * for a handoff, and then readers do not get the lock either.  With the
	 * default policy, it would get a share of the CPU.
	 */
	if (!run_real_time(truncation, STARVED_PRIORITY))
		return 2;
	atomic_store(&shared_state->keep, true);
	atomic_store(&shared_state->hold, true);
	if (!hog_stop() || !WAIT_FOR(atomic_load(&shared_state->keeping)) ||
	    !WAIT_FOR(state_of(truncation) == 'R'))
		return 2;
	fault = start();
	if (fault < 0)
		return 2;
	/*
	 * It waits in line if the truncation did not go to sleep at once, and
	 * has asked for a handoff.
	 */
	spins = !WAIT_FOR(has_ended(fault) || waits_in_line(fault));
	if (spins)
		printf("# the page fault is in state %c\n", state_of(fault));
	else
		printf("# the page fault %s\n",
		       has_ended(fault) ? "has ended" : "waits in line");
	if (state_of(truncation) != 'R' || has_ended(held)) {
		printf("# the truncation was not kept from running\n");
		return 2;
	}
	atomic_store(&shared_state->keep, false);
	if (!release_fault() || !ends(truncation) || !ends(fault))
		return 2;
	return truncated(fd, reserved, !spins);
}

/* --- lazy */

#define LAZY_ROUNDS	20

static char *shared;
static int wake[2], awake[2];
static atomic_int sleeper_tid;

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

/* Waits until the thread on CPU 1 sleeps, up to a minute. */
static bool sleeps(void)
{
	double end = seconds() + 60;

	while (seconds() < end) {
		if (task_state(getpid(), atomic_load(&sleeper_tid)) == 'S')
			return true;
		usleep(1000);
	}
	printf("# the thread on CPU 1 does not go to sleep\n");
	return false;
}

/* A thread on CPU 1; the CPU is lazy while the thread sleeps. */
static void *sleeper(void *arg)
{
	char c;

	run_on(1);
	atomic_store(&sleeper_tid, gettid());
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
	char *place = free_range(2 * GIB), c = 0;
	pthread_t thread;
	int touched[2];
	long before;
	pid_t pid = -1;

	if (fd < 0 || !place || pipe(wake) || pipe(awake) || pipe(touched) ||
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
				if (write(touched[1], &c, 1) == 1)
					pause();
				_exit(1);
			}
			if (pid < 0 || read(touched[0], &c, 1) != 1 ||
			    pthread_create(&thread, NULL, sleeper, NULL))
				return 2;
			continue;
		}
		if (write(wake[1], &c, 1) != 1 || read(awake[0], &c, 1) != 1 ||
		    !sleeps())
			return 2;
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
	if (pid > 0)
		kill(pid, SIGKILL);
	printf("# the idle CPU was notified %d of %d times\n", flushed,
	       LAZY_ROUNDS);
	/* Now and then it may be busy and have another mm loaded. */
	return flushed < LAZY_ROUNDS / 2;
}

/* --- discard, nodes, min-size, pinned, pinned-mount */

#define POOL_PAGES	4
#define POOL_LENGTH	(POOL_PAGES * HUGE)
#define POOL_MOUNT	"/tmp/hugetlb-fixes"
#define POOL_FILE	POOL_MOUNT "/file"

static void print_pool(const char *when)
{
	printf("# %s: %ld pages, %ld free, %ld reserved, %ld surplus\n", when,
	       pool("nr_hugepages"), pool("free_hugepages"),
	       pool("resv_hugepages"), pool("surplus_hugepages"));
}

/* Shrinks a pool whose pages are all in use: they become surplus. */
static bool pool_shrink(void)
{
	if (write_text(POOL "nr_hugepages", "0\n"))
		return false;
	print_pool("shrunk to 0");
	return pool("surplus_hugepages") == pool("nr_hugepages");
}

/* Nothing is left in the pool; pages may be freed by a worker. */
static bool pool_ends(void)
{
	bool ended = WAIT_FOR(!pool("nr_hugepages") &&
			      !pool("surplus_hugepages") &&
			      !pool("resv_hugepages"));

	print_pool("at the end");
	return ended;
}

/* Reserves pages of the file, or of none, and touches them. */
static bool pool_map(int fd)
{
	int i, how = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB :
			      MAP_SHARED;

	map = mmap(NULL, POOL_LENGTH, PROT_READ | PROT_WRITE, how, fd, 0);
	if (map == MAP_FAILED)
		return false;
	for (i = 0; i < POOL_PAGES; i++)
		if (try_write(map + i * HUGE, WORD))
			return false;
	return true;
}

/* How many of the pages raise a signal when they are touched? */
static int pool_signals(void)
{
	int i, signals = 0;

	for (i = 0; i < POOL_PAGES; i++)
		signals += try_write(map + i * HUGE, WORD) != 0;
	print_pool("touched again");
	printf("# %d of %d pages raised a signal\n", signals, POOL_PAGES);
	return signals;
}

/* Each page is discarded, and its reservation keeps it. */
static int test_discard(void)
{
	bool wrong;

	if (!pool_set(POOL_PAGES) || !pool_map(-1) || !pool_shrink() ||
	    madvise(map, POOL_LENGTH, MADV_DONTNEED))
		return 2;
	print_pool("discarded");
	wrong = pool_signals();
	if (munmap(map, POOL_LENGTH))
		return 2;
	return !pool_ends() || wrong;
}

#define NODES		2
#define NODE_PAGES	2
#define NODE_LENGTH	(NODE_PAGES * HUGE)
#define NODE_POOL	"/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/%s"

static long node_pool(int node, const char *name)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), NODE_POOL, node, name);
	return read_text(path, text, sizeof(text)) ?
		       -1 : (long)strtoul(text, NULL, 10);
}

static bool node_pool_set(int node, long pages)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), NODE_POOL, node, "nr_hugepages");
	snprintf(text, sizeof(text), "%ld\n", pages);
	return !write_text(path, text);
}

/* Do the counts of the nodes agree with each other and with those of the pool? */
static bool nodes_agree(const char *when)
{
	long pages = 0, free = 0, surplus = 0;
	bool agree = true;
	int node;

	print_pool(when);
	for (node = 0; node < NODES; node++) {
		long all = node_pool(node, "nr_hugepages");
		long unused = node_pool(node, "free_hugepages");
		long extra = node_pool(node, "surplus_hugepages");

		printf("#   node %d: %ld pages, %ld free, %ld surplus\n", node,
		       all, unused, extra);
		agree &= unused >= 0 && unused <= all && extra >= 0 &&
			 extra <= all;
		pages += all;
		free += unused;
		surplus += extra;
	}
	return agree && pages == pool("nr_hugepages") &&
	       free == pool("free_hugepages") &&
	       surplus == pool("surplus_hugepages");
}

/* Reserves pages and touches them; they are of the node if it has some. */
static char *node_map(int node)
{
	unsigned long nodes = 1UL << node;
	char *p = mmap(NULL, NODE_LENGTH, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	int i;

	if (p == MAP_FAILED ||
	    syscall(SYS_mbind, p, NODE_LENGTH, MPOL_PREFERRED, &nodes,
		    8 * sizeof(nodes), 0))
		return NULL;
	for (i = 0; i < NODE_PAGES; i++)
		if (try_write(p + i * HUGE, WORD))
			return NULL;
	return node_pool(node, "free_hugepages") ? NULL : p;
}

/*
 * The pages of node 0 stay for a reservation.  Pages of node 1, which become free
 * later, do for it as well, so those of node 0 must go then: nothing else would
 * make them.  Either the pages of node 1 are freed, or the pool grows there.
 */
static int nodes_steps(bool grow)
{
	char *first, *second;
	bool agree, wrong = false;
	int i, node;

	if (!pool_set(0))
		return 2;
	for (node = 0; node < NODES; node++) {
		if (!node_pool_set(node, NODE_PAGES) ||
		    node_pool(node, "nr_hugepages") != NODE_PAGES) {
			printf("# cannot get %d huge pages of node %d\n",
			       NODE_PAGES, node);
			return 2;
		}
	}
	first = node_map(0);
	second = node_map(1);
	if (!first || !second || !node_pool_set(0, 0) ||
	    node_pool(0, "surplus_hugepages") != NODE_PAGES)
		return 2;
	agree = nodes_agree("node 0 shrunk to 0");
	if (madvise(first, NODE_LENGTH, MADV_DONTNEED))
		return 2;
	agree &= nodes_agree("discarded");
	if (grow ? !node_pool_set(1, 2 * NODE_PAGES + 1) :
		   munmap(second, NODE_LENGTH))
		return 2;
	wrong |= !WAIT_FOR(!node_pool(0, "nr_hugepages"));
	agree &= nodes_agree(grow ? "node 1 has grown" :
				    "the other is unmapped");
	if (write_text(POOL "nr_hugepages", "0\n"))
		return 2;
	agree &= nodes_agree("shrunk to 0");
	for (i = 0; i < NODE_PAGES; i++) {
		if (try_write(first + i * HUGE, WORD)) {
			printf("# page %d raised a signal\n", i);
			wrong = true;
		}
	}
	agree &= nodes_agree("touched again");
	if (munmap(first, NODE_LENGTH) ||
	    (grow && munmap(second, NODE_LENGTH)))
		return 2;
	wrong |= !pool_ends();
	agree &= nodes_agree("unmapped");
	if (!agree)
		printf("# the counts of the nodes are wrong\n");
	return wrong || !agree;
}

static int test_nodes(void)
{
	int freed = nodes_steps(false), grown;

	if (freed == 2)
		return 2;
	grown = nodes_steps(true);
	return grown == 2 ? 2 : freed | grown;
}

/* Opens a file on a new mount that reserves all pages of the pool. */
static int open_on_mount(void)
{
	char options[64];
	int fd;

	snprintf(options, sizeof(options), "pagesize=%lu,min_size=%lu",
		 (unsigned long)HUGE, (unsigned long)POOL_LENGTH);
	mkdir("/tmp", 0777);
	if ((mkdir(POOL_MOUNT, 0777) && errno != EEXIST) ||
	    mount("none", POOL_MOUNT, "hugetlbfs", 0, options)) {
		perror("# " POOL_MOUNT);
		return -1;
	}
	fd = open(POOL_FILE, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	return fd >= 0 && !ftruncate(fd, POOL_LENGTH) ? fd : -1;
}

/* Unmaps and removes the file, and keeps the mount. */
static bool remove_on_mount(int fd)
{
	return !munmap(map, POOL_LENGTH) && !close(fd) && !unlink(POOL_FILE);
}

/* The pages of the file are freed, and the mount's reservations keep them. */
static int test_min_size(void)
{
	bool wrong;
	int fd;

	if (!pool_set(POOL_PAGES))
		return 2;
	fd = open_on_mount();
	if (fd < 0 || !pool_map(fd) || !pool_shrink() || ftruncate(fd, 0) ||
	    ftruncate(fd, POOL_LENGTH))
		return 2;
	print_pool("truncated");
	/* The mapping has lost its reservations to the truncation. */
	if (munmap(map, POOL_LENGTH))
		return 2;
	map = mmap(NULL, POOL_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   0);
	if (map == MAP_FAILED)
		return 2;
	wrong = pool_signals();
	if (!remove_on_mount(fd) || umount(POOL_MOUNT))
		return 2;
	return !pool_ends() || wrong;
}

/*
 * Enough for vm.munmap_section_kbytes to act at its smallest values: a section may
 * zap 32 entries.
 */
#define PINNED_LENGTH	(64 * HUGE)

/* As pool_map(), at the head of a range that nothing is reserved for. */
static bool pinned_map(void)
{
	const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	int i;

	map = mmap(NULL, PINNED_LENGTH, PROT_READ | PROT_WRITE,
		   how | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED ||
	    mmap(map, POOL_LENGTH, PROT_READ | PROT_WRITE, how | MAP_FIXED, -1,
		 0) != map)
		return false;
	for (i = 0; i < POOL_PAGES; i++)
		if (try_write(map + i * HUGE, WORD))
			return false;
	return true;
}

/* Pins the first page until the pipe is closed. */
static bool pin(int fds[2])
{
	struct iovec part = { .iov_base = map, .iov_len = 4096 };

	return !pipe(fds) && vmsplice(fds[1], &part, 1, 0) == 4096;
}

static bool unpin(int fds[2])
{
	return !close(fds[0]) && !close(fds[1]);
}

/*
 * Pins a page of a private mapping, takes @steps, and unpins it: s(hrink the pool),
 * d(iscard), u(nmap).  No page may stay.
 */
static int pinned_steps(const char *steps)
{
	int fds[2];

	printf("# steps: %s\n", steps);
	if (!pool_set(POOL_PAGES) || !pinned_map() || !pin(fds))
		return 2;
	for (; *steps; steps++) {
		if (*steps == 's' && !pool_shrink())
			return 2;
		if (*steps == 'd' && madvise(map, POOL_LENGTH, MADV_DONTNEED))
			return 2;
		if (*steps == 'u' && munmap(map, PINNED_LENGTH))
			return 2;
	}
	print_pool("pinned");
	if (!unpin(fds))
		return 2;
	return !pool_ends();
}

/*
 * While a page is pinned, it cannot be promised to another mapping.  One page each,
 * because a mapping may not be longer than what is free.
 */
static int pinned_promise(void)
{
	int fds[2], promised, i, wrong;
	char *others[POOL_PAGES];

	if (!pool_set(POOL_PAGES) || !pinned_map() || !pin(fds) ||
	    munmap(map, PINNED_LENGTH))
		return 2;
	print_pool("unmapped");
	for (promised = 0; promised < POOL_PAGES; promised++) {
		others[promised] = mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS |
					MAP_HUGETLB, -1, 0);
		if (others[promised] == MAP_FAILED)
			break;
	}
	printf("# %d pages are promised, %ld are free\n", promised,
	       pool("free_hugepages"));
	wrong = promised > pool("free_hugepages");
	for (i = 0; i < promised; i++) {
		if (try_write(others[i], WORD)) {
			printf("# page %d raised a signal\n", i);
			wrong = 1;
		}
	}
	for (i = 0; i < promised; i++)
		if (munmap(others[i], HUGE))
			return 2;
	if (!unpin(fds) || write_text(POOL "nr_hugepages", "0\n"))
		return 2;
	return !pool_ends() || wrong;
}

static void *idler(void *arg)
{
	for (;;)
		pause();
	return arg;
}

/* The page is freed after its mapping, and its reservation, are gone. */
static int test_pinned(void)
{
	static const char *const orders[] = {
		"us", "su", "dus", "dsu", "sdu", NULL
	};
	long kbytes = 0, sections = vmstat_read("munmap_section_sections");
	int i, status, result = 0;
	pthread_t other;

	/* With a single thread, munmap() does not work in sections. */
	if (pthread_create(&other, NULL, idler, NULL))
		return 2;
	for (i = 0; orders[i]; i++) {
		status = pinned_steps(orders[i]);
		if (status == 2)
			return 2;
		result |= status;
	}
	status = pinned_promise();
	if (vm_sysctl_exists("munmap_section_kbytes")) {
		vm_sysctl_read("munmap_section_kbytes", &kbytes);
		sections = vmstat_read("munmap_section_sections") - sections;
		printf("# unmapped in %ld sections\n", sections);
		if (kbytes && !sections)
			return 2;
	}
	return status == 2 ? 2 : result | status;
}

/* Pins a page of a file on the mount, and unmounts it before or after unpinning. */
static int pinned_unmount(bool before)
{
	int fd, fds[2];

	if (!pool_set(POOL_PAGES))
		return 2;
	fd = open_on_mount();
	if (fd < 0 || !pool_map(fd) || !pin(fds) || !pool_shrink() ||
	    !remove_on_mount(fd))
		return 2;
	print_pool("removed");
	if (before && umount(POOL_MOUNT))
		return 2;
	if (!unpin(fds))
		return 2;
	print_pool("unpinned");
	if (!before && umount(POOL_MOUNT))
		return 2;
	return !pool_ends();
}

static int test_pinned_mount(void)
{
	int before = pinned_unmount(true), after;

	if (before == 2)
		return 2;
	after = pinned_unmount(false);
	return after == 2 ? 2 : before | after;
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	/* Keep the output even if a process never ends. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getenv("FAULTLINE_GUEST")) {
		fprintf(stderr,
			"hugetlb_fixes: only in a virtual machine: say tests/run kernel/hugetlb-fixes\n");
		return 2;
	}
	if (!pool_set(PAGES + 4)) {
		printf("# cannot get %d huge pages of 2 MiB\n", PAGES + 4);
		return 2;
	}
	if (!strcmp(what, "move"))
		return test_move();
	if (!strcmp(what, "truncate"))
		return test_truncate(toucher);
	if (!strcmp(what, "copy"))
		return test_truncate(copier);
	if (!strcmp(what, "own"))
		return test_own();
	if (!strcmp(what, "other"))
		return test_other();
	if (!strcmp(what, "starved"))
		return test_starved(start_fault);
	if (!strcmp(what, "starved-copy"))
		return test_starved(start_copy);
	if (!strcmp(what, "lazy"))
		return test_lazy();
	catch_faults();
	if (!strcmp(what, "discard"))
		return test_discard();
	if (!strcmp(what, "nodes"))
		return test_nodes();
	if (!strcmp(what, "min-size"))
		return test_min_size();
	if (!strcmp(what, "pinned"))
		return test_pinned();
	if (!strcmp(what, "pinned-mount"))
		return test_pinned_mount();
	fprintf(stderr,
		"usage: hugetlb_fixes move|truncate|copy|own|other|starved|starved-copy|lazy|discard|nodes|min-size|pinned|pinned-mount\n");
	return 2;
}
