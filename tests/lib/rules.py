# SPDX-License-Identifier: GPL-2.0-only
"""Race tests notice a violated rule: a row of RULES in suites.py.

lab rules SUITE/NAME [FLAVOUR]: tests/run builds kernel and selftests first.  The logs go to
build/vm/SUITE-NAME-RULE.  The environment variable EACH overrides the seconds of a race.
"""
from __future__ import annotations

import dataclasses
import io
import os
import re
import sys
from pathlib import Path

from suites import AWAKE, RULES, Boot, Rule

from faultline.common import Fail
from faultline.flavour import FLAVOURS
from faultline.vm import run as vm
from faultline.vm.errors import KERNEL_TROUBLE
from faultline.vm.guest import Job
from .boot import BUILD, machine, selftest
from .tap import Tap

# Where the rules of each feature are, in the kernel's tree.
HEADERS = {feature: f"mm/faultline/{feature}.h"
           for feature in ("munmap", "hugetlb", "hugetlb_zero", "pmd_clear", "spf", "walk")}
CONSTANT = re.compile(r"(?m)^\t(\w+)\s*= BIT\((\d+)\),")
# On a busy host, some races are not hit each time.
TRIES = 3
PASSED = "passed"
# The result is neither of the race nor of the kernel.
NONE = "did not run"


def constants(tree: Path) -> dict[str, str]:
    """FEATURE_broken_rules=NUMBER, which breaks it, for each rule."""
    found = {}
    for feature, name in HEADERS.items():
        enum = re.search(r"enum \w+_rule \{.*?\n\};", (tree / name).read_text("utf-8"), re.S)
        if not enum:
            raise Fail(f"{tree / name} has no rules")
        for rule, bit in CONSTANT.findall(enum[0]):
            found[rule] = f"{feature}_broken_rules={1 << int(bit)}"
    return found


def job(boot: Boot, rule: Rule, broken: str) -> Job:
    """The guest's command: the race, with FILE=VALUE that breaks its rule."""
    program, test = rule.race.split()
    script = [f"{AWAKE if boot.awake else ''}for word in {broken} {rule.settings}; do",
              "file=/proc/sys/vm/${word%=*}",
              "[ -e $file ] || file=/sys/kernel/debug/${word%=*}",
              "echo ${word#*=} >$file || exit 1", "done",
              *(f"{name} >/dev/null || exit 1" for name in boot.programs),
              f"exec {program} -r {test}"]
    seconds = os.environ.get("EACH") or str(rule.seconds)
    return Job(["env", f"FAULTLINE_SECONDS={seconds}", *boot.env, *rule.env,
                "sh", "-c", "\n".join(script)],
               [selftest(boot.flavour, name) for name in (*boot.programs, program)])


def run(boot: Boot, rule: Rule, broken: str, out: Path) -> str:
    """Run the race; return PASSED, or why it did not pass."""
    output = io.BytesIO()
    report = vm.run(machine(boot), job(boot, rule, broken), out, timeout=boot.timeout, quiet=True,
                    output=output)
    text = output.getvalue().decode(errors="replace")
    if report.status == KERNEL_TROUBLE:
        return report.verdict.reason
    if re.search("(?m)^not ok 1 ", text):
        return next((line for line in text.splitlines() if "Expected" in line), "failed")
    if report.status == 0 and re.search("(?m)^ok 1 (?!.*# SKIP)", text):
        return PASSED
    return f"{NONE}: status {report.status}"


def check(tap: Tap, title: str, boot: Boot, rule: Rule, breaks: str) -> None:
    """The race passes, but fails without the rule."""
    logs = BUILD / "vm" / title.replace("/", "-")
    if rule.passes:
        intact = breaks and f"{breaks.partition('=')[0]}=0"
        said = run(boot, rule, intact, logs.with_name(f"{logs.name}-all"))
        where = f" where {rule.what} matters" if rule.what else ""
        tap.result(f"with all rules, {rule.race} passes{where}", said == PASSED,
                   [] if said == PASSED else [said])
    if not rule.name:
        return
    for attempt in range(1, TRIES + 1):
        said = run(boot, rule, breaks, logs.with_name(f"{logs.name}-{rule.name.lower()}"))
        if said != PASSED:
            break
    tap.result(f"without {rule.what}, {rule.race} fails",
               said != PASSED and not said.startswith(NONE),
               [*([f"run {attempt}"] if attempt > 1 else []), said.removeprefix("# ")])


def main() -> int:
    """Run all rules of a row."""
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in RULES:
        raise Fail(f"say which row of tests/suites.py: {' '.join(RULES)}")
    title = sys.argv[1]
    boot, rules = RULES[title]
    boot = dataclasses.replace(boot, flavour=(sys.argv[2:] or [boot.flavour])[0])
    numbers = constants(FLAVOURS[boot.flavour].tree)
    tap = Tap()
    for rule in rules:
        check(tap, title, boot, rule, numbers[rule.name] if rule.name else "")
    return tap.finish()
