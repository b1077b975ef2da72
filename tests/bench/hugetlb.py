# SPDX-License-Identifier: GPL-2.0-only
"""Modes of hugetlb page table sharing: throughput, waits and memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest
from .report import Report

OFF, VMA_LOCK, REVALIDATE = "0", "1", "2"
STOCK = guest.STOCK
PEER = guest.PEER

# Aims of the feature.
SHARED = 0.98
SHARED_COST = 0.02
UNSHARED = 4.0
ATTACH_FAULTS = 48
EXIT_STORM = 0.1
PUNCH_WAIT = 0.1
TABLES = 1.0

_SOURCE = ROOT / "tests/bench/hugetlb.c"
_MODES = (OFF, VMA_LOCK, REVALIDATE)
_ALL_MODES = ",".join(_MODES)
_VS_STOCK = "_vs_stock"
_VIRTUAL = "virtual_"


@dataclass
class Plan:
    """Sizes of a run; defaults are those of the guest program's options."""

    rounds: int = 5
    cost_rounds: int = 9
    cpus: int = 4
    mem: int = 8192
    procs: int = 8
    gib: int = 4
    ms: int = 1000
    storm_procs: int = 100
    storm_gib: int = 512
    span: int = 256
    ops: int = 10


QUICK = Plan(rounds=1, cost_rounds=1, cpus=2, mem=2048, procs=2, gib=1, ms=200, storm_procs=8,
             storm_gib=32, span=16, ops=3)


def _command(arms: str, rounds: int, plan: Plan, *scenes: str) -> list[str]:
    return guest.command("hugetlb", arms, rounds, *scenes, procs=plan.procs, gib=plan.gib,
                         ms=plan.ms, storm_procs=plan.storm_procs, storm_gib=plan.storm_gib,
                         span=plan.span, ops=plan.ops)


def _fast_scenes(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Run the scenes that need CPUs running in parallel.

    Each round boots ours and stock one after the other, in the order A B, B A, A B and so on,
    so that each round has its counterpart on the other kernel close in time.
    """
    boots = []
    for number in range(plan.rounds):
        even = number % 2 == 0
        turns = kernels.boots(",".join(_MODES if even else _MODES[::-1]))
        for arms, kernel, end in turns if even else turns[::-1]:
            boots.append(guest.boot(
                Machine(kernel, cpus=plan.cpus, mem=plan.mem), program,
                [_command(arms, 1, plan, "shared", "unshared", "tables", "exit_storm", "attach",
                          "interfere")], f"hugetlb-scenes-{number + 1}{end}"))
    return boots


def _ratios(boots: list[guest.Boot], metric: str) -> list[guest.Sample]:
    """Compare each mode with stock in the same round."""
    ours: list[dict[str, float]] = []
    theirs: list[float] = []
    for boot in boots:
        values: dict[str, list[float]] = {}
        for sample in boot.samples:
            if sample.metric == metric:
                values.setdefault(sample.arm, []).append(sample.value)
        medians = {arm: statistics.median(found) for arm, found in values.items()}
        if STOCK in medians:
            theirs.append(medians[STOCK])
        elif PEER not in medians:
            ours.append(medians)
    return [guest.Sample(metric + _VS_STOCK, "ratio", mode, medians[mode] / stock)
            for medians, stock in zip(ours, theirs) if stock for mode in _MODES]


def _wait_vm(kernel: Path, plan: Plan) -> Machine:
    """A machine for the longest waits, whose clock counts the instructions of CPUs in turn.

    On a busy host, a long wait would mostly be the host's fault.  The duration of the operation
    itself is meaningless here: it includes the time of both threads.
    """
    return Machine(kernel, icount=4, cpus=2, mem=1024 + 2 * plan.span + 512)


def _waits(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Sample]:
    # It is slow and hardly varies.
    plan = replace(plan, ops=(plan.ops + 1) // 2)
    boots = [guest.boot(_wait_vm(kernel, plan), program,
                        [_command(arms, plan.rounds, plan, "interfere")], f"hugetlb-waits{end}")
             for arms, kernel, end in kernels.boots(_ALL_MODES)]
    return guest.prefixed(_VIRTUAL, (sample for sample in guest.samples_of(boots)
                                     if sample.unit in ("us", "faults")))


def _cost(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Sample]:
    """Count instructions: all modes in one boot; the default and stock in a boot each."""
    def booted(kernel: Path, arms: str, name: str) -> guest.Boot:
        return guest.boot(guest.counting(kernel, 1536), program,
                          [_command(arms, plan.cost_rounds, plan, "cost")], f"hugetlb-cost{name}")

    return guest.samples_of(guest.with_stock(kernels, _ALL_MODES, (VMA_LOCK,), booted))


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE, kernels.arch)
    boots = _fast_scenes(kernels, program, plan)
    samples = guest.samples_of(boots)
    for metric in ("shared_touches", "unshared_touches"):
        samples += _ratios(boots, metric)
    samples += _waits(kernels, program, plan)
    samples += _cost(kernels, program, plan)
    report = Report.of(boots[0], samples, "; virtual and cost: TCG that counts instructions")
    _aims(report)
    return report


def _aims(report: Report) -> None:
    report.aim_best("shared_touches" + _VS_STOCK, [VMA_LOCK], SHARED)
    for what in ("shared", "unshared"):
        report.aim_excess(f"{guest.ALONE}cost_{what}", VMA_LOCK, STOCK, SHARED_COST)
    report.aim_best("unshared_touches" + _VS_STOCK, [OFF, REVALIDATE], UNSHARED)
    for mode in (OFF, REVALIDATE):
        report.aim_value("attach_faults", mode, ATTACH_FAULTS)
    for mode in (OFF, REVALIDATE):
        report.aim_ratio("exit_storm_exit", mode, STOCK, EXIT_STORM)
    for mode in (OFF, REVALIDATE):
        report.aim_ratio(f"{_VIRTUAL}interfere_punch_fault_max", mode, STOCK, PUNCH_WAIT)
    for mode in (VMA_LOCK, REVALIDATE):
        for what in ("shared", "unshared"):
            report.aim_ratio(f"tables_{what}_all", mode, STOCK, TABLES)
