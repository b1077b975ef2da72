// SPDX-License-Identifier: GPL-2.0-only
/*
 * vm.hugetlb_zero_ahead: many threads that take the last pages of a pool, against
 * everything that takes pages away or changes the pool.
 *
 * Each thread owns private pages, which it discards and faults in again.  A page
 * must be zero at the first access; then it is filled with words that name the
 * owner and the generation.  Whoever clears a page too late wipes those words,
 * and whoever hands out a page that is not clear shows the words of another one.
 * Threads also use pages of a file, a mapping that is replaced under them, and
 * mappings of a moment.
 *
 * Nobody has more pages than it has reserved, and the pool has no others.  So no
 * access to private pages may raise a signal.  At the end the pool must be as
 * before, and can be emptied.
 *
 * Variants: the switch off (the test itself must hold on upstream), on, on with
 * wider race windows (CONFIG_FAULTLINE_HUGETLB_ZERO_TORTURE), and changing
 * continuously.
 */
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "hugetlb_zero_util.h"
#include "race.h"

#define PROCESSES	2
#define THREADS		3
/* Pages of each thread, of the file, and of the mapping that is replaced. */
#define OWN		2
#define FILE_PAGES	3
#define LOOSE		2
#define RESERVED	(PROCESSES * THREADS * OWN + FILE_PAGES)
/* For mappings of a moment, which nobody can rely on. */
#define SPARE		2
/* Pages that are lost to the pool at most, see act_move(). */
#define MAX_OFFLINE	3
/* The same where the pool gets others instead, see act_fail(). */
#define MAX_FAILED	64

FIXTURE(zero_race) {
	struct world *w;
	bool ready;
};

FIXTURE_VARIANT(zero_race) {
	long value;
	bool wide;
	bool flip;
};

FIXTURE_VARIANT_ADD(zero_race, off) { .value = 0 };
FIXTURE_VARIANT_ADD(zero_race, on) { .value = 1 };
FIXTURE_VARIANT_ADD(zero_race, wide) { .value = 1, .wide = true };
FIXTURE_VARIANT_ADD(zero_race, flip) { .value = 1, .flip = true };

/* The longest delays of faults in the variant "wide". */
static const struct {
	const char *name;
	unsigned int us;
} windows[] = {
	{ "piece", 200 },
	{ "held", 20 },
	{ "prepared", 2000 },
};

static const struct race_feature race_feature = {
	.knob = &zero_knob,
	.flips = &zero_flips,
	.counters = "hugetlb_",
};

struct player;

/* One test. */
struct race_op {
	/* Performs one step; false if the kernel does not support it. */
	bool (*act)(struct player *p);
	/* Pages of the file vanish, and there may be none for a new access. */
	bool loses;
	/* Private pages may be shared with a child: reservations get lost. */
	bool shares;
	/* Private pages may be read-only, or not to be accessed. */
	bool faults;
	/* A pool of so many pages, which nobody reserves; 0: as above. */
	long poor;
	/* Any page may fail while it is used; the pool is poor. */
	bool fails;
	/* Additional pool pages, for each process. */
	long extra;
};

/* In memory shared by all processes. */
struct world {
	const FIXTURE_VARIANT(zero_race) *variant;
	struct race_run run;
	const struct race_op *op;
	size_t page;
	long total;		/* pages of the pool */
	int fd;
	char *file;
	atomic_long fresh;	/* pages that were faulted in */
	atomic_long signals;
	atomic_long offlined;
	atomic_long failed;	/* pages that were to fail */
	atomic_int ready;	/* processes that have reserved their pages */
};

/* One thread; the last one of each process is the actor. */
struct player {
	struct world *w;
	int id;			/* of the process */
	int nr;			/* of the thread */
	__u64 seed;
	char *own;		/* of all threads of the process */
	char *loose;
	/* Of each page of its own; 0: unknown. */
	__u64 tags[OWN];
	__u64 generation;
};

static void wrong(struct player *p, const char *what, size_t words)
{
	if (!atomic_fetch_add(&p->w->run.wrong, 1))
		ksft_print_msg("process %d, thread %d: %s: %zu words\n", p->id,
			       p->nr, what, words);
}

static void must(struct player *p, bool success)
{
	if (!success)
		atomic_fetch_add(&p->w->run.failed, 1);
}

/* --- what threads do */

static char *own_page(const struct player *p, int i)
{
	return p->own + (p->nr * OWN + i) * p->w->page;
}

static void forget_page(struct player *p, int i)
{
	must(p, !madvise(own_page(p, i), p->w->page, MADV_DONTNEED));
	p->tags[i] = 0;
}

/*
 * A reserved page is missing, which is wrong unless children copy pages.  A child
 * holds the old page for a moment after it has unmapped it.  If the owner discards
 * this page meanwhile and touches the memory again, it may take a page that others
 * have reserved: its reservation is back in its map, but the page not in the pool.
 */
static void no_page(struct player *p, const char *what)
{
	atomic_fetch_add(&p->w->signals, 1);
	if (!p->w->op->shares)
		wrong(p, what, 1);
}

/* The words of the last access are still there. */
static bool check_page(struct player *p, int i)
{
	size_t n = 0;

	if (p->tags[i])
		n = page_wrong(own_page(p, i), p->w->page, p->tags[i]);
	if (n)
		wrong(p, "an owner's page has changed", n);
	return !n;
}

/* Like page_fill(); false: after a fork(), there may be no page for a copy. */
static bool fill_page(struct player *p, char *page, __u64 tag)
{
	size_t i;

	for (i = 0; i < words_of(p->w->page); i++)
		if (try_write(word_of(page, p->w->page, i), page_word(tag, i)))
			return false;
	return true;
}

/* Faults a page in, at any of its words. */
static void fresh_page(struct player *p, int i)
{
	struct world *w = p->w;
	char *page = own_page(p, i);
	size_t nth = random_next(&p->seed) % words_of(w->page), n;
	int sig;
	__u64 word;

	if (random_next(&p->seed) % 4)
		sig = try_write(word_of(page, w->page, nth), 0);
	else
		sig = try_read(word_of(page, w->page, nth), &word);
	if (sig) {
		if (w->op->faults && sig == SIGSEGV)
			atomic_fetch_add(&w->signals, 1);
		else
			no_page(p, "no page although it is reserved");
		return;
	}
	n = page_dirty(page, w->page);
	if (n)
		wrong(p, "a new page is not zero", n);
	p->tags[i] = page_word(ZERO_TAG + p->id * 64 + p->nr,
			       p->generation++) | 1;
	if (!fill_page(p, page, p->tags[i]))
		p->tags[i] = 0;
	atomic_fetch_add(&w->fresh, 1);
}

static void use_own(struct player *p)
{
	int i = random_next(&p->seed) % OWN;

	if (!check_page(p, i))
		return;
	if (random_next(&p->seed) % 4) {
		forget_page(p, i);
		fresh_page(p, i);
	}
}

/* The word of page @n of the file that only this thread writes. */
static char *file_word(const struct player *p, size_t n)
{
	size_t slot = 1 + p->id * (THREADS + 1) + p->nr;

	return p->w->file + n * p->w->page + slot * page_size();
}

/* Words of the file are 0, or those of the thread that owns them. */
static void use_file(struct player *p)
{
	size_t n = random_next(&p->seed) % FILE_PAGES;
	__u64 word = page_word(ZERO_TAG + 1000 + p->id * 64 + p->nr,
			       p->generation++), got;

	if (try_write(file_word(p, n), word) ||
	    try_read(file_word(p, n), &got)) {
		if (p->w->op->loses)
			atomic_fetch_add(&p->w->signals, 1);
		else
			no_page(p, "no page of the file although it is reserved");
		return;
	}
	if (got != word && !(p->w->op->loses && !got))
		wrong(p, "a page of the file has changed", 1);
	/* No thread writes here. */
	if (!try_read(p->w->file + n * p->w->page + p->w->page / 2 + 64, &got) &&
	    got)
		wrong(p, "a page of the file is not zero", 1);
}

/* Other threads of the process write the same words. */
static void use_loose(struct player *p)
{
	char *page = p->loose + random_next(&p->seed) % LOOSE * p->w->page;
	size_t i, bad = 0;
	__u64 word;

	for (i = 0; i < words_of(p->w->page); i += 61) {
		if (i % 2 ? try_write(word_of(page, p->w->page, i), ZERO_TAG) :
			    try_read(word_of(page, p->w->page, i), &word))
			break;
		bad += !(i % 2) && word;
	}
	if (bad)
		wrong(p, "a page of a mapping that is replaced is not zero",
		      bad);
}

/* A mapping of a moment, reserved or not. */
static void use_short(struct player *p)
{
	bool reserve = random_next(&p->seed) % 2;
	char *page = map_pages(p->w->page, 1, reserve ? 0 : MAP_NORESERVE);
	size_t n;

	if (!page)
		return;
	if (!try_write(page + 8, 0)) {
		n = page_dirty(page, p->w->page);
		if (n)
			wrong(p, "a short-lived page is not zero", n);
		fill_page(p, page, ZERO_TAG + 3);
	} else if (reserve) {
		no_page(p, "no page for a mapping of a moment");
	}
	must(p, !munmap(page, p->w->page));
}

/* In a pool with fewer pages than threads: whoever gets one, checks it twice. */
static void use_poor(struct player *p)
{
	char *page = p->own + p->nr * p->w->page;
	__u64 tag = page_word(ZERO_TAG + p->id * 64 + p->nr, p->generation++);
	size_t n;

	if (try_write(page, 0)) {
		atomic_fetch_add(&p->w->signals, 1);
		usleep(100);
		return;
	}
	atomic_fetch_add(&p->w->fresh, 1);
	n = page_dirty(page, p->w->page);
	if (n)
		wrong(p, "a new page is not zero", n);
	page_fill(page, p->w->page, tag);
	if (random_next(&p->seed) % 4 == 0)
		usleep(1000);
	n = page_wrong(page, p->w->page, tag);
	if (n)
		wrong(p, "an owner's page has changed", n);
	must(p, !madvise(page, p->w->page, MADV_DONTNEED));
}

/*
 * The number of words of a page that are not those of @tag (0: zero); -1 if its
 * memory fails.
 */
static long failing_wrong(struct player *p, char *page, __u64 tag)
{
	size_t i;
	long n = 0;
	__u64 got;

	for (i = 0; i < words_of(p->w->page); i++) {
		if (try_read(word_of(page, p->w->page, i), &got))
			return -1;
		n += got != (tag ? page_word(tag, i) : 0);
	}
	return n;
}

/* The same as use_poor(): the page may fail at each access. */
static void use_failing(struct player *p)
{
	char *page = p->own + p->nr * p->w->page;
	__u64 tag = page_word(ZERO_TAG + p->id * 64 + p->nr, p->generation++);
	long n;

	if (!try_write(page, 0)) {
		atomic_fetch_add(&p->w->fresh, 1);
		n = failing_wrong(p, page, 0);
		if (n > 0)
			wrong(p, "a new page is not zero", n);
		if (!n && fill_page(p, page, tag)) {
			if (random_next(&p->seed) % 4 == 0)
				usleep(1000);
			n = failing_wrong(p, page, tag);
			if (n > 0)
				wrong(p, "an owner's page has changed", n);
		}
	} else {
		atomic_fetch_add(&p->w->signals, 1);
		usleep(100);
	}
	/* Memory that has failed goes as well. */
	must(p, !madvise(page, p->w->page, MADV_DONTNEED));
}

static void *toucher(void *arg)
{
	struct player *p = arg;

	while (!atomic_load(&p->w->run.stop)) {
		if (p->w->op->fails) {
			use_failing(p);
			continue;
		}
		if (p->w->op->poor) {
			use_poor(p);
			continue;
		}
		switch (random_next(&p->seed) % 8) {
		case 0:
			use_file(p);
			break;
		case 1:
			use_short(p);
			break;
		case 2:
			use_loose(p);
			break;
		default:
			use_own(p);
		}
	}
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

/* One process of the race; runs until world.stop. */
static int play(struct world *w, int id)
{
	struct player players[THREADS + 1];
	pthread_t threads[THREADS + 1];
	char *own, *loose;
	int i, j;

	catch_faults();
	own = map_pages(w->page, THREADS * OWN,
			w->op->poor ? MAP_NORESERVE : 0);
	loose = map_pages(w->page, LOOSE, MAP_NORESERVE);
	if (!own || !loose)
		return 1;
	/* A child would keep the pages, and their reservations. */
	if (!w->op->shares &&
	    madvise(own, THREADS * OWN * w->page, MADV_DONTFORK))
		return 2;
	/* Threads of another process use the spare pages. */
	atomic_fetch_add(&w->ready, 1);
	while (atomic_load(&w->ready) < PROCESSES && !atomic_load(&w->run.stop))
		usleep(100);
	for (i = 0; i <= THREADS; i++) {
		players[i] = (struct player) {
			.w = w,
			.id = id,
			.nr = i,
			.seed = 1000 * id + i + 1,
			.own = own,
			.loose = loose,
		};
		if (pthread_create(&threads[i], NULL,
				   i < THREADS ? toucher : actor, &players[i]))
			return 3;
	}
	for (i = 0; i <= THREADS; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < THREADS; i++)
		for (j = 0; j < OWN; j++)
			check_page(&players[i], j);
	return 0;
}

/* --- a round */

static bool has_raced(const struct world *w)
{
	struct counters d = counters_since(&w->run.before);

	if (!atomic_load(&w->run.acts) || !atomic_load(&w->fresh))
		return false;
	/* In a poor pool, others may take each page before it is clear. */
	return !w->variant->value || w->op->poor ||
	       counter(&d, "zeroed_used") > 0;
}

static void expect_raced(struct __test_metadata *_metadata, struct world *w)
{
	struct counters d = run_report(_metadata, &w->run);

	TH_LOG("%ld new pages, %ld signals", atomic_load(&w->fresh),
	       atomic_load(&w->signals));
	EXPECT_LT(0, atomic_load(&w->fresh));
	if (!vm_sysctl_exists(ZERO_KNOB))
		return;
	if (w->variant->value) {
		if (!w->op->poor)
			EXPECT_LT(0, counter(&d, "zeroed_used"));
	} else {
		EXPECT_EQ(0, counter(&d, "zeroed"));
		EXPECT_EQ(0, counter(&d, "zeroed_late"));
	}
}

/* Nothing is reserved, everything is free, and all of it can be given back. */
static void expect_empties(struct __test_metadata *_metadata, struct world *w)
{
	long total = w->total - atomic_load(&w->offlined);
	struct pool all = { .total = total, .free = total }, none = {};

	EXPECT_EQ(0, hugetlb_pool_set(total));
	EXPECT_TRUE(pool_returns(w->page, &all));
	EXPECT_EQ(0, hugetlb_pool_set(0));
	EXPECT_TRUE(pool_returns(w->page, &none));
}

static void race(struct __test_metadata *_metadata,
		 FIXTURE_DATA(zero_race) *self, const struct race_op *op)
{
	struct world *w = self->w;
	pid_t pids[PROCESSES];

	if (op->fails && !memory_may_fail())
		SKIP(return, "needs FAULTLINE_MEMORY_FAILS");
	w->op = op;
	w->total = op->poor ?: RESERVED + SPARE + op->extra * PROCESSES;
	if (hugetlb_pool_set(w->total) ||
	    hugetlb_sysfs("free_hugepages") != w->total ||
	    hugetlb_sysfs("resv_hugepages"))
		SKIP(return, "needs root, and %ld huge pages for itself",
		     w->total);
	run_begin(_metadata, &w->run);
	w->fd = file_of(w->page, FILE_PAGES);
	ASSERT_LE(0, w->fd);
	w->file = mmap(NULL, FILE_PAGES * w->page, PROT_READ | PROT_WRITE,
		       MAP_SHARED | (op->poor ? MAP_NORESERVE : 0), w->fd, 0);
	ASSERT_NE(MAP_FAILED, w->file);
	run_fork(_metadata, w, pids, PROCESSES, play);
	run_wait(_metadata, &w->run, w, pids, PROCESSES, has_raced);
	expect_raced(_metadata, w);
	EXPECT_EQ(0, munmap(w->file, FILE_PAGES * w->page));
	close(w->fd);
	w->fd = -1;
	expect_empties(_metadata, w);
	if (atomic_load(&w->run.cannot))
		SKIP(return, "not supported by this kernel");
	EXPECT_LT(0, atomic_load(&w->run.acts));
}

/* Sets the windows; false if the kernel has none. */
static bool widen(bool wide)
{
	bool done = true;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(windows); i++)
		done &= zero_window(windows[i].name, wide ? windows[i].us : 0);
	return done;
}

FIXTURE_SETUP(zero_race)
{
	const char *why;

	self->w = map_shared(sizeof(*self->w));
	ASSERT_NE(NULL, self->w);
	self->w->variant = variant;
	self->w->page = pmd_size();
	self->w->fd = -1;
	why = run_set(&self->w->run, variant->value, variant->flip);
	if (!why && hugetlb_sysfs("nr_hugepages") < 0)
		why = "this kernel has no PMD-sized huge pages";
	if (!why && variant->wide && !widen(true))
		why = "needs debugfs, root and CONFIG_FAULTLINE_HUGETLB_ZERO_TORTURE";
	if (why)
		SKIP(return, "%s", why);
}

FIXTURE_TEARDOWN(zero_race)
{
	if (variant->wide)
		widen(false);
	run_end(&self->w->run);
	if (self->w->fd >= 0)
		close(self->w->fd);
}

#define RACE(...)	RACE_OF(zero_race, __VA_ARGS__)

/* --- the races */

/* Holes, and a file that ends earlier. */
static bool act_file(struct player *p)
{
	size_t n = random_next(&p->seed) % FILE_PAGES;

	if (random_next(&p->seed) % 2) {
		must(p, hugetlb_punch(p->w->fd, n * p->w->page, p->w->page));
	} else {
		must(p, !ftruncate(p->w->fd, n * p->w->page));
		must(p, !ftruncate(p->w->fd, FILE_PAGES * p->w->page));
	}
	return true;
}

RACE(file, .loses = true)

/* Changes of the mappings: of their flags, and of one as a whole. */
static void change_mappings(struct player *p)
{
	size_t len = THREADS * OWN * p->w->page;
	char *q;

	must(p, !madvise(p->own, len, MADV_DONTDUMP));
	must(p, !madvise(p->own, len, MADV_DODUMP));
	q = mmap(p->loose, LOOSE * p->w->page, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE |
		 MAP_FIXED | size_flag(p->w->page), -1, 0);
	must(p, q == p->loose);
}

/* Memory that was in the pool, maybe: nobody clears it any more. */
static void use_other_memory(struct player *p)
{
	__u64 tag = ZERO_TAG + p->generation++;
	size_t len = 8 * p->w->page;
	char *q = map_fresh(len);

	must(p, q);
	if (!q)
		return;
	madvise(q, len, MADV_HUGEPAGE);
	fill_pages(q, len, tag);
	usleep(random_next(&p->seed) % 2000);
	if (bad_pages(q, len, tag))
		wrong(p, "memory that has left the pool has changed", 1);
	must(p, !munmap(q, len));
}

/* The pool gets larger, and as small as reservations permit. */
static bool act_resize(struct player *p)
{
	change_mappings(p);
	if (p->id)
		use_other_memory(p);
	else
		must(p, !hugetlb_pool_set(RESERVED +
					  random_next(&p->seed) % 7));
	return true;
}

RACE(resize)

/* In a child: faults on pages of its own until it is killed. */
static void be_killed(struct player *p)
{
	char *q = map_pages(p->w->page, 2, 0);
	__u64 seed = getpid();

	while (q) {
		char *page = q + random_next(&seed) % 2 * p->w->page;

		if (try_write(page, 1))
			_exit(1);
		page_fill(page, p->w->page, ZERO_TAG + 4);
		madvise(page, p->w->page, MADV_DONTNEED);
	}
	/* Short-lived mappings of others have the pages. */
	_exit(0);
}

static bool act_kill(struct player *p)
{
	pid_t pid = fork_bound();
	int status;

	if (!pid)
		be_killed(p);
	usleep(random_next(&p->seed) % 20000);
	kill(pid, SIGKILL);
	status = reap(pid);
	must(p, pid > 0 && (!status || status == 256 + SIGKILL));
	return true;
}

RACE(kill, .extra = 2)

/* Both write to pages that they share at first. */
static bool act_fork(struct player *p)
{
	pid_t pid = fork_bound();
	int i;

	if (!pid) {
		for (i = 0; i < THREADS * OWN; i++) {
			char *page = p->own + i * p->w->page;
			__u64 word;

			if (!try_read(page, &word))
				try_write(page, word);
		}
		_exit(0);
	}
	must(p, !reap(pid));
	return true;
}

RACE(fork, .shares = true, .extra = 2)

/* Takes rights away while threads have pages cleared. */
static bool act_protect(struct player *p)
{
	size_t len = THREADS * OWN * p->w->page;

	must(p, !mprotect(p->own, len, PROT_READ));
	usleep(random_next(&p->seed) % 2000);
	must(p, !mprotect(p->own, len, PROT_READ | PROT_WRITE));
	usleep(random_next(&p->seed) % 2000);
	return true;
}

RACE(protect, .faults = true)

/* Takes a page in a call that has no use for a clear one. */
static void allocate(struct player *p)
{
	__u64 tag = page_word(ZERO_TAG + p->id, ++p->generation);
	char *page = p->w->file;
	size_t bad;

	if (fallocate(p->w->fd, 0, 0, p->w->page)) {
		must(p, errno == ENOSPC || errno == ENOMEM);
		return;
	}
	bad = page_dirty(page, p->w->page);
	if (bad)
		wrong(p, "a new page of a file is not zero", bad);
	page_fill(page, p->w->page, tag);
	usleep(random_next(&p->seed) % 2000);
	bad = page_wrong(page, p->w->page, tag);
	if (bad)
		wrong(p, "a page of a file has changed", bad);
	must(p, hugetlb_punch(p->w->fd, 0, p->w->page));
}

/*
 * Fewer pages than threads: a page that is being cleared for one is taken by
 * another, or leaves the pool.
 */
static bool act_last(struct player *p)
{
	if (p->id) {
		allocate(p);
		use_other_memory(p);
		return true;
	}
	must(p, !hugetlb_pool_set(0));
	must(p, !hugetlb_pool_set(p->w->total));
	usleep(random_next(&p->seed) % 10000);
	return true;
}

RACE(last, .poor = PROCESSES + 1)

/* To the other node and back (numa=fake=2), and out of memory that fails. */
static bool act_move(struct player *p)
{
	void *pages[FILE_PAGES];
	int nodes[FILE_PAGES], status[FILE_PAGES], i;

	for (i = 0; i < FILE_PAGES; i++) {
		pages[i] = p->w->file + i * p->w->page;
		nodes[i] = random_next(&p->seed) % 2;
	}
	/* A busy page stays; move_pages() does not fail then. */
	if (syscall(SYS_move_pages, 0, (unsigned long)FILE_PAGES, pages, nodes,
		    status, MPOL_MF_MOVE_ALL) < 0)
		return false;
	if (atomic_fetch_add(&p->w->offlined, 1) >= MAX_OFFLINE ||
	    madvise(pages[0], page_size(), MADV_SOFT_OFFLINE))
		atomic_fetch_sub(&p->w->offlined, 1);
	usleep(1000);
	return true;
}

RACE(move, .extra = FILE_PAGES + MAX_OFFLINE)

/*
 * Memory fails under pages that are free, being cleared, about to be taken, or in
 * use: an address is of the page that a thread had a moment ago.  The pool gets other
 * pages.
 */
static bool act_fail(struct player *p)
{
	struct world *w = p->w;
	bool soft = random_next(&p->seed) % 4;
	__u64 memory;

	if (!p->id) {
		/* There may be no page for it at the moment. */
		must(p, !hugetlb_pool_set(w->total));
		use_other_memory(p);
		return true;
	}
	usleep(random_next(&p->seed) % 10000);
	memory = physical(p->own + random_next(&p->seed) % THREADS * w->page);
	if (!memory)
		return true;
	if (atomic_fetch_add(&w->failed, 1) >= MAX_FAILED) {
		atomic_fetch_sub(&w->failed, 1);
		return true;
	}
	memory += random_next(&p->seed) % (w->page / page_size()) * page_size();
	usleep(random_next(&p->seed) % 2000);
	/* A page that is busy stays. */
	if (!memory_fails(soft ? "soft_offline_page" : "hard_offline_page",
			  memory) && errno == ENOENT)
		return false;
	return true;
}

RACE(fail, .poor = PROCESSES + 1, .fails = true)

int main(int argc, char **argv)
{
	if (!env_seconds("FAULTLINE_SECONDS", &opt_seconds))
		return KSFT_FAIL;
	return hugetlb_kept(&zero_knob, test_harness_run, argc, argv);
}
