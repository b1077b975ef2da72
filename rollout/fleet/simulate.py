#!/usr/bin/python3 -B
# SPDX-License-Identifier: GPL-2.0-only
"""Compare methods of finding the effect of a switch, on simulated fleets.

For each method and effect, the share of fleets in which it finds an effect; with an
effect of 0 that is its false verdicts.  The noise is that of noise.py.

--write puts the result into a README, with a sum over it and over what a few fleets give
to the digit.  --check fails if the text was edited, or if the methods have changed since.
"""
from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import pathlib
import re
import sys
from collections.abc import Callable

import numpy as np
from scipy import stats

from faultline_rollout import estimate, noise, sequential, verdict
from faultline_rollout.types import Array

HOSTS, MINUTES, SLOT, WASHOUT, ALPHA = 16, 120, 5, 1, 0.05
PAIRS = MINUTES // SLOT // 2
EFFECTS = (0.0, 0.01, 0.02, 0.05)
# In the row with crashes, whatever the arm: of hosts, and of hosts and slots.
CRASH, OOM_KILL = 1 / 8, 1 / 20
# Fleets for the sum.
FEW = 3
BEGIN = "<!-- simulate --write: {fleets} fleets, seed {seed}, sum {sum} -->"
END = "<!-- simulate ends -->"


class Fleet:
    """One simulated fleet: two hours before the experiment, and two hours of it."""

    def __init__(self, model: noise.Noise, effect: float, random: np.random.Generator) -> None:
        quiet = model.draw(HOSTS, 2 * MINUTES, random)
        self.seed = str(random.integers(2 ** 60))
        self.before, during = quiet[:, :MINUTES], quiet[:, MINUTES:]
        self.half = estimate.draw_signs(HOSTS, 1, random)[0]
        self.groups = during + np.log1p(effect) * (self.half[:, None] > 0)
        self.signs = estimate.draw_signs(HOSTS, PAIRS, random).T
        self.on = np.stack([self.signs < 0, self.signs > 0], axis=2).reshape(HOSTS, 2 * PAIRS)
        switched = during + np.log1p(effect) * np.repeat(self.on, SLOT, axis=1)
        self.slots = noise.slot_means(switched, SLOT, WASHOUT)
        self.panel = estimate.Panel(self.slots[:, 1::2] - self.slots[:, ::2], self.signs,
                                    np.zeros(HOSTS, dtype=np.int64))
        self.pairs, _ = estimate.pair_effects(self.panel)
        slots = np.arange(2 * PAIRS)
        # The slot of the crash, if there is one.
        crash = np.where(random.random(HOSTS) < CRASH, random.integers(0, 2 * PAIRS, HOSTS), -1)
        self.crashes = crash[:, None] == slots
        here = (crash[:, None] < 0) | (slots < crash[:, None])
        self.ooms = (random.random(here.shape) < OOM_KILL) & here
        self.left = dataclasses.replace(self.panel, changes=np.where(
            here[:, 1::2], self.panel.changes, np.nan))


Found = tuple[bool, float]


def kayenta(fleet: Fleet) -> Found:
    """Mann-Whitney on the pooled minutes of both halves."""
    on = fleet.half > 0
    p = stats.mannwhitneyu(fleet.groups[on].ravel(), fleet.groups[~on].ravel()).pvalue
    return p <= ALPHA, math.nan


def welch(fleet: Fleet) -> Found:
    """Welch's t-test on the means of hosts."""
    return _welch(fleet, fleet.groups.mean(axis=1))


def cuped(fleet: Fleet) -> Found:
    """The same, without the part that the time before predicts."""
    before, during = fleet.before.mean(axis=1), fleet.groups.mean(axis=1)
    theta = np.cov(before, during)[0, 1] / before.var(ddof=1)
    return _welch(fleet, during - theta * before)


def _welch(fleet: Fleet, means: Array) -> Found:
    on = fleet.half > 0
    p = stats.ttest_ind(means[on], means[~on], equal_var=False).pvalue
    return p <= ALPHA, means[on].mean() - means[~on].mean()


def at_the_end(fleet: Fleet) -> Found:
    """The randomisation test at the planned end."""
    drawn = estimate.redraw(fleet.panel, 999, fleet.seed)
    return estimate.chance(fleet.panel, drawn) <= ALPHA, estimate.effect_of(fleet.panel)


def peeking(fleet: Fleet) -> Found:
    """A t-test after every pair from the third on."""
    for count in range(3, len(fleet.pairs) + 1):
        if stats.ttest_1samp(fleet.pairs[:count], 0).pvalue <= ALPHA:
            return True, count
    return False, math.nan


def any_time(fleet: Fleet) -> Found:
    """The e-process after every pair."""
    crossed = np.flatnonzero(sequential.log_e(fleet.pairs) >= -math.log(ALPHA))
    return bool(len(crossed)), crossed[0] + 1 if len(crossed) else math.nan


def ours(fleet: Fleet) -> Found:
    """The method of faultline-rollout: the e-process at LOOKS, then the test at ALPHA in all."""
    return _judged(fleet, fleet.panel)


def _judged(fleet: Fleet, panel: estimate.Panel) -> Found:
    pairs, _ = estimate.pair_effects(panel)
    crossed = np.flatnonzero(sequential.log_e(pairs) >= -math.log(verdict.LOOKS))
    if len(crossed):
        return True, crossed[0] + 1
    drawn = estimate.redraw(panel, 999, fleet.seed)
    p = estimate.chance(panel, drawn, 0.0, verdict.LOOKS)
    return p <= verdict.ALPHA, PAIRS


def with_crashes(fleet: Fleet) -> Found:
    """The same without the hosts that crash, and WORSE for crashes and OOM kills."""
    found, first = _judged(fleet, fleet.left)
    for pair in range(1, PAIRS + 1):
        counts = [(int((event & ~fleet.on)[:, :2 * pair].sum()),
                   int((event & fleet.on)[:, :2 * pair].sum()))
                  for event in (fleet.crashes, fleet.ooms)]
        final = pair == PAIRS
        limit = verdict.EVENT_ALPHA - verdict.EVENT_LOOKS if final else verdict.EVENT_LOOKS
        if min(verdict.event_chances(counts, 0.5, final)) <= limit:
            return True, min(pair, first if found else pair)
    return found, first


METHODS: tuple[tuple[str, Callable[[Fleet], Found], str], ...] = (
    ("Mann-Whitney on pooled minutes (as Kayenta)", kayenta, ""),
    ("Welch's t-test, half the fleet against half", welch, "sd"),
    ("the same with CUPED", cuped, "sd"),
    ("switchback, randomisation test at the end", at_the_end, "sd"),
    ("switchback, t-test after every pair (peeking)", peeking, "pair"),
    ("switchback, e-process after every pair", any_time, "pair"),
    ("faultline-rollout: e-process, then the test", ours, "pair"),
    ("the same, with crashes and OOM kills in both arms", with_crashes, "pair"),
)


def until_worse(final: bool) -> int:
    """The number of crashes in arm b, with none in arm a, that gives WORSE."""
    limit = verdict.EVENT_ALPHA - verdict.EVENT_LOOKS if final else verdict.EVENT_LOOKS
    return next(count for count in range(1, 100)
                if verdict.event_chances([(0, count), (0, 0)], 0.5, final)[0] <= limit)


Outcomes = dict[tuple[str, float], list[Found]]


def simulate(fleets: int, seed: int) -> Outcomes:
    """Findings of each method in each fleet, by method and effect."""
    model = noise.Noise()
    found: Outcomes = {}
    for effect in EFFECTS:
        random = np.random.default_rng([seed, int(effect * 1000)])
        made = [Fleet(model, effect, random) for _ in range(fleets)]
        found |= {(name, effect): [method(fleet) for fleet in made] for name, method, _ in METHODS}
    return found


def table(fleets: int, seed: int) -> str:
    """The result."""
    model, found = noise.Noise(), simulate(fleets, seed)
    spread = {name: float(np.std([number for _, number in found[name, 0.0]]))
              for name, _, kind in METHODS if kind == "sd"}
    text = [
        f"{HOSTS} hosts, {MINUTES} minutes, slots of {SLOT} min with {WASHOUT} min washout, "
        f"alpha {ALPHA:.0%},",
        f"in the row faultline-rollout {verdict.ALPHA:.0%} and in the last one "
        f"{verdict.ALPHA + verdict.EVENT_ALPHA:.0%}; {fleets} fleets per effect, seed {seed}.",
        "",
        "| method | no effect | 1 % | 2 % | 5 % | sd |",
        "|---|---|---|---|---|---|"]
    for name, _, kind in METHODS:
        cells = []
        for effect in EFFECTS:
            share = f"{np.mean([verdict for verdict, _ in found[name, effect]]):.1%}"
            pairs = [number for verdict, number in found[name, effect] if verdict]
            cells.append(share + (f" (pair {np.mean(pairs):.1f})"
                                  if kind == "pair" and effect and pairs else ""))
        text.append(f"| {name} | {' | '.join(cells)} | "
                    f"{f'{spread[name]:.2%} ' if name in spread else ''}|")
    groups, alternating = spread[METHODS[1][0]], spread[METHODS[3][0]]
    text += [
        "",
        f"Noise: hosts sd {model.host:.0%}; minutes sd {model.minute:.0%}, AR(1) {model.memory}; "
        f"random walk of each host {model.drift:.1%} per minute.",
        "The first four columns are the share of fleets with a verdict, of which the first one",
        f"is false; (pair) is when, of {PAIRS}. The last is the standard deviation of the effect: "
        "its",
        f"variance with two groups of hosts is {(groups / alternating) ** 2:.0f} times that of "
        "hosts that alternate.",
        f"In the last row, {CRASH:.0%} of hosts crash, and {OOM_KILL:.0%} of hosts and slots have "
        "an OOM kill. With",
        f"none in arm a, WORSE takes {until_worse(True)} in arm b at the end, and "
        f"{until_worse(False)} while it runs; one is a veto."]
    return "\n".join(text)


def sum_of(text: str, seed: int) -> str:
    """A sum over a text and the numbers of a few fleets."""
    few = [(name, effect, f"{verdict} {number:.3g}")
           for (name, effect), rows in simulate(FEW, seed).items() for verdict, number in rows]
    return hashlib.sha256(repr((text, few)).encode()).hexdigest()[:16]


def check(path: pathlib.Path) -> str:
    """The problem with the table in a file; empty if there is none."""
    pattern = BEGIN.format(fleets=r"(\d+)", seed=r"(\d+)", sum="(.*)") + r"\n(.*)\n" + END
    match = re.search(pattern, path.read_text("utf-8"), re.DOTALL)
    if not match:
        return f"{path} has no table: run simulate.py --write {path}"
    if sum_of(match[4], int(match[2])) != match[3]:
        return (f"{path}: the table is not that of these methods, or was edited: run "
                f"simulate.py --fleets {match[1]} --seed {match[2]} --write {path}")
    return ""


def main() -> int:
    """Run the simulation and print the table."""
    parser = argparse.ArgumentParser(prog="simulate.py", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=1000, help="fleets per effect")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=pathlib.Path, metavar="README",
                        help="replace the table there")
    parser.add_argument("--check", type=pathlib.Path, metavar="README",
                        help="only check the table there")
    args = parser.parse_args()
    if args.check:
        if problem := check(args.check):
            print(f"simulate.py: error: {problem}", file=sys.stderr)
            return 1
        return 0
    text = table(args.fleets, args.seed)
    print(text)
    if args.write:
        begin = BEGIN.format(fleets=args.fleets, seed=args.seed, sum=sum_of(text, args.seed))
        old = args.write.read_text("utf-8")
        new, count = re.subn("<!-- simulate --write.*" + END,
                             lambda _: f"{begin}\n{text}\n{END}", old, flags=re.DOTALL)
        if not count:
            print(f"simulate.py: error: {args.write} has no place for the table: add the lines "
                  f"<!-- simulate --write --> and {END}", file=sys.stderr)
            return 1
        args.write.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
