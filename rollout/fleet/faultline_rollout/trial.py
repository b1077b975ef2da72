# SPDX-License-Identifier: GPL-2.0-only
"""A new kernel on a fleet, ring by ring: each host boots it once, and keeps it if it passes."""
from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import Error
from .hosts import Answer, Host, Transport

RINGS = "1,5%,25%,100%"
REBOOT = "systemctl reboot"
# The connection has to end before the host goes down.
LATER = "systemd-run --quiet --on-active=3s sh -c"
MISSING = 127
UNREACHABLE = 255

# States of a host, as this program sees it.
TO_DO, BUSY, PASSED, DEFAULT, FAILED, GONE = (
    "to do", "on trial", "passed", "default", "failed", "does not answer")


@dataclasses.dataclass(frozen=True)
class State:
    """A host's state in the trial of the kernel."""

    kind: str
    text: str = ""


def rings(text: str, hosts: int) -> list[int]:
    """How many hosts have the kernel after each ring: "1,5%,100%" of 40 hosts is 1, 2, 40."""
    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(%?)", word.strip())
        if not match or not int(match[1]) or match[2] and int(match[1]) > 100:
            raise Error(f"--rings {text}: '{word}' is neither a number of hosts nor a percentage: "
                        f"write for example {RINGS}")
        count = -(-int(match[1]) * hosts // 100) if match[2] else int(match[1])
        count = min(count, hosts)
        if not found or count > found[-1]:
            found.append(count)
    return found


def order(kernel: str, hosts: Sequence[Host]) -> list[Host]:
    """The hosts in the order of their rings: the same for each call, another for each kernel."""
    return sorted(hosts, key=lambda host: hashlib.sha256(
        f"{kernel}/{host.name}".encode()).hexdigest())


def state_of(kernel: str, answer: Answer) -> State:
    """Read the output of `faultline-boot status --json`."""
    if answer.status == UNREACHABLE:
        return State(GONE, answer.reason)
    if answer.status == MISSING:
        return State(GONE, "faultline-boot is not there: install faultline-host")
    if answer.status:
        return State(GONE, answer.reason)
    try:
        body: dict[str, Any] = json.loads(answer.out)
        trial: dict[str, str] = body["trial"]
        running, default = str(body["running"]), str(body["default"])
        state = trial["state"] if trial["kernel"] == kernel else "none"
    except (ValueError, KeyError, TypeError):
        return State(GONE, "its faultline-boot is of another version: update faultline-host")
    if state in ("failed", "rolled-back"):
        return State(FAILED, trial.get("reason") or state)
    if state in ("requested", "trying"):
        return State(BUSY, state)
    if running == kernel and default == kernel:
        return State(DEFAULT)
    if running == kernel and state in ("passed", "promoted"):
        return State(PASSED)
    if running == kernel:
        return State(FAILED, "it runs the kernel without a trial: run: faultline-boot pin "
                             f"{kernel}, or boot another one")
    return State(TO_DO, running)


@dataclasses.dataclass
class Trial:
    """A kernel, the hosts in the order of their rings, and how to reach them."""

    kernel: str
    hosts: list[Host]
    transport: Transport
    reboot: str = REBOOT
    # Seconds until a host that reboots is given up, and between looks.
    wait: float = 1200
    every: float = 10
    say: Callable[[str], None] = print

    def ask(self, hosts: Sequence[Host]) -> dict[str, State]:
        """The states of hosts."""
        return {answer.host.name: state_of(self.kernel, answer) for answer in
                self.transport.everywhere(hosts, lambda host: (
                    "faultline-boot status --json", ""))}

    def begin(self, hosts: Sequence[Host]) -> list[str]:
        """Let hosts boot the kernel on trial; returns the problems."""
        # A reboot ends an experiment, whose verdict would count it as a crash.
        command = ("faultline-ab status --json | grep -q '\"experiments\": *\\[\\]' || "
                   "{ echo 'an experiment runs: stop it first' >&2; exit 1; }; "
                   f"faultline-boot next {shlex.quote(self.kernel)} >/dev/null && "
                   f"{LATER} {shlex.quote(self.reboot)}")
        return sorted(f"{answer.host.name}: {answer.reason}" for answer in
                      self.transport.everywhere(hosts, lambda host: (command, ""))
                      if answer.status)

    def finish(self, hosts: Sequence[Host]) -> list[str]:
        """Wait until all hosts have passed; returns the problems."""
        end = time.monotonic() + self.wait
        waiting = list(hosts)
        while True:
            states = self.ask(waiting)
            failed = [f"{name}: {state.text}" for name, state in sorted(states.items())
                      if state.kind == FAILED]
            waiting = [host for host in waiting if states[host.name].kind in (
                BUSY, GONE, TO_DO)]
            if failed or not waiting:
                return failed
            if time.monotonic() > end:
                return [f"{host.name}: {states[host.name].kind} after {self.wait:.0f} s: "
                        f"{states[host.name].text}" for host in waiting]
            time.sleep(self.every)

    def promote(self, hosts: Sequence[Host]) -> list[str]:
        """Make the kernel the default of hosts; returns the problems."""
        command = f"faultline-boot pin {shlex.quote(self.kernel)}"
        return sorted(f"{answer.host.name}: {answer.reason}" for answer in
                      self.transport.everywhere(hosts, lambda host: (command, ""))
                      if answer.status)

    def ring(self, number: int, hosts: Sequence[Host], promote: bool) -> list[str]:
        """Take the hosts of one ring to the kernel; returns the problems."""
        states = self.ask(hosts)
        failed = [f"{name}: {state.text}" for name, state in sorted(states.items())
                  if state.kind in (FAILED, GONE)]
        if failed:
            return failed
        fresh = [host for host in hosts if states[host.name].kind == TO_DO]
        if fresh:
            self.say(f"ring {number}: {len(fresh)} hosts boot {self.kernel}, once: "
                     + " ".join(host.name for host in fresh))
            # Those that were told to boot are waited for even if others refused.
            refused = self.begin(fresh)
            names = {text.partition(":")[0] for text in refused}
            problems = refused + self.finish([host for host in hosts if host.name not in names])
        else:
            problems = self.finish(hosts)
        if problems:
            return problems
        self.say(f"ring {number}: passed on {len(hosts)} hosts")
        if not promote:
            return []
        return self.promote([host for host in hosts if states[host.name].kind != DEFAULT])
