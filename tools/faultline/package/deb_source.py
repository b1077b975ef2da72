# SPDX-License-Identifier: GPL-2.0-only
"""Make the Debian source package of this release.

A .dsc in format 3.0 (quilt): the unmodified pinned kernel tarball, our overlay
and queue as patches, and in debian/ everything that a build needs.  To build:

  dpkg-source -x linux-faultline_*.dsc
  cd linux-faultline-*/ && dpkg-buildpackage -b

This compiles the kernel and makes the packages without a network.  It builds
FLAVOUR, unless a build profile such as -Ppkg.linux-faultline.microvm selects
another one.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import tempfile

from ..common import ROOT, Fail, logged, mib, need_space, say, shown
from ..flavour import AUDIENCE, LOGS, PATHS, environment, find, packed_bases, source_date_epoch
from ..patchqueue import Queue
from ..release import Release
from ..source import ENVIRONMENT, Source, choose, debian_config, obtain, tar_stream
from ..stage_env import make_env
from .debtree import SOURCE, maintainer, write_debian

# The parts of this repository that the build needs, besides sysctl/ and rollout/.
CARRIED = ("CHANGELOG", "CONTRIBUTING.md", "COPYING", "README.md", "SECURITY.md", "kernel",
           "packaging", "tools")
ROOM = 1 << 30
SUFFIXES = {b"\xfd7zXZ": "xz", b"\x1f\x8b": "gz"}


def upstream_version(source: Source) -> str:
    """The point release of the source."""
    match = re.search(r"\d+\.\d+\.\d+", source.pin.upstream if source.pin else source.title)
    if not match:
        raise Fail(f"the name of {source.title} does not say which kernel it is: "
                   "call it linux-6.12.x.tar.xz")
    return match[0]


def overlay_patch(queue: Queue) -> bytes:
    """All overlay files as one patch, in git format because of their modes."""
    parts = [b"Description: the files that Faultline adds\n"
             b"Author: " + maintainer().encode() + b"\n\n"]
    for name, (mode, data) in sorted(queue.overlay.items()):
        if mode not in ("100644", "100755") or b"\0" in data or not data:
            raise Fail(f"kernel/overlay/{name} is not a text file: a patch cannot add it")
        lines = data.split(b"\n")
        end = b"\n\\ No newline at end of file\n" if lines[-1] else b"\n"
        lines = lines if lines[-1] else lines[:-1]
        path = name.encode()
        parts.append(b"diff --git a/%s b/%s\nnew file mode %s\n--- /dev/null\n+++ b/%s\n"
                     b"@@ -0,0 +1,%d @@\n" % (path, path, mode.encode(), path, len(lines)))
        parts.append(b"\n".join(b"+" + line for line in lines) + end)
    return b"".join(parts)


def write_patches(queue: Queue, folder: pathlib.Path) -> None:
    """Write debian/patches."""
    patches = [("overlay.patch", overlay_patch(queue)), *queue.patches]
    folder.mkdir()
    for name, data in patches:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "series").write_text("".join(f"{name}\n" for name, _ in patches))


def carry(debian: pathlib.Path) -> None:
    """Copy our side of the build, and the configurations that flavours are based on."""
    for name in CARRIED:
        path, new = ROOT / name, debian / "faultline" / name
        if path.is_dir():
            shutil.copytree(path, new,
                            ignore=shutil.ignore_patterns("__pycache__", "*~"))
        else:
            shutil.copy(path, new)
    bases = debian / "base-configs"
    bases.mkdir()
    for base in packed_bases():
        shutil.copy(debian_config(PATHS, base), bases / base)


def write_orig(source: Source, work: pathlib.Path, upstream: str) -> pathlib.Path:
    """The kernel tarball under the name that dpkg-source expects."""
    assert source.path is not None
    part = work / "orig"
    with tar_stream(source.path) as stream, open(part, "wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    with open(part, "rb") as file:
        head = file.read(8)
    for magic, suffix in SUFFIXES.items():
        if head.startswith(magic):
            return part.rename(work / f"{SOURCE}_{upstream}.orig.tar.{suffix}")
    raise Fail(f"{source.title}: a source package takes only .tar.xz or .tar.gz: repack it")


def patched_files(queue: Queue) -> list[str]:
    """The kernel files that the queue changes."""
    ours = set(queue.overlay)
    found = set()
    for _, data in queue.patches:
        for old, new in re.findall(rb"(?m)^--- (\S+)\n\+\+\+ (\S+)$", data):
            if old == b"/dev/null":
                ours.add(new.decode().partition("/")[2])
            else:
                found.add(old.decode().partition("/")[2])
    return sorted(found - ours)


def run(log: pathlib.Path, folder: pathlib.Path, *command: str | pathlib.Path,
        **extra: str) -> None:
    """Run a step in folder whose output only matters if it fails."""
    logged(str(command[0]), log, *command, cwd=folder, env=environment() | extra)


def name_orig(dsc: pathlib.Path, orig: pathlib.Path) -> None:
    """Put the size and checksums of this tarball into a .dsc."""
    text = dsc.read_text(encoding="utf-8")
    for kind, length in (("md5", 32), ("sha1", 40), ("sha256", 64)):
        with open(orig, "rb") as file:
            new = f" {hashlib.file_digest(file, kind).hexdigest()} {orig.stat().st_size} "
        text, count = re.subn(rf"(?m)^ [0-9a-f]{{{length}}} \d+ (?={re.escape(orig.name)}$)",
                              new, text)
        if count != 1:
            raise Fail(f"{dsc.name} names {orig.name} {count} times by {kind}: "
                       "this dpkg-source writes another format")
    dsc.write_text(text, encoding="utf-8")


def make(flavour: str, out: pathlib.Path) -> None:
    """Make the source package in out."""
    if not shutil.which("dpkg-source"):
        raise Fail("dpkg-source (package dpkg-dev) is not installed: run 'make deps'")
    source = obtain(PATHS, choose(PATHS))
    upstream = upstream_version(source)
    wanted = find(flavour)
    if wanted.arch.cross:
        raise Fail(f"flavour {wanted.name} has no source package, as it is cross-compiled: use "
                   f"`make deb FLAVOUR={wanted.name}`")
    if wanted.name not in AUDIENCE:
        raise Fail(f"flavour {wanted.name} has no packages: use {', '.join(AUDIENCE)}")
    env = make_env(Release.ours(PATHS.kernel, upstream, wanted.rebuild), wanted.packaged,
                   source_date_epoch(), bool(wanted.base))
    log = LOGS / f"source-{env['KVER']}.log"
    log.unlink(missing_ok=True)
    existed = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    need_space(out, ROOM, "a source package")
    done = False
    try:
        with tempfile.TemporaryDirectory(prefix=".deb-source-", dir=out) as name:
            work = pathlib.Path(name)
            orig = write_orig(source, work, upstream)
            tree = work / f"{SOURCE}-{upstream}"
            tree.mkdir()
            # dpkg-source would unpack the kernel twice and compare, which takes many
            # minutes.  It only needs to see the files that the patches touch.
            queue = Queue.load(PATHS.kernel)
            run(log, work, "tar", "-x", "-f", orig, "-C", tree, "--strip-components=1",
                "--wildcards", "--no-wildcards-match-slash",
                *(f"*/{path}" for path in patched_files(queue)))
            small = work / "small"
            small.mkdir()
            run(log, work, "tar", "-c", "-a", "-f", small / orig.name, tree.name)
            write_debian(tree / "debian", env)
            carry(tree / "debian")
            write_patches(queue, tree / "debian" / "patches")
            tree.rename(small / tree.name)
            run(log, small, "dpkg-source", "-b", tree.name, TZ="UTC",
                SOURCE_DATE_EPOCH=env["SOURCE_DATE_EPOCH"], TMPDIR=str(work))
            made = [orig, *small.glob("*.debian.tar.*"), *small.glob("*.dsc")]
            name_orig(made[-1], orig)
            for path in made:
                path.replace(out / path.name)
        done = True
    finally:
        if not done and not existed:
            out.rmdir()
    for path in made:
        say(f"{shown(out / path.name)} ({mib((out / path.name).stat().st_size)})")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=ENVIRONMENT,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", default="generic",
                        help="the flavour that it builds (%(default)s)")
    parser.add_argument("outdir", type=pathlib.Path, metavar="OUTDIR")
    args = parser.parse_args()
    os.umask(0o022)
    make(args.flavour, args.outdir.resolve())
