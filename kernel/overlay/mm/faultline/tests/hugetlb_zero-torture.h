/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.hugetlb_zero_ahead, to hit races often, and to prove
 * that the tests would notice a bug.  Included by hugetlb_zero.c.
 */

#include <linux/init.h>

#include "torture.h"

static u32 broken_rules;
static u32 windows[ZERO_WINDOWS];
/* The process whose faults are held in a window; 0: none. */
static u32 holds[ZERO_WINDOWS];
static atomic_t held = ATOMIC_INIT(0);

bool hugetlb_zero_broken(enum hugetlb_zero_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

/* A fault that is held goes on after so many seconds in any case. */
#define HOLD_SECONDS	60

static void hold_fault(enum hugetlb_zero_place place)
{
	unsigned long end = jiffies + HOLD_SECONDS * HZ;

	atomic_inc(&held);
	while (READ_ONCE(holds[place]) == task_tgid_nr(current) &&
	       time_before(jiffies, end) && !fatal_signal_pending(current))
		usleep_range(1000, 2000);
	atomic_dec(&held);
}

/*
 * In ZERO_WINDOW_HELD, the lock of the slot is held and interrupts are off,
 * unless the rule is broken.
 */
void hugetlb_zero_window(enum hugetlb_zero_place place)
{
	torture_delay(torture_window_us(&windows[place]));
	if (unlikely(READ_ONCE(holds[place]) == task_tgid_nr(current)))
		hold_fault(place);
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
	debugfs_create_u32("hugetlb_zero_piece_hold", 0600, NULL,
			   &holds[ZERO_WINDOW_PIECE]);
	debugfs_create_u32("hugetlb_zero_prepared_hold", 0600, NULL,
			   &holds[ZERO_WINDOW_PREPARED]);
	debugfs_create_atomic_t("hugetlb_zero_held", 0400, NULL, &held);
	return 0;
}
late_initcall(hugetlb_zero_torture_init);
