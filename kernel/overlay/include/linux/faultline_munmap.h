/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise munmap: the interface to mm/, ipc/ and kernel/fork.c.
 */
#ifndef _LINUX_FAULTLINE_MUNMAP_H
#define _LINUX_FAULTLINE_MUNMAP_H

#include <linux/bits.h>
#include <linux/errno.h>
#include <linux/gfp_types.h>
#include <linux/jump_label.h>
#include <linux/mm_types.h>

struct file;
struct list_head;
struct zap_details;

#ifdef CONFIG_FAULTLINE_MUNMAP

DECLARE_STATIC_KEY_FALSE(munmap_section_key);
DECLARE_STATIC_KEY_FALSE(munmap_section_marks_key);
extern unsigned long munmap_section_bytes;

/*
 * Operations in flight per mm: bits of vma->munmap_pending.  As many bits of
 * mm->munmap_ops, above those, tell which of them are an mmap(MAP_FIXED).
 */
#define MUNMAP_SECTION_MAX_OPS		8
#define MUNMAP_SECTION_OPS		GENMASK(MUNMAP_SECTION_MAX_OPS - 1, 0)

/**
 * struct munmap_op - an operation that unmaps section by section
 * @mm:    The address space, that of current.
 * @start: Start of the range that the operation may unmap.
 * @end:   End of that range.
 * @nr:    The bit of @mm->munmap_ops, and of vma->munmap_pending, that
 *         stands for this operation.
 * @zapped_start: Start of the last part of the range that was zapped without
 *                a gap.
 * @zapped_end:   End of that part.
 * @replaces: It is an mmap(MAP_FIXED): the VMAs stay, and become empty.
 * @charge:  Pages that its VMAs had charged.
 * @data_vm: Pages that its VMAs had in data_vm of @mm.
 */
struct munmap_op {
	struct mm_struct	*mm;
	unsigned long		start;
	unsigned long		end;
	unsigned int		nr;
	unsigned long		zapped_start;
	unsigned long		zapped_end;
	bool			replaces;
	unsigned long		charge;
	unsigned long		data_vm;
};

bool __munmap_section_wanted(struct mm_struct *mm, unsigned long start,
			     size_t len);
int munmap_sectioned(struct mm_struct *mm, unsigned long start, size_t len,
		     struct list_head *uf);

bool __munmap_section_replace(struct mm_struct *mm, const struct file *file,
			      unsigned long start, unsigned long len,
			      vm_flags_t vm_flags);
void __vma_munmap_complete(struct vm_area_struct *vma);
void __munmap_section_unmap_cache(struct mm_struct *mm, unsigned long start,
				  unsigned long len, unsigned long flags);

bool munmap_section_begin(struct munmap_op *op, struct mm_struct *mm,
			  unsigned long start, unsigned long end);
void munmap_section_mark(struct munmap_op *op,
			 struct vm_area_struct *vma);
void munmap_section_run(struct munmap_op *op, struct list_head *uf);

bool __munmap_section_busy(struct mm_struct *mm);
bool __munmap_section_wait(struct mm_struct *mm);
bool __munmap_section_retry(struct mm_struct *mm, struct list_head *uf,
			    bool *retried);
bool __munmap_section_retry_mlock(struct mm_struct *mm, unsigned long *start,
				  size_t *len, vm_flags_t flags, bool *retried);
bool __munmap_section_retry_mmap(struct mm_struct *mm, unsigned long addr,
				 unsigned long len, unsigned long flags,
				 struct list_head *uf, bool *retried);

/**
 * munmap_section_wanted - should this range be unmapped section by section?
 * @mm:    The address space, locked for writing.
 * @start: Start of the range.
 * @len:   Its length in bytes, not yet rounded up to pages.
 *
 * Return: true if munmap_sectioned() or munmap_section_begin() is worthwhile;
 * never for arguments that do_vmi_munmap() would refuse.
 */
static inline bool munmap_section_wanted(struct mm_struct *mm,
					 unsigned long start, size_t len)
{
	if (!static_branch_unlikely(&munmap_section_key))
		return false;
	/* Pairs with WRITE_ONCE() in munmap_section_apply(). */
	if (len < READ_ONCE(munmap_section_bytes))
		return false;
	return __munmap_section_wanted(mm, start, len);
}

/**
 * munmap_section_replace - map at a fixed address section by section
 * @mm:       The address space of current, locked for writing.
 * @file:     What to map there, or NULL for anonymous memory.
 * @start:    Start of the range, page aligned.
 * @len:      Its length, page aligned.
 * @vm_flags: The flags of the mapping.
 *
 * Return: true if it is mapped, and what was there before is gone; @mm was unlocked
 * meanwhile.  false if nothing was done.
 */
static inline bool munmap_section_replace(struct mm_struct *mm,
					  const struct file *file,
					  unsigned long start,
					  unsigned long len,
					  vm_flags_t vm_flags)
{
	return munmap_section_wanted(mm, start, len) &&
	       __munmap_section_replace(mm, file, start, len, vm_flags);
}

/**
 * munmap_section_unmap_cache - unmap shared files before mmap() replaces them
 * @mm:    The address space of current, not locked.
 * @start: Start of the range of the mmap(), not yet checked.
 * @len:   Its length in bytes, not yet checked.
 * @flags: MAP_*.
 *
 * Without MAP_FIXED, and with MAP_FIXED_NOREPLACE, this does nothing.  It may sleep, and
 * stops early if current is being killed.
 */
static inline void munmap_section_unmap_cache(struct mm_struct *mm,
					      unsigned long start,
					      unsigned long len,
					      unsigned long flags)
{
	/* Pairs with WRITE_ONCE() in munmap_section_apply(). */
	if (static_branch_unlikely(&munmap_section_key) &&
	    len >= READ_ONCE(munmap_section_bytes))
		__munmap_section_unmap_cache(mm, start, len, flags);
}

/**
 * vma_munmap_pending - is this VMA marked by an operation in progress?
 * @vma: The VMA, it or its mm locked for reading or writing.
 *
 * A marked VMA does not merge, and no page is faulted in.  It is dead, or it is
 * being replaced.
 *
 * Return: true if it is.
 */
static inline bool vma_munmap_pending(const struct vm_area_struct *vma)
{
	/* Pairs with WRITE_ONCE() in munmap_section_mark(). */
	return static_branch_unlikely(&munmap_section_marks_key) &&
	       READ_ONCE(vma->munmap_pending);
}

/**
 * vma_munmap_dead - is this VMA marked by a munmap in progress?
 * @vma: The VMA, it or its mm locked for reading or writing.
 *
 * A dead VMA is a hole for calls that map, copy or change memory.  Until the
 * munmap is complete it is in the tree and counts in all limits, and its address
 * space is occupied.
 *
 * A marked VMA that is not dead is being replaced: it is the new mapping of an
 * mmap(MAP_FIXED), but some of the pages of the old one are still there.
 *
 * Return: true if it is.
 */
static inline bool vma_munmap_dead(const struct vm_area_struct *vma)
{
	/* Neither bit changes while a VMA has the mark that it stands for. */
	return vma_munmap_pending(vma) &&
	       READ_ONCE(vma->munmap_pending) &
	       ~(READ_ONCE(vma->vm_mm->munmap_ops) >> MUNMAP_SECTION_MAX_OPS);
}

/* Is it marked by an mmap(MAP_FIXED) alone?  Locks as for vma_munmap_dead(). */
static inline bool vma_munmap_replaced(const struct vm_area_struct *vma)
{
	return vma_munmap_pending(vma) && !vma_munmap_dead(vma);
}

/**
 * vma_munmap_complete - zap what is left in a VMA that is being replaced
 * @vma: The VMA, its mm locked for writing.
 *
 * For calls that change the VMA, or succeed since it is what they want it to be.
 *
 * Return: false if the VMA is dead; else it has no mark now.
 */
static inline bool vma_munmap_complete(struct vm_area_struct *vma)
{
	if (vma_munmap_replaced(vma))
		__vma_munmap_complete(vma);
	return !vma_munmap_pending(vma);
}

/**
 * vma_munmap_zapped - has a munmap in progress zapped all of this VMA?
 * @vma: The VMA, which is about to be freed.
 *
 * Return: true if its page tables map nothing.
 */
static inline bool vma_munmap_zapped(const struct vm_area_struct *vma)
{
	return static_branch_unlikely(&munmap_section_marks_key) &&
	       vma->munmap_zapped;
}

/* vm_area_dup(): the copy is a new mapping, which nobody asked to unmap. */
static inline void vma_munmap_reset(struct vm_area_struct *vma)
{
	if (static_branch_unlikely(&munmap_section_marks_key)) {
		vma->munmap_pending = 0;
		vma->munmap_zapped = false;
	}
}

/* __split_vma(): both pieces have the marks of the whole. */
static inline void vma_munmap_inherit(struct vm_area_struct *piece,
				      const struct vm_area_struct *whole)
{
	if (static_branch_unlikely(&munmap_section_marks_key))
		piece->munmap_pending = whole->munmap_pending;
}

/**
 * vma_munmap_gfp - flags for allocations needed to unmap a VMA
 * @vma: The VMA, its mm locked for writing.
 *
 * fork() and others treat a marked VMA as unmapped, so unmapping it must not
 * fail.  The allocations are maple nodes and small structures, with mmap_lock
 * held, as in upstream's vms_abort_munmap_vmas().
 *
 * Return: GFP_KERNEL, with __GFP_NOFAIL if @vma has a mark.
 */
static inline gfp_t vma_munmap_gfp(const struct vm_area_struct *vma)
{
	return vma_munmap_pending(vma) ? GFP_KERNEL | __GFP_NOFAIL : GFP_KERNEL;
}

static inline bool munmap_section_limit(long err)
{
	return static_branch_unlikely(&munmap_section_marks_key) &&
	       (err == -ENOMEM || err == -EAGAIN);
}

/**
 * munmap_section_busy - is a call to be tried again after munmaps in progress?
 * @mm:  The address space, locked for writing.
 * @err: The error that the call is about to return.
 *
 * Address space, and what counts against a limit, is given back at the end of a
 * munmap.  On upstream, a call that comes after the munmap() waits for mmap_lock
 * and then finds it given back.
 *
 * Return: true if it may have failed at a limit while a munmap is in progress.
 * Once it has undone everything, it shall call munmap_section_wait() and then
 * start over, but only once.
 */
static inline bool munmap_section_busy(struct mm_struct *mm, long err)
{
	return munmap_section_limit(err) && __munmap_section_busy(mm);
}

/**
 * munmap_section_wait - wait for the munmaps in progress
 * @mm: The address space, not locked.
 *
 * Return: true if they have ended, false if a fatal signal came first.
 */
static inline bool munmap_section_wait(struct mm_struct *mm)
{
	return __munmap_section_wait(mm);
}

/**
 * munmap_section_retry - wait for munmaps in progress before failing at a limit
 * @mm:      The address space, locked for writing.
 * @err:     The error that the call is about to return.
 * @uf:      Events for userfaultfd_unmap_complete(), or NULL.
 * @retried: Initially false; set to true once this has waited.
 *
 * As munmap_section_busy() and munmap_section_wait(), with the lock released.
 *
 * Return: true if @mm was unlocked: the call must start over, and take the lock
 * as it did before; false if nothing was done.
 */
static inline bool munmap_section_retry(struct mm_struct *mm, long err,
					struct list_head *uf, bool *retried)
{
	return munmap_section_limit(err) &&
	       __munmap_section_retry(mm, uf, retried);
}

/**
 * munmap_section_retry_mlock - the same for mlock() and munlock()
 * @mm:      As munmap_section_retry().
 * @err:     As munmap_section_retry().
 * @start:   Start of the range.
 * @len:     Its length.
 * @flags:   The flags that its VMAs shall have, of VM_LOCKED_MASK.
 * @retried: As munmap_section_retry().
 *
 * The call goes on where it has failed: @start and @len become what is left.
 * Others may have changed what is before that.  Where it has failed at a hole,
 * no munmap helps.
 *
 * Return: as munmap_section_retry().
 */
static inline bool munmap_section_retry_mlock(struct mm_struct *mm, int err,
					      unsigned long *start, size_t *len,
					      vm_flags_t flags, bool *retried)
{
	return munmap_section_limit(err) &&
	       __munmap_section_retry_mlock(mm, start, len, flags, retried);
}

/* The same for a call that replaces [addr, addr + len) if @flags say MAP_FIXED. */
static inline bool munmap_section_retry_mmap(struct mm_struct *mm,
					     unsigned long ret,
					     unsigned long addr,
					     unsigned long len,
					     unsigned long flags,
					     struct list_head *uf,
					     bool *retried)
{
	return munmap_section_limit(ret) &&
	       __munmap_section_retry_mmap(mm, addr, len, flags, uf, retried);
}

static inline void mm_munmap_init(struct mm_struct *mm)
{
	mm->munmap_ops = 0;
	mm->munmap_data_vm = 0;
}

/* dup_mmap(): what of @mm->data_vm belongs to operations, not to a VMA. */
static inline unsigned long mm_munmap_data_vm(const struct mm_struct *mm)
{
	return mm->munmap_data_vm;
}

/* For validate_mm(): a mark without an operation would stay forever. */
static inline bool vma_munmap_mark_stale(const struct vm_area_struct *vma)
{
	return vma->munmap_pending & ~READ_ONCE(vma->vm_mm->munmap_ops);
}

#else /* !CONFIG_FAULTLINE_MUNMAP */

static inline bool munmap_section_wanted(struct mm_struct *mm,
					 unsigned long start, size_t len)
{
	return false;
}

static inline int munmap_sectioned(struct mm_struct *mm, unsigned long start,
				   size_t len, struct list_head *uf)
{
	return -EINVAL;
}

static inline bool munmap_section_replace(struct mm_struct *mm,
					  const struct file *file,
					  unsigned long start,
					  unsigned long len,
					  vm_flags_t vm_flags)
{
	return false;
}

static inline void munmap_section_unmap_cache(struct mm_struct *mm,
					      unsigned long start,
					      unsigned long len,
					      unsigned long flags)
{
}

static inline bool vma_munmap_pending(const struct vm_area_struct *vma)
{
	return false;
}

static inline bool vma_munmap_dead(const struct vm_area_struct *vma)
{
	return false;
}

/* A macro: see munmap_section_busy(). */
#define vma_munmap_replaced(vma)	((void)(vma), false)

static inline bool vma_munmap_complete(struct vm_area_struct *vma)
{
	return true;
}

static inline bool vma_munmap_zapped(const struct vm_area_struct *vma)
{
	return false;
}

static inline void vma_munmap_reset(struct vm_area_struct *vma)
{
}

static inline void vma_munmap_inherit(struct vm_area_struct *piece,
				      const struct vm_area_struct *whole)
{
}

static inline gfp_t vma_munmap_gfp(const struct vm_area_struct *vma)
{
	return GFP_KERNEL;
}

/* A macro: an inline function would change the register allocation. */
#define munmap_section_busy(mm, err)					\
	((void)(mm), (void)(err), false)

static inline bool munmap_section_wait(struct mm_struct *mm)
{
	return false;
}

#define munmap_section_retry(mm, err, uf, retried)			\
	((void)(mm), (void)(err), (void)(uf), (void)(retried), false)

#define munmap_section_retry_mlock(mm, err, start, len, flags, retried)	\
	((void)(mm), (void)(err), (void)(start), (void)(len),		\
	 (void)(flags), (void)(retried), false)

static inline bool munmap_section_retry_mmap(struct mm_struct *mm,
					     unsigned long ret,
					     unsigned long addr,
					     unsigned long len,
					     unsigned long flags,
					     struct list_head *uf,
					     bool *retried)
{
	return false;
}

static inline void mm_munmap_init(struct mm_struct *mm)
{
}

static inline unsigned long mm_munmap_data_vm(const struct mm_struct *mm)
{
	return 0;
}

static inline bool vma_munmap_mark_stale(const struct vm_area_struct *vma)
{
	return false;
}

#endif /* CONFIG_FAULTLINE_MUNMAP */

#ifdef CONFIG_FAULTLINE_MUNMAP_TABLES
/*
 * A flag of zap_details: free page tables that become empty.  mm.h assigns flags
 * from the low end.
 */
#define ZAP_FLAG_FREE_TABLES	((__force zap_flags_t)BIT(31))

/**
 * munmap_section_rcu_tables - must page tables be freed by RCU?
 *
 * Those that munmap_section_take_table() has taken away must: rmap still finds
 * the VMA, and needs only RCU to look at a table.
 *
 * Return: true if a grace period has to pass.
 */
static __always_inline bool munmap_section_rcu_tables(void)
{
	return static_branch_unlikely(&munmap_section_marks_key);
}

pgtable_t __munmap_section_take_table(struct vm_area_struct *vma,
				      struct zap_details *details, pmd_t *pmd,
				      unsigned long start, unsigned long end,
				      pte_t *start_pte, spinlock_t *ptl);

/**
 * munmap_section_take_table - take away a page table that was zapped
 * @vma:       The VMA, locked for reading at least.
 * @details:   The details of the zap, or NULL.
 * @pmd:       The PMD entry that points to the table.
 * @start:     First address zapped in this hold of @ptl.
 * @end:       End of what was zapped.
 * @start_pte: The entry of @start.
 * @ptl:       The lock of the table, held.
 *
 * Return: the table, for pte_free_tlb(), if @details has ZAP_FLAG_FREE_TABLES
 * and the table is empty and belongs to @vma alone; else NULL.
 */
static inline pgtable_t
munmap_section_take_table(struct vm_area_struct *vma,
			  struct zap_details *details, pmd_t *pmd,
			  unsigned long start, unsigned long end,
			  pte_t *start_pte, spinlock_t *ptl)
{
	if (!static_branch_unlikely(&munmap_section_marks_key))
		return NULL;
	return __munmap_section_take_table(vma, details, pmd, start, end,
					   start_pte, ptl);
}
#else
#define munmap_section_take_table(vma, details, pmd, start, end, start_pte, ptl) \
	((void)(vma), (void)(details), (void)(pmd), (void)(start), (void)(end), \
	 (void)(start_pte), (void)(ptl), (pgtable_t)NULL)

static __always_inline bool munmap_section_rcu_tables(void)
{
	return false;
}
#endif /* CONFIG_FAULTLINE_MUNMAP_TABLES */
#endif /* _LINUX_FAULTLINE_MUNMAP_H */
