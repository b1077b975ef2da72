# SPDX-License-Identifier: GPL-2.0-only
"""Which lines in a kernel log count as trouble."""


import pytest

from faultline.vm.console import Console, kunit_lines, taint_trouble

TROUBLE = {
    "kasan": ["BUG: KASAN: slab-use-after-free in faultline_test+0x10/0x20"],
    "kcsan": ["BUG: KCSAN: data-race in unmap_region / vma_lookup"],
    "kfence": ["BUG: KFENCE: out-of-bounds read in f+0x1/0x2"],
    "ubsan": ["UBSAN: array-index-out-of-bounds in mm/memory.c:10:2"],
    "slub": ["BUG kmalloc-64 (Not tainted): Left Redzone overwritten"],
    "soft lockup": ["watchdog: BUG: soft lockup - CPU#1 stuck for 130s! [prog:99]"],
    "hard lockup": ["watchdog: Watchdog detected hard LOCKUP on cpu 0"],
    "workqueue lockup": ["BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck"],
    "bad page state": ["BUG: Bad page state in process prog  pfn:01234",
                       "BUG: Bad page map in process prog  pte:8000 pmd:1234"],
    "bad rss-counter": ["BUG: Bad rss-counter state mm:00000000abcd type:MM_ANONPAGES val:1"],
    "pgtables_bytes": ["BUG: non-zero pgtables_bytes on freeing mm: 4096"],
    "page_table_check": ["kernel BUG at mm/page_table_check.c:118!"],
    "lockdep": ["WARNING: possible circular locking dependency detected",
                "WARNING: possible recursive locking detected",
                "WARNING: inconsistent lock state",
                "WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected",
                "WARNING: bad unlock balance detected!",
                "WARNING: held lock freed!",
                "WARNING: prog/12 still has locks held!",
                "WARNING: lock held when returning to user space!",
                "[ BUG: Invalid wait context ]"],
    "suspicious rcu usage": ["WARNING: suspicious RCU usage"],
    "rcu stall": ["rcu: INFO: rcu_sched self-detected stall on CPU",
                  "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
                  "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: {",
                  "INFO: rcu_tasks detected stalls on tasks:"],
    "hung task": ["INFO: task khugepaged:35 blocked for more than 241 seconds.",
                  "INFO: task my prog:35 blocked for more than 241 seconds."],
    "kmemleak": ["kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)"],
    "list corruption": ["list_del corruption. prev->next should be ffff, but was dead"],
    "bug": ["BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "BUG: unable to handle page fault for address: ffffffffdeadbeef",
            "BUG: sleeping function called from invalid context at mm/memory.c:1",
            "BUG: scheduling while atomic: prog/1/0x2",
            "kernel BUG at mm/mmap.c:100!"],
    "oops": ["Oops: Oops: 0002 [#1] PREEMPT SMP",
             "Oops: general protection fault, probably for non-canonical address 0xdead: 0000",
             "Oops: Kernel access of bad area, sig: 11 [#1]",
             "traps: PANIC: double fault, error_code: 0x0"],
    "panic": ["Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b"],
    "warn": ["WARNING: CPU: 0 PID: 1 at mm/vma.c:100 do_vmi_munmap+0x1/0x2"],
}

HARMLESS = [
    "Linux version 6.12.117 (gcc (Debian)) #1 SMP",
    "WARNING: this is somebody's prose",
    "Warning: unable to open an initial console.",
    "debug: unmapping init BUG table",
    "prog[12]: segfault at 0 ip 0000 sp 0000 error 4 in prog[400000+1000]",
    "traps: prog[12] general protection fault ip:401000 sp:7ffe error:0 in prog[400000+1000]",
    "pci 0000:00:1f.0: quirk_ich: BUG workaround on",
    "sysrq: Show Blocked State",
    "rcu: \tRCU CPU stall timeout set to 240",
    "workqueue: round-robin CPU selection forced, expect performance impact",
    "clocksource: Long readout interval, skipping watchdog check",
    "kmemleak: Kernel memory leak detector initialized (mem pool available: 15679)",
    "INFO: lockdep is fine",
    "Kernel panic is what oops=panic would give",
]


def feed(*messages: str, allow_warn: bool = False, stamp: str = "[   12.345678] ") -> Console:
    """Return a console that has read the messages."""
    console = Console(allow_warn)
    console.feed("".join(f"{stamp}{text}\r\n" for text in messages).encode())
    console.finish()
    return console


# --- Every documented format is detected and named, nothing else is.

@pytest.mark.parametrize("kind", TROUBLE)
def test_trouble(kind: str) -> None:
    for text in TROUBLE[kind]:
        found = feed("before", text, "after").trouble
        assert [(item.kind, item.text, item.line) for item in found] == [(kind, text, 2)]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless(text: str) -> None:
    assert feed(text).trouble == []


def test_without_time_stamp_nothing_counts() -> None:
    for messages in TROUBLE.values():
        assert feed(*messages, stamp="").trouble == []


def test_stamp_with_caller() -> None:
    for stamp in ("[    1.000000][    T1] ", "[    1.000000][   C0] ", "<4>[12345.000000] "):
        assert len(feed("UBSAN: x", stamp=stamp).trouble) == 1, stamp


def test_allow_warn_lets_only_warn_pass() -> None:
    for kind, messages in TROUBLE.items():
        for text in messages:
            console = feed(text, allow_warn=True)
            assert len(console.trouble) == (0 if kind == "warn" else 1), text
            assert len(console.allowed) == (1 if kind == "warn" else 0), text


def test_pieces_of_any_size() -> None:
    log = b"[    1.000000] a\r\n[    1.000001] UBSAN: b\r\n[    1.000002] BUG: c"
    for size in (1, 2, 7, len(log)):
        console = Console()
        for start in range(0, len(log), size):
            console.feed(log[start:start + size])
        console.finish()
        assert [item.line for item in console.trouble] == [2, 3], size


def test_not_text() -> None:
    console = Console()
    console.feed(bytes(range(256)) + b"\n[    1.000000] UBSAN: b\n")
    assert len(console.trouble) == 1


def test_stop() -> None:
    console = feed("UBSAN: a")
    console.stop()
    console.feed(b"[    2.000000] Kernel panic - not syncing: NMI\n")
    assert len(console.trouble) == 1


def test_oom_kill_is_reported_only() -> None:
    console = feed("Out of memory: Killed process 60 (tail) total-vm:9kB, anon-rss:8kB")
    assert console.trouble == []
    assert console.killed == ["Out of memory: Killed process 60 (tail)"]


def test_an_int3_is_told_from_other_oopses() -> None:
    assert feed("Oops: int3: 0000 [#1] SMP NOPTI").stale_int3
    assert not feed("Oops: 0002 [#1] SMP NOPTI").stale_int3


def test_only_the_timer_panic_is_a_flake_of_the_host() -> None:
    start = "Kernel panic - not syncing: "
    assert feed(start + "IO-APIC + timer doesn't work!  Boot with").host_flake
    assert not feed(start + "VFS: Unable to mount root fs").host_flake


def test_taint() -> None:
    assert taint_trouble(0, False) == []
    assert taint_trouble(1 << 12 | 1 << 18, False) == []
    assert taint_trouble(1 << 9 | 1 << 7, False) == ["oops or BUG", "WARN"]
    assert taint_trouble(1 << 9, True) == []


def test_kunit_part() -> None:
    log = ("[    0.100000] before\n[    0.200000] KTAP version 1\n[    0.200001] 1..1\n"
           "no stamp\n[    0.300000]     ok 1 a\n")
    assert list(kunit_lines(log)) == ["KTAP version 1", "1..1", "    ok 1 a"]
