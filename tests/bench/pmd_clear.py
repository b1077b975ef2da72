# SPDX-License-Identifier: GPL-2.0-only
"""Removing page tables without IPIs: broadcasts, interruptions, cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest
from .report import Report

OFF, ON = "0", "1"
STOCK = guest.STOCK

# Aims of the feature.
GUP_COST = 0.005

_SOURCE = ROOT / "tests/bench/pmd_clear.c"
_ARMS = f"{OFF},{ON}"


@dataclass
class Plan:
    """Sizes of a run."""

    rounds: int = 5
    cost_rounds: int = 9
    cpu_counts: tuple[int, ...] = (2, 4, 8)
    areas: int = 64
    forks: int = 30
    mem: int = 1536


QUICK = Plan(rounds=1, cost_rounds=1, cpu_counts=(2,), areas=8, forks=3, mem=1024)


def _command(arms: str, rounds: int, plan: Plan, *scenes: str, **options: int) -> list[str]:
    return guest.command("pmd_clear", arms, rounds, *scenes, areas=plan.areas, forks=plan.forks,
                         **options)


def _broadcasts(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Count interruptions of other CPUs, on machines of several sizes.

    The last CPU is isolated.  The CPUs take turns on one host thread: counts are reproducible,
    and QEMU can patch code (trace events, the switch) that other CPUs are about to run.
    """
    boots = []
    for cpus in plan.cpu_counts:
        last = cpus - 1
        for arms, kernel, end in kernels.boots(_ARMS):
            machine = Machine(kernel, icount=4, cpus=cpus, mem=plan.mem,
                              append=[f"isolcpus={last}"])
            command = _command(arms, plan.rounds, plan, "collapse", "collapse_busy", "zap",
                               "unshare", "isolated", isolated=last)
            boots.append(guest.boot(machine, program, [command], f"pmd_clear-{cpus}-cpus{end}"))
            boots[-1].samples = guest.prefixed(f"cpus{cpus}_", boots[-1].samples)
    return boots


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE, kernels.arch)

    def booted(kernel: Path, arms: str, end: str) -> guest.Boot:
        return guest.boot(guest.counting(kernel, 1024), program,
                          [_command(arms, plan.cost_rounds, plan, "gup")], f"pmd_clear-cost{end}")

    boots = _broadcasts(kernels, program, plan)
    # Instructions: both values in one boot; off and stock in a separate boot each.
    boots += guest.with_stock(kernels, _ARMS, (OFF,), booted)
    report = Report.of(boots[0], guest.samples_of(boots),
                       "; cost: TCG that counts instructions")
    _aims(report, plan)
    return report


def _aims(report: Report, plan: Plan) -> None:
    for cpus in plan.cpu_counts:
        for scene in ("collapse", "unshare"):
            metric = f"cpus{cpus}_{scene}_walkers"
            for arm in (OFF, STOCK):
                report.aim_exact(metric, arm, cpus - 1)
            report.aim_exact(metric, ON, 0)
        for arm in (OFF, ON, STOCK):
            report.aim_exact(f"cpus{cpus}_zap_walkers", arm, 0)
        for what in ("cal", "any"):
            report.aim_exact(f"cpus{cpus}_isolated_last_cpu_{what}", ON, 0)
    for what in ("get_1", "pin_1", "get_512"):
        report.aim_excess(f"gup_{what}", ON, OFF, GUP_COST)
        report.aim_excess(f"{guest.ALONE}gup_{what}", OFF, STOCK, GUP_COST)
