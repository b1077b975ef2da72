/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What tests of vm.pmd_clear_ipi_free need to meet races, and the path without
 * a batch, often.  Included by pt_sync.c.
 */

#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/init.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/sched/clock.h>

/* === Wider windows ========================================================= */

/* Microseconds; interrupts are off in those of get_user_pages_fast(). */
#define WINDOW_MAX	1000

DEFINE_STATIC_KEY_FALSE(pt_sync_window_key);
static u32 window_us;

void __pt_sync_window(void)
{
	/*
	 * Three of four times nothing, else anything up to the limit.  No
	 * get_random_u32(): perf walks page tables in NMIs.
	 */
	u32 dice = hash_32((u32)local_clock(), 32);

	if (!in_nmi() && !(dice & 3))
		udelay((dice >> 2) % (READ_ONCE(window_us) + 1));
}

static int window_get(void *data, u64 *value)
{
	*value = window_us;
	return 0;
}

static int window_set(void *data, u64 value)
{
	static DEFINE_MUTEX(mutex);

	if (value > WINDOW_MAX)
		return -EINVAL;

	mutex_lock(&mutex);
	/* Pairs with READ_ONCE() in __pt_sync_window(). */
	WRITE_ONCE(window_us, value);
	if (value)
		static_branch_enable(&pt_sync_window_key);
	else
		static_branch_disable(&pt_sync_window_key);
	mutex_unlock(&mutex);

	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(window_fops, window_get, window_set, "%llu\n");

static int __init window_init(void)
{
	debugfs_create_file_unsafe("pt_sync_window_us", 0600, NULL, NULL,
				   &window_fops);
	return 0;
}
late_initcall(window_init);

/* === Page tables freed by RCU on bare x86 =================================== */

#if defined(CONFIG_X86) && defined(CONFIG_PARAVIRT)
#include <asm/paravirt.h>

/*
 * Outside of a hypervisor that flushes TLBs for its guests, x86 frees a page
 * table right after the TLB flush, and never gets to tlb_remove_table_one().
 * Freeing later is always allowed, so behave as such a guest.  Early, before
 * calls of pv_ops are patched.
 */
static int __init rcu_tables(char *arg)
{
	pv_ops.mmu.tlb_remove_table = tlb_remove_table;
	return 0;
}
early_param("pt_sync_rcu_tables", rcu_tables);
#endif
