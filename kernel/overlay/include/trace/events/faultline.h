/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM faultline

#if !defined(_TRACE_FAULTLINE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_FAULTLINE_H

#include <linux/tracepoint.h>

struct mm_struct;

#ifdef CONFIG_FAULTLINE_MUNMAP

/* An operation begins; @pages is how much the whole process has mapped. */
TRACE_EVENT(munmap_section_begin,
	TP_PROTO(struct mm_struct *mm, unsigned long start, unsigned long end,
		 unsigned long pages),
	TP_ARGS(mm, start, end, pages),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		start)
		__field(unsigned long,		end)
		__field(unsigned long,		pages)
	),
	TP_fast_assign(
		__entry->mm	= mm;
		__entry->start	= start;
		__entry->end	= end;
		__entry->pages	= pages;
	),
	TP_printk("mm=%p start=0x%lx end=0x%lx pages=%lu",
		  __entry->mm, __entry->start, __entry->end, __entry->pages)
);

/*
 * One section is zapped.  @work is what it did, in units (a page of page-table
 * entries is 32, a huge page 1); @contended if a waiter ended it.  @zap_ns is how
 * long it held the VMA lock, and @wait_ns how long it took to get it.
 */
TRACE_EVENT(munmap_section,
	TP_PROTO(struct mm_struct *mm, unsigned long start, unsigned long end,
		 long work, u64 zap_ns, u64 wait_ns, bool contended),
	TP_ARGS(mm, start, end, work, zap_ns, wait_ns, contended),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		start)
		__field(unsigned long,		end)
		__field(long,			work)
		__field(u64,			zap_ns)
		__field(u64,			wait_ns)
		__field(bool,			contended)
	),
	TP_fast_assign(
		__entry->mm		= mm;
		__entry->start		= start;
		__entry->end		= end;
		__entry->work		= work;
		__entry->zap_ns		= zap_ns;
		__entry->wait_ns	= wait_ns;
		__entry->contended	= contended;
	),
	TP_printk("mm=%p start=0x%lx end=0x%lx work=%ld zap_ns=%llu wait_ns=%llu contended=%d",
		  __entry->mm, __entry->start, __entry->end, __entry->work,
		  __entry->zap_ns, __entry->wait_ns, __entry->contended)
);

/*
 * An operation is over: @sections were zapped; @finish_ns is how long it then
 * took to unmap the VMAs and to free their page tables.
 */
TRACE_EVENT(munmap_section_end,
	TP_PROTO(struct mm_struct *mm, unsigned long sections, u64 finish_ns),
	TP_ARGS(mm, sections, finish_ns),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		sections)
		__field(u64,			finish_ns)
	),
	TP_fast_assign(
		__entry->mm		= mm;
		__entry->sections	= sections;
		__entry->finish_ns	= finish_ns;
	),
	TP_printk("mm=%p sections=%lu finish_ns=%llu",
		  __entry->mm, __entry->sections, __entry->finish_ns)
);

#endif /* CONFIG_FAULTLINE_MUNMAP */
#ifdef CONFIG_FAULTLINE_HUGETLB

/* A mapping starts to use a page table of another mapping. */
TRACE_EVENT(hugetlb_pmd_share,
	TP_PROTO(struct mm_struct *mm, unsigned long addr),
	TP_ARGS(mm, addr),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		addr)
	),
	TP_fast_assign(
		__entry->mm	= mm;
		__entry->addr	= addr;
	),
	TP_printk("mm=%p addr=0x%lx", __entry->mm, __entry->addr)
);

/* A mapping stopped using a shared page table; @last: one user is left. */
TRACE_EVENT(hugetlb_pmd_unshare,
	TP_PROTO(struct mm_struct *mm, unsigned long addr, bool last),
	TP_ARGS(mm, addr, last),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		addr)
		__field(bool,			last)
	),
	TP_fast_assign(
		__entry->mm	= mm;
		__entry->addr	= addr;
		__entry->last	= last;
	),
	TP_printk("mm=%p addr=0x%lx last=%d",
		  __entry->mm, __entry->addr, __entry->last)
);

/*
 * A fault falls back to the slow path because its page table cannot be used:
 * it is gone, its lock is busy, or it was taken away before it was locked.
 */
TRACE_EVENT(hugetlb_fault_retry,
	TP_PROTO(struct mm_struct *mm, unsigned long addr, int why),
	TP_ARGS(mm, addr, why),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		addr)
		__field(int,			why)
	),
	TP_fast_assign(
		__entry->mm	= mm;
		__entry->addr	= addr;
		__entry->why	= why;
	),
	TP_printk("mm=%p addr=0x%lx why=%s", __entry->mm, __entry->addr,
		  __print_symbolic(__entry->why,
				   { 0, "gone" }, { 1, "busy" },
				   { 2, "changed" }))
);

/*
 * A range was unmapped without i_mmap_rwsem, except for the @i_mmap_ns in which
 * it unshared its page tables; @total_ns is the whole time.
 */
TRACE_EVENT(hugetlb_zap,
	TP_PROTO(struct mm_struct *mm, unsigned long start, unsigned long end,
		 u64 i_mmap_ns, u64 total_ns),
	TP_ARGS(mm, start, end, i_mmap_ns, total_ns),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(unsigned long,		start)
		__field(unsigned long,		end)
		__field(u64,			i_mmap_ns)
		__field(u64,			total_ns)
	),
	TP_fast_assign(
		__entry->mm		= mm;
		__entry->start		= start;
		__entry->end		= end;
		__entry->i_mmap_ns	= i_mmap_ns;
		__entry->total_ns	= total_ns;
	),
	TP_printk("mm=%p start=0x%lx end=0x%lx i_mmap_ns=%llu total_ns=%llu",
		  __entry->mm, __entry->start, __entry->end,
		  __entry->i_mmap_ns, __entry->total_ns)
);

#endif /* CONFIG_FAULTLINE_HUGETLB */
#ifdef CONFIG_FAULTLINE_PMD_CLEAR

/*
 * A page table was taken away and its walkers had to be waited for: with an IPI
 * to @cpus other CPUs, or without one if @cpus is 0.
 */
TRACE_EVENT(pmd_clear_wait,
	TP_PROTO(int site, unsigned int cpus),
	TP_ARGS(site, cpus),
	TP_STRUCT__entry(
		__field(int,			site)
		__field(unsigned int,		cpus)
	),
	TP_fast_assign(
		__entry->site	= site;
		__entry->cpus	= cpus;
	),
	TP_printk("site=%s cpus=%u",
		  __print_symbolic(__entry->site,
				   { 0, "collapse" }, { 1, "unshare" },
				   { 2, "table" }, { 3, "hash" },
				   { 4, "legacy" }),
		  __entry->cpus)
);

#endif /* CONFIG_FAULTLINE_PMD_CLEAR */
#ifdef CONFIG_FAULTLINE_SPF

DECLARE_EVENT_CLASS(spf,
	TP_PROTO(unsigned long address, unsigned int flags, int outcome),
	TP_ARGS(address, flags, outcome),
	TP_STRUCT__entry(
		__field(unsigned long,		address)
		__field(unsigned int,		flags)
		__field(int,			outcome)
	),
	TP_fast_assign(
		__entry->address	= address;
		__entry->flags		= flags;
		__entry->outcome	= outcome;
	),
	TP_printk("address=0x%lx flags=%s outcome=%s",
		  __entry->address,
		  __print_flags(__entry->flags, "|", FAULT_FLAG_TRACE),
		  __print_symbolic(__entry->outcome,
				   { 0, "zero" }, { 1, "anon" },
				   { 2, "cow" }, { 3, "reuse" },
				   { 4, "access" }, { 5, "raced" },
				   { 6, "hwpoison" },
				   { 7, "no_vma" }, { 8, "locked" },
				   { 9, "changed" }, { 10, "unsupported" },
				   { 11, "access" }, { 12, "no_table" },
				   { 13, "pte" }, { 14, "busy" },
				   { 15, "no_anon_vma" }, { 16, "no_memory" }))
);

/* A page fault was handled without locks; @outcome says how. */
DEFINE_EVENT(spf, spf_fault,
	TP_PROTO(unsigned long address, unsigned int flags, int outcome),
	TP_ARGS(address, flags, outcome)
);

/* It was tried, but falls back to the upstream path; @outcome is why. */
DEFINE_EVENT(spf, spf_abort,
	TP_PROTO(unsigned long address, unsigned int flags, int outcome),
	TP_ARGS(address, flags, outcome)
);

#endif /* CONFIG_FAULTLINE_SPF */
#ifdef CONFIG_FAULTLINE_WALK

/* A walk has released mmap_lock of @mm; others had it for @wait_ns. */
TRACE_EVENT(walk_yield,
	TP_PROTO(struct mm_struct *mm, u64 wait_ns),
	TP_ARGS(mm, wait_ns),
	TP_STRUCT__entry(
		__field(struct mm_struct *,	mm)
		__field(u64,			wait_ns)
	),
	TP_fast_assign(
		__entry->mm		= mm;
		__entry->wait_ns	= wait_ns;
	),
	TP_printk("mm=%p wait_ns=%llu", __entry->mm, __entry->wait_ns)
);

#endif /* CONFIG_FAULTLINE_WALK */
#endif /* _TRACE_FAULTLINE_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
