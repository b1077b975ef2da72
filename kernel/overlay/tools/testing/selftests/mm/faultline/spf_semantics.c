// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page faults with vm.speculative_page_fault off and on: contents, accounting
 * and signals are the same.  The counters tell which faults took no locks, and
 * why the others did.
 */
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../../kselftest_harness.h"
#include "spf_util.h"

#define TIMEOUT		120
#define TAG		0x7370665f73656d01ULL
/* Shares a table with the page before: 32 entries with 64 KiB pages. */
#define PAGES		24
/* Faults of the test itself: its stack, messages. */
#define SLACK		16

static bool have_swap;

FIXTURE(spf) {
	struct counters before;
	size_t ps;
	size_t len;		/* of the map: PAGES */
	char *map;
};

FIXTURE_VARIANT(spf) {
	long value;
};

FIXTURE_VARIANT_ADD(spf, stock) { .value = 0 };
FIXTURE_VARIANT_ADD(spf, speculative) { .value = 1 };

/*
 * Private memory of base pages with a page table and an anon_vma: the page
 * before those of the test is written.
 */
static char *map_ready(size_t pages, int prot, int fd)
{
	size_t ps = page_size(), len = (pages + 1) * ps;
	int flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE;
	char *p;

	p = mmap(free_range(len), len, prot, fd < 0 ? flags | MAP_ANONYMOUS :
		 flags, fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, len, MADV_NOHUGEPAGE);
	if (prot & PROT_WRITE)
		word_write(p, TAG);
	return p + ps;
}

FIXTURE_SETUP(spf)
{
	const char *why = vm_knob_set(&spf_knob, variant->value);

	if (why)
		SKIP(return, "%s", why);
	self->ps = page_size();
	self->len = PAGES * self->ps;
	self->map = map_ready(PAGES, PROT_READ | PROT_WRITE, -1);
	ASSERT_NE(NULL, self->map);
	/* Twice, to fault in the memory needed for reading /proc/vmstat. */
	self->before = counters_read("spf_");
	self->before = counters_read("spf_");
}

FIXTURE_TEARDOWN(spf)
{
}

/* With the switch on, the counter has grown by @n, plus at most SLACK. */
#define EXPECT_COUNT(name, n) do {					\
	long grown = counted(&self->before, name);			\
									\
	if (variant->value) {						\
		EXPECT_LE((n), grown);					\
		EXPECT_GE((n) + SLACK, grown);				\
	} else {							\
		EXPECT_EQ(0, grown);					\
	}								\
} while (0)

static siginfo_t signal_info;

static void *page(FIXTURE_DATA(spf) *self, size_t i)
{
	return self->map + i * self->ps;
}

/* Anonymous pages of the mapping; initially one, before the map. */
static long anon_pages(FIXTURE_DATA(spf) *self)
{
	return smaps_kb(self->map - self->ps, (PAGES + 2) * self->ps,
			"Anonymous") / (long)(self->ps / KIB);
}

TEST_F(spf, read_maps_zero)
{
	long faults = minor_faults();
	size_t i;

	for (i = 0; i < PAGES; i++)
		EXPECT_EQ(0, word_read(page(self, i)));
	faults = minor_faults() - faults;
	EXPECT_LE(PAGES, faults);
	EXPECT_GE(PAGES + SLACK, faults);
	EXPECT_COUNT("zero", PAGES);
	/* The zero page is not anonymous. */
	EXPECT_EQ(1, anon_pages(self));
	/* A write replaces it. */
	fill_pages(self->map, self->len, TAG);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
	EXPECT_COUNT("cow", PAGES);
}

TEST_F(spf, write_maps_memory)
{
	long faults = minor_faults();
	size_t i, j;

	fill_pages(self->map, self->len, TAG);
	faults = minor_faults() - faults;
	EXPECT_LE(PAGES, faults);
	EXPECT_GE(PAGES + SLACK, faults);
	EXPECT_COUNT("anon", PAGES);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
	/* The rest of the pages is zero. */
	for (i = 0; i < PAGES; i++)
		for (j = sizeof(__u64); j < self->ps; j += sizeof(__u64))
			ASSERT_EQ(0, word_read((char *)page(self, i) + j));
	EXPECT_EQ(PAGES + 1, anon_pages(self));
	EXPECT_EQ(0, munmap(self->map, self->len));
}

/* The kernel writes to user memory; upstream takes mmap_lock for that. */
TEST_F(spf, kernel_writes)
{
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	ASSERT_LE(0, zero);
	EXPECT_EQ((ssize_t)self->len, read(zero, self->map, self->len));
	EXPECT_COUNT("anon", PAGES);
	close(zero);
}

TEST_F(spf, kernel_reads)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), pipes[2];
	size_t i;

	ASSERT_LE(0, null);
	ASSERT_EQ(0, pipe(pipes));
	/* /dev/null does not read the memory; a pipe does. */
	for (i = 0; i < PAGES; i++) {
		__u64 word = TAG;

		ASSERT_EQ(sizeof(word), write(pipes[1], page(self, i),
					      sizeof(word)));
		ASSERT_EQ(sizeof(word), read(pipes[0], &word, sizeof(word)));
		EXPECT_EQ(0, word);
	}
	EXPECT_COUNT("zero", PAGES);
	close(null);
}

/* Parent and child each see their own word in a page. */
TEST_F(spf, fork_copies)
{
	size_t bad;
	int pipes[2];
	char byte = 0;
	pid_t pid;

	ASSERT_EQ(0, pipe(pipes));
	fill_pages(self->map, self->len, TAG);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		/* Until the parent has written. */
		if (read(pipes[0], &byte, 1) != 1)
			_exit(2);
		bad = bad_pages(self->map, self->len, TAG);
		fill_pages(self->map, self->len, TAG + 1);
		_exit(bad || bad_pages(self->map, self->len, TAG + 1));
	}
	self->before = counters_read("spf_");
	fill_pages(self->map, self->len, TAG + 2);
	EXPECT_COUNT("cow", PAGES);
	ASSERT_EQ(1, write(pipes[1], &byte, 1));
	EXPECT_EQ(0, reap(pid));
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG + 2));
}

/* The page to be copied cannot be read: one SIGBUS, and nothing else. */
TEST_F(spf, broken_memory)
{
	pid_t pid;

	if (!spf_torture("broken_rules", 0))
		SKIP(return, "this kernel cannot simulate broken memory");
	ASSERT_EQ(0, madvise(self->map, self->len, MADV_DONTDUMP));
	fill_pages(self->map, self->len, TAG);
	pid = fork_bound();
	while (!pid)
		pause();
	spf_torture("broken_rules", SPF_BAD_MEMORY);
	self->before = counters_read("spf_");
	EXPECT_EQ(variant->value ? SIGBUS : 0,
		  access_signal(self->map, true, NULL));
	spf_torture("broken_rules", 0);
	ASSERT_LE(0, pid);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	EXPECT_EQ(variant->value, counted(&self->before, "hwpoison"));
	if (variant->value)
		EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
}

/* After the child's exit, its parent's pages need no copy. */
TEST_F(spf, fork_and_reuse)
{
	pid_t pid;

	fill_pages(self->map, self->len, TAG);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(0);
	ASSERT_EQ(pid, waitpid(pid, NULL, 0));
	self->before = counters_read("spf_");
	fill_pages(self->map, self->len, TAG + 1);
	EXPECT_COUNT("reuse", PAGES);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG + 1));
}

TEST_F(spf, private_file)
{
	int fd = memfd_create("spf", MFD_CLOEXEC);
	size_t len = (PAGES + 1) * self->ps, i;
	char *map;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, len));
	for (i = 0; i <= PAGES; i++) {
		__u64 word = page_word(TAG, i);

		ASSERT_EQ(sizeof(word), pwrite(fd, &word, sizeof(word),
					       i * self->ps));
	}
	map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	/* Upstream code maps file pages and handles the first write. */
	EXPECT_EQ(0, bad_pages(map, len, TAG));
	word_write(map, TAG);
	self->before = counters_read("spf_");
	for (i = 1; i <= PAGES; i++)
		word_write(map + i * self->ps, page_word(TAG + 1, i));
	for (i = 1; i <= PAGES; i++) {
		EXPECT_EQ(page_word(TAG + 1, i), word_read(map + i * self->ps));
	}
	/* A shmem file may have a memory policy. */
	EXPECT_COUNT("abort_unsupported", PAGES);
	for (i = 0; i <= PAGES; i++) {
		__u64 word;

		ASSERT_EQ(sizeof(word), pread(fd, &word, sizeof(word),
					      i * self->ps));
		EXPECT_EQ(page_word(TAG, i), word);
	}
	close(fd);
}

/* The same with a file whose pages are like those of a disk. */
TEST_F(spf, private_file_of_program)
{
	size_t pages, i, len;
	struct stat st;
	char *map;
	int fd;

	fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, fstat(fd, &st));
	pages = st.st_size / self->ps;
	ASSERT_LE(8, pages);
	if (pages > PAGES)
		pages = PAGES;
	len = pages * self->ps;
	map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	for (i = 0; i < pages; i++)
		word_read(map + i * self->ps);
	word_write(map, TAG);
	self->before = counters_read("spf_");
	for (i = 1; i < pages; i++) {
		__u64 second, word;
		char *p = map + i * self->ps;

		ASSERT_EQ(sizeof(second), pread(fd, &second, sizeof(second),
						i * self->ps + sizeof(word)));
		word_write(p, page_word(TAG, i));
		EXPECT_EQ(page_word(TAG, i), word_read(p));
		EXPECT_EQ(second, word_read(p + sizeof(word)));
	}
	/* In an initramfs, the program may be in shmem. */
	if (variant->value)
		EXPECT_LE((long)pages - 1, counted(&self->before, "cow") +
			  counted(&self->before, "abort_unsupported"));
	close(fd);
}

/* Opens a perf software event of this process. */
static int perf_event(__u64 config)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = config,
	};

	return syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

static long perf_count(int fd)
{
	__u64 count;

	return read(fd, &count, sizeof(count)) == sizeof(count) ? count : -1;
}

#define PERF_SPF		12
#define PERF_SPF_FAILED		13

TEST_F(spf, perf_events)
{
	int good = perf_event(PERF_SPF), failed = perf_event(PERF_SPF_FAILED);
	size_t i;

	if (!self->before.n || (good < 0 && errno == ENOENT && !variant->value))
		SKIP(return, "this kernel has no such events");
	ASSERT_LE(0, good);
	ASSERT_LE(0, failed);
	for (i = 0; i < PAGES; i++)
		word_write(page(self, i), TAG);
	EXPECT_LE(variant->value ? PAGES : 0, perf_count(good));
	EXPECT_GE(variant->value ? PAGES + SLACK : 0, perf_count(good));
	ASSERT_EQ(0, mprotect(page(self, 0), self->ps, PROT_NONE));
	EXPECT_EQ(SIGSEGV, access_signal(page(self, 0), false, NULL));
	EXPECT_LE(variant->value ? 1 : 0, perf_count(failed));
	EXPECT_GE(variant->value ? SLACK : 0, perf_count(failed));
	close(good);
	close(failed);
}

/* --- page tables, and the anon_vma */

/* The first write to a VMA that has a table already. */
TEST_F(spf, first_write)
{
	char *map = map_ready(PAGES, PROT_READ, -1) - self->ps;

	word_read(map);
	ASSERT_EQ(0, mprotect(map, self->len, PROT_READ | PROT_WRITE));
	word_write(map + self->ps, TAG);
	EXPECT_EQ(TAG, word_read(map + self->ps));
	if (variant->value)
		EXPECT_LE(1, counted(&self->before, "anon"));
	EXPECT_EQ(0, counted(&self->before, "abort_no_anon_vma"));
	/* The zero page is not anonymous. */
	EXPECT_EQ((long)(self->ps / KIB),
		  smaps_kb(map, self->len + self->ps, "Anonymous"));
}

#define TABLES		4

/* The first touch of each of several tables, and of the one above them. */
static char *map_without_tables(void)
{
	char *map = map_apart(TABLES * pmd_size());

	if (map)
		madvise(map, TABLES * pmd_size(), MADV_NOHUGEPAGE);
	return map;
}

TEST_F(spf, first_write_of_table)
{
	char *map = map_without_tables();
	long tables;
	int i;

	if (!spf_fills_holes())
		SKIP(return, "the hash MMU takes locks without a table");
	ASSERT_NE(NULL, map);
	tables = page_tables_kb();
	for (i = 0; i < TABLES; i++)
		word_write(map + i * pmd_size(), TAG + i);
	tables = page_tables_kb() - tables;
	/* The fault that installs a table also maps the page. */
	EXPECT_COUNT("table", TABLES);
	EXPECT_COUNT("anon", TABLES);
	EXPECT_EQ(0, counted(&self->before, "abort_no_table"));
	EXPECT_EQ(0, counted(&self->before, "abort_no_anon_vma"));
	/* As large as their entries: on powerpc, several share a page. */
	EXPECT_LE((long)(TABLES * pmd_size() / self->ps * sizeof(__u64) / KIB),
		  tables);
	for (i = 0; i < TABLES; i++) {
		EXPECT_EQ(TAG + i, word_read(map + i * pmd_size()));
		EXPECT_EQ(0, word_read(map + i * pmd_size() + self->ps));
	}
	EXPECT_EQ(0, munmap(map, TABLES * pmd_size()));
}

TEST_F(spf, first_read_of_table)
{
	char *map = map_without_tables();
	int i;

	if (!spf_fills_holes())
		SKIP(return, "the hash MMU takes locks without a table");
	ASSERT_NE(NULL, map);
	for (i = 0; i < TABLES; i++)
		EXPECT_EQ(0, word_read(map + i * pmd_size()));
	EXPECT_COUNT("table", TABLES);
	EXPECT_COUNT("zero", TABLES);
	EXPECT_EQ(0, counted(&self->before, "abort_no_table"));
	/* The zero page is not anonymous, and a write replaces it. */
	EXPECT_EQ(0, smaps_kb(map, TABLES * pmd_size(), "Anonymous"));
	for (i = 0; i < TABLES; i++)
		word_write(map + i * pmd_size(), TAG + i);
	for (i = 0; i < TABLES; i++)
		EXPECT_EQ(TAG + i, word_read(map + i * pmd_size()));
	EXPECT_EQ(0, munmap(map, TABLES * pmd_size()));
}

/* The kernel is the first to write. */
TEST_F(spf, first_write_of_table_by_kernel)
{
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char *map = map_without_tables();
	size_t i;

	if (!spf_fills_holes())
		SKIP(return, "the hash MMU takes locks without a table");
	ASSERT_LE(0, zero);
	ASSERT_NE(NULL, map);
	for (i = 0; i < TABLES; i++)
		EXPECT_EQ((ssize_t)self->ps,
			  read(zero, map + i * pmd_size(), self->ps));
	EXPECT_COUNT("table", TABLES);
	EXPECT_COUNT("anon", TABLES);
	close(zero);
}

/* --- faults that fall back */

TEST_F(spf, shared_falls_back)
{
	char *map = map_shared(self->len);

	ASSERT_NE(NULL, map);
	fill_pages(map, self->len, TAG);
	EXPECT_EQ(0, bad_pages(map, self->len, TAG));
	EXPECT_COUNT("abort_unsupported", PAGES);
}

/* An access that is denied after falling back leaves no lock behind. */
TEST_F(spf, denied_in_shared_memory)
{
	char *map = mmap(NULL, self->len, PROT_READ,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, map);
	EXPECT_EQ(SIGSEGV, access_signal(map, true, NULL));
	EXPECT_EQ(0, word_read(map));
	EXPECT_EQ(SIGSEGV, access_signal(map, true, NULL));
	/* mprotect() and munmap() would hang. */
	EXPECT_EQ(0, mprotect(map, self->len, PROT_READ | PROT_WRITE));
	word_write(map, TAG);
	EXPECT_EQ(TAG, word_read(map));
	EXPECT_EQ(0, munmap(map, self->len));
	if (variant->value)
		EXPECT_LE(3, counted(&self->before, "abort_unsupported"));
}

TEST_F(spf, policy_falls_back)
{
	/* Both nodes, as one of them may have no memory. */
	unsigned long nodes = 3;
	long ret;

	if (access("/proc/self/numa_maps", F_OK))
		SKIP(return, "this kernel has no memory policies");
	ret = syscall(SYS_mbind, self->map, self->len, MPOL_BIND, &nodes,
		      8 * sizeof(nodes), 0);
	ASSERT_EQ(0, ret);
	self->before = counters_read("spf_");
	fill_pages(self->map, self->len, TAG);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
	EXPECT_COUNT("abort_unsupported", PAGES);
}

/* Fills the pages, one for each event. */
static void *fill_by_uffd(void *arg)
{
	int fd = *(int *)arg;
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	struct uffd_msg msg;
	char *buffer = aligned_alloc(page_size(), page_size());
	size_t i;

	for (i = 0; i < PAGES; i++) {
		struct uffdio_copy copy = { .len = page_size() };

		if (poll(&ready, 1, 10000) != 1 ||
		    read(fd, &msg, sizeof(msg)) != sizeof(msg) ||
		    msg.event != UFFD_EVENT_PAGEFAULT)
			return (void *)1;
		copy.dst = msg.arg.pagefault.address & ~(page_size() - 1);
		copy.src = (uintptr_t)buffer;
		word_write(buffer, TAG + copy.dst);
		if (ioctl(fd, UFFDIO_COPY, &copy))
			return (void *)2;
	}
	return NULL;
}

/* Each page has a tag of its own, but never 0, which fresh memory has. */
static int tag_of(size_t i)
{
	return 1 + i % 15;
}

/* The number of pages whose memory does not have the tag. */
static int bad_tags(FIXTURE_DATA(spf) *self, char *map)
{
	int bad = 0;
	size_t i;

	for (i = 0; i < PAGES; i++)
		bad += tag_read(map + i * self->ps) != tag_of(i);
	return bad;
}

/* Copies have the tags of the memory, for parent and child. */
TEST_F(spf, tags_fall_back)
{
	size_t i;
	char *map;
	pid_t pid;

	if (!have_tags())
		SKIP(return, "this machine has no memory tags");
	map = mmap(NULL, self->len, PROT_READ | PROT_WRITE | TAGGED,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, map);
	madvise(map, self->len, MADV_NOHUGEPAGE);
	for (i = 0; i < PAGES; i++)
		tag_write(map + i * self->ps, tag_of(i));
	EXPECT_COUNT("abort_unsupported", PAGES);
	fill_pages(map, self->len, TAG);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		fill_pages(map, self->len, ~TAG);
		_exit(bad_tags(self, map) || bad_pages(map, self->len, ~TAG));
	}
	fill_pages(map, self->len / 2, TAG);
	EXPECT_EQ(0, reap(pid));
	EXPECT_EQ(0, bad_tags(self, map));
	EXPECT_EQ(0, bad_pages(map, self->len, TAG));
}

/* Memory gets tags after speculative faults have mapped it, and the zero page. */
TEST_F(spf, tags_come_later)
{
	size_t i;

	if (!have_tags())
		SKIP(return, "this machine has no memory tags");
	fill_pages(self->map, self->len / 2, TAG);
	for (i = PAGES / 2; i < PAGES; i++)
		EXPECT_EQ(0, word_read(page(self, i)));
	EXPECT_COUNT("anon", PAGES / 2);
	EXPECT_COUNT("zero", PAGES / 2);
	ASSERT_EQ(0, mprotect(self->map, self->len,
			      PROT_READ | PROT_WRITE | TAGGED));
	for (i = 0; i < PAGES; i++)
		EXPECT_EQ(0, tag_read(page(self, i)));
	for (i = 0; i < PAGES; i++)
		tag_write(page(self, i), tag_of(i));
	EXPECT_EQ(0, bad_tags(self, self->map));
	EXPECT_EQ(0, bad_pages(self->map, self->len / 2, TAG));
	if (variant->value)
		EXPECT_LE(PAGES / 2, counted(&self->before, "abort_unsupported"));
}

TEST_F(spf, userfaultfd_falls_back)
{
	int fd = uffd_open(0, NULL);
	pthread_t thread;
	void *result;
	size_t i;

	if (fd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	ASSERT_EQ(0, uffd_register(fd, self->map, self->len,
				   UFFDIO_REGISTER_MODE_MISSING));
	self->before = counters_read("spf_");
	ASSERT_EQ(0, pthread_create(&thread, NULL, fill_by_uffd, &fd));
	for (i = 0; i < PAGES; i++) {
		EXPECT_EQ(TAG + (uintptr_t)page(self, i),
			  word_read(page(self, i)));
	}
	pthread_join(thread, &result);
	EXPECT_EQ(NULL, result);
	if (variant->value)
		EXPECT_LE(PAGES, counted(&self->before, "abort_unsupported"));
	close(fd);
}

TEST_F(spf, swap_falls_back)
{
	if (!have_swap)
		SKIP(return, "no swap");
	fill_pages(self->map, self->len, TAG);
	ASSERT_EQ(0, madvise(self->map, self->len, MADV_PAGEOUT));
	self->before = counters_read("spf_");
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
	if (variant->value)
		EXPECT_LT(0, counted(&self->before, "abort_pte"));
}

/* --- signals */

TEST_F(spf, signals)
{
	void *addr = page(self, 3);

	ASSERT_EQ(0, mprotect(addr, self->ps, PROT_NONE));
	EXPECT_EQ(SIGSEGV, access_signal(addr, false, &signal_info));
	EXPECT_EQ(SEGV_ACCERR, signal_info.si_code);
	EXPECT_EQ(addr, signal_info.si_addr);
	EXPECT_EQ(SIGSEGV, access_signal(addr, true, &signal_info));
	EXPECT_EQ(SEGV_ACCERR, signal_info.si_code);
	EXPECT_COUNT("abort_access", 2);

	ASSERT_EQ(0, mprotect(addr, self->ps, PROT_READ));
	EXPECT_EQ(0, access_signal(addr, false, &signal_info));
	EXPECT_EQ(SIGSEGV, access_signal(addr, true, &signal_info));
	EXPECT_EQ(SEGV_ACCERR, signal_info.si_code);
	EXPECT_COUNT("abort_access", 3);

	ASSERT_EQ(0, munmap(addr, self->ps));
	EXPECT_EQ(SIGSEGV, access_signal(addr, false, &signal_info));
	EXPECT_EQ(SEGV_MAPERR, signal_info.si_code);
	EXPECT_EQ(SIGSEGV, access_signal(addr, true, &signal_info));
	EXPECT_EQ(SEGV_MAPERR, signal_info.si_code);
	EXPECT_COUNT("abort_no_vma", 2);
}

/* The kernel's accesses fail with EFAULT. */
TEST_F(spf, kernel_access_fails)
{
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	ASSERT_LE(0, zero);
	ASSERT_EQ(0, mprotect(self->map, self->ps, PROT_READ));
	errno = 0;
	EXPECT_EQ(-1, read(zero, self->map, self->ps));
	EXPECT_EQ(EFAULT, errno);
	ASSERT_EQ(0, munmap(self->map, self->ps));
	errno = 0;
	EXPECT_EQ(-1, read(zero, self->map, self->ps));
	EXPECT_EQ(EFAULT, errno);
	close(zero);
}

/* Recursive, so it is not inlined. */
static __u64 deep(int depth)
{
	__u64 frame[512];

	word_write(frame, depth);
	return depth ? deep(depth - 1) + word_read(frame) : 0;
}

TEST_F(spf, stack_grows)
{
	EXPECT_EQ(200 * 201 / 2, deep(200));
}

/* --- memory shortage */

/*
 * The memory of a group with a limit is full of lazily freed pages, which can
 * be reclaimed.  A fault that finds no free memory waits without locks.
 */
TEST_F_TIMEOUT(spf, waits_for_memory, TIMEOUT)
{
	size_t limit = 32 * MIB, len = 24 * MIB;
	struct memory_group group;
	struct counters delta;
	char *map, *junk;
	int err = -1;

	if (!memory_group_enter(&group))
		SKIP(return, "no memory cgroups here");
	ASSERT_EQ(0, memory_group_write(&group, "memory.max", "32M"));
	map = map_ready(len / self->ps, PROT_READ | PROT_WRITE, -1);
	ASSERT_NE(NULL, map);
	/* Fill the group with memory that reclaim frees at once. */
	junk = map_filled(limit - 2 * MIB, TAG);
	if (junk)
		err = madvise(junk, limit - 2 * MIB, MADV_FREE);
	self->before = counters_read("spf_");
	if (!err)
		fill_pages(map, len, TAG);
	delta = counters_since(&self->before);
	memory_group_leave(&group);
	ASSERT_EQ(0, err);
	EXPECT_EQ(0, bad_pages(map, len, TAG));
	TH_LOG("%ld of %zu faults waited, %ld gave up, %ld skipped",
	       counter(&delta, "sleep"), len / self->ps,
	       counter(&delta, "abort_no_memory"), counter(&delta, "skipped"));
	if (variant->value) {
		EXPECT_LT(0, counter(&delta, "sleep"));
		EXPECT_LT(0, counter(&delta, "anon"));
	}
}

/* Non-sleeping allocations always fail: every fault takes the sleeping path. */
TEST_F(spf, always_waits_for_memory)
{
	self->before = counters_read("spf_");
	if (!spf_fail_at_once(100))
		SKIP(return, "this kernel has no fault injection");
	fill_pages(self->map, self->len, TAG);
	spf_fail_at_once(0);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
	if (variant->value) {
		EXPECT_LE(PAGES, counted(&self->before, "sleep"));
		EXPECT_LE(PAGES, counted(&self->before, "anon"));
	}
}

/*
 * A system call can fill any amount of memory, so memory.high is enforced before
 * it returns to user mode.  Each time counts as an event.  The first one comes
 * when the group is a little over the limit, and from then on the process
 * sleeps more and more.
 */
TEST_F_TIMEOUT(spf, memory_high_in_system_call, TIMEOUT)
{
	/* Each CPU charges 64 pages at once. */
	size_t limit = self->ps < 16 * KIB ? 8 * MIB : 512 * self->ps;
	size_t len = 8 * limit, step = pmd_size(), i;
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	atomic_bool *done = map_shared(self->ps);
	char *map = map_ready(len / self->ps, PROT_READ | PROT_WRITE, -1);
	__u64 start = now_ns();
	struct memory_group group;
	long high = 0, filled = 0;
	int err, status = -1;
	char text[32];
	pid_t pid;

	ASSERT_LE(0, zero);
	ASSERT_NE(NULL, done);
	ASSERT_NE(NULL, map);
	if (!memory_group_enter(&group))
		SKIP(return, "no memory cgroups here");
	snprintf(text, sizeof(text), "%zu", limit);
	err = memory_group_write(&group, "memory.high", text);
	memory_group_write(&group, "memory.swap.max", "0");
	self->before = counters_read("spf_");
	pid = fork_bound();
	if (!pid) {
		for (i = 0; i < len; i += step)
			word_write(map + i, TAG);
		if (read(zero, map, len) != (ssize_t)len)
			_exit(1);
		*done = true;
		_exit(0);
	}
	memory_group_exit(&group);
	if (pid > 0 && !err) {
		do {
			sched_yield();
			high = memory_group_read(&group, "memory.events", "high");
		} while (high <= 0 && !*done && !waitpid(pid, &status, WNOHANG) &&
			 now_ns() - start < TIMEOUT / 2 * 1000000000ULL);
		filled = memory_group_read(&group, "memory.stat", "anon");
	}
	if (pid > 0 && status == -1) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	memory_group_leave(&group);
	ASSERT_LT(0, pid);
	ASSERT_EQ(0, err);
	EXPECT_LT(0, high) {
		TH_LOG("no event \"high\" came; the child's status is %d",
		       status);
	}
	EXPECT_FALSE(*done);
	/* Most of the pages before that were filled without locks. */
	if (variant->value)
		EXPECT_LE((long)(limit / self->ps / 2),
			  counted(&self->before, "anon"));
	EXPECT_GT(len / 2, filled) {
		TH_LOG("%ld MiB were filled before memory.high was enforced",
		       filled / (long)MIB);
	}
	close(zero);
}

/* Only allocations that may sleep reclaim from the local node. */
TEST_F(spf, zone_reclaim_may_sleep)
{
	static const char mode[] = "/proc/sys/vm/zone_reclaim_mode";
	char old[16];

	if (read_text(mode, old, sizeof(old)) || write_text(mode, "1"))
		SKIP(return, "this kernel has no vm.zone_reclaim_mode");
	self->before = counters_read("spf_");
	fill_pages(self->map, self->len, TAG);
	EXPECT_COUNT("sleep", PAGES);
	EXPECT_COUNT("anon", PAGES);
	write_text(mode, old);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
}

#define THP_64K	"/sys/kernel/mm/transparent_hugepage/hugepages-64kB/"

/*
 * Folios of several pages, where they are enabled.  The range is the upper half
 * of one page table and the lower half of the next: no huge page fits.
 */
TEST_F(spf, large_folios)
{
	size_t len = pmd_size(), step = 64 * KIB, i;
	long before;
	char *map;

	if (write_text(THP_64K "enabled", "madvise"))
		SKIP(return, "this kernel has no 64 KiB folios");
	map = mmap((char *)free_range(4 * len) + len / 2, len,
		   PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	ASSERT_NE(MAP_FAILED, map);
	/* Allocate the tables and the anon_vma. */
	word_write(map, TAG);
	word_write(map + len / 2, TAG);
	madvise(map, len, MADV_HUGEPAGE);
	self->before = counters_read("spf_");
	before = status_kb("RssAnon");
	for (i = 0; i < len; i += step)
		if (i % (len / 2))
			word_write(map + i, page_word(TAG, i / self->ps));
	for (i = 0; i < len; i += step) {
		EXPECT_EQ(i % (len / 2) ? page_word(TAG, i / self->ps) : TAG,
			  word_read(map + i));
	}
	write_text(THP_64K "enabled", "never");
	/* Each fault maps the whole folio. */
	EXPECT_COUNT("anon", (long)(len / step) - 2);
	EXPECT_LE((long)((len - 2 * step) / KIB) - 256,
		  status_kb("RssAnon") - before);
	for (i = 0; i < len; i += self->ps)
		if (i % step)
			ASSERT_EQ(0, word_read(map + i));
}

/* --- transparent huge pages */

#define HUGE		4

FIXTURE(spf_huge) {
	struct counters before;		/* spf_ */
	struct counters thp;		/* thp_fault_ */
	size_t size;			/* of a huge page */
	size_t len;			/* of the map: HUGE of them */
	char *map;
	struct memory_group group;
};

FIXTURE_VARIANT(spf_huge) {
	long value;
};

FIXTURE_VARIANT_ADD(spf_huge, stock) { .value = 0 };
FIXTURE_VARIANT_ADD(spf_huge, speculative) { .value = 1 };

static void begin_to_count(FIXTURE_DATA(spf_huge) *self)
{
	self->thp = counters_read("thp_fault_");
	self->before = counters_read("spf_");
}

FIXTURE_SETUP(spf_huge)
{
	const char *why = thp_set("madvise", "always");

	if (!why && !spf_fills_holes())
		why = "the hash MMU takes locks without a table";
	if (!why)
		why = vm_knob_set(&spf_knob, variant->value);
	if (why)
		SKIP(return, "%s", why);
	write_text(THP "use_zero_page", "1");
	/* khugepaged leaves memory alone in which a page is missing. */
	write_text(THP "khugepaged/max_ptes_none", "0");
	self->size = pmd_size();
	self->len = HUGE * self->size;
	self->map = map_apart(self->len);
	ASSERT_NE(NULL, self->map);
	ASSERT_EQ(0, madvise(self->map, self->len, MADV_HUGEPAGE));
	/* Twice, to fault in the memory needed for reading /proc/vmstat. */
	begin_to_count(self);
	begin_to_count(self);
}

FIXTURE_TEARDOWN(spf_huge)
{
	munmap(self->map, self->len);
	thp_restore();
}

static long huge_kb(const char *map, size_t len)
{
	return smaps_kb(map, len, "AnonHugePages");
}

/*
 * Since begin_to_count(), @wanted faults were on memory that may have huge
 * pages.  Each has got one, or is counted once as one that could not.  All huge
 * pages of the switch are in thp_fault_alloc as well.
 */
#define EXPECT_HUGE(wanted) do {					\
	long made = counted(&self->thp, "alloc");			\
	long failed = counted(&self->thp, "fallback");			\
									\
	EXPECT_EQ((wanted), made + failed);				\
	EXPECT_EQ(made * (long)(self->size / KIB),			\
		  huge_kb(self->map, self->len));			\
	EXPECT_EQ(variant->value ? made : 0,				\
		  counted(&self->before, "huge"));			\
} while (0)

/* All words are zero, except the first one of each page with this index. */
static size_t dirty_words(const char *map, size_t len, size_t written)
{
	size_t i, bad = 0;

	for (i = 0; i < len; i += sizeof(__u64))
		bad += i != written && word_read(map + i);
	return bad;
}

TEST_F(spf_huge, write_maps_huge)
{
	size_t i, at;
	long faults = minor_faults();

	for (i = 0; i < HUGE; i++) {
		/* The first, the last, and two in between. */
		at = i * (self->size / page_size() - 1) / (HUGE - 1) *
		     page_size();
		word_write(self->map + i * self->size + at, TAG + i);
	}
	faults = minor_faults() - faults;
	EXPECT_LE(HUGE, faults);
	EXPECT_GE(HUGE + SLACK, faults);
	EXPECT_HUGE(HUGE);
	for (i = 0; i < HUGE; i++) {
		char *p = self->map + i * self->size;

		at = i * (self->size / page_size() - 1) / (HUGE - 1) *
		     page_size();
		EXPECT_EQ(TAG + i, word_read(p + at));
		EXPECT_EQ(0, dirty_words(p, self->size, at));
	}
}

/* Huge pages that are free are full of old data. */
TEST_F(spf_huge, reused_memory_is_cleared)
{
	int turn;
	size_t i;

	for (turn = 0; turn < 3; turn++) {
		begin_to_count(self);
		for (i = 0; i < HUGE; i++)
			word_write(self->map + i * self->size, TAG);
		EXPECT_HUGE(HUGE);
		for (i = 0; i < HUGE; i++)
			EXPECT_EQ(0, dirty_words(self->map + i * self->size,
						 self->size, 0));
		memset(self->map, 0xa5, self->len);
		ASSERT_EQ(0, madvise(self->map, self->len, MADV_DONTNEED));
		EXPECT_EQ(0, huge_kb(self->map, self->len));
	}
}

/* Only the ranges of whole huge pages get them. */
TEST_F(spf_huge, unaligned_ends)
{
	size_t ps = page_size();

	ASSERT_EQ(0, munmap(self->map, ps));
	ASSERT_EQ(0, munmap(self->map + self->len - ps, ps));
	word_write(self->map + ps, TAG);
	word_write(self->map + self->len - 2 * ps, TAG);
	EXPECT_HUGE(0);
	word_write(self->map + self->size, TAG);
	EXPECT_HUGE(1);
	EXPECT_EQ(0, word_read(self->map + self->size + ps));
}

/* The child of a fork and its parent do not see each other's writes. */
TEST_F(spf_huge, fork_after_fault)
{
	size_t at = 5 * page_size();
	pid_t pid;

	word_write(self->map, TAG);
	EXPECT_HUGE(1);
	pid = fork_bound();
	ASSERT_LE(0, pid);
	if (!pid) {
		bool kept = word_read(self->map) == TAG &&
			    !word_read(self->map + at);

		word_write(self->map + at, TAG + 1);
		word_write(self->map + self->size, TAG + 1);
		_exit(!kept);
	}
	EXPECT_EQ(0, reap(pid));
	EXPECT_EQ(TAG, word_read(self->map));
	EXPECT_EQ(0, word_read(self->map + at));
	EXPECT_EQ(0, word_read(self->map + self->size));
}

static void do_nothing(int sig)
{
}

/* Kills the page; the caller gets a signal, as it has mapped it.  False: cannot. */
static bool page_fails(char *page)
{
	struct sigaction old, act = { .sa_handler = do_nothing };
	bool done;

	sigaction(SIGBUS, &act, &old);
	done = !madvise(page, page_size(), MADV_HWPOISON);
	sigaction(SIGBUS, &old, NULL);
	return done;
}

/*
 * Memory fails in huge pages that faults have just installed: of one, the base page
 * that failed is lost; of the other, nothing.
 */
TEST_F(spf_huge, memory_fails)
{
	char *bad = self->map + self->size / 2, *weak;
	size_t ps = page_size();

	if (!memory_may_fail())
		SKIP(return, "needs FAULTLINE_MEMORY_FAILS");
	weak = self->map + self->size + 3 * ps;
	word_write(self->map, TAG);
	word_write(self->map + self->size, TAG);
	EXPECT_HUGE(2);
	if (!page_fails(bad))
		SKIP(return, "needs root and CONFIG_MEMORY_FAILURE");
	EXPECT_EQ(SIGBUS, access_signal(bad, false, NULL));
	EXPECT_EQ(SIGBUS, access_signal(bad, true, NULL));
	EXPECT_EQ(TAG, word_read(self->map));
	EXPECT_EQ(0, dirty_words(self->map, self->size / 2, 0));
	EXPECT_EQ(0, dirty_words(bad + ps, self->size / 2 - ps, -1));
	EXPECT_EQ(0, huge_kb(self->map, self->size));
	ASSERT_EQ(0, madvise(bad, ps, MADV_DONTNEED));
	EXPECT_EQ(0, access_signal(bad, true, NULL));
	ASSERT_EQ(0, madvise(weak, ps, MADV_SOFT_OFFLINE));
	EXPECT_EQ(TAG, word_read(self->map + self->size));
	EXPECT_EQ(0, dirty_words(self->map + self->size, self->size, 0));
	word_write(weak, TAG);
	EXPECT_EQ(TAG, word_read(weak));
}

/* A system call is the first to write. */
TEST_F(spf_huge, kernel_writes)
{
	int fd = memfd_create("spf", MFD_CLOEXEC);
	char *file;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, self->len));
	file = mmap(NULL, self->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		    0);
	ASSERT_NE(MAP_FAILED, file);
	madvise(file, self->len, MADV_NOHUGEPAGE);
	fill_pages(file, self->len, TAG);
	begin_to_count(self);
	ASSERT_EQ((ssize_t)self->len, read(fd, self->map, self->len));
	EXPECT_HUGE(HUGE);
	EXPECT_EQ(0, bad_pages(self->map, self->len, TAG));
	munmap(file, self->len);
	close(fd);
}

/* A setting of huge pages, and the fault to expect with it. */
struct thp_case {
	const char *enabled;
	const char *defrag;
	int advice;
	bool disabled;		/* PR_SET_THP_DISABLE */
	bool zero_page;		/* use_zero_page */
	bool write;
};

static bool wants_huge(const struct thp_case *c)
{
	if (c->disabled || !strcmp(c->enabled, "never") ||
	    c->advice == MADV_NOHUGEPAGE)
		return false;
	return !strcmp(c->enabled, "always") || c->advice == MADV_HUGEPAGE;
}

static void thp_case(struct __test_metadata *_metadata,
		     FIXTURE_DATA(spf_huge) *self,
		     const FIXTURE_VARIANT(spf_huge) *variant,
		     const struct thp_case *c)
{
	size_t at = 7 * page_size();
	long made, failed, huge, mapped, anon;
	bool page;

	if (!map_fresh_at(self->map, self->len)) {
		ASSERT_EQ(0, errno);
	}
	if (c->advice)
		ASSERT_EQ(0, madvise(self->map, self->len, c->advice));
	begin_to_count(self);
	if (c->write)
		word_write(self->map + at, TAG);
	else
		EXPECT_EQ(0, word_read(self->map + at));
	made = counted(&self->thp, "alloc");
	failed = counted(&self->thp, "fallback");
	huge = counted(&self->before, "huge");
	mapped = huge_kb(self->map, self->len);
	anon = smaps_kb(self->map, self->len, "Anonymous");

	/* A read maps the huge zero page, unless that is not allowed. */
	page = wants_huge(c) && (c->write || !c->zero_page);
	EXPECT_EQ(page, made + failed);
	EXPECT_EQ(made * (long)(self->size / KIB), mapped);
	EXPECT_EQ(made ? mapped : c->write ? (long)(page_size() / KIB) : 0,
		  anon);
	EXPECT_LE(variant->value && c->write ? made : 0, huge);
	EXPECT_GE(variant->value ? made : 0, huge);
	EXPECT_EQ(c->write ? TAG : 0, word_read(self->map + at));
	EXPECT_EQ(0, word_read(self->map + at + page_size()));
	EXPECT_EQ(0, word_read(self->map));
	if (!__test_passed(_metadata))
		TH_LOG("enabled %s, defrag %s, advice %d, disabled %d, use_zero_page %d, %s",
		       c->enabled, c->defrag, c->advice, c->disabled,
		       c->zero_page, c->write ? "write" : "read");
}

static const char *const thp_enabled[] = { "always", "madvise", "never" };
static const char *const thp_defrag[] = {
	"always", "defer", "defer+madvise", "madvise", "never",
};

static const int thp_advice[] = { 0, MADV_HUGEPAGE, MADV_NOHUGEPAGE };

/* As upstream, for each setting; there are 360. */
TEST_F_TIMEOUT(spf_huge, settings, 5 * TIMEOUT)
{
	const size_t n = ARRAY_SIZE(thp_enabled) * ARRAY_SIZE(thp_defrag) *
			 ARRAY_SIZE(thp_advice) * 8;
	struct thp_case c;
	size_t i, rest;

	for (i = 0; i < n; i++) {
		rest = i / 8;
		c.disabled = i & 4;
		c.zero_page = i & 2;
		c.write = i & 1;
		c.advice = thp_advice[rest % ARRAY_SIZE(thp_advice)];
		rest /= ARRAY_SIZE(thp_advice);
		c.defrag = thp_defrag[rest % ARRAY_SIZE(thp_defrag)];
		c.enabled = thp_enabled[rest / ARRAY_SIZE(thp_defrag)];
		ASSERT_EQ(0, write_text(THP "enabled", c.enabled));
		ASSERT_EQ(0, write_text(THP "defrag", c.defrag));
		ASSERT_EQ(0, write_text(THP "use_zero_page",
					c.zero_page ? "1" : "0"));
		ASSERT_EQ(0, prctl(PR_SET_THP_DISABLE, c.disabled, 0, 0, 0));
		thp_case(_metadata, self, variant, &c);
		if (!__test_passed(_metadata))
			return;
	}
}

/* Reads one event, and puts a page at its address. */
static void *answer_uffd(void *arg)
{
	int fd = *(int *)arg;
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	struct uffdio_copy copy = { .len = page_size() };
	char *buffer = aligned_alloc(page_size(), page_size());
	struct uffd_msg msg;

	memset(buffer, 0, page_size());
	word_write(buffer, TAG);
	copy.src = (uintptr_t)buffer;
	if (poll(&ready, 1, 10000) != 1 ||
	    read(fd, &msg, sizeof(msg)) != sizeof(msg) ||
	    msg.event != UFFD_EVENT_PAGEFAULT)
		return (void *)1;
	copy.dst = msg.arg.pagefault.address & ~(page_size() - 1);
	return ioctl(fd, UFFDIO_COPY, &copy) ? (void *)2 : NULL;
}

static void uffd_test(struct __test_metadata *_metadata,
		      FIXTURE_DATA(spf_huge) *self)
{
	int fd = uffd_open(0, NULL);
	pthread_t thread;
	void *result;

	if (fd < 0)
		SKIP(return, "this kernel has no userfaultfd");
	ASSERT_EQ(0, uffd_register(fd, self->map, self->len,
				   UFFDIO_REGISTER_MODE_MISSING));
	begin_to_count(self);
	ASSERT_EQ(0, pthread_create(&thread, NULL, answer_uffd, &fd));
	EXPECT_EQ(TAG, word_read(self->map));
	pthread_join(thread, &result);
	EXPECT_EQ(NULL, result) {
		TH_LOG("no event of the fault came, or it could not be answered");
	}
	/* Only that page is there. */
	EXPECT_EQ((long)(page_size() / KIB),
		  smaps_kb(self->map, self->len, "Rss"));
	EXPECT_EQ(0, counted(&self->before, "huge"));
	EXPECT_EQ(0, counted(&self->thp, "alloc"));
	ASSERT_EQ(0, uffd_unregister(fd, self->map, self->len));
	close(fd);
	word_write(self->map + self->size, TAG);
	EXPECT_EQ(1, counted(&self->thp, "alloc") +
		  counted(&self->thp, "fallback"));
}

TEST_F(spf_huge, userfaultfd)
{
	uffd_test(_metadata, self);
}

/* There are a table and an anon_vma, but no page. */
TEST_F(spf_huge, userfaultfd_after_use)
{
	word_write(self->map, TAG);
	ASSERT_EQ(0, madvise(self->map, self->len, MADV_DONTNEED));
	uffd_test(_metadata, self);
}

static int node_of(void *page)
{
	int status = -1;

	return syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0) ?
	       -errno : status;
}

TEST_F(spf_huge, memory_policy)
{
	unsigned long nodes;
	int node;

	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "this machine has one node");
	for (node = 0; node < 2; node++) {
		nodes = 1UL << node;
		ASSERT_NE(NULL, map_fresh_at(self->map, self->len));
		ASSERT_EQ(0, madvise(self->map, self->len, MADV_HUGEPAGE));
		ASSERT_EQ(0, syscall(SYS_mbind, self->map, self->len,
				     MPOL_BIND, &nodes, 8 * sizeof(nodes), 0));
		begin_to_count(self);
		word_write(self->map, TAG);
		EXPECT_EQ(node, node_of(self->map));
		EXPECT_EQ(1, counted(&self->thp, "alloc") +
			  counted(&self->thp, "fallback"));
		ASSERT_EQ(0, syscall(SYS_mbind, self->map, self->len,
				     MPOL_DEFAULT, NULL, 0, 0));
		/* A policy of the task is in the snapshot of no VMA. */
		ASSERT_EQ(0, syscall(SYS_set_mempolicy, MPOL_BIND, &nodes,
				     8 * sizeof(nodes)));
		word_write(self->map + self->size, TAG);
		EXPECT_EQ(node, node_of(self->map + self->size));
		ASSERT_EQ(0, syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
		EXPECT_EQ(2, counted(&self->thp, "alloc") +
			  counted(&self->thp, "fallback"));
	}
}

/* A huge page is too much for the group, a table and a page are not. */
TEST_F(spf_huge, over_memory_max)
{
	struct memory_group *group = &self->group;
	struct counters thp, spf;
	int err, i;
	char text[32];

	if (!memory_group_enter(group))
		SKIP(return, "no memory cgroups here");
	memory_group_write(group, "memory.swap.max", "0");
	snprintf(text, sizeof(text), "%zu", self->size - page_size());
	err = memory_group_write(group, "memory.max", text);
	begin_to_count(self);
	for (i = 0; !err && i < HUGE; i++)
		word_write(self->map + i * self->size, TAG);
	thp = counters_since(&self->thp);
	spf = counters_since(&self->before);
	memory_group_leave(group);
	ASSERT_EQ(0, err);
	/* One attempt for each fault, and no second one with locks. */
	EXPECT_EQ(HUGE, counter(&thp, "fallback"));
	EXPECT_EQ(HUGE, counter(&thp, "fallback_charge"));
	EXPECT_EQ(0, counter(&thp, "alloc"));
	EXPECT_EQ(0, huge_kb(self->map, self->len));
	EXPECT_EQ(HUGE * (long)(page_size() / KIB),
		  smaps_kb(self->map, self->len, "Anonymous"));
	EXPECT_EQ(0, counter(&spf, "huge"));
	if (variant->value) {
		EXPECT_LE(HUGE, counter(&spf, "table"));
		EXPECT_LE(HUGE, counter(&spf, "anon"));
	}
}

static int huge_order(void)
{
	return __builtin_ctzl(pmd_size() / page_size());
}

/* There is no huge page: one attempt, and then a page of the usual size. */
TEST_F(spf_huge, no_huge_page)
{
	if (!spf_fail_pages(100, huge_order(), true))
		SKIP(return, "this kernel has no fault injection");
	begin_to_count(self);
	word_write(self->map, TAG);
	spf_fail_pages(0, huge_order(), true);
	EXPECT_EQ(1, counted(&self->thp, "fallback"));
	EXPECT_EQ(0, counted(&self->thp, "fallback_charge"));
	EXPECT_EQ(0, counted(&self->thp, "alloc"));
	EXPECT_EQ(0, huge_kb(self->map, self->len));
	EXPECT_EQ(0, counted(&self->before, "huge"));
	if (variant->value) {
		EXPECT_LE(1, counted(&self->before, "table"));
		EXPECT_LE(1, counted(&self->before, "anon"));
	}
	EXPECT_EQ(TAG, word_read(self->map));
}

/*
 * A first write allocates a page or a huge page, tables, and what makes the
 * anon_vma.  Whichever of them fails: memory is mapped, once.
 */
#define MANY_ALLOCATIONS	40

static void failing_test(struct __test_metadata *_metadata,
			 FIXTURE_DATA(spf_huge) *self,
			 const FIXTURE_VARIANT(spf_huge) *variant, bool huge)
{
	int fd = fail_nth_open(), n;
	long left = 0, made, failed;
	struct counters spf = counters_read("spf_");

	if (fd < 0)
		SKIP(return, "this kernel has no fault injection");
	for (n = 1; !left && n < MANY_ALLOCATIONS; n++) {
		char *map = map_apart(self->len), *p = map + self->size;

		ASSERT_NE(NULL, map);
		ASSERT_EQ(0, madvise(map, self->len, huge ? MADV_HUGEPAGE :
							    MADV_NOHUGEPAGE));
		begin_to_count(self);
		ASSERT_TRUE(fail_nth(fd, n));
		word_write(p, TAG);
		left = fail_nth_left(fd);
		fail_nth(fd, 0);
		made = counted(&self->thp, "alloc");
		failed = counted(&self->thp, "fallback");
		EXPECT_EQ(huge, made + failed);
		EXPECT_EQ(made * (long)(self->size / KIB),
			  huge_kb(map, self->len));
		EXPECT_EQ((long)((made ? self->size : page_size()) / KIB),
			  smaps_kb(map, self->len, "Anonymous"));
		EXPECT_EQ(TAG, word_read(p));
		EXPECT_EQ(0, dirty_words(p, self->size, 0));
		if (!__test_passed(_metadata))
			TH_LOG("allocation %d failed", n);
		munmap(map, self->len);
	}
	EXPECT_LT(0, left) {
		TH_LOG("%d allocations were not all", n - 1);
	}
	/* The last turn had no failure. */
	EXPECT_LT(3, n);
	if (variant->value)
		EXPECT_LT(0, counted(&spf, huge ? "huge" : "table"));
	close(fd);
}

TEST_F_TIMEOUT(spf_huge, failing_allocations, TIMEOUT)
{
	failing_test(_metadata, self, variant, true);
}

TEST_F_TIMEOUT(spf_huge, failing_allocations_of_pages, TIMEOUT)
{
	failing_test(_metadata, self, variant, false);
}

/* A table below the huge zero page, or a huge page: upstream splits them. */
TEST_F(spf_huge, write_after_read)
{
	EXPECT_EQ(0, word_read(self->map));
	EXPECT_EQ(0, huge_kb(self->map, self->len));
	word_write(self->map, TAG);
	EXPECT_EQ(TAG, word_read(self->map));
	EXPECT_EQ(0, dirty_words(self->map, self->size, 0));
	EXPECT_EQ(0, counted(&self->before, "huge"));
}

int main(int argc, char **argv)
{
	int status;

	have_swap = swap_start();
	thp_keep();
	status = vm_knob_kept(&spf_knob, test_harness_run, argc, argv);
	thp_restore();
	swap_stop();
	return status;
}
