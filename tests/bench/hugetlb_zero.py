# SPDX-License-Identifier: GPL-2.0-only
"""Clearing huge pages ahead of the locks: waits beside page faults, and their cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest
from .guest import STOCK
from .report import Report

OFF, ON = "0", "1"

# Aims of the feature: of what a writer and a mapper wait on stock.
SMALL_P99 = 0.2
GIANT_MAX = 0.01
COST_ON = 0.005
COST_OFF = 0.001

SCENES = ("2m", "1g", "cost")

_SOURCE = ROOT / "tests/bench/hugetlb_zero.c"
_ARMS = f"{OFF},{ON}"


@dataclass
class Plan:
    """Sizes of a run; defaults are those of the guest program's options."""

    scenes: tuple[str, ...] = SCENES
    rounds: int = 3
    cost_rounds: int = 9
    # A page of 1 GiB, and the rest of the guest.
    mem: int = 2560
    passes: int = 20
    pages: int = 32


QUICK = Plan(("2m", "cost"), rounds=1, cost_rounds=1, mem=512, passes=2, pages=8)


def _command(arms: str, rounds: int, plan: Plan, scene: str) -> list[str]:
    return guest.command("hugetlb_zero", arms, rounds, scene, passes=plan.passes,
                         pages=plan.pages)


def _waits(kernels: guest.Kernels, program: Path, plan: Plan, scene: str) -> list[guest.Boot]:
    """Run a scene on one CPU whose clock counts instructions, 16 ns for each.

    So results do not depend on the load of the host.  With several CPUs, which take turns, a
    thread would wait for its turn, and not for a lock.
    """
    append = ["hugepagesz=1G", "hugepages=1"] if scene == "1g" else []
    return [guest.boot(Machine(kernel, icount=4, cpus=1, mem=plan.mem, append=append), program,
                       [_command(arms, plan.rounds, plan, scene)], f"hugetlb_zero-{scene}{end}")
            for arms, kernel, end in kernels.boots(_ARMS)]


def _cost(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Count instructions: both values in one boot; all kernels in a separate boot each."""
    def booted(kernel: Path, arms: str, end: str) -> guest.Boot:
        return guest.boot(guest.counting(kernel, 512), program,
                          [_command(arms, plan.cost_rounds, plan, "cost")],
                          f"hugetlb_zero-cost{end}")

    return guest.with_stock(kernels, _ARMS, (OFF, ON), booted)


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE, kernels.arch)
    boots: list[guest.Boot] = []
    for scene in plan.scenes:
        if scene == "cost":
            boots += _cost(kernels, program, plan)
        else:
            boots += _waits(kernels, program, plan, scene)
    samples = [replace(sample, metric=f"virtual_{sample.metric}") if sample.unit == "us" else sample
               for sample in guest.samples_of(boots)]
    report = Report.of(boots[0], samples, "; waits, cost: TCG that counts instructions")
    _aims(report, plan)
    return report


def _aims(report: Report, plan: Plan) -> None:
    for who in ("writer", "mapper"):
        if "2m" in plan.scenes:
            report.aim_ratio(f"virtual_2m_{who}_p99", ON, STOCK, SMALL_P99)
        if "1g" in plan.scenes:
            report.aim_ratio(f"virtual_1g_{who}_max", ON, STOCK, GIANT_MAX)
    if "cost" in plan.scenes:
        report.aim_excess(f"{guest.ALONE}cost_2m", ON, STOCK, COST_ON)
        report.aim_excess(f"{guest.ALONE}cost_2m", OFF, STOCK, COST_OFF)
