/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What tests of vm.speculative_page_fault need to meet races often, and to
 * prove that they would notice a mistake.  Included by spf.c.
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

/* The lock of a page table is held in SPF_WINDOW_CHANGE. */
void spf_window(enum spf_place place, unsigned long *switched)
{
	unsigned long before = switches();

	torture_delay(torture_window_us(&windows[place]));
	/* As an interrupt that takes so long: the fault does not start again. */
	*switched += switches() - before;
}

/* === An MMU notifier ====================================================== */

static struct mm_struct *notified_mm;
static u32 unnotified;

void spf_copied(struct mm_struct *mm)
{
	/* Pairs with notifier_set(): it was there before, for sure. */
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

/* The mm is about to go. */
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

/* The writer's mm gets a notifier, for the rest of its life. */
static int notifier_set(void *data, u64 value)
{
	struct mmu_notifier *notifier;

	/* A reference for each, and the mm gives one back. */
	if (READ_ONCE(notified_mm) == current->mm)
		return -EBUSY;
	notifier = mmu_notifier_get(&notifier_ops, current->mm);
	if (IS_ERR(notifier))
		return PTR_ERR(notifier);
	/* From now on every copy has to be announced. */
	WRITE_ONCE(notified_mm, current->mm);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(notifier_fops, NULL, notifier_set, "%llu\n");

static int __init spf_torture_init(void)
{
	debugfs_create_u32("spf_broken_rules", 0600, NULL, &broken_rules);
	debugfs_create_file_unsafe("spf_find_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_FIND],
				   &torture_window_fops);
	debugfs_create_file_unsafe("spf_lock_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_LOCK],
				   &torture_window_fops);
	debugfs_create_file_unsafe("spf_walk_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_WALK],
				   &torture_window_fops);
	debugfs_create_file_unsafe("spf_change_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_CHANGE],
				   &torture_window_fops);
	debugfs_create_file_unsafe("spf_sleep_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_SLEEP],
				   &torture_window_fops);
	debugfs_create_file_unsafe("spf_notifier", 0200, NULL, NULL,
				   &notifier_fops);
	debugfs_create_u32("spf_unnotified", 0600, NULL, &unnotified);
	return 0;
}
late_initcall(spf_torture_init);
