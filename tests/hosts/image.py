# SPDX-License-Identifier: GPL-2.0-only
"""The disks that hosts start from, made by mkosi and kept until an input changes.

Machine-dependent settings are passed to mkosi on its command line: the mirrors (from the apt
sources of this host), the package of the stock kernel (Debian's build of the pinned version)
and folders below build/.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from faultline.apt import Apt
from faultline.common import ROOT, Fail, Paths, lock, say, shown
from faultline.flavour import ARM64, X86, Arch
from faultline.pin import Pin
from faultline.vm.arch import ARCHITECTURES
from .host import PARAMETERS, UNIT_NAME, unit

FORMATS = ("deb", "rpm")
RELEASE = "trixie"


@dataclass(frozen=True)
class Disk:
    """A disk that hosts start from."""

    # Its profile, and the format or the scenario that has it.
    profile: str
    release: str = RELEASE
    arch: Arch = X86

    @property
    def name(self) -> str:
        """The name of its file."""
        return "-".join((self.profile, *(["12"] if self.release != RELEASE else []),
                         *suffix(self.arch)))

    @property
    def base(self) -> str:
        """The name of its userland."""
        return "-".join(("base", *([self.release] if self.release != RELEASE else []),
                         *suffix(self.arch)))


def suffix(arch: Arch) -> list[str]:
    """The last part of the names of another architecture than amd64."""
    return [arch.debian] if arch != X86 else []


# One for each format, and those of the suites hosts/release and hosts/failures.
DISKS = {disk.name: disk for disk in (
    *(Disk(name) for name in (*FORMATS, "release", "loaders")), Disk("loaders", "bookworm"),
    *(Disk(name, arch=ARM64) for name in (*FORMATS, "loaders")))}
# The userland with systemd-repart that makes all disks.
TOOLS = Disk("deb")
OLDEST_MKOSI = 25
# Lines of mkosi's log to show when it fails.
LOG_LINES = 12
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# The inputs of the images, besides this file; a folder stands for all files in it.
BASE_INPUTS = ("mkosi.conf", "mkosi.profiles/base", "kernel/upstream")
HOST_INPUTS = ("mkosi.profiles/host", "rollout/host/units", "rollout/host/faultline-boot",
               "rollout/host/common.sh", "rollout/host/faultline-trial-generator")
# By profile.
DISK_INPUTS = {"deb": (*HOST_INPUTS, "mkosi.profiles/deb"),
               "rpm": (*HOST_INPUTS, "mkosi.profiles/rpm", "tests/package/shim"),
               "release": (*HOST_INPUTS, "mkosi.profiles/release", "tests/hosts/module"),
               "loaders": (*HOST_INPUTS, "mkosi.profiles/loaders")}
# Kernel parameters that mean nothing elsewhere.
X86_PARAMETERS = ("no_timer_check", "tsc=reliable")
# The packages for a change from initramfs-tools to dracut.
DRACUT = ("dracut", "dracut-core", "dracut-install")


def emulate(arch: Arch) -> None:
    """Have this host run programs of another architecture: maintainer scripts are some."""
    binfmt = Path("/proc/sys/fs/binfmt_misc")
    there = binfmt / f"qemu-{arch.rpm}"
    conf = Path(f"/usr/lib/binfmt.d/qemu-{arch.rpm}.conf")
    if not conf.is_file():
        raise Fail(f"this host cannot run programs of {arch.debian}: install qemu-user-static")
    try:
        if not (binfmt / "register").exists():
            subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", binfmt], check=True,
                           capture_output=True)
        if not there.exists():
            (binfmt / "register").write_bytes(conf.read_bytes().strip())
        state = there.read_text().splitlines()
    except (OSError, subprocess.CalledProcessError) as err:
        raise Fail(f"this kernel cannot be told to run programs of {arch.debian} by "
                   f"{conf} ({err}): does it have binfmt_misc?") from err
    # F: the interpreter is open already, and found in a chroot.
    if "enabled" not in state or not any("F" in line.partition("flags: ")[2] for line in state):
        raise Fail(f"{there} is off, or its interpreter is not there in a chroot: enable "
                   f"{conf}, which has flag F")


class Images:
    """The folder build/images and its contents."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.folder = paths.build / "images"
        self._apts: dict[str, Apt] = {}

    def base(self, disk: Disk = TOOLS) -> Path:
        """The userland of a disk, as a folder."""
        return self.folder / disk.base

    def disk(self, name: str) -> Path:
        """The disk of a package format, or the one of the suite hosts/release."""
        return self.folder / f"{name}.raw"

    def kernel(self, arch: Arch = X86) -> Path:
        """The stock kernel as a file for QEMU to boot; made together with the base."""
        return self.folder / f"{Disk('deb', arch=arch).base}.vmlinuz"

    def build(self, name: str) -> Path:
        """Build a disk, unless it is up to date."""
        disk = DISKS[name]
        base = self._digest(BASE_INPUTS)
        bases = {each.base: each for each in (TOOLS, Disk("deb", arch=disk.arch), disk)}
        digest = self._digest(BASE_INPUTS + DISK_INPUTS[disk.profile])
        # One mkosi at a time: each copies the package cache that another one would be filling.
        with lock(self.folder / "mkosi.lock"):
            if self._current(name, digest) and self.disk(name).is_file():
                return self.disk(name)
            if disk.arch != X86:
                emulate(disk.arch)
            for folder, each in bases.items():
                if not (self._current(folder, base) and self.base(each).is_dir()):
                    self._build_base(each, base)
            self._build_disk(disk, digest)
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

    def _build_base(self, disk: Disk, digest: str) -> None:
        name = disk.base
        self._stamp(name).unlink(missing_ok=True)
        self._write_sources(disk)
        self._mkosi(name, disk, ["base"], "--output", name,
                    "--package", self._stock_package(disk))
        self._stamp(name).write_text(json.dumps({"inputs": digest}) + "\n")

    def _build_disk(self, disk: Disk, digest: str) -> None:
        name = disk.name
        self._stamp(name).unlink(missing_ok=True)
        extra: list[str | Path] = []
        if disk.profile == "rpm":
            extra = ["--extra-tree", f"{self._shim(disk)}:/opt"]
        elif disk.profile == "release":
            extra = ["--extra-tree", f"{self._dracut()}:/opt/dracut"]
        if settings := self._settings(disk):
            extra += ["--extra-tree", settings]
        # Building disks needs a newer systemd-repart than Debian 12 has; the base has one.
        self._mkosi(name, disk, ["host", disk.profile], "--output", name,
                    "--base-tree", self.base(disk), "--tools-tree", self.base(), *extra)
        self._stamp(name).write_text(json.dumps({"inputs": digest}) + "\n")

    def _settings(self, disk: Disk) -> Path | None:
        """Files instead of those in the profile: the kernel parameters of another architecture;
        the unit and the parameters of the test, which systemd 252 does not read from SMBIOS."""
        parameters = (ROOT / "mkosi.profiles/host/mkosi.extra/etc/kernel/cmdline").read_text()
        words = parameters.split()
        if disk.arch != X86:
            machine = ARCHITECTURES[disk.arch.rpm]
            words = [f"console={machine.ports[0]}" if word.startswith("console=") else word
                     for word in words if word not in X86_PARAMETERS]
        elif disk.release == RELEASE:
            return None
        top = self.folder / f"{disk.name}.extra"
        shutil.rmtree(top, ignore_errors=True)
        kernel = top / "etc/kernel"
        kernel.mkdir(parents=True)
        if disk.release != RELEASE:
            units = top / "etc/systemd/system"
            units.mkdir(parents=True)
            (units / UNIT_NAME).write_text(unit(ARCHITECTURES[disk.arch.rpm], on_disk=True))
            words += PARAMETERS
        (kernel / "cmdline").write_text(" ".join(words) + "\n")
        return top

    def _dracut(self) -> Path:
        """The packages of dracut: it cannot be installed together with initramfs-tools."""
        folder = self.folder / "dracut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._apt(X86, "apt-get", "-q", "download", *(f"{name}/{RELEASE}" for name in DRACUT),
                  cwd=folder)
        return folder

    def _shim(self, disk: Disk) -> Path:
        """The package that declares the host's Debian programs to rpm."""
        folder = self.folder / "shim"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._run("rpm shim", [ROOT / "tests/package/shim/build.sh", folder, self.base(disk)])
        return folder

    def apt(self, arch: Arch = X86) -> Apt:
        """The private apt of an architecture; the first use reads the package lists."""
        if arch.debian not in self._apts:
            self._apts[arch.debian] = Apt(self.paths, *suffix(arch)).update()
        return self._apts[arch.debian]

    def _apt(self, arch: Arch, *command: str, cwd: Path | None = None) -> str:
        done = self.apt(arch).run(*command, cwd=cwd)
        if done.returncode:
            raise Fail(f"'{' '.join(command)}' failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout

    def _stock_package(self, disk: Disk) -> str:
        """Debian's cloud kernel: of the pinned version, or else the newest one."""
        cloud = f"cloud-{disk.arch.debian}"
        if disk.release != RELEASE:
            return f"linux-image-{cloud}"
        upstream = Pin.load(self.paths.kernel).upstream
        names: list[str] = re.findall(
            rf"(?m)^linux-image-6\.12\.\d+\+deb13(?:\.\d+)?-{cloud}$",
            self._apt(disk.arch, "apt-cache", "pkgnames", "linux-image-6.12."))
        if not names:
            raise Fail(f"the mirrors in apt's sources have no linux-image-6.12.*-{cloud}: "
                       "add a mirror with trixie and trixie-security")
        names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
        pinned = [name for name in names if name.startswith(f"linux-image-{upstream}+")]
        if not pinned:
            say(f"note: the mirrors no longer have stock {upstream}; the hosts get {names[-1]}")
        return (pinned or names)[-1]

    def _sandbox(self, release: str) -> Path:
        return self.folder / ("sandbox" if release == RELEASE else f"sandbox-{release}")

    def _write_sources(self, disk: Disk) -> None:
        """Write apt sources for mkosi: this host's mirrors with the suites of a release."""
        suites = (RELEASE, f"{RELEASE}-updates", f"{RELEASE}-security")
        target = self._sandbox(disk.release) / "etc/apt/sources.list.d/mkosi.sources"
        target.parent.mkdir(parents=True, exist_ok=True)
        # The mirrors of all releases are the same.
        target.write_text("\n".join(
            f"Types: deb\nURIs: {uri}\nSuites: {suite.replace(RELEASE, disk.release)}\n"
            f"Components: main\nSigned-By: {KEYRING}\n"
            for uri, suite in self.apt().sources() if suite in suites))

    def _mkosi(self, name: str, disk: Disk, profiles: list[str],
               *options: str | Path) -> None:
        # Keep the user's MKOSI* variables out.
        env = {key: value for key, value in os.environ.items() if not key.startswith("MKOSI")}
        command, more = self._program()
        self._run(name, [
            *command, "--directory", ROOT, "--release", disk.release,
            *(["--architecture", disk.arch.debian] if disk.arch != X86 else []),
            "--profile", ",".join(profiles), "--force",
            "--sandbox-tree", self._sandbox(disk.release),
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
            self._apt(X86, "apt-get", "-q", "download", f"mkosi/{RELEASE}", cwd=scratch)
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
