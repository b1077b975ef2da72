# SPDX-License-Identifier: GPL-2.0-only
"""Cache lines that a page fault makes CPUs send each other, counted in QEMU.

CPUs take turns, and a tick of the timer comes after few faults of each: emulated CPUs are slow.
So what a fault reads and the tick writes counts for much more than it does where a CPU faults a
thousand times between two ticks.

Each arm has a boot of its own, which does the same as those of the others.  The state of the page
allocator is part of what a fault costs: free pages of a CPU are refilled from the zone all CPUs
share, with its lock, about 30 lines each time.  Before each phase every CPU gets the pages that it
will take, so that this is in no phase of any arm; the code is upstream's and the same in all.

A lock that lies across two lines moves both: struct vma_lock of 6.12 is not aligned.  In which
phases it does is chance, so that stock and 0 have a wide range in one VMA.
"""

from __future__ import annotations

import bisect
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import guest, qemu_plugin
from .guest import BenchError, Sample
from .report import EVENTS, Report, rows_of

OFF, ON = "0", "1"
STOCK = guest.STOCK

# Aim of the feature: in one VMA, at so many CPUs, at most so much of what stock takes.
AIM_CPUS = 64
AIM_TRANSFERS = 0.5

_SOURCE = guest.ROOT / "tests/bench/coherence.c"
_MARKS = guest.ROOT / "tests/bench/coherence/marks.h"
_PLUGIN = guest.ROOT / "tests/bench/coherence/plugin.c"

# All CPUs in turns on one thread of the host, and time is their instructions.
_VM = ["--icount", "4", "--append", "norandmaps", "--timeout", "7200"]

LAYOUTS = ("one_vma", "own_vma")
# What the plugin counts; the first three are transfers.
KINDS = ("read_miss", "write_miss", "upgrade", "dirty", "locked")
TRANSFERS = KINDS[:3]
_NONE = (0,) * len(KINDS)
# At most this part of the windows may be lost to interrupts.
_SPOILED = 0.2
# Functions with less than this a fault are left out.
_WORTH = {"transfers": 0.1, "locked": 0.5}
_MAX_CPUS = 64
# The guest's check needs threads on three of them.
_MIN_CPUS = 3

# What each phase of the guest's check has to give: by KINDS, for three windows, one of each thread.
CHECKS = {
    "check_store": (0, 3, 0, 3, 0),
    "check_store_and_loads": (2, 0, 1, 1, 0),
    "check_clean": (1, 2, 0, 2, 0),
    "check_locked": (0, 3, 0, 3, 9),
    "check_own": (0, 0, 0, 0, 0),
    "check_words": (0, 3, 0, 3, 0),
    "check_alias": (0, 3, 0, 3, 0),
    "check_crossing": (0, 6, 0, 6, 0),
}
CHECK_THREADS = 3


@dataclass
class Plan:
    """How much of it to do; PAGES is what each thread faults in a phase."""

    rounds: int = 5
    cpus: tuple[int, ...] = (4, 16, 64)
    mem: int = 1536
    pages: int = 30


QUICK = Plan(rounds=1, cpus=(4,), mem=512, pages=8)


@dataclass
class Phase:
    """What the plugin has counted between two marks."""

    windows: int = 0
    spoiled: int = 0
    faults: int = 0
    # Of each address, by KINDS.
    counts: dict[int, tuple[int, ...]] = field(default_factory=dict)


def add(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sums of tuples by KINDS."""
    return tuple(map(sum, zip(_NONE, *counts)))


def parse_results(text: str) -> dict[int, Phase]:
    """Read what the plugin has written; see write_results() there."""
    phases: dict[int, Phase] = defaultdict(Phase)
    lines = [line.split() for line in text.splitlines()]
    if not lines or lines[-1] != ["end"]:
        raise BenchError("it has not written its results to the end")
    for words in lines[:-1]:
        if words[0] == "phase":
            phase = phases[int(words[1])]
            values = dict(zip(words[2::2], map(int, words[3::2])))
            phase.windows, phase.spoiled = values["windows"], values["spoiled"]
            phase.faults = values["faults"]
        elif words[0] == "count":
            counts, addr = phases[int(words[1])].counts, int(words[2], 16)
            # The same address twice: an instruction that was patched.
            counts[addr] = add([counts.get(addr, _NONE), tuple(map(int, words[3:]))])
        elif words[1] != "0":
            raise BenchError(f"it could not see all: {' '.join(words)} (write_results() in its "
                             "source says what that is)")
    return dict(phases)


class Symbols:
    """The functions of a kernel, and where interrupts and page faults enter it."""

    def __init__(self, text: str) -> None:
        """TEXT is that of System.map."""
        found = sorted({(int(addr, 16), name) for addr, kind, name
                        in (line.split() for line in text.splitlines()) if kind in "tTwW"})
        self._addresses = [addr for addr, _ in found]
        self._names = [name for _, name in found]

    @classmethod
    def of(cls, kernel: Path) -> Symbols:
        """Read those of a kernel in its build folder."""
        path = kernel.resolve().parents[3] / "System.map"
        if not path.is_file():
            raise BenchError(f"no {path}: coherence needs a kernel where it was built, beside "
                             "its System.map")
        return cls(path.read_text("utf-8"))

    def name(self, addr: int) -> str:
        """Return the function that has the instruction at ADDR."""
        place = bisect.bisect(self._addresses, addr) - 1
        return self._names[place] if place >= 0 else "(program)"

    def entries(self) -> str:
        """Return what the plugin reads with entries=."""
        lines = []
        for addr, name in zip(self._addresses, self._names):
            if name == "asm_exc_page_fault":
                lines.append(f"fault {addr:x}\n")
            elif name.startswith("asm_sysvec_") or name in (
                    "asm_common_interrupt", "asm_spurious_interrupt", "asm_exc_nmi"):
                lines.append(f"interrupt {addr:x}\n")
        return "".join(lines)


def check_phase(name: str, windows: int, phase: Phase) -> str:
    """Return what is wrong with what was counted in a phase of WINDOWS, or nothing."""
    if phase.windows + phase.spoiled != windows:
        return f"{phase.windows} + {phase.spoiled} windows counted, there were {windows}"
    if phase.spoiled > _SPOILED * windows:
        return f"{phase.spoiled} of {windows} windows had an interrupt in them"
    if name not in CHECKS:
        if phase.faults != phase.windows:
            return f"{phase.faults} page faults in {phase.windows} windows, each has one"
        return ""
    if phase.faults:
        return f"{phase.faults} page faults, there are none"
    for kind, value, each in zip(KINDS, add(phase.counts.values()), CHECKS[name]):
        wanted = each * windows // CHECK_THREADS
        # Which thread's window was lost is not known: it had at most what three have.
        if not wanted - each * phase.spoiled <= value <= wanted:
            return f"{kind}: counted {value}, there were {wanted}"
    return ""


@dataclass
class Counted:
    """What was counted in one phase, by function."""

    metric: str
    arm: str
    windows: int
    functions: dict[str, tuple[int, ...]]

    def per_fault(self, kinds: Iterable[str], function: str = "") -> float:
        """Return how many of KINDS there were in a fault; of one FUNCTION, or of all."""
        total = self.functions.get(function, _NONE) if function else add(self.functions.values())
        return sum(total[KINDS.index(kind)] for kind in kinds) / self.windows


def _counted(boot: guest.Boot, phases: dict[int, Phase], symbols: Symbols) -> list[Counted]:
    """Put together what guest program and plugin say of each phase; check that it is right."""
    numbers = [sample for sample in boot.samples if sample.unit == "phase"]
    windows = [int(sample.value) for sample in boot.samples if sample.unit == "windows"]
    found = []
    for sample, many in zip(numbers, windows, strict=True):
        phase = phases.get(int(sample.value), Phase())
        wrong = check_phase(sample.metric, many, phase)
        if wrong:
            raise BenchError(f"{sample.metric}: {wrong}")
        functions: dict[str, tuple[int, ...]] = {}
        for addr, counts in phase.counts.items():
            name = symbols.name(addr)
            functions[name] = add([functions.get(name, _NONE), counts])
        found.append(Counted(sample.metric, sample.arm, phase.windows, functions))
    missing = set(CHECKS) - {counted.metric for counted in found}
    if missing:
        raise BenchError(f"not checked: {', '.join(sorted(missing))}")
    return found


@dataclass
class _Tools:
    program: Path
    plugin: Path


def _measure(kernel: Path, arm: str, cpus: int, plan: Plan,
             tools: _Tools) -> tuple[guest.Boot, list[Counted]]:
    """Boot KERNEL and run all phases."""
    name = f"coherence-{cpus}-{arm}"
    folder = guest.BUILD / "bench/vm"
    folder.mkdir(parents=True, exist_ok=True)
    entries, results = folder / f"{name}.entries", folder / f"{name}.counts"
    symbols = Symbols.of(kernel)
    entries.write_text(symbols.entries(), "utf-8")
    results.unlink(missing_ok=True)
    # A comma in a value is two for QEMU.
    argument = ",".join(str(value).replace(",", ",,") for value in (
        tools.plugin, f"out={results}", f"entries={entries}"))
    command = ["coherence", "--arms", arm, "--rounds", str(plan.rounds), "--threads", str(cpus),
               "--pages", str(plan.pages)]
    boot = guest.boot(kernel, tools.program, [command], name=name,
                      options=[*_VM, "--cpus", str(cpus), "--mem", str(plan.mem),
                               "--qemu-arg=-plugin", f"--qemu-arg={argument}"])
    try:
        text = results.read_text("utf-8")
    except FileNotFoundError:
        raise BenchError(f"{name}: the QEMU plugin has written nothing; see "
                         f"{folder / name}") from None
    try:
        return boot, _counted(boot, parse_results(text), symbols)
    except BenchError as err:
        raise BenchError(f"{name}: the QEMU plugin does not count right, so there are no figures: "
                         f"{err}; see {results}") from err


def _most(faults: list[Counted], kinds: Iterable[str], function: str) -> float:
    """Return the median of the arm in which a FUNCTION has the most of KINDS."""
    arms: dict[str, list[float]] = defaultdict(list)
    for phase in faults:
        arms[phase.arm].append(phase.per_fault(kinds, function))
    return max(map(statistics.median, arms.values()))


def _samples(cpus: int, counted: list[Counted]) -> Iterator[Sample]:
    """Return the figures of all phases that faulted, on one number of CPUs."""
    for layout in LAYOUTS:
        faults = [phase for phase in counted if phase.metric == f"faults_{layout}"]
        prefix = f"{layout}_{cpus}"
        for name, kinds in (("transfers", TRANSFERS), *((kind, (kind,)) for kind in KINDS)):
            for phase in faults:
                yield Sample(f"{prefix}_{name}", "per_fault", phase.arm, phase.per_fault(kinds))
        for name, kinds in (("transfers", TRANSFERS), ("locked", ("locked",))):
            most = {function: _most(faults, kinds, function)
                    for phase in faults for function in phase.functions}
            for function in sorted(most, key=lambda one: (-most[one], one)):
                if most[function] >= _WORTH[name]:
                    for phase in faults:
                        yield Sample(f"{prefix} {name} of a fault: {function}", EVENTS, phase.arm,
                                     phase.per_fault(kinds, function))


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    for cpus in plan.cpus:
        if not _MIN_CPUS <= cpus <= _MAX_CPUS:
            raise BenchError(f"--cpus {cpus}: coherence needs {_MIN_CPUS} to {_MAX_CPUS}")
    tools = _Tools(guest.compile_program(_SOURCE, _MARKS), qemu_plugin.compile_plugin(_PLUGIN))
    turns = [(kernels.ours, OFF), (kernels.ours, ON)]
    if kernels.stock:
        turns.append((kernels.stock, STOCK))
    samples: list[Sample] = []
    # Few CPUs first: they take the least time to find out that something is wrong.
    for cpus in sorted(set(plan.cpus)):
        counted: list[Counted] = []
        for kernel, arm in turns:
            boot, phases = _measure(kernel, arm, cpus, plan, tools)
            counted += phases
            if arm != STOCK:
                release = boot.release
        samples += _samples(cpus, counted)
    report = Report(release, f"{platform.machine()}, {os.cpu_count()} CPUs, QEMU TCG that counts "
                    "instructions; caches are a model, without a limit", rows_of(samples))
    report.aim_ratio(f"one_vma_{AIM_CPUS}_transfers", ON, STOCK, AIM_TRANSFERS)
    return report
