# SPDX-License-Identifier: GPL-2.0-only
"""The test suites, and the tables of tests that need no program of their own.

The name of a suite is a path in tests/.  Its tests are the executables in that folder, if there
is one, which print TAP (or KTAP, with subtests) and run at the top of the repository, the files
test_*.py, and its rows in BOOTS, RULES and CALLS.  A folder in it can be another suite.
"""
from __future__ import annotations

import dataclasses
import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# The tests that run at a time: two CPUs.
SLOTS = 2
# Seconds until a test is killed: the longest takes ten minutes on a machine of its own.
LIMIT = 60 * 60


@dataclasses.dataclass(frozen=True)
class Suite:
    """A set of tests, and the commands that build what they need."""

    name: str
    # Commands of this repository, with their arguments.
    needs: tuple[tuple[str, ...], ...] = ()
    # How many of its tests run in parallel: 1, or SLOTS, which may be tests of other suites.
    jobs: int = 1
    # Its tests in Python wait most of the time: a program can have their slot.
    patient: bool = False
    # Programs that run alone because they measure time or need all CPUs.
    alone: tuple[str, ...] = ()
    # Programs that nothing behind them in the list may run beside: they change what it uses.
    first: tuple[str, ...] = ()
    # Programs that only a run of the suite, or of the program, has.
    on_request: tuple[str, ...] = ()
    # The same for all of it: it is slow, or needs another kernel or more host packages.
    opt_in: bool = False


FL = "tools/fl"
LAB = "tests/lab"
BUILD = (FL, "build", "microvm")
SELFTESTS = ("tests/lib/selftests.sh", "microvm")
# The flavour whose packages are installed in VMs; the package suite tests microvm.
FLAVOUR = os.environ.get("FLAVOUR") or "microvm"
# The one for arm64.
ARM64_HOST = "microvm-arm64-host"

# In the order in which they run: suites that fail fast come first.
SUITES = {suite.name: suite for suite in (
    # Most of these programs are single-threaded or wait for I/O.
    Suite("lint", jobs=2),
    Suite("models", jobs=2),
    Suite("source", jobs=2),
    Suite("build", jobs=2),
    Suite("runner", (BUILD,), jobs=2),
    # stage makes the stage anew that the others package.
    Suite("package", ((FL, "stage", "microvm"),), jobs=2, first=("stage",)),
    Suite("rollout", (BUILD,), jobs=2, patient=True),
    # One virtual machine does not keep two CPUs busy.
    Suite("hosts/images", ((LAB, "hosts", "packages", FLAVOUR),), jobs=2),
    # A virtual machine on one host thread (icount) keeps one CPU busy.
    Suite("kernel", (BUILD, SELFTESTS), jobs=2, alone=("demo", "races"), on_request=("bench",)),
    # VMs that share the CPUs with nothing else: changes of a switch have to be on time.
    Suite("rollout/fleet", (BUILD, (FL, "stage", "microvm")), opt_in=True),
    # Debian's kernels, and one of ours with BTF, which builds as long as all of microvm.
    Suite("rollout/stalls", ((FL, "build", "microvm-btf"),), opt_in=True),
    Suite("hosts/failures", ((LAB, "hosts", "packages", FLAVOUR),), jobs=2, opt_in=True),
    # It needs what the configurations of Debian have and that of microvm has not.
    Suite("hosts/release", ((LAB, "hosts", "packages", "--first", FLAVOUR),), opt_in=True),
    # A kernel of its own, and VMs that start one after the other.
    Suite("hosts/signing", ((FL, "stage", "microvm"), (FL, "stage", "tiny")), opt_in=True),
    Suite("kernel/debug", ((FL, "build", "microvm-debug"), SELFTESTS), opt_in=True),
    Suite("kernel/kcsan", ((FL, "build", "microvm-kcsan"), SELFTESTS), opt_in=True),
    Suite("power/kernel", ((FL, "build", "ppc64le"),
                           (FL, "build", "ppc64le-stock"), (FL, "vm", "busybox", "ppc64le"),
                           ("tests/lib/selftests.sh", "ppc64le")), opt_in=True),
    Suite("arm64/kernel", ((FL, "build", "microvm-arm64"), (FL, "build", "microvm-arm64-stock"),
                           (FL, "vm", "busybox", "aarch64"),
                           ("tests/lib/selftests.sh", "microvm-arm64")), opt_in=True),
    Suite("arm64/64k", ((FL, "build", "microvm-arm64-64k"), (FL, "vm", "busybox", "aarch64"),
                        ("tests/lib/selftests.sh", "microvm-arm64")), opt_in=True),
    Suite("arm64/va52", ((FL, "build", "microvm-arm64-va52"), (FL, "vm", "busybox", "aarch64"),
                         ("tests/lib/selftests.sh", "microvm-arm64")), opt_in=True),
    Suite("arm64/debug", ((FL, "build", "microvm-arm64-debug"), (FL, "vm", "busybox", "aarch64"),
                          ("tests/lib/selftests.sh", "microvm-arm64")), opt_in=True),
    Suite("arm64/signing", ((FL, "stage", "tiny-arm64"), (FL, "vm", "busybox", "aarch64")),
          opt_in=True),
    Suite("arm64/packages", ((LAB, "hosts", "packages", ARM64_HOST),), jobs=2, opt_in=True),
    # A kernel of Debian's configuration, cross-compiled, and a Debian userland for it.
    Suite("power/packages", ((FL, "stage", "powerpc64le"), (FL, "vm", "busybox", "ppc64le")),
          opt_in=True),
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
    # More arguments for QEMU, and what the kernel must then detect ("CPU features: detected: ...").
    qemu: tuple[str, ...] = ()
    detected: tuple[str, ...] = ()
    # Keep a CPU from idling for long, see AWAKE.
    awake: bool = False
    # The purpose of the test, and the reason for its settings.
    reason: str = ""


FILES = {"mmu.sh": TESTS / "power/kernel/guest/mmu.sh",
         "mthp.sh": TESTS / "arm64/kernel/guest/mthp.sh",
         "kept.sh": TESTS / "kernel/debug/guest/kept.sh"}

# Tests that patch kernel text run on one host thread: QEMU's multi-threaded TCG cannot patch code
# that other CPUs are running, with any kernel ("Oops: int3" in the patched code).  Text is patched
# by trace events, perf events, the first and last cpuset, and a switch that goes from or to 0.
IN_TURN = 4
# Flips go through 0; without it the switch only changes between nonzero values.
FLIP_OFF = "FAULTLINE_FLIP_OFF=1"
NUMA = "numa=fake=2"
# Page tables are freed by RCU, as in a guest whose hypervisor flushes TLBs.
RCU_TABLES = "pmd_clear_guest"
# Page faults take folios of 64 KiB; those of 2 MiB are as without the parameter.
MTHP = "thp_anon=64K:always;2M:inherit"
# Where time is counted in instructions, a sleeping thread may otherwise not be woken for half a
# minute while others spin, even with the switch off.  The loop starts no programs, whose page
# faults would be counted.
AWAKE = "mkfifo /tmp/never; until read -r -t 1 nothing <>/tmp/never; do :; done & "

# The newest CPU that QEMU emulates, and features that neoverse-n1, the default, does not have.
NEWEST = ("-cpu", "max", "-machine", "mte=on")
NEWEST_HAS = ("52-bit Virtual Addressing (LPA2)", "Memory Tagging Extension")

RACES = ("munmap_race", "madvise_race", "hugetlb_race", "hugetlb_zero_race", "pmd_clear_race",
         "spf_race", "walk_race")
FLIPPED = tuple(f"{name} -v flip" for name in RACES)
# Without the races of stock behaviour, which take a minute and a half; kernel/debug/races has them.
# The variant off of hugetlb_race stays: not sharing page tables is a feature.
STOCK = {"munmap_race": "off", "madvise_race": "off", "hugetlb_zero_race": "off",
         "pmd_clear_race": "stock", "spf_race": "stock", "walk_race": "off"}
SWITCHED = tuple(f"{name} -V {STOCK[name]}" if name in STOCK else name for name in RACES)
PPC64LE = ("mmu.sh", "toggles", "munmap_semantics", "munmap_race", "munmap_fault",
           "madvise_semantics", "madvise_race", "hugetlb_semantics", "walk_semantics",
           "walk_race")
ARM64 = ("toggles", "munmap_semantics", "munmap_fault", "madvise_semantics", "hugetlb_semantics",
         "hugetlb_zero_semantics", "pmd_clear_semantics", "walk_semantics")
ARM64_RACES = tuple(name for name in RACES if name != "spf_race")

BOOTS = {boot.title: boot for boot in (
    Boot("kernel/semantics", "microvm",
         ("toggles", "munmap_semantics", "munmap_fault", "madvise_semantics", "hugetlb_semantics",
          "hugetlb_zero_semantics", "pmd_clear_semantics", "spf_semantics", "walk_semantics"),
         IN_TURN, mem=3072, timeout=2700, append=NUMA, env=(FLIP_OFF, "FAULTLINE_COUNT=1000"),
         reason="The effect of each value of each switch, and the switches themselves.  On one "
         "host thread because these programs enable trace events and perf events."),
    Boot("kernel/races", "microvm", SWITCHED,
         mem=3072, timeout=2700, append=NUMA, env=("FAULTLINE_COUNT=1000",),
         reason="Race tests with many threads, with one host thread per CPU, where a switch is "
         "on or changes."),
    Boot("kernel/flip", "microvm", FLIPPED,
         IN_TURN, timeout=2700, append=NUMA, seconds=2, env=(FLIP_OFF, "FAULTLINE_COUNT=1000"),
         reason="The races again, with the switch flipping on and off all the time."),

    Boot("kernel/gigantic", "microvm",
         ("hugetlb_zero_semantics " + " ".join(
             f"-r zero.giant_on.{test}" for test in ("limit", "writer", "demoted")),),
         IN_TURN, mem=2560, append="hugepagesz=1G hugepages=1", env=(FLIP_OFF,),
         reason="A huge page of 1 GiB, which only the kernel command line can reserve: for the "
         "other rows it would be too much memory.  All tests of giant_off and giant_on take a "
         "minute and a half of CPU time."),

    Boot("kernel/debug/kunit", "microvm-debug", cpus=2,
         reason="The KUnit suites of mm/faultline, which run when the kernel boots."),
    Boot("kernel/debug/semantics", "microvm-debug",
         ("toggles", "munmap_semantics", "munmap_fault", "madvise_semantics", "hugetlb_semantics",
          "hugetlb_zero_semantics", "spf_semantics", "spf_hold", "walk_semantics"),
         mem=4096, timeout=1500, append=f"{NUMA} {RCU_TABLES}", env=("FAULTLINE_COUNT=100",),
         reason="kernel/semantics under KASAN, lockdep and mm's own checks, with fault injection "
         "for allocations.  One host thread per CPU, although that occasionally fails (IN_TURN): "
         "a single thread is too slow (a third was done after 20 minutes).  pmd_clear_semantics is "
         "in kernel/debug/flip."),
    Boot("kernel/debug/hold", "microvm-debug",
         ("hugetlb_zero_hold -t unplugged", "hugetlb_zero_hold -T unplugged",
          "spf_semantics -t memory_fails", "hugetlb_zero_race -t fail"), cpus=2, mem=3072,
         append=f"{NUMA} kernelcore=1G", env=("FAULTLINE_MEMORY_FAILS=1",),
         reason="Pages that leave the pool while they are being cleared, also because their memory "
         "fails or is unplugged: the memory of the second node is movable.  First unplugged, as "
         "memory that failed before can keep it from going."),
    Boot("kernel/debug/races", "microvm-debug", RACES,
         mem=4096, timeout=1700, append=f"{NUMA} {RCU_TABLES}", preempt="full",
         env=("FAULTLINE_COUNT=100", "FAULTLINE_PLAYGROUND=20"),
         reason="kernel/races under KASAN, lockdep and mm's own checks, also with wider race "
         "windows and with failing allocations.  With preempt=full a thread can lose its CPU at "
         "any place where preemption is not off, even inside an RCU section; the other rows have "
         "the default of Debian's kernels, voluntary."),
    Boot("kernel/debug/kept", "microvm-debug",
         ("kept.sh hugetlb_zero_race -v on",
          "kept.sh spf_race" + "".join(
              f" -r spf_race.on.{test}" for test in (
                  "fill_with_all", "fill_and_unmap_in_sections", "fill_and_die", "keep_collapse")),
          "kept.sh munmap_race -r race.on.playground"),
         cpus=2, mem=4096, timeout=1700, append=f"{NUMA} {RCU_TABLES}", preempt="full", seconds=5,
         env=("FAULTLINE_PLAYGROUND=60",),
         reason="No page, charge or reservation of huge pages is lost.  For an hour of it, set "
         "EACH=200 and a longer timeout."),
    Boot("kernel/debug/flip", "microvm-debug",
         ("pmd_clear_semantics", "pmd_clear_race -v flip", "spf_race -v flip",
          "hugetlb_zero_race -v flip", "walk_race -r race.flip.cpuset"),
         2, mem=4096, timeout=1700, append=f"{NUMA} {RCU_TABLES}", seconds=2,
         env=(FLIP_OFF,),
         reason="kernel/flip under KASAN, lockdep and mm's own checks, also with wider race "
         "windows and with failing allocations.  One host thread is too slow for the munmap and "
         "hugetlb programs: kernel/debug/races runs them, with the switch changing without going "
         "through 0.  With more than 4 ns for each instruction, the timer ticks of four CPUs of "
         "this kernel can take longer than their period, until a soft lockup is reported."),

    Boot("power/kernel/kunit", "ppc64le", cpus=2,
         reason="The KUnit suites of mm/faultline, which run when the kernel boots."),
    Boot("power/kernel/radix", "ppc64le", PPC64LE,
         mem=4096, timeout=1500, env=("FAULTLINE_MMU=Radix", "FAULTLINE_COUNT=200"),
         reason="The selftests with the radix MMU: page tables as on x86, with 64 KiB pages."),
    Boot("power/kernel/hash", "ppc64le", PPC64LE, mem=4096, timeout=1500, append="disable_radix",
         env=("FAULTLINE_MMU=Hash", "FAULTLINE_COUNT=200"),
         reason="The selftests with the hash MMU: the hardware does not read its page tables, "
         "and its huge pages are 16 MiB."),
    Boot("power/kernel/spf-radix", "ppc64le",
         ("mmu.sh", "spf_semantics", "spf_hold", "spf_race"),
         IN_TURN, mem=4096, timeout=1500, env=("FAULTLINE_MMU=Radix",), awake=True,
         reason="Speculative page faults with the radix MMU, also with wider windows and with "
         "flips.  On one host thread: with several, QEMU's tlbie does not wait until the other "
         "CPUs have flushed, so they write to read-only pages no matter what the kernel does."),
    Boot("power/kernel/spf-hash", "ppc64le", ("mmu.sh", "spf_semantics", "spf_race"),
         IN_TURN, mem=4096, timeout=1500, append="disable_radix", env=("FAULTLINE_MMU=Hash",),
         awake=True,
         reason="The same with the hash MMU, which is told of a new entry while the page table "
         "is locked."),

    Boot("arm64/kernel/kunit", "microvm-arm64", cpus=2,
         reason="The KUnit suites of mm/faultline, which run when the kernel boots."),
    Boot("arm64/kernel/semantics", "microvm-arm64", ARM64, mem=3072, timeout=1500, append=NUMA,
         env=("FAULTLINE_COUNT=200",),
         reason="kernel/semantics with 4 KiB pages.  One host thread per CPU: a patch of kernel "
         "text is one instruction here, not a breakpoint first."),
    Boot("arm64/kernel/races", "microvm-arm64", ARM64_RACES, mem=3072, timeout=1500, append=NUMA,
         env=("FAULTLINE_COUNT=200",),
         reason="kernel/races and kernel/flip with 4 KiB pages."),
    Boot("arm64/kernel/spf", "microvm-arm64", ("spf_semantics", "spf_hold", "spf_race"),
         mem=3072, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=200",),
         reason="Speculative page faults, also with wider windows and with flips.  One host thread "
         "per CPU: QEMU completes a broadcast TLBI when all CPUs have flushed, unlike a tlbie."),
    Boot("arm64/kernel/contpte", "microvm-arm64",
         ("munmap_semantics", "munmap_fault", "madvise_semantics", "walk_semantics",
          "spf_semantics", "spf_hold", "spf_race -v on", "spf_race -v wide", "munmap_race -V off",
          "madvise_race -V off", "walk_race -V off", "pmd_clear_race -V stock", "mthp.sh"),
         mem=3072, timeout=2400, append=f"{NUMA} {MTHP}", env=("FAULTLINE_COUNT=200",),
         reason="Page faults map 64 KiB at once where they can, with 16 contiguous entries, "
         "which the switches then find in the page tables."),
    Boot("arm64/64k/spf", "microvm-arm64-64k",
         ("spf_semantics -T kernel_writes", "spf_race" + "".join(
             f" -r spf_race.wide.{test}" for test in (
                 "keep_mremap", "keep_mprotect", "keep_split_merge", "keep_fork", "keep_swap",
                 "keep_mlock", "keep_pin", "keep_ksm", "stop_replace", "stop_munmap",
                 "stop_mprotect", "stop_userfaultfd", "stop_shared", "stop_notifier",
                 "fork_order"))),
         mem=6144, timeout=1500,
         reason="Speculative page faults with page tables of three levels, 8192 entries each, and "
         "huge pages of 512 MiB.  Left out are the tests that need many huge pages."),
    Boot("arm64/64k/semantics", "microvm-arm64-64k",
         ("munmap_semantics", "madvise_semantics -F vector",
          "walk_semantics -T pin -T mbind_large -T scan_hole"),
         mem=8192, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=200",),
         reason="The section switches there.  A range of four sections is 2 GiB, too much for the "
         "tests that are left out: io_uring pins 1 GiB, scan_hole has 3 GiB for two ranges, and "
         "mbind_large and the vectors need more memory than a node has."),
    Boot("arm64/va52/semantics", "microvm-arm64-va52", ARM64,
         mem=3072, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=200",), qemu=NEWEST,
         detected=NEWEST_HAS,
         reason="Page tables of five levels, as with Debian's configuration on the newest CPUs."),
    Boot("arm64/va52/races", "microvm-arm64-va52",
         ("munmap_race -V off", "madvise_race -V off", "walk_race -V off",
          "pmd_clear_race -V stock"),
         mem=3072, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=200",), qemu=NEWEST,
         detected=NEWEST_HAS,
         reason="Tables of five levels that go away."),
    Boot("arm64/va52/spf", "microvm-arm64-va52", ("spf_semantics", "spf_hold", "spf_race -V stock"),
         mem=3072, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=200",), qemu=NEWEST,
         detected=NEWEST_HAS,
         reason="Speculative page faults there, beside memory with tags (MTE)."),
    Boot("arm64/va52/folded", "microvm-arm64-va52",
         ("munmap_semantics", "walk_semantics", "pmd_clear_semantics", "spf_semantics",
          "spf_race -v wide"),
         mem=3072, timeout=1500, append=NUMA, env=("FAULTLINE_COUNT=200",),
         reason="The same kernel on a CPU with 48-bit addresses and without tags: the fifth level "
         "is folded."),
    Boot("arm64/debug/semantics", "microvm-arm64-debug", ARM64,
         mem=4096, timeout=2700, append=NUMA, env=("FAULTLINE_COUNT=100",),
         reason="arm64/kernel/semantics under KASAN, lockdep and mm's own checks."),
    Boot("arm64/debug/races", "microvm-arm64-debug",
         ("munmap_race", "madvise_race", "hugetlb_race", "hugetlb_zero_race", "walk_race"),
         mem=4096, timeout=3000, append=NUMA, preempt="full",
         env=("FAULTLINE_COUNT=100", "FAULTLINE_PLAYGROUND=20"),
         reason="The races under the same, preempted at any place, also with wider windows."),
    Boot("arm64/debug/spf", "microvm-arm64-debug",
         ("spf_semantics", "spf_hold", "spf_race", "pmd_clear_race"),
         mem=4096, timeout=2700, append=NUMA, preempt="full", env=("FAULTLINE_COUNT=100",),
         reason="Speculative page faults, and tables that go away without IPIs, under the same."),
)}


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of a feature, and a race that fails without it."""

    # The constant in mm/faultline that breaks the rule; empty: the race only has to pass.
    name: str
    # The behaviour that the rule asks for.
    what: str
    # A selftest and one of its tests.
    race: str
    # Words FILE=VALUE for /proc/sys/vm, if there is such a sysctl, or for /sys/kernel/debug.
    settings: str = ""
    # Variables for the selftest.
    env: tuple[str, ...] = ()
    seconds: int = 20
    # With all rules, the race has to pass; False: another row says so.
    passes: bool = True


def _hugetlb(name: str, what: str, race: str, settings: str = "", seconds: int = 20) -> Rule:
    return Rule(f"HUGETLB_{name}", what, f"hugetlb_race hugetlb_race.{race}", settings,
                seconds=seconds)


def _pmd_clear(name: str, what: str, race: str, passes: bool = True) -> Rule:
    # A slow VM must not make the race rare: the other process changes the table while a walker
    # is in a window.
    return Rule(name, what, f"pmd_clear_race pmd_clear_race.ipi_free.{race}", passes=passes,
                env=("FAULTLINE_WINDOW=20000",) if race == "unshare" else ())


def _spf(name: str, what: str, race: str, windows: str) -> Rule:
    # A slow VM must not make the race rare: a window is as long as QEMU may keep a CPU from
    # running.
    return Rule(name, what, f"spf_race spf_race.wide.{race}", env=(f"FAULTLINE_WINDOWS={windows}",))


def _hold(name: str, what: str, test: str) -> Rule:
    # Faults are held where a change has to come in between, so one run is enough.
    return Rule(name, what, f"spf_hold hold.{test}")


_DEBUG = Boot("", "microvm-debug", timeout=240)

# Race tests notice a violated rule.  The debug kernel breaks one rule at a time; the race that the
# rule prevents must then fail, or the kernel must report a problem.
RULES = {
    # Not here: T2 and T3 of page tables, whose windows no test hits; models break them
    # (tests/models/munmap-tables.pml).
    "kernel/debug/munmap-rules": (dataclasses.replace(_DEBUG, env=("FAULTLINE_MIB=16",)), (
        Rule("MUNMAP_NO_WAIT", "the wait for page faults",
             "munmap_race race.on.faults_in_progress"),
        Rule("MUNMAP_ZAP_FOREIGN", "zapping marked mappings only",
             "munmap_race race.on.map_fixed"),
        Rule("MUNMAP_UNMAP_FOREIGN", "unmapping marked mappings only",
             "munmap_race race.on.map_fixed", passes=False),
        Rule("MUNMAP_NO_SECOND_ZAP", "zapping again what was left out",
             "munmap_semantics munmap.on.mixed_and_holes"),
        Rule("MUNMAP_EARLY_RELEASE", "keeping the mark to the end",
             "munmap_race race.on.map_limit", "munmap_finish_window_us=20000"),
        Rule("MUNMAP_NO_RETRY", "the wait at a limit", "munmap_race race.on.map_limit",
             passes=False),
        Rule("MUNMAP_NO_COMPLETE", "freeing old pages before a mapping changes",
             "munmap_race race.on.replace_changed", "munmap_zap_window_us=20000"))),
    # Not here: that entry_peek() must not use huge_ptep_get(), as that looks at neighbouring
    # entries only on arm64; on x86 it is the same single read.
    "kernel/debug/hugetlb-rules": (dataclasses.replace(_DEBUG, append=NUMA), (
        _hugetlb("NO_RECHECK", "revalidation under the page table lock", "revalidate.leave",
                 "hugetlb_lock_window_us=20000 pmd_clear_ipi_free=1"),
        _hugetlb("NO_MAPPING", "the check that the page is still in the file",
                 "off.truncate_exact", "hugetlb_find_window_us=20000"),
        _hugetlb("NO_NEIGHBOUR", "the check that a neighbour is still in the file",
                 "off.punch_unmapped", "hugetlb_around_window_us=1000"),
        _hugetlb("NO_UNSHARE", "unsharing before the lock is dropped", "revalidate.unmap"),
        # The table is freed, and its lock with it.
        _hugetlb("NO_IRQS_OFF", "interrupts off until the table is locked", "revalidate.leave",
                 "hugetlb_lock_window_us=100000 pmd_clear_ipi_free=1"),
        _hugetlb("SPLIT_HOLD", "removing entry and rmap under one lock hold", "off.forget",
                 "hugetlb_zap_window_us=2000"),
        _hugetlb("NO_ENTRY_LOCK", "locking the table to look for a mapping", "off.forget",
                 "hugetlb_zap_window_us=20000"),
        # Hit once or twice in 20 s: the page must be cleared for its next user meanwhile.
        _hugetlb("NO_ENTRY_LOCK", "locking the table to look at a page", "off.scan",
                 "hugetlb_entry_window_us=100000", seconds=60))),
    "kernel/debug/hugetlb_zero-rules": (dataclasses.replace(_DEBUG, append=NUMA), (
        # A call takes the page and fills it itself, so it does not wait for it to be clear.
        Rule("ZERO_LATE_WRITE", "the lock of a page that is being cleared",
             "hugetlb_zero_race zero_race.on.last", "hugetlb_zero_held_window_us=20000",
             seconds=40),
        Rule("ZERO_KEEP_FLAG", "a page that is not clear any more once it was used",
             "hugetlb_zero_semantics zero.on.private"),
        Rule("ZERO_SKIP_REMOVE", "the end of clearing when a page leaves the pool",
             "hugetlb_zero_race zero_race.on.last", "hugetlb_zero_held_window_us=20000",
             passes=False),
        Rule("ZERO_STALE", "a page that is clear only when all of it is",
             "hugetlb_zero_race zero_race.on.kill", "hugetlb_zero_piece_window_us=1000"),
        Rule("ZERO_NO_RECHECK", "the check that the mapping is the same",
             "hugetlb_zero_hold zero_hold.prepared.protected"),
        Rule("ZERO_NO_OWN", "the preference for the page that was cleared for the fault",
             "hugetlb_zero_semantics zero.on.private", passes=False))),
    "kernel/debug/walk-rules": (dataclasses.replace(_DEBUG, append=NUMA,
                                                    env=("FAULTLINE_MIB=16",)), (
        # A window is as long as QEMU may keep a CPU from running.
        Rule("WALK_NO_RECHECK", "the check of a VMA once it is locked", "walk_race race.on.sum",
             "walk_find_window_us=20000"),
        # Many turns in each call: the race counts them to within two.
        Rule("WALK_NO_TURN", "the wait for those who wait", "walk_race race.on.populate_turns",
             env=("FAULTLINE_MIB=256",)),
        Rule("WALK_NO_MLOCK_CHARGE", "the charge for what mlock() has still to lock",
             "walk_race race.on.mlock_limit"),
        Rule("WALK_NO_MLOCK_WAIT", "the wait for mlock() of another thread",
             "walk_race race.on.mlock_whole"),
        Rule("WALK_NO_MLOCK_WAIT", "mremap() waiting while soft-dirty bits are cleared",
             "walk_race race.on.soft_dirty_moved"),
        Rule("WALK_FOREIGN_POLICY", "passing over memory with the policy of another call",
             "walk_race race.on.move_policy"),
        Rule("WALK_UFFD_LEFT", "taking the write protection away in each part",
             "walk_semantics walk.on.uffd_unregister"),
        Rule("WALK_NO_FLUSH", "the TLB flush before others have the lock",
             "walk_race race.on.soft_dirty"),
        Rule("WALK_MOVE_CLEAN", "soft-dirty bits of what mremap() moves",
             "walk_semantics walk.on.moved_soft_dirty"))),
    # The kernel behaves like a guest whose hypervisor flushes TLBs: on bare x86 a flush waits for
    # all walkers, no matter which rule is broken.
    "kernel/debug/pmd_clear-rules": (dataclasses.replace(_DEBUG, append=RCU_TABLES), (
        _pmd_clear("PMD_CLEAR_NO_RECHECK", "rechecking the sequence number", "unshare"),
        _pmd_clear("PMD_CLEAR_NO_COUNT", "a new sequence number when unsharing", "unshare",
                   passes=False),
        _pmd_clear("PMD_CLEAR_NO_FLUSH_CHECK",
                   "checking the sequence number where a flush does not wait", "unshare",
                   passes=False),
        # For PMD_CLEAR_NO_COLLAPSE_RCU, the window of get_user_pages_fast() is shorter than a
        # collapse: that rule is in spf-rules.
        _pmd_clear("", "", "collapse"),
        _pmd_clear("PMD_CLEAR_NO_TABLE_RCU", "the grace period for a table without a batch",
                   "table"))),
    "kernel/debug/spf-rules": (dataclasses.replace(_DEBUG, append=NUMA), (
        _spf("SPF_NO_SEQUENCE", "revalidation under the page table lock", "stop_munmap",
             "lock=20000"),
        _spf("SPF_NO_LOCKED", "the check for a concurrent VMA change", "fork_order", ""),
        _spf("SPF_NO_DETACHED", "the check for an unmapped VMA", "stop_munmap", "find=20000"),
        _spf("SPF_NO_FIND", "the second VMA lookup", "stop_munmap_slow_memory", "sleep=80000"),
        _spf("SPF_NO_NOTIFIER", "the check for MMU notifiers", "stop_notifier",
             "lock=2000 change=2000"),
        _spf("SPF_NO_DRAIN", "the wait in mremap()", "stop_stale", "change=100000"),
        _spf("SPF_NO_WAIT", "the wait in the first MMU notifier registration", "stop_notifier",
             "change=50000"),
        _spf("SPF_EARLY_FILE", "not touching a file that may be closed", "stop_overlay",
             "lock=20000"),
        _spf("SPF_NO_RECHECK", "the check of a VMA once it is locked", "stop_shared", "vma=20000"),
        _hold("SPF_PREPARE_LOCKED", "preparing with the mapping unlocked",
              "writer_beside_prepared"),
        _hold("SPF_NO_FILL_CHECK", "revalidation before a huge page is installed",
              "advice_before_install"),
        _hold("SPF_HUGE_CROWD", "a bound of huge pages that wait", "crowd_with_pages"),
        _spf("SPF_NO_FILL_CHECK", "revalidation before a table is installed",
             "stop_table_munmap", "fill=20000"),
        _spf("SPF_HUGE_TWICE", "a single attempt to get a huge page", "stop_huge_tries",
             "prepared=20000"),
        _spf("SPF_SEEN_TABLE", "depositing only tables that nobody has seen", "fill_discard",
             "walk=100000 install=20000"),
        _spf("SPF_NO_ANON_CHECK", "revalidation before the anon_vma is made", "stop_anon_vma",
             "anon_vma=20000"),
        _spf("PMD_CLEAR_NO_COLLAPSE_RCU", "freeing a collapsed table by RCU", "stop_collapse",
             "walk=100000"),
        _spf("PMD_CLEAR_NO_TABLE_RCU", "freeing the only table of a munmap by RCU",
             "stop_munmap_table", "walk=100000"))),
    "arm64/va52/spf-rules": (
        Boot("", "microvm-arm64-va52", timeout=240, qemu=NEWEST), (
            _spf("SPF_NO_SEQUENCE", "revalidation of memory that gets tags", "stop_tags",
                 "lock=20000"),)),
    # With the hash MMU, a fault inserts a hash entry while the collapse flushes those of the
    # table.  Runs longer than spf-hash and with a wider window.  It does not prove that the
    # collapse has to drain the table (tests/models/protocol.py does): without the drain
    # (SPF_NO_DRAIN, EACH=60) it has passed as well.
    #
    # A stale hash entry translates for all threads alike, so that they agree on what they read
    # from the old page.  init_on_free clears that page when the collapse frees it.
    "power/kernel/collapse-hash": (
        Boot("", "ppc64le", ("mmu.sh",), IN_TURN, timeout=1200,
             append="disable_radix init_on_free=1", env=("FAULTLINE_MMU=Hash",), awake=True), (
            dataclasses.replace(_spf("", "", "keep_collapse_writing", "change=20000"), seconds=30),
            dataclasses.replace(_spf("", "", "keep_collapse", "change=20000"), seconds=30))),
}

# Rules without a row.
UNTESTED = {
    "MUNMAP_LATE_FLUSH": "T4: race.on.replaced_everywhere with munmap_flush_window_us=20000 has "
                         "noticed it once in four runs.",
    "SPF_BAD_MEMORY": "This is not a rule: it makes memory fail for spf_race.",
}


# Tests that are one call of a tool, which prints TAP.
CALLS = {
    # A host installs, boots, uses, upgrades, rolls back and removes our kernel.
    "hosts/images/deb-lifecycle": (LAB, "hosts", "test", "deb", "lifecycle"),
    "hosts/images/rpm-lifecycle": (LAB, "hosts", "test", "rpm", "lifecycle"),
    # A host survives power cuts, full disks, bad repositories and kernels that fail to boot.
    "hosts/failures/deb": (LAB, "hosts", "test", "deb", "failures"),
    "hosts/failures/rpm": (LAB, "hosts", "test", "rpm", "failures"),
    # faultline-boot with systemd-boot and GRUB: trials that pass, trials that fail, power cuts.
    "hosts/failures/loaders": (LAB, "hosts", "test", "deb", "loaders"),
    "hosts/failures/loaders-12": (LAB, "hosts", "test", "deb", "loaders-12"),
    # A host builds a module with DKMS, reads BTF, takes and opens a dump, and boots with dracut.
    "hosts/release/deb": (LAB, "hosts", "test", "deb", "release"),
    # The same on hosts for arm64, which have UEFI as well.
    "arm64/packages/deb-lifecycle": (LAB, "hosts", "test", "--flavour", ARM64_HOST,
                                     "deb", "lifecycle"),
    "arm64/packages/rpm-lifecycle": (LAB, "hosts", "test", "--flavour", ARM64_HOST,
                                     "rpm", "lifecycle"),
    "arm64/packages/loaders": (LAB, "hosts", "test", "--flavour", ARM64_HOST, "deb", "loaders"),
    # Upstream's tests give the same results as on stock.
    "upstream/mm": (LAB, "upstream", "mm"),
    "upstream/stress-ng": (LAB, "upstream", "stress-ng"),
}

# The command of each test that is a row of a table.
ROWS: dict[str, tuple[str, ...]] = ({title: (LAB, "boot", title) for title in BOOTS} | CALLS
                                    | {title: (LAB, "rules", title) for title in RULES})


_FOLDERS = {TESTS / name: name for name in SUITES}


def suite_of(test: str) -> Suite:
    """The suite of the test SUITE/NAME."""
    return SUITES[test.rpartition("/")[0]]


def title(path: Path) -> str:
    """The name of a program or test_NAME.py: SUITE/NAME."""
    return f"{_FOLDERS[path.parent]}/{path.stem.removeprefix('test_')}"


def is_program(path: Path) -> bool:
    """Whether a file is a test program of a suite."""
    return (path.parent in _FOLDERS and not path.match("test_*.py") and path.is_file()
            and os.access(path, os.X_OK))


def tests_of(suite: Suite) -> list[tuple[str, str]]:
    """The suite's tests: title and argument for pytest.

    Those in Python come first, which run one at a time, and last those that run alone.
    """
    found = [(title(path), str(path)) for path in (TESTS / suite.name).glob("*")
             if is_program(path) or path.match("test_*.py")]
    found += [(name, f"{__file__}::{name}") for name in ROWS if suite_of(name) == suite]
    return sorted(found, key=lambda test: (
        (name := test[0].rpartition("/")[2]) not in suite.first, name in suite.alone,
        not Path(test[1]).match("test_*.py"), test))
