/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise walks: the interface to fs/proc and mm/gup.c.
 */
#ifndef _LINUX_FAULTLINE_WALK_H
#define _LINUX_FAULTLINE_WALK_H

#include <linux/jump_label.h>
#include <linux/mmap_lock.h>
#include <linux/mm_types.h>
#include <linux/sizes.h>

struct mm_walk_ops;

/**
 * struct walk_section_ops - a walk by sections
 * @ops_of: How to walk a VMA.  Can be called more than once for a VMA, as it is
 *          looked up for each section.
 * @walked: Optional: a part of a VMA is walked, at most WALK_STEP bytes, or any part
 *          of a VMA for which mmap_lock is held.
 *
 * Both are called with the VMA locked, and with what walk_sectioned() was given as
 * @private.
 */
struct walk_section_ops {
	const struct mm_walk_ops *(*ops_of)(struct vm_area_struct *vma,
					    void *private);
	void (*walked)(struct vm_area_struct *vma, unsigned long start,
		       unsigned long end, void *private);
};

/* Bytes that a walk goes at the most, in holes too, before it looks for a waiter. */
#define WALK_STEP		((unsigned long)SZ_1G)

/* Pages that one hold of mmap_lock faults in before it looks for a waiter. */
#define WALK_FAULT_PAGES	512

/* Pages that GUP-fast pins with interrupts off. */
#define WALK_FAST_PAGES		2048

/* A VMA up to this size is shown by smaps and numa_maps with mmap_lock held. */
#define WALK_RECORD_MIN		((unsigned long)SZ_2M)

/*
 * Bytes that one hold of mmap_lock write-protects before it looks for a waiter; at
 * least a huge page, which would be split otherwise.
 */
#define WALK_PROTECT_SIZE	max_t(unsigned long, SZ_16M, PMD_SIZE)

/* Pages that each part counts for, besides those that change: holes take time, too. */
#define WALK_PROTECT_PAGES	(WALK_FAULT_PAGES / 8)

#ifdef CONFIG_FAULTLINE_WALK

DECLARE_STATIC_KEY_FALSE(walk_section_key);

int walk_sectioned(struct mm_struct *mm, const struct walk_section_ops *walk,
		   void *private);
struct vm_area_struct *walk_record(struct vm_area_struct *vma,
				   const struct walk_section_ops *walk,
				   void *private, size_t size);
void walk_yield_read(struct mm_struct *mm);

/* Is the switch on? */
static inline bool walk_section_enabled(void)
{
	return static_branch_unlikely(&walk_section_key);
}

/**
 * walk_should_yield - should a task let go of mmap_lock?
 * @mm:    The address space; the caller holds mmap_lock for reading.
 * @pages: The pages that it has handled since it took the lock.
 *
 * Return: true if the switch is on, somebody waits, and enough was done.
 */
static inline bool walk_should_yield(struct mm_struct *mm, unsigned long pages)
{
	return static_branch_unlikely(&walk_section_key) &&
	       pages >= WALK_FAULT_PAGES && mmap_lock_is_contended(mm);
}

/* Is a VMA to be walked by walk_record()?  The gate VMA has no address space. */
static inline bool walk_by_record(const struct vm_area_struct *vma)
{
	return static_branch_unlikely(&walk_section_key) && vma->vm_mm &&
	       vma->vm_end - vma->vm_start > WALK_RECORD_MIN;
}

#else /* !CONFIG_FAULTLINE_WALK */

/* Macros: inline functions would change the register allocation. */
#define walk_sectioned(mm, walk, private)	((void)(walk), 0)
#define walk_record(vma, walk, private, size)	((void)(walk), (vma))
#define walk_yield_read(mm)			do { } while (0)
#define walk_section_enabled()			false
#define walk_should_yield(mm, pages)		((void)(pages), false)
#define walk_by_record(vma)			false

#endif /* CONFIG_FAULTLINE_WALK */
#endif /* _LINUX_FAULTLINE_WALK_H */
