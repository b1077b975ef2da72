# SPDX-License-Identifier: GPL-2.0-only
"""Take the newest 6.12.y of the registry to tested, signed repositories.

    rebase          the pins and patches move to the newest point release
    changelog       CHANGELOG gets an entry for the release
    test            make test, make test-full
    test-debug      make test-debug, the races of stock behaviour among them
    test-debian-13  make test-debian-13

and for each flavour that hosts install:

    packages        make packages
    test-release    make test-release
    repo            make repo

It stops where a person has to decide, and says what to do; the next run goes on from there.
A step that was completed for the current commit is skipped.  Completed steps are kept in
build/release.  Each step ends with the time that it took.
"""
from __future__ import annotations

import argparse
import datetime
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from .common import ROOT, Fail, Paths, flag, say, shown, write_atomic
from .pin import Pin
from .release import Release, changelog

# The one that takes less time is the first.
FLAVOURS = ("cloud", "generic")
AGAIN = "then run `make release` again"


@dataclass(frozen=True)
class Step:
    """A step that runs commands; it is completed for one commit."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    # The action for a person if the step fails.
    decide: str


CORRECT = f"correct what fails, commit, {AGAIN}"
# Generic takes hours, so each part that can be kept is a step.
STEPS = (
    Step("test", (("make", "test"), ("make", "test-full")), CORRECT),
    Step("test-debug", (("make", "test-debug"),), CORRECT),
    Step("test-debian-13", (("make", "test-debian-13"),), CORRECT),
    *(Step(f"{target}-{flavour}", (("make", target, f"FLAVOUR={flavour}"),), decide)
      for flavour in FLAVOURS
      for target, decide in (("packages", f"do what the error says, {AGAIN}"),
                             ("test-release", CORRECT),
                             ("repo", f"do what the error says, {AGAIN}"))),
)


@dataclass
class Place:
    """The repository, and the folder that says what is completed."""

    root: Path
    state: Path

    def git(self, *words: str) -> str:
        """The output of git."""
        return subprocess.run(["git", "-C", str(self.root), *words], check=True, text=True,
                              capture_output=True).stdout.strip()

    def commit(self) -> str:
        """The current commit; all changes have to be committed."""
        if changed := self.git("status", "--porcelain"):
            first = changed.splitlines()[0].split(maxsplit=1)[1]
            raise Fail(f"there are uncommitted changes ({first}): review and commit them, {AGAIN}")
        return self.git("rev-parse", "HEAD")

    def completed(self, step: Step) -> bool:
        """Whether a step was completed for the current commit."""
        path = self.state / step.name
        return path.is_file() and path.read_text(encoding="ascii").strip() == self.commit()

    def complete(self, step: Step, commit: str) -> None:
        """Remember that a step was completed for a commit."""
        write_atomic(self.state / step.name, f"{commit}\n".encode())


def rebase(dry: bool) -> None:
    """Move to the newest point release."""
    words = [str(ROOT / "tools/fl"), "rebase", "latest"] + (["--dry-run"] if dry else [])
    if subprocess.run(words, cwd=ROOT, check=False).returncode:
        raise Fail(f"the rebase stopped: do what its error says, commit, {AGAIN}")


def add_entry(path: Path, release: Release, today: datetime.date) -> bool:
    """Make sure that CHANGELOG has an entry for the release; return True if it was added."""
    if any(entry.release == release for entry in changelog(path)):
        return False
    text = path.read_text(encoding="utf-8")
    newest = changelog(path)[0].release.name
    head, _, rest = text.partition(f"\n{newest} (")
    entry = f"{release.name} ({today.isoformat()})\n\n  * Linux {release.upstream}.\n"
    write_atomic(path, f"{head}\n{entry}\n{newest} ({rest}".encode())
    return True


def took(seconds: float) -> str:
    """A time in hours, minutes and seconds."""
    return str(datetime.timedelta(seconds=round(seconds)))


def go_on(place: Place, steps: Iterable[Step], run: Callable[[tuple[str, ...]], int]) -> None:
    """Run the steps that are not completed for the current commit."""
    for step in steps:
        commit = place.commit()
        if place.completed(step):
            say(f"release: {step.name}: completed for {commit[:12]}")
            continue
        start = monotonic()
        for command in step.commands:
            say(f"release: {' '.join(command)}")
            if run(command):
                say(f"release: {step.name}: failed after {took(monotonic() - start)}")
                raise Fail(f"{' '.join(command)} failed: {step.decide}")
        if place.commit() != commit:
            raise Fail(f"the commit changed during {step.name}: run `make release` again")
        place.complete(step, commit)
        say(f"release: {step.name}: completed in {took(monotonic() - start)}")


def report(place: Place, steps: Iterable[Step]) -> None:
    """Print the steps and what is completed."""
    for step in steps:
        state = "completed" if place.completed(step) else "to do"
        say(f"release: {step.name}: {state}: {'; '.join(map(' '.join, step.commands))}")


def release(paths: Paths, dry: bool) -> None:
    """Run all steps, or print what they would do."""
    place = Place(ROOT, paths.build / "release")
    place.commit()
    rebase(dry)
    if dry:
        report(place, STEPS)
        return
    pin = Pin.load(paths.kernel)
    ours = Release.ours(paths.kernel, pin.upstream, "")
    path = ROOT / "CHANGELOG"
    if add_entry(path, ours, datetime.datetime.now(datetime.timezone.utc).date()):
        raise Fail(f"{shown(path)} has a new entry for {ours.name}: name in it what users notice, "
                   f"review and commit the rebase with it, {AGAIN}")
    go_on(place, STEPS, lambda command: subprocess.run(command, cwd=ROOT, check=False).returncode)
    say(f"release: {ours.name} is in "
        f"{', '.join(shown(paths.build / 'repo' / flavour) for flavour in FLAVOURS)}")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true",
                        help="only print the steps and what is completed (also: DRY_RUN=1)")
    args = parser.parse_args()
    release(Paths.from_env(), args.dry_run or flag("DRY_RUN"))
