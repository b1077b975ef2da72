// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise munmap without memory for its own bookkeeping.
 *
 * failslab makes allocations of the calling thread fail.  munmap may then fail,
 * but only before anything is unmapped.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "../../kselftest_harness.h"
#include "munmap_util.h"

#define TAG		0x6d756e6d61703033ULL
/* Several sections of the size of a PMD; 16 MiB on x86. */
#define RANGE		(8 * pmd_size())
#define TIMEOUT		600
#define FAILSLAB	"/sys/kernel/debug/failslab/"

FIXTURE(fault) {
	struct idle_thread idle;
	struct counters before;
	int nth_fd;
	int make_fd;
};

FIXTURE_VARIANT(fault) {
	bool on;
};

FIXTURE_VARIANT_ADD(fault, off) { .on = false };
FIXTURE_VARIANT_ADD(fault, on) { .on = true };

static int thread_file(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "/proc/self/task/%ld/%s",
		 syscall(SYS_gettid), name);
	return open(path, O_RDWR | O_CLOEXEC);
}

FIXTURE_SETUP(fault)
{
	const char *why = munmap_knob_set(variant->on ? MUNMAP_SMALL_KB : 0);

	if (why)
		SKIP(return, "%s", why);
	self->nth_fd = thread_file("fail-nth");
	self->make_fd = thread_file("make-it-fail");
	if (self->nth_fd < 0 || self->make_fd < 0)
		SKIP(return, "this kernel has no fault injection");
	/* munmap allocates with GFP_KERNEL, which may sleep. */
	if (write_text(FAILSLAB "ignore-gfp-wait", "N"))
		SKIP(return, "this kernel has no failslab or no debugfs");
	/* A stack dump per failure would look like a crash in the log. */
	ASSERT_EQ(0, write_text(FAILSLAB "verbose", "0"));
	ASSERT_EQ(0, write_text(FAILSLAB "task-filter", "1"));
	ASSERT_EQ(0, write_text(FAILSLAB "times", "-1"));
	ASSERT_EQ(0, write_text(FAILSLAB "probability", "0"));
	ASSERT_EQ(0, idle_thread_start(&self->idle));
}

FIXTURE_TEARDOWN(fault)
{
	write_text(FAILSLAB "probability", "0");
	write_text(FAILSLAB "space", "0");
	write_text(FAILSLAB "task-filter", "0");
	write_text(FAILSLAB "ignore-gfp-wait", "Y");
	write_text(FAILSLAB "verbose", "2");
	idle_thread_stop(&self->idle);
}

/* Uses an open file, as nothing around the call itself may allocate. */
static void set_open(int fd, const char *text)
{
	if (pwrite(fd, text, strlen(text), 0) < 0)
		ksft_print_msg("cannot inject a fault: errno %d\n", errno);
}

/*
 * Maps the range with an edge of the same VMA on both sides, so that munmap has
 * to split the VMA there before it can begin.
 */
static char *make_range(size_t edge)
{
	char *p = map_filled(RANGE + 2 * edge, TAG);

	return p ? p + edge : NULL;
}

static long not_good(const char *what)
{
	ksft_print_msg("after the error: %s (errno %d)\n", what, errno);
	return -1;
}

/*
 * After an error, the range or a high part of it is left with its content, and
 * behaves as if nothing had been tried: no mark of the munmap remains.  Returns
 * the number of bytes left, or -1.
 */
static long check_rest(char *p, size_t edge)
{
	size_t left = mapped_bytes(p, RANGE), gone = RANGE - left, i;
	char *rest = p + gone, *moved, *whole = p - edge;
	size_t ps = page_size();
	pid_t pid;

	if (mapped_bytes(p, gone) || mapped_bytes(rest, left) != left)
		return not_good("a hole in the rest");
	if (mapped_bytes(whole, edge) != edge ||
	    mapped_bytes(p + RANGE, edge) != edge)
		return not_good("an edge is gone");
	for (i = 0; i < left / ps; i++)
		if (word_read(rest + i * ps) !=
		    page_word(TAG, (edge + gone) / ps + i))
			return not_good("wrong content");
	if (!left)
		return 0;
	/* fork() copies it, */
	pid = fork();
	if (!pid)
		_exit(mapped_bytes(rest, left) != left);
	if (reap(pid))
		return not_good("fork() lost it");
	/* mprotect() changes it and changes it back, */
	if (mprotect(rest, left, PROT_READ) ||
	    mprotect(rest, left, PROT_READ | PROT_WRITE))
		return not_good("mprotect() failed");
	/* and mremap() moves it as a whole. */
	fill_pages(rest, left, TAG + 1);
	moved = mremap(rest, left, left, MREMAP_MAYMOVE | MREMAP_DONTUNMAP,
		       NULL);
	if (moved == MAP_FAILED)
		return not_good("mremap() failed");
	if (bad_pages(moved, left, TAG + 1))
		return not_good("wrong content when moved");
	munmap(moved, left);
	return left;
}

/* The outcomes of all rounds of a test. */
struct tally {
	long untouched;
	long partial;
	long succeeded;
};

/* Checks one munmap that met a fault; false if it misbehaved. */
static bool one_round(char *p, size_t edge, int ret, int err,
		      struct tally *tally)
{
	long left;
	bool good;

	if (!ret) {
		tally->succeeded++;
		good = !mapped_bytes(p, RANGE) &&
		       mapped_bytes(p - edge, edge) == edge &&
		       mapped_bytes(p + RANGE, edge) == edge;
	} else {
		good = err == ENOMEM;
		left = check_rest(p, edge);
		good = good && left > 0;
		if (left == RANGE)
			tally->untouched++;
		else
			tally->partial++;
	}
	/* Without a fault, unmapping the rest succeeds. */
	good = good && !munmap(p - edge, RANGE + 2 * edge) &&
	       !mapped_bytes(p - edge, RANGE + 2 * edge);
	if (!good)
		ksft_print_msg("munmap returned %d, errno %d\n", ret, err);
	return good;
}

static void expect_tally(struct __test_metadata *_metadata,
			 const struct tally *tally,
			 const struct counters *before, bool on)
{
	long calls = counted(before, "calls");

	ksft_print_msg("%ld refused, %ld partial, %ld succeeded, %ld by sections\n",
		       tally->untouched, tally->partial, tally->succeeded,
		       calls);
	EXPECT_LT(0, tally->untouched);
	EXPECT_EQ(0, tally->partial);
	/* Every call that began to work in sections has succeeded. */
	EXPECT_LE(on ? tally->succeeded : 0, calls);
	EXPECT_EQ(on, calls > 0);
}

/*
 * The 1st, 2nd, 3rd ... allocation fails, until the call makes no more of them.
 * Only the splits at the edges, before the beginning, may fail the call.
 */
TEST_F_TIMEOUT(fault, one_allocation_fails, TIMEOUT)
{
	struct tally tally = { };
	size_t edge = 3 * page_size();
	char *p, text[32];
	unsigned int left;
	int ret, err;
	long n;

	self->before = counters_read("munmap_section_");
	for (n = 1; n < 1000; n++) {
		p = make_range(edge);
		ASSERT_NE(NULL, p);
		snprintf(text, sizeof(text), "%ld", n);
		set_open(self->nth_fd, text);
		ret = munmap(p, RANGE);
		err = errno;
		ASSERT_LT(0, pread(self->nth_fd, text, sizeof(text), 0));
		left = strtoul(text, NULL, 10);
		set_open(self->nth_fd, "0");
		ASSERT_TRUE(one_round(p, edge, ret, err, &tally));
		/* Not triggered: there is no allocation left to fail. */
		if (left)
			break;
	}
	ksft_print_msg("%ld allocations\n", n - 1);
	EXPECT_LT(1, n);
	EXPECT_GT(1000, n);
	expect_tally(_metadata, &tally, &self->before, variant->on);
}

/*
 * From some point on, every allocation fails.  Once the VMAs are dead, other
 * threads have seen the range as unmapped and fork() has left it out, so the
 * munmap must succeed.
 */
TEST_F_TIMEOUT(fault, all_later_allocations_fail, TIMEOUT)
{
	struct tally tally = { };
	size_t edge = 3 * page_size();
	char *p, text[32];
	int ret, err;
	long space;

	ASSERT_EQ(0, write_text(FAILSLAB "probability", "100"));
	self->before = counters_read("munmap_section_");
	/* Bytes that may be allocated before the failures begin. */
	for (space = 1; space < 96 * KIB && tally.succeeded < 20;
	     space += 192) {
		p = make_range(edge);
		ASSERT_NE(NULL, p);
		snprintf(text, sizeof(text), "%ld", space);
		ASSERT_EQ(0, write_text(FAILSLAB "space", text));
		set_open(self->make_fd, "1");
		ret = munmap(p, RANGE);
		err = errno;
		set_open(self->make_fd, "0");
		ASSERT_TRUE(one_round(p, edge, ret, err, &tally));
	}
	ksft_print_msg("up to %ld bytes\n", space);
	EXPECT_LT(0, tally.succeeded);
	expect_tally(_metadata, &tally, &self->before, variant->on);
}

int main(int argc, char **argv)
{
	return vm_knob_kept(&munmap_knob, test_harness_run, argc, argv);
}
