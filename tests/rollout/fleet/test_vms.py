# SPDX-License-Identifier: GPL-2.0-only
"""An experiment on VMs with the real kernel, judged by metrics whose effect is known.

One run of the demo's fleet serves all tests.  Verdicts err in at most 4 % of all experiments, so
test_scaled and test_same each fail in up to one run of 25 without a fault.
"""
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from demo import rollout as demo
from rollout import fleet_lab, prometheus_lab, vm_fleet

from faultline.common import ROOT, Paths
from faultline_rollout import design, experiment, run

B = -0.10
# The second Prometheus is killed in the third slot or before it.
KILLED_AFTER = 210


class Ran:
    """An experiment that is over."""

    def __init__(self, found: vm_fleet.Fleet, path: pathlib.Path, lossy: str) -> None:
        self.fleet = found
        self.plan = design.read(path)
        self.start = run.started(path, self.plan)
        self.lossy = lossy

    def verdict(self, **changes: Any) -> dict[str, Any]:
        """Judge the experiment with other lines in its file."""
        values = {**self.plan.source, **changes}
        plan = design.Plan(experiment.parse(values, ""), values, self.plan.seed, self.plan.hosts,
                           self.plan.strata, self.plan.arms, {})
        path = self.fleet.folder / "again.json"
        design.write(path, plan.text())
        done = fleet_lab.rollout("verdict", path, "--json", "--start", str(int(self.start)))
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_status"] == done.returncode
        return found

    def latency(self, metric: str) -> dict[str, Any]:
        """Judge the experiment by a simulated latency."""
        return self.verdict(primary={
            "query": f"rate({metric}[$slot]) / rate(load_draws_total[$slot])",
            "better": "lower", "margin": "1%"})


@pytest.fixture(name="ran", scope="module")
def fixture_ran() -> Iterator[Ran]:
    """The experiment of the demo, also seen by a Prometheus that is killed meanwhile."""
    os.environ["PYTHONPATH"] = ":".join(
        str(ROOT / name) for name in ("tools", "rollout/fleet", "tests"))
    with vm_fleet.fleet(Paths.from_env().build / "fleet", demo.GUESTS) as found:
        path = demo.write_plan(found)
        port, = prometheus_lab.free_ports(1)
        with vm_fleet.scrape(found, port, "lossy", "timeout", "--signal=KILL", str(KILLED_AFTER)):
            demo.alternate(found, path)
        with vm_fleet.scrape(found, port, "lossy") as lossy:
            yield Ran(found, path, lossy)
        assert fleet_lab.rollout("stop", path).returncode == 0
        assert {guest.switch() for guest in found.guests} == {"0"}
        assert not found.end()


def test_scaled(ran: Ran) -> None:
    """The interval of a latency that is 10 % lower in arm b contains that, and not 0."""
    found = ran.latency("load_scaled_microseconds_total")
    assert found["verdict"] == "BETTER", found
    assert found["effect"]["low"] <= B <= found["effect"]["high"] < 0, found


def test_same(ran: Ran) -> None:
    """A latency that does not depend on the switch gets neither BETTER nor WORSE."""
    found = ran.latency("load_same_microseconds_total")
    assert found["verdict"] in ("EQUIVALENT", "INCONCLUSIVE"), found


def test_stall(ran: Ran) -> None:
    """A real stall is shorter in arm b, and the switch's counter grows there only."""
    found = ran.verdict()
    assert found["verdict"] == "BETTER", found
    assert found["mechanism"]["b"] > 0.5 > found["mechanism"]["a"], found


def test_other_counter(ran: Ran) -> None:
    """A counter that the switch does not move gives NOT EXERCISED."""
    found = ran.verdict(mechanism={"query": "rate(node_vmstat_spf_anon[$slot])", "min": 0.5})
    assert found["verdict"] == "NOT EXERCISED", found


def test_prometheus_is_killed(ran: Ran) -> None:
    """With most values missing, the experiment is INVALID."""
    found = ran.verdict(prometheus=ran.lossy)
    assert found["verdict"] == "INVALID" and "are missing" in found["reasons"][0], found
