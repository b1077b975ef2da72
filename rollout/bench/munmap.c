// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cost of a large munmap for the calling process and its other threads.
 *
 * Runs in the guest and prints one line per measurement:
 *
 *	sample METRIC UNIT ARM VALUE
 *
 * An arm is a value of vm.munmap_section_kbytes, or a name for the kernel as
 * it is (see --arms).  The arms take turns within a round, in alternating
 * order, so that any drift on the host affects all of them equally.  The program
 * that starts this one computes medians, tables and verdicts.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench_util.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif

#define FAULT_PLACES	128
/* After a call: RCU frees the page tables, and what the probe has freed. */
#define SETTLE_US	50000
/* So that RCU has little to free for the probe, which it does in interrupts. */
#define STEADY_PAUSE_US	100
/* Measurements of a round, until all threads have run beside it. */
#define TRIES		20

const char bench_name[] = "munmap";
const char *bench_knob = "/proc/sys/vm/munmap_section_kbytes";

/* --- memory */

enum fill { FILL_4K, FILL_ZERO, FILL_THP, FILL_FILE, FILL_HUGETLB,
	    FILL_SPARSE, NR_FILLS };

static const char * const fill_names[NR_FILLS] = {
	[FILL_4K]	= "4k",
	[FILL_ZERO]	= "zero",
	[FILL_THP]	= "thp",
	[FILL_FILE]	= "file",
	[FILL_HUGETLB]	= "hugetlb",
	[FILL_SPARSE]	= "sparse",
};

static int file_fd = -1;

static void *map(enum fill fill, size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fd = -1;
	void *p;

	if (fill == FILL_FILE) {
		if (file_fd < 0)
			file_fd = memfd_create("bench", MFD_CLOEXEC);
		if (file_fd < 0 || ftruncate(file_fd, len))
			die("memfd of %zu MiB: %s", len / MIB, strerror(errno));
		flags = MAP_SHARED;
		fd = file_fd;
	} else if (fill == FILL_HUGETLB) {
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	}
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);
	return p == MAP_FAILED ? NULL : p;
}

static bool populate(void *p, size_t len, enum fill fill)
{
	size_t off;

	if (fill != FILL_FILE && fill != FILL_HUGETLB)
		madvise(p, len,
			fill == FILL_THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	if (fill != FILL_SPARSE)
		return !madvise(p, len, fill == FILL_ZERO ?
				MADV_POPULATE_READ : MADV_POPULATE_WRITE);
	/* 2 MiB in each 1/32 of the mapping. */
	for (off = 0; off < len; off += len / 32)
		if (madvise((char *)p + off, 2 * MIB, MADV_POPULATE_WRITE))
			return false;
	return true;
}

static void *map_populated(enum fill fill, size_t len)
{
	void *p = map(fill, len);

	if (!p || !populate(p, len, fill))
		die("%zu MiB of %s: %s; the guest needs more memory", len / MIB,
		    fill_names[fill], strerror(errno));
	return p;
}

/* --- the other threads of the process, and their waits */

struct op {
	__u64 start, end;
};

struct probe {
	pthread_t thread;
	const char *name;
	void (*act)(struct probe *probe);	/* one operation */
	long limit;				/* of operations */
	long pause_us;				/* between them */
	struct op *ops;
	long n;
	char *place;				/* of faults */
	size_t size;
};

static atomic_bool probes_stop;
static atomic_int probes_ready;

static void act_mmap(struct probe *probe)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || munmap(p, 4096))
		die("mmap of a page: %s", strerror(errno));
}

static void act_maps(struct probe *probe)
{
	static char buf[65536];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("/proc/self/maps: %s", strerror(errno));
	while (read(fd, buf, sizeof(buf)) > 0)
		;
	close(fd);
}

/*
 * The first fault in a VMA needs mmap_lock; each place is one such VMA.  They
 * are few, as they make /proc/self/maps longer, and last thanks to pauses.
 */
static void act_fault(struct probe *probe)
{
	touch(probe->place + probe->n * 2 * 4096);
}

static void fault_places(struct probe *probe)
{
	long i;

	probe->size = FAULT_PLACES * 2 * 4096;
	probe->place = mmap(NULL, probe->size, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (probe->place == MAP_FAILED)
		die("places to fault: %s", strerror(errno));
	for (i = 0; i < FAULT_PLACES; i++)
		if (mprotect(probe->place + i * 2 * 4096, 4096,
			     PROT_READ | PROT_WRITE))
			die("places to fault: %s", strerror(errno));
}

static void *probe_main(void *arg)
{
	struct probe *probe = arg;

	atomic_fetch_add(&probes_ready, 1);
	while (!atomic_load(&probes_stop) && probe->n < probe->limit) {
		struct op *op = &probe->ops[probe->n];

		op->start = now_ns();
		probe->act(probe);
		op->end = now_ns();
		probe->n++;
		if (probe->pause_us)
			usleep(probe->pause_us);
	}
	return NULL;
}

static struct op *new_ops(void)
{
	struct op *ops = calloc(SAMPLES_MAX, sizeof(*ops));

	if (!ops)
		die("no memory for samples");
	return ops;
}

/* --- the call that is measured */

static const struct call {
	const char *name;
	int advice;		/* of madvise(); munmap() has none */
} calls[] = {
	{ "munmap", -1 },
	{ "dontneed", MADV_DONTNEED },
	{ "free", MADV_FREE },
	{ "cold", MADV_COLD },
};

static const struct call *call = &calls[0];

static void do_call(void *p, size_t len)
{
	if (call->advice < 0 ? munmap(p, len) : madvise(p, len, call->advice))
		die("%s: %s", call->name, strerror(errno));
}

/* After do_call(), not measured. */
static void clean_up(void *p, size_t len)
{
	if (call->advice >= 0 && munmap(p, len))
		die("munmap: %s", strerror(errno));
}

static bool overlaps(const struct op *op, __u64 from, __u64 to)
{
	return op->end > from && op->start < to;
}

/* Whether the probe has run in [from, to), or waited there. */
static bool probe_ran(const struct probe *probe, __u64 from, __u64 to)
{
	long i;

	for (i = 0; i < probe->n; i++)
		if (overlaps(&probe->ops[i], from, to))
			return true;
	return false;
}

/* The operations of a probe that overlapped with [from, to), as @name. */
static void report_probe(const char *what, const char *name,
			 const struct probe *probe, int arm, __u64 from, __u64 to)
{
	double *ms = malloc(probe->n * sizeof(*ms) + 1);
	long i, n = 0;

	if (!ms)
		die("no memory for samples");
	for (i = 0; i < probe->n; i++)
		if (overlaps(&probe->ops[i], from, to))
			ms[n++] = (probe->ops[i].end - probe->ops[i].start) /
				  1e6;
	sort_samples(ms, n);
	report(arm, "ms", ms[n - 1], "%s_%s_max", what, name);
	report(arm, "ms", p99(ms, n), "%s_%s_p99", what, name);
	report(arm, "of_call", ms[n - 1] * 1e6 / (to - from), "%s_%s_ratio",
	       what, name);
	report(arm, "operations", n, "%s_%s_n", what, name);
	free(ms);
}

enum scene {
	SCENE_STALL,		/* one writer of mmap_lock */
	SCENE_STEADY,		/* one that pauses */
	SCENE_CONVOY,		/* a writer, a reader and a fault */
	SCENE_HAMMER,		/* three writers; only the munmap is measured */
	SCENE_ALONE,		/* no other; only the munmap is measured */
	NR_SCENES,
};

static const char * const scene_names[NR_SCENES] = {
	[SCENE_STALL]	= "stall",
	[SCENE_STEADY]	= "steady",
	[SCENE_CONVOY]	= "convoy",
	[SCENE_HAMMER]	= "hammer",
	[SCENE_ALONE]	= "alone",
};

static struct op *op_buffers[3];

/* Returns false, with nothing reported, if the host left a probe no time. */
static bool try_munmap(enum scene scene, enum fill fill, size_t len, int arm,
		       const char *what)
{
	struct probe probes[3] = { };
	__u64 from, to, quiet = 0;
	bool ran = true;
	int i, n = 0;
	void *p;

	set_arm(arm);
	switch (scene) {
	case SCENE_CONVOY:
		probes[n++] = (struct probe){ .name = "maps", .act = act_maps };
		probes[n] = (struct probe){ .name = "fault", .act = act_fault,
					    .pause_us = 2000 };
		fault_places(&probes[n++]);
		probes[n++] = (struct probe){ .name = "mmap", .act = act_mmap };
		break;
	case SCENE_HAMMER:
		probes[n++] = (struct probe){ .name = "mmap", .act = act_mmap };
		probes[n++] = (struct probe){ .name = "mmap", .act = act_mmap };
		probes[n++] = (struct probe){ .name = "mmap", .act = act_mmap };
		break;
	case SCENE_STALL:
		probes[n++] = (struct probe){ .name = "mmap", .act = act_mmap };
		break;
	case SCENE_STEADY:
		probes[n++] = (struct probe){ .name = "mmap", .act = act_mmap,
					      .pause_us = STEADY_PAUSE_US };
		break;
	default:
		break;
	}
	p = map_populated(fill, len);
	atomic_store(&probes_stop, false);
	atomic_store(&probes_ready, 0);
	for (i = 0; i < n; i++) {
		if (!op_buffers[i])
			op_buffers[i] = new_ops();
		probes[i].ops = op_buffers[i];
		probes[i].limit = probes[i].place ? FAULT_PLACES : SAMPLES_MAX;
		if (pthread_create(&probes[i].thread, NULL, probe_main,
				   &probes[i]))
			die("cannot start a thread");
	}
	while (atomic_load(&probes_ready) < n)
		usleep(100);
	usleep(n ? 5000 : 0);
	from = now_ns();
	do_call(p, len);
	to = now_ns();
	/* A blocked operation may last a little longer. */
	usleep(n ? 2000 : 0);
	if (scene == SCENE_STALL || scene == SCENE_STEADY) {
		/* The control: as long, but with no call. */
		usleep(SETTLE_US);
		quiet = now_ns();
		usleep((to - from) / 1000);
	}
	atomic_store(&probes_stop, true);
	for (i = 0; i < n; i++)
		pthread_join(probes[i].thread, NULL);
	clean_up(p, len);
	for (i = 0; i < n; i++)
		if (probes[i].place)
			munmap(probes[i].place, probes[i].size);

	for (i = 0; i < n && scene != SCENE_HAMMER; i++)
		ran = ran && probe_ran(&probes[i], from, to);
	if (quiet)
		ran = ran && probe_ran(&probes[0], quiet, quiet + to - from);
	if (!ran)
		return false;
	report(arm, "ms", (to - from) / 1e6, "%s_%s", what,
	       call->advice < 0 ? "munmap" : "time");
	for (i = 0; i < n && scene != SCENE_HAMMER; i++)
		report_probe(what, probes[i].name, &probes[i], arm, from, to);
	if (quiet)
		report_probe(what, "quiet", &probes[0], arm, quiet,
			     quiet + to - from);
	return true;
}

/*
 * A probe that waits for the call has run beside it.  If one has not run at
 * all, its CPU was taken away, and the round says nothing: measure again.
 */
static void one_munmap(enum scene scene, enum fill fill, size_t len, int arm)
{
	char what[64];
	int tries;

	snprintf(what, sizeof(what), "%s_%zum_%s%s%s", scene_names[scene],
		 len / MIB, fill_names[fill], call->advice < 0 ? "" : "_",
		 call->advice < 0 ? "" : call->name);
	for (tries = 0; tries < TRIES; tries++) {
		if (try_munmap(scene, fill, len, arm, what))
			return;
		printf("# %s: a thread did not run beside it, again\n", what);
	}
	die("%s: a thread did not run beside it, %d times: too few CPUs?", what,
	    TRIES);
}

static void run_scene(enum scene scene, enum fill fill, size_t len, int rounds)
{
	int round, turn;

	for (round = 0; round < rounds; round++)
		for (turn = 0; turn < nr_arms; turn++)
			one_munmap(scene, fill, len, arm_of_turn(round, turn));
}

/* --- cost: the work of the calling thread, in ticks */

static void *sleep_forever(void *arg)
{
	for (;;)
		pause();
	return NULL;
}

static void cost_once(const char *metric, enum fill fill, size_t len, int arm,
		      bool warm)
{
	void *p = map_populated(fill, len);
	__u64 from, to;

	from = ticks();
	do_call(p, len);
	to = ticks();
	clean_up(p, len);
	if (!warm)
		report(arm, "ticks", to - from, "%s", metric);
}

/*
 * Many small ones, each with its first page touched.  Take the median: now and
 * then one of them pays for a batch of freed pages or for a timer.
 */
static void cost_small(const char *metric, size_t len, int arm, bool warm)
{
	static double cost[2001];
	__u64 from;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cost); i++) {
		char *p = map(FILL_4K, len);

		if (!p)
			die("mmap: %s", strerror(errno));
		touch(p);
		from = ticks();
		do_call(p, len);
		cost[i] = ticks() - from;
		clean_up(p, len);
	}
	sort_samples(cost, ARRAY_SIZE(cost));
	if (!warm)
		report(arm, "ticks", cost[ARRAY_SIZE(cost) / 2], "%s", metric);
}

static const struct cost {
	const char *metric;
	enum fill fill;
	size_t len;
	bool small;
} costs[] = {
	{ "cost_256m_4k", FILL_4K, 256 * MIB },
	{ "cost_512m_thp", FILL_THP, 512 * MIB },
	{ "cost_512m_zero", FILL_ZERO, 512 * MIB },
	{ "cost_1t_sparse", FILL_SPARSE, 1024 * GIB },
	{ "cost_256m_file", FILL_FILE, 256 * MIB },
	{ "cost_256m_hugetlb", FILL_HUGETLB, 256 * MIB },
	{ "cost_4k_small", FILL_4K, 4 * KIB, true },
	{ "cost_64k_small", FILL_4K, 64 * KIB, true },
	{ "cost_1m_small", FILL_4K, MIB, true },
};

static bool reserve_hugetlb(size_t len)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", "r+");
	long n = 0;

	if (!f)
		return false;
	fprintf(f, "%zu\n", len / (2 * MIB));
	rewind(f);
	if (fscanf(f, "%ld", &n) != 1)
		n = 0;
	fclose(f);
	return n >= (long)(len / (2 * MIB));
}

static void run_costs(int rounds, const char *only)
{
	bool hugetlb = reserve_hugetlb(256 * MIB);
	pthread_t idle;
	size_t i;
	int round, turn;

	/* Sections require a process with at least two threads. */
	if (pthread_create(&idle, NULL, sleep_forever, NULL))
		die("cannot start a thread");
	for (i = 0; i < ARRAY_SIZE(costs); i++) {
		const struct cost *c = &costs[i];

		if (only && strcmp(only, c->metric))
			continue;
		if (c->fill == FILL_HUGETLB && !hugetlb) {
			fprintf(stderr, "munmap: no 2 MiB huge pages: %s is left out\n",
				c->metric);
			continue;
		}
		/* The first round of each is a warm-up. */
		for (round = 0; round <= rounds; round++) {
			for (turn = 0; turn < nr_arms; turn++) {
				int arm = arm_of_turn(round, turn);

				set_arm(arm);
				if (c->small)
					cost_small(c->metric, c->len, arm,
						   !round);
				else
					cost_once(c->metric, c->fill, c->len,
						  arm, !round);
			}
		}
	}
}

/* --- command line */

static void usage(FILE *f)
{
	fprintf(f,
		"Usage: munmap --arms ARM,... [--rounds N] cost [METRIC]\n"
		"       munmap --arms ARM,... [--rounds N] [--size MIB] [--fill KIND] SCENE\n"
		"  ARM    a value of the knob, or a name to leave it alone\n"
		"  SCENE  stall (one thread maps and unmaps), steady (with pauses), convoy\n"
		"         (another one reads /proc/self/maps, and one faults), hammer (three\n"
		"         threads map and unmap), alone\n"
		"  KIND   4k, zero, thp, file (default 4k)\n"
		"--call CALL measures munmap (the default; knob vm.munmap_section_kbytes), or\n"
		"madvise with dontneed, free or cold (knob vm.madvise_section_kbytes).\n");
}

int main(int argc, char **argv)
{
	static long rounds = 5, size = 1024;
	static const char *kind, *name;
	static const struct bench_option options[] = {
		{ "rounds", &rounds },
		{ "size", &size },
		{ "fill", .text = &kind },
		{ "call", .text = &name },
	};
	const char *names[ARRAY_SIZE(calls)];
	size_t i;
	int first = parse_options(argc, argv, options, ARRAY_SIZE(options),
				  true, usage);
	enum fill fill = FILL_4K;

	for (i = 0; i < ARRAY_SIZE(calls); i++)
		names[i] = calls[i].name;
	if (name)
		call = &calls[find_name("call", name, names, ARRAY_SIZE(calls))];
	if (call->advice >= 0)
		bench_knob = "/proc/sys/vm/madvise_section_kbytes";
	if (kind)
		fill = find_name("kind", kind, fill_names, FILL_HUGETLB);
	if (!strcmp(argv[first], "cost"))
		run_costs(rounds, argv[first + 1]);
	else
		run_scene(find_name("scene", argv[first], scene_names,
				    NR_SCENES),
			  fill, size * MIB, rounds);
	return 0;
}
