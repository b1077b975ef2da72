/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise munmap: the marks, locks and accounts of mm/faultline/munmap.c.
 *
 * Two pages, each with a VMA of its own, are unmapped by one operation, and the
 * upper one by a second operation as well.  A page can be mapped anew while this
 * goes on.  VMAs 1 and 2 are those of the beginning, 3 and 4 those mapped over
 * them.  Page table and TLB entries hold the number of their VMA.
 *
 * The VMA lock is held for writing from vma_start_write() until mmap_lock is
 * released; a reader that wants it meanwhile does not wait.
 *
 * Mistakes, each of which spin must find:
 *
 *   NO_WRITE_LOCK    a VMA is marked without waiting for its readers
 *   MARK_IN_PARTS    mmap_lock is released between the marks of two VMAs
 *   NO_FAULT_TEST    a page fault does not test the mark
 *   NO_REVALIDATE    khugepaged does not test it when it has mmap_lock again
 *   NO_OWNER         the zap does not test it
 *   NO_OWNER_FINISH  the unmap does not test it
 *   FREE_EARLY       pages are freed before the TLB flush
 *   FLUSH_LATE       the TLB is flushed after the VMA has been unlocked
 *   UNCHARGE_EARLY   a VMA is taken off the accounts when it is marked
 */

#define PAGES	2
#define VMAS	5
#define NEW(p)	((p) + 1 + PAGES)

byte tree[PAGES];		/* the VMA of each page, or 0 */
byte entry[PAGES];
byte tlb[PAGES];
byte mark[VMAS];		/* vma->munmap_pending */
bool locked_vma[VMAS];		/* VM_LOCKED */
bool freed[VMAS];		/* the page of the VMA is free */

bool writer;			/* mmap_lock */
byte readers;
bool vma_writer[VMAS];		/* the VMA lock */
byte vma_readers[VMAS];

/* The accounts. */
short total_vm = PAGES;
short locked_vm;

/* For assertions. */
bool done[2];			/* the operation has returned */
bool replaced[PAGES];		/* MAP_FIXED has returned */
byte id, page;			/* scratch, in atomic steps only */

#define mapped(p)	(tree[p] != 0)
#define locked(p)	(mapped(p) && locked_vma[tree[p]])

inline write_lock()
{
	atomic { !writer && !readers -> writer = true }
}

/* Nobody sees the accounts before: they must be right now, for dead VMAs too. */
inline write_unlock()
{
	atomic {
		assert(total_vm == mapped(0) + mapped(1));
		assert(locked_vm == locked(0) + locked(1));
		writer = false;
		vma_writer[1] = false;
		vma_writer[2] = false;
		vma_writer[3] = false;
		vma_writer[4] = false
	}
}

inline vma_start_write(v)
{
	vma_writer[v] = true;
	!vma_readers[v]
}

inline uncharge(v)
{
	atomic {
		total_vm--;
		locked_vm = locked_vm - locked_vma[v]
	}
}

/* munmap_section_mark() */
inline mark_vma(v)
{
	if
	:: v ->
#ifndef NO_WRITE_LOCK
		vma_start_write(v);
#endif
#ifdef UNCHARGE_EARLY
		uncharge(v);
#endif
		mark[v] = mark[v] | own
	:: else
	fi
}

/* section_zap(): the page goes when no TLB has it any more. */
inline zap(p, v)
{
	d_step {
		old = entry[p];
		/* Nobody else's page. */
		assert(!old || mark[old] & own);
		entry[p] = 0
	}
#ifdef FREE_EARLY
	freed[old] = old != 0;
#endif
#ifndef FLUSH_LATE
	tlb[p] = 0;
#endif
	vma_readers[v]--;
#ifdef FLUSH_LATE
	tlb[p] = 0;
#endif
	freed[old] = old != 0
}

/* Operation @op on the pages from @first on. */
proctype munmap(byte op; byte first)
{
	byte p, v, old, own;

	own = 1 << op;
	/* Step 1 */
	write_lock();
	p = first;
	do
	:: p < PAGES ->
		mark_vma(tree[p]);
#ifdef MARK_IN_PARTS
		write_unlock();
		write_lock();
#endif
		p++
	:: else -> break
	od;
	write_unlock();

	/* Step 2; it may leave anything to step 3. */
	p = first;
	do
	:: p < PAGES ->
		/* munmap_lock_vma() */
		v = 0;
		if
		:: atomic {
			tree[p] && !vma_writer[tree[p]] ->
			v = tree[p];
			vma_readers[v]++
		   };
#ifndef NO_OWNER
			if
			:: !(mark[v] & own) -> vma_readers[v]--
			:: else -> zap(p, v)
			fi
#else
			zap(p, v)
#endif
		:: true
		fi;
		p++
	:: else -> break
	od;

	/* Step 3 */
	write_lock();
	p = first;
	do
	:: p < PAGES ->
		v = tree[p];
		if
#ifndef NO_OWNER_FINISH
		:: v && mark[v] & own ->
#else
		:: v ->
#endif
			vma_start_write(v);
			uncharge(v);
			assert(v <= PAGES || mark[v] & own);
			tree[p] = 0;
			if
			:: entry[p] ->
				old = entry[p];
				entry[p] = 0;
				tlb[p] = 0;
				freed[old] = true
			:: else
			fi
		:: else
		fi;
		p++
	:: else -> break
	od;
	write_unlock();
	atomic {
		done[op] = true;
		/* The pages that it found are gone. */
		page = first;
		do
		:: page < PAGES ->
			assert(tree[page] != page + 1 && entry[page] != page + 1);
			page++
		:: else -> break
		od
	}
}

/* A new page: zeros, which must not appear in place of what was there. */
inline map(p, v)
{
	atomic {
		if
		:: !entry[p] ->
			assert(!mark[v]);
			entry[p] = v;
			freed[v] = false
		:: else
		fi
	}
}

/* A load in user space: from the TLB, or after a walk, or by a page fault. */
proctype user(byte p)
{
	byte n, v;

	do
	:: n < 2 ->
		n++;
		if
		:: atomic { tlb[p] ->
			/* Neither a free page nor one of the old mapping. */
			assert(!freed[tlb[p]]);
			assert(!(replaced[p] && tlb[p] != NEW(p))) }
		:: atomic { entry[p] -> tlb[p] = entry[p] }
		:: atomic {
			tree[p] && !vma_writer[tree[p]] && !entry[p] ->
			v = tree[p];
			vma_readers[v]++
		   };
#ifndef NO_FAULT_TEST
			if
			:: mark[v] -> vma_readers[v]--
			:: else ->
				map(p, v);
				vma_readers[v]--
			fi
#else
			map(p, v);
			vma_readers[v]--
#endif
		:: true
		fi
	:: else -> break
	od
}

/* mmap(MAP_FIXED) */
proctype replace(byte p)
{
	byte v, old;

	write_lock();
	v = tree[p];
	if
	:: v ->
		vma_start_write(v);
		uncharge(v);
		/* A TLB is flushed only for the entries found. */
		if
		:: entry[p] ->
			old = entry[p];
			entry[p] = 0;
			tlb[p] = 0;
			freed[old] = true
		:: else
		fi
	:: else
	fi;
	tree[p] = NEW(p);
	total_vm++;
	replaced[p] = true;
	write_unlock()
}

/* khugepaged: it looks, lets go of the lock, and looks again. */
proctype collapse(byte p)
{
	byte v;

	atomic { !writer -> readers++ };
	v = tree[p];
	if
	:: v && mark[v] -> v = 0
	:: else
	fi;
	readers--;
	if
	:: v ->
		write_lock();
		if
#ifndef NO_REVALIDATE
		:: tree[p] == v && !mark[v] ->
#else
		:: tree[p] == v ->
#endif
			vma_start_write(v);
			entry[p] = 0;
			tlb[p] = 0;
			map(p, v)
		:: else
		fi;
		write_unlock()
	:: else
	fi
}

/* mlock() of one page. */
proctype mlock(byte p)
{
	byte v;

	write_lock();
	v = tree[p];
	if
	:: v && !mark[v] && !locked_vma[v] ->
		vma_start_write(v);
		atomic {
			locked_vma[v] = true;
			locked_vm++
		}
	:: else
	fi;
	write_unlock()
}

/* fork() copies all of the range or nothing, unless it is mapped anew. */
proctype fork()
{
	byte p, n;

	write_lock();
	do
	:: p < PAGES ->
		if
		:: tree[p] == p + 1 && !mark[tree[p]] ->
			vma_start_write(tree[p]);
			n++
		:: else
		fi;
		p++
	:: else -> break
	od;
	atomic {
		assert(!n || n == PAGES || replaced[0] || replaced[1] ||
		       mark[2] == 2 || done[1]);
		n = 0
	};
	write_unlock()
}

init
{
	atomic {
		tree[0] = 1;
		tree[1] = 2;
		entry[0] = 1;
		entry[1] = 2;
		run munmap(0, 0);
		if
		:: true -> run munmap(1, 1)
		:: true -> run replace(1)
		:: true -> run replace(0)
		fi;
		if
		:: true -> run collapse(1)
		:: true -> run mlock(1)
		:: true -> run fork()
		:: true -> run user(0)
		fi;
		run user(1)
	}
}
