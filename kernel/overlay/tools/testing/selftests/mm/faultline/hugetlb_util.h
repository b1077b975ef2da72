/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the selftests for hugetlb page table sharing: the switch, its
 * counters, the pool of huge pages, and files whose pages identify their
 * offset.
 */
#ifndef HUGETLB_UTIL_H
#define HUGETLB_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../kselftest.h"
#include "faultline_util.h"

#define HUGETLB_KNOB		"hugetlb_pmd_sharing"
#define HUGETLB_TRIGGER		"hugetlb_pmd_unshare"
#define HUGETLB_TAG		0x68756765746c6201ULL

enum hugetlb_mode {
	MODE_OFF,
	MODE_VMA_LOCK,
	MODE_REVALIDATE,
};

/* State that must be as before once everything is unmapped and closed. */
struct hugetlb_usage {
	long total;
	long free;
	long reserved;
	long surplus;
	long tables_shared;
	long table_refs;
};

/* A sysfs file of the pool of huge pages of @page bytes. */
static inline void hugetlb_path_of(char *path, size_t size, size_t page,
				   const char *name)
{
	snprintf(path, size, "/sys/kernel/mm/hugepages/hugepages-%zukB/%s",
		 page / KIB, name);
}

/* Returns -1 if there is no such pool. */
static inline long hugetlb_sysfs_of(size_t page, const char *name)
{
	char path[160], text[32];

	hugetlb_path_of(path, sizeof(path), page, name);
	return read_text(path, text, sizeof(text)) ? -1 : atol(text);
}

static inline int hugetlb_sysfs_set(size_t page, const char *name, long value)
{
	char path[160], text[32];

	hugetlb_path_of(path, sizeof(path), page, name);
	snprintf(text, sizeof(text), "%ld", value);
	return write_text(path, text);
}

/* The same for the pool of PMD-sized pages. */
static inline long hugetlb_sysfs(const char *name)
{
	return hugetlb_sysfs_of(pmd_size(), name);
}

static inline int hugetlb_pool_set(long pages)
{
	return hugetlb_sysfs_set(pmd_size(), "nr_hugepages", pages);
}

static inline void hugetlb_usage_read(struct hugetlb_usage *u)
{
	u->total = hugetlb_sysfs("nr_hugepages");
	u->free = hugetlb_sysfs("free_hugepages");
	u->reserved = hugetlb_sysfs("resv_hugepages");
	u->surplus = hugetlb_sysfs("surplus_hugepages");
	u->tables_shared = hugetlb_sysfs("pmd_tables_shared");
	u->table_refs = hugetlb_sysfs("pmd_table_refs");
}

static inline bool hugetlb_usage_same(const struct hugetlb_usage *before,
				      const struct hugetlb_usage *now)
{
	if (!memcmp(before, now, sizeof(*now)))
		return true;
	ksft_print_msg("pages: total %ld->%ld free %ld->%ld reserved %ld->%ld surplus %ld->%ld\n",
		       before->total, now->total, before->free, now->free,
		       before->reserved, now->reserved,
		       before->surplus, now->surplus);
	ksft_print_msg("page tables: shared %ld->%ld references %ld->%ld\n",
		       before->tables_shared, now->tables_shared,
		       before->table_refs, now->table_refs);
	return false;
}

/*
 * Pages are freed with their last user, and the exit of a reaped process may
 * still be pending in a worker.  Waits for up to a minute.
 */
static inline bool hugetlb_usage_returns(const struct hugetlb_usage *before)
{
	struct hugetlb_usage now;
	int i;

	for (i = 0; i < 3000; i++) {
		hugetlb_usage_read(&now);
		if (!memcmp(before, &now, sizeof(now)))
			return true;
		usleep(20000);
	}
	return hugetlb_usage_same(before, &now);
}

static const struct vm_knob hugetlb_knob = {
	.name = HUGETLB_KNOB,
	.stock = MODE_VMA_LOCK,
	.refused = " rejects this value",
};

static inline const char *hugetlb_mode_set(long mode)
{
	return vm_knob_set(&hugetlb_knob, mode);
}

/* Makes at least @pages huge pages free; returns NULL or the reason why not. */
static inline const char *hugetlb_pool_get(long pages)
{
	long lack = pages - (hugetlb_sysfs("free_hugepages") -
			     hugetlb_sysfs("resv_hugepages"));

	if (hugetlb_sysfs("nr_hugepages") < 0)
		return "this kernel has no PMD-sized huge pages";
	if (lack <= 0)
		return NULL;
	if (hugetlb_pool_set(hugetlb_sysfs("nr_hugepages") + lack))
		return "needs root to reserve huge pages";
	if (hugetlb_sysfs("free_hugepages") -
	    hugetlb_sysfs("resv_hugepages") < pages)
		return "not enough memory for the huge pages";
	return NULL;
}

/*
 * Enables page table sharing and makes @pages huge pages free; returns NULL or
 * the reason why not.
 */
static inline const char *hugetlb_sharing_get(long pages)
{
	const char *why = hugetlb_pool_get(pages);

	if (!why)
		why = hugetlb_mode_set(MODE_VMA_LOCK);
	if (!why && vmstat_read("hugetlb_pmd_shared") < 0)
		why = "this kernel does not share page tables or does not count it";
	return why;
}

/*
 * Makes @percent of the attempts of @what fail, a fault attribute in debugfs.
 * Returns false if the kernel lacks it.
 */
static inline bool hugetlb_inject(const char *what, int percent)
{
	char chance[16];
	const struct fault_setting settings[] = {
		{ "interval", "1" }, { "times", "-1" }, { "verbose", "0" },
		{ "probability", chance },
	};

	snprintf(chance, sizeof(chance), "%d", percent);
	return fault_attr_set(what, settings, ARRAY_SIZE(settings));
}

/*
 * Whether fail-nth of a thread also concerns page tables: allocations of single
 * pages that may sleep.  Returns false if the kernel lacks CONFIG_FAIL_PAGE_ALLOC.
 */
static inline bool page_tables_fail(bool fail)
{
	const struct fault_setting settings[] = {
		{ "ignore-gfp-wait", fail ? "N" : "Y" },
		{ "min-order", fail ? "0" : "1" }, { "verbose", "0" },
	};

	return fault_attr_set("fail_page_alloc", settings,
			      ARRAY_SIZE(settings));
}

static inline size_t huge_size(void)
{
	return pmd_size();
}

/* A sparse file of huge pages, or -1. */
static inline int hugetlb_file(size_t size)
{
	int fd = memfd_create("faultline", MFD_CLOEXEC | MFD_HUGETLB);

	if (fd >= 0 && ftruncate(fd, size)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Maps a file at the free address @addr; NULL on failure. */
static inline char *hugetlb_map_at(void *addr, int fd, size_t len, int prot)
{
	char *p = mmap(addr, len, prot,
		       MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Maps a file where whole page tables can be shared. */
static inline char *hugetlb_map(int fd, size_t len)
{
	return hugetlb_map_at(free_huge_range(len), fd, len,
			      PROT_READ | PROT_WRITE);
}

/* Removes pages from a file. */
static inline bool hugetlb_punch(int fd, off_t offset, size_t len)
{
	return !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  offset, len);
}

/* The content of page @index of a file, unless it is 0. */
static inline __u64 huge_word(size_t index)
{
	return page_word(HUGETLB_TAG, index);
}

static inline void huge_write(char *map, size_t index)
{
	word_write(map + index * huge_size(), huge_word(index));
}

static inline bool huge_good(char *map, size_t index)
{
	return word_read(map + index * huge_size()) == huge_word(index);
}

static inline void huge_fill(char *map, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		huge_write(map, i);
}

/* The number of pages of [0, n) with wrong content. */
static inline size_t huge_bad(char *map, size_t n)
{
	size_t i, bad = 0;

	for (i = 0; i < n; i++)
		bad += !huge_good(map, i);
	return bad;
}

/* Runs a program's tests, then restores a switch and the number of huge pages. */
static inline int hugetlb_kept(const struct vm_knob *knob,
			       int (*run)(int argc, char **argv), int argc,
			       char **argv)
{
	long pages = hugetlb_sysfs("nr_hugepages");
	int status = vm_knob_kept(knob, run, argc, argv);

	if (pages >= 0 && pages != hugetlb_sysfs("nr_hugepages"))
		hugetlb_pool_set(pages);
	return status;
}

#endif /* HUGETLB_UTIL_H */
