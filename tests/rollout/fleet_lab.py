# SPDX-License-Identifier: GPL-2.0-only
"""A fleet for the tests of rollout/fleet: simulated values in a real Prometheus."""
from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

from faultline.common import ROOT

FLEET = ROOT / "rollout/fleet"
# One thread: the matrices are small.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import pytest  # noqa: E402

from faultline_rollout import cli, design, experiment, noise  # noqa: E402
from faultline_rollout.hosts import Host  # noqa: E402
from faultline_rollout.types import Array  # noqa: E402
from rollout.prometheus_lab import free_ports, programs, ready, wait_for  # noqa: E402

HOSTS, SLOT, WASHOUT, MINUTES = 16, 5, 1, 120
SLOTS = MINUTES // SLOT
# The start of all experiments, at the border of a block of Prometheus.
START = 1_790_000_000 // 7200 * 7200
SWITCH = "vm.speculative_page_fault"


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
         words: tuple[object, ...]) -> tuple[int, str, str]:
    """Run faultline-rollout in this process; returns status, output and errors."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["faultline-rollout", *map(str, words)])
    try:
        status = cli.main()
    except SystemExit as ended:
        status = int(str(ended.code))
    told = capsys.readouterr()
    return status, told.out, told.err


def source(name: str, **changes: Any) -> dict[str, Any]:
    """The contents of an experiment file."""
    values: dict[str, Any] = {
        "name": name, "switch": SWITCH, "a": 0, "b": 1, "slot": "5min", "washout": "1min",
        "duration": "2h", "expires": "48h", "canary": [], "selector": f'set="{name}"',
        "primary": {"query": f'avg_over_time(latency{{set="{name}"}}[$slot])',
                    "better": "lower", "margin": "1%"},
        "guard": [{"query": f'avg_over_time(throughput{{set="{name}"}}[$slot])',
                   "better": "higher", "margin": "2%", "name": "throughput"}],
        "mechanism": {"query": f'rate(node_vmstat_spf_anon{{set="{name}"}}[$slot])', "min": 1},
    }
    return values | changes


def fleet(count: int = HOSTS) -> tuple[Host, ...]:
    """Hosts host00, host01, ..."""
    names = [f"host{number:02}" for number in range(count)]
    return tuple(Host(name, name, f"{name}:9100", {}) for name in names)


def make_plan(name: str, **changes: Any) -> design.Plan:
    """Make a plan; its seed is its name."""
    values = source(name, **changes)
    exp = experiment.parse(values, "")
    hosts = fleet()
    arms = design.schedule(name, {"all": [host.name for host in hosts]}, SLOTS, exp.design)
    return design.Plan(exp, values, name, hosts, {host.name: "all" for host in hosts}, arms, {})


@dataclasses.dataclass
class Scenario:
    """The values of one experiment, minute by minute; a test may change them."""

    plan: design.Plan
    effect: float = 0.0
    guard: float = 0.0
    full: bool = True
    values: dict[str, Array] = dataclasses.field(default_factory=dict)
    releases: list[str] = dataclasses.field(default_factory=lambda: ["6.12-faultline1"] * HOSTS)

    def __post_init__(self) -> None:
        random = np.random.default_rng(list(self.plan.seed.encode()))
        model = noise.Noise()
        self.on = np.repeat(self.plan.assigned, SLOT, axis=1)
        self.values["latency"] = np.exp(
            model.draw(HOSTS, MINUTES, random) + np.log1p(self.effect) * self.on) / 100
        if not self.full:
            return
        minutes = START + 60.0 * np.arange(MINUTES) + 30
        shape = (HOSTS, MINUTES)
        self.values |= {
            "throughput": 1000 * np.exp(model.draw(HOSTS, MINUTES, random)
                                        + np.log1p(self.guard) * self.on),
            "node_sysctl_vm_speculative_page_fault": self.on.astype(float),
            "node_time_seconds": np.broadcast_to(minutes, shape).copy(),
            "node_boot_time_seconds": np.full(shape, START - 1e6),
            "node_vmstat_oom_kill": np.zeros(shape),
            "node_vmstat_spf_anon": np.cumsum(self.on * 6000.0, axis=1),
        }


def openmetrics(scenarios: list[Scenario], out: pathlib.Path, history: Array | None) -> None:
    """Write the values for promtool."""
    families: dict[str, list[str]] = {}
    stamps = [f"{START + 60 * minute + 30}" for minute in range(MINUTES)]
    for scenario in scenarios:
        name = scenario.plan.experiment.name
        for metric, values in scenario.values.items():
            lines = families.setdefault(metric, [])
            for host in range(len(values)):
                labels = f'{metric}{{instance="host{host:02}:9100",set="{name}"}} '
                lines += [f"{labels}{value!r} {stamp}"
                          for value, stamp in zip(map(float, values[host]), stamps)
                          if value == value]
        if scenario.full:
            lines = families.setdefault("node_uname_info", [])
            for host, release in enumerate(scenario.releases):
                lines += [f'node_uname_info{{instance="host{host:02}:9100",set="{name}",'
                          f'release="{release}"}} 1 {stamp}' for stamp in stamps]
    if history is not None:
        begin = START - history.shape[1] * 60
        families["latency"] += [
            f'latency{{instance="host{host:02}:9100",set="history"}} {value!r} '
            f'{begin + 60 * minute + 30}'
            for host in range(len(history))
            for minute, value in enumerate(map(float, history[host]))]
        # The values of node_exporter in the last two hours.
        for minute in range(-MINUTES, 0):
            stamp = START + 60 * minute + 30
            for metric, value in (("node_sysctl_vm_speculative_page_fault", 0),
                                  ("node_time_seconds", stamp),
                                  ("node_boot_time_seconds", START - 10 ** 6),
                                  ("node_vmstat_oom_kill", 0), ("node_vmstat_spf_anon", 0),
                                  ('node_uname_info{release="6.12-faultline1"', 1)):
                name, _, label = metric.partition("{")
                families.setdefault(name, []).extend(
                    f'{name}{{instance="host{host:02}:9100",set="history"'
                    f'{"," if label else ""}{label}}} {value} {stamp}'
                    for host in range(len(history)))
    with open(out, "w", encoding="utf-8") as file:
        for metric, lines in families.items():
            file.write(f"# TYPE {metric} gauge\n" + "\n".join(lines) + "\n")
        file.write("# EOF\n")


@contextlib.contextmanager
def prometheus(folder: pathlib.Path, scenarios: list[Scenario],
               history: Array | None = None) -> Iterator[str]:
    """Run Debian's Prometheus with these values; gives its URL."""
    there = programs()
    text, store = folder / "values.txt", folder / "tsdb"
    openmetrics(scenarios, text, history)
    subprocess.run([there / "promtool", "tsdb", "create-blocks-from", "openmetrics", text, store],
                   check=True, stdout=subprocess.DEVNULL)
    text.unlink()
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n")
    port, = free_ports(1)
    with open(folder / "prometheus.log", "wb") as log, subprocess.Popen(
            [there / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={store}",
             "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: ready(url), process)
            yield url
        finally:
            process.terminate()


def rollout(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command faultline-rollout."""
    return subprocess.run([FLEET / "faultline-rollout", *map(str, words)], capture_output=True,
                          text=True, check=False, env=os.environ | environment, timeout=600)


def write_plan(folder: pathlib.Path, plan: design.Plan, start: int = START) -> pathlib.Path:
    """Write a plan and its .run.json, as after a start."""
    path = folder / f"{plan.experiment.name}.json"
    design.write(path, plan.text())
    design.write(path.with_suffix(".run.json"),
                 json.dumps({"plan": plan.digest, "start": start}))
    return path
