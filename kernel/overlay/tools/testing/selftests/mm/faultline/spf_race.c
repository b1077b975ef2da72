// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page faults of many threads against everything that changes their mappings.
 *
 * "keep" tests: each thread owns a word in each page, which must keep the value
 * it wrote last while the memory is moved, swapped out, migrated, merged,
 * collapsed, forked, locked or pinned.
 *
 * "stop" tests: once a call has returned, no thread may write to the memory,
 * map anything there, or write without a notification: munmap(), mmap() over
 * something, mprotect(), userfaultfd, MMU notifiers.
 *
 * "fill" tests: memory without page tables, where faults install tables, the
 * anon_vma and huge pages, against the same changes.
 *
 * "order": a child sees its parent's memory as of one moment.
 *
 * Variants: the switch off (the test itself must hold on upstream), on, on
 * with wider race windows (CONFIG_FAULTLINE_SPF_TORTURE), and changing
 * continuously.
 */
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "munmap_util.h"
#include "race.h"
#include "spf_util.h"

#define THREADS		3
#define TAG		0x7370665f72616301ULL

/* The longest delays of faults in the variant "wide". */
static struct {
	const char *option;
	unsigned int us;
} windows[] = {
	{ "find_window_us", 50 },
	{ "lock_window_us", 200 },
	{ "walk_window_us", 100 },
	{ "change_window_us", 200 },
	{ "sleep_window_us", 1000 },
	{ "vma_window_us", 200 },
	{ "prepared_window_us", 1000 },
	{ "fill_window_us", 200 },
	{ "install_window_us", 200 },
	{ "anon_vma_window_us", 200 },
};

struct thread {
	struct world *w;
	int id;
	__u64 seed;
	__u64 *last;		/* the last word written, by page */
	long acts;
	long escapes;		/* accesses that raised a signal */
};

FIXTURE(spf_race) {
	struct world *w;
};

FIXTURE_VARIANT(spf_race) {
	long value;
	bool wide;
	bool flip;
};

FIXTURE_VARIANT_ADD(spf_race, stock) { .value = 0 };
FIXTURE_VARIANT_ADD(spf_race, on) { .value = 1 };
FIXTURE_VARIANT_ADD(spf_race, wide) { .value = 1, .wide = true };
FIXTURE_VARIANT_ADD(spf_race, flip) { .value = 1, .flip = true };

static const struct race_feature race_feature = {
	.knob = &spf_knob,
	.flips = &spf_flips,
	.counters = "spf_",
};

/* Runs in the main thread; returns whether the change was made. */
typedef bool (*change)(struct world *w, __u64 dice);

/* Shared by the threads of one process, and with its children and its parent. */
struct world {
	const FIXTURE_VARIANT(spf_race) *variant;
	struct race_run run;
	void *(*act)(void *arg);		/* in each thread */
	void (*main_thread)(struct world *w);
	change only_change;	/* of many_changes() and changes_until_failure() */
	size_t pages;
	size_t len;
	atomic_uintptr_t map;	/* where the memory is now */
	bool huge;		/* the memory may have huge pages */
	const char *fills;	/* a counter that the race needs, or NULL */
	atomic_bool collapsing;
	atomic_int quiet;	/* no thread may begin an access */
	atomic_int busy;	/* threads in the middle of an access */
	atomic_long changes;
	struct thread threads[THREADS];
	pthread_t ids[THREADS];
};

static char *map_of(struct world *w)
{
	return (char *)atomic_load(&w->map);
}

/* --- mapping */

/* Read-only memory in place of what is mapped there: it reads as zero. */
static bool map_zero_at(char *addr, size_t len)
{
	return mmap(addr, len, PROT_READ,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == addr;
}

/* Huge pages or base pages; a kernel without THP has only base pages. */
static bool advise_pages(const struct world *w, char *addr, size_t len)
{
	return !madvise(addr, len, w->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) ||
	       errno == EINVAL;
}

/*
 * Memory of base pages with neighbours, so that there are a page table and an
 * anon_vma, and mappings can be merged.
 */
static char *map_new(size_t len, bool huge)
{
	size_t edge = page_size();
	char *p = map_apart(len + 2 * pmd_size());

	if (!p)
		return NULL;
	madvise(p, len + 2 * pmd_size(), huge ? MADV_HUGEPAGE :
						MADV_NOHUGEPAGE);
	p += pmd_size();
	word_write(p - edge, TAG);
	word_write(p + len, TAG);
	return p;
}

/* --- faulting threads */

static void begin(struct world *w)
{
	for (;;) {
		while (atomic_load(&w->quiet))
			sched_yield();
		atomic_fetch_add(&w->busy, 1);
		if (!atomic_load(&w->quiet))
			return;
		atomic_fetch_sub(&w->busy, 1);
	}
}

static void end(struct world *w)
{
	atomic_fetch_sub(&w->busy, 1);
}

/* Keeps all threads out of accesses until resume(). */
static void pause_threads(struct world *w)
{
	atomic_store(&w->quiet, 1);
	while (atomic_load(&w->busy))
		sched_yield();
}

static void resume(struct world *w)
{
	atomic_store(&w->quiet, 0);
}

static __u64 *slot(const struct thread *t, char *map, size_t index)
{
	return (__u64 *)(map + index * page_size()) + 8 * (1 + t->id);
}

/*
 * Writes its words, and checks that reads return them.  Some of the pages
 * belong to a single thread, which discards them from time to time.
 */
static void *keep(void *arg)
{
	struct thread *t = arg;
	struct world *w = t->w;

	while (!atomic_load(&w->run.stop)) {
		size_t index = random_next(&t->seed) % w->pages;
		size_t owner = index % (THREADS + 1);
		unsigned int dice = random_next(&t->seed) % 16;
		__u64 word, *p;

		if (owner != THREADS && owner != (size_t)t->id)
			continue;
		begin(w);
		p = slot(t, map_of(w), index);
		if (!dice && owner != THREADS) {
			/* Fails if the memory has moved or is locked. */
			if (!madvise((void *)((uintptr_t)p & -page_size()),
				     page_size(), MADV_DONTNEED))
				t->last[index] = 0;
		} else if (dice < 12) {
			word = page_word(TAG + t->id, t->acts);
			if (try_write(p, word))
				t->escapes++;
			else
				t->last[index] = word;
		} else if (try_read(p, &word)) {
			t->escapes++;
		} else if (word != t->last[index]) {
			atomic_fetch_add(&w->run.wrong, 1);
		}
		end(w);
		t->acts++;
	}
	return NULL;
}

/*
 * While memory is collapsed, writes one word after the other.  After a slow
 * fault, which a collapse may have overtaken, the thread stays with the page
 * until the collapse is over: with a stale translation of the old page, all
 * writes but the last one are lost.
 */
#define SLOW_NS		1000000
#define DELAY_NS	30000000
#define NR_WORDS	128

static void *keep_writing(void *arg)
{
	struct thread *t = arg;
	struct world *w = t->w;

	while (!atomic_load(&w->run.stop)) {
		size_t index = random_next(&t->seed) % w->pages;
		__u64 *p = (__u64 *)(map_of(w) + index * page_size()) +
			   NR_WORDS * (1 + t->id);
		__u64 began = now_ns();
		long n = 0, i;
		bool slow;

		if (!atomic_load(&w->collapsing)) {
			sched_yield();
			continue;
		}
		/* At any moment of the collapse. */
		began += random_next(&t->seed) % DELAY_NS;
		while (now_ns() < began)
			;
		do {
			word_write(p + n % NR_WORDS, page_word(TAG + t->id, n));
			n++;
			slow = now_ns() > began + SLOW_NS;
		} while (slow && atomic_load(&w->collapsing));
		for (i = n > NR_WORDS ? n - NR_WORDS : 0; i < n; i++)
			if (word_read(p + i % NR_WORDS) !=
			    page_word(TAG + t->id, i))
				atomic_fetch_add(&w->run.wrong, 1);
		t->acts += n;
	}
	return NULL;
}

/*
 * Writes everywhere, whether permitted or not.  No memory of these tests is
 * beyond the end of its file, so SIGBUS is wrong.
 */
static void *scribble(void *arg)
{
	struct thread *t = arg;
	struct world *w = t->w;
	__u64 word;
	int sig;

	while (!atomic_load(&w->run.stop)) {
		size_t index = random_next(&t->seed) % w->pages;
		__u64 *p = slot(t, map_of(w), index);

		sig = random_next(&t->seed) % 4 ? try_write(p, TAG + t->acts) :
						  try_read(p, &word);
		if (sig)
			t->escapes++;
		if (sig == SIGBUS)
			atomic_fetch_add(&w->run.wrong, 1);
		t->acts++;
	}
	return NULL;
}

static bool start(struct world *w)
{
	int i;

	catch_faults();
	for (i = 0; i < THREADS; i++) {
		struct thread *t = &w->threads[i];

		*t = (struct thread) { .w = w, .id = i, .seed = 99 + i };
		t->last = calloc(w->pages, sizeof(*t->last));
		if (!t->last || pthread_create(&w->ids[i], NULL, w->act, t))
			return false;
	}
	return true;
}

static void finish(struct world *w)
{
	int i;

	atomic_store(&w->run.stop, true);
	atomic_store(&w->quiet, 0);
	for (i = 0; i < THREADS; i++) {
		pthread_join(w->ids[i], NULL);
		atomic_fetch_add(&w->run.acts, w->threads[i].acts);
	}
}

/* Whether the main thread is to go on. */
static bool racing(struct world *w)
{
	return !atomic_load(&w->run.stop);
}

/* --- keep: changes that preserve the content of memory */

static char *any_page(struct world *w, __u64 dice)
{
	return map_of(w) + dice % w->pages * page_size();
}

/* To another place and back: whole page tables, if they can be moved. */
static bool change_mremap(struct world *w, __u64 dice)
{
	char *from = map_of(w), *to = from + 4 * pmd_size();
	size_t len = w->len;
	bool moved;

	/*
	 * Threads may be accessing the old address, and retry at the new one.
	 * They must neither lose a word nor write one to a wrong address.
	 */
	if (dice % 2)
		pause_threads(w);
	moved = mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
	if (moved) {
		atomic_store(&w->map, (uintptr_t)to);
		moved = mremap(to, len, len, MREMAP_MAYMOVE | MREMAP_FIXED,
			       from) == from;
		atomic_store(&w->map, (uintptr_t)from);
	}
	resume(w);
	return moved;
}

static bool change_protection(struct world *w, __u64 dice)
{
	char *p = any_page(w, dice);

	return !mprotect(p, page_size(), PROT_READ) &&
	       !mprotect(p, page_size(), PROT_READ | PROT_WRITE);
}

/* Splits and merges the VMA, with the same pages. */
static bool change_shape(struct world *w, __u64 dice)
{
	char *p = any_page(w, dice);

	return !madvise(p, page_size(), MADV_DONTFORK) &&
	       !madvise(p, page_size(), MADV_DOFORK);
}

/* For a while, the child shares all pages. */
static bool change_fork(struct world *w, __u64 dice)
{
	pid_t pid = fork_bound();

	if (pid < 0)
		return false;
	if (!pid) {
		if (dice % 2)
			usleep(dice % 2000);
		_exit(0);
	}
	if (dice % 4 == 3)
		usleep(dice % 1000);
	return waitpid(pid, NULL, 0) == pid;
}

static bool change_swap(struct world *w, __u64 dice)
{
	return !madvise(any_page(w, dice), page_size(), MADV_PAGEOUT);
}

static bool change_node(struct world *w, __u64 dice)
{
	void *p = any_page(w, dice);
	int node = dice / w->pages % 2, status;

	return syscall(SYS_move_pages, 0, 1UL, &p, &node, &status,
		       MPOL_MF_MOVE) >= 0;
}

/* One huge page, then base pages again, as a VMA briefly ends within it. */
static bool change_huge(struct world *w, __u64 dice)
{
	bool collapsed;

	atomic_store(&w->collapsing, true);
	collapsed = !madvise(map_of(w), w->len, MADV_COLLAPSE);
	atomic_store(&w->collapsing, false);

	return change_shape(w, dice) && collapsed;
}

/* The first write fault on each page only makes it writable. */
static bool change_fork_huge(struct world *w, __u64 dice)
{
	return change_fork(w, 0) && change_huge(w, dice);
}

static bool change_lock(struct world *w, __u64 dice)
{
	char *p = any_page(w, dice);

	return !mlock(p, page_size()) && !munlock(p, page_size());
}

/* The kernel holds references to pages while threads write to them. */
static bool change_pin(struct world *w, __u64 dice)
{
	struct iovec iov = { any_page(w, dice), 4 * page_size() };
	static char buffer[4096];
	int pipes[2];
	ssize_t got;

	if (dice % w->pages + 4 > w->pages || pipe(pipes))
		return false;
	got = vmsplice(pipes[1], &iov, 1, 0);
	for (; got > 0; got -= sizeof(buffer))
		if (read(pipes[0], buffer, sizeof(buffer)) <= 0)
			break;
	close(pipes[0]);
	close(pipes[1]);
	return true;
}

#define KSM		"/sys/kernel/mm/ksm/"

/* Equal pages are merged; writes of the threads unmerge them. */
static bool change_merge(struct world *w, __u64 dice)
{
	static bool told;

	if (!told) {
		write_text(KSM "sleep_millisecs", "0");
		write_text(KSM "pages_to_scan", "1000");
		write_text(KSM "run", "1");
		told = true;
	}
	usleep(1000);
	return !madvise(map_of(w), w->len,
			dice % 8 ? MADV_MERGEABLE : MADV_UNMERGEABLE);
}

static const change changes[] = {
	change_mremap,
	change_protection,
	change_shape,
	change_fork,
	change_swap,
	change_node,
	change_lock,
	change_pin,
};

static void widen(bool wide)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(windows); i++)
		spf_torture(windows[i].option, wide ? windows[i].us : 0);
}

/* "find=US lock=US walk=US ..."; those not named are set to 0. */
static bool parse_windows(const char *text)
{
	size_t i, length;
	char *end;

	for (i = 0; i < ARRAY_SIZE(windows); i++)
		windows[i].us = 0;
	while (*text) {
		length = strcspn(text, "=");
		for (i = 0; i < ARRAY_SIZE(windows); i++)
			if (!strncmp(windows[i].option, text, length) &&
			    !strcmp(windows[i].option + length, "_window_us"))
				break;
		if (i == ARRAY_SIZE(windows) || !text[length])
			return false;
		windows[i].us = strtoul(text + length + 1, &end, 10);
		if (end == text + length + 1)
			return false;
		text = end + strspn(end, " ");
	}
	return true;
}

FIXTURE_SETUP(spf_race)
{
	const char *why;

	self->w = map_shared(sizeof(*self->w));
	ASSERT_NE(NULL, self->w);
	self->w->variant = variant;
	why = run_set(&self->w->run, variant->value, variant->flip);
	if (!why && variant->wide && !spf_torture("lock_window_us", 0))
		why = "this kernel cannot widen the race windows";
	if (why)
		SKIP(return, "%s", why);
	if (variant->wide)
		widen(true);
}

FIXTURE_TEARDOWN(spf_race)
{
	flipper_stop(&self->w->run.flipper);
	if (variant->wide)
		widen(false);
}

/* Whether everything that report() expects of the threads has happened. */
static bool has_raced(const struct world *w)
{
	struct counters d;
	long acts = 0;
	int i;

	for (i = 0; i < THREADS; i++)
		acts += __atomic_load_n(&w->threads[i].acts, __ATOMIC_RELAXED);
	if (!acts || !atomic_load(&w->changes))
		return false;
	if (!w->variant->value || w->variant->flip)
		return true;
	d = counters_since(&w->run.before);
	return spf_successes(&d) > 0 &&
	       (!w->fills || counter(&d, w->fills) > 0);
}

static void report(struct __test_metadata *_metadata, struct world *w)
{
	struct counters d = run_report(_metadata, &w->run);
	long escapes = 0;
	int i;

	for (i = 0; i < THREADS; i++)
		escapes += w->threads[i].escapes;
	TH_LOG("%ld signals, %ld changes", escapes, atomic_load(&w->changes));
	EXPECT_LT(0, atomic_load(&w->run.acts));
	EXPECT_LT(0, atomic_load(&w->changes));
	if (!w->variant->value) {
		EXPECT_EQ(0, spf_successes(&d));
	} else if (!w->variant->flip) {
		EXPECT_LT(0, spf_successes(&d));
		if (w->fills)
			EXPECT_LT(0, counter(&d, w->fills));
	}
}

static int play(struct world *w, int id)
{
	atomic_store(&w->map, (uintptr_t)map_new(w->len, w->huge));
	if (!map_of(w) || !start(w))
		return 1;
	w->main_thread(w);
	finish(w);
	return 0;
}

/* Runs the main thread and the others in a separate process. */
static void run(struct __test_metadata *_metadata,
		FIXTURE_DATA(spf_race) *self, size_t len,
		void *(*act)(void *arg), void (*main_thread)(struct world *w))
{
	struct world *w = self->w;
	pid_t pid;

	w->len = len;
	w->pages = len / page_size();
	w->act = act;
	w->main_thread = main_thread;
	run_begin(_metadata, &w->run);
	run_fork(_metadata, w, &pid, 1, play);
	run_wait(_metadata, &w->run, w, &pid, 1, has_raced);
	report(_metadata, w);
}

/* world.only_change, or without one any of the table. */
static void many_changes(struct world *w)
{
	__u64 seed = 3;

	while (racing(w)) {
		size_t i = random_next(&seed) % ARRAY_SIZE(changes);
		change act = w->only_change ? w->only_change : changes[i];

		if (act(w, random_next(&seed)))
			atomic_fetch_add(&w->changes, 1);
	}
}

static void keep_test(struct __test_metadata *_metadata,
		      FIXTURE_DATA(spf_race) *self, change change)
{
	self->w->only_change = change;
	run(_metadata, self, pmd_size(), keep, many_changes);
}

#define KEEP(name, what)						\
TEST_F_TIMEOUT(spf_race, keep_##name, TIMEOUT)				\
{									\
	keep_test(_metadata, self, change_##what);			\
}

KEEP(mremap, mremap)
KEEP(mprotect, protection)
KEEP(split_merge, shape)
KEEP(fork, fork)
KEEP(swap, swap)
KEEP(migrate, node)

TEST_F_TIMEOUT(spf_race, keep_collapse, TIMEOUT)
{
	self->w->huge = true;
	keep_test(_metadata, self, change_huge);
}

KEEP(mlock, lock)
KEEP(pin, pin)

TEST_F_TIMEOUT(spf_race, keep_ksm, TIMEOUT)
{
	if (access(KSM "run", F_OK))
		SKIP(return, "this kernel has no KSM");
	if (access(KSM "run", W_OK))
		SKIP(return, "needs root to start KSM");
	keep_test(_metadata, self, change_merge);
}

TEST_F_TIMEOUT(spf_race, keep_collapse_writing, TIMEOUT)
{
	self->w->huge = true;
	self->w->only_change = change_fork_huge;
	run(_metadata, self, pmd_size(), keep_writing, many_changes);
}

TEST_F_TIMEOUT(spf_race, keep_all, TIMEOUT)
{
	keep_test(_metadata, self, NULL);
}

/* --- stop: effects that must end when a call returns */

#define STOP_LEN	(16 * page_size())

static void changes_until_failure(struct world *w)
{
	__u64 seed = 4;

	while (racing(w) && w->only_change(w, random_next(&seed)))
		atomic_fetch_add(&w->changes, 1);
}

static void stop_test(struct __test_metadata *_metadata,
		      FIXTURE_DATA(spf_race) *self, size_t len, change change)
{
	self->w->only_change = change;
	run(_metadata, self, len, scribble, changes_until_failure);
}

/* The pages of a read-only mapping are zero and stay zero. */
static void expect_zero(struct world *w)
{
	char *map = map_of(w);
	int times;
	size_t i;

	for (times = 0; times < 3; times++) {
		for (i = 0; i < w->len; i += 64)
			if (word_read(map + i))
				atomic_fetch_add(&w->run.wrong, 1);
		usleep(300);
	}
}

/* Maps read-only memory over a mapping that threads fault on. */
static bool stop_replace(struct world *w, __u64 dice)
{
	char *map = map_of(w);

	usleep(200);
	if (!map_zero_at(map, w->len))
		return false;
	expect_zero(w);
	return map_fresh_at(map, w->len) && advise_pages(w, map, w->len);
}

TEST_F_TIMEOUT(spf_race, stop_replace, TIMEOUT)
{
	stop_test(_metadata, self, STOP_LEN, stop_replace);
}

/*
 * The same, with an unmapped range in between.  Every other time it is part of
 * a larger mapping, which shrinks.
 */
static bool stop_munmap(struct world *w, __u64 dice)
{
	static bool part = true;
	char *map = map_of(w);

	usleep(200);
	if (munmap(map, w->len) || !map_zero_at(map, w->len))
		return false;
	expect_zero(w);
	part = !part;
	if (!part && madvise(map, w->len, MADV_DONTDUMP))
		return false;
	return !mprotect(map, w->len, PROT_READ | PROT_WRITE) &&
	       advise_pages(w, map, w->len);
}

TEST_F_TIMEOUT(spf_race, stop_munmap, TIMEOUT)
{
	stop_test(_metadata, self, STOP_LEN, stop_munmap);
}

/* The same with a mapping that has a page table to itself, which goes with it. */
static bool stop_munmap_table(struct world *w, __u64 dice)
{
	char *map = map_of(w);

	usleep(200);
	return !munmap(map, w->len) && map_fresh_at(map, w->len) &&
	       advise_pages(w, map, w->len);
}

TEST_F_TIMEOUT(spf_race, stop_munmap_table, TIMEOUT)
{
	stop_test(_metadata, self, pmd_size(), stop_munmap_table);
}

static __u64 sum(const char *map, size_t len)
{
	__u64 sum = 0;
	size_t i;

	for (i = 0; i < len; i += sizeof(__u64))
		sum = sum * 31 + word_read(map + i);
	return sum;
}

/* Read-only memory does not change. */
static bool stop_mprotect(struct world *w, __u64 dice)
{
	char *map = map_of(w);
	__u64 before;

	/* Causes faults of fresh memory and of the zero page. */
	if (madvise(map, w->len, MADV_DONTNEED))
		return false;
	usleep(100);
	if (mprotect(map, w->len, PROT_READ))
		return false;
	before = sum(map, w->len);
	usleep(500);
	if (sum(map, w->len) != before)
		atomic_fetch_add(&w->run.wrong, 1);
	return !mprotect(map, w->len, PROT_READ | PROT_WRITE);
}

TEST_F_TIMEOUT(spf_race, stop_mprotect, TIMEOUT)
{
	stop_test(_metadata, self, STOP_LEN, stop_mprotect);
}

/* Memory has tags as soon as mprotect() returns, whoever has mapped its pages. */
static bool stop_tags(struct world *w, __u64 dice)
{
	char *map = map_of(w);
	size_t i;

	/* No mprotect() takes them away. */
	if (!map_fresh_at(map, w->len) || !advise_pages(w, map, w->len))
		return false;
	usleep(100);
	if (mprotect(map, w->len, PROT_READ | PROT_WRITE | TAGGED))
		return false;
	for (i = 0; i < w->len; i += page_size())
		tag_write(map + i, 5);
	usleep(500);
	for (i = 0; i < w->len; i += page_size())
		if (tag_read(map + i) != 5)
			atomic_fetch_add(&w->run.wrong, 1);
	return true;
}

TEST_F_TIMEOUT(spf_race, stop_tags, TIMEOUT)
{
	if (!have_tags())
		SKIP(return, "this machine has no memory tags");
	stop_test(_metadata, self, STOP_LEN, stop_tags);
}

/* The number of populated pages: mapped or swapped out. */
static long pages_there(const char *map, size_t len)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t n = len / page_size(), at = (uintptr_t)map / page_size(), i;
	__u64 entries[64];
	long there = 0;

	while (n && there >= 0) {
		size_t some = n < ARRAY_SIZE(entries) ? n : ARRAY_SIZE(entries);

		if (pread(fd, entries, some * 8, at * 8) != (ssize_t)(some * 8))
			there = -1;
		for (i = 0; there >= 0 && i < some; i++)
			there += entries[i] >> 62 ? 1 : 0;
		n -= some;
		at += some;
	}
	close(fd);
	return there;
}

/* Nothing gets mapped in a range that is registered with userfaultfd. */
static bool stop_userfaultfd(struct world *w, __u64 dice)
{
	char *map = map_of(w);
	static int fd = -1;
	int i;

	if (fd < 0)
		fd = uffd_open(0, NULL);
	usleep(200);
	if (uffd_register(fd, map, w->len, UFFDIO_REGISTER_MODE_MISSING) ||
	    madvise(map, w->len, MADV_DONTNEED))
		return false;
	for (i = 0; i < 3; i++) {
		if (pages_there(map, w->len))
			atomic_fetch_add(&w->run.wrong, 1);
		usleep(300);
	}
	return !uffd_unregister(fd, map, w->len);
}

TEST_F_TIMEOUT(spf_race, stop_userfaultfd, TIMEOUT)
{
	int fd = uffd_open(0, NULL);

	if (fd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	close(fd);
	stop_test(_metadata, self, STOP_LEN, stop_userfaultfd);
}

/* Huge pages come and go, and with them the page table that faults need. */
static void stop_collapse(struct world *w)
{
	char *map = map_of(w);

	while (racing(w)) {
		usleep(200);
		if (madvise(map, w->len, MADV_POPULATE_WRITE))
			break;
		if (madvise(map, w->len, MADV_COLLAPSE))
			continue;
		if (madvise(map, w->len, MADV_DONTNEED))
			break;
		atomic_fetch_add(&w->changes, 1);
	}
}

TEST_F_TIMEOUT(spf_race, stop_collapse, TIMEOUT)
{
	self->w->huge = true;
	run(_metadata, self, pmd_size(), scribble, stop_collapse);
}

/*
 * A file on overlayfs is freed at once with its last mapping.  Threads copy its
 * pages.
 */
#define OVERLAY		"/tmp/spf_overlay"
#define OVERLAY_FILE	OVERLAY "/merged/file"

/* On ramfs, because speculative faults do not handle shmem. */
static bool overlay_start(size_t len)
{
	int fd;

	mkdir(OVERLAY, 0755);
	if (mount("ramfs", OVERLAY, "ramfs", 0, NULL))
		return false;
	mkdir(OVERLAY "/lower", 0755);
	mkdir(OVERLAY "/empty", 0755);
	mkdir(OVERLAY "/merged", 0755);
	fd = open(OVERLAY "/lower/file", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return false;
	if (ftruncate(fd, len)) {
		close(fd);
		return false;
	}
	close(fd);
	return !mount("overlay", OVERLAY "/merged", "overlay", MS_RDONLY,
		      "lowerdir=" OVERLAY "/lower:" OVERLAY "/empty");
}

static void overlay_stop(void)
{
	umount2(OVERLAY "/merged", MNT_DETACH);
	umount2(OVERLAY, MNT_DETACH);
}

static bool stop_overlay(struct world *w, __u64 dice)
{
	int fd = open(OVERLAY_FILE, O_RDONLY | O_CLOEXEC);
	char *p = mmap(map_of(w), w->len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_FIXED, fd, 0);

	if (fd < 0 || p == MAP_FAILED)
		return false;
	close(fd);
	/* Only the mapping uses the file; its pages can be copied. */
	word_write(p, 0);
	madvise(p, w->len, MADV_POPULATE_READ);
	usleep(200);
	return map_fresh_at(p, w->len);
}

TEST_F_TIMEOUT(spf_race, stop_overlay, TIMEOUT)
{
	if (!overlay_start(STOP_LEN))
		SKIP(return, "this kernel has no overlayfs");
	stop_test(_metadata, self, STOP_LEN, stop_overlay);
	overlay_stop();
}

/*
 * Shared memory that threads fault on is unmapped.  Its faults go to the upstream
 * path with the VMA that was found, which must still be the right one.  Every
 * other time that VMA is removed; in between it shrinks to the page before the
 * range.  A fault that goes on with it maps a page of the old memory, or fails
 * with SIGBUS, as the file is gone.
 */
static bool stop_shared(struct world *w, __u64 dice)
{
	static size_t edge;
	char *map = map_of(w);
	char *p = mmap(map - edge, w->len + edge, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (p == MAP_FAILED)
		return false;
	usleep(200);
	if (edge && madvise(p, edge, MADV_DONTFORK))
		return false;
	if (munmap(map, w->len) || !map_zero_at(map, w->len))
		return false;
	expect_zero(w);
	edge = page_size() - edge;
	return true;
}

TEST_F_TIMEOUT(spf_race, stop_shared, TIMEOUT)
{
	stop_test(_metadata, self, STOP_LEN, stop_shared);
}

/*
 * When memory is not available at once, faults drop everything, wait and start
 * over; the VMA may have changed by then.
 */
TEST_F_TIMEOUT(spf_race, stop_munmap_slow_memory, TIMEOUT)
{
	if (!spf_fail_at_once(50))
		SKIP(return, "this kernel has no fault injection");
	stop_test(_metadata, self, STOP_LEN, stop_munmap);
	spf_fail_at_once(0);
}

/*
 * A fault that copies a page calls the MMU notifiers of the mm, as soon as the
 * first one is registered.  A process shares its pages with a child and copies
 * them in two threads, while a notifier is registered.
 */
static void *copy_pages(void *arg)
{
	struct thread *t = arg;
	size_t i;

	for (i = t->id; i < t->w->pages; i += 2)
		word_write(map_of(t->w) + i * page_size(), TAG);
	return NULL;
}

static int notified_process(struct world *w, __u64 dice)
{
	char *map = map_of(w);
	pid_t child;
	int i;

	fill_pages(map, w->len, TAG);
	child = fork_bound();
	if (child < 0)
		return 1;
	while (!child)
		pause();
	for (i = 0; i < 2; i++) {
		struct thread *t = &w->threads[i];

		*t = (struct thread) { .w = w, .id = i };
		if (pthread_create(&w->ids[i], NULL, copy_pages, t))
			return 2;
	}
	usleep(dice % 5000);
	if (!spf_torture("notifier", 1))
		return 3;
	for (i = 0; i < 2; i++)
		pthread_join(w->ids[i], NULL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}

static void *do_nothing(void *arg)
{
	struct thread *t = arg;

	while (!atomic_load(&t->w->run.stop)) {
		t->acts++;
		usleep(1000);
	}
	return NULL;
}

static bool stop_notifier(struct world *w, __u64 dice)
{
	pid_t pid = fork();

	if (!pid)
		_exit(notified_process(w, dice));
	if (reap(pid))
		return false;
	if (spf_torture_read("unnotified")) {
		atomic_fetch_add(&w->run.wrong, 1);
		spf_torture("unnotified", 0);
	}
	return true;
}

TEST_F_TIMEOUT(spf_race, stop_notifier, TIMEOUT)
{
	if (spf_torture_read("unnotified") < 0)
		SKIP(return, "this kernel has no MMU notifier for tests");
	self->w->only_change = stop_notifier;
	run(_metadata, self, 64 * page_size(), do_nothing,
	    changes_until_failure);
}

/*
 * A page table is moved while a fault, already found valid, copies one of its
 * pages.  The fault flushes the old address: a CPU that has read the page at
 * the new address would see the old page forever.
 */
struct mover {
	struct world *w;
	char *from, *to;
	atomic_bool begun;	/* the writer is about to fault */
	atomic_int step;	/* 1: moved, 2: seen by reader, 3: written */
	atomic_bool seen;
};

static void *write_old_place(void *arg)
{
	struct mover *m = arg;

	atomic_store(&m->begun, true);
	/* Copies the page if it happens before the move. */
	try_write(m->from, TAG + 1);
	return NULL;
}

static void *read_new_place(void *arg)
{
	struct mover *m = arg;
	__u64 until;

	while (atomic_load(&m->step) < 1)
		;
	word_read(m->to);
	atomic_store(&m->step, 2);
	while (atomic_load(&m->step) < 3)
		word_read(m->to);
	/* No system call from here on, as it may flush. */
	until = now_ns() + 50000000;
	do {
		if (word_read(m->to) == TAG + 2)
			atomic_store(&m->seen, true);
	} while (now_ns() < until && !atomic_load(&m->seen));
	return NULL;
}

static bool move_once(struct world *w, __u64 dice)
{
	size_t len = pmd_size();
	struct mover m = { .w = w, .from = map_of(w) };
	pthread_t writer, reader;
	pid_t child;

	m.to = m.from + 4 * len;
	/* A whole table, and a child that shares the page. */
	word_write(m.from, TAG);
	word_write(m.from + len - page_size(), TAG);
	child = fork_bound();
	if (child < 0)
		return false;
	while (!child)
		pause();
	if (pthread_create(&reader, NULL, read_new_place, &m) ||
	    pthread_create(&writer, NULL, write_old_place, &m))
		return false;
	while (!atomic_load(&m.begun))
		;
	usleep(dice % 10000);
	if (mremap(m.from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, m.to) !=
	    m.to)
		return false;
	atomic_store(&m.step, 1);
	while (atomic_load(&m.step) < 2)
		;
	pthread_join(writer, NULL);
	word_write(m.to, TAG + 2);
	atomic_store(&m.step, 3);
	pthread_join(reader, NULL);
	if (!atomic_load(&m.seen))
		atomic_fetch_add(&w->run.wrong, 1);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return mremap(m.to, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, m.from) ==
	       m.from;
}

static void stop_stale(struct world *w)
{
	long width = spf_torture_read("change_window_us");

	if (width > 0 && width < 10000)
		spf_torture("change_window_us", 10000);
	changes_until_failure(w);
}

TEST_F_TIMEOUT(spf_race, stop_stale, TIMEOUT)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) < 3)
		SKIP(return, "this race needs three CPUs");
	self->w->only_change = move_once;
	run(_metadata, self, pmd_size(), do_nothing, stop_stale);
}

/* --- order */

/*
 * A thread has pages at the low end of the memory and as many at the high end.
 * It writes a word to a low page and then to the high one, both fresh memory,
 * and it discards the high pages before the low ones.  So a word in a high page
 * is always in the low one as well.
 */
static void *in_order(void *arg)
{
	struct thread *t = arg;
	struct world *w = t->w;
	size_t n = w->pages / 4 / THREADS, len = n * page_size(), i;
	char *low = map_of(w) + t->id * len;
	char *high = low + 3 * (w->len / 4);

	while (!atomic_load(&w->run.stop)) {
		t->acts++;
		for (i = 0; i < n; i++) {
			word_write(low + i * page_size(), t->acts);
			/* Weakly ordered CPUs may reorder the stores. */
			atomic_thread_fence(memory_order_seq_cst);
			word_write(high + i * page_size(), t->acts);
		}
		if (madvise(high, len, MADV_DONTNEED) ||
		    madvise(low, len, MADV_DONTNEED))
			break;
	}
	return NULL;
}

static void expect_order(struct world *w)
{
	size_t i;

	for (i = 0; i < w->pages / 4 / THREADS * THREADS; i++) {
		char *low = map_of(w) + i * page_size();
		__u64 word = word_read(low + 3 * (w->len / 4));

		if (word && word != word_read(low))
			atomic_fetch_add(&w->run.wrong, 1);
	}
}

static void fork_order(struct world *w)
{
	char *map = map_of(w);
	size_t i;

	/* Many mappings in between, so that fork() takes a while. */
	for (i = w->pages / 4 + 1; i < 3 * (w->pages / 4); i += 4)
		if (mprotect(map + i * page_size(), page_size(), PROT_READ))
			return;
	while (racing(w)) {
		pid_t pid = fork();

		if (pid < 0)
			continue;
		if (!pid) {
			expect_order(w);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
		atomic_fetch_add(&w->changes, 1);
	}
}

TEST_F_TIMEOUT(spf_race, fork_order, TIMEOUT)
{
	run(_metadata, self, pmd_size(), in_order, fork_order);
}

/* --- fill: memory without page tables */

/* Of the memory of most of these tests, in huge pages. */
#define FILL_HUGE	3

/*
 * Each word of the memory is zero, or what touch() writes there, whichever
 * thread or process did it.  The memory of others that a page had before must
 * not show up.
 */
static __u64 touched_word(size_t index, size_t word)
{
	size_t id = word / 8 - 1;

	return word % 8 || !word || id >= THREADS ? 0 :
	       page_word(TAG + id, index);
}

static bool touched_well(struct world *w, size_t index, size_t word)
{
	__u64 *p = (__u64 *)(map_of(w) + index * page_size()), found;

	return try_read(p + word, &found) || !found ||
	       found == touched_word(index, word);
}

/*
 * Writes its own words at random places, and reads any.  The first access to a
 * huge page should be a write: a read maps the huge zero page.
 */
static void *touch(void *arg)
{
	struct thread *t = arg;
	struct world *w = t->w;

	while (!atomic_load(&w->run.stop)) {
		size_t index = random_next(&t->seed) % w->pages;
		size_t word = random_next(&t->seed) %
			      (page_size() / sizeof(__u64));
		bool write = random_next(&t->seed) % 8;

		begin(w);
		if (write && try_write(slot(t, map_of(w), index),
				       page_word(TAG + t->id, index)))
			t->escapes++;
		if (!touched_well(w, index, word))
			atomic_fetch_add(&w->run.wrong, 1);
		end(w);
		t->acts++;
	}
	return NULL;
}

/* A huge page of the memory. */
static char *any_huge(struct world *w, __u64 dice)
{
	return map_of(w) + dice / 16 % (w->len / pmd_size()) * pmd_size();
}

/* Huge, or a part of it. */
static size_t any_len(__u64 dice)
{
	return dice % 4 ? pmd_size() : (1 + dice / 256 % 64) * page_size();
}

static bool fill_discard(struct world *w, __u64 dice)
{
	return !madvise(any_huge(w, dice), any_len(dice), MADV_DONTNEED);
}

static bool fill_replace(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);
	size_t len = any_len(dice);

	return map_fresh_at(p, len) &&
	       !madvise(p, len, dice % 3 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

/* Not there at all for a while. */
static bool fill_unmap(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);
	size_t len = dice % 8 ? any_len(dice) : w->len - (p - map_of(w));

	if (munmap(p, len))
		return false;
	usleep(dice % 300);
	return map_fresh_at(p, len) && !madvise(p, len, MADV_HUGEPAGE);
}

static bool fill_protect(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);
	size_t len = any_len(dice);

	return !mprotect(p, len, dice % 3 ? PROT_READ : PROT_NONE) &&
	       !mprotect(p, len, PROT_READ | PROT_WRITE);
}

static bool fill_advise(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);

	return !madvise(p, any_len(dice), MADV_NOHUGEPAGE) &&
	       (dice % 3 || !madvise(p, pmd_size(), MADV_DONTNEED)) &&
	       !madvise(p, pmd_size(), MADV_HUGEPAGE);
}

/* Threads get stuck in faults until the range is free again. */
static bool fill_userfaultfd(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);
	int fd = uffd_open(0, NULL);
	bool done;

	if (fd < 0)
		return false;
	done = !uffd_register(fd, p, pmd_size(), UFFDIO_REGISTER_MODE_MISSING);
	if (done) {
		usleep(dice % 300);
		done = !uffd_unregister(fd, p, pmd_size());
	}
	close(fd);
	return done;
}

static bool fill_policy(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);
	unsigned long nodes = 1 + dice % 3;

	return !syscall(SYS_mbind, p, pmd_size(), MPOL_BIND, &nodes,
			8 * sizeof(nodes), 0) &&
	       !syscall(SYS_mbind, p, pmd_size(), MPOL_DEFAULT, NULL, 0, 0);
}

/* The child has the memory to itself: it writes, and looks at all of it. */
static bool fill_fork(struct world *w, __u64 dice)
{
	pid_t pid = fork_bound();
	__u64 seed = dice;
	size_t i;
	int status;

	if (pid < 0)
		return false;
	if (!pid) {
		size_t words = page_size() / sizeof(__u64);

		for (i = 0; i < 200; i++) {
			size_t index = random_next(&seed) % w->pages;
			struct thread t = { .id = random_next(&seed) % THREADS };

			if (i % 4 == 0)
				try_write(slot(&t, map_of(w), index),
					  page_word(TAG + t.id, index));
			if (!touched_well(w, index, random_next(&seed) % words))
				_exit(1);
		}
		_exit(0);
	}
	status = reap(pid);
	if (status == 1)
		atomic_fetch_add(&w->run.wrong, 1);
	return !status;
}

/* A whole table to another place and back. */
static bool fill_move(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice), *to = map_of(w) + w->len + 2 * pmd_size();
	size_t len = pmd_size();

	if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		return false;
	usleep(dice % 200);
	return mremap(to, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p;
}

/* The same, and the old place can still be used. */
static bool fill_leave(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice), *to = map_of(w) + w->len + 2 * pmd_size();
	size_t len = pmd_size();

	if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED |
		   MREMAP_DONTUNMAP, to) != to)
		return false;
	usleep(dice % 200);
	return !munmap(to, len);
}

static bool fill_collapse(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);

	/* khugepaged does the same, meanwhile. */
	return !madvise(p, pmd_size(), MADV_COLLAPSE);
}

static bool fill_lock(struct world *w, __u64 dice)
{
	char *p = any_huge(w, dice);

	return !mlock(p, any_len(dice)) && !munlock(p, pmd_size());
}

static bool fill_swap(struct world *w, __u64 dice)
{
	return !madvise(any_huge(w, dice), pmd_size(), MADV_PAGEOUT);
}

/* A system call fills memory, with zeroes. */
static bool fill_by_kernel(struct world *w, __u64 dice)
{
	static int zero = -1;
	char *p = any_huge(w, dice);

	if (zero < 0)
		zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	return !madvise(p, pmd_size(), MADV_DONTNEED) &&
	       read(zero, p, any_len(dice)) > 0;
}

/* Makes free memory dirty. */
static bool fill_dirt(struct world *w, __u64 dice)
{
	char *p = map_fresh(2 * pmd_size());

	if (!p)
		return false;
	madvise(p, 2 * pmd_size(), MADV_HUGEPAGE);
	memset(p, 0xa5, 2 * pmd_size());
	return !munmap(p, 2 * pmd_size());
}

static const change fills[] = {
	fill_discard,
	fill_discard,
	fill_replace,
	fill_unmap,
	fill_protect,
	fill_advise,
	fill_userfaultfd,
	fill_policy,
	fill_fork,
	fill_move,
	fill_leave,
	fill_collapse,
	fill_lock,
	fill_swap,
	fill_by_kernel,
	fill_dirt,
};

/*
 * The changes leave the memory in pieces and with page tables, so it is mapped
 * anew all the time.
 */
static void many_fills(struct world *w)
{
	__u64 seed = 5;
	long n;

	for (n = 0; racing(w); n++) {
		size_t i = random_next(&seed) % ARRAY_SIZE(fills);
		change act = w->only_change ? w->only_change : fills[i];

		if (act(w, random_next(&seed)))
			atomic_fetch_add(&w->changes, 1);
		if (n % 4 == 0 && map_fresh_at(map_of(w), w->len))
			advise_pages(w, map_of(w), w->len);
	}
}

/* NULL, or the reason why huge pages cannot be tested. */
static const char *prepare_huge(struct world *w)
{
	const char *why = thp_set("madvise", "always");

	if (why)
		return why;
	write_text(THP "khugepaged/scan_sleep_millisecs", "10");
	write_text(THP "khugepaged/alloc_sleep_millisecs", "10");
	w->huge = true;
	w->fills = spf_fills_holes() ? "huge" : NULL;
	return NULL;
}

static void fill_test(struct __test_metadata *_metadata,
		      FIXTURE_DATA(spf_race) *self, change act, bool huge)
{
	const char *why = huge ? prepare_huge(self->w) : NULL;

	if (why)
		SKIP(return, "%s", why);
	if (!huge)
		self->w->fills = spf_fills_holes() ? "table" : NULL;
	self->w->only_change = act;
	run(_metadata, self, FILL_HUGE * pmd_size(), touch, many_fills);
	thp_restore();
}

#define FILL(name)							\
TEST_F_TIMEOUT(spf_race, fill_##name, TIMEOUT)				\
{									\
	fill_test(_metadata, self, fill_##name, true);			\
}

FILL(discard)
FILL(replace)
FILL(unmap)
FILL(protect)
FILL(advise)
FILL(fork)
FILL(move)
FILL(collapse)

TEST_F_TIMEOUT(spf_race, fill_with_tables, TIMEOUT)
{
	fill_test(_metadata, self, NULL, false);
}

TEST_F_TIMEOUT(spf_race, fill_with_all, TIMEOUT)
{
	fill_test(_metadata, self, NULL, true);
}

/* munmap() in sections, each of which lets faults in. */
TEST_F_TIMEOUT(spf_race, fill_and_unmap_in_sections, TIMEOUT)
{
	long old;

	if (vm_sysctl_read(MUNMAP_KNOB, &old) ||
	    vm_sysctl_write(MUNMAP_KNOB, MUNMAP_SMALL_KB))
		SKIP(return, "vm." MUNMAP_KNOB " cannot be set here");
	fill_test(_metadata, self, fill_unmap, true);
	vm_sysctl_write(MUNMAP_KNOB, old);
}

/* --- processes that are killed while their faults wait for memory */

#define LIVES		2

struct storm {
	struct memory_group group;
	struct world *lives[LIVES];
};

/* Shared by the children of one test, which are ended by kill -9. */
static struct storm storm;

static int live(struct world *w, struct world *life)
{
	/* Without the group, only the kills. */
	if (*storm.group.dir)
		memory_group_write(&storm.group, "cgroup.procs", "0");
	life->variant = w->variant;
	life->huge = true;
	life->len = w->len;
	life->pages = w->pages;
	life->act = touch;
	life->main_thread = many_fills;
	return play(life, 0);
}

static void storms(struct world *w)
{
	pid_t pids[LIVES] = { };
	__u64 seed = 6;
	int i;

	while (racing(w)) {
		for (i = 0; i < LIVES; i++) {
			memset(storm.lives[i], 0, sizeof(*storm.lives[i]));
			pids[i] = fork_bound();
			if (!pids[i])
				_exit(live(w, storm.lives[i]));
		}
		usleep(random_next(&seed) % 400000);
		for (i = 0; i < LIVES; i++) {
			int status;

			if (pids[i] <= 0)
				continue;
			kill(pids[i], SIGKILL);
			status = reap(pids[i]);
			/* The OOM killer may have been first. */
			if (status != 256 + SIGKILL)
				atomic_fetch_add(&w->run.failed, 1);
			atomic_fetch_add(&w->run.wrong,
					 atomic_load(&storm.lives[i]->run.wrong));
			if (atomic_load(&storm.lives[i]->changes))
				atomic_fetch_add(&w->changes, 1);
		}
	}
}

#define LEAK_NS		(60 * 1000000000ULL)

/* Waits until a number is back at @before or below; returns the last one. */
static long back_at(long before, long (*now)(void))
{
	__u64 began = now_ns();
	long value;

	for (;;) {
		value = now();
		if (value <= before || now_ns() - began > LEAK_NS)
			return value;
		usleep(200000);
	}
}

static long all_huge(void)
{
	return vmstat_read("nr_anon_transparent_hugepages");
}

static long group_anon(void)
{
	return memory_group_read(&storm.group, "memory.stat", "anon");
}

static long group_tables(void)
{
	return memory_group_read(&storm.group, "memory.stat", "pagetables");
}

static long group_all(void)
{
	char path[160], text[32];

	snprintf(path, sizeof(path), "%s/memory.current", storm.group.dir);
	return read_text(path, text, sizeof(text)) ? -1 :
						     strtol(text, NULL, 10);
}

static void no_leak(struct __test_metadata *_metadata, const char *what,
		    long before, long (*now)(void))
{
	long after = back_at(before, now);

	EXPECT_GE(before, after) {
		TH_LOG("%s: %ld before, %ld at the end", what, before, after);
	}
}

TEST_F_TIMEOUT(spf_race, fill_and_die, TIMEOUT)
{
	const char *why = prepare_huge(self->w);
	long huge = all_huge(), anon, tables, all;
	char max[32];
	int i;

	if (why)
		SKIP(return, "%s", why);
	for (i = 0; i < LIVES; i++) {
		storm.lives[i] = map_shared(sizeof(*storm.lives[i]));
		ASSERT_NE(NULL, storm.lives[i]);
	}
	if (!memory_group_enter(&storm.group))
		SKIP(return, "no memory cgroups here");
	memory_group_exit(&storm.group);
	/* Enough for a life, not for all of its memory and that of the other. */
	snprintf(max, sizeof(max), "%zu", (2 * FILL_HUGE + 1) * pmd_size());
	memory_group_write(&storm.group, "memory.swap.max", "0");
	ASSERT_EQ(0, memory_group_write(&storm.group, "memory.max", max));
	anon = group_anon();
	tables = group_tables();
	all = group_all();
	run(_metadata, self, FILL_HUGE * pmd_size(), do_nothing, storms);
	TH_LOG("%ld OOM kills, %ld times at the limit",
	       memory_group_read(&storm.group, "memory.events", "oom_kill"),
	       memory_group_read(&storm.group, "memory.events", "max"));
	no_leak(_metadata, "huge pages of all processes", huge, all_huge);
	no_leak(_metadata, "anon of the group", anon, group_anon);
	no_leak(_metadata, "pagetables of the group", tables, group_tables);
	/* CPUs keep some charges: a batch of 64 pages each. */
	all += sysconf(_SC_NPROCESSORS_CONF) * 64 * page_size() + MIB;
	no_leak(_metadata, "memory.current", all, group_all);
	memory_group_leave(&storm.group);
	thp_restore();
}

/* --- stop: as above, where faults install tables and huge pages */

static void stop_huge_test(struct __test_metadata *_metadata,
			   FIXTURE_DATA(spf_race) *self, change change)
{
	const char *why = prepare_huge(self->w);

	if (why)
		SKIP(return, "%s", why);
	stop_test(_metadata, self, pmd_size(), change);
	thp_restore();
}

/*
 * Until a moment that differs each time, threads fault on the memory, which has
 * neither a table nor an anon_vma.
 */
static bool let_fault(struct world *w, __u64 dice)
{
	long width = spf_torture_read("fill_window_us");

	if (!map_fresh_at(map_of(w), w->len) ||
	    !advise_pages(w, map_of(w), w->len))
		return false;
	usleep(200 + dice % (width > 0 ? 1 + width : 1000));
	return true;
}

/* Time for faults that have begun before to do what they must not do. */
static void let_end(void)
{
	long width = spf_torture_read("fill_window_us");

	usleep(width > 1000 ? width : 1000);
}

/* No thread can write now. */
static void expect_no_words(struct world *w)
{
	size_t i;
	int id;

	let_end();
	for (i = 0; i < w->pages; i++)
		for (id = 0; id < THREADS; id++) {
			struct thread t = { .id = id };

			if (word_read(slot(&t, map_of(w), i)))
				atomic_fetch_add(&w->run.wrong, 1);
		}
}

#define STOP_HUGE(name)							\
TEST_F_TIMEOUT(spf_race, stop_huge_##name, TIMEOUT)			\
{									\
	stop_huge_test(_metadata, self, stop_huge_##name);		\
}

/* Once memory is read-only and discarded, it stays zero. */
static bool stop_huge_mprotect(struct world *w, __u64 dice)
{
	char *map = map_of(w);

	if (!let_fault(w, dice) || mprotect(map, w->len, PROT_READ) ||
	    madvise(map, w->len, MADV_DONTNEED))
		return false;
	expect_no_words(w);
	return true;
}

STOP_HUGE(mprotect)

static bool stop_huge_replace(struct world *w, __u64 dice)
{
	if (!let_fault(w, dice) || !map_zero_at(map_of(w), w->len))
		return false;
	expect_no_words(w);
	return true;
}

STOP_HUGE(replace)

static bool stop_huge_munmap(struct world *w, __u64 dice)
{
	char *map = map_of(w);

	if (!let_fault(w, dice) || munmap(map, w->len))
		return false;
	if (dice % 2)
		usleep(dice % 1000);
	if (!map_zero_at(map, w->len))
		return false;
	expect_no_words(w);
	return true;
}

STOP_HUGE(munmap)

/*
 * Nothing gets mapped in a range that is registered with userfaultfd.
 *
 * Memory is discarded twice, as any kernel may leave it there the first time: a
 * write to the huge zero page splits it, and its PMD entry is none for a moment.
 */
static bool stop_huge_userfaultfd(struct world *w, __u64 dice)
{
	char *map = map_of(w);
	int fd = uffd_open(0, NULL);
	bool done;

	if (fd < 0)
		return false;
	done = let_fault(w, dice) &&
	       !uffd_register(fd, map, w->len, UFFDIO_REGISTER_MODE_MISSING) &&
	       !madvise(map, w->len, MADV_DONTNEED);
	if (done) {
		sched_yield();
		done = !madvise(map, w->len, MADV_DONTNEED);
		let_end();
		if (pages_there(map, w->len))
			atomic_fetch_add(&w->run.wrong, 1);
		done = !uffd_unregister(fd, map, w->len);
	}
	close(fd);
	return done;
}

TEST_F_TIMEOUT(spf_race, stop_huge_userfaultfd, TIMEOUT)
{
	int fd = uffd_open(0, NULL);

	if (fd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	close(fd);
	stop_huge_test(_metadata, self, stop_huge_userfaultfd);
}

/* There are no huge pages after MADV_NOHUGEPAGE. */
static bool stop_huge_advice(struct world *w, __u64 dice)
{
	char *map = map_of(w);

	if (!let_fault(w, dice) || madvise(map, w->len, MADV_NOHUGEPAGE) ||
	    madvise(map, w->len, MADV_DONTNEED))
		return false;
	let_end();
	if (smaps_kb(map, w->len, "AnonHugePages"))
		atomic_fetch_add(&w->run.wrong, 1);
	return true;
}

STOP_HUGE(advice)

/* After mbind(), all new pages are on its node. */
static bool stop_huge_mbind(struct world *w, __u64 dice)
{
	unsigned long nodes = 1 << dice % 2;
	char *map = map_of(w);
	int status[8], i;
	void *pages[8];

	for (i = 0; i < 8; i++)
		pages[i] = map + i * (w->len / 8);
	if (!let_fault(w, dice) ||
	    syscall(SYS_mbind, map, w->len, MPOL_BIND, &nodes,
		    8 * sizeof(nodes), 0) ||
	    madvise(map, w->len, MADV_DONTNEED))
		return false;
	let_end();
	if (syscall(SYS_move_pages, 0, 8UL, pages, NULL, status, 0))
		return false;
	for (i = 0; i < 8; i++)
		if (status[i] >= 0 && !(nodes & 1 << status[i]))
			atomic_fetch_add(&w->run.wrong, 1);
	return true;
}

TEST_F_TIMEOUT(spf_race, stop_huge_mbind, TIMEOUT)
{
	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "this machine has one node");
	stop_huge_test(_metadata, self, stop_huge_mbind);
}

/*
 * A mapping goes away with its table, for good, at another address each time.  A
 * table that a fault installs later is never freed.  The kernel reports it as
 * well, when the process has ended.
 */
#define TABLES_RANGE	(256 * GIB)

/*
 * In every other GiB there is a neighbour, which keeps the tables above.  Where
 * there is none they go away as well, so a GiB is used only once.
 */
static bool stop_table_munmap(struct world *w, __u64 dice)
{
	static char *range;
	static size_t used;
	static long tables;
	bool alone, done;
	char *map;

	if (!range || used >= TABLES_RANGE) {
		range = free_range(TABLES_RANGE);
		used = 0;
	}
	if (!range)
		return false;
	map = range + used;
	alone = used / GIB % 2;
	if (used % GIB == 0 && !alone) {
		if (!map_fresh_at(map, page_size()))
			return false;
		word_write(map, TAG);
		tables = page_tables_kb();
	}
	used += alone ? GIB - used % GIB : 2 * w->len;
	atomic_store(&w->map, (uintptr_t)map + w->len);
	done = let_fault(w, dice) && !munmap(map + w->len, w->len);
	let_end();
	/* The library may need some as well. */
	if (page_tables_kb() > tables + 2 * (long)(page_size() / KIB))
		atomic_fetch_add(&w->run.wrong, 1);
	return done;
}

static void stop_table_test(struct __test_metadata *_metadata,
			    FIXTURE_DATA(spf_race) *self, change change)
{
	self->w->fills = spf_fills_holes() ? "table" : NULL;
	stop_test(_metadata, self, pmd_size(), change);
}

TEST_F_TIMEOUT(spf_race, stop_table_munmap, TIMEOUT)
{
	stop_table_test(_metadata, self, stop_table_munmap);
}

/*
 * mremap() moves a whole table over memory that threads fault on.  It needs an
 * empty entry there, and the words of the moved pages stay.
 */
static bool stop_table_mremap(struct world *w, __u64 dice)
{
	char *map = map_of(w), *from = map + 4 * pmd_size();
	size_t ps = page_size(), i;

	if (!map_fresh_at(from, w->len))
		return false;
	madvise(from, w->len, MADV_NOHUGEPAGE);
	/* No thread writes the first word of a page. */
	for (i = 0; i < w->len; i += 8 * ps)
		word_write(from + i, page_word(TAG, i));
	if (!let_fault(w, dice) ||
	    mremap(from, w->len, w->len, MREMAP_MAYMOVE | MREMAP_FIXED, map) !=
	    map)
		return false;
	for (i = 0; i < w->len; i += 8 * ps)
		if (word_read(map + i) != page_word(TAG, i))
			atomic_fetch_add(&w->run.wrong, 1);
	return true;
}

TEST_F_TIMEOUT(spf_race, stop_table_mremap, TIMEOUT)
{
	stop_table_test(_metadata, self, stop_table_mremap);
}

/*
 * The first write to a mapping finds the anon_vma of the one before it, which
 * it shares.  After munmap(), the anon_vma must not know the mapping: reclaim of
 * a page of the other would look at freed memory.
 */
static bool stop_anon_vma(struct world *w, __u64 dice)
{
	size_t edge = page_size();
	char *map = map_of(w);
	long width = spf_torture_read("anon_vma_window_us");

	/* Not merged with the one before, which has no PROT_EXEC. */
	if (mmap(map, w->len, PROT_READ | PROT_WRITE | PROT_EXEC,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != map)
		return false;
	if (!advise_pages(w, map, w->len))
		return false;
	/* A table without a page, so that only the anon_vma is missing. */
	word_read(map);
	usleep(200 + dice % (width > 0 ? 1 + width : 1000));
	if (munmap(map, w->len))
		return false;
	usleep(width > 1000 ? width : 1000);
	word_write(map - edge, TAG);
	madvise(map - edge, edge, MADV_PAGEOUT);
	return word_read(map - edge) == TAG;
}

TEST_F_TIMEOUT(spf_race, stop_anon_vma, TIMEOUT)
{
	self->w->fills = spf_fills_holes() ? "anon" : NULL;
	stop_test(_metadata, self, pmd_size(), stop_anon_vma);
}

/*
 * One thread faults on a huge page of its own again and again; it says when it
 * is about to, and when it has.
 */
struct faulter {
	struct world *w;
	atomic_int begun, done;
	char *page;
};

static void *fault_once(void *arg)
{
	struct faulter *f = arg;
	int turn = 0;

	while (racing(f->w)) {
		if (atomic_load(&f->begun) == turn) {
			sched_yield();
			continue;
		}
		turn++;
		word_write(f->page, TAG);
		atomic_store(&f->done, turn);
	}
	return NULL;
}

/*
 * At the limit of a group no huge page is to be had.  While a writer keeps
 * changing the VMA, a fault that begins anew does not try that again: one time,
 * and one more if upstream's path takes over.
 */
static atomic_long *most_tries;

static void tries_of_fault(struct world *w)
{
	struct faulter f = { .w = w, .page = map_of(w) };
	pthread_t thread;
	char max[32];
	int turn = 0;

	memory_group_write(&storm.group, "cgroup.procs", "0");
	if (pthread_create(&thread, NULL, fault_once, &f))
		return;
	/* Less than one, whatever else is charged. */
	snprintf(max, sizeof(max), "%zu", pmd_size() - page_size());
	if (memory_group_write(&storm.group, "memory.max", max))
		atomic_fetch_add(&w->run.failed, 1);
	while (racing(w)) {
		long tries;

		if (!map_fresh_at(f.page, w->len) ||
		    !advise_pages(w, f.page, w->len))
			break;
		tries = vmstat_read("thp_fault_fallback");
		atomic_store(&f.begun, ++turn);
		do {
			if (madvise(f.page, w->len, MADV_DONTFORK) ||
			    madvise(f.page, w->len, MADV_DOFORK))
				break;
			usleep(100);
		} while (atomic_load(&f.done) != turn && racing(w));
		tries = vmstat_read("thp_fault_fallback") - tries;
		if (tries > atomic_load(most_tries))
			atomic_store(most_tries, tries);
		if (tries)
			atomic_fetch_add(&w->changes, 1);
	}
	atomic_store(&w->run.stop, true);
	pthread_join(thread, NULL);
}

TEST_F_TIMEOUT(spf_race, stop_huge_tries, TIMEOUT)
{
	const char *why = prepare_huge(self->w);

	if (why)
		SKIP(return, "%s", why);
	/* No huge page: tables, if the faults do not lose to the writer. */
	self->w->fills = NULL;
	most_tries = map_shared(page_size());
	ASSERT_NE(NULL, most_tries);
	if (!memory_group_enter(&storm.group))
		SKIP(return, "no memory cgroups here");
	memory_group_exit(&storm.group);
	memory_group_write(&storm.group, "memory.swap.max", "0");
	run(_metadata, self, pmd_size(), do_nothing, tries_of_fault);
	EXPECT_GE(2, atomic_load(most_tries));
	memory_group_leave(&storm.group);
	thp_restore();
}

/*
 * Faults of many threads lose to a writer again and again, each with a huge page
 * in hand, which nobody can reclaim.  Few may wait with it for mmap_lock.
 */
#define CROWD		24
#define CROWD_LIMIT	8

static void *fault_in_crowd(void *arg)
{
	struct faulter *f = arg;

	while (racing(f->w)) {
		word_write(f->page, TAG);
		/* Lets others in; the page is discarded with all the others. */
		atomic_fetch_add(&f->done, 1);
		usleep(100);
	}
	return NULL;
}

static void *watch_crowd(void *arg)
{
	struct world *w = arg;

	while (racing(w)) {
		long n = spf_torture_read("huge_waiting");

		if (n > CROWD_LIMIT)
			atomic_fetch_add(&w->run.wrong, 1);
		usleep(100);
	}
	return NULL;
}

static void crowd(struct world *w)
{
	struct faulter f[CROWD];
	pthread_t ids[CROWD], watcher;
	char *map = map_of(w);
	size_t size = pmd_size();
	/* Makes fork() hold mmap_lock for a while. */
	char *ballast = map_filled(16 * MIB, TAG);
	int i, n;

	if (!ballast || pthread_create(&watcher, NULL, watch_crowd, w))
		return;
	for (n = 0; n < CROWD; n++) {
		f[n] = (struct faulter) { .w = w, .page = map + n * size };
		if (pthread_create(&ids[n], NULL, fault_in_crowd, &f[n]))
			break;
	}
	while (racing(w)) {
		if (madvise(map, w->len, MADV_DONTNEED))
			break;
		/* The child of the fork has only the ballast. */
		for (i = 0; i < 8; i++)
			if (madvise(map, w->len, i % 2 ? MADV_DONTFORK :
							 MADV_DOFORK))
				break;
		if (change_fork(w, 0))
			atomic_fetch_add(&w->changes, 1);
	}
	atomic_store(&w->run.stop, true);
	while (n--)
		pthread_join(ids[n], NULL);
	pthread_join(watcher, NULL);
}

TEST_F_TIMEOUT(spf_race, stop_huge_crowd, TIMEOUT)
{
	const char *why = prepare_huge(self->w);

	if (why)
		SKIP(return, "%s", why);
	if (variant->wide && spf_torture_read("huge_waiting") < 0)
		SKIP(return, "this kernel does not count who waits");
	run(_metadata, self, CROWD * pmd_size(), do_nothing, crowd);
	thp_restore();
}

int main(int argc, char **argv)
{
	const char *widths = getenv("FAULTLINE_WINDOWS");
	int status;

	if (!env_seconds("FAULTLINE_SECONDS", &opt_seconds))
		return KSFT_FAIL;
	if (widths && !parse_windows(widths))
		ksft_exit_fail_msg("FAULTLINE_WINDOWS: find=US lock=US ... sleep=US\n");
	if (!swap_start())
		ksft_print_msg("no swap: keep_swap only ages pages\n");
	thp_keep();
	status = vm_knob_kept(&spf_knob, test_harness_run, argc, argv);
	thp_restore();
	swap_stop();
	return status;
}
