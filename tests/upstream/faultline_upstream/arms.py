# SPDX-License-Identifier: GPL-2.0-only
"""What is compared: one kernel, one setting of its switches, booted in one VM."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("BUILD") or ROOT / "build").absolute()
HERE = ROOT / "tests/upstream"

OFF = {"speculative_page_fault": "0", "munmap_section_kbytes": "0",
       "hugetlb_pmd_sharing": "1", "pmd_clear_ipi_free": "0"}
SPF = {**OFF, "speculative_page_fault": "1"}
# As the profiles of sysctl/ set them.
ALL = {"speculative_page_fault": "1", "munmap_section_kbytes": "65536",
       "hugetlb_pmd_sharing": "0", "pmd_clear_ipi_free": "1"}


@dataclass(frozen=True)
class Arm:
    """A kernel, and its switches from the kernel's command line."""

    name: str
    flavour: str
    switches: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> str:
        """Kernel parameters.

        Not by sysctl(8) when the guest is up: QEMU's multi-threaded TCG is not up to patching
        code that another CPU runs; tests/kernel/flip has more about that.
        """
        return " ".join(f"sysctl.vm.{name}={value}" for name, value in self.switches.items())


STOCK = Arm("stock", "microvm-stock")


def ours(everything: bool) -> list[Arm]:
    """The arms that are compared with stock."""
    arms = [Arm("off", "microvm", OFF), Arm("spf", "microvm", SPF)]
    if everything:
        arms.append(Arm("all", "microvm", ALL))
    return arms


@dataclass
class Boot:
    """What one boot of an arm left behind."""

    arm: Arm
    status: int
    # Where its logs are.
    folder: Path
    # Lines of the command's output.
    lines: list[str]
    # What the runner said of it.
    remarks: list[str]
    # What /proc/vmstat counted meanwhile.
    counted: dict[str, int]
    # Switches that have, before the command or after it, another value than the arm's.
    wrong: list[str]


def _state(lines: list[str], when: str, what: str) -> dict[str, str]:
    """Lines "WHEN WHAT NAME VALUE" of guest/arm."""
    found = [line.split() for line in lines if line.startswith(f"{when} {what} ")]
    return {words[2]: words[3] for words in found if len(words) == 4}


def boot(arm: Arm, name: str, command: list[str], options: list[str]) -> Boot:
    """Boot an arm and run a command in it."""
    folder = BUILD / "vm" / name
    kernel = BUILD / arm.flavour / "arch/x86/boot/bzImage"
    done = subprocess.run(
        [str(ROOT / "tests/vm/run"), "--quiet", "--kernel", str(kernel), "--name", name,
         "--out", str(folder), "--append", arm.parameters,
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
