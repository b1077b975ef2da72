# SPDX-License-Identifier: GPL-2.0-only
"""polars, two threads of a program: one runs a large query in a loop, the other small ones.

The latency is that of a small query, which maps a small Arrow file, sums it and unmaps it.

mapped: the large query maps an Arrow file of MIB, sums it and unmaps it.  computed: it makes and
sums two columns of half of MIB each, and polars's allocator (jemalloc) gives their memory back.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import polars

FOLDER = Path("/tmp/frames")
# Two numbers.
ROW_BYTES = 16
SMALL_ROWS = 1000


def write(path: Path, rows: int) -> None:
    """Write an Arrow file with two columns."""
    number = polars.int_range(rows, eager=True)
    polars.DataFrame({"key": number, "value": number}).write_ipc(path, compression="uncompressed")


def total_of(path: Path) -> object:
    """Map the file, sum a column of it, and unmap it."""
    return polars.read_ipc(path, memory_map=True)["key"].sum()


def computed(rows: int) -> object:
    """Make two columns and sum one of them."""
    key = polars.int_range(rows)
    return polars.select(key.alias("key"), (key * 2).alias("value"))["key"].sum()


def main() -> None:
    """Run both threads and write the results."""
    variant, out, ms, mib = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rows = (mib << 20) // ROW_BYTES
    FOLDER.mkdir(exist_ok=True)
    large_file, small_file = FOLDER / "large", FOLDER / "small"
    write(small_file, SMALL_ROWS)
    queries: dict[str, Callable[[], object]] = {
        "mapped": lambda: total_of(large_file), "computed": lambda: computed(rows)}
    query = queries[variant]
    if variant == "mapped":
        write(large_file, rows)
    stop = threading.Event()
    answers: list[object] = []
    failed: list[Exception] = []

    def large() -> None:
        try:
            while not stop.is_set():
                answers.append(query())
        except Exception as err:  # polars has errors of many kinds
            failed.append(err)

    thread = threading.Thread(target=large, daemon=True)
    latency: list[float] = []
    counters = Path("/proc/vmstat")
    Path(f"{out}.before").write_text(counters.read_text("ascii"), "ascii")
    start = now = time.monotonic()
    thread.start()
    while now < start + ms / 1000:
        before = now
        found = total_of(small_file)
        now = time.monotonic()
        latency.append(now - before)
        if found != sum(range(SMALL_ROWS)):
            raise SystemExit("a small query has a wrong answer")
    Path(f"{out}.after").write_text(counters.read_text("ascii"), "ascii")
    done = len(answers)
    stop.set()
    thread.join()
    large_file.unlink(missing_ok=True)
    if failed or any(answer != rows * (rows - 1) // 2 for answer in answers):
        raise SystemExit(f"a large query failed: {failed or answers}")
    Path(f"{out}.latency").write_text("".join(f"{took * 1e6:.0f}\n" for took in latency), "ascii")
    Path(f"{out}.work").write_text(f"{len(latency)} {now - start:.3f}\n", "ascii")
    Path(f"{out}.facts").write_text(f"large_queries {done}\n", "ascii")


main()
