// SPDX-License-Identifier: GPL-2.0-only
/*
 * get_user_pages_fast(), by all the system calls that reach it, against page
 * tables that are freed or unshared.
 *
 * "collapse": threads collapse memory into huge pages and split them again,
 * others have the kernel read and write single pages of it.  A page holds the
 * word of its index, or 0 where a test discards pages.  Each walker also has
 * pages of its own, where it checks that it and the kernel access the same
 * page: one writes a word, the other has to read it.
 *
 * "unshare": two processes share a page table of a hugetlb file.  One of them
 * unshares it and shares it again, while its threads have the kernel read pages
 * through it.  The other one puts a private secret into the table, and removes
 * it before the table is shared again: nobody else may read the secret.
 *
 * "table": memory is unmapped and mapped again under the walkers, while the
 * kernel has no memory to batch the page tables that it frees.
 *
 * Variants: the switch off, on, and changing continuously.  The race windows
 * are wider on a kernel with CONFIG_FAULTLINE_PMD_CLEAR_TORTURE: by default as
 * wide as a test needs on an idle machine, else FAULTLINE_WINDOW us.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <mm/gup_test.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "hugetlb_util.h"
#include "pmd_clear_util.h"
#include "race.h"

#define WALKERS		3
/* In us.  A collapse takes some 100 us, a time slice somewhat more. */
#define COLLAPSE_WINDOW	20
#define UNSHARE_WINDOW	1000
#define TABLE_WINDOW	200
#define AREAS		4
#define TAG		0x70745f73796e6302ULL
#define SECRET		0x7365637265742121ULL
/* Returned by a walk that the kernel does not support: not tried again. */
#define NEVER		(-1)

/* In us, instead of those above; 0 stands for those. */
static long opt_window;

/* In memory shared by all processes of a test. */
struct world {
	struct race_run run;
	char *map;
	size_t pages;		/* pages of the map in use */
	size_t stride;		/* bytes from one page to the next */
	__u64 (*word)(size_t index);
	bool (*loses)(size_t index);
	bool owned;		/* each walker has pages of its own */
	int fd;
	int loop;		/* a block device, or -1 */
	atomic_long walks[8];
	atomic_int turn;
};

FIXTURE(pmd_clear_race) {
	struct world *w;
	struct table_usage usage;
	struct hugetlb_usage pool;
};

FIXTURE_VARIANT(pmd_clear_race) {
	enum pmd_clear_mode mode;
	bool flip;
};

FIXTURE_VARIANT_ADD(pmd_clear_race, stock) { .mode = MODE_STOCK };
FIXTURE_VARIANT_ADD(pmd_clear_race, ipi_free) { .mode = MODE_IPI_FREE };
FIXTURE_VARIANT_ADD(pmd_clear_race, flip) {
	.mode = MODE_IPI_FREE, .flip = true
};

static const struct race_feature race_feature = {
	.knob = &pmd_clear_knob,
	.flips = &pmd_clear_flips,
	.counters = "pmd_clear_",
};

/* --- walkers: have the kernel walk to a page, then check its content */

struct walker {
	struct world *w;
	int id;
	__u64 seed;
	__u64 generation;
	int pipe[2];
	void *buffer;		/* a page outside the map */
};

static void must(struct world *w, bool success)
{
	if (!success)
		atomic_fetch_add(&w->run.failed, 1);
}

static void *page_at(const struct world *w, size_t index)
{
	return w->map + index * w->stride;
}

/* Of each OWN_EACH pages, the last ones belong to one walker each. */
#define OWN_EACH	32

static bool is_own(const struct world *w, size_t index)
{
	return w->owned && index % OWN_EACH >= OWN_EACH - WALKERS;
}

static void look(struct world *w, size_t index, __u64 word)
{
	if (is_own(w, index))
		return;
	if (word != w->word(index) && (word || !w->loses || !w->loses(index)))
		atomic_fetch_add(&w->run.wrong, 1);
}

static void *own_page(const struct walker *k, size_t index)
{
	return page_at(k->w, index / OWN_EACH * OWN_EACH + OWN_EACH - 1 - k->id);
}

/* The pipe holds the page for a while. */
static long walk_vmsplice(struct walker *k, size_t index)
{
	struct iovec iov = {
		.iov_base = page_at(k->w, index),
		.iov_len = sizeof(__u64),
	};
	__u64 word;

	if (vmsplice(k->pipe[1], &iov, 1, 0) != sizeof(word))
		return errno == EFAULT ? 0 : NEVER;
	if (read(k->pipe[0], &word, sizeof(word)) != sizeof(word))
		return NEVER;
	look(k->w, index, word);
	return 1;
}

/* Several pages in one walk. */
static long walk_vmsplice_many(struct walker *k, size_t index)
{
	struct iovec iov[4];
	__u64 words[4];
	ssize_t got;
	int i;

	if (index + 4 > k->w->pages)
		return 0;
	for (i = 0; i < 4; i++) {
		iov[i].iov_base = page_at(k->w, index + i);
		iov[i].iov_len = sizeof(__u64);
	}
	got = vmsplice(k->pipe[1], iov, 4, 0);
	if (got <= 0)
		return errno == EFAULT ? 0 : NEVER;
	if (read(k->pipe[0], words, got) != got)
		return NEVER;
	for (i = 0; i < (int)(got / sizeof(__u64)); i++)
		look(k->w, index + i, words[i]);
	return 1;
}

static long walk_process_vm(struct walker *k, size_t index)
{
	__u64 word;
	struct iovec mine = { .iov_base = &word, .iov_len = sizeof(word) };
	struct iovec theirs = {
		.iov_base = page_at(k->w, index),
		.iov_len = sizeof(word),
	};

	if (process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) !=
	    sizeof(word))
		return errno == EFAULT ? 0 : NEVER;
	look(k->w, index, word);
	return 1;
}

/*
 * A shared futex is looked up by its page.  Words are odd or 0, so that 2 is
 * never found, and nobody sleeps.
 */
static long walk_futex(struct walker *k, size_t index)
{
	static const struct timespec second = { .tv_sec = 1 };

	if (!syscall(SYS_futex, page_at(k->w, index), FUTEX_WAIT, 2, &second,
		     NULL, 0))
		return NEVER;
	if (errno == ETIMEDOUT)
		atomic_fetch_add(&k->w->run.wrong, 1);
	return errno == EAGAIN ? 1 : errno == EFAULT ? 0 : NEVER;
}

/* The device reads the page itself, into a block of the walker. */
static long walk_direct(struct walker *k, size_t index)
{
	size_t ps = page_size();
	off_t offset = k->id * ps;

	if (k->w->loop < 0)
		return NEVER;
	if (pwrite(k->w->loop, page_at(k->w, index), ps, offset) !=
	    (ssize_t)ps)
		return errno == EFAULT ? 0 : NEVER;
	if (pread(k->w->loop, k->buffer, ps, offset) != (ssize_t)ps)
		return NEVER;
	look(k->w, index, word_read(k->buffer));
	return 1;
}

/* A word that was never used before. */
static __u64 new_word(struct walker *k)
{
	return page_word(~(__u64)TAG - k->id, ++k->generation);
}

/* The device writes the page: a read must return its word. */
static long walk_own_direct(struct walker *k, size_t index)
{
	size_t ps = page_size();
	off_t offset = k->id * ps;
	__u64 word = new_word(k);
	void *own;

	if (k->w->loop < 0)
		return NEVER;
	own = own_page(k, index);
	word_write(k->buffer, word);
	if (pwrite(k->w->loop, k->buffer, ps, offset) != (ssize_t)ps)
		return NEVER;
	if (pread(k->w->loop, own, ps, offset) != (ssize_t)ps)
		return errno == EFAULT ? 0 : NEVER;
	if (word_read(own) != word)
		atomic_fetch_add(&k->w->run.wrong, 1);
	return 1;
}

/* The pipe has the page: it must return the word we write. */
static long walk_own_vmsplice(struct walker *k, size_t index)
{
	__u64 word = new_word(k), got = 0;
	struct iovec iov = { .iov_len = sizeof(got) };

	if (!k->w->owned)
		return NEVER;
	iov.iov_base = own_page(k, index);
	if (vmsplice(k->pipe[1], &iov, 1, 0) != sizeof(got))
		return errno == EFAULT ? 0 : NEVER;
	word_write(iov.iov_base, word);
	if (read(k->pipe[0], &got, sizeof(got)) != sizeof(got))
		return NEVER;
	if (got != word)
		atomic_fetch_add(&k->w->run.wrong, 1);
	return 1;
}

/* The kernel pins the pages itself and checks them. */
static long walk_gup_test(struct walker *k, size_t index)
{
	static atomic_int fd = -1;
	struct gup_test gup = {
		.addr = (uintptr_t)page_at(k->w, index),
		.size = page_size(),
		.nr_pages_per_call = 1,
		.gup_flags = index & 1,		/* FOLL_WRITE */
	};

	if (atomic_load(&fd) < 0) {
		int new = open("/sys/kernel/debug/gup_test", O_RDWR | O_CLOEXEC);

		if (new < 0)
			return NEVER;
		atomic_store(&fd, new);
	}
	return !ioctl(atomic_load(&fd), k->seed & 0x10000 ?
		      GUP_FAST_BENCHMARK : PIN_FAST_BENCHMARK, &gup);
}

static const struct {
	const char *name;
	long (*walk)(struct walker *k, size_t index);
} walks[] = {
	{ "vmsplice", walk_vmsplice },
	{ "vmsplice of 4", walk_vmsplice_many },
	/* Walks with a lock, as a control of the others. */
	{ "process_vm_readv", walk_process_vm },
	{ "futex", walk_futex },
	{ "direct write", walk_direct },
	{ "direct read, own", walk_own_direct },
	{ "vmsplice, own", walk_own_vmsplice },
	{ "gup_test", walk_gup_test },
};

static void *walk_pages(void *arg)
{
	struct walker *k = arg;
	bool never[ARRAY_SIZE(walks)] = {};

	while (!atomic_load(&k->w->run.stop)) {
		size_t index = random_next(&k->seed) % k->w->pages;
		size_t i = random_next(&k->seed) % ARRAY_SIZE(walks);
		long done;

		if (never[i])
			continue;
		done = walks[i].walk(k, index);
		if (done == NEVER)
			never[i] = true;
		else
			atomic_fetch_add(&k->w->walks[i], done);
	}
	return NULL;
}

static bool walkers_start(struct world *w, struct walker *k,
			  pthread_t *threads)
{
	int i;

	for (i = 0; i < WALKERS; i++) {
		k[i] = (struct walker) { .w = w, .id = i, .seed = 77 + i };
		k[i].buffer = map_fresh(page_size());
		if (!k[i].buffer || pipe(k[i].pipe) ||
		    pthread_create(&threads[i], NULL, walk_pages, &k[i]))
			return false;
	}
	return true;
}

/* --- collapse */

static __u64 collapse_word(size_t index)
{
	return page_word(TAG, index);
}

/* Pages that may be discarded: never a walker's own. */
static bool expendable(size_t index)
{
	return index % 8 == 3;
}

static void *collapse(void *arg)
{
	struct world *w = arg;
	__u64 seed = 5;

	while (!atomic_load(&w->run.stop)) {
		size_t area = random_next(&seed) % AREAS;

		/* Fails while somebody has a reference to a page. */
		if (!madvise(w->map + area * pmd_size(), pmd_size(),
			     MADV_COLLAPSE))
			atomic_fetch_add(&w->run.acts, 1);
	}
	return NULL;
}

static void *split(void *arg)
{
	struct world *w = arg;
	size_t ps = page_size(), index;
	__u64 seed = 6;

	while (!atomic_load(&w->run.stop)) {
		index = random_next(&seed) % w->pages;
		if (expendable(index)) {
			must(w, !madvise(page_at(w, index), ps,
					 MADV_DONTNEED));
			word_write(page_at(w, index), w->word(index));
		} else if (!is_own(w, index) && !(random_next(&seed) % 4)) {
			must(w, !mprotect(page_at(w, index), ps, PROT_READ));
			must(w, !mprotect(page_at(w, index), ps,
					  PROT_READ | PROT_WRITE));
		}
	}
	return NULL;
}

static int collapse_process(struct world *w, int id)
{
	pthread_t walker_threads[WALKERS], threads[2];
	struct walker walkers[WALKERS];
	size_t i, bad = 0;

	w->map = map_collapsible(AREAS, TAG);
	if (!w->map)
		return 1;
	/* One page for each walker. */
	w->loop = loop_device(WALKERS * page_size());
	if (!walkers_start(w, walkers, walker_threads) ||
	    pthread_create(&threads[0], NULL, collapse, w) ||
	    pthread_create(&threads[1], NULL, split, w))
		return 2;
	for (i = 0; i < WALKERS; i++)
		pthread_join(walker_threads[i], NULL);
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < w->pages; i++)
		bad += !is_own(w, i) && word_read(page_at(w, i)) != w->word(i);
	atomic_fetch_add(&w->run.wrong, bad);
	loop_device_free(w->loop);
	return 0;
}

/* --- table */

static bool any_page(size_t index)
{
	return true;
}

static void *remap(void *arg)
{
	size_t len = AREAS * pmd_size(), i;
	struct world *w = arg;

	/*
	 * From here on, this thread's tables are freed one by one.  The memory
	 * is shared, because gup_test warns about the zero page, which is never
	 * pinned.
	 */
	if (!fail_allocations(FAIL_HASTY))
		atomic_store(&w->run.cannot, true);
	while (!atomic_load(&w->run.stop)) {
		must(w, !munmap(w->map, len));
		must(w, mmap(w->map, len, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
			     -1, 0) == w->map);
		for (i = 0; i < w->pages; i += 16)
			word_write(page_at(w, i), w->word(i));
		atomic_fetch_add(&w->run.acts, 1);
	}
	fail_allocations(FAIL_NONE);
	return NULL;
}

static int table_process(struct world *w, int id)
{
	pthread_t walker_threads[WALKERS], thread;
	struct walker walkers[WALKERS];
	int i;

	w->map = map_collapsible(AREAS, TAG);
	if (!w->map)
		return 1;
	if (!walkers_start(w, walkers, walker_threads) ||
	    pthread_create(&thread, NULL, remap, w))
		return 2;
	for (i = 0; i < WALKERS; i++)
		pthread_join(walker_threads[i], NULL);
	pthread_join(thread, NULL);
	return 0;
}

/* --- unshare */

static __u64 unshare_word(size_t index)
{
	return huge_word(index);
}

/* Pages of the secret, within those that the walkers read. */
#define SECRET_FIRST	8
#define SECRET_PAGES	8

enum turn { NOBODY, SHARED, OWNED };

/* Maps the file and checks all of its pages. */
static bool map_file(struct world *w, int prot)
{
	size_t i;

	if (hugetlb_map_at(w->map, w->fd, GIB, prot) != w->map)
		return false;
	for (i = 0; i < w->pages; i++)
		look(w, i, word_read(page_at(w, i)));
	return true;
}

static void wait_turn(struct world *w, int turn)
{
	while (atomic_load(&w->turn) != turn && !atomic_load(&w->run.stop))
		sched_yield();
}

/*
 * The other process: from time to time it is the only user of the table, and
 * then other memory replaces part of it.  The walkers may read these addresses:
 * they must find pages of the file there, or nothing.
 */
static int owner_process(struct world *w)
{
	size_t len = SECRET_PAGES * huge_size(), i;
	char *addr = w->map + SECRET_FIRST * huge_size();
	__u64 seed = 8;

	if (!map_file(w, PROT_READ | PROT_WRITE))
		return 1;
	atomic_store(&w->turn, SHARED);
	while (!atomic_load(&w->run.stop)) {
		wait_turn(w, OWNED);
		if (atomic_load(&w->run.stop))
			break;
		if (!map_fresh_at(addr, len))
			return 1;
		/* An entry of the table itself, or one of a lower table. */
		madvise(addr, len, random_next(&seed) % 4 ? MADV_NOHUGEPAGE :
							    MADV_HUGEPAGE);
		for (i = 0; i < SECRET_PAGES; i++)
			word_write(addr + i * huge_size(), SECRET);
		/*
		 * Map the whole file at once: only a mapping that covers the
		 * table can share it.
		 */
		if (munmap(w->map, GIB) || !map_file(w, PROT_READ | PROT_WRITE))
			return 2;
		atomic_fetch_add(&w->run.acts, 1);
		atomic_store(&w->turn, SHARED);
	}
	return 0;
}

/* Unshares the table while its walkers are in it. */
static int sharer_process(struct world *w)
{
	struct walker walkers[WALKERS];
	pthread_t threads[WALKERS];
	bool mapped = false;
	__u64 seed = 9;
	int i;

	if (!walkers_start(w, walkers, threads))
		return 1;
	while (!atomic_load(&w->run.stop)) {
		wait_turn(w, SHARED);
		if (atomic_load(&w->run.stop))
			break;
		/* Share the table of the other process again. */
		if ((mapped && munmap(w->map, GIB)) ||
		    !map_file(w, PROT_READ | PROT_WRITE))
			return 2;
		mapped = true;
		usleep(random_next(&seed) % 500);
		if (random_next(&seed) % 2)
			must(w, !mprotect(w->map, GIB, PROT_READ));
		else
			must(w, !munmap(w->map, GIB) &&
			     hugetlb_map_at(w->map, w->fd, GIB, PROT_READ));
		atomic_store(&w->turn, OWNED);
	}
	for (i = 0; i < WALKERS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

static int unshare_process(struct world *w, int id)
{
	return id ? sharer_process(w) : owner_process(w);
}

/* --- a round */

FIXTURE_SETUP(pmd_clear_race)
{
	const char *why;

	self->w = map_shared(sizeof(*self->w));
	ASSERT_NE(NULL, self->w);
	self->w->loop = -1;
	why = run_set(&self->w->run, variant->mode, variant->flip);
	if (why)
		SKIP(return, "%s", why);
	table_usage_read(&self->usage);
}

FIXTURE_TEARDOWN(pmd_clear_race)
{
	flipper_stop(&self->w->run.flipper);
	pmd_clear_window(0);
}

/* Every kernel has vmsplice(), the first two walks. */
static bool has_raced(const struct world *w)
{
	return atomic_load(&w->run.acts) && atomic_load(&w->walks[0]) &&
	       atomic_load(&w->walks[1]);
}

/* Runs @n processes for the duration of the test. */
static void run(struct __test_metadata *_metadata,
		FIXTURE_DATA(pmd_clear_race) *self, int n,
		int (*process)(struct world *w, int id), int window)
{
	struct world *w = self->w;
	pid_t pids[2];
	size_t i;

	if (!pmd_clear_window(opt_window ? opt_window : window))
		TH_LOG("this kernel cannot widen the race windows");
	run_begin(_metadata, &w->run);
	run_fork(_metadata, w, pids, n, process);
	run_wait(_metadata, &w->run, w, pids, n, has_raced);
	run_report(_metadata, &w->run);
	for (i = 0; i < ARRAY_SIZE(walks); i++)
		TH_LOG("%s: %ld", walks[i].name, atomic_load(&w->walks[i]));
	if (!atomic_load(&w->run.cannot)) {
		EXPECT_LT(0, atomic_load(&w->run.acts));
		EXPECT_LT(0, atomic_load(&w->walks[0]));
		EXPECT_LT(0, atomic_load(&w->walks[1]));
	}
	EXPECT_TRUE(table_usage_returns(&self->usage));
}

TEST_F_TIMEOUT(pmd_clear_race, collapse, TIMEOUT)
{
	struct world *w = self->w;

	w->pages = AREAS * (pmd_size() / page_size());
	w->stride = page_size();
	w->word = collapse_word;
	w->loses = expendable;
	w->owned = true;
	run(_metadata, self, 1, collapse_process, COLLAPSE_WINDOW);
}

TEST_F_TIMEOUT(pmd_clear_race, table, TIMEOUT)
{
	struct world *w = self->w;

	w->pages = AREAS * (pmd_size() / page_size());
	w->stride = page_size();
	w->word = collapse_word;
	w->loses = any_page;
	run(_metadata, self, 1, table_process, TABLE_WINDOW);
	if (atomic_load(&w->run.cannot))
		SKIP(return, "needs root, debugfs and CONFIG_FAIL_PAGE_ALLOC");
}

TEST_F_TIMEOUT(pmd_clear_race, unshare, TIMEOUT)
{
	const size_t pages = SECRET_FIRST + SECRET_PAGES;
	const char *why = hugetlb_sharing_get(pages + 4);
	struct counters before;
	struct world *w = self->w;
	size_t i;

	if (why)
		SKIP(return, "%s", why);
	hugetlb_usage_read(&self->pool);
	w->pages = pages;
	w->stride = huge_size();
	w->word = unshare_word;
	w->fd = hugetlb_file(GIB);
	ASSERT_LE(0, w->fd);
	w->map = hugetlb_map(w->fd, GIB);
	ASSERT_NE(NULL, w->map);
	for (i = 0; i < pages; i++)
		huge_write(w->map, i);
	/* Only two processes may share the table; the file keeps the pages. */
	ASSERT_EQ(0, munmap(w->map, GIB));
	before = counters_read("hugetlb_");
	run(_metadata, self, 2, unshare_process, UNSHARE_WINDOW);
	EXPECT_LT(0, counted(&before, "pmd_unshare_last"));
	close(w->fd);
	EXPECT_TRUE(hugetlb_usage_returns(&self->pool));
}

static int run_all(int argc, char **argv)
{
	return hugetlb_kept(&hugetlb_knob, test_harness_run, argc, argv);
}

int main(int argc, char **argv)
{
	if (!env_seconds("FAULTLINE_SECONDS", &opt_seconds) ||
	    !env_number("FAULTLINE_WINDOW", &opt_window))
		return KSFT_FAIL;
	return vm_knob_kept(&pmd_clear_knob, run_all, argc, argv);
}
