# SPDX-License-Identifier: GPL-2.0-only
"""DuckDB, two connections of a program: one runs a large query in a loop, the other small ones.

The latency is that of a small query, which reads a hundred rows.  The large one collects half of
MIB in one list, and DuckDB's allocator (jemalloc) gives that memory back later.
"""

import itertools
import sys

import duckdb
from timing import run_beside

# Two numbers.
ROW_BYTES = 16
THREADS = 2
SMALL_ROWS = 100
LARGE = "SELECT len(list(value)) FROM measurement"
SMALL = "SELECT count(*), sum(key) FROM measurement WHERE key >= ? AND key < ?"


def main() -> None:
    """Run both threads."""
    out, ms, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rows = (mib << 20) // ROW_BYTES
    database = duckdb.connect(config={"threads": THREADS})
    database.execute("CREATE TABLE measurement AS SELECT range AS key, hash(range) AS value"
                     f" FROM range({rows})")
    connections = [database.cursor() for _ in range(2)]
    starts = itertools.cycle(range(0, rows - SMALL_ROWS, SMALL_ROWS))

    def large() -> object:
        return connections[0].execute(LARGE).fetchone()

    def small() -> None:
        keys = range(start := next(starts), start + SMALL_ROWS)
        if connections[1].execute(SMALL, [keys.start, keys.stop]).fetchone() != (
                SMALL_ROWS, sum(keys)):
            raise SystemExit("a small query has a wrong answer")

    if any(answer != (rows,) for answer in run_beside(large, small, out, ms)):
        raise SystemExit("a large query has a wrong answer")


main()
