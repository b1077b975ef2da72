/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: the files of speculative page faults, and hooks for tests that
 * break their rules.
 */
#ifndef _MM_FAULTLINE_SPF_H
#define _MM_FAULTLINE_SPF_H

#include <linux/bits.h>
#include <linux/faultline_spf.h>
#include <linux/mm_types.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/types.h>

struct file;
struct folio;
struct pt_regs;

/* === State ================================================================ */

/* The result of a fault, in the order of the counters from SPF_ZERO on. */
enum spf_outcome {
	SPF_GO_ON = -1,
	DONE_ZERO,		/* mapped the zero page */
	DONE_ANON,		/* mapped new memory */
	DONE_COW,		/* copied the page */
	DONE_REUSE,		/* made writable: there is no other user */
	DONE_ACCESS,		/* set young or dirty, or found it so */
	DONE_RACED,		/* the entry changed: nothing to do, or retry */
	DONE_HWPOISON,		/* the page to copy is poisoned: SIGBUS */
	ABORT_NO_VMA,		/* none, it ends here, or it was unmapped */
	ABORT_LOCKED,		/* the VMA is being changed */
	ABORT_CHANGED,		/* it was changed, or the sysctl went to 0 */
	ABORT_UNSUPPORTED,	/* kind of mapping */
	ABORT_ACCESS,		/* the VMA does not allow the access */
	ABORT_NO_TABLE,		/* a huge page is there, or wanted for a read */
	ABORT_PTE,		/* swapped out, migrating, file page to read */
	ABORT_BUSY,		/* could not get a lock, or has to reschedule */
	ABORT_NO_ANON_VMA,	/* the first write to the VMA: could not make it */
	ABORT_NO_MEMORY,	/* upstream may wait longer, and OOM-kill */
};

/*
 * Maximum age of a snapshot.  The sequence numbers have 32 bits and advance by
 * two per write section, so a number recurs after 2^31 sections.  Those take
 * minutes, and a fault would have to stay in one RCU section for all of them,
 * where it cannot lose its CPU, enter_rcu().  (One case is accepted: a virtual
 * CPU is stopped for that long, other CPUs of the guest change the same VMA
 * without a break, and the number is then exactly the one of 2^32 that
 * matches.)  A fault that leaves the section for memory has MAX_SLEEP.
 */
#define MAX_SECTIONS	BIT(30)

struct spf_state {
	struct mm_struct *mm;
	unsigned long address;		/* page aligned */
	struct pt_regs *regs;
	unsigned int flags;
	enum spf_entry entry;
	enum spf_outcome outcome;
	bool wasted;			/* aborting now throws work away */
	bool slept;			/* the lookup's RCU section is over */
	bool mmap_locked;		/* mmap_lock is held: do not sleep */
	bool huge_tried;		/* see H4 in spf_huge.c */
	bool prepared;			/* huge and table are initialized */
	bool spare_zeroed;
	struct folio *spare;		/* of a previous attempt, charged */
	struct folio *huge;		/* charged and cleared, for a PMD entry */
	pgtable_t table;		/* no walker has seen it */
	/*
	 * Used only in the RCU section: to make the snapshot, to read
	 * vm_lock_seq, and to lock the VMA.
	 */
	struct vm_area_struct *vma;
	/* Only what copy_vma_fields() sets; the rest is uninitialized. */
	struct vm_area_struct snapshot;
	struct file *file;		/* valid while ptl is held */
	u32 vma_seq;			/* vm_lock_seq of the snapshot */
	u32 mm_seq;			/* mm_lock_seq when it was taken */
	/*
	 * Set by spf_walk().  The tables of the walk stay in memory until
	 * spf_walk_end(), until the RCU section ends, or while ptl is held.
	 * Without a page table, only pmdp and pmd are set, or pmdp is NULL and
	 * no_upper tells whether that is because an entry above is empty.
	 */
	bool walked;
	bool no_upper;
	pmd_t *pmdp;
	pmd_t pmd;
	pte_t *pte;
	spinlock_t *ptl;		/* page table lock */
};

/*
 * The RCU section of a fault.  All grace periods of the machine wait for it.
 * With preemptible RCU they would also wait while the task is preempted, or
 * throttled by cpu.max.  So preemption is off, as in the RCU sections of other
 * kernels, where this adds no code unless preemption is counted.  MAX_SECTIONS
 * relies on that, too.
 *
 * Preemption is enabled last: a pending reschedule must not come inside the
 * section.  So preemptible RCU leaves the section with preemption off, and then
 * it reports the end of the section to an expedited grace period at the next
 * reschedule, softirq or tick, which is a little later.
 */
static __always_inline void enter_rcu(void)
{
	preempt_disable();
	rcu_read_lock();
}

static __always_inline void leave_rcu(void)
{
	rcu_read_unlock();
	preempt_enable();
}

static inline u32 mm_sequence(struct mm_struct *mm)
{
	/*
	 * Pairs with the smp_wmb() in mm_lock_seqcount_end(): W4.  Not
	 * raw_read_seqcount(), which hides the accesses that follow from KCSAN.
	 */
	return smp_load_acquire(&mm->mm_lock_seq.sequence);
}

/* Is the VMA of the snapshot unchanged? */
static inline bool snapshot_valid(const struct spf_state *f)
{
	if (READ_ONCE(f->vma->vm_lock_seq) != f->vma_seq)
		return false;
	/* Nor can the number have wrapped around. */
	return mm_sequence(f->mm) - f->mm_seq < MAX_SECTIONS;
}

/* spf.c */
bool spf_has_table(struct spf_state *f);
bool spf_begin_sleep(struct spf_state *f, unsigned long *since);
enum spf_outcome spf_end_sleep(struct spf_state *f, unsigned long since);

/* spf_huge.c */
extern atomic_t spf_huge_waiting;
enum spf_outcome spf_fill_hole(struct spf_state *f);
enum spf_outcome spf_make_anon_vma(struct spf_state *f);
bool spf_wait_with_huge(struct spf_state *f);
void spf_discard_huge(struct spf_state *f);
void spf_discard(struct spf_state *f);

/* Is a huge page in hand? */
static inline bool spf_has_huge(const struct spf_state *f)
{
	return f->prepared && f->huge;
}

/* === Hooks for tests ====================================================== */

/* Checks that a test leaves out, to prove that another test notices. */
enum spf_rule {
	SPF_NO_SEQUENCE	= BIT(0),	/* was the VMA write-locked since? */
	SPF_NO_LOCKED	= BIT(1),	/* is it during the snapshot? */
	SPF_NO_DETACHED	= BIT(2),	/* is it out of the tree? */
	SPF_NO_FIND	= BIT(3),	/* is it the same after sleeping? */
	SPF_NO_NOTIFIER	= BIT(4),	/* are there MMU notifiers now? */
	SPF_NO_DRAIN	= BIT(5),	/* do mremap() and collapse wait? */
	SPF_NO_WAIT	= BIT(6),	/* does the first notifier wait? */
	SPF_EARLY_FILE	= BIT(7),	/* is the file used only while open? */
	SPF_BAD_MEMORY	= BIT(8),	/* no rule: VM_DONTDUMP is poisoned */
	SPF_NO_RECHECK	= BIT(9),	/* is a VMA the same once it is locked? */
	SPF_PREPARE_LOCKED = BIT(10),	/* H1: is it unlocked meanwhile? */
	SPF_NO_FILL_CHECK = BIT(11),	/* H2: is it the same once it is locked? */
	SPF_HUGE_TWICE	= BIT(12),	/* H4: has the fault tried before? */
	SPF_SEEN_TABLE	= BIT(13),	/* H5: has nobody seen the table? */
	SPF_HUGE_CROWD	= BIT(14),	/* H6: do too many wait? */
	SPF_NO_ANON_CHECK = BIT(15),	/* is the VMA the same for its anon_vma? */
};

/* Places where a test delays a fault. */
enum spf_place {
	SPF_WINDOW_FIND,	/* between finding the VMA and looking at it */
	SPF_WINDOW_LOCK,	/* between the snapshot and locking the table */
	SPF_WINDOW_WALK,	/* between finding the table and its lock */
	SPF_WINDOW_CHANGE,	/* between locking it and changing the entry */
	SPF_WINDOW_SLEEP,	/* outside the RCU section */
	SPF_WINDOW_VMA,		/* between finding a VMA and locking it */
	SPF_WINDOW_PREPARED,	/* outside the RCU section, with a huge page */
	SPF_WINDOW_FILL,	/* the VMA lock is about to be tried */
	SPF_WINDOW_INSTALL,	/* between locking it and the PMD entry */
	SPF_WINDOW_ANON_VMA,	/* mmap_lock is about to be tried */
	SPF_WINDOWS,
};

#ifdef CONFIG_FAULTLINE_SPF_TORTURE
bool spf_broken(enum spf_rule rule);
void spf_window(enum spf_place place);
void spf_copied(struct mm_struct *mm);
#else
static inline bool spf_broken(enum spf_rule rule)
{
	return false;
}

static inline void spf_window(enum spf_place place)
{
}

/* A page was copied without calling MMU notifiers. */
static inline void spf_copied(struct mm_struct *mm)
{
}
#endif

#endif /* _MM_FAULTLINE_SPF_H */
