# SPDX-License-Identifier: GPL-2.0-only
"""The switches of the Faultline kernel, and which of their values may alternate."""
from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

from . import Error


@dataclasses.dataclass(frozen=True)
class Switch:
    """A sysctl of the kernel."""

    low: int
    high: int
    stock: int
    # Values that act on new mappings only.  A host that alternates between such a
    # value and another one has a mixture of both at any time.
    new_mappings_only: frozenset[int]


@functools.cache
def switches() -> dict[str, Switch]:
    """The table of switches, by name."""
    here = Path(__file__).resolve()
    table = Path(os.environ.get("FAULTLINE_SWITCHES") or here.parents[2] / "faultline/switches")
    # Without a package, that of the source tree.
    path = table if table.exists() else here.parents[3] / "sysctl/switches"
    try:
        rows = [line.split() for line in path.read_text("utf-8").splitlines()
                if line.startswith("vm.")]
    except OSError as error:
        raise Error(f"cannot read {table} ({error.strerror}): install the package "
                    "faultline-profiles") from None
    return {name: Switch(int(low), int(high), int(stock),
                         frozenset(int(value) for value in new.split(",") if value != "-"))
            for name, low, high, stock, _, _, new in rows}


def acts_at_once(switch: str, first: int, second: int) -> bool:
    """Whether going from one value to the other, and back, changes a running program at once."""
    return not {first, second} & switches()[switch].new_mappings_only


def metric_of(switch: str) -> str:
    """The metric under which node_exporter reports the sysctl."""
    return "node_sysctl_" + switch.replace(".", "_")
