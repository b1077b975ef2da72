# SPDX-License-Identifier: GPL-2.0-only
"""Debian's programs in VMs: their own latency and throughput, and what the switches did.

Arms are stock, off and on (every switch on). Each round boots a VM for each program and arm; the
order of the arms is turned round from one round to the next.

Some programs run once more in each round, with huge pages for everybody and every switch on, on a
kernel that counts allocations: which of those in page faults were made without a lock.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from faultline.common import ROOT, Fail, shown
from faultline.flavour import X86
from faultline.vm.guest import Job
from faultline.vm.qemu import Machine
from lib import counters
from . import allocations, guest, rootfs
from .guest import OFF, ON, PEER, STOCK, BenchError, Sample
from .report import EVENTS, Report

# QEMU and arrays gain; redis is a control, and the JVM is what most users ask about.
SCENES = ("redis_flush", "redis_purge", "redis_bgsave", "redis_watched", "arrays_mapped",
          "arrays_freed", "jvm_g1", "jvm_zgc", "jvm_watched", "qemu_shared", "qemu_private",
          "qemu_hugetlb", "qemu_plugged")
# The most that the longest request may take, as a fraction of that on stock; unpaused: of those
# that had no pause for garbage collection, which no kernel makes shorter.
LONGEST = {"redis_watched": 0.2, "jvm_watched": 0.2, "jvm_watched_unpaused": 0.2,
           "jvm_g1": 1 / 3, "jvm_g1_unpaused": 1 / 3, "qemu_plugged": 0.2}
# Those of programs to whose memory huge pages matter.
TRACED = ("redis_flush", "jvm_g1", "jvm_zgc", "qemu_private")
# The least share of their allocations that faults make without a lock.
LOCK_FREE = 0.95
# No scene may get less than this fraction of its throughput on stock.
LEAST_RATE = 0.95

# The packages of each program, and those of all.
_COMMON = ("coreutils", "dash")
PACKAGES = {
    "redis": ("redis-server", "redis-tools"),
    "arrays": ("python3-numpy",),
    "jvm": ("default-jre-headless",),
    "qemu": ("python3", "qemu-system-x86"),
}

_FOLDER = ROOT / "tests/bench/workloads"
# The oldest Java that Debian's releases run.
_JAVA_RELEASE = "17"


def java(source: Path) -> Path:
    """Compile SOURCE, if it has changed; return the folder with its classes, whose name is java."""
    if not shutil.which("javac"):
        raise Fail("javac is missing: install default-jdk-headless")
    made = guest.BUILD / "bench/java"
    if made.exists() and made.stat().st_mtime > source.stat().st_mtime:
        return made
    new = made.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    result = subprocess.run(["javac", "--release", _JAVA_RELEASE, "-Xlint:all", "-Werror", "-d",
                             str(new), str(source)], capture_output=True, text=True, check=False)
    if result.returncode:
        shutil.rmtree(new)
        raise Fail(f"cannot compile {shown(source)}:\n{(result.stderr or result.stdout).strip()}")
    shutil.rmtree(made, ignore_errors=True)
    new.rename(made)
    return made


# Besides its packages, a program needs these files for the guest's folder /test.
_MADE: dict[str, Callable[[], Path]] = {
    "redis": lambda: guest.compile_program(_FOLDER / "client.c"),
    "jvm": lambda: java(_FOLDER / "Load.java"),
}

# A percentile is left out if fewer requests than this were made.
PERCENTILES = {"p50": (0.5, 2), "p99": (0.99, 100), "p99.9": (0.999, 1000)}

# In virtual time, an instruction takes a nanosecond.
_VIRTUAL_SLOWER = 10

# Page faults that took no lock; the others that were tried are spf_abort_*.
_LOCK_FREE = ("spf_zero", "spf_anon", "spf_cow", "spf_reuse", "spf_access", "spf_raced",
              "spf_hwpoison")
_NOT_TRIED = "not_tried"
# The line of a JVM's log about a safepoint, at its end.
_SAFEPOINT = re.compile(r" Safepoint .* Total: +(\d+) ns$")


@dataclass
class Plan:
    """Sizes of a run."""

    rounds: int = 3
    ms: int = 15000
    mib: int = 768
    cpus: int = 2
    mem: int = 4096
    virtual_time: bool = False
    # Count allocations, and measure nothing else.
    allocations: bool = False
    scenes: tuple[str, ...] = SCENES


QUICK = Plan(rounds=1, ms=5000, mib=128)


def programs(scenes: tuple[str, ...]) -> dict[str, list[str]]:
    """The scenes of each program."""
    found: dict[str, list[str]] = {}
    for scene in scenes:
        found.setdefault(scene.partition("_")[0], []).append(scene)
    return found


def boots(kernels: guest.Kernels, rounds: int) -> list[tuple[int, Path, str]]:
    """The round, kernel and arm of each boot; every second round is the other way round.

    Off and on share no boot: off runs on a kernel whose switches were never on.
    """
    found = []
    for number in range(rounds):
        turn = [(kernel, arm) for arm, kernel in kernels.others()]
        turn += [(kernels.ours, OFF), (kernels.ours, ON)]
        found += [(number, *boot) for boot in (reversed(turn) if number % 2 else turn)]
    return found


def percentile(ordered: list[float], fraction: float) -> float:
    """The smallest value that at least FRACTION of the values do not exceed."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def latencies(scene: str, arm: str, text: str) -> list[Sample]:
    """Percentiles of the latencies in microseconds, one per line."""
    try:
        ordered = sorted(float(line) for line in text.splitlines())
    except ValueError as err:
        raise BenchError(f"{scene}: the program wrote a bad latency ({err})") from err
    if not ordered:
        raise BenchError(f"{scene}: the program made no request in arm {arm}; give it more "
                         "time with --ms")
    found = [Sample(f"{scene}_{name}", "ms", arm, percentile(ordered, fraction) / 1000)
             for name, (fraction, least) in PERCENTILES.items() if len(ordered) >= least]
    return [*found, Sample(f"{scene}_max", "ms", arm, ordered[-1] / 1000)]


def rate(scene: str, arm: str, text: str) -> Sample:
    """The throughput; the text is the number of requests and the seconds they took."""
    try:
        requests, seconds = (float(word) for word in text.split())
        return Sample(f"{scene}_rate", "per_s", arm, requests / seconds)
    except (ValueError, ZeroDivisionError) as err:
        raise BenchError(f"{scene}: the program wrote a bad amount of work: "
                         f"'{text.strip()}'") from err


def safepoints(scene: str, arm: str, text: str) -> list[Sample]:
    """Percentiles of how long the JVM's safepoints took, with the way to them, from its log."""
    found = []
    for line in text.splitlines():
        match = _SAFEPOINT.search(line)
        if not match:
            raise BenchError(f"{scene}: the JVM wrote a bad line about a safepoint: '{line}'")
        found.append(f"{int(match[1]) / 1000}\n")
    return latencies(f"{scene}_safepoint", arm, "".join(found)) if found else []


def counts_in(text: str, what: str) -> dict[str, int]:
    """A name and a number per line: /proc/vmstat, or counts of the program itself."""
    try:
        return {name: int(value) for name, value in (line.split() for line in text.splitlines())}
    except ValueError as err:
        raise BenchError(f"the guest returned a bad {what} ({err})") from err


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Increments of the switches' counters and of pgfault."""
    return {name: value - before.get(name, 0) for name, value in after.items()
            if name == "pgfault" or name in counters.names()}


def with_locks(counts: dict[str, int]) -> dict[str, int]:
    """The faults that took locks, by reason."""
    groups = {name: value for name, value in counts.items()
              if name.startswith("spf_abort_") or name == "spf_skipped"}
    tried = sum(groups.values()) + sum(counts.get(name, 0) for name in _LOCK_FREE)
    groups[_NOT_TRIED] = max(0, counts.get("pgfault", 0) - tried)
    return groups


def fault_samples(scene: str, arm: str, rounds: list[dict[str, int]]) -> list[Sample]:
    """The shares of faults without locks and of the largest other group, per round."""
    groups: defaultdict[str, int] = defaultdict(int)
    for counts in rounds:
        for name, value in with_locks(counts).items():
            groups[name] += value
    largest = max(groups, key=lambda name: groups[name])
    found = []
    for counts in rounds:
        free, locked = sum(counts.get(name, 0) for name in _LOCK_FREE), with_locks(counts)
        total = free + sum(locked.values())
        if not total:
            continue
        found.append(Sample(f"{scene}_lock_free", "of_faults", arm, free / total))
        found.append(Sample(f"{scene}_largest_other:{largest.removeprefix('spf_')}", "of_faults",
                            arm, locked.get(largest, 0) / total))
    return found


def in_order(samples: list[Sample], scenes: tuple[str, ...]) -> list[Sample]:
    """By scene, figure and arm, though some arms may lack a percentile."""
    arms = (STOCK, PEER, OFF, ON)
    percentiles = (*PERCENTILES, "max")
    figures = (*percentiles, *(f"unpaused_{name}" for name in percentiles), "rate",
               *(f"safepoint_{name}" for name in percentiles))

    def place(sample: Sample) -> tuple[int, int, int]:
        scene = next(scene for scene in scenes if sample.metric.startswith(scene))
        figure = sample.metric[len(scene) + 1:]
        return (scenes.index(scene), arms.index(sample.arm) if figure not in figures else
                figures.index(figure) - len(figures), arms.index(sample.arm))

    return sorted(samples, key=place)


class _Lines:
    """The guest's output: what it runs now, on standard error."""

    def __init__(self) -> None:
        self._pending = b""

    def write(self, data: bytes) -> int:
        """Print whole lines as comments."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            print(f"#   {line.decode(errors='replace')}", file=sys.stderr)
        return len(data)

    def flush(self) -> None:
        """Called after each write."""
        sys.stderr.flush()


# See run.sh about the CPUs.
_TRACED_APPEND = ("transparent_hugepage=always", "maxcpus=1")


def _boot(kernel: Path, disk: Path, made: list[Path], scenes: list[str], arm: str,
          name: str, plan: Plan, traced: bool = False) -> tuple[Path, guest.Boot]:
    """Boot KERNEL and run SCENES; return the folder with their results."""
    # A minute for each start of a program on an emulated CPU of a busy host.
    slower = _VIRTUAL_SLOWER if plan.virtual_time else 1
    limit = 600 + len(scenes) * slower * (240 + 2 * plan.ms // 1000)
    machine = Machine(kernel, cpus=plan.cpus, mem=plan.mem, append=[
        *guest.switched(arm), *(_TRACED_APPEND if traced else ())], qemu_args=[
        "-drive", f"file={disk},if=none,id=disk,format=raw,readonly=on",
        "-device", "virtio-blk-pci,drive=disk"])
    if plan.virtual_time:
        # It sleeps while it waits for the disk: skipping to the next timer would take seconds of
        # virtual time.
        machine = replace(machine, icount=0, icount_sleep=True, cpus=1)
    job = Job(["sh", "workloads/run.sh", ",".join(scenes), arm, str(plan.ms), str(plan.mib),
               *(["traced"] if traced else [])],
              [*map(str, made), str(guest.SWITCHED), f"{_FOLDER}:/test/workloads"])
    report = guest.run(machine, job, name, limit, cast(BinaryIO, _Lines()))
    return report.out / "files", guest.Boot([], report.machine.release, report.choice.accel)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text("ascii")
    except (OSError, UnicodeDecodeError) as err:
        raise BenchError(f"the guest did not return {name} ({err})") from err


def read_results(folder: Path, scene: str, arm: str) -> tuple[list[Sample], dict[str, int]]:
    """The samples of one turn, and what its counters have grown by."""
    texts = {what: _read(folder, f"{scene}.{arm}.{what}")
             for what in ("latency", "work", "before", "after")}
    samples = [*latencies(scene, arm, texts["latency"]), rate(scene, arm, texts["work"])]
    growth = grown(*(counts_in(texts[when], f"{scene}.{arm}.{when}")
                     for when in ("before", "after")))
    if (folder / f"{scene}.{arm}.unpaused").exists():
        samples += latencies(f"{scene}_unpaused", arm, _read(folder, f"{scene}.{arm}.unpaused"))
    if (folder / f"{scene}.{arm}.safepoints").exists():
        samples += safepoints(scene, arm, _read(folder, f"{scene}.{arm}.safepoints"))
    name = f"{scene}.{arm}.facts"
    if (folder / name).exists():
        growth |= counts_in(_read(folder, name), name)
    return samples, growth


def read_allocations(folder: Path, scene: str, arm: str) -> list[Sample]:
    """The shares of allocations without a lock in one turn, and how many there were."""
    counts = allocations.kinds(*(
        allocations.histogram(_read(folder, name), name)
        for name in (f"{scene}.{arm}.allocations-{when}" for when in ("before", "after"))))
    shares = {"": allocations.lock_free(counts),
              "_but_files": allocations.lock_free(
                  counts, (allocations.FILE, allocations.SHARED))}
    found = [Sample(f"{scene}_allocated_lock_free{name}", "of_allocs", arm, share)
             for name, share in shares.items() if share is not None]
    return [*found, *(Sample(f"{scene} allocated {kind}", EVENTS, arm, counts[kind])
                      for kind in sorted(counts))]


def _traced(kernel: Path, disk: Path, made: list[Path], scenes: list[str], name: str,
            plan: Plan) -> guest.Boot:
    """Run the scenes in which allocations are counted; return only these counts."""
    found = guest.Boot()
    for number in range(plan.rounds if scenes else 0):
        folder, boot = _boot(kernel, disk, made, scenes, ON, f"workloads-{name}-{number}-traced",
                             plan, traced=True)
        samples = [sample for scene in scenes for sample in read_allocations(folder, scene, ON)]
        found = replace(boot, samples=found.samples + samples)
    return found


def run(kernels: guest.Kernels, plan: Plan) -> Report:
    """Boot the kernels, measure, and return the report."""
    if plan.allocations and not kernels.traced:
        raise BenchError("--allocations needs the kernel microvm-trace: tools/fl build "
                         "microvm-trace")
    if kernels.arch != X86:
        raise BenchError("workloads takes its programs from the host's Debian, which is for "
                         "another architecture than the kernel")
    disks = {name: rootfs.image((*_COMMON, *PACKAGES[name])) for name in programs(plan.scenes)}
    made = {name: [_MADE[name]()] if name in _MADE else [] for name in programs(plan.scenes)}
    samples: list[Sample] = []
    counts: dict[tuple[str, str], list[dict[str, int]]] = {}
    ours = guest.Boot()
    for name, scenes in programs(plan.scenes).items():
        for number, kernel, arm in boots(kernels, 0 if plan.allocations else plan.rounds):
            folder, boot = _boot(kernel, disks[name], made[name], scenes, arm,
                                 f"workloads-{name}-{number}-{arm}", plan)
            ours = boot if kernel == kernels.ours else ours
            for scene in scenes:
                found, growth = read_results(folder, scene, arm)
                samples += found
                counts.setdefault((scene, arm), []).append(growth)
        if kernels.traced and not plan.virtual_time:
            boot = _traced(kernels.traced, disks[name], made[name],
                           [scene for scene in scenes if scene in TRACED], name, plan)
            samples += boot.samples
            ours = ours if ours.release else boot
    for (scene, arm), rounds in counts.items():
        samples += fault_samples(scene, arm, rounds) if arm == ON else []
        samples += [Sample(f"{scene} {counter}", EVENTS, arm, value)
                    for growth in rounds for counter, value in growth.items()]
    report = Report.of(ours, in_order(samples, plan.scenes),
                       ", virtual time" if plan.virtual_time else "")
    for scene in plan.scenes:
        if not plan.allocations:
            report.aim_least(f"{scene}_rate", ON, STOCK, LEAST_RATE)
        for requests in (scene, f"{scene}_unpaused"):
            if requests in LONGEST and not plan.allocations:
                report.aim_ratio(f"{requests}_max", ON, STOCK, LONGEST[requests])
        if scene in TRACED and kernels.traced:
            for end in ("", "_but_files"):
                report.aim_best(f"{scene}_allocated_lock_free{end}", [ON], LOCK_FREE)
    return report
