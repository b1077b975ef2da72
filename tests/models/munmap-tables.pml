/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise munmap: how step 2 takes a page table away ("Page tables" in
 * mm/faultline/munmap.c), while rmap looks at it, khugepaged retracts it, and a
 * driver, which does not test the mark, maps a page.
 *
 * One PMD entry, and two tables that it can point to.  A CPU keeps what it has
 * read of the PMD entry in its TLB.
 *
 * Mistakes, each of which spin must find:
 *
 *   NO_RCU      a table is freed without a grace period
 *   FREE_EARLY  a table is freed before the TLB flush
 *   NOT_EMPTY   a table is taken away although it has been filled again
 *   NO_PML      it is taken away without the lock of the PMD entry
 *   NO_LOOK     khugepaged does not look again with that lock held
 *   NO_RECHECK  the driver does not look again with the table locked
 */

#define TABLES	3		/* 0: none */
#define RMAP	1
#define RETRACT	2
#define DRIVER	4
#define CPU	8
#define ZAP	16

byte pmd = 1;
byte entry[TABLES];
bool ptl[TABLES];		/* the lock of a table */
bool pml;			/* the lock of the PMD entry */
bool freed[TABLES];
byte tlb;			/* the table that the CPU walks */

byte readers;			/* in RCU read sections, a bit for each process */
byte ended;			/* processes that have ended */
short nr = 1;			/* mm_nr_ptes() */

inline lock(l)
{
	atomic { !l -> l = true }
}

/* pte_unmap_unlock() */
inline unmap_unlock(t, me)
{
	ptl[t] = false;
	readers = readers & ~me
}

/* pte_offset_map_lock(): t is 0 if there is no table any more. */
inline map_lock(t, me)
{
	readers = readers | me;
	t = pmd;
	if
	:: t ->
		lock(ptl[t]);
		assert(!freed[t]);
		if
		:: pmd != t -> unmap_unlock(t, me); t = 0
		:: else
		fi
	:: else -> readers = readers & ~me
	fi
}

/* The table is unlinked: free it when nobody can look at it. */
inline free_table(t)
{
#ifndef NO_RCU
	seen = readers;
	!(readers & seen);
#endif
	d_step { freed[t] = true; seen = 0 }
}

/* Step 2, and step 3 when all others are done. */
proctype munmap()
{
	byte t, taken, seen;

	map_lock(t, ZAP);
	if
	:: t -> entry[t] = 0
	:: else
	fi;
	/* zap_pte_range() may leave the table for a while. */
	if
	:: t -> unmap_unlock(t, ZAP); map_lock(t, ZAP)
	:: true
	fi;
	if
	:: t ->
		if
#ifndef NOT_EMPTY
		:: !entry[t] ->
#else
		:: true ->
#endif
#ifndef NO_PML
			if
			:: atomic { !pml -> pml = true };
				taken = t;
				pmd = 0;
				pml = false
			:: pml
			fi
#else
			taken = t;
			pmd = 0
#endif
#ifndef NOT_EMPTY
		:: else
#endif
		fi;
		unmap_unlock(t, ZAP);
		if
		:: taken -> nr--
		:: else
		fi
	:: else
	fi;
#ifndef FREE_EARLY
	tlb = 0;
#endif
	if
	:: taken -> free_table(taken)
	:: else
	fi;
#ifdef FREE_EARLY
	tlb = 0;
#endif

	/* Step 3 */
	ended == RMAP + RETRACT + DRIVER + CPU;
	atomic {
		if
		:: pmd -> entry[pmd] = 0; nr--; pmd = 0
		:: else
		fi;
		/* Nothing is left anywhere, and each table was counted once. */
		assert(!entry[1] && !entry[2]);
		assert(nr == 0)
	}
}

/* page_vma_mapped_walk(): it does not look at the PMD entry again. */
proctype rmap()
{
	byte t;

	readers = readers | RMAP;
	t = pmd;
	if
	:: t ->
		assert(!freed[t]);
		lock(ptl[t]);
		assert(!freed[t]);
		ptl[t] = false
	:: else
	fi;
	atomic { readers = readers & ~RMAP; ended = ended + RMAP }
}

/* retract_page_tables(): the file's pages are gone from the table. */
proctype retract()
{
	byte t, seen;
	bool taken;

	t = pmd;
	if
	:: t ->
		lock(pml);
		if
#ifndef NO_LOOK
		:: pmd == t ->
#else
		:: true ->
#endif
			lock(ptl[t]);
			if
			:: !entry[t] -> pmd = 0; taken = true
			:: else
			fi;
			ptl[t] = false
#ifndef NO_LOOK
		:: else
#endif
		fi;
		pml = false
	:: else
	fi;
	if
	:: taken ->
		/* pmdp_collapse_flush() */
		tlb = 0;
		nr--;
		free_table(t)
	:: else
	fi;
	ended = ended + RETRACT
}

/* insert_page() */
proctype driver()
{
	byte t;

	/* pte_alloc() */
	if
	:: !pmd ->
		lock(pml);
		if
		:: !pmd -> atomic { pmd = 2; nr++ }
		:: else
		fi;
		pml = false
	:: else
	fi;
#ifndef NO_RECHECK
	map_lock(t, DRIVER);
#else
	readers = readers | DRIVER;
	t = pmd;
	if
	:: t -> lock(ptl[t])
	:: else -> readers = readers & ~DRIVER
	fi;
#endif
	if
	:: t -> entry[t] = 1; unmap_unlock(t, DRIVER)
	:: else
	fi;
	ended = ended + DRIVER
}

proctype cpu()
{
	byte n;

	do
	:: n < 2 ->
		n++;
		if
		:: atomic { pmd -> tlb = pmd; assert(!freed[tlb]) }
		:: atomic { tlb -> assert(!freed[tlb]) }
		:: true
		fi
	:: else -> break
	od;
	ended = ended + CPU
}

init
{
	atomic {
		if
		:: entry[1] = 1
		:: true
		fi;
		run munmap();
		run rmap();
		run retract();
		run driver();
		run cpu()
	}
}
