// SPDX-License-Identifier: GPL-2.0-only
/*
 * Section-wise walks against other calls of the process.
 */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "walk_util.h"
#include "section_race.h"

#define TAG		0x77616c6b73656374ULL

static size_t npages(void)
{
	return race_range() / page_size();
}

static const struct race_feature race_feature = {
	.knob = &walk_knob,
	.flips = &walk_flips,
	.counters = "walk_section_",
};

/* Shared by the races of a test. */
struct data {
	/* Calls of racers that have taken mmap_lock. */
	atomic_long locks;
	/* Those of them that the call may have served. */
	long served;
	/* A page of its own for each racer. */
	char *pages[MAX_RACERS];
	/* Memory of the same size as the range. */
	char *second;
	/* Calls that a racer is to make, and those that it has made. */
	atomic_long turn, answer;
	/* The value that a walk must report. */
	long expected;
	/* Calls in which several sections of records were walked. */
	long by_sections;
	struct memory_group group;
	/* A userfaultfd, or -1. */
	atomic_int uffd;
	/* Where the range is, and moves that have kept page tables whole. */
	atomic_uintptr_t place;
	long congruent;
	/* For each page: the last thing that a racer has done to it. */
	enum { KEPT, UNMAPPED, REPLACED } *changed;
};

/* Every call of these races ends with a walk by sections, for the counters. */
static int sum_up(void)
{
	return rollup_kb(getpid(), "Rss") > 0 ? 0 : -EIO;
}

static int forget(struct race *r)
{
	return clear_refs(getpid(), "1") ? -errno : 0;
}

static bool succeeded(struct race *r)
{
	return !r->ret;
}

static void unmap_range(struct race *r)
{
	munmap(r->start, r->len);
}

static const struct section_call section_call = {
	.tag = TAG,
	.range = 32 * MIB,
	.call = forget,
	.verify = succeeded,
	.release = unmap_range,
};

static bool data_init(struct data *d)
{
	int i;

	memset(d, 0, sizeof(*d));
	for (i = 0; i < MAX_RACERS; i++) {
		d->pages[i] = map_filled(page_size(), TAG);
		if (!d->pages[i])
			return false;
	}
	return true;
}

/* Takes mmap_lock for writing twice, and changes no other mapping. */
static void protect_own_page(struct race *r, int id)
{
	struct data *d = r->data;

	if (mprotect(d->pages[id], page_size(), PROT_READ) ||
	    mprotect(d->pages[id], page_size(), PROT_READ | PROT_WRITE))
		race_wrong(r);
	atomic_fetch_add(&d->locks, 2);
}

/* A hit began and ended while the call was at work. */
static void writer(struct race *r, int id)
{
	while (!atomic_load(&r->done)) {
		protect_own_page(r, id);
		race_acted(r, !atomic_load(&r->done));
	}
}

/* --- memory that is populated */

static bool prepare_empty(struct race *r)
{
	r->len = race_range();
	r->start = map_empty(r->len);
	return r->start;
}

/* A race with memory of its own, by the members of struct race_ops. */
#define WALK_RACE(name, ...)						\
	TEST_F_TIMEOUT(race, name, TIMEOUT)				\
	{								\
		struct data d;						\
									\
		ASSERT_TRUE(data_init(&d));				\
		RACE_TEST(&self->r, &d, __VA_ARGS__);			\
	}

static int populate(struct race *r)
{
	if (madvise(r->start, r->len, MADV_POPULATE_WRITE))
		return -errno;
	return sum_up();
}

static bool all_resident(struct race *r)
{
	return !r->ret && resident_pages(r->start, r->len) == npages();
}

static bool has_yielded(struct race *r)
{
	return counted(&r->run.before, "yields") > 0;
}

WALK_RACE(populate, .racers = 2, .prepare = prepare_empty, .racer = writer,
	  .call = populate, .verify = all_resident, .enough = has_yielded);

/*
 * Each time that the lock was released, the thread that waited has had it.  That
 * thread is on the same CPU, and runs only when the call sleeps: it does not preempt
 * another, and its weight is 1/300 of theirs.
 */
static void weak_writer(struct race *r, int id)
{
	const struct sched_param param = { };

	if (sched_setscheduler(0, SCHED_IDLE, &param))
		race_wrong(r);
	writer(r, id);
}

static int populate_counted(struct race *r)
{
	struct data *d = r->data;
	long locks = atomic_load(&d->locks);
	int ret = madvise(r->start, r->len, MADV_POPULATE_WRITE) ? -errno : 0;

	/* Two that the racer has not counted yet. */
	d->served += atomic_load(&d->locks) - locks + 2;
	return ret ? ret : sum_up();
}

TEST_F_TIMEOUT(race, populate_turns, TIMEOUT)
{
	cpu_set_t cpus;
	struct data d;
	long yields;

	ASSERT_TRUE(data_init(&d));
	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(cpus), &cpus));
	RACE_TEST(&self->r, &d, .racers = 1, .prepare = prepare_empty,
		  .racer = weak_writer, .call = populate_counted,
		  .verify = all_resident, .enough = has_yielded);
	yields = counted(&self->r.run.before, "yields");
	ksft_print_msg("%ld yields to %ld locks\n", yields, d.served);
	/* A few may be those of other processes. */
	EXPECT_LE(yields, d.served + d.served / 16 + 4);
}

static int lock_memory(struct race *r)
{
	if (mlock(r->start, r->len))
		return -errno;
	return sum_up();
}

static bool all_locked(struct race *r)
{
	return !r->ret &&
	       smaps_kb(r->start, r->len, "Locked") == (long)(r->len / KIB);
}

WALK_RACE(mlock, .racers = 2, .prepare = prepare_empty, .racer = writer,
	  .call = lock_memory, .verify = all_locked, .enough = has_yielded);

/* Unmaps and replaces parts of the range; what was replaced stays as it is. */
static void replacer(struct race *r, int id)
{
	const size_t part = pmd_size() / page_size();
	struct data *d = r->data;
	__u64 seed = r->tag + id;

	while (!atomic_load(&r->done)) {
		/* Racers keep to pages of their own. */
		size_t page = random_next(&seed) % (npages() / part) * part +
			      4 * id;
		char *p = r->start + page * page_size();

		if (random_next(&seed) % 2) {
			d->changed[page] = UNMAPPED;
			munmap(p, page_size());
		} else if (mmap(p, page_size(), PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				0) == p) {
			word_write(p, r->tag + page);
			d->changed[page] = REPLACED;
		} else {
			race_wrong(r);
		}
		race_acted(r, !atomic_load(&r->done));
	}
}

static bool prepare_replaced(struct race *r)
{
	struct data *d = r->data;

	memset(d->changed, 0, npages() * sizeof(*d->changed));
	return prepare_empty(r);
}

static int populate_any(struct race *r)
{
	int ret = populate(r);

	/* As for a hole that was there before. */
	return ret == -ENOMEM ? sum_up() : ret;
}

/*
 * Pages that replacer() has unmapped are not there, those that it has replaced have
 * its word, and the others have their own one, or are @empty.
 */
static bool replaced_only(struct race *r, bool empty)
{
	struct data *d = r->data;
	size_t i;

	if (r->ret)
		return false;
	for (i = 0; i < npages(); i++) {
		__u64 word = 0;
		int signal = try_read(r->start + i * page_size(), &word);
		__u64 old = empty ? 0 : page_word(r->tag, i);

		if (d->changed[i] == UNMAPPED ? !signal :
		    signal || word != (d->changed[i] == REPLACED ? r->tag + i :
								   old)) {
			ksft_print_msg("page %zu, change %d: signal %d, word %llx\n",
				       i, d->changed[i], signal, word);
			return false;
		}
	}
	return true;
}

static bool replaced_kept(struct race *r)
{
	return replaced_only(r, true);
}

TEST_F_TIMEOUT(race, populate_replaced, TIMEOUT)
{
	struct data d;

	ASSERT_TRUE(data_init(&d));
	d.changed = calloc(npages(), sizeof(*d.changed));
	ASSERT_NE(NULL, d.changed);
	catch_faults();
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_replaced,
		  .racer = replacer, .call = populate_any,
		  .verify = replaced_kept, .enough = has_yielded);
	free(d.changed);
}

/* --- buffers that are pinned while children are forked */

static int pin_buffer(struct race *r)
{
	int ring = ring_open(), err;

	if (ring < 0)
		return -errno;
	/* By GUP-fast, and then by page faults. */
	err = ring_register(ring, r->start, r->len);
	if (!err)
		err = ring_unregister(ring);
	if (!err && bad_pages(r->start, r->len, r->tag))
		err = EIO;
	if (!err && madvise(r->start, r->len, MADV_DONTNEED))
		err = errno;
	if (!err)
		err = ring_register(ring, r->start, r->len);
	close(ring);
	return err ? -err : sum_up();
}

static void pin_racer(struct race *r, int id)
{
	if (id) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		pid_t pid = fork_bound();

		if (!pid)
			_exit(0);
		race_acted(r, !atomic_load(&r->done));
		if (pid < 0 || reap(pid))
			race_wrong(r);
	}
}

TEST_F_TIMEOUT(race, pin, TIMEOUT)
{
	struct data d;
	int ring = ring_open();

	if (ring < 0)
		SKIP(return, "there is no io_uring");
	close(ring);
	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 2, .racer = pin_racer,
		  .call = pin_buffer, .verify = all_resident,
		  .enough = has_yielded);
}

/* --- a process that is killed while it waits for its turn */

static void *protect_forever(void *page)
{
	for (;;)
		if (mprotect(page, page_size(), PROT_READ) ||
		    mprotect(page, page_size(), PROT_READ | PROT_WRITE))
			_exit(1);
	return NULL;
}

static void populate_forever(struct race *r)
{
	struct data *d = r->data;
	pthread_t thread;
	int i;

	for (i = 0; i < 2; i++)
		if (pthread_create(&thread, NULL, protect_forever, d->pages[i]))
			_exit(1);
	for (;;)
		if (madvise(r->start, r->len, MADV_DONTNEED) ||
		    madvise(r->start, r->len, MADV_POPULATE_WRITE))
			_exit(1);
}

/* Kills a child that is at work, at a random moment. */
static int kill_at_work(pid_t pid)
{
	usleep(random() % 5000);
	kill(pid, SIGKILL);
	return reap(pid) == 256 + SIGKILL ? sum_up() : -EIO;
}

static int kill_after_yield(struct race *r, void (*work)(struct race *r))
{
	long yields = counted(&r->run.before, "yields"), ms;
	pid_t pid = fork_bound();

	if (!pid)
		work(r);
	if (pid < 0)
		return -errno;
	/* With the switch off, it never lets go of the lock. */
	for (ms = 0; ms < 1000; ms++) {
		if (counted(&r->run.before, "yields") > yields)
			break;
		usleep(1000);
	}
	return kill_at_work(pid);
}

static int kill_populating(struct race *r)
{
	return kill_after_yield(r, populate_forever);
}

/* A damaged wait list is found by the kernel, or by a process that does not end. */
WALK_RACE(killed, .racers = 1, .prepare = prepare_empty, .racer = writer,
	  .call = kill_populating, .verify = succeeded, .enough = has_yielded);

/* --- memory that is looked at while its mappings are split and merged */

static bool prepare_file(struct race *r)
{
	struct data *d = r->data;

	r->len = race_range();
	r->start = map_memfd(r->len);
	if (!r->start)
		return false;
	d->expected = rollup_kb(getpid(), "Pss_Shmem");
	return d->expected >= (long)(r->len / KIB);
}

static void splitter(struct race *r, int id)
{
	__u64 seed = r->tag + id;

	while (!atomic_load(&r->done)) {
		char *p = r->start + random_next(&seed) % npages() *
				     page_size();

		/* Others split and merge as well, so either can change nothing. */
		if (mprotect(p, page_size(), PROT_READ) ||
		    mprotect(p, page_size(), PROT_READ | PROT_WRITE))
			race_wrong(r);
		race_acted(r, !atomic_load(&r->done));
	}
}

static int sum_up_file(struct race *r)
{
	struct data *d = r->data;
	long kb = rollup_kb(getpid(), "Pss_Shmem");

	if (kb == d->expected)
		return 0;
	ksft_print_msg("%ld kB instead of %ld\n", kb, d->expected);
	return -EIO;
}

WALK_RACE(sum, .racers = 2, .prepare = prepare_file, .racer = splitter,
	  .call = sum_up_file, .verify = succeeded);

/*
 * Every record of smaps that lies in the range has all its pages, however often the
 * mapping is split and merged while it is walked.  Returns 0 or -EIO.
 */
static int check_records(struct race *r)
{
	unsigned long lo = (uintptr_t)r->start, hi = lo + r->len;
	struct counters before = counters_read("walk_section_");
	struct data *d = r->data;
	unsigned long start = 0, end = 0;
	FILE *f = fopen("/proc/self/smaps", "re");
	int records = 0, ret = 0;
	char line[512];
	long kb;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		if (vma_header(line, &start, &end))
			continue;
		if (start < lo || end > hi || sscanf(line, "Rss: %ld", &kb) != 1)
			continue;
		records++;
		if (kb * KIB == end - start)
			continue;
		ksft_print_msg("%lx-%lx has %ld kB\n", start, end, kb);
		ret = -EIO;
	}
	fclose(f);
	d->by_sections += counted(&before, "sections") > 1;
	if (ret)
		return ret;
	return records ? sum_up() : -EIO;
}

static bool has_walked_records(struct race *r)
{
	struct data *d = r->data;

	return d->by_sections;
}

/* Splits the mapping in the middle only, so that its records are large. */
static void middle_splitter(struct race *r, int id)
{
	while (!atomic_load(&r->done)) {
		char *p = r->start + r->len / 2;

		if (mprotect(p, page_size(), PROT_READ) ||
		    mprotect(p, page_size(), PROT_READ | PROT_WRITE))
			race_wrong(r);
		race_acted(r, !atomic_load(&r->done));
	}
}

WALK_RACE(records, .racers = 2, .prepare = prepare_file,
	  .racer = middle_splitter, .call = check_records, .verify = succeeded,
	  .enough = has_walked_records);

/* --- a reader that is killed */

static int kill_reader(struct race *r)
{
	pid_t parent = getpid(), pid = fork_bound();

	if (!pid)
		for (;;)
			if (!read_all(parent, "smaps") ||
			    read_all(parent, "numa_maps") < 0)
				_exit(1);
	if (pid < 0)
		return -errno;
	return kill_at_work(pid);
}

/* A lock that it has left behind stops the writer, or the process that ends. */
WALK_RACE(killed_reader, .racers = 2, .prepare = prepare_file,
	  .racer = middle_splitter, .call = kill_reader, .verify = succeeded);

/* The bits of all pages are cleared, and nobody uses a page in between. */
static bool all_forgotten(struct race *r)
{
	return !r->ret && !smaps_kb(r->start, r->len, "Referenced");
}

WALK_RACE(clear_refs, .racers = 2, .racer = splitter, .verify = all_forgotten);

/* --- mappings that come and go */

static void mapper(struct race *r, int id)
{
	const size_t len = 4 * pmd_size();

	while (!atomic_load(&r->done)) {
		char *p = map_empty(len);

		if (!p) {
			race_wrong(r);
			return;
		}
		word_write(p, r->tag);
		word_write(p + len - page_size(), r->tag);
		munmap(p, len);
		race_acted(r, !atomic_load(&r->done));
	}
}

/* The pages of a mapping on all nodes; -1 if there is no such record. */
static long numa_pages(const void *addr)
{
	FILE *f = fopen("/proc/self/numa_maps", "re");
	char line[1024], *word, *rest;
	long sum = -1;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (strtoul(line, NULL, 16) != (uintptr_t)addr)
			continue;
		sum = 0;
		for (word = strtok_r(line, " ", &rest); word;
		     word = strtok_r(NULL, " ", &rest)) {
			int node;
			long pages;

			if (sscanf(word, "N%d=%ld", &node, &pages) == 2)
				sum += pages;
		}
	}
	fclose(f);
	return sum;
}

static int sum_and_forget(struct race *r)
{
	long pages = numa_pages(r->start);
	int ret = check_records(r);

	/* There is no numa_maps without CONFIG_NUMA. */
	if (!ret && pages != (long)(r->len / page_size()) &&
	    !access("/proc/self/numa_maps", R_OK)) {
		ksft_print_msg("%ld pages in numa_maps\n", pages);
		ret = -EIO;
	}
	if (!ret)
		ret = forget(r);
	return ret ? ret : sum_up_file(r);
}

WALK_RACE(mapped_beside, .racers = 3, .prepare = prepare_file, .racer = mapper,
	  .call = sum_and_forget, .verify = succeeded);

/* --- memory that userfaultfd write-protects */

static bool uffd_can_protect(void)
{
	int fd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP, NULL);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

/* Several parts, of which the first and the last are smaller. */
static bool prepare_protected(struct race *r)
{
	size_t range = 3 * race_range();
	char *p = map_empty(range);

	if (!p || munmap(p, page_size()))
		return false;
	r->start = p + page_size();
	r->len = range - page_size();
	fill_pages(r->start, r->len, r->tag);
	return true;
}

static int protect_by_uffd(struct race *r)
{
	const size_t pages = r->len / page_size();
	int fd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP, NULL), err = 0;

	if (fd < 0)
		return fd;
	if (uffd_register(fd, r->start, r->len, UFFDIO_REGISTER_MODE_WP) ||
	    uffd_protect(fd, r->start, r->len, true))
		err = errno;
	else if (uffd_protected(r->start, r->len) != pages)
		err = EIO;
	else if (uffd_protect(fd, r->start, r->len, false))
		err = errno;
	else if (uffd_protected(r->start, r->len) ||
		 bad_pages(r->start, r->len, r->tag))
		err = EIO;
	close(fd);
	return err ? -err : sum_up();
}

TEST_F_TIMEOUT(race, uffd_protect, TIMEOUT)
{
	struct data d;

	if (!uffd_can_protect())
		SKIP(return, "there is no userfaultfd");
	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_protected,
		  .racer = writer, .call = protect_by_uffd,
		  .verify = succeeded, .enough = has_yielded);
}

/* All pages are found and protected once, also if the lock is released meanwhile. */
static int scan_by_pagemap(struct race *r)
{
	struct page_region region = { };
	struct scan scan = { &region, 1, PM_SCAN_WP_MATCHING };
	int fd = uffd_open_async(), err = 0;

	if (fd < 0)
		return fd;
	if (uffd_register(fd, r->start, r->len, UFFDIO_REGISTER_MODE_WP))
		err = errno;
	else if (scan_written(&scan, r->start, r->len) != 1 ||
		 region.start != (uintptr_t)r->start ||
		 region.end != (uintptr_t)r->start + r->len ||
		 uffd_protected(r->start, r->len) != r->len / page_size() ||
		 scan_written(&scan, r->start, r->len) ||
		 bad_pages(r->start, r->len, r->tag))
		err = EIO;
	close(fd);
	return err ? -err : sum_up();
}

TEST_F_TIMEOUT(race, scan, TIMEOUT)
{
	int fd = uffd_open_async();
	struct data d;

	if (fd < 0)
		SKIP(return, "userfaultfd cannot write-protect without events");
	close(fd);
	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_protected,
		  .racer = writer, .call = scan_by_pagemap,
		  .verify = succeeded, .enough = has_yielded);
}

/* --- memory that moves to another NUMA node */

#define MOVE		(MPOL_MF_MOVE | MPOL_MF_STRICT)

/* Until pages that others have isolated are back as well. */
#define ISOLATION_NS	(60 * 1000000000ULL)

/* Memory on node 1. */
static bool prepare_on_node(struct race *r)
{
	struct data *d = r->data;

	if (d->changed)
		memset(d->changed, 0, npages() * sizeof(*d->changed));
	if (!prepare_empty(r) || bind_to_node(r->start, r->len, 1, 0))
		return false;
	fill_pages(r->start, r->len, r->tag);
	return true;
}

static int move_memory(struct race *r)
{
	unsigned long nodes[2] = { 1, 2 };
	size_t maxnode = 8 * sizeof(nodes[0]);

	/* A hole, which a racer makes early, is an error.  The look-up is of all. */
	if (syscall(SYS_mbind, r->start, r->len, MPOL_INTERLEAVE, &nodes[0],
		    maxnode, MPOL_MF_MOVE) && errno != EFAULT)
		return -errno;
	if (syscall(SYS_migrate_pages, 0, maxnode, &nodes[1], &nodes[0]) < 0 ||
	    syscall(SYS_mbind, r->start, r->len, MPOL_DEFAULT, NULL, 0,
		    MPOL_MF_MOVE) ||
	    syscall(SYS_migrate_pages, 0, maxnode, &nodes[0], &nodes[1]) < 0)
		return -errno;
	return sum_up();
}

/* No page is isolated for ever. */
static bool isolation_ends(void)
{
	__u64 began = now_ns();

	do {
		write_text("/proc/sys/vm/stat_refresh", "1");
		if (!vmstat_read("nr_isolated_anon"))
			return true;
		usleep(100000);
	} while (now_ns() - began < ISOLATION_NS);
	return false;
}

/* Nothing is lost, and what was mapped meanwhile is as it was. */
static bool moved_kept(struct race *r)
{
	return replaced_only(r, false);
}

TEST_F_TIMEOUT(race, move, TIMEOUT)
{
	struct data d;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_TRUE(data_init(&d));
	d.changed = calloc(npages(), sizeof(*d.changed));
	ASSERT_NE(NULL, d.changed);
	catch_faults();
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_on_node,
		  .racer = replacer, .call = move_memory,
		  .verify = moved_kept, .enough = has_yielded);
	EXPECT_TRUE(isolation_ends())
		TH_LOG("pages stay isolated");
	free(d.changed);
}

/*
 * A part gets another policy before the call looks up its pages: they are moved by the
 * later call.  The pages are on node 1, so that the call has to look up all, and the
 * later call nothing.
 */
static void bind_last_part(struct race *r, int id)
{
	const size_t part = r->len / 4;
	char *p = r->start + r->len - part;
	struct data *d = r->data;

	if (id) {
		writer(r, id);
		return;
	}
	while (bound_to_node(p) != 0)
		if (atomic_load(&r->done))
			return;
	if (bind_to_node(p, part, 1, MOVE))
		return;
	race_acted(r, !atomic_load(&r->done));
	/*
	 * A page in the middle has not moved, and fewer pages are isolated than there
	 * are between it and the part: the call has not come to the part.
	 */
	if (vmstat_read("nr_isolated_anon") < (long)npages() / 8 &&
	    pages_on_node(r->start + r->len / 2, page_size(), 1))
		atomic_store(&d->answer, 1);
}

static bool prepare_part(struct race *r)
{
	struct data *d = r->data;

	atomic_store(&d->answer, 0);
	return prepare_on_node(r);
}

static int bind_all(struct race *r)
{
	return bind_to_node(r->start, r->len, 0, MPOL_MF_MOVE) ? -errno :
								 sum_up();
}

static bool part_stays(struct race *r)
{
	const size_t part = r->len / 4;
	struct data *d = r->data;

	if (r->ret || bad_pages(r->start, r->len, r->tag))
		return false;
	if (!atomic_load(&d->answer))
		return true;
	d->served++;
	return pages_on_node(r->start + r->len - part, part, 1) ==
	       part / page_size();
}

static bool has_served(struct race *r)
{
	struct data *d = r->data;

	return d->served;
}

TEST_F_TIMEOUT(race, move_policy, TIMEOUT)
{
	struct data d;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_part,
		  .racer = bind_last_part, .call = bind_all,
		  .verify = part_stays, .enough = has_served);
}

/* --- a fork, whose child looks at the parent */

static void forker(struct race *r, int id)
{
	while (!atomic_load(&r->done)) {
		pid_t parent = getpid(), pid = fork_bound();

		if (!pid)
			_exit(rollup_kb(parent, "Rss") > 0 &&
			      !clear_refs(parent, "2") ? 0 : 1);
		race_acted(r, !atomic_load(&r->done));
		if (pid < 0 || reap(pid))
			race_wrong(r);
	}
}

WALK_RACE(fork, .racers = 1, .racer = forker);

/* --- memory that is locked and unlocked */

/* Nothing of the process is locked before and after a round. */
static bool nothing_locked(void)
{
	return !status_kb("VmLck");
}

/* Nothing is locked afterwards, and the mapping is in one piece. */
static int unlock_all(struct race *r)
{
	if (munlock(r->start, r->len))
		return -errno;
	if (!nothing_locked() || mappings(r->start, r->len) != 1)
		return -EIO;
	return sum_up();
}

/* The same, and the kernel counts as many pages as mlocked as it did before. */
static int unlock_counted(struct race *r, long before)
{
	int ret = unlock_all(r);
	long now = mlocked_kb();

	if (ret || now == before)
		return ret;
	ksft_print_msg("%ld kB locked instead of %ld\n", now, before);
	return -EIO;
}

/* Locked memory is charged, and no page stays locked once nothing is. */
static int lock_and_unlock(struct race *r)
{
	const long kb = r->len / KIB, all = mlocked_kb();

	if (mlock(r->start, r->len))
		return -errno;
	if (smaps_kb(r->start, r->len, "Locked") != kb ||
	    status_kb("VmLck") != kb || mappings(r->start, r->len) != 1)
		return -EIO;
	return unlock_counted(r, all);
}

WALK_RACE(mlock_full, .racers = 2, .racer = writer, .call = lock_and_unlock,
	  .verify = succeeded, .enough = has_yielded);

/*
 * Pages of the file are mapped by page faults beside the call.  One that is counted
 * twice stays locked after munlock().
 */
static void fault_racer(struct race *r, int id)
{
	__u64 seed = r->tag + id;

	if (!id) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		word_read(r->start + random_next(&seed) % npages() *
				     page_size());
		race_acted(r, !atomic_load(&r->done));
	}
}

/* Every second page is in the file, but not mapped. */
static bool prepare_half(struct race *r)
{
	int fd = memfd_create("walk", MFD_CLOEXEC);
	size_t i;

	r->len = race_range();
	if (fd < 0 || ftruncate(fd, r->len))
		return false;
	r->start = mmap(NULL, r->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (r->start == MAP_FAILED ||
	    madvise(r->start, r->len, MADV_POPULATE_WRITE))
		return false;
	for (i = 0; i < npages(); i += 64)
		if (madvise(r->start + i * page_size(), 32 * page_size(),
			    MADV_DONTNEED))
			return false;
	return true;
}

/* On fault, so that the call itself maps no page. */
static int lock_half(struct race *r)
{
	const long kb = r->len / KIB, all = mlocked_kb();

	if (mlock2(r->start, r->len, MLOCK_ONFAULT))
		return -errno;
	if (status_kb("VmLck") != kb || mappings(r->start, r->len) != 1)
		return -EIO;
	return unlock_counted(r, all);
}

WALK_RACE(mlock_faults, .racers = 3, .prepare = prepare_half,
	  .racer = fault_racer, .call = lock_half, .verify = succeeded,
	  .enough = has_yielded);

/*
 * Whenever the mapping is in two pieces, both are written to for the first time.  They
 * merge again only if they have the same anon_vma.
 */
static void piece_writer(struct race *r, int id)
{
	if (!id) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		if (mappings(r->start, r->len) > 1) {
			word_write(r->start, r->tag);
			word_write(r->start + r->len - page_size(), r->tag);
		}
		race_acted(r, !atomic_load(&r->done));
	}
}

/* No page of it has been written to. */
static bool prepare_private(struct race *r)
{
	char *file;

	r->len = race_range();
	file = map_memfd(r->len);
	if (!file)
		return false;
	r->start = map_private_again(file, r->len);
	munmap(file, r->len);
	return r->start && !madvise(r->start, r->len, MADV_POPULATE_READ);
}

static int lock_private(struct race *r)
{
	if (mlock2(r->start, r->len, MLOCK_ONFAULT))
		return -errno;
	if (mappings(r->start, r->len) != 1)
		return -EIO;
	return unlock_all(r);
}

WALK_RACE(mlock_pieces, .racers = 2, .prepare = prepare_private,
	  .racer = piece_writer, .call = lock_private, .verify = succeeded,
	  .enough = has_yielded);

/* Reclaim and migration look at the pages, and split huge ones, meanwhile. */
static void reclaim_racer(struct race *r, int id)
{
	__u64 seed = r->tag + id;

	if (!id) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		char *p = r->start + random_next(&seed) % (npages() - 64) *
				     page_size();

		/* Of memory that is locked, there is nothing to reclaim. */
		madvise(p, 64 * page_size(), MADV_PAGEOUT);
		if (random_next(&seed) % 64 == 0)
			write_text("/proc/sys/vm/compact_memory", "1");
		race_acted(r, !atomic_load(&r->done));
	}
}

static bool prepare_huge(struct race *r)
{
	r->len = race_range();
	r->start = map_apart(r->len);
	if (!r->start)
		return false;
	madvise(r->start, r->len, MADV_HUGEPAGE);
	fill_pages(r->start, r->len, r->tag);
	return true;
}

static int lock_contents(struct race *r)
{
	if (mlock(r->start, r->len))
		return -errno;
	if (status_kb("VmLck") != (long)(r->len / KIB) ||
	    resident_pages(r->start, r->len) != npages() ||
	    mappings(r->start, r->len) != 1)
		return -EIO;
	return unlock_all(r);
}

static bool contents_kept(struct race *r)
{
	return !r->ret && !bad_pages(r->start, r->len, r->tag);
}

static bool prepare_mixed(struct race *r)
{
	return r->tag % 2 ? prepare_huge(r) : prepare_anon(r);
}

TEST_F_TIMEOUT(race, mlock_reclaim, TIMEOUT)
{
	bool swap = swap_start();
	struct data d;

	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 3, .prepare = prepare_mixed,
		  .racer = reclaim_racer, .call = lock_contents,
		  .verify = contents_kept, .enough = has_yielded);
	if (swap)
		swap_stop();
}

/* Parts are unmapped, replaced and protected: the charge fits in the end. */
static void replace_locked(struct race *r, int id)
{
	__u64 seed = r->tag + id;

	while (!atomic_load(&r->done)) {
		size_t len = (1 + random_next(&seed) % 32) * page_size();
		char *p = r->start + random_next(&seed) % (npages() - 32) *
				     page_size();

		switch (random_next(&seed) % 4) {
		case 0:
			munmap(p, len);
			break;
		case 1:
			if (mmap(p, len, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				 0) != p)
				race_wrong(r);
			break;
		default:
			mprotect(p, len, random_next(&seed) % 2 ? PROT_READ :
				 PROT_READ | PROT_WRITE);
		}
		race_acted(r, !atomic_load(&r->done));
	}
}

static int lock_replaced(struct race *r)
{
	if (mlock(r->start, r->len) && errno != ENOMEM)
		return -errno;
	if (status_kb("VmLck") > (long)(r->len / KIB))
		return -EIO;
	if (munlock(r->start, r->len) && errno != ENOMEM)
		return -errno;
	mlock(r->start, r->len / 2);
	return sum_up();
}

/* Memory that is unmapped takes its charge along, and nothing else is charged. */
static bool charge_fits(struct race *r)
{
	unmap_range(r);
	return !r->ret && nothing_locked();
}

WALK_RACE(mlock_replaced, .racers = 2, .racer = replace_locked,
	  .call = lock_replaced, .verify = charge_fits, .enough = has_yielded);

/*
 * mlock() beside munlock() of the same range: they come one after the other, so all of
 * it is locked in the end, or nothing.
 */
static void unlocker(struct race *r, int id)
{
	struct data *d = r->data;
	long seen = 0;

	if (!id) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		if (atomic_load(&d->turn) == seen) {
			sched_yield();
			continue;
		}
		if (munlock(r->start, r->len))
			race_wrong(r);
		atomic_store(&d->answer, ++seen);
		race_acted(r, true);
	}
}

static bool prepare_turns(struct race *r)
{
	struct data *d = r->data;

	atomic_store(&d->turn, 0);
	atomic_store(&d->answer, 0);
	return prepare_anon(r);
}

static int lock_beside(struct race *r)
{
	struct data *d = r->data;
	long turn;

	for (turn = 1; turn <= 16; turn++) {
		long kb;

		atomic_store(&d->turn, turn);
		if (mlock(r->start, r->len))
			return -errno;
		while (atomic_load(&d->answer) < turn)
			sched_yield();
		kb = status_kb("VmLck");
		if (mappings(r->start, r->len) != 1 ||
		    (kb && kb != (long)(r->len / KIB))) {
			ksft_print_msg("%ld kB are locked\n", kb);
			return -EIO;
		}
	}
	return sum_up();
}

WALK_RACE(mlock_same, .racers = 2, .prepare = prepare_turns, .racer = unlocker,
	  .call = lock_beside, .verify = succeeded, .enough = has_yielded);

/* Calls that want one mapping get it: mremap(), and fork() for the child. */
static void whole_racer(struct race *r, int id)
{
	const size_t less = r->len - page_size();

	while (!atomic_load(&r->done)) {
		if (!id) {
			pid_t pid = fork_bound();

			/* One page less, if mremap() was at work. */
			if (!pid)
				_exit(mappings(r->start, less) != 1);
			if (pid < 0 || reap(pid))
				race_wrong(r);
		} else if (mremap(r->start, r->len, less, 0) != r->start ||
			   mremap(r->start, less, r->len, 0) != r->start) {
			race_wrong(r);
		}
		race_acted(r, !atomic_load(&r->done));
	}
}

/* There is room behind it, so that it can grow again in place. */
static bool prepare_growing(struct race *r)
{
	r->len = race_range();
	r->start = map_apart(r->len);
	if (!r->start)
		return false;
	fill_pages(r->start, r->len, r->tag);
	return true;
}

static int lock_growing(struct race *r)
{
	int i;

	for (i = 0; i < 4; i++)
		if ((mlock(r->start, r->len) && errno != ENOMEM) ||
		    (munlock(r->start, r->len) && errno != ENOMEM))
			return -errno;
	return sum_up();
}

WALK_RACE(mlock_whole, .racers = 2, .prepare = prepare_growing,
	  .racer = whole_racer, .call = lock_growing, .verify = succeeded,
	  .enough = has_yielded);

/* The limit of a region and a half. */
static void check_limit(struct race *r)
{
	const long kb = status_kb("VmLck"), limit = 3 * r->len / 2 / KIB;

	if (kb <= limit)
		return;
	ksft_print_msg("%ld of %ld kB\n", kb, limit);
	race_wrong(r);
}

/* Two regions fit under the limit one at a time; a call that fails changes nothing. */
static void limit_racer(struct race *r, int id)
{
	struct data *d = r->data;

	while (!atomic_load(&r->done)) {
		if (id) {
			check_limit(r);
			protect_own_page(r, id);
		} else if (!mlock(d->second, r->len)) {
			munlock(d->second, r->len);
		} else if (errno != ENOMEM) {
			race_wrong(r);
		}
		race_acted(r, !atomic_load(&r->done));
	}
}

static int lock_to_limit(struct race *r)
{
	int i;

	for (i = 0; i < 8; i++) {
		if (!mlock(r->start, r->len)) {
			if (smaps_kb(r->start, r->len, "Locked") !=
			    (long)(r->len / KIB))
				return -EIO;
			munlock(r->start, r->len);
		} else if (errno != ENOMEM) {
			return -errno;
		}
		if (smaps_kb(r->start, r->len, "Locked"))
			return -EIO;
	}
	return sum_up();
}

TEST_F_TIMEOUT(race, mlock_limit, TIMEOUT)
{
	struct data d;

	ASSERT_TRUE(data_init(&d));
	/* Before there are racers, which inherit it. */
	ASSERT_EQ(0, memlock_limit(3 * race_range() / 2));
	d.second = map_filled(race_range(), TAG);
	ASSERT_NE(NULL, d.second);
	RACE_TEST(&self->r, &d, .racers = 3, .racer = limit_racer,
		  .call = lock_to_limit, .verify = succeeded,
		  .enough = has_yielded);
}

/* Half of the region is away while the other one is locked, and comes back. */
static void hole_racer(struct race *r, int id)
{
	struct data *d = r->data;
	const size_t len = r->len / 2;
	char *hole = r->start + len;

	while (!atomic_load(&r->done)) {
		if (id) {
			check_limit(r);
			protect_own_page(r, id);
		} else {
			munmap(hole, len);
			sched_yield();
			mlock(d->second, r->len);
			if (mmap(hole, len, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				 0) != hole)
				race_wrong(r);
			sched_yield();
			munlock(d->second, r->len);
		}
		race_acted(r, !atomic_load(&r->done));
	}
}

static int lock_with_hole(struct race *r)
{
	int i;

	for (i = 0; i < 8; i++)
		if ((mlock(r->start, r->len) && errno != ENOMEM) ||
		    (munlock(r->start, r->len) && errno != ENOMEM))
			return -errno;
	return sum_up();
}

TEST_F_TIMEOUT(race, mlock_limit_hole, TIMEOUT)
{
	struct data d;

	ASSERT_TRUE(data_init(&d));
	ASSERT_EQ(0, memlock_limit(3 * race_range() / 2));
	d.second = map_filled(race_range(), TAG);
	ASSERT_NE(NULL, d.second);
	RACE_TEST(&self->r, &d, .racers = 3, .racer = hole_racer,
		  .call = lock_with_hole, .verify = succeeded,
		  .enough = has_yielded);
}

static void lock_forever(struct race *r)
{
	struct data *d = r->data;
	pthread_t thread;
	int i;

	if (madvise(r->start, r->len, MADV_POPULATE_WRITE))
		_exit(1);
	for (i = 0; i < 2; i++)
		if (pthread_create(&thread, NULL, protect_forever, d->pages[i]))
			_exit(1);
	for (;;)
		if (mlock(r->start, r->len) || munlock(r->start, r->len) ||
		    mlockall(MCL_CURRENT) || munlockall())
			_exit(1);
}

static int kill_locking(struct race *r)
{
	return kill_after_yield(r, lock_forever);
}

WALK_RACE(mlock_killed, .racers = 1, .prepare = prepare_empty, .racer = writer,
	  .call = kill_locking, .verify = succeeded, .enough = has_yielded);

/* --- memory that userfaultfd unregisters */

/* Until the last file is closed: a child that was forked meanwhile has it open, too. */
#define CLOSED_NS	(60 * 1000000000ULL)

static bool all_closed(struct race *r)
{
	__u64 began = now_ns();
	size_t left;

	do {
		left = uffd_protected(r->start, r->len);
		if (!left)
			return true;
		usleep(1000);
	} while (now_ns() - began < CLOSED_NS);
	ksft_print_msg("%zu pages are still protected\n", left);
	return false;
}

/* As ioctl(); a file that is still open may have the range. */
static int register_again(int fd, struct race *r)
{
	__u64 began = now_ns();
	int ret;

	do {
		ret = uffd_register(fd, r->start, r->len,
				    UFFDIO_REGISTER_MODE_WP);
	} while (ret && errno == EBUSY && now_ns() - began < CLOSED_NS);
	return ret;
}

/* Calls that want one mapping get it, in the middle of UNREGISTER and close() as well. */
static int unregister_growing(struct race *r)
{
	int i, fd;

	for (i = 0; i < 4; i++) {
		fd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP, NULL);
		if (fd < 0)
			return -errno;
		if (register_again(fd, r) ||
		    uffd_protect(fd, r->start, r->len, true) ||
		    (i % 2 && uffd_unregister(fd, r->start, r->len)))
			return -errno;
		if (i % 2 && uffd_protected(r->start, r->len))
			return -EIO;
		close(fd);
		if (!all_closed(r))
			return -EIO;
	}
	return sum_up();
}

TEST_F_TIMEOUT(race, uffd_whole, TIMEOUT)
{
	struct data d;

	if (!uffd_can_protect())
		SKIP(return, "there is no userfaultfd");
	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_growing,
		  .racer = whole_racer, .call = unregister_growing,
		  .verify = succeeded, .enough = has_yielded);
}

/*
 * Pages are written, replaced and unmapped beside it, and others protected by a thread
 * that does not know.  Nothing is protected in the end, as nothing is registered.
 */
static void uffd_racer(struct race *r, int id)
{
	struct data *d = r->data;
	__u64 seed = r->tag + id;

	if (id < 2) {
		replacer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		size_t page = random_next(&seed) % npages();
		int fd = atomic_load(&d->uffd);

		/* Not those of the replacers. */
		if (page % 8 && page % 2 == 0)
			continue;
		if (id == 2 && fd >= 0)
			uffd_protect(fd, r->start + page / 64 * 64 * page_size(),
				     64 * page_size(), true);
		else if (page % 2)
			word_write(r->start + page * page_size(),
				   page_word(r->tag, page));
		race_acted(r, !atomic_load(&r->done));
	}
}

static bool prepare_uffd(struct race *r)
{
	struct data *d = r->data;

	atomic_store(&d->uffd, -1);
	memset(d->changed, 0, npages() * sizeof(*d->changed));
	return prepare_anon(r);
}

static int unregister_beside(struct race *r)
{
	struct data *d = r->data;
	int i, fd, ret;

	for (i = 0; i < 4; i++) {
		fd = uffd_open_async();
		if (fd < 0)
			return -errno;
		/* A call of the racer can keep the last one open. */
		ret = register_again(fd, r);
		atomic_store(&d->uffd, fd);
		if (!ret)
			uffd_protect(fd, r->start, r->len, true);
		if (!ret && i % 2)
			ret = uffd_unregister(fd, r->start, r->len);
		atomic_store(&d->uffd, -1);
		close(fd);
		if (ret)
			return -EIO;
	}
	return sum_up();
}

static bool none_protected(struct race *r)
{
	return replaced_only(r, false) && !uffd_protected(r->start, r->len);
}

TEST_F_TIMEOUT(race, uffd_beside, TIMEOUT)
{
	int fd = uffd_open_async();
	struct data d;

	if (fd < 0)
		SKIP(return, "userfaultfd cannot write-protect without events");
	close(fd);
	ASSERT_TRUE(data_init(&d));
	d.changed = calloc(npages(), sizeof(*d.changed));
	ASSERT_NE(NULL, d.changed);
	catch_faults();
	RACE_TEST(&self->r, &d, .racers = 4, .prepare = prepare_uffd,
		  .racer = uffd_racer, .call = unregister_beside,
		  .verify = none_protected, .enough = has_yielded);
	free(d.changed);
}

/* Every 64th page is missing.  A thread that waits for one is woken up by close(). */
static void missing_racer(struct race *r, int id)
{
	__u64 seed = r->tag + id;

	if (!id) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		char *p = r->start + random_next(&seed) % (npages() / 64) * 64 *
				     page_size();
		__u64 word = word_read(p);

		if (word && word != page_word(r->tag, (p - r->start) / page_size()))
			race_wrong(r);
		race_acted(r, true);
	}
}

static int close_missing(struct race *r)
{
	int fd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP, NULL);
	size_t i;

	if (fd < 0)
		return -errno;
	if (uffd_register(fd, r->start, r->len, UFFDIO_REGISTER_MODE_WP |
						UFFDIO_REGISTER_MODE_MISSING) ||
	    uffd_protect(fd, r->start, r->len, true))
		return -errno;
	for (i = 0; i < npages(); i += 64)
		if (madvise(r->start + i * page_size(), page_size(),
			    MADV_DONTNEED))
			return -errno;
	close(fd);
	return uffd_protected(r->start, r->len) ? -EIO : sum_up();
}

/* One that is not woken up does not end. */
TEST_F_TIMEOUT(race, uffd_wakes, TIMEOUT)
{
	struct data d;

	if (!uffd_can_protect())
		SKIP(return, "there is no userfaultfd");
	ASSERT_TRUE(data_init(&d));
	RACE_TEST(&self->r, &d, .racers = 3, .racer = missing_racer,
		  .call = close_missing, .verify = succeeded,
		  .enough = has_yielded);
}

/* --- a cpuset whose nodes change, so that it moves the memory of its processes */

/* Until the worker has moved the pages of a range. */
#define CPUSET_NS	(60 * 1000000000ULL)

static const char *const nodes_text[] = { "0", "1" };

static bool prepare_cpuset(struct race *r)
{
	struct data *d = r->data;

	if (memory_group_write(&d->group, "cpuset.mems", nodes_text[0]) ||
	    !prepare_empty(r))
		return false;
	fill_pages(r->start, r->len, r->tag);
	return true;
}

/*
 * As on upstream, a page that something else holds at the moment stays where it is, and
 * nobody comes back for it.
 */
static bool moved_to_node(struct race *r, int node)
{
	const size_t enough = npages() - npages() / 16;
	__u64 began = now_ns();
	size_t found;

	do {
		found = pages_on_node(r->start, r->len, node);
		if (found >= enough)
			return true;
		usleep(1000);
	} while (now_ns() - began < CPUSET_NS);
	ksft_print_msg("only %zu of %zu pages have moved to node %d\n", found,
		       npages(), node);
	return false;
}

static int change_nodes(struct race *r)
{
	struct data *d = r->data;
	int i, ret;

	for (i = 1; i >= 0; i--) {
		ret = memory_group_write(&d->group, "cpuset.mems",
					 nodes_text[i]);
		if (ret)
			return ret;
		if (!moved_to_node(r, i))
			return -EIO;
	}
	return sum_up();
}

TEST_F_TIMEOUT(race, cpuset, TIMEOUT)
{
	struct data d;

	if (!have_nodes())
		SKIP(return, "this machine has one node");
	/*
	 * The first cpuset flips static keys of the page allocator.  A worker
	 * flips them back when the last one has gone, after the test.
	 */
	if (!static_keys_flip())
		SKIP(return, "static keys are not flipped on this emulated CPU");
	ASSERT_TRUE(data_init(&d));
	if (!control_group_enter(&d.group, "cpuset"))
		SKIP(return, "there is no cpuset cgroup");
	RACE_TEST(&self->r, &d, .racers = 2, .prepare = prepare_cpuset,
		  .racer = writer, .call = change_nodes,
		  .verify = contents_kept, .enough = has_yielded);
	memory_group_leave(&d.group);
	EXPECT_TRUE(isolation_ends())
		TH_LOG("pages stay isolated");
}

/* --- soft-dirty bits that are cleared while pages are written to */

/* Each writer has every eighth page: writes to the @n-th from the end. */
static void dirty_page(struct race *r, size_t n, int id)
{
	size_t i = npages() - 8 * (n + 1) + id;

	word_write(r->start + i * page_size(), page_word(r->tag, i));
}

/*
 * After the call, each writes to all of its pages.  Until then the second one writes to
 * a few that the TLB keeps, so it does not fault if that has the old entries.
 */
static void dirty_racer(struct race *r, int id)
{
	const size_t pages = npages() / 8, used = id == 1 ? 8 : pages;
	__u64 seed = r->tag + id;
	size_t n;

	if (id == 2) {
		writer(r, id);
		return;
	}
	while (!atomic_load(&r->done)) {
		dirty_page(r, random_next(&seed) % used, id);
		race_acted(r, !atomic_load(&r->done));
	}
	for (n = 0; n < pages; n++)
		dirty_page(r, n, id);
}

/* Base pages; what merges with a mapping that is new is dirty. */
static bool prepare_dirty(struct race *r)
{
	r->len = race_range();
	r->start = map_apart(r->len);
	if (!r->start)
		return false;
	madvise(r->start, r->len, MADV_NOHUGEPAGE);
	fill_pages(r->start, r->len, r->tag);
	return true;
}

static int forget_written(struct race *r)
{
	return clear_refs(getpid(), "4") ? -EIO : 0;
}

static bool dirty_found(struct race *r)
{
	size_t i;

	if (r->ret || bad_pages(r->start, r->len, r->tag))
		return false;
	for (i = 0; i < npages(); i += 8) {
		char *p = r->start + i * page_size();

		if (soft_dirty(p, 2 * page_size()) == 2 &&
		    !soft_dirty(p + 2 * page_size(), 6 * page_size()))
			continue;
		ksft_print_msg("page %zu: two of eight were written to\n", i);
		return false;
	}
	return !sum_up();
}

TEST_F_TIMEOUT(race, soft_dirty, TIMEOUT)
{
	struct data d;

	ASSERT_TRUE(data_init(&d));
	/* A mapping that is new is dirty. */
	if (!soft_dirty(d.pages[0], page_size()))
		SKIP(return, "there are no soft-dirty bits");
	RACE_TEST(&self->r, &d, .racers = 3, .prepare = prepare_dirty,
		  .racer = dirty_racer, .call = forget_written,
		  .verify = dirty_found, .enough = has_yielded);
}

/* --- soft-dirty bits of page tables that mremap() moves */

#define MOVED_TABLES	4

static size_t moved_len(void)
{
	return MOVED_TABLES * pmd_size();
}

/* In the order of addresses: room for the tables, memory to walk, the tables. */
static char *moved_from(struct race *r)
{
	return r->start + moved_len() + race_range();
}

/* A file that is mapped and read: its entries are writable, and not soft-dirty. */
static bool map_read(char *p, size_t len)
{
	char *file = map_memfd(len);
	bool ok;

	if (!file)
		return false;
	/* A second mapping of the same memory. */
	ok = mremap(file, 0, len, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p;
	munmap(file, len);
	/* None was written with a tag. */
	return ok && bad_pages(p, len, TAG);
}

static bool prepare_moved(struct race *r)
{
	r->len = 2 * moved_len() + race_range();
	r->start = map_apart(r->len);
	if (!r->start)
		return false;
	madvise(r->start, r->len, MADV_NOHUGEPAGE);
	fill_pages(r->start + moved_len(), race_range(), r->tag);
	return map_read(moved_from(r), moved_len());
}

/* Tables are moved from above to where the walk has been, and pages written to then. */
static void moving_racer(struct race *r, int id)
{
	size_t i;

	if (id) {
		writer(r, id);
		return;
	}
	for (i = 0; i < moved_len(); i += pmd_size()) {
		if (mremap(moved_from(r) + i, pmd_size(), pmd_size(),
			   MREMAP_MAYMOVE | MREMAP_FIXED,
			   r->start + i) != r->start + i)
			race_wrong(r);
		race_acted(r, !atomic_load(&r->done));
	}
	while (!atomic_load(&r->done))
		sched_yield();
	for (i = 0; i < moved_len(); i += page_size())
		word_write(r->start + i, r->tag);
}

static bool moved_found(struct race *r)
{
	size_t dirty = soft_dirty(r->start, moved_len());

	if (dirty == moved_len() / page_size())
		return !r->ret && !sum_up();
	ksft_print_msg("only %zu of %zu pages are found that were written to\n", dirty,
		       moved_len() / page_size());
	return false;
}

TEST_F_TIMEOUT(race, soft_dirty_moved, TIMEOUT)
{
	struct data d;

	ASSERT_TRUE(data_init(&d));
	/* A mapping that is new is dirty. */
	if (!soft_dirty(d.pages[0], page_size()))
		SKIP(return, "there are no soft-dirty bits");
	RACE_TEST(&self->r, &d, .racers = 3, .prepare = prepare_moved,
		  .racer = moving_racer, .call = forget_written,
		  .verify = moved_found, .enough = has_yielded);
}

/* --- page tables that mremap() moves, while others fault in, and look for, its pages */

#define MOVES		8

/* The first half is filled; racers fault in zero pages of the second one. */
static size_t moved_half(void)
{
	return race_range() / 2;
}

/* Base pages, three pages off the start of a page table. */
static bool prepare_moving(struct race *r)
{
	char *place = free_range(race_range() + pmd_size());
	struct data *d = r->data;

	if (!place)
		return false;
	r->len = race_range();
	r->start = map_fresh_at(place + 3 * page_size(), r->len);
	if (!r->start)
		return false;
	madvise(r->start, r->len, MADV_NOHUGEPAGE);
	fill_pages(r->start, moved_half(), r->tag);
	atomic_store(&d->place, (uintptr_t)r->start);
	return true;
}

/* Move the range, as it cannot grow where it is. */
static bool move_range(struct race *r)
{
	char *end = r->start + r->len, *to;
	struct data *d = r->data;

	/* If it fails, something else is there. */
	if (mmap(end, page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED_NOREPLACE, -1, 0) != end)
		end = NULL;
	to = mremap(r->start, r->len, r->len + page_size(), MREMAP_MAYMOVE);
	if (end)
		munmap(end, page_size());
	if (to == MAP_FAILED || to == r->start)
		return false;
	if ((to - r->start) % (long)pmd_size() == 0)
		d->congruent++;
	r->start = to;
	r->len += page_size();
	atomic_store(&d->place, (uintptr_t)to);
	return true;
}

static int move_often(struct race *r)
{
	int i;

	for (i = 0; i < MOVES; i++)
		if (!move_range(r))
			return -EIO;
	return sum_up();
}

static bool moved_whole(struct race *r)
{
	return !r->ret && !bad_pages(r->start, moved_half(), r->tag) &&
	       !nonzero_pages(r->start + moved_half(), moved_half());
}

static bool has_moved_tables(struct race *r)
{
	const struct data *d = r->data;

	return d->congruent > 0;
}

/* Other memory may be there by now. */
static void touch_moved(struct race *r, __u64 *seed)
{
	size_t page = random_next(seed) % (moved_half() / page_size());
	struct data *d = r->data;
	__u64 word;

	try_read((char *)atomic_load(&d->place) + moved_half() +
		 page * page_size(), &word);
}

/* By rmap, and through the page tables. */
static void page_racer(struct race *r, int id)
{
	unsigned long from = 1, to = 2;
	__u64 seed = r->tag + id;

	while (!atomic_load(&r->done)) {
		bool acted = true;

		if (id == 0) {
			/* Fails on a machine with one node. */
			acted = syscall(SYS_migrate_pages, 0, 8 * sizeof(from),
					&from, &to) >= 0;
			from = 3 - from;
			to = 3 - to;
		} else if (id == 1) {
			acted = !write_text("/proc/sys/vm/compact_memory", "1");
		} else if (id == 2) {
			touch_moved(r, &seed);
		} else if (clear_refs(getpid(), "1")) {
			race_wrong(r);
		}
		race_acted(r, acted && !atomic_load(&r->done));
	}
}

TEST_F_TIMEOUT(race, moved, TIMEOUT)
{
	struct data d;

	ASSERT_TRUE(data_init(&d));
	catch_faults();
	RACE_TEST(&self->r, &d, .racers = 4, .prepare = prepare_moving,
		  .racer = page_racer, .call = move_often,
		  .verify = moved_whole, .enough = has_moved_tables);
}

int main(int argc, char **argv)
{
	if (!race_options())
		return KSFT_FAIL;
	return vm_knob_kept(&walk_knob, test_harness_run, argc, argv);
}
