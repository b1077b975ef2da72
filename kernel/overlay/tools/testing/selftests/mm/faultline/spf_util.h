/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the selftests for vm.speculative_page_fault: the switch, its
 * counters, and the options of CONFIG_FAULTLINE_SPF_TORTURE.
 */
#ifndef SPF_UTIL_H
#define SPF_UTIL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../kselftest.h"
#include "faultline_util.h"

#define SPF_KNOB	"speculative_page_fault"

/* Page faults handled without locks. */
static inline long spf_successes(const struct counters *delta)
{
	return counter(delta, "zero") + counter(delta, "anon") +
	       counter(delta, "cow") + counter(delta, "reuse") +
	       counter(delta, "access") + counter(delta, "raced");
}

static const struct vm_knob spf_knob = {
	.name = SPF_KNOB,
	.stock = 0,
	.refused = " rejects this value here",
};

static const struct flips spf_flips = {
	.name = SPF_KNOB,
	.values = { 0, 1 },
	.n = 2,
};

/* For spf_broken_rules of CONFIG_FAULTLINE_SPF_TORTURE: see the admin guide. */
#define SPF_BAD_MEMORY	0x100

/* Sets an option of CONFIG_FAULTLINE_SPF_TORTURE; false if there is none. */
static inline bool spf_torture(const char *option, unsigned int value)
{
	char path[64], text[16];

	snprintf(path, sizeof(path), "/sys/kernel/debug/spf_%s", option);
	snprintf(text, sizeof(text), "%u", value);
	return !write_text(path, text);
}

/* Returns -1 if the kernel lacks the option. */
static inline long spf_torture_read(const char *option)
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "/sys/kernel/debug/spf_%s", option);
	return read_text(path, text, sizeof(text)) ? -1 : strtol(text, NULL, 0);
}

/*
 * Makes this percentage of the non-sleeping allocations of this process and its
 * children fail, so that they have to wait; 0 stops it.  Returns false if the
 * kernel has no fault injection.
 */
static inline bool spf_fail_at_once(int percent)
{
	char chance[16];
	const struct fault_setting settings[] = {
		{ "task-filter", "Y" }, { "ignore-gfp-highmem", "N" },
		{ "ignore-gfp-wait", "Y" }, { "min-order", "0" },
		{ "verbose", "0" }, { "times", "-1" }, { "interval", "1" },
		{ "probability", chance },
	};

	snprintf(chance, sizeof(chance), "%d", percent);
	if (!fault_attr_set("fail_page_alloc", settings, ARRAY_SIZE(settings)))
		return false;
	write_text("/proc/self/make-it-fail", percent ? "1" : "0");
	return true;
}

#endif /* SPF_UTIL_H */
