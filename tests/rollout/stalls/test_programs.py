# SPDX-License-Identifier: GPL-2.0-only
"""faultline-stalls beside programs of Debian, on a kernel of ours: each is named as the holder."""
from __future__ import annotations

import functools
from pathlib import Path

import pytest

from bench import guest, rootfs, workloads
from faultline.common import ROOT
from faultline.flavour import FLAVOURS
from rollout import stalls_lab

PACKAGES = ("coreutils", "dash", "redis-server", "redis-tools", "prometheus-process-exporter",
            "default-jre-headless", "qemu-system-x86", "python3", "postgresql", "util-linux")
WORKLOADS = ROOT / "tests/bench/workloads"
# The scenes, with their milliseconds and MiB.
SCENES = {"monitored_postgres": (1, 256), "monitored_redis": (1, 96), "qemu_shared": (20000, 96),
          "qemu_plugged": (20000, 96), "monitored_jvm": (60000, 128)}
# The holder, its call, and the switch.
NAMED = (
    ("monitored_postgres", "postgres", "exit", None),
    ("monitored_redis", "redis-server", "fork", None),
    ("qemu_shared", "qemu-system-x86", "munmap", "vm.munmap_section_kbytes"),
    ("qemu_plugged", "qemu-system-x86", "madvise(MADV_POPULATE_WRITE)", "vm.walk_section_kbytes"),
    ("monitored_jvm", "G1 Service", "mmap(MAP_FIXED)", "vm.munmap_section_kbytes"),
    ("monitored_jvm", "prometheus-proc", "read smaps", "vm.walk_section_kbytes"))


@functools.cache
def outcome() -> Path:
    """The reports of all scenes."""
    disk = rootfs.image(PACKAGES)
    machine = (*stalls_lab.MACHINE, "--mem", "4096", *(
        f"--qemu-arg={word}" for word in (
            "-drive", f"file={disk},if=none,id=disk,format=raw,readonly=on",
            "-device", "virtio-blk-pci,drive=disk")))
    return stalls_lab.boot(
        FLAVOURS["microvm-btf"].image, "programs", machine, (
            stalls_lab.build(stalls_lab.PATHS.build / "stalls"),
            workloads.java(WORKLOADS / "Load.java"), guest.SWITCHED,
            f"{WORKLOADS}:/test/workloads",
            f"{stalls_lab.GUEST / 'monitored.sh'}:/test/workloads/monitored.sh"), "programs.sh",
        *(f"{scene}:{ms}:{mib}" for scene, (ms, mib) in SCENES.items()))[0]


@pytest.mark.parametrize("scene, holder, call, switch", NAMED)
def test_named(scene: str, holder: str, call: str, switch: str | None) -> None:
    """The program is named, with its call and the switch for that."""
    found = stalls_lab.report(outcome() / f"{scene}.json")
    for group in found["groups"]:
        print(group["holder"], group["call"], group["switch"], group["waits"], group["total_ms"])
    named = [group for group in found["groups"] if group["holder"] == holder
             and group["call"].startswith(call) and group["switch"] == switch]
    assert named and max(group["longest_ms"] for group in named) >= found["min_ms"]
