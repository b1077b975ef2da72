# SPDX-License-Identifier: GPL-2.0-only
"""The hosts of the inventory, and how to run a command on them."""
from __future__ import annotations

import ast
import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from . import Error, config, experiment
from .terminal import say_aside

LIMIT = 60
MISSING = 127
UNREACHABLE = 255
# Files that are open while a program is started, and those of this program itself.
FILES, OWN_FILES = 8, 64


@dataclasses.dataclass(frozen=True)
class Host:
    """A host of the fleet."""

    name: str
    # Where to connect, and the value of host_label in the metrics.
    address: str
    instance: str
    facts: Mapping[str, str]
    user: str = ""
    port: int = 22

    @property
    def login(self) -> str:
        """Where ssh logs in."""
        return self.address if self.port == 22 else f"{self.address} port {self.port}"

    @property
    def options(self) -> list[str]:
        """The options of ssh for this host."""
        return (["-l", self.user] if self.user else []) + \
            (["-p", str(self.port)] if self.port != 22 else [])


ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]*")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]*\$?")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Lines that mean the same to Ansible and to _plain(): others are left to ansible-inventory.
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:[ \t]+[a-z_]+=[A-Za-z0-9._:/@-]+)*")
GROUP = re.compile(r"\[([A-Za-z0-9_]+)\]")
INVENTORY_LIMIT = 300


def inventory(path: pathlib.Path) -> list[Host]:
    """Read an inventory of Ansible: a file, a folder or a program.

    A plain list of hosts needs no Ansible.
    """
    if not path.exists():
        raise Error(f"cannot read the inventory {path}: there is no such file")
    found = _plain(path)
    if found is None:
        found = _ansible(path)
    if not found:
        raise Error(f"the inventory {path} has no hosts")
    hosts = [_host(name, facts, f"the inventory {path}: {name}: ")
             for name, facts in found.items()]
    for key, word in (("instance", "instance"), ("login", "address")):
        count = collections.Counter(getattr(host, key) for host in hosts)
        for host in hosts:
            if count[getattr(host, key)] > 1:
                raise Error(f"the inventory {path} has {word} {getattr(host, key)} for several "
                            "hosts: each host is listed once")
    return hosts


def _plain(path: pathlib.Path) -> dict[str, dict[str, str]] | None:
    """The hosts of a plain list: names with KEY=VALUE, below [GROUP]; None for anything else."""
    if path.is_dir() or os.access(path, os.X_OK) or path.suffix in (".yml", ".yaml", ".json") \
            or any((path.parent / name).exists() for name in ("group_vars", "host_vars")):
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise Error(f"cannot read the inventory {path}: {getattr(err, 'strerror', err)}") from None
    found: dict[str, dict[str, str]] = {}
    own: dict[str, set[str]] = {}
    group = ""
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := GROUP.fullmatch(line):
            group = match[1]
            continue
        if not PLAIN.fullmatch(line):
            return None
        name, *words = line.split()
        facts = found.setdefault(name, {})
        if group and "group" not in own.setdefault(name, set()):
            facts["group"] = min(group, facts.get("group", group))
        own.setdefault(name, set()).update(word.partition("=")[0] for word in words)
        facts |= {key: _value(value) for key, _, value in
                  (word.partition("=") for word in words)}
    return found


def _value(text: str) -> str:
    """A value as Ansible reads it from a file: 0x10 is 16."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _ansible(path: pathlib.Path) -> dict[str, dict[str, str]]:
    """The hosts and variables that ansible-inventory finds."""
    try:
        done = subprocess.run(["ansible-inventory", "-i", path, "--list"], capture_output=True,
                              text=True, check=False, timeout=INVENTORY_LIMIT, errors="replace",
                              env=os.environ | {"ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
                                                "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
                                                "ANSIBLE_NOCOLOR": "1"})
        body = json.loads(done.stdout) if done.returncode == 0 else {}
    except FileNotFoundError:
        raise Error(f"the inventory {path} is more than a plain list of hosts: install "
                    "ansible-core, which reads it, or list NAME KEY=VALUE ...") from None
    except subprocess.TimeoutExpired:
        raise Error(f"ansible-inventory -i {path} --list did not end within "
                    f"{INVENTORY_LIMIT} s") from None
    except (ValueError, RecursionError):
        raise Error(f"ansible-inventory -i {path} --list does not print JSON: try it") from None
    except OSError as err:
        raise Error(f"cannot run ansible-inventory: {err.strerror}") from None
    if done.returncode:
        words = " ".join(done.stderr.split())
        raise Error(f"ansible-inventory cannot read {path}: {words[-300:]}")
    try:
        variables = body["_meta"]["hostvars"]
        groups = {name: group["hosts"] for name, group in body.items()
                  if name != "_meta" and "hosts" in group}
        found: dict[str, dict[str, str]] = {}
        # A host of several groups has the first in the alphabet as group.
        for group, names in sorted(groups.items()):
            for name in names:
                facts = found.setdefault(name, {} if group == "ungrouped" else {"group": group})
                facts |= {key: str(value) for key, value in variables.get(name, {}).items()
                          if isinstance(value, str | int | float)}
    except (KeyError, TypeError, AttributeError):
        raise Error(f"ansible-inventory -i {path} --list does not print an inventory") from None
    return found


def _host(name: str, facts: dict[str, str], where: str) -> Host:
    """Check the name, and the variables that say how to log in."""
    if not NAME.fullmatch(name):
        raise Error(f"{where}this is not the name of a host")
    address, user = facts.get("ansible_host", name), facts.get("ansible_user", "")
    port = facts.get("ansible_port", "22")
    for key in ("ansible_host", "ansible_user", "ansible_port", "instance"):
        if "{{" in facts.get(key, ""):
            raise Error(f"{where}{key} is a template, which only Ansible resolves: write its value")
    if not ADDRESS.fullmatch(address):
        raise Error(f"{where}ansible_host '{address}' is not an address")
    if user and not USER.fullmatch(user):
        raise Error(f"{where}ansible_user '{user}' is not the name of a user")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise Error(f"{where}ansible_port '{port}' is not a port")
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args",
                "ansible_ssh_private_key_file"):
        if facts.get(key) and not config.load().command:
            raise Error(f"{where}{key} is not used, as a plan would carry it: put it into "
                        f"~/.ssh/config for this host, or set transport in {config.path()}")
    return Host(name, address, facts.get("instance", name), facts, user, int(port))


def names_of(hosts: Sequence[Host]) -> str:
    """The names of hosts; of many, the first ones."""
    names = [host.name for host in hosts]
    return " ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


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
    # Commands at a time; 0: as many as the configuration says.
    parallel: int = 0
    # Whether ^C in the terminal also ends the commands.
    interruptible: bool = True
    # Whether ssh may use the agent of this session, and connections that are there.
    session: bool = True

    @classmethod
    def trusted(cls, words: Sequence[str], path: pathlib.Path, accept: bool,
                parallel: int = 0) -> Transport:
        """The transport that a plan names, if the operator has approved of its command."""
        if tuple(words) not in (experiment.SSH, config.load().command):
            command = shlex.join(words)
            if not accept:
                raise Error(f"{path} wants this machine to run: {command}: write it into "
                            f"{config.path()} as command of [transport], or give "
                            "--accept-transport")
            say_aside(f"transport of {path}: {command}")
        return cls(words, parallel)

    def _command(self, host: Host, command: str) -> list[str]:
        """The words of the program, for a command on a host."""
        words: Sequence[str] = self.words
        if tuple(words) == experiment.SSH and config.load().command:
            words = config.load().command
        found: list[str] = []
        for word in words:
            if word == "{options}":
                found += host.options + (_shared(config.load().persist) if self.session else
                                         ["-o", "ControlPath=none"])
                continue
            # In one pass: a command may contain {host}.
            found.append(re.sub(r"\{(address|host|command|quoted)\}", lambda match: {
                "address": host.address, "host": host.name, "command": command,
                "quoted": shlex.quote(command)}[match[1]], word))
        return found

    def run(self, host: Host, command: str, stdin: str = "") -> Answer:
        """Run a shell command on a host."""
        words = self._command(host, command)
        asked = time.time()
        try:
            done = subprocess.run(words, input=stdin, capture_output=True, text=True,
                                  timeout=LIMIT, check=False, errors="replace",
                                  env=None if self.session else {
                                      key: value for key, value in os.environ.items()
                                      if key != "SSH_AUTH_SOCK"},
                                  process_group=None if self.interruptible else 0)
        except subprocess.TimeoutExpired:
            return Answer(host, 255, "", f"no answer within {LIMIT} s")
        except OSError as err:
            if err.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                raise Error(f"cannot run {words[0]}: {err.strerror}: "
                            "see transport in faultline-experiment(5)") from None
            # Too many processes or files: the other hosts are still asked.
            return Answer(host, UNREACHABLE, "", f"cannot run {words[0]}: {err.strerror}")
        return Answer(host, done.returncode, done.stdout, done.stderr, asked, time.time())

    def everywhere(self, hosts: Sequence[Host], command: Callable[[Host], tuple[str, str]],
                   tell: Callable[[int], None] = lambda done: None) -> Iterator[Answer]:
        """Run a command, with standard input, on all hosts, some at a time."""
        with concurrent.futures.ThreadPoolExecutor(
                at_a_time(self.parallel or config.load().parallel)) as pool:
            waiting = [pool.submit(self.run, host, *command(host)) for host in hosts]
            try:
                for done, future in enumerate(concurrent.futures.as_completed(waiting), start=1):
                    tell(done)
                    yield future.result()
            finally:
                # After an interruption, hosts that have not been asked yet are not asked.
                pool.shutdown(cancel_futures=True)


@functools.cache
def at_a_time(wanted: int) -> int:
    """How many programs can run at a time, with as many open files as this session may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted * FILES + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    with contextlib.suppress(OSError, ValueError):
        more = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = more
    found = min(wanted, max(1, (soft - OWN_FILES) // FILES))
    if found < wanted:
        say_aside(f"warning: {found} hosts are asked at a time, not {wanted}: this session may "
                  f"have {soft} open files; ulimit -Hn {files} would allow it")
    return found


def _shared(persist: int) -> list[str]:
    """The options by which ssh keeps a connection for the next command."""
    if not persist:
        return []
    folder = os.environ.get("XDG_RUNTIME_DIR") or os.path.expanduser("~/.ssh")
    return ["-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/faultline-%C",
            "-o", f"ControlPersist={persist}"]


def with_file(command: str) -> str:
    """A shell command that puts its standard input into a file, which is $f in command."""
    return f'umask 077 && f=$(mktemp) && cat >"$f" && {command}; s=$?; rm -f "$f"; exit $s'
