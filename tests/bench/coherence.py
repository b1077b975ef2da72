# SPDX-License-Identifier: GPL-2.0-only
"""Cache lines that a page fault moves between CPUs, counted in QEMU.

CPUs take turns, and as emulated CPUs are slow, a timer tick comes after only a few faults of each.
So lines that a fault reads and the tick writes weigh much more than on a machine where a CPU
faults a thousand times between two ticks.

Each arm runs the same work in a separate boot.  The state of the page allocator affects the cost
of a fault: the free pages of a CPU are refilled from the shared zone, under its lock, which moves
about 30 lines each time.  To keep refills out of the phases of all arms, every CPU gets the pages
that it will use before each phase; this code is upstream's and the same in all arms.

A lock that straddles two lines moves both: struct vma_lock of 6.12 is not aligned.  Whether it
does varies from phase to phase, so stock and 0 have a wide range in one VMA.
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

from faultline.common import ROOT
from . import guest, qemu_plugin
from .guest import BenchError, Sample
from .report import EVENTS, Report, rows_of

OFF, ON = "0", "1"
STOCK = guest.STOCK

# Aim of the feature: in one VMA, with this many CPUs, at most this fraction of stock's transfers.
AIM_CPUS = 64
AIM_TRANSFERS = 0.5

_SOURCE = ROOT / "tests/bench/coherence.c"
_MARKS = ROOT / "tests/bench/coherence/marks.h"
_PLUGIN = ROOT / "tests/bench/coherence/plugin.c"

# All CPUs take turns on one host thread, and the clock counts their instructions.
_VM = ["--icount", "4", "--append", "norandmaps", "--timeout", "7200"]

LAYOUTS = ("one_vma", "own_vma")
# The events that the plugin counts; the first three are transfers.
KINDS = ("read_miss", "write_miss", "upgrade", "dirty", "locked")
TRANSFERS = KINDS[:3]
_NONE = (0,) * len(KINDS)
# At most this fraction of the windows may be lost to interrupts.
_SPOILED = 0.2
# Functions with less than this per fault are left out.
_WORTH = {"transfers": 0.1, "locked": 0.5}
_MAX_CPUS = 64
# The guest's check needs threads on three of them.
_MIN_CPUS = 3

# Expected results of each phase of the guest's check: by KINDS, for three windows, one per thread.
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
    """Sizes of a run; PAGES is the number of faults of each thread per phase."""

    rounds: int = 5
    cpus: tuple[int, ...] = (4, 16, 64)
    mem: int = 1536
    pages: int = 30


QUICK = Plan(rounds=1, cpus=(4,), mem=512, pages=8)


@dataclass
class Phase:
    """The counts of the plugin between two marks."""

    windows: int = 0
    spoiled: int = 0
    faults: int = 0
    # Per address, by KINDS.
    counts: dict[int, tuple[int, ...]] = field(default_factory=dict)


def add(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the element-wise sums of tuples by KINDS."""
    return tuple(map(sum, zip(_NONE, *counts)))


def parse_results(text: str) -> dict[int, Phase]:
    """Parse the output of the plugin; see write_results() there."""
    phases: dict[int, Phase] = defaultdict(Phase)
    lines = [line.split() for line in text.splitlines()]
    if not lines or lines[-1] != ["end"]:
        raise BenchError("it has not written its results up to the end")
    for words in lines[:-1]:
        if words[0] == "phase":
            phase = phases[int(words[1])]
            values = dict(zip(words[2::2], map(int, words[3::2])))
            phase.windows, phase.spoiled = values["windows"], values["spoiled"]
            phase.faults = values["faults"]
        elif words[0] == "count":
            counts, addr = phases[int(words[1])].counts, int(words[2], 16)
            # The same address twice: a patched instruction.
            counts[addr] = add([counts.get(addr, _NONE), tuple(map(int, words[3:]))])
        elif words[1] != "0":
            raise BenchError(f"it missed something: {' '.join(words)} (see write_results() in its "
                             "source)")
    return dict(phases)


class Symbols:
    """The functions of a kernel, and its entry points for interrupts and page faults."""

    def __init__(self, text: str) -> None:
        """TEXT is the contents of System.map."""
        found = sorted({(int(addr, 16), name) for addr, kind, name
                        in (line.split() for line in text.splitlines()) if kind in "tTwW"})
        self._addresses = [addr for addr, _ in found]
        self._names = [name for _, name in found]

    @classmethod
    def of(cls, kernel: Path) -> Symbols:
        """Read the symbols of a kernel in its build folder."""
        path = kernel.resolve().parents[3] / "System.map"
        if not path.is_file():
            raise BenchError(f"no {path}: coherence needs a kernel in its build folder, with its "
                             "System.map")
        return cls(path.read_text("utf-8"))

    def name(self, addr: int) -> str:
        """Return the function that contains ADDR."""
        place = bisect.bisect(self._addresses, addr) - 1
        return self._names[place] if place >= 0 else "(program)"

    def entries(self) -> str:
        """Return the contents of the plugin's entries= file."""
        lines = []
        for addr, name in zip(self._addresses, self._names):
            if name == "asm_exc_page_fault":
                lines.append(f"fault {addr:x}\n")
            elif name.startswith("asm_sysvec_") or name in (
                    "asm_common_interrupt", "asm_spurious_interrupt", "asm_exc_nmi"):
                lines.append(f"interrupt {addr:x}\n")
        return "".join(lines)


def check_phase(name: str, windows: int, phase: Phase) -> str:
    """Return what is wrong with the counts of a phase of WINDOWS, or ""."""
    if phase.windows + phase.spoiled != windows:
        return f"{phase.windows} + {phase.spoiled} windows counted, but there were {windows}"
    if phase.spoiled > _SPOILED * windows:
        return f"{phase.spoiled} of {windows} windows had an interrupt"
    if name not in CHECKS:
        if phase.faults != phase.windows:
            return f"{phase.faults} page faults in {phase.windows} windows, expected one each"
        return ""
    if phase.faults:
        return f"{phase.faults} page faults, expected none"
    for kind, value, each in zip(KINDS, add(phase.counts.values()), CHECKS[name]):
        wanted = each * windows // CHECK_THREADS
        # The lost window may be any thread's: it had at most the counts of three.
        if not wanted - each * phase.spoiled <= value <= wanted:
            return f"{kind}: counted {value}, but there were {wanted}"
    return ""


@dataclass
class Counted:
    """The counts of one phase, by function."""

    metric: str
    arm: str
    windows: int
    functions: dict[str, tuple[int, ...]]

    def per_fault(self, kinds: Iterable[str], function: str = "") -> float:
        """Return the number of KINDS per fault, in one FUNCTION or in all."""
        total = self.functions.get(function, _NONE) if function else add(self.functions.values())
        return sum(total[KINDS.index(kind)] for kind in kinds) / self.windows


def _counted(boot: guest.Boot, phases: dict[int, Phase], symbols: Symbols) -> list[Counted]:
    """Combine the output of guest program and plugin for each phase, and check it."""
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
    # QEMU wants commas in values doubled.
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
        raise BenchError(f"{name}: the QEMU plugin wrote no results; see "
                         f"{folder / name}") from None
    try:
        return boot, _counted(boot, parse_results(text), symbols)
    except BenchError as err:
        raise BenchError(f"{name}: the QEMU plugin miscounts, so there are no figures: "
                         f"{err}; see {results}") from err


def _most(faults: list[Counted], kinds: Iterable[str], function: str) -> float:
    """Return the highest median, over all arms, of KINDS in a FUNCTION."""
    arms: dict[str, list[float]] = defaultdict(list)
    for phase in faults:
        arms[phase.arm].append(phase.per_fault(kinds, function))
    return max(statistics.median(values) for values in arms.values())


def _samples(cpus: int, counted: list[Counted]) -> Iterator[Sample]:
    """Return the figures of all phases with faults, for one number of CPUs."""
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
    turns += [(kernel, arm) for arm, kernel in kernels.others()]
    samples: list[Sample] = []
    # Few CPUs first: they show errors soonest.
    for cpus in sorted(set(plan.cpus)):
        counted: list[Counted] = []
        for kernel, arm in turns:
            boot, phases = _measure(kernel, arm, cpus, plan, tools)
            counted += phases
            if kernel == kernels.ours:
                release = boot.release
        samples += _samples(cpus, counted)
    report = Report(release, f"{platform.machine()}, {os.cpu_count()} CPUs, QEMU TCG that counts "
                    "instructions; caches are a model of unlimited size", rows_of(samples))
    report.aim_ratio(f"one_vma_{AIM_CPUS}_transfers", ON, STOCK, AIM_TRANSFERS)
    return report
