# SPDX-License-Identifier: GPL-2.0-only
"""Conditions under which hosts may change: the cap, the alerts, the blackouts."""
from __future__ import annotations

import pathlib

from . import Error, experiment
from .hosts import Host, inventory
from .prometheus import Prometheus
from .terminal import local_time, say_aside


def hosts_of(file: pathlib.Path, exp: experiment.Experiment) -> list[Host]:
    """The hosts of an experiment file."""
    hosts = inventory(file.parent / exp.inventory)
    if len(hosts) > exp.max_hosts:
        raise Error(f"the inventory has {len(hosts)} hosts, and max_hosts is {exp.max_hosts}")
    return hosts


def firing_now(exp: experiment.Experiment) -> str:
    """The alerts of an experiment file that fire now; refuses those that can never fire."""
    if not exp.alerts:
        return ""
    server = Prometheus(exp.prometheus, exp.host_label)
    unknown = server.unknown(exp.alerts)
    if unknown:
        raise Error(f"alerts: no rule of {exp.prometheus} is named {unknown[0]}, so it would never "
                    "fire: correct the name, or take it out")
    firing = ", ".join(server.firing(exp.alerts))
    if unknown is None:
        say_aside(f"warning: alerts: {exp.prometheus} does not list its rules, so an alert whose "
                  "name is wrong would not be noticed")
    return firing


def blackout_at(exp: experiment.Experiment, first: float, last: float) -> str:
    """The blackout that a time would run into, in words; nothing if there is none."""
    for window in exp.blackout:
        if found := window.overlap(first, last):
            return f"the blackout from {local_time(found[0])} to {local_time(found[1])}"
    return ""
