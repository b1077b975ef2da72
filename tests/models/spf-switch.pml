/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switching speculative page faults on and off: spf_apply() in
 * mm/faultline/spf.c.  See spf.pml for the protocol.
 *
 * There are two keys.  Faults look at spf_key before they try.  Writers look
 * at spf_writer_key before they wait for faults: mremap() that moves a table,
 * and the registration of a notifier.  With both off nobody waits for nothing.
 *
 * A key is one variable here: static_branch_enable() and _disable() return
 * when all CPUs have the new code.  Where keys are variables for the kernel
 * too, their order is a question of barriers; see litmus/spf-switch-*.
 *
 * Mistakes, of which spin has to find each:
 *
 *   ON_ORDER      switching on: faults before writers
 *   OFF_ORDER     switching off: writers before faults
 *   NO_GRACE      switching off does not wait for faults that have begun
 *   KEY_OUTSIDE   a fault looks at the key before it is in its RCU section
 *   NO_LOOK       a fault that has slept does not look at the key again
 *   LATE_NUMBER   a writer looks at its key before it write-locks the VMA
 */

#define SWITCHES	3
#define ACTIONS		2
#define TRIES		2

bool key;			/* spf_key */
bool writer_key;		/* spf_writer_key */

byte mm_seq = 2;
byte vma_seq;
bool locked;			/* the PTL */
bool notifiers;
bool rcu;			/* the fault is in an RCU section */

/* For assertions. */
bool gone;			/* the table is being moved */
bool secondary;			/* a secondary MMU relies on being notified */

inline switch_on()
{
#ifdef ON_ORDER
	key = true;
	writer_key = true
#else
	writer_key = true;
	key = true
#endif
}

inline synchronize_rcu()
{
#ifndef NO_GRACE
	!rcu
#else
	skip
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
	synchronize_rcu();
	writer_key = false
#endif
}

/* Any number of times, from on or from off. */
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

inline move_table()
{
	mm_seq++;
#ifdef LATE_NUMBER
	wait = writer_key;
	vma_seq = mm_seq;
#else
	vma_seq = mm_seq;
	wait = writer_key;
#endif
	if
	:: wait ->
		atomic { !locked -> locked = true };
		locked = false
	:: else
	fi;
	gone = true;
	/* Back at its place, for the next time. */
	gone = false;
	mm_seq++
}

inline register_notifier()
{
	mm_seq++;
	vma_seq = mm_seq;
	notifiers = true;
	wait = writer_key;
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
	byte n;

	do
	:: n < ACTIONS ->
		n++;
		if
		:: true -> move_table()
		:: !notifiers -> register_notifier()
		fi
	:: true -> break
	od
}

proctype fault()
{
	byte seq, n;
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
		/* take_copy() */
		seq = vma_seq;
		if
		:: mm_seq <= seq -> goto next
		:: else
		fi;
		/* get_folio(), find_again() */
		if
		:: true
		:: true ->
			rcu = false;
			rcu = true;
#ifndef NO_LOOK
			if
			:: !key -> goto next
			:: else
			fi
#endif
		fi;
		/* lock_table() */
		if
		:: atomic { !locked -> locked = true }
		:: locked -> goto next
		fi;
		if
		:: vma_seq == seq && !notifiers ->
			/* The entry changes here. */
			assert(!gone);
			assert(!secondary)
		:: else
		fi;
		locked = false;
next:
		rcu = false
	:: true -> break
	od
}

init
{
	atomic {
		if
		:: true -> key = true; writer_key = true
		:: true
		fi;
		run admin();
		run writer();
		run fault()
	}
}
