// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: mmap(MAP_FIXED) over shared mappings of files (vm.munmap_section_kbytes).
 *
 * Upstream zaps what a new mapping replaces with mmap_lock held for writing.  Here,
 * before mmap() takes that lock, the pages of large shared file mappings are unmapped
 * section by section, each under the lock of its VMA.  mmap() then finds empty page
 * tables there, and does all that it does upstream.
 *
 *  F1. The mappings stay, and the next access maps the same pages again.  A program
 *      cannot rely on page-table entries: reclaim, migration and MADV_DONTNEED of
 *      another thread clear them as well.  So mmap() may fail, and others may change
 *      the address space meanwhile.  There is no mark, and faults go on; what they map
 *      again is left to mmap().
 *  F2. This is done for regular files and shared memory, where a fault finds the page
 *      in the page cache.  Left to mmap() are mlocked memory, memory of drivers, DAX,
 *      hugetlb, what is registered with userfaultfd, and small VMAs; and, in the page
 *      tables, anonymous and poisoned pages, and markers.
 *  F3. The VMA lock does what mmap_lock held for reading does for MADV_DONTNEED: see A2
 *      and A3 in madvise.c.
 *
 * See Documentation/admin-guide/mm/faultline/munmap.rst.
 */

#include <linux/dax.h>
#include <linux/faultline_munmap.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/stat.h>
#include <linux/swap.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <trace/events/faultline.h>

#include "../internal.h"
#include "faultline.h"
#include "munmap.h"
#include "section.h"

/* F2.  A sealed VMA cannot be replaced. */
static bool vma_has_cache(struct vm_area_struct *vma)
{
	return vma->vm_file && vma->vm_flags & VM_MAYSHARE &&
	       !(vma->vm_flags & (VM_SPECIAL | VM_LOCKED_MASK | VM_HUGETLB)) &&
	       S_ISREG(vma->vm_file->f_mapping->host->i_mode) &&
	       !vma_is_dax(vma) && !userfaultfd_armed(vma) &&
	       !vma_munmap_pending(vma) && can_modify_vma(vma);
}

/**
 * munmap_range_is_cache - is there nothing but what is unmapped beforehand?
 * @mm:    The address space, locked for writing.
 * @start: Start of the range of an mmap().
 * @end:   Its end.
 *
 * Return: true if munmap_section_unmap_cache() unmaps all of such a range.  shmat()
 * and remap_file_pages() do not call it, but are not told apart.
 */
bool munmap_range_is_cache(struct mm_struct *mm, unsigned long start,
			   unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end)
		if (!vma_has_cache(vma) ||
		    vma->vm_end - vma->vm_start < SECTION_VMA_MIN)
			return false;

	return true;
}

/*
 * Lock for reading the first VMA with page cache at or above *@addr, and move *@addr
 * into it.  Returns NULL if there is none before @end, or if current is being killed.
 * *@begin is when it began to lock this VMA.
 */
static struct vm_area_struct *section_lock_cache(struct mm_struct *mm,
						 unsigned long *addr,
						 unsigned long end, u64 *begin)
{
	struct vm_area_struct *vma;

	while (*addr < end && !fatal_signal_pending(current)) {
		*begin = ktime_get_ns();
		vma = munmap_lock_vma(mm, addr, end, true);
		if (!vma || vma_has_cache(vma))
			return vma;
		*addr = vma->vm_end;
		vma_end_read(vma);
		cond_resched();
	}

	return NULL;
}

/* Does the cache in it fit in one section?  An estimate, without mmap_lock. */
static bool cache_fits_section(struct mm_struct *mm, unsigned long addr,
			       unsigned long end, unsigned long size)
{
	long budget = section_budget(size);
	struct vm_area_struct *vma;
	u64 begin;

	while (budget > 0) {
		vma = section_lock_cache(mm, &addr, end, &begin);
		if (!vma)
			return true;
		addr = faultline_spend_budget(mm, addr, min(vma->vm_end, end),
					      &budget, NULL);
		vma_end_read(vma);
		cond_resched();
	}

	return false;
}

/*
 * Unmap as much of a VMA as a section may do, and unlock it.  Returns where it ended;
 * *@unmapped if there were entries.
 */
static unsigned long section_unmap_cache(struct vm_area_struct *vma,
					 unsigned long start, unsigned long end,
					 u64 begin, bool *unmapped)
{
	struct section section = section_begin(READ_ONCE(munmap_section_bytes));
	/* See F2; without ZAP_FLAG_DROP_MARKER, markers stay. */
	struct zap_details details = { .even_cows = false };
	struct mm_struct *mm = vma->vm_mm;
	const long budget = section.budget;
	const u64 locked = ktime_get_ns();
	unsigned long reached;

	start = faultline_first_entry(vma, start, end);
	if (start == end) {
		vma_end_read(vma);
		return end;
	}
	reached = faultline_zap_section(vma, start, end, &section, &details);
	/* It was a hole. */
	if (section.budget == budget)
		return reached;

	*unmapped = true;
	if (section.contended)
		count_vm_event(MUNMAP_SECTION_CONTENDED);
	count_vm_event(MUNMAP_SECTION_SECTIONS);
	trace_munmap_section(mm, start, reached, budget - section.budget,
			     ktime_get_ns() - locked, locked - begin,
			     section.contended);
	return reached;
}

/* See munmap_section_unmap_cache(). */
void __munmap_section_unmap_cache(struct mm_struct *mm, unsigned long start,
				  unsigned long len, unsigned long flags)
{
	const unsigned long size = READ_ONCE(munmap_section_bytes);
	unsigned long addr = start, end;
	bool unmapped = false;

	if (!(flags & MAP_FIXED) || flags & MAP_FIXED_NOREPLACE)
		return;
	/* mmap() refuses such a range. */
	if (offset_in_page(start) || start > TASK_SIZE || len > TASK_SIZE - start)
		return;
	/* As __munmap_section_wanted(): somebody must be there to wait. */
	if (!size || atomic_read(&mm->mm_users) == 1 ||
	    !section_has_memory(mm, size))
		return;
	end = start + PAGE_ALIGN(len);
	if (cache_fits_section(mm, start, end, size))
		return;

	lru_add_drain();
	for (;;) {
		struct vm_area_struct *vma;
		u64 begin;

		vma = section_lock_cache(mm, &addr, end, &begin);
		if (!vma)
			break;
		addr = section_unmap_cache(vma, addr, min(vma->vm_end, end),
					   begin, &unmapped);
		cond_resched();
	}
	if (unmapped) {
		count_vm_event(MUNMAP_SECTION_CALLS);
		count_vm_event(MUNMAP_SECTION_REPLACED);
	}
}
