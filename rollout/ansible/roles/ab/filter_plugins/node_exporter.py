# SPDX-License-Identifier: GPL-2.0-only
"""Add flags to ARGS in node_exporter's file of options, and keep all that is there."""
from __future__ import annotations

import re
from collections.abc import Callable

# The flags of the last run, which the next one takes out again.
RECORD = "# In ARGS by Faultline's role ab, which replaces it: "
ASSIGNED = re.compile(r"(?m)^[ \t]*ARGS=")
# A value in one pair of quotes or in none, with lines that go on after a backslash.
VALUE = re.compile(r'(?ms)^[ \t]*ARGS=(?:"(?P<double>(?:[^"\\]|\\.)*)"|'
                   r"'(?P<single>[^']*)'|(?P<bare>(?:[^\"'\\\n]|\\.)*))[ \t]*$")
# The only one of ours that may be given more than once.
REPEATED = "--collector.sysctl.include"
# The collectors that rules and dashboard need, and their switches.
COLLECTORS = ("stat", "textfile", "time", "uname", "vmstat")


def name(flag: str) -> str:
    """The name of a flag."""
    return flag.partition("=")[0]


def words(text: str) -> list[str]:
    """The flags in a value, without the quotes around them."""
    return [word for word in re.split(r"[\s\"'\\]+", text) if word]


def conflicts(there: list[str], wanted: list[str]) -> list[str]:
    """Flags with which node_exporter would not start, or would not report what we want."""
    given = {name(flag) for flag in there}
    found = [flag for flag in wanted if name(flag) in given and name(flag) != REPEATED]
    return found + [f"--no-collector.{one}" for one in (*COLLECTORS, "sysctl")
                    if f"--no-collector.{one}" in given]


def merge(text: str, wanted: list[str], own: list[str]) -> dict[str, str]:
    """The file with the flags in it, and the reason if they cannot be added.

    The administrator takes care of flags with a name in `own`.
    """
    kept = re.sub(rf"(?m)^{re.escape(RECORD)}.*\n?", "", text)
    recorded = re.findall(rf"(?m)^{re.escape(RECORD)}(.*)$", text)
    found = VALUE.search(kept)
    if len(ASSIGNED.findall(kept)) > (1 if found else 0):
        there = words("\n".join(line for line in kept.splitlines() if line.lstrip()[:1] != "#"))
        left = [flag for flag in wanted if flag not in there and name(flag) not in own]
        return {"text": text, "flags": " ".join(left), "problem":
                "it is there twice, or not in one pair of quotes" if left else ""}
    value, quote = "", '"'
    if found:
        value = found["double"] or found["single"] or found["bare"] or ""
        quote = "'" if found["single"] else "" if found["bare"] else '"'
    if recorded:
        value = value.replace(recorded[0], "", 1)
    value = value.rstrip(" \t")
    there = words(value)
    if "--collector.disable-defaults" in there:
        wanted = wanted + [f"--collector.{one}" for one in COLLECTORS]
    ours = [flag for flag in wanted if flag not in there and name(flag) not in own]
    if bad := conflicts(there, ours):
        return {"text": text, "flags": " ".join(ours),
                "problem": f"it has {' '.join(sorted({name(flag) for flag in bad}))} already"}
    if not ours and not recorded:
        return {"text": text, "problem": ""}
    line = f"ARGS={quote}{' '.join(filter(None, (value, *ours)))}{quote}"
    if ours:
        line = f"{RECORD}{' '.join(ours)}\n{line}"
    if found:
        return {"text": f"{kept[:found.start()]}{line}{kept[found.end():]}", "problem": ""}
    end = "" if kept.endswith("\n") or not kept else "\n"
    return {"text": f"{kept}{end}{line}\n", "problem": ""}


class FilterModule:
    """The filters of this file, as Ansible asks for them."""

    def filters(self) -> dict[str, Callable[..., dict[str, str]]]:
        """The filters by name."""
        return {"faultline_merge": merge}
