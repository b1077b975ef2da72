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
# A host without values in this many last slots has vanished.
GONE_SLOTS = 2
# Scrapes arrive late.
SETTLE = 30

BETTER, WORSE, EQUIVALENT = "BETTER", "WORSE", "EQUIVALENT"
INCONCLUSIVE, NOT_EXERCISED, INVALID = "INCONCLUSIVE", "NOT EXERCISED", "INVALID"
EXIT = {BETTER: 0, EQUIVALENT: 0, WORSE: 10, INCONCLUSIVE: 20, NOT_EXERCISED: 20, INVALID: 30}


@dataclasses.dataclass
class Data:
    """What was measured: hosts x complete slots, NaN where there is nothing."""

    start: float
    primary: Array
    guards: list[Array]
    mechanism: Array
    lowest: Array
    highest: Array
    scrapes: Array
    offset: Array
    boots: Array
    ooms: Array
    kernels: list[set[str]]
    before: Array | None = None

    @property
    def slots(self) -> int:
        """The number of complete slots."""
        return self.primary.shape[1]


def collect(plan: Plan, start: float, now: float | None = None) -> Data:
    """Ask Prometheus for the slots that are over."""
    exp = plan.experiment
    server = Prometheus(exp.prometheus, exp.host_label)
    moment = time.time() if now is None else now
    count = max(0, min(plan.slots, int((moment - SETTLE - start) // exp.slot)))
    if not count:
        nothing = np.full((len(plan.hosts), 0), np.nan)
        return Data(start, nothing, [nothing for _ in exp.guards], nothing, nothing, nothing,
                    nothing, nothing, nothing, nothing, [set() for _ in plan.hosts])
    first = start + exp.slot

    def table(query: str, seconds: int = exp.window) -> Array:
        return server.table(with_slot(query, seconds), plan.hosts, first, count, exp.slot)

    def node(metric: str) -> str:
        return f"{metric}{{{exp.selector}}}"

    def spread(metric: str) -> str:
        return (f"max_over_time({node(metric)}[$slot]) - "
                f"min_over_time({node(metric)}[$slot])")

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
        table(spread("node_boot_time_seconds"), exp.slot),
        table(f"increase({node('node_vmstat_oom_kill')}[$slot])", exp.slot),
        server.texts(node("node_uname_info"), plan.hosts, "release", start,
                     start + count * exp.slot, exp.slot), before)


def logarithms(values: Array) -> Array:
    """Logarithms; NaN for what has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(values > 0, np.log(np.where(values > 0, values, 1.0)), np.nan)


@dataclasses.dataclass(frozen=True)
class Guard:
    """What became of a guard."""

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
        data = self.data
        hosts, slots = data.primary.shape
        self.here: Flags = np.ones((hosts, slots), dtype=bool)
        # A clock that is set right moves the time of boot by less.
        rebooted = np.nan_to_num(data.boots) > 30
        self.crashed: Flags = np.zeros((hosts, slots), dtype=bool)
        alive = np.isfinite(data.scrapes)
        # If every host is silent, it is Prometheus that stopped.
        silent = ~alive.any(axis=0)
        for host in range(hosts):
            out = slots
            if rebooted[host].any():
                out = int(np.flatnonzero(rebooted[host])[0])
            known = np.flatnonzero(alive[host])
            gone = int(known[-1]) + 1 if len(known) else slots
            if slots - gone >= GONE_SLOTS and not silent[gone]:
                out = min(out, gone)
            if out < slots:
                self.crashed[host, out] = True
                self.here[host, out:] = False

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
        return []

    def _kernels(self) -> list[str]:
        every = set().union(*self.data.kernels)
        if not every:
            return ["kernels cannot be checked: node_exporter gives no node_uname_info"]
        if len(every) > 1:
            return [f"kernels differ: {', '.join(sorted(every))}"]
        return []

    def _clocks(self) -> list[str]:
        offset = np.where(self.here, self.data.offset, np.nan)
        if not np.isfinite(offset).any():
            return ["clocks cannot be checked: node_exporter gives no node_time_seconds"]
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
            panel = dataclasses.replace(self.panel, changes=means[:, None])
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

    def guards(self) -> list[Guard]:
        """Judge guards and events as one family."""
        rows: list[tuple[Metric, Panel, float]] = []
        bounds = []
        for metric, values in zip(self.exp.guards, self.data.guards):
            panel = self._guard_panel(values)
            effect, harm = estimate.effect_of(panel), metric.harm
            if self.final:
                redraws = estimate.redraw(panel, self._draws, self.plan.seed)
                p = estimate.one_sided(panel, metric.harm_margin, harm, redraws)
                bound = harm * effect + 1.645 * float(np.std(redraws.overall(effect)))
            else:
                pairs, _ = estimate.pair_effects(panel)
                ahead = harm * (effect - metric.harm_margin) > 0
                peak = float(np.max(sequential.log_e(pairs - metric.harm_margin), initial=0.0))
                p = min(1.0, math.exp(-peak)) if ahead else 1.0
                low, high = sequential.confidence_sequence(pairs, GUARD_ALPHA)
                bound = float(high[-1] if harm > 0 else -low[-1]) if len(pairs) else math.inf
            rows.append((metric, panel, p))
            bounds.append(bound)
        counts = self.events()
        chances = [p for _, _, p in rows]
        for arms in counts.values():
            total = arms["a"] + arms["b"]
            share = float(self.assigned[self.here].mean()) if self.here.any() else 0.5
            chances.append(float(stats.binom.sf(arms["b"] - 1, total, share)) if total else 1.0)
        corrected = estimate.holm(chances)
        found = []
        for (metric, panel, _), bound, p in zip(rows, bounds, corrected):
            accepted = abs(metric.harm_margin)
            state = "failed" if p <= GUARD_ALPHA else "passed" if bound < accepted else "open"
            found.append(Guard(metric.name, estimate.effect_of(panel), metric.harm, bound, p,
                               metric.margin, state))
        for (name, arms), p in zip(counts.items(), corrected[len(rows):]):
            if p <= GUARD_ALPHA:
                found.append(Guard(f"{name.replace('_', ' ')}: {arms['b']} in arm b, "
                                   f"{arms['a']} in arm a", math.nan, 1, math.nan, p, 0.0,
                                   "failed"))
        return found

    def _guard_panel(self, values: Array) -> Panel:
        return self.plan.panel(np.where(self.here, logarithms(values), np.nan))

    def result(self) -> Result:
        """The verdict."""
        exp = self.exp
        if not self.pairs_done or not np.isfinite(self.panel.changes).any():
            problems = self._enough() if self.data.slots >= 2 else []
            early = "no pair of slots is complete yet" if exp.design == "switchback" \
                else "a parallel experiment is judged at its end"
            return Result(INVALID if problems else INCONCLUSIVE,
                          problems or [early],
                          self.final, self.pairs_done, self.pairs, None, None, [], {},
                          self.events(), math.nan, math.nan, None, [], [])
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
        pairs, _ = estimate.pair_effects(self.panel)
        lows, highs = sequential.confidence_sequence(pairs, LOOKS)
        means = [float(estimate.mean_of_known(pairs[:count + 1], 0))
                 for count in range(len(pairs))]
        return Result(verdict, reasons, self.final, self.pairs_done, self.pairs, found, tost,
                      guards, mechanism, self.events(), detectable, self._hours(detectable),
                      estimate.clustered(self.panel) if self.pairs_done > 1 or self.final
                      else None, [float(value) for value in pairs],
                      list(zip(means, map(float, lows), map(float, highs))))

    def _hours(self, detectable: float) -> float:
        """Hours after now until an effect as large as the margin can be detected."""
        done = self.data.slots * self.exp.slot
        return max(0.0, done * ((detectable / self.exp.primary.margin) ** 2 - 1)) / 3600

    def _decide(self, problems: list[str], mechanism: dict[str, float], guards: list[Guard],
                found: Estimate, equivalent: bool, detectable: float) -> tuple[str, list[str]]:
        exp = self.exp
        if problems:
            return INVALID, problems
        failed = [guard for guard in guards if guard.state == "failed"]
        if failed:
            return WORSE, [
                f"guard failed: {guard.name}" + (
                    f": {math.expm1(guard.effect):+.2%}, accepted is {guard.margin:.2%} of harm"
                    if math.isfinite(guard.effect) else "") + f" (p = {guard.p:.2g})"
                for guard in failed]
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
        return INCONCLUSIVE, [
            f"an effect of {math.expm1(detectable):.2%} would have been found with a probability "
            f"of {POWER:.0%}; for {exp.primary.margin:.1%}, {self._hours(detectable):.1f} more "
            "hours are needed"] + notes


def judge(plan: Plan, data: Data, draws: int = estimate.DRAWS) -> Result:
    """Judge the values of an experiment."""
    return Judge(plan, data, draws).result()
