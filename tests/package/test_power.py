# SPDX-License-Identifier: GPL-2.0-only
"""Packages of flavour powerpc64le: their debian/ folder, and what the flavour does not have.

No kernel is compiled; tests/power/packages installs real packages.
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.common import ROOT, Fail
from faultline.flavour import FLAVOURS, PPC64LE, X86, packed_bases
from faultline.package import deb_source, rpm
from faultline.package.debtree import write_debian
from faultline.package.sign_stage import Stage
from faultline.release import Release
from faultline.stage import elf_machine
from faultline.stage_env import PARTS, check_stage, make_env, write_env

RELEASE = Release("6.12.117", "1")
KVER = "6.12.117-faultline1.powerpc64le"


def power_env(debug: bool = True) -> dict[str, str]:
    """stage.env of a build of the flavour."""
    arch = FLAVOURS["powerpc64le"].arch
    return make_env(RELEASE, "powerpc64le", 0, debug, (arch.debian, arch.rpm), perf=False)


def control(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """The paragraphs of debian/control, by package."""
    write_debian(folder, env)
    text = (folder / "control").read_text(encoding="utf-8")
    return {re.findall(r"(?m)^Package: (\S+)$", part)[0]: part
            for part in text.split("\n\n")[1:]}


def stage_of(folder: Path, env: dict[str, str]) -> Path:
    """A stage that is complete, with empty files."""
    for part in (*PARTS, "vmlinux", "debug/vmlinux", "modules/kernel/x.ko.xz"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_bytes(b"")
    write_env(folder, env)
    return folder


def test_packages(tmp_path: Path) -> None:
    """Compiled packages are for ppc64el, and none has or wants perf of this kernel."""
    found = control(tmp_path / "debian", power_env())
    assert {f"linux-image-{KVER}", f"linux-image-{KVER}-dbg", f"linux-headers-{KVER}",
            f"linux-selftests-{KVER}", "linux-image-faultline-powerpc64le",
            "linux-headers-faultline-powerpc64le", "faultline-bench"} <= set(found)
    for name, text in found.items():
        wanted = "ppc64el" if "powerpc64le" in name or name == "faultline-bench" else "all"
        assert f"\nArchitecture: {wanted}\n" in text, text
        assert f"linux-tools-{KVER}" not in text
    image = found[f"linux-image-{KVER}"]
    assert "grub-ieee1275" in image and "grub-pc" not in image
    assert "POWER8" in found["linux-image-faultline-powerpc64le"]
    assert f"{KVER}-dbg" not in " ".join(control(tmp_path / "small", power_env(debug=False)))


def test_amd64(tmp_path: Path) -> None:
    """Packages for amd64 still have perf, and an image under its old name."""
    env = make_env(RELEASE, "generic", 0, True)
    found = control(tmp_path / "debian", env)
    assert f"linux-tools-{RELEASE.kver('generic')}" in found
    assert f" linux-tools-{RELEASE.kver('generic')},\n" in found[
        f"linux-image-{RELEASE.kver('generic')}"]
    script = tmp_path / "debian" / f"linux-image-{RELEASE.kver('generic')}.postinst"
    assert "image=/boot/vmlinuz-$kver\n" in script.read_text(encoding="utf-8")


def test_image(tmp_path: Path) -> None:
    """The image is /boot/vmlinux-KVER, as Debian's, for hooks and links, too."""
    write_debian(tmp_path, power_env())
    for script in ("preinst", "postinst", "prerm", "postrm"):
        text = (tmp_path / f"linux-image-{KVER}.{script}").read_text(encoding="utf-8")
        assert "image=/boot/vmlinux-$kver\n" in text and "vmlinuz" not in text, script
    names = (tmp_path / "release").read_text(encoding="utf-8").splitlines()
    assert {"IMAGE=vmlinux", "PERF=no"} <= set(names)


@pytest.mark.parametrize("missing", ["vmlinux", "selftests/run"])
def test_incomplete(tmp_path: Path, missing: str) -> None:
    """A stage needs no perf, but the image under its name, and the rest."""
    stage = stage_of(tmp_path / "stage", power_env())
    assert check_stage(stage)["ARCH"] == "ppc64el"
    (stage / missing).unlink()
    with pytest.raises(Fail, match=f"has no {missing}: make the stage again"):
        check_stage(stage)


def test_refused(tmp_path: Path) -> None:
    """RPM packages, Secure Boot and source packages: one error that says what to do."""
    stage = stage_of(tmp_path / "stage", power_env())
    with pytest.raises(Fail, match="no RPM packages for ppc64le: make DEB packages with "
                                   "`make deb FLAVOUR=powerpc64le`"):
        rpm.build(stage, tmp_path / "rpm")
    with pytest.raises(Fail, match="Secure Boot is not that of UEFI: package it without"):
        Stage(stage, tmp_path / "signed")
    make = subprocess.run(["make", "-s", "-C", ROOT, "packages", "FLAVOUR=powerpc64le"],
                          capture_output=True, text=True, check=False)
    assert make.returncode and "error: there are no RPM packages" in make.stderr
    assert not make.stdout


def test_source_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source packages are of flavours for amd64, and carry their configurations only."""
    monkeypatch.setenv("UPSTREAM_TARBALL", str(tmp_path / "linux-6.12.117.tar.xz"))
    (tmp_path / "linux-6.12.117.tar.xz").write_bytes(b"")
    with pytest.raises(Fail, match="no source package, as it is cross-compiled"):
        deb_source.make("powerpc64le", tmp_path / "out")
    assert packed_bases() == ["config.amd64_none_amd64", "config.amd64_none_cloud-amd64"]


def test_elf_machine(tmp_path: Path) -> None:
    """Programs of the two architectures are told apart, and from scripts."""
    path = tmp_path / "program"
    path.write_bytes(Path(sys.executable).resolve().read_bytes()[:64])
    assert elf_machine(path) == 0
    path.chmod(0o755)
    assert elf_machine(path) == X86.elf_machine
    head = bytearray(path.read_bytes())
    head[18:20] = PPC64LE.elf_machine.to_bytes(2, "little")
    path.write_bytes(head)
    assert elf_machine(path) == PPC64LE.elf_machine
    path.write_text("#!/bin/sh\n")
    assert elf_machine(path) == 0
