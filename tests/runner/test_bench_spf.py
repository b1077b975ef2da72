# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark of speculative page faults: its boots, its aims, single scenes."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench import cli, guest, spf
from bench.guest import BenchError, Boot, Kernels, Sample
from bench.report import Report
from faultline.vm.qemu import Machine

KERNELS = Kernels(Path("ours"), Path("stock"))
UNITS = {"locks": "of_eligible", "throughput": "touches/s", "cost": "ticks"}


def printed(scene: str, threads: str) -> list[str]:
    """Return the metrics of SCENE that have an aim."""
    if scene in spf.WAITS:
        return [f"{scene}_same_{what}" for what in ("p99", "any_p99", "max")]
    if scene in spf.HUGE:
        return [f"{scene}_{who}_{what}" for who in ("writer", "mapper") for what in ("p99", "max")]
    if scene == "locks":
        return ["user_lock_free", "kernel_lock_free"]
    if scene == "throughput":
        return [f"{what}_{threads}" for what in ("one_vma", "own_vma", "records")]
    return [f"cost_{cost}" for cost in spf.COSTS]


class Bench:
    """A benchmark without VMs: each figure is 2 in arm 1 and 1 in all other arms."""

    def __init__(self) -> None:
        self.booted: list[tuple[Machine, list[list[str]], str]] = []

    def boot(self, machine: Machine, program: Path, commands: list[list[str]],
             name: str) -> Boot:
        """Record the boot and return its samples."""
        self.booted.append((machine, commands, name))
        return Boot([Sample(metric, UNITS.get(words[-1], "us"), arm, 2 if arm == "1" else 1)
                     for words in commands
                     for arm in words[words.index("--arms") + 1].split(",")
                     for metric in printed(words[-1], words[words.index("--threads") + 1])],
                    "6.12-test", "tcg")

    def run(self, plan: spf.Plan, cpus: int = 2, kernels: Kernels = KERNELS) -> Report:
        """Run PLAN on a host with CPUS."""
        self.booted = []
        with mock.patch.object(guest, "boot", self.boot), \
                mock.patch.object(guest, "compile_program"), \
                mock.patch.object(spf, "real_cpus", return_value=cpus), \
                mock.patch("sys.stderr"):
            return spf.run(kernels, plan)


@pytest.fixture
def bench() -> Bench:
    """A benchmark."""
    return Bench()


def test_aims(bench: Bench, tmp_path: Path) -> None:
    report = bench.run(spf.Plan())
    aims = {(aim.metric, aim.arm, aim.vs): aim for aim in report.aims}
    for metric, aim, least in (
            ("virtual_cpu_max_same_p99", 0.1, False), ("virtual_cpu_max_same_max", 0.1, False),
            ("one_vma_1", 1, True), ("own_vma_2", 1, True),
            ("records_1", 1.25, True), ("records_2", 1.25, True),
            ("virtual_compact_writer_max", 0.1, False), ("virtual_huge_mapper_p99", 0.2, False),
            ("alone_cost_table", 1.05, False), ("alone_cost_huge", 1.005, False),
            *((f"alone_cost_{cost}", 0.95, False)
              for cost in ("zero", "anon", "cow", "reuse"))):
        found = aims[metric, "1", "stock"]
        assert (found.value, found.aim, found.least, found.met) == (2, aim, least, least), metric
    for cost in spf.COSTS:
        found = aims[f"alone_cost_{cost}", "0", "stock"]
        assert (found.value, found.aim, found.met) == (0, 0.001, True)
    path = tmp_path / "spf.json"
    report.write(path)
    written = json.loads(path.read_text("utf-8"))["aims"]
    assert len(written) == len(report.aims)
    assert all(aim["value"] is not None for aim in written)


def test_throughput(bench: Bench) -> None:
    bench.run(spf.Plan(scenes=("throughput",)))
    assert [name.split("-", 2)[2] for _, _, name in bench.booted] == [
        "1-0", "1-1", "1-stock", "2-stock", "2-1", "2-0", "3-0", "3-1", "3-stock",
        "4-stock", "4-1", "4-0", "5-0", "5-1", "5-stock"]
    for machine, commands, name in bench.booted:
        assert machine.kernel == Path("stock" if name.endswith("stock") else "ours")
        assert machine.cpus == 2
        assert [words[words.index("--threads") + 1] for words in commands] == ["1", "2"]


@pytest.mark.parametrize("scene", spf.HUGE)
def test_instructions(bench: Bench, scene: str) -> None:
    """The waits beside huge pages are those of one CPU: nothing waits for another one's turn."""
    bench.run(spf.Plan(scenes=(scene,)))
    assert all((machine.icount, machine.cpus) == (0, 1) for machine, _, _ in bench.booted)


def test_peer(bench: Bench) -> None:
    """The newest upstream kernel is one more arm, and no aim is about it."""
    aims = bench.run(spf.Plan()).aims
    booted = [(machine.kernel, name) for machine, _, name in bench.booted]
    kernels = Kernels(Path("ours"), Path("stock"), Path("peer"))
    report = bench.run(spf.Plan(), kernels=kernels)
    with_peer = [(machine.kernel, name) for machine, _, name in bench.booted]
    assert [boot for boot in with_peer if boot[0] != Path("peer")] == booted
    peers = [name for kernel, name in with_peer if kernel == Path("peer")]
    stocks = [name for kernel, name in booted if kernel == Path("stock")]
    assert peers == [name.replace("stock", "peer") for name in stocks]
    assert [(aim.metric, aim.arm, aim.vs) for aim in report.aims] == [
        (aim.metric, aim.arm, aim.vs) for aim in aims]


def test_few_real_cpus(bench: Bench) -> None:
    report = bench.run(spf.Plan(scenes=("throughput",)), cpus=1)
    assert bench.booted[0][0].cpus == 1
    assert {aim.metric for aim in report.aims} == {"one_vma_1", "own_vma_1", "records_1"}
    with pytest.raises(BenchError, match="this host has 2"):
        bench.run(spf.Plan(scenes=("cost", "throughput"), threads=(4,)))
    # Detected before the first boot.
    assert bench.booted == []


def test_cost(bench: Bench) -> None:
    report = bench.run(spf.Plan(scenes=("cost",)))
    assert [name for _, _, name in bench.booted] == [
        "spf-cost", "spf-cost-0", "spf-cost-1", "spf-cost-stock"]
    assert len(report.aims) == 7 + 9


@pytest.mark.parametrize("scene", spf.SCENES)
def test_each_scene(bench: Bench, scene: str) -> None:
    report = bench.run(spf.Plan(scenes=(scene,)))
    assert {words[-1] for _, commands, _ in bench.booted for words in commands} == {scene}
    assert report.aims
    assert all(aim.value is not None for aim in report.aims)


# --- The options --scenes and --threads.

def resized(*words: str) -> Any:
    """Return the plan for the command line WORDS."""
    plan = cli._BENCHMARKS[words[0]].Plan()
    cli._resize(plan, cli._parser().parse_args(words))
    return plan


def test_scenes() -> None:
    assert resized("spf").scenes == spf.SCENES
    assert resized("spf", "--scenes", "cost,idle").scenes == ("idle", "cost")
    assert resized("spf", "--threads", "1,4").threads == (1, 4)


def test_errors() -> None:
    for words, text in ((("spf", "--scenes", "costs"), "no 'costs' in idle"),
                        (("spf", "--scenes", "cost,"), "no '' in"),
                        (("munmap", "--scenes", "cost"), "not for munmap")):
        with pytest.raises(BenchError, match=text):
            resized(*words)


def test_sizes() -> None:
    """Numbers of the command line, one or several."""
    plan = spf.Plan()
    cli._resize(plan, cli._parser().parse_args(["spf", "--threads", "4,16", "--ms", "9"]))
    assert (plan.threads, plan.ms) == ((4, 16), 9)


@pytest.mark.parametrize(("words", "error"), [
    (["--threads", "4,0"], "1 or more"), (["--threads", "4,"], "invalid"),
    (["--cpus", "4,5"], "one number"), (["--areas", "4"], "not for spf")])
def test_bad_sizes(words: list[str], error: str) -> None:
    """One clear error."""
    with pytest.raises(BenchError, match=error):
        cli._resize(spf.Plan(), cli._parser().parse_args(["spf", *words]))
