# SPDX-License-Identifier: GPL-2.0-only
"""Packages of cross-compiled flavours: their debian/ folder, and what these flavours do not have.

No kernel is compiled; power/packages installs real packages of one of them.
"""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.common import ROOT, Fail
from faultline.flavour import ARM64, FLAVOURS, PPC64LE, X86, Arch, Flavour, packed_bases
from faultline.package import certificate, deb_source, rpm
from faultline.package.debtree import write_debian
from faultline.package.sign_stage import Stage
from faultline.release import Release
from faultline.stage import elf_machine
from faultline.stage_env import PARTS, check_stage, image_name, make_env, write_env

RELEASE = Release("6.12.117", "1")
POWER, ARM = FLAVOURS["powerpc64le"], FLAVOURS["generic-arm64"]
both = pytest.mark.parametrize("flavour", [POWER, ARM], ids=["powerpc64le", "generic-arm64"])


def env_of(flavour: Flavour, debug: bool = True) -> dict[str, str]:
    """stage.env of a build of the flavour."""
    return make_env(RELEASE, flavour.packaged, 0, debug, flavour.arch)


def control(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """The paragraphs of debian/control, by package."""
    write_debian(folder, env)
    text = (folder / "control").read_text(encoding="utf-8")
    return {re.findall(r"(?m)^Package: (\S+)$", part)[0]: part
            for part in text.split("\n\n")[1:]}


def stage_of(folder: Path, env: dict[str, str]) -> Path:
    """A stage that is complete, with empty files."""
    for part in (*PARTS, image_name(env), "debug/vmlinux", "modules/kernel/x.ko.xz"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_bytes(b"")
    write_env(folder, env)
    return folder


@both
def test_packages(tmp_path: Path, flavour: Flavour) -> None:
    """Compiled packages are for the architecture, and none has or wants perf of this kernel."""
    env = env_of(flavour)
    kver, meta = env["KVER"], "" if flavour is ARM else "-powerpc64le"
    found = control(tmp_path / "debian", env)
    assert {f"linux-image-{kver}", f"linux-image-{kver}-dbg", f"linux-headers-{kver}",
            f"linux-selftests-{kver}", f"linux-image-faultline{meta}",
            f"linux-headers-faultline{meta}", "faultline-bench"} <= set(found)
    for name, text in found.items():
        wanted = flavour.arch.debian if name.startswith(("linux-", "faultline-bench")) else "all"
        assert f"\nArchitecture: {wanted}\n" in text, text
        assert f"linux-tools-{kver}" not in text
    image = found[f"linux-image-{kver}"]
    assert f" {flavour.arch.loaders},\n" in image and "grub-pc" not in image
    assert f"{kver}-dbg" not in " ".join(control(tmp_path / "small", env_of(flavour, debug=False)))


def test_names() -> None:
    """A host asks for the same packages on amd64 and arm64."""
    assert env_of(ARM)["KVER"] == "6.12.117-faultline1.generic"
    assert env_of(ARM)["KVER"] == make_env(RELEASE, "generic", 0, True)["KVER"]
    assert env_of(POWER)["KVER"] == "6.12.117-faultline1.powerpc64le"


def test_amd64(tmp_path: Path) -> None:
    """Packages for amd64 still have perf, and an image under its old name."""
    env = make_env(RELEASE, "generic", 0, True)
    found = control(tmp_path / "debian", env)
    assert f"linux-tools-{RELEASE.kver('generic')}" in found
    assert f" linux-tools-{RELEASE.kver('generic')},\n" in found[
        f"linux-image-{RELEASE.kver('generic')}"]
    assert "grub-pc | grub-efi-amd64" in found[f"linux-image-{RELEASE.kver('generic')}"]
    script = tmp_path / "debian" / f"linux-image-{RELEASE.kver('generic')}.postinst"
    assert "image=/boot/vmlinuz-$kver\n" in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("flavour, name, other", [(POWER, "vmlinux", "vmlinuz"),
                                                  (ARM, "vmlinuz", "vmlinux")],
                         ids=["powerpc64le", "generic-arm64"])
def test_image(tmp_path: Path, flavour: Flavour, name: str, other: str) -> None:
    """The image is named as Debian's, for hooks and links, too."""
    env = env_of(flavour)
    write_debian(tmp_path, env)
    for script in ("preinst", "postinst", "prerm", "postrm"):
        text = (tmp_path / f"linux-image-{env['KVER']}.{script}").read_text(encoding="utf-8")
        assert f"image=/boot/{name}-$kver\n" in text and other not in text, script
    names = (tmp_path / "release").read_text(encoding="utf-8").splitlines()
    assert {f"IMAGE={name}", "PERF=no"} <= set(names)


@both
@pytest.mark.parametrize("missing", ["", "selftests/run"], ids=["image", "selftests"])
def test_incomplete(tmp_path: Path, flavour: Flavour, missing: str) -> None:
    """A stage needs no perf, but the image under its name, and the rest."""
    stage = stage_of(tmp_path / "stage", env_of(flavour))
    missing = missing or flavour.arch.boot
    assert check_stage(stage)["ARCH"] == flavour.arch.debian
    (stage / missing).unlink()
    with pytest.raises(Fail, match=f"has no {missing}: make the stage again"):
        check_stage(stage)


def test_unknown(tmp_path: Path) -> None:
    """A stage for an architecture that is not in the table is an error."""
    stage = stage_of(tmp_path / "stage", env_of(ARM))
    write_env(stage, {**env_of(ARM), "ARCH": "riscv64"})
    with pytest.raises(Fail, match="ARCH=riscv64 is not amd64, ppc64el, arm64: make the stage"):
        check_stage(stage)


def test_refused(tmp_path: Path) -> None:
    """POWER has no RPM packages and no Secure Boot: one error that says what to do."""
    stage = stage_of(tmp_path / "stage", env_of(POWER))
    with pytest.raises(Fail, match="no RPM packages for ppc64le: make DEB packages with "
                                   "`make deb FLAVOUR=powerpc64le`"):
        rpm.build(stage, tmp_path / "rpm")
    with pytest.raises(Fail, match="Secure Boot is not that of UEFI: package it without"):
        Stage(stage, tmp_path / "signed")
    make = subprocess.run(["make", "-s", "-C", ROOT, "packages", "FLAVOUR=powerpc64le"],
                          capture_output=True, text=True, check=False)
    assert make.returncode and "error: there are no RPM packages" in make.stderr
    assert not make.stdout


def test_sign_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of another architecture are signed by a program of this host, from the build."""
    path = stage_of(tmp_path / "stage", env_of(ARM))
    (path / "config").write_text("")
    stage = Stage(path, tmp_path / "signed")
    monkeypatch.setenv("BUILD", str(tmp_path / "build"))
    programs = [path / "headers/scripts/sign-file",
                tmp_path / "build/generic/scripts/sign-file",
                tmp_path / "build/generic-arm64/scripts/sign-file"]
    for program in programs[:2]:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
    with pytest.raises(Fail, match="its build has no scripts/sign-file"):
        stage.sign_file(None)
    programs[2].parent.mkdir(parents=True)
    programs[2].write_text("")
    programs[2].chmod(0o755)
    assert stage.sign_file(None) == programs[2]


# --- The certificate in the Image of arm64

TEXT, ROOM = 0xffff800080000000, 32
PLACES = {certificate.CERT: 0x100, certificate.USED: 0x140, certificate.LIST: 0x148}
SYSTEM_MAP = f"{TEXT:016x} T _text\n" + "".join(
    f"{TEXT + place:016x} r {name}\n" for name, place in PLACES.items())


def flat_image() -> bytearray:
    """The parts of an Image that matter here: magic numbers, the noise, and the two sizes."""
    data = bytearray(0x200)
    data[:2], data[0x38:0x3c] = b"MZ", certificate.ARM64
    data[0x3c:0x40] = (0x40).to_bytes(4, "little")
    data[0x100:0x100 + ROOM] = b"\xa5" * ROOM
    data[0x148:0x150] = (100).to_bytes(8, "little")
    return data


def test_certificate() -> None:
    """The certificate is at its place, the sizes follow, and nothing else changes."""
    image = flat_image()
    for der in (b"first certificate", b"second"):
        wanted = flat_image()
        wanted[0x100:0x100 + ROOM] = der.ljust(ROOM, b"\0")
        wanted[0x140:0x144] = len(der).to_bytes(4, "little")
        wanted[0x148:0x150] = (100 + len(der)).to_bytes(8, "little")
        # sbsign writes a checksum, which is of no use without the signature.
        image[0x40 + certificate.CHECKSUM] = 7
        image = bytearray(certificate.insert(bytes(image), SYSTEM_MAP, ROOM, der, "vmlinuz"))
        assert image == wanted


def test_certificate_refused() -> None:
    """A System.map of another kernel is an error."""
    for text in (SYSTEM_MAP.replace("_text", "text"), SYSTEM_MAP.replace("0140", "9140")):
        with pytest.raises(Fail, match="vmlinuz has no system_extra_cert(_used)? where"):
            certificate.insert(bytes(flat_image()), text, ROOM, b"x", "vmlinuz")
    with pytest.raises(Fail, match="does not fit its System.map"):
        certificate.insert(bytes(flat_image()), SYSTEM_MAP, ROOM, b"x" * (ROOM + 1), "vmlinuz")


@both
def test_source_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                         flavour: Flavour) -> None:
    """Source packages are of flavours for amd64, and carry their configurations only."""
    monkeypatch.setenv("UPSTREAM_TARBALL", str(tmp_path / "linux-6.12.117.tar.xz"))
    (tmp_path / "linux-6.12.117.tar.xz").write_bytes(b"")
    with pytest.raises(Fail, match="no source package, as it is cross-compiled"):
        deb_source.make(flavour.name, tmp_path / "out")
    assert packed_bases() == ["config.amd64_none_amd64", "config.amd64_none_cloud-amd64"]


@pytest.mark.parametrize("arch", [PPC64LE, ARM64], ids=["ppc64el", "arm64"])
def test_elf_machine(tmp_path: Path, arch: Arch) -> None:
    """Programs of two architectures are told apart, and from scripts."""
    path = tmp_path / "program"
    path.write_bytes(Path(sys.executable).resolve().read_bytes()[:64])
    assert elf_machine(path) == 0
    path.chmod(0o755)
    assert elf_machine(path) == X86.elf_machine
    head = bytearray(path.read_bytes())
    head[18:20] = arch.elf_machine.to_bytes(2, "little")
    path.write_bytes(head)
    assert elf_machine(path) == arch.elf_machine
    path.write_text("#!/bin/sh\n")
    assert elf_machine(path) == 0
