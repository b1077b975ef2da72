/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.munmap_section_kbytes, to hit races often, and to prove
 * that the tests would notice a bug.  Included by munmap.c.
 */

#include <linux/init.h>

#include "torture.h"

static u32 broken_rules;
static u32 windows[MUNMAP_WINDOWS];

bool munmap_broken(enum munmap_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

void munmap_window(enum munmap_place place)
{
	torture_delay(torture_window_us(&windows[place]));
}

bool section_late_flush(const struct section *section)
{
	return section->tested && munmap_broken(MUNMAP_LATE_FLUSH);
}

void section_flush_window(const struct section *section)
{
	if (section->tested)
		munmap_window(MUNMAP_WINDOW_FLUSH);
}

static int __init munmap_torture_init(void)
{
	debugfs_create_u32("munmap_broken_rules", 0600, NULL, &broken_rules);
	torture_create_window("munmap_zap_window_us",
			      &windows[MUNMAP_WINDOW_ZAP]);
	torture_create_window("munmap_flush_window_us",
			      &windows[MUNMAP_WINDOW_FLUSH]);
	torture_create_window("munmap_finish_window_us",
			      &windows[MUNMAP_WINDOW_FINISH]);
	return 0;
}
late_initcall(munmap_torture_init);
