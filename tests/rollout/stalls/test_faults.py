# SPDX-License-Identifier: GPL-2.0-only
"""faultline-stalls says why a page fault held up a writer, on a kernel of ours (it has zram)."""
from __future__ import annotations

import functools
from pathlib import Path

import pytest

from bench import guest
from faultline.common import ROOT
from faultline.flavour import FLAVOURS
from rollout import stalls_lab

# States of faulting threads, and the scene of the benchmark spf that has them.
STATES = {"preempted": "memcg", "asleep": "memcg", "throttled by cpu.max": "cpu_max"}


@functools.cache
def outcome() -> Path:
    """The reports of the scenes."""
    return stalls_lab.boot(
        FLAVOURS["microvm-btf"].image, "faults", stalls_lab.MACHINE, (
            stalls_lab.build(stalls_lab.PATHS.build / "stalls"),
            guest.compile_program(ROOT / "tests/bench/spf.c")), "faults.sh",
        *sorted(set(STATES.values())))[0]


@pytest.mark.parametrize("state", STATES)
def test_state(state: str) -> None:
    """The thread slept, was preempted or throttled when the writer came, and a switch helps."""
    groups = stalls_lab.report(outcome() / f"{STATES[state]}.json")["groups"]
    for group in groups:
        print(group["holder"], group["call"], group["lock"], group["waits"], group["longest_ms"])
    call = f"page fault ({state})"
    assert ("spf", call, "vm.speculative_page_fault") in {
        (group["holder"], group["call"], group["switch"]) for group in groups}
