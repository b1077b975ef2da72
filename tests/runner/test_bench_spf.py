# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark of speculative page faults: its boots, its aims, single scenes."""

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from faultline.bench import cli, guest, spf
from faultline.bench.guest import BenchError, Boot, Kernels, Sample
from faultline.bench.report import Report

KERNELS = Kernels(Path("ours"), Path("stock"), None)
UNITS = {"locks": "of_eligible", "throughput": "touches/s", "cost": "ticks"}


def printed(scene: str, threads: str) -> list[str]:
    """Return the metrics of SCENE that have an aim."""
    if scene in spf.WAITS:
        return [f"{scene}_same_{what}" for what in ("p99", "any_p99", "max")]
    if scene == "locks":
        return ["user_lock_free", "kernel_lock_free"]
    if scene == "throughput":
        return [f"{what}_{threads}" for what in ("one_vma", "own_vma", "records")]
    return [f"cost_{cost}" for cost in spf.COSTS]


class Run(unittest.TestCase):
    """A run without VMs: each figure is 2 in arm 1 and 1 in all other arms."""

    def boot(self, kernel: Path, program: Path, commands: list[list[str]], *, name: str,
             options: list[str]) -> Boot:
        """Record the boot and return its samples."""
        self.booted.append((kernel, commands, name, options))
        return Boot([Sample(metric, UNITS.get(words[-1], "us"), arm, 2 if arm == "1" else 1)
                     for words in commands
                     for arm in words[words.index("--arms") + 1].split(",")
                     for metric in printed(words[-1], words[words.index("--threads") + 1])],
                    "6.12-test", "tcg")

    def run_plan(self, plan: spf.Plan, cpus: int = 2) -> Report:
        """Run PLAN on a host with CPUS."""
        self.booted: list[tuple[Path, list[list[str]], str, list[str]]] = []
        with mock.patch.object(guest, "boot", self.boot), \
                mock.patch.object(guest, "compile_program"), \
                mock.patch.object(spf, "real_cpus", return_value=cpus), \
                mock.patch("sys.stderr"):
            return spf.run(KERNELS, plan)

    def test_aims(self) -> None:
        report = self.run_plan(spf.Plan())
        aims = {(aim.metric, aim.arm, aim.vs): aim for aim in report.aims}
        for metric, aim, least in (
                ("virtual_cpu_max_same_p99", 0.1, False), ("virtual_cpu_max_same_max", 0.1, False),
                ("one_vma_1", 1, True), ("own_vma_2", 1, True),
                ("records_1", 1.25, True), ("records_2", 1.25, True),
                *((f"alone_cost_{cost}", 0.95, False)
                  for cost in ("zero", "anon", "cow", "reuse"))):
            found = aims[metric, "1", "stock"]
            self.assertEqual((found.value, found.aim, found.least, found.met),
                             (2, aim, least, least), metric)
        for cost in spf.COSTS:
            found = aims[f"alone_cost_{cost}", "0", "stock"]
            self.assertEqual((found.value, found.aim, found.met), (0, 0.001, True))
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "spf.json"
            report.write(path)
            written = json.loads(path.read_text("utf-8"))["aims"]
        self.assertEqual(len(written), len(report.aims))
        self.assertTrue(all(aim["value"] is not None for aim in written))

    def test_throughput(self) -> None:
        self.run_plan(spf.Plan(scenes=("throughput",)))
        self.assertEqual([name.split("-", 2)[2] for _, _, name, _ in self.booted],
                         ["1-0", "1-1", "1-stock", "2-stock", "2-1", "2-0", "3-0", "3-1", "3-stock",
                          "4-stock", "4-1", "4-0", "5-0", "5-1", "5-stock"])
        for kernel, commands, name, options in self.booted:
            self.assertEqual(kernel, Path("stock" if name.endswith("stock") else "ours"))
            self.assertEqual(options[:2], ["--cpus", "2"])
            self.assertEqual([words[words.index("--threads") + 1] for words in commands],
                             ["1", "2"])

    def test_few_real_cpus(self) -> None:
        report = self.run_plan(spf.Plan(scenes=("throughput",)), cpus=1)
        self.assertEqual(self.booted[0][3][:2], ["--cpus", "1"])
        self.assertEqual({aim.metric for aim in report.aims}, {"one_vma_1", "own_vma_1",
                                                               "records_1"})
        with self.assertRaisesRegex(BenchError, "this host has 2"):
            self.run_plan(spf.Plan(scenes=("cost", "throughput"), threads=(4,)))
        # Detected before the first boot.
        self.assertEqual(self.booted, [])

    def test_cost(self) -> None:
        report = self.run_plan(spf.Plan(scenes=("cost",)))
        self.assertEqual([name for _, _, name, _ in self.booted],
                         ["spf-cost", "spf-cost-0", "spf-cost-1", "spf-cost-stock"])
        self.assertEqual(len(report.aims), 4 + 5)

    def test_each_scene(self) -> None:
        for scene in spf.SCENES:
            with self.subTest(scene):
                report = self.run_plan(spf.Plan(scenes=(scene,)))
                self.assertEqual({words[-1] for _, commands, _, _ in self.booted
                                  for words in commands}, {scene})
                self.assertTrue(report.aims)
                self.assertTrue(all(aim.value is not None for aim in report.aims))


class CommandLine(unittest.TestCase):
    """The options --scenes and --threads."""

    def resized(self, *words: str) -> Any:
        """Return the plan for the command line WORDS."""
        plan = cli._BENCHMARKS[words[0]].Plan()
        cli._resize(plan, cli._parser().parse_args(words))
        return plan

    def test_scenes(self) -> None:
        self.assertEqual(self.resized("spf").scenes, spf.SCENES)
        self.assertEqual(self.resized("spf", "--scenes", "cost,idle").scenes, ("idle", "cost"))
        self.assertEqual(self.resized("spf", "--threads", "1,4").threads, (1, 4))

    def test_errors(self) -> None:
        for words, text in ((("spf", "--scenes", "costs"), "no 'costs' in idle"),
                            (("spf", "--scenes", "cost,"), "no '' in"),
                            (("munmap", "--scenes", "cost"), "not for munmap")):
            with self.subTest(words), self.assertRaisesRegex(BenchError, text):
                self.resized(*words)


if __name__ == "__main__":
    unittest.main()
