# SPDX-License-Identifier: GPL-2.0-only
"""The table of switches, and the kernel parameters for every switch off, and on."""
from __future__ import annotations

from typing import NamedTuple

from faultline.common import ROOT


class Switch(NamedTuple):
    """A row of the table."""

    low: int
    high: int
    stock: int
    on: int
    unit: str
    new: str


PATH = ROOT / "sysctl/switches"
TABLE = {name: Switch(int(low), int(high), int(stock), int(on), unit, new)
         for name, low, high, stock, on, unit, new in (
             line.split() for line in PATH.read_text("utf-8").splitlines()
             if line and not line.startswith("#"))}
OFF = {name: row.stock for name, row in TABLE.items()}
ON = {name: row.on for name, row in TABLE.items()}


def parameters(values: dict[str, int]) -> str:
    """Kernel parameters that set the switches.

    Not set with sysctl(8) in the running guest: QEMU's multi-threaded TCG cannot patch code
    that another CPU is running; see IN_TURN in tests/suites.py.
    """
    return " ".join(f"sysctl.{name}={value}" for name, value in values.items())
