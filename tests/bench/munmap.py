# SPDX-License-Identifier: GPL-2.0-only
"""Section-wise munmap and madvise: stalls of other threads, and their total cost."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from lib import switches
from . import guest
from .guest import CONFIG_N, STOCK
from .report import Report, rows_of

ON = str(switches.ON["vm.munmap_section_kbytes"])
SMALL = "16384"
OFF = "off"

# Aims of the feature.
STALL_1G, STALL_4G = 0.01, 0.01
STEADY_P99_MS = 0.25
WALL_HAMMERED, WALL_HAMMERED_ZERO = 1.1, 1.2
COST_ON_OFF, COST_OFF_STOCK = 0.010, 0.001

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
    base = ["munmap", "--arms", arms, "--rounds", str(plan.rounds)]
    one = [*base, "--size", str(plan.mib)]
    zero = [*base, "--size", str(plan.zero_mib), "--fill", "zero"]
    return [[*one, "steady"], [*zero, "steady"], [*one, "stall"], [*zero, "stall"],
            [*one, "convoy"], [*one, "hammer"], [*one, "alone"]]


def _cost(arms: str, plan: Plan) -> list[list[str]]:
    command = ["munmap", "--arms", arms, "--rounds", str(plan.cost_rounds), "cost"]
    return [command + ([plan.cost_metric] if plan.cost_metric else [])]


def _advice_scenes(arms: str, plan: Plan) -> list[list[str]]:
    base = ["munmap", "--arms", arms, "--rounds", str(plan.rounds), "--size", str(plan.mib)]
    return [[*base, "--call", call, scene]
            for call in ("dontneed", "free", "cold") for scene in ("steady", "stall")]


def _advice_cost(arms: str, plan: Plan) -> list[list[str]]:
    command = ["munmap", "--arms", arms, "--rounds", str(plan.cost_rounds), "--call", "dontneed"]
    return [[*command, "cost", metric] for metric in ADVICE_COSTS]


def _renamed(samples: list[guest.Sample], old: str, new: str) -> list[guest.Sample]:
    return [replace(sample, arm=new) if sample.arm == old else sample for sample in samples]


def _cost_against(samples: list[guest.Sample], arm: str) -> list[guest.Sample]:
    """Give samples of a single-arm cost boot another metric, as they must not be mixed."""
    return [replace(sample, metric=f"alone_{sample.metric}", arm=arm) for sample in samples]


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE)

    def race(kernel: Path, commands: list[list[str]], name: str) -> guest.Boot:
        return guest.boot(Machine(kernel, cpus=plan.cpus, mem=plan.mem), program, commands, name)

    def count(kernel: Path, commands: list[list[str]], name: str) -> guest.Boot:
        return guest.boot(guest.counting(kernel, 1536), program, commands, name)

    # Ratios: three arms in one boot, then stock in the same run.
    boot = race(kernels.ours, _scenes(f"0,{ON},{SMALL}", plan), "munmap-scenes")
    samples = _renamed(boot.samples, "0", OFF)
    for arm, image in kernels.others():
        samples += race(image, _scenes(arm, plan), f"munmap-scenes-{arm}").samples

    boot = race(kernels.ours, _advice_scenes(f"0,{ON}", plan), "munmap-madvise")
    samples += _renamed(boot.samples, "0", OFF)
    for arm, image in kernels.others():
        samples += race(image, _advice_scenes(arm, plan), f"munmap-madvise-{arm}").samples
    advice = count(kernels.ours, _advice_cost(f"0,{ON}", plan), "munmap-madvise-cost").samples
    samples += [replace(sample, metric=f"dontneed_{sample.metric}")
                for sample in _renamed(advice, "0", OFF)]

    # Cost: on against off in one boot; off against others in a separate boot each.
    cost = count(kernels.ours, _cost(f"0,{ON}", plan), "munmap-cost").samples
    samples += _renamed(cost, "0", OFF)
    others = [(STOCK, kernels.stock), (CONFIG_N, kernels.config_n)]
    if any(kernel for _, kernel in others):
        for arm, kernel in [(OFF, kernels.ours), *others]:
            if kernel:
                alone = count(kernel, _cost(arm, plan), f"munmap-cost-{arm}")
                samples += _cost_against(alone.samples, arm)

    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, QEMU {boot.accel.upper()}"
    report = Report(boot.release, machine, rows_of(samples))
    _aims(report, plan, list(dict.fromkeys(sample.metric for sample in cost)),
          [arm for arm, kernel in others if kernel] or [STOCK])
    return report


def _aims(report: Report, plan: Plan, cost_metrics: list[str], others: list[str]) -> None:
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
    for call in ("dontneed", "free", "cold"):
        report.aim_value(f"steady_{plan.mib}m_4k_{call}_mmap_ratio", ON, STALL_1G)
    for metric in [*cost_metrics, *(f"dontneed_{metric}" for metric in ADVICE_COSTS)]:
        report.aim_excess(metric, ON, OFF, COST_ON_OFF)
    for metric in cost_metrics:
        for other in others:
            report.aim_excess(f"alone_{metric}", OFF, other, COST_OFF_STOCK)
