// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: handle a large range in sections, one hold of the VMA lock each.
 *
 * The work of a range is estimated from its page tables, so that sections and
 * their steps take about the same time in dense, sparse and huge memory.
 */

#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/pgtable.h>
#include <linux/sched.h>

#include <asm/tlb.h>

#include "../internal.h"
#include "section.h"

/* === The work of a range ================================================== */

/* Estimate of the cost of zapping all of @mm, in pages. */
unsigned long faultline_mapped_pages(struct mm_struct *mm)
{
	unsigned long pages = get_mm_rss(mm) + get_mm_counter(mm, MM_SWAPENTS);

	/*
	 * RSS leaves out the zero page, but zapping its entries takes time too.
	 * In sparse memory, half of the tables can be of the upper levels.
	 */
	pages = max(pages, mm_pgtables_bytes(mm) / sizeof(pte_t) / 2);
#ifdef CONFIG_HUGETLB_PAGE
	/* Can be negative if page tables are shared. */
	pages = max_t(long, pages, atomic_long_read(&mm->hugetlb_usage));
#endif
	return pages;
}

/* Work for the part [addr, end) of a PMD entry that is not a hole. */
static long pmd_work(pmd_t pmd, unsigned long addr, unsigned long end)
{
	if (!pmd_present(pmd) || pmd_leaf(pmd))
		return WORK_LEAF;
	/* Many small VMAs can share a table: count it once, not per VMA. */
	return max(WORK_LEAF,
		   (long)((end - addr) >> (PMD_SHIFT - ilog2(WORK_PTE_TABLE))));
}

/* Add [start, end), which follows, to what was found. */
static void step_extend(struct section_step *found, unsigned long start,
			unsigned long end)
{
	found->start = min(found->start, start);
	found->end = end;
}

/* As faultline_spend_budget(), for [addr, end) below one PUD entry. */
static unsigned long spend_pmds(pud_t *pud, unsigned long addr,
				unsigned long end, long *budget,
				struct section_step *found)
{
	pmd_t *pmd;

	for (pmd = pmd_offset(pud, addr); addr < end; pmd++) {
		unsigned long next = (addr & PMD_MASK) + PMD_SIZE;
		pmd_t entry = pmdp_get_lockless(pmd);

		if (!pmd_none(entry)) {
			next = min(next, end);
			step_extend(found, addr, next);
			*budget -= pmd_work(entry, addr, next);
			if (*budget <= 0)
				return next;
		}
		/* In a hole this may be beyond @end. */
		addr = next;
	}
	return end;
}

/*
 * The PUD entry of @addr, with its value in *@val, or NULL in a hole.  Cuts *@end to
 * the range of the entry, or of the hole.
 */
static pud_t *walk_to_pud(struct mm_struct *mm, unsigned long addr,
			  unsigned long *end, pud_t *val)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;

	/* Clamp each level to the one above: some may be folded. */
	*end = pgd_addr_end(addr, *end);
	if (pgd_none(*pgd) || unlikely(pgd_bad(*pgd)))
		return NULL;

	*end = p4d_addr_end(addr, *end);
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(*p4d) || unlikely(p4d_bad(*p4d)))
		return NULL;

	*end = pud_addr_end(addr, *end);
	pud = pud_offset(p4d, addr);
	/* Huge PUDs come and go under i_mmap, tables do not. */
	*val = pudp_get(pud);
	return pud_none(*val) ? NULL : pud;
}

/*
 * Spend *@budget, which is positive, on [addr, end).  Return the address where
 * it ran out, a multiple of PMD_SIZE, or @end if it did not.  Holes are skipped
 * at the level that they are in.
 *
 * With @step, stop at a multiple of PUD_SIZE as well if there was an entry before
 * that, and fill in where entries are.
 *
 * The caller holds mmap_lock for writing, or the lock of the VMA that [addr, end)
 * lies in, so no table above the last level can go away.  Entries for the last
 * level can change (khugepaged retracts tables of file mappings under the i_mmap
 * lock only, rmap unmaps huge pages), so read them once: this is an estimate.
 *
 * The walk over the holes of a PMD table may go to the end of a PMD entry.  @end
 * is at most TASK_SIZE, so this does not wrap.
 */
unsigned long faultline_spend_budget(struct mm_struct *mm, unsigned long addr,
				     unsigned long end, long *budget,
				     struct section_step *step)
{
	struct section_step found = { .start = ULONG_MAX };

	while (addr < end && *budget > 0 && !(step && found.end)) {
		unsigned long next = end;
		pud_t val, *pud = walk_to_pud(mm, addr, &next, &val);

		if (!pud) {
			addr = next;
			continue;
		}
		*budget -= WORK_LEAF;
		if (pud_present(val) && !pud_leaf(val)) {
			addr = spend_pmds(pud, addr, next, budget, &found);
		} else {
			step_extend(&found, addr, next);
			addr = next;
		}
	}
	if (step) {
		step->start = min(found.start, addr);
		step->end = max(found.end, step->start);
	}
	return addr;
}

/**
 * faultline_first_entry - find where a section has something to do
 * @vma:   The VMA, locked for reading; not of hugetlb.
 * @start: Where to begin.
 * @end:   Where to end.
 *
 * Where there is nothing, an mmu_gather must not be opened: it flushes the TLB if
 * another one is open.
 *
 * Return: the address of the first entry or page table, or @end.  There may be none if
 * a table of a higher level is empty.
 */
unsigned long faultline_first_entry(struct vm_area_struct *vma,
				    unsigned long start, unsigned long end)
{
	struct section_step first;
	long probe = WORK_LEAF;

	faultline_spend_budget(vma->vm_mm, start, end, &probe, &first);
	return first.start;
}

/* === Steps ================================================================ */

/* Steps that flush the TLB each, in tlb_end_vma(), are longer. */
static long section_step_min(struct vm_area_struct *vma)
{
	if (section_budget(SECTION_MAX) > 4 * WORK_PTE_TABLE &&
	    (!IS_ENABLED(CONFIG_MMU_GATHER_MERGE_VMAS) ||
	     vma->vm_flags & VM_MIXEDMAP))
		return 4 * WORK_PTE_TABLE;
	return WORK_PTE_TABLE;
}

/**
 * faultline_next_step - choose how much of a section to do at once
 * @vma:     The VMA, locked for reading; not of hugetlb.
 * @addr:    Where the step begins.
 * @end:     Where it ends at the latest.
 * @section: The section, with work left to do; the step's is taken off.
 * @step:    What there is to do, without the holes around it; may be empty.
 *
 * Return: where the next step begins.
 */
unsigned long faultline_next_step(struct vm_area_struct *vma, unsigned long addr,
				  unsigned long end, struct section *section,
				  struct section_step *step)
{
	long work = section->step, left;

	/* Less than a table is about latency, and flushes do not matter. */
	if (work >= WORK_PTE_TABLE)
		work = max(work, section_step_min(vma));
	work = min(work, section->budget);
	left = work;

	addr = faultline_spend_budget(vma->vm_mm, addr, end, &left, step);
	section->budget -= work - left;
	return addr;
}

/**
 * faultline_notified_end - find where a section ends before it begins
 * @vma:    The VMA, locked for reading; not of hugetlb.
 * @start:  Start of the section.
 * @end:    Where it ends at the latest.
 * @budget: The work that it may do.
 *
 * Notifiers have to know the range in advance, which costs a walk.  Without any
 * it is saved: to register the first, mm_take_all_locks() waits for the VMA.  (The
 * set of notifiers may be there earlier, but empty.)
 *
 * Return: @end, or less if there are notifiers.
 */
unsigned long faultline_notified_end(struct vm_area_struct *vma,
				     unsigned long start, unsigned long end,
				     long budget)
{
	if (!mm_has_notifiers(vma->vm_mm))
		return end;
	return faultline_spend_budget(vma->vm_mm, start, end, &budget, NULL);
}

/* === Zapping ============================================================== */

/**
 * faultline_zap_steps - zap a part of a VMA until somebody waits for it
 * @tlb:     Takes the pages.
 * @vma:     The VMA, locked for reading; not of hugetlb.
 * @start:   Start of the part, page aligned.
 * @end:     Its end; notifiers know the range.
 * @section: The section, with work left to do; what is done is taken off.
 * @details: For unmap_page_range(); may be NULL.
 *
 * Return: where it ended.  That is before @end if the section is over.
 */
unsigned long faultline_zap_steps(struct mmu_gather *tlb,
				  struct vm_area_struct *vma,
				  unsigned long start, unsigned long end,
				  struct section *section,
				  struct zap_details *details)
{
	unsigned long addr = start;
	struct section_step step;

	do {
		addr = faultline_next_step(vma, addr, end, section, &step);
		if (step.start < step.end)
			unmap_page_range(tlb, vma, step.start, step.end,
					 details);
		else
			cond_resched();
	} while (addr < end && !section_over(section, vma));

	return addr;
}

/**
 * faultline_zap_section - zap a part of a VMA, and unlock the VMA
 * @vma:     The VMA, locked for reading; not of hugetlb.
 * @start:   Start of the part, page aligned.
 * @end:     Its end.
 * @section: The section, with work left to do; what is done is taken off.
 * @details: For unmap_page_range(); may be NULL.
 *
 * The same as zap_page_range_single(), except that pages are freed after the VMA
 * has been unlocked, since a writer of the VMA holds mmap_lock.  They are neither
 * in a page table nor in a TLB by then.  There is no uprobe_munmap(): it does not
 * look at entries, and is for memory that goes away.
 *
 * Return: where it ended, as faultline_zap_steps().
 */
unsigned long faultline_zap_section(struct vm_area_struct *vma,
				    unsigned long start, unsigned long end,
				    struct section *section,
				    struct zap_details *details)
{
	struct mm_struct *mm = vma->vm_mm;
	struct mmu_notifier_range range;
	struct mmu_gather tlb;
	unsigned long addr;

	end = faultline_notified_end(vma, start, end, section->budget);
	mmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0, mm, start, end);
	tlb_gather_mmu(&tlb, mm);
	if (section->hide_flush)
		dec_tlb_flush_pending(mm);
	update_hiwater_rss(mm);
	mmu_notifier_invalidate_range_start(&range);
	addr = faultline_zap_steps(&tlb, vma, start, end, section, details);
	/* zap_pte_range() has left no delayed rmap work. */
	if (!section_late_flush(section))
		tlb_flush_mmu_tlbonly(&tlb);
	mmu_notifier_invalidate_range_end(&range);
	vma_end_read(vma);
	section_flush_window(section);
	if (section->hide_flush) {
		/* Free the pages before others see the gather. */
		tlb_flush_mmu(&tlb);
		inc_tlb_flush_pending(mm);
	}
	tlb_finish_mmu(&tlb);

	return addr;
}
