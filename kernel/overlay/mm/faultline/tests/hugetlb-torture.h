/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.hugetlb_pmd_sharing, to hit races often, and to prove
 * that the tests would notice a bug.  Included by hugetlb.c.
 */

#include <linux/init.h>
#include <linux/mmu_notifier.h>
#include <linux/spinlock.h>

#include "torture.h"

static u32 broken_rules;
static u32 lost_tables;
static u32 windows[HUGETLB_WINDOWS];

bool hugetlb_broken(enum hugetlb_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

void hugetlb_window(enum hugetlb_place place)
{
	torture_delay(torture_window_us(&windows[place]));
}

bool hugetlb_table_lost(void)
{
	if (!hugetlb_broken(HUGETLB_NO_RECHECK))
		return true;
	/* If TLBs are flushed by IPI, this may have no worse consequence. */
	WRITE_ONCE(lost_tables, lost_tables + 1);
	return false;
}

void hugetlb_find_window(struct folio *folio)
{
	bool broken = hugetlb_broken(HUGETLB_NO_MAPPING);

	if (broken)
		folio_unlock(folio);
	hugetlb_window(HUGETLB_WINDOW_FIND);
	if (broken)
		folio_lock(folio);
}

void hugetlb_lock_window(void)
{
	u32 us = torture_window_us(&windows[HUGETLB_WINDOW_LOCK]);

	if (us && hugetlb_broken(HUGETLB_NO_IRQS_OFF)) {
		local_irq_enable();
		/* Sleep, so that RCU does not wait for us either. */
		usleep_range(us, us + 1);
		local_irq_disable();
	} else {
		torture_delay(us);
	}
}

void hugetlb_zap_window(spinlock_t *ptl)
{
	bool broken = hugetlb_broken(HUGETLB_SPLIT_HOLD);

	if (broken)
		spin_unlock(ptl);
	hugetlb_window(HUGETLB_WINDOW_ZAP);
	if (broken)
		spin_lock(ptl);
}

bool hugetlb_entry_lock_broken(void)
{
	return hugetlb_broken(HUGETLB_NO_ENTRY_LOCK);
}

/* The table is locked unless the rule is broken. */
void hugetlb_entry_window(void)
{
	hugetlb_window(HUGETLB_WINDOW_ENTRY);
}

/* === An MMU notifier ====================================================== */

/* The ranges that tasks are invalidating in the mm with the notifier. */
#define INVALIDATIONS	32

static struct {
	struct task_struct *task;
	unsigned long start;
	unsigned long end;
} invalidations[INVALIDATIONS];
static DEFINE_SPINLOCK(invalidations_lock);

static int notifier_begin(struct mmu_notifier *notifier,
			  const struct mmu_notifier_range *range)
{
	int i;

	spin_lock(&invalidations_lock);
	for (i = 0; i < INVALIDATIONS && invalidations[i].task; i++)
		;
	if (!WARN_ON_ONCE(i == INVALIDATIONS)) {
		invalidations[i].task = current;
		invalidations[i].start = range->start;
		invalidations[i].end = range->end;
	}
	spin_unlock(&invalidations_lock);
	return 0;
}

static void notifier_end(struct mmu_notifier *notifier,
			 const struct mmu_notifier_range *range)
{
	int i;

	spin_lock(&invalidations_lock);
	for (i = 0; i < INVALIDATIONS; i++)
		if (invalidations[i].task == current &&
		    invalidations[i].start == range->start &&
		    invalidations[i].end == range->end) {
			invalidations[i].task = NULL;
			break;
		}
	spin_unlock(&invalidations_lock);
}

/* To be called for every unsharing. */
static struct torture_notifier hugetlb_notifier = {
	.ops = {
		TORTURE_NOTIFIER_OPS,
		.invalidate_range_start	= notifier_begin,
		.invalidate_range_end	= notifier_end,
	},
	.one_mm = true,
};

void hugetlb_check_notified(struct mm_struct *mm, unsigned long addr)
{
	unsigned long start = addr & PUD_MASK, end = start + PUD_SIZE;
	bool found = false;
	int i;

	if (!torture_notified(&hugetlb_notifier, mm))
		return;
	spin_lock(&invalidations_lock);
	for (i = 0; i < INVALIDATIONS; i++)
		found |= invalidations[i].task == current &&
			 invalidations[i].start <= start &&
			 invalidations[i].end >= end;
	if (!found)
		torture_count_unnotified(&hugetlb_notifier);
	spin_unlock(&invalidations_lock);
}

static int __init hugetlb_torture_init(void)
{
	debugfs_create_u32("hugetlb_broken_rules", 0600, NULL, &broken_rules);
	debugfs_create_u32("hugetlb_lost_tables", 0600, NULL, &lost_tables);
	torture_create_window("hugetlb_find_window_us",
			      &windows[HUGETLB_WINDOW_FIND]);
	torture_create_window("hugetlb_lock_window_us",
			      &windows[HUGETLB_WINDOW_LOCK]);
	torture_create_window("hugetlb_zap_window_us",
			      &windows[HUGETLB_WINDOW_ZAP]);
	torture_create_window("hugetlb_around_window_us",
			      &windows[HUGETLB_WINDOW_AROUND]);
	torture_create_window("hugetlb_entry_window_us",
			      &windows[HUGETLB_WINDOW_ENTRY]);
	torture_create_notifier("hugetlb_notifier", "hugetlb_unnotified",
				&hugetlb_notifier);
	return 0;
}
late_initcall(hugetlb_torture_init);
