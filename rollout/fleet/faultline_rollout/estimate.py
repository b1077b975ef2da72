# SPDX-License-Identifier: GPL-2.0-only
"""The effect of arm b against arm a, and what the randomisation says about it.

All values are logarithms, so effects are relative.  A panel is a matrix of changes,
one row for each host, one column for each pair:

  switchback   the second slot of the pair minus the first
  parallel     the whole experiment; one column only.  The time before, if known,
               is taken out with the slope within strata and arms (CUPED)

and signs: +1 if the change contains the effect of b (second slot b, first a; or a
host in arm b), -1 if not.  Within a stratum and a pair, the effect is the mean of the
changes with +1 minus the mean of those with -1, times 1/2 in a switchback, where the
effect is in both.  Whatever all hosts of the stratum share in a slot, cancels out; so
does whatever a host keeps over a pair.

The signs are the only thing that is random, and they are known: the plan draws them.
So the test redraws them, exactly as the plan does.  That needs no assumption about
the noise.  An effect d is rejected if the effect that is found, minus d, is more
extreme than in all but alpha of the redraws of data from which d has been taken out.
A redraw finds its own slope: with that of the real arms, which suits them best, more
than alpha of the experiments with few hosts and no effect would have a verdict.
The ends of the interval are the last d that is not rejected, on both sides.

While an experiment runs, the e-process in sequential.py may already have ended it.
A redraw that it would have ended counts as extreme, whatever its effect at the end.
So the false verdicts of all the looks and of the final test together are at most
alpha, and the interval excludes 0 if and only if there is a verdict.
"""
from __future__ import annotations

import dataclasses
import math

import numpy as np

from . import sequential
from .types import Array, Flags, Ints

DRAWS = 1999


@dataclasses.dataclass(frozen=True)
class Panel:
    """Changes and signs, of hosts in strata; NaN where there is no value."""

    changes: Array
    signs: Array
    strata: Ints
    # The change between signs, divided by the effect.
    contrast: float = 2.0
    # The values of hosts before the experiment, for a panel with one column.
    before: Array | None = None

    def until(self, pairs: int) -> Panel:
        """The first pairs only."""
        return dataclasses.replace(self, changes=self.changes[:, :pairs],
                                   signs=self.signs[:, :pairs])

    def without(self, effect: float) -> Panel:
        """The panel after an effect has been taken out."""
        signs = self.signs if self.contrast == 2.0 else (self.signs + 1) / 2
        return dataclasses.replace(self, changes=self.changes - effect * signs)


def mean_of_known(values: Array, axis: int) -> Array:
    """The mean without NaN; NaN of nothing else."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def draw_signs(hosts: int, draws: int, random: np.random.Generator) -> Array:
    """Signs for the hosts of one stratum, as a plan draws them: draws x hosts."""
    values = random.random((draws, hosts))
    half = np.full((draws, 1), hosts // 2)
    if hosts % 2:
        half += random.integers(0, 2, (draws, 1))
    # The first value that is not in the half; a sort of thousands of hosts takes long.
    places = sorted({hosts // 2, min(hosts // 2 + hosts % 2, hosts - 1)})
    limits = np.take_along_axis(np.partition(values, places, axis=1),
                                np.minimum(half, hosts - 1), axis=1)
    return np.where((values < limits) | (half == hosts), 1.0, -1.0)


def _contrast(signs: Array, values: Array, present: Array) -> tuple[Array, Array]:
    """Difference of means by sign, and its weight; the last axis is that of hosts."""
    plus = np.where(signs > 0, 1.0, 0.0) * present
    minus = present - plus
    n_plus, n_minus = plus.sum(-1), minus.sum(-1)
    weight = n_plus * n_minus / np.maximum(n_plus + n_minus, 1)
    difference = (plus * values).sum(-1) / np.maximum(n_plus, 1) \
        - (minus * values).sum(-1) / np.maximum(n_minus, 1)
    return np.where(weight > 0, difference, 0.0), weight


def _centred(signs: Array, values: Array, present: Array) -> Array:
    """Values less the mean of those with the same sign; the last axis is that of hosts."""
    plus = np.where(signs > 0, 1.0, 0.0) * present
    result: Array = np.zeros(np.broadcast_shapes(signs.shape, values.shape))
    for part in (plus, present - plus):
        mean = (part * values).sum(-1, keepdims=True) / np.maximum(part.sum(-1, keepdims=True), 1)
        result += part * (values - mean)
    return result


def _corrected(panel: Panel) -> Panel:
    """The panel without the part that the time before predicts."""
    if panel.before is None:
        return panel
    present = np.isfinite(panel.changes[:, 0] + panel.before)
    values = np.where(present, panel.changes[:, 0], 0.0)
    square = product = 0.0
    for stratum in np.unique(panel.strata):
        rows = panel.strata == stratum
        past = _centred(panel.signs[rows, 0], np.where(present, panel.before, 0.0)[rows],
                        present[rows].astype(float))
        square += float((past * past).sum())
        product += float((past * values[rows]).sum())
    slope = product / square if square > 0 else 0.0
    return dataclasses.replace(panel, changes=panel.changes - slope * panel.before[:, None],
                               before=None)


def pair_effects(panel: Panel) -> tuple[Array, Array]:
    """The effect in each pair, NaN without values, and its weight."""
    panel = _corrected(panel)
    total = np.zeros(panel.changes.shape[1])
    weights = np.zeros_like(total)
    for stratum in np.unique(panel.strata):
        rows = panel.strata == stratum
        changes = panel.changes[rows].T
        present = np.isfinite(changes)
        effect, weight = _contrast(panel.signs[rows].T, np.where(present, changes, 0.0),
                                   present.astype(float))
        total += weight * effect / panel.contrast
        weights += weight
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(weights > 0, total / weights, np.nan), weights


def _average(effects: Array, weights: Array) -> Array:
    result: Array = np.where(weights > 0, effects * weights, 0.0).sum(-1) \
        / np.maximum(weights.sum(-1), 1e-300)
    return result


def effect_of(panel: Panel) -> float:
    """The effect over all pairs."""
    return float(_average(*pair_effects(panel)))


@dataclasses.dataclass(frozen=True)
class Redraws:
    """The estimates for redrawn signs, as a linear function of the effect.

    With an effect d taken out of the changes, pair p of redraw m gives
    found[m, p] - d * taken[m, p].
    """

    found: Array
    taken: Array
    weights: Array

    def overall(self, effect: float) -> Array:
        """The effect over all pairs, for each redraw."""
        return _average(self.found - effect * self.taken, self.weights)

    def crossed(self, effect: float, alpha: float) -> Flags:
        """For which redraws the e-process reaches 1/alpha at some look."""
        values = np.where(self.weights > 0, self.found - effect * self.taken, np.nan)
        result: Flags = np.logical_or.reduce(
            sequential.log_e(values) >= -math.log(alpha), axis=-1)
        return result


def redraw(panel: Panel, draws: int = DRAWS, seed: str = "") -> Redraws:
    """Redraw the signs.

    The seed belongs to the plan: the same values give the same interval, and the
    errors of redraws are not the same in all experiments.
    """
    random = np.random.default_rng(list(seed.encode()) + [draws])
    pairs = panel.changes.shape[1]
    found, taken, weights = (np.zeros((draws, pairs)) for _ in range(3))
    # Of the time before: its effect, its square, and its products with changes and own.
    past, square, product, part_of_own = (np.zeros((draws, pairs)) for _ in range(4))
    own = panel.signs if panel.contrast == 2.0 else (panel.signs + 1) / 2
    for stratum in np.unique(panel.strata):
        rows = np.flatnonzero(panel.strata == stratum)
        for pair in range(pairs):
            signs = draw_signs(len(rows), draws, random)
            changes = panel.changes[rows, pair]
            known = np.isfinite(changes)
            if panel.before is not None:
                known &= np.isfinite(panel.before[rows])
            changes, present = np.where(known, changes, 0.0), known.astype(float)
            effect, weight = _contrast(signs, changes, present)
            part, _ = _contrast(signs, own[rows, pair], present)
            found[:, pair] += weight * effect / panel.contrast
            taken[:, pair] += weight * part / panel.contrast
            weights[:, pair] += weight
            if panel.before is not None:
                before = np.where(known, panel.before[rows], 0.0)
                centred = _centred(signs, before, present)
                past[:, pair] += weight * _contrast(signs, before, present)[0] / panel.contrast
                square[:, pair] += (centred * centred).sum(-1)
                product[:, pair] += (centred * changes).sum(-1)
                part_of_own[:, pair] += (centred * own[rows, pair]).sum(-1)
    if panel.before is not None:
        factor = past / np.maximum(square, 1e-300)
        found -= factor * product
        taken -= factor * part_of_own
    scale = np.maximum(weights, 1e-300)
    return Redraws(found / scale, taken / scale, weights)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An effect with its interval."""

    effect: float
    low: float
    high: float
    level: float
    # Of no effect; while the experiment runs, 1 / the largest e-value.
    p: float
    # Standard deviation of the effect over redraws.
    error: float

    def within(self, low: float, high: float) -> bool:
        """Whether the whole interval lies between two effects."""
        return low < self.low and self.high < high

    @property
    def sign(self) -> int:
        """The sign of the effect if the interval excludes 0."""
        return int(self.low > 0) - int(self.high < 0)


def _last_kept(start: float, step: float, rejected: object) -> float:
    """Go from start, which is kept, in steps that double; then bisect."""
    assert callable(rejected)
    inside, outside = start, start + step
    for _ in range(60):
        if rejected(outside):
            break
        inside, outside = outside, outside + (outside - start)
    else:
        return math.copysign(math.inf, step)
    for _ in range(18):
        middle = (inside + outside) / 2
        if rejected(middle):
            outside = middle
        else:
            inside = middle
    return outside


def chance(panel: Panel, drawn: Redraws, null: float = 0.0, looks: float = 0.0) -> float:
    """The p-value of an effect; looks as in randomisation()."""
    count = len(drawn.found)
    found = effect_of(panel)
    extreme = np.abs(drawn.overall(null)) >= abs(found - null) - 1e-12
    if looks:
        ended = drawn.crossed(null, looks)
        pairs, _ = pair_effects(panel)
        if (sequential.log_e(pairs - null) >= -math.log(looks)).any():
            return min((1 + float(ended.sum())) / (count + 1), looks)
        extreme |= ended
    return (1 + float(extreme.sum())) / (count + 1)


def randomisation(panel: Panel, alpha: float, looks: float = 0.0, draws: int = DRAWS,
                  redraws: Redraws | None = None, seed: str = "") -> Estimate:
    """The effect, with the interval at 1 - alpha from the randomisation test.

    looks is the alpha of the e-process that may have ended the experiment before;
    0 if nobody looked.
    """
    drawn = redraws or redraw(panel, draws, seed)
    effect = effect_of(panel)
    error = float(np.std(drawn.overall(effect)))

    def rejected(null: float) -> bool:
        return chance(panel, drawn, null, looks) <= alpha

    step = max(error, 1e-9) * 1.5
    if rejected(effect):
        # The looks have ended it for every effect nearby: a very odd series.
        low = high = effect
    else:
        low = _last_kept(effect, -step, rejected)
        high = _last_kept(effect, step, rejected)
    return Estimate(effect, low, high, 1 - alpha, chance(panel, drawn, 0.0, looks), error)


def one_sided(panel: Panel, null: float, harm: int, redraws: Redraws) -> float:
    """The p-value of "the harm is at most null"; harm is the sign of harmful effects."""
    found = harm * (effect_of(panel) - null)
    extreme = harm * redraws.overall(null) >= found - 1e-12
    return (1 + float(extreme.sum())) / (len(extreme) + 1)


def while_running(panel: Panel, alpha: float) -> Estimate:
    """The effect so far, with an interval that is valid at every look."""
    pairs, _ = pair_effects(panel)
    pairs = pairs[np.isfinite(pairs)]
    if not len(pairs):
        return Estimate(0.0, -math.inf, math.inf, 1 - alpha, 1.0, math.inf)
    low, high = sequential.confidence_sequence(pairs, alpha)
    error = float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.inf
    peak = float(np.max(sequential.log_e(pairs)))
    return Estimate(float(np.mean(pairs)), float(low[-1]), float(high[-1]), 1 - alpha,
                    min(1.0, math.exp(-peak)), error)


def clustered(panel: Panel) -> tuple[float, float]:
    """Effect and standard error of a t-test on the means of hosts, as a cross-check."""
    panel = _corrected(panel)
    means = np.full(panel.changes.shape, np.nan)
    for stratum in np.unique(panel.strata):
        rows = panel.strata == stratum
        block = panel.changes[rows]
        means[rows] = (block - mean_of_known(block, 0)) * panel.signs[rows] \
            * (2 / panel.contrast)
    hosts = mean_of_known(means, 1)
    hosts = hosts[np.isfinite(hosts)]
    return float(hosts.mean()), float(hosts.std(ddof=1) / math.sqrt(len(hosts)))


def holm(chances: list[float]) -> list[float]:
    """P-values of a family, corrected by Holm's method."""
    corrected = [1.0] * len(chances)
    worst = 0.0
    for rank, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        worst = max(worst, min(1.0, chances[index] * (len(chances) - rank)))
        corrected[index] = worst
    return corrected
