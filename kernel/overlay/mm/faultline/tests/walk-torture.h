/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.walk_section_kbytes, to hit races often, and to prove that
 * the tests would notice a bug.  Included by walk.c.
 */

#include <linux/init.h>

#include "torture.h"

static u32 broken_rules;
static u32 find_window;

bool walk_broken(enum walk_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

void walk_window(void)
{
	torture_delay(torture_window_us(&find_window));
}

static int __init walk_torture_init(void)
{
	debugfs_create_u32("walk_broken_rules", 0600, NULL, &broken_rules);
	torture_create_window("walk_find_window_us", &find_window);
	return 0;
}
late_initcall(walk_torture_init);
