# SPDX-License-Identifier: GPL-2.0-only
"""The estimate of faultline-stalls, on a kernel of ours: a switch removes what it was said to.

The program holders does the same work with a switch off and on.  The waits that are gone then are
compared with those that were said to go, while the switch was off.
"""
from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from bench import guest
from faultline.flavour import FLAVOURS
from rollout import stalls_lab

FLAVOUR = FLAVOURS["microvm-btf"]
# The scenes of holders, the switch, and how many rounds make enough waits.
SCENES = {"unmapped": ("munmap_section_kbytes", 4), "dropped": ("madvise_section_kbytes", 4),
          "locked": ("walk_section_kbytes", 4), "locked-often": ("walk_section_kbytes", 2),
          "thp-faults": ("speculative_page_fault", 12),
          "hugetlb-dropped": ("hugetlb_pmd_sharing", 40),
          "hugetlb-unmap": ("hugetlb_pmd_sharing", 40), "collapse": ("pmd_clear_ipi_free", 1),
          "hugetlb-private": ("hugetlb_zero_ahead", 12), "hugetlb-file": ("hugetlb_zero_ahead", 12)}
# Their waiters have the CPU whenever they want it.  With two, the emulator lets one of them spin
# for longer than the other one needs for a page.
ONE_CPU = {"hugetlb-private", "hugetlb-file"}
# Waits that go and waits that were said to may differ by so much of those that go.
TOLERANCE = 1 / 3
# Milliseconds of waiting, of which the rounding of times is a small part.
LEAST = 50


@functools.cache
def outcome(one_cpu: bool) -> Path:
    """The reports of all scenes with one CPU or two, with their switches off and on."""
    words = []
    for scene, (switch, rounds) in SCENES.items():
        if (scene in ONE_CPU) != one_cpu:
            continue
        stock, on = stalls_lab.SWITCHES[f"vm.{switch}"]
        words.append(f"{scene}:{switch}:{rounds}:{stock}:{on}")
    return stalls_lab.boot(
        FLAVOUR.image, "estimate-one" if one_cpu else "estimate",
        (*stalls_lab.MACHINE, *(("--cpus", "1") if one_cpu else ())), (
            stalls_lab.build(stalls_lab.PATHS.build / "stalls"),
            guest.compile_program(stalls_lab.GUEST / "holders.c")), "estimate.sh", *words)[0]


def reports(scene: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report with the switch off, and the one with it on."""
    files = outcome(scene in ONE_CPU)
    off, on = (stalls_lab.report(files / f"{scene}-{arm}.json") for arm in ("off", "on"))
    return off, on


def waited(report: dict[str, Any]) -> float:
    """The milliseconds of all waits, whoever held the lock."""
    return float(report["waited_ms"] + report["counters"]["shorter_ns"] / 1e6)


@pytest.mark.parametrize("scene", [scene for scene in SCENES
                                   if scene not in ("collapse", "locked-often")])
def test_removed(scene: str) -> None:
    """The switch removes what it was said to, to within a third."""
    off, on = reports(scene)
    name = f"vm.{SCENES[scene][0]}"
    said, = (one for one in off["switches"] if one["name"] == name)
    assert not said["is_on"]
    assert {one["name"] for one in on["switches"] if one["is_on"]} == {name}
    estimated, removed = said["waited_ms"] - said["left_ms"], waited(off) - waited(on)
    print(f"{name}: would have removed {estimated:.1f} of {waited(off):.1f} ms; removed "
          f"{removed:.1f} ms")
    # Nothing comes of nothing.
    assert waited(off) > LEAST
    assert abs(estimated - removed) <= TOLERANCE * removed


def test_often() -> None:
    """A thread that maps memory again after less than a section waits more often, each time for a
    section: the longest wait gets about as short as was said, and not the sum."""
    off, on = reports("locked-often")
    longest = [max(group["longest_ms"] for group in report["groups"]) for report in (off, on)]
    said, = (one for one in off["switches"] if one["name"] == "vm.walk_section_kbytes")
    share = said["left_ms"] / said["waited_ms"]
    print(f"longest wait: {longest[0]:.1f} ms without the switch, {longest[1]:.1f} ms with it; of "
          f"{waited(off):.1f} ms, {said['waited_ms'] - said['left_ms']:.1f} ms would have gone, "
          f"and {waited(off) - waited(on):.1f} ms went")
    assert longest[1] <= 2 * share * longest[0]


def test_broadcasts() -> None:
    """The switch avoids the interrupts that it was said to avoid: all."""
    counts = [sum(sender["count"] for sender in report["broadcasts"])
              for report in reports("collapse")]
    print(f"interrupts: {counts[0]} without the switch, {counts[1]} with it")
    removed = counts[0] - counts[1]
    assert abs(counts[0] - removed) <= TOLERANCE * removed
