# SPDX-License-Identifier: GPL-2.0-only
"""tests/upstream on results that equal those of stock, and on others."""

import contextlib
import io
import unittest
from pathlib import Path

from faultline.upstream.arms import STOCK, Arm, Boot, ours
from faultline.upstream.compare import Load, compare
from faultline.upstream.results import Result, read_stressors, read_vmtests


def outcomes(results: dict[str, Result]) -> dict[str, str]:
    """Return name and outcome of each result."""
    return {name: result.outcome for name, result in results.items()}


class Reading(unittest.TestCase):
    """The output of the programs in the guest."""

    def test_vmtests(self) -> None:
        results = read_vmtests([
            "before counter spf_zero 0", "category mlock", "TAP version 13", "# ok 1 inside",
            "ok 1 sudo -u nobody ./on-fault-limit", "uptime 4.06", "# not ok 1 inside",
            "not ok 2 mlock2-tests # exit=1", "uptime 5.00", "category hmm",
            "ok 1 test_hmm.sh smoke # SKIP", "uptime 5.50"])
        self.assertEqual(outcomes(results), {
            "sudo -u nobody ./on-fault-limit": "ok", "mlock2-tests": "fail",
            "test_hmm.sh smoke": "skip"})
        self.assertEqual([result.group for result in results.values()], ["mlock", "mlock", "hmm"])
        self.assertEqual(results["mlock2-tests"].output,
                         ("not ok 1 inside", "not ok 2 mlock2-tests # exit=1"))
        self.assertAlmostEqual(results["mlock2-tests"].seconds, 0.94)
        self.assertEqual([result.verdict for result in results.values()],
                         ["ok (1 ok inside)", "fail (1 fail inside)", "skip"])

    def test_stressors(self) -> None:
        results = read_stressors([
            "stressor fault", "stress-ng: info", "status 0 3.10", "stressor mmap --mmap-mprotect",
            "status 2 6.00", "stressor swap", "status 4 6.50", "stressor stack",
            "stress-ng: info: skipping stressor, low memory", "status 0 7.00",
            "stressor bigheap", "status 7 9.00", "stressor brk"])
        self.assertEqual(outcomes(results), {"fault": "ok", "mmap": "fail", "swap": "skip",
                                             "stack": "skip", "bigheap": "ok"})
        self.assertEqual(results["mmap"].group, "mmap --mmap-mprotect")


class Comparing(unittest.TestCase):
    """Which kernel is blamed for a difference."""

    def setUp(self) -> None:
        self.runs: dict[str, list[tuple[str, list[str]]]] = {}
        self.status = 0
        self.handled = 1
        self.others = "ok"

    def compare(self, stock: list[str], here: list[str]) -> int:
        """Return the exit code when the runs of stock and of "off" give these outcomes of "a"."""
        given = {"stock": list(stock), "off": list(here), "spf": ["ok"] * 2}
        if stock[0] != "ok":
            given["spf"] = list(here)

        def run(arm: Arm, name: str, groups: list[str]) -> Boot:
            self.runs.setdefault(arm.name, []).append((name, groups))
            outcome = given[arm.name][min(len(self.runs[arm.name]), len(given[arm.name])) - 1]
            counted = {"spf_anon": self.handled if arm.name == "spf" else 0}
            return Boot(arm, self.status if arm.name == "off" else 0, Path("."),
                        [outcome] if outcome else [], [], counted, [])

        def read(lines: list[str]) -> dict[str, Result]:
            return {"a": Result(line, "group", 1.0, ("said",)) for line in lines} | {
                name: Result(self.others, "other", 1.0, ()) for name in ("b", "c")}

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = compare(Load("unit", ["other", "group"], run, read, 2), ours(False))
        self.printed = printed.getvalue()
        return code

    def test_same(self) -> None:
        self.assertEqual(self.compare(["ok"], ["ok"]), 0)
        self.assertEqual(sorted(self.runs), ["off", "spf", STOCK.name])
        self.assertNotIn("not ok", self.printed)

    def test_same_failure(self) -> None:
        self.assertEqual(self.compare(["fail"], ["fail"]), 0)

    def test_nothing_works_on_stock_fails(self) -> None:
        self.others = "fail"
        self.assertEqual(self.compare(["ok"], ["ok"]), 1)

    def test_different_twice_fails(self) -> None:
        self.assertEqual(self.compare(["ok", "ok"], ["fail", "fail"]), 1)
        self.assertIn("not ok", self.printed)
        self.assertIn("ok on stock, fail here; once more: ok on stock, fail here", self.printed)
        # Only the differing test is repeated, on both kernels.
        self.assertEqual(self.runs["off"][1], ("upstream-unit-off-again", ["group"]))
        self.assertEqual(self.runs["stock"][1], ("upstream-unit-stock-again-off", ["group"]))

    def test_different_once_passes(self) -> None:
        self.assertEqual(self.compare(["ok", "ok"], ["fail", "ok"]), 0)
        self.assertIn("once more", self.printed)

    def test_stock_does_so_too_passes(self) -> None:
        self.assertEqual(self.compare(["ok", "fail"], ["fail", "fail"]), 0)

    def test_skip_is_a_difference(self) -> None:
        self.assertEqual(self.compare(["ok", "ok"], ["skip", "skip"]), 1)

    def test_missing_is_a_difference(self) -> None:
        self.assertEqual(self.compare(["ok", "ok"], ["", ""]), 1)

    def test_kernel_trouble_fails(self) -> None:
        self.status = 126
        self.assertEqual(self.compare(["ok"], ["ok"]), 1)

    def test_nothing_handled_fails(self) -> None:
        self.handled = 0
        self.assertEqual(self.compare(["ok"], ["ok"]), 1)
