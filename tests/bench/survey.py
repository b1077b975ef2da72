# SPDX-License-Identifier: GPL-2.0-only
"""How long each operation on memory holds up other threads: stock, all switches off, all on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest
from .guest import OFF, ON
from .report import Report, table

# The longest wait of another thread, and the part of the operation's time that it is.
WAIT, RATIO = "_wait_max", "_wait_ratio"
# The aim of each operation that a switch is for.
LONGEST = 0.02
HELPED = ("munmap", "dontneed", "free", "cold", "map_populate", "populate_write", "populate_read",
          "mlock_empty", "fixed_none", "mlock", "munlock", "mlockall", "smaps", "smaps_rollup",
          "numa_maps", "clear_refs", "uffd_wp")

_SOURCE = ROOT / "tests/bench/survey.c"
SCENES = tuple(re.findall(r'^\t\{ "(\w+)", ', _SOURCE.read_text("utf-8"), re.M))


@dataclass
class Plan:
    """Sizes of a run."""

    rounds: int = 3
    mib: int = 512
    cpus: int = 2
    mem: int = 2048
    scenes: tuple[str, ...] = SCENES


QUICK = Plan(rounds=1, mib=64, mem=1024)


class Survey(Report):
    """A line for each operation."""

    def text(self) -> str:
        """Return the human-readable table."""
        arms = list(dict.fromkeys(row.arm for row in self.rows))
        names = dict.fromkeys(row.metric.removesuffix(WAIT) for row in self.rows
                              if row.metric.endswith(WAIT))
        body = []
        for name in names:
            cells = [name]
            for arm in arms:
                wait, ratio = self.median(name + WAIT, arm), self.median(name + RATIO, arm)
                cells += ["-", "-"] if wait is None or ratio is None else [
                    f"{wait:.1f}", f"{ratio:.3f}"]
            body.append(cells)
        head = ["operation", *(text for arm in arms for text in (f"{arm}, ms", "part"))]
        return "\n".join([
            f"kernel:  {self.kernel}", f"machine: {self.machine}", "",
            "The longest wait of a thread that maps and unmaps a page beside the operation, and",
            "the part of the operation's time that it is (medians).", "",
            *table(head, body, left=1)])


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE)

    def boot(kernel: Path, arms: str, end: str) -> guest.Boot:
        command = guest.command("survey", arms, plan.rounds, *plan.scenes, size=plan.mib,
                                switches=guest.TABLE.name)
        machine = Machine(kernel, cpus=plan.cpus, mem=plan.mem, append=["numa=fake=2"])
        return guest.boot(machine, program, [command], f"survey{end}")

    boots = [boot(kernel, arms, end) for arms, kernel, end in kernels.boots(f"{OFF},{ON}")]
    report = Survey.of(boots[0], guest.samples_of(boots))
    for name in HELPED:
        report.aim_value(name + RATIO, ON, LONGEST)
    return report
