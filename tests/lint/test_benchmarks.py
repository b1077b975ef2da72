# SPDX-License-Identifier: GPL-2.0-only
"""The benchmarks compile together with the helpers of the selftests."""

import pytest

from faultline.bench import guest
from faultline.common import ROOT

BENCH = ROOT / "tests/bench"
PROGRAMS = sorted({*BENCH.glob("*.c")} - {BENCH / "bench_util.c"})


@pytest.mark.parametrize("name", [path.stem for path in PROGRAMS])
def test_benchmark_compiles(name: str) -> None:
    """Without a warning; else the error is the compiler's."""
    guest.compile_program(BENCH / f"{name}.c", *BENCH.glob(f"{name}/*.h"))
