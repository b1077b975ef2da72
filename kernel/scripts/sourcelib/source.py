# SPDX-License-Identifier: GPL-2.0-only
"""The upstream source: the pinned package, another version of it, or a user's tarball."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from .common import CHUNK, Fail, Paths, Progress, disk_full, lock, need_space, say, sha256, shown
from .pin import Pin
from .registry import Registry, verify

ENVIRONMENT = """\
environment:
  UPSTREAM=latest         take the newest 6.12.y of the registry, or UPSTREAM=6.12.x[-y] that
                          one, instead of the pin (still verified by apt's signed metadata)
  UPSTREAM_TARBALL=path   take your own upstream linux-6.12.y.tar.{xz,gz,zst}; no apt needed
  BUILD=folder            everything generated goes there (default: build/)
  FAULTLINE_KERNEL_DIR    folder with upstream, overlay/ and patches/ (default: kernel/)
  FAULTLINE_APT_ETC       where apt's sources are read (default: /etc/apt)
  FAULTLINE_APT_KEYRING   keys that may sign the archive (default: debian-archive-keyring)
"""

# By magic bytes and not by name. -T0: the package's xz has blocks, so all CPUs can unpack.
DECOMPRESSORS = {
    b"\xfd7zXZ": ["xz", "-dc", "-T0"],
    b"\x1f\x8b": ["gzip", "-dc"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dcq"],
}

# For the check of free space only: a kernel tarball unpacks to about ten times its size, and
# the git objects made from it take a quarter of that.
UNPACK_RATIO = 10
OBJECT_SHARE = 4


@dataclass(frozen=True)
class Source:
    """A source that is here, or (path is None) can be fetched."""

    key: str
    title: str
    pin: Pin | None = None
    path: Path | None = None
    registry: Registry | None = None  # if it was asked already


def pinned(pin: Pin, registry: Registry | None = None) -> Source:
    """The source of a pin, not fetched yet."""
    return Source(f"deb:{pin.sha256}", f"{pin.package} {pin.version}", pin, registry=registry)


def choose(paths: Paths) -> Source:
    """What the environment asks for. Does not use the network unless UPSTREAM is set."""
    tarball, wanted = os.environ.get("UPSTREAM_TARBALL"), os.environ.get("UPSTREAM")
    pin = Pin.load(paths.kernel)
    if tarball:
        path = Path(tarball).absolute()
        if not path.is_file():
            raise Fail(f"UPSTREAM_TARBALL={tarball}: no such file: name a "
                       f"linux-{pin.series}.y.tar.xz, .gz or .zst")
        stat = path.stat()
        return Source(f"tarball:{path}:{stat.st_size}:{stat.st_mtime_ns}", path.name, path=path)
    if wanted and wanted != "pin":
        registry = Registry(paths, pin.package, pin.series).open()
        other = registry.find(wanted)
        if other != pin:
            say(f"note: UPSTREAM={wanted} is {other.version}, not the pin ({pin.version})")
        return pinned(other, registry)
    return pinned(pin)


def obtain(paths: Paths, source: Source) -> Source:
    """The same source with its file at hand: from the cache, else from the registry."""
    if source.pin is None:
        return source
    pin, path = source.pin, paths.cache / source.pin.file
    paths.cache.mkdir(parents=True, exist_ok=True)
    with lock(paths.cache / ".fetch.lock"):
        if path.exists():
            try:
                verify(path, pin)
                return replace(source, path=path)
            except Fail as error:
                say(f"the cached file is damaged and fetched again: {error}")
                path.unlink()
        registry = source.registry or Registry(paths, pin.package, pin.series).open()
        there = registry.find(pin.version)
        if (there.sha256, there.size) != (pin.sha256, pin.size):
            raise Fail(f"the registry's {pin.package} {pin.version} has sha256 {there.sha256} "
                       f"and {there.size} bytes, the pin says {pin.sha256} and {pin.size}: wrong "
                       "checksum; restore kernel/upstream, or move it with `make rebase`")
        return replace(source, path=registry.download(pin))


def compressor_of(path: Path) -> bytes:
    """The magic bytes of a compressed file that we can unpack."""
    with open(path, "rb") as file:
        head = file.read(8)
    for magic in DECOMPRESSORS:
        if head.startswith(magic):
            return magic
    raise Fail(f"{path} is no .tar.xz, .tar.gz or .tar.zst: name an upstream "
               "linux-6.12.y tarball")


@contextlib.contextmanager
def tar_stream(path: Path) -> Iterator[IO[bytes]]:
    """The compressed kernel tarball: the file itself, or the one inside a .deb."""
    if path.suffix != ".deb":
        with open(path, "rb") as file:
            yield file
        return
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(path)],
                          stdout=subprocess.PIPE) as deb:
        with tarfile.open(fileobj=deb.stdout, mode="r|") as outer:
            for member in outer:
                if re.search(r"(^|/)usr/src/linux-source-[^/]*\.tar\.xz$", member.name):
                    inner = outer.extractfile(member)
                    assert inner is not None
                    yield inner
                    deb.kill()
                    return
    raise Fail(f"{path.name} has no usr/src/linux-source-*.tar.xz: it is no kernel source package")


def pump(stream: IO[bytes], command: list[str], folder: Path, progress: Progress) -> None:
    """stream | decompressor | tar -x in `folder`; all three must succeed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=log) as unpack:
            assert unpack.stdin and unpack.stdout
            # -m: files are as new as the unpacking, so that make never takes an object built
            # from another version for newer than its source.
            with subprocess.Popen(
                    ["tar", "-x", "-m", "-f", "-", "--strip-components=1", "--no-same-owner",
                     "--no-same-permissions", "-C", str(folder)],
                    stdin=unpack.stdout, stderr=log) as tar:
                unpack.stdout.close()
                done = 0
                with contextlib.suppress(BrokenPipeError):
                    while chunk := stream.read(CHUNK):
                        unpack.stdin.write(chunk)
                        done += len(chunk)
                        progress.update(done)
                with contextlib.suppress(BrokenPipeError):
                    unpack.stdin.close()
        if unpack.returncode == 0 and tar.returncode == 0:
            return
        log.seek(0)
        text = log.read()
    if "No space left on device" in text:
        raise disk_full(folder.parent)
    reason = next(iter(text.splitlines()), "the tarball ends early")
    raise Fail(f"the source cannot be unpacked, it is truncated or damaged ({reason}): get the "
               "file again")


def unpack(source: Source, folder: Path) -> str:
    """Unpack into an empty folder; returns the kernel version found there, 6.12.y."""
    path = source.path
    assert path is not None
    size = path.stat().st_size
    need_space(folder, size * UNPACK_RATIO * (OBJECT_SHARE + 1) // OBJECT_SHARE,
               "the kernel source")
    command = DECOMPRESSORS[b"\xfd7zXZ" if path.suffix == ".deb" else compressor_of(path)]
    if not shutil.which(command[0]):
        raise Fail(f"{command[0]} is needed to unpack {path.name}: install it")
    progress = Progress(f"unpacking {path.name}", size)
    with tar_stream(path) as stream:
        pump(stream, command, folder, progress)
    progress.finish()
    version = kernel_version(folder, source.title)
    unignore(folder)
    return version


def unignore(folder: Path) -> None:
    """Take the lines out of .gitignore by which Debian's package ignores every file.

    Debian's own repository has nothing but debian/; in ours, git would pass over each new file
    that a developer makes.
    """
    path = folder / ".gitignore"
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.strip() not in ("/*", "!/debian/")]
        if kept != lines:
            path.write_text("".join(kept), encoding="utf-8")


def kernel_version(folder: Path, title: str) -> str:
    """Check that a folder is a 6.12.y kernel tree, by its Makefile."""
    makefile = folder / "Makefile"
    text = makefile.read_text(errors="replace") if makefile.is_file() else ""
    values = dict(re.findall(r"(?m)^(VERSION|PATCHLEVEL|SUBLEVEL)\s*=\s*(\d+)", text))
    version = ".".join(values.get(key, "?") for key in ("VERSION", "PATCHLEVEL", "SUBLEVEL"))
    if not re.fullmatch(r"6\.12\.\d+", version):
        found = "no kernel tree" if "?" in version else f"Linux {version}"
        raise Fail(f"{title} is {found}, and Faultline is made for Linux 6.12.y: name such a "
                   "source")
    return version


def origin(source: Source, version: str) -> str:
    """The text that tells in the git history where the source came from."""
    assert source.path is not None
    digest = source.pin.sha256 if source.pin else sha256(source.path)
    return f"Linux {version} ({source.title})\n\nsha256: {digest}\nfile: {source.path.name}\n"


def describe(source: Source) -> str:
    """One line about a source that is here."""
    assert source.path is not None
    return f"{source.title}: {shown(source.path)}"
