/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.speculative_page_fault, to hit races often, and to
 * prove that the tests would notice a bug.  Included by spf.c.
 */

#include <linux/init.h>

#include "torture.h"

static u32 broken_rules;
static u32 windows[SPF_WINDOWS];

bool spf_broken(enum spf_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

/*
 * In SPF_WINDOW_CHANGE, the page table lock is held; in SPF_WINDOW_INSTALL, the
 * VMA lock.
 */
void spf_window(enum spf_place place)
{
	torture_delay(torture_window_us(&windows[place]));
}

/* To be called for every copy of a page. */
static struct torture_notifier spf_notifier = {
	.ops = { TORTURE_NOTIFIER_OPS },
};

void spf_copied(struct mm_struct *mm)
{
	if (torture_notified(&spf_notifier, mm))
		torture_count_unnotified(&spf_notifier);
}

static int __init spf_torture_init(void)
{
	debugfs_create_u32("spf_broken_rules", 0600, NULL, &broken_rules);
	torture_create_window("spf_find_window_us", &windows[SPF_WINDOW_FIND]);
	torture_create_window("spf_lock_window_us", &windows[SPF_WINDOW_LOCK]);
	torture_create_window("spf_walk_window_us", &windows[SPF_WINDOW_WALK]);
	torture_create_window("spf_change_window_us",
			      &windows[SPF_WINDOW_CHANGE]);
	torture_create_window("spf_sleep_window_us",
			      &windows[SPF_WINDOW_SLEEP]);
	torture_create_window("spf_vma_window_us", &windows[SPF_WINDOW_VMA]);
	torture_create_window("spf_prepared_window_us",
			      &windows[SPF_WINDOW_PREPARED]);
	torture_create_window("spf_fill_window_us", &windows[SPF_WINDOW_FILL]);
	torture_create_window("spf_install_window_us",
			      &windows[SPF_WINDOW_INSTALL]);
	torture_create_window("spf_anon_vma_window_us",
			      &windows[SPF_WINDOW_ANON_VMA]);
	debugfs_create_atomic_t("spf_huge_waiting", 0400, NULL,
				&spf_huge_waiting);
	torture_create_notifier("spf_notifier", "spf_unnotified",
				&spf_notifier);
	return 0;
}
late_initcall(spf_torture_init);
