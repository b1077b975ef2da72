# SPDX-License-Identifier: GPL-2.0-only
"""The cost of faultline-stalls for programs in which nobody waits, on Debian's kernel.

One CPU, and a clock that counts its instructions.
"""
from __future__ import annotations

import functools

import pytest

from bench import guest
from faultline.common import ROOT
from rollout import stalls_lab

# Measurements of the benchmarks munmap, hugetlb and micro, and how much longer they may take.
MOST = 0.02
# The page is in the file already, and only the page table lacks it: nothing is cleared.
PRESENT = "cost_unshared_touch"
MOST_PRESENT = 0.15
MEASURED = ("cost_256m_4k", "cost_512m_thp", "cost_1t_sparse", "cost_256m_file",
            "cost_256m_hugetlb", "cost_unshared_munmap", PRESENT, "page_fault1_processes_1",
            "page_fault3_processes_1", "mmap1_processes_1", "threadspawn1_processes_1",
            "case-hugetlb_processes_1")


@functools.cache
def samples() -> list[guest.Sample]:
    """The measurements of the programs, with faultline-stalls running and without it."""
    output = stalls_lab.boot(
        stalls_lab.kernel_of("6.12"), "cost", (*stalls_lab.FAST, "--mem", "2048"), (
            stalls_lab.build(stalls_lab.PATHS.build / "stalls"),
            guest.compile_program(ROOT / "rollout/bench/munmap.c"),
            guest.compile_program(ROOT / "tests/bench/hugetlb.c"),
            guest.compile_program(ROOT / "rollout/bench/micro.c")), "cost.sh")[1]
    return guest.parse_samples(output)


def best(metric: str, arm: str) -> float:
    """The shortest time of a turn, or that of the highest rate: timer ticks only add to it."""
    found = [sample for sample in samples() if (sample.metric, sample.arm) == (metric, arm)]
    assert len(found) > 1
    return min(sample.value if sample.unit == "ticks" else 1 / sample.value for sample in found)


@pytest.mark.parametrize("metric", MEASURED)
def test_cost(metric: str) -> None:
    """The program takes as long while faultline-stalls runs, but for the limit."""
    cost = best(metric, "with") / best(metric, "without") - 1
    print(f"{metric}: {100 * cost:+.2f} %")
    assert cost <= (MOST_PRESENT if metric == PRESENT else MOST)
