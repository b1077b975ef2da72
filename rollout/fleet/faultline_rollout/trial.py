# SPDX-License-Identifier: GPL-2.0-only
"""A new kernel on a fleet, ring by ring: each host boots it once, and keeps it if it passes."""
from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import Error
from .hosts import MISSING, UNREACHABLE, Answer, Host, Transport
from .terminal import say_anyway, undoing

RINGS = "1,5%,25%,100%"
MAX_UNAVAILABLE = "10%"
REBOOT = "systemctl reboot"
# Instead of the name of a kernel.
NEWEST = "newest"
# The connection has to end before the host goes down; the unit has a name, so that it can be
# stopped until then.
UNIT = "faultline-trial-reboot"
LATER = f"systemd-run --quiet --collect --unit={UNIT} --on-active=3s sh -c"

# States of a host, as this program sees it.
TO_DO, ORDERED, BUSY, PASSED, DEFAULT, FAILED, STRAY, GONE = (
    "to do", "ordered", "on trial", "passed", "default", "failed", "without a trial",
    "does not answer")


@dataclasses.dataclass(frozen=True)
class State:
    """A host's state in the trial of the kernel."""

    kind: str
    text: str = ""
    running: str = ""
    # The newest Faultline kernel that is installed.
    newest: str = ""
    # Of the boot, and how often a kernel on trial has failed.
    boot: str = ""
    rollbacks: int = 0


def rings(text: str, hosts: int) -> list[int]:
    """How many hosts have the kernel after each ring: "1,5%,100%" of 40 hosts is 1, 2, 40."""
    found: list[int] = []
    last = {"": 0, "%": 0}
    for word in text.split(","):
        match = re.fullmatch(r"([0-9]+)(%?)", word.strip())
        if not match or not int(match[1]) or match[2] and int(match[1]) > 100:
            raise Error(f"--rings {text}: '{word}' is neither a number of hosts nor a percentage: "
                        f"write for example {RINGS}")
        if int(match[1]) < last[match[2]]:
            raise Error(f"--rings {text}: '{word}' is smaller than a ring before it: each ring "
                        f"includes the ones before, as in {RINGS}")
        last[match[2]] = int(match[1])
        count = -(-int(match[1]) * hosts // 100) if match[2] else int(match[1])
        count = min(count, hosts)
        if not found or count > found[-1]:
            found.append(count)
    return found


def share(text: str, hosts: int) -> float:
    """The part of the hosts that may be down at once: "3" of 40 hosts is 0.075."""
    match = re.fullmatch(r"([0-9]+)(%?)", text)
    if not match or not int(match[1]) or match[2] and int(match[1]) > 100:
        raise Error(f"--max-unavailable {text} is neither a number of hosts nor a percentage: "
                    f"write for example {MAX_UNAVAILABLE}")
    return int(match[1]) / 100 if match[2] else min(1.0, int(match[1]) / hosts)


def order(kernel: str, hosts: Sequence[Host]) -> list[Host]:
    """The hosts in the order of their rings: the same for each call, another for each kernel."""
    return sorted(hosts, key=lambda host: hashlib.sha256(
        f"{kernel}/{host.name}".encode()).hexdigest())


def newest(states: dict[str, State]) -> str:
    """The newest kernel, which all hosts have to have; "" if there is none yet."""
    dead = [f"{name}: {state.text}" for name, state in sorted(states.items()) if state.kind == GONE]
    if dead:
        raise Error("it is not known what these hosts have:\n  " + "\n  ".join(dead))
    found = collections.Counter(state.newest for state in states.values())
    if len(found) > 1:
        lines = (f"{count} hosts have {kernel or 'none'}: " + " ".join(sorted(
            name for name, state in states.items() if state.newest == kernel)[:5])
            for kernel, count in found.most_common())
        raise Error("the newest kernel is not installed on all hosts:\n  " + "\n  ".join(lines)
                    + "\nupgrade the others, or name a kernel")
    kernel, = found
    if not kernel:
        raise Error("no host has a Faultline kernel with a boot entry: install one")
    return kernel


def state_of(kernel: str, answer: Answer) -> State:
    """Read the output of `faultline-boot status --json`."""
    if answer.status == MISSING:
        return State(GONE, "faultline-boot is not there: install faultline-host")
    if answer.status:
        return State(GONE, answer.reason)
    try:
        body: dict[str, Any] = json.loads(answer.out)
        trial: dict[str, str] = body["trial"]
        running, default = str(body["running"]), str(body["default"])
        state = trial["state"] if trial["kernel"] == kernel else "none"
        base = State(TO_DO, running, running, str(body["newest"]), str(body["boot"]),
                     int(body["rollbacks"]))
    except (ValueError, KeyError, TypeError):
        return State(GONE, "its faultline-boot is of another version: update faultline-host")
    if state in ("failed", "rolled-back"):
        return dataclasses.replace(base, kind=FAILED, text=trial.get("reason") or state)
    if state == "requested" and running != kernel:
        return dataclasses.replace(base, kind=ORDERED, text="it has not rebooted")
    if state in ("requested", "trying"):
        return dataclasses.replace(base, kind=BUSY, text=state)
    if running == kernel and default == kernel:
        return dataclasses.replace(base, kind=DEFAULT, text="")
    if running == kernel and state in ("passed", "promoted"):
        return dataclasses.replace(base, kind=PASSED, text="")
    if running == kernel:
        return dataclasses.replace(
            base, kind=STRAY, text="it runs the kernel without a trial: run: faultline-boot pin "
            f"{kernel}, or boot another one")
    return base


@dataclasses.dataclass
class Trial:
    """A kernel, the hosts in the order of their rings, and how to reach them."""

    kernel: str
    hosts: list[Host]
    transport: Transport
    reboot: str = REBOOT
    # Seconds until a host that reboots is given up, between looks, and until a ring is trusted.
    wait: float = 1200
    every: float = 10
    soak: float = 0
    # The part of all hosts, and of each stratum, that is down at once; but one host may be.
    unavailable: float = 1.0
    stratum: Callable[[Host], str] = lambda host: ""
    retry: bool = False
    say: Callable[[str], None] = print
    # Raises an error if the rollout has to wait: a step, and whether hosts reboot in it.
    hold: Callable[[str, bool], None] = lambda step, reboots: None
    # The first look at each host that had passed.
    trusted: dict[str, State] = dataclasses.field(default_factory=dict)

    def ask(self, hosts: Sequence[Host]) -> dict[str, State]:
        """The states of hosts."""
        return {answer.host.name: state_of(self.kernel, answer) for answer in
                self.transport.everywhere(hosts, lambda host: (
                    "faultline-boot status --json", ""))}

    def _run(self, hosts: Iterable[Host], command: str) -> list[Answer]:
        """The answers of hosts on which a command failed."""
        return sorted((answer for answer in
                       self.transport.everywhere(list(hosts), lambda host: (command, ""))
                       if answer.status), key=lambda answer: answer.host.name)

    def _undo(self, hosts: Iterable[Host]) -> list[Answer]:
        """Withdraw the order to boot the kernel; returns the answers where that failed."""
        ours = f'"trial": {{"kernel": "{self.kernel}", "state": "requested"'
        return self._run(hosts, (
            f"systemctl stop {UNIT}.timer {UNIT}.service 2>/dev/null; "
            f"faultline-boot status --json | grep -qF {shlex.quote(ours)} || exit 0; "
            "faultline-boot back --next >/dev/null"))

    def undo(self, hosts: Iterable[Host]) -> list[str]:
        """The same; returns the hosts that may still have it."""
        return [f"{answer.host.name}: {answer.reason}: it may still boot {self.kernel} once: run "
                "there: faultline-boot back --next" for answer in self._undo(hosts)]

    def begin(self, hosts: Sequence[Host]) -> tuple[list[Host], list[str]]:
        """Let hosts boot the kernel on trial; returns those that may do so, and the problems."""
        # A reboot ends an experiment, whose verdict would count it as a crash, and a hold.
        command = ("s=$(faultline-ab status --json) || exit; "
                   "case $s in *'\"name\":'*) echo 'an experiment or another program changes "
                   "switches: wait for it, or run: faultline-ab stop --all' >&2; exit 1 ;; esac; "
                   f"faultline-boot next {shlex.quote(self.kernel)} >/dev/null || exit; "
                   f"{LATER} {shlex.quote(self.reboot)} || "
                   "{ faultline-boot back --next >/dev/null; exit 1; }")
        failed = self._run(hosts, command)
        # The connection broke, before or after the order: a host that can be reached is told to
        # stay, another one is waited for.
        unknown = {answer.host.name for answer in self._undo(
            answer.host for answer in failed if answer.status == UNREACHABLE or answer.status < 0)}
        refused = {answer.host.name: answer.reason for answer in failed
                   if answer.host.name not in unknown}
        return ([host for host in hosts if host.name not in refused],
                [f"{name}: {reason}" for name, reason in refused.items()])

    def _take(self, waiting: list[Host], flight: Sequence[Host]) -> list[Host]:
        """Remove the hosts from WAITING that may go down beside those in FLIGHT."""
        def free(hosts: int, down: int) -> int:
            return max(1, int(self.unavailable * hosts + 1e-9)) - down

        total = collections.Counter(map(self.stratum, self.hosts))
        down = collections.Counter(map(self.stratum, flight))
        left = free(len(self.hosts), len(flight))
        taken: list[Host] = []
        for host in waiting:
            stratum = self.stratum(host)
            if left > len(taken) and free(total[stratum], down[stratum]) > 0:
                taken.append(host)
                down[stratum] += 1
        names = {host.name for host in taken}
        waiting[:] = [host for host in waiting if host.name not in names]
        return taken

    def boot(self, number: int, hosts: Sequence[Host]) -> list[str]:
        """Let the hosts of a ring boot the kernel, and wait for them; returns the problems."""
        states = self.ask(hosts)
        kinds = {GONE, STRAY} | (set() if self.retry else {FAILED})
        problems = [f"{name}: {state.text}" for name, state in sorted(states.items())
                    if state.kind in kinds]
        if problems:
            return problems
        waiting = [host for host in hosts if states[host.name].kind in (TO_DO, FAILED)]
        # Of a call before this one that was killed.
        flight = [host for host in hosts if states[host.name].kind in (ORDERED, BUSY)]
        end = {host.name: time.monotonic() + self.wait for host in flight}
        try:
            while flight or waiting and not problems:
                if waiting and not problems and (fresh := self._take(waiting, flight)):
                    try:
                        self.hold(f"ring {number}", True)
                    except Error as err:
                        if not flight:
                            raise
                        problems.append(str(err))
                        continue
                    self.say(f"ring {number}: {len(fresh)} hosts boot {self.kernel}, once: "
                             + " ".join(host.name for host in fresh))
                    # Undone if this is interrupted.
                    flight += fresh
                    begun, refused = self.begin(fresh)
                    problems += refused
                    gone = {host.name for host in fresh} - {host.name for host in begun}
                    flight = [host for host in flight if host.name not in gone]
                    end |= {host.name: time.monotonic() + self.wait for host in begun}
                flight = self._look(flight, end, problems)
                if flight:
                    time.sleep(self.every)
        except BaseException:
            self._withdraw(flight)
            raise
        return problems

    def _look(self, flight: Sequence[Host], end: dict[str, float],
              problems: list[str]) -> list[Host]:
        """Ask the hosts that were told to boot the kernel; returns those to wait for."""
        late, left = [], []
        states = self.ask(flight)
        for host in flight:
            name, state = host.name, states[host.name]
            if state.kind in (PASSED, DEFAULT):
                continue
            if state.kind in (FAILED, STRAY):
                problems.append(f"{name}: {state.text}")
            elif time.monotonic() <= end[name]:
                left.append(host)
            else:
                problems.append(f"{name}: {state.kind} after {self.wait:.0f} s: {state.text}")
                late += [host] if state.kind in (ORDERED, GONE) else []
        problems += self.undo(late)
        return left

    def _withdraw(self, flight: Sequence[Host]) -> None:
        """Withdraw the orders that hosts have not followed, after an interruption."""
        if not flight:
            return
        calm = dataclasses.replace(self, transport=dataclasses.replace(
            self.transport, interruptible=False))
        with undoing():
            say_anyway(f"interrupted: the order to boot {self.kernel} is withdrawn on "
                       + " ".join(host.name for host in flight), self.say)
            states = calm.ask(flight)
            for text in calm.undo(host for host in flight
                                  if states[host.name].kind in (TO_DO, ORDERED, GONE)):
                say_anyway(f"  {text}", self.say)

    def check(self, hosts: Sequence[Host]) -> list[str]:
        """Whether hosts that have the kernel still do well; returns the problems."""
        problems = []
        for name, state in sorted(self.ask(hosts).items()):
            before = self.trusted.setdefault(name, state)
            if state.kind == GONE:
                problems.append(f"{name}: {state.kind}: {state.text}")
            elif state.kind not in (PASSED, DEFAULT):
                problems.append(f"{name}: it had passed, and is {state.kind} now: "
                                f"{state.text or state.running}")
            elif state.rollbacks > before.rollbacks:
                problems.append(f"{name}: a kernel was rolled back since it had passed")
            elif state.boot != before.boot:
                problems.append(f"{name}: it was rebooted since it had passed")
        return problems

    def ring(self, number: int, begun: int, size: int, promote: bool) -> list[str]:
        """Take hosts BEGUN to SIZE to the kernel, after another look at those before them."""
        hosts, earlier = self.hosts[begun:size], self.hosts[:begun]
        problems = self.check(earlier) or self.boot(number, hosts)
        if problems:
            return problems
        self.say(f"ring {number}: passed on {len(hosts)} hosts")
        if problems := self.check(self.hosts[:size]):
            return problems
        if all(self.trusted[host.name].kind == DEFAULT for host in hosts):
            return []
        time.sleep(self.soak)
        if problems := self.check(self.hosts[:size]):
            return problems
        if not promote:
            return []
        self.hold(f"the promotion of ring {number}", False)
        return [f"{answer.host.name}: {answer.reason}" for answer in self._run(
            (host for host in hosts if self.trusted[host.name].kind != DEFAULT),
            f"faultline-boot pin {shlex.quote(self.kernel)}")]
