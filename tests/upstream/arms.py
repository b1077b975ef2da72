# SPDX-License-Identifier: GPL-2.0-only
"""Arms of a comparison: a kernel with one setting of its switches, booted in a VM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from faultline.common import ROOT, Paths

BUILD = Paths.from_env().build
HERE = ROOT / "tests/upstream"

OFF = {"speculative_page_fault": "0", "munmap_section_kbytes": "0",
       "madvise_section_kbytes": "0", "hugetlb_pmd_sharing": "1", "pmd_clear_ipi_free": "0"}
SPF = {**OFF, "speculative_page_fault": "1"}
# The settings of the profiles in sysctl/.
ALL = {"speculative_page_fault": "1", "munmap_section_kbytes": "65536",
       "madvise_section_kbytes": "65536", "hugetlb_pmd_sharing": "0", "pmd_clear_ipi_free": "1"}


@dataclass(frozen=True)
class Arm:
    """A kernel, and its switches as set on the kernel command line."""

    name: str
    flavour: str
    switches: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> str:
        """Kernel parameters.

        Not set with sysctl(8) in the running guest: QEMU's multi-threaded TCG cannot patch code
        that another CPU is running; see IN_TURN in tests/suites.py.
        """
        return " ".join(f"sysctl.vm.{name}={value}" for name, value in self.switches.items())


STOCK = Arm("stock", "microvm-stock")


def ours(everything: bool) -> list[Arm]:
    """The arms to compare with stock."""
    arms = [Arm("off", "microvm", OFF), Arm("spf", "microvm", SPF)]
    if everything:
        arms.append(Arm("all", "microvm", ALL))
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
    """Lines "WHEN WHAT NAME VALUE" of guest/arm."""
    found = [line.split() for line in lines if line.startswith(f"{when} {what} ")]
    return {words[2]: words[3] for words in found if len(words) == 4}


def boot(arm: Arm, name: str, command: list[str], options: list[str]) -> Boot:
    """Boot an arm and run a command in it."""
    folder = BUILD / "vm" / name
    kernel = BUILD / arm.flavour / "arch/x86/boot/bzImage"
    # A process of its own, because machines run in parallel: ^C ends each of them.
    done = subprocess.run(
        [str(ROOT / "tools/fl"), "vm", "run", "--quiet", "--kernel", str(kernel),
         "--name", name, "--out", str(folder), "--append", arm.parameters,
         "--file", str(HERE / "guest/arm"), *options, "--", "arm", *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", check=False)
    lines = done.stdout.splitlines()
    before, after = (_state(lines, when, "counter") for when in ("before", "after"))
    wrong = [f"vm.{switch} is {value} {when} the tests, not {arm.switches.get(switch, 'there')}"
             for when in ("before", "after")
             for switch, value in ({name: "missing" for name in arm.switches}
                                   | _state(lines, when, "switch")).items()
             if value != arm.switches.get(switch)]
    print(f"# {arm.name}: {name} is done", file=sys.stderr, flush=True)
    return Boot(arm, done.returncode, folder, lines, done.stderr.splitlines(),
                {key: int(value) - int(before.get(key, 0)) for key, value in after.items()},
                wrong)
