/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Races in rounds against a call that works by sections: munmap_race.c and
 * madvise_race.c define section_call, and their tests with struct race_ops.
 *
 * A round prepares a range of memory, and then the main thread makes the call
 * while racer threads act beside it.  A test counts how often it acted while
 * the call was at work (hits); with the switch on, a test that never did fails,
 * because it has not tested anything.
 *
 * Variants: "off" (the test itself must hold on stock), "on" (the smallest
 * sections, so the most windows), "flip" (the knob changes continuously).
 */
#ifndef SECTION_RACE_H
#define SECTION_RACE_H

#include <fcntl.h>
#include <sys/mman.h>

#include "race.h"

#define MAX_RACERS	4

/* FAULTLINE_MIB: what a round maps; 0: section_call.range. */
static long opt_mib;

struct race;

struct race_ops {
	int racers;
	/* Creates the range; default: filled base pages. */
	bool (*prepare)(struct race *r);
	/* In each racer thread, once per round, from the start of the call. */
	void (*racer)(struct race *r, int id);
	/* In the main thread: 0 or -errno; default: that of section_call. */
	int (*call)(struct race *r);
	/* After each round, when all threads wait; false stops the test. */
	bool (*verify)(struct race *r);
	/* Whether the test has met all its cases; default: one hit. */
	bool (*enough)(struct race *r);
};

struct race {
	struct race_run run;
	bool on;
	struct idle_thread idle;
	const struct race_ops *ops;
	char *start;
	size_t len;
	__u64 tag;		/* of the pages of this round */
	pthread_barrier_t barrier;
	pthread_t threads[MAX_RACERS];
	atomic_bool done;	/* this round's call has returned */
	int ret;		/* what it returned: 0 or -errno */
	atomic_long hits;	/* acts while the call was at work */
	long rounds;
	int mem_fd;		/* /proc/self/mem */
	void *data;
};

struct section_call {
	__u64 tag;
	size_t range;		/* bytes that a round maps, see race_range() */
	int (*call)(struct race *r);
	bool (*verify)(struct race *r);
	/* Unmaps the range after verify; may be NULL. */
	void (*release)(struct race *r);
};

static const struct section_call section_call;

/* Several sections: the smallest is what a page table maps. */
static inline size_t race_range(void)
{
	size_t range = opt_mib ? opt_mib * MIB : section_call.range;

	return range > 8 * pmd_size() ? range : 8 * pmd_size();
}

/* Reads the environment.  Returns false if a variable is not a number. */
static inline bool race_options(void)
{
	/* Of the variant "on"; see race_ns(). */
	opt_seconds = 8;
	return env_seconds("FAULTLINE_SECONDS", &opt_seconds) &&
	       env_number("FAULTLINE_MIB", &opt_mib);
}

FIXTURE(race) {
	struct race r;
};

FIXTURE_VARIANT(race) {
	bool on;
	bool flip;
};

FIXTURE_VARIANT_ADD(race, off) { .on = false };
FIXTURE_VARIANT_ADD(race, on) { .on = true };
FIXTURE_VARIANT_ADD(race, flip) { .on = true, .flip = true };

FIXTURE_SETUP(race)
{
	/* The smallest section is what a page table maps. */
	const char *why = run_set(&self->r.run,
				   variant->on ? pmd_size() / KIB : 0,
				   variant->flip);

	if (why)
		SKIP(return, "%s", why);
	/* Some tests map two ranges, and fork copies one. */
	if (meminfo_kb("MemAvailable") < (long)(4 * race_range() / KIB))
		SKIP(return, "not enough memory for ranges of %zu MiB",
		     race_range() / MIB);
	self->r.on = variant->on;
	ASSERT_EQ(0, idle_thread_start(&self->r.idle));
	run_begin(_metadata, &self->r.run);
}

FIXTURE_TEARDOWN(race)
{
	flipper_stop(&self->r.run.flipper);
	idle_thread_stop(&self->r.idle);
}

/* Counts an act; @hit: the call was at work meanwhile. */
static inline void race_acted(struct race *r, bool hit)
{
	atomic_fetch_add(&r->run.acts, 1);
	if (hit)
		atomic_fetch_add(&r->hits, 1);
}

static inline void race_wrong(struct race *r)
{
	atomic_fetch_add(&r->run.wrong, 1);
}

struct racer_arg {
	struct race *race;
	int id;
};

static void *racer_main(void *p)
{
	struct racer_arg arg = *(struct racer_arg *)p;
	struct race *r = arg.race;

	free(p);
	for (;;) {
		pthread_barrier_wait(&r->barrier);
		if (atomic_load(&r->run.stop))
			return NULL;
		r->ops->racer(r, arg.id);
		pthread_barrier_wait(&r->barrier);
	}
}

static bool prepare_anon(struct race *r)
{
	r->len = race_range();
	r->start = map_filled(r->len, r->tag);
	return r->start;
}

/* Most of the time is for the variant with sections. */
static __u64 race_ns(const struct race *r)
{
	return opt_seconds * 1000000000ULL /
	       (r->run.flip ? 2 : r->on ? 1 : 4);
}

/* Whether the test has met all its cases. */
static bool has_enough(struct race *r)
{
	return !r->ops || !r->ops->enough || r->ops->enough(r);
}

/* Whether sections were used, and a racer and the flipper acted beside them. */
static bool has_raced(struct race *r)
{
	struct counters d = counters_since(&r->run.before);

	return run_has_flipped(&r->run) && counter(&d, "calls") &&
	       counter(&d, "sections") > counter(&d, "calls") &&
	       atomic_load(&r->hits) && has_enough(r);
}

/*
 * Whether to run another round of a test that began at @start: until @count
 * acts were counted, or with 0 until the time is over.  A slow machine does few
 * rounds in time, or has the switch off in all of them: go on until they have
 * raced.  It may not even have started the threads in time, so there is always
 * a first round.
 */
static bool another_round(struct race *r, __u64 start, long count)
{
	__u64 now = now_ns() - start;

	if (!r->rounds)
		return true;
	if (count ? now < LAST_NS && atomic_load(&r->run.acts) < count :
		    now < race_ns(r))
		return true;
	return r->on && now < LAST_NS && !has_raced(r);
}

static bool run_round(struct race *r)
{
	const struct section_call *f = &section_call;
	const struct race_ops *ops = r->ops;
	bool good;

	r->tag++;
	if (!(ops->prepare ? ops->prepare(r) : prepare_anon(r))) {
		ksft_print_msg("round %ld: no memory for the range\n",
			       r->rounds);
		return false;
	}
	atomic_store(&r->done, false);
	pthread_barrier_wait(&r->barrier);
	r->ret = ops->call ? ops->call(r) : f->call(r);
	atomic_store(&r->done, true);
	pthread_barrier_wait(&r->barrier);
	good = ops->verify ? ops->verify(r) : f->verify(r);
	if (!good)
		ksft_print_msg("round %ld: wrong, the call returned %d\n",
			       r->rounds, r->ret);
	if (f->release)
		f->release(r);
	r->rounds++;
	return good;
}

/* Returns false if a round went wrong.  @count: see another_round(). */
static bool run_race(struct race *r, const struct race_ops *ops, long count)
{
	__u64 start = now_ns();
	bool good = true;
	int i;

	r->ops = ops;
	r->tag = section_call.tag;
	r->mem_fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	if (r->mem_fd < 0) {
		ksft_print_msg("cannot open /proc/self/mem\n");
		return false;
	}
	pthread_barrier_init(&r->barrier, NULL, ops->racers + 1);
	for (i = 0; i < ops->racers; i++) {
		struct racer_arg *arg = malloc(sizeof(*arg));

		*arg = (struct racer_arg){ r, i };
		if (pthread_create(&r->threads[i], NULL, racer_main, arg)) {
			ksft_print_msg("cannot start a thread\n");
			exit(KSFT_FAIL);
		}
	}
	while (good && another_round(r, start, count))
		good = run_round(r);
	atomic_store(&r->run.stop, true);
	pthread_barrier_wait(&r->barrier);
	for (i = 0; i < ops->racers; i++)
		pthread_join(r->threads[i], NULL);
	pthread_barrier_destroy(&r->barrier);
	close(r->mem_fd);
	return good;
}

/* The call must have worked by sections, and racers must have hit it. */
static void expect_raced(struct __test_metadata *_metadata, struct race *r)
{
	struct counters d = run_report(_metadata, &r->run);
	long calls = counter(&d, "calls"), sections = counter(&d, "sections");

	ksft_print_msg("%ld rounds, %ld hits while the call was at work\n",
		       r->rounds, atomic_load(&r->hits));
	EXPECT_LT(0, r->rounds);
	if (!r->on) {
		EXPECT_EQ(0, calls);
		EXPECT_EQ(0, sections);
		return;
	}
	EXPECT_LT(0, calls);
	EXPECT_LT(calls, sections);
	EXPECT_LT(0, atomic_load(&r->hits));
	EXPECT_TRUE(has_enough(r));
}

static void race_test(struct __test_metadata *_metadata, struct race *r,
		      const struct race_ops *ops, void *data)
{
	r->data = data;
	EXPECT_TRUE(run_race(r, ops, 0));
	expect_raced(_metadata, r);
}

/* The same by the members of struct race_ops. */
#define RACE_TEST(r, data, ...)						\
	race_test(_metadata, r, &(const struct race_ops){ __VA_ARGS__ }, data)

#endif /* SECTION_RACE_H */
