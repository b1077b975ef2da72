# SPDX-License-Identifier: GPL-2.0-only
"""From the values of an experiment to a verdict."""
from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
from scipy import stats

from . import estimate, sequential
from .design import Plan
from .estimate import Estimate, Panel, Redraws
from .experiment import Metric
from .prometheus import Prometheus, with_slot
from .switches import metric_of
from .types import Array, Flags

# Of all A/A experiments, at most this share ends with BETTER or WORSE because of the
# primary metric, of which the looks while it runs may use LOOKS.
# 4 %, so that 300 of them keep below 5 % together with their chance variation.
ALPHA = 0.04
LOOKS = 0.01
# Of EQUIVALENT, for each side, and of all guards together.
EQUIVALENT_ALPHA = 0.05
GUARD_ALPHA = 0.05
# Of GUARD_ALPHA, for the looks while it runs.
GUARD_LOOKS = 0.025
# The power of the detectable effect.
POWER = 0.9
# Checks of the data: p-values so small that a sound experiment is seldom refused.
RATIO_P = 0.001
LOST_P = 0.005
CARRY_P = 0.002
MAX_WRONG_ARM = 0.01
MAX_LOST = 0.2
MIN_LOST_DIFFERENCE = 0.01
CLOCK_SECONDS = 5.0
# A host has vanished if it is silent until now, in this many slots in which others
# were not.  That counts as a crash: Prometheus cannot tell a host that has hung from
# one whose node_exporter was stopped, and arms do not differ in the latter.
GONE_SLOTS = 2
# A time of boot that moves by more is another boot; a clock that is set right moves it
# by less.
BOOT_SECONDS = 30
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
    return Data(
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


def crashed_in_b(plan: Plan, start: float, now: float) -> list[str]:
    """Hosts that crashed in arm b and came back, both in the last time of a slot.

    A verdict counts crashes when their slot is over; this is for those who cannot wait.
    """
    exp = plan.experiment
    first = max(start, now - exp.slot)
    step = max(1, exp.slot // RECENT_POINTS)
    boots = Prometheus(exp.prometheus, exp.host_label).table(
        f"node_boot_time_seconds{{{exp.selector}}}", plan.hosts, first,
        max(0, 1 + int((now - first) // step)), step)
    found = []
    for number, host in enumerate(plan.hosts):
        row: Array = boots[number]
        known = np.flatnonzero(np.isfinite(row))
        for place in np.flatnonzero(np.diff(row[known]) > BOOT_SECONDS):
            # The first scrape that is missing, or the boot: an old value can be given for a
            # while after the last scrape.
            crash = min(first + float(known[place] + 1) * step, float(row[known[place + 1]]))
            slot = int((crash - start) // exp.slot)
            if 0 <= slot < plan.slots and plan.arms[host.name][slot] == "b":
                found.append(host.name)
                break
    return found


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
    """The result of a guard."""

    name: str
    effect: float
    # The sign of harmful effects.
    sign: int
    # The largest harm that is compatible with the values.
    harm: float
    p: float
    margin: float
    # failed, passed or open.
    state: str


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
    events: dict[str, dict[str, int]]
    detectable: float
    hours_needed: float
    clustered: tuple[float, float] | None
    effects: list[float]
    path: list[tuple[float, float, float]]

    @property
    def exit_status(self) -> int:
        """The exit status of `faultline-rollout verdict`."""
        return EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Values for json.dumps, effects as fractions."""
        def number(value: float, relative: bool = False) -> float | None:
            if not math.isfinite(value):
                return None
            return round(math.expm1(value) if relative else value, 6)

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
            "guards": [{"name": guard.name, "effect": number(guard.effect, True),
                        "largest_harm": number(guard.harm), "p": number(guard.p),
                        "margin": guard.margin, "state": guard.state} for guard in self.guards],
            "mechanism": {arm: number(value) for arm, value in self.mechanism.items()},
            "events": self.events,
            "clustered_t": None if self.clustered is None else {
                "effect": number(self.clustered[0], True), "error": number(self.clustered[1])},
        }


class Judge:
    """Judges the values of one experiment."""

    def __init__(self, plan: Plan, data: Data, draws: int = estimate.DRAWS) -> None:
        self.plan = plan
        self.exp = plan.experiment
        self.data = data
        self._draws = draws
        self.assigned = plan.assigned[:, :data.slots]
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
        self.here: Flags = np.ones((hosts, slots), dtype=bool)
        self.crashed: Flags = np.zeros((hosts, slots), dtype=bool)
        heard: Flags = np.logical_or.reduce(np.isfinite(self.data.seen[:, 1:]), axis=0)
        for host in range(hosts):
            out = self._rebooted(host)
            known = np.flatnonzero(np.isfinite(self.data.seen[host]))
            # Slots in which Prometheus ran.
            if len(known) and heard[known[-1]:].sum() >= GONE_SLOTS:
                out = min(out, self._silent_from(host, int(known[-1])))
            if out < slots:
                self.crashed[host, out] = True
                self.here[host, out:] = False

    def _rebooted(self, host: int) -> int:
        """The slot in which a host crashed and came back; the number of slots if it did not."""
        data = self.data
        last, before = math.nan, 0
        for place in np.flatnonzero(np.isfinite(data.last_boot[host])):
            if place and data.last_boot[host, place] - data.first_boot[host, place] > BOOT_SECONDS:
                return int(place) - 1
            if data.last_boot[host, place] - last > BOOT_SECONDS:
                return self._silent_from(host, before)
            last, before = float(data.last_boot[host, place]), int(place)
        return data.slots

    def _silent_from(self, host: int, place: int) -> int:
        """The slot of the first scrape that is missing after a place in seen.

        A crash at a change of the switch thus counts for the new arm.
        """
        counts = self.data.scrapes[np.isfinite(self.data.scrapes)]
        pause = self.exp.window / max(1.0, float(np.median(counts)) if len(counts) else 1.0)
        missing = float(self.data.seen[host, place]) + pause - self.data.start
        return min(place, max(place - 1, 0, int(missing // self.exp.slot)))

    # --- Checks of the data

    def problems(self) -> list[str]:
        """Why the experiment is invalid; empty if it is not."""
        found: list[str] = []
        for check in (self._enough, self._kernels, self._clocks, self._arms, self._ratio,
                      self._lost, self._carry_over, self._guards_there):
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
        unknown = [host.name for host, seen in zip(self.plan.hosts, self.data.kernels) if not seen]
        if len(unknown) > MAX_LOST * len(self.plan.hosts):
            return [f"the kernels of {len(unknown)} of {len(self.plan.hosts)} hosts cannot be "
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

    def _ratio(self) -> list[str]:
        """Whether values are missing in one arm more than in the other."""
        values = np.isfinite(self.logs)
        if self.exp.design == "parallel":
            # A host that is silent is one loss, however many slots it misses.
            lost = (values.mean(axis=1) < 0.5) & self.here.all(axis=1)
            on, share = int((lost & (self.assigned[:, 0] == 1)).sum()), self.assigned[:, 0].mean()
        else:
            lost = ~values & self.here
            on, share = int((lost & (self.assigned == 1)).sum()), self.assigned[self.here].mean()
        total = int(lost.sum())
        if not total or not 0 < share < 1:
            return []
        p = stats.binomtest(on, total, share).pvalue
        if p >= RATIO_P:
            return []
        return [f"sample ratio: {on} of {total} missing values are those of arm b, which has "
                f"{share:.0%} of the slots (p = {p:.2g}): values get lost in one arm"]

    def _lost(self) -> list[str]:
        counts = np.where(self.here, np.nan_to_num(self.data.scrapes), np.nan)
        counts = counts / max(1.0, float(np.nanmax(counts)))
        if self.exp.design == "parallel":
            means = estimate.mean_of_known(counts, 1)
            panel = dataclasses.replace(self.panel, changes=means[:, None], before=None)
        else:
            panel = self.plan.panel(counts)
        found, p = self._test(panel)
        if p < LOST_P and abs(found) > MIN_LOST_DIFFERENCE:
            return [f"lost scrapes differ by arm: {abs(found):.1%} more in arm "
                    f"{'b' if found < 0 else 'a'} (p = {p:.2g})"]
        return []

    def _test(self, panel: Panel) -> tuple[float, float]:
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
        panel = Panel(rest[:, 2:2 * pairs:2], self.panel.signs[:, :pairs - 1],
                      self.plan.stratum_numbers, contrast=1.0)
        found, p = self._test(panel)
        if p <= CARRY_P:
            return [f"carry-over: the slot after one in arm b differs by {found:+.2%} "
                    f"(p = {p:.2g}): use a longer washout"]
        return []

    def _guards_there(self) -> list[str]:
        return [f"guard '{metric.name}' has no values: {metric.query}"
                for metric, values in zip(self.exp.guards, self.data.guards)
                if np.isfinite(logarithms(values))[self.here].mean() < 1 - MAX_LOST]

    # --- Outcomes

    def mechanism(self) -> dict[str, float]:
        """The mean of the mechanism counter in each arm."""
        means = {}
        for arm, number in (("a", 0), ("b", 1)):
            values = self.data.mechanism[(self.assigned == number) & self.here]
            values = values[np.isfinite(values)]
            means[arm] = float(values.mean()) if len(values) else math.nan
        return means

    def events(self) -> dict[str, dict[str, int]]:
        """Crashes and OOM kills in each arm: hosts and slots in which there were any."""
        killed = (np.nan_to_num(self.data.ooms) > 0.5) & self.here
        return {name: {arm: int((what & (self.assigned == number)).sum())
                       for arm, number in (("a", 0), ("b", 1))}
                for name, what in (("crashes", self.crashed), ("oom_kills", killed))}

    def guards(self, events_only: bool = False) -> list[Guard]:
        """Judge guards and events as one family."""
        rows: list[tuple[Metric, Panel, float]] = []
        bounds = []
        limit = GUARD_ALPHA - GUARD_LOOKS if self.final else GUARD_LOOKS
        for metric, values in zip(self.exp.guards, () if events_only else self.data.guards):
            panel = self._guard_panel(values)
            effect, harm = estimate.effect_of(panel), metric.harm
            if self.final:
                redraws = estimate.redraw(panel, self._draws, self.plan.seed)
                p = estimate.one_sided(panel, metric.harm_margin, harm, redraws)
                bound = harm * effect + 1.645 * float(np.std(redraws.overall(effect)))
            else:
                pairs, _ = estimate.pair_effects(panel)
                p = math.exp(-sequential.peak(pairs - metric.harm_margin, harm))
                low, high = sequential.confidence_sequence(pairs, GUARD_ALPHA)
                bound = float(high[-1] if harm > 0 else -low[-1]) if len(pairs) else math.inf
            rows.append((metric, panel, p))
            bounds.append(bound)
        counts = self.events()
        chances = [p for _, _, p in rows]
        for arms in counts.values():
            total = arms["a"] + arms["b"]
            share = float(self.assigned[self.here | self.crashed].mean())
            if not total:
                chances.append(1.0)
            elif self.final:
                chances.append(float(stats.binom.sf(arms["b"] - 1, total, share)))
            else:
                chances.append(math.exp(-max(0.0, sequential.log_e_share(
                    arms["b"], total, share))))
        corrected = estimate.holm(chances)
        found = []
        for (metric, panel, _), bound, p in zip(rows, bounds, corrected):
            accepted = abs(metric.harm_margin)
            state = "failed" if p <= limit else "passed" if bound < accepted else "open"
            found.append(Guard(metric.name, estimate.effect_of(panel), metric.harm, bound, p,
                               metric.margin, state))
        for (name, arms), p in zip(counts.items(), corrected[len(rows):]):
            if p <= limit:
                found.append(Guard(f"{name.replace('_', ' ')}: {arms['b']} in arm b, "
                                   f"{arms['a']} in arm a", math.nan, 1, math.nan, p, 0.0,
                                   "failed"))
        return found

    def _guard_panel(self, values: Array) -> Panel:
        return self.plan.panel(np.where(self.here, logarithms(values), np.nan))

    def result(self) -> Result:
        """The verdict."""
        exp = self.exp
        pairs, _ = estimate.pair_effects(self.panel)
        if not self.pairs_done or not np.isfinite(pairs).any():
            verdict, reasons, guards = self._without_effect()
            return Result(verdict, reasons, self.final, self.pairs_done, self.pairs, None, None,
                          guards, {}, self.events(), math.nan, math.nan, None, [], [])
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
        guards, mechanism = self.guards(), self.mechanism()
        problems = self.problems()
        detectable = (stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(POWER)) * found.error
        verdict, reasons = self._decide(problems, mechanism, guards, found,
                                        tost.within(low, high), detectable)
        lows, highs = sequential.confidence_sequence(pairs, LOOKS)
        means = [float(estimate.mean_of_known(pairs[:count + 1], 0))
                 for count in range(len(pairs))]
        return Result(verdict, reasons, self.final, self.pairs_done, self.pairs, found, tost,
                      guards, mechanism, self.events(), detectable, self._hours(detectable),
                      estimate.clustered(self.panel) if self.pairs_done > 1 or self.final
                      else None, [float(value) for value in pairs],
                      list(zip(means, map(float, lows), map(float, highs))))

    def _without_effect(self) -> tuple[str, list[str], list[Guard]]:
        """Verdict, reasons and guards without a pair that has values of both arms."""
        guards = self.guards(events_only=True) if self.data.slots else []
        if guards:
            return WORSE, self._harm(guards), guards
        problems = self._enough() if self.data.slots >= 2 else []
        if self.pairs_done and not problems:
            problems = ["no pair of slots has values of both arms: look at the hosts"]
        if problems:
            return INVALID, problems, []
        return INCONCLUSIVE, ["no pair of slots is complete yet" if self.exp.design == "switchback"
                              else "a parallel experiment is judged at its end"], []

    @staticmethod
    def _harm(failed: list[Guard]) -> list[str]:
        return [f"guard failed: {guard.name}" + (
            f": {math.expm1(guard.effect):+.2%}, accepted is {guard.margin:.2%} of harm"
            if math.isfinite(guard.effect) else "") + f" (p = {guard.p:.2g})"
            for guard in failed]

    def _hours(self, detectable: float) -> float:
        """Hours after now until an effect as large as the margin can be detected."""
        if self.exp.design == "parallel":
            return math.nan
        done = self.data.slots * self.exp.slot
        return max(0.0, done * ((detectable / self.exp.primary.margin) ** 2 - 1)) / 3600

    def _decide(self, problems: list[str], mechanism: dict[str, float], guards: list[Guard],
                found: Estimate, equivalent: bool, detectable: float) -> tuple[str, list[str]]:
        exp = self.exp
        if problems:
            return INVALID, problems
        failed = [guard for guard in guards if guard.state == "failed"]
        if failed:
            return WORSE, self._harm(failed)
        pairs, _ = estimate.pair_effects(self.panel)
        if 2 * (left := int(np.isfinite(pairs).sum())) < self.pairs_done:
            return INVALID, [f"{left} of {self.pairs_done} pairs have values of both arms: too "
                             "many hosts crashed"]
        known = [value for value in mechanism.values() if math.isfinite(value)]
        if not known:
            return INVALID, [f"the mechanism has no values: {exp.mechanism.query}"]
        if max(known) < exp.mechanism.min:
            return NOT_EXERCISED, [
                f"the mechanism counter was at {max(known):.3g}, and should reach "
                f"{exp.mechanism.min:g}: the switch had nothing to do"]
        notes = [f"guard open: {guard.name}: harm of {math.expm1(guard.harm):.2%} cannot be "
                 f"excluded, accepted is {guard.margin:.2%}"
                 for guard in guards if guard.state == "open"]
        if equivalent:
            return EQUIVALENT, [f"the effect is within {exp.primary.margin:.1%}"] + notes
        if found.sign:
            harm = found.sign == exp.primary.harm
            return (WORSE if harm else BETTER), [
                f"the interval at {found.level:.0%} excludes no effect"] + notes
        if not self.final:
            return INCONCLUSIVE, [f"pair {self.pairs_done} of {self.pairs}"] + notes
        # In a parallel experiment, the noise between hosts does not shrink with time.
        needed = f"{self._hours(detectable):.1f} more hours" if exp.design == "switchback" \
            else f"{(detectable / exp.primary.margin) ** 2:.1f} times as many hosts"
        return INCONCLUSIVE, [
            f"an effect of {math.expm1(detectable):.2%} would have been found with a probability "
            f"of {POWER:.0%}; for {exp.primary.margin:.1%}, {needed} are needed"] + notes


def judge(plan: Plan, data: Data, draws: int = estimate.DRAWS) -> Result:
    """Judge the values of an experiment."""
    return Judge(plan, data, draws).result()
