# SPDX-License-Identifier: GPL-2.0-only
"""One virtual host: a disk that persists across boots and power cuts.

Each boot is one run of QEMU, on a new layer over the disk as the previous boot left it. The
guest has no agent: systemd takes a unit and its script from SMBIOS credentials, and the output
of the script is returned over separate serial ports.  systemd 252 reads only the first 4 KiB of
SMBIOS and takes no units from it: such an image has the unit, and the script is a disk.
"""

from __future__ import annotations

import base64
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faultline.common import Fail, call
from faultline.vm import accel, console, session
from faultline.vm.arch import Arch
from faultline.vm.qemu import Machine, channel_options

# Debian's and Fedora's names; without Secure Boot, which tests/hosts/signing/secureboot.sh tests.
FIRMWARE = {
    "x86_64": (("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
               ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd")),
    "aarch64": (("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
                ("/usr/share/edk2/aarch64/QEMU_EFI-pflash.raw",
                 "/usr/share/edk2/aarch64/vars-template-pflash.raw")),
}
FIRMWARE_PACKAGE = {"x86_64": "ovmf", "aarch64": "qemu-efi-aarch64"}
# No legacy disks and keyboard: the guest would load drivers for them.
MACHINE = {"x86_64": ",sata=off,i8042=off"}

UNIT_NAME = "faultline-test.service"
# Kernel parameters of every boot.  On a busy machine, a disk or a service may need more than the
# 90 seconds after which systemd gives it up; the VM has a time limit of its own.
PARAMETERS = (f"systemd.wants={UNIT_NAME}", "printk.time=1", "oops=panic", "sysrq_always_enabled",
              "systemd.default_device_timeout_sec=infinity",
              "systemd.default_timeout_start_sec=900")
# OUTPUT and RECORDS stand for serial ports, STEPS for the file with the script.
UNIT = """\
[Unit]
Description=Steps of a test
DefaultDependencies=no
After=multi-user.target boot-complete.target systemd-bless-boot.service
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=oneshot
ImportCredential=faultline.*
StandardOutput=file:OUTPUT
StandardError=inherit
ExecStartPre=/bin/sh -c 'echo "start $$(uname -r)" >RECORDS'
ExecStart=/bin/bash STEPS
ExecStopPost=/bin/sh -c 'read -r t </proc/sys/kernel/tainted; \
    echo "taint $$t" >RECORDS; echo "exit $EXIT_CODE $EXIT_STATUS" >RECORDS'
"""
STEPS_DISK = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_steps"


def unit(arch: Arch, *, on_disk: bool = False) -> str:
    """The unit; with `on_disk`, for the image of an older systemd."""
    _, output, records, _ = arch.ports
    text = UNIT.replace("OUTPUT", f"/dev/{output}").replace("RECORDS", f"/dev/{records}")
    if on_disk:
        return text.replace("ImportCredential=faultline.*\n", "").replace("STEPS", STEPS_DISK)
    return text.replace("STEPS", "${CREDENTIALS_DIRECTORY}/faultline.steps")


def children_cpu() -> float:
    """CPU time of the child processes that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class PowerCut(Exception):
    """Stop the machine at once."""


@dataclass
class HostMachine:
    """The parameters of a machine that boots from its disk, for session.boot()."""

    arch: Arch
    accel: str
    disk: Path
    firmware: Path
    variables: Path
    credentials: dict[str, str]
    append: list[str]
    # The script as a disk.
    steps: Path | None = None
    cpus: int = 1
    mem: int = 1536
    reboots: bool = False
    # A BMC, with a watchdog that keeps running while the machine is reset.
    bmc: bool = False
    allow_warn: bool = False

    def qemu_command(self, binary: str, backends: dict[str, str]) -> list[str]:
        """QEMU's arguments."""
        command = [
            binary, "-nodefaults", "-no-user-config", "-display", "none",
            "-machine", self.arch.machine + MACHINE.get(self.arch.name, ""),
            "-smp", str(self.cpus), "-m", str(self.mem),
            # One thread: several are slower here, and with several, QEMU 7.2 may hit a
            # breakpoint that the kernel has already removed when it flips a static key.
            "-accel", "kvm" if self.accel == "kvm" else "tcg,thread=single",
            "-cpu", self.arch.cpu_kvm if self.accel == "kvm" else self.arch.cpu_tcg,
            "-drive", f"if=pflash,format=raw,readonly=on,file={self.firmware}",
            "-drive", f"if=pflash,format=raw,file={self.variables}",
            # A disk with a write cache: flushed data is on disk, data written but not flushed
            # may be, and data not yet written is lost.
            "-drive", f"if=none,id=disk,format=qcow2,cache=writeback,file={self.disk}",
            "-device", "nvme,serial=faultline,drive=disk,bootindex=0",
            *self._steps(),
            "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
        ]
        if not self.reboots:
            command.append("-no-reboot")
        if self.bmc:
            command += ["-device", "ipmi-bmc-sim,id=bmc", "-device", "isa-ipmi-kcs,bmc=bmc"]
        command += channel_options(self.arch, backends)
        strings = [f"io.systemd.credential.binary:{name}={base64.b64encode(text.encode()).decode()}"
                   for name, text in self.credentials.items()]
        strings.append("io.systemd.boot.kernel-cmdline-extra=" + " ".join(self.append))
        for text in strings:
            command += ["-smbios", f"type=11,value={text.replace(',', ',,')}"]
        return command

    def _steps(self) -> tuple[str, ...]:
        if not self.steps:
            return ()
        return ("-drive", f"if=none,id=steps,format=raw,readonly=on,file={self.steps}",
                "-device", "nvme,serial=steps,drive=steps")


@dataclass
class Boot:
    """The result of a boot."""

    name: str
    log: Path
    troubles: list[str] = field(default_factory=list)
    # Why the boot failed, regardless of its steps; else "".
    fault: str = ""
    cut: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    boot_seconds: float | None = None


class Host:
    """A disk and firmware variables, kept from boot to boot."""

    def __init__(self, folder: Path, image: Path, kernel: Path, kvm_cache: Path, *,
                 has_unit: bool = False) -> None:
        """A host in `folder` that starts from `image`, which has the unit if `has_unit`."""
        self.has_unit = has_unit
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.boots = 0
        trial = Machine(kernel)
        self.arch = trial.arch
        self.accel = accel.choose("auto", trial, kvm_cache)
        for code, variables in FIRMWARE[self.arch.name]:
            if Path(code).exists():
                break
        else:
            raise Fail(f"no UEFI firmware found: install {FIRMWARE_PACKAGE[self.arch.name]}")
        self.firmware = Path(code)
        self.disk = image
        self.disk_format = "raw"
        self.variables = Path(variables)

    def boot(self, name: str, steps: str, *, on_line: Callable[[str], None],
             cpus: int = 1, reboots: bool = False, bmc: bool = False, cut_at: str = "",
             expected: tuple[str, ...] = (), timeout: float = 1800, mem: int = 1536) -> Boot:
        """Boot, run steps (a bash script), and wait until the machine ends.

        cut_at cuts the power when the script prints that line. expected names the kinds of
        kernel trouble that this boot must show; mem is in MiB; bmc adds a BMC.
        """
        self.boots += 1
        folder = self.folder / f"{self.boots:02}-{name}"
        for attempt in (1, 2):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            boot, flake = self._try(Boot(name, folder / "console.log"),
                                    self._prepared(folder, steps, cpus, mem, reboots, bmc), on_line,
                                    cut_at, expected, timeout)
            if attempt == 2 or not flake:
                break
            on_line("# an emulated timer failed during boot: trying again")
        self.disk, self.disk_format = folder / "disk.qcow2", "qcow2"
        self.variables = folder / "variables.fd"
        return boot

    def _layer(self, folder: Path) -> tuple[Path, Path]:
        disk, variables = folder / "disk.qcow2", folder / "variables.fd"
        call("qemu-img", "create", "-q", "-f", "qcow2", "-F", self.disk_format, "-b", self.disk,
             disk)
        shutil.copyfile(self.variables, variables)
        return disk, variables

    def machine(self, folder: Path, credentials: dict[str, str], append: list[str]) -> HostMachine:
        """The machine for one boot, on a new disk layer."""
        disk, variables = self._layer(folder)
        return HostMachine(self.arch, self.accel.accel, disk, self.firmware, variables,
                           credentials, append)

    def _prepared(self, folder: Path, steps: str, cpus: int, mem: int,
                  reboots: bool, bmc: bool) -> HostMachine:
        # Whole sectors of a disk, without NUL bytes.
        script = steps.encode()
        (folder / "steps").write_bytes(script + b"\n" * (-len(script) % 512))
        credentials = ({} if self.has_unit else
                       {f"systemd.extra-unit.{UNIT_NAME}": unit(self.arch),
                        "faultline.steps": steps})
        machine = self.machine(folder, credentials, [*PARAMETERS])
        machine.steps = folder / "steps" if self.has_unit else None
        machine.cpus, machine.mem, machine.reboots, machine.bmc = cpus, mem, reboots, bmc
        return machine

    def _try(self, boot: Boot, machine: HostMachine, on_line: Callable[[str], None], cut_at: str,
             expected: tuple[str, ...], timeout: float) -> tuple[Boot, bool]:
        pending = b""

        def take(data: bytes) -> None:
            nonlocal pending
            *lines, pending = (pending + data).split(b"\n")
            for raw in lines:
                line = raw.decode("utf-8", "replace").rstrip("\r")
                if cut_at and line == cut_at:
                    raise PowerCut
                on_line(line)

        began, used = time.monotonic(), children_cpu()
        try:
            outcome = session.boot(machine, boot.log.parent, timeout=timeout, on_output=take)
        except PowerCut:
            boot.cut = True
            return boot, False
        finally:
            boot.seconds = time.monotonic() - began
            boot.cpu_seconds = children_cpu() - used
        boot.boot_seconds = outcome.boot_seconds
        self._judge(boot, outcome, expected)
        return boot, outcome.console.host_flake and "start" not in outcome.records

    def _judge(self, boot: Boot, outcome: session.Outcome, expected: tuple[str, ...]) -> None:
        kinds = {item.kind for item in outcome.console.trouble}
        boot.troubles = [f"{item.kind}: {item.text}" for item in outcome.console.trouble
                         if item.kind not in expected]
        missing = [kind for kind in expected if kind not in kinds]
        taints = console.taint_trouble(int(outcome.records.get("taint", "0") or 0), False)
        if outcome.cut:
            boot.fault = f"still running after {outcome.seconds:.0f} s ({outcome.cut})"
        elif boot.troubles:
            boot.fault = boot.troubles[0]
        elif missing:
            boot.fault = f"the kernel's log does not show: {', '.join(missing)}"
        elif taints:
            boot.fault = f"the kernel is tainted: {', '.join(taints)}"
        elif "start" not in outcome.records:
            boot.fault = ("the host did not come up" if outcome.qemu_status == 0
                          else f"QEMU failed: {outcome.qemu_output}")
        elif outcome.records.get("exit") != "exited 0":
            boot.fault = f"the steps ended with {outcome.records.get('exit', 'no status')}"
