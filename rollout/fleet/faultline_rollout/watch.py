# SPDX-License-Identifier: GPL-2.0-only
"""A look at a running experiment: at the hosts, and at whether Prometheus sees them."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .design import Plan
from .hosts import Host, Transport, explain
from .prometheus import Prometheus

# States of a host that does what the plan says.
GOOD_STATES = ("waiting", "running", "finished")


def seen(plan: Plan, now: float) -> float:
    """The share of the hosts that Prometheus has scraped in the last minutes."""
    exp = plan.experiment
    values = Prometheus(exp.prometheus, exp.host_label).table(
        f"node_boot_time_seconds{{{exp.selector}}}", plan.hosts, now, 1, 1)
    return float(np.isfinite(values).mean())


def host_states(plan: Plan, hosts: Sequence[Host], transport: Transport) -> dict[str, str]:
    """The state of each host, by its faultline-ab."""
    states: dict[str, str] = {}
    for answer in transport.everywhere(hosts, lambda host: ("faultline-ab status --json", "")):
        name = answer.host.name
        if answer.status:
            states[name] = explain(answer).partition(": ")[2]
            continue
        try:
            row: dict[str, Any] = next((row for row in json.loads(answer.out)["experiments"]
                                        if row.get("name") == plan.experiment.name), {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            states[name] = "its faultline-ab is of another version: update faultline-host"
            continue
        if not row:
            states[name] = "is not in the experiment: not started yet, stopped, expired or rebooted"
        elif row.get("plan") != plan.digest:
            states[name] = "runs another plan"
        elif row.get("state") == "ended":
            states[name] = (f"ended: {plan.experiment.switch} was set to {row.get('set_by_hand')} "
                            "by hand there")
        elif row.get("value") != row.get("assigned"):
            states[name] = f"has {row.get('value')}, and should have {row.get('assigned')}"
        else:
            states[name] = str(row.get("state"))
    return states
