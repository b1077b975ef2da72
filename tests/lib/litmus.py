# SPDX-License-Identifier: GPL-2.0-only
"""Translate a litmus test of the kernel's memory model into instructions of arm64.

The instructions are those that the kernel has for its primitives there (arch/arm64/include/asm:
barrier.h and atomic_lse.h).  A lock is the atomic operation of its fast path.  RCU is not made of
single instructions, so tests with RCU sections are not translated.
"""
from __future__ import annotations

import re
from collections.abc import Iterator

# Every value is in a register; a thread's own registers r0 to r9 are X0 to X9.
POINTERS, CONSTANT, FREE = 10, 20, 21
BARRIERS = {"smp_mb": "DMB ISH", "smp_mb__after_atomic": "DMB ISH",
            "smp_mb__after_spinlock": "DMB ISH", "smp_rmb": "DMB ISHLD", "smp_wmb": "DMB ISHST"}
COMMENT = re.compile(r"\(\*\s.*?\*\)|//[^\n]*|/\*.*?\*/", re.S)
PROCESS = re.compile(r"^P(\d+)\((.*?)\)\s*\{(.*?)^\}", re.M | re.S)
TOKEN = re.compile(r"\s*(?:if \((r\d)(?: == (\d))?\)|([^;{}]+);|([{}]))")
STATEMENTS = (
    ("store", re.compile(r"(WRITE_ONCE)\(\*(\w+), (\w+)\)")),
    ("store", re.compile(r"(smp_store_release)\((\w+), (\w+)\)")),
    ("load", re.compile(r"(r\d) = (READ_ONCE)\(\*(\w+)\)")),
    ("load", re.compile(r"(r\d) = (smp_load_acquire)\((\w+)\)")),
    ("exchange", re.compile(r"(r\d) = xchg_(release)\((\w+), (\d)\)")),
    ("trylock", re.compile(r"(r\d) = spin_trylock\((\w+)\)")),
    ("lock", re.compile(r"spin_lock\((\w+)\)")),
    ("unlock", re.compile(r"spin_unlock\((\w+)\)")),
    ("barrier", re.compile(r"(smp_\w*mb\w*)\(\)")),
)


class Untranslated(Exception):
    """The test has something that arm64 has no instruction for."""


class Thread:
    """The instructions of one process."""

    def __init__(self, number: str, parameters: str) -> None:
        """Give each pointer that it gets a register."""
        self.number = number
        names = re.findall(r"(\w+)(?:,|$)", parameters)
        self.pointers = {name: POINTERS + place for place, name in enumerate(names)}
        self.code: list[str] = []
        # The outcome needs this besides the test's own condition: no lock was held by others.
        self.needs: list[str] = []
        self._wide: set[str] = set()
        self._labels = 0
        self._free = FREE

    @property
    def registers(self) -> str:
        """The initial state of the pointers."""
        return " ".join(f"{self.number}:X{place}={name};"
                        for name, place in self.pointers.items())

    def block(self, text: str) -> None:
        """Translate a body."""
        self._wide = set(re.findall(r"int \*(r\d)", text))
        text = re.sub(r"int \*?r\d;", "", text)
        tokens = [match for match in TOKEN.finditer(text)]
        if "".join(match[0] for match in tokens).rstrip() != text.rstrip():
            raise Untranslated(text)
        stream = iter(tokens)
        for token in stream:
            self._one(token, stream)

    def _one(self, token: re.Match[str], rest: Iterator[re.Match[str]]) -> None:
        register, value, statement, brace = token.groups()
        if statement:
            self._statement(statement.strip())
            return
        if brace:
            raise Untranslated(brace)
        self._labels += 1
        label = f"L{self.number}{self._labels}"
        self.code += ([f"CBZ W{register[1:]},{label}"] if value is None else
                      [f"CMP W{register[1:]},#{value}", f"B.NE {label}"])
        inner = next(rest)
        if inner[4] != "{":
            self._one(inner, rest)
        else:
            while (inner := next(rest))[4] != "}":
                self._one(inner, rest)
        self.code.append(f"{label}:")

    def _address(self, name: str) -> str:
        return f"[X{self.pointers[name]}]" if name in self.pointers else f"[X{name[1:]}]"

    def _value(self, value: str) -> str:
        if value in self.pointers:
            return f"X{self.pointers[value]}"
        self.code.append(f"MOV W{CONSTANT},#{value}")
        return f"W{CONSTANT}"

    def _swap(self, value: str, old: str, name: str, acquire: bool) -> None:
        """An atomic exchange with acquire or with release semantics."""
        new = self._value(value)
        self.code.append(f"SWP{'A' if acquire else 'L'} {new},{old},{self._address(name)}")

    def _statement(self, text: str) -> None:
        for kind, pattern in STATEMENTS:
            match = pattern.fullmatch(text)
            if match:
                getattr(self, f"_{kind}")(*match.groups())
                return
        raise Untranslated(text)

    def _store(self, how: str, name: str, value: str) -> None:
        source = self._value(value)
        self.code.append(f"{'STLR' if 'release' in how else 'STR'} {source},{self._address(name)}")

    def _load(self, register: str, how: str, name: str) -> None:
        size = "X" if register in self._wide else "W"
        self.code.append(f"{'LDAR' if 'acquire' in how else 'LDR'} {size}{register[1:]},"
                         f"{self._address(name)}")

    def _exchange(self, register: str, _how: str, name: str, value: str) -> None:
        self._swap(value, f"W{register[1:]}", name, acquire=False)

    def _trylock(self, register: str, name: str) -> None:
        self._swap("1", f"W{register[1:]}", name, acquire=True)
        self.code.append(f"EOR W{register[1:]},W{register[1:]},#1")

    def _lock(self, name: str) -> None:
        old, self._free = self._free, self._free + 1
        self._swap("1", f"W{old}", name, acquire=True)
        self.needs.append(f"{self.number}:X{old}=0")

    def _unlock(self, name: str) -> None:
        self.code.append(f"STLR WZR,{self._address(name)}")

    def _barrier(self, name: str) -> None:
        if name not in BARRIERS:
            raise Untranslated(name)
        self.code.append(BARRIERS[name])


def arm64(text: str) -> str:
    """The same test for herd7's model of arm64."""
    name = text.split()[1]
    text = COMMENT.sub("", text)
    initial = re.search(r"^\{(.*?)\}$", text, re.M | re.S)
    outcome = re.search(r"^exists\s*(.*)", text, re.M | re.S)
    if not initial or not outcome:
        raise Untranslated("no initial state, or no outcome")
    threads = []
    for number, parameters, body in PROCESS.findall(text):
        thread = Thread(number, parameters)
        thread.block(body)
        threads.append(thread)
    rows = max(len(thread.code) for thread in threads)
    columns = [[f"P{thread.number}", *thread.code, *[""] * (rows - len(thread.code))]
               for thread in threads]
    condition = re.sub(r"\b(\d+):r(\d)", r"\1:X\2", outcome[1].strip())
    needs = "".join(f" /\\ {need}" for thread in threads for need in thread.needs)
    return "\n".join((
        f"AArch64 {name}", "{", initial[1].strip(), *(thread.registers for thread in threads), "}",
        *(" | ".join(cells) + " ;" for cells in zip(*columns)),
        f"exists ({condition}{needs})", ""))
