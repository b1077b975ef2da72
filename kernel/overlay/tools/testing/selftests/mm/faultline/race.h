/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The frame of all races.  A variant of a test sets a switch, or changes it all
 * the time, and the race goes on until all that the test expects has happened.
 *
 * A program defines race_feature, and embeds struct race_run.
 */
#ifndef RACE_H
#define RACE_H

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../kselftest_harness.h"
#include "faultline_util.h"

/* Of a test, in seconds. */
#define TIMEOUT		900
/* A race that lacks something gives up after this time, in ns. */
#define LAST_NS		(300 * 1000000000ULL)
/* More than these flips have to happen beside a race. */
#define FEW_FLIPS	10

/* FAULTLINE_SECONDS: how long a race lasts. */
static long opt_seconds = 5;
/* The rest of TIMEOUT is for what comes before and after it. */
#define SECONDS_MAX	600

/* env_number() for such a length. */
static bool env_seconds(const char *name, long *value)
{
	if (!env_number(name, value))
		return false;
	if (*value <= SECONDS_MAX)
		return true;
	fprintf(stderr, "%s=%ld: a race is ended after %d s; at most %d\n",
		name, *value, TIMEOUT, SECONDS_MAX);
	return false;
}

struct race_feature {
	const struct vm_knob *knob;
	const struct flips *flips;
	const char *counters;	/* their prefix */
};

static const struct race_feature race_feature;

/* One run of a test; in shared memory, if the test has several processes. */
struct race_run {
	bool flip;
	struct counters before;
	struct flipper flipper;
	atomic_bool stop;
	atomic_bool cannot;	/* the kernel lacks what the test needs */
	atomic_long acts;
	atomic_long wrong;	/* contents or outcomes */
	atomic_long failed;	/* calls that must not fail, but did */
};

/* Shared by the processes of a test; each program has its own. */
struct world;

/* Sets the switch; returns NULL, or the reason why the race cannot run. */
static inline const char *run_set(struct race_run *run, long value, bool flip)
{
	run->flip = flip;
	return race_prepare(race_feature.knob, value,
			    flip ? race_feature.flips : NULL);
}

/* Begins to count, and to change the switch. */
static inline void run_begin(struct __test_metadata *_metadata,
			     struct race_run *run)
{
	run->before = counters_read(race_feature.counters);
	if (run->flip)
		ASSERT_EQ(0, flipper_start(&run->flipper, race_feature.flips,
					   3));
}

static inline bool run_has_flipped(const struct race_run *run)
{
	return !run->flip || atomic_load(&run->flipper.count) > FEW_FLIPS;
}

static inline void run_fork(struct __test_metadata *_metadata,
			    struct world *w, pid_t *pids, int n,
			    int (*process)(struct world *w, int id))
{
	int i;

	for (i = 0; i < n; i++) {
		pids[i] = fork_bound();
		ASSERT_LE(0, pids[i]);
		if (!pids[i])
			_exit(process(w, i));
	}
}

static inline bool process_has_ended(void)
{
	siginfo_t info = { };

	return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) &&
	       info.si_pid;
}

/* A slow machine gets more time, until all has happened at least once. */
static inline void run_wait(struct __test_metadata *_metadata,
			    struct race_run *run, struct world *w,
			    const pid_t *pids, int n,
			    bool (*has_raced)(const struct world *w))
{
	__u64 began = now_ns(), ns = 0;
	int i;

	while (!atomic_load(&run->wrong) && !atomic_load(&run->cannot) &&
	       !process_has_ended() &&
	       (ns < opt_seconds * 1000000000ULL ||
		(ns < LAST_NS && !(run_has_flipped(run) && has_raced(w))))) {
		usleep(100000);
		ns = now_ns() - began;
	}
	atomic_store(&run->stop, true);
	for (i = 0; i < n; i++)
		EXPECT_EQ(0, reap(pids[i]));
	flipper_stop(&run->flipper);
}

/* Ends a run, of a test that may have failed. */
static inline void run_end(struct race_run *run)
{
	atomic_store(&run->stop, true);
	flipper_stop(&run->flipper);
}

/* Returns the differences of the counters. */
static inline struct counters run_report(struct __test_metadata *_metadata,
					 struct race_run *run)
{
	struct counters d = counters_since(&run->before);

	TH_LOG("%ld acts, %ld flips", atomic_load(&run->acts),
	       atomic_load(&run->flipper.count));
	TH_LOG("counters:%s", counters_text(&d));
	EXPECT_EQ(0, atomic_load(&run->wrong));
	EXPECT_EQ(0, atomic_load(&run->failed));
	EXPECT_TRUE(run_has_flipped(run));
	return d;
}

/*
 * A test of @fixture in which threads call act_NAME() again and again, for programs
 * with a struct race_op, whose fields follow, and a function race().
 */
#define RACE_OF(fixture, name, ...)					\
	TEST_F_TIMEOUT(fixture, name, TIMEOUT)				\
	{								\
		static const struct race_op op = {			\
			.act = act_##name, __VA_ARGS__			\
		};							\
									\
		race(_metadata, self, &op);				\
	}

#endif /* RACE_H */
