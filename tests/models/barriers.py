#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0-only
"""The memory barriers of our lock-free code are all needed and sufficient.

Each litmus/*.litmus is one claim of mm/faultline/spf.c or munmap.c.  Its outcome must
be as the file says; if that is Never, it must become Sometimes when any of its barriers
is left out, so that the claim does not hold by accident.

First herd7 must agree with the kernel on the kernel's own litmus tests: a version
of herd7 that does not fit the kernel's memory model may give wrong verdicts.

The claims about speculative page faults must also hold in the model of arm64, with the
instructions that the kernel uses there, and one of the weaker variants must not: a
translation that orders too much would prove nothing.
"""
from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

from faultline.common import Fail
from lib.herd import Herd
from lib.litmus import Untranslated, arm64

HERE = pathlib.Path(__file__).resolve().parent
KERNEL = ("tools/memory-model/litmus-tests", "Documentation/litmus-tests")
RESULT = re.compile(r"^\s*\*\s*Result:\s*(\w+)", re.M)
PROCESS = re.compile(r"^P(\d+)\(.*?\)\s*\{(.*?)^\}", re.M | re.S)
# Primitives that may be left out or weakened, and their replacements.
WEAKER = [(re.compile(pattern, re.S), weaker) for pattern, weaker in (
    (r"(?:smp_\w*mb\w*|synchronize_rcu\w*)\(\);", ""),
    (r"smp_load_acquire\((\w+)\)", r"READ_ONCE(*\1)"),
    (r"smp_store_release\((\w+), (\w+)\)", r"WRITE_ONCE(*\1, \2)"),
    (r"rcu_assign_pointer\((\*\w+), (\w+)\)", r"WRITE_ONCE(\1, \2)"),
    (r"spin_lock\((\w+)\);\s*spin_unlock\(\1\);", ""),
)]
RCU_SECTION = re.compile(r"rcu_read_(?:un)?lock\(\);")

COUNT = 0
FAILED = 0


def result(name: str, problem: str = "") -> None:
    """Print the result of one test."""
    global COUNT, FAILED
    COUNT += 1
    FAILED += bool(problem)
    print(f"{'not ok' if problem else 'ok'} {COUNT} - {name}")
    for line in problem.splitlines():
        print(f"# {line}", flush=True)


def same(herd: Herd, name: str, text: str, wanted: str) -> None:
    """Check the verdict on a test."""
    verdict, output = herd.judge(text)
    result(f"{name}: {wanted}", "" if verdict == wanted else f"{verdict}\n{output}")


def expected(text: str) -> str:
    """The verdict stated in a file."""
    match = RESULT.search(text)
    return match[1] if match else "a line with 'Result:'"


def weakened(text: str) -> Iterator[tuple[str, str]]:
    """Variants of the test without one of its barriers: the missing one, and the text."""
    text = re.sub(r"\(\*\s.*?\*\)|//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    for process in PROCESS.finditer(text):
        name, start = f"P{process[1]}", process.start(2)
        for pattern, weaker in WEAKER:
            for match in pattern.finditer(text, start, process.end(2)):
                what = " ".join(match[0].split()).rstrip(";")
                yield f"{what} of {name}", (
                    text[:match.start()] + match.expand(weaker) + text[match.end():])
        if RCU_SECTION.search(text, start, process.end(2)):
            yield f"rcu_read_lock() of {name}", (
                text[:start] + RCU_SECTION.sub("", process[2]) + text[process.end(2):])


def claim(herd: Herd, path: pathlib.Path, others: list[str]) -> None:
    """Check one of our tests, with and without its barriers."""
    text = path.read_text(encoding="utf-8")
    wanted = expected(text)
    same(herd, path.stem, text, wanted)
    if wanted != "Never":
        return
    variants = list(weakened(text))
    for missing, weaker in variants:
        same(herd, f"{path.stem} without {missing}", weaker, "Sometimes")
    result(f"{path.stem}: it has a weaker variant",
           "" if variants or any(other.startswith(f"{path.stem}+") for other in others) else
           f"it has no barrier, and no {path.stem}+*.litmus shows how it could go wrong")


def claim_arm64(herd: Herd, path: pathlib.Path, others: list[pathlib.Path]) -> bool:
    """Check one of our tests in the model of arm64; False if it cannot be translated."""
    text = path.read_text(encoding="utf-8")
    try:
        same(herd, f"{path.stem} on arm64", arm64(text), "Never")
    except Untranslated:
        return False
    weaker = [variant for _, variant in weakened(text)]
    weaker += [other.read_text(encoding="utf-8") for other in others
               if other.stem.startswith(f"{path.stem}+")]
    verdicts = (herd.judge(arm64(variant))[0] for variant in weaker)
    result(f"{path.stem} on arm64: a weaker variant is allowed",
           "" if "Sometimes" in verdicts else f"none of {len(weaker)}")
    return True


def main() -> int:
    """Check all tests."""
    try:
        herd = Herd()
    except (Fail, OSError) as error:
        print(f"Bail out! {error}")
        return 1
    print(f"# herd7 {herd.version}")
    kernel = sorted(path for folder in KERNEL for path in (herd.tree / folder).rglob("*.litmus"))
    if not kernel:
        print(f"Bail out! no litmus tests in {herd.tree}: run 'make tree'")
        return 1
    for path in kernel:
        text = path.read_text(encoding="utf-8")
        same(herd, f"known: {path.stem}", text, expected(text))
    ours = sorted((HERE / "litmus").glob("*.litmus"))
    for path in ours:
        claim(herd, path, [other.stem for other in ours])
    result("litmus tests exist", "" if ours else "no file in tests/models/litmus")
    translated = [claim_arm64(herd, path, ours) for path in ours
                  if path.stem.startswith("spf-") and expected(path.read_text("utf-8")) == "Never"]
    result("litmus tests are translated for arm64", "" if any(translated) else "none is")
    print(f"1..{COUNT}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
