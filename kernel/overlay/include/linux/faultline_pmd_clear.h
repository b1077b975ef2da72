/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Waiting for lockless page-table walkers: the interface to mm/ and arch/.
 *
 * get_user_pages_fast() and others walk page tables with interrupts off.  Code
 * that takes a page table away must wait for them, and upstream does so with
 * an IPI to every CPU.  vm.pmd_clear_ipi_free avoids these IPIs.
 */
#ifndef _LINUX_FAULTLINE_PMD_CLEAR_H
#define _LINUX_FAULTLINE_PMD_CLEAR_H

#include <linux/faultline_spf.h>
#include <linux/jump_label.h>
#include <linux/mm_types.h>
#include <linux/sched.h>

/* Places that wait for walkers. */
enum pmd_clear_site {
	PMD_CLEAR_COLLAPSE,	/* a table makes room for a huge page */
	PMD_CLEAR_UNSHARE,	/* a hugetlb table is left to its last user */
	PMD_CLEAR_TABLE,	/* a table is freed, no memory for a batch */
	PMD_CLEAR_HASH,		/* powerpc: like COLLAPSE, with the hash MMU */
	PMD_CLEAR_LEGACY,	/* powerpc: a huge page is unmapped or split */
};

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_TORTURE
DECLARE_STATIC_KEY_FALSE(pmd_clear_window_key);
void __pmd_clear_window(void);
bool pmd_clear_count_broken(void);

/* Tests only: a delay where a race would have to happen. */
static inline void pmd_clear_window(void)
{
	if (static_branch_unlikely(&pmd_clear_window_key))
		__pmd_clear_window();
}
#else
static inline void pmd_clear_window(void)
{
}

/* Does a test break the rule that unsharing changes the count? */
static inline bool pmd_clear_count_broken(void)
{
	return false;
}
#endif

#ifdef CONFIG_FAULTLINE_PMD_CLEAR

DECLARE_STATIC_KEY_FALSE(pmd_clear_ipi_free_key);

/**
 * pmd_clear_broadcast() - wait for lockless walkers as upstream does
 * @site: The place that waits, for the counters.
 *
 * Returns when every CPU has had interrupts on since the call.
 *
 * Context: interrupts on, as for smp_call_function().
 */
void pmd_clear_broadcast(enum pmd_clear_site site);

#ifdef CONFIG_PPC_BOOK3S_64
/* serialize_against_pte_lookup() is about to interrupt the CPUs of @mm. */
void pmd_clear_count_mm(enum pmd_clear_site site, struct mm_struct *mm);
#endif

pgtable_t __pmd_clear_alloc(struct mm_struct *mm);
void __pmd_clear_collapsed(void);
void __pmd_clear_freed(void);

/**
 * pmd_clear_alloc() - get a page table for pmd_clear_collapse()
 * @mm: The mm that will own the table; its memory cgroup is charged.
 *
 * Context: mmap_lock of @mm not held, as some architectures reclaim memory
 * here.  @mm may be torn down meanwhile.  May sleep.  The caller must free an
 * unused table with pte_free().
 *
 * Return: a page table to deposit; NULL if none is wanted (the switch and
 * speculative page faults are off), memory is short, or the MMU needs the IPI.
 */
static inline pgtable_t pmd_clear_alloc(struct mm_struct *mm)
{
	if (static_branch_unlikely(&pmd_clear_ipi_free_key) || spf_rcu_tables())
		return __pmd_clear_alloc(mm);
	return NULL;
}

/**
 * pmd_clear_collapse() - order clearing a PMD entry before reading refcounts
 * @fresh: The result of pmd_clear_alloc().
 *
 * Called between clearing the PMD entry that pointed to a page table and
 * reading the reference counts of the pages that the table maps.  With @fresh,
 * the caller must deposit @fresh in place of the old table and free the old one
 * after a grace period: speculative page faults need that.  Unless
 * vm.pmd_clear_ipi_free is 1, the IPI is sent as well.
 */
static inline void pmd_clear_collapse(pgtable_t fresh)
{
	if (fresh && static_branch_unlikely(&pmd_clear_ipi_free_key)) {
		/*
		 * A walker that still has the old table takes a reference
		 * first and then rechecks the PMD entry.  We have cleared the
		 * entry, and read the reference counts next.  With a full
		 * barrier on both sides, one sees the other: we give up the
		 * collapse, or the walker drops the reference.  Pairs with
		 * try_grab_folio_fast() in gup_fast_pte_range().
		 */
		smp_mb();
		__pmd_clear_collapsed();
	} else {
		pmd_clear_broadcast(PMD_CLEAR_COLLAPSE);
	}
}

/**
 * pmd_clear_free_old() - free the table that was replaced by a fresh one
 * @mm: The mm that owned the table.
 * @table: The table, empty and no longer reachable.
 *
 * Walkers may still look at it, so it is freed after a grace period.
 */
void pmd_clear_free_old(struct mm_struct *mm, pgtable_t table);

/* A table without a batch is freed without an IPI, maybe due to the switch. */
static inline void pmd_clear_freed(void)
{
	if (static_branch_unlikely(&pmd_clear_ipi_free_key))
		__pmd_clear_freed();
}

#else /* !CONFIG_FAULTLINE_PMD_CLEAR */

/* A macro: some users do not see tlb_remove_table_sync_one(). */
#define pmd_clear_broadcast(site)					\
	((void)(site), tlb_remove_table_sync_one())

static inline pgtable_t pmd_clear_alloc(struct mm_struct *mm)
{
	return NULL;
}

#define pmd_clear_collapse(fresh)					\
	((void)(fresh), tlb_remove_table_sync_one())

static inline void pmd_clear_free_old(struct mm_struct *mm, pgtable_t table)
{
}

static inline void pmd_clear_count_mm(enum pmd_clear_site site,
				      struct mm_struct *mm)
{
}

#endif /* CONFIG_FAULTLINE_PMD_CLEAR */

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_UNSHARE

DECLARE_STATIC_KEY_FALSE(pmd_clear_check_key);

void __pmd_clear_unshared(void);
bool __pmd_clear_walk_retry(void);

/* Called by mm_init(). */
static inline void pmd_clear_mm_init(struct mm_struct *mm)
{
	atomic_set(&mm->pmd_clear_seq, 1);
}

/*
 * A PUD entry of @mm was cleared.  Other mappings, possibly of the same mm, go
 * on using the table that it pointed to.  i_mmap_rwsem of the file is held for
 * writing.
 *
 *	unshare				gup_fast()
 *
 *	pud_clear()			s = pmd_clear_seq (acquire)
 *	smp_mb()			read the PUD entry
 *	pmd_clear_seq++			read the table
 *	smp_mb()			smp_rmb()
 *	...other contents get		s == pmd_clear_seq ?
 *	   into the table
 *
 * If s is the new count, gup_fast() saw the PUD entry cleared.  If it saw the
 * other contents, it sees the new count at the end.  Pairs with
 * pmd_clear_walk_begin() and pmd_clear_walk_retry().
 */
static inline void pmd_clear_unshare(struct mm_struct *mm)
{
	if (pmd_clear_count_broken())
		return;
	/* After pud_clear(); see above. */
	smp_mb__before_atomic();
	/* Always odd, so 0 can stand for "not checked". */
	atomic_add(2, &mm->pmd_clear_seq);
	/* Before other contents get into the table; see above. */
	smp_mb__after_atomic();
}

/* Called when a table is left to its last user, with i_mmap_rwsem held. */
static inline void pmd_clear_unshared(void)
{
	if (static_branch_unlikely(&pmd_clear_ipi_free_key))
		__pmd_clear_unshared();
	else
		pmd_clear_broadcast(PMD_CLEAR_UNSHARE);
}

/**
 * pmd_clear_walk_begin() - begin a walk of page tables that may be unshared
 *
 * Only for the page tables of current->mm: walkers of another mm are not waited
 * for everywhere.
 *
 * Context: interrupts off, until the walk is over.
 *
 * Return: a count for pmd_clear_walk_retry(), or 0 if the walk need not check.
 */
static inline unsigned int pmd_clear_walk_begin(void)
{
	if (!static_branch_unlikely(&pmd_clear_check_key))
		return 0;
	/* Pairs with pmd_clear_unshare(). */
	return atomic_read_acquire(&current->mm->pmd_clear_seq);
}

/**
 * pmd_clear_walk_retry() - was a table of the walk taken away?
 * @seq: The result of pmd_clear_walk_begin().
 *
 * Context: interrupts off since before pmd_clear_walk_begin(), so a change of
 * the switch in between affects only walks that find no such table.
 *
 * Return: true if what was found may belong to another user of the table.
 */
static inline bool pmd_clear_walk_retry(unsigned int seq)
{
	if (!static_branch_unlikely(&pmd_clear_check_key))
		return false;
	if (!seq)
		return false;
	/* Pairs with pmd_clear_unshare(). */
	smp_rmb();
	return unlikely(atomic_read(&current->mm->pmd_clear_seq) != seq) &&
	       __pmd_clear_walk_retry();
}

#else /* !CONFIG_FAULTLINE_PMD_CLEAR_UNSHARE */

static inline void pmd_clear_mm_init(struct mm_struct *mm)
{
}

static inline void pmd_clear_unshare(struct mm_struct *mm)
{
}

#define pmd_clear_unshared()	pmd_clear_broadcast(PMD_CLEAR_UNSHARE)

static inline unsigned int pmd_clear_walk_begin(void)
{
	return 0;
}

static inline bool pmd_clear_walk_retry(unsigned int seq)
{
	return false;
}

#endif /* CONFIG_FAULTLINE_PMD_CLEAR_UNSHARE */

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_LEGACY

DECLARE_STATIC_KEY_FALSE(pmd_clear_ipi_legacy_key);

void __pmd_clear_legacy(struct mm_struct *mm);

/* powerpc: as before Linux 5.8, wait for all CPUs of @mm if enabled. */
static inline void pmd_clear_legacy(struct mm_struct *mm)
{
	if (static_branch_unlikely(&pmd_clear_ipi_legacy_key))
		__pmd_clear_legacy(mm);
}

#else

static inline void pmd_clear_legacy(struct mm_struct *mm)
{
}

#endif /* CONFIG_FAULTLINE_PMD_CLEAR_LEGACY */

#endif /* _LINUX_FAULTLINE_PMD_CLEAR_H */
