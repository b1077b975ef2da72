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
from faultline.vm.cli import run as run_vm
from faultline.vm.console import kunit_lines, message

BUILD = Paths.from_env().build


def options(row: Boot) -> list[str]:
    """The arguments of the VM runner, without the command."""
    power = row.flavour.startswith("ppc64le")
    image = "vmlinux" if power else "arch/x86/boot/bzImage"
    words = ["--quiet", "--kernel", f"{BUILD}/{row.flavour}/{image}", "--cpus", str(row.cpus),
             "--mem", str(row.mem), "--timeout", str(row.timeout), "--append", row.append]
    if row.preempt:
        words += ["--append", f"preempt={row.preempt}"]
    if row.icount is not None:
        words += ["--icount", str(row.icount)]
        # One CPU must not keep another one from running; ppc64le has AWAKE instead.
        words += [] if power else ["--icount-fair"]
    selftests = BUILD / ("selftests-ppc64le" if power else "selftests")
    for name in dict.fromkeys(program.split()[0] for program in row.programs):
        words += ["--file", str(FILES.get(name, selftests / name))]
    return words


def command(row: Boot) -> list[str]:
    """What runs in the guest: KUnit has run when it starts."""
    if not row.programs:
        return ["true"]
    seconds = os.environ.get("EACH") or str(row.seconds)
    return ["env", f"FAULTLINE_SECONDS={seconds}", *row.env,
            "sh", "-c", (AWAKE if row.awake else "") + 'exec sh ktap-all "$@"', "sh",
            *row.programs]


def main() -> int:
    """Boot, and print the results."""
    if len(sys.argv) != 2 or sys.argv[1] not in BOOTS:
        raise Fail(f"say which row of tests/suites.py: {' '.join(BOOTS)}")
    row = BOOTS[sys.argv[1]]
    print(f"# {row.reason}", flush=True)
    out = BUILD / "vm" / row.title.replace("/", "-")
    words = ["--out", str(out), *options(row)]
    if row.programs:
        words += ["--file", f"{ROOT}/packaging/share/run-selftests:ktap-all"]
    else:
        words += ["--append", "kunit.enable=1"]
    status = run_vm([*words, "--", *command(row)])
    log = out / "console.log"
    console = log.read_text("utf-8", "replace") if log.exists() else ""
    if not row.programs:
        for line in kunit_lines(console):
            print(line)
    # A kernel without PREEMPT_DYNAMIC ignores the parameter.
    if row.preempt and not any(message(line) == f"Dynamic Preempt: {row.preempt}"
                               for line in console.splitlines()):
        print(f"tests/boot: error: the kernel does not say that preemption is {row.preempt}",
              file=sys.stderr)
        return 1
    return status
