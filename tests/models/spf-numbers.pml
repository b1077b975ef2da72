/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The numbers of speculative page faults when they wrap: mm_lock_seq, of the
 * mm, and vm_lock_seq, of a VMA.  See spf.pml for all the rest.
 *
 * Here they have 3 bits instead of 32.  In the beginning they can be any: the
 * VMA may not have been write-locked for so long that numbers wrapped.  Then
 * there are sections of writers, more of them than it takes for numbers to
 * come back, and some change the VMA.  A fault must not take its copy for good
 * if the VMA is being changed, or was.
 *
 * What nobody can see in the numbers is a whole turn of them.  So a fault looks
 * at the clock, and this model assumes of writers what the comment at MAX_AGE
 * in spf.c does: that they do not make a whole turn in that time.
 *
 * vma_start_write() makes it more difficult: it does nothing if the VMA has the
 * number of this section.  An old number can be the same by accident.
 *
 * Mistakes, of which spin has to find each:
 *
 *   ONLY_EQUAL    the VMA counts as write-locked if the numbers are the same,
 *                 and not if that of the VMA seems to be ahead
 *   NO_SECTIONS   does not look how far mm_lock_seq has got
 *   NO_AGE        does not look at the clock
 *   NO_NUMBER     does not look at the number of the VMA in the end
 */

#define TURN		8
#define HALF		(TURN / 2)
#define MAX_SECTIONS	(TURN / 4)
/* Writers end some time after a whole turn. */
#define STEPS		(TURN + MAX_SECTIONS + 2)

#define ahead(a, b)	((TURN + (a) - (b)) % TURN)

byte mm_seq;
byte vma_seq;
byte steps;			/* of mm_seq, in all */
byte began;			/* steps when the fault began */
bool running;			/* the fault has its copy */
bool changed;			/* the VMA, since the fault took its copy */
bool changing;			/* the VMA, now */

/* An even number in a section too: parity is nothing that a fault looks at. */
proctype writer()
{
	do
	:: steps < STEPS ->
		atomic { mm_seq = (mm_seq + 1) % TURN; steps++ };
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
		atomic { changing = false; mm_seq = (mm_seq + 1) % TURN; steps++ }
	:: true -> break
	od
}

proctype fault()
{
	byte seq, mm;
	bool good;

	/* take_copy() */
	seq = vma_seq;
	atomic { mm = mm_seq; began = steps };
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

	/* copy_is_good(), with the lock of the table: at once, see spf.pml */
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
#ifndef NO_AGE
		if
		:: steps - began >= TURN -> good = false
		:: else
		fi;
#endif
		if
		:: good -> assert(!changed)
		:: else
		fi
	};
out:
	skip
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
