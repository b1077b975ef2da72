# SPDX-License-Identifier: GPL-2.0-only
"""Micro-benchmarks under their public names: stock, all switches off, all on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from ..common import ROOT
from . import guest
from .guest import STOCK
from .report import Report, rows_of

OFF, ON = "off", "on"

# Aims of all features together: throughput against stock.
LEAST_ON, LEAST_OFF = 0.98, 0.995

_SOURCE = ROOT / "tests/bench/micro.c"


@dataclass
class Plan:
    """Sizes of a run: in each round, every kernel is booted once."""

    rounds: int = 4
    cpus: int = 2
    mem: int = 2048
    ms: int = 1000
    turns: int = 3


QUICK = Plan(rounds=1, ms=100, turns=1)


def _commands(arm: str, plan: Plan) -> list[list[str]]:
    return [["micro", "--arms", arm, "--rounds", str(plan.turns), "--ms", str(plan.ms),
             "--mode", mode, "--tasks", str(tasks), "all"]
            for mode in ("threads", "processes")
            for tasks in dict.fromkeys((1, plan.cpus))]


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE)
    vm = ["--cpus", str(plan.cpus), "--mem", str(plan.mem), "--timeout", "7200",
          "--append", f"hugepages={4 * plan.cpus}"]
    turns = [*kernels.others(), (OFF, kernels.ours), (ON, kernels.ours)]
    samples: list[guest.Sample] = []
    ours = guest.Boot()
    for number in range(plan.rounds):
        for arm, kernel in turns if number % 2 == 0 else turns[::-1]:
            boot = guest.boot(kernel, program, _commands(arm, plan),
                              name=f"micro-{number + 1}-{arm}", options=vm)
            samples += boot.samples
            if kernel == kernels.ours:
                ours = boot
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, QEMU {ours.accel.upper()}"
    report = Report(ours.release, machine, rows_of(samples))
    for metric in dict.fromkeys(sample.metric for sample in samples):
        report.aim_least(metric, ON, STOCK, LEAST_ON)
        report.aim_least(metric, OFF, STOCK, LEAST_OFF)
    return report
