/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the section-wise munmap selftests: the knob and the counters.
 */
#ifndef MUNMAP_UTIL_H
#define MUNMAP_UTIL_H

#include "../../kselftest.h"
#include "faultline_util.h"

#define MUNMAP_KNOB		"munmap_section_kbytes"
/* The smallest section, one page table: the most sections in a range. */
#define MUNMAP_SMALL_KB		((long)(pmd_size() / KIB))

static const struct vm_knob munmap_knob = {
	.name = MUNMAP_KNOB,
	.stock = 0,
	.refused = " cannot be written (faultline=off?)",
};

static inline const char *munmap_knob_set(long kbytes)
{
	return vm_knob_set(&munmap_knob, kbytes);
}

static const struct flips munmap_flips = {
	.name = MUNMAP_KNOB,
	.values = { 2048, 16384, 2048, 65536, 2048, 0 },
	.n = 6,
	/* All but the last: writing 0 and back flips static keys. */
	.n_keyless = 5,
};

#endif /* MUNMAP_UTIL_H */
