/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switching speculative page faults on and off: spf_apply() in
 * mm/faultline/spf.c.  See spf.pml for the protocol.
 *
 * There are two keys.  Faults check spf_key before they try.  Writers check
 * spf_writer_key before they wait for faults: mremap() when it moves a table,
 * the registration of a notifier, and all writers that free a table.  With both
 * keys off no writer waits for a fault, and a table is freed after an IPI at
 * most, which an RCU section does not delay.
 *
 * A writer checks its key after it has write-locked the VMA.  If it sees the
 * key off, then a fault that sees spf_key on also sees the writer's sequence
 * number, in the same RCU section, before it walks: in spf_snapshot_vma() or in
 * revalidate_vma().  Collapse relies on this, because it checks the key before
 * it clears the PMD entry; munmap() checks afterwards.
 *
 * spf_key is one variable here: a fault that reads it in its RCU section and
 * sees an old value is waited for like an earlier one.  As to spf_writer_key, a
 * CPU may have fetched the old code before static_branch_enable() and run it
 * afterwards, but no longer after a grace period.  Where keys are variables in
 * the kernel as well, their order is a matter of barriers; see
 * litmus/spf-switch-*.
 *
 * Mistakes, each of which spin must find:
 *
 *   ON_ORDER       switching on: faults before writers
 *   NO_GRACE_ON    switching on does not wait for writers with old code
 *   OFF_ORDER      switching off: writers before faults
 *   NO_GRACE_OFF   switching off does not wait for faults in flight
 *   KEY_OUTSIDE    a fault checks the key before it enters its RCU section
 *   NO_LOOK        a fault that has slept does not check the key again
 *   NO_NUMBER      nor the number of the VMA, until it has the lock
 *   LATE_NUMBER    mremap() checks its key before it write-locks the VMA
 *   EARLY_FRESH    so does collapse, to decide that it needs no fresh table
 *   NO_BATCH_WAIT  munmap() frees a table at once, with its key on
 *   OLD_DEPOSIT    collapse deposits the table, with its key on; a deposited
 *                  table is freed at once
 */

#define SWITCHES	3
#define ACTIONS		2
#define TRIES		2
#define NONE		(ACTIONS + 1)

bool key;			/* spf_key */
bool writer_key;		/* spf_writer_key */
bool writer_code;		/* what a writer sees of it */

byte mm_seq = 2;
byte vma_seq;
byte pmd;			/* the table; a different one each time */
bool locked[ACTIONS + 1];	/* the page table lock */
bool freed[ACTIONS + 1];
bool notifiers;
bool rcu;			/* the fault is in an RCU section */

/* For assertions. */
bool gone;			/* the table is being moved */
bool secondary;			/* a secondary MMU relies on being notified */

#define lock(t)		atomic { !locked[t] -> locked[t] = true }
#define unlock(t)	locked[t] = false

inline synchronize_rcu()
{
	atomic { !rcu -> writer_code = writer_key }
}

inline switch_on()
{
#ifdef ON_ORDER
	key = true;
	writer_key = true;
	synchronize_rcu()
#else
	writer_key = true;
#ifndef NO_GRACE_ON
	synchronize_rcu();
#endif
	key = true
#endif
}

inline switch_off()
{
#ifdef OFF_ORDER
	writer_key = false;
	synchronize_rcu();
	key = false
#else
	key = false;
#ifndef NO_GRACE_OFF
	synchronize_rcu();
#endif
	writer_key = false
#endif
}

/* Any number of times, starting from on or off. */
proctype admin()
{
	byte n;

	do
	:: n < SWITCHES ->
		n++;
		if
		:: key -> switch_off()
		:: else -> switch_on()
		fi
	:: true -> break
	od
}

/* A CPU may fetch the new code at any moment. */
proctype fetch()
{
end:	do
	:: atomic { writer_code != writer_key -> writer_code = writer_key }
	od
}

inline move_table()
{
	mm_seq++;
#ifdef LATE_NUMBER
	wait = writer_code;
	vma_seq = mm_seq;
#else
	vma_seq = mm_seq;
	wait = writer_code;
#endif
	if
	:: wait -> lock(t); unlock(t)
	:: else
	fi;
	gone = true;
	/* Move it back, for the next time. */
	gone = false;
	mm_seq++
}

/* The table is out of the PMD entry; another one will be installed next. */
inline free_table()
{
	if
	:: wait -> !rcu
	:: else
	fi;
	freed[t] = true;
	pmd = t + 1
}

inline munmap()
{
	mm_seq++;
	vma_seq = mm_seq;
	lock(t);
	unlock(t);
	pmd = NONE;
#ifndef NO_BATCH_WAIT
	wait = writer_code;
#endif
	free_table();
	mm_seq++
}

/*
 * With its key on it needs a fresh table and frees the old one.  Otherwise the
 * old one is deposited, and may be freed at any time.
 */
inline collapse()
{
#ifdef EARLY_FRESH
	wait = writer_code;
#endif
	mm_seq++;
	vma_seq = mm_seq;
#if !defined(EARLY_FRESH) && !defined(OLD_DEPOSIT)
	wait = writer_code;
#endif
	pmd = NONE;
	lock(t);
	unlock(t);
	free_table();
	mm_seq++
}

inline register_notifier()
{
	mm_seq++;
	notifiers = true;
	wait = writer_code;
	if
	:: wait -> !rcu
	:: else
	fi;
	secondary = true;
	mm_seq++
}

proctype writer()
{
	bool wait;
	byte n, t;

	do
	:: n < ACTIONS ->
		n++;
		t = pmd;
		wait = false;
		if
		:: true -> move_table()
		:: true -> munmap()
		:: true -> collapse()
		:: !notifiers -> register_notifier()
		fi
	:: true -> break
	od
}

proctype fault()
{
	byte seq, n, t;
	bool on;

	do
	:: n < TRIES ->
		n++;
#ifdef KEY_OUTSIDE
		on = key;
		rcu = true;
#else
		rcu = true;
		on = key;
#endif
		if
		:: !on -> goto next
		:: else
		fi;
		/* spf_snapshot_vma() */
		seq = vma_seq;
		if
		:: mm_seq <= seq -> goto next
		:: else
		fi;
		/* get_folio(), revalidate_vma() */
		if
		:: true
		:: true ->
			rcu = false;
			rcu = true;
#ifndef NO_LOOK
			if
			:: !key -> goto next
			:: else
			fi;
#endif
#ifndef NO_NUMBER
			if
			:: vma_seq != seq -> goto next
			:: else
			fi
#else
			skip
#endif
		fi;
		/* spf_lock_table() */
		t = pmd;
		if
		:: t == NONE -> goto next
		:: else
		fi;
		lock(t);
		assert(!freed[t]);
		if
		:: pmd == t && vma_seq == seq && !notifiers ->
			/* The entry changes here. */
			assert(!gone);
			assert(!secondary);
			assert(!freed[t])
		:: else
		fi;
		unlock(t);
next:
		rcu = false
	:: true -> break
	od
}

init
{
	atomic {
		if
		:: true -> key = true; writer_key = true; writer_code = true
		:: true
		fi;
		run admin();
		run fetch();
		run writer();
		run fault()
	}
}
