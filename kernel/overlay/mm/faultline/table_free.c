// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: free a page table after a grace period, without memory for a batch.
 *
 * tlb_remove_table() collects tables in a page.  The rcu_head in the descriptor of
 * a table needs no memory, so it serves a table for which there is no such page,
 * and the only table of a gather.
 *
 * See include/linux/faultline_table.h.
 */

#include <linux/faultline_table.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>

#include <asm/tlb.h>

#include "pmd_clear.h"

static void free_table(struct rcu_head *head)
{
	struct ptdesc *table = container_of(head, struct ptdesc, pt_rcu_head);

	__tlb_remove_table(ptdesc_page(table));
}

/*
 * The descriptor of a table that was torn down has room for an rcu_head.  Hardware
 * no longer walks the table: the caller has called tlb_table_invalidate().
 */
void __faultline_table_free(struct page *page)
{
	if (pmd_clear_broken(PMD_CLEAR_NO_TABLE_RCU))
		__tlb_remove_table(page);
	else
		call_rcu(&page_ptdesc(page)->pt_rcu_head, free_table);
}

#ifdef CONFIG_FAULTLINE_TABLE_LONE
/*
 * Many gathers free one table, and its batch would be a page to allocate and
 * to free.  So the first table is kept without one: tlb->batch is the table
 * with TLB_LONE_TABLE set, until the next table needs a batch or the gather is
 * flushed.  Only this function sets the bit.  The flush clears it, in
 * faultline_table_free_lone(), whatever the switches are by then.
 * tlb_remove_table() never sees it: its only other caller is the pv_ops of a
 * guest, which is chosen at boot and does not call this function.
 */
void faultline_table_remove(struct mmu_gather *tlb, void *table)
{
	unsigned long batch = (unsigned long)tlb->batch;

	if (!batch) {
		tlb->batch = (void *)((unsigned long)table | TLB_LONE_TABLE);
		return;
	}
	if (batch & TLB_LONE_TABLE) {
		tlb->batch = NULL;
		tlb_remove_table(tlb, (void *)(batch - TLB_LONE_TABLE));
	}
	tlb_remove_table(tlb, table);
}

void __faultline_table_free_lone(unsigned long batch)
{
	__faultline_table_free((struct page *)(batch - TLB_LONE_TABLE));
}
#endif
