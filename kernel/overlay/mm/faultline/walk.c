// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: section-wise walks of page tables (vm.walk_section_kbytes).
 *
 * Upstream holds mmap_lock while it walks the page tables of a whole address space,
 * or faults in a whole range.  Every thread that wants to map, unmap or protect
 * anything waits.  Here a walk is done in one of two ways:
 *
 * By section: what only looks at entries, or changes them as reclaim does, needs the
 * VMA to stay, and not the address space.  It is done section by section, each under
 * the lock of its VMA, as page faults hold it.  Between two sections nothing is held.
 *
 *  W1. Addresses only go up, so no address is handled twice.  A VMA is looked up and
 *      checked anew for each section, and nothing is carried over to the next one but
 *      the address, and sums.
 *  W2. The VMA lock does what mmap_lock does for upstream: see A2 in madvise.c.
 *  W3. A section ends after a step if a writer waits for the VMA.
 *
 * By yielding: what has to hold mmap_lock lets go of it when somebody waits.
 *
 *  W4. Not before some work is done (WALK_FAULT_PAGES), so each hold brings the walk
 *      nearer to its end, however many others wait.
 *  W5. The task waits until the first waiter has had the lock before it takes it again,
 *      rwsem_wait_turn().  So no waiter waits for ever.
 *  W6. The caller finds its place again by address, as it does after a page fault that
 *      has released the lock.
 *
 * Soft-dirty bits are cleared by yielding, with mmap_lock held for writing.
 *
 *  W7. A page that is written after the call has returned is found, and so is one that was
 *      written before and not looked at.  Nothing else is promised: what is mapped or merged
 *      meanwhile has VM_SOFTDIRTY, so at worst pages are found that nobody has written to.
 *      mremap() and fork() wait until the call is over (M5): a table that is moved to where
 *      the walk has been can have entries that are writable and not soft-dirty.
 *  W8. Each entry that has lost write access is flushed before the lock is released, as
 *      on upstream, so that nobody but rmap meets one that is not.  Until then rmap sees
 *      mm->tlb_flush_pending.
 *
 * Memory that mremap() has moved is soft-dirty.
 *
 *  W9. Upstream sets the bit of each entry that it moves, and of none in a table that it
 *      moves as a whole.  So a place where tables fit is looked for only if the VMA has
 *      VM_SOFTDIRTY.  A page is free on both sides of that place: the VMA does not merge
 *      with one that has lost the flag.
 *
 * See Documentation/admin-guide/mm/faultline/walk.rst.
 */

#include <linux/dax.h>
#include <linux/err.h>
#include <linux/faultline_munmap.h>
#include <linux/faultline_walk.h>
#include <linux/hugetlb.h>
#include <linux/ktime.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/pagewalk.h>
#include <linux/rcupdate.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>
#include <asm/tlbflush.h>
#include <trace/events/faultline.h>

#include "../internal.h"
#include "faultline.h"
#include "section.h"
#include "walk.h"

/* === Data ================================================================= */

/* vm.walk_section_kbytes is not 0. */
DEFINE_STATIC_KEY_FALSE(walk_section_key);

static void walk_section_apply(unsigned long kbytes)
{
	if (!kbytes) {
		static_branch_disable(&walk_section_key);
		return;
	}
	/* First, so that others wait for the first mlock() that lets go of its lock. */
	if (!static_key_enabled(&walk_mlock_key)) {
		static_branch_enable(&walk_mlock_key);
		/* A CPU may still execute the old code, or read the old variable. */
		synchronize_rcu();
	}
	static_branch_enable(&walk_section_key);
}

struct faultline_toggle walk_section_toggle = {
	.name	= "walk_section_kbytes",
	.stock	= 0,
	.min	= 0,
	.max	= SZ_1G / SZ_1K,
	.value	= CONFIG_FAULTLINE_WALK_DEFAULT,
	.apply	= walk_section_apply,
};

/* Walks that walk_record() drops, as the VMA has changed, until it keeps mmap_lock. */
#define WALK_RECORD_TRIES	3

/*
 * Work after which a walk looks for a writer.  Looking takes 600 instructions, and a walk
 * only some 50 for a page.
 */
#define WALK_LOOK_WORK		(WORK_PTE_TABLE * (PTRS_PER_PTE > 512 ? 1 : 4))

/* === Yielding ============================================================= */

/**
 * walk_wait_turn - wait until the first waiter has had mmap_lock
 * @mm:     The address space; the caller has released mmap_lock.
 * @writer: It was a writer, and can have made others spin.
 *
 * Context: May sleep.  Returns early if the caller is being killed.
 */
void walk_wait_turn(struct mm_struct *mm, bool writer)
{
	const bool traced = trace_walk_yield_enabled();
	u64 began = 0;

	count_vm_event(WALK_SECTION_YIELDS);
	if (traced)
		began = ktime_get_ns();
	if (!walk_broken(WALK_NO_TURN)) {
		if (writer)
			rwsem_wait_spinners(&mm->mmap_lock);
		rwsem_wait_turn(&mm->mmap_lock);
	}
	if (traced)
		trace_walk_yield(mm, ktime_get_ns() - began);
}

/**
 * walk_yield_read - release mmap_lock, and wait until the first waiter has had it
 * @mm: The address space; mmap_lock is held for reading, and is not on return.
 *
 * Context: May sleep.
 */
void walk_yield_read(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
	walk_wait_turn(mm, false);
}

/* The same for a writer, which also waits for writers that spin. */
void walk_yield_write(struct mm_struct *mm)
{
	mmap_write_unlock(mm);
	walk_wait_turn(mm, true);
}

#ifdef CONFIG_NUMA
/* Do two policies ask for the same places?  Other members change with the cpuset. */
static bool same_policy(const struct mempolicy *a, const struct mempolicy *b)
{
	if (!a || !b)
		return a == b;
	return a->mode == b->mode && a->flags == b->flags &&
	       (a->mode == MPOL_LOCAL || nodes_equal(a->nodes, b->nodes));
}

/**
 * walk_has_policy - does a VMA still have the policy that mbind() has set?
 * @vma:    The VMA; mmap_lock is held for reading, and was released meanwhile.
 * @policy: The policy.
 *
 * Another mbind() may have given it another policy, and moved its pages accordingly.
 * A cpuset may have changed the nodes of the policy: where the pages belong is up to the
 * cpuset from then on.
 *
 * Return: true if it has.
 */
bool walk_has_policy(struct vm_area_struct *vma, struct mempolicy *policy)
{
	return same_policy(vma_policy(vma), policy) ||
	       walk_broken(WALK_FOREIGN_POLICY);
}
#endif

#ifdef CONFIG_NUMA_BALANCING
/*
 * W4.  Others wait for the end of the scan, which is the caller's: the next scan goes on
 * where it has stopped, when its time comes.  It does not wait for its turn here, as it
 * does not wait for mmap_lock either: it delays a thread that returns to user space.
 *
 * Enough is 16 MiB of pages that are changed, 128 MiB of others, or 512 VMAs: a process with
 * many small VMAs must not have only a few of them scanned at once.
 */
bool __walk_numa_stop(struct mm_struct *mm, unsigned long *done,
		      unsigned long size, unsigned long updates)
{
	const unsigned long enough = WALK_NUMA_UPDATE *
				     (WALK_PROTECT_SIZE / PAGE_SIZE);

	*done += WALK_NUMA_UPDATE * updates + size / PAGE_SIZE + enough / 512;
	if (*done < enough || !mmap_lock_is_contended(mm))
		return false;
	count_vm_event(WALK_SECTION_YIELDS);
	return true;
}
#endif

/* === Sections ============================================================= */

/*
 * Lock for reading the VMA at @addr, or the next one above.  Returns NULL if there
 * is none, or an error if the caller is being killed.
 *
 * A mapping that comes into a hole meanwhile can be missed, as if it had come after the
 * walk had passed.  Each hole is looked up by itself: mas_find() may start again
 * in the middle, and then leave out a VMA that has grown into the hole.
 */
static struct vm_area_struct *walk_lock_vma(struct mm_struct *mm,
					    unsigned long addr)
{
	MA_STATE(mas, &mm->mm_mt, addr, addr);
	struct vm_area_struct *vma;

	rcu_read_lock();
	/* The bounds of an entry can change while they are read, so never go back. */
	while (!(vma = mas_walk(&mas)) && mas.last != ULONG_MAX) {
		addr = max(addr, mas.last + 1);
		mas_set(&mas, addr);
	}
	walk_window();
	if (!vma) {
		rcu_read_unlock();
		return NULL;
	}
	if (vma_start_read(vma)) {
		/* As lock_vma_under_rcu(): it may have changed before. */
		if ((!vma->detached && vma->vm_start <= addr &&
		     vma->vm_end > addr) || walk_broken(WALK_NO_RECHECK)) {
			rcu_read_unlock();
			return vma;
		}
		vma_end_read(vma);
	}
	rcu_read_unlock();

	/* It has changed, or a writer has it. */
	if (mmap_read_lock_killable(mm))
		return ERR_PTR(-EINTR);
	vma = find_vma(mm, addr);
	/* Nobody can write-lock it now, so this does not wait. */
	if (vma)
		down_read(&vma->vm_lock->lock);
	mmap_read_unlock(mm);
	return vma;
}

/* Can the VMA lock replace mmap_lock?  A huge PUD may have to be split. */
static bool walk_possible(struct vm_area_struct *vma)
{
	return !(vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP | VM_IO)) &&
	       !vma_is_dax(vma);
}

/* Does the walk leave out this VMA?  walk_page_range_vma() does not ask. */
static bool walk_skips(struct vm_area_struct *vma, const struct mm_walk_ops *ops,
		       void *private)
{
	struct mm_walk walk = {
		.ops		= ops,
		.mm		= vma->vm_mm,
		.vma		= vma,
		.private	= private,
	};

	return ops->test_walk &&
	       ops->test_walk(vma->vm_start, vma->vm_end, &walk);
}

/*
 * One section of a locked VMA, from @start to @end at the most; unlocks it.  Returns
 * where it ended.
 */
static unsigned long walk_section(struct vm_area_struct *vma, unsigned long start,
				  unsigned long end,
				  const struct mm_walk_ops *ops,
				  const struct walk_section_ops *walk,
				  void *private)
{
	struct section section = section_begin(SECTION_MAX);
	struct mm_walk_ops sectioned = *ops;
	unsigned long addr = start;
	struct section_step step;

	sectioned.walk_lock = PGWALK_VMA_RDLOCK_VERIFY;
	/* Nothing is gathered, so only a waiter ends it. */
	section.budget = LONG_MAX / 2;
	section.step = max(section.step, WALK_LOOK_WORK);
	do {
		/* A huge page counts whole, so it must not lie in two steps. */
		unsigned long next = end - addr > WALK_STEP ?
			ALIGN_DOWN(addr + WALK_STEP, PMD_SIZE) : end;

		next = faultline_next_step(vma, addr, next, &section, &step);
		/* Some walks look at holes as well. */
		if (ops->pte_hole)
			step = (struct section_step) { addr, next };
		if (step.start < step.end)
			walk_page_range_vma(vma, step.start, step.end,
					    &sectioned, private);
		if (walk->walked)
			walk->walked(vma, addr, next, private);
		addr = next;
		cond_resched();
	} while (addr < end && !section_over(&section, vma));
	vma_end_read(vma);

	count_vm_event(WALK_SECTION_SECTIONS);
	if (section.contended)
		count_vm_event(WALK_SECTION_CONTENDED);
	return addr;
}

/* Walks a part of a VMA as upstream, with mmap_lock held for reading. */
static void walk_locked(struct vm_area_struct *vma, unsigned long start,
			unsigned long end, const struct walk_section_ops *walk,
			void *private)
{
	const struct mm_walk_ops *ops;
	struct mm_walk_ops locked;

	ops = vma_munmap_pending(vma) ? NULL : walk->ops_of(vma, private);
	if (!ops || walk_skips(vma, ops, private))
		return;
	locked = *ops;
	locked.walk_lock = PGWALK_RDLOCK;
	walk_page_range_vma(vma, start, end, &locked, private);
	if (walk->walked)
		walk->walked(vma, start, end, private);
	count_vm_event(WALK_SECTION_UPSTREAM);
}

/*
 * A VMA for which the VMA lock is not enough, from *@addr to @end at the most.  Sets
 * *@addr to where it ended.  Returns 0, or -EINTR if the caller is being killed.
 */
static int walk_upstream(struct mm_struct *mm, unsigned long *addr,
			 unsigned long end, const struct walk_section_ops *walk,
			 void *private)
{
	struct vm_area_struct *vma;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = find_vma(mm, *addr);
	if (vma) {
		unsigned long start = max(*addr, vma->vm_start);

		*addr = min(end, vma->vm_end);
		if (start < *addr)
			walk_locked(vma, start, *addr, walk, private);
	}
	mmap_read_unlock(mm);
	return 0;
}

/* The part of an address space between @addr and @end. */
static int walk_range(struct mm_struct *mm, unsigned long addr, unsigned long end,
		      const struct walk_section_ops *walk, void *private)
{
	while (addr < end) {
		const struct mm_walk_ops *ops = NULL;
		struct vm_area_struct *vma;
		unsigned long vma_end;

		cond_resched();
		if (fatal_signal_pending(current))
			return -EINTR;
		vma = walk_lock_vma(mm, addr);
		if (IS_ERR_OR_NULL(vma))
			return PTR_ERR_OR_ZERO(vma);
		addr = max(addr, vma->vm_start);
		vma_end = min(end, vma->vm_end);
		if (addr < end && !vma_munmap_pending(vma))
			ops = walk->ops_of(vma, private);
		if (!ops || walk_skips(vma, ops, private)) {
			addr = max(addr, vma_end);
			vma_end_read(vma);
		} else if (walk_possible(vma)) {
			addr = walk_section(vma, addr, vma_end, ops, walk,
					    private);
		} else {
			vma_end_read(vma);
			if (walk_upstream(mm, &addr, end, walk, private))
				return -EINTR;
		}
	}
	return 0;
}

/**
 * walk_sectioned - walk the page tables of an address space section by section
 * @mm:      The address space, which has a user and is not locked.
 * @walk:    How to walk each VMA.
 * @private: For @walk, and for the operations that it returns.
 *
 * The walk must neither change VMAs nor take access away, and must not end early.
 *
 * Context: May sleep; takes mmap_lock for reading, and VMA locks.
 * Return: 0, or -EINTR if the caller is being killed.
 */
int walk_sectioned(struct mm_struct *mm, const struct walk_section_ops *walk,
		   void *private)
{
	count_vm_event(WALK_SECTION_CALLS);
	return walk_range(mm, 0, ULONG_MAX, walk, private);
}

/* A VMA that is walked without mmap_lock. */
struct walk_target {
	unsigned long start, end;
	/* Only compared. */
	struct file *file;
	pgoff_t pgoff;
	vm_flags_t kind;
};

static struct walk_target walk_target(struct vm_area_struct *vma)
{
	return (struct walk_target) {
		.start	= vma->vm_start,
		.end	= vma->vm_end,
		.file	= vma->vm_file,
		.pgoff	= vma->vm_pgoff,
		.kind	= vma->vm_flags & (VM_SHARED | VM_HUGETLB | VM_PFNMAP |
					   VM_MIXEDMAP | VM_IO),
	};
}

/* Is @vma the one that was walked, perhaps grown upwards? */
static bool walk_target_is(const struct walk_target *t, struct vm_area_struct *vma)
{
	struct walk_target now = walk_target(vma);

	return now.start == t->start && now.end >= t->end &&
	       now.file == t->file && now.pgoff == t->pgoff &&
	       now.kind == t->kind;
}

/**
 * walk_record - walk the page tables of a VMA section by section
 * @vma:     The VMA; mmap_lock is held for reading, and released meanwhile.
 * @walk:    How to walk it, as for walk_sectioned().
 * @private: For @walk: sums, all of them 0.
 * @size:    Its size in bytes.
 *
 * The caller is about to show the VMA.  If it has grown when it is walked, the rest is
 * walked as well.  If it is another one by then, the sums are dropped, and the VMA that
 * is there now, or the next one above, is walked instead: after WALK_RECORD_TRIES with
 * the lock held.
 *
 * Context: May sleep; takes mmap_lock for reading, and VMA locks.
 * Return: The VMA that the sums belong to, or NULL if there is none at this address or
 * above, with mmap_lock held for reading; -EINTR if the caller is being killed, with
 * the lock not held.
 */
struct vm_area_struct *walk_record(struct vm_area_struct *vma,
				   const struct walk_section_ops *walk,
				   void *private, size_t size)
{
	struct mm_struct *mm = vma->vm_mm;
	struct walk_target target = walk_target(vma);
	unsigned long addr = target.start;
	int tries = 0;

	while (walk_possible(vma) && target.end - addr > WALK_RECORD_MIN) {
		mmap_read_unlock(mm);
		if (walk_range(mm, addr, target.end, walk, private) ||
		    mmap_read_lock_killable(mm))
			return ERR_PTR(-EINTR);
		vma = find_vma(mm, target.start);
		if (!vma)
			return NULL;
		if (walk_target_is(&target, vma)) {
			addr = target.end;
			target.end = vma->vm_end;
			continue;
		}
		memset(private, 0, size);
		target = walk_target(vma);
		addr = target.start;
		if (++tries == WALK_RECORD_TRIES)
			break;
	}
	if (addr < target.end)
		walk_locked(vma, addr, target.end, walk, private);
	return vma;
}

/* === Soft-dirty bits ====================================================== */

/* Clear the bits of a part of a VMA, whose notifiers are told.  Returns where it ended. */
static unsigned long soft_dirty_section(struct vm_area_struct *vma,
					unsigned long addr, unsigned long end,
					const struct mm_walk_ops *ops,
					void *private)
{
	struct mmu_notifier_range range;
	unsigned long next;

	end = min(end, ALIGN_DOWN(addr + WALK_STEP, WALK_STEP));
	end = faultline_notified_end(vma, addr, end,
				     section_budget(WALK_MLOCK_SIZE));
	mmu_notifier_range_init(&range, MMU_NOTIFY_SOFT_DIRTY, 0, vma->vm_mm,
				addr, end);
	mmu_notifier_invalidate_range_start(&range);
	next = walk_write_section(vma, addr, end, ops, private);
	mmu_notifier_invalidate_range_end(&range);
	return next;
}

/* W8 */
static void soft_dirty_flush(struct mm_struct *mm)
{
	if (!walk_broken(WALK_NO_FLUSH))
		flush_tlb_mm(mm);
	dec_tlb_flush_pending(mm);
}

/**
 * walk_soft_dirty - clear the soft-dirty bits of all pages
 * @mm:      The address space, locked for writing; no VMA has VM_SOFTDIRTY.
 * @ops:     How to walk it.
 * @private: For @ops.
 *
 * Lets go of mmap_lock when somebody waits.
 *
 * Context: May sleep.  The lock is held on return.
 */
void walk_soft_dirty(struct mm_struct *mm, const struct mm_walk_ops *ops,
		     void *private)
{
	unsigned long addr = 0, done = 0;
	struct vm_area_struct *vma;

	inc_tlb_flush_pending(mm);
	/* W1: each VMA is looked up anew. */
	while ((vma = find_vma(mm, addr))) {
		unsigned long from = max(addr, vma->vm_start);

		addr = vma->vm_end;
		/* Of which the walk looks at nothing. */
		if (!is_vm_hugetlb_page(vma))
			addr = soft_dirty_section(vma, from, addr, ops, private);
		cond_resched();
		/* W4 */
		done += WALK_MLOCK_VMA_SIZE + (addr - from);
		if (done < WALK_MLOCK_SIZE || !walk_cut_awaited(mm))
			continue;
		done = 0;
		soft_dirty_flush(mm);
		/* M5 for all of it: see W7. */
		walk_cut_yield(mm, 0, ULONG_MAX, 0);
		inc_tlb_flush_pending(mm);
	}
	soft_dirty_flush(mm);
}

/* === PAGEMAP_SCAN ========================================================= */

/* The next VMA that a scan of @arg can protect. */
static struct vm_area_struct *walk_scan_vma(struct mm_struct *mm,
					    unsigned long start,
					    const struct pm_scan_arg *arg)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, arg->end) {
		if (userfaultfd_wp_async(vma))
			return vma;
	}
	return NULL;
}

/*
 * A part of a scan that protects pages ends after WALK_STEP of what it protects, and
 * earlier if others wait all the time: MMU notifiers invalidate all of a part, of which
 * there can be many.  No hugetlb page lies in two parts, as the scan cannot protect half
 * of one.
 */
void __walk_scan_begin(struct walk_scan *part, struct mm_struct *mm,
		       unsigned long start, const struct pm_scan_arg *arg)
{
	const unsigned long step = part->stopped ? 4 * WALK_PROTECT_SIZE :
						   WALK_STEP;
	struct vm_area_struct *vma;
	unsigned long next;

	*part = (struct walk_scan) { .end = arg->end };
	if (!(arg->flags & PM_SCAN_WP_MATCHING))
		return;
	vma = walk_scan_vma(mm, start, arg);
	if (!vma)
		return;
	start = max(start, vma->vm_start);
	if (part->end - start <= step)
		return;
	next = ALIGN_DOWN(start + step, step);
	vma = vma_lookup(mm, next - 1);
	if (vma && is_vm_hugetlb_page(vma))
		next = ALIGN(next, vma_kernel_pagesize(vma));
	part->end = min(next, part->end);
}

bool __walk_scan_stop(struct walk_scan *part, struct mm_struct *mm,
		      unsigned long addr, unsigned long pages)
{
	/* W4 */
	part->stopped = part->pages >= WALK_PROTECT_SIZE / PAGE_SIZE &&
			mmap_lock_is_contended(mm);
	part->pages += pages;
	part->next = addr;
	return part->stopped;
}

unsigned long __walk_scan_limit(struct walk_scan *part, unsigned long start,
				unsigned long end)
{
	part->limited = end - start > WALK_PROTECT_SIZE;
	if (part->limited)
		end = ALIGN_DOWN(start + WALK_PROTECT_SIZE, WALK_PROTECT_SIZE);
	return end;
}

/*
 * The next part looks up everything by address (W6).  It begins before the end of the
 * scan: a part stops at a step that is still to be done, or short of the end of a hole.
 */
bool __walk_scan_end(struct walk_scan *part, struct mm_struct *mm,
		     const struct pm_scan_arg *arg, unsigned long *start,
		     int ret)
{
	const bool more = part->stopped ? ret == -ENOSPC :
			  !ret && part->end < (unsigned long)arg->end;

	if (more)
		*start = part->stopped ? part->next : part->end;
	if (more && mmap_lock_is_contended(mm))
		walk_yield_read(mm);
	else
		mmap_read_unlock(mm);
	return more;
}

#ifdef CONFIG_FAULTLINE_WALK_TORTURE
#include "tests/walk-torture.h"
#endif
#if defined(CONFIG_FAULTLINE_KUNIT_TEST) && !defined(CONFIG_PREEMPT_RT)
#include "tests/walk-kunit.h"
#endif
