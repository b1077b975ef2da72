/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the selftests for vm.hugetlb_zero_ahead: the switch, pools of huge
 * pages of each size, and the contents of such pages.
 */
#ifndef HUGETLB_ZERO_UTIL_H
#define HUGETLB_ZERO_UTIL_H

#include <sys/syscall.h>

#include "hugetlb_util.h"

#define ZERO_KNOB	"hugetlb_zero_ahead"
#define ZERO_TAG	0x7a65726f61686501ULL

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT	26
#endif

static const struct vm_knob zero_knob = {
	.name = ZERO_KNOB,
	.stock = 0,
	.refused = " cannot be written (faultline=off?)",
};

/* Off and on: each of the two flips a static key. */
static const struct flips zero_flips = {
	.name = ZERO_KNOB,
	.values = { 0, 1 },
	.n = 2,
};

/* Delays of CONFIG_FAULTLINE_HUGETLB_ZERO_TORTURE; false if there are none. */
static inline bool zero_window(const char *name, unsigned int us)
{
	char path[96], text[16];

	snprintf(path, sizeof(path), "/sys/kernel/debug/hugetlb_zero_%s_window_us",
		 name);
	snprintf(text, sizeof(text), "%u", us);
	return !write_text(path, text);
}

/* Holds the faults of a process in a window; 0 lets them go. */
static inline bool zero_hold(const char *name, pid_t pid)
{
	char path[96], text[16];

	snprintf(path, sizeof(path), "/sys/kernel/debug/hugetlb_zero_%s_hold",
		 name);
	snprintf(text, sizeof(text), "%d", pid);
	return !write_text(path, text);
}

/* How many faults are held; -1 if the kernel cannot hold any. */
static inline long zero_held(void)
{
	char text[16];

	return read_text("/sys/kernel/debug/hugetlb_zero_held", text,
			 sizeof(text)) ? -1 : atol(text);
}

/* --- pools */

struct pool {
	long total;
	long free;
	long reserved;
	long surplus;
};

static inline struct pool pool_read(size_t page)
{
	return (struct pool) {
		.total = hugetlb_sysfs_of(page, "nr_hugepages"),
		.free = hugetlb_sysfs_of(page, "free_hugepages"),
		.reserved = hugetlb_sysfs_of(page, "resv_hugepages"),
		.surplus = hugetlb_sysfs_of(page, "surplus_hugepages"),
	};
}

static inline bool pool_same(const struct pool *a, const struct pool *b)
{
	return a->total == b->total && a->free == b->free &&
	       a->reserved == b->reserved && a->surplus == b->surplus;
}

/*
 * Pages of a process that has exited may be freed a little later: waits up to a
 * minute until the pool is as before.
 */
static inline bool pool_returns(size_t page, const struct pool *before)
{
	struct pool now;
	int i;

	for (i = 0; i < 3000; i++) {
		now = pool_read(page);
		if (pool_same(before, &now))
			return true;
		usleep(20000);
	}
	ksft_print_msg("pool: total %ld->%ld free %ld->%ld reserved %ld->%ld surplus %ld->%ld\n",
		       before->total, now.total, before->free, now.free,
		       before->reserved, now.reserved, before->surplus,
		       now.surplus);
	return false;
}

static inline void node_path(char *path, size_t size, int node, size_t page,
			     const char *name)
{
	snprintf(path, size, "/sys/devices/system/node/node%d/hugepages/hugepages-%zukB/%s",
		 node, page / KIB, name);
}

/* A count of the pool of one node; -1 if there is no such node. */
static inline long node_pool(int node, size_t page, const char *name)
{
	char path[160], text[32];

	node_path(path, sizeof(path), node, page, name);
	return read_text(path, text, sizeof(text)) ? -1 : atol(text);
}

static inline int node_pool_set(int node, size_t page, long pages)
{
	char path[160], text[32];

	node_path(path, sizeof(path), node, page, "nr_hugepages");
	snprintf(text, sizeof(text), "%ld", pages);
	return write_text(path, text);
}

/* --- pages */

/* The size of huge pages, for mmap() and memfd_create(). */
static inline int size_flag(size_t page)
{
	return __builtin_ctzl(page) << MAP_HUGE_SHIFT;
}

/* Private memory of @n pages; NULL if they cannot be reserved. */
static inline char *map_pages(size_t page, size_t n, int flags)
{
	char *p = mmap(NULL, n * page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
		       size_flag(page) | flags, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* A file of @n pages, or -1. */
static inline int file_of(size_t page, size_t n)
{
	int fd = memfd_create("faultline",
			      MFD_CLOEXEC | MFD_HUGETLB | size_flag(page));

	if (fd >= 0 && ftruncate(fd, n * page)) {
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * The words of a page that tests fill and check: one in each base page at least,
 * at an offset that is another one in each of them.
 */
static inline size_t word_step(size_t page)
{
	return page / 4096 < page_size() ? page / 4096 : page_size();
}

static inline size_t words_of(size_t page)
{
	return page / word_step(page);
}

static inline char *word_of(char *p, size_t page, size_t i)
{
	return p + i * word_step(page) + i * 40 % word_step(page) / 8 * 8;
}

static inline void page_fill(char *p, size_t page, __u64 tag)
{
	size_t i;

	for (i = 0; i < words_of(page); i++)
		word_write(word_of(p, page, i), page_word(tag, i));
}

/* The number of words that page_fill() has not written. */
static inline size_t page_wrong(char *p, size_t page, __u64 tag)
{
	size_t i, n = 0;

	for (i = 0; i < words_of(page); i++)
		n += word_read(word_of(p, page, i)) != page_word(tag, i);
	return n;
}

/* The number of words that are not 0. */
static inline size_t page_dirty(char *p, size_t page)
{
	size_t i, n = 0;

	for (i = 0; i < words_of(page); i++)
		n += word_read(word_of(p, page, i)) != 0;
	return n;
}

/* The node of a page that is mapped; negative if there is none. */
static inline int node_of(void *p)
{
	int status = -ENOENT;

	return syscall(SYS_move_pages, 0, 1UL, &p, NULL, &status, 0) ? -errno :
								       status;
}

/* --- memory that fails */

/* The physical address of a page that is mapped; 0: not permitted. */
static inline __u64 physical(void *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	__u64 word = 0;

	if (pread(fd, &word, sizeof(word),
		  (uintptr_t)p / page_size() * sizeof(word)) != sizeof(word))
		word = 0;
	close(fd);
	return (word & ((1ULL << 55) - 1)) * page_size();
}

/* Takes a free page of the pool out of use; false: the kernel cannot. */
static inline bool memory_fails(const char *how, __u64 address)
{
	char path[80], text[32];

	snprintf(path, sizeof(path), "/sys/devices/system/memory/%s", how);
	snprintf(text, sizeof(text), "0x%llx", (unsigned long long)address);
	return address && !write_text(path, text);
}

#endif /* HUGETLB_ZERO_UTIL_H */
