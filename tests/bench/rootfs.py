# SPDX-License-Identifier: GPL-2.0-only
"""A disk image with Debian packages, for programs that a benchmark runs in a VM.

The packages and all that they depend on are those of the host's release. They come from Debian's
archive, through apt's signed metadata; nothing is installed, and none of their scripts is run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from faultline.apt import Apt
from faultline.common import Fail, Paths, lock, need_space, say, shown

# Of no use in a VM without terminal or manual.
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info",
             "usr/share/lintian")
# Debian 12's packages have files in both places; these links make them one.
_MERGED = ("bin", "sbin", "lib", "lib64")
# Bytes of a file system for each byte of a package, at most.
_GROWTH = 6


def release() -> str:
    """The codename of the host's Debian release."""
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        facts = {}
    if facts.get("ID") != "debian" or not facts.get("VERSION_CODENAME"):
        raise Fail("the programs of this benchmark are those of the host's Debian release, and "
                   "this host is not a Debian; run it on one")
    return facts["VERSION_CODENAME"]


def image(packages: tuple[str, ...]) -> Path:
    """The image with PACKAGES; made if there is none."""
    suite = release()
    name = hashlib.sha256(" ".join((suite, *sorted(packages))).encode()).hexdigest()[:12]
    paths = Paths.from_env()
    made = paths.build / "bench/rootfs" / f"{suite}-{name}.ext4"
    with lock(made.with_suffix(".lock")):
        if not made.exists():
            for tool, package in (("mkfs.ext4", "e2fsprogs"), ("dpkg-deb", "dpkg"), ("tar", "tar")):
                if not _tool(tool):
                    raise Fail(f"{tool} is missing: install {package}")
            _make(made, Apt(paths, suite=suite, instead="run this on a host with apt"), packages)
    return made


def _tool(name: str) -> str | None:
    """A program, which may be in a folder that only root has in PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _make(made: Path, apt: Apt, packages: tuple[str, ...]) -> None:
    tree = made.with_suffix(".tree")
    shutil.rmtree(tree, ignore_errors=True)
    try:
        debs = _download(apt, packages)
        need_space(made.parent, _GROWTH * sum(deb.stat().st_size for deb in debs),
                   "the disk image of the benchmark")
        say(f"unpacking {len(debs)} packages ...")
        tree.mkdir(parents=True)
        for link in _MERGED:
            (tree / "usr" / link).mkdir(parents=True)
            (tree / link).symlink_to(f"usr/{link}")
        for deb in debs:
            _unpack(deb, tree)
        for folder in _LEFT_OUT:
            shutil.rmtree(tree / folder, ignore_errors=True)
        _format(made, tree)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    for deb in debs:
        deb.unlink()
    say(f"made {shown(made)}")


def _download(apt: Apt, packages: tuple[str, ...]) -> list[Path]:
    """Download PACKAGES and what they depend on."""
    apt.update()
    install = ("--no-install-recommends", "install", *packages)
    listed = apt.run("apt-get", "-qq", "--print-uris", *install)
    # 'ADDRESS' FILE SIZE CHECKSUM
    found = [line.split() for line in listed.stdout.splitlines() if line.startswith("'")]
    if listed.returncode or not found:
        raise Fail(f"apt finds no set of packages for {' '.join(packages)} "
                   f"({_reason(listed.stderr, apt.trouble)}): check the network and apt's "
                   "sources, and run this again")
    archives = apt.folder / "archives"
    need_space(apt.folder, sum(int(words[2]) for words in found), "the download")
    say(f"downloading {len(found)} packages of Debian ...")
    fetched = apt.run("apt-get", "-qq", "-y", "--download-only", *install)
    missing = [words[1] for words in found if not (archives / words[1]).is_file()]
    if fetched.returncode or missing:
        raise Fail(f"the download of {missing[0] if missing else 'the packages'} failed "
                   f"({_reason(fetched.stderr, apt.trouble)}): check the network and run this "
                   "again; it keeps what it has")
    return [archives / words[1] for words in found]


def _reason(errors: str, trouble: str) -> str:
    lines = [line for line in errors.splitlines() if line.startswith("E: ")]
    return trouble or (lines[0][3:] if lines else "no reason given")


def _unpack(deb: Path, tree: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as files:
        result = subprocess.run(
            ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(tree)],
            stdin=files.stdout, capture_output=True, text=True, check=False)
        assert files.stderr is not None
        errors = [*files.stderr.read().decode(errors="replace").splitlines(),
                  *result.stderr.splitlines(), "no reason given"]
    if files.returncode or result.returncode:
        deb.unlink()
        raise Fail(f"cannot unpack {deb.name} ({errors[0]}): check the free space below "
                   f"{tree.parent} and run this again, it is downloaded again")


def _format(made: Path, tree: Path) -> None:
    size = sum(path.lstat().st_size + 4096 for path in tree.rglob("*"))
    new = made.with_suffix(".new")
    new.unlink(missing_ok=True)
    result = subprocess.run(
        [_tool("mkfs.ext4") or "mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal",
         "-E", "root_owner=0:0", "-d", str(tree), str(new), f"{(size * 5 // 4 >> 20) + 64}M"],
        capture_output=True, text=True, check=False)
    if result.returncode:
        new.unlink(missing_ok=True)
        raise Fail(f"mkfs.ext4 failed ({' '.join(result.stderr.split())}): check the free "
                   f"space below {made.parent}")
    new.replace(made)
