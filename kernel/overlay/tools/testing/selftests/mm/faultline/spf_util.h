/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Helpers of the selftests for vm.speculative_page_fault: the switch, its
 * counters, and the options of CONFIG_FAULTLINE_SPF_TORTURE.
 */
#ifndef SPF_UTIL_H
#define SPF_UTIL_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
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

/*
 * Whether a fault that finds no page table can do without locks: not with the
 * hash MMU of powerpc.
 */
static inline bool spf_fills_holes(void)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	bool hash = false;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		hash |= !strncmp(line, "MMU", 3) && strstr(line, "Hash");
	if (f)
		fclose(f);
	return !hash;
}

/*
 * Memory tags (MTE) of arm64: with PROT_MTE, each 16 bytes of memory have a tag of four
 * bits.  Reading and writing tags needs no tagged pointer.
 */
#ifdef __aarch64__
#define TAGGED		0x20	/* PROT_MTE */

static inline bool have_tags(void)
{
	return getauxval(AT_HWCAP2) & (1UL << 18);	/* HWCAP2_MTE */
}

static inline void tag_write(char *p, int tag)
{
	uintptr_t to = (uintptr_t)p | (uintptr_t)tag << 56;

	asm volatile(".arch armv8.5-a+memtag\n\tstg %0, [%0]"
		     : : "r"(to) : "memory");
}

static inline int tag_read(char *p)
{
	uintptr_t from = (uintptr_t)p;

	asm volatile(".arch armv8.5-a+memtag\n\tldg %0, [%0]"
		     : "+r"(from) : : "memory");
	return from >> 56 & 15;
}
#else
#define TAGGED		0

static inline bool have_tags(void)
{
	return false;
}

static inline void tag_write(char *p, int tag)
{
}

static inline int tag_read(char *p)
{
	return 0;
}
#endif

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
 * Makes this percentage of the allocations of this process and its children fail:
 * those of at least 2^@order pages; of these, only those that do not sleep, or all.
 * 0 stops it.  Returns false if the kernel has no fault injection.
 */
static inline bool spf_fail_pages(int percent, int order, bool sleeping)
{
	char chance[16], least[16];
	const struct fault_setting settings[] = {
		{ "task-filter", "Y" }, { "ignore-gfp-highmem", "N" },
		{ "ignore-gfp-wait", sleeping ? "N" : "Y" },
		{ "min-order", least }, { "verbose", "0" },
		{ "times", "-1" }, { "interval", "1" },
		{ "probability", chance },
	};

	snprintf(chance, sizeof(chance), "%d", percent);
	snprintf(least, sizeof(least), "%d", order);
	if (!fault_attr_set("fail_page_alloc", settings, ARRAY_SIZE(settings)))
		return false;
	write_text("/proc/self/make-it-fail", percent ? "1" : "0");
	return true;
}

/* So that those that cannot sleep have to wait. */
static inline bool spf_fail_at_once(int percent)
{
	return spf_fail_pages(percent, 0, false);
}

/* --- transparent huge pages: the settings that tests change */
#define THP		"/sys/kernel/mm/transparent_hugepage/"

struct thp_setting {
	const char *path;
	char old[32];		/* what a write restores; "" if there is no file */
};

static struct thp_setting thp_settings[] = {
	{ THP "enabled" },
	{ THP "defrag" },
	{ THP "use_zero_page" },
	{ THP "khugepaged/scan_sleep_millisecs" },
	{ THP "khugepaged/alloc_sleep_millisecs" },
	{ THP "khugepaged/pages_to_scan" },
	{ THP "khugepaged/max_ptes_none" },
};

/* Notes the settings; among several words, the brackets mark the present one. */
static inline void thp_keep(void)
{
	char text[128], *word;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(thp_settings); i++) {
		thp_settings[i].old[0] = '\0';
		if (read_text(thp_settings[i].path, text, sizeof(text)))
			continue;
		word = strchr(text, '[');
		word = word ? word + 1 : text;
		word[strcspn(word, "]\n")] = '\0';
		snprintf(thp_settings[i].old, sizeof(thp_settings[i].old),
			 "%.31s", word);
	}
}

static inline void thp_restore(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(thp_settings); i++)
		if (*thp_settings[i].old)
			write_text(thp_settings[i].path, thp_settings[i].old);
}

/* NULL, or the reason why a test cannot have huge pages. */
static inline const char *thp_set(const char *enabled, const char *defrag)
{
	if (access(THP "enabled", F_OK))
		return "this kernel has no transparent huge pages";
	if (write_text(THP "enabled", enabled) ||
	    write_text(THP "defrag", defrag))
		return "needs root to change transparent huge pages";
	return NULL;
}

/* --- failing allocations of one thread, one at a time */

/*
 * Prepares fault injection for this thread's allocations of pages and slabs.
 * Returns a file for fail_nth(), or -1 if the kernel has no fault injection.
 */
static inline int fail_nth_open(void)
{
	const struct fault_setting pages[] = {
		{ "task-filter", "N" }, { "ignore-gfp-highmem", "N" },
		{ "ignore-gfp-wait", "N" }, { "verbose", "0" },
		{ "probability", "0" }, { "min-order", "0" },
	};
	const struct fault_setting slabs[] = {
		{ "task-filter", "N" }, { "ignore-gfp-wait", "N" },
		{ "verbose", "0" }, { "probability", "0" },
		{ "cache-filter", "N" },
	};

	if (!fault_attr_set("fail_page_alloc", pages, ARRAY_SIZE(pages)))
		return -1;
	fault_attr_set("failslab", slabs, ARRAY_SIZE(slabs));
	return open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
}

/* From now on the @n-th allocation fails, and no other; 0: none. */
static inline bool fail_nth(int fd, int n)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%d", n);

	return pwrite(fd, text, len, 0) == len;
}

/* How many allocations are left until one fails; 0 if it has failed. */
static inline long fail_nth_left(int fd)
{
	char text[16] = "";

	return pread(fd, text, sizeof(text) - 1, 0) > 0 ?
	       strtol(text, NULL, 10) : -1;
}

#endif /* SPF_UTIL_H */
