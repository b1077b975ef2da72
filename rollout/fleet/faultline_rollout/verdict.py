# SPDX-License-Identifier: GPL-2.0-only
"""From the values of an experiment to a verdict."""
from __future__ import annotations

import math

import numpy as np
from scipy import stats

from . import checks, estimate, sequential
from .checks import MAX_LOST, MAX_WRONG_ARM
from .design import Plan
from .estimate import Estimate, Redraws
from .experiment import Metric, in_words, relative
from .measured import DAY, Data, exceeds, never_changes
from .outcome import (
    BETTER, EQUIVALENT, EXIT, INCONCLUSIVE, INVALID, KINDS, LOOK_AT, NOT_EXERCISED, WORSE, Event,
    Guard, Result, count_of, named)
from .sample import DOUBT_P, Sample
from .types import Array

# Of all A/A experiments, at most this share ends with BETTER or WORSE because of the
# primary metric, of which the looks while it runs may use LOOKS.
# 4 %, so that 300 of them keep below 5 % together with their chance variation.
ALPHA = 0.04
LOOKS = 0.01
# Of A/A experiments, at most this share ends with WORSE because of crashes and OOM kills, of
# which the looks may use EVENT_LOOKS.  With ALPHA that makes 5 %.
EVENT_ALPHA = 0.01
EVENT_LOOKS = 0.002
# Of EQUIVALENT, for each side, and of all guards together.
EQUIVALENT_ALPHA = 0.05
GUARD_ALPHA = 0.05
# Of GUARD_ALPHA, for the looks while it runs.
GUARD_LOOKS = 0.025
# The power of the detectable effect.
POWER = 0.9


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


class Judge(Sample):
    """Judges the values of one experiment."""

    def __init__(self, plan: Plan, data: Data, draws: int = estimate.DRAWS) -> None:
        super().__init__(plan, data)
        self._draws = draws

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
            in_b, total = self.by_unit(np.logical_or.reduce(
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

    def guards(self) -> list[Guard]:
        """Judge the guards as one family."""
        rows: list[tuple[Metric, Array, float, float, float]] = []
        limit = GUARD_ALPHA - GUARD_LOOKS if self.final else GUARD_LOOKS
        for metric, raw in zip(self.exp.guards, self.data.guards):
            values = self.guard_values(metric, raw)
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
        on, total = self.losses(np.isfinite(values))
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
        problems = checks.enough(self) if self.data.slots >= 2 else []
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
        if problems := checks.problems(self):
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
