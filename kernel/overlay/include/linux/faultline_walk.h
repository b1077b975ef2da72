/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise walks: the interface to fs/proc, mm/, kernel/fork.c and kernel/sched.
 */
#ifndef _LINUX_FAULTLINE_WALK_H
#define _LINUX_FAULTLINE_WALK_H

#include <linux/align.h>
#include <linux/jump_label.h>
#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/mmap_lock.h>
#include <linux/mm_types.h>
#include <linux/pagewalk.h>
#include <linux/sizes.h>
#include <uapi/linux/fs.h>

struct mempolicy;
struct userfaultfd_ctx;

/**
 * struct walk_section_ops - a walk by sections
 * @ops_of: How to walk a VMA.  Can be called more than once for a VMA, as it is
 *          looked up for each section.
 * @walked: Optional: a part of a VMA is walked, at most WALK_STEP bytes, or any part
 *          of a VMA for which mmap_lock is held.
 *
 * Both are called with the VMA locked, and with what walk_sectioned() was given as
 * @private.
 */
struct walk_section_ops {
	const struct mm_walk_ops *(*ops_of)(struct vm_area_struct *vma,
					    void *private);
	void (*walked)(struct vm_area_struct *vma, unsigned long start,
		       unsigned long end, void *private);
};

/* Bytes that a walk goes at the most, in holes too, before it looks for a waiter. */
#define WALK_STEP		((unsigned long)SZ_1G)

/* Pages that one hold of mmap_lock faults in before it looks for a waiter. */
#define WALK_FAULT_PAGES	512

/* Pages that GUP-fast pins with interrupts off. */
#define WALK_FAST_PAGES		2048

/* A VMA up to this size is shown by smaps and numa_maps with mmap_lock held. */
#define WALK_RECORD_MIN		((unsigned long)SZ_2M)

/*
 * Bytes that one hold of mmap_lock write-protects before it looks for a waiter; at
 * least a huge page, which would be split otherwise.
 */
#define WALK_PROTECT_SIZE	max_t(unsigned long, SZ_16M, PMD_SIZE)

/* Pages that each part counts for, besides those that change: holes take time, too. */
#define WALK_PROTECT_PAGES	(WALK_FAULT_PAGES / 8)

/*
 * Bytes of small pages after which calls that hold mmap_lock for writing, as mlock() and
 * UFFDIO_UNREGISTER, look for a waiter.
 */
#define WALK_MLOCK_SIZE		((unsigned long)SZ_8M)

/* Work of mlock() or the like since it took mmap_lock, and where it ends. */
struct walk_mlock_work {
	unsigned long pages, end;
};

/* Pages that a hole counts for, if nothing is done in it. */
#define WALK_HOLE_PAGES		(WALK_FAULT_PAGES / 64)

/* One hold of mmap_lock by PAGEMAP_SCAN; zeroed before the first. */
struct walk_scan {
#ifdef CONFIG_FAULTLINE_WALK
	unsigned long end;	/* the walk goes no further */
	unsigned long next;	/* where the next part begins */
	unsigned long pages;	/* work done */
	bool limited;		/* only a part of a hole is protected */
	bool stopped;		/* it has ended before @end, at @next */
#endif
};

#ifdef CONFIG_FAULTLINE_WALK

DECLARE_STATIC_KEY_FALSE(walk_section_key);
DECLARE_STATIC_KEY_FALSE(walk_mlock_key);

int walk_sectioned(struct mm_struct *mm, const struct walk_section_ops *walk,
		   void *private);
struct vm_area_struct *walk_record(struct vm_area_struct *vma,
				   const struct walk_section_ops *walk,
				   void *private, size_t size);
void walk_soft_dirty(struct mm_struct *mm, const struct mm_walk_ops *ops,
		     void *private);
void walk_wait_turn(struct mm_struct *mm, bool writer);
void walk_yield_read(struct mm_struct *mm);
bool walk_has_policy(struct vm_area_struct *vma, struct mempolicy *policy);

/* Is the switch on? */
static inline bool walk_section_enabled(void)
{
	return static_branch_unlikely(&walk_section_key);
}

/**
 * walk_should_yield - should a task let go of mmap_lock?
 * @mm:    The address space; the caller holds mmap_lock for reading.
 * @pages: The pages that it has handled since it took the lock.
 *
 * Return: true if the switch is on, somebody waits, and enough was done.
 */
static inline bool walk_should_yield(struct mm_struct *mm, unsigned long pages)
{
	return static_branch_unlikely(&walk_section_key) &&
	       pages >= WALK_FAULT_PAGES && mmap_lock_is_contended(mm);
}

/* Is a VMA to be walked by walk_record()?  The gate VMA has no address space. */
static inline bool walk_by_record(const struct vm_area_struct *vma)
{
	return static_branch_unlikely(&walk_section_key) && vma->vm_mm &&
	       vma->vm_end - vma->vm_start > WALK_RECORD_MIN;
}

void __walk_mlock(struct vma_iterator *vmi, struct vm_area_struct *vma,
		  unsigned long start, unsigned long end,
		  const struct mm_walk_ops *ops, vm_flags_t oldflags);
bool __walk_mlock_should_yield(struct vma_iterator *vmi,
			       struct walk_mlock_work *work);
int walk_mlock_yield(struct vma_iterator *vmi, struct vm_area_struct **prev,
		     unsigned long start, unsigned long *at, unsigned long end,
		     vm_flags_t flags);
int walk_mlockall_yield(struct vma_iterator *vmi, struct vm_area_struct **prev,
			vm_flags_t flags);
int __walk_mlock_wait(struct mm_struct *mm, unsigned long start,
		      unsigned long len);

/**
 * walk_mlock - mlock or munlock the pages of a VMA, until somebody waits
 * @vmi:      The iterator of the call, at @vma.
 * @vma:      The VMA, locked for writing, with its new flags, and VM_IO if it is being
 *            locked.
 * @start:    Start of the pages.
 * @end:      Their end.
 * @ops:      How to walk them.
 * @oldflags: The flags that @vma had before.
 *
 * If the switch is on and somebody waits for mmap_lock, the call may end early: what is
 * left up to @end becomes the next VMA, with @oldflags.  mm->locked_vm counts what the
 * flags say.
 */
static inline void walk_mlock(struct vma_iterator *vmi,
			      struct vm_area_struct *vma, unsigned long start,
			      unsigned long end, const struct mm_walk_ops *ops,
			      vm_flags_t oldflags)
{
	if (static_branch_unlikely(&walk_section_key))
		__walk_mlock(vmi, vma, start, end, ops, oldflags);
	else
		walk_page_range(vma->vm_mm, start, end, ops, NULL);
}

/**
 * walk_mlock_should_yield - should mlock() or the like let go of mmap_lock?
 * @vmi:  The iterator of the call, at the VMA that it has just changed.
 * @work: What it has done since it took the lock; zeroed in the beginning.
 *
 * Return: true if the switch is on, somebody waits, and enough was done.
 */
static inline bool walk_mlock_should_yield(struct vma_iterator *vmi,
					   struct walk_mlock_work *work)
{
	return static_branch_unlikely(&walk_section_key) &&
	       __walk_mlock_should_yield(vmi, work);
}

/**
 * walk_mlock_wait - wait for mlock() and the like of other threads
 * @mm:    The address space, locked for writing.
 * @start: Start of a range.
 * @len:   Its length.
 *
 * Such a call can let go of mmap_lock in the middle.  Others do not notice, except those
 * that want a mapping to be in one piece, or all locked: they wait for the end, as for
 * mmap_lock on upstream.
 *
 * Return: 0 with @mm locked for writing, maybe again: nothing that was looked up before is
 * valid.  -EINTR with @mm unlocked, if the caller is being killed.
 */
static inline int walk_mlock_wait(struct mm_struct *mm, unsigned long start,
				  unsigned long len)
{
	return static_branch_unlikely(&walk_mlock_key) ?
	       __walk_mlock_wait(mm, start, len) : 0;
}

bool __walk_uffd_yield(struct mm_struct *mm, unsigned long start,
		       unsigned long end, unsigned long *done);
int walk_uffd_next(struct vma_iterator *vmi, struct vm_area_struct **prev,
		   unsigned long start);
/* True for a VMA that has come since the check of UFFDIO_UNREGISTER, and would fail it. */
#define walk_uffd_passes(checked, can_userfault) (!(checked) && !(can_userfault))
void __walk_uffd_release(struct mm_struct *mm, struct userfaultfd_ctx *ctx);

#ifdef CONFIG_USERFAULTFD
/**
 * walk_uffd_yield - let others have mmap_lock between two VMAs that are unregistered
 * @mm:    The address space; mmap_lock is held for writing.
 * @start: Start of the range of the call: others may wait for its end.
 * @end:   Its end.
 * @done:  Bytes handled since the lock was taken; set to 0 if it is released.
 *
 * Return: true if the lock was released, and is held again.  Nothing that was looked up
 * before is valid.
 */
static inline bool walk_uffd_yield(struct mm_struct *mm, unsigned long start,
				   unsigned long end, unsigned long *done)
{
	return static_branch_unlikely(&walk_section_key) &&
	       __walk_uffd_yield(mm, start, end, done);
}

/**
 * walk_uffd_release - unregister memory of a userfaultfd that is being closed
 * @mm:  Its address space, not locked; it need not have users.
 * @ctx: The userfaultfd; nobody can call it any more, and it is not released.
 *
 * Lets go of mmap_lock when somebody waits.  Some memory may be left.
 *
 * Context: May sleep; takes mmap_lock for writing.
 */
static inline void walk_uffd_release(struct mm_struct *mm,
				     struct userfaultfd_ctx *ctx)
{
	if (static_branch_unlikely(&walk_section_key))
		__walk_uffd_release(mm, ctx);
}
#endif /* CONFIG_USERFAULTFD */

bool __walk_numa_stop(struct mm_struct *mm, unsigned long *done,
		      unsigned long size, unsigned long updates);

/* Where a part of a scan for NUMA balancing ends; [@start, @end) is what is left. */
static inline unsigned long walk_numa_end(unsigned long start, unsigned long end)
{
	if (static_branch_unlikely(&walk_section_key) &&
	    end - start > WALK_PROTECT_SIZE)
		return ALIGN_DOWN(start + WALK_PROTECT_SIZE, WALK_PROTECT_SIZE);
	return end;
}

/* Work of a scan for NUMA balancing, for a page that is changed; 1 for one that is not. */
#define WALK_NUMA_UPDATE	8

/**
 * walk_numa_stop - should a scan for NUMA balancing end here?
 * @mm:      The address space; mmap_lock is held for reading.
 * @done:    Work of the scan, see WALK_NUMA_UPDATE; 0 in the beginning.
 * @size:    Bytes of the last part.
 * @updates: Pages that it has changed.
 *
 * Return: true if the switch is on, somebody waits for the lock, and enough was done.
 */
static inline bool walk_numa_stop(struct mm_struct *mm, unsigned long *done,
				  unsigned long size, unsigned long updates)
{
	return static_branch_unlikely(&walk_section_key) &&
	       __walk_numa_stop(mm, done, size, updates);
}

/**
 * walk_numa_next - when the next scan is due, after one that was stopped
 * @now:       When this one has begun, in jiffies.
 * @next:      When the next would be due if this one had done all.
 * @pages:     Pages that it has left of those that a scan changes.
 * @virtpages: Pages that it has left of those that a scan passes over, eight times as many.
 * @mib:       MiB that a scan changes.
 *
 * Memory is scanned as often as if scans were not stopped, as long as one thread or
 * another comes by, task_tick_numa() limits each one, and finds the lock free.
 *
 * Return: the time in jiffies.
 */
static inline unsigned long walk_numa_next(unsigned long now,
					   unsigned long next, long pages,
					   long virtpages, unsigned int mib)
{
	/* In eighths of a page; the setting can have changed since the scan began. */
	unsigned long all = max(mib, 1U) * 8UL << (20 - PAGE_SHIFT);
	unsigned long left = min3(pages * 8UL, (unsigned long)virtpages, all - 1);

	return now + DIV_ROUND_UP((next - now) * (all - left), all);
}

void __walk_scan_begin(struct walk_scan *part, struct mm_struct *mm,
		       unsigned long start, const struct pm_scan_arg *arg);
bool __walk_scan_stop(struct walk_scan *part, struct mm_struct *mm,
		      unsigned long addr, unsigned long pages);
unsigned long __walk_scan_limit(struct walk_scan *part, unsigned long start,
				unsigned long end);
bool __walk_scan_end(struct walk_scan *part, struct mm_struct *mm,
		     const struct pm_scan_arg *arg, unsigned long *start,
		     int ret);

/**
 * walk_scan_begin - begin a part of PAGEMAP_SCAN
 * @part:  The part, as the last one has left it.
 * @mm:    The address space; mmap_lock is held for reading.
 * @start: Where it begins.
 * @arg:   Arguments of the scan.
 */
static inline void walk_scan_begin(struct walk_scan *part, struct mm_struct *mm,
				   unsigned long start,
				   const struct pm_scan_arg *arg)
{
	if (static_branch_unlikely(&walk_section_key))
		__walk_scan_begin(part, mm, start, arg);
	else
		*part = (struct walk_scan) { .end = arg->end };
}

/* Where the walk of a part ends, for a scan up to @end. */
static inline unsigned long walk_scan_until(const struct walk_scan *part,
					    unsigned long end)
{
	return part->end;
}

/**
 * walk_scan_stop - should a part of PAGEMAP_SCAN end here?
 * @part:  The part.
 * @mm:    The address space; mmap_lock is held for reading.
 * @addr:  Where the walk is.
 * @pages: The work of the next step, in pages.
 *
 * Return: true if the switch is on, somebody waits for the lock, and enough was done.
 * The caller then ends the walk with -ENOSPC, and leaves walk_end alone.
 */
static inline bool walk_scan_stop(struct walk_scan *part, struct mm_struct *mm,
				  unsigned long addr, unsigned long pages)
{
	return static_branch_unlikely(&walk_section_key) &&
	       __walk_scan_stop(part, mm, addr, pages);
}

/**
 * walk_scan_limit - limit the memory without page tables that is protected at once
 * @part:  The part.
 * @start: Start of the hole.
 * @end:   Its end.
 *
 * Return: The end of what is to be protected.
 */
static inline unsigned long walk_scan_limit(struct walk_scan *part,
					    unsigned long start,
					    unsigned long end)
{
	return static_branch_unlikely(&walk_section_key) ?
	       __walk_scan_limit(part, start, end) : end;
}

/* Does the part end at @end because of that?  If so, the walk ends with -ENOSPC. */
static inline bool walk_scan_limited(struct walk_scan *part, unsigned long end)
{
	part->stopped = part->limited;
	part->next = end;
	return part->stopped;
}

/**
 * walk_scan_end - end a part of PAGEMAP_SCAN, and release mmap_lock
 * @part:  The part.
 * @mm:    The address space; mmap_lock is held for reading.
 * @arg:   Arguments of the scan.
 * @start: Set if the scan goes on: where the next part begins.
 * @ret:   Result of the walk.
 *
 * If somebody waits for the lock and the scan goes on, wait until the first waiter has
 * had it.
 *
 * Return: true if the scan goes on with the next part, and there is nothing to tell its
 * caller before.
 */
static inline bool walk_scan_end(struct walk_scan *part, struct mm_struct *mm,
				 const struct pm_scan_arg *arg,
				 unsigned long *start, int ret)
{
	if (unlikely(part->stopped || part->end != (unsigned long)arg->end))
		return __walk_scan_end(part, mm, arg, start, ret);
	mmap_read_unlock(mm);
	return false;
}

unsigned long __walk_congruent_area(struct vm_area_struct *vma,
				    unsigned long addr, unsigned long old_len,
				    unsigned long new_len, unsigned long place);

/**
 * walk_congruent_area - find a place to which mremap() can move whole page tables
 * @vma:     The VMA; mmap_lock is held for writing.
 * @addr:    Start of what moves, in @vma.
 * @old_len: Its size.
 * @new_len: Its size at the new place.
 * @place:   Upstream's choice: the address of a free range of @new_len bytes.
 *
 * Return: the address of a free range; @place if the switch is off, @place or any other
 * place will do, or there is no better one.
 */
static inline unsigned long walk_congruent_area(struct vm_area_struct *vma,
						unsigned long addr,
						unsigned long old_len,
						unsigned long new_len,
						unsigned long place)
{
	return static_branch_unlikely(&walk_section_key) ?
	       __walk_congruent_area(vma, addr, old_len, new_len, place) :
	       place;
}

/*
 * Of kernel/locking/rwsem.c, for a writer of mmap_lock.  On PREEMPT_RT nobody spins.
 */
#if defined(CONFIG_RWSEM_SPIN_ON_OWNER) && !defined(CONFIG_PREEMPT_RT)
bool rwsem_has_spinner(struct rw_semaphore *sem);
void rwsem_wait_spinners(struct rw_semaphore *sem);
#else
static inline bool rwsem_has_spinner(struct rw_semaphore *sem)
{
	return false;
}

static inline void rwsem_wait_spinners(struct rw_semaphore *sem)
{
}
#endif

#else /* !CONFIG_FAULTLINE_WALK */

/* Macros: inline functions would change the register allocation. */
#define walk_sectioned(mm, walk, private)	((void)(walk), 0)
#define walk_record(vma, walk, private, size)	((void)(walk), (vma))
#define walk_soft_dirty(mm, ops, private)	do { } while (0)
#define walk_wait_turn(mm, writer)		do { } while (0)
#define walk_yield_read(mm)			do { } while (0)
#define walk_section_enabled()			false
#define walk_should_yield(mm, pages)		((void)(pages), false)
#define walk_by_record(vma)			false
#define walk_mlock(vmi, vma, start, end, ops, oldflags)			\
	((void)(vmi), (void)(oldflags),					\
	 walk_page_range((vma)->vm_mm, start, end, ops, NULL))
#define walk_mlock_should_yield(vmi, work)	((void)(work), false)
#define walk_mlock_yield(vmi, prev, start, at, end, flags)	0
#define walk_mlockall_yield(vmi, prev, flags)	0
#define walk_mlock_wait(mm, start, len)		0
#define walk_uffd_yield(mm, start, end, done)	((void)(done), false)
#define walk_uffd_next(vmi, prev, start)	0
#define walk_uffd_passes(checked, can_userfault) false
#define walk_uffd_release(mm, ctx)		do { } while (0)
#define walk_congruent_area(vma, addr, old_len, new_len, place)	(place)
#define walk_numa_end(start, end)		(end)
#define walk_numa_stop(mm, done, size, updates)	((void)(done), (void)(size), false)
#define walk_numa_next(now, next, pages, virtpages, mib)	(next)
/* @end is read where upstream reads it. */
#define walk_scan_begin(part, mm, start, arg)	do { } while (0)
#define walk_scan_until(part, end)		(end)
#define walk_scan_stop(part, mm, addr, pages)	false
#define walk_scan_limit(part, start, end)	(end)
#define walk_scan_limited(part, end)		false
#define walk_scan_end(part, mm, arg, start, ret) (mmap_read_unlock(mm), false)

#endif /* CONFIG_FAULTLINE_WALK */

#ifdef CONFIG_USERFAULTFD
unsigned long __walk_uffd_clear(struct vma_iterator *vmi,
				struct vm_area_struct *vma,
				unsigned long start, unsigned long end);
long uffd_wp_range(struct vm_area_struct *dst_vma, unsigned long start,
		   unsigned long len, bool enable_wp);

/**
 * walk_uffd_clear - take write protection away from a VMA, until somebody waits
 * @vmi:   The iterator of the call, at @vma.
 * @vma:   The VMA, registered to write-protect; mmap_lock is held for writing.
 * @start: Start of the range.
 * @end:   Its end.
 *
 * If the switch is on and somebody waits for the lock, the call may end early: what is
 * left of @vma then is a VMA of its own, as it was before.
 *
 * Return: where it ended.
 */
static inline unsigned long walk_uffd_clear(struct vma_iterator *vmi,
					    struct vm_area_struct *vma,
					    unsigned long start,
					    unsigned long end)
{
	if (walk_section_enabled())
		return __walk_uffd_clear(vmi, vma, start, end);
	uffd_wp_range(vma, start, end - start, false);
	return end;
}
#endif /* CONFIG_USERFAULTFD */

#endif /* _LINUX_FAULTLINE_WALK_H */
