# SPDX-License-Identifier: GPL-2.0-only
"""The hosts of the inventory, and how to run a command on them."""
from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from . import Error

PARALLEL = 16
LIMIT = 60
MISSING = 127
UNREACHABLE = 255


@dataclasses.dataclass(frozen=True)
class Host:
    """A host of the fleet."""

    name: str
    # Where to connect, and the value of host_label in the metrics.
    address: str
    instance: str
    facts: Mapping[str, str]


def inventory(path: pathlib.Path) -> list[Host]:
    """Read an inventory in the INI format of Ansible: host lines, [groups], [group:vars]."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise Error(f"cannot read the inventory {path}: {getattr(err, 'strerror', err)}") from None
    found: dict[str, dict[str, str]] = {}
    shared: dict[str, dict[str, str]] = {}
    groups: dict[str, set[str]] = {}
    group, is_vars = "", False
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}: "
        try:
            words = shlex.split(line, comments=True)
        except ValueError as err:
            raise Error(f"{where}{err}") from None
        if not words:
            continue
        if words[0].startswith("["):
            match = re.fullmatch(r"\[([A-Za-z0-9_.-]+)(:vars)?\]", line.strip())
            if not match:
                raise Error(f"{where}'{line.strip()}' is not understood: only [GROUP] and "
                            "[GROUP:vars]; list the hosts themselves")
            group, is_vars = match[1], bool(match[2])
            continue
        if is_vars:
            key, equals, value = line.partition("=")
            if not equals:
                raise Error(f"{where}'{line.strip()}' is not KEY=VALUE")
            shared.setdefault(group, {})[key.strip()] = value.strip().strip("'\"")
            continue
        name = words[0]
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise Error(f"{where}'{name}' is not the name of a host (ranges are not supported)")
        facts = found.setdefault(name, {})
        if group:
            facts.setdefault("group", group)
            groups.setdefault(name, set()).add(group)
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals or not value:
                raise Error(f"{where}'{word}' is not KEY=VALUE")
            facts[key] = value
    if not found:
        raise Error(f"the inventory {path} has no hosts")
    hosts = []
    for name, own in found.items():
        facts = dict(shared.get("all", {}))
        # As Ansible does it, the last group in the alphabet wins.
        for group in sorted(groups.get(name, ())):
            facts |= shared.get(group, {})
        facts |= own
        hosts.append(Host(name, facts.get("ansible_host", name),
                          facts.get("instance", name), facts))
    instances = [host.instance for host in hosts]
    for host in hosts:
        if instances.count(host.instance) > 1:
            raise Error(f"the inventory {path} has instance {host.instance} for several hosts")
    return hosts


@dataclasses.dataclass(frozen=True)
class Answer:
    """The exit status and output of a command on a host."""

    host: Host
    status: int
    out: str
    error: str
    # When it was asked and when it had answered, in seconds since 1970.
    asked: float = 0.0
    answered: float = 0.0

    @property
    def reason(self) -> str:
        """The last line of the errors."""
        lines = [line for line in self.error.strip().splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.status}"


def explain(answer: Answer) -> str:
    """An answer that is an error, in words."""
    if answer.status == MISSING:
        return f"{answer.host.name}: faultline-ab is not there: install faultline-host"
    if answer.status == UNREACHABLE:
        return f"{answer.host.name}: cannot be reached: {answer.reason}"
    return f"{answer.host.name}: {answer.reason}"


@dataclasses.dataclass(frozen=True)
class Transport:
    """Runs commands on hosts by a program such as ssh."""

    words: Sequence[str]

    def run(self, host: Host, command: str, stdin: str = "") -> Answer:
        """Run a shell command on a host."""
        words = [word.replace("{address}", host.address).replace("{host}", host.name)
                 .replace("{command}", command).replace("{quoted}", shlex.quote(command))
                 for word in self.words]
        asked = time.time()
        try:
            done = subprocess.run(words, input=stdin, capture_output=True, text=True,
                                  timeout=LIMIT, check=False, errors="replace")
        except subprocess.TimeoutExpired:
            return Answer(host, 255, "", f"no answer within {LIMIT} s")
        except OSError as err:
            raise Error(f"cannot run {words[0]}: {err.strerror}: "
                        "see transport in the experiment file") from None
        return Answer(host, done.returncode, done.stdout, done.stderr, asked, time.time())

    def everywhere(self, hosts: Sequence[Host], command: Callable[[Host], tuple[str, str]],
                   tell: Callable[[int], None] = lambda done: None) -> Iterator[Answer]:
        """Run a command, with standard input, on all hosts, some at a time."""
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            waiting = [pool.submit(self.run, host, *command(host)) for host in hosts]
            try:
                for done, future in enumerate(concurrent.futures.as_completed(waiting), start=1):
                    tell(done)
                    yield future.result()
            finally:
                # After an interruption, hosts that have not been asked yet are not asked.
                pool.shutdown(cancel_futures=True)


def with_file(command: str) -> str:
    """A shell command that puts its standard input into a file, which is $f in command."""
    return f'umask 077 && f=$(mktemp) && cat >"$f" && {command}; s=$?; rm -f "$f"; exit $s'
