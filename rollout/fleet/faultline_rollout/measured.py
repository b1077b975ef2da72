# SPDX-License-Identifier: GPL-2.0-only
"""The values that Prometheus has of an experiment, and its crashes and OOM kills."""
from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
from scipy import stats

from . import Error, estimate
from .design import Plan
from .prometheus import Prometheus, with_slot
from .switches import metric_of
from .types import Array, Flags

# A number of events in arm b that the days before make at least this probable, in all of
# the experiment, is normal.  So at any number of looks, no more than this share of fleets
# has a veto because of reboots that it always has.
USUAL_P = 0.1
DAY = 86400
HISTORY = 7 * DAY
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
