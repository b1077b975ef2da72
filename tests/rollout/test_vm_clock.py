# SPDX-License-Identifier: GPL-2.0-only
"""The fleet of VMs and the demo on a machine that is busy, without VMs."""
from __future__ import annotations

import base64
import dataclasses
import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from socketserver import StreamRequestHandler, TCPServer

import pytest

from demo import rollout as demo
from rollout import vm_fleet


@dataclasses.dataclass
class Late:
    """The login of a VM that is late, and may take its time to set its clock."""

    guest: vm_fleet.Guest
    behind: float = 4
    # The part of the way that its clock is late again once it has been set.
    lag: float = 0.5
    commands: list[str] = dataclasses.field(default_factory=list)

    def answer(self, command: str) -> str:
        """Run a command."""
        self.commands.append(command)
        if shift := re.fullmatch(r"date -s @\$\(\(\$\(date \+%s\) \+ (-?\d+)\)\)", command):
            self.behind -= (1 - self.lag) * float(shift[1])
            return ""
        assert command == "date +%s"
        return f"{int(time.time() - self.behind)}\n"


@pytest.fixture(name="late")
def fixture_late(tmp_path: pathlib.Path) -> Iterator[Late]:
    """A VM that is late."""
    class Handler(StreamRequestHandler):
        """The login of fleet-guest.sh."""

        def handle(self) -> None:
            text = found.answer(base64.b64decode(self.rfile.readline()).decode())
            self.rfile.readline()
            self.wfile.write(f"0 {len(text)}\n{text}".encode())

    (tmp_path / "runner.log").write_text("no power")
    with subprocess.Popen(["sleep", "600"]) as process, \
            TCPServer(("127.0.0.1", 0), Handler) as login:
        found = Late(vm_fleet.Guest("vm1", login.server_address[1], 0, tmp_path, process))
        thread = threading.Thread(target=login.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield found
        finally:
            login.shutdown()
            thread.join()
            process.kill()


@pytest.mark.parametrize("behind", [4, -9, 7200])
def test_clock(late: Late, behind: float) -> None:
    """A clock is set again until it is right."""
    late.behind, late.lag = behind, 0.02
    vm_fleet.Fleet(late.guest.folder, guests=[late.guest]).set_clocks()
    assert abs(late.behind) <= vm_fleet.CLOCK_OFF + 1
    assert len(late.commands) >= 3 and late.commands[-1] == "date +%s"


def test_clock_stays_late(late: Late, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that does not get right ends the demo, with the VM and the time."""
    # So late that the seconds which an answer may take on a busy machine are few of it.
    late.behind, late.lag = 400, 1
    monkeypatch.setattr(vm_fleet, "CLOCK_SECONDS", 0)
    with pytest.raises(vm_fleet.Problem, match="the clock of vm1 is (3[5-9][0-9]|400) s off"):
        vm_fleet.Fleet(late.guest.folder, guests=[late.guest]).set_clocks()
    late.guest.process.kill()
    late.guest.process.wait()
    monkeypatch.setattr(vm_fleet, "CLOCK_SECONDS", 60)
    with pytest.raises(vm_fleet.Problem, match="vm1 ended: no power"):
        vm_fleet.Fleet(late.guest.folder, guests=[late.guest]).set_clocks()


@pytest.mark.parametrize("refusals, leads", [(0, [15]), (2, [15, 30, 60])])
def test_start(late: Late, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
               refusals: int, leads: list[int]) -> None:
    """The demo starts an experiment again, with right clocks and more time."""
    monkeypatch.setattr(demo, "COMMAND", tmp_path / "command")
    demo.COMMAND.write_text(
        f'#!/bin/sh\necho "$4" >>{tmp_path}/leads\n'
        f'[ $(wc -l <{tmp_path}/leads) -gt {refusals} ] || exit 2\n')
    demo.COMMAND.chmod(0o755)
    found = vm_fleet.Fleet(late.guest.folder, guests=[late.guest])
    assert demo.start(found, tmp_path / "demo.json") == leads[-1]
    assert (tmp_path / "leads").read_text().split() == [str(lead) for lead in leads]
    assert late.behind <= vm_fleet.CLOCK_OFF + 1


def test_start_gives_up(late: Late, monkeypatch: pytest.MonkeyPatch,
                        tmp_path: pathlib.Path) -> None:
    """The demo ends when an experiment does not start in any attempt."""
    monkeypatch.setattr(demo, "COMMAND", tmp_path / "command")
    demo.COMMAND.write_text("#!/bin/sh\nexit 2\n")
    demo.COMMAND.chmod(0o755)
    with pytest.raises(vm_fleet.Problem, match="start failed with exit status 2"):
        demo.start(vm_fleet.Fleet(late.guest.folder, guests=[late.guest]), tmp_path / "demo.json")
