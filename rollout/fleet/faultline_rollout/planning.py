# SPDX-License-Identifier: GPL-2.0-only
"""Make a plan: replay the design on the history of the fleet, where nothing was switched."""
from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from . import Error, estimate
from .design import (MIN_PAIRS, Plan, by_stratum, means_of_strata, parallel_panel,
                     schedule)
from .estimate import Panel
from .experiment import Experiment, in_words
from .hosts import Host
from .prometheus import Prometheus, with_slot
from .switches import metric_of
from .types import Array, Ints
from .checks import MAX_LOST
from .measured import SETTLE, collect, logarithms, never_changes
from .verdict import ALPHA, LOOKS, POWER

REPLAYS = 200
# Standard errors between 0 and an effect that is found with probability POWER.
DETECTABLE = float(stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(POWER))
PAIRS = (4, 6, 8, 12, 16, 24, 32, 48, 72, 96, 144, 288, 576, 1152)
# How many times the experiment has to fit into the history.
MIN_FITS = 4
# Hosts of a large fleet whose false verdicts are counted, in each replay.
SAMPLE = 64
# The time over which all queries are tried, and the share of hosts that have values.
REHEARSAL = 3600
ENOUGH = 0.8


@dataclasses.dataclass(frozen=True)
class Noise:
    """The result of replays of an experiment without an effect."""

    slots: int
    # Standard deviation of the effect.
    floor: float
    false_rate: float = math.nan

    @property
    def detectable(self) -> float:
        """The effect that is found with probability POWER."""
        return math.expm1(DETECTABLE * self.floor)


def history(exp: Experiment, hosts: Sequence[Host], seconds: int, end: float) -> Array:
    """Logarithms of the primary metric in the slots before end: hosts x slots."""
    server = Prometheus(exp.prometheus, exp.host_label)
    count = seconds // exp.slot
    if not count:
        raise Error(f"--history {in_words(seconds)} is shorter than a slot: give a longer time")
    query = with_slot(exp.primary.query, exp.window)
    values = server.table(query, hosts, end - (count - 1) * exp.slot, count, exp.slot)
    if not np.isfinite(values).any():
        series = server.series(query, end - 3600, end, 3600) or \
            server.series(query, end - seconds, end, max(1, seconds // 100))
        if not series:
            raise Error(f"the primary query gives no values in the last {in_words(seconds)}: "
                        f"{query}: try it in Prometheus")
        number_of = server.host_of(hosts)
        if any(number_of(row["metric"]) is not None for row in series):
            raise Error("the primary query gives values, but all are NaN or infinite, as those of "
                        f"a histogram without traffic: {query}: use another metric, or hosts with "
                        "traffic")
        labels = {key: series[0]["metric"][key] for key in sorted(series[0]["metric"])}
        raise Error("the primary query gives values, but for no host of the inventory: the "
                    f"first series has {labels}: set host_label to the label that names the "
                    "host, and instance=... in the inventory to its values")
    logs = logarithms(values)
    if not np.isfinite(logs).any():
        raise Error("the primary query gives no values above 0, and the effect is a ratio: "
                    f"{query}: use a metric such as a latency or a throughput, and make this one "
                    "a guard")
    # A new Prometheus has no older values.
    first = int(np.flatnonzero(np.isfinite(logs).any(axis=0))[0])
    logs = logs[:, first:]
    missing = [host.name for host, row in zip(hosts, logs)
               if np.isfinite(row).mean() < 1 - MAX_LOST]
    if missing:
        some = ", ".join(missing[:5]) + (" and others" if len(missing) > 5 else "")
        raise Error(f"the primary query has too few values above 0 for {some}, in the last "
                    f"{in_words(logs.shape[1] * exp.slot)}: leave these hosts out of the "
                    "inventory, or use a metric that is never 0")
    if never_changes(logs):
        raise Error(f"the primary metric never changes on any host: look at the query {query}")
    return logs


@dataclasses.dataclass(frozen=True)
class Rehearsal(Prometheus):
    """Notes for each query on which share of the hosts it has values."""

    shares: dict[str, float] = dataclasses.field(default_factory=dict)

    def table(self, query: str, hosts: Sequence[Host], first: float, count: int,
              step: int) -> Array:
        """The values."""
        values = super().table(query, hosts, first, count, step)
        self.shares[query] = float(np.isfinite(values).any(axis=1).mean())
        return values

    def texts(self, query: str, hosts: Sequence[Host], label: str, first: float,
              last: float, step: int) -> list[dict[str, float]]:
        """The labels."""
        found = super().texts(query, hosts, label, first, last, step)
        self.shares[query] = sum(map(bool, found)) / len(hosts)
        return found


def rehearse(exp: Experiment, source: Mapping[str, Any], hosts: Sequence[Host],
             end: float) -> None:
    """Ask everything that a verdict will ask, over the last hour, before a host is touched."""
    slots = max(1, REHEARSAL // exp.slot)
    draft = Plan(exp, source, "", tuple(hosts), {host.name: "all" for host in hosts},
                 {host.name: "a" * slots for host in hosts}, {})
    server = Rehearsal(exp.prometheus, exp.host_label)
    names = _queries(exp)
    try:
        collect(draft, end - SETTLE - slots * exp.slot, end, server)
    except Error as err:
        name = next((name for part, name in names.items() if part in str(err)), "a query")
        raise Error(f"no verdict could be given, as {name} fails: {err}") from None
    missing = [f"{next((name for part, name in names.items() if part in query), 'a query')} has "
               f"values for {share:.0%} of the hosts, of which {ENOUGH:.0%} must have them: {query}"
               for query, share in server.shares.items() if share < ENOUGH]
    if missing:
        raise Error(f"the verdict would be INVALID: in the last {in_words(slots * exp.slot)} "
                    + "\n  and ".join(missing) + ": try it in Prometheus, and see node_exporter "
                    "in faultline-experiment(5)")


def _queries(exp: Experiment) -> dict[str, str]:
    """The name of each query, by a part of it."""
    guards = {with_slot(guard.query, exp.window): f"guard '{guard.name}'" for guard in exp.guards}
    return {
        with_slot(exp.primary.query, exp.window): "the primary metric", **guards,
        with_slot(exp.mechanism.query, exp.window): "the mechanism",
        metric_of(exp.switch): "the value of the switch (observed arm)",
        "node_vmstat_oom_kill": "the number of OOM kills",
        "node_boot_time_seconds": "the time of boot", "node_uname_info": "the kernel's release",
        "node_time_seconds": "the clock and the scrapes"}


class Replay:
    """Replays a design on a history."""

    def __init__(self, exp: Experiment, logs: Array, strata: Ints, seed: int) -> None:
        self._exp = exp
        self._logs = logs
        self._strata = strata
        self._random = np.random.default_rng(seed)

    def fits(self, slots: int) -> bool:
        """Whether the history is long enough for an experiment."""
        need = slots * (2 if self._exp.design == "parallel" else 1)
        return need * MIN_FITS <= self._logs.shape[1]

    def panel(self, slots: int) -> Panel:
        """An experiment at a random time, with random arms."""
        hosts = len(self._strata)
        parallel = self._exp.design == "parallel"
        length = slots * (2 if parallel else 1)
        begin = int(self._random.integers(0, self._logs.shape[1] - length + 1))
        part = self._logs[:, begin:begin + length]
        columns = 1 if parallel else slots // 2
        signs = np.empty((hosts, columns))
        for stratum in np.unique(self._strata):
            rows = self._strata == stratum
            signs[rows] = estimate.draw_signs(int(rows.sum()), columns, self._random).T
        if parallel:
            before = estimate.mean_of_known(part[:, :slots], 1)
            return parallel_panel(part[:, slots:], before, (signs[:, 0] > 0).astype(np.int64),
                                  self._strata)
        return Panel(part[:, 1::2] - part[:, 0::2], signs, self._strata)

    def _sample(self) -> Replay:
        """At most SAMPLE hosts: the test is as exact with a part of a fleet."""
        rows: list[int] = []
        for stratum in self._random.permutation(np.unique(self._strata)):
            there = self._random.permutation(np.flatnonzero(self._strata == stratum))
            rows += there[:SAMPLE - len(rows)].tolist()
        rows.sort()
        return Replay(self._exp, self._logs[rows], self._strata[rows],
                      int(self._random.integers(2 ** 63)))

    def floor(self, slots: int) -> Noise:
        """The noise floor of an experiment."""
        effects = [estimate.effect_of(self.panel(slots)) for _ in range(REPLAYS)]
        return Noise(slots, float(np.std(effects)))

    def false_rate(self, slots: int, tell: Callable[[int], None]) -> float:
        """The share of replays in which something is found."""
        found = 0
        part = self if len(self._strata) <= SAMPLE else self._sample()
        looks = 0.0 if self._exp.design == "parallel" else LOOKS
        for replay in range(REPLAYS):
            panel = part.panel(slots)
            drawn = estimate.redraw(panel, 199, str(replay))
            found += estimate.chance(panel, drawn, 0.0, looks) <= ALPHA
            tell(replay + 1)
        return found / REPLAYS


def make(exp: Experiment, source: Mapping[str, Any], hosts: Sequence[Host], *,
         seconds: int, end: float | None = None, seed: str = "",
         tell: Callable[[int], None] = lambda done: None) -> tuple[Plan, list[Noise]]:
    """Make a plan; also returns the noise for each length that was tried."""
    strata = by_stratum(hosts, exp.strata, exp.unit)
    of_host = {name: stratum for stratum, names in strata.items() for name in names}
    number_of = {stratum: number for number, stratum in enumerate(sorted(strata))}
    numbers = np.array([number_of[of_host[host.name]] for host in hosts])
    if exp.design == "parallel":
        ways = math.prod(math.comb(size, size // 2) * (1 + size % 2) for size in (
            map(len, strata.values()) if exp.unit == "host" else [len(strata)]))
        # The smallest p-value is that of a division and its opposite.
        if ways < 2 / ALPHA:
            raise Error(f"strata: these hosts can be divided into two arms in {ways} ways, and a "
                        f"verdict takes {2 / ALPHA:.0f}: use 8 hosts in a stratum, or more strata")
    moment = time.time() if end is None else end
    logs = history(exp, hosts, seconds, moment)
    past = logs
    if exp.unit == "stratum":
        past, numbers = means_of_strata(logs, numbers), np.zeros(len(strata), dtype=np.int64)
    seed = seed or secrets.token_hex(16)
    replay = Replay(exp, past, numbers, int(seed.encode().hex(), 16) % 2 ** 63)
    lengths = [exp.duration // exp.slot] if exp.duration else \
        sorted(slots for slots in {2 * pairs for pairs in (
            *PAIRS, math.ceil(exp.min_duration / 2 / exp.slot))}
            if exp.min_duration <= slots * exp.slot <= exp.expires)
    if not lengths:
        raise Error(f"expires: an experiment lasts {in_words(exp.min_duration)} or longer, and "
                    "expires before that: set a later time, or duration or min_duration")
    lengths = [slots for slots in lengths if slots >= 2 * MIN_PAIRS]
    if not lengths:
        raise Error(f"duration: an experiment has at least {MIN_PAIRS} pairs of slots, "
                    f"{in_words(2 * MIN_PAIRS * exp.slot)}")
    tried: list[Noise] = []
    for slots in lengths:
        if not replay.fits(slots):
            break
        tried.append(replay.floor(slots))
        if tried[-1].detectable <= exp.primary.margin:
            break
    if not tried:
        raise Error(f"the history has {in_words(logs.shape[1] * exp.slot)} of values, too little "
                    f"for an experiment of {in_words(lengths[0] * exp.slot)}: wait, give "
                    "--history a longer time, or set duration or min_duration")
    rehearse(exp, source, hosts, moment)
    chosen = dataclasses.replace(tried[-1], false_rate=replay.false_rate(tried[-1].slots, tell))
    tried[-1] = chosen
    if chosen.false_rate > 2 * ALPHA:
        raise Error(f"in {chosen.false_rate:.0%} of {REPLAYS} replays without any change there is "
                    f"a verdict, and {2 * ALPHA:.0%} may have one: this metric does not suit the "
                    "design; try longer slots, other strata, or a steadier metric")
    notes = {"noise_floor": round(chosen.floor, 8), "detectable": round(chosen.detectable, 6),
             "false_rate": chosen.false_rate, "replays": REPLAYS,
             "history_seconds": logs.shape[1] * exp.slot}
    arms = schedule(seed, strata, chosen.slots, exp.design, exp.unit)
    return Plan(exp, source, seed, tuple(hosts), of_host, arms, notes), tried


def flips(arms: str) -> int:
    """How often the switch changes on a host, with the way there and back."""
    return 1 + sum(first != second for first, second in zip(arms, arms[1:])) + 1
