# SPDX-License-Identifier: GPL-2.0-only
"""Medians, tables, aims and the JSON file of a benchmark."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from .guest import BenchError, Boot, Sample

# The unit of kernel counters, which get a separate table.
EVENTS = "events"

# A smaller aim against another arm is an aim for an excess.
SMALL_EXCESS = 0.1


@dataclass
class Row:
    """All samples of one metric in one arm."""

    metric: str
    unit: str
    arm: str
    median: float
    min: float
    max: float
    n: int


@dataclass
class Aim:
    """One aim: VALUE (of ARM, against VS) should be at most, or LEAST, AIM.

    VALUE is None if it was not measured.  MET is None then, and also if another arm counts.
    EXACT: every sample, not just the median, should be AIM.
    """

    metric: str
    arm: str
    vs: str
    value: float | None
    aim: float
    met: bool | None
    least: bool = False
    exact: bool = False

    def verdict(self) -> str:
        """Return the verdict in words."""
        if self.met is None:
            return "not measured" if self.value is None else "other arm counts"
        return "met" if self.met else "NOT MET"

    def words(self, text: str) -> str:
        """Return the aim in words; TEXT is the number."""
        if self.exact:
            return f"always {text}"
        return f"at {'least' if self.least else 'most'} {text}"


def rows_of(samples: Iterable[Sample]) -> list[Row]:
    """Summarize samples; metrics and arms keep the order of their first appearance."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for sample in samples:
        groups.setdefault((sample.metric, sample.unit, sample.arm), []).append(sample.value)
    metrics = list(dict.fromkeys(metric for metric, _, _ in groups))
    arms = list(dict.fromkeys(arm for _, _, arm in groups))
    rows = [Row(metric, unit, arm, statistics.median(values), min(values), max(values),
                len(values))
            for (metric, unit, arm), values in groups.items()]
    return sorted(rows, key=lambda row: (metrics.index(row.metric), arms.index(row.arm)))


@dataclass
class Report:
    """The results of one run of a benchmark."""

    kernel: str
    machine: str
    rows: list[Row]
    aims: list[Aim] = field(default_factory=list)

    @classmethod
    def of(cls, boot: Boot, samples: Iterable[Sample], note: str = "") -> Self:
        """The report of a run; BOOT is one of our kernel."""
        machine = f"{platform.machine()}, {os.cpu_count()} CPUs, QEMU {boot.accel.upper()}{note}"
        return cls(boot.release, machine, rows_of(samples))

    def median(self, metric: str, arm: str) -> float | None:
        """Return the median of METRIC in ARM, or None if it was not measured."""
        for row in self.rows:
            if (row.metric, row.arm) == (metric, arm):
                return row.median
        return None

    def aim_value(self, metric: str, arm: str, aim: float) -> None:
        """Aim at a median of at most AIM."""
        value = self.median(metric, arm)
        self.aims.append(Aim(metric, arm, "", value, aim, None if value is None else value <= aim))

    def aim_exact(self, metric: str, arm: str, aim: float) -> None:
        """Aim at AIM in every sample."""
        for row in self.rows:
            if (row.metric, row.arm) == (metric, arm):
                # The sample furthest from the aim.
                value = max(row.min, row.max, key=lambda found: abs(found - aim))
                self.aims.append(Aim(metric, arm, "", value, aim, value == aim, exact=True))
                return
        self.aims.append(Aim(metric, arm, "", None, aim, None, exact=True))

    def aim_ratio(self, metric: str, arm: str, vs: str, aim: float) -> None:
        """Aim at a median of at most AIM times the median of arm VS."""
        self._aim_against(metric, arm, vs, aim, 0.0)

    def aim_least(self, metric: str, arm: str, vs: str, aim: float) -> None:
        """Aim at a median of at least AIM times the median of arm VS."""
        self._aim_against(metric, arm, vs, aim, 0.0, least=True)

    def aim_excess(self, metric: str, arm: str, vs: str, aim: float) -> None:
        """Aim at a median that exceeds the median of arm VS by at most the fraction AIM."""
        self._aim_against(metric, arm, vs, aim, 1.0)

    def aim_best(self, metric: str, arms: list[str], aim: float) -> None:
        """Aim at a median of at least AIM in the best of ARMS."""
        values = {arm: self.median(metric, arm) for arm in arms}
        best = max(arms, key=lambda arm: values[arm] or 0.0)
        for arm, value in values.items():
            met = None if value is None or arm != best else value >= aim
            self.aims.append(Aim(metric, arm, "", value, aim, met, least=True))

    def _aim_against(self, metric: str, arm: str, vs: str, aim: float, less: float,
                     least: bool = False) -> None:
        ours, theirs = self.median(metric, arm), self.median(metric, vs)
        if ours is None or not theirs:
            self.aims.append(Aim(metric, arm, vs, None, aim, None, least))
            return
        value = ours / theirs - less
        self.aims.append(Aim(metric, arm, vs, value, aim,
                             value >= aim if least else value <= aim, least))

    def text(self) -> str:
        """Return the human-readable tables."""
        lines = [f"kernel:  {self.kernel}", f"machine: {self.machine}", ""]
        lines += table(["metric", "unit", "arm", "median", "min", "max", "n"],
                       [[row.metric, row.unit, row.arm, _short(row.median), _short(row.min),
                         _short(row.max), str(row.n)]
                        for row in self.rows if row.unit != EVENTS], left=3)
        return "\n".join([*lines, *self._events(), *self.verdicts()])

    def verdicts(self) -> list[str]:
        """Return the table of aims."""
        return ["", *table(
            ["aim for", "arm", "against", "value", "aim", ""],
            [[aim.metric, aim.arm, aim.vs, _aim_value(aim), aim.words(f"{aim.aim:g}"),
              aim.verdict()] for aim in self.aims], left=3)] if self.aims else []

    def page(self) -> str:
        """Return tables in Markdown."""
        return ""

    def pictures(self) -> dict[str, str]:
        """Return pictures in SVG, by the end of their names."""
        return {}

    def _events(self) -> list[str]:
        """Return a table of kernel counters, one column per arm, without rows of zeros."""
        rows = [row for row in self.rows if row.unit == EVENTS]
        arms = sorted({row.arm for row in rows})
        cells = {(row.metric, row.arm): row for row in rows}
        body = []
        for metric in dict.fromkeys(row.metric for row in rows if row.max):
            found = [cells.get((metric, arm)) for arm in arms]
            body.append([metric, *(_short(row.median) if row else "-" for row in found)])
        if not body:
            return []
        return ["", *table(["events (medians)", *arms], body, left=1)]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The report that write() has written."""
        try:
            found = json.loads(path.read_text("utf-8"))
            return cls(found["kernel"], found["machine"], [Row(**row) for row in found["rows"]],
                       [Aim(**aim) for aim in found["aims"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path} is not a report of lab bench ({error!r})") from None

    def write(self, path: Path) -> list[Path]:
        """Write the JSON file, the page and the pictures, each atomically; return their paths."""
        files = {path: _json(asdict(self))}
        if self.page():
            files[path.with_suffix(".md")] = self.page()
        for end, text in self.pictures().items():
            files[path.with_name(f"{path.stem}-{end}.svg")] = text
        path.parent.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            new = file.with_suffix(f"{file.suffix}.new")
            new.write_text(text, encoding="utf-8")
            new.rename(file)
        return list(files)


def _json(found: dict[str, object]) -> str:
    """JSON with a line for each row, so that a change of one is a change of a line."""
    fields = []
    for key, value in found.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f" {json.dumps(row)}" for row in value) + "\n]"
        fields.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _aim_value(aim: Aim) -> str:
    if aim.value is None:
        return "-"
    return f"{aim.value:+.4f}" if aim.vs and aim.aim < SMALL_EXCESS else f"{aim.value:.3f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10000 else f"{value:.4g}"


def table(head: list[str], body: list[list[str]], left: int) -> list[str]:
    """Lay out a table; the first LEFT columns are words."""
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines = []
    for row in [head, *body]:
        cells = [cell.ljust(width) if i < left else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return lines
