# SPDX-License-Identifier: GPL-2.0-only
"""The operator's configuration: how to reach hosts, and the credentials of Prometheus.

Neither is taken from a plan: a plan would be a program, and it is readable by all.
"""
from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import stat
import tomllib
import urllib.parse

from . import Error
from .experiment import Table, command_of

PARALLEL = 32
SYSTEM = pathlib.Path("/etc/faultline/rollout.toml")
# spare() has found that the file is of no use.
_without = False
SERVER_KEYS = ("url", "bearer_token", "bearer_token_file", "username", "password",
               "password_file", "ca_file", "cert_file", "key_file", "headers")


@dataclasses.dataclass(frozen=True)
class Server:
    """The credentials of a Prometheus."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    username: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclasses.dataclass(frozen=True)
class Config:
    """The contents of the file."""

    command: tuple[str, ...] = ()
    parallel: int = PARALLEL
    # Seconds for which ssh keeps a connection; 0: one connection per command.
    persist: int = 0
    servers: tuple[Server, ...] = ()


def path() -> pathlib.Path:
    """The file that is read: the first that exists."""
    if given := os.environ.get("FAULTLINE_ROLLOUT_CONFIG"):
        return pathlib.Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = pathlib.Path(home, "faultline/rollout.toml")
    return own if own.exists() or not SYSTEM.exists() else SYSTEM


def load() -> Config:
    """Read the file; without one, the defaults."""
    return Config() if _without else _load(path())


def spare() -> str:
    """Go on with the defaults if the file is of no use; returns the problem."""
    global _without
    try:
        load()
    except Error as err:
        _without = True
        return str(err)
    return ""


@functools.cache
def _load(place: pathlib.Path) -> Config:
    try:
        with open(place, "rb") as file:
            mode = os.fstat(file.fileno())
            values = tomllib.loads(file.read().decode("utf-8-sig"))
    except FileNotFoundError:
        return Config()
    except OSError as err:
        raise Error(f"cannot read {place}: {err.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as err:
        raise Error(f"{place}: {err}") from None
    if mode.st_uid not in (0, os.getuid()) or mode.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Error(f"{place} can be changed by others, and it names a program to run: "
                    f"run chmod 600 {place}, and own it")
    where = f"{place}: "
    table = Table(values, where, ("transport", "prometheus"))
    transport = Table(values.get("transport", {}), f"{where}transport: ",
                      ("command", "parallel", "persist"))
    parallel = transport.integer("parallel", PARALLEL)
    if not 1 <= parallel <= 1000:
        raise transport.fail("parallel", "must be from 1 to 1000")
    rows = values.get("prometheus", [])
    if not isinstance(rows, list):
        raise table.fail("prometheus", "write [[prometheus]], with two brackets")
    servers = tuple(_server(row, f"{where}prometheus {number}: ", place.parent)
                    for number, row in enumerate(rows, start=1))
    if mode.st_mode & stat.S_IROTH and any(
            isinstance(row, dict) and {"bearer_token", "password", "headers"} & set(row)
            for row in rows):
        raise Error(f"{place} has credentials and is readable by all: run chmod 600 {place}")
    return Config(command_of(transport) if transport.has("command") else (), parallel,
                  transport.seconds("persist") if transport.has("persist") else 0, servers)


def _server(row: object, where: str, folder: pathlib.Path) -> Server:
    table = Table(row, where, SERVER_KEYS)
    headers: dict[str, str] = {}
    given = row.get("headers", {}) if isinstance(row, dict) else {}
    if not isinstance(given, dict) or not all(
            isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9-]+", name)
            and value.isprintable() for name, value in given.items()):
        raise table.fail("headers", 'must be a table such as { X-Scope-OrgID = "team" }')
    headers |= given
    if token := _secret(table, "bearer_token", folder):
        headers["Authorization"] = f"Bearer {token}"
    user, password = table.text("username", ""), _secret(table, "password", folder)
    if bool(user) != bool(password) or user and token:
        raise table.fail("username", "needs a password, and no bearer_token beside it")
    files = [str(folder / table.text(key)) if table.has(key) else ""
             for key in ("ca_file", "cert_file", "key_file")]
    return Server(origin(table.text("url")), tuple(headers.items()), user, password, *files)


def _secret(table: Table, key: str, folder: pathlib.Path) -> str:
    """A secret that is in the file, or in one that key_file names."""
    if not table.has(f"{key}_file"):
        return table.text(key, "")
    place = folder / table.text(f"{key}_file")
    try:
        if place.stat().st_mode & stat.S_IROTH:
            raise table.fail(f"{key}_file", f"{place} is readable by all: run chmod 600 {place}")
        text = place.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise table.fail(f"{key}_file", f"cannot read {place}: "
                         f"{getattr(err, 'strerror', err)}") from None
    if not text.isprintable() or not text:
        raise table.fail(f"{key}_file", f"{place} must have one line")
    return text


def origin(url: str) -> str:
    """Scheme, host and port: credentials go there and nowhere else."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return url
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def server(url: str) -> Server:
    """The credentials for a URL, which a plan may name; none if the operator has listed none."""
    wanted = origin(url)
    return next((found for found in load().servers if found.url == wanted), Server(wanted))
