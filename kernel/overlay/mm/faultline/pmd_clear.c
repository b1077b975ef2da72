// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: removing page tables without an IPI to every CPU
 * (vm.pmd_clear_ipi_free).
 *
 * A lockless walker, get_user_pages_fast() above all, has interrupts off.
 * Upstream waits for walkers with an IPI to every CPU when a page table makes
 * room for a huge page (COLLAPSE), when a shared hugetlb table is left to its
 * last user (UNSHARE), and when there is no memory to batch the freeing of a
 * table (TABLE).  Each wait has two purposes, which are now served as follows:
 *
 *  1. The memory of the table stays a page table until no walker looks at it:
 *     it is freed after an RCU grace period, for which an interrupts-off
 *     section counts as a reader.  (UNSHARE frees nothing: the last user goes
 *     on using the table, and frees it like any other table of its mm.)
 *  2. A walker does not use what it found in a table that was taken away:
 *       COLLAPSE  The walker rechecks the PMD entry after it has taken a
 *                 reference; see pmd_clear_collapse().  The entry cannot be the
 *                 same again with other contents below it: the table is put
 *                 back only unchanged, and is not used for anything else
 *                 before the grace period is over.  This is why a fresh table
 *                 is deposited.
 *       UNSHARE   The TLB flush of the mm that unshares waits for the walker,
 *                 see flush_waits().  If the flush does not wait, the walker
 *                 checks mm->pmd_clear_seq before and after; see
 *                 pmd_clear_unshare().  Rechecking the PUD entry is not enough:
 *                 table and entry are two words, and a table can be unshared,
 *                 changed, and shared again.
 *       TABLE     The table was unlinked and is not used again.
 *
 * Some IPIs remain.  On powerpc, hash__pmdp_collapse_flush() waits for
 * hash_page(), which would insert a translation; this is not about freeing.
 * CPUs that have nothing better still flush TLBs by IPI.
 *
 * Each operation decides once, for itself, which way it goes, so the switch can
 * change at any time.  Only UNSHARE needs its walkers to cooperate, and not
 * everywhere; see pmd_clear_apply().
 *
 * Frozen, bug fixes only: patches with the same approach to COLLAPSE are in
 * linux-next for 7.4 (October 2026).
 *
 * See Documentation/admin-guide/mm/faultline/pmd_clear.rst.
 */

#include <linux/faultline_pmd_clear.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/pgalloc.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/vmstat.h>

#include <asm/tlb.h>
#if defined(CONFIG_X86) && defined(CONFIG_PARAVIRT)
#include <asm/paravirt.h>
#endif

#include <trace/events/faultline.h>

#include "faultline.h"
#include "pmd_clear.h"

/* === Data ================================================================= */

enum {
	MODE_STOCK,
	MODE_IPI_FREE,
	MODE_LEGACY,
};

/* The mode is MODE_IPI_FREE. */
DEFINE_STATIC_KEY_FALSE(pmd_clear_ipi_free_key);

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_UNSHARE
/* gup_fast() checks mm->pmd_clear_seq. */
DEFINE_STATIC_KEY_FALSE(pmd_clear_check_key);

/*
 * Does the TLB flush on unsharing wait for the walkers of the table, so that
 * they need not check mm->pmd_clear_seq?
 *
 * It does if it is an IPI to every CPU in mm_cpumask() and the sender waits
 * until all of them have handled it: x86, unless a hypervisor flushes TLBs for
 * us and skips virtual CPUs that do not run.  (arm64, riscv and powerpc use
 * instructions or firmware.)  The flush comes after pud_clear() and before
 * i_mmap_rwsem is dropped, and nobody can change the table without that lock.
 * It skips no CPU: see unshared_tables in tlb_flush().
 *
 * Which walkers have interrupts off, and on which CPUs?
 *
 *  - get_user_pages_fast() of a task walks current->mm, which is the mm that
 *    the CPU has loaded, so the CPU is in mm_cpumask().  The flush waits.
 *  - A CPU that loads the mm meanwhile sets its bit in mm_cpumask() before it
 *    walks, and the flush increments tlb_gen between pud_clear() and reading
 *    the mask.  Both are full barriers: either the flush waits for the CPU, or
 *    the walk finds the PUD entry cleared.
 *  - A kernel thread that has only borrowed the mm (a lazy CPU) has no
 *    current->mm and does not walk.  One that called kthread_use_mm() has
 *    loaded the mm like any task.
 *  - The CPU that flushes runs this code, not a walker.
 *  - perf walks current->mm in an NMI.  The NMI may hit between the switch to
 *    another mm and the switch to another task, and then the flush does not
 *    wait.  The same is true of every table that x86 frees: those too are
 *    protected only by a flush.
 *  - KVM looks up the size of a mapping, between mmu_notifier calls, for a task
 *    of the mm.
 */
static bool flush_waits(void)
{
	if (pmd_clear_broken(PMD_CLEAR_NO_FLUSH_CHECK))
		return true;
#if defined(CONFIG_X86) && defined(CONFIG_PARAVIRT)
	return pv_ops.mmu.flush_tlb_multi == native_flush_tlb_multi;
#else
	return IS_ENABLED(CONFIG_X86);
#endif
}

static void set_unshare_check(bool on)
{
	if (on && !flush_waits())
		static_branch_enable(&pmd_clear_check_key);
	else
		static_branch_disable(&pmd_clear_check_key);
}
#else
static void set_unshare_check(bool on)
{
}
#endif

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_LEGACY
DEFINE_STATIC_KEY_FALSE(pmd_clear_ipi_legacy_key);

static void set_legacy_ipi(bool on)
{
	if (on)
		static_branch_enable(&pmd_clear_ipi_legacy_key);
	else
		static_branch_disable(&pmd_clear_ipi_legacy_key);
}
#else
static void set_legacy_ipi(bool on)
{
}
#endif

/*
 * Unless flush_waits(), UNSHARE may skip the IPI only while all walkers check
 * mm->pmd_clear_seq:
 *
 * - On: a walker that does not check has had interrupts off since before the
 *   first broadcast, so it is over before the first IPI is skipped.
 * - Off: the last skipped IPI precedes the second broadcast, which all CPUs
 *   have seen before any walker stops checking.  The PUD entries of that table
 *   were cleared even earlier, by the task that skipped the IPI and by all that
 *   unshared the table before.  So that walker does not find the table.
 *
 * pmd_clear_seq itself is always counted.
 */
static void pmd_clear_apply(unsigned long mode)
{
	set_legacy_ipi(mode == MODE_LEGACY);

	if (mode == MODE_IPI_FREE) {
		set_unshare_check(true);
		tlb_remove_table_sync_one();
		static_branch_enable(&pmd_clear_ipi_free_key);
	} else {
		static_branch_disable(&pmd_clear_ipi_free_key);
		tlb_remove_table_sync_one();
		set_unshare_check(false);
	}
}

struct faultline_toggle pmd_clear_ipi_free_toggle = {
	.name	= "pmd_clear_ipi_free",
	.stock	= MODE_STOCK,
	.min	= MODE_STOCK,
	.max	= IS_ENABLED(CONFIG_FAULTLINE_PMD_CLEAR_LEGACY) ? MODE_LEGACY :
							    MODE_IPI_FREE,
	.value	= CONFIG_FAULTLINE_PMD_CLEAR_DEFAULT,
	.apply	= pmd_clear_apply,
};

/* === Counting ============================================================= */

static void count_avoided(enum pmd_clear_site site)
{
	count_vm_event(PMD_CLEAR_AVOIDED_COLLAPSE + site);
	trace_pmd_clear_wait(site, 0);
}

void pmd_clear_broadcast(enum pmd_clear_site site)
{
	count_vm_event(PMD_CLEAR_IPI_COLLAPSE + site);
	if (static_branch_unlikely(&pmd_clear_ipi_free_key))
		count_vm_event(PMD_CLEAR_FALLBACK);
	trace_pmd_clear_wait(site, num_online_cpus() - 1);
	tlb_remove_table_sync_one();
}

#ifdef CONFIG_PPC_BOOK3S_64
void pmd_clear_count_mm(enum pmd_clear_site site, struct mm_struct *mm)
{
	count_vm_event(site == PMD_CLEAR_HASH ? PMD_CLEAR_IPI_HASH :
					      PMD_CLEAR_IPI_LEGACY);
	trace_pmd_clear_wait(site, cpumask_weight(mm_cpumask(mm)));
}
#endif

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_LEGACY
void __pmd_clear_legacy(struct mm_struct *mm)
{
	pmd_clear_count_mm(PMD_CLEAR_LEGACY, mm);
	serialize_against_pte_lookup(mm);
}
#endif

/* === COLLAPSE ============================================================= */

static bool mmu_needs_ipi(void)
{
#ifdef CONFIG_PPC_BOOK3S_64
	/*
	 * Hash: the deposited table holds the slots of the hash entries, and
	 * hash__pmdp_collapse_flush() sends IPIs anyway.
	 */
	return !radix_enabled();
#else
	return false;
#endif
}

static pgtable_t alloc_table(struct mm_struct *mm)
{
#ifdef __pte_alloc_one
	/* Not worth an OOM kill. */
	return __pte_alloc_one(mm, GFP_PGTABLE_USER | __GFP_NORETRY |
				   __GFP_NOWARN);
#else
	pgtable_t table;

	/* powerpc keeps a stock of tables in the mm until that is torn down. */
	if (!mmget_not_zero(mm))
		return NULL;
	table = pte_alloc_one(mm);
	mmput_async(mm);
	return table;
#endif
}

pgtable_t __pmd_clear_alloc(struct mm_struct *mm)
{
	struct mem_cgroup *memcg, *old;
	pgtable_t table = NULL;

	/* Some architectures reclaim memory here; nobody must wait for that. */
	lockdep_assert_not_held(&mm->mmap_lock);
	if (!mmu_needs_ipi()) {
		/* khugepaged has no memcg of its own. */
		memcg = get_mem_cgroup_from_mm(mm);
		old = set_active_memcg(memcg);
		table = alloc_table(mm);
		set_active_memcg(old);
		mem_cgroup_put(memcg);
	}
	return table;
}

void __pmd_clear_collapsed(void)
{
	count_avoided(PMD_CLEAR_COLLAPSE);
	pmd_clear_window();
}

void pmd_clear_free_old(struct mm_struct *mm, pgtable_t table)
{
	if (pmd_clear_broken(PMD_CLEAR_NO_COLLAPSE_RCU))
		pte_free(mm, table);
	else
		pte_free_defer(mm, table);
}

/* === UNSHARE ============================================================== */

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_UNSHARE
void __pmd_clear_unshared(void)
{
	count_avoided(PMD_CLEAR_UNSHARE);
}

bool __pmd_clear_walk_retry(void)
{
	if (pmd_clear_broken(PMD_CLEAR_NO_RECHECK))
		return false;
	count_vm_event(PMD_CLEAR_GUP_RETRY);
	return true;
}
#endif

/* === TABLE ================================================================ */

/* See table_free.c for the rest. */
void __pmd_clear_freed(void)
{
	count_avoided(PMD_CLEAR_TABLE);
}

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_TORTURE
#include "tests/pmd_clear-torture.h"
#endif
