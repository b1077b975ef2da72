/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common code of the guest programs of the benchmarks: arms, samples, clocks.
 */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "faultline_util.h"

#define __noreturn		__attribute__((__noreturn__))
#define __printf(a, b)		__attribute__((format(printf, a, b)))
#define ARRAY_SIZE(a)		(sizeof(a) / sizeof((a)[0]))

#define ARMS_MAX	8
#define SAMPLES_MAX	(512 * KIB)

/* The name of each program, for messages. */
extern const char bench_name[];
/* The path of the sysctl whose values are the arms. */
extern const char *bench_knob;

__printf(1, 2) __noreturn void die(const char *fmt, ...);

/* --- arms */
struct arm {
	const char *name;
	long value;		/* for the knob; -1: leave it alone */
};

extern struct arm arms[ARMS_MAX];
extern int nr_arms;

/* Parses names and values, separated by commas. */
void parse_arms(char *list);
/* Writes the knob, unless the arm leaves it alone. */
void set_arm(int arm);
/* Even rounds: arms 0 1 2; odd rounds: arms 2 1 0. */
int arm_of_turn(long round, int turn);

/* --- samples */

/* Prints "sample METRIC UNIT ARM VALUE". */
__printf(4, 5) void report(int arm, const char *unit, double value,
			   const char *metric, ...);
/* While set, report() prints nothing: for warm-up turns. */
void report_quietly(bool on);
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

/* --- CPUs: pins the thread to one CPU */
void pin_to(int cpu);

/* --- processes: of 64-bit kernels, include/linux/threads.h */
#define PID_MAX		(4L << 20)

/* Ends this process with its parent, even if that is killed, or was before. */
void end_with(pid_t parent);

/* --- command line */

#define OPTION_MAX	(1L << 20)

/* An option with an argument: a number above 0, or a text. */
struct bench_option {
	const char *name;
	long *number;
	long max;		/* for a number; 0: OPTION_MAX */
	const char **text;
};

/*
 * Parses the options of a program and the common --arms and --help; exits after
 * an error or --help.  Other arguments are scenes: at least one, or none.
 * Returns the index of the first.
 */
int parse_options(int argc, char **argv, const struct bench_option *options,
		  int n, bool scenes, void (*usage)(FILE *to));
/* Returns the index of a name; @what is for the error message. */
int find_name(const char *what, const char *text, const char * const *names,
	      int n);

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

/* A write to memory that the compiler must not drop. */
static inline void touch(char *p)
{
	__atomic_store_n(p, 1, __ATOMIC_RELAXED);
}

#endif /* BENCH_UTIL_H */
