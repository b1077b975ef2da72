# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark of micro-benchmarks: its boots and its aims."""

from pathlib import Path
from unittest import mock

import pytest

from bench import guest, micro
from bench.guest import Boot, Kernels, Sample
from bench.report import Report
from faultline.vm.qemu import Machine

OURS, THEIRS = Path("ours"), Path("stock")


def run(plan: micro.Plan, figures: dict[str, float],
        stock: Path | None = THEIRS) -> tuple[Report, list[tuple[str, Path]]]:
    """Run PLAN without VMs: the rate of an arm is FIGURES[ARM]; return also the boots."""
    booted = []

    def boot(machine: Machine, _program: Path, commands: list[list[str]], name: str) -> Boot:
        counted = name.startswith("micro-cost-")
        assert counted == (machine.icount is not None)
        assert machine.cpus == (1 if counted else plan.cpus)
        booted.append((name, machine.kernel))
        arm = name.rsplit("-", 1)[1]
        return Boot([Sample(f"mmap1_{mode}_{tasks}", "ops/s", arm, figures[arm])
                     for words in commands
                     for mode in [words[words.index("--mode") + 1]]
                     for tasks in [words[words.index("--tasks") + 1]]], f"6.12-{arm}", "tcg")

    with mock.patch.object(guest, "boot", boot), mock.patch.object(guest, "compile_program"):
        return micro.run(Kernels(OURS, stock), plan), booted


def test_order() -> None:
    report, booted = run(micro.Plan(rounds=2), {"stock": 100, "off": 100, "on": 100})
    assert booted == [("micro-1-stock", THEIRS), ("micro-1-off", OURS), ("micro-1-on", OURS),
                      ("micro-2-on", OURS), ("micro-2-off", OURS), ("micro-2-stock", THEIRS),
                      ("micro-cost-stock", THEIRS), ("micro-cost-off", OURS),
                      ("micro-cost-on", OURS)]
    assert report.kernel != "6.12-stock"
    rates = {f"mmap1_{mode}_{tasks}" for mode in ("threads", "processes") for tasks in (1, 2)}
    costs = {f"mmap1_{mode}_1_instructions" for mode in ("threads", "processes")}
    assert {row.metric: row.n for row in report.rows} == {
        **dict.fromkeys(rates, 2), **dict.fromkeys(costs, 1)}


def test_cost() -> None:
    """The clock of an --icount VM ticks once an instruction: 1e9 / rate are instructions."""
    report, _ = run(micro.Plan(rounds=1), {"stock": 1e6, "off": 2e6, "on": 5e5})
    costs = {row.arm: row.median for row in report.rows if row.metric.endswith("_instructions")}
    assert costs == {"stock": 1000, "off": 500, "on": 2000}


@pytest.mark.parametrize("on, off, met", [
    (98.1, 99.6, (True, True)), (97.9, 99.6, (False, True)), (98.1, 99.4, (True, False))])
def test_aims(on: float, off: float, met: tuple[bool, bool]) -> None:
    report, _ = run(micro.Plan(rounds=1), {"stock": 100, "off": off, "on": on})
    assert len(report.aims) == 12
    for aim in report.aims:
        least = {"on": 0.98, "off": 0.995}[aim.arm]
        assert aim.vs == "stock"
        assert aim.least is not aim.metric.endswith("_instructions")
        assert aim.aim == (least if aim.least else 1 / least)
        assert aim.met is met[aim.arm == "off"]


def test_without_stock() -> None:
    report, booted = run(micro.Plan(rounds=1, cpus=1), {"off": 100, "on": 100}, None)
    assert [name for name, _ in booted] == [
        "micro-1-off", "micro-1-on", "micro-cost-off", "micro-cost-on"]
    assert [aim.verdict() for aim in report.aims] == ["not measured"] * 8


def test_only_the_instructions() -> None:
    """The scene cost boots each kernel once, and has no aim for the throughput."""
    report, booted = run(micro.Plan(scenes=("cost",)), {"stock": 100, "off": 100, "on": 100})
    assert [name for name, _ in booted] == [
        "micro-cost-stock", "micro-cost-off", "micro-cost-on"]
    assert all(aim.metric.endswith(micro.COST) and aim.met for aim in report.aims)
    assert report.aims
