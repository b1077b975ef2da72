// SPDX-License-Identifier: GPL-2.0-only
/*
 * hugetlb page table sharing: the effects of each mode, and the semantics that
 * all modes have in common.
 *
 * The tests hold on every kernel; the effects of a mode are only checked where
 * the kernel has the switch.
 */
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "../../kselftest_harness.h"
#include "hugetlb_util.h"

#define TIMEOUT		120
#define POOL		24

FIXTURE(hugetlb) {
	bool have;		/* the kernel has the switch */
	struct hugetlb_usage usage;
	struct counters before;
	struct rendezvous *meet;
	int fd;
};

FIXTURE_VARIANT(hugetlb) {
	enum hugetlb_mode mode;
};

FIXTURE_VARIANT_ADD(hugetlb, off) { .mode = MODE_OFF };
FIXTURE_VARIANT_ADD(hugetlb, vma_lock) { .mode = MODE_VMA_LOCK };
FIXTURE_VARIANT_ADD(hugetlb, revalidate) { .mode = MODE_REVALIDATE };

FIXTURE_SETUP(hugetlb)
{
	const char *why = hugetlb_mode_set(variant->mode);

	self->fd = -1;
	if (!why)
		why = hugetlb_pool_get(POOL);
	if (why)
		SKIP(return, "%s", why);
	self->have = vm_sysctl_exists(HUGETLB_KNOB);
	self->meet = map_shared(sizeof(*self->meet));
	ASSERT_NE(NULL, self->meet);
	hugetlb_usage_read(&self->usage);
	self->before = counters_read("hugetlb_");
	self->fd = hugetlb_file(3 * GIB);
	ASSERT_LE(0, self->fd);
}

/* Every test unmaps what it has mapped. */
FIXTURE_TEARDOWN(hugetlb)
{
	if (self->fd < 0)
		return;
	close(self->fd);
	EXPECT_TRUE(hugetlb_usage_returns(&self->usage));
}

/* Page tables that are shared since the test began. */
static long newly_shared(const FIXTURE_DATA(hugetlb) *self)
{
	return hugetlb_sysfs("pmd_tables_shared") - self->usage.tables_shared;
}

/* --- sharing */

/* A child uses the parent's page table, or gets its own, by mode. */
TEST_F_TIMEOUT(hugetlb, tables, TIMEOUT)
{
	bool shares = variant->mode != MODE_OFF;
	struct rendezvous *m = self->meet;
	char *p = hugetlb_map(self->fd, 2 * GIB);
	pid_t pid;

	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		/* The table of the first GiB exists, that of the second not. */
		huge_write(p, 1);
		huge_write(p, GIB / huge_size());
		if (!huge_good(p, 0))
			_exit(1);
		meet(m, 1);
		wait_for(m, 2);
		_exit(huge_good(p, 2) ? 0 : 2);
	}
	wait_for(m, 1);
	if (self->have) {
		EXPECT_EQ(shares, newly_shared(self));
		EXPECT_EQ(self->usage.table_refs + 2 * shares,
			  hugetlb_sysfs("pmd_table_refs"));
		EXPECT_EQ(shares, counted(&self->before, "pmd_shared"));
	}
	EXPECT_TRUE(huge_good(p, 1));
	/* The other way round: the child has allocated the second table. */
	EXPECT_TRUE(huge_good(p, GIB / huge_size()));
	if (self->have)
		EXPECT_EQ(2 * shares, counted(&self->before, "pmd_shared"));
	huge_write(p, 2);
	meet(m, 2);
	EXPECT_EQ(0, reap(pid));
	if (self->have) {
		EXPECT_EQ(0, newly_shared(self));
		EXPECT_EQ(2 * shares, counted(&self->before,
					      "pmd_unshared"));
		EXPECT_EQ(2 * shares, counted(&self->before,
					      "pmd_unshare_last"));
	}
	EXPECT_TRUE(huge_good(p, 0) && huge_good(p, 1) && huge_good(p, 2));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
}

/*
 * When the mode becomes 0, a mapping that may share keeps its shared tables and
 * gets no new ones; the trigger unshares them.
 */
TEST_F_TIMEOUT(hugetlb, mapped_before_mode_0, TIMEOUT)
{
	struct rendezvous *m = self->meet;
	size_t second = GIB / huge_size();
	pid_t pid;
	char *p;

	if (!self->have || variant->mode == MODE_OFF)
		SKIP(return, "starts from another mode");
	p = hugetlb_map(self->fd, 2 * GIB);
	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		huge_write(p, 1);
		meet(m, 1);
		wait_for(m, 2);
		huge_write(p, second + 1);
		meet(m, 3);
		wait_for(m, 4);
		_exit(huge_good(p, 0) && huge_good(p, 1) &&
		      huge_good(p, second) && huge_good(p, second + 1) ? 0 : 1);
	}
	wait_for(m, 1);
	/* Refused outside mode 0, where tables would be shared again. */
	EXPECT_EQ(-EINVAL, vm_sysctl_write(HUGETLB_TRIGGER, 1));
	ASSERT_EQ(0, vm_sysctl_write(HUGETLB_KNOB, MODE_OFF));
	huge_write(p, second);
	meet(m, 2);
	wait_for(m, 3);
	EXPECT_EQ(1, newly_shared(self));
	EXPECT_EQ(-EINVAL, vm_sysctl_write(HUGETLB_TRIGGER, 0));
	EXPECT_EQ(-EINVAL, vm_sysctl_write(HUGETLB_TRIGGER, 2));
	EXPECT_EQ(1, newly_shared(self));
	EXPECT_EQ(0, vm_sysctl_write(HUGETLB_TRIGGER, 1));
	EXPECT_EQ(0, newly_shared(self));
	EXPECT_TRUE(huge_good(p, 0) && huge_good(p, 1));
	EXPECT_TRUE(huge_good(p, second) && huge_good(p, second + 1));
	/* The faults of the two checks above do not share either. */
	EXPECT_EQ(0, newly_shared(self));
	meet(m, 4);
	EXPECT_EQ(0, reap(pid));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
}

#define FIND_WINDOW	"/sys/kernel/debug/hugetlb_find_window_us"
/* With FIND_WINDOW at its maximum, a fault takes 25 ms on average. */
#define SLOW_FAULTS	400
#define BUSY_PAGES	8
/*
 * Bound on the wait for a thread to block on mmap_lock, less than TIMEOUT.  30 s
 * were too few for a debug kernel on a busy host.
 */
#define BLOCKED_SECONDS	90

struct busy {
	struct rendezvous *meet;
	char *map;
};

static void *protect_until_stage_3(void *arg)
{
	struct busy *b = arg;

	atomic_store(&b->meet->tid, syscall(SYS_gettid));
	while (atomic_load(&b->meet->stage) < 3) {
		mprotect(b->map, huge_size(), PROT_READ);
		mprotect(b->map, huge_size(), PROT_READ | PROT_WRITE);
	}
	return NULL;
}

/*
 * A process with a thread that holds mmap_lock for reading, again and again for
 * the time of SLOW_FAULTS, and one that waits to have it for writing.
 */
static int hold_mmap_lock(struct rendezvous *m, int fd)
{
	struct busy b = { .meet = m, .map = free_huge_range(GIB) };
	pthread_t thread;
	size_t i;

	/* One VMA each, so that a fault maps nothing in addition. */
	for (i = 0; b.map && i < SLOW_FAULTS; i++)
		if (mmap(b.map + i * huge_size(), huge_size(),
			 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			 i % BUSY_PAGES * huge_size()) == MAP_FAILED)
			return 1;
	if (!b.map || write_text(FIND_WINDOW, "100000"))
		return 2;
	if (pthread_create(&thread, NULL, protect_until_stage_3, &b))
		return 3;
	/* The first page is for the other thread. */
	while (atomic_load(&m->stage) < 3)
		if (madvise(b.map + huge_size(),
			    (SLOW_FAULTS - 1) * huge_size(),
			    MADV_POPULATE_READ) ||
		    madvise(b.map + huge_size(),
			    (SLOW_FAULTS - 1) * huge_size(), MADV_DONTNEED))
			return 4;
	pthread_join(thread, NULL);
	return 0;
}

/* Does the thread wait, and go on waiting? */
static bool blocked(pid_t pid, int tid)
{
	int i;

	for (i = 0; i < 20; i++) {
		if (task_state(pid, tid) != 'D')
			return false;
		usleep(1000);
	}
	return true;
}

/* A process whose mmap_lock is busy is skipped, and does not stop the others. */
TEST_F_TIMEOUT(hugetlb, unshare_busy, TIMEOUT)
{
	struct rendezvous *m = self->meet;
	pid_t sharer, busy;
	__u64 until;
	bool waits;
	char *p;

	if (!self->have || variant->mode == MODE_OFF)
		SKIP(return, "starts from another mode");
	if (access(FIND_WINDOW, W_OK))
		SKIP(return, "needs debugfs, root and CONFIG_FAULTLINE_HUGETLB_TORTURE");
	p = hugetlb_map(self->fd, GIB);
	ASSERT_NE(NULL, p);
	huge_fill(p, BUSY_PAGES);
	sharer = fork_bound();
	ASSERT_LE(0, sharer);
	if (!sharer) {
		word_read(p);
		meet(m, 1);
		wait_for(m, 4);
		_exit(huge_bad(p, BUSY_PAGES) != 0);
	}
	wait_for(m, 1);
	EXPECT_EQ(1, newly_shared(self));
	ASSERT_EQ(0, vm_sysctl_write(HUGETLB_KNOB, MODE_OFF));
	busy = fork_bound();
	ASSERT_LE(0, busy);
	if (!busy)
		_exit(hold_mmap_lock(m, self->fd));
	until = now_ns() + BLOCKED_SECONDS * 1000000000ULL;
	while (!(waits = blocked(busy, atomic_load(&m->tid))) &&
	       now_ns() < until)
		usleep(1000);
	EXPECT_TRUE(waits) {
		TH_LOG("thread %d (0: not started) does not wait for mmap_lock after %d s",
		       atomic_load(&m->tid), BLOCKED_SECONDS);
	}
	EXPECT_EQ(-EBUSY, vm_sysctl_write(HUGETLB_TRIGGER, 1));
	/* The others were not left out. */
	EXPECT_EQ(0, newly_shared(self));
	EXPECT_EQ(0, write_text(FIND_WINDOW, "0"));
	meet(m, 3);
	EXPECT_EQ(0, reap(busy));
	EXPECT_EQ(0, vm_sysctl_write(HUGETLB_TRIGGER, 1));
	meet(m, 4);
	EXPECT_EQ(0, reap(sharer));
	ASSERT_EQ(0, munmap(p, GIB));
}

/* A mapping created in mode 0 never shares. */
TEST_F_TIMEOUT(hugetlb, mapped_in_mode_0, TIMEOUT)
{
	pid_t pid;
	char *p;

	if (!self->have)
		SKIP(return, "this kernel has no vm." HUGETLB_KNOB);
	ASSERT_EQ(0, vm_sysctl_write(HUGETLB_KNOB, MODE_OFF));
	p = hugetlb_map(self->fd, 2 * GIB);
	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	ASSERT_EQ(0, vm_sysctl_write(HUGETLB_KNOB, variant->mode));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		huge_write(p, 1);
		_exit(!huge_good(p, 0));
	}
	EXPECT_EQ(0, reap(pid));
	EXPECT_EQ(0, counted(&self->before, "pmd_shared"));
	EXPECT_TRUE(huge_good(p, 0) && huge_good(p, 1));
	/* Its pieces do not share either, and no page is lost in a split. */
	ASSERT_EQ(0, munmap(p + 512 * MIB, huge_size()));
	EXPECT_TRUE(huge_good(p, 0) && huge_good(p, 1));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
}

/* A split unshares only where it leaves less than a whole table. */
TEST_F_TIMEOUT(hugetlb, split, TIMEOUT)
{
	struct rendezvous *m = self->meet;
	size_t second = GIB / huge_size();
	char *p = hugetlb_map(self->fd, 2 * GIB);
	pid_t pid;

	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	huge_write(p, second);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		bool good = huge_good(p, 0) && huge_good(p, second);

		meet(m, 1);
		wait_for(m, 2);
		huge_write(p, 3);
		_exit(!good || !huge_good(p, 0) || !huge_good(p, second));
	}
	wait_for(m, 1);
	/* The pieces behave like the whole did, whatever the mode is now. */
	if (self->have)
		ASSERT_EQ(0, vm_sysctl_write(HUGETLB_KNOB, MODE_OFF));
	ASSERT_EQ(0, mprotect(p, 64 * huge_size(), PROT_READ));
	if (self->have && variant->mode != MODE_OFF)
		EXPECT_EQ(1, newly_shared(self));
	EXPECT_TRUE(huge_good(p, 0) && huge_good(p, second));
	ASSERT_EQ(0, mprotect(p, 64 * huge_size(), PROT_READ | PROT_WRITE));
	meet(m, 2);
	EXPECT_EQ(0, reap(pid));
	EXPECT_TRUE(huge_good(p, 3));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
}

/* --- paths of faults and zaps */

TEST_F_TIMEOUT(hugetlb, faults, TIMEOUT)
{
	bool fast = variant->mode != MODE_VMA_LOCK;
	char *a = hugetlb_map(self->fd, GIB), *b;

	ASSERT_NE(NULL, a);
	b = mmap(NULL, GIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
		 self->fd, 0);
	ASSERT_NE(MAP_FAILED, b);
	huge_fill(a, 8);
	EXPECT_EQ(0, huge_bad(b, 8));
	if (self->have) {
		EXPECT_EQ(8 * fast, counted(&self->before, "fault_alloc"));
		EXPECT_EQ(16 * fast, counted(&self->before, "fault_fast") +
			  counted(&self->before, "fault_around"));
		EXPECT_LE(9 * fast, counted(&self->before, "fault_fast"));
		EXPECT_EQ(0, counted(&self->before, "fault_fallback"));
	}
	ASSERT_EQ(0, munmap(a, GIB));
	ASSERT_EQ(0, munmap(b, GIB));
}

TEST_F_TIMEOUT(hugetlb, zaps, TIMEOUT)
{
	bool off = variant->mode == MODE_OFF;
	bool final = variant->mode != MODE_VMA_LOCK;
	char *p = hugetlb_map(self->fd, GIB);

	ASSERT_NE(NULL, p);
	huge_fill(p, 8);
	/* Part of a mapping that may share is zapped the old way. */
	ASSERT_EQ(0, madvise(p, 4 * huge_size(), MADV_DONTNEED));
	if (self->have)
		EXPECT_EQ(off, counted(&self->before, "zap_unlocked"));
	EXPECT_EQ(0, huge_bad(p, 8));
	ASSERT_EQ(0, munmap(p, GIB));
	if (self->have) {
		EXPECT_EQ(off + final, counted(&self->before, "zap_unlocked"));
		EXPECT_EQ(variant->mode == MODE_REVALIDATE,
			  counted(&self->before, "zap_two_phase"));
	}
}

/* More pages than a gather or a batch holds, in two tables. */
TEST_F_TIMEOUT(hugetlb, zap_many, TIMEOUT)
{
	const size_t pages = 160;
	char *p, *q;
	int fd;

	if (pages / 2 * huge_size() > GIB)
		SKIP(return, "huge pages are too large for %zu of them", pages);
	if (hugetlb_pool_get(pages + POOL))
		SKIP(return, "not enough memory for %zu huge pages", pages);
	hugetlb_usage_read(&self->usage);
	fd = hugetlb_file(2 * GIB);
	ASSERT_LE(0, fd);
	p = hugetlb_map(fd, 2 * GIB);
	ASSERT_NE(NULL, p);
	q = p + GIB - pages / 2 * huge_size();
	huge_fill(q, pages);
	EXPECT_EQ((long)(pages * huge_size() / KIB), status_kb("HugetlbPages"));
	ASSERT_EQ(0, madvise(q, pages * huge_size(), MADV_DONTNEED));
	EXPECT_EQ(0, status_kb("HugetlbPages"));
	EXPECT_EQ(0, huge_bad(q, pages));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
	close(fd);
}

/* Small and private mappings cannot share. */
TEST_F_TIMEOUT(hugetlb, small, TIMEOUT)
{
	bool final = variant->mode != MODE_VMA_LOCK;
	char *p = mmap(NULL, 4 * huge_size(), PROT_READ | PROT_WRITE,
		       MAP_SHARED, self->fd, 0);

	ASSERT_NE(MAP_FAILED, p);
	huge_fill(p, 4);
	ASSERT_EQ(0, madvise(p, 4 * huge_size(), MADV_DONTNEED));
	EXPECT_EQ(0, huge_bad(p, 4));
	ASSERT_EQ(0, munmap(p, 4 * huge_size()));
	if (self->have) {
		/* Mode 2 included: nothing to share, so no lock. */
		EXPECT_EQ(2 * final, counted(&self->before, "zap_unlocked"));
		EXPECT_EQ(0, counted(&self->before, "zap_two_phase"));
	}
}

TEST_F_TIMEOUT(hugetlb, private, TIMEOUT)
{
	char *a = hugetlb_map(self->fd, GIB), *p;
	size_t i;
	pid_t pid;

	ASSERT_NE(NULL, a);
	huge_fill(a, 4);
	self->before = counters_read("hugetlb_");
	p = mmap(NULL, 4 * huge_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE,
		 self->fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	EXPECT_EQ(0, huge_bad(p, 4));
	for (i = 0; i < 4; i++)
		word_write(p + i * huge_size(), i);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		word_write(p, 99);
		_exit(word_read(p + huge_size()) != 1);
	}
	EXPECT_EQ(0, reap(pid));
	for (i = 0; i < 4; i++) {
		EXPECT_EQ(i, word_read(p + i * huge_size()));
		EXPECT_TRUE(huge_good(a, i));
	}
	ASSERT_EQ(0, munmap(p, 4 * huge_size()));
	if (self->have) {
		EXPECT_EQ(0, counted(&self->before, "fault_fast"));
		EXPECT_EQ(0, counted(&self->before, "fault_around"));
		/* Only the zap of the child's copy of the shared mapping. */
		EXPECT_EQ(variant->mode != MODE_VMA_LOCK,
			  counted(&self->before, "zap_unlocked"));
	}
	ASSERT_EQ(0, munmap(a, GIB));
}

/* --- fault-around */

/* Pages of an aligned range that a fault maps. */
#define AROUND		32
#define FILE_PAGES	(4 * AROUND)

/*
 * Replaces the test's file by one with FILE_PAGES pages in memory, and maps it
 * without page table entries.  Returns NULL if the test is skipped.
 */
static char *map_file_in_memory(struct __test_metadata *_metadata,
				FIXTURE_DATA(hugetlb) *self)
{
	size_t len = FILE_PAGES * huge_size();
	char *p = NULL;

	close(self->fd);
	self->fd = -1;
	if (!hugetlb_pool_get(FILE_PAGES + POOL))
		self->fd = hugetlb_file(len);
	if (self->fd >= 0)
		p = hugetlb_map(self->fd, len);
	if (!p)
		SKIP(return NULL, "not enough memory for huge pages");
	huge_fill(p, FILE_PAGES);
	EXPECT_EQ(0, munmap(p, len));
	hugetlb_usage_read(&self->usage);
	/* Closing the file frees its pages. */
	self->usage.free += FILE_PAGES;
	self->before = counters_read("hugetlb_");
	p = hugetlb_map(self->fd, len);
	EXPECT_NE(NULL, p);
	return p;
}

/* A bitmap of the pages of [p, p + n pages) with an entry; n <= 64. */
static __u64 entries(char *p, size_t n)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	__u64 found = 0, word;
	size_t i;

	for (i = 0; i < n; i++, p += huge_size())
		if (pread(fd, &word, sizeof(word), (uintptr_t)p / page_size() *
			  sizeof(word)) == sizeof(word))
			found |= word >> 63 << i;
	close(fd);
	return found;
}

static int popcount(__u64 word)
{
	return __builtin_popcountll(word);
}

/* One fault maps many pages of a file in memory. */
TEST_F_TIMEOUT(hugetlb, around, TIMEOUT)
{
	bool fast = self->have && variant->mode != MODE_VMA_LOCK;
	const size_t len = FILE_PAGES * huge_size();
	long faults, kb;
	size_t i;
	char *p;

	p = map_file_in_memory(_metadata, self);
	if (!p)
		return;
	/* The first fault, and its effect on the statistics. */
	EXPECT_TRUE(huge_good(p, AROUND + 3));
	kb = huge_size() / KIB * (fast ? AROUND : 1);
	EXPECT_EQ(kb, smaps_kb(p, len, "Private_Hugetlb"));
	EXPECT_EQ(0, smaps_kb(p, len, "Shared_Hugetlb"));
	EXPECT_EQ(kb, status_kb("HugetlbPages"));
	EXPECT_EQ(fast ? ~0ULL << AROUND : 1ULL << (AROUND + 3),
		  entries(p, 2 * AROUND));
	/* Faults on all pages. */
	ASSERT_EQ(0, madvise(p, len, MADV_DONTNEED));
	EXPECT_EQ(0, status_kb("HugetlbPages"));
	self->before = counters_read("hugetlb_");
	faults = minor_faults();
	for (i = 0; i < FILE_PAGES; i++)
		word_read(p + i * huge_size());
	faults = minor_faults() - faults;
	TH_LOG("%ld faults for %d pages", faults, FILE_PAGES);
	if (fast) {
		EXPECT_GE(FILE_PAGES / 11, faults);
		EXPECT_EQ(FILE_PAGES / AROUND,
			  counted(&self->before, "fault_fast"));
		EXPECT_EQ(FILE_PAGES - FILE_PAGES / AROUND,
			  counted(&self->before, "fault_around"));
	} else {
		EXPECT_LE(FILE_PAGES, faults);
		if (self->have)
			EXPECT_EQ(0, counted(&self->before, "fault_around"));
	}
	EXPECT_EQ(0, huge_bad(p, FILE_PAGES));
	/* Writing does not fault again. */
	faults = minor_faults();
	huge_fill(p, FILE_PAGES);
	EXPECT_GE(2, minor_faults() - faults);
	/* The switch takes effect at each fault. */
	if (self->have) {
		ASSERT_EQ(0, vm_sysctl_write(HUGETLB_KNOB, MODE_VMA_LOCK));
		ASSERT_EQ(0, madvise(p, len, MADV_DONTNEED));
		EXPECT_TRUE(huge_good(p, 3));
		EXPECT_EQ(1ULL << 3, entries(p, AROUND));
	}
	ASSERT_EQ(0, munmap(p, len));
}

/* Not beyond the mapping, not in a hole, not beyond the end of the file. */
TEST_F_TIMEOUT(hugetlb, around_bounds, TIMEOUT)
{
	bool fast = self->have && variant->mode != MODE_VMA_LOCK;
	const size_t len = FILE_PAGES * huge_size();
	long reserved;
	struct stat st;
	char *p, *q;
	size_t i;

	p = map_file_in_memory(_metadata, self);
	if (!p)
		return;
	q = free_huge_range(GIB);
	ASSERT_NE(NULL, q);
	/* Ten pages in the middle of the range, at another offset. */
	q = mmap(q + 5 * huge_size(), 10 * huge_size(), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED_NOREPLACE, self->fd, 40 * huge_size());
	ASSERT_NE(MAP_FAILED, q);
	reserved = hugetlb_sysfs("resv_hugepages");
	EXPECT_EQ(huge_word(44), word_read(q + 4 * huge_size()));
	EXPECT_EQ(fast ? 0x3ffULL : 1ULL << 4, entries(q, 10));
	for (i = 0; i < 10; i++)
		EXPECT_EQ(huge_word(40 + i), word_read(q + i * huge_size()));
	ASSERT_EQ(0, munmap(q, 10 * huge_size()));
	/* A hole stays a hole. */
	ASSERT_TRUE(hugetlb_punch(self->fd, 5 * huge_size(), huge_size()));
	EXPECT_TRUE(huge_good(p, 4));
	EXPECT_EQ(fast ? 0xffffffdfULL : 1ULL << 4, entries(p, AROUND));
	ASSERT_EQ(0, fstat(self->fd, &st));
	EXPECT_EQ((FILE_PAGES - 1) * huge_size() / 512, (size_t)st.st_blocks);
	EXPECT_EQ(0, (long)word_read(p + 5 * huge_size()));
	/* The file ends in the middle of a range. */
	ASSERT_EQ(0, ftruncate(self->fd, 40 * huge_size()));
	EXPECT_TRUE(huge_good(p, 34));
	EXPECT_EQ(fast ? 0xffULL : 1ULL << 2,
		  entries(p + AROUND * huge_size(), AROUND));
	EXPECT_EQ(reserved, hugetlb_sysfs("resv_hugepages"));
	ASSERT_EQ(0, munmap(p, len));
}

/* In a shared page table, the other processes get the pages, too. */
TEST_F_TIMEOUT(hugetlb, around_shared, TIMEOUT)
{
	bool fast = self->have && variant->mode == MODE_REVALIDATE;
	struct rendezvous *m = self->meet;
	pid_t pid;
	char *p;

	if (hugetlb_pool_get(2 * AROUND + POOL))
		SKIP(return, "not enough memory for huge pages");
	hugetlb_usage_read(&self->usage);
	p = hugetlb_map(self->fd, 2 * GIB);
	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	ASSERT_EQ(0, fallocate(self->fd, 0, 0, 2 * AROUND * huge_size()));
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		word_read(p);
		huge_write(p, AROUND + 1);
		meet(m, 1);
		wait_for(m, 2);
		_exit(!huge_good(p, AROUND + 2));
	}
	wait_for(m, 1);
	if (fast)
		EXPECT_EQ(~0ULL << AROUND | 1, entries(p, 2 * AROUND));
	EXPECT_TRUE(huge_good(p, AROUND + 1));
	huge_write(p, AROUND + 2);
	meet(m, 2);
	EXPECT_EQ(0, reap(pid));
	EXPECT_TRUE(huge_good(p, AROUND + 2));
	EXPECT_EQ(0, ftruncate(self->fd, 0));
	EXPECT_EQ(0, entries(p, 2 * AROUND));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
}

/* No fault-around while a userfaultfd is registered. */
TEST_F_TIMEOUT(hugetlb, around_userfaultfd, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_MISSING_HUGETLBFS, NULL);
	const size_t len = FILE_PAGES * huge_size();
	char *p;

	if (uffd < 0)
		SKIP(return, "no userfaultfd");
	p = map_file_in_memory(_metadata, self);
	if (!p)
		return;
	ASSERT_EQ(0, uffd_register(uffd, p, len, UFFDIO_REGISTER_MODE_MISSING));
	/* The page is in the file, so the fault is not reported. */
	EXPECT_TRUE(huge_good(p, 7));
	EXPECT_EQ(1ULL << 7, entries(p, AROUND));
	ASSERT_EQ(0, uffd_unregister(uffd, p, len));
	EXPECT_TRUE(huge_good(p, 8));
	EXPECT_EQ(self->have && variant->mode != MODE_VMA_LOCK ? AROUND : 2,
		  popcount(entries(p, AROUND)));
	close(uffd);
	ASSERT_EQ(0, munmap(p, len));
}

/* --- errors */

TEST_F_TIMEOUT(hugetlb, end_of_file, TIMEOUT)
{
	char *p = hugetlb_map(self->fd, GIB);

	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	huge_write(p, 1);
	ASSERT_EQ(0, ftruncate(self->fd, huge_size()));
	EXPECT_EQ(0, access_signal(p, true, NULL));
	EXPECT_EQ(SIGBUS, access_signal(p + huge_size(), false, NULL));
	EXPECT_EQ(SIGBUS, access_signal(p + huge_size(), true, NULL));
	ASSERT_EQ(0, ftruncate(self->fd, GIB));
	EXPECT_TRUE(huge_good(p, 0) || word_read(p) == 1);
	EXPECT_EQ(0, (long)word_read(p + huge_size()));
	ASSERT_EQ(0, munmap(p, GIB));
}

TEST_F_TIMEOUT(hugetlb, pool_empty, TIMEOUT)
{
	long pages = hugetlb_sysfs("free_hugepages");
	size_t len = (pages * huge_size() / (2 * GIB) + 1) * 2 * GIB;
	char *p = hugetlb_map(self->fd, len);
	long i;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, ftruncate(self->fd, len));
	for (i = 0; i < pages; i++)
		ASSERT_EQ(0, access_signal(p + i * huge_size(), true, NULL));
	EXPECT_EQ(SIGBUS, access_signal(p + i * huge_size(), true, NULL));
	EXPECT_EQ(SIGBUS, access_signal(p + i * huge_size(), false, NULL));
	/* Allocated pages can still be mapped. */
	ASSERT_EQ(0, madvise(p, huge_size(), MADV_DONTNEED));
	EXPECT_EQ(0, access_signal(p, false, NULL));
	ASSERT_EQ(0, munmap(p, len));
}

TEST_F_TIMEOUT(hugetlb, read_only, TIMEOUT)
{
	char path[64];
	char *p, *q;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", self->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	p = hugetlb_map(self->fd, GIB);
	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	q = hugetlb_map_at(free_huge_range(GIB), fd, GIB, PROT_READ);
	ASSERT_NE(NULL, q);
	huge_write(p, 1);
	EXPECT_TRUE(huge_good(q, 0));
	EXPECT_EQ(0, (long)word_read(q + 2 * huge_size()));
	EXPECT_EQ(SIGSEGV, access_signal(q, true, NULL));
	/* Mapped by the first access, but not for writing. */
	EXPECT_EQ(SIGSEGV, access_signal(q + huge_size(), true, NULL));
	/* Read first to create the entry, then make it writable. */
	ASSERT_EQ(0, madvise(p, huge_size(), MADV_DONTNEED));
	ASSERT_EQ(0, mprotect(p, GIB, PROT_READ));
	EXPECT_TRUE(huge_good(p, 0));
	ASSERT_EQ(0, mprotect(p, GIB, PROT_READ | PROT_WRITE));
	huge_write(p, 0);
	EXPECT_TRUE(huge_good(q, 0));
	close(fd);
	ASSERT_EQ(0, munmap(p, GIB));
	ASSERT_EQ(0, munmap(q, GIB));
}

/* --- other users of the same pages */

TEST_F_TIMEOUT(hugetlb, hole, TIMEOUT)
{
	char *p = hugetlb_map(self->fd, 2 * GIB);
	size_t second = GIB / huge_size();

	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	huge_write(p, 1);
	huge_write(p, second);
	ASSERT_TRUE(hugetlb_punch(self->fd, huge_size(), GIB));
	EXPECT_TRUE(huge_good(p, 0));
	EXPECT_EQ(0, (long)word_read(p + huge_size()));
	EXPECT_EQ(0, (long)word_read(p + GIB));
	ASSERT_EQ(0, munmap(p, 2 * GIB));
}

/* get_user_pages() faults pages in and finds present ones. */
TEST_F_TIMEOUT(hugetlb, remote_access, TIMEOUT)
{
	char *p = hugetlb_map(self->fd, GIB), *q;
	struct iovec local, remote;
	__u64 word;

	ASSERT_NE(NULL, p);
	q = hugetlb_map(self->fd, GIB);
	ASSERT_NE(NULL, q);
	huge_write(q, 1);
	local = (struct iovec) { .iov_base = &word, .iov_len = sizeof(word) };
	remote = (struct iovec) { .iov_base = p + huge_size(),
				  .iov_len = sizeof(word) };
	ASSERT_EQ((ssize_t)sizeof(word),
		  process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
	EXPECT_EQ(huge_word(1), word);
	remote.iov_base = p + 2 * huge_size();
	word = huge_word(2);
	ASSERT_EQ((ssize_t)sizeof(word),
		  process_vm_writev(getpid(), &local, 1, &remote, 1, 0));
	EXPECT_TRUE(huge_good(q, 2));
	ASSERT_EQ(0, munmap(p, GIB));
	ASSERT_EQ(0, munmap(q, GIB));
}

static void *touch_second(void *map)
{
	return (void *)(uintptr_t)word_read((char *)map + huge_size());
}

/* A fault that userspace handles is delivered to it. */
TEST_F_TIMEOUT(hugetlb, userfaultfd, TIMEOUT)
{
	struct uffdio_copy copy = {};
	int uffd = uffd_open(UFFD_FEATURE_MISSING_HUGETLBFS, NULL);
	struct pollfd ready = { .fd = uffd, .events = POLLIN };
	struct uffd_msg msg = {};
	pthread_t thread;
	char *p, *page;
	void *got;

	if (uffd < 0)
		SKIP(return, "no userfaultfd");
	p = hugetlb_map(self->fd, GIB);
	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	ASSERT_EQ(0, uffd_register(uffd, p, GIB, UFFDIO_REGISTER_MODE_MISSING));
	page = map_fresh(huge_size());
	ASSERT_NE(NULL, page);
	word_write(page, huge_word(1));
	ASSERT_EQ(0, pthread_create(&thread, NULL, touch_second, p));
	ASSERT_EQ(1, poll(&ready, 1, 60000));
	ASSERT_EQ((ssize_t)sizeof(msg), read(uffd, &msg, sizeof(msg)));
	EXPECT_EQ(UFFD_EVENT_PAGEFAULT, msg.event);
	EXPECT_EQ((uintptr_t)p + huge_size(), msg.arg.pagefault.address);
	copy.dst = (uintptr_t)p + huge_size();
	copy.src = (uintptr_t)page;
	copy.len = huge_size();
	EXPECT_EQ(0, ioctl(uffd, UFFDIO_COPY, &copy));
	ASSERT_EQ(0, pthread_join(thread, &got));
	EXPECT_EQ((uintptr_t)huge_word(1), (uintptr_t)got);
	EXPECT_TRUE(huge_good(p, 0) && huge_good(p, 1));
	close(uffd);
	ASSERT_EQ(0, munmap(page, huge_size()));
	ASSERT_EQ(0, munmap(p, GIB));
}

/* --- rare events, by fault injection */

struct injection {
	const char *name;
	const char *counter;
};

static const struct injection injections[] = {
	{ "fail_hugetlb_pmd_revalidate", "fault_retry" },
	{ "fail_hugetlb_pmd_trylock", "fault_busy" },
};

/* One failed attempt, then the path of mode 1, with the same result. */
TEST_F_TIMEOUT(hugetlb, fault_injection, TIMEOUT)
{
	const struct injection *what;
	char *p;

	if (!self->have || variant->mode != MODE_REVALIDATE)
		SKIP(return, "only for mode 2");
	if (!hugetlb_inject(injections[0].name, 0))
		SKIP(return, "needs debugfs, root and CONFIG_FAULTLINE_HUGETLB_FAULT_INJECTION");
	for (what = injections; what < injections + ARRAY_SIZE(injections);
	     what++) {
		self->before = counters_read("hugetlb_");
		p = hugetlb_map(self->fd, GIB);
		ASSERT_NE(NULL, p);
		ASSERT_TRUE(hugetlb_inject(what->name, 100));
		huge_fill(p, 8);
		ASSERT_TRUE(hugetlb_inject(what->name, 0));
		EXPECT_EQ(8, counted(&self->before, what->counter));
		EXPECT_EQ(8, counted(&self->before, "fault_fallback"));
		EXPECT_EQ(0, counted(&self->before, "fault_fast"));
		EXPECT_EQ(0, huge_bad(p, 8));
		ASSERT_EQ(0, munmap(p, GIB));
		ASSERT_EQ(0, ftruncate(self->fd, 0));
		ASSERT_EQ(0, ftruncate(self->fd, GIB));
	}
}

static bool slabs_fail(bool fail)
{
	const struct fault_setting settings[] = {
		{ "ignore-gfp-wait", fail ? "N" : "Y" }, { "verbose", "0" },
	};

	return fault_attr_set("failslab", settings, ARRAY_SIZE(settings));
}

/*
 * Each allocation of a fault fails once: page tables and the file's own data.
 * The fault is retried, and nothing is lost or leaked.
 */
TEST_F_TIMEOUT(hugetlb, memory_short, TIMEOUT)
{
	char *p = hugetlb_map(self->fd, 3 * GIB), text[16];
	int nth, left, injected = 0, fd;

	ASSERT_NE(NULL, p);
	fd = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fd < 0 || !page_tables_fail(true) || !slabs_fail(true)) {
		close(fd);
		ASSERT_EQ(0, munmap(p, 3 * GIB));
		SKIP(return, "needs debugfs, root, CONFIG_FAIL_PAGE_ALLOC and CONFIG_FAILSLAB");
	}
	for (nth = 1; nth < 50; nth++) {
		size_t page = GIB / huge_size() * (nth % 3) + nth % 4;

		snprintf(text, sizeof(text), "%d", nth);
		ASSERT_EQ((ssize_t)strlen(text),
			  pwrite(fd, text, strlen(text), 0));
		huge_write(p, page);
		left = pread(fd, text, sizeof(text) - 1, 0);
		pwrite(fd, "0", 1, 0);
		ASSERT_LT(0, left);
		text[left] = '\0';
		EXPECT_TRUE(huge_good(p, page));
		/* Start with a fresh table and page every time. */
		ASSERT_EQ(0, ftruncate(self->fd, 0));
		ASSERT_EQ(0, ftruncate(self->fd, 3 * GIB));
		ASSERT_EQ(0, munmap(p, 3 * GIB));
		ASSERT_EQ(p, hugetlb_map_at(p, self->fd, 3 * GIB,
					    PROT_READ | PROT_WRITE));
		if (atoi(text))
			break;
		injected++;
	}
	page_tables_fail(false);
	slabs_fail(false);
	close(fd);
	EXPECT_LT(0, injected);
	EXPECT_GT(50, nth);
	ASSERT_EQ(0, munmap(p, 3 * GIB));
}

int main(int argc, char **argv)
{
	return hugetlb_kept(&hugetlb_knob, test_harness_run, argc, argv);
}
