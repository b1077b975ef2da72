# SPDX-License-Identifier: GPL-2.0-only
"""Reader for the kernel log: detects signs of kernel trouble.

Only lines with printk's time stamp count, so output of a program on its
terminal cannot be mistaken for a report. A line that the guest writes to
/dev/kmsg does count: in the kernel log it cannot be distinguished from the
kernel's own messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

_PREFIX = re.compile(r"(?:<\d+>)?\[\s*\d+\.\d{6}\](?:\[\s*[TC]\d+\])? ")

# (kind, pattern at the start of the message, allowed with --allow-warn)
_PATTERNS: tuple[tuple[str, re.Pattern[str], bool], ...] = tuple(
    (kind, re.compile(pattern), allowed) for kind, pattern, allowed in (
        ("kasan", r"BUG: KASAN: ", False),
        ("kcsan", r"BUG: KCSAN: ", False),
        ("kmsan", r"BUG: KMSAN: ", False),
        ("kfence", r"BUG: KFENCE: ", False),
        ("ubsan", r"UBSAN: ", False),
        ("soft lockup", r"(?:watchdog: )?BUG: soft lockup - CPU#\d+ stuck", False),
        ("hard lockup", r"(?:NMI )?(?:watchdog: )?Watchdog detected hard LOCKUP", False),
        ("workqueue lockup", r"(?:workqueue: )?BUG: workqueue lockup", False),
        ("bad page state", r"BUG: Bad page (?:state|map|cache) in process ", False),
        ("bad rss-counter", r"BUG: Bad rss-counter state ", False),
        ("pgtables_bytes", r"BUG: non-zero pgtables_bytes on freeing mm", False),
        ("lockdep", r"(?:WARNING: (?:"
         r"possible circular locking dependency detected"
         r"|possible recursive locking detected"
         r"|possible irq lock inversion dependency detected"
         r"|\S+-safe -> \S+-unsafe lock order detected"
         r"|inconsistent lock state"
         r"|chain_key collision"
         r"|Nested lock was not taken"
         r"|bad (?:unlock balance|contention) detected!"
         r"|held lock freed!"
         r"|.+ still has locks held!"
         r"|lock held when returning to user space!)"
         r"|INFO: trying to register non-static key"
         r"|\[ BUG: Invalid wait context \])", False),
        ("suspicious rcu usage", r"WARNING: suspicious RCU usage", False),
        ("rcu stall", r"(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stalls?", False),
        ("hung task", r"(?:hung_task: )?INFO: task \S.* blocked(?: in I/O wait)? for more than "
         r"\d+ seconds", False),
        ("page_table_check", r"kernel BUG at \S*mm/page_table_check\.c", False),
        ("slub", r"BUG \S+ \([^)]*\): ", False),
        ("kmemleak", r"kmemleak: \d+ new suspected memory leaks", False),
        ("list corruption", r"list_(?:add|del) corruption", False),
        ("bug", r"(?:kernel )?BUG(?: at |: )", False),
        ("oops", r"(?:Oops: |Oops - |Unable to handle kernel |Internal error: "
         r"|Kernel access of bad area|Fixing recursive fault but reboot is needed"
         r"|(?:traps: )?PANIC: )", False),
        ("panic", r"Kernel panic - not syncing", False),
        # WARN() with a text prints it on the line before this one.
        ("warn", r"WARNING: CPU: \d+ PID: \d+ at ", True),
    ))

_OOM = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process \d+ \([^)]*\)")

# Firmware and emulated timers may fail on a busy host.  That says nothing about
# the kernel, so the boot is tried again.
_HOST_FLAKE = re.compile(r"Kernel panic - not syncing: IO-APIC \+ timer doesn't work")

# QEMU's multi-threaded TCG may hit an int3 that the kernel has already removed
# (seen with QEMU 7.2, with stock kernels too).  During boot it is harmless; once
# the command runs it counts like any oops.
_STALE_INT3 = re.compile(r"Oops: int3: ")


@dataclass(frozen=True)
class Trouble:
    """One sign of trouble: its kind, the message and its line in the log."""

    kind: str
    text: str
    line: int

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data for result.json."""
        return asdict(self)


def message(line: str) -> str | None:
    """Return the text of a printk line without its time stamp, else None."""
    match = _PREFIX.match(line)
    return line[match.end():] if match else None


class Console:
    """Parses the log as it arrives and collects trouble and notes."""

    def __init__(self, allow_warn: bool = False) -> None:
        self.trouble: list[Trouble] = []
        self.allowed: list[Trouble] = []
        self.killed: list[str] = []
        self.host_flake = False
        self.stale_int3 = False
        self.lines = 0
        self._allow_warn = allow_warn
        self._partial = b""
        self._watching = True

    def stop(self) -> None:
        """Stop parsing: the following output was requested by the runner."""
        self._watching = False

    def feed(self, data: bytes) -> None:
        """Parse the next piece of the log."""
        *complete, self._partial = (self._partial + data).split(b"\n")
        for line in complete:
            self._line(line.decode("utf-8", "replace").rstrip("\r"))

    def finish(self) -> None:
        """Parse a last line without a newline."""
        if self._partial:
            self.feed(b"\n")

    def _line(self, line: str) -> None:
        self.lines += 1
        text = message(line)
        if text is None or not self._watching:
            return
        if _HOST_FLAKE.match(text):
            self.host_flake = True
        if _STALE_INT3.match(text):
            self.stale_int3 = True
        if match := _OOM.match(text):
            self.killed.append(match[0])
            return
        for kind, pattern, allowable in _PATTERNS:
            if pattern.match(text):
                found = Trouble(kind, text, self.lines)
                if allowable and self._allow_warn:
                    self.allowed.append(found)
                else:
                    self.trouble.append(found)
                return


def kunit_lines(log: str) -> Iterator[str]:
    """Yield the KUnit part of a kernel log without time stamps."""
    begun = False
    for line in log.splitlines():
        text = message(line)
        if text is None:
            continue
        begun = begun or re.match(r"K?TAP version \d+\s*$", text) is not None
        if begun:
            yield text


# Bits of /proc/sys/kernel/tainted that mean trouble, even without a message.
TAINT_TROUBLE = {
    4: "machine check",
    5: "bad page",
    7: "oops or BUG",
    9: "WARN",
    14: "soft lockup",
}


def taint_trouble(taint: int, allow_warn: bool) -> list[str]:
    """Name the bits of taint that mean trouble."""
    return [text for bit, text in TAINT_TROUBLE.items()
            if taint >> bit & 1 and not (allow_warn and text == "WARN")]
