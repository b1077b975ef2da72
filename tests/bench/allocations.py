# SPDX-License-Identifier: GPL-2.0-only
"""Allocations of pages in page faults: how many were made without a lock, from their stacks.

A histogram of the tracepoint kmem:mm_page_alloc has the stack of each allocation.  There,
spf_fault() is a speculative fault; handle_mm_fault() is upstream's, which holds the lock of the
mapping or mmap_lock.
"""

from __future__ import annotations

import re
from collections import Counter

from .guest import BenchError

# A stack, from the allocation outwards, and the order of the pages.
Histogram = Counter[tuple[tuple[str, ...], int]]

# Faults that took no lock while they allocated.
FREE, FREE_HUGE = "without a lock", "without a lock, huge"
# Not in a fault: the kernel fills memory by itself, with mmap_lock held on any kernel.
POPULATED = "populated"
# With a lock: memory of files is what speculative faults leave to upstream.
FILE, SHARED = "locked, private file", "locked, shared memory"
UPPER, OTHER = "locked, upper table or anon_vma", "locked, other"
_LOCKED = {
    "shmem_fault": SHARED,
    "do_fault": FILE,
    "do_huge_pmd_anonymous_page": "locked, huge page",
    "do_anonymous_page": "locked, new memory",
    "do_wp_page": "locked, copy",
    "do_swap_page": "locked, swap",
    "__pte_alloc": UPPER, "__pmd_alloc": UPPER, "__pud_alloc": UPPER, "__p4d_alloc": UPPER,
}
LOCKED = (*dict.fromkeys(_LOCKED.values()), OTHER)

_UPPER_IN_SPF = ("make_upper_tables", "spf_make_anon_vma")
# Upstream releases its locks before it reads a file.
_READ = ("page_cache_ra_unbounded", "page_cache_ra_order", "force_page_cache_ra", "read_pages")
_INTERRUPT = ("asm_sysvec_", "asm_common_interrupt", "asm_exc_nmi")
_ARCH_FAULT = ("do_user_addr_fault", "exc_page_fault")

_ENTRY = re.compile(r"\{ common_stacktrace:\n(.*?),\s*order:\s*(\d+)\s*\}\s*"
                    r"hitcount:\s*(\d+)", re.S)
_DROPPED = re.compile(r"^\s*Dropped:\s*(\d+)$", re.M)


def _name(line: str) -> str:
    """The function in a line like "  do_fault.isra.0+0x1/0x2"."""
    return line.strip().partition("+")[0].partition(".")[0]


def histogram(text: str, what: str) -> Histogram:
    """Read the file "hist" of the tracepoint."""
    dropped = _DROPPED.search(text)
    if not dropped or int(dropped[1]):
        raise BenchError(f"the guest returned a bad {what}: it is cut off, or stacks were dropped")
    found: Histogram = Counter()
    for stack, order, hits in _ENTRY.findall(text):
        found[tuple(map(_name, stack.strip().splitlines())), int(order)] += int(hits)
    return found


def _locked(inner: tuple[str, ...]) -> str:
    """The kind of an allocation of upstream's fault; INNER is the stack below it."""
    return next((kind for name, kind in _LOCKED.items() if name in inner), OTHER)


def kind(stack: tuple[str, ...], order: int) -> str:
    """The kind of an allocation; empty if it was not made by a page fault."""
    for number, name in enumerate(stack):
        if name in _READ or name.startswith(_INTERRUPT):
            return ""
        if name in _UPPER_IN_SPF:
            return UPPER
        if name == "spf_fault":
            return FREE_HUGE if order else FREE
        if name == "handle_mm_fault":
            # The kernel cuts stacks off; what cannot be told counts as a fault.
            caller = stack[number + 1] if number + 1 < len(stack) else _ARCH_FAULT[0]
            return _locked(stack[:number]) if caller in _ARCH_FAULT else POPULATED
    return _locked(stack) if "__handle_mm_fault" in stack else ""


def kinds(before: Histogram, after: Histogram) -> dict[str, int]:
    """How many allocations of each kind were made in between."""
    found: Counter[str] = Counter()
    for (stack, order), hits in (after - before).items():
        found[kind(stack, order)] += hits
    del found[""]
    return dict(found)


def lock_free(counts: dict[str, int], leave_out: tuple[str, ...] = ()) -> float | None:
    """The share of allocations in faults that were made without a lock; None without any."""
    free = sum(counts.get(name, 0) for name in (FREE, FREE_HUGE))
    locked = sum(counts.get(name, 0) for name in LOCKED if name not in leave_out)
    return free / (free + locked) if free + locked else None
