# SPDX-License-Identifier: GPL-2.0-only
"""Decide what the Linux kernel memory model allows in a litmus test.

The standard tool for this is herd7, which Debian does not package.  This is a
small replacement for the same files: it generates every candidate execution of
a test and keeps those that obey the axioms of
tools/memory-model/linux-kernel.cat: coherence, atomicity, happens-before,
propagation and RCU.  Names are those of that file; see explanation.txt beside it.

Unsupported features, above all plain accesses and counting atomics, give an
error rather than a wrong verdict.  It is simple and slow, for tests of up to
some 30 events.

A relation is a list with one number per event; the bits of a number are the
events that it leads to.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Values are numbers, or the name of the location that a pointer points to.
Value = int | str
Relation = list[int]
# An expression or statement: a word for its kind, then its parts.
Node = tuple[Any, ...]

MAX_ROUNDS = 8


class Unsupported(Exception):
    """The file uses a feature that is not implemented here."""


# === Reading a test ===========================================================

TOKEN = re.compile(r"\s*(\d+|\w+|/\\|\\/|==|!=|<=|>=|&&|\|\||[-+*&!~=<>(){}\[\],;:])")


class Tokens:
    """The tokens of a text, from left to right."""

    def __init__(self, text: str) -> None:
        self._words: list[str] = []
        place = 0
        text = text.rstrip()
        while place < len(text):
            match = TOKEN.match(text, place)
            if not match:
                raise Unsupported(f"'{text[place:place + 20].strip()}'")
            self._words.append(match[1])
            place = match.end()
        self._next = 0

    def peek(self, ahead: int = 0) -> str:
        """Look ahead; "" at the end."""
        place = self._next + ahead
        return self._words[place] if place < len(self._words) else ""

    def take(self, *wanted: str) -> str:
        """Consume the next token, which must be one of the given ones, if any."""
        word = self.peek()
        if not word or (wanted and word not in wanted):
            raise Unsupported(f"'{word or 'end'}' where {' or '.join(wanted) or 'more'} is wanted")
        self._next += 1
        return word

    def accept(self, *words: str) -> str:
        """Consume the next token if it is one of these; else return ""."""
        return self.take() if self.peek() in words and self.peek() else ""


BINARY = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"))


def parse_expression(tokens: Tokens, level: int = 0) -> Node:
    """A C expression, with the operators in BINARY, weakest first."""
    if level == len(BINARY):
        return parse_unary(tokens)
    left = parse_expression(tokens, level + 1)
    while operator := tokens.accept(*BINARY[level]):
        left = ("binary", operator, left, parse_expression(tokens, level + 1))
    return left


def parse_unary(tokens: Tokens) -> Node:
    """A number, a name, a call, or one with a sign before it."""
    word = tokens.take()
    if word == "(":
        inner = parse_expression(tokens)
        tokens.take(")")
        return inner
    if word in ("!", "*", "&", "-"):
        return (word, parse_unary(tokens))
    if word.isdigit():
        return ("number", int(word))
    if not word.isidentifier():
        raise Unsupported(f"'{word}' in an expression")
    if not tokens.accept("("):
        return ("name", word)
    arguments: list[Node] = []
    while not tokens.accept(")"):
        arguments.append(parse_expression(tokens))
        if tokens.peek() != ")":
            tokens.take(",")
    return ("call", word, arguments)


def parse_statement(tokens: Tokens) -> list[Node]:
    """One statement; a declaration is an empty one."""
    if tokens.accept("{"):
        body: list[Node] = []
        while not tokens.accept("}"):
            body += parse_statement(tokens)
        return body
    if tokens.accept("if"):
        tokens.take("(")
        condition = parse_expression(tokens)
        tokens.take(")")
        then = parse_statement(tokens)
        other = parse_statement(tokens) if tokens.accept("else") else []
        return [("if", condition, then, other)]
    if tokens.accept("int"):
        while tokens.accept("*"):
            pass
        if tokens.peek(1) == ";":
            tokens.take()
            tokens.take(";")
            return []
    if tokens.peek(1) == "=":
        name = tokens.take()
        tokens.take("=")
        statement: Node = ("set", name, parse_expression(tokens))
    else:
        statement = ("do", parse_expression(tokens))
        if statement[1][0] != "call":
            raise Unsupported("a plain access")
    tokens.take(";")
    return [statement]


def parse_condition(tokens: Tokens) -> Node:
    r"""The condition after "exists": atoms with /\, \/ and ~."""
    left = parse_conjunction(tokens)
    while tokens.accept("\\/"):
        left = ("or", left, parse_conjunction(tokens))
    return left


def parse_conjunction(tokens: Tokens) -> Node:
    """Atoms with and between them."""
    left = parse_atom(tokens)
    while tokens.accept("/\\"):
        left = ("and", left, parse_atom(tokens))
    return left


def parse_atom(tokens: Tokens) -> Node:
    """THREAD:REGISTER=VALUE or LOCATION=VALUE."""
    if tokens.accept("~"):
        return ("not", parse_atom(tokens))
    if tokens.accept("("):
        inner = parse_condition(tokens)
        tokens.take(")")
        return inner
    name = tokens.take()
    if tokens.accept(":"):
        name += ":" + tokens.take()
    tokens.take("=")
    return ("is", name, parse_value(tokens))


def parse_value(tokens: Tokens) -> Value:
    """A number or the address of a location."""
    tokens.accept("&")
    word = tokens.take()
    return int(word) if word.isdigit() else word


@dataclass
class Test:
    """A litmus test."""

    name: str
    result: str             # the expected result: Never, Sometimes or Always
    initial: dict[str, Value]
    threads: list[list[Node]]
    exists: Node


PROCESS = re.compile(r"^P(\d+)\(.*?\)\s*\{(.*?)^\}", re.M | re.S)
RESULT = re.compile(r"^\s*\*\s*Result:\s*(\w+)", re.M)


def without_comments(text: str) -> str:
    """A comment has white space where "(*x)" has a name."""
    return re.sub(r"\(\*\s.*?\*\)|//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def parse(text: str) -> Test:
    """Parse a test."""
    name = text.partition("\n")[0].removeprefix("C ").strip()
    result = RESULT.search(text)
    text = without_comments(text)
    setup = re.search(r"^\{(.*?)\}", text, re.M | re.S)
    exists = re.search(r"^exists\b(.*)", text, re.M | re.S)
    if not setup or not exists:
        raise Unsupported("no initial state, or nothing that could exist")
    for word in ("filter", "forall"):
        if re.search(rf"^{word}\b", text, re.M):
            raise Unsupported(word)
    initial: dict[str, Value] = {}
    for part in filter(None, map(str.strip, setup[1].split(";"))):
        target, _, value = part.partition("=")
        match = re.fullmatch(r"(?:(?:int|atomic_t|spinlock_t)\s+)?\**\s*(\w+)\s*", target)
        if not match:
            raise Unsupported(f"initial '{part}'")
        value = re.sub(r"\s*ATOMIC_INIT\((.*)\)", r"\1", value)
        initial[match[1]] = parse_value(Tokens(value)) if value else 0
    threads: list[list[Node]] = []
    for number, body in PROCESS.findall(text):
        if int(number) != len(threads):
            raise Unsupported(f"P{number} is not P{len(threads)}")
        threads.append(parse_statement(Tokens("{" + body + "}")))
    return Test(name, result[1] if result else "", initial, threads,
                parse_condition(Tokens(exists[1])))


def load(path: Path) -> Test:
    """Parse a file."""
    return parse(path.read_text(encoding="utf-8"))


# === Executing a thread =======================================================

@dataclass
class Event:
    """An access or a fence; dependencies are given as event numbers in its thread."""

    kind: str               # R, W or F
    tags: frozenset[str]
    location: str = ""
    value: Value = 0
    addr: frozenset[int] = frozenset()
    data: frozenset[int] = frozenset()
    ctrl: frozenset[int] = frozenset()
    partner: int = -1       # of a write: the read of the same atomic operation


@dataclass
class Trace:
    """One path through a thread."""

    events: list[Event] = field(default_factory=list)
    registers: dict[str, Value] = field(default_factory=dict)


FENCES = {"smp_mb": "mb", "smp_rmb": "rmb", "smp_wmb": "wmb", "barrier": "barrier",
          "smp_mb__before_atomic": "before-atomic", "smp_mb__after_atomic": "after-atomic",
          "smp_mb__after_spinlock": "after-spinlock",
          "smp_mb__after_unlock_lock": "after-unlock-lock",
          "rcu_read_lock": "rcu-lock", "rcu_read_unlock": "rcu-unlock",
          "synchronize_rcu": "sync-rcu", "synchronize_rcu_expedited": "sync-rcu"}
# Name: tag of the access, and whether the location is written as "*x" or "x".
READS = {"READ_ONCE": ("once", True), "rcu_dereference": ("once", True),
         "smp_load_acquire": ("acquire", False), "atomic_read": ("once", False),
         "atomic_read_acquire": ("acquire", False)}
WRITES = {"WRITE_ONCE": ("once", True), "rcu_assign_pointer": ("release", True),
          "smp_store_release": ("release", False), "atomic_set": ("once", False),
          "atomic_set_release": ("release", False)}
RMW = re.compile(r"(?:atomic_)?(xchg|cmpxchg)(_relaxed|_acquire|_release)?")

Result = tuple[Value, frozenset[int]]
NOTHING: frozenset[int] = frozenset()


class Dead(Exception):
    """This path through a thread does not end, for example at a lock that is never free."""


class Runner:
    """Runs a thread once; the caller chooses the values that reads return."""

    def __init__(self, domains: dict[str, set[Value]], choices: list[int]) -> None:
        self._domains = domains
        self._choices = choices
        self.taken: list[tuple[int, int]] = []      # (choice, of how many)
        self.trace = Trace()
        self._deps: dict[str, frozenset[int]] = {}
        self._ctrl = NOTHING

    def run(self, body: list[Node]) -> None:
        """Execute statements."""
        for statement in body:
            if statement[0] == "if":
                value, deps = self._value(statement[1])
                # Everything later in the text depends on it, as in herd7.
                self._ctrl |= deps
                self.run(statement[2] if value else statement[3])
            elif statement[0] == "set":
                value, deps = self._value(statement[2])
                self.trace.registers[statement[1]] = value
                self._deps[statement[1]] = deps
            else:
                self._call(statement[1])

    def _choose(self, options: Sequence[Value]) -> Value:
        """The option chosen by the caller, or the first."""
        if not options:
            raise Dead
        number = len(self.taken)
        choice = self._choices[number] if number < len(self._choices) else 0
        self.taken.append((choice, len(options)))
        return options[choice]

    def _value(self, node: Node) -> Result:
        """The value of an expression, and the reads that it depends on."""
        kind = node[0]
        if kind == "number":
            return node[1], NOTHING
        if kind == "name":
            if node[1] in self.trace.registers:
                return self.trace.registers[node[1]], self._deps[node[1]]
            return node[1], NOTHING     # a parameter: the address of that location
        if kind == "call":
            return self._call(node)
        if kind == "binary":
            left, left_deps = self._value(node[2])
            right, right_deps = self._value(node[3])
            return OPERATORS[node[1]](left, right), left_deps | right_deps
        if kind in ("!", "-"):
            value, deps = self._value(node[1])
            return (int(not value) if kind == "!" else -int(value)), deps
        if kind == "&":
            return self._value(node[1])
        raise Unsupported("a plain access")

    def _add(self, event: Event) -> int:
        event.ctrl = self._ctrl
        self.trace.events.append(event)
        return len(self.trace.events) - 1

    def _fence(self, tag: str) -> None:
        self._add(Event("F", frozenset([tag])))

    def _read(self, address: Result, tags: set[str], value: Value | None = None) -> Result:
        location = str(address[0])
        if value is None:
            value = self._choose(sorted(self._domains[location], key=str))
        number = self._add(Event("R", frozenset(tags), location, value, addr=address[1]))
        return value, frozenset([number])

    def _write(self, address: Result, tags: set[str], value: Result, partner: int = -1) -> None:
        self._add(Event("W", frozenset(tags), str(address[0]), value[0], addr=address[1],
                        data=value[1], partner=partner))

    def _address(self, node: Node, starred: bool) -> Result:
        if starred and node[0] != "*":
            raise Unsupported("an access to something else than *NAME")
        return self._value(node[1] if starred else node)

    def _call(self, node: Node) -> Result:
        """A primitive of the kernel."""
        _, name, arguments = node
        if name in FENCES and not arguments:
            self._fence(FENCES[name])
        elif name in READS:
            tag, starred = READS[name]
            return self._read(self._address(arguments[0], starred), {tag})
        elif name in WRITES:
            tag, starred = WRITES[name]
            self._write(self._address(arguments[0], starred), {tag}, self._value(arguments[1]))
        elif name.startswith("spin_"):
            return self._lock(name, self._value(arguments[0]))
        elif match := RMW.fullmatch(name):
            return self._exchange(match[1], match[2] or "", arguments)
        else:
            raise Unsupported(f"{name}()")
        return 0, NOTHING

    def _exchange(self, kind: str, order: str, arguments: list[Node]) -> Result:
        address = self._value(arguments[0])
        options = sorted(self._domains[str(address[0])], key=str)
        value = self._choose(options)
        if kind == "cmpxchg" and value != self._value(arguments[1])[0]:
            return self._read(address, {"once", "RMW"}, value)  # only a read
        if not order:
            self._fence("mb")
        result = self._read(address, {"acquire" if order == "_acquire" else "once", "RMW"}, value)
        self._write(address, {"release" if order == "_release" else "once", "RMW"},
                    self._value(arguments[-1]), max(result[1]))
        if not order:
            self._fence("mb")
        return result

    def _lock(self, name: str, address: Result) -> Result:
        """Spinlocks: 0 is free, 1 is taken; see lock.cat."""
        if name == "spin_unlock":
            self._write(address, {"release", "UL"}, (0, NOTHING))
            return 0, NOTHING
        if name == "spin_is_locked":
            return self._read(address, {"once"})
        if name == "spin_trylock" and self._choose([1, 0]) == 0:
            _, deps = self._read(address, {"once"}, 1)
            return 0, deps
        if name not in ("spin_lock", "spin_trylock"):
            raise Unsupported(f"{name}()")
        _, deps = self._read(address, {"acquire", "LKR"}, 0)
        self._write(address, {"once", "LKW"}, (1, NOTHING), max(deps))
        return 1, deps


OPERATORS: dict[str, Callable[..., Any]] = {
    "||": lambda a, b: int(bool(a) or bool(b)), "&&": lambda a, b: int(bool(a) and bool(b)),
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
    "+": lambda a, b: a + b, "-": lambda a, b: a - b,
}


def traces(body: list[Node], domains: dict[str, set[Value]]) -> Iterator[Trace]:
    """All paths through a thread, with reads returning values in the domains."""
    choices: list[int] = []
    while True:
        runner = Runner(domains, choices)
        try:
            runner.run(body)
            yield runner.trace
        except Dead:
            pass
        # Like an odometer: advance the last choice that has another option.
        taken = runner.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        choices = [choice for choice, _ in taken[:-1]] + [taken[-1][0] + 1]


class Domains(dict[str, set[Value]]):
    """The possible values of each location; 0 by default."""

    def __missing__(self, location: str) -> set[Value]:
        self[location] = {0}
        return self[location]


def all_traces(test: Test) -> tuple[list[list[Trace]], Domains]:
    """All paths through each thread, with every value that may be written."""
    domains = Domains({name: {value} for name, value in test.initial.items()})
    for _ in range(MAX_ROUNDS):
        before = {name: set(values) for name, values in domains.items()}
        ways = [list(traces(body, domains)) for body in test.threads]
        for trace in itertools.chain(*ways):
            for event in trace.events:
                if event.kind == "W":
                    domains[event.location].add(event.value)
        if domains == before:
            return ways, domains
    raise Unsupported("values that grow without bound")


# === Relations ================================================================

def identity(size: int) -> Relation:
    """Each event to itself."""
    return [1 << i for i in range(size)]


def union(*relations: Relation) -> Relation:
    """The union of relations."""
    result = list(relations[0])
    for relation in relations[1:]:
        result = [a | b for a, b in zip(result, relation)]
    return result


def both(left: Relation, right: Relation) -> Relation:
    """The intersection of two relations."""
    return [a & b for a, b in zip(left, right)]


def bits(mask: int) -> Iterator[int]:
    """The numbers of the set bits."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def then(first: Relation, *more: Relation) -> Relation:
    """One after the other (";" in cat)."""
    result = first
    for relation in more:
        step = []
        for row in result:
            mask = 0
            for j in bits(row):
                mask |= relation[j]
            step.append(mask)
        result = step
    return result


def inverse(relation: Relation) -> Relation:
    """The inverse relation."""
    result = [0] * len(relation)
    for i, row in enumerate(relation):
        for j in bits(row):
            result[j] |= 1 << i
    return result


def plus(relation: Relation) -> Relation:
    """One step or more ("+" in cat)."""
    result = list(relation)
    for k in range(len(result)):
        mask = result[k]
        for i, row in enumerate(result):
            if row >> k & 1:
                result[i] = row | mask
    return result


def maybe(relation: Relation) -> Relation:
    """A step or none ("?" in cat)."""
    return union(relation, identity(len(relation)))


def star(relation: Relation) -> Relation:
    """Any number of steps ("*" in cat)."""
    return maybe(plus(relation))


def only(mask: int, size: int) -> Relation:
    """The identity on a set of events ("[set]" in cat)."""
    return [1 << i if mask >> i & 1 else 0 for i in range(size)]


def reflexive(relation: Relation) -> bool:
    """Whether some event is related to itself."""
    return any(row >> i & 1 for i, row in enumerate(relation))


def cyclic(relation: Relation) -> bool:
    """Whether the relation has a cycle."""
    return reflexive(plus(relation))


# === The model ================================================================

class Candidate:
    """The events of all threads, and the relations that do not depend on reads-from."""

    def __init__(self, ways: tuple[Trace, ...], initial: Domains, first: dict[str, Value]) -> None:
        self.events = [Event("W", frozenset(["init"]), location, first.get(location, 0))
                       for location in sorted(initial)]
        thread = [-1] * len(self.events)
        offsets = []
        for number, way in enumerate(ways):
            offsets.append(len(self.events))
            self.events += way.events
            thread += [number] * len(way.events)
        self.size = size = len(self.events)
        self._by_tag: dict[str, int] = {}
        for i, event in enumerate(self.events):
            for tag in (event.kind, *event.tags):
                self._by_tag[tag] = self._by_tag.get(tag, 0) | 1 << i
        span = range(size)
        self.po = [sum(1 << j for j in span if j > i and thread[i] == thread[j] >= 0)
                   for i in span]
        self.int = [sum(1 << j for j in span if thread[i] == thread[j] >= 0) for i in span]
        self.ext = [((1 << size) - 1) & ~row & ~(1 << i) for i, row in enumerate(self.int)]
        self.loc = [sum(1 << j for j in span if self.events[i].location and
                        self.events[i].location == self.events[j].location) for i in span]
        self.addr, self.data, self.ctrl, self.rmw = ([0] * size for _ in range(4))
        for offset, way in zip(offsets, ways):
            for number, event in enumerate(way.events):
                bit = 1 << (offset + number)
                for relation, sources in ((self.addr, event.addr), (self.data, event.data),
                                          (self.ctrl, event.ctrl)):
                    for source in sources:
                        relation[offset + source] |= bit
                if event.partner >= 0:
                    self.rmw[offset + event.partner] |= bit
        self._fences()

    def tagged(self, tag: str) -> Relation:
        """The identity on the events with a tag."""
        return only(self._by_tag.get(tag, 0), self.size)

    def _fences(self) -> None:
        """Relations of fences, acquire and release; as in linux-kernel.cat."""
        po, at = self.po, self.tagged
        memory = union(at("R"), at("W"))

        def fence(left: Relation, tag: str, right: Relation) -> Relation:
            return then(left, po, at(tag), po, right)

        step = at("RMW")
        self.rmb = fence(at("R"), "rmb", at("R"))
        self.wmb = fence(at("W"), "wmb", at("W"))
        mb = union(fence(memory, "mb", memory),
                   then(memory, po, at("before-atomic"), po, step, maybe(po), memory),
                   then(memory, maybe(po), step, po, at("after-atomic"), po, memory),
                   then(memory, maybe(po), at("LKW"), po, at("after-spinlock"), po, memory))
        # The grace period itself is included: it takes the place of a fence.
        gp = then(po, at("sync-rcu"), maybe(po))
        self._strong_without_locks = union(mb, gp)
        self.acq_po = then(at("acquire"), po, memory)
        self.po_rel = then(memory, po, at("release"))
        self.rscs = [0] * self.size
        for i in range(self.size):
            if "rcu-lock" not in self.events[i].tags:
                continue
            depth = 0
            for j in bits(po[i] | 1 << i):
                depth += ("rcu-lock" in self.events[j].tags) - (
                    "rcu-unlock" in self.events[j].tags)
                if depth == 0:
                    self.rscs[i] = 1 << j
                    break
            else:
                raise Unsupported("rcu_read_lock() without rcu_read_unlock()")

    def allowed(self, rf: Relation, co: Relation) -> bool:
        """Whether the model allows this execution."""
        po, at, size = self.po, self.tagged, self.size
        fr = [row & ~(1 << i) for i, row in enumerate(then(inverse(rf), co))]
        if cyclic(union(both(po, self.loc), rf, co, fr)):
            return False
        if any(both(self.rmw, then(both(fr, self.ext), both(co, self.ext)))):
            return False

        rfe, rfi = both(rf, self.ext), both(rf, self.int)
        handover = then(po, at("UL"), union(po, rf), at("LKR"), po)
        memory = union(at("R"), at("W"))
        strong = union(self._strong_without_locks,
                       then(memory, handover, at("after-unlock-lock"), po, memory))
        fence = union(strong, self.po_rel, self.acq_po, self.wmb, self.rmb)
        overwrite = union(co, fr)
        dep = union(self.addr, self.data)
        to_w = union(then(union(dep, self.ctrl), at("W")), both(overwrite, self.int))
        to_r = union(then(self.addr, at("R")), then(dep, rfi))
        ppo = union(to_r, to_w, both(fence, self.int), both(handover, self.int))
        cumul = then(union(then(maybe(rfe), union(strong, self.po_rel)), self.wmb, handover),
                     star(then(rf, self.rmw)))
        prop = then(maybe(both(overwrite, self.ext)), star(cumul), maybe(rfe))
        hb = union(ppo, rfe, [row & self.int[i] & ~(1 << i) for i, row in enumerate(prop)])
        if cyclic(hb):
            return False
        pb = then(prop, strong, star(hb))
        if cyclic(pb):
            return False
        if not any(at("sync-rcu")):
            return True

        gp, rscsi = at("sync-rcu"), inverse(self.rscs)
        after = then(star(hb), star(pb))
        link = then(maybe(po), after, prop, po)
        order = gp
        while True:
            more = union(order, then(gp, link, rscsi), then(rscsi, link, gp),
                         then(gp, link, order, link, rscsi), then(rscsi, link, order, link, gp),
                         then(order, link, order))
            if more == order:
                break
            order = more
        return not reflexive(then(prop, po, order, maybe(po), after)[:size])

    def executions(self) -> Iterator[tuple[Relation, Relation, dict[str, Value]]]:
        """All combinations of reads-from and coherence order, with the final values."""
        writes: dict[str, list[int]] = {}
        for i, event in enumerate(self.events):
            if event.kind == "W":
                writes.setdefault(event.location, []).append(i)
        reads = [i for i, event in enumerate(self.events) if event.kind == "R"]
        sources = [[w for w in writes[self.events[r].location]
                    if self.events[w].value == self.events[r].value] for r in reads]
        orders = [[order for order in itertools.permutations(these) if self._in_order(order)]
                  for these in writes.values()]
        for chosen_sources in itertools.product(*sources):
            rf = [0] * self.size
            for source, target in zip(chosen_sources, reads):
                rf[source] |= 1 << target
            for chosen in itertools.product(*orders):
                co = [0] * self.size
                final: dict[str, Value] = {}
                for order in chosen:
                    final[self.events[order[-1]].location] = self.events[order[-1]].value
                    for place, write in enumerate(order):
                        co[write] = sum(1 << later for later in order[place + 1:])
                yield rf, co, final

    def _in_order(self, order: tuple[int, ...]) -> bool:
        """The initial write is first, and writes of a thread are in program order."""
        return "init" in self.events[order[0]].tags and not any(
            self.po[later] >> earlier & 1
            for place, earlier in enumerate(order) for later in order[place + 1:])


def holds(condition: Node, state: dict[str, Value]) -> bool:
    """Whether a condition is true in a final state."""
    if condition[0] == "is":
        if condition[1] not in state:
            # A register that this path through the thread did not set.
            return bool(condition[2] == 0 and ":" in condition[1])
        return bool(state[condition[1]] == condition[2])
    if condition[0] == "not":
        return not holds(condition[1], state)
    results = (holds(part, state) for part in condition[1:])
    return all(results) if condition[0] == "and" else any(results)


@dataclass
class Verdict:
    """How many of the allowed executions have the outcome, and how many do not."""

    positive: int = 0
    negative: int = 0

    def __str__(self) -> str:
        if not self.positive:
            return "Never" if self.negative else "No execution"
        return "Sometimes" if self.negative else "Always"


def judge(test: Test) -> Verdict:
    """Try all candidate executions."""
    ways, domains = all_traces(test)
    verdict = Verdict()
    for combination in itertools.product(*ways):
        registers = {f"{number}:{name}": value for number, trace in enumerate(combination)
                     for name, value in trace.registers.items()}
        candidate = Candidate(combination, domains, test.initial)
        for rf, co, final in candidate.executions():
            if candidate.allowed(rf, co):
                if holds(test.exists, registers | final):
                    verdict.positive += 1
                else:
                    verdict.negative += 1
    return verdict


# === Weakening ================================================================

# Primitives that may be left out or weakened, and their replacements.
WEAKER = [(re.compile(pattern, re.S), weaker) for pattern, weaker in (
    (r"(?:smp_\w*mb\w*|synchronize_rcu\w*)\(\);", ""),
    (r"smp_load_acquire\((\w+)\)", r"READ_ONCE(*\1)"),
    (r"smp_store_release\((\w+), (\w+)\)", r"WRITE_ONCE(*\1, \2)"),
    (r"rcu_assign_pointer\((\*\w+), (\w+)\)", r"WRITE_ONCE(\1, \2)"),
    (r"spin_lock\((\w+)\);\s*spin_unlock\(\1\);", ""),
)]
RCU_SECTION = re.compile(r"rcu_read_(?:un)?lock\(\);")


def weakened(text: str) -> Iterator[tuple[str, str]]:
    """Variants of the test without one of its barriers: the missing one, and the text."""
    text = without_comments(text)
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
