# SPDX-License-Identifier: GPL-2.0-only
"""Puts a job into a root file system: busybox, init, command, files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ..common import Paths

from .arch import Arch
from .errors import RunnerError
from .initramfs import Archive, FileSet, elf_facts
from .qemu import Machine
from .session import log_error

# Memory for the kernel itself, besides the initramfs and its unpacked files.
_KERNEL_MIB = 96
_INIT = Path(__file__).with_name("init.sh")

_DIRECTORIES = (
    "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/etc", "/root", "/run", "/var",
    "/proc", "/sys", "/dev", "/mnt", "/test", "/out",
)

# Each is mounted if the kernel supports it.
_FSTAB = """\
sysfs /sys sysfs defaults 0 0
devpts /dev/pts devpts mode=0620,ptmxmode=0666 0 0
tmpfs /dev/shm tmpfs mode=1777 0 0
tmpfs /tmp tmpfs mode=1777 0 0
debugfs /sys/kernel/debug debugfs defaults 0 0
tracefs /sys/kernel/tracing tracefs defaults 0 0
cgroup2 /sys/fs/cgroup cgroup2 defaults 0 0
hugetlbfs /dev/hugepages hugetlbfs defaults 0 0
mqueue /dev/mqueue mqueue defaults 0 0
"""


@dataclass
class Job:
    """The task of a guest."""

    command: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    # The command prints test results, or the kernel does during boot: judge them.
    ktap: bool = False
    kunit: bool = False
    shell: bool = False
    # For the message of the interactive shell.
    about: str = ""
    toggles: list[str] = field(default_factory=list)
    window: tuple[int, int] = (24, 80)


def fetched_busybox(arch: Arch) -> Path:
    """Return the path to which `fl vm busybox` writes the busybox for arch."""
    return Paths.from_env().cache / f"busybox-{arch.name}"


def busybox(arch: Arch) -> Path:
    """Return a statically linked busybox for arch: the host's or a fetched one."""
    hint = "install busybox-static (Debian) or busybox (Fedora)"
    if os.uname().machine != arch.name:
        hint = f"run 'tools/fl vm busybox {arch.name}', or put one first in PATH"
    found = "busybox is missing"
    for path in (shutil.which("busybox"), fetched_busybox(arch)):
        if path is None or not Path(path).is_file():
            continue
        with open(path, "rb") as file:
            head = file.read(4096)
        machine, dynamic = elf_facts(head) if head.startswith(b"\x7fELF") else (0, True)
        if machine == arch.elf_machine and not dynamic:
            return Path(path)
        found = f"{path} is not statically linked"
        if not dynamic:
            found = f"{path} does not run on {arch.name}"
    raise RunnerError(f"{found}; {hint}")


def build(machine: Machine, job: Job) -> Archive:
    """Return the root file system for a job."""
    arch = machine.arch
    box = busybox(arch)
    archive = Archive()
    for path in _DIRECTORIES:
        archive.directory(path)
    archive.directory("/tmp", 0o1777)
    archive.file("/bin/busybox", box)
    archive.symlink("/bin/sh", "busybox")
    archive.file("/init", _INIT)
    # The kernel opens this for init before init can mount anything.
    archive.character_device("/dev/console", 0o600, 5, 1)
    # Copied to /dev once that is mounted.
    for directory in ("pts", "shm", "hugepages", "mqueue"):
        archive.directory(f"/faultline/dev/{directory}")
    archive.symlink("/faultline/dev/fd", "/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        archive.symlink(f"/faultline/dev/{name}", f"/proc/self/fd/{number}")
    archive.text("/etc/fstab", _FSTAB)
    archive.symlink("/etc/mtab", "/proc/mounts")
    archive.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"
                                "nobody:x:65534:65534:nobody:/:/bin/false\n")
    archive.text("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    archive.text("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")

    files = FileSet(archive, arch.elf_machine)
    for spec in job.files:
        files.add(spec)
    library_path = files.finish()

    console, output, status, returned = (f"/dev/{port}" for port in arch.ports)
    settings = {
        "mode": "shell" if job.shell else "run",
        "console": console,
        "output": output,
        "status": status,
        "returned": returned,
        "library_path": ":".join(library_path),
        "allow_warn": "1" if machine.allow_warn else "",
        "about": job.about,
        "toggles": " ".join(job.toggles),
        "rows": str(job.window[0]),
        "columns": str(job.window[1]),
    }
    archive.text("/faultline/job", "".join(
        f"job_{name}={shlex.quote(value)}\n" for name, value in settings.items()))
    archive.text("/faultline/command", "exec " + shlex.join(job.command) + "\n")
    return archive


def write(archive: Archive, machine: Machine) -> None:
    """Write a root file system to the place that the machine boots it from."""
    needed = 2 * (archive.size >> 20) + _KERNEL_MIB
    if needed > machine.mem:
        raise RunnerError(f"the guest's files take {archive.size >> 20} MiB, and twice that while "
                          f"being unpacked, which does not fit; use --mem {needed} or more")
    try:
        with machine.initramfs.open("wb") as out:
            archive.write(out)
    except OSError as err:
        raise log_error(machine.initramfs, err) from err


def toggles(table: Path) -> list[str]:
    """Return the paths below /proc/sys of the switches in a table, sysctl/switches."""
    return [name.replace(".", "/") for name in re.findall(r"(?m)^(vm\.\w+) ",
                                                          table.read_text(encoding="utf-8"))]
