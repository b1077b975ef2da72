# SPDX-License-Identifier: GPL-2.0-only
"""From the values of an experiment to a verdict."""
from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import Any

import numpy as np
from scipy import stats

from . import Error, estimate, sequential
from .design import Plan
from .estimate import Estimate, Panel, Redraws
from .experiment import Metric, in_words, relative
from .prometheus import Prometheus, with_slot
from .switches import metric_of
from .types import Array, Flags

# Of all A/A experiments, at most this share ends with BETTER or WORSE because of the
# primary metric, of which the looks while it runs may use LOOKS.
# 4 %, so that 300 of them keep below 5 % together with their chance variation.
ALPHA = 0.04
LOOKS = 0.01
# Of A/A experiments, at most this share ends with WORSE because of crashes and OOM kills, of
# which the looks may use EVENT_LOOKS.  With ALPHA that makes 5 %.
EVENT_ALPHA = 0.01
EVENT_LOOKS = 0.002
# A number of events in arm b that the days before make at least this probable, in all of
# the experiment, is normal.  So at any number of looks, no more than this share of fleets
# has a veto because of reboots that it always has.
USUAL_P = 0.1
DAY = 86400
HISTORY = 7 * DAY
# Of EQUIVALENT, for each side, and of all guards together.
EQUIVALENT_ALPHA = 0.05
GUARD_ALPHA = 0.05
# Of GUARD_ALPHA, for the looks while it runs.
GUARD_LOOKS = 0.025
# From so many hosts on, these checks trust the mean to be normal: redraws take minutes.
MANY = 200
# The power of the detectable effect.
POWER = 0.9
# Checks of the data: p-values so small that a sound experiment is seldom refused.
RATIO_P = 0.001
LOST_P = 0.005
CARRY_P = 0.002
# A guard that loses values in arm b with such a chance, or hosts that vanish so much more
# often in it, are not a coincidence; nor is a mechanism that differs so much.
DOUBT_P = 0.05
MAX_WRONG_ARM = 0.01
MAX_LOST = 0.2
MIN_LOST_DIFFERENCE = 0.01
CLOCK_SECONDS = 5.0
# A host has vanished if it is silent until now, in this many slots in which others
# were not.  That counts as a crash: Prometheus cannot tell a host that has hung from
# one whose node_exporter was stopped.
GONE_SLOTS = 2
# A host was booted again if its time of boot has moved by more than this, to a time after
# the last scrape before.  A clock that is set moves it, too, but not beyond that scrape.
BOOT_SECONDS = 30
# A host that boots is scraped within this time, but for those that take very long.
BOOT_STEP = 600
# Prometheus repeats a value for so long if nothing tells it that the host is gone.
LOOKBACK = 300
# Scrapes arrive late.
SETTLE = 30
# Moments in the time of a slot at which a look at recent crashes asks for the time of boot.
RECENT_POINTS = 200

BETTER, WORSE, EQUIVALENT = "BETTER", "WORSE", "EQUIVALENT"
INCONCLUSIVE, NOT_EXERCISED, INVALID = "INCONCLUSIVE", "NOT EXERCISED", "INVALID"
EXIT = {BETTER: 0, EQUIVALENT: 0, WORSE: 10, INCONCLUSIVE: 20, NOT_EXERCISED: 20, INVALID: 30}


@dataclasses.dataclass
class Data:
    """The measurements: hosts x complete slots, NaN where there is no value."""

    start: float
    primary: Array
    guards: list[Array]
    mechanism: Array
    lowest: Array
    highest: Array
    scrapes: Array
    offset: Array
    ooms: Array
    # One slot more: the first is that before the start.  The lowest and highest time of
    # boot in all of a slot, and the last scrape, all in seconds since 1970.
    first_boot: Array
    last_boot: Array
    seen: Array
    # For each host its kernels, and when each was seen first.
    kernels: list[dict[str, float]]
    before: Array | None = None
    # For kinds of events, how many a host had per slot in the days before; NaN if that is
    # not known.
    usual: dict[str, Array] = dataclasses.field(default_factory=dict)
    # Hosts that were missing at the start, and took no part.
    out: Flags | None = None

    @property
    def slots(self) -> int:
        """The number of complete slots."""
        return self.primary.shape[1]


def collect(plan: Plan, start: float, now: float | None = None,
            given: Prometheus | None = None) -> Data:
    """Ask Prometheus for the slots that are over."""
    exp = plan.experiment
    server = given or Prometheus(exp.prometheus, exp.host_label)
    moment = time.time() if now is None else now
    count = max(0, min(plan.slots, int((moment - SETTLE - start) // exp.slot)))
    if not count:
        nothing = np.full((len(plan.hosts), 0), np.nan)
        return Data(start, nothing, [nothing for _ in exp.guards], nothing, nothing, nothing,
                    nothing, nothing, nothing, nothing, nothing, nothing,
                    [{} for _ in plan.hosts])
    first = start + exp.slot

    def table(query: str, seconds: int = exp.window) -> Array:
        return server.table(with_slot(query, seconds), plan.hosts, first, count, exp.slot)

    def whole(query: str) -> Array:
        return server.table(with_slot(query, exp.slot), plan.hosts, start, count + 1, exp.slot)

    def node(metric: str) -> str:
        return f"{metric}{{{exp.selector}}}"

    arm, clock = node(metric_of(exp.switch)), node("node_time_seconds")
    before = None
    if exp.design == "parallel":
        # As long as the experiment, before it.
        past = server.table(with_slot(exp.primary.query, exp.window), plan.hosts,
                            first - plan.seconds, plan.slots, exp.slot)
        logs = logarithms(past)
        enough = np.isfinite(logs).sum(axis=1) >= plan.slots / 2
        if enough.all():
            before = estimate.mean_of_known(logs, 1)
    data = Data(
        start, table(exp.primary.query), [table(guard.query) for guard in exp.guards],
        table(exp.mechanism.query), table(f"min_over_time({arm}[$slot])"),
        table(f"max_over_time({arm}[$slot])"), table(f"count_over_time({arm}[$slot])"),
        table(f"abs({clock} - timestamp({clock}))"),
        table(f"increase({node('node_vmstat_oom_kill')}[$slot])", exp.slot),
        whole(f"min_over_time({node('node_boot_time_seconds')}[$slot])"),
        whole(f"max_over_time({node('node_boot_time_seconds')}[$slot])"),
        whole(f"max_over_time({clock}[$slot])"),
        server.texts(node("node_uname_info"), plan.hosts, "release", start,
                     start + count * exp.slot, exp.slot), before)
    moved = np.fmax.reduce(data.last_boot, 1) - np.fmin.reduce(data.first_boot, 1)
    for kind, happened in (("reboots", moved > BOOT_SECONDS), ("oom_kills", data.ooms > 0.5),
                           ("vanished", np.isnan(data.seen[:, -1]))):
        if happened.any():
            data.usual[kind] = usual(server, plan, kind, start)
    return data


def usual(server: Prometheus, plan: Plan, kind: str, start: float) -> Array:
    """How many events of a kind each host had per slot in the days before.

    Only times count in which the host had this kernel, and the value of arm a for an hour
    or more: neither a trial that boots the kernel, nor harm of b in an experiment before.
    NaN if Prometheus does not tell, as one with limits on queries: nothing excuses events then.
    """
    exp = plan.experiment
    nothing = np.full(len(plan.hosts), np.nan)

    def node(metric: str, matcher: str = "") -> str:
        return f"{metric}{{{', '.join(filter(None, (exp.selector, matcher)))}}}"

    # A boot is in one step only, if the host is scraped in the step after it.
    step = max(exp.slot, BOOT_STEP)
    switch, quiet = node(metric_of(exp.switch)), 2 * exp.slot + 3600
    try:
        found = server.texts(node("node_uname_info"), plan.hosts, "release", start, start,
                             exp.slot)
        releases = {release for host in found for release in host}
        if len(releases) != 1:
            return nothing
        kernel = node("node_uname_info", f"release={json.dumps(releases.pop())}")
        known = " and on ({0}) ".format(exp.host_label).join((
            "", f"(min_over_time({switch}[{quiet}s]) == {exp.a})",
            f"(max_over_time({switch}[{quiet}s]) == {exp.a})",
            f"count_over_time({kernel}[1h] offset {step}s)"))
        clock, gone = node("node_time_seconds"), GONE_SLOTS * exp.slot
        event = {"reboots": f"({clock} - {node('node_boot_time_seconds')} < {step})",
                 "oom_kills": f"(increase({node('node_vmstat_oom_kill')}[{step}s]) > 0.5)",
                 "vanished": f"(count_over_time({clock}[{step}s] offset {gone}s) unless on "
                             f"({exp.host_label}) count_over_time({clock}[{gone}s]))"}[kind]
        events, steps = (server.table(
            f"count_over_time(({what}{known})[{HISTORY}s:{step}s])", plan.hosts, start, 1,
            exp.slot)[:, 0] for what in (event, clock))
    except Error:
        return nothing
    # No event gives no value.
    return np.where(steps > 0, np.nan_to_num(events) / steps, np.nan) * exp.slot / step


def exceeds(seen: tuple[int, int], share: float, usual_rates: Array, slots: Array,
            once: bool) -> bool:
    """Whether arm b has more events than arm a, and more than the days before explain.

    seen are the events so far in arms a and b, of which b has this share of the time; slots
    those of each host in b, in all of the plan.  once: a host's events count once.
    """
    in_a, in_b = seen
    # With all of the time in b, as in a canary, there is nothing to compare with in a.
    if not in_b or share < 1 and in_b * (1 - share) <= in_a * share:
        return False
    expected = np.nan_to_num(usual_rates) * slots
    if not once:
        return bool(stats.poisson.sf(in_b - 1, expected.sum()) < USUAL_P)
    # The number of hosts that have any, as the sum of unequal chances: one host that
    # reboots all the time does not excuse the others.
    chances = np.zeros(in_b + 1)
    chances[0] = 1
    for p in -np.expm1(-expected[expected > 0]):
        more = chances[:-1] * p
        chances[:-1] *= 1 - p
        chances[1:] += more
    return bool(chances[-1] < USUAL_P)


def event_chances(counts: list[tuple[int, int]], share: float, final: bool) -> list[float]:
    """P-values of "arm b has no more events", from events in arms a and b, of a family."""
    chances = []
    for in_a, in_b in counts:
        total = in_a + in_b
        if not total:
            chances.append(1.0)
        elif final:
            chances.append(float(stats.binom.sf(in_b - 1, total, share)))
        else:
            chances.append(math.exp(-max(0.0, sequential.log_e_share(in_b, total, share))))
    return estimate.holm(chances)


def crashed_in_b(plan: Plan, start: float, now: float) -> list[str]:
    """Hosts that crashed in arm b and came back, both in the last time of a slot.

    None if arm a has as many, or the days before had.  A verdict counts crashes when their
    slot is over; this is for those who cannot wait.
    """
    exp = plan.experiment
    first = max(start, now - exp.slot)
    step = max(1, exp.slot // RECENT_POINTS)
    server = Prometheus(exp.prometheus, exp.host_label)
    boots = server.table(
        f"node_boot_time_seconds{{{exp.selector}}}", plan.hosts, first,
        max(0, 1 + int((now - first) // step)), step)
    found: dict[str, list[str]] = {"a": [], "b": []}
    for number, host in enumerate(plan.hosts):
        row: Array = boots[number]
        known = np.flatnonzero(np.isfinite(row))
        for place in np.flatnonzero(np.diff(row[known]) > BOOT_SECONDS):
            # The clock was set: the host was up with the old time of boot after that.
            if row[known[place + 1]] < first + float(known[place]) * step - LOOKBACK \
                    - BOOT_SECONDS:
                continue
            # The first scrape that is missing, or the boot: an old value can be given for a
            # while after the last scrape.
            crash = min(first + float(known[place] + 1) * step, float(row[known[place + 1]]))
            slot = int((crash - start) // exp.slot)
            if 0 <= slot < plan.slots:
                found[plan.arms[host.name][slot]].append(host.name)
                break
    if not found["b"]:
        return []
    share = float(plan.assigned.mean())
    seen = len(found["a"]), len(found["b"])
    rates = usual(server, plan, "reboots", start)
    return found["b"] if exceeds(seen, share, rates, plan.assigned.sum(axis=1), True) else []


def oom_kills(plan: Plan, start: float, now: float) -> list[str]:
    """Hosts of a canary, all in arm b since start, with OOM kills; none if that is usual."""
    exp = plan.experiment
    kills = Prometheus(exp.prometheus, exp.host_label).table(with_slot(
        f"increase(node_vmstat_oom_kill{{{exp.selector}}}[$slot])", max(1, int(now - start))),
        plan.hosts, now, 1, 1)[:, 0]
    found = [host.name for host, count in zip(plan.hosts, kills) if count > 0.5]
    if not found:
        return []
    rates = usual(Prometheus(exp.prometheus, exp.host_label), plan, "oom_kills", start)
    return found if exceeds((0, len(found)), 1.0, rates, plan.assigned.sum(axis=1), True) else []


def logarithms(values: Array) -> Array:
    """Logarithms; NaN for what has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(values > 0, np.log(np.where(values > 0, values, 1.0)), np.nan)


def never_changes(logs: Array) -> bool:
    """Whether the values of each host are all the same."""
    known = np.isfinite(logs)
    return not any(np.ptp(logs[host, known[host]]) for host in range(len(logs))
                   if known[host].any())


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


class Judge:
    """Judges the values of one experiment."""

    def __init__(self, plan: Plan, data: Data, draws: int = estimate.DRAWS) -> None:
        self.plan = plan
        self.exp = plan.experiment
        self.data = data
        self._draws = draws
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
            if math.isfinite(last) and boot > max(self._seen(host, before),
                                                  last + 2 * BOOT_SECONDS):
                return self._silent_from(host, before)
            last, before = float(data.last_boot[host, place]), int(place)
        return data.slots

    def _silent_from(self, host: int, place: int) -> int:
        """The slot of the first scrape that is missing after a place in seen.

        A crash at a change of the switch thus counts for the new arm.
        """
        missing = self._seen(host, place) + self.pause - self.data.start
        return min(place, max(place - 1, 0, int(missing // self.exp.slot)))

    def _seen(self, host: int, place: int) -> float:
        """The last scrape in a place in seen; its begin if that is not known."""
        seen = float(self.data.seen[host, place])
        return seen if math.isfinite(seen) else self.data.start + (place - 1) * self.exp.slot

    # --- Checks of the data

    def problems(self) -> list[str]:
        """Why the experiment is invalid; empty if it is not."""
        found: list[str] = []
        for check in (self._enough, self._kernels, self._clocks, self._events_seen, self._arms,
                      self._ratio, self._lost, self._carry_over, self._guards_there):
            # Without values, the others would only repeat it.
            if found and check is not self._kernels:
                break
            found += check()
        return found

    def _enough(self) -> list[str]:
        values = np.isfinite(self.logs)
        lost = 1 - values[self.here].mean() if self.here.any() else 1.0
        if lost > MAX_LOST:
            return [f"{lost:.0%} of the values of the primary metric are missing, of which "
                    f"{MAX_LOST:.0%} may be: look at Prometheus, and at the query"]
        if self.data.slots > 1 and never_changes(self.logs):
            return ["the primary metric never changes on any host: look at the query"]
        return []

    def _kernels(self) -> list[str]:
        # Ignore the kernel that a host boots after a crash.
        until = self.data.start + self.here.sum(axis=1) * self.exp.slot
        every = {release for host, seen in enumerate(self.data.kernels)
                 for release, first in seen.items() if first <= until[host]}
        if not every:
            return ["kernels cannot be checked: node_exporter gives no node_uname_info"]
        unknown = [host.name for host, seen, there in zip(
            self.plan.hosts, self.data.kernels, self.there) if there and not seen]
        if len(unknown) > MAX_LOST * self.there.sum():
            return [f"the kernels of {len(unknown)} of {self.there.sum()} hosts cannot be "
                    f"checked, such as {unknown[0]}: node_uname_info is missing"]
        if len(every) > 1:
            return [f"kernels differ: {', '.join(sorted(every))}"]
        return []

    def _clocks(self) -> list[str]:
        offset = np.where(self.here, self.data.offset, np.nan)
        if not np.isfinite(offset).any():
            return ["clocks cannot be checked: node_exporter gives no node_time_seconds"]
        unknown = 1 - np.isfinite(offset).sum() / self.here.sum()
        if unknown > MAX_LOST:
            return [f"clocks cannot be checked in {unknown:.0%} of the slots, of which "
                    f"{MAX_LOST:.0%} may be: node_time_seconds is missing on some hosts"]
        limit = min(CLOCK_SECONDS, max(1.0, self.exp.washout / 4))
        worst = np.nanmax(np.where(np.isfinite(offset), offset, 0.0), axis=1)
        return [f"the clock of {self.plan.hosts[host].name} is {worst[host]:.0f} s off, of which "
                f"{limit:.0f} s may be: synchronise clocks"
                for host in np.flatnonzero(worst > limit)[:3]]

    def _events_seen(self) -> list[str]:
        """Whether reboots and OOM kills would have been seen."""
        return [f"{what} cannot be seen in {1 - known:.0%} of the slots, of which {MAX_LOST:.0%} "
                f"may be: node_exporter does not give {metric} on all hosts"
                for what, metric, values in (
                    ("reboots", "node_boot_time_seconds", self.data.last_boot[:, 1:]),
                    ("OOM kills", "node_vmstat_oom_kill", self.data.ooms))
                if (known := np.isfinite(values)[self.here].mean()) < 1 - MAX_LOST]

    def _arms(self) -> list[str]:
        wanted = np.where(self.assigned == 1, self.exp.b, self.exp.a)
        known = np.isfinite(self.data.lowest) & self.here
        if not known.any():
            return [f"the arms cannot be checked: there is no {metric_of(self.exp.switch)}: start "
                    f"node_exporter with --collector.sysctl.include={self.exp.switch}"]
        if (unknown := 1 - known.sum() / self.here.sum()) > MAX_LOST:
            return [f"the arms cannot be checked in {unknown:.0%} of the slots, of which "
                    f"{MAX_LOST:.0%} may be: {metric_of(self.exp.switch)} is missing on some hosts"]
        wrong = known & ((self.data.lowest != wanted) | (self.data.highest != wanted))
        share = wrong.sum() / known.sum()
        if share <= MAX_WRONG_ARM:
            return []
        most = int(wrong.sum(axis=1).argmax())
        return [f"{self.exp.switch} is not what the plan says in {share:.1%} of the slots, of "
                f"which {MAX_WRONG_ARM:.0%} may be; most often on {self.plan.hosts[most].name}: "
                "who else sets it?"]

    def _by_unit(self, flags: Flags) -> tuple[int, int]:
        """In how many slots of arm b, and of both, a unit has the flag on any host."""
        if self.exp.design == "parallel":
            flags = flags.any(axis=1, keepdims=True)
        rows = self.plan.together(flags.astype(float)) > 0
        arms = self.plan.together(self.assigned.astype(float))[:, :rows.shape[1]]
        return int((rows & (arms > 0.5)).sum()), int(rows.sum())

    def _losses(self, values: Flags) -> tuple[int, int]:
        """How many values are missing in arm b, and in both."""
        lost = ~values & self.here
        if self.exp.design == "parallel":
            # A host that is silent is one loss, however many slots it misses.
            lost &= ((values.mean(axis=1) < 0.5) & self.here.all(axis=1))[:, None]
        return self._by_unit(lost)

    def _ratio(self) -> list[str]:
        """Whether values are missing in one arm more than in the other."""
        found = []
        for name, values in (("", self.logs), *(
                (f" of guard '{metric.name}'", self._guard_values(metric, rows))
                for metric, rows in zip(self.exp.guards, self.data.guards))):
            on, total = self._losses(np.isfinite(values))
            if not total or not 0 < self.share < 1:
                continue
            p = stats.binomtest(on, total, self.share).pvalue
            if p < RATIO_P:
                found.append(f"sample ratio: {on} of {total} missing values{name} are those of "
                             f"arm b, which has {self.share:.0%} of the slots (p = {p:.2g}): "
                             "values get lost in one arm")
        return found

    def _lost(self) -> list[str]:
        counts = np.where(self.here, np.nan_to_num(self.data.scrapes), np.nan)
        counts = counts / max(1.0, float(np.nanmax(counts)))
        if self.exp.design == "parallel":
            means = estimate.mean_of_known(counts, 1)
            panel = dataclasses.replace(self.panel, before=None,
                                        changes=self.plan.together(means[:, None]))
        else:
            panel = self.plan.panel(counts)
        found, p = self._test(panel)
        if p < LOST_P and abs(found) > MIN_LOST_DIFFERENCE:
            return [f"lost scrapes differ by arm: {abs(found):.1%} more in arm "
                    f"{'b' if found < 0 else 'a'} (p = {p:.2g})"]
        return []

    def _test(self, panel: Panel) -> tuple[float, float]:
        if len(panel.changes) >= MANY:
            found, error = estimate.clustered(panel)
            return found, float(2 * stats.norm.sf(abs(found) / max(error, 1e-12)))
        redraws = estimate.redraw(panel, 999, self.plan.seed)
        found = estimate.effect_of(panel)
        extreme = int((np.abs(redraws.overall(0.0)) >= abs(found) - 1e-12).sum())
        return found, (1 + extreme) / 1000

    def _carry_over(self) -> list[str]:
        """Whether the first slot of a pair knows the arm of the slot before it."""
        pairs = self.data.slots // 2
        if self.exp.design != "switchback" or pairs < 3:
            return []
        rest = self.logs - estimate.effect_of(self.panel) * self.assigned
        rest = rest - estimate.mean_of_known(rest, 1)[:, None]
        # Signs of the pair before: +1 if its second slot is b.
        panel = Panel(self.plan.together(rest[:, 2:2 * pairs:2]),
                      self.panel.signs[:, :pairs - 1], self.panel.strata, contrast=1.0)
        found, p = self._test(panel)
        if p <= CARRY_P:
            return [f"carry-over: the slot after one in arm b differs by {found:+.2%} "
                    f"(p = {p:.2g}): use a longer washout"]
        return []

    def _guards_there(self) -> list[str]:
        found = []
        for metric, values in zip(self.exp.guards, self.data.guards):
            known = np.isfinite(self._guard_values(metric, values))
            if known[self.here].mean() >= 1 - MAX_LOST:
                continue
            zeros = float((values[self.here] <= 0).mean())
            found.append(f"guard '{metric.name}' " + (
                f"is 0 in {zeros:.0%} of the slots, and 0 has no ratio: write kind = \"count\""
                if zeros > MAX_LOST and metric.kind == "ratio" else
                f"has too few values: {metric.query}" if known.any() else
                f"has no values: {metric.query}"))
        return found

    # --- Outcomes

    def mechanism(self) -> dict[str, float]:
        """The mean of the mechanism counter in each arm."""
        means = {}
        for arm, number in (("a", 0), ("b", 1)):
            values = self.data.mechanism[(self.assigned == number) & self.here]
            values = values[np.isfinite(values)]
            means[arm] = float(values.mean()) if len(values) else math.nan
        return means

    def _mechanism_differs(self) -> bool:
        """Whether the counter moves more in the arm in which the switch acts."""
        panel = self.plan.panel(np.where(self.here, self.data.mechanism, np.nan))
        if not np.isfinite(estimate.pair_effects(panel)[0]).any():
            return False
        effect, error = estimate.clustered(panel)
        more = effect if self.exp.mechanism.arm == "b" else -effect
        return more > 0 and more > stats.norm.isf(DOUBT_P) * error

    def _of_kind(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def event_harm(self) -> list[str]:
        """Crashes and OOM kills, if the exact test finds more in arm b."""
        families = (("crashes", ("reboots", "vanished")), ("OOM kills", ("oom_kills",)))
        counts = []
        for _, kinds in families:
            in_b, total = self._by_unit(np.logical_or.reduce(
                [self.happened[kind] for kind in kinds]))
            counts.append((total - in_b, in_b))
        limit = EVENT_ALPHA - EVENT_LOOKS if self.final else EVENT_LOOKS
        chances = event_chances(counts, self.share, self.final)
        return [f"{name}: {len(in_b)} in arm b, {len(events) - len(in_b)} in arm a "
                f"(p = {p:.2g}); in b: {named(in_b)}"
                for (name, kinds), p in zip(families, chances) if p <= limit
                for events in (self._of_kind(*kinds),)
                for in_b in ([event for event in events if event.arm == "b"],)]

    def vetoes(self) -> list[str]:
        """Events that arm b has more of than arm a, and than the days before explain."""
        found = []
        slots = self.plan.assigned.sum(axis=1) * self.there
        for kind, where in LOOK_AT.items():
            events = self._of_kind(kind)
            rates = self.data.usual.get(kind, np.zeros(len(self.plan.hosts)))
            counts = count_of(events, kind)
            hosts = {arm: len({event.host for event in events if event.arm == arm})
                     for arm in "ab"}
            if exceeds((counts["a"], counts["b"]), self.share, rates, slots, False) \
                    or exceeds((hosts["a"], hosts["b"]), self.share, rates, slots, True):
                in_b = [event for event in events if event.arm == "b"]
                in_a = [event for event in events if event.arm == "a"]
                found.append(f"{KINDS[kind]} in arm b: {named(in_b)}; in arm a: {named(in_a)}; "
                             f"look at {where}")
        return found

    def _guard_values(self, metric: Metric, values: Array) -> Array:
        """The values to compare: logarithms, or the counts themselves."""
        known = logarithms(values) if metric.kind == "ratio" else \
            np.where(values >= 0, values, np.nan)
        return np.where(self.here, known, np.nan)

    def guards(self) -> list[Guard]:
        """Judge the guards as one family."""
        rows: list[tuple[Metric, Array, float, float, float]] = []
        limit = GUARD_ALPHA - GUARD_LOOKS if self.final else GUARD_LOOKS
        for metric, raw in zip(self.exp.guards, self.data.guards):
            values = self._guard_values(metric, raw)
            panel = self.plan.panel(values)
            effect, harm = estimate.effect_of(panel), metric.harm
            pairs, _ = estimate.pair_effects(panel)
            if self.final:
                redraws = estimate.redraw(panel, self._draws, self.plan.seed)
                p = estimate.one_sided(panel, metric.harm_margin, harm, redraws)
                bound = harm * effect + 1.645 * float(np.std(redraws.overall(effect)))
            else:
                p = math.exp(-sequential.peak(pairs - metric.harm_margin, harm))
                low, high = sequential.confidence_sequence(pairs, GUARD_ALPHA)
                bound = float(high[-1] if harm > 0 else -low[-1]) if len(pairs) else math.inf
            if not np.isfinite(pairs).any():
                bound = math.inf
            if metric.kind == "count":
                # Of events that were not seen, there may be three more (at 95 %).
                slots = (np.isfinite(values) & (self.assigned == 1)).sum()
                bound = max(bound, 3 / slots if slots else math.inf)
            rows.append((metric, values, effect, bound, p))
        found = []
        for (metric, values, effect, bound, _), raw, p in zip(
                rows, self.data.guards, estimate.holm([row[-1] for row in rows])):
            why = self._doubt(metric, raw, values)
            if not bound < abs(metric.harm_margin):
                why = why or (f"{metric.in_words(metric.harm * bound)} cannot be excluded, "
                              f"accepted is {metric.in_words(metric.harm_margin)}")
            state = "failed" if p <= limit else "open" if why else "passed"
            found.append(Guard(metric, effect, metric.harm * bound, p, state,
                               why if state == "open" else ""))
        return found

    def _doubt(self, metric: Metric, raw: Array, values: Array) -> str:
        """Why a guard cannot pass, whatever its effect."""
        on, total = self._losses(np.isfinite(values))
        if on and stats.binom.sf(on - 1, total, self.share) <= DOUBT_P:
            return f"{on} of {total} missing values are those of arm b"
        if metric.kind == "ratio" and np.isfinite(values).any() and never_changes(values):
            return f"it never changes: look at the query {metric.query}"
        zeros = int((raw[self.here] <= 0).sum())
        if metric.kind == "ratio" and zeros > MAX_WRONG_ARM * self.here.sum():
            return f"it is 0 in {zeros} slots, and 0 has no ratio: write kind = \"count\""
        return ""

    def result(self) -> Result:
        """The verdict."""
        exp = self.exp
        pairs, _ = estimate.pair_effects(self.panel)
        if not self.pairs_done or not np.isfinite(pairs).any():
            verdict, reasons = self._without_effect()
            return Result(verdict, reasons, self.final, self.pairs_done, self.pairs, None, None,
                          [], {}, self.events, self.vetoes(), math.nan, math.nan, None, [], [])
        redraws: Redraws | None = None
        tost: Estimate | None = None
        if self.final:
            redraws = estimate.redraw(self.panel, self._draws, self.plan.seed)
            looks = LOOKS if exp.design == "switchback" else 0.0
            found = estimate.randomisation(self.panel, ALPHA, looks, redraws=redraws)
            tost = estimate.randomisation(self.panel, 2 * EQUIVALENT_ALPHA, redraws=redraws)
        else:
            found = estimate.while_running(self.panel, LOOKS)
            tost = found
        low, high = math.log1p(-exp.primary.margin), math.log1p(exp.primary.margin)
        guards, mechanism, vetoes = self.guards(), self.mechanism(), self.vetoes()
        detectable = (stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(POWER)) * found.error
        verdict, reasons = self._decide(mechanism, guards, found, tost.within(low, high),
                                        detectable)
        if vetoes and verdict != WORSE:
            if EXIT[verdict] == 0:
                reasons.insert(0, f"without the events in arm b it would be {verdict}")
                verdict = INCONCLUSIVE
            reasons = vetoes + reasons
        lows, highs = sequential.confidence_sequence(pairs, LOOKS)
        means = [float(estimate.mean_of_known(pairs[:count + 1], 0))
                 for count in range(len(pairs))]
        return Result(verdict, reasons, self.final, self.pairs_done, self.pairs, found, tost,
                      guards, mechanism, self.events, vetoes, detectable,
                      self._hours(detectable),
                      estimate.clustered(self.panel) if self.pairs_done > 1 or self.final
                      else None, [float(value) for value in pairs],
                      list(zip(means, map(float, lows), map(float, highs))))

    def _without_effect(self) -> tuple[str, list[str]]:
        """Verdict and reasons without a pair that has values of both arms."""
        if self.data.slots and (harm := self.event_harm()):
            return WORSE, harm
        vetoes = self.vetoes()
        problems = self._enough() if self.data.slots >= 2 else []
        if self.pairs_done and not problems:
            problems = ["no pair of slots has values of both arms: look at the hosts"]
        if problems:
            return INVALID, vetoes + problems
        return INCONCLUSIVE, [*vetoes, "no pair of slots is complete yet"
                              if self.exp.design == "switchback"
                              else "a parallel experiment is judged at its end"]

    def _hours(self, detectable: float) -> float:
        """Hours after now until an effect as large as the margin can be detected."""
        if self.exp.design == "parallel":
            return math.nan
        done = self.data.slots * self.exp.slot
        return max(0.0, done * ((detectable / self.exp.primary.margin) ** 2 - 1)) / 3600

    def _decide(self, mechanism: dict[str, float], guards: list[Guard], found: Estimate,
                equivalent: bool, detectable: float) -> tuple[str, list[str]]:
        exp = self.exp
        if problems := self.problems():
            return INVALID, problems
        harm = self.event_harm() + [
            f"guard failed: {guard.name}: {guard.metric.in_words(guard.effect)}, accepted is "
            f"{guard.metric.in_words(guard.metric.harm_margin)} (p = {guard.p:.2g})"
            for guard in guards if guard.state == "failed"]
        if harm:
            return WORSE, harm
        pairs, _ = estimate.pair_effects(self.panel)
        if 2 * (left := int(np.isfinite(pairs).sum())) < self.pairs_done:
            return INVALID, [f"{left} of {self.pairs_done} pairs have values of both arms: too "
                             "many hosts crashed"]
        missing = 1 - np.isfinite(self.data.mechanism)[self.here].mean()
        if missing > MAX_LOST:
            return INVALID, [f"{missing:.0%} of the values of the mechanism are missing, of which "
                             f"{MAX_LOST:.0%} may be: {exp.mechanism.query}"]
        notes = [f"guard open: {guard.name}: {guard.why}"
                 for guard in guards if guard.state == "open"]
        acting = exp.mechanism.arm
        harmed = found.sign == exp.primary.harm and not equivalent
        if not mechanism[acting] >= exp.mechanism.min and not harmed:
            return NOT_EXERCISED, [
                f"the mechanism counter was at {mechanism[acting]:.3g} in arm {acting}, and "
                f"should reach {exp.mechanism.min:g}: the switch had nothing to do"]
        if not harmed and not self._mechanism_differs():
            told = (f"the mechanism counter is not higher in arm {acting}: "
                    f"{mechanism['a']:.3g} in arm a, {mechanism['b']:.3g} in arm b")
            if self.final:
                return NOT_EXERCISED, [f"{told}: it shows no difference that the switch makes; "
                                       "count what only this value does"]
            notes.append(told)
        if harmed:
            return WORSE, [f"the interval at {found.level:.0%} excludes no effect"] + notes
        good = ""
        if equivalent:
            good, reason = EQUIVALENT, f"the effect is within {exp.primary.margin:.1%}"
        elif found.sign:
            good, reason = BETTER, f"the interval at {found.level:.0%} excludes no effect"
        if good and notes:
            return INCONCLUSIVE, [f"it would be {good}, but:", *notes]
        if good:
            return good, [reason] + [
                f"it saw {in_words(self.plan.seconds)} of load: other hours of the day may differ"
            ] * (self.plan.seconds < DAY)
        if not self.final:
            return INCONCLUSIVE, [f"pair {self.pairs_done} of {self.pairs}"] + notes
        # In a parallel experiment, the noise between hosts does not shrink with time.
        needed = f"{self._hours(detectable):.1f} more hours" if exp.design == "switchback" \
            else f"{(detectable / exp.primary.margin) ** 2:.1f} times as many hosts"
        return INCONCLUSIVE, [
            f"an effect of {relative(detectable):.2%} would have been found with a probability "
            f"of {POWER:.0%}; for {exp.primary.margin:.1%}, {needed} are needed"] + notes


def judge(plan: Plan, data: Data, draws: int = estimate.DRAWS) -> Result:
    """Judge the values of an experiment."""
    return Judge(plan, data, draws).result()
