# SPDX-License-Identifier: GPL-2.0-only
"""The test suites, and the tables of tests that need no program of their own.

A suite is a folder in tests/.  Its tests are the executables in it, which print TAP (or KTAP,
with subtests) and run at the top of the repository, the files test_*.py, and its rows in BOOTS and
CALLS.
"""
from __future__ import annotations

import dataclasses
import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# Seconds until a test is killed.
LIMIT = 30 * 60


@dataclasses.dataclass(frozen=True)
class Suite:
    """A folder of tests, and what has to be built for them first."""

    name: str
    # Commands of this repository, with their arguments.
    needs: tuple[tuple[str, ...], ...] = ()
    # Its place in tests/, if that is not its name.
    folder: str = ""
    # How many of its programs run in parallel.
    jobs: int = 1
    # Programs that run alone because they measure time or need all CPUs.
    alone: tuple[str, ...] = ()
    # Run only on request: it is slow, or needs another kernel or more host packages.
    opt_in: bool = False


FL = "tools/fl"
LAB = "tests/lab"
BUILD = (FL, "build", "microvm")
SELFTESTS = ("tests/lib/selftests.sh", "microvm")
# The flavour whose packages are installed in VMs; the package suite tests microvm.
FLAVOUR = os.environ.get("FLAVOUR") or "microvm"

# In the order in which they run: suites that fail fast come first.
SUITES = {suite.name: suite for suite in (
    # Most of these programs are single-threaded or wait for I/O.
    Suite("lint", jobs=2),
    Suite("models"),
    Suite("source"),
    Suite("build", jobs=2),
    Suite("runner", (BUILD,)),
    Suite("package", ((FL, "stage", "microvm"),)),
    Suite("rollout", (BUILD,), jobs=2),
    # One virtual machine does not keep two CPUs busy.
    Suite("images", ((LAB, "hosts", "packages", FLAVOUR),), jobs=2),
    # A virtual machine on one host thread (icount) keeps one CPU busy.
    Suite("kernel", (BUILD, SELFTESTS), jobs=2,
          alone=("bench", "boot", "demo", "hugetlb-fixes", "races")),
    # VMs that share the CPUs with nothing else: changes of a switch have to be on time.
    Suite("fleet", (BUILD, (FL, "stage", "microvm")), folder="rollout/fleet", opt_in=True),
    Suite("host-failures", ((LAB, "hosts", "packages", FLAVOUR),), jobs=2, opt_in=True),
    # It needs what the configurations of Debian have and that of microvm has not.
    Suite("release", ((LAB, "hosts", "packages", "--first", FLAVOUR),), folder="hosts/release",
          opt_in=True),
    # A kernel of its own, and VMs that start one after the other.
    Suite("signing", ((FL, "stage", "microvm"), (FL, "stage", "tiny")), folder="hosts/signing",
          opt_in=True),
    Suite("debug", ((FL, "build", "microvm-debug"), SELFTESTS), opt_in=True),
    Suite("kcsan", ((FL, "build", "microvm-kcsan"), SELFTESTS), folder="kernel/kcsan", opt_in=True),
    Suite("ppc64le", ((FL, "build", "ppc64le"),
                      (FL, "build", "ppc64le-stock"), (FL, "vm", "busybox", "ppc64le"),
                      ("tests/lib/selftests.sh", "ppc64le")), folder="power/kernel", opt_in=True),
    # A kernel of Debian's configuration, cross-compiled, and a Debian userland for it.
    Suite("powerpc64le", ((FL, "stage", "powerpc64le"), (FL, "vm", "busybox", "ppc64le")),
          folder="power/packages", opt_in=True),
    Suite("upstream", (BUILD, (FL, "build", "microvm-stock")), opt_in=True),
)}


@dataclasses.dataclass(frozen=True)
class Boot:
    """A test that boots a kernel and runs selftests in it; without programs, its KUnit suites."""

    # SUITE/NAME
    title: str
    flavour: str
    # Selftests with their arguments, or guest files from FILES.
    programs: tuple[str, ...] = ()
    # With a number, all CPUs take turns on one host thread, and the clock counts instructions.
    icount: int | None = None
    cpus: int = 4
    mem: int = 2048
    # Seconds until the VM is ended.
    timeout: int = 600
    # Kernel parameters.
    append: str = ""
    # The preemption mode, of a flavour with PREEMPT_DYNAMIC: none, voluntary or full.
    preempt: str = ""
    # FAULTLINE_SECONDS, the length of a race; the environment variable EACH overrides it.
    seconds: int = 1
    # Other variables for the programs.
    env: tuple[str, ...] = ()
    # Keep a CPU from idling for long, see AWAKE.
    awake: bool = False
    # The purpose of the test, and the reason for its settings.
    reason: str = ""


FILES = {"mmu": TESTS / "power/kernel/guest/mmu"}

# Tests that patch kernel text run on one host thread: QEMU's multi-threaded TCG cannot patch code
# that other CPUs are running, with any kernel ("Oops: int3" in the patched code).  Text is patched
# by trace events, perf events, and a switch that goes from or to 0.
IN_TURN = 4
# Flips go through 0; without it the switch only changes between nonzero values.
FLIP_OFF = "FAULTLINE_FLIP_OFF=1"
NUMA = "numa=fake=2"
# Page tables are freed by RCU, as in a guest whose hypervisor flushes TLBs.
RCU_TABLES = "pmd_clear_guest"
# Where time is counted in instructions, a sleeping thread may otherwise not be woken for half a
# minute while others spin, even with the switch off.  The loop starts no programs, whose page
# faults would be counted.
AWAKE = "mkfifo /tmp/never; until read -r -t 1 nothing <>/tmp/never; do :; done & "

RACES = ("munmap_race", "madvise_race", "hugetlb_race", "pmd_clear_race", "spf_race")
FLIPPED = tuple(f"{name} -v flip" for name in RACES)
PPC64LE = ("mmu", "toggles", "munmap_semantics", "munmap_race", "munmap_fault",
           "madvise_semantics", "madvise_race", "hugetlb_semantics")

BOOTS = {boot.title: boot for boot in (
    Boot("kernel/semantics", "microvm",
         ("toggles", "munmap_semantics", "munmap_fault", "madvise_semantics", "hugetlb_semantics",
          "pmd_clear_semantics", "spf_semantics"),
         IN_TURN, mem=3072, timeout=1500, append=NUMA, env=(FLIP_OFF, "FAULTLINE_COUNT=1000"),
         reason="The effect of each value of each switch, and the switches themselves.  On one "
         "host thread because these programs enable trace events and perf events."),
    Boot("kernel/races", "microvm", RACES,
         mem=3072, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=1000",),
         reason="Race tests with many threads, with one host thread per CPU."),
    Boot("kernel/flip", "microvm", FLIPPED,
         IN_TURN, timeout=1500, append=NUMA, seconds=2, env=(FLIP_OFF, "FAULTLINE_COUNT=1000"),
         reason="The races again, with the switch flipping on and off all the time."),

    Boot("debug/kunit", "microvm-debug", cpus=2,
         reason="The KUnit suites of mm/faultline, which run when the kernel boots."),
    Boot("debug/semantics", "microvm-debug",
         ("toggles", "munmap_semantics", "munmap_fault", "madvise_semantics", "hugetlb_semantics",
          "spf_semantics"),
         mem=4096, timeout=1500, append=f"{NUMA} {RCU_TABLES}", env=("FAULTLINE_COUNT=100",),
         reason="kernel/semantics under KASAN, lockdep and mm's own checks, with fault injection "
         "for allocations.  One host thread per CPU, although that occasionally fails (IN_TURN): "
         "a single thread is too slow (a third was done after 20 minutes).  pmd_clear_semantics is "
         "in debug/flip."),
    Boot("debug/races", "microvm-debug", ("munmap_race", "munmap_stress", *RACES[1:]),
         mem=4096, timeout=1700, append=f"{NUMA} {RCU_TABLES}", preempt="full",
         env=("FAULTLINE_COUNT=100",),
         reason="kernel/races under KASAN, lockdep and mm's own checks, also with wider race "
         "windows and with failing allocations.  With preempt=full a thread can lose its CPU at "
         "any place where preemption is not off, even inside an RCU section; the other rows have "
         "the default of Debian's kernels, voluntary."),
    Boot("debug/flip", "microvm-debug",
         ("pmd_clear_semantics", "pmd_clear_race -v flip", "spf_race -v flip"),
         2, mem=4096, timeout=1700, append=f"{NUMA} {RCU_TABLES}", seconds=2,
         env=(FLIP_OFF,),
         reason="kernel/flip under KASAN, lockdep and mm's own checks, also with wider race "
         "windows and with failing allocations.  One host thread is too slow for the munmap and "
         "hugetlb programs: debug/races runs them, with the switch changing without going "
         "through 0.  With more than 4 ns for each instruction, the timer ticks of four CPUs of "
         "this kernel can take longer than their period, until a soft lockup is reported."),

    Boot("ppc64le/kunit", "ppc64le", cpus=2,
         reason="The KUnit suites of mm/faultline, which run when the kernel boots."),
    Boot("ppc64le/radix", "ppc64le", PPC64LE,
         mem=4096, timeout=1500, env=("FAULTLINE_MMU=Radix", "FAULTLINE_COUNT=200"),
         reason="The selftests with the radix MMU: page tables as on x86, with 64 KiB pages."),
    Boot("ppc64le/hash", "ppc64le", PPC64LE, mem=4096, timeout=1500, append="disable_radix",
         env=("FAULTLINE_MMU=Hash", "FAULTLINE_COUNT=200"),
         reason="The selftests with the hash MMU: the hardware does not read its page tables, "
         "and its huge pages are 16 MiB."),
    Boot("ppc64le/spf-radix", "ppc64le", ("mmu", "spf_semantics", "spf_race"),
         IN_TURN, mem=4096, timeout=1500, env=("FAULTLINE_MMU=Radix",), awake=True,
         reason="Speculative page faults with the radix MMU, also with wider windows and with "
         "flips.  On one host thread: with several, QEMU's tlbie does not wait until the other "
         "CPUs have flushed, so they write to read-only pages no matter what the kernel does."),
    Boot("ppc64le/spf-hash", "ppc64le", ("mmu", "spf_semantics", "spf_race"),
         IN_TURN, mem=4096, timeout=1500, append="disable_radix", env=("FAULTLINE_MMU=Hash",),
         awake=True,
         reason="The same with the hash MMU, which is told of a new entry while the page table "
         "is locked."),
)}


# Tests that are one call of a tool, which prints TAP.
CALLS = {
    # A host installs, boots, uses, upgrades, rolls back and removes our kernel.
    "images/deb-lifecycle": (LAB, "hosts", "test", "deb", "lifecycle"),
    "images/rpm-lifecycle": (LAB, "hosts", "test", "rpm", "lifecycle"),
    # A host survives power cuts, full disks, bad repositories and kernels that fail to boot.
    "host-failures/deb": (LAB, "hosts", "test", "deb", "failures"),
    "host-failures/rpm": (LAB, "hosts", "test", "rpm", "failures"),
    # faultline-boot with systemd-boot and GRUB: trials that pass, trials that fail, power cuts.
    "host-failures/loaders": (LAB, "hosts", "test", "deb", "loaders"),
    "host-failures/loaders-12": (LAB, "hosts", "test", "deb", "loaders-12"),
    # A host builds a module with DKMS, reads BTF, takes and opens a dump, and boots with dracut.
    "release/deb": (LAB, "hosts", "test", "deb", "release"),
    # Upstream's tests give the same results as on stock.
    "upstream/mm": (LAB, "upstream", "mm"),
    "upstream/stress-ng": (LAB, "upstream", "stress-ng"),
}

# The command of each test that is a row of a table.
ROWS: dict[str, tuple[str, ...]] = {title: (LAB, "boot", title) for title in BOOTS} | CALLS


_SUITE_OF = {TESTS / (suite.folder or name): name for name, suite in SUITES.items()}


def title(path: Path) -> str:
    """The name of a program or test_NAME.py: SUITE/NAME."""
    return f"{_SUITE_OF[path.parent]}/{path.stem.removeprefix('test_')}"


def is_program(path: Path) -> bool:
    """Whether a file is a test program of a suite."""
    return (path.parent in _SUITE_OF and not path.match("test_*.py") and path.is_file()
            and os.access(path, os.X_OK))


def tests_of(suite: Suite) -> list[tuple[str, str]]:
    """The suite's tests, those that run alone first: title and argument for pytest."""
    found = [(title(path), str(path)) for path in (TESTS / (suite.folder or suite.name)).glob("*")
             if is_program(path) or path.match("test_*.py")]
    found += [(name, f"{__file__}::{name}") for name in ROWS if name.startswith(f"{suite.name}/")]
    return sorted(found, key=lambda test: (test[0].partition("/")[2] not in suite.alone, test))
