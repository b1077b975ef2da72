# SPDX-License-Identifier: GPL-2.0-only
"""The cost of the operations of the survey: its boots, its table, its aims."""

from pathlib import Path
from unittest import mock

from bench import guest, survey, survey_cost
from bench.guest import Boot, Kernels, Sample
from bench.report import Report
from faultline.common import ROOT
from faultline.vm.qemu import Machine

# Of each call, in ms of the program: 1 ms is a million instructions.
TIMES = {"stock": 2.0, "peer": 2.4, "off": 2.001, "on": 2.03}


def run(plan: survey_cost.Plan, kernels: Kernels) -> tuple[Report, list[str]]:
    """Run PLAN without VMs; return also the names of the boots."""
    booted = []

    def boot(machine: Machine, _program: Path, commands: list[list[str]], name: str) -> Boot:
        booted.append(name)
        words, = commands
        option = {one: words[words.index(one) + 1] for one in ("--arms", "--size", "--probe")}
        assert option["--probe"] == "idle" and machine.mem > 2 * int(option["--size"])
        # Time is the number of instructions.
        assert (machine.cpus, machine.icount) == (1, 0)
        scenes = words[words.index("--switches") + 2:]
        end = f"_{option['--size']}m_4k"
        return Boot([Sample(f"{scene}{'' if scene in survey.SMALL else end}_alone", "ms", arm,
                            TIMES[arm])
                     for arm in option["--arms"].split(",") for scene in scenes],
                    f"6.12-{machine.kernel}", "tcg")

    with mock.patch.object(guest, "boot", boot), mock.patch.object(guest, "compile_program"):
        return survey_cost.run(kernels, plan), booted


def test_table() -> None:
    """Instructions on stock, the others as a part of them; small mappings as all others."""
    report, booted = run(survey_cost.Plan(scenes=("mlock", "fork_small")),
                         Kernels(Path("ours"), Path("stock"), Path("peer")))
    assert booted == ["survey_cost", "survey_cost-stock", "survey_cost-peer"]
    assert {row.unit for row in report.rows} == {"instr"}
    parts = "| 2000000 | 1.2000 | 1.0005 | 1.0150 |"
    assert report.page().splitlines() == [
        "| call | stock | peer | off | on |", "|---|---|---|---|---|", f"| mlock {parts}",
        f"| fork with 30,000 {parts}"]
    assert [line.split() for line in report.text().splitlines() if line.startswith("mlock ")] == [
        ["mlock", *parts.replace("|", "").split()]]


def test_aims() -> None:
    """A hundredth more with the switches on is a miss; the text names what is missed only."""
    report, _ = run(survey_cost.Plan(scenes=("mlock",)), Kernels(Path("ours"), Path("stock")))
    assert [(aim.arm, aim.met) for aim in report.aims] == [("on", False), ("off", True)]
    text = report.text()
    assert "mlock_cost  on   stock" in text and text.count("mlock_cost") == 1


def test_without_stock() -> None:
    """Without stock there is nothing to compare with, so there are numbers."""
    report, _ = run(survey_cost.Plan(), Kernels(Path("ours"), None))
    assert len(report.page().splitlines()) == 2 + len(survey.SCENES)
    assert "| mlock | 2001000 | 2030000 |" in report.page()
    assert {aim.met for aim in report.aims} == {None}


def test_results() -> None:
    """The collected result has its table in its page."""
    path = ROOT / "tests/bench/results/survey_cost.json"
    page = path.with_suffix(".md").read_text("utf-8")
    assert survey_cost.Cost.read(path).page() in page, f"lab bench survey_cost --from {path.name}"
