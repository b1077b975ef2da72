// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faultline: where mremap() moves a mapping to (vm.walk_section_kbytes).
 *
 * mremap() holds mmap_lock for writing while it moves the pages.  A page table moves as a
 * whole only if the new address is congruent with the old one modulo the size that a
 * table maps; otherwise each entry moves by itself, and huge pages are split.  Upstream
 * takes the first free place.  Here, memory that is large enough to matter gets a
 * congruent one.  How it moves is left to upstream.
 *
 * See Documentation/admin-guide/mm/faultline/walk.rst.
 */

#include <linux/align.h>
#include <linux/compat.h>
#include <linux/err.h>
#include <linux/faultline_walk.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sizes.h>

#include "../internal.h"
#include "walk.h"

/* Smaller memory moves in 0.1 ms, entry by entry. */
#define MREMAP_CONGRUENT_MIN	((unsigned long)SZ_16M)

/* The size that a table maps, for the largest tables that are worth the search. */
static unsigned long table_size(unsigned long len)
{
	/* At least one such table is moved, and the free range is half as large again. */
	if (IS_ENABLED(CONFIG_HAVE_MOVE_PUD) && len / 2 >= PUD_SIZE)
		return PUD_SIZE;
	return PMD_SIZE;
}

/*
 * The free range is larger by a table and a page.  So there is one congruent address in it
 * with a free page on both sides, and nothing to merge with (W9).
 *
 * Compat tasks have no address space to spare.
 */
unsigned long __walk_congruent_area(struct vm_area_struct *vma,
				    unsigned long addr, unsigned long old_len,
				    unsigned long new_len, unsigned long place)
{
	const unsigned long size = table_size(old_len);
	unsigned long len, start;

	/* Files, and shared memory, have rules of their own. */
	if (!vma_is_anonymous(vma) || vma->vm_file)
		return place;
	if (old_len < max(MREMAP_CONGRUENT_MIN, PMD_SIZE) || in_compat_syscall())
		return place;
	if (IS_ALIGNED(addr - place, size))
		return place;
	/* W9 */
	if (vma_soft_dirty_enabled(vma) && !walk_broken(WALK_MOVE_CLEAN))
		return place;
	/* The sum must not wrap. */
	if (new_len > TASK_SIZE - 2 * size)
		return place;
	len = new_len + size + PAGE_SIZE;
	/* get_unmapped_area() would align it, and take even more. */
	if (IS_ALIGNED(len, PMD_SIZE))
		len += PAGE_SIZE;
	start = get_unmapped_area(NULL, 0, len, 0, 0);
	if (IS_ERR_VALUE(start))
		return place;
	start += PAGE_SIZE;
	return start + ((addr - start) & (size - 1));
}
