# SPDX-License-Identifier: GPL-2.0-only
"""The program of the micro-benchmarks, on this host, with its kernel as it is."""

import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from bench import guest
from faultline.common import ROOT

TESTS = ("page_fault1", "page_fault2", "page_fault3", "mmap1", "mmap2", "malloc1", "malloc2",
         "brk1", "unmap", "threadspawn1", "pft", "case-anon-w-seq-mt", "case-anon-cow-seq",
         "case-hugetlb")
# They cannot run in that mode.
NOT_IN = {"threads": {"brk1"}, "processes": {"case-anon-w-seq-mt"}}
# One of the tasks should get a CPU in this time, with other programs on it; if a busy host keeps
# all of them from one, the test is tried again with the second time.
MS, LONG_MS = "300", "3000"
TRIES = 5


@pytest.fixture(scope="module", name="program")
def _program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with mock.patch.object(guest, "BUILD", tmp_path_factory.mktemp("build")):
        return guest.compile_program(ROOT / "rollout/bench/micro.c")


def ran(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run PROGRAM with WORDS."""
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=600,
                          check=False)


@pytest.mark.parametrize("mode", NOT_IN)
def test_all(program: Path, mode: str) -> None:
    result = ran(program, "--arms", "here", "--mode", mode, "--tasks", "2", "--ms", MS,
                 "--rounds", "2", "all")
    assert (result.returncode, result.stderr) == (0, "")
    skipped = set(re.findall(r"^skipped: (\S+): .+$", result.stdout, re.MULTILINE))
    # This host may have free huge pages.
    assert skipped - {"case-hugetlb"} == NOT_IN[mode]
    samples = guest.parse_samples(result.stdout)
    assert [sample.metric for sample in samples] == [
        f"{test}_{mode}_2" for test in TESTS if test not in skipped for _ in range(2)]
    assert all(sample.value >= 0 and sample.arm == "here" for sample in samples)
    idle = {sample.metric.removesuffix(f"_{mode}_2") for sample in samples if not sample.value}
    for test in idle:
        for _ in range(TRIES):
            again = ran(program, "--arms", "here", "--mode", mode, "--tasks", "2", "--ms", LONG_MS,
                        "--rounds", "1", test)
            assert (again.returncode, again.stderr) == (0, "")
            sample, = guest.parse_samples(again.stdout)
            if sample.value:
                break
        else:
            raise AssertionError(f"{test} does nothing in {LONG_MS} ms, {TRIES} times")


def test_order_of_arms(program: Path) -> None:
    result = ran(program, "--arms", "a,b", "--ms", MS, "--rounds", "2", "mmap1")
    assert (result.returncode, result.stderr) == (0, "")
    assert [sample.arm for sample in guest.parse_samples(result.stdout)] == ["a", "b", "b", "a"]


def test_help(program: Path) -> None:
    result = ran(program, "--help")
    assert re.findall(r"^  (\S+)  +\S.*$", result.stdout, re.MULTILINE) == [
        "ARM", "--rounds", "--mode", "--parent", "--tasks", "--ms", *TESTS]


@pytest.mark.parametrize("words, error", [
    (("all",), "Usage"),
    (("--arms", "here"), "Usage"),
    (("--arms", "here", "fly"), "no test 'fly'"),
    (("--arms", "here", "--mode", "fibers", "mmap1"), "no mode 'fibers'"),
    (("--arms", "here", "--tasks", "0", "mmap1"), "--tasks 0: must be"),
    (("--arms", "here", "--tasks", "257", "mmap1"), "--tasks 257: must be"),
    (("--arms", "here", "--parent", "1", "mmap1"), "the process that started this one has ended"),
])
def test_errors(program: Path, words: tuple[str, ...], error: str) -> None:
    result = ran(program, *words)
    assert result.returncode == 1 and error in result.stderr and not result.stdout
