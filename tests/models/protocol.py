#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0-only
"""The protocols of speculative page faults and of section-wise munmap, explored by spin.

Each *.pml is explored as it is: no assertion fails, no process blocks forever,
and every statement is reached, so that nothing holds vacuously.  Then each
mistake listed in the header of the file is made (-D), and spin must find it.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = ("spin", "gcc", "prlimit")

# The longest path is a few hundred steps; the limit on memory is in MiB.
DEPTH = 10_000
MEMORY = 1500
# Of CPU time, as other programs may keep the CPUs busy.
SECONDS = 300
SHOWN_LINES = 60

MISTAKE = re.compile(r"^ \*   ([A-Z_]+)  +\S", re.M)
SWITCHED = re.compile(r"\b(?:ifdef|ifndef|defined)\b[ (]*([A-Z_]+)")
VIOLATED = re.compile(r"^pan:\d+: (assertion violated .*|invalid end state)", re.M)


@dataclasses.dataclass(frozen=True)
class Model:
    """A way to explore a file without mistakes."""

    file: str
    # The minimum number of states; far fewer would mean a broken model.
    states: int
    flags: tuple[str, ...] = ()
    # Whether every statement must be reached.
    complete: bool = True


# Two faults race with one operation of each kind, one fault with any two operations.  With the
# hash MMU of powerpc, faults differ.
MODELS = (
    Model("spf.pml", 400_000),
    Model("spf.pml", 400_000, ("-DHASH",)),
    Model("spf.pml", 1_000_000, ("-DFAULTS=2", "-DACTIONS=1"), complete=False),
    Model("spf-numbers.pml", 400_000),
    Model("spf-switch.pml", 150_000),
    Model("munmap.pml", 400_000),
    Model("munmap-tables.pml", 400_000),
    Model("munmap-replace.pml", 150_000),
)
# Names that are not mistakes.
PARAMETERS = {"FAULTS", "ACTIONS", "HASH"}


@dataclasses.dataclass
class Explored:
    """The result of spin."""

    error: str = ""             # why it could not be explored
    violated: str = ""
    states: int = 0
    unreached: tuple[str, ...] = ()
    trail: str = ""


class Broken(Exception):
    """The exploration could not be completed."""


def run(folder: pathlib.Path, *command: str) -> str:
    """The output of a program that must succeed."""
    result = subprocess.run(["prlimit", f"--cpu={SECONDS}", *command], cwd=folder,
                            stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, check=False)
    if result.returncode == -signal.SIGXCPU:
        raise Broken(f"{' '.join(command)}: not done after {SECONDS} s of CPU time\n"
                     f"{result.stdout}")
    if result.returncode:
        raise Broken(f"{' '.join(command)}: exit status {result.returncode}\n{result.stdout}")
    return result.stdout


def unreached(text: str) -> tuple[str, ...]:
    """The statements that no execution reached; a process may run forever."""
    found = []
    process = ""
    for line in text.splitlines():
        if match := re.match(r"unreached in (.*)", line):
            process = match[1]
        elif (match := re.match(r"\t(\S+:\d+), state \d+, (.*)", line)) and match[2] != '"-end-"':
            found.append(f"{match[1]}: {match[2]} ({process})")
    return tuple(found)


def explore(file: str, flags: tuple[str, ...]) -> Explored:
    """Generate a program from the model with spin, and run it to the first error."""
    with tempfile.TemporaryDirectory(prefix="faultline-model-") as name:
        folder = pathlib.Path(name)
        shutil.copy(HERE / file, folder)
        try:
            run(folder, "spin", "-a", *flags, file)
            # Compiling takes longer than running: no -O, except for large models.
            run(folder, "gcc", "-w", "-O1" if "-DFAULTS=2" in flags else "-O0", "-DSAFETY",
                f"-DMEMLIM={MEMORY}", "-o", "pan", "pan.c")
            text = run(folder, "./pan", f"-m{DEPTH}")
            result = Explored()
            for problem in ("max search depth too small", "aborted", "out of memory"):
                if problem in text:
                    raise Broken(text)
            errors = re.search(r"errors: (\d+)", text)
            states = re.search(r"^\s*(\d+) states, stored", text, re.M)
            if not errors or not states:
                raise Broken(text)
            result.states = int(states[1])
            if int(errors[1]):
                violated = VIOLATED.search(text)
                if not violated:
                    raise Broken(text)
                result.violated = violated[1]
                result.trail = run(folder, "spin", "-t", "-p", "-g", *flags, file)
            else:
                result.unreached = unreached(text)
            return result
        except Broken as problem:
            return Explored(error=str(problem))


def judge_model(model: Model, got: Explored) -> str:
    """The fault of a model without mistakes, or ""."""
    if got.error or got.violated:
        return got.error or f"{got.violated}\n{got.trail}"
    if got.states < model.states:
        return f"only {got.states} states, expected at least {model.states}: what is missing?"
    if model.complete:
        return "\n".join(f"never reached: {where}" for where in got.unreached)
    return ""


def judge_mistake(got: Explored) -> str:
    """The fault of a model with a mistake, or "": spin does not find the mistake."""
    return got.error or ("" if got.violated else f"not found in {got.states} states")


def listed(file: str) -> list[str]:
    """The mistakes listed in the header of a file."""
    text = (HERE / file).read_text(encoding="utf-8")
    return MISTAKE.findall(text.partition("*/\n#")[0])


def not_listed(file: str) -> str:
    """Mistakes that a file can make but does not list, and vice versa."""
    text = (HERE / file).read_text(encoding="utf-8")
    possible = set(SWITCHED.findall(text)) - PARAMETERS
    return "\n".join([f"{name} is not in the list" for name in possible - set(listed(file))] +
                     [f"{name} changes nothing" for name in set(listed(file)) - possible])


def main() -> int:
    """Explore all models, two at a time, and print TAP."""
    for tool in TOOLS:
        if not shutil.which(tool):
            print(f"Bail out! {tool} is not installed: run packaging/build-deps/install")
            return 1
    files = list(dict.fromkeys(model.file for model in MODELS))
    mistakes = [(file, name) for file in files for name in listed(file)]
    results = [(f"{file} lists the mistakes it can make", not_listed(file)) for file in files]
    forgotten = {path.name for path in HERE.glob("*.pml")} - set(files)
    results.append(("every model is explored", "\n".join(sorted(forgotten))))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        # Long ones first.
        bases = [pool.submit(explore, model.file, model.flags) for model in reversed(MODELS)]
        wrong = [pool.submit(explore, file, (f"-D{name}",)) for file, name in mistakes]
        for model, future in zip(MODELS, reversed(bases)):
            got = future.result()
            results.append((" ".join([model.file, *model.flags, f"holds: {got.states} states"]),
                            judge_model(model, got)))
        for (file, name), future in zip(mistakes, wrong):
            got = future.result()
            results.append((f"{file}: spin finds -D{name}: {got.violated or 'no'}",
                            judge_mistake(got)))
    for number, (title, problem) in enumerate(results, 1):
        print(f"{'not ok' if problem else 'ok'} {number} - {title}")
        for line in problem.splitlines()[-SHOWN_LINES:]:
            print(f"# {line}")
    print(f"1..{len(results)}")
    return 1 if any(problem for _, problem in results) else 0


if __name__ == "__main__":
    sys.exit(main())
