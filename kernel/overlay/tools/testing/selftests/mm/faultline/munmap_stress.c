// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise munmap against everything that can race with it, for a given
 * time.
 *
 * A process with many threads works on two kinds of memory.  The playground is
 * a part of the address space where all threads may do anything, and where only
 * the kernel's own checks (KASAN, lockdep, DEBUG_VM) find errors.  The oracle
 * threads have private mappings at addresses chosen by the kernel, and every
 * page must hold the content that was written there.  Some of the processes are
 * killed halfway.  At the end, all memory must be free again.
 *
 * One test in KTAP; see usage().
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/mempolicy.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../../kselftest.h"
#include "munmap_util.h"

/* Far below the area of mmap(NULL), so that no oracle mapping gets here. */
#define PLAYGROUND	((char *)0x100000000000UL)
#define LANE		(32 * MIB)
#define LANES		4
#define PLAYGROUND_LEN	(LANES * LANE)
#define PROCESS_SECONDS	15

static const char test_name[] = "munmap_stress";

static struct {
	long seconds;
	long section_kb;	/* -1: change it continuously */
	__u64 seed;
} opt = { .seconds = 30, .section_kb = -1, .seed = 1 };

/* Shared by all processes of the run. */
static struct shared {
	atomic_bool stop;
	atomic_long ops;
	atomic_long errors;
	atomic_long munmaps;
	char first_error[160];
} *shared;

static void note_error(const char *what, const void *addr, size_t len)
{
	if (!atomic_fetch_add(&shared->errors, 1))
		snprintf(shared->first_error, sizeof(shared->first_error),
			 "%s at %p, %zu bytes", what, addr, len);
}

/* --- the playground */

static char *any_place(__u64 *seed, size_t *len)
{
	size_t pages = PLAYGROUND_LEN / page_size();
	size_t first = random_next(seed) % pages;

	/* Short and long, regardless of lanes. */
	*len = random_next(seed) % 3 ? 64 * page_size() : LANE;
	*len = (1 + random_next(seed) % (*len / page_size())) * page_size();
	if (*len > PLAYGROUND_LEN - first * page_size())
		*len = PLAYGROUND_LEN - first * page_size();
	return PLAYGROUND + first * page_size();
}

static void populate(char *p, size_t len, __u64 *seed)
{
	switch (random_next(seed) % 4) {
	case 0:
		madvise(p, len, MADV_POPULATE_READ);
		break;
	case 1:
		madvise(p, len, MADV_HUGEPAGE);
		madvise(p, len, MADV_POPULATE_WRITE);
		break;
	default:
		madvise(p, len, MADV_NOHUGEPAGE);
		madvise(p, len, MADV_POPULATE_WRITE);
		break;
	}
}

/* Populates a lane with some kind of memory and unmaps it in some way. */
static void lane_op(__u64 *seed, int memfd)
{
	char *p = PLAYGROUND + random_next(seed) % LANES * LANE;
	size_t cut;
	void *q;
	int id;

	switch (random_next(seed) % 5) {
	case 0:
		q = mmap(p, LANE, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, memfd, 0);
		break;
	case 1:
		id = shmget(IPC_PRIVATE, LANE, IPC_CREAT | 0600);
		if (id < 0)
			return;
		q = shmat(id, p, SHM_REMAP);
		shmctl(id, IPC_RMID, NULL);
		if (q == (void *)-1)
			return;
		populate(p, LANE, seed);
		atomic_fetch_add(&shared->munmaps, 1);
		shmdt(p);
		return;
	case 2:
		q = mmap(p, LANE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_FIXED, memfd, 0);
		break;
	default:
		q = mmap(p, LANE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	}
	if (q == MAP_FAILED)
		return;
	populate(p, LANE, seed);
	atomic_fetch_add(&shared->munmaps, 1);
	cut = random_next(seed) % 64 * page_size();
	switch (random_next(seed) % 4) {
	case 0:
		/* Fails if another thread has cut the VMA. */
		mremap(p, LANE, cut + page_size(), 0);
		break;
	case 1:
		munmap(p + cut, LANE - cut);
		break;
	default:
		/* Across lanes, so that two of them overlap. */
		munmap(p, LANE + cut * 16);
		break;
	}
}

static void *lane_main(void *arg)
{
	__u64 seed = opt.seed + (uintptr_t)arg * 1000003;
	int memfd = memfd_create("stress", MFD_CLOEXEC);

	if (memfd < 0 || ftruncate(memfd, LANE)) {
		note_error("memfd", NULL, LANE);
		return NULL;
	}
	while (!atomic_load(&shared->stop)) {
		lane_op(&seed, memfd);
		atomic_fetch_add(&shared->ops, 1);
	}
	return NULL;
}

static void poke(__u64 *seed)
{
	static const int advice[] = {
		MADV_DONTNEED, MADV_FREE, MADV_COLLAPSE, MADV_HUGEPAGE,
		MADV_NOHUGEPAGE, MADV_PAGEOUT, MADV_COLD, MADV_DONTFORK,
		MADV_DOFORK, MADV_WILLNEED, MADV_POPULATE_WRITE,
	};
	unsigned long node = 1;
	struct iovec local, remote;
	char *p, *to, buf[64];
	size_t len, to_len;
	int status;
	__u64 word;
	pid_t pid;

	p = any_place(seed, &len);
	switch (random_next(seed) % 14) {
	case 0:
		mprotect(p, len, PROT_READ);
		break;
	case 1:
		mprotect(p, len, PROT_READ | PROT_WRITE);
		break;
	case 2:
		mlock(p, len > MIB ? MIB : len);
		break;
	case 3:
		munlock(p, len);
		break;
	case 4:
		syscall(SYS_mbind, p, len, MPOL_PREFERRED, &node,
			8 * sizeof(node), MPOL_MF_MOVE);
		break;
	case 5:
		to = any_place(seed, &to_len);
		mremap(p, len, to_len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		break;
	case 6:
		mmap(p, len, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	case 7:
		munmap(p, len);
		break;
	case 8:
		local = (struct iovec){ buf, sizeof(buf) };
		remote = (struct iovec){ p, sizeof(buf) };
		process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
		break;
	case 9:
		msync(p, len, MS_SYNC);
		break;
	case 10:
		pid = fork();
		if (!pid)
			_exit(0);
		if (pid > 0)
			waitpid(pid, &status, 0);
		break;
	case 11:
		try_write(p, 1);
		break;
	case 12:
		try_read(p, &word);
		break;
	default:
		madvise(p, len, advice[random_next(seed) % ARRAY_SIZE(advice)]);
		break;
	}
}

static void *poke_main(void *arg)
{
	__u64 seed = opt.seed + (uintptr_t)arg * 1000003;

	while (!atomic_load(&shared->stop)) {
		poke(&seed);
		atomic_fetch_add(&shared->ops, 1);
	}
	return NULL;
}

/* --- mappings with known content */

struct mapping {
	char *addr;
	size_t len;
	__u64 tag;
};

static void oracle_op(struct mapping *m, __u64 *seed)
{
	pid_t pid;

	if (!m->addr) {
		m->tag = random_next(seed);
		m->len = (1 + random_next(seed) % 64) * page_size();
		if (!(random_next(seed) % 8))
			m->len += 5 * pmd_size();
		m->addr = mmap(NULL, m->len, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m->addr == MAP_FAILED) {
			m->addr = NULL;
			return;
		}
		fill_pages(m->addr, m->len, m->tag);
		return;
	}
	if (bad_pages(m->addr, m->len, m->tag))
		note_error("wrong content", m->addr, m->len);
	switch (random_next(seed) % 12) {
	case 0:
		pid = fork();
		if (!pid)
			_exit(!!bad_pages(m->addr, m->len, m->tag));
		if (pid > 0 && reap(pid))
			note_error("wrong content in a child", m->addr,
				   m->len);
		break;
	case 1:
		/* mprotect() preserves the content. */
		mprotect(m->addr, m->len, PROT_READ);
		if (bad_pages(m->addr, m->len, m->tag))
			note_error("wrong content", m->addr, m->len);
		mprotect(m->addr, m->len, PROT_READ | PROT_WRITE);
		break;
	case 2:
		if (m->len > 3 * page_size() &&
		    mremap(m->addr, m->len, 3 * page_size(), 0) == m->addr)
			m->len = 3 * page_size();
		break;
	case 3:
	case 4:
	case 5:
		break;
	default:
		if (munmap(m->addr, m->len) && errno != ENOMEM)
			note_error("munmap failed", m->addr, m->len);
		m->addr = NULL;
		atomic_fetch_add(&shared->munmaps, 1);
		break;
	}
}

static void *oracle_main(void *arg)
{
	__u64 seed = opt.seed + (uintptr_t)arg * 1000003;
	struct mapping m[32] = { };
	int i;

	while (!atomic_load(&shared->stop)) {
		oracle_op(&m[random_next(&seed) % ARRAY_SIZE(m)], &seed);
		atomic_fetch_add(&shared->ops, 1);
	}
	for (i = 0; i < ARRAY_SIZE(m); i++) {
		if (!m[i].addr)
			continue;
		if (bad_pages(m[i].addr, m[i].len, m[i].tag))
			note_error("wrong content", m[i].addr, m[i].len);
		munmap(m[i].addr, m[i].len);
	}
	return NULL;
}

/* --- walkers of page tables */

static void *proc_main(void *arg)
{
	static const char * const files[] = {
		"/proc/self/maps", "/proc/self/smaps", "/proc/self/numa_maps",
		"/proc/self/smaps_rollup", "/proc/self/status",
	};
	size_t first = (uintptr_t)PLAYGROUND / page_size();
	static char buf[64 * 1024];
	int fd, i = 0;

	while (!atomic_load(&shared->stop)) {
		fd = open(files[i++ % ARRAY_SIZE(files)], O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			while (read(fd, buf, sizeof(buf)) > 0)
				;
			close(fd);
		}
		fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			if (pread(fd, buf, sizeof(buf), first * 8) < 0)
				note_error("pagemap", NULL, 0);
			close(fd);
		}
		write_text("/proc/self/clear_refs", i % 2 ? "1" : "4");
		atomic_fetch_add(&shared->ops, 1);
	}
	return NULL;
}

/* --- one process of the run */

static void run_process(void)
{
	void *(*const mains[])(void *) = {
		lane_main, lane_main, poke_main, poke_main, oracle_main,
		oracle_main, proc_main,
	};
	pthread_t threads[ARRAY_SIZE(mains)];
	uintptr_t i;

	for (i = 0; i < ARRAY_SIZE(mains); i++) {
		if (pthread_create(&threads[i], NULL, mains[i],
				   (void *)(i + 1))) {
			note_error("cannot start a thread", NULL, 0);
			_exit(1);
		}
	}
	for (i = 0; i < ARRAY_SIZE(mains); i++)
		pthread_join(threads[i], NULL);
	munmap(PLAYGROUND, PLAYGROUND_LEN + LANE);
	if (mapped_bytes(PLAYGROUND, PLAYGROUND_LEN + LANE))
		note_error("left after munmap", PLAYGROUND, PLAYGROUND_LEN);
	_exit(0);
}

/*
 * Starts a process and ends it after @ms, by the stop flag or by SIGKILL.
 * Returns true if it ended as expected.
 */
static bool start_and_end(long ms, bool by_kill)
{
	int status;
	pid_t pid;

	atomic_store(&shared->stop, false);
	fflush(NULL);
	pid = fork();
	if (!pid)
		run_process();
	if (pid < 0)
		return false;
	poll(NULL, 0, ms);
	if (by_kill)
		kill(pid, SIGKILL);
	else
		atomic_store(&shared->stop, true);
	if (waitpid(pid, &status, 0) != pid)
		return false;
	if (by_kill ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL :
		      !status)
		return true;
	ksft_print_msg("the process exited with status 0x%x\n", status);
	return false;
}

static long used_kb(void)
{
	return meminfo_kb("AnonPages") + meminfo_kb("PageTables") +
	       meminfo_kb("Shmem");
}

/* The number of kernel messages since the start that report damage. */
static int kernel_complaints(int kmsg)
{
	static const char * const signs[] = {
		"BUG: ", "WARNING: ", "KASAN: ", "Bad rss-counter", "Oops",
		"general protection", "possible recursive locking",
		"possible circular locking", "refcount_t: ",
	};
	char buf[8192];
	int i, n = 0;

	while (kmsg_next(kmsg, buf, sizeof(buf))) {
		for (i = 0; i < ARRAY_SIZE(signs); i++) {
			if (strstr(buf, signs[i])) {
				buf[strcspn(buf, "\n")] = '\0';
				ksft_print_msg("kernel: %s\n", buf);
				n++;
				break;
			}
		}
	}
	return n;
}

static void usage(FILE *f)
{
	fprintf(f,
		"Usage: munmap_stress [-d SECONDS] [-k KBYTES] [-s SEED]\n"
		"  -d  duration (default 30)\n"
		"  -k  value of vm." MUNMAP_KNOB "\n"
		"      (default: change it continuously, including 0)\n"
		"  -s  seed of the random choices (default 1)\n");
}

static long number_option(int c, long min)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(optarg, &end, 10);
	if (errno || end == optarg || *end || n < min) {
		fprintf(stderr, "munmap_stress: -%c %s: must be a number of at least %ld\n",
			c, optarg, min);
		exit(KSFT_FAIL);
	}
	return n;
}

static void parse_options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "d:k:s:h")) != -1) {
		switch (c) {
		case 'd':
			opt.seconds = number_option(c, 1);
			break;
		case 'k':
			opt.section_kb = number_option(c, 0);
			break;
		case 's':
			opt.seed = number_option(c, 1);
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(KSFT_FAIL);
		}
	}
	if (optind < argc) {
		usage(stderr);
		exit(KSFT_FAIL);
	}
}

static int stress(int argc, char **argv)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	struct counters before, d;
	long base, rounds = 0, kills = 0;
	__u64 end, seed = opt.seed;
	struct flipper flipper = { };
	const char *why;
	bool good = true;
	int kmsg, tries;

	ksft_print_header();
	ksft_set_plan(1);
	why = munmap_knob_set(opt.section_kb < 0 ? MUNMAP_SMALL_KB :
			      opt.section_kb);
	if (why) {
		ksft_test_result_skip("%s: %s\n", test_name, why);
		ksft_finished();
	}
	shared = map_shared(sizeof(*shared));
	if (!shared)
		ksft_exit_fail_perror("mmap");
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	catch_faults();
	kmsg = kmsg_open();
	before = counters_read("munmap_section_");
	base = used_kb();

	end = now_ns() + opt.seconds * 1000000000ULL;
	while (good && now_ns() < end && !shared->errors) {
		long left = (end - now_ns()) / 1000000;
		bool by_kill = rounds % 2;
		/* Long enough to get going, and never at the same point. */
		long ms = by_kill ? 500 + random_next(&seed) % 2000 :
			  PROCESS_SECONDS * 1000L;

		if (ms > left)
			ms = left;
		atomic_store(&shared->stop, false);
		if (opt.section_kb < 0 &&
		    flipper_start(&flipper, &munmap_flips, 7))
			ksft_exit_fail_msg("cannot start a thread\n");
		good = start_and_end(ms, by_kill);
		atomic_store(&shared->stop, true);
		flipper_stop(&flipper);
		rounds++;
		kills += by_kill;
		ksft_print_msg("%ld operations, %ld errors\n",
			       atomic_load(&shared->ops),
			       atomic_load(&shared->errors));
	}
	/* Freed pages may wait in per-CPU lists and for RCU. */
	for (tries = 0; tries < 100; tries++) {
		if (used_kb() < base + (long)(LANE / KIB) / 2)
			break;
		poll(NULL, 0, 100);
	}
	d = counters_since(&before);
	ksft_print_msg("%ld processes (%ld killed), %ld operations\n", rounds,
		       kills, atomic_load(&shared->ops));
	ksft_print_msg("%ld long unmaps, %ld flips\n",
		       atomic_load(&shared->munmaps),
		       atomic_load(&flipper.count));
	ksft_print_msg("counters:%s\n", counters_text(&d));
	if (shared->errors) {
		ksft_print_msg("first error: %s\n", shared->first_error);
		good = false;
	}
	if (used_kb() >= base + (long)(LANE / KIB) / 2) {
		ksft_print_msg("%ld kB were not freed\n",
			       used_kb() - base);
		good = false;
	}
	if (kmsg >= 0 && kernel_complaints(kmsg))
		good = false;
	/* A run that never reached the code under test proves nothing. */
	if (opt.section_kb && counter(&d, "sections") <= counter(&d, "calls")) {
		ksft_print_msg("no munmap in sections\n");
		good = false;
	}
	if (!opt.section_kb && counter(&d, "calls")) {
		ksft_print_msg("sections with the switch off\n");
		good = false;
	}
	ksft_test_result(good, "%s\n", test_name);
	ksft_finished();
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	return vm_knob_kept(&munmap_knob, stress, argc, argv);
}
