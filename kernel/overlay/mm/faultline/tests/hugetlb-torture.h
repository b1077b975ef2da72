/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.hugetlb_pmd_sharing, to hit races often, and to prove
 * that the tests would notice a bug.  Included by hugetlb.c.
 */

/* Rules that a test breaks; I1 to I4 are the invariants in hugetlb.c. */
enum hugetlb_rule {
	HUGETLB_NO_RECHECK	= BIT(0),	/* is it still this table? */
	HUGETLB_NO_MAPPING	= BIT(1),	/* I4: is page in the file? */
	HUGETLB_NO_NEIGHBOUR	= BIT(2),	/* I4: and its neighbours? */
	HUGETLB_NO_UNSHARE	= BIT(3),	/* I1: before the lock goes */
	HUGETLB_NO_IRQS_OFF	= BIT(4),	/* I2: until table is locked */
	HUGETLB_SPLIT_HOLD	= BIT(5),	/* I3: clear entry and rmap */
	HUGETLB_NO_ENTRY_LOCK	= BIT(6),	/* I3: to look at an entry */
};

/* Places where a test adds a delay. */
enum hugetlb_place {
	HUGETLB_WINDOW_FIND,	/* between finding pages and locking table */
	HUGETLB_WINDOW_LOCK,	/* between finding and locking the table */
	HUGETLB_WINDOW_ZAP,	/* between clearing an entry and its rmap */
	HUGETLB_WINDOW_AROUND,	/* between finding and locking a neighbour */
	HUGETLB_WINDOW_ENTRY,	/* between reading an entry and its page */
	HUGETLB_WINDOWS,
};

#ifdef CONFIG_FAULTLINE_HUGETLB_TORTURE

#include <linux/mmu_notifier.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "torture.h"

static u32 broken_rules;
static u32 lost_tables;
static u32 windows[HUGETLB_WINDOWS];

static bool hugetlb_broken(enum hugetlb_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

static void hugetlb_window(enum hugetlb_place place)
{
	torture_delay(torture_window_us(&windows[place]));
}

/* The PUD entry has changed.  Returns true unless the rule is broken. */
static bool hugetlb_table_lost(void)
{
	if (!hugetlb_broken(HUGETLB_NO_RECHECK))
		return true;
	/* If TLBs are flushed by IPI, this may have no worse consequence. */
	WRITE_ONCE(lost_tables, lost_tables + 1);
	return false;
}

/* @folio is locked, and in the file unless the rule is broken. */
static void hugetlb_find_window(struct folio *folio)
{
	bool broken = hugetlb_broken(HUGETLB_NO_MAPPING);

	if (broken)
		folio_unlock(folio);
	hugetlb_window(HUGETLB_WINDOW_FIND);
	if (broken)
		folio_lock(folio);
}

/* Interrupts are off, and stay off unless the rule is broken. */
static void hugetlb_lock_window(void)
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

/* The table is locked, and stays locked unless the rule is broken. */
static void hugetlb_zap_window(spinlock_t *ptl)
{
	bool broken = hugetlb_broken(HUGETLB_SPLIT_HOLD);

	if (broken)
		spin_unlock(ptl);
	hugetlb_window(HUGETLB_WINDOW_ZAP);
	if (broken)
		spin_lock(ptl);
}

/* A reference to the neighbour is held, but not its lock. */
static void hugetlb_around_window(void)
{
	hugetlb_window(HUGETLB_WINDOW_AROUND);
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

static struct mm_struct *notified_mm;
static u32 unnotified;

/*
 * The PUD entry of @addr was cleared.  Whoever did it must have told the
 * notifier that everything below that entry goes away.
 */
static void hugetlb_check_notified(struct mm_struct *mm, unsigned long addr)
{
	unsigned long start = addr & PUD_MASK, end = start + PUD_SIZE;
	bool found = false;
	int i;

	/* Pairs with notifier_set(): the notifier was there before. */
	if (READ_ONCE(notified_mm) != mm)
		return;
	spin_lock(&invalidations_lock);
	for (i = 0; i < INVALIDATIONS; i++)
		found |= invalidations[i].task == current &&
			 invalidations[i].start <= start &&
			 invalidations[i].end >= end;
	if (!found)
		WRITE_ONCE(unnotified, unnotified + 1);
	spin_unlock(&invalidations_lock);
}

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

static struct mmu_notifier *notifier_alloc(struct mm_struct *mm)
{
	return kzalloc(sizeof(struct mmu_notifier), GFP_KERNEL) ? :
		ERR_PTR(-ENOMEM);
}

static void notifier_free(struct mmu_notifier *notifier)
{
	kfree(notifier);
}

/* The mm is about to go away, and nobody else uses it. */
static void notifier_release(struct mmu_notifier *notifier,
			     struct mm_struct *mm)
{
	cmpxchg(&notified_mm, mm, NULL);
	mmu_notifier_put(notifier);
}

static const struct mmu_notifier_ops notifier_ops = {
	.release		= notifier_release,
	.invalidate_range_start	= notifier_begin,
	.invalidate_range_end	= notifier_end,
	.alloc_notifier		= notifier_alloc,
	.free_notifier		= notifier_free,
};

/* Gives the writer's mm a notifier, for the rest of its life. */
static int notifier_set(void *data, u64 value)
{
	struct mmu_notifier *notifier;

	/* One mm at a time. */
	if (READ_ONCE(notified_mm))
		return -EBUSY;
	notifier = mmu_notifier_get(&notifier_ops, current->mm);
	if (IS_ERR(notifier))
		return PTR_ERR(notifier);
	/* From now on the notifier must be called for every unsharing. */
	WRITE_ONCE(notified_mm, current->mm);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(notifier_fops, NULL, notifier_set, "%llu\n");

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
	debugfs_create_file_unsafe("hugetlb_notifier", 0200, NULL, NULL,
				   &notifier_fops);
	debugfs_create_u32("hugetlb_unnotified", 0600, NULL, &unnotified);
	return 0;
}
late_initcall(hugetlb_torture_init);

#else

static bool hugetlb_broken(enum hugetlb_rule rule)
{
	return false;
}

static bool hugetlb_table_lost(void)
{
	return true;
}

static void hugetlb_find_window(struct folio *folio)
{
}

static void hugetlb_lock_window(void)
{
}

static void hugetlb_zap_window(spinlock_t *ptl)
{
}

static void hugetlb_around_window(void)
{
}

static void hugetlb_check_notified(struct mm_struct *mm, unsigned long addr)
{
}

#endif /* CONFIG_FAULTLINE_HUGETLB_TORTURE */
