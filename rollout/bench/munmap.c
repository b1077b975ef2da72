// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cost of a large munmap for the calling process and its other threads.
 *
 * The arms are values of vm.munmap_section_kbytes or vm.madvise_section_kbytes.
 */
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

#define FAULT_PLACES	128
/* After a call: RCU frees the page tables, and what the probe has freed. */
#define SETTLE_US	50000
/* So that RCU has little to free for the probe, which it does in interrupts. */
#define STEADY_PAUSE_US	100
/* Measurements of a round, until all threads have run beside it. */
#define TRIES		20

static struct {
	const char *call, *fill, *metric;
	long mib;
} opt = { .call = "munmap", .fill = "4k", .mib = 1024 };

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

/* Of all scenes but cost. */
static enum fill fill;

static void *map(enum fill fill, size_t len)
{
	static int file_fd = -1;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fd = -1;

	if (fill == FILL_FILE) {
		if (file_fd < 0)
			file_fd = memfd_create("bench", MFD_CLOEXEC);
		if (file_fd < 0 || ftruncate(file_fd, len))
			err(1, "memfd of %zu MiB", len / MIB);
		flags = MAP_SHARED;
		fd = file_fd;
	} else if (fill == FILL_HUGETLB) {
		flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	}
	return map_memory(NULL, len, flags, fd);
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

	if (!populate(p, len, fill))
		err(1, "the guest needs more memory: %zu MiB of %s", len / MIB,
		    fill_names[fill]);
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
	unmap(map_anon(4096), 4096);
}

static void act_maps(struct probe *probe)
{
	static char buf[65536];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		err(1, "/proc/self/maps");
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

	probe->limit = FAULT_PLACES;
	probe->size = FAULT_PLACES * 2 * 4096;
	probe->place = mmap(NULL, probe->size, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (probe->place == MAP_FAILED)
		err(1, "places to fault");
	for (i = 0; i < FAULT_PLACES; i++)
		if (mprotect(probe->place + i * 2 * 4096, 4096,
			     PROT_READ | PROT_WRITE))
			err(1, "places to fault");
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
		errx(1, "no memory for samples");
	return ops;
}

/* --- the call that is measured */

enum { NO_ADVICE = -1 };

static const struct call {
	const char *name;
	int advice;		/* of madvise(), or NO_ADVICE */
} calls[] = {
	{ "munmap", NO_ADVICE },
	/* mmap(MAP_FIXED), as allocators give memory back. */
	{ "decommit", NO_ADVICE },
	{ "dontneed", MADV_DONTNEED },
	{ "free", MADV_FREE },
	{ "cold", MADV_COLD },
};

static const struct call *call = &calls[0];

static bool call_unmaps(void)
{
	return call == &calls[0];
}

static void do_call(void *p, size_t len)
{
	int error;

	if (call_unmaps())
		error = munmap(p, len);
	else if (call->advice == NO_ADVICE)
		error = !decommit(p, len);
	else
		error = madvise(p, len, call->advice);
	if (error)
		err(1, "%s", call->name);
}

/* After do_call(), not measured. */
static void clean_up(void *p, size_t len)
{
	if (!call_unmaps())
		unmap(p, len);
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
		errx(1, "no memory for samples");
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

#define PROBES_MAX	3

struct scene {
	const char *name;
	int n;
	struct probe probes[PROBES_MAX];
	bool waits;		/* of the probes are measured */
	bool control;		/* also without the call */
};

static struct op *op_buffers[PROBES_MAX];

/* Returns false, with nothing reported, if the host left a probe no time. */
static bool try_munmap(const struct scene *scene, int arm, const char *what)
{
	size_t len = opt.mib * MIB;
	struct probe probes[PROBES_MAX];
	__u64 from, to, quiet = 0;
	int i, n = scene->n;
	bool ran = true;
	void *p;

	memcpy(probes, scene->probes, sizeof(probes));
	p = map_populated(fill, len);
	atomic_store(&probes_stop, false);
	atomic_store(&probes_ready, 0);
	for (i = 0; i < n; i++) {
		if (!op_buffers[i])
			op_buffers[i] = new_ops();
		probes[i].ops = op_buffers[i];
		probes[i].limit = SAMPLES_MAX;
		if (probes[i].act == act_fault)
			fault_places(&probes[i]);
		start_thread(&probes[i].thread, probe_main, &probes[i]);
	}
	while (atomic_load(&probes_ready) < n)
		usleep(100);
	usleep(n ? 5000 : 0);
	from = now_ns();
	do_call(p, len);
	to = now_ns();
	/* A blocked operation may last a little longer. */
	usleep(n ? 2000 : 0);
	if (scene->control) {
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
			unmap(probes[i].place, probes[i].size);

	for (i = 0; i < n && scene->waits; i++)
		ran = ran && probe_ran(&probes[i], from, to);
	if (quiet)
		ran = ran && probe_ran(&probes[0], quiet, quiet + to - from);
	if (!ran)
		return false;
	report(arm, "ms", (to - from) / 1e6, "%s_%s", what,
	       call_unmaps() ? "munmap" : "time");
	for (i = 0; i < n && scene->waits; i++)
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
static void one_munmap(int arm, void *arg)
{
	const struct scene *scene = arg;
	char what[64];
	int tries;

	snprintf(what, sizeof(what), "%s_%ldm_%s%s%s", scene->name, opt.mib,
		 fill_names[fill], call_unmaps() ? "" : "_",
		 call_unmaps() ? "" : call->name);
	for (tries = 0; tries < TRIES; tries++) {
		if (try_munmap(scene, arm, what))
			return;
		printf("# %s: a thread did not run beside it, again\n", what);
	}
	errx(1, "%s: a thread did not run beside it, %d times: too few CPUs?",
	     what, TRIES);
}

static void run_scene(void *scene)
{
	run_turns(rounds, one_munmap, scene);
}

static struct scene stall = {
	"stall", 1, { { .name = "mmap", .act = act_mmap } },
	.waits = true, .control = true,
};

static struct scene steady = {
	"steady", 1, { { .name = "mmap", .act = act_mmap,
			 .pause_us = STEADY_PAUSE_US } },
	.waits = true, .control = true,
};

static struct scene convoy = {
	"convoy", 3, { { .name = "maps", .act = act_maps },
		       { .name = "fault", .act = act_fault, .pause_us = 2000 },
		       { .name = "mmap", .act = act_mmap } },
	.waits = true,
};

static struct scene hammer = {
	.name = "hammer", .n = 3,
	.probes = { { .act = act_mmap }, { .act = act_mmap },
		    { .act = act_mmap } },
};

static struct scene alone = { .name = "alone" };

/* --- cost: the work of the calling thread, in ticks */

static void *sleep_forever(void *arg)
{
	for (;;)
		pause();
	return NULL;
}

struct cost {
	const char *metric;
	enum fill fill;
	size_t len;
	void (*turn)(int arm, void *cost);
};

static void cost_once(int arm, void *arg)
{
	const struct cost *cost = arg;
	void *p = map_populated(cost->fill, cost->len);
	__u64 from, to;

	from = ticks();
	do_call(p, cost->len);
	to = ticks();
	clean_up(p, cost->len);
	report(arm, "ticks", to - from, "%s", cost->metric);
}

/*
 * Many small ones, each with its first page touched.  Take the median: now and
 * then one of them pays for a batch of freed pages or for a timer.
 */
static void cost_small(int arm, void *arg)
{
	const struct cost *cost = arg;
	static double found[2001];
	__u64 from;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(found); i++) {
		char *p = map(FILL_4K, cost->len);

		touch(p);
		from = ticks();
		do_call(p, cost->len);
		found[i] = ticks() - from;
		clean_up(p, cost->len);
	}
	sort_samples(found, ARRAY_SIZE(found));
	report(arm, "ticks", found[ARRAY_SIZE(found) / 2], "%s", cost->metric);
}

static struct cost costs[] = {
	{ "cost_256m_4k", FILL_4K, 256 * MIB, cost_once },
	{ "cost_512m_thp", FILL_THP, 512 * MIB, cost_once },
	{ "cost_512m_zero", FILL_ZERO, 512 * MIB, cost_once },
	{ "cost_1t_sparse", FILL_SPARSE, 1024 * GIB, cost_once },
	{ "cost_256m_file", FILL_FILE, 256 * MIB, cost_once },
	{ "cost_256m_hugetlb", FILL_HUGETLB, 256 * MIB, cost_once },
	{ "cost_4k_small", FILL_4K, 4 * KIB, cost_small },
	{ "cost_64k_small", FILL_4K, 64 * KIB, cost_small },
	{ "cost_1m_small", FILL_4K, MIB, cost_small },
};

static void run_costs(void *unused)
{
	bool hugetlb = huge_pool(256 * MIB / (2 * MIB));
	pthread_t idle;
	size_t i;

	/* Sections require a process with at least two threads. */
	start_thread(&idle, sleep_forever, NULL);
	for (i = 0; i < ARRAY_SIZE(costs); i++) {
		struct cost *cost = &costs[i];

		if (opt.metric && strcmp(opt.metric, cost->metric))
			continue;
		if (cost->fill == FILL_HUGETLB && !hugetlb) {
			warnx("no 2 MiB huge pages: %s is left out",
			      cost->metric);
			continue;
		}
		warm_up(cost->turn, cost);
		run_turns(rounds, cost->turn, cost);
	}
}

int main(int argc, char **argv)
{
	static const struct bench_option options[] = {
		{ "call", "munmap (default), decommit by mmap(MAP_FIXED), or"
		  " madvise: dontneed, free, cold",
		  .text = &opt.call },
		{ "size", "MiB, of all scenes but cost (1024)",
		  .number = &opt.mib },
		{ "fill", "4k (default), zero, thp or file, of these scenes",
		  .text = &opt.fill },
		{ "metric", "a single one of cost", .text = &opt.metric },
		{ }
	};
	static const struct bench_scene scenes[] = {
		{ "stall", "another thread maps and unmaps", .run = run_scene,
		  .arg = &stall },
		{ "steady", "the same with pauses", .run = run_scene,
		  .arg = &steady },
		{ "convoy", "another one reads /proc/self/maps, and one faults",
		  .run = run_scene, .arg = &convoy },
		{ "hammer", "three threads map and unmap", .run = run_scene,
		  .arg = &hammer },
		{ "alone", "there is no other thread", .run = run_scene,
		  .arg = &alone },
		{ "cost", "the work of the calling thread", .run = run_costs },
		{ }
	};
	static struct bench bench = {
		"munmap_section_kbytes", options, .scenes = scenes,
	};
	int first = bench_parse(argc, argv, &bench);

	call = &calls[find_name("call", opt.call, calls)];
	if (call->advice != NO_ADVICE)
		bench.knob = "madvise_section_kbytes";
	fill = find_in_array("kind", opt.fill, fill_names, FILL_HUGETLB,
			     sizeof(fill_names[0]));
	bench_scenes(argc, argv, first, &bench);
	return 0;
}
