// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page faults that are held while they clear a free huge page, and what happens to
 * that page, or to the mapping, meanwhile (CONFIG_FAULTLINE_HUGETLB_ZERO_TORTURE).
 *
 * hugetlb_zero_race hopes that a change comes while a page is being cleared.  Here a
 * fault stays until it is let go, so the change comes in between each time.  The pool
 * has a single page, so it is known which one that is.
 *
 * Variants: the page is partly clear (piece), or wholly (prepared).
 */
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>

#include "../../kselftest_harness.h"
#include "hold.h"
#include "hugetlb_zero_util.h"

#define TIMEOUT		300

FIXTURE(zero_hold) {
	size_t page;
	char *map;		/* a page that nobody has reserved */
	struct faulters faulters;
	__u64 memory;		/* of the page in the pool */
	bool ready;
};

FIXTURE_VARIANT(zero_hold) {
	const char *place;
};

FIXTURE_VARIANT_ADD(zero_hold, piece) { .place = "piece" };
FIXTURE_VARIANT_ADD(zero_hold, prepared) { .place = "prepared" };

static void release_all(void)
{
	zero_hold("piece", 0);
	zero_hold("prepared", 0);
}

/*
 * The pool has one page, which is dirty; returns where, or 0.  With kernelcore=, the
 * last node has movable memory first.
 */
static __u64 dirty_pool(size_t page)
{
	__u64 memory;
	char *p;

	if (hugetlb_pool_set(0))
		return 0;
	if (node_pool_set(1, page, 1) && hugetlb_pool_set(1))
		return 0;
	p = map_pages(page, 1, 0);
	if (!p)
		return 0;
	page_fill(p, page, ZERO_TAG);
	memory = physical(p);
	return munmap(p, page) ? 0 : memory;
}

FIXTURE_SETUP(zero_hold)
{
	const struct pool one = { .total = 1, .free = 1 };
	const char *why = vm_knob_set(&zero_knob, 1);

	self->page = pmd_size();
	if (!why && zero_held() < 0)
		why = "this kernel cannot hold faults";
	if (!why)
		self->memory = dirty_pool(self->page);
	if (!why && !self->memory)
		why = "needs root, and the pool of huge pages for itself";
	if (why)
		SKIP(return, "%s", why);
	ASSERT_TRUE(pool_returns(self->page, &one));
	catch_faults();
	self->map = map_pages(self->page, 1, MAP_NORESERVE);
	ASSERT_NE(NULL, self->map);
	self->ready = true;
}

FIXTURE_TEARDOWN(zero_hold)
{
	const struct pool none = {};

	release_all();
	faulters_join(&self->faulters);
	if (!self->ready)
		return;
	EXPECT_EQ(0, munmap(self->map, self->page));
	EXPECT_EQ(0, hugetlb_pool_set(0));
	EXPECT_TRUE(pool_returns(self->page, &none));
}

/* A fault has begun to clear the page, or has cleared it, and stays there. */
static void hold_one(struct __test_metadata *_metadata,
		     FIXTURE_DATA(zero_hold) *self,
		     const FIXTURE_VARIANT(zero_hold) *variant)
{
	ASSERT_TRUE(faulters_start(&self->faulters, 1, self->map, ZERO_TAG));
	ASSERT_TRUE(zero_hold(variant->place, getpid()));
	atomic_store(&go, true);
	ASSERT_EQ(1, comes(1, zero_held)) {
		TH_LOG("The fault did not get to clear the page");
	}
}

/* Lets the fault go; returns the signal that it got. */
static int let_go(struct __test_metadata *_metadata,
		  FIXTURE_DATA(zero_hold) *self)
{
	/* Nobody waited for it. */
	EXPECT_EQ(1, zero_held());
	release_all();
	faulters_join(&self->faulters);
	return self->faulters.list[0].signal;
}

/* The fault got a page that is zero, but for the word that it has written. */
static void expect_page(struct __test_metadata *_metadata,
			FIXTURE_DATA(zero_hold) *self)
{
	EXPECT_EQ(ZERO_TAG, word_read(self->map));
	EXPECT_EQ(1, page_dirty(self->map, self->page));
}

/* --- the page goes */

/* Others use the memory of the page, and the pool gets another one. */
static void expect_replaced(struct __test_metadata *_metadata,
			    FIXTURE_DATA(zero_hold) *self)
{
	size_t len = 32 * self->page;
	char *other;

	EXPECT_EQ(0, hugetlb_sysfs("nr_hugepages"));
	EXPECT_EQ(0, hugetlb_sysfs("free_hugepages"));
	other = map_filled(len, ZERO_TAG);
	ASSERT_NE(NULL, other);
	ASSERT_EQ(0, hugetlb_pool_set(1));
	EXPECT_EQ(1, hugetlb_sysfs("free_hugepages"));
	EXPECT_EQ(0, let_go(_metadata, self));
	expect_page(_metadata, self);
	EXPECT_EQ(0, bad_pages(other, len, ZERO_TAG));
	ASSERT_EQ(0, munmap(other, len));
}

static void memory_fails_beside(struct __test_metadata *_metadata,
				FIXTURE_DATA(zero_hold) *self,
				const FIXTURE_VARIANT(zero_hold) *variant,
				const char *how)
{
	hold_one(_metadata, self, variant);
	/* In the middle of the page. */
	if (!memory_fails(how, self->memory + self->page / 2))
		SKIP(return, "needs CONFIG_MEMORY_FAILURE");
	expect_replaced(_metadata, self);
	EXPECT_NE(self->memory, physical(self->map));
}

TEST_F_TIMEOUT(zero_hold, soft_offline, TIMEOUT)
{
	memory_fails_beside(_metadata, self, variant, "soft_offline_page");
}

TEST_F_TIMEOUT(zero_hold, hard_offline, TIMEOUT)
{
	memory_fails_beside(_metadata, self, variant, "hard_offline_page");
}

/*
 * A page that somebody has reserved cannot leave the pool.  It stays, but no
 * fault gets it.
 */
TEST_F_TIMEOUT(zero_hold, hard_offline_reserved, TIMEOUT)
{
	char *reserved = map_pages(self->page, 1, 0);
	struct pool now;

	ASSERT_NE(NULL, reserved);
	ASSERT_EQ(0, munmap(self->map, self->page));
	self->map = reserved;
	hold_one(_metadata, self, variant);
	/* It says that this did not work. */
	memory_fails("hard_offline_page", self->memory);
	if (meminfo_kb("HardwareCorrupted") <= 0)
		SKIP(return, "needs CONFIG_MEMORY_FAILURE");
	EXPECT_EQ(SIGBUS, let_go(_metadata, self));
	now = pool_read(self->page);
	EXPECT_EQ(1, now.total);
	EXPECT_EQ(1, now.free);
	EXPECT_EQ(1, now.reserved);
	EXPECT_EQ(0, now.surplus);
}

TEST_F_TIMEOUT(zero_hold, resized, TIMEOUT)
{
	hold_one(_metadata, self, variant);
	ASSERT_EQ(0, hugetlb_pool_set(0));
	expect_replaced(_metadata, self);
}

/* Allocated by a call, and free again. */
TEST_F_TIMEOUT(zero_hold, allocated, TIMEOUT)
{
	int fd = file_of(self->page, 1);
	char *p;

	ASSERT_LE(0, fd);
	p = mmap(NULL, self->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	hold_one(_metadata, self, variant);
	ASSERT_EQ(0, fallocate(fd, 0, 0, self->page));
	EXPECT_EQ(0, page_dirty(p, self->page));
	EXPECT_EQ(self->memory, physical(p));
	page_fill(p, self->page, ZERO_TAG);
	/* No page for the fault. */
	EXPECT_EQ(SIGBUS, let_go(_metadata, self));
	EXPECT_EQ(0, page_wrong(p, self->page, ZERO_TAG));
	EXPECT_EQ(0, munmap(p, self->page));
	close(fd);
	EXPECT_EQ(0, try_write(self->map, ZERO_TAG));
	expect_page(_metadata, self);
}

static size_t block_size(void)
{
	char text[32] = "";

	read_text("/sys/devices/system/memory/block_size_bytes", text,
		  sizeof(text));
	return strtoul(text, NULL, 16);
}

/* A file of the block of memory that the page is in. */
static void block_path(char *path, size_t size, __u64 memory, const char *file)
{
	snprintf(path, size, "/sys/devices/system/memory/memory%llu/%s",
		 (unsigned long long)(memory / block_size()), file);
}

/*
 * The memory is taken away (kernelcore= makes it movable, on the second node).  The
 * end of it is the first to be allocated, and not movable: the kernel has used some of
 * it before.
 */
TEST_F_TIMEOUT(zero_hold, unplugged, TIMEOUT)
{
	char zones[96], state[96], text[64] = "", *last;
	size_t len = 2 * block_size();
	unsigned long second = 2;
	__u64 end;

	if (!len)
		SKIP(return, "no memory can be unplugged");
	last = map_fresh(len);
	ASSERT_NE(NULL, last);
	madvise(last, len, MADV_HUGEPAGE);
	if (syscall(SYS_mbind, last, len, MPOL_BIND, &second,
		    8 * sizeof(second), 0))
		SKIP(return, "needs a second node, see numa=fake");
	/* The page as well. */
	ASSERT_EQ(0, hugetlb_pool_set(0));
	fill_pages(last, len, ZERO_TAG);
	self->memory = dirty_pool(self->page);
	ASSERT_NE(0, self->memory);
	block_path(zones, sizeof(zones), self->memory, "valid_zones");
	block_path(state, sizeof(state), self->memory, "state");
	read_text(zones, text, sizeof(text));
	if (strncmp(text, "Movable", 7))
		SKIP(return, "the page is not in movable memory");
	hold_one(_metadata, self, variant);
	/* Pages of others may be busy for a moment. */
	for (end = now_ns() + EVENT_NS / 2; now_ns() < end; usleep(100000))
		if (!write_text(state, "offline"))
			break;
	ASSERT_EQ(0, read_text(state, text, sizeof(text)));
	ASSERT_EQ(0, strcmp("offline\n", text)) {
		TH_LOG("The memory did not go");
	}
	expect_replaced(_metadata, self);
	EXPECT_EQ(0, bad_pages(last, len, ZERO_TAG));
	ASSERT_EQ(0, munmap(last, len));
	EXPECT_EQ(0, write_text(state, "online_movable"));
}

/* --- the mapping changes */

/* The fault has not taken the page. */
static void expect_left(struct __test_metadata *_metadata,
			FIXTURE_DATA(zero_hold) *self)
{
	EXPECT_EQ(1, hugetlb_sysfs("free_hugepages"));
	EXPECT_EQ(0, smaps_kb(self->map, self->page, "Private_Hugetlb"));
}

TEST_F_TIMEOUT(zero_hold, protected, TIMEOUT)
{
	hold_one(_metadata, self, variant);
	ASSERT_EQ(0, mprotect(self->map, self->page, PROT_READ));
	EXPECT_EQ(SIGSEGV, let_go(_metadata, self));
	expect_left(_metadata, self);
}

TEST_F_TIMEOUT(zero_hold, replaced, TIMEOUT)
{
	hold_one(_metadata, self, variant);
	ASSERT_EQ(self->map, mmap(self->map, self->page, PROT_READ,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				  0));
	EXPECT_EQ(SIGSEGV, let_go(_metadata, self));
	EXPECT_EQ(1, hugetlb_sysfs("free_hugepages"));
}

TEST_F_TIMEOUT(zero_hold, userfaultfd, TIMEOUT)
{
	int fd = uffd_open(UFFD_FEATURE_MISSING_HUGETLBFS, NULL);
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	if (fd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	hold_one(_metadata, self, variant);
	ASSERT_EQ(0, uffd_register(fd, self->map, self->page,
				   UFFDIO_REGISTER_MODE_MISSING));
	EXPECT_EQ(1, zero_held());
	release_all();
	EXPECT_EQ(1, poll(&ready, 1, EVENT_NS / 1000000)) {
		TH_LOG("The fault did not ask for its page");
	}
	EXPECT_FALSE(atomic_load(&self->faulters.list[0].done));
	expect_left(_metadata, self);
	ASSERT_EQ(0, uffd_unregister(fd, self->map, self->page));
	faulters_join(&self->faulters);
	close(fd);
	EXPECT_EQ(0, self->faulters.list[0].signal);
	expect_page(_metadata, self);
}

int main(int argc, char **argv)
{
	int status = hugetlb_kept(&zero_knob, test_harness_run, argc, argv);

	release_all();
	return status;
}
