# SPDX-License-Identifier: GPL-2.0-only
"""The benchmarks compile together with the helpers of the selftests."""

from pathlib import Path

import pytest

from bench import guest
from faultline.common import ROOT

PROGRAMS = sorted(path for folder in ("rollout/bench", "tests/bench")
                  for path in (ROOT / folder).glob("*.c") if path.stem != "bench_util")


@pytest.mark.parametrize("path", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_benchmark_compiles(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a warning; else the error is the compiler's."""
    monkeypatch.setattr(guest, "BUILD", tmp_path)
    monkeypatch.setenv("CFLAGS", "-Werror")
    guest.compile_program(path)
