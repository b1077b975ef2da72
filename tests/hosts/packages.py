# SPDX-License-Identifier: GPL-2.0-only
"""Make the signed repositories that the test hosts install from, in build/images/repo/FLAVOUR.

They have two builds of the flavour's packages: the release and its rebuild 2.  The folder
build/images/packages/FLAVOUR/next has RPM packages of a third kernel, which is installed but not
booted: dnf keeps a number of kernels.  With --first there is only the release, which is enough for
the scenario release.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
from pathlib import Path

from faultline.common import ROOT, Paths, lock, say, shown, write_atomic
from faultline.flavour import Flavour, find
from faultline.package import deb, make_repo, rpm
from faultline.stage import inputs_file, make_stage
from faultline.stage_env import read_env

# Folders whose files are in the packages, besides the stage, or make them.
INPUTS = ("packaging", "sysctl", "rollout", "tools/faultline/package")


def state_of(digests: list[str]) -> str:
    """The inputs of the repositories: the digests of the stages, and our files."""
    lines = list(digests)
    for folder in INPUTS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                total = hashlib.sha256(path.read_bytes()).hexdigest()
                lines.append(f"{total} {path.relative_to(ROOT)}")
    return "".join(f"{line}\n" for line in lines)


def copy_object(source: str, target: str) -> str:
    """Link an object file, which no step writes to: as and ld put a new file in its place."""
    if source.endswith(".o"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
    return target


def copy_build(first: Flavour, second: Flavour) -> None:
    """Start the build of the rebuild with the objects of the release: only its name is another.

    The paths in an object are relative (-fdebug-prefix-map), but make compares the command line of
    each with that of the build before, and command lines have the folder.  Modules and vmlinux have
    the name in them: they are made again, and not copied, which saves half of the space.
    """
    if second.out.exists() or not first.out.exists():
        return
    part = second.out.with_name(f".{second.out.name}.part")
    shutil.rmtree(part, ignore_errors=True)

    def linked(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name.endswith((".ko", ".mod.o"))
                or folder == str(first.out) and name.startswith(("vmlinux", ".tmp_"))}

    with lock(first.lock):
        shutil.copytree(first.out, part, symlinks=True, ignore=linked, copy_function=copy_object)
    folder = re.compile(re.escape(bytes(first.out)) + rb"(?=[/=])")
    # The dependencies of objtool have the folder, too, and all objects depend on objtool.
    for path in {*part.rglob(".*.cmd"), *(part / "tools").rglob(".*")}:
        if path.is_file():
            stat, data = path.stat(), path.read_bytes()
            path.write_bytes(folder.sub(lambda _: bytes(second.out), data))
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    part.rename(second.out)


def copy_stage(second: Path, third: Path) -> Path:
    """Make a stage with the files of rebuild 2 that says it is rebuild 3."""
    for name in ("vmlinuz", "config", "System.map", "modules", "doc", "headers/Module.symvers"):
        (third / name).parent.mkdir(parents=True, exist_ok=True)
        if (second / name).is_dir():
            shutil.copytree(second / name, third / name, copy_function=os.link, symlinks=True)
        else:
            os.link(second / name, third / name)
    perf = read_env(second)["PERF"] == "yes"
    for name in ("tools/faultline-perf", "tools/faultline-perf.1", "selftests/run", "bench/micro",
                 "bench/munmap", "bench/survey", *(["stalls/faultline-stalls"] if perf else [])):
        (third / name).parent.mkdir(exist_ok=True)
        os.link(second / name, third / name)
    if perf:
        # A static program: nothing here needs perf.
        os.link(second / "selftests/toggles", third / "tools/perf")
    env = (second / "stage.env").read_text(encoding="utf-8")
    env = re.sub(r"(?m)^(KVER=.*|RELEASE=\d+)\.2\b", r"\1.3", env)
    # Nobody debugs it.
    env = re.sub(r"(?m)^DEBUG=.*", "DEBUG=no", env)
    (third / "stage.env").write_text(env, encoding="utf-8")
    return third


def up_to_date(work: Path, out: Path, now: str, first: bool) -> bool:
    """Are the repositories made from these inputs?  For `first`, they may have more."""
    known = work / ".state"
    if not out.is_dir() or not known.is_file():
        return False
    made = known.read_text(encoding="utf-8")
    if first:
        return set(now.splitlines()) <= set(made.splitlines())
    return made == now and (work / "next").is_dir()


def make(paths: Paths, flavour: str, first: bool = False) -> None:
    """Make stages, packages and repositories, unless they are up to date."""
    stages = [make_stage(find(flavour, ""))]
    if not first:
        copy_build(find(flavour, ""), find(flavour, "2"))
        stages.append(make_stage(find(flavour, "2")))
    work = paths.build / "images/packages" / flavour
    out = paths.build / "images/repo" / flavour
    now = state_of([inputs_file(stage).read_text(encoding="ascii") for stage in stages])
    if up_to_date(work, out, now, first):
        say(f"images: {shown(out)} is up to date")
        return
    shutil.rmtree(work, ignore_errors=True)
    # The packages are throw-away, and xz takes a minute.
    os.environ.update(DPKG_DEB_COMPRESSOR_TYPE="zstd", DPKG_DEB_COMPRESSOR_LEVEL="3")
    for stage in stages:
        deb.build(stage, work / "deb")
        rpm.build(stage, work / "rpm")
    if not first:
        third = copy_stage(stages[1], work / "third")
        rpm.build(third, work / "next")
        shutil.rmtree(third)
    # An older make-repo may have left it, or one with another throw-away key.
    shutil.rmtree(out, ignore_errors=True)
    make_repo.main(["--out", str(out), "--deb", str(work / "deb"), "--rpm", str(work / "rpm")])
    write_atomic(work / ".state", now.encode())


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flavour", nargs="?", default="microvm", help="default: %(default)s")
    parser.add_argument("--first", action="store_true", help="only the release, no rebuild")
    args = parser.parse_args()
    make(Paths.from_env(), args.flavour, args.first)
