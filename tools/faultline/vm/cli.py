# SPDX-License-Identifier: GPL-2.0-only
"""The programs `fl vm run` and `fl vm shell`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ..common import ROOT, shown
from ..flavour import FLAVOURS

from . import accel, guest
from . import run as vm
from .errors import RUNNER_ERROR, RunnerError
from .guest import Job
from .qemu import Machine, find_qemu

DEFAULT_KERNEL = FLAVOURS["microvm"].image

_RUN_ABOUT = """\
Boot a kernel under QEMU, run COMMAND in it, copy its output to standard output
and exit with its exit code. The run also fails if the kernel gets into trouble,
even if COMMAND succeeds.

The guest is busybox and the files given with --file, in memory; COMMAND runs as
root in /test, which is first in PATH. Files that it puts into /out are returned
in DIR/files. Its standard input is empty.
"""

_RUN_MORE = """\
exit status:
  0-122  COMMAND's own; 1 also if COMMAND returned 0 but its test results
         (--ktap, --kunit) show a failure
  123    COMMAND was killed by a signal or returned a code above 122
  124    time ran out (--timeout, --stall)
  125    the runner failed: wrong usage, a missing tool or kernel, a full disk
  126    kernel trouble: panic, oops, BUG, WARN, lockdep, KASAN, KCSAN, UBSAN,
         RCU stall, lockup, hung task, leaked or bad pages, a tainted kernel,
         or a guest that ended without its report
  130    interrupted

kernel trouble:
  It is detected in the kernel log on the console, by the documented format of
  each report, and by the taint flags. The output of COMMAND takes another path
  and is never mistaken for it; a line that the guest writes to /dev/kmsg is
  part of the kernel log and does count. --allow-warn allows only WARN() (it is
  reported, but does not panic). "Out of memory: Killed process" is reported,
  but is not a failure.

files in DIR:
  console.log  the kernel log        output.log   output of COMMAND
  qemu.log     messages of QEMU      result.json  the verdict and its reasons
  files/       contents of /out
  console.log.try-1 to -3  the log of a boot that QEMU itself broke

  If a run times out, the kernel log ends with the state of each CPU and task
  (SysRq over the serial console, which needs CONFIG_MAGIC_SYSRQ_SERIAL; without
  it, or with interrupts off, an NMI panic).

acceleration:
  KVM is used if a kernel actually boots with it on this host, which is tried
  once per boot of the host; otherwise TCG. Under TCG, virtual CPUs run in
  parallel.

files given to the guest:
  --file PROG             /test/PROG, with the shared libraries that it needs
  --file DIR              /test/DIR, with its contents
  --file PROG:/bin/other  exactly there; a relative GUEST is below /test, one
                          that ends in / is a directory
  Libraries loaded at run time (dlopen) are not detected: name them. The
  interpreter of a script (#!/bin/bash) is included.

examples:
  fl vm run -- uname -a
  fl vm run --ktap --file build/selftests/munmap_semantics -- munmap_semantics
  fl vm run --icount 0 --cpus 1 -- sh -c 'cat /proc/uptime'
  fl vm run --kunit --kernel build/microvm-debug/arch/x86/boot/bzImage

environment:
  KERNEL  the kernel to boot if --kernel is not given
"""

_SHELL_ABOUT = """\
Boot a kernel under QEMU with an interactive shell on its console.

Leave with 'exit', or with Ctrl-A X at any time (Ctrl-A H lists more). Files
given with --file are in /test. The switches of the kernel are listed at the
start.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RunnerError(f"{message}; see {self.prog} --help")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


def _machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", metavar="IMAGE", type=Path,
                        default=Path(os.environ.get("KERNEL") or DEFAULT_KERNEL),
                        help="kernel to boot (default: $KERNEL, else "
                        f"{shown(DEFAULT_KERNEL)})")
    parser.add_argument("--cpus", metavar="N", type=_positive, default=2,
                        help="virtual CPUs (default: 2)")
    parser.add_argument("--mem", metavar="MIB", type=_positive, default=1024,
                        help="memory in MiB (default: 1024)")
    parser.add_argument("--append", metavar="STR", action="append", default=[],
                        help="more kernel parameters")
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto",
                        help="see 'acceleration' (default: auto)")
    parser.add_argument("--file", metavar="HOST[:GUEST]", action="append", default=[],
                        dest="files", help="copy a file or directory to the guest; repeatable")
    parser.add_argument("--qemu-arg", metavar="ARG", action="append", default=[],
                        help="another argument for QEMU (--qemu-arg=-plugin); repeatable")


def _run_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fl vm run", description=_RUN_ABOUT, epilog=_RUN_MORE,
                     usage="%(prog)s [OPTION...] -- COMMAND [ARG...]",
                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    _machine_options(parser)
    parser.add_argument("--icount", metavar="SHIFT", type=int, choices=range(0, 11),
                        help="deterministic TCG on one host thread, one instruction takes "
                        "2^SHIFT ns of guest time; with one CPU and shift 0, time counts "
                        "instructions")
    parser.add_argument("--icount-sleep", action="store_true",
                        help="with --icount, an idle CPU sleeps as long as on real time, instead "
                        "of skipping to the next timer; for guests that wait for a disk")
    parser.add_argument("--icount-fair", action="store_true",
                        help="with --icount, each of several CPUs gets its turn; without it, QEMU "
                        "before 8.1 may not run one for many seconds while others are busy")
    parser.add_argument("--timeout", metavar="SEC", type=_seconds, default=600,
                        help="end the run after this time, 0 for never (default: 600)")
    parser.add_argument("--stall", metavar="SEC", type=_seconds, default=0,
                        help="end the run if nothing is printed for this time (default: never)")
    parser.add_argument("--allow-warn", action="store_true",
                        help="let the kernel WARN() without failing the run")
    parser.add_argument("--ktap", action="store_true",
                        help="COMMAND prints KTAP or TAP: judge it and print one summary line")
    parser.add_argument("--kunit", action="store_true",
                        help="judge the KUnit results that the kernel prints during boot; "
                        "COMMAND may be left out")
    parser.add_argument("--name", help="name of the run in its summary (default: COMMAND)")
    parser.add_argument("--out", metavar="DIR", type=Path,
                        help="folder for logs and returned files (default: build/vm/NAME-PID)")
    parser.add_argument("--quiet", action="store_true",
                        help="print only COMMAND's output, the summary line and errors")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def _shell_parser() -> argparse.ArgumentParser:
    parser = _Parser(description=_SHELL_ABOUT,
                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    _machine_options(parser)
    return parser


def _machine(options: argparse.Namespace) -> Machine:
    return Machine(options.kernel, accel=options.accel, cpus=options.cpus, mem=options.mem,
                   append=options.append, qemu_args=options.qemu_arg)


def run() -> int:
    """Run a command in a VM and return its exit code."""
    options = _run_parser().parse_args()
    if not options.command and not options.kunit:
        raise RunnerError("no COMMAND to run; see fl vm run --help")
    for name in ("icount_sleep", "icount_fair"):
        if getattr(options, name) and options.icount is None:
            raise RunnerError(f"--{name.replace('_', '-')} goes with --icount")
    machine = replace(_machine(options), icount=options.icount, allow_warn=options.allow_warn,
                      icount_sleep=options.icount_sleep, icount_fair=options.icount_fair)
    job = Job(options.command or ["true"], options.files, ktap=options.ktap, kunit=options.kunit)
    name = options.name or (Path(options.command[0]).name if options.command else "kunit")
    name = re.sub(r"[^\w.+-]+", "_", name)
    # A closed terminal, as ^C.
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    report = vm.run(machine, job, options.out or vm.BUILD / "vm" / f"{name}-{os.getpid()}",
                    name=name, timeout=options.timeout, stall=options.stall, quiet=options.quiet)
    report.print()
    return report.status


def shell() -> int:
    """Open a shell in a VM and return its exit code."""
    options = _shell_parser().parse_args()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunnerError("a shell needs a terminal; use fl vm run for a script")
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="faultline-vm-") as scratch:
        machine = _machine(options)
        machine.initramfs = Path(scratch) / "initramfs"
        machine.quiet_console = True
        # A switch is flipped here, which changes a static key.
        machine.one_thread = True
        # In an interactive session, a report must not end the session.
        machine.allow_warn = True
        qemu = find_qemu(machine.arch)
        choice = accel.choose(options.accel, machine, vm.KVM_CACHE)
        machine.accel = choice.accel
        size = os.get_terminal_size()
        job = Job(
            shell=True, files=options.files,
            about=f"{machine.cpus} CPUs, {machine.mem} MiB, {choice.accel.upper()} ({choice.why})",
            toggles=guest.toggles(ROOT / "sysctl/switches"),
            window=(size.lines or 24, size.columns or 80))
        guest.write(guest.build(machine, job), machine)
        command = machine.qemu_command(qemu, {"console": "stdio,mux=on,signal=off"})
        command += ["-mon", "chardev=console,mode=readline"]
        saved = termios.tcgetattr(sys.stdin)
        # Ctrl-C goes to the guest; QEMU owns the terminal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return RUNNER_ERROR if subprocess.run(command, check=False).returncode else 0
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)
