# SPDX-License-Identifier: GPL-2.0-only
"""faultline-stalls on Debian's kernels: each cause is named right, with the wait that it made.

The program survey makes the causes, and measures how long its other thread waits; holders makes
those in huge pages.
"""
from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import guest
from faultline.common import ROOT
from rollout import stalls_lab
from rollout.stalls_lab import KERNELS

# From 64 MiB on, the switches for munmap and madvise act.
MIB = 96
MUNMAP, MADVISE, WALK = (f"vm.{name}_section_kbytes" for name in ("munmap", "madvise", "walk"))
# Bounds of the maps that short waits exceed.
BOUNDS = {"MAX_WAITERS": 4, "MAX_GROUPS": 8}
# The operations of survey: the call, and the switch.
CAUSES = {
    "munmap": ("munmap", MUNMAP), "dontneed": ("madvise(MADV_DONTNEED)", MADVISE),
    "free": ("madvise(MADV_FREE)", MADVISE), "cold": ("madvise(MADV_COLD)", MADVISE),
    "map_populate": ("mmap(MAP_POPULATE)", WALK), "mlock": ("mlock", WALK),
    "populate_write": ("madvise(MADV_POPULATE_WRITE)", WALK), "mlock_empty": ("mlock", WALK),
    "mprotect_r": ("mprotect", None), "fixed_none": ("mmap(MAP_FIXED)", MUNMAP),
    "mremap": ("mremap(MREMAP_MAYMOVE)", WALK),
    "fork": ("fork", None), "smaps": ("read smaps", WALK),
    "smaps_rollup": ("read smaps_rollup", WALK), "numa_maps": ("read numa_maps", WALK),
    "clear_refs": ("write clear_refs", WALK), "soft_dirty": ("write clear_refs", WALK),
    "uffd_wp": ("ioctl(UFFDIO_WRITEPROTECT)", WALK), "uffd_close": ("close of a userfaultfd", WALK)}

# The scenes of holders.c: the holder, how its call begins, the locks, and the switch.
SHARING = "vm.hugetlb_pmd_sharing"
HOLDERS = {
    "hugetlb-faults": ("hugetlb-faults", "page fault (hugetlb", {"mmap_lock", "vma"},
                       "vm.hugetlb_zero_ahead"),
    "hugetlb-filled": ("hugetlb-filled", "page fault (hugetlb", {"mmap_lock", "vma"},
                       "vm.hugetlb_zero_ahead"),
    "thp-faults": ("thp-faults", "page fault", {"mmap_lock", "vma"}, "vm.speculative_page_fault"),
    "hugetlb-dropped": ("hugetlb-dropped", "madvise(MADV_DONTNEED)",
                        {"hugetlb-vma", "hugetlb-file"}, SHARING),
    "hugetlb-mutex": ("hugetlb-mutex", "page fault (hugetlb", {"hugetlb-fault"}, None),
    "hugetlb-unmap": ("hugetlb-unmap", "munmap", {"hugetlb-file"}, SHARING),
    "huge-pages": ("khugepaged", "collapse", {"mmap_lock", "vma"}, None),
    "numa-scan": ("numa-scan", "NUMA balancing", {"mmap_lock"}, WALK),
    "emptied": ("remote", "process_vm_readv", {"mmap_lock"}, None)}


@functools.cache
def outcome(version: str) -> tuple[Path, str]:
    """The files that the guest returns, and the output of survey."""
    return stalls_lab.boot(
        stalls_lab.kernel_of(version), f"stalls-{version}",
        (*stalls_lab.MACHINE, "--append", "numa=fake=2"), (
            stalls_lab.build(stalls_lab.PATHS.build / "stalls"),
            guest.compile_program(ROOT / "rollout/bench/survey.c"),
            guest.compile_program(stalls_lab.GUEST / "holders.c")), "guest.sh", str(MIB), *(
                f"{operation}/{call}/{json.dumps(switch)}"
                for operation, (call, switch) in CAUSES.items()))


def report(version: str, name: str) -> dict[str, Any]:
    """One of the reports in JSON."""
    return stalls_lab.report(outcome(version)[0] / f"{name}.json")


@pytest.mark.parametrize("version", KERNELS)
def test_idle(version: str) -> None:
    """Nothing is named on an idle host."""
    found = report(version, "idle")
    assert not found["groups"] and found["waits"] == 0


def causes(version: str) -> list[dict[str, Any]]:
    """The reports of all passes over the causes."""
    return [stalls_lab.report(path) for path in sorted(outcome(version)[0].glob("causes-*.json"))]


@pytest.mark.parametrize("operation", CAUSES)
@pytest.mark.parametrize("version", KERNELS)
def test_cause(version: str, operation: str) -> None:
    """The call and its switch are named, with the longest wait of the other thread."""
    call, switch = CAUSES[operation]
    # A turn in which that thread had no CPU for a while measures more than its wait.
    measured = min(sample.value for sample in guest.parse_samples(outcome(version)[1])
                   if sample.metric == f"{operation}_{MIB}m_4k_wait_max")
    groups = [group for found in causes(version) for group in found["groups"]
              if (group["holder"], group["call"], group["switch"]) == ("survey", call, switch)]
    assert groups, f"{call} is not named"
    longest = max(group["longest_ms"] for group in groups)
    # Others of the same call may have waited longer.
    assert longest >= measured / 2, f"{longest} ms of {measured} ms"


def made(version: str) -> dict[str, float]:
    """The scenes of holders: the longest wait of each in ms, or a number of interrupts."""
    lines = (outcome(version)[0] / "holders").read_text().splitlines()
    return {name: float(value) for name, value in map(str.split, lines)}


@pytest.mark.parametrize("scene", HOLDERS)
@pytest.mark.parametrize("version", KERNELS)
def test_holder(version: str, scene: str) -> None:
    """A wait for a holder is named, and page faults have the right switch."""
    holder, call, locks, switch = HOLDERS[scene]
    groups = [group for group in report(version, "huge")["groups"] if group["holder"] == holder]
    named = [group for group in groups if group["lock"] in locks and group["call"].startswith(call)]
    assert named, f"{holder}: {call} is not named"
    assert {group["switch"] for group in named} == {switch}
    rows = [row for group in named for row in group["waiters"]]
    # The time of others than the waiter, if there is one, is not measured.
    rows = [row for row in rows if row["program"] == "waiter"] or rows
    assert 0 < max(row["longest_ms"] for row in rows) <= made(version)[scene]
    faults = [group for group in groups if group["call"].startswith("page fault")]
    wrong = [group for group in faults
             if ("(hugetlb" in group["call"]) != scene.startswith("hugetlb")]
    # A fault that loses its CPU early is not known to be one of hugetlb.
    assert sum(group["total_ms"] for group in wrong) <= sum(
        group["total_ms"] for group in faults) / 10, [group["call"] for group in wrong]


@pytest.mark.parametrize("program", ["hugetlb-unshare", "collapse"])
@pytest.mark.parametrize("version", KERNELS)
def test_broadcasts(version: str, program: str) -> None:
    """Interrupts of every CPU count for the program that shares no page table any more, and for the
    one that makes huge pages."""
    sent = {sender["program"]: sender["count"] for sender in report(version, "huge")["broadcasts"]}
    assert sent.get(program, 0) >= made(version)[program]


@pytest.mark.parametrize("version", KERNELS)
def test_complete(version: str) -> None:
    """Nothing is lost, and a record shows the same."""
    for number, found in enumerate(causes(version), 1):
        assert not any(count for name, count in found["counters"].items() if "lost" in name)
        assert found == report(version, f"shown-{number}")


@functools.cache
def churned(version: str) -> Path:
    """The files of a guest in which two programs watch churn, one of them with small maps."""
    bounds = " ".join(f"-D{name}={value}" for name, value in BOUNDS.items())
    bounded = stalls_lab.build(stalls_lab.PATHS.build / "stalls-bounded", bounds).rename(
        stalls_lab.PATHS.build / "stalls-bounded/bounded")
    return stalls_lab.boot(stalls_lab.kernel_of(version), f"churn-{version}", stalls_lab.FAST, (
        stalls_lab.build(stalls_lab.PATHS.build / "stalls"), bounded,
        guest.compile_program(stalls_lab.GUEST / "churn.c")),
        "churn.sh", "faultline-stalls", bounded.name)[0]


@pytest.mark.parametrize("program", ["faultline-stalls", "bounded"])
@pytest.mark.parametrize("version", KERNELS)
def test_churn(version: str, program: str) -> None:
    """Of as many short waits as a CPU can make, none is lost, or as many as the counters say."""
    files = churned(version)
    found = stalls_lab.report(files / f"{program}.json")
    made_by = dict(line.split() for line in (files / f"{program}.churn").read_text().splitlines())
    waits = int(made_by["writes"]) + int(made_by["reads"])
    print(f"{waits / float(made_by['seconds']):.0f} waits a second")
    counters = found["counters"]
    lost = {name: counters[name] for name in ("lost_waiters", "lost_waits")}
    assert found["waits"] + counters["shorter_waits"] + sum(lost.values()) == waits
    assert counters["lost_ends"] == counters["lost_calls"] == 0
    # More than there is room for at a time.
    assert waits > 32768
    if program == "bounded":
        assert all(lost.values())
        assert len({group["holder"] for group in found["groups"]}) <= BOUNDS["MAX_GROUPS"]
    else:
        assert not any(lost.values())
        # Two threads have each name.
        names = {row["program"] for group in found["groups"] for row in group["waiters"]}
        assert names - {"churn"} == {f"churn-{pool}*" for pool in "abcdefgh"}


@pytest.mark.parametrize("version", KERNELS)
def test_killed(version: str) -> None:
    """Waiters that are killed end their waits."""
    found = report(version, "killed")
    calls = {group["call"] for group in found["groups"] if group["holder"] == "survey"}
    assert calls & {"mlock", "mprotect", "munmap"}
    assert found["counters"]["lost_waiters"] == 0


@pytest.mark.parametrize("version", KERNELS)
def test_ended(version: str) -> None:
    """A process that ends while it is watched is a line, not only silence."""
    notes = report(version, "ended")["not_watched"]
    assert [note for note in notes if re.fullmatch(r"process \d+ after it ended", note)]


@pytest.mark.parametrize("version", KERNELS)
@pytest.mark.parametrize("name, said", [
    ("no-btf", "there is no /sys/kernel/btf/vmlinux: mount /sys"),
    ("no-process", "there is no process 999999"), ("no-cgroup", "there is no control group")])
def test_refused(version: str, name: str, said: str) -> None:
    """One line says what is wrong with the host or the options."""
    text = (outcome(version)[0] / f"{name}.err").read_text()
    assert text.count("\n") == 1 and f"faultline-stalls: error: {said}" in text
