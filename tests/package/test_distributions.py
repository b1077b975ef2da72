# SPDX-License-Identifier: GPL-2.0-only
"""The spec against distributions.toml: what kernel packages of Fedora and EL have.

In both directions: the spec has what the file says, and nothing that the file does not know.
rpmspec expands the spec, so no package is built.
"""
from __future__ import annotations

import collections
import functools
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from faultline.common import ROOT
from faultline.flavour import AUDIENCE, X86, find, meta_suffix

SPEC = ROOT / "packaging/rpm/linux-faultline.spec"
TABLE = tomllib.loads((SPEC.parent / "distributions.toml").read_text(encoding="utf-8"))
REASONS = TABLE["reasons"] | TABLE["gaps"]
# POWER has DEB packages only.
FLAVOURS = [name for name in AUDIENCE if find(name).arch is X86]
# In the file, and rpm's name for it.
RELATIONS = {"provides": "PROVIDE", "requires": "REQUIRE", "recommends": "RECOMMEND",
             "suggests": "SUGGEST", "supplements": "SUPPLEMENT", "enhances": "ENHANCE",
             "conflicts": "CONFLICT", "obsoletes": "OBSOLETE"}
SCRIPTLETS = {"pre": "PREIN", "post": "POSTIN", "preun": "PREUN", "postun": "POSTUN",
              "pretrans": "PRETRANS", "posttrans": "POSTTRANS", "verifyscript": "VERIFYSCRIPT"}
TRIGGERS = ("TRIGGERNAME", "FILETRIGGERNAME", "TRANSFILETRIGGERNAME")
# Tables without rows.
OTHER = {"distributions", "sources", "reasons", "gaps", "programs"}
# The shell has these; a command may follow the first ones, `command` only looks for a program.
BEFORE = {"!", "do", "elif", "else", "if", "then", "until", "while"}
BUILTINS = BEFORE | {":", "[", "cd", "command", "done", "echo", "exit", "fi", "for", "read"}
# Programs whose first argument matters.
VERBS = {"kernel-install", "weak-modules"}
# Between fields and packages of rpm's output.
FIELD, PACKAGE = "\x1f", "\x1e"


def rpmspec(flavour: str, *arguments: str) -> str:
    """The spec of a flavour, as rpm of this host reads it."""
    macros = {"flavour": flavour, "kver": f"6.12.117-faultline1.{flavour}", "upstream": "6.12.117",
              "faultline_release": "1", "epoch_seconds": "1700000000", "stage": "/nowhere",
              "repo": "/nowhere", "dist": "%{nil}"}
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    done = subprocess.run(["rpmspec", "--target", "x86_64-linux", *arguments, *defines, SPEC],
                          check=False, text=True, capture_output=True,
                          env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def neutral(text: str, flavour: str) -> str:
    """The words of the file instead of this flavour's names and versions."""
    text = text.replace(f"6.12.117-faultline1.{flavour}", "KVER")
    text = re.sub(rf"\bkernel-faultline{meta_suffix(flavour)}(?![a-z])", "kernel-faultline", text)
    return re.sub(r"= 6\.12\.117-1$", "= V-R", text)


def row_name(package: str) -> str:
    """The table of one of our packages: that of the distribution's package it corresponds to."""
    return package.replace("kernel-faultline", "kernel", 1)


@functools.cache
def packages(flavour: str) -> dict[str, dict[str, list[str]]]:
    """What the packages of a flavour have: relations by kind, and the text of scriptlets."""
    fields = ["NAME %{NAME}"]
    fields += [f"%|{tag}NEVRS?{{{kind} [%{{{tag}NEVRS}}\\n]}}|" for kind, tag in RELATIONS.items()]
    fields += ["qualifier [%{REQUIREFLAGS:deptype}\\n]"]
    fields += [f"%|{tag}?{{{phase} %{{{tag}}}}}|" for phase, tag in SCRIPTLETS.items()]
    fields += [f"%|{tag}?{{trigger {tag}}}|" for tag in TRIGGERS]
    found: dict[str, dict[str, list[str]]] = {}
    output = rpmspec(flavour, "-q", "--qf", FIELD.join(fields) + PACKAGE)
    for package in output.split(PACKAGE)[:-1]:
        values = dict(field.partition(" ")[::2] for field in package.split(FIELD) if field)
        name = neutral(values.pop("NAME"), flavour)
        # The source has no package of its own.
        if name == "linux-faultline":
            continue
        found[name] = {key: [neutral(line, flavour) for line in value.splitlines()]
                       for key, value in values.items()}
    assert len(found) > 10
    return found


def relations(flavour: str, package: str, kind: str) -> set[str]:
    """Relations of a package, without those that rpm adds to each."""
    values = packages(flavour)[package]
    names = values.get(kind, [])
    if kind == "requires":
        names = [name for name, how in zip(names, values["qualifier"], strict=True)
                 if "interp" not in how.split(",")]
    itself = {f"{package} = V-R", f"{package}(x86-64) = V-R"}
    assert kind != "provides" or itself & set(names), f"{package} provides itself"
    return set(names) - itself


def programs(script: str) -> set[str]:
    """The programs that a shell script calls, some with their first argument."""
    words = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
    words.whitespace, words.whitespace_split = " \t", False
    words.wordchars += "{}%$:!=@,[]"
    found: set[str] = set()
    at_start, name = True, ""
    for word in words:
        if set(word) <= set("();|&\n"):
            at_start, name = True, ""
        elif name in VERBS:
            found.add(f"{name} {word}")
            name = ""
        elif at_start and not re.match(r"\w+=", word) and word not in ("<", ">"):
            if word not in BUILTINS:
                name = Path(word).name
                found.add(name)
            at_start = word in BEFORE
    return {word for word in found if word not in VERBS}


def files(flavour: str) -> set[str]:
    """The files in the packages of a kernel, %ghost before those that are not packed."""
    found, ours = set(), False
    for line in rpmspec(flavour, "-P").splitlines():
        if re.match(r"%(\w+)", line) and line.split()[0] in ("%files", "%changelog"):
            ours = neutral(line, flavour).startswith("%files -n kernel-faultline")
        elif ours and line and not line.startswith(("%defattr", "%if", "%endif", "#")):
            ghost = "%ghost " if "%ghost" in line else ""
            found.add(ghost + neutral(line.split()[-1], flavour))
    return found


def rows(table: dict[str, list[list[str]]], kind: str, flavour: str) -> set[str]:
    """The rows of the file that our packages of a flavour have."""
    return {name for name, theirs, verdict, *only in table.get(kind, [])
            if (verdict == "yes" or not theirs) and flavour in (only or [flavour])[0].split()}


def every_row() -> list[tuple[str, str, list[str]]]:
    """Table, kind and row."""
    return [(table, kind, row) for table, kinds in TABLE.items() if table not in OTHER
            for kind, found in kinds.items() for row in found]


def test_rows() -> None:
    """Each row is well-formed and of its kind only once, and each reason is used."""
    used: set[str] = set()
    count = collections.Counter((table, kind, row[0]) for table, kind, row in every_row())
    assert [key for key, number in count.items() if number > 1] == []
    for table, kind, (name, theirs, verdict, *only) in every_row():
        where = f"{table}.{kind}: {name}"
        assert kind == "all" or kind in RELATIONS or kind in SCRIPTLETS, where
        known = [key for key in TABLE["distributions"] if key in theirs.split()]
        assert " ".join(known) == theirs, f"{where}: distributions"
        assert verdict in REASONS or (verdict == "yes" and theirs), f"{where}: {verdict}"
        assert all(set(some.split()) < set(FLAVOURS) for some in only), f"{where}: flavours"
        used.add(verdict)
    assert set(REASONS) - used == set()
    assert not TABLE["reasons"].keys() & TABLE["gaps"].keys()
    for place in [*TABLE["sources"].values(),
                  *(entry["spec"] for entry in TABLE["distributions"].values())]:
        assert len(place) == 3 and "/" in place[0]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_packages(flavour: str) -> None:
    """The flavour has the packages of the file, and no others."""
    found = {row_name(name) for name in packages(flavour)}
    assert found == rows(TABLE["packages"], "all", flavour)
    names = {row[0] for row in TABLE["packages"]["all"]}
    assert set(TABLE) - OTHER - {"packages", "files"} - names == set()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", RELATIONS)
def test_relations(kind: str, flavour: str) -> None:
    """Provides, requires and the other relations are those of the file."""
    for package in packages(flavour):
        expected = rows(TABLE.get(row_name(package), {}), kind, flavour)
        assert relations(flavour, package, kind) == expected, f"{kind} of {package}"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_scriptlets(flavour: str) -> None:
    """Scriptlets run in the phases, and call the programs, of the file."""
    for package, values in packages(flavour).items():
        assert "trigger" not in values, f"{package} has triggers"
        for phase in SCRIPTLETS:
            called = programs("\n".join(values.get(phase, [])))
            expected = rows(TABLE.get(row_name(package), {}), phase, flavour)
            assert called == expected, f"%{phase} of {package}"


def required(flavour: str, package: str, phase: str) -> set[str]:
    """What is there when a scriptlet runs: requires of its package, and of ours among them."""
    values = packages(flavour)[package]
    found: set[str] = set()
    for name, how in zip(values["requires"], values["qualifier"], strict=True):
        if {phase, "manual"} & set(how.split(",")):
            found.add(name)
            ours = name.removesuffix(" = V-R")
            if ours in packages(flavour):
                found |= required(flavour, ours, phase)
    return found


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_programs_are_required(flavour: str) -> None:
    """What a scriptlet calls is required for its phase, by the package or one that it requires."""
    seen: set[str] = set()
    for package, values in packages(flavour).items():
        for phase in SCRIPTLETS:
            for program in programs("\n".join(values.get(phase, []))):
                needs = TABLE["programs"][program]
                seen.add(program)
                assert not needs or needs in required(flavour, package, phase), \
                    f"%{phase} of {package} calls {program}, and does not require {needs}"
    assert seen == set(TABLE["programs"])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_files(flavour: str) -> None:
    """The packages of a kernel have the files of the file."""
    assert files(flavour) == rows(TABLE["files"], "all", flavour)


def test_shell() -> None:
    """Programs are found wherever a command can be, and only there."""
    script = '''
# comment: kernel-install add
if [ ! -e /a ] || [ "${B:-0}" != 0 ]; then
\texit 0
fi
if command -v weak-modules >/dev/null; then
\tweak-modules --add-kernel 1 || :
fi
status=0
if ! /usr/bin/kernel-install add 1 /lib/x; then
\techo "rm: run this" >&2
fi
for place in /boot /efi; do
\t[ ! -d $place ] || sync -f $place || :
done
: >/var/lib/x
(cd /x && find . | while read f; do hardlink $f; done)
'''
    assert programs(script) == {"weak-modules --add-kernel", "kernel-install add", "sync", "find",
                                "hardlink"}
