# SPDX-License-Identifier: GPL-2.0-only
"""The command status: show how an experiment is going, and end it if it does harm."""
from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from . import Error, design, report
from .command_stop import stop_plan
from .design import Plan
from .hosts import UNREACHABLE, Host, Transport, names_of
from .run import (
    UNFINISHED, absent, leave_out, never_had, read_run, started, unfinished, until)
from .terminal import local_time, say, say_anyway, say_aside
from .measured import collect, crashed_in_b
from .outcome import EXIT, INVALID, WORSE, Result
from .verdict import judge
from .watch import GOOD_STATES, host_states, seen

# Less than this share of the hosts in Prometheus is a look that sees nothing.
ENOUGH = 0.5
# Hosts in a bad state that are listed.
SHOWN = 50
# Of the environment, for a unit.
KEPT = ("HOME", "PATH", "SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "PYTHONPATH",
        "http_proxy", "https_proxy", "no_proxy")


# Hosts of which one has to answer without the agent of a session.
TRIED = 5
# A host does not do what the plan says.
ASTRAY = 40


@dataclasses.dataclass
class Look:
    """One look at a running experiment."""

    share: float
    hosts: dict[str, str]
    result: Result | None
    problem: str
    # Whether it should have had values, and had none.
    blind: bool
    # The start has not reached all hosts.
    halfway: str = ""


def _look(plan: Plan, start: float, at: float | None, out: frozenset[str]) -> Look:
    """Look at the values."""
    result, problem, blind = None, "", False
    moment = time.time() if at is None else at
    try:
        data = leave_out(plan, collect(plan, start, at), out)
        result = judge(plan, data, draws=499)
        if moment > start:
            blind = seen(plan, moment) < ENOUGH or \
                bool(data.slots) and not np.isfinite(data.primary[:, -1]).any()
            problem = "Prometheus has no values of the hosts now" if blind else ""
    except Error as err:
        problem, blind = str(err), moment > start
    return Look(min(1.0, max(0.0, (moment - start) / plan.seconds)), {}, result, problem, blind)


def _show(plan: Plan, start: float, look: Look, as_json: bool,
          tell: Callable[[str], None]) -> None:
    if as_json:
        tell(json.dumps({"name": plan.experiment.name, "progress": round(look.share, 4),
                         "hosts": look.hosts, "blind": look.blind,
                         "problem": "; ".join(filter(None, [look.halfway, look.problem])) or None,
                         "result": look.result.to_json() if look.result else None}))
        return
    full = int(40 * look.share)
    tell(f"{plan.experiment.name} [{'#' * full}{'.' * (40 - full)}] {look.share:.0%}, until "
         f"{local_time(start + plan.seconds)}")
    if look.hosts:
        counts = collections.Counter(look.hosts.values())
        tell("  hosts: " + (", ".join(f"{counts[state]} {state}" for state in GOOD_STATES
                                      if state in counts) or "none in the experiment"))
        bad = [(name, state) for name, state in sorted(look.hosts.items())
               if state not in GOOD_STATES]
        for name, state in bad[:SHOWN]:
            tell(f"  {name}: {state}")
        if len(bad) > SHOWN:
            tell(f"  and {len(bad) - SHOWN} more")
    for text in filter(None, (look.halfway, look.problem)):
        tell(f"  {text}")
    if look.result:
        tell(f"  {look.result.verdict}: {report.sentence(look.result)}")
        for reason in look.result.reasons:
            tell(f"    {reason}")


def _harmed(plan: Plan, start: float, look: Look, at: float | None, out: frozenset[str],
            tell: Callable[[str], None]) -> bool:
    """Has arm b done harm?  Says which hosts crashed in a slot that is not over."""
    found = look.result
    if found and found.harmful:
        return True
    try:
        hosts = [name for name in crashed_in_b(plan, start, time.time() if at is None else at)
                 if name not in out]
    except Error as err:
        if str(err) != look.problem:
            tell(f"  {err}")
        return False
    for host in hosts:
        tell(f"  {host}: crashed in arm b")
    return bool(hosts)


def _exit_status(look: Look, out: frozenset[str], stopped: bool) -> int:
    """The status of one look: that of the verdict where it means the same."""
    result = look.result
    if result and result.harmful:
        return EXIT[WORSE]
    if result and result.verdict == INVALID or look.blind and not stopped:
        return EXIT[INVALID]
    if look.halfway or not stopped and look.share < 1 and any(
            state not in GOOD_STATES for name, state in look.hosts.items() if name not in out):
        return ASTRAY
    return result.exit_status if result and result.final else 0


def _end(args: argparse.Namespace, plan: Plan, start: float, transport: Transport, why: str,
         tell: Callable[[str], None]) -> None:
    """Set every host back, also those that can be reached later."""
    tell(f"{why}: every host is set back")
    never = never_had(args.plan)
    left: Sequence[Host] = plan.hosts
    while left:
        problems = stop_plan(args.plan, plan, transport, left)
        for problem in problems:
            tell(f"  {problem}")
        names = {problem.partition(":")[0] for problem in problems} - never
        left = [host for host in left if host.name in names]
        # After that time, hosts end it by themselves.
        if not args.watch or time.time() >= start + plan.experiment.expires:
            break
        if left:
            tell(f"  {len(left)} hosts are tried again in {args.every} s")
            time.sleep(args.every)


def _check_agent(path: pathlib.Path, plan: Plan, transport: Transport) -> None:
    """Refuse to go on without a terminal if hosts are reached by its agent only."""
    agent = os.environ.get("SSH_AUTH_SOCK", "")
    # There, it is a service of the user.
    if not agent or os.path.realpath(agent).startswith(f"/run/user/{os.getuid()}/"):
        return
    some = [host for host in plan.hosts if host.name not in absent(path)][:TRIED]
    answers = list(dataclasses.replace(transport, session=False).everywhere(
        some, lambda host: ("true", "")))
    if answers and all(answer.status == UNREACHABLE for answer in answers):
        raise Error("the ssh agent of this session can end at logout, and without it the watch "
                    f"reaches none of {names_of(some)} ({answers[0].reason}), so it could stop "
                    "nothing: give ssh a key in a file (IdentityFile in ~/.ssh/config), or run the "
                    "agent as a service of the user")


def _detach(args: argparse.Namespace, name: str) -> int:
    """Go on as a unit of systemd, which a logout does not end."""
    root = os.getuid() == 0
    unit = f"faultline-rollout-{name}"
    manager = ["systemctl"] if root else ["systemctl", "--user"]
    words = ["systemd-run", *([] if root else ["--user"]), f"--unit={unit}", "--collect",
             # After an error, and if it is killed; not after a verdict.
             "--property=Restart=on-failure", "--property=RestartSec=10",
             "--property=RestartPreventExitStatus=10 20 30 40",
             f"--working-directory={os.getcwd()}"]
    words += [f"--setenv={key}={value}" for key, value in sorted(os.environ.items())
              if key in KEPT or key.startswith(("FAULTLINE_", "FLEET_"))]
    words += [os.path.abspath(sys.argv[0]), "status", "--watch", "--stop-on-harm",
              "--blind", str(args.blind), "--every", str(args.every),
              *(["--start", str(args.start)] if args.start is not None else []),
              *(["--no-hosts"] if args.no_hosts else []),
              *(["--accept-transport"] if args.accept_transport else []),
              *(["--parallel", str(args.parallel)] if args.parallel else []),
              "--", str(args.plan.absolute())]
    try:
        if not root:
            told = subprocess.run(["loginctl", "show-user", str(os.getuid()),
                                   "--property=Linger"], capture_output=True, text=True,
                                  check=False).stdout
            if told.strip() == "Linger=no":
                raise Error("systemd ends your units when you log out: run "
                            "`loginctl enable-linger` first")
        done = subprocess.run(words, capture_output=True, text=True, check=False,
                              errors="replace")
    except OSError as err:
        raise Error(f"cannot run {err.filename}: {err.strerror}: use nohup instead of "
                    "--detach") from None
    if done.returncode:
        raise Error(f"systemd-run does not start {unit}: {' '.join(done.stderr.split())}")
    say(f"{unit} watches; look at it with: {' '.join(manager)} status {unit}")
    return 0


def command_status(args: argparse.Namespace) -> int:
    """Show how an experiment is going."""
    plan = design.read(args.plan)
    start = started(args.plan, plan) if args.start is None else args.start
    transport = Transport.trusted(plan.experiment.transport, args.plan, args.accept_transport,
                                  args.parallel)
    if args.detach:
        if not (args.watch and args.stop_on_harm):
            raise Error("--detach is for --watch --stop-on-harm")
        _check_agent(args.plan, plan, transport)
        return _detach(args, plan.experiment.name)
    # A watch goes on if the disk is full or the terminal is closed.
    show: Callable[[str], None] = say
    if args.stop_on_harm:
        show = say_anyway
    tell = say_aside if args.json else show
    blind = 0
    while True:
        out, at = absent(args.plan), until(args.plan, args.at)
        look = _look(plan, start, at, out)
        if unfinished(args.plan):
            look.halfway = f"the start {UNFINISHED.format(args.plan)}"
        # Before the hosts are asked, which takes a while with thousands of them.
        harm = args.stop_on_harm and _harmed(plan, start, look, at, out, tell)
        stopped = "stopped" in read_run(args.plan)
        ends = args.stop_on_harm and not stopped
        blind += 1
        if not (harm or args.no_hosts or ends and look.blind and blind >= args.blind):
            try:
                look.hosts = host_states(plan, plan.hosts, transport)
                look.hosts |= {name: "was missing at the start" for name in out}
            except Error as err:
                if not args.stop_on_harm:
                    raise
                # If hosts cannot be asked, they cannot be stopped either.
                look.blind, look.problem = True, str(err)
        blind = blind if look.blind else 0
        last = ends and blind >= args.blind
        _show(plan, start, look, args.json, show)
        if harm:
            _end(args, plan, start, transport, "harm", tell)
            return EXIT[WORSE]
        if last:
            _end(args, plan, start, transport,
                 f"no values in {blind} looks, so harm would not be seen", tell)
            return EXIT[INVALID]
        if not args.watch or look.share >= 1 or stopped:
            return _exit_status(look, out, stopped)
        time.sleep(args.every)
