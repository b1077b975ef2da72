/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: counters in /proc/vmstat.
 *
 * FAULTLINE_VM_EVENTS(E) is E(ITEM, "name") for each counter; enum
 * vm_event_item and vmstat_text[] are both made from it, so that they agree.
 */
#ifndef _LINUX_FAULTLINE_VMSTAT_H
#define _LINUX_FAULTLINE_VMSTAT_H

/*
 * calls            operations that unmap section by section
 * sections         sections that they had
 * contended        sections after which somebody waited for mmap_lock
 * atomic           large enough, but unmapped in one piece as upstream
 * widened          memory was short, continued with whole VMAs
 * foreign_skipped  VMAs in the range that were not to be unmapped
 * aborted          given up with -ENOMEM, the rest is still mapped
 */
#ifdef CONFIG_MUNMAP_SECTION
#define FAULTLINE_MUNMAP_EVENTS(E)					\
	E(MUNMAP_SECTION_CALLS, "munmap_section_calls")			\
	E(MUNMAP_SECTION_SECTIONS, "munmap_section_sections")		\
	E(MUNMAP_SECTION_CONTENDED, "munmap_section_contended")		\
	E(MUNMAP_SECTION_ATOMIC, "munmap_section_atomic")		\
	E(MUNMAP_SECTION_WIDENED, "munmap_section_widened")		\
	E(MUNMAP_SECTION_FOREIGN, "munmap_section_foreign_skipped")	\
	E(MUNMAP_SECTION_ABORTED, "munmap_section_aborted")
#else
#define FAULTLINE_MUNMAP_EVENTS(E)
#endif

#define FAULTLINE_VM_EVENTS(E)						\
	FAULTLINE_MUNMAP_EVENTS(E)

#define FAULTLINE_VM_EVENT_ITEM(item, name)	item,
#define FAULTLINE_VM_EVENT_TEXT(item, name)	name,

#endif /* _LINUX_FAULTLINE_VMSTAT_H */
