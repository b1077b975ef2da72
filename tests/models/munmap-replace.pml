/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise mmap(MAP_FIXED): R1 to R6 of mm/faultline/munmap.c.
 *
 * A VMA of one page becomes a mapping without access at once, and loses the old page
 * later.  Others make it accessible, fork, write as debuggers, discard or unmap it
 * meanwhile.  Locks are as in munmap.pml.
 *
 * Mistakes, each of which spin must find:
 *
 *   NO_WRITE_LOCK    the VMA is marked without waiting for its readers
 *   NO_COMPLETE      mprotect() leaves the old page to the operation
 *   KEEP_MARK        it zaps the page, but leaves the mark
 *   COPY_OLD         fork() copies the page
 *   NO_FORCE_TEST    a debugger's access does not test the mark
 *   NO_OWNER         the zap does not test the mark
 *   REVIVE           the operation keeps a VMA that a munmap has marked as well
 *   FREE_EARLY       the page is freed before the TLB flush
 *   FLUSH_LATE       the TLB is flushed after the VMA has been unlocked
 *   UNCHARGE_EARLY   the charge ends when the VMA becomes the new mapping
 */

#define NONE	0
#define OLD	1		/* a page of the old mapping */
#define NEW	2		/* one of the new mapping */

bool mapped = true;
bool access = true;		/* the VMA allows it */
bool replaces, dead;		/* marks of an mmap() and of a munmap() */
byte entry = OLD;
byte tlb;
bool old_free;

bool writer;			/* mmap_lock */
byte readers;
bool vma_writer;		/* the VMA lock */
byte vma_readers;

byte charge = 1;		/* what the commit charge has */
byte vma_charge = 1;		/* the part of the VMA */
byte op_charge;			/* the part of the operation */

/* For assertions. */
bool converted;			/* it is the new mapping */
bool returned;			/* mmap() has */
bool opened;			/* mprotect() of the new mapping has returned */
bool stored;			/* a page of it has data of somebody */
bool removed;			/* it was unmapped, after it became the new one */

inline write_lock()
{
	atomic { !writer && !readers -> writer = true }
}

inline write_unlock()
{
	atomic {
		assert(charge == vma_charge + op_charge);
		assert(charge || entry != OLD);
		writer = false;
		vma_writer = false
	}
}

inline vma_start_write()
{
	vma_writer = true;
	!vma_readers
}

/* In one step: the page table lock, and a flush before that is released. */
inline zap_locked()
{
	atomic {
		if
		:: entry == OLD ->
			entry = NONE;
			tlb = NONE;
			old_free = true
		:: else
		fi
	}
}

/* A page fault fills the entry. */
inline fill()
{
	if
	:: converted -> entry = NEW
	:: else ->
		entry = OLD;
		old_free = false
	fi
}

proctype mmap()
{
	/* Step 1 */
	write_lock();
#ifndef NO_WRITE_LOCK
	vma_start_write();
#endif
	atomic {
		access = false;
		op_charge = vma_charge;
		vma_charge = 0;
		replaces = true;
		converted = true
	};
#ifdef UNCHARGE_EARLY
	charge = charge - op_charge;
	op_charge = 0;
#endif
	write_unlock();

	/* Step 2; it may leave anything to step 3. */
	if
	:: atomic { mapped && !vma_writer -> vma_readers++ };
#ifndef NO_OWNER
		if
		:: replaces ->
#endif
			assert(entry != NEW);
			entry = NONE;
#ifdef FREE_EARLY
			old_free = true;
#endif
#ifndef FLUSH_LATE
			tlb = NONE;
#endif
			vma_readers--;
#ifdef FLUSH_LATE
			tlb = NONE;
#endif
			old_free = true
#ifndef NO_OWNER
		:: else -> vma_readers--
		fi
#endif
	:: true
	fi;

	/* Step 3 */
	write_lock();
	if
	:: mapped && replaces ->
		vma_start_write();
		replaces = false;
#ifdef REVIVE
		dead = false;
#endif
		assert(entry != NEW);
		zap_locked()
	:: else
	fi;
	atomic {
		/* The page is on no account now, so nobody has it. */
		charge = charge - op_charge;
		op_charge = 0;
		returned = true;
		assert(dead || (entry != OLD && tlb != OLD))
	};
	write_unlock()
}

/* mprotect(), and who then uses what it has allowed. */
proctype protect()
{
	bool after, mine;

	write_lock();
	if
	:: mapped && !dead ->
		after = converted;
		vma_start_write();
		if
		:: replaces ->
#ifndef NO_COMPLETE
			zap_locked();
#endif
#ifndef KEEP_MARK
			replaces = false
#endif
		:: else
		fi;
		atomic {
			if
			:: after && !access ->
				charge++;
				vma_charge++;
				mine = true
			:: else
			fi;
			access = true
		};
		opened = after
	:: else
	fi;
	write_unlock();

	/* A store, by a page fault if there is no page. */
	if
	:: mine ->
		if
		:: atomic { !vma_writer && mapped -> vma_readers++ }
		:: !mapped -> goto out
		fi;
		atomic {
			if
			:: access && !replaces && !dead && entry == NONE ->
				entry = NEW;
				stored = true
			:: else
			fi;
			/* The fault does not fail, and does not go round forever. */
			assert(dead || entry != NONE)
		};
		vma_readers--
	:: else
	fi;
out:	skip
}

/* A load: from the TLB, or after a walk, or by a page fault. */
proctype user()
{
	byte n;

	do
	:: n < 2 ->
		n++;
		if
		:: atomic { tlb ->
			assert(!(tlb == OLD && old_free));
			assert(!(opened && tlb == OLD));
			assert(!(returned && !dead && tlb == OLD)) }
		:: atomic { entry -> tlb = entry }
		:: atomic { mapped && !vma_writer && access && entry == NONE ->
			vma_readers++ };
			if
			:: access && !replaces && !dead ->
				/* They do not change here. */
				atomic {
					if
					:: entry == NONE -> fill()
					:: else
					fi
				}
			:: else
			fi;
			vma_readers--
		:: true
		fi
	:: else -> break
	od
}

/* The child has the old mapping, or the new one. */
proctype fork()
{
	byte copy;

	write_lock();
	if
	:: mapped && !dead ->
		if
#ifndef COPY_OLD
		:: replaces -> copy = NONE
#endif
		:: else ->
			vma_start_write();
			copy = entry
		fi;
		assert(!(converted && copy == OLD))
	:: else
	fi;
	write_unlock()
}

/* FOLL_FORCE: it writes whatever the protection is, with mmap_lock for reading. */
proctype debugger()
{
	bool after;

	atomic { !writer -> readers++ };
	if
#ifndef NO_FORCE_TEST
	:: mapped && !dead && !replaces ->
#else
	:: mapped && !dead ->
#endif
		after = converted;
		atomic {
			if
			:: entry == NONE -> fill()
			:: else
			fi;
			/* Data that it writes after that stays. */
			assert(!(after && entry == OLD));
			stored = stored || after
		}
	:: else
	fi;
	readers--
}

/* MADV_DONTNEED, which does not look at the mark of an mmap(). */
proctype discard()
{
	if
	:: atomic { !vma_writer && mapped -> vma_readers++ };
		zap_locked();
		vma_readers--
	:: !mapped
	fi
}

/* munmap() */
proctype unmap()
{
	bool after, mine;

	write_lock();
	if
	:: mapped ->
		vma_start_write();
		after = converted;
		mine = true;
		dead = true
	:: else
	fi;
	write_unlock();
	write_lock();
	if
	:: mapped && dead ->
		vma_start_write();
		atomic {
			mapped = false;
			entry = NONE;
			tlb = NONE;
			old_free = true;
			charge = charge - vma_charge;
			vma_charge = 0
		}
	:: else
	fi;
	removed = after;
	write_unlock();
	assert(!mine || !mapped)
}

/* When all is over. */
proctype check()
{
	returned && !writer ->
	atomic {
		assert(!removed || !mapped);
		assert(op_charge == 0);
		assert(!(stored && mapped && entry == NONE))
	}
}

init
{
	atomic {
		run mmap();
		if
		:: true -> run protect()
		:: true -> run fork()
		:: true -> run debugger()
		:: true -> run discard()
		:: true -> run unmap()
		fi;
		if
		:: true -> run protect()
		:: true -> run unmap()
		:: true -> run debugger()
		:: true -> run user()
		fi;
		run user();
		run check()
	}
}
