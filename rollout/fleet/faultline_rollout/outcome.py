# SPDX-License-Identifier: GPL-2.0-only
"""A verdict, its reasons, and the events and guards that it counts."""
from __future__ import annotations

import dataclasses
import math
from typing import Any

from .estimate import Estimate
from .experiment import Metric, relative

BETTER, WORSE, EQUIVALENT = "BETTER", "WORSE", "EQUIVALENT"
INCONCLUSIVE, NOT_EXERCISED, INVALID = "INCONCLUSIVE", "NOT EXERCISED", "INVALID"
EXIT = {BETTER: 0, EQUIVALENT: 0, WORSE: 10, INCONCLUSIVE: 20, NOT_EXERCISED: 20, INVALID: 30}


@dataclasses.dataclass(frozen=True)
class Guard:
    """The result of a guard.

    Effects are logarithms of ratios, and differences of the means of slots for counts.
    """

    metric: Metric
    effect: float
    # The largest harm that is compatible with the values.
    harm: float
    p: float
    # failed, passed or open, and why.
    state: str
    why: str

    @property
    def name(self) -> str:
        """The name of the metric."""
        return self.metric.name

    def share(self, effect: float) -> float:
        """An effect as harm, divided by what is accepted."""
        return self.metric.harm * self.metric.value(effect) / self.metric.margin


@dataclasses.dataclass(frozen=True)
class Event:
    """A host in a slot in which something happened beside the metrics."""

    # One of KINDS.
    kind: str
    host: str
    slot: int
    arm: str


# In the order of reports.  lost_together: hosts of both arms that fell silent at one time.
KINDS = {"reboots": "reboots", "vanished": "vanished hosts", "oom_kills": "OOM kills",
         "lost_together": "hosts that fell silent together in both arms"}
LOOK_AT = {"reboots": "pstore, the console and `journalctl -b -1`",
           "vanished": "the console: it hangs, or only its node_exporter or network is down",
           "oom_kills": "`journalctl -k`"}


@dataclasses.dataclass
class Result:
    """A verdict and its reasons."""

    verdict: str
    reasons: list[str]
    final: bool
    pairs_done: int
    pairs: int
    estimate: Estimate | None
    tost: Estimate | None
    guards: list[Guard]
    mechanism: dict[str, float]
    events: list[Event]
    # Of the events, those that arm b has more of; they rule out a verdict for b.
    vetoes: list[str]
    detectable: float
    hours_needed: float
    clustered: tuple[float, float] | None
    effects: list[float]
    path: list[tuple[float, float, float]]

    @property
    def exit_status(self) -> int:
        """The exit status of `faultline-rollout verdict`."""
        return EXIT[self.verdict]

    @property
    def harmful(self) -> bool:
        """Whether an experiment should not go on."""
        return self.verdict == WORSE or bool(self.vetoes)

    def count(self, kind: str) -> dict[str, int]:
        """The number of events of a kind in each arm."""
        return count_of(self.events, kind)

    def to_json(self) -> dict[str, Any]:
        """Values for json.dumps, effects as fractions."""
        def number(value: float, ratio: bool = False) -> float | None:
            value = relative(value) if ratio else value
            return round(value, 6) if math.isfinite(value) else None

        found = self.estimate
        return {
            "verdict": self.verdict, "exit_status": self.exit_status, "reasons": self.reasons,
            "final": self.final, "pairs_done": self.pairs_done, "pairs": self.pairs,
            "effect": None if found is None else {
                "value": number(found.effect, True), "low": number(found.low, True),
                "high": number(found.high, True), "level": found.level,
                "p": number(found.p)},
            "detectable": number(self.detectable, True),
            "hours_needed": number(self.hours_needed),
            "guards": [{"name": guard.name, "kind": guard.metric.kind,
                        "effect": number(guard.metric.value(guard.effect)),
                        "largest_harm": number(guard.metric.value(guard.harm)),
                        "p": number(guard.p), "margin": guard.metric.margin,
                        "state": guard.state, "why": guard.why} for guard in self.guards],
            "mechanism": {arm: number(value) for arm, value in self.mechanism.items()},
            "events": {kind: self.count(kind) for kind in KINDS},
            "hosts_with_events": [dataclasses.asdict(event) for event in self.events],
            "vetoes": self.vetoes,
            "clustered_t": None if self.clustered is None else {
                "effect": number(self.clustered[0], True), "error": number(self.clustered[1])},
        }


def count_of(events: list[Event], kind: str) -> dict[str, int]:
    """The number of events of a kind in each arm."""
    return {arm: sum(event.kind == kind and event.arm == arm for event in events)
            for arm in "ab"}


def named(events: list[Event], most: int = 5) -> str:
    """Hosts and slots of events."""
    names = [f"{event.host} in slot {event.slot}" for event in events[:most]]
    if len(events) > most:
        names.append(f"{len(events) - most} more")
    return ", ".join(names) or "none"
