// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: speculative page faults (vm.speculative_page_fault).
 *
 * Upstream handles a page fault under the VMA read lock, or under mmap_lock.
 * A writer that changes the VMA waits for any fault that is preempted or that
 * reclaims memory.  Meanwhile the writer holds mmap_lock for writing, so all
 * other threads wait as well.  A speculative fault takes only the page table
 * lock, and holds it only while it checks an entry and changes it:
 *
 * 1. Take a snapshot of the VMA, spf_snapshot_vma().  The snapshot is valid if
 *    the VMA was not write-locked while it was taken.  From here on the VMA
 *    itself is only an address and a sequence number, unless it is locked: for
 *    the upstream path, or as in spf_huge.c.
 * 2. Do the slow work from the snapshot: allocate and charge memory, copy a
 *    page.
 * 3. Lock the page table and revalidate: has the VMA been write-locked since?
 *    See spf_lock_table().  If not, change the entry.
 *
 * If there is no page table, step 3 cannot do without the VMA lock.  Then it takes
 * that lock, briefly, and revalidates with it held: see spf_huge.c.  The fault is
 * over with a huge page; otherwise it goes on in the new page table.  If there is
 * no anon_vma to write, the fault makes one with mmap_lock held for reading, and
 * goes on with a new attempt.
 *
 * Anything unexpected, at any step, makes the fault fall back to the upstream
 * path, as if no attempt had been made; a new page table or anon_vma stays.
 *
 * The rules for writers:
 *
 *  W1 A VMA in the tree of its mm, and its membership in that tree, change only
 *     with mmap_lock held for writing, and after vma_start_write() in the same
 *     write section.  (Of the fields that change otherwise, only two are used.
 *     anon_vma is set once.  munmap_pending of a VMA without a whole page table
 *     may be missed: the fault is then one from before that munmap, see I4 in
 *     munmap.c.)
 *  W2 vma_start_write() writes vm_lock_seq, followed by a full barrier;
 *     spf_write_barrier().
 *  W3 A VMA is inserted into the tree after that, with release semantics.
 *  W4 A VMA is marked detached before the write section ends, and the two are
 *     observed in that order (mm_lock_seqcount_end()).
 *  W5 Before a writer frees or moves a page table, relies on its entries or on
 *     translations made from them (the powerpc hash table), or frees anything
 *     a snapshot points to, it locks the page table at least once after W2, or
 *     has seen that there is no table.  (None appears after that: a speculative
 *     fault installs one only with the VMA locked for reading, and W2 comes with
 *     waiting for that lock.)  Upstream's writers do, with two
 *     exceptions: mremap() when it moves whole tables, and the collapse into a
 *     huge page, which flushes translations before it locks the table.  Both
 *     call spf_drain_pmd().  (retract_page_tables() and
 *     collapse_pte_mapped_thp() free tables of private file mappings without
 *     W2.  This is safe: a speculative fault never fills an empty entry of such
 *     a mapping, and rechecks the PMD entry.)
 *  W6 A page table of any level, and its lock, stay in memory until an RCU
 *     grace period after the table was unlinked from the level above.  Without
 *     speculative faults x86 and arm64 need less than that; they check after W2
 *     whether any may be running, spf_rcu_tables().  (powerpc hash MMU: until all
 *     interrupts-off sections are over, spf_walk_begin().)
 *  W7 Registering the first MMU notifier of an mm completes only when all
 *     faults that have not seen it are over; spf_sync_notifiers().
 *
 * Why a fault that passes step 3 is as good as upstream's: let X be a write
 * section that write-locks the VMA after step 1.  X's pass over the table (W5)
 * did not precede ours, because the page table lock would then have carried
 * X's sequence number to us.  So either X gets to this table after us and finds
 * our change, or X has seen after its barrier (W2) that there was no table.  In
 * that case we found the table first and read the sequence number after our
 * barrier, so we see X's number.  All others hold mmap_lock or the VMA lock for
 * reading, or only the page table lock.  To them we look like a holder of the
 * VMA read lock, as long as we do nothing but change entries under the page
 * table lock.
 *
 * On arm64 a TLB flush is an instruction that is broadcast, and interrupts no CPU.
 * So it does not wait for those who walk page tables with interrupts off, but no
 * rule asks for that: W6 is about RCU.  Once it is complete (the DSB after TLBI), no
 * CPU uses an older translation, or makes one from a table that was unlinked before
 * (flushes for tables that are freed or moved are not of leaf entries only): that is
 * all that a writer relies on.  A change of one contiguous entry may write the
 * entries of its whole block, some of them in the next VMA, whose lock upstream's
 * fault does not hold either.  They are in the same table, so its lock is held, and
 * only the contiguous, accessed and dirty bits change.  Meanwhile they are empty for
 * a moment, for other CPUs and for reads without the lock: what these have read is
 * checked again.
 *
 * While we hold the page table lock, neither the table nor the anon_vma and the
 * file of the snapshot can go away: they all go after X's pass.  The VMA can,
 * since a merge needs no pass.  So only the snapshot is used.
 *
 * See Documentation/admin-guide/mm/faultline/spf.rst.
 */

#include <linux/sched.h>
#include <linux/delayacct.h>
#include <linux/extable.h>
#include <linux/faultline_munmap.h>
#include <linux/faultline_spf.h>
#include <linux/highmem.h>
#include <linux/huge_mm.h>
#include <linux/kcsan-checks.h>
#include <linux/kmsan.h>
#include <linux/ksm.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmu_context.h>
#include <linux/mmu_notifier.h>
#include <linux/oom.h>
#include <linux/perf_event.h>
#include <linux/rcupdate.h>
#include <linux/rmap.h>
#include <linux/sched/clock.h>
#include <linux/sched/sysctl.h>
#include <linux/swap.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <asm/tlbflush.h>

#include <trace/events/faultline.h>

#include "../internal.h"
#include "faultline.h"
#include "spf.h"

/* === Data ================================================================= */

DEFINE_STATIC_KEY_FALSE(spf_key);

/*
 * On while writers must cooperate: spf_key is on, or was until a moment ago.
 * A writer that sees this key off has already written vm_lock_seq, or published
 * its MMU notifier.  So a fault that starts after spf_key is on finds the VMA
 * locked, or finds the notifier.
 */
DEFINE_STATIC_KEY_FALSE(spf_writer_key);

static void spf_apply(unsigned long value)
{
	if (value) {
		static_branch_enable(&spf_writer_key);
		/*
		 * After this no CPU lags behind, neither with a store of a
		 * writer that saw the key off, nor (possible on powerpc) with
		 * the old version of patched code that it had prefetched.
		 */
		synchronize_rcu();
		static_branch_enable(&spf_key);
	} else {
		static_branch_disable(&spf_key);
		/*
		 * A fault is one RCU section.  If it slept or tries again, there
		 * are others, which check the key first; revalidate_vma() and
		 * find_again().
		 */
		synchronize_rcu();
		static_branch_disable(&spf_writer_key);
	}
}

struct faultline_toggle speculative_page_fault_toggle = {
	.name	= "speculative_page_fault",
	.max	= 1,
	.value	= CONFIG_FAULTLINE_SPF_DEFAULT,
	.apply	= spf_apply,
};

static_assert(SPF_ABORT_NO_MEMORY - SPF_ZERO == ABORT_NO_MEMORY);

/* Hash MMU: how often to try the page table lock. */
#define LOCK_TRIES	64

/* See MAX_SECTIONS. */
#define MAX_SLEEP	(10 * HZ)

/* === The VMA snapshot ===================================================== */

/*
 * Kinds of mappings that are left to the upstream path.  (VM_MTE: pages with
 * tags, on arm64.)
 */
static bool spf_unsupported(vm_flags_t flags)
{
	return flags & (VM_SHARED | VM_MAYSHARE | VM_HUGETLB | VM_PFNMAP |
			VM_MIXEDMAP | VM_IO | VM_SHADOW_STACK | VM_DROPPABLE |
			VM_MTE | VM_UFFD_MISSING | VM_UFFD_WP | VM_UFFD_MINOR);
}

/*
 * Policies are freed at once, so the snapshot may point to a freed one.
 * vm_ops->get_policy must not be read either: some vm_ops go with the file.
 */
static bool has_policy(struct vm_area_struct *vma)
{
#ifdef CONFIG_NUMA
	if (vma->vm_policy)
		return true;
#endif
	/* All other files with a policy only have shared mappings. */
	return vma->vm_ops && vma_is_shmem(vma);
}

/* Copy the fields of @vma that a fault needs; @vma may be changing. */
static void copy_vma_fields(struct spf_state *f,
			    const struct vm_area_struct *vma, vm_flags_t flags)
{
	struct vm_area_struct *snap = &f->snapshot;

	/* Make any use of the other fields fail loudly. */
	if (IS_ENABLED(CONFIG_DEBUG_VM))
		memset(snap, POISON_FREE, sizeof(*snap));

	/* spf_snapshot_vma() throws away a copy that raced with a writer. */
	kcsan_disable_current();
	vm_flags_init(snap, flags);
	snap->vm_start = vma->vm_start;
	snap->vm_end = vma->vm_end;
	snap->vm_mm = f->mm;
	snap->vm_page_prot = vma->vm_page_prot;
	snap->detached = vma->detached;
#ifdef CONFIG_FAULTLINE_MUNMAP
	snap->munmap_pending = vma->munmap_pending;
#endif
	/* Set once, without write-locking the VMA. */
	snap->anon_vma = READ_ONCE(vma->anon_vma);
	snap->vm_ops = vma->vm_ops;
	snap->vm_pgoff = vma->vm_pgoff;
#ifdef CONFIG_NUMA
	snap->vm_policy = vma->vm_policy;
#endif
	/* The file can be closed: use it only under the page table lock. */
	snap->vm_file = NULL;
	f->file = vma->vm_file;
	kcsan_enable_current();
}

/* Runs in the RCU section, which began before the check of spf_key. */
static __always_inline struct vm_area_struct *
find_vma_rcu(struct mm_struct *mm, unsigned long address)
{
	MA_STATE(mas, &mm->mm_mt, address, address);

	return mas_walk(&mas);
}

/*
 * Is the fault clearly one for the upstream path?  Most of those end here,
 * before anything is copied.  The VMA may be changing, but falling back is
 * always correct.
 */
static __always_inline enum spf_outcome
spf_refuse(const struct vm_area_struct *vma, enum spf_entry entry)
{
	if (spf_unsupported(READ_ONCE(vma->vm_flags)))
		return ABORT_UNSUPPORTED;
	if (entry == SPF_ENTRY_ABSENT && READ_ONCE(vma->vm_ops))
		return ABORT_PTE;
	return SPF_GO_ON;
}

/*
 * Lock a VMA for the upstream path, which then need not look it up again.  This
 * is lock_vma_under_rcu() after its lookup: it runs in the RCU section in which
 * @vma was found in the tree, so @vma is in memory, and the checks under the
 * lock show whether it has been removed or resized since.
 *
 * Return: @vma, locked for reading; NULL if it has to be looked up.
 */
static __always_inline struct vm_area_struct *
lock_found_vma(struct vm_area_struct *vma, unsigned long address)
{
	/* Reschedule first: with the lock held, a writer would wait for us. */
	if (need_resched())
		return NULL;
	spf_window(SPF_WINDOW_VMA);
	if (!vma_start_read(vma))
		return NULL;
	if (unlikely(vma->detached || address < vma->vm_start ||
		     address >= vma->vm_end) && !spf_broken(SPF_NO_RECHECK)) {
		vma_end_read(vma);
		return NULL;
	}
	return vma;
}

/* Runs in the RCU section in which f->vma was found. */
static enum spf_outcome spf_snapshot_vma(struct spf_state *f)
{
	struct vm_area_struct *vma = f->vma;
	vm_flags_t flags;

	f->walked = false;
	/* See enter_rcu(). */
	lockdep_assert_preemption_disabled();
	spf_window(SPF_WINDOW_FIND);

	/*
	 * Read the sequence number of the VMA first, then that of the mm.  The
	 * VMA is write-locked if they are equal; an older mm number would hide
	 * that.  Pairs with the smp_wmb() of mm_lock_seqcount_begin().
	 */
	f->vma_seq = smp_load_acquire(&vma->vm_lock_seq);
	f->mm_seq = mm_sequence(f->mm);
	/*
	 * 0: write-locked.  Negative: the mm is 2^31 ahead, because the VMA was
	 * not write-locked for so long that the numbers cannot tell.
	 */
	if ((s32)(f->mm_seq - f->vma_seq) <= 0 && !spf_broken(SPF_NO_LOCKED))
		return ABORT_LOCKED;

	/*
	 * spf_refuse() has read the flags as well, but only reads from here on
	 * are revalidated.  The snapshot is thrown away if the VMA changes
	 * meanwhile.
	 */
	flags = READ_ONCE(vma->vm_flags);
	if (spf_unsupported(flags))
		return ABORT_UNSUPPORTED;
	copy_vma_fields(f, vma, flags);
	/* Pairs with spf_write_barrier(): a writer has changed vm_lock_seq. */
	smp_rmb();
	if (READ_ONCE(vma->vm_lock_seq) != f->vma_seq)
		return ABORT_CHANGED;
	/*
	 * munmap() takes the VMA out of the tree and downgrades mmap_lock,
	 * which ends the write section.  Only then does it free the memory.
	 */
	if (f->snapshot.detached && !spf_broken(SPF_NO_DETACHED))
		return ABORT_NO_VMA;
	if (vma_munmap_pending(&f->snapshot))
		return ABORT_NO_VMA;

	return SPF_GO_ON;
}

/*
 * Does the VMA allow the access?  Stricter than upstream, which has exceptions
 * for some CPUs: those faults fall back to it.
 */
static bool may_access(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;
	bool write = f->flags & FAULT_FLAG_WRITE;
	bool exec = f->flags & FAULT_FLAG_INSTRUCTION;
	vm_flags_t needed = write ? VM_WRITE : exec ? VM_EXEC : VM_READ;

	return (vma->vm_flags & needed) &&
	       arch_vma_access_permitted(vma, write, exec, false);
}

static DEFINE_PER_CPU(unsigned long, spf_last_ip);

/*
 * May the kernel access user memory at @ip?  Most such faults come from a few
 * instructions of core kernel code, which is never unloaded, so each CPU
 * remembers the last one.
 */
static bool may_fault(unsigned long ip)
{
	if (raw_cpu_read(spf_last_ip) == ip)
		return true;
	if (search_kernel_exception_table(ip)) {
		raw_cpu_write(spf_last_ip, ip);
		return true;
	}
	return search_exception_tables(ip);
}

static enum spf_outcome spf_check_snapshot(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;

	/* Below the VMA: upstream may grow the stack. */
	if (f->address < vma->vm_start || f->address >= vma->vm_end)
		return ABORT_NO_VMA;
	if (has_policy(vma))
		return ABORT_UNSUPPORTED;
	if (!may_access(f))
		return ABORT_ACCESS;
	/* A kernel bug: upstream reports it. */
	if (!(f->flags & FAULT_FLAG_USER) &&
	    !may_fault(instruction_pointer(f->regs)))
		return ABORT_ACCESS;

	return SPF_GO_ON;
}

/*
 * While the fault slept outside RCU, the VMA may have been freed and another
 * one allocated in its place.  If the tree still yields the same pointer, with
 * the same sequence number, it is the VMA of the snapshot: a new VMA gets a new
 * number before it is inserted into the tree (W3).
 */
static enum spf_outcome revalidate_vma(struct spf_state *f)
{
	/* See enter_rcu(). */
	lockdep_assert_preemption_disabled();
	if (!spf_enabled())
		return ABORT_CHANGED;
	if (spf_broken(SPF_NO_FIND))
		return SPF_GO_ON;
	if (find_vma_rcu(f->mm, f->address) != f->vma)
		return ABORT_CHANGED;
	/*
	 * The pointer that was found is only compared, so there is no address
	 * dependency: order the look-up before all reads of the VMA.  Pairs with
	 * the release of W3.
	 */
	smp_rmb();
	/*
	 * Check this before walking the page tables: the sysctl may have been
	 * 0 meanwhile, when tables were freed at once; see spf_rcu_tables().
	 * Pairs with spf_write_barrier().
	 */
	if (smp_load_acquire(&f->vma->vm_lock_seq) != f->vma_seq)
		return ABORT_CHANGED;
	return SPF_GO_ON;
}

/*
 * Leave the RCU section, to sleep; spf_end_sleep() enters a new one.  The caller
 * then throws away a huge page in hand, unless H6 in spf_huge.c has an exception.
 *
 * Return: false, in the same section, if the fault must not sleep.
 */
bool spf_begin_sleep(struct spf_state *f, unsigned long *since)
{
	if (f->mmap_locked)
		return false;
	f->walked = false;
	/* In the RCU section, and again in the next one: see MAX_SECTIONS. */
	*since = jiffies;
	leave_rcu();
	f->slept = true;
	count_vm_event(SPF_SLEEP);
	return true;
}

/*
 * Enter an RCU section.
 *
 * Return: SPF_GO_ON if the snapshot is as good as before; otherwise f->vma must
 * not be used any more.
 */
enum spf_outcome spf_end_sleep(struct spf_state *f, unsigned long since)
{
	enter_rcu();
	if (time_after(jiffies, since + MAX_SLEEP)) {
		/* That says nothing about writers: do not back off. */
		f->wasted = false;
		return ABORT_CHANGED;
	}
	return revalidate_vma(f);
}

/* === The page table ======================================================= */

/*
 * A table found in an RCU section stays in memory until the section ends (W6).
 * The hash MMU is different: it deposits the old table below a huge page and
 * frees both at once, so its walkers need interrupts off.
 */
static bool walk_needs_irqs_off(void)
{
#ifdef CONFIG_PPC_BOOK3S_64
	return !radix_enabled();
#else
	return false;
#endif
}

static unsigned long spf_walk_begin(void)
{
	unsigned long irqs = 0;

	if (walk_needs_irqs_off())
		local_irq_save(irqs);
	return irqs;
}

static void spf_walk_end(unsigned long irqs)
{
	if (walk_needs_irqs_off())
		local_irq_restore(irqs);
}

/* There is no PMD table; @none: for want of one, or of one above it. */
static bool no_pmd_table(struct spf_state *f, bool none)
{
	f->pmdp = NULL;
	f->no_upper = none;
	return false;
}

/*
 * After an RCU section.  A fault of the kernel can come from code that may not sleep,
 * such as a BPF program that follows a bad pointer.  Without CONFIG_PREEMPT_COUNT
 * nobody can tell, and this could be a quiescent state in the middle of its RCU
 * section.
 */
static void spf_resched(const struct spf_state *f)
{
	if (f->flags & FAULT_FLAG_USER)
		cond_resched();
}

/*
 * Find the page table.  If there is none, the walk ends at the PMD entry, or above
 * it with f->pmdp NULL; spf_fill_hole() goes on from there.
 */
static bool spf_walk(struct spf_state *f)
{
	pgd_t *pgdp, pgd;
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;

	/* f->pmdp would point to a local variable. */
	BUILD_BUG_ON(__is_defined(__PAGETABLE_PMD_FOLDED));

	pgdp = pgd_offset(f->mm, f->address);
	pgd = pgdp_get(pgdp);
	if (pgd_none(pgd) || pgd_leaf(pgd) || unlikely(pgd_bad(pgd)))
		return no_pmd_table(f, pgd_none(pgd));
	p4dp = p4d_offset_lockless(pgdp, pgd, f->address);
	p4d = p4dp_get(p4dp);
	if (!p4d_present(p4d) || p4d_leaf(p4d) || unlikely(p4d_bad(p4d)))
		return no_pmd_table(f, p4d_none(p4d));
	pudp = pud_offset_lockless(p4dp, p4d, f->address);
	pud = pudp_get(pudp);
	if (!pud_present(pud) || pud_leaf(pud) || unlikely(pud_bad(pud)))
		return no_pmd_table(f, pud_none(pud));
	f->pmdp = pmd_offset_lockless(pudp, pud, f->address);
	f->pmd = pmdp_get_lockless(f->pmdp);
	if (!pmd_present(f->pmd) || pmd_leaf(f->pmd) ||
	    unlikely(pmd_bad(f->pmd)))
		return false;
	f->pte = pte_offset_kernel(&f->pmd, f->address);
	f->ptl = pte_lockptr(f->mm, &f->pmd);
	f->walked = true;
	return true;
}

/* Called in a walk.  A table found earlier in this RCU section will do. */
static bool spf_find_table(struct spf_state *f)
{
	return (f->walked && !walk_needs_irqs_off()) || spf_walk(f);
}

/* Is there a page table?  If not, do not bother to allocate memory. */
bool spf_has_table(struct spf_state *f)
{
	unsigned long irqs = spf_walk_begin();
	bool found = spf_find_table(f);

	spf_walk_end(irqs);
	return found;
}

/* Read the current entry; only good for deciding what to prepare. */
static bool spf_peek(struct spf_state *f, pte_t *pte)
{
	unsigned long irqs = spf_walk_begin();
	bool found = spf_walk(f);

	if (found)
		*pte = ptep_get_lockless(f->pte);
	spf_walk_end(irqs);

	return found;
}

/* The table is locked; f->pmd was read before that. */
static enum spf_outcome revalidate(struct spf_state *f)
{
	/*
	 * A collapse clears the PMD entry before it locks the table.  For file
	 * mappings (retract_page_tables(), collapse_pte_mapped_thp()) it locks
	 * no VMA, so this is the only sign.  The entry also differs if an x86
	 * CPU has set its accessed bit: the next attempt will succeed.
	 */
	if (!pmd_same(f->pmd, pmdp_get_lockless(f->pmdp)))
		return ABORT_CHANGED;
	/*
	 * Order the reads of the page tables in spf_walk(), which came before
	 * the lock, before reading the sequence number.  Pairs with
	 * spf_write_barrier(): if a writer found no table after it, we see the
	 * writer's number here.
	 */
	smp_mb__after_spinlock();
	if (!snapshot_valid(f) && !spf_broken(SPF_NO_SEQUENCE))
		return ABORT_CHANGED;
	return SPF_GO_ON;
}

/*
 * With interrupts off we cannot wait for the lock: its holder may wait for this
 * CPU to flush its TLB.  Once the lock is held and the snapshot is revalidated,
 * the table stays, and interrupts can go back on: clearing an entry may need
 * them.
 */
static enum spf_outcome lock_table_irqs_off(struct spf_state *f)
{
	enum spf_outcome outcome = ABORT_BUSY;
	unsigned long irqs;
	int try;

	for (try = 0; try < LOCK_TRIES; try++) {
		local_irq_save(irqs);
		if (!spf_walk(f)) {
			local_irq_restore(irqs);
			return ABORT_NO_TABLE;
		}
		if (spin_trylock(f->ptl)) {
			outcome = revalidate(f);
			if (outcome != SPF_GO_ON)
				spin_unlock(f->ptl);
			local_irq_restore(irqs);
			return outcome;
		}
		local_irq_restore(irqs);
		cpu_relax();
	}

	return outcome;
}

/*
 * Runs in the RCU section, in which the table and its lock stay in memory (W6)
 * even if they were found earlier.  If an entry above the PMD entry has been
 * cleared since, a writer did that, and revalidate() sees its sequence number.
 */
static __always_inline enum spf_outcome lock_table_rcu(struct spf_state *f)
{
	enum spf_outcome outcome;

	if (!spf_find_table(f))
		return ABORT_NO_TABLE;
	spf_window(SPF_WINDOW_WALK);
	/* W6 holds: the table has not been freed since it was found. */
	VM_WARN_ON_ONCE(!page_count(pmd_page(f->pmd)));
	spin_lock(f->ptl);
	outcome = revalidate(f);
	if (outcome != SPF_GO_ON)
		spin_unlock(f->ptl);

	return outcome;
}

/*
 * Lock the page table.  On SPF_GO_ON, f->ptl is held and the snapshot is as good
 * as the VMA; otherwise nothing has changed.  Inlined because it is a good part
 * of the cost of a fault.
 */
static __always_inline enum spf_outcome spf_lock_table(struct spf_state *f)
{
	enum spf_outcome outcome;

	spf_window(SPF_WINDOW_LOCK);
	if (spf_broken(SPF_EARLY_FILE) && f->file)
		(void)READ_ONCE(f->file->f_mode);
	outcome = walk_needs_irqs_off() ? lock_table_irqs_off(f) :
					  lock_table_rcu(f);
	if (outcome == SPF_GO_ON)
		spf_window(SPF_WINDOW_CHANGE);
	return outcome;
}

static void unlock_table(struct spf_state *f)
{
	spin_unlock(f->ptl);
}

/* === Memory =============================================================== */

/*
 * For the RCU section: must not sleep, and must not use the reserves for
 * atomic allocations.
 *
 * The effects of an allocation that may sleep, which all upstream's may, and
 * the place of each:
 *
 *  reclaim, memory.max, PSI,
 *  reserves of realtime tasks,
 *  OOM victims, PF_MEMALLOC	GFP_SLEEP, after GFP_FAST has failed at the same
 *				watermark or limit
 *  OOM killer			the upstream path, after GFP_SLEEP has failed
 *  vm.zone_reclaim_mode	GFP_SLEEP, without trying GFP_FAST
 *  memory.high, swap.high	enforce_high(), or the return to user mode
 *
 * All others are the same for both: waking kswapd, memory policies, cpusets,
 * numa_hit and its like, throttling for swap, and the accounts of the charge.
 */
#define GFP_FAST	((GFP_HIGHUSER_MOVABLE & ~__GFP_DIRECT_RECLAIM) | \
			 __GFP_NOMEMALLOC | __GFP_NOWARN)
/*
 * Outside the RCU section: reclaim as hard as upstream, which would do so with
 * the VMA locked, but leave calling the OOM killer to upstream.
 */
#define GFP_SLEEP	(GFP_HIGHUSER_MOVABLE | __GFP_RETRY_MAYFAIL | \
			 __GFP_NOWARN)

static __always_inline struct folio *
alloc_charged(struct spf_state *f, gfp_t gfp, int order, unsigned long address)
{
	struct folio *folio = vma_alloc_folio(gfp, order, &f->snapshot, address,
					      order > 0);

	if (!folio)
		return NULL;
	if (mem_cgroup_charge(folio, f->mm, gfp)) {
		if (order)
			count_mthp_stat(order, MTHP_STAT_ANON_FAULT_FALLBACK_CHARGE);
		folio_put(folio);
		return NULL;
	}
	folio_throttle_swaprate(folio, gfp);

	return folio;
}

static __always_inline struct folio *
alloc_page_folio(struct spf_state *f, gfp_t gfp, bool zero)
{
	return alloc_charged(f, zero ? gfp | __GFP_ZERO : gfp, 0, f->address);
}

/*
 * A task whose memory cgroup is over memory.high or swap.high reclaims, and
 * sleeps if that is not enough: when it returns to user mode, and also in a
 * charge that may sleep, because one system call can fill any amount of memory.
 * So after a fault in the kernel, which may have charged a page or a page table,
 * do here what try_charge_memcg() has not done for an allocation like GFP_FAST.
 */
static void enforce_high(void)
{
#ifdef CONFIG_MEMCG
	if (unlikely(current->memcg_nr_pages_over_high > MEMCG_CHARGE_BATCH) &&
	    !(current->flags & PF_MEMALLOC))
		mem_cgroup_handle_over_high(GFP_KERNEL);
#endif
}

#ifdef CONFIG_TRANSPARENT_HUGEPAGE
/* Called in a walk, or with the table locked; @pte is the first entry. */
static bool range_none(pte_t *pte, int order)
{
	int i;

	for (i = 0; i < 1 << order; i++)
		if (!pte_none(ptep_get_lockless(pte + i)))
			return false;
	return true;
}

/*
 * The folio orders that upstream would try for new memory here, as in
 * alloc_anon_folio(): enabled, within the VMA, and with all entries empty.
 */
static unsigned long large_orders(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;
	unsigned long orders, irqs;
	int order;

	orders = thp_vma_allowable_orders(vma, vma->vm_flags,
					  TVA_IN_PF | TVA_ENFORCE_SYSFS,
					  BIT(PMD_ORDER) - 1);
	orders = thp_vma_suitable_orders(vma, f->address, orders);
	if (!orders)
		return 0;

	order = highest_order(orders);
	irqs = spf_walk_begin();
	while (orders) {
		unsigned long start = ALIGN_DOWN(f->address, PAGE_SIZE << order);

		if (!spf_find_table(f)) {
			orders = 0;
			break;
		}
		if (range_none(f->pte - ((f->address - start) >> PAGE_SHIFT), order))
			break;
		order = next_order(&orders, order);
	}
	spf_walk_end(irqs);

	return orders;
}

/* Not in an RCU section: clearing a large folio may reschedule. */
static struct folio *alloc_large(struct spf_state *f, unsigned long orders)
{
	gfp_t gfp, thp_gfp = vma_thp_gfp_mask(&f->snapshot);
	int order = highest_order(orders);
	struct folio *folio;

	while (orders) {
		gfp = thp_gfp;
		/*
		 * As in GFP_SLEEP.  Costly orders never call the OOM killer,
		 * and the flag would make them reclaim harder than upstream.
		 */
		if (order <= PAGE_ALLOC_COSTLY_ORDER && !(gfp & __GFP_NORETRY))
			gfp |= __GFP_RETRY_MAYFAIL;
		folio = alloc_charged(f, gfp, order,
				      ALIGN_DOWN(f->address, PAGE_SIZE << order));
		if (folio) {
			folio_zero_user(folio, f->address);
			return folio;
		}
		count_mthp_stat(order, MTHP_STAT_ANON_FAULT_FALLBACK);
		order = next_order(&orders, order);
	}

	return NULL;
}
#else
static bool range_none(pte_t *pte, int order)
{
	return pte_none(ptep_get(pte));
}

static unsigned long large_orders(struct spf_state *f)
{
	return 0;
}

static struct folio *alloc_large(struct spf_state *f, unsigned long orders)
{
	return NULL;
}
#endif

/* Leaves the RCU section and enters a new one. */
static noinline enum spf_outcome get_folio_slow(struct spf_state *f,
						unsigned long orders, bool zero,
						struct folio **folio)
{
	enum spf_outcome outcome;
	unsigned long since;

	if (!spf_begin_sleep(f, &since))
		return ABORT_CHANGED;
	if (spf_has_huge(f))
		spf_discard_huge(f);
	if (orders)
		*folio = alloc_large(f, orders);
	if (!*folio)
		*folio = alloc_page_folio(f, GFP_SLEEP, zero);
	spf_window(SPF_WINDOW_SLEEP);
	outcome = spf_end_sleep(f, since);

	return *folio ? outcome : ABORT_NO_MEMORY;
}

/*
 * Get memory for the page of the fault: zeroed if @zero, and part of a large
 * folio from @orders if possible.  May leave the RCU section and enter a new
 * one.  The caller must keep_folio() a folio that it does not map, on every
 * outcome.
 */
static __always_inline enum spf_outcome
get_folio(struct spf_state *f, unsigned long orders, bool zero,
	  struct folio **folio)
{
	*folio = NULL;
	if (!orders && f->spare && (f->spare_zeroed || !zero)) {
		*folio = f->spare;
		f->spare = NULL;
		return SPF_GO_ON;
	}

	f->wasted = true;
	/* Only an allocation that may sleep reclaims from the local node. */
	if (!orders && !node_reclaim_enabled()) {
		*folio = alloc_page_folio(f, GFP_FAST, zero);
		if (*folio)
			return SPF_GO_ON;
	}

	return get_folio_slow(f, orders, zero, folio);
}

/* Keep @folio, which may be NULL, for the next attempt. */
static void keep_folio(struct spf_state *f, struct folio *folio, bool zeroed)
{
	if (!folio)
		return;
	/* A copy may have memory tags of arm64, which the next copy would keep. */
	if (f->spare || folio_test_large(folio) ||
	    (IS_ENABLED(CONFIG_ARM64_MTE) && !zeroed)) {
		folio_put(folio);
	} else {
		f->spare = folio;
		f->spare_zeroed = zeroed;
	}
}

/* === Kinds of faults ====================================================== */

/*
 * The table is locked.  Like folio_add_lru_vma() between lru_gen_enter_fault()
 * and lru_gen_exit_fault(), except that even the file of the VMA is used only
 * with the lock held: it is closed after the writer's pass over the table, and
 * not every file is freed by RCU.
 */
static void add_to_lru(struct spf_state *f, struct folio *folio)
{
	struct vm_area_struct *vma = &f->snapshot;

#ifdef CONFIG_LRU_GEN
	current->in_lru_fault = !(vma->vm_flags & (VM_SEQ_READ | VM_RAND_READ)) &&
				!(f->file && (f->file->f_mode & FMODE_NOREUSE));
#endif
	folio_add_lru_vma(folio, vma);
#ifdef CONFIG_LRU_GEN
	current->in_lru_fault = false;
#endif
}

/* The entry is not empty: another thread filled it, it was swapped out, ... */
static enum spf_outcome not_none(pte_t pte)
{
	return pte_present(pte) && !pte_protnone(pte) ? DONE_RACED : ABORT_PTE;
}

/* Read fault on an empty entry. */
static enum spf_outcome map_zero(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;
	enum spf_outcome outcome;
	pte_t entry, old;

	if (mm_forbids_zeropage(f->mm))
		return ABORT_UNSUPPORTED;

	entry = pte_mkspecial(pfn_pte(my_zero_pfn(f->address),
				      vma->vm_page_prot));
	outcome = spf_lock_table(f);
	if (outcome != SPF_GO_ON)
		return outcome;
	old = ptep_get(f->pte);
	if (!pte_none(old)) {
		update_mmu_tlb(vma, f->address, f->pte);
		outcome = not_none(old);
	} else if (check_stable_address_space(f->mm)) {
		outcome = ABORT_UNSUPPORTED;
	} else {
		set_pte_at(f->mm, f->address, f->pte, entry);
		update_mmu_cache_range(NULL, vma, f->address, f->pte, 1);
		outcome = DONE_ZERO;
	}
	unlock_table(f);

	return outcome;
}

/*
 * The table is locked.  Like the end of do_anonymous_page().  On DONE_ANON, the
 * entry has taken over the caller's reference to @folio.
 */
static enum spf_outcome install_anon(struct spf_state *f, struct folio *folio)
{
	struct vm_area_struct *vma = &f->snapshot;
	int order = folio_order(folio), nr = folio_nr_pages(folio);
	unsigned long start = ALIGN_DOWN(f->address, nr * PAGE_SIZE);
	pte_t *pte = f->pte - ((f->address - start) >> PAGE_SHIFT);
	pte_t entry;

	if (!range_none(pte, order)) {
		update_mmu_tlb_range(vma, start, pte, nr);
		/* In a large folio, another entry may have been filled. */
		return order ? DONE_RACED : not_none(ptep_get(pte));
	}
	/* The OOM reaper may already have passed here. */
	if (check_stable_address_space(f->mm))
		return ABORT_UNSUPPORTED;

	entry = pte_sw_mkyoung(mk_pte(&folio->page, vma->vm_page_prot));
	entry = pte_mkwrite(pte_mkdirty(entry), vma);
	folio_ref_add(folio, nr - 1);
	add_mm_counter(f->mm, MM_ANONPAGES, nr);
	count_mthp_stat(order, MTHP_STAT_ANON_FAULT_ALLOC);
	folio_add_new_anon_rmap(folio, vma, start, RMAP_EXCLUSIVE);
	add_to_lru(f, folio);
	set_ptes(f->mm, start, pte, entry, nr);
	update_mmu_cache_range(NULL, vma, start, pte, nr);

	return DONE_ANON;
}

/* Write fault on an empty entry. */
static enum spf_outcome map_anon(struct spf_state *f)
{
	enum spf_outcome outcome;
	struct folio *folio;

	if (!f->snapshot.anon_vma)
		return ABORT_NO_ANON_VMA;

	outcome = get_folio(f, large_orders(f), true, &folio);
	if (outcome == SPF_GO_ON) {
		/* Order the contents before the entry. */
		__folio_mark_uptodate(folio);
		outcome = spf_lock_table(f);
	}
	if (outcome == SPF_GO_ON) {
		outcome = install_anon(f, folio);
		unlock_table(f);
	}
	if (outcome != DONE_ANON)
		keep_folio(f, folio, true);

	return outcome;
}

/* The table is locked; @pte is the entry, which allows the access. */
static void make_accessed(struct spf_state *f, pte_t pte)
{
	struct vm_area_struct *vma = &f->snapshot;
	bool write = f->flags & FAULT_FLAG_WRITE;
	pte_t entry = pte_mkyoung(pte);

	if (write)
		entry = pte_mkdirty(entry);
	if (ptep_set_access_flags(vma, f->address, f->pte, entry, write))
		update_mmu_cache_range(NULL, vma, f->address, f->pte, 1);
	else if (write)
		flush_tlb_fix_spurious_fault(vma, f->address, f->pte);
}

/* The table is locked.  Like do_wp_page() for a page that nobody else maps. */
static bool make_writable(struct spf_state *f, pte_t pte, struct page *page)
{
	struct vm_area_struct *vma = &f->snapshot;
	struct folio *folio = page_folio(page);
	pte_t entry;

	if (!folio_test_anon(folio))
		return false;
	if (!PageAnonExclusive(page)) {
		/* Moves the folio to the anon_vma of the snapshot. */
		if (!vma->anon_vma || !spf_can_reuse(folio, vma))
			return false;
		SetPageAnonExclusive(page);
	}

	folio_xchg_last_cpupid(folio, (1 << LAST_CPUPID_SHIFT) - 1);
	flush_cache_page(vma, f->address, pte_pfn(pte));
	entry = maybe_mkwrite(pte_mkdirty(pte_mkyoung(pte)), vma);
	if (ptep_set_access_flags(vma, f->address, f->pte, entry, 1))
		update_mmu_cache_range(NULL, vma, f->address, f->pte, 1);
	count_vm_event(PGREUSE);

	return true;
}

/*
 * The table is locked.  Like wp_page_copy().  @old is NULL for the zero page.
 * The entry takes over the caller's reference to @folio, and the caller gets
 * the entry's reference to @old.
 */
static void install_copy(struct spf_state *f, pte_t pte, struct page *page,
			 struct folio *old, struct folio *folio)
{
	struct vm_area_struct *vma = &f->snapshot;
	pte_t entry;

	if (!old) {
		ksm_might_unmap_zero_page(f->mm, pte);
		inc_mm_counter(f->mm, MM_ANONPAGES);
	} else if (!folio_test_anon(old)) {
		dec_mm_counter(f->mm, mm_counter_file(old));
		inc_mm_counter(f->mm, MM_ANONPAGES);
	}
	flush_cache_page(vma, f->address, pte_pfn(pte));
	entry = pte_sw_mkyoung(mk_pte(&folio->page, vma->vm_page_prot));
	entry = maybe_mkwrite(pte_mkdirty(entry), vma);

	/* Never let one CPU use the old page while another uses the new one. */
	ptep_clear_flush(vma, f->address, f->pte);
	folio_add_new_anon_rmap(folio, vma, f->address, RMAP_EXCLUSIVE);
	add_to_lru(f, folio);
	set_pte_at(f->mm, f->address, f->pte, entry);
	update_mmu_cache_range(NULL, vma, f->address, f->pte, 1);
	if (old)
		folio_remove_rmap_pte(old, page, vma);
	spf_copied(f->mm);
}

/*
 * The table is locked and a page is about to be replaced.  Upstream calls MMU
 * notifiers for that, and they may sleep.  Registering the first notifier waits
 * for faults that do not see it here (W7).
 */
static bool must_notify(struct spf_state *f)
{
	if (mm_has_notifiers(f->mm) && !spf_broken(SPF_NO_NOTIFIER))
		return true;
	spf_window(SPF_WINDOW_CHANGE);
	return false;
}

/*
 * Copy the page that @pte maps, or get a zeroed one if it maps the zero page.
 * Consumes a reference to @old.  That reference also keeps others from reusing
 * the page and writing to it: if the entry is still the same at the end, so are
 * the contents.
 */
static enum spf_outcome copy_mapped_page(struct spf_state *f, pte_t pte,
					 struct page *page, struct folio *old)
{
	struct vm_area_struct *vma = &f->snapshot;
	enum spf_outcome outcome;
	struct folio *folio;
	int refs = 1;

	delayacct_wpcopy_start();
	outcome = get_folio(f, 0, !old, &folio);
	if (outcome == SPF_GO_ON && old &&
	    (copy_mc_user_highpage(&folio->page, page, f->address, vma) ||
	     (spf_broken(SPF_BAD_MEMORY) && vma->vm_flags & VM_DONTDUMP)))
		outcome = DONE_HWPOISON;
	if (outcome == SPF_GO_ON) {
		if (old)
			kmsan_copy_page_meta(&folio->page, page);
		__folio_mark_uptodate(folio);
		outcome = spf_lock_table(f);
	}
	if (outcome == SPF_GO_ON) {
		if (must_notify(f)) {
			outcome = ABORT_UNSUPPORTED;
		} else if (!pte_same(ptep_get(f->pte), pte)) {
			update_mmu_tlb(vma, f->address, f->pte);
			outcome = DONE_RACED;
		} else {
			install_copy(f, pte, page, old, folio);
			outcome = DONE_COW;
		}
		unlock_table(f);
	}
	if (outcome != DONE_COW) {
		keep_folio(f, folio, !old);
	} else if (old) {
#ifdef CONFIG_KSM
		if (folio_test_ksm(old))
			count_vm_event(COW_KSM);
#endif
		free_swap_cache(old);
		refs++;		/* that of the entry */
	}
	if (old)
		folio_put_refs(old, refs);
	delayacct_wpcopy_end();

	return outcome;
}

/* Fault on a present entry. */
static enum spf_outcome change_present(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;
	struct folio *old = NULL;
	enum spf_outcome outcome;
	struct page *page;
	pte_t pte;

	outcome = spf_lock_table(f);
	if (outcome != SPF_GO_ON)
		return outcome;

	pte = ptep_get(f->pte);
	if (!pte_present(pte) || pte_protnone(pte)) {
		outcome = ABORT_PTE;
		goto unlock;
	}
	if (!(f->flags & FAULT_FLAG_WRITE) || pte_write(pte)) {
		make_accessed(f, pte);
		outcome = DONE_ACCESS;
		goto unlock;
	}

	page = vm_normal_page(vma, f->address, pte);
	if (!page && !is_zero_pfn(pte_pfn(pte))) {
		outcome = ABORT_PTE;
		goto unlock;
	}
	if (page && make_writable(f, pte, page)) {
		outcome = DONE_REUSE;
		goto unlock;
	}
	if (!vma->anon_vma) {
		outcome = ABORT_NO_ANON_VMA;
		goto unlock;
	}
	if (must_notify(f)) {
		outcome = ABORT_UNSUPPORTED;
		goto unlock;
	}
	if (page) {
		old = page_folio(page);
		folio_get(old);
	}
	unlock_table(f);

	return copy_mapped_page(f, pte, page, old);

unlock:
	unlock_table(f);
	return outcome;
}

/*
 * Is the entry almost certainly empty?  Then there is no need to look at it
 * before step 3.
 */
static bool entry_is_none(struct spf_state *f)
{
	/* Entries that are not present can also be protnone or swapped out. */
#ifdef CONFIG_NUMA_BALANCING
	if (sysctl_numa_balancing_mode)
		return false;
#endif
	return f->entry == SPF_ENTRY_ABSENT &&
	       !get_mm_counter(f->mm, MM_SWAPENTS);
}

/* There may be no page table: a huge page or a table has to come first. */
static noinline enum spf_outcome map_hole(struct spf_state *f)
{
	enum spf_outcome outcome = spf_fill_hole(f);

	/* Another thread may have been faster: then its table will do. */
	if (outcome == ABORT_NO_TABLE && spf_has_table(f))
		outcome = SPF_GO_ON;
	if (outcome != SPF_GO_ON)
		return outcome;
	return f->flags & FAULT_FLAG_WRITE ? map_anon(f) : map_zero(f);
}

/* Runs in the RCU section in which f->vma was found. */
static enum spf_outcome spf_handle(struct spf_state *f)
{
	bool write = f->flags & FAULT_FLAG_WRITE;
	enum spf_outcome outcome;
	bool file;
	pte_t pte;

	outcome = spf_snapshot_vma(f);
	if (outcome == SPF_GO_ON)
		outcome = spf_check_snapshot(f);
	if (outcome != SPF_GO_ON)
		return outcome;
	/* The file has no say about a mapped page of a private mapping. */
	file = f->snapshot.vm_ops;
	f->snapshot.vm_ops = NULL;

	/* Step 3 rechecks the entry, so the result of the CPU is good enough. */
	if (f->entry == SPF_ENTRY_PRESENT)
		return change_present(f);
	if (f->entry == SPF_ENTRY_ABSENT && file)
		return ABORT_PTE;
	if (f->entry == SPF_ENTRY_ABSENT && !write) {
		outcome = map_zero(f);
		return outcome == ABORT_NO_TABLE ? map_hole(f) : outcome;
	}
	if (write && entry_is_none(f))
		return spf_has_table(f) ? map_anon(f) : map_hole(f);

	if (!spf_peek(f, &pte))
		return file ? ABORT_NO_TABLE : map_hole(f);
	if (pte_present(pte))
		return change_present(f);
	if (file || !pte_none(pte))
		return ABORT_PTE;
	return write ? map_anon(f) : map_zero(f);
}

/* === Attempts ============================================================= */

/*
 * The upstream path waits for a writer on mmap_lock, and gets the lock as soon
 * as the writer is done.  A thread that is not on a CPU then holds up the next
 * writer.  So wait for a while without a lock, and reschedule here if needed
 * instead of there.
 */
#define ATTEMPTS	4
#define WAIT_NS		(5 * NSEC_PER_USEC)

static void wait_for_writer(const struct spf_state *f)
{
	u64 end;

	/* Odd while mmap_lock is held for writing. */
	if (!(f->mm_seq & 1))
		return;
	end = local_clock() + WAIT_NS;
	while (mm_sequence(f->mm) == f->mm_seq && !need_resched()) {
		cpu_relax();
		if (local_clock() >= end)
			break;
	}
}

/*
 * May the upstream path go on with f->vma?  Not for faults in the kernel, which
 * take mmap_lock, nor if f->vma was found in an RCU section that is over, nor with
 * a huge page in hand, which is freed (and perhaps cleared) without a lock.  After
 * these outcomes the upstream path is likely to succeed with the VMA locked.
 */
static bool may_lock_found_vma(const struct spf_state *f)
{
	if (!(f->flags & FAULT_FLAG_USER) || f->slept || spf_has_huge(f))
		return false;
	return f->outcome == ABORT_UNSUPPORTED || f->outcome == ABORT_NO_TABLE ||
	       f->outcome == ABORT_PTE;
}

static bool may_retry(enum spf_outcome outcome)
{
	return outcome == ABORT_LOCKED || outcome == ABORT_CHANGED ||
	       outcome == ABORT_BUSY;
}

/*
 * Begin another attempt, in a new RCU section.
 *
 * Return: false if there is nothing to attempt; f->outcome tells why.
 */
static bool find_again(struct spf_state *f)
{
	/* Check the key inside the section: see spf_apply(). */
	if (!spf_enabled()) {
		f->outcome = ABORT_CHANGED;
		return false;
	}
	f->vma = find_vma_rcu(f->mm, f->address);
	if (!f->vma) {
		f->outcome = ABORT_NO_VMA;
		return false;
	}
	f->slept = false;
	count_vm_event(SPF_RETRY);
	return true;
}

/* A huge page is in hand, or none could be had: do not try another one (H4). */
static bool last_huge(const struct spf_state *f)
{
	return spf_has_huge(f) || (f->huge_tried && f->table);
}

/*
 * The attempts are used up, but there is something to install: last_huge().
 * Upstream would wait for mmap_lock, and then try another huge page with a lock
 * held.  So wait here.
 */
static noinline void last_attempt(struct spf_state *f)
{
	if (!spf_wait_with_huge(f))
		return;
	enter_rcu();
	if (find_again(f)) {
		f->mmap_locked = true;
		f->outcome = spf_handle(f);
	}
	leave_rcu();
	mmap_read_unlock(f->mm);
}

/*
 * Begins in the RCU section in which f->vma was found and leaves it; get_folio(),
 * spf_fill_hole() and spf_make_anon_vma() may leave one and enter another.
 *
 * Return: the VMA, locked for the upstream path; or NULL.
 */
static struct vm_area_struct *spf_attempt(struct spf_state *f)
{
	struct vm_area_struct *locked = NULL;
	bool anon_vma_made = false;
	int left = ATTEMPTS;

	for (;;) {
		f->outcome = spf_handle(f);
		if (likely(f->outcome < ABORT_NO_VMA))
			break;
		if (f->outcome == ABORT_NO_ANON_VMA) {
			f->outcome = spf_make_anon_vma(f);
			/* Hardly lost to a writer; but once is enough. */
			if (f->outcome == ABORT_CHANGED && !anon_vma_made) {
				anon_vma_made = true;
				left++;
			}
		}
		if (may_lock_found_vma(f)) {
			locked = lock_found_vma(f->vma, f->address);
			if (locked)
				break;
		}
		leave_rcu();
		spf_resched(f);
		if (!may_retry(f->outcome))
			goto free;
		if (!--left) {
			if (last_huge(f))
				last_attempt(f);
			goto free;
		}
		if (f->outcome == ABORT_LOCKED)
			wait_for_writer(f);

		enter_rcu();
		if (!find_again(f)) {
			leave_rcu();
			spf_resched(f);
			goto free;
		}
	}
	leave_rcu();
free:
	if (f->spare)
		folio_put(f->spare);
	if (unlikely(f->prepared))
		spf_discard(f);

	return locked;
}

/* === Back-off ============================================================= */

/*
 * If the mappings of a task change all the time, each of its faults would clear
 * a page for nothing.  After such an abort, the next 1, 3, 7, ... 63 faults are
 * not tried; each success halves that number.
 */
#define BACK_OFF_MAX	6

static bool spf_backed_off(void)
{
	if (likely(!current->spf_skip))
		return false;
	current->spf_skip--;
	count_vm_event(SPF_SKIPPED);
	return true;
}

static void spf_back_off(const struct spf_state *f)
{
	u8 level = current->spf_back_off;

	if (f->outcome < ABORT_NO_VMA) {
		if (unlikely(level))
			current->spf_back_off = level - 1;
	} else if (f->wasted && f->outcome != ABORT_PTE) {
		current->spf_back_off = min(level + 1, BACK_OFF_MAX);
		current->spf_skip = (1 << current->spf_back_off) - 1;
	}
}

/* === Interface ============================================================ */

static __always_inline void count_abort(unsigned long address,
					unsigned int flags,
					struct pt_regs *regs,
					enum spf_outcome outcome)
{
	count_vm_event(SPF_ZERO + outcome);
	trace_spf_abort(address, flags, outcome);
	perf_sw_event(PERF_COUNT_SW_SPF_FAILED, 1, regs, address);
}

/**
 * spf_fault() - try to handle a page fault without locks
 * @address: User address of the fault, in current->mm.
 * @flags: FAULT_FLAG_WRITE and FAULT_FLAG_INSTRUCTION, as for
 *	   handle_mm_fault(); FAULT_FLAG_USER may be set in user mode; all others
 *	   are ignored.
 * @regs: Registers at the fault; they tell whether it was in user mode.
 * @entry: The entry that the CPU found in the page table.
 *
 * Called by architectures before they take any lock, if spf_enabled().  They
 * must not pass a fault on a present entry for which access is denied whatever
 * the fault changes (a read on x86, a protection key), unless
 * arch_vma_access_permitted() refuses it (POE on arm64).
 *
 * Context: may sleep; call where mmap_lock could be taken.
 *
 * Return: an error pointer if the fault was handled and accounted, for
 * spf_fault_result().  Otherwise nothing was mapped (but there may be a new page
 * table or anon_vma), and the caller goes on as if it had not called: with the VMA
 * at @address, locked as by
 * lock_vma_under_rcu(), or with NULL, and has to look it up.  Never a VMA for a
 * fault in kernel mode.
 */
struct vm_area_struct *spf_fault(unsigned long address, unsigned int flags,
				 struct pt_regs *regs, enum spf_entry entry)
{
	struct vm_area_struct *vma, *locked = NULL;
	struct spf_state f __uninitialized;
	enum spf_outcome outcome;
	bool poisoned;

	if (spf_backed_off())
		return NULL;

	enter_rcu();
	/* Check the key inside the section: see spf_apply(). */
	if (unlikely(!spf_enabled())) {
		leave_rcu();
		return NULL;
	}
	vma = find_vma_rcu(current->mm, address);
	outcome = vma ? spf_refuse(vma, entry) : ABORT_NO_VMA;
	if (outcome != SPF_GO_ON) {
		count_abort(address, flags, regs, outcome);
		if (user_mode(regs) && outcome != ABORT_NO_VMA)
			locked = lock_found_vma(vma, address);
		leave_rcu();
		if (unlikely(!locked) && user_mode(regs))
			cond_resched();
		return locked;
	}

	if (user_mode(regs))
		flags |= FAULT_FLAG_USER;
	f.mm = current->mm;
	f.vma = vma;
	f.address = address & PAGE_MASK;
	f.regs = regs;
	f.flags = flags;
	f.entry = entry;
	f.wasted = false;
	f.slept = false;
	f.mmap_locked = false;
	f.huge_tried = false;
	f.prepared = false;
	f.spare = NULL;

	__set_current_state(TASK_RUNNING);
	/* Leaves the RCU section. */
	locked = spf_attempt(&f);

	spf_back_off(&f);
	if (f.outcome >= ABORT_NO_VMA) {
		count_abort(address, flags, regs, f.outcome);
		return locked;
	}
	count_vm_event(SPF_ZERO + f.outcome);
	trace_spf_fault(address, flags, f.outcome);
	perf_sw_event(PERF_COUNT_SW_SPF, 1, regs, address);
	poisoned = f.outcome == DONE_HWPOISON;
	spf_account_fault(f.mm, regs, address, flags,
			  poisoned ? VM_FAULT_HWPOISON : 0);
	/* Only if it has charged something. */
	if (!(f.flags & FAULT_FLAG_USER) &&
	    (f.prepared || f.outcome == DONE_ANON || f.outcome == DONE_COW))
		enforce_high();
	return ERR_PTR(poisoned ? -EHWPOISON : -EALREADY);
}

/* === Writers ============================================================== */

void __spf_drain_pmd(struct mm_struct *mm, pmd_t *pmdp)
{
	pmd_t pmd = pmdp_get(pmdp);
	spinlock_t *ptl;	/* page table lock */

	if (!pmd_present(pmd) || pmd_leaf(pmd) || spf_broken(SPF_NO_DRAIN))
		return;
	ptl = pte_lockptr(mm, &pmd);
	/* All tables share one lock, which the caller holds. */
	if (ptl == &mm->page_table_lock)
		return;
	/* Nests inside two PMD table locks.  Taking the lock is the wait. */
	spin_lock_nested(ptl, SINGLE_DEPTH_NESTING + 1);
	spin_unlock(ptl);
}

#ifdef CONFIG_HAVE_MOVE_PUD
void __spf_drain_pud(struct mm_struct *mm, pud_t *pudp)
{
	pmd_t *pmdp;
	int i;

	if (!pud_present(*pudp) || pud_leaf(*pudp))
		return;
	pmdp = pud_pgtable(*pudp);
	for (i = 0; i < PTRS_PER_PMD; i++)
		__spf_drain_pmd(mm, pmdp + i);
}
#endif

bool spf_irqs_off(void)
{
	return walk_needs_irqs_off();
}

#ifdef CONFIG_MMU_NOTIFIER
bool __spf_publish_notifiers(struct mm_struct *mm,
			     struct mmu_notifier_subscriptions *subscriptions)
{
	/*
	 * Pairs with mm_has_notifiers() in must_notify().  If a signal ends the
	 * registration, the set stays: no page is copied speculatively then.
	 */
	smp_store_release(&mm->notifier_subscriptions, subscriptions);
	__spf_sync_notifiers();
	return true;
}
#endif

void __spf_sync_notifiers(void)
{
	/* The caller has published; faults check in RCU, with the PTL held. */
	if (!spf_broken(SPF_NO_WAIT))
		synchronize_rcu_expedited();
}

#ifdef CONFIG_FAULTLINE_SPF_TORTURE
#include "tests/spf-torture.h"
#endif
