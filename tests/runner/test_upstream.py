# SPDX-License-Identifier: GPL-2.0-only
"""tests/upstream on results that equal those of stock, and on others."""

import contextlib
import dataclasses
import io
from pathlib import Path

import pytest

from upstream.arms import STOCK, Arm, Boot, ours
from upstream.compare import Load, compare
from upstream.results import Result, read_stressors, read_vmtests


def outcomes(results: dict[str, Result]) -> dict[str, str]:
    """Return name and outcome of each result."""
    return {name: result.outcome for name, result in results.items()}


# --- The output of the programs in the guest.

def test_vmtests() -> None:
    results = read_vmtests([
        "before counter spf_zero 0", "category mlock", "TAP version 13", "# ok 1 inside",
        "ok 1 sudo -u nobody ./on-fault-limit", "uptime 4.06", "# not ok 1 inside",
        "not ok 2 mlock2-tests # exit=1", "uptime 5.00", "category hmm",
        "ok 1 test_hmm.sh smoke # SKIP", "uptime 5.50"])
    assert outcomes(results) == {
        "sudo -u nobody ./on-fault-limit": "ok", "mlock2-tests": "fail",
        "test_hmm.sh smoke": "skip"}
    assert [result.group for result in results.values()] == ["mlock", "mlock", "hmm"]
    assert results["mlock2-tests"].output == ("not ok 1 inside", "not ok 2 mlock2-tests # exit=1")
    assert results["mlock2-tests"].seconds == pytest.approx(0.94)
    assert [result.verdict for result in results.values()] == [
        "ok (1 ok inside)", "fail (1 fail inside)", "skip"]


def test_stressors() -> None:
    results = read_stressors([
        "stressor fault", "stress-ng: info", "status 0 3.10", "stressor mmap --mmap-mprotect",
        "status 2 6.00", "stressor swap", "status 4 6.50", "stressor stack",
        "stress-ng: info: skipping stressor, low memory", "status 0 7.00",
        "stressor bigheap", "status 7 9.00", "stressor brk"])
    assert outcomes(results) == {"fault": "ok", "mmap": "fail", "swap": "skip",
                                 "stack": "skip", "bigheap": "ok"}
    assert results["mmap"].group == "mmap --mmap-mprotect"


# --- Which kernel is blamed for a difference.

@dataclasses.dataclass
class Compared:
    """The exit code of a comparison, its output, and the runs of each arm."""

    code: int
    said: str
    runs: dict[str, list[tuple[str, list[str]]]]


def compared(stock: list[str], here: list[str], *, status: int = 0, handled: int = 1,
             others: str = "ok") -> Compared:
    """Compare when the runs of stock and of "off" give these outcomes of "a"."""
    given = {"stock": list(stock), "off": list(here), "spf": ["ok"] * 2}
    if stock[0] != "ok":
        given["spf"] = list(here)
    runs: dict[str, list[tuple[str, list[str]]]] = {}

    def run(arm: Arm, name: str, groups: list[str]) -> Boot:
        runs.setdefault(arm.name, []).append((name, groups))
        outcome = given[arm.name][min(len(runs[arm.name]), len(given[arm.name])) - 1]
        counted = {"spf_anon": handled if arm.name == "spf" else 0}
        return Boot(arm, status if arm.name == "off" else 0, Path("."),
                    [outcome] if outcome else [], [], counted, [])

    def read(lines: list[str]) -> dict[str, Result]:
        return {"a": Result(line, "group", 1.0, ("said",)) for line in lines} | {
            name: Result(others, "other", 1.0, ()) for name in ("b", "c")}

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = compare(Load("unit", ["other", "group"], run, read, 2), ours(False))
    return Compared(code, printed.getvalue(), runs)


def test_same() -> None:
    got = compared(["ok"], ["ok"])
    assert got.code == 0
    assert sorted(got.runs) == ["off", "spf", STOCK.name]
    assert "not ok" not in got.said


def test_same_failure() -> None:
    assert compared(["fail"], ["fail"]).code == 0


def test_nothing_works_on_stock_fails() -> None:
    assert compared(["ok"], ["ok"], others="fail").code == 1


def test_different_twice_fails() -> None:
    got = compared(["ok", "ok"], ["fail", "fail"])
    assert got.code == 1
    assert "not ok" in got.said
    assert "ok on stock, fail here; once more: ok on stock, fail here" in got.said
    # Only the differing test is repeated, on both kernels.
    assert got.runs["off"][1] == ("upstream-unit-off-again", ["group"])
    assert got.runs["stock"][1] == ("upstream-unit-stock-again-off", ["group"])


def test_different_once_passes() -> None:
    got = compared(["ok", "ok"], ["fail", "ok"])
    assert got.code == 0
    assert "once more" in got.said


def test_stock_does_so_too_passes() -> None:
    assert compared(["ok", "fail"], ["fail", "fail"]).code == 0


def test_skip_is_a_difference() -> None:
    assert compared(["ok", "ok"], ["skip", "skip"]).code == 1


def test_missing_is_a_difference() -> None:
    assert compared(["ok", "ok"], ["", ""]).code == 1


def test_kernel_trouble_fails() -> None:
    assert compared(["ok"], ["ok"], status=126).code == 1


def test_nothing_handled_fails() -> None:
    assert compared(["ok"], ["ok"], handled=0).code == 1
