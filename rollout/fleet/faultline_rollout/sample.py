# SPDX-License-Identifier: GPL-2.0-only
"""The values of an experiment from the hosts that take part in it."""
from __future__ import annotations

import math

import numpy as np
from scipy import stats

from .design import Plan
from .experiment import Metric
from .measured import BOOT_SECONDS, GONE_SLOTS, Data, logarithms
from .outcome import KINDS, Event
from .types import Array, Flags

# A guard that loses values in arm b with such a chance, or hosts that vanish so much more
# often in it, are not a coincidence; nor is a mechanism that differs so much.
DOUBT_P = 0.05


class Sample:
    """Which hosts take part in which slots, their values, and what happened to the others."""

    def __init__(self, plan: Plan, data: Data) -> None:
        self.plan = plan
        self.exp = plan.experiment
        self.data = data
        self.assigned = plan.assigned[:, :data.slots]
        self.there: Flags = np.ones(len(plan.hosts), dtype=bool) if data.out is None else ~data.out
        self.share = float(plan.assigned.mean())
        self._mark_gone()
        logs = np.where(self.here, logarithms(data.primary), np.nan)
        self.panel = plan.panel(logs, data.before)
        self.logs = logs
        switchback = self.exp.design == "switchback"
        self.pairs = plan.slots // 2 if switchback else 1
        self.final = data.slots >= plan.slots
        self.pairs_done = data.slots // 2 if switchback else int(self.final)

    def _mark_gone(self) -> None:
        """Find hosts that rebooted or vanished; from then on they are out."""
        hosts, slots = self.data.primary.shape
        self.here: Flags = np.repeat(self.there[:, None], slots, axis=1)
        self.happened: dict[str, Flags] = {
            kind: np.zeros((hosts, slots), dtype=bool) for kind in KINDS}
        silent: list[tuple[float, int, int]] = []
        heard: Flags = np.logical_or.reduce(np.isfinite(self.data.seen[:, 1:]), axis=0)
        for host in map(int, np.flatnonzero(self.there)):
            out = self._rebooted(host)
            known = np.flatnonzero(np.isfinite(self.data.seen[host]))
            if out < slots:
                self.happened["reboots"][host, out] = True
            # Slots in which Prometheus ran.
            elif len(known) and heard[known[-1]:].sum() >= GONE_SLOTS:
                out = self._silent_from(host, int(known[-1]))
                silent.append((float(self.data.seen[host, known[-1]]), host, out))
            self.here[host, out:] = False
        self._mark_silent(sorted(silent))
        self.happened["oom_kills"] = (np.nan_to_num(self.data.ooms) > 0.5) & self.here
        self.events = [Event(kind, self.plan.hosts[host].name, int(slot),
                             "ab"[self.assigned[host, slot]])
                       for kind in KINDS for host, slot in np.argwhere(self.happened[kind])]

    def _mark_silent(self, silent: list[tuple[float, int, int]]) -> None:
        """Tell hosts that vanished from those that Prometheus lost together.

        A part of Prometheus that is down takes hosts of both arms at one time.
        """
        groups: list[list[tuple[float, int, int]]] = []
        for row in silent:
            if groups and row[0] - groups[-1][-1][0] <= 2 * self.pause:
                groups[-1].append(row)
            else:
                groups.append([row])
        for group in groups:
            in_b = sum(int(self.assigned[host, slot]) for _, host, slot in group)
            together = 0 < in_b < len(group) \
                and stats.binom.sf(in_b - 1, len(group), self.share) >= DOUBT_P
            for _, host, slot in group:
                self.happened["lost_together" if together else "vanished"][host, slot] = True

    @property
    def pause(self) -> float:
        """The seconds between two scrapes."""
        counts = self.data.scrapes[np.isfinite(self.data.scrapes)]
        return self.exp.window / max(1.0, float(np.median(counts)) if len(counts) else 1.0)

    def _rebooted(self, host: int) -> int:
        """The slot in which a host crashed and came back; the number of slots if it did not."""
        data = self.data
        last, before = math.nan, 0
        for place in np.flatnonzero(np.isfinite(data.last_boot[host])):
            boot = float(data.last_boot[host, place]) + BOOT_SECONDS
            begin = data.start + (place - 1) * self.exp.slot
            if place and boot > max(begin, data.first_boot[host, place] + 2 * BOOT_SECONDS):
                return int(place) - 1
            if math.isfinite(last) and boot > max(self._last_scrape(host, before),
                                                  last + 2 * BOOT_SECONDS):
                return self._silent_from(host, before)
            last, before = float(data.last_boot[host, place]), int(place)
        return data.slots

    def _silent_from(self, host: int, place: int) -> int:
        """The slot of the first scrape that is missing after a place in seen.

        A crash at a change of the switch thus counts for the new arm.
        """
        missing = self._last_scrape(host, place) + self.pause - self.data.start
        return min(place, max(place - 1, 0, int(missing // self.exp.slot)))

    def _last_scrape(self, host: int, place: int) -> float:
        """The last scrape in a place in seen; its begin if that is not known."""
        seen = float(self.data.seen[host, place])
        return seen if math.isfinite(seen) else self.data.start + (place - 1) * self.exp.slot

    def by_unit(self, flags: Flags) -> tuple[int, int]:
        """In how many slots of arm b, and of both, a unit has the flag on any host."""
        if self.exp.design == "parallel":
            flags = flags.any(axis=1, keepdims=True)
        rows = self.plan.together(flags.astype(float)) > 0
        arms = self.plan.together(self.assigned.astype(float))[:, :rows.shape[1]]
        return int((rows & (arms > 0.5)).sum()), int(rows.sum())

    def losses(self, values: Flags) -> tuple[int, int]:
        """How many values are missing in arm b, and in both."""
        lost = ~values & self.here
        if self.exp.design == "parallel":
            # A host that is silent is one loss, however many slots it misses.
            lost &= ((values.mean(axis=1) < 0.5) & self.here.all(axis=1))[:, None]
        return self.by_unit(lost)

    def guard_values(self, metric: Metric, values: Array) -> Array:
        """The values to compare: logarithms, or the counts themselves."""
        known = logarithms(values) if metric.kind == "ratio" else \
            np.where(values >= 0, values, np.nan)
        return np.where(self.here, known, np.nan)
