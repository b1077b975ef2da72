// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise munmap against other calls of the same process.
 *
 * The race window lasts from the moment that the range is dead (calls such as
 * madvise() find a hole) to its removal from the address space.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "munmap_util.h"
#include "section_race.h"

#define TAG		0x6d756e6d61703032ULL

/* FAULTLINE_COUNT: mappings of the race that ends by count. */
static long opt_count = 20000;
/* FAULTLINE_PLAYGROUND: seconds of that test; 0: as of the others. */
static long opt_playground;
/* FAULTLINE_SEED: of its random choices. */
static long opt_seed = 1;

/* Whether calls that act on memory find a hole: it is dead, or unmapped. */
static bool is_hole(char *addr)
{
	/* It takes mmap_lock for reading only, and does nothing here. */
	return madvise(addr, page_size(), MADV_WILLNEED) && errno == ENOMEM;
}

static char *last_page(struct race *r)
{
	return r->start + r->len - page_size();
}

/* Whether the range is dead, but still there. */
static bool in_window(struct race *r)
{
	return is_hole(last_page(r)) && page_is_mapped(last_page(r));
}

/*
 * Waits until munmap() has begun.  Returns true if the range is still there, so
 * that the caller is inside the window.
 */
static bool wait_for_window(struct race *r)
{
	while (!is_hole(last_page(r)))
		if (atomic_load(&r->done))
			return false;
	return page_is_mapped(last_page(r));
}

/*
 * Whether the last page of the range is still the original one.  It is not
 * enough that a page is mapped there: a racer may have got that address.
 */
static bool last_page_is_old(struct race *r)
{
	size_t last = r->len / page_size() - 1;
	__u64 word;

	return pread(r->mem_fd, &word, sizeof(word),
		     (uintptr_t)r->start + last * page_size()) ==
	       sizeof(word) && word == page_word(r->tag, last);
}

static int unmap_range(struct race *r)
{
	return munmap(r->start, r->len) ? -errno : 0;
}

/* The default check after a round. */
static bool all_unmapped(struct race *r)
{
	return !r->ret && !mapped_bytes(r->start, r->len);
}

static const struct race_feature race_feature = {
	.knob = &munmap_knob,
	.flips = &munmap_flips,
	.counters = "munmap_section_",
};

static const struct section_call section_call = {
	.tag = TAG,
	.range = 64 * MIB,
	.call = unmap_range,
	.verify = all_unmapped,
};

/* --- mmap(NULL): a mapping made in the window must survive */

#define KEPT_MAX	4096

struct kept_mapping {
	char *addr;
	size_t len;
	__u64 tag;
};

struct mmap_anywhere {
	struct kept_mapping kept[MAX_RACERS][KEPT_MAX];
	int n[MAX_RACERS];
	__u64 seed[MAX_RACERS];
};

static void mmap_racer(struct race *r, int id)
{
	struct mmap_anywhere *m = r->data;
	bool ended = false;
	int n = 0;

	m->n[id] = 0;
	while (!ended && n < KEPT_MAX) {
		struct kept_mapping *k = &m->kept[id][n];
		void *hint = NULL;
		bool inside;

		/* One more after the end, so that each round has one. */
		ended = atomic_load(&r->done);
		k->len = (1 + random_next(&m->seed[id]) % 16) * page_size();
		k->tag = random_next(&m->seed[id]);
		/*
		 * Nothing is freed before the round ends, so the holes above
		 * fill up and the range is next.  Half of the calls pass an
		 * address in it as a hint, which is used if it is free: not
		 * before all of the range is gone.
		 */
		inside = in_window(r);
		if (k->tag & 2)
			hint = r->start + random_next(&m->seed[id]) %
			       (r->len / page_size()) * page_size();
		k->addr = mmap(hint, k->len, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (k->addr == MAP_FAILED) {
			race_wrong(r);
			break;
		}
		fill_pages(k->addr, k->len, k->tag);
		n++;
		atomic_fetch_add(&r->run.acts, 1);
		if (!inside || !last_page_is_old(r))
			continue;
		atomic_fetch_add(&r->hits, 1);
		if (k->addr >= r->start && k->addr < r->start + r->len)
			race_wrong(r);
	}
	m->n[id] = n;
}

static bool mmap_verify(struct race *r)
{
	struct mmap_anywhere *m = r->data;
	int id, i;

	for (id = 0; id < r->ops->racers; id++) {
		for (i = 0; i < m->n[id]; i++) {
			struct kept_mapping *k = &m->kept[id][i];

			/* Look it up first: a lost one would raise SIGSEGV. */
			if (mapped_bytes(k->addr, 1) != 1 ||
			    !page_is_mapped(k->addr + k->len - page_size()) ||
			    bad_pages(k->addr, k->len, k->tag))
				race_wrong(r);
			munmap(k->addr, k->len);
		}
	}
	return !r->ret && !r->run.wrong && !mapped_bytes(r->start, r->len);
}

TEST_F_TIMEOUT(race, mmap_anywhere, TIMEOUT)
{
	static const struct race_ops ops = {
		.racers = 2, .racer = mmap_racer, .verify = mmap_verify,
	};
	struct mmap_anywhere *m = calloc(1, sizeof(*m));
	long count = variant->on && !variant->flip ? opt_count : opt_count / 4;
	int i;

	ASSERT_NE(NULL, m);
	for (i = 0; i < MAX_RACERS; i++)
		m->seed[i] = TAG + i;
	/* Limited by count, not by time. */
	self->r.data = m;
	EXPECT_TRUE(run_race(&self->r, &ops, count));
	EXPECT_LE(count, atomic_load(&self->r.run.acts));
	expect_raced(_metadata, &self->r);
}

/* --- MAP_FIXED and MREMAP_FIXED into the window */

enum place { PENDING, FINISHED, STRADDLING, NR_PLACES };

struct fixed {
	bool by_mremap;
	char *source;		/* what mremap() moves */
	char *addr;		/* what this round placed, or NULL */
	size_t len;
	__u64 tag;
	__u64 seed;
	enum place place;
	long placed[NR_PLACES];
};

/*
 * The source is mapped before the munmap begins: later it might be placed in
 * the range itself.
 */
static bool fixed_prepare(struct race *r)
{
	struct fixed *f = r->data;

	f->tag = random_next(&f->seed);
	f->place = r->rounds % NR_PLACES;
	switch (f->place) {
	case PENDING:
		/* Up to a quarter of the range. */
		f->len = 16 * page_size() +
			 f->tag % (race_range() / 4 / page_size()) * page_size();
		break;
	case FINISHED:
		f->len = 16 * page_size();
		break;
	default:
		f->len = race_range() / 2;
		break;
	}
	if (f->by_mremap) {
		f->source = map_fresh(f->len);
		if (!f->source)
			return false;
	}
	return prepare_anon(r);
}

/* The first word of a page belongs to fill_pages(). */
static __u64 *last_word(struct fixed *f)
{
	return (__u64 *)(f->addr + f->len) - 1;
}

static void fixed_racer(struct race *r, int id)
{
	struct fixed *f = r->data;
	size_t ps = page_size();
	char *want, *got;
	bool inside;

	want = r->start + ps;
	if (f->place == PENDING)
		want = r->start + r->len - f->len - 2 * ps;
	f->addr = NULL;
	/* A mapping placed outside the window must survive as well. */
	wait_for_window(r);
	/* The actual state of the place at this moment. */
	inside = page_is_mapped(want + f->len - ps);
	if (f->by_mremap)
		got = mremap(f->source, f->len, f->len,
			     MREMAP_MAYMOVE | MREMAP_FIXED, want);
	else
		got = map_fresh_at(want, f->len);
	atomic_fetch_add(&r->run.acts, 1);
	if (got != want) {
		race_wrong(r);
		if (f->by_mremap)
			munmap(f->source, f->len);
		return;
	}
	if (page_is_mapped(r->start + r->len - ps) &&
	    (f->place == FINISHED || inside)) {
		f->placed[f->place]++;
		atomic_fetch_add(&r->hits, 1);
	}
	f->addr = want;
	/* Only a few pages of a big mapping: the window is short. */
	madvise(f->addr, f->len, MADV_NOHUGEPAGE);
	fill_pages(f->addr, 16 * ps, f->tag);
	word_write(last_word(f), f->tag);
}

static bool fixed_verify(struct race *r)
{
	struct fixed *f = r->data;
	bool good = !r->ret;

	if (!f->addr)
		return good && !mapped_bytes(r->start, r->len);
	/* Exactly the new mapping is left. */
	good &= mapped_bytes(f->addr, f->len) == f->len;
	good &= mapped_bytes(r->start, r->len) == f->len;
	good = good && !bad_pages(f->addr, 16 * page_size(), f->tag);
	good = good && word_read(last_word(f)) == f->tag;
	munmap(f->addr, f->len);
	return good;
}

static bool fixed_enough(struct race *r)
{
	struct fixed *f = r->data;

	return f->placed[PENDING] && f->placed[FINISHED] &&
	       f->placed[STRADDLING];
}

static void fixed_test(struct __test_metadata *_metadata,
		       struct race *r, bool by_mremap)
{
	struct fixed f = { .by_mremap = by_mremap, .seed = TAG };

	RACE_TEST(r, &f, .racers = 1, .prepare = fixed_prepare,
		  .racer = fixed_racer, .verify = fixed_verify,
		  .enough = fixed_enough);
	ksft_print_msg("pending %ld, finished %ld, straddling %ld\n",
		       f.placed[PENDING], f.placed[FINISHED],
		       f.placed[STRADDLING]);
	if (r->on) {
		EXPECT_LT(0, f.placed[PENDING]);
		EXPECT_LT(0, f.placed[FINISHED]);
		EXPECT_LT(0, f.placed[STRADDLING]);
	}
}

TEST_F_TIMEOUT(race, map_fixed, TIMEOUT)
{
	fixed_test(_metadata, &self->r, false);
}

TEST_F_TIMEOUT(race, mremap_fixed, TIMEOUT)
{
	fixed_test(_metadata, &self->r, true);
}

/* --- mremap of a part of the range: all of the part moves, or nothing */

struct moved {
	char *addr;		/* the new address of the part, or NULL */
	size_t len;
	size_t offset;
	__u64 seed;
};

static void moved_racer(struct race *r, int id)
{
	struct moved *m = r->data;
	bool inside;
	char *got;

	m->len = MIB;
	m->offset = r->len - 2 * MIB;
	m->addr = NULL;
	/* In half of the rounds also before the munmap: both are legal. */
	inside = r->rounds % 2 && wait_for_window(r);
	got = mremap(r->start + m->offset, m->len, 2 * m->len, MREMAP_MAYMOVE);
	atomic_fetch_add(&r->run.acts, 1);
	if (got != MAP_FAILED) {
		m->addr = got;
		return;
	}
	if (errno != EFAULT)
		race_wrong(r);
	if (inside && page_is_mapped(r->start + r->len - page_size()))
		atomic_fetch_add(&r->hits, 1);
}

static bool moved_verify(struct race *r)
{
	struct moved *m = r->data;
	size_t i, ps = page_size(), left = mapped_bytes(r->start, r->len);
	bool good = !r->ret;

	if (!m->addr)
		return good && !left;
	/*
	 * It moved before the munmap got to it.  The munmap does not touch the
	 * new place, unless the part grew without moving.
	 */
	if (m->addr == r->start + m->offset) {
		good = good && !left;
		munmap(m->addr + m->len, m->len);
		return good;
	}
	good = good && mapped_bytes(m->addr, 2 * m->len) == 2 * m->len;
	/* The content is that of the range from the offset on. */
	for (i = 0; good && i < m->len / ps; i++)
		good = word_read(m->addr + i * ps) ==
		       page_word(r->tag, m->offset / ps + i);
	munmap(m->addr, 2 * m->len);
	return good && !mapped_bytes(r->start, r->len);
}

TEST_F_TIMEOUT(race, mremap_part, TIMEOUT)
{
	struct moved m = { };

	RACE_TEST(&self->r, &m, .racers = 1, .racer = moved_racer,
		  .verify = moved_verify);
}

/* --- mseal: either nothing is unmapped, or all is and nothing is sealed */

struct seal_result {
	int munmap_errno;
	int mseal_errno;
	bool inside;
	bool whole;
	bool gone;
};

enum seal_order { SEAL_FIRST, SEAL_AT_ONCE, SEAL_INSIDE, NR_SEAL_ORDERS };

struct sealer {
	char *start;
	size_t len;
	enum seal_order order;
	atomic_bool go;
	atomic_bool sealed;
	struct seal_result *result;
};

static void *seal_racer(void *arg)
{
	struct sealer *s = arg;
	char *last = s->start + s->len - page_size();

	while (!atomic_load(&s->go))
		;
	while (s->order == SEAL_INSIDE && !is_hole(s->start))
		;
	s->result->mseal_errno =
		syscall(SYS_mseal, last, page_size(), 0) ? errno : 0;
	/* Refused as if it were gone, but still mapped: inside the window. */
	s->result->inside = s->result->mseal_errno && page_is_mapped(last);
	atomic_store(&s->sealed, true);
	return NULL;
}

static void seal_round(struct seal_result *result, int round)
{
	struct sealer s = {
		.len = race_range(), .order = round % NR_SEAL_ORDERS, .result = result,
	};
	pthread_t thread;

	s.start = map_filled(s.len, TAG + round);
	if (!s.start || pthread_create(&thread, NULL, seal_racer, &s))
		_exit(1);
	atomic_store(&s.go, true);
	while (s.order == SEAL_FIRST && !atomic_load(&s.sealed))
		;
	result->munmap_errno = munmap(s.start, s.len) ? errno : 0;
	pthread_join(thread, NULL);
	result->gone = !mapped_bytes(s.start, s.len);
	result->whole = mapped_bytes(s.start, s.len) == s.len &&
			!bad_pages(s.start, s.len, TAG + round);
	_exit(0);
}

TEST_F_TIMEOUT(race, mseal, TIMEOUT)
{
	__u64 start = now_ns();
	struct seal_result *result;
	struct race *r = &self->r;
	char *probe;
	int sealed = 0;
	pid_t pid;

	probe = mmap(NULL, page_size(), PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (syscall(SYS_mseal, probe, page_size(), 0))
		SKIP(return, "this kernel has no mseal");
	result = map_shared(sizeof(*result));
	ASSERT_NE(NULL, result);
	/* Each round needs a child, as a sealed mapping is permanent. */
	while (r->rounds < 2 * NR_SEAL_ORDERS || another_round(r, start, 0)) {
		memset(result, 0, sizeof(*result));
		pid = fork();
		if (!pid)
			seal_round(result, r->rounds);
		ASSERT_EQ(0, reap(pid));
		race_acted(r, result->inside);
		r->rounds++;
		if (!result->mseal_errno) {
			sealed++;
			EXPECT_EQ(EPERM, result->munmap_errno);
			EXPECT_TRUE(result->whole);
		} else {
			EXPECT_EQ(ENOMEM, result->mseal_errno);
			EXPECT_EQ(0, result->munmap_errno);
			EXPECT_TRUE(result->gone);
		}
	}
	ksft_print_msg("sealed first: %d\n", sealed);
	EXPECT_LT(0, sealed);
	expect_raced(_metadata, r);
}

/* --- fork: the child has all of the range, or none of it */

/* The size of the process without the range, in kB. */
static bool prepare_fork(struct race *r)
{
	*(long *)r->data = status_kb("VmSize");
	return prepare_anon(r);
}

/* VmSize of the child includes the range if it is @there, and once. */
static bool size_is_right(struct race *r, bool there)
{
	long size = *(long *)r->data + (there ? (long)(r->len / KIB) : 0);

	return labs(status_kb("VmSize") - size) < (long)(r->len / KIB) / 4;
}

static void fork_racer(struct race *r, int id)
{
	bool inside = r->rounds % 4 ? wait_for_window(r) : false;
	pid_t pid;

	do {
		pid = fork();
		if (!pid) {
			size_t step = pmd_size(), n = 0, there = 0, off;

			for (off = 0; off < r->len; off += step, n++)
				there += page_is_mapped(r->start + off);
			if (there && there != n)
				_exit(1);
			if (!size_is_right(r, there))
				_exit(2);
			_exit(there && bad_pages(r->start, r->len, r->tag));
		}
		atomic_fetch_add(&r->run.acts, 1);
		inside = inside && page_is_mapped(r->start + r->len -
						  page_size());
		if (inside)
			atomic_fetch_add(&r->hits, 1);
		if (reap(pid))
			race_wrong(r);
	} while (inside && !atomic_load(&r->done));
}

TEST_F_TIMEOUT(race, fork, TIMEOUT)
{
	long size;

	RACE_TEST(&self->r, &size, .racers = 1, .prepare = prepare_fork,
		  .racer = fork_racer);
}

/* --- readers: the old content or SIGSEGV, never zeros */

static void read_racer(struct race *r, int id)
{
	__u64 seed = TAG + id + r->rounds * MAX_RACERS;
	size_t pages = r->len / page_size();

	while (!atomic_load(&r->done)) {
		size_t index = random_next(&seed) % pages;
		__u64 word;

		if (!try_read(r->start + index * page_size(), &word)) {
			if (word != page_word(r->tag, index))
				race_wrong(r);
			atomic_fetch_add(&r->run.acts, 1);
		} else if (!atomic_load(&r->done) &&
			   page_is_mapped(r->start + r->len - page_size())) {
			atomic_fetch_add(&r->hits, 1);
		}
	}
}

TEST_F_TIMEOUT(race, never_reads_zero, TIMEOUT)
{
	catch_faults();
	RACE_TEST(&self->r, NULL, .racers = 2, .racer = read_racer);
}

/* --- faults in progress: the munmap waits, and leaves no page behind */

struct faults {
	long anon;		/* RssAnon before the first round, in kB */
	atomic_int begun;	/* racers that are about to write */
};

/*
 * The lower half is for huge pages.  A racer is clearing one most of the time, and
 * the munmap would be past an empty half before the page is mapped.
 */
static bool prepare_faults(struct race *r)
{
	struct faults *f = r->data;
	size_t half;

	r->len = race_range();
	half = r->len / 2;
	r->start = map_apart(r->len);
	if (!r->start)
		return false;
	/* Both fail on a kernel without THP: then they clear base pages. */
	madvise(r->start, half, MADV_HUGEPAGE);
	madvise(r->start + half, half, MADV_NOHUGEPAGE);
	fill_pages(r->start + half, half, r->tag);
	atomic_store(&f->begun, 0);
	return true;
}

/* The range must not die before the racers have begun to write. */
static int unmap_under_faults(struct race *r)
{
	struct faults *f = r->data;

	while (atomic_load(&f->begun) < r->ops->racers)
		sched_yield();
	return unmap_range(r);
}

static void fault_racer(struct race *r, int id)
{
	size_t i, n = r->len / 2 / pmd_size();
	struct faults *f = r->data;

	atomic_fetch_add(&f->begun, 1);

	for (i = id; i < n && !atomic_load(&r->done); i += r->ops->racers) {
		if (try_write(r->start + i * pmd_size(), r->tag))
			return;
		/* Did the range die during the write, or right after it? */
		race_acted(r, in_window(r));
	}
}

/* A page that was left behind stays in RssAnon. */
static bool faults_verify(struct race *r)
{
	const struct faults *f = r->data;

	return all_unmapped(r) && status_kb("RssAnon") - f->anon <
	       (long)(pmd_size() / KIB * 3 / 4);
}

TEST_F_TIMEOUT(race, faults_in_progress, TIMEOUT)
{
	struct faults faults = { .anon = status_kb("RssAnon") };

	catch_faults();
	RACE_TEST(&self->r, &faults, .racers = 2, .prepare = prepare_faults,
		  .racer = fault_racer, .call = unmap_under_faults,
		  .verify = faults_verify);
}

/* --- calls that change VMAs of the range while it is unmapped */

static bool have_mbind;

static bool expected_errno(int err)
{
	/* The errors of these calls for a range that is not (all) mapped. */
	return err == ENOMEM || err == EFAULT || err == EAGAIN ||
	       err == EINVAL || err == EIO || err == EBUSY;
}

static void change_racer(struct race *r, int id)
{
	static const int advice[] = {
		MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
		MADV_COLLAPSE, MADV_WILLNEED, MADV_RANDOM, MADV_NORMAL,
		MADV_COLD, MADV_PAGEOUT,
	};
	__u64 seed = TAG + id + r->rounds * MAX_RACERS;
	size_t pages = r->len / page_size();
	unsigned long node = 1;

	while (!atomic_load(&r->done)) {
		size_t first = random_next(&seed) % pages;
		size_t n = 1 + random_next(&seed) % (pages - first);
		char *p = r->start + first * page_size();
		size_t len = n * page_size();
		long ret = 0;
		bool inside = in_window(r);

		switch (random_next(&seed) % 8) {
		case 0:
			ret = mprotect(p, len, PROT_READ);
			break;
		case 1:
			ret = mprotect(p, len, PROT_READ | PROT_WRITE);
			break;
		case 2:
			len = len > MIB ? MIB : len;
			ret = mlock(p, len);
			break;
		case 3:
			ret = munlock(p, len);
			break;
		case 6:
			/* Locks nothing that is dead, so that VmLck stays right. */
			ret = mlockall(MCL_CURRENT | MCL_ONFAULT);
			break;
		case 7:
			ret = munlockall();
			break;
		case 4:
			if (!have_mbind)
				break;
			ret = syscall(SYS_mbind, p, len, MPOL_PREFERRED, &node,
				      8 * sizeof(node), 0);
			break;
		default:
			ret = madvise(p, len,
				      advice[random_next(&seed) %
					     ARRAY_SIZE(advice)]);
			break;
		}
		if (ret && !expected_errno(errno))
			race_wrong(r);
		race_acted(r, inside && page_is_mapped(last_page(r)));
	}
}

TEST_F_TIMEOUT(race, changed_vmas, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	long locked = status_kb("VmLck");

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	/* Not in a kernel without NUMA. */
	have_mbind = !syscall(SYS_get_mempolicy, NULL, NULL, 0, NULL, 0);
	RACE_TEST(&self->r, NULL, .racers = 2, .racer = change_racer);
	munlockall();
	EXPECT_EQ(locked, status_kb("VmLck"));
}

/* --- two munmaps of overlapping ranges: both succeed, all is gone */

static void overlap_racer(struct race *r, int id)
{
	bool inside = r->rounds % 2 ? wait_for_window(r) : false;

	/* The upper three quarters, and a little past the end. */
	if (munmap(r->start + r->len / 4, r->len))
		race_wrong(r);
	/* A successful return means unmapped, not being unmapped. */
	if (mapped_bytes(r->start + r->len / 4, r->len - r->len / 4))
		race_wrong(r);
	race_acted(r, inside);
}

static bool prepare_overlap(struct race *r)
{
	long *size = r->data;

	*size = status_kb("VmSize");
	r->len = race_range();
	r->start = map_filled(r->len + r->len / 4, r->tag);
	return r->start;
}

/* The part that both calls unmap is taken off the accounts once. */
static bool overlap_verify(struct race *r)
{
	const long *size = r->data;

	return !r->ret && !mapped_bytes(r->start, r->len + r->len / 4) &&
	       labs(status_kb("VmSize") - *size) < (long)(MIB / KIB);
}

TEST_F_TIMEOUT(race, overlapping, TIMEOUT)
{
	long size;

	RACE_TEST(&self->r, &size, .racers = 1, .prepare = prepare_overlap,
		  .racer = overlap_racer, .verify = overlap_verify);
}

/*
 * --- limits: a call beside the munmap can use the memory that it releases, but
 * not before
 */

enum limit {
	LIMIT_MMAP, LIMIT_FIXED, LIMIT_MREMAP, LIMIT_BRK, LIMIT_MPROTECT,
	LIMIT_MLOCK, LIMIT_MLOCKALL, LIMIT_SHMAT, LIMIT_STACK, LIMIT_COMMIT,
	LIMIT_FORK, NR_LIMITS
};

/* The sysctl vm.overcommit_memory stands for the commit limit. */
#define COMMIT_LIMIT	-1

static const struct limit_case {
	const char *name;
	int resource;		/* of setrlimit(), or COMMIT_LIMIT */
	const char *field;	/* of /proc/self/status, what counts */
	int prot;		/* of the mapping that the call uses */
} limit_cases[NR_LIMITS] = {
	[LIMIT_MMAP]	 = { "mmap", RLIMIT_AS, "VmSize" },
	[LIMIT_FIXED]	 = { "MAP_FIXED", COMMIT_LIMIT },
	[LIMIT_MREMAP]	 = { "mremap", RLIMIT_AS, "VmSize" },
	[LIMIT_BRK]	 = { "brk", RLIMIT_AS, "VmSize" },
	[LIMIT_MPROTECT] = { "mprotect", RLIMIT_DATA, "VmData" },
	[LIMIT_MLOCK]	 = { "mlock", RLIMIT_MEMLOCK, "VmLck" },
	[LIMIT_MLOCKALL] = { "mlockall", RLIMIT_MEMLOCK, "VmSize" },
	[LIMIT_SHMAT]	 = { "shmat", RLIMIT_AS, "VmSize" },
	[LIMIT_STACK]	 = { "stack", RLIMIT_AS, "VmSize",
			     PROT_READ | PROT_WRITE },
	[LIMIT_COMMIT]	 = { "commit", COMMIT_LIMIT },
	[LIMIT_FORK]	 = { "fork", COMMIT_LIMIT, NULL,
			     PROT_READ | PROT_WRITE },
};

struct limited {
	enum limit limit;
	const struct limit_case *what;
	char *other;		/* the mapping that the call uses */
	size_t other_len;
	char *made;		/* by the call */
	pid_t child;
	int shm;
	struct rlimit old;
	struct commit_limit commit;
	long inside[NR_LIMITS];
	long early[NR_LIMITS];	/* calls that passed the limit */
};

/* A stack of one page at the end of @len bytes of free address space. */
static char *map_stack(size_t len)
{
	char *p = free_range(len), *top = p + len - page_size();

	if (!p || mmap(top, page_size(), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_GROWSDOWN,
		       -1, 0) != top)
		return NULL;
	return p;
}

/* The limit leaves room for less than the call needs. */
static bool limited_set(struct limited *l)
{
	struct rlimit new;
	long room = MIB;

	if (l->what->resource == COMMIT_LIMIT)
		return commit_limit_set(race_range() / KIB / 2);
	/* It counts what there is, not what it adds. */
	if (l->limit == LIMIT_MLOCKALL)
		room = -(long)race_range() / 2;
	if (getrlimit(l->what->resource, &l->old))
		return false;
	new = l->old;
	new.rlim_cur = status_kb(l->what->field) * KIB + room;
	if (new.rlim_max < new.rlim_cur)
		new.rlim_max = new.rlim_cur;
	return !setrlimit(l->what->resource, &new);
}

static void limited_lift(struct limited *l)
{
	if (l->what->resource == COMMIT_LIMIT)
		commit_limit_lift(&l->commit);
	else
		setrlimit(l->what->resource, &l->old);
}

static bool limited_prepare(struct race *r)
{
	struct limited *l = r->data;

	l->limit = r->rounds % NR_LIMITS;
	l->what = &limit_cases[l->limit];
	if (l->limit == LIMIT_STACK) {
		l->other_len = 16 * MIB;
		l->other = map_stack(l->other_len);
		if (!l->other)
			return false;
	} else {
		l->other_len = l->limit == LIMIT_MREMAP ? page_size() :
							  race_range();
		l->other = mmap(NULL, l->other_len, l->what->prot,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (l->other == MAP_FAILED)
			return false;
	}
	if (!prepare_anon(r))
		return false;
	if (l->limit == LIMIT_MLOCK && mlock(r->start, r->len))
		return false;
	return limited_set(l);
}

/* With this capability, root may lock without a limit. */
static void drop_ipc_lock(void)
{
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3,
	};
	struct __user_cap_data_struct data[2];

	syscall(SYS_capget, &head, data);
	data[0].effective &= ~(1U << CAP_IPC_LOCK);
	syscall(SYS_capset, &head, data);
}

/* Makes the call.  Returns whether it succeeded. */
static bool limited_call(struct limited *l)
{
	switch (l->limit) {
	case LIMIT_FIXED:
		return map_fresh_at(l->other, race_range());
	case LIMIT_MREMAP:
		l->made = mremap(l->other, page_size(), race_range(),
				 MREMAP_MAYMOVE);
		return l->made != MAP_FAILED;
	case LIMIT_BRK:
		return sbrk(race_range()) != (void *)-1;
	case LIMIT_MPROTECT:
		return !mprotect(l->other, race_range(),
				 PROT_READ | PROT_WRITE);
	case LIMIT_MLOCK:
		return !mlock2(l->other, race_range(), MLOCK_ONFAULT);
	case LIMIT_MLOCKALL:
		return !mlockall(MCL_CURRENT | MCL_ONFAULT);
	case LIMIT_SHMAT:
		l->made = shmat(l->shm, NULL, 0);
		return l->made != (char *)-1;
	case LIMIT_STACK:
		/* Less than RLIMIT_STACK. */
		return !try_write(l->other + l->other_len - 4 * MIB, 1);
	case LIMIT_FORK:
		l->child = fork();
		if (!l->child)
			_exit(0);
		return l->child > 0;
	default:
		l->made = map_fresh(race_range());
		return l->made;
	}
}

static void limited_undo(struct limited *l)
{
	switch (l->limit) {
	case LIMIT_MREMAP:
		l->other = l->made;
		l->other_len = race_range();
		break;
	case LIMIT_BRK:
		sbrk(-(intptr_t)race_range());
		break;
	case LIMIT_MLOCKALL:
		munlockall();
		break;
	case LIMIT_SHMAT:
		shmdt(l->made);
		break;
	case LIMIT_FORK:
		reap(l->child);
		break;
	case LIMIT_MMAP:
	case LIMIT_COMMIT:
		munmap(l->made, race_range());
		break;
	default:
		break;
	}
}

static void limited_racer(struct race *r, int id)
{
	struct limited *l = r->data;
	bool inside;

	drop_ipc_lock();
	inside = wait_for_window(r);
	if (limited_call(l)) {
		/* It got memory that the range still holds. */
		if (in_window(r))
			l->early[l->limit]++;
		limited_undo(l);
	} else {
		race_wrong(r);
	}
	race_acted(r, inside);
	l->inside[l->limit] += inside;
}

static bool limited_verify(struct race *r)
{
	struct limited *l = r->data;

	limited_lift(l);
	munmap(l->other, l->other_len);
	/* Not all_unmapped(): the mmap() may have reused the range. */
	if (r->run.wrong || l->early[l->limit])
		ksft_print_msg("%s %s\n", l->what->name,
			       r->run.wrong ? "failed" : "did not wait");
	return !r->ret && !r->run.wrong && !l->early[l->limit];
}

static bool limited_enough(struct race *r)
{
	struct limited *l = r->data;
	int i;

	for (i = 0; i < NR_LIMITS; i++)
		if (!l->inside[i])
			return false;
	return true;
}

TEST_F_TIMEOUT(race, limits, TIMEOUT)
{
	struct limited l = { };

	l.shm = shmget(IPC_PRIVATE, race_range(), IPC_CREAT | 0600);
	if (l.shm < 0 || !commit_limit_read(&l.commit))
		SKIP(return, "no SysV shared memory, or no commit limit");
	catch_faults();
	RACE_TEST(&self->r, &l, .racers = 1, .prepare = limited_prepare,
		  .racer = limited_racer, .verify = limited_verify,
		  .enough = limited_enough);
	shmctl(l.shm, IPC_RMID, NULL);
}

/* --- the limit of VMAs: a call beside the munmap waits for its end */

#define PARTS		8

enum split { SPLIT_MMAP, SPLIT_MUNMAP, SPLIT_MPROTECT, SPLIT_MLOCK, SPLIT_FIXED,
	     NR_SPLITS };

struct map_limit {
	long limit;		/* vm.max_map_count, before */
	enum split split;
	char *first;		/* a page, all of a VMA */
	char *second;		/* three pages of another VMA */
	long locked;		/* VmLck, before */
	atomic_bool returned;	/* the call at the limit */
	bool undone;		/* the change of the first page, meanwhile */
	long waited[NR_SPLITS];
	long at_once;		/* failed without waiting */
};

/* Shared, so that it does not merge with a neighbour. */
static char *map_alone(char *at, size_t pages)
{
	return mmap(at, pages * page_size(), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* There are more VMAs than allowed until those of the range are gone. */
static bool prepare_map_limit(struct race *r)
{
	struct map_limit *m = r->data;
	size_t part = race_range() / PARTS;
	int i;

	m->split = r->rounds % NR_SPLITS;
	m->first = free_range(MIB);
	if (!m->first)
		return false;
	m->second = m->first + page_size();
	map_alone(m->first, 1);
	/* For SPLIT_FIXED, there is a hole behind the first page. */
	if (m->split != SPLIT_FIXED)
		map_alone(m->second, 3);
	m->locked = status_kb("VmLck");
	atomic_store(&m->returned, false);
	m->undone = false;
	if (!prepare_anon(r))
		return false;
	for (i = 0; i < PARTS; i += 2)
		if (mprotect(r->start + i * part, part, PROT_READ))
			return false;
	return !vm_sysctl_write("max_map_count", map_count() - PARTS / 2);
}

/* All of the first VMA, and a part of the second one, which has to be split. */
static bool split_call(struct map_limit *m)
{
	size_t ps = page_size();
	char *p;

	switch (m->split) {
	case SPLIT_MMAP:
		p = mmap(NULL, ps, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1,
			 0);
		return p != MAP_FAILED && !munmap(p, ps);
	case SPLIT_MUNMAP:
		return !munmap(m->second + ps, ps);
	case SPLIT_MPROTECT:
		return !mprotect(m->first, 2 * ps, PROT_READ);
	case SPLIT_MLOCK:
		return !mlock2(m->first, 2 * ps, MLOCK_ONFAULT);
	default:
		return map_alone(m->first, 2) == m->first;
	}
}

/* Changes the first VMA back as soon as the call at the limit has changed it. */
static void split_undo(struct map_limit *m)
{
	size_t ps = page_size();

	while (!atomic_load(&m->returned) && !m->undone) {
		if (m->split == SPLIT_MPROTECT && try_write(m->first, 1))
			m->undone = !mprotect(m->first, ps,
					      PROT_READ | PROT_WRITE);
		if (m->split == SPLIT_MLOCK && status_kb("VmLck") > m->locked)
			m->undone = !munlock(m->first, ps);
	}
}

static void map_limit_racer(struct race *r, int id)
{
	struct map_limit *m = r->data;
	bool inside, good;

	if (id) {
		split_undo(m);
		return;
	}
	inside = wait_for_window(r);
	good = split_call(m);
	if (m->split == SPLIT_FIXED) {
		/* Another thread could have mapped into the hole. */
		m->at_once += !good && errno == ENOMEM && in_window(r);
	} else if (!good) {
		race_wrong(r);
	}
	race_acted(r, inside);
	m->waited[m->split] += inside && good && !in_window(r) &&
			       (m->undone || m->split < SPLIT_MPROTECT);
	atomic_store(&m->returned, true);
}

/* The call has not repeated the change that was undone meanwhile. */
static bool split_verify(struct map_limit *m)
{
	if (!m->undone)
		return true;
	if (m->split == SPLIT_MPROTECT)
		return !try_write(m->first, 1);
	return status_kb("VmLck") - m->locked == (long)(page_size() / KIB);
}

static bool map_limit_verify(struct race *r)
{
	struct map_limit *m = r->data;
	bool good;

	vm_sysctl_write("max_map_count", m->limit);
	good = split_verify(m);
	if (!good || r->run.wrong)
		ksft_print_msg("call %d\n", m->split);
	munmap(m->first, 4 * page_size());
	/* Not all_unmapped(): the mmap() may have reused the range. */
	return good && !r->ret && !r->run.wrong;
}

static bool map_limit_enough(struct race *r)
{
	struct map_limit *m = r->data;
	int i;

	for (i = 0; i < SPLIT_FIXED; i++)
		if (!m->waited[i])
			return false;
	return m->at_once;
}

TEST_F_TIMEOUT(race, map_limit, TIMEOUT)
{
	struct map_limit m = { };

	if (vm_sysctl_read("max_map_count", &m.limit) ||
	    vm_sysctl_write("max_map_count", m.limit))
		SKIP(return, "cannot set vm.max_map_count");
	catch_faults();
	RACE_TEST(&self->r, &m, .racers = 2, .prepare = prepare_map_limit,
		  .racer = map_limit_racer, .verify = map_limit_verify,
		  .enough = map_limit_enough);
	ksft_print_msg("waited: mmap %ld, munmap %ld, mprotect %ld, mlock %ld\n",
		       m.waited[SPLIT_MMAP], m.waited[SPLIT_MUNMAP],
		       m.waited[SPLIT_MPROTECT], m.waited[SPLIT_MLOCK]);
	ksft_print_msg("MAP_FIXED over a hole failed %ld times\n", m.at_once);
}

/*
 * --- a call at a limit waits for the munmaps that it has met, not for the next
 * one
 *
 * When the munmap of the range is over, its thread keeps the CPU of the waiter
 * busy until the next munmap has begun, on another CPU.
 */

struct passed {
	atomic_int waiter;	/* its TID */
	atomic_bool ready;	/* it waits, and for this CPU */
	atomic_bool over;	/* the munmap of the range */
	struct race next;	/* the range of the next one */
	char *made;
	struct rlimit old;
	cpu_set_t cpus;		/* of the process */
	int cpu[2];		/* of the waiter, and of the others */
};

static void run_on(pid_t tid, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(tid, sizeof(set), &set);
}

static bool prepare_passed(struct race *r)
{
	struct passed *p = r->data;
	struct rlimit new;

	p->next.tag = ~r->tag;
	atomic_store(&p->waiter, 0);
	atomic_store(&p->ready, false);
	atomic_store(&p->over, false);
	atomic_store(&p->next.done, false);
	if (!prepare_anon(r) || !prepare_anon(&p->next) ||
	    getrlimit(RLIMIT_AS, &p->old))
		return false;
	new = p->old;
	new.rlim_cur = status_kb("VmSize") * KIB + MIB;
	return !setrlimit(RLIMIT_AS, &new);
}

static int unmap_passed(struct race *r)
{
	struct sched_param param = { .sched_priority = 1 };
	struct passed *p = r->data;
	int ret;

	run_on(0, p->cpu[0]);
	pthread_setschedparam(pthread_self(), SCHED_FIFO, &param);
	ret = unmap_range(r);
	atomic_store(&p->over, true);
	/* Now the waiter has been woken, but cannot run here. */
	wait_for_window(&p->next);
	param.sched_priority = 0;
	pthread_setschedparam(pthread_self(), SCHED_OTHER, &param);
	return ret;
}

static void passed_racer(struct race *r, int id)
{
	struct passed *p = r->data;
	bool ready;

	if (!id) {
		run_on(0, p->cpu[1]);
		if (!wait_for_window(r))
			return;
		atomic_store(&p->waiter, syscall(SYS_gettid));
		p->made = mmap(NULL, race_range(), PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p->made == MAP_FAILED)
			race_wrong(r);
		race_acted(r, atomic_load(&p->ready) && in_window(&p->next));
		if (p->made != MAP_FAILED)
			munmap(p->made, race_range());
		return;
	}
	run_on(0, p->cpu[1]);
	while (!atomic_load(&r->done) && !atomic_load(&p->over) &&
	       (!atomic_load(&p->waiter) ||
		task_state(getpid(), atomic_load(&p->waiter)) != 'D'))
		;
	ready = atomic_load(&p->waiter) && in_window(r);
	if (ready)
		run_on(atomic_load(&p->waiter), p->cpu[0]);
	atomic_store(&p->ready, ready && in_window(r));
	while (!atomic_load(&p->over))
		;
	if (unmap_range(&p->next))
		race_wrong(r);
	atomic_store(&p->next.done, true);
}

static bool passed_verify(struct race *r)
{
	struct passed *p = r->data;

	setrlimit(RLIMIT_AS, &p->old);
	sched_setaffinity(0, sizeof(p->cpus), &p->cpus);
	/* Not all_unmapped(): the mmap() may have reused the range. */
	return !r->ret && !r->run.wrong;
}

TEST_F_TIMEOUT(race, next_munmap, TIMEOUT)
{
	struct passed p = { };
	int cpu, n = 0;

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(p.cpus), &p.cpus));
	for (cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
		if (CPU_ISSET(cpu, &p.cpus))
			p.cpu[n++] = cpu;
	if (n < 2)
		SKIP(return, "needs two CPUs");
	RACE_TEST(&self->r, &p, .racers = 2, .prepare = prepare_passed,
		  .racer = passed_racer, .call = unmap_passed,
		  .verify = passed_verify);
}

/* --- accounts: the range counts during the munmap, and not after it */

enum { ACC_SIZE, ACC_DATA, ACC_LOCKED, NR_ACCOUNTS };

static const char * const account_names[NR_ACCOUNTS] = {
	"VmSize", "VmData", "VmLck",
};

enum { ACC_WATCH, ACC_UNMAP, ACC_REPLACE, NR_ACC_KINDS };

struct accounts {
	long inside[NR_ACC_KINDS];
	long without[NR_ACCOUNTS];	/* before the range was mapped, in kB */
	long committed;
};

static bool prepare_accounts(struct race *r)
{
	struct accounts *a = r->data;
	int i;

	for (i = 0; i < NR_ACCOUNTS; i++)
		a->without[i] = status_kb(account_names[i]);
	a->committed = meminfo_kb("Committed_AS");
	return prepare_anon(r) && !mlock(r->start, r->len);
}

/*
 * Whether the range is on the accounts, if @there, or off.  Some slack: threads
 * have stacks, and other processes commit memory.
 */
static bool accounts_right(struct race *r, bool there)
{
	struct accounts *a = r->data;
	const long range = there ? r->len / KIB : 0;
	const long slack = r->len / KIB / 4;
	bool good = true;
	int i;

	for (i = 0; i < NR_ACCOUNTS; i++)
		good = good && labs(status_kb(account_names[i]) -
				    a->without[i] - range) < slack;
	return good && labs(meminfo_kb("Committed_AS") -
			    a->committed - range) < 2 * slack;
}

static void accounts_racer(struct race *r, int id)
{
	struct accounts *a = r->data;
	int kind = r->rounds % NR_ACC_KINDS;
	char *part = r->start + r->len / 4;
	bool inside, good = true;

	if (!wait_for_window(r))
		return;
	do {
		/* The dead VMA is split, and a piece unmapped or replaced. */
		if (kind == ACC_UNMAP)
			good = !munmap(part, r->len / 2);
		else if (kind == ACC_REPLACE)
			good = map_fresh_at(part, r->len / 2);
		else
			good = accounts_right(r, true);
		inside = in_window(r);
		if (!good && (inside || kind != ACC_WATCH))
			race_wrong(r);
		race_acted(r, inside);
		a->inside[kind] += inside;
	} while (kind == ACC_WATCH && !atomic_load(&r->done));
}

static bool accounts_verify(struct race *r)
{
	if (r->rounds % NR_ACC_KINDS == ACC_REPLACE)
		munmap(r->start + r->len / 4, r->len / 2);
	return all_unmapped(r) && accounts_right(r, false);
}

static bool accounts_enough(struct race *r)
{
	const struct accounts *a = r->data;

	return a->inside[ACC_WATCH] && a->inside[ACC_UNMAP] &&
	       a->inside[ACC_REPLACE];
}

TEST_F_TIMEOUT(race, accounts, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	struct accounts a = { };

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	RACE_TEST(&self->r, &a, .racers = 1, .prepare = prepare_accounts,
		  .racer = accounts_racer, .verify = accounts_verify,
		  .enough = accounts_enough);
}

/* --- calls that reach memory without a load or store find a hole */

/* Of linux/io_uring.h, which does not compile next to other headers here. */
#define IORING_REGISTER_BUFFERS		0
#define IORING_UNREGISTER_BUFFERS	1
#define IORING_PARAMS_SIZE		120

struct hole {
	int uffd;		/* the range is registered with it, or -1 */
	bool wp;		/* it can write-protect */
	int ring;		/* an io_uring, or -1 */
	int pagemap;		/* /proc/self/pagemap, or -1 */
	long copied, pinned, written, scanned;
	long at_once;		/* mprotect() and mlock() did not wait */
};

static __u64 uffd_mode(bool wp)
{
	return UFFDIO_REGISTER_MODE_MISSING |
	       (wp ? UFFDIO_REGISTER_MODE_WP : 0);
}

static bool prepare_hole(struct race *r)
{
	struct hole *h = r->data;

	if (!prepare_anon(r))
		return false;
	return h->uffd < 0 ||
	       !uffd_register(h->uffd, r->start, r->len, uffd_mode(h->wp));
}

/* Whether the call failed as on a hole. */
static bool failed(struct race *r, long ret, int want, const char *what)
{
	if (ret < 0 && errno == want)
		return true;
	if (!atomic_fetch_add(&r->run.wrong, 1))
		ksft_print_msg("%s returned %ld, errno %d\n", what, ret, errno);
	return false;
}

static void uffd_into_hole(struct race *r)
{
	struct hole *h = r->data;
	struct uffdio_copy copy = {
		.dst = (uintptr_t)r->start, .src = (uintptr_t)&r->tag,
		.len = page_size(),
	};
	struct uffdio_zeropage zero = {
		.range = { copy.dst, copy.len },
	};

	if (h->uffd < 0)
		return;
	copy.src &= ~(page_size() - 1);
	failed(r, ioctl(h->uffd, UFFDIO_COPY, &copy), ENOENT, "UFFDIO_COPY");
	failed(r, ioctl(h->uffd, UFFDIO_ZEROPAGE, &zero), ENOENT,
	       "UFFDIO_ZEROPAGE");
	failed(r, uffd_register(h->uffd, r->start, page_size(),
				uffd_mode(false)),
	       EINVAL, "UFFDIO_REGISTER");
	if (h->wp)
		failed(r, uffd_protect(h->uffd, r->start, page_size(), true),
		       ENOENT, "UFFDIO_WRITEPROTECT");
	h->copied++;
}

/* A page that has not been zapped yet can be written and pinned. */
static void pin_in_hole(struct race *r, bool zapped)
{
	struct hole *h = r->data;
	struct iovec iov = { r->start, page_size() };
	long ret;

	if (h->ring < 0)
		return;
	ret = syscall(__NR_io_uring_register, h->ring, IORING_REGISTER_BUFFERS,
		      &iov, 1);
	if (zapped)
		failed(r, ret, EFAULT, "IORING_REGISTER_BUFFERS");
	if (!ret)
		syscall(__NR_io_uring_register, h->ring,
			IORING_UNREGISTER_BUFFERS, NULL, 0);
	h->pinned++;
}

static bool write_to_hole(struct race *r, bool zapped)
{
	struct hole *h = r->data;
	__u64 word = ~r->tag;
	struct iovec local = { &word, sizeof(word) };
	struct iovec remote = { r->start, sizeof(word) };
	long ret;

	ret = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
	if (zapped)
		failed(r, ret, EFAULT, "process_vm_writev()");
	h->written++;
	return ret < 0;
}

/* The last page is the last one to be zapped. */
static void scan_hole(struct race *r)
{
	struct hole *h = r->data;
	struct page_region region;
	struct pm_scan_arg scan = {
		.size = sizeof(scan),
		.start = (uintptr_t)last_page(r),
		.end = (uintptr_t)last_page(r) + page_size(),
		.vec = (uintptr_t)&region,
		.vec_len = 1,
		.category_mask = PAGE_IS_PRESENT,
		.return_mask = PAGE_IS_PRESENT,
	};
	long ret;

	if (h->pagemap < 0)
		return;
	ret = ioctl(h->pagemap, PAGEMAP_SCAN, &scan);
	if (ret && !atomic_fetch_add(&r->run.wrong, 1))
		ksft_print_msg("PAGEMAP_SCAN returned %ld, errno %d\n", ret,
			       errno);
	h->scanned++;
}

static void hole_racer(struct race *r, int id)
{
	struct hole *h = r->data;
	bool zapped = false;

	if (!wait_for_window(r))
		return;
	/* They do not wait for the munmap, which would not help. */
	failed(r, mprotect(r->start, page_size(), PROT_READ), ENOMEM,
	       "mprotect()");
	failed(r, mlock(r->start, page_size()), ENOMEM, "mlock()");
	h->at_once += in_window(r);
	while (!atomic_load(&r->done)) {
		/* The first page goes first, and never comes back. */
		zapped = write_to_hole(r, zapped);
		pin_in_hole(r, zapped);
		uffd_into_hole(r);
		scan_hole(r);
		failed(r, madvise(r->start, page_size(), MADV_DONTNEED), ENOMEM,
		       "MADV_DONTNEED");
		race_acted(r, zapped && in_window(r));
	}
}

static bool hole_enough(struct race *r)
{
	const struct hole *h = r->data;

	return h->at_once;
}

TEST_F_TIMEOUT(race, calls_find_a_hole, TIMEOUT)
{
	char params[IORING_PARAMS_SIZE] = { };
	__u64 features = 0;
	struct hole h = { .uffd = uffd_open(0, &features) };

	h.wp = features & UFFD_FEATURE_PAGEFAULT_FLAG_WP;

	h.ring = syscall(__NR_io_uring_setup, 1, params);
	h.pagemap = open("/proc/self/pagemap", O_RDONLY);
	RACE_TEST(&self->r, &h, .racers = 1, .prepare = prepare_hole,
		  .racer = hole_racer, .enough = hole_enough);
	ksft_print_msg("%ld copied, %ld pinned, %ld written, %ld scanned%s%s%s\n",
		       h.copied, h.pinned, h.written, h.scanned,
		       h.uffd < 0 ? ", no userfaultfd" : "",
		       h.ring < 0 ? ", no io_uring" : "",
		       h.pagemap < 0 ? ", no pagemap" : "");
	close(h.uffd);
	close(h.ring);
	close(h.pagemap);
}

/* --- userfaultfd: the range is a hole between two pages */

struct around {
	int uffd;
	bool wp;
	char *start;		/* a page, the range, a page */
};

static bool prepare_around(struct race *r)
{
	struct around *a = r->data;
	size_t ps = page_size();

	r->len = race_range();
	a->start = map_filled(r->len + 2 * ps, r->tag);
	r->start = a->start + ps;
	return a->start;
}

static void around_racer(struct race *r, int id)
{
	struct around *a = r->data;
	size_t ps = page_size(), len = r->len + 2 * ps;
	char *last = a->start + ps + r->len;
	bool good;

	if (!wait_for_window(r))
		return;
	good = !uffd_register(a->uffd, a->start, len, uffd_mode(a->wp));
	/* Both pages can be protected, so they are registered. */
	if (a->wp)
		good = good && !uffd_protect(a->uffd, a->start, len, false) &&
		       !uffd_protect(a->uffd, a->start, ps, false) &&
		       !uffd_protect(a->uffd, last, ps, false);
	good = good && !uffd_unregister(a->uffd, a->start, len);
	if (a->wp)
		good = good && uffd_protect(a->uffd, last, ps, false) &&
		       errno == ENOENT;
	if (!good)
		race_wrong(r);
	race_acted(r, in_window(r));
}

static bool around_verify(struct race *r)
{
	struct around *a = r->data;
	bool good = all_unmapped(r) && !r->run.wrong;

	munmap(a->start, r->len + 2 * page_size());
	return good;
}

TEST_F_TIMEOUT(race, uffd_around, TIMEOUT)
{
	__u64 features = 0;
	struct around a = { .uffd = uffd_open(0, &features) };

	if (a.uffd < 0)
		SKIP(return, "no userfaultfd");
	a.wp = features & UFFD_FEATURE_PAGEFAULT_FLAG_WP;
	RACE_TEST(&self->r, &a, .racers = 1, .prepare = prepare_around,
		  .racer = around_racer, .verify = around_verify);
	close(a.uffd);
}

/* --- KSM: merged pages of the range go, those of others stay */

#define KSM		"/sys/kernel/mm/ksm/"

struct ksm {
	char *other;		/* merged with the range */
	size_t len;
	bool merged;		/* pages of this round's range were merged */
};

static bool prepare_ksm(struct race *r)
{
	struct ksm *k = r->data;
	__u64 until;
	size_t i;

	if (!prepare_anon(r))
		return false;
	/* All pages alike, so that one scan merges them. */
	for (i = 0; i < r->len; i += page_size())
		word_write(r->start + i, TAG);
	if (madvise(r->start, r->len, MADV_MERGEABLE))
		return false;
	write_text(KSM "run", "1");
	/* Until the range begins to be merged, or for ten seconds. */
	until = now_ns() + 10000000000ULL;
	do {
		usleep(10000);
		k->merged = smaps_kb(r->start, r->len, "KSM") > 0;
	} while (!k->merged && now_ns() < until);
	return word_read(k->other) == TAG;
}

static void ksm_racer(struct race *r, int id)
{
	struct ksm *k = r->data;
	int ret;

	if (!wait_for_window(r))
		return;
	do {
		/* Breaks up all merged pages; EBUSY while they are in use. */
		ret = write_text(KSM "run", "2");
		if (ret && ret != -EBUSY)
			race_wrong(r);
		race_acted(r, k->merged && in_window(r));
		write_text(KSM "run", "1");
	} while (!atomic_load(&r->done));
}

static bool ksm_verify(struct race *r)
{
	struct ksm *k = r->data;
	size_t i;

	for (i = 0; i < k->len; i += page_size())
		if (word_read(k->other + i) != TAG)
			return false;
	return all_unmapped(r);
}

TEST_F_TIMEOUT(race, ksm, TIMEOUT)
{
	char run[16], pages[16], sleep[16];
	struct ksm k = { .len = MIB };
	size_t i;

	if (read_text(KSM "run", run, sizeof(run)) ||
	    read_text(KSM "pages_to_scan", pages, sizeof(pages)) ||
	    read_text(KSM "sleep_millisecs", sleep, sizeof(sleep)))
		SKIP(return, "this kernel has no KSM");
	k.other = map_filled(k.len, TAG);
	ASSERT_NE(NULL, k.other);
	for (i = 0; i < k.len; i += page_size())
		word_write(k.other + i, TAG);
	ASSERT_EQ(0, madvise(k.other, k.len, MADV_MERGEABLE));
	/* A write to "run" waits for a batch, which must end before the munmap. */
	write_text(KSM "pages_to_scan", "1000");
	write_text(KSM "sleep_millisecs", "1");
	RACE_TEST(&self->r, &k, .racers = 1, .prepare = prepare_ksm,
		  .racer = ksm_racer, .verify = ksm_verify);
	write_text(KSM "run", "2");
	write_text(KSM "run", run);
	write_text(KSM "pages_to_scan", pages);
	write_text(KSM "sleep_millisecs", sleep);
}

/* --- page tables: they go with the pages, not at the end */

struct tables {
	long before;		/* kB, with the range */
	long least;		/* kB, seen in the window */
};

static bool prepare_tables(struct race *r)
{
	struct tables *t = r->data;

	if (!prepare_anon(r))
		return false;
	t->before = status_kb("VmPTE");
	return true;
}

/* Half of the tables of the range are gone. */
static bool tables_fell(const struct race *r, long least)
{
	const struct tables *t = r->data;
	/* Of 8 bytes per page; on powerpc, several tables share a page. */
	long tables = r->len / page_size() * sizeof(__u64) / KIB;

	return least <= t->before - tables / 2;
}

static void tables_racer(struct race *r, int id)
{
	struct tables *t = r->data;

	if (!wait_for_window(r))
		return;
	do {
		long now = status_kb("VmPTE");

		atomic_fetch_add(&r->run.acts, 1);
		/* The range was still there after the look at the tables. */
		if (in_window(r) && tables_fell(r, now)) {
			atomic_fetch_add(&r->hits, 1);
			t->least = now;
		}
	} while (!atomic_load(&r->done));
}

static bool tables_verify(struct race *r)
{
	return all_unmapped(r) && tables_fell(r, status_kb("VmPTE"));
}

TEST_F_TIMEOUT(race, tables_go_with_the_pages, TIMEOUT)
{
	struct tables t = { };

	RACE_TEST(&self->r, &t, .racers = 1, .prepare = prepare_tables,
		  .racer = tables_racer, .verify = tables_verify);
	ksft_print_msg("%ld kB of %ld kB in the window\n", t.least, t.before);
}

/* --- collapse: another mapping of the file gets huge pages */

struct collapse {
	int fd;
	char *other;		/* the same file, mapped elsewhere */
};

/* A collapse ends with a look at the page tables of all mappings of the file. */
static bool prepare_collapse(struct race *r)
{
	struct collapse *c = r->data;

	r->len = race_range();
	c->fd = memfd_create("collapse", MFD_CLOEXEC);
	if (c->fd < 0 || ftruncate(c->fd, r->len))
		return false;
	c->other = free_range(r->len);
	if (!c->other ||
	    mmap(c->other, r->len, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED, c->fd, 0) != c->other)
		return false;
	fill_pages(c->other, r->len, r->tag);
	r->start = free_range(r->len);
	return r->start &&
	       mmap(r->start, r->len, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, c->fd, 0) == r->start &&
	       !bad_pages(r->start, r->len, r->tag);
}

static void collapse_racer(struct race *r, int id)
{
	struct collapse *c = r->data;
	size_t i, n = r->len / pmd_size();

	if (!wait_for_window(r))
		return;
	/* Where the zap is, or will soon be. */
	for (i = id; i < n && !atomic_load(&r->done); i += r->ops->racers) {
		if (madvise(c->other + i * pmd_size(), pmd_size(),
			    MADV_COLLAPSE))
			continue;
		race_acted(r, in_window(r));
	}
}

static bool collapse_verify(struct race *r)
{
	struct collapse *c = r->data;
	bool good = all_unmapped(r) && !bad_pages(c->other, r->len, r->tag);

	munmap(c->other, r->len);
	close(c->fd);
	return good;
}

TEST_F_TIMEOUT(race, collapse_elsewhere, TIMEOUT)
{
	struct collapse c = { };
	char enabled[64];

	if (read_text("/sys/kernel/mm/transparent_hugepage/enabled", enabled,
		      sizeof(enabled)))
		SKIP(return, "this kernel has no transparent huge pages");
	RACE_TEST(&self->r, &c, .racers = 2, .prepare = prepare_collapse,
		  .racer = collapse_racer, .verify = collapse_verify);
	/* An underflow of the count of tables. */
	EXPECT_LE(0, status_kb("VmPTE"));
	EXPECT_GT(64 * 1024, status_kb("VmPTE"));
}

/* --- over_file: threads write to a file while one of its mappings is replaced */

struct over_file {
	struct collapse file;
	bool huge;		/* the kernel has transparent huge pages */
	atomic_bool calling;	/* in this round, mmap() */
};

/* Base pages, so that there is enough to do for several sections. */
static bool prepare_over_file(struct race *r)
{
	struct over_file *o = r->data;

	atomic_store(&o->calling, false);
	return prepare_collapse(r) &&
	       (!o->huge || !madvise(r->start, r->len, MADV_NOHUGEPAGE));
}

static int replace_file(struct race *r)
{
	struct over_file *o = r->data;

	atomic_store(&o->calling, true);
	return mmap(r->start, r->len, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_FIXED, o->file.fd, 0) == r->start ? 0 : -errno;
}

/* A word that is written through one mapping is read through the other at once. */
static void over_file_racer(struct race *r, int id)
{
	struct over_file *o = r->data;
	size_t ps = page_size(), at, word = ps - (id + 1) * sizeof(__u64);
	__u64 seed = r->tag + id, n = 0;
	bool calling;

	while (!atomic_load(&r->done)) {
		calling = atomic_load(&o->calling);
		at = random_next(&seed) % (r->len / ps) * ps;
		if (!id && o->huge) {
			madvise(o->file.other + at / pmd_size() * pmd_size(),
				pmd_size(), MADV_COLLAPSE);
			continue;
		}
		word_write(r->start + at + word, ++n);
		if (word_read(o->file.other + at + word) != n)
			race_wrong(r);
		race_acted(r, calling && !atomic_load(&r->done));
	}
}

static bool over_file_verify(struct race *r)
{
	struct over_file *o = r->data;
	bool good = !r->ret && !bad_pages(r->start, r->len, r->tag) &&
		    !bad_pages(o->file.other, r->len, r->tag);

	munmap(r->start, r->len);
	munmap(o->file.other, r->len);
	close(o->file.fd);
	return good;
}

/* Sections of the mmap(), not only of the munmap() after each round. */
static bool over_file_enough(struct race *r)
{
	return counted(&r->run.before, "replaced");
}

TEST_F_TIMEOUT(race, over_file, TIMEOUT)
{
	struct over_file o = {
		.huge = !access("/sys/kernel/mm/transparent_hugepage/enabled",
				F_OK),
	};

	RACE_TEST(&self->r, &o, .racers = 3, .prepare = prepare_over_file,
		  .racer = over_file_racer, .call = replace_file,
		  .verify = over_file_verify, .enough = over_file_enough);
}

/* --- contended: a call that replaces a part ends the section that is zapped */

#define PINS	64

struct pins {
	char *addr[PINS];
	int n;
	__u64 seed;
	const struct counters *before;	/* NULL: no section has to be cut */
};

/* Differs from every word that the old pages hold. */
static __u64 new_word(const struct race *r, int i)
{
	return ~r->tag - i;
}

/* Each pin is a page of its own table, so that all of them find a section. */
static void pin_racer(struct race *r, int id)
{
	struct pins *pins = r->data;
	int i;

	pins->n = 0;
	if (!wait_for_window(r))
		return;
	for (i = 0; i < PINS && !atomic_load(&r->done); i++) {
		char *want = r->start + (i * 37 % PINS) * (r->len / PINS) +
			     random_next(&pins->seed) % 16 * page_size();
		bool inside = in_window(r);

		if (!map_fresh_at(want, page_size())) {
			race_wrong(r);
			break;
		}
		word_write(want, new_word(r, i));
		pins->addr[pins->n++] = want;
		race_acted(r, inside);
	}
}

/* Exactly the pins are left. */
static bool pin_verify(struct race *r)
{
	struct pins *pins = r->data;
	bool good = !r->ret;
	int i;

	good = good &&
	       mapped_bytes(r->start, r->len) == pins->n * page_size();
	for (i = 0; i < pins->n; i++) {
		good = good && page_is_mapped(pins->addr[i]) &&
		       word_read(pins->addr[i]) == new_word(r, i);
		munmap(pins->addr[i], page_size());
	}
	return good;
}

static bool pins_cut_sections(struct race *r)
{
	const struct pins *pins = r->data;

	return !pins->before || counted(pins->before, "contended") > 0;
}

TEST_F_TIMEOUT(race, contended_ends_early, TIMEOUT)
{
	struct pins pins = { .seed = TAG };
	/* Sections of several steps, which only a waiter can cut short. */
	long kbytes = race_range() / 2 / KIB;

	if (kbytes > 16 * MUNMAP_SMALL_KB)
		kbytes = 16 * MUNMAP_SMALL_KB;
	if (variant->on && !variant->flip) {
		ASSERT_EQ(NULL, munmap_knob_set(kbytes));
		pins.before = &self->r.run.before;
	}
	RACE_TEST(&self->r, &pins, .racers = 1, .racer = pin_racer,
		  .verify = pin_verify, .enough = pins_cut_sections);
	ksft_print_msg("%ld cut short\n",
		       counted(&self->r.run.before, "contended"));
}

/* --- replaced: the old page is in no TLB when there is a new one */

struct replaced {
	int pagemap;		/* /proc/self/pagemap */
	char *addr[PINS];
	atomic_int n;		/* of these, replaced so far */
};

/* Spread over TLB sets, so that all of them stay cached. */
static bool prepare_replaced(struct race *r)
{
	struct replaced *p = r->data;
	int i;

	if (!prepare_anon(r))
		return false;
	for (i = 0; i < PINS; i++)
		p->addr[i] = r->start + i * (r->len / PINS) +
			     i % 16 * page_size();
	atomic_store(&p->n, 0);
	return true;
}

/* Whether a page table maps a page here; true if that cannot be read. */
static bool page_is_present(int pagemap, const char *addr)
{
	off_t at = (uintptr_t)addr / page_size() * sizeof(__u64);
	__u64 entry;

	return pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry) ||
	       entry >> 63;
}

/* Replaces each page as soon as the munmap lets it. */
static void replace_pages(struct race *r)
{
	struct replaced *p = r->data;
	int i;

	if (!wait_for_window(r))
		return;
	for (i = 0; i < PINS; i++) {
		char *want = p->addr[i];
		bool inside;

		while (page_is_present(p->pagemap, want))
			if (atomic_load(&r->done))
				return;
		inside = in_window(r);
		if (!map_fresh_at(want, page_size())) {
			race_wrong(r);
			return;
		}
		word_write(want, new_word(r, i));
		atomic_store(&p->n, i + 1);
		race_acted(r, inside);
	}
}

static void replaced_racer(struct race *r, int id)
{
	struct replaced *p = r->data;
	int i, n;

	if (!id) {
		replace_pages(r);
		return;
	}
	/* Reading all of them puts the old pages into this CPU's TLB. */
	do {
		n = atomic_load(&p->n);
		for (i = 0; i < PINS; i++) {
			__u64 word = 0;
			bool gone = try_read(p->addr[i], &word);

			if (i < n && (gone || word != new_word(r, i)))
				race_wrong(r);
		}
	} while (!atomic_load(&r->done));
}

/* Exactly the new pages are left. */
static bool replaced_verify(struct race *r)
{
	struct replaced *p = r->data;
	int i, n = atomic_load(&p->n);
	bool good = !r->ret && !r->run.wrong &&
		    mapped_bytes(r->start, r->len) == n * page_size();

	for (i = 0; i < n; i++)
		munmap(p->addr[i], page_size());
	return good;
}

TEST_F_TIMEOUT(race, replaced_everywhere, TIMEOUT)
{
	struct replaced p = {
		.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC),
	};

	if (p.pagemap < 0)
		SKIP(return, "cannot open /proc/self/pagemap");
	catch_faults();
	RACE_TEST(&self->r, &p, .racers = 3, .prepare = prepare_replaced,
		  .racer = replaced_racer, .verify = replaced_verify);
	close(p.pagemap);
}

/* --- shmdt: attached until the end, which destroys the segment */

static bool prepare_shm(struct race *r)
{
	int id = shmget(IPC_PRIVATE, race_range(), IPC_CREAT | 0600);

	*(int *)r->data = id;
	r->len = race_range();
	if (id < 0)
		return false;
	r->start = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	if (r->start == (char *)-1)
		return false;
	fill_pages(r->start, r->len, r->tag);
	return true;
}

static void shm_racer(struct race *r, int id)
{
	char *last = r->start + r->len - page_size();
	struct shmid_ds ds;

	while (!atomic_load(&r->done)) {
		bool inside = in_window(r);
		int ret = shmctl(*(int *)r->data, IPC_STAT, &ds);

		atomic_fetch_add(&r->run.acts, 1);
		if (ret && page_is_mapped(last))
			/* Destroyed while a part is still attached. */
			race_wrong(r);
		if (!ret && inside && ds.shm_nattch && page_is_mapped(last))
			atomic_fetch_add(&r->hits, 1);
	}
}

static int unmap_shm(struct race *r)
{
	return shmdt(r->start) ? -errno : 0;
}

static bool shm_verify(struct race *r)
{
	struct shmid_ds ds;

	return all_unmapped(r) && shmctl(*(int *)r->data, IPC_STAT, &ds) &&
	       errno == EINVAL;
}

TEST_F_TIMEOUT(race, shmdt, TIMEOUT)
{
	int id = shmget(IPC_PRIVATE, race_range(), IPC_CREAT | 0600);

	if (id < 0)
		SKIP(return, "no SysV shared memory segment of %lu MiB",
		     race_range() / MIB);
	shmctl(id, IPC_RMID, NULL);
	RACE_TEST(&self->r, &id, .racers = 1, .prepare = prepare_shm,
		  .racer = shm_racer, .call = unmap_shm, .verify = shm_verify);
}

/*
 * --- mmap(MAP_FIXED) that takes memory away: the range is mapped all the time, and
 * what others do to it after it has become the new mapping stays
 */

static int replace_range(struct race *r)
{
	return decommit(r->start, r->len) == r->start ? 0 : -errno;
}

/*
 * Whether the range is the new mapping already, and mmap() has not returned: a
 * debugger can read any other mapping, whatever its protection.
 */
static bool being_replaced(struct race *r)
{
	__u64 word;

	return pread(r->mem_fd, &word, sizeof(word),
		     (uintptr_t)last_page(r)) < 0 && !atomic_load(&r->done);
}

/* Makes a part of the new mapping accessible: nothing old is in it. */
static bool opens_empty(char *p, size_t len)
{
	return !mprotect(p, len, PROT_READ | PROT_WRITE) && !nonzero_pages(p, len);
}

static bool replaced_whole(struct race *r)
{
	bool good = !r->ret && mapped_bytes(r->start, r->len) == r->len &&
		    opens_empty(r->start, r->len);

	munmap(r->start, r->len);
	return good;
}

/* Nothing of the range is free at any time. */
static void place_racer(struct race *r, int id)
{
	__u64 seed = TAG + id + r->rounds * MAX_RACERS;
	size_t ps = page_size(), pages = r->len / ps;
	char *hint, *p;

	while (!atomic_load(&r->done)) {
		bool inside = being_replaced(r);

		hint = r->start + random_next(&seed) % pages * ps;
		p = mmap(hint, ps, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED || (p >= r->start && p < r->start + r->len))
			race_wrong(r);
		else
			munmap(p, ps);
		p = mmap(hint, ps, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
			 MAP_FIXED_NOREPLACE, -1, 0);
		if (p != MAP_FAILED || errno != EEXIST)
			race_wrong(r);
		if (id && mapped_bytes(r->start, r->len) != r->len)
			race_wrong(r);
		race_acted(r, inside);
	}
}

TEST_F_TIMEOUT(race, replace_without_hole, TIMEOUT)
{
	RACE_TEST(&self->r, NULL, .racers = 2, .racer = place_racer,
		  .call = replace_range, .verify = replaced_whole);
}

TEST_F_TIMEOUT(race, replace_never_reads_zero, TIMEOUT)
{
	catch_faults();
	RACE_TEST(&self->r, NULL, .racers = 2, .racer = read_racer,
		  .call = replace_range, .verify = replaced_whole);
}

/* The child has the old memory, or the new mapping without any of it. */
static bool prepare_replace_fork(struct race *r)
{
	*(long *)r->data = status_kb("VmData");
	return prepare_anon(r);
}

static int replaced_child(struct race *r)
{
	long data = status_kb("VmData") - *(long *)r->data;
	__u64 word;

	if (mapped_bytes(r->start, r->len) != r->len)
		return 1;
	if (!try_read(r->start, &word))
		return data < (long)(r->len / KIB) ||
		       bad_pages(r->start, r->len, r->tag) ? 2 : 0;
	if (data >= (long)(r->len / KIB))
		return 3;
	return opens_empty(r->start, r->len) ? 0 : 4;
}

static void replace_fork_racer(struct race *r, int id)
{
	while (!atomic_load(&r->done)) {
		bool inside = being_replaced(r);
		pid_t pid = fork();
		int ret;

		if (!pid)
			_exit(replaced_child(r));
		ret = reap(pid);
		if (ret) {
			ksft_print_msg("the child returned %d\n", ret);
			race_wrong(r);
		}
		race_acted(r, inside);
	}
}

TEST_F_TIMEOUT(race, replace_fork, TIMEOUT)
{
	long data;

	catch_faults();
	RACE_TEST(&self->r, &data, .racers = 1, .prepare = prepare_replace_fork,
		  .racer = replace_fork_racer, .call = replace_range,
		  .verify = replaced_whole);
}

/* The state of a page of the new mapping: racers change it. */
enum page_state { PAGE_NEW, PAGE_KEPT, PAGE_GONE };

struct changes {
	unsigned char *state;	/* of each page */
	char *elsewhere;	/* where mremap() moves pages to */
	int mem_fd, uffd;
	long data;		/* VmData before the round, in kB */
};

#define CHANGE_PAGES	16

static __u64 kept_word(struct race *r, size_t page)
{
	return page_word(~r->tag, page);
}

static void keep_pages(struct race *r, size_t first)
{
	struct changes *c = r->data;
	size_t i, ps = page_size();

	for (i = first; i < first + CHANGE_PAGES; i++) {
		word_write(r->start + i * ps, kept_word(r, i));
		c->state[i] = PAGE_KEPT;
	}
}

static void change_state(struct race *r, size_t first, enum page_state state)
{
	struct changes *c = r->data;

	memset(c->state + first, state, CHANGE_PAGES);
}

/* Changes pages of the new mapping that are as mmap() made them. */
static bool change_pages(struct race *r, size_t first, int how)
{
	static const int advice[] = {
		MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT,
		MADV_WILLNEED, MADV_NORMAL, MADV_RANDOM, MADV_DONTDUMP,
		MADV_DONTFORK,
	};
	struct changes *c = r->data;
	size_t ps = page_size(), len = CHANGE_PAGES * ps;
	char *p = r->start + first * ps;
	struct uffdio_range range = { (uintptr_t)p, len };
	__u64 word = kept_word(r, first);

	switch (how) {
	case 0:
		if (!opens_empty(p, len))
			return false;
		keep_pages(r, first);
		return true;
	case 1:
		return !mprotect(p, len, PROT_READ) && !nonzero_pages(p, len);
	case 2:
		if (munmap(p, len))
			return false;
		change_state(r, first, PAGE_GONE);
		return true;
	case 3:
		if (map_fresh_at(p, len) != p)
			return false;
		keep_pages(r, first);
		return true;
	case 4:
		if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED,
			   c->elsewhere) != c->elsewhere)
			return false;
		change_state(r, first, PAGE_GONE);
		return opens_empty(c->elsewhere, len);
	case 5:
		/* It has no effect on pages that nobody can access. */
		if (pwrite(c->mem_fd, &word, sizeof(word), (uintptr_t)p) !=
		    sizeof(word))
			return true;
		if (!opens_empty(p + ps, len - ps) ||
		    mprotect(p, ps, PROT_READ | PROT_WRITE) ||
		    word_read(p) != word)
			return false;
		keep_pages(r, first);
		return true;
	case 6:
		if (c->uffd < 0)
			return true;
		return !uffd_register(c->uffd, p, len,
				      UFFDIO_REGISTER_MODE_MISSING) &&
		       !ioctl(c->uffd, UFFDIO_UNREGISTER, &range);
	case 7:
		return decommit(p, len) == p;
	case 8:
		/* Without access, nothing can be populated. */
		return mlock(p, len) && errno == ENOMEM && !munlock(p, len);
	case 9:
		return !mprotect(p, len, PROT_NONE);
	default:
		return !madvise(p, len, advice[(how - 10) % ARRAY_SIZE(advice)]);
	}
}

static void replace_change_racer(struct race *r, int id)
{
	__u64 seed = TAG + id + r->rounds * MAX_RACERS;
	size_t half = r->len / page_size() / CHANGE_PAGES / 2;
	struct changes *c = r->data;

	while (!atomic_load(&r->done)) {
		/* Each racer has a half. */
		size_t first = (id * half + random_next(&seed) % half) *
			       CHANGE_PAGES;
		int how = random_next(&seed) % 19;

		if (c->state[first] != PAGE_NEW || !being_replaced(r))
			continue;
		if (!change_pages(r, first, how)) {
			ksft_print_msg("change %d of page %zu: errno %d\n", how,
				       first, errno);
			race_wrong(r);
		}
		race_acted(r, true);
	}
}

static bool prepare_changes(struct race *r)
{
	struct changes *c = r->data;

	memset(c->state, PAGE_NEW, race_range() / page_size());
	c->data = status_kb("VmData");
	return prepare_anon(r);
}

static bool state_is_right(struct race *r, size_t first, size_t n)
{
	struct changes *c = r->data;
	size_t i, ps = page_size();
	char *p = r->start + first * ps;

	if (c->state[first] == PAGE_GONE)
		return !mapped_bytes(p, n * ps);
	if (mapped_bytes(p, n * ps) != n * ps)
		return false;
	if (c->state[first] == PAGE_NEW)
		return opens_empty(p, n * ps);
	for (i = first; i < first + n; i++)
		if (word_read(r->start + i * ps) != kept_word(r, i))
			return false;
	return true;
}

static bool changes_verify(struct race *r)
{
	size_t first, n, pages = r->len / page_size();
	struct changes *c = r->data;
	bool good = !r->ret;

	for (first = 0; good && first < pages; first += n) {
		for (n = 1; first + n < pages; n++)
			if (c->state[first + n] != c->state[first])
				break;
		good = state_is_right(r, first, n);
		if (!good)
			ksft_print_msg("pages %zu to %zu, state %d: wrong\n",
				       first, first + n - 1, c->state[first]);
	}
	munmap(r->start, r->len);
	return good && labs(status_kb("VmData") - c->data) < (long)(MIB / KIB);
}

TEST_F_TIMEOUT(race, replace_changed, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	struct changes c = { .state = calloc(race_range(), 1) };
	long locked = status_kb("VmLck");

	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	ASSERT_NE(NULL, c.state);
	c.elsewhere = map_fresh(CHANGE_PAGES * page_size());
	c.mem_fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, c.mem_fd);
	c.uffd = uffd_open(0, NULL);
	RACE_TEST(&self->r, &c, .racers = 2, .prepare = prepare_changes,
		  .racer = replace_change_racer, .call = replace_range,
		  .verify = changes_verify);
	EXPECT_EQ(locked, status_kb("VmLck"));
	close(c.uffd);
	close(c.mem_fd);
}

/* A munmap, or the same mmap(), of most of the range at the same time. */
struct twice {
	bool unmaps;
	bool inside;
	long data;
};

static bool prepare_twice(struct race *r)
{
	struct twice *t = r->data;

	t->unmaps = r->rounds % 2;
	t->data = status_kb("VmData");
	return prepare_anon(r);
}

static void twice_racer(struct race *r, int id)
{
	struct twice *t = r->data;
	char *part = r->start + r->len / 4;
	size_t len = r->len - r->len / 4;

	while (!being_replaced(r))
		if (atomic_load(&r->done))
			break;
	t->inside = being_replaced(r);
	if (t->unmaps ? munmap(part, len) : decommit(part, len) != part)
		race_wrong(r);
	/* It is so when the call returns, and not only later. */
	if (mapped_bytes(part, len) != (t->unmaps ? 0 : len))
		race_wrong(r);
	race_acted(r, t->inside);
}

static bool twice_verify(struct race *r)
{
	struct twice *t = r->data;
	size_t left = t->unmaps ? r->len / 4 : r->len;
	bool good = !r->ret && mapped_bytes(r->start, r->len) == left &&
		    labs(status_kb("VmData") - t->data) < (long)(MIB / KIB) &&
		    opens_empty(r->start, left);

	munmap(r->start, r->len);
	return good && labs(status_kb("VmData") - t->data) < (long)(MIB / KIB);
}

TEST_F_TIMEOUT(race, replace_twice, TIMEOUT)
{
	struct twice t = { };

	RACE_TEST(&self->r, &t, .racers = 1, .prepare = prepare_twice,
		  .racer = twice_racer, .call = replace_range,
		  .verify = twice_verify);
}

/*
 * The accounts have room again when mmap() returns.  A call beside it that needs the
 * room waits for that.
 */
static bool prepare_replace_limit(struct race *r)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
	char *other;

	setrlimit(RLIMIT_DATA, &limit);
	other = mmap(NULL, race_range(), PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (other == MAP_FAILED || !prepare_anon(r))
		return false;
	*(char **)r->data = other;
	limit.rlim_cur = status_kb("VmData") * KIB + r->len / 2;
	return !setrlimit(RLIMIT_DATA, &limit);
}

static void replace_limit_racer(struct race *r, int id)
{
	char *other = *(char **)r->data;
	struct rlimit limit;

	while (!being_replaced(r))
		if (atomic_load(&r->done))
			break;
	if (!being_replaced(r)) {
		race_acted(r, false);
		return;
	}
	if (mprotect(other, r->len, PROT_READ | PROT_WRITE))
		race_wrong(r);
	/* It did not pass the limit: both would count. */
	getrlimit(RLIMIT_DATA, &limit);
	if (status_kb("VmData") > (long)(limit.rlim_cur / KIB))
		race_wrong(r);
	race_acted(r, true);
}

static bool replace_limit_verify(struct race *r)
{
	munmap(*(char **)r->data, r->len);
	return replaced_whole(r);
}

TEST_F_TIMEOUT(race, replace_limit, TIMEOUT)
{
	char *other;

	RACE_TEST(&self->r, &other, .racers = 1,
		  .prepare = prepare_replace_limit,
		  .racer = replace_limit_racer, .call = replace_range,
		  .verify = replace_limit_verify);
}

/* --- killed in the middle of a munmap: all memory is freed */

struct kill_page {
	atomic_bool began;
	atomic_bool returned;
};

struct kill_ops {
	/* Before the range is mapped; may be NULL. */
	void (*prepare)(void);
	void (*kill)(void);
	/* As in struct race_ops. */
	bool (*enough)(struct race *r);
};

struct killer {
	char *start;
	struct kill_page *page;
	const struct kill_ops *ops;
};

static void kill_self(void)
{
	kill(getpid(), SIGKILL);
}

static void *kill_racer(void *arg)
{
	struct killer *k = arg;

	while (!is_hole(k->start))
		if (atomic_load(&k->page->returned))
			break;
	k->ops->kill();
	return NULL;
}

static void kill_round(struct kill_page *page, size_t len,
		       const struct kill_ops *ops)
{
	struct killer k = { .page = page, .ops = ops };
	pthread_t thread;

	if (ops->prepare)
		ops->prepare();
	k.start = map_filled(len, TAG);
	if (!k.start || pthread_create(&thread, NULL, kill_racer, &k))
		_exit(1);
	atomic_store(&page->began, true);
	if (munmap(k.start, len))
		_exit(2);
	atomic_store(&page->returned, true);
	pthread_join(thread, NULL);
	pause();
}

/* Memory of the machine, in kB. */
struct usage {
	long used;		/* user pages and page tables */
	long committed;
};

static struct usage usage_read(void)
{
	return (struct usage){
		meminfo_kb("AnonPages") + meminfo_kb("PageTables") +
		meminfo_kb("Shmem"),
		meminfo_kb("Committed_AS"),
	};
}

/*
 * Less than @kb has been lost; other processes may use a little, briefly.  The
 * memory may be freed late: waits for that, up to a minute.
 */
static void expect_freed(struct __test_metadata *_metadata,
			 const struct usage *before, long kb)
{
	struct usage now;
	int tries;

	for (tries = 0; tries < 600; tries++) {
		now = usage_read();
		if (now.used < before->used + kb &&
		    now.committed < before->committed + kb)
			break;
		usleep(100000);
	}
	EXPECT_GT(before->used + kb, now.used);
	EXPECT_GT(before->committed + kb, now.committed);
}

static void kill_test(struct __test_metadata *_metadata, struct race *r,
		      const struct kill_ops *ops)
{
	__u64 start = now_ns();
	size_t len = 2 * race_range();
	const struct race_ops race_ops = { .enough = ops->enough };
	struct usage before = usage_read();
	struct kill_page *page;
	pid_t pid;

	r->ops = &race_ops;
	page = map_shared(sizeof(*page));
	ASSERT_NE(NULL, page);
	while (another_round(r, start, 0)) {
		memset(page, 0, sizeof(*page));
		pid = fork();
		if (!pid)
			kill_round(page, len, ops);
		ASSERT_EQ(256 + SIGKILL, reap(pid));
		/* The munmap did not return: it was killed inside. */
		race_acted(r, !atomic_load(&page->returned));
		r->rounds++;
	}
	expect_freed(_metadata, &before, len / KIB / 4);
	expect_raced(_metadata, r);
}

TEST_F_TIMEOUT(race, sigkill, TIMEOUT)
{
	static const struct kill_ops ops = { .kill = kill_self };

	kill_test(_metadata, &self->r, &ops);
}

static struct memory_group group;

static void lift_limit(void)
{
	memory_group_write(&group, "memory.max", "max");
}

/* The OOM killer chooses this process, which has nearly all of the memory. */
static void exceed_limit(void)
{
	char limit[32];

	/* Enough for the pages and the page tables of the parent. */
	snprintf(limit, sizeof(limit), "%zu", 256 * page_size());
	memory_group_write(&group, "memory.max", limit);
	/* Unless the range was gone already. */
	kill_self();
}

static long oom_kills(void)
{
	return memory_group_read(&group, "memory.events", "oom_kill");
}

static bool has_oom_kills(struct race *r)
{
	return oom_kills() > 0;
}

/* As sigkill, but the OOM reaper takes memory away beside the munmap. */
TEST_F_TIMEOUT(race, oom_kill, TIMEOUT)
{
	static const struct kill_ops ops = {
		.prepare = lift_limit, .kill = exceed_limit,
		.enough = has_oom_kills,
	};

	if (!memory_group_enter(&group))
		SKIP(return, "no memory cgroups here");
	kill_test(_metadata, &self->r, &ops);
	lift_limit();
	ksft_print_msg("%ld OOM kills\n", oom_kills());
	memory_group_leave(&group);
}

/* A process that shares the mm of the killed one sees the memory go. */
struct sharer {
	char *start;
	size_t len;
};

static int sharer_main(void *arg)
{
	struct sharer *s = arg;

	munmap(s->start, s->len);
	for (;;)
		pause();
	return 0;
}

static void kill_sharer(struct kill_page *page, size_t len)
{
	char *stack = malloc(64 * KIB), *last;
	struct sharer s = { .len = len };
	pid_t pid;

	s.start = map_filled(len, TAG);
	last = s.start + len - page_size();
	if (!s.start || !stack)
		_exit(1);
	pid = clone(sharer_main, stack + 64 * KIB, CLONE_VM | SIGCHLD, &s);
	if (pid < 0)
		_exit(2);
	while (!is_hole(s.start))
		;
	kill(pid, SIGKILL);
	atomic_store(&page->returned, !page_is_mapped(last));
	if (waitpid(pid, NULL, 0) != pid)
		_exit(3);
	_exit(mapped_bytes(s.start, len) ? 4 : 0);
}

TEST_F_TIMEOUT(race, sigkill_shared, TIMEOUT)
{
	__u64 start = now_ns();
	struct race *r = &self->r;
	struct kill_page *page;
	pid_t pid;

	page = map_shared(sizeof(*page));
	ASSERT_NE(NULL, page);
	while (another_round(r, start, 0)) {
		memset(page, 0, sizeof(*page));
		pid = fork();
		if (!pid)
			kill_sharer(page, race_range());
		ASSERT_EQ(0, reap(pid));
		race_acted(r, !atomic_load(&page->returned));
		r->rounds++;
	}
	expect_raced(_metadata, r);
}

/* --- everything at once, checking the content of each page */

#define SLOTS	24

/* Makes, checks, changes or unmaps a mapping; false if it was not as left. */
static bool use_kept(struct kept_mapping *k, __u64 *seed)
{
	unsigned int what = random_next(seed) % 16;
	bool good;
	pid_t pid;
	char *p;

	if (!k->addr) {
		/* Mostly small, sometimes several sections. */
		k->len = (1 + random_next(seed) % 64) * page_size();
		if (what < 3)
			k->len += 3 * pmd_size();
		k->tag = random_next(seed);
		p = map_fresh(k->len);
		if (!p)
			return true;
		if (k->tag & 2)
			madvise(p, k->len, MADV_NOHUGEPAGE);
		fill_pages(p, k->len, k->tag);
		k->addr = p;
		return true;
	}
	good = !bad_pages(k->addr, k->len, k->tag);
	switch (what) {
	case 0:
		pid = fork();
		if (!pid)
			_exit(!!bad_pages(k->addr, k->len, k->tag));
		return good && (pid < 0 || !reap(pid));
	case 1:
		mprotect(k->addr, k->len, PROT_READ);
		good = good && !bad_pages(k->addr, k->len, k->tag);
		mprotect(k->addr, k->len, PROT_READ | PROT_WRITE);
		return good;
	case 2:
	case 3:
		/* Moves and grows by an empty page. */
		p = mremap(k->addr, k->len, k->len + page_size(),
			   MREMAP_MAYMOVE);
		if (p != MAP_FAILED) {
			k->addr = p;
			k->len += page_size();
			fill_pages(p, k->len, k->tag);
		}
		return good;
	case 4:
	case 5:
		/* Shrinks, in sections if it is long. */
		if (k->len > 2 * page_size() &&
		    mremap(k->addr, k->len, 2 * page_size(), 0) == k->addr)
			k->len = 2 * page_size();
		return good;
	default:
		p = k->addr;
		k->addr = NULL;
		return !munmap(p, k->len) && good;
	}
}

static bool drop_kept(const struct kept_mapping *k, int n)
{
	bool good = true;

	for (; n--; k++) {
		if (!k->addr)
			continue;
		good = good && !bad_pages(k->addr, k->len, k->tag);
		munmap(k->addr, k->len);
	}
	return good;
}

static void fuzz_racer(struct race *r, int id)
{
	__u64 seed = TAG + id * 7919 + r->rounds * 104729;
	struct kept_mapping slot[SLOTS] = { };

	while (!atomic_load(&r->done)) {
		race_acted(r, is_hole(r->start) && last_page_is_old(r));
		if (!use_kept(&slot[random_next(&seed) % SLOTS], &seed))
			race_wrong(r);
	}
	if (!drop_kept(slot, SLOTS))
		race_wrong(r);
}

/* The main thread adds several long ranges per round. */
static int unmap_fuzz(struct race *r)
{
	char *p;
	int i;

	for (i = 0; i < 3; i++) {
		p = map_filled(race_range() / 2, r->tag + i);
		if (!p)
			return -ENOMEM;
		if (bad_pages(p, race_range() / 2, r->tag + i))
			race_wrong(r);
		if (munmap(p, race_range() / 2))
			return -errno;
	}
	return unmap_range(r);
}

/* The racers may reuse the range, so whether it is mapped says nothing. */
static bool fuzz_verify(struct race *r)
{
	return !r->ret && !r->run.wrong;
}

TEST_F_TIMEOUT(race, fuzz, TIMEOUT)
{
	long size = status_kb("VmSize");

	RACE_TEST(&self->r, NULL, .racers = 3, .racer = fuzz_racer,
		  .call = unmap_fuzz, .verify = fuzz_verify);
	/* Thread stacks stay cached; a lost range would show. */
	EXPECT_GT(size + (long)(race_range() / KIB), status_kb("VmSize"));
}

/*
 * --- a playground: everything that can race, for a longer time
 *
 * A process with many threads works on two kinds of memory.  In the playground,
 * a part of the address space, all threads may do anything, and only the
 * kernel's own checks (KASAN, lockdep, DEBUG_VM) find errors.  Two threads keep
 * mappings elsewhere, whose content they check.  Every second process is
 * killed.  At the end, all memory must be free again.
 */

/* Far below the area of mmap(NULL), so that no kept mapping gets here. */
#define PLAYGROUND	((char *)0x100000000000UL)
#define LANE		(32 * MIB)
#define LANES		4
#define PLAYGROUND_LEN	(LANES * LANE)
/* A process needs some time to get going. */
#define PROCESS_MS_MIN	500
#define PROCESS_MS_MAX	15000

/* Shared by all processes: when to stop, acts, hits and wrong outcomes. */
static struct race *play;

static void note_wrong(const char *what)
{
	if (!atomic_fetch_add(&play->run.wrong, 1))
		ksft_print_msg("%s\n", what);
}

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
	cut = random_next(seed) % 64 * page_size();
	switch (random_next(seed) % 6) {
	case 0:
		/* Fails if another thread has cut the VMA. */
		mremap(p, LANE, cut + page_size(), 0);
		break;
	case 1:
		munmap(p + cut, LANE - cut);
		break;
	case 2:
	case 3:
		decommit(p + cut, LANE - cut);
		break;
	default:
		/* Across lanes, so that two of them overlap. */
		munmap(p, LANE + cut * 16);
		break;
	}
}

static void *lane_main(void *arg)
{
	__u64 seed = opt_seed + (uintptr_t)arg * 1000003;
	int memfd = memfd_create("stress", MFD_CLOEXEC);

	if (memfd < 0 || ftruncate(memfd, LANE)) {
		note_wrong("memfd_create() failed");
		return NULL;
	}
	while (!atomic_load(&play->run.stop)) {
		lane_op(&seed, memfd);
		race_acted(play, false);
	}
	return NULL;
}

/* Does something to any place. */
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
	/* Dead, but still there. */
	race_acted(play, is_hole(p) && page_is_mapped(p));
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
		map_fresh_at(p, len);
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
	__u64 seed = opt_seed + (uintptr_t)arg * 1000003;

	while (!atomic_load(&play->run.stop))
		poke(&seed);
	return NULL;
}

static void *kept_main(void *arg)
{
	__u64 seed = opt_seed + (uintptr_t)arg * 1000003;
	struct kept_mapping slot[SLOTS] = { };

	while (!atomic_load(&play->run.stop)) {
		if (!use_kept(&slot[random_next(&seed) % SLOTS], &seed))
			note_wrong("wrong content");
		race_acted(play, false);
	}
	if (!drop_kept(slot, SLOTS))
		note_wrong("wrong content at the end");
	return NULL;
}

/* Has page tables walked. */
static void *proc_main(void *arg)
{
	static const char * const files[] = {
		"/proc/self/maps", "/proc/self/smaps", "/proc/self/numa_maps",
		"/proc/self/smaps_rollup", "/proc/self/status",
	};
	size_t first = (uintptr_t)PLAYGROUND / page_size();
	static char buf[64 * 1024];
	int fd, i = 0;

	while (!atomic_load(&play->run.stop)) {
		fd = open(files[i++ % ARRAY_SIZE(files)], O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			while (read(fd, buf, sizeof(buf)) > 0)
				;
			close(fd);
		}
		fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			if (pread(fd, buf, sizeof(buf), first * 8) < 0)
				note_wrong("pagemap cannot be read");
			close(fd);
		}
		write_text("/proc/self/clear_refs", i % 2 ? "1" : "4");
		race_acted(play, false);
	}
	return NULL;
}

static void play_process(void)
{
	void *(*const mains[])(void *) = {
		lane_main, lane_main, poke_main, poke_main, kept_main,
		kept_main, proc_main,
	};
	pthread_t threads[ARRAY_SIZE(mains)];
	uintptr_t i;

	/* Its shared memory segments go away with it, even if it is killed. */
	if (unshare(CLONE_NEWIPC)) {
		note_wrong("unshare(CLONE_NEWIPC) failed");
		_exit(1);
	}
	for (i = 0; i < ARRAY_SIZE(mains); i++) {
		if (pthread_create(&threads[i], NULL, mains[i],
				   (void *)(i + 1))) {
			note_wrong("cannot start a thread");
			_exit(1);
		}
	}
	for (i = 0; i < ARRAY_SIZE(mains); i++)
		pthread_join(threads[i], NULL);
	munmap(PLAYGROUND, PLAYGROUND_LEN + LANE);
	if (mapped_bytes(PLAYGROUND, PLAYGROUND_LEN + LANE))
		note_wrong("left after munmap");
	_exit(0);
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

/* Ends the process after @ms, by the stop flag or by SIGKILL. */
static int play_for(long ms, bool by_kill)
{
	pid_t pid;

	atomic_store(&play->run.stop, false);
	pid = fork_bound();
	if (!pid)
		play_process();
	if (pid < 0)
		return -1;
	usleep(ms * 1000);
	if (by_kill)
		kill(pid, SIGKILL);
	else
		atomic_store(&play->run.stop, true);
	return reap(pid);
}

TEST_F_TIMEOUT(race, playground, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	__u64 start = now_ns(), seed = opt_seed;
	struct usage before = usage_read();
	struct race *r = &self->r;
	int kmsg = kmsg_open();
	long ms;

	play = map_shared(sizeof(*play));
	ASSERT_NE(NULL, play);
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	catch_faults();
	if (opt_playground)
		opt_seconds = opt_playground;
	ms = race_ns(r) / 2000000;
	if (ms < PROCESS_MS_MIN)
		ms = PROCESS_MS_MIN;
	if (ms > PROCESS_MS_MAX)
		ms = PROCESS_MS_MAX;
	/* At least one process of each kind. */
	while (!atomic_load(&play->run.wrong) &&
	       (r->rounds < 2 || another_round(r, start, 0))) {
		bool by_kill = r->rounds % 2;
		/* Never killed at the same point. */
		long kill_ms = PROCESS_MS_MIN + random_next(&seed) % 2000;

		EXPECT_EQ(by_kill ? 256 + SIGKILL : 0,
			  play_for(by_kill ? kill_ms : ms, by_kill));
		atomic_store(&r->hits, atomic_load(&play->hits));
		r->rounds++;
	}
	atomic_store(&r->run.acts, atomic_load(&play->run.acts));
	atomic_store(&r->run.wrong, atomic_load(&play->run.wrong));
	expect_raced(_metadata, r);
	expect_freed(_metadata, &before, LANE / KIB / 2);
	if (kmsg >= 0)
		EXPECT_EQ(0, kernel_complaints(kmsg));
	close(kmsg);
}

int main(int argc, char **argv)
{
	if (!race_options() || !env_number("FAULTLINE_COUNT", &opt_count) ||
	    !env_seconds("FAULTLINE_PLAYGROUND", &opt_playground) ||
	    !env_number("FAULTLINE_SEED", &opt_seed))
		return KSFT_FAIL;
	return vm_knob_kept(&munmap_knob, test_harness_run, argc, argv);
}
