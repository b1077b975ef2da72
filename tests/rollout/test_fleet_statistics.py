# SPDX-License-Identifier: GPL-2.0-only
"""The statistics of rollout/fleet against closed forms, other programs and each other."""
from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import pytest

from rollout import fleet_lab

import numpy as np
import statsmodels.api as sm
import statsmodels.stats.multitest
from scipy import integrate, stats

from faultline_rollout import (
    Error, checks, design, estimate, experiment, measured, noise, outcome, planning, report, run,
    sequential, switches, verdict)
from faultline_rollout.types import Array, Flags

RANDOM = np.random.default_rng


def panel_of(hosts: int, pairs: int, effect: float, seed: int, strata: int = 1) -> estimate.Panel:
    """A simulated switchback."""
    random = RANDOM(seed)
    numbers = np.arange(hosts) % strata
    signs = np.empty((hosts, pairs))
    for stratum in range(strata):
        rows = numbers == stratum
        signs[rows] = estimate.draw_signs(int(rows.sum()), pairs, random).T
    changes = random.normal(0, 0.04, (hosts, pairs)) + random.normal(0, 0.1, pairs) \
        + effect * signs
    return estimate.Panel(changes, signs, numbers)


# --- Schedule

@pytest.mark.parametrize("sizes", [(4,), (5,), (4, 7), (16, 9, 6)])
def test_schedule_is_balanced(sizes: tuple[int, ...]) -> None:
    """In each stratum and slot half the hosts are on, and each pair has both arms."""
    strata = {f"s{number}": [f"h{number}-{host}" for host in range(size)]
              for number, size in enumerate(sizes)}
    arms = design.schedule("seed", strata, 40, "switchback")
    assert all(set(letters[slot:slot + 2]) == {"a", "b"}
               for letters in arms.values() for slot in range(0, 40, 2))
    larger = []
    for names in strata.values():
        for slot in range(40):
            on = sum(arms[name][slot] == "b" for name in names)
            assert abs(2 * on - len(names)) <= 1
            larger.append(2 * on - len(names))
    # Neither order is favoured in odd strata.
    assert sum(larger) == 0 and len(set(arms.values())) > 1


def test_schedule_is_what_it_was() -> None:
    """The schedule of a seed never changes: verdicts on old plans depend on it."""
    strata = {"all": [f"h{number}" for number in range(4)]}
    assert design.schedule("faultline", strata, 12, "switchback") == {
        "h0": "baabababbaab", "h1": "abbabaababab", "h2": "baabbabababa", "h3": "abbaabbaabba"}
    parallel = design.schedule("faultline", strata, 12, "parallel")
    assert sorted(parallel.values()) == ["a" * 12] * 2 + ["b" * 12] * 2


def test_schedules_differ_by_seed() -> None:
    """Another seed, another schedule; each host is on first in about half of the pairs."""
    strata = {"all": [f"h{number}" for number in range(8)]}
    firsts = np.array([[letters[::2].count("b") for letters in
                        design.schedule(str(seed), strata, 40, "switchback").values()]
                       for seed in range(50)])
    assert abs(firsts.mean() - 10) < 0.01
    assert 1.5 < firsts.std() < 3


# --- Estimate

def test_estimate_against_regression() -> None:
    """A balanced estimate equals that of a regression with stratum-pair intercepts."""
    panel = panel_of(16, 10, 0.02, 1, strata=2)
    rows = [(panel.strata[host] * 10 + pair, panel.signs[host, pair], panel.changes[host, pair])
            for host in range(16) for pair in range(10)]
    cell, sign, change = (np.array(column) for column in zip(*rows))
    intercepts = (cell[:, None] == np.unique(cell)).astype(float)
    fit = sm.OLS(change, np.column_stack([sign, intercepts])).fit()
    assert estimate.effect_of(panel) == pytest.approx(fit.params[0], rel=1e-9)
    # The randomisation's standard error is close to that of the regression.
    error = estimate.randomisation(panel, 0.05).error
    assert error == pytest.approx(fit.bse[0], rel=0.15)


def test_shared_and_constant_parts_cancel() -> None:
    """Values shared by a stratum in a slot, and constants of a host, cancel."""
    random = RANDOM(2)
    assigned = np.array([[0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 1, 0], [0, 1, 0, 1, 1, 0],
                         [1, 0, 1, 0, 0, 1]])
    slots = random.normal(0, 1, (4, 6))
    strata = np.zeros(4, dtype=np.int64)
    before = estimate.effect_of(design.switchback_panel(slots, assigned, strata))
    moved = slots + random.normal(0, 5, (4, 1)) + random.normal(0, 5, 6)
    after = estimate.effect_of(design.switchback_panel(moved, assigned, strata))
    assert after == pytest.approx(before, abs=1e-9)
    raised = estimate.effect_of(design.switchback_panel(slots + 0.3 * assigned, assigned, strata))
    assert raised == pytest.approx(before + 0.3, abs=1e-9)


@pytest.mark.parametrize("hosts", [1, 2, 5, 8, 33])
def test_signs_are_those_of_ranks(hosts: int) -> None:
    """The hosts with the lowest draws are one half, of which the larger is random."""
    signs = estimate.draw_signs(hosts, 200, RANDOM(1))
    random = RANDOM(1)
    ranks = np.argsort(np.argsort(random.random((200, hosts)), axis=1), axis=1)
    half = hosts // 2 + random.integers(0, 1 + hosts % 2, (200, 1))
    assert (signs == np.where(ranks < half, 1, -1)).all()


def test_checks_of_many_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of hosts, checks without redraws have the p-values of those with them."""
    plan, _ = fleet_of()
    hosts = checks.MANY + 20
    panel = panel_of(hosts, 6, 0.001, 26)
    judge = verdict.Judge(plan, fleet_of()[1])
    fast = checks.difference(judge, panel)
    monkeypatch.setattr(checks, "MANY", hosts + 1)
    slow = checks.difference(judge, panel)
    assert fast[0] == pytest.approx(slow[0])
    assert 0.02 < fast[1] < 0.98 and fast[1] == pytest.approx(slow[1], abs=0.04)


@pytest.mark.parametrize("hosts", [5, 7])
def test_odd_strata_and_gaps(hosts: int) -> None:
    """The estimate is unbiased in odd strata, and with gaps."""
    panel = panel_of(hosts, 6, 0.0, 3)
    changes = panel.changes.copy()
    changes[1, 2] = changes[3, 4] = np.nan
    gaps = estimate.Panel(changes, panel.signs, panel.strata)
    raised = estimate.Panel(changes + 0.5 * panel.signs, panel.signs, panel.strata)
    assert estimate.effect_of(raised) == pytest.approx(estimate.effect_of(gaps) + 0.5)


def test_interval_against_enumeration() -> None:
    """Monte Carlo agrees with all 6^3 schedules of four hosts and three pairs."""
    panel = panel_of(4, 3, 0.03, 4)
    halves = [np.array([1.0 if host in half else -1.0 for host in range(4)])
              for half in itertools.combinations(range(4), 2)]
    found = abs(estimate.effect_of(panel))
    extreme = [abs(estimate.effect_of(estimate.Panel(
        panel.changes, np.array(signs).T, panel.strata))) >= found - 1e-12
        for signs in itertools.product(halves, repeat=3)]
    p = estimate.randomisation(panel, 0.05, draws=9999).p
    assert p == pytest.approx(np.mean(extreme), abs=0.015)


def test_interval_is_where_the_test_ends() -> None:
    """The test accepts effects just inside the interval and rejects those just outside."""
    panel = panel_of(16, 12, 0.01, 5)
    redraws = estimate.redraw(panel)
    for looks in (0.0, 0.01):
        found = estimate.randomisation(panel, 0.05, looks, redraws=redraws)
        width = found.high - found.low
        for end, inside in ((found.low, 1), (found.high, -1)):
            for step, kept in ((inside, True), (-inside, False)):
                null = end + step * 0.01 * width
                p = estimate.randomisation(panel.without(null), 0.05, looks).p
                assert (p > 0.05) == kept


def test_interval_against_t() -> None:
    """With normal noise the interval is as wide as that of a t-test."""
    panel = panel_of(16, 12, 0.0, 6)
    found = estimate.randomisation(panel, 0.05)
    effect, error = estimate.clustered(panel)
    assert effect == pytest.approx(found.effect, abs=1e-9)
    assert (found.high - found.low) / 2 == pytest.approx(error * stats.t.ppf(0.975, 15), rel=0.4)


def test_false_rate_without_normal_noise() -> None:
    """The randomisation test keeps its level with heavy tails and unequal hosts."""
    random = RANDOM(7)
    false = 0
    for seed in range(400):
        panel = panel_of(8, 6, 0.0, 1000 + seed)
        scale = np.exp(random.normal(0, 1, (8, 1)))
        changes = random.standard_t(2, (8, 6)) * scale
        odd = estimate.Panel(changes, panel.signs, panel.strata)
        drawn = estimate.redraw(odd, 199, str(seed))
        false += estimate.chance(odd, drawn, 0.0, 0.01) <= 0.05
    assert false <= stats.binom.ppf(0.999, 400, 0.05)


def test_parallel_with_cuped() -> None:
    """In a parallel design, the time before removes the differences between hosts."""
    random = RANDOM(8)
    on = (np.arange(40) % 2).astype(np.int64)
    level = random.normal(0, 0.3, (40, 1))
    before = (level + random.normal(0, 0.01, (40, 1)))[:, 0]
    slots = level + random.normal(0, 0.01, (40, 8)) + 0.05 * on[:, None]
    strata = np.zeros(40, dtype=np.int64)
    plain = estimate.randomisation(design.parallel_panel(slots, None, on, strata), 0.05)
    cuped = estimate.randomisation(design.parallel_panel(slots, before, on, strata), 0.05)
    assert cuped.low < 0.05 < cuped.high and cuped.low > 0
    assert cuped.error < plain.error / 10
    # With one stratum, the estimate is the coefficient of a regression.
    fit = sm.OLS(slots.mean(axis=1), np.column_stack([np.ones(40), before, on])).fit()
    assert cuped.effect == pytest.approx(fit.params[2], rel=1e-9)


@pytest.mark.parametrize("hosts,parts", [(8, 1), (12, 2)])
def test_false_rate_with_cuped(hosts: int, parts: int) -> None:
    """Adjusting for the time before adds no false verdicts, not even with few hosts."""
    random = RANDOM(16)
    strata = np.arange(hosts) % parts
    false, sets = 0, 2000
    for seed in range(sets):
        level = random.normal(0, 0.1, (hosts, 1))
        before = (level + random.normal(0, 0.02, (hosts, 1)))[:, 0]
        on = np.zeros(hosts, dtype=np.int64)
        for stratum in np.unique(strata):
            rows = strata == stratum
            on[rows] = estimate.draw_signs(int(rows.sum()), 1, random)[0] > 0
        panel = design.parallel_panel(level + random.normal(0, 0.02, (hosts, 8)), before, on,
                                      strata)
        false += estimate.chance(panel, estimate.redraw(panel, 199, str(seed))) <= verdict.ALPHA
    assert false <= stats.binom.ppf(0.99, sets, verdict.ALPHA)


@pytest.mark.parametrize("hosts,enough", [(4, False), (6, False), (7, True), (8, True)])
def test_parallel_needs_enough_hosts(hosts: int, enough: bool) -> None:
    """A parallel plan needs enough hosts for a p-value below the limit."""
    values = fleet_lab.source("x", switch="vm.hugetlb_pmd_sharing", a=1, design="parallel", b=0,
                              restart="x.service", prometheus="http://127.0.0.1:9")
    # The next step reads the history, from a server that does not answer.
    with pytest.raises(Error, match="cannot be reached" if enough else "in (6|20) ways"):
        planning.make(experiment.parse(values, ""), values, fleet_lab.fleet(hosts), seconds=86400)


def healthy(plan: design.Plan, primary: Array, **changes: Any) -> measured.Data:
    """The data of a healthy fleet with 4 scrapes per slot; second 0 is the start of slot 0."""
    shape = primary.shape
    arm = np.where(plan.assigned == 1, plan.experiment.b, plan.experiment.a).astype(float)
    boot = np.full((shape[0], shape[1] + 1), -1e6)
    seen = np.broadcast_to(plan.experiment.slot * np.arange(shape[1] + 1) - 30.0, boot.shape)
    acting = plan.assigned == (plan.experiment.mechanism.arm == "b")
    data = measured.Data(0, primary, [], acting.astype(float), arm, arm, np.full(shape, 4.0),
                         np.zeros(shape), np.zeros(shape), boot, boot.copy(), seen.copy(),
                         [{"6.12": 0.0} for _ in range(shape[0])])
    return dataclasses.replace(data, **changes)


def until(data: measured.Data, slots: int) -> measured.Data:
    """The first slots only."""
    return dataclasses.replace(data, **{
        name: getattr(data, name)[:, :slots] for name in (
            "primary", "mechanism", "lowest", "highest", "scrapes", "offset", "ooms")} | {
        name: getattr(data, name)[:, :slots + 1] for name in ("first_boot", "last_boot", "seen")},
        guards=[values[:, :slots] for values in data.guards])


def fleet_of(effect: float = 0.0) -> tuple[design.Plan, measured.Data]:
    """A switchback without guards, and its data."""
    plan = fleet_lab.make_plan("events", guard=[])
    random = RANDOM(14)
    shape = (fleet_lab.HOSTS, plan.slots)
    return plan, healthy(plan, np.exp(random.normal(0, 0.02, shape) + effect * plan.assigned))


def goes(data: measured.Data, host: int, second: float) -> None:
    """Silence a host from this second of the experiment on."""
    slot = fleet_lab.SLOT * 60
    first = int(second // slot)
    for name in ("primary", "mechanism", "lowest", "highest", "scrapes", "offset", "ooms"):
        getattr(data, name)[host, first + (second % slot > slot / 2):] = np.nan
    for name in ("first_boot", "last_boot", "seen"):
        getattr(data, name)[host, first + 1 + (second % slot >= 60):] = np.nan
    if second % slot >= 60:
        data.seen[host, first + 1] = second - 30


def fell(judge: verdict.Judge) -> Flags:
    """Where hosts crashed or vanished."""
    found: Flags = judge.happened["reboots"] | judge.happened["vanished"]
    return found


@pytest.mark.parametrize("second", [0, 20, 120, 200, 230])
def test_crash_counts_for_the_arm_it_happened_in(second: int) -> None:
    """A crash counts for the arm of its slot, from the slot's first second on."""
    plan, data = fleet_of()
    slots = []
    for host in range(8):
        slots.append(int(np.flatnonzero(plan.assigned[host, host:])[0]) + host)
        goes(data, host, slots[-1] * fleet_lab.SLOT * 60 + second)
    judge = verdict.Judge(plan, data)
    assert [list(np.flatnonzero(row)) for row in fell(judge)[:8]] == [[slot] for slot in slots]
    assert outcome.count_of(judge.events, "vanished") == {"a": 0, "b": 8}
    assert verdict.judge(plan, data, 499).verdict == "WORSE"


@pytest.mark.parametrize("down,back", [(620, 700), (620, 980), (590, 700), (890, 1000), (0, 400)])
def test_reboot_between_two_slots(down: int, back: int) -> None:
    """A reboot counts for the slot of the crash, also if the host is down across slots."""
    plan, data = fleet_of()
    slot = plan.experiment.slot
    after, crashed = back // slot, down // slot
    data.last_boot[3, after + 1:] = back - 10
    data.first_boot[3, after + 1 + (crashed == after and down % slot >= 60):] = back - 10
    data.seen[3, crashed + 1:after + 1] = np.nan
    if crashed != after:
        data.seen[3, crashed + 1] = max(crashed * slot, down - 30)
        data.last_boot[3, crashed + 1:after + 1] = -1e6
    # The host boots the stock kernel, and its switch has the value of boot.
    data.kernels[3]["6.1"] = float((after + 1) * slot)
    data.lowest[3, after + 1:] = data.highest[3, after + 1:] = 0
    judge = verdict.Judge(plan, data)
    assert list(np.flatnonzero(fell(judge)[3])) == [(down + 30) // slot]
    assert verdict.judge(plan, data, 499).verdict != "INVALID"


def reboots(data: measured.Data, host: int, slot: int) -> None:
    """A host reboots in the middle of a slot; its scrapes go on."""
    data.last_boot[host, slot + 1:] = slot * 300 + 150
    data.first_boot[host, slot + 2:] = slot * 300 + 150


def slots_of(plan: design.Plan, arm: str, count: int) -> list[tuple[int, int]]:
    """Slots of an arm, each of another host."""
    return [(host, 4 + plan.arms[plan.hosts[host].name][4:].index(arm)) for host in range(count)]


@pytest.mark.parametrize("kind,crashes", [("reboots", 1), ("reboots", 6), ("vanished", 1),
                                          ("oom_kills", 1)])
def test_harm_in_b_is_a_veto(kind: str, crashes: int) -> None:
    """One crash or OOM kill in arm b only rules out BETTER, and is named in every report."""
    plan, data = fleet_of(-0.03)
    places = slots_of(plan, "b", crashes)
    for host, slot in places:
        if kind == "reboots":
            reboots(data, host, slot)
        elif kind == "vanished":
            goes(data, host, slot * 300 + 120)
        else:
            data.ooms[host, slot] = 1
    result = verdict.judge(plan, data, 499)
    assert (result.verdict, result.exit_status) == ("INCONCLUSIVE", 20), result.reasons
    assert result.harmful and "without the events in arm b it would be BETTER" in result.reasons
    told = result.to_json()
    assert told["events"][kind] == {"a": 0, "b": crashes}
    assert told["hosts_with_events"] == [
        {"kind": kind, "host": f"host{host:02}", "slot": slot, "arm": "b"}
        for host, slot in places]
    page = report.page(plan, data, result)
    for host, slot in places[:5]:
        name = f"host{host:02} in slot {slot}"
        assert name in result.reasons[0] and name in "\n".join(report.lines(result))
        assert name in page
        # The text of the plot is a comment of the SVG.
        assert f"<!-- host{host:02}: {kind.replace('_', ' ')}, arm b -->" in page


def test_harm_in_a_is_told() -> None:
    """Crashes that arm a has as many of give no veto, and are told."""
    plan, data = fleet_of(-0.03)
    for arm, first in (("a", 0), ("b", 8)):
        for host, slot in slots_of(plan, arm, first + 2)[first:]:
            reboots(data, host, slot)
    result = verdict.judge(plan, data, 499)
    assert result.verdict == "BETTER" and not result.harmful
    assert "reboots: 2 in arm a (host00 in slot" in "\n".join(report.lines(result))
    # One more in arm b.
    reboots(data, *slots_of(plan, "b", 11)[10])
    assert verdict.judge(plan, data, 499).verdict == "INCONCLUSIVE"


def test_guards_do_not_hide_crashes() -> None:
    """The number of guards does not change what crashes it takes for WORSE."""
    metric = {"query": "x[$slot]", "better": "higher", "margin": "2%"}
    _, data = fleet_of()
    for count in (0, 10):
        plan = fleet_lab.make_plan("events", guard=[metric] * count)
        there = dataclasses.replace(data, guards=[data.primary] * count, ooms=data.ooms.copy())
        for crashes, wanted in ((7, "INCONCLUSIVE"), (8, "WORSE")):
            there.ooms[tuple(np.array(slots_of(plan, "b", crashes)).T)] = 1
            assert verdict.judge(plan, there, 499).verdict == wanted


@pytest.mark.parametrize("rate,vetoed", [
    # Each host reboots about once in the time of arm b.
    (1 / 12, False),
    # Nobody does.
    (0.0, True),
    # One does all the time, which does not excuse the others.
    (None, True),
])
def test_normal_reboots_are_no_veto(rate: float | None, vetoed: bool) -> None:
    """Reboots that the days before explain rule out nothing."""
    plan, data = fleet_of(-0.03)
    rates = np.full(len(plan.hosts), rate or 0.0)
    if rate is None:
        rates[15] = 3.0
    for host, slot in slots_of(plan, "b", 3):
        reboots(data, host, slot)
    result = verdict.judge(plan, dataclasses.replace(data, usual={"reboots": rates}), 499)
    assert result.verdict == ("INCONCLUSIVE" if vetoed else "BETTER"), result.reasons
    assert result.count("reboots") == {"a": 0, "b": 3}


def test_vetoes_of_fleets_that_always_reboot() -> None:
    """With the reboots of every day, few experiments have a veto, however often one looks."""
    random, hosts, pairs, fleets = RANDOM(25), 200, 12, 150
    rates, on = np.full(hosts, 0.001), np.full(hosts, pairs)
    vetoed = 0
    for _ in range(fleets):
        in_a, in_b = (np.cumsum(random.poisson(0.001 * hosts, pairs)) for _ in "ab")
        vetoed += any(measured.exceeds((a, b), 0.5, rates, on, True) for a, b in zip(in_a, in_b))
    assert 0 < vetoed <= stats.binom.ppf(0.99, fleets, measured.USUAL_P)


@pytest.mark.parametrize("slot_of_step", [0, 7])
def test_clock_step_is_not_a_crash(slot_of_step: int) -> None:
    """A clock that is set moves the time of boot, which is not a reboot."""
    plan, data = fleet_of(-0.03)
    data.last_boot[3, slot_of_step + 1:] += 45
    data.first_boot[3, slot_of_step + 2:] += 45
    result = verdict.judge(plan, data, 499)
    assert not result.events and result.verdict == "BETTER"


def test_lost_part_of_prometheus_is_not_a_crash() -> None:
    """Hosts of both arms that fall silent together are told apart from crashes."""
    plan, data = fleet_of(-0.03)
    slot = plan.slots - 3
    arms = [name[slot] for name in plan.arms.values()]
    lost = [host for host, arm in enumerate(arms) if arm == "a"][:2] \
        + [host for host, arm in enumerate(arms) if arm == "b"][:4]
    for host in lost:
        goes(data, host, slot * 300 + 60 + host)
    result = verdict.judge(plan, data, 499)
    assert result.count("lost_together") == {"a": 2, "b": 4} and not result.harmful
    assert result.verdict == "BETTER", result.reasons
    # Nearly all are in arm b: that is not a coincidence.
    plan, data = fleet_of(-0.03)
    for host, arm in enumerate(arms):
        if arm == "b":
            goes(data, host, slot * 300 + 60 + host)
    goes(data, arms.index("a"), slot * 300 + 70)
    result = verdict.judge(plan, data, 499)
    assert result.count("vanished") == {"a": 1, "b": 8} and result.harmful


@pytest.mark.parametrize("name,reason", [("last_boot", "reboots cannot be seen in 25%"),
                                         ("ooms", "OOM kills cannot be seen in 25%")])
def test_no_observation_is_no_pass(name: str, reason: str) -> None:
    """An experiment in which crashes cannot be seen is INVALID."""
    plan, data = fleet_of(-0.03)
    getattr(data, name)[:4] = np.nan
    result = verdict.judge(plan, data, 499)
    assert result.verdict == "INVALID" and reason in result.reasons[0]


def test_prometheus_that_stops_is_not_a_crash() -> None:
    """Hosts without a scrape in Prometheus' last slot have not crashed."""
    plan, data = fleet_of()
    for host in range(fleet_lab.HOSTS):
        goes(data, host, 20 * 300 + (20 if host % 2 else 200))
    assert not fell(verdict.Judge(plan, data)).any()


def test_all_hosts_crash() -> None:
    """A fleet in which each host dies in its first slot of arm b gets WORSE."""
    plan, data = fleet_of()
    for host, arms in enumerate(plan.assigned):
        goes(data, host, 300 * int(np.flatnonzero(arms)[0]) + 20)
    # Prometheus still runs.
    data.seen[0, 1:] = 300.0 * np.arange(plan.slots) + 270
    result = verdict.judge(plan, data, 499)
    assert result.verdict == "WORSE" and "crashes" in result.reasons[0], result


def test_no_contrast_gives_no_verdict() -> None:
    """Too few pairs with both arms, or a constant metric, make an experiment INVALID."""
    plan, data = fleet_of()
    boot = data.last_boot.copy()
    boot[:, 3:] = 700
    few = dataclasses.replace(data, last_boot=boot, first_boot=boot)
    result = verdict.judge(plan, few, 499)
    assert result.verdict == "INVALID", result
    still = dataclasses.replace(data, primary=np.full(data.primary.shape, 0.25))
    result = verdict.judge(plan, still, 499)
    assert result.verdict == "INVALID" and "never changes" in result.reasons[0], result


def test_arms_of_all_hosts_are_checked() -> None:
    """A switch that is known on a few hosts only makes the experiment INVALID."""
    plan, data = fleet_of()
    data.lowest[4:] = data.highest[4:] = np.nan
    result = verdict.judge(plan, data, 499)
    assert result.verdict == "INVALID" and "cannot be checked in 75%" in result.reasons[0]


@pytest.mark.parametrize("missing", ["primary", "mechanism", "lowest", "offset", "ooms"])
def test_missing_hosts_are_no_missing_values(missing: str) -> None:
    """Hosts that were missing at the start use up nothing of the 20 % that may be missing."""
    plan, data = fleet_of(-0.02)
    out = [host.name for host in plan.hosts[:3]]
    # Of the 13 hosts that are there, 15 % of the values.
    getattr(data, missing)[3:5] = np.nan
    data.kernels[3], data.kernels[4] = {}, {}
    left = run.leave_out(plan, data, frozenset(out))
    found = verdict.judge(plan, left)
    assert (found.verdict, found.vetoes) == ("BETTER", []), found.reasons
    # With a third host it is too much.
    getattr(data, missing)[5] = np.nan
    assert verdict.judge(plan, run.leave_out(plan, data, frozenset(out))).verdict == "INVALID"


def test_missing_hosts_excuse_no_crash() -> None:
    """The reboots of the days before that are those of missing hosts are not expected."""
    plan, data = fleet_of()
    reboots(data, *slots_of(plan, "b", 1)[0])
    host = slots_of(plan, "b", 1)[0][0]
    rates = np.zeros(len(plan.hosts))
    rates[(host + 1) % len(plan.hosts)] = 1.0
    data.usual["reboots"] = rates
    assert not verdict.judge(plan, data).vetoes
    out = frozenset([plan.hosts[(host + 1) % len(plan.hosts)].name])
    assert verdict.judge(plan, run.leave_out(plan, data, out)).vetoes


def test_clocks_and_kernels_of_all_hosts_are_checked() -> None:
    """Clocks and kernels that are known on a few hosts only make the experiment INVALID."""
    plan, data = fleet_of()
    offset = data.offset.copy()
    offset[12:] = np.nan
    result = verdict.judge(plan, dataclasses.replace(data, offset=offset), 499)
    assert result.verdict == "INVALID"
    assert result.reasons == ["clocks cannot be checked in 25% of the slots, of which 20% may be: "
                              "node_time_seconds is missing on some hosts"]
    kernels = [*data.kernels[:12], {}, {}, {}, {}]
    result = verdict.judge(plan, dataclasses.replace(data, kernels=kernels), 499)
    assert result.verdict == "INVALID"
    assert "kernels of 4 of 16 hosts cannot be checked, such as host12" in result.reasons[0]


def guarded(effects: list[float]) -> outcome.Result:
    """A look after as many pairs, with these effects on the throughput."""
    plan = fleet_lab.make_plan("events")
    _, data = fleet_of()
    per_slot = np.repeat(effects, 2)
    slots = len(per_slot)
    noise_of_slots = RANDOM(17).normal(0, 0.002, (fleet_lab.HOSTS, slots))
    guard = np.exp(noise_of_slots + per_slot * plan.assigned[:, :slots])
    return verdict.judge(plan, dataclasses.replace(until(data, slots), guards=[guard]), 499)


def test_guard_stops_early_for_harm_only() -> None:
    """A guard ends an experiment on harm, not on gain, not even with one bad pair."""
    result = guarded([-0.08] * 8)
    assert not result.final and result.verdict == "WORSE", result
    assert result.reasons[0].startswith("guard failed: throughput: -7.")
    for effects in ([0.1] * 8, [0.1] * 8 + [-1.5]):
        result = guarded(effects)
        assert result.verdict != "WORSE" and result.guards[0].state != "failed", result
    assert result.guards[0].effect < math.log(0.98)


def with_guard(kind: str = "ratio", **guard: Any) -> tuple[design.Plan, measured.Data]:
    """A switchback that is BETTER, with a guard that has the primary's noise."""
    metric = {"query": "x[$slot]", "better": "lower", "margin": "2%", "name": "guarded",
              "kind": kind} | guard
    plan = fleet_lab.make_plan("events", guard=[metric])
    _, data = fleet_of(-0.03)
    values = np.exp(RANDOM(18).normal(0, 0.02, data.primary.shape))
    return plan, dataclasses.replace(data, guards=[values])


@pytest.mark.parametrize("count,wanted,reason", [
    (36, "INVALID", "36 of 36 missing values of guard 'guarded' are those of arm b"),
    (6, "INCONCLUSIVE", "guard open: guarded: 6 of 6 missing values are those of arm b")])
def test_guard_that_loses_values_in_b(count: int, wanted: str, reason: str) -> None:
    """A guard does not pass if it loses values in arm b only."""
    plan, data = with_guard()
    for arm, told, why in ((1, wanted, reason), (0, "BETTER", "excludes no effect")):
        # Then as many in arm a, too: they are lost for another reason.
        places = np.argwhere(plan.assigned == arm)
        data.guards[0][tuple(places[::len(places) // count][:count].T)] = np.nan
        result = verdict.judge(plan, data, 499)
        assert result.verdict == told and why in "".join(result.reasons), result.reasons
        assert (result.guards[0].state == "passed") == (arm == 0)


@pytest.mark.parametrize("zeros,wanted,reason", [
    (0.05, "INCONCLUSIVE", 'and 0 has no ratio: write kind = "count"'),
    (0.5, "INVALID", 'of the slots, and 0 has no ratio: write kind = "count"')])
def test_guard_with_zeros_is_a_count(zeros: float, wanted: str, reason: str) -> None:
    """A ratio guard that is 0 at times says that it has to be a count."""
    plan, data = with_guard()
    data.guards[0][RANDOM(21).random(data.primary.shape) < zeros] = 0
    result = verdict.judge(plan, data, 499)
    assert result.verdict == wanted and reason in "".join(result.reasons), result.reasons


def test_guard_that_never_changes_is_open() -> None:
    """A guard that always has the same value does not pass."""
    plan, data = with_guard()
    result = verdict.judge(plan, dataclasses.replace(data, guards=[data.primary * 0 + 7]), 499)
    assert result.verdict == "INCONCLUSIVE" and "it never changes" in result.guards[0].why


def test_open_guard_is_no_success() -> None:
    """A guard that does not exclude the accepted harm makes BETTER and EQUIVALENT inconclusive."""
    for effect, would in ((-0.03, "BETTER"), (0.0, "EQUIVALENT")):
        plan, data = with_guard(margin="0.01%")
        _, same = fleet_of(effect)
        data = dataclasses.replace(data, primary=same.primary ** (1 if effect else 0.1))
        result = verdict.judge(plan, data, 499)
        assert (result.verdict, result.exit_status) == ("INCONCLUSIVE", 20), result
        assert result.reasons[0] == f"it would be {would}, but:"
        assert "guard open: guarded: " in result.reasons[1]


@pytest.mark.parametrize("in_a,in_b,margin,state", [
    # Normally 0, and 0 here.
    (0.0, 0.0, 0.1, "passed"),
    # 192 slots without an error do not exclude three in as many.
    (0.0, 0.0, 0.01, "open"),
    (0.0, 0.3, 0.05, "failed"),
    (1.8, 2.6, 0.05, "failed"),
    (1.8, 1.8, 1.0, "passed"),
    (0.5, 0.0, 0.1, "passed"),
])
def test_guards_of_counts(in_a: float, in_b: float, margin: float, state: str) -> None:
    """A guard may count errors, of which there are normally none."""
    plan, data = with_guard("count", margin=margin)
    errors = RANDOM(22).poisson(np.where(plan.assigned == 1, in_b, in_a)).astype(float)
    result = verdict.judge(plan, dataclasses.replace(data, guards=[errors]), 499)
    guard, = result.guards
    assert guard.state == state, guard
    assert guard.effect == pytest.approx(errors[plan.assigned == 1].mean()
                                         - errors[plan.assigned == 0].mean())
    wanted = {"passed": "BETTER", "open": "INCONCLUSIVE", "failed": "WORSE"}[state]
    assert result.verdict == wanted
    assert "guard guarded: " in (text := "\n".join(report.lines(result)))
    assert f"per host and slot, {state}" in text
    # Known in no slot: that is not 0 errors.
    none = dataclasses.replace(data, guards=[errors * np.nan])
    assert verdict.judge(plan, none, 499).verdict == "INVALID"


def test_guards_of_counts_keep_their_level() -> None:
    """Errors that come in bursts fail a guard in few fleets, with a look after every pair."""
    plan, data = with_guard("count", margin=0.001)
    random, false = RANDOM(23), 0
    for _ in range(25):
        shape = data.primary.shape
        bursts = random.poisson(0.05, shape) * random.geometric(0.1, shape)
        there = dataclasses.replace(data, guards=[bursts.astype(float)])
        false += any(verdict.Judge(plan, until(there, slots), 199).guards()[0].state == "failed"
                     for slots in range(4, plan.slots + 1, 2))
    assert false <= stats.binom.ppf(0.999, 25, verdict.GUARD_ALPHA)


@pytest.mark.parametrize("in_a,in_b,wanted,reason", [
    (0, 5, "BETTER", ""),
    (5, 0, "NOT EXERCISED", "was at 0 in arm b"),
    (5, 5, "NOT EXERCISED", "is not higher in arm b: 5 in arm a, 5 in arm b"),
    (9, 5, "NOT EXERCISED", "is not higher in arm b: 9 in arm a, 5 in arm b"),
])
def test_mechanism_moves_in_b(in_a: float, in_b: float, wanted: str, reason: str) -> None:
    """The mechanism has to move in arm b, and more than in arm a."""
    plan, data = fleet_of(-0.03)
    values = np.where(plan.assigned == 1, in_b, in_a).astype(float)
    result = verdict.judge(plan, dataclasses.replace(data, mechanism=values), 499)
    assert result.verdict == wanted and reason in result.reasons[0], result.reasons
    # Harm is told, whatever the counter says.
    plan, data = fleet_of(0.03)
    result = verdict.judge(plan, dataclasses.replace(data, mechanism=values), 499)
    assert result.verdict == "WORSE"
    # Without values on many hosts, nobody knows.
    values[:4] = np.nan
    result = verdict.judge(plan, dataclasses.replace(data, mechanism=values), 499)
    assert result.verdict == "INVALID" and "25% of the values of the mech" in result.reasons[0]


def test_mechanism_of_a_switch_that_b_turns_off() -> None:
    """If b is the stock value, the mechanism moves in arm a."""
    values = fleet_lab.source("x", a=1, b=0)
    assert experiment.parse(values, "").mechanism.arm == "a"
    values["mechanism"]["arm"] = "b"
    assert experiment.parse(values, "").mechanism.arm == "b"


def test_day_is_covered_unless_told_otherwise() -> None:
    """Without duration and min_duration, a plan lasts a day; duration must not contradict it."""
    values = fleet_lab.source("x", expires="48h")
    assert experiment.parse(values, "").duration == 7200
    with pytest.raises(Error, match="duration: is shorter than min_duration"):
        experiment.parse(values | {"min_duration": "3h"}, "")
    del values["duration"]
    assert experiment.parse(values, "").min_duration == 86400


@pytest.mark.parametrize("changes,problem", [
    ({"kind": "counts"}, "guard 1: kind: is 'counts', and can be ratio or count"),
    ({"kind": "count"}, "guard 1: margin: must be a number"),
    ({"kind": "count", "margin": 0}, "guard 1: margin: must be above 0"),
])
def test_guards_of_the_file(changes: dict[str, Any], problem: str) -> None:
    """Wrong keys of a guard give an error that names them."""
    values = fleet_lab.source("x")
    values["guard"][0] |= changes
    with pytest.raises(Error, match=problem):
        experiment.parse(values, "")
    values["primary"] |= {"kind": "count"}
    with pytest.raises(Error, match="unknown key 'kind'"):
        experiment.parse(values | {"guard": []}, "")


# --- Whole strata

def in_clusters(count: int, load: float = 0.0) -> tuple[design.Plan, measured.Data]:
    """Clusters of four hosts that alternate as a whole; each shares a noise of its own.

    Within a cluster, a load balancer gives hosts in arm b this much more work.
    """
    plan = fleet_lab.make_plan("clusters", guard=[], unit="stratum", strata=["cluster"])
    hosts = fleet_lab.fleet(4 * count)
    strata = {f"c{number}": [host.name for host in hosts[4 * number:4 * number + 4]]
              for number in range(count)}
    plan = dataclasses.replace(
        plan, hosts=hosts, strata={name: key for key, names in strata.items() for name in names},
        arms=design.schedule("clusters", strata, plan.slots, "switchback", "stratum"))
    random = RANDOM(24)
    shape = (4 * count, plan.slots)
    logs = np.repeat(random.normal(0, 0.01, (count, plan.slots)), 4, axis=0) \
        + random.normal(0, 0.01, shape)
    on = plan.assigned.reshape(count, 4, plan.slots)
    balanced = (on - on.mean(axis=1, keepdims=True)).reshape(shape)
    return plan, healthy(plan, np.exp(logs - 0.03 * plan.assigned + load * balanced))


def test_whole_strata_alternate() -> None:
    """With unit = "stratum" all hosts of a stratum have one arm, and are one unit."""
    plan, data = in_clusters(6)
    for names in ([host.name for host in plan.hosts[first:first + 4]] for first in range(0, 24, 4)):
        assert len({plan.arms[name] for name in names}) == 1
    assert all(row.sum() == 12 for row in plan.assigned.T)
    result = verdict.judge(plan, data, 499)
    assert result.verdict == "BETTER" and result.estimate, result.reasons
    assert result.estimate.low < -0.03 < result.estimate.high
    # Load that moves between the hosts of a cluster cannot be mistaken for an effect.
    moved = verdict.judge(*in_clusters(6, load=0.5), 499)
    assert moved.estimate and moved.estimate.effect == pytest.approx(result.estimate.effect)


def test_power_cut_of_a_stratum_is_one_event() -> None:
    """Four hosts of one stratum that vanish together are not four crashes."""
    plan, data = in_clusters(6)
    slot = plan.arms["host00"].index("b", 4)
    for host in range(4):
        goes(data, host, slot * 300 + 120)
    judge = verdict.Judge(plan, data)
    assert judge.by_unit(judge.happened["vanished"]) == (1, 1)
    assert verdict.judge(plan, data, 499).verdict == "INCONCLUSIVE"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", ["host", "stratum"])
@pytest.mark.parametrize("kind", ["ratio", "count"])
def test_any_values_give_a_verdict(unit: str, kind: str) -> None:
    """Values that are missing, enormous or 0 give a verdict and reasons, without a warning."""
    plan, good = in_clusters(5)
    guard = experiment.Metric("x[$slot]", "lower", 0.1, "g", kind)
    plan = dataclasses.replace(plan, experiment=dataclasses.replace(
        plan.experiment, unit=unit, guards=(guard,)))
    random = RANDOM(27)

    def holed(values: Array) -> Array:
        share = random.choice([0, 0, 0.1, 0.5, 1])
        return np.where(random.random(values.shape) < share, np.nan, values)

    told = set()
    for number in range(12):
        data = dataclasses.replace(good, guards=[holed(10.0 ** random.choice(
            [-100, 0, 100], good.primary.shape) * random.poisson(1, good.primary.shape))])
        for host, slot in random.integers(0, 20, (2, 2)):
            reboots(data, host, slot)
            goes(data, host + 1 - 2 * (host % 2), slot * 300 + 60.0)
        if number % 3:
            data = dataclasses.replace(data, **{
                field.name: holed(getattr(data, field.name)) for field in dataclasses.fields(data)
                if isinstance(getattr(data, field.name), np.ndarray)})
        for slots in (1, 3, plan.slots):
            result = verdict.judge(plan, until(data, slots), 99)
            assert result.reasons and json.dumps(result.to_json(), allow_nan=False)
            assert all(report.lines(result))
            told.add(result.verdict)
    assert {"INVALID", "INCONCLUSIVE"} <= told


def test_whole_strata_have_to_be_four() -> None:
    """Fewer than four strata cannot alternate as a whole."""
    hosts = [dataclasses.replace(host, facts={"rack": str(number % 3)})
             for number, host in enumerate(fleet_lab.fleet(12))]
    with pytest.raises(Error, match="unit: there are 3 of at least 4 strata"):
        design.by_stratum(hosts, ["rack"], "stratum")
    # One host is enough for a stratum then.
    hosts = [dataclasses.replace(host, facts={"rack": host.name}) for host in hosts]
    assert len(design.by_stratum(hosts, ["rack"], "stratum")) == 12


@pytest.mark.parametrize("arm,wanted", [(1, "WORSE"), (0, "EQUIVALENT")])
def test_oom_kills(arm: int, wanted: str) -> None:
    """OOM kills in arm b are harm; those in arm a are not."""
    plan, data = fleet_of()
    data = dataclasses.replace(data, primary=np.exp(np.log(data.primary) / 10))
    places = np.argwhere(plan.assigned == arm)[::16][:12]
    data.ooms[tuple(places.T)] = 1
    result = verdict.judge(plan, data, 499)
    assert result.verdict == wanted, result
    assert result.count("oom_kills") == {"ab"[arm]: 12, "ab"[1 - arm]: 0}
    assert arm == 0 or "OOM kills: 12 in arm b, 0 in arm a" in "".join(result.reasons)


def test_looks_at_crashes_are_valid() -> None:
    """Events of arms that do not differ give WORSE in few of 4000 fleets, with all looks."""
    events = 30
    hits = np.cumsum(RANDOM(15).random((4000, events)) < 0.5, axis=1)

    def worse(total: int, final: bool) -> Array:
        limit = verdict.EVENT_ALPHA - verdict.EVENT_LOOKS if final else verdict.EVENT_LOOKS
        return np.array([verdict.event_chances([(total - in_b, in_b)], 0.5, final)[0] <= limit
                         for in_b in range(total + 1)])

    ever = worse(events, True)[hits[:, -1]]
    for total in range(1, events + 1):
        ever |= worse(total, False)[hits[:, total - 1]]
    assert 0 < ever.mean() <= verdict.EVENT_ALPHA
    # Two families share the budget.
    assert verdict.event_chances([(0, 8), (0, 0)], 0.5, True)[0] == 2 ** -7


@pytest.mark.parametrize("effect,wanted", [(-0.05, "BETTER"), (0.05, "WORSE")])
def test_parallel_verdict(effect: float, wanted: str) -> None:
    """A parallel experiment is judged at its end only, with the time before."""
    plan = fleet_lab.make_plan("parallel", switch="vm.hugetlb_pmd_sharing", a=1, b=0, guard=[],
                               design="parallel", restart="x.service")
    random = RANDOM(13)
    shape = (fleet_lab.HOSTS, plan.slots)
    level = random.normal(0, 0.1, (fleet_lab.HOSTS, 1))
    primary = np.exp(level + random.normal(0, 0.01, shape) + effect * plan.assigned)
    arm = np.where(plan.assigned == 1, 0.0, 1.0)
    data = healthy(plan, primary, before=level[:, 0], lowest=arm, highest=arm)
    result = verdict.judge(plan, data, 499)
    assert result.verdict == wanted, result.reasons
    assert result.estimate and result.estimate.low < effect < result.estimate.high
    assert verdict.judge(plan, until(data, 4), 499).verdict == "INCONCLUSIVE"
    # Without the time before, hosts differ too much, and a longer run does not help.
    result = verdict.judge(plan, dataclasses.replace(data, before=None), 499)
    assert result.verdict == "INCONCLUSIVE" and "times as many hosts" in result.reasons[0]


def test_holm_against_statsmodels() -> None:
    """Corrected p-values are those of statsmodels."""
    chances = [0.01, 0.04, 0.03, 0.5, 0.002]
    wanted = statsmodels.stats.multitest.multipletests(chances, method="holm")[1]
    assert estimate.holm(chances) == pytest.approx(list(wanted))


def test_page_has_the_cross_check() -> None:
    """The page has the t-test on hosts, whose effect is nearly that of the verdict."""
    plan, data = fleet_of(-0.03)
    result = verdict.judge(plan, data, 499)
    assert result.estimate and result.clustered
    assert result.clustered[0] == pytest.approx(result.estimate.effect, abs=1e-3)
    text = report.page(plan, data, result)
    assert f"t-test on the means of hosts: {report.percent(result.clustered[0])}, " in text


NO_NAME = "rate(x_y_z[$slot]) / rate(y_z_x[$slot])"


def test_query_is_not_a_formula() -> None:
    """A query without a name and with two $slot is printed in the plot unchanged."""
    metric = {"query": NO_NAME, "better": "lower", "margin": "5%"}
    plan, data = fleet_of()
    plan = fleet_lab.make_plan("events", primary=metric, guard=[metric])
    data = dataclasses.replace(data, guards=[data.primary])
    text = report.page(plan, data, verdict.judge(plan, data, 499))
    # In the title of the arms, and beside the guard.
    assert text.count(f"<!-- {NO_NAME[:40]}") == 2


# --- The e-process

def bayes_factor(values: list[float], g: float) -> float:
    """The e-value by integration over mean and standard deviation."""
    x = np.array(values)

    def log_likelihood(mean: float, sd: float) -> float:
        return float(-len(x) * math.log(sd) - ((x - mean) ** 2).sum() / (2 * sd * sd))

    def inner(log_sd: float) -> float:
        sd = math.exp(log_sd)
        root = sd * math.sqrt(g)
        return float(integrate.quad(
            lambda mean: math.exp(log_likelihood(mean, sd)) * stats.norm.pdf(mean, 0, root),
            -8 * root - 3, 8 * root + 3, points=[float(x.mean())], limit=400)[0])

    above = integrate.quad(inner, -4, 5, limit=200)[0]
    below = integrate.quad(lambda log_sd: math.exp(log_likelihood(0, math.exp(log_sd))), -4, 5,
                           limit=200)[0]
    return float(above / below)


def test_e_process_against_its_integral() -> None:
    """The closed form is the ratio of the two integrals."""
    values = [0.8, 1.4, -0.2, 1.1]
    closed = math.exp(sequential.log_e(np.array(values))[-1])
    assert closed == pytest.approx(bayes_factor(values, sequential.G), rel=1e-3)


def test_e_process_has_no_unit() -> None:
    """The e-value does not depend on the unit; gaps and a single value are not evidence."""
    values = RANDOM(9).normal(1, 1, 20)
    first = sequential.log_e(values)
    assert first[0] == pytest.approx(0)
    assert sequential.log_e(values * 1e-4) == pytest.approx(first)
    gaps = np.insert(values, 5, np.nan)
    assert sequential.log_e(gaps)[-1] == pytest.approx(first[-1])


def test_confidence_sequence_is_the_inverse() -> None:
    """The e-value at each end of the confidence sequence is 1/alpha."""
    values = RANDOM(10).normal(0.5, 1, 15)
    low, high = sequential.confidence_sequence(values, 0.01)
    assert math.isinf(high[1]) and math.isfinite(high[-1])
    for end in (low[-1], high[-1]):
        assert sequential.log_e(values - end)[-1] == pytest.approx(math.log(100), rel=1e-6)


def test_e_process_is_valid_at_every_look() -> None:
    """At most alpha of 4000 series without an effect ever reach 1/alpha."""
    values = RANDOM(11).normal(0, 1, (4000, 60))
    for alpha in (0.05, 0.01):
        ever = (sequential.log_e(values) >= -math.log(alpha)).any(axis=1).mean()
        assert ever <= alpha + 3 * math.sqrt(alpha / 4000)


def test_noise_is_as_stated() -> None:
    """The simulated noise has the standard deviation and memory that it states."""
    model = noise.Noise(host=0, drift=0)
    values = model.draw(200, 500, RANDOM(12))
    assert values.std() == pytest.approx(0.04, rel=0.02)
    assert np.corrcoef(values[:, 1:].ravel(), values[:, :-1].ravel())[0, 1] == \
        pytest.approx(0.6, abs=0.02)


# --- Values for new mappings

def test_values_for_new_mappings_do_not_alternate() -> None:
    """A switchback may alternate sharing of page tables between 1 and 2, but not with 0."""
    assert not switches.acts_at_once("vm.hugetlb_pmd_sharing", 0, 1)
    assert not switches.acts_at_once("vm.hugetlb_pmd_sharing", 2, 0)
    assert switches.acts_at_once("vm.hugetlb_pmd_sharing", 1, 2)
    for name in set(switches.switches()) - {"vm.hugetlb_pmd_sharing"}:
        assert switches.acts_at_once(name, 0, 1)
    values = fleet_lab.source("x", switch="vm.hugetlb_pmd_sharing")
    with pytest.raises(Exception, match="acts on new mappings only, so a host cannot"):
        experiment.parse(values, "")
    values |= {"design": "parallel"}
    with pytest.raises(Exception, match="restart: is missing"):
        experiment.parse(values, "")
    assert experiment.parse(values | {"restart": "postgresql.service"}, "").design == "parallel"
