# SPDX-License-Identifier: GPL-2.0-only
"""faultline-bench: its table, its errors, and that it restores every switch."""
from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from faultline.common import ROOT

PROGRAM = ROOT / "rollout/bench/faultline-bench"
HOST = ROOT / "rollout/host"
BEFORE = {"munmap_section_kbytes": 4096, "madvise_section_kbytes": 0, "hugetlb_pmd_sharing": 1,
          "pmd_clear_ipi_free": 0, "speculative_page_fault": 1, "walk_section_kbytes": 0,
          "hugetlb_zero_ahead": 0}
# Records each call with the values of the switches; twice as fast with speculative faults.
MICRO = """#!/bin/sh
vm=$FAULTLINE_SYSCTL/vm
echo "$2 $(cat $vm/munmap_section_kbytes $vm/hugetlb_pmd_sharing | tr '\\n' ' ')" >>$0.calls
while [ -e $0.waits ]; do sleep 0.1; done
[ "$5 $6" = "--parent $PPID" ] || { echo "micro: $5 $6 is not its parent" >&2; exit 1; }
echo "sample page_fault1_$4_2 operations/s $2 $((100 + 100 * $(cat $vm/speculative_page_fault)))"
echo "skipped: case-hugetlb: no huge pages"
echo "skipped: brk1: use --mode processes"
"""
# With the switch the other thread waits a tenth of the time; the call takes as long.
MUNMAP = """#!/bin/sh
vm=$FAULTLINE_SYSCTL/vm
echo "$*" >>$0.calls
name=stall_256m_4k
wait=20
[ "$(cat $vm/munmap_section_kbytes)" = 0 ] || wait=2
echo "sample ${name}_munmap ms $2 25"
echo "sample ${name}_mmap_max ms $2 $wait"
echo "sample ${name}_mmap_n operations $2 7"
echo "sample ${name}_quiet_max ms $2 1"
"""
# The same; the kernel has no smaps_rollup.
SURVEY = """#!/bin/sh
vm=$FAULTLINE_SYSCTL/vm
echo "$*" >>$0.calls
name=$7_$6m_4k
if [ $7 = smaps_rollup ]; then
    echo "# $name: No such file or directory: left out"
    exit
fi
wait=40
[ "$(cat $vm/walk_section_kbytes)" = 0 ] || wait=4
echo "sample ${name}_time ms $2 50"
echo "sample ${name}_wait_max ms $2 $wait"
echo "sample ${name}_wait_p99 ms $2 1"
echo "sample ${name}_wait_ratio of_call $2 1"
echo "sample ${name}_wait_n operations $2 7"
"""


class Host:
    """A host with files for switches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vm = folder / "sys/vm"
        self.vm.mkdir(parents=True)
        for name, value in BEFORE.items():
            (self.vm / name).write_text(f"{value}\n")
        (folder / "cmdline").write_text("root=/dev/vda quiet\n")
        self.micro, self.munmap, self.survey = (
            folder / name for name in ("micro", "munmap", "survey"))
        for path, text in ((self.micro, MICRO), (self.munmap, MUNMAP), (self.survey, SURVEY)):
            path.write_text(text)
            path.chmod(0o755)
        self.before = folder / "run/ab/bench.before"
        (folder / "root/etc").mkdir(parents=True)
        self.env = {**os.environ, "FAULTLINE_RUN": str(folder / "run"),
                    "FAULTLINE_ROOT": str(folder / "root"),
                    "FAULTLINE_SYSCTL": str(folder / "sys"),
                    "FAULTLINE_CMDLINE": str(folder / "cmdline")}

    def systemd(self) -> Path:
        """From now on, a host with systemd: it starts what faultline-hold@.service starts.

        Returns the file with its orders.
        """
        orders, program = self.folder / "orders", self.folder / "systemctl"
        unit = (HOST / "units/faultline-hold@.service").read_text("utf-8")
        command, = (line.removeprefix("ExecStart=/usr/sbin/").replace("%i", "bench")
                    for line in unit.splitlines() if line.startswith("ExecStart="))
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{orders}\n'
            '[ "$*" != "start faultline-hold@bench.service" ] ||\n'
            f"setsid {HOST}/{command} >/dev/null 2>&1 &\n")
        program.chmod(0o755)
        (self.folder / "root/run/systemd/system").mkdir(parents=True)
        self.env["FAULTLINE_SYSTEMCTL"] = str(program)
        # As systemd does it for the unit.
        self.env["FAULTLINE_LIB"], self.env["FAULTLINE_SWITCHES"] = map(
            str, (HOST, ROOT / "sysctl/switches"))
        return orders

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start it in the folder."""
        return subprocess.Popen([PROGRAM, *map(str, words)], cwd=self.folder, env=self.env,
                                text=True, start_new_session=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, *words: object) -> tuple[int, str, str]:
        """Run it with the fake programs: exit status, output, messages."""
        with self.start("--programs", self.folder, *words) as process:
            out, err = process.communicate(timeout=600)
            return process.returncode, out, err

    def refused(self, *words: object) -> str:
        """The error of a run that changes nothing."""
        status, out, err = self.run(*words)
        assert (status, out) == (1, ""), err
        assert err.count("\n") == 1 and err.startswith("faultline-bench: error: "), err
        assert not self.calls()
        return err

    def values(self) -> dict[str, int]:
        """The switches now."""
        return {path.name: int(path.read_text()) for path in self.vm.iterdir()}

    def hold(self, pid: int, *lines: str) -> None:
        """A hold of a process, with values from before."""
        born = "1"
        if Path(f"/proc/{pid}").exists():
            born = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].split()[19]
        self.before.parent.mkdir(parents=True, exist_ok=True)
        self.before.write_text("\n".join([f"pid={pid}", f"born={born}",
                                          *(f"{line} -" for line in lines), ""]))

    def calls(self) -> list[str]:
        """The calls of the fake program."""
        path = Path(f"{self.micro}.calls")
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture(name="program", scope="module")
def _program() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("faultline_bench", str(PROGRAM))
    spec = importlib.util.spec_from_loader("faultline_bench", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_run(host: Host) -> None:
    """Arms take turns, the result is written and can be shown, the switches are restored."""
    status, out, err = host.run("--rounds", 3, "--tasks", 2, "--output", "o.json",
                                "--plot", "p.svg")
    assert status == 0, err
    assert host.values() == BEFORE and not host.before.exists()
    off, on = "arm-off 0 1 ", "arm-on 65536 0 "
    assert host.calls() == [call for call in (off, on, on, off, off, on) for _ in range(2)]
    run = json.loads((host.folder / "o.json").read_text())
    assert run["before"]["vm.munmap_section_kbytes"] == 4096 and run["cpus"] == os.cpu_count()
    assert len(run["rounds"]) == 3
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    faster = ["2.000", "2.000", "to", "2.000", "FASTER"]
    assert rows["page_fault1_processes_2"] == ["100", "operations/s", *faster]
    # Shorter times are better.
    assert rows["stall_256m_4k_mmap_max"] == ["20", "ms", "0.100", "0.100", "to", "0.100", "FASTER"]
    assert rows["stall_256m_4k_munmap"] == ["25", "ms", "1.000", "1.000", "to", "1.000"]
    for call in ("fixed_none", "populate_write", "mlock"):
        assert rows[f"{call}_256m_4k_wait_max"] == [
            "40", "ms", "0.100", "0.100", "to", "0.100", "FASTER"]
        assert rows[f"{call}_256m_4k_time"] == ["50", "ms", "1.000", "1.000", "to", "1.000"]
    # The table leaves out numbers of operations and the control.
    assert not {"stall_256m_4k_mmap_n", "stall_256m_4k_quiet_max"} & rows.keys()
    assert not any(name.endswith(("_p99", "_ratio", "_n")) for name in rows)
    skipped = ["case-hugetlb: no huge pages", "smaps_rollup_256m_4k: No such file or directory"]
    assert run["skipped"] == skipped
    assert out.endswith("".join(f"\nskipped: {text}" for text in skipped) + "\n")
    assert (host.folder / "p.svg").read_text().count("<circle") == 4 + 3 * 2
    with host.start("show", "o.json") as process:
        assert process.communicate()[0] == out


def test_chosen(host: Host) -> None:
    """Only the chosen switches change, and only the chosen tests run."""
    stalls = Path(f"{host.munmap}.calls")
    others = Path(f"{host.survey}.calls")
    assert host.run("--tests", "page_fault1", "--rounds", 1)[0] == 0 and not stalls.exists()
    assert not others.exists()
    Path(f"{host.micro}.calls").unlink()
    assert host.run("--tests", "madvise-stall", "--rounds", 1)[0] == 0 and not host.calls()
    assert [line.partition(" --rounds ")[2] for line in stalls.read_text().splitlines()] \
        == 2 * ["3 --size 256 --call dontneed stall"] and not others.exists()
    assert host.run("--tests", "mlock-stall,populate-stall", "--rounds", 1)[0] == 0
    assert [line.partition(" --rounds ")[2] for line in others.read_text().splitlines()] \
        == 2 * [f"3 --size 256 {call}" for call in ("populate_write", "mlock")]
    assert host.run("--switches", "vm.munmap_section_kbytes=2048", "--rounds", 1)[0] == 0
    assert {call.split()[1] for call in host.calls()} == {"0", "2048"}
    assert {call.split()[2] for call in host.calls()} == {"1"}
    assert host.values() == BEFORE


def test_stalls(program: ModuleType) -> None:
    """The tests with a thread that waits are in the completion, the man page and the programs."""
    folder = ROOT / "rollout/bench"
    completion = (folder / "completion/faultline-bench").read_text("utf-8")
    words = completion.partition("--tests) words='")[2].partition("'")[0].split()
    assert words == ["all", *program.STALLS]
    manual = (folder / "faultline-bench.8").read_text("utf-8")
    for test, (name, *call) in program.STALLS.items():
        assert f".It Ql {test}\n" in manual and name in program.GUESTS
        assert f'{{ "{call[-1]}", ' in (folder / f"{name}.c").read_text("utf-8"), test


def test_dry_run(host: Host) -> None:
    """--dry-run prints the values of both arms and changes nothing."""
    status, out, _ = host.run("--dry-run")
    assert status == 0 and "Nothing was changed." in out and not host.calls()
    assert "vm.munmap_section_kbytes: 0 in arm off, 65536 in arm on, then 4096 as now" in out
    assert not list(host.folder.glob("run/*")) and not list(host.folder.glob("*.json"))


def test_refused(host: Host) -> None:
    """Each reason is one line that says what to do, and nothing changes."""
    for words, text in ((("--switches", "vm.x"), "no switch 'vm.x'"),
                        (("--switches", "speculative_page_fault=2"), "a number from 0 to 1"),
                        (("--rounds", "0"), "from 1 to 10000"),
                        (("--output", "no/where"), "another place with --output"),
                        (("--programs", "nothing"), "no program nothing/micro: install"),
                        (("--frobnicate",), "see faultline-bench --help")):
        assert text in host.refused(*words)
    (host.folder / "cmdline").write_text("quiet faultline=off\n")
    assert "faultline=off" in host.refused()
    (host.folder / "cmdline").write_text("quiet\n")
    host.before.parent.mkdir(parents=True)
    plan = host.before.with_name("one.plan")
    host.before.with_name("one.before").write_text(
        "expires=99999999999\ndeadline=99999999999\nvm.x=0 -\nvm.munmap_section_kbytes=0 -\n")
    plan.write_text("switch=vm.pmd_clear_ipi_free\n")
    # Damaged: the run would complete the stop of an experiment, but a dry run changes nothing.
    assert "experiment one runs on this host" in host.refused("--dry-run")
    for path in host.before.parent.iterdir():
        path.unlink()
    host.hold(os.getpid(), "vm.pmd_clear_ipi_free=1")
    assert f"process {os.getpid()}, changes" in host.refused()
    host.before.unlink()
    blocked = host.folder / "root/etc/faultline/no-experiments"
    blocked.parent.mkdir()
    blocked.write_text("incident\n")
    assert "blocked on this host (incident)" in host.refused()
    blocked.unlink()
    assert host.values() == BEFORE
    for path in host.vm.iterdir():
        path.unlink()
    assert "none of the switches" in host.refused()


def test_failing_program(host: Host) -> None:
    """The switches are restored after a failed test."""
    host.micro.write_text("#!/bin/sh\necho 'micro: no memory' >&2\nexit 1\n")
    status, _, err = host.run("--output", "o.json")
    assert status == 1 and "micro failed: micro: no memory" in err
    assert host.values() == BEFORE and not host.before.exists()
    assert not (host.folder / "o.json").exists()


def wait_for(what: Callable[[], object], event: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end, f"not within two minutes: {event}"
        time.sleep(0.02)


@contextlib.contextmanager
def first_test(host: Host) -> Iterator[subprocess.Popen[str]]:
    """A run in its first test, which goes on afterwards, in case that nothing has killed it."""
    waits = Path(f"{host.micro}.waits")
    waits.touch()
    process = host.start("--programs", host.folder)
    try:
        wait_for(host.calls, "the first test begins")
        assert host.before.exists() and host.values() != BEFORE
        yield process
    finally:
        waits.unlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_killed(host: Host, number: signal.Signals) -> None:
    """The switches are restored after any signal, SIGKILL included."""
    with first_test(host) as process:
        process.send_signal(number)
        process.wait(600)
    process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not host.before.exists(), "the switches are put back")
    assert host.values() == BEFORE


def test_group_killed(host: Host) -> None:
    """With systemd, the switches are restored if every process of the run gets SIGKILL."""
    orders = host.systemd()
    with first_test(host) as process:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not host.before.exists(), "the unit puts the switches back")
    assert host.values() == BEFORE
    assert orders.read_text().splitlines()[0] == "start faultline-hold@bench.service"


def test_set_by_hand(host: Host) -> None:
    """A value that somebody sets during a run ends it, and stays; the others are restored."""
    with first_test(host) as process:
        (host.vm / "munmap_section_kbytes").write_text("2048\n")
    err = process.communicate(timeout=600)[1]
    assert process.returncode == 1 and "was set from 0 to 2048 by somebody else" in err
    assert host.values() == {**BEFORE, "munmap_section_kbytes": 2048} and not host.before.exists()


def test_left_behind(host: Host) -> None:
    """The next run restores the switches of one whose processes were all killed."""
    host.hold(4194305, "vm.munmap_section_kbytes=8192")
    status, _, err = host.run("--switches", "pmd_clear_ipi_free", "--rounds", 1)
    assert status == 0, err
    assert host.values() == {**BEFORE, "munmap_section_kbytes": 8192}


def test_restore(host: Host) -> None:
    """restore restores the switches after a killed run, but not during a run."""
    def restore() -> tuple[int | None, str]:
        with host.start("restore") as process:
            err = process.communicate(timeout=600)[1]
            return process.returncode, err

    status, err = restore()
    assert status == 0 and "no switch is left" in err
    host.hold(os.getpid(), "vm.munmap_section_kbytes=8192")
    (host.folder / "run/lock").touch()
    status, err = restore()
    assert status == 0 and host.before.exists() and host.values() == BEFORE
    host.hold(4194305, "vm.munmap_section_kbytes=8192")
    assert restore()[0] == 0 and not host.before.exists()
    assert host.values() == {**BEFORE, "munmap_section_kbytes": 8192}


@pytest.mark.parametrize("name", ["o.json", "p.svg"])
def test_link(host: Host, name: str) -> None:
    """A result does not follow a link that somebody has put into the folder."""
    other = host.folder / "other"
    other.write_text("precious\n")
    for link in (name, f".{name}.new"):
        (host.folder / link).symlink_to(other)
    status, _, err = host.run("--rounds", 1, "--output", "o.json", "--plot", "p.svg")
    assert status == 0, err
    assert other.read_text() == "precious\n" and not (host.folder / name).is_symlink()
    assert (host.folder / name).stat().st_mode & 0o777 == 0o644


def test_emulated(program: ModuleType) -> None:
    """The first line of a result from an emulated machine says so."""
    run = {"note": program.EMULATED, "kernel": "k", "cpus": 2, "virtualisation": "qemu",
           "tasks": 2, "date": "d", "on": {}, "rounds": [], "skipped": []}
    assert program.table(run).splitlines()[0].startswith("Emulated (QEMU TCG)")


def problems(path: Path) -> list[str]:
    """The parts that a collected result or its page lacks."""
    run = json.loads(path.read_text("utf-8"))
    page = path.with_suffix(".md")
    text = page.read_text("utf-8") if page.exists() else ""
    shown = subprocess.run([PROGRAM, "show", path], capture_output=True, text=True, check=True)
    emulated = run["virtualisation"] == "qemu"
    checks = {"note": ("note" in run) == emulated and (not emulated or next(iter(run)) == "note"),
              "table in the page": textwrap.indent(shown.stdout, "    ") in text,
              "first line of the page": not emulated or text.startswith(run["note"])}
    return [name for name, holds in checks.items() if not holds]


@pytest.mark.parametrize("kind", ["none", "qemu"])
def test_rule_for_results(host: Host, kind: str) -> None:
    """A result is collected with its table; one of an emulated machine says so first."""
    detect = host.folder / "bin/systemd-detect-virt"
    detect.parent.mkdir()
    detect.write_text(f"#!/bin/sh\necho {kind}\n")
    detect.chmod(0o755)
    host.env["PATH"] = f"{detect.parent}:{host.env['PATH']}"
    status, table, err = host.run("--rounds", 3, "--tasks", 2, "--output", "o.json")
    assert status == 0, err
    path, page = host.folder / "o.json", host.folder / "o.md"
    first = "first line of the page"
    assert problems(path) == ["table in the page", *([first] if kind == "qemu" else [])]
    page.write_text(f"# A machine\n\n{textwrap.indent(table, '    ')}")
    assert problems(path) == ([first] if kind == "qemu" else [])
    page.write_text(f"{table.partition(chr(10))[0]}\n{page.read_text()}")
    assert not problems(path)
    run = json.loads(path.read_text())
    path.write_text(json.dumps({**run, "virtualisation": "none" if kind == "qemu" else "qemu",
                                **({} if kind == "qemu" else {"note": "Emulated"})}))
    assert "note" in problems(path)


def test_results() -> None:
    """The collected results follow the rule."""
    # tests/runner/test_bench_survey.py reads the results of make bench BENCH=survey.
    found = {path.name: problems(path) for path in (ROOT / "tests/bench/results").glob("*.json")
             if not path.name.startswith("survey")}
    assert not any(found.values()), found


def test_table(program: ModuleType) -> None:
    """Medians of paired ratios; an interval below 0.98 is marked; two rounds have none."""
    def run(*pairs: tuple[float, float]) -> dict[str, Any]:
        return {"kernel": "k", "cpus": 2, "virtualisation": "none", "tasks": 2, "date": "d",
                "on": {}, "skipped": [],
                "rounds": [{arm: [{"metric": "m", "unit": "u", "value": value}]
                            for arm, value in zip(("off", "on"), pair)} for pair in pairs]}
    rows = program.rows_of(run((10, 9), (100, 95), (1000, 910)))
    assert rows == [("m", "u", 100, 0.91, (0.9, 0.95))]
    assert "SLOWER" in program.table(run((10, 9), (100, 95), (1000, 910)))
    assert "SLOWER" not in program.table(run((10, 9), (100, 99), (1000, 910)))
    assert "needs 3 rounds" in program.table(run((10, 9), (10, 9)))
    # A round with a zero does not count.
    assert program.rows_of(run((0, 9), (100, 50)))[0].ratio == 0.5


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": 2}', '{"schema": 1}',
                                  '{"schema": 1, "rounds": []}'])
def test_bad_result(host: Host, text: str) -> None:
    """A damaged file gives one clear error."""
    (host.folder / "bad.json").write_text(text)
    with host.start("show", "bad.json") as process:
        out, err = process.communicate()
        assert (process.wait(), out, err.count("\n")) == (1, "", 1)
        assert "bad.json" in err
