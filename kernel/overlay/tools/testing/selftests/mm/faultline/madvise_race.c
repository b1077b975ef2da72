// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise madvise against other calls, and page faults, of the process.
 */
#include <linux/mman.h>

#include "madvise_util.h"
#include "section_race.h"

#define TAG		0x6d61647669736532ULL

static size_t npages(void)
{
	return race_range() / page_size();
}

static __u64 word_of(struct race *r, size_t page)
{
	return word_read(r->start + page * page_size());
}

static int discard(struct race *r)
{
	return madvise(r->start, r->len, MADV_DONTNEED) ? -errno : 0;
}

/* Nothing is left of the old contents. */
static bool all_zero(struct race *r)
{
	size_t i;

	for (i = 0; i < npages(); i++)
		if (word_of(r, i))
			return false;
	return !r->ret;
}

static void unmap_range(struct race *r)
{
	munmap(r->start, r->len);
}

static const struct race_feature race_feature = {
	.knob = &madvise_knob,
	.flips = &madvise_flips,
	.counters = "madvise_section_",
};

static const struct section_call section_call = {
	.tag = TAG,
	.range = 32 * MIB,
	.call = discard,
	.verify = all_zero,
	.release = unmap_range,
};

/* Whether madvise() has begun and not yet ended: the first page has gone. */
static bool begun(struct race *r)
{
	return !word_of(r, 0);
}

static bool at_work(struct race *r)
{
	return begun(r) && word_of(r, npages() - 1);
}

static bool wait_for_work(struct race *r)
{
	while (!begun(r))
		if (atomic_load(&r->done))
			return false;
	return true;
}

/* --- writers of mmap_lock do not wait for the end */

static void writer(struct race *r, int id)
{
	char *page = r->data;

	if (!wait_for_work(r))
		return;
	while (!atomic_load(&r->done)) {
		bool early = at_work(r);

		if (mprotect(page, page_size(), PROT_READ) ||
		    mprotect(page, page_size(), PROT_READ | PROT_WRITE))
			race_wrong(r);
		race_acted(r, early && at_work(r));
	}
}

TEST_F_TIMEOUT(race, writers_go_on, TIMEOUT)
{
	char *page = map_filled(page_size(), TAG);

	ASSERT_NE(NULL, page);
	RACE_TEST(&self->r, page, .racers = 1, .racer = writer);
}

/* --- a page that has gone, and was written again, stays */

/* The data is a flag for each page: it has been written again. */
static bool prepare_faults(struct race *r)
{
	memset(r->data, 0, npages());
	return prepare_anon(r);
}

static void faulter(struct race *r, int id)
{
	size_t i, last = npages() - 1;
	bool *written = r->data;

	if (!wait_for_work(r))
		return;
	do {
		for (i = id; i < npages(); i += r->ops->racers) {
			bool early;

			if (written[i] || word_of(r, i))
				continue;
			/* This page has gone, and the last one not yet. */
			early = word_of(r, last) == page_word(r->tag, last);
			word_write(r->start + i * page_size(), r->tag + i + 1);
			written[i] = true;
			race_acted(r, early);
		}
	} while (!atomic_load(&r->done));
}

static bool faults_kept(struct race *r)
{
	const bool *written = r->data;
	size_t i;

	for (i = 0; i < npages(); i++)
		if (word_of(r, i) != (written[i] ? r->tag + i + 1 : 0))
			return false;
	return !r->ret;
}

static void faults_test(struct __test_metadata *_metadata, struct race *r,
			int racers, void (*racer)(struct race *r, int id),
			int (*call)(struct race *r))
{
	bool *written = calloc(npages(), sizeof(*written));

	ASSERT_NE(NULL, written);
	RACE_TEST(r, written, .racers = racers, .prepare = prepare_faults,
		  .racer = racer, .call = call, .verify = faults_kept);
	free(written);
}

TEST_F_TIMEOUT(race, faults, TIMEOUT)
{
	faults_test(_metadata, &self->r, 2, faulter, discard);
}

/* --- the same for a vector of ranges, most of which share a section */

#define VECTOR_PAGES	8

static int discard_vector(struct race *r)
{
	size_t step = VECTOR_PAGES * page_size(), n = r->len / step, i, j;
	/* As many ranges as a call may have. */
	struct iovec vec[1024];

	for (i = 0; i < n; i += j) {
		long len, ret;

		for (j = 0; j < ARRAY_SIZE(vec) && i + j < n; j++)
			vec[j] = (struct iovec){ r->start + (i + j) * step,
						 step };
		len = j * step;
		ret = advise_vector(vec, j, MADV_DONTNEED);
		/* The switch is off: one by one. */
		if (ret == -EINVAL)
			ret = madvise(r->start + i * step, len,
				      MADV_DONTNEED) ? -errno : len;
		if (ret != len)
			return ret < 0 ? ret : -EIO;
	}
	return 0;
}

TEST_F_TIMEOUT(race, vectors, TIMEOUT)
{
	faults_test(_metadata, &self->r, 2, faulter, discard_vector);
}

/* --- one long range of a vector, whose VMA is split while it is discarded */

static int discard_long_vector(struct race *r)
{
	struct iovec vec = { r->start, r->len };
	long ret = advise_vector(&vec, 1, MADV_DONTNEED);

	if (ret == -EINVAL)
		return discard(r);
	if (ret < 0)
		return ret;
	return ret == (long)r->len ? 0 : -EIO;
}

static void splitter(struct race *r, int id)
{
	char *last = r->start + r->len - page_size();

	if (id < 2) {
		faulter(r, id);
		return;
	}
	if (!wait_for_work(r))
		return;
	while (!atomic_load(&r->done))
		if (madvise(last, page_size(), MADV_DONTDUMP) ||
		    madvise(last, page_size(), MADV_DODUMP))
			race_wrong(r);
}

TEST_F_TIMEOUT(race, vector_split, TIMEOUT)
{
	faults_test(_metadata, &self->r, 3, splitter, discard_long_vector);
}

/* --- children see each page as it was, or empty */

static void forker(struct race *r, int id)
{
	bool early;
	pid_t pid;
	size_t i;

	if (!wait_for_work(r))
		return;
	early = at_work(r);
	pid = fork_bound();
	if (!pid) {
		for (i = 0; i < npages(); i++) {
			__u64 word = word_of(r, i);

			if (word && word != page_word(r->tag, i))
				_exit(1);
		}
		_exit(0);
	}
	race_acted(r, early && at_work(r));
	if (pid < 0 || reap(pid))
		race_wrong(r);
}

TEST_F_TIMEOUT(race, fork, TIMEOUT)
{
	RACE_TEST(&self->r, NULL, .racers = 1, .racer = forker);
}

/* --- huge pages come while pages go */

/* From the end of the range to its start, so that there are pages left. */
static void collapser(struct race *r, int id)
{
	size_t i, n = r->len / pmd_size();

	if (!wait_for_work(r))
		return;
	for (i = id; i < n && !atomic_load(&r->done); i += r->ops->racers) {
		char *p = r->start + (n - 1 - i) * pmd_size();
		bool early = at_work(r), huge;

		if (madvise(p, pmd_size(), MADV_HUGEPAGE))
			race_wrong(r);
		huge = !madvise(p, pmd_size(), MADV_COLLAPSE);
		/* It is empty, its pages are in use, or there is no huge page. */
		if (!huge && errno != EINVAL && errno != EAGAIN &&
		    errno != EBUSY && errno != ENOMEM)
			race_wrong(r);
		race_acted(r, huge && early && at_work(r));
	}
}

TEST_F_TIMEOUT(race, collapse, TIMEOUT)
{
	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK))
		SKIP(return, "this kernel has no transparent huge pages");
	RACE_TEST(&self->r, NULL, .racers = 2, .racer = collapser);
}

/* --- the VMAs of the range change meanwhile */

static const int kinds[] = {
	MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT,
};

/* The data of these races. */
struct advised {
	/* Acts beside a call with this advice. */
	atomic_long hits[ARRAY_SIZE(kinds)];
	/* For each page: it may have been unmapped or replaced; or NULL. */
	bool *changed;
};

static int any_advice(struct race *r)
{
	return kinds[r->rounds % ARRAY_SIZE(kinds)];
}

static bool prepare_advised(struct race *r)
{
	struct advised *a = r->data;

	if (a->changed)
		memset(a->changed, 0, npages());
	return prepare_anon(r);
}

static int advise(struct race *r)
{
	return madvise(r->start, r->len, any_advice(r)) ? -errno : 0;
}

static void advised_acted(struct race *r, bool hit)
{
	struct advised *a = r->data;

	if (hit)
		atomic_fetch_add(&a->hits[r->rounds % ARRAY_SIZE(kinds)], 1);
	race_acted(r, hit);
}

static bool all_kinds_hit(struct race *r)
{
	struct advised *a = r->data;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(kinds); i++)
		if (!atomic_load(&a->hits[i]))
			return false;
	return true;
}

/* Splits, protects, unmaps and replaces parts of two tables each. */
static void changer(struct race *r, int id)
{
	size_t part = 2 * pmd_size(), page;
	struct advised *a = r->data;
	__u64 seed = r->tag + id;
	char *p;

	while (!atomic_load(&r->done)) {
		page = random_next(&seed) % (r->len / part) *
		       (part / page_size()) + random_next(&seed) % 8;
		p = r->start + page * page_size();
		switch (random_next(&seed) % 4) {
		case 0:
			mprotect(p, 8 * page_size(), PROT_READ);
			break;
		case 1:
			mprotect(p, 8 * page_size(), PROT_READ | PROT_WRITE);
			break;
		case 2:
			memset(a->changed + page, true, 4);
			munmap(p, 4 * page_size());
			break;
		case 3:
			memset(a->changed + page, true, 8);
			if (!map_fresh_at(p, 8 * page_size()))
				race_wrong(r);
			break;
		}
		advised_acted(r, !atomic_load(&r->done));
	}
}

/*
 * A page that no racer has changed is empty or the old one, as the advice says;
 * others may also be unmapped, and empty with any advice.
 */
static bool changes_right(struct race *r)
{
	int advice = any_advice(r);
	bool may_stay = advice != MADV_DONTNEED;
	bool may_go = advice == MADV_DONTNEED || advice == MADV_FREE;
	struct advised *a = r->data;
	size_t i;

	if (r->ret && r->ret != -ENOMEM)
		return false;
	for (i = 0; i < npages(); i++) {
		bool changed = a->changed && a->changed[i];
		__u64 word = 0;

		if (try_read(r->start + i * page_size(), &word)) {
			if (!changed)
				return false;
		} else if (word) {
			if (!may_stay || word != page_word(r->tag, i))
				return false;
		} else if (!may_go && !changed) {
			return false;
		}
	}
	return true;
}

TEST_F_TIMEOUT(race, changed_vmas, TIMEOUT)
{
	struct advised advised = {
		/* A change may begin at the last page, and goes beyond it. */
		.changed = calloc(npages() + 8, sizeof(bool)),
	};

	ASSERT_NE(NULL, advised.changed);
	catch_faults();
	RACE_TEST(&self->r, &advised, .racers = 2, .prepare = prepare_advised,
		  .racer = changer, .call = advise, .verify = changes_right,
		  .enough = all_kinds_hit);
	free(advised.changed);
}

/* --- two calls for the same range */

static void adviser(struct race *r, int id)
{
	while (!atomic_load(&r->done)) {
		if (madvise(r->start, r->len, any_advice(r)))
			race_wrong(r);
		advised_acted(r, true);
	}
}

static bool nothing_foreign(struct race *r)
{
	return changes_right(r) && !r->ret;
}

TEST_F_TIMEOUT(race, same_range, TIMEOUT)
{
	struct advised advised = { .changed = NULL };

	catch_faults();
	RACE_TEST(&self->r, &advised, .racers = 1, .prepare = prepare_advised,
		  .racer = adviser, .call = advise, .verify = nothing_foreign,
		  .enough = all_kinds_hit);
}

int main(int argc, char **argv)
{
	if (!race_options())
		return KSFT_FAIL;
	return vm_knob_kept(&madvise_knob, test_harness_run, argc, argv);
}
