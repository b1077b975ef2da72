/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: hooks for tests that break the rules of vm.pmd_clear_ipi_free.
 */
#ifndef _MM_FAULTLINE_PMD_CLEAR_H
#define _MM_FAULTLINE_PMD_CLEAR_H

#include <linux/bits.h>
#include <linux/types.h>

/* Checks and waits that a test leaves out, to prove that another test notices. */
enum pmd_clear_rule {
	PMD_CLEAR_NO_RECHECK		= BIT(0),	/* of the count, by walkers */
	PMD_CLEAR_NO_COUNT		= BIT(1),	/* of unsharing */
	PMD_CLEAR_NO_FLUSH_CHECK	= BIT(2),	/* is the TLB flush by IPI? */
	PMD_CLEAR_NO_COLLAPSE_RCU	= BIT(3),	/* to free the old table */
	PMD_CLEAR_NO_TABLE_RCU		= BIT(4),	/* or one without a batch */
};

#ifdef CONFIG_FAULTLINE_PMD_CLEAR_TORTURE
bool pmd_clear_broken(enum pmd_clear_rule rule);
#else
static inline bool pmd_clear_broken(enum pmd_clear_rule rule)
{
	return false;
}
#endif

#endif /* _MM_FAULTLINE_PMD_CLEAR_H */
