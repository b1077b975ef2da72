/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Faultline: counters in /proc/vmstat.
 *
 * FAULTLINE_VM_EVENTS(E) expands to E(ITEM, "name") for each counter.  Both
 * enum vm_event_item and vmstat_text[] are made from it, so they agree.
 */
#ifndef _LINUX_FAULTLINE_VMSTAT_H
#define _LINUX_FAULTLINE_VMSTAT_H

/*
 * calls            operations that unmap section by section
 * replaced         of these, those of mmap(MAP_FIXED)
 * sections         sections that they unmapped
 * contended        of these, those that ended early for a writer of the VMA
 * atomic           large enough, but unmapped in one piece as upstream
 * foreign_skipped  VMAs in the range that were not to be unmapped
 * completed        VMAs that an mmap(MAP_FIXED) had still to zap when another
 *                  thread changed them, and that this thread has zapped
 */
#ifdef CONFIG_FAULTLINE_MUNMAP
#define FAULTLINE_MUNMAP_EVENTS(E)					\
	E(MUNMAP_SECTION_CALLS, "munmap_section_calls")			\
	E(MUNMAP_SECTION_REPLACED, "munmap_section_replaced")		\
	E(MUNMAP_SECTION_SECTIONS, "munmap_section_sections")		\
	E(MUNMAP_SECTION_CONTENDED, "munmap_section_contended")		\
	E(MUNMAP_SECTION_ATOMIC, "munmap_section_atomic")		\
	E(MUNMAP_SECTION_FOREIGN, "munmap_section_foreign_skipped")	\
	E(MUNMAP_SECTION_COMPLETED, "munmap_section_completed")
#else
#define FAULTLINE_MUNMAP_EVENTS(E)
#endif

/*
 * calls      operations that advise section by section
 * sections   sections that they handled
 * contended  of these, those that ended early for a writer of the VMA
 * upstream   operations of which a part was left to upstream's code
 */
#ifdef CONFIG_FAULTLINE_MADVISE
#define FAULTLINE_MADVISE_EVENTS(E)					\
	E(MADVISE_SECTION_CALLS, "madvise_section_calls")		\
	E(MADVISE_SECTION_SECTIONS, "madvise_section_sections")		\
	E(MADVISE_SECTION_CONTENDED, "madvise_section_contended")	\
	E(MADVISE_SECTION_UPSTREAM, "madvise_section_upstream")
#else
#define FAULTLINE_MADVISE_EVENTS(E)
#endif

/*
 * pmd_shared        times a mapping started to use another's page table
 * pmd_unshared      times a mapping stopped using a shared page table
 * pmd_unshare_last  of these, those that left only one user, for which an IPI
 *                   goes to every CPU, once per flush
 * fault_fast        faults without the VMA lock that mapped a page
 * fault_alloc       pages that such faults added to a file
 * fault_around      neighbouring pages that they mapped as well
 * fault_retry       faults whose page table was taken away meanwhile
 * fault_busy        faults that did not get the page table lock
 * fault_fallback    all faults that were tried and fell back to the slow path
 * zap_unlocked      unmaps without i_mmap_rwsem
 * zap_two_phase     of these, those that unshared first
 */
#ifdef CONFIG_FAULTLINE_HUGETLB
#define FAULTLINE_HUGETLB_EVENTS(E)					\
	E(HUGETLB_PMD_SHARED, "hugetlb_pmd_shared")			\
	E(HUGETLB_PMD_UNSHARED, "hugetlb_pmd_unshared")			\
	E(HUGETLB_PMD_UNSHARE_LAST, "hugetlb_pmd_unshare_last")		\
	E(HUGETLB_FAULT_FAST, "hugetlb_fault_fast")			\
	E(HUGETLB_FAULT_ALLOC, "hugetlb_fault_alloc")			\
	E(HUGETLB_FAULT_AROUND, "hugetlb_fault_around")			\
	E(HUGETLB_FAULT_RETRY, "hugetlb_fault_retry")			\
	E(HUGETLB_FAULT_BUSY, "hugetlb_fault_busy")			\
	E(HUGETLB_FAULT_FALLBACK, "hugetlb_fault_fallback")		\
	E(HUGETLB_ZAP_UNLOCKED, "hugetlb_zap_unlocked")			\
	E(HUGETLB_ZAP_TWO_PHASE, "hugetlb_zap_two_phase")
#else
#define FAULTLINE_HUGETLB_EVENTS(E)
#endif

/*
 * zeroed       free huge pages that were cleared before the fault took a lock
 * zeroed_used  faults that took such a page, and did not clear it
 * zeroed_late  faults that cleared a page under their locks, although
 *              vm.hugetlb_zero_ahead is on
 */
#ifdef CONFIG_FAULTLINE_HUGETLB_ZERO
#define FAULTLINE_HUGETLB_ZERO_EVENTS(E)				\
	E(HUGETLB_ZEROED, "hugetlb_zeroed")				\
	E(HUGETLB_ZEROED_USED, "hugetlb_zeroed_used")			\
	E(HUGETLB_ZEROED_LATE, "hugetlb_zeroed_late")
#else
#define FAULTLINE_HUGETLB_ZERO_EVENTS(E)
#endif

/*
 * ipi_*       broadcasts that waited for page table walkers, by the place
 *             that sent them; the first three are those of enum pmd_clear_site
 * avoided_*   broadcasts that were not sent, by place, in the same order
 * fallback    broadcasts that were sent although the switch is on
 * gup_retry   get_user_pages_fast() undone because a page table was taken away
 */
#ifdef CONFIG_FAULTLINE_PMD_CLEAR
#define FAULTLINE_PMD_CLEAR_EVENTS(E)					\
	E(PMD_CLEAR_IPI_COLLAPSE, "pmd_clear_ipi_collapse")		\
	E(PMD_CLEAR_IPI_UNSHARE, "pmd_clear_ipi_unshare")		\
	E(PMD_CLEAR_IPI_TABLE, "pmd_clear_ipi_table")			\
	E(PMD_CLEAR_AVOIDED_COLLAPSE, "pmd_clear_avoided_collapse")	\
	E(PMD_CLEAR_AVOIDED_UNSHARE, "pmd_clear_avoided_unshare")	\
	E(PMD_CLEAR_AVOIDED_TABLE, "pmd_clear_avoided_table")		\
	E(PMD_CLEAR_FALLBACK, "pmd_clear_fallback")			\
	E(PMD_CLEAR_GUP_RETRY, "pmd_clear_gup_retry")
#ifdef CONFIG_PPC_BOOK3S_64
#define FAULTLINE_PMD_CLEAR_PPC_EVENTS(E)				\
	E(PMD_CLEAR_IPI_HASH, "pmd_clear_ipi_hash")			\
	E(PMD_CLEAR_IPI_LEGACY, "pmd_clear_ipi_legacy")
#else
#define FAULTLINE_PMD_CLEAR_PPC_EVENTS(E)
#endif
#else
#define FAULTLINE_PMD_CLEAR_EVENTS(E)
#define FAULTLINE_PMD_CLEAR_PPC_EVENTS(E)
#endif

/*
 * Page faults without locks, by outcome:
 *   zero, anon, cow, reuse, access, raced, hwpoison
 * and those that were tried and fell back to the upstream path, by reason:
 *   abort_no_vma       no VMA, or the stack may have to grow
 *   abort_locked       the VMA is being changed
 *   abort_changed      the VMA or the switch was changed meanwhile, or the task
 *                      was switched out
 *   abort_unsupported  kind of mapping, or MMU notifiers must be called
 *   abort_access       the VMA does not allow the access
 *   abort_no_table     no page table, or a huge page
 *   abort_pte          not in memory, or a file page to be mapped
 *   abort_busy         could not get the page table lock
 *   abort_no_anon_vma  the first write to the VMA
 *   abort_no_memory    memory is short
 * The order is that of enum spf_outcome in mm/faultline/spf.c.
 *
 * retry        further attempts, because of a writer
 * sleep        waits for memory, without any lock
 * skipped      not tried, because the mappings of the task change all the time
 * huge         of anon, those that mapped a huge page
 * table        page tables that faults installed
 * huge_unused  huge pages that were allocated and not mapped
 */
#ifdef CONFIG_FAULTLINE_SPF
#define FAULTLINE_SPF_EVENTS(E)						\
	E(SPF_ZERO, "spf_zero")						\
	E(SPF_ANON, "spf_anon")						\
	E(SPF_COW, "spf_cow")						\
	E(SPF_REUSE, "spf_reuse")					\
	E(SPF_ACCESS, "spf_access")					\
	E(SPF_RACED, "spf_raced")					\
	E(SPF_HWPOISON, "spf_hwpoison")					\
	E(SPF_ABORT_NO_VMA, "spf_abort_no_vma")				\
	E(SPF_ABORT_LOCKED, "spf_abort_locked")				\
	E(SPF_ABORT_CHANGED, "spf_abort_changed")			\
	E(SPF_ABORT_UNSUPPORTED, "spf_abort_unsupported")		\
	E(SPF_ABORT_ACCESS, "spf_abort_access")				\
	E(SPF_ABORT_NO_TABLE, "spf_abort_no_table")			\
	E(SPF_ABORT_PTE, "spf_abort_pte")				\
	E(SPF_ABORT_BUSY, "spf_abort_busy")				\
	E(SPF_ABORT_NO_ANON_VMA, "spf_abort_no_anon_vma")		\
	E(SPF_ABORT_NO_MEMORY, "spf_abort_no_memory")			\
	E(SPF_RETRY, "spf_retry")					\
	E(SPF_SLEEP, "spf_sleep")					\
	E(SPF_SKIPPED, "spf_skipped")					\
	E(SPF_HUGE, "spf_huge")						\
	E(SPF_TABLE, "spf_table")					\
	E(SPF_HUGE_UNUSED, "spf_huge_unused")
#else
#define FAULTLINE_SPF_EVENTS(E)
#endif

/*
 * calls      walks of a whole address space that were done section by section
 * sections   sections that they handled
 * contended  of these, those that ended early for a writer of the VMA
 * upstream   VMAs that were walked under mmap_lock
 * yields     times mmap_lock was released because somebody waited
 */
#ifdef CONFIG_FAULTLINE_WALK
#define FAULTLINE_WALK_EVENTS(E)					\
	E(WALK_SECTION_CALLS, "walk_section_calls")			\
	E(WALK_SECTION_SECTIONS, "walk_section_sections")		\
	E(WALK_SECTION_CONTENDED, "walk_section_contended")		\
	E(WALK_SECTION_UPSTREAM, "walk_section_upstream")		\
	E(WALK_SECTION_YIELDS, "walk_section_yields")
#else
#define FAULTLINE_WALK_EVENTS(E)
#endif

#define FAULTLINE_VM_EVENTS(E)						\
	FAULTLINE_MADVISE_EVENTS(E)					\
	FAULTLINE_MUNMAP_EVENTS(E)					\
	FAULTLINE_HUGETLB_EVENTS(E)					\
	FAULTLINE_PMD_CLEAR_EVENTS(E)					\
	FAULTLINE_PMD_CLEAR_PPC_EVENTS(E)				\
	FAULTLINE_SPF_EVENTS(E)						\
	FAULTLINE_WALK_EVENTS(E)					\
	FAULTLINE_HUGETLB_ZERO_EVENTS(E)

#define FAULTLINE_VM_EVENT_ITEM(item, name)	item,
#define FAULTLINE_VM_EVENT_TEXT(item, name)	name,

#endif /* _LINUX_FAULTLINE_VMSTAT_H */
