# SPDX-License-Identifier: GPL-2.0-only
"""Runs programs that print TAP or KTAP (with subtests), and judges them.

Every result without subtests counts.  A program counts as one more failure if it exits with an
error that none of its results explains, prints no results, misses its plan, or hangs.
"""
from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from faultline.vm.ktap import Summary, parse
from faultline.common import ROOT, Paths, shown

SHOWN_LINES = 25
FAILED = re.compile(r" *not ok\b")
RESULT = re.compile(r" *(?:not )?ok\b| *1\.\.\d")
REMARK = re.compile(r" *#")


class Program:
    """A test program and its output files, build/test/SUITE-NAME.tap and .err."""

    def __init__(self, title: str, command: Sequence[str]) -> None:
        self._title = title
        self._command = tuple(command)
        results = Paths.from_env().build / "test"
        stem = re.sub("[/ ]", "-", title)
        self.tap = results / f"{stem}.tap"
        self.errors = results / f"{stem}.err"
        self._began = self.seconds = self.cpu_seconds = 0.0
        # The exit status.
        self.status = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Kill it, or keep it from starting; called from another thread."""
        self._stopped = True
        if self._process:
            kill(self._process)

    def run(self, limit: float | None) -> Summary:
        """Run it until it exits or hits its limit; return its counts."""
        if self._stopped:
            return Summary()
        self.tap.parent.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        hung = False
        with open(self.tap, "wb") as out, open(self.errors, "wb") as err, \
                subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err, start_new_session=True) as process:
            self._process = process
            if not ends(process, limit):
                hung = True
                kill(process)
            self.cpu_seconds = cpu_seconds(process)
            process.wait()
            kill_group(process)
            # Its process id may be used again.
            self._process = None
        self.status = process.returncode
        self.seconds = time.monotonic() - self._began
        summary = parse(read_lines(self.tap))
        if hung:
            summary.fail("still running at its time limit: killed")
        elif process.returncode != 0 and summary.failed == 0:
            summary.fail(f"exit status {process.returncode}, but no result is 'not ok'")
        return summary

    def progress(self) -> str:
        """Its title, time and last line of output while it is running, else ""."""
        if not self._began or self.seconds:
            return ""
        lines = [line.strip() for path in (self.tap, self.errors) if path.exists()
                 for line in read_lines(path)[-5:] if line.strip()]
        return (f"{self._title}: {time.monotonic() - self._began:.0f} s, "
                f"{lines[-1][:100] if lines else 'no output yet'}")

    def ended(self) -> str:
        """How a program that prints no results ended: its last line, or the errors."""
        if self.status == 0:
            return (read_lines(self.tap)[-1:] or [""])[0] + (
                f" ({self._title}: {self.seconds:.0f} s, {self.cpu_seconds:.0f} CPU-s)")
        return "\n".join([f"{self._title}: exit status {self.status}",
                          *read_lines(self.errors)[-SHOWN_LINES:]])

    def excerpt(self, summary: Summary) -> str:
        """The failures, and what the program says about them."""
        lines = [f"not ok: {name}" for name in summary.failures]
        for path, part in ((self.tap, around_failures(read_lines(self.tap))),
                           (self.errors, read_lines(self.errors)[-SHOWN_LINES:])):
            if part:
                lines += [f"--- from {shown(path)}:", *part]
        return "\n".join(lines)


def ends(process: subprocess.Popen[bytes], limit: float | None) -> bool:
    """Wait until a program ends, and leave it as a zombie; return False at the limit."""
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """CPU time of a program that has ended, and of the children that it has waited for."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        # It was killed, and waited for by kill().
        return 0.0
    # utime, stime, cutime and cstime; the name of the program can have spaces.
    ticks = map(int, text.rpartition(")")[2].split()[11:15])
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


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


def read_lines(path: Path) -> list[str]:
    """Read the lines of a program's output file."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


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
