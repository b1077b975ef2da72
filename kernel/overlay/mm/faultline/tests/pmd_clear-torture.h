/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks for tests of vm.pmd_clear_ipi_free, to hit races often, on x86 also in
 * the paths of guests, and to prove that the tests would notice a bug.
 * Included by pmd_clear.c.
 */

#include <linux/debugfs.h>
#include <linux/hash.h>
#include <linux/init.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/sched/clock.h>

#include "torture.h"

static u32 broken_rules;

bool pmd_clear_broken(enum pmd_clear_rule rule)
{
	return READ_ONCE(broken_rules) & rule;
}

bool pmd_clear_count_broken(void)
{
	return pmd_clear_broken(PMD_CLEAR_NO_COUNT);
}

/* === A guest whose hypervisor flushes TLBs ================================ */

#if defined(CONFIG_X86) && defined(CONFIG_PARAVIRT)
/*
 * Bare-metal x86 flushes TLBs by IPI, frees a page table right after that, and
 * never gets to tlb_remove_table_one().  Behave like a guest instead: free
 * tables by RCU, which is always allowed, and do not let a flush wait for a CPU
 * that is in a window with interrupts off.  That CPU has "stopped", and flushes
 * its TLB before it resumes.
 */
#define VCPU_STOPPED	1
#define VCPU_FLUSH	2

static DEFINE_PER_CPU(u32, vcpu_state);
static DEFINE_PER_CPU(struct cpumask, vcpu_flush_mask);
static bool is_guest __ro_after_init;

static void guest_flush_tlb_multi(const struct cpumask *cpus,
				  const struct flush_tlb_info *info)
{
	struct cpumask *mask = this_cpu_ptr(&vcpu_flush_mask);
	int cpu;

	cpumask_copy(mask, cpus);
	/* Pairs with xchg() in vcpu_resume(): it sees this, or we wait. */
	for_each_cpu(cpu, mask)
		if (cmpxchg(per_cpu_ptr(&vcpu_state, cpu), VCPU_STOPPED,
			    VCPU_STOPPED | VCPU_FLUSH) != 0)
			__cpumask_clear_cpu(cpu, mask);
	native_flush_tlb_multi(mask, info);
}

static void vcpu_stop(void)
{
	if (is_guest && irqs_disabled())
		this_cpu_write(vcpu_state, VCPU_STOPPED);
}

static void vcpu_resume(void)
{
	/* Pairs with cmpxchg() in guest_flush_tlb_multi(). */
	if (is_guest && irqs_disabled() &&
	    xchg(this_cpu_ptr(&vcpu_state), 0) & VCPU_FLUSH)
		__flush_tlb_all();
}

/* Early, before the calls of pv_ops are patched. */
static int __init guest_setup(char *arg)
{
	pv_ops.mmu.tlb_remove_table = tlb_remove_table;
	pv_ops.mmu.flush_tlb_multi = guest_flush_tlb_multi;
	is_guest = true;
	return 0;
}
early_param("pmd_clear_guest", guest_setup);
#else
static void vcpu_stop(void)
{
}

static void vcpu_resume(void)
{
}
#endif

/* === Wider windows ======================================================== */

/* In microseconds; those of get_user_pages_fast() have interrupts off. */
#define WINDOW_MAX	20000

DEFINE_STATIC_KEY_FALSE(pmd_clear_window_key);
static u32 window_us;

void __pmd_clear_window(void)
{
	/*
	 * No delay three times out of four, else a random one up to the limit.
	 * Not get_random_u32(): perf walks page tables in NMIs.
	 */
	u32 rnd = hash_32((u32)local_clock(), 32);
	u32 us = (rnd >> 2) % (READ_ONCE(window_us) + 1);

	if (!in_nmi() && !(rnd & 3)) {
		vcpu_stop();
		torture_delay(us);
		vcpu_resume();
	}
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
	/* Pairs with READ_ONCE() in __pmd_clear_window(). */
	WRITE_ONCE(window_us, value);
	if (value)
		static_branch_enable(&pmd_clear_window_key);
	else
		static_branch_disable(&pmd_clear_window_key);
	mutex_unlock(&mutex);

	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(window_fops, window_get, window_set, "%llu\n");

static int __init window_init(void)
{
	debugfs_create_file_unsafe("pmd_clear_window_us", 0600, NULL, NULL,
				   &window_fops);
	debugfs_create_u32("pmd_clear_broken_rules", 0600, NULL, &broken_rules);
	return 0;
}
late_initcall(window_init);
