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
};

/* Places where a test adds a delay. */
enum hugetlb_place {
	HUGETLB_WINDOW_FIND,	/* between finding pages and locking table */
	HUGETLB_WINDOW_LOCK,	/* between finding and locking the table */
	HUGETLB_WINDOW_ZAP,	/* between clearing an entry and its rmap */
	HUGETLB_WINDOWS,
};

#ifdef CONFIG_FAULTLINE_HUGETLB_TORTURE

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

static int __init hugetlb_torture_init(void)
{
	debugfs_create_u32("hugetlb_broken_rules", 0600, NULL, &broken_rules);
	debugfs_create_u32("hugetlb_lost_tables", 0600, NULL, &lost_tables);
	debugfs_create_file_unsafe("hugetlb_find_window_us", 0600, NULL,
				   &windows[HUGETLB_WINDOW_FIND],
				   &torture_window_fops);
	debugfs_create_file_unsafe("hugetlb_lock_window_us", 0600, NULL,
				   &windows[HUGETLB_WINDOW_LOCK],
				   &torture_window_fops);
	debugfs_create_file_unsafe("hugetlb_zap_window_us", 0600, NULL,
				   &windows[HUGETLB_WINDOW_ZAP],
				   &torture_window_fops);
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

#endif /* CONFIG_FAULTLINE_HUGETLB_TORTURE */
