// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: section-wise munmap (vm.munmap_section_kbytes).
 *
 * Upstream holds mmap_lock, at least for reading, until the last page of a
 * range is freed, and every thread that wants to map, unmap or protect
 * anything waits for it.  Here a large range is unmapped in sections.  Each
 * section is a complete upstream munmap, and the lock is free in between.
 *
 * The ownership mark
 *
 * While the lock is free, other threads may map into the part that is already
 * gone, and their mappings must survive.  So the first lock hold marks each
 * VMA of the range, and only marked VMAs are ever unmapped:
 *
 *  I1. A VMA gets the mark of an operation only in the first lock hold of
 *      that operation, or by being split off a VMA that has it.  New VMAs and
 *      copies have no mark, and a marked VMA never merges.
 *  I2. All marked VMAs of an operation lie in its [start, end): the edges are
 *      split before marking, and VMAs that grow by themselves are not marked.
 *  I3. vma->munmap_pending is a subset of mm->munmap_ops; a bit of the latter
 *      is released only after the last VMA with that mark has left the tree
 *      or lost the mark.
 *
 * munmap_pending, and setting a bit of munmap_ops, are protected by mmap_lock
 * held for writing.  When the first lock hold ends, the munmap has happened for
 * calls that derive anything from the VMAs, such as fork() and mremap(); see
 * vma_munmap_pending().  As address space the range is occupied until it is
 * gone.  Calls that change a marked part that is still there, such as
 * mprotect() or madvise(), act as if they had come before the munmap.  The
 * documentation has the list.
 *
 * One mm has room for MUNMAP_SECTION_MAX_OPS marks, so operations whose ranges
 * overlap stay independent: either may unmap a VMA that has both marks.
 *
 * A marked VMA must be unmapped, so nothing that follows may fail.  Cutting a
 * VMA can fail; then the section ends at the end of the VMA instead.  Without a
 * cut, only maple nodes are allocated, with __GFP_NOFAIL (see vma_munmap_gfp())
 * and with mmap_lock held for writing.  This adds no lock dependency to
 * upstream's GFP_KERNEL, which for such a size fails only if the task is an OOM
 * victim and the reserves for victims are used up as well.  Even then others
 * can free memory: the OOM reaper only trylocks mmap_lock and gives up after a
 * second, and the OOM killer picks another victim.
 *
 * Charges against a limit (RLIMIT_AS, commit charge, map_count ...) are given
 * back section by section.  A call that fails at a limit waits for the
 * operations in progress and retries once, see munmap_section_retry().
 *
 * The size of a section
 *
 * A section is an amount of work, not of address space: a page of page-table
 * entries takes some 48 times as long to zap as a huge page, and a hole takes
 * no time.  vm.munmap_section_kbytes is the size of a section of memory mapped
 * with base pages.  Fast sections make the next one larger, and sections get
 * shorter while others wait for the lock.
 *
 * See Documentation/admin-guide/mm/faultline/munmap.rst.
 */

#include <linux/bitops.h>
#include <linux/delay.h>
#include <linux/faultline_munmap.h>
#include <linux/hugetlb.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mman.h>
#include <linux/mmap_lock.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/shm.h>
#include <linux/sizes.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>
#include <linux/wait_bit.h>

#include <trace/events/faultline.h>

#include "../internal.h"
#include "faultline.h"

/* === Data ================================================================= */

/* vm.munmap_section_kbytes is not 0. */
DEFINE_STATIC_KEY_FALSE(munmap_section_key);

/*
 * It has been non-zero at some time.  Never disabled again: operations in
 * flight, and so marks, outlive setting the sysctl to 0.
 */
DEFINE_STATIC_KEY_FALSE(munmap_section_marks_key);

/* A shorter range cannot be two sections. */
unsigned long munmap_section_min_len __read_mostly;

static void munmap_section_apply(unsigned long kbytes)
{
	/* Pairs with READ_ONCE() in munmap_section_wanted(). */
	WRITE_ONCE(munmap_section_min_len,
		   2 * ALIGN(kbytes * SZ_1K, PMD_SIZE));
	if (kbytes) {
		/* First, so that the key is on when the first mark is set. */
		static_branch_enable(&munmap_section_marks_key);
		/*
		 * Without jump labels, keys are variables.  Pairs with
		 * mmap_lock: a task that finds a mark took the lock after the
		 * task that saw munmap_section_key and set the mark.
		 */
		smp_mb();
		static_branch_enable(&munmap_section_key);
	} else {
		static_branch_disable(&munmap_section_key);
	}
}

struct faultline_toggle munmap_section_toggle = {
	.name	= "munmap_section_kbytes",
	.stock	= 0,
	.min	= 0,
	.max	= SZ_1G / SZ_1K,
	.value	= CONFIG_FAULTLINE_MUNMAP_DEFAULT,
	.apply	= munmap_section_apply,
};

/*
 * Units of work.  Zapping a full page of page-table entries costs 48 times
 * as much as zapping a huge page (counted in instructions on x86-64); 32 is
 * close enough and turns the arithmetic into shifts.
 */
#define WORK_PTE_TABLE		32L
#define WORK_LEAF		1L

/*
 * A budget grows to at most this multiple of the size in the sysctl.  Memory
 * that is slow to zap may follow memory that is fast to zap (zero page), and
 * nothing ends such a section early.
 */
#define BUDGET_GROWTH_MAX	4

/* Double the budget after a fast section, halve it after a slow one. */
#define SECTION_FAST_NS		(2 * NSEC_PER_MSEC)
#define SECTION_SLOW_NS		(4 * NSEC_PER_MSEC)

/* While others wait, a section should take no longer than this. */
#define SECTION_CONTENDED_NS	(1 * NSEC_PER_MSEC)
/* If they wait from the start, the first section is smaller by this factor. */
#define BUDGET_CONTENDED	4

/*
 * How long to let a waiter wake up: spin first, then sleep, so that it can run
 * on this CPU, then take the lock back.
 */
#define YIELD_SPIN_NS		(50 * NSEC_PER_USEC)
#define YIELD_MAX_NS		(1 * NSEC_PER_MSEC)

static_assert(MUNMAP_SECTION_MAX_OPS <=
	      BITS_PER_BYTE * sizeof_field(struct vm_area_struct, munmap_pending));

/* === When to unmap by sections ============================================ */

static unsigned long munmap_section_bytes(void)
{
	/* Pairs with WRITE_ONCE() in toggle_set(). */
	return ALIGN(READ_ONCE(munmap_section_toggle.value) * SZ_1K, PMD_SIZE);
}

/* Estimate of the cost of zapping all of @mm, in pages. */
static unsigned long mm_mapped_pages(struct mm_struct *mm)
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

/*
 * A single-threaded process has nobody to stall, and a small one would not
 * stall others for long: both stay on the upstream path.
 */
bool __munmap_section_wanted(struct mm_struct *mm, unsigned long start,
			     size_t len)
{
	const unsigned long section = munmap_section_bytes();

	mmap_assert_write_locked(mm);

	if (!section)
		return false;
	if (offset_in_page(start) || start > TASK_SIZE || len > TASK_SIZE - start)
		return false;
	if (mm != current->mm || atomic_read(&mm->mm_users) == 1)
		return false;
	return mm_mapped_pages(mm) >= 2 * section / PAGE_SIZE;
}

/* === Sizing a section ===================================================== */

/* The budget for a section of @section bytes. */
static long section_budget(unsigned long section)
{
	return WORK_PTE_TABLE * (section >> PMD_SHIFT);
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

/*
 * Spend *@budget, which is positive, on [addr, end).  Return the address where
 * it ran out, a multiple of PMD_SIZE, or @end if it did not.  Holes are skipped
 * at the level that they are in.
 *
 * The caller holds mmap_lock for writing, so no table above the last level can
 * go away.  Entries for the last level can change (khugepaged retracts tables
 * of file mappings under the i_mmap lock only, rmap unmaps huge pages), so read
 * them once: this is an estimate.
 */
static unsigned long spend_budget(struct mm_struct *mm, unsigned long addr,
				  unsigned long end, long *budget)
{
	while (addr < end && *budget > 0) {
		/* Clamp each level to the one above: some may be folded. */
		unsigned long next = pgd_addr_end(addr, end);
		pgd_t *pgd = pgd_offset(mm, addr);
		p4d_t *p4d;
		pud_t *pud, val;
		pmd_t *pmd;

		if (pgd_none(*pgd) || unlikely(pgd_bad(*pgd)))
			goto skip;

		next = p4d_addr_end(addr, next);
		p4d = p4d_offset(pgd, addr);
		if (p4d_none(*p4d) || unlikely(p4d_bad(*p4d)))
			goto skip;

		next = pud_addr_end(addr, next);
		pud = pud_offset(p4d, addr);
		/* Huge PUDs come and go under i_mmap, tables do not. */
		val = pudp_get(pud);
		if (pud_none(val))
			goto skip;
		*budget -= WORK_LEAF;
		if (pud_leaf(val) || !pud_present(val))
			goto skip;

		for (pmd = pmd_offset(pud, addr); addr < next; pmd++) {
			unsigned long pmd_end = pmd_addr_end(addr, next);
			pmd_t entry = pmdp_get_lockless(pmd);

			if (!pmd_none(entry)) {
				*budget -= pmd_work(entry, addr, pmd_end);
				if (*budget <= 0)
					return pmd_end;
			}
			addr = pmd_end;
		}
skip:
		addr = next;
	}

	return addr;
}

/* The same for a hugetlb VMA. */
static unsigned long spend_budget_hugetlb(struct vm_area_struct *vma,
					  long *budget)
{
	unsigned long size = huge_page_size(hstate_vma(vma));
	unsigned long pages = (vma->vm_end - vma->vm_start) / size;
	unsigned long cut;

	/*
	 * Count by address: rmap may unshare a shared PMD table, and its last
	 * user may free it, without the mmap_lock of this mm.
	 */
	if (pages < *budget) {
		*budget -= pages;
		return vma->vm_end;
	}
	cut = vma->vm_start + *budget * size;
	*budget = 0;

	/* A cut inside a shared PMD table would have to unshare it first. */
	if (IS_ENABLED(CONFIG_HUGETLB_PMD_PAGE_TABLE_SHARING) &&
	    vma->vm_flags & VM_MAYSHARE)
		size = max(size, PUD_SIZE);
	cut = ALIGN(cut, size);
	return min(cut, vma->vm_end);
}

/*
 * May the VMA be cut?  Not if its pieces are counted (drivers with open() or
 * close(), userfaultfd) or if it cannot be split at all.
 */
static bool vma_can_be_cut(struct vm_area_struct *vma)
{
	const struct vm_operations_struct *ops = vma->vm_ops;

	if (vma->vm_flags & (VM_PFNMAP | VM_IO | VM_MIXEDMAP | VM_SHADOW_STACK))
		return false;
	if (userfaultfd_armed(vma))
		return false;
	/* Their open() and close() only keep balanced reference counts. */
	if (is_vm_hugetlb_page(vma) || vma_is_sysv_shm(vma))
		return true;
	if (vma->vm_flags & VM_DONTEXPAND)
		return false;
	return !ops || (!ops->open && !ops->close && !ops->may_split);
}

/* Where to end a section that has reached @vma with *@budget left. */
static unsigned long section_end(struct munmap_section *op,
				 struct vm_area_struct *vma, long *budget)
{
	unsigned long cut;

	if (is_vm_hugetlb_page(vma))
		cut = spend_budget_hugetlb(vma, budget);
	else
		cut = spend_budget(op->mm, vma->vm_start, vma->vm_end, budget);

	return op->whole || !vma_can_be_cut(vma) ? vma->vm_end : cut;
}

static bool section_owns(struct munmap_section *op, struct vm_area_struct *vma)
{
	return vma->munmap_pending & BIT(op->nr);
}

/*
 * Find the next section at or above *@start: marked VMAs, up to the first
 * unmarked one or until the budget is used up.  Returns false if no marked VMA
 * is left.  *@work is set to the part of the budget that is used.
 */
static bool section_plan(struct munmap_section *op, unsigned long *start,
			 unsigned long *end, long *work)
{
	VMA_ITERATOR(vmi, op->mm, *start);
	long budget = op->budget;
	struct vm_area_struct *vma;
	bool found = false;

	for_each_vma_range(vmi, vma, op->end) {
		if (!section_owns(op, vma)) {
			if (found)
				break;
			count_vm_event(MUNMAP_SECTION_FOREIGN);
			continue;
		}
		if (!found) {
			found = true;
			*start = vma->vm_start;
		}
		*end = section_end(op, vma, &budget);
		/* The VMA itself is work too, even if it is empty. */
		budget -= WORK_LEAF;
		if (*end < vma->vm_end || budget <= 0)
			break;
	}

	*work = op->budget - budget;
	return found;
}

/*
 * Choose the budget of the next section: larger if the fixed cost of a section,
 * and of getting the lock back, would be out of proportion to the work, but not
 * so large that others wait for longer than SECTION_SLOW_NS.  A section that
 * did not use up its budget says nothing about larger ones.
 *
 * While others do wait, shrink the budget, down to one page table, as long as
 * getting the lock back takes less than an eighth of the time of zapping.  If it
 * takes more than a quarter of that time, grow the budget again, up to the floor:
 * otherwise the whole munmap would take many times as long.
 */
static void section_adapt(struct munmap_section *op, long work, u64 zap_ns,
			  u64 wait_ns, bool contended)
{
	if (contended) {
		op->budget = min(op->budget, op->floor);
		if (zap_ns > SECTION_CONTENDED_NS && wait_ns < zap_ns / 8)
			op->budget = max(op->budget / 2, WORK_PTE_TABLE);
		else if (wait_ns > zap_ns / 4)
			op->budget = min(op->budget * 2, op->floor);
	} else if (op->budget < op->floor) {
		op->budget = min(op->budget * 2, op->floor);
	} else if (work >= op->budget && zap_ns < SECTION_FAST_NS) {
		op->budget = min(op->budget * 2, op->floor * BUDGET_GROWTH_MAX);
	} else if (zap_ns > SECTION_SLOW_NS) {
		op->budget = max(op->budget / 2, op->floor);
	}
}

/* === Running an operation ================================================= */

#ifndef CONFIG_PREEMPT_RT	/* RT hands over the lock by priority. */

/* Changes whenever mmap_lock is taken or released for writing. */
static unsigned int writers(struct mm_struct *mm)
{
#ifdef CONFIG_PER_VMA_LOCK
	return READ_ONCE(mm->mm_lock_seq.sequence);
#else
	return 0;
#endif
}

/*
 * Let a waiter in.  We have just released the lock and want it again, and would
 * steal it from the waiter that is being woken up, for another section.
 * Readers at the head of the queue got the lock when we released it, so the
 * waiter is a writer.
 */
static void yield_to_waiter(struct mm_struct *mm)
{
	unsigned int seen = writers(mm);
	u64 since = ktime_get_ns(), waited = 0;

	while (mmap_lock_is_contended(mm) && !mmap_lock_has_writer(mm) &&
	       writers(mm) == seen && waited < YIELD_MAX_NS) {
		if (waited < YIELD_SPIN_NS)
			cpu_relax();
		else
			usleep_range(50, 100);
		waited = ktime_get_ns() - since;
	}
}

#else

static void yield_to_waiter(struct mm_struct *mm)
{
}

#endif

/*
 * Is current's thread group being killed, or replaced by exec(), and the only
 * user of the mm?  Then exit_mmap() is about to unmap all of it, faster, and
 * marks no longer matter.
 */
static bool mm_is_dying(struct mm_struct *mm)
{
	struct signal_struct *signal = current->signal;
	bool killed;

	if (!fatal_signal_pending(current))
		return false;

	spin_lock_irq(&current->sighand->siglock);
	killed = (signal->flags & SIGNAL_GROUP_EXIT || signal->group_exec_task) &&
		 !signal->core_state;
	spin_unlock_irq(&current->sighand->siglock);

	/*
	 * An exiting thread drops live before mm_users.  The acquire pairs with
	 * mmput(), which orders the two: a thread that no longer counts in
	 * mm_users does not count in live either.  No thread can be added.
	 */
	return killed && atomic_read_acquire(&mm->mm_users) <=
			 atomic_read(&signal->live);
}

/* Unmap [start, end) like munmap() of that range; unlocks on success. */
static int section_unmap(struct mm_struct *mm, unsigned long start,
			 unsigned long end, struct list_head *uf)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma = vma_find(&vmi, end);

	return do_vmi_align_munmap(&vmi, vma, mm, start, end, uf, true);
}

/* Drop the marks that are left: these VMAs are ordinary mappings again. */
static void section_unmark(struct munmap_section *op)
{
	VMA_ITERATOR(vmi, op->mm, op->start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, op->end)
		vma->munmap_pending &= ~BIT(op->nr);
}

/**
 * munmap_section_begin - begin to unmap section by section
 * @op:    Filled in by this function.
 * @mm:    Address space of current, locked for writing.
 * @start: Start of the range, page aligned.
 * @end:   End of the range, page aligned.
 *
 * On success the caller marks VMAs, all in one hold of the lock, and then
 * calls munmap_section_run().
 *
 * Return: false if too many operations are in flight in @mm, or if the
 * feature is being switched off: unmap as usual.
 */
bool munmap_section_begin(struct munmap_section *op, struct mm_struct *mm,
			  unsigned long start, unsigned long end)
{
	const unsigned long section = munmap_section_bytes();
	/* Pairs with clear_and_wake_up_bit() in munmap_section_run(). */
	unsigned long ops = READ_ONCE(mm->munmap_ops);
	unsigned int nr;

	mmap_assert_write_locked(mm);

	if (!section)
		return false;
	nr = find_first_zero_bit(&ops, MUNMAP_SECTION_MAX_OPS);
	if (nr >= MUNMAP_SECTION_MAX_OPS)
		return false;
	/* Atomic, since munmap_section_run() clears its bit without a lock. */
	set_bit(nr, &mm->munmap_ops);

	*op = (struct munmap_section) {
		.mm	= mm,
		.start	= start,
		.end	= end,
		.nr	= nr,
		.floor	= section_budget(section),
	};
	op->budget = op->floor;
	if (mmap_lock_is_contended(mm))
		op->budget = max(op->floor / BUDGET_CONTENDED, WORK_PTE_TABLE);

	count_vm_event(MUNMAP_SECTION_CALLS);
	trace_munmap_section_begin(mm, start, end, mm_mapped_pages(mm));
	return true;
}

/**
 * munmap_section_mark - mark a VMA to be unmapped by an operation
 * @op:  The operation, begun in this hold of the lock.
 * @vma: The VMA, entirely inside the range of @op.
 *
 * A sealed VMA is left alone.
 */
void munmap_section_mark(struct munmap_section *op, struct vm_area_struct *vma)
{
	mmap_assert_write_locked(op->mm);
	VM_WARN_ON_ONCE(vma->vm_start < op->start || vma->vm_end > op->end);

	if (can_modify_vma(vma))
		vma->munmap_pending |= BIT(op->nr);
}

/**
 * munmap_section_run - unmap all marked VMAs
 * @op: The operation; its mm is locked for writing.
 * @uf: As for do_vmi_align_munmap().
 *
 * Always returns with mmap_lock released.  A fatal signal ends it early only
 * if it kills all users of the mm.
 *
 * Return: 0, or -EINTR if nobody is left to see the difference.
 */
int munmap_section_run(struct munmap_section *op, struct list_head *uf)
{
	struct mm_struct *mm = op->mm;
	unsigned long start = op->start, end, sections = 0;
	u64 begin = ktime_get_ns();
	bool locked = true;
	int err = 0;
	long work;

	while (locked && section_plan(op, &start, &end, &work)) {
		bool contended = false;
		u64 zapped, now;

		err = section_unmap(mm, start, end, uf);
		if (err) {
			/* Nothing was unmapped. */
			if (WARN_ON_ONCE(op->whole)) {
				section_unmark(op);
				break;
			}
			/* Try again without a cut, which cannot fail. */
			count_vm_event(MUNMAP_SECTION_WIDENED);
			op->whole = true;
			continue;
		}
		zapped = ktime_get_ns();
		count_vm_event(MUNMAP_SECTION_SECTIONS);
		sections++;
		op->whole = false;

		locked = end < op->end;
		if (locked && mm_is_dying(mm)) {
			locked = false;
			err = -EINTR;
		}
		if (locked) {
			contended = mmap_lock_is_contended(mm);
			if (contended) {
				count_vm_event(MUNMAP_SECTION_CONTENDED);
				/* If killed: others wait for us to exit. */
				if (!fatal_signal_pending(current))
					yield_to_waiter(mm);
			}
			cond_resched();
			mmap_write_lock(mm);
		}

		now = ktime_get_ns();
		trace_munmap_section(mm, start, end, work, zapped - begin,
				     now - zapped, contended);
		section_adapt(op, work, zapped - begin, now - zapped,
			      contended);
		begin = now;
		start = end;
	}
	if (locked)
		mmap_write_unlock(mm);

	/*
	 * No VMA has the mark any more, unless the mm is dying: then the bit
	 * goes away with the mm.  A reader of the bit that holds mmap_lock
	 * (READ_ONCE() in munmap_section_begin(), munmap_section_retry() and
	 * vma_munmap_mark_stale()) has seen our changes under that lock.
	 * Wakes up the waiters in munmap_section_retry().
	 */
	if (err != -EINTR)
		clear_and_wake_up_bit(op->nr, &mm->munmap_ops);
	trace_munmap_section_end(mm, err, sections);
	return err;
}

/* === Limits =============================================================== */

/* See munmap_section_retry(). */
bool __munmap_section_retry(struct mm_struct *mm, bool *retried)
{
	/* Pairs with clear_and_wake_up_bit() in munmap_section_run(). */
	unsigned long ops = READ_ONCE(mm->munmap_ops);
	unsigned long nr;

	mmap_assert_write_locked(mm);

	if (!ops || *retried)
		return false;
	*retried = true;

	/*
	 * For lock ordering this is the same as waiting for mmap_lock, which
	 * upstream's munmap() would hold.
	 */
	mmap_write_unlock(mm);
	for_each_set_bit(nr, &ops, MUNMAP_SECTION_MAX_OPS)
		if (wait_on_bit(&mm->munmap_ops, nr, TASK_KILLABLE))
			break;
	mmap_write_lock(mm);
	return true;
}

/*
 * See munmap_section_retry_mmap().  If a failed MAP_FIXED has left a hole,
 * others can map there before the second try, which must not replace theirs.
 */
bool __munmap_section_retry_mmap(struct mm_struct *mm, unsigned long addr,
				 unsigned long len, unsigned long flags)
{
	bool retried = false;

	if (flags & MAP_FIXED && !find_vma_intersection(mm, addr, addr + len))
		return false;
	return __munmap_section_retry(mm, &retried);
}

/* === munmap() and mremap() ================================================ */

/* userfaultfd promises one event for the range, before the first page goes. */
static bool vma_wants_unmap_event(const struct vm_area_struct *vma)
{
#ifdef CONFIG_USERFAULTFD
	const struct userfaultfd_ctx *ctx = vma->vm_userfaultfd_ctx.ctx;

	return ctx && (ctx->features & UFFD_FEATURE_EVENT_UNMAP);
#else
	return false;
#endif
}

/* Does the whole range fit into one section?  Then upstream does better. */
static bool range_fits_section(struct mm_struct *mm, unsigned long start,
			       unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	long budget = section_budget(munmap_section_bytes());
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end) {
		unsigned long from = max(vma->vm_start, start);
		unsigned long to = min(vma->vm_end, end);

		if (is_vm_hugetlb_page(vma))
			budget -= (to - from) / huge_page_size(hstate_vma(vma));
		else
			spend_budget(mm, from, to, &budget);
		budget -= WORK_LEAF;
		if (budget <= 0)
			return false;
	}

	return true;
}

/*
 * Must upstream's munmap take the range in one piece, or refuse it and unmap
 * nothing at all?
 */
static bool range_is_atomic(struct mm_struct *mm, unsigned long start,
			    unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end) {
		if (!can_modify_vma(vma))
			return true;
		/* A fault could grow it back into a finished section. */
		if (vma->vm_flags & (VM_GROWSDOWN | VM_GROWSUP))
			return true;
		if (vma_wants_unmap_event(vma))
			return true;
	}

	return false;
}

/*
 * Split the VMAs that cross the edges of the range.  Fails like munmap() of the
 * whole range would: nothing is unmapped.
 */
static int range_split_edges(struct mm_struct *mm, unsigned long start,
			     unsigned long end)
{
	VMA_ITERATOR(first, mm, start);
	VMA_ITERATOR(last, mm, end - 1);
	struct vm_area_struct *vma;
	int err;

	vma = vma_find(&first, end);
	if (vma && vma->vm_start < start) {
		/* As upstream: punching a hole must not exceed the limit. */
		if (vma->vm_end > end && mm->map_count >= sysctl_max_map_count)
			return -ENOMEM;
		err = munmap_split_vma(&first, vma, start, 1);
		if (err)
			return err;
	}

	vma = vma_find(&last, end);
	if (vma && vma->vm_end > end)
		return munmap_split_vma(&last, vma, end, 0);

	return 0;
}

/**
 * munmap_sectioned - munmap a range for which munmap_section_wanted() was true
 * @mm:    Address space of current, locked for writing.
 * @start: Start of the range, page aligned.
 * @len:   Its length in bytes, not 0.
 * @uf:    As for do_vmi_munmap().
 *
 * Always returns with mmap_lock released.
 *
 * Return: 0 or an error of do_vmi_munmap(), with nothing unmapped; or -EINTR
 * of munmap_section_run().
 */
int munmap_sectioned(struct mm_struct *mm, unsigned long start, size_t len,
		     struct list_head *uf)
{
	VMA_ITERATOR(vmi, mm, start);
	const unsigned long end = start + PAGE_ALIGN(len);
	struct munmap_section op;
	struct vm_area_struct *vma;
	int err;

	if (range_fits_section(mm, start, end))
		goto upstream;
	if (range_is_atomic(mm, start, end))
		goto atomic;

	err = range_split_edges(mm, start, end);
	if (err)
		goto unlock;

	if (!munmap_section_begin(&op, mm, start, end))
		goto atomic;

	for_each_vma_range(vmi, vma, end)
		munmap_section_mark(&op, vma);
	return munmap_section_run(&op, uf);

atomic:
	count_vm_event(MUNMAP_SECTION_ATOMIC);
upstream:
	vma_iter_init(&vmi, mm, start);
	err = do_vmi_munmap(&vmi, mm, start, len, uf, true);
	if (!err)
		return 0;
unlock:
	mmap_write_unlock(mm);
	return err;
}
