/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Section-wise madvise: the interface to mm/madvise.c and mm/memory.c.
 */
#ifndef _LINUX_FAULTLINE_MADVISE_H
#define _LINUX_FAULTLINE_MADVISE_H

#include <linux/jump_label.h>
#include <linux/types.h>

struct iov_iter;
struct mm_struct;
struct mmu_gather;
struct task_struct;
struct vm_area_struct;

#ifdef CONFIG_FAULTLINE_MADVISE

DECLARE_STATIC_KEY_FALSE(madvise_section_key);
extern unsigned long madvise_section_bytes;

unsigned long __madvise_sectioned(struct mm_struct *mm, unsigned long start,
				  unsigned long len, int behavior, int *error);
bool __madvise_vector_allowed(struct task_struct *task, int behavior);
int __madvise_vector(struct mm_struct *mm, struct iov_iter *iter, int behavior);

/* In mm/madvise.c. */
bool madvise_section_valid(struct vm_area_struct *vma, int behavior);
void madvise_section_walk(struct mmu_gather *tlb, struct vm_area_struct *vma,
			  unsigned long start, unsigned long end, int behavior);

/**
 * madvise_sectioned - advise section by section, as far as possible
 * @mm:       The address space, not locked.
 * @start:    Start of the range, page aligned; may be tagged.
 * @len:      Its length in bytes, page aligned, not 0.
 * @behavior: What madvise() was called with.
 * @error:    Set to -ENOMEM if a hole was met, else left alone.
 *
 * If this is not all, the caller must handle the rest as upstream does, and
 * return madvise_section_result().
 *
 * Return: the number of bytes from @start on that are done.
 */
static inline size_t madvise_sectioned(struct mm_struct *mm, unsigned long start,
				       size_t len, int behavior, int *error)
{
	if (!static_branch_unlikely(&madvise_section_key))
		return 0;
	/* Pairs with WRITE_ONCE() in madvise_section_apply(). */
	if (len < READ_ONCE(madvise_section_bytes))
		return 0;
	return __madvise_sectioned(mm, start, len, behavior, error);
}

/* The result of a call: that of upstream's part, else a hole before it. */
static inline int madvise_section_result(int rest, int error)
{
	return rest ?: error;
}

/**
 * madvise_vector_allowed - may process_madvise() discard memory?
 * @task:     The target of the call.
 * @behavior: What it was called with.
 *
 * Return: true if the switch is on, @task belongs to the process of the caller,
 * and @behavior is MADV_DONTNEED or MADV_DONTNEED_LOCKED.
 */
static inline bool madvise_vector_allowed(struct task_struct *task, int behavior)
{
	return static_branch_unlikely(&madvise_section_key) &&
	       __madvise_vector_allowed(task, behavior);
}

/**
 * madvise_vector - discard the next ranges of a vector, with few TLB flushes
 * @mm:       The address space, not locked.
 * @iter:     The vector, at the start of a range; advanced by whole ranges.
 * @behavior: What process_madvise() was called with.
 *
 * Stops at the first range for which do_madvise() has to be called.
 *
 * Return: 1 if @iter was advanced, 0 if it was not, or the error of do_madvise()
 * for the rest of a range.
 */
static inline int madvise_vector(struct mm_struct *mm, struct iov_iter *iter,
				 int behavior)
{
	if (!static_branch_unlikely(&madvise_section_key))
		return 0;
	return __madvise_vector(mm, iter, behavior);
}

/* Is the switch on? */
static inline bool madvise_section_enabled(void)
{
	return static_branch_unlikely(&madvise_section_key);
}

#else /* !CONFIG_FAULTLINE_MADVISE */

/* Macros: inline functions would change the register allocation. */
#define madvise_sectioned(mm, start, len, behavior, error)		\
	((void)(mm), (void)(start), (void)(len), (void)(behavior),	\
	 (void)(error), 0)
#define madvise_section_result(rest, error)	((void)(error), (rest))
#define madvise_vector_allowed(task, behavior)				\
	((void)(task), (void)(behavior), false)
#define madvise_vector(mm, iter, behavior)				\
	((void)(mm), (void)(iter), (void)(behavior), 0)

static inline bool madvise_section_enabled(void)
{
	return false;
}

#endif /* CONFIG_FAULTLINE_MADVISE */
#endif /* _LINUX_FAULTLINE_MADVISE_H */
