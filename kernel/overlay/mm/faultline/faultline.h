/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: the switch table, shared by all features.
 */
#ifndef _MM_FAULTLINE_H
#define _MM_FAULTLINE_H

#include <linux/types.h>

/**
 * struct faultline_toggle - one switch: a number in /proc/sys/vm
 * @name:  Name of the sysctl in vm.
 * @stock: The value with which the kernel behaves as upstream.
 * @min:   Smallest value accepted.
 * @max:   Largest value accepted.
 * @value: Current value.  Written under the mutex of the switch table, read
 *         anywhere with READ_ONCE().
 * @apply: Makes @value take effect by flipping the static keys of the
 *         feature.  Called after @value has changed, with that mutex held;
 *         may sleep.
 */
struct faultline_toggle {
	const char	*name;
	unsigned long	stock;
	unsigned long	min;
	unsigned long	max;
	unsigned long	value;
	void		(*apply)(unsigned long value);
};

#ifdef CONFIG_FAULTLINE_HUGETLB
extern struct faultline_toggle hugetlb_pmd_sharing_toggle;
#endif
#ifdef CONFIG_FAULTLINE_HUGETLB_ZERO
extern struct faultline_toggle hugetlb_zero_ahead_toggle;
#endif
#ifdef CONFIG_FAULTLINE_MADVISE
extern struct faultline_toggle madvise_section_toggle;
#endif
#ifdef CONFIG_FAULTLINE_MUNMAP
extern struct faultline_toggle munmap_section_toggle;
#endif
#ifdef CONFIG_FAULTLINE_PMD_CLEAR
extern struct faultline_toggle pmd_clear_ipi_free_toggle;
#endif
#ifdef CONFIG_FAULTLINE_SPF
extern struct faultline_toggle speculative_page_fault_toggle;
#endif
#ifdef CONFIG_FAULTLINE_WALK
extern struct faultline_toggle walk_section_toggle;
#endif

#endif /* _MM_FAULTLINE_H */
