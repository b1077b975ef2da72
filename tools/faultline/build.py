# SPDX-License-Identifier: GPL-2.0-only
"""Configure and compile a flavour of the kernel.

Without TARGET it builds the bootable image.  If source tree, fragments and
compiler are the same as in the last build, it does not run make.  The output
of make goes to build/log/FLAVOUR.log, wall and CPU time to
build/log/times.json.
"""
from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import time

from .common import Fail, LOG_SECONDS, lock, say, shown, write_atomic
from .flavour import (FLAVOURS, LOGS, PATHS, Flavour, State, cc, compiler, configure, debug_flags,
                      digest, environment, find, read_config, source_date_epoch, tree_state)
from .tree import make_peer, make_stock, make_tree

# The line that make prints for each build step: "  CC      mm/mmap.o".
STEP = re.compile(rb"^  [A-Z][A-Z0-9_\[\]]* +\S", re.M)
FAILED = re.compile(r"\berror:|\*\*\* |undefined reference|multiple definition|No rule to make")
# Build steps per enabled option: a first guess, until a full build of the
# flavour has been counted.
STEPS_PER_OPTION = 2.2
KEPT_TIMES = 20
TIMES = LOGS / "times.json"


def read_times() -> dict[str, list[dict[str, object]]]:
    """Past builds, by flavour."""
    try:
        times: dict[str, list[dict[str, object]]] = json.loads(TIMES.read_text())
        return times
    except (FileNotFoundError, ValueError):
        return {}


def expected_steps(flavour: Flavour) -> int:
    """The approximate number of steps in a full build."""
    for entry in reversed(read_times().get(flavour.name, [])):
        if entry["whole"]:
            return int(str(entry["steps"]))
    return int(STEPS_PER_OPTION * len(read_config(flavour.config)))


def record(flavour: Flavour, entry: dict[str, object]) -> None:
    """Record the times of a build.  Two flavours may finish at the same moment."""
    with lock(LOGS / ".times.lock"):
        times = read_times()
        times.setdefault(flavour.name, []).append(entry)
        del times[flavour.name][:-KEPT_TIMES]
        write_atomic(TIMES, json.dumps(times, indent=1).encode() + b"\n")


def spent(seconds: float) -> str:
    """A human-readable duration."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def build_date() -> str:
    """The date in the kernel's banner: the same for all builds of a release."""
    date = datetime.datetime.fromtimestamp(source_date_epoch(), datetime.timezone.utc)
    return f"{date:%a %b %d %H:%M:%S UTC %Y}"


def make_command(flavour: Flavour) -> list[str]:
    """The make command, with everything a reproducible image needs."""
    return [
        "make", "-C", str(flavour.tree), f"O={flavour.out}", f"-j{(os.cpu_count() or 1) + 1}",
        # Keep the errors of a failing compiler together, next to their step.
        "--output-sync=target", "--no-print-directory",
        f"CC={cc(flavour)}",
        *(f"{name}={value}" for name, value in flavour.arch.variables.items()),
        # Set, even if empty: else the kernel appends a '+' for being past a tag.
        f"LOCALVERSION={flavour.localversion}",
        *debug_flags(flavour),
        f"KBUILD_BUILD_TIMESTAMP={build_date()}",
        "KBUILD_BUILD_USER=faultline", "KBUILD_BUILD_HOST=build", "KBUILD_BUILD_VERSION=1"]


class Progress:
    """Counts the steps in make's log as it grows, and reports progress."""

    def __init__(self, flavour: Flavour, log: str, whole: bool) -> None:
        self._name = flavour.name
        self._of = f" of about {expected_steps(flavour)}" if whole else ""
        self._log = open(log, "rb")  # pylint: disable=consider-using-with
        self._rest = b""
        self._terminal = sys.stdout.isatty()
        self._begun = self._told = time.monotonic()
        self.steps = 0

    def look(self) -> None:
        """Read new output and report now and then."""
        text = self._rest + self._log.read()
        whole, newline, self._rest = text.rpartition(b"\n")
        self.steps += len(STEP.findall(whole + newline))
        now = time.monotonic()
        if now - self._told < (0.5 if self._terminal else LOG_SECONDS):
            return
        self._told = now
        line = f"{self._name}: {self.steps}{self._of} steps, {spent(now - self._begun)}"
        if self._terminal:
            print(f"\r{line}\033[K", end="", flush=True)
        else:
            say(line)

    def end(self) -> None:
        """Count the remaining steps and clear the line."""
        self.look()
        self._log.close()
        if self._terminal:
            print("\r\033[K", end="", flush=True)


def explain(log: str) -> None:
    """Print the first error in a log with some context."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    first = next((index for index, line in enumerate(lines) if FAILED.search(line)),
                 max(len(lines) - 12, 0))
    for line in lines[max(first - 4, 0):first + 12]:
        print(f"  {line}", file=sys.stderr)


def run_make(flavour: Flavour, make: list[str], targets: list[str]) -> None:
    """Compile; print and record how long it took."""
    log = str(LOGS / f"{flavour.out_name}.log")
    command = [*make, *(targets or [flavour.arch.target])]
    whole = not targets and not (flavour.out / "vmlinux").exists()
    began = time.monotonic()
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(log, "wb") as sink:
        sink.write((shlex.join(command) + "\n").encode())
        sink.flush()
        progress = Progress(flavour, log, whole)
        with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL,
                              stdout=sink, stderr=subprocess.STDOUT) as process:
            try:
                while process.poll() is None:
                    try:
                        process.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        progress.look()
            except BaseException:
                # A ^C from the terminal reaches make by itself; killing us does not.
                process.terminate()
                raise
    progress.end()
    wall = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
    if process.returncode != 0:
        explain(log)
        raise Fail(f"{flavour.name} did not compile: fix the errors above; "
                   f"the full log is {shown(pathlib.Path(log))}")
    what = " ".join(targets) if targets else shown(flavour.image)
    if len(targets) > 3:
        what = f"{len(targets)} targets"
    say(f"{flavour.name}: {what}: {progress.steps} steps in {spent(wall)}, {busy:.0f} CPU-s")
    record(flavour, {
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "targets": targets or [flavour.arch.target], "whole": whole, "steps": progress.steps,
        "wall_s": round(wall, 1), "cpu_s": round(busy, 1)})


def build(flavour: Flavour, targets: list[str]) -> None:
    """Configure and compile whatever is out of date."""
    if flavour.peer:
        make_peer(PATHS)
    elif flavour.stock:
        # Nothing else needs upstream's tree.
        make_stock(PATHS, make_tree(PATHS))
    tree = tree_state(flavour)
    LOGS.mkdir(parents=True, exist_ok=True)
    with lock(flavour.lock):
        configure(flavour, tree)
        state = State(flavour)
        make = make_command(flavour)
        now = digest(tree.head, flavour.config.read_bytes(), compiler(flavour), *make)
        goal = " ".join(targets) or flavour.arch.target
        # The targets built from exactly this state.  Those of other states are
        # not remembered, because make overwrites their output.
        built = state.data.get("built", {})
        done = built.get("goals", []) if built.get("of") == now else []
        if not tree.dirty and goal in done and (targets or flavour.image.exists()):
            say(f"{flavour.name}: {goal} is up to date")
            return
        # Until make succeeds, the state of the folder is unknown.
        state.data["built"] = {}
        state.save()
        run_make(flavour, make, targets)
        # Someone may have edited the tree in the meantime.
        if tree_state(flavour) == tree and not tree.dirty:
            state.data["built"] = {"of": now, "goals": sorted({*done, goal})}
            state.save()


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flavour", help=", ".join(FLAVOURS))
    parser.add_argument("target", nargs="*", help="target of the kernel's Makefile")
    args = parser.parse_args()
    build(find(args.flavour), args.target)
