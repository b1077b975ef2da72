/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.speculative_page_fault, to hit races often, and to
 * prove that the tests would notice a bug.  Included by spf.c.
 */

#include <linux/init.h>
#include <linux/mmu_notifier.h>
#include <linux/slab.h>

#include "torture.h"

static u32 broken_rules;
static u32 windows[SPF_WINDOWS];

bool spf_broken(enum spf_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

/* In SPF_WINDOW_CHANGE, the page table lock is held. */
void spf_window(enum spf_place place)
{
	torture_delay(torture_window_us(&windows[place]));
}

/* === An MMU notifier ====================================================== */

static struct mm_struct *notified_mm;
static u32 unnotified;

void spf_copied(struct mm_struct *mm)
{
	/* Pairs with notifier_set(): the notifier was there before. */
	if (READ_ONCE(notified_mm) == mm)
		WRITE_ONCE(unnotified, unnotified + 1);
}

static struct mmu_notifier *notifier_alloc(struct mm_struct *mm)
{
	return kzalloc(sizeof(struct mmu_notifier), GFP_KERNEL) ? :
		ERR_PTR(-ENOMEM);
}

static void notifier_free(struct mmu_notifier *notifier)
{
	kfree(notifier);
}

/* The mm is about to go away. */
static void notifier_release(struct mmu_notifier *notifier,
			     struct mm_struct *mm)
{
	cmpxchg(&notified_mm, mm, NULL);
	mmu_notifier_put(notifier);
}

static const struct mmu_notifier_ops notifier_ops = {
	.release	= notifier_release,
	.alloc_notifier	= notifier_alloc,
	.free_notifier	= notifier_free,
};

/* Gives the writer's mm a notifier, for the rest of its life. */
static int notifier_set(void *data, u64 value)
{
	struct mmu_notifier *notifier;

	/* Each call takes a reference, and the mm drops only one. */
	if (READ_ONCE(notified_mm) == current->mm)
		return -EBUSY;
	notifier = mmu_notifier_get(&notifier_ops, current->mm);
	if (IS_ERR(notifier))
		return PTR_ERR(notifier);
	/* From now on the notifier must be called for every copy. */
	WRITE_ONCE(notified_mm, current->mm);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(notifier_fops, NULL, notifier_set, "%llu\n");

static int __init spf_torture_init(void)
{
	debugfs_create_u32("spf_broken_rules", 0600, NULL, &broken_rules);
	torture_create_window("spf_find_window_us", &windows[SPF_WINDOW_FIND]);
	torture_create_window("spf_lock_window_us", &windows[SPF_WINDOW_LOCK]);
	torture_create_window("spf_walk_window_us", &windows[SPF_WINDOW_WALK]);
	torture_create_window("spf_change_window_us",
			      &windows[SPF_WINDOW_CHANGE]);
	torture_create_window("spf_sleep_window_us",
			      &windows[SPF_WINDOW_SLEEP]);
	torture_create_window("spf_vma_window_us", &windows[SPF_WINDOW_VMA]);
	debugfs_create_file_unsafe("spf_notifier", 0200, NULL, NULL,
				   &notifier_fops);
	debugfs_create_u32("spf_unnotified", 0600, NULL, &unnotified);
	return 0;
}
late_initcall(spf_torture_init);
