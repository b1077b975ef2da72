// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: section-wise madvise (vm.madvise_section_kbytes).
 *
 * Upstream holds mmap_lock for reading while MADV_DONTNEED frees the pages of a
 * range, and while MADV_FREE, MADV_COLD and MADV_PAGEOUT look at each of them.
 * Every thread that wants to map, unmap or protect anything waits.  Here a large
 * range is handled section by section, each under the lock of its VMA, as page
 * faults hold it.  Between two sections nothing is held, and a section ends early
 * if a writer waits for the VMA.
 *
 *  A1. The call is equivalent to calls for consecutive parts of the range by the
 *      same thread.  A VMA is looked up and checked anew for each section, so
 *      it does not matter what others do to the address space in between.
 *  A2. The VMA lock does what mmap_lock held for reading does for upstream: the
 *      VMA stays, with its flags, its userfaultfd context and its place in rmap,
 *      and so do the page tables above the lowest level.  The lowest one can go
 *      away under either lock.  Neither excludes page faults.
 *  A3. What the section has changed is flushed from the TLB before the VMA lock is
 *      released; what others have changed meanwhile, before the call returns.
 *
 * process_madvise() of oneself may also discard memory, as upstream allows it since
 * 6.13.  Consecutive ranges of its vector that lie in one VMA are one section, with
 * one TLB flush where an mmu_gather merges ranges (MMU_GATHER_MERGE_VMAS).
 *
 * VMAs that need mmap_lock are left to upstream, from the first one to the end of
 * the range: hugetlb, memory of drivers and DAX (a huge PUD may have to be split),
 * userfaultfd with UFFD_FEATURE_EVENT_REMOVE (upstream waits for the event without
 * the lock), and every VMA for which the call fails.  So errors are upstream's.
 *
 * See Documentation/admin-guide/mm/faultline/madvise.rst.
 */

#include <linux/blkdev.h>
#include <linux/dax.h>
#include <linux/faultline_madvise.h>
#include <linux/faultline_munmap.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/swap.h>
#include <linux/uio.h>
#include <linux/vmstat.h>

#include <asm/tlb.h>

#include "../internal.h"
#include "faultline.h"
#include "section.h"

/* === Data ================================================================= */

/* vm.madvise_section_kbytes is not 0. */
DEFINE_STATIC_KEY_FALSE(madvise_section_key);

/* The value of the switch in bytes; a shorter range is handled as upstream. */
unsigned long madvise_section_bytes __read_mostly;

static void madvise_section_apply(unsigned long kbytes)
{
	/* Pairs with each READ_ONCE(): a call may see the old value. */
	WRITE_ONCE(madvise_section_bytes, section_bytes(kbytes));
	if (kbytes)
		static_branch_enable(&madvise_section_key);
	else
		static_branch_disable(&madvise_section_key);
}

struct faultline_toggle madvise_section_toggle = {
	.name	= "madvise_section_kbytes",
	.stock	= 0,
	.min	= 0,
	.max	= SZ_1G / SZ_1K,
	.value	= CONFIG_FAULTLINE_MADVISE_DEFAULT,
	.apply	= madvise_section_apply,
};

/* === Which calls, and which VMAs ========================================== */

static bool behavior_discards(int behavior)
{
	return behavior == MADV_DONTNEED || behavior == MADV_DONTNEED_LOCKED;
}

/* As __munmap_section_wanted(): somebody must be there to wait. */
static bool section_wanted(struct mm_struct *mm, int behavior,
			   unsigned long section)
{
	switch (behavior) {
	case MADV_DONTNEED:
	case MADV_DONTNEED_LOCKED:
	case MADV_FREE:
	case MADV_COLD:
	case MADV_PAGEOUT:
		break;
	default:
		return false;
	}
	if (mm == current->mm && atomic_read(&mm->mm_users) == 1)
		return false;
	return section_has_memory(mm, section);
}

/* Can the VMA lock replace mmap_lock, and will the call succeed? */
static bool section_possible(struct vm_area_struct *vma, int behavior)
{
	if (vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP | VM_IO))
		return false;
	if (vma_is_dax(vma) ||
	    section_wants_event(vma, UFFD_FEATURE_EVENT_REMOVE))
		return false;
	return madvise_section_valid(vma, behavior);
}

/* === Sections ============================================================= */

/* Lock for reading the VMA at @addr, or the next one above; NULL if none. */
static struct vm_area_struct *section_lock_vma(struct mm_struct *mm,
					       unsigned long addr)
{
	struct vm_area_struct *vma = lock_vma_under_rcu(mm, addr);

	if (vma)
		return vma;
	/* No VMA here, or a writer has it: look again under mmap_lock. */
	mmap_read_lock(mm);
	vma = find_vma(mm, addr);
	/* Nobody can write-lock it now, so this does not wait. */
	if (vma)
		down_read(&vma->vm_lock->lock);
	mmap_read_unlock(mm);
	return vma;
}

/*
 * Walk [start, end) of a VMA that is locked for reading, as far as @section goes,
 * and unlock the VMA.  Returns where it ended, as faultline_zap_section().
 */
static unsigned long section_walk(struct vm_area_struct *vma,
				  unsigned long start, unsigned long end,
				  struct section *section, int behavior)
{
	struct mm_struct *mm = vma->vm_mm;
	struct mmu_notifier_range range;
	unsigned long addr = start;
	struct section_step step;
	struct mmu_gather tlb;

	/* MADV_COLD and MADV_PAGEOUT change no access: as upstream. */
	if (behavior == MADV_FREE) {
		end = faultline_notified_end(vma, start, end, section->budget);
		mmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0, mm,
					start, end);
	}
	lru_add_drain();
	tlb_gather_mmu(&tlb, mm);
	if (behavior == MADV_FREE) {
		update_hiwater_rss(mm);
		mmu_notifier_invalidate_range_start(&range);
	}
	do {
		addr = faultline_next_step(vma, addr, end, section, &step);
		if (step.start < step.end)
			madvise_section_walk(&tlb, vma, step.start, step.end,
					     behavior);
		else
			cond_resched();
	} while (addr < end && !section_over(section, vma));
	tlb_flush_mmu_tlbonly(&tlb);
	if (behavior == MADV_FREE)
		mmu_notifier_invalidate_range_end(&range);
	vma_end_read(vma);
	tlb_finish_mmu(&tlb);

	return addr;
}

/* One section at @start; unlocks the VMA.  Returns where it ended. */
static unsigned long section_advise(struct vm_area_struct *vma,
				    unsigned long start, unsigned long end,
				    int behavior)
{
	struct section section = section_begin(READ_ONCE(madvise_section_bytes));

	/* Writing to swap is slow, also for a huge page: one entry at a time. */
	if (behavior == MADV_PAGEOUT)
		section.step = WORK_LEAF;
	if (behavior_discards(behavior))
		end = faultline_zap_section(vma, start, end, &section, NULL);
	else
		end = section_walk(vma, start, end, &section, behavior);

	count_vm_event(MADVISE_SECTION_SECTIONS);
	if (section.contended)
		count_vm_event(MADVISE_SECTION_CONTENDED);
	return end;
}

static unsigned long section_untag(struct mm_struct *mm, unsigned long addr)
{
	if (mm == current->mm)
		return untagged_addr(addr);
	mmap_read_lock(mm);
	addr = untagged_addr_remote(mm, addr);
	mmap_read_unlock(mm);
	return addr;
}

/* See madvise_sectioned(). */
unsigned long __madvise_sectioned(struct mm_struct *mm, unsigned long start,
				  unsigned long len, int behavior, int *error)
{
	unsigned long size = READ_ONCE(madvise_section_bytes);
	unsigned long addr, end;
	struct blk_plug plug;

	if (!size || !section_wanted(mm, behavior, size))
		return 0;

	count_vm_event(MADVISE_SECTION_CALLS);
	start = section_untag(mm, start);
	addr = start;
	end = start + len;
	blk_start_plug(&plug);
	while (addr < end) {
		struct vm_area_struct *vma;

		/* Ends MADV_COLD and MADV_PAGEOUT; upstream's part sees it, too. */
		if (fatal_signal_pending(current) &&
		    (behavior == MADV_COLD || behavior == MADV_PAGEOUT))
			break;

		vma = section_lock_vma(mm, addr);
		/* As madvise_walk_vmas(): holes are skipped, and reported. */
		if (!vma) {
			*error = -ENOMEM;
			addr = end;
			break;
		}
		if (vma->vm_start > addr || vma_munmap_dead(vma)) {
			*error = -ENOMEM;
			addr = vma->vm_start > addr ? vma->vm_start :
						      vma->vm_end;
			addr = min(addr, end);
			vma_end_read(vma);
			continue;
		}
		if (!section_possible(vma, behavior)) {
			vma_end_read(vma);
			count_vm_event(MADVISE_SECTION_UPSTREAM);
			break;
		}
		addr = section_advise(vma, addr, min(vma->vm_end, end),
				      behavior);
		cond_resched();
	}
	blk_finish_plug(&plug);

	return addr - start;
}

/* === Vectors ============================================================== */

/*
 * See madvise_vector_allowed().  mm_access() of a thread of the same group cannot
 * return another mm: all have that of current, until exec() has seen the others die.
 */
bool __madvise_vector_allowed(struct task_struct *task, int behavior)
{
	return behavior_discards(behavior) && same_thread_group(task, current);
}

/* The rest of the first range of a vector. */
struct vector_range {
	unsigned long start, end;
};

/* Empty if the vector is, or if its first range is not a valid one. */
static struct vector_range vector_first(const struct iov_iter *iter)
{
	unsigned long start;

	if (!iov_iter_count(iter))
		return (struct vector_range) { };
	start = untagged_addr((unsigned long)iter_iov_addr(iter));
	if (!PAGE_ALIGNED(start))
		return (struct vector_range) { };
	return (struct vector_range) {
		start, start + PAGE_ALIGN(iter_iov_len(iter))
	};
}

/*
 * Zap ranges at the head of a vector that lie in one VMA, as one section.  Each is
 * announced to notifiers by itself, as by a call of its own.  The last one may end
 * in the middle: @range is what is left of it, or the range that follows.
 *
 * @iter moves by whole ranges only.  iter_iov_len() is wrong in the middle of a
 * vector of one range (ITER_UBUF), and process_madvise() returns what @iter has
 * moved by, which ends with a range.
 *
 * Returns false if nothing was zapped, since the range needs do_madvise().
 */
static bool vector_section(struct mm_struct *mm, struct iov_iter *iter,
			   struct vector_range *range, int behavior)
{
	struct section section = section_begin(READ_ONCE(madvise_section_bytes));
	struct vm_area_struct *vma;
	struct mmu_gather tlb;

	vma = section_lock_vma(mm, range->start);
	if (!vma)
		return false;
	if (vma_munmap_pending(vma) || !section_possible(vma, behavior) ||
	    !range_in_vma(vma, range->start, range->end)) {
		vma_end_read(vma);
		return false;
	}

	tlb_gather_mmu(&tlb, mm);
	do {
		struct mmu_notifier_range notified;
		unsigned long end;

		end = faultline_notified_end(vma, range->start, range->end,
					     section.budget);
		mmu_notifier_range_init(&notified, MMU_NOTIFY_CLEAR, 0, mm,
					range->start, end);
		update_hiwater_rss(mm);
		mmu_notifier_invalidate_range_start(&notified);
		range->start = faultline_zap_steps(&tlb, vma, range->start, end,
						   &section, NULL);
		mmu_notifier_invalidate_range_end(&notified);
		if (range->start < range->end)
			break;
		iov_iter_advance(iter, iter_iov_len(iter));
		*range = vector_first(iter);
	} while (range->start < range->end &&
		 range_in_vma(vma, range->start, range->end) &&
		 !section_over(&section, vma));
	/* See A3. */
	tlb_flush_mmu_tlbonly(&tlb);
	vma_end_read(vma);
	tlb_finish_mmu(&tlb);

	count_vm_event(MADVISE_SECTION_SECTIONS);
	if (section.contended)
		count_vm_event(MADVISE_SECTION_CONTENDED);
	return true;
}

/* See madvise_vector(). */
int __madvise_vector(struct mm_struct *mm, struct iov_iter *iter, int behavior)
{
	const size_t count = iov_iter_count(iter);
	struct vector_range range;
	bool zapped = false;
	int ret;

	if (!behavior_discards(behavior))
		return 0;
	/* See __madvise_vector_allowed(). */
	if (WARN_ON_ONCE(mm != current->mm))
		return -EINVAL;

	range = vector_first(iter);
	while (range.start < range.end &&
	       vector_section(mm, iter, &range, behavior)) {
		zapped = true;
		cond_resched();
	}
	if (zapped)
		count_vm_event(MADVISE_SECTION_CALLS);

	/* The rest of a range that was begun: see A1. */
	if (range.start > vector_first(iter).start) {
		count_vm_event(MADVISE_SECTION_UPSTREAM);
		ret = do_madvise(mm, range.start, range.end - range.start,
				 behavior);
		if (ret < 0)
			return ret;
		iov_iter_advance(iter, iter_iov_len(iter));
	} else if (!zapped && range.start < range.end) {
		/* Else the next call for the rest of the vector counts it. */
		count_vm_event(MADVISE_SECTION_UPSTREAM);
	}
	return iov_iter_count(iter) < count;
}
