# SPDX-License-Identifier: GPL-2.0-only
"""The coherence benchmark: how it reads counts, when it rejects them, its downloads."""

import io
import os
import tarfile
from pathlib import Path
from unittest import mock

import pytest

from bench import cli, coherence, qemu_plugin
from bench.coherence import CHECKS, Phase, Symbols, check_phase, parse_results
from bench.guest import BenchError
from faultline.common import Fail

MAP = """\
0000000000000000 D fixed_percpu_data
ffffffff81000000 T first
ffffffff81000020 t second
ffffffff81000030 D data
ffffffff81800b80 T asm_exc_page_fault
ffffffff81800d30 T asm_sysvec_apic_timer_interrupt
"""

RESULTS = """\
phase 1 windows 2 spoiled 1 faults 2 loads 9 stores 8
phase 0 windows 1 spoiled 0 faults 0 loads 0 stores 1
count 1 ffffffff81000004 1 0 1 1 0
count 1 ffffffff81000004 0 0 0 0 2
count 1 401000 0 1 0 0 0
early 0
outside 0
end
"""


# --- The output of the plugin.

def test_parse() -> None:
    phases = parse_results(RESULTS)
    assert (phases[1].windows, phases[1].spoiled, phases[1].faults) == (2, 1, 2)
    assert phases[1].counts == {0xffffffff81000004: (1, 0, 1, 1, 2), 0x401000: (0, 1, 0, 0, 0)}


def test_refused() -> None:
    for old, new, text in (("end\n", "", "to the end"), ("early 0", "early 3", "early 3"),
                           ("outside 0", "outside 1", "outside 1")):
        with pytest.raises(BenchError, match=text):
            parse_results(RESULTS.replace(old, new))
    with pytest.raises(BenchError, match="to the end"):
        parse_results("")


def test_symbols() -> None:
    symbols = Symbols(MAP)
    for addr, name in ((0xffffffff81000000, "first"), (0xffffffff8100001f, "first"),
                       (0xffffffff81000029, "second"), (0x401000, "(program)")):
        assert symbols.name(addr) == name
    assert symbols.entries() == "fault ffffffff81800b80\ninterrupt ffffffff81800d30\n"


def test_figures() -> None:
    counted = [coherence.Counted("faults_one_vma", "0", 2,
                                 {"first": (1, 0, 1, 1, 2), "second": (0, 2, 0, 0, 0)}),
               coherence.Counted("faults_one_vma", "1", 4, {"second": (0, 1, 0, 0, 0)})]
    found = {(sample.metric, sample.arm): sample.value
             for sample in coherence._samples(4, counted)}
    assert found["one_vma_4_transfers", "0"] == 2
    assert found["one_vma_4_transfers", "1"] == 0.25
    assert found["one_vma_4_dirty", "0"] == 0.5
    assert found["one_vma_4 locked of a fault: first", "0"] == 1
    assert found["one_vma_4 transfers of a fault: first", "1"] == 0


# --- A plugin that miscounts gives no figures.

def counted_phase(name: str, **changes: int) -> Phase:
    """Return the results of the guest's check NAME in 60 windows, with one kind changed."""
    counts = [20 * each for each in CHECKS[name]]
    for kind, change in changes.items():
        counts[coherence.KINDS.index(kind)] += change
    return Phase(windows=60, counts={0x401000: tuple(counts)})


def test_right() -> None:
    for name in CHECKS:
        assert check_phase(name, 60, counted_phase(name)) == ""


def test_one_off() -> None:
    for name in CHECKS:
        for kind in coherence.KINDS:
            for change in (-1, 1):
                phase = counted_phase(name, **{kind: change})
                assert f"{kind}: counted" in check_phase(name, 60, phase)


def test_lost_windows() -> None:
    phase = counted_phase("check_locked", locked=-3, write_miss=-1, dirty=-1)
    phase.windows, phase.spoiled = 59, 1
    assert check_phase("check_locked", 60, phase) == ""
    assert "windows counted" in check_phase("check_locked", 61, phase)
    phase.windows, phase.spoiled = 40, 20
    assert "interrupt" in check_phase("check_locked", 60, phase)


def test_faults() -> None:
    phase = Phase(windows=30, faults=30)
    assert check_phase("faults_one_vma", 30, phase) == ""
    phase.faults = 29
    assert "29 page faults" in check_phase("faults_one_vma", 30, phase)
    phase = counted_phase("check_store")
    phase.faults = 1
    assert "1 page faults" in check_phase("check_store", 60, phase)


def test_check_left_out() -> None:
    with pytest.raises(BenchError, match="not checked: check_alias"):
        coherence._counted(mock.Mock(samples=[]), {}, Symbols(MAP))


# --- The header from QEMU's source.

def tarball(folder: Path, name: str) -> Path:
    """Return a tar archive with one file."""
    path = folder / "qemu.tar.xz"
    with tarfile.open(path, "w:xz") as files:
        info = tarfile.TarInfo(name)
        info.size = 2
        files.addfile(info, io.BytesIO(b"/*"))
    return path


def test_found(tmp_path: Path) -> None:
    path = tarball(tmp_path, "qemu-7.2.0/include/qemu/qemu-plugin.h")
    assert qemu_plugin.header_in(path) == b"/*"


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(Fail, match="QEMU_PLUGIN_HEADER=path"):
        qemu_plugin.header_in(tarball(tmp_path, "qemu-7.2.0/README"))


def test_own() -> None:
    with mock.patch.dict(os.environ, QEMU_PLUGIN_HEADER="/nowhere/qemu-plugin.h"):
        with pytest.raises(Fail, match="there is no file"):
            qemu_plugin.header_folder()


# --- Numbers of CPUs.

def test_cpus() -> None:
    plan = coherence.Plan()
    options = cli._parser().parse_args(["coherence", "--cpus", "4,16", "--pages", "9"])
    cli._resize(plan, options)
    assert (plan.cpus, plan.pages) == ((4, 16), 9)


def test_errors() -> None:
    for name, words, text in (("coherence", ["--cpus", "4,0"], "1 or more"),
                              ("coherence", ["--pages", "4,5"], "one number"),
                              ("coherence", ["--cpus", "4,"], "invalid"),
                              ("spf", ["--cpus", "4,5"], "one number"),
                              ("spf", ["--pages", "4"], "not for spf")):
        with pytest.raises(BenchError, match=text):
            options = cli._parser().parse_args([name, *words])
            cli._resize(cli._BENCHMARKS[name].Plan(), options)
