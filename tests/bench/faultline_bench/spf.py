# SPDX-License-Identifier: GPL-2.0-only
"""Page faults without locks: waits of writers, locks, throughput, cost."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path

from . import guest
from .report import Report, rows_of

OFF, ON = "0", "1"
STOCK = guest.STOCK
CONFIG_N = "config-n"

# Aims of the feature.
WRITER_WAIT = 0.1
LOCK_FREE = 0.99
COST_OFF = 0.001

_SOURCE = guest.ROOT / "tests/bench/spf.c"
_ARMS = f"{OFF},{ON}"

# Waits and counts: time is the instructions of the CPUs, which run in turns on
# one thread of the host, so that they do not depend on what else it does.  And
# QEMU can patch code there (the switch, trace events) that others may run.
_TURNS_VM = ["--icount", "4", "--append", "norandmaps"]
# On one CPU without randomness, two boots of the same kernel count the same.
_COST_VM = ["--icount", "0", "--cpus", "1", "--append", "norandmaps"]


@dataclass
class Plan:
    """How much of it to do; sizes are those of the guest program's options."""

    rounds: int = 5
    cost_rounds: int = 9
    cpus: int = 4
    mem: int = 1024
    ms: int = 4000
    mib: int = 32
    threads: int = 4


QUICK = Plan(rounds=1, cost_rounds=1, mem=512, ms=200, mib=8)


# Idle threads do little in a turn, so theirs are so much longer.
_IDLE_TURN = 5


def _command(arms: str, rounds: int, plan: Plan, *scenes: str) -> list[str]:
    return ["spf", "--arms", arms, "--rounds", str(rounds), "--ms", str(plan.ms),
            "--mib", str(plan.mib), "--threads", str(plan.threads), *scenes]


def _waits_and_locks(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Let idle threads have few CPUs; with more, nobody but them keeps the writer waiting."""
    vm = [*_TURNS_VM, "--mem", str(plan.mem), "--timeout", "7200"]
    turns = [(kernels.ours, _ARMS)]
    if kernels.stock:
        turns.append((kernels.stock, STOCK))
    idle = replace(plan, ms=plan.ms * _IDLE_TURN)
    return [guest.boot(kernel, program, [_command(arms, plan.rounds, sizes, *scenes)],
                       name=f"spf-{scenes[0]}" + (f"-{STOCK}" if arms == STOCK else ""),
                       options=[*vm, "--cpus", str(cpus)])
            for cpus, sizes, scenes in ((2, idle, ["idle"]), (plan.cpus, plan, ["memcg", "locks"]))
            for kernel, arms in turns]


def _throughput(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Run what needs CPUs that run at the same time: each arm in a boot of its own.

    Each round has the arms in one order, the next one in the other.  The switch is set on the
    kernel's command line: QEMU cannot be trusted to patch code that other CPUs may run.
    """
    vm = ["--cpus", str(plan.cpus), "--mem", str(plan.mem), "--timeout", "7200"]
    turns = [(kernels.ours, arm, ["--append", f"faultline=speculative_page_fault:{arm}"])
             for arm in (OFF, ON)]
    if kernels.stock:
        turns.append((kernels.stock, STOCK, []))
    boots = []
    for number in range(plan.rounds):
        for kernel, arm, append in turns if number % 2 == 0 else turns[::-1]:
            boots.append(guest.boot(kernel, program, [_command(arm, 1, plan, "throughput")],
                                    name=f"spf-throughput-{number + 1}-{arm}",
                                    options=[*vm, *append]))
    return boots


def _cost(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Sample]:
    """Count instructions: both values in one boot; off against others, alone in a boot each."""
    vm = [*_COST_VM, "--mem", str(plan.mem), "--timeout", "7200"]

    def booted(kernel: Path, arms: str, name: str) -> guest.Boot:
        return guest.boot(kernel, program, [_command(arms, plan.cost_rounds, plan, "cost")],
                          name=f"spf-cost{name}", options=vm)

    samples = guest.with_stock(kernels, _ARMS, OFF, booted)
    if kernels.config_n:
        turns = [(kernels.config_n, CONFIG_N)]
        if not kernels.stock:
            turns.append((kernels.ours, OFF))
        for kernel, arm in turns:
            samples += [replace(sample, metric=guest.ALONE + sample.metric)
                        for sample in booted(kernel, arm, f"-{arm}").samples]
    return samples


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(_SOURCE)
    samples = [replace(sample, metric=f"virtual_{sample.metric}") if sample.unit == "us" else sample
               for boot in _waits_and_locks(kernels, program, plan) for sample in boot.samples]
    boots = _throughput(kernels, program, plan)
    samples += [sample for boot in boots for sample in boot.samples]
    cost = _cost(kernels, program, plan)
    samples += cost
    machine = (f"{platform.machine()}, {os.cpu_count()} CPUs, QEMU {boots[0].accel.upper()}; "
               "waits, locks, cost: TCG that counts instructions")
    report = Report(boots[0].release, machine, rows_of(samples))
    others = [arm for arm, kernel in ((STOCK, kernels.stock), (CONFIG_N, kernels.config_n))
              if kernel]
    _aims(report, list(dict.fromkeys(sample.metric for sample in cost)), others or [STOCK])
    return report


def _aims(report: Report, cost_metrics: list[str], others: list[str]) -> None:
    for scene in ("idle", "memcg"):
        for what in ("p99", "any_p99", "max"):
            report.aim_ratio(f"virtual_{scene}_same_{what}", ON, STOCK, WRITER_WAIT)
    for who in ("user", "kernel"):
        report.aim_best(f"{who}_lock_free", [ON], LOCK_FREE)
    for metric in cost_metrics:
        if metric.startswith(guest.ALONE):
            continue
        for other in others:
            report.aim_excess(guest.ALONE + metric, OFF, other, COST_OFF)
