# SPDX-License-Identifier: GPL-2.0-only
"""Checks of the data: why an experiment is invalid."""
from __future__ import annotations

import dataclasses

import numpy as np
from scipy import stats

from . import estimate
from .estimate import Panel
from .measured import never_changes
from .sample import Sample
from .switches import metric_of

# From so many hosts on, these checks trust the mean to be normal: redraws take minutes.
MANY = 200
# P-values so small that a sound experiment is seldom refused.
RATIO_P = 0.001
LOST_P = 0.005
CARRY_P = 0.002
MAX_WRONG_ARM = 0.01
MAX_LOST = 0.2
MIN_LOST_DIFFERENCE = 0.01
CLOCK_SECONDS = 5.0


def problems(sample: Sample) -> list[str]:
    """Why the experiment is invalid; empty if it is not."""
    found: list[str] = []
    for check in (enough, _kernels, _clocks, _events_seen, _arms, _ratio, _lost, _carry_over,
                  _guards_there):
        # Without values, the others would only repeat it.
        if found and check is not _kernels:
            break
        found += check(sample)
    return found


def enough(sample: Sample) -> list[str]:
    """Whether the primary metric has values."""
    values = np.isfinite(sample.logs)
    lost = 1 - values[sample.here].mean() if sample.here.any() else 1.0
    if lost > MAX_LOST:
        return [f"{lost:.0%} of the values of the primary metric are missing, of which "
                f"{MAX_LOST:.0%} may be: look at Prometheus, and at the query"]
    if sample.data.slots > 1 and never_changes(sample.logs):
        return ["the primary metric never changes on any host: look at the query"]
    return []


def _kernels(sample: Sample) -> list[str]:
    # Ignore the kernel that a host boots after a crash.
    until = sample.data.start + sample.here.sum(axis=1) * sample.exp.slot
    every = {release for host, seen in enumerate(sample.data.kernels)
             for release, first in seen.items() if first <= until[host]}
    if not every:
        return ["kernels cannot be checked: node_exporter gives no node_uname_info"]
    unknown = [host.name for host, seen, there in zip(
        sample.plan.hosts, sample.data.kernels, sample.there) if there and not seen]
    if len(unknown) > MAX_LOST * sample.there.sum():
        return [f"the kernels of {len(unknown)} of {sample.there.sum()} hosts cannot be "
                f"checked, such as {unknown[0]}: node_uname_info is missing"]
    if len(every) > 1:
        return [f"kernels differ: {', '.join(sorted(every))}"]
    return []


def _clocks(sample: Sample) -> list[str]:
    offset = np.where(sample.here, sample.data.offset, np.nan)
    if not np.isfinite(offset).any():
        return ["clocks cannot be checked: node_exporter gives no node_time_seconds"]
    unknown = 1 - np.isfinite(offset).sum() / sample.here.sum()
    if unknown > MAX_LOST:
        return [f"clocks cannot be checked in {unknown:.0%} of the slots, of which "
                f"{MAX_LOST:.0%} may be: node_time_seconds is missing on some hosts"]
    limit = min(CLOCK_SECONDS, max(1.0, sample.exp.washout / 4))
    worst = np.nanmax(np.where(np.isfinite(offset), offset, 0.0), axis=1)
    return [f"the clock of {sample.plan.hosts[host].name} is {worst[host]:.0f} s off, of which "
            f"{limit:.0f} s may be: synchronise clocks"
            for host in np.flatnonzero(worst > limit)[:3]]


def _events_seen(sample: Sample) -> list[str]:
    """Whether reboots and OOM kills would have been seen."""
    return [f"{what} cannot be seen in {1 - known:.0%} of the slots, of which {MAX_LOST:.0%} "
            f"may be: node_exporter does not give {metric} on all hosts"
            for what, metric, values in (
                ("reboots", "node_boot_time_seconds", sample.data.last_boot[:, 1:]),
                ("OOM kills", "node_vmstat_oom_kill", sample.data.ooms))
            if (known := np.isfinite(values)[sample.here].mean()) < 1 - MAX_LOST]


def _arms(sample: Sample) -> list[str]:
    wanted = np.where(sample.assigned == 1, sample.exp.b, sample.exp.a)
    known = np.isfinite(sample.data.lowest) & sample.here
    if not known.any():
        return [f"the arms cannot be checked: there is no {metric_of(sample.exp.switch)}: start "
                f"node_exporter with --collector.sysctl.include={sample.exp.switch}"]
    if (unknown := 1 - known.sum() / sample.here.sum()) > MAX_LOST:
        return [f"the arms cannot be checked in {unknown:.0%} of the slots, of which "
                f"{MAX_LOST:.0%} may be: {metric_of(sample.exp.switch)} is missing on some hosts"]
    wrong = known & ((sample.data.lowest != wanted) | (sample.data.highest != wanted))
    share = wrong.sum() / known.sum()
    if share <= MAX_WRONG_ARM:
        return []
    most = int(wrong.sum(axis=1).argmax())
    return [f"{sample.exp.switch} is not what the plan says in {share:.1%} of the slots, of "
            f"which {MAX_WRONG_ARM:.0%} may be; most often on {sample.plan.hosts[most].name}: "
            "who else sets it?"]


def _ratio(sample: Sample) -> list[str]:
    """Whether values are missing in one arm more than in the other."""
    found = []
    for name, values in (("", sample.logs), *(
            (f" of guard '{metric.name}'", sample.guard_values(metric, rows))
            for metric, rows in zip(sample.exp.guards, sample.data.guards))):
        on, total = sample.losses(np.isfinite(values))
        if not total or not 0 < sample.share < 1:
            continue
        p = stats.binomtest(on, total, sample.share).pvalue
        if p < RATIO_P:
            found.append(f"sample ratio: {on} of {total} missing values{name} are those of "
                         f"arm b, which has {sample.share:.0%} of the slots (p = {p:.2g}): "
                         "values get lost in one arm")
    return found


def _lost(sample: Sample) -> list[str]:
    counts = np.where(sample.here, np.nan_to_num(sample.data.scrapes), np.nan)
    counts = counts / max(1.0, float(np.nanmax(counts)))
    if sample.exp.design == "parallel":
        means = estimate.mean_of_known(counts, 1)
        panel = dataclasses.replace(sample.panel, before=None,
                                    changes=sample.plan.together(means[:, None]))
    else:
        panel = sample.plan.panel(counts)
    found, p = difference(sample, panel)
    if p < LOST_P and abs(found) > MIN_LOST_DIFFERENCE:
        return [f"lost scrapes differ by arm: {abs(found):.1%} more in arm "
                f"{'b' if found < 0 else 'a'} (p = {p:.2g})"]
    return []


def difference(sample: Sample, panel: Panel) -> tuple[float, float]:
    if len(panel.changes) >= MANY:
        found, error = estimate.clustered(panel)
        return found, float(2 * stats.norm.sf(abs(found) / max(error, 1e-12)))
    redraws = estimate.redraw(panel, 999, sample.plan.seed)
    found = estimate.effect_of(panel)
    extreme = int((np.abs(redraws.overall(0.0)) >= abs(found) - 1e-12).sum())
    return found, (1 + extreme) / 1000


def _carry_over(sample: Sample) -> list[str]:
    """Whether the first slot of a pair knows the arm of the slot before it."""
    pairs = sample.data.slots // 2
    if sample.exp.design != "switchback" or pairs < 3:
        return []
    rest = sample.logs - estimate.effect_of(sample.panel) * sample.assigned
    rest = rest - estimate.mean_of_known(rest, 1)[:, None]
    # Signs of the pair before: +1 if its second slot is b.
    panel = Panel(sample.plan.together(rest[:, 2:2 * pairs:2]),
                  sample.panel.signs[:, :pairs - 1], sample.panel.strata, contrast=1.0)
    found, p = difference(sample, panel)
    if p <= CARRY_P:
        return [f"carry-over: the slot after one in arm b differs by {found:+.2%} "
                f"(p = {p:.2g}): use a longer washout"]
    return []


def _guards_there(sample: Sample) -> list[str]:
    found = []
    for metric, values in zip(sample.exp.guards, sample.data.guards):
        known = np.isfinite(sample.guard_values(metric, values))
        if known[sample.here].mean() >= 1 - MAX_LOST:
            continue
        zeros = float((values[sample.here] <= 0).mean())
        found.append(f"guard '{metric.name}' " + (
            f"is 0 in {zeros:.0%} of the slots, and 0 has no ratio: write kind = \"count\""
            if zeros > MAX_LOST and metric.kind == "ratio" else
            f"has too few values: {metric.query}" if known.any() else
            f"has no values: {metric.query}"))
    return found
