# SPDX-License-Identifier: GPL-2.0-only
"""Compile a QEMU plugin; get the header that it needs.

Debian's binary packages of QEMU do not have qemu-plugin.h.  It is taken from the source package
of the installed QEMU: through apt's signed metadata and a private apt configuration, like the
kernel source.  The header is kept in build/cache, the rest is removed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from faultline.apt import Apt
from faultline.common import ROOT, Fail, Paths, lock, need_space, say, write_atomic

from .guest import BUILD, BenchError

EMULATOR = "qemu-system-x86_64"
HEADER = "qemu-plugin.h"
INSTEAD = f"take {HEADER} from the source of your QEMU and set QEMU_PLUGIN_HEADER=path"
# Disk space for a source package of QEMU, including unpacked lists.
_ROOM = 200 << 20


def qemu_source(apt: Apt, version: str) -> Path:
    """Download the upstream source of the package qemu VERSION, verified by apt."""
    need_space(apt.cache, _ROOM, "the source of QEMU")
    there = apt.update().run("apt-cache", "showsrc", "--only-source", "qemu").stdout
    versions = re.findall(r"(?m)^Version: (\S+)", there)
    # All Debian revisions of a QEMU version share one tarball.
    found = [other for other in (version, *versions)
             if other in versions and other.rpartition("-")[0] == version.rpartition("-")[0]]
    if not found:
        raise Fail(f"cannot get the source of QEMU {version} "
                   f"({apt.trouble or 'apt has ' + (', '.join(versions) or 'none')}): "
                   f"{apt.instead}")
    say(f"downloading the source of QEMU {found[0]} for its {HEADER} ...")
    folder = apt.folder / "download"
    result = apt.run("apt-get", "-q", "source", "--download-only", "--only-source", "--tar-only",
                     f"qemu={found[0]}", cwd=folder)
    files = list(folder.glob("qemu_*.orig.tar.*"))
    if result.returncode or len(files) != 1:
        errors = re.findall(r"(?m)^E: (.*)", result.stderr) or ["no such file"]
        raise Fail(f"the download of QEMU's source failed ({errors[0]}): check the network "
                   f"and run this again, or {apt.instead}")
    return files[0]


def installed_version() -> str:
    """Return the version of the source package of the host's QEMU."""
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        raise Fail(f"{EMULATOR} is missing; install qemu-system-x86")
    query = ["dpkg-query", "--search", os.path.realpath(emulator)]
    if shutil.which(query[0]):
        owner = subprocess.run(query, text=True, capture_output=True, check=False).stdout
        package = owner.partition(":")[0]
        if package:
            return subprocess.run(
                ["dpkg-query", "--show", "--showformat", "${source:Version}", package],
                text=True, capture_output=True, check=True).stdout
    raise Fail(f"{emulator} is not from a Debian package: {INSTEAD}")


def header_in(tarball: Path) -> bytes:
    """Return the header from a QEMU source tarball."""
    with tarfile.open(tarball) as files:
        for member in files:
            if member.isfile() and member.name.endswith(f"/include/qemu/{HEADER}"):
                header = files.extractfile(member)
                assert header is not None
                return header.read()
    raise Fail(f"{tarball.name} has no include/qemu/{HEADER}: {INSTEAD}")


def header_folder() -> Path:
    """Return a folder with the header of the installed QEMU."""
    own = os.environ.get("QEMU_PLUGIN_HEADER")
    if own:
        if Path(own).name != HEADER or not Path(own).is_file():
            raise Fail(f"QEMU_PLUGIN_HEADER={own}: there is no file {HEADER}")
        return Path(own).absolute().parent
    paths = Paths.from_env()
    version = installed_version()
    target = paths.cache / f"qemu-{version.replace(':', '%3a')}" / HEADER
    with lock(paths.cache / ".qemu-plugin.lock"):
        if not target.is_file():
            apt = Apt(paths, instead=INSTEAD, source=True)
            write_atomic(target, header_in(qemu_source(apt, version)))
            shutil.rmtree(apt.folder)
    return target.parent


def compile_plugin(source: Path) -> Path:
    """Compile SOURCE for the installed QEMU; return the plugin."""
    try:
        header = header_folder()
    except Fail as err:
        raise BenchError(str(err)) from err
    plugin = BUILD / "bench" / f"{source.parent.name}-plugin.so"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    # Always compile: it takes a second, and QEMU may have changed since the last time.
    command = [*(os.environ.get("CC") or "cc").split(), "-shared", "-fPIC", "-O2", "-Wall",
               "-Werror", "-fvisibility=hidden", "-I", str(header),
               "-idirafter", str(source.parent / "without-glib"),
               "-o", str(plugin), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BenchError(f"cannot compile {source.relative_to(ROOT)}:\n{result.stderr.strip()}")
    return plugin
