/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the section-wise walk selftests: the knob, and the files of /proc that
 * walk the memory of a process.
 */
#ifndef WALK_UTIL_H
#define WALK_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../kselftest.h"
#include "faultline_util.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif

#define WALK_KNOB	"walk_section_kbytes"

static const struct vm_knob walk_knob = {
	.name = WALK_KNOB,
	.stock = 0,
	.refused = " cannot be written (faultline=off?)",
};

static const struct flips walk_flips = {
	.name = WALK_KNOB,
	.values = { 65536, 4096, 65536, 0 },
	.n = 4,
	/* All but the last: writing 0 and back flips a static key. */
	.n_keyless = 3,
};

/* mbind() to one node; 0, or -1 with errno. */
static inline long bind_to_node(void *addr, size_t len, int node, int flags)
{
	unsigned long nodes = 1UL << node;

	return syscall(SYS_mbind, addr, len, MPOL_BIND, &nodes,
		       8 * sizeof(nodes), flags);
}

/* Can memory be on either of two nodes? */
static inline bool have_nodes(void)
{
	char *page = map_fresh(page_size());
	int node;

	for (node = 0; page && node < 2; node++)
		if (bind_to_node(page, page_size(), node, 0))
			break;
	munmap(page, page_size());
	return page && node == 2;
}

/* The node that memory is bound to; -1 if it is not. */
static inline int bound_to_node(const void *addr)
{
	unsigned long nodes = 0;
	int mode;

	if (syscall(SYS_get_mempolicy, &mode, &nodes, 8 * sizeof(nodes), addr,
		    MPOL_F_ADDR) || mode != MPOL_BIND)
		return -1;
	return __builtin_ffsl(nodes) - 1;
}

/* Pages of a range that are on a node. */
static inline size_t pages_on_node(char *addr, size_t len, int node)
{
	size_t n = len / page_size(), found = 0, i;
	void **pages = calloc(n, sizeof(*pages));
	int *nodes = calloc(n, sizeof(*nodes));

	for (i = 0; pages && i < n; i++)
		pages[i] = addr + i * page_size();
	if (pages && nodes &&
	    !syscall(SYS_move_pages, 0, n, pages, NULL, nodes, 0))
		for (i = 0; i < n; i++)
			found += nodes[i] == node;
	free(pages);
	free(nodes);
	return found;
}

/* Forgets which pages of a process were used; 0 or -errno. */
static inline int clear_refs(pid_t pid, const char *type)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, __func__);
	return write_text(path, type);
}

/* A field of /proc/PID/smaps_rollup in kB; -1 if there is none. */
static inline long rollup_kb(pid_t pid, const char *field)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	return proc_kb(path, field);
}

/* Reads a file of /proc/PID to its end; its bytes, or -errno. */
static inline long read_all(pid_t pid, const char *name)
{
	char path[64], text[16384];
	long sum = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	while ((n = read(fd, text, sizeof(text))) > 0)
		sum += n;
	close(fd);
	return n < 0 ? -errno : sum;
}

/* The pages of a range that are in memory; takes mmap_lock for reading. */
static inline size_t resident_pages(void *addr, size_t len)
{
	size_t n = len / page_size(), i, found = 0;
	unsigned char *vec = malloc(n);

	if (vec && !mincore(addr, len, vec))
		for (i = 0; i < n; i++)
			found += vec[i] & 1;
	free(vec);
	return found;
}

/* Memory of base pages without any page; NULL on failure. */
static inline void *map_empty(size_t len)
{
	void *p = map_fresh(len);

	if (p)
		madvise(p, len, MADV_NOHUGEPAGE);
	return p;
}

/* Memory that the kernel counts as mlocked, in kB; no page is still in a batch. */
static inline long mlocked_kb(void)
{
	/* Drains the batches of all CPUs, and then their counters. */
	write_text("/proc/sys/vm/drop_caches", "1");
	write_text("/proc/sys/vm/stat_refresh", "1");
	return meminfo_kb("Mlocked");
}

/* The limit of RLIMIT_MEMLOCK holds for root as well, for this thread; 0 or -1. */
static inline int memlock_limit(size_t bytes)
{
	const struct rlimit limit = { bytes, bytes };
	/* struct __user_cap_header_struct and two of __user_cap_data_struct */
	__u32 head[2] = { 0x20080522, 0 }, caps[6];

	if (setrlimit(RLIMIT_MEMLOCK, &limit) ||
	    syscall(SYS_capget, head, caps))
		return -1;
	/* CAP_IPC_LOCK, of those that are effective */
	caps[0] &= ~(1U << 14);
	return syscall(SYS_capset, head, caps);
}

/* A mapping of a new file in memory, with all its pages; NULL on failure. */
static inline char *map_memfd(size_t len)
{
	int fd = memfd_create("walk", MFD_CLOEXEC);
	char *p = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, len))
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return NULL;
	if (madvise(p, len, MADV_POPULATE_WRITE)) {
		munmap(p, len);
		return NULL;
	}
	return p;
}

/* A private mapping, far from others, of the file of another; NULL on failure. */
static inline char *map_private_again(const char *file, size_t len)
{
	char path[64], *p = MAP_FAILED;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx",
		 (unsigned long)file, (unsigned long)file + len);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		p = mmap(free_range(len), len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

/* The pages of a range that were written to since the bits were cleared. */
static inline size_t soft_dirty(const void *addr, size_t len)
{
	return pagemap_pages(addr, len, PAGEMAP_SOFT_DIRTY);
}

/* One PAGEMAP_SCAN for written pages. */
struct scan {
	struct page_region *regions;
	size_t n;		/* room for regions, or 0 */
	__u64 flags, max_pages;
	const char *walk_end;	/* set by it */
};

/* The number of regions found, or -errno. */
static inline long scan_written(struct scan *scan, const void *addr, size_t len)
{
	struct pm_scan_arg arg = {
		.size = sizeof(arg),
		.flags = scan->flags,
		.start = (uintptr_t)addr,
		.end = (uintptr_t)addr + len,
		.vec = (uintptr_t)scan->regions,
		.vec_len = scan->n,
		.max_pages = scan->max_pages,
		.category_mask = PAGE_IS_WRITTEN,
		.return_mask = PAGE_IS_WRITTEN,
	};
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	long ret;

	if (fd < 0)
		return -errno;
	ret = ioctl(fd, PAGEMAP_SCAN, &arg);
	if (ret < 0)
		ret = -errno;
	close(fd);
	scan->walk_end = (const char *)(uintptr_t)arg.walk_end;
	return ret;
}

/* A userfaultfd that write-protects without events, also what is not there; or -1. */
static inline int uffd_open_async(void)
{
	return uffd_open(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED |
			 UFFD_FEATURE_WP_HUGETLBFS_SHMEM, NULL);
}

/* linux/io_uring.h does not compile with the headers of tools/include. */
#define RING_REGISTER_BUFFERS	0
#define RING_UNREGISTER_BUFFERS	1

static inline int ring_open(void)
{
	/* struct io_uring_params */
	__u32 params[30] = { };

	return syscall(__NR_io_uring_setup, 1, params);
}

/* Pins a buffer; 0 or an error number. */
static inline int ring_register(int ring, void *p, size_t len)
{
	struct iovec vec = { p, len };

	return syscall(__NR_io_uring_register, ring, RING_REGISTER_BUFFERS,
		       &vec, 1) ? errno : 0;
}

static inline int ring_unregister(int ring)
{
	return syscall(__NR_io_uring_register, ring,
		       RING_UNREGISTER_BUFFERS, NULL, 0) ? errno : 0;
}

#endif /* WALK_UTIL_H */
