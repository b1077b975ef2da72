// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: the switches - sysctls, boot parameter, validation, log.
 *
 * One table lists the features that are compiled in, and drives everything a
 * user can do to a switch.  The effect of a switch is up to its feature, whose
 * apply() flips the static keys that the hot paths test.
 *
 * See Documentation/admin-guide/mm/faultline/index.rst.
 */

#define pr_fmt(fmt) "faultline: " fmt

#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/kstrtox.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysctl.h>

#include "faultline.h"

/* === Data ================================================================= */

static struct faultline_toggle *const toggles[] = {
#ifdef CONFIG_FAULTLINE_HUGETLB
	&hugetlb_pmd_sharing_toggle,
#endif
#ifdef CONFIG_FAULTLINE_HUGETLB_ZERO
	&hugetlb_zero_ahead_toggle,
#endif
#ifdef CONFIG_FAULTLINE_MADVISE
	&madvise_section_toggle,
#endif
#ifdef CONFIG_FAULTLINE_MUNMAP
	&munmap_section_toggle,
#endif
#ifdef CONFIG_FAULTLINE_PMD_CLEAR
	&pmd_clear_ipi_free_toggle,
#endif
#ifdef CONFIG_FAULTLINE_SPF
	&speculative_page_fault_toggle,
#endif
#ifdef CONFIG_FAULTLINE_WALK
	&walk_section_toggle,
#endif
	NULL
};

/* Serializes changes of any value, so that value and static keys agree. */
static DEFINE_MUTEX(toggles_mutex);

/* faultline=off: values stay at stock and the sysctls are read-only. */
static bool toggles_off __ro_after_init;

/* === Changing a value ===================================================== */

static bool toggle_valid(const struct faultline_toggle *toggle,
			 unsigned long value)
{
	return value >= toggle->min && value <= toggle->max;
}

/* Returns -EINVAL, with nothing changed, if @value is out of range. */
static int toggle_set(struct faultline_toggle *toggle, unsigned long value)
{
	unsigned long old;

	if (!toggle_valid(toggle, value))
		return -EINVAL;

	mutex_lock(&toggles_mutex);
	old = toggle->value;
	if (value != old) {
		/* Pairs with READ_ONCE() in the features. */
		WRITE_ONCE(toggle->value, value);
		toggle->apply(value);
		pr_info_ratelimited("vm.%s: %lu -> %lu by %s[%d]\n",
				    toggle->name, old, value, current->comm,
				    task_pid_nr(current));
	}
	mutex_unlock(&toggles_mutex);

	return 0;
}

/*
 * Stricter than proc_doulongvec_minmax(), which accepts "-1" and "7 8":
 * exactly one number, or -EINVAL.
 */
static int toggle_parse(const char *buf, size_t len, unsigned long *value)
{
	char str[24];	/* fits ULONG_MAX in any base kstrtoul() detects */

	if (len >= sizeof(str))
		return -EINVAL;
	memcpy(str, buf, len);
	str[len] = '\0';
	if (strlen(str) != len)
		return -EINVAL;

	return kstrtoul(strim(str), 0, value) ? -EINVAL : 0;
}

static int toggle_sysctl(const struct ctl_table *table, int write,
			 void *buffer, size_t *lenp, loff_t *ppos)
{
	struct faultline_toggle *toggle = table->data;
	unsigned long value = READ_ONCE(toggle->value);
	struct ctl_table copy = {
		.procname	= table->procname,
		.data		= &value,
		.maxlen		= sizeof(value),
		.mode		= table->mode,
	};
	int err;

	if (!write)
		return proc_doulongvec_minmax(&copy, write, buffer, lenp, ppos);

	if (*ppos)
		return -EINVAL;
	err = toggle_parse(buffer, *lenp, &value);
	if (!err)
		err = toggle_set(toggle, value);
	if (!err)
		*ppos += *lenp;

	return err;
}

/* === Boot ================================================================= */

/*
 * "off" is the only value of faultline=.  To set a switch at boot, there is the
 * generic sysctl.vm.NAME=VALUE: do_sysctl_args() in fs/proc/proc_sysctl.c
 * writes VALUE to the sysctl after all initcalls, right before it starts init,
 * and logs a refused VALUE.
 */
static bool toggles_boot_off(const char *arg)
{
	return arg && !strcmp(arg, "off");
}

static int __init toggles_boot(char *arg)
{
	if (toggles_boot_off(arg))
		toggles_off = true;
	else
		pr_err("faultline=: bad value '%s' ignored, expected off; sysctl.vm.NAME=VALUE sets a switch\n",
		       arg ?: "");

	return 0;
}
early_param("faultline", toggles_boot);

static int __init toggles_init(void)
{
	struct ctl_table *sysctls;
	size_t i;

	if (!toggles[0])
		return 0;
	sysctls = kcalloc(ARRAY_SIZE(toggles), sizeof(*sysctls), GFP_KERNEL);
	if (!sysctls)
		return -ENOMEM;

	if (toggles_off)
		pr_info("disabled by boot parameter, all features behave as upstream\n");

	for (i = 0; toggles[i]; i++) {
		struct faultline_toggle *toggle = toggles[i];

		if (toggles_off)
			toggle->value = toggle->stock;
		/* If CONFIG_..._DEFAULT says so. */
		if (toggle->value != toggle->stock) {
			toggle->apply(toggle->value);
			pr_info("vm.%s: %lu -> %lu at boot\n", toggle->name,
				toggle->stock, toggle->value);
		}

		sysctls[i].procname = toggle->name;
		sysctls[i].data = toggle;
		sysctls[i].maxlen = sizeof(toggle->value);
		sysctls[i].mode = toggles_off ? 0444 : 0644;
		sysctls[i].proc_handler = toggle_sysctl;
	}
	register_sysctl_sz("vm", sysctls, i);

	return 0;
}
subsys_initcall(toggles_init);

#ifdef CONFIG_FAULTLINE_KUNIT_TEST
#include "tests/toggles-kunit.h"
#endif
