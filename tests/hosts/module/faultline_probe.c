// SPDX-License-Identifier: GPL-2.0-only
/*
 * An out-of-tree module for the test of DKMS: /proc/faultline_probe has values
 * that are read through the kernel's headers, for comparison with what the
 * kernel itself tells.  A wrong layout of a structure or a wrong configuration
 * in the headers gives other values, or a crash.
 */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/utsname.h>

static int show(struct seq_file *m, void *v)
{
	struct mm_struct *mm = current->mm;

	seq_printf(m, "release %s\n", init_utsname()->release);
	seq_printf(m, "memtotal_kb %lu\n", totalram_pages() << (PAGE_SHIFT - 10));
	seq_printf(m, "pid %d\n", task_tgid_nr(current));
	seq_printf(m, "comm %s\n", current->comm);
	/* Behind the members that Faultline adds to mm_struct. */
	seq_printf(m, "arg_start %lu\n", mm->arg_start);
	seq_printf(m, "page_size %zu\n", sizeof(struct page));
	seq_printf(m, "task_size %zu\n", sizeof(struct task_struct));
	seq_printf(m, "mm_size %zu\n", sizeof(struct mm_struct));
	seq_printf(m, "vma_size %zu\n", sizeof(struct vm_area_struct));
	return 0;
}

static int __init probe_init(void)
{
	if (!proc_create_single("faultline_probe", 0444, NULL, show))
		return -ENOMEM;
	return 0;
}

static void __exit probe_exit(void)
{
	remove_proc_entry("faultline_probe", NULL);
}

module_init(probe_init);
module_exit(probe_exit);
MODULE_DESCRIPTION("values that the kernel's headers give access to");
MODULE_LICENSE("GPL");
