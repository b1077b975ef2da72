# SPDX-License-Identifier: GPL-2.0-only
"""Failures during an experiment on VMs with the real kernel leave no host switched on."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from demo import rollout as demo
from rollout import fleet_lab, vm_fleet

from faultline.common import ROOT, Paths
from faultline_rollout import design, run

COMMAND = demo.COMMAND
# A transport that is slow, except to the ports of $FAST.
SLOW = ('case " $FAST " in *" $1 "*) ;; *) sleep 20 ;; esac; '
        'exec "$PYTHON" -B "$TRANSPORT" "$1" "$2"')


def soon(what: str, seconds: float, test: Callable[[], bool]) -> float:
    """Wait for a condition; returns how long that took."""
    start = time.monotonic()
    while not test():
        assert time.monotonic() - start < seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(1)
    return time.monotonic() - start


def named(found: vm_fleet.Fleet, name: str, transport: list[str] | None = None) -> pathlib.Path:
    """The demo's plan under another name."""
    values = demo.source(found) | {"name": name}
    if transport:
        values["transport"] = {"command": transport}
    path = found.folder / f"{name}.json"
    design.write(path, demo.plan(found, values).text())
    return path


def switches(found: vm_fleet.Fleet) -> dict[str, str]:
    """The value of the switch on each VM."""
    return {guest.name: guest.switch() for guest in found.guests}


@pytest.fixture(name="found", scope="module")
def fixture_found() -> Iterator[vm_fleet.Fleet]:
    """A fleet for both tests."""
    os.environ["PYTHONPATH"] = ":".join(
        str(ROOT / name) for name in ("tools", "rollout/fleet", "tests"))
    with vm_fleet.fleet(Paths.from_env().build / "fleet", demo.GUESTS) as found:
        yield found
        assert not found.end()


def test_killed_start(found: vm_fleet.Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """stop resets the part of the fleet that a start had reached before SIGKILL."""
    fast = {str(guest.login) for guest in found.guests[:2]}
    monkeypatch.setenv("FAST", " ".join(fast))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("TRANSPORT", str(pathlib.Path(vm_fleet.__file__)))
    path = named(found, "killed", ["sh", "-c", SLOW, "sh", "{address}", "{command}"])

    def started() -> set[str]:
        return {str(guest.login) for guest in found.guests
                if '"killed"' in vm_fleet.reach(guest.login, "faultline-ab status --json")[1]}

    with subprocess.Popen([COMMAND, "start", path, "--lead", "60",
                           "--accept-transport"]) as process:
        soon("two VMs have the plan", 120, lambda: started() == fast)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    # Commands of the killed start may still arrive on the other hosts.
    again = fleet_lab.rollout("start", path, "--accept-transport")
    assert again.returncode == 2 and "already started" in again.stderr, again.stderr
    time.sleep(45)
    assert started() >= fast
    done = fleet_lab.rollout("stop", path, "--accept-transport")
    assert done.returncode == 0, done.stderr
    assert not started() and set(switches(found).values()) == {"0"}


def test_panic_in_arm_b(found: vm_fleet.Fleet) -> None:
    """A host that panics in arm b comes back with stock values; the others are set back within a
    slot of its return."""
    path = named(found, "panic")
    assert fleet_lab.rollout("start", path, "--lead", "15").returncode == 0
    log = found.folder / "watch.log"
    with open(log, "wb") as out, subprocess.Popen(
            [COMMAND, "status", path, "--watch", "--every", "5", "--stop-on-harm"],
            stdout=out, stderr=out) as watch:
        on: list[vm_fleet.Guest] = []

        def some_on() -> bool:
            on[:] = [guest for guest in found.guests if guest.switch() == str(demo.KBYTES)]
            return bool(on)

        soon("the switch is on somewhere", 60 + 3 * demo.SLOT, some_on)
        guest = on[0]
        # Prometheus has to scrape this boot first.
        time.sleep(2 * vm_fleet.SCRAPE)
        vm_fleet.reach(guest.login, "echo c >/proc/sysrq-trigger", limit=5)
        soon("the VM ends", 60, lambda: guest.process.poll() is not None)
        back = found.boot(guest.name, (guest.login, guest.metrics))
        soon("it is back", vm_fleet.BOOT_SECONDS, lambda: back.switch() == "0")
        taken = soon("all VMs are stock", demo.SLOT,
                     lambda: set(switches(found).values()) == {"0"}
                     and watch.poll() is not None)
    said = log.read_text()
    print(f"# stock {taken:.0f} s after the return of {guest.name}")
    assert watch.returncode == 10 and f"{guest.name}: crashed in arm b" in said, said
    text = vm_fleet.reach(back.login, "faultline-ab status --json")[1]
    assert json.loads(text)["experiments"] == []
    assert run.until(path, None) is not None
