# SPDX-License-Identifier: GPL-2.0-only
"""TAP for test programs in Python, as tap.sh for those in bash."""

from __future__ import annotations


class Tap:
    """Prints results; the plan comes at the end."""

    def __init__(self) -> None:
        self._count = 0
        self._failed = 0

    def result(self, name: str, passed: bool, remarks: list[str]) -> None:
        """Print one result with remarks."""
        self._count += 1
        self._failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self._count} - {name}")
        self.say(remarks)

    @staticmethod
    def say(remarks: list[str]) -> None:
        """Print comments."""
        for line in remarks:
            print(f"# {line}".rstrip(), flush=True)

    def finish(self) -> int:
        """Print the plan; return an exit code."""
        print(f"1..{self._count}", flush=True)
        return 1 if self._failed else 0
