# SPDX-License-Identifier: GPL-2.0-only
"""Blackout windows: from a date to a date, or the same hours of some weekdays."""
from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WEEKLY = re.compile(r"(?:([A-Za-z.,]+) )?([0-2][0-9]:[0-5][0-9])-([0-2][0-9]:[0-5][0-9]) "
                    r"([A-Za-z0-9_+/-]+)")
EXAMPLES = "2026-12-24T00:00Z/2026-12-27T00:00Z, or Mon..Fri 08:00-18:00 Europe/Berlin"


@dataclasses.dataclass(frozen=True)
class Window:
    """A blackout, as it is written."""

    text: str
    first: float = 0.0
    last: float = 0.0
    # Of a weekly one; it ends on the next day if it ends at an earlier hour.
    days: frozenset[int] = frozenset()
    begin: datetime.time = datetime.time()
    end: datetime.time = datetime.time()
    zone: str = ""

    @property
    def over(self) -> bool:
        """Whether it will never be again."""
        return not self.zone and self.last < datetime.datetime.now().timestamp()

    def overlap(self, first: float, last: float) -> tuple[float, float] | None:
        """The first time in which it would meet a run, if there is one."""
        if not self.zone:
            return (self.first, self.last) if self.first < last and first < self.last else None
        zone = zoneinfo.ZoneInfo(self.zone)
        day = datetime.datetime.fromtimestamp(first, zone).date() - datetime.timedelta(days=1)
        while True:
            begin = datetime.datetime.combine(day, self.begin, zone)
            if begin.timestamp() >= last:
                return None
            next_day = datetime.timedelta(days=int(self.end <= self.begin))
            end = datetime.datetime.combine(day + next_day, self.end, zone)
            if day.weekday() in self.days and end.timestamp() > first:
                return begin.timestamp(), end.timestamp()
            day += datetime.timedelta(days=1)


def _days(text: str) -> frozenset[int]:
    """The numbers of weekdays such as Mon..Fri,Sun; ValueError for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        names = part.split("..")
        if len(names) > 2:
            raise ValueError
        first, last = DAYS.index(names[0]), DAYS.index(names[-1])
        # Sat..Mon goes over the end of the week.
        found |= {(first + number) % 7 for number in range((last - first) % 7 + 1)}
    return frozenset(found)


def window(text: str) -> Window:
    """Read a window; ValueError if it is none."""
    if match := WEEKLY.fullmatch(text):
        try:
            zoneinfo.ZoneInfo(match[4])
        except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError(f"there is no time zone '{match[4]}'") from None
        days = _days(match[1]) if match[1] else frozenset(range(7))
        begin, end = (datetime.time.fromisoformat(match[part]) for part in (2, 3))
        return Window(text, days=days, begin=begin, end=end, zone=match[4])
    first, last = (datetime.datetime.fromisoformat(part) for part in text.split("/"))
    if first.tzinfo is None or last.tzinfo is None or last <= first:
        raise ValueError
    return Window(text, first.timestamp(), last.timestamp())
