# SPDX-License-Identifier: GPL-2.0-only
"""faultline-rollout: Prometheus' answers, and histories that are refused."""
from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from rollout import fleet_lab
from rollout.prometheus_lab import answer_of, serving

from faultline_rollout import Error, checks, experiment, measured, planning, verdict
from faultline_rollout.design import Plan
from faultline_rollout.prometheus import Prometheus
from faultline_rollout.types import Array

HOSTS = fleet_lab.fleet(8)
SLOTS = 288


def series_of(host: str, *texts: str) -> dict[str, object]:
    """The series of a host, one value a minute."""
    return {"metric": {"instance": f"{host}:9100"},
            "values": [[60 * number, text] for number, text in enumerate(texts)]}


@pytest.mark.parametrize("text", [
    b"<html>Sign in</html>", b"", b"[]", b"null", b'{"status": "success"}', b'{"data": []}',
    b'{"data": {"result": {}}}', b'\xff\xfe', answer_of([{"values": [[0, "1"]]}]),
    answer_of([{"metric": {}, "values": []}]), answer_of([{"metric": {}, "values": [[0]]}]),
    answer_of([series_of("host00", "many")]), answer_of([0, "1"])])
def test_no_prometheus(text: bytes) -> None:
    """An answer from another server, such as a proxy's page, gives one clear error."""
    with serving(lambda _: (200, text)) as url, pytest.raises(Error) as caught:
        Prometheus(url).table("latency", HOSTS, 0, 2, 60)
    assert "does not answer like Prometheus: check the key prometheus" in str(caught.value)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_answers_after_a_while(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server is asked up to three times."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    good = answer_of([series_of("host00", "1", "2")])
    with serving(lambda number: (503, b"") if number < failures else (200, good)) as url:
        if failures < 3:
            assert Prometheus(url).table("latency", HOSTS, 0, 2, 60)[0].tolist() == [1, 2]
            return
        with pytest.raises(Error) as caught:
            Prometheus(url).table("latency", HOSTS, 0, 2, 60)
    assert "cannot be reached (HTTP status 503): start it, or correct" in str(caught.value)


@pytest.mark.parametrize("moments", [[30, 90], [0, 60, 120, 180], [-60, 0], [0, "NaN"]])
def test_moments_that_were_not_asked_for(moments: list[object]) -> None:
    """A proxy that aligns ranges to the step, which mixes the arms, gives an error."""
    moved = answer_of([{"metric": {"instance": "host00:9100"},
                        "values": [[moment, "1"] for moment in moments]}])
    with serving(lambda _: (200, moved)) as url, pytest.raises(Error) as caught:
        Prometheus(url).table("latency", HOSTS, 0, 3, 60)
    assert "answers for other moments than it is asked for" in str(caught.value)


def test_values_that_are_not_numbers() -> None:
    """NaN and Inf count as missing values; so do all values of an unknown host."""
    good = answer_of([series_of("host00", "1", "NaN", "+Inf"), series_of("other", "1", "1", "1")])
    with serving(lambda _: (200, good)) as url:
        found = Prometheus(url).table("latency", HOSTS, 0, 3, 60)
    assert found[0, 0] == 1 and np.isnan(found).sum() == 3 * len(HOSTS) - 1


@pytest.mark.parametrize("last, back, boot, arms, harm", [
    (399, 450, 430, "ab", True),
    (299, 450, 430, "ab", True),
    # The scrape of 289 was the last one in arm a.
    (289, 350, 330, "ab", False),
    (289, 350, 330, "ba", True),
    # Without a gap: Prometheus repeats the last value for a while after the crash.
    (349, 350, 295, "ab", False),
    (349, 350, 295, "ba", True),
    # A step of the clock is not a reboot, whether small or large.
    (399, 400, -20, "ab", False),
    (399, 400, 25, "ab", False),
    (399, 601, 430, "ab", False)])
def test_recent_crash(last: int, back: int, boot: int, arms: str, harm: bool) -> None:
    """A crash in arm b is found once the host is back, from the start of the plan on."""
    start = fleet_lab.START
    plan = fleet_lab.make_plan("recent")
    host = next(name for name, row in plan.arms.items() if row.startswith(arms))
    values = [[start + moment, str(start + (-40 if moment <= last else boot))]
              for moment in range(200, 501) if moment <= last or moment >= back]
    series = {"metric": {"instance": f"{host}:9100"}, "values": values}
    # Reboots in the days before are asked for after that: there were none.
    with serving(lambda number: (200, answer_of([] if number else [series]))) as url:
        there = dataclasses.replace(plan, experiment=dataclasses.replace(plan.experiment,
                                                                         prometheus=url))
        assert measured.crashed_in_b(there, start, start + 500) == ([host] if harm else [])
        assert not measured.crashed_in_b(there, start + 1000, start + 999)


def history(seed: int = 1) -> Array:
    """A day of a steady metric: hosts x slots."""
    values: Array = np.random.default_rng(seed).normal(0, 0.01, (len(HOSTS), SLOTS))
    return 1 + values


def make(values: Array, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Make a plan from a history."""
    monkeypatch.setattr(Prometheus, "table", lambda *_: values.copy())
    monkeypatch.setattr(Prometheus, "texts", lambda *_: [{"6.12": 0.0} for _ in HOSTS])
    source = fleet_lab.source("history")
    return planning.make(experiment.parse(source, ""), source, HOSTS, seconds=SLOTS * 300,
                         end=fleet_lab.START, seed="1")[0]


@pytest.mark.parametrize("lost,enough", [(checks.MAX_LOST - 0.01, True),
                                         (checks.MAX_LOST + 0.01, False)])
def test_metric_that_is_often_zero(lost: float, enough: bool,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros have no logarithm: a plan may lose a few slots to them, but not many."""
    values = history()
    values[3, :int(lost * SLOTS)] = 0
    if enough:
        assert make(values, monkeypatch).notes["false_rate"] <= 0.1
        return
    with pytest.raises(Error) as caught:
        make(values, monkeypatch)
    assert "too few values above 0 for host03, in the last 24 h: leave these" in str(caught.value)


def test_metric_that_never_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant would have no noise, so each plan would seem to detect everything."""
    values = np.repeat(history()[:, :1], SLOTS, axis=1)
    with pytest.raises(Error, match="the primary metric never changes on any host: look at"):
        make(values, monkeypatch)


def test_short_history() -> None:
    """A history without a whole slot is refused before Prometheus is asked."""
    source = fleet_lab.source("history", prometheus="http://127.0.0.1:9")
    with pytest.raises(Error, match="--history 4 min is shorter than a slot"):
        planning.make(experiment.parse(source, ""), source, HOSTS, seconds=240)


@pytest.mark.parametrize("rate,planned", [(2 * verdict.ALPHA, True),
                                          (2 * verdict.ALPHA + 0.01, False)])
def test_false_verdicts_in_a_replay(rate: float, planned: bool,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric with more than twice the allowed false verdicts in replays is refused."""
    monkeypatch.setattr(planning.Replay, "false_rate", lambda *_: rate)
    if planned:
        assert make(history(), monkeypatch).notes["false_rate"] == rate
        return
    with pytest.raises(Error) as caught:
        make(history(), monkeypatch)
    assert f"in {rate:.0%} of" in str(caught.value)
    assert f"{2 * verdict.ALPHA:.0%} may have one" in str(caught.value)


def test_plan_of_whole_strata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for clusters expects the noise of clusters, of which half are in each arm."""
    hosts = [dataclasses.replace(host, facts={"cluster": f"c{number // 2}"})
             for number, host in enumerate(HOSTS)]
    shared = np.repeat(np.random.default_rng(2).normal(0, 0.02, (len(HOSTS) // 2, SLOTS)), 2, 0)
    values = history() + shared
    monkeypatch.setattr(Prometheus, "table", lambda *_: values.copy())
    monkeypatch.setattr(planning, "rehearse", lambda *_: None)
    source = fleet_lab.source("history", unit="stratum", strata=["cluster"])
    floors = {}
    for unit in ("stratum", "host"):
        text = source if unit == "stratum" else source | {"unit": "host", "strata": []}
        plan, tried = planning.make(experiment.parse(text, ""), text, hosts, seconds=SLOTS * 300,
                                    end=fleet_lab.START, seed="1")
        floors[unit] = tried[-1].floor
        if unit == "stratum":
            assert all(plan.arms[first.name] == plan.arms[second.name]
                       for first, second in zip(hosts[::2], hosts[1::2]))
            assert (plan.assigned.sum(axis=0) == len(HOSTS) // 2).all()
    assert 1.2 < floors["stratum"] / floors["host"] < 1.7
    # Four clusters are enough to alternate, and too few for arms that stay.
    with pytest.raises(Error, match="in 6 ways"):
        planning.make(experiment.parse(source | {"design": "parallel"}, ""), source, hosts,
                      seconds=SLOTS * 300)


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "svg"])
def test_name_of_a_plot(name: str, tmp_path: pathlib.Path) -> None:
    """A plot is SVG or PNG; any other name is refused before Prometheus is asked."""
    plan = tmp_path / "plan.json"
    plan.write_text(fleet_lab.make_plan("plot", prometheus="http://127.0.0.1:9").text())
    done = fleet_lab.rollout("verdict", plan, "--plot", tmp_path / name, "--start",
                             fleet_lab.START)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{name}: the name must end in .svg or .png" in done.stderr
