# SPDX-License-Identifier: GPL-2.0-only
"""Speculative page faults: waits of writers, locks, throughput, cost."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest
from .guest import STOCK, BenchError
from .report import Report

OFF, ON = "0", "1"

# Aims of the feature.
WRITER_WAIT = 0.1
LOCK_FREE = 0.99
TOUCHES = 1.0
RECORDS = 1.25
COST_ON = 0.95
COST_OFF = 0.001
# Waits beside huge pages that are compacted, or only cleared.
COMPACT_WAIT = 0.1
HUGE_WAIT = 0.2
# Instructions of a fault where there is no page table.
COST_TABLE = 1.05
COST_HUGE = 1.005

# In the order in which they run; in the first ones a writer waits.
WAITS = ("idle", "memcg", "cpu_max")
HUGE = ("huge", "compact")
SCENES = (*WAITS, *HUGE, "locks", "throughput", "cost")

_SOURCE = ROOT / "tests/bench/spf.c"
_ARMS = f"{OFF},{ON}"


@dataclass
class Plan:
    """Sizes of a run; defaults are those of the guest program's options."""

    scenes: tuple[str, ...] = SCENES
    rounds: int = 5
    cost_rounds: int = 9
    huge_rounds: int = 3
    cpus: int = 4
    mem: int = 1024
    ms: int = 4000
    mib: int = 32
    # For throughput; locks has one thread per virtual CPU.
    threads: tuple[int, ...] = (1, 2)


QUICK = Plan(rounds=1, cost_rounds=1, huge_rounds=1, mem=512, ms=200, mib=8)


# In these scenes threads rarely run and do little in a turn, so turns are longer by this factor.
# They also have few CPUs; with more, only these threads would keep the writer waiting.
_RARE = ("idle", "cpu_max")
_RARE_TURN = 5
_RARE_CPUS = 2


def _command(arms: str, rounds: int, plan: Plan, scene: str, threads: int = 1) -> list[str]:
    return guest.command("spf", arms, rounds, scene, ms=plan.ms, mib=plan.mib, threads=threads)


def _waits_and_locks(kernels: guest.Kernels, program: Path, plan: Plan,
                     scene: str) -> list[guest.Boot]:
    """Run a scene on a clock that counts the instructions of the CPUs.

    They take turns on one host thread, so results do not depend on the load of the host.  And
    QEMU can patch code (the switch, trace events) that other CPUs may run.
    """
    cpus = plan.cpus
    if scene in _RARE:
        plan, cpus = replace(plan, ms=plan.ms * _RARE_TURN), _RARE_CPUS
    return [guest.boot(Machine(kernel, icount=4, cpus=cpus, mem=plan.mem), program,
                       [_command(arms, plan.rounds, plan, scene, cpus)],
                       f"spf-{scene}{end}")
            for arms, kernel, end in kernels.boots(_ARMS)]


# Little memory, as all of it is fragmented for each pass.
_HUGE_MEM = 544
# Operations are frequent, and only the time counts in which threads fault.
_HUGE_SHORTER = 10


def _huge(kernels: guest.Kernels, program: Path, plan: Plan, scene: str) -> list[guest.Boot]:
    """Run a scene of huge pages on one CPU, where a nanosecond is an instruction.

    With several, which take turns, a thread would wait for its turn, and not for a lock.
    """
    plan = replace(plan, ms=max(1, plan.ms // _HUGE_SHORTER))
    return [guest.boot(guest.counting(kernel, _HUGE_MEM), program,
                       [_command(arms, plan.huge_rounds, plan, scene)], f"spf-{scene}{end}")
            for arms, kernel, end in kernels.boots(_ARMS)]


def real_cpus() -> int:
    """Return the number of host CPUs that this program may use."""
    return len(os.sched_getaffinity(0))


def throughput_threads(plan: Plan) -> list[int]:
    """Return the thread counts that do not exceed the number of host CPUs.

    With more virtual CPUs than real ones, the host may preempt a virtual CPU that holds a lock,
    and figures of the same kernel vary by a factor of two.
    """
    cpus = real_cpus()
    threads = sorted({number for number in plan.threads if number <= cpus})
    if not threads:
        raise BenchError(f"--threads: throughput needs as many host CPUs, this host has {cpus}")
    if len(threads) < len(set(plan.threads)):
        print(f"# throughput with more than {cpus} threads is left out: the host has {cpus} CPUs",
              file=sys.stderr)
    return threads


def _throughput(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Run the scene that needs CPUs running in parallel: each arm in a separate boot.

    Rounds alternate the order of the arms.  The switch is set on the kernel command line: QEMU
    cannot reliably patch code that other CPUs may run.
    """
    threads = throughput_threads(plan)
    turns = [(kernels.ours, arm, [f"sysctl.vm.speculative_page_fault={arm}"])
             for arm in (OFF, ON)]
    turns += [(kernel, arm, []) for arm, kernel in kernels.others()]
    boots = []
    for number in range(plan.rounds):
        for kernel, arm, append in turns if number % 2 == 0 else turns[::-1]:
            boots.append(guest.boot(
                Machine(kernel, cpus=max(threads), mem=plan.mem, append=append), program,
                [_command(arm, 1, plan, "throughput", n) for n in threads],
                f"spf-throughput-{number + 1}-{arm}"))
    return boots


def _cost(kernels: guest.Kernels, program: Path, plan: Plan) -> list[guest.Boot]:
    """Count instructions: both values in one boot; all kernels in a separate boot each."""
    def booted(kernel: Path, arms: str, end: str) -> guest.Boot:
        return guest.boot(guest.counting(kernel, plan.mem), program,
                          [_command(arms, plan.cost_rounds, plan, "cost")], f"spf-cost{end}")

    return guest.with_stock(kernels, _ARMS, (OFF, ON), booted)


def _virtual(sample: guest.Sample) -> guest.Sample:
    return (replace(sample, metric=f"virtual_{sample.metric}") if sample.unit == "us" else sample)


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    if "throughput" in plan.scenes:
        throughput_threads(plan)
    program = guest.compile_program(_SOURCE, kernels.arch)
    boots: list[guest.Boot] = []
    for scene in SCENES:
        if scene not in plan.scenes:
            continue
        if scene == "throughput":
            # The only scene that may run on KVM.
            boots = [*_throughput(kernels, program, plan), *boots]
        elif scene == "cost":
            boots += _cost(kernels, program, plan)
        elif scene in HUGE:
            boots += _huge(kernels, program, plan, scene)
        else:
            boots += _waits_and_locks(kernels, program, plan, scene)
    report = Report.of(boots[0], map(_virtual, guest.samples_of(boots)),
                       "; waits, locks, cost: TCG that counts instructions")
    _aims(report, plan)
    return report


# The aim of each kind of fault.  Faults taken by the kernel have none: their aim is to avoid
# mmap_lock.  The first write to a VMA has none, it takes mmap_lock on any kernel.
COSTS = {"zero": COST_ON, "anon": COST_ON, "cow": COST_ON, "reuse": COST_ON, "kernel": None,
         "table": COST_TABLE, "table_zero": COST_TABLE, "huge": COST_HUGE, "vma": None}


def _aims(report: Report, plan: Plan) -> None:
    for scene in WAITS:
        if scene in plan.scenes:
            for what in ("p99", "any_p99", "max"):
                report.aim_ratio(f"virtual_{scene}_same_{what}", ON, STOCK, WRITER_WAIT)
    for scene, aim, measures in (("compact", COMPACT_WAIT, ("p99", "max")),
                                 ("huge", HUGE_WAIT, ("p99",))):
        for who in ("writer", "mapper") if scene in plan.scenes else ():
            for what in measures:
                report.aim_ratio(f"virtual_{scene}_{who}_{what}", ON, STOCK, aim)
    if "locks" in plan.scenes:
        for who in ("user", "kernel"):
            report.aim_best(f"{who}_lock_free", [ON], LOCK_FREE)
    if "throughput" in plan.scenes:
        for metric, aim in (("one_vma", TOUCHES), ("own_vma", TOUCHES), ("records", RECORDS)):
            for threads in throughput_threads(plan):
                report.aim_least(f"{metric}_{threads}", ON, STOCK, aim)
    if "cost" in plan.scenes:
        for cost, most in COSTS.items():
            if most:
                report.aim_ratio(f"{guest.ALONE}cost_{cost}", ON, STOCK, most)
        for cost in COSTS:
            report.aim_excess(f"{guest.ALONE}cost_{cost}", OFF, STOCK, COST_OFF)
