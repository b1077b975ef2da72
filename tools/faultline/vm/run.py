# SPDX-License-Identifier: GPL-2.0-only
"""Do a job in a virtual machine, and judge the kernel and the job."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ..common import Paths

from . import accel, guest, ktap, session
from .console import kunit_lines
from .errors import RUNNER_ERROR, RunnerError
from .guest import Job
from .qemu import Machine, find_qemu
from .verdict import Verdict, judge, read_results, unpack

BUILD = Paths.from_env().build
KVM_CACHE = BUILD / "vm/kvm-probe.json"

# Of 236 boots with two threads, 4 hit the int3 of _flake(): three in a row happen once in
# 2,000 runs of a test suite with a hundred boots.
_TRIES = 4


def note(text: str) -> None:
    """Print a message of the runner, on standard error and marked as a comment."""
    print(f"# vm: {text}", file=sys.stderr, flush=True)


@dataclass
class Report:
    """The outcome of a run, and what is wrong with it."""

    name: str
    # The folder with the logs, and the files that the guest returned.
    out: Path
    machine: Machine
    job: Job
    choice: accel.Choice
    outcome: session.Outcome
    verdict: Verdict
    # Test results of the command, and of the kernel.
    lines: ktap.Summary | None
    kunit: ktap.Summary | None
    # How many files came back.
    returned: int
    quiet: bool

    @property
    def status(self) -> int:
        """The exit status of `fl vm run`."""
        return self.verdict.exit

    def print(self, output: BinaryIO | None = None) -> None:
        """Print summaries of test results to output, and all else as comments."""
        output = output or sys.stdout.buffer
        if self.returned and not self.quiet:
            note(f"{self.returned} files returned in {self.out / 'files'}")
        for summary, name in ((self.lines, self.name), (self.kunit, f"{self.name} (KUnit)")):
            if summary is not None:
                output.write(summary.line(name).encode() + b"\n")
                output.flush()
                for failure in summary.failures:
                    note(f"not ok: {failure}")
        for text in self.verdict.notes:
            note(text)
        if self.status:
            if (self.outcome.console.trouble or self.status != self.verdict.command_exit
                    or not self.quiet):
                note(self.verdict.reason)
            note(f"logs are in {self.out}")
        elif not self.quiet:
            boot = self.outcome.boot_seconds
            note((f"booted in {boot:.1f} s, " if boot else "")
                 + f"finished after {self.outcome.seconds:.1f} s")

    def write(self) -> None:
        """Write result.json."""
        console, machine, boot = self.outcome.console, self.machine, self.outcome.boot_seconds
        result = {
            "name": self.name, "exit": self.status, "reason": self.verdict.reason,
            "command_exit": self.verdict.command_exit,
            "trouble": [item.as_dict() for item in console.trouble],
            "allowed": [item.as_dict() for item in console.allowed],
            "notes": self.verdict.notes, "seconds": round(self.outcome.seconds, 3),
            "boot_seconds": boot and round(boot, 3),
            "guest_boot_seconds": self.outcome.records.get("start"),
            "ktap": vars(self.lines) if self.lines else None,
            "kunit": vars(self.kunit) if self.kunit else None,
            "kernel": str(machine.kernel), "release": machine.release,
            "accel": self.choice.accel, "accel_reason": self.choice.why, "cpus": machine.cpus,
            "mem_mib": machine.mem, "icount": machine.icount, "append": machine.append,
            "command": self.job.command, "qemu": self.outcome.qemu_command}
        path = self.out / "result.json"
        try:
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        except OSError as err:
            raise session.log_error(path, err) from err


def run(machine: Machine, job: Job, out: Path, *, name: str = "", timeout: float = 600,
        stall: float = 0, quiet: bool = False, output: BinaryIO | None = None) -> Report:
    """Boot a machine for a job; logs, returned files and result.json go to the folder out.

    The job's output is copied to output, by default standard output.  A timeout or stall of 0
    means none.  Raises RunnerError if the job could not be started.
    """
    find_qemu(machine.arch)
    if machine.icount_fair and not machine.arch.cpu_device:
        raise RunnerError(f"--icount-fair is not available for {machine.arch.name}")
    archive = guest.build(machine, job)
    _prepare(out)
    machine = replace(machine, kernel=machine.kernel.resolve(), initramfs=out / "initramfs")
    try:
        guest.write(archive, machine)
        choice = accel.choose(machine.accel, machine, KVM_CACHE)
        machine.accel = choice.accel
        if not quiet:
            note(f"{machine.release or machine.kernel.name} on {choice.accel.upper()} "
                 f"({choice.why}), {machine.cpus} CPUs, {machine.mem} MiB")
        for number in range(1, _TRIES + 1):
            outcome = _boot(machine, out, timeout, stall, output)
            flake = _flake(outcome, choice)
            if not flake or number == _TRIES:
                break
            note(f"{flake}; trying again")
            (out / "console.log").rename(out / _console_of_try(number))
    finally:
        machine.initramfs.unlink(missing_ok=True)

    log = out / "console.log"
    verdict = judge(outcome, allow_warn=machine.allow_warn, log=log)
    lines = kunit = None
    if job.ktap:
        with (out / "output.log").open(encoding="utf-8", errors="replace") as results:
            lines = ktap.parse(results)
    if job.kunit:
        kunit = ktap.parse(kunit_lines(log.read_text("utf-8", "replace")))
    read_results(verdict, lines=lines, kunit=kunit)
    report = Report(name or out.name, out, machine, job, choice, outcome, verdict, lines, kunit,
                    _unpack(outcome, verdict, out), quiet)
    report.write()
    return report


def _prepare(out: Path) -> None:
    """Make the log directory and remove the files of an earlier run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("console.log", "output.log", "qemu.log", "returned.tar.gz", "result.json",
                     "initramfs", *map(_console_of_try, range(1, _TRIES))):
            (out / name).unlink(missing_ok=True)
        if (out / "files").exists():
            shutil.rmtree(out / "files")
    except OSError as err:
        raise session.log_error(out, err) from err


def _console_of_try(number: int) -> str:
    return f"console.log.try-{number}"


def _flake(outcome: session.Outcome, choice: accel.Choice) -> str:
    """Return the fault of the emulator that ended a boot, or ""."""
    if outcome.console.host_flake:
        return "the emulated timer failed on a busy host (IO-APIC + timer doesn't work)"
    if outcome.console.stale_int3 and not outcome.boot_seconds and choice.accel == "tcg":
        return "an emulated CPU hit an already removed int3 during boot"
    return ""


def _boot(machine: Machine, out: Path, timeout: float, stall: float,
          output: BinaryIO | None) -> session.Outcome:
    tee = session.Tee(output or sys.stdout.buffer)
    try:
        return session.boot(machine, out, timeout=timeout, stall=stall, on_output=tee.write)
    finally:
        tee.close()


def _unpack(outcome: session.Outcome, verdict: Verdict, out: Path) -> int:
    """Unpack what the guest returned; if it is damaged, a successful run fails."""
    returned, count = out / "returned.tar.gz", 0
    try:
        count = unpack(returned, out / "files", outcome.records.get("files"))
    except RunnerError as err:
        # Expected if the guest died early.
        verdict.notes.append(str(err))
        if verdict.exit == 0:
            verdict.exit, verdict.reason = RUNNER_ERROR, str(err)
    returned.unlink(missing_ok=True)
    return count
