# SPDX-License-Identifier: GPL-2.0-only
"""Libraries of another Debian architecture, which cross-compiled programs link statically.

They come from the host's own release of Debian, through the private apt, and are unpacked in
build/cache.  Nothing is installed, and dpkg is not told of the architecture.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .apt import Apt
from .common import Fail, Paths, lock, say, shown

# For sign-file (libcrypto) and objtool (libelf), which external modules need.
PACKAGES = ("libssl-dev", "libelf-dev", "zlib1g-dev", "libzstd-dev")


@dataclass(frozen=True)
class Sysroot:
    """An unpacked sysroot."""

    folder: Path
    multiarch: str

    @property
    def pkg_config(self) -> str:
        """The command that finds the libraries in it."""
        libraries = self.folder / "usr/lib" / self.multiarch
        return (f"env PKG_CONFIG_LIBDIR={libraries}/pkgconfig PKG_CONFIG_SYSROOT_DIR={self.folder} "
                "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 "
                "pkg-config --static")


def codename() -> str:
    """The host's release of Debian, whose C library the cross compiler has."""
    values = dict(line.split("=", 1) for line in
                  Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line)
    name = values.get("VERSION_CODENAME", "").strip('"')
    if not name or values.get("ID", "").strip('"') != "debian":
        raise Fail("packages for another architecture are made on Debian 12 or 13: "
                   "this host is neither")
    return name


def sysroot(paths: Paths, architecture: str, multiarch: str) -> Sysroot:
    """Make the sysroot, unless it is there."""
    release = codename()
    folder = paths.cache / f"sysroot-{architecture}-{release}"
    with lock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return Sysroot(folder, multiarch)
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        apt = Apt(paths, architecture, suite=release,
                  instead=f"unpack {', '.join(PACKAGES)} for {architecture} in {shown(folder)}")
        result = apt.update().run("apt-get", "-qq", "download", *PACKAGES, cwd=part)
        if result.returncode:
            why = (apt.trouble or result.stderr.strip() or "no message").splitlines()[-1]
            raise Fail(f"cannot download {', '.join(PACKAGES)} for {architecture} ({why}): check "
                       f"the network and apt's sources, then run this again, or {apt.instead}")
        for package in part.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, part], check=True)
            package.unlink()
        # Their packages are not here, and a program linked with them would need them.
        for link in (part / "usr/lib" / multiarch).glob("*.so"):
            link.unlink()
        # The cross compiler does not look for headers there.
        shutil.copytree(part / "usr/include" / multiarch, part / "usr/include",
                        dirs_exist_ok=True)
        part.rename(folder)
    say(f"{shown(folder)}: {', '.join(PACKAGES)} for {architecture}")
    return Sysroot(folder, multiarch)
