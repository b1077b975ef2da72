# SPDX-License-Identifier: GPL-2.0-only
"""Parses the output of the programs in tests/upstream/guest."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Exit statuses of stress-ng, from its manual page: lack of resources, or not available on this
# machine; and an unreliable operation count because the time was up.
SKIPPED = (3, 4)
UNCOUNTED = 7


@dataclass(frozen=True)
class Result:
    """The result of one test."""

    # ok, skip or fail.
    outcome: str
    # The group to run to repeat the test.
    group: str
    seconds: float
    output: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The values to compare: the outcome, and the number of subtests with each outcome."""
        inside = {"ok": 0, "skip": 0, "fail": 0}
        for line in self.output[:-1]:
            if match := re.match(r"(not )?ok \d+\b(.*# SKIP)?", line):
                inside["skip" if match[2] else "fail" if match[1] else "ok"] += 1
        counts = ", ".join(f"{count} {kind}" for kind, count in inside.items() if count)
        return f"{self.outcome} ({counts} inside)" if counts else self.outcome


def read_vmtests(lines: list[str]) -> dict[str, Result]:
    """Parse the output of guest/vmtests.sh: a test's output, its result, the time it ended."""
    results: dict[str, Result] = {}
    group, last, began = "", "", 0.0
    output: list[str] = []
    for line in lines:
        if match := re.match(r"category (\w+)$", line):
            group, output = match[1], []
        elif match := re.match(r"(ok|not ok) \d+ (.*?)( # SKIP| # exit=\d+)?$", line):
            last = match[2]
            outcome = "fail" if match[1] == "not ok" else "skip" if match[3] else "ok"
            results[last] = Result(outcome, group, 0.0, (*output, line))
            output = []
        elif match := re.match(r"uptime ([\d.]+)$", line):
            result = results[last]
            results[last] = Result(result.outcome, result.group, float(match[1]) - began,
                                   result.output)
            began = float(match[1])
        else:
            output.append(line.removeprefix("# "))
    return results


def read_stressors(lines: list[str]) -> dict[str, Result]:
    """Parse the output of guest/stressors.sh."""
    results: dict[str, Result] = {}
    group = ""
    began = 0.0
    output: list[str] = []
    for line in lines:
        if match := re.match(r"stressor (.*)$", line):
            group, output = match[1], []
        elif match := re.match(r"status (\d+) ([\d.]+)$", line):
            status, ended = int(match[1]), float(match[2])
            said = "\n".join(output)
            if status in SKIPPED or (status == 0 and "skipping stressor" in said):
                outcome = "skip"
            else:
                outcome = "ok" if status in (0, UNCOUNTED) else "fail"
            results[group.split()[0]] = Result(outcome, group, ended - began, (*output, line))
            began = ended
        else:
            output.append(line)
    return results
