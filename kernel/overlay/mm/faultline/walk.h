/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: hooks for tests that break the rules of section-wise walks.
 */
#ifndef _MM_FAULTLINE_WALK_H
#define _MM_FAULTLINE_WALK_H

#include <linux/bits.h>
#include <linux/types.h>

/*
 * Rules that a test breaks; those of W1 to W9 are in walk.c, M4 and M5 in mlock.c, U1
 * in uffd.c.
 */
enum walk_rule {
	WALK_NO_RECHECK		= BIT(0),	/* W1: of a VMA once it is locked */
	WALK_NO_TURN		= BIT(1),	/* W5: take mmap_lock again at once */
	WALK_NO_MLOCK_CHARGE	= BIT(2),	/* M4: of what is left to lock */
	WALK_NO_MLOCK_WAIT	= BIT(3),	/* M5: for a call that has cut a VMA */
	WALK_FOREIGN_POLICY	= BIT(4),	/* W6: move pages of another policy */
	WALK_UFFD_LEFT		= BIT(5),	/* U1: leave entries protected */
	WALK_NO_FLUSH		= BIT(6),	/* W8: of entries before others come */
	WALK_MOVE_CLEAN		= BIT(7),	/* W9: tables without soft-dirty bits */
};

/* A VMA counts as so many bytes besides its own, for finding and merging it. */
#define WALK_MLOCK_VMA_SIZE	(WALK_MLOCK_SIZE / 32)

struct mm_struct;
struct mm_walk_ops;
struct section;
struct section_step;
struct vm_area_struct;

void walk_yield_write(struct mm_struct *mm);
unsigned long walk_write_step(struct vm_area_struct *vma, unsigned long addr,
			      unsigned long end, struct section *section,
			      struct section_step *step);
unsigned long walk_write_section(struct vm_area_struct *vma, unsigned long addr,
				 unsigned long end, const struct mm_walk_ops *ops,
				 void *private);
bool walk_may_cut(struct vm_area_struct *vma);
bool walk_cut_awaited(struct mm_struct *mm);
int walk_cut_yield(struct mm_struct *mm, unsigned long start, unsigned long end,
		   unsigned long pages);

#ifdef CONFIG_FAULTLINE_WALK_TORTURE
bool walk_broken(enum walk_rule rule);
void walk_window(void);
#else
static inline bool walk_broken(enum walk_rule rule)
{
	return false;
}

/* A test delays the walk between finding a VMA and locking it. */
static inline void walk_window(void)
{
}
#endif

#endif /* _MM_FAULTLINE_WALK_H */
