# SPDX-License-Identifier: GPL-2.0-only
"""The SPDX documents beside a repository, and a signed list of their checksums.

    DIR/security/PACKAGE-FILE.spdx.json   the bill of materials in a kernel package
    DIR/security/SHA256SUMS(.asc)         checksums, and their signature
"""
from __future__ import annotations

import gzip
import pathlib
import subprocess

from ..common import Fail, sha256, shown
from .keys import Key, run

NAME = "security"
SPDX = ".spdx.json"
# The packages with a kernel and its sbom.spdx.json.
KERNELS = (("deb/pool", "linux-image-*.deb"),
           ("rpm/Packages", "kernel-faultline*-core-*.rpm"))


def unpack(path: pathlib.Path) -> bytes:
    """The sbom.spdx.json in a package, which debhelper compresses; empty if it has none."""
    ends = ("/sbom.spdx.json", "/sbom.spdx.json.gz")
    if path.suffix == ".deb":
        writer, reader = ["dpkg-deb", "--fsys-tarfile"], ["tar", "-xO", "--wildcards"]
        names = run("dpkg-deb", "--contents", path).splitlines()
        found = [line.split()[5] for line in names if line.endswith(ends)]
    else:
        writer, reader = ["rpm2cpio"], ["cpio", "-i", "--quiet", "--to-stdout"]
        names = run("rpm", "-qpl", "--nosignature", path).splitlines()
        found = [f".{name}" for name in names if name.endswith(ends)]
    if not found:
        return b""
    try:
        with subprocess.Popen([*writer, str(path)], stdout=subprocess.PIPE) as one:
            done = subprocess.run([*reader, found[0]], stdin=one.stdout, check=False,
                                  capture_output=True)
    except FileNotFoundError as error:
        raise Fail(f"{error.filename} is not installed: run 'make deps'") from None
    if done.returncode != 0 or not done.stdout:
        raise Fail(f"{shown(path)}: cannot read {found[0]}: the package is damaged")
    return gzip.decompress(done.stdout) if found[0].endswith(".gz") else done.stdout


def publish(key: Key, old: pathlib.Path, new: pathlib.Path) -> None:
    """Fill NEW/security with the old documents and those of new kernels."""
    folder, before = new / NAME, old / NAME
    found: dict[str, bytes | pathlib.Path] = {}
    for place, form in KERNELS:
        for path in sorted((new / place).glob(form)):
            name = f"{path.name}{SPDX}"
            there = old / place / path.name
            # An unchanged package is a link, and need not be unpacked again.
            if (before / name).is_file() and there.is_file() and there.samefile(path):
                found[name] = before / name
            elif text := unpack(path):
                found[name] = text
    if not found:
        return
    folder.mkdir(parents=True)
    for name, data in found.items():
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.read_bytes())
    sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(found))
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
    key.sign("--detach-sign", folder / "SHA256SUMS", folder / "SHA256SUMS.asc")
