# SPDX-License-Identifier: GPL-2.0-only
"""TAP for the tests of the source scripts: a test is a function, a failure an exception."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

TESTS: list[Callable[[], None]] = []


class Skip(Exception):
    """Raised by a test that cannot run here; the text says why."""


def test(function: Callable[[], None]) -> Callable[[], None]:
    """Add a function to the plan; its docstring is the test's name."""
    TESTS.append(function)
    return function


def same(got: object, expected: object, what: str = "value") -> None:
    """Fail unless two values are equal."""
    if got != expected:
        raise AssertionError(f"{what}: got {got!r}, expected {expected!r}")


def has(text: str, *parts: str) -> None:
    """Fail unless the text contains all the parts."""
    for part in parts:
        if part not in text:
            raise AssertionError(f"no {part!r} in:\n{text}")


def lacks(text: str, *parts: str) -> None:
    """Fail if the text contains one of the parts."""
    for part in parts:
        if part in text:
            raise AssertionError(f"unexpected {part!r} in:\n{text}")


def skip_all(reason: str) -> None:
    """Skip the whole program."""
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)


def main() -> None:
    """Run the tests in order."""
    print(f"1..{len(TESTS)}", flush=True)
    failed = 0
    for number, function in enumerate(TESTS, 1):
        name = f"{number} - {(function.__doc__ or function.__name__).strip().rstrip('.')}"
        try:
            function()
            print(f"ok {name}", flush=True)
        except Skip as reason:
            print(f"ok {name} # SKIP {reason}", flush=True)
        except Exception:  # pylint: disable=broad-except
            failed += 1
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
            print(f"not ok {name}", flush=True)
    sys.exit(1 if failed else 0)
