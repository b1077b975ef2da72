# SPDX-License-Identifier: GPL-2.0-only
"""Lines and bars for people."""
from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Progress:
    """A bar on a terminal; nothing elsewhere."""

    WIDTH = 30

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = max(1, total)
        self._on = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        if not self._on:
            return
        full = self.WIDTH * done // self._total
        end = "\n" if done >= self._total else ""
        # The terminal may be closed by now.
        with contextlib.suppress(OSError):
            print(f"\r{self._title} [{'#' * full}{'.' * (self.WIDTH - full)}] "
                  f"{done}/{self._total}", end=end, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text without control characters, which a host or a plan could send to a terminal."""
    return "".join(char if char.isprintable() or char == "\n"
                   else char.encode("unicode_escape", "backslashreplace").decode()
                   for char in text)


def say(text: str) -> None:
    """Print a line at once."""
    print(printable(text), flush=True)


def say_anyway(text: str, tell: Callable[[str], None] = say) -> None:
    """Print it if possible: the caller goes on with a full disk or a closed terminal."""
    with contextlib.suppress(OSError):
        tell(text)


@contextlib.contextmanager
def undoing() -> Iterator[None]:
    """Ignore the first interruption while hosts are set back: it would leave half of them."""
    told = False

    def interrupted(number: int, frame: Any) -> None:
        nonlocal told
        if told:
            signal.default_int_handler(number, frame)
        told = True
        # Not print(): the program may be in the middle of that.
        with contextlib.suppress(OSError):
            os.write(2, b"\nHosts are still being set back; interrupt once more to give up.\n")

    if threading.current_thread() is not threading.main_thread():
        # Signals do not come here.
        yield
        return
    before = {number: signal.signal(number, interrupted)
              for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_aside(text: str) -> None:
    """The same, where it does not disturb output for programs."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


def local_time(moment: float) -> str:
    """A moment for people."""
    return datetime.datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
