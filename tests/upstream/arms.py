# SPDX-License-Identifier: GPL-2.0-only
"""Arms of a comparison: a kernel with one setting of its switches, booted in a VM."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from faultline.common import ROOT, Fail, Paths
from faultline.flavour import FLAVOURS
from faultline.vm import run as vm
from faultline.vm.guest import Job
from faultline.vm.qemu import Machine
from lib.switches import OFF, ON, PATH, parameters

BUILD = Paths.from_env().build
HERE = ROOT / "tests/upstream"

SPF = {**OFF, "vm.speculative_page_fault": 1}


@dataclass(frozen=True)
class Arm:
    """A kernel, and its switches as set on the kernel command line."""

    name: str
    flavour: str
    switches: dict[str, int] = field(default_factory=dict)


STOCK = Arm("stock", "microvm-stock")


def ours(everything: bool) -> list[Arm]:
    """The arms to compare with stock."""
    arms = [Arm("off", "microvm", OFF), Arm("spf", "microvm", SPF)]
    if everything:
        arms.append(Arm("all", "microvm", ON))
    return arms


@dataclass
class Boot:
    """The outcome of one boot of an arm."""

    arm: Arm
    status: int
    # The folder of its logs.
    folder: Path
    # Lines of the command's output.
    lines: list[str]
    # Messages of the runner.
    remarks: list[str]
    # Increments of the counters in /proc/vmstat.
    counted: dict[str, int]
    # Switches whose value differs from the arm's, before or after the command.
    wrong: list[str]


def _state(lines: list[str], when: str, what: str) -> dict[str, str]:
    """Lines "WHEN WHAT NAME VALUE" of guest/arm.sh."""
    found = [line.split() for line in lines if line.startswith(f"{when} {what} ")]
    return {words[2]: words[3] for words in found if len(words) == 4}


def _run(machine: Machine, job: Job, out: Path, timeout: float) -> tuple[int, list[str], list[str]]:
    """Run a job; return the exit status, the lines of its output, and the runner's messages."""
    output = io.BytesIO()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            report = vm.run(machine, job, out, timeout=timeout, quiet=True, output=output)
            report.print(output)
            status = report.status
        except Fail as error:
            print(error, file=sys.stderr)
            status = error.status
    return (status, output.getvalue().decode(errors="replace").splitlines(),
            said.getvalue().splitlines())


def boot(arm: Arm, name: str, job: Job, *, mem: int, timeout: float, append: str = "") -> Boot:
    """Boot an arm and run a job in it."""
    folder = BUILD / "vm" / name
    machine = Machine(FLAVOURS[arm.flavour].image, mem=mem,
                      append=[parameters(arm.switches), *append.split()])
    job = replace(job, command=["arm.sh", *job.command],
                  files=[str(HERE / "guest/arm.sh"), str(PATH), *job.files])
    # A process of its own, because machines run in parallel: ^C ends each of them.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        status, lines, remarks = pool.submit(_run, machine, job, folder, timeout).result()
    before, after = (_state(lines, when, "counter") for when in ("before", "after"))
    wanted = {name: str(value) for name, value in arm.switches.items()}
    wrong = [f"{switch} is {value} {when} the tests, not {wanted.get(switch, 'there')}"
             for when in ("before", "after")
             for switch, value in (dict.fromkeys(wanted, "missing")
                                   | _state(lines, when, "switch")).items()
             if value != wanted.get(switch)]
    print(f"# {arm.name}: {name} is done", file=sys.stderr, flush=True)
    return Boot(arm, status, folder, lines, remarks,
                {key: int(value) - int(before.get(key, 0)) for key, value in after.items()},
                wrong)
