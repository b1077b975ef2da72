/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Speculative page faults: the interface to mm/ and arch/.
 *
 * A page fault takes neither mmap_lock nor the lock of the VMA.  It works on a
 * copy of the VMA and finds out, with the page table locked, whether the VMA
 * was write-locked since.  See mm/faultline/spf.c for the protocol, and
 * Documentation/admin-guide/mm/faultline.rst for vm.speculative_page_fault.
 */
#ifndef _LINUX_SPF_H
#define _LINUX_SPF_H

#include <linux/jump_label.h>
#include <linux/types.h>

struct mm_struct;
struct pt_regs;

#ifdef CONFIG_SPECULATIVE_PAGE_FAULT

DECLARE_STATIC_KEY_FALSE(spf_key);
DECLARE_STATIC_KEY_FALSE(spf_writer_key);

/* vm.speculative_page_fault is on: worth asking spf_fault(). */
static __always_inline bool spf_enabled(void)
{
	return static_branch_unlikely(&spf_key);
}

bool spf_fault(struct mm_struct *mm, unsigned long address, unsigned int flags,
	       struct pt_regs *regs);

/*
 * vma_start_write() has written the sequence number and released the lock of
 * the VMA.  What the writer does next to the VMA must not be seen before the
 * number, and what it reads of page tables must not be older: release alone
 * gives neither.  Pairs with the smp_rmb() of take_copy() and the
 * barrier of check_locked().  The release was an atomic operation, so that this costs
 * nothing on x86.
 */
#define spf_write_barrier()	smp_mb__after_atomic()

#ifdef CONFIG_HAVE_MOVE_PMD
void __spf_drain_pmd(struct mm_struct *mm, pmd_t *pmdp);

/**
 * spf_drain_pmd() - wait for page faults that hold the lock of a page table
 * @mm: The mm, whose mmap_lock is held for writing.
 * @pmdp: Entry that points to the table, or to none.
 *
 * For those who have write-locked the VMA and take a page table away without
 * the lock of the table.  Faults that were found valid before the VMA was
 * write-locked are over when this returns; there are no other ones.
 *
 * Context: up to two page table locks held, of PMD tables.
 */
static inline void spf_drain_pmd(struct mm_struct *mm, pmd_t *pmdp)
{
	if (static_branch_unlikely(&spf_writer_key))
		__spf_drain_pmd(mm, pmdp);
}

void __spf_drain_pud(struct mm_struct *mm, pud_t *pudp);

/* spf_drain_pmd() for all tables below a PUD entry. */
static inline void spf_drain_pud(struct mm_struct *mm, pud_t *pudp)
{
	if (static_branch_unlikely(&spf_writer_key))
		__spf_drain_pud(mm, pudp);
}
#endif /* CONFIG_HAVE_MOVE_PMD */

void __spf_sync_notifiers(void);

/**
 * spf_sync_notifiers() - wait for page faults that may not notify
 *
 * To be called after the first MMU notifier of an mm can be seen in
 * mm->notifier_subscriptions.  A fault that did not see it is over when this
 * returns.
 *
 * Context: may sleep.
 */
static inline void spf_sync_notifiers(void)
{
	if (static_branch_unlikely(&spf_writer_key))
		__spf_sync_notifiers();
}

/*
 * mm/memory.c: what page faults of both kinds share.  A function with one
 * caller is inlined; one with two is to be as well.
 */
#define __spf_inline		__always_inline
bool spf_can_reuse(struct folio *folio, struct vm_area_struct *vma);
void spf_account_fault(struct mm_struct *mm, struct pt_regs *regs,
		       unsigned long address, unsigned int flags);

#else /* !CONFIG_SPECULATIVE_PAGE_FAULT */

static __always_inline bool spf_enabled(void)
{
	return false;
}

static inline bool spf_fault(struct mm_struct *mm, unsigned long address,
			     unsigned int flags, struct pt_regs *regs)
{
	return false;
}

#define spf_write_barrier()	do { } while (0)
#define __spf_inline

/* Macros: this is included before the types of entries are known. */
#define spf_drain_pmd(mm, pmdp)	((void)(mm), (void)(pmdp))
#define spf_drain_pud(mm, pudp)	((void)(mm), (void)(pudp))

static inline void spf_sync_notifiers(void)
{
}

#endif /* CONFIG_SPECULATIVE_PAGE_FAULT */

#endif /* _LINUX_SPF_H */
