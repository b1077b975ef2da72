// SPDX-License-Identifier: GPL-2.0-only
/*
 * vm.hugetlb_zero_ahead: the semantics of huge page faults with the switch off
 * and on, and the counters.
 *
 * The tests hold on every kernel; the effects of the switch are only checked
 * where the kernel has it.  They want the pool for themselves: nobody else may
 * use huge pages meanwhile.
 *
 * Variants: PMD-sized pages, and pages of 1 GiB where the machine has reserved
 * one (hugepagesz=1G hugepages=1 on the kernel command line).
 */
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/uio.h>

#include "../../kselftest_harness.h"
#include "hugetlb_zero_util.h"

#define TIMEOUT		300
/* Of PMD-sized pages. */
#define POOL		8
/* A test that waits for an event gives up after this time, in ns. */
#define LAST_NS		(120 * 1000000000ULL)

FIXTURE(zero) {
	bool have;		/* the kernel has the switch */
	bool ready;		/* the test runs */
	size_t page;
	long n;			/* pages in the pool */
	struct pool pool;
	struct counters before;
	struct rendezvous *meet;
};

FIXTURE_VARIANT(zero) {
	long value;
	bool giant;
};

FIXTURE_VARIANT_ADD(zero, off) { .value = 0 };
FIXTURE_VARIANT_ADD(zero, on) { .value = 1 };
FIXTURE_VARIANT_ADD(zero, giant_off) { .value = 0, .giant = true };
FIXTURE_VARIANT_ADD(zero, giant_on) { .value = 1, .giant = true };

/* NULL, or the reason why there are no pages for the test. */
static const char *pool_get(FIXTURE_DATA(zero) *self, bool giant)
{
	self->page = giant ? GIB : pmd_size();
	self->n = giant ? 1 : POOL;
	if (hugetlb_sysfs_of(self->page, "nr_hugepages") < 0)
		return "this machine has no huge pages of this size";
	if (hugetlb_sysfs_of(self->page, "nr_hugepages") != self->n)
		hugetlb_sysfs_set(self->page, "nr_hugepages", self->n);
	self->pool = pool_read(self->page);
	if (self->pool.total != self->n)
		return giant ? "no page of 1 GiB: boot with hugepagesz=1G hugepages=1" :
			       "needs root and memory for huge pages";
	if (self->pool.free != self->n || self->pool.reserved ||
	    self->pool.surplus)
		return "somebody else uses huge pages";
	return NULL;
}

FIXTURE_SETUP(zero)
{
	const char *why = vm_knob_set(&zero_knob, variant->value);

	if (!why)
		why = pool_get(self, variant->giant);
	if (why)
		SKIP(return, "%s", why);
	self->ready = true;
	self->have = vm_sysctl_exists(ZERO_KNOB);
	self->meet = map_shared(sizeof(*self->meet));
	ASSERT_NE(NULL, self->meet);
	self->before = counters_read("hugetlb_");
}

/* Every test unmaps what it has mapped. */
FIXTURE_TEARDOWN(zero)
{
	if (self->ready)
		EXPECT_TRUE(pool_returns(self->page, &self->pool));
}

/* Maps pages of the pool for itself. */
static char *map_some(const FIXTURE_DATA(zero) *self, size_t n)
{
	return map_pages(self->page, n, 0);
}

static void unmap(struct __test_metadata *_metadata,
		  const FIXTURE_DATA(zero) *self, char *p, size_t n)
{
	EXPECT_EQ(0, munmap(p, n * self->page));
}

/* Faults on a page: all of it is zero, but for the word that it writes. */
static void expect_fresh(struct __test_metadata *_metadata,
			 const FIXTURE_DATA(zero) *self, char *page, size_t nth)
{
	char *word = word_of(page, self->page, nth % words_of(self->page));

	word_write(word, 1);
	EXPECT_EQ(1, page_dirty(page, self->page));
	word_write(word, 0);
}

/*
 * @n faults took a page of the pool since the test began.  A page that was
 * cleared for a fault that did not take it is not cleared again.
 */
static void expect_used(struct __test_metadata *_metadata,
			FIXTURE_DATA(zero) *self,
			const FIXTURE_VARIANT(zero) *variant, long n)
{
	struct counters d = counters_since(&self->before);

	if (!self->have)
		return;
	EXPECT_EQ(variant->value * n, counter(&d, "zeroed_used"));
	EXPECT_EQ(0, counter(&d, "zeroed_late"));
	EXPECT_LE(counter(&d, "zeroed"), variant->value * n);
}

/* The counts of the pool while a fault has a page that it does not give back. */
static void expect_pool(struct __test_metadata *_metadata,
			const FIXTURE_DATA(zero) *self, long used,
			long reserved)
{
	struct pool now = pool_read(self->page);

	EXPECT_EQ(self->n, now.total);
	EXPECT_EQ(self->n - used, now.free);
	EXPECT_EQ(reserved, now.reserved);
	EXPECT_EQ(0, now.surplus);
}

/* Every free page reads as zero when it is used next. */
static void expect_clean_pool(struct __test_metadata *_metadata,
			      const FIXTURE_DATA(zero) *self)
{
	char *p = map_some(self, self->n);
	long i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < self->n; i++)
		expect_fresh(_metadata, self, p + i * self->page, 7 * i);
	unmap(_metadata, self, p, self->n);
}

/* --- new pages */

/* Memory that was used before: by this mapping, by another one. */
TEST_F_TIMEOUT(zero, private, TIMEOUT)
{
	char *p;
	int round;
	long i;

	for (round = 0; round < 3; round++) {
		p = map_some(self, self->n);
		ASSERT_NE(NULL, p);
		for (i = 0; i < self->n; i++) {
			expect_fresh(_metadata, self, p + i * self->page, i);
			expect_pool(_metadata, self, i + 1, self->n - i - 1);
			page_fill(p + i * self->page, self->page, ZERO_TAG + i);
		}
		ASSERT_EQ(0, madvise(p, self->n * self->page, MADV_DONTNEED));
		for (i = 0; i < self->n; i++)
			expect_fresh(_metadata, self, p + i * self->page, ~i);
		page_fill(p, self->page, ZERO_TAG);
		unmap(_metadata, self, p, self->n);
	}
	expect_used(_metadata, self, variant, 6 * self->n);
}

/* There is no huge zero page of hugetlb: a read takes a page, too. */
TEST_F_TIMEOUT(zero, read, TIMEOUT)
{
	char *p = map_some(self, self->n);
	long i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < self->n; i++) {
		EXPECT_EQ(0, page_dirty(p + i * self->page, self->page));
		expect_pool(_metadata, self, i + 1, self->n - i - 1);
	}
	for (i = 0; i < self->n; i++)
		word_write(p + i * self->page, 1);
	unmap(_metadata, self, p, self->n);
	expect_used(_metadata, self, variant, self->n);
}

/* In every mode of page table sharing, which has paths of its own. */
TEST_F_TIMEOUT(zero, file, TIMEOUT)
{
	long mode, last = vm_sysctl_exists(HUGETLB_KNOB) ? 2 : 0;
	size_t len = self->n * self->page;
	long i, rounds = 0, kept = 0;
	char *p;
	int fd;

	vm_sysctl_read(HUGETLB_KNOB, &kept);
	for (mode = 0; mode <= last; mode++) {
		if (last && vm_sysctl_write(HUGETLB_KNOB, mode))
			continue;
		fd = file_of(self->page, self->n);
		ASSERT_LE(0, fd);
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		ASSERT_NE(MAP_FAILED, p);
		for (i = 0; i < self->n; i++) {
			expect_fresh(_metadata, self, p + i * self->page, i);
			page_fill(p + i * self->page, self->page, ZERO_TAG + i);
		}
		ASSERT_TRUE(hugetlb_punch(fd, 0, len));
		for (i = 0; i < self->n; i++)
			expect_fresh(_metadata, self, p + i * self->page, ~i);
		page_fill(p, self->page, ZERO_TAG);
		ASSERT_EQ(0, munmap(p, len));
		close(fd);
		rounds++;
	}
	if (last)
		vm_sysctl_write(HUGETLB_KNOB, kept);
	expect_used(_metadata, self, variant, 2 * rounds * self->n);
}

/* A private mapping of a hole of a file. */
TEST_F_TIMEOUT(zero, hole, TIMEOUT)
{
	int fd = file_of(self->page, 1);
	char *p;

	ASSERT_LE(0, fd);
	p = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	expect_fresh(_metadata, self, p, 3);
	page_fill(p, self->page, ZERO_TAG);
	unmap(_metadata, self, p, 1);
	close(fd);
	expect_used(_metadata, self, variant, 1);
	expect_clean_pool(_metadata, self);
}

/* A page that nobody has reserved, and none when there is none. */
TEST_F_TIMEOUT(zero, noreserve, TIMEOUT)
{
	char *p = map_pages(self->page, self->n + 1, MAP_NORESERVE), *q;
	long i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < self->n; i++)
		expect_fresh(_metadata, self, p + i * self->page, i);
	EXPECT_EQ(SIGBUS, access_signal(p + i * self->page, true, NULL));
	expect_pool(_metadata, self, self->n, 0);
	ASSERT_EQ(0, madvise(p, self->n * self->page, MADV_DONTNEED));
	expect_used(_metadata, self, variant, self->n);
	/* All pages are free, but promised. */
	q = map_some(self, self->n);
	ASSERT_NE(NULL, q);
	self->before = counters_read("hugetlb_");
	EXPECT_EQ(SIGBUS, access_signal(p, true, NULL));
	EXPECT_EQ(SIGBUS, access_signal(p, false, NULL));
	expect_pool(_metadata, self, 0, self->n);
	if (self->have) {
		EXPECT_EQ(0, counted(&self->before, "zeroed_used"));
		/* Once, for whoever comes next. */
		EXPECT_GE(variant->value, counted(&self->before, "zeroed"));
	}
	for (i = 0; i < self->n; i++)
		expect_fresh(_metadata, self, q + i * self->page, i);
	unmap(_metadata, self, q, self->n);
	unmap(_metadata, self, p, self->n + 1);
}

/* Faults of system calls, and those of get_user_pages(). */
TEST_F_TIMEOUT(zero, system_calls, TIMEOUT)
{
	char *p = map_some(self, self->n), byte = 7;
	struct iovec local = { &byte, 1 }, remote;
	struct counters d;
	int pipes[2];
	long i;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, pipe(pipes));
	for (i = 0; i < self->n; i++) {
		char *page = p + i * self->page;

		remote = (struct iovec) { page + 9, 1 };
		if (i % 2) {
			ASSERT_EQ(1, process_vm_writev(getpid(), &local, 1,
						       &remote, 1, 0));
		} else {
			ASSERT_EQ(1, write(pipes[1], &byte, 1));
			ASSERT_EQ(1, read(pipes[0], page + 9, 1));
		}
		EXPECT_EQ(7, page[9]);
		page[9] = 0;
		EXPECT_EQ(0, page_dirty(page, self->page));
	}
	unmap(_metadata, self, p, self->n);
	close(pipes[0]);
	close(pipes[1]);
	d = counters_since(&self->before);
	if (self->have)
		EXPECT_EQ(variant->value * self->n,
			  counter(&d, "zeroed_used") +
			  counter(&d, "zeroed_late"));
}

/* --- faults that need no cleared page */

/* A page that is in the file already. */
TEST_F_TIMEOUT(zero, cached, TIMEOUT)
{
	int fd = file_of(self->page, 1);
	char *p, *q;

	ASSERT_LE(0, fd);
	p = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	page_fill(p, self->page, ZERO_TAG);
	expect_used(_metadata, self, variant, 1);
	q = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, q);
	EXPECT_EQ(0, page_wrong(q, self->page, ZERO_TAG));
	unmap(_metadata, self, q, 1);
	ASSERT_EQ(0, madvise(p, self->page, MADV_DONTNEED));
	EXPECT_EQ(0, page_wrong(p, self->page, ZERO_TAG));
	expect_used(_metadata, self, variant, 1);
	if (self->have)
		EXPECT_LE(counted(&self->before, "zeroed"), 1);
	unmap(_metadata, self, p, 1);
	close(fd);
}

/* A private copy of a page of a file, and one of a page shared with a child. */
TEST_F_TIMEOUT(zero, copy, TIMEOUT)
{
	struct rendezvous *m = self->meet;
	int fd;
	char *p, *q;
	pid_t pid;

	if (self->n < 3)
		SKIP(return, "needs three pages");
	fd = file_of(self->page, 1);
	ASSERT_LE(0, fd);
	p = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	page_fill(p, self->page, ZERO_TAG);
	q = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, q);
	self->before = counters_read("hugetlb_");
	word_write(q, page_word(ZERO_TAG, 0));
	EXPECT_EQ(0, page_wrong(q, self->page, ZERO_TAG));
	word_write(q, 1);
	EXPECT_EQ(0, page_wrong(p, self->page, ZERO_TAG));
	word_write(q, page_word(ZERO_TAG, 0));
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		word_write(q + 8, 5);
		meet(m, 1);
		wait_for(m, 2);
		_exit(page_wrong(q, self->page, ZERO_TAG) ||
		      word_read(q + 8) != 5);
	}
	wait_for(m, 1);
	EXPECT_EQ(0, page_wrong(q, self->page, ZERO_TAG));
	EXPECT_EQ(0, word_read(q + 8));
	page_fill(q, self->page, ZERO_TAG + 1);
	meet(m, 2);
	EXPECT_EQ(0, reap(pid));
	/* Nothing is cleared for a page that is going to be overwritten. */
	if (self->have) {
		EXPECT_EQ(0, counted(&self->before, "zeroed"));
		EXPECT_EQ(0, counted(&self->before, "zeroed_late"));
	}
	unmap(_metadata, self, q, 1);
	unmap(_metadata, self, p, 1);
	close(fd);
	expect_clean_pool(_metadata, self);
}

/* A child has no reservation, and its pages are zero all the same. */
TEST_F_TIMEOUT(zero, child, TIMEOUT)
{
	char *p;
	pid_t pid;

	if (self->n < 4)
		SKIP(return, "needs four pages");
	p = map_some(self, 2);
	ASSERT_NE(NULL, p);
	page_fill(p, self->page, ZERO_TAG);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		/* The second page is nobody's yet. */
		word_write(p + self->page, 1);
		_exit(page_dirty(p + self->page, self->page) != 1 ||
		      page_wrong(p, self->page, ZERO_TAG));
	}
	EXPECT_EQ(0, reap(pid));
	expect_fresh(_metadata, self, p + self->page, 5);
	EXPECT_EQ(0, page_wrong(p, self->page, ZERO_TAG));
	unmap(_metadata, self, p, 2);
	expect_used(_metadata, self, variant, 3);
}

static void *touch_page(void *page)
{
	return (void *)(uintptr_t)word_read(page);
}

/* A fault that userspace handles is delivered to it, and clears nothing. */
TEST_F_TIMEOUT(zero, userfaultfd, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_MISSING_HUGETLBFS, NULL);
	struct pollfd ready = { .fd = uffd, .events = POLLIN };
	struct uffdio_copy copy = {};
	struct uffd_msg msg = {};
	pthread_t thread;
	char *p, *page;
	void *got;

	if (uffd < 0)
		SKIP(return, "no userfaultfd");
	if (variant->giant)
		SKIP(return, "not for as much as 1 GiB of source pages");
	p = map_some(self, 2);
	ASSERT_NE(NULL, p);
	page = map_fresh(self->page);
	ASSERT_NE(NULL, page);
	page_fill(page, self->page, ZERO_TAG);
	ASSERT_EQ(0, uffd_register(uffd, p, 2 * self->page,
				   UFFDIO_REGISTER_MODE_MISSING));
	ASSERT_EQ(0, pthread_create(&thread, NULL, touch_page, p));
	ASSERT_EQ(1, poll(&ready, 1, 60000));
	ASSERT_EQ((ssize_t)sizeof(msg), read(uffd, &msg, sizeof(msg)));
	EXPECT_EQ(UFFD_EVENT_PAGEFAULT, msg.event);
	if (self->have)
		EXPECT_EQ(0, counted(&self->before, "zeroed"));
	expect_pool(_metadata, self, 0, 2);
	copy.dst = (uintptr_t)p;
	copy.src = (uintptr_t)page;
	copy.len = self->page;
	EXPECT_EQ(0, ioctl(uffd, UFFDIO_COPY, &copy));
	ASSERT_EQ(0, pthread_join(thread, &got));
	EXPECT_EQ((uintptr_t)page_word(ZERO_TAG, 0), (uintptr_t)got);
	EXPECT_EQ(0, page_wrong(p, self->page, ZERO_TAG));
	ASSERT_EQ(0, uffd_unregister(uffd, p, 2 * self->page));
	expect_fresh(_metadata, self, p + self->page, 1);
	expect_used(_metadata, self, variant, 1);
	close(uffd);
	ASSERT_EQ(0, munmap(page, self->page));
	unmap(_metadata, self, p, 2);
	expect_clean_pool(_metadata, self);
}

/* --- limits */

/* A file of the hugetlb controller, as "hugetlb.2MB.max". */
static void limit_file(char *file, size_t size, size_t page, const char *what)
{
	snprintf(file, size, "hugetlb.%zu%s.%s",
		 page < GIB ? page / MIB : page / GIB, page < GIB ? "MB" : "GB",
		 what);
}

static bool limit_set(const struct memory_group *g, size_t page, long pages)
{
	char file[48], text[32];

	limit_file(file, sizeof(file), page, "max");
	snprintf(text, sizeof(text), "%zu", pages * page);
	return !memory_group_write(g, file, text);
}

static long limit_used(const struct memory_group *g, size_t page)
{
	char file[48], path[192], text[32];

	limit_file(file, sizeof(file), page, "current");
	snprintf(path, sizeof(path), "%s/%s", g->dir, file);
	return read_text(path, text, sizeof(text)) ? -1 : atol(text) / (long)page;
}

/*
 * In a group of which no process may have a page more: the page that is cleared
 * for a fault stays in the pool, and is charged to nobody.
 */
TEST_F_TIMEOUT(zero, limit, TIMEOUT)
{
	long i, allowed = self->n / 4;
	struct memory_group g;
	char *p;

	if (!control_group_enter(&g, "hugetlb"))
		SKIP(return, "no hugetlb cgroup");
	ASSERT_TRUE(limit_set(&g, self->page, allowed));
	p = map_some(self, self->n);
	ASSERT_NE(NULL, p);
	for (i = 0; i < allowed; i++) {
		expect_fresh(_metadata, self, p + i * self->page, i);
		EXPECT_EQ(i + 1, limit_used(&g, self->page));
	}
	for (i = 0; i < 3; i++)
		EXPECT_EQ(SIGBUS, access_signal(p + allowed * self->page, i % 2,
						NULL));
	EXPECT_EQ(allowed, limit_used(&g, self->page));
	expect_pool(_metadata, self, allowed, self->n - allowed);
	if (self->have) {
		EXPECT_EQ(variant->value * allowed,
			  counted(&self->before, "zeroed_used"));
		/* Once, not in each attempt. */
		EXPECT_LE(counted(&self->before, "zeroed"), allowed + 1);
	}
	ASSERT_TRUE(limit_set(&g, self->page, self->n));
	for (i = allowed; i < self->n; i++)
		expect_fresh(_metadata, self, p + i * self->page, i);
	EXPECT_EQ(self->n, limit_used(&g, self->page));
	unmap(_metadata, self, p, self->n);
	EXPECT_EQ(0, limit_used(&g, self->page));
	memory_group_leave(&g);
	expect_used(_metadata, self, variant, self->n);
}

/* Leaves a page in the pool that was cleared, but not used.  False: cannot. */
static bool leave_cleared(const FIXTURE_DATA(zero) *self)
{
	struct memory_group g;
	char *p;
	int sig;

	if (!control_group_enter(&g, "hugetlb"))
		return false;
	limit_set(&g, self->page, 0);
	p = map_pages(self->page, 1, MAP_NORESERVE);
	sig = p ? access_signal(p, true, NULL) : 0;
	if (p)
		munmap(p, self->page);
	memory_group_leave(&g);
	return sig == SIGBUS;
}

/* Those that use a page without clearing it, and write to it. */
static bool use_copied(const FIXTURE_DATA(zero) *self)
{
	int fd = file_of(self->page, 1);
	char *p = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		       0), *q;
	bool done;

	q = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED || q == MAP_FAILED)
		return false;
	page_fill(p, self->page, ZERO_TAG);
	word_read(q);
	/* Meanwhile the next page is one that is cleared. */
	done = leave_cleared(self);
	word_write(q, page_word(ZERO_TAG, 0));
	done &= !page_wrong(q, self->page, ZERO_TAG);
	return !munmap(q, self->page) && !munmap(p, self->page) && !close(fd) &&
	       done;
}

static bool use_allocated(const FIXTURE_DATA(zero) *self)
{
	int fd = file_of(self->page, 1);
	bool done = leave_cleared(self) &&
		    !fallocate(fd, 0, 0, self->page);
	char *p = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		       0);

	if (p == MAP_FAILED)
		return false;
	done &= !page_dirty(p, self->page);
	page_fill(p, self->page, ZERO_TAG);
	return !munmap(p, self->page) && !close(fd) && done;
}

static bool use_filled(const FIXTURE_DATA(zero) *self)
{
	int uffd = uffd_open(UFFD_FEATURE_MISSING_HUGETLBFS, NULL);
	struct uffdio_copy copy = { .len = self->page };
	char *p = map_pages(self->page, 1, 0), *from = map_fresh(self->page);
	bool done;

	if (uffd < 0)
		return !munmap(p, self->page);
	page_fill(from, self->page, ZERO_TAG);
	done = leave_cleared(self) &&
	       !uffd_register(uffd, p, self->page, UFFDIO_REGISTER_MODE_MISSING);
	copy.dst = (uintptr_t)p;
	copy.src = (uintptr_t)from;
	done &= !ioctl(uffd, UFFDIO_COPY, &copy) &&
		!page_wrong(p, self->page, ZERO_TAG);
	close(uffd);
	return !munmap(from, self->page) && !munmap(p, self->page) && done;
}

static bool use_migrated(const FIXTURE_DATA(zero) *self)
{
	char *p = map_pages(self->page, 1, 0);
	int node, status = 0;
	void *page = p;
	bool done;

	page_fill(p, self->page, ZERO_TAG);
	done = leave_cleared(self);
	node = !node_of(p);
	/* Without another node, it stays. */
	syscall(SYS_move_pages, 0, 1UL, &page, &node, &status, MPOL_MF_MOVE);
	done &= !page_wrong(p, self->page, ZERO_TAG);
	return !munmap(p, self->page) && done;
}

/* A page is known to be zero only as long as it is in the pool. */
TEST_F_TIMEOUT(zero, used_otherwise, TIMEOUT)
{
	bool (*const uses[])(const FIXTURE_DATA(zero) *self) = {
		use_copied, use_allocated, use_filled, use_migrated,
	};
	size_t i, round;

	if (variant->giant)
		SKIP(return, "needs several pages");
	if (!leave_cleared(self))
		SKIP(return, "no hugetlb cgroup");
	for (i = 0; i < ARRAY_SIZE(uses); i++) {
		for (round = 0; round < 3; round++) {
			EXPECT_TRUE(uses[i](self)) {
				TH_LOG("use %zu", i);
			}
		}
		expect_clean_pool(_metadata, self);
	}
}

/* --- pools that are used to the last page */

#define EXACT_THREADS	4

struct exact {
	const FIXTURE_DATA(zero) *self;
	char *p;
	int id;
	long rounds;
	atomic_long *started, *done;
	atomic_long *wrong;
};

static void *fault_exactly(void *arg)
{
	struct exact *e = arg;
	size_t page = e->self->page;
	long round, i;

	for (round = 0; round < e->rounds; round++) {
		for (i = e->id; i < e->self->n; i += EXACT_THREADS) {
			char *p = e->p + i * page;

			atomic_fetch_add(e->started, 1);
			word_write(p, 1);
			atomic_fetch_add(e->done, 1);
			if (page_dirty(p, page) != 1)
				atomic_fetch_add(e->wrong, 1);
			page_fill(p, page, ZERO_TAG + i);
		}
		if (round + 1 == e->rounds)
			break;
		for (i = e->id; i < e->self->n; i += EXACT_THREADS)
			if (page_wrong(e->p + i * page, page, ZERO_TAG + i) ||
			    madvise(e->p + i * page, page, MADV_DONTNEED))
				atomic_fetch_add(e->wrong, 1);
	}
	return NULL;
}

/* Many threads, and not a page more than they have reserved. */
TEST_F_TIMEOUT(zero, exact, TIMEOUT)
{
	atomic_long started = 0, done = 0, wrong = 0;
	struct exact e[EXACT_THREADS];
	pthread_t threads[EXACT_THREADS];
	long rounds = variant->giant ? 2 : 20;
	char *p = map_some(self, self->n);
	struct counters d;
	int i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < EXACT_THREADS; i++) {
		e[i] = (struct exact) {
			self, p, i, rounds, &started, &done, &wrong
		};
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, fault_exactly,
					    &e[i]));
	}
	for (i = 0; i < EXACT_THREADS; i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQ(0, atomic_load(&wrong));
	EXPECT_EQ(rounds * self->n, atomic_load(&done));
	expect_pool(_metadata, self, self->n, 0);
	unmap(_metadata, self, p, self->n);
	d = counters_since(&self->before);
	if (self->have)
		EXPECT_EQ(variant->value * rounds * self->n,
			  counter(&d, "zeroed_used") +
			  counter(&d, "zeroed_late"));
}

/*
 * A free page that is being cleared is free: at any time, the counts of the pool,
 * of its nodes and of the group are those of the faults so far.
 */
TEST_F_TIMEOUT(zero, counts, TIMEOUT)
{
	atomic_long started = 0, done = 0, wrong = 0;
	struct exact e[EXACT_THREADS];
	pthread_t threads[EXACT_THREADS];
	bool two = node_pool(1, self->page, "free_hugepages") >= 0;
	long least, most, samples = 0, seen;
	struct memory_group g;
	struct pool now;
	bool grouped;
	char *p;
	int i;

	grouped = control_group_enter(&g, "hugetlb");
	p = map_some(self, self->n);
	ASSERT_NE(NULL, p);
	for (i = 0; i < EXACT_THREADS; i++) {
		e[i] = (struct exact) {
			self, p, i, 1, &started, &done, &wrong
		};
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, fault_exactly,
					    &e[i]));
	}
	do {
		least = atomic_load(&done);
		now = pool_read(self->page);
		seen = grouped ? limit_used(&g, self->page) : least;
		most = atomic_load(&started);
		EXPECT_EQ(self->n, now.total);
		EXPECT_LE(self->n - most, now.free);
		EXPECT_GE(self->n - least, now.free);
		EXPECT_LE(self->n - most, now.reserved);
		EXPECT_GE(self->n - least, now.reserved);
		EXPECT_EQ(0, now.surplus);
		EXPECT_LE(least, seen);
		EXPECT_GE(most, seen);
		least = atomic_load(&done);
		seen = node_pool(0, self->page, "free_hugepages") +
		       (two ? node_pool(1, self->page, "free_hugepages") : 0);
		most = atomic_load(&started);
		EXPECT_LE(self->n - most, seen);
		EXPECT_GE(self->n - least, seen);
		samples++;
	} while (least < self->n);
	for (i = 0; i < EXACT_THREADS; i++)
		pthread_join(threads[i], NULL);
	TH_LOG("%ld samples", samples);
	EXPECT_EQ(0, atomic_load(&wrong));
	unmap(_metadata, self, p, self->n);
	if (grouped)
		memory_group_leave(&g);
}

/* --- nodes; use numa=fake=2 to have two */

TEST_F_TIMEOUT(zero, nodes, TIMEOUT)
{
	unsigned long mask;
	char *p;
	long i;
	int node;

	if (node_pool(1, self->page, "nr_hugepages") < 0)
		SKIP(return, "needs a second node, see numa=fake");
	if (variant->giant)
		SKIP(return, "needs pages on both nodes");
	for (node = 0; node < 2; node++)
		if (node_pool_set(node, self->page, POOL / 2) ||
		    node_pool(node, self->page, "free_hugepages") != POOL / 2)
			SKIP(return, "not enough memory on node %d", node);
	for (node = 0; node < 2; node++) {
		p = map_some(self, POOL / 2);
		ASSERT_NE(NULL, p);
		mask = 1UL << node;
		ASSERT_EQ(0, syscall(SYS_mbind, p, POOL / 2 * self->page,
				     MPOL_BIND, &mask, 8 * sizeof(mask), 0));
		for (i = 0; i < POOL / 2; i++) {
			expect_fresh(_metadata, self, p + i * self->page, i);
			EXPECT_EQ(node, node_of(p + i * self->page));
			EXPECT_EQ(POOL / 2 - 1 - i,
				  node_pool(node, self->page,
					    "free_hugepages"));
			EXPECT_EQ(POOL / 2, node_pool(!node, self->page,
						      "free_hugepages"));
			page_fill(p + i * self->page, self->page, ZERO_TAG);
		}
		unmap(_metadata, self, p, POOL / 2);
	}
	expect_used(_metadata, self, variant, POOL);
	/* Bound to a node whose pages are all in use: nothing is cleared. */
	p = map_some(self, POOL / 2);
	ASSERT_NE(NULL, p);
	mask = 1;
	ASSERT_EQ(0, syscall(SYS_mbind, p, POOL / 2 * self->page, MPOL_BIND,
			     &mask, 8 * sizeof(mask), 0));
	for (i = 0; i < POOL / 2; i++)
		word_write(p + i * self->page, 1);
	self->before = counters_read("hugetlb_");
	{
		char *q = map_pages(self->page, 1, MAP_NORESERVE);

		ASSERT_NE(NULL, q);
		ASSERT_EQ(0, syscall(SYS_mbind, q, self->page, MPOL_BIND, &mask,
				     8 * sizeof(mask), 0));
		EXPECT_EQ(SIGBUS, access_signal(q, true, NULL));
		unmap(_metadata, self, q, 1);
	}
	if (self->have)
		EXPECT_EQ(0, counted(&self->before, "zeroed"));
	unmap(_metadata, self, p, POOL / 2);
}

/* --- pools that change */

struct looper {
	const FIXTURE_DATA(zero) *self;
	char *p;
	atomic_long begun, ended;
	atomic_long wrong;
	atomic_long signals;
	atomic_bool stop;
	pthread_t thread;
};

/* Faults on one page again and again. */
static void *fault_again(void *arg)
{
	struct looper *l = arg;
	int sig;

	catch_faults();
	while (!atomic_load(&l->stop)) {
		atomic_fetch_add(&l->begun, 1);
		sig = try_write(l->p, 1);
		atomic_fetch_add(&l->ended, 1);
		if (sig) {
			/* No page, although one is reserved. */
			atomic_fetch_add(&l->signals, 1);
			break;
		}
		if (page_dirty(l->p, l->self->page) != 1)
			atomic_fetch_add(&l->wrong, 1);
		page_fill(l->p, l->self->page, ZERO_TAG);
		if (madvise(l->p, l->self->page, MADV_DONTNEED))
			atomic_fetch_add(&l->wrong, 1);
	}
	return NULL;
}

/* Waits for the first fault: where CPUs take turns, that may be late. */
static bool loop_start(struct __test_metadata *_metadata, struct looper *l,
		       const FIXTURE_DATA(zero) *self)
{
	__u64 until = now_ns() + LAST_NS;

	*l = (struct looper) { .self = self, .p = map_some(self, 1) };
	if (!l->p || pthread_create(&l->thread, NULL, fault_again, l))
		return false;
	while (!atomic_load(&l->ended) && now_ns() < until)
		usleep(100);
	if (!atomic_load(&l->ended))
		TH_LOG("the thread that faults has not ended its first fault");
	return atomic_load(&l->ended);
}

static void loop_stop(struct __test_metadata *_metadata, struct looper *l)
{
	atomic_store(&l->stop, true);
	pthread_join(l->thread, NULL);
	TH_LOG("%ld faults", atomic_load(&l->ended));
	EXPECT_EQ(0, atomic_load(&l->wrong));
	EXPECT_EQ(0, atomic_load(&l->signals));
	EXPECT_LT(0, atomic_load(&l->ended));
	unmap(_metadata, l->self, l->p, 1);
}

/* The pool gets smaller than it is, down to the page that is reserved. */
TEST_F_TIMEOUT(zero, resized, TIMEOUT)
{
	struct looper l;
	int round;

	if (variant->giant)
		SKIP(return, "the pool has one page only");
	ASSERT_TRUE(loop_start(_metadata, &l, self));
	for (round = 0; round < 30; round++) {
		long faults = atomic_load(&l.ended);
		__u64 until = now_ns() + LAST_NS;

		ASSERT_EQ(0, hugetlb_pool_set(1 + round % 2));
		EXPECT_EQ(1 + round % 2, hugetlb_sysfs("nr_hugepages"));
		EXPECT_EQ(0, hugetlb_sysfs("surplus_hugepages"));
		while (atomic_load(&l.ended) == faults && now_ns() < until)
			usleep(100);
		EXPECT_LT(faults, atomic_load(&l.ended)) {
			TH_LOG("no fault after a change of the pool");
		}
		ASSERT_EQ(0, hugetlb_pool_set(POOL));
		EXPECT_EQ(POOL, hugetlb_sysfs("nr_hugepages"));
	}
	loop_stop(_metadata, &l);
}

/* A page of 1 GiB, dirty or cleared for nobody, becomes many small ones. */
TEST_F_TIMEOUT(zero, demoted, TIMEOUT)
{
	long small = hugetlb_sysfs("nr_hugepages"), pieces, i;
	char *p;

	if (!variant->giant)
		SKIP(return, "there are no smaller huge pages");
	if (access("/sys/kernel/mm/hugepages/hugepages-1048576kB/demote", W_OK))
		SKIP(return, "no demotion");
	p = map_some(self, 1);
	ASSERT_NE(NULL, p);
	page_fill(p, self->page, ZERO_TAG);
	unmap(_metadata, self, p, 1);
	leave_cleared(self);
	if (self->have)
		EXPECT_EQ(variant->value, counted(&self->before, "zeroed_used"));
	ASSERT_EQ(0, hugetlb_sysfs_set(self->page, "demote", 1));
	EXPECT_EQ(0, hugetlb_sysfs_of(self->page, "nr_hugepages"));
	pieces = hugetlb_sysfs("nr_hugepages") - small;
	EXPECT_EQ((long)(self->page / pmd_size()), pieces);
	p = map_pages(pmd_size(), pieces, 0);
	ASSERT_NE(NULL, p);
	for (i = 0; i < pieces; i++) {
		word_write(p + i * pmd_size(), 1);
		EXPECT_EQ(1, page_dirty(p + i * pmd_size(), pmd_size()));
		page_fill(p + i * pmd_size(), pmd_size(), ZERO_TAG);
	}
	ASSERT_EQ(0, munmap(p, pieces * pmd_size()));
	ASSERT_EQ(0, hugetlb_pool_set(small));
	/* Back, for other tests; the memory may be in use by now. */
	hugetlb_sysfs_set(self->page, "nr_hugepages", 1);
	self->ready = hugetlb_sysfs_of(self->page, "nr_hugepages") == 1;
}

/*
 * Memory fails under a page that is free, and cleared or not: the page leaves the
 * pool, and nobody gets it.
 */
TEST_F_TIMEOUT(zero, free_page_fails, TIMEOUT)
{
	const char * const ways[] = {
		"soft_offline_page", "hard_offline_page"
	};
	size_t way;
	__u64 bad;
	char *p;
	long i;

	if (variant->giant)
		SKIP(return, "would lose the only page");
	for (way = 0; way < ARRAY_SIZE(ways); way++) {
		p = map_some(self, self->n);
		ASSERT_NE(NULL, p);
		for (i = 0; i < self->n; i++)
			word_write(p + i * self->page, 1);
		bad = physical(p);
		unmap(_metadata, self, p, self->n);
		leave_cleared(self);
		if (!memory_fails(ways[way], bad))
			SKIP(return, "needs root and CONFIG_MEMORY_FAILURE");
		EXPECT_EQ(self->n - 1, hugetlb_sysfs("nr_hugepages"));
		EXPECT_EQ(self->n - 1, hugetlb_sysfs("free_hugepages"));
		p = map_some(self, self->n - 1);
		ASSERT_NE(NULL, p);
		for (i = 0; i < self->n - 1; i++) {
			expect_fresh(_metadata, self, p + i * self->page, i);
			EXPECT_NE(bad, physical(p + i * self->page));
		}
		unmap(_metadata, self, p, self->n - 1);
		/* A new one for the next way. */
		ASSERT_EQ(0, hugetlb_pool_set(self->n));
		EXPECT_EQ(self->n, hugetlb_sysfs("nr_hugepages"));
	}
}

/* In a child, which the kernel kills: memory fails under a page that it uses. */
static int page_fails(const FIXTURE_DATA(zero) *self)
{
	char *p = map_some(self, 1);

	if (!p)
		return 1;
	page_fill(p, self->page, ZERO_TAG);
	signal(SIGBUS, SIG_DFL);
	if (madvise(p, page_size(), MADV_HWPOISON))
		return 2;
	word_read(p);
	return 3;
}

/* The same while a thread has free pages cleared all the time. */
TEST_F_TIMEOUT(zero, used_page_fails, TIMEOUT)
{
	struct looper l;
	bool fails;
	pid_t pid;
	char *p;

	if (variant->giant)
		SKIP(return, "would lose the only page");
	p = map_some(self, 1);
	ASSERT_NE(NULL, p);
	page_fill(p, self->page, ZERO_TAG);
	ASSERT_TRUE(loop_start(_metadata, &l, self));
	fails = !madvise(p, page_size(), MADV_SOFT_OFFLINE);
	EXPECT_EQ(0, page_wrong(p, self->page, ZERO_TAG));
	if (fails) {
		pid = fork_bound();
		if (!pid)
			_exit(page_fails(self));
		EXPECT_EQ(256 + SIGBUS, reap(pid));
	}
	loop_stop(_metadata, &l);
	unmap(_metadata, self, p, 1);
	/* Neither page is in the pool any more. */
	ASSERT_EQ(0, hugetlb_pool_set(self->n));
	EXPECT_TRUE(pool_returns(self->page, &self->pool));
	expect_clean_pool(_metadata, self);
	if (!fails)
		SKIP(return, "needs root and CONFIG_MEMORY_FAILURE");
}

/* --- waits */

/* A call that needs the mapping for itself. */
static bool change_mapping(char *p, size_t len, long nth)
{
	return !madvise(p, len, nth % 2 ? MADV_DONTDUMP : MADV_DODUMP);
}

/* Whoever changes the mapping does not wait until the page is cleared. */
TEST_F_TIMEOUT(zero, writer, TIMEOUT)
{
	long passed = 0, held_up = 0, i;
	__u64 until = now_ns() + LAST_NS;
	struct looper l;

	if (!self->have || !variant->value)
		SKIP(return, "only with the switch on");
	ASSERT_TRUE(loop_start(_metadata, &l, self));
	for (i = 0; passed + held_up < (variant->giant ? 3 : 30) &&
	     now_ns() < until; i++) {
		long begun = atomic_load(&l.begun), ended;

		ended = atomic_load(&l.ended);
		if (begun == ended)
			continue;
		ASSERT_TRUE(change_mapping(l.p, self->page, i));
		if (atomic_load(&l.ended) == ended)
			passed++;
		else
			held_up++;
		usleep(1000);
	}
	TH_LOG("%ld calls were done before the fault, %ld after it", passed,
	       held_up);
	EXPECT_LE(variant->giant ? 3 : 30, passed + held_up) {
		TH_LOG("no call came while a fault was in progress");
	}
	EXPECT_LT(held_up, passed);
	loop_stop(_metadata, &l);
}

/*
 * Another fault takes the last free page although a thread that does not get any
 * CPU time is in the middle of clearing it.
 */
#define PERIOD_US	100000
#define THROTTLED	50

TEST_F_TIMEOUT(zero, throttled, TIMEOUT)
{
	long taken = 0, missed = 0, held_up = 0, before, periods;
	struct memory_group g;
	__u64 until;
	char *p, text[32];
	pid_t pid;

	if (variant->giant)
		SKIP(return, "takes too long");
	if (!control_group_enter(&g, "cpu"))
		SKIP(return, "no cpu cgroup");
	ASSERT_EQ(0, hugetlb_pool_set(1));
	self->pool = pool_read(self->page);
	snprintf(text, sizeof(text), "1000 %d", PERIOD_US);
	if (memory_group_write(&g, "cpu.max", text)) {
		memory_group_leave(&g);
		SKIP(return, "no bandwidth control");
	}
	p = map_pages(self->page, 1, MAP_NORESERVE);
	ASSERT_NE(NULL, p);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		catch_faults();
		meet(self->meet, 1);
		while (1) {
			try_write(p, 1);
			madvise(p, self->page, MADV_DONTNEED);
		}
	}
	memory_group_exit(&g);
	wait_for(self->meet, 1);
	until = now_ns() + LAST_NS;
	while (taken < THROTTLED && now_ns() < until) {
		before = memory_group_read(&g, "cpu.stat", "nr_periods");
		if (access_signal(p, true, NULL)) {
			/* The other one has the page at the moment. */
			missed++;
			usleep(PERIOD_US / 10);
			continue;
		}
		periods = memory_group_read(&g, "cpu.stat", "nr_periods");
		taken++;
		held_up += periods - before > 2;
		EXPECT_EQ(1, word_read(p));
		ASSERT_EQ(0, madvise(p, self->page, MADV_DONTNEED));
		usleep(PERIOD_US / 50);
	}
	TH_LOG("%ld faults, %ld without a page, %ld took more than two periods",
	       taken, missed, held_up);
	EXPECT_EQ(THROTTLED, taken) {
		TH_LOG("the last page was not to be had often enough");
	}
	EXPECT_LE(held_up, THROTTLED / 5);
	kill(pid, SIGKILL);
	memory_group_write(&g, "cpu.max", "max");
	reap(pid);
	unmap(_metadata, self, p, 1);
	memory_group_leave(&g);
	EXPECT_TRUE(pool_returns(self->page, &self->pool));
	ASSERT_EQ(0, hugetlb_pool_set(self->n));
	self->pool = pool_read(self->page);
}

/* --- the switch */

TEST_F_TIMEOUT(zero, flipped, TIMEOUT)
{
	long i, round;
	char *p;

	if (!self->have)
		SKIP(return, "this kernel has no vm." ZERO_KNOB);
	if (!static_keys_flip())
		SKIP(return, "static keys are not flipped on this emulated CPU");
	p = map_some(self, self->n);
	ASSERT_NE(NULL, p);
	for (round = 0; round < 4; round++) {
		self->before = counters_read("hugetlb_");
		ASSERT_EQ(0, vm_sysctl_write(ZERO_KNOB, round % 2));
		for (i = 0; i < self->n; i++) {
			expect_fresh(_metadata, self, p + i * self->page, i);
			page_fill(p + i * self->page, self->page, ZERO_TAG);
		}
		EXPECT_EQ(round % 2 * self->n,
			  counted(&self->before, "zeroed_used"));
		ASSERT_EQ(0, madvise(p, self->n * self->page, MADV_DONTNEED));
	}
	unmap(_metadata, self, p, self->n);
	/* A page that was cleared before is not trusted, or it is zero. */
	ASSERT_EQ(0, vm_sysctl_write(ZERO_KNOB, 1));
	leave_cleared(self);
	ASSERT_EQ(0, vm_sysctl_write(ZERO_KNOB, 0));
	expect_clean_pool(_metadata, self);
	EXPECT_EQ(-EINVAL, vm_sysctl_write(ZERO_KNOB, 2));
}

int main(int argc, char **argv)
{
	return hugetlb_kept(&zero_knob, test_harness_run, argc, argv);
}
