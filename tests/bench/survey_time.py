# SPDX-License-Identifier: GPL-2.0-only
"""How long each operation of the survey takes beside a thread that maps, and takes turns with it.

On and off are compared, which one boot measures in turns: the same kernel can be a third faster in
another boot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from faultline.vm.qemu import Machine
from . import guest
from .guest import OFF, ON
from .report import Report, table
from .survey import HELPED as SCENES
from .survey import SOURCE
from .survey_cost import markdown, parts

# How the program ends the name of an operation's time.
_TIME = "_time"


@dataclass(frozen=True)
class Beside:
    """A thread that maps and unmaps a page."""

    # How the metrics end.
    end: str
    pause_us: int
    # The time of the operation, as a part of that with the switches off, is at most this.
    most: float
    words: str
    # Behind the call, in a row of the page: a row is of one table only.
    label: str


BESIDE = (Beside("_paused", 100, 1.10, "a thread that maps and unmaps a page each 0.1 ms",
                 ", with pauses"),
          Beside("_busy", 0, 1.5, "a thread that maps and unmaps a page all the time",
                 ", without pauses"))


@dataclass
class Plan:
    """Sizes of a run."""

    rounds: int = 3
    mib: int = 128
    # No more than the host has.
    cpus: int = 2
    mem: int = 1024
    scenes: tuple[str, ...] = SCENES


QUICK = Plan(rounds=1, mib=16, mem=512)


class Time(Report):
    """A table for each thread beside the operation."""

    def _tables(self) -> list[tuple[Beside, list[list[str]]]]:
        return [(beside, parts(self, beside.end, (1, 2), OFF)) for beside in BESIDE]

    def text(self) -> str:
        """Return the human-readable tables, and the aims that are missed."""
        lines = [f"kernel:  {self.kernel}", f"machine: {self.machine}", "",
                 "The time of the call in ms; of all arms but off, as a part of that (medians)."]
        for beside, (head, *body) in self._tables():
            lines += ["", f"Beside {beside.words}:", "", *table(head, body, left=1)]
        missed = replace(self, aims=[aim for aim in self.aims if aim.met is False])
        return "\n".join([*lines, *missed.verdicts()])

    def page(self) -> str:
        """Return the tables in Markdown."""
        tables = []
        for beside, (head, *body) in self._tables():
            rows = [[f"{call}{beside.label}", *cells] for call, *cells in body]
            tables.append(f"Beside {beside.words}:\n\n{markdown([head, *rows])}")
        return "\n".join(tables)


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(SOURCE, kernels.arch)
    size = f"_{plan.mib}m_4k"

    def boot(kernel: Path, arms: str, name: str, beside: Beside) -> guest.Boot:
        options: dict[str, int | str] = {"cpus": "0,1"} if plan.cpus > 1 else {}
        if beside.pause_us:
            options["pause"] = beside.pause_us
        command = guest.command("survey", arms, plan.rounds, *plan.scenes, size=plan.mib,
                                **options, switches=guest.TABLE.name)
        machine = Machine(kernel, cpus=plan.cpus, mem=plan.mem,
                          append=["numa=fake=2", "numa_balancing=disable"])
        booted = guest.boot(machine, program, [command], f"survey_time{beside.end}{name}")
        booted.samples = [
            replace(sample,
                    metric=sample.metric.removesuffix(_TIME).removesuffix(size) + beside.end)
            for sample in booted.samples if sample.metric.endswith(_TIME)]
        return booted

    boots = [boot(kernel, arms, name, beside) for beside in BESIDE
             for arms, kernel, name in kernels.boots(f"{OFF},{ON}")]
    report = Time.of(boots[0], guest.samples_of(boots))
    for beside in BESIDE:
        for scene in plan.scenes:
            report.aim_ratio(f"{scene}{beside.end}", ON, OFF, beside.most)
    return report
