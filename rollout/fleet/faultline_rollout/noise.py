# SPDX-License-Identifier: GPL-2.0-only
"""A model of a fleet's noise, for simulations and tests.

The logarithm of the metric of a host in a minute is the sum of

  the host's own level       normal, sd 6 %, constant
  the noise of a minute      normal, sd 4 %, AR(1) with 0.6 from minute to minute,
                             independent between hosts
  the drift of the host      a random walk with steps of 0.4 % per minute, independent
                             between hosts

and of the effect, in the minutes of arm b.  What all
hosts share, cancels out in every method here.  A real fleet also has outliers, and
days that are not like others, which is why faultline-rollout plan replays the design
on the fleet's own history.
"""
from __future__ import annotations

import dataclasses
import math

import numpy as np

from .types import Array


@dataclasses.dataclass(frozen=True)
class Noise:
    """The sizes of the parts, as fractions."""

    host: float = 0.06
    minute: float = 0.04
    memory: float = 0.6
    drift: float = 0.004

    def draw(self, hosts: int, minutes: int, random: np.random.Generator) -> Array:
        """Logarithms: hosts x minutes."""
        level = random.normal(0, self.host, (hosts, 1))
        steps = random.normal(0, self.minute * math.sqrt(1 - self.memory ** 2), (hosts, minutes))
        steps[:, 0] = random.normal(0, self.minute, hosts)
        noise = np.empty_like(steps)
        noise[:, 0] = steps[:, 0]
        for minute in range(1, minutes):
            noise[:, minute] = self.memory * noise[:, minute - 1] + steps[:, minute]
        drift = np.cumsum(random.normal(0, self.drift, (hosts, minutes)), axis=1)
        result: Array = level + noise + drift
        return result


def slot_means(values: Array, slot: int, washout: int) -> Array:
    """Logarithms of the means of the minutes of each slot that count: hosts x slots."""
    hosts, minutes = values.shape
    slots = np.exp(values).reshape(hosts, minutes // slot, slot)
    result: Array = np.log(slots[:, :, washout:].mean(axis=2))
    return result
