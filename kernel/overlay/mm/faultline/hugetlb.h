/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: hooks for tests that break the rules of hugetlb page table sharing.
 */
#ifndef _MM_FAULTLINE_HUGETLB_H
#define _MM_FAULTLINE_HUGETLB_H

#include <linux/bits.h>
#include <linux/mm_types.h>
#include <linux/spinlock_types.h>
#include <linux/types.h>

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
bool hugetlb_broken(enum hugetlb_rule rule);
void hugetlb_window(enum hugetlb_place place);
bool hugetlb_table_lost(void);
void hugetlb_find_window(struct folio *folio);
void hugetlb_lock_window(void);
void hugetlb_zap_window(spinlock_t *ptl);
void hugetlb_check_notified(struct mm_struct *mm, unsigned long addr);
#else
static inline bool hugetlb_broken(enum hugetlb_rule rule)
{
	return false;
}

static inline void hugetlb_window(enum hugetlb_place place)
{
}

/* The PUD entry has changed.  Returns true unless the rule is broken. */
static inline bool hugetlb_table_lost(void)
{
	return true;
}

/* @folio is locked, and in the file unless the rule is broken. */
static inline void hugetlb_find_window(struct folio *folio)
{
}

/* Interrupts are off, and stay off unless the rule is broken. */
static inline void hugetlb_lock_window(void)
{
}

/* The table is locked, and stays locked unless the rule is broken. */
static inline void hugetlb_zap_window(spinlock_t *ptl)
{
}

/*
 * The PUD entry of @addr was cleared.  Count it if the notifier was not told that
 * everything below that entry goes away.
 */
static inline void hugetlb_check_notified(struct mm_struct *mm,
					  unsigned long addr)
{
}
#endif

#endif /* _MM_FAULTLINE_HUGETLB_H */
