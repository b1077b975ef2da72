# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark of clearing huge pages ahead: its boots and its aims."""

from pathlib import Path
from unittest import mock

import pytest

from bench import guest, hugetlb_zero
from bench.guest import Boot, Kernels, Sample
from bench.report import Report
from faultline.vm.qemu import Machine

OURS, THEIRS = Path("ours"), Path("stock")
STOCK, OFF, ON = "stock", "0", "1"


def run(figures: dict[str, dict[str, float]],
        plan: hugetlb_zero.Plan = hugetlb_zero.Plan()) -> tuple[Report, list[str]]:
    """Run PLAN without VMs: a metric of an arm is FIGURES[METRIC][ARM]; return also the boots."""
    booted = []

    def boot(machine: Machine, _program: Path, commands: list[list[str]], name: str) -> Boot:
        scene = commands[0][-1]
        assert machine.icount == (0 if scene == "cost" else 4)
        assert ("hugepagesz=1G" in machine.append) == (scene == "1g")
        arms = commands[0][commands[0].index("--arms") + 1].split(",")
        assert (machine.kernel == THEIRS) == (arms == [STOCK])
        booted.append(name)
        return Boot([Sample(metric, "ticks" if scene == "cost" else "us", arm, values[arm])
                     for metric, values in figures.items() if scene in metric
                     for arm in arms], f"6.12-{arms[0]}", "tcg")

    with mock.patch.object(guest, "boot", boot), mock.patch.object(guest, "compile_program"):
        return hugetlb_zero.run(Kernels(OURS, THEIRS), plan), booted


def figures(small: float, giant: float, cost: float) -> dict[str, dict[str, float]]:
    """Figures of stock are 1000, and those of the switch off are the same."""
    found = {f"2m_{who}_p99": {STOCK: 1000, OFF: 1000, ON: small} for who in ("writer", "mapper")}
    found |= {f"1g_{who}_max": {STOCK: 1000, OFF: 1000, ON: giant} for who in ("writer", "mapper")}
    return found | {"cost_2m": {STOCK: 1000, OFF: 1000, ON: cost}}


@pytest.mark.parametrize("values, met", [
    ((200, 10, 1005), (True, True, True)), ((201, 10, 1005), (False, True, True)),
    ((200, 11, 1005), (True, False, True)), ((200, 10, 1006), (True, True, False))])
def test_aims(values: tuple[float, float, float], met: tuple[bool, bool, bool]) -> None:
    """Each aim is missed by a little more than it allows."""
    report, booted = run(figures(*values))
    assert len(booted) == 2 + 2 + 4
    assert [(aim.metric, aim.met) for aim in report.aims] == [
        ("virtual_2m_writer_p99", met[0]), ("virtual_1g_writer_max", met[1]),
        ("virtual_2m_mapper_p99", met[0]), ("virtual_1g_mapper_max", met[1]),
        ("alone_cost_2m", met[2]), ("alone_cost_2m", True)]


def test_one_scene() -> None:
    """The scene 2m needs no page of 1 GiB, and has no other aims."""
    report, booted = run(figures(1, 1, 1), hugetlb_zero.Plan(scenes=("2m",)))
    assert booted == ["hugetlb_zero-2m", "hugetlb_zero-2m-stock"]
    assert [aim.metric for aim in report.aims] == [
        "virtual_2m_writer_p99", "virtual_2m_mapper_p99"]
