/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Common to the tests that break rules: delays where races can happen, an MMU
 * notifier, and their files in debugfs.
 */
#ifndef _MM_FAULTLINE_TORTURE_H
#define _MM_FAULTLINE_TORTURE_H

#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/mmu_notifier.h>
#include <linux/random.h>
#include <linux/slab.h>

/* In microseconds. */
#define TORTURE_WINDOW_MAX	100000

/* Choose a delay; half of the time there is none. */
static inline u32 torture_window_us(const u32 *window)
{
	u32 us = READ_ONCE(*window);

	return us && get_random_u32_below(2) ? get_random_u32_below(us + 1) : 0;
}

static inline void torture_delay(u32 us)
{
	mdelay(us / 1000);
	udelay(us % 1000);
}

static int torture_window_get(void *data, u64 *value)
{
	*value = *(u32 *)data;
	return 0;
}

static int torture_window_set(void *data, u64 value)
{
	if (value > TORTURE_WINDOW_MAX)
		return -EINVAL;
	/* Pairs with READ_ONCE() in torture_window_us(). */
	WRITE_ONCE(*(u32 *)data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(torture_window_fops, torture_window_get,
			 torture_window_set, "%llu\n");

static inline void __init torture_create_window(const char *name, u32 *window)
{
	debugfs_create_file_unsafe(name, 0600, NULL, window,
				   &torture_window_fops);
}

#ifdef CONFIG_MMU_NOTIFIER
/* An MMU notifier, which a task gives to its mm for the rest of its life. */
struct torture_notifier {
	struct mmu_notifier_ops	ops;	/* with TORTURE_NOTIFIER_OPS */
	bool			one_mm;	/* at a time */
	struct mm_struct	*mm;
	u32			unnotified;	/* calls that did not come */
};

static inline struct mmu_notifier *torture_notifier_alloc(struct mm_struct *mm)
{
	return kzalloc(sizeof(struct mmu_notifier), GFP_KERNEL) ? :
		ERR_PTR(-ENOMEM);
}

static inline void torture_notifier_free(struct mmu_notifier *notifier)
{
	kfree(notifier);
}

/* The mm is about to go away, and nobody else uses it. */
static inline void torture_notifier_release(struct mmu_notifier *notifier,
					    struct mm_struct *mm)
{
	struct torture_notifier *t = container_of(notifier->ops,
						  struct torture_notifier, ops);

	cmpxchg(&t->mm, mm, NULL);
	mmu_notifier_put(notifier);
}

#define TORTURE_NOTIFIER_OPS					\
	.release		= torture_notifier_release,	\
	.alloc_notifier		= torture_notifier_alloc,	\
	.free_notifier		= torture_notifier_free

/* Pairs with torture_notifier_set(): the notifier was there before. */
static inline bool torture_notified(const struct torture_notifier *t,
				    const struct mm_struct *mm)
{
	return READ_ONCE(t->mm) == mm;
}

static inline void torture_count_unnotified(struct torture_notifier *t)
{
	WRITE_ONCE(t->unnotified, t->unnotified + 1);
}

/* Gives the writer's mm a notifier. */
static int torture_notifier_set(void *data, u64 value)
{
	struct torture_notifier *t = data;
	struct mm_struct *old = READ_ONCE(t->mm);
	struct mmu_notifier *notifier;

	/* Each call takes a reference, and the mm drops only one. */
	if (old == current->mm || (old && t->one_mm))
		return -EBUSY;
	notifier = mmu_notifier_get(&t->ops, current->mm);
	if (IS_ERR(notifier))
		return PTR_ERR(notifier);
	/* From now on the notifier must be called. */
	WRITE_ONCE(t->mm, current->mm);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(torture_notifier_fops, NULL, torture_notifier_set,
			 "%llu\n");

static inline void __init torture_create_notifier(const char *name,
						  const char *unnotified,
						  struct torture_notifier *t)
{
	debugfs_create_file_unsafe(name, 0200, NULL, t, &torture_notifier_fops);
	debugfs_create_u32(unnotified, 0600, NULL, &t->unnotified);
}
#endif /* CONFIG_MMU_NOTIFIER */

#endif /* _MM_FAULTLINE_TORTURE_H */
