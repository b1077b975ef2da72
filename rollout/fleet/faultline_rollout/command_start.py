# SPDX-License-Identifier: GPL-2.0-only
"""The command start: check every host, then push the schedule to all of them."""
from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import shlex
import time

from . import Error, design
from .command_stop import stop_hosts
from .conditions import _blackout, _firing
from .design import Plan
from .hosts import Host, Transport, explain, with_file
from .run import alone, check_not_started, note_complete, note_stop, read_run, run_path
from .terminal import Progress, local_time, say

# Between `start` and slot 0, so that all hosts have the plan in time.
LEAD = 120
# Between the change of a switch and the first restart of a service, in seconds.
RESTART = 20
CLOCK_SECONDS = 2


def _check_hosts(plan: Plan, start: int, transport: Transport) -> list[str]:
    """Ask each host whether it can take part; returns the problems."""
    option = " --isolated-cpus" if plan.experiment.isolated_cpus else ""
    command = with_file(f'date +%s; faultline-ab start --dry-run{option} "$f"')
    problems = []
    for answer in transport.everywhere(
            plan.hosts, lambda host: (command, design.host_file(plan, host, start)),
            Progress("check", len(plan.hosts))):
        if answer.status:
            problems.append(explain(answer))
            continue
        clock = answer.out.partition("\n")[0]
        if not clock.isdecimal() or not answer.asked - CLOCK_SECONDS <= float(clock) \
                <= answer.answered + CLOCK_SECONDS:
            problems.append(f"{answer.host.name}: its clock says '{clock}', and here it is "
                            f"{answer.answered:.0f}: synchronise clocks")
    return sorted(problems)


def _check_time(plan: Plan, start: int) -> None:
    exp = plan.experiment
    if blackout := _blackout(exp, start, start + plan.seconds):
        raise Error(f"the experiment would run into {blackout}: start it at another time")
    if firing := _firing(exp):
        raise Error(f"these alerts fire: {firing}: start when they do not")


def _check(plan: Plan, start: int, transport: Transport) -> None:
    """Check whether a plan can be started at a time."""
    _check_time(plan, start)
    problems = _check_hosts(plan, start, transport)
    if problems:
        raise Error(f"nothing was changed; {len(problems)} of {len(plan.hosts)} hosts cannot take "
                    "part:\n  " + "\n  ".join(problems))


def _set_back(path: pathlib.Path, plan: Plan, transport: Transport) -> list[str]:
    """Undo a start; returns the problems."""
    exp = plan.experiment
    # In case that this is killed.
    note_stop(path)
    problems = stop_hosts(exp.name, plan.hosts, transport, bool(exp.restart))
    if problems:
        return [*problems, f"use `faultline-rollout stop {path}` when they can be reached"]
    run_path(path).unlink(missing_ok=True)
    return []


def _push(path: pathlib.Path, plan: Plan, start: int, transport: Transport) -> None:
    """Start on every host, or on none."""
    exp = plan.experiment
    option = " --isolated-cpus" if exp.isolated_cpus else ""

    def command(host: Host) -> tuple[str, str]:
        text = f'faultline-ab start{option} "$f"'
        if exp.restart:
            # One after the other, within the first washout.
            share = plan.hosts.index(host) / len(plan.hosts)
            when = datetime.datetime.fromtimestamp(
                start + RESTART + share * max(0, exp.washout - 2 * RESTART), datetime.timezone.utc)
            text += (f" && systemd-run --quiet --unit=faultline-ab-restart-{exp.name} "
                     f"--on-calendar='{when:%Y-%m-%d %H:%M:%S} UTC' "
                     f"systemctl restart {shlex.quote(exp.restart)}")
        return with_file(text), design.host_file(plan, host, start)

    problems: list[str] = []
    try:
        for answer in transport.everywhere(
                plan.hosts, command, Progress("start", len(plan.hosts))):
            if answer.status:
                problems.append(explain(answer))
        if not problems and time.time() > start:
            problems.append(f"slot 0 began at {local_time(start)}, before all hosts had the "
                            "plan: use a longer --lead")
        if not problems and not note_complete(path):
            problems.append("it was stopped meanwhile")
    except BaseException:
        say("interrupted: every host is set back")
        for problem in _set_back(path, plan, transport):
            say(f"  {problem}")
        raise
    if problems:
        left = _set_back(path, plan, transport)
        raise Error(f"not started, {'not every' if left else 'every'} host was set back:\n  "
                    + "\n  ".join(sorted(problems) + left))


def command_start(args: argparse.Namespace) -> int:
    """Start a plan on all its hosts."""
    plan = design.read(args.plan)
    exp = plan.experiment
    transport = Transport(exp.transport)
    start = (int(time.time()) + args.lead + 59) // 60 * 60
    end = start + plan.seconds
    if args.dry_run:
        _check(plan, start, transport)
        say(f"{exp.name} would run from {local_time(start)} to {local_time(end)} on "
            f"{len(plan.hosts)} hosts. Nothing was changed.")
        return 0
    place = run_path(args.plan)
    with alone(args.plan):
        check_not_started(args.plan)
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        # Before any host, so that a stop and a verdict find it whatever happens.
        design.write(place, json.dumps({"plan": plan.digest, "start": start}) + "\n")
    try:
        _check(plan, start, transport)
        if "stopped" in read_run(args.plan):
            raise Error("nothing was changed: it was stopped meanwhile")
    except BaseException:
        if before:
            design.write(place, before)
        else:
            place.unlink(missing_ok=True)
        raise
    _push(args.plan, plan, start, transport)
    say(f"{exp.name} runs from {local_time(start)} to {local_time(end)} on {len(plan.hosts)} "
        f"hosts; next: faultline-rollout status {args.plan}")
    return 0
