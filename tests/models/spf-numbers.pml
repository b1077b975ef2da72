/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sequence numbers of speculative page faults when they wrap: mm_lock_seq
 * of the mm, and vm_lock_seq of a VMA.  See spf.pml for everything else.
 *
 * Here they have 3 bits instead of 32.  Only their difference matters, and its
 * initial value is arbitrary: the VMA may not have been write-locked for so
 * long that numbers wrapped.  Then writers run write sections, more than it
 * takes for a number to recur, and some change the VMA.  A fault must not
 * accept its snapshot if the VMA is being changed or has been changed.
 *
 * The numbers do not detect a full wrap, 2^31 sections, which take minutes at
 * least.  A fault in its RCU section keeps its CPU, because preemption is off,
 * and is never that slow: here writers take at most RUNNING steps meanwhile.
 * Outside the section, where it sleeps for memory, it may lose the CPU for any
 * time.  So it checks the clock: if that took less than MAX_SLEEP, writers took
 * at most SLEEPING steps here.
 *
 * vma_start_write() makes this harder: it does nothing if the VMA has the
 * number of the current section, and an old number may be equal by accident.
 *
 * Mistakes, each of which spin must find:
 *
 *   ONLY_EQUAL     treats the VMA as write-locked if the numbers are equal, but
 *                  not if the VMA's number seems to be ahead
 *   NO_SECTIONS    does not check how far mm_lock_seq has advanced
 *   NO_NUMBER      does not check the number of the VMA at the end
 *   PREEMPT        leaves preemption on in the section before the sleep
 *   PREEMPT_LATER  leaves it on in the section after the sleep
 *   LATE_CLOCK     reads the clock after it has left the section
 *   EARLY_CLOCK    reads the clock again before it enters the next section
 *   NO_AGE         does not check the clock
 */

#define TURN		8
#define HALF		(TURN / 2)
#define MAX_SECTIONS	(TURN / 4)
/* Before and after the sleep, and during it; in total less than a wrap. */
#define RUNNING		2
#define SLEEPING	2
/* Writers end some time after a full wrap. */
#define STEPS		(TURN + MAX_SECTIONS + 2)

#define ahead(a, b)	((TURN + (a) - (b)) % TURN)

byte mm_seq;
byte vma_seq;
byte steps;			/* of mm_seq, in total */
byte since;			/* steps when the fault got its CPU */
bool on_cpu;			/* the fault has a CPU */
bool running;			/* it has its snapshot */
bool changed;			/* the VMA, since the fault took its snapshot */
bool changing;			/* the VMA, now */

#define fast_enough	(!on_cpu || steps - since < RUNNING)

/* Even inside a section: a fault does not check the parity. */
proctype writer()
{
	do
	:: steps < STEPS ->
		atomic { fast_enough -> mm_seq = (mm_seq + 1) % TURN; steps++ };
		if
		:: true
		:: true ->
			/* vma_start_write() */
			if
			:: vma_seq != mm_seq -> vma_seq = mm_seq
			:: else
			fi;
			atomic { changed = running; changing = true }
		fi;
		/* The end of the section. */
		atomic {
			fast_enough ->
			changing = false;
			mm_seq = (mm_seq + 1) % TURN;
			steps++
		}
	:: true -> break
	od
}

inline lose_cpu()
{
	on_cpu = false;
	atomic { on_cpu = true; since = steps }
}

/* In the section before the sleep, or the only one. */
inline before()
{
#ifdef PREEMPT
	lose_cpu()
#else
	skip
#endif
}

/* In the section after the sleep. */
inline after()
{
#ifdef PREEMPT_LATER
	lose_cpu()
#else
	skip
#endif
}

inline look_at_clock()
{
#ifndef NO_AGE
	if
	:: steps - clock > SLEEPING -> goto out
	:: else
	fi
#else
	skip
#endif
}

proctype fault()
{
	byte seq, mm, clock;
	bool good;

	atomic { on_cpu = true; since = steps };

	/* spf_snapshot_vma() */
	seq = vma_seq;
	before();
	mm = mm_seq;
	before();
#ifdef ONLY_EQUAL
	if
	:: seq == mm -> goto out
#else
	if
	:: ahead(mm, seq) == 0 || ahead(mm, seq) >= HALF -> goto out
#endif
	:: else
	fi;
	/* From here on, the snapshot must stay valid. */
	atomic {
		running = true;
		if
		:: changing -> changed = true
		:: else
		fi
	};
	if
	:: vma_seq != seq -> goto out
	:: else
	fi;
	before();

	/* get_folio() */
	if
	:: true
	:: true ->
#ifndef LATE_CLOCK
		clock = steps;
#endif
		lose_cpu();
#ifdef LATE_CLOCK
		clock = steps;
		lose_cpu();
#endif
#ifdef EARLY_CLOCK
		look_at_clock();
		lose_cpu();
#endif
		after();
#ifndef EARLY_CLOCK
		look_at_clock();
#endif
		after()
	fi;

	/* snapshot_valid(), with the lock of the table: at once, see spf.pml */
	atomic {
		good = true;
#ifndef NO_NUMBER
		if
		:: vma_seq != seq -> good = false
		:: else
		fi;
#endif
#ifndef NO_SECTIONS
		if
		:: ahead(mm_seq, mm) >= MAX_SECTIONS -> good = false
		:: else
		fi;
#endif
		if
		:: good -> assert(!changed)
		:: else
		fi
	};
out:
	on_cpu = false
}

init
{
	atomic {
		do
		:: mm_seq < TURN - 1 -> mm_seq++
		:: break
		od;
		do
		:: vma_seq < TURN - 1 -> vma_seq++
		:: break
		od;
		run writer();
		run fault()
	}
}
