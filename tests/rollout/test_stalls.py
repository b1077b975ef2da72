# SPDX-License-Identifier: GPL-2.0-only
"""faultline-stalls without a kernel to watch: records, output, wrong input, man page, completion.

The suite rollout/stalls has what needs a kernel.
"""
from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from rollout import stalls_lab
from rollout.stalls_lab import LINES, STALLS, SWITCHES

PAGE = STALLS / "faultline-stalls.8"
NOBODY = 65534
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", name="program")
def fixture_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled without a warning."""
    out = tmp_path_factory.mktemp("stalls")
    # The user nobody runs it in one test.
    for path in (out, *out.parents[:2]):
        path.chmod(path.stat().st_mode | 0o55)
    return stalls_lab.build(out)


@pytest.fixture(name="run")
def fixture_run(program: Path) -> Run:
    """A function that runs the program."""
    def run(*words: str | Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], capture_output=True, text=True, check=False,
                              user=user)
    return run


@pytest.fixture(name="record")
def fixture_record(tmp_path: Path) -> Path:
    """A record."""
    return stalls_lab.write_record(tmp_path / "record")


def test_build_without_headers(tmp_path: Path) -> None:
    """A compiler that lists no system calls is an error, not a program without their names."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\ncat >/dev/null\n")
    compiler.chmod(0o755)
    done = subprocess.run([STALLS / "build.sh", tmp_path / "out"], capture_output=True, text=True,
                          check=False, env={**os.environ, "CC": str(compiler)})
    assert done.returncode == 1 and "lists no system calls of <sys/syscall.h>" in done.stderr


def test_table(run: Run, record: Path) -> None:
    """The rows of a holder are one line, the longest first; the last lines add up."""
    lines = run("show", record).stdout.splitlines()
    body = [re.split(r" {2,}", line) for line in lines[3:8]]
    assert [row[:2] for row in body] == [
        ["db", "munmap"], ["vm", "exit"], ["khugepaged", "collapse"], ["vm", "munmap"],
        ["-", "unknown"]]
    assert body[0][3:] == ["worker, other", "3", "4.0 s", "1.1 s", "2.0 s", "2.0 s",
                           "vm.munmap_section_kbytes"]
    assert body[2][-1] == "none"
    assert lines[-3:] == [
        "vm.munmap_section_kbytes=65536 would have removed about 3.2 s of 4.8 s of waiting, and "
        "left 750.0 ms.",
        "vm.hugetlb_pmd_sharing=0 would have removed up to 250.0 ms of 4.8 s of waiting.",
        "A thread that maps memory all the time would wait as shortly, but more often."]
    for said in ("7 shorter waits, 3.0 ms in all.", "Not watched: exits.",
                 "2 of these waits had not ended when watching did, the longest after 700.0 ms.",
                 "Lost: 3 exits, as there were too many at once.",
                 "Lost: 4 waits (9.0 ms), as there were too many different ones.",
                 "Lost: 5 waits, whose end was not seen.",
                 "Lost: 6 events, at which the kernel did not run a BPF program, as it ran "
                 "already.",
                 "7.0 interrupts per second of every CPU for page tables (most by java): "
                 "vm.pmd_clear_ipi_free=1 avoids them, unless memory is short."):
        assert said in lines


def test_waiters(run: Run, record: Path) -> None:
    """A program that waits as a reader and as a writer is named once."""
    other = "\t".join(map(str, stalls_lab.ROWS[1]))
    same = other.replace("\t0\tdb", "\t1\tdb").replace("1000000000", "500000000")
    for waiters, shown in ((["other"], "worker, other"),
                           (["other", "third"], "worker, other, ...")):
        more = "".join(f"waits\t{same.replace('other', name)}\n" for name in ["worker", *waiters])
        more = more.replace("\t1\tdb\t0\tmunmap\tworker", "\t0\tdb\t0\tmunmap\tworker")
        record.write_text(record.read_text().replace("waits\thugetlb", more + "waits\thugetlb", 1))
        row = run("show", record).stdout.splitlines()[3]
        assert re.split(r" {2,}", row)[3] == shown


def test_switched_on(run: Run, record: Path) -> None:
    """With a switch on, it says what is left."""
    record.write_text(record.read_text().replace("kbytes\t-1", "kbytes\t65536", 1))
    assert ("vm.munmap_section_kbytes=65536 is on, and leaves 4.0 s of 4.8 s of waiting."
            in run("show", record).stdout)


@pytest.mark.parametrize("switch, mib, slots, left", [
    # A share of the longest wait is left of each long one, and all of a short one.
    ("walk_section_kbytes", 128, "79:2,52:1", 250 + 9.437),
    ("munmap_section_kbytes", 128, "79:2,52:1", 250 + 9.437),
    ("madvise_section_kbytes", 1024, "79:2,52:1", 2 * 15.625 + 9.437),
    # A call of one section, or of unknown size.
    ("walk_section_kbytes", 16, "79:2,52:1", 2010), ("walk_section_kbytes", 0, "79:3", 2010),
    # No more than all.
    ("walk_section_kbytes", 20, "79:3", 2010),
    # Other switches do without the lock.
    ("speculative_page_fault", 128, "79:2,52:1", 0)])
def test_left(run: Run, record: Path, switch: str, mib: int, slots: str, left: float) -> None:
    """A section switch leaves its share of waits of 1 s, 1 s and 10 ms."""
    lines = [line for line in LINES if not line.startswith("waits\t")]
    lines.insert(-1, f"waits\tmmap_lock\t1\ta\t0\tmlock\tb\tvm.{switch}\t{mib}\t3\t2010000000\t"
                     f"1000000000\t{slots}")
    record.write_text("\n".join(lines) + "\n")
    found = json.loads(run("show", record, "--json").stdout)
    one, = (one for one in found["switches"] if one["name"] == f"vm.{switch}")
    assert one["waited_ms"] == 2010
    assert one["left_ms"] == pytest.approx(left, abs=0.01)
    assert found["groups"][0]["waiters"][0]["mib"] == mib
    # With the switch on, nothing is guessed.
    record.write_text(record.read_text().replace(f"vm.{switch}\t-1", f"vm.{switch}\t1"))
    found = json.loads(run("show", record, "--json").stdout)
    assert {one["left_ms"] for one in found["switches"] if one["is_on"]} == {2010}


def test_nothing(run: Run, record: Path) -> None:
    """Without waits it says so, and names no switch."""
    record.write_text("\n".join([*LINES[:4], "end"]) + "\n")
    said = run("show", record).stdout
    assert said.splitlines()[-1] == "No wait of 1.0 ms or longer in 10 s."
    assert "vm." not in said


def test_json(run: Run, record: Path) -> None:
    """JSON follows its schema, and has what is in the record."""
    found = json.loads(run("show", record, "--json").stdout)
    jsonschema.validate(found, json.loads((STALLS / "schema.json").read_text()))
    assert (found["waits"], found["waited_ms"]) == (6, 4752.0)
    first = found["groups"][0]
    assert (first["holder"], first["switch"], first["waits"]) == (
        "db", "vm.munmap_section_kbytes", 3)
    assert {(one["program"], one["writes"], one["total_ms"]) for one in first["waiters"]} == {
        ("worker", True, 3000.0), ("other", False, 1000.0)}
    assert {one["name"]: str(one["on"]) for one in found["switches"]} == {
        name: on for name, (_, on) in SWITCHES.items()}
    assert found["counters"]["lost_waits"] == 4
    assert found["counters"]["unended_waits"] == 2
    assert found["counters"]["unended_longest_ns"] == 700_000_000
    assert found["broadcasts"] == [{"program": "java", "count": 50},
                                   {"program": "khugepaged", "count": 20}]


def test_recorded_again(run: Run, record: Path, tmp_path: Path) -> None:
    """A record of a record is the same, with rows in order."""
    assert run("show", record, "--record", tmp_path / "second").returncode == 0
    assert sorted((tmp_path / "second").read_text().splitlines()) == sorted(LINES)


def test_textfile(run: Run, record: Path, tmp_path: Path) -> None:
    """Metrics add up over holders, without names of programs, and each has a type."""
    path = tmp_path / "stalls.prom"
    ioctls = "".join(f"waits\tmmap_lock\t0\ta\t0\tioctl({number})\tb\t-\t0\t1\t0\t0\t0:1\n"
                     for number in ("0x1", "0x2"))
    record.write_text(record.read_text().removesuffix("end\n") + ioctls + "end\n")
    run("show", record, "--textfile", path)
    text = path.read_text()
    assert ('faultline_stalls_waited_seconds{call="munmap",lock="mmap_lock",'
            'switch="vm.munmap_section_kbytes"} 4.000000\n' in text)
    assert ('faultline_stalls_longest_wait_seconds{call="munmap",lock="hugetlb-file",'
            'switch="vm.hugetlb_pmd_sharing"} 0.250000\n' in text)
    assert "faultline_stalls_all_waited_seconds 4.752000\n" in text
    assert "faultline_stalls_lost_waits 15\n" in text
    assert "faultline_stalls_unended_waits 2\n" in text
    assert "faultline_stalls_longest_unended_wait_seconds 0.700000\n" in text
    assert not re.search("worker|java", text)
    assert 'faultline_stalls_waits{call="ioctl",lock="mmap_lock",switch="none"} 2\n' in text
    samples = [line.split()[0] for line in text.splitlines() if line[0] != "#"]
    assert len(set(samples)) == len(samples)
    assert ({re.split("[{ ]", line)[0] for line in samples}
            == set(re.findall(r"# TYPE (\w+) gauge", text)))
    assert set(os.listdir(tmp_path)) == {"stalls.prom", "record"}


@pytest.mark.parametrize("slots, longest, p50", [
    # Below 2.048 us, 3.072 us, 10.240 us; from 120 s on.
    ("0", 9000, 0.002), ("4", 9000, 0.003), ("12", 20000, 0.010), ("12", 9000, 0.009),
    ("107", 300_000_000_000, 300_000.0)])
def test_percentile(run: Run, record: Path, slots: str, longest: int, p50: float) -> None:
    """A percentile is the end of its bucket, or the longest wait."""
    lines = [line for line in LINES if not line.startswith("waits\t")]
    lines.insert(-1, f"waits\tmmap_lock\t1\ta\t0\tfork\tb\t-\t0\t2\t{2 * longest}\t{longest}\t"
                     f"{slots}:2")
    record.write_text("\n".join(lines) + "\n")
    found, = json.loads(run("show", record, "--json").stdout)["groups"]
    assert found["p50_ms"] == p50


def test_anonymous(run: Run, record: Path) -> None:
    """--anonymous leaves the names of kernel threads, and numbers all others alike."""
    for words in ((), ("--json",)):
        said = run("show", record, "--anonymous", *words).stdout
        assert not re.search(r"\b(db|worker|other|java)\b", said)
        assert "khugepaged" in said and "program-1" in said
    found = json.loads(run("show", record, "--anonymous", "--json").stdout)
    waiters = {one["program"] for group in found["groups"] for one in group["waiters"]}
    assert len(waiters) == 3


@pytest.mark.parametrize("names, shown", [
    (["Thread-1", "Thread-2", "Thread-10"], {"Thread-*"}),
    (["kworker/0:1", "kworker/1:1"], {"kworker/*:1"}),
    (["http-8080-1", "http-8080-2"], {"http-8080-*"}),
    # One of its kind keeps its number.
    (["qemu-system-x86", "Thread-1"], {"qemu-system-x86", "Thread-1"}),
    # As the BPF programs name those that differ.
    (["pool-1-thread-*", "pool-2-thread-3*"], {"pool-*-thread-*"}),
    # Without a number in the same place they are different programs.
    (["Thread", "Thread-", "Thread-1"], {"Thread", "Thread-", "Thread-1"}),
    (["program-1", "program-2"], {"program-1", "program-2"})])
def test_threads(run: Run, record: Path, names: list[str], shown: set[str]) -> None:
    """Threads whose names differ in numbers are one holder, one waiter and one sender."""
    lines = [line for line in LINES if not line.startswith(("waits\t", "broadcasts\t"))]
    for name in names:
        lines[-1:-1] = [f"broadcasts\t{name}\t0\t3"]
        lines[-1:-1] = [f"waits\tmmap_lock\t1\t{name}\t0\tfork\t{waiter}\t-\t0\t2\t300\t200\t0:2"
                        for waiter in names]
    record.write_text("\n".join(lines) + "\n")
    found = json.loads(run("show", record, "--json").stdout)
    assert {group["holder"] for group in found["groups"]} == shown
    assert len(found["groups"]) == len(found["broadcasts"]) == len(shown)
    assert {sender["program"] for sender in found["broadcasts"]} == shown
    for group in found["groups"]:
        assert {row["program"] for row in group["waiters"]} == shown
        assert len(group["waiters"]) == len(shown)
    # Nothing is lost.
    assert found["waits"] == 2 * len(names) ** 2
    assert sum(sender["count"] for sender in found["broadcasts"]) == 3 * len(names)


# The line of the first row.
FIRST = 1 + next(number for number, line in enumerate(LINES) if line.startswith("waits\t"))
BROKEN = (
    (lambda _: "", "is not a record of this version"),
    (lambda text: text.replace("stalls 1", "stalls 2", 1), "is not a record of this version"),
    (lambda text: text.removesuffix("end\n"), "has no end: it was not copied as a whole"),
    (lambda text: text + "end\n", f"line {len(LINES) + 1}: something after the end"),
    (lambda text: text.replace("79:1,83:1", "79:1,83:2"), "does not add up"),
    (lambda text: text.replace("79:1,83:1", "79:1,999:1"), f"line {FIRST}: not a distribution"),
    (lambda text: text.replace("vm.munmap_section_kbytes\t128", "vm.no\t128"), "an unknown switch"),
    (lambda text: text.replace("\tworker\t", "\t\x1b[2J\t", 1), "a character that it cannot have"),
    (lambda text: text.replace("\tworker\t", "\t" + "x" * 99 + "\t", 1), "empty or too long"),
    (lambda text: text.replace("\tworker\t", "\twor\x00ker\t", 1), "not a line of this format"),
    (lambda text: text.replace("seconds\t10.000", "seconds\tnan"), "not a number of seconds"),
    (lambda text: text.replace("min_ns\t1000000", "min_ns\t-5"), "not a number"),
    (lambda text: text.replace("kernel\t6.12.1-test\n", ""), "says nothing of its kernel"),
    (lambda text: text.replace("note\texits\n", "note\texits\n" * 9), "too many notes"),
    (lambda text: text.replace("note\t", "remark\t"), "not a line of this format"),
    (lambda text: text.replace("broadcasts\tjava\t0\t50\n", "broadcasts\tjava\t0\t50\n" * 513),
     "more broadcasts than a record can have"),
    (lambda text: text.replace("waits\texit", "".join(
        f"waits\texit\t0\tp{one}\t0\texit\tvm\t-\t0\t1\t1\t1\t0:1\n" for one in range(8192))
        + "waits\texit"), "more groups than a record can have"),
    (lambda text: text + " " * (16 << 20), "is larger than 16 MiB"))


@pytest.mark.parametrize("change, said", BROKEN, ids=[said for _, said in BROKEN])
def test_broken_record(run: Run, record: Path, change: Callable[[str], str], said: str) -> None:
    """A record that is cut off, changed or of another version is refused in one line."""
    record.write_text(change(record.read_text()))
    done = run("show", record)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"faultline-stalls: error: {record}") and said in done.stderr


@pytest.mark.parametrize("words, said", [
    (["watch"], "'watch' is not a command"),
    (["show"], "show takes one file"),
    (["show", "a", "--seconds", "5"], "are for watching, not for show"),
    (["--seconds", "0"], "--seconds '0' is not a number from 0.1 to 86400"),
    (["--seconds", "nan"], "--seconds 'nan' is not a number"),
    (["--pid", "x"], "--pid 'x' is not the number of a process"),
    (["--pid", "1.5"], "--pid '1.5' is not the number of a process"),
    (["--pid", "0"], "--pid '0' is not the number of a process"),
    (["--min", "5"], "--min '5' is not a time from 1us to 100s"),
    (["--min", "1ns"], "--min '1ns' is not a time"),
    (["--pid", "1", "--cgroup", "x"], "--pid and --cgroup exclude each other"),
    (["--record", ""], "--record '' is not the name of a file"),
    (["--textfile", "stalls.txt"], "--textfile 'stalls.txt' does not end in .prom")])
def test_wrong_usage(run: Run, words: list[str], said: str) -> None:
    """A wrong option is refused in one line, before anything is watched."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and said in done.stderr


def test_no_file(run: Run, program: Path, record: Path, tmp_path: Path) -> None:
    """A file that cannot be read or written is named, and an older one stays as it is."""
    done = run("show", tmp_path / "none")
    assert done.stderr == (f"faultline-stalls: error: cannot read {tmp_path}/none: "
                           "No such file or directory\n")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        assert run("show", path).stderr == (f"faultline-stalls: error: {path} is not a regular "
                                            "file: copy the record to one\n")
    done = run("show", record, "--textfile", tmp_path / "no/stalls.prom")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot write to the folder of" in done.stderr
    with open("/dev/full", "w", encoding="ascii") as full:
        assert subprocess.run([program, "show", record], stdout=full,
                              stderr=subprocess.DEVNULL, check=False).returncode == 1


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
@pytest.mark.parametrize("option", ["--record", "--textfile"])
def test_not_regular(run: Run, record: Path, tmp_path: Path, option: str, kind: str) -> None:
    """Only a regular file is replaced."""
    path = tmp_path / "it.prom"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(record)
    else:
        path.mkdir()
    before, files = path.lstat(), set(os.listdir(tmp_path))
    done = run("show", record, option, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{path} exists and is not a regular file: give another name" in done.stderr
    assert path.lstat().st_ino == before.st_ino and set(os.listdir(tmp_path)) == files


@pytest.mark.parametrize("mask, mode", [(0o077, 0o600), (0o002, 0o664)])
def test_mode(program: Path, record: Path, tmp_path: Path, mask: int, mode: int) -> None:
    """The umask decides who can read a file."""
    path = tmp_path / "second"
    subprocess.run([program, "show", record, "--record", path], check=True, umask=mask,
                   stdout=subprocess.DEVNULL)
    assert path.stat().st_mode & 0o777 == mode


def test_full(program: Path, record: Path, tmp_path: Path) -> None:
    """The table is printed even if a file cannot be written, and files if the table cannot."""
    words: list[str | Path] = [program, "show", record, "--record", tmp_path / "second"]
    # Python ignores SIGXFSZ, and so does the program here.
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)))
    assert done.returncode == 1 and "waits of 1.0 ms or longer" in done.stdout
    assert "second: File too large" in done.stderr
    assert os.listdir(tmp_path) == ["record"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1 and "standard output: Broken pipe" in done.stderr
    assert (tmp_path / "second").read_text().endswith("\nend\n")


@pytest.mark.parametrize("signal", [2, 15, 1])
def test_signal(program: Path, record: Path, tmp_path: Path, signal: int) -> None:
    """A signal while a file is written leaves no part of it."""
    source = tmp_path / "fsync.c"
    source.write_text("#include <signal.h>\n"
                      f"int fsync(int fd) {{ return raise({signal}) + 0 * fd; }}\n")
    library = tmp_path / "fsync.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    files = set(os.listdir(tmp_path))
    # The tests may run under nohup, which has SIGHUP ignored.
    done = subprocess.run(["env", "--default-signal", f"LD_PRELOAD={library}", program, "show",
                           record, "--record", tmp_path / "second"],
                          stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == -signal
    assert set(os.listdir(tmp_path)) == files


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user than root")
def test_not_root(run: Run) -> None:
    """Without root it says how to go on."""
    done = run("--seconds", "1", user=NOBODY)
    assert done.returncode == 1
    assert done.stderr == ("faultline-stalls: error: watching the kernel needs root: run it with "
                           "sudo, or look at a record with 'faultline-stalls show FILE'\n")


@pytest.mark.skipif(
    os.geteuid() != 0 or os.readlink("/proc/self/ns/cgroup") != "cgroup:[4026531835]",
    reason="watching needs root in the first namespace of control groups")
@pytest.mark.parametrize("prepare, option, said", [
    ("unshare -C", "--cgroup x", "--cgroup in a container does not mean"),
    ("unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"' sh", "--cgroup x",
     "--cgroup needs control groups of version 2 in /sys/fs/cgroup"),
    ("unshare -m sh -c 'mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"' sh",
     "--cgroup /sys/fs/cgroup", "--cgroup /sys/fs/cgroup is the whole host: leave it out"),
    ("unshare -p -f", "--pid 1", "--pid in a container does not mean")])
def test_container(program: Path, prepare: str, option: str, said: str) -> None:
    """A container or another hierarchy of control groups is named, before anything is loaded."""
    done = subprocess.run([*shlex.split(prepare), program, *option.split()],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or os.readlink("/proc/self/ns/pid") != "pid:[4026531836]",
    reason="--pid needs root in the first PID namespace")
def test_thread(run: Run) -> None:
    """The error for a thread names its process."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        done = run("--pid", str(thread.native_id))
    finally:
        ended.set()
        thread.join()
    assert done.returncode == 1
    assert (f"{thread.native_id} is a thread of process {os.getpid()}: use --pid {os.getpid()}"
            in done.stderr)


def test_switches() -> None:
    """Every switch that a source or the man page names is in the table."""
    for path in (*STALLS.glob("*.c"), PAGE, STALLS / "schema.json"):
        assert set(re.findall(r"\bvm\.[a-z_]+", path.read_text())) <= set(SWITCHES), path


def test_page_and_completion(run: Run) -> None:
    """Help, man page and completion have the same options, and mandoc accepts the page."""
    options = set(re.findall(r"(?m)^  (--[a-z]+)", run("--help").stdout))
    assert len(options) == 9
    assert options == {f"--{name}" for name in re.findall(r"\.It Fl -([a-z]+)", PAGE.read_text())}
    script = """. "$0"; compopt() { :; }
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _faultline_stalls
        printf '%s\\n' "${COMPREPLY[@]}"
    """

    def completed(*words: str) -> set[str]:
        return set(subprocess.run(
            ["bash", "-c", script, STALLS / "completion/faultline-stalls", "faultline-stalls",
             *words], capture_output=True, text=True, check=True).stdout.split())
    assert completed("--") == options | {"--help"}
    assert completed("sh") == {"show"}
    assert completed("show", "record", "--") == {"--json", "--textfile", "--record", "--anonymous",
                                                 "--help"}
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", PAGE], capture_output=True,
                          text=True, check=False)
    assert not done.stdout and done.returncode == 0
