# SPDX-License-Identifier: GPL-2.0-only
"""Two threads of a program: one fills and frees large arrays, the other needs small ones.

The latency is that of the other thread's step: a zeroed scratch array of 40 MiB, which the C
library always maps and unmaps, some writes to it, and their sum.

mapped: the large array is in a mapping of its own, which is closed; Python lets other threads run
meanwhile.  freed: numpy frees the array, and Python's lock is held meanwhile.
"""

import mmap
import sys

import numpy
from timing import run_beside

SCRATCH = 40 << 20
WRITES = 16


def fill_mapped(size: int) -> None:
    """Fill a mapping with numbers, and unmap it."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = numpy.frombuffer(area, dtype=numpy.uint8)
    array.fill(1)
    del array
    area.close()


def fill_freed(size: int) -> None:
    """Fill an array with numbers, and free it."""
    array = numpy.empty(size, dtype=numpy.uint8)
    array.fill(1)


def step() -> None:
    """Work with a scratch array."""
    scratch = numpy.zeros(SCRATCH, dtype=numpy.uint8)
    scratch[::SCRATCH // WRITES] = 1
    scratch[::SCRATCH // WRITES].sum()


def main() -> None:
    """Run both threads."""
    variant, out, ms, mib = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    fill = {"mapped": fill_mapped, "freed": fill_freed}[variant]
    run_beside(lambda: fill(mib << 20), step, out, ms)


main()
