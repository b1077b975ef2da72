# SPDX-License-Identifier: GPL-2.0-only
"""The programs `fl vm run` and `fl vm shell`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

from ..common import ROOT, Paths, shown

from . import accel, guest, ktap, session, verdict
from .arch import identify
from .console import kunit_lines
from .errors import INTERRUPTED, RUNNER_ERROR, RunnerError
from .initramfs import Archive
from .qemu import Machine, find_qemu

BUILD = Paths.from_env().build
DEFAULT_KERNEL = BUILD / "microvm/arch/x86/boot/bzImage"
_KVM_CACHE = BUILD / "vm/kvm-probe.json"

# Memory for the kernel itself, besides the initramfs and its unpacked files.
_KERNEL_MIB = 96

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


class _Notes:
    """The runner's own messages, on standard error and marked as comments."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def say(self, text: str) -> None:
        """Print a line, unless --quiet is given."""
        if not self._quiet:
            self.always(text)

    @staticmethod
    def always(text: str) -> None:
        """Print a line in any case."""
        print(f"# vm: {text}", file=sys.stderr, flush=True)


def _write_initramfs(archive: Archive, path: Path, mem: int) -> None:
    needed = 2 * (archive.size >> 20) + _KERNEL_MIB
    if needed > mem:
        raise RunnerError(f"the guest's files take {archive.size >> 20} MiB, and twice that while "
                          f"being unpacked, which does not fit; use --mem {needed} or more")
    try:
        with path.open("wb") as out:
            archive.write(out)
    except OSError as err:
        raise session.log_error(path, err) from err


def _prepare_out(directory: Path) -> None:
    """Make the log directory and remove the files of an earlier run."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("console.log", "output.log", "qemu.log", "returned.tar.gz", "result.json",
                     "initramfs", "console.log.first-try"):
            (directory / name).unlink(missing_ok=True)
        if (directory / "files").exists():
            shutil.rmtree(directory / "files")
    except OSError as err:
        raise session.log_error(directory, err) from err


def _machine(options: argparse.Namespace, initramfs: Path) -> tuple[Machine, str]:
    arch, release = identify(options.kernel)
    find_qemu(arch)
    machine = Machine(arch, options.kernel.resolve(), initramfs, cpus=options.cpus,
                      mem=options.mem, append=options.append, qemu_args=options.qemu_arg)
    return machine, release


def _run(options: argparse.Namespace, output: BinaryIO) -> int:
    notes = _Notes(options.quiet)
    command = options.command
    if not command:
        if not options.kunit:
            raise RunnerError("no COMMAND to run; see fl vm run --help")
        command = ["true"]
    if options.icount_sleep and options.icount is None:
        raise RunnerError("--icount-sleep goes with --icount")
    if options.icount_fair and options.icount is None:
        raise RunnerError("--icount-fair goes with --icount")
    name = options.name or (Path(command[0]).name if options.command else "kunit")
    name = re.sub(r"[^\w.+-]+", "_", name)
    directory = options.out or BUILD / "vm" / f"{name}-{os.getpid()}"
    initramfs = directory / "initramfs"

    machine, release = _machine(options, initramfs)
    machine.icount, machine.icount_sleep = options.icount, options.icount_sleep
    machine.icount_fair = options.icount_fair
    if machine.icount_fair and not machine.arch.cpu_device:
        raise RunnerError(f"--icount-fair is not available for {machine.arch.name}")
    machine.allow_warn = options.allow_warn
    job = guest.Job(command=command, files=options.files, allow_warn=options.allow_warn)
    archive = guest.build(machine.arch, job)
    _prepare_out(directory)
    try:
        _write_initramfs(archive, initramfs, options.mem)
        choice = accel.choose(options.accel, machine, _KVM_CACHE)
        machine.accel = choice.accel
        notes.say(f"{release or machine.kernel.name} on {choice.accel.upper()} ({choice.why}), "
                  f"{machine.cpus} CPUs, {machine.mem} MiB")
        outcome, lines = _boot(options, machine, directory, output)
        flake = None
        if outcome.console.host_flake:
            flake = "the emulated timer failed on a busy host (IO-APIC + timer doesn't work)"
        elif outcome.console.stale_int3 and not outcome.boot_seconds and choice.accel == "tcg":
            flake = "an emulated CPU hit an already removed int3 during boot"
        if flake:
            notes.always(f"{flake}; trying once more")
            (directory / "console.log").rename(directory / "console.log.first-try")
            outcome, lines = _boot(options, machine, directory, output)
    finally:
        initramfs.unlink(missing_ok=True)
    return _finish(options, name, directory, notes, outcome, lines, output,
                   {"kernel": str(machine.kernel), "release": release, "accel": choice.accel,
                    "accel_reason": choice.why, "cpus": machine.cpus, "mem_mib": machine.mem,
                    "icount": machine.icount, "append": machine.append, "command": command})


def _boot(options: argparse.Namespace, machine: Machine, directory: Path,
          output: BinaryIO) -> tuple[session.Outcome, ktap.Summary | None]:
    tee = session.Tee(output)
    try:
        outcome = session.boot(machine, directory, timeout=options.timeout,
                               stall=options.stall, on_output=tee.write)
    finally:
        tee.close()
    if not options.ktap:
        return outcome, None
    with (directory / "output.log").open(encoding="utf-8", errors="replace") as results:
        return outcome, ktap.parse(results)


def _finish(options: argparse.Namespace, name: str, directory: Path, notes: _Notes,
            outcome: session.Outcome, lines: ktap.Summary | None, output: BinaryIO,
            facts: dict[str, object]) -> int:
    log = directory / "console.log"
    result = verdict.judge(outcome, allow_warn=options.allow_warn, log=log)
    kunit = None
    if options.kunit:
        kunit = ktap.parse(kunit_lines(log.read_text("utf-8", "replace")))
    verdict.read_results(result, lines=lines, kunit=kunit)

    damage = None
    returned = directory / "returned.tar.gz"
    try:
        count = verdict.unpack(returned, directory / "files", outcome.records.get("files"))
        if count:
            notes.say(f"{count} files returned in {directory / 'files'}")
    except RunnerError as err:
        # Expected if the guest died early.
        result.notes.append(str(err))
        damage = err if result.exit == 0 else None
    returned.unlink(missing_ok=True)
    if damage:
        result.exit, result.reason = RUNNER_ERROR, str(damage)

    for summary in (lines, kunit):
        if summary is not None:
            line = summary.line(name if summary is lines else f"{name} (KUnit)")
            output.write(line.encode() + b"\n")
            output.flush()
            for failure in summary.failures:
                notes.always(f"not ok: {failure}")
    for note in result.notes:
        notes.always(note)
    _write_result(directory / "result.json", {
        "name": name, "exit": result.exit, "reason": result.reason,
        "command_exit": result.command_exit,
        "trouble": [item.as_dict() for item in outcome.console.trouble],
        "allowed": [item.as_dict() for item in outcome.console.allowed],
        "notes": result.notes, "seconds": round(outcome.seconds, 3),
        "boot_seconds": outcome.boot_seconds and round(outcome.boot_seconds, 3),
        "guest_boot_seconds": outcome.records.get("start"),
        "ktap": vars(lines) if lines else None, "kunit": vars(kunit) if kunit else None,
        **facts, "qemu": outcome.qemu_command})
    if result.exit:
        if outcome.console.trouble or result.exit != result.command_exit or not options.quiet:
            notes.always(result.reason)
        notes.always(f"logs are in {directory}")
    else:
        booted = f"booted in {outcome.boot_seconds:.1f} s, " if outcome.boot_seconds else ""
        notes.say(f"{booted}finished after {outcome.seconds:.1f} s")
    return result.exit


def _write_result(path: Path, result: dict[str, object]) -> None:
    try:
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as err:
        raise session.log_error(path, err) from err


def _shell(options: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunnerError("a shell needs a terminal; use fl vm run for a script")
    with tempfile.TemporaryDirectory(prefix="faultline-vm-") as scratch:
        initramfs = Path(scratch) / "initramfs"
        machine, _ = _machine(options, initramfs)
        machine.quiet_console = True
        # In an interactive session, a report must not end the session.
        machine.allow_warn = True
        choice = accel.choose(options.accel, machine, _KVM_CACHE)
        machine.accel = choice.accel
        size = os.get_terminal_size()
        job = guest.Job(
            shell=True, files=options.files, allow_warn=True,
            about=f"{machine.cpus} CPUs, {machine.mem} MiB, {choice.accel.upper()} ({choice.why})",
            toggles=guest.toggles(ROOT / "sysctl"),
            window=(size.lines or 24, size.columns or 80))
        _write_initramfs(guest.build(machine.arch, job), initramfs, options.mem)
        command = machine.qemu_command(find_qemu(machine.arch),
                                       {"console": "stdio,mux=on,signal=off"})
        command += ["-mon", "chardev=console,mode=readline"]
        saved = termios.tcgetattr(sys.stdin)
        # Ctrl-C goes to the guest; QEMU owns the terminal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return RUNNER_ERROR if subprocess.run(command, check=False).returncode else 0
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def run(arguments: list[str] | None = None) -> int:
    """Run a command in a VM and return its exit code; arguments as in sys.argv[1:]."""
    return _main(lambda: _run(_run_parser().parse_args(arguments), sys.stdout.buffer))


def shell() -> int:
    """Open a shell in a VM and return its exit code."""
    return _main(lambda: _shell(_shell_parser().parse_args()))


def call(arguments: list[str], output: BinaryIO) -> int:
    """Do what `fl vm run` does for another program, which gets the output; return its exit code."""
    try:
        return _run(_run_parser().parse_args(arguments), output)
    except RunnerError as err:
        print(f"fl vm run: {err}", file=sys.stderr, flush=True)
        return RUNNER_ERROR


def _main(program: Callable[[], int]) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        return program()
    except RunnerError as err:
        with contextlib.suppress(OSError):
            print(f"{sys.argv[0]}: {err}", file=sys.stderr, flush=True)
        return RUNNER_ERROR
    except KeyboardInterrupt:
        print(f"{sys.argv[0]}: interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED
