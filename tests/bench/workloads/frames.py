# SPDX-License-Identifier: GPL-2.0-only
"""polars, two threads of a program: one runs a large query in a loop, the other small ones.

The latency is that of a small query, which maps a small Arrow file, sums it and unmaps it.

mapped: the large query maps an Arrow file of MIB, sums it and unmaps it.  computed: it makes and
sums two columns of half of MIB each, and polars's allocator (jemalloc) gives their memory back.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import polars
from timing import run_beside

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
    """Run both threads."""
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

    def small() -> None:
        if total_of(small_file) != sum(range(SMALL_ROWS)):
            raise SystemExit("a small query has a wrong answer")

    answers = run_beside(query, small, out, ms)
    large_file.unlink(missing_ok=True)
    if any(answer != rows * (rows - 1) // 2 for answer in answers):
        raise SystemExit("a large query has a wrong answer")


main()
