// SPDX-License-Identifier: GPL-2.0-only
/*
 * Micro-benchmarks under the names by which will-it-scale, pft and
 * vm-scalability know them: own code with the same metrics.
 *
 * Prints "skipped: REASON" for a test that cannot run here.  An arm is only a
 * name: the caller sets the switches.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_util.h"

#define TASKS_MAX	256
#define PAGE		4096UL
#define REGION		(16 * MIB)
#define HUGE_PAGE	(2 * MIB)
#define COW_REGION	(512 * KIB)

/* --- tasks: threads, or processes with one thread each */

struct task {
	_Alignas(128) atomic_ulong ops;
	atomic_ulong cpu_ns;	/* used until the last operation; for pft */
	unsigned long base_ops;	/* until the end of the warm-up; for pft */
	unsigned long base_cpu_ns;
	int nr;
	int fd;			/* of tests with files */
	char *area;		/* of case-anon-w-seq-mt */
};

struct shared {
	atomic_bool stop;
	atomic_bool warm;	/* the warm-up is over */
	atomic_int ready;
	struct task tasks[TASKS_MAX];
};

static struct shared *shared;

static bool stopped(void)
{
	return atomic_load_explicit(&shared->stop, memory_order_relaxed);
}

/* Only the task itself writes its counter. */
static void count(struct task *task, unsigned long n)
{
	unsigned long ops = atomic_load_explicit(&task->ops,
						 memory_order_relaxed);

	atomic_store_explicit(&task->ops, ops + n, memory_order_relaxed);
}

/* --- the tests: one iteration each */

static char *map_small(size_t len, int flags)
{
	char *p = map_memory(NULL, len, MAP_PRIVATE | MAP_ANONYMOUS | flags,
			     -1);

	madvise(p, len, MADV_NOHUGEPAGE);
	return p;
}

static void write_pages(struct task *task, char *p, size_t len, size_t step)
{
	size_t off;

	for (off = 0; off < len && !stopped(); off += step) {
		touch(p + off);
		count(task, 1);
	}
}

static void fault_anon(struct task *task, size_t len)
{
	char *p = map_small(len, 0);

	write_pages(task, p, len, PAGE);
	unmap(p, len);
}

static void fault_file(struct task *task, int flags)
{
	char *p = map_memory(NULL, REGION, flags, task->fd);

	write_pages(task, p, REGION, PAGE);
	unmap(p, REGION);
}

static void page_fault1(struct task *task)
{
	fault_anon(task, REGION);
}

static void page_fault2(struct task *task)
{
	fault_file(task, MAP_PRIVATE);
}

static void page_fault3(struct task *task)
{
	fault_file(task, MAP_SHARED);
}

static void mmap1(struct task *task)
{
	unmap(map_anon(REGION), REGION);
	count(task, 1);
}

static void mmap2(struct task *task)
{
	unmap(map_memory(NULL, REGION, MAP_SHARED, task->fd), REGION);
	count(task, 1);
}

static void malloc_free(struct task *task, size_t len)
{
	char *p = malloc(len);

	if (!p)
		err(1, "malloc of %zu bytes", len);
	touch(p);
	free(p);
	count(task, 1);
}

static void malloc1(struct task *task)
{
	malloc_free(task, 128 * MIB);
}

static void malloc2(struct task *task)
{
	malloc_free(task, KIB);
}

static void brk1(struct task *task)
{
	char *p = sbrk(PAGE);

	if (p == (void *)-1)
		err(1, "sbrk");
	touch(p);
	if (sbrk(-(long)PAGE) == (void *)-1)
		err(1, "sbrk");
	count(task, 1);
}

static void unmap_pages(struct task *task)
{
	char *p = map_small(MIB, 0);

	if (madvise(p, MIB, MADV_POPULATE_WRITE))
		err(1, "MADV_POPULATE_WRITE");
	unmap(p, MIB);
	count(task, 1);
}

static void *nothing(void *arg)
{
	return arg;
}

static void threadspawn1(struct task *task)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, nothing, NULL) ||
	    pthread_join(thread, NULL))
		errx(1, "cannot start a thread");
	count(task, 1);
}

static unsigned long cpu_time(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec * 1000000000UL + used.tv_nsec;
}

/*
 * Counts whole regions, as the CPU time is read between them: small ones, which
 * fit into a turn on a slow machine as well.
 */
static void pft(struct task *task)
{
	if (!task->base_cpu_ns && atomic_load(&shared->warm)) {
		task->base_ops = atomic_load(&task->ops);
		task->base_cpu_ns = cpu_time();
	}
	fault_anon(task, MIB);
	if (task->base_cpu_ns)
		atomic_store(&task->cpu_ns, cpu_time() - task->base_cpu_ns);
}

/* All tasks write to one mapping, each to its own part. */
static void anon_w_seq_mt(struct task *task)
{
	write_pages(task, task->area, REGION, PAGE);
	if (madvise(task->area, REGION, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
}

/* The child writes to each page that it shares with its parent. */
static void anon_cow_seq(struct task *task)
{
	char *p = map_small(COW_REGION, MAP_POPULATE);
	size_t off;
	pid_t pid;

	while (!stopped()) {
		pid = fork();
		if (pid < 0)
			err(1, "fork");
		if (!pid) {
			for (off = 0; off < COW_REGION; off += PAGE)
				touch(p + off);
			_exit(0);
		}
		if (reap(pid))
			errx(1, "a child failed: is there too little memory?");
		count(task, COW_REGION / PAGE);
	}
	unmap(p, COW_REGION);
}

static void hugetlb(struct task *task)
{
	char *p = map_memory(NULL, HUGE_PAGE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);

	write_pages(task, p, HUGE_PAGE, HUGE_PAGE);
	unmap(p, HUGE_PAGE);
}

enum { FILES = 1, THREADS = 2, PROCESSES = 4, HUGE = 8, AREA = 16, CPU = 32 };

static const struct test {
	const char *name;
	void (*run)(struct task *task);
	int needs;
	const char *unit, *about;
} tests[] = {
	{ "page_fault1", page_fault1, 0, "faults/s",
	  "write to each page of anonymous memory, then unmap it" },
	{ "page_fault2", page_fault2, FILES, "faults/s",
	  "the same with a private mapping of a file" },
	{ "page_fault3", page_fault3, FILES, "faults/s",
	  "the same with a shared mapping of a file" },
	{ "mmap1", mmap1, 0, "ops/s", "map and unmap anonymous memory" },
	{ "mmap2", mmap2, FILES, "ops/s", "map and unmap a file" },
	{ "malloc1", malloc1, 0, "ops/s", "malloc and free 128 MiB" },
	{ "malloc2", malloc2, 0, "ops/s", "malloc and free 1 KiB" },
	{ "brk1", brk1, PROCESSES, "ops/s",
	  "move the break by a page and back; only processes" },
	{ "unmap", unmap_pages, 0, "ops/s", "populate and unmap 1 MiB" },
	{ "threadspawn1", threadspawn1, 0, "ops/s", "start and join a thread" },
	{ "pft", pft, CPU, "faults/cpu_s",
	  "anonymous faults per second of CPU time" },
	{ "case-anon-w-seq-mt", anon_w_seq_mt, THREADS | AREA, "faults/s",
	  "write to one mapping, each task to its part; only threads" },
	{ "case-anon-cow-seq", anon_cow_seq, 0, "faults/s",
	  "fork, and let the child write to each shared page" },
	{ "case-hugetlb", hugetlb, HUGE, "faults/s",
	  "map, write to and unmap a 2 MiB huge page" },
};

/* --- a turn */

static const struct test *running;
static long nr_tasks = 1, turn_ms = 1000;
/* Until operations count. */
#define WARM_MS		200
/* After a turn, until one has been counted. */
#define MORE_MS		60000
static bool processes;
static int cpus[TASKS_MAX], nr_cpus;

static void find_cpus(void)
{
	cpu_set_t set;
	int cpu;

	if (sched_getaffinity(0, sizeof(set), &set))
		err(1, "cannot read which CPUs are allowed");
	for (cpu = 0; cpu < CPU_SETSIZE && nr_cpus < TASKS_MAX; cpu++)
		if (CPU_ISSET(cpu, &set))
			cpus[nr_cpus++] = cpu;
}

static void *task_main(void *arg)
{
	struct task *task = arg;

	pin_to(cpus[task->nr % nr_cpus]);
	atomic_fetch_add(&shared->ready, 1);
	while (!stopped())
		running->run(task);
	return NULL;
}

static unsigned long sum_ops(void)
{
	unsigned long sum = 0;
	long i;

	for (i = 0; i < nr_tasks; i++)
		sum += atomic_load(&shared->tasks[i].ops);
	return sum;
}

/* Operations per second of CPU time, of tasks that have ended. */
static double ops_per_cpu(void)
{
	unsigned long ops = 0, ns = 0;
	long i;

	for (i = 0; i < nr_tasks; i++) {
		struct task *task = &shared->tasks[i];

		/* Did it spend all of its turn in one region? */
		if (!atomic_load(&task->cpu_ns))
			continue;
		ops += atomic_load(&task->ops) - task->base_ops;
		ns += atomic_load(&task->cpu_ns);
	}
	return ns ? ops * 1e9 / ns : 0;
}

static pid_t pids[TASKS_MAX];

static void kill_tasks(void)
{
	long i;

	for (i = 0; i < nr_tasks; i++)
		if (pids[i] > 0)
			kill(pids[i], SIGKILL);
}

/* Sleeps; a process that has ended meanwhile is an error. */
static void wait_ms(long ms)
{
	__u64 end = now_ns() + ms * 1000000ULL;
	long i;

	do {
		usleep(1000);
		for (i = 0; processes && i < nr_tasks; i++) {
			if (waitpid(pids[i], NULL, WNOHANG) != pids[i])
				continue;
			pids[i] = 0;
			kill_tasks();
			errx(1, "%s: a task ended early", running->name);
		}
	} while (now_ns() < end);
}

static void start_task(struct task *task, pthread_t *thread)
{
	if (!processes) {
		start_thread(thread, task_main, task);
		return;
	}
	/* Also when this program is killed, no task is left. */
	pids[task->nr] = fork_bound();
	if (pids[task->nr] < 0) {
		kill_tasks();
		err(1, "fork");
	}
	if (!pids[task->nr]) {
		task_main(task);
		_exit(0);
	}
}

static void end_task(int nr, pthread_t thread)
{
	if (!processes) {
		pthread_join(thread, NULL);
	} else if (reap(pids[nr])) {
		pids[nr] = 0;
		kill_tasks();
		errx(1, "%s: a task failed", running->name);
	}
	pids[nr] = 0;
}

/* Is there an operation to count? */
static bool has_ops(unsigned long before)
{
	long i;

	if (!(running->needs & CPU))
		return sum_ops() > before;
	for (i = 0; i < nr_tasks; i++)
		if (atomic_load(&shared->tasks[i].cpu_ns))
			return true;
	return false;
}

static void one_turn(int arm, void *unused)
{
	unsigned long ops, before;
	double rate;
	pthread_t threads[TASKS_MAX] = { };
	char *area = NULL;
	__u64 from, ns;
	long i;

	memset(shared, 0, sizeof(*shared));
	if (running->needs & AREA)
		area = map_small(REGION * nr_tasks, MAP_NORESERVE);
	for (i = 0; i < nr_tasks; i++) {
		struct task *task = &shared->tasks[i];

		task->nr = i;
		task->area = area ? area + i * REGION : NULL;
		task->fd = -1;
		if (!(running->needs & FILES))
			continue;
		task->fd = memfd_create("bench", MFD_CLOEXEC);
		if (task->fd < 0 || ftruncate(task->fd, REGION))
			err(1, "memfd");
	}
	for (i = 0; i < nr_tasks; i++)
		start_task(&shared->tasks[i], &threads[i]);
	while (atomic_load(&shared->ready) < nr_tasks)
		wait_ms(1);
	wait_ms(WARM_MS);
	before = sum_ops();
	from = now_ns();
	atomic_store(&shared->warm, true);
	wait_ms(turn_ms);
	/* Longer, if a busy host has left the tasks no time. */
	for (i = 0; !has_ops(before) && i < MORE_MS; i++)
		wait_ms(1);
	ops = sum_ops() - before;
	ns = now_ns() - from;
	atomic_store(&shared->stop, true);
	for (i = 0; i < nr_tasks; i++)
		end_task(i, threads[i]);
	rate = running->needs & CPU ? ops_per_cpu() : ops * 1e9 / ns;
	for (i = 0; i < nr_tasks; i++)
		if (shared->tasks[i].fd >= 0)
			close(shared->tasks[i].fd);
	if (area)
		unmap(area, REGION * nr_tasks);
	if (rate <= 0)
		errx(1, "%s: no operation in %lu ms; use a longer --ms",
		     running->name, (unsigned long)(ns / 1000000));
	report(arm, running->unit, rate, "%s_%s_%ld", running->name,
	       processes ? "processes" : "threads", nr_tasks);
}

/* Returns why the test cannot run, or NULL. */
static const char *reason_to_skip(const struct test *test)
{
	void *p;

	if ((test->needs & THREADS) && processes)
		return "it is about threads; use --mode threads";
	if ((test->needs & PROCESSES) && !processes)
		return "threads share the break; use --mode processes";
	if (test->needs & HUGE) {
		p = mmap(NULL, nr_tasks * HUGE_PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		if (p == MAP_FAILED)
			return "too few free 2 MiB huge pages for the tasks; set vm.nr_hugepages";
		munmap(p, nr_tasks * HUGE_PAGE);
	}
	return NULL;
}

static void run_test(const struct test *test)
{
	const char *reason = reason_to_skip(test);

	if (reason) {
		printf("skipped: %s: %s\n", test->name, reason);
		fflush(stdout);
		return;
	}
	running = test;
	run_turns(rounds, one_turn, NULL);
}

/* --- command line */

static void list_tests(FILE *to)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(tests); i++)
		fprintf(to, "  %-18s  %s\n", tests[i].name, tests[i].about);
}

int main(int argc, char **argv)
{
	static const char *mode = "threads";
	static long parent;
	static const struct bench_option options[] = {
		{ "mode", "what tasks are: threads (default) or processes",
		  .text = &mode },
		{ "parent", "the process that started this one, which ends with it",
		  .number = &parent, .max = PID_MAX },
		{ "tasks", "how many (1)", .number = &nr_tasks,
		  .max = TASKS_MAX },
		{ "ms", "duration of a turn (1000), after 0.2 s of warm-up",
		  .number = &turn_ms, .max = 3600 * 1000 },
		{ }
	};
	static const struct bench bench = {
		.options = options, .help = list_tests,
	};
	static const char * const modes[] = { "threads", "processes" };
	bool wanted[ARRAY_SIZE(tests)] = { };
	size_t i;
	int n;

	rounds = 3;
	for (n = bench_parse(argc, argv, &bench); n < argc; n++) {
		if (!strcmp(argv[n], "all"))
			memset(wanted, true, sizeof(wanted));
		else
			wanted[find_name("test", argv[n], tests)] = true;
	}
	processes = find_name("mode", mode, modes);
	/* faultline-bench puts the switches back, even when it is killed. */
	end_with(parent ? parent : getppid());
	find_cpus();
	shared = map_shared(sizeof(*shared));
	if (!shared)
		errx(1, "no memory for tasks");
	for (i = 0; i < ARRAY_SIZE(tests); i++)
		if (wanted[i])
			run_test(&tests[i]);
	return 0;
}
