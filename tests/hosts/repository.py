# SPDX-License-Identifier: GPL-2.0-only
"""Serve the signed repositories over HTTP, as a fleet's server would, and corrupted ones.

    /good/deb       the output of `make repo`       /good/rpm
    /unsigned/...   without signatures
    /forged/...     with a changed signed list
    /poisoned/...   valid lists, but a changed package
    /next/...       RPM packages of a third kernel, to be installed as files
    /foreign/...    our packages for another architecture
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import threading
from pathlib import Path

from faultline.common import Fail
from faultline.flavour import ARM64, X86, Arch

# The address of the QEMU host as seen by the guest.
GATEWAY = "10.0.2.2"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without logging."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Do not log."""


class Server:
    """Serves a folder to the guests until the program ends."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(_Handler, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL for guests."""
        return f"http://{GATEWAY}:{self._server.server_port}"


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)


def _replace(path: Path, data: bytes) -> None:
    # Unlink first: other hard links must keep their contents.
    path.unlink()
    path.write_bytes(data)


def _change(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    if old not in data:
        raise Fail(f"{path} does not contain '{old.decode()}': update this test to the program "
                   "that makes the file")
    _replace(path, data.replace(old, new, 1))


def _flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    _replace(path, bytes(data))


def _kernels(folder: Path, image: str) -> list[Path]:
    """The kernel's packages, without those of debug information, of which generic has 5 GB."""
    return [path for path in folder.rglob(image) if "-dbg_" not in path.name]


def prepare(good: Path, third: Path, package_format: str, image: str, arch: Arch,
            folder: Path) -> None:
    """Lay out the served folder of one format; third has the third kernel's RPM packages,
    image is the glob of the kernel's package, which is for `arch`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for kind in ("good", "unsigned", "forged", "poisoned"):
        _link(good / package_format, folder / kind / package_format)
    if package_format == "rpm":
        if not third.is_dir():
            raise Fail(f"no {third}: run tests/lab hosts packages")
        _link(third, folder / "next")
    if package_format == "deb":
        for path in (folder / "unsigned").rglob("InRelease"):
            path.unlink()
        for path in (folder / "unsigned").rglob("Release.gpg"):
            path.unlink()
        for name in ("InRelease", "Release"):
            for path in (folder / "forged").rglob(name):
                _change(path, b"Suite: stable", b"Suite: stablE")
    else:
        for path in (folder / "unsigned").rglob("repomd.xml.asc"):
            path.unlink()
        for path in (folder / "forged").rglob("repomd.xml"):
            _change(path, b"<revision>", b"<revision>1")
    changed = _kernels(folder / "poisoned", image)
    if not changed:
        raise Fail(f"no {image} below {good}: run tests/lab hosts packages")
    for path in changed:
        _flip(path)
    (folder / "foreign").mkdir()
    _foreign(package_format, _kernels(folder / "good", image)[0], arch, folder / "foreign")


def _foreign(package_format: str, package: Path, arch: Arch, target: Path) -> None:
    """Make our package for a wrong architecture."""
    wrong = ARM64 if arch == X86 else X86
    if package_format == "deb":
        tree = target / "tree"
        subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
        _change(tree / "DEBIAN/control", f"Architecture: {arch.debian}".encode(),
                f"Architecture: {wrong.debian}".encode())
        subprocess.run(["dpkg-deb", "-Znone", "-b", tree, target / "foreign.deb"], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)
        return
    name, version, release = subprocess.run(
        ["rpm", "-qp", "--nosignature", "--qf", "%{NAME}\n%{VERSION}\n%{RELEASE}", package],
        check=True, text=True, capture_output=True).stdout.splitlines()
    spec = target / "foreign.spec"
    spec.write_text(f"Name: {name}\nVersion: {version}\nRelease: {release}\n"
                    "Summary: For another machine\nLicense: GPL-2.0-only\n"
                    "%description\nFor another machine.\n%files\n")
    subprocess.run(["rpmbuild", "-bb", "--quiet", "--target", wrong.rpm,
                    "--define", f"_topdir {target}", "--define", f"_rpmdir {target}",
                    "--define", "_rpmfilename foreign.rpm", spec], check=True,
                   env={**os.environ, "HOME": str(target)}, capture_output=True)
