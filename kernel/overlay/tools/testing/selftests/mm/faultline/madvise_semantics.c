// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise madvise: semantics that are the same with the switch on and off.
 *
 * Each test runs as "off" (knob 0; also on a kernel without the feature) and
 * as "on" (the smallest sections).  Both expect the same outcome; in addition,
 * "on" must have worked in sections, and "off" must not.
 */
#include <fcntl.h>
#include <linux/mman.h>
#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "../../kselftest_harness.h"
#include "madvise_util.h"

#define TAG		0x6d61647669736531ULL
/* Several page tables, whose size depends on the machine. */
#define BIG		MAX(32 * MIB, 4 * pmd_size())
#define TIMEOUT		300

/* The state of a test; FIXTURE() only wraps it. */
struct state {
	bool on;
	struct idle_thread idle;
	struct counters before;
};

FIXTURE(madvise) {
	struct state s;
};

FIXTURE_VARIANT(madvise) {
	bool on;
};

FIXTURE_VARIANT_ADD(madvise, off) { .on = false };
FIXTURE_VARIANT_ADD(madvise, on) { .on = true };

FIXTURE_SETUP(madvise)
{
	const char *why = vm_knob_set(&madvise_knob,
				      variant->on ? MADVISE_SMALL_KB : 0);

	self->s.on = variant->on;
	if (why)
		SKIP(return, "%s", why);
	ASSERT_EQ(0, idle_thread_start(&self->s.idle));
	self->s.before = counters_read("madvise_section_");
}

FIXTURE_TEARDOWN(madvise)
{
	idle_thread_stop(&self->s.idle);
}

/* With the switch on, the calls so far were sectioned; @left to upstream. */
static void expect_sections(struct __test_metadata *_metadata, struct state *s,
			    int calls, int left)
{
	struct counters d = counters_since(&s->before);
	int i;

	if (s->on) {
		EXPECT_EQ(calls, counter(&d, "calls"));
		if (calls > left)
			EXPECT_LT(calls, counter(&d, "sections"));
		EXPECT_EQ(left, counter(&d, "upstream"));
		return;
	}
	for (i = 0; i < d.n; i++)
		EXPECT_EQ(0, d.list[i].value);
}

/* 0, or the error of madvise(). */
static int advise(void *addr, size_t len, int advice)
{
	return madvise(addr, len, advice) ? errno : 0;
}

/* Pages of the range whose first word is not 0. */
static size_t filled_pages(const char *addr, size_t len)
{
	size_t i, n = 0;

	for (i = 0; i < len; i += page_size())
		n += word_read(addr + i) != 0;
	return n;
}

/* --- MADV_DONTNEED */

TEST_F_TIMEOUT(madvise, dontneed, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, advise(p, BIG, MADV_DONTNEED));
	EXPECT_EQ(0, smaps_kb(p, BIG, "Rss"));
	EXPECT_EQ(0, filled_pages(p, BIG));
	expect_sections(_metadata, &self->s, 1, 0);
	EXPECT_EQ(BIG, mapped_bytes(p, BIG));
}

/* Begins and ends inside a VMA, at odd page offsets; a length is rounded up. */
TEST_F_TIMEOUT(madvise, edges, TIMEOUT)
{
	size_t ps = page_size(), head = 3 * ps, tail = 5 * ps, i;
	char *p = map_filled(head + BIG + tail, TAG);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, advise(p + head, BIG - ps / 2, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p + head, BIG));
	EXPECT_EQ(0, bad_pages(p, head, TAG));
	for (i = 0; i < tail / ps; i++)
		EXPECT_EQ(page_word(TAG, (head + BIG) / ps + i),
			  word_read(p + head + BIG + i * ps));
	expect_sections(_metadata, &self->s, 1, 0);
}

/* A part of a huge page goes, the rest of it stays. */
TEST_F_TIMEOUT(madvise, thp, TIMEOUT)
{
	size_t ps = page_size(), len = 64 * pmd_size(), cut = len - 7 * ps, i;
	char *p;

	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK))
		SKIP(return, "this kernel has no transparent huge pages");
	if (meminfo_kb("MemAvailable") < (long)(len / KIB) * 3 / 2)
		SKIP(return, "needs %zu MiB of memory", len * 3 / 2 / MIB);
	p = map_apart(len);
	ASSERT_NE(NULL, p);
	madvise(p, len, MADV_HUGEPAGE);
	fill_pages(p, len, TAG);
	if (smaps_kb(p, len, "AnonHugePages") < (long)(len / KIB) * 3 / 4)
		SKIP(return, "too few huge pages available");
	self->s.before = counters_read("madvise_section_");
	EXPECT_EQ(0, advise(p, cut, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, cut));
	for (i = cut / ps; i < len / ps; i++)
		EXPECT_EQ(page_word(TAG, i), word_read(p + i * ps));
	expect_sections(_metadata, &self->s, 1, 0);
}

/* A private mapping shows the file again; a shared one has not changed it. */
TEST_F_TIMEOUT(madvise, file, TIMEOUT)
{
	int fd = memfd_create("madvise", MFD_CLOEXEC);
	char *shared, *private;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, BIG));
	shared = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	private = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, shared);
	ASSERT_NE(MAP_FAILED, private);
	fill_pages(shared, BIG, TAG);
	fill_pages(private, BIG, TAG + 1);
	EXPECT_EQ(0, advise(private, BIG, MADV_DONTNEED));
	EXPECT_EQ(0, smaps_kb(private, BIG, "Rss"));
	EXPECT_EQ(0, bad_pages(private, BIG, TAG));
	EXPECT_EQ(0, advise(shared, BIG, MADV_DONTNEED));
	EXPECT_EQ(0, smaps_kb(shared, BIG, "Rss"));
	EXPECT_EQ(0, bad_pages(shared, BIG, TAG));
	expect_sections(_metadata, &self->s, 2, 0);
}

/* Holes are skipped, and reported at the end. */
TEST_F_TIMEOUT(madvise, holes, TIMEOUT)
{
	/* Each call gets more than one section of memory. */
	size_t hole = pmd_size(), len = MAX(BIG, 6 * hole);
	char *p = map_filled(len, TAG);

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, munmap(p + len / 2, hole));
	self->s.before = counters_read("madvise_section_");
	EXPECT_EQ(ENOMEM, advise(p, len, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, len / 2));
	EXPECT_EQ(0, filled_pages(p + len / 2 + hole, len / 2 - hole));
	/* At the end, and at the start. */
	ASSERT_EQ(0, munmap(p + len - hole, hole));
	EXPECT_EQ(ENOMEM, advise(p + len / 2 + hole, len / 2 - hole,
				 MADV_DONTNEED));
	EXPECT_EQ(ENOMEM, advise(p + len / 2, len / 2 - hole, MADV_DONTNEED));
	expect_sections(_metadata, &self->s, 3, 0);
}

/* The first VMA is done, the second refuses, the third is left alone. */
TEST_F_TIMEOUT(madvise, locked, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	size_t third = MAX(8 * MIB, 2 * pmd_size());
	char *p;

	if (setrlimit(RLIMIT_MEMLOCK, &unlimited))
		SKIP(return, "cannot raise RLIMIT_MEMLOCK");
	p = map_filled(3 * third, TAG);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, mlock(p + third, third));
	EXPECT_EQ(EINVAL, advise(p, 3 * third, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, third));
	EXPECT_EQ(2 * third / page_size(), filled_pages(p + third, 2 * third));
	/* A hole before it does not change the error. */
	ASSERT_EQ(0, munmap(p, third / 2));
	EXPECT_EQ(EINVAL, advise(p, 3 * third, MADV_DONTNEED));
	expect_sections(_metadata, &self->s, 2, 2);
	EXPECT_EQ(0, advise(p + third, 2 * third, MADV_DONTNEED_LOCKED));
	EXPECT_EQ(0, filled_pages(p + third, 2 * third));
	expect_sections(_metadata, &self->s, 3, 2);
}

TEST_F_TIMEOUT(madvise, sealed, TIMEOUT)
{
	char *p = map_filled(2 * BIG, TAG);

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, mprotect(p + BIG, BIG, PROT_READ));
	if (syscall(SYS_mseal, p + BIG, BIG, 0))
		SKIP(return, "no mseal (%s)", strerror(errno));
	EXPECT_EQ(EPERM, advise(p, 2 * BIG, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, BIG));
	EXPECT_EQ(BIG / page_size(), filled_pages(p + BIG, BIG));
	expect_sections(_metadata, &self->s, 1, 1);
}

TEST_F_TIMEOUT(madvise, hugetlb, TIMEOUT)
{
	size_t len = 16 * pmd_size();
	long had;
	char *p;

	if (meminfo_kb("Hugepagesize") != (long)(pmd_size() / KIB) ||
	    vm_sysctl_read("nr_hugepages", &had))
		SKIP(return, "no PMD-sized huge pages");
	if (vm_sysctl_write("nr_hugepages", had + len / pmd_size()))
		SKIP(return, "cannot set vm.nr_hugepages");
	p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (p == MAP_FAILED) {
		vm_sysctl_write("nr_hugepages", had);
		SKIP(return, "too few huge pages available");
	}
	/* So that the process is large enough for sections. */
	ASSERT_NE(NULL, map_filled(2 * pmd_size(), TAG));
	fill_pages(p, len, TAG);
	EXPECT_EQ(EINVAL, advise(p + page_size(), len - page_size(),
				 MADV_DONTNEED));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	EXPECT_EQ(0, advise(p, len, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, len));
	expect_sections(_metadata, &self->s, 2, 2);
	munmap(p, len);
	vm_sysctl_write("nr_hugepages", had);
}

/* --- the others */

TEST_F_TIMEOUT(madvise, free, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);
	size_t i;

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, advise(p, BIG, MADV_FREE));
	expect_sections(_metadata, &self->s, 1, 0);
	/* Not all at once: a few pages are in per-CPU caches. */
	EXPECT_LT((long)(BIG / KIB) / 2, smaps_kb(p, BIG, "LazyFree"));
	/* Each page is the old one or empty. */
	for (i = 0; i < BIG / page_size(); i++) {
		__u64 word = word_read(p + i * page_size());

		EXPECT_TRUE(!word || word == page_word(TAG, i));
	}
	/* A write takes the advice back. */
	fill_pages(p, BIG, TAG + 1);
	EXPECT_EQ(0, smaps_kb(p, BIG, "LazyFree"));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG + 1));
}

TEST_F_TIMEOUT(madvise, free_file, TIMEOUT)
{
	int fd = memfd_create("madvise", MFD_CLOEXEC);
	char *p;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, BIG));
	p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	fill_pages(p, BIG, TAG);
	EXPECT_EQ(EINVAL, advise(p, BIG, MADV_FREE));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_sections(_metadata, &self->s, 1, 1);
}

TEST_F_TIMEOUT(madvise, cold, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, advise(p, BIG, MADV_COLD));
	expect_sections(_metadata, &self->s, 1, 0);
	/* Stock as well may miss pages that are in a batch of another CPU. */
	EXPECT_GT((long)(BIG / KIB / 16), smaps_kb(p, BIG, "Referenced"));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
}

/* Pages return from swap, unless they were discarded there. */
TEST_F_TIMEOUT(madvise, swapped, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);
	long swapped, left;

	ASSERT_NE(NULL, p);
	if (!swap_start())
		SKIP(return, "no swap");
	EXPECT_EQ(0, advise(p, BIG, MADV_PAGEOUT));
	swapped = smaps_kb(p, BIG, "Swap");
	EXPECT_EQ(0, bad_pages(p, BIG / 4, TAG));
	EXPECT_EQ(0, advise(p, BIG, MADV_DONTNEED));
	left = smaps_kb(p, BIG, "Swap");
	EXPECT_EQ(0, filled_pages(p, BIG));
	EXPECT_LT(swappable_kb(BIG) / 2, swapped);
	EXPECT_EQ(0, left);
	expect_sections(_metadata, &self->s, 2, 0);
	swap_stop();
}

/* From another process, with or without swap: nothing is lost. */
TEST_F_TIMEOUT(madvise, process_pageout, TIMEOUT)
{
	/* A system call takes less than 2 GiB. */
	size_t len = MIN(BIG, GIB);
	char *p = map_filled(len, TAG);
	struct iovec vec = { p, len };
	int pidfd, status;
	pid_t pid;

	ASSERT_NE(NULL, p);
	pidfd = syscall(__NR_pidfd_open, getpid(), 0);
	if (pidfd < 0)
		SKIP(return, "no pidfd_open (%s)", strerror(errno));
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		int advice = MADV_COLD;

		for (;;) {
			if (syscall(__NR_process_madvise, pidfd, &vec, 1,
				    advice, 0) != (long)len)
				_exit(1);
			if (advice == MADV_PAGEOUT)
				_exit(0);
			advice = MADV_PAGEOUT;
		}
	}
	status = reap(pid);
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	expect_sections(_metadata, &self->s, 2, 0);
}

/* Advice that is not for sections. */
TEST_F_TIMEOUT(madvise, other_advice, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, advise(p, BIG, MADV_WILLNEED));
	EXPECT_EQ(0, advise(p, BIG, MADV_SEQUENTIAL));
	EXPECT_EQ(0, advise(p, BIG, MADV_DONTDUMP));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_sections(_metadata, &self->s, 0, 0);
}

/* --- process_madvise() of oneself: as several calls, with the switch on only */

#define PIECES		64

FIXTURE(vector) {
	struct idle_thread idle;
	struct counters before;
};

FIXTURE_SETUP(vector)
{
	const char *why = vm_knob_set(&madvise_knob, 65536);

	if (why)
		SKIP(return, "%s", why);
	ASSERT_EQ(0, idle_thread_start(&self->idle));
	self->before = counters_read("madvise_section_");
}

FIXTURE_TEARDOWN(vector)
{
	idle_thread_stop(&self->idle);
}

/* Two pages of each four, so that every second piece of a table stays. */
static size_t make_vector(char *p, struct iovec *vec)
{
	size_t ps = page_size(), i;

	for (i = 0; i < PIECES; i++)
		vec[i] = (struct iovec){ p + i * 4 * ps, 2 * ps };
	return PIECES * 2 * ps;
}

/* The pieces [0, n) are empty; all other pages are unchanged. */
static bool pieces_gone(char *p, size_t len, size_t n)
{
	size_t i;

	for (i = 0; i < len / page_size(); i++) {
		bool gone = i % 4 < 2 && i / 4 < n;

		if (word_read(p + i * page_size()) !=
		    (gone ? 0 : page_word(TAG, i)))
			return false;
	}
	return true;
}

TEST_F_TIMEOUT(vector, discards, TIMEOUT)
{
	size_t len = PIECES * 4 * page_size(), total;
	char *p = map_filled(len, TAG);
	struct iovec vec[PIECES];
	struct counters d;

	ASSERT_NE(NULL, p);
	total = make_vector(p, vec);
	EXPECT_EQ(total, advise_vector(vec, PIECES, MADV_DONTNEED));
	EXPECT_TRUE(pieces_gone(p, len, PIECES));
	d = counters_since(&self->before);
	/* The counters are those of the machine, not of the process. */
	EXPECT_LE(1, counter(&d, "calls"));
	EXPECT_LE(1, counter(&d, "sections"));
	/* More than one where few tables are a section, or for a writer. */
	EXPECT_GE((pmd_size() < 32 * MIB ? 2 : PIECES / 16) +
		  counter(&d, "contended"), counter(&d, "sections"));
	/* Again, with nothing left; and one range. */
	EXPECT_EQ(total, advise_vector(vec, PIECES, MADV_DONTNEED));
	fill_pages(p, len, TAG);
	EXPECT_EQ(vec[0].iov_len, advise_vector(vec, 1, MADV_DONTNEED));
	EXPECT_TRUE(pieces_gone(p, len, 1));
}

/* Also behind ranges that are not left to upstream. */
TEST_F_TIMEOUT(vector, upstream_counts_once, TIMEOUT)
{
	size_t ps = page_size(), len = PIECES * 4 * ps, total;
	char *p = map_filled(len, TAG);
	struct iovec vec[PIECES];

	ASSERT_NE(NULL, p);
	total = make_vector(p, vec);
	/* The fourth range lies in two mappings. */
	ASSERT_EQ(0, mprotect((char *)vec[3].iov_base + ps, ps, PROT_READ));
	EXPECT_EQ(total, advise_vector(vec, PIECES, MADV_DONTNEED));
	EXPECT_EQ(1, counted(&self->before, "upstream"));
	EXPECT_TRUE(pieces_gone(p, len, PIECES));
}

TEST_F_TIMEOUT(vector, refused_when_off, TIMEOUT)
{
	size_t len = PIECES * 4 * page_size();
	char *p = map_filled(len, TAG);
	struct iovec vec[PIECES];

	ASSERT_NE(NULL, p);
	make_vector(p, vec);
	ASSERT_EQ(NULL, vm_knob_set(&madvise_knob, 0));
	EXPECT_EQ(-EINVAL, advise_vector(vec, PIECES, MADV_DONTNEED));
	EXPECT_EQ(-EINVAL, advise_vector(vec, PIECES, MADV_DONTNEED_LOCKED));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
}

/* The ranges before the first bad one are discarded, and counted. */
TEST_F_TIMEOUT(vector, errors, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	size_t ps = page_size(), len = PIECES * 4 * ps;
	char *p = map_filled(len, TAG);
	struct iovec vec[PIECES];

	ASSERT_NE(NULL, p);
	make_vector(p, vec);
	EXPECT_EQ(0, advise_vector(vec, 0, MADV_DONTNEED));

	vec[3].iov_base = (char *)vec[3].iov_base + 1;
	EXPECT_EQ(3 * 2 * (long)ps, advise_vector(vec, PIECES, MADV_DONTNEED));
	EXPECT_TRUE(pieces_gone(p, len, 3));
	EXPECT_EQ(-EINVAL, advise_vector(vec + 3, PIECES - 3, MADV_DONTNEED));
	make_vector(p, vec);

	/* An empty range does nothing, a length is rounded up. */
	vec[3].iov_len = 0;
	vec[4].iov_len = ps + 1;
	EXPECT_EQ((long)ps + 1, advise_vector(vec + 3, 2, MADV_DONTNEED));
	EXPECT_EQ(page_word(TAG, 12), word_read(vec[3].iov_base));
	EXPECT_EQ(0, word_read((char *)vec[4].iov_base + ps));
	make_vector(p, vec);

	/* Locked, a hole, another advice, another process. */
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	ASSERT_EQ(0, mlock(vec[6].iov_base, ps));
	EXPECT_EQ(2 * (long)ps, advise_vector(vec + 5, 2, MADV_DONTNEED));
	EXPECT_EQ(-EINVAL, advise_vector(vec + 6, 2, MADV_DONTNEED));
	EXPECT_EQ(4 * (long)ps,
		  advise_vector(vec + 6, 2, MADV_DONTNEED_LOCKED));
	ASSERT_EQ(0, munmap(vec[9].iov_base, ps));
	EXPECT_EQ(2 * (long)ps, advise_vector(vec + 8, 2, MADV_DONTNEED));
	EXPECT_EQ(-ENOMEM, advise_vector(vec + 9, 2, MADV_DONTNEED));
	EXPECT_EQ(-EINVAL, advise_vector(vec + 10, 2, MADV_FREE));
	EXPECT_EQ(page_word(TAG, 40), word_read(vec[10].iov_base));
}

/* Not of another process, whatever the privileges. */
TEST_F_TIMEOUT(vector, of_other, TIMEOUT)
{
	struct iovec vec = { map_filled(page_size(), TAG), page_size() };
	int pidfd;
	pid_t pid;

	ASSERT_NE(NULL, vec.iov_base);
	pidfd = syscall(__NR_pidfd_open, getpid(), 0);
	if (pidfd < 0)
		SKIP(return, "no pidfd_open (%s)", strerror(errno));
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(syscall(__NR_process_madvise, pidfd, &vec, 1,
			      MADV_DONTNEED, 0) != -1 || errno != EINVAL);
	EXPECT_EQ(0, reap(pid));
	EXPECT_EQ(page_word(TAG, 0), word_read(vec.iov_base));
}

/* The ranges are empty, and the two pages behind each are as they were. */
static bool ranges_gone(char *p, const struct iovec *vec, size_t n)
{
	size_t ps = page_size(), i, off;

	for (i = 0; i < n; i++) {
		char *start = vec[i].iov_base, *end = start + vec[i].iov_len;

		if (filled_pages(start, vec[i].iov_len))
			return false;
		for (off = end - p; off < end - p + 2 * ps; off += ps)
			if (word_read(p + off) != page_word(TAG, off / ps))
				return false;
	}
	return true;
}

/* Around whole numbers of sections: the only range, and one of several. */
TEST_F_TIMEOUT(vector, long_ranges, TIMEOUT)
{
	static const size_t sections[] = { 1, 2, 3, 16, 32 };
	size_t ps = page_size(), i, j, n;
	struct iovec vec[3];
	int around;

	if (meminfo_kb("MemAvailable") < (long)(4 * 32 * pmd_size() / KIB))
		SKIP(return, "not enough memory");
	ASSERT_EQ(NULL, vm_knob_set(&madvise_knob, MADVISE_SMALL_KB));
	for (i = 0; i < ARRAY_SIZE(sections) * 9; i++) {
		size_t len = sections[i / 9] * pmd_size();
		char *p;

		around = (int)(i / 3 % 3) - 1;
		len += around * (long)ps;
		n = i % 3 + 1;
		p = map_filled(n * (len + 2 * ps), TAG);
		ASSERT_NE(NULL, p);
		for (j = 0; j < n; j++)
			vec[j] = (struct iovec){ p + j * (len + 2 * ps), len };
		self->before = counters_read("madvise_section_");
		EXPECT_EQ((long)(n * len),
			  advise_vector(vec, n, MADV_DONTNEED));
		EXPECT_LE(sections[i / 9],
			  counted(&self->before, "sections"));
		ASSERT_TRUE(ranges_gone(p, vec, n)) {
			TH_LOG("%zu of %zu sections, %d pages more", n,
			       sections[i / 9], around);
		}
		munmap(p, n * (len + 2 * ps));
	}
}

/* Ranges of several VMAs, in any order, some too large for one section. */
static void advise_vmas(struct __test_metadata *_metadata)
{
	size_t ps = page_size(), big = 8 * pmd_size(), i;
	char *p = map_filled(2 * big, TAG);
	int fd = memfd_create("madvise", MFD_CLOEXEC);
	struct iovec vec[5];
	char *file;

	ASSERT_NE(NULL, p);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, big));
	file = mmap(NULL, big, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, file);
	fill_pages(file, big, TAG);
	ASSERT_EQ(0, mprotect(p + big, ps, PROT_READ));
	vec[0] = (struct iovec){ p + 2 * big - 4 * ps, 4 * ps };
	vec[1] = (struct iovec){ p, big - 2 * ps };
	vec[2] = (struct iovec){ file, big };
	/* Across two VMAs; and a part of it once more. */
	vec[3] = (struct iovec){ p + big - ps, 2 * ps };
	vec[4] = (struct iovec){ p + big, ps };
	EXPECT_EQ(4 * ps + big - 2 * ps + big + 2 * ps + ps,
		  advise_vector(vec, 5, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(file, big));
	EXPECT_EQ(0, filled_pages(p, big - 2 * ps));
	EXPECT_EQ(1, filled_pages(p + big - 2 * ps, 3 * ps));
	EXPECT_EQ(0, filled_pages(p + 2 * big - 4 * ps, 4 * ps));
	for (i = big / ps + 1; i < 2 * big / ps - 4; i++)
		ASSERT_EQ(page_word(TAG, i), word_read(p + i * ps));
	close(fd);
}

TEST_F_TIMEOUT(vector, of_vmas, TIMEOUT)
{
	advise_vmas(_metadata);
}

TEST_F_TIMEOUT(vector, of_vmas_small, TIMEOUT)
{
	ASSERT_EQ(NULL, vm_knob_set(&madvise_knob, MADVISE_SMALL_KB));
	advise_vmas(_metadata);
}

/* --- a vector does what single calls do, whatever the layout */

#define LAYOUTS		100
#define LAYOUT_CHANGES	6
#define LAYOUT_TABLES	3
#define LAYOUT_RANGES	8

/* Two mappings alike: one for the vector, one for the single calls. */
struct twins {
	char *of_vector, *of_calls;
	size_t pages;
	bool *hole;
	int fd;
};

/* A part of the twins: [first, first + pages). */
struct part {
	size_t first, pages;
};

/* Mostly short; one of eight can be anything. */
static struct part random_part(__u64 *seed, size_t pages)
{
	struct part part = { .first = random_next(seed) % pages };
	size_t max = pages - part.first;

	if (random_next(seed) % 8 && max > 64)
		max = 64;
	part.pages = 1 + random_next(seed) % max;
	return part;
}

/* Change a part of both; the kind of change is @kind. */
static int change_twins(struct twins *t, struct part p, unsigned int kind)
{
	size_t ps = page_size(), len = p.pages * ps, i;
	char *const both[] = { t->of_vector, t->of_calls };
	unsigned int nr;

	for (nr = 0; nr < ARRAY_SIZE(both); nr++) {
		char *addr = both[nr] + p.first * ps;

		switch (kind) {
		case 0:
			if (munmap(addr, len))
				return -1;
			break;
		case 1:
			/* Fails at a hole, after changing the pages before it. */
			mprotect(addr, len, PROT_READ);
			break;
		case 2:
			mlock(addr, len);
			break;
		default:
			if (mmap(addr, len, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_FIXED, t->fd,
				 p.first * ps) == MAP_FAILED)
				return -1;
			/* Every second page is a copy, the others the file's. */
			for (i = 0; i < p.pages; i += 2)
				*(__u64 *)(addr + i * ps) = TAG + i;
		}
	}
	for (i = 0; kind != 1 && kind != 2 && i < p.pages; i++)
		t->hole[p.first + i] = !kind;
	return 0;
}

static int twins_create(struct twins *t, __u64 *seed)
{
	size_t len = t->pages * page_size(), i;

	memset(t->hole, 0, t->pages * sizeof(*t->hole));
	t->of_vector = map_filled(len, TAG);
	t->of_calls = map_filled(len, TAG);
	if (!t->of_vector || !t->of_calls)
		return -1;
	for (i = 0; i < LAYOUT_CHANGES; i++)
		if (change_twins(t, random_part(seed, t->pages),
				 random_next(seed) % 4))
			return -1;
	return 0;
}

/* The pages that differ. */
static size_t twins_differ(const struct twins *t)
{
	size_t ps = page_size(), i, n = 0;

	for (i = 0; i < t->pages; i++)
		n += !t->hole[i] && word_read(t->of_vector + i * ps) !=
				    word_read(t->of_calls + i * ps);
	return n;
}

/* As advise_vector(), by one call for each range. */
static long advise_singly(const struct iovec *vec, size_t n, int advice)
{
	long done = 0;
	size_t i;
	int err;

	for (i = 0; i < n; i++) {
		err = advise(vec[i].iov_base, vec[i].iov_len, advice);
		if (err)
			return done ?: -err;
		done += vec[i].iov_len;
	}
	return done;
}

/* The same ranges of both: some are empty, odd, or begin inside a page. */
static void random_ranges(const struct twins *t, struct iovec *vec,
			  struct iovec *single, __u64 *seed)
{
	size_t ps = page_size(), i;

	for (i = 0; i < LAYOUT_RANGES; i++) {
		struct part part = random_part(seed, t->pages);
		size_t first = part.first * ps, len = part.pages * ps;

		switch (random_next(seed) % 16) {
		case 0:
			len = 0;
			break;
		case 1:
			len -= random_next(seed) % ps;
			break;
		case 2:
			if (!(random_next(seed) % 4))
				first++;
		}
		vec[i] = (struct iovec){ t->of_vector + first, len };
		single[i] = (struct iovec){ t->of_calls + first, len };
	}
}

/*
 * The single calls are made with the switch off.  The number of a layout that
 * fails is printed; it is also its seed.
 */
TEST_F_TIMEOUT(vector, as_single_calls, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	struct twins t = {
		.pages = LAYOUT_TABLES * pmd_size() / page_size(),
		.fd = memfd_create("twins", MFD_CLOEXEC),
	};
	size_t len = t.pages * page_size(), done = 0, failed = 0, i;
	struct iovec vec[LAYOUT_RANGES], single[LAYOUT_RANGES];

	if (meminfo_kb("MemAvailable") < (long)(4 * len / KIB))
		SKIP(return, "not enough memory");
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	t.hole = calloc(t.pages, sizeof(*t.hole));
	ASSERT_NE(NULL, t.hole);
	ASSERT_LE(0, t.fd);
	ASSERT_EQ(0, ftruncate(t.fd, len));
	for (i = 0; i < t.pages; i++)
		ASSERT_EQ(sizeof(i), pwrite(t.fd, &i, sizeof(i),
					    i * page_size()));

	for (i = 1; i <= LAYOUTS; i++) {
		int advice = i % 2 ? MADV_DONTNEED : MADV_DONTNEED_LOCKED;
		__u64 seed = i * TAG;
		size_t n = 1 + i % LAYOUT_RANGES, differ;
		long of_vector, of_calls;

		ASSERT_EQ(0, twins_create(&t, &seed));
		random_ranges(&t, vec, single, &seed);
		ASSERT_EQ(NULL, vm_knob_set(&madvise_knob, MADVISE_SMALL_KB));
		of_vector = advise_vector(vec, n, advice);
		ASSERT_EQ(NULL, vm_knob_set(&madvise_knob, 0));
		of_calls = advise_singly(single, n, advice);
		differ = twins_differ(&t);
		EXPECT_EQ(of_calls, of_vector);
		EXPECT_EQ(0, differ);
		if (of_calls != of_vector || differ) {
			TH_LOG("layout %zu, %zu ranges, advice %d", i, n,
			       advice);
			break;
		}
		done += of_vector > 0;
		failed += of_vector < 0;
		munmap(t.of_vector, len);
		munmap(t.of_calls, len);
	}
	/* Both kinds of outcome were there. */
	EXPECT_LT(LAYOUTS / 10, done);
	EXPECT_LT(LAYOUTS / 10, failed);
	close(t.fd);
	free(t.hole);
}

/* TLB flushes of the pieces, or -1 if this machine does not trace them. */
static long flushes(char *p, const struct iovec *vec, bool vector)
{
	struct trace_session trace;
	const char *pos;
	char line[256];
	long n = 0, i;

	fill_pages(p, PIECES * 4 * page_size(), TAG);
	if (trace_start(&trace, "tlb"))
		return -1;
	if (vector)
		advise_vector(vec, PIECES, MADV_DONTNEED);
	for (i = 0; !vector && i < PIECES; i++)
		madvise(vec[i].iov_base, vec[i].iov_len, MADV_DONTNEED);
	trace_stop(&trace);
	for (pos = trace.text;
	     (pos = trace_next(pos, "tlb_flush", line, sizeof(line)));)
		n += !!strstr(line, "local mm shootdown");
	trace_free(&trace);
	return n;
}

TEST_F_TIMEOUT(vector, flushes_once, TIMEOUT)
{
	char *p = map_filled(PIECES * 4 * page_size(), TAG);
	struct iovec vec[PIECES];
	long one_by_one, vector;

	ASSERT_NE(NULL, p);
	make_vector(p, vec);
	one_by_one = flushes(p, vec, false);
	if (one_by_one < PIECES)
		SKIP(return, "TLB flushes are not traced here");
	vector = flushes(p, vec, true);
	ksft_print_msg("%ld flushes one by one, %ld by a vector\n", one_by_one,
		       vector);
	EXPECT_LT(0, vector);
	/* Others on this machine flush, too. */
	EXPECT_GT(PIECES / 8, vector);
}

/* --- calls that are left to upstream */

TEST_F_TIMEOUT(madvise, bad_arguments, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(EINVAL, advise(p + 1, BIG, MADV_DONTNEED));
	/* Rounded up, 0; and wraps around. */
	EXPECT_EQ(EINVAL, advise(p, (size_t)-1, MADV_DONTNEED));
	EXPECT_EQ(EINVAL, advise(p, -page_size(), MADV_DONTNEED));
	EXPECT_EQ(0, advise(p, 0, MADV_DONTNEED));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_sections(_metadata, &self->s, 0, 0);
}

TEST_F_TIMEOUT(madvise, short_range, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);
	size_t len = pmd_size() - page_size();

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, advise(p, len, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, len));
	expect_sections(_metadata, &self->s, 0, 0);
}

TEST_F_TIMEOUT(madvise, single_threaded, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	ASSERT_NE(NULL, p);
	idle_thread_stop(&self->s.idle);
	/* The end of a thread advises its stack. */
	self->s.before = counters_read("madvise_section_");
	EXPECT_EQ(0, advise(p, BIG, MADV_DONTNEED));
	EXPECT_EQ(0, filled_pages(p, BIG));
	expect_sections(_metadata, &self->s, 0, 0);
}

/* --- userfaultfd */

/* One event for the VMA, for which upstream waits without mmap_lock. */
TEST_F_TIMEOUT(madvise, uffd_remove_event, TIMEOUT)
{
	struct uffd_reader r = { .event = UFFD_EVENT_REMOVE };
	char *p;

	r.fd = uffd_open(UFFD_FEATURE_EVENT_REMOVE, NULL);
	if (r.fd < 0)
		SKIP(return, "no userfaultfd remove event");
	p = map_filled(2 * BIG, TAG);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, uffd_register(r.fd, p + BIG, BIG,
				   UFFDIO_REGISTER_MODE_MISSING));
	ASSERT_EQ(0, uffd_reader_start(&r));
	EXPECT_EQ(0, advise(p, 2 * BIG, MADV_DONTNEED));
	EXPECT_EQ(0, smaps_kb(p, 2 * BIG, "Rss"));
	expect_sections(_metadata, &self->s, 1, 1);
	uffd_reader_stop(&r);
	EXPECT_EQ(1, r.awaited);
	EXPECT_EQ((uintptr_t)p + BIG, r.start);
	EXPECT_EQ((uintptr_t)p + 2 * BIG, r.end);
	close(r.fd);
}

/* Write protection of a file's pages outlives MADV_DONTNEED. */
TEST_F_TIMEOUT(madvise, uffd_wp_markers, TIMEOUT)
{
	int memfd, fd;
	__u64 got = 0;
	char *p;

	fd = uffd_open(0, &got);
	if (fd < 0 || !(got & UFFD_FEATURE_WP_HUGETLBFS_SHMEM))
		SKIP(return, "no userfaultfd write protection of files");
	memfd = memfd_create("madvise", MFD_CLOEXEC);
	ASSERT_LE(0, memfd);
	ASSERT_EQ(0, ftruncate(memfd, BIG));
	p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	ASSERT_NE(MAP_FAILED, p);
	fill_pages(p, BIG, TAG);
	ASSERT_EQ(0, uffd_register(fd, p, BIG, UFFDIO_REGISTER_MODE_WP));
	ASSERT_EQ(0, uffd_protect(fd, p, BIG, true));
	EXPECT_EQ(0, advise(p, BIG, MADV_DONTNEED));
	EXPECT_EQ(BIG / page_size(), uffd_protected(p, BIG));
	expect_sections(_metadata, &self->s, 1, 0);
	close(fd);
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
}

int main(int argc, char **argv)
{
	return vm_knob_kept(&madvise_knob, test_harness_run, argc, argv);
}
