/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Clearing of huge pages ahead of a hugetlb fault: the interface to mm/.
 *
 * See mm/faultline/hugetlb_zero.c for the protocol.  For vm.hugetlb_zero_ahead, see
 * Documentation/admin-guide/mm/faultline/hugetlb_zero.rst.
 */
#ifndef _LINUX_FAULTLINE_HUGETLB_ZERO_H
#define _LINUX_FAULTLINE_HUGETLB_ZERO_H

#include <linux/gfp_types.h>
#include <linux/hugetlb.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/numa.h>

#ifdef CONFIG_FAULTLINE_HUGETLB_ZERO

/* vm.hugetlb_zero_ahead is on. */
DECLARE_STATIC_KEY_FALSE(hugetlb_zero_key);
/* It was on at some time: pages of the pool may have a slot, or be clear. */
DECLARE_STATIC_KEY_FALSE(hugetlb_zero_pool_key);

vm_fault_t __hugetlb_zero_fault(struct mm_struct *mm,
				struct vm_area_struct *vma,
				unsigned long address, unsigned int flags);
int __hugetlb_zero_node(struct hstate *h, gfp_t gfp, const nodemask_t *nodes);
void __hugetlb_zero_enqueue(struct folio *folio);
void __hugetlb_zero_dequeue(struct folio *folio);
void __hugetlb_zero_remove(struct folio *folio);
bool __hugetlb_zero_use(struct folio *folio);

/**
 * hugetlb_zero_fault() - handle a fault in a hugetlb mapping
 * @mm: The mm of the VMA.
 * @vma: The VMA.
 * @address: The address of the fault.
 * @flags: FAULT_FLAG_*.
 *
 * The interface is that of hugetlb_fault(), which it calls after it has cleared
 * a page, if need be, with the lock of the VMA or of the mm released.
 *
 * Context: the VMA lock if FAULT_FLAG_VMA_LOCK, else mmap_lock, held for
 * reading.  Released if VM_FAULT_RETRY.  May sleep.
 *
 * Return: as hugetlb_fault().
 */
static inline vm_fault_t hugetlb_zero_fault(struct mm_struct *mm,
					    struct vm_area_struct *vma,
					    unsigned long address,
					    unsigned int flags)
{
	if (static_branch_unlikely(&hugetlb_zero_key))
		return __hugetlb_zero_fault(mm, vma, address, flags);
	return hugetlb_fault(mm, vma, address, flags);
}

/*
 * A page of @nodes (NULL: of any node) is about to be dequeued; hugetlb_lock is
 * held.  Returns the node to look at first, because the page that was cleared for
 * this fault is at the head of its list; or NUMA_NO_NODE.
 */
static inline int hugetlb_zero_node(struct hstate *h, gfp_t gfp,
				    const nodemask_t *nodes)
{
	if (static_branch_unlikely(&hugetlb_zero_pool_key))
		return __hugetlb_zero_node(h, gfp, nodes);
	return NUMA_NO_NODE;
}

/* @folio becomes a free page of the pool; hugetlb_lock is held. */
static inline void hugetlb_zero_enqueue(struct folio *folio)
{
	if (static_branch_unlikely(&hugetlb_zero_pool_key))
		__hugetlb_zero_enqueue(folio);
}

/*
 * @folio was free and is being allocated; hugetlb_lock is held.  From now on
 * nobody clears it, see Z2.
 */
static inline void hugetlb_zero_dequeue(struct folio *folio)
{
	if (static_branch_unlikely(&hugetlb_zero_pool_key))
		__hugetlb_zero_dequeue(folio);
}

/* @folio, free or not, leaves the pool; hugetlb_lock is held.  See Z2. */
static inline void hugetlb_zero_remove(struct folio *folio)
{
	if (static_branch_unlikely(&hugetlb_zero_pool_key))
		__hugetlb_zero_remove(folio);
}

/**
 * hugetlb_zero_folio() - clear a page that a fault has just allocated
 * @folio: The page, from alloc_hugetlb_folio(), seen by nobody else.
 * @address: The address of the fault, as for folio_zero_user().
 *
 * Does nothing if the page was cleared ahead.
 *
 * Context: may sleep.
 */
static inline void hugetlb_zero_folio(struct folio *folio,
				      unsigned long address)
{
	if (static_branch_unlikely(&hugetlb_zero_pool_key) &&
	    __hugetlb_zero_use(folio))
		return;
	folio_zero_user(folio, address);
}

#else /* !CONFIG_FAULTLINE_HUGETLB_ZERO */

static inline vm_fault_t hugetlb_zero_fault(struct mm_struct *mm,
					    struct vm_area_struct *vma,
					    unsigned long address,
					    unsigned int flags)
{
	return hugetlb_fault(mm, vma, address, flags);
}

static inline int hugetlb_zero_node(struct hstate *h, gfp_t gfp,
				    const nodemask_t *nodes)
{
	return NUMA_NO_NODE;
}

static inline void hugetlb_zero_enqueue(struct folio *folio)
{
}

static inline void hugetlb_zero_dequeue(struct folio *folio)
{
}

static inline void hugetlb_zero_remove(struct folio *folio)
{
}

/* A macro: some configurations do not declare folio_zero_user(). */
#define hugetlb_zero_folio(folio, address)	folio_zero_user(folio, address)

#endif /* CONFIG_FAULTLINE_HUGETLB_ZERO */
#endif /* _LINUX_FAULTLINE_HUGETLB_ZERO_H */
