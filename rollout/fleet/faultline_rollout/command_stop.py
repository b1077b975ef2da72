# SPDX-License-Identifier: GPL-2.0-only
"""The command stop: set every host back."""
from __future__ import annotations

import argparse
import json

from . import Error, experiment
from .hosts import Host, Transport, explain
from .run import note_stop
from .terminal import Progress, say


def stop_hosts(name: str, hosts: tuple[Host, ...], transport: Transport,
               restart: bool = False) -> list[str]:
    """Stop an experiment; returns the problems."""
    command = f"faultline-ab stop {name}"
    if restart:
        command = f"systemctl stop faultline-ab-restart-{name}.timer 2>/dev/null; {command}"
    problems = []
    for answer in transport.everywhere(hosts, lambda host: (command, ""),
                                       Progress("stop", len(hosts))):
        if answer.status:
            problems.append(f"{explain(answer)}; it ends by itself when it expires, and by a "
                            "reboot")
    return sorted(problems)


def command_stop(args: argparse.Namespace) -> int:
    """Set every host back.  Needs neither Prometheus nor a plan that is intact."""
    try:
        body = json.loads(args.plan.read_text(encoding="utf-8"))
        hosts = tuple(Host(row["name"], row["address"], "", {}) for row in body["hosts"])
        if not hosts or not all(isinstance(text, str) for host in hosts
                                for text in (host.name, host.address)):
            raise ValueError
        name = body["experiment"]["name"]
        words = body["experiment"].get("transport", {}).get("command", list(experiment.SSH))
    except OSError as err:
        raise Error(f"cannot read {args.plan}: {err.strerror}: run `faultline-ab stop --all` on "
                    "the hosts") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Error(f"{args.plan} is not a plan: run `faultline-ab stop --all` on the hosts") \
            from None
    # faultline-ab takes '' and --all, too.
    if not isinstance(name, str) or not experiment.NAME.fullmatch(name):
        raise Error(f"{args.plan} has no name: run `faultline-ab stop --all` on the hosts")
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise Error(f"{args.plan} has no transport: run `faultline-ab stop --all` on the hosts")
    note_stop(args.plan)
    service = body["experiment"].get("restart")
    problems = stop_hosts(name, hosts, Transport(words), bool(service))
    if service:
        say(f"{service} keeps what its arm decided for its mappings until it restarts")
    say(f"{name}: stopped on {len(hosts) - len(problems)} of {len(hosts)} hosts")
    if problems:
        raise Error(f"{len(problems)} hosts could not be stopped:\n  " + "\n  ".join(problems))
    return 0
