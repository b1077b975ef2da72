// SPDX-License-Identifier: GPL-2.0-only
/*
 * hugetlb page table sharing against everything that removes pages and page
 * tables.
 *
 * Several processes map one file at the same address, so that they can share
 * page tables.  In each of them, threads read and write pages: a page must hold
 * the word of its file offset, or 0 where a test removes pages from the file.
 * One more thread per process performs the operation under test.  At the end,
 * the huge page pool and the count of shared tables must be as before.
 *
 * Variants: the three modes; "inject", where faults in mode 2 often find their
 * table changed or busy; "flip", where the mode changes continuously.
 */
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "hugetlb_util.h"
#include "race.h"

#define PROCESSES	3
#define TOUCHERS	2
/* Pages in use, half of them in each of two page tables. */
#define PAGES		32
/* Spare pages, as removed pages may not be free yet. */
#define POOL		(PAGES + 32)
#define LENGTH		(2 * GIB)
/* A page that is soft-offlined is lost to the pool. */
#define MAX_OFFLINE	6

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE	101
#endif

FIXTURE(hugetlb_race) {
	struct world *w;
	struct hugetlb_usage usage;
};

FIXTURE_VARIANT(hugetlb_race) {
	enum hugetlb_mode mode;
	bool flip;
	int inject;	/* percent of the faults */
};

FIXTURE_VARIANT_ADD(hugetlb_race, off) { .mode = MODE_OFF };
FIXTURE_VARIANT_ADD(hugetlb_race, vma_lock) { .mode = MODE_VMA_LOCK };
FIXTURE_VARIANT_ADD(hugetlb_race, revalidate) { .mode = MODE_REVALIDATE };
FIXTURE_VARIANT_ADD(hugetlb_race, inject) {
	.mode = MODE_REVALIDATE, .inject = 30
};

FIXTURE_VARIANT_ADD(hugetlb_race, flip) {
	.mode = MODE_REVALIDATE, .flip = true
};

struct player;

/* One test. */
struct race_op {
	/* Performs one step; false if the kernel does not support it. */
	bool (*act)(struct player *p);
	/* Pages may vanish from the file and read as 0. */
	bool loses;
	/* Parts of the mapping may be unmapped or read-only. */
	bool faults;
	/* Only the first process has touchers. */
	bool lone;
	/* The first process has an MMU notifier. */
	bool notified;
	/* Additional pool pages, for each process. */
	long extra;
};

/* In memory shared by all processes. */
struct world {
	const FIXTURE_VARIANT(hugetlb_race) *variant;
	struct race_run run;
	const struct race_op *op;
	int fd;
	char *map;
	atomic_long touches;
	atomic_long signals;
	atomic_long offlined;
};

struct player {
	struct world *w;
	int id;
	__u64 seed;
	int pipe[2];
	int loop;
	__u64 generation;
	char *spare;		/* address space for mremap() */
	int uffd;
	int pagemap;
	int nth;		/* fail-nth of this thread */
};

/* Mode 0 only prevents new sharing; the trigger unshares. */
static void trigger_unshare(int turn, long mode)
{
	if (mode == MODE_OFF && !(turn % 7))
		vm_sysctl_write(HUGETLB_TRIGGER, 1);
}

static const struct flips hugetlb_flips = {
	.name = HUGETLB_KNOB,
	.values = { 2, 0, 2, 1, 0, 1 },
	.n = 6,
	/* Changes from and to mode 1 flip static keys. */
	.n_keyless = 2,
	.written = trigger_unshare,
};

static const struct race_feature race_feature = {
	.knob = &hugetlb_knob,
	.flips = &hugetlb_flips,
	.counters = "hugetlb_",
};

/* --- pages */

/* Half of the pages in use are in the first GiB, half in the second. */
static size_t page_offset(size_t n)
{
	size_t half = PAGES / 2;

	return n < half ? n * 3 * huge_size() :
	       GIB + (n - half) * 5 * huge_size();
}

static __u64 *page_at(const struct world *w, size_t n)
{
	return (__u64 *)(w->map + page_offset(n));
}

static size_t any_page(struct player *p)
{
	return random_next(&p->seed) % PAGES;
}

/* Returns the signal that this raises, or 0. */
static int put_word(const struct world *w, size_t n)
{
	int sig = try_write(page_at(w, n), huge_word(n));

	/* Far away in the same page, to detect a page of another size. */
	return sig ? sig : try_write((char *)page_at(w, n) + huge_size() / 2,
				     huge_word(n));
}

static bool word_allowed(const struct world *w, size_t n, __u64 word)
{
	return word == huge_word(n) || (w->op->loses && !word);
}

static void touch(struct player *p)
{
	struct world *w = p->w;
	size_t n = any_page(p);
	__u64 word, other;

	if ((random_next(&p->seed) % 2 && put_word(w, n)) ||
	    try_read(page_at(w, n), &word) ||
	    try_read((char *)page_at(w, n) + huge_size() / 2, &other)) {
		atomic_fetch_add(&w->signals, 1);
		if (!w->op->faults)
			atomic_fetch_add(&w->run.wrong, 1);
		return;
	}
	if (!word_allowed(w, n, word) || !word_allowed(w, n, other))
		atomic_fetch_add(&w->run.wrong, 1);
	atomic_fetch_add(&w->touches, 1);
}

/* --- threads */

static void *toucher(void *arg)
{
	struct player *p = arg;

	if (p->w->op->lone && p->id)
		return NULL;
	while (!atomic_load(&p->w->run.stop))
		touch(p);
	return NULL;
}

static void *actor(void *arg)
{
	struct player *p = arg;

	while (!atomic_load(&p->w->run.stop)) {
		if (!p->w->op->act(p)) {
			atomic_store(&p->w->run.cannot, true);
			break;
		}
		atomic_fetch_add(&p->w->run.acts, 1);
	}
	return NULL;
}

static bool map_again(struct player *p, size_t offset, size_t len)
{
	char *addr = p->w->map + offset;

	return mmap(addr, len, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, p->w->fd,
		    offset) == addr;
}

static void must(struct player *p, bool success)
{
	if (!success)
		atomic_fetch_add(&p->w->run.failed, 1);
}

/* One process of the race; runs until world.stop. */
static int play(struct world *w, int id)
{
	struct player players[TOUCHERS + 1];
	pthread_t threads[TOUCHERS + 1];
	int i;

	catch_faults();
	for (i = 0; i <= TOUCHERS; i++) {
		players[i] = (struct player) {
			.w = w,
			.id = id,
			.seed = 1000 * id + i + 1,
			.loop = -1,
			.uffd = -1,
			.pagemap = -1,
			.nth = -1,
		};
	}
	/* Kernels without the file have no such checks. */
	if (w->op->notified && !id)
		write_text("/sys/kernel/debug/hugetlb_notifier", "1");
	if (pipe(players[TOUCHERS].pipe))
		return 1;
	/* Not aligned, so that no whole table can be shared there. */
	players[TOUCHERS].spare = free_huge_range(GIB);
	if (!players[TOUCHERS].spare)
		return 2;
	players[TOUCHERS].spare += 3 * huge_size();
	for (i = 0; i <= TOUCHERS; i++)
		if (pthread_create(&threads[i], NULL,
				   i < TOUCHERS ? toucher : actor, &players[i]))
			return 3;
	for (i = 0; i <= TOUCHERS; i++)
		pthread_join(threads[i], NULL);
	loop_device_free(players[TOUCHERS].loop);
	return 0;
}

/* --- a round */

static long refused(const struct counters *d)
{
	return counter(d, "fault_retry") + counter(d, "fault_busy");
}

/* Whether everything that a test expects has happened at least once. */
static bool has_raced(const struct world *w)
{
	const FIXTURE_VARIANT(hugetlb_race) *variant = w->variant;
	struct counters d = counters_since(&w->run.before);

	if (!atomic_load(&w->run.acts) || !atomic_load(&w->touches))
		return false;
	/* Without the switch, there are no counters. */
	if (!vm_sysctl_exists(HUGETLB_KNOB))
		return true;
	if (variant->inject && !refused(&d))
		return false;
	if (variant->mode != MODE_VMA_LOCK && !variant->inject &&
	    !counter(&d, "fault_fast"))
		return false;
	return variant->flip || variant->mode == MODE_OFF ||
	       counter(&d, "pmd_shared") > 0;
}

static void expect_raced(struct __test_metadata *_metadata, struct world *w)
{
	const FIXTURE_VARIANT(hugetlb_race) *variant = w->variant;
	struct counters d = run_report(_metadata, &w->run);
	bool have = vm_sysctl_exists(HUGETLB_KNOB);

	TH_LOG("%ld touches, %ld signals", atomic_load(&w->touches),
	       atomic_load(&w->signals));
	EXPECT_LT(0, atomic_load(&w->touches));
	if (have && variant->mode != MODE_VMA_LOCK && !variant->inject)
		EXPECT_LT(0, counter(&d, "fault_fast"));
	if (variant->inject)
		EXPECT_LT(0, refused(&d));
	if (have && !variant->flip) {
		EXPECT_EQ(variant->mode != MODE_OFF,
			  counter(&d, "pmd_shared") > 0);
		if (variant->mode == MODE_VMA_LOCK) {
			EXPECT_EQ(0, counter(&d, "fault_fast"));
			EXPECT_EQ(0, counter(&d, "zap_unlocked"));
		}
	}
}

/* The counters of a kernel that looks for mistakes by itself. */
static void expect_no_trouble(struct __test_metadata *_metadata)
{
	static const char * const files[] = {
		"/sys/kernel/debug/hugetlb_lost_tables",
		"/sys/kernel/debug/hugetlb_unnotified",
	};
	char text[32];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(files); i++)
		if (!read_text(files[i], text, sizeof(text)))
			EXPECT_EQ(0, atol(text));
}

/* Closes the file; pages and page tables are then as before. */
static void expect_freed(struct __test_metadata *_metadata, struct world *w,
			 struct hugetlb_usage *usage)
{
	struct stat st;

	/* At size 0, a file has no pages. */
	EXPECT_EQ(0, ftruncate(w->fd, 0));
	EXPECT_EQ(0, fstat(w->fd, &st));
	if (vm_sysctl_exists(HUGETLB_KNOB))
		EXPECT_EQ(0, st.st_blocks);
	close(w->fd);
	w->fd = -1;
	usage->total -= atomic_load(&w->offlined);
	usage->free -= atomic_load(&w->offlined);
	EXPECT_TRUE(hugetlb_usage_returns(usage));
}

static void race(struct __test_metadata *_metadata,
		 FIXTURE_DATA(hugetlb_race) *self, const struct race_op *op)
{
	const char *why = hugetlb_pool_get(POOL + op->extra * PROCESSES);
	struct world *w = self->w;
	pid_t pids[PROCESSES];
	int i;

	if (why)
		SKIP(return, "%s", why);
	hugetlb_usage_read(&self->usage);
	w->op = op;
	run_begin(_metadata, &w->run);
	w->fd = hugetlb_file(LENGTH);
	ASSERT_LE(0, w->fd);
	w->map = hugetlb_map(w->fd, LENGTH);
	ASSERT_NE(NULL, w->map);
	for (i = 0; i < PAGES; i++)
		put_word(w, i);
	run_fork(_metadata, w, pids, PROCESSES, play);
	/* This process would keep page tables from becoming empty. */
	if (op->lone)
		EXPECT_EQ(0, munmap(w->map, LENGTH));
	run_wait(_metadata, &w->run, w, pids, PROCESSES, has_raced);
	EXPECT_EQ(0, munmap(w->map, LENGTH));
	expect_raced(_metadata, w);
	expect_no_trouble(_metadata);
	expect_freed(_metadata, w, &self->usage);
	if (atomic_load(&w->run.cannot))
		SKIP(return, "not supported by this kernel");
	EXPECT_LT(0, atomic_load(&w->run.acts));
}

static bool inject(int percent)
{
	return hugetlb_inject("fail_hugetlb_pmd_revalidate", percent) &&
	       hugetlb_inject("fail_hugetlb_pmd_trylock", percent);
}

FIXTURE_SETUP(hugetlb_race)
{
	const char *why;

	self->w = map_shared(sizeof(*self->w));
	ASSERT_NE(NULL, self->w);
	self->w->variant = variant;
	self->w->fd = -1;
	why = run_set(&self->w->run, variant->mode, variant->flip);
	if (!why && variant->inject && !inject(variant->inject))
		why = "needs debugfs, root and CONFIG_FAULTLINE_HUGETLB_FAULT_INJECTION";
	if (why)
		SKIP(return, "%s", why);
}

FIXTURE_TEARDOWN(hugetlb_race)
{
	if (variant->inject)
		inject(0);
	run_end(&self->w->run);
	if (self->w->fd >= 0)
		close(self->w->fd);
}

#define RACE(...)	RACE_OF(hugetlb_race, __VA_ARGS__)

/* --- the races */

/* Unshares page tables that other processes share. */
static bool act_discard(struct player *p)
{
	size_t n = any_page(p);

	must(p, !madvise(p->w->map + (n < PAGES / 2 ? 0 : GIB), GIB / 2,
			 MADV_DONTNEED));
	must(p, !madvise(page_at(p->w, n), huge_size(), MADV_DONTNEED));
	return true;
}

RACE(discard)

static bool act_truncate(struct player *p)
{
	size_t n = any_page(p);

	must(p, !ftruncate(p->w->fd, page_offset(n)));
	must(p, !ftruncate(p->w->fd, LENGTH));
	return true;
}

RACE(truncate, .loses = true, .faults = true)

static bool act_punch(struct player *p)
{
	size_t n = any_page(p);

	must(p, hugetlb_punch(p->w->fd, page_offset(n), 7 * huge_size()));
	return true;
}

RACE(punch, .loses = true)

/* The word of a page that only this process writes. */
static void *own_word(struct player *p, size_t n)
{
	return (char *)page_at(p->w, n) + (1 + p->id) * page_size();
}

/*
 * The content of a hole is gone when the call returns, although other threads
 * fault on its neighbours and map pages that are still there.
 */
static bool act_punch_exact(struct player *p)
{
	size_t n = any_page(p);

	word_write(own_word(p, n), ++p->generation);
	must(p, hugetlb_punch(p->w->fd, page_offset(n), huge_size()));
	if (word_read(own_word(p, n)))
		atomic_fetch_add(&p->w->run.wrong, 1);
	return true;
}

RACE(punch_exact, .loses = true)

/*
 * Pages that no process has mapped: removing them does not take the lock of the
 * page table that a fault of the first process fills.
 */
static bool act_punch_unmapped(struct player *p)
{
	size_t n = any_page(p), end = page_offset(n) + 7 * huge_size(), m;

	if (p->id) {
		word_read(page_at(p->w, n));
		must(p, !madvise(p->w->map, LENGTH, MADV_DONTNEED));
		usleep(1000);
		return true;
	}
	for (m = n; m < PAGES && page_offset(m) < end; m++)
		word_write(own_word(p, m), ++p->generation);
	must(p, !madvise(p->w->map, LENGTH, MADV_DONTNEED));
	must(p, hugetlb_punch(p->w->fd, page_offset(n), end - page_offset(n)));
	for (m = n; m < PAGES && page_offset(m) < end; m++)
		if (word_read(own_word(p, m)))
			atomic_fetch_add(&p->w->run.wrong, 1);
	return true;
}

RACE(punch_unmapped, .loses = true, .lone = true)

/* Zaps the entries of a page, or removes the page. */
static bool act_forget(struct player *p)
{
	size_t n = any_page(p);

	if (p->id % 2)
		return act_punch_exact(p);
	must(p, !madvise(page_at(p->w, n), huge_size(), MADV_DONTNEED));
	return true;
}

RACE(forget, .loses = true)

/* Everything beyond the new end is gone, from page tables and the file. */
static bool act_truncate_exact(struct player *p)
{
	size_t n = any_page(p), m;
	struct stat st;
	__u64 word = 0;

	/* Only one process may change the size. */
	if (p->id) {
		usleep(1000);
		return true;
	}
	for (m = 0; m < PAGES; m++)
		word_write(own_word(p, m), ++p->generation);
	/* Faults then map many pages at once, on both sides of the end. */
	must(p, !madvise(p->w->map, LENGTH, MADV_DONTNEED));
	must(p, !ftruncate(p->w->fd, page_offset(n)));
	must(p, !fstat(p->w->fd, &st) &&
	     (size_t)st.st_blocks <= page_offset(n) / 512);
	/* Time for a fault that is already in flight. */
	if (random_next(&p->seed) % 2)
		usleep(random_next(&p->seed) % 10000);
	for (m = n; m < PAGES; m++)
		if (try_read(own_word(p, m), &word) != SIGBUS)
			atomic_fetch_add(&p->w->run.wrong, 1);
	must(p, !ftruncate(p->w->fd, LENGTH));
	for (m = n; m < PAGES; m++)
		if (try_read(own_word(p, m), &word) || word)
			atomic_fetch_add(&p->w->run.wrong, 1);
	return true;
}

RACE(truncate_exact, .loses = true, .faults = true)

/*
 * All processes stop sharing a page table, each in its own way, while a thread
 * of the first one faults on it.
 */
static bool act_leave(struct player *p)
{
	if (!p->id) {
		must(p, !madvise(p->w->map, LENGTH, MADV_DONTNEED));
		return true;
	}
	must(p, !munmap(p->w->map, LENGTH));
	/* Otherwise the freed table is reused at once. */
	usleep(random_next(&p->seed) % 10000);
	must(p, map_again(p, 0, LENGTH));
	word_read(page_at(p->w, 0));
	word_read(page_at(p->w, PAGES - 1));
	return true;
}

RACE(leave, .lone = true)

/* A whole page table, or half of it: the rest must not be shared then. */
static bool act_unmap(struct player *p)
{
	size_t offset = random_next(&p->seed) % 2 * GIB;
	size_t len = random_next(&p->seed) % 2 ? GIB : GIB / 2;

	must(p, !munmap(p->w->map + offset, len));
	must(p, map_again(p, offset, len));
	return true;
}

RACE(unmap, .faults = true)

/*
 * Other memory replaces half of a table: it must not show up in the file, nor
 * the file in it.
 */
static bool act_replace(struct player *p)
{
	char *addr = p->w->map + random_next(&p->seed) % 2 * GIB;
	char *q = mmap(addr, GIB / 2, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
		       -1, 0);
	size_t i, ps = page_size();

	must(p, q == addr);
	if (q != addr)
		return true;
	/* Not a page in use: other threads may write there. */
	for (i = 1; i <= 8; i++)
		word_write(q + huge_size() + i * ps, i);
	for (i = 1; i <= 8; i++)
		must(p, word_read(q + huge_size() + i * ps) == i);
	must(p, map_again(p, addr - p->w->map, GIB / 2));
	return true;
}

RACE(replace, .loses = true, .faults = true)

static bool act_fork(struct player *p)
{
	pid_t pid = fork();
	size_t n;

	if (!pid) {
		for (n = 0; n < PAGES; n += 5)
			if (word_read(page_at(p->w, n)) != huge_word(n))
				_exit(1);
		_exit(0);
	}
	must(p, !reap(pid));
	return true;
}

RACE(fork)

static bool act_protect(struct player *p)
{
	size_t offset = random_next(&p->seed) % 2 * GIB;
	size_t len = random_next(&p->seed) % 2 ? GIB : 64 * huge_size();

	must(p, !mprotect(p->w->map + offset, len, PROT_READ));
	must(p, !mprotect(p->w->map + offset, len, PROT_READ | PROT_WRITE));
	return true;
}

RACE(protect, .faults = true)

/* Moves less than a whole page table away and back. */
static bool act_move(struct player *p)
{
	char *from = p->w->map + random_next(&p->seed) % 2 * GIB;
	size_t len = 100 * huge_size();
	char *to;

	to = mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, p->spare);
	must(p, to == p->spare);
	if (to != p->spare)
		return true;
	to = mremap(p->spare, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, from);
	must(p, to == from);
	return true;
}

RACE(move, .faults = true)

/* Registering for write protection unshares; nothing gets protected. */
static bool act_userfaultfd(struct player *p)
{
	if (p->uffd < 0) {
		p->uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP |
				    UFFD_FEATURE_WP_HUGETLBFS_SHMEM, NULL);
		if (p->uffd < 0)
			return false;
	}
	if (uffd_register(p->uffd, p->w->map, GIB, UFFDIO_REGISTER_MODE_WP))
		return false;
	usleep(200);
	must(p, !uffd_unregister(p->uffd, p->w->map, GIB));
	return true;
}

RACE(userfaultfd)

/*
 * The first process looks at a page table entry: its page is one of the file.
 * Others remove that page from the file and use it as private memory.
 */
static bool act_scan(struct player *p)
{
	struct page_region region;
	struct pm_scan_arg arg = {
		.size = sizeof(arg),
		.start = (uintptr_t)p->w->map,
		.end = (uintptr_t)p->w->map + huge_size(),
		.vec = (uintptr_t)&region,
		.vec_len = 1,
		.category_mask = PAGE_IS_PRESENT,
		.return_mask = PAGE_IS_FILE,
	};
	char *q;
	long n;

	if (p->id) {
		must(p, hugetlb_punch(p->w->fd, 0, huge_size()));
		q = mmap(NULL, huge_size(), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		must(p, q != MAP_FAILED);
		if (q == MAP_FAILED)
			return true;
		word_write(q, 1);
		must(p, !munmap(q, huge_size()));
		/* In the second page table, which may be shared. */
		word_read(page_at(p->w, PAGES - 1));
		return true;
	}
	if (p->pagemap < 0)
		p->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	word_read(p->w->map);
	n = ioctl(p->pagemap, PAGEMAP_SCAN, &arg);
	if (n < 0)
		return false;
	if (n && !(region.categories & PAGE_IS_FILE))
		atomic_fetch_add(&p->w->run.wrong, 1);
	return true;
}

RACE(scan, .loses = true, .lone = true, .extra = 2)

/*
 * mremap() runs out of memory halfway and moves the pages back, to a page table
 * that another process may share by now.
 */
static bool act_move_fails(struct player *p)
{
	const size_t len = 100 * huge_size();
	/* In two page tables: the second one cannot be allocated. */
	char *to = p->spare + GIB - 10 * huge_size(), *got;
	char text[16];
	int err;

	if (p->id) {
		/* The first process shares this page table, or has it alone. */
		must(p, !madvise(p->w->map, GIB, MADV_DONTNEED));
		usleep(random_next(&p->seed) % 2000);
		word_read(page_at(p->w, 0));
		return true;
	}
	if (p->nth < 0)
		p->nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	snprintf(text, sizeof(text), "%d", (int)++p->generation);
	if (pwrite(p->nth, text, strlen(text), 0) != (ssize_t)strlen(text))
		return false;
	got = mremap(p->w->map, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	err = errno;
	must(p, pwrite(p->nth, "0", 1, 0) == 1);
	if (got == MAP_FAILED) {
		must(p, err == ENOMEM);
		return true;
	}
	/* The call makes fewer allocations: start with the first again. */
	p->generation = 0;
	must(p, !munmap(to, len));
	must(p, !munmap(p->w->map, LENGTH));
	must(p, map_again(p, 0, LENGTH));
	return true;
}

TEST_F_TIMEOUT(hugetlb_race, move_fails, TIMEOUT)
{
	static const struct race_op op = {
		.act = act_move_fails,
		.faults = true,
		.lone = true,
		.notified = true,
	};

	if (!page_tables_fail(true))
		SKIP(return, "needs debugfs, root and CONFIG_FAIL_PAGE_ALLOC");
	race(_metadata, self, &op);
	page_tables_fail(false);
}

/* To the other node and back; use numa=fake=2 to get one. */
static bool act_migrate(struct player *p)
{
	void *pages[PAGES];
	int nodes[PAGES], status[PAGES];
	size_t i;

	for (i = 0; i < PAGES; i++) {
		pages[i] = page_at(p->w, i);
		nodes[i] = random_next(&p->seed) % 2;
	}
	/* A busy page stays; move_pages() does not fail then. */
	return syscall(SYS_move_pages, 0, (unsigned long)PAGES, pages, nodes,
		       status, MPOL_MF_MOVE_ALL) >= 0;
}

RACE(migrate, .extra = PAGES)

static bool act_offline(struct player *p)
{
	long before = hugetlb_sysfs("nr_hugepages");

	if (atomic_fetch_add(&p->w->offlined, 1) >= MAX_OFFLINE) {
		atomic_fetch_sub(&p->w->offlined, 1);
		usleep(1000);
		return true;
	}
	if (madvise(page_at(p->w, any_page(p)), page_size(),
		    MADV_SOFT_OFFLINE)) {
		atomic_fetch_sub(&p->w->offlined, 1);
		/* Otherwise busy or not present: try another one. */
		if (errno == EINVAL || errno == EPERM)
			return false;
	} else {
		must(p, hugetlb_sysfs("nr_hugepages") <= before);
	}
	return true;
}

RACE(offline, .extra = MAX_OFFLINE)

/* get_user_pages_fast() walks page tables without a lock. */
static bool act_pin(struct player *p)
{
	size_t n = any_page(p);
	struct iovec iov = {
		.iov_base = page_at(p->w, n),
		.iov_len = sizeof(__u64),
	};
	__u64 word = 0;

	if (vmsplice(p->pipe[1], &iov, 1, 0) != sizeof(word))
		return false;
	/* Unshare the table while the pipe has the page. */
	must(p, !madvise(page_at(p->w, n), huge_size(), MADV_DONTNEED));
	must(p, read(p->pipe[0], &word, sizeof(word)) == sizeof(word));
	if (!word_allowed(p->w, n, word))
		atomic_fetch_add(&p->w->run.wrong, 1);
	return true;
}

RACE(pin)

#define SECTOR		512

/*
 * A device writes a fresh word into this process's part of a page: reads must
 * return it, also through a new page table entry.
 */
static bool act_direct(struct player *p)
{
	char space[2 * SECTOR];
	/* Aligned for O_DIRECT. */
	char *buffer = space + SECTOR - (uintptr_t)space % SECTOR;
	char *page = (char *)page_at(p->w, any_page(p));
	char *sector = page + (1 + p->id) * SECTOR;
	__u64 word = page_word(HUGETLB_TAG + 1 + p->id, ++p->generation);

	if (p->loop < 0)
		p->loop = loop_device(SECTOR);
	word_write(buffer, word);
	if (p->loop < 0 || pwrite(p->loop, buffer, SECTOR, 0) != SECTOR)
		return false;
	must(p, pread(p->loop, sector, SECTOR, 0) == SECTOR);
	if (word_read(sector) != word)
		atomic_fetch_add(&p->w->run.wrong, 1);
	must(p, !madvise(page, huge_size(), MADV_DONTNEED));
	if (word_read(sector) != word)
		atomic_fetch_add(&p->w->run.wrong, 1);
	return true;
}

RACE(direct)

int main(int argc, char **argv)
{
	if (!env_seconds("FAULTLINE_SECONDS", &opt_seconds))
		return KSFT_FAIL;
	return hugetlb_kept(&hugetlb_knob, test_harness_run, argc, argv);
}
