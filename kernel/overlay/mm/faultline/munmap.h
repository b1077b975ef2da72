/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: what the files of section-wise munmap share, and hooks for tests that
 * break its rules.
 */
#ifndef _MM_FAULTLINE_MUNMAP_H
#define _MM_FAULTLINE_MUNMAP_H

#include <linux/bits.h>
#include <linux/pgtable.h>
#include <linux/types.h>

struct mm_struct;
struct vm_area_struct;

/*
 * Shorter VMAs are left for later: locking one and flushing the TLB for it would cost
 * more than it saves.
 */
#define SECTION_VMA_MIN		PMD_SIZE

struct vm_area_struct *munmap_lock_vma(struct mm_struct *mm, unsigned long *addr,
				       unsigned long end, bool killable);
bool munmap_range_is_cache(struct mm_struct *mm, unsigned long start,
			   unsigned long end);

/* Rules that a test breaks; I3, I4 and T4 are those in munmap.c. */
enum munmap_rule {
	MUNMAP_NO_WAIT		= BIT(0),	/* I4: for faults, to mark */
	MUNMAP_ZAP_FOREIGN	= BIT(1),	/* zap what has no mark */
	MUNMAP_UNMAP_FOREIGN	= BIT(2),	/* unmap what has no mark */
	MUNMAP_NO_SECOND_ZAP	= BIT(3),	/* of what step 2 left out */
	MUNMAP_EARLY_RELEASE	= BIT(4),	/* I3: before VMAs are gone */
	MUNMAP_LATE_FLUSH	= BIT(5),	/* T4: after the unlock */
	MUNMAP_NO_RETRY		= BIT(6),	/* at a limit */
	MUNMAP_NO_COMPLETE	= BIT(7),	/* R3, R4: unmark without a zap */
};

/* Places where a test adds a delay. */
enum munmap_place {
	MUNMAP_WINDOW_ZAP,	/* of mmap(): between marking and zapping */
	MUNMAP_WINDOW_FLUSH,	/* between unlocking a VMA and freeing pages */
	MUNMAP_WINDOW_FINISH,	/* between zapping and unmapping */
	MUNMAP_WINDOWS,
};

#ifdef CONFIG_FAULTLINE_MUNMAP_TORTURE
bool munmap_broken(enum munmap_rule rule);
void munmap_window(enum munmap_place place);
#else
static inline bool munmap_broken(enum munmap_rule rule)
{
	return false;
}

static inline void munmap_window(enum munmap_place place)
{
}
#endif

#endif /* _MM_FAULTLINE_MUNMAP_H */
