# SPDX-License-Identifier: GPL-2.0-only
"""The man pages, the completion and the program simulate.py of faultline-rollout."""
from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
from typing import Any, cast

import pytest

from rollout import fleet_lab

from scipy import stats

from faultline_rollout import cli, report, verdict

COMPLETION = fleet_lab.FLEET / "completion/faultline-rollout"
PAGES = ("faultline-rollout.1", "faultline-experiment.5")
# Prints bash's completions of these words.
COMPLETED = """. "$0"
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_faultline_rollout
printf '%s\\n' "${COMPREPLY[@]}"
"""
FLEETS = 40


def verbs() -> dict[str, set[str]]:
    """The commands, and the long options of each."""
    found = next(action for action in cli.parser()._actions
                 if isinstance(action, argparse._SubParsersAction))
    return {name: {option for action in verb._actions for option in action.option_strings
                   if option.startswith("--")} for name, verb in found.choices.items()}


def completed(*words: str) -> set[str]:
    """Bash's completions of these words."""
    return set(subprocess.run(["bash", "-c", COMPLETED, COMPLETION, "faultline-rollout", *words],
                              capture_output=True, text=True, check=True).stdout.split())


def test_completion() -> None:
    """bash offers the commands, and for each of them its options and no other."""
    assert completed("") == {*verbs(), "--help"}
    assert completed("st") == {"start", "status", "stop"}
    for verb, options in verbs().items():
        assert completed(verb, "--") == options, verb
    assert not completed("plan", "--seed", "")


@pytest.mark.parametrize("page", PAGES)
def test_page_is_well_formed(page: str) -> None:
    """mandoc accepts each page."""
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", fleet_lab.FLEET / page],
                          capture_output=True, text=True, check=False)
    assert not done.stdout and done.returncode == 0


def test_synopsis() -> None:
    """The synopsis has each command with its options, and no other."""
    page = (fleet_lab.FLEET / PAGES[0]).read_text()
    synopsis = page.split(".Sh SYNOPSIS")[1].split(".Sh DESCRIPTION")[0]
    found = {part.split()[0]: {f"-{option}" for option in re.findall(r"Fl (-\S+)", part)}
             for part in synopsis.split(".Cm ")[1:]}
    # The page has --output as -o.
    wanted = {verb: options - {"--help", "--output"} for verb, options in verbs().items()}
    assert found == wanted
    assert ".Op Fl o Ar PLAN" in synopsis


@pytest.mark.parametrize("home", [True, False])
def test_cache_of_the_plot(home: bool, tmp_path: pathlib.Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home, matplotlib's cache is in a new folder with a name nobody can predict."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # monkeypatch then removes the variable that figure() sets.
    monkeypatch.setenv("MPLCONFIGDIR", "")
    monkeypatch.delenv("MPLCONFIGDIR")
    monkeypatch.setenv("HOME", str(tmp_path if home else tmp_path / "none"))
    before = set(tmp_path.iterdir())
    plan, nothing = fleet_lab.make_plan("cache"), cast(Any, None)
    monkeypatch.setattr(report, "Sample", lambda *_: pytest.fail("enough"))
    with pytest.raises(pytest.fail.Exception, match="enough"):
        report.figure(plan, nothing, nothing)
    made = set(tmp_path.iterdir()) - before
    assert f"matplotlib-{os.getuid()}" not in os.environ.get("MPLCONFIGDIR", "")
    if home:
        assert "MPLCONFIGDIR" not in os.environ
    else:
        folder = pathlib.Path(os.environ["MPLCONFIGDIR"])
        assert folder in made and folder.stat().st_mode & 0o777 == 0o700


def simulate(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the simulation."""
    return subprocess.run([fleet_lab.FLEET / "simulate.py", *map(str, words)], capture_output=True,
                          text=True, check=False)


def test_simulate() -> None:
    """The simulation runs, and its methods rank as expected."""
    done = simulate("--fleets", FLEETS, "--seed", 2)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in done.stdout.splitlines() if line.startswith("| ")]
    shares = {row[0].partition(",")[0].partition(":")[0].partition(" on ")[0]: [
        float(cell.partition("%")[0]) / 100 for cell in row[1:5]] for row in rows[1:]}
    assert len(rows) == 9 and rows[0][1:5] == ["no effect", "1 %", "2 %", "5 %"], done.stdout
    ours, pooled, crashes = (shares[name] for name in (
        "faultline-rollout", "Mann-Whitney", "the same"))
    assert ours[0] <= stats.binom.ppf(0.999, FLEETS, verdict.ALPHA) / FLEETS
    assert crashes[0] <= stats.binom.ppf(0.999, FLEETS, 0.05) / FLEETS
    assert pooled[0] > 0.5 and shares["Welch's t-test"][1] < 0.5 < 0.8 < ours[1]
    assert ours[2:] == [1, 1]


def test_table_of_the_readme(tmp_path: pathlib.Path) -> None:
    """The table in the README is that of a run of these methods: at most 5 % are false."""
    text = (fleet_lab.FLEET / "README.md").read_text()
    assert simulate("--check", fleet_lab.FLEET / "README.md").stderr == ""
    table = text.partition("<!-- simulate --write")[2].partition("<!-- simulate ends")[0]
    rows = [line.split("|") for line in table.splitlines() if re.search(r"\d%.* \|", line)]
    shares = {row[1].strip(): [float(cell.partition("%")[0]) for cell in row[2:6]]
              for row in rows}
    last = shares["the same, with crashes and OOM kills in both arms"]
    ours = shares["faultline-rollout: e-process, then the test"]
    assert max(last[0], ours[0]) <= 5 and ours[1] >= 90, shares
    # A figure that was edited is found.
    edited = tmp_path / "README.md"
    edited.write_text(text.replace(f"{ours[0]:.1f}%", "0.1%"))
    done = simulate("--check", edited)
    assert done.returncode == 1 and "the table is not that of these methods" in done.stderr
