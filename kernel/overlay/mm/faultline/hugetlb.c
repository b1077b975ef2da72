// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: control of hugetlb page table sharing (vm.hugetlb_pmd_sharing).
 *
 * Mappings of the same hugetlb file can share page tables of PMD entries.
 * Upstream has a lock per VMA to protect faults against unsharing, and finds
 * the other users of a table under i_mmap_rwsem of the file, which every zap
 * holds for writing.  The modes:
 *
 *   0  New VMAs do not share, have no lock, and are zapped without
 *      i_mmap_rwsem.
 *   1  As upstream.
 *   2  As 1, but a fault looks at the table without a lock and revalidates it
 *      once it holds the page table lock, and the final unmap holds
 *      i_mmap_rwsem only while it unshares.
 *
 * In mode 0, a VMA with a lock works as in mode 2 but shares no further tables.
 * Without CONFIG_FAULTLINE_HUGETLB_REVALIDATE, its faults take the VMA lock.
 *
 * The writer side is the same in all modes.  A writer that takes a shared table
 * away holds the VMA lock and i_mmap_rwsem, both for writing.  While it clears
 * the PUD entry it also holds the page table lock (or has the VMA write-locked,
 * which keeps faults away), and it drops i_mmap_rwsem only after
 * huge_pmd_unshare_flush().  A mode only determines what a reader does, so it
 * can change at any time:
 *
 *  I1. A VMA without a lock is the only owner of its page tables.  Whether a
 *      VMA gets a lock is decided once, before it is linked into i_mmap.  Only
 *      the final unmap takes the lock away, holding it and i_mmap_rwsem for
 *      writing, after the last shared table is gone.  A copy of a VMA with a
 *      lock has one too, whatever the mode.
 *  I2. A table that was taken away from an mm is not freed until every task
 *      with that current->mm that was in an interrupts-off section at that
 *      time has left it: either huge_pmd_unshare_flush() waited, or the table
 *      is freed by RCU.  get_user_pages_fast() relies on this too; see
 *      pmd_clear.c.  Other mappings may change the contents before that, so
 *      entry_peek() may read an entry of another mapping.  A fault maps nothing
 *      before it has read the entry again under the page table lock.
 *  I3. An entry of a page table is cleared and the rmap of its folio removed
 *      in one hold of the page table lock.
 *  I4. A page cache folio is mapped only with the folio locked, after checking
 *      that it is in the file.  Truncation and hole punching look for mappings
 *      and remove the folio from the file in one hold of the folio lock;
 *      migration and memory failure look for mappings with the folio locked.
 *
 * See Documentation/admin-guide/mm/faultline/hugetlb.rst.
 */

#define pr_fmt(fmt) "faultline: " fmt

#include <linux/delay.h>
#include <linux/fault-inject.h>
#include <linux/faultline_hugetlb.h>
#include <linux/faultline_hugetlb_zero.h>
#include <linux/hugetlb.h>
#include <linux/kobject.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/oom.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rmap.h>
#include <linux/sched/clock.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/swapops.h>
#include <linux/sysctl.h>
#include <linux/sysfs.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>

#include <asm/tlb.h>

#include <trace/events/faultline.h>

#include "../internal.h"
#include "faultline.h"
#include "hugetlb.h"

/* === Data ================================================================= */

enum {
	MODE_OFF,
	MODE_VMA_LOCK,
	MODE_REVALIDATE,
};

/* The mode is not MODE_VMA_LOCK. */
DEFINE_STATIC_KEY_FALSE(hugetlb_pmd_sharing_key);

static void hugetlb_pmd_sharing_apply(unsigned long mode)
{
	/*
	 * No need to wait for users that still act on the former mode: their
	 * actions depend on the VMA, and are correct in every mode.
	 */
	if (mode == MODE_VMA_LOCK)
		static_branch_disable(&hugetlb_pmd_sharing_key);
	else
		static_branch_enable(&hugetlb_pmd_sharing_key);
}

struct faultline_toggle hugetlb_pmd_sharing_toggle = {
	.name	= "hugetlb_pmd_sharing",
	.stock	= MODE_VMA_LOCK,
	.min	= MODE_OFF,
	.max	= IS_ENABLED(CONFIG_FAULTLINE_HUGETLB_REVALIDATE) ?
		  MODE_REVALIDATE : MODE_VMA_LOCK,
	.value	= CONFIG_FAULTLINE_HUGETLB_DEFAULT,
	.apply	= hugetlb_pmd_sharing_apply,
};

static unsigned long sharing_mode(void)
{
	/* Pairs with WRITE_ONCE() in toggle_set(). */
	return READ_ONCE(hugetlb_pmd_sharing_toggle.value);
}

#ifdef CONFIG_FAULTLINE_HUGETLB_FAULT_INJECTION
static DECLARE_FAULT_ATTR(fail_revalidate);
static DECLARE_FAULT_ATTR(fail_trylock);

static int __init fail_init(void)
{
	fault_create_debugfs_attr("fail_hugetlb_pmd_revalidate", NULL,
				  &fail_revalidate);
	fault_create_debugfs_attr("fail_hugetlb_pmd_trylock", NULL,
				  &fail_trylock);
	return 0;
}
late_initcall(fail_init);

static bool inject_changed(void)
{
	return should_fail(&fail_revalidate, 1);
}

static bool inject_busy(void)
{
	return should_fail(&fail_trylock, 1);
}
#else
static bool inject_changed(void)
{
	return false;
}

static bool inject_busy(void)
{
	return false;
}
#endif

/* === Which VMAs share ===================================================== */

/* Only whole tables of PMD entries are shared, so the range must span one. */
static bool range_has_table(unsigned long start, unsigned long end,
			    unsigned long size)
{
	return size == PMD_SIZE &&
	       ALIGN(start, PUD_SIZE) < ALIGN_DOWN(end, PUD_SIZE);
}

bool __hugetlb_vma_may_share(struct vm_area_struct *vma)
{
	switch (sharing_mode()) {
	case MODE_OFF:
		return false;
	case MODE_REVALIDATE:
		return vma && range_has_table(vma->vm_start, vma->vm_end,
					      huge_page_size(hstate_vma(vma)));
	default:
		return true;
	}
}

bool __hugetlb_pmd_share_allowed(void)
{
	return sharing_mode() != MODE_OFF;
}

/* Is @vma the only owner of all its page tables?  See I1. */
static bool owns_tables(const struct vm_area_struct *vma)
{
	return (vma->vm_flags & VM_MAYSHARE) && !vma->vm_private_data;
}

/* === Accounting =========================================================== */

/* Page tables with more than one user, and their users beyond the first. */
static atomic_long_t nr_tables;
static atomic_long_t nr_extra_users;

/* huge_pmd_share() has found a table to share; i_mmap_rwsem is held. */
void hugetlb_pmd_table_get(struct ptdesc *table)
{
	if (atomic_inc_return(&table->pt_share_count) == 1)
		atomic_long_inc(&nr_tables);
	atomic_long_inc(&nr_extra_users);
}

static void count_table_put(bool last)
{
	if (last)
		atomic_long_dec(&nr_tables);
	atomic_long_dec(&nr_extra_users);
}

/* Another thread got there first; i_mmap_rwsem is held. */
void hugetlb_pmd_table_put(struct ptdesc *table)
{
	count_table_put(atomic_dec_and_test(&table->pt_share_count));
}

/* The table from hugetlb_pmd_table_get() is in place. */
void hugetlb_pmd_share_done(struct mm_struct *mm, unsigned long addr)
{
	count_vm_event(HUGETLB_PMD_SHARED);
	trace_hugetlb_pmd_share(mm, addr);
}

/*
 * __huge_pmd_unshare() took the table of @entry away; i_mmap_rwsem is held for
 * writing.  Returns 1, as __huge_pmd_unshare() does.  As a tail call with the same
 * arguments it costs the unshared path no register.
 */
int hugetlb_pmd_unshare_done(struct mm_struct *mm, unsigned long addr,
			     pte_t *entry)
{
	bool last = !ptdesc_pmd_is_shared(virt_to_ptdesc(entry));

	count_table_put(last);
	count_vm_event(HUGETLB_PMD_UNSHARED);
	hugetlb_check_notified(mm, addr);
	if (last)
		count_vm_event(HUGETLB_PMD_UNSHARE_LAST);
	trace_hugetlb_pmd_unshare(mm, addr, last);
	return 1;
}

/* /sys/kernel/mm/hugepages/hugepages-NkB/; 0 unless N is the PMD size. */
static ssize_t show_pmd_only(struct kobject *kobj, char *buf, long value)
{
	char name[32];

	snprintf(name, sizeof(name), "hugepages-%lukB", PMD_SIZE / SZ_1K);
	return sysfs_emit(buf, "%ld\n",
			  strcmp(kobject_name(kobj), name) ? 0 : value);
}

static ssize_t pmd_tables_shared_show(struct kobject *kobj,
				      struct kobj_attribute *attr, char *buf)
{
	return show_pmd_only(kobj, buf, atomic_long_read(&nr_tables));
}

struct kobj_attribute pmd_tables_shared_attr = __ATTR_RO(pmd_tables_shared);

static ssize_t pmd_table_refs_show(struct kobject *kobj,
				   struct kobj_attribute *attr, char *buf)
{
	return show_pmd_only(kobj, buf, atomic_long_read(&nr_tables) +
					atomic_long_read(&nr_extra_users));
}

struct kobj_attribute pmd_table_refs_attr = __ATTR_RO(pmd_table_refs);

/* === Zapping ============================================================== */

/* Entries of one table to zap in one hold of its lock. */
#define ZAP_BATCH	64

/*
 * Zap the entries of one page table from @addr to @end; @ptep is the entry of
 * @addr.  Stops early if the gather is full or the batch is used up.
 *
 * Pairs with hugetlb_entry_lock() and page_vma_mapped_walk(): if they find an
 * entry empty under the page table lock, its rmap is gone too (I3).
 *
 * Returns the address to continue from.
 */
static unsigned long zap_entries(struct mmu_gather *tlb,
				 struct vm_area_struct *vma, pte_t *ptep,
				 unsigned long addr, unsigned long end,
				 zap_flags_t zap_flags)
{
	bool keep_marker = !(zap_flags & ZAP_FLAG_DROP_MARKER);
	struct hstate *h = hstate_vma(vma);
	unsigned long sz = huge_page_size(h);
	struct mm_struct *mm = vma->vm_mm;
	unsigned int zapped = 0;
	bool full = false;
	spinlock_t *ptl = huge_pte_lock(h, mm, ptep);

	for (; addr < end && zapped < ZAP_BATCH && !full; addr += sz, ptep++) {
		pte_t pte = huge_ptep_get(mm, addr, ptep);
		bool uffd_wp;
		struct page *page;

		if (huge_pte_none(pte))
			continue;
		if (!pte_present(pte)) {
			/* Marker, migration or poison: no folio, no rmap. */
			uffd_wp = pte_swp_uffd_wp_any(pte);
			if (uffd_wp && keep_marker)
				set_huge_pte_at(mm, addr, ptep,
						make_pte_marker(PTE_MARKER_UFFD_WP),
						sz);
			else
				huge_pte_clear(mm, addr, ptep, sz);
			continue;
		}

		page = pte_page(pte);
		pte = huge_ptep_get_and_clear(mm, addr, ptep, sz);
		tlb_remove_huge_tlb_entry(h, tlb, ptep, addr);
		if (huge_pte_dirty(pte))
			set_page_dirty(page);
		if (huge_pte_uffd_wp(pte) && keep_marker)
			set_huge_pte_at(mm, addr, ptep,
					make_pte_marker(PTE_MARKER_UFFD_WP),
					sz);
		hugetlb_zap_window(ptl);
		hugetlb_remove_rmap(page_folio(page));
		full = __tlb_remove_page_size(tlb, page, false, sz);
		zapped++;
	}
	hugetlb_count_sub(zapped * pages_per_huge_page(h), mm);
	spin_unlock(ptl);

	if (full)
		tlb_flush_mmu(tlb);

	return addr;
}

/*
 * Zap tables that @vma owns, without i_mmap_rwsem.  Concurrent rmap walks are
 * serialized by the page table locks.  The tables themselves stay until @vma
 * has left i_mmap, see free_pgtables().
 */
static void zap_own_tables(struct mmu_gather *tlb, struct vm_area_struct *vma,
			   unsigned long start, unsigned long end,
			   zap_flags_t zap_flags)
{
	struct hstate *h = hstate_vma(vma);
	unsigned long sz = huge_page_size(h);
	unsigned long mask = hugetlb_mask_last_page(h);
	unsigned long addr = start;

	tlb_change_page_size(tlb, sz);
	tlb_start_vma(tlb, vma);
	while (addr < end) {
		unsigned long next = min(end, (addr | mask) + sz);
		pte_t *ptep = hugetlb_walk(vma, addr, sz);

		if (!ptep) {
			addr = next;
			continue;
		}
		/* Entries of other sizes need not be adjacent. */
		if (sz != PMD_SIZE)
			next = addr + sz;
		VM_WARN_ON_ONCE(sz == PMD_SIZE &&
				ptdesc_pmd_is_shared(virt_to_ptdesc(ptep)));
		addr = zap_entries(tlb, vma, ptep, addr, next, zap_flags);
		cond_resched();
	}
	tlb_end_vma(tlb, vma);
}

/* The VMA lock and i_mmap_rwsem are held for writing. */
static void unshare_table(struct mmu_gather *tlb, struct vm_area_struct *vma,
			  unsigned long addr)
{
	struct hstate *h = hstate_vma(vma);
	pte_t *ptep = hugetlb_walk(vma, addr, PMD_SIZE);

	if (ptep) {
		spinlock_t *ptl = huge_pte_lock(h, vma->vm_mm, ptep);

		huge_pmd_unshare(tlb, vma, addr, ptep);
		spin_unlock(ptl);
	}
}

/*
 * Unshare all tables of @vma and take its lock away, so that no other VMA can
 * share with it again: page_table_shareable() and want_pmd_share() check the
 * lock under i_mmap_rwsem.  Cost: one step per table, not per page.
 *
 * Returns how long i_mmap_rwsem was held, in ns, if the tracepoint is enabled.
 */
static u64 become_owner(struct mmu_gather *tlb, struct vm_area_struct *vma)
{
	struct hugetlb_vma_lock *lock = vma->vm_private_data;
	struct address_space *mapping = vma->vm_file->f_mapping;
	struct hstate *h = hstate_vma(vma);
	unsigned long sz = huge_page_size(h);
	unsigned long addr;
	u64 begin = 0;

	down_write(&lock->rw_sema);
	i_mmap_lock_write(mapping);
	if (trace_hugetlb_zap_enabled())
		begin = ktime_get_ns();

	if (sz == PMD_SIZE && !hugetlb_broken(HUGETLB_NO_UNSHARE)) {
		tlb_change_page_size(tlb, sz);
		tlb_start_vma(tlb, vma);
		for (addr = vma->vm_start; addr < vma->vm_end;
		     addr = (addr & PUD_MASK) + PUD_SIZE)
			unshare_table(tlb, vma, addr);
		tlb_end_vma(tlb, vma);
		huge_pmd_unshare_flush(tlb, vma);
	}

	/*
	 * Pairs with hugetlb_unmap_file_folio(), which waits for the lock with
	 * a reference to it and checks lock->vma once it holds the lock.
	 */
	lock->vma = NULL;
	vma->vm_private_data = NULL;
	up_write(&lock->rw_sema);
	kref_put(&lock->refs, hugetlb_vma_lock_release);
	if (begin)
		begin = ktime_get_ns() - begin;
	i_mmap_unlock_write(mapping);

	return begin;
}

bool __hugetlb_zap_final(struct mmu_gather *tlb, struct vm_area_struct *vma,
			 unsigned long start, unsigned long end,
			 struct zap_details *details)
{
	u64 begin = 0, held = 0;

	/* No file: mmap() has failed and nothing is mapped. */
	if (sharing_mode() == MODE_VMA_LOCK ||
	    !(vma->vm_flags & VM_MAYSHARE) || !vma->vm_file)
		return false;

	start = max(start, vma->vm_start);
	end = min(end, vma->vm_end);
	if (start >= end)
		return false;

	if (trace_hugetlb_zap_enabled())
		begin = ktime_get_ns();
	if (!owns_tables(vma)) {
		held = become_owner(tlb, vma);
		count_vm_event(HUGETLB_ZAP_TWO_PHASE);
	}
	zap_own_tables(tlb, vma, start, end, details->zap_flags);
	count_vm_event(HUGETLB_ZAP_UNLOCKED);
	if (begin)
		trace_hugetlb_zap(vma->vm_mm, start, end, held,
				  ktime_get_ns() - begin);

	return true;
}

bool __hugetlb_zap_range(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end, struct zap_details *details)
{
	struct mmu_notifier_range range;
	struct mmu_gather tlb;
	u64 begin = 0;

	if (!owns_tables(vma) || !vma->vm_file)
		return false;

	if (trace_hugetlb_zap_enabled())
		begin = ktime_get_ns();
	mmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0, vma->vm_mm,
				start, end);
	tlb_gather_mmu(&tlb, vma->vm_mm);
	mmu_notifier_invalidate_range_start(&range);
	zap_own_tables(&tlb, vma, start, end, details ? details->zap_flags : 0);
	mmu_notifier_invalidate_range_end(&range);
	tlb_finish_mmu(&tlb);
	count_vm_event(HUGETLB_ZAP_UNLOCKED);
	if (begin)
		trace_hugetlb_zap(vma->vm_mm, start, end, 0,
				  ktime_get_ns() - begin);

	return true;
}

/* === Faults =============================================================== */

/*
 * Attempts to get a page table lock with interrupts off.  The holder may be
 * waiting for an IPI to this CPU: huge_ptep_clear_flush() under the lock
 * flushes TLBs by IPI.  So a round of attempts is short, and interrupts are on
 * between rounds.
 */
#define TRYLOCK_SPINS	64
/*
 * How long a fault repeats rounds.  A holder maps AROUND_PAGES in an estimated 5
 * to 30 us, and a few holders may come first.
 */
#define TRYLOCK_NS	(100 * NSEC_PER_USEC)

/* In the order of the names in trace_hugetlb_fault_retry(). */
enum {
	RETRY_GONE,
	RETRY_BUSY,
	RETRY_CHANGED,
};

/* Result of a lockless walk. */
struct table_walk {
	pud_t	*pudp;
	pud_t	pud;
	pte_t	*ptep;
};

/*
 * Walk to the entry of @addr, with interrupts off.  The table found is, or was,
 * the one of @addr, and stays a page table until interrupts are on again (I2).
 * The levels above are freed only by munmap, which the fault excludes.
 */
static bool table_walk(struct mm_struct *mm, unsigned long addr,
		       struct table_walk *walk)
{
	pgd_t *pgdp = pgd_offset(mm, addr);
	p4d_t *p4dp;

	lockdep_assert_irqs_disabled();
	if (!pgd_present(READ_ONCE(*pgdp)))
		return false;
	p4dp = p4d_offset(pgdp, addr);
	if (!p4d_present(READ_ONCE(*p4dp)))
		return false;

	walk->pudp = pud_offset(p4dp, addr);
	/* Read once.  Pairs with pud_clear() in __huge_pmd_unshare(). */
	walk->pud = READ_ONCE(*walk->pudp);
	if (!pud_present(walk->pud) || pud_leaf(walk->pud))
		return false;
	walk->ptep = (pte_t *)pmd_offset_lockless(walk->pudp, walk->pud, addr);

	return true;
}

/* Returns false if there is no page table. */
static bool entry_peek(struct vm_fault *vmf, pte_t *pte)
{
	struct mm_struct *mm = vmf->vma->vm_mm;
	struct table_walk walk;
	unsigned long flags;
	bool found;

	local_irq_save(flags);
	found = table_walk(mm, vmf->address, &walk);
	/*
	 * Not huge_ptep_get(): the table may be in other use by now, so the
	 * neighbouring entries may not belong to this one (arm64).
	 */
	if (found)
		*pte = READ_ONCE(*walk.ptep);
	local_irq_restore(flags);

	return found;
}

/* @vma owns the table, so it cannot be taken away during a fault. */
static pte_t *entry_lock_owned(struct vm_fault *vmf, struct hstate *h)
{
	struct mm_struct *mm = vmf->vma->vm_mm;
	pte_t *ptep = hugetlb_walk(vmf->vma, vmf->address, huge_page_size(h));

	if (ptep)
		vmf->ptl = huge_pte_lock(h, mm, ptep);
	return ptep;
}

/*
 * One round of attempts.  The table may be shared, and can be taken away until
 * its lock is held.  Invariant on success: the PUD entry points to the table
 * whose lock is held.  It does so until the lock is dropped, because clearing
 * the PUD entry takes that lock.
 *
 * The table need not have been there all the time: if it was unshared and
 * shared again in between, it is the right one again.
 */
static pte_t *entry_trylock_shared(struct vm_fault *vmf, struct hstate *h,
				   bool no_lock, bool changed, int *why)
{
	struct mm_struct *mm = vmf->vma->vm_mm;
	int spins = TRYLOCK_SPINS;
	struct table_walk walk;
	pte_t *ptep = NULL;
	unsigned long flags;

	*why = RETRY_GONE;
	local_irq_save(flags);
	if (!table_walk(mm, vmf->address, &walk))
		goto out;
	hugetlb_lock_window();

	/*
	 * Pairs with the lock hold around pud_clear() in huge_pmd_unshare().
	 * The lock stays in memory as long as the table does (I2).
	 */
	vmf->ptl = huge_pte_lockptr(h, mm, walk.ptep);
	while (no_lock || !spin_trylock(vmf->ptl)) {
		if (no_lock || !--spins) {
			*why = RETRY_BUSY;
			goto out;
		}
		cpu_relax();
	}
	if (pud_val(READ_ONCE(*walk.pudp)) != pud_val(walk.pud))
		changed |= hugetlb_table_lost();
	if (changed) {
		spin_unlock(vmf->ptl);
		*why = RETRY_CHANGED;
		goto out;
	}
	ptep = walk.ptep;
out:
	local_irq_restore(flags);
	return ptep;
}

/* Lock the entry of a possibly shared table; NULL: use the slow path. */
static pte_t *entry_lock_shared(struct vm_fault *vmf, struct hstate *h)
{
	bool no_lock = inject_busy(), changed = inject_changed();
	u64 now, end = 0;
	pte_t *ptep;
	int why;

	for (;;) {
		ptep = entry_trylock_shared(vmf, h, no_lock, changed, &why);
		if (ptep)
			return ptep;
		if (why != RETRY_BUSY || no_lock)
			break;
		now = local_clock();
		if (!end)
			end = now + TRYLOCK_NS;
		else if (now >= end)
			break;
	}

	count_vm_event(why == RETRY_BUSY ? HUGETLB_FAULT_BUSY :
					   HUGETLB_FAULT_RETRY);
	trace_hugetlb_fault_retry(vmf->vma->vm_mm, vmf->address, why);
	vmf->ptl = NULL;
	return NULL;
}

/*
 * Get the folio of the file at the address of the fault, locked and with a
 * reference; add one to the file if needed.  Returns NULL on any difficulty:
 * the slow path runs into it again and reports the right error.
 *
 * i_size is read and the folio added in one hold of invalidate_lock.  Pairs
 * with hugetlb_vmtruncate(), which holds it to shrink i_size.
 */
static struct folio *fault_folio(struct vm_fault *vmf, struct hstate *h,
				 struct address_space *mapping)
{
	struct vm_area_struct *vma = vmf->vma;
	struct folio *folio;
	pgoff_t size;
	u32 hash;

	folio = filemap_lock_hugetlb_folio(h, mapping, vmf->pgoff);
	if (!IS_ERR(folio))
		return folio;

	hash = hugetlb_fault_mutex_hash(mapping, vmf->pgoff);
	mutex_lock(&hugetlb_fault_mutex_table[hash]);
	folio = filemap_lock_hugetlb_folio(h, mapping, vmf->pgoff);
	if (!IS_ERR(folio))
		goto unlock_mutex;

	/* Do not wait for truncation with the mutex held: files share it. */
	if (!filemap_invalidate_trylock_shared(mapping))
		goto unlock_mutex;
	size = i_size_read(mapping->host) >> huge_page_shift(h);
	if (vmf->pgoff >= size)
		goto unlock;
	folio = alloc_hugetlb_folio(vma, vmf->address, false);
	if (IS_ERR(folio))
		goto unlock;
	hugetlb_zero_folio(folio, vmf->real_address);
	__folio_mark_uptodate(folio);
	if (hugetlb_add_to_page_cache(folio, mapping, vmf->pgoff)) {
		restore_reserve_on_error(h, vma, vmf->address, folio);
		folio_put(folio);
		folio = NULL;
		goto unlock;
	}
	folio_set_hugetlb_migratable(folio);
	count_vm_event(HUGETLB_FAULT_ALLOC);
unlock:
	filemap_invalidate_unlock_shared(mapping);
unlock_mutex:
	mutex_unlock(&hugetlb_fault_mutex_table[hash]);
	return IS_ERR(folio) ? NULL : folio;
}

/* Does the entry allow the access? */
static bool entry_suffices(pte_t pte, unsigned int flags)
{
	if (!pte_present(pte))
		return false;
	/*
	 * Not young or not dirty: some CPUs leave it to the fault to set that,
	 * and so may a device that walks our page tables.
	 */
	if (!pte_young(pte) &&
	    (!arch_has_hw_pte_young() || flags & FAULT_FLAG_REMOTE))
		return false;
	return !(flags & FAULT_FLAG_WRITE) ||
	       (huge_pte_write(pte) && huge_pte_dirty(pte));
}

/*
 * Another thread got there first.  If the CPU may have cached that there was no
 * entry, it must be told, or it faults forever.
 */
static bool entry_is_mapped(struct vm_fault *vmf, pte_t pte)
{
	if (!entry_suffices(pte, vmf->flags))
		return false;
	flush_tlb_fix_spurious_fault(vmf->vma, vmf->real_address, NULL);
	return true;
}

/*
 * The entry is empty; its table and the folio are locked.  The caller accounts
 * the page to the mm before it unlocks the table.
 */
static void map_folio(struct vm_area_struct *vma, unsigned long addr,
		      struct hstate *h, pte_t *ptep, struct folio *folio,
		      bool young)
{
	const vm_flags_t writable = VM_SHARED | VM_WRITE;
	pte_t pte = mk_huge_pte(&folio->page, vma->vm_page_prot);

	if ((vma->vm_flags & writable) == writable)
		pte = huge_pte_mkwrite(huge_pte_mkdirty(pte));
	else
		pte = huge_pte_wrprotect(pte);
	pte = young ? pte_mkyoung(pte) : pte_mkold(pte);
	pte = arch_make_huge_pte(pte, huge_page_shift(h), vma->vm_flags);

	hugetlb_add_file_rmap(folio);
	set_huge_pte_at(vma->vm_mm, addr, ptep, pte, huge_page_size(h));
}

/*
 * A fault also maps the neighbouring pages of the file that are in memory, in
 * an aligned range of this many pages, which lies within one page table.  32:
 * locking and mapping them takes a few microseconds under the page table lock.
 * A fault takes about as long, so a larger range gains little.
 */
#define AROUND_PAGES	32
#define AROUND_SIZE	(AROUND_PAGES * PMD_SIZE)

/* Map the neighbour @folio, unless it is in use or about to go. */
static bool map_neighbour(struct vm_fault *vmf, struct hstate *h,
			  struct xa_state *xas, pte_t *ptep,
			  struct folio *folio, bool young)
{
	struct address_space *mapping = vmf->vma->vm_file->f_mapping;
	long step = (xas->xa_index >> huge_page_order(h)) - vmf->pgoff;
	unsigned long addr = vmf->address + step * PMD_SIZE;
	bool good;

	if (!huge_pte_none(huge_ptep_get(vmf->vma->vm_mm, addr, ptep + step)))
		return false;
	if (folio_test_locked(folio) || !folio_try_get(folio))
		return false;
	if (folio != xas_reload(xas))
		goto put;
	hugetlb_window(HUGETLB_WINDOW_AROUND);
	/* Do not wait: the holder of the folio lock may want the table. */
	if (!folio_trylock(folio))
		goto put;
	good = hugetlb_broken(HUGETLB_NO_NEIGHBOUR) ||
	       (folio->mapping == mapping && folio_test_uptodate(folio) &&
		!folio_test_hwpoison(folio));
	/* The entry takes over the reference. */
	if (good)
		map_folio(vmf->vma, addr, h, ptep + step, folio, young);
	folio_unlock(folio);
	if (good)
		return true;
put:
	folio_put(folio);
	return false;
}

/*
 * Map the neighbours of the fault that are in the file and whose entry is
 * empty, and return how many.  The table is locked; @ptep is the entry of the
 * fault in it.  Each page is mapped as by a read fault, except that it is not
 * marked accessed: I4 holds, there is no userfaultfd, and no reservation is
 * needed as the page is in the file.  The i_size check only saves work:
 * truncation unmaps a page beyond it and removes it from the file, all with the
 * folio locked.
 *
 * Filling a shared table fills it for all its users, as the fault itself does:
 * they have the same part of the file there, and any VMA change that shows in
 * the entries unshares its tables first.
 *
 * References are taken with the table locked, and only those of entries are
 * kept, so a page removed from the file is freed as soon as upstream.
 */
static long map_neighbours(struct vm_fault *vmf, struct hstate *h,
			   struct address_space *mapping, pte_t *ptep)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long base = ALIGN_DOWN(vmf->address, AROUND_SIZE);
	unsigned long start = max(base, vma->vm_start);
	unsigned long end = min(base + AROUND_SIZE, vma->vm_end);
	pgoff_t first = vmf->pgoff - ((vmf->address - start) >> PMD_SHIFT);
	pgoff_t last = vmf->pgoff + ((end - vmf->address) >> PMD_SHIFT);
	XA_STATE(xas, &mapping->i_pages, first << huge_page_order(h));
	bool young = !arch_has_hw_pte_young();
	struct folio *folio;
	long mapped = 0;

	BUILD_BUG_ON(!is_power_of_2(AROUND_PAGES));
	BUILD_BUG_ON(AROUND_PAGES > PTRS_PER_PMD);

	last = min_t(pgoff_t, last,
		     i_size_read(mapping->host) >> huge_page_shift(h));
	/* Code: some CPUs flush caches per page, so map only what is used. */
	if (vma->vm_flags & VM_EXEC || first >= last)
		return 0;

	rcu_read_lock();
	xas_for_each(&xas, folio, (last << huge_page_order(h)) - 1) {
		if (xas_retry(&xas, folio) || xa_is_value(folio))
			continue;
		mapped += map_neighbour(vmf, h, &xas, ptep, folio, young);
		/* An entry has several slots of its node: skip to the last. */
		xas_advance(&xas, xas.xa_index + pages_per_huge_page(h) - 1);
	}
	rcu_read_unlock();
	count_vm_events(HUGETLB_FAULT_AROUND, mapped);

	return mapped;
}

/* Does this fault only need to map a page of the file? */
static bool fault_eligible(const struct vm_fault *vmf, struct hstate *h)
{
	const vm_flags_t writable = VM_SHARED | VM_WRITE;
	struct vm_area_struct *vma = vmf->vma;

	if (sharing_mode() == MODE_VMA_LOCK)
		return false;
	if (!(vma->vm_flags & VM_MAYSHARE) || huge_page_size(h) != PMD_SIZE)
		return false;
	/* I2 does not hold then, but a VMA that owns its tables needs no I2. */
	if ((!IS_ENABLED(CONFIG_FAULTLINE_HUGETLB_REVALIDATE) ||
	     vma->vm_mm != current->mm) && !owns_tables(vma))
		return false;
	if (userfaultfd_armed(vma) || (vmf->flags & FAULT_FLAG_UNSHARE))
		return false;
	return !(vmf->flags & FAULT_FLAG_WRITE) ||
	       (vma->vm_flags & writable) == writable;
}

/* Look at the entry, in a new page table if there is none. */
static bool fault_table(struct vm_fault *vmf, pte_t *pte)
{
	struct vm_area_struct *vma = vmf->vma;
	pte_t *ptep;

	if (entry_peek(vmf, pte))
		return true;
	/* Before the folio lock: i_mmap_rwsem nests outside it. */
	hugetlb_vma_lock_read(vma);
	ptep = huge_pte_alloc(vma->vm_mm, vma, vmf->address, PMD_SIZE);
	hugetlb_vma_unlock_read(vma);
	/* A shared table may already have the page. */
	return ptep && entry_peek(vmf, pte);
}

/* Map @folio, which is locked.  Consumes the lock and the reference. */
static bool fault_map(struct vm_fault *vmf, struct hstate *h,
		      struct address_space *mapping, struct folio *folio)
{
	struct vm_area_struct *vma = vmf->vma;
	bool done = false;
	pte_t *ptep, pte;
	long mapped;

	/* The previous owner of the folio lock may have mapped it. */
	if (entry_peek(vmf, &pte) && entry_is_mapped(vmf, pte)) {
		done = true;
		goto put;
	}
	if (!folio_test_uptodate(folio) || folio_test_hwpoison(folio))
		goto put;

	hugetlb_find_window(folio);
	ptep = owns_tables(vma) ? entry_lock_owned(vmf, h) :
				  entry_lock_shared(vmf, h);
	if (!ptep)
		goto put;
	pte = huge_ptep_get(vma->vm_mm, vmf->address, ptep);
	if (huge_pte_none(pte)) {
		map_folio(vma, vmf->address, h, ptep, folio, true);
		/* The entry takes over the reference; the table is locked. */
		folio_unlock(folio);
		mapped = 1 + map_neighbours(vmf, h, mapping, ptep);
		hugetlb_count_add(mapped * pages_per_huge_page(h), vma->vm_mm);
		spin_unlock(vmf->ptl);
		count_vm_event(HUGETLB_FAULT_FAST);
		return true;
	}
	done = entry_is_mapped(vmf, pte);
	spin_unlock(vmf->ptl);
put:
	folio_unlock(folio);
	folio_put(folio);
	vmf->ptl = NULL;
	return done;
}

/* One attempt; a fault that fails here is handled as in MODE_VMA_LOCK. */
bool __hugetlb_fault_fast(struct vm_fault *vmf, struct address_space *mapping)
{
	struct hstate *h = hstate_vma(vmf->vma);
	struct folio *folio;
	pte_t pte;

	if (!fault_eligible(vmf, h))
		return false;

	if (!fault_table(vmf, &pte))
		goto fallback;
	if (entry_is_mapped(vmf, pte))
		return true;
	if (!huge_pte_none(pte))
		goto fallback;
	folio = fault_folio(vmf, h, mapping);
	if (folio && fault_map(vmf, h, mapping, folio))
		return true;
fallback:
	count_vm_event(HUGETLB_FAULT_FALLBACK);
	return false;
}

/* === vm.hugetlb_pmd_unshare =============================================== */

/* How long the second pass waits for the mmap_lock of each process, in ms. */
#define UNSHARE_WAIT	100

/* Mappings from before mode 0 keep their shared tables; unshare them now. */
static int unshare_mm(struct mm_struct *mm, unsigned int wait)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;

	while (!mmap_read_trylock(mm)) {
		if (fatal_signal_pending(current))
			return -EINTR;
		if (!wait--)
			return -EBUSY;
		fsleep(USEC_PER_MSEC);
	}
	for_each_vma(vmi, vma) {
		if (fatal_signal_pending(current))
			break;
		if (!is_vm_hugetlb_page(vma) || !__vma_shareable_lock(vma))
			continue;
		/* As MADV_DONTNEED does, with mmap_lock held for reading. */
		hugetlb_unshare_all_pmds(vma);
		cond_resched();
	}
	mmap_read_unlock(mm);

	return fatal_signal_pending(current) ? -EINTR : 0;
}

/* The mm of the first thread group from *@nr on; advances *@nr past it. */
static struct mm_struct *next_mm(int *nr)
{
	struct mm_struct *mm = NULL;
	struct pid *pid;

	for (; !mm; ++*nr) {
		struct task_struct *task, *thread;

		rcu_read_lock();
		pid = find_ge_pid(*nr, &init_pid_ns);
		if (!pid) {
			rcu_read_unlock();
			return NULL;
		}
		*nr = pid_nr(pid);
		task = get_pid_task(pid, PIDTYPE_TGID);
		rcu_read_unlock();
		cond_resched();
		if (!task)
			continue;
		/* The group leader may have exited before the other threads. */
		thread = find_lock_task_mm(task);
		if (thread) {
			mm = thread->mm;
			mmget(mm);
			task_unlock(thread);
		}
		put_task_struct(task);
	}

	return mm;
}

/* Returns how many processes were skipped because mmap_lock was busy. */
static long unshare_pass(unsigned int wait)
{
	struct mm_struct *mm;
	long skipped = 0;
	int nr = 1;

	while ((mm = next_mm(&nr))) {
		int err = unshare_mm(mm, wait);

		mmput(mm);
		if (err == -EINTR)
			return err;
		skipped += err == -EBUSY;
		cond_resched();
	}

	return skipped;
}

/* One process whose mmap_lock is stuck must not hold up the others. */
static int unshare_all(void)
{
	long skipped = unshare_pass(0);

	if (skipped > 0)
		skipped = unshare_pass(UNSHARE_WAIT);
	if (skipped <= 0)
		return skipped;
	pr_info_ratelimited("vm.hugetlb_pmd_unshare: skipped %ld processes whose mmap_lock was busy\n",
			    skipped);

	return -EBUSY;
}

static int unshare_sysctl(const struct ctl_table *table, int write,
			  void *buffer, size_t *lenp, loff_t *ppos)
{
	int value = 0;
	struct ctl_table copy = {
		.procname	= table->procname,
		.data		= &value,
		.maxlen		= sizeof(value),
		.mode		= table->mode,
		.extra1		= SYSCTL_ONE,
		.extra2		= SYSCTL_ONE,
	};
	int err = proc_dointvec_minmax(&copy, write, buffer, lenp, ppos);

	if (err || !write)
		return err;
	/* Nothing was written, or not at offset 0. */
	if (value != 1)
		return -EINVAL;
	if (sharing_mode() != MODE_OFF) {
		pr_info_ratelimited("vm.hugetlb_pmd_unshare: set vm.hugetlb_pmd_sharing to 0 first, or the tables will be shared again\n");
		return -EINVAL;
	}

	return unshare_all();
}

static struct ctl_table unshare_sysctls[] = {
	{
		.procname	= "hugetlb_pmd_unshare",
		.maxlen		= sizeof(int),
		.mode		= 0200,
		.proc_handler	= unshare_sysctl,
	},
};

static int __init unshare_init(void)
{
	register_sysctl_init("vm", unshare_sysctls);
	return 0;
}
subsys_initcall(unshare_init);

#ifdef CONFIG_FAULTLINE_HUGETLB_TORTURE
#include "tests/hugetlb-torture.h"
#endif
#ifdef CONFIG_FAULTLINE_KUNIT_TEST
#include "tests/hugetlb-kunit.h"
#endif
