# SPDX-License-Identifier: GPL-2.0-only
"""pytest for suites.py: what each suite needs is built first, and programs are tests, too.

The last line of the output has the counts of all results, also of those within programs.
"""
from __future__ import annotations

import dataclasses
import functools
import math
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
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
    future: Future[Summary]

    def runtest(self) -> None:
        """Wait for its result."""
        summary = self.future.result()
        self.user_properties += [("results", dataclasses.asdict(summary)),
                                 ("seconds", self.program.seconds),
                                 ("cpu_seconds", self.program.cpu_seconds)]
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


# --- In parallel

class Slots:
    """Lets suites.SLOTS tests run at a time, from the first one in the list of tests on."""

    def __init__(self) -> None:
        self._free = suites.SLOTS
        # Those that run and have left their slot to others.
        self._without = 0
        # Those that wait: the place in the list, and whether it can run.
        self._waiting: dict[float, Callable[[], bool]] = {}
        # The place of one that is running, and that none after it may run beside.
        self._held = math.inf
        self._closed = False
        self._changed = threading.Condition()

    def enter(self, place: float, ready: Callable[[], bool]) -> None:
        """Have a place in the list: as long as it is ready, nobody behind it gets a slot."""
        with self._changed:
            self._waiting[place] = ready

    def acquire(self, place: float, count: int, hold: bool = False) -> bool:
        """Wait for so many slots; with `hold`, none after it gets one until they are released.

        With a count of 0, wait for a slot and leave it to the next one.  Return False when the
        run has ended.
        """
        def free() -> bool:
            return self._free >= max(count, 1) and not (count == suites.SLOTS and self._without)

        def first() -> bool:
            return place == min(one for one, ready in self._waiting.items() if ready())

        with self._changed:
            self._changed.wait_for(lambda: self._closed or (
                free() and place < self._held and self._waiting[place]() and first()))
            del self._waiting[place]
            self._free -= count
            self._without += not count
            if hold:
                self._held = place
            self._changed.notify_all()
            return not self._closed

    def release(self, count: int, hold: bool = False) -> None:
        """Give them back."""
        with self._changed:
            self._free += count
            self._without -= not count
            if hold:
                self._held = math.inf
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody run any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def slots_of(suite: suites.Suite) -> int:
    """How many slots a program of the suite takes."""
    return suites.SLOTS // suite.jobs


def slots_in_python(suite: suites.Suite) -> int:
    """How many slots the tests in Python of the suite take."""
    return 0 if suite.patient else slots_of(suite)


_slots = Slots()
# The programs, and those that build what suites need.
_started: list[Program] = []
_needs: dict[tuple[str, ...], Future[bool]] = {}
# A test in Python that is running, and since when.
_running: list[tuple[str, float]] = []
# The suite whose tests in Python run: they keep their slots, else a long program would take them
# between two tests.
_holding: list[suites.Suite] = []


def make(place: float, program: Program, made: Future[bool]) -> None:
    """Build what suites need, a kernel or packages, before the first of their tests."""
    if not _slots.acquire(place, 1):
        return
    try:
        program.run(None)
    finally:
        tell(f"  {program.ended()}")
        made.set_result(program.status == 0)
        _slots.release(1)


def run_program(place: float, item: ProgramItem) -> None:
    """Run a program when all that its suite needs is there."""
    suite, name = suite_of(item), item.name.rpartition("/")[2]
    count = suites.SLOTS if name in suite.alone else slots_of(suite)
    hold = name in suite.first
    if not _slots.acquire(place, count, hold):
        return
    try:
        if all(_needs[need].result() for need in suite.needs):
            item.future.set_result(item.program.run(item.config.getoption("limit")))
        else:
            item.future.cancel()
    except Exception as error:  # pylint: disable=broad-exception-caught
        # For example, it cannot be started.
        item.future.set_exception(error)
    finally:
        _slots.release(count, hold)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Start all programs, and what builds kernels and packages for them; they wait for slots."""
    if session.config.option.collectonly:
        return
    before_it: list[Future[Summary]] = []
    threads: list[Callable[[], None]] = []
    for place, item in enumerate(session.items):
        for need in suite_of(item).needs:
            if need not in _needs:
                _needs[need] = Future()
                program = Program(" ".join(need), (str(suites.TESTS.parent / need[0]), *need[1:]))
                _started.append(program)
                # All of a suite's before its tests, each in a place of its own.
                before = place - 0.5 + len(_needs) / 100
                _slots.enter(before, lambda: True)
                threads.append(functools.partial(make, before, program, _needs[need]))
        if isinstance(item, ProgramItem):
            item.future = Future()
            before_it.append(item.future)
            _started.append(item.program)
            _slots.enter(place, functools.partial(ready, suite_of(item)))
            threads.append(functools.partial(run_program, place, item))
        elif begins(item, session.items[place - 1] if place else None):
            _slots.enter(place, functools.partial(next_in_python, suite_of(item), before_it[:]))
    for thread in threads:
        start(thread)


def ready(suite: suites.Suite) -> bool:
    """Whether all that the suite needs has been built, or has failed."""
    return all(_needs[need].done() for need in suite.needs)


def next_in_python(suite: suites.Suite, before_it: list[Future[Summary]]) -> bool:
    """Whether the tests in Python of a suite can begin: pytest has waited for those before."""
    return (ready(suite) and all(_needs[need].result() for need in suite.needs)
            and all(future.done() for future in before_it))


def begins(item: pytest.Item, last: pytest.Item | None) -> bool:
    """Whether a test in Python is the first of its suite."""
    return not last or isinstance(last, ProgramItem) or suite_of(last) != suite_of(item)


def start(function: Callable[[], None]) -> None:
    """Run a function in a thread of its own."""
    threading.Thread(target=function, daemon=True).start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Wait for what the suite needs; a test in Python takes its slots here."""
    suite = suite_of(item)
    for need in suite.needs:
        if not _needs[need].result():
            pytest.fail(f"not run: {' '.join(need)} failed", pytrace=False)
    if not isinstance(item, ProgramItem):
        if not _holding:
            _slots.acquire(item.session.items.index(item), slots_in_python(suite))
            _holding.append(suite)
        _running.append((item.nodeid, time.monotonic()))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let others run after the last test in Python of a suite."""
    _running.clear()
    if _holding and (not nextitem or isinstance(nextitem, ProgramItem)
                     or begins(nextitem, item)):
        _slots.release(slots_in_python(_holding.pop()))


def pytest_sessionfinish() -> None:
    """Stop what is still running after Ctrl-C or -x."""
    _slots.close()
    for program in _started:
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


_terminal: list[Any] = []
# A line of another thread must not come between the name of a test and its result.
_printing = threading.RLock()


def tell(text: str) -> None:
    """Print lines of their own."""
    with _printing:
        for terminal in _terminal:
            terminal.write_line(text)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Show progress now and then: a silent run looks dead."""
    def show() -> None:
        while not _done.wait(LOG_SECONDS):
            for program in _started:
                if running := program.progress():
                    tell(f"  {running}")
            for nodeid, since in _running:
                tell(f"  {nodeid}: {time.monotonic() - since:.0f} s")

    if terminal := session.config.pluginmanager.get_plugin("terminalreporter"):
        _terminal.append(terminal)
        start(show)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_logstart() -> Iterator[None]:
    """Keep other threads from printing while pytest prints the name of a test."""
    with _printing:
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Iterator[None]:
    """Count results, and let pytest print them."""
    known: dict[str, Any] = dict(report.user_properties)
    if "results" in known and report.when == "call":
        _totals.add(Summary(**known["results"]))
    elif report.failed:
        _totals.fail(report.nodeid)
    else:
        _totals.passed += report.when == "call" and report.passed
        _totals.skipped += report.skipped
    with _printing:
        yield


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
        f"{known['seconds']:.0f} s, {known['cpu_seconds']:.0f} CPU-s")


def counted(summary: Summary) -> str:
    """The counts as text."""
    return f"{summary.passed} passed, {summary.failed} failed, {summary.skipped} skipped"


def pytest_unconfigure() -> None:
    """Print the totals."""
    _done.set()
    if _totals.passed or _totals.failed or _totals.skipped:
        print(counted(_totals), flush=True)
