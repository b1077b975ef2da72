# SPDX-License-Identifier: GPL-2.0-only
"""The upstream source: the pinned package, another version of it, or a user's tarball."""

from __future__ import annotations

import contextlib
import lzma
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from .apt import Apt, Gone, Package, verify
from .common import Fail, Paths, lock, say, shown, write_atomic
from .pin import Pin

ENVIRONMENT = """\
environment:
  UPSTREAM=latest         use the newest 6.12.y in the registry instead of the pin, or a
                          given UPSTREAM=6.12.x[-y] (still verified by apt's signed metadata)
  UPSTREAM_TARBALL=path   use your own upstream linux-6.12.y.tar.{xz,gz,zst}; no apt needed
  BUILD=folder            folder for everything generated (default: build/)
  FAULTLINE_KERNEL_DIR    folder with upstream, overlay/ and patches/ (default: kernel/)
  FAULTLINE_APT_ETC       folder with apt's sources (default: /etc/apt)
  FAULTLINE_APT_KEYRING   keys that may sign the archive (default: debian-archive-keyring)
  FAULTLINE_APT_WAITS     seconds before each retry while a mirror is updated (default: "5 20")
"""

# By magic bytes, not by name. -T0: the package's xz has blocks, so all CPUs can unpack.
XZ = b"\xfd7zXZ"
DECOMPRESSORS = {
    XZ: ["xz", "-dc", "-T0"],
    b"\x1f\x8b": ["gzip", "-dc"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dcq"],
}


# The kernels that our files are made for.
SERIES = "6.12"

# The pins of the packages of configurations, each with the architecture of the package.
# Empty: the host's, whose lists are read for the source as well.
CONFIG_PINS = {"upstream-config": "", "upstream-config-ppc64el": "ppc64el",
               "upstream-config-arm64": "arm64"}
# The source package of all of them.
CONFIG_SOURCE = "linux"


@dataclass(frozen=True)
class Source:
    """A source that is available locally, or (path is None) can be fetched."""

    key: str
    title: str
    pin: Pin | None = None
    path: Path | None = None
    package: Package | None = None  # if already queried
    series: str = SERIES
    apt: Apt | None = None  # if it is not that of the host's architecture


def pinned(pin: Pin, apt: Apt | None = None, package: Package | None = None) -> Source:
    """The source of a pin, not yet fetched."""
    return Source(f"deb:{pin.sha256}", f"{pin.package} {pin.version}", pin, package=package,
                  apt=apt)


def choose(paths: Paths) -> Source:
    """Select the source by the environment. Uses the network only if UPSTREAM is set."""
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
        package = Apt(paths).package(pin.package, pin.series)
        other = package.find(wanted)
        if other != pin:
            say(f"note: UPSTREAM={wanted} is {other.version}, not the pin ({pin.version})")
        return pinned(other, package=package)
    return pinned(pin)


def obtain(paths: Paths, source: Source) -> Source:
    """Provide the file of a source: from the cache, else from the registry."""
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
                say(f"the cached file is damaged, fetching it again: {error}")
                path.unlink()
        apt = source.apt or Apt(paths)
        package = source.package or apt.package(pin.package, pin.series)
        there = package.find(pin.version)
        if (there.sha256, there.size) != (pin.sha256, pin.size):
            raise Fail(f"wrong checksum: the registry's {pin.package} {pin.version} has sha256 "
                       f"{there.sha256} and {there.size} bytes, the pin says {pin.sha256} and "
                       f"{pin.size}: restore kernel/upstream, or move it with `make rebase`")
        return replace(source, path=package.apt.fetch(pin))


def decompressor(path: Path) -> list[str]:
    """The command that unpacks the tarball, or the tarball in the package."""
    with open(path, "rb") as file:
        head = XZ if path.suffix == ".deb" else file.read(8)
    for magic, command in DECOMPRESSORS.items():
        if head.startswith(magic):
            if not shutil.which(command[0]):
                raise Fail(f"{command[0]} is needed to unpack {path.name}: install it")
            return command
    raise Fail(f"{path} is not a .tar.xz, .tar.gz or .tar.zst: name an upstream "
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
    raise Fail(f"{path.name} has no usr/src/linux-source-*.tar.xz: it is not a kernel source "
               "package")


def describe(source: Source) -> str:
    """One line about a local source."""
    assert source.path is not None
    return f"{source.title}: {shown(source.path)}"


def config_pin(name: str) -> str:
    """The pin of the package with a configuration, such as config.ppc64el_none_powerpc64le."""
    own = f"upstream-config-{name.removeprefix('config.').partition('_')[0]}"
    return own if own in CONFIG_PINS else "upstream-config"


def obtain_config(paths: Paths, pin_name: str, pin: Pin) -> Path:
    """The pinned package of configurations; also one that the archive's lists have dropped."""
    architecture = CONFIG_PINS[pin_name]
    instead = f"put {pin.file} into {shown(paths.cache)}"
    try:
        source = obtain(paths, pinned(pin, Apt(paths, architecture, instead)))
        assert source.path is not None
        return source.path
    except Fail as error:
        # Also if the lists of a mirror are out of date: the pin has the checksum.
        if (found := Apt(paths, architecture).fetch_unlisted(pin, CONFIG_SOURCE)):
            return found
        if not isinstance(error, Gone):
            raise
    raise Fail(f"{pin.package} {pin.version}, which kernel/{pin_name} names, is not in "
               "the registry (any more): move this pin with `make rebase CONFIG=nearest`, "
               "and commit it")


def debian_config(paths: Paths, name: str) -> Path:
    """One of the distribution's configurations, from its pinned package."""
    pin_name = config_pin(name)
    pin = Pin.load(paths.kernel, pin_name)
    target = paths.cache / "config" / pin.sha256[:12] / name
    if target.is_file():
        return target
    package = obtain_config(paths, pin_name, pin)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)],
                          stdout=subprocess.PIPE) as deb:
        with tarfile.open(fileobj=deb.stdout, mode="r|") as files:
            for member in files:
                if member.name.endswith(f"/{name}.xz"):
                    packed = files.extractfile(member)
                    assert packed is not None
                    write_atomic(target, lzma.decompress(packed.read()))
                    deb.kill()
                    return target
    raise Fail(f"{pin.file} has no {name}: kernel/{pin_name} and flavour.py do not match")
