# SPDX-License-Identifier: GPL-2.0-only
"""Boot a kernel and print the results of its selftests or KUnit suites: a row of suites.py.

lab boot SUITE/NAME: tests/run builds kernel and selftests first and judges the results.  The logs
go to build/vm/SUITE-NAME.
"""
from __future__ import annotations

import os
import sys

from suites import AWAKE, BOOTS, FILES, Boot

from faultline.common import ROOT, Fail, Paths
from faultline.flavour import FLAVOURS, X86
from faultline.vm import run as vm
from faultline.vm.console import kunit_lines, message
from faultline.vm.guest import Job
from faultline.vm.qemu import Machine

BUILD = Paths.from_env().build
RUN_SELFTESTS = f"{ROOT}/packaging/share/run-selftests:ktap-all"


def selftest(flavour: str, name: str) -> str:
    """The path of a selftest, or of another file for guests."""
    return str(FILES.get(name, BUILD / FLAVOURS[flavour].arch.selftests / name))


def machine(row: Boot, *append: str) -> Machine:
    """The VM of the row."""
    # One CPU must not keep another one from running; others have AWAKE instead.
    fair = row.icount is not None and FLAVOURS[row.flavour].arch == X86
    parameters = [row.append, *append]
    if row.preempt:
        parameters.append(f"preempt={row.preempt}")
    return Machine(FLAVOURS[row.flavour].image, cpus=row.cpus, mem=row.mem, icount=row.icount,
                   icount_fair=fair, append=parameters, qemu_args=list(row.qemu))


def job(row: Boot) -> Job:
    """The guest's command; KUnit has run before it starts."""
    if not row.programs:
        return Job(["true"])
    seconds = os.environ.get("EACH") or str(row.seconds)
    names = dict.fromkeys(program.split()[0] for program in row.programs)
    return Job(["env", f"FAULTLINE_SECONDS={seconds}", *row.env,
                "sh", "-c", (AWAKE if row.awake else "") + 'exec sh ktap-all "$@"', "sh",
                *row.programs],
               [*(selftest(row.flavour, name) for name in names), RUN_SELFTESTS])


def main() -> int:
    """Boot, and print the results."""
    if len(sys.argv) != 2 or sys.argv[1] not in BOOTS:
        raise Fail(f"say which row of tests/suites.py: {' '.join(BOOTS)}")
    row = BOOTS[sys.argv[1]]
    print(f"# {row.reason}", flush=True)
    out = BUILD / "vm" / row.title.replace("/", "-")
    kunit = [] if row.programs else ["kunit.enable=1"]
    report = vm.run(machine(row, *kunit), job(row), out, timeout=row.timeout, quiet=True)
    report.print()
    log = out / "console.log"
    console = log.read_text("utf-8", "replace") if log.exists() else ""
    if not row.programs:
        for line in kunit_lines(console):
            print(line)
    # A kernel without PREEMPT_DYNAMIC ignores the parameter.
    if row.preempt and not any(message(line) == f"Dynamic Preempt: {row.preempt}"
                               for line in console.splitlines()):
        raise Fail(f"the kernel does not say that preemption is {row.preempt}")
    for feature in row.detected:
        if f"CPU features: detected: {feature}\n" not in console:
            raise Fail(f"the kernel has not detected: {feature}")
    return report.status
