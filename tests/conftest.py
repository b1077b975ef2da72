# SPDX-License-Identifier: GPL-2.0-only
"""pytest for suites.py: what each suite needs is built first, and programs are tests, too.

The last line of the output has the counts of all results, also of those within programs.
"""
from __future__ import annotations

import dataclasses
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import suites
from faultline.vm.ktap import Summary
from programs import Program
from faultline.common import LOG_SECONDS


# Stands for the rows of its tables.
ROWS = suites.TESTS / "suites.py"


class Failure(Exception):
    """A program that failed; the text says how."""


class ProgramItem(pytest.Item):
    """A program that prints TAP; its counts are in user_properties."""

    program: Program
    future: Future[Summary] | None = None

    def runtest(self) -> None:
        """Wait for its result, with the following programs of its suite running beside it."""
        if not self.future:
            start_programs(self)
        assert self.future
        summary = self.future.result()
        self.user_properties += [("results", dataclasses.asdict(summary)),
                                 ("seconds", self.program.seconds)]
        if not summary.ok:
            raise Failure(self.program.excerpt(summary))
        if not summary.passed:
            pytest.skip("all of it is skipped")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException],
                     style: object = None) -> str:
        """The excerpt of its output, without a traceback."""
        return str(excinfo.value)


class ProgramFile(pytest.File):
    """A program, or suites.py with a program for each row of its tables."""

    def collect(self) -> Iterator[ProgramItem]:
        """Make an item for each program."""
        rows = {f"{self.nodeid}::{title}": (title, command)
                for title, command in suites.ROWS.items()}
        if self.path != ROWS:
            rows = {self.nodeid: (suites.title(self.path), (str(self.path),))}
        for nodeid, (title, command) in rows.items():
            item: ProgramItem = ProgramItem.from_parent(self, name=title, nodeid=nodeid)
            item.program = Program(title, command)
            yield item


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this repository."""
    parser.addoption("--limit", type=float, default=suites.LIMIT, metavar="SECONDS",
                     help="kill a test after this time (%(default)s)")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ProgramFile | None:
    """Collect test programs."""
    if suites.is_program(file_path) or file_path == ROWS:
        file: ProgramFile = ProgramFile.from_parent(parent, path=file_path)
        return file
    return None


def title_of(item: pytest.Item) -> str:
    """The title of a program or test_*.py: SUITE/NAME."""
    return item.name if isinstance(item, ProgramItem) else suites.title(item.path)


def suite_of(item: pytest.Item) -> suites.Suite:
    """The suite that a test belongs to."""
    return suites.suite_of(title_of(item))


# --- What a suite needs

_made: dict[tuple[str, ...], bool] = {}
# A test in Python that is running, and since when.
_running: list[tuple[str, float]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Build kernels and packages, with progress shown live; only once, even if that fails."""
    for need in suite_of(item).needs:
        if need not in _made:
            root = suites.TESTS.parent
            _made[need] = subprocess.run([root / need[0], *need[1:]], cwd=root, check=False,
                                         stdin=subprocess.DEVNULL).returncode == 0
        if not _made[need]:
            pytest.fail(f"not run: {' '.join(need)} failed", pytrace=False)
    if not isinstance(item, ProgramItem):
        suite = suite_of(item)
        slots_of(suite).acquire()
        if suite.jobs > 1 and suite not in _beside:
            # The programs, which come after the tests in Python, run beside them.
            _beside.append(suite)
            start_programs(item)
        _running.append((item.nodeid, time.monotonic()))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let the next program of the suite run, if a test in Python did."""
    if _running:
        _running.clear()
        slots_of(suite_of(item)).release()


# --- Programs in parallel

_started: list[Program] = []
_beside: list[suites.Suite] = []
# Those of a suite that run at a time: programs, and a test in Python.
_slots: dict[suites.Suite, threading.Semaphore] = {}


def slots_of(suite: suites.Suite) -> threading.Semaphore:
    """The slots of a suite, as many as it has jobs."""
    return _slots.setdefault(suite, threading.Semaphore(suite.jobs))


def run_program(suite: suites.Suite, program: Program, limit: float) -> Summary:
    """Run a program when there is a slot."""
    with slots_of(suite):
        return program.run(limit)


def start_programs(first: pytest.Item) -> None:
    """Start a program, and the next ones of its suite, some at a time."""
    suite = suite_of(first)
    pool = ThreadPoolExecutor(suite.jobs)
    items = first.session.items
    for item in items[items.index(first):]:
        alone = item.name.rpartition("/")[2] in suite.alone
        if item != first and (alone or suite_of(item) != suite):
            break
        if isinstance(item, ProgramItem):
            _started.append(item.program)
            item.future = pool.submit(run_program, suite, item.program,
                                      item.config.getoption("limit"))
        if alone:
            break
    pool.shutdown(wait=False)


def pytest_sessionfinish() -> None:
    """Stop what is still running after Ctrl-C or -x; first what has not begun, or it would."""
    for program in reversed(_started):
        program.stop()


# --- Tests in Python

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End a test in Python at the time limit."""
    def end(*_: object) -> None:
        pytest.fail("still running at its time limit")

    if not isinstance(item, ProgramItem):
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, item.config.getoption("limit"))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that is removed after the test; pytest would keep it."""
    with tempfile.TemporaryDirectory(prefix="faultline-") as folder:
        yield Path(folder)


# --- Output

_totals = Summary()
_done = threading.Event()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Show progress now and then: a silent run looks dead."""
    def show(terminal: Any) -> None:
        while not _done.wait(LOG_SECONDS):
            for program in _started:
                if running := program.progress():
                    terminal.write_line(f"  {running}")
            for nodeid, since in _running:
                terminal.write_line(f"  {nodeid}: {time.monotonic() - since:.0f} s")

    if terminal := session.config.pluginmanager.get_plugin("terminalreporter"):
        threading.Thread(target=show, args=(terminal,), daemon=True).start()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count results."""
    known: dict[str, Any] = dict(report.user_properties)
    if "results" in known and report.when == "call":
        _totals.add(Summary(**known["results"]))
    elif report.failed:
        _totals.fail(report.nodeid)
    else:
        _totals.passed += report.when == "call" and report.passed
        _totals.skipped += report.skipped


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Count a file of tests that cannot be loaded."""
    if report.failed:
        _totals.fail(report.nodeid)


def pytest_report_teststatus(
        report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Show the counts of a program."""
    known = dict(getattr(report, "user_properties", []))
    if "results" not in known or report.when != "call":
        return None
    return report.outcome, {"passed": ".", "failed": "F"}.get(report.outcome, "s"), (
        f"{report.outcome.upper()}: {counted(Summary(**known['results']))}, "
        f"{known['seconds']:.0f} s")


def counted(summary: Summary) -> str:
    """The counts as text."""
    return f"{summary.passed} passed, {summary.failed} failed, {summary.skipped} skipped"


def pytest_unconfigure() -> None:
    """Print the totals."""
    _done.set()
    if _totals.passed or _totals.failed or _totals.skipped:
        print(counted(_totals), flush=True)
