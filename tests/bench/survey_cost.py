# SPDX-License-Identifier: GPL-2.0-only
"""Instructions of each operation of the survey, when no other thread waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from . import guest
from .guest import OFF, ON, STOCK
from .report import Report, table
from .survey import ARMS, CALLS, SCENES, SOURCE

COST = "_cost"
# How the program ends the name of an operation's time, as nobody waits for it.
_ALONE = "_alone"
# How many more than on stock, at most.
EXCESS_ON, EXCESS_OFF = 0.01, 0.001


@dataclass
class Plan:
    """Sizes of a run."""

    rounds: int = 3
    # Two sections.
    mib: int = 128
    mem: int = 1024
    scenes: tuple[str, ...] = SCENES


QUICK = Plan(rounds=1, mib=16, mem=512)


def parts(report: Report, end: str, digits: tuple[int, int], base: str = STOCK) -> list[list[str]]:
    """A table of the metrics that end in END, with its head: what they are in arm BASE, and in the
    others as a part of that, with so many DIGITS; without that arm, as they are."""
    found = {row.arm for row in report.rows}
    arms = sorted((arm for arm in ARMS if arm in found), key=lambda arm: arm != base)
    lines = [["call", *arms]]
    for metric in dict.fromkeys(row.metric for row in report.rows if row.metric.endswith(end)):
        whole = report.median(metric, base)
        cells = [CALLS[metric.removesuffix(end)]]
        for arm in arms:
            value = report.median(metric, arm)
            cells.append("-" if value is None else f"{value:.{digits[0]}f}"
                         if arm == base or not whole else f"{value / whole:.{digits[1]}f}")
        lines.append(cells)
    return lines


def markdown(lines: list[list[str]]) -> str:
    """Return a table, whose first line is its head, in Markdown."""
    head, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *rows]) + "\n"


class Cost(Report):
    """A line for each operation."""

    def text(self) -> str:
        """Return the human-readable table, and the aims that are missed."""
        head, *body = parts(self, COST, (0, 4))
        missed = replace(self, aims=[aim for aim in self.aims if aim.met is False])
        return "\n".join([
            f"kernel:  {self.kernel}", f"machine: {self.machine}", "",
            "Instructions of the call, beside a thread that sleeps; of all arms but stock, as a",
            "part of those on stock (medians).", "", *table(head, body, left=1),
            *missed.verdicts()])

    def page(self) -> str:
        """Return the table in Markdown."""
        return markdown(parts(self, COST, (0, 4)))


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(SOURCE, kernels.arch)
    end = f"_{plan.mib}m_4k{_ALONE}"

    def boot(kernel: Path, arms: str, name: str) -> guest.Boot:
        command = guest.command("survey", arms, plan.rounds, *plan.scenes, size=plan.mib,
                                probe="idle", switches=guest.TABLE.name)
        # Memory moves between two nodes.
        machine = guest.counting(kernel, plan.mem, "numa=fake=2")
        booted = guest.boot(machine, program, [command], f"survey_cost{name}")
        # The clock counts instructions: 1 ns each.
        booted.samples = [
            replace(sample, metric=sample.metric.removesuffix(end).removesuffix(_ALONE) + COST,
                    unit="instr", value=sample.value * 1e6) for sample in booted.samples]
        return booted

    boots = [boot(kernel, arms, name) for arms, kernel, name in kernels.boots(f"{OFF},{ON}")]
    report = Cost.of(boots[0], guest.samples_of(boots), ", one CPU that counts instructions")
    for scene in plan.scenes:
        report.aim_excess(f"{scene}{COST}", ON, STOCK, EXCESS_ON)
        report.aim_excess(f"{scene}{COST}", OFF, STOCK, EXCESS_OFF)
    return report
