#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0-only
"""Our files, and those that our patches touch, compile in other configurations.

Each row is the configuration of microvm or ppc64le with options changed, with
another compiler or for another architecture.  Warnings are errors.  The
options that a row is about are checked in the .config that Kconfig makes: where
dependencies force an option, the row says what else to change.

A default run has rows in which each setting is on and off; FULL=1 adds those in which
any two settings meet in all four ways.

Each row has its own O= folder.  The first row builds the host programs, which
the others copy; objtool is neither built nor run.  Nothing is linked.

    [FULL=1] PYTHONPATH=tools tests/build/matrix.py [REGEX]    only rows whose title matches
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from faultline.common import Fail, flag
from faultline.flavour import FRAGMENTS, PATHS, environment, read_config
from lib.tap import Tap
from lib.touched import configured, touched

WORK = PATHS.build / "test" / "matrix"
SHOWN_LINES = 30
FAULT = re.compile(r"\b(error|warning):|No rule to make")
FAULTLINE = ("flavour-microvm.config", "faultline.config", "faultline-hugetlb.config")


@dataclasses.dataclass(frozen=True)
class Target:
    """A compiler and the base configuration of its rows."""

    name: str
    # The name of the folder below arch/.
    arch: str
    cc: str
    fragments: tuple[str, ...] = FAULTLINE
    variables: tuple[str, ...] = ()


X86 = Target("x86-64 gcc", "x86", "gcc")
CLANG = Target("x86-64 clang", "x86", "clang")
# x86-only options of flavour-microvm.config are unknown there and ignored.
ARM64 = Target("arm64 gcc", "arm64", "aarch64-linux-gnu-gcc",
               variables=("ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"))
PPC64LE = Target("ppc64le gcc", "powerpc", "powerpc64le-linux-gnu-gcc",
                 ("guest.config", "flavour-ppc64le.config", "faultline.config",
                  "faultline-ppc64le.config"),
                 ("ARCH=powerpc", "CROSS_COMPILE=powerpc64le-linux-gnu-"))


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration."""

    target: Target
    # The tested options, "OPTION=value ...": checked in the result.
    about: str
    # Other options needed to get there.
    also: str = ""
    # The title, if not the tested options.
    title: str = ""
    # Only with FULL=1.
    full: bool = False

    @property
    def name(self) -> str:
        """The name of the test."""
        return f"{self.target.name}, {self.title or self.about}"

    @property
    def out(self) -> pathlib.Path:
        """Its O= folder."""
        return WORK / re.sub(r"[^\w=-]+", "-", self.name)

    def config(self) -> str:
        """The input for Kconfig; the last line for an option wins."""
        lines = [(FRAGMENTS / name).read_text(encoding="utf-8")
                 for name in self.target.fragments]
        for setting in f"{self.also} {self.about}".split():
            option, _, value = setting.partition("=")
            lines.append(f"# CONFIG_{option} is not set\n" if value == "n" else
                         f"CONFIG_{option}={value}\n")
        return "".join(lines)


# The features, where all are available.
ALL = "FAULTLINE_MUNMAP=y FAULTLINE_PMD_CLEAR=y FAULTLINE_WALK=y "
HUGETLB = "FAULTLINE_HUGETLB=y FAULTLINE_HUGETLB_REVALIDATE=y FAULTLINE_HUGETLB_ZERO=y "
SPF = "FAULTLINE_SPF=y "

# Settings of a kernel: the tested options, and others needed to get there.
SETTINGS = {
    "NUMA=n": ("NUMA=n", ""),
    "THP=n": ("TRANSPARENT_HUGEPAGE=n FAULTLINE_PMD_CLEAR=n", ""),
    "MEMCG=n": ("MEMCG=n", ""),
    "KSM=n": ("KSM=n", ""),
    "SWAP=n": ("SWAP=n", ""),
    "HUGETLB=n": ("HUGETLB_PAGE=n FAULTLINE_HUGETLB=n FAULTLINE_HUGETLB_ZERO=n", "HUGETLBFS=n"),
    "USERFAULTFD=n": ("USERFAULTFD=n", ""),
    "ADVISE=n": ("ADVISE_SYSCALLS=n FAULTLINE_MADVISE=n", "EXPERT=y"),
    "LRU_GEN=n": ("LRU_GEN=n", ""),
    "PAGE_MONITOR=n": ("PROC_PAGE_MONITOR=n MEM_SOFT_DIRTY=n", "HWPOISON_INJECT=n"),
    "PREEMPT": ("PREEMPT=y", "PREEMPT_VOLUNTARY=n"),
    # Without mode 2 of vm.hugetlb_pmd_sharing, and so without its test options.
    "RT": ("PREEMPT_RT=y FAULTLINE_SPF=n FAULTLINE_HUGETLB_REVALIDATE=n "
           "FAULTLINE_HUGETLB_TORTURE=n FAULTLINE_HUGETLB_FAULT_INJECTION=n "
           "FAULTLINE_HUGETLB_ZERO=n", ""),
    # FAULTLINE_SPF_TORTURE selects MMU_NOTIFIER, which nothing else in microvm does.
    "tests": ("FAULTLINE_SPF_TORTURE=y FAULTLINE_PMD_CLEAR_TORTURE=y FAULTLINE_MUNMAP_TORTURE=y "
              "FAULTLINE_HUGETLB_FAULT_INJECTION=y FAULTLINE_HUGETLB_TORTURE=y "
              "FAULTLINE_HUGETLB_ZERO_TORTURE=y FAULTLINE_WALK_TORTURE=y FAULTLINE_KUNIT_TEST=y",
              "DEBUG_VM=y FAULT_INJECTION=y FAULT_INJECTION_DEBUG_FS=y KUNIT=y"),
}
# (first, second): the first implies the second.
IMPLIED = {("RT", "THP=n")}
EXCLUSIVE = {("PREEMPT", "RT")}


def mixed(target: Target, words: str, full: bool = False) -> Row:
    """A row with some of SETTINGS; a feature that is off takes its test options along."""
    about = [setting for word in words.split() for setting in SETTINGS[word][0].split()]
    off = tuple(setting[:-2] for setting in about if re.match("FAULTLINE_.*=n", setting))
    return Row(target, " ".join(setting for setting in about
                                if setting.endswith("=n") or not setting.startswith(off)),
               " ".join(SETTINGS[word][1] for word in words.split()), words, full)


# Any two settings meet in all four ways, so that code which needs one option where
# another is missing is found.  A row per setting takes twice the time and finds less.
MIXED = (
    (X86, ""),
    (X86, "THP=n MEMCG=n SWAP=n ADVISE=n LRU_GEN=n PAGE_MONITOR=n tests RT"),
    (X86, "THP=n MEMCG=n KSM=n HUGETLB=n USERFAULTFD=n ADVISE=n PREEMPT"),
    (CLANG, "NUMA=n SWAP=n HUGETLB=n LRU_GEN=n PAGE_MONITOR=n tests PREEMPT"),
)
MIXED_FULL = (
    (CLANG, "THP=n KSM=n SWAP=n HUGETLB=n USERFAULTFD=n ADVISE=n LRU_GEN=n RT"),
    (CLANG, "NUMA=n THP=n MEMCG=n KSM=n USERFAULTFD=n PAGE_MONITOR=n RT"),
    (X86, "NUMA=n MEMCG=n KSM=n SWAP=n ADVISE=n tests PREEMPT"),
    (X86, "MEMCG=n USERFAULTFD=n ADVISE=n LRU_GEN=n tests PREEMPT"),
)

ROWS = (
    Row(X86, ALL + HUGETLB + SPF + "MMU_NOTIFIER=n", title="all features"),
    # With page tables of five levels, the default there.
    Row(ARM64, ALL + HUGETLB + SPF + "PGTABLE_LEVELS=5", title="all features"),
    Row(PPC64LE, ALL + SPF + "FAULTLINE_SPF_TORTURE=y", title="all features"),
    # Not for x86, which selects it.
    Row(PPC64LE, "PERF_EVENTS=n", full=True),
    # Without VMA locks, most features are not available; their hooks have to compile.
    Row(X86, "SMP=n USERFAULTFD=n"),
    *(mixed(target, words) for target, words in MIXED if words),
    *(mixed(target, words, full=True) for target, words in MIXED_FULL),
)


def not_tested_together() -> list[str]:
    """The settings that a default run does not have on and off, and the pairs that no row has."""
    words = (*SETTINGS, CLANG.name)
    rows = [{*text.split(), target.name} for target, text in MIXED + MIXED_FULL]
    missing = [f"a default run has no row with {word} and one without"
               for word in words if len({word in {*text.split(), target.name}
                                         for target, text in MIXED}) < 2]
    for pair in itertools.combinations(words, 2):
        ways = set(itertools.product((False, True), repeat=2))
        ways -= {tuple(word in row for word in pair) for row in rows}
        if pair in EXCLUSIVE:
            ways.discard((True, True))
        for first, second in IMPLIED & {pair, pair[::-1]}:
            ways.discard((pair[0] == first, pair[1] == first))
        missing += [f"no row {'with' if one else 'without'} {pair[0]} and "
                    f"{'with' if other else 'without'} {pair[1]}" for one, other in sorted(ways)]
    return missing


def run(row: Row, log: pathlib.Path, *arguments: str) -> bool:
    """Run the kernel's make."""
    command = ["make", "-C", str(PATHS.tree), f"O={row.out}", "--no-print-directory", "-k",
               f"CC={'ccache ' if shutil.which('ccache') else ''}{row.target.cc}",
               "CONFIG_OBJTOOL=", *row.target.variables, *arguments]
    with open(log, "ab") as sink:
        return subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL,
                              stdout=sink, stderr=subprocess.STDOUT, check=False).returncode == 0


def said(log: pathlib.Path) -> list[str]:
    """The complaints in a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if FAULT.search(line)][:SHOWN_LINES] or lines[-SHOWN_LINES:]


def compile_row(row: Row, jobs: int) -> list[str]:
    """Configure and compile; return the problems."""
    row.out.mkdir(parents=True, exist_ok=True)
    log, wanted = row.out / "log", row.out / "wanted"
    log.unlink(missing_ok=True)
    wanted.write_text(row.config(), encoding="utf-8")
    if not run(row, log, f"KCONFIG_ALLCONFIG={wanted}", "allnoconfig"):
        return said(log)
    log.unlink()
    config = read_config(row.out / ".config")
    problems = [f"CONFIG_{option} is {have}: check what selects it or what it depends on"
                for option, value in (one.split("=") for one in row.about.split())
                if (have := config.get(option, "n")) != value]
    if problems:
        return problems
    sources = [name for name in touched(row.target.arch)
               if configured(name, PATHS.tree, config)]
    objects = [str(pathlib.Path(name).with_suffix(".o")) for name in sources]
    if not run(row, log, f"-j{jobs}", *objects, "mm/faultline/"):
        return said(log)
    missing = [name for name in (*objects, "mm/faultline/toggles.o")
               if not (row.out / name).exists()]
    return [f"{name} was not made" for name in missing]


def copy_prepared(row: Row) -> None:
    """Copy the host programs from the first row."""
    for folder in ("scripts", f"arch/{row.target.arch}/include/generated"):
        if (ROWS[0].out / folder).exists():
            shutil.copytree(ROWS[0].out / folder, row.out / folder, symlinks=True)


def timed(row: Row, jobs: int) -> tuple[list[str], float]:
    """Compile a row; return its problems and the time taken."""
    began = time.monotonic()
    if row != ROWS[0]:
        copy_prepared(row)
    return compile_row(row, jobs), time.monotonic() - began


def main() -> int:
    """Compile, print TAP."""
    rows = [row for row in ROWS if (flag("FULL") or not row.full) and (
        not sys.argv[1:] or re.search(sys.argv[1], row.name))]
    print("TAP version 13", flush=True)
    tap = Tap()
    if not sys.argv[1:]:
        missing = not_tested_together()
        tap.result("each setting is on and off; with FULL=1, any two meet in all four ways",
                   not missing, missing)
    cpus = os.cpu_count() or 1
    shutil.rmtree(WORK, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(cpus) as pool:
        def results() -> Iterator[tuple[list[str], float]]:
            # The others copy from the first.
            if rows[:1] == [ROWS[0]]:
                yield timed(rows.pop(0), cpus)
            yield from pool.map(lambda row: timed(row, 1), rows)

        for row, (problems, seconds) in zip(list(rows), results()):
            tap.result(row.name, not problems, [*problems, f"{seconds:.0f} s"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    tap.say([f"{used.ru_utime + used.ru_stime:.0f} CPU-s"])
    shutil.rmtree(WORK, ignore_errors=True)
    return tap.finish()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Fail as fault:
        print(f"Bail out! {fault}")
        sys.exit(1)
