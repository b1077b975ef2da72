/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What tests of vm.speculative_page_fault need to meet races often, and to
 * prove that they would notice a mistake.  Included by spf.c.
 */

#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/mmu_notifier.h>
#include <linux/random.h>
#include <linux/slab.h>

/* Microseconds; the lock of a page table is held in SPF_WINDOW_CHANGE. */
#define WINDOW_MAX	100000

static u32 broken_rules;
static u32 windows[SPF_WINDOWS];

bool spf_broken(enum spf_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

void spf_window(enum spf_place place)
{
	u32 us = READ_ONCE(windows[place]);

	/* Half of the faults are as fast as ever. */
	if (us && get_random_u32_below(2)) {
		us = get_random_u32_below(us + 1);
		mdelay(us / 1000);
		udelay(us % 1000);
	}
}

static int window_get(void *data, u64 *value)
{
	*value = *(u32 *)data;
	return 0;
}

static int window_set(void *data, u64 value)
{
	if (value > WINDOW_MAX)
		return -EINVAL;
	/* Pairs with READ_ONCE() in spf_window(). */
	WRITE_ONCE(*(u32 *)data, value);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(window_fops, window_get, window_set, "%llu\n");

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
				   &windows[SPF_WINDOW_FIND], &window_fops);
	debugfs_create_file_unsafe("spf_lock_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_LOCK], &window_fops);
	debugfs_create_file_unsafe("spf_change_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_CHANGE], &window_fops);
	debugfs_create_file_unsafe("spf_sleep_window_us", 0600, NULL,
				   &windows[SPF_WINDOW_SLEEP], &window_fops);
	debugfs_create_file_unsafe("spf_notifier", 0200, NULL, NULL,
				   &notifier_fops);
	debugfs_create_u32("spf_unnotified", 0600, NULL, &unnotified);
	return 0;
}
late_initcall(spf_torture_init);
