# SPDX-License-Identifier: GPL-2.0-only
"""The time of the operations of the survey beside a thread that maps: boots, tables, aims."""

from pathlib import Path
from unittest import mock

from bench import guest, survey, survey_time
from bench.guest import Boot, Kernels, Sample
from bench.report import Report
from faultline.common import ROOT
from faultline.vm.qemu import Machine

# Of each call, in ms, by the pause of the other thread in us.
TIMES = {"100": {"stock": 100.0, "peer": 120.0, "off": 100.0, "on": 109.0},
         None: {"stock": 200.0, "peer": 180.0, "off": 200.0, "on": 310.0}}


def run(plan: survey_time.Plan, kernels: Kernels) -> tuple[Report, list[str]]:
    """Run PLAN without VMs; return also the names of the boots."""
    booted = []

    def boot(machine: Machine, _program: Path, commands: list[list[str]], name: str) -> Boot:
        booted.append(name)
        words, = commands
        option = {one: words[words.index(one) + 1]
                  for one in ("--arms", "--size", "--pause", "--cpus") if one in words}
        # Each thread has a CPU, and time is that of the host.
        assert (machine.cpus, machine.icount, option["--cpus"]) == (2, None, "0,1")
        scenes = words[words.index("--switches") + 2:]
        samples = []
        for arm in option["--arms"].split(","):
            for scene in scenes:
                call = scene + ("" if scene in survey.SMALL else f"_{option['--size']}m_4k")
                samples += [Sample(f"{call}_time", "ms", arm, TIMES[option.get("--pause")][arm]),
                            Sample(f"{call}_wait_max", "ms", arm, 1.0)]
        return Boot(samples, f"6.12-{machine.kernel}", "tcg")

    with mock.patch.object(guest, "boot", boot), mock.patch.object(guest, "compile_program"):
        return survey_time.run(kernels, plan), booted


def test_tables() -> None:
    """A table for each thread beside it: ms with the switches off, the others as a part of them."""
    report, booted = run(survey_time.Plan(scenes=("mlock", "munmap_small")),
                         Kernels(Path("ours"), Path("stock"), Path("peer")))
    assert booted == [f"survey_time_{beside}{kernel}" for beside in ("paused", "busy")
                      for kernel in ("", "-stock", "-peer")]
    head = ["| call | off | stock | peer | on |", "|---|---|---|---|---|"]
    assert [line for line in report.page().splitlines() if line.startswith("|")] == [
        *head, "| mlock, with pauses | 100.0 | 1.00 | 1.20 | 1.09 |",
        "| munmap of 30,000, with pauses | 100.0 | 1.00 | 1.20 | 1.09 |",
        *head, "| mlock, without pauses | 200.0 | 1.00 | 0.90 | 1.55 |",
        "| munmap of 30,000, without pauses | 200.0 | 1.00 | 0.90 | 1.55 |"]
    assert {row.unit for row in report.rows} == {"ms"}


def test_aims() -> None:
    """A tenth more is enough beside a thread that pauses, a half beside one that does not."""
    report, _ = run(survey_time.Plan(scenes=("mlock",)), Kernels(Path("ours"), Path("stock")))
    assert [(aim.metric, aim.met) for aim in report.aims] == [("mlock_paused", True),
                                                              ("mlock_busy", False)]
    text = report.text()
    assert "mlock_busy  on   off" in text and "mlock_paused" not in text


def test_results() -> None:
    """The collected result has its tables in its page."""
    path = ROOT / "tests/bench/results/survey_time.json"
    page = path.with_suffix(".md").read_text("utf-8")
    assert survey_time.Time.read(path).page() in page, f"lab bench survey_time --from {path.name}"
