# SPDX-License-Identifier: GPL-2.0-only
"""The canary: a few hosts have the value of b for a slot each, before half of the fleet has it."""
from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import time
from collections.abc import Sequence

from . import Error, design
from .command_stop import stop_hosts
from .conditions import firing_now
from .design import Plan
from .experiment import in_words
from .hosts import Transport, explain, names_of, with_file
from .measured import crashed_in_b, oom_kills
from .run import note_stop, read_run
from .terminal import Progress, say, say_anyway
from .watch import GOOD_STATES, host_states, seen

# From the push to the change of the switch.
LEAD = 15
# Looks in succession that may give no values.
BLIND = 3


class Left(Error):
    """A host of the canary was not set back."""


def stages(plan: Plan, missing: frozenset[str]) -> list[Plan]:
    """A plan for each stage: its hosts are in arm b, in one slot."""
    exp = plan.experiment
    if exp.design == "parallel":
        # Hosts of arm a would keep mappings of arm b.
        return []
    order = sorted((host for host in plan.hosts if host.name not in missing),
                   key=lambda host: hashlib.sha256(
                       f"{plan.seed}\0canary\0{host.name}".encode()).digest())
    found: list[Plan] = []
    for word in exp.canary:
        size = -(-int(word[:-1]) * len(plan.hosts) // 100) if word.endswith("%") else int(word)
        # Half of the fleet is what the experiment itself begins with.
        size = min(size, len(order) // 2)
        if found and size <= len(found[-1].hosts) or not size:
            continue
        hosts = tuple(order[:size])
        found.append(dataclasses.replace(
            plan, hosts=hosts, arms={host.name: "b" for host in hosts},
            # If this program is killed, they are set back soon.
            experiment=dataclasses.replace(exp, expires=2 * exp.slot)))
    return found


def run(path: pathlib.Path, plans: Sequence[Plan], transport: Transport, every: float) -> None:
    """Run the stages, one after the other; an error and stock values at the first harm."""
    for number, plan in enumerate(plans, start=1):
        exp, title = plan.experiment, f"canary {number}"
        say(f"{title}: {exp.switch} = {exp.b} for {in_words(exp.slot)} on {len(plan.hosts)} "
            f"hosts: {names_of(plan.hosts)}")
        try:
            problems = _stage(path, plan, transport, every)
        except BaseException:
            note_stop(path)
            for problem in stop_hosts(exp.name, plan.hosts, transport):
                say_anyway(f"  {problem}")
            raise
        left = stop_hosts(exp.name, plan.hosts, transport)
        if left:
            note_stop(path)
        if problems or left:
            raise (Left if left else Error)(f"not started: {title} failed, and " + (
                "not every host of it was set back" if left else "its hosts were set back")
                + ":\n  " + "\n  ".join(problems + left))
        say(f"{title}: no harm")


def _stage(path: pathlib.Path, plan: Plan, transport: Transport, every: float) -> list[str]:
    """Run a stage until its end or the first problem; returns the problems."""
    exp = plan.experiment
    start = int(time.time()) + LEAD
    option = " --isolated-cpus" if exp.isolated_cpus else ""
    command = with_file(f'faultline-ab start{option} "$f"')
    problems = [explain(answer) for answer in transport.everywhere(
        plan.hosts, lambda host: (command, design.host_file(plan, host, start)),
        Progress("canary", len(plan.hosts))) if answer.status]
    blind = 0
    while not problems:
        time.sleep(max(1.0, min(every, start + exp.slot - time.time())))
        now = time.time()
        if "stopped" in read_run(path):
            return ["it was stopped meanwhile"]
        if now < start:
            continue
        try:
            problems += [f"{name}: crashed" for name in crashed_in_b(plan, start, now)]
            problems += [f"{name}: OOM kill" for name in oom_kills(plan, start, now)]
            if firing := firing_now(exp):
                problems.append(f"these alerts fire: {firing}")
            if seen(plan, now) < 1:
                raise Error("Prometheus has no time of boot for a host of it")
            blind = 0
        except Error as err:
            blind += 1
            if blind >= BLIND or now >= start + exp.slot:
                problems.append(f"nothing is seen: {err}")
        # Prometheus gives the last value of a host that hangs for some minutes.
        problems += [f"{name}: {state}" for name, state in host_states(
            plan, plan.hosts, transport).items() if state not in GOOD_STATES]
        if now >= start + exp.slot:
            break
    return problems
