# SPDX-License-Identifier: GPL-2.0-only
"""The command trial: take a fleet to another kernel, ring by ring."""
from __future__ import annotations

import argparse
import re
import time

from . import Error, experiment, trial
from .conditions import blackout_at, firing_now, hosts_of
from .hosts import Transport
from .terminal import say


def command_trial(args: argparse.Namespace) -> int:
    """Take a fleet to another kernel, ring by ring."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*", args.kernel):
        raise Error(f"'{args.kernel}' is not a kernel release: write what uname -r prints")
    exp, _ = experiment.load(args.file)
    hosts = hosts_of(args.file, exp)

    def hold(step: str, reboots: bool) -> None:
        if reboots and (blackout := blackout_at(exp, time.time(), time.time() + work.wait)):
            raise Error(f"{step} would run into {blackout}, and was not started")
        if firing := firing_now(exp):
            raise Error(f"these alerts fire: {firing}: {step} was not started")

    work = trial.Trial(
        args.kernel, hosts, Transport(exp.transport), args.reboot, experiment.seconds(args.wait),
        args.every, args.soak, trial.share(args.max_unavailable, len(hosts)),
        lambda host: "/".join(host.facts.get(key, "") for key in exp.strata),
        args.retry_failed, say, hold)
    if args.kernel == trial.NEWEST:
        work.kernel = trial.newest(work.ask(hosts))
    work.hosts = trial.order(work.kernel, hosts)
    sizes = trial.rings(args.rings, len(hosts))
    if args.dry_run:
        states = work.ask(hosts)
        for number, (first, last) in enumerate(zip([0, *sizes], sizes), start=1):
            say(f"ring {number}: " + ", ".join(
                f"{host.name} ({states[host.name].kind})" for host in work.hosts[first:last]))
        say("Nothing was changed.")
        return 0
    for number, (first, last) in enumerate(zip([0, *sizes], sizes), start=1):
        if problems := work.ring(number, first, last, not args.no_promote):
            say(f"ring {number} failed, no other host was touched:")
            for problem in problems:
                say(f"  {problem}")
            return 10
    say(f"{work.kernel}: {sizes[-1]} of {len(hosts)} hosts have it"
        + ("; it is not their default" if args.no_promote else ""))
    return 0
