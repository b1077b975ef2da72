# SPDX-License-Identifier: GPL-2.0-only
"""Choose KVM or TCG with a test boot, since /dev/kvm may exist but not work.

The result of the test boot is kept in build/vm/kvm-probe.json until the host
reboots. If a kernel ran under KVM, or did not even print its first line, the
result holds for the host; if a kernel started but failed to boot, it holds for
that kernel only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from . import guest, session
from .errors import RunnerError
from .qemu import Machine, find_qemu

_DEVICE = Path("/dev/kvm")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROBE_SECONDS = 20


@dataclass
class Choice:
    """The accelerator and the reason for it."""

    accel: str
    why: str


def choose(wanted: str, machine: Machine, cache: Path) -> Choice:
    """Return the accelerator for a machine; wanted is auto, kvm or tcg."""
    if machine.icount is not None:
        if wanted == "kvm":
            raise RunnerError("--icount counts instructions, which only TCG can; "
                              "leave out --accel kvm")
        return Choice("tcg", "--icount")
    if wanted == "tcg":
        return Choice("tcg", "as requested")
    reason = _unusable(machine)
    if wanted == "kvm":
        if reason:
            raise RunnerError(f"KVM is not available: {reason}; use --accel auto or tcg")
        return Choice("kvm", "as requested")
    if reason:
        return Choice("tcg", f"no KVM: {reason}")
    failure = _probe_cached(machine, cache)
    if failure:
        return Choice("tcg", f"no KVM: {failure}")
    return Choice("kvm", "a test boot worked")


def _unusable(machine: Machine) -> str:
    """Return why KVM cannot even be tried, or ""."""
    if os.uname().machine != machine.arch.name:
        return f"the host is {os.uname().machine}, the kernel {machine.arch.name}"
    if not _DEVICE.exists():
        return f"{_DEVICE} does not exist"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"no permission for {_DEVICE} (join the group kvm)"
    return ""


def _probe_cached(machine: Machine, cache: Path) -> str:
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        qemu = os.stat(find_qemu(machine.arch))
    except OSError as err:
        raise RunnerError(f"cannot examine this host: {err}") from err
    host = f"{boot_id} {qemu.st_mtime_ns} {machine.arch.name}"
    with machine.kernel.open("rb") as image:
        kernel = hashlib.file_digest(image, "sha256").hexdigest()

    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        read = json.loads(cache.read_text(encoding="utf-8"))
        if isinstance(read, dict) and read.get("host") == host:
            known = read
    for key in ("any kernel", kernel):
        if isinstance(known.get(key), str):
            return known[key]

    failure, about_host = probe(machine)
    known["host"] = host
    known["any kernel" if about_host else kernel] = failure
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        scratch = cache.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        scratch.replace(cache)
    return failure


def probe(machine: Machine) -> tuple[str, bool]:
    """Boot the machine's kernel with KVM and run a command.

    Return what went wrong ("" if it worked), and whether that holds for the host
    rather than for this kernel only.
    """
    with tempfile.TemporaryDirectory(prefix="faultline-kvm-") as scratch:
        directory = Path(scratch)
        initramfs = directory / "initramfs"
        with initramfs.open("wb") as out:
            guest.build(machine, guest.Job(command=["true"])).write(out)
        trial = replace(machine, accel="kvm", initramfs=initramfs, cpus=1, mem=512,
                        append=[], qemu_args=[])
        outcome = session.boot(trial, directory, timeout=_PROBE_SECONDS)
    if "end" in outcome.records:
        return "", True
    if outcome.console.lines:
        return "this kernel starts under KVM but does not reach init", False
    if outcome.qemu_output:
        return "/dev/kvm exists, but " + outcome.qemu_output.splitlines()[0], True
    return f"/dev/kvm exists, but no kernel message came within {outcome.seconds:.0f} s", True
