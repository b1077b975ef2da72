# SPDX-License-Identifier: GPL-2.0-only
"""Compile a guest program, boot a kernel with it, collect its samples."""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from faultline.common import ROOT, Fail, Paths, shown
from faultline.flavour import X86, Arch, find
from faultline.vm import run as vm
from faultline.vm.guest import Job
from faultline.vm.qemu import Machine
from lib import switches

BUILD = Paths.from_env().build
# For mm/gup_test.h.
_TREE = Paths.from_env().tree
# Every guest program is compiled with these; the second is shared with the selftests.
SELFTESTS = ROOT / "kernel/overlay/tools/testing/selftests/mm/faultline"
_BENCH = ROOT / "rollout/bench"
SWITCHED = ROOT / "tests/bench/switched.sh"
TABLE = ROOT / "sysctl/switches"
# Time limit of a boot.
SECONDS = 7200
_UTILS = (_BENCH / "bench_util.c", SELFTESTS / "faultline_util.c")


class BenchError(Fail):
    """An error that the user has to fix; the text says what."""


@dataclass
class Kernels:
    """The kernels to compare; all but OURS may be missing."""

    ours: Path
    stock: Path | None
    # The newest upstream kernel.
    peer: Path | None = None
    # Ours, which counts allocations as well.
    traced: Path | None = None
    # Their architecture.
    arch: Arch = X86

    def others(self) -> list[tuple[str, Path]]:
        """Arm and image of the kernels without our switches that are there."""
        return [(arm, kernel) for arm, kernel in ((STOCK, self.stock), (PEER, self.peer))
                if kernel]

    def boots(self, arms: str) -> list[tuple[str, Path, str]]:
        """Arms, image and end of the name of each boot: ours with ARMS, then the others."""
        return [(arms, self.ours, ""), *((arm, kernel, f"-{arm}") for arm, kernel in self.others())]


@dataclass(frozen=True)
class Sample:
    """One line "sample METRIC UNIT ARM VALUE" of a guest program."""

    metric: str
    unit: str
    arm: str
    value: float


@dataclass
class Boot:
    """The results of one boot, and the release of its kernel."""

    samples: list[Sample] = field(default_factory=list)
    release: str = ""
    accel: str = ""


def compile_program(source: Path, arch: Arch = X86) -> Path:
    """Link SOURCE statically, so that it runs in any initramfs; return the program.

    CC and CFLAGS are those of the environment; tests that want no warning set CFLAGS=-Werror.
    """
    compiler = f"{arch.cross}gcc" if arch.cross else os.environ.get("CC") or "cc"
    if not shutil.which(compiler.split()[0]):
        group, other = (f" {arch.deps}", "") if arch.cross else ("", ", or set CC")
        raise BenchError(f"no C compiler '{compiler}'; run packaging/build-deps/install"
                         f"{group}{other}")
    program = BUILD / "bench" / "-".join(filter(None, (source.stem, arch.name)))
    program.parent.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in (
        source, *_UTILS, *(util.with_suffix(".h") for util in _UTILS)))
    if program.exists() and program.stat().st_mtime > newest:
        return program
    # Two tests may compile it at the same time.
    made = program.with_suffix(f".{os.getpid()}")
    command = [*compiler.split(), "-D_GNU_SOURCE", "-O2", "-Wall", "-static", "-pthread",
               *os.environ.get("CFLAGS", "").split(), f"-I{SELFTESTS}", f"-I{_BENCH}",
               "-idirafter", str(_TREE),
               "-o", str(made), str(source), *map(str, _UTILS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BenchError(f"cannot compile {shown(source)}:\n{result.stderr.strip()}")
    made.rename(program)
    return program


def compile_main() -> int:
    """Compile a program for a script, and print its path."""
    parser = argparse.ArgumentParser(description=compile_main.__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("flavour", nargs="?", default="microvm", help="of the kernel that runs it")
    args = parser.parse_args()
    print(compile_program(args.source, find(args.flavour).arch))
    return 0


def command(program: str, arms: str, rounds: int, *scenes: str, **options: str | int) -> list[str]:
    """The words of a guest program; options have a dash for each underscore of their name."""
    given = [word for name, value in options.items()
             for word in (f"--{name.replace('_', '-')}", str(value))]
    return [program, "--arms", arms, "--rounds", str(rounds), *given, *scenes]


def parse_samples(text: str) -> list[Sample]:
    """Extract the samples from the output of a guest program."""
    samples = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] != ["sample"]:
            continue
        try:
            metric, unit, arm, value = words[1:]
            samples.append(Sample(metric, unit, arm, float(value)))
        except ValueError as err:
            raise BenchError(f"the guest program printed a bad sample: '{line}'") from err
    return samples


class _Output(io.BytesIO):
    """The output of a guest program; a terminal shows how many samples it has."""

    def flush(self) -> None:
        """Called after each write."""
        if sys.stderr.isatty():
            count = self.getvalue().count(b"\nsample ")
            print(f"\r# {count} samples", end="", file=sys.stderr, flush=True)


def counting(kernel: Path, mem: int, *append: str) -> Machine:
    """A machine with one CPU and no randomness: two boots of a kernel give the same counts."""
    return Machine(kernel, icount=0, cpus=1, mem=mem, append=list(append))


def run(machine: Machine, job: Job, name: str, timeout: float, output: BinaryIO) -> vm.Report:
    """Boot a machine for a job that must succeed."""
    out = BUILD / "bench/vm" / name
    print(f"# {name}: {machine.kernel}", file=sys.stderr, flush=True)
    report = vm.run(machine, job, out, timeout=timeout, quiet=True, output=output)
    report.print(output)
    if report.status:
        raise BenchError(f"{name}: the VM ended with exit status {report.status}; "
                         f"logs are in {out}")
    return report


def boot(machine: Machine, program: Path, commands: list[list[str]], name: str) -> Boot:
    """Boot a machine, run COMMANDS one after another, return all samples."""
    script = " && ".join(shlex.join(command) for command in [["sh", SWITCHED.name], *commands])
    output = _Output()
    # The name of a program for another architecture says so on the host.
    files = [f"{program}:{commands[0][0]}", str(SWITCHED), str(TABLE)]
    report = run(machine, Job(["sh", "-c", script], files), name, SECONDS, output)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    text = output.getvalue().decode(errors="replace")
    samples = parse_samples(text)
    if not samples:
        raise BenchError(f"{name}: the guest program printed no samples; logs are in {report.out}")
    release = re.search(r"^release (.+)$", text, re.M)
    return Boot(samples, release[1] if release else "", report.choice.accel)


OFF, ON = "off", "on"
STOCK = "stock"
PEER = "peer"
ALONE = "alone_"


def switched(arm: str) -> list[str]:
    """Kernel parameters of an arm: every switch off, or on, or as the kernel has it."""
    values = {OFF: switches.OFF, ON: switches.ON}.get(arm)
    return [switches.parameters(values)] if values else []


def prefixed(prefix: str, samples: Iterable[Sample]) -> list[Sample]:
    """The samples under metrics of their own, which do not mix with those of other boots."""
    return [replace(sample, metric=prefix + sample.metric) for sample in samples]


def with_stock(kernels: Kernels, arms: str, alone: tuple[str, ...],
               booted: Callable[[Path, str, str], Boot]) -> list[Boot]:
    """Boot with all ARMS, then with each of ALONE and each other kernel, if there is one.

    BOOTED takes the kernel, the arms and the end of the boot's name.  The samples of the second
    kind are prefixed.
    """
    boots = [booted(kernels.ours, arms, "")]
    others = kernels.others()
    for arm, kernel in [*((arm, kernels.ours) for arm in alone), *others] if others else []:
        boots.append(booted(kernel, arm, f"-{arm}"))
        boots[-1].samples = prefixed(ALONE, boots[-1].samples)
    return boots


def samples_of(boots: Iterable[Boot]) -> list[Sample]:
    """The samples of all boots."""
    return [sample for boot in boots for sample in boot.samples]
