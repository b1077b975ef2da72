/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the guest programs of the benchmarks share: arms, samples, clocks.
 */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#define __noreturn		__attribute__((__noreturn__))
#define __printf(a, b)		__attribute__((format(printf, a, b)))
#define ARRAY_SIZE(a)		(sizeof(a) / sizeof((a)[0]))

#define KIB		1024UL
#define MIB		(1024UL * KIB)
#define GIB		(1024UL * MIB)
#define ARMS_MAX	8
#define SAMPLES_MAX	(512 * KIB)
#define COUNTERS_MAX	32

/* Each program says who it is: messages begin with it. */
extern const char bench_name[];
/* And which sysctl its arms are values of: a path. */
extern const char bench_knob[];

__printf(1, 2) __noreturn void die(const char *fmt, ...);

/* --- arms */
struct arm {
	const char *name;
	long value;		/* of the knob; -1: leave it alone */
};

extern struct arm arms[ARMS_MAX];
extern int nr_arms;

/* Names and values, with a comma between two of them. */
void parse_arms(char *list);
/* Writes the knob, unless the arm leaves it alone. */
void set_arm(int arm);
/* Round 0: arms 0 1 2; round 1: arms 2 1 0; and so on. */
int arm_of_turn(long round, int turn);

/* --- samples */

/* Prints "sample METRIC UNIT ARM VALUE". */
__printf(4, 5) void report(int arm, const char *unit, double value,
			   const char *metric, ...);
/* While on, report() prints nothing: for a turn that only warms up. */
void report_quietly(bool on);
void sort_samples(double *samples, size_t n);
/* Of samples that are sorted; there must be one. */
double p99(const double *samples, size_t n);

/* --- what the kernel counts */

/* The lines of /proc/vmstat that begin alike; their names without that. */
struct counters {
	const char *prefix;
	char names[COUNTERS_MAX][48];
	unsigned long values[COUNTERS_MAX];
	int n;
};

/* A kernel without the feature has none of them. */
struct counters read_counters(const char *prefix);
/* Reports how much each has grown, as WHAT_vmstat_NAME. */
void report_counters(const char *what, int arm, const struct counters *before);

/* A trace event to be counted, with a filter; the name is that of the count. */
struct event_count {
	const char *name, *event, *filter;
};

/* Starts to count; false if this kernel cannot trace. */
bool events_open(const struct event_count *events, int n);
/* How many there were since. */
unsigned long events_counted(const struct event_count *event);
void events_close(const struct event_count *events, int n);

/* --- CPUs: the thread runs on this one only */
void pin_to(int cpu);

/* --- files; false, with errno, if it was not written */
bool write_text(const char *path, const char *text);

/* --- command line */

#define OPTION_MAX	(1L << 20)

/* An option with an argument: a number above 0, or a text as it is. */
struct bench_option {
	const char *name;
	long *number;
	long max;		/* of the number; 0: OPTION_MAX */
	const char **text;
};

/*
 * Parses the options of a program, and --arms and --help, which all have; ends
 * the program if there is something wrong, or help was asked for.  Other arguments
 * are scenes: at least one, or none.  Returns the index of the first.
 */
int parse_options(int argc, char **argv, const struct bench_option *options,
		  int n, bool scenes, void (*usage)(FILE *to));
/* The index of a name; @what it is the name of is for the message. */
int find_name(const char *what, const char *text, const char * const *names,
	      int n);

/* --- time and memory: inline, as calls would be measured, too */

static inline __u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/*
 * The finest clock there is.  With QEMU's "-icount shift=0" a tick of the
 * TSC is one instruction.
 */
static inline __u64 ticks(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

/* One write to memory, which the compiler may not drop. */
static inline void touch(char *p)
{
	__atomic_store_n(p, 1, __ATOMIC_RELAXED);
}

#endif /* BENCH_UTIL_H */
