// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: clearing huge pages ahead of the locks (vm.hugetlb_zero_ahead).
 *
 * A hugetlb fault that needs a new page clears it with the VMA lock (or
 * mmap_lock), the fault mutex and the hugetlb VMA lock held: for a page of 1 GiB,
 * tenths of a second.  With the switch on, handle_mm_fault() comes here first.
 * If the fault will need a page, it picks a free page of the pool, releases the
 * VMA lock, clears the page where it is, in the pool, takes the VMA lock again,
 * and goes on in upstream's path.  There it finds the page when it allocates, and
 * does not clear it again.  The page is not allocated meanwhile, so there is
 * nothing to undo if the fault does not need it after all.
 *
 * While somebody clears a page, or counts on a page that is clear, the page has a
 * slot.  The fault that makes the slot is its first user.  Others that need the
 * same page of a file, or that find no other free page, join it: they help to
 * clear it, and then go on, too.  A page is cleared in pieces, and each piece is
 * claimed and cleared in one hold of the slot's lock, for reading, with interrupts
 * off.
 *
 *  Z1. A page with a slot is a free page like any other: it is on the free list,
 *      has HPG_freed, and is in free_huge_pages.  No count of the pool, of
 *      reservations, subpools or cgroups depends on slots.  Whoever wants the
 *      page, to allocate, dissolve or demote it, or to shrink the pool, takes it
 *      at once.
 *  Z2. Nobody writes to a page that has left the pool.  A page leaves it in
 *      dequeue_hugetlb_folio_node_exact() and remove_hugetlb_folio() only, under
 *      hugetlb_lock, and both detach the slot first: they set its page to NULL
 *      with the slot's lock held for writing.  This waits for the pieces that
 *      are being cleared, and after it clear_piece() finds no page.
 *      So a task that is frozen, throttled or preempted holds up nobody: that
 *      happens only between pieces, and then nothing is claimed.  The wait, under
 *      hugetlb_lock, is for as long as it takes to clear one piece (if a
 *      hypervisor preempts the CPU, for longer, as with any spinlock).
 *      Interrupts are off as they may free a page, and so take hugetlb_lock.
 *  Z3. HPG_zeroed is set only when a slot is detached, if all pieces were cleared
 *      by then.  The count of them and the contents are ordered by the slot's
 *      lock.
 *  Z4. HPG_zeroed is valid while the page is free, and for the task that has just
 *      dequeued it.  Nobody writes to a free page but those who clear it, and
 *      enqueue_hugetlb_folio(), through which all pages get into the free list,
 *      removes the flag.  remove_hugetlb_folio() does so, too.
 *  Z5. A page is moved to the tail of its free list when it gets a slot, and to
 *      the head when it loses the slot and stays.  Only a user of the slot moves it
 *      to the head earlier, when it is about to dequeue it.  Upstream adds and
 *      takes pages at the head.  So pages with a slot are taken by others only if
 *      their node has no other page; the search for a page ends at the first one
 *      with a slot; and a page that was cleared for nothing is among the first,
 *      where faults look for it.  A fault has at most one slot, and makes none for
 *      a page of a file that has one: there are at most as many pages with a slot as
 *      faults in flight.
 *  Z6. The VMA is not used while it is unlocked.  Afterwards it is used only if
 *      it is found at the address, and locked, and its vm_lock_seq is as before:
 *      every change of a VMA, and its removal, begins with vma_start_write(), and
 *      new VMAs are write-locked as they are linked.  So it is as if the lock had
 *      been held all the time, for callers that look at this VMA only: page faults
 *      from user space.  In all other cases the fault returns VM_FAULT_RETRY, and
 *      begins again; then it finds a clear page and keeps the lock, unless another
 *      fault has taken all clear pages meanwhile.
 *  Z7. A slot has users, counted under hugetlb_lock: faults that have not left
 *      __hugetlb_zero_fault().  The last one detaches the slot and frees it.
 *
 * If the page is taken by somebody else, if there is no free page, or no memory
 * for a slot, or if the lock must not be released, the fault clears a page under
 * its locks as upstream, and HUGETLB_ZEROED_LATE counts it.  So it is with surplus
 * pages, which are left to upstream: these come from the page allocator, under the
 * locks.  hugetlb_wp() copies, and needs no clear page; it still copies under its
 * locks.
 *
 * See Documentation/admin-guide/mm/faultline/hugetlb_zero.rst.
 */

#include <linux/cpuset.h>
#include <linux/faultline_hugetlb_zero.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/highmem.h>
#include <linux/hugetlb.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmzone.h>
#include <linux/page-isolation.h>
#include <linux/rwlock.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/userfaultfd_k.h>
#include <linux/vmstat.h>
#include <linux/xarray.h>

#include "faultline.h"
#include "hugetlb_zero.h"

/* === Switch =============================================================== */

DEFINE_STATIC_KEY_FALSE(hugetlb_zero_key);
DEFINE_STATIC_KEY_FALSE(hugetlb_zero_pool_key);

static void hugetlb_zero_apply(unsigned long value)
{
	if (!value) {
		static_branch_disable(&hugetlb_zero_key);
		return;
	}
	/*
	 * First, and for good: pages with a slot or with HPG_zeroed may be in the
	 * pool from now on.
	 */
	if (!static_key_enabled(&hugetlb_zero_pool_key)) {
		static_branch_enable(&hugetlb_zero_pool_key);
		/*
		 * A CPU may still execute the old code, or read the old variable, with
		 * hugetlb_lock held, so with interrupts off.
		 */
		synchronize_rcu();
	}
	static_branch_enable(&hugetlb_zero_key);
}

struct faultline_toggle hugetlb_zero_ahead_toggle = {
	.name	= "hugetlb_zero_ahead",
	.stock	= 0,
	.min	= 0,
	.max	= 1,
	.value	= CONFIG_FAULTLINE_HUGETLB_ZERO_DEFAULT,
	.apply	= hugetlb_zero_apply,
};

/* === Slots ================================================================ */

/*
 * Cleared with interrupts off: a few microseconds, or tens if as many CPUs clear at
 * the same time as saturate the memory of the node.
 */
#define PIECE_PAGES	(PAGE_SHIFT < 15 ? SZ_32K / PAGE_SIZE : 1)

/*
 * The page that a fault needs: of a file, or of a private mapping.  The pointers
 * are only compared: if one is stale, faults on unrelated pages share a slot, and
 * one of them clears its page late.
 */
struct zero_key {
	const struct address_space	*mapping;
	const struct mm_struct		*mm;	/* NULL: shared */
	pgoff_t				index;	/* in huge pages */
};

struct zero_slot {
	/*
	 * Held for reading, with interrupts off, by those who clear a piece.
	 * Nests in hugetlb_lock.
	 */
	rwlock_t		lock;
	/*
	 * NULL: taken, or nobody needs it.  Changes with hugetlb_lock and @lock
	 * held, the latter for writing.
	 */
	struct folio		*folio;
	bool			leaving;	/* a hint: do not delay detach_slot() */
	unsigned long		address;
	unsigned int		pieces;
	atomic_t		next;		/* pieces claimed; or more */
	atomic_t		done;		/* pieces cleared */
	/* The rest is protected by hugetlb_lock.  See Z7. */
	unsigned int		users;
	struct zero_key		key;
	struct hlist_node	by_key;		/* unhashed once it is detached */
};

/* A fault that has a slot, on its stack.  Protected by hugetlb_lock. */
struct zero_user {
	const struct task_struct *task;
	struct zero_slot	*slot;
	struct hlist_node	by_task;
};

/*
 * There are at most as many entries as faults in flight, spread evenly: only a
 * machine with thousands of those has more than a few in a row.
 */
#define SLOT_HASH_BITS	8
static struct hlist_head users_by_task[1 << SLOT_HASH_BITS];
static struct hlist_head slots_by_key[1 << SLOT_HASH_BITS];

static struct hlist_head *task_bucket(const struct task_struct *task)
{
	return &users_by_task[hash_ptr(task, SLOT_HASH_BITS)];
}

static struct hlist_head *key_bucket(const struct zero_key *key)
{
	unsigned long hash = (unsigned long)key->mapping / L1_CACHE_BYTES +
			     key->index;

	return &slots_by_key[hash_long(hash, SLOT_HASH_BITS)];
}

static struct zero_slot *find_slot(const struct zero_key *key, struct hstate *h)
{
	struct zero_slot *slot;

	lockdep_assert_held(&hugetlb_lock);
	hlist_for_each_entry(slot, key_bucket(key), by_key)
		if (slot->key.mapping == key->mapping &&
		    slot->key.index == key->index && slot->key.mm == key->mm &&
		    slot->folio && folio_hstate(slot->folio) == h)
			return slot;
	return NULL;
}

/* A free page has no subpool. */
static struct zero_slot *folio_slot(struct folio *folio)
{
	return (struct zero_slot *)hugetlb_folio_subpool(folio);
}

/* The page of the slot, or NULL.  It has another, or none, if a test breaks Z2. */
static struct folio *slot_folio(struct zero_slot *slot)
{
	struct folio *folio = slot->folio;

	lockdep_assert_held(&hugetlb_lock);
	return folio && folio_slot(folio) == slot ? folio : NULL;
}

static bool slot_complete(const struct zero_slot *slot)
{
	return atomic_read(&slot->done) == slot->pieces;
}

/* @folio is a free page without a slot. */
static void attach_slot(struct zero_slot *slot, struct folio *folio,
			struct hstate *h)
{
	bool zeroed = folio_test_hugetlb_zeroed(folio);

	lockdep_assert_held(&hugetlb_lock);
	rwlock_init(&slot->lock);
	slot->folio = folio;
	slot->leaving = false;
	slot->pieces = DIV_ROUND_UP(pages_per_huge_page(h), PIECE_PAGES);
	atomic_set(&slot->next, zeroed ? slot->pieces : 0);
	atomic_set(&slot->done, zeroed ? slot->pieces : 0);
	slot->users = 0;
	hlist_add_head(&slot->by_key, key_bucket(&slot->key));

	folio_clear_hugetlb_zeroed(folio);
	folio_set_hugetlb_zero_slot(folio);
	hugetlb_set_folio_subpool(folio, (struct hugepage_subpool *)slot);
	/* Z5 */
	list_move_tail(&folio->lru, &h->hugepage_freelists[folio_nid(folio)]);
}

/*
 * Z2: on return, nobody clears the page.  Z3: and it has HPG_zeroed if it is
 * clear.
 */
static void detach_slot(struct folio *folio, bool removed)
{
	struct zero_slot *slot = folio_slot(folio);
	bool complete;

	lockdep_assert_held(&hugetlb_lock);
	if (!removed || !hugetlb_zero_broken(ZERO_SKIP_REMOVE)) {
		/* Not all architectures stop readers when a writer waits. */
		WRITE_ONCE(slot->leaving, true);
		/* Pairs with the hold in clear_piece(). */
		write_lock(&slot->lock);
		WRITE_ONCE(slot->folio, NULL);
		write_unlock(&slot->lock);
	}
	complete = slot_complete(slot) || hugetlb_zero_broken(ZERO_STALE);
	hlist_del_init(&slot->by_key);

	folio_clear_hugetlb_zero_slot(folio);
	hugetlb_set_folio_subpool(folio, NULL);
	if (complete)
		folio_set_hugetlb_zeroed(folio);
}

static void use_slot(struct zero_user *user, struct zero_slot *slot)
{
	lockdep_assert_held(&hugetlb_lock);
	slot->users++;
	user->task = current;
	user->slot = slot;
	hlist_add_head(&user->by_task, task_bucket(current));
}

/* Z7 */
static void put_slot(struct zero_user *user)
{
	struct zero_slot *slot = user->slot;
	struct folio *folio;
	bool last;

	spin_lock_irq(&hugetlb_lock);
	hlist_del(&user->by_task);
	last = !--slot->users;
	folio = slot_folio(slot);
	if (last && folio) {
		struct hstate *h = folio_hstate(folio);

		detach_slot(folio, false);
		/* Z5 */
		list_move(&folio->lru,
			  &h->hugepage_freelists[folio_nid(folio)]);
	}
	spin_unlock_irq(&hugetlb_lock);
	if (last)
		kfree(slot);
}

/* === Clearing ============================================================= */

/* The piece with the address of the fault comes last: its cache lines are hot. */
static void clear_pages_of(struct zero_slot *slot, struct folio *folio,
			   unsigned int piece)
{
	unsigned long size = folio_size(folio);
	unsigned long base = ALIGN_DOWN(slot->address, size);
	unsigned long last = (slot->address - base) / PAGE_SIZE / PIECE_PAGES;
	unsigned long i, end;

	piece += last + 1;
	if (piece >= slot->pieces)
		piece -= slot->pieces;
	i = (unsigned long)piece * PIECE_PAGES;
	end = min(i + PIECE_PAGES, size / PAGE_SIZE);
	for (; i < end; i++)
		clear_user_highpage(folio_page(folio, i), base + i * PAGE_SIZE);
}

/* Returns false if there is nothing left to claim. */
static bool clear_piece(struct zero_slot *slot)
{
	bool broken = hugetlb_zero_broken(ZERO_LATE_WRITE);
	bool claimed = false;
	struct folio *folio;
	unsigned long flags;
	unsigned int piece;

	if (READ_ONCE(slot->leaving))
		return false;
	/* Z2: pairs with the hold in detach_slot(). */
	read_lock_irqsave(&slot->lock, flags);
	folio = slot->folio;
	if (!folio || folio_test_hwpoison(folio) ||
	    atomic_read(&slot->next) >= slot->pieces)
		goto unlock;
	piece = atomic_fetch_inc(&slot->next);
	if (piece >= slot->pieces)
		goto unlock;
	claimed = true;
	if (broken)
		read_unlock_irqrestore(&slot->lock, flags);
	hugetlb_zero_window(ZERO_WINDOW_HELD);
	clear_pages_of(slot, folio, piece);
	if (atomic_inc_return(&slot->done) == slot->pieces)
		count_vm_event(HUGETLB_ZEROED);
	if (broken)
		return true;
unlock:
	read_unlock_irqrestore(&slot->lock, flags);
	return claimed;
}

/* No lock is held. */
static void clear_slot(struct zero_slot *slot)
{
	while (clear_piece(slot)) {
		if (fatal_signal_pending(current))
			return;
		hugetlb_zero_window(ZERO_WINDOW_PIECE);
		cond_resched();
	}
	/*
	 * Wait for pieces that others have claimed.  That takes as long as one
	 * piece takes, see Z2.
	 */
	while (READ_ONCE(slot->folio) && !slot_complete(slot) &&
	       atomic_read(&slot->next) >= slot->pieces &&
	       !fatal_signal_pending(current)) {
		cond_resched();
		cpu_relax();
	}
}

/* === Faults =============================================================== */

/*
 * How long a VMA may be unlocked.  vm_lock_seq has 32 bits and recurs after 2^31
 * write sections, which take minutes.
 */
#define MAX_UNLOCKED	(10 * HZ)

/*
 * Clear the page of @slot with the lock of the fault released.  Returns false if
 * the lock could not be taken again, or the VMA has changed: see Z6.
 */
static bool clear_unlocked(struct zero_slot *slot,
			   struct vm_area_struct *vma, unsigned long address,
			   unsigned int flags)
{
	struct mm_struct *mm = vma->vm_mm;
	unsigned long since = jiffies;
	struct vm_area_struct *found;
	unsigned int seq;

	/* Stable: only a task that write-locks the VMA changes it. */
	seq = vma->vm_lock_seq;
	if (flags & FAULT_FLAG_VMA_LOCK)
		vma_end_read(vma);
	else
		mmap_read_unlock(mm);
	clear_slot(slot);
	hugetlb_zero_window(ZERO_WINDOW_PREPARED);
	/* Z6: only page faults of user space have nothing but the VMA. */
	if (fatal_signal_pending(current) || !(flags & FAULT_FLAG_USER) ||
	    WARN_ON_ONCE(mm != current->mm))
		return false;

	if (flags & FAULT_FLAG_VMA_LOCK)
		found = lock_vma_under_rcu(mm, address);
	else if (!mmap_read_lock_killable(mm))
		found = vma_lookup(mm, address);
	else
		return false;
	if (found == vma && !time_after(jiffies, since + MAX_UNLOCKED) &&
	    (vma->vm_lock_seq == seq || hugetlb_zero_broken(ZERO_NO_RECHECK)))
		return true;
	if (!(flags & FAULT_FLAG_VMA_LOCK))
		mmap_read_unlock(mm);
	else if (found)
		vma_end_read(found);
	return false;
}

/* Will the fault, as far as can be told without its locks, need a new page? */
static bool fault_needs_page(struct vm_area_struct *vma, unsigned long address,
			     unsigned int flags, struct zero_key *key)
{
	struct hstate *h = hstate_vma(vma);
	bool shared = vma->vm_flags & VM_MAYSHARE;
	pte_t *ptep;

	if (flags & FAULT_FLAG_UNSHARE || userfaultfd_armed(vma))
		return false;
	/* A hint: if it is stale, a page is cleared late. */
	if (!data_race(h->free_huge_pages))
		return false;

	address &= huge_page_mask(h);
	/* Tables of private mappings are not shared: they stay. */
	if (!shared) {
		ptep = hugetlb_walk(vma, address, huge_page_size(h));
		if (ptep &&
		    !huge_pte_none(huge_ptep_get(vma->vm_mm, address, ptep)))
			return false;
	}

	key->mapping = vma->vm_file->f_mapping;
	key->mm = shared ? NULL : vma->vm_mm;
	key->index = ((address - vma->vm_start) >> huge_page_shift(h)) +
		     (vma->vm_pgoff >> huge_page_order(h));
	if (key->index >=
	    i_size_read(key->mapping->host) >> huge_page_shift(h))
		return false;
	return !xa_load(&vma->vm_file->f_mapping->i_pages,
			key->index << huge_page_order(h));
}

/* Free pages without a slot among which one is looked for that is clear. */
#define PICK_PAGES	16

/*
 * A clear page, or the one that dequeue_hugetlb_folio_node_exact() would take, if it
 * has no slot.  Otherwise *@other is its slot, unless it is set.
 */
static struct folio *pick_on_node(struct hstate *h, int nid,
				  struct zero_slot **other)
{
	bool pin = current->flags & PF_MEMALLOC_PIN;
	struct folio *folio, *first = NULL;
	int n = 0;

	list_for_each_entry(folio, &h->hugepage_freelists[nid], lru) {
		if (pin && !folio_is_longterm_pinnable(folio))
			continue;
		if (folio_test_hwpoison(folio) ||
		    is_migrate_isolate_page(&folio->page))
			continue;
		if (folio_test_hugetlb_zero_slot(folio)) {
			/* The rest of the list have one, too: Z5. */
			if (!first && !*other)
				*other = folio_slot(folio);
			break;
		}
		if (folio_test_hugetlb_zeroed(folio))
			return folio;
		if (!first)
			first = folio;
		if (++n == PICK_PAGES)
			break;
	}
	return first;
}

/* Nodes in the order of dequeue_hugetlb_folio_nodemask(). */
static struct folio *pick_on_nodes(struct hstate *h, gfp_t gfp, int nid,
				   nodemask_t *nodes,
				   struct zero_slot **other)
{
	int last = NUMA_NO_NODE;
	struct folio *folio;
	struct zoneref *z;
	struct zone *zone;

	for_each_zone_zonelist_nodemask(zone, z, node_zonelist(nid, gfp),
					gfp_zone(gfp), nodes) {
		if (!cpuset_zone_allowed(zone, gfp) ||
		    zone_to_nid(zone) == last)
			continue;
		last = zone_to_nid(zone);
		folio = pick_on_node(h, last, other);
		if (folio)
			return folio;
	}
	return NULL;
}

/* As in dequeue_hugetlb_folio_vma(). */
static struct folio *pick_folio(struct vm_area_struct *vma,
				unsigned long address, struct hstate *h,
				struct zero_slot **other)
{
	gfp_t gfp = htlb_alloc_mask(h);
	struct folio *folio = NULL;
	struct mempolicy *mpol;
	nodemask_t *nodes;
	int nid;

	lockdep_assert_held(&hugetlb_lock);
	nid = huge_node(vma, address, gfp, &mpol, &nodes);
	if (mpol_is_preferred_many(mpol)) {
		folio = pick_on_nodes(h, gfp, nid, nodes, other);
		nodes = NULL;
	}
	if (!folio)
		folio = pick_on_nodes(h, gfp, nid, nodes, other);
	mpol_cond_put(mpol);
	return folio;
}

/*
 * Make a slot for the fault, or join one.  If the fault must not clear anything
 * now, the slot is complete.  Returns false if the fault has to do without;
 * *@dirty is set if that is because it would have to clear a page.
 */
static bool get_slot(struct zero_user *user, struct vm_area_struct *vma,
		     unsigned long address, const struct zero_key *key,
		     bool may_clear, bool *dirty)
{
	struct hstate *h = hstate_vma(vma);
	struct zero_slot *slot, *other;
	struct folio *folio = NULL;

	*dirty = false;
	/* The VMA is locked: do not wait for memory. */
	slot = kmalloc(sizeof(*slot), GFP_NOWAIT | __GFP_NOWARN);
	if (!slot)
		return false;
	slot->address = address;
	slot->key = *key;

	spin_lock_irq(&hugetlb_lock);
	other = find_slot(key, h);
	if (!other)
		folio = pick_folio(vma, address, h, &other);
	if (folio && (may_clear || folio_test_hugetlb_zeroed(folio))) {
		attach_slot(slot, folio, h);
		use_slot(user, slot);
		spin_unlock_irq(&hugetlb_lock);
		return true;
	}
	if (folio || (other && !may_clear && !slot_complete(other))) {
		*dirty = true;
		other = NULL;
	}
	if (other)
		use_slot(user, other);
	spin_unlock_irq(&hugetlb_lock);
	kfree(slot);
	return other;
}

vm_fault_t __hugetlb_zero_fault(struct mm_struct *mm,
				struct vm_area_struct *vma,
				unsigned long address, unsigned int flags)
{
	vm_fault_t ret = VM_FAULT_RETRY;
	struct zero_user user;
	struct zero_key key;
	bool first, nowait, dirty;

	/* Only before FAULT_FLAG_TRIED is set, or it might go on for ever. */
	first = fault_flag_allow_retry_first(flags);
	nowait = flags & FAULT_FLAG_RETRY_NOWAIT;
	if (!fault_needs_page(vma, address, flags, &key))
		return hugetlb_fault(mm, vma, address, flags);
	if (!get_slot(&user, vma, address, &key, first && !nowait, &dirty)) {
		/* KVM's first attempt: the lock is kept, and KVM comes again. */
		if (dirty && first && nowait)
			return VM_FAULT_RETRY;
		return hugetlb_fault(mm, vma, address, flags);
	}

	if (slot_complete(user.slot) ||
	    clear_unlocked(user.slot, vma, address, flags))
		ret = hugetlb_fault(mm, vma, address, flags);
	put_slot(&user);

	return ret;
}

/* === The pool ============================================================= */

/*
 * Z5: a user of a slot is about to take a page, and takes the one of the slot, if
 * its node is still allowed.  That is the page which the fault would have got when
 * it was picked; a page that has become free on a nearer node since does not count.
 */
int __hugetlb_zero_node(struct hstate *h, gfp_t gfp, const nodemask_t *nodes)
{
	struct folio *folio = NULL;
	struct zero_user *user;
	int nid;

	lockdep_assert_held(&hugetlb_lock);
	hlist_for_each_entry(user, task_bucket(current), by_task)
		if (user->task == current && !hugetlb_zero_broken(ZERO_NO_OWN))
			folio = slot_folio(user->slot);
	if (!folio || folio_hstate(folio) != h || folio_test_hwpoison(folio) ||
	    is_migrate_isolate_page(&folio->page) || gfp & __GFP_THISNODE ||
	    (current->flags & PF_MEMALLOC_PIN && !folio_is_longterm_pinnable(folio)))
		return NUMA_NO_NODE;
	nid = folio_nid(folio);
	if ((nodes && !node_isset(nid, *nodes)) ||
	    !cpuset_zone_allowed(folio_zone(folio), gfp))
		return NUMA_NO_NODE;
	list_move(&folio->lru, &h->hugepage_freelists[nid]);
	return nid;
}

void __hugetlb_zero_dequeue(struct folio *folio)
{
	if (folio_test_hugetlb_zero_slot(folio))
		detach_slot(folio, false);
}

void __hugetlb_zero_remove(struct folio *folio)
{
	if (folio_test_hugetlb_zero_slot(folio))
		detach_slot(folio, true);
	folio_clear_hugetlb_zeroed(folio);
}

void __hugetlb_zero_enqueue(struct folio *folio)
{
	/* Z4 */
	if (!hugetlb_zero_broken(ZERO_KEEP_FLAG))
		folio_clear_hugetlb_zeroed(folio);
}

/* Returns true if the page, which was just allocated, is clear. */
bool __hugetlb_zero_use(struct folio *folio)
{
	if (folio_test_hugetlb_zeroed(folio)) {
		if (!hugetlb_zero_broken(ZERO_KEEP_FLAG))
			folio_clear_hugetlb_zeroed(folio);
		count_vm_event(HUGETLB_ZEROED_USED);
		return true;
	}
	if (static_branch_unlikely(&hugetlb_zero_key))
		count_vm_event(HUGETLB_ZEROED_LATE);
	return false;
}

#ifdef CONFIG_FAULTLINE_HUGETLB_ZERO_TORTURE
#include "tests/hugetlb_zero-torture.h"
#endif
