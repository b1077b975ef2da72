# SPDX-License-Identifier: GPL-2.0-only
"""Prints TAP for the tests in this directory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial


class Skip(Exception):
    """Raised by a case that cannot run here; the text says why."""


def run(cases: Sequence[tuple[str, Callable[[], None]]], workers: int = 1) -> int:
    """Run cases, print a result line for each, return an exit code.

    A case fails if it raises anything but Skip.
    """
    # Cases run in parallel, and one may redirect sys.stdout.
    say = partial(print, file=sys.stdout)
    say(f"TAP version 13\n1..{len(cases)}", flush=True)
    failed = 0
    with ThreadPoolExecutor(workers) as pool:
        running = [(name, pool.submit(_timed, case)) for name, case in cases]
        for number, (name, future) in enumerate(running, start=1):
            error, seconds = future.result()
            if error is None:
                say(f"ok {number} - {name}")
            elif isinstance(error, Skip):
                say(f"ok {number} - {name} # SKIP {error}")
            else:
                failed += 1
                say(f"not ok {number} - {name}")
                for line in f"{type(error).__name__}: {error}".splitlines():
                    say(f"# {line}")
            say(f"# {seconds:.1f} s", flush=True)
    return 1 if failed else 0


def _timed(case: Callable[[], None]) -> tuple[Exception | None, float]:
    started = time.monotonic()
    error: Exception | None = None
    try:
        case()
    except Exception as err:  # noqa: B902
        error = err
    return error, time.monotonic() - started
