# SPDX-License-Identifier: GPL-2.0-only
"""Section-wise munmap and madvise: stalls of other threads, and their total cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from lib import switches
from . import guest
from .guest import STOCK
from .report import Report

ON = str(switches.ON["vm.munmap_section_kbytes"])
SMALL = "16384"
OFF = "off"

# Aims of the feature.
STALL_1G, STALL_4G = 0.01, 0.01
STEADY_P99_MS = 0.25
WALL_HAMMERED, WALL_HAMMERED_ZERO = 1.1, 1.2
COST_ON_OFF, COST_OFF_STOCK = 0.010, 0.001

CALLS = ("dontneed", "free", "cold")
# The costs that are measured of MADV_DONTNEED.
ADVICE_COSTS = ("cost_256m_4k", "cost_512m_thp")

_SOURCE = ROOT / "rollout/bench/munmap.c"


@dataclass
class Plan:
    """Sizes of a run."""

    rounds: int = 7
    cost_rounds: int = 9
    mib: int = 1024
    zero_mib: int = 4096
    cpus: int = 4
    cost_metric: str = ""
    mem: int = 2048


QUICK = Plan(rounds=1, cost_rounds=1, mib=128, zero_mib=512, mem=1024,
             cost_metric="cost_256m_4k")


def _scenes(arms: str, plan: Plan) -> list[list[str]]:
    def command(scene: str, mib: int = plan.mib, **options: str) -> list[str]:
        return guest.command("munmap", arms, plan.rounds, scene, size=mib, **options)

    return [command("steady"), command("steady", plan.zero_mib, fill="zero"),
            command("stall"), command("stall", plan.zero_mib, fill="zero"),
            command("convoy"), command("hammer"), command("alone")]


def _advice_scenes(arms: str, plan: Plan) -> list[list[str]]:
    return [guest.command("munmap", arms, plan.rounds, scene, size=plan.mib, call=call)
            for call in CALLS for scene in ("steady", "stall")]


def _cost(arms: str, plan: Plan, **options: str) -> list[str]:
    return guest.command("munmap", arms, plan.cost_rounds, "cost", **options)


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE, kernels.arch)

    def race(kernel: Path, commands: list[list[str]], name: str) -> guest.Boot:
        return guest.boot(Machine(kernel, cpus=plan.cpus, mem=plan.mem), program, commands, name)

    def count(kernel: Path, commands: list[list[str]], name: str) -> guest.Boot:
        return guest.boot(guest.counting(kernel, 1536), program, commands, name)

    def booted(kernel: Path, arms: str, end: str) -> guest.Boot:
        only = {"metric": plan.cost_metric} if plan.cost_metric else {}
        return count(kernel, [_cost(arms, plan, **only)], f"munmap-cost{end}")

    # Ratios: all arms in one boot, then stock in the same run.
    boots = [race(kernel, _scenes(arms, plan), f"munmap-scenes{end}")
             for arms, kernel, end in kernels.boots(f"0,{ON},{SMALL}")]
    boots += [race(kernel, _advice_scenes(arms, plan), f"munmap-madvise{end}")
              for arms, kernel, end in kernels.boots(f"0,{ON}")]
    advice = count(kernels.ours, [_cost(f"0,{ON}", plan, call="dontneed", metric=metric)
                                  for metric in ADVICE_COSTS], "munmap-madvise-cost")
    # Cost: on against off in one boot; off against others in a separate boot each.
    cost = guest.with_stock(kernels, f"0,{ON}", (OFF,), booted)
    samples = [*guest.samples_of(boots), *guest.prefixed("dontneed_", advice.samples),
               *guest.samples_of(cost)]
    report = Report.of(boots[0], (replace(sample, arm=OFF) if sample.arm == "0" else sample
                                  for sample in samples))
    _aims(report, plan, list(dict.fromkeys(sample.metric for sample in cost[0].samples)))
    return report


def _aims(report: Report, plan: Plan, cost_metrics: list[str]) -> None:
    # A thread that does nothing but map and unmap has longer pauses than the munmap
    # causes: its CPU frees what RCU has kept for it.  "quiet" shows them without one.
    report.aim_value(f"steady_{plan.mib}m_4k_mmap_ratio", ON, STALL_1G)
    report.aim_value(f"steady_{plan.zero_mib}m_zero_mmap_ratio", ON, STALL_4G)
    report.aim_value(f"steady_{plan.mib}m_4k_mmap_p99", ON, STEADY_P99_MS)
    report.aim_ratio(f"stall_{plan.mib}m_4k_munmap", ON, OFF, WALL_HAMMERED)
    report.aim_ratio(f"stall_{plan.zero_mib}m_zero_munmap", ON, OFF, WALL_HAMMERED_ZERO)
    # With three such threads, if the munmap has a CPU to itself.
    if plan.cpus > 3:
        report.aim_ratio(f"hammer_{plan.mib}m_4k_munmap", ON, OFF, WALL_HAMMERED)
    for call in CALLS:
        report.aim_value(f"steady_{plan.mib}m_4k_{call}_mmap_ratio", ON, STALL_1G)
    for metric in [*cost_metrics, *(f"dontneed_{metric}" for metric in ADVICE_COSTS)]:
        report.aim_excess(metric, ON, OFF, COST_ON_OFF)
    for metric in cost_metrics:
        report.aim_excess(guest.ALONE + metric, OFF, STOCK, COST_OFF_STOCK)
