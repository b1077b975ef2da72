/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of rwsem_wait_turn(), with threads that wait for a semaphore of their
 * own, and of walk_has_policy().  Included by walk.c.
 *
 * A test of the former holds the semaphore until all its threads sleep in the wait list, so the
 * order of the list is certain, however slow the machine is.
 */

#include <kunit/test.h>
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/mempolicy.h>

/* In milliseconds; a thread that does not get so far in this time never will. */
#define TURN_PATIENCE	20000

enum turn_kind { TURN_WRITER, TURN_READER, TURN_CALLER };

struct turn {
	struct rw_semaphore sem;
	/* Writers that have had the semaphore. */
	atomic_t writers;
	/* Those that there were when rwsem_wait_turn() returned; -1 before. */
	atomic_t seen;
	/* Readers let go when this is set. */
	bool let_go;
	int nr_waiters;
	struct turn_waiter {
		struct turn *turn;
		enum turn_kind kind;
		struct task_struct *task;
	} waiters[4];
};

static int turn_waiter_run(void *data)
{
	struct turn_waiter *w = data;
	struct turn *t = w->turn;

	switch (w->kind) {
	case TURN_WRITER:
		down_write(&t->sem);
		atomic_inc(&t->writers);
		up_write(&t->sem);
		break;
	case TURN_READER:
		down_read(&t->sem);
		/* Pairs with smp_store_release() of the test. */
		while (!smp_load_acquire(&t->let_go))
			usleep_range(1000, 2000);
		up_read(&t->sem);
		break;
	case TURN_CALLER:
		rwsem_wait_turn(&t->sem);
		atomic_set(&t->seen, atomic_read(&t->writers));
		break;
	}
	while (!kthread_should_stop())
		usleep_range(1000, 2000);
	return 0;
}

static struct turn *turn_alloc(struct kunit *test)
{
	struct turn *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, t);
	init_rwsem(&t->sem);
	atomic_set(&t->seen, -1);
	return t;
}

/* Starts a thread, and waits until it sleeps in the wait list. */
static void turn_add(struct kunit *test, struct turn *t, enum turn_kind kind)
{
	struct turn_waiter *w = &t->waiters[t->nr_waiters];
	unsigned int sleeps = kind == TURN_CALLER ? TASK_KILLABLE :
						    TASK_UNINTERRUPTIBLE;
	struct task_struct *task;
	int ms;

	*w = (struct turn_waiter) { .turn = t, .kind = kind };
	task = kthread_run(turn_waiter_run, w, "turn_waiter");
	KUNIT_EXPECT_FALSE(test, IS_ERR(task));
	if (IS_ERR(task))
		return;
	w->task = task;
	t->nr_waiters++;
	for (ms = 0; ms < TURN_PATIENCE; ms++) {
		/* The caller sleeps nowhere else in this state. */
		if (READ_ONCE(task->__state) == sleeps &&
		    rwsem_is_contended(&t->sem))
			return;
		usleep_range(1000, 2000);
	}
	KUNIT_FAIL(test, "a thread does not wait for the semaphore");
}

/* Waits until rwsem_wait_turn() has returned. */
static void turn_await_caller(struct kunit *test, struct turn *t)
{
	int ms;

	for (ms = 0; ms < TURN_PATIENCE && atomic_read(&t->seen) < 0; ms++)
		usleep_range(1000, 2000);
	KUNIT_EXPECT_LE(test, 0, atomic_read(&t->seen));
}

static void turn_end(struct turn *t)
{
	int i;

	/* Pairs with smp_load_acquire() in turn_waiter_run(). */
	smp_store_release(&t->let_go, true);
	for (i = 0; i < t->nr_waiters; i++)
		kthread_stop(t->waiters[i].task);
}

/* All writers in front have had the semaphore when the call returns. */
static void walk_test_writers(struct kunit *test)
{
	struct turn *t = turn_alloc(test);

	down_read(&t->sem);
	turn_add(test, t, TURN_WRITER);
	turn_add(test, t, TURN_WRITER);
	turn_add(test, t, TURN_CALLER);
	KUNIT_EXPECT_EQ(test, atomic_read(&t->writers), 0);
	KUNIT_EXPECT_EQ(test, atomic_read(&t->seen), -1);
	up_read(&t->sem);
	turn_await_caller(test, t);
	KUNIT_EXPECT_EQ(test, atomic_read(&t->seen), 2);
	turn_end(t);
}

/*
 * With a reader in front of the last writer, the call returns when the reader has
 * the semaphore, and the writer still waits.
 */
static void walk_test_reader_first(struct kunit *test)
{
	struct turn *t = turn_alloc(test);

	down_read(&t->sem);
	turn_add(test, t, TURN_WRITER);
	turn_add(test, t, TURN_READER);
	turn_add(test, t, TURN_WRITER);
	turn_add(test, t, TURN_CALLER);
	up_read(&t->sem);
	turn_await_caller(test, t);
	KUNIT_EXPECT_EQ(test, atomic_read(&t->seen), 1);
	turn_end(t);
	KUNIT_EXPECT_EQ(test, atomic_read(&t->writers), 2);
}

/* Without a waiter there is nothing to wait for, and the semaphore stays free. */
static void walk_test_nobody(struct kunit *test)
{
	struct turn *t = turn_alloc(test);

	rwsem_wait_turn(&t->sem);
	KUNIT_EXPECT_FALSE(test, rwsem_is_locked(&t->sem));
}

#ifdef CONFIG_NUMA
/* Where pages belong is what counts, not what a cpuset notes in a policy. */
static void walk_test_policy(struct kunit *test)
{
	struct vm_area_struct *vma = kunit_kzalloc(test, sizeof(*vma), GFP_KERNEL);
	struct mempolicy set = {
		.mode = MPOL_PREFERRED_MANY,
		.flags = MPOL_F_STATIC_NODES,
		.nodes = nodemask_of_node(0),
		.w.user_nodemask = nodemask_of_node(0),
	};
	struct mempolicy now = set;

	KUNIT_ASSERT_NOT_NULL(test, vma);
	KUNIT_EXPECT_FALSE(test, walk_has_policy(vma, &set));
	vma->vm_policy = &now;
	KUNIT_EXPECT_TRUE(test, walk_has_policy(vma, &set));
	KUNIT_EXPECT_FALSE(test, walk_has_policy(vma, NULL));
	nodes_setall(now.w.cpuset_mems_allowed);
	KUNIT_EXPECT_TRUE(test, walk_has_policy(vma, &set));
	now.mode = MPOL_BIND;
	KUNIT_EXPECT_FALSE(test, walk_has_policy(vma, &set));
	now = set;
	nodes_clear(now.nodes);
	KUNIT_EXPECT_FALSE(test, walk_has_policy(vma, &set));
	/* It has no nodes, whatever is in their place. */
	now.mode = MPOL_LOCAL;
	set.mode = MPOL_LOCAL;
	KUNIT_EXPECT_TRUE(test, walk_has_policy(vma, &set));
}
#endif

static struct kunit_case walk_test_cases[] = {
#ifdef CONFIG_NUMA
	KUNIT_CASE(walk_test_policy),
#endif
	KUNIT_CASE(walk_test_writers),
	KUNIT_CASE(walk_test_reader_first),
	KUNIT_CASE(walk_test_nobody),
	{}
};

static struct kunit_suite walk_test_suite = {
	.name = "faultline-walk",
	.test_cases = walk_test_cases,
};

kunit_test_suite(walk_test_suite);
