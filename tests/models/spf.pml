/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The protocol of speculative page faults, mm/faultline/spf.c, for spin.
 *
 * One address A of one mm.  Page faults at A run as in spf.c, step by step, and
 * race with operations of others on A: up to ACTIONS operations, in any order
 * and at any moment.  Operations of one mm that take mmap_lock for writing
 * exclude each other, so a single process runs them all.  Another process frees
 * memory, once all potential users have gone.
 *
 * Every step is seen by all at once, as on a sequentially consistent machine.
 * litmus/ covers weaker machines.
 *
 * The W numbers are those of the rules in spf.c.  Not covered: wrapping
 * sequence numbers (spf-numbers.pml) and the sysctl (spf-switch.pml).
 *
 * With -DHASH it models the hash MMU of powerpc, where a fault walks with
 * interrupts off and inserts a translation, through which threads store without
 * walking the page tables.
 *
 * To prove that the model detects mistakes, one can be made with -D; spin must
 * find it.  In a fault:
 *
 *   NO_SEQUENCE      does not check whether the VMA was write-locked meanwhile
 *   EARLY_SEQUENCE   checks that before it has the page table lock
 *   NO_LOCKED        does not check whether the VMA is write-locked
 *   NO_DETACHED      does not check whether the VMA is detached from the tree
 *   NO_FIND          does not look up and check the VMA again after sleeping
 *   NO_WALK          does not walk again after sleeping
 *   NO_RCU           is not in an RCU section
 *   NO_PMD_SAME      does not recheck the PMD entry
 *   NO_PTE_SAME      does not recheck the PTE after copying a page
 *   LIVE_VMA         uses the VMA itself instead of the snapshot
 *   NO_NOTIFIER      does not check for MMU notifiers
 *
 * In a fault with the hash MMU:
 *
 *   NO_IRQS_OFF      walks with interrupts on
 *   IRQS_STAY_OFF    does not enable them again before it flushes
 *   SPIN_LOCK        waits for the page table lock with interrupts off
 *
 * In an operation:
 *
 *   NO_VMA_LOCK      mprotect() does not write-lock the VMA (W1)
 *   LATE_VMA_LOCK    mprotect() does so after it has changed the VMA (W2)
 *   NO_NEW_NUMBER    a new VMA enters the tree with an old number (W3)
 *   LATE_DETACH      munmap() marks the VMA detached after its section (W4)
 *   NO_PASS          munmap() frees a table that it has not locked (W5)
 *   NO_DRAIN         mremap() moves a table that it has not locked (W5)
 *   NO_HASH_DRAIN    collapse does not lock the table before it flushes
 *                    translations (W5)
 *   LATE_HASH_DRAIN  collapse does so after it has flushed them (W5)
 *   NO_TABLE_WAIT    a table is freed after an IPI (W6)
 *   NO_BATCH_WAIT    so is one for which no batch could be allocated (W6)
 *   OLD_DEPOSIT      collapse deposits the table that was in use, and munmap()
 *                    frees deposited tables at once (W6)
 *   NO_VMA_WAIT      a VMA is freed at once
 *   NO_SYNC          registering a notifier does not wait for faults (W7)
 *   EARLY_ITREE      it lets others insert theirs before it has waited (W7)
 */

#ifndef FAULTS
#define FAULTS	1
#endif
#ifndef ACTIONS
#define ACTIONS	2
#endif

#if defined(NO_IRQS_OFF) || defined(IRQS_STAY_OFF) || defined(SPIN_LOCK) || \
    defined(NO_HASH_DRAIN) || defined(LATE_HASH_DRAIN)
#define HASH
#endif

#define NONE	2

/* The values of a PTE; one per page, so that they can be compared. */
#define EMPTY	0
#define SHARED	1	/* read-only, of a page that others also map */
#define OWN	2	/* writable */
#define OTHERS	3	/* writable, and installed by another thread */
#define writable(e)	((e) >= OWN)

/* The mm. */
byte mm_seq;			/* mm_lock_seq: odd in a write section */
byte tree = 0;			/* the VMA of A */
byte pmd = 0;			/* the table of A */
bool neighbour;			/* another VMA has addresses in that table */
bool notifiers;			/* mm->notifier_subscriptions */
bool itree;			/* others may insert interval notifiers */
byte anon = 1;			/* the anon_vma of the memory at A; 0: freed */

/* VMAs.  Initially the second one is adjacent to the first. */
byte vma_seq[2];
bool vma_writable[2];
byte vma_anon[2];
bool vma_detached[2];
bool vma_leaving[2];		/* to be freed */
bool vma_freed[2];

/* Page tables. */
bool locked[2];			/* the page table lock */
byte pte[2];			/* the entry for A */
bool gone[2];			/* an operation relies on its entries */
bool leaving[2];
bool freed[2];
#ifdef OLD_DEPOSIT
byte deposit = NONE;
#endif

#ifdef HASH
byte translation;		/* of A: the entry when it was inserted */
bool hashed[2];			/* H_PAGE_HASHPTE: the entry has a translation */
#endif

/* The machine state of each fault. */
bool rcu[FAULTS];
#ifdef HASH
bool irqs_off[FAULTS];
#endif

/* For assertions. */
bool forking;			/* A was copied, and the fork is in progress */
#ifdef HASH
bool collapsing;		/* A was copied, and its PTE will be cleared */
#endif
bool secondary;			/* a secondary MMU relies on being notified */
byte faults_done;
bool actions_done;

#define lock(t)		atomic { !locked[t] -> locked[t] = true }
#define unlock(t)	locked[t] = false

#define vma_used(v)	assert(!vma_freed[v])
#define table_used(t)	assert(!freed[t])

inline wait_for_rcu()
{
	!rcu[0];
#if FAULTS > 1
	!rcu[1];
#endif
}

/*
 * An IPI to all CPUs and their answers.  It is not delayed by RCU sections or
 * by a fault that spins for a lock.
 */
inline wait_for_cpus()
{
#ifdef HASH
	!irqs_off[0];
#if FAULTS > 1
	!irqs_off[1];
#endif
#else
	skip
#endif
}

/*
 * The entry for A in this table was changed.  With the hash MMU, the entry says
 * whether there is a translation; otherwise translations come only from walks.
 */
inline flush_tlb(t)
{
#ifdef HASH
	if
	:: hashed[t] -> hashed[t] = false; translation = EMPTY
	:: else
	fi
#else
	skip
#endif
}

/* update_mmu_cache_range() */
inline insert_translation(t)
{
#ifdef HASH
	translation = pte[t];
	hashed[t] = true
#else
	skip
#endif
}

/* === A fault that writes to A ============================================= */

#if defined(HASH) && !defined(NO_IRQS_OFF)
#define set_irqs_off(value)	irqs_off[me] = value
#else
#define set_irqs_off(value)	skip
#endif

#ifndef NO_RCU
#define enter_rcu()		rcu[me] = true
#else
#define enter_rcu()		skip
#endif

#define look_at_number(otherwise)	\
	vma_used(v);			\
	if				\
	:: vma_seq[v] != seq -> goto otherwise	\
	:: else				\
	fi

/* Memory: available at once, or by sleeping outside the RCU section. */
inline get_folio()
{
	if
	:: true
	:: true ->
		rcu[me] = false;
		enter_rcu();
#ifndef NO_FIND
		if
		:: tree != v -> goto out
		:: else
		fi;
		look_at_number(out)
#else
		skip
#endif
	fi
}

inline lock_table()
{
#ifdef EARLY_SEQUENCE
	look_at_number(out);
#endif
	set_irqs_off(true);
#ifndef NO_WALK
	table = pmd;
#endif
	if
	:: table == NONE -> set_irqs_off(false); goto out
	:: else
	fi;
	table_used(table);
#if !defined(HASH) || defined(SPIN_LOCK)
	lock(table);
#else
	if
	:: atomic { !locked[table] -> locked[table] = true }
	:: locked[table] -> set_irqs_off(false); goto out
	fi;
#endif
	table_used(table);
#ifndef NO_PMD_SAME
	if
	:: pmd != table -> goto out_locked
	:: else
	fi;
#endif
#if !defined(NO_SEQUENCE) && !defined(EARLY_SEQUENCE)
	look_at_number(out_locked);
#endif
#ifndef IRQS_STAY_OFF
	set_irqs_off(false);
#endif
	entry = pte[table];
	table_used(table)
}

inline unlock_table()
{
	set_irqs_off(false);
	locked[table] = false
}

/* Sets the entry to @new, and asserts that this is allowed. */
inline install(new)
{
	table_used(table);
	assert(!gone[table]);
	assert(!forking);
	assert(pte[table] == entry);
#ifdef LIVE_VMA
	vma_used(v);
	assert(vma_anon[v] == anon);
#endif
	assert(copy_anon == anon);
	pte[table] = new;
	insert_translation(table)
}

proctype fault(byte me)
{
	byte v, seq, table, entry, old;
	/* The snapshot. */
	byte copy_anon;
	bool copy_writable, copy_detached;

	enter_rcu();

	/* spf_snapshot_vma() */
	v = tree;
	if
	:: v == NONE -> goto out
	:: else
	fi;
	vma_used(v);
	seq = vma_seq[v];
#ifndef NO_LOCKED
	if
	:: mm_seq <= seq -> goto out
	:: else
	fi;
#endif
	vma_used(v);
	copy_writable = vma_writable[v];
	copy_anon = vma_anon[v];
	copy_detached = vma_detached[v];
	look_at_number(out);
#ifndef NO_DETACHED
	if
	:: copy_detached -> goto out
	:: else
	fi;
#endif

	/* spf_check_snapshot(), map_anon() and change_present() */
	if
	:: !copy_writable || !copy_anon -> goto out
	:: else
	fi;

	/* spf_peek() */
	set_irqs_off(true);
	table = pmd;
	if
	:: table == NONE -> set_irqs_off(false); goto out
	:: else
	fi;
	table_used(table);
	entry = pte[table];
	set_irqs_off(false);
	if
	:: entry != EMPTY -> goto present
	:: else
	fi;

	/* map_anon() */
	get_folio();
	lock_table();
	if
	:: entry == EMPTY -> install(OWN)
	:: else
	fi;
	unlock_table();
	goto out;

present:
	/* change_present() */
	lock_table();
	if
	:: entry != SHARED -> unlock_table(); goto out
	:: entry == SHARED -> install(OWN); unlock_table(); goto out	/* reuse */
	:: entry == SHARED				/* others map it: copy */
	fi;
#ifndef NO_NOTIFIER
	if
	:: notifiers -> unlock_table(); goto out
	:: else
	fi;
#endif
	old = entry;
	unlock_table();

	/* copy_mapped_page() */
	get_folio();
	lock_table();
#ifndef NO_NOTIFIER
	if
	:: notifiers -> unlock_table(); goto out
	:: else
	fi;
#endif
#ifdef NO_PTE_SAME
	if
	:: entry != EMPTY ->
		entry = old;
#else
	if
	:: entry == old ->
#endif
		/* ptep_clear_flush() */
#ifdef HASH
		assert(!irqs_off[me]);
#endif
		flush_tlb(table);
		install(OWN);
		assert(!secondary)
	:: else
	fi;
	unlock_table();
	goto out;

out_locked:
	unlock_table();
out:
	rcu[me] = false;
	faults_done++
}

/* === Operations of others ================================================= */

#define mmap_write_lock()	mm_seq++
#define mmap_write_unlock()	mm_seq++
#define mmap_write_downgrade()	mm_seq++
#define vma_start_write(v)	vma_seq[v] = mm_seq

inline write_protect(t)
{
	if
	:: writable(pte[t]) -> pte[t] = SHARED; flush_tlb(t)
	:: else
	fi
}

inline free_vma(v)
{
#ifdef NO_VMA_WAIT
	vma_freed[v] = true
#else
	vma_leaving[v] = true
#endif
}

inline free_table(t)
{
#if defined(NO_TABLE_WAIT)
	wait_for_cpus();
	freed[t] = true
#elif defined(NO_BATCH_WAIT)
	if
	:: true -> leaving[t] = true
	:: true -> wait_for_cpus(); freed[t] = true
	fi
#else
	leaving[t] = true
#endif
}

/* The write section ends before the memory is freed. */
inline munmap()
{
	mmap_write_lock();
	vma_start_write(v);
#ifndef LATE_DETACH
	vma_detached[v] = true;
#endif
	tree = NONE;
	mmap_write_downgrade();
	t = pmd;
	if
	:: t != NONE ->
#ifndef NO_PASS
		lock(t);
#endif
		pte[t] = EMPTY;
		flush_tlb(t);
#ifndef NO_PASS
		unlock(t)
#endif
	:: else
	fi;
#ifdef OLD_DEPOSIT
	/* zap_deposited_table() */
	if
	:: deposit != NONE -> freed[deposit] = true
	:: else
	fi;
#endif
#ifdef LATE_DETACH
	vma_detached[v] = true;
#endif
	vma_anon[v] = 0;
	anon = 0;
	if
	:: t != NONE && !neighbour ->
		pmd = NONE;
		assert(pte[t] == EMPTY);
		free_table(t)
	:: else
	fi;
	free_vma(v)
}

/* Memory of a freed VMA; a new anon_vma. */
inline mmap()
{
	mmap_write_lock();
	vma_freed[v] = false;
	vma_detached[v] = false;
	if
	:: true -> vma_writable[v] = true
	:: true -> vma_writable[v] = false
	fi;
	anon = mm_seq + 1;
	vma_anon[v] = anon;
#ifdef NO_NEW_NUMBER
	vma_seq[v] = 0;		/* as vm_area_alloc() leaves it, each time */
#else
	vma_start_write(v);
#endif
	tree = v;
	mmap_write_unlock()
}

inline mprotect()
{
	mmap_write_lock();
#if !defined(NO_VMA_LOCK) && !defined(LATE_VMA_LOCK)
	vma_start_write(v);
#endif
	vma_writable[v] = !vma_writable[v];
	t = pmd;
	if
	:: t != NONE && !vma_writable[v] ->
		lock(t);
		write_protect(t);
		unlock(t)
	:: else
	fi;
#ifdef LATE_VMA_LOCK
	vma_start_write(v);
#endif
	mmap_write_unlock()
}

/* Data written to A between its copy and the end must be in the child. */
inline fork()
{
	mmap_write_lock();
	vma_start_write(v);
	t = pmd;
	if
	:: t != NONE ->
		lock(t);
		write_protect(t);
		forking = true;
		unlock(t)
	:: else -> forking = true
	fi;
	forking = false;
	mmap_write_unlock()
}

/*
 * MREMAP_DONTUNMAP of a whole table: the VMA stays, its anon_vma moves along.
 * With the hash MMU entries are moved one by one.
 */
inline mremap()
{
	mmap_write_lock();
	vma_start_write(v);
	t = pmd;
#ifndef NO_DRAIN
	lock(t);
	unlock(t);
#endif
	pmd = NONE;
	gone[t] = true;
	vma_anon[v] = 0;
	mmap_write_unlock()
}

/* The adjacent VMA takes over.  No page table is accessed. */
inline merge()
{
	mmap_write_lock();
	vma_start_write(v);
	vma_start_write(1 - v);
	vma_anon[1 - v] = vma_anon[v];
	vma_writable[1 - v] = vma_writable[v];
	vma_detached[v] = true;
	tree = 1 - v;
	vma_anon[v] = 0;
	mmap_write_unlock();
	free_vma(v)
}

/*
 * Collapse to a huge page, undone if that fails.  A fresh table is deposited,
 * so the old one is only freed.  Translations are flushed without the page
 * table lock: a fault that holds the lock could insert one afterwards.
 */
inline collapse()
{
	mmap_write_lock();
	vma_start_write(v);
	t = pmd;
#if !defined(NO_HASH_DRAIN) && !defined(LATE_HASH_DRAIN)
	lock(t);
	unlock(t);
#endif
	pmd = NONE;
	wait_for_cpus();
	flush_tlb(t);
#ifdef LATE_HASH_DRAIN
	lock(t);
	unlock(t);
#endif
	lock(t);
	gone[t] = true;
	unlock(t);
	if
	:: true ->
#ifdef HASH
		/* The pages are copied.  Then clear and flush the entries. */
		collapsing = true;
		collapsing = false;
#endif
#ifdef OLD_DEPOSIT
		deposit = t
#else
		free_table(t)
#endif
	:: true -> gone[t] = false; pmd = t
	fi;
	mmap_write_unlock()
}

/* A table of a file that now has a huge page: takes only page table locks. */
inline retract()
{
	t = pmd;
	lock(t);
	if
	:: pte[t] == EMPTY ->
		pmd = NONE;
		gone[t] = true;
		wait_for_cpus();
		unlock(t);
		free_table(t)
	:: else -> unlock(t)
	fi
}

/*
 * __mmu_notifier_register(): others see that there are notifiers before it
 * waits, and can insert their own after it has waited.
 */
inline register_notifier()
{
	mmap_write_lock();
	notifiers = true;
#ifdef EARLY_ITREE
	itree = true;
#endif
#ifndef NO_SYNC
	wait_for_rcu();
#endif
	/* mm_take_all_locks() */
	vma_start_write(v);
	itree = true;
	secondary = true;
	mmap_write_unlock()
}

/* With mmap_lock or the VMA locked for reading. */
inline madvise_dontneed()
{
	t = pmd;
	lock(t);
	pte[t] = EMPTY;
	flush_tlb(t);
	unlock(t)
}

/* Other threads; or the regular fault of this thread. */
inline other_fault()
{
	t = pmd;
	lock(t);
	if
	:: pte[t] == EMPTY || pte[t] == SHARED ->
		flush_tlb(t);
		pte[t] = OTHERS;
		insert_translation(t)
	:: else
	fi;
	unlock(t)
}

proctype others()
{
	byte v, t, actions;

	do
	:: actions < ACTIONS ->
		actions++;
		v = tree;
		if
		:: tree != NONE -> munmap()
		:: tree != NONE -> mprotect()
		:: tree != NONE -> fork()
#ifndef HASH
		:: tree != NONE && pmd != NONE && !neighbour -> mremap()
#endif
		:: tree != NONE && vma_writable[v] == vma_writable[1 - v] &&
		   !vma_detached[1 - v] -> merge()
		:: tree != NONE && pmd != NONE -> collapse()
		:: tree != NONE && !notifiers -> register_notifier()
		:: tree != NONE && pmd != NONE -> retract()
		:: tree != NONE && pmd != NONE -> madvise_dontneed()
		:: tree != NONE && pmd != NONE && vma_writable[v] -> other_fault()
		:: tree == NONE && (vma_freed[0] || vma_freed[1]) ->
			v = (vma_freed[0] -> 0 : 1);
			mmap()
		:: else -> break
		fi
	:: true -> break
	od;
	actions_done = true
}

/* A fault in the other VMA may install a table at any moment. */
proctype populate()
{
end:	atomic { neighbour && pmd == NONE -> pmd = 1 }
}

/* mmu_interval_notifier_insert() by another thread, without mmap_lock. */
proctype insert_notifier()
{
end:	atomic { itree -> secondary = true }
}

#ifdef HASH
/* A thread stores to A.  It does not walk, so it only needs a translation. */
proctype store()
{
end:	do
	:: atomic { writable(translation) -> assert(!forking && !collapsing) }
	od
}
#endif

/*
 * Objects without users are reused for something else.  A section with
 * interrupts off is also an RCU section.
 */
#ifdef HASH
#define wait_for_walkers()	wait_for_cpus()
#else
#define wait_for_walkers()	wait_for_rcu()
#endif

proctype memory()
{
end:	do
	:: vma_leaving[0] -> wait_for_rcu(); vma_leaving[0] = false; vma_freed[0] = true
	:: vma_leaving[1] -> wait_for_rcu(); vma_leaving[1] = false; vma_freed[1] = true
	:: leaving[0] -> wait_for_walkers(); leaving[0] = false; freed[0] = true
	:: leaving[1] -> wait_for_walkers(); leaving[1] = false; freed[1] = true
	od
}

init
{
	atomic {
		mm_seq = 2;
		vma_writable[0] = true;
		vma_writable[1] = true;
		vma_anon[0] = anon;
		vma_anon[1] = anon;
		if
		:: true
		:: true -> pte[0] = SHARED
#ifdef HASH
		:: true -> pte[0] = SHARED; insert_translation(0)
#endif
		:: true -> pmd = NONE; neighbour = true
		:: true -> neighbour = true
		fi;
		run others();
		run populate();
		run insert_notifier();
		run memory();
#ifdef HASH
		run store();
#endif
		run fault(0);
#if FAULTS > 1
		run fault(1);
#endif
	}
	faults_done == FAULTS && actions_done;
	/* Nothing is mapped in a hole; nothing is writable that must not be. */
	assert(tree != NONE || pmd == NONE || pte[pmd] == EMPTY);
	assert(tree == NONE || vma_writable[tree] || pmd == NONE || !writable(pte[pmd]));
#ifdef HASH
	assert(translation == EMPTY || (pmd != NONE && translation == pte[pmd]))
#endif
}
