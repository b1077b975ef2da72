# SPDX-License-Identifier: GPL-2.0-only
"""Boots the arms, compares each result with stock, prints TAP.

Stock is part of each run: there is no list of expected results.  If one of our arms differs, the
test runs once more on both kernels.  It passes if our second result equals one of the two results
on stock: some tests are unreliable on a busy host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lib.tap import Tap
from .arms import STOCK, Arm, Boot
from .results import Result

SPF_HANDLED = ("spf_zero", "spf_anon", "spf_cow", "spf_reuse", "spf_access")
TAIL = 40


@dataclass(frozen=True)
class Load:
    """A set of tests that can be run on an arm, all or some groups."""

    name: str
    groups: list[str]
    # Runs groups on an arm; the string is used in file names.
    run: Callable[[Arm, str, list[str]], Boot]
    # Parses the output.
    read: Callable[[list[str]], dict[str, Result]]
    # How many machines at a time.
    jobs: int


def came_through(tap: Tap, boot: Boot) -> None:
    """Check that the VM finished without kernel trouble."""
    tap.result(f"{boot.arm.name}: the tests finish and the kernel log is clean",
               boot.status == 0,
               boot.remarks if boot.status == 0 else boot.lines[-TAIL:] + boot.remarks)


def switches_hold(tap: Tap, boot: Boot) -> None:
    """Check that the switches had the right values and the counters agree."""
    counted = {name: count for name, count in boot.counted.items() if count}
    tap.result(f"{boot.arm.name}: the switches are set before and after", not boot.wrong,
               boot.wrong)
    handled = sum(boot.counted.get(name, 0) for name in SPF_HANDLED)
    if boot.arm.switches["vm.speculative_page_fault"]:
        tap.result(f"{boot.arm.name}: there were speculative page faults", handled > 0,
                   [f"{handled} faults were handled speculatively; all counters:",
                    *(f"  {name} {count}" for name, count in counted.items())])
    else:
        tried = [f"{name} {count}" for name, count in counted.items() if name.startswith("spf_")]
        tap.result(f"{boot.arm.name}: there were no speculative page faults", not tried, tried)


def summary(arm: Arm, results: dict[str, Result]) -> str:
    """The counts of an arm."""
    outcomes = [result.outcome for result in results.values()]
    return (f"{arm.name}: {outcomes.count('ok')} ok, {outcomes.count('skip')} skipped, "
            f"{outcomes.count('fail')} failed, {sum(r.seconds for r in results.values()):.0f} s")


def verdict(results: dict[str, Result], name: str) -> str:
    """The verdict of a test, or "missing" if it was not run."""
    return results[name].verdict if name in results else "missing"


def shown(arm: Arm, results: dict[str, Result], name: str) -> list[str]:
    """The verdict and output of a test."""
    if name not in results:
        return [f"{arm.name}: not run"]
    result = results[name]
    return [f"{arm.name}: {result.verdict}", *(f"  {line}" for line in result.output[-TAIL:])]


def compare(load: Load, arms: list[Arm]) -> int:
    """Run everything; return an exit code."""
    tap = Tap()
    began = time.monotonic()

    def run(arm: Arm, suffix: str, groups: list[str]) -> tuple[Boot, dict[str, Result]]:
        boot = load.run(arm, f"upstream-{load.name}-{arm.name}{suffix}", groups)
        return boot, load.read(boot.lines)

    with ThreadPoolExecutor(load.jobs) as pool:
        first = list(pool.map(lambda arm: run(arm, "", load.groups), [STOCK, *arms]))
        stock_boot, stock = first[0]
        again: dict[str, tuple[Boot, dict[str, Result]]] = {}
        for arm, (_, results) in zip(arms, first[1:]):
            differ = {name for name in stock.keys() | results.keys()
                      if verdict(stock, name) != verdict(results, name)}
            groups = {(stock.get(name) or results[name]).group for name in differ}
            if groups:
                wanted = [group for group in load.groups if group in groups]
                both = pool.map(lambda which: run(which[0], which[1], wanted),  # noqa: B023
                                [(arm, "-again"), (STOCK, f"-again-{arm.name}")])
                again[arm.name], again[f"stock {arm.name}"] = both

    came_through(tap, stock_boot)
    passed = sum(result.outcome == "ok" for result in stock.values())
    tap.result("stock: most results are ok", passed > len(stock) / 2,
               [f"{passed} of {len(stock)}"])
    for arm, (boot, results) in zip(arms, first[1:]):
        came_through(tap, boot)
        switches_hold(tap, boot)
        for name in [*stock, *(name for name in results if name not in stock)]:
            here, there = verdict(results, name), verdict(stock, name)
            title = f"{arm.name}: {name}: {there} as stock"
            if here == there:
                tap.result(title, True, [])
                continue
            second = again[arm.name][1]
            second_stock = again[f"stock {arm.name}"][1]
            allowed = {there, verdict(second_stock, name)}
            tap.result(title, verdict(second, name) in allowed, [
                f"{there} on stock, {here} here; once more: {verdict(second_stock, name)} on "
                f"stock, {verdict(second, name)} here",
                *shown(STOCK, stock, name), *shown(arm, results, name)])
        for boot_again, _ in (again[key] for key in (arm.name, f"stock {arm.name}")
                              if key in again):
            came_through(tap, boot_again)
    for arm, (_, results) in zip([STOCK, *arms], first):
        tap.say([summary(arm, results)])
    longest = sorted(stock, key=lambda name: -stock[name].seconds)[:8]
    tap.say(["longest on stock: " + ", ".join(f"{name} {stock[name].seconds:.0f} s"
                                              for name in longest),
             f"{time.monotonic() - began:.0f} s in all"])
    return tap.finish()
