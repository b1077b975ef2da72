# SPDX-License-Identifier: GPL-2.0-only
"""The disks that hosts start from, made by mkosi and kept until an input changes.

Machine-dependent settings are passed to mkosi on its command line: the mirrors (from the apt
sources of this host), the package of the stock kernel (Debian's build of the pinned version)
and folders below build/.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from faultline.apt import Apt
from faultline.common import ROOT, Fail, Paths, lock, say, shown
from faultline.pin import Pin
from .host import DISK_UNIT, PARAMETERS, UNIT_NAME

FORMATS = ("deb", "rpm")
# One for each format, and those of the suites hosts/release and hosts/failures.
DISKS = (*FORMATS, "release", "loaders", "loaders-12")
RELEASE = "trixie"
# The disks of other releases of Debian.
RELEASES = {"loaders-12": "bookworm"}
OLDEST_MKOSI = 25
# Lines of mkosi's log to show when it fails.
LOG_LINES = 12
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The inputs of the images, besides this file; a folder stands for all files in it.
BASE_INPUTS = ("mkosi.conf", "mkosi.profiles/base", "kernel/upstream")
HOST_INPUTS = ("mkosi.profiles/host", "rollout/host/units", "rollout/host/faultline-boot",
               "rollout/host/common.sh", "rollout/host/faultline-trial-generator")
DISK_INPUTS = {"deb": (*HOST_INPUTS, "mkosi.profiles/deb"),
               "rpm": (*HOST_INPUTS, "mkosi.profiles/rpm", "tests/package/shim"),
               "release": (*HOST_INPUTS, "mkosi.profiles/release", "tests/hosts/module"),
               "loaders": (*HOST_INPUTS, "mkosi.profiles/loaders"),
               "loaders-12": (*HOST_INPUTS, "mkosi.profiles/loaders")}
# The packages for a change from initramfs-tools to dracut.
DRACUT = ("dracut", "dracut-core", "dracut-install")


class Images:
    """The folder build/images and its contents."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.folder = paths.build / "images"

    def base(self, release: str = RELEASE) -> Path:
        """The userland of a release, as a folder; that of RELEASE is also the tools tree."""
        return self.folder / ("base" if release == RELEASE else f"base-{release}")

    def disk(self, name: str) -> Path:
        """The disk of a package format, or the one of the suite hosts/release."""
        return self.folder / f"{name}.raw"

    def kernel(self) -> Path:
        """The stock kernel as a file for QEMU to boot; made together with the base."""
        return self.folder / "base.vmlinuz"

    def build(self, name: str) -> Path:
        """Build a disk, unless it is up to date."""
        base = self._digest(BASE_INPUTS)
        releases = dict.fromkeys((RELEASE, RELEASES.get(name, RELEASE)))
        digest = self._digest(BASE_INPUTS + DISK_INPUTS[name])
        # One mkosi at a time: each copies the package cache that another one would be filling.
        with lock(self.folder / "mkosi.lock"):
            if self._current(name, digest) and self.disk(name).is_file():
                return self.disk(name)
            for release in releases:
                folder = self.base(release)
                if not (self._current(folder.name, base) and folder.is_dir()):
                    self._build_base(release, base)
            self._build_disk(name, digest)
        return self.disk(name)

    # --- When

    def _digest(self, inputs: tuple[str, ...]) -> str:
        """A digest of the inputs."""
        total = hashlib.sha256(Path(__file__).read_bytes())
        for name in inputs:
            top = ROOT / name
            files = sorted(top.rglob("*")) if top.is_dir() else [top]
            for path in files:
                total.update(f"{path.relative_to(ROOT)}\n".encode())
                if path.is_symlink():
                    total.update(os.readlink(path).encode())
                elif path.is_file():
                    total.update(path.read_bytes() + bytes([path.stat().st_mode >> 6 & 1]))
        return total.hexdigest()

    def _stamp(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _current(self, name: str, digest: str) -> bool:
        try:
            return bool(json.loads(self._stamp(name).read_text())["inputs"] == digest)
        except (OSError, ValueError, KeyError):
            return False

    # --- How

    def _build_base(self, release: str, digest: str) -> None:
        name = self.base(release).name
        self._stamp(name).unlink(missing_ok=True)
        self._write_sources(release)
        self._mkosi(name, release, ["base"], "--output", name,
                    "--package", self._stock_package(release))
        self._stamp(name).write_text(json.dumps({"inputs": digest}) + "\n")

    def _build_disk(self, name: str, digest: str) -> None:
        self._stamp(name).unlink(missing_ok=True)
        release = RELEASES.get(name, RELEASE)
        extra: list[str | Path] = []
        if name == "rpm":
            extra = ["--extra-tree", f"{self._shim()}:/opt"]
        elif name == "release":
            extra = ["--extra-tree", f"{self._dracut()}:/opt/dracut"]
        elif release != RELEASE:
            extra = ["--extra-tree", self._settings(name)]
        # Building disks needs a newer systemd-repart than Debian 12 has; the base has one.
        self._mkosi(name, release, ["host", name.partition("-")[0]], "--output", name,
                    "--base-tree", self.base(release), "--tools-tree", self.base(), *extra)
        self._stamp(name).write_text(json.dumps({"inputs": digest}) + "\n")

    def _settings(self, name: str) -> Path:
        """The unit and the kernel parameters, which systemd 252 does not read from SMBIOS."""
        top = self.folder / f"{name}.extra"
        shutil.rmtree(top, ignore_errors=True)
        units, kernel = top / "etc/systemd/system", top / "etc/kernel"
        units.mkdir(parents=True)
        kernel.mkdir()
        (units / UNIT_NAME).write_text(DISK_UNIT)
        parameters = (ROOT / "mkosi.profiles/host/mkosi.extra/etc/kernel/cmdline").read_text()
        (kernel / "cmdline").write_text(" ".join((parameters.strip(), *PARAMETERS)) + "\n")
        return top

    def _dracut(self) -> Path:
        """The packages of dracut: it cannot be installed together with initramfs-tools."""
        folder = self.folder / "dracut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._apt("apt-get", "-q", "download", *(f"{name}/{RELEASE}" for name in DRACUT),
                  cwd=folder)
        return folder

    def _shim(self) -> Path:
        """The package that declares the host's Debian programs to rpm."""
        folder = self.folder / "shim"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._run("rpm shim", [ROOT / "tests/package/shim/build.sh", folder, self.base()])
        return folder

    @functools.cached_property
    def apt(self) -> Apt:
        """The private apt; the first use reads the package lists."""
        return Apt(self.paths).update()

    def _apt(self, *command: str, cwd: Path | None = None) -> str:
        done = self.apt.run(*command, cwd=cwd)
        if done.returncode:
            raise Fail(f"'{' '.join(command)}' failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout

    def _stock_package(self, release: str) -> str:
        """Debian's cloud kernel: of the pinned version, or else the newest one."""
        if release != RELEASE:
            return "linux-image-cloud-amd64"
        upstream = Pin.load(self.paths.kernel).upstream
        names: list[str] = re.findall(
            r"(?m)^linux-image-6\.12\.\d+\+deb13(?:\.\d+)?-cloud-amd64$",
            self._apt("apt-cache", "pkgnames", "linux-image-6.12."))
        if not names:
            raise Fail("the mirrors in apt's sources have no linux-image-6.12.*-cloud-amd64: "
                       "add a mirror with trixie and trixie-security")
        names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
        pinned = [name for name in names if name.startswith(f"linux-image-{upstream}+")]
        if not pinned:
            say(f"note: the mirrors no longer have stock {upstream}; the hosts get {names[-1]}")
        return (pinned or names)[-1]

    def _sandbox(self, release: str) -> Path:
        return self.folder / ("sandbox" if release == RELEASE else f"sandbox-{release}")

    def _write_sources(self, release: str) -> None:
        """Write apt sources for mkosi: this host's mirrors with the suites of a release."""
        suites = (RELEASE, f"{RELEASE}-updates", f"{RELEASE}-security")
        target = self._sandbox(release) / "etc/apt/sources.list.d/mkosi.sources"
        target.parent.mkdir(parents=True, exist_ok=True)
        # The mirrors of all releases are the same.
        target.write_text("\n".join(
            f"Types: deb\nURIs: {uri}\nSuites: {suite.replace(RELEASE, release)}\n"
            f"Components: main\nSigned-By: {KEYRING}\n"
            for uri, suite in self.apt.sources() if suite in suites))

    def _mkosi(self, name: str, release: str, profiles: list[str],
               *options: str | Path) -> None:
        # Keep the user's MKOSI* variables out.
        env = {key: value for key, value in os.environ.items() if not key.startswith("MKOSI")}
        command, more = self._program()
        self._run(name, [
            *command, "--directory", ROOT, "--release", release,
            "--profile", ",".join(profiles), "--force",
            "--sandbox-tree", self._sandbox(release),
            "--output-directory", self.folder,
            "--package-cache-dir", self._made("downloads"),
            "--cache-directory", self._made("cache"),
            *options, "build"], env={**env, **more})

    def _made(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _program(self) -> tuple[list[str | Path], dict[str, str]]:
        """mkosi of this host or, if that is too old, of Debian 13: it is plain Python."""
        if there := shutil.which("mkosi"):
            said = subprocess.run([there, "--version"], check=False, text=True,
                                  capture_output=True).stdout
            if (found := re.search(r"(\d+)", said)) and int(found[1]) >= OLDEST_MKOSI:
                return [there], {}
        tree = self.folder / "mkosi"
        modules = tree / "usr/lib/python3/dist-packages"
        if not modules.is_dir():
            scratch = self._made("mkosi.part")
            self._apt("apt-get", "-q", "download", f"mkosi/{RELEASE}", cwd=scratch)
            deb, = scratch.glob("mkosi_*.deb")
            subprocess.run(["dpkg-deb", "-x", deb, scratch / "tree"], check=True)
            (scratch / "tree").rename(tree)
            shutil.rmtree(scratch)
        return [sys.executable, "-B", "-m", "mkosi"], {"PYTHONPATH": str(modules)}

    def _run(self, name: str, command: list[str | Path],
             env: dict[str, str] | None = None) -> None:
        log = self.paths.build / "log" / f"image-{name.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with log.open("wb") as sink:
            status = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=sink,
                                    stderr=sink, env=env, check=False).returncode
        if status:
            lines = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
            raise Fail("\n".join((f"the image {name} did not build: see {shown(log)}, which ends",
                                  *(f"  {line}" for line in lines))))
        say(f"# image {name}: {time.monotonic() - began:.0f} s")
