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

/*
 * pmd_shared        page tables of another mapping that were put to use
 * pmd_unshared      shared page tables that a mapping stopped using
 * pmd_unshare_last  of these, those that nobody else shares then, for which
 *                   an IPI goes to every CPU, one for each flush
 * fault_fast        faults without VMA lock that mapped a page
 * fault_alloc       pages added to a file on that way
 * fault_retry       faults whose page table was taken away meanwhile
 * fault_busy        faults that did not get its lock
 * fault_fallback    all faults that were tried and went the usual way
 * zap_unlocked      unmaps without i_mmap_rwsem
 * zap_two_phase     of these, those that unshared first
 */
#ifdef CONFIG_HUGETLB_PMD_SHARING_CONTROL
#define FAULTLINE_HUGETLB_EVENTS(E)					\
	E(HUGETLB_PMD_SHARED, "hugetlb_pmd_shared")			\
	E(HUGETLB_PMD_UNSHARED, "hugetlb_pmd_unshared")			\
	E(HUGETLB_PMD_UNSHARE_LAST, "hugetlb_pmd_unshare_last")		\
	E(HUGETLB_FAULT_FAST, "hugetlb_fault_fast")			\
	E(HUGETLB_FAULT_ALLOC, "hugetlb_fault_alloc")			\
	E(HUGETLB_FAULT_RETRY, "hugetlb_fault_retry")			\
	E(HUGETLB_FAULT_BUSY, "hugetlb_fault_busy")			\
	E(HUGETLB_FAULT_FALLBACK, "hugetlb_fault_fallback")		\
	E(HUGETLB_ZAP_UNLOCKED, "hugetlb_zap_unlocked")			\
	E(HUGETLB_ZAP_TWO_PHASE, "hugetlb_zap_two_phase")
#else
#define FAULTLINE_HUGETLB_EVENTS(E)
#endif

/*
 * ipi_*       broadcasts that waited for walkers of page tables, by the place
 *             that sent them; the first three are those of enum pt_sync_site
 * avoided_*   broadcasts that were not sent, by place, in the same order
 * fallback    broadcasts that were sent although the switch is on
 * gup_fast_unshare_retry
 *             get_user_pages_fast() undone, as a page table was taken away
 */
#ifdef CONFIG_PMD_CLEAR_IPI_FREE
#define FAULTLINE_PT_SYNC_EVENTS(E)					\
	E(PT_SYNC_IPI_COLLAPSE, "pt_sync_ipi_collapse")			\
	E(PT_SYNC_IPI_UNSHARE, "pt_sync_ipi_unshare")			\
	E(PT_SYNC_IPI_TABLE, "pt_sync_ipi_table")			\
	E(PT_SYNC_AVOIDED_COLLAPSE, "pt_sync_avoided_collapse")		\
	E(PT_SYNC_AVOIDED_UNSHARE, "pt_sync_avoided_unshare")		\
	E(PT_SYNC_AVOIDED_TABLE, "pt_sync_avoided_table")		\
	E(PT_SYNC_FALLBACK, "pt_sync_fallback")				\
	E(GUP_FAST_UNSHARE_RETRY, "gup_fast_unshare_retry")
#ifdef CONFIG_PPC_BOOK3S_64
#define FAULTLINE_PT_SYNC_PPC_EVENTS(E)					\
	E(PT_SYNC_IPI_HASH, "pt_sync_ipi_hash")				\
	E(PT_SYNC_IPI_LEGACY, "pt_sync_ipi_legacy")
#else
#define FAULTLINE_PT_SYNC_PPC_EVENTS(E)
#endif
#else
#define FAULTLINE_PT_SYNC_EVENTS(E)
#define FAULTLINE_PT_SYNC_PPC_EVENTS(E)
#endif

#define FAULTLINE_VM_EVENTS(E)						\
	FAULTLINE_MUNMAP_EVENTS(E)					\
	FAULTLINE_HUGETLB_EVENTS(E)					\
	FAULTLINE_PT_SYNC_EVENTS(E)					\
	FAULTLINE_PT_SYNC_PPC_EVENTS(E)

#define FAULTLINE_VM_EVENT_ITEM(item, name)	item,
#define FAULTLINE_VM_EVENT_TEXT(item, name)	name,

#endif /* _LINUX_FAULTLINE_VMSTAT_H */
