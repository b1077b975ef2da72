# SPDX-License-Identifier: GPL-2.0-only
"""The table of rules, and the verdict on a race with a broken rule, without VMs."""

from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest

from faultline.common import ROOT
from faultline.vm import run as vm
from faultline.vm.guest import Job
from faultline.vm.qemu import Machine
from lib import rules
from lib.tap import Tap
from suites import RULES, UNTESTED, Boot, Rule

PASS, SKIP, FAIL = "ok 1 a\n", "ok 1 a # SKIP no huge pages\n", "# a.c:1: Expected x\nnot ok 1 a\n"
TROUBLE = "trouble"


def test_each_rule_has_a_row() -> None:
    """Names are those of the kernel; a rule without a row has a reason."""
    named = {rule.name for _, rows in RULES.values() for rule in rows if rule.name}
    assert not named & UNTESTED.keys()
    assert named | UNTESTED.keys() == rules.constants(ROOT / "kernel/overlay").keys()


def test_numbers() -> None:
    """The numbers of two rules."""
    numbers = rules.constants(ROOT / "kernel/overlay")
    assert numbers["HUGETLB_NO_ENTRY_LOCK"] == "hugetlb_broken_rules=64"
    assert numbers["PMD_CLEAR_NO_TABLE_RCU"] == "pmd_clear_broken_rules=16"


class Races:
    """VMs in which a race prints one text after the other."""

    def __init__(self, *said: str) -> None:
        self.said = list(said)
        self.jobs: list[Job] = []

    def run(self, machine: Machine, job: Job, out: Path, *, output: BinaryIO,
            **_: object) -> mock.Mock:
        """Replace vm.run()."""
        self.jobs.append(job)
        text = self.said.pop(0)
        status = {FAIL: 1, TROUBLE: 126}.get(text, 0)
        output.write(text.encode())
        report = mock.Mock(status=status)
        report.verdict.reason = "kernel trouble (kasan): use-after-free"
        return report


def checked(races: Races, rule: Rule, capsys: pytest.CaptureFixture[str],
            breaks: str = "spf_broken_rules=4") -> list[str]:
    """The lines about a rule; all races have to run."""
    with mock.patch.object(vm, "run", races.run):
        rules.check(Tap(), "debug/x", Boot("", "microvm-debug"), rule, breaks)
    assert not races.said
    return capsys.readouterr().out.splitlines()


RULE = Rule("SPF_NO_DETACHED", "the check", "spf_race spf_race.wide.stop", "a_us=1",
            ("FAULTLINE_WINDOWS=find=1",))
GOOD = "ok 1 - with all rules, spf_race spf_race.wide.stop passes where the check matters"


def test_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    races = Races(PASS, FAIL)
    assert checked(races, RULE, capsys) == [
        GOOD, "ok 2 - without the check, spf_race spf_race.wide.stop fails",
        "# a.c:1: Expected x"]
    for job, broken in zip(races.jobs, ("spf_broken_rules=0", "spf_broken_rules=4")):
        assert job.command[:4] == ["env", "FAULTLINE_SECONDS=20", "FAULTLINE_WINDOWS=find=1", "sh"]
        assert f"for word in {broken} a_us=1; do" in job.command[-1]
        assert job.command[-1].endswith("exec spf_race -r spf_race.wide.stop")
        assert [Path(name).name for name in job.files] == ["spf_race"]


def test_noticed_by_the_kernel_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(Races(PASS, PASS, PASS, TROUBLE), RULE, capsys)[1:] == [
        "ok 2 - without the check, spf_race spf_race.wide.stop fails", "# run 3",
        "# kernel trouble (kasan): use-after-free"]


@pytest.mark.parametrize("said, remarks", [
    ((PASS, PASS, PASS), ["# run 3", "# passed"]), ((SKIP,), ["# did not run: status 0"]),
    (("",), ["# did not run: status 0"])])
def test_not_noticed(said: tuple[str, ...], remarks: list[str],
                     capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(Races(PASS, *said), RULE, capsys) == [
        GOOD, "not ok 2 - without the check, spf_race spf_race.wide.stop fails", *remarks]


@pytest.mark.parametrize("said", [FAIL, TROUBLE, SKIP])
def test_race_that_always_fails(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(Races(said, FAIL), RULE, capsys)[0] == f"not {GOOD}"


def test_only_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """A row without a rule has one result."""
    rule = Rule("", "", "spf_race spf_race.wide.keep")
    assert checked(Races(PASS), rule, capsys, "") == [
        "ok 1 - with all rules, spf_race spf_race.wide.keep passes"]
