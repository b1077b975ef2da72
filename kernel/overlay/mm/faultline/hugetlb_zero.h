/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: hooks for tests that break the rules of clearing huge pages ahead.
 */
#ifndef _MM_FAULTLINE_HUGETLB_ZERO_H
#define _MM_FAULTLINE_HUGETLB_ZERO_H

#include <linux/bits.h>
#include <linux/types.h>

/* Rules that a test breaks; Z1 to Z7 are the invariants in hugetlb_zero.c. */
enum hugetlb_zero_rule {
	ZERO_LATE_WRITE		= BIT(0),	/* Z2: clear outside the lock */
	ZERO_KEEP_FLAG		= BIT(1),	/* Z4: flag outlives the use */
	ZERO_SKIP_REMOVE	= BIT(2),	/* Z2: page leaves, slot stays */
	ZERO_STALE		= BIT(3),	/* Z3: clear, whatever is done */
	ZERO_NO_RECHECK		= BIT(4),	/* Z6: is the VMA the same? */
	ZERO_NO_OWN		= BIT(5),	/* Z5: no preference for our own */
};

/* Places where a test adds a delay. */
enum hugetlb_zero_place {
	ZERO_WINDOW_PIECE,	/* between pieces, without any lock */
	ZERO_WINDOW_HELD,	/* between claiming a piece and clearing it */
	ZERO_WINDOW_PREPARED,	/* between the last piece and the VMA lock */
	ZERO_WINDOWS,
};

#ifdef CONFIG_FAULTLINE_HUGETLB_ZERO_TORTURE
bool hugetlb_zero_broken(enum hugetlb_zero_rule rule);
void hugetlb_zero_window(enum hugetlb_zero_place place);
#else
static inline bool hugetlb_zero_broken(enum hugetlb_zero_rule rule)
{
	return false;
}

static inline void hugetlb_zero_window(enum hugetlb_zero_place place)
{
}
#endif

#endif /* _MM_FAULTLINE_HUGETLB_ZERO_H */
