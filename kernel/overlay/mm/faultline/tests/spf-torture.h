/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.speculative_page_fault, to hit races often, and to
 * prove that the tests would notice a bug.  Included by spf.c.
 */

#include <linux/init.h>

#include "torture.h"

static u32 broken_rules;
static u32 windows[SPF_WINDOWS];
/* The process whose faults are held in a window; 0: none. */
static u32 holds[SPF_WINDOWS];
static atomic_t held = ATOMIC_INIT(0);

bool spf_broken(enum spf_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

/*
 * A fault that is held goes on after so many seconds in any case; where it cannot
 * sleep, earlier than the kernel reports a stall.
 */
#define HOLD_ASLEEP	60
#define HOLD_AWAKE	10

static void hold_fault(enum spf_place place)
{
	bool asleep = place == SPF_WINDOW_PREPARED || place == SPF_WINDOW_SLEEP;
	unsigned long end = jiffies + (asleep ? HOLD_ASLEEP : HOLD_AWAKE) * HZ;

	atomic_inc(&held);
	while (READ_ONCE(holds[place]) == task_tgid_nr(current) &&
	       time_before(jiffies, end) && !fatal_signal_pending(current)) {
		if (asleep)
			usleep_range(1000, 2000);
		else
			cpu_relax();
	}
	atomic_dec(&held);
}

/*
 * In SPF_WINDOW_CHANGE, the page table lock is held; in SPF_WINDOW_INSTALL, the
 * VMA lock.
 */
void spf_window(enum spf_place place)
{
	torture_delay(torture_window_us(&windows[place]));
	if (unlikely(READ_ONCE(holds[place]) == task_tgid_nr(current)))
		hold_fault(place);
}

static u32 writer;

static int writer_get(void *data, u64 *value)
{
	*value = READ_ONCE(writer);
	return 0;
}

/*
 * Write-lock the VMA at an address, and mmap_lock, until another thread writes 0,
 * as a long change of a mapping does.
 */
static int writer_set(void *data, u64 address)
{
	unsigned long end = jiffies + HOLD_ASLEEP * HZ;
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;

	if (!address) {
		WRITE_ONCE(writer, 0);
		return 0;
	}
	if (mmap_write_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, address);
	if (vma) {
		vma_start_write(vma);
		WRITE_ONCE(writer, 1);
	}
	while (READ_ONCE(writer) && time_before(jiffies, end) &&
	       !fatal_signal_pending(current))
		usleep_range(1000, 2000);
	WRITE_ONCE(writer, 0);
	mmap_write_unlock(mm);

	return vma ? 0 : -ENOENT;
}
DEFINE_DEBUGFS_ATTRIBUTE(writer_fops, writer_get, writer_set, "%llu\n");

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
	debugfs_create_u32("spf_prepared_hold", 0600, NULL,
			   &holds[SPF_WINDOW_PREPARED]);
	debugfs_create_u32("spf_fill_hold", 0600, NULL,
			   &holds[SPF_WINDOW_FILL]);
	debugfs_create_atomic_t("spf_held", 0400, NULL, &held);
	debugfs_create_file("spf_writer", 0600, NULL, NULL, &writer_fops);
	debugfs_create_atomic_t("spf_huge_waiting", 0400, NULL,
				&spf_huge_waiting);
	torture_create_notifier("spf_notifier", "spf_unnotified",
				&spf_notifier);
	return 0;
}
late_initcall(spf_torture_init);
