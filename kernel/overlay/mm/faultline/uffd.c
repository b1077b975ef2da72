// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: userfaultfds that let others go first when they unregister memory
 * (vm.walk_section_kbytes).
 *
 * UFFDIO_UNREGISTER, and close() of a userfaultfd, take the write protection of its
 * memory away.  Upstream holds mmap_lock for writing until the last entry is changed.
 * If the lock was released with entries still protected in a VMA that is not registered
 * any more, or unprotected in one that is, others could not tell them from those that
 * they have protected themselves.  So the range is cut instead, as mlock.c does it: what
 * is done and what is left become VMAs of their own if somebody waits.
 *
 *  U1. While the lock is released, what is below the place that the call has reached is
 *      unregistered, with no entry protected, and what is above is registered, with its
 *      entries as they were.  Others see what UFFDIO_UNREGISTER of a part leaves, and
 *      can do what they may do then.  As on upstream, page faults go on in the VMA that is
 *      being unregistered, and a UFFDIO_COPY at work there can still protect its page.
 *  U2. The call takes nothing across the place but the address.  It looks up what is
 *      there.  Upstream checks all VMAs first; to check all that is left in each hold would
 *      take longer than the work.  So a VMA at which that check would fail has come
 *      meanwhile, registered with another userfaultfd or not at all, and is passed over.
 *      Addresses only go up.
 *  U3. A VMA is only cut if the pieces can merge again (M3), which needs no ->close() and
 *      the same anon_vma.  Pieces of a userfaultfd's memory may be seen by its calls: they
 *      fail on what is unregistered.
 *  U4. A call that must not see a mapping in two pieces waits for the end (M5).
 *  U5. close() does this before ctx->released is set.  A page fault that has to wait
 *      sleeps meanwhile, as it does before close(), and is woken up at the end.  Once
 *      ctx->released is set, it would not sleep but try again and again.  Then upstream's
 *      close() goes through all mappings with the lock held, and finds those that have
 *      been moved, or could not be cut.  So whatever is left out here costs time only.
 *
 * See Documentation/admin-guide/mm/faultline/walk.rst.
 */

#include <linux/faultline_munmap.h>
#include <linux/faultline_walk.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/userfaultfd_k.h>

#include "../internal.h"
#include "section.h"
#include "walk.h"

/* U3.  A VMA that an mmap() replaces is completed first, all of it. */
static bool uffd_may_cut(struct vm_area_struct *vma)
{
	return walk_may_cut(vma) && !is_vm_hugetlb_page(vma) &&
	       !vma_munmap_pending(vma);
}

/* Make what is left from @cut on a VMA of its own, which stays as it is. */
static bool uffd_cut(struct vma_iterator *vmi, struct vm_area_struct *vma,
		     unsigned long cut)
{
	VMA_ITERATOR(at, vma->vm_mm, cut);
	bool done;

	/* Faults and UFFDIO_COPY would give each piece another one. */
	done = (!is_cow_mapping(vma->vm_flags) || !anon_vma_prepare(vma)) &&
	       !split_vma(&at, vma, cut, 0);
	/* A split has changed the tree. */
	vma_iter_set(vmi, vma->vm_start);
	vma_iter_load(vmi);
	return done;
}

/* Returns where to look for a waiter, or @end. */
static unsigned long uffd_clear_section(struct vm_area_struct *vma,
					unsigned long addr, unsigned long end)
{
	struct section section = section_begin(WALK_MLOCK_SIZE);
	struct section_step step;

	do {
		addr = walk_write_step(vma, addr, end, &section, &step);
		if (step.start < step.end && !walk_broken(WALK_UFFD_LEFT))
			uffd_wp_range(vma, step.start, step.end - step.start,
				      false);
	} while (addr < end && section.budget > 0);
	return addr;
}

/* See walk_uffd_clear(). */
unsigned long __walk_uffd_clear(struct vma_iterator *vmi,
				struct vm_area_struct *vma,
				unsigned long start, unsigned long end)
{
	bool may_cut = uffd_may_cut(vma);
	unsigned long addr = start;

	while (may_cut && addr < end) {
		addr = uffd_clear_section(vma, addr, end);
		if (addr == end || !walk_cut_awaited(vma->vm_mm))
			continue;
		may_cut = uffd_cut(vmi, vma, addr);
		if (may_cut)
			return addr;
	}
	if (addr < end)
		uffd_wp_range(vma, addr, end - addr, false);
	return end;
}

/* See walk_uffd_yield(). */
bool __walk_uffd_yield(struct mm_struct *mm, unsigned long start,
		       unsigned long end, unsigned long *done)
{
	*done += WALK_MLOCK_VMA_SIZE;
	/* The first and the last table of a part may be partial. */
	if (*done < WALK_MLOCK_SIZE / 2 || !walk_cut_awaited(mm))
		return false;
	*done = 0;
	/* One that is being killed still has to do it all, as on upstream. */
	walk_cut_yield(mm, start, end, 0);
	return true;
}

/**
 * walk_uffd_next - look up where UFFDIO_UNREGISTER goes on after walk_uffd_yield()
 * @vmi:   The iterator of the call.  Out: it finds the VMA at @start, or the next one.
 * @prev:  Out: the VMA before that one; that VMA itself if @start is inside of it.
 * @start: What is before is done; mmap_lock is held for writing.
 *
 * Return: 0, or -EINVAL if others have registered huge pages, and @start is inside of one.
 */
int walk_uffd_next(struct vma_iterator *vmi, struct vm_area_struct **prev,
		   unsigned long start)
{
	struct vm_area_struct *vma;

	vma_iter_set(vmi, start);
	vma = vma_iter_load(vmi);
	vma_iter_set(vmi, start);
	*prev = vma_prev(vmi);
	if (!vma || vma->vm_start == start)
		return 0;
	*prev = vma;
	if (!vma->vm_userfaultfd_ctx.ctx || vma_munmap_dead(vma))
		return 0;
	return is_vm_hugetlb_page(vma) &&
	       !IS_ALIGNED(start, vma_kernel_pagesize(vma)) ? -EINVAL : 0;
}

/* See walk_uffd_release(). */
void __walk_uffd_release(struct mm_struct *mm, struct userfaultfd_ctx *ctx)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma, *prev = NULL;
	unsigned long at = 0, done = 0;

	if (!mmget_not_zero(mm))
		return;

	mmap_write_lock(mm);
	for_each_vma(vmi, vma) {
		cond_resched();
		/* W1: it may have grown over what was done. */
		if (vma->vm_userfaultfd_ctx.ctx == ctx && userfaultfd_wp(vma) &&
		    !vma_munmap_pending(vma)) {
			vma = userfaultfd_clear_vma(&vmi, prev, vma,
						    vma->vm_start, vma->vm_end);
			if (IS_ERR(vma))
				break;
		}
		prev = vma;
		done += vma->vm_end - max(vma->vm_start, at);
		at = vma->vm_end;
		if (walk_uffd_yield(mm, 0, ULONG_MAX, &done)) {
			vma_iter_set(&vmi, at);
			prev = vma_prev(&vmi);
		}
	}
	mmap_write_unlock(mm);
	mmput(mm);
}
