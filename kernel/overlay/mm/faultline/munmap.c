// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: section-wise munmap and mmap(MAP_FIXED) (vm.munmap_section_kbytes).
 *
 * Upstream holds mmap_lock, at least for reading, until the last page of a
 * range is freed, and every thread that wants to map, unmap or protect
 * anything waits for it.  Here a large munmap holds the lock twice, and not
 * while it frees pages:
 *
 *  1. Held for writing: split the edges of the range, lock and mark its VMAs.
 *     From here the VMAs are dead.
 *  2. Not held: zap the VMAs section by section, each under the lock of its VMA,
 *     as page faults hold it, and free the lowest page tables.
 *  3. Held for writing, then downgraded: upstream's munmap of the VMAs.
 *
 * Step 2 is an optimization.  It zaps as MADV_DONTNEED does, and step 3 removes
 * whatever it has left.
 *
 * Dead VMAs
 *
 * A VMA with the mark of a munmap (vma->munmap_pending) is dead.  For calls that
 * map, copy or change memory it is a hole, and no page is faulted in.  A VMA with
 * only the mark of an mmap(MAP_FIXED) is being replaced, see below.  See
 * vma_munmap_pending().  As address space it is occupied until it is gone.
 *
 *  I1. A VMA gets the mark of an operation only in the first lock hold of
 *      that operation, or by being split off a VMA that has it.  New VMAs and
 *      copies have no mark, and a marked VMA never merges.
 *  I2. All marked VMAs of an operation lie in its [start, end): the edges are
 *      split before marking, and VMAs that grow by themselves are not marked.
 *  I3. vma->munmap_pending is a subset of mm->munmap_ops; a bit of the latter
 *      is released only after the last VMA with that mark has left the tree.
 *  I4. A mark is set with mmap_lock held for writing, so it is stable under
 *      mmap_lock.  A VMA that step 2 may zap (SECTION_VMA_MIN) is write-locked as
 *      well, after its readers have been waited for.  So there the mark is stable
 *      under the VMA lock, and no fault that began before the mark is still
 *      running when the zap begins.  Speculative faults see it in their copy of
 *      the VMA or fail to validate the copy.  In a smaller VMA, a fault that began
 *      before the mark can fill an entry after it.  Step 3 locks the VMA, and
 *      zaps all of it.  A marked VMA does not grow, so a small one stays small.
 *  I5. A dead VMA counts in total_vm and its parts, locked_vm, the commit charge
 *      and map_count until it is unmapped, as its pages may still be there.
 *      Nothing else changes its share, since it is a hole for calls that would.
 *  I6. pte_none() entries of a dead anonymous VMA stay none.  Code that does not
 *      go through handle_mm_fault() changes only entries that it finds, and
 *      rechecks under their lock, for example swapoff and the end of a migration.
 *      Splitting a huge page replaces an entry by a table.  Splitting the huge zero
 *      page clears the entry for a moment, so the splitting code skips dead VMAs.
 *      unmap_huge_pmd_locked() clears an entry and may put it back; nobody calls
 *      it, and kernel/audit/spf.sites would list a caller.
 *
 * So step 3 does not look again at anonymous VMAs that step 2 has zapped as a
 * whole.  A driver can insert pages into its own VMA, dead or not; step 3 zaps
 * these, and those of files, like upstream.
 *
 * Page tables
 *
 * Step 2 takes a page table away when all of its entries are none and its range (2
 * MiB with pages of 4 KiB) belongs to one dead VMA.  It holds the locks of the table
 * and of the PMD entry meanwhile.  The levels above stay for step 3: their walkers
 * rely on mmap_lock.
 *
 *  T1. Nobody fills the table after that.  Whoever fills an entry that is none
 *      has tested the mark, under mmap_lock or the VMA lock, or looks at the PMD
 *      entry again when it has the lock of the table (pte_offset_map_lock()).
 *      A speculative fault validates its copy of the VMA under that lock.  A
 *      driver may allocate a new table, which step 3 frees; the TLB may have
 *      the old one until the end of the section, so tables of VM_MIXEDMAP stay.
 *  T2. Whoever looks at the table without its lock is an RCU reader or has
 *      interrupts off, whatever other locks it holds: also walkers with
 *      mmap_lock, since that is not held here.  The table, and its lock, are
 *      freed by RCU; see munmap_section_rcu_tables().
 *  T3. khugepaged takes tables away as well.  retract_page_tables() looks at the
 *      PMD entry again when it has the lock of that.  All others test the mark,
 *      with mmap_lock held since.
 *  T4. The TLB flush of the section is one for freed tables, and precedes the
 *      release of the VMA lock.
 *
 * mmap(MAP_FIXED)
 *
 * An mmap() that takes memory away in place, by mapping PROT_NONE over private
 * anonymous memory, does the same, but the VMAs stay.  Step 1 makes them the new
 * mapping, except for their content.  From there they are being replaced.  Step 3
 * drops what is left of the old mapping, and merges them with their neighbours.
 * The range is mapped all the time.
 *
 *  R1. All that can fail comes before the first VMA is changed.  After that there
 *      is no error, so none with the memory half gone.
 *  R2. No entry of a marked VMA is filled, as in a dead one: its protection allows
 *      no fault, and who overrides that (FOLL_FORCE) fails on the mark.  So what
 *      entries map is from before, and what is none stays none, but for the huge
 *      zero page (I6), which madvise() may split here, so that step 2 misses it.
 *      Step 3 zaps all of the range once more.
 *  R3. Nobody takes over an old page.  Whoever moves or copies entries (mremap,
 *      fork), makes them accessible (mprotect), or registers the VMA with
 *      userfaultfd, zaps what is left and removes the mark, with the VMA
 *      write-locked: vma_munmap_complete().  So does everybody who changes flags,
 *      name or policy of the VMA.  fork() gives the child the new mapping, empty.
 *  R4. Whoever succeeds since the VMA already has the protection that it wants
 *      (mprotect), zaps what is left as well, before it returns.
 *  R5. The pages count in the commit charge and in data_vm until step 3 is over.
 *      No VMA has them then, so the operation does.
 *  R6. A VMA that a munmap has marked as well is dead.  Step 3 zaps it, for R5,
 *      and leaves the rest to that munmap.
 *
 * For an mmap() over shared mappings of files, see munmap_file.c.
 *
 * One mm has room for MUNMAP_SECTION_MAX_OPS marks, so operations whose ranges
 * overlap stay independent: either may unmap a VMA that has both marks.
 *
 * A dead VMA must be unmapped, so step 3 may not fail.  It allocates only maple
 * nodes, with __GFP_NOFAIL (see vma_munmap_gfp()) and with mmap_lock held for
 * writing.  This adds no lock dependency to upstream's GFP_KERNEL, which for
 * such a size fails only if the task is an OOM victim and the reserves for
 * victims are used up as well.  Even then others can free memory: the OOM
 * reaper only trylocks mmap_lock and gives up after a second, and the OOM killer
 * picks another victim.
 *
 * So all limits include what an operation has not yet freed.  A call that hits a
 * limit waits for the operations in progress and retries once, see
 * munmap_section_retry().
 *
 * See Documentation/admin-guide/mm/faultline/munmap.rst.
 */

#include <linux/bitops.h>
#include <linux/completion.h>
#include <linux/faultline_munmap.h>
#include <linux/hash.h>
#include <linux/hugetlb.h>
#include <linux/kernel.h>
#include <linux/khugepaged.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/perf_event.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/secretmem.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <asm/tlb.h>

#include <trace/events/faultline.h>

#include "../internal.h"
#include "faultline.h"
#include "munmap.h"
#include "section.h"

/* === Data ================================================================= */

/* vm.munmap_section_kbytes is not 0. */
DEFINE_STATIC_KEY_FALSE(munmap_section_key);

/*
 * It has been non-zero at some time.  Never disabled again: operations in
 * flight, and so marks, outlive setting the sysctl to 0.
 */
DEFINE_STATIC_KEY_FALSE(munmap_section_marks_key);

/* The value of the switch in bytes; a shorter range is unmapped as upstream. */
unsigned long munmap_section_bytes __read_mostly;

static void munmap_section_apply(unsigned long kbytes)
{
	/* Pairs with each READ_ONCE(): an operation may see the old value. */
	WRITE_ONCE(munmap_section_bytes, section_bytes(kbytes));
	if (kbytes) {
		/* First, so that the key is on when the first mark is set. */
		if (!static_key_enabled(&munmap_section_marks_key)) {
			static_branch_enable(&munmap_section_marks_key);
			/*
			 * A CPU may still execute the old code (powerpc), or
			 * read the old variable (without jump labels).
			 */
			synchronize_rcu();
		}
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
 * Step 3 lets go of mmap_lock after the VMA in which it has reached this many
 * pages.  Scanning an empty table takes about as long as zapping 4 pages, removing
 * a VMA as long as 3.
 */
#define FINISH_PAGES		2048UL
#define FINISH_TABLE_PAGES	4UL
#define FINISH_VMA_PAGES	3UL

static_assert(MUNMAP_SECTION_MAX_OPS <=
	      BITS_PER_BYTE * sizeof_field(struct vm_area_struct, munmap_pending));

/* === When to unmap by sections ============================================ */

/*
 * A single-threaded process has nobody to stall, and a small one would not
 * stall others for long: both stay on the upstream path.
 */
bool __munmap_section_wanted(struct mm_struct *mm, unsigned long start,
			     size_t len)
{
	const unsigned long section = READ_ONCE(munmap_section_bytes);

	mmap_assert_write_locked(mm);

	if (!section)
		return false;
	if (offset_in_page(start) || start > TASK_SIZE || len > TASK_SIZE - start)
		return false;
	if (mm != current->mm || atomic_read(&mm->mm_users) == 1)
		return false;
	/* Mappings are work as well, whatever is in them: range_fits_section(). */
	return section_has_memory(mm, section) ||
	       WORK_LEAF * mm->map_count >= section_budget(section);
}

/* === Step 1: mark ========================================================= */

/* Does step 2 leave it to step 3?  The VMA is locked, or its mm for writing. */
static bool section_leaves_out(struct vm_area_struct *vma)
{
	return vma->vm_end - vma->vm_start < SECTION_VMA_MIN;
}

static bool section_owns(struct munmap_op *op, struct vm_area_struct *vma)
{
	return vma->munmap_pending & BIT(op->nr);
}

static bool section_begin_op(struct munmap_op *op, struct mm_struct *mm,
			     unsigned long start, unsigned long end,
			     bool replaces)
{
	/* Pairs with clear_bit_unlock() in section_release(). */
	unsigned long ops = READ_ONCE(mm->munmap_ops);
	unsigned int nr;

	mmap_assert_write_locked(mm);

	if (!READ_ONCE(munmap_section_bytes))
		return false;
	nr = find_first_zero_bit(&ops, MUNMAP_SECTION_MAX_OPS);
	if (nr >= MUNMAP_SECTION_MAX_OPS)
		return false;
	/* Atomic, since section_release() clears its bits without the lock. */
	if (replaces)
		set_bit(nr + MUNMAP_SECTION_MAX_OPS, &mm->munmap_ops);
	set_bit(nr, &mm->munmap_ops);

	*op = (struct munmap_op) {
		.mm		= mm,
		.start		= start,
		.end		= end,
		.nr		= nr,
		.replaces	= replaces,
	};

	count_vm_event(MUNMAP_SECTION_CALLS);
	trace_munmap_section_begin(mm, start, end, faultline_mapped_pages(mm));
	return true;
}

/**
 * munmap_section_begin - begin to unmap section by section
 * @op:    Filled in by this function.
 * @mm:    Address space of current, locked for writing.
 * @start: Start of the range, page aligned.
 * @end:   End of the range, page aligned.
 *
 * On success the caller marks VMAs, all in one hold of the lock, and then
 * calls munmap_section_run(), even if it has marked none.
 *
 * Return: false if too many operations are in flight in @mm, or if the
 * feature is being switched off: unmap as usual.
 */
bool munmap_section_begin(struct munmap_op *op, struct mm_struct *mm,
			  unsigned long start, unsigned long end)
{
	return section_begin_op(op, mm, start, end, false);
}

/**
 * munmap_section_mark - mark a VMA to be unmapped by an operation
 * @op:  The operation, begun in this hold of the lock.
 * @vma: The VMA, entirely inside the range of @op.
 *
 * A sealed VMA is left alone.  Waits for the readers of the VMA, unless step 2
 * leaves it out.
 */
void munmap_section_mark(struct munmap_op *op, struct vm_area_struct *vma)
{
	mmap_assert_write_locked(op->mm);
	VM_WARN_ON_ONCE(vma->vm_start < op->start || vma->vm_end > op->end);

	if (!can_modify_vma(vma))
		return;
	/* There can be 30,000 smaller ones, which need no lock before step 3: I4. */
	if (!section_leaves_out(vma) && !munmap_broken(MUNMAP_NO_WAIT))
		vma_start_write(vma);
	/* Pairs with READ_ONCE() in vma_munmap_pending(): readers of a small VMA. */
	WRITE_ONCE(vma->munmap_pending, vma->munmap_pending | BIT(op->nr));
}

/* === Step 2: zap ========================================================== */

/*
 * Find the first VMA at or above *@addr that is worth a lock.  Without mmap_lock
 * the result is a guess: the VMA may be gone.
 */
static struct vm_area_struct *section_next_vma(struct mm_struct *mm,
					       unsigned long *addr,
					       unsigned long end)
{
	MA_STATE(mas, &mm->mm_mt, *addr, *addr);
	struct vm_area_struct *vma;

	rcu_read_lock();
	mas_for_each(&mas, vma, end - 1) {
		unsigned long vm_start = READ_ONCE(vma->vm_start);

		if (READ_ONCE(vma->vm_end) - vm_start >= SECTION_VMA_MIN) {
			*addr = max(*addr, vm_start);
			break;
		}
		/* There can be a million of them. */
		if (need_resched()) {
			mas_pause(&mas);
			rcu_read_unlock();
			cond_resched();
			rcu_read_lock();
		}
	}
	rcu_read_unlock();

	return vma;
}

/**
 * munmap_lock_vma - lock for reading the next VMA that is worth a section
 * @mm:   The address space, not locked.
 * @addr: Where to begin; is moved into the VMA.
 * @end:  Where to end.
 * @killable: Give up if current is being killed while it waits for a writer.
 *
 * Smaller VMAs than SECTION_VMA_MIN are skipped, unless one was split meanwhile.
 *
 * Return: the VMA, which holds *@addr; NULL if there is none before @end, or if current
 * is being killed.
 */
struct vm_area_struct *munmap_lock_vma(struct mm_struct *mm, unsigned long *addr,
				       unsigned long end, bool killable)
{
	struct vm_area_struct *vma;
	unsigned long start = *addr;

	/* If the tree changed meanwhile, it can have missed one: that is left to step 3. */
	if (!section_next_vma(mm, &start, end) || start >= end)
		return NULL;
	vma = lock_vma_under_rcu(mm, start);
	if (vma) {
		*addr = start;
		return vma;
	}

	/* It is being changed, or was: look again, with the lock. */
	if (!killable)
		mmap_read_lock(mm);
	else if (mmap_read_lock_killable(mm))
		return NULL;
	vma = section_next_vma(mm, addr, end);
	/* Nobody can write-lock it now, so this does not wait. */
	if (vma)
		down_read(&vma->vm_lock->lock);
	mmap_read_unlock(mm);
	return vma;
}

/* Can an entry of the PUD level map memory in this VMA? */
static bool vma_may_map_puds(struct vm_area_struct *vma)
{
	return vma_is_dax(vma) || vma->vm_flags & VM_MIXEDMAP;
}

/* Does such an entry map memory on both sides of @addr? */
static bool splits_huge_pud(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t pud;

	if (IS_ALIGNED(addr, PUD_SIZE) || pgd_none(*pgd) || pgd_bad(*pgd))
		return false;
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return false;
	pud = pudp_get(pud_offset(p4d, addr));
	return pud_leaf(pud);
}

/*
 * Can [*@start, *@end) of a VMA be zapped without mmap_lock?  Moves the limits
 * where a part of it can.  The rest is left to step 3.
 */
static bool section_limits(struct vm_area_struct *vma, unsigned long *start,
			   unsigned long *end)
{
	/*
	 * There are no pages to free, and untrack_pfn() of step 3 reads an entry
	 * to find what was mapped.
	 */
	if (vma->vm_flags & VM_PFNMAP)
		return false;
	if (!is_vm_hugetlb_page(vma) && vma_may_map_puds(vma)) {
		/* Splitting a huge PUD takes mmap_lock. */
		if (splits_huge_pud(vma->vm_mm, *start))
			*start = ALIGN(*start, PUD_SIZE);
		if (splits_huge_pud(vma->vm_mm, *end))
			*end = ALIGN_DOWN(*end, PUD_SIZE);
	}
	return *start < *end;
}

static bool entries_are_none(pte_t *pte, unsigned int nr)
{
	for (; nr; pte++, nr--)
		if (!pte_none(ptep_get(pte)))
			return false;

	return true;
}

#ifdef CONFIG_FAULTLINE_MUNMAP_TABLES
/* See munmap_section_take_table(), and "Page tables" at the top. */
pgtable_t __munmap_section_take_table(struct vm_area_struct *vma,
				      struct zap_details *details, pmd_t *pmd,
				      unsigned long start, unsigned long end,
				      pte_t *start_pte, spinlock_t *ptl)
{
	const unsigned long table_start = start & PMD_MASK;
	spinlock_t *pml = pmd_lockptr(vma->vm_mm, pmd);
	pte_t *pte = start_pte - pte_index(start);
	pgtable_t table;

	if (!details || !(details->zap_flags & ZAP_FLAG_FREE_TABLES))
		return NULL;
	if (end != table_start + PMD_SIZE ||
	    table_start < vma->vm_start || end > vma->vm_end)
		return NULL;
	/* Pages that an earlier hold of the lock zapped may be back. */
	if (!entries_are_none(pte, pte_index(start)))
		return NULL;
	VM_WARN_ON_ONCE(!entries_are_none(pte, PTRS_PER_PTE));

	/* Elsewhere the order is PMD, then PTE.  If it is busy, munmap() does it. */
	if (pml != ptl && !spin_trylock(pml))
		return NULL;
	table = pmd_pgtable(*pmd);
	pmd_clear(pmd);
	if (pml != ptl)
		spin_unlock(pml);
	mm_dec_nr_ptes(vma->vm_mm);

	return table;
}

#define ZAP_FLAGS	(ZAP_FLAG_DROP_MARKER | ZAP_FLAG_FREE_TABLES)
#else
#define ZAP_FLAGS	ZAP_FLAG_DROP_MARKER
#endif

/* As faultline_spend_budget(), for a hugetlb VMA. */
static unsigned long spend_budget_hugetlb(struct vm_area_struct *vma,
					  unsigned long addr, unsigned long end,
					  long *budget)
{
	unsigned long size = huge_page_size(hstate_vma(vma));
	unsigned long pages = (end - addr) / size;
	unsigned long cut;

	/*
	 * Count by address: rmap may unshare a shared PMD table, and its last
	 * user may free it, without the mmap_lock of this mm.
	 */
	if (pages < *budget) {
		*budget -= pages;
		return end;
	}
	cut = addr + *budget * size;
	*budget = 0;

	/* Zap shared PMD tables as a whole: each is unshared in one go. */
	if (IS_ENABLED(CONFIG_HUGETLB_PMD_PAGE_TABLE_SHARING) &&
	    vma->vm_flags & VM_MAYSHARE)
		size = max(size, PUD_SIZE);
	cut = ALIGN(cut, size);
	return min(cut, end);
}

/*
 * May the zap leave mm->tlb_flush_pending alone until its last flush?
 *
 * An open mmu_gather makes every other mmu_gather of the mm flush the whole TLB
 * (mm_tlb_flush_nested()), and here one is open nearly all the time.  The count
 * is for code that finds a changed entry, does not flush since there was nothing
 * to change, and relies on no CPU using the old translation.  For an anonymous
 * dead VMA there is no such code.  Here entries only go from any value to none
 * (a huge page may be split first, which flushes by itself), and until the flush
 * each page has a reference of this gather.  Entries of the VMA are looked at by:
 *
 *  - Calls of this mm that map, unmap, protect, move, copy or populate: they fail
 *    on the mark, or wait for the VMA lock, and so for the flush.
 *  - rmap, for reclaim, migration, KSM, khugepaged and splitting: it finds the
 *    page not mapped here, as after the flush.  Whoever reuses the page, or its
 *    content, first finds that nobody else has a reference.
 *  - The OOM reaper: it frees only pages that it has unmapped and flushed.
 *  - pte_accessible(), do_wp_page() with userfaultfd, NUMA balancing, clear_refs,
 *    PAGEMAP_SCAN: they care for entries that are present, or soft-dirty.
 *
 * An access that wins against the flush does not differ from one before the
 * munmap: the page is still that of the VMA.  For a file it might differ from
 * the file, since truncation relies on the count, and so do drivers that unmap
 * their pages.
 *
 * For madvise(), a VMA that is being replaced is mapped: after MADV_DONTNEED, no CPU
 * may read old pages, also where the entries were none already.
 */
static bool may_hide_flush(struct vm_area_struct *vma)
{
	return vma_munmap_dead(vma) && vma_is_plain_anonymous(vma);
}

static struct zap_details section_details(struct vm_area_struct *vma)
{
	return (struct zap_details) {
		/* See T1. */
		.zap_flags	= vma->vm_flags & VM_MIXEDMAP ?
				  ZAP_FLAG_DROP_MARKER : ZAP_FLAGS,
		.even_cows	= true,
	};
}

/* Zap as much of a marked VMA as @section may do, and unlock it. */
static unsigned long section_zap(struct vm_area_struct *vma,
				 unsigned long start, unsigned long end,
				 struct section *section)
{
	struct zap_details details = section_details(vma);

	if (is_vm_hugetlb_page(vma)) {
		/*
		 * A private mapping that will be closed needs no reservations
		 * any more.  To a shared one, which has no part in it, the flag
		 * says that its VMA lock may be freed.
		 */
		if (vma_munmap_dead(vma) && !(vma->vm_flags & VM_MAYSHARE))
			details.zap_flags |= ZAP_FLAG_UNMAP;
		end = spend_budget_hugetlb(vma, start, end, &section->budget);
		zap_page_range_single(vma, start, end - start, &details);
		vma_end_read(vma);
		return end;
	}

	start = faultline_first_entry(vma, start, end);
	if (start == end) {
		vma_end_read(vma);
		return end;
	}
	section->hide_flush = may_hide_flush(vma);
	section_set_tested(section);
	return faultline_zap_section(vma, start, end, section, &details);
}

/* Zap all marked VMAs.  Returns the number of sections. */
static unsigned long section_zap_all(struct munmap_op *op)
{
	unsigned long addr = op->start, sections = 0;

	lru_add_drain();
	while (addr < op->end) {
		unsigned long start, end, reached;
		struct vm_area_struct *vma;
		u64 begin, locked, zapped;
		struct section section;
		long budget;

		cond_resched();
		begin = ktime_get_ns();
		vma = munmap_lock_vma(op->mm, &addr, op->end, false);
		if (!vma)
			break;
		start = addr;
		end = min(vma->vm_end, op->end);
		addr = end;
		if (!section_owns(op, vma) &&
		    !munmap_broken(MUNMAP_ZAP_FOREIGN)) {
			vma_end_read(vma);
			count_vm_event(MUNMAP_SECTION_FOREIGN);
			continue;
		}
		/* I4: a small piece may have been marked while it was read. */
		if (section_leaves_out(vma) ||
		    !section_limits(vma, &start, &end)) {
			vma_end_read(vma);
			continue;
		}
		section = section_begin(READ_ONCE(munmap_section_bytes));
		budget = section.budget;
		locked = ktime_get_ns();
		reached = section_zap(vma, start, end, &section);
		zapped = ktime_get_ns();
		if (start != op->zapped_end)
			op->zapped_start = start;
		op->zapped_end = reached;
		if (reached < end)
			addr = reached;
		/* It was a hole. */
		if (section.budget == budget)
			continue;
		if (section.contended)
			count_vm_event(MUNMAP_SECTION_CONTENDED);
		count_vm_event(MUNMAP_SECTION_SECTIONS);
		sections++;
		trace_munmap_section(op->mm, start, reached,
				     budget - section.budget,
				     zapped - locked, locked - begin,
				     section.contended);
	}

	return sections;
}

/* === Step 3: unmap ======================================================== */

/*
 * Has step 2 zapped all of @vma?  It has had the mark since step 1 (I1), so it is
 * the VMA that was zapped there, or a piece of that.  I6 does the rest.
 */
static bool section_zapped(struct munmap_op *op, struct vm_area_struct *vma)
{
	if (!vma_is_plain_anonymous(vma))
		return false;
	return (vma->vm_start >= op->zapped_start &&
		vma->vm_end <= op->zapped_end) ||
	       munmap_broken(MUNMAP_NO_SECOND_ZAP);
}

/* Check I6 and R2 for a VMA that is write-locked, with mmap_lock held for writing. */
static void section_check_zapped(struct vm_area_struct *vma)
{
	unsigned long addr = vma->vm_start;

	if (!IS_ENABLED(CONFIG_DEBUG_VM))
		return;

	while (addr < vma->vm_end) {
		struct section_step step;
		long one = WORK_LEAF;
		unsigned int nr;
		pmd_t *pmd;
		pte_t *pte;

		addr = faultline_spend_budget(vma->vm_mm, addr, vma->vm_end,
					      &one, &step);
		if (step.start == step.end)
			continue;
		pmd = pmd_off(vma->vm_mm, step.start);
		VM_WARN_ON_ONCE(pmd_leaf(pmdp_get_lockless(pmd)));
		/* No lock: rmap changes entries that are not none, if any. */
		pte = pte_offset_map(pmd, step.start);
		if (!pte)
			continue;
		nr = (step.end - step.start) >> PAGE_SHIFT;
		VM_WARN_ON_ONCE(!entries_are_none(pte, nr));
		pte_unmap(pte);
	}
}

/*
 * Find the next run of marked VMAs at or above *@start, up to the first unmarked
 * one or until it is enough for one hold of the lock.
 */
static bool section_next_run(struct munmap_op *op, unsigned long *start,
			     unsigned long *end)
{
	VMA_ITERATOR(vmi, op->mm, *start);
	struct vm_area_struct *vma;
	unsigned long work = 0;

	for_each_vma_range(vmi, vma, op->end) {
		unsigned long len = vma->vm_end - vma->vm_start;

		if (!section_owns(op, vma) &&
		    !munmap_broken(MUNMAP_UNMAP_FOREIGN)) {
			if (work)
				break;
			continue;
		}
		if (!work)
			*start = vma->vm_start;
		*end = vma->vm_end;
		if (!op->replaces && section_zapped(op, vma)) {
			vma_start_write(vma);
			section_check_zapped(vma);
			vma->munmap_zapped = true;
		}
		work += FINISH_VMA_PAGES;
		work += len < SECTION_VMA_MIN ? len / PAGE_SIZE :
			FINISH_TABLE_PAGES * (len >> PMD_SHIFT);
		if (work >= FINISH_PAGES)
			break;
	}

	return work;
}

/* Unmap [start, end) like munmap() of that range; unlocks on success. */
static int section_unmap(struct mm_struct *mm, unsigned long start,
			 unsigned long end, struct list_head *uf)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma = vma_find(&vmi, end);

	return do_vmi_align_munmap(&vmi, vma, mm, start, end, uf, true);
}

/*
 * Make the VMAs that are left ordinary mappings again, after a bug: their content
 * is lost, but a mark without an operation would stay forever.
 */
static void section_unmark(struct munmap_op *op)
{
	VMA_ITERATOR(vmi, op->mm, op->start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, op->end) {
		if (!section_owns(op, vma))
			continue;
		vma_start_write(vma);
		vma->munmap_zapped = false;
		vma->munmap_pending &= ~BIT(op->nr);
	}
}

/* Unmap all marked VMAs; takes and releases mmap_lock. */
static void section_finish(struct munmap_op *op, struct list_head *uf)
{
	struct mm_struct *mm = op->mm;
	unsigned long start = op->start, end;

	while (start < op->end) {
		cond_resched();
		mmap_write_lock(mm);
		if (!section_next_run(op, &start, &end)) {
			mmap_write_unlock(mm);
			break;
		}
		if (WARN_ON_ONCE(section_unmap(mm, start, end, uf))) {
			section_unmark(op);
			mmap_write_unlock(mm);
			break;
		}
		start = end;
	}
}

/* A call that waits until the operations of @mm that it saw have ended. */
struct section_waiter {
	struct list_head	list;
	struct mm_struct	*mm;
	unsigned long		ops;	/* those that have not ended yet */
	struct completion	done;
};

/* The waiters of the mms with one hash.  Only a call that is about to fail waits. */
struct section_waiters {
	spinlock_t		lock;	/* also for clearing a bit of munmap_ops */
	struct list_head	list;
};

#define WAITERS_BITS		6
static struct section_waiters section_waiters[BIT(WAITERS_BITS)];

/* Runs before the first process. */
static int __init section_waiters_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(section_waiters); i++) {
		spin_lock_init(&section_waiters[i].lock);
		INIT_LIST_HEAD(&section_waiters[i].list);
	}
	return 0;
}
core_initcall(section_waiters_init);

static struct section_waiters *waiters_of(struct mm_struct *mm)
{
	return &section_waiters[hash_ptr(mm, WAITERS_BITS)];
}

/*
 * No VMA has the mark any more.  A reader of the bit that holds mmap_lock
 * (READ_ONCE() in munmap_section_begin(), ops_in_progress() and
 * vma_munmap_mark_stale()) has seen our changes under that lock.
 *
 * The waiters do not look at the bit again, as the next operation can have the
 * same one by then.
 */
static void section_release(struct munmap_op *op)
{
	struct section_waiters *waiters = waiters_of(op->mm);
	struct section_waiter *waiter;

	spin_lock(&waiters->lock);
	clear_bit(op->nr + MUNMAP_SECTION_MAX_OPS, &op->mm->munmap_ops);
	clear_bit_unlock(op->nr, &op->mm->munmap_ops);
	list_for_each_entry(waiter, &waiters->list, list) {
		if (waiter->mm != op->mm || !(waiter->ops & BIT(op->nr)))
			continue;
		waiter->ops &= ~BIT(op->nr);
		if (!waiter->ops)
			complete(&waiter->done);
	}
	spin_unlock(&waiters->lock);
}

/**
 * munmap_section_run - unmap all marked VMAs
 * @op: The operation; its mm is locked for writing.
 * @uf: As for do_vmi_align_munmap().
 *
 * Returns with mmap_lock released.  A signal does not end it early: it frees
 * memory, which exit would have to do otherwise.
 */
void munmap_section_run(struct munmap_op *op, struct list_head *uf)
{
	struct mm_struct *mm = op->mm;
	unsigned long sections;
	u64 begin;

	mmap_write_unlock(mm);
	sections = section_zap_all(op);
	begin = ktime_get_ns();
	if (munmap_broken(MUNMAP_EARLY_RELEASE))
		section_release(op);
	munmap_window(MUNMAP_WINDOW_FINISH);
	section_finish(op, uf);
	section_release(op);
	trace_munmap_section_end(mm, sections, ktime_get_ns() - begin);
}

/* === Limits =============================================================== */

/* Pairs with clear_bit_unlock() in section_release(). */
static bool ops_in_progress(struct mm_struct *mm)
{
	return READ_ONCE(mm->munmap_ops) && !munmap_broken(MUNMAP_NO_RETRY);
}

/* See munmap_section_busy(). */
bool __munmap_section_busy(struct mm_struct *mm)
{
	mmap_assert_write_locked(mm);

	return ops_in_progress(mm) && !fatal_signal_pending(current);
}

/* See munmap_section_wait(). */
bool __munmap_section_wait(struct mm_struct *mm)
{
	struct section_waiters *waiters = waiters_of(mm);
	struct section_waiter waiter = { .mm = mm };
	int killed;

	init_completion(&waiter.done);
	spin_lock(&waiters->lock);
	/* section_release() takes the lock, so each bit is of one operation. */
	waiter.ops = READ_ONCE(mm->munmap_ops) & MUNMAP_SECTION_OPS;
	if (!waiter.ops)
		complete(&waiter.done);
	list_add(&waiter.list, &waiters->list);
	spin_unlock(&waiters->lock);

	/*
	 * For lock ordering this is the same as waiting for mmap_lock, which
	 * upstream's munmap() would hold, and which the caller has just held.
	 */
	killed = wait_for_completion_killable(&waiter.done);
	spin_lock(&waiters->lock);
	list_del(&waiter.list);
	spin_unlock(&waiters->lock);
	return !killed;
}

/* See munmap_section_retry(). */
bool __munmap_section_retry(struct mm_struct *mm, struct list_head *uf,
			    bool *retried)
{
	if (*retried || !__munmap_section_busy(mm))
		return false;
	*retried = true;
	mmap_write_unlock(mm);
	/* The monitor must not wait for the munmaps as well. */
	if (uf)
		userfaultfd_unmap_complete(mm, uf);
	/* After a fatal signal, the call ends at the lock or at the limit. */
	__munmap_section_wait(mm);
	return true;
}

/*
 * See munmap_section_retry_mlock().  What has been done ends at a hole, or at the
 * VMA where the call has failed.
 */
bool __munmap_section_retry_mlock(struct mm_struct *mm, unsigned long *start,
				  size_t *len, vm_flags_t flags, bool *retried)
{
	VMA_ITERATOR(vmi, mm, *start);
	const unsigned long end = *start + *len;
	struct vm_area_struct *vma;

	if (!ops_in_progress(mm))
		return false;
	for_each_vma_range(vmi, vma, end) {
		if (vma->vm_start > *start || vma_munmap_dead(vma))
			return false;
		/* mlock_fixup() leaves others alone. */
		if (vma_supports_mlock(vma) && !vma_is_secretmem(vma) &&
		    (vma->vm_flags & VM_LOCKED_MASK) != flags)
			break;
		*start = vma->vm_end;
	}
	if (!vma)
		return false;
	*len = end - *start;
	return __munmap_section_retry(mm, NULL, retried);
}

/* Is [start, end) mapped without a hole, and nothing of it dead? */
static bool range_is_live(struct mm_struct *mm, unsigned long start,
			  unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	/* The length has not been checked yet. */
	if (end <= start)
		return false;
	for_each_vma_range(vmi, vma, end) {
		if (vma->vm_start > start || vma_munmap_dead(vma))
			return false;
		start = min(vma->vm_end, end);
	}

	return start == end;
}

/*
 * See munmap_section_retry_mmap().  If MAP_FIXED fails and there is a hole in its
 * range, others can map there before the second try, which must not replace
 * theirs.
 */
bool __munmap_section_retry_mmap(struct mm_struct *mm, unsigned long addr,
				 unsigned long len, unsigned long flags,
				 struct list_head *uf, bool *retried)
{
	if (!ops_in_progress(mm))
		return false;
	if (flags & MAP_FIXED && !range_is_live(mm, addr, addr + len))
		return false;
	return __munmap_section_retry(mm, uf, retried);
}

/* === munmap() and mremap() ================================================ */

/* Does the range fit in one section?  Then sections only add cost. */
static bool range_fits_section(struct mm_struct *mm, unsigned long start,
			       unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	long budget = section_budget(READ_ONCE(munmap_section_bytes));
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end) {
		unsigned long from = max(vma->vm_start, start);
		unsigned long to = min(vma->vm_end, end);

		if (is_vm_hugetlb_page(vma))
			budget -= (to - from) / huge_page_size(hstate_vma(vma));
		else
			faultline_spend_budget(mm, from, to, &budget, NULL);
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
		/* It could grow out of the range, and be charged for that. */
		if (vma->vm_flags & (VM_GROWSDOWN | VM_GROWSUP))
			return true;
		/* One event for the range, before the first page goes. */
		if (section_wants_event(vma, UFFD_FEATURE_EVENT_UNMAP))
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
 * Return: 0, with mmap_lock released; or an error of do_vmi_munmap(), with
 * nothing unmapped and mmap_lock held for writing all the time.
 */
int munmap_sectioned(struct mm_struct *mm, unsigned long start, size_t len,
		     struct list_head *uf)
{
	VMA_ITERATOR(vmi, mm, start);
	const unsigned long end = start + PAGE_ALIGN(len);
	struct munmap_op op;
	struct vm_area_struct *vma;
	int err;

	if (range_fits_section(mm, start, end))
		goto upstream;
	if (range_is_atomic(mm, start, end))
		goto atomic;

	err = range_split_edges(mm, start, end);
	if (err)
		return err;

	if (!munmap_section_begin(&op, mm, start, end))
		goto atomic;

	for_each_vma_range(vmi, vma, end)
		munmap_section_mark(&op, vma);
	munmap_section_run(&op, uf);
	return 0;

atomic:
	count_vm_event(MUNMAP_SECTION_ATOMIC);
upstream:
	vma_iter_init(&vmi, mm, start);
	return do_vmi_munmap(&vmi, mm, start, len, uf, true);
}

/* === mmap(MAP_FIXED) ====================================================== */

/*
 * Does step 2 do what upstream's mmap() does to this VMA?  It leaves out what a VMA
 * is registered with: userfaultfd, mlock() and KSM.
 */
static bool vma_is_replaceable(struct vm_area_struct *vma)
{
	const vm_flags_t excluded =
		VM_SPECIAL | VM_SHARED | VM_MAYSHARE | VM_LOCKED_MASK |
		VM_GROWSDOWN | VM_GROWSUP | VM_HUGETLB | VM_DROPPABLE |
		VM_SHADOW_STACK | VM_MERGEABLE;

	return vma_is_anonymous(vma) && !vma->vm_file &&
	       !(vma->vm_flags & excluded) && !userfaultfd_armed(vma) &&
	       !vma_munmap_pending(vma) && can_modify_vma(vma);
}

/* Is each page of [start, end) in a VMA that can become the new mapping? */
static bool range_is_replaceable(struct mm_struct *mm, unsigned long start,
				 unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end) {
		if (vma->vm_start > start || !vma_is_replaceable(vma))
			return false;
		start = vma->vm_end;
	}

	return start >= end;
}

/* As range_fits_section(), whatever the number of VMAs, which are not hugetlb. */
static bool tables_fit_section(struct mm_struct *mm, unsigned long start,
			       unsigned long end)
{
	long budget = section_budget(READ_ONCE(munmap_section_bytes));

	faultline_spend_budget(mm, start, end, &budget, NULL);
	return budget > 0;
}

/* Can the new mapping have pages of the old one for a while?  Nobody may see them. */
static bool mapping_can_replace(struct mm_struct *mm, const struct file *file,
				vm_flags_t vm_flags)
{
	return !file && !(vm_flags & (VM_ACCESS_FLAGS | VM_SHARED | VM_MAYSHARE |
				      VM_LOCKED_MASK | VM_GROWSDOWN |
				      VM_GROWSUP | VM_DROPPABLE | VM_HUGETLB)) &&
	       !test_bit(MMF_VM_MERGE_ANY, &mm->flags);
}

/* Make @vma what a new mapping with @vm_flags is, but for its content. */
static void section_convert(struct munmap_op *op, struct vm_area_struct *vma,
			    vm_flags_t vm_flags)
{
	struct mm_struct *mm = op->mm;
	const long pages = vma_pages(vma);

	VM_WARN_ON_ONCE(vma->vm_start < op->start || vma->vm_end > op->end);

	vma_start_write(vma);
	if (vma->vm_flags & VM_ACCOUNT)
		op->charge += pages;
	vm_stat_account(mm, vma->vm_flags, -pages);
	vm_stat_account(mm, vm_flags, pages);
	if (is_data_mapping(vma->vm_flags)) {
		op->data_vm += pages;
		mm->data_vm += pages;
		mm->munmap_data_vm += pages;
	}
	vm_flags_reset(vma, vm_flags | VM_SOFTDIRTY);
	vma_set_page_prot(vma);
#ifdef CONFIG_ANON_VMA_NAME
	free_anon_vma_name(vma);
	vma->anon_name = NULL;
#endif
#ifdef CONFIG_NUMA
	mpol_put(vma->vm_policy);
	vma->vm_policy = NULL;
#endif
	vma->munmap_pending |= BIT(op->nr);
}

/*
 * Zap all of a VMA that is write-locked, so no section of it is in progress.  This
 * is the end of the old mapping, which notifiers have to know.
 */
static void section_zap_rest(struct mmu_gather *tlb, struct vm_area_struct *vma)
{
	struct zap_details details = section_details(vma);
	struct mmu_notifier_range range;

	mmu_notifier_range_init(&range, MMU_NOTIFY_UNMAP, 0, vma->vm_mm,
				vma->vm_start, vma->vm_end);
	update_hiwater_rss(vma->vm_mm);
	mmu_notifier_invalidate_range_start(&range);
	unmap_page_range(tlb, vma, vma->vm_start, vma->vm_end, &details);
	mmu_notifier_invalidate_range_end(&range);
}

/* See vma_munmap_complete(). */
void __vma_munmap_complete(struct vm_area_struct *vma)
{
	struct mmu_gather tlb;

	mmap_assert_write_locked(vma->vm_mm);

	vma_start_write(vma);
	if (!munmap_broken(MUNMAP_NO_COMPLETE)) {
		tlb_gather_mmu(&tlb, vma->vm_mm);
		section_zap_rest(&tlb, vma);
		tlb_finish_mmu(&tlb);
	}
	vma->munmap_pending = 0;
	/* A task that registers a userfaultfd can do so for another process. */
	if (vma->vm_mm == current->mm)
		perf_event_mmap(vma);
	count_vm_event(MUNMAP_SECTION_COMPLETED);
}

/* Remove what the VMAs of a run still have of the old mapping. */
static void section_settle(struct munmap_op *op, unsigned long start,
			   unsigned long end)
{
	VMA_ITERATOR(vmi, op->mm, start);
	struct vm_area_struct *vma;
	struct mmu_gather tlb;

	/* Also where step 2 has been: see R2.  One TLB flush for all. */
	tlb_gather_mmu(&tlb, op->mm);
	for_each_vma_range(vmi, vma, end) {
		vma_start_write(vma);
		section_zap_rest(&tlb, vma);
	}
	tlb_finish_mmu(&tlb);

	vma_iter_init(&vmi, op->mm, start);
	for_each_vma_range(vmi, vma, end) {
		section_check_zapped(vma);
		vma->munmap_pending &= ~BIT(op->nr);
		/* R6 */
		if (vma_munmap_pending(vma))
			continue;
		/* As a fresh mapping, so that it merges with others. */
		unlink_anon_vmas(vma);
		vma->vm_pgoff = vma->vm_start >> PAGE_SHIFT;
	}
}

/* Merge the VMAs of a run as upstream merges one new VMA.  If it fails, they stay. */
static void section_merge(struct munmap_op *op, unsigned long start,
			  unsigned long end)
{
	VMA_ITERATOR(vmi, op->mm, start);
	struct vm_area_struct *vma, *prev, *last = NULL;

	vma_find(&vmi, end);
	prev = vma_prev(&vmi);
	for_each_vma_range(vmi, vma, end) {
		struct vm_area_struct *merged;

		if (!vma_munmap_pending(vma)) {
			khugepaged_enter_vma(vma, vma->vm_flags);
			merged = vma_modify_flags(&vmi, prev, vma,
						  vma->vm_start, vma->vm_end,
						  vma->vm_flags);
			if (!IS_ERR(merged))
				vma = merged;
			/* Like a new mapping, which makes all of @prev dirty. */
			vm_flags_set(vma, VM_SOFTDIRTY);
			vma_set_page_prot(vma);
			/* The last one did not merge with this one. */
			if (last && last != vma)
				perf_event_mmap(last);
			last = vma;
		}
		prev = vma;
	}
	if (last)
		perf_event_mmap(last);
}

/* Step 3.  Takes mmap_lock, and keeps it. */
static void section_finish_replace(struct munmap_op *op)
{
	struct mm_struct *mm = op->mm;
	unsigned long start = op->start, end;

	mmap_write_lock(mm);
	while (section_next_run(op, &start, &end)) {
		section_settle(op, start, end);
		section_merge(op, start, end);
		start = end;
		if (start >= op->end)
			break;
		mmap_write_unlock(mm);
		cond_resched();
		mmap_write_lock(mm);
	}
	vm_unacct_memory(op->charge);
	mm->data_vm -= op->data_vm;
	mm->munmap_data_vm -= op->data_vm;
	section_release(op);
}

static void section_run_replace(struct munmap_op *op)
{
	struct mm_struct *mm = op->mm;
	unsigned long sections;
	u64 begin;

	mmap_write_unlock(mm);
	munmap_window(MUNMAP_WINDOW_ZAP);
	sections = section_zap_all(op);
	begin = ktime_get_ns();
	munmap_window(MUNMAP_WINDOW_FINISH);
	section_finish_replace(op);
	trace_munmap_section_end(mm, sections, ktime_get_ns() - begin);
}

/*
 * See munmap_section_replace().  The lock is dropped in the middle of mmap(): only
 * vm_mmap_pgoff() maps anonymous memory over other, and it has done nothing yet.
 *
 * Returns false where upstream's way is to be taken, also to fail as that does.
 */
bool __munmap_section_replace(struct mm_struct *mm, const struct file *file,
			      unsigned long start, unsigned long len,
			      vm_flags_t vm_flags)
{
	VMA_ITERATOR(vmi, mm, start);
	const unsigned long end = start + len;
	struct vm_area_struct *vma;
	struct munmap_op op;
	bool replaceable;

	if (!section_has_memory(mm, READ_ONCE(munmap_section_bytes)))
		return false;
	replaceable = mapping_can_replace(mm, file, vm_flags) &&
		      range_is_replaceable(mm, start, end);
	/* Only memory is work: step 3 takes longer for a VMA than upstream. */
	if (replaceable ? tables_fit_section(mm, start, end) :
			  range_fits_section(mm, start, end))
		return false;
	if (!replaceable ||
	    !may_expand_vm(mm, vm_flags, 0) ||
	    range_split_edges(mm, start, end) ||
	    !section_begin_op(&op, mm, start, end, true)) {
		if (!munmap_range_is_cache(mm, start, end))
			count_vm_event(MUNMAP_SECTION_ATOMIC);
		return false;
	}

	for_each_vma_range(vmi, vma, end)
		section_convert(&op, vma, vm_flags);
	count_vm_event(MUNMAP_SECTION_REPLACED);
	section_run_replace(&op);
	return true;
}

#ifdef CONFIG_FAULTLINE_MUNMAP_TORTURE
#include "tests/munmap-torture.h"
#endif
