# SPDX-License-Identifier: GPL-2.0-only
"""Micro-benchmarks under their public names: stock, all switches off, all on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest
from .guest import OFF, ON, STOCK
from .report import Report

THROUGHPUT, INSTRUCTIONS = "throughput", "cost"
SCENES = (THROUGHPUT, INSTRUCTIONS)

# Aims of all features together: throughput against stock, and instructions per operation.
LEAST_ON, LEAST_OFF = 0.98, 0.995
MOST_ON, MOST_OFF = 1 / LEAST_ON, 1 / LEAST_OFF

COST = "_instructions"

_SOURCE = ROOT / "rollout/bench/micro.c"


@dataclass
class Plan:
    """Sizes of a run: in each round, every kernel is booted once."""

    rounds: int = 4
    cpus: int = 2
    mem: int = 2048
    ms: int = 1000
    turns: int = 3
    # Of a turn that counts instructions.
    cost_ms: int = 100
    scenes: tuple[str, ...] = SCENES


QUICK = Plan(rounds=1, ms=100, turns=1, cost_ms=20)


def _commands(arm: str, turns: int, ms: int, *tasks: int) -> list[list[str]]:
    return [guest.command("micro", arm, turns, "all", ms=ms, mode=mode, tasks=count)
            for mode in ("threads", "processes") for count in dict.fromkeys(tasks)]


def _cost(arm: str, kernel: Path, program: Path, plan: Plan) -> guest.Boot:
    """Instructions per operation: throughput depends on where an emulator has put the code."""
    vm = guest.counting(kernel, plan.mem, "hugepages=4", *guest.switched(arm))
    boot = guest.boot(vm, program, _commands(arm, plan.turns, plan.cost_ms, 1),
                      f"micro-cost-{arm}")
    return replace(boot, samples=[guest.Sample(sample.metric + COST, "instr", arm,
                                               1e9 / sample.value) for sample in boot.samples])


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE, kernels.arch)
    turns = [*kernels.others(), (OFF, kernels.ours), (ON, kernels.ours)]
    boots: list[tuple[str, guest.Boot]] = []
    for number in range(plan.rounds if THROUGHPUT in plan.scenes else 0):
        for arm, kernel in turns if number % 2 == 0 else turns[::-1]:
            vm = Machine(kernel, cpus=plan.cpus, mem=plan.mem,
                         append=[f"hugepages={4 * plan.cpus}", *guest.switched(arm)])
            boots.append((arm, guest.boot(
                vm, program, _commands(arm, plan.turns, plan.ms, 1, plan.cpus),
                f"micro-{number + 1}-{arm}")))
    boots += [(arm, _cost(arm, kernel, program, plan))
              for arm, kernel in (turns if INSTRUCTIONS in plan.scenes else [])]
    samples = guest.samples_of(boot for _, boot in boots)
    report = Report.of(dict(boots)[ON], samples)
    for metric in dict.fromkeys(sample.metric for sample in samples):
        if metric.endswith(COST):
            report.aim_ratio(metric, ON, STOCK, MOST_ON)
            report.aim_ratio(metric, OFF, STOCK, MOST_OFF)
        else:
            report.aim_least(metric, ON, STOCK, LEAST_ON)
            report.aim_least(metric, OFF, STOCK, LEAST_OFF)
    return report
