# SPDX-License-Identifier: GPL-2.0-only
"""The QEMU command line and process."""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from .arch import Arch, identify
from .errors import RunnerError

CHANNELS = ("console", "output", "status", "returned")

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# If a guest floods a port, data is buffered here instead of in QEMU, where a
# full buffer would slow the guest down and distort its timing.
_SOCKET_BUFFER = 1 << 20
# For an answer of the monitor; a busy host may keep QEMU waiting.
_MONITOR_SECONDS = 10


class Bootable(Protocol):
    """The part of a machine that session.boot() and Process use."""

    allow_warn: bool

    @property
    def arch(self) -> Arch:
        """Its architecture."""

    def qemu_command(self, binary: str, backends: dict[str, str]) -> list[str]:
        """Return QEMU's argument list; backends maps a channel to its -chardev."""


@dataclass
class Machine:
    """The settings of a virtual machine for QEMU."""

    kernel: Path
    initramfs: Path = Path()
    # auto, kvm or tcg; see accel.choose().
    accel: str = "auto"
    cpus: int = 2
    mem: int = 1024
    icount: int | None = None
    icount_sleep: bool = False
    # No CPU keeps another one from running; see _fair_cpus().
    icount_fair: bool = False
    # Emulated CPUs take turns on one host thread: with a thread each, QEMU 7.2 may hit a
    # breakpoint that the kernel has already removed, when a static key changes.
    one_thread: bool = False
    allow_warn: bool = False
    append: list[str] = field(default_factory=list)
    qemu_args: list[str] = field(default_factory=list)
    quiet_console: bool = False

    @functools.cached_property
    def _identity(self) -> tuple[Arch, str]:
        return identify(self.kernel)

    @property
    def arch(self) -> Arch:
        """The architecture of the kernel."""
        return self._identity[0]

    @property
    def release(self) -> str:
        """The release of the kernel, if its image has that."""
        return self._identity[1]

    def kernel_command_line(self) -> str:
        """Return the kernel parameters."""
        words = [
            *self.arch.cmdline,
            "panic=-1", "oops=panic",
            "printk.time=1", f"loglevel={4 if self.quiet_console else 7}",
            "nokaslr", "mitigations=off",
            # A busy host can keep an emulated CPU from running for a minute.
            "watchdog_thresh=60", "workqueue.watchdog_thresh=240",
            "rcupdate.rcu_cpu_stall_timeout=240",
            "sysrq_always_enabled",
            # On panic: backtraces of all CPUs and of blocked tasks.
            "panic_print=0xc0",
        ]
        if not self.allow_warn:
            words.append("panic_on_warn=1")
        if self.icount is not None:
            words += ["norandmaps", "random.trust_cpu=off"]
        if self.icount_fair:
            words.append(f"nr_cpus={self.cpus}")
        return " ".join(words + self.append)

    def _fair_cpus(self) -> list[str]:
        """Return the arguments for CPUs of which each gets its turn: a halted CPU follows each.

        With icount, a single thread of QEMU runs the CPUs in the order of their creation, each
        until the next timer expires.  QEMU before 8.1 calls the timers when it enters the CPU
        after the busy one.  What they ask of that CPU, to leave the loop and start with a new
        deadline, is lost, as its deadline has passed.  The loop starts again with the busy CPU,
        and a CPU that wants to run may get no time for many seconds.

        A halted CPU keeps the request, so the CPU after it gets its turn.  The guest does not see
        these CPUs: nr_cpus= leaves them out.
        """
        every = 2 * self.cpus
        words = ["-smp", f"1,maxcpus={every},sockets=1,cores={every},threads=1"]
        order = [core for cpu in range(self.cpus) for core in (cpu, self.cpus + cpu)]
        for core in order[1:]:
            words += ["-device", f"{self.arch.cpu_device},socket-id=0,core-id={core},thread-id=0"]
        return words

    def qemu_command(self, binary: str, backends: dict[str, str]) -> list[str]:
        """Return QEMU's argument list; backends maps a channel to its -chardev."""
        command = [
            binary, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-machine", self.arch.machine, "-m", str(self.mem),
            *(self._fair_cpus() if self.icount_fair else ("-smp", str(self.cpus))),
        ]
        if self.accel == "kvm":
            command += ["-accel", "kvm", "-cpu", self.arch.cpu_kvm]
        elif self.icount is None:
            threads = "single" if self.one_thread else "multi"
            command += ["-accel", f"tcg,thread={threads}", "-cpu", self.arch.cpu_tcg]
        else:
            # One host thread and a clock that counts instructions: runs with
            # the same input are identical, unless an idle CPU sleeps.
            command += [
                "-accel", "tcg,thread=single", "-cpu", self.arch.cpu_tcg + self.arch.cpu_icount,
                "-icount", f"shift={self.icount},sleep={'on' if self.icount_sleep else 'off'}",
                "-rtc", "base=2025-01-01T00:00:00,clock=vm", "-seed", "1",
            ]
        command += channel_options(self.arch, backends)
        command += ["-kernel", str(self.kernel), "-initrd", str(self.initramfs),
                    "-append", self.kernel_command_line()]
        return command + self.qemu_args


def channel_options(arch: Arch, backends: dict[str, str]) -> list[str]:
    """QEMU's arguments for the monitor, and one serial port per other channel."""
    options: list[str] = []
    for channel, backend in backends.items():
        if channel == "monitor":
            options += ["-chardev", f"{backend},id=monitor",
                        "-mon", "chardev=monitor,mode=control"]
            continue
        options += ["-chardev", f"{backend},id={channel}"]
        port = (channel == "console" and arch.console) or arch.serial
        options += [word.format(chardev=channel) for word in port]
    return options


def find_qemu(arch: Arch) -> str:
    """Return the path of the emulator for arch."""
    path = shutil.which(arch.qemu)
    if path is None:
        raise RunnerError(f"{arch.qemu} is missing; install {arch.qemu_package}")
    return path


def _die_with_parent() -> None:
    # A killed runner must not leave a machine behind.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A running QEMU: a socket per channel and a monitor."""

    def __init__(self, machine: Bootable, log: BinaryIO) -> None:
        self.channels: dict[str, socket.socket] = {}
        theirs: dict[str, socket.socket] = {}
        for name in (*CHANNELS, "monitor"):
            ours, other = socket.socketpair()
            for end in (ours, other):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
            self.channels[name] = ours
            theirs[name] = other
        self._monitor = self.channels.pop("monitor")
        self._arch = machine.arch
        self._greeted = False
        self.command = machine.qemu_command(find_qemu(machine.arch), {
            name: f"socket,fd={end.fileno()}" for name, end in theirs.items()})
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
            pass_fds=[end.fileno() for end in theirs.values()],
            preexec_fn=_die_with_parent)
        for end in theirs.values():
            end.close()

    def kill(self) -> None:
        """Kill QEMU."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for QEMU to exit and return its status."""
        try:
            # Its ports are closed by now, so it is about to exit.
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()
        for channel in (*self.channels.values(), self._monitor):
            channel.close()
        return self._process.wait()

    def monitor(self, command: str, **arguments: str) -> bool:
        """Run one monitor command (QMP); False if it did not work."""
        try:
            if not self._greeted:
                self._greeted = True
                self._exchange("qmp_capabilities", {})
            return self._exchange(command, arguments)
        except OSError:
            return False

    def sysrq(self, key: str) -> bool:
        """Send a magic SysRq key over the console's serial line."""
        prefix = self._arch.sysrq
        if not prefix and not self.monitor("chardev-send-break", id="console"):
            return False
        try:
            self.channels["console"].sendall(prefix + key.encode())
        except OSError:
            return False
        return True

    def _exchange(self, command: str, arguments: dict[str, str]) -> bool:
        self._monitor.settimeout(_MONITOR_SECONDS)
        request = {"execute": command, "arguments": arguments}
        self._monitor.sendall(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + _MONITOR_SECONDS
        pending = b""
        while time.monotonic() < deadline:
            data = self._monitor.recv(65536)
            if not data:
                return False
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                answer = json.loads(line) if line.strip() else {}
                if "return" in answer or "error" in answer:
                    return "return" in answer
        return False
