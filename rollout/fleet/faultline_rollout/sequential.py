# SPDX-License-Identifier: GPL-2.0-only
"""A t-test that stays valid however often one looks.

The mixture e-process of Lai (1976), and Wang and Ramdas (2024): the Bayes factor of
"the mean divided by the standard deviation is drawn from N(0, g)" against "the mean
is 0", with the right Haar prior 1/sd on the unknown standard deviation.  It depends
on the values only through what a change of unit leaves alone, and is a martingale
with start 1 for normal values of mean 0.  So the probability that it ever reaches
1/alpha is at most alpha.
"""
from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from .types import Array

# The variance of the prior.  The detectable effect of a sensible plan is about one
# standard deviation of a pair.
G = 1.0


def log_e(values: Array, g: float = G) -> Array:
    """The logarithm of the e-process after each value; the last axis is time.

    NaN is a pair without values: the e-process stays as it was.
    """
    present = np.isfinite(values)
    known = np.where(present, values, 0.0)
    count = np.cumsum(present, axis=-1)
    total = np.cumsum(known, axis=-1)
    squares = np.cumsum(known * known, axis=-1)
    shrunk = squares - total * total * (g / (1 + count * g))
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.where(squares > 0, np.log(squares / shrunk), 0.0)
    result: Array = 0.5 * count * growth - 0.5 * np.log1p(count * g)
    return np.where(squares > 0, result, 0.0)


def peak(values: Array, sign: int) -> float:
    """The largest logarithm of the e-process at looks at which the mean had this sign; 0 or more.

    Looks at which the mean has the other sign do not count, whatever its sign later.
    """
    total = np.cumsum(np.where(np.isfinite(values), values, 0.0))
    return float(np.max(log_e(values)[sign * total > 0], initial=0.0))


def log_e_share(hits: int, total: int, share: float) -> float:
    """The logarithm of the e-value of "a hit has at most this probability".

    The likelihood of the hits, with their probability drawn from all above share,
    against that with share.
    """
    above = special.betaln(hits + 1, total - hits + 1) \
        + stats.beta.logsf(share, hits + 1, total - hits + 1) - math.log1p(-share)
    return float(above - hits * math.log(share) - (total - hits) * math.log1p(-share))


def confidence_sequence(values: Array, alpha: float, g: float = G) -> tuple[Array, Array]:
    """Lower and upper ends after each value: all means whose e-process is below 1/alpha."""
    present = np.isfinite(values)
    known = np.where(present, values, 0.0)
    count = np.maximum(np.cumsum(present), 1)
    mean = np.cumsum(known) / count
    spread = np.maximum(np.cumsum(known * known) - count * mean * mean, 0.0)
    factor = 1 + count * g
    ratio = (np.sqrt(factor) / alpha) ** (2 / count)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = (ratio - 1) * spread / (count * (1 - ratio / factor))
    half = np.where(ratio < factor, np.sqrt(np.maximum(square, 0.0)), np.inf)
    return mean - half, mean + half
