# SPDX-License-Identifier: GPL-2.0-only
"""Reader for KTAP and TAP test results, including nested ones.

Anything doubtful counts as a failure: a planned test without a result, a result
outside the plan, a missing plan, subtests without the result line of their
parent. Lines that are not KTAP are diagnostics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_VERSION = re.compile(r"(?:K?TAP) version \d+\s*$")
_PLAN = re.compile(r"1\.\.(\d+)\s*(?:#.*)?$")
# Without a number it is prose ("ok then"), and the plan detects the missing result.
_RESULT = re.compile(r"(not )?ok (\d+)(?:\s+(.*))?$")
_UNNUMBERED_FAILURE = re.compile(r"not ok\b(?:\s+(.*))?$")
_DIRECTIVE = re.compile(r"(?:^|\s)#\s*(SKIP|TODO|XFAIL|TIMEOUT|ERROR)", re.IGNORECASE)
_BAIL = re.compile(r"Bail out!\s*(.*)$")
# With these, "not ok" does not count as a failure.
_EXPECTED = frozenset({"SKIP", "TODO", "XFAIL"})


@dataclass
class Summary:
    """Counted results; a container of subtests is not counted itself."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if nothing failed and at least one test was seen."""
        return self.failed == 0 and self.passed + self.skipped > 0

    def fail(self, what: str, count: int = 1) -> None:
        """Record `count` failures with one description."""
        self.failed += count
        self.failures.append(what)

    def add(self, other: Summary, prefix: str = "") -> None:
        """Add the counts of other; prefix the names of its failures."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += [f"{prefix} > {name}" if prefix else name
                          for name in other.failures]

    def line(self, name: str) -> str:
        """Return a one-line summary."""
        return (f"# {name}: {self.passed} passed, {self.failed} failed, "
                f"{self.skipped} skipped")


def _gaps(seen: set[int], planned: int) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of missing numbers from 1 to planned."""
    first = 1
    for number in sorted({*seen, planned + 1}):
        if first < number <= planned + 1:
            yield first, number - 1
        first = max(first, number + 1)


class _Group:
    """The results at one level of indentation, under one plan."""

    def __init__(self, top: bool) -> None:
        self.top = top
        self.planned: int | None = None
        self.seen: set[int] = set()
        self.sum = Summary()

    @property
    def touched(self) -> bool:
        return self.planned is not None or bool(self.seen)

    @property
    def complete(self) -> bool:
        return self.planned is not None and len(self.seen) >= self.planned

    def close(self) -> Summary:
        """Compare plan and results; return the counts."""
        if self.planned is None:
            # For subtests, the parent's result line proves that they are
            # complete; at the top level only a plan does.
            if self.top:
                self.sum.fail("no plan line (1..N)")
            return self.sum
        if self.planned == 0 and not self.seen:
            if self.top:
                self.sum.skipped += 1
            return self.sum
        for first, last in _gaps(self.seen, self.planned):
            self.sum.fail(f"test {first} of {self.planned} has no result" if first == last else
                          f"tests {first} to {last} of {self.planned} have no result",
                          last - first + 1)
        for number in sorted(self.seen):
            if number > self.planned or number < 1:
                self.sum.fail(f"test {number} is outside the plan 1..{self.planned}")
        return self.sum


class Parser:
    """Parses line by line; finish() returns the Summary."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._total = Summary()
        self._documents = 0

    def feed(self, line: str) -> None:
        """Parse one line, with or without newline."""
        line = line.rstrip("\r\n")
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        if _VERSION.match(text):
            self._begin(indent)
        elif match := _PLAN.match(text):
            self._plan(indent, int(match[1]))
        elif match := _RESULT.match(text):
            self._result(indent, match[1] is None, int(match[2]), match[3] or "")
        elif match := _UNNUMBERED_FAILURE.match(text):
            self._group(indent).sum.fail(match[1] or "a test without a number and name")
        elif match := _BAIL.match(text):
            self._total.fail(f"Bail out! {match[1]}".rstrip())

    def finish(self) -> Summary:
        """Close open groups and return the counts."""
        self._close_document()
        if not self._documents:
            self._total.fail("no test results")
        return self._total

    def _group(self, indent: int) -> _Group:
        if indent not in self._groups:
            self._groups[indent] = _Group(top=indent == 0)
        return self._groups[indent]

    def _begin(self, indent: int) -> None:
        if indent not in self._groups or not self._groups[indent].touched:
            return
        if indent == 0:
            self._close_document()
        else:
            self._orphan(indent)

    def _plan(self, indent: int, planned: int) -> None:
        group = self._group(indent)
        if group.planned is not None:
            if indent == 0 and group.complete:
                self._close_document()
            else:
                group.sum.fail(f"second plan 1..{planned} before the first was completed")
                return
            group = self._group(indent)
        group.planned = planned

    def _result(self, indent: int, ok: bool, number: int, text: str) -> None:
        children = self._take_children(indent)
        group = self._group(indent)
        # A new set of results without a header: the next program's output.
        if indent == 0 and group.complete and number == 1 and 1 in group.seen:
            self._close_document()
            group = self._group(indent)
        directive = _DIRECTIVE.search(text)
        kind = directive[1].upper() if directive else ""
        name = (text[:directive.start()] if directive else text).strip().removeprefix("- ")
        name = name.strip() or f"test {number}"
        if number in group.seen:
            group.sum.fail(f"test {number} ({name}) has a second result")
        group.seen.add(number)

        counted = False
        if children is not None:
            counted = children.passed + children.failed + children.skipped > 0
            group.sum.add(children, name)
        if not ok and kind not in _EXPECTED:
            if children is None or children.failed == 0:
                group.sum.fail(f"{name} ({kind.lower()})" if kind else name)
        elif counted:
            pass
        elif kind == "SKIP" or not ok:
            group.sum.skipped += 1
        else:
            group.sum.passed += 1

    def _take_children(self, indent: int) -> Summary | None:
        deeper = sorted(level for level in self._groups if level > indent)
        if not deeper:
            return None
        for level in deeper[1:]:
            self._orphan(level)
        return self._groups.pop(deeper[0]).close()

    def _orphan(self, indent: int) -> None:
        counts = self._groups.pop(indent).close()
        self._total.add(counts)
        self._total.fail("subtests end without the result line of their parent")

    def _close_document(self) -> None:
        for level in sorted(self._groups, reverse=True):
            if level > 0:
                self._documents += 1
                self._orphan(level)
        top = self._groups.pop(0, None)
        if top is not None:
            self._documents += 1
            self._total.add(top.close())


def parse(lines: Iterable[str]) -> Summary:
    """Read KTAP from lines and return the counts."""
    parser = Parser()
    for line in lines:
        parser.feed(line)
    return parser.finish()
