// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: mlock() and munlock() that let others go first (vm.walk_section_kbytes).
 *
 * Upstream holds mmap_lock, and the VMA, for writing until the pages of the whole range
 * are mlocked or munlocked.  Without these locks, a page fault or rmap would count the
 * same page again, and a page of a file would stay unevictable for good.  So the locks
 * stay, and the call is cut instead, if somebody waits: what is done and what is left
 * become VMAs of their own, as after a call for the first part of the range, and the
 * rest is a call for the second part, which merges them.
 *
 *  M1. While the lock is released, each page is counted as the flags of its VMA say,
 *      mm->locked_vm includes all that is VM_LOCKED, and no VMA has VM_LOCKED and VM_IO.
 *      Whoever takes the lock sees what two calls of upstream leave in between.
 *  M2. The flags of what is left change back before mlock_vma_pages_range() takes VM_IO
 *      off: rmap never sees VM_LOCKED alone on pages that are still to be counted.  With
 *      munlock(), rmap can see what is left without VM_LOCKED until then, as on upstream
 *      until the end.  A page that it takes off meanwhile and puts back later, as its
 *      migration has failed, keeps a count, as one that upstream's walk misses then.
 *  M3. A VMA is only cut if the pieces can merge again: if a fault can make an
 *      anon_vma, they have it before, and they have no ->close(), and no userfaultfd,
 *      whose calls want one VMA.
 *  M4. Until the call ends, mm->locked_vm is charged for what it will lock.  So it does
 *      not fail at the limit in the middle, and others cannot pass the limit.  Others
 *      can map more in its range while it has let go: then it asks the limit again.
 *  M5. A call that must not see a range in two pieces, or half locked, waits until
 *      the call that has cut it has ended: mlock() and the like of an overlapping range,
 *      mremap(), and fork(), whose child would keep the pieces.  While one waits, no
 *      call of this mm lets go of mmap_lock again, so the wait is bounded.  The calls
 *      of uffd.c cut mappings, too, and are waited for.
 *
 * The caller waits for nobody else while others wait for it by M5, and its turn at
 * mmap_lock comes (W5), so M5 adds no deadlock: it is the wait for mmap_lock that
 * upstream has.
 *
 * See Documentation/admin-guide/mm/faultline/walk.rst.
 */

#include <linux/capability.h>
#include <linux/faultline_munmap.h>
#include <linux/faultline_walk.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagewalk.h>
#include <linux/resource.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/secretmem.h>
#include <linux/spinlock.h>
#include <linux/userfaultfd_k.h>
#include <linux/wait.h>

#include "../internal.h"
#include "faultline.h"
#include "section.h"
#include "walk.h"

/* === Calls that have let go of mmap_lock ================================== */

/* It has been on at some time.  Never disabled: calls in flight outlive the switch. */
DEFINE_STATIC_KEY_FALSE(walk_mlock_key);

/* A call that has released mmap_lock, on the stack of its task. */
struct mlock_call {
	struct list_head list;
	struct mm_struct *mm;
	unsigned long start, end;
};

static DEFINE_SPINLOCK(mlock_calls_lock);
static LIST_HEAD(mlock_calls);
/* The tasks that wait for such calls by M5. */
static LIST_HEAD(mlock_waiters);
static DECLARE_WAIT_QUEUE_HEAD(mlock_calls_wait);

/* The caller holds mmap_lock for writing. */
static void mlock_call_begin(struct mlock_call *call, struct list_head *calls)
{
	spin_lock(&mlock_calls_lock);
	list_add(&call->list, calls);
	spin_unlock(&mlock_calls_lock);
}

static void mlock_call_end(struct mlock_call *call)
{
	spin_lock(&mlock_calls_lock);
	list_del(&call->list);
	spin_unlock(&mlock_calls_lock);
}

static bool mlock_overlaps(struct list_head *calls, struct mm_struct *mm,
			   unsigned long start, unsigned long end)
{
	struct mlock_call *call;
	bool found = false;

	spin_lock(&mlock_calls_lock);
	list_for_each_entry(call, calls, list) {
		if (call->mm == mm && call->start < end && start < call->end) {
			found = true;
			break;
		}
	}
	spin_unlock(&mlock_calls_lock);
	return found;
}

/* See walk_mlock_wait(). */
int __walk_mlock_wait(struct mm_struct *mm, unsigned long start,
		      unsigned long len)
{
	struct mlock_call waiter = {
		.mm	= mm,
		.start	= start,
		.end	= len > ULONG_MAX - start ? ULONG_MAX : start + len,
	};
	int err;

	mmap_assert_write_locked(mm);
	/* A call of this mm has been added under the lock that is held now. */
	if (list_empty(&mlock_calls) || walk_broken(WALK_NO_MLOCK_WAIT) ||
	    !mlock_overlaps(&mlock_calls, mm, start, waiter.end))
		return 0;

	/* Under the lock as well: from now on, no call of this mm lets go of it. */
	mlock_call_begin(&waiter, &mlock_waiters);
	do {
		mmap_write_unlock(mm);
		err = wait_event_killable(mlock_calls_wait,
					  !mlock_overlaps(&mlock_calls, mm,
							  start, waiter.end));
		if (!err)
			err = mmap_write_lock_killable(mm);
	} while (!err && mlock_overlaps(&mlock_calls, mm, start, waiter.end));
	mlock_call_end(&waiter);
	return err ? -EINTR : 0;
}

/* === Cutting a VMA ======================================================== */

/* Pages of a hold after which the call looks for somebody who waits. */
#define MLOCK_PAGES		(WALK_MLOCK_SIZE / PAGE_SIZE)
#define MLOCK_VMA_PAGES		(WALK_MLOCK_VMA_SIZE / PAGE_SIZE)

/**
 * walk_cut_awaited - does somebody wait for mmap_lock, and may have it?
 * @mm: The address space, locked for writing.
 *
 * Return: true if the walk shall be cut here.
 */
bool walk_cut_awaited(struct mm_struct *mm)
{
	/* There, a writer cannot see who waits. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return false;
	/* M5 */
	if (!list_empty(&mlock_waiters) &&
	    mlock_overlaps(&mlock_waiters, mm, 0, ULONG_MAX))
		return false;
	return mmap_lock_is_contended(mm) || rwsem_has_spinner(&mm->mmap_lock);
}

/*
 * M3, for any VMA.  Others must not miss the place in max_map_count that the second piece
 * needs.
 */
bool walk_may_cut(struct vm_area_struct *vma)
{
	const int limit = READ_ONCE(sysctl_max_map_count);

	if (vma->vm_ops && vma->vm_ops->close)
		return false;
	if (vma->vm_flags & (VM_GROWSDOWN | VM_GROWSUP))
		return false;
	return vma->vm_mm->map_count < limit - limit / 16;
}

static bool mlock_may_cut(struct vm_area_struct *vma)
{
	return !userfaultfd_armed(vma) && walk_may_cut(vma);
}

/* The VMA that begins at @addr, inside of one that has just been split. */
static void mlock_set_flags(struct mm_struct *mm, unsigned long addr,
			    vm_flags_t flags)
{
	vm_flags_reset_once(vma_lookup(mm, addr), flags);
}

/*
 * Make [@cut, @end) a VMA of its own with its old flags.  @vma, which begins before
 * @cut, may have merged with what is beyond @end, which keeps the new flags.
 */
static bool mlock_cut(struct vm_area_struct *vma, unsigned long cut,
		      unsigned long end, vm_flags_t oldflags)
{
	VMA_ITERATOR(vmi, vma->vm_mm, cut);
	struct mm_struct *mm = vma->vm_mm;

	/* Faults would give each piece another one, as their flags differ. */
	if (vma->vm_flags & VM_WRITE && is_cow_mapping(vma->vm_flags) &&
	    anon_vma_prepare(vma))
		return false;
	if (vma->vm_end > end) {
		if (split_vma(&vmi, vma, end, 0))
			return false;
		mlock_set_flags(mm, end, vma->vm_flags & ~VM_IO);
		vma_iter_set(&vmi, cut);
	}
	if (split_vma(&vmi, vma, cut, 0))
		return false;
	mlock_set_flags(mm, cut, oldflags);
	return true;
}

/**
 * walk_write_step - find the next step of a section with mmap_lock held for writing
 * @vma:     The VMA; not of hugetlb.
 * @addr:    Where the step begins at the earliest.
 * @end:     Where it ends at the latest.
 * @section: The section, of WALK_MLOCK_SIZE; nobody is looked for in it.
 * @step:    What there is to do; empty in a hole.
 *
 * Return: where the next step begins.
 */
unsigned long walk_write_step(struct vm_area_struct *vma, unsigned long addr,
			      unsigned long end, struct section *section,
			      struct section_step *step)
{
	/* A huge page counts whole, so it must not lie in two steps. */
	unsigned long next = end - addr > WALK_STEP ?
		ALIGN_DOWN(addr + WALK_STEP, PMD_SIZE) : end;

	section->step = section->budget;
	addr = faultline_next_step(vma, addr, next, section, step);
	if (step->start == step->end)
		cond_resched();
	return addr;
}

/**
 * walk_write_section - walk a part of a VMA with mmap_lock held for writing
 * @vma:     The VMA; not of hugetlb.
 * @addr:    Where the part begins.
 * @end:     Where it ends at the latest.
 * @ops:     How to walk it.
 * @private: For @ops.
 *
 * Return: where to look for a waiter, or @end.
 */
unsigned long walk_write_section(struct vm_area_struct *vma, unsigned long addr,
				 unsigned long end, const struct mm_walk_ops *ops,
				 void *private)
{
	struct section section = section_begin(WALK_MLOCK_SIZE);
	struct section_step step;

	do {
		addr = walk_write_step(vma, addr, end, &section, &step);
		if (step.start < step.end)
			walk_page_range(vma->vm_mm, step.start, step.end, ops,
					private);
	} while (addr < end && section.budget > 0);
	return addr;
}

/* See walk_mlock(). */
void __walk_mlock(struct vma_iterator *vmi, struct vm_area_struct *vma,
		  unsigned long start, unsigned long end,
		  const struct mm_walk_ops *ops, vm_flags_t oldflags)
{
	struct mm_struct *mm = vma->vm_mm;
	bool may_cut = mlock_may_cut(vma);
	unsigned long addr = start;

	while (addr < end) {
		long left;

		addr = walk_write_section(vma, addr, end, ops, NULL);
		if (addr == end || !may_cut || !walk_cut_awaited(mm))
			continue;
		may_cut = mlock_cut(vma, addr, end, oldflags);
		/* A split has changed the tree. */
		vma_iter_set(vmi, vma->vm_start);
		vma_iter_load(vmi);
		if (!may_cut)
			continue;
		left = (end - addr) >> PAGE_SHIFT;
		mm->locked_vm += vma->vm_flags & VM_LOCKED ? -left : left;
		return;
	}
}

/* === Letting go of mmap_lock ============================================== */

/* See walk_mlock_should_yield(). */
bool __walk_mlock_should_yield(struct vma_iterator *vmi,
			       struct walk_mlock_work *work)
{
	const unsigned long end = vma_iter_end(vmi);

	/* The VMA may have grown over what was done before. */
	work->pages += MLOCK_VMA_PAGES +
		       ((end - max(vma_iter_addr(vmi), work->end)) >> PAGE_SHIFT);
	work->end = end;
	/* The first and the last table of a part may be partial. */
	if (work->pages < MLOCK_PAGES / 2 || !walk_cut_awaited(current->mm))
		return false;
	work->pages = 0;
	return true;
}

/* mlock_pages_left() looks at so many VMAs: it is called again and again. */
#define MLOCK_CHARGE_VMAS	1024

/*
 * M4: the pages that mlock() has still to lock; it ends at a hole.  Behind @limit VMAs,
 * which is rare, all pages count.
 */
static unsigned long mlock_pages_left(struct mm_struct *mm, unsigned long start,
				      unsigned long end, int limit)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;
	unsigned long pages = 0;
	int vmas = 0;

	if (walk_broken(WALK_NO_MLOCK_CHARGE))
		return 0;
	for_each_vma_range(vmi, vma, end) {
		unsigned long to = min(vma->vm_end, end);

		if (++vmas > limit)
			return pages + ((end - start) >> PAGE_SHIFT);
		if (vma->vm_start > start || vma_munmap_dead(vma))
			break;
		if (!(vma->vm_flags & VM_LOCKED) && vma_supports_mlock(vma) &&
		    !vma_is_secretmem(vma))
			pages += (to - start) >> PAGE_SHIFT;
		start = to;
	}
	return pages;
}

/*
 * M4: others can have mapped more in the range, which was not charged.  So the limit is
 * asked again, as if the call began here.
 */
static bool mlock_passes_limit(struct mm_struct *mm, unsigned long start,
			       unsigned long end, unsigned long charged)
{
	const unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned long left;

	left = mlock_pages_left(mm, start, end, MLOCK_CHARGE_VMAS);
	if (left <= charged || mm->locked_vm + left <= limit)
		return false;
	left = mlock_pages_left(mm, start, end, INT_MAX);
	return left > charged && mm->locked_vm + left > limit &&
	       !capable(CAP_IPC_LOCK);
}

/**
 * walk_cut_yield - release mmap_lock until others have had it
 * @mm:    The address space, locked for writing.
 * @start: Start of the range of the call: others may wait for its end (M5).
 * @end:   Its end.
 * @pages: Pages that mlock() is to be charged for meanwhile (M4).
 *
 * Return: 0, or -EINTR if the caller is being killed; mmap_lock is held again.
 */
int walk_cut_yield(struct mm_struct *mm, unsigned long start, unsigned long end,
		   unsigned long pages)
{
	struct mlock_call call = { .mm = mm, .start = start, .end = end };

	mlock_call_begin(&call, &mlock_calls);
	mm->locked_vm += pages;
	walk_yield_write(mm);
	/* Not killable: the charge has to be taken back. */
	mmap_write_lock(mm);
	mm->locked_vm -= pages;
	mlock_call_end(&call);
	wake_up_all(&mlock_calls_wait);
	return fatal_signal_pending(current) ? -EINTR : 0;
}

/**
 * walk_mlock_yield - let others have mmap_lock in the middle of mlock() or munlock()
 * @vmi:   The iterator of the call; on return, it finds the VMA at *@at next.
 * @prev:  The VMA before that one; that VMA itself if *@at is inside of it.
 * @start: Start of the range of the call.
 * @at:    In: what is before is done.  Out: the start of the VMA there, or the same if
 *         there is a hole.
 * @end:   End of the range, beyond *@at.
 * @flags: The flags of VM_LOCKED_MASK that the call sets.
 *
 * Return: 0; -EINTR if the caller is being killed; -ENOMEM if others have mapped so much
 * in the range meanwhile that it passes the limit.  mmap_lock is held again.
 */
int walk_mlock_yield(struct vma_iterator *vmi, struct vm_area_struct **prev,
		     unsigned long start, unsigned long *at, unsigned long end,
		     vm_flags_t flags)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	unsigned long pages = 0;
	int err;

	if (flags & VM_LOCKED)
		pages = mlock_pages_left(mm, *at, end, MLOCK_CHARGE_VMAS);
	err = walk_cut_yield(mm, start, end, pages);
	if (err)
		return err;
	if (flags & VM_LOCKED && mlock_passes_limit(mm, *at, end, pages))
		return -ENOMEM;

	vma_iter_set(vmi, *at);
	vma = vma_find(vmi, end);
	/* As upstream begins. */
	*prev = vma_prev(vmi);
	if (vma && vma->vm_start < *at) {
		*prev = vma;
		*at = vma->vm_start;
	}
	return 0;
}

/**
 * walk_mlockall_yield - the same for mlockall() and munlockall()
 * @vmi:   The iterator of the call; on return, it finds the VMA that is next, or has
 *         grown over the place, and NULL if there is none.
 * @prev:  The VMA before that one.
 * @flags: The flags of VM_LOCKED_MASK that the call sets.
 *
 * Memory that the process has mapped meanwhile above the place is locked as well.  So the
 * limit, which was for all that was mapped, is asked again.
 *
 * Return: 0; -EINTR if the caller is being killed, or -ENOMEM; mmap_lock is held again.
 */
int walk_mlockall_yield(struct vma_iterator *vmi, struct vm_area_struct **prev,
			vm_flags_t flags)
{
	const unsigned long at = vma_iter_end(vmi);
	struct mm_struct *mm = current->mm;
	unsigned long pages = 0;
	int err;

	/* M4.  There can be many mappings; with no more than the limit, this is enough. */
	if (flags & VM_LOCKED && mm->total_vm > mm->locked_vm)
		pages = mm->total_vm - mm->locked_vm;
	err = walk_cut_yield(mm, 0, ULONG_MAX, pages);
	if (err)
		return err;
	if (flags & VM_LOCKED &&
	    mm->total_vm > rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT &&
	    !capable(CAP_IPC_LOCK))
		return -ENOMEM;

	vma_iter_set(vmi, at);
	vma_find(vmi, ULONG_MAX);
	*prev = vma_prev(vmi);
	return 0;
}
