# SPDX-License-Identifier: GPL-2.0-only
"""The differences between the machines that a kernel can boot on.

To add an architecture, add an entry to ARCHITECTURES and code in identify()
that recognises its kernel image.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from .errors import RunnerError


@dataclass(frozen=True)
class Arch:
    """One machine type: QEMU's arguments and device names in the guest."""

    name: str
    qemu: str
    qemu_package: str
    elf_machine: int
    machine: str
    cpu_tcg: str
    cpu_kvm: str
    # QEMU's device of one CPU of cpu_tcg; empty: --icount-fair is not available.
    cpu_device: str
    # QEMU arguments for one serial port; {chardev} is its backend.
    serial: tuple[str, ...]
    # Guest devices for console, command output, status records, returned files.
    ports: tuple[str, str, str, str]
    # Bytes before a SysRq key on the console; empty: a break.
    sysrq: bytes
    # Kernel parameters that only this architecture knows or needs.
    cmdline: tuple[str, ...]
    # QEMU arguments for the port of the console, if it differs from the others.
    console: tuple[str, ...] = ()
    # Added to cpu_tcg where instructions are counted: a clock that ticks each nanosecond.
    cpu_icount: str = ""


ARCHITECTURES = {
    "x86_64": Arch(
        name="x86_64",
        qemu="qemu-system-x86_64",
        qemu_package="qemu-system-x86",
        elf_machine=62,
        machine="q35",
        # Without "fast string" instructions the kernel clears pages with
        # plain stores, which TCG runs about twice as fast.
        cpu_tcg="max,-erms,-fsrm",
        cpu_kvm="host",
        cpu_device="max-x86_64-cpu",
        serial=("-device", "isa-serial,chardev={chardev}"),
        ports=("ttyS0", "ttyS1", "ttyS2", "ttyS3"),
        sysrq=b"",
        cmdline=(
            "earlycon=uart8250,io,0x3f8,115200",
            "console=ttyS0",
            # The IO-APIC timer test and the TSC watchdog compare two clocks; on a
            # busy host these diverge, and the kernel panics or degrades.
            "no_timer_check",
            "tsc=reliable",
            # A triple fault ends the machine at once; ACPI takes longer.
            "reboot=t",
            # Last resort to find out where a guest hangs with interrupts off.
            "unknown_nmi_panic",
        ),
    ),
    "ppc64le": Arch(
        name="ppc64le",
        qemu="qemu-system-ppc64",
        qemu_package="qemu-system-ppc",
        elf_machine=21,
        # TCG has none of these mitigations and would warn about each.  Without
        # 16 MiB pages there are no huge pages with the hash MMU.
        machine="pseries,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,cap-ccf-assist=off,"
        "cap-hpt-max-page-size=16M",
        cpu_tcg="power9",
        cpu_kvm="host",
        cpu_device="",
        serial=("-device", "spapr-vty,chardev={chardev}"),
        ports=("hvc0", "hvc1", "hvc2", "hvc3"),
        # The hypervisor console driver uses Ctrl-O as SysRq.
        sysrq=b"\x0f",
        cmdline=("console=hvc0",),
    ),
    "aarch64": Arch(
        name="aarch64",
        qemu="qemu-system-aarch64",
        qemu_package="qemu-system-arm",
        elf_machine=183,
        machine="virt,gic-version=3",
        # As in Graviton2 and Altra: LSE atomics, access flag and dirty state by hardware.
        cpu_tcg="neoverse-n1",
        cpu_kvm="host",
        cpu_device="",
        serial=("-device", "pci-serial,chardev={chardev}"),
        ports=("ttyAMA0", "ttyS0", "ttyS1", "ttyS2"),
        sysrq=b"",
        cmdline=("earlycon=pl011,0x9000000", "console=ttyAMA0"),
        # The board's only port, which works before there is PCI.
        console=("-serial", "chardev:{chardev}"),
        # In Hz; by default a tick takes 16 ns.
        cpu_icount=",cntfrq=1000000000",
    ),
}


def identify(kernel: Path) -> tuple[Arch, str]:
    """Return the architecture and the release string of a kernel image.

    The release is empty if the image format does not carry one.
    """
    try:
        with kernel.open("rb") as image:
            head = image.read(0x10000)
    except OSError as err:
        raise RunnerError(
            f"cannot read the kernel {kernel}: {err.strerror}; build one with "
            "'make kernel', or name one with --kernel or KERNEL=") from err
    if head[0x202:0x206] == b"HdrS" and len(head) > 0x210:
        offset = struct.unpack_from("<H", head, 0x20E)[0] + 0x200
        text = head[offset:offset + 200].split(b"\0")[0].decode("ascii", "replace")
        return ARCHITECTURES["x86_64"], text.split(" ")[0]
    if head[0x38:0x3C] == b"ARM\x64":
        return ARCHITECTURES["aarch64"], ""
    if head[:4] == b"\x7fELF" and len(head) > 20:
        order = "<" if head[5] == 1 else ">"
        machine = struct.unpack_from(order + "H", head, 18)[0]
        for arch in ARCHITECTURES.values():
            if arch.elf_machine == machine:
                return arch, ""
    raise RunnerError(
        f"{kernel} is not a kernel image for {' or '.join(ARCHITECTURES)}; "
        "use arch/x86/boot/bzImage or arch/arm64/boot/Image of a built tree, or vmlinux for "
        "ppc64le")
