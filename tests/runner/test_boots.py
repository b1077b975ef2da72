# SPDX-License-Identifier: GPL-2.0-only
"""The VM runner on a real kernel: every way in which a run can end.

The kernel is $KERNEL or the one in build/microvm. Reports of a debug kernel are
provoked with build/microvm-debug if it is built and has CONFIG_LKDTM.
"""

import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from faultline.common import ROOT
from faultline.flavour import FLAVOURS

FL = ROOT / "tools/fl"
RUN = (FL, "vm", "run")
SHELL = (FL, "vm", "shell")
DEBUG_KERNEL = FLAVOURS["microvm-debug"].image
# Generous: the host may be busy, and a real hang only costs time.
LIMIT = 300


class Result:
    """The result of one call of the runner, with its logs in a folder."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        started = time.monotonic()
        process = subprocess.run([*RUN, "--out", folder, *arguments], capture_output=True,
                                 timeout=LIMIT, stdin=subprocess.DEVNULL, check=False)
        self.seconds = time.monotonic() - started
        self.dir = folder
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr.decode()

    @property
    def errors(self) -> str:
        """Its messages, without those about boots that the emulator broke."""
        return "".join(line for line in self.err.splitlines(keepends=True)
                       if not line.endswith("; trying again\n"))

    @property
    def console(self) -> str:
        """The kernel log."""
        return (self.dir / "console.log").read_text("utf-8", "replace")

    @property
    def result(self) -> dict[str, Any]:
        """The contents of result.json."""
        result: dict[str, Any] = json.loads((self.dir / "result.json").read_text())
        return result

    def expect(self, code: int, *errors: str) -> Self:
        """Fail unless exit code and messages are as expected."""
        said = f"exit code {self.code}, said:\n{self.err}{self.out.decode(errors='replace')}"
        assert self.code == code, f"wanted exit code {code}, {said}"
        for text in errors:
            assert text in self.err, f"'{text}' is missing; {said}"
        return self


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Result]]]:
    """The runs of all tests with the mark `run`, whose arguments it has; two at a time."""
    with tempfile.TemporaryDirectory(prefix="faultline-boots-") as place:
        pool = ThreadPoolExecutor(2)
        yield {item.nodeid: pool.submit(Result, Path(place) / str(number), *mark.args)
               for number, item in enumerate(request.session.items)
               if item.path == request.path and (mark := item.get_closest_marker("run"))}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def got(request: pytest.FixtureRequest, runs: dict[str, Future[Result]]) -> Result:
    """The result of the test's run."""
    return runs[request.node.nodeid].result()


EVERYTHING = r"""#!/bin/bash
set -eu
echo "bash ${BASH_VERSION%%[^0-9]*}"
echo "cpus $(nproc), in $PWD, parameter $(grep -o 'x.y=1' /proc/cmdline)"
printf '<%s>' "$@"; echo
/usr/bin/od --version | head -n 1
read -r nothing || echo "no input"
cat /test/tree/data
echo "[    1.000000] Kernel panic - not syncing: only text on the terminal"
echo "to standard error" >&2
mkdir /out/sub
head -c 300000 /test/tree/random >/out/sub/random
cp "$0" /out/script
printf 'tab\tand no line end'
exit 37
"""


def test_everything(tmp_path: Path) -> None:
    """One boot: exit code, arguments, both output streams, files both ways."""
    script = tmp_path / "everything"
    script.write_text(EVERYTHING)
    script.chmod(0o755)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "data").write_text("from a directory\n")
    noise = os.urandom(300000)
    (tree / "random").write_bytes(noise)
    arguments = ["", "two words", "it's", '"$HOME"', "a\\b"]
    got = Result(tmp_path, "--cpus", "3", "--append", "x.y=1", "--file", script,
                 "--file", tree, "--file", "/usr/bin/od:/usr/bin/od", "--",
                 "everything", *arguments)
    got.expect(37, "exit code 37", "logs are in", "on TCG" if "on TCG" in got.err else "on KVM")
    lines = got.out.decode().splitlines()
    assert re.fullmatch(r"bash \d+", lines[0]), lines
    assert lines[1] == "cpus 3, in /test, parameter x.y=1", lines
    assert lines[2] == "".join(f"<{word}>" for word in arguments), lines
    assert "coreutils" in lines[3], lines
    assert lines[4:6] == ["no input", "from a directory"], lines
    assert lines[7] == "to standard error", lines
    assert got.out.endswith(b"tab\tand no line end") and b"\r" not in got.out, got.out
    assert (got.dir / "output.log").read_bytes() == got.out
    assert (got.dir / "files/sub/random").read_bytes() == noise
    assert (got.dir / "files/script").stat().st_mode & 0o111
    assert got.result["trouble"] == [] and got.result["command_exit"] == 37, got.result
    assert "Linux version" in got.console
    assert not (got.dir / "initramfs").exists()


@pytest.mark.run("--ktap", "--quiet", "--name", "sum", "--", "printf",
                 "KTAP version 1\n1..3\nok 1 a\nok 2 b # SKIP no\nok 3 c\n")
def test_ktap_pass(got: Result) -> None:
    """Passing results give 0 and one summary line."""
    got.expect(0)
    assert got.out.decode().endswith("ok 3 c\n# sum: 2 passed, 0 failed, 1 skipped\n"), got.out
    assert got.errors == "", got.err
    assert got.result["ktap"]["passed"] == 2


@pytest.mark.run("--ktap", "--", "printf", "1..2\nok 1 a\nnot ok 2 the bad one\n")
def test_ktap_fail(got: Result) -> None:
    """A failed test fails the run even if the command returned 0."""
    got.expect(1, "not ok: the bad one", "1 failed")
    assert b": 1 passed, 1 failed, 0 skipped\n" in got.out, got.out


@pytest.mark.parametrize(("code", "texts"), [
    pytest.param(1, ["test 2 of 3 has no result"], id="planned test without a result",
                 marks=pytest.mark.run("--ktap", "--", "printf", "1..3\nok 1 a\nok 3 c\n")),
    pytest.param(1, ["no test results"], id="no KUnit results",
                 marks=pytest.mark.run("--kunit", "--append", "kunit.enable=0")),
    pytest.param(123, ["signal 11"], id="killed command",
                 marks=pytest.mark.run("--", "sh", "-c", "kill -SEGV $$")),
    pytest.param(126, ["kernel trouble (kasan)", "a test"], id="report written to /dev/kmsg",
                 marks=pytest.mark.run("--", "sh", "-c", "echo 'BUG: KASAN: a test' >/dev/kmsg")),
    pytest.param(126, ["tainted: WARN"], id="taint without a line in the log",
                 marks=pytest.mark.run("--", "sh", "-c", "echo 512 >/proc/sys/kernel/tainted")),
    pytest.param(126, ["while the command ran"], id="guest that goes away",
                 marks=pytest.mark.run("--", "reboot", "-f")),
    pytest.param(125, ["QEMU failed", "-nonsense"], id="argument that QEMU rejects",
                 marks=pytest.mark.run("--qemu-arg=-nonsense", "--", "true"))])
def test_end(got: Result, code: int, texts: list[str]) -> None:
    """Exit code and message."""
    got.expect(code, *texts)


@pytest.mark.run("--ktap", "--", "sh", "-c", "echo 1..1; echo ok 1 a; echo c >/proc/sysrq-trigger")
def test_panic(got: Result) -> None:
    """A kernel that panics."""
    got.expect(126, "kernel trouble (panic)", "sysrq triggered crash", "console.log:")
    assert "Kernel panic - not syncing: sysrq triggered crash" in got.console
    assert got.result["trouble"][0]["kind"] == "panic", got.result


# On a busy host, a kernel that boots may print nothing for several seconds.
@pytest.mark.run("--stall", "45", "--timeout", "250", "--", "sleep", "1000")
def test_hang(got: Result) -> None:
    """A command that hangs; the log shows where the guest was."""
    got.expect(124, "nothing was printed", "the command ran", "where it was")
    after = got.console.split("Run /init", 1)[1]
    assert "NMI" in after or "sysrq" in after, after
    assert "Call Trace:" in after, after


@pytest.mark.run("--timeout", "5", "--", "sh", "-c", "while :; do echo busy; usleep 200000; done")
def test_timeout(got: Result) -> None:
    """A command that loops forever."""
    got.expect(124, "time is up")
    # Mostly the end of the log, for which a busy guest gets half a minute.
    assert got.seconds < LIMIT / 2, f"a run of 5 s ended after {got.seconds:.0f} s"


@pytest.mark.run("--", "sh", "-c", "echo \"Kernel panic - not syncing: "
                 "IO-APIC + timer doesn't work! \" >/dev/kmsg")
def test_tried_again(got: Result) -> None:
    """A panic of the emulated timer is retried, but not for ever."""
    got.expect(126, "trying again")
    assert got.err.count("trying again") == 3, got.err
    for number in (1, 2, 3):
        assert (got.dir / f"console.log.try-{number}").exists()


def test_icount(tmp_path: Path) -> None:
    """Runs that count instructions are bit-identical.

    Once, with a kernel compile running on the host, two runs differed for an
    unknown reason.  So this requires two identical ones among up to four.
    """
    script = "cat /proc/uptime /proc/stat; sleep 0.01; cat /proc/interrupts"
    seen = set()
    for _ in range(4):
        this = Result(tmp_path, "--icount", "4", "--", "sh", "-c", script).expect(0)
        assert this.out
        if (this.out, this.console) in seen:
            return
        seen.add((this.out, this.console))
    raise AssertionError("no two of four runs are identical")


# CPU 0 is busy.  CPU 1 reads the time in a loop of its own.
BUSY_CPUS = """
taskset 1 sh -c 'while :; do :; done' &
exec taskset 2 awk 'BEGIN {
    while (n < 3000) {
        getline text <"/proc/uptime"
        close("/proc/uptime")
        split(text, field, " ")
        now = field[1]
        if (n++ && now - last > longest)
            longest = now - last
        last = now
    }
    print longest
}'
"""
# QEMU calls this timer every 997 microseconds of guest time, which no tick of the guest keeps
# in step with.
ODD_TIMER = ("--qemu-arg=-netdev", "--qemu-arg=hubport,id=odd,hubid=0",
             "--qemu-arg=-object",
             "--qemu-arg=filter-buffer,id=timer,netdev=odd,queue=all,interval=997")


def test_icount_fair(tmp_path: Path) -> None:
    """Where instructions are counted, a busy CPU does not keep another one from running.

    With QEMU before 8.1, CPU 1 otherwise does not run for 0.2 to 0.6 s of guest time at once.
    """
    this = Result(tmp_path, "--icount", "4", "--icount-fair", "--cpus", "4", *ODD_TIMER, "--",
                  "sh", "-c", BUSY_CPUS).expect(0)
    assert float(this.out) < 0.05, this.out


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    try:
        return [int(word) for word in
                Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def gone(pid: int) -> bool:
    """True once a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def ended_from_outside(folder: Path, number: int, code: int) -> None:
    """Send a signal to a runner while its command runs; QEMU must end as well."""
    # A shell starts background jobs with SIGINT ignored, and this may be one.
    command = ["env", "--default-signal=INT", *map(str, RUN), "--out", str(folder), "--",
               "sh", "-c", "echo up; sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stderr
            assert process.stdout.readline() == b"up\n", process.stderr.read()
            machines = children(process.pid)
            assert len(machines) == 1, machines
            process.send_signal(number)
            assert process.wait(timeout=LIMIT) == code, process.returncode
        finally:
            process.kill()
        deadline = time.monotonic() + 60
        while not gone(machines[0]):
            assert time.monotonic() < deadline, "QEMU is still running"
            time.sleep(0.05)


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C ends QEMU."""
    ended_from_outside(tmp_path, signal.SIGINT, 130)


def test_killed_runner(tmp_path: Path) -> None:
    """A runner killed with SIGKILL leaves no QEMU behind."""
    ended_from_outside(tmp_path, signal.SIGKILL, -signal.SIGKILL)


def test_shell(tmp_path: Path) -> None:
    """The interactive shell: prompt, a command, exit."""
    with tempfile.TemporaryFile() as errors:
        master, slave = pty.openpty()
        with subprocess.Popen(SHELL, stdin=slave, stdout=slave, stderr=errors) as process:
            os.close(slave)
            seen = b""

            def until(text: bytes) -> None:
                nonlocal seen
                deadline = time.monotonic() + LIMIT
                while text not in seen:
                    assert time.monotonic() < deadline, seen
                    if select.select([master], [], [], 1)[0]:
                        try:
                            seen += os.read(master, 65536)
                        except OSError as err:
                            code = process.wait(timeout=60)
                            errors.seek(0)
                            raise AssertionError(
                                f"the shell ended with exit code {code} before it printed "
                                f"{text!r}; it said {errors.read()!r}, printed {seen!r}") from err

            until(b"faultline:/test# ")
            assert b"Linux 6." in seen and b"Ctrl-A X" in seen, seen
            os.write(master, b"echo $((6 * 7)) of $(tty)\n")
            until(b"42 of /dev/ttyS0")
            os.write(master, b"exit\n")
            assert process.wait(timeout=LIMIT) == 0, seen
        os.close(master)


def one_line(code: int, arguments: list[str], *texts: str, program: tuple[Path | str, ...] = RUN,
             **more: Any) -> None:
    """A call that must fail with one clear line and write no files."""
    got = subprocess.run([*program, *arguments], capture_output=True, timeout=LIMIT,
                         stdin=subprocess.DEVNULL, check=False, **more)
    said = got.stderr.decode()
    assert got.returncode == code, f"exit code {got.returncode}: {said}"
    assert got.stdout == b"", got.stdout
    assert said.count("\n") == 1, said
    for text in texts:
        assert text in said, said


def only_tools(folder: Path, *names: str) -> dict[str, str]:
    """Return an environment whose PATH has just the named tools."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "python3").symlink_to(sys.executable)
    # The launcher needs the first two.
    for name in ("dirname", "readlink", *names):
        (place / name).symlink_to(subprocess.run(
            ["which", name], capture_output=True, text=True, check=True).stdout.strip())
    return {**os.environ, "PATH": str(place)}


def test_usage(tmp_path: Path) -> None:
    """Wrong usage."""
    never = tmp_path / "never"
    out = ["--out", str(never)]
    one_line(125, out, "no COMMAND")
    for option, text in (
            (["--nonsense"], "--nonsense"), (["--cpus", "0"], "'0'"), (["--mem", "x"], "'x'"),
            (["--timeout", "-1"], "'-1'"), (["--icount", "11"], "11"),
            (["--icount-sleep"], "goes with --icount"),
            (["--icount-fair"], "goes with --icount"),
            (["--kernel", "/nonexistent/bzImage"], "make kernel"),
            (["--kernel", str(FL)], "not a kernel image"),
            (["--file", "/nonexistent/prog"], "/nonexistent/prog")):
        one_line(125, [*out, *option, "--", "true"], text)
    assert not never.exists()
    one_line(125, [], "terminal", program=SHELL)


def test_missing_tools(tmp_path: Path) -> None:
    """Without QEMU or busybox, the error says what to install."""
    one_line(125, ["--", "true"], "qemu-system-x86_64 is missing; install qemu-system-x86",
             env=only_tools(tmp_path, "busybox"))
    one_line(125, ["--", "true"], "busybox is missing; install busybox-static",
             env=only_tools(tmp_path, "qemu-system-x86_64"))


def test_no_room(tmp_path: Path) -> None:
    """Logs that cannot be written, files that do not fit into the guest."""
    place = tmp_path / "no-room"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    one_line(125, ["--out", str(place), "--", "true"], f"cannot write {place}/initramfs", "--out",
             preexec_fn=limit)
    assert not (place / "initramfs").exists()
    one_line(125, ["--out", "/dev/null/x", "--", "true"], "cannot write /dev/null/x")
    one_line(125, ["--out", str(place), "--mem", "64", "--", "true"], "use --mem")


PROVOKE = """set -e
file=/sys/kernel/debug/provoke-crash/DIRECT
[ -e $file ] || { echo no LKDTM; exit 77; }
echo %s >$file
"""


def provoke(crash: str, *options: str | Path) -> pytest.MarkDecorator:
    """A run that provokes a report of the debug kernel."""
    return pytest.mark.run("--kernel", DEBUG_KERNEL, *options, "--", "sh", "-c", PROVOKE % crash)


@pytest.mark.skipif(not DEBUG_KERNEL.exists(), reason="build/microvm-debug is not built")
@pytest.mark.parametrize(("code", "texts"), [
    pytest.param(126, ["kernel trouble (warn)"], id="WARN", marks=provoke("WARNING")),
    pytest.param(0, ["allowed: WARNING: CPU:"], id="allowed WARN",
                 marks=provoke("WARNING", "--allow-warn")),
    pytest.param(126, ["kernel trouble (bug)", "kernel BUG at"], id="BUG", marks=provoke("BUG")),
    # A NULL dereference.  KASAN looks up the shadow of the address first, which is not canonical.
    pytest.param(126, ["kernel trouble (oops)", "general protection fault"], id="oops",
                 marks=provoke("EXCEPTION"))])
def test_real_report(got: Result, code: int, texts: list[str]) -> None:
    """A real report of a debug kernel."""
    if got.code == 77:
        pytest.skip("the debug kernel has no CONFIG_LKDTM")
    got.expect(code, *texts)
