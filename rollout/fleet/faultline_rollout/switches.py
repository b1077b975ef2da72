# SPDX-License-Identifier: GPL-2.0-only
"""The switches of the Faultline kernel, and which of their values may alternate.

A test compares it with the kernel's.
"""
from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Switch:
    """A sysctl of the kernel."""

    low: int
    high: int
    stock: int
    # Values that act on new mappings only.  A host that alternates between such a
    # value and another one has a mixture of both at any time.
    new_mappings_only: frozenset[int] = frozenset()


SWITCHES = {
    "vm.munmap_section_kbytes": Switch(0, 1048576, 0),
    "vm.madvise_section_kbytes": Switch(0, 1048576, 0),
    "vm.hugetlb_pmd_sharing": Switch(0, 2, 1, frozenset({0})),
    # 2 only in kernels for comparisons, on powerpc.
    "vm.pmd_clear_ipi_free": Switch(0, 2, 0),
    "vm.speculative_page_fault": Switch(0, 1, 0),
}


def acts_at_once(switch: str, first: int, second: int) -> bool:
    """Whether going from one value to the other, and back, changes a running program at once."""
    return not {first, second} & SWITCHES[switch].new_mappings_only


def metric_of(switch: str) -> str:
    """The metric under which node_exporter reports the sysctl."""
    return "node_sysctl_" + switch.replace(".", "_")
