# SPDX-License-Identifier: GPL-2.0-only
"""The command stop: set every host back."""
from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from . import Error, config, design, experiment
from .design import Plan
from .hosts import Host, Transport, explain, inventory
from .run import never_had, note_stop, read_run, run_path
from .terminal import Progress, say, say_anyway, undoing

ON_HOSTS = "run `faultline-rollout stop --all --inventory FILE`, or `faultline-ab stop --all` on " \
    "the hosts"


def stop_hosts(name: str, hosts: Sequence[Host], transport: Transport,
               restart: bool = False) -> list[str]:
    """Stop an experiment, or all with the name --all; returns the problems."""
    command = f"faultline-ab stop {name}"
    if restart:
        command = f"systemctl stop faultline-ab-restart-{name}.timer 2>/dev/null; {command}"
    problems = []
    with undoing():
        for answer in dataclasses.replace(transport, interruptible=False).everywhere(
                hosts, lambda host: (command, ""), Progress("stop", len(hosts))):
            if answer.status:
                problems.append(f"{explain(answer)}; it ends by itself when it expires, and by a "
                                "reboot")
    return sorted(problems)


def stop_plan(path: pathlib.Path, plan: Plan, transport: Transport,
              hosts: Sequence[Host]) -> list[str]:
    """Stop a plan on these hosts, and note that first; returns the problems."""
    # In case that this is killed.
    note_stop(path)
    problems = stop_hosts(plan.experiment.name, hosts, transport, bool(plan.experiment.restart))
    if problems:
        problems.append(f"use `faultline-rollout stop {path}` when they can be reached")
    return problems


@dataclasses.dataclass
class Stop:
    """An experiment, its hosts, and the way to them."""

    name: str
    hosts: tuple[Host, ...]
    words: Sequence[str] = experiment.SSH
    restart: str = ""
    # Hosts that never had the plan.
    out: frozenset[str] = frozenset()


def _stop_of(body: Any, where: pathlib.Path, words: Any) -> Stop:
    """Read what a plan or its run file says."""
    try:
        # The order of checks is that of what matters most on the hosts.
        name, rows = body["name"], body["hosts"]
        hosts = tuple(design.host_of(row) for row in rows)
        if not hosts:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Error(f"{where} is not a plan: {ON_HOSTS}") from None
    # faultline-ab takes '' and --all, too.
    if not isinstance(name, str) or not experiment.NAME.fullmatch(name):
        raise Error(f"{where} has no name: {ON_HOSTS}")
    try:
        command = experiment.command_of(experiment.Table({"command": words}, "", ["command"]))
    except Error:
        raise Error(f"{where} has no transport that reaches a host and runs a command there: "
                    f"{ON_HOSTS}") from None
    return Stop(name, hosts, command, body.get("restart") or "")


def _read(path: pathlib.Path) -> Stop:
    """Read a plan; if it is damaged, what was written at its start."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        found = body["experiment"]
        return _stop_of({"name": found["name"], "restart": found.get("restart"),
                         "hosts": body["hosts"]}, path,
                        found.get("transport", {}).get("command", list(experiment.SSH)))
    except OSError as err:
        problem = Error(f"cannot read {path}: {err.strerror}: {ON_HOSTS}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = Error(f"{path} is not a plan: {ON_HOSTS}")
    except Error as err:
        problem = err
    run = read_run(path)
    if "hosts" not in run:
        raise problem
    stop = _stop_of(run, run_path(path), list(experiment.SSH))
    say_anyway(f"{path} is not a plan any more: {run_path(path)} has the hosts")
    return stop


def command_stop(args: argparse.Namespace) -> int:
    """Set every host back.  Needs neither Prometheus nor files that are intact."""
    if problem := config.spare():
        say_anyway(f"warning: {problem}; hosts are reached as without that file")
    if args.inventory:
        if args.plan or bool(args.name) == args.all:
            raise Error("stop: give PLAN, or --inventory FILE with either --name NAME or --all")
        stop = Stop(args.name or "--all", tuple(inventory(args.inventory)))
        if args.name and not experiment.NAME.fullmatch(args.name):
            raise Error(f"--name: '{args.name}' is not the name of an experiment")
    else:
        if not args.plan or args.name or args.all:
            raise Error("stop: give PLAN, or --inventory FILE with either --name NAME or --all")
        stop = _read(args.plan)
        stop.out = never_had(args.plan)
    transport = Transport.trusted(stop.words, args.plan or args.inventory, args.accept_transport,
                                  args.parallel)
    if args.plan:
        note_stop(args.plan)
    problems = stop_hosts(stop.name, stop.hosts, transport, bool(stop.restart))
    if stop.restart:
        say(f"{stop.restart} keeps what its arm decided for its mappings until it restarts")
    never = [text for text in problems if text.partition(":")[0] in stop.out]
    problems = [text for text in problems if text not in never]
    title = "all experiments" if args.all else stop.name
    say(f"{title}: stopped on {len(stop.hosts) - len(problems) - len(never)} of "
        f"{len(stop.hosts)} hosts")
    if never:
        say(f"{len(never)} hosts cannot be reached, and were missing at the start, too")
    if problems:
        raise Error(f"{len(problems)} hosts could not be stopped:\n  " + "\n  ".join(problems))
    return 0
