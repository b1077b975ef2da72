// SPDX-License-Identifier: GPL-2.0-only
/*
 * vm.pmd_clear_ipi_free: the broadcasts that each value sends, counted by the
 * kernel's own tracepoint, and semantics that are the same for all values.
 *
 * The tests hold on every kernel that frees page tables by RCU; the counters of
 * the switch are only checked where the kernel has them.
 */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../../kselftest_harness.h"
#include "hugetlb_util.h"
#include "pmd_clear_util.h"

#define TIMEOUT		180
#define AREAS		16
#define TAG		0x70745f73796e6301ULL

FIXTURE(pmd_clear) {
	bool have;		/* the kernel has the switch */
	long others;		/* CPUs that a broadcast interrupts */
	struct table_usage usage;
	struct counters before;
	struct trace_session trace;
	bool tracing;
	struct rendezvous *meet;
};

FIXTURE_VARIANT(pmd_clear) {
	enum pmd_clear_mode mode;
};

FIXTURE_VARIANT_ADD(pmd_clear, stock) { .mode = MODE_STOCK };
FIXTURE_VARIANT_ADD(pmd_clear, ipi_free) { .mode = MODE_IPI_FREE };
FIXTURE_VARIANT_ADD(pmd_clear, legacy) { .mode = MODE_LEGACY };

FIXTURE_SETUP(pmd_clear)
{
	const char *why = vm_knob_set(&pmd_clear_knob, variant->mode);

	if (why)
		SKIP(return, "%s", why);
	self->have = vm_sysctl_exists(PMD_CLEAR_KNOB);
	self->others = sysconf(_SC_NPROCESSORS_ONLN) - 1;
	self->meet = map_shared(sizeof(*self->meet));
	ASSERT_NE(NULL, self->meet);
	self->tracing = !trace_start(&self->trace, "csd");
	self->before = counters_read("pmd_clear_");
	table_usage_read(&self->usage);
}

FIXTURE_TEARDOWN(pmd_clear)
{
	if (self->tracing)
		trace_free(&self->trace);
}

/* The number of calls of @func on other CPUs since the trace was started. */
static long calls_of(struct trace_session *trace, const char *func)
{
	const char *pos;
	char line[256], want[64];
	long calls = 0;

	if (trace_stop(trace))
		return -1;
	snprintf(want, sizeof(want), "func=%s ", func);
	for (pos = trace->text; pos;) {
		pos = trace_next(pos, "csd_queue_cpu", line, sizeof(line));
		if (pos && strstr(line, want))
			calls++;
	}
	return calls;
}

/* Of @n operations at @site, all have waited for other CPUs, or none. */
static void expect_waits(struct __test_metadata *_metadata,
			 FIXTURE_DATA(pmd_clear) *self, bool sent,
			 const char *site, long n)
{
	char ipi[32], avoided[32];

	snprintf(ipi, sizeof(ipi), "ipi_%s", site);
	snprintf(avoided, sizeof(avoided), "avoided_%s", site);
	if (self->have) {
		EXPECT_EQ(sent ? n : 0, counted(&self->before, ipi));
		EXPECT_EQ(sent ? 0 : n, counted(&self->before, avoided));
	}
	if (self->tracing) {
		EXPECT_EQ(sent ? n * self->others : 0,
			  calls_of(&self->trace, "tlb_remove_table_smp_sync"));
	} else {
		TH_LOG("no csd trace events: IPIs are not counted");
	}
}

/* --- a huge page replaces a table */

TEST_F_TIMEOUT(pmd_clear, collapse, TIMEOUT)
{
	bool sent = variant->mode != MODE_IPI_FREE || collapse_needs_ipi();
	size_t len = AREAS * pmd_size();
	char *p = map_collapsible(AREAS, TAG);
	long before, after;

	ASSERT_NE(NULL, p);
	before = page_tables_kb();
	if (madvise(p, len, MADV_COLLAPSE) && errno == EINVAL)
		SKIP(return, "this kernel has no transparent huge pages");
	after = page_tables_kb();
	/* Each table was replaced by a fresh one. */
	EXPECT_EQ(before, after);
	EXPECT_EQ(AREAS, huge_areas(p, AREAS));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	expect_waits(_metadata, self, sent, "collapse", AREAS);
	if (self->have)
		EXPECT_EQ(variant->mode == MODE_IPI_FREE && sent ? AREAS : 0,
			  counted(&self->before, "fallback"));

	/* A huge page is split into its deposited table. */
	before = page_tables_kb();
	EXPECT_EQ(0, madvise(p, page_size(), MADV_DONTNEED));
	EXPECT_EQ(0, word_read(p));
	word_write(p, page_word(TAG, 0));
	after = page_tables_kb();
	EXPECT_EQ(before, after);
	EXPECT_EQ(AREAS - 1, huge_areas(p, AREAS));
	EXPECT_EQ(0, bad_pages(p, len, TAG));

	EXPECT_EQ(0, munmap(p, len));
	EXPECT_TRUE(table_usage_returns(&self->usage));
}

static bool stay_on_cpu(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	return !sched_setaffinity(0, sizeof(set), &set);
}

/* No memory for a fresh table: the IPI is sent. */
TEST_F_TIMEOUT(pmd_clear, collapse_no_memory, TIMEOUT)
{
	char *p = map_collapsible(AREAS, TAG);
	size_t len = AREAS * pmd_size();
	int err, tries = 0;
	char *empty;

#if defined(__powerpc__) || defined(__s390__) || defined(__sparc__)
	SKIP(return, "this architecture always waits for a table's memory");
#endif
	ASSERT_NE(NULL, p);
	empty = map_apart(2 * pmd_size());
	ASSERT_NE(NULL, empty);
	/* Without an anon_vma, the call would return before it allocates. */
	word_write(empty + pmd_size(), TAG);
	ASSERT_TRUE(stay_on_cpu());
	if (!fail_allocations(FAIL_ALL))
		SKIP(return, "needs root, debugfs and CONFIG_FAIL_PAGE_ALLOC");
	/*
	 * The call also allocates an object from a slab, which fails if this
	 * CPU has no free one.  So before each try, a call without failures
	 * leaves some: there is nothing to collapse, but it allocates the same.
	 */
	do {
		fail_allocations(FAIL_NONE);
		madvise(empty, pmd_size(), MADV_COLLAPSE);
		fail_allocations(FAIL_ALL);
		err = madvise(p, len, MADV_COLLAPSE);
	} while (err && ++tries < 5);
	fail_allocations(FAIL_NONE);
	EXPECT_EQ(0, err);
	EXPECT_EQ(AREAS, huge_areas(p, AREAS));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	expect_waits(_metadata, self, true, "collapse", AREAS);
	if (self->have)
		EXPECT_EQ(variant->mode == MODE_IPI_FREE ? AREAS : 0,
			  counted(&self->before, "fallback"));
	EXPECT_EQ(0, munmap(empty, 2 * pmd_size()));
	EXPECT_EQ(0, munmap(p, len));
	EXPECT_TRUE(table_usage_returns(&self->usage));
}

/* A page has an extra reference: everything stays as it was. */
TEST_F_TIMEOUT(pmd_clear, collapse_gives_up, TIMEOUT)
{
	size_t ps = page_size(), len = 2 * pmd_size();
	char *p = map_collapsible(2, TAG);
	struct iovec iov = { .iov_len = sizeof(__u64) };
	bool sent = variant->mode != MODE_IPI_FREE || collapse_needs_ipi();
	__u64 word = 0;
	int fds[2];

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, pipe(fds));
	iov.iov_base = p + 3 * ps;
	ASSERT_EQ((ssize_t)sizeof(word), vmsplice(fds[1], &iov, 1, 0));
	EXPECT_NE(0, madvise(p, pmd_size(), MADV_COLLAPSE));
	EXPECT_EQ(0, huge_areas(p, 2));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	/* It is still the page that the pipe has. */
	word_write(p + 3 * ps, ~0ULL);
	ASSERT_EQ((ssize_t)sizeof(word), read(fds[0], &word, sizeof(word)));
	EXPECT_EQ(~0ULL, word);
	word_write(p + 3 * ps, page_word(TAG, 3));

	EXPECT_EQ(0, madvise(p, len, MADV_COLLAPSE));
	EXPECT_EQ(2, huge_areas(p, 2));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	/* The failed collapse may have got that far, so no exact count. */
	if (self->have && !sent)
		EXPECT_EQ(0, counted(&self->before, "ipi_collapse"));

	EXPECT_EQ(0, munmap(p, len));
	EXPECT_TRUE(table_usage_returns(&self->usage));
	close(fds[0]);
	close(fds[1]);
}

#define KHUGEPAGED	"/sys/kernel/mm/transparent_hugepage/khugepaged/"

/* Writes a tunable and returns its old text in @old. */
static bool tune(const char *name, const char *text, char *old, size_t size)
{
	char path[128];

	snprintf(path, sizeof(path), KHUGEPAGED "%s", name);
	if (old && read_text(path, old, size))
		return false;
	return !write_text(path, text);
}

/* khugepaged is not in the group, but the new tables are charged to it. */
TEST_F_TIMEOUT(pmd_clear, khugepaged_charges, TIMEOUT)
{
	size_t len = AREAS * pmd_size();
	char sleep_ms[32], pages[32];
	struct memory_group group;
	long before, after = 0;
	char *p;
	int i;

	if (!memory_group_enter(&group))
		SKIP(return, "no memory cgroups here");
	p = map_collapsible(AREAS, TAG);
	ASSERT_NE(NULL, p);
	/* Looking at the areas may itself need a table, for the heap or the stack. */
	EXPECT_EQ(0, huge_areas(p, AREAS));
	before = memory_group_read(&group, "memory.stat",
				   "pagetables");
	ASSERT_LT(0, before);
	ASSERT_TRUE(tune("scan_sleep_millisecs", "0", sleep_ms,
			 sizeof(sleep_ms)));
	ASSERT_TRUE(tune("pages_to_scan", "65536", pages, sizeof(pages)));
	EXPECT_EQ(0, madvise(p, len, MADV_HUGEPAGE));
	for (i = 0; i < 300 && huge_areas(p, AREAS) < AREAS; i++)
		usleep(100000);
	tune("scan_sleep_millisecs", sleep_ms, NULL, 0);
	tune("pages_to_scan", pages, NULL, 0);
	EXPECT_EQ(AREAS, huge_areas(p, AREAS));
	EXPECT_EQ(0, bad_pages(p, len, TAG));

	/* Old tables are freed after a grace period; statistics lag, too. */
	for (i = 0; i < 100; i++) {
		after = memory_group_read(&group, "memory.stat", "pagetables");
		if (after == before)
			break;
		usleep(100000);
	}
	EXPECT_EQ(before, after);
	if (self->have && variant->mode == MODE_IPI_FREE &&
	    !collapse_needs_ipi())
		/* Other processes' memory may be collapsed, too. */
		EXPECT_LE(AREAS,
			  counted(&self->before, "avoided_collapse"));

	EXPECT_EQ(0, munmap(p, len));
	memory_group_leave(&group);
	EXPECT_TRUE(table_usage_returns(&self->usage));
}

/* --- a shared hugetlb table loses its last but one user */

/* Two children share their parent's table, and unshare it one by one. */
TEST_F_TIMEOUT(pmd_clear, unshare, TIMEOUT)
{
	bool sent = variant->mode != MODE_IPI_FREE;
	struct counters before;
	const char *why = hugetlb_sharing_get(4);
	struct rendezvous *m = self->meet;
	pid_t pids[2];
	char *p;
	int fd, i;

	if (why)
		SKIP(return, "%s", why);
	fd = hugetlb_file(GIB);
	ASSERT_LE(0, fd);
	p = hugetlb_map(fd, GIB);
	ASSERT_NE(NULL, p);
	huge_write(p, 0);
	before = counters_read("hugetlb_");
	for (i = 0; i < 2; i++) {
		pids[i] = fork_bound();
		ASSERT_LE(0, pids[i]);
		if (!pids[i]) {
			wait_for(m, 2 * i);
			if (!huge_good(p, 0))
				_exit(1);
			meet(m, 2 * i + 1);
			wait_for(m, 4 + i);
			_exit(munmap(p, GIB) ? 2 : 0);
		}
		wait_for(m, 2 * i + 1);
		meet(m, 2 * i + 2);
	}
	EXPECT_EQ(2, counted(&before, "pmd_shared"));
	/* Stage 4 is reached, so the first child exits. */
	EXPECT_EQ(0, reap(pids[0]));
	if (self->have)
		EXPECT_EQ(0, counted(&self->before, sent ? "ipi_unshare" :
							   "avoided_unshare"));
	meet(m, 5);
	EXPECT_EQ(0, reap(pids[1]));
	expect_waits(_metadata, self, sent, "unshare", 1);
	EXPECT_TRUE(huge_good(p, 0));
	EXPECT_EQ(0, munmap(p, GIB));
	close(fd);
}

/* --- a table is freed without memory for a batch */

TEST_F_TIMEOUT(pmd_clear, table, TIMEOUT)
{
	bool sent = variant->mode != MODE_IPI_FREE;
	size_t len = AREAS * pmd_size();
	char *p = map_collapsible(AREAS, TAG);
	long waits;

	ASSERT_NE(NULL, p);
	if (!self->have)
		SKIP(return, "this kernel has no such counter");
	if (!fail_allocations(FAIL_HASTY))
		SKIP(return, "needs root, debugfs and CONFIG_FAIL_PAGE_ALLOC");
	EXPECT_EQ(0, munmap(p, len));
	fail_allocations(FAIL_NONE);
	waits = counted(&self->before, "ipi_table") +
		counted(&self->before, "avoided_table");
	if (!waits)
		SKIP(return, "page tables are freed without RCU here");
	/*
	 * One for each area, plus the upper tables; less the last one of the
	 * gather, which may need no batch.
	 */
	EXPECT_LE(AREAS - 1, waits);
	EXPECT_GE(AREAS + 3, waits);
	if (!sent && counted(&self->before, "fallback"))
		SKIP(return, "this architecture needs the IPI");
	expect_waits(_metadata, self, sent, "table", waits);
	EXPECT_TRUE(table_usage_returns(&self->usage));
}

/* --- the trace event */

TEST_F_TIMEOUT(pmd_clear, traced, TIMEOUT)
{
	bool sent = variant->mode != MODE_IPI_FREE || collapse_needs_ipi();
	size_t len = 2 * pmd_size();
	struct trace_session trace;
	unsigned long cpus;
	const char *pos;
	char line[256], *p;
	long events = 0;

	if (!self->have || trace_start(&trace, "faultline"))
		SKIP(return, "this kernel has no such trace events");
	p = map_collapsible(2, TAG);
	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, madvise(p, len, MADV_COLLAPSE));
	ASSERT_EQ(0, trace_stop(&trace));
	for (pos = trace.text; pos;) {
		pos = trace_next(pos, "pmd_clear_wait", line, sizeof(line));
		if (!pos || !strstr(line, "site=collapse"))
			continue;
		events++;
		EXPECT_TRUE(trace_field(line, "cpus", &cpus));
		EXPECT_EQ(sent ? (unsigned long)self->others : 0, cpus);
	}
	EXPECT_EQ(2, events);
	trace_free(&trace);
	munmap(p, len);
}

static int run_all(int argc, char **argv)
{
	return hugetlb_kept(&hugetlb_knob, test_harness_run, argc, argv);
}

int main(int argc, char **argv)
{
	return vm_knob_kept(&pmd_clear_knob, run_all, argc, argv);
}
