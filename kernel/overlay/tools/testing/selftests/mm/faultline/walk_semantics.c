// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise walks: semantics that are the same with the switch on and off.
 *
 * Each test runs as "off" (knob 0; also on a kernel without the feature) and as "on".
 * Both expect the same outcome; in addition, "on" must have walked by sections where
 * the test says so, and "off" must not.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/shm.h>

#include "../../kselftest_harness.h"
#include "walk_util.h"

#define TAG		0x77616c6b73656d61ULL
/* Several page tables, whose size depends on the machine. */
#define BIG		MAX(32 * MIB, 4 * pmd_size())
#define TIMEOUT		300

/* The state of a test; FIXTURE() only wraps it. */
struct state {
	bool on;
	struct idle_thread idle;
	struct counters before;
};

/* Settings of NUMA balancing: scans come as fast as they can. */
#define SCAN_KNOBS	"/sys/kernel/debug/sched/numa_balancing/"
/* Until the scans have come, however slow the machine is. */
#define SCAN_NS		(120 * 1000000000ULL)

static struct scan_knob {
	const char *path, *value;
	char was[32];
} scan_knobs[] = {
	{ SCAN_KNOBS "scan_size_mb" },
	{ SCAN_KNOBS "scan_delay_ms", "1" },
	{ SCAN_KNOBS "scan_period_min_ms", "10" },
	{ SCAN_KNOBS "scan_period_max_ms", "10" },
	{ "/proc/sys/kernel/numa_balancing", "1" },
};

/* Those that were changed are as before. */
static void scan_stop(void)
{
	size_t i = ARRAY_SIZE(scan_knobs);

	while (i--)
		if (scan_knobs[i].was[0])
			write_text(scan_knobs[i].path, scan_knobs[i].was);
}

/*
 * Each scan covers @mib MiB; the kernel scans no more than 2560 MiB in a second.  The
 * teardown calls scan_stop().  False if this kernel has no NUMA balancing.
 */
static bool scan_start(const char *mib)
{
	struct scan_knob *k;

	scan_knobs[0].value = mib;
	for (k = scan_knobs; k < scan_knobs + ARRAY_SIZE(scan_knobs); k++)
		if (read_text(k->path, k->was, sizeof(k->was)) ||
		    write_text(k->path, k->value))
			return false;
	return true;
}

/* The times that scans have come to the end of the address space, or -1. */
static long scan_rounds(void)
{
	static char text[16384];
	const char *name = "mm->numa_scan_seq", *p;

	if (read_text("/proc/self/sched", text, sizeof(text)))
		return -1;
	p = strstr(text, name);
	p = p ? strchr(p, ':') : NULL;
	return p ? atol(p + 1) : -1;
}

FIXTURE(walk) {
	struct state s;
};

FIXTURE_VARIANT(walk) {
	bool on;
};

FIXTURE_VARIANT_ADD(walk, off) { .on = false };
FIXTURE_VARIANT_ADD(walk, on) { .on = true };

FIXTURE_SETUP(walk)
{
	const char *why = vm_knob_set(&walk_knob, variant->on ? 65536 : 0);

	self->s.on = variant->on;
	if (why)
		SKIP(return, "%s", why);
	ASSERT_EQ(0, idle_thread_start(&self->s.idle));
	self->s.before = counters_read("walk_section_");
}

FIXTURE_TEARDOWN(walk)
{
	scan_stop();
	idle_thread_stop(&self->s.idle);
}

/* With the switch on, so many walks were done by sections. */
static void expect_walks(struct __test_metadata *_metadata, struct state *s,
			 int calls)
{
	struct counters d = counters_since(&s->before);
	int i;

	if (s->on) {
		EXPECT_EQ(calls, counter(&d, "calls"));
		if (calls)
			EXPECT_LT(calls, counter(&d, "sections"));
		return;
	}
	for (i = 0; i < d.n; i++)
		EXPECT_EQ(0, d.list[i].value);
}

/* --- memory that is faulted in: nobody waits, so the lock is kept */

static void expect_kept(struct __test_metadata *_metadata, struct state *s)
{
	EXPECT_EQ(0, counted(&s->before, "yields"));
	expect_walks(_metadata, s, 0);
}

TEST_F_TIMEOUT(walk, populate, TIMEOUT)
{
	char *p = map_empty(BIG);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, madvise(p, BIG, MADV_POPULATE_READ));
	EXPECT_EQ(BIG / page_size(), resident_pages(p, BIG));
	EXPECT_EQ(0, madvise(p, BIG, MADV_POPULATE_WRITE));
	EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Rss"));
	expect_kept(_metadata, &self->s);
}

TEST_F_TIMEOUT(walk, map_populate, TIMEOUT)
{
	char *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	ASSERT_NE(MAP_FAILED, p);
	EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Rss"));
	expect_walks(_metadata, &self->s, 0);
}

TEST_F_TIMEOUT(walk, mlock, TIMEOUT)
{
	char *p = map_empty(BIG);

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, mlock(p, BIG));
	EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Locked"));
	EXPECT_EQ(0, munlock(p, BIG));
	expect_kept(_metadata, &self->s);
}

/* The part before a hole is populated, and the hole is reported. */
TEST_F_TIMEOUT(walk, populate_hole, TIMEOUT)
{
	size_t part = BIG / 2;
	char *p = map_empty(BIG);

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, munmap(p + part, page_size()));
	EXPECT_EQ(-1, madvise(p, BIG, MADV_POPULATE_WRITE));
	EXPECT_EQ(ENOMEM, errno);
	EXPECT_EQ((long)(part / KIB), smaps_kb(p, part, "Rss"));
	EXPECT_EQ(0, smaps_kb(p + part, part, "Rss"));
}

/* --- pinned buffers */

TEST_F_TIMEOUT(walk, pin, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);
	int ring = ring_open();

	if (ring < 0)
		SKIP(return, "there is no io_uring");
	ASSERT_NE(NULL, p);
	EXPECT_EQ(0, ring_register(ring, p, BIG));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	EXPECT_EQ(0, ring_unregister(ring));

	/* Not there yet: by page faults. */
	ASSERT_EQ(0, madvise(p, BIG, MADV_DONTNEED));
	EXPECT_EQ(0, ring_register(ring, p, BIG));
	EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Rss"));
	EXPECT_EQ(0, ring_unregister(ring));

	/* A hole behind several pieces of GUP-fast. */
	ASSERT_EQ(0, munmap(p + BIG - page_size(), page_size()));
	EXPECT_EQ(EFAULT, ring_register(ring, p, BIG));
	EXPECT_EQ(0, ring_register(ring, p, BIG - page_size()));
	close(ring);
	expect_kept(_metadata, &self->s);
}

/* --- clear_refs */

TEST_F_TIMEOUT(walk, clear_refs, TIMEOUT)
{
	char *anon = map_filled(BIG, TAG), *file = map_memfd(BIG);
	const long all = BIG / KIB;

	ASSERT_NE(NULL, anon);
	ASSERT_NE(NULL, file);
	fill_pages(file, BIG, TAG);
	EXPECT_EQ(all, smaps_kb(anon, BIG, "Referenced"));
	EXPECT_EQ(all, smaps_kb(file, BIG, "Referenced"));

	EXPECT_EQ(0, clear_refs(getpid(), "2"));
	EXPECT_EQ(0, smaps_kb(anon, BIG, "Referenced"));
	EXPECT_EQ(all, smaps_kb(file, BIG, "Referenced"));

	EXPECT_EQ(0, bad_pages(anon, BIG, TAG));
	EXPECT_EQ(0, clear_refs(getpid(), "3"));
	EXPECT_EQ(all, smaps_kb(anon, BIG, "Referenced"));
	EXPECT_EQ(0, smaps_kb(file, BIG, "Referenced"));

	EXPECT_EQ(0, bad_pages(file, BIG, TAG));
	EXPECT_EQ(0, clear_refs(getpid(), "1"));
	EXPECT_EQ(0, smaps_kb(anon, BIG, "Referenced"));
	EXPECT_EQ(0, smaps_kb(file, BIG, "Referenced"));
	EXPECT_EQ(0, bad_pages(anon, BIG, TAG));
	EXPECT_EQ(0, bad_pages(file, BIG, TAG));
	expect_walks(_metadata, &self->s, 3);
}

/* Others than 1 to 3 are not done section by section. */
TEST_F_TIMEOUT(walk, clear_refs_upstream, TIMEOUT)
{
	EXPECT_EQ(0, clear_refs(getpid(), "4"));
	EXPECT_EQ(0, clear_refs(getpid(), "5"));
	EXPECT_NE(0, clear_refs(getpid(), "6"));
	expect_walks(_metadata, &self->s, 0);
}

/* --- smaps_rollup */

#define SHMEM_ENABLED	"/sys/kernel/mm/transparent_hugepage/shmem_enabled"

/* A file in memory, of huge pages where there are any. */
static char *map_huge_shared(void)
{
	char *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		_exit(1);
	madvise(p, BIG, MADV_HUGEPAGE);
	if (madvise(p, BIG, MADV_POPULATE_WRITE))
		_exit(1);
	return p;
}

/* A part of a file once more, one page off from where huge pages begin. */
static void map_again(char *file)
{
	char *place = mmap(NULL, BIG, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (place == MAP_FAILED ||
	    mremap(file, 0, BIG / 2, MREMAP_MAYMOVE | MREMAP_FIXED,
		   place + page_size()) == MAP_FAILED)
		_exit(1);
}

/* A process that sleeps, with memory of several kinds. */
static void sleeper(bool swap)
{
	char *p = map_filled(BIG, TAG), *file = map_huge_shared(), *huge;

	if (!p)
		_exit(1);
	map_again(file);
	if (mlock(p, 4 * page_size()) ||
	    mprotect(p + BIG / 2, page_size(), PROT_READ))
		_exit(1);
	if (swap) {
		madvise(p + BIG / 4, BIG / 4, MADV_PAGEOUT);
		madvise(file, 3 * BIG / 8, MADV_PAGEOUT);
	}
	huge = mmap(NULL, 2 * pmd_size(), PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(huge, 2 * pmd_size(), MADV_HUGEPAGE);
	madvise(huge, 2 * pmd_size(), MADV_POPULATE_WRITE);
	huge = mmap(NULL, pmd_size(), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (huge != MAP_FAILED)
		madvise(huge, pmd_size(), MADV_POPULATE_WRITE);
}

/* A field of /proc/PID/smaps, summed up over all mappings; -1 if there is none. */
static long smaps_sum(pid_t pid, const char *field)
{
	char path[64], line[512];
	long sum = -1, kb;
	size_t len = strlen(field);
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/smaps", pid);
	f = fopen(path, "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, field, len) && line[len] == ':' &&
		    sscanf(line + len + 1, "%ld", &kb) == 1)
			sum = (sum < 0 ? 0 : sum) + kb;
	fclose(f);
	return sum;
}

/* Bound on the wait for a sleeper to sleep, in sleeps of 1 ms. */
#define SLEEP_MS	60000

/* Starts a sleeper, and waits until it has its memory; its process ID. */
static pid_t sleeper_start(struct __test_metadata *_metadata, bool swap)
{
	char enabled[128], *word;
	int ready[2], tries;
	char byte;
	pid_t pid;

	ASSERT_EQ(0, pipe(ready));
	if (read_text(SHMEM_ENABLED, enabled, sizeof(enabled)))
		enabled[0] = 0;
	write_text(SHMEM_ENABLED, "advise");
	pid = fork_bound();
	if (!pid) {
		sleeper(swap);
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	ASSERT_LT(0, pid);
	EXPECT_EQ(1, read(ready[0], &byte, 1));
	/* On its way to sleep, it may still map a page of the program. */
	for (tries = 0; tries < SLEEP_MS && task_state(pid, pid) != 'S'; tries++)
		usleep(1000);
	EXPECT_EQ('S', task_state(pid, pid)) {
		TH_LOG("the child has its memory, but does not go to sleep");
	}
	/* "always [advise] never": the word in brackets. */
	word = strchr(enabled, '[');
	if (word)
		write_text(SHMEM_ENABLED, strtok(word, "[]"));
	close(ready[0]);
	close(ready[1]);
	return pid;
}

TEST_F_TIMEOUT(walk, rollup, TIMEOUT)
{
	static const char *const fields[] = {
		"Rss", "Shared_Clean", "Shared_Dirty", "Private_Clean",
		"Private_Dirty", "Referenced", "Anonymous", "KSM", "LazyFree",
		"AnonHugePages", "ShmemPmdMapped", "FilePmdMapped",
		"Shared_Hugetlb", "Private_Hugetlb", "Swap",
	};
	bool swap = swap_start();
	pid_t pid = sleeper_start(_metadata, swap);
	int calls = 0;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(fields); i++) {
		long sum = smaps_sum(pid, fields[i]);
		long rollup = rollup_kb(pid, fields[i]);

		EXPECT_LE(0, sum);
		EXPECT_EQ(sum, rollup) {
			TH_LOG("%s", fields[i]);
		}
		calls++;
	}
	/* Each mapping of smaps is rounded down to a kB. */
	EXPECT_LE(smaps_sum(pid, "Pss"), rollup_kb(pid, "Pss"));
	EXPECT_LE((long)(4 * page_size() / KIB), rollup_kb(pid, "Locked"));
	if (swap)
		EXPECT_LT(0, rollup_kb(pid, "Swap"));
	calls += 2 + swap;
	expect_walks(_metadata, &self->s, calls);

	kill(pid, SIGKILL);
	reap(pid);
	/* The process has no memory any more, or is gone. */
	EXPECT_EQ(-1, rollup_kb(pid, "Rss"));
	if (swap)
		swap_stop();
}

/* --- smaps and numa_maps */

/* The text of /proc/PID/@name; NULL if there is none. */
static char *proc_text(pid_t pid, const char *name)
{
	size_t size = 1 << 20, len = 0;
	char path[64], *text = malloc(size);
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && text)
		while ((n = read(fd, text + len, size - 1 - len)) > 0)
			len += n;
	if (fd >= 0)
		close(fd);
	if (n || !len) {
		free(text);
		return NULL;
	}
	text[len] = 0;
	return text;
}

/* Reports the first line in which two texts differ. */
static void expect_text(struct __test_metadata *_metadata, const char *name,
			char *seen, char *expected)
{
	size_t i = 0, line = 0;

	while (seen[i] && seen[i] == expected[i]) {
		if (seen[i++] == '\n')
			line = i;
	}
	EXPECT_EQ(seen[i], expected[i]) {
		TH_LOG("%s: '%.*s' instead of '%.*s'", name,
		       (int)strcspn(seen + line, "\n"), seen + line,
		       (int)strcspn(expected + line, "\n"), expected + line);
	}
}

/* A file of /proc as upstream shows it. */
static char *proc_text_upstream(struct __test_metadata *_metadata,
				struct state *s, pid_t pid, const char *name)
{
	char *text;

	if (!s->on)
		return proc_text(pid, name);
	ASSERT_EQ(NULL, vm_knob_set(&walk_knob, 0));
	text = proc_text(pid, name);
	ASSERT_EQ(NULL, vm_knob_set(&walk_knob, 65536));
	return text;
}

/*
 * The records of a process that sleeps are upstream's, letter by letter.  Upstream's
 * are read before and after, as they change once when the parent, which shares the
 * heap, writes to it.
 */
TEST_F_TIMEOUT(walk, records, TIMEOUT)
{
	static const char *const names[] = { "smaps", "numa_maps" };
	bool swap = swap_start();
	pid_t pid = sleeper_start(_metadata, swap);
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		char *before = NULL, *text = NULL, *after;
		int tries;

		after = proc_text_upstream(_metadata, &self->s, pid, names[i]);
		/* There is no numa_maps without CONFIG_NUMA. */
		if (!after && i)
			continue;
		for (tries = 0; tries < 10; tries++) {
			free(before);
			free(text);
			before = after;
			self->s.before = counters_read("walk_section_");
			text = proc_text(pid, names[i]);
			expect_walks(_metadata, &self->s, 0);
			if (self->s.on)
				EXPECT_LT(1, counted(&self->s.before,
						     "sections"));
			after = proc_text_upstream(_metadata, &self->s, pid,
						   names[i]);
			ASSERT_NE(NULL, before);
			ASSERT_NE(NULL, text);
			ASSERT_NE(NULL, after);
			if (!strcmp(before, after))
				break;
		}
		ASSERT_EQ(0, strcmp(before, after));
		expect_text(_metadata, names[i], text, after);
		free(before);
		free(text);
		free(after);
	}
	kill(pid, SIGKILL);
	reap(pid);
	if (swap)
		swap_stop();
}

/* --- userfaultfd */

TEST_F_TIMEOUT(walk, uffd_protect, TIMEOUT)
{
	char *p = map_filled(BIG, TAG), *behind = map_filled(BIG, TAG);
	int fd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP, NULL);

	if (fd < 0)
		SKIP(return, "there is no userfaultfd");
	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, behind);
	if (uffd_register(fd, p, BIG, UFFDIO_REGISTER_MODE_WP))
		SKIP(return, "userfaultfd cannot write-protect");
	EXPECT_EQ(0, uffd_protect(fd, p, BIG, true));
	EXPECT_EQ(BIG / page_size(), uffd_protected(p, BIG));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	/* A part that begins and ends inside of what is protected in one go. */
	EXPECT_EQ(0, uffd_protect(fd, p + page_size(), BIG - 2 * page_size(),
				  false));
	EXPECT_EQ(2, uffd_protected(p, BIG));
	fill_pages(p + page_size(), BIG - 2 * page_size(), TAG);

	/* Memory that is not registered ends it. */
	ASSERT_EQ(0, munmap(behind, BIG));
	EXPECT_EQ(-1, uffd_protect(fd, behind, BIG, true));
	EXPECT_EQ(ENOENT, errno);
	ASSERT_EQ(0, uffd_unregister(fd, p + BIG / 2, BIG / 2));
	EXPECT_EQ(-1, uffd_protect(fd, p, BIG, true));
	EXPECT_EQ(ENOENT, errno);
	EXPECT_EQ(BIG / 2 / page_size(), uffd_protected(p, BIG));
	close(fd);
	expect_kept(_metadata, &self->s);
}

/* --- a thread that waits */

/* A thread that wants mmap_lock for writing all the time, and maps nothing. */
struct waiter {
	pthread_t thread;
	atomic_bool stop;
	char *page;
	/* Microseconds of sleep after each turn. */
	int pause;
};

static void *waiter_main(void *arg)
{
	struct waiter *w = arg;

	while (!atomic_load(&w->stop)) {
		mprotect(w->page, page_size(), PROT_READ);
		mprotect(w->page, page_size(), PROT_READ | PROT_WRITE);
		if (w->pause)
			usleep(w->pause);
	}
	return NULL;
}

static void waiter_start(struct __test_metadata *_metadata, struct waiter *w)
{
	atomic_store(&w->stop, false);
	w->page = map_filled(page_size(), TAG);
	ASSERT_NE(NULL, w->page);
	ASSERT_EQ(0, pthread_create(&w->thread, NULL, waiter_main, w));
}

static void waiter_stop(struct waiter *w)
{
	atomic_store(&w->stop, true);
	pthread_join(w->thread, NULL);
	munmap(w->page, page_size());
}

/*
 * Until calls have let the waiter go first often enough; on "off", once.  Where CPUs take
 * turns on one host thread, hardly any hold is long enough for the waiter to come in.
 */
#define YIELDS	3
#define TRIES	400

static bool once_more(struct state *s, int tries)
{
	return s->on && tries < TRIES &&
	       counted(&s->before, "yields") < YIELDS;
}

static void expect_yields(struct __test_metadata *_metadata, struct state *s)
{
	if (s->on)
		EXPECT_LE(YIELDS, counted(&s->before, "yields"));
	expect_walks(_metadata, s, 0);
}

/* --- memory that moves to another NUMA node */

#define MOVE		(MPOL_MF_MOVE | MPOL_MF_STRICT)
#define NODES		"/sys/devices/system/node"

static void expect_on_node(struct __test_metadata *_metadata, char *p, size_t len,
			   int node)
{
	EXPECT_EQ(len / page_size(), pages_on_node(p, len, node));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
}

/* Moves all pages; one that kcompactd has isolated stays, and moves the next time. */
static void move_to_node(struct __test_metadata *_metadata, char *p, size_t len,
			 int node)
{
	if (bind_to_node(p, len, node, MOVE) && errno == EIO)
		ASSERT_EQ(0, bind_to_node(p, len, node, MOVE)) {
			TH_LOG("pages have not moved to node %d, twice: errno %d",
			       node, errno);
		}
}

static void move_twice(struct __test_metadata *_metadata, char *p, size_t len)
{
	int node;

	for (node = 1; node >= 0; node--) {
		move_to_node(_metadata, p, len, node);
		EXPECT_EQ(node, bound_to_node(p));
		expect_on_node(_metadata, p, len, node);
	}
}

/* Moves what is on node 0 to node 1. */
static void migrate_self(struct __test_metadata *_metadata, char *p, size_t len)
{
	unsigned long from = 1, to = 2;

	move_to_node(_metadata, p, len, 0);
	ASSERT_LE(0, syscall(SYS_migrate_pages, 0, 8 * sizeof(from), &from, &to));
	/* As above. */
	if (pages_on_node(p, len, 1) != len / page_size())
		ASSERT_LE(0, syscall(SYS_migrate_pages, 0, 8 * sizeof(from), &from,
				     &to));
	EXPECT_EQ(0, bound_to_node(p));
	expect_on_node(_metadata, p, len, 1);
}

TEST_F_TIMEOUT(walk, mbind, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_NE(NULL, p);
	move_twice(_metadata, p, BIG);
	migrate_self(_metadata, p, BIG);
	expect_kept(_metadata, &self->s);
}

TEST_F_TIMEOUT(walk, mbind_beside, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);
	struct waiter w = { };
	int tries = 0;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_NE(NULL, p);
	waiter_start(_metadata, &w);
	do {
		move_twice(_metadata, p, BIG);
		migrate_self(_metadata, p, BIG);
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

/* A hole is an error, and then nothing has changed, unless the default is set. */
TEST_F_TIMEOUT(walk, mbind_hole, TIMEOUT)
{
	const size_t part = BIG / 2;
	char *p = map_filled(BIG, TAG);

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_NE(NULL, p);
	move_to_node(_metadata, p, BIG, 0);
	ASSERT_EQ(0, munmap(p + part, page_size()));
	EXPECT_EQ(-1, bind_to_node(p, BIG, 1, MOVE));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(-1, bind_to_node(p + part, page_size(), 1, MOVE));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(0, bound_to_node(p));
	expect_on_node(_metadata, p, part, 0);
	EXPECT_EQ(0, syscall(SYS_mbind, p, BIG, MPOL_DEFAULT, NULL, 0,
			     MPOL_MF_MOVE));
	EXPECT_EQ(-1, bound_to_node(p));
	EXPECT_EQ(-1, bound_to_node(p + BIG - page_size()));
	expect_kept(_metadata, &self->s);
}

/* Pages that cannot move are an error if the call is strict; the policy is set. */
TEST_F_TIMEOUT(walk, mbind_pinned, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);
	int ring = ring_open();

	if (!have_nodes() || ring < 0)
		SKIP(return, "this machine has one node, or no io_uring");
	ASSERT_NE(NULL, p);
	move_to_node(_metadata, p, BIG, 0);
	ASSERT_EQ(0, ring_register(ring, p + BIG / 2, page_size()));
	EXPECT_EQ(-1, bind_to_node(p, BIG, 1, MOVE));
	EXPECT_EQ(EIO, errno);
	EXPECT_EQ(1, bound_to_node(p));
	EXPECT_EQ(BIG / page_size() - 1, pages_on_node(p, BIG, 1));
	EXPECT_EQ(0, bind_to_node(p, BIG, 1, MPOL_MF_MOVE));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	close(ring);
	expect_kept(_metadata, &self->s);
}

/* Without MPOL_MF_MOVE, pages on another node are an error, and nothing changes. */
TEST_F_TIMEOUT(walk, mbind_strict, TIMEOUT)
{
	char *p = map_filled(BIG, TAG);

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_NE(NULL, p);
	move_to_node(_metadata, p, BIG, 0);
	EXPECT_EQ(-1, bind_to_node(p, BIG, 1, MPOL_MF_STRICT));
	EXPECT_EQ(EIO, errno);
	EXPECT_EQ(0, bound_to_node(p));
	EXPECT_EQ(0, bind_to_node(p, BIG, 1, 0));
	EXPECT_EQ(1, bound_to_node(p));
	expect_on_node(_metadata, p, BIG, 0);
	expect_kept(_metadata, &self->s);
}

/* Huge pages that each lie in two page tables count once. */
TEST_F_TIMEOUT(walk, mbind_large, TIMEOUT)
{
	const size_t len = 2 * BIG;
	/* Not aligned to huge pages. */
	char *p = free_range(2 * len + BIG), *to = p + len + page_size();
	struct waiter w = { };
	int tries = 0;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_NE(NULL, p);
	ASSERT_EQ(p, mmap(p, len, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	if (madvise(p, len, MADV_HUGEPAGE))
		SKIP(return, "there are no huge pages");
	fill_pages(p, len, TAG);
	if (!smaps_kb(p, len, "AnonHugePages"))
		SKIP(return, "there are no huge pages");
	ASSERT_EQ(to, mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to));
	waiter_start(_metadata, &w);
	do {
		move_twice(_metadata, to, len);
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

/* Huge pages of a file that begin or end outside the range move as well. */
TEST_F_TIMEOUT(walk, mbind_edge, TIMEOUT)
{
	char was[256], *word, *p, *part;
	int node;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	if (read_text(SHMEM_ENABLED, was, sizeof(was)) < 0 ||
	    write_text(SHMEM_ENABLED, "advise"))
		SKIP(return, "there are no huge pages in shared memory");
	p = map_huge_shared();
	part = p + pmd_size() / 2;
	for (node = 1; node >= 0; node--) {
		EXPECT_EQ(0, bind_to_node(part, BIG - pmd_size(), node, MOVE));
		/* Dividing the mapping has unmapped some. */
		EXPECT_EQ(0, madvise(part, BIG - pmd_size(), MADV_POPULATE_READ));
		EXPECT_EQ((BIG - pmd_size()) / page_size(),
			  pages_on_node(part, BIG - pmd_size(), node));
	}
	expect_kept(_metadata, &self->s);
	word = strchr(was, '[');
	if (word)
		write_text(SHMEM_ENABLED, strtok(word, "[]"));
}

/* Sets the number of huge pages of a node; returns it. */
static long node_pages(int node, const char *pages)
{
	char path[128], text[32];

	snprintf(path, sizeof(path),
		 NODES "/node%d/hugepages/hugepages-%zukB/nr_hugepages", node,
		 pmd_size() / KIB);
	if (write_text(path, pages) || read_text(path, text, sizeof(text)) < 0)
		return -1;
	return atol(text);
}

TEST_F_TIMEOUT(walk, mbind_hugetlb, TIMEOUT)
{
	const size_t len = 3 * pmd_size();
	char *p;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	if (node_pages(0, "3") < 3 || node_pages(1, "3") < 3)
		SKIP(goto out, "a node has no huge pages");
	p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (p == MAP_FAILED)
		SKIP(goto out, "there are no huge pages");
	fill_pages(p, len, TAG);
	move_twice(_metadata, p, len);
	expect_kept(_metadata, &self->s);
	munmap(p, len);
out:
	node_pages(0, "0");
	node_pages(1, "0");
}

/* --- PAGEMAP_SCAN */

/* More regions than the kernel copies out at once. */
#define REGIONS		600
/* The regions that it copies out at once. */
#define PAGEMAP_BUFFER	((int)(pmd_size() / page_size()))

/* Registers memory whose written pages a scan finds; false if that cannot be. */
static bool scan_register(int fd, char *p, size_t len)
{
	struct scan none = { };

	return fd >= 0 &&
	       !uffd_register(fd, p, len, UFFDIO_REGISTER_MODE_WP) &&
	       scan_written(&none, p, len) >= 0;
}

/* All of a range is written, then nothing, and neither changes what is found. */
static void scan_all(struct __test_metadata *_metadata, char *p, size_t len)
{
	struct page_region regions[2] = { };
	struct scan scan = { regions, 2, PM_SCAN_WP_MATCHING };

	EXPECT_EQ(1, scan_written(&scan, p, len));
	EXPECT_EQ((uintptr_t)p, regions[0].start);
	EXPECT_EQ((uintptr_t)p + len, regions[0].end);
	EXPECT_EQ(PAGE_IS_WRITTEN, regions[0].categories);
	EXPECT_EQ(p + len, scan.walk_end);

	EXPECT_EQ(0, scan_written(&scan, p, len));
	EXPECT_EQ(p + len, scan.walk_end);
}

/* Every second page of a range up to @n of them is written: each is a region. */
static void scan_some(struct __test_metadata *_metadata, char *p, size_t len,
		      size_t step, int n)
{
	struct page_region regions[REGIONS] = { };
	struct scan scan = { regions, REGIONS, PM_SCAN_WP_MATCHING };
	int i;

	for (i = 0; i < n; i++)
		word_write(p + i * step, TAG);
	/* It ends at the page after those that it may return. */
	scan.max_pages = n / 2;
	EXPECT_EQ(n / 2, scan_written(&scan, p, len));
	EXPECT_EQ(p + n / 2 * step, scan.walk_end);

	scan.max_pages = 0;
	EXPECT_EQ(n - n / 2, scan_written(&scan, p, len));
	EXPECT_EQ(p + len, scan.walk_end);
	for (i = 0; i < n - n / 2; i++)
		EXPECT_EQ((uintptr_t)p + (n / 2 + i) * step, regions[i].start);

	/* All at once, in more than one buffer, with nothing changed. */
	for (i = 0; i < n; i++)
		word_write(p + i * step, TAG);
	scan.flags = 0;
	EXPECT_EQ(n, scan_written(&scan, p, len));
	EXPECT_EQ(p + len, scan.walk_end);

	/* Without regions. */
	scan = (struct scan) { .flags = PM_SCAN_WP_MATCHING };
	EXPECT_EQ(0, scan_written(&scan, p, len));
	EXPECT_EQ(p + len, scan.walk_end);
	EXPECT_EQ(len / page_size(), uffd_protected(p, len));
}

/* Memory with a hole of several page tables in the middle. */
static char *map_scanned(size_t len)
{
	char *p = map_empty(len);

	if (p) {
		fill_pages(p, len / 4, TAG);
		fill_pages(p + len / 4 * 3, len / 4, TAG);
	}
	return p;
}

TEST_F_TIMEOUT(walk, scan, TIMEOUT)
{
	char *p = map_scanned(2 * BIG);
	int fd = uffd_open_async();

	ASSERT_NE(NULL, p);
	if (!scan_register(fd, p, 2 * BIG))
		SKIP(return, "PAGEMAP_SCAN cannot write-protect");
	scan_all(_metadata, p, 2 * BIG);
	EXPECT_EQ(2 * BIG / page_size(), uffd_protected(p, 2 * BIG));
	scan_some(_metadata, p, 2 * BIG, 2 * page_size(), REGIONS);
	close(fd);
	expect_kept(_metadata, &self->s);
}

TEST_F_TIMEOUT(walk, scan_beside, TIMEOUT)
{
	char *p = map_scanned(2 * BIG);
	int fd = uffd_open_async(), tries = 0;
	struct waiter w = { };

	ASSERT_NE(NULL, p);
	if (!scan_register(fd, p, 2 * BIG))
		SKIP(return, "PAGEMAP_SCAN cannot write-protect");
	waiter_start(_metadata, &w);
	do {
		ASSERT_EQ(0, uffd_protect(fd, p, 2 * BIG, false));
		scan_all(_metadata, p, 2 * BIG);
		scan_some(_metadata, p, 2 * BIG, 2 * page_size(), REGIONS);
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	close(fd);
	expect_yields(_metadata, &self->s);
}

/* Memory that has not even the upper page tables, scanned in more than one part. */
TEST_F_TIMEOUT(walk, scan_hole, TIMEOUT)
{
	const size_t len = 3 * GIB, part = len / 4;
	int fd = uffd_open_async(), i;
	struct page_region regions[REGIONS] = { };
	struct scan scan = { regions, REGIONS, PM_SCAN_WP_MATCHING };
	char *p, *middle, *some;

	p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, madvise(p, len, MADV_NOHUGEPAGE));
	if (!scan_register(fd, p, len))
		SKIP(return, "PAGEMAP_SCAN cannot write-protect");
	/* Its page tables take a few MiB.  One region, however it is divided. */
	middle = p + len / 2;
	EXPECT_EQ(1, scan_written(&scan, middle, part));
	EXPECT_EQ((uintptr_t)middle, regions[0].start);
	EXPECT_EQ((uintptr_t)middle + part, regions[0].end);
	EXPECT_EQ(middle + part, scan.walk_end);
	EXPECT_EQ(part / page_size(), uffd_protected(middle, part));
	EXPECT_EQ(0, uffd_protected(middle + part, BIG));
	EXPECT_EQ(0, uffd_protected(middle - BIG, BIG));

	/* As many regions as fit into the buffer of the kernel, and then a hole. */
	some = middle + part - BIG;
	for (i = 0; i < PAGEMAP_BUFFER; i++)
		word_write(some + 2 * i * page_size(), TAG);
	EXPECT_EQ(PAGEMAP_BUFFER + 1, scan_written(&scan, some, 2 * BIG));
	EXPECT_EQ((uintptr_t)some + BIG, regions[PAGEMAP_BUFFER].start);
	EXPECT_EQ((uintptr_t)some + 2 * BIG, regions[PAGEMAP_BUFFER].end);
	EXPECT_EQ(some + 2 * BIG, scan.walk_end);
	EXPECT_EQ(2 * BIG / page_size(), uffd_protected(some, 2 * BIG));

	/* The end of a scan that stops is that of upstream, in a hole as well. */
	scan.max_pages = BIG / page_size() + 1;
	EXPECT_EQ(1, scan_written(&scan, some, 4 * BIG));
	EXPECT_EQ((uintptr_t)some + 2 * BIG, regions[0].start);
	EXPECT_EQ((uintptr_t)some + 3 * BIG + page_size(), regions[0].end);
	EXPECT_EQ(some + 3 * BIG + page_size(), scan.walk_end);
	EXPECT_EQ((3 * BIG) / page_size() + 1, uffd_protected(some, 4 * BIG));
	close(fd);
	expect_kept(_metadata, &self->s);
}

/*
 * A huge page that the scan may not return as a whole is left out, and walk_end tells.
 * It is followed by more than one part.
 */
TEST_F_TIMEOUT(walk, scan_hugetlb, TIMEOUT)
{
	const size_t huge = 2 * pmd_size(), len = huge + 2 * GIB;
	const char *pages = "/proc/sys/vm/nr_hugepages";
	struct page_region regions[2] = { };
	struct scan scan = { regions, 2, PM_SCAN_WP_MATCHING };
	int fd = uffd_open_async();
	char *p;

	if (write_text(pages, "2"))
		SKIP(return, "there are no huge pages");
	p = mmap(NULL, len + GIB, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	/* It begins two huge pages below a border of parts. */
	p = (char *)(((uintptr_t)p + huge + GIB - 1) / GIB * GIB) - huge;
	if (mmap(p, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_HUGETLB | MAP_FIXED, -1, 0) != p)
		SKIP(goto out, "there are no huge pages");
	if (!scan_register(fd, p, len))
		SKIP(goto out, "PAGEMAP_SCAN cannot write-protect hugetlb");
	fill_pages(p, huge, TAG);
	/* Nothing else is written. */
	ASSERT_EQ(0, uffd_protect(fd, p + huge, len - huge, true));

	scan.max_pages = 1;
	EXPECT_EQ(0, scan_written(&scan, p, len));
	EXPECT_EQ(p + huge / 2, scan.walk_end);
	EXPECT_EQ(0, uffd_protected(p, huge));

	scan.max_pages = 0;
	EXPECT_EQ(1, scan_written(&scan, p, len));
	EXPECT_EQ((uintptr_t)p, regions[0].start);
	EXPECT_EQ((uintptr_t)p + huge, regions[0].end);
	EXPECT_EQ(p + len, scan.walk_end);
	EXPECT_EQ(0, bad_pages(p, huge, TAG));
	EXPECT_EQ(0, scan_written(&scan, p, len));
	expect_kept(_metadata, &self->s);
out:
	munmap(p, len);
	close(fd);
	write_text(pages, "0");
}

/* --- mlock() and munlock() of memory that is there */

/* Base pages that never merge with the page of the waiter. */
static char *map_lockable(size_t len)
{
	char *p = map_apart(len);

	if (p) {
		madvise(p, len, MADV_NOHUGEPAGE);
		fill_pages(p, len, TAG);
	}
	return p;
}

/*
 * Locks and unlocks a range that is mapped, and has all its pages.  Each call changes
 * what it would on upstream, and leaves as many mappings.
 */
static void lock_unlock(struct __test_metadata *_metadata, struct state *s,
			char *p, size_t len)
{
	const long kb = len / KIB, vm = status_kb("VmLck"), all = mlocked_kb();
	const int n = mappings(p - page_size(), len + 2 * page_size());
	int tries = 0, ends;
	struct waiter w = { };

	/*
	 * The borders of the range, if it is a part of a mapping.  On upstream, too, a
	 * page in the batch of another CPU can count twice when it is locked again.
	 */
	ASSERT_EQ(0, mlock(p, len));
	mlocked_kb();
	ends = mappings(p - page_size(), len + 2 * page_size()) - n;
	ASSERT_EQ(0, munlock(p, len));
	mlocked_kb();

	waiter_start(_metadata, &w);
	do {
		ASSERT_EQ(0, mlock(p, len));
		EXPECT_EQ(1, mappings(p, len));
		EXPECT_EQ(ends, mappings(p - page_size(),
					 len + 2 * page_size()) - n);
		EXPECT_EQ(kb, smaps_kb(p, len, "Locked"));
		EXPECT_EQ(kb, status_kb("VmLck") - vm);
		EXPECT_EQ(kb, mlocked_kb() - all);
		/* Again, with nothing to do. */
		EXPECT_EQ(0, mlock(p, len));
		EXPECT_EQ(kb, status_kb("VmLck") - vm);

		ASSERT_EQ(0, munlock(p, len));
		EXPECT_EQ(n, mappings(p - page_size(), len + 2 * page_size()));
		EXPECT_EQ(vm, status_kb("VmLck"));
		EXPECT_EQ(all, mlocked_kb());
	} while (once_more(s, ++tries) && _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, s);
}

TEST_F_TIMEOUT(walk, mlock_anon, TIMEOUT)
{
	char *p = map_lockable(BIG);

	ASSERT_NE(NULL, p);
	lock_unlock(_metadata, &self->s, p, BIG);
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
}

/* Neither end is that of the mapping, or of a page table. */
TEST_F_TIMEOUT(walk, mlock_part, TIMEOUT)
{
	char *p = map_lockable(BIG);

	ASSERT_NE(NULL, p);
	lock_unlock(_metadata, &self->s, p + 3 * page_size(),
		    BIG - 5 * page_size());
	EXPECT_EQ(1, mappings(p, BIG));
}

TEST_F_TIMEOUT(walk, mlock_shared, TIMEOUT)
{
	char *file = map_memfd(BIG), *p;

	ASSERT_NE(NULL, file);
	p = mremap(file, BIG, BIG, MREMAP_MAYMOVE | MREMAP_FIXED,
		   free_range(BIG));
	ASSERT_NE(MAP_FAILED, p);
	lock_unlock(_metadata, &self->s, p, BIG);
}

/* A private mapping that no page was written to, so it has no anon_vma. */
TEST_F_TIMEOUT(walk, mlock_private_file, TIMEOUT)
{
	char *file = map_memfd(BIG), *p;

	ASSERT_NE(NULL, file);
	p = map_private_again(file, BIG);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, munmap(file, BIG));
	ASSERT_EQ(0, madvise(p, BIG, MADV_POPULATE_READ));
	lock_unlock(_metadata, &self->s, p, BIG);
	fill_pages(p, BIG, TAG);
	EXPECT_EQ(1, mappings(p, BIG));
}

TEST_F_TIMEOUT(walk, mlock_huge, TIMEOUT)
{
	char *p = map_apart(BIG);

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, madvise(p, BIG, MADV_HUGEPAGE));
	ASSERT_EQ(0, madvise(p, BIG, MADV_POPULATE_WRITE));
	/* A few, so that there is something to wait for. */
	ASSERT_EQ(0, madvise(p + BIG / 2, BIG / 2, MADV_NOHUGEPAGE));
	ASSERT_EQ(0, madvise(p + BIG / 2, BIG / 2, MADV_DONTNEED));
	ASSERT_EQ(0, madvise(p + BIG / 2, BIG / 2, MADV_POPULATE_WRITE));
	ASSERT_EQ(0, mlock(p, BIG));
	EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Locked"));
	EXPECT_EQ((long)(BIG / KIB), status_kb("VmLck"));
	ASSERT_EQ(0, munlock(p, BIG));
	EXPECT_EQ(0, status_kb("VmLck"));
	lock_unlock(_metadata, &self->s, p + BIG / 2, BIG / 2);
}

/* Pieces of it would not merge again, so it is locked as upstream does. */
TEST_F_TIMEOUT(walk, mlock_sysv, TIMEOUT)
{
	int id = shmget(IPC_PRIVATE, BIG, IPC_CREAT | 0600), i;
	struct shmid_ds stat;
	struct waiter w = { };
	char *p;

	if (id < 0)
		SKIP(return, "there is no System V shared memory");
	p = shmat(id, NULL, 0);
	ASSERT_NE((void *)-1, p);
	ASSERT_EQ(0, shmctl(id, IPC_RMID, NULL));
	fill_pages(p, BIG, TAG);
	waiter_start(_metadata, &w);
	for (i = 0; i < 10; i++) {
		ASSERT_EQ(0, mlock(p, BIG));
		EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Locked"));
		EXPECT_EQ(1, mappings(p, BIG));
		ASSERT_EQ(0, munlock(p, BIG));
		EXPECT_EQ(1, mappings(p, BIG));
		EXPECT_EQ(0, status_kb("VmLck"));
	}
	waiter_stop(&w);
	ASSERT_EQ(0, shmctl(id, IPC_STAT, &stat));
	EXPECT_EQ(1, stat.shm_nattch);
	ASSERT_EQ(0, shmdt(p));
}

/* Memory before a hole is locked, and unlocked; the hole is reported. */
TEST_F_TIMEOUT(walk, mlock_hole, TIMEOUT)
{
	size_t part = 3 * BIG / 4;
	char *p = map_lockable(BIG);
	struct waiter w = { };
	int tries = 0;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, munmap(p + part, page_size()));
	waiter_start(_metadata, &w);
	do {
		EXPECT_EQ(-1, mlock(p, BIG));
		EXPECT_EQ(ENOMEM, errno);
		EXPECT_EQ((long)(part / KIB), status_kb("VmLck"));
		EXPECT_EQ((long)(part / KIB), smaps_kb(p, part, "Locked"));
		EXPECT_EQ(0, smaps_kb(p + part, BIG - part, "Locked"));
		EXPECT_EQ(2, mappings(p, BIG));
		EXPECT_EQ(-1, munlock(p, BIG));
		EXPECT_EQ(ENOMEM, errno);
		EXPECT_EQ(0, status_kb("VmLck"));
		EXPECT_EQ(2, mappings(p, BIG));
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

TEST_F_TIMEOUT(walk, mlock_onfault, TIMEOUT)
{
	char *p = map_lockable(BIG);
	struct waiter w = { };
	int tries = 0;

	ASSERT_NE(NULL, p);
	waiter_start(_metadata, &w);
	do {
		ASSERT_EQ(0, mlock2(p, BIG, MLOCK_ONFAULT));
		EXPECT_EQ((long)(BIG / KIB), status_kb("VmLck"));
		EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Locked"));
		EXPECT_EQ(1, mappings(p, BIG));
		/* From "on fault" to all, and to nothing. */
		ASSERT_EQ(0, mlock(p, BIG));
		EXPECT_EQ((long)(BIG / KIB), status_kb("VmLck"));
		ASSERT_EQ(0, munlock(p, BIG));
		EXPECT_EQ(0, status_kb("VmLck"));
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

/* The limit is that of all memory; memory that is locked already counts once. */
TEST_F_TIMEOUT(walk, mlock_limit, TIMEOUT)
{
	char *p = map_lockable(BIG);
	struct waiter w = { };
	int tries = 0;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, memlock_limit(BIG - page_size()));
	waiter_start(_metadata, &w);
	do {
		EXPECT_EQ(-1, mlock(p, BIG));
		EXPECT_EQ(ENOMEM, errno);
		EXPECT_EQ(0, status_kb("VmLck"));
		EXPECT_EQ(-1, mlockall(MCL_CURRENT));
		EXPECT_EQ(ENOMEM, errno);
		EXPECT_EQ(0, status_kb("VmLck"));
		EXPECT_EQ(0, mlock(p + page_size(), BIG / 2));
		EXPECT_EQ(0, mlock(p, BIG - page_size()));
		EXPECT_EQ((long)((BIG - page_size()) / KIB),
			  status_kb("VmLck"));
		EXPECT_EQ(-1, mlock(w.page, page_size()));
		EXPECT_EQ(ENOMEM, errno);
		EXPECT_EQ(0, munlock(p, BIG));
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

TEST_F_TIMEOUT(walk, mlockall, TIMEOUT)
{
	char *p = map_lockable(BIG), *file = map_memfd(BIG);
	struct waiter w = { };
	int tries = 0;

	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, file);
	waiter_start(_metadata, &w);
	do {
		ASSERT_EQ(0, mlockall(MCL_CURRENT));
		EXPECT_LE((long)(2 * BIG / KIB), status_kb("VmLck"));
		EXPECT_EQ((long)(BIG / KIB), smaps_kb(p, BIG, "Locked"));
		EXPECT_EQ((long)(BIG / KIB), smaps_kb(file, BIG, "Locked"));
		EXPECT_EQ(1, mappings(p, BIG));
		EXPECT_EQ(1, mappings(file, BIG));
		ASSERT_EQ(0, munlockall());
		EXPECT_EQ(0, status_kb("VmLck"));
		EXPECT_EQ(1, mappings(p, BIG));
		EXPECT_EQ(1, mappings(file, BIG));
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

/* --- memory that userfaultfd unregisters */

/* With all that is needed to write-protect files in memory; or -1. */
static int uffd_open_wp(void)
{
	return uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP |
			 UFFD_FEATURE_WP_HUGETLBFS_SHMEM, NULL);
}

/* Nothing is registered or protected, all can be written, in so many mappings. */
static void expect_unregistered(struct __test_metadata *_metadata, int fd, char *p,
				size_t len, int n)
{
	EXPECT_EQ(0, uffd_protected(p, len));
	EXPECT_EQ(n, mappings(p, len));
	if (fd >= 0) {
		EXPECT_EQ(-1, uffd_protect(fd, p, len, true));
		EXPECT_EQ(ENOENT, errno);
	}
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	fill_pages(p, len, TAG);
}

/*
 * Registers and protects a range that is mapped, and takes both away: all at once, in the
 * middle and then around it, and by close().
 */
static void protect_unregister(struct __test_metadata *_metadata, struct state *s,
			       char *p, size_t len)
{
	const size_t pages = len / page_size(), edge = 3 * page_size();
	const int n = mappings(p, len);
	struct waiter w = { };
	int tries = 0;

	waiter_start(_metadata, &w);
	do {
		int fd = uffd_open_wp();

		ASSERT_LE(0, fd);
		ASSERT_EQ(0, uffd_register(fd, p, len,
					   UFFDIO_REGISTER_MODE_WP));
		ASSERT_EQ(0, uffd_protect(fd, p, len, true));
		EXPECT_EQ(pages, uffd_protected(p, len));
		ASSERT_EQ(0, uffd_unregister(fd, p, len));
		expect_unregistered(_metadata, fd, p, len, n);

		ASSERT_EQ(0, uffd_register(fd, p, len,
					   UFFDIO_REGISTER_MODE_WP));
		ASSERT_EQ(0, uffd_protect(fd, p, len, true));
		ASSERT_EQ(0, uffd_unregister(fd, p + edge, len - 2 * edge));
		EXPECT_EQ(2 * edge / page_size(), uffd_protected(p, len));
		EXPECT_EQ(n + 2, mappings(p, len));
		ASSERT_EQ(0, uffd_unregister(fd, p, len));
		expect_unregistered(_metadata, fd, p, len, n);

		ASSERT_EQ(0, uffd_register(fd, p, len,
					   UFFDIO_REGISTER_MODE_WP));
		ASSERT_EQ(0, uffd_protect(fd, p, len, true));
		close(fd);
		expect_unregistered(_metadata, -1, p, len, n);
	} while (once_more(s, ++tries) && _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, s);
}

/* Can memory be write-protected by userfaultfd? */
static bool can_protect(char *p, size_t len)
{
	int fd = uffd_open_wp();
	bool can = fd >= 0 &&
		   !uffd_register(fd, p, len, UFFDIO_REGISTER_MODE_WP);

	close(fd);
	return can;
}

TEST_F_TIMEOUT(walk, uffd_unregister, TIMEOUT)
{
	char *p = map_lockable(BIG);

	ASSERT_NE(NULL, p);
	if (!can_protect(p, BIG))
		SKIP(return, "userfaultfd cannot write-protect");
	protect_unregister(_metadata, &self->s, p, BIG);
}

TEST_F_TIMEOUT(walk, uffd_unregister_shared, TIMEOUT)
{
	char *p = map_memfd(BIG);

	ASSERT_NE(NULL, p);
	fill_pages(p, BIG, TAG);
	if (!can_protect(p, BIG))
		SKIP(return, "userfaultfd cannot write-protect shared memory");
	protect_unregister(_metadata, &self->s, p, BIG);
}

/* No page was written to before it is registered, so there is no anon_vma. */
TEST_F_TIMEOUT(walk, uffd_unregister_private, TIMEOUT)
{
	char *file = map_memfd(BIG), *p;

	ASSERT_NE(NULL, file);
	fill_pages(file, BIG, TAG);
	p = map_private_again(file, BIG);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, munmap(file, BIG));
	ASSERT_EQ(0, madvise(p, BIG, MADV_POPULATE_READ));
	if (!can_protect(p, BIG))
		SKIP(return, "userfaultfd cannot write-protect private files");
	protect_unregister(_metadata, &self->s, p, BIG);
}

/* Memory before and after a hole is unregistered; an error changes nothing. */
TEST_F_TIMEOUT(walk, uffd_unregister_hole, TIMEOUT)
{
	const size_t part = 3 * BIG / 4;
	char *p = map_lockable(BIG);
	int fd = uffd_open_wp();

	ASSERT_NE(NULL, p);
	if (fd < 0 || uffd_register(fd, p, BIG, UFFDIO_REGISTER_MODE_WP))
		SKIP(return, "userfaultfd cannot write-protect");
	ASSERT_EQ(0, uffd_protect(fd, p, BIG, true));
	ASSERT_EQ(0, munmap(p + part, page_size()));
	EXPECT_EQ(-1, uffd_unregister(fd, p + part, page_size()));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(BIG / page_size() - 1, uffd_protected(p, BIG));
	EXPECT_EQ(0, uffd_unregister(fd, p, BIG));
	EXPECT_EQ(0, uffd_protected(p, BIG));
	EXPECT_EQ(2, mappings(p, BIG));
	EXPECT_EQ(0, bad_pages(p, part, TAG));
	close(fd);
	expect_kept(_metadata, &self->s);
}

/*
 * Huge pages behind a hole are unregistered, although the place that the call has reached
 * is not a multiple of their size.  Upstream does not fail there.
 */
TEST_F_TIMEOUT(walk, uffd_unregister_huge_behind_hole, TIMEOUT)
{
	/* One part of the call, so that it lets others go first at the hole. */
	const size_t small = 6 * MIB + page_size(), huge = pmd_size();
	const size_t len = (small / huge + 2) * huge;
	const char *pages = "/proc/sys/vm/nr_hugepages";
	struct waiter w = { };
	int fd = uffd_open_wp(), tries = 0;
	char *p, *behind;

	if (write_text(pages, "1"))
		SKIP(return, "there are no huge pages");
	p = mmap(NULL, len + huge, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	p = (char *)(((uintptr_t)p + huge - 1) / huge * huge);
	behind = p + len - huge;
	ASSERT_EQ(p, mmap(p, small, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	if (mmap(behind, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED, -1, 0) != behind)
		SKIP(goto out, "there are no huge pages");
	madvise(p, small, MADV_NOHUGEPAGE);
	fill_pages(p, small, TAG);
	fill_pages(behind, huge, TAG);

	waiter_start(_metadata, &w);
	ASSERT_EQ(0, munmap(p + small, behind - p - small));
	do {
		if (uffd_register(fd, p, small, UFFDIO_REGISTER_MODE_WP) ||
		    uffd_register(fd, behind, huge, UFFDIO_REGISTER_MODE_WP))
			break;
		ASSERT_EQ(0, uffd_protect(fd, p, small, true));
		ASSERT_EQ(0, uffd_protect(fd, behind, huge, true));
		ASSERT_EQ(0, uffd_unregister(fd, p, len));
		expect_unregistered(_metadata, fd, p, small, 1);
		expect_unregistered(_metadata, fd, behind, huge, 1);
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	if (!tries)
		SKIP(goto out, "userfaultfd cannot write-protect huge pages");
	expect_yields(_metadata, &self->s);
out:
	munmap(behind, huge);
	close(fd);
	write_text(pages, "0");
}

/* --- NUMA balancing */

/*
 * Keep this thread, and those that it starts, on one CPU, where a waiter that wakes up
 * preempts the scan.  On another CPU it may be late: where CPUs take turns on one host
 * thread, a CPU can be without a turn for a second.
 */
static void stay_on_cpu(struct __test_metadata *_metadata)
{
	int cpu = sched_getcpu();
	cpu_set_t set;

	ASSERT_LE(0, cpu);
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(set), &set));
}

/*
 * A thread that uses its memory scans it for NUMA balancing, and lets others go first.
 * With the switch off, the same pages are scanned.  Each end of the address space that is
 * reached stands for a scan of all of it: a scan that is stopped must go on where it was.
 */
TEST_F_TIMEOUT(walk, numa_scan, TIMEOUT)
{
	long updates = vmstat_read("numa_pte_updates"), scanned;
	long rounds = scan_rounds(), more;
	size_t len = 4 * BIG;
	__u64 began = now_ns();
	/* It uses little time, so the other thread scans, and finds the lock free. */
	struct waiter w = { .pause = 500 };
	char *p;

	if (!have_nodes() || updates < 0 || rounds < 0 || !scan_start("256"))
		SKIP(return, "there is no NUMA balancing here");
	stay_on_cpu(_metadata);
	p = map_lockable(len);
	ASSERT_NE(NULL, p);
	waiter_start(_metadata, &w);
	do {
		EXPECT_EQ(0, bad_pages(p, len, TAG));
		scanned = vmstat_read("numa_pte_updates") - updates;
		more = scan_rounds() - rounds;
	} while ((scanned < (long)(len / page_size()) || more < 2 ||
		  once_more(&self->s, 0)) && now_ns() - began < SCAN_NS &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	EXPECT_LE((long)(len / page_size()), scanned)
		TH_LOG("only %ld pages were scanned", scanned);
	EXPECT_LE(2, more)
		TH_LOG("scans came to the end only %ld times", more);
	expect_yields(_metadata, &self->s);
}

/*
 * Mappings of a page each: with all others of this program, fewer than a scan passes over
 * before it looks for a waiter.
 */
#define SCAN_SMALL	200
/* The third round leaves out mappings that the scanning thread has not used. */
#define SCAN_ROUNDS	2

/* A scan of all mappings does not end early if they are small. */
TEST_F_TIMEOUT(walk, numa_scan_small, TIMEOUT)
{
	size_t i, len = 2 * SCAN_SMALL * page_size();
	char *p = map_lockable(len);
	long rounds = scan_rounds(), more;
	__u64 began = now_ns();
	struct waiter w = { .pause = 50 };

	ASSERT_NE(NULL, p);
	stay_on_cpu(_metadata);
	/* Its page must not lie in one of the holes. */
	waiter_start(_metadata, &w);
	for (i = 0; i < SCAN_SMALL; i++)
		EXPECT_EQ(0, munmap(p + (2 * i + 1) * page_size(), page_size()));
	if (!have_nodes() || rounds < 0 || !scan_start("16")) {
		waiter_stop(&w);
		SKIP(return, "there is no NUMA balancing here");
	}
	do {
		for (i = 0; i < SCAN_SMALL; i++)
			EXPECT_EQ(page_word(TAG, 2 * i),
				  word_read(p + 2 * i * page_size()));
		more = scan_rounds() - rounds;
	} while (more < SCAN_ROUNDS && now_ns() - began < SCAN_NS &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	EXPECT_LE(SCAN_ROUNDS, more)
		TH_LOG("scans came to the end only %ld times", more);
	EXPECT_EQ(0, counted(&self->s.before, "yields"));
}

/* --- soft-dirty bits */

/* Nothing is dirty after the call, and what is written then, is. */
static void clear_and_write(struct __test_metadata *_metadata, char *p, size_t len)
{
	const size_t pages = len / page_size();
	size_t i;

	ASSERT_EQ(0, clear_refs(getpid(), "4"));
	EXPECT_EQ(0, soft_dirty(p, len));
	EXPECT_EQ(0, bad_pages(p, len, TAG));
	EXPECT_EQ(0, soft_dirty(p, len));
	for (i = 0; i < pages; i += 3)
		word_write(p + i * page_size(), page_word(TAG, i));
	EXPECT_EQ((pages + 2) / 3, soft_dirty(p, len));
}

TEST_F_TIMEOUT(walk, soft_dirty, TIMEOUT)
{
	char *p = map_lockable(BIG), *file = map_memfd(BIG);
	struct waiter w = { };
	int tries = 0;

	ASSERT_NE(NULL, p);
	ASSERT_NE(NULL, file);
	fill_pages(file, BIG, TAG);
	/* A mapping that is new is dirty. */
	if (!soft_dirty(p, BIG))
		SKIP(return, "there are no soft-dirty bits");
	waiter_start(_metadata, &w);
	do {
		clear_and_write(_metadata, p, BIG);
		clear_and_write(_metadata, file, BIG);
	} while (once_more(&self->s, ++tries) &&
		 _metadata->exit_code == KSFT_PASS);
	waiter_stop(&w);
	expect_yields(_metadata, &self->s);
}

TEST_F_TIMEOUT(walk, soft_dirty_huge, TIMEOUT)
{
	char *p = map_apart(BIG);

	ASSERT_NE(NULL, p);
	if (madvise(p, BIG, MADV_HUGEPAGE))
		SKIP(return, "there are no huge pages");
	fill_pages(p, BIG, TAG);
	if (!soft_dirty(p, BIG))
		SKIP(return, "there are no soft-dirty bits");
	ASSERT_EQ(0, clear_refs(getpid(), "4"));
	EXPECT_EQ(0, soft_dirty(p, BIG));
	word_write(p + BIG / 2, page_word(TAG, BIG / 2 / page_size()));
	EXPECT_LE(1, soft_dirty(p + BIG / 2, BIG / 2));
	EXPECT_EQ(0, soft_dirty(p, BIG / 2));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_kept(_metadata, &self->s);
}

/* --- memory that mremap() moves */

/* Address space that others do not use; no pages. */
static char *reserve(void *place, size_t len)
{
	char *p = mmap(place, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE | (place ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Where the kernel puts a mapping of this size that has no place yet. */
static char *free_place(size_t len)
{
	char *p = reserve(NULL, len);

	if (p)
		munmap(p, len);
	return p;
}

/*
 * Memory that cannot grow in place, as something is mapped behind it.  It is not congruent
 * with *@place, to which upstream would move it if it had to be a page larger.
 */
static char *map_hemmed(size_t len, size_t unit, char **place)
{
	const size_t room = len + 3 * unit;
	char *hole = reserve(free_range(room), room), *p;

	*place = free_place(len + page_size());
	if (!hole || !*place)
		return NULL;
	p = hole + unit + (*place + 3 * page_size() - hole) % unit;
	return mmap(p, len, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		    MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == p ?
	       p : NULL;
}

/*
 * It has been moved from @p to @q, and there to where page tables fit, and nothing is joined
 * with it, or to @place.
 */
static void expect_moved(struct __test_metadata *_metadata, struct state *s,
			 const char *p, const char *q, size_t len, size_t unit,
			 const char *place)
{
	ASSERT_NE(MAP_FAILED, q);
	EXPECT_TRUE(s->on ? (q - p) % (long)unit == 0 : q == place);
	EXPECT_EQ(0, mapped_bytes(p, len));
	EXPECT_EQ(len + page_size(), mapped_bytes(q, len + page_size()));
	if (s->on) {
		EXPECT_EQ(0, mapped_bytes(q - page_size(), page_size()));
		EXPECT_EQ(0, mapped_bytes(q + len + page_size(), page_size()));
	}
	EXPECT_EQ(0, word_read(q + len));
	expect_kept(_metadata, s);
}

/* Base pages move; @alone: there is nothing in front of them. */
static void move_pages(struct __test_metadata *_metadata, struct state *s,
		       bool alone)
{
	const size_t table = pmd_size();
	char *place, *p = map_hemmed(BIG, table, &place), *q;

	ASSERT_NE(NULL, p);
	if (alone)
		munmap(p - table, table);
	madvise(p, BIG, MADV_NOHUGEPAGE);
	fill_pages(p, BIG, TAG);
	q = mremap(p, BIG, BIG + page_size(), MREMAP_MAYMOVE);
	expect_moved(_metadata, s, p, q, BIG, table, place);
	EXPECT_EQ(BIG / page_size(), resident_pages(q, BIG));
	EXPECT_EQ(0, bad_pages(q, BIG, TAG));
	/* If nothing is there, no page of another mapping has come with them. */
	p = mmap(q - table, table, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED_NOREPLACE, -1, 0);
	if (p == q - table)
		EXPECT_EQ(0, nonzero_pages(p, table));
}

TEST_F_TIMEOUT(walk, moved, TIMEOUT)
{
	move_pages(_metadata, &self->s, false);
}

/* With nothing in front of them, the first page table moves as a whole, too. */
TEST_F_TIMEOUT(walk, moved_alone, TIMEOUT)
{
	move_pages(_metadata, &self->s, true);
}

/* Memory that has moved is soft-dirty at its new address. */
TEST_F_TIMEOUT(walk, moved_soft_dirty, TIMEOUT)
{
	const size_t pages = BIG / page_size();
	char *place, *p = map_hemmed(BIG, pmd_size(), &place), *q;

	ASSERT_NE(NULL, p);
	madvise(p, BIG, MADV_NOHUGEPAGE);
	fill_pages(p, BIG, TAG);
	if (soft_dirty(p, BIG) != pages)
		SKIP(return, "there are no soft-dirty bits");
	ASSERT_EQ(0, clear_refs(getpid(), "4"));
	ASSERT_EQ(0, soft_dirty(p, BIG));
	q = mremap(p, BIG, BIG + page_size(), MREMAP_MAYMOVE);
	ASSERT_NE(MAP_FAILED, q);
	EXPECT_EQ(pages, soft_dirty(q, BIG));
	EXPECT_EQ(0, bad_pages(q, BIG, TAG));
}

/* Half of it moves: the rest stays, with its pages. */
TEST_F_TIMEOUT(walk, moved_half, TIMEOUT)
{
	const size_t half = BIG / 2;
	char *place, *p = map_hemmed(BIG, pmd_size(), &place), *q;

	ASSERT_NE(NULL, p);
	madvise(p, BIG, MADV_NOHUGEPAGE);
	fill_pages(p, half, TAG);
	fill_pages(p + half, half, TAG + 1);
	place = free_place(half + page_size());
	q = mremap(p, half, half + page_size(), MREMAP_MAYMOVE);
	expect_moved(_metadata, &self->s, p, q, half, pmd_size(), place);
	EXPECT_EQ(0, bad_pages(q, half, TAG));
	EXPECT_EQ(half, mapped_bytes(p + half, half));
	EXPECT_EQ(0, bad_pages(p + half, half, TAG + 1));
}

/* Upstream splits huge pages that it moves to a place where they do not fit. */
TEST_F_TIMEOUT(walk, moved_huge, TIMEOUT)
{
	const size_t room = BIG + 2 * pmd_size();
	char *p = reserve(free_range(room), room), *q, *place;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(p, mmap(p, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			  MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	if (madvise(p, BIG, MADV_HUGEPAGE))
		SKIP(return, "there are no huge pages");
	fill_pages(p, BIG, TAG);
	if (smaps_kb(p, BIG, "AnonHugePages") != (long)(BIG / KIB))
		SKIP(return, "there are no huge pages");
	place = free_place(BIG + page_size());
	if ((place - p) % (long)pmd_size() == 0) {
		ASSERT_NE(NULL, reserve(place + BIG, page_size()));
		place = free_place(BIG + page_size());
	}
	ASSERT_NE(0, (place - p) % (long)pmd_size());
	q = mremap(p, BIG, BIG + page_size(), MREMAP_MAYMOVE);
	expect_moved(_metadata, &self->s, p, q, BIG, pmd_size(), place);
	EXPECT_EQ(self->s.on ? (long)(BIG / KIB) : 0,
		  smaps_kb(q, BIG + page_size(), "AnonHugePages"));
	EXPECT_EQ(0, bad_pages(q, BIG, TAG));
}

/* Tables of the level above, of 1 GiB, move as a whole, too. */
TEST_F_TIMEOUT(walk, moved_far, TIMEOUT)
{
	const size_t gib = 1024 * MIB, len = 3 * gib, step = 32 * MIB;
	char *place, *p, *q;
	size_t i;

	if (page_size() != 4 * KIB || pmd_size() != 2 * MIB)
		SKIP(return, "such a table does not map 1 GiB");
	p = map_hemmed(len, gib, &place);
	ASSERT_NE(NULL, p);
	munmap(p - gib, gib);
	madvise(p, len, MADV_NOHUGEPAGE);
	for (i = 0; i < len; i += step)
		word_write(p + i, page_word(TAG, i));
	q = mremap(p, len, len + page_size(), MREMAP_MAYMOVE);
	expect_moved(_metadata, &self->s, p, q, len, gib, place);
	for (i = 0; i < len; i += step)
		EXPECT_EQ(page_word(TAG, i), word_read(q + i));
	EXPECT_EQ(len / step, resident_pages(q, len));
}

/* Small memory, and that of a file, moves to where upstream moves it. */
TEST_F_TIMEOUT(walk, moved_as_upstream, TIMEOUT)
{
	const size_t small = 8 * MIB;
	char *place, *p = map_hemmed(small, pmd_size(), &place), *file;
	int fd = memfd_create("moved", MFD_CLOEXEC);

	ASSERT_NE(NULL, p);
	EXPECT_EQ(place, mremap(p, small, small + page_size(),
				MREMAP_MAYMOVE));
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, 2 * BIG));
	p = map_hemmed(BIG, pmd_size(), &place);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(p, mmap(p, BIG, PROT_READ | PROT_WRITE, MAP_SHARED |
			  MAP_FIXED, fd, 0));
	file = mmap(NULL, BIG + page_size(), PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, file);
	munmap(file, BIG + page_size());
	EXPECT_EQ(file, mremap(p, BIG, BIG + page_size(), MREMAP_MAYMOVE));
	expect_kept(_metadata, &self->s);
}

/* A size that the address space does not have fails, and nothing has moved. */
TEST_F_TIMEOUT(walk, moved_too_large, TIMEOUT)
{
	char *place, *p = map_hemmed(BIG, pmd_size(), &place);
	unsigned int bits;

	ASSERT_NE(NULL, p);
	fill_pages(p, BIG, TAG);
	for (bits = 58; bits < 64; bits++) {
		EXPECT_EQ(MAP_FAILED, mremap(p, BIG, 1UL << bits,
					     MREMAP_MAYMOVE));
		EXPECT_EQ(ENOMEM, errno);
	}
	EXPECT_EQ(MAP_FAILED, mremap(p, BIG, -page_size(), MREMAP_MAYMOVE));
	EXPECT_EQ(0, bad_pages(p, BIG, TAG));
	expect_kept(_metadata, &self->s);
}

int main(int argc, char **argv)
{
	return vm_knob_kept(&walk_knob, test_harness_run, argc, argv);
}
