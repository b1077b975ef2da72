# SPDX-License-Identifier: GPL-2.0-only
"""The coherence benchmark: how it reads counts, when it rejects them, its downloads."""

import io
import os
import tarfile
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from faultline.bench import cli, coherence, qemu_plugin
from faultline.bench.coherence import CHECKS, Phase, Symbols, check_phase, parse_results
from faultline.bench.guest import BenchError
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


class Results(unittest.TestCase):
    """The output of the plugin."""

    def test_parse(self) -> None:
        phases = parse_results(RESULTS)
        self.assertEqual((phases[1].windows, phases[1].spoiled, phases[1].faults), (2, 1, 2))
        self.assertEqual(phases[1].counts,
                         {0xffffffff81000004: (1, 0, 1, 1, 2), 0x401000: (0, 1, 0, 0, 0)})

    def test_refused(self) -> None:
        for old, new, text in (("end\n", "", "to the end"), ("early 0", "early 3", "early 3"),
                               ("outside 0", "outside 1", "outside 1")):
            with self.subTest(text), self.assertRaisesRegex(BenchError, text):
                parse_results(RESULTS.replace(old, new))
        with self.assertRaisesRegex(BenchError, "to the end"):
            parse_results("")

    def test_symbols(self) -> None:
        symbols = Symbols(MAP)
        for addr, name in ((0xffffffff81000000, "first"), (0xffffffff8100001f, "first"),
                           (0xffffffff81000029, "second"), (0x401000, "(program)")):
            self.assertEqual(symbols.name(addr), name)
        self.assertEqual(symbols.entries(),
                         "fault ffffffff81800b80\ninterrupt ffffffff81800d30\n")

    def test_figures(self) -> None:
        counted = [coherence.Counted("faults_one_vma", "0", 2,
                                     {"first": (1, 0, 1, 1, 2), "second": (0, 2, 0, 0, 0)}),
                   coherence.Counted("faults_one_vma", "1", 4, {"second": (0, 1, 0, 0, 0)})]
        found = {(sample.metric, sample.arm): sample.value
                 for sample in coherence._samples(4, counted)}
        self.assertEqual(found["one_vma_4_transfers", "0"], 2)
        self.assertEqual(found["one_vma_4_transfers", "1"], 0.25)
        self.assertEqual(found["one_vma_4_dirty", "0"], 0.5)
        self.assertEqual(found["one_vma_4 locked of a fault: first", "0"], 1)
        self.assertEqual(found["one_vma_4 transfers of a fault: first", "1"], 0)


class SelfCheck(unittest.TestCase):
    """A plugin that miscounts gives no figures."""

    def phase(self, name: str, **changes: int) -> Phase:
        """Return the results of the guest's check NAME in 60 windows, with one kind changed."""
        counts = [20 * each for each in CHECKS[name]]
        for kind, change in changes.items():
            counts[coherence.KINDS.index(kind)] += change
        return Phase(windows=60, counts={0x401000: tuple(counts)})

    def test_right(self) -> None:
        for name in CHECKS:
            self.assertEqual(check_phase(name, 60, self.phase(name)), "")

    def test_one_off(self) -> None:
        for name in CHECKS:
            for kind in coherence.KINDS:
                for change in (-1, 1):
                    self.assertIn(f"{kind}: counted",
                                  check_phase(name, 60, self.phase(name, **{kind: change})))

    def test_lost_windows(self) -> None:
        phase = self.phase("check_locked", locked=-3, write_miss=-1, dirty=-1)
        phase.windows, phase.spoiled = 59, 1
        self.assertEqual(check_phase("check_locked", 60, phase), "")
        self.assertIn("windows counted", check_phase("check_locked", 61, phase))
        phase.windows, phase.spoiled = 40, 20
        self.assertIn("interrupt", check_phase("check_locked", 60, phase))

    def test_faults(self) -> None:
        phase = Phase(windows=30, faults=30)
        self.assertEqual(check_phase("faults_one_vma", 30, phase), "")
        phase.faults = 29
        self.assertIn("29 page faults", check_phase("faults_one_vma", 30, phase))
        phase = self.phase("check_store")
        phase.faults = 1
        self.assertIn("1 page faults", check_phase("check_store", 60, phase))

    def test_check_left_out(self) -> None:
        with self.assertRaisesRegex(BenchError, "not checked: check_alias"):
            coherence._counted(mock.Mock(samples=[]), {}, Symbols(MAP))


class Header(unittest.TestCase):
    """The header from QEMU's source."""

    def tarball(self, name: str) -> Path:
        """Return a tar archive with one file."""
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        path = Path(scratch.name) / "qemu.tar.xz"
        with tarfile.open(path, "w:xz") as files:
            info = tarfile.TarInfo(name)
            info.size = 2
            files.addfile(info, io.BytesIO(b"/*"))
        return path

    def test_found(self) -> None:
        path = self.tarball("qemu-7.2.0/include/qemu/qemu-plugin.h")
        self.assertEqual(qemu_plugin.header_in(path), b"/*")

    def test_not_there(self) -> None:
        with self.assertRaisesRegex(Fail, "QEMU_PLUGIN_HEADER=path"):
            qemu_plugin.header_in(self.tarball("qemu-7.2.0/README"))

    def test_own(self) -> None:
        with mock.patch.dict(os.environ, QEMU_PLUGIN_HEADER="/nowhere/qemu-plugin.h"):
            with self.assertRaisesRegex(Fail, "there is no file"):
                qemu_plugin.header_folder()


class CommandLine(unittest.TestCase):
    """Numbers of CPUs."""

    def test_cpus(self) -> None:
        plan = coherence.Plan()
        options = cli._parser().parse_args(["coherence", "--cpus", "4,16", "--pages", "9"])
        cli._resize(plan, options)
        self.assertEqual((plan.cpus, plan.pages), ((4, 16), 9))

    def test_errors(self) -> None:
        for name, words, text in (("coherence", ["--cpus", "4,0"], "1 or more"),
                                  ("coherence", ["--pages", "4,5"], "one number"),
                                  ("coherence", ["--cpus", "4,"], "invalid"),
                                  ("spf", ["--cpus", "4,5"], "one number"),
                                  ("spf", ["--pages", "4"], "not for spf")):
            with self.subTest(words), self.assertRaisesRegex(BenchError, text):
                options = cli._parser().parse_args([name, *words])
                cli._resize(cli._BENCHMARKS[name].Plan(), options)


if __name__ == "__main__":
    unittest.main()
