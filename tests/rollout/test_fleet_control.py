# SPDX-License-Identifier: GPL-2.0-only
"""faultline-rollout and large fleets: missing hosts, canaries, blackouts, watching, and stops.

Hosts are rows of a table here, so that thousands of them take no process each.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import errno
import json
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout import fleet_lab
from rollout.prometheus_lab import answer_of, serving

from faultline_rollout import (
    Error, canary, cli, command_start, command_status, config, design, experiment, hosts,
    measured, outcome, planning, run, terminal, watch, windows)
from faultline_rollout.hosts import Answer, Host, Transport
from faultline_rollout.prometheus import Prometheus
from faultline_rollout.types import Array


# Exit statuses after which a watch is over.
ENDS = sorted({*outcome.EXIT.values(), command_status.ASTRAY} - {0})


@dataclasses.dataclass
class Fleet:
    """Hosts that keep a plan, and a program that talks to them."""

    folder: pathlib.Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    plans: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    # Hosts that do not answer; with "start", only when they should start.
    gone: dict[str, str] = dataclasses.field(default_factory=dict)
    commands: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    # Called with each command, before it is run.
    before: Callable[[str, str], None] = lambda name, command: None

    def run(self, host: Host, command: str, stdin: str = "") -> Answer:
        """A host's answer."""
        self.before(host.name, command)
        self.commands.append((host.name, command))
        now = time.time()
        starts = "faultline-ab start" in command and "--dry-run" not in command
        if host.name in self.gone and (starts or self.gone[host.name] != "start"):
            return Answer(host, hosts.UNREACHABLE, "", "ssh: No route to host", now, now)
        out = ""
        if "faultline-ab start" in command:
            out = f"{now:.0f}\n"
            if starts:
                self.plans[host.name] = dict(
                    line.split("=", 1) for line in stdin.splitlines())
        elif "faultline-ab stop" in command:
            self.plans.pop(host.name, None)
        else:
            plan = self.plans.get(host.name)
            out = json.dumps({"experiments": [] if plan is None else [
                {"name": plan["name"], "plan": plan["plan"], "state": "running", "value": 0,
                 "assigned": 0}]})
        return Answer(host, 0, out, "", now, time.time())

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """Run faultline-rollout; returns status, output and errors."""
        return fleet_lab.call(self.capsys, self.monkeypatch, words)

    def plan(self, count: int, **changes: Any) -> pathlib.Path:
        """Write a plan for hosts h0, h1, ..."""
        values = fleet_lab.source("big", **{"prometheus": "http://127.0.0.1:9"} | changes)
        exp = experiment.parse(values, "")
        names = [f"h{number}" for number in range(count)]
        found = design.Plan(
            exp, values, "seed", tuple(Host(name, name, f"{name}:9100", {}) for name in names),
            {name: "all" for name in names},
            design.schedule("seed", {"all": names}, 24, exp.design), {})
        path = self.folder / "big.json"
        design.write(path, found.text())
        return path


@pytest.fixture(name="fleet")
def fixture_fleet(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str],
                  monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """No host yet, and no configuration of this machine."""
    monkeypatch.setenv("FAULTLINE_ROLLOUT_CONFIG", str(tmp_path / "rollout.toml"))
    monkeypatch.setattr(config, "_without", False)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    found = Fleet(tmp_path, capsys, monkeypatch)
    monkeypatch.setattr(Transport, "run", lambda _, *words: found.run(*words))
    return found


def in_prometheus(monkeypatch: pytest.MonkeyPatch, value: float = 1.0) -> None:
    """Prometheus has the same value of everything, and no OOM kills."""
    monkeypatch.setattr(Prometheus, "table", lambda _, query, found, first, count, step: np.full(
        (len(found), count), 0.0 if "oom_kill" in query else value))
    monkeypatch.setattr(Prometheus, "texts", lambda _, query, found, *rest: [
        {"6.12": 0.0} for _ in found])


# --- Large fleets, and hosts that are missing

def test_plan_is_hashed_once(fleet: Fleet) -> None:
    """The sum of a plan for 2000 hosts is computed a few times, not once for each host."""
    path = fleet.plan(2000)
    sums = 0
    original = design._with_sum

    def counted(body: Any) -> str:
        nonlocal sums
        sums += 1
        return original(body)

    fleet.monkeypatch.setattr(design, "_with_sum", counted)
    assert fleet("start", path)[0] == 0 and len(fleet.plans) == 2000 and sums <= 2
    sums = 0
    assert "2000 running" in fleet("status", path)[1] and sums <= 2
    assert fleet("stop", path)[0] == 0 and not fleet.plans


def test_slot_0_is_after_the_check(fleet: Fleet) -> None:
    """The time of the start is taken when all hosts have been checked."""
    clock = [fleet_lab.START + 0.0]

    def slow(_: str, command: str) -> None:
        clock[0] += 30 * ("--dry-run" in command)

    fleet.before = slow
    for module in (command_start, run):
        fleet.monkeypatch.setattr(module, "time", type("Clock", (), {
            "time": lambda: clock[0], "monotonic": lambda: clock[0], "sleep": lambda _: None}))
    fleet.monkeypatch.setattr(command_start, "CLOCK_SECONDS", 1e12)
    assert fleet("start", fleet.plan(16))[0] == 0
    check = 16 * 30
    assert int(fleet.plans["h0"]["start"]) >= fleet_lab.START + 3 * check


def test_missing_hosts(fleet: Fleet) -> None:
    """A start does without hosts that cannot be reached, up to the share that was declared."""
    path = fleet.plan(16)
    fleet.gone = {"h3": "always"}
    status, _, errors = fleet("start", path)
    assert status == 2 and "h3: cannot be reached" in errors and "--allow-missing 2%" in errors
    assert not fleet.plans and not run.run_path(path).exists()
    status, _, errors = fleet("start", path, "--allow-missing", "6%")
    assert status == 2 and "1 hosts are missing, and --allow-missing is 6.0%" in errors
    status, out, errors = fleet("start", path, "--allow-missing", "7%")
    assert status == 0 and "without h3: cannot be reached" in out and len(fleet.plans) == 15, errors
    assert run.absent(path) == {"h3"}
    assert "h3: was missing at the start" in fleet("status", path)[1]
    status, out, _ = fleet("stop", path)
    assert status == 0 and "stopped on 15 of 16 hosts\n1 hosts cannot be reached" in out


def test_missing_share_of_the_plan(fleet: Fleet) -> None:
    """The plan registers the share; a host that is lost during the push counts as missing."""
    path = fleet.plan(16, allow_missing="10%")
    fleet.gone = {"h5": "start"}
    status, out, _ = fleet("start", path)
    assert status == 0 and "without h5: cannot be reached" in out and run.absent(path) == {"h5"}
    # It may have the plan.
    fleet.gone = {"h5": "always"}
    status, _, errors = fleet("stop", path)
    assert status == 2 and "h5: cannot be reached" in errors


def test_a_stratum_stays_large_enough(fleet: Fleet) -> None:
    """A stratum keeps four hosts, whatever share may be missing."""
    path = fleet.plan(4, allow_missing="20%")
    fleet.gone = {"h1": "always"}
    status, _, errors = fleet("start", path, "--allow-missing", "20%")
    assert status == 2 and not fleet.plans
    plan = design.read(path)
    found = command_start._missing(plan, [Answer(plan.hosts[1], 255, "", "")], 0.25)
    assert found == ["stratum 'all' has 3 of at least 4 hosts without those that are missing"]


def test_missing_hosts_are_in_neither_arm() -> None:
    """Values of a host that was missing at the start do not count, in all measurements."""
    plan = fleet_lab.make_plan("out")
    count, slots = len(plan.hosts), 4
    there = [field for field in dataclasses.fields(measured.Data)]
    values: dict[str, Any] = {field.name: np.ones((count, slots)) for field in there}
    values |= {"start": 0.0, "guards": [np.ones((count, slots))], "before": np.ones(count),
               "kernels": [{"6.12": 0.0} for _ in range(count)]}
    data = measured.Data(**values)
    left = run.leave_out(plan, data, frozenset(["host03"]))
    assert np.isnan(left.primary[3]).all() and np.isfinite(left.primary).sum() == 15 * slots
    assert np.isnan(left.guards[0][3]).all() and left.kernels[3] == {} and left.kernels[4]
    assert left.before is not None and np.isnan(left.before[3])
    assert np.isfinite(data.primary).all()


@pytest.mark.parametrize("words,parallel", [([], 32), (["--parallel", "7"], 7)])
def test_parallel(fleet: Fleet, words: list[str], parallel: int) -> None:
    """So many hosts are asked at a time as the option says, or the configuration."""
    workers: list[int] = []
    pool = concurrent.futures.ThreadPoolExecutor

    def counted(count: int) -> concurrent.futures.ThreadPoolExecutor:
        workers.append(count)
        return pool(2)

    fleet.monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", counted)
    fleet("stop", fleet.plan(8), *words)
    (fleet.folder / "other.toml").write_text("[transport]\nparallel = 5\n")
    fleet.monkeypatch.setenv("FAULTLINE_ROLLOUT_CONFIG", str(fleet.folder / "other.toml"))
    fleet("stop", fleet.folder / "big.json", *words)
    assert workers == [parallel, 7 if words else 5]


# --- The canary

@pytest.mark.parametrize("count,words,sizes", [
    (16, ["1", "5%"], [1]), (100, ["1", "5%"], [1, 5]), (5000, ["1", "5%", "20%"], [1, 250, 1000]),
    (4, ["50%", "3"], [2]), (100, [], [])])
def test_stages(fleet: Fleet, count: int, words: list[str], sizes: list[int]) -> None:
    """Each stage is larger than the one before, contains it, and is at most half of the fleet."""
    plan = design.read(fleet.plan(count, canary=words))
    found = canary.stages(plan, frozenset())
    assert [len(stage.hosts) for stage in found] == sizes
    for before, after in zip(found, found[1:]):
        assert before.hosts == after.hosts[:len(before.hosts)]
    missing = frozenset(host.name for stage in found[:1] for host in stage.hosts)
    assert not missing & {host.name for stage in canary.stages(plan, missing)
                          for host in stage.hosts}


def canary_fleet(fleet: Fleet) -> tuple[pathlib.Path, list[float]]:
    """A plan with a canary of one host and then two, and a clock that sleep() moves."""
    path = fleet.plan(16, canary=["1", "2"])
    clock = [time.time()]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    fleet.monkeypatch.setattr(canary, "time", type("Clock", (), {
        "time": lambda: clock[0], "sleep": sleep}))
    fleet.monkeypatch.setattr(canary, "crashed_in_b", lambda *_: [])
    in_prometheus(fleet.monkeypatch)
    return path, clock


def test_canary_before_the_fleet(fleet: Fleet) -> None:
    """One host has b for a slot, then two, then the experiment begins on all."""
    path, _ = canary_fleet(fleet)
    most: list[int] = []
    fleet.before = lambda name, command: most.append(len(fleet.plans))
    status, out, errors = fleet("start", path)
    assert status == 0 and len(fleet.plans) == 16, errors
    assert "canary 1: no harm" in out and "canary 2: no harm" in out
    starts = [number for number, (_, command) in enumerate(fleet.commands)
              if "start" in command and "--dry-run" not in command]
    assert max(most[:starts[3]]) == 2 and most[starts[3]] == 0
    assert fleet.plans["h0"]["arms"] != "b" and len(fleet.plans["h0"]["arms"]) == 24


@pytest.mark.parametrize("kind,reason", [
    ("crash", "h.*: crashed"), ("oom", "h.*: OOM kill"), ("alert", "these alerts fire: High"),
    ("blind", "nothing is seen: Prometheus has no time of boot"),
    ("reboot", "h.*: is not in the experiment"), ("hang", "h.*: cannot be reached"),
    ("refused", "h.*: cannot be reached"),
    ("stop", "it was stopped meanwhile")])
def test_canary_that_dies(fleet: Fleet, kind: str, reason: str) -> None:
    """Harm on the canary, or no values of it, keeps the fleet from starting, and sets it back."""
    path, _ = canary_fleet(fleet)
    first = canary.stages(design.read(path), frozenset())[0].hosts[0].name
    asked: list[str] = []
    looks = fleet_lab.SLOT * 60 // 15 + 1
    if kind == "crash":
        fleet.monkeypatch.setattr(canary, "crashed_in_b", lambda *_: [first])
    elif kind == "oom":
        fleet.monkeypatch.setattr(canary, "oom_kills", lambda *_: [first])
    elif kind == "alert":
        fleet.monkeypatch.setattr(canary, "firing_now", lambda _: "High")
    elif kind == "blind":
        in_prometheus(fleet.monkeypatch, float("nan"))
    elif kind == "refused":
        fleet.gone = {first: "start"}
    else:
        def before(_: str, command: str) -> None:
            if "status" in command and kind == "reboot":
                fleet.plans.clear()
            elif "status" in command and kind == "hang":
                # At the last look, after which it can be stopped.
                asked.append(command)
                fleet.gone = {first: "always"} if len(asked) == looks else {}
            elif kind == "hang":
                fleet.gone = {}
            elif "status" in command:
                run.note_stop(path)
        fleet.before = before
    status, out, errors = fleet("start", path)
    assert status == 2 and re.search(reason, errors), errors
    assert "not started: canary 1 failed" in errors and not fleet.plans
    assert len({name for name, command in fleet.commands if "--dry-run" not in command}) == 1
    assert fleet("start", path, "--no-canary", "--dry-run")[0] == 0 or kind == "refused"


def test_canary_that_stays(fleet: Fleet) -> None:
    """A canary that cannot be set back is said so, and stop and start work when it is there."""
    path, _ = canary_fleet(fleet)
    first = canary.stages(design.read(path), frozenset())[0].hosts[0].name

    def before(_: str, command: str) -> None:
        if "faultline-ab status" in command:
            fleet.gone = {first: "always"}

    fleet.before = before
    status, _, errors = fleet("start", path)
    assert status == 2 and "not every host of it was set back" in errors
    assert list(fleet.plans) == [first] and "stopped" in run.read_run(path)
    fleet.gone, fleet.before = {}, lambda name, command: None
    assert fleet("stop", path)[0] == 0 and not fleet.plans
    assert fleet("start", path)[0] == 0 and len(fleet.plans) == 16


def test_crash_on_the_canary(fleet: Fleet) -> None:
    """All of a canary is in arm b, so there is no arm a to compare a crash with."""
    stage = canary.stages(design.read(fleet.plan(16, canary=["3"])), frozenset())[0]
    start = fleet_lab.START
    boots = np.full((3, 200), start - 5000.0)
    fleet.monkeypatch.setattr(Prometheus, "table", lambda *_: boots)
    fleet.monkeypatch.setattr(measured, "usual", lambda *_: np.full(3, np.nan))
    assert not measured.crashed_in_b(stage, start, start + 200)
    boots[1, 150:] = start + 140
    assert measured.crashed_in_b(stage, start, start + 200) == [stage.hosts[1].name]


def test_oom_kill_on_the_canary(fleet: Fleet) -> None:
    """An OOM kill on a canary is harm, unless the days before make one likely in a slot."""
    stage = canary.stages(design.read(fleet.plan(16, canary=["3"])), frozenset())[0]
    kills, rates = np.array([[0.0], [1.01], [np.nan]]), np.full(3, np.nan)
    asked: list[str] = []

    def table(_: Prometheus, query: str, *rest: Any) -> Array:
        asked.append(query)
        return kills

    fleet.monkeypatch.setattr(Prometheus, "table", table)
    fleet.monkeypatch.setattr(measured, "usual", lambda *_: rates)
    start = fleet_lab.START
    assert measured.oom_kills(stage, start, start + 90.5) == [stage.hosts[1].name]
    assert asked == ['increase(node_vmstat_oom_kill{set="big"}[90s])']
    rates = np.full(3, 1.0)
    assert not measured.oom_kills(stage, start, start + 90)
    kills, rates = np.zeros((3, 1)), np.full(3, np.nan)
    assert not measured.oom_kills(stage, start, start + 90)


# --- Blackouts

@pytest.mark.parametrize("text,first,hours,meets", [
    ("Mon..Fri 08:00-18:00 Europe/Berlin", "2026-11-27T18:30+01:00", 2, False),
    ("Mon..Fri 08:00-18:00 Europe/Berlin", "2026-11-27T17:59+01:00", 2, True),
    ("Mon..Fri 08:00-18:00 Europe/Berlin", "2026-11-28T08:00+01:00", 40, False),
    ("Mon..Fri 08:00-18:00 Europe/Berlin", "2026-11-28T08:00+01:00", 49, True),
    ("Sat,Sun 00:00-00:00 UTC", "2026-11-29T23:59+00:00", 1, True),
    ("22:00-06:00 UTC", "2026-11-27T05:00+00:00", 1, True),
    ("22:00-06:00 UTC", "2026-11-27T06:00+00:00", 16, False),
    ("Fri..Mon 22:00-06:00 UTC", "2026-12-01T05:59+00:00", 1, True),
    ("Fri..Mon 22:00-06:00 UTC", "2026-12-01T22:00+00:00", 1, False),
    # Summer time ends on the night before: 08:00 is an hour later in UTC.
    ("Sun 08:00-09:00 Europe/Berlin", "2026-10-25T06:00+00:00", 1, False),
    ("Sun 08:00-09:00 Europe/Berlin", "2026-10-25T07:00+00:00", 1, True),
    ("2026-12-24T00:00Z/2026-12-27T00:00Z", "2026-12-26T23:00+00:00", 9, True),
    ("2026-12-24T00:00Z/2026-12-27T00:00Z", "2026-12-27T00:00+00:00", 9, False),
])
def test_windows(text: str, first: str, hours: float, meets: bool) -> None:
    """A run may not meet a window of dates, nor one of weekdays and hours in a time zone."""
    begin = datetime.datetime.fromisoformat(first).timestamp()
    assert bool(windows.window(text).overlap(begin, begin + hours * 3600)) == meets


@pytest.mark.parametrize("text", [
    "Mon 08:00-18:00", "Mon 8-18 UTC", "Mo 08:00-18:00 UTC", "Mon..Tue..Wed 08:00-18:00 UTC",
    "Mon 25:00-26:00 UTC", "Mon 08:00-18:00 Mars/Olympus", "Mon 08:00-18:00 ../../etc/passwd",
    "2026-12-24/2026-12-27", "tomorrow", "/"])
def test_no_windows(text: str) -> None:
    """A window without a time zone, or with a day or hour that does not exist, is refused."""
    with pytest.raises(Error, match="blackout: '.*' is not a window"):
        experiment.parse(fleet_lab.source("x", blackout=[text]), "")


def test_start_within_working_hours(fleet: Fleet) -> None:
    """A start that would run into a weekly blackout is refused."""
    path = fleet.plan(8, blackout=["00:00-00:00 UTC"])
    status, _, errors = fleet("start", path)
    assert status == 2 and "would run into the blackout from" in errors and not fleet.plans


@pytest.mark.parametrize("minutes,starts", [(130, True), (110, False)])
def test_start_before_a_blackout(fleet: Fleet, minutes: int, starts: bool) -> None:
    """A plan of two hours starts if the next blackout begins after its end."""
    begin = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)
    end = begin + datetime.timedelta(days=1)
    path = fleet.plan(8, blackout=[f"{begin.isoformat()}/{end.isoformat()}"])
    status, _, errors = fleet("start", path)
    assert status == (0 if starts else 2) and bool(fleet.plans) == starts, errors


# --- Watching

def test_blind_means_stop(fleet: Fleet) -> None:
    """--stop-on-harm ends the experiment after some looks in succession without values."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    looks = [0]

    def look(plan: design.Plan, start: float, at: float | None,
             out: frozenset[str]) -> command_status.Look:
        looks[0] += 1
        return command_status.Look(0.5, {}, None, "gone" * (looks[0] != 2), looks[0] != 2)

    fleet.monkeypatch.setattr(command_status, "_look", look)
    fleet.monkeypatch.setattr(command_status, "_harmed", lambda *_: False)
    fleet.monkeypatch.setattr(command_status, "time", type("Clock", (), {
        "sleep": lambda _: None, "time": time.time}))
    status, out, _ = fleet("status", path, "--watch", "--stop-on-harm", "--blind", 2)
    assert status == 30 and looks[0] == 4 and not fleet.plans
    assert "no values in 2 looks, so harm would not be seen: every host is set back" in out


@pytest.mark.parametrize("value,blind", [(1.0, False), (float("nan"), True)])
def test_look_that_sees_nothing(fleet: Fleet, value: float, blind: bool) -> None:
    """A look without values of the hosts is blind, also if Prometheus answers."""
    plan = design.read(fleet.plan(8))
    in_prometheus(fleet.monkeypatch, value)
    found = command_status._look(plan, time.time() - 1800, None, frozenset())
    assert found.blind == blind
    # Before slot 0 there is nothing to see.
    assert not command_status._look(plan, time.time() + 60, None, frozenset()).blind


def result(name: str, final: bool, vetoes: tuple[str, ...] = ()) -> outcome.Result:
    """A result with this verdict."""
    return outcome.Result(name, [], final, 1, 2, None, None, [], {}, [], list(vetoes), 0, 0, None,
                          [], [])


@pytest.mark.parametrize("name,final,blind,state,wanted", [
    ("BETTER", False, False, "running", 0), ("WORSE", False, False, "running", 10),
    ("INCONCLUSIVE", False, False, "running", 0), ("INCONCLUSIVE", True, False, "running", 20),
    ("INVALID", False, False, "running", 30), ("", False, True, "running", 30),
    ("INCONCLUSIVE", False, False, "runs another plan", 40),
    ("WORSE", False, True, "runs another plan", 10)])
def test_status_for_cron(name: str, final: bool, blind: bool, state: str, wanted: int) -> None:
    """The exit status of a look is that of the verdict where it means the same."""
    look = command_status.Look(0.5, {"h0": state}, result(name, final) if name else None, "", blind)
    assert command_status._exit_status(look, frozenset(), False) == wanted
    page = (fleet_lab.FLEET / "faultline-rollout.1").read_text().split(".Sh EXIT STATUS")[1]
    assert re.search(rf"^\.It {wanted}$", page, re.MULTILINE)


def test_status_of_a_veto() -> None:
    """Events that are a veto are harm for cron, too, before the verdict is WORSE."""
    look = command_status.Look(0.5, {"h0": "running"}, result("INCONCLUSIVE", False, ("reboots",)),
                               "", False)
    assert command_status._exit_status(look, frozenset(), False) == 10


def test_hand_of_the_operator(fleet: Fleet) -> None:
    """A look names the hosts on which an operator has set the switch, and the value."""
    plan = design.read(fleet.plan(8))
    rows = [{"name": plan.experiment.name, "plan": plan.digest, "state": "ended", "value": 0,
             "assigned": 0, "set_by_hand": 0}]

    class Hosts(Transport):
        """Each host answers the same."""

        def __init__(self) -> None:
            pass

        def everywhere(self, hosts: Any, *_: Any) -> Any:
            """Answer as faultline-ab does."""
            return [Answer(host, 0, json.dumps({"experiments": rows}), "") for host in hosts]

    found = watch.host_states(plan, plan.hosts[:1], Hosts())
    assert list(found.values()) == [f"ended: {plan.experiment.switch} was set to 0 by hand there"]
    # That is one of the states for which cron is told.
    look = command_status.Look(0.5, found, None, "", False)
    assert command_status._exit_status(look, frozenset(), False) == 40


def test_harm_is_looked_for_before_hosts_are_asked(fleet: Fleet) -> None:
    """With harm, no host is asked for its state before all are set back."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    fleet.commands.clear()
    fleet.monkeypatch.setattr(command_status, "_look", lambda *_: command_status.Look(
        0.5, {}, result("WORSE", False), "", False))
    assert fleet("status", path, "--stop-on-harm")[0] == 10 and not fleet.plans
    assert {command for _, command in fleet.commands} == {"faultline-ab stop big"}


def test_host_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that cannot be started for one host does not keep the others from being asked."""
    there = [Host(name, name, name, {}) for name in ("h0", "h1", "h2")]
    original = subprocess.run

    def start(words: Any, **options: Any) -> Any:
        if words[-1] == "h1":
            raise OSError(errno.EMFILE, "Too many open files")
        return original(["true"], **options)

    monkeypatch.setattr(subprocess, "run", start)
    transport = Transport(["ssh", "{command}", "{host}"], 2)
    found = {answer.host.name: answer for answer in
             transport.everywhere(there, lambda host: ("true", ""))}
    assert {name: answer.status for name, answer in found.items()} == {"h0": 0, "h1": 255, "h2": 0}
    assert hosts.explain(found["h1"]) == \
        "h1: cannot be reached: cannot run ssh: Too many open files"


@pytest.mark.parametrize("limit,at_once", [("64:128", 8), ("64:4096", 40)])
def test_open_files(tmp_path: pathlib.Path, limit: str, at_once: int) -> None:
    """Where open files are limited, fewer hosts are asked at a time, and one line says so."""
    (tmp_path / "hosts").write_text("".join(f"h{number}\n" for number in range(40)))
    conf = tmp_path / "rollout.toml"
    conf.write_text('[transport]\ncommand = ["sh", "-c", "sleep 0.5", "{host}", "{command}"]\n')
    conf.chmod(0o600)
    done = subprocess.run(
        ["prlimit", f"--nofile={limit}", fleet_lab.FLEET / "faultline-rollout", "stop", "--all",
         "--inventory", tmp_path / "hosts", "--parallel", "40"], capture_output=True, text=True,
        check=False, env=os.environ | {"FAULTLINE_ROLLOUT_CONFIG": str(conf)})
    assert done.returncode == 0 and "stopped on 40 of 40 hosts" in done.stdout, done
    assert done.stderr == ("" if at_once == 40 else (
        "warning: 8 hosts are asked at a time, not 40: this session may have 128 open files; "
        "ulimit -Hn 384 would allow it\n"))


def full(*_: Any, **options: Any) -> None:
    """print() on a full disk, or on a terminal that is closed."""
    raise OSError(errno.EIO, "Input/output error")


def test_start_is_undone_without_a_terminal(fleet: Fleet) -> None:
    """An interrupted start is undone also if nothing can be printed any more."""
    def before(_: str, command: str) -> None:
        if "faultline-ab start" in command and "--dry-run" not in command and len(fleet.plans) > 3:
            fleet.monkeypatch.setattr(terminal, "print", full, raising=False)
            raise KeyboardInterrupt

    fleet.before = before
    path = fleet.plan(16)
    fleet.monkeypatch.setenv("COLUMNS", "80")
    assert fleet("start", path, "--parallel", "1")[0] == 130
    assert len(fleet.commands) > 20 and not fleet.plans and not run.run_path(path).exists()


def test_watch_without_a_terminal(fleet: Fleet) -> None:
    """A watch whose output goes nowhere still ends the experiment at the first harm."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    looks = iter((result("INCONCLUSIVE", False), result("WORSE", False)))
    fleet.monkeypatch.setattr(command_status, "_look", lambda *_: command_status.Look(
        0.5, {}, next(looks), "", False))
    fleet.monkeypatch.setattr(command_status, "crashed_in_b", lambda *_: [])
    fleet.monkeypatch.setattr(terminal, "print", full, raising=False)
    assert fleet("status", path, "--watch", "--stop-on-harm", "--every", 0)[0] == 10
    assert not fleet.plans


def test_impatient_interruption() -> None:
    """While hosts are set back, the first ^C only asks for patience, and a hangup does nothing."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)]
    steps = []
    with pytest.raises(KeyboardInterrupt), terminal.undoing():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
            steps.append(number)
    assert len(steps) == 3
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)]


def test_interruption_of_a_stop(tmp_path: pathlib.Path) -> None:
    """^C in the terminal during a stop reaches neither its programs nor the rest of the hosts."""
    (tmp_path / "hosts").write_text("h0\nh1\nh2\n")
    conf, began, go = tmp_path / "rollout.toml", tmp_path / "began", tmp_path / "go"
    script = f"echo >>{began}; until [ -e {go} ]; do sleep 0.1; done"
    conf.write_text(f'[transport]\nparallel = 1\ncommand = ["sh", "-c", "{script}", "{{host}}", '
                    '"{command}"]\n')
    conf.chmod(0o600)
    with subprocess.Popen(
            [fleet_lab.FLEET / "faultline-rollout", "stop", "--all", "--inventory",
             tmp_path / "hosts"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            process_group=0, env=os.environ | {"FAULTLINE_ROLLOUT_CONFIG": str(conf)}) as process:
        end = time.monotonic() + 300
        while not began.exists():
            assert time.monotonic() < end, "no host is asked within five minutes"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        go.touch()
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and "stopped on 3 of 3 hosts" in out, errors
    assert "Hosts are still being set back" in errors


def test_stop_is_tried_again(fleet: Fleet) -> None:
    """A watch that has seen harm goes on until the last host that had the plan is set back."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    fleet.monkeypatch.setattr(command_status, "_look", lambda *_: command_status.Look(
        0.5, {}, result("WORSE", False), "", False))
    fleet.gone = {"h1": "always", "h2": "always"}
    pauses: list[int] = []

    def sleep(_: float) -> None:
        pauses.append(len(fleet.plans))
        fleet.gone.pop(f"h{len(pauses)}")

    fleet.monkeypatch.setattr(command_status, "time", type("Clock", (), {
        "sleep": sleep, "time": time.time}))
    status, out, _ = fleet("status", path, "--watch", "--stop-on-harm")
    assert status == 10 and pauses == [2, 1] and not fleet.plans
    assert "2 hosts are tried again in 60 s" in out
    # Without --watch, one look has an end.
    fleet.gone = {"h1": "always"}
    assert fleet("status", path, "--stop-on-harm")[0] == 10 and len(pauses) == 2


def test_hosts_that_cannot_be_asked(fleet: Fleet) -> None:
    """A watch that cannot run ssh is blind: it does not end before it has tried to stop."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    looks: list[str] = []

    def asked(*_: Any) -> dict[str, str]:
        looks.append("")
        raise Error("cannot run ssh: No such file")

    fleet.monkeypatch.setattr(command_status, "_look", lambda *_: command_status.Look(
        0.5, {}, None, "", False))
    fleet.monkeypatch.setattr(command_status, "_harmed", lambda *_: False)
    fleet.monkeypatch.setattr(command_status, "host_states", asked)
    words = ["status", path, "--watch", "--stop-on-harm", "--every", 0]
    status, out, _ = fleet(*words)
    assert status == 30 and len(looks) == 3 and not fleet.plans and "cannot run ssh" in out
    assert fleet("status", path)[0] == 2


def test_no_hosts(fleet: Fleet) -> None:
    """--no-hosts asks Prometheus only."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    fleet.commands.clear()
    assert "hosts:" not in fleet("status", path, "--no-hosts")[1] and not fleet.commands


def test_detach(fleet: Fleet) -> None:
    """--detach starts a unit that watches with the same options; a failure is one line."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    assert "is for --watch --stop-on-harm" in fleet("status", path, "--detach")[2]
    program = fleet.folder / "systemd-run"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{fleet.folder}/words\n')
    program.chmod(0o755)
    linger = fleet.folder / "loginctl"
    linger.write_text("#!/bin/sh\necho Linger=yes\n")
    linger.chmod(0o755)
    fleet.monkeypatch.setenv("PATH", f"{fleet.folder}:/usr/bin:/bin")
    words = ["status", path, "--watch", "--stop-on-harm", "--detach", "--blind", 5]
    status, out, errors = fleet(*words)
    assert status == 0 and "faultline-rollout-big watches" in out, errors
    told = (fleet.folder / "words").read_text().splitlines()
    assert "--unit=faultline-rollout-big" in told and told[-1] == str(path)
    assert told[told.index("--blind") + 1] == "5" and "--detach" not in told
    assert "--property=Restart=on-failure" in told
    # A verdict, and hosts that do not follow, end it.
    assert f"--property=RestartPreventExitStatus={' '.join(map(str, ENDS))}" in told
    assert f"--setenv=FAULTLINE_ROLLOUT_CONFIG={fleet.folder}/rollout.toml" in told
    # The unit's command line is valid.
    assert cli.parser().parse_args(told[told.index("status"):]).start is None
    assert fleet(*words, "--start", "1790000000.5")[0] == 0
    told = (fleet.folder / "words").read_text().splitlines()
    assert cli.parser().parse_args(told[told.index("status"):]).start == 1790000000.5
    program.write_text("#!/bin/sh\necho Unit exists >&2\nexit 1\n")
    status, _, errors = fleet(*words)
    assert status == 2 and errors.endswith("does not start faultline-rollout-big: Unit exists\n")


@pytest.mark.parametrize("agent,alone,fits", [
    ("", False, True), ("/tmp/ssh-x/agent.1", True, True), ("/tmp/ssh-x/agent.1", False, False),
    (f"/run/user/{os.getuid()}/agent", False, True)])
def test_detach_from_the_agent(fleet: Fleet, agent: str, alone: bool, fits: bool) -> None:
    """--detach refuses an ssh agent that can end at logout, unless ssh does without it."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0
    if agent:
        fleet.monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    fleet.monkeypatch.setattr(command_status, "_detach", lambda *_: 0)
    fleet.monkeypatch.setattr(Transport, "run", lambda transport, host, *_: Answer(
        host, 0 if transport.session or alone else 255, "", "Permission denied (publickey)."))
    status, _, errors = fleet("status", path, "--watch", "--stop-on-harm", "--detach")
    assert status == (0 if fits else 2)
    assert fits or "reaches none of h0 h1 h2 h3 h4 (Permission denied (publickey).)" in errors


def test_transport_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the session, ssh has neither its agent nor a connection that is open already."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/x")
    monkeypatch.setattr(config, "load", lambda: config.Config(persist=60))
    words = ["sh", "-c", 'echo "$SSH_AUTH_SOCK $*"', "{host}", "{options}", "{command}"]
    found = [Transport(words, session=session).run(Host("h", "h", "h", {}, "me"), "true").out
             for session in (True, False)]
    assert found[0].startswith("/x -l me -o ControlMaster=auto")
    assert found[1] == " -l me -o ControlPath=none true\n"


# --- Stops, and files that are not written over

@pytest.mark.parametrize("text,mode", [("[transport", 0o600), ("", 0o666), ("x = 1", 0o600)])
def test_stop_with_a_damaged_configuration(fleet: Fleet, text: str, mode: int) -> None:
    """A configuration that is of no use is named, and hosts are stopped without it."""
    path, place = fleet.plan(8), fleet.folder / "rollout.toml"
    (fleet.folder / "hosts").write_text("".join(f"h{number}\n" for number in range(8)))
    ways: list[list[object]] = [[path], ["--inventory", fleet.folder / "hosts", "--all"]]
    for words in ways:
        place.unlink(missing_ok=True)
        run.run_path(path).unlink(missing_ok=True)
        assert fleet("start", path)[0] == 0 and len(fleet.plans) == 8
        place.write_text(text)
        place.chmod(mode)
        fleet.monkeypatch.setattr(config, "_without", False)
        config._load.cache_clear()
        status, out, errors = fleet("stop", *words)
        assert status == 0 and not fleet.plans, errors
        assert out.startswith(f"warning: {place}") and "stopped on 8 of 8 hosts" in out
        fleet.monkeypatch.setattr(config, "_without", False)
        assert fleet("status", path)[0] == 2
        config._load.cache_clear()


def test_stop_without_the_plan(fleet: Fleet) -> None:
    """A plan that was written over can be stopped: the run file has its hosts and its name."""
    path = fleet.plan(8)
    assert fleet("start", path)[0] == 0 and len(fleet.plans) == 8
    path.write_text("<html>")
    status, out, errors = fleet("stop", path)
    assert status == 0 and not fleet.plans and "big: stopped on 8 of 8 hosts" in out, errors
    path.unlink()
    assert fleet("stop", path)[0] == 0


@pytest.mark.parametrize("words,command", [
    (["--all"], "faultline-ab stop --all"), (["--name", "big"], "faultline-ab stop big")])
def test_stop_by_inventory(fleet: Fleet, words: list[str], command: str) -> None:
    """An inventory is enough to stop one experiment, or all of them."""
    assert fleet("start", fleet.plan(8))[0] == 0
    (fleet.folder / "hosts").write_text("".join(f"h{number}\n" for number in range(9)))
    fleet.commands.clear()
    status, out, _ = fleet("stop", "--inventory", fleet.folder / "hosts", *words)
    assert status == 0 and "stopped on 9 of 9 hosts" in out and not fleet.plans
    assert {told for _, told in fleet.commands} == {command}


@pytest.mark.parametrize("words", [
    [], ["--all"], ["--name", "x"], ["PLAN", "--all"], ["--inventory", "HOSTS"],
    ["--inventory", "HOSTS", "--all", "--name", "x"], ["PLAN", "--inventory", "HOSTS", "--all"],
    ["--inventory", "HOSTS", "--name", "--all"], ["--inventory", "HOSTS", "--name", "x; reboot"]])
def test_stop_of_nothing(fleet: Fleet, words: list[str]) -> None:
    """stop takes a plan, or an inventory with a name or --all; with anything else no host stops."""
    (fleet.folder / "hosts").write_text("h0\n")
    places = {"PLAN": str(fleet.plan(8)), "HOSTS": str(fleet.folder / "hosts")}
    status, _, errors = fleet("stop", *(places.get(word, word) for word in words))
    assert status == 2 and errors.count("\n") == 1 and not fleet.commands


def test_inputs_are_not_written_over(fleet: Fleet) -> None:
    """plan and verdict refuse to write over a file that they read."""
    plan = fleet.plan(8)
    file = fleet.folder / "x.json"
    (fleet.folder / "inventory.ini").write_text("h0\n")
    file.write_text('name = "x"\nswitch = "vm.speculative_page_fault"\na = 0\nb = 1\n'
                    'slot = "5min"\nwashout = "1min"\nexpires = "2h"\n'
                    'primary = {query = "x[$slot]", better = "lower", margin = "1%"}\n'
                    'mechanism = {query = "x[$slot]", min = 1}\n')
    (fleet.folder / "link.html").symlink_to(plan)
    assert fleet("start", plan)[0] == 0
    before = {path: path.read_bytes() for path in fleet.folder.iterdir()}
    for words, reason in (
            (["plan", file, "-o", file, "--force"], "which is read"),
            (["plan", file, "-o", fleet.folder / "inventory.ini", "--force"], "which is read"),
            (["plan", file, "-o", fleet.folder / "x.toml", "--force"], "ends in .json"),
            (["verdict", plan, "--html", plan], "which is read"),
            (["verdict", plan, "--html", run.run_path(plan)], "which is read"),
            (["verdict", plan, "--html", fleet.folder / "link.html"], "which is read"),
            (["verdict", plan, "--html", file], "must end in .html")):
        status, _, errors = fleet(*words)
        assert status == 2 and reason in errors and errors.count("\n") == 1, errors
    assert {path: path.read_bytes() for path in fleet.folder.iterdir()} == before


# --- Transports

def test_transport_of_a_plan(fleet: Fleet) -> None:
    """The command of a plan runs only if the operator has written it down, or accepts it."""
    words = ["sh", "-c", "evil", "{address}", "{command}"]
    path = fleet.plan(8, transport={"command": words})
    for verb in ("start", "status", "stop"):
        status, _, errors = fleet(verb, path, *([] if verb != "status" else ["--start", "1"]))
        assert status == 2 and "wants this machine to run: sh -c evil" in errors, errors
        assert "--accept-transport" in errors and not fleet.commands
    status, _, errors = fleet("stop", path, "--accept-transport")
    assert status == 0 and f"transport of {path}: sh -c evil" in errors
    (fleet.folder / "ok.toml").write_text(f"[transport]\ncommand = {json.dumps(words)}\n")
    fleet.monkeypatch.setenv("FAULTLINE_ROLLOUT_CONFIG", str(fleet.folder / "ok.toml"))
    assert fleet("stop", path)[0] == 0


@pytest.mark.parametrize("words", [["true"], ["true", "{command}"], ["ssh", "{address}"], "ssh"])
def test_transport_that_reaches_no_host(fleet: Fleet, words: object) -> None:
    """stop does not say that hosts were stopped if its transport runs nothing on them."""
    path = fleet.plan(8)
    body = json.loads(path.read_text())
    body["experiment"]["transport"] = {"command": words}
    path.write_text(json.dumps(body))
    status, _, errors = fleet("stop", path, "--accept-transport")
    assert status == 2 and "has no transport that reaches a host" in errors and not fleet.commands


def test_words_of_ssh(fleet: Fleet) -> None:
    """ssh gets the user and the port of the inventory, and the address after its options."""
    host = Host("db1", "10.0.0.1", "db1", {}, "admin", 2222)
    words = Transport(experiment.SSH)._command(host, "echo {host} {quoted}")
    assert words[-7:] == ["-l", "admin", "-p", "2222", "--", "10.0.0.1", "echo {host} {quoted}"]
    path = fleet.folder / "shared.toml"
    path.write_text('[transport]\npersist = "5min"\n')
    fleet.monkeypatch.setenv("FAULTLINE_ROLLOUT_CONFIG", str(path))
    assert "ControlPersist=300" in Transport(experiment.SSH)._command(host, "true")


def test_sudo_of_the_manual() -> None:
    """The transport with sudo that the manual shows is accepted."""
    page = (fleet_lab.FLEET / "faultline-experiment.5").read_text()
    for block in re.findall(r'^\["ssh".*?\]$', page, re.MULTILINE | re.DOTALL):
        experiment.parse(fleet_lab.source("x", transport={"command": json.loads(block)}), "")


def test_escapes_do_not_reach_the_terminal(fleet: Fleet) -> None:
    """Control characters in a host's error are shown, not sent."""
    path = fleet.plan(8)
    fleet.monkeypatch.setattr(Transport, "run", lambda _, host, *rest: Answer(
        host, 1, "", "\033]0;PWNED\007\033[2J\u202e\n"))
    _, out, errors = fleet("stop", path)
    assert "\\x1b]0;PWNED\\x07\\x1b[2J\\u202e" in errors
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out + errors)


def plan_of(fleet: Fleet, **changes: Any) -> tuple[experiment.Experiment, dict[str, Any]]:
    """An experiment on eight hosts."""
    source = fleet_lab.source("history", **changes)
    return experiment.parse(source, ""), source


# --- Everything is tried before it is needed

@pytest.mark.parametrize("part,name", [
    ("throughput", "guard 'throughput'"), ("spf_anon", "the mechanism"),
    ("node_sysctl_vm", "the value of the switch"), ("oom_kill", "the number of OOM kills"),
    ("boot_time", "the time of boot"), ("uname_info", "the kernel's release"),
    ("node_time_seconds", "the clock and the scrapes"), ("latency", "the primary metric")])
@pytest.mark.parametrize("kind", ["none", "few", "refused", "enough"])
def test_every_query_is_tried(fleet: Fleet, part: str, name: str, kind: str) -> None:
    """plan fails with the name of a query that has values on less than 80 % of the hosts."""
    exp, source = plan_of(fleet)
    found = fleet_lab.fleet(10)
    there = {"none": 0, "few": 7, "enough": 8, "refused": 0}[kind]

    def table(_: Prometheus, query: str, hosts_: Any, first: float, count: int,
              step: int) -> Array:
        if part in query and kind == "refused":
            raise Error(f"Prometheus refuses the query {query}: parse error")
        values = np.ones((len(hosts_), count))
        if part in query:
            values[there:] = np.nan
        return values

    def texts(*_: Any) -> list[dict[str, float]]:
        if part == "uname_info" and kind == "refused":
            raise Error("Prometheus refuses the query node_uname_info{}: parse error")
        return [{"6.12": 0.0} if part != "uname_info" or number < there else {}
                for number in range(10)]

    fleet.monkeypatch.setattr(Prometheus, "table", table)
    fleet.monkeypatch.setattr(Prometheus, "texts", texts)
    if kind == "enough":
        planning.rehearse(exp, source, found, fleet_lab.START)
        return
    with pytest.raises(Error) as caught:
        planning.rehearse(exp, source, found, fleet_lab.START)
    assert name in str(caught.value)
    if kind != "refused":
        assert f"has values for {there / 10:.0%} of the hosts" in str(caught.value)


@pytest.mark.parametrize("alerts,fires,unknown", [
    (["High"], "High", ""), (['High{cluster="db"}'], 'High{cluster="db"}', ""),
    (['High{cluster="web"}'], "", ""), (["Hgh"], "", "Hgh")])
def test_alerts_with_labels(fleet: Fleet, alerts: list[str], fires: str, unknown: str) -> None:
    """An alert is looked for with its labels; one that no rule defines is refused."""
    asked: list[str] = []

    def ask(_: Prometheus, path: str, query: str) -> list[Any]:
        asked.append(query)
        return [{"metric": {"alertname": "High"}, "value": [0, "1"]}] \
            if 'cluster="web"' not in query else []

    fleet.monkeypatch.setattr(Prometheus, "ask", ask)
    fleet.monkeypatch.setattr(Prometheus, "unknown", lambda _, names: [
        name for name in names if not name.startswith("High")])
    path = fleet.plan(8, alerts=alerts)
    status, _, errors = fleet("start", path, "--dry-run")
    assert status == (2 if fires or unknown else 0)
    if unknown:
        assert "alerts: no rule of http://127.0.0.1:9 is named Hgh" in errors
    else:
        assert f"these alerts fire: {fires}" in errors or not fires
        assert asked[0].startswith('ALERTS{alertname="High",alertstate="firing"')


def test_rules_that_are_not_listed(fleet: Fleet) -> None:
    """A server that does not list its rules cannot say whether an alert exists: start says so."""
    with serving(lambda _: (200, answer_of([], "vector"))) as url:
        status, _, errors = fleet("start", fleet.plan(8, alerts=["High"], prometheus=url),
                                  "--dry-run")
    assert status == 0 and "does not list its rules" in errors
