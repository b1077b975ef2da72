/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the selftests of section-wise munmap share: its knob and its counters.
 */
#ifndef MUNMAP_UTIL_H
#define MUNMAP_UTIL_H

#include "../../kselftest.h"
#include "faultline_util.h"

#define MUNMAP_KNOB		"munmap_section_kbytes"
/* The smallest section: one page table of base pages.  Most interior cuts. */
#define MUNMAP_SMALL_KB		((long)(pmd_size() / KIB))

enum munmap_counter {
	MUNMAP_CALLS,
	MUNMAP_SECTIONS,
	MUNMAP_CONTENDED,
	MUNMAP_ATOMIC,
	MUNMAP_WIDENED,
	MUNMAP_FOREIGN_SKIPPED,
	MUNMAP_NR_COUNTERS,
};

static const char * const munmap_counter_names[MUNMAP_NR_COUNTERS] = {
	[MUNMAP_CALLS]			= "munmap_section_calls",
	[MUNMAP_SECTIONS]		= "munmap_section_sections",
	[MUNMAP_CONTENDED]		= "munmap_section_contended",
	[MUNMAP_ATOMIC]			= "munmap_section_atomic",
	[MUNMAP_WIDENED]		= "munmap_section_widened",
	[MUNMAP_FOREIGN_SKIPPED]	= "munmap_section_foreign_skipped",
};

struct munmap_counters {
	long value[MUNMAP_NR_COUNTERS];
};

static inline void munmap_counters_read(struct munmap_counters *c)
{
	vmstat_read_all(munmap_counter_names, c->value, MUNMAP_NR_COUNTERS);
}

static inline void munmap_counters_since(const struct munmap_counters *before,
					 struct munmap_counters *delta)
{
	vmstat_since(munmap_counter_names, before->value, delta->value,
		     MUNMAP_NR_COUNTERS);
}

static const struct vm_knob munmap_knob = {
	.name = MUNMAP_KNOB,
	.stock = 0,
	.refused = " cannot be written (faultline=off?)",
};

static inline const char *munmap_knob_set(long kbytes)
{
	return vm_knob_set(&munmap_knob, kbytes);
}

/*
 * The values that a test which changes the knob all the time goes through.
 * Going to 0 and back flips static keys.
 */
static inline const long *munmap_flip_values(int *n)
{
	static const long values[] = { 2048, 16384, 2048, 65536, 2048, 0 };

	*n = ARRAY_SIZE(values);
	if (!static_keys_flip())
		(*n)--;
	return values;
}

/* Runs a program's tests, and puts the knob back. */
static inline int munmap_knob_kept(int (*run)(int argc, char **argv),
				   int argc, char **argv)
{
	int status = vm_knob_kept(&munmap_knob, run, argc, argv);

	return status < 0 ? KSFT_FAIL : status;
}

#endif /* MUNMAP_UTIL_H */
