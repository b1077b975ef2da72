# SPDX-License-Identifier: GPL-2.0-only
"""DuckDB, two connections of a program: one runs a large query in a loop, the other small ones.

The latency is that of a small query, which reads a hundred rows.  The large one collects half of
MIB in one list, and DuckDB's allocator (jemalloc) gives that memory back later.
"""

import sys
import threading
import time
from pathlib import Path

import duckdb

# Two numbers.
ROW_BYTES = 16
THREADS = 2
SMALL_ROWS = 100
LARGE = "SELECT len(list(value)) FROM measurement"
SMALL = "SELECT count(*), sum(key) FROM measurement WHERE key >= ? AND key < ?"


def main() -> None:
    """Run both threads and write the results."""
    out, ms, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rows = (mib << 20) // ROW_BYTES
    database = duckdb.connect(config={"threads": THREADS})
    database.execute("CREATE TABLE measurement AS SELECT range AS key, hash(range) AS value"
                     f" FROM range({rows})")
    stop = threading.Event()
    answers: list[object] = []
    failed: list[duckdb.Error] = []

    def large() -> None:
        connection = database.cursor()
        try:
            while not stop.is_set():
                answers.append(connection.execute(LARGE).fetchone())
        except duckdb.Error as err:
            failed.append(err)

    thread = threading.Thread(target=large, daemon=True)
    latency: list[float] = []
    connection = database.cursor()
    counters = Path("/proc/vmstat")
    Path(f"{out}.before").write_text(counters.read_text("ascii"), "ascii")
    start = now = time.monotonic()
    thread.start()
    while now < start + ms / 1000:
        first = len(latency) * SMALL_ROWS % (rows - SMALL_ROWS)
        before = now
        found = connection.execute(SMALL, [first, first + SMALL_ROWS]).fetchone()
        now = time.monotonic()
        latency.append(now - before)
        if found != (SMALL_ROWS, sum(range(first, first + SMALL_ROWS))):
            raise SystemExit("a small query has a wrong answer")
    Path(f"{out}.after").write_text(counters.read_text("ascii"), "ascii")
    done = len(answers)
    stop.set()
    thread.join()
    if failed or any(answer != (rows,) for answer in answers):
        raise SystemExit(f"a large query failed: {failed or answers}")
    Path(f"{out}.latency").write_text("".join(f"{took * 1e6:.0f}\n" for took in latency), "ascii")
    Path(f"{out}.work").write_text(f"{len(latency)} {now - start:.3f}\n", "ascii")
    Path(f"{out}.facts").write_text(f"large_queries {done}\n", "ascii")


main()
