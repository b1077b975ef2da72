# SPDX-License-Identifier: GPL-2.0-only
"""Lines and bars for people."""
from __future__ import annotations

import datetime
import sys


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
        print(f"\r{self._title} [{'#' * full}{'.' * (self.WIDTH - full)}] {done}/{self._total}",
              end=end, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text without control characters, which a host or a plan could send to a terminal."""
    return "".join(char if char.isprintable() or char == "\n"
                   else char.encode("unicode_escape", "backslashreplace").decode()
                   for char in text)


def say(text: str) -> None:
    """Print a line at once."""
    print(printable(text), flush=True)


def say_aside(text: str) -> None:
    """The same, where it does not disturb output for programs."""
    print(printable(text), file=sys.stderr, flush=True)


def local_time(moment: float) -> str:
    """A moment for people."""
    return datetime.datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
