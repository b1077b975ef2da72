/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common code of the measuring programs: arms, samples, clocks.
 *
 * A program prints one line per measurement:
 *
 *	sample METRIC UNIT ARM VALUE
 *
 * An arm is a value of a sysctl, or a name for the kernel as it is.  The arms
 * take turns within a round, in alternating order, so that any drift on the host
 * affects all of them equally.  The program that starts this one computes
 * medians, tables and verdicts.
 */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <err.h>
#include <linux/types.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "faultline_util.h"

#define __printf(a, b)		__attribute__((format(printf, a, b)))
#define ARRAY_SIZE(a)		(sizeof(a) / sizeof((a)[0]))

#define SAMPLES_MAX	(512 * KIB)

/* --- a program: its options and its scenes; both lists end with { } */

#define OPTION_MAX	(1L << 20)

/* An option with an argument: a number above 0, or a text. */
struct bench_option {
	const char *name, *about;
	long *number;
	long max;		/* for a number; 0: OPTION_MAX */
	const char **text;
};

struct bench_scene {
	const char *name, *about;
	void (*run)(void *arg);
	void *arg;
	/* Instead of @run: a warm-up, and --rounds turns of each arm. */
	void (*turn)(int arm, void *arg);
};

struct bench {
	/* vm.KNOB, whose values are arms; NULL: arms are only names. */
	const char *knob;
	const struct bench_option *options;
	/* NULL: the program has a list of its own, which @help describes. */
	const struct bench_scene *scenes;
	void (*help)(FILE *to);	/* may be NULL */
	/* Prepares the kernel for an arm that is a name; may be NULL. */
	void (*prepare)(const char *arm);
};

/*
 * Parses the options of a program and the common --arms, --rounds and --help;
 * exits after an error or --help.  Returns the index of the first scene on the
 * command line; there is at least one.
 */
int bench_parse(int argc, char **argv, const struct bench *bench);
/* Runs the scenes on the command line, in the order of the program's list. */
void bench_scenes(int argc, char **argv, int first, const struct bench *bench);

/*
 * The index of an element by its name, which is its first member; @what is for
 * the error message.
 */
#define find_name(what, text, array)					\
	find_in_array(what, text, array, ARRAY_SIZE(array), sizeof((array)[0]))
int find_in_array(const char *what, const char *text, const void *array, int n,
		  size_t size);

/* --- arms */

/* --rounds; a program may set another default. */
extern long rounds;

/*
 * Sets each arm in turn and calls @turn, @n times.  Even rounds: arms 0 1 2; odd
 * rounds: arms 2 1 0.
 */
void run_turns(long n, void (*turn)(int arm, void *arg), void *arg);
/* The same once, and nothing is reported. */
void warm_up(void (*turn)(int arm, void *arg), void *arg);

/* --- samples */

/* Prints "sample METRIC UNIT ARM VALUE". */
__printf(4, 5) void report(int arm, const char *unit, double value,
			   const char *metric, ...);
void sort_samples(double *samples, size_t n);
/* Of sorted samples; there must be at least one. */
double p99(const double *samples, size_t n);

/* --- kernel counters */

/* Reports the increase of each, as WHAT_vmstat_NAME. */
void report_counters(const char *what, int arm, const struct counters *before);

/* A trace event to count, with a filter; the name is the name of the count. */
struct event_count {
	const char *name, *event, *filter;
};

/* Starts counting; returns false if this kernel cannot trace. */
bool events_open(const struct event_count *events, int n);
/* Returns the number of events since then. */
unsigned long events_counted(const struct event_count *event);
void events_close(const struct event_count *events, int n);

/* --- CPUs and threads */

/* Pins the thread to one CPU. */
void pin_to(int cpu);
void start_thread(pthread_t *thread, void *(*run)(void *), void *arg);

/* --- processes: of 64-bit kernels, include/linux/threads.h */
#define PID_MAX		(4L << 20)

/* Ends this process with its parent, even if that is killed, or was before. */
void end_with(pid_t parent);

/* Sets the size of the pool of huge pages; false: there is no memory for it. */
bool huge_pool(long pages);

/* --- time and memory: inline, as calls would be measured as well */

/*
 * The finest clock available.  With QEMU's "-icount shift=0" a tick of the TSC
 * is one instruction.
 */
static inline __u64 ticks(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

/* A mapping that can be written, at a free place or at @place. */
static inline char *map_memory(void *place, size_t len, int flags, int fd)
{
	char *p = mmap(place, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		err(1, "mmap of %zu KiB", len / KIB);
	return p;
}

/* Private and anonymous. */
static inline char *map_anon(size_t len)
{
	return map_memory(NULL, len, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static inline void unmap(void *p, size_t len)
{
	if (munmap(p, len))
		err(1, "munmap");
}

/* A write to memory that the compiler must not drop. */
static inline void touch(char *p)
{
	__atomic_store_n(p, 1, __ATOMIC_RELAXED);
}

#endif /* BENCH_UTIL_H */
