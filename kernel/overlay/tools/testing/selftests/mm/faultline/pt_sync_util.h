/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the selftests for vm.pmd_clear_ipi_free: the switch, its counters,
 * and memory that can be collapsed into huge pages.
 */
#ifndef PT_SYNC_UTIL_H
#define PT_SYNC_UTIL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../../kselftest.h"
#include "faultline_util.h"

#define PT_SYNC_KNOB	"pmd_clear_ipi_free"

enum pt_sync_mode {
	MODE_STOCK,
	MODE_IPI_FREE,
	MODE_LEGACY,
};

enum pt_sync_counter {
	PT_SYNC_IPI_COLLAPSE,
	PT_SYNC_IPI_UNSHARE,
	PT_SYNC_IPI_TABLE,
	PT_SYNC_AVOIDED_COLLAPSE,
	PT_SYNC_AVOIDED_UNSHARE,
	PT_SYNC_AVOIDED_TABLE,
	PT_SYNC_FALLBACK,
	PT_SYNC_RETRY,
	PT_SYNC_NR_COUNTERS,
};

static const char * const pt_sync_counters[PT_SYNC_NR_COUNTERS + 1] = {
	[PT_SYNC_IPI_COLLAPSE]		= "pt_sync_ipi_collapse",
	[PT_SYNC_IPI_UNSHARE]		= "pt_sync_ipi_unshare",
	[PT_SYNC_IPI_TABLE]		= "pt_sync_ipi_table",
	[PT_SYNC_AVOIDED_COLLAPSE]	= "pt_sync_avoided_collapse",
	[PT_SYNC_AVOIDED_UNSHARE]	= "pt_sync_avoided_unshare",
	[PT_SYNC_AVOIDED_TABLE]		= "pt_sync_avoided_table",
	[PT_SYNC_FALLBACK]		= "pt_sync_fallback",
	[PT_SYNC_RETRY]			= "gup_fast_unshare_retry",
};

static const struct vm_knob pt_sync_knob = {
	.name = PT_SYNC_KNOB,
	.stock = MODE_STOCK,
	.refused = " rejects this value here",
};

static const struct flips pt_sync_flips = {
	.name = PT_SYNC_KNOB,
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
 * Tables are freed after a grace period.  The test and other processes may have
 * gained a few tables, and pages for the text of a trace.  A leak would be a
 * table for each operation, or the hundreds of pages that it maps.
 */
static inline bool table_usage_returns(const struct table_usage *before)
{
	struct table_usage now;
	int i;

	for (i = 0; i < 200; i++) {
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
	char *p;

	p = mmap(free_range(len), len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (p == MAP_FAILED)
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
static inline bool pt_sync_window(int us)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", us);
	return !write_text("/sys/kernel/debug/pt_sync_window_us", text);
}

/*
 * Makes this thread's page allocations fail, except those that may sleep; false
 * if the kernel cannot.
 */
static inline bool fail_hasty_allocations(bool on)
{
	static const struct fault_setting settings[] = {
		{ "interval", "1" }, { "times", "-1" }, { "verbose", "0" },
		{ "min-order", "0" }, { "task-filter", "Y" },
		{ "ignore-gfp-wait", "Y" }, { "probability", "100" },
	};

	if (!on)
		return !write_text("/proc/thread-self/make-it-fail", "0") &&
		       !write_text("/sys/kernel/debug/fail_page_alloc/probability",
				   "0");
	return fault_attr_set("fail_page_alloc", settings,
			      ARRAY_SIZE(settings)) &&
	       !write_text("/proc/thread-self/make-it-fail", "1");
}

#endif /* PT_SYNC_UTIL_H */
