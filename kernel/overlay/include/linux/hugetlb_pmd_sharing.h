/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hugetlb page table sharing: the interface to mm/ and fs/hugetlbfs/.
 */
#ifndef _LINUX_HUGETLB_PMD_SHARING_H
#define _LINUX_HUGETLB_PMD_SHARING_H

#include <linux/gfp.h>
#include <linux/hugetlb.h>
#include <linux/jump_label.h>
#include <linux/mm.h>

struct address_space;
struct kobj_attribute;
struct mmu_gather;
struct zap_details;

#ifdef CONFIG_HUGETLB_PMD_SHARING_CONTROL

DECLARE_STATIC_KEY_FALSE(hugetlb_pmd_sharing_key);

extern struct kobj_attribute pmd_tables_shared_attr;
extern struct kobj_attribute pmd_table_refs_attr;

/*
 * A VMA that has page tables in common with others must have a lock: one
 * without is taken to own its tables alone.  So a copy gets one as well.
 *
 * hugetlb_vm_op_open() allocates it with mmap_lock held for writing.  That
 * cannot wait for ever: it is less than a page, and the OOM killer, which
 * gives such an allocation the reserves, needs no lock that is held there
 * (the reaper only tries mmap_lock).
 */
#define HUGETLB_VMA_LOCK_GFP	(GFP_KERNEL | __GFP_NOFAIL)

bool __hugetlb_vma_may_share(struct vm_area_struct *vma);
bool __hugetlb_pmd_share_allowed(void);
bool __hugetlb_fault_fast(struct vm_fault *vmf,
			  struct address_space *mapping);
bool __hugetlb_zap_final(struct mmu_gather *tlb, struct vm_area_struct *vma,
			 unsigned long start, unsigned long end,
			 struct zap_details *details);
bool __hugetlb_zap_range(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end, struct zap_details *details);
void hugetlb_pmd_table_get(struct ptdesc *table);
void hugetlb_pmd_table_put(struct ptdesc *table);
void hugetlb_pmd_share_done(struct mm_struct *mm, unsigned long addr);
void hugetlb_pmd_unshare_done(struct mm_struct *mm, unsigned long addr,
			      struct ptdesc *table);

/**
 * hugetlb_vma_may_share - is a new hugetlb VMA to get a lock?
 * @vma: The VMA, not linked into i_mmap yet; NULL is allowed.
 *
 * The answer is for good: a lock is neither attached to a VMA that is linked
 * nor taken from it before its final unmap.
 *
 * Return: false if it shall never have page tables in common with others.
 */
static inline bool hugetlb_vma_may_share(struct vm_area_struct *vma)
{
	return !static_branch_unlikely(&hugetlb_pmd_sharing_key) ||
	       __hugetlb_vma_may_share(vma);
}

/* want_pmd_share(): also a VMA that may share does not in mode 0. */
static inline bool hugetlb_pmd_share_allowed(void)
{
	return !static_branch_unlikely(&hugetlb_pmd_sharing_key) ||
	       __hugetlb_pmd_share_allowed();
}

/**
 * hugetlb_fault_fast - handle a fault of a shared mapping without its locks
 * @vmf:     The fault; mmap_lock or the VMA lock is held for reading.
 * @mapping: Page cache of the file.
 *
 * Takes neither the hugetlb VMA lock, except once for each new page table,
 * nor the fault mutex, except to add a page to the file.
 *
 * Return: true if the fault is handled; false if hugetlb_fault() has to do
 * it, and then nothing is held and @vmf is as it was.
 */
static inline bool hugetlb_fault_fast(struct vm_fault *vmf,
				      struct address_space *mapping)
{
	return static_branch_unlikely(&hugetlb_pmd_sharing_key) &&
	       __hugetlb_fault_fast(vmf, mapping);
}

/**
 * hugetlb_zap_final - unmap a VMA that is going away
 * @tlb:     The gather of the caller.
 * @vma:     Any VMA.
 * @start:   Begin of what goes; may be below the VMA.
 * @end:     End of what goes; may be above it.
 * @details: As for unmap_single_vma().
 *
 * Context: mmap_lock is held, @vma is detached or nobody else has the mm.
 * May sleep.
 *
 * Return: true if it is done; false if the caller has to do it.
 */
static inline bool hugetlb_zap_final(struct mmu_gather *tlb,
				     struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     struct zap_details *details)
{
	return static_branch_unlikely(&hugetlb_pmd_sharing_key) &&
	       is_vm_hugetlb_page(vma) &&
	       __hugetlb_zap_final(tlb, vma, start, end, details);
}

/**
 * hugetlb_zap_range - unmap part of a VMA that stays
 * @vma:     Any VMA.
 * @start:   Begin of the range, within the VMA.
 * @end:     End of the range, within the VMA.
 * @details: As for zap_page_range_single().
 *
 * Context: mmap_lock is held for reading at least.  May sleep.
 *
 * Return: true if it is done; false if the caller has to do it.
 */
static inline bool hugetlb_zap_range(struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     struct zap_details *details)
{
	return static_branch_unlikely(&hugetlb_pmd_sharing_key) &&
	       is_vm_hugetlb_page(vma) &&
	       __hugetlb_zap_range(vma, start, end, details);
}

/**
 * hugetlb_entry_lock - keep the entry of a shared mapping as it is
 * @vma:  The VMA.
 * @ptep: The entry, from hugetlb_walk() or a page table walk.
 *
 * For those who upstream rely on i_mmap_rwsem, or on the lock of the VMA, to
 * keep zaps away: neither does so for a VMA that has no lock.
 *
 * Return: the lock of the page table, held, for hugetlb_entry_unlock().
 */
static inline spinlock_t *hugetlb_entry_lock(struct vm_area_struct *vma,
					     pte_t *ptep)
{
	return huge_pte_lock(hstate_vma(vma), vma->vm_mm, ptep);
}

static inline void hugetlb_entry_unlock(spinlock_t *ptl)
{
	spin_unlock(ptl);
}

#else /* !CONFIG_HUGETLB_PMD_SHARING_CONTROL */

#define HUGETLB_VMA_LOCK_GFP	GFP_KERNEL

static inline bool hugetlb_vma_may_share(struct vm_area_struct *vma)
{
	return true;
}

static inline bool hugetlb_pmd_share_allowed(void)
{
	return true;
}

static inline bool hugetlb_fault_fast(struct vm_fault *vmf,
				      struct address_space *mapping)
{
	return false;
}

static inline bool hugetlb_zap_final(struct mmu_gather *tlb,
				     struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     struct zap_details *details)
{
	return false;
}

static inline bool hugetlb_zap_range(struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     struct zap_details *details)
{
	return false;
}

static inline spinlock_t *hugetlb_entry_lock(struct vm_area_struct *vma,
					     pte_t *ptep)
{
	return NULL;
}

static inline void hugetlb_entry_unlock(spinlock_t *ptl)
{
}

#ifdef CONFIG_HUGETLB_PMD_PAGE_TABLE_SHARING
static inline void hugetlb_pmd_table_get(struct ptdesc *table)
{
	ptdesc_pmd_pts_inc(table);
}

static inline void hugetlb_pmd_table_put(struct ptdesc *table)
{
	ptdesc_pmd_pts_dec(table);
}
#endif

static inline void hugetlb_pmd_share_done(struct mm_struct *mm,
					  unsigned long addr)
{
}

static inline void hugetlb_pmd_unshare_done(struct mm_struct *mm,
					    unsigned long addr,
					    struct ptdesc *table)
{
}

#endif /* CONFIG_HUGETLB_PMD_SHARING_CONTROL */
#endif /* _LINUX_HUGETLB_PMD_SHARING_H */
