# SPDX-License-Identifier: GPL-2.0-only
"""Make the RPM source package: the pinned kernel, this repository, the patches.

`rpmbuild --rebuild` compiles the flavour cloud from it, or another one with
--define 'flavour NAME', and needs no network.  The repository is packed as it
is on disk, including uncommitted changes.  REBUILD=N makes the source of
rebuild N.
"""
from __future__ import annotations

import argparse
import gzip
import io
import os
import pathlib
import shutil
import subprocess
import tarfile

from .. import flavour as flavours
from ..common import ROOT, Fail, Paths, say, shown
from ..patchqueue import Queue
from ..release import Release, changelog
from ..source import ENVIRONMENT, Source, choose, debian_config, obtain, tar_stream
from . import rpmtool

COPY_BYTES = 1 << 20


def kernel_tarball(source: Source, folder: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Write the kernel tarball; return it and the name of the folder in it."""
    assert source.path is not None
    name = source.path.name
    if source.path.suffix == ".deb":
        name = name.removesuffix(".deb").removesuffix("_all") + ".tar.xz"
    target = folder / name
    with tar_stream(source.path) as stream, open(target, "wb") as file:
        shutil.copyfileobj(stream, file, COPY_BYTES)
    if not tarfile.is_tarfile(target):
        raise Fail(f"{shown(source.path)}: a source package takes a .tar.xz or .tar.gz")
    with tarfile.open(target) as tar:
        first = tar.next()
    assert first is not None
    return target, first.name.split("/")[0]


def our_files() -> list[str]:
    """Existing files that git tracks or would add."""
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard"],
                             check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if listing.returncode:
        raise Fail("git cannot list the files of this repository: "
                   "make the source package in a git work tree")
    names = os.fsdecode(listing.stdout).split("\0")
    return sorted(name for name in names if name and (ROOT / name).exists())


def our_tarball(target: pathlib.Path, epoch: int) -> None:
    """Pack this repository; the same contents give the same bytes."""
    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = epoch
        info.mode = 0o755 if info.mode & 0o100 else 0o644
        return info

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in our_files():
            tar.add(ROOT / name, f"faultline/{name}", recursive=False, filter=plain)
    target.write_bytes(gzip.compress(raw.getvalue(), mtime=0))


def upstream_version(source: Source) -> str:
    """The kernel version of the selected source."""
    if source.pin:
        return source.pin.upstream
    raise Fail("a source package needs the pinned source: unset UPSTREAM_TARBALL")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=ENVIRONMENT,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=pathlib.Path, help="output folder for the .src.rpm")
    args = parser.parse_args()

    out, paths = args.outdir.absolute(), Paths.from_env()
    queue, source = Queue.load(paths.kernel), choose(paths)
    upstream = upstream_version(source)
    rebuild = flavours.find("generic").rebuild
    release = Release.ours(paths.kernel, upstream, rebuild)
    epoch = flavours.source_date_epoch()

    with rpmtool.workspace(out) as work:
        sources = work / "SOURCES"
        tarball, folder = kernel_tarball(obtain(paths, source), sources)
        ours = sources / f"faultline-{release.name}.tar.gz"
        our_tarball(ours, epoch)
        bases = flavours.packed_bases()
        for name in bases:
            shutil.copyfile(debian_config(paths, name), sources / name)
        # All in one folder here: the number keeps names apart, and their order.
        patches = [(f"{number:04}-{name.rpartition('/')[2]}", data)
                   for number, (name, data) in enumerate(queue.patches, 1)]
        for name, data in patches:
            (sources / name).write_bytes(data)

        macros = {"faultline_name": release.name, "upstream": upstream,
                  "faultline_release": release.number,
                  "rebuild": rebuild, "epoch_seconds": str(epoch), "kernel_source": folder}
        macros["base_configs"] = " ".join(f"%{{SOURCE{number}}}"
                                          for number, _ in enumerate(bases, 2))
        files = [tarball.name, ours.name, *bases]
        lines = ["# Added by `fl package rpm-source`: versions and contents of the package."]
        lines += [f"%global {name} {value}" for name, value in macros.items() if value]
        lines += [f"Source{number}: {name}" for number, name in enumerate(files)]
        lines += [f"Patch{number}: {name}" for number, (name, _) in enumerate(patches, 1)]
        spec = rpmtool.write_spec(work, "\n".join(lines) + "\n\n",
                                  rpmtool.changes(changelog(ROOT / "CHANGELOG"), release.number))
        for path in (spec, *sources.iterdir()):
            path.chmod(0o644)
            os.utime(path, (epoch, epoch))
        say(f"packing {tarball.name} and {len(queue.patches)} patches ...")
        rpmtool.rpmbuild(work, str(epoch), "-bs", str(spec))
        rpmtool.publish(list((work / "SRPMS").glob("*.rpm")), out)
