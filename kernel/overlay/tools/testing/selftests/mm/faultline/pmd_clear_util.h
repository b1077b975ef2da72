/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the selftests for vm.pmd_clear_ipi_free: the switch, its counters,
 * and memory that can be collapsed into huge pages.
 */
#ifndef PMD_CLEAR_UTIL_H
#define PMD_CLEAR_UTIL_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../../kselftest.h"
#include "faultline_util.h"

#define PMD_CLEAR_KNOB	"pmd_clear_ipi_free"

enum pmd_clear_mode {
	MODE_STOCK,
	MODE_IPI_FREE,
	MODE_LEGACY,
};

static const struct vm_knob pmd_clear_knob = {
	.name = PMD_CLEAR_KNOB,
	.stock = MODE_STOCK,
	.refused = " rejects this value here",
};

static const struct flips pmd_clear_flips = {
	.name = PMD_CLEAR_KNOB,
	.values = { MODE_STOCK, MODE_IPI_FREE },
	.n = 2,
};

/*
 * Whether the MMU needs the IPI for a collapse regardless of the switch, as the
 * hash MMU of powerpc does.
 */
static inline bool collapse_needs_ipi(void)
{
	char line[256];
	bool hash = false;
	FILE *f = fopen("/proc/cpuinfo", "re");

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, "MMU", 3) && strstr(line, "Hash"))
			hash = true;
	fclose(f);
	return hash;
}

/* State that must be as before once the processes have exited. */
struct table_usage {
	long tables;
	long anon;
};

static inline void table_usage_read(struct table_usage *u)
{
	/* Fold in the per-CPU counts. */
	write_text("/proc/sys/vm/stat_refresh", "1");
	u->tables = vmstat_read("nr_page_table_pages");
	u->anon = vmstat_read("nr_anon_pages");
}

/*
 * Tables are freed after a grace period: waits for up to a minute.  The test and
 * other processes may have gained a few tables, and pages for the text of a
 * trace.  A leak would be a table for each operation, or the hundreds of pages
 * that it maps.
 */
static inline bool table_usage_returns(const struct table_usage *before)
{
	struct table_usage now;
	int i;

	for (i = 0; i < 1200; i++) {
		table_usage_read(&now);
		if (now.tables <= before->tables + 8 &&
		    now.anon <= before->anon + 256)
			return true;
		usleep(50000);
	}
	ksft_print_msg("page tables %ld->%ld, anonymous pages %ld->%ld\n",
		       before->tables, now.tables, before->anon, now.anon);
	return false;
}

/*
 * Maps memory for @areas huge pages, suitably aligned, and fills it with base
 * pages; NULL on failure.  There are no neighbours, so every area has its own
 * page table.
 */
static inline char *map_collapsible(size_t areas, __u64 tag)
{
	size_t len = areas * pmd_size();
	char *p = map_apart(len);

	if (!p)
		return NULL;
	/* Not by madvise(): MADV_COLLAPSE would respect it. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	fill_pages(p, len, tag);
	prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
	return p;
}

/* How many of the areas are huge pages. */
static inline long huge_areas(char *p, size_t areas)
{
	return smaps_kb(p, areas * pmd_size(), "AnonHugePages") /
	       (long)(pmd_size() / KIB);
}

/*
 * Sets the longest delay, in microseconds, of get_user_pages_fast() and of a
 * collapse in their race windows; false if the kernel lacks this option.
 */
static inline bool pmd_clear_window(int us)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", us);
	return !write_text("/sys/kernel/debug/pmd_clear_window_us", text);
}

/* Page allocations that fail; those for user memory never do. */
enum failing { FAIL_NONE, FAIL_HASTY, FAIL_ALL };

/*
 * Makes page allocations of this thread fail: those that must not sleep, or
 * all; false if the kernel cannot.
 */
static inline bool fail_allocations(enum failing which)
{
	const struct fault_setting settings[] = {
		{ "interval", "1" }, { "times", "-1" }, { "verbose", "0" },
		{ "min-order", "0" }, { "task-filter", "Y" },
		{ "ignore-gfp-highmem", "Y" },
		{ "ignore-gfp-wait", which == FAIL_HASTY ? "Y" : "N" },
		{ "probability", "100" },
	};
	/* Stays open: a thread whose allocations fail cannot open it. */
	static __thread int fd = -1;

	if (fd < 0)
		fd = open("/proc/thread-self/make-it-fail",
			  O_WRONLY | O_CLOEXEC);
	if (which == FAIL_NONE)
		return pwrite(fd, "0", 1, 0) == 1 &&
		       !write_text("/sys/kernel/debug/fail_page_alloc/probability",
				   "0");
	return fault_attr_set("fail_page_alloc", settings,
			      ARRAY_SIZE(settings)) &&
	       pwrite(fd, "1", 1, 0) == 1;
}

#endif /* PMD_CLEAR_UTIL_H */
