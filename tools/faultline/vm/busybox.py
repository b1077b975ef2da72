# SPDX-License-Identifier: GPL-2.0-only
"""Fetch busybox for a guest whose architecture is not the host's.

It comes from Debian's package busybox-static, the same way as the kernel source: through apt's
signed metadata and a private apt configuration.  Nothing is installed, and the architecture is
not added to the host's dpkg.  A busybox that was fetched before is kept.
"""
from __future__ import annotations

import argparse
import subprocess
import tarfile
from pathlib import Path

from ..apt import Apt
from ..common import Fail, Paths, lock, say, shown, write_atomic
from .arch import ARCHITECTURES
from .guest import fetched_busybox

PACKAGE = "busybox-static"
# Debian's names of the architectures.
DEBIAN = {"x86_64": "amd64", "ppc64le": "ppc64el", "aarch64": "arm64"}


def unpack(package: Path) -> bytes:
    """Extract the program from a package."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)],
                          stdout=subprocess.PIPE) as deb:
        with tarfile.open(fileobj=deb.stdout, mode="r|") as files:
            for member in files:
                if member.isfile() and member.name.endswith("/bin/busybox"):
                    program = files.extractfile(member)
                    assert program is not None
                    data = program.read()
                    deb.kill()
                    return data
    raise Fail(f"{package.name} has no bin/busybox: it is not a busybox package")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", choices=sorted(ARCHITECTURES))
    name = parser.parse_args().arch
    target, paths = fetched_busybox(ARCHITECTURES[name]), Paths.from_env()
    with lock(target.with_name(f".{target.name}.lock")):
        if target.is_file():
            say(f"busybox for {name}: {shown(target)} is up to date")
            return
        apt = Apt(paths, architecture=DEBIAN[name],
                  instead=f"put a static busybox for {name} at {shown(target)}")
        pin = apt.package(PACKAGE).find("latest")
        package = apt.fetch(pin)
        write_atomic(target, unpack(package))
        target.chmod(0o755)
        package.unlink()
    say(f"busybox for {name}: {shown(target)}, from {pin.package} {pin.version}")
