# SPDX-License-Identifier: GPL-2.0-only
"""Both formats for both architectures, from stages with stand-ins for the kernel and its programs.

The packages that are not compiled are the same from both, so that one repository can hold them.
No kernel is compiled, and the cross compiler makes one program of a line.
"""
from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from faultline.common import ROOT
from faultline.flavour import ARM64, X86, Arch
from faultline.package import deb, make_repo, rpm
from faultline.release import changelog
from faultline.stage import elf_machine
from faultline.stage_env import NATIVE, PARTS, image_name, make_env, write_env

RELEASE = changelog(ROOT / "CHANGELOG")[0].release
DATE = int(changelog(ROOT / "CHANGELOG")[0].date.timestamp())
ENV = make_env(RELEASE, "generic", DATE, False)
PROGRAMS = ("selftests/toggles", "bench/micro", "bench/munmap", "bench/survey")
SHARED = {"faultline-host", "faultline-perf", "faultline-profiles", "faultline-rollout"}
# By rpm's names; those of Debian are in test_debs().
COMPILED = {"kernel-faultline", "kernel-faultline-core", "kernel-faultline-modules",
            "kernel-faultline-devel", "kernel-faultline-devel-matched",
            "kernel-faultline-selftests", "faultline-bench"}


def make_stage(folder: Path, arch: Arch) -> Path:
    """A stage of an architecture: programs are real, everything else is a stand-in."""
    env = make_env(RELEASE, "generic", DATE, False, arch)
    native = NATIVE if env["PERF"] == "yes" else ()
    source = folder / "program.c"
    source.parent.mkdir(parents=True)
    source.write_text("int main(void) { return 0; }\n")
    program = folder / "program"
    subprocess.run([f"{arch.cross}gcc", "-O2", "-fPIE", "-pie", "-Wl,-z,now", "-o", program,
                    source], check=True)
    for name in (*PARTS, *PROGRAMS, *native, image_name(env), "modules/kernel/lib/x.ko.xz",
                 "modules/modules.builtin", "modules/modules.builtin.modinfo",
                 "modules/modules.order", "doc/COPYING", "doc/upstream"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stand-in\n")
        if name in (*PROGRAMS, *native):
            shutil.copy(program, path)
    for name in ("faultline-perf", "faultline-perf.1"):
        shutil.copy(ROOT / "packaging/share" / name, folder / "tools" / name)
    shutil.copy(ROOT / "CHANGELOG", folder / "doc/CHANGELOG")
    source.unlink()
    program.unlink()
    write_env(folder, env)
    return folder


@pytest.fixture(name="made", scope="module")
def fixture_made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of packages of both architectures, by Debian's name."""
    top = tmp_path_factory.mktemp("arches")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPKG_DEB_COMPRESSOR_TYPE", "gzip")
        patch.setenv("DPKG_DEB_COMPRESSOR_LEVEL", "1")
        for arch in (X86, ARM64):
            stage = make_stage(top / f"stage-{arch.debian}", arch)
            found[arch.debian] = top / arch.debian
            deb.build(stage, found[arch.debian] / "deb")
            rpm.build(stage, found[arch.debian] / "rpm")
    return found


def fields(path: Path, *names: str) -> list[str]:
    """Fields of a .deb."""
    return [subprocess.run(["dpkg-deb", "-f", path, name], check=True, text=True,
                           capture_output=True).stdout.strip() for name in names]


def programs(package: Path, folder: Path) -> set[int]:
    """The machines of the programs in a package."""
    folder.mkdir()
    if package.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    else:
        with subprocess.Popen(["rpm2cpio", package], stdout=subprocess.PIPE) as files:
            subprocess.run(["cpio", "-id", "--quiet"], cwd=folder, stdin=files.stdout, check=True)
    return {machine for path in folder.rglob("*") if (machine := elf_machine(path))}


def test_debs(made: dict[str, Path], tmp_path: Path) -> None:
    """The compiled .deb are for the architecture and name no other; the rest are the same."""
    same: dict[str, set[str]] = {}
    for arch in (X86, ARM64):
        for path in (made[arch.debian] / "deb").glob("*.deb"):
            name, of, needs = fields(path, "Package", "Architecture", "Depends")
            if of == "all":
                same.setdefault(name, set()).add(hashlib.sha256(path.read_bytes()).hexdigest())
                continue
            assert of == arch.debian and not name.startswith(tuple(SHARED)), path.name
            if name in (f"linux-selftests-{ENV['KVER']}", "faultline-bench"):
                assert "libc6 (>= " in needs and ":" not in needs, f"{name}: {needs}"
                assert programs(path, tmp_path / f"{of}-{name}") == {arch.elf_machine}
    assert set(same) == SHARED
    assert {name: len(sums) for name, sums in same.items()} == dict.fromkeys(SHARED, 1)


def test_rpms(made: dict[str, Path], tmp_path: Path) -> None:
    """The same of .rpm; there is no perf and no faultline-stalls where they are not compiled."""
    same: dict[str, set[str]] = {}
    for arch in (X86, ARM64):
        found = set()
        for path in (made[arch.debian] / "rpm").glob("*.rpm"):
            package = make_repo.read_rpm(path)
            name = path.name.removesuffix(".rpm").rpartition(".")[0].rsplit("-", 2)[0]
            if path.name.endswith(".noarch.rpm"):
                same.setdefault(name, set()).add(package.identity)
                continue
            assert path.name.endswith(f".{arch.rpm}.rpm"), path.name
            found.add(name)
            if name == "kernel-faultline-selftests":
                assert programs(path, tmp_path / arch.rpm) == {arch.elf_machine}
        assert found == COMPILED | ({"kernel-faultline-tools", "faultline-stalls"}
                                    if arch is X86 else set())
    assert set(same) == SHARED
    assert {name: len(sums) for name, sums in same.items()} == dict.fromkeys(SHARED, 1)


def test_repository(made: dict[str, Path], tmp_path: Path,
                    monkeypatch: pytest.MonkeyPatch) -> None:
    """One repository takes both, one after the other."""
    monkeypatch.setenv("BUILD", str(tmp_path / "build"))
    for folder in made.values():
        make_repo.main(["--out", str(tmp_path / "repo"), "--deb", str(folder / "deb"),
                        "--rpm", str(folder / "rpm")])
    for arch in (X86, ARM64):
        index = tmp_path / f"repo/deb/dists/stable/main/binary-{arch.debian}/Packages"
        text = index.read_text(encoding="utf-8")
        image = f"linux-image-{ENV['KVER']}_{RELEASE.version}_{arch.debian}.deb"
        assert f"Filename: pool/{image}\n" in text
        assert "Package: faultline-profiles\n" in text
    assert len(list((tmp_path / "repo/rpm/Packages").glob("kernel-faultline-core-*"))) == 2
