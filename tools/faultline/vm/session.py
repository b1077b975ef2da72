# SPDX-License-Identifier: GPL-2.0-only
"""One boot: relays the output of the guest, times the run and ends it."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from .console import Console
from .errors import RunnerError
from .qemu import Bootable, Process

# After "end" the guest only has to reset the machine.  A busy host can keep an emulated CPU from
# running for a minute.
_RESET_GRACE = 120.0
# Time for a hung guest to print its state.
_DUMP_LIMIT = 20.0
_DUMP_QUIET = 3.0


@dataclass
class Outcome:
    """The outcome of one boot."""

    console: Console
    records: dict[str, str] = field(default_factory=dict)
    # Why the runner ended it: "timeout", "stall", "reset"; else "".
    cut: str = ""
    seconds: float = 0.0
    # Host seconds from the start of QEMU to the start of the command.
    boot_seconds: float | None = None
    qemu_status: int = 0
    qemu_output: str = ""
    qemu_command: list[str] = field(default_factory=list)
    dumped: bool = False


class Tee:
    """Copies bytes to a stream in a separate thread.

    A reader that stops reading (a pager, a full pipe) must not block the guest
    or the timeout.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue data; return at once."""
        self._queue.put(data)

    def close(self) -> None:
        """Wait until everything is written."""
        self._queue.put(None)
        self._thread.join()

    def _copy(self) -> None:
        while (data := self._queue.get()) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(data)
                self._stream.flush()


class LogFile:
    """A file in the log directory; a full disk gives one clear error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as err:
            raise log_error(path, err) from err

    def write(self, data: bytes) -> None:
        """Append data."""
        try:
            while data:
                data = data[self._file.write(data) or 0:]
        except OSError as err:
            raise log_error(self.path, err) from err

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def log_error(path: Path, err: OSError) -> RunnerError:
    """Return the error for a log that cannot be written."""
    return RunnerError(f"cannot write {path}: {err.strerror}; "
                       "free some space or choose another folder with --out DIR")


class _Session:
    def __init__(self, process: Process, outcome: Outcome, logs: dict[str, LogFile],
                 on_output: Callable[[bytes], None]) -> None:
        self._process = process
        self._outcome = outcome
        self._logs = logs
        self._on_output = on_output
        self._status = b""
        self._selector = selectors.DefaultSelector()
        for name, channel in process.channels.items():
            self._selector.register(channel, selectors.EVENT_READ, name)
        self.started = time.monotonic()
        self.last_data = self.started

    @property
    def open(self) -> bool:
        return bool(self._selector.get_map())

    def carry(self, wait: float) -> bool:
        """Relay data that arrives within wait seconds; return True if there was any."""
        arrived = False
        for key, _ in self._selector.select(wait):
            assert isinstance(key.fileobj, socket.socket)
            try:
                data = key.fileobj.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            arrived = True
            self._take(key.data, data)
        if arrived:
            self.last_data = time.monotonic()
        return arrived

    def _take(self, channel: str, data: bytes) -> None:
        if channel == "status":
            self._records(data)
            return
        self._logs[channel].write(data)
        if channel == "console":
            self._outcome.console.feed(data)
        elif channel == "output":
            self._on_output(data)

    def _records(self, data: bytes) -> None:
        *lines, self._status = (self._status + data).split(b"\n")
        for line in lines:
            name, _, value = line.decode("ascii", "replace").strip().partition(" ")
            self._outcome.records[name] = value
            if name == "start":
                self._outcome.boot_seconds = time.monotonic() - self.started

    def dump(self) -> None:
        """Make the kernel print the state of every CPU and task."""
        self._outcome.console.stop()
        limit = time.monotonic() + _DUMP_LIMIT
        before = self._outcome.console.lines
        # l: backtraces of active CPUs, d: held locks, t: all tasks.
        for key in "ldt":
            if not self._process.sysrq(key):
                break
            self._until_quiet(limit)
        if self._outcome.console.lines == before:
            # Interrupts are off, or the kernel does not accept SysRq over serial.
            self._process.monitor("inject-nmi")
            self._until_quiet(limit)
        self._outcome.dumped = self._outcome.console.lines > before

    def _until_quiet(self, limit: float) -> None:
        quiet = time.monotonic() + _DUMP_QUIET
        lines = self._outcome.console.lines
        while self.open and time.monotonic() < min(limit, quiet):
            self.carry(0.1)
            if self._outcome.console.lines > lines:
                lines = self._outcome.console.lines
                quiet = time.monotonic() + _DUMP_QUIET / 3


def boot(machine: Bootable, directory: Path, *, timeout: float = 0, stall: float = 0,
         on_output: Callable[[bytes], None] = lambda data: None) -> Outcome:
    """Boot a machine and wait until it ends.

    Logs go to directory: console.log, output.log, returned.tar.gz, qemu.log. A
    timeout or stall of 0 means none.
    """
    outcome = Outcome(Console(machine.allow_warn))
    with contextlib.ExitStack() as stack:
        logs = {}
        for channel, name in (("console", "console.log"), ("output", "output.log"),
                              ("returned", "returned.tar.gz")):
            logs[channel] = LogFile(directory / name)
            stack.callback(logs[channel].close)
        qemu_log = directory / "qemu.log"
        try:
            log = stack.enter_context(qemu_log.open("wb"))
        except OSError as err:
            raise log_error(qemu_log, err) from err
        with _running(machine, log) as process:
            session = _Session(process, outcome, logs, on_output)
            _watch(session, process, outcome, timeout, stall)
            outcome.qemu_status = process.wait()
            outcome.seconds = time.monotonic() - session.started
        outcome.console.finish()
        outcome.qemu_command = process.command
        outcome.qemu_output = qemu_log.read_text("utf-8", "replace").strip()
    return outcome


@contextlib.contextmanager
def _running(machine: Bootable, log: BinaryIO) -> Iterator[Process]:
    process = Process(machine, log)
    try:
        yield process
    except BaseException:
        process.kill()
        process.wait()
        raise


def _watch(session: _Session, process: Process, outcome: Outcome,
           timeout: float, stall: float) -> None:
    end_seen = 0.0
    while session.open:
        session.carry(0.25)
        now = time.monotonic()
        if "end" in outcome.records and not end_seen:
            end_seen = now
        if end_seen and now - end_seen > _RESET_GRACE:
            outcome.cut = "reset"
        elif timeout and now - session.started > timeout:
            outcome.cut = "timeout"
        elif stall and now - session.last_data > stall:
            outcome.cut = "stall"
        if outcome.cut:
            session.dump()
            process.kill()
            while session.open:
                session.carry(0.25)
            return
