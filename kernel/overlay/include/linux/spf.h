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
#include <linux/kernel.h>
#include <linux/mm_types.h>

struct mm_struct;
struct mmu_notifier_subscriptions;
struct pt_regs;

/* What the CPU found in the page table at the address of a fault. */
enum spf_entry {
	SPF_ENTRY_UNKNOWN,
	SPF_ENTRY_ABSENT,	/* not present for the CPU, or no table */
	SPF_ENTRY_PRESENT,
};

#ifdef CONFIG_SPECULATIVE_PAGE_FAULT

DECLARE_STATIC_KEY_FALSE(spf_key);
DECLARE_STATIC_KEY_FALSE(spf_writer_key);

/* vm.speculative_page_fault is on: worth asking spf_fault(). */
static __always_inline bool spf_enabled(void)
{
	return static_branch_unlikely(&spf_key);
}

vm_fault_t spf_fault(struct mm_struct *mm, unsigned long address,
		     unsigned int flags, struct pt_regs *regs,
		     enum spf_entry entry);

/*
 * vma_start_write() has written the sequence number and released the lock of
 * the VMA.  What the writer does next to the VMA must not be seen before the
 * number, and what it reads of page tables must not be older: release alone
 * gives neither.  Pairs with the smp_rmb() of spf_snapshot_vma() and the barrier
 * of revalidate().  The release was an atomic operation, so that this costs
 * nothing on x86.
 */
#define spf_write_barrier()	smp_mb__after_atomic()

void __spf_drain_pmd(struct mm_struct *mm, pmd_t *pmdp);

/**
 * spf_drain_pmd() - wait for page faults that hold the lock of a page table
 * @mm: The mm, whose mmap_lock is held for writing.
 * @pmdp: Entry that points to the table, or to none.
 *
 * For those who have write-locked the VMA and take a page table away without
 * the lock of the table, or flush what was made from its entries.  Faults that
 * were found valid before the VMA was write-locked are over when this returns;
 * there are no other ones.
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

/**
 * spf_rcu_tables() - whether page tables, of any level, are to be freed by RCU
 *
 * For those who have write-locked the VMAs above the table, and may have
 * downgraded mmap_lock since: a speculative fault may look at the table, and
 * take its lock, until an RCU grace period after it was taken out of the level
 * above.  If this is false, a fault that looks later finds the VMA locked, or
 * changed, or gone, and does not get to the table: the full barrier of
 * spf_write_barrier() pairs with the grace period in spf_apply().
 *
 * Return: true if a grace period has to pass.
 */
static __always_inline bool spf_rcu_tables(void)
{
	return static_branch_unlikely(&spf_writer_key);
}

bool __spf_may_deposit(void);
void __spf_sync_table(void);

/**
 * spf_may_deposit() - whether a collapse has a table that it may deposit
 * @fresh: It has a new one, which no fault has found.
 *
 * For a collapse, which deposits a table below the huge page, and that is freed
 * at once when the huge page is unmapped.  What counts is the answer while the
 * VMA is write-locked.
 *
 * Return: false if the collapse has to be given up.
 */
static inline bool spf_may_deposit(bool fresh)
{
	return fresh || !spf_rcu_tables() || __spf_may_deposit();
}

/**
 * spf_sync_table() - wait for page faults that may look at a page table
 *
 * For those who have taken the table out of the level above and have no memory
 * to free it by RCU.
 *
 * Context: may sleep.
 */
static inline void spf_sync_table(void)
{
	might_sleep();
	if (spf_rcu_tables())
		__spf_sync_table();
}

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
	/*
	 * The notifier before the key: a fault that finds spf_key on, after
	 * this has found spf_writer_key off, sees the notifier.  Pairs with
	 * the grace period in spf_apply().
	 */
	smp_mb();
	if (static_branch_unlikely(&spf_writer_key))
		__spf_sync_notifiers();
}

bool __spf_publish_notifiers(struct mm_struct *mm,
			     struct mmu_notifier_subscriptions *subscriptions);

/**
 * spf_publish_notifiers() - publish an empty set of MMU notifiers, and wait
 * @mm: The mm, which has none yet.
 * @subscriptions: The empty set.
 *
 * So that spf_sync_notifiers() does not have to wait later, when all locks of
 * @mm are held, and those of the files that it maps.
 *
 * Context: mmap_lock held for writing.  May sleep.
 *
 * Return: true if @subscriptions belongs to @mm now.
 */
static inline bool
spf_publish_notifiers(struct mm_struct *mm,
		      struct mmu_notifier_subscriptions *subscriptions)
{
	return static_branch_unlikely(&spf_writer_key) &&
	       __spf_publish_notifiers(mm, subscriptions);
}

/*
 * mm/memory.c: what page faults of both kinds share.  A function with one
 * caller is inlined; one with two is to be as well.
 */
#define __spf_inline		__always_inline
bool spf_can_reuse(struct folio *folio, struct vm_area_struct *vma);
void spf_account_fault(struct mm_struct *mm, struct pt_regs *regs,
		       unsigned long address, unsigned int flags,
		       vm_fault_t result);

#else /* !CONFIG_SPECULATIVE_PAGE_FAULT */

static __always_inline bool spf_enabled(void)
{
	return false;
}

static inline vm_fault_t spf_fault(struct mm_struct *mm, unsigned long address,
				   unsigned int flags, struct pt_regs *regs,
				   enum spf_entry entry)
{
	return VM_FAULT_FALLBACK;
}

#define spf_write_barrier()	do { } while (0)
#define __spf_inline

/* Macros: this is included before the types of entries are known. */
#define spf_drain_pmd(mm, pmdp)	((void)(mm), (void)(pmdp))
#define spf_drain_pud(mm, pudp)	((void)(mm), (void)(pudp))

static __always_inline bool spf_rcu_tables(void)
{
	return false;
}

static inline bool spf_may_deposit(bool fresh)
{
	return true;
}

static inline void spf_sync_table(void)
{
}

static inline void spf_sync_notifiers(void)
{
}

static inline bool
spf_publish_notifiers(struct mm_struct *mm,
		      struct mmu_notifier_subscriptions *subscriptions)
{
	return false;
}

#endif /* CONFIG_SPECULATIVE_PAGE_FAULT */

#endif /* _LINUX_SPF_H */
