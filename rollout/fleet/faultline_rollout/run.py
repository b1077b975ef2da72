# SPDX-License-Identifier: GPL-2.0-only
"""The file beside a plan that says when it was started and stopped."""
from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import Error, design
from .design import Plan
from .measured import Data
from .terminal import say_anyway

LOCK_SECONDS = 15
UNFINISHED = ("has not finished: if it does not run any more, use `faultline-rollout stop {}`, "
              "and start it again")


def run_path(plan: pathlib.Path) -> pathlib.Path:
    """The file that says when a plan was started."""
    return plan.with_suffix(".run.json")


def _moment(value: Any) -> float:
    """A time in a file; ValueError if it is not a time."""
    found = float(value)
    datetime.datetime.fromtimestamp(found)
    return found


def started(path: pathlib.Path, plan: Plan) -> float:
    """When slot 0 of a plan began."""
    place = run_path(path)
    try:
        run = json.loads(place.read_text(encoding="utf-8"))
        digest, start = run["plan"], _moment(run["start"])
    except FileNotFoundError:
        raise Error(f"{path} has not been started: there is no {place}") from None
    except (OSError, ValueError, OverflowError, KeyError, TypeError, RecursionError):
        raise Error(f"{place} cannot be read: delete it, and give --start, which "
                    "`faultline-ab status --json` on a host shows") from None
    if digest != plan.digest:
        raise Error(f"{place} belongs to another plan: was {path} made again after the start?")
    return start


def refuse_input(option: str, out: pathlib.Path, *inputs: pathlib.Path) -> None:
    """Refuse to write over a file that is read, and to write over a plan."""
    for path in inputs:
        try:
            same = out.samefile(path)
        except OSError:
            same = out.absolute() == path.absolute()
        if same:
            raise Error(f"{option} {out}: this is the file {path}, which is read: give another "
                        "name")


def until(path: pathlib.Path, at: float | None) -> float | None:
    """The time until which values count: after a stop, hosts do not follow the plan."""
    try:
        ended = _moment(read_run(path)["stopped"])
    except (ValueError, OverflowError, KeyError, TypeError):
        return at
    return ended if at is None else min(at, ended)


@contextlib.contextmanager
def alone(path: pathlib.Path) -> Iterator[None]:
    """Keep other commands from changing what is known of a plan, each for a moment."""
    end = time.monotonic() + LOCK_SECONDS
    with open(path, "rb") as file:
        # A stop goes on even if another command hangs.
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                # The file system has no locks.
                break
        yield


def note_start(path: pathlib.Path, plan: Plan, start: int) -> None:
    """Write what a stop needs, also if the plan is lost, before any host is touched."""
    design.write(run_path(path), json.dumps({
        "plan": plan.digest, "start": start, "name": plan.experiment.name,
        "restart": plan.experiment.restart,
        "hosts": [design.row_of(host) for host in plan.hosts]}) + "\n")


def note_stop(path: pathlib.Path) -> None:
    """Write the time of the first stop of a plan that was started."""
    place = run_path(path)
    try:
        with alone(path):
            run = json.loads(place.read_text(encoding="utf-8"))
            if "stopped" not in run:
                design.write(place, json.dumps({**run, "stopped": int(time.time())}) + "\n")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, Error) as err:
        say_anyway(f"warning: {place} does not say when it was stopped ({err}): give verdict --at")


def note(path: pathlib.Path, **fields: object) -> bool:
    """Write more about a start; False if it was stopped meanwhile."""
    with alone(path):
        run = read_run(path)
        if not run or "stopped" in run:
            return False
        design.write(run_path(path), json.dumps({**run, **fields}) + "\n")
    return True


def absent(path: pathlib.Path) -> frozenset[str]:
    """The hosts that were missing when a plan was started."""
    names = read_run(path).get("absent", [])
    return frozenset(name for name in names if isinstance(name, str)) \
        if isinstance(names, list) else frozenset()


def never_had(path: pathlib.Path) -> frozenset[str]:
    """Missing hosts that certainly did not get the plan."""
    unsure = read_run(path).get("unsure", [])
    return absent(path) - frozenset(unsure if isinstance(unsure, list) else [])


def leave_out(plan: Plan, data: Data, names: frozenset[str]) -> Data:
    """Measurements without those of some hosts, which took part in neither arm."""
    rows = [number for number, host in enumerate(plan.hosts) if host.name in names]
    out = np.isin(np.arange(len(plan.hosts)), rows)

    def masked(value: Any) -> Any:
        if isinstance(value, np.ndarray) and len(value) == len(plan.hosts):
            value = value.copy()
            value[rows] = np.nan
        elif isinstance(value, list) and len(value) == len(plan.hosts) and all(
                isinstance(part, dict) for part in value):
            value = [{} if number in rows else part for number, part in enumerate(value)]
        elif isinstance(value, list):
            value = [masked(part) for part in value]
        return value

    if not rows:
        return data
    return dataclasses.replace(data, **{field.name: masked(getattr(data, field.name))
                                        for field in dataclasses.fields(data)} | {"out": out})


def read_run(path: pathlib.Path) -> dict[str, Any]:
    """The run file of a plan; empty if it cannot be read."""
    try:
        run = json.loads(run_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return run if isinstance(run, dict) else {}


def unfinished(path: pathlib.Path) -> bool:
    """Whether a start has not reached all hosts, and nothing was stopped yet."""
    run = read_run(path)
    return bool(run) and "complete" not in run and "stopped" not in run


def check_not_started(path: pathlib.Path) -> None:
    """A plan runs once; only after an interrupted start and a stop it may start again."""
    place = run_path(path)
    if not place.exists():
        return
    if unfinished(path):
        raise Error(f"{path} was already started, but that start {UNFINISHED.format(path)}")
    run = read_run(path)
    if not run or "complete" in run:
        raise Error(f"{path} was already started: there is {place}; make a new plan for another "
                    "run")
