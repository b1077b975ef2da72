# SPDX-License-Identifier: GPL-2.0-only
"""The schedule of an experiment, and the plan file that fixes it in advance."""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import Error, experiment
from .estimate import Panel, mean_of_known
from .hosts import ADDRESS, NAME, USER, Host
from .types import Array, Ints

FORMAT = 1
# Half of a stratum is on, and two hosts stay off.
MIN_STRATUM = 4
MIN_PAIRS = 4


def _rank(*words: object) -> bytes:
    """A number drawn from the seed: the same for every version of Python and numpy."""
    return hashlib.sha256("\0".join(map(str, words)).encode()).digest()


def halves(seed: str, draw: int, stratum: str, names: Sequence[str]) -> set[str]:
    """A random half of a stratum; which half of an odd one is larger, is random as well."""
    order = sorted(names, key=lambda name: _rank(seed, draw, stratum, name))
    half = len(order) // 2
    if len(order) % 2:
        half += _rank(seed, draw, stratum)[0] % 2
    return set(order[:half])


def schedule(seed: str, strata: Mapping[str, Sequence[str]], slots: int,
             design: str, unit: str = "host") -> dict[str, str]:
    """The arms of each host, one letter per slot."""
    if unit == "stratum":
        whole = schedule(seed, {"": sorted(strata)}, slots, design)
        return {name: whole[stratum] for stratum, names in strata.items() for name in names}
    arms: dict[str, list[str]] = {name: [] for names in strata.values() for name in names}
    for stratum, names in strata.items():
        if design == "parallel":
            on = halves(seed, 0, stratum, names)
            for name in names:
                arms[name] = ["b" if name in on else "a"] * slots
            continue
        for pair in range(slots // 2):
            second = halves(seed, pair, stratum, names)
            for name in names:
                arms[name] += "ab" if name in second else "ba"
    return {name: "".join(letters) for name, letters in sorted(arms.items())}


def by_stratum(hosts: Sequence[Host], keys: Sequence[str],
               unit: str = "host") -> dict[str, list[str]]:
    """The names of the hosts in each stratum."""
    strata: dict[str, list[str]] = {}
    for host in hosts:
        missing = [key for key in keys if key not in host.facts]
        if missing:
            raise Error(f"strata: the inventory has no {missing[0]} for host {host.name}: add "
                        f"{missing[0]}=... to its line, or take it out of strata")
        stratum = "/".join(host.facts[key] for key in keys) or "all"
        strata.setdefault(stratum, []).append(host.name)
    if unit == "stratum":
        if len(strata) < MIN_STRATUM:
            raise Error(f"unit: there are {len(strata)} of at least {MIN_STRATUM} strata, so that "
                        "half alternate and two stay off: name a key in strata that divides the "
                        "hosts into more")
        return strata
    for stratum, names in strata.items():
        if len(names) < MIN_STRATUM:
            raise Error(f"strata: stratum '{stratum}' has {len(names)} of at least {MIN_STRATUM} "
                        "hosts, so that half alternate and two stay off: add hosts, leave these "
                        f"out ({', '.join(names)}), or take a key out of strata")
    return strata


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule, and everything that the verdict depends on."""

    experiment: experiment.Experiment
    source: Mapping[str, Any]
    seed: str
    hosts: tuple[Host, ...]
    strata: Mapping[str, str]
    arms: Mapping[str, str]
    notes: Mapping[str, Any]

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(next(iter(self.arms.values())))

    @property
    def seconds(self) -> int:
        """The length of the experiment."""
        return self.slots * self.experiment.slot

    @functools.cached_property
    def assigned(self) -> Ints:
        """1 where a host is in arm b: hosts x slots."""
        letters = np.array([list(self.arms[host.name]) for host in self.hosts])
        found: Ints = (letters == "b").astype(np.int64)
        return found

    @functools.cached_property
    def stratum_numbers(self) -> Ints:
        """The number of each host's stratum."""
        numbers = {name: number for number, name in enumerate(sorted(set(self.strata.values())))}
        return np.array([numbers[self.strata[host.name]] for host in self.hosts])

    def together(self, values: Array) -> Array:
        """The means of what alternates together: hosts, or whole strata."""
        if self.experiment.unit == "host":
            return values
        return means_of_strata(values, self.stratum_numbers)

    def panel(self, slots: Array, before: Array | None = None) -> Panel:
        """The panel of complete pairs, from the values of slots."""
        assigned, strata = self.assigned, self.stratum_numbers
        if self.experiment.design == "parallel":
            panel = parallel_panel(slots, before, assigned[:, 0], strata)
        else:
            pairs = slots.shape[1] // 2
            panel = switchback_panel(slots, assigned[:, :2 * pairs], strata)
        if self.experiment.unit == "host":
            return panel
        return dataclasses.replace(
            panel, changes=self.together(panel.changes), signs=self.together(panel.signs),
            strata=np.zeros(len(set(self.strata.values())), dtype=np.int64),
            before=None if before is None else self.together(before[:, None])[:, 0])

    def text(self) -> str:
        """The contents of the plan file."""
        body = {
            "format": FORMAT, "experiment": self.source, "seed": self.seed,
            "hosts": [{**row_of(host), "instance": host.instance,
                       "stratum": self.strata[host.name], "arms": self.arms[host.name]}
                      for host in self.hosts],
            "expected": self.notes,
        }
        return _with_sum(body)

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the plan file."""
        return hashlib.sha256(self.text().encode()).hexdigest()


def row_of(host: Host) -> dict[str, Any]:
    """The row of a host in a file, with which it can be reached again."""
    return {"name": host.name, "address": host.address,
            **({"user": host.user} if host.user else {}),
            **({"port": host.port} if host.port != 22 else {})}


def host_of(row: Mapping[str, Any]) -> Host:
    """A host in a file; ValueError, KeyError or TypeError if it cannot be one."""
    host = Host(row["name"], row["address"], row.get("instance", row["name"]), {},
                row.get("user", ""), row.get("port", 22))
    if not (NAME.fullmatch(host.name) and ADDRESS.fullmatch(host.address)
            and (not host.user or USER.fullmatch(host.user))
            and isinstance(host.instance, str) and type(host.port) is int
            and 0 < host.port < 65536):
        raise ValueError
    return host


def means_of_strata(values: Array, strata: Ints) -> Array:
    """The mean of the hosts of each stratum, of those with a value."""
    return np.stack([mean_of_known(values[strata == number], 0) for number in np.unique(strata)])


def switchback_panel(slots: Array, assigned: Ints, strata: Ints) -> Panel:
    """The panel of a switchback: hosts x pairs."""
    pairs = slots.shape[1] // 2
    return Panel(slots[:, 1:2 * pairs:2] - slots[:, 0:2 * pairs:2],
                 np.where(assigned[:, 1:2 * pairs:2] == 1, 1.0, -1.0), strata)


def parallel_panel(slots: Array, before: Array | None, on: Ints, strata: Ints) -> Panel:
    """The panel of hosts against hosts, with the time before if it is known."""
    return Panel(mean_of_known(slots, 1)[:, None], np.where(on == 1, 1.0, -1.0)[:, None], strata,
                 contrast=1.0, before=before)


def _with_sum(body: Mapping[str, Any]) -> str:
    plain = json.dumps(body, indent=1, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, indent=1, sort_keys=True,
                      ensure_ascii=True) + "\n"


def read(path: pathlib.Path) -> Plan:
    """Read a plan file and check that it is as `plan` wrote it."""
    try:
        text = path.read_text(encoding="utf-8")
        body = json.loads(text)
    except OSError as err:
        raise Error(f"cannot read {path}: {err.strerror}") from None
    except (ValueError, RecursionError):
        raise Error(f"{path} is not a plan: make one with faultline-rollout plan") from None
    if not isinstance(body, dict) or "sha256" not in body:
        raise Error(f"{path} is not a plan: make one with faultline-rollout plan")
    if body.get("format") != FORMAT:
        raise Error(f"{path} has format {body.get('format')}; this program reads format {FORMAT}")
    if _with_sum({key: value for key, value in body.items() if key != "sha256"}) != text:
        raise Error(f"{path} was changed after `plan` wrote it, so it registers nothing: restore "
                    "it, or make a new one with faultline-rollout plan")
    exp = experiment.parse(body.get("experiment", {}), f"{path}: ")
    try:
        rows = body["hosts"]
        hosts = tuple(host_of(row) for row in rows)
        plan = Plan(exp, body["experiment"], body["seed"], hosts,
                    {row["name"]: row["stratum"] for row in rows},
                    {row["name"]: row["arms"] for row in rows}, body["expected"])
        lengths = {len(arms) for arms in plan.arms.values()}
        if not all(re.fullmatch("[ab]+", arms) for arms in plan.arms.values()) \
                or not isinstance(plan.seed, str) or len(plan.arms) != len(hosts):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        lengths = set()
    if len(lengths) != 1 or 0 in lengths:
        raise Error(f"{path} is not a plan: make one with faultline-rollout plan")
    return plan


def write(path: pathlib.Path, text: str) -> None:
    """Write a file in one step."""
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent or ".", prefix=f".{path.name}.",
                                         delete=False, encoding="utf-8") as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as err:
        if temporary:
            pathlib.Path(temporary).unlink(missing_ok=True)
        raise Error(f"cannot write {path}: {err.strerror}") from None


def host_file(plan: Plan, host: Host, start: int) -> str:
    """The file that faultline-ab on a host reads."""
    exp = plan.experiment
    lines = [
        "format=1", f"name={exp.name}", f"switch={exp.switch}", f"a={exp.a}", f"b={exp.b}",
        f"start={start}", f"slot={exp.slot}", f"washout={exp.washout}",
        f"expires={start + exp.expires}", f"plan={plan.digest}", f"host={host.name}",
        f"arms={plan.arms[host.name]}",
    ]
    text = "".join(f"{line}\n" for line in lines)
    return text + f"sum={hashlib.sha256(text.encode('ascii')).hexdigest()}\n"
