/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Speculative page faults: the interface to mm/ and arch/.
 *
 * A speculative page fault does its slow work from a snapshot of the VMA, without
 * a lock, and checks, with the page table locked (or the VMA, for a moment), if it
 * was write-locked since.  See mm/faultline/spf.c for the protocol, and
 * Documentation/admin-guide/mm/faultline/spf.rst for vm.speculative_page_fault.
 */
#ifndef _LINUX_FAULTLINE_SPF_H
#define _LINUX_FAULTLINE_SPF_H

#include <linux/err.h>
#include <linux/jump_label.h>
#include <linux/kernel.h>
#include <linux/mm_types.h>

struct folio;
struct mm_struct;
struct mmu_notifier_subscriptions;
struct pt_regs;
struct vm_area_struct;

/* The entry that the CPU found at the fault address. */
enum spf_entry {
	SPF_ENTRY_UNKNOWN,
	SPF_ENTRY_ABSENT,	/* not present for the CPU, or no table */
	SPF_ENTRY_PRESENT,
};

#ifdef CONFIG_FAULTLINE_SPF

DECLARE_STATIC_KEY_FALSE(spf_key);
DECLARE_STATIC_KEY_FALSE(spf_writer_key);

/* vm.speculative_page_fault is on: try spf_fault(). */
static __always_inline bool spf_enabled(void)
{
	return static_branch_unlikely(&spf_key);
}

struct vm_area_struct *spf_fault(unsigned long address, unsigned int flags,
				 struct pt_regs *regs, enum spf_entry entry);

/*
 * vma_start_write() has written the sequence number and released the VMA lock.
 * The writer's next changes to the VMA must not be seen before the number, and
 * its reads of page tables must not be older than the number: the release alone
 * guarantees neither.  Pairs with the smp_rmb() of spf_snapshot_vma() and
 * the barrier of revalidate().  The release was an atomic operation, so this
 * costs nothing on x86.
 */
#define spf_write_barrier()	smp_mb__after_atomic()

void __spf_drain_pmd(struct mm_struct *mm, pmd_t *pmdp);

/**
 * spf_drain_pmd() - wait for page faults that hold the lock of a page table
 * @mm: The mm, whose mmap_lock is held for writing.
 * @pmdp: PMD entry, which points to a page table or not.
 *
 * For callers that have write-locked the VMA and take a page table away without
 * the page table lock, or flush translations made from its entries.  On return,
 * all faults that were revalidated before the VMA was write-locked are over;
 * there are no others.
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
 * spf_rcu_tables() - must page tables, of any level, be freed by RCU?
 *
 * For callers that have write-locked the VMAs above the table; they may have
 * downgraded mmap_lock since.  A speculative fault may look at the table, and
 * take its lock, until an RCU grace period after the table was unlinked from
 * the level above.  If this returns false, a later fault finds the VMA locked,
 * changed or gone, and does not reach the table: the full barrier of
 * spf_write_barrier() pairs with the grace period in spf_apply().
 *
 * Return: true if a grace period has to pass.
 */
static __always_inline bool spf_rcu_tables(void)
{
	return static_branch_unlikely(&spf_writer_key);
}

/* Hash MMU: walkers run with interrupts off, so an IPI waits for them. */
bool spf_irqs_off(void);

/**
 * spf_may_deposit() - does a collapse have a table that it may deposit?
 * @fresh: It has a new table, which no fault has found.
 *
 * A collapse deposits a table below the huge page, and the deposited table is
 * freed at once when the huge page is unmapped.  Call this with the VMA
 * write-locked; an earlier answer does not count.
 *
 * Return: false if the collapse has to be given up.
 */
static inline bool spf_may_deposit(bool fresh)
{
	/* On the hash MMU, pmdp_collapse_flush() sends an IPI. */
	return fresh || !spf_rcu_tables() || spf_irqs_off();
}

void __spf_sync_notifiers(void);

/**
 * spf_sync_notifiers() - wait for page faults that may not call MMU notifiers
 *
 * Call this after publishing the first MMU notifier of an mm in
 * mm->notifier_subscriptions.  On return, all faults that did not see it are
 * over.
 *
 * Context: may sleep.
 */
static inline void spf_sync_notifiers(void)
{
	/*
	 * Order the notifier before the key: if this finds spf_writer_key off,
	 * a fault that then finds spf_key on sees the notifier.  Pairs with the
	 * grace period in spf_apply().
	 */
	smp_mb();
	if (static_branch_unlikely(&spf_writer_key))
		__spf_sync_notifiers();
}

bool __spf_publish_notifiers(struct mm_struct *mm,
			     struct mmu_notifier_subscriptions *subscriptions);

/**
 * spf_publish_notifiers() - publish an empty set of MMU notifiers, and wait
 * @mm: The mm, which has no set yet.
 * @subscriptions: The empty set.
 *
 * This saves spf_sync_notifiers() from waiting later, when all locks of @mm and
 * of the files that it maps are held.
 *
 * Context: mmap_lock held for writing.  May sleep.
 *
 * Return: true if @subscriptions now belongs to @mm.
 */
static inline bool
spf_publish_notifiers(struct mm_struct *mm,
		      struct mmu_notifier_subscriptions *subscriptions)
{
	return static_branch_unlikely(&spf_writer_key) &&
	       __spf_publish_notifiers(mm, subscriptions);
}

/* mm/memory.c: helpers that both kinds of page faults share. */
bool spf_can_reuse(struct folio *folio, struct vm_area_struct *vma);
void spf_account_fault(struct mm_struct *mm, struct pt_regs *regs,
		       unsigned long address, unsigned int flags,
		       vm_fault_t result);

#else /* !CONFIG_FAULTLINE_SPF */

static __always_inline bool spf_enabled(void)
{
	return false;
}

static inline struct vm_area_struct *
spf_fault(unsigned long address, unsigned int flags, struct pt_regs *regs,
	  enum spf_entry entry)
{
	return NULL;
}

#define spf_write_barrier()	do { } while (0)

/* Macros: this is included before the page table types are known. */
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

static inline bool spf_irqs_off(void)
{
	return false;
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

#endif /* CONFIG_FAULTLINE_SPF */

/* The result of handle_mm_fault() for @done, which is from spf_fault(). */
static inline vm_fault_t spf_fault_result(const struct vm_area_struct *done)
{
	return PTR_ERR(done) == -EHWPOISON ? VM_FAULT_HWPOISON : 0;
}

#endif /* _LINUX_FAULTLINE_SPF_H */
