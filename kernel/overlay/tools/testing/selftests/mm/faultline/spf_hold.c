// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page faults that are held where they prepare or install a huge page, and what
 * other threads do meanwhile (CONFIG_FAULTLINE_SPF_TORTURE).
 *
 * A race test lets faults pause at such a place for some time, and hopes that a
 * change comes then.  Here a fault stays until it is let go, so the change comes
 * in between each time.  A test that waits does so for an event.
 */
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>

#include "../../kselftest_harness.h"
#include "hold.h"
#include "spf_util.h"

#define TIMEOUT		300
#define TAG		0x7370665f686f6c01ULL
/* As many faults as may wait with a huge page in hand, and more that want to. */
#define WAITING_MAX	8
#define CROWD		(3 * WAITING_MAX)

FIXTURE(hold) {
	char *map;		/* CROWD huge pages, in a mapping of their own */
	size_t len;
	struct faulters faulters;
};

static void release_all(void)
{
	spf_torture("fill_hold", 0);
	spf_torture("prepared_hold", 0);
	spf_torture("writer", 0);
}

static bool start(FIXTURE_DATA(hold) *self, int n)
{
	return faulters_start(&self->faulters, n, self->map, TAG);
}

static long held(void)
{
	return spf_torture_read("held");
}

static long writers(void)
{
	return spf_torture_read("writer");
}

static long unused_before;

/* Faults that have got no further than to wait, with their page or without. */
static long settled(void)
{
	return vmstat_read("spf_huge_unused") - unused_before +
	       spf_torture_read("huge_waiting");
}

FIXTURE_SETUP(hold)
{
	const char *why = vm_knob_set(&spf_knob, 1);
	size_t size = pmd_size();
	char *p;

	if (!why && spf_torture_read("held") < 0)
		why = "this kernel cannot hold faults";
	if (!why && !spf_fills_holes())
		why = "no fault installs huge pages with this MMU";
	if (!why)
		why = thp_set("madvise", "always");
	if (why)
		SKIP(return, "%s", why);
	write_text(THP "khugepaged/scan_sleep_millisecs", "100000000");
	catch_faults();
	self->len = CROWD * size;
	/*
	 * The mapping has an anon_vma.  Its neighbours, of base pages, keep the
	 * tables above.
	 */
	p = map_apart(self->len + 3 * size);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, madvise(p, self->len + 3 * size, MADV_NOHUGEPAGE));
	word_write(p, TAG);
	word_write(p + self->len + 2 * size, TAG);
	ASSERT_EQ(0, madvise(p + size, self->len + size, MADV_HUGEPAGE));
	word_write(p + size + self->len, TAG);
	self->map = p + size;
	/* Memory for what reads these files comes before a fault is held. */
	held();
	settled();
}

FIXTURE_TEARDOWN(hold)
{
	release_all();
	faulters_join(&self->faulters);
	thp_restore();
}

/* --- H1: nothing is allocated or cleared with the mapping locked */

/*
 * While faults have their huge pages and do not go on, a writer changes their
 * mapping.
 */
TEST_F_TIMEOUT(hold, writer_beside_prepared, TIMEOUT)
{
	char *end = self->map + self->len;

	ASSERT_TRUE(start(self, 2));
	ASSERT_TRUE(spf_torture("prepared_hold", getpid()));
	atomic_store(&go, true);
	ASSERT_EQ(2, comes(2, held)) {
		TH_LOG("The faults did not get to prepare huge pages");
	}
	ASSERT_EQ(0, mprotect(end, pmd_size(), PROT_READ));
	/* A writer that had to wait comes when they have gone on. */
	EXPECT_EQ(2, held()) {
		TH_LOG("The writer waited for faults that prepared huge pages");
	}
	release_all();
	faulters_join(&self->faulters);
	EXPECT_EQ(TAG, word_read(self->map));
	EXPECT_EQ(TAG, word_read(self->map + pmd_size()));
}

/* --- H2: the mapping is as in the snapshot when a huge page is installed */

/* With "fill_hold", a fault has a huge page, and is about to lock its mapping. */
static bool hold_one(FIXTURE_DATA(hold) *self, const char *hold)
{
	if (!start(self, 1) || !spf_torture(hold, getpid()))
		return false;
	atomic_store(&go, true);
	return comes(1, held) == 1;
}

static long huge_kb(FIXTURE_DATA(hold) *self)
{
	return smaps_kb(self->map, pmd_size(), "AnonHugePages");
}

TEST_F_TIMEOUT(hold, advice_before_install, TIMEOUT)
{
	ASSERT_TRUE(hold_one(self, "fill_hold"));
	ASSERT_EQ(0, madvise(self->map, pmd_size(), MADV_NOHUGEPAGE));
	EXPECT_EQ(1, held());
	release_all();
	faulters_join(&self->faulters);
	EXPECT_EQ(0, self->faulters.list[0].signal);
	EXPECT_EQ(TAG, word_read(self->map));
	EXPECT_EQ(0, huge_kb(self));
}

TEST_F_TIMEOUT(hold, mprotect_before_install, TIMEOUT)
{
	ASSERT_TRUE(hold_one(self, "fill_hold"));
	ASSERT_EQ(0, mprotect(self->map, pmd_size(), PROT_READ));
	EXPECT_EQ(1, held());
	release_all();
	faulters_join(&self->faulters);
	EXPECT_EQ(SIGSEGV, self->faulters.list[0].signal);
	EXPECT_EQ(0, smaps_kb(self->map, pmd_size(), "Anonymous"));
}

TEST_F_TIMEOUT(hold, replaced_before_install, TIMEOUT)
{
	ASSERT_TRUE(hold_one(self, "fill_hold"));
	ASSERT_EQ(self->map, mmap(self->map, pmd_size(), PROT_READ,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				  0));
	EXPECT_EQ(1, held());
	release_all();
	faulters_join(&self->faulters);
	EXPECT_EQ(SIGSEGV, self->faulters.list[0].signal);
	EXPECT_EQ(0, smaps_kb(self->map, pmd_size(), "Anonymous"));
}

/*
 * A fault is held with @hold, and the mapping registered meanwhile.  The fault
 * must not install what it has, but ask for its page.
 */
static void register_beside(struct __test_metadata *_metadata,
			    FIXTURE_DATA(hold) *self, const char *hold)
{
	int fd = uffd_open(0, NULL);
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	if (fd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	ASSERT_TRUE(hold_one(self, hold));
	ASSERT_EQ(0, uffd_register(fd, self->map, pmd_size(),
				   UFFDIO_REGISTER_MODE_MISSING));
	EXPECT_EQ(1, held());
	release_all();
	EXPECT_EQ(1, poll(&ready, 1, EVENT_NS / 1000000)) {
		TH_LOG("The fault did not ask for its page");
	}
	EXPECT_FALSE(atomic_load(&self->faulters.list[0].done));
	EXPECT_EQ(0, smaps_kb(self->map, pmd_size(), "Anonymous"));
	ASSERT_EQ(0, uffd_unregister(fd, self->map, pmd_size()));
	faulters_join(&self->faulters);
	close(fd);
	EXPECT_EQ(TAG, word_read(self->map));
}

TEST_F_TIMEOUT(hold, userfaultfd_before_install, TIMEOUT)
{
	register_beside(_metadata, self, "fill_hold");
}

TEST_F_TIMEOUT(hold, userfaultfd_before_lookup, TIMEOUT)
{
	register_beside(_metadata, self, "prepared_hold");
}

/* A table, and then a base page, instead of a huge page. */
TEST_F_TIMEOUT(hold, userfaultfd_before_table, TIMEOUT)
{
	ASSERT_EQ(0, madvise(self->map, pmd_size(), MADV_NOHUGEPAGE));
	register_beside(_metadata, self, "fill_hold");
}

/* --- H6: few faults of the system wait with a huge page in hand */

static atomic_bool lock_now;

static void *write_lock(void *arg)
{
	FIXTURE_DATA(hold) *self = arg;
	char path[] = "/sys/kernel/debug/spf_writer", text[32];

	atomic_fetch_add(&ready, 1);
	while (!atomic_load(&lock_now))
		usleep(1000);
	snprintf(text, sizeof(text), "%lu", (unsigned long)self->map);
	return write_text(path, text) ? self : NULL;
}

/* All get their huge pages, and then a writer makes all of them wait. */
TEST_F_TIMEOUT(hold, crowd_with_pages, TIMEOUT)
{
	pthread_t writer;
	void *failed;
	int i;

	ASSERT_TRUE(start(self, CROWD));
	atomic_store(&lock_now, false);
	ASSERT_EQ(0, pthread_create(&writer, NULL, write_lock, self));
	while (atomic_load(&ready) < CROWD + 1)
		usleep(1000);
	ASSERT_TRUE(spf_torture("prepared_hold", getpid()));
	unused_before = vmstat_read("spf_huge_unused");
	atomic_store(&go, true);
	ASSERT_EQ(CROWD, comes(CROWD, held)) {
		TH_LOG("Not all faults got to prepare huge pages");
	}
	atomic_store(&lock_now, true);
	ASSERT_EQ(1, comes(1, writers)) {
		TH_LOG("The mapping was not locked");
	}
	ASSERT_TRUE(spf_torture("prepared_hold", 0));
	EXPECT_EQ(CROWD, comes(CROWD, settled)) {
		TH_LOG("Not all faults gave up their page or waited with it");
	}
	EXPECT_EQ(WAITING_MAX, spf_torture_read("huge_waiting"));
	release_all();
	ASSERT_EQ(0, pthread_join(writer, &failed));
	EXPECT_EQ(NULL, failed);
	faulters_join(&self->faulters);
	EXPECT_EQ(0, spf_torture_read("huge_waiting"));
	for (i = 0; i < CROWD; i++)
		EXPECT_EQ(TAG, word_read(self->map + i * pmd_size()));
}

int main(int argc, char **argv)
{
	int status;

	thp_keep();
	status = vm_knob_kept(&spf_knob, test_harness_run, argc, argv);
	release_all();
	thp_restore();
	return status;
}
