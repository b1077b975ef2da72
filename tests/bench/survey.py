# SPDX-License-Identifier: GPL-2.0-only
"""How long each operation on memory holds up other threads: stock, all switches off, all on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.common import ROOT
from faultline.vm.qemu import Machine
from . import guest, picture
from .guest import OFF, ON, PEER, STOCK
from .report import Report, table

# The longest wait of another thread; of a hundred waits, the longest but one; the longest as a
# part of the operation's time.
WAIT, P99, RATIO = "_wait_max", "_wait_p99", "_wait_ratio"
# The aim of each operation that a switch is for.
LONGEST = 0.02
HELPED = ("munmap", "dontneed", "free", "cold", "map_populate", "populate_write", "populate_read",
          "mlock_empty", "fixed_none", "mlock", "munlock", "mlockall", "smaps", "smaps_rollup",
          "numa_maps", "clear_refs", "soft_dirty", "uffd_wp", "uffd_close", "pin", "mbind_move",
          "munmap_small")
# For people.
CALLS = {
    "munmap": "munmap", "dontneed": "MADV_DONTNEED", "free": "MADV_FREE", "cold": "MADV_COLD",
    "map_populate": "MAP_POPULATE", "populate_write": "MADV_POPULATE_WRITE",
    "populate_read": "MADV_POPULATE_READ", "mlock_empty": "mlock, not there yet",
    "mlock": "mlock", "munlock": "munlock", "mlockall": "mlockall",
    "fixed_none": "MAP_FIXED, PROT_NONE", "fixed_rw": "MAP_FIXED, writable",
    "mprotect_r": "mprotect to R", "mprotect_rw": "mprotect R to RW",
    "mprotect_none": "mprotect to NONE", "mremap": "mremap that moves", "fork": "fork",
    "smaps": "smaps", "smaps_rollup": "smaps_rollup", "numa_maps": "numa_maps",
    "clear_refs": "clear_refs, 1", "soft_dirty": "clear_refs, 4",
    "uffd_wp": "UFFDIO_WRITEPROTECT", "uffd_close": "close, userfaultfd",
    "pin": "io_uring buffers", "mbind_move": "mbind, MOVE",
    "munmap_small": "munmap of 30,000", "fork_small": "fork with 30,000",
    "maps_small": "maps of 30,000", "smaps_small": "smaps of 30,000"}
ARMS = {STOCK: picture.Arm("upstream 6.12", "#8c959f", "#6e7681"),
        PEER: picture.Arm("newest upstream", "#d4a72c", "#bb8009"),
        OFF: picture.Arm("Faultline, off", "#54aeff", "#388bfd"),
        ON: picture.Arm("Faultline, on", "#1a7f37", "#3fb950")}

# Of the program, between two operations.
SETTLE_MS = 30
# In virtual time, an instruction takes 2^SHIFT ns.  QEMU gives a CPU that does not wait turns of
# 100 ms: with fewer instructions in a turn, shorter waits can be told apart, and ticks of the
# kernel take a larger part of it.
SHIFT = 6
VIRTUAL = ", 1 ns per instruction"

SOURCE = ROOT / "rollout/bench/survey.c"
SCENES = tuple(re.findall(r'^\t\{ "(\w+)", ', SOURCE.read_text("utf-8"), re.M))
# Operations on many small mappings, whatever the size and kind of memory.
SMALL = tuple(name for name in SCENES if name.endswith("_small"))
# Kinds of memory.
KINDS = {"4k": "4 KiB pages", "thp": "transparent huge pages", "hugetlb": "huge pages of hugetlb",
         "file": "a shared file in memory"}


@dataclass
class Plan:
    """Sizes of a run; kinds but the first are measured at the last size."""

    rounds: int = 3
    mib: tuple[int, ...] = (512, 2048)
    kinds: tuple[str, ...] = tuple(KINDS)
    cpus: int = 2
    # mbind moves the memory to one of two nodes.
    mem: int = 6144
    # The clock counts the instructions of all CPUs, which take turns.
    virtual_time: bool = False
    scenes: tuple[str, ...] = SCENES

    def groups(self) -> list[tuple[int, str]]:
        """Size and kind of memory of each table."""
        return [*((mib, self.kinds[0]) for mib in self.mib),
                *((self.mib[-1], kind) for kind in self.kinds[1:])]


QUICK = Plan(rounds=1, mib=(16,), mem=1024)


@dataclass(frozen=True)
class Group:
    """The operations on memory of one size and kind."""

    # How the metrics of all end; empty for small mappings.
    end: str
    operations: tuple[str, ...]

    @property
    def words(self) -> str:
        """The memory."""
        if not self.end:
            return "small mappings"
        _, mib, kind = self.end.split("_")
        size = int(mib.removesuffix("m"))
        return f"{size // 1024} GiB of {KINDS[kind]}" if size % 1024 == 0 else \
            f"{size} MiB of {KINDS[kind]}"


class Survey(Report):
    """A line for each operation, and a picture for each kind of memory."""

    def arms(self) -> list[str]:
        """In the order of ARMS."""
        found = dict.fromkeys(row.arm for row in self.rows)
        return [arm for arm in ARMS if arm in found]

    def groups(self) -> list[Group]:
        """In the order of the run; small mappings come last."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            match = re.fullmatch(rf"(\w+?)(_\d+m_\w+)?{WAIT}", row.metric)
            if match:
                found.setdefault(match[2] or "", {})[match[1]] = None
        ends = sorted(found, key=lambda end: not end)
        return [Group(end, tuple(found[end])) for end in ends]

    def text(self) -> str:
        """Return the human-readable tables."""
        lines = [f"kernel:  {self.kernel}", f"machine: {self.machine}", "",
                 "The longest wait of a thread that maps and unmaps a page beside the operation,",
                 "the 99th percentile of its waits, and the longest one as a part of the",
                 "operation's time (medians)."]
        arms = self.arms()
        for group in self.groups():
            body = []
            for name in group.operations:
                cells = [name]
                for arm in arms:
                    for metric, digits in ((WAIT, 1), (P99, 1), (RATIO, 3)):
                        value = self.median(f"{name}{group.end}{metric}", arm)
                        cells.append("-" if value is None else f"{value:.{digits}f}")
                body.append(cells)
            head = [group.words, *(text for arm in arms for text in (f"{arm}, ms", "p99", "part"))]
            lines += ["", *table(head, body, left=1)]
        return "\n".join([*lines, *self.verdicts()])

    def page(self) -> str:
        """Return the tables in Markdown: the part, the longest wait and p99, each for all arms."""
        arms = self.arms()
        columns = [(metric, words, digits, arm) for metric, words, digits in (
            (RATIO, "part,", 3), (WAIT, "ms,", 1), (P99, "p99,", 1)) for arm in arms]
        lines: list[str] = []
        for group in self.groups():
            lines += ["", f"| {group.words} | " + " | ".join(
                f"{words} {arm}" for _, words, _, arm in columns) + " |",
                      "|---" * (len(columns) + 1) + "|"]
            for name in group.operations:
                cells = [self.median(f"{name}{group.end}{metric}", arm)
                         for metric, _, _, arm in columns]
                lines.append(f"| {CALLS[name]} | " + " | ".join(
                    "-" if value is None else f"{value:.{digits}f}"
                    for value, (_, _, digits, _) in zip(cells, columns)) + " |")
        return "\n".join(lines[1:]) + "\n"

    def _row(self, name: str, end: str) -> picture.Row:
        """The bars of an operation."""
        bars = []
        for arm in self.arms():
            wait, part = (self.median(f"{name}{end}{metric}", arm) for metric in (WAIT, RATIO))
            if wait is not None and part is not None:
                # The other thread may still wait for its CPU when the operation is over.
                bars.append(picture.Bar(arm, min(part, 1.0), f"{_digits(wait)} ms",
                                        f"{CALLS[name]}, {ARMS[arm].words}: {_digits(wait)} ms, "
                                        f"{part:.3f} of its time"))
        return picture.Row(CALLS[name], tuple(bars))

    def pictures(self) -> dict[str, str]:
        """SVG by the end of its name: one for each size and kind, small mappings with the first."""
        groups = [group for group in self.groups() if group.end]
        small = [group for group in self.groups() if not group.end]
        made = {}
        for group in groups:
            shown = [group, *(small if group is groups[0] else [])]
            rows = []
            for helped, words in ((True, "with a switch"), (False, "as upstream")):
                chosen = [self._row(name, one.end) for one in shown for name in one.operations
                          if (name in HELPED) == helped]
                rows += [picture.Row(words), *chosen] if chosen else []
            made[group.end[1:].replace("_", "-")] = picture.draw(
                f"How long a thread waits while another one works on {group.words}",
                "The longest wait, in ms, and as a part of the operation's time: a full bar is "
                f"all of it. {self.machine}, {self.kernel}",
                {arm: ARMS[arm] for arm in self.arms()}, rows)
        return made


def _digits(value: float) -> str:
    """Two digits at least."""
    return f"{value:.{2 if value < 1 else 1 if value < 10 else 0}f}"


def _samples(boots: Iterable[guest.Boot], plan: Plan) -> list[guest.Sample]:
    """The samples; virtual times are instructions, as if one took 1 ns."""
    return [replace(sample, value=sample.value / (1 << SHIFT))
            if plan.virtual_time and sample.unit == "ms" else sample
            for sample in guest.samples_of(boots)]


def report_of(boots: list[guest.Boot], plan: Plan) -> Survey:
    """The report of a run, and its aims; the first boot is one of our kernel."""
    report = Survey.of(boots[0], _samples(boots, plan), VIRTUAL if plan.virtual_time else "")
    for end in (*(f"_{mib}m_{plan.kinds[0]}" for mib in plan.mib), ""):
        for name in HELPED:
            if name in plan.scenes and (name in SMALL) == (not end):
                report.aim_value(f"{name}{end}{RATIO}", ON, LONGEST)
    return report


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    program = guest.compile_program(SOURCE, kernels.arch)

    def boot(kernel: Path, arms: str, end: str, group: tuple[int, str]) -> guest.Boot:
        mib, kind = group
        scenes = [name for name in plan.scenes if name not in SMALL or group == plan.groups()[0]]
        # On one CPU, the other thread would wait for that as well.
        command = guest.command("survey", arms, plan.rounds, *scenes, size=mib, fill=kind,
                                **({"cpus": "0,1"} if plan.cpus > 1 else {}),
                                # As many instructions for deferred work of the kernel.
                                **({"settle": SETTLE_MS << SHIFT} if plan.virtual_time else {}),
                                switches=guest.TABLE.name)
        # Scans for NUMA balancing are made by a thread of the process, in its own time.
        machine = Machine(kernel, cpus=plan.cpus, mem=plan.mem,
                          append=["numa=fake=2", "numa_balancing=disable"])
        if plan.virtual_time:
            machine = replace(machine, icount=SHIFT, icount_fair=True)
        return guest.boot(machine, program, [command], f"survey-{mib}m-{kind}{end}")

    boots = [boot(kernel, arms, end, group) for group in plan.groups()
             if group == plan.groups()[0] or set(plan.scenes) - set(SMALL)
             for arms, kernel, end in kernels.boots(f"{OFF},{ON}")]
    return report_of(boots, plan)
