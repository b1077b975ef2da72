# SPDX-License-Identifier: GPL-2.0-only
"""The program `lab bench`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from faultline.flavour import FLAVOURS, find
from faultline.vm.arch import identify
from . import (hugetlb, hugetlb_zero, micro, munmap, pmd_clear, spf, survey, survey_cost,
               survey_time, workloads)
from .guest import BUILD, BenchError, Kernels
from .report import Report

_ABOUT = """\
Measure a feature in VMs and print a table. The numbers also go to
build/bench/NAME.json (--quick: NAME-quick.json; --scenes: NAME-SCENE.json;
--flavour: NAME-FLAVOUR.json), and pictures to .svg files beside it. A missed aim is
marked in the table, but is not an error.
"""

_MORE = """\
Every figure is a median with its range. Without KVM, times are those of an
emulated machine on this host: compare arms within a run, not runs. Ratios
(stall to the time of the munmap itself), costs (instructions, counted on one
emulated CPU) and waits in "virtual" time (instructions of all emulated CPUs,
which take turns) do not depend on the load of the host. Throughput does: if its
range is as wide as its median, a verdict on it is a guess.

spf: p99 is over the actual operations; if each of them waits for a second,
these are few. any_p99 also includes the operations that other writers would
have started meanwhile, one after each pause of the writer. Throughput uses no
more virtual CPUs than the host has real ones: with more, results of the same
kernel vary by a factor of two. It needs an idle host. huge and compact: waits of
a thread that changes the mapping in which others fault huge pages, and of one that
maps and unmaps a page elsewhere, on one emulated CPU: us are thousands of
instructions. These two have a priority, so they wait for locks and for nothing else.

micro: our own programs with the metrics of will-it-scale, pft and vm-scalability
by their names; rollout/bench/micro.c describes them. In each round, stock, all
switches off and all switches on are booted once, in alternating order. cost is the
number of instructions per operation, on one emulated CPU.

survey: the longest wait of a thread that maps and unmaps a page beside each of some
thirty operations on memory, and the 99th percentile of its waits; --scenes
populate_write,mlock takes some of them. --mib takes several sizes; kinds of memory
but the first are measured at the last size. There is a picture for each size and
kind; --from draws it again. With --virtual-time, other load of the host does not count:
the CPUs take turns, each until the next timer, and time is the sum of their instructions.

survey_cost: the instructions of each operation of survey, on one emulated CPU, while the
other thread sleeps: what the switches cost when nobody waits.

survey_time: how long each operation takes beside a thread that maps and unmaps a page
each 0.1 ms, or all the time, and gets the lock in between. It needs an idle host.

workloads: programs of the host's Debian release (Redis, Python with numpy, a JVM,
QEMU), which are downloaded once (some 190 MB; delete build/bench/rootfs to get
newer ones). The latency is the program's own; p99.9 takes 1000 requests. "on" is
every switch at once. pgfault, and the shares of it, are those of the VM. safepoint:
how long the JVM stops its threads, from its own log, its start included.
allocated_lock_free: with huge pages for everybody, the share of allocations in page
faults that were made without a lock; but_files: without memory of files. It needs
microvm-trace, a kernel that counts allocations by their stacks; a huge page and its
table are two. Those of a read of a file do not count: upstream takes no lock for them.
--virtual-time compares how much work the programs do per instruction of the CPU: a
loss of throughput shows, but no stall, as one CPU runs everything. What else the
host does matters only for waits of an idle CPU, which take real time. Each second
of --ms takes about ten seconds.

examples:
  lab bench munmap
  lab bench hugetlb --procs 16 --mem 12288
  lab bench hugetlb --quick
  lab bench pmd_clear
  lab bench pmd_clear --flavour microvm-arm64-bench
  lab bench spf --ms 8000
  lab bench spf --scenes cost
  lab bench micro --rounds 6
  lab bench micro --scenes cost --peer
  lab bench survey --peer
  lab bench survey --mib 256 --kinds 4k,thp --scenes mlock,munlock
  lab bench survey --from tests/bench/results/survey.json
  lab bench survey_cost --peer --scenes mlock,smaps
  lab bench survey_time --rounds 5
  lab bench workloads --scenes redis_flush,qemu_shared
  lab bench workloads --allocations
  lab bench workloads --scenes redis_bgsave --virtual-time --ms 5000 --mib 128
"""

# Each has a Plan, a smaller one, QUICK, and run().
_BENCHMARKS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (munmap, hugetlb, hugetlb_zero, pmd_clear, spf, micro, survey, survey_cost,
                   survey_time, workloads)}

# Those whose collected results are made again from their JSON file.
_REPORTS: dict[str, type[Report]] = {
    "survey": survey.Survey, "survey_cost": survey_cost.Cost, "survey_time": survey_time.Time}

# The flavour of our kernel.
_FLAVOUR = "microvm"

# Fields of a Plan that the command line can change.
_SIZES = {
    "mem": ("MIB", "memory of the guest"),
    "cpus": ("N", "virtual CPUs; spf: for memcg and locks"),
    "mib": ("MIB", "memory: munmap, survey, survey_cost, survey_time: of an operation; spf: to "
            "fault in; workloads: data"),
    "procs": ("N", "hugetlb: processes in shared, unshared and tables"),
    "gib": ("GIB", "hugetlb: size of the file that they map"),
    "ms": ("MS", "duration of a turn: hugetlb (shared, unshared), spf (waits, throughput), "
           "micro, workloads"),
    "storm-procs": ("N", "hugetlb: processes in exit_storm"),
    "storm-gib": ("GIB", "hugetlb: mapping size of each of them"),
    "passes": ("N", "hugetlb_zero: how often pages of 2 MiB are faulted in"),
    "pages": ("N", "hugetlb_zero: number of these pages"),
    "areas": ("N", "pmd_clear: huge pages per turn"),
    "forks": ("N", "pmd_clear: children per turn"),
    "threads": ("N,...", "spf: threads in throughput, at most as many as the host has CPUs"),
}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"{message}; see lab bench --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(description=_ABOUT, epilog=_MORE,
                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("benchmark", choices=list(_BENCHMARKS))
    parser.add_argument("--flavour", default=_FLAVOUR, metavar="FLAVOUR",
                        help="of our kernel (default: %(default)s), for whose architecture the "
                        "programs are compiled; microvm-arm64-bench is another one")
    parser.add_argument("--kernel", metavar="IMAGE", type=Path,
                        help="our kernel, instead of the flavour's")
    parser.add_argument("--stock", metavar="IMAGE", type=Path,
                        help="the same configuration of upstream's tree (default: "
                        "FLAVOUR-stock, if it is built)")
    parser.add_argument("--peer", metavar="IMAGE", nargs="?", type=Path,
                        const=FLAVOURS["microvm-peer"].image,
                        help="the newest upstream kernel as another arm (without IMAGE: "
                        "microvm-peer)")
    scenes = "; ".join(f"{name}: {', '.join(module.SCENES)}"
                       for name, module in _BENCHMARKS.items() if hasattr(module, "SCENES"))
    parser.add_argument("--scenes", metavar="SCENE,...", type=lambda text: tuple(text.split(",")),
                        help=f"only some; {scenes}")
    parser.add_argument("--kinds", metavar="KIND,...", type=lambda text: tuple(text.split(",")),
                        help=f"survey: kinds of memory; {', '.join(survey.KINDS)}")
    parser.add_argument("--from", metavar="JSON", type=Path, dest="made",
                        help="survey, survey_cost, survey_time: measure nothing, print and draw a "
                        "report again")
    parser.add_argument("--rounds", metavar="N", type=_numbers, help="rounds of each measurement")
    for name, (metavar, text) in _SIZES.items():
        parser.add_argument(f"--{name}", metavar=metavar, type=_numbers, help=text)
    parser.add_argument("--virtual-time", action="store_true",
                        help="workloads: one emulated CPU, an instruction per nanosecond; "
                        "survey: the CPUs take turns")
    parser.add_argument("--allocations", action="store_true",
                        help="workloads: only count allocations")
    parser.add_argument("--quick", action="store_true",
                        help="one small round as a smoke test; the figures mean little")
    return parser


def _kernels(options: argparse.Namespace) -> Kernels:
    flavour = find(options.flavour)
    kernel = options.kernel or flavour.image
    stock = options.stock
    if stock is None and not options.quick:
        built = FLAVOURS.get(f"{flavour.name}-stock")
        stock = built.image if built and built.image.exists() else None
        if stock is None:
            print("# no stock kernel (--stock): comparisons with it are left out",
                  file=sys.stderr)
    for image in (kernel, stock, options.peer):
        if image is not None and not image.is_file():
            raise BenchError(f"no kernel {image}; build it with make kernel, or name another one")
        if image is not None and identify(image)[0].elf_machine != flavour.arch.elf_machine:
            raise BenchError(f"{image} is not a kernel for {flavour.arch.rpm}, as the flavour "
                             f"{flavour.name} is; name another --flavour or another image")
    traced = FLAVOURS["microvm-trace"].image
    return Kernels(kernel, stock, options.peer,
                   traced if traced.exists() and not options.quick else None, flavour.arch)


def _resize(plan: Any, options: argparse.Namespace) -> None:
    """Change the fields of PLAN given on the command line."""
    fields = {field.name for field in dataclasses.fields(plan)}
    for option in ("rounds", *_SIZES):
        name = option.replace("-", "_")
        values = getattr(options, name)
        if values is None:
            continue
        if min(values) < 1:
            raise BenchError(f"--{option} must be 1 or more")
        if name not in fields:
            raise BenchError(f"--{option} is not for {options.benchmark}")
        if isinstance(getattr(plan, name), tuple):
            setattr(plan, name, values)
            continue
        if len(values) > 1:
            raise BenchError(f"--{option} takes one number for {options.benchmark}")
        setattr(plan, name, values[0])
    for name in ("scenes", "kinds"):
        chosen = getattr(options, name)
        if chosen is None:
            continue
        if name not in fields:
            raise BenchError(f"--{name} is not for {options.benchmark}")
        there = getattr(plan, name)
        unknown = [one for one in chosen if one not in there]
        if unknown:
            raise BenchError(f"--{name}: no '{unknown[0]}' in {', '.join(there)}")
        setattr(plan, name, tuple(one for one in there if one in chosen))
    if options.allocations:
        if "allocations" not in fields:
            raise BenchError(f"--allocations is not for {options.benchmark}")
        plan.allocations = True
        plan.scenes = tuple(scene for scene in plan.scenes if scene in workloads.TRACED)
        if not plan.scenes:
            raise BenchError(f"--allocations is for {', '.join(workloads.TRACED)}")
    if options.virtual_time:
        if "virtual_time" not in fields:
            raise BenchError(f"--virtual-time is not for {options.benchmark}")
        if options.cpus is not None and options.benchmark == "workloads":
            raise BenchError("--virtual-time uses one CPU and takes no --cpus")
        plan.virtual_time = True
    for name in {"cost_rounds", "huge_rounds"} & fields if options.rounds is not None else ():
        setattr(plan, name, plan.rounds)


def main() -> None:
    """Run the program."""
    options = _parser().parse_args()
    benchmark = _BENCHMARKS[options.benchmark]
    if options.made:
        if options.benchmark not in _REPORTS:
            raise BenchError(f"--from is not for {options.benchmark}")
        _finish(_REPORTS[options.benchmark].read(options.made), options.made.stem)
        return
    plan = benchmark.QUICK if options.quick else benchmark.Plan()
    _resize(plan, options)
    report = benchmark.run(_kernels(options), plan)
    if options.quick:
        # One small round does not allow a verdict.
        report.aims.clear()
    name = "-".join([options.benchmark,
                     *([options.flavour] if options.flavour != _FLAVOUR else []),
                     *(plan.scenes if options.scenes else ()),
                     *(["virtual"] if options.virtual_time else []),
                     *(["allocations"] if options.allocations else []),
                     *(["quick"] if options.quick else [])])
    _finish(report, name)


def _finish(report: Report, name: str) -> None:
    """Write the report to files, and print it."""
    paths = report.write(BUILD / "bench" / f"{name}.json")
    print(report.text())
    print("\nwritten to " + ", ".join(map(str, paths)))
