# SPDX-License-Identifier: GPL-2.0-only
"""make release: goes on where it stopped, and stops where a person has to decide."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest

from faultline import make_release
from faultline.common import ROOT, Fail
from faultline.make_release import Place, Step
from faultline.release import Release

STEPS = (Step("first", (("one",), ("two", "2")), "decide the first"),
         Step("second", (("three",),), "decide the second"))


class Commands:
    """Takes the place of the programs: records their calls, and fails as told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing = ""

    def __call__(self, command: tuple[str, ...]) -> int:
        self.calls.append(command[0])
        return int(command[0] == self.failing)

    def taken(self) -> list[str]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A repository with one commit."""
    made = Place(tmp_path / "repository", tmp_path / "state")
    made.root.mkdir()
    made.git("init", "--quiet")
    commit(made)
    return made


def commit(place: Place) -> None:
    """Commit a change."""
    path = place.root / "file"
    path.write_text(path.read_text() + "x" if path.exists() else "")
    place.git("add", "file")
    place.git("-c", "user.name=A Tester", "-c", "user.email=tester@example.invalid", "commit",
              "--quiet", "--message", "a change")


def test_goes_on(place: Place) -> None:
    """A step that failed is repeated, one that succeeded is not, until the commit changes."""
    run = Commands()
    run.failing = "three"
    with pytest.raises(Fail, match="three failed: decide the second"):
        make_release.go_on(place, STEPS, run)
    assert run.taken() == ["one", "two", "three"]
    run.failing = ""
    make_release.go_on(place, STEPS, run)
    assert run.taken() == ["three"]
    make_release.go_on(place, STEPS, run)
    assert run.taken() == []
    commit(place)
    make_release.go_on(place, STEPS, run)
    assert run.taken() == ["one", "two", "three"]


def test_stops_at_the_first_failure(place: Place) -> None:
    """Commands after one that failed do not run, and the step is not completed."""
    run = Commands()
    run.failing = "one"
    for _ in range(2):
        with pytest.raises(Fail, match="one failed: decide the first"):
            make_release.go_on(place, STEPS, run)
        assert run.taken() == ["one"]


def test_times(place: Place, capsys: pytest.CaptureFixture[str],
               monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step tells the time that all its commands took, also if one fails."""
    clock = [0.0]
    monkeypatch.setattr("faultline.make_release.monotonic", lambda: clock[0])

    def slow(command: tuple[str, ...]) -> int:
        clock[0] += 3723.4
        return int(command[0] == "three")

    with pytest.raises(Fail):
        make_release.go_on(place, STEPS, slow)
    assert capsys.readouterr().out == (
        "release: one\nrelease: two 2\nrelease: first: completed in 2:04:07\n"
        "release: three\nrelease: second: failed after 1:02:03\n")


def test_uncommitted(place: Place) -> None:
    """Nothing runs on changes that are not committed."""
    run = Commands()
    (place.root / "file").write_text("changed")
    with pytest.raises(Fail, match=r"uncommitted changes \(file\)"):
        make_release.go_on(place, STEPS, run)
    assert run.taken() == []


def test_commit_in_between(place: Place) -> None:
    """A step during which somebody commits is not completed for either commit."""
    def commits(_: tuple[str, ...]) -> int:
        commit(place)
        return 0

    with pytest.raises(Fail, match="the commit changed during first"):
        make_release.go_on(place, STEPS, commits)
    run = Commands()
    make_release.go_on(place, STEPS, run)
    assert run.taken() == ["one", "two", "three"]


def test_report(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run tells what is completed."""
    run = Commands()
    run.failing = "three"
    with pytest.raises(Fail):
        make_release.go_on(place, STEPS, run)
    capsys.readouterr()
    make_release.report(place, STEPS)
    assert capsys.readouterr().out == ("release: first: completed: one; two 2\n"
                                       "release: second: to do: three\n")


def test_entry(tmp_path: Path) -> None:
    """CHANGELOG gets an entry for a new point release, once."""
    path = tmp_path / "CHANGELOG"
    old = "\n6.12.117-faultline1 (2026-11-20)\n\n  * Old.\n"
    path.write_text(f"Changes.\n{old}")
    today = datetime.date(2026, 12, 1)
    assert not make_release.add_entry(path, Release("6.12.117", "1"), today)
    assert path.read_text() == f"Changes.\n{old}"
    assert make_release.add_entry(path, Release("6.12.118", "1"), today)
    assert path.read_text() == ("Changes.\n\n6.12.118-faultline1 (2026-12-01)\n\n"
                                f"  * Linux 6.12.118.\n{old}")
    assert not make_release.add_entry(path, Release("6.12.118", "1"), today)


def test_table() -> None:
    """The steps are targets of the Makefile."""
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()
               if line[:1].isalpha()}
    for step in make_release.STEPS:
        for command in step.commands:
            assert command[0] == "make" and command[1] in targets
            assert subprocess.run([*command, "--dry-run"], cwd=ROOT, check=False,
                                  capture_output=True).returncode == 0, command
