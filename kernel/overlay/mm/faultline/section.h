/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: a part of a range of memory that is handled in one hold of a lock,
 * for all calls that work section by section.
 */
#ifndef _MM_FAULTLINE_SECTION_H
#define _MM_FAULTLINE_SECTION_H

#include <linux/align.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm_types.h>
#include <linux/pgtable.h>
#include <linux/rwsem.h>
#include <linux/sizes.h>
#include <linux/userfaultfd.h>
#include <linux/userfaultfd_k.h>

struct mmu_gather;
struct zap_details;

/*
 * Units of work.  Zapping a full page of page-table entries costs 48 times
 * as much as zapping a huge page (counted in instructions on x86-64); 32 is
 * close enough and turns the arithmetic into shifts.
 */
#define WORK_PTE_TABLE		32L
#define WORK_LEAF		1L

/*
 * A section is at most this large, or one page table: one mmu_gather takes the
 * pages of so much memory, so that they are freed after the VMA lock has been
 * released.  Where one table maps more (arm64 with pages of 64 KiB), a section
 * that begins in the middle of one can exceed that, and frees some pages before.
 */
#define SECTION_MAX		((unsigned long)SZ_32M)

/* The bytes that @kbytes of a sysctl stand for: whole page tables; 0 if off. */
static inline unsigned long section_bytes(unsigned long kbytes)
{
	return ALIGN(kbytes * SZ_1K, PMD_SIZE);
}

/* The budget for a section of @bytes: at least a table, which may be larger. */
static inline long section_budget(unsigned long bytes)
{
	return WORK_PTE_TABLE * max(bytes >> PMD_SHIFT, 1UL);
}

/* A section in progress. */
struct section {
	/* The work that it may still do; positive if there is any. */
	long budget;
	/* How much of it to do before looking for a waiter. */
	long step;
	/* It ended early, since a writer waits for its VMA. */
	bool contended;
	/* faultline_zap_section(): leave mm->tlb_flush_pending to the last flush. */
	bool hide_flush;
#ifdef CONFIG_FAULTLINE_MUNMAP_TORTURE
	/* The test hooks of munmap apply to it. */
	bool tested;
#endif
};

static inline void section_set_tested(struct section *section)
{
#ifdef CONFIG_FAULTLINE_MUNMAP_TORTURE
	section->tested = true;
#endif
}

/* A part of a section that is done at once. */
struct section_step {
	unsigned long start, end;
};

/* Begin one of @bytes: 0 if the switch was turned off since the call began. */
static inline struct section section_begin(unsigned long bytes)
{
	const long budget = section_budget(bytes ? min(bytes, SECTION_MAX) :
						   SECTION_MAX);

	/*
	 * The walks to steps of one table can be 1 % of the work.  Where a section
	 * is only a few tables, two are a large part of it.
	 */
	return (struct section) {
		.budget = budget,
		.step = WORK_PTE_TABLE * (budget < 8 * WORK_PTE_TABLE ? 1 : 2),
	};
}

/* Does @section end here, before the end of its range? */
static inline bool section_over(struct section *section,
				struct vm_area_struct *vma)
{
	if (section->budget <= 0)
		return true;
	section->contended = rwsem_is_contended(&vma->vm_lock->lock);
	return section->contended;
}

/* Must a userfaultfd be told?  @feature is its UFFD_FEATURE_EVENT_* for this. */
static inline bool section_wants_event(const struct vm_area_struct *vma,
				       unsigned int feature)
{
#ifdef CONFIG_USERFAULTFD
	const struct userfaultfd_ctx *ctx = vma->vm_userfaultfd_ctx.ctx;

	return ctx && (ctx->features & feature);
#else
	return false;
#endif
}

/* Anonymous memory, with no driver or file behind it. */
static inline bool vma_is_plain_anonymous(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) &&
	       !(vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP));
}

#ifdef CONFIG_FAULTLINE_MUNMAP_TORTURE
bool section_late_flush(const struct section *section);
void section_flush_window(const struct section *section);
#else
/* Does a test flush the TLB only after the VMA has been unlocked? */
static inline bool section_late_flush(const struct section *section)
{
	return false;
}

/* A test delays the section between unlocking the VMA and freeing its pages. */
static inline void section_flush_window(const struct section *section)
{
}
#endif

unsigned long faultline_mapped_pages(struct mm_struct *mm);

/* Does @mm have as much memory as a section of @bytes? */
static inline bool section_has_memory(struct mm_struct *mm, unsigned long bytes)
{
	return faultline_mapped_pages(mm) >= bytes / PAGE_SIZE;
}

unsigned long faultline_spend_budget(struct mm_struct *mm, unsigned long addr,
				     unsigned long end, long *budget,
				     struct section_step *step);
unsigned long faultline_first_entry(struct vm_area_struct *vma,
				    unsigned long start, unsigned long end);
unsigned long faultline_next_step(struct vm_area_struct *vma, unsigned long addr,
				  unsigned long end, struct section *section,
				  struct section_step *step);
unsigned long faultline_notified_end(struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     long budget);
unsigned long faultline_zap_steps(struct mmu_gather *tlb,
				  struct vm_area_struct *vma,
				  unsigned long start, unsigned long end,
				  struct section *section,
				  struct zap_details *details);
unsigned long faultline_zap_section(struct vm_area_struct *vma,
				    unsigned long start, unsigned long end,
				    struct section *section,
				    struct zap_details *details);

#endif /* _MM_FAULTLINE_SECTION_H */
