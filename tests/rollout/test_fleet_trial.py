# SPDX-License-Identifier: GPL-2.0-only
"""faultline-rollout trial: rings, failures, and continuing after them.

A host is a folder; faultline-boot on it is a small program that keeps its states there.
"""
from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import types

import pytest

from faultline.common import ROOT
from rollout import fleet_lab
from rollout.prometheus_lab import answer_of, serving

from faultline_rollout import Error, cli, command_trial, trial
from faultline_rollout.hosts import Answer, Host

KERNEL = "6.12.117-faultline1.generic"
BOOT = r"""#!/bin/sh
# A host's faultline-boot: its state is in files of $HOST_FOLDER.
cd "$HOST_FOLDER" || exit
echo "$*" >>boot.calls
value() { cat "$1" 2>/dev/null || echo "$2"; }
case $1 in
status)
    [ ! -e on_status ] || . ./on_status
    printf '{"loader": "GRUB", "running": "%s", "default": "%s", "next": "", "pinned": false, ' \
        "$(value running old)" "$(value default old)"
    printf '"newest": "%s", "boot": "%s", ' "$(value newest '')" "$(value boot 1)"
    printf '"trial": {"kernel": "%s", "state": "%s", "reason": "%s"}, "rollbacks": %s}\n' \
        "$(value kernel '')" "$(value state none)" "$(value reason '')" "$(value rollbacks 0)"
    ;;
next)
    [ ! -e refuse ] || { cat refuse >&2; exit 1; }
    echo "$2" >kernel; echo requested >state; rm -f reason
    [ ! -e cut ] || { rm cut; kill -9 "$PPID"; }
    ;;
back) [ "$2" != --next ] || rm -f kernel state ;;
pin) [ ! -e full ] || { cat full >&2; exit 1; }; echo "$2" >default; echo promoted >state ;;
esac
"""
AB = r"""#!/bin/sh
if [ -e "$HOST_FOLDER/experiment" ]; then
    cat "$HOST_FOLDER/experiment"
else
    echo '{"experiments": [], "holds": [], "blocked": false}'
fi
"""
LATER = r"""#!/bin/sh
# systemd-run --quiet --collect --unit=UNIT --on-active=3s sh -c COMMAND
[ ! -e "$HOST_FOLDER/no_timer" ] || { echo 'Failed to start transient timer unit' >&2; exit 1; }
shift 4
exec "$@"
"""
REBOOT = r"""#!/bin/sh
# systemctl reboot: the host comes back as its file `outcome` says.
cd "$HOST_FOLDER" || exit
[ "$1" = reboot ] || exit 0
echo reboot >>boot.calls
case $(cat outcome 2>/dev/null) in
stuck) ;;
slow) cp kernel running; echo trying >state ;;
fails) echo rolled-back >state; echo 'a unit has failed' >reason ;;
gone) touch gone ;;
*) cp kernel running; echo passed >state ;;
esac
"""
SSH = r"""#!/bin/sh
HOST_FOLDER=$FLEET_FOLDER/$1
export HOST_FOLDER
[ ! -e "$HOST_FOLDER/gone" ] || { echo "ssh: connect to host $1: No route to host" >&2; exit 255; }
cd "$HOST_FOLDER" || exit
[ ! -e away ] || { rm away; exit 255; }
PATH=$FLEET_FOLDER/bin:$PATH sh -c "$2"
status=$?
# The connection breaks in the middle, or after it.
case $2 in
*'faultline-boot next'*) [ ! -e lost ] || { mv lost away; exit 255; } ;;
esac
[ $status -lt 128 ] || status=255
exit $status
"""
HOSTS = 12
NAMES = [f"host{number:02}" for number in range(HOSTS)]


@dataclasses.dataclass
class Lab:
    """Hosts in a folder, and an experiment file for them."""

    folder: pathlib.Path
    file: pathlib.Path

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run faultline-rollout trial, in this process."""
        kernel = KERNEL if "newest" not in words else ""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(err):
            patch.setenv("FLEET_FOLDER", str(self.folder))
            try:
                args = cli.parser().parse_args(
                    ["trial", "--soak", "0", "--every", "0", "--wait", "1s", "--max-unavailable",
                     "100%", *map(str, words), *([kernel] if kernel else []), str(self.file)])
                status = args.run(args)
            except Error as error:
                err.write(str(error))
                status = 2
            except SystemExit as end:
                status = int(end.code or 0)
        return subprocess.CompletedProcess([], status, out.getvalue(), err.getvalue())

    def set(self, host: str, name: str, text: str = "") -> None:
        """Write a file of a host."""
        (self.folder / host / name).write_text(text)

    def at_look(self, host: str, number: int, command: str) -> None:
        """Run a command on the host when it is asked for its state for the NUMBER-th time."""
        self.set(host, "on_status", 'asked=$(($(value asked 0) + 1)); echo $asked >asked\n'
                 f"[ $asked -ne {number} ] || {{ {command}; }}\n")

    def armed(self) -> list[str]:
        """The hosts that would boot the kernel at a reboot."""
        return [path.parent.name for path in sorted(self.folder.glob("host*/state"))
                if path.read_text().strip() == "requested"]

    def with_kernel(self, name: str = "running") -> list[str]:
        """The hosts that run the kernel, or have it as default."""
        return [path.parent.name for path in sorted(self.folder.glob(f"host*/{name}"))
                if path.read_text().strip() == KERNEL]

    def calls(self) -> int:
        """The number of hosts that were told to boot the kernel."""
        return sum(path.read_text().count(f"next {KERNEL}")
                   for path in self.folder.glob("host*/boot.calls"))


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: pathlib.Path) -> Lab:
    """Twelve hosts that run an old kernel."""
    (tmp_path / "bin").mkdir()
    for name, text in (("faultline-boot", BOOT), ("faultline-ab", AB), ("systemd-run", LATER),
                       ("systemctl", REBOOT), ("ssh", SSH)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in NAMES:
        (tmp_path / name).mkdir()
    (tmp_path / "inventory.ini").write_text("\n".join(NAMES) + "\n")
    file = tmp_path / "lab.toml"
    file.write_text(f"""\
name = "lab"
switch = "vm.speculative_page_fault"
a = 0
b = 1
slot = "5min"
washout = "1min"
duration = "2h"
expires = "48h"
prometheus = "http://127.0.0.1:9"
[transport]
command = ["{tmp_path}/bin/ssh", "{{address}}", "{{command}}"]
[primary]
query = "avg_over_time(latency[$slot])"
better = "lower"
margin = "1%"
[mechanism]
query = "rate(node_vmstat_spf_anon[$slot])"
min = 1
""")
    return Lab(tmp_path, file)


def first(count: int) -> list[str]:
    """The names of the first hosts in the order of the rings."""
    return [host.name for host in trial.order(KERNEL, [Host(name, name, name, {})
                                                       for name in NAMES])[:count]]


def test_all_rings(lab: Lab) -> None:
    """Every host boots the kernel once, ring by ring, and keeps it."""
    done = lab.run("--rings", "1,25%,100%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert lab.with_kernel() == lab.with_kernel("default") == NAMES
    assert lab.calls() == HOSTS
    said = done.stdout.splitlines()
    assert f"ring 1: 1 hosts boot {KERNEL}, once: {first(1)[0]}" in said
    assert "ring 2: passed on 2 hosts" in said and "ring 3: passed on 9 hosts" in said
    done = lab.run()
    assert done.returncode == 0 and lab.calls() == HOSTS


def test_failure_ends_it(lab: Lab) -> None:
    """A host that fails ends the trial; later hosts and the defaults of its ring stay."""
    one, bad, good = first(3)
    (lab.folder / bad / "outcome").write_text("fails")
    done = lab.run("--rings", "1,3,100%")
    assert done.returncode == 10
    assert f"  {bad}: a unit has failed" in done.stdout
    assert "ring 2 failed, no other host was touched" in done.stdout
    assert lab.with_kernel() == sorted([one, good])
    assert lab.with_kernel("default") == [one] and lab.calls() == 3
    # The trial is refused until somebody has seen to the host, and says so.
    (lab.folder / bad / "outcome").unlink()
    assert lab.run("--rings", "1,3,100%").returncode == 10 and lab.calls() == 3
    assert lab.run("--rings", "1,3,100%", "--retry-failed").returncode == 0
    assert lab.with_kernel("default") == NAMES


def test_host_stays_away(lab: Lab) -> None:
    """A host that does not come back ends the trial."""
    (lab.folder / first(1)[0] / "outcome").write_text("gone")
    done = lab.run()
    assert done.returncode == 10 and lab.calls() == 1
    assert "does not answer after 1 s: ssh: connect to host" in done.stdout


def test_help(lab: Lab) -> None:
    """The help has the defaults."""
    done = lab.run("--help")
    assert done.returncode == 0 and trial.RINGS in done.stdout, done.stderr


# Events on the first host at its fourth look, which is that after the soak.
AFTER_SOAK = [("echo 2 >boot", "it was rebooted since it had passed"),
              ("echo old >running", "it had passed, and is to do now: old"),
              ("echo 1 >rollbacks", "a kernel was rolled back since it had passed"),
              ("touch gone; exit 255", "does not answer")]


@pytest.mark.parametrize("command, message", AFTER_SOAK)
def test_soak_before_pin(lab: Lab, command: str, message: str) -> None:
    """A host that is lost while the ring soaks ends the trial; the kernel is nobody's default."""
    lab.at_look(first(1)[0], 4, command)
    done = lab.run()
    assert done.returncode == 10 and f"  {first(1)[0]}: {message}" in done.stdout
    assert not lab.with_kernel("default") and lab.calls() == 1


@pytest.mark.parametrize("look, calls, pinned", [(5, 1, 1), (7, 3, 1), (8, 3, 3), (10, HOSTS, 3)])
def test_earlier_rings(lab: Lab, look: int, calls: int, pinned: int) -> None:
    """A host of the first ring is asked before each later ring, and after its soak."""
    lab.at_look(first(1)[0], look, "echo 2 >boot")
    done = lab.run("--rings", "1,3,100%")
    assert done.returncode == 10
    assert f"  {first(1)[0]}: it was rebooted since it had passed" in done.stdout
    assert lab.calls() == calls and lab.with_kernel("default") == sorted(first(pinned))


def test_each_ring_soaks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ring soaks before it is promoted, the last one included."""
    pinned = []

    def sleep(seconds: float) -> None:
        if seconds == 600:
            pinned.append((len(lab.with_kernel()), len(lab.with_kernel("default"))))

    monkeypatch.setenv("FLEET_FOLDER", str(lab.folder))
    monkeypatch.setattr(trial, "time", types.SimpleNamespace(monotonic=lambda: 0, sleep=sleep))
    assert not command_trial.command_trial(cli.parser().parse_args(
        ["trial", "--rings", "1,3,100%", "--soak", "10min", KERNEL, str(lab.file)]))
    assert pinned == [(1, 0), (3, 1), (HOSTS, 3)]


@pytest.mark.parametrize("limit, most, strata", [
    ("3", 3, {"db": 1, "web": 2}), ("50%", 6, {"db": 2, "web": 4}), ("1%", 1, {"db": 1, "web": 1})])
def test_max_unavailable(lab: Lab, limit: str, most: int, strata: dict[str, int]) -> None:
    """As many hosts as allowed are down at once, and the same share of each stratum."""
    role = {name: "db" if number < 4 else "web" for number, name in enumerate(NAMES)}
    (lab.folder / "inventory.ini").write_text(
        "".join(f"{name} role={role[name]}\n" for name in NAMES))
    lab.file.write_text('strata = ["role"]\n' + lab.file.read_text())
    for name in NAMES:
        lab.set(name, "outcome", "slow")
        # The first look after the order: all hosts that are down together have it.
        lab.set(name, "on_status", '[ "$(value state none)" != trying ] || {\n'
                'echo "$(grep -l trying ../*/state | xargs)" >>../down; echo passed >state; }\n')
    assert lab.run("--rings", "100%", "--max-unavailable", limit).returncode == 0
    assert lab.with_kernel("default") == NAMES
    down = [re.findall(r"host\d+", line) for line in
            (lab.folder / "down").read_text().splitlines()]
    assert max(map(len, down)) == most
    for stratum, count in strata.items():
        assert max(sum(role[name] == stratum for name in names) for names in down) == count


@pytest.mark.parametrize("problem, message", [
    ("no_timer", "Failed to start transient timer unit"), ("cut", "Killed")])
def test_nothing_stays_armed(lab: Lab, problem: str, message: str) -> None:
    """The order is withdrawn on a host that does not reboot, or whose connection broke."""
    lab.set(first(1)[0], problem)
    done = lab.run()
    assert done.returncode == 10 and message in done.stdout and lab.calls() == 1
    assert not lab.armed() and not lab.with_kernel()


def test_late_host(lab: Lab) -> None:
    """The order is withdrawn on a host that has not rebooted in time."""
    lab.set(first(1)[0], "outcome", "stuck")
    done = lab.run()
    assert done.returncode == 10 and "ordered after 1 s: it has not rebooted" in done.stdout
    assert lab.calls() == 1 and not lab.armed()


def test_lost_connection(lab: Lab) -> None:
    """A host that went down before it could answer is waited for."""
    lab.set(first(1)[0], "lost")
    assert lab.run("--wait", "60s").returncode == 0
    assert lab.with_kernel("default") == NAMES


@pytest.mark.parametrize("reason", [signal.SIGINT, signal.SIGTERM])
def test_interruption(lab: Lab, reason: signal.Signals) -> None:
    """After an interruption no host has an order; one that is on trial is left alone."""
    one, two = first(2)
    lab.set(one, "outcome", "stuck")
    lab.set(two, "outcome", "slow")
    with subprocess.Popen(
            [fleet_lab.FLEET / "faultline-rollout", "trial", "--every", "0", "--rings", "2",
             "--max-unavailable", "2", KERNEL, lab.file], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=os.environ | {"FLEET_FOLDER": str(lab.folder)},
            # A shell's job in the background ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        end = time.monotonic() + 300
        # Both have been asked for their states after the order.
        while min((lab.folder / name / "boot.calls").read_text().count("status")
                  if (lab.folder / name / "boot.calls").exists() else 0 for name in (one, two)) < 3:
            assert time.monotonic() < end and process.poll() is None, "no look at the hosts"
            time.sleep(0.01)
        process.send_signal(reason)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and f"withdrawn on {one} {two}" in said
    assert not lab.armed() and (lab.folder / two / "state").read_text() == "trying\n"


def test_newest(lab: Lab) -> None:
    """The newest kernel is the one that all hosts have installed."""
    for name in NAMES:
        lab.set(name, "newest", KERNEL)
    lab.set(NAMES[3], "newest", "6.12.99-faultline1.generic")
    done = lab.run("newest")
    assert done.returncode == 2 and not lab.calls()
    assert f"1 hosts have 6.12.99-faultline1.generic: {NAMES[3]}\n" in done.stderr
    lab.set(NAMES[3], "newest", KERNEL)
    done = lab.run("newest")
    assert done.returncode == 0 and lab.with_kernel("default") == NAMES
    for name in NAMES:
        lab.set(name, "newest")
    done = lab.run("newest")
    assert done.returncode == 2 and "no host has a Faultline kernel" in done.stderr


@pytest.mark.parametrize("name, text, message", [
    ("refuse", "error: the command line has no panic=", "has no panic="),
    ("experiment", '{"experiments": [{"name": "x"}], "holds": []}', "faultline-ab stop --all"),
    ("experiment", '{"experiments": [], "holds": [{"name": "bench", "process": 7}]}',
     "another program changes switches"),
    ("full", "error: cannot write", "cannot write"),
    ("gone", "", "No route to host"),
])
def test_refusals(lab: Lab, name: str, text: str, message: str) -> None:
    """The refusal of a host is reported, and no other ring begins."""
    (lab.folder / first(1)[0] / name).write_text(text)
    done = lab.run()
    assert done.returncode == 10 and message in done.stdout
    assert set(lab.with_kernel()) <= set(first(1)) and not lab.with_kernel("default")


def test_no_promote(lab: Lab) -> None:
    """--no-promote leaves the default alone."""
    assert lab.run("--no-promote", "--rings", "2").returncode == 0
    assert lab.with_kernel() == sorted(first(2)) and not lab.with_kernel("default")


def test_reboot_command(lab: Lab) -> None:
    """--reboot COMMAND reboots the host."""
    marker = 'touch "$HOST_FOLDER/drained" && systemctl reboot'
    assert lab.run("--reboot", marker, "--rings", "1").returncode == 0
    assert (lab.folder / first(1)[0] / "drained").exists()


def test_dry_run(lab: Lab) -> None:
    """A dry run shows the rings and changes nothing."""
    (lab.folder / first(2)[1] / "gone").touch()
    done = lab.run("--dry-run")
    assert done.returncode == 0 and lab.calls() == 0
    one, two = first(2)
    assert f"ring 1: {one} (to do)\nring 2: {two} (does not answer), " in done.stdout
    assert "Nothing was changed." in done.stdout


def test_alerts(lab: Lab) -> None:
    """A trial does not begin if Prometheus cannot be asked for alerts."""
    lab.file.write_text('alerts = ["HighLatency"]\n' + lab.file.read_text())
    done = lab.run()
    assert done.returncode == 2 and "cannot be reached" in done.stderr and lab.calls() == 0


@pytest.mark.parametrize("quiet, step, pinned", [
    (0, "the promotion of ring 1", 0), (1, "ring 2", 1)])
def test_alert_between_rings(lab: Lab, quiet: int, step: str, pinned: int) -> None:
    """An alert that fires keeps the next step from starting; earlier rings keep the kernel."""
    fires = [{"metric": {"alertname": "HighLatency"}, "value": [0, "1"]}]
    with serving(lambda number: (200, answer_of(fires if number > quiet else [], "vector"))) as url:
        lab.file.write_text('alerts = ["HighLatency"]\n' + lab.file.read_text().replace(
            "http://127.0.0.1:9", url))
        done = lab.run("--rings", "1,3,100%")
    assert done.returncode == 2
    assert f"these alerts fire: HighLatency: {step} was not started" in done.stderr
    assert lab.with_kernel("default") == first(pinned) and lab.calls() == 1


def test_blackout_between_rings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that would run into a blackout is not started; earlier rings keep the kernel."""
    now = fleet_lab.START
    begin = datetime.datetime.fromtimestamp(now + 3600, datetime.timezone.utc)
    lab.file.write_text(f'blackout = ["{begin.isoformat()}/2099-01-01T00:00Z"]\n'
                        + lab.file.read_text())

    def sleep(seconds: float) -> None:
        nonlocal now
        now += int(seconds)

    def run(*words: str) -> None:
        command_trial.command_trial(cli.parser().parse_args(
            ["trial", "--every", "0", *words, KERNEL, str(lab.file)]))

    monkeypatch.setenv("FLEET_FOLDER", str(lab.folder))
    monkeypatch.setattr(command_trial, "time", types.SimpleNamespace(time=lambda: now))
    monkeypatch.setattr(trial, "time", types.SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    with pytest.raises(Error, match="ring 1 would run into the blackout from"):
        run("--wait", "61min")
    assert lab.calls() == 0
    with pytest.raises(Error, match="ring 2 would run into the blackout from"):
        run("--rings", "1,100%", "--wait", "20min", "--soak", "41min")
    assert lab.with_kernel("default") == first(1) and lab.calls() == 1


def test_too_many_hosts(lab: Lab) -> None:
    """max_hosts limits a trial, too."""
    lab.file.write_text(f"max_hosts = {HOSTS - 1}\n" + lab.file.read_text())
    done = lab.run()
    assert done.returncode == 2 and lab.calls() == 0
    assert f"has {HOSTS} hosts, and max_hosts is {HOSTS - 1}" in done.stderr


@pytest.mark.parametrize("text, sizes", [("1,5%,25%,100%", [1, 2, 10, 40]), ("3", [3]),
                                         ("1%,1", [1]), ("500", [40]), ("3,5%", [3])])
def test_rings(text: str, sizes: list[int]) -> None:
    """A fleet of 40 hosts is divided into rings."""
    assert trial.rings(text, 40) == sizes


@pytest.mark.parametrize("text", ["", "0", "-1", "101%", "1,,2", "half", "1.5", "\u0663"])
def test_bad_rings(text: str) -> None:
    """A malformed list of rings is refused, and a malformed share."""
    with pytest.raises(Error, match="neither a number of hosts nor a percentage"):
        trial.rings(text, 40)
    with pytest.raises(Error, match="neither a number of hosts nor a percentage"):
        trial.share(text, 40)


@pytest.mark.parametrize("text", ["10%,5%", "3,2", "1,20%,30,10%"])
def test_shrinking_rings(text: str) -> None:
    """A ring that is smaller than the one before it is refused."""
    with pytest.raises(Error, match="smaller than a ring before it"):
        trial.rings(text, 40)


@pytest.mark.parametrize("kernel", ["-x", "a b", "a;reboot", ""])
def test_bad_kernel(lab: Lab, kernel: str) -> None:
    """A malformed kernel release is refused."""
    done = fleet_lab.rollout("trial", "--", kernel, lab.file)
    assert done.returncode == 2 and "is not a kernel release" in done.stderr


def status(running: str, default: str, kernel: str, state: str) -> Answer:
    """An answer of faultline-boot status."""
    return Answer(Host("h", "h", "h", {}), 0, json.dumps({
        "running": running, "default": default, "newest": KERNEL, "boot": "1", "rollbacks": 0,
        "trial": {"kernel": kernel, "state": state, "reason": ""}}), "")


@pytest.mark.parametrize("answer, kind", [
    (status("old", "old", "", "none"), trial.TO_DO),
    (status("old", "old", "other", "failed"), trial.TO_DO),
    (status("old", "old", KERNEL, "requested"), trial.ORDERED),
    (status(KERNEL, "old", KERNEL, "requested"), trial.BUSY),
    (status(KERNEL, "old", KERNEL, "trying"), trial.BUSY),
    (status(KERNEL, "old", KERNEL, "passed"), trial.PASSED),
    (status(KERNEL, KERNEL, KERNEL, "promoted"), trial.DEFAULT),
    (status(KERNEL, KERNEL, "", "none"), trial.DEFAULT),
    (status("old", "old", KERNEL, "rolled-back"), trial.FAILED),
    (status(KERNEL, "old", "", "none"), trial.STRAY),
    (Answer(Host("h", "h", "h", {}), 0, "{}", ""), trial.GONE),
    (Answer(Host("h", "h", "h", {}), 127, "", ""), trial.GONE),
])
def test_states(answer: Answer, kind: str) -> None:
    """Each answer of faultline-boot is one state."""
    assert trial.state_of(KERNEL, answer).kind == kind


def test_playbook(lab: Lab) -> None:
    """Ansible's trial.yml calls it: a dry run, a failure, the rest of the rings, nothing to do."""
    def play(*words: str) -> tuple[int, int, str]:
        done = subprocess.run(
            ["ansible-playbook", ROOT / "rollout/ansible/trial.yml", *words],
            text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "FLEET_FOLDER": str(lab.folder), "LC_ALL": "C.UTF-8",
                 "PATH": f"{fleet_lab.FLEET}:{os.environ['PATH']}"})
        found = re.search(r"changed=(\d+)", done.stdout)
        assert found, done.stdout + done.stderr
        return done.returncode, int(found[1]), done.stdout

    options = ["--rings", "1,3,100%", "--soak", "0", "--every", "0", "--wait", "1s",
               "--max-unavailable", "2"]
    values = json.dumps({"faultline_kernel": KERNEL, "faultline_experiment": str(lab.file),
                         "faultline_options": options})
    status, _, text = play("-e", f"faultline_kernel={KERNEL}")
    assert status == 2 and "faultline_experiment to the path" in text
    status, changed, text = play("-e", values, "--check")
    assert (status, changed) == (0, 1) and f"ring 1: {first(1)[0]} (to do)" in text
    assert not lab.calls()
    bad = first(3)[1]
    (lab.folder / bad / "outcome").write_text("fails")
    status, _, text = play("-e", values)
    assert status == 2 and f"{bad}: a unit has failed" in text and lab.calls() == 3
    # Somebody has repaired it; the host of the first ring does not boot again.
    (lab.folder / bad / "outcome").unlink()
    options.append("--retry-failed")
    values = json.dumps(json.loads(values) | {"faultline_options": options})
    status, changed, _ = play("-e", values)
    assert (status, changed) == (0, 1) and lab.with_kernel("default") == NAMES
    calls = lab.calls()
    for more in ((), ("--check",)):
        assert play("-e", values, *more)[:2] == (0, 0)
    assert lab.calls() == calls
