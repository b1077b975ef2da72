// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long each operation on memory holds up the other threads of a process.
 *
 * Beside each operation, one thread maps and unmaps a page, and waits whenever the
 * operation holds mmap_lock; with --probe fault it touches pages of a mapping of its
 * own instead.  With --probe idle it sleeps, and with --probe none there is no other
 * thread: then the time of the operation is measured instead of waits.
 *
 * The arms "off" and "on" set all switches of the table --switches (its format is that
 * of sysctl/switches) to their stock values and to those for "on"; another name leaves
 * the kernel as it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif
#ifndef MPOL_BIND
#define MPOL_BIND		2
#define MPOL_MF_MOVE		2
#endif

#define SMALL_MAPPINGS	30000
#define SMALL_PAGES	2
#define SWITCHES_MAX	16
#define PAGE		4096UL
#define HUGE_PAGE	(2 * MIB)
/* After an operation, for the deferred work of the kernel: it frees memory. */
#define SETTLE_MS	30

/* --- switches */

static struct vm_switch {
	char name[48];
	long stock, on;
} switches[SWITCHES_MAX];
static int nr_switches;

static void read_switches(const char *path)
{
	FILE *f = fopen(path, "r");
	char line[256];

	if (!f)
		err(1, "%s", path);
	while (fgets(line, sizeof(line), f) && nr_switches < SWITCHES_MAX) {
		struct vm_switch *s = &switches[nr_switches];

		if (sscanf(line, "vm.%47s %*d %*d %ld %ld", s->name, &s->stock,
			   &s->on) == 3)
			nr_switches++;
	}
	fclose(f);
	if (!nr_switches)
		errx(1, "%s has no row 'vm.NAME LOWEST HIGHEST STOCK ON'", path);
}

/* A kernel of another age may not have all of them. */
static void set_switches(const char *arm)
{
	bool on = !strcmp(arm, "on");
	int i;

	if (!on && strcmp(arm, "off"))
		return;
	for (i = 0; i < nr_switches; i++) {
		const struct vm_switch *s = &switches[i];
		int ret = vm_sysctl_write(s->name, on ? s->on : s->stock);

		if (ret && ret != -ENOENT)
			errx(1, "vm.%s: %s", s->name, strerror(-ret));
	}
}

/* --- the memory of an operation */

enum fill { FILL_4K, FILL_THP, FILL_HUGETLB, FILL_FILE, NR_FILLS };

static const char * const fill_names[NR_FILLS] = {
	[FILL_4K]	= "4k",
	[FILL_THP]	= "thp",
	[FILL_HUGETLB]	= "hugetlb",
	[FILL_FILE]	= "file",
};

static enum fill fill;
static size_t size;
static char *mem;		/* of the operation */
static char *hem;		/* around what mremap() moves */
static int file_fd = -1, uffd = -1;

static char *map_fixed(void *place, int flags)
{
	int fd = -1;
	char *p;

	if (fill == FILL_FILE) {
		file_fd = memfd_create("survey", MFD_CLOEXEC);
		if (file_fd < 0 || ftruncate(file_fd, size))
			err(1, "memfd of %zu MiB", size / MIB);
		fd = file_fd;
		flags |= MAP_SHARED;
	} else {
		flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	}
	if (fill == FILL_HUGETLB)
		flags |= MAP_HUGETLB;
	p = map_memory(place, size, flags, fd);
	if (fill == FILL_4K || fill == FILL_THP)
		madvise(p, size,
			fill == FILL_THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	return p;
}

static void map_empty(void)
{
	mem = map_fixed(NULL, 0);
}

static void populate_all(void)
{
	if (madvise(mem, size, MADV_POPULATE_WRITE))
		err(1, "%zu MiB: the guest needs more memory", size / MIB);
}

static void map_full(void)
{
	map_empty();
	populate_all();
}

static void unmap_all(void)
{
	if (mem)
		unmap(mem, size);
	mem = NULL;
	if (file_fd >= 0)
		close(file_fd);
	file_fd = -1;
}

/* --- operations; each returns 0, or -1 with errno */

static int do_munmap(void)
{
	int ret = munmap(mem, size);

	mem = NULL;
	return ret;
}

static int do_advice(int advice)
{
	return madvise(mem, size, advice);
}

static int do_dontneed(void)	{ return do_advice(MADV_DONTNEED); }
static int do_free(void)	{ return do_advice(MADV_FREE); }
static int do_cold(void)	{ return do_advice(MADV_COLD); }
static int do_pop_write(void)	{ return do_advice(MADV_POPULATE_WRITE); }
static int do_pop_read(void)	{ return do_advice(MADV_POPULATE_READ); }
static int do_mlock(void)	{ return mlock(mem, size); }
static int do_munlock(void)	{ return munlock(mem, size); }
static int do_mlockall(void)	{ return mlockall(MCL_CURRENT); }

/* Into the place of an empty mapping, so that nothing has to be searched. */
static int do_map_populate(void)
{
	map_fixed(mem, MAP_FIXED | MAP_POPULATE);
	return 0;
}

static int do_fixed(int prot)
{
	void *p = mmap(mem, size, prot, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE | MAP_FIXED, -1, 0);

	return p == MAP_FAILED ? -1 : 0;
}

static int do_fixed_none(void)	{ return do_fixed(PROT_NONE); }
static int do_fixed_rw(void)	{ return do_fixed(PROT_READ | PROT_WRITE); }

static int do_protect(int prot)
{
	return mprotect(mem, size, prot);
}

static int do_protect_r(void)	{ return do_protect(PROT_READ); }
static int do_protect_rw(void)	{ return do_protect(PROT_READ | PROT_WRITE); }
static int do_protect_none(void) { return do_protect(PROT_NONE); }

static void map_protected(void)
{
	map_full();
	if (do_protect_r())
		err(1, "mprotect");
}

static void map_locked(void)
{
	map_empty();
	if (do_mlock())
		err(1, "mlock");
}

static void unlock_all(void)
{
	munlockall();
	unmap_all();
}

/* As realloc() moves memory: something else is mapped behind it. */
static void map_hemmed(void)
{
	char *place;

	hem = mmap(NULL, size + 2 * HUGE_PAGE, PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (hem == MAP_FAILED)
		err(1, "mmap");
	/* Not congruent with the free place below; pages of hugetlb cannot grow. */
	place = hem + (fill == FILL_HUGETLB ? -(uintptr_t)hem % HUGE_PAGE :
					      PAGE);
	mem = map_fixed(place, MAP_FIXED);
	populate_all();
}

static int do_mremap(void)
{
	char *p = mremap(mem, size, size + PAGE, MREMAP_MAYMOVE);

	if (p == MAP_FAILED)
		return -1;
	mem = p;
	return 0;
}

static void unmap_moved(void)
{
	munmap(mem + size, PAGE);
	unmap_all();
	munmap(hem, size + 2 * HUGE_PAGE);
}

static int do_fork(void)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	return pid < 0 ? -1 : 0;
}

static void unmap_forked(void)
{
	while (wait(NULL) > 0)
		;
	unmap_all();
}

static int read_proc(const char *name)
{
	static char buf[1 << 16];
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		;
	close(fd);
	return n < 0 ? -1 : 0;
}

static int do_maps(void)	{ return read_proc("maps"); }
static int do_smaps(void)	{ return read_proc("smaps"); }
static int do_rollup(void)	{ return read_proc("smaps_rollup"); }
static int do_numa_maps(void)	{ return read_proc("numa_maps"); }

static int do_clear_refs(void)
{
	return write_text("/proc/self/clear_refs", "1") ? -1 : 0;
}

static int do_soft_dirty(void)
{
	return write_text("/proc/self/clear_refs", "4") ? -1 : 0;
}

/* Userfaultfd that write-protects. */
static void map_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_WP };

	map_full();
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	reg.range.start = (uintptr_t)mem;
	reg.range.len = size;
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) ||
	    ioctl(uffd, UFFDIO_REGISTER, &reg)) {
		if (uffd >= 0)
			close(uffd);
		uffd = -1;
	}
}

static int do_uffd_wp(void)
{
	struct uffdio_writeprotect wp = {
		.range = { (uintptr_t)mem, size },
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};

	return ioctl(uffd, UFFDIO_WRITEPROTECT, &wp);
}

static void map_uffd_protected(void)
{
	map_uffd();
	do_uffd_wp();
}

static int do_uffd_close(void)
{
	int ret = close(uffd);

	uffd = -1;
	return ret;
}

static void unmap_uffd(void)
{
	if (uffd >= 0)
		close(uffd);
	uffd = -1;
	unmap_all();
}

/* Buffers for I/O are pinned in one call. */
static int do_pin(void)
{
	struct io_uring_params params = { };
	struct iovec buffer = { mem, size };
	int fd = syscall(SYS_io_uring_setup, 1, &params), ret;

	if (fd < 0)
		return -1;
	ret = syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS,
		      &buffer, 1);
	close(fd);
	return ret;
}

static int do_mbind(void)
{
	unsigned long node = 1UL << 1;

	return syscall(SYS_mbind, mem, size, MPOL_BIND, &node, 8, MPOL_MF_MOVE);
}

/* Many mappings: neighbours differ, so that they do not merge. */
static void map_small(void)
{
	size_t len = SMALL_PAGES * PAGE;
	long i;

	mem = mmap(NULL, SMALL_MAPPINGS * len, PROT_READ,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED)
		err(1, "mmap");
	for (i = 0; i < SMALL_MAPPINGS; i += 2)
		if (mprotect(mem + i * len, len, PROT_READ | PROT_WRITE))
			err(1, "mprotect");
}

static int do_munmap_small(void)
{
	int ret = munmap(mem, SMALL_MAPPINGS * SMALL_PAGES * PAGE);

	mem = NULL;
	return ret;
}

static void unmap_small(void)
{
	while (wait(NULL) > 0)
		;
	if (mem)
		do_munmap_small();
}

static const struct operation {
	const char *name;
	void (*prepare)(void);
	int (*act)(void);
	void (*clean_up)(void);
} operations[] = {
	{ "munmap", map_full, do_munmap, unmap_all },
	{ "dontneed", map_full, do_dontneed, unmap_all },
	{ "free", map_full, do_free, unmap_all },
	{ "cold", map_full, do_cold, unmap_all },
	{ "map_populate", map_empty, do_map_populate, unmap_all },
	{ "populate_write", map_empty, do_pop_write, unmap_all },
	{ "populate_read", map_empty, do_pop_read, unmap_all },
	{ "mlock_empty", map_empty, do_mlock, unlock_all },
	{ "mlock", map_full, do_mlock, unlock_all },
	{ "munlock", map_locked, do_munlock, unlock_all },
	{ "mlockall", map_full, do_mlockall, unlock_all },
	{ "fixed_none", map_full, do_fixed_none, unmap_all },
	{ "fixed_rw", map_full, do_fixed_rw, unmap_all },
	{ "mprotect_r", map_full, do_protect_r, unmap_all },
	{ "mprotect_rw", map_protected, do_protect_rw, unmap_all },
	{ "mprotect_none", map_full, do_protect_none, unmap_all },
	{ "mremap", map_hemmed, do_mremap, unmap_moved },
	{ "fork", map_full, do_fork, unmap_forked },
	{ "smaps", map_full, do_smaps, unmap_all },
	{ "smaps_rollup", map_full, do_rollup, unmap_all },
	{ "numa_maps", map_full, do_numa_maps, unmap_all },
	{ "clear_refs", map_full, do_clear_refs, unmap_all },
	{ "soft_dirty", map_full, do_soft_dirty, unmap_all },
	{ "uffd_wp", map_uffd, do_uffd_wp, unmap_uffd },
	{ "uffd_close", map_uffd_protected, do_uffd_close, unmap_uffd },
	{ "pin", map_full, do_pin, unmap_all },
	{ "mbind_move", map_full, do_mbind, unmap_all },
	{ "munmap_small", map_small, do_munmap_small, unmap_small },
	{ "fork_small", map_small, do_fork, unmap_small },
	{ "maps_small", map_small, do_maps, unmap_small },
	{ "smaps_small", map_small, do_smaps, unmap_small },
};

/* --- the thread beside it */

struct wait {
	__u64 start, end;
};

static struct probe {
	pthread_t thread;
	enum { PROBE_MAP, PROBE_FAULT, PROBE_IDLE, PROBE_NONE } kind;
	long pause_us;
	char *place;
	size_t pages;
	struct wait *waits;
	long n;
} probe;

static atomic_bool probe_stop, probe_ready;

static void probe_act(void)
{
	void *p;

	if (probe.kind == PROBE_FAULT) {
		touch(probe.place + probe.n % probe.pages * PAGE);
		if (probe.n % probe.pages == probe.pages - 1)
			madvise(probe.place, probe.pages * PAGE, MADV_DONTNEED);
		return;
	}
	p = map_anon(PAGE);
	unmap(p, PAGE);
}

/* The CPU of this thread, or -1. */
static int probe_cpu = -1;

static void *probe_main(void *arg)
{
	if (probe_cpu >= 0)
		pin_to(probe_cpu);
	atomic_store(&probe_ready, true);
	while (!atomic_load(&probe_stop) && probe.n < (long)SAMPLES_MAX) {
		struct wait *wait = &probe.waits[probe.n];

		wait->start = now_ns();
		probe_act();
		wait->end = now_ns();
		probe.n++;
		if (probe.pause_us)
			usleep(probe.pause_us);
	}
	return NULL;
}

/* A thread of a process that has nothing to do, but may wake up at any time. */
static void *idle_main(void *arg)
{
	for (;;)
		pause();
	return NULL;
}

/* Does the other thread do anything? */
static bool probe_works(void)
{
	return probe.kind == PROBE_MAP || probe.kind == PROBE_FAULT;
}

static void probe_start(void)
{
	probe.n = 0;
	atomic_store(&probe_stop, false);
	atomic_store(&probe_ready, false);
	start_thread(&probe.thread, probe_main, NULL);
	while (!atomic_load(&probe_ready))
		usleep(100);
	usleep(2000);
}

/* Returns false if the host left the thread no time beside the operation. */
static bool report_waits(const char *name, int arm, __u64 from, __u64 to)
{
	double *ms = malloc(probe.n * sizeof(*ms) + 1);
	long i, n = 0;

	if (!ms)
		errx(1, "no memory for samples");
	for (i = 0; i < probe.n; i++)
		if (probe.waits[i].end > from && probe.waits[i].start < to)
			ms[n++] = (probe.waits[i].end - probe.waits[i].start) /
				  1e6;
	if (n) {
		sort_samples(ms, n);
		report(arm, "ms", (to - from) / 1e6, "%s_time", name);
		report(arm, "ms", ms[n - 1], "%s_wait_max", name);
		report(arm, "ms", p99(ms, n), "%s_wait_p99", name);
		report(arm, "of_call", ms[n - 1] * 1e6 / (to - from),
		       "%s_wait_ratio", name);
		report(arm, "operations", n, "%s_wait_n", name);
	}
	free(ms);
	return n;
}

/* --- one measurement */

static long settle_ms = SETTLE_MS;

static void settle(void)
{
	usleep(settle_ms * 1000);
}

/* A turn of bench_scene. */
static void measure(int arm, void *arg)
{
	const bool beside = probe_works();
	const struct operation *op = arg;
	int error, tries;
	__u64 from, to;
	char name[64];

	/* The small mappings are the same whatever --size and --fill say. */
	if (op->prepare == map_small)
		snprintf(name, sizeof(name), "%s", op->name);
	else
		snprintf(name, sizeof(name), "%s_%zum_%s", op->name, size / MIB,
			 fill_names[fill]);
	for (tries = 0; tries < 10; tries++) {
		bool ran = true;

		op->prepare();
		if (beside)
			probe_start();
		errno = 0;
		from = now_ns();
		error = op->act() ? errno : 0;
		to = now_ns();
		if (beside) {
			usleep(1000);
			atomic_store(&probe_stop, true);
			pthread_join(probe.thread, NULL);
		}
		op->clean_up();
		settle();
		if (error) {
			printf("# %s: %s: left out\n", name, strerror(error));
			return;
		}
		if (beside)
			ran = report_waits(name, arm, from, to);
		else
			report(arm, "ms", (to - from) / 1e6, "%s_alone", name);
		if (ran)
			return;
	}
	printf("# %s: the other thread did not run beside it: left out\n",
	       name);
}

int main(int argc, char **argv)
{
	static const char * const probes[] = {
		[PROBE_MAP]	= "map",
		[PROBE_FAULT]	= "fault",
		[PROBE_IDLE]	= "idle",
		[PROBE_NONE]	= "none",
	};
	static const char *table, *kind, *who, *cpus;
	static long mib = 512;
	static const struct bench_option options[] = {
		{ "size", "memory of an operation in MiB", &mib },
		{ "pause", "of the other thread between two calls, in us",
		  &probe.pause_us },
		{ "settle", "pause after an operation, in ms",
		  &settle_ms },
		{ "switches", "the table of the arms off and on",
		  .text = &table },
		{ "fill", "kind of memory: 4k, thp, hugetlb, file",
		  .text = &kind },
		{ "probe", "the other thread: map, fault, idle, none",
		  .text = &who },
		{ "cpus", "CPU,CPU: of this thread, and of the other one",
		  .text = &cpus },
		{ }
	};
	static struct bench_scene scenes[ARRAY_SIZE(operations) + 1];
	static const struct bench bench = {
		.prepare = set_switches, .options = options, .scenes = scenes,
	};
	int first, own_cpu;
	pthread_t idle;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(operations); i++)
		scenes[i] = (struct bench_scene){
			.name = operations[i].name,
			.about = "how long it holds up the other thread",
			.turn = measure, .arg = (void *)&operations[i],
		};
	rounds = 3;
	first = bench_parse(argc, argv, &bench);
	if (table)
		read_switches(table);
	if (kind)
		fill = find_name("kind of memory", kind, fill_names);
	if (who)
		probe.kind = find_name("probe", who, probes);
	if (cpus) {
		if (sscanf(cpus, "%d,%d", &own_cpu, &probe_cpu) != 2)
			errx(1, "--cpus %s: not CPU,CPU", cpus);
		pin_to(own_cpu);
	}
	if (probe.kind == PROBE_IDLE)
		start_thread(&idle, idle_main, NULL);
	size = mib * MIB;
	if (fill == FILL_HUGETLB && !huge_pool(size / HUGE_PAGE))
		errx(1, "%ld MiB: there is no memory for the huge pages", mib);
	probe.waits = calloc(SAMPLES_MAX, sizeof(*probe.waits));
	if (!probe.waits)
		errx(1, "no memory for samples");
	probe.pages = 4096;
	probe.place = map_anon(probe.pages * PAGE);
	madvise(probe.place, probe.pages * PAGE, MADV_NOHUGEPAGE);
	bench_scenes(argc, argv, first, &bench);
	if (fill == FILL_HUGETLB)
		huge_pool(0);
	return 0;
}
