/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The numbers of speculative page faults when they wrap: mm_lock_seq, of the
 * mm, and vm_lock_seq, of a VMA.  See spf.pml for all the rest.
 *
 * Here they have 3 bits instead of 32.  Only their difference counts, and in the
 * beginning it can be any: the VMA may not have been write-locked for so long
 * that numbers wrapped.  Then there are sections of writers, more of them than
 * it takes for numbers to come back, and some change the VMA.  A fault must not
 * take its copy for good if the VMA is being changed, or was.
 *
 * What the numbers do not show is a whole turn of them, 2^31 sections, which
 * take minutes at the least.  A fault that keeps its CPU is not as slow as that:
 * here writers take at most RUNNING steps while it does.  It may lose the CPU
 * for any time, and then the number of its context switches changes.  Or it
 * sleeps for memory, and looks at the clock: if that took less than MAX_AGE,
 * here writers took at most SLEEPING steps.
 *
 * vma_start_write() makes it more difficult: it does nothing if the VMA has the
 * number of this section.  An old number can be the same by accident.
 *
 * Mistakes, of which spin has to find each:
 *
 *   ONLY_EQUAL    the VMA counts as write-locked if the numbers are the same,
 *                 and not if that of the VMA seems to be ahead
 *   NO_SECTIONS   does not look how far mm_lock_seq has got
 *   NO_NUMBER     does not look at the number of the VMA in the end
 *   NO_SWITCHES   does not look whether it has lost the CPU
 *   LATE_COUNT    counts context switches only when it has read the numbers
 *   EARLY_CHECK   compares that when it has not got the lock of the table, and
 *                 may lose the CPU
 *   ONLY_AFTER    compares only what was since it slept
 *   LATE_CLOCK    looks at the clock when it has compared, before it sleeps
 *   EARLY_CLOCK   looks at it again before it counts anew
 *   NO_AGE        does not look at the clock
 */

#define TURN		8
#define HALF		(TURN / 2)
#define MAX_SECTIONS	(TURN / 4)
/* Before and after the sleep, and in it; all three are less than a turn. */
#define RUNNING		2
#define SLEEPING	2
/* Writers end some time after a whole turn. */
#define STEPS		(TURN + MAX_SECTIONS + 2)

#define ahead(a, b)	((TURN + (a) - (b)) % TURN)

byte mm_seq;
byte vma_seq;
byte steps;			/* of mm_seq, in all */
byte since;			/* steps when the fault got its CPU */
bool on_cpu;			/* the fault has one */
bool switched;			/* it has lost it since it counted */
bool running;			/* it has its copy */
bool changed;			/* the VMA, since the fault took its copy */
bool changing;			/* the VMA, now */

#define fast_enough	(!on_cpu || steps - since < RUNNING)

/* An even number in a section too: parity is nothing that a fault looks at. */
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
	atomic { on_cpu = false; switched = true };
	atomic { on_cpu = true; since = steps }
}

inline may_lose_cpu()
{
	if
	:: true
	:: true -> lose_cpu()
	fi
}

inline look_at_count()
{
#ifndef NO_SWITCHES
	if
	:: switched -> goto out
	:: else
	fi
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
	switched = false;
	may_lose_cpu();
	seq = vma_seq;
	may_lose_cpu();
	mm = mm_seq;
	may_lose_cpu();
#ifdef LATE_COUNT
	switched = false;
#endif
#ifdef ONLY_EQUAL
	if
	:: seq == mm -> goto out
#else
	if
	:: ahead(mm, seq) == 0 || ahead(mm, seq) >= HALF -> goto out
#endif
	:: else
	fi;
	/* From here on, what is copied has to stay. */
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
	may_lose_cpu();

	/* get_folio() */
	if
	:: true
	:: true ->
#ifndef LATE_CLOCK
		clock = steps;
#endif
		may_lose_cpu();
#ifndef ONLY_AFTER
		look_at_count();
#endif
		may_lose_cpu();
#ifdef LATE_CLOCK
		clock = steps;
#endif
		lose_cpu();
#ifdef EARLY_CLOCK
		look_at_clock();
#endif
		may_lose_cpu();
		switched = false;
		may_lose_cpu();
#ifndef EARLY_CLOCK
		look_at_clock()
#else
		skip
#endif
	fi;
	may_lose_cpu();
#ifdef EARLY_CHECK
	look_at_count();
	may_lose_cpu();
#endif

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
#ifndef EARLY_CHECK
		look_at_count();
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
