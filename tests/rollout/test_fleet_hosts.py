# SPDX-License-Identifier: GPL-2.0-only
"""faultline-rollout and hosts: start, status, stop, files, and failures.

A host is a folder; faultline-ab on it is a small program that keeps the plan there.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from faultline.common import ROOT
from rollout import fleet_lab
from rollout.fleet_lab import HOSTS, START
from rollout.prometheus_lab import answer_of, serving

from faultline_rollout import (
    Error, canary, cli, command_plan, command_start, command_stop, design, experiment, hosts,
    planning, prometheus, run)

FAKE = r"""#!/bin/sh
# A host's faultline-ab: checks the sum, keeps the plan in $HOST_FOLDER.
here=$HOST_FOLDER
echo "$*" >>"$here/calls"
[ "$2" = --dry-run ] || while [ -e "$here/slow-$1" ]; do sleep 0.1; done
case "$*" in
start*)
    for file; do :; done
    sum=$(sed '$d' "$file" | sha256sum)
    [ "sum=${sum%% *}" = "$(tail -n 1 "$file")" ] || { echo 'error: bad sum' >&2; exit 1; }
    [ ! -e "$here/refuse" ] || { cat "$here/refuse" >&2; exit 1; }
    [ "$2" != --dry-run ] || exit 0
    [ ! -e "$here/fail" ] || { cat "$here/fail" >&2; exit 1; }
    cp "$file" "$here/plan"
    ;;
stop*) rm -f "$here/plan" ;;
status*)
    [ -e "$here/plan" ] || { echo '{"experiments": []}'; exit; }
    printf '{"experiments": [{"name": "%s", "plan": "%s", ' "$(sed -n s/^name=//p "$here/plan")" \
        "$(sed -n s/^plan=//p "$here/plan")"
    printf '"state": "waiting", "value": 0, "assigned": 0}]}'
    ;;
esac
"""
SSH = r"""#!/bin/sh
# ssh HOST COMMAND, to a folder.
HOST_FOLDER=$FLEET_FOLDER/$1
export HOST_FOLDER
if [ -e "$HOST_FOLDER/gone" ]; then
    echo "ssh: connect to host $1 port 22: No route to host" >&2
    exit 255
fi
case $2 in
*--dry-run*) while [ -e "$HOST_FOLDER/slow-check" ]; do sleep 0.1; done ;;
*'faultline-ab start'*)
    # The network is slow on the way to this host, or loses the command.
    : >"$HOST_FOLDER/on-its-way"
    while [ -e "$HOST_FOLDER/slow" ]; do sleep 0.1; done
    [ ! -e "$HOST_FOLDER/lost" ] || { rm "$HOST_FOLDER/on-its-way"; exit 255; }
    PATH=$HOST_FOLDER/bin:$FLEET_FOLDER/bin:$PATH sh -c "$2"
    status=$?
    rm "$HOST_FOLDER/on-its-way"
    exit $status
    ;;
esac
PATH=$HOST_FOLDER/bin:$FLEET_FOLDER/bin:$PATH exec sh -c "$2"
"""


# The real faultline-ab, on a host that is a folder.
REAL = f"""#!/bin/sh
h=$HOST_FOLDER
export FAULTLINE_LIB={ROOT}/rollout/host FAULTLINE_SWITCHES={ROOT}/sysctl/switches \\
    FAULTLINE_ROOT=$h/root FAULTLINE_SYSCTL=$h/sys \\
    FAULTLINE_CMDLINE=$h/cmdline FAULTLINE_RUN=$h/run FAULTLINE_TEXTFILE=$h/textfile \\
    FAULTLINE_TICK=0 FAULTLINE_SYSTEMCTL=true
if [ -e $h/clock ]; then
    export FAULTLINE_CLOCK=$h/clock
fi
exec {ROOT}/rollout/host/faultline-ab "$@"
"""


def wait_for(condition: Callable[[], bool], event: str,
             process: subprocess.Popen[Any] | None = None) -> None:
    """Wait for an event, as long as the process that brings it about is running."""
    end = time.monotonic() + 120
    while not condition():
        assert not process or process.poll() is None, f"it ended without this event: {event}"
        assert time.monotonic() < end, f"not within two minutes: {event}"
        time.sleep(0.1)


@dataclasses.dataclass
class Lab:
    """Hosts in a folder, and a plan for them."""

    folder: pathlib.Path
    plan: design.Plan
    path: pathlib.Path

    def host(self, number: int) -> pathlib.Path:
        """The folder of a host."""
        return self.folder / f"host{number:02}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables for the transport, and its approval."""
        return {"FLEET_FOLDER": str(self.folder),
                "FAULTLINE_ROLLOUT_CONFIG": str(self.folder / "rollout.toml")}

    @property
    def env(self) -> dict[str, str]:
        """The environment of faultline-rollout."""
        return os.environ | self.variables

    def here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it that of this program."""
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run faultline-rollout."""
        return fleet_lab.rollout(*words, **self.variables)

    @property
    def on(self) -> list[str]:
        """The hosts that have a plan."""
        found = [*self.folder.glob("host*/plan"), *self.folder.glob("host*/run/ab/lab.plan")]
        return sorted(path.relative_to(self.folder).parts[0] for path in found)

    def real(self) -> None:
        """From now on, hosts have the faultline-ab of this tree."""
        (self.folder / "bin/faultline-ab").write_text(REAL)
        for number in range(HOSTS):
            for name in ("root/etc", "run", "sys/vm", "textfile"):
                (self.host(number) / name).mkdir(parents=True)
            self.switch(number).write_text("0\n")
            (self.host(number) / "cmdline").write_text("quiet\n")

    def switch(self, number: int) -> pathlib.Path:
        """The file of the switch on a host."""
        return self.host(number) / "sys" / fleet_lab.SWITCH.replace(".", "/")

    def agent(self, number: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Run faultline-ab on a host, as its timers do."""
        return subprocess.run([self.folder / "bin/faultline-ab", *words], check=False, text=True,
                              capture_output=True,
                              env=os.environ | {"HOST_FOLDER": str(self.host(number))})

    def mark(self, name: str, numbers: Iterable[int]) -> None:
        """Put an empty file on hosts."""
        for number in numbers:
            (self.host(number) / name).touch()

    def clear(self, name: str) -> None:
        """Remove these files."""
        for path in self.folder.glob(f"host*/{name}"):
            path.unlink()

    @property
    def on_its_way(self) -> set[str]:
        """The hosts that run a start's command, or to which it is under way."""
        return {path.parent.name for path in self.folder.glob("host*/on-its-way")}

    def start_halfway(self) -> subprocess.Popen[str]:
        """A start that has reached half of the hosts, and waits for the others."""
        self.mark("slow", range(HOSTS // 2, HOSTS))
        # A host of the first half is on its way, too, until its command has ended.
        slow = {self.host(number).name for number in range(HOSTS // 2, HOSTS)}
        process = subprocess.Popen([fleet_lab.FLEET / "faultline-rollout", "start", self.path],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.env)
        wait_for(lambda: len(self.on) == HOSTS // 2 and self.on_its_way >= slow,
                 "a plan on half of the hosts, and the other half called", process)
        return process


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: pathlib.Path) -> Lab:
    """Sixteen hosts."""
    return make_lab(tmp_path)


def make_lab(folder: pathlib.Path, **changes: Any) -> Lab:
    """Hosts, and a plan with some keys changed."""
    (folder / "bin").mkdir()
    for name, text in (("faultline-ab", FAKE), ("ssh", SSH)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    for number in range(HOSTS):
        (folder / f"host{number:02}").mkdir()
    transport = {"command": [str(folder / "bin/ssh"), "{address}", "{command}"]}
    (folder / "rollout.toml").write_text(
        f"[transport]\ncommand = {json.dumps(transport['command'])}\n")
    plan = fleet_lab.make_plan("lab", **{"prometheus": "http://127.0.0.1:9",
                                         "transport": transport} | changes)
    path = folder / "lab.json"
    path.write_text(plan.text())
    return Lab(folder, plan, path)


def test_start_status_stop(lab: Lab) -> None:
    """A start reaches every host, status counts them, stop ends it everywhere."""
    before = time.time()
    done = lab.run("start", lab.path)
    after = time.time()
    assert done.returncode == 0, done.stderr
    assert len(lab.on) == HOSTS
    fields = dict(line.split("=", 1) for line in (lab.host(3) / "plan").read_text().splitlines())
    assert list(fields) == ["format", "name", "switch", "a", "b", "start", "slot", "washout",
                            "expires", "plan", "host", "arms", "sum"]
    assert fields["host"] == "host03" and fields["arms"] == lab.plan.arms["host03"]
    assert fields["plan"] == hashlib.sha256(lab.path.read_bytes()).hexdigest()
    assert int(fields["expires"]) - int(fields["start"]) == 48 * 3600
    assert before + command_start.LEAD <= int(fields["start"]) < after + command_start.LEAD + 60
    done = lab.run("start", lab.path)
    assert done.returncode == 2 and "already started" in done.stderr
    done = lab.run("status", lab.path)
    assert f"{HOSTS} waiting" in done.stdout and "no pair of slots is complete" in done.stdout
    (lab.host(2) / "plan").unlink()
    lab.mark("gone", [4])
    told = json.loads(lab.run("status", lab.path, "--json").stdout)
    assert "stopped, expired or rebooted" in told["hosts"]["host02"]
    assert told["hosts"]["host03"] == "waiting"
    assert told["hosts"]["host04"].startswith("cannot be reached: ssh: connect to host host04")
    lab.clear("gone")
    done = lab.run("verdict", lab.path, "--at", time.time() + 86400)
    assert done.returncode == 2 and "cannot be reached" in done.stderr
    # Without Prometheus, as everything here.
    done = lab.run("stop", lab.path)
    assert done.returncode == 0 and not lab.on
    # It was stopped before slot 0, so there is nothing to ask for.
    done = lab.run("verdict", lab.path, "--at", time.time() + 86400)
    assert done.returncode == 20 and "no pair of slots is complete" in done.stdout


def test_real_agent(lab: Lab) -> None:
    """faultline-ab of this tree takes the files, says so, and ends the experiment."""
    lab.real()
    done = lab.run("start", lab.path)
    assert done.returncode == 0, done.stderr
    assert len(list(lab.folder.glob("host*/run/**/lab.plan"))) == HOSTS
    told = json.loads(lab.run("status", lab.path, "--json").stdout)
    assert set(told["hosts"].values()) == {"waiting"}, told
    done = lab.run("stop", lab.path)
    assert done.returncode == 0, done.stderr
    assert not list(lab.folder.glob("host*/run/**/lab.plan"))


def test_canary_with_the_real_agent(tmp_path: pathlib.Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """faultline-ab of this tree takes the plan of a canary, and then that of the experiment."""
    lab = make_lab(tmp_path, canary=["1"])
    lab.real()
    lab.here(monkeypatch)
    clock, most = [time.time()], []

    def sleep(seconds: float) -> None:
        most.append(lab.on)
        clock[0] += seconds

    monkeypatch.setattr(canary, "time", types.SimpleNamespace(time=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(canary, "crashed_in_b", lambda *_: [])
    monkeypatch.setattr(canary, "oom_kills", lambda *_: [])
    monkeypatch.setattr(canary, "seen", lambda *_: 1.0)
    args = cli.parser().parse_args(["start", str(lab.path), "--every", "100"])
    assert command_start.command_start(args) == 0
    assert {tuple(names) for names in most} == {(most[0][0],)} and len(lab.on) == HOSTS


@pytest.mark.parametrize("accepted", [False, True])
def test_isolated_cpus(tmp_path: pathlib.Path, accepted: bool) -> None:
    """A host with isolated CPUs takes part only if the experiment file says so."""
    lab = make_lab(tmp_path, isolated_cpus=accepted)
    lab.real()
    cpus = lab.host(6) / "root/sys/devices/system/cpu/isolated"
    cpus.parent.mkdir(parents=True)
    cpus.write_text("2-3\n")
    done = lab.run("start", lab.path)
    assert (done.returncode == 0) == accepted and len(lab.on) == (HOSTS if accepted else 0)
    assert accepted or "1 of 16 hosts cannot take part:\n  host06: faultline-ab: error: CPUs " \
        "2-3 are isolated" in done.stderr


def test_dry_run_changes_nothing(lab: Lab) -> None:
    """--dry-run asks each host, and starts none."""
    done = lab.run("start", lab.path, "--dry-run")
    assert done.returncode == 0 and "Nothing was changed" in done.stdout
    assert not lab.on and not (lab.folder / "lab.run.json").exists()
    assert "start --dry-run" in (lab.host(0) / "calls").read_text()


@pytest.mark.parametrize("text", ["Welcome!", "[]", '{"experiments": ["lab"]}', '{"x": 1}'])
def test_status_of_another_version(lab: Lab, text: str) -> None:
    """Output other than a faultline-ab status is reported for that host only."""
    assert lab.run("start", lab.path).returncode == 0
    (lab.host(4) / "bin").mkdir()
    program = lab.host(4) / "bin/faultline-ab"
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)
    done = lab.run("status", lab.path)
    assert done.returncode == 40 and f"{HOSTS - 1} waiting" in done.stdout, done.stderr
    assert "host04: its faultline-ab is of another version" in done.stdout


@pytest.mark.parametrize("change", [
    {"hosts": []}, {"hosts": [{}]}, {"hosts": 5}, {"experiment": None}, {"seed": None},
    {"hosts": [{"name": "h", "address": "h", "instance": "h", "stratum": "all", "arms": ""}]}])
def test_plan_with_a_right_sum(tmp_path: pathlib.Path, change: dict[str, Any]) -> None:
    """A plan made by hand is checked even if its sum is right."""
    body = json.loads(fleet_lab.make_plan("x").text())
    del body["sha256"]
    body |= change
    if body["seed"] is None:
        del body["seed"]
    path = tmp_path / "x.json"
    path.write_text(design._with_sum(body))
    done = fleet_lab.rollout("start", path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "is not a plan" in done.stderr or "must be a table" in done.stderr


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_is_closed(lab: Lab, buffered: bool) -> None:
    """A pipe that `head` has closed gives no message, and the status of SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    env = lab.env | {"PYTHONUNBUFFERED": "1"}
    if buffered:
        del env["PYTHONUNBUFFERED"]
    done = subprocess.run([fleet_lab.FLEET / "faultline-rollout", "start", lab.path, "--dry-run"],
                          stdout=write, stderr=subprocess.PIPE, text=True, check=False, env=env)
    os.close(write)
    assert done.returncode == 141 and not done.stderr


def test_output_to_a_full_disk(lab: Lab) -> None:
    """Output that cannot be written gives one line, without a traceback."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([fleet_lab.FLEET / "faultline-rollout", "stop", lab.path],
                              stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                              env=lab.env)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def put(name: str, text: str = "") -> Callable[[Lab], None]:
    """Put a file on host05."""
    def change(lab: Lab) -> None:
        (lab.host(5) / name).write_text(text)
    return change


def clock_off(lab: Lab) -> None:
    """host05's clock is behind."""
    (lab.host(5) / "bin").mkdir()
    date = lab.host(5) / "bin/date"
    date.write_text("#!/bin/sh\necho 1700000000\n")
    date.chmod(0o755)


def no_program(lab: Lab) -> None:
    """host05 has no faultline-ab."""
    (lab.host(5) / "bin").mkdir()
    program = lab.host(5) / "bin/faultline-ab"
    program.write_text("#!/bin/sh\nexit 127\n")
    program.chmod(0o755)


def edited(lab: Lab) -> None:
    """The plan was edited: one letter of one schedule."""
    text = lab.path.read_text()
    lab.path.write_text(re.sub(r'"arms": "ab', '"arms": "ba', text, count=1))


@pytest.mark.parametrize("change,reason", [
    (put("gone"), "host05: cannot be reached: ssh: connect to host host05"),
    (put("refuse", "faultline-ab: error: this kernel has no vm.x\n"),
     "host05: faultline-ab: error: this kernel has no vm.x"),
    (put("fail", "faultline-ab: error: cannot write: is it full?\n"),
     "every host was set back:\n  host05: faultline-ab: error: cannot write: is it full?"),
    (clock_off, "host05: its clock says '1700000000'"),
    (no_program, "host05: faultline-ab is not there: install faultline-host"),
    (edited, "was changed after `plan` wrote it"),
])
def test_start_fails_as_a_whole(lab: Lab, change: Callable[[Lab], None], reason: str) -> None:
    """A host that cannot take part gives one error, and no host stays switched on."""
    change(lab)
    done = lab.run("start", lab.path)
    assert done.returncode == 2
    assert reason in done.stderr and "Traceback" not in done.stderr
    assert not lab.on and not (lab.folder / "lab.run.json").exists()


def test_clock_of_a_host_that_is_asked_late(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock is compared with the time at which its host was asked."""
    lab.here(monkeypatch)
    # All clocks are this file.  host00 takes ten minutes, and host15 is five minutes behind.
    clock = lab.folder / "clock"
    clock.write_text(f"{START}")
    monkeypatch.setattr(hosts, "time", types.SimpleNamespace(
        time=lambda: float(clock.read_text())))
    late = f'echo $(($(cat {clock}) + 600)) >{clock}.new && mv {clock}.new {clock}; cat {clock}'
    for place, script in ((lab.folder, f"cat {clock}"), (lab.host(0), late),
                          (lab.host(15), f"echo $(($(cat {clock}) - 300))")):
        date = place / "bin/date"
        date.parent.mkdir(exist_ok=True)
        date.write_text(f"#!/bin/sh\n{script}\n")
        date.chmod(0o755)
    found, _ = command_start._check_hosts(lab.plan, START + 3600,
                                          hosts.Transport(lab.plan.experiment.transport, 1))
    assert len(found) == 1 and found[0].startswith("host15: its clock says '"), found


def test_interrupted_start(lab: Lab) -> None:
    """SIGTERM during a start sets every host back."""
    (lab.host(5) / "slow-start").touch()
    with subprocess.Popen([fleet_lab.FLEET / "faultline-rollout", "start", lab.path],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=lab.env) as process:
        wait_for(lambda: len(lab.on) == HOSTS - 1, "a plan on all hosts but host05", process)
        process.send_signal(signal.SIGTERM)
        lab.clear("slow-start")
        out = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "set back" in out
    assert not lab.on


HALF = [f"host{number:02}" for number in range(HOSTS // 2)]
NOT_IN_IT = "is not in the experiment: not started yet, stopped, expired or rebooted"


def kill_halfway(lab: Lab) -> None:
    """SIGKILL a start that has reached half of the hosts; its other commands are lost."""
    with lab.start_halfway() as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    lab.mark("lost", range(HOSTS // 2, HOSTS))
    lab.clear("slow")
    wait_for(lambda: not lab.on_its_way, "what is on its way is lost")
    lab.clear("lost")
    assert lab.on == HALF


def test_killed_start(lab: Lab) -> None:
    """After SIGKILL half-way, status names the hosts, and start's advice works."""
    lab.real()
    kill_halfway(lab)
    done = lab.run("start", lab.path)
    assert done.returncode == 2 and lab.on == HALF
    assert "already started, but that start has not finished" in done.stderr
    assert f"`faultline-rollout stop {lab.path}`" in done.stderr
    told = json.loads(lab.run("status", lab.path, "--json").stdout)
    assert told["hosts"] == {host.name: "waiting" if host.name in HALF else NOT_IN_IT
                             for host in lab.plan.hosts}
    assert f"`faultline-rollout stop {lab.path}`" in told["problem"]
    text = lab.run("status", lab.path).stdout
    assert f"{HOSTS // 2} waiting" in text and f"host08: {NOT_IN_IT}" in text
    first = json.loads((lab.folder / "lab.run.json").read_text())
    done = lab.run("stop", lab.path)
    assert done.returncode == 0 and not lab.on, done.stderr
    text = lab.run("status", lab.path).stdout
    assert "none in the experiment" in text and "has not finished" not in text
    done = lab.run("start", lab.path)
    assert done.returncode == 0 and len(lab.on) == HOSTS, done.stderr
    again = json.loads((lab.folder / "lab.run.json").read_text())
    assert again["start"] >= first["start"] and "complete" in again and "stopped" not in again
    assert "has not finished" not in lab.run("status", lab.path).stdout
    # A start that has reached all hosts cannot be repeated, not even after a stop.
    assert lab.run("stop", lab.path).returncode == 0
    assert "make a new plan" in lab.run("start", lab.path).stderr and not lab.on


def test_killed_start_expires(lab: Lab) -> None:
    """After SIGKILL half-way and no stop, hosts follow the plan until it expires."""
    lab.real()
    kill_halfway(lab)
    start = json.loads((lab.folder / "lab.run.json").read_text())["start"]
    for number, name in enumerate(HALF):
        clock = lab.host(number) / "clock"
        clock.write_text(f"{start + lab.plan.arms[name].index('b') * fleet_lab.SLOT * 60}\n")
        assert lab.agent(number, "apply", "lab").returncode == 0
        assert lab.switch(number).read_text() == "1\n"
        clock.write_text(f"{start + lab.plan.experiment.expires - 1}\n")
        assert lab.agent(number, "stop", "--expired").returncode == 0
        assert name in lab.on
        clock.write_text(f"{start + lab.plan.experiment.expires}\n")
        assert lab.agent(number, "stop", "--expired").returncode == 0
        assert lab.switch(number).read_text() == "0\n"
    assert not lab.on
    assert lab.run("stop", lab.path).returncode == 0


def test_killed_start_arrives_late(lab: Lab) -> None:
    """Commands of a killed start arrive after a stop: status shows them, a start refuses."""
    lab.real()
    with lab.start_halfway() as process:
        process.kill()
    assert lab.run("stop", lab.path).returncode == 0 and not lab.on
    lab.clear("slow")
    wait_for(lambda: not lab.on_its_way, "what is on its way arrives")
    assert len(lab.on) == HOSTS // 2
    assert f"{HOSTS // 2} waiting" in lab.run("status", lab.path).stdout
    late = lab.on
    done = lab.run("start", lab.path)
    assert done.returncode == 2 and "nothing was changed" in done.stderr and lab.on == late
    assert "host15: faultline-ab: error: experiment lab uses" in done.stderr
    assert f"{HOSTS // 2} waiting" in lab.run("status", lab.path).stdout
    assert lab.run("stop", lab.path).returncode == 0 and not lab.on
    assert lab.run("start", lab.path).returncode == 0 and len(lab.on) == HOSTS


def test_start_loses_the_network(lab: Lab) -> None:
    """start reports that no host answers; status, stop and start work afterwards."""
    lab.real()
    with lab.start_halfway() as process:
        lab.mark("lost", range(HOSTS // 2, HOSTS))
        lab.mark("gone", range(HOSTS))
        lab.clear("slow")
        error = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and "not started, not every host was set back" in error
    assert "host00: cannot be reached" in error and "it ends by itself" in error
    assert f"use `faultline-rollout stop {lab.path}` when they can be reached" in error
    told = json.loads(lab.run("status", lab.path, "--json").stdout)
    assert all("cannot be reached" in state for state in told["hosts"].values())
    done = lab.run("stop", lab.path)
    assert done.returncode == 2 and f"{HOSTS} hosts could not be stopped" in done.stderr
    lab.clear("gone")
    lab.clear("lost")
    told = json.loads(lab.run("status", lab.path, "--json").stdout)
    assert {name for name, state in told["hosts"].items() if state == "waiting"} == set(HALF)
    done = lab.run("start", lab.path)
    assert done.returncode == 2 and lab.on == HALF
    assert "host00: faultline-ab: error: experiment lab uses" in done.stderr
    assert "nothing was changed" in done.stderr
    assert lab.run("stop", lab.path).returncode == 0 and not lab.on
    assert lab.run("start", lab.path).returncode == 0 and len(lab.on) == HOSTS


def test_stop_during_start(lab: Lab) -> None:
    """A stop during a start ends the start, and leaves no host switched on."""
    with lab.start_halfway() as process:
        done = lab.run("start", lab.path)
        assert done.returncode == 2 and "has not finished" in done.stderr and lab.on == HALF
        assert lab.run("stop", lab.path).returncode == 0 and not lab.on
        lab.clear("slow")
        error = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and "it was stopped meanwhile" in error
    assert not lab.on and not (lab.folder / "lab.run.json").exists()


def test_stop_during_the_checks(lab: Lab) -> None:
    """A stop during a start's checks keeps it from starting the hosts."""
    lab.mark("slow-check", [3])
    with subprocess.Popen([fleet_lab.FLEET / "faultline-rollout", "start", lab.path],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=lab.env) as process:
        wait_for((lab.host(0) / "calls").exists, "the start asks host00", process)
        assert lab.run("stop", lab.path).returncode == 0
        lab.clear("slow-check")
        error = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and "nothing was changed: it was stopped meanwhile" in error
    assert not lab.on and not (lab.folder / "lab.run.json").exists()
    assert "start /" not in (lab.host(0) / "calls").read_text()


def test_stop_at_the_end_of_a_start(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that races with a start's completion is recorded."""
    lab.here(monkeypatch)
    place = lab.folder / "lab.run.json"
    write, refused = design.write, threading.Event()
    stops: list[concurrent.futures.Future[int]] = []

    def flock(file: Any, how: int) -> None:
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            refused.set()
            raise

    def slow(path: pathlib.Path, text: str) -> None:
        if '"complete"' in text and not stops:
            stops.append(pool.submit(command_stop.command_stop, parse(["stop", str(lab.path)])))
            assert refused.wait(60), "the stop did not meet a lock within a minute"
        write(path, text)

    parse = cli.parser().parse_args
    monkeypatch.setattr(design, "write", slow)
    monkeypatch.setattr(run, "fcntl", types.SimpleNamespace(
        flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert command_start.command_start(parse(["start", str(lab.path)])) == 0
        assert stops[0].result() == 0 and not lab.on
    assert "stopped" in json.loads(place.read_text())


def test_stop_beside_a_command_that_hangs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait forever for a command that holds the lock."""
    lab.here(monkeypatch)
    monkeypatch.setattr(run, "LOCK_SECONDS", 0.5)
    assert lab.run("start", lab.path).returncode == 0 and len(lab.on) == HOSTS
    with open(lab.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def late(*_: object) -> None:
            raise AssertionError("it waits")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(600)
        try:
            assert command_stop.command_stop(cli.parser().parse_args(["stop", str(lab.path)])) == 0
        finally:
            signal.alarm(0)
    assert not lab.on
    assert "stopped" in json.loads((lab.folder / "lab.run.json").read_text())


def test_two_starts(lab: Lab) -> None:
    """The second of two concurrent starts gives up and changes nothing."""
    lab.mark("slow-check", [3])
    with subprocess.Popen([fleet_lab.FLEET / "faultline-rollout", "start", lab.path],
                          stdout=subprocess.DEVNULL,
                          env=lab.env) as process:
        wait_for((lab.host(0) / "calls").exists, "the first start asks host00", process)
        done = lab.run("start", lab.path)
        lab.clear("slow-check")
        assert process.wait(120) == 0
    assert done.returncode == 2 and "has not finished" in done.stderr and len(lab.on) == HOSTS


def test_stop_of_a_fleet_with_a_lost_host(lab: Lab) -> None:
    """stop works with an edited plan, continues past a lost host, and names it."""
    assert lab.run("start", lab.path).returncode == 0
    edited(lab)
    (lab.host(7) / "gone").touch()
    done = lab.run("stop", lab.path)
    assert done.returncode == 2 and "host07: cannot be reached" in done.stderr
    assert lab.on == ["host07"]


def test_watch_ends_with_a_stop(lab: Lab) -> None:
    """--watch does not wait for the end of an experiment that was stopped."""
    assert lab.run("start", lab.path).returncode == 0
    with subprocess.Popen([fleet_lab.FLEET / "faultline-rollout", "status", "--watch", "--every",
                           "1", lab.path], stdout=subprocess.PIPE, text=True,
                          env=lab.env) as process:
        assert process.stdout and f"lab [{'.' * 40}] 0%" in process.stdout.readline()
        assert process.poll() is None
        assert lab.run("stop", lab.path).returncode == 0
        try:
            assert "none in the experiment" in process.communicate(timeout=120)[0]
        finally:
            process.kill()
    assert process.returncode == 0


def test_new_plan_of_a_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """--force keeps a running plan; after a stop, a new plan of that name can be started."""
    monkeypatch.setattr(planning, "make", lambda *_, **__: (
        dataclasses.replace(lab.plan, notes={"history_seconds": 1}),
        [planning.Noise(24, 0.01, 0.0)]))
    (lab.folder / "inventory.ini").write_text("host00\n")
    file = lab.folder / "lab.toml"
    file.write_text('name = "x"\nswitch = "vm.speculative_page_fault"\na = 0\nb = 1\n'
                    'slot = "5min"\nwashout = "1min"\nexpires = "2h"\n'
                    'primary = {query = "x[$slot]", better = "lower", margin = "1%"}\n'
                    'mechanism = {query = "x[$slot]", min = 1}\n')
    args = cli.parser().parse_args(["plan", str(file), "-o", str(lab.path), "--force"])
    assert lab.run("start", lab.path).returncode == 0
    before = lab.path.read_bytes()
    with pytest.raises(Error, match="lab.json was started, says .*run `faultline-rollout stop"):
        command_plan.command_plan(args)
    assert lab.path.read_bytes() == before
    assert lab.run("stop", lab.path).returncode == 0
    assert command_plan.command_plan(args) == 0
    assert lab.run("start", lab.path).returncode == 0 and len(lab.on) == HOSTS


def test_after_a_stop(lab: Lab) -> None:
    """The time of the first stop is kept, and slots after it are not judged."""
    assert lab.run("start", lab.path).returncode == 0
    place = lab.folder / "lab.run.json"
    start = json.loads(place.read_text())["start"]
    assert run.until(lab.path, None) is None and run.until(lab.path, 7.0) == 7
    before = int(time.time())
    assert lab.run("stop", lab.path).returncode == 0
    first = json.loads(place.read_text())
    assert first["start"] == start and before <= first["stopped"] <= time.time()
    place.write_text(json.dumps(first | {"stopped": 1000}))
    assert lab.run("stop", lab.path).returncode == 0
    assert run.until(lab.path, None) == 1000 and run.until(lab.path, 7.0) == 7
    assert run.until(lab.path, 2000.0) == 1000


@pytest.mark.parametrize("known,label,wanted", [
    (["db1:9100", "db2:9100"], "db2:8080", 1),
    (["db1:9100", "db2:9100"], "db3:9100", None),
    (["[2001:db8::1]:9100", "[2001:db8::2]:9100"], "[2001:db8::1]:8080", 0),
    (["[2001:db8::1]:9100", "[2001:db8::2]:9100"], "[2001:db8::9]:9100", None),
    (["2001:db8::1", "2001:db8::2"], "2001:db8::9", None),
    (["vm:9100", "vm:9200"], "vm:9100", 0),
    (["vm:9100", "vm:9200"], "vm:8080", None),
])
def test_host_of_a_series(known: list[str], label: str, wanted: int | None) -> None:
    """The port is ignored; values of another machine are never used."""
    found = [hosts.Host(name, name, name, {}) for name in known]
    assert prometheus.Prometheus("").host_of(found)({"instance": label}) == wanted


def test_blackout(tmp_path: pathlib.Path) -> None:
    """start refuses during a blackout."""
    lab = make_lab(tmp_path, blackout=["2020-01-01T00:00+00:00/2099-01-01T00:00+00:00"])
    done = lab.run("start", lab.path)
    assert done.returncode == 2 and "blackout" in done.stderr and not lab.on


def test_alerts_need_prometheus(tmp_path: pathlib.Path) -> None:
    """start refuses if Prometheus cannot be asked for alerts."""
    lab = make_lab(tmp_path, alerts=["HighErrorRate"])
    done = lab.run("start", lab.path)
    assert done.returncode == 2 and "cannot be reached" in done.stderr and not lab.on


@pytest.mark.parametrize("alert,starts", [("HighErrorRate", False), ("Other", True)])
def test_alerts_that_fire(alert: str, starts: bool, tmp_path: pathlib.Path) -> None:
    """start refuses while a named alert fires; other alerts do not matter."""
    fires = answer_of([{"metric": {"alertname": "HighErrorRate"}, "value": [0, "1"]}], "vector")
    with serving(lambda _: (200, fires)) as url:
        lab = make_lab(tmp_path, alerts=[alert], prometheus=url)
        done = lab.run("start", lab.path)
    assert (done.returncode == 0) == starts and bool(lab.on) == starts, done.stderr
    assert starts or "these alerts fire: HighErrorRate: start when they do not" in done.stderr


@pytest.mark.parametrize("rules,told", [
    (["HighErrorRate"], "is named HighErorRate"), (["HighErrorRate", "HighErorRate"], ""),
    ([], "does not list its rules")])
def test_alert_that_no_rule_has(rules: list[str], told: str, lab: Lab) -> None:
    """start refuses an alert that no rule defines, and says if it cannot know that."""
    groups = json.dumps({"data": {"groups": [{"rules": [{"name": name} for name in rules]}]}})
    with serving(lambda _: (200, answer_of([], "vector")), groups.encode()) as url:
        source = {**lab.plan.source, "prometheus": url, "alerts": ["HighErrorRate", "HighErorRate"]}
        lab.path.write_text(dataclasses.replace(lab.plan, source=source).text())
        done = lab.run("start", lab.path, "--dry-run")
    assert done.returncode == (2 if "named" in told else 0)
    assert told in done.stderr and done.stderr.count("\n") == bool(told)


@pytest.mark.parametrize("as_json", [False, True])
def test_stop_on_harm(tmp_path: pathlib.Path, as_json: bool) -> None:
    """A crash in arm b ends the experiment before its slot is over; one in arm a does not."""
    now = START + 120
    for arm in "ab":
        folder = tmp_path / arm
        folder.mkdir()
        values = [[moment, str(START + (60 if moment > START + 70 else -1000))]
                  for moment in range(START, now + 1)]
        lab = make_lab(folder)
        host = next(name for name, arms in lab.plan.arms.items() if arms[0] == arm)
        told = answer_of([{"metric": {"instance": f"{host}:9100"}, "values": values}])
        with serving(functools.partial(lambda told, _: (200, told), told)) as url:
            source = {**lab.plan.source, "prometheus": url}
            lab.path.write_text(dataclasses.replace(lab.plan, source=source).text())
            assert lab.run("start", lab.path).returncode == 0
            done = lab.run("status", lab.path, "--stop-on-harm", "--start", START, "--at", now,
                           *(["--json"] if as_json else []))
        if as_json:
            assert json.loads(done.stdout)["name"] == "lab"
            done.stdout = done.stderr
        # This Prometheus has nothing but times of boot.
        assert done.returncode == (10 if arm == "b" else 30), done
        assert bool(lab.on) == (arm == "a")
        assert (f"{host}: crashed in arm b\n" in done.stdout) == (arm == "b")
        assert ("harm: every host is set back\n" in done.stdout) == (arm == "b")


def test_start_takes_too_long(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """If slot 0 begins before all hosts have the plan, every host is set back."""
    lab.here(monkeypatch)
    transport = hosts.Transport(lab.plan.experiment.transport)
    with pytest.raises(Error, match="before all hosts had the plan: use a longer --lead"):
        command_start._push(lab.path, lab.plan, int(time.time()) - 1, transport)
    assert not lab.on and "start" in (lab.host(0) / "calls").read_text()


# --- Files and arguments

@pytest.mark.parametrize("text,reason,again", [
    (None, "has not been started", ""),
    ("", "cannot be read: delete it, and give --start", "already started"),
    ("[1]", "cannot be read: delete it, and give --start", "already started"),
    ('{"plan": "0", "start": NaN}', "cannot be read: delete it", "has not finished"),
    ('{"plan": "0", "start": 1e300}', "cannot be read: delete it", "has not finished"),
    ('{"plan": "0", "start": 1, "complete": 2}', "belongs to another plan", "already started"),
])
def test_run_file(lab: Lab, text: str | None, reason: str, again: str) -> None:
    """With a bad .run.json or none, status and verdict say what to do, and stop works."""
    if text is not None:
        (lab.folder / "lab.run.json").write_text(text)
    for verb in ("status", "verdict"):
        done = lab.run(verb, lab.path)
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
    if again:
        done = lab.run("start", lab.path)
        assert done.returncode == 2 and again in done.stderr and not lab.on
    (lab.host(3) / "plan").write_text("name=lab\n")
    done = lab.run("stop", lab.path)
    assert done.returncode == 0 and not lab.on, done.stderr


@pytest.mark.parametrize("changes,reason", [
    ({"name": ""}, "has no name"),
    ({"name": "--all"}, "has no name"),
    ({"name": "x; reboot"}, "has no name"),
    ({"transport": {"command": "ssh"}}, "has no transport"),
    ({"transport": []}, "is not a plan"),
    ({"hosts": []}, "is not a plan"),
    ({"hosts": [{"name": "host00", "address": 7}]}, "is not a plan"),
    (None, "is not a plan"),
])
def test_stop_with_a_damaged_plan(lab: Lab, changes: dict[str, Any] | None, reason: str) -> None:
    """stop with a damaged plan changes nothing, and says what to do on the hosts."""
    body = json.loads(lab.path.read_text())
    change = dict(changes or {})
    body |= {"hosts": change.pop("hosts", body["hosts"])}
    body["experiment"] |= change
    lab.path.write_text(json.dumps(body) if changes else "{")
    done = lab.run("stop", lab.path)
    assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
    assert "run `faultline-rollout stop --all --inventory FILE`, or `faultline-ab stop --all` on " \
        "the hosts" in done.stderr
    assert not list(lab.folder.glob("host*/calls"))


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b"\xff\xfe"])
@pytest.mark.parametrize("verb", ["plan", "start", "status", "verdict", "stop"])
def test_no_plan(tmp_path: pathlib.Path, verb: str, content: bytes | None) -> None:
    """A plan that is missing, empty or another file gives one error."""
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    done = fleet_lab.rollout(verb, path)
    assert done.returncode == 2 and str(path) in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("faultline-rollout: error: ")


@pytest.mark.parametrize("words,reason", [
    (["plan", "x", "--history", "week"], "--history: 'week' is not a duration"),
    (["verdict", "x", "--at", "tomorrow"], "--at: 'tomorrow' is not a time"),
    (["verdict", "x", "--at", "nan"], "--at: 'nan' is not a time"),
    (["status", "x", "--start", "inf"], "--start: 'inf' is not a time"),
    (["status", "x", "--start", "1e30"], "--start: '1e30' is not a time"),
    (["status", "x", "--every", "-1"], "--every: '-1' is not a number of seconds"),
    (["start", "x", "--lead", "1e3"], "--lead: '1e3' is not a number of seconds"),
    (["start", "x", "--lead", "999999999999"], "--lead: '999999999999' is not a number"),
    (["trial", "6.12", "x", "--soak", "-1s"], "argument --soak"),
])
def test_arguments(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error for a bad argument names it."""
    with pytest.raises(SystemExit) as caught:
        cli.parser().parse_args(words)
    assert caught.value.code == cli.USAGE and reason in capsys.readouterr().err


def test_small_stratum() -> None:
    """Two hosts of each stratum stay off, so a stratum has at least four."""
    fleet = [hosts.Host(f"h{number}", "", "", {"role": "db" if number < 3 else "web"})
             for number in range(7)]
    with pytest.raises(Error, match="stratum 'db' has 3 of at least 4 hosts"):
        design.by_stratum(fleet, ["role"])
    assert len(design.by_stratum(fleet[3:], ["role"])["web"]) == 4


def test_restart_in_both_arms(tmp_path: pathlib.Path) -> None:
    """A value for new mappings restarts the service on every host after slot 0 begins."""
    lab = make_lab(tmp_path, switch="vm.hugetlb_pmd_sharing", a=1, b=0, design="parallel",
                   restart="postgresql.service")
    run = tmp_path / "bin/systemd-run"
    run.write_text('#!/bin/sh\necho "$*" >>"$HOST_FOLDER/restart"\n')
    run.chmod(0o755)
    done = lab.run("start", lab.path)
    assert done.returncode == 0, done.stderr
    for number in range(HOSTS):
        assert "systemctl restart postgresql.service" in (lab.host(number) / "restart").read_text()
    times = {re.findall(r"[0-9:]{8} UTC", (lab.host(number) / "restart").read_text())[0]
             for number in range(HOSTS)}
    # Not all at once.
    assert len(times) > HOSTS // 2
    arms = {dict(line.split("=", 1) for line in path.read_text().splitlines())["arms"]
            for path in tmp_path.glob("host*/plan")}
    assert arms == {"a" * fleet_lab.SLOTS, "b" * fleet_lab.SLOTS}


# --- The experiment file

@pytest.mark.parametrize("changes,reason", [
    ({"wahsout": "1min"}, "unknown key 'wahsout': do you mean 'washout'?"),
    ({"switch": "vm.speculative_page_faults"}, "do you mean 'vm.speculative_page_fault'?"),
    ({"b": 2}, "b: 2 is out of range: vm.speculative_page_fault takes 0 to 1"),
    ({"b": 0}, "b: is the same as a"),
    ({"b": True}, "b: must be a number"),
    ({"b": 10 ** 400}, "b: must be a number, at most 1e+15"),
    ({"expires": "1" * 400 + "d"}, "d' is not a duration"),
    ({"mechanism": 5}, "mechanism: must be a table"),
    ({"mechanism": []}, "mechanism: must be a table"),
    ({"transport": ["ssh"]}, "transport: must be a table"),
    ({"primary": "x"}, "primary: must be a table"),
    ({"name": "a b"}, "name: use up to 64 letters"),
    ({"slot": "30s", "washout": "5s"}, "slot: is shorter than 60 s"),
    ({"slot": "5 minutes"}, "slot: '5 minutes' is not a duration"),
    ({"washout": "4min"}, "washout: is more than half of the slot"),
    ({"duration": "7min"}, "duration: is not a multiple of two slots"),
    ({"expires": "1h"}, "expires: is earlier than the end"),
    ({"blackout": ["tomorrow"]}, "blackout: 'tomorrow' is not a window"),
    ({"primary": {"query": "x", "better": "lower", "margin": "1%"}}, "does not contain [$slot]"),
    ({"primary": {"query": "x[$slot]", "better": "less", "margin": "1%"}},
     "primary: better: is 'less', and can be lower or higher"),
    ({"primary": {"query": "x[$slot]", "better": "lower", "margin": 1}},
     "primary: margin: must be text"),
    ({"guard": [{"query": "x[$slot]", "better": "lower", "margin": "0%"}]},
     "guard 1: margin: '0%' is not a percentage above 0%"),
    ({"mechanism": {"query": "x[$slot]", "min": 0}}, "mechanism: min: must be above 0"),
    ({"transport": {"command": ["ssh", "{host}"]}}, 'has no "{command}"'),
])
def test_experiment_file(changes: dict[str, Any], reason: str) -> None:
    """A mistake gives an error that names the key."""
    with pytest.raises(Error) as caught:
        experiment.parse(fleet_lab.source("x") | changes, "x.toml: ")
    assert str(caught.value).startswith("x.toml: ") and reason in str(caught.value)


def test_example_in_the_manual() -> None:
    """The example of faultline-experiment(5) is a valid file."""
    page = (ROOT / "rollout/fleet/faultline-experiment.5").read_text()
    lines = page.split(".Bd -literal -offset indent\n")[1].split(".Ed")[0]
    folder = pathlib.Path(os.environ.get("TMPDIR", "/tmp"))
    path = folder / f"faultline-example-{os.getpid()}.toml"
    path.write_text(lines)
    try:
        exp, _ = experiment.load(path)
    finally:
        path.unlink()
    assert exp.name == "jvm-spf-1" and exp.guards
    # The manual describes every key.
    for key in experiment.KEYS:
        assert re.search(rf"^\.It Sy {key}$|^\.Ss .*\b{key}\b", page, re.MULTILINE), key


@pytest.mark.parametrize("text,reason", [
    ("", "has no hosts"),
    ("web1 role\n", "inventory.ini:1: Expected key=value"),
    ("[db:children]\nweb\n", "inventory.ini:2: Section [db:ch"),
    ("web1 instance=x\nweb2 instance=x\n", "has instance x for several hosts"),
    ("web1 ansible_host=10.0.0.1\nweb2 ansible_host=10.0.0.1\n",
     "has address 10.0.0.1 for several"),
    ("web1 ansible_host=-oProxyCommand=reboot\n", "'-oProxyCommand=reboot' is not an address"),
    ("web1 ansible_host='{{ inventory_hostname }}.lan'\n", "is a template"),
    ("web1 ansible_user=-x\n", "'-x' is not the name of a user"),
    ("web1 ansible_port=0\n", "'0' is not a port"),
    ("web1 ansible_ssh_common_args='-J jump'\n", "ansible_ssh_common_args is not used"),
])
def test_inventory_errors(tmp_path: pathlib.Path, text: str, reason: str) -> None:
    """A mistake in the inventory names the host or the line."""
    path = tmp_path / "inventory.ini"
    path.write_text(text)
    with pytest.raises(Error, match=re.escape(reason)):
        hosts.inventory(path)


PLAIN = """# fleet
web1 ansible_host=10.0.0.1 role=front port=0x10
[web]
web2 ansible_user=admin ansible_port=2222 rate=1.50
[db]
db1 instance=db1:9100
web2
"""


def test_inventory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain list is read as Ansible reads it, and needs no Ansible."""
    path = tmp_path / "hosts"
    path.write_text("\ufeff" + PLAIN)
    monkeypatch.setattr(hosts, "_ansible", lambda _: pytest.fail("Ansible is asked"))
    plain = hosts.inventory(path)
    first, second, store = plain
    assert (first.address, first.instance, first.facts["role"]) == ("10.0.0.1", "web1", "front")
    assert (second.user, second.port, second.facts["group"]) == ("admin", 2222, "db")
    assert (store.instance, store.facts["group"]) == ("db1:9100", "db")
    monkeypatch.undo()
    path.write_text(PLAIN)
    monkeypatch.setattr(hosts, "_plain", lambda _: None)
    assert sorted(hosts.inventory(path), key=str) == sorted(plain, key=str)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Error, match="more than a plain list of hosts: install ansible-core"):
        hosts.inventory(path)


@pytest.mark.parametrize("name,text,mode", [
    ("ini", "web[1:2]\n[db:children]\nweb\n[web]\nweb3\n[web:vars]\nrole=r1\n", 0o644),
    ("yml", "web: {hosts: {web1: {}, web2: {}, web3: {role: r1}}}\n", 0o644),
    ("sh", """#!/bin/sh
echo '{"web": {"hosts": ["web1", "web2", "web3"], "vars": {"role": "r1"}},'
echo ' "_meta": {"hostvars": {}}}'
""", 0o755)])
def test_inventory_of_ansible(tmp_path: pathlib.Path, name: str, text: str, mode: int) -> None:
    """Ranges, groups of groups, YAML and programs are read by Ansible."""
    path = tmp_path / f"inventory.{name}"
    path.write_text(text)
    path.chmod(mode)
    found = hosts.inventory(path)
    assert sorted(host.name for host in found) == ["web1", "web2", "web3"]
    assert next(host for host in found if host.name == "web3").facts["role"] == "r1"
