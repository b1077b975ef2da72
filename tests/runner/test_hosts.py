# SPDX-License-Identifier: GPL-2.0-only
"""The disks and machines of the test hosts, of both architectures: what they are asked for.

No disk is made and no machine is started.
"""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.common import Fail
from faultline.flavour import ARM64, FLAVOURS, X86
from faultline.vm.arch import ARCHITECTURES
from hosts.host import FIRMWARE, FIRMWARE_PACKAGE, HostMachine, unit
from hosts.image import DISKS, emulate
from hosts.packages import copy_build
from suites import ARM64_HOST

# Channels of a boot, in the order of its ports.
BACKENDS = {name: name for name in ("console", "output", "records", "files", "monitor")}


def command(name: str) -> str:
    """QEMU's arguments for a machine."""
    machine = HostMachine(ARCHITECTURES[name], "tcg", Path("disk"), Path("code"), Path("vars"),
                          {"steps": "true"}, ["quiet"])
    return " ".join(machine.qemu_command("qemu", BACKENDS))


def test_disks() -> None:
    """A disk is of the architecture that its name ends with, and shares the right userland."""
    for name, disk in DISKS.items():
        assert (disk.arch == ARM64) == name.endswith("-arm64") == disk.base.endswith("-arm64")
    assert DISKS["deb"].base == DISKS["rpm"].base == "base"
    assert DISKS["loaders-12"].base == "base-bookworm"


def test_flavour() -> None:
    """The flavour on hosts for arm64 has the packages of microvm, and nothing for tests."""
    flavour = FLAVOURS[ARM64_HOST]
    assert (flavour.arch, flavour.packaged) == (ARM64, "microvm")
    assert flavour.localversion == FLAVOURS["microvm"].localversion
    assert not {"kunit.config", "faultline-arm64.config"} & set(flavour.fragments)


def test_machines() -> None:
    """Only the PC has legacy devices to leave out; both have UEFI and an NVMe disk."""
    pc, virt = command("x86_64"), command("aarch64")
    assert "q35,sata=off,i8042=off" in pc and "isa-serial" in pc
    assert "-machine virt" in virt and "i8042" not in virt and "isa-serial" not in virt
    for text in (pc, virt):
        assert text.count("if=pflash") == 2 and "nvme,serial=faultline" in text
    assert set(FIRMWARE) == set(FIRMWARE_PACKAGE) == {X86.rpm, ARM64.rpm}


@pytest.mark.parametrize("name", sorted(FIRMWARE))
def test_unit(name: str) -> None:
    """The steps and records go to the serial ports of the architecture."""
    arch = ARCHITECTURES[name]
    for text in (unit(arch), unit(arch, on_disk=True)):
        assert f"StandardOutput=file:/dev/{arch.ports[1]}\n" in text
        assert text.count(f">/dev/{arch.ports[2]}'") == 2
        assert not any(word in text for word in ("OUTPUT", "RECORDS", "STEPS"))


def test_no_emulator() -> None:
    """An architecture that qemu-user does not have ends with one error."""
    with pytest.raises(Fail, match="install qemu-user-static"):
        emulate(replace(ARM64, debian="none", rpm="none"))


def test_second_build(tmp_path: Path) -> None:
    """The rebuild begins with the objects of the release, by command lines that name its folder,
    and without what has the name of the release in it."""
    first, second = (SimpleNamespace(out=tmp_path / name, lock=tmp_path / f".{name}.lock")
                     for name in ("generic", "generic.2"))
    command = "gcc -fdebug-prefix-map={out}=. -I{out}/tools -I{out}.old -c -o a.o a.c"
    made = {"mm/a.o": "object", "mm/a.ko": "module", "mm/a.mod.o": "module", "vmlinux": "kernel",
            ".tmp_vmlinux1": "kernel", "tools/vmlinux.h": "header",
            "mm/.a.o.cmd": command.format(out=first.out),
            "tools/objtool/.a.o.d": f"a.o: {first.out}/tools/a.h"}
    for name, text in made.items():
        path: Path = first.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    flavours: list[Any] = [first, second]
    copy_build(*flavours)
    copy_build(*flavours)
    found = {str(path.relative_to(second.out)): path for path in second.out.rglob("*")
             if path.is_file()}
    assert set(found) == {"mm/a.o", "tools/vmlinux.h", "mm/.a.o.cmd", "tools/objtool/.a.o.d"}
    assert found["mm/a.o"].samefile(first.out / "mm/a.o")
    # make compares the times of the files, too.
    for name, path in found.items():
        assert path.stat().st_mtime_ns == (first.out / name).stat().st_mtime_ns
    assert found["mm/.a.o.cmd"].read_text("utf-8") == command.format(out=second.out).replace(
        f"{second.out}.old", f"{first.out}.old")
    assert found["tools/objtool/.a.o.d"].read_text("utf-8") == f"a.o: {second.out}/tools/a.h"
    assert (first.out / "mm/.a.o.cmd").read_text("utf-8") == command.format(out=first.out)
