// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise munmap: semantics that are the same with the switch on and off.
 *
 * Each test runs as "off" (knob 0; also on a kernel without the feature) and
 * as "on" (the smallest sections).  Both expect the same outcome; in addition,
 * "on" must have worked in sections, and "off" must not.
 */
#include <asm/unistd.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "../../kselftest_harness.h"
#include "munmap_util.h"

#define TAG		0x6d756e6d61703031ULL
#define BIG		MAX(64 * MIB, 4 * pmd_size())
/* The same, of 2048 pages at least. */
#define WIDE		MAX(BIG, 2048 * page_size())
#define TIMEOUT		300

/* The state of a test; FIXTURE() only wraps it. */
struct state {
	bool on;
	struct idle_thread idle;
	struct counters before;
	struct trace_session trace;
	long vm_size;
	long vm_lck;
	long vm_pte;
};

FIXTURE(munmap) {
	struct state s;
};

FIXTURE_VARIANT(munmap) {
	bool on;
};

FIXTURE_VARIANT_ADD(munmap, off) { .on = false };
FIXTURE_VARIANT_ADD(munmap, on) { .on = true };

FIXTURE_SETUP(munmap)
{
	const char *why = munmap_knob_set(variant->on ? MUNMAP_SMALL_KB : 0);

	self->s.on = variant->on;
	if (why)
		SKIP(return, "%s", why);
	ASSERT_EQ(0, idle_thread_start(&self->s.idle));
}

FIXTURE_TEARDOWN(munmap)
{
	trace_free(&self->s.trace);
	idle_thread_stop(&self->s.idle);
}

/* Records the state of memory and counters before the mapping is made. */
static void note_base(struct state *s)
{
	s->before = counters_read("munmap_section_");
	s->vm_size = status_kb("VmSize");
	s->vm_lck = status_kb("VmLck");
	s->vm_pte = status_kb("VmPTE");
}

/*
 * All memory mapped since note_base() has been freed.  The heap and the stack
 * may have grown into another table each; a table that is left is reported by
 * the kernel when the process exits.
 */
static void expect_base(struct __test_metadata *_metadata, struct state *s)
{
	long grown = 2 * page_size() / KIB;

	EXPECT_EQ(s->vm_size, status_kb("VmSize"));
	EXPECT_EQ(s->vm_lck, status_kb("VmLck"));
	EXPECT_GE(s->vm_pte + grown, status_kb("VmPTE"));
}

/* With the switch on, one call since note_base() worked in sections. */
static void expect_sections(struct __test_metadata *_metadata, struct state *s)
{
	struct counters d = counters_since(&s->before);
	int i;

	if (s->on) {
		EXPECT_EQ(1, counter(&d, "calls"));
		EXPECT_LT(1, counter(&d, "sections"));
		return;
	}
	for (i = 0; i < d.n; i++) {
		EXPECT_EQ(0, d.list[i].value);
		if (d.list[i].value)
			ksft_print_msg("%s changed with the switch off\n",
				       d.list[i].name);
	}
}

/* No call since note_base() worked in sections. */
static void expect_whole(struct __test_metadata *_metadata, struct state *s)
{
	EXPECT_EQ(0, counted(&s->before, "calls"));
	EXPECT_EQ(0, counted(&s->before, "sections"));
}

static void expect_unmapped(struct __test_metadata *_metadata,
			    const void *addr, size_t len)
{
	EXPECT_EQ(0, mapped_bytes(addr, len));
}

/* [addr, addr + len) was unmapped in sections and left nothing behind. */
static void expect_gone(struct __test_metadata *_metadata, struct state *s,
			const void *addr, size_t len)
{
	expect_unmapped(_metadata, addr, len);
	expect_base(_metadata, s);
	expect_sections(_metadata, s);
}

static void *map_anon_at(void *addr, size_t len, int prot, int flags)
{
	void *p;

	p = mmap(addr, len, prot,
		 MAP_PRIVATE | MAP_ANONYMOUS | (addr ? MAP_FIXED : 0) | flags,
		 -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* Filled base pages at @addr. */
static void *map_filled_at(void *addr, size_t len, __u64 tag)
{
	void *p = map_anon_at(addr, len, PROT_READ | PROT_WRITE, 0);

	if (p) {
		madvise(p, len, MADV_NOHUGEPAGE);
		fill_pages(p, len, tag);
	}
	return p;
}

/* --- kinds of memory */

/* The pages in the batches of a percpu_counter, at most. */
static size_t rss_batches(void)
{
	size_t cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return cpus * MAX(32, 2 * cpus);
}

TEST_F_TIMEOUT(munmap, anon, TIMEOUT)
{
	long committed, grown;
	void *p, *addr;

	addr = free_range(BIG);
	ASSERT_NE(NULL, addr);
	note_base(&self->s);
	committed = meminfo_kb("Committed_AS");
	p = map_filled_at(addr, BIG, TAG);
	ASSERT_EQ(addr, p);
	grown = meminfo_kb("Committed_AS") - committed;
	EXPECT_LE((long)(BIG / KIB), status_kb("VmSize") - self->s.vm_size);
	/* The size of the entries, all that VmPTE counts on some machines. */
	EXPECT_LE((long)(BIG / page_size() * sizeof(__u64) / KIB),
		  status_kb("VmPTE") - self->s.vm_pte);

	ASSERT_EQ(0, munmap(p, BIG));
	expect_gone(_metadata, &self->s, p, BIG);
	/* Other processes commit memory, too, so only expect half of it. */
	if (grown > (long)(BIG / KIB) / 2)
		EXPECT_LT(meminfo_kb("Committed_AS"),
			  committed + grown - (long)(BIG / KIB) / 2);
	/*
	 * The peak is recorded before memory is freed.  It can lack a batch of
	 * pages that each CPU has not added to the count yet.
	 */
	EXPECT_LE((long)((BIG - rss_batches() * page_size()) / KIB),
		  status_kb("VmHWM"));
}

/* Begins and ends inside a VMA, at odd page offsets. */
TEST_F_TIMEOUT(munmap, anon_edges, TIMEOUT)
{
	size_t ps = page_size(), head = 3 * ps, tail = 5 * ps, i;
	char *p;

	p = map_filled(head + BIG + tail, TAG);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	/* A length is rounded up to pages. */
	ASSERT_EQ(0, munmap(p + head, BIG - ps / 2));
	expect_unmapped(_metadata, p + head, BIG);
	expect_sections(_metadata, &self->s);
	EXPECT_EQ(0, bad_pages(p, head, TAG));
	EXPECT_EQ(head, mapped_bytes(p, head + BIG / 2));
	EXPECT_EQ(tail, mapped_bytes(p + head + BIG / 2, BIG / 2 + tail));
	EXPECT_EQ(self->s.vm_size - (long)(BIG / KIB), status_kb("VmSize"));
	for (i = 0; i < tail / ps; i++)
		EXPECT_EQ(page_word(TAG, (head + BIG) / ps + i),
			  word_read(p + head + BIG + i * ps));
}

TEST_F_TIMEOUT(munmap, thp, TIMEOUT)
{
	/* A huge page is little work, so a section takes more of them. */
	size_t len = 128 * pmd_size();
	void *p, *addr;

	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK))
		SKIP(return, "this kernel has no transparent huge pages");
	if (meminfo_kb("MemAvailable") < (long)(len / KIB) * 3 / 2)
		SKIP(return, "needs %zu MiB of memory", len * 3 / 2 / MIB);
	addr = free_range(len);
	ASSERT_NE(NULL, addr);
	note_base(&self->s);
	p = map_anon_at(addr, len, PROT_READ | PROT_WRITE, 0);
	ASSERT_EQ(addr, p);
	madvise(p, len, MADV_HUGEPAGE);
	fill_pages(p, len, TAG);
	if (smaps_kb(p, len, "AnonHugePages") < (long)(len / KIB) * 3 / 4)
		SKIP(return, "too few huge pages available");
	ASSERT_EQ(0, munmap(p, len));
	expect_gone(_metadata, &self->s, p, len);
}

static void unmap_file(struct __test_metadata *_metadata,
		       struct state *s,
		       int fd, int flags)
{
	void *p, *addr;

	ASSERT_EQ(0, ftruncate(fd, BIG));
	addr = free_range(BIG);
	ASSERT_NE(NULL, addr);
	note_base(s);
	p = mmap(addr, BIG, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
	ASSERT_EQ(addr, p);
	fill_pages(p, BIG, TAG);
	ASSERT_EQ(0, munmap(p, BIG));
	expect_gone(_metadata, s, p, BIG);

	/* Only writes through a shared mapping reach the file. */
	p = mmap(NULL, BIG, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	EXPECT_EQ(flags == MAP_SHARED ? 0 : BIG / page_size(),
		  bad_pages(p, BIG, TAG));
	close(fd);
}

static int temporary_file(void)
{
	const char *dir = getenv("TMPDIR");
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/munmap-XXXXXX", dir ? dir : "/tmp");
	fd = mkstemp(path);
	if (fd >= 0)
		unlink(path);
	return fd;
}

TEST_F_TIMEOUT(munmap, file_shared, TIMEOUT)
{
	int fd = temporary_file();

	if (fd < 0)
		SKIP(return, "no temporary file (TMPDIR?)");
	unmap_file(_metadata, &self->s, fd, MAP_SHARED);
}

TEST_F_TIMEOUT(munmap, file_private, TIMEOUT)
{
	int fd = temporary_file();

	if (fd < 0)
		SKIP(return, "no temporary file (TMPDIR?)");
	unmap_file(_metadata, &self->s, fd, MAP_PRIVATE);
}

TEST_F_TIMEOUT(munmap, memfd, TIMEOUT)
{
	int fd = memfd_create("munmap", MFD_CLOEXEC);

	if (fd < 0)
		SKIP(return, "no memfd_create");
	unmap_file(_metadata, &self->s, fd, MAP_SHARED);
}

static void unmap_hugetlb(struct __test_metadata *_metadata,
			  struct state *s, int type)
{
	long free_before, reserved, size_kb = meminfo_kb("Hugepagesize");
	size_t len = 80 * pmd_size();
	long had, need;
	char *p, *addr;

	if (size_kb != (long)(pmd_size() / KIB))
		SKIP(return, "no PMD-sized huge pages");
	if (meminfo_kb("MemAvailable") < (long)(len / KIB) * 3 / 2)
		SKIP(return, "needs %zu MiB of memory", len * 3 / 2 / MIB);
	ASSERT_EQ(0, vm_sysctl_read("nr_hugepages", &had));
	need = had + len / pmd_size();
	if (vm_sysctl_write("nr_hugepages", need))
		SKIP(return, "cannot set vm.nr_hugepages");
	free_before = meminfo_kb("HugePages_Free");
	reserved = meminfo_kb("HugePages_Rsvd");
	if (free_before - reserved < (long)(len / pmd_size())) {
		vm_sysctl_write("nr_hugepages", had);
		SKIP(return, "too few huge pages available");
	}
	/* Across a multiple of 1 GiB, where alone a section of a shared VMA ends. */
	addr = free_huge_range(2 * GIB);
	ASSERT_NE(NULL, addr);
	addr += GIB - 40 * pmd_size();
	note_base(s);
	p = mmap(addr, len, PROT_READ | PROT_WRITE,
		 type | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED, -1, 0);
	ASSERT_EQ(addr, p);
	fill_pages(p, len, TAG);

	/* Not a multiple of the huge page size: refused without effect. */
	EXPECT_EQ(-1, munmap(p, len - page_size()));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, munmap(p + page_size(), len - page_size()));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	note_base(s);
	s->vm_size -= len / KIB;

	ASSERT_EQ(0, munmap(p, len));
	expect_unmapped(_metadata, p, len);
	EXPECT_EQ(s->vm_size, status_kb("VmSize"));
	EXPECT_EQ(0, status_kb("HugetlbPages"));
	EXPECT_EQ(free_before, meminfo_kb("HugePages_Free"));
	EXPECT_EQ(reserved, meminfo_kb("HugePages_Rsvd"));
	expect_sections(_metadata, s);
	vm_sysctl_write("nr_hugepages", had);
}

TEST_F_TIMEOUT(munmap, hugetlb_private, TIMEOUT)
{
	unmap_hugetlb(_metadata, &self->s, MAP_PRIVATE);
}

TEST_F_TIMEOUT(munmap, hugetlb_shared, TIMEOUT)
{
	unmap_hugetlb(_metadata, &self->s, MAP_SHARED);
}

TEST_F_TIMEOUT(munmap, mlocked, TIMEOUT)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	void *p, *addr;

	addr = free_range(BIG);
	ASSERT_NE(NULL, addr);
	note_base(&self->s);
	p = map_filled_at(addr, BIG, TAG);
	ASSERT_EQ(addr, p);
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	if (mlock(p, BIG))
		SKIP(return, "cannot mlock %lu MiB", BIG / MIB);
	EXPECT_EQ(self->s.vm_lck + (long)(BIG / KIB), status_kb("VmLck"));
	ASSERT_EQ(0, munmap(p, BIG));
	expect_gone(_metadata, &self->s, p, BIG);
}

/* Pages in swap are freed there. */
TEST_F_TIMEOUT(munmap, swapped, TIMEOUT)
{
	long swapped, left, freed;
	char *p;

	if (!swap_start())
		SKIP(return, "no swap");
	note_base(&self->s);
	p = map_filled_at(NULL, BIG, TAG);
	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, madvise(p, BIG, MADV_PAGEOUT));
	swapped = smaps_kb(p, BIG, "Swap");
	left = meminfo_kb("SwapFree");
	EXPECT_EQ(0, munmap(p, BIG));
	freed = meminfo_kb("SwapFree") - left;
	ksft_print_msg("%ld kB swapped, %ld kB freed\n", swapped, freed);
	EXPECT_LT(swappable_kb(BIG) / 2, swapped);
	/* Each CPU keeps some slots for later. */
	EXPECT_LT(swapped - (long)(4 * MIB / KIB), freed);
	expect_gone(_metadata, &self->s, p, BIG);
	swap_stop();
}

/* A huge, sparsely populated reservation, as language runtimes have. */
TEST_F_TIMEOUT(munmap, sparse, TIMEOUT)
{
	size_t len = 1024 * GIB, i;
	char *p;

	note_base(&self->s);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		SKIP(return, "cannot reserve 1 TiB of addresses");
	madvise(p, len, MADV_NOHUGEPAGE);
	for (i = 0; i < 32; i++)
		fill_pages(p + i * 32 * GIB + 7 * MIB,
			   MIN(pmd_size(), 32 * MIB), TAG + i);
	ASSERT_EQ(0, munmap(p, len));
	expect_unmapped(_metadata, p, len);
	EXPECT_EQ(self->s.vm_size, status_kb("VmSize"));
	expect_sections(_metadata, &self->s);
}

TEST_F_TIMEOUT(munmap, mixed_and_holes, TIMEOUT)
{
	int fd = memfd_create("mixed", MFD_CLOEXEC);
	size_t part = BIG / 4;
	char *base;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, part));
	base = free_range(8 * part);
	ASSERT_NE(NULL, base);
	note_base(&self->s);
	/* Parts 0 and 3 are holes, and so is a piece of part 7. */
	ASSERT_NE(NULL, map_filled_at(base + part, part, TAG));
	ASSERT_NE(MAP_FAILED,
		  mmap(base + 2 * part, part, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_FIXED, fd, 0));
	fill_pages(base + 2 * part, part, TAG);
	ASSERT_NE(NULL, map_anon_at(base + 4 * part, part, PROT_NONE,
				    MAP_NORESERVE));
	ASSERT_NE(MAP_FAILED, mmap(base + 5 * part, part, PROT_READ,
				   MAP_PRIVATE | MAP_FIXED, fd, 0));
	EXPECT_EQ(0, bad_pages(base + 5 * part, part, TAG));
	ASSERT_NE(NULL, map_filled_at(base + 6 * part, part, TAG));
	EXPECT_EQ(0, mprotect(base + 6 * part, part / 2, PROT_READ));
	ASSERT_NE(NULL, map_filled_at(base + 7 * part, part, TAG));
	EXPECT_EQ(0, mlock(base + 7 * part, 4 * page_size()));
	EXPECT_EQ(0, munmap(base + 7 * part + 5 * MIB, 5 * MIB));

	self->s.before = counters_read("munmap_section_");
	ASSERT_EQ(0, munmap(base, 8 * part));
	expect_gone(_metadata, &self->s, base, 8 * part);
	/* Unmapping a hole succeeds as well. */
	EXPECT_EQ(0, munmap(base, 8 * part));
	close(fd);
}

/* --- other calls that unmap in sections */

TEST_F_TIMEOUT(munmap, mremap_shrink, TIMEOUT)
{
	size_t keep = 5 * MIB + page_size();
	char *p;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	ASSERT_EQ(p, mremap(p, BIG, keep, 0));
	expect_unmapped(_metadata, p + keep, BIG - keep);
	EXPECT_EQ(keep, mapped_bytes(p, BIG));
	EXPECT_EQ(0, bad_pages(p, keep, TAG));
	EXPECT_EQ(self->s.vm_size - (long)((BIG - keep) / KIB),
		  status_kb("VmSize"));
	expect_sections(_metadata, &self->s);
	/* The rest is an ordinary mapping that can grow again. */
	p = mremap(p, keep, 2 * keep, MREMAP_MAYMOVE);
	ASSERT_NE(MAP_FAILED, p);
	EXPECT_EQ(0, bad_pages(p, keep, TAG));
}

/* Without involving the heap of libc. */
TEST_F_TIMEOUT(munmap, brk_shrink, TIMEOUT)
{
	size_t ps = page_size(), keep = 3 * ps;
	char *brk = sbrk(0), *first;

	first = (char *)(((uintptr_t)brk + ps - 1) & ~(ps - 1));
	if (sbrk(keep + BIG) != brk)
		SKIP(return, "cannot grow the heap by %lu MiB", BIG / MIB);
	madvise(first, keep + BIG - ps, MADV_NOHUGEPAGE);
	fill_pages(first, keep + BIG - ps, TAG);
	note_base(&self->s);
	ASSERT_NE((void *)-1, sbrk(-(intptr_t)BIG));
	EXPECT_EQ(brk + keep, sbrk(0));
	EXPECT_EQ(self->s.vm_size - (long)(BIG / KIB), status_kb("VmSize"));
	EXPECT_EQ(0, bad_pages(first, keep - ps, TAG));
	expect_sections(_metadata, &self->s);
	/* The heap can grow again, with pages of zeros. */
	ASSERT_EQ(brk + keep, sbrk(BIG));
	EXPECT_EQ(0, word_read(first + keep));
	EXPECT_NE((void *)-1, sbrk(-(intptr_t)(keep + BIG)));
}

static int shm_attached(int id)
{
	struct shmid_ds ds;

	return shmctl(id, IPC_STAT, &ds) ? -errno : (int)ds.shm_nattch;
}

TEST_F_TIMEOUT(munmap, shmdt_removed, TIMEOUT)
{
	void *p, *addr;
	int id;

	id = shmget(IPC_PRIVATE, BIG, IPC_CREAT | 0600);
	if (id < 0)
		SKIP(return, "no SysV shared memory segment of %lu MiB",
		     BIG / MIB);
	addr = free_range(BIG);
	ASSERT_NE(NULL, addr);
	note_base(&self->s);
	p = shmat(id, addr, 0);
	ASSERT_EQ(0, shmctl(id, IPC_RMID, NULL));
	ASSERT_EQ(addr, p);
	fill_pages(p, BIG, TAG);
	EXPECT_EQ(1, shm_attached(id));
	ASSERT_EQ(0, shmdt(p));
	/* The last detach destroys the segment. */
	EXPECT_EQ(-EINVAL, shm_attached(id));
	expect_gone(_metadata, &self->s, p, BIG);
	EXPECT_EQ(-1, shmdt(p));
	EXPECT_EQ(EINVAL, errno);
}

/* A segment in pieces, with a foreign mapping in one of its holes. */
TEST_F_TIMEOUT(munmap, shmdt_fragments, TIMEOUT)
{
	char *p, *other, *hole;
	int id;

	id = shmget(IPC_PRIVATE, BIG, IPC_CREAT | 0600);
	if (id < 0)
		SKIP(return, "no SysV shared memory segment of %lu MiB",
		     BIG / MIB);
	p = shmat(id, NULL, 0);
	other = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	ASSERT_NE((void *)-1, p);
	ASSERT_NE((void *)-1, other);
	fill_pages(p, BIG, TAG);
	EXPECT_EQ(0, bad_pages(other, BIG, TAG));
	hole = p + 16 * MIB;
	ASSERT_EQ(0, munmap(hole, 8 * MIB));
	ASSERT_EQ(hole, map_filled_at(hole, 4 * MIB, TAG + 1));
	ASSERT_EQ(0, mprotect(p + 40 * MIB, 4 * MIB, PROT_READ));
	EXPECT_EQ(5, shm_attached(id));

	note_base(&self->s);
	ASSERT_EQ(0, shmdt(p));
	EXPECT_EQ(4 * MIB, mapped_bytes(p, BIG));
	EXPECT_EQ(0, bad_pages(hole, 4 * MIB, TAG + 1));
	EXPECT_EQ(1, shm_attached(id));
	EXPECT_EQ(0, bad_pages(other, BIG, TAG));
	expect_sections(_metadata, &self->s);
	ASSERT_EQ(0, shmdt(other));
	EXPECT_EQ(-EINVAL, shm_attached(id));
}

/* munmap of the middle of a segment leaves two pieces, so two attachments. */
TEST_F_TIMEOUT(munmap, shm_partial, TIMEOUT)
{
	size_t edge = 3 * page_size();
	char *p;
	int id;

	id = shmget(IPC_PRIVATE, BIG, IPC_CREAT | 0600);
	if (id < 0)
		SKIP(return, "no SysV shared memory segment of %lu MiB",
		     BIG / MIB);
	p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	ASSERT_NE((void *)-1, p);
	fill_pages(p, BIG, TAG);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p + edge, BIG - 2 * edge));
	expect_unmapped(_metadata, p + edge, BIG - 2 * edge);
	EXPECT_EQ(2, shm_attached(id));
	EXPECT_EQ(0, bad_pages(p, edge, TAG));
	expect_sections(_metadata, &self->s);
	ASSERT_EQ(0, shmdt(p));
	EXPECT_EQ(-EINVAL, shm_attached(id));
	expect_unmapped(_metadata, p, BIG);
}

/* --- mmap(MAP_FIXED) that takes memory away, and leaves the addresses mapped */

#ifndef PR_SET_VMA
#define PR_SET_VMA		0x53564d41
#define PR_SET_VMA_ANON_NAME	0
#endif

/* [addr, addr + len) is a new, empty mapping, of one VMA. */
static void expect_empty(struct __test_metadata *_metadata, char *addr,
			 size_t len)
{
	siginfo_t info = { };

	EXPECT_EQ(len, mapped_bytes(addr, len));
	EXPECT_EQ(1, mappings(addr, len));
	EXPECT_EQ(0, smaps_kb(addr, len, "Rss"));
	EXPECT_EQ(0, smaps_kb(addr, len, "Swap"));
	EXPECT_EQ(SIGSEGV, access_signal(addr + len / 2, false, &info));
	EXPECT_EQ(SEGV_ACCERR, info.si_code);
	EXPECT_EQ(0, mprotect(addr, len, PROT_READ | PROT_WRITE));
	EXPECT_EQ(0, nonzero_pages(addr, len));
}

/* decommit() of [addr, addr + len) worked by sections. */
static void expect_replaced(struct __test_metadata *_metadata, struct state *s,
			    char *addr, size_t len)
{
	EXPECT_EQ(s->on, counted(&s->before, "replaced"));
	EXPECT_EQ(0, counted(&s->before, "completed"));
	EXPECT_EQ(0, counted(&s->before, "atomic"));
	expect_sections(_metadata, s);
	expect_empty(_metadata, addr, len);
}

TEST_F_TIMEOUT(munmap, fixed, TIMEOUT)
{
	long committed, grown, data, rss;
	char *addr;

	addr = free_range(WIDE);
	ASSERT_NE(NULL, addr);
	catch_faults();
	note_base(&self->s);
	data = status_kb("VmData");
	rss = status_kb("RssAnon");
	committed = meminfo_kb("Committed_AS");
	ASSERT_EQ(addr, map_filled_at(addr, WIDE, TAG));
	grown = meminfo_kb("Committed_AS") - committed;
	EXPECT_EQ(data + (long)(WIDE / KIB), status_kb("VmData"));
	ASSERT_EQ(addr, decommit(addr, WIDE));
	EXPECT_EQ(data, status_kb("VmData"));
	EXPECT_GT(rss + (long)(MIB / KIB), status_kb("RssAnon"));
	EXPECT_EQ(self->s.vm_size + (long)(WIDE / KIB), status_kb("VmSize"));
	/* The tables with entries are gone; those above may be left. */
	EXPECT_GT(self->s.vm_pte + (long)(WIDE / page_size() * sizeof(__u64) /
					  KIB / 2), status_kb("VmPTE"));
	if (grown > (long)(WIDE / KIB) / 2)
		EXPECT_LT(meminfo_kb("Committed_AS"),
			  committed + grown - (long)(WIDE / KIB) / 2);
	expect_replaced(_metadata, &self->s, addr, WIDE);
	/* It is an ordinary mapping. */
	fill_pages(addr, WIDE, TAG + 1);
	EXPECT_EQ(0, bad_pages(addr, WIDE, TAG + 1));
	EXPECT_EQ(data + (long)(WIDE / KIB), status_kb("VmData"));
	EXPECT_EQ(0, munmap(addr, WIDE));
	EXPECT_EQ(self->s.vm_size, status_kb("VmSize"));
	EXPECT_EQ(data, status_kb("VmData"));
}

/* The range begins and ends inside a VMA. */
TEST_F_TIMEOUT(munmap, fixed_edges, TIMEOUT)
{
	size_t ps = page_size(), head = 3 * ps, tail = 5 * ps, i;
	char *p;

	p = map_filled(head + BIG + tail, TAG);
	ASSERT_NE(NULL, p);
	catch_faults();
	note_base(&self->s);
	/* A length is rounded up to pages. */
	ASSERT_EQ(p + head, decommit(p + head, BIG - ps / 2));
	EXPECT_EQ(3, mappings(p, head + BIG + tail));
	expect_replaced(_metadata, &self->s, p + head, BIG);
	EXPECT_EQ(0, bad_pages(p, head, TAG));
	for (i = 0; i < tail / ps; i++)
		EXPECT_EQ(page_word(TAG, (head + BIG) / ps + i),
			  word_read(p + head + BIG + i * ps));
}

/* Memory of several mappings, in a reservation, becomes one with that. */
TEST_F_TIMEOUT(munmap, fixed_pieces, TIMEOUT)
{
	size_t ps = page_size(), i;
	char *area, *p, *moved;
	pid_t pid;

	/*
	 * With the huge zero page, also a read gives a mapping an anon_vma.  It stays
	 * charged then, and does not merge with what is not.
	 */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	area = map_anon_at(NULL, 3 * WIDE, PROT_NONE, MAP_NORESERVE);
	ASSERT_NE(NULL, area);
	p = area + WIDE;
	ASSERT_EQ(0, mprotect(p, WIDE, PROT_READ | PROT_WRITE));
	fill_pages(p, WIDE, TAG);
	/* Entries that were copied for a child. */
	pid = fork();
	if (!pid)
		_exit(0);
	EXPECT_EQ(0, reap(pid));
	fill_pages(p, WIDE / 2, TAG);
	EXPECT_EQ(0, madvise(p + MIB, MIB, MADV_DONTDUMP));
	EXPECT_EQ(0, madvise(p + 3 * MIB, MIB, MADV_DONTFORK));
	EXPECT_EQ(0, madvise(p + 5 * MIB, MIB, MADV_WIPEONFORK));
	EXPECT_EQ(0, mprotect(p + 7 * MIB, MIB, PROT_READ | PROT_EXEC));
	EXPECT_EQ(0, mprotect(p + 9 * MIB, MIB, PROT_NONE));
	/* Not on a kernel without names and NUMA. */
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, p + 11 * MIB, MIB, "name");
	syscall(__NR_mbind, p + 13 * MIB, MIB, 1 /* MPOL_PREFERRED */, NULL, 0,
		0);
	moved = map_filled(8 * MIB, TAG);
	ASSERT_NE(NULL, moved);
	ASSERT_EQ(p + 16 * MIB, mremap(moved, 8 * MIB, 8 * MIB,
				       MREMAP_MAYMOVE | MREMAP_FIXED,
				       p + 16 * MIB));
	for (i = 0; i < 128; i += 2)
		EXPECT_EQ(0, mprotect(p + 32 * MIB + i * ps, ps, PROT_READ));
	EXPECT_LT(128, mappings(area, 3 * WIDE));

	catch_faults();
	note_base(&self->s);
	ASSERT_EQ(p, decommit(p, WIDE));
	EXPECT_EQ(1, mappings(area, 3 * WIDE));
	expect_replaced(_metadata, &self->s, p, WIDE);
	EXPECT_EQ(3, mappings(area, 3 * WIDE));
	EXPECT_EQ(0, mprotect(p, WIDE, PROT_NONE));
	EXPECT_EQ(1, mappings(area, 3 * WIDE));
	EXPECT_EQ(self->s.vm_size, status_kb("VmSize"));
}

TEST_F_TIMEOUT(munmap, fixed_thp, TIMEOUT)
{
	size_t len = 128 * pmd_size();
	char *p;

	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK))
		SKIP(return, "this kernel has no transparent huge pages");
	if (meminfo_kb("MemAvailable") < (long)(len / KIB) * 3 / 2)
		SKIP(return, "needs %zu MiB of memory", len * 3 / 2 / MIB);
	p = free_range(len);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(p, map_anon_at(p, len, PROT_READ | PROT_WRITE, 0));
	madvise(p, len, MADV_HUGEPAGE);
	fill_pages(p, len, TAG);
	if (smaps_kb(p, len, "AnonHugePages") < (long)(len / KIB) * 3 / 4)
		SKIP(return, "too few huge pages available");
	catch_faults();
	note_base(&self->s);
	/* Its ends are in the middle of huge pages. */
	ASSERT_EQ(p + MIB, decommit(p + MIB, len - 2 * MIB));
	expect_replaced(_metadata, &self->s, p + MIB, len - 2 * MIB);
	EXPECT_EQ(0, bad_pages(p, MIB, TAG));
}

TEST_F_TIMEOUT(munmap, fixed_swapped, TIMEOUT)
{
	long swapped, left, freed;
	char *p;

	if (!swap_start())
		SKIP(return, "no swap");
	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, madvise(p, BIG, MADV_PAGEOUT));
	swapped = smaps_kb(p, BIG, "Swap");
	left = meminfo_kb("SwapFree");
	catch_faults();
	note_base(&self->s);
	ASSERT_EQ(p, decommit(p, BIG));
	freed = meminfo_kb("SwapFree") - left;
	EXPECT_LT(swappable_kb(BIG) / 2, swapped);
	/* Each CPU keeps some slots for later. */
	EXPECT_LT(swapped - (long)(4 * MIB / KIB), freed);
	expect_replaced(_metadata, &self->s, p, BIG);
	swap_stop();
}

/* Cases that are done in one piece, with the switch on as well. */
enum whole_case {
	WHOLE_RW, WHOLE_SHARED, WHOLE_FILE_THERE, WHOLE_FILE, WHOLE_LOCKED,
	WHOLE_HOLE, WHOLE_GROWSDOWN, WHOLE_UFFD, NR_WHOLE
};

static void whole_case(struct __test_metadata *_metadata, struct state *s,
		       enum whole_case what, int fd)
{
	int prot = PROT_NONE, flags = MAP_PRIVATE | MAP_FIXED, uffd = -1;
	char *p, *part;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	part = p + 16 * MIB;
	switch (what) {
	case WHOLE_RW:
		prot = PROT_READ | PROT_WRITE;
		break;
	case WHOLE_SHARED:
		flags = MAP_SHARED | MAP_FIXED;
		break;
	case WHOLE_FILE_THERE:
		ASSERT_EQ(part, mmap(part, MIB, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_FIXED, fd, 0));
		fill_pages(part, MIB, TAG);
		break;
	case WHOLE_LOCKED:
		if (mlock(part, 2 * page_size()))
			return;
		break;
	case WHOLE_HOLE:
		ASSERT_EQ(0, munmap(part, page_size()));
		break;
	case WHOLE_GROWSDOWN:
		ASSERT_EQ(part, map_anon_at(part, MIB, PROT_READ | PROT_WRITE,
					    MAP_GROWSDOWN));
		break;
	case WHOLE_UFFD:
		uffd = uffd_open(0, NULL);
		if (uffd < 0)
			return;
		ASSERT_EQ(0, uffd_register(uffd, part, MIB,
					   UFFDIO_REGISTER_MODE_MISSING));
		break;
	default:
		break;
	}
	if (what != WHOLE_FILE)
		flags |= MAP_ANONYMOUS;
	note_base(s);
	ASSERT_EQ(p, mmap(p, BIG, prot, flags, what == WHOLE_FILE ? fd : -1, 0));
	expect_whole(_metadata, s);
	EXPECT_EQ(s->on, counted(&s->before, "atomic"));
	if (prot == PROT_NONE)
		expect_empty(_metadata, p, BIG);
	else
		EXPECT_EQ(0, nonzero_pages(p, BIG));
	EXPECT_EQ(0, munmap(p, BIG));
	close(uffd);
}

TEST_F_TIMEOUT(munmap, fixed_in_one_piece, TIMEOUT)
{
	int fd = memfd_create("whole", MFD_CLOEXEC), what;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, BIG));
	catch_faults();
	for (what = 0; what < NR_WHOLE; what++)
		whole_case(_metadata, &self->s, what, fd);
	close(fd);
}

/* --- mmap(MAP_FIXED) over shared mappings of files */

/* A shared mapping of a file in memory, filled, and the file. */
static char *map_file_filled(size_t len, int *fd)
{
	char *p = MAP_FAILED;

	*fd = memfd_create("shared", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, len))
		return NULL;
	p = mmap(free_range(len), len, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED, *fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, len, MADV_NOHUGEPAGE);
	fill_pages(p, len, TAG);
	return p;
}

/* Pages of the file whose content is not that of fill_pages(). */
static long bad_in_file(int fd, size_t len)
{
	size_t ps = page_size(), i;
	long bad = 0;
	__u64 word;

	for (i = 0; i < len / ps; i++)
		bad += pread(fd, &word, sizeof(word), i * ps) != sizeof(word) ||
		       word != page_word(TAG, i);
	return bad;
}

/* The mmap() counts as one call that has worked by sections. */
static void expect_cache_unmapped(struct __test_metadata *_metadata,
				  struct state *s)
{
	EXPECT_EQ(s->on, counted(&s->before, "calls"));
	EXPECT_EQ(s->on, counted(&s->before, "replaced"));
	EXPECT_EQ(0, counted(&s->before, "atomic"));
	EXPECT_EQ(s->on, counted(&s->before, "sections") > 1);
}

TEST_F_TIMEOUT(munmap, fixed_over_file, TIMEOUT)
{
	char *p;
	int fd;

	p = map_file_filled(BIG, &fd);
	ASSERT_NE(NULL, p);
	catch_faults();
	note_base(&self->s);
	ASSERT_EQ(p, decommit(p, BIG));
	expect_cache_unmapped(_metadata, &self->s);
	expect_empty(_metadata, p, BIG);
	EXPECT_EQ(0, bad_in_file(fd, BIG));
	EXPECT_EQ(self->s.vm_size, status_kb("VmSize"));
	EXPECT_EQ(0, munmap(p, BIG));
	close(fd);
}

/* The file maps itself: no page is lost, and both ends are left alone. */
TEST_F_TIMEOUT(munmap, fixed_file_over_file, TIMEOUT)
{
	size_t ps = page_size(), head = 3 * ps, tail = 5 * ps;
	size_t len = head + BIG + tail;
	char *p;
	int fd;

	p = map_file_filled(len, &fd);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	ASSERT_EQ(p + head, mmap(p + head, BIG, PROT_READ, MAP_SHARED | MAP_FIXED,
				 fd, head));
	expect_cache_unmapped(_metadata, &self->s);
	EXPECT_EQ(3, mappings(p, len));
	EXPECT_EQ(0, smaps_kb(p + head, BIG, "Rss"));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	EXPECT_EQ(0, munmap(p, len));
	close(fd);
}

/* Where userfaultfd, mlock() or a private copy is, pages stay even if mmap() fails. */
TEST_F_TIMEOUT(munmap, fixed_over_file_refused, TIMEOUT)
{
	/* Three parts are kept; the rest is several page tables. */
	const size_t ps = page_size(), part = BIG / 4, len = BIG + BIG / 2;
	char *p, *rest;
	int fd, uffd, readable;
	bool locked, armed;

	p = map_file_filled(len, &fd);
	ASSERT_NE(NULL, p);
	rest = p + 3 * part;
	/* The new mapping may not write to this file. */
	readable = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, readable);
	/* Private: half of it is copied, the rest was read. */
	ASSERT_EQ(p, mmap(p, part, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_FIXED, fd, 0));
	fill_pages(p, part / 2, TAG);
	EXPECT_EQ(0, bad_pages(p, part, TAG));
	locked = !mlock(p + part, part);
	uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP |
			 UFFD_FEATURE_WP_HUGETLBFS_SHMEM, NULL);
	armed = uffd >= 0 && !uffd_register(uffd, p + 2 * part, part,
					    UFFDIO_REGISTER_MODE_WP);
	if (armed)
		EXPECT_EQ(0, uffd_protect(uffd, p + 2 * part, part, true));
	note_base(&self->s);
	EXPECT_EQ(MAP_FAILED, mmap(p, len, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_FIXED, readable, 0));
	EXPECT_EQ(EACCES, errno);
	expect_cache_unmapped(_metadata, &self->s);
	/* Reclaim may have taken some pages of what is not locked. */
	EXPECT_LT((long)(part / 2 / KIB), smaps_kb(p, part, "Rss"));
	EXPECT_LT((long)(part / 4 / KIB), smaps_kb(p, part, "Anonymous"));
	if (locked)
		EXPECT_EQ((long)(part / KIB), smaps_kb(p + part, part, "Locked"));
	if (armed)
		EXPECT_EQ(part / ps, uffd_protected(p + 2 * part, part));
	/* A part that is not armed is one mapping with the rest. */
	if (!armed)
		rest -= part;
	EXPECT_EQ(self->s.on, !smaps_kb(rest, p + len - rest, "Rss"));
	close(uffd);
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	EXPECT_EQ(0, bad_in_file(fd, len));
	EXPECT_EQ(0, munmap(p, len));
	close(readable);
	close(fd);
}

/* MAP_FIXED_NOREPLACE replaces nothing, so nothing is unmapped. */
TEST_F_TIMEOUT(munmap, noreplace_over_file, TIMEOUT)
{
	char *p;
	int fd;

	p = map_file_filled(BIG, &fd);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	EXPECT_EQ(MAP_FAILED, mmap(p, BIG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
				   MAP_FIXED | MAP_FIXED_NOREPLACE, -1, 0));
	EXPECT_EQ(EEXIST, errno);
	expect_whole(_metadata, &self->s);
	EXPECT_LT((long)(BIG / 2 / KIB), smaps_kb(p, BIG, "Rss"));
	EXPECT_EQ(0, munmap(p, BIG));
	close(fd);
}

/* Refused: nothing is lost. */
TEST_F_TIMEOUT(munmap, fixed_refused, TIMEOUT)
{
	size_t ps = page_size();
	struct rlimit old, low;
	int count_ret, count_errno;
	long limit;
	char *p;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	ASSERT_EQ(0, getrlimit(RLIMIT_AS, &old));
	low = (struct rlimit){ BIG / 2, old.rlim_max };
	ASSERT_EQ(0, setrlimit(RLIMIT_AS, &low));
	EXPECT_EQ(NULL, decommit(p, BIG));
	EXPECT_EQ(ENOMEM, errno);
	ASSERT_EQ(0, setrlimit(RLIMIT_AS, &old));
	EXPECT_EQ(BIG, mapped_bytes(p, BIG));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_whole(_metadata, &self->s);

	/* PROT_READ: no neighbour to merge with, so a separate VMA. */
	ASSERT_EQ(0, mprotect(p, BIG, PROT_READ));
	ASSERT_EQ(0, vm_sysctl_read("max_map_count", &limit));
	if (!vm_sysctl_write("max_map_count", map_count())) {
		count_ret = !!decommit(p + ps, BIG - 2 * ps);
		count_errno = errno;
		vm_sysctl_write("max_map_count", limit);
		EXPECT_EQ(0, count_ret);
		EXPECT_EQ(ENOMEM, count_errno);
		EXPECT_EQ(0, bad_pages(p, BIG, TAG));
		expect_whole(_metadata, &self->s);
	}
	if (syscall(SYS_mseal, p + BIG - 2 * ps, ps, 0))
		return;
	EXPECT_EQ(NULL, decommit(p, BIG));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_whole(_metadata, &self->s);
}

/* --- errors: nothing is unmapped */

TEST_F_TIMEOUT(munmap, bad_arguments, TIMEOUT)
{
	size_t ps = page_size();
	char *p;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	EXPECT_EQ(-1, munmap(p + 1, BIG));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, munmap(p, 0));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, munmap(p, ~0UL - ps));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(-1, munmap((void *)(~0UL - ps + 1), BIG));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(BIG, mapped_bytes(p, BIG));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_whole(_metadata, &self->s);
}

TEST_F_TIMEOUT(munmap, sealed, TIMEOUT)
{
	size_t ps = page_size();
	char *p;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	if (syscall(SYS_mseal, p + BIG - 2 * ps, ps, 0))
		SKIP(return, "this kernel has no mseal");
	note_base(&self->s);
	EXPECT_EQ(-1, munmap(p, BIG));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(BIG, mapped_bytes(p, BIG));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	EXPECT_EQ(MAP_FAILED, mremap(p, BIG, ps, 0));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(BIG, mapped_bytes(p, BIG));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	self->s.before = counters_read("munmap_section_");
	/* Memory that is not sealed behaves as before. */
	EXPECT_EQ(0, munmap(p, BIG - 2 * ps));
	EXPECT_EQ(2 * ps, mapped_bytes(p, BIG));
	expect_sections(_metadata, &self->s);
}

/*
 * At the limit of VMAs, a hole in the middle of one is refused.  The removal of
 * a whole VMA is not.
 */
TEST_F_TIMEOUT(munmap, map_count_limit, TIMEOUT)
{
	int hole_ret, hole_errno, whole_ret, limit_ret;
	long limit;
	size_t left;
	char *p;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	/* PROT_READ: no neighbour to merge with, so a separate VMA. */
	ASSERT_EQ(0, mprotect(p, BIG, PROT_READ));
	ASSERT_EQ(0, vm_sysctl_read("max_map_count", &limit));
	note_base(&self->s);
	limit_ret = vm_sysctl_write("max_map_count", map_count());
	if (limit_ret)
		SKIP(return, "cannot set vm.max_map_count");
	hole_ret = munmap(p + 8 * MIB, BIG - 16 * MIB);
	hole_errno = errno;
	left = mapped_bytes(p, BIG);
	whole_ret = munmap(p, BIG);
	/* No check may end the test before: the limit is system-wide. */
	vm_sysctl_write("max_map_count", limit);

	EXPECT_EQ(-1, hole_ret);
	EXPECT_EQ(ENOMEM, hole_errno);
	EXPECT_EQ(BIG, left);
	EXPECT_EQ(0, whole_ret);
	expect_unmapped(_metadata, p, BIG);
	expect_sections(_metadata, &self->s);
}

/* --- calls that unmap in one piece */

/* The commit limit: as much can be mapped again as was unmapped. */
FIXTURE(commit_limit) {
	struct state s;
	struct commit_limit limit;
	bool noted;
};

FIXTURE_VARIANT(commit_limit) {
	bool on;
};

FIXTURE_VARIANT_ADD(commit_limit, off) { .on = false };
FIXTURE_VARIANT_ADD(commit_limit, on) { .on = true };

FIXTURE_SETUP(commit_limit)
{
	const char *why = munmap_knob_set(variant->on ? MUNMAP_SMALL_KB : 0);

	if (why)
		SKIP(return, "%s", why);
	self->s.on = variant->on;
	ASSERT_TRUE(commit_limit_read(&self->limit));
	self->noted = true;
	ASSERT_EQ(0, idle_thread_start(&self->s.idle));
}

FIXTURE_TEARDOWN(commit_limit)
{
	if (!self->noted)
		return;
	commit_limit_lift(&self->limit);
	idle_thread_stop(&self->s.idle);
}

TEST_F_TIMEOUT(commit_limit, is_given_back, TIMEOUT)
{
	char *p, *refused, *again;
	int refused_errno;
	long committed;

	note_base(&self->s);
	p = map_filled_at(NULL, BIG, TAG);
	ASSERT_NE(NULL, p);
	committed = meminfo_kb("Committed_AS");
	/* Room for half of the range. */
	ASSERT_TRUE(commit_limit_set(BIG / KIB / 2));
	refused = map_anon_at(NULL, BIG, PROT_READ | PROT_WRITE, 0);
	refused_errno = errno;
	EXPECT_EQ(0, munmap(p, BIG));
	expect_gone(_metadata, &self->s, p, BIG);
	again = map_anon_at(NULL, BIG, PROT_READ | PROT_WRITE, 0);
	EXPECT_EQ(NULL, refused);
	EXPECT_EQ(ENOMEM, refused_errno);
	EXPECT_NE(NULL, again);
	/* Given back once. */
	EXPECT_GT((long)(BIG / KIB / 4),
		  labs(meminfo_kb("Committed_AS") - committed));
}

TEST_F_TIMEOUT(munmap, single_threaded, TIMEOUT)
{
	pid_t pid;

	note_base(&self->s);
	pid = fork();
	if (!pid) {
		void *p = map_filled(BIG, TAG);

		_exit(!p || munmap(p, BIG) || mapped_bytes(p, BIG));
	}
	EXPECT_EQ(0, reap(pid));
	expect_whole(_metadata, &self->s);
}

TEST_F_TIMEOUT(munmap, short_range, TIMEOUT)
{
	size_t len = pmd_size() - page_size();
	void *p, *ballast;

	/* So that only the length rules out sections. */
	ballast = map_filled(BIG, TAG);
	ASSERT_NE(NULL, ballast);
	p = map_filled(len, TAG);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p, len));
	expect_unmapped(_metadata, p, len);
	expect_whole(_metadata, &self->s);
	ASSERT_EQ(0, munmap(ballast, BIG));
	expect_sections(_metadata, &self->s);
}

/* A long range, but a process with little memory. */
TEST_F_TIMEOUT(munmap, little_memory, TIMEOUT)
{
	const char *why = munmap_knob_set(variant->on ? 65536 : 0);
	void *p;

	if (why)
		SKIP(return, "%s", why);
	if (pmd_size() / page_size() > 4096)
		SKIP(return, "a few tables have as many entries as a section");
	p = map_anon_at(NULL, GIB, PROT_READ | PROT_WRITE, MAP_NORESERVE);
	ASSERT_NE(NULL, p);
	madvise(p, GIB, MADV_NOHUGEPAGE);
	fill_pages(p, MIN(pmd_size(), 16 * MIB), TAG);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p, GIB));
	expect_unmapped(_metadata, p, GIB);
	expect_whole(_metadata, &self->s);
}

/* --- many small mappings */

#define MANY		600

/* MANY mappings of a page each, which differ from their neighbours. */
static char *map_many(void)
{
	size_t ps = page_size();
	char *p = map_anon_at(NULL, MANY * ps, PROT_READ | PROT_WRITE, 0);
	int i;

	if (!p)
		return NULL;
	fill_pages(p, MANY * ps, TAG);
	for (i = 0; i < MANY; i += 2)
		if (mprotect(p + i * ps, ps, PROT_READ))
			return NULL;
	return mappings(p, MANY * ps) == MANY ? p : NULL;
}

TEST_F_TIMEOUT(munmap, many, TIMEOUT)
{
	size_t ps = page_size();
	int before;
	char *p;

	note_base(&self->s);
	before = map_count();
	p = map_many();
	if (!p)
		SKIP(return, "cannot make %d mappings", MANY);
	ASSERT_EQ(0, munmap(p, MANY * ps));
	expect_unmapped(_metadata, p, MANY * ps);
	expect_base(_metadata, &self->s);
	EXPECT_EQ(before, map_count());
	/* With pages of 64 KiB, they can be shorter than any section. */
	EXPECT_EQ(self->s.on && MANY * ps >= pmd_size(),
		  counted(&self->s.before, "calls"));
	EXPECT_EQ(0, counted(&self->s.before, "atomic"));
}

/* More than 1024 mappings, with nothing in them. */
static char *map_many_empty(void)
{
	char *p = map_anon_at(NULL, WIDE, PROT_NONE, 0);
	size_t i;

	for (i = 0; p && i < WIDE; i += WIDE / 1024)
		if (mprotect(p + i, page_size(), PROT_READ))
			return NULL;
	return p;
}

/* Mappings are work, even with nothing in them. */
TEST_F_TIMEOUT(munmap, many_empty, TIMEOUT)
{
	const char *why = munmap_knob_set(variant->on ? 65536 : 0);
	char *other, *p;

	if (why)
		SKIP(return, "%s", why);
	p = map_many_empty();
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p, WIDE));
	expect_unmapped(_metadata, p, WIDE);
	EXPECT_EQ(self->s.on, counted(&self->s.before, "calls"));
	/* For mmap(MAP_FIXED) they are not, however much memory is elsewhere. */
	other = map_filled(BIG, TAG);
	ASSERT_NE(NULL, other);
	p = map_many_empty();
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	EXPECT_EQ(p, decommit(p, WIDE));
	expect_whole(_metadata, &self->s);
	ASSERT_EQ(0, munmap(p, WIDE));
	EXPECT_EQ(0, bad_pages(other, BIG, TAG));
	ASSERT_EQ(0, munmap(other, BIG));
}

/* A sealed mapping at the end keeps all of them. */
TEST_F_TIMEOUT(munmap, many_sealed, TIMEOUT)
{
	size_t ps = page_size(), len = MANY * ps;
	char *p = map_many();

	if (!p)
		SKIP(return, "cannot make %d mappings", MANY);
	if (syscall(SYS_mseal, p + len - ps, ps, 0))
		SKIP(return, "this kernel has no mseal");
	note_base(&self->s);
	EXPECT_EQ(-1, munmap(p, len));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(MANY, mappings(p, len));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	expect_whole(_metadata, &self->s);
	ASSERT_EQ(0, munmap(p, len - ps));
	EXPECT_EQ(ps, mapped_bytes(p, len));
}

/* Calls that would expose a hole or fail halfway in sections. */
TEST_F_TIMEOUT(munmap, atomic_calls, TIMEOUT)
{
	char *p, *q;
	pid_t pid;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	note_base(&self->s);
	/* MAP_FIXED over populated memory. */
	ASSERT_EQ(p, map_anon_at(p, BIG, PROT_READ, 0));
	expect_whole(_metadata, &self->s);

	/* mremap() onto populated memory. */
	ASSERT_EQ(p, map_filled_at(p, BIG, TAG));
	q = map_filled(4 * page_size(), TAG + 1);
	ASSERT_NE(NULL, q);
	ASSERT_EQ(p, mremap(q, 4 * page_size(), 4 * page_size(),
			    MREMAP_MAYMOVE | MREMAP_FIXED, p));
	EXPECT_EQ(0, bad_pages(p, 4 * page_size(), TAG + 1));
	expect_whole(_metadata, &self->s);

	/* exit() of a process with two threads */
	fflush(NULL);
	pid = fork();
	if (!pid) {
		struct idle_thread idle = { };

		_exit(idle_thread_start(&idle));
	}
	EXPECT_EQ(0, reap(pid));
	expect_whole(_metadata, &self->s);

	/* The same memory by munmap(), which uses sections. */
	self->s.before = counters_read("munmap_section_");
	ASSERT_EQ(0, munmap(p, BIG));
	expect_sections(_metadata, &self->s);
}

static void *map_perf(int fd, void *addr, size_t pages)
{
	return mmap(addr, (1 + pages) * page_size(), PROT_READ | PROT_WRITE,
		    MAP_SHARED | (addr ? MAP_FIXED : 0), fd, 0);
}

static int open_perf(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.size = sizeof(attr),
		.disabled = 1,
	};

	return syscall(__NR_perf_event_open, &attr, 0, -1, -1,
		       PERF_FLAG_FD_CLOEXEC);
}

/* A mapping whose driver counts its VMAs. */
TEST_F_TIMEOUT(munmap, perf_buffer, TIMEOUT)
{
	size_t pages = 4 * MIB / page_size(), len = (1 + pages) * page_size(), i;
	char *p, *buf;
	int fd;

	fd = open_perf();
	if (fd < 0)
		SKIP(return, "no perf events (errno %d)", errno);
	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	buf = map_perf(fd, p + 29 * MIB, pages);
	if (buf == MAP_FAILED)
		SKIP(return, "no perf buffer of %zu pages", pages);
	ASSERT_EQ(p + 29 * MIB, buf);
	/* Only read: a write to a mapped data page fails. */
	for (i = 0; i < len; i += page_size())
		word_read(buf + i);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p, BIG));
	expect_unmapped(_metadata, p, BIG);
	expect_sections(_metadata, &self->s);
	/* The buffer is gone, so one of another size can be mapped. */
	buf = map_perf(fd, NULL, 1);
	EXPECT_NE(MAP_FAILED, buf);
	close(fd);
}

/*
 * A fault next to a stack would grow it into the part that is already unmapped:
 * a range that contains a stack is not unmapped in sections at all.
 */
TEST_F_TIMEOUT(munmap, growsdown, TIMEOUT)
{
	size_t len = 8 * MIB;
	char *p, *stack;

	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	stack = p + 27 * MIB;
	ASSERT_EQ(stack, map_anon_at(stack, len, PROT_READ | PROT_WRITE,
				     MAP_GROWSDOWN));
	fill_pages(stack, len, TAG);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p, BIG));
	expect_unmapped(_metadata, p, BIG);
	expect_whole(_metadata, &self->s);
	EXPECT_EQ(variant->on, counted(&self->s.before, "atomic"));
}

static bool find_mapping(const char *name, char **addr, size_t *len)
{
	unsigned long start, end;
	bool found = false;
	char line[512];
	FILE *f;

	f = fopen("/proc/self/maps", "re");
	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f)) {
		if (!strstr(line, name) ||
		    sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		*addr = (char *)start;
		*len = end - start;
		found = true;
	}
	fclose(f);
	return found;
}

struct vvar_result {
	char *addr;
	size_t len;
	int moved;
	int cut_errno;
	size_t cut_left;
	int ret;
};

/*
 * The pages of [vvar] are PFNs without struct pages, and the mapping refuses to
 * be split.  It is moved into a big range, across a boundary of sections.  This
 * runs in a child, because the clock in user space stops working without it.
 */
static void unmap_vvar(struct vvar_result *r)
{
	struct idle_thread idle = { };
	char *vvar, *p;

	if (idle_thread_start(&idle))
		return;
	p = map_filled(BIG, TAG);
	if (!p)
		return;
	vvar = p + BIG / 2;
	vvar = (char *)((uintptr_t)vvar & ~(pmd_size() - 1)) - page_size();
	if (mremap(r->addr, r->len, r->len, MREMAP_MAYMOVE | MREMAP_FIXED,
		   vvar) != vvar)
		return;
	r->addr = vvar;
	r->moved = 1;
	r->cut_errno = munmap(p, vvar + page_size() - p) ? errno : 0;
	r->cut_left = mapped_bytes(p, BIG);
	r->ret = munmap(p, BIG);
	if (!r->ret)
		r->ret = mapped_bytes(p, BIG) != 0;
}

TEST_F_TIMEOUT(munmap, pfnmap, TIMEOUT)
{
	struct vvar_result *r;
	pid_t pid;

	r = map_shared(sizeof(*r));
	ASSERT_NE(NULL, r);
	if (!find_mapping("[vvar]", &r->addr, &r->len) ||
	    r->len < 2 * page_size())
		SKIP(return, "[vvar] has less than two pages here");
	note_base(&self->s);
	pid = fork();
	if (!pid) {
		unmap_vvar(r);
		syscall(__NR_exit_group, 0);
	}
	ASSERT_EQ(0, reap(pid));
	if (!r->moved)
		SKIP(return, "[vvar] cannot be moved on this machine");
	/* A munmap that ends inside [vvar] is refused without effect. */
	EXPECT_EQ(EINVAL, r->cut_errno);
	EXPECT_EQ(BIG, r->cut_left);
	EXPECT_EQ(0, r->ret);
	expect_sections(_metadata, &self->s);
}

/* --- userfaultfd */

static void unmap_uffd(struct __test_metadata *_metadata,
		       struct state *s, bool events)
{
	struct uffd_reader r = { .event = UFFD_EVENT_UNMAP };
	struct counters d;
	__u64 got = 0;
	char *p;

	r.fd = uffd_open(events ? UFFD_FEATURE_EVENT_UNMAP : 0, &got);
	if (r.fd < 0)
		SKIP(return, "no userfaultfd%s", events ? " unmap event" : "");
	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	/* Two VMAs of the same userfaultfd, between others. */
	ASSERT_EQ(0, mprotect(p + 32 * MIB, 4 * MIB, PROT_READ));
	ASSERT_EQ(0, uffd_register(r.fd, p + 24 * MIB, 12 * MIB,
				   UFFDIO_REGISTER_MODE_MISSING));
	ASSERT_EQ(0, uffd_reader_start(&r));
	s->before = counters_read("munmap_section_");
	EXPECT_EQ(0, munmap(p, BIG));
	atomic_store(&r.returned, true);
	expect_unmapped(_metadata, p, BIG);
	d = counters_since(&s->before);
	uffd_reader_stop(&r);

	if (!events) {
		EXPECT_EQ(0, r.events);
		expect_sections(_metadata, s);
		return;
	}
	EXPECT_TRUE(got & UFFD_FEATURE_EVENT_UNMAP);
	/* One event for the whole range, before the call returns. */
	EXPECT_EQ(1, r.events);
	EXPECT_EQ(1, r.awaited);
	EXPECT_EQ((uintptr_t)p, r.start);
	EXPECT_EQ((uintptr_t)p + BIG, r.end);
	EXPECT_FALSE(r.late);
	EXPECT_EQ(0, counter(&d, "sections"));
	EXPECT_EQ(s->on, counter(&d, "atomic"));
}

TEST_F_TIMEOUT(munmap, uffd_unmap_event, TIMEOUT)
{
	unmap_uffd(_metadata, &self->s, true);
}

TEST_F_TIMEOUT(munmap, uffd_no_event, TIMEOUT)
{
	unmap_uffd(_metadata, &self->s, false);
}

/* --- tracepoints and counters agree */

TEST_F_TIMEOUT(munmap, trace_is_consistent, TIMEOUT)
{
	unsigned long start, end, next, sections = 0, value;
	struct counters d;
	const char *pos;
	char line[512];
	char *p;
	int ret;

	if (!vm_sysctl_exists(MUNMAP_KNOB))
		SKIP(return, "this kernel has no vm." MUNMAP_KNOB);
	p = map_filled(BIG, TAG);
	ASSERT_NE(NULL, p);
	ret = trace_start(&self->s.trace, "faultline");
	if (ret)
		SKIP(return, "cannot use the trace system faultline (%d)", ret);
	note_base(&self->s);
	ASSERT_EQ(0, munmap(p, BIG));
	ASSERT_EQ(0, trace_stop(&self->s.trace));
	expect_sections(_metadata, &self->s);
	d = counters_since(&self->s.before);

	pos = trace_next(self->s.trace.text, "munmap_section_begin", line,
			 sizeof(line));
	if (!variant->on) {
		EXPECT_EQ(NULL, pos);
		EXPECT_EQ(NULL, trace_next(self->s.trace.text, "munmap_section",
					   line, sizeof(line)));
		return;
	}
	ASSERT_NE(NULL, pos);
	ASSERT_TRUE(trace_field(line, "start", &start));
	ASSERT_TRUE(trace_field(line, "end", &end));
	EXPECT_EQ((uintptr_t)p, start);
	EXPECT_EQ((uintptr_t)p + BIG, end);
	EXPECT_EQ(NULL, trace_next(pos, "munmap_section_begin", line,
				   sizeof(line)));

	/* From low to high, without gaps as nothing interferes. */
	next = (uintptr_t)p;
	pos = self->s.trace.text;
	while ((pos = trace_next(pos, "munmap_section", line, sizeof(line)))) {
		ASSERT_TRUE(trace_field(line, "start", &start));
		ASSERT_TRUE(trace_field(line, "end", &end));
		EXPECT_EQ(next, start);
		EXPECT_LT(start, end);
		EXPECT_TRUE(end % pmd_size() == 0 ||
			    end == (uintptr_t)p + BIG);
		next = end;
		sections++;
	}
	EXPECT_EQ((uintptr_t)p + BIG, next);
	EXPECT_EQ((long)sections, counter(&d, "sections"));

	pos = trace_next(self->s.trace.text, "munmap_section_end", line,
			 sizeof(line));
	ASSERT_NE(NULL, pos);
	ASSERT_TRUE(trace_field(line, "sections", &value));
	EXPECT_EQ(sections, value);
}

int main(int argc, char **argv)
{
	return vm_knob_kept(&munmap_knob, test_harness_run, argc, argv);
}
