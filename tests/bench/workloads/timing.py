# SPDX-License-Identifier: GPL-2.0-only
"""Shared by the Python programs: a timed loop, and the files with its results.

The names of the files begin with OUT; `lab bench workloads` reads them.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path


def save_counters(out: str, when: str) -> None:
    """Save the kernel's counters; WHEN is "before" or "after"."""
    Path(f"{out}.{when}").write_text(Path("/proc/vmstat").read_text("ascii"), "ascii")


def save(out: str, latency: list[float], seconds: float, **facts: int) -> None:
    """Save the seconds that each step took and that all took, and what else was counted."""
    Path(f"{out}.latency").write_text("".join(f"{took * 1e6:.0f}\n" for took in latency), "ascii")
    Path(f"{out}.work").write_text(f"{len(latency)} {seconds:.3f}\n", "ascii")
    if facts:
        Path(f"{out}.facts").write_text(
            "".join(f"{name} {value}\n" for name, value in facts.items()), "ascii")


def run_beside(large: Callable[[], None], small: Callable[[], None], out: str, ms: int) -> None:
    """Time SMALL again and again for MS milliseconds beside a thread that repeats LARGE.

    Saves the results.
    """
    stop = threading.Event()
    ended: list[float] = []
    failed: list[Exception] = []

    def repeat() -> None:
        try:
            while not stop.is_set():
                large()
                ended.append(time.monotonic())
        except Exception as err:  # each library has errors of its own
            failed.append(err)

    thread = threading.Thread(target=repeat, daemon=True)
    latency: list[float] = []
    save_counters(out, "before")
    start = now = time.monotonic()
    thread.start()
    while now < start + ms / 1000:
        before = now
        small()
        now = time.monotonic()
        latency.append(now - before)
    save_counters(out, "after")
    done = len(ended)
    stop.set()
    thread.join()
    if failed:
        raise SystemExit(f"the large task failed: {failed[0]}")
    save(out, latency, now - start, large_done=done)
