/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the selftests of section-wise munmap share: its knob and its counters.
 */
#ifndef MUNMAP_UTIL_H
#define MUNMAP_UTIL_H

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
	MUNMAP_ABORTED,
	MUNMAP_NR_COUNTERS,
};

static const char * const munmap_counter_names[MUNMAP_NR_COUNTERS] = {
	[MUNMAP_CALLS]			= "munmap_section_calls",
	[MUNMAP_SECTIONS]		= "munmap_section_sections",
	[MUNMAP_CONTENDED]		= "munmap_section_contended",
	[MUNMAP_ATOMIC]			= "munmap_section_atomic",
	[MUNMAP_WIDENED]		= "munmap_section_widened",
	[MUNMAP_FOREIGN_SKIPPED]	= "munmap_section_foreign_skipped",
	[MUNMAP_ABORTED]		= "munmap_section_aborted",
};

struct munmap_counters {
	long value[MUNMAP_NR_COUNTERS];
};

/* A kernel without the feature has none of them: then all stay -1. */
static inline void munmap_counters_read(struct munmap_counters *c)
{
	int i;

	for (i = 0; i < MUNMAP_NR_COUNTERS; i++)
		c->value[i] = vmstat_read(munmap_counter_names[i]);
}

static inline void munmap_counters_since(const struct munmap_counters *before,
					 struct munmap_counters *delta)
{
	int i;

	munmap_counters_read(delta);
	for (i = 0; i < MUNMAP_NR_COUNTERS; i++)
		delta->value[i] -= before->value[i];
}

/*
 * Sets the knob for a test.  NULL, or why a test that needs this value cannot
 * run.  The value 0 is had for free where there is no knob at all.
 */
static inline const char *munmap_knob_set(long kbytes)
{
	long now;

	if (!vm_sysctl_exists(MUNMAP_KNOB))
		return kbytes ? "this kernel has no vm." MUNMAP_KNOB : NULL;
	if (vm_sysctl_read(MUNMAP_KNOB, &now))
		return "vm." MUNMAP_KNOB " cannot be read";
	if (now == kbytes)
		return NULL;
	if (geteuid())
		return "needs root to set vm." MUNMAP_KNOB;
	if (vm_sysctl_write(MUNMAP_KNOB, kbytes))
		return "vm." MUNMAP_KNOB " cannot be written (faultline=off?)";
	return NULL;
}

/*
 * The values that a test which changes the knob all the time goes through.
 *
 * Going to 0 and back rewrites code that the other CPUs run.  Under QEMU 7.2
 * with a thread per CPU ("-accel tcg,thread=multi") the kernel then dies now
 * and then of a breakpoint that is no longer in memory; a stock kernel does
 * the same when a static key of its own is flipped often.  So 0 is left out
 * on an emulated CPU, unless FAULTLINE_FLIP_OFF is set: a run with one thread
 * ("thread=single", or -icount) should set it.
 */
static inline const long *munmap_flip_values(int *n)
{
	static const long values[] = { 2048, 16384, 2048, 65536, 2048, 0 };
	static char info[16384];

	*n = ARRAY_SIZE(values);
	if (!getenv("FAULTLINE_FLIP_OFF") &&
	    !read_text("/proc/cpuinfo", info, sizeof(info)) &&
	    strstr(info, "QEMU TCG"))
		(*n)--;
	return values;
}

/*
 * Runs a program's tests between reading the knob and writing it back.
 * The processes of the tests leave it as they last had it.
 */
static inline int munmap_knob_kept(int (*run)(int argc, char **argv),
				   int argc, char **argv)
{
	bool have = vm_sysctl_exists(MUNMAP_KNOB);
	long saved = 0;
	pid_t pid;
	int status;

	if (have && vm_sysctl_read(MUNMAP_KNOB, &saved))
		have = false;
	/* In a child, as the harness ends by exit(). */
	pid = fork();
	if (!pid)
		exit(run(argc, argv));
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	if (have)
		munmap_knob_set(saved);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

#endif /* MUNMAP_UTIL_H */
