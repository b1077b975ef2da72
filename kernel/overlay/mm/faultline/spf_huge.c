// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: speculative page faults where there is no page table, and the
 * anon_vma of a VMA (vm.speculative_page_fault).
 *
 * Upstream holds the VMA lock, or mmap_lock, while it allocates, charges and
 * clears a huge page, or allocates a page table.  Here all of that is done from
 * the snapshot of spf.c, without a lock.  Then the VMA lock is taken for the few
 * instructions that change the PMD entry.
 *
 * The page table lock alone, as for other speculative faults, would not do: W5
 * lets a writer that has seen an empty PMD entry go on without any lock of a
 * page table, so an entry filled after that would be missed.  A reader of the VMA
 * lock is waited for in vma_start_write(), before the writer looks.
 *
 * The rules:
 *
 *  H1 Nothing is allocated or cleared while the VMA is locked, except page tables
 *     of upper levels (one per GiB), which upstream's functions allocate in place.
 *     The anon_vma is made with mmap_lock held for reading, as upstream does.  In
 *     a later attempt a huge page may be in hand meanwhile: H6.
 *  H2 The VMA lock is only tried, so no fault waits for a writer with it.  With
 *     the lock held, vm_lock_seq equals the snapshot's: so all that was decided
 *     from the snapshot (the size of the page, access, policy, no userfaultfd,
 *     not unmapped) holds until the lock is released.
 *  H3 What is prepared is in struct spf_state on the stack of the fault.  Nobody
 *     else sees it before it is installed, and spf_discard() frees what is not.
 *  H4 A fault allocates at most one huge page speculatively, whether that
 *     succeeds or not, and also if it runs out of attempts.  If there is none,
 *     it installs a page table, so that the slow path does not try another one.
 *     The slow path may try if the fault has to be given up before that.
 *  H5 A table that is deposited below a huge page, or freed at once, is new: no
 *     walker has seen it, so W6 does not ask for a grace period.
 *  H6 A huge page that is charged but not mapped can be found neither by reclaim
 *     nor by the OOM reaper.  So a fault with one in hand does not sleep, with
 *     these exceptions.  It is throttled if charging the page has brought that
 *     about, and it reschedules and is preempted, as in folio_zero_user():
 *     upstream does so, too, even with the VMA locked.  It allocates an upper
 *     page table or an anon_vma if a writer has removed them, as upstream
 *     allocates the page table to deposit, and waits for the lock of the
 *     anon_vma that it shares with a neighbour.  And it waits for mmap_lock in
 *     spf_wait_with_huge(): a signal that kills ends that, and few faults of the
 *     whole system may wait at a time.
 *
 * On the hash MMU of powerpc, all of this but the anon_vma is left to the slow
 * path: it frees tables at once that walkers may look at with interrupts off, and
 * deposits tables of another kind.
 */

#include <linux/faultline_spf.h>
#include <linux/gfp.h>
#include <linux/khugepaged.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/oom.h>
#include <linux/pgalloc.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/swap.h>
#include <linux/vmstat.h>

#include "../internal.h"
#include "spf.h"

/* === The VMA lock ========================================================= */

/*
 * Lock the VMA of the snapshot: H2.  Runs in the RCU section in which f->vma was
 * found, and in which the lock may be held until the end.
 *
 * Return: SPF_GO_ON if it is locked.
 */
static enum spf_outcome lock_snapshot_vma(struct spf_state *f)
{
	/* Reschedule first: with the lock held, a writer would wait for us. */
	if (need_resched() && !f->mmap_locked)
		return ABORT_BUSY;
	spf_window(SPF_WINDOW_FILL);
	if (!vma_start_read(f->vma))
		return ABORT_LOCKED;
	/*
	 * A writer that was here before has changed the number, and released the
	 * lock: that is ordered by the lock.  One that comes later waits for us.
	 */
	if (!snapshot_valid(f) && !spf_broken(SPF_NO_FILL_CHECK)) {
		vma_end_read(f->vma);
		return ABORT_CHANGED;
	}
	return SPF_GO_ON;
}

/* === Finding a hole ======================================================= */

enum hole {
	HOLE_NONE,	/* there is a table, or a migration entry */
	HOLE_HUGE,	/* there is a huge page */
	HOLE_PMD,	/* the PMD entry is empty */
	HOLE_UPPER,	/* an entry above it is empty */
};

/* Where the walk has ended that has not found a page table. */
static enum hole find_hole(const struct spf_state *f)
{
	if (!f->pmdp)
		return f->no_upper ? HOLE_UPPER : HOLE_NONE;
	if (pmd_none(f->pmd))
		return HOLE_PMD;
	return pmd_present(f->pmd) && pmd_leaf(f->pmd) ? HOLE_HUGE : HOLE_NONE;
}

/* The outcome if the PMD entry is not empty.  May be changed by map_hole(). */
static enum spf_outcome no_hole(const struct spf_state *f, enum hole hole)
{
	/* A writer has freed the tables. */
	if (hole == HOLE_UPPER)
		return ABORT_CHANGED;
	/* The entry was empty before, and another thread was faster. */
	if (hole == HOLE_HUGE && spf_has_huge(f))
		return DONE_RACED;
	return ABORT_NO_TABLE;
}

/*
 * Make the page tables above the PMD entry.  They stay as long as the VMA is not
 * write-locked.  Leaves the RCU section and enters a new one.
 */
static noinline enum spf_outcome make_upper_tables(struct spf_state *f)
{
	struct vm_area_struct *vma = f->vma;
	enum spf_outcome outcome;
	unsigned long since;
	p4d_t *p4dp;
	pud_t *pudp;
	pmd_t *pmdp;

	outcome = lock_snapshot_vma(f);
	if (outcome != SPF_GO_ON)
		return outcome;
	if (!spf_begin_sleep(f, &since)) {
		vma_end_read(vma);
		return ABORT_CHANGED;
	}
	p4dp = p4d_alloc(f->mm, pgd_offset(f->mm, f->address), f->address);
	pudp = p4dp ? pud_alloc(f->mm, p4dp, f->address) : NULL;
	pmdp = pudp ? pmd_alloc(f->mm, pudp, f->address) : NULL;
	vma_end_read(vma);
	outcome = spf_end_sleep(f, since);

	return pmdp ? outcome : ABORT_NO_MEMORY;
}

/* === Preparing ============================================================ */

/*
 * The architectures whose pte_alloc_one() is __pte_alloc_one() with flags for
 * any page of the kernel can do without sleeping, if the lock of the table needs
 * no memory of its own.  See GFP_FAST and GFP_SLEEP in spf.c about the flags.
 */
#if defined(CONFIG_X86_64) || defined(CONFIG_ARM64)
#define TABLE_GFP	(GFP_PGTABLE_USER | __GFP_NOWARN)
static pgtable_t alloc_table(struct mm_struct *mm)
{
	return __pte_alloc_one(mm, TABLE_GFP | __GFP_RETRY_MAYFAIL);
}
#else
/* Like upstream, but without a lock, this can call the OOM killer. */
static pgtable_t alloc_table(struct mm_struct *mm)
{
	return pte_alloc_one(mm);
}
#endif

#if defined(TABLE_GFP) && !ALLOC_SPLIT_PTLOCKS
static pgtable_t alloc_table_fast(struct mm_struct *mm)
{
	if (node_reclaim_enabled())
		return NULL;
	return __pte_alloc_one(mm, (TABLE_GFP & ~__GFP_DIRECT_RECLAIM) |
				   __GFP_NOMEMALLOC);
}
#else
static pgtable_t alloc_table_fast(struct mm_struct *mm)
{
	return NULL;
}
#endif

#ifdef CONFIG_TRANSPARENT_HUGEPAGE
/* Would upstream try a huge page, or the huge zero page? */
static bool huge_wanted(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;

	return thp_vma_allowable_order(vma, vma->vm_flags,
				       TVA_IN_PF | TVA_ENFORCE_SYSFS,
				       PMD_ORDER) &&
	       thp_vma_suitable_order(vma, f->address & HPAGE_PMD_MASK,
				      PMD_ORDER);
}

static struct folio *alloc_huge(struct spf_state *f)
{
	struct vm_area_struct *vma = &f->snapshot;
	gfp_t gfp = vma_thp_gfp_mask(vma);
	struct folio *folio;

	folio = vma_alloc_folio(gfp, HPAGE_PMD_ORDER, vma,
				f->address & HPAGE_PMD_MASK, true);
	if (folio && mem_cgroup_charge(folio, f->mm, gfp)) {
		folio_put(folio);
		folio = NULL;
		count_vm_event(THP_FAULT_FALLBACK_CHARGE);
		count_mthp_stat(HPAGE_PMD_ORDER,
				MTHP_STAT_ANON_FAULT_FALLBACK_CHARGE);
	}
	if (!folio) {
		count_vm_event(THP_FAULT_FALLBACK);
		count_mthp_stat(HPAGE_PMD_ORDER, MTHP_STAT_ANON_FAULT_FALLBACK);
		return NULL;
	}
	folio_throttle_swaprate(folio, gfp);

	return folio;
}

/*
 * Like do_huge_pmd_anonymous_page() until it locks the page table.  Costly orders
 * never call the OOM killer, so the flags can be upstream's.
 */
static void prepare_huge(struct spf_state *f)
{
	khugepaged_enter_vma(&f->snapshot, f->snapshot.vm_flags);
	f->huge_tried = !spf_broken(SPF_HUGE_TWICE);
	f->huge = alloc_huge(f);
	if (!f->huge)
		return;
	f->wasted = true;
	folio_zero_user(f->huge, f->address);
	/* Order the contents before the entry. */
	__folio_mark_uptodate(f->huge);
}
#else
static bool huge_wanted(struct spf_state *f)
{
	return false;
}

static void prepare_huge(struct spf_state *f)
{
}
#endif

/*
 * Prepare a table, and a huge page if @huge.  Leaves the RCU section and enters
 * a new one.
 */
static noinline enum spf_outcome prepare(struct spf_state *f, bool huge)
{
	struct vm_area_struct *vma = f->vma;
	bool locked = spf_broken(SPF_PREPARE_LOCKED) && vma_start_read(vma);
	enum spf_outcome outcome = ABORT_CHANGED;
	unsigned long since;

	if (locked && !snapshot_valid(f)) {
		vma_end_read(vma);
		return ABORT_CHANGED;
	}
	if (spf_begin_sleep(f, &since)) {
		if (f->huge)
			spf_discard_huge(f);
		/* The table first: see H6. */
		if (!f->table)
			f->table = alloc_table(f->mm);
		if (f->table && huge)
			prepare_huge(f);
		spf_window(SPF_WINDOW_PREPARED);
		/* Rather than in the RCU section: lock_snapshot_vma(). */
		cond_resched();
		outcome = spf_end_sleep(f, since);
		if (!f->table)
			outcome = ABORT_NO_MEMORY;
	}
	if (locked)
		vma_end_read(vma);

	return outcome;
}

void spf_discard_huge(struct spf_state *f)
{
	folio_put(f->huge);
	f->huge = NULL;
	count_vm_event(SPF_HUGE_UNUSED);
}

/* Free what a fault has prepared and not installed: H3. */
void spf_discard(struct spf_state *f)
{
	if (f->huge)
		spf_discard_huge(f);
	if (f->table)
		pte_free(f->mm, f->table);
}

/* === Installing =========================================================== */

#ifdef CONFIG_TRANSPARENT_HUGEPAGE
/* For tests: let walkers see the table that is to be deposited. */
static void show_table(struct spf_state *f, pmd_t *pmdp)
{
	smp_wmb(); /* The contents before the entry, as in pmd_install(). */
	pmd_populate(f->mm, pmdp, f->table);
	spf_window(SPF_WINDOW_INSTALL);
	pmd_clear(pmdp);
}

/*
 * The end of __do_huge_pmd_anonymous_page().  The PMD entry is empty, and its
 * table is locked.  The VMA allows the write that this is for.
 */
static void map_huge(struct spf_state *f, pmd_t *pmdp)
{
	unsigned long start = f->address & HPAGE_PMD_MASK;
	struct vm_area_struct *vma = f->vma;
	pmd_t entry;

	entry = mk_huge_pmd(&f->huge->page, vma->vm_page_prot);
	entry = pmd_mkwrite(pmd_mkdirty(entry), vma);
	folio_add_new_anon_rmap(f->huge, vma, start, RMAP_EXCLUSIVE);
	folio_add_lru_vma(f->huge, vma);
	pgtable_trans_huge_deposit(f->mm, pmdp, f->table);
	set_pmd_at(f->mm, start, pmdp, entry);
	update_mmu_cache_pmd(vma, f->address, pmdp);
	add_mm_counter(f->mm, MM_ANONPAGES, HPAGE_PMD_NR);
	mm_inc_nr_ptes(f->mm);
	deferred_split_folio(f->huge, false);
}

/* The VMA is locked and the snapshot holds.  Takes over the page and the table. */
static enum spf_outcome install_huge(struct spf_state *f, pmd_t *pmdp)
{
	enum spf_outcome outcome;
	spinlock_t *ptl;	/* of the PMD table */

	ptl = pmd_lock(f->mm, pmdp);
	if (!pmd_none(*pmdp)) {
		/* A huge page or a table: the access is repeated. */
		outcome = DONE_RACED;
	} else if (check_stable_address_space(f->mm)) {
		/* The OOM reaper may already have passed here. */
		outcome = ABORT_UNSUPPORTED;
	} else {
		if (spf_broken(SPF_SEEN_TABLE))
			show_table(f, pmdp);
#ifdef CONFIG_LRU_GEN
		current->in_lru_fault = vma_has_recency(f->vma);
#endif
		map_huge(f, pmdp);
#ifdef CONFIG_LRU_GEN
		current->in_lru_fault = false;
#endif
		f->huge = NULL;
		f->table = NULL;
		outcome = DONE_ANON;
	}
	spin_unlock(ptl);

	if (outcome == DONE_ANON) {
		count_vm_event(SPF_HUGE);
		count_vm_event(THP_FAULT_ALLOC);
		count_mthp_stat(HPAGE_PMD_ORDER, MTHP_STAT_ANON_FAULT_ALLOC);
		count_memcg_event_mm(f->mm, THP_FAULT_ALLOC);
	}
	return outcome;
}
#else
static enum spf_outcome install_huge(struct spf_state *f, pmd_t *pmdp)
{
	return ABORT_NO_TABLE;
}
#endif

/*
 * The VMA is locked and the snapshot holds.  So the entry that the walk has found
 * is in use, even if the fault has slept since: the walk came after the snapshot,
 * and a task that frees or moves a PMD table write-locks all VMAs in its range, W1.
 */
static enum spf_outcome install(struct spf_state *f, bool huge)
{
	pmd_t *pmdp = f->pmdp;

	spf_window(SPF_WINDOW_INSTALL);
	if (huge && f->huge)
		return install_huge(f, pmdp);
	/* If another thread was faster, keep it for spf_discard(). */
	pmd_install(f->mm, pmdp, &f->table);
	if (!f->table) {
		count_vm_event(SPF_TABLE);
	} else {
		pmd_t pmd = pmdp_get_lockless(pmdp);

		/* A huge page, or gone again: the access is repeated. */
		if (!pmd_present(pmd) || pmd_leaf(pmd))
			return DONE_RACED;
	}
	return SPF_GO_ON;
}

/*
 * Fault where spf_walk() has not found a table: if that is because the PMD entry
 * is empty, fill it with a huge page, or with a page table.  Runs in the RCU section
 * of the walk, in which f->vma was found; may leave it and enter another.
 *
 * Return: SPF_GO_ON if there is a page table now, in which the fault can go on
 * with the same snapshot.
 */
enum spf_outcome spf_fill_hole(struct spf_state *f)
{
	bool huge, write = f->flags & FAULT_FLAG_WRITE;
	enum spf_outcome outcome;
	enum hole hole;

	hole = spf_irqs_off() ? HOLE_NONE : find_hole(f);
	if (hole == HOLE_NONE || hole == HOLE_HUGE)
		return no_hole(f, hole);
	if (write && !f->snapshot.anon_vma)
		return ABORT_NO_ANON_VMA;
	huge = huge_wanted(f);
	/* Upstream maps the huge zero page, or whatever it is set to. */
	if (huge && !write)
		return ABORT_NO_TABLE;

	if (!f->prepared) {
		f->huge = NULL;
		f->table = NULL;
		f->prepared = true;
	}
	if (hole == HOLE_UPPER) {
		outcome = make_upper_tables(f);
		if (outcome != SPF_GO_ON)
			return outcome;
		hole = spf_has_table(f) ? HOLE_NONE : find_hole(f);
		if (hole != HOLE_PMD)
			return no_hole(f, hole);
	}
	if (huge && !f->huge && !f->huge_tried) {
		outcome = prepare(f, true);
		if (outcome != SPF_GO_ON)
			return outcome;
		if (!f->huge && spf_broken(SPF_HUGE_TWICE))
			return ABORT_CHANGED;
	}
	if (!f->table)
		f->table = alloc_table_fast(f->mm);
	if (!f->table) {
		outcome = prepare(f, false);
		if (outcome != SPF_GO_ON)
			return outcome;
	}

	outcome = lock_snapshot_vma(f);
	if (outcome != SPF_GO_ON)
		return outcome;
	outcome = install(f, huge);
	vma_end_read(f->vma);

	return outcome;
}

/* === Waiting ============================================================== */

/* How many faults may wait with a huge page in hand: H6. */
#define HUGE_WAITING_MAX	max(1, (int)(SZ_16M >> PMD_SHIFT))

/* How many do; of the whole system. */
atomic_t spf_huge_waiting = ATOMIC_INIT(0);

static bool begin_waiting(void)
{
	int waiting = atomic_read(&spf_huge_waiting);

	do {
		if (waiting >= HUGE_WAITING_MAX && !spf_broken(SPF_HUGE_CROWD))
			return false;
	} while (!atomic_try_cmpxchg(&spf_huge_waiting, &waiting, waiting + 1));

	return true;
}

/*
 * Lock mmap_lock for reading; with a huge page in hand only if not too many
 * faults wait with one.
 *
 * Return: false if it is not locked, and the page has to be thrown away.
 */
bool spf_wait_with_huge(struct spf_state *f)
{
	bool huge = spf_has_huge(f);
	int killed;

	if (mmap_read_trylock(f->mm))
		return true;
	if (huge && !begin_waiting())
		return false;
	killed = mmap_read_lock_killable(f->mm);
	if (huge)
		atomic_dec(&spf_huge_waiting);

	return !killed;
}

/* === The anon_vma ========================================================= */

/*
 * The first write to a VMA: make its anon_vma, as __vmf_anon_prepare() does, with
 * mmap_lock held for reading.  If the snapshot is valid then, the VMA is in the
 * tree and allows the access, and stays so (W1).  Runs in the RCU section in which
 * f->vma was found; may leave it and enter another.
 *
 * Return: ABORT_CHANGED if the snapshot is out of date, perhaps because there is
 * an anon_vma now; another outcome if there is none.
 */
enum spf_outcome spf_make_anon_vma(struct spf_state *f)
{
	struct vm_area_struct *vma = f->vma;
	bool locked, valid;
	int error = 0;

	/* Reschedule first: with the lock held, a writer would wait for us. */
	if (need_resched())
		return ABORT_BUSY;
	spf_window(SPF_WINDOW_ANON_VMA);
	locked = mmap_read_trylock(f->mm);
	/* Do not wait for the writer: H6. */
	if (!locked && spf_has_huge(f))
		return ABORT_NO_ANON_VMA;
	/* The lock orders this after all that writers have changed. */
	valid = locked && (snapshot_valid(f) || spf_broken(SPF_NO_ANON_CHECK));
	leave_rcu();
	f->slept = true;
	if (!locked) {
		/* Upstream waits, too, and then holds the lock for the fault. */
		if (mmap_read_lock_killable(f->mm)) {
			enter_rcu();
			return ABORT_NO_ANON_VMA;
		}
		/*
		 * The VMA may have been freed meanwhile.  If the tree still
		 * yields the same pointer, with the same number, it is the same
		 * VMA: W3.
		 */
		valid = vma_lookup(f->mm, f->address) == vma &&
			snapshot_valid(f);
	}
	/* Another thread may have made it; it is set once. */
	if (valid && !READ_ONCE(vma->anon_vma))
		error = __anon_vma_prepare(vma);
	mmap_read_unlock(f->mm);
	enter_rcu();

	return error ? ABORT_NO_ANON_VMA : ABORT_CHANGED;
}
