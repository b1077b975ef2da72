# SPDX-License-Identifier: GPL-2.0-only
"""The command start: check every host, then push the schedule to all of them."""
from __future__ import annotations

import argparse
import collections
import datetime
import pathlib
import shlex
import time
from collections.abc import Sequence

from . import Error, canary, design
from .command_stop import stop_plan
from .conditions import blackout_at, firing_now
from .design import Plan
from .experiment import in_words
from .hosts import UNREACHABLE, Answer, Host, Transport, explain, names_of, with_file
from .run import alone, check_not_started, note, note_start, read_run, run_path
from .terminal import Progress, local_time, say, say_anyway

# Between `start` and slot 0, so that all hosts have the plan in time.
LEAD = 120
# Between the change of a switch and the first restart of a service, in seconds.
RESTART = 20
CLOCK_SECONDS = 2
# A check of a large fleet takes less, in seconds.
CHECK_SECONDS = 3600
# Problems of hosts that are listed.
SHOWN = 50


def _check_hosts(plan: Plan, start: int, transport: Transport) -> tuple[list[str], list[Answer]]:
    """Ask each host whether it can take part; returns the problems, and who is not there."""
    option = " --isolated-cpus" if plan.experiment.isolated_cpus else ""
    command = with_file(f'date +%s; faultline-ab start --dry-run{option} "$f"')
    problems, missing = [], []
    for answer in transport.everywhere(
            plan.hosts, lambda host: (command, design.host_file(plan, host, start)),
            Progress("check", len(plan.hosts))):
        if answer.status == UNREACHABLE:
            missing.append(answer)
            continue
        if answer.status:
            problems.append(explain(answer))
            continue
        clock = answer.out.partition("\n")[0]
        if not clock.isdecimal() or not answer.asked - CLOCK_SECONDS <= float(clock) \
                <= answer.answered + CLOCK_SECONDS:
            problems.append(f"{answer.host.name}: its clock says '{clock}', and here it is "
                            f"{answer.answered:.0f}: synchronise clocks")
    return sorted(problems), missing


def _check_time(plan: Plan, first: float, last: float) -> None:
    exp = plan.experiment
    if blackout := blackout_at(exp, first, last):
        raise Error(f"the experiment would run into {blackout}: start it at another time")
    if firing := firing_now(exp):
        raise Error(f"these alerts fire: {firing}: start when they do not")


def _missing(plan: Plan, answers: list[Answer], share: float) -> list[str]:
    """The problems with hosts that are not there; none if the plan can do without them."""
    if len(answers) > int(share * len(plan.hosts)):
        return [explain(answer) for answer in answers] + (
            [f"{len(answers)} hosts are missing, and --allow-missing is {share:.1%}"]
            if share else [])
    left = collections.Counter(plan.strata.values())
    left.subtract(plan.strata[answer.host.name] for answer in answers)
    return [f"stratum '{stratum}' has {count} of at least {design.MIN_STRATUM} hosts without "
            "those that are missing" for stratum, count in left.items()
            if count < design.MIN_STRATUM]


def _check(plan: Plan, stages: int, transport: Transport, share: float = 0.0) -> list[str]:
    """Check whether a plan can be started now; returns the hosts that are missing."""
    now = time.time()
    _check_time(plan, now, now + stages * plan.experiment.slot + plan.seconds)
    # Far enough away that a check of a large fleet ends before it.
    problems, answers = _check_hosts(plan, _whole_minute(CHECK_SECONDS), transport)
    problems += _missing(plan, answers, share)
    if problems:
        shown = sorted(problems)[:SHOWN]
        if len(problems) > SHOWN:
            shown.append(f"and {len(problems) - SHOWN} more")
        advice = "" if share or not answers else \
            "\n--allow-missing 2% starts without hosts that cannot be reached"
        raise Error(f"nothing was changed; {len(problems)} of {len(plan.hosts)} hosts cannot take "
                    "part:\n  " + "\n  ".join(shown) + advice)
    for answer in answers:
        say(f"without {explain(answer)}")
    return sorted(answer.host.name for answer in answers)


def _set_back(path: pathlib.Path, plan: Plan, transport: Transport,
              hosts: Sequence[Host]) -> list[str]:
    """Undo a start on these hosts; returns the problems."""
    problems = stop_plan(path, plan, transport, hosts)
    if not problems:
        run_path(path).unlink(missing_ok=True)
    return problems


def _push(path: pathlib.Path, plan: Plan, start: int, transport: Transport, share: float = 0.0,
          missing: Sequence[str] = ()) -> list[str]:
    """Start on every host that is there, or on none; returns the hosts that are missing."""
    exp = plan.experiment
    hosts = [host for host in plan.hosts if host.name not in missing]
    places = {host.name: place / len(hosts) for place, host in enumerate(hosts)}
    option = " --isolated-cpus" if exp.isolated_cpus else ""

    def command(host: Host) -> tuple[str, str]:
        text = f'faultline-ab start{option} "$f"'
        if exp.restart:
            # One after the other, within the first washout.
            after = places[host.name] * max(0, exp.washout - 2 * RESTART)
            when = datetime.datetime.fromtimestamp(start + RESTART + after, datetime.timezone.utc)
            text += (f" && systemd-run --quiet --unit=faultline-ab-restart-{exp.name} "
                     f"--on-calendar='{when:%Y-%m-%d %H:%M:%S} UTC' "
                     f"systemctl restart {shlex.quote(exp.restart)}")
        return with_file(text), design.host_file(plan, host, start)

    problems: list[str] = []
    lost: list[Answer] = []
    try:
        for answer in transport.everywhere(hosts, command, Progress("start", len(hosts))):
            if answer.status == UNREACHABLE:
                lost.append(answer)
            elif answer.status:
                problems.append(explain(answer))
        gone = [Answer(host, UNREACHABLE, "", "") for host in plan.hosts if host.name in missing]
        if lost:
            problems += _missing(plan, gone + lost, share)
        if not problems and time.time() > start:
            problems.append(f"slot 0 began at {local_time(start)}, before all hosts had the "
                            "plan: use a longer --lead")
        names = sorted([*missing, *(answer.host.name for answer in lost)])
        if not problems and not note(path, complete=int(time.time()), absent=names,
                                     unsure=sorted(answer.host.name for answer in lost)):
            problems.append("it was stopped meanwhile")
    except BaseException:
        say_anyway("interrupted: every host is set back")
        for problem in _set_back(path, plan, transport, hosts):
            say_anyway(f"  {problem}")
        raise
    if problems:
        left = _set_back(path, plan, transport, hosts)
        raise Error(f"not started, {'not every' if left else 'every'} host was set back:\n  "
                    + "\n  ".join(sorted(problems) + left))
    for answer in lost:
        say(f"without {explain(answer)}")
    return names


def _whole_minute(lead: float) -> int:
    """The first whole minute after some seconds."""
    return (int(time.time() + lead) + 59) // 60 * 60


def command_start(args: argparse.Namespace) -> int:
    """Start a plan on all its hosts."""
    plan = design.read(args.plan)
    exp = plan.experiment
    transport = Transport.trusted(exp.transport, args.plan, args.accept_transport, args.parallel)
    share = exp.allow_missing if args.allow_missing is None else args.allow_missing
    stages = [] if args.no_canary else canary.stages(plan, frozenset())
    took = time.monotonic()
    if args.dry_run:
        missing = _check(plan, len(stages), transport, share)
        for number, stage in enumerate(stages, start=1):
            say(f"canary {number}: {in_words(exp.slot)} on {len(stage.hosts)} of "
                f"{len(plan.hosts)} hosts: {names_of(stage.hosts)}")
        say(f"{exp.name} would run for {in_words(plan.seconds)} on "
            f"{len(plan.hosts) - len(missing)} hosts. Nothing was changed.")
        return 0
    place = run_path(args.plan)
    with alone(args.plan):
        check_not_started(args.plan)
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        # Before any host, so that a stop and a verdict find it whatever happens.
        note_start(args.plan, plan, _whole_minute(CHECK_SECONDS))
    try:
        missing = _check(plan, len(stages), transport, share)
        took = time.monotonic() - took
        if "stopped" in read_run(args.plan):
            raise Error("nothing was changed: it was stopped meanwhile")
        if not args.no_canary:
            canary.run(args.plan, canary.stages(plan, frozenset(missing)), transport, args.every)
        # The push takes about as long as the check.
        lead = max(LEAD, 2 * took) if args.lead is None else args.lead
        start = _whole_minute(lead)
        _check_time(plan, start, start + plan.seconds)
        if not note(args.plan, start=start, absent=missing):
            raise Error("no host is in the experiment: it was stopped meanwhile")
    except canary.Left:
        # The run file says what to stop.
        raise
    except BaseException:
        if before:
            design.write(place, before)
        else:
            place.unlink(missing_ok=True)
        raise
    missing = _push(args.plan, plan, start, transport, share, missing)
    say(f"{exp.name} runs from {local_time(start)} to {local_time(start + plan.seconds)} on "
        f"{len(plan.hosts) - len(missing)} hosts; next: faultline-rollout status {args.plan}")
    return 0
