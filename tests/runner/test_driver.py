# SPDX-License-Identifier: GPL-2.0-only
"""tests/run counts every way in which a test can fail."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import suites
from faultline.common import ROOT

PASS = 'printf "1..1\\nok 1 - a\\n"'
COPIED = ("pyproject.toml", "tests/run", "tests/lib/selftests.sh", "tools/faultline",
          *(f"tests/{name}.py" for name in ("conftest", "programs", "suites")))


class Repository:
    """A repository with the driver, what it imports, and tests of this file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name)
            else:
                shutil.copy2(ROOT / name, folder / name)
        for name in (suites.FL, suites.LAB, "tests/lib/selftests.sh"):
            self.program(name, "exit 1")
        self.env = {key: value for key, value in os.environ.items()
                    if not key.startswith("PYTEST_")} | {"BUILD": str(folder / "build")}

    def put(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, name: str, body: str) -> None:
        """Write a program."""
        self.put(name, f"#!/bin/bash\n{body}\n").chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the driver."""
        return subprocess.run([self.folder / "tests/run", *words], env=self.env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def ends(self, wanted: str, *words: str) -> str:
        """The driver's last line must be this, with the exit status that belongs to it."""
        done = self.run(*words)
        assert done.stdout.splitlines()[-1] == wanted, done.stdout
        assert done.returncode == (0 if ", 0 failed" in wanted else 1), done.stdout
        return done.stdout


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """A repository."""
    return Repository(tmp_path)


# A program, and the counts that it gives: passed, failed, skipped.
OUTCOMES = {
    "results are added up":
        ('printf "1..3\\nok 1 - a\\nok 2 - b\\nok 3 - c # SKIP no such thing\\n"', 2, 0, 1),
    "a failing test": ('printf "1..2\\nok 1 - a\\nnot ok 2 - b\\n"; exit 1', 1, 1, 0),
    "subtests count, their parents do not":
        ('printf "1..1\\n  1..3\\n  ok 1 a\\n  ok 2 b\\n  not ok 3 c\\nnot ok 1 d\\n"; exit 1',
         2, 1, 0),
    "a test missing from the plan": ('printf "1..2\\nok 1 - a\\n"', 1, 1, 0),
    "a test beyond the plan": ('printf "1..1\\nok 1 - a\\nok 2 - b\\n"', 2, 1, 0),
    "a missing plan": ("echo ok 1 - a", 1, 1, 0),
    "a program without output": (":", 0, 1, 0),
    "an unexplained exit status": (f"{PASS}; exit 3", 1, 1, 0),
    "a program killed by a signal": (f"{PASS}; kill -SEGV $$", 1, 1, 0),
    "a failing test with exit status 0": ('printf "1..1\\nnot ok 1 - a\\n"', 0, 1, 0),
    "a program that hangs": (f"{PASS}; sleep 1000", 1, 1, 0),
    "a hanging program that ignores SIGTERM":
        (f'trap "" TERM; {PASS}; while :; do sleep 1; done', 1, 1, 0),
    "skipping everything is not a failure": ('echo "1..0 # SKIP none"', 0, 0, 1),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome(repo: Repository, name: str) -> None:
    """Counts and exit status of a program; its output is kept."""
    body, passed, failed, skipped = OUTCOMES[name]
    repo.program("tests/lint/it", body)
    # Long enough to print results on a busy host; it only costs time if the program hangs.
    limit = "10" if "hang" in name else "600"
    repo.ends(f"{passed} passed, {failed} failed, {skipped} skipped", "--limit", limit, "lint")
    assert (repo.folder / "build/test/lint-it.tap").exists()


def test_excerpt(repo: Repository) -> None:
    """A failure is shown with the remarks about it and the end of standard error."""
    repo.program("tests/lint/it", 'printf "1..2\\nok 1 - good\\n# why\\nnot ok 2 - bad\\n# more\\n"'
                 "; echo trouble >&2")
    said = repo.ends("1 passed, 1 failed, 0 skipped", "lint")
    assert "tests/lint/it FAILED: 1 passed, 1 failed, 0 skipped, 0 s" in said
    assert ("\nnot ok: bad\n--- from build/test/lint-it.tap:\n# why\nnot ok 2 - bad\n# more\n"
            "--- from build/test/lint-it.err:\ntrouble\n") in said
    assert "good" not in said


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return not re.search(r"^State:\s*Z", text, re.M)


def gone(path: Path) -> bool:
    """Whether the process whose id is in a file ends soon."""
    pid = int(path.read_text())
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(pid)


def test_leftover(repo: Repository) -> None:
    """A process that a program leaves behind is killed."""
    repo.program("tests/lint/it", f"{PASS}; sleep 1234 >/dev/null & echo $! >{repo.folder}/left")
    repo.ends("1 passed, 0 failed, 0 skipped", "lint")
    assert gone(repo.folder / "left")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(repo: Repository, number: int) -> None:
    """Ctrl-C ends all programs and their children, and the run fails."""
    for name in ("one", "two"):
        repo.program(f"tests/lint/{name}",
                     f"sleep 1234 & echo $! >{repo.folder}/left-{name}; {PASS}; wait")
    repo.program("tests/lint/zero-never", f"touch {repo.folder}/left-never; {PASS}")
    with subprocess.Popen(["env", "--default-signal=INT", repo.folder / "tests/run", "lint"],
                          env=repo.env, stdout=subprocess.PIPE, text=True) as process:
        left = [repo.folder / "left-one", repo.folder / "left-two"]
        deadline = time.monotonic() + 120
        while not all(path.exists() and path.read_text() for path in left):
            assert time.monotonic() < deadline, "the two programs did not start"
            time.sleep(0.1)
        process.send_signal(number)
        said = process.communicate(timeout=300)[0]
    assert process.returncode == 2, said
    assert all(gone(path) for path in left)
    assert not (repo.folder / "left-never").exists()
    assert "KeyboardInterrupt" in said


def test_failed_build(repo: Repository) -> None:
    """A suite without its kernel fails and is not run; the others run."""
    repo.program("tests/lint/it", PASS)
    repo.program("tests/kernel/it", PASS)
    repo.put("tests/runner/test_it.py", "def test_it():\n    pass\n")
    # it, test_it, and the rows of the suites that run by default.
    rows = sum(not suites.suite_of(title).opt_in for title in suites.ROWS)
    said = repo.ends(f"1 passed, {2 + rows} failed, 0 skipped")
    assert "tests/lint/it PASSED: 1 passed" in said
    assert "not run: tools/fl build microvm failed" in said
    assert not (repo.folder / "build/test/kernel-it.tap").exists()


def test_parallel(repo: Repository) -> None:
    """A program that must run alone does, others run beside each other; kernels are built once."""
    repo.program(suites.FL, f"echo built >>{repo.folder}/builds")
    repo.program("tests/lib/selftests.sh", "")
    names = ("demo", "vma", "other")
    for name in names:
        # vma and other wait for each other, until both have seen who runs; beside the others there
        # is time for a program that should not run.
        both = {"vma": "other", "other": "vma"}.get(name, "")
        wait = ("for i in $(seq 600); do [ -e {0}/%s ] && break; sleep 0.1; done" % both
                if both else "sleep 1.5")
        repo.program(f"tests/kernel/{name}", f"mkdir -p on seen; touch on/{name}; "
                     f"{wait.format('on')}; echo 1..1; "
                     f'echo "ok 1 - beside" $(ls on); touch seen/{name}; {wait.format("seen")}; '
                     f"rm on/{name}")
    repo.ends("3 passed, 0 failed, 0 skipped", *(f"kernel/{name}" for name in names))
    beside = {name: (repo.folder / f"build/test/kernel-{name}.tap").read_text().split()[5:]
              for name in names}
    assert beside == {"demo": ["demo"], "vma": ["other", "vma"], "other": ["other", "vma"]}
    assert (repo.folder / "builds").read_text() == "built\n"


WAIT = "for i in $(seq 300); do [ -e %s ] && break; sleep 0.1; done"


def test_suites_beside_each_other(repo: Repository) -> None:
    """The next suites begin while the last program of one runs; results keep their order."""
    repo.program(suites.FL, "touch built")
    repo.program("tests/lint/it", f"{WAIT % 'built'}; {WAIT % 'other'}; "
                 "[ -e built ] && [ -e other ] && echo ok 1 - beside; echo 1..1")
    repo.program("tests/rollout/it", f"touch other; {PASS}")
    said = repo.ends("2 passed, 0 failed, 0 skipped", "lint", "rollout")
    assert said.index("tests/lint/it PASSED") < said.index("tests/rollout/it PASSED")


# A thread that prints a line ends the last one first, then stops for a second.  The first test
# begins meanwhile.
SLOW_THREAD = """import threading, time
between = threading.Event()

def pytest_collection_finish(session):
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    end_line = terminal.ensure_newline

    def slowly():
        end_line()
        if threading.current_thread() is not threading.main_thread():
            between.set()
            time.sleep(1)

    terminal.ensure_newline = slowly

def pytest_runtestloop():
    assert between.wait(60), "no thread has printed anything"
"""


def test_name_beside_result(repo: Repository) -> None:
    """A line of another thread does not come between the name of a test and its result."""
    repo.program(suites.FL, "echo built")
    repo.put("tests/runner/conftest.py", SLOW_THREAD)
    repo.program("tests/runner/it", PASS)
    assert "tests/runner/it PASSED" in repo.ends("1 passed, 0 failed, 0 skipped", "runner")


def test_python_goes_on(repo: Repository) -> None:
    """Long programs do not take the slot of the tests in Python between two of them."""
    for name in ("one", "two", "three"):
        repo.program(f"tests/lint/{name}", f"{WAIT % 'last'}; [ -e last ] && {PASS}")
    repo.put("tests/lint/test_it.py", "import pathlib, time\n" + "".join(
        f"def test_{number}():\n    time.sleep(0.5)\n" for number in range(4))
        + "def test_last():\n    pathlib.Path('last').touch()\n")
    repo.ends("8 passed, 0 failed, 0 skipped", "lint")


def test_first(repo: Repository) -> None:
    """A program that changes what others use: those before it run beside it, none after it."""
    repo.program(suites.FL, ":")
    repo.put("tests/lint/test_it.py", """import pathlib, time
def seen():
    end = time.monotonic() + 30
    while not pathlib.Path("on").exists():
        assert time.monotonic() < end, "the program does not run beside"
        time.sleep(0.1)
def test_one():
    seen()
def test_two():
    seen()
    pathlib.Path("seen").touch()
""")
    repo.program("tests/package/stage", f"touch on; {WAIT % 'seen'}; sleep 1.5; rm on; {PASS}")
    repo.program("tests/package/deb", f"[ ! -e on ] && {PASS}")
    repo.program("tests/rollout/it", f"[ ! -e on ] && {PASS}")
    repo.put("tests/package/test_it.py", "import os\ndef test_it():\n"
             "    assert not os.path.exists('on')\n")
    repo.ends("6 passed, 0 failed, 0 skipped", "lint", "package", "rollout")


def test_cannot_start(repo: Repository) -> None:
    """A program whose interpreter is missing fails; the others run."""
    repo.put("tests/lint/bad", "#!/nowhere/sh\n").chmod(0o755)
    repo.program("tests/lint/it", PASS)
    assert "No such file or directory" in repo.ends("1 passed, 1 failed, 0 skipped", "lint")


def test_cpu_time(repo: Repository) -> None:
    """The CPU time of a program includes its children's."""
    repo.program("tests/lint/it", f"python3 -c 'import time\nwhile time.process_time() < 1.6: pass'"
                 f"\n{PASS}")
    said = repo.ends("1 passed, 0 failed, 0 skipped", "lint")
    assert re.search(r"(?m)^tests/lint/it PASSED: .* \d+ s, 2 CPU-s\b", said), said


def test_python(repo: Repository) -> None:
    """Tests in Python count each, also one that hangs and a file that cannot be loaded."""
    repo.put("tests/lint/test_it.py", """import pytest, time
def test_good():
    pass
def test_bad():
    assert 6 * 7 == 43
def test_skipped():
    pytest.skip("no reason")
def test_hangs():
    time.sleep(1000)
@pytest.fixture
def broken():
    raise ValueError("no fixture")
def test_setup(broken):
    pass
""")
    repo.put("tests/lint/test_broken.py", "import nothing_like_this\n")
    # The others end in this time also on a busy host.
    said = repo.ends("1 passed, 4 failed, 1 skipped", "--limit", "10", "lint")
    for text in ("FAILED tests/lint/test_it.py::test_bad - assert (6 * 7) == 43",
                 "FAILED tests/lint/test_it.py::test_hangs - Failed: still running at its time",
                 "ERROR tests/lint/test_it.py::test_setup - ValueError: no fixture",
                 "ERROR tests/lint/test_broken.py"):
        assert f"\n{text}" in said, said


def test_python_beside_programs(repo: Repository) -> None:
    """A test in Python and a program of its suite run beside each other."""
    wait = "for i in $(seq 300); do [ -e python ] && break; sleep 0.1; done"
    repo.program("tests/lint/it", f"touch program; {wait}; [ -e python ] && echo ok 1 - it; "
                 "echo 1..1")
    repo.put("tests/lint/test_it.py", """import pathlib, time
def test_it():
    pathlib.Path("python").touch()
    end = time.monotonic() + 30
    while not pathlib.Path("program").exists():
        assert time.monotonic() < end, "the program does not start"
        time.sleep(0.1)
""")
    repo.ends("2 passed, 0 failed, 0 skipped", "lint")


def test_patient(repo: Repository) -> None:
    """Tests in Python that wait leave both slots to programs, but for one that runs alone."""
    repo.program(suites.FL, ":")
    repo.program("tests/lib/selftests.sh", ":")
    for name, other in (("one", "two"), ("two", "one")):
        repo.program(f"tests/rollout/{name}", f"touch {name}; {WAIT % other}; "
                     f"[ -e {other} ] && {PASS}")
    repo.program("tests/kernel/demo", f"[ -e over ] && {PASS}")
    repo.put("tests/rollout/test_it.py", """import pathlib, time
def test_it():
    end = time.monotonic() + 30
    while not all(pathlib.Path(name).exists() for name in ("one", "two")):
        assert time.monotonic() < end, "the programs do not run beside"
        time.sleep(0.1)
def test_after():
    time.sleep(1.5)
    pathlib.Path("over").touch()
""")
    repo.ends("5 passed, 0 failed, 0 skipped", "rollout", "kernel/demo")


@pytest.mark.parametrize(("name", "error"), [
    ("nosuch", "no suite 'nosuch'; suites are: lint "),
    ("lint/nosuch", "no test lint/nosuch: see 'tests/run --list'"),
    ("lint/it/x", "no suite 'lint/it'; suites are: lint "), ("", "no suite ''")])
def test_bad_name(repo: Repository, name: str, error: str) -> None:
    """An unknown suite or test gives one error line."""
    repo.program("tests/lint/it", PASS)
    done = repo.run("lint", name)
    assert done.returncode == 1
    assert done.stdout.startswith(f"tests/run: error: {error}") and done.stdout.count("\n") == 1


def test_list(repo: Repository) -> None:
    """--list prints programs, files of tests, and rows of a suite, but not of one within it."""
    repo.program("tests/kernel/it", PASS)
    repo.program("tests/kernel/guest/it", PASS)
    repo.put("tests/kernel/test_them.py", "")
    repo.put("tests/kernel/settings", "")
    repo.program("tests/kernel/debug/it", PASS)
    for suite, found in (("kernel", {"kernel/it", "kernel/them"}),
                         ("kernel/debug", {"kernel/debug/it"})):
        assert set(repo.run("--list", suite).stdout.split()) == found | {
            title for title in suites.ROWS if suites.suite_of(title).name == suite}
    assert repo.run("--list", "kernel/debug/it").stdout == "kernel/debug/it\n"


def test_progress(repo: Repository) -> None:
    """A long run is not silent."""
    common = repo.folder / "tools/faultline/common.py"
    common.write_text(re.sub("LOG_SECONDS = .*", "LOG_SECONDS = 0.5", common.read_text()))
    # Several times as long, as a busy host may keep the driver from looking.
    repo.program("tests/lint/it", f"{PASS}; sleep 4")
    repo.put("tests/lint/test_it.py", "import time\ndef test_it():\n    time.sleep(4)\n")
    said = repo.ends("2 passed, 0 failed, 0 skipped", "lint")
    assert re.search("(?m)^  lint/it: [1-9][0-9]* s, ok 1 - a$", said), said
    assert re.search("(?m)^  tests/lint/test_it.py::test_it: [1-9][0-9]* s$", said), said


def test_rows() -> None:
    """Each row belongs to a suite, says why, and names programs that exist."""
    folder = ROOT / "kernel/overlay/tools/testing/selftests/mm/faultline"
    for boot in suites.BOOTS.values():
        assert suites.suite_of(boot.title), boot
        assert boot.reason.endswith("."), boot
        for program in boot.programs:
            name = program.split()[0]
            assert (folder / f"{name}.c").exists() or suites.FILES[name].exists(), boot
