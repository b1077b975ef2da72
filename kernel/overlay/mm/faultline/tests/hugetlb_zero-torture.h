/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.hugetlb_zero_ahead, to hit races often, and to prove
 * that the tests would notice a bug.  Included by hugetlb_zero.c.
 */

#include <linux/init.h>

#include "torture.h"

static u32 broken_rules;
static u32 windows[ZERO_WINDOWS];

bool hugetlb_zero_broken(enum hugetlb_zero_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

/*
 * In ZERO_WINDOW_HELD, the lock of the slot is held and interrupts are off,
 * unless the rule is broken.
 */
void hugetlb_zero_window(enum hugetlb_zero_place place)
{
	torture_delay(torture_window_us(&windows[place]));
}

static int __init hugetlb_zero_torture_init(void)
{
	debugfs_create_u32("hugetlb_zero_broken_rules", 0600, NULL,
			   &broken_rules);
	torture_create_window("hugetlb_zero_piece_window_us",
			      &windows[ZERO_WINDOW_PIECE]);
	torture_create_window("hugetlb_zero_held_window_us",
			      &windows[ZERO_WINDOW_HELD]);
	torture_create_window("hugetlb_zero_prepared_window_us",
			      &windows[ZERO_WINDOW_PREPARED]);
	return 0;
}
late_initcall(hugetlb_zero_torture_init);
