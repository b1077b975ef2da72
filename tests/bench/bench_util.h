/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the guest programs of the benchmarks share: arms, samples, clocks.
 */
#ifndef BENCH_UTIL_H
#define BENCH_UTIL_H

#include <linux/types.h>
#include <stddef.h>
#include <time.h>

#define __noreturn		__attribute__((__noreturn__))
#define __printf(a, b)		__attribute__((format(printf, a, b)))
#define ARRAY_SIZE(a)		(sizeof(a) / sizeof((a)[0]))

#define KIB		1024UL
#define MIB		(1024UL * KIB)
#define GIB		(1024UL * MIB)
#define ARMS_MAX	8
#define SAMPLES_MAX	(512 * KIB)

/* Each program says who it is: messages begin with it. */
extern const char bench_name[];

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
/* Round 0: arms 0 1 2; round 1: arms 2 1 0; and so on. */
int arm_of_turn(long round, int turn);

/* --- samples */

/* Prints "sample METRIC UNIT ARM VALUE". */
__printf(4, 5) void report(int arm, const char *unit, double value,
			   const char *metric, ...);
void sort_samples(double *samples, size_t n);
/* Of samples that are sorted; there must be one. */
double p99(const double *samples, size_t n);

/* --- command line */

/* A number above 0, of an option's text. */
long count_option(const char *option, const char *text);
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
