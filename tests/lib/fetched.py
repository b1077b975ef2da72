# SPDX-License-Identifier: GPL-2.0-only
"""Programs for tests that are not installed, but unpacked from Debian packages.

They come through apt's signed metadata and a private apt configuration, and stay in build/cache.

Metadata of testing and unstable are valid for a week: those of a mirror that is updated rarely,
or not at all any more, expire.  That protects hosts from missing security updates; a test may as
well run a program of that day, so they are accepted, with a note.
"""
from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from faultline.apt import Apt
from faultline.common import Fail, Paths, lock, need_space, say

# Packages, and the files that are needed of each.
Packages = Mapping[str, Sequence[str]]


def folder_of(name: str, suite: str, packages: Packages, mib: int, instead: str) -> Path:
    """The folder in build/cache with the files of packages from a suite; fetched once.

    `mib` is the size of the download; `instead` tells the user what to do if that fails.
    """
    paths = Paths.from_env()
    # By suite: a program of Debian 13 may not run on Debian 12.
    target = paths.cache / f"{name}-{suite}"
    # Progress must not get between the test results.
    with contextlib.redirect_stdout(sys.stderr), lock(paths.cache / f".{name}.lock"):
        if not target.is_dir():
            _fetch(paths, target, suite, packages, mib, instead)
    return target


def _fetch(paths: Paths, target: Path, suite: str, packages: Packages, mib: int,
           instead: str) -> None:
    # Packages, apt's lists and the programs.
    need_space(paths.cache, (5 * mib + 50) << 20, target.name)
    apt = Apt(paths, instead=instead, suite=suite).update()
    if apt.expired:
        say(f"note: the mirrors' {suite} has passed its last day: {target.name} is as old as it")
        apt.accept_expired = True
        apt.update()
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    say(f"downloading {', '.join(packages)} of {suite} ({mib} MiB) ...")
    done = apt.run("apt-get", "-q", "download", *packages, cwd=part)
    if done.returncode:
        trouble = apt.trouble or next(iter(re.findall(r"(?m)^E: (.*)", done.stderr)), "no error")
        raise Fail(f"cannot get {target.name} ({trouble}): check the network and apt's sources and "
                   f"proxy, then run this again, or {instead}")
    for name, members in packages.items():
        package, = part.glob(f"{name}_*.deb")
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)],
                              stdout=subprocess.PIPE) as deb:
            status = subprocess.run(["tar", "-x", "-C", str(part), "--wildcards", *members],
                                    stdin=deb.stdout, check=False).returncode
        if status or deb.returncode:
            raise Fail(f"cannot unpack {package.name}: read the lines above, or {instead}")
        package.unlink()
    part.rename(target)
    shutil.rmtree(apt.folder)
