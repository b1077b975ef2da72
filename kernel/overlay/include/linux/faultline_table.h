/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a page table is freed: the interface to mm/ and arch/.
 *
 * Features look at tables that may have been unlinked, or leave out the IPI with
 * which upstream waits for those who do.  This is the only place that decides
 * whether a table must wait for a grace period.
 */
#ifndef _LINUX_FAULTLINE_TABLE_H
#define _LINUX_FAULTLINE_TABLE_H

#include <linux/faultline_munmap.h>
#include <linux/faultline_pmd_clear.h>
#include <linux/faultline_spf.h>
#include <linux/kernel.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/spinlock_types.h>

struct mmu_gather;
struct mmu_table_batch;
struct page;

/**
 * faultline_table_rcu() - must page tables, of any level, be freed by RCU?
 *
 * See spf_rcu_tables() and munmap_section_rcu_tables().
 *
 * Return: true if a grace period has to pass.
 */
static __always_inline bool faultline_table_rcu(void)
{
	return spf_rcu_tables() || munmap_section_rcu_tables();
}

#ifdef CONFIG_FAULTLINE_TABLE_FREE

void __faultline_table_free(struct page *page);

/*
 * tlb_remove_table() has no memory for a batch.  If this returns false, the
 * caller waits for everyone that may look at @table, and frees it.
 */
static inline bool faultline_table_free(void *table)
{
	if (!static_branch_unlikely(&pmd_clear_ipi_free_key) &&
	    !faultline_table_rcu())
		return false;
	__faultline_table_free(table);
	pmd_clear_freed();
	return true;
}

#else /* !CONFIG_FAULTLINE_TABLE_FREE */

static inline bool faultline_table_free(void *table)
{
	return false;
}

#endif /* CONFIG_FAULTLINE_TABLE_FREE */

/**
 * faultline_table_sync() - wait until a page table may be freed without RCU
 *
 * For callers that have unlinked the table from the level above, and go on to
 * wait for those who walk page tables with interrupts off.
 *
 * Context: may sleep.
 */
static inline void faultline_table_sync(void)
{
	might_sleep_if(IS_ENABLED(CONFIG_FAULTLINE_SPF) ||
		       IS_ENABLED(CONFIG_FAULTLINE_MUNMAP_TABLES));
	/* A grace period is enough for both. */
	if (munmap_section_rcu_tables() ||
	    (spf_rcu_tables() && !spf_irqs_off()))
		synchronize_rcu_expedited();
}

#ifdef CONFIG_FAULTLINE_TABLE_LONE

/* Low bit of tlb->batch: the pointer is a lone page table. */
#define TLB_LONE_TABLE	1UL

/**
 * faultline_table_remove() - free a page table after a grace period
 * @tlb: The gather that has unlinked the table.
 * @table: The struct page of the table, torn down.
 *
 * The same as tlb_remove_table(), but the first table of @tlb needs no memory.
 */
void faultline_table_remove(struct mmu_gather *tlb, void *table);

void __faultline_table_free_lone(unsigned long batch);

/**
 * faultline_table_free_lone() - free the table of a gather that has no batch
 * @batch: tlb->batch, not NULL; the TLB has been flushed.
 *
 * Return: false if @batch is a batch, which is left to the caller.
 */
static inline bool faultline_table_free_lone(struct mmu_table_batch *batch)
{
	if (likely(!((unsigned long)batch & TLB_LONE_TABLE)))
		return false;
	__faultline_table_free_lone((unsigned long)batch);
	return true;
}

#else /* !CONFIG_FAULTLINE_TABLE_LONE */

#define faultline_table_remove(tlb, table)	tlb_remove_table(tlb, table)

static inline bool faultline_table_free_lone(struct mmu_table_batch *batch)
{
	return false;
}

#endif /* CONFIG_FAULTLINE_TABLE_LONE */

#ifdef CONFIG_FAULTLINE_RCU_PTLOCKS

/* The lock of a page table, where it does not fit into the descriptor. */
struct faultline_table_lock {
	spinlock_t lock;	/* first: the descriptor points to it */
	struct rcu_head rcu;
};

#define FAULTLINE_TABLE_LOCK_SIZE	sizeof(struct faultline_table_lock)

static inline void faultline_table_free_lock(struct kmem_cache *cache,
					     spinlock_t *lock)
{
	/* Like the table: its lock may be tried as long as it can be found. */
	kfree_rcu(container_of(lock, struct faultline_table_lock, lock), rcu);
}

#else /* !CONFIG_FAULTLINE_RCU_PTLOCKS */

#define FAULTLINE_TABLE_LOCK_SIZE	sizeof(spinlock_t)

static inline void faultline_table_free_lock(struct kmem_cache *cache,
					     spinlock_t *lock)
{
	kmem_cache_free(cache, lock);
}

#endif /* CONFIG_FAULTLINE_RCU_PTLOCKS */
#endif /* _LINUX_FAULTLINE_TABLE_H */
