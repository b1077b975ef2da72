/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hugetlb page table sharing: the interface to mm/ and fs/hugetlbfs/.
 */
#ifndef _LINUX_FAULTLINE_HUGETLB_H
#define _LINUX_FAULTLINE_HUGETLB_H

#include <linux/gfp.h>
#include <linux/hugetlb.h>
#include <linux/jump_label.h>
#include <linux/mm.h>

struct address_space;
struct kobj_attribute;
struct mmu_gather;
struct zap_details;

#ifdef CONFIG_FAULTLINE_HUGETLB

DECLARE_STATIC_KEY_FALSE(hugetlb_pmd_sharing_key);

extern struct kobj_attribute pmd_tables_shared_attr;
extern struct kobj_attribute pmd_table_refs_attr;

/*
 * A VMA that shares page tables must have a lock: one without a lock is assumed
 * to be the only owner of its tables.  So a copy must get a lock as well.
 *
 * hugetlb_vm_op_open() allocates it with mmap_lock held for writing.  That
 * cannot take forever: the lock is smaller than a page, and the OOM killer,
 * which lets such an allocation use the reserves, needs no lock that is held
 * there (the reaper only trylocks mmap_lock).
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
int hugetlb_pmd_unshare_done(struct mm_struct *mm, unsigned long addr,
			     pte_t *entry);

/**
 * hugetlb_vma_may_share - should a new hugetlb VMA get a lock?
 * @vma: The VMA, not linked into i_mmap yet; NULL is allowed.
 *
 * The answer is final: a linked VMA never gets a lock later, and keeps the one
 * it has until its final unmap.
 *
 * Return: false if the VMA must never share page tables.
 */
static inline bool hugetlb_vma_may_share(struct vm_area_struct *vma)
{
	return !static_branch_unlikely(&hugetlb_pmd_sharing_key) ||
	       __hugetlb_vma_may_share(vma);
}

/* want_pmd_share(): in mode 0, not even a VMA that may share does. */
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
 * Takes the hugetlb VMA lock only once for each new page table, and the fault
 * mutex only to add a page to the file.
 *
 * Return: true if the fault is handled; false if hugetlb_fault() must handle
 * it, with nothing held and @vmf as it was.
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
 * @start:   Start of the range that goes away; may be below the VMA.
 * @end:     End of the range; may be above the VMA.
 * @details: As for unmap_single_vma().
 *
 * Context: mmap_lock is held, and @vma is detached or the mm has no other user.
 * May sleep.
 *
 * Return: true if it is done; false if the caller must do it.
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
 * @start:   Start of the range, within the VMA.
 * @end:     End of the range, within the VMA.
 * @details: As for zap_page_range_single().
 *
 * Context: mmap_lock or the VMA lock is held at least for reading.  May sleep.
 *
 * Return: true if it is done; false if the caller must do it.
 */
static inline bool hugetlb_zap_range(struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     struct zap_details *details)
{
	return static_branch_unlikely(&hugetlb_pmd_sharing_key) &&
	       is_vm_hugetlb_page(vma) &&
	       __hugetlb_zap_range(vma, start, end, details);
}

#ifdef CONFIG_FAULTLINE_HUGETLB_TORTURE
bool hugetlb_entry_lock_broken(void);
void hugetlb_entry_window(void);
#else
static inline bool hugetlb_entry_lock_broken(void)
{
	return false;
}

/* Delays a race test after an entry was read, and before it is used. */
static inline void hugetlb_entry_window(void)
{
}
#endif

/**
 * hugetlb_entry_lock - keep the entry of a shared mapping from changing
 * @vma:  The VMA.
 * @ptep: The entry, from hugetlb_walk() or a page table walk.
 *
 * For callers that on upstream rely on i_mmap_rwsem, or on the VMA lock, to
 * keep zaps away: neither does if the VMA has no lock.
 *
 * Return: the page table lock, held, for hugetlb_entry_unlock().
 */
static inline spinlock_t *hugetlb_entry_lock(struct vm_area_struct *vma,
					     pte_t *ptep)
{
	if (hugetlb_entry_lock_broken())
		return NULL;
	return huge_pte_lock(hstate_vma(vma), vma->vm_mm, ptep);
}

static inline void hugetlb_entry_unlock(spinlock_t *ptl)
{
	/* Always locked, unless a test breaks the rule. */
	if (!IS_ENABLED(CONFIG_FAULTLINE_HUGETLB_TORTURE) || ptl)
		spin_unlock(ptl);
}

#else /* !CONFIG_FAULTLINE_HUGETLB */

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

static inline void hugetlb_entry_window(void)
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

static inline int hugetlb_pmd_unshare_done(struct mm_struct *mm,
					   unsigned long addr, pte_t *entry)
{
	return 1;
}

#endif /* CONFIG_FAULTLINE_HUGETLB */
#endif /* _LINUX_FAULTLINE_HUGETLB_H */
