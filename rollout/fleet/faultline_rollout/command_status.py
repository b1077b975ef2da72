# SPDX-License-Identifier: GPL-2.0-only
"""The command status: show how an experiment is going, and end it if it does harm."""
from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from . import Error, design, report
from .command_stop import stop_hosts
from .design import Plan
from .hosts import Transport, explain
from .run import UNFINISHED, note_stop, read_run, started, unfinished, until
from .terminal import local_time, say, say_aside
from .verdict import WORSE, Result, collect, crashed_in_b, judge


@dataclasses.dataclass
class Look:
    """One look at a running experiment."""

    share: float
    hosts: dict[str, str]
    result: Result | None
    problem: str


def _look(plan: Plan, start: float, transport: Transport, at: float | None) -> Look:
    states: dict[str, str] = {}
    for answer in transport.everywhere(plan.hosts, lambda host: ("faultline-ab status --json", "")):
        name = answer.host.name
        if answer.status:
            states[name] = explain(answer).partition(": ")[2]
            continue
        try:
            row: dict[str, Any] = next((row for row in json.loads(answer.out)["experiments"]
                                        if row.get("name") == plan.experiment.name), {})
        except (ValueError, KeyError, TypeError, AttributeError):
            states[name] = "its faultline-ab is of another version: update faultline-host"
            continue
        if not row:
            states[name] = "is not in the experiment: not started yet, stopped, expired or rebooted"
        elif row.get("plan") != plan.digest:
            states[name] = "runs another plan"
        elif row.get("value") != row.get("assigned"):
            states[name] = f"has {row.get('value')}, and should have {row.get('assigned')}"
        else:
            states[name] = str(row.get("state"))
    result, problem = None, ""
    try:
        result = judge(plan, collect(plan, start, at), draws=499)
    except Error as err:
        problem = str(err)
    moment = time.time() if at is None else at
    return Look(min(1.0, max(0.0, (moment - start) / plan.seconds)), states, result, problem)


GOOD_STATES = ("waiting", "running", "finished")


def _show(plan: Plan, start: float, look: Look, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"name": plan.experiment.name, "progress": round(look.share, 4),
                        "hosts": look.hosts, "problem": look.problem or None,
                        "result": look.result.to_json() if look.result else None}))
        return
    full = int(40 * look.share)
    say(f"{plan.experiment.name} [{'#' * full}{'.' * (40 - full)}] {look.share:.0%}, until "
        f"{local_time(start + plan.seconds)}")
    counts: dict[str, int] = {}
    for state in look.hosts.values():
        counts[state] = counts.get(state, 0) + 1
    say("  hosts: " + (", ".join(f"{counts[state]} {state}" for state in GOOD_STATES
                                 if state in counts) or "none in the experiment"))
    for name, state in sorted(look.hosts.items()):
        if state not in GOOD_STATES:
            say(f"  {name}: {state}")
    if look.problem:
        say(f"  {look.problem}")
    if look.result:
        say(f"  {look.result.verdict}: {report.sentence(look.result)}")
        for reason in look.result.reasons:
            say(f"    {reason}")


def _harmed(plan: Plan, start: float, look: Look, at: float | None,
            tell: Callable[[str], None]) -> bool:
    """Has arm b done harm?  Says which hosts crashed in a slot that is not over."""
    found = look.result
    if found and (found.verdict == WORSE or found.events.get("crashes", {}).get("b")):
        return True
    try:
        hosts = crashed_in_b(plan, start, time.time() if at is None else at)
    except Error as err:
        if str(err) != look.problem:
            tell(f"  {err}")
        return False
    for host in hosts:
        tell(f"  {host}: crashed in arm b")
    return bool(hosts)


def command_status(args: argparse.Namespace) -> int:
    """Show how an experiment is going."""
    plan = design.read(args.plan)
    start = started(args.plan, plan) if args.start is None else args.start
    transport = Transport(plan.experiment.transport)
    tell = say_aside if args.json else say
    while True:
        look = _look(plan, start, transport, until(args.plan, args.at))
        if unfinished(args.plan):
            look.problem = "; ".join(filter(None, [
                f"the start {UNFINISHED.format(args.plan)}", look.problem]))
        _show(plan, start, look, args.json)
        if args.stop_on_harm and _harmed(plan, start, look, until(args.plan, args.at), tell):
            tell("harm: every host is set back")
            note_stop(args.plan)
            problems = stop_hosts(plan.experiment.name, plan.hosts, transport,
                                  bool(plan.experiment.restart))
            if problems:
                problems.append(f"use `faultline-rollout stop {args.plan}` when they can be "
                                "reached")
            for problem in problems:
                tell(f"  {problem}")
            return 10
        if not args.watch or look.share >= 1 or "stopped" in read_run(args.plan):
            return 0
        time.sleep(args.every)
