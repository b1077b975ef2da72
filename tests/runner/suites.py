# SPDX-License-Identifier: GPL-2.0-only
"""Run test suites and add up their results.

A suite is a folder below tests/; each executable in it is a test program that
prints TAP (or KTAP, with subtests) and runs at the top of the repository.
The kernels that a suite boots or packages are built first.

Every result without subtests counts.  A program counts as one more failure if
it exits with an error that none of its results explains, prints no results,
misses its plan, or hangs.

The output of each program is kept in build/test/SUITE-NAME.tap, its standard
error in the .err file beside it.  The last line is
"N passed, N failed, N skipped".
"""
from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from faultline.common import ROOT, Fail, LOG_SECONDS, Paths, run_main, say, shown
from faultline.vm.ktap import Parser, Summary

TESTS = ROOT / "tests"

RESULTS = Paths.from_env().build / "test"
SHOWN_LINES = 25
DEFAULT_LIMIT = 30 * 60
FAILED = re.compile(r" *not ok\b")
RESULT = re.compile(r" *(?:not )?ok\b| *1\.\.\d")
REMARK = re.compile(r" *#")


@dataclasses.dataclass(frozen=True)
class Suite:
    """A folder of test programs, and what has to be built for them first."""

    name: str
    # Commands of this repository, with their arguments.
    needs: tuple[tuple[str, ...], ...] = ()
    # How many of its programs run in parallel.
    jobs: int = 1
    # Programs that run alone because they measure time or need all CPUs.
    alone: tuple[str, ...] = ()
    # Run only on request: it is slow, or needs another kernel or more host packages.
    opt_in: bool = False

    @property
    def programs(self) -> list[pathlib.Path]:
        """The suite's test programs, sorted by name."""
        return sorted(path for path in (TESTS / self.name).glob("*")
                      if path.is_file() and os.access(path, os.X_OK))


BUILD = ("kernel/scripts/fl", "build", "microvm")
# The flavour whose packages are installed in VMs; the package suite tests microvm.
PACKAGES = ("kernel/scripts/fl", "images", "packages", os.environ.get("FLAVOUR") or "microvm")

# In the order in which they run: suites that fail fast come first.
SUITES = {suite.name: suite for suite in (
    # Most of these programs are single-threaded or wait for I/O.
    Suite("lint", jobs=2),
    Suite("models"),
    Suite("source", jobs=2, alone=("02-tree",)),
    Suite("build", jobs=2),
    Suite("runner", (BUILD,)),
    Suite("package", (("kernel/scripts/fl", "stage", "microvm"),)),
    # One virtual machine does not keep two CPUs busy.
    Suite("images", (PACKAGES,), jobs=2),
    # A virtual machine on one host thread (--icount) keeps one CPU busy.
    Suite("kernel", (BUILD,), jobs=2, alone=("bench", "boot", "hugetlb-fixes", "races")),
    Suite("host-failures", (PACKAGES,), jobs=2, opt_in=True),
    Suite("debug", (("kernel/scripts/fl", "build", "microvm-debug"),), opt_in=True),
    Suite("kcsan", (("kernel/scripts/fl", "build", "microvm-kcsan"),), opt_in=True),
    Suite("ppc64le", (("kernel/scripts/fl", "build", "ppc64le"),
                      ("kernel/scripts/fl", "build", "ppc64le-stock"),
                      ("kernel/scripts/fl", "vm", "busybox", "ppc64le")),
          opt_in=True),
    Suite("upstream", (BUILD, ("kernel/scripts/fl", "build", "microvm-stock")), opt_in=True),
)}
BY_DEFAULT = [suite.name for suite in SUITES.values() if not suite.opt_in]


def select(names: list[str]) -> list[tuple[Suite, list[pathlib.Path]]]:
    """Look up SUITE and SUITE/PROGRAM from the command line."""
    chosen: list[tuple[Suite, list[pathlib.Path]]] = []
    for name in names or BY_DEFAULT:
        folder, _, program = name.partition("/")
        if folder not in SUITES:
            raise Fail(f"no suite '{folder}'; suites are: {' '.join(SUITES)}")
        programs = SUITES[folder].programs
        if program:
            programs = [path for path in programs if path.name == program]
        if programs:
            chosen.append((SUITES[folder], programs))
        elif names:
            raise Fail(f"no test program {name}: see 'tests/run --list'")
    return chosen


class Run:
    """One test program and its output files."""

    def __init__(self, title: str, command: list[str], limit: float) -> None:
        self.title = title
        self._command = command
        self._limit = limit
        stem = title.replace("/", "-")
        self.tap = RESULTS / f"{stem}.tap"
        self.errors = RESULTS / f"{stem}.err"
        self.seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Kill it, or keep it from starting; called from another thread."""
        self._stopped = True
        if self._process:
            kill(self._process)

    def execute(self) -> tuple[int, bool]:
        """Run it until it exits or hits its limit; return its exit status and whether it hung."""
        began = told = time.monotonic()
        hung = False
        if self._stopped:
            return 1, False
        with open(self.tap, "wb") as out, open(self.errors, "wb") as err, \
                subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err, start_new_session=True) as process:
            self._process = process
            try:
                while process.poll() is None:
                    try:
                        process.wait(timeout=1)
                    except subprocess.TimeoutExpired:
                        pass
                    now = time.monotonic()
                    if now - began > self._limit and not hung:
                        hung = True
                        kill(process)
                    if now - told > LOG_SECONDS:
                        told = now
                        say(f"  {self.title}: {now - began:.0f} s, {self._last_line()}")
            except BaseException:
                kill(process)
                raise
            kill_group(process)
        self.seconds = time.monotonic() - began
        return process.returncode, hung

    def _last_line(self) -> str:
        """The last line of its output."""
        lines = [line.strip() for path in (self.tap, self.errors)
                 for line in read_lines(path)[-5:] if line.strip()]
        return lines[-1][:100] if lines else "no output yet"


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and all its children; SIGTERM first, so that it can clean up."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=15)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what a program left running, such as a virtual machine."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def read_lines(path: pathlib.Path) -> list[str]:
    """Read the lines of a program's output file."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def judge(run: Run) -> Summary:
    """Run a test program and return its counts."""
    status, hung = run.execute()
    parser = Parser()
    for line in read_lines(run.tap):
        parser.feed(line)
    summary = parser.finish()
    if hung:
        summary.fail("still running at its time limit: killed")
    elif status != 0 and summary.failed == 0:
        summary.fail(f"exit status {status}, but no result is 'not ok'")
    return summary


def around_failures(lines: list[str]) -> list[str]:
    """The failed results with the program's remarks about them.

    kselftest prints these before the result, most others after it.
    """
    wanted: set[int] = set()
    for number, line in enumerate(lines):
        if not FAILED.match(line):
            continue
        first = number
        while first > 0 and number - first < SHOWN_LINES and not RESULT.match(lines[first - 1]):
            first -= 1
        last = number + 1
        while last < len(lines) and last - number < SHOWN_LINES and REMARK.match(lines[last]):
            last += 1
        wanted.update(range(first, last))
    return [lines[number] for number in sorted(wanted)] or lines[-SHOWN_LINES:]


def report(run: Run, summary: Summary) -> None:
    """Print the outcome of a test program."""
    say(f"{'ok    ' if summary.ok else 'FAILED'} {run.title}: {summary.passed} passed, "
        f"{summary.failed} failed, {summary.skipped} skipped, {run.seconds:.0f} s")
    if summary.ok:
        return
    for name in summary.failures:
        say(f"  not ok: {name}")
    for path, lines in ((run.tap, around_failures(read_lines(run.tap))),
                        (run.errors, read_lines(run.errors)[-SHOWN_LINES:])):
        if lines:
            say(f"  --- from {shown(path)}:")
            for line in lines:
                say(f"  {line}")


def make(need: tuple[str, ...]) -> bool:
    """Build a kernel or packages; progress is shown live."""
    command = [str(ROOT / need[0]), *need[1:]]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def run_suites(chosen: list[tuple[Suite, list[pathlib.Path]]], limit: float) -> Summary:
    """Run all suites and return the total counts."""
    total = Summary()
    made: dict[tuple[str, ...], bool] = {}
    for suite, programs in chosen:
        for need in suite.needs:
            if need not in made:
                made[need] = make(need)
                if not made[need]:
                    total.fail(f"{' '.join(need)} failed")
        missing = [" ".join(need) for need in suite.needs if not made[need]]
        if missing:
            for path in programs:
                say(f"FAILED {suite.name}/{path.name}: not run, {', '.join(missing)} failed")
                total.fail(f"{suite.name}/{path.name}: not run")
            continue
        for alone, jobs in ((True, 1), (False, suite.jobs)):
            run_programs([Run(f"{suite.name}/{path.name}", [str(path)], limit) for path in programs
                          if (path.name in suite.alone) == alone], jobs, total)
    return total


def run_programs(runs: list[Run], jobs: int, total: Summary) -> None:
    """Run programs, `jobs` at a time."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for run, summary in zip(runs, pool.map(judge, runs)):
                report(run, summary)
                total.add(summary, run.title)
        except BaseException:
            for run in runs:
                run.stop()
            raise


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="tests/run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only list the test programs")
    parser.add_argument("--limit", type=float, default=DEFAULT_LIMIT, metavar="SECONDS",
                        help="kill a test program after this time (%(default)s)")
    parser.add_argument("suite", nargs="*", metavar="SUITE[/PROGRAM]",
                        help=f"one of {' '.join(SUITES)}; default: {' '.join(BY_DEFAULT)}")
    args = parser.parse_args()
    chosen = select(args.suite)
    if args.list:
        for suite, programs in chosen:
            for path in programs:
                say(f"{suite.name}/{path.name}")
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    total = run_suites(chosen, args.limit)
    say("")
    for name in total.failures:
        say(f"not ok: {name}")
    say(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    if not total.ok:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(run_main("tests/run", main))
