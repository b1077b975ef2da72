# SPDX-License-Identifier: GPL-2.0-only
"""The experiment file; see faultline-experiment(5)."""
from __future__ import annotations

import dataclasses
import difflib
import math
import pathlib
import re
import tomllib
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from . import Error
from .switches import acts_at_once, switches
from .windows import EXAMPLES, Window, window

# A change of a switch interrupts every CPU.
MIN_SLOT = 60
# The load of a day has hours that differ.
MIN_DURATION = "24h"
# Some thirty years, in seconds.
LONGEST = 1e9
LARGEST = 1e15
UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
# A host that is not set back for so long is a host that was forgotten.
LONGEST_EXPIRES = 30 * 86400
MIN_WASHOUT = 5
LARGEST_FLEET = 100000
MAX_MARGIN = 0.5
# More hosts than that may not be missing, or the values that are left say little.
MAX_MISSING = 0.2
CANARY = ("1", "5%")
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "{options}", "--", "{address}",
       "{command}")


def seconds(text: str) -> int:
    """The number of seconds in a duration such as 90s, 10min, 48h or 2d."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h|d)", text)
    value = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 1 <= value <= LONGEST or value != int(value):
        raise ValueError(f"'{text}' is not a duration: write 90s, 10min, 48h or 2d")
    return int(value)


def in_words(duration: float) -> str:
    """A duration for people."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration >= size * (2 if unit == "d" else 1):
            return f"{duration / size:.3g} {unit}"
    return f"{duration:.0f} s"


def fraction(text: str) -> float:
    """The fraction in a percentage such as 1%."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", text)
    value = float(match[1]) / 100 if match else 0.0
    if not 0 < value < 1:
        raise ValueError(f"'{text}' is not a percentage above 0% and below 100%: write 1%")
    return value


def relative(effect: float) -> float:
    """The logarithm of a ratio as a fraction; infinity for one that no number can hold."""
    return math.expm1(effect) if effect < 700 else math.inf


@dataclasses.dataclass(frozen=True)
class Metric:
    """A query with one value for each host, and which direction is better.

    The values of a ratio are positive, and its effects are logarithms; those of a count
    may be 0, and its effects are differences.
    """

    query: str
    better: str
    margin: float
    name: str
    kind: str = "ratio"

    @property
    def harm(self) -> int:
        """The sign of an effect that does harm."""
        return 1 if self.better == "lower" else -1

    @property
    def harm_margin(self) -> float:
        """The most harmful effect that is accepted."""
        harm = self.harm * self.margin
        return math.log1p(harm) if self.kind == "ratio" else harm

    def value(self, effect: float) -> float:
        """An effect as a fraction, or as a difference of counts."""
        return relative(effect) if self.kind == "ratio" else effect

    def in_words(self, effect: float) -> str:
        """An effect for people."""
        if not math.isfinite(self.value(effect)):
            return "an unknown effect"
        return f"{self.value(effect):+.2%}" if self.kind == "ratio" else \
            f"{effect:+.3g} per host and slot"


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A counter of the kernel that moves when the switch has something to do."""

    query: str
    min: float
    # The arm in which it does.
    arm: str


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The values to compare, the hosts, the design and the metrics."""

    name: str
    switch: str
    a: int
    b: int
    design: str
    slot: int
    washout: int
    expires: int
    duration: int
    min_duration: int
    unit: str
    strata: tuple[str, ...]
    prometheus: str
    inventory: str
    host_label: str
    selector: str
    max_hosts: int
    isolated_cpus: bool
    restart: str
    alerts: tuple[str, ...]
    blackout: tuple[Window, ...]
    canary: tuple[str, ...]
    allow_missing: float
    transport: tuple[str, ...]
    primary: Metric
    guards: tuple[Metric, ...]
    mechanism: Mechanism

    @property
    def window(self) -> int:
        """The seconds of a slot that count."""
        return self.slot - self.washout


class Table:
    """A table of the file, with errors that name the key."""

    def __init__(self, values: Any, where: str, known: Iterable[str]) -> None:
        if not isinstance(values, dict):
            raise Error(f"{where}must be a table")
        self._values = values
        self._where = where
        known = list(known)
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise Error(f"{where}unknown key '{key}'" + (
                    f": do you mean '{near[0]}'?" if near
                    else f": the keys here are {', '.join(known)}"))

    def fail(self, key: str, what: str) -> Error:
        """An error about a key."""
        return Error(f"{self._where}{key}: {what}")

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """A string that is not empty."""
        value = self._values.get(key, default)
        if value is None:
            raise self.fail(key, "is missing")
        if not isinstance(value, str) or not (value.strip() or value == default):
            raise self.fail(key, "must be text in quotes")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        value = self._values.get(key, default)
        if value is None:
            raise self.fail(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) \
                or not abs(value) <= LARGEST:
            raise self.fail(key, f"must be a number, at most {LARGEST:.0e}")
        result: float = value
        return result

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self.number(key, default)
        if value < 0 or value != int(value):
            raise self.fail(key, "must be a whole number, 0 or more")
        return int(value)

    def flag(self, key: str) -> bool:
        """True or false; false if it is not there."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.fail(key, "must be true or false")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of a few words."""
        value = self.text(key, default)
        if value not in choices:
            raise self.fail(key, f"is '{value}', and can be {' or '.join(choices)}")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of strings."""
        value = self._values.get(key, list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) and item
                                                  for item in value):
            raise self.fail(key, "must be a list of texts in quotes")
        return tuple(value)

    def seconds(self, key: str, default: str | None = None) -> int:
        """A duration."""
        try:
            return seconds(self.text(key, default))
        except ValueError as err:
            raise self.fail(key, str(err)) from None

    def fraction(self, key: str) -> float:
        """A percentage."""
        try:
            return fraction(self.text(key))
        except ValueError as err:
            raise self.fail(key, str(err)) from None

    def query(self) -> str:
        """A query with $slot."""
        value = self.text("query")
        if not re.search(r"\[\$slot[\]:]", value):
            raise self.fail("query", "does not contain [$slot], which stands for the part of a "
                            "slot that counts: write rate(x[$slot]) or avg_over_time(x[$slot])")
        return value


def metric(values: Any, where: str, guard: bool = False) -> Metric:
    """Read [primary] or a [[guard]]."""
    table = Table(values, where, ("query", "better", "margin", "name") + ("kind",) * guard)
    query = table.query()
    kind = table.choice("kind", ("ratio", "count"), "ratio")
    margin = table.fraction("margin") if kind == "ratio" else table.number("margin")
    if kind == "ratio" and margin > MAX_MARGIN:
        raise table.fail("margin", f"is more than {MAX_MARGIN:.0%}: no effect would matter")
    if margin <= 0:
        raise table.fail("margin", "must be above 0: the number per host and slot that is accepted")
    return Metric(query, table.choice("better", ("lower", "higher")), margin,
                  table.text("name", query), kind)


def blackouts(table: Table) -> tuple[Window, ...]:
    """Read the blackout windows."""
    found = []
    for text in table.texts("blackout"):
        try:
            found.append(window(text))
        except (ValueError, OverflowError) as err:
            zone = f": {err}" if "time zone" in str(err) else ""
            raise table.fail("blackout", f"'{text}' is not a window{zone}: write {EXAMPLES}") \
                from None
    return tuple(found)


def command_of(table: Table) -> tuple[str, ...]:
    """Read the words of a transport."""
    words = table.texts("command", SSH)
    for names in (("command", "quoted"), ("address", "host")):
        if not any(f"{{{name}}}" in word for name in names for word in words):
            raise table.fail("command", f"has no \"{{{names[0]}}}\" among its words")
    return words


def server_url(table: Table) -> str:
    """Read the address of Prometheus."""
    url = table.text("prometheus", "http://localhost:9090")
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() \
            and " " not in url and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good:
        raise table.fail("prometheus", f"'{url}' is not an address: write https://HOST:PORT")
    if "@" in parts.netloc:
        raise table.fail("prometheus", "has a password, and everybody can read a plan: put it into "
                         "[[prometheus]] of the configuration, see faultline-experiment(5)")
    return url


MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'
SELECTOR = re.compile(rf"\s*(?:{MATCHER}\s*(?:,\s*{MATCHER}\s*)*,?\s*)?")
ALERT = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_:]*)(?:\{{({SELECTOR.pattern})\}})?")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
KEYS = ("name", "switch", "a", "b", "design", "slot", "washout", "expires", "duration",
        "min_duration", "unit", "strata",
        "prometheus", "inventory", "host_label", "selector", "max_hosts", "isolated_cpus",
        "restart", "alerts", "blackout", "canary", "allow_missing", "transport", "primary",
        "guard", "mechanism")


def parse(values: Mapping[str, Any], where: str) -> Experiment:
    """Make an Experiment of the contents of a file; where starts each error."""
    table = Table(values, where, KEYS)
    name = table.text("name")
    if not NAME.fullmatch(name):
        raise table.fail("name", "use up to 64 letters, digits, '.', '_' and '-'")
    switch = table.text("switch")
    if switch not in switches():
        near = difflib.get_close_matches(switch, switches(), 1)
        raise table.fail("switch", f"'{switch}' is not a switch of the Faultline kernel: " + (
            f"do you mean '{near[0]}'?" if near else f"there are {', '.join(switches())}"))
    limits = switches()[switch]
    arms = [table.integer("a"), table.integer("b")]
    for key, value in zip("ab", arms):
        if not limits.low <= value <= limits.high:
            raise table.fail(key, f"{value} is out of range: {switch} takes "
                             f"{limits.low} to {limits.high}")
    if arms[0] == arms[1]:
        raise table.fail("b", "is the same as a: there is nothing to compare")
    design = table.choice("design", ("switchback", "parallel"), "switchback")
    if design == "switchback" and not acts_at_once(switch, *arms):
        raise table.fail("design", f"{switch} between {arms[0]} and {arms[1]} acts on new "
                         "mappings only, so a host cannot alternate: use design = \"parallel\" "
                         "and name the service to restart in restart")
    restart = table.text("restart", "")
    if restart and not re.fullmatch(r"[A-Za-z0-9@._:\\-]+\.service", restart):
        raise table.fail("restart", f"'{restart}' is not the name of a unit: write x.service")
    if not restart and not acts_at_once(switch, *arms):
        raise table.fail("restart", f"is missing: {switch} between {arms[0]} and {arms[1]} acts "
                         "on new mappings only, so the service must restart in both arms")
    if restart and design == "switchback":
        raise table.fail("restart", "is for design = \"parallel\" only")
    slot, washout = table.seconds("slot"), table.seconds("washout")
    if slot < MIN_SLOT:
        raise table.fail("slot", f"is shorter than {MIN_SLOT} s, and each change of a switch "
                         "interrupts every CPU: use 5min or more")
    if washout < MIN_WASHOUT:
        raise table.fail("washout", f"is shorter than {MIN_WASHOUT} s, in which clocks differ and "
                         "the load does not settle: use 30s or more")
    if washout > slot / 2:
        raise table.fail("washout", "is more than half of the slot")
    expires = table.seconds("expires")
    duration = table.seconds("duration") if table.has("duration") else 0
    if duration % (2 * slot):
        raise table.fail("duration", f"is not a multiple of two slots ({in_words(2 * slot)})")
    min_duration = table.seconds("min_duration", MIN_DURATION)
    if duration and table.has("min_duration") and duration < min_duration:
        raise table.fail("duration", "is shorter than min_duration")
    if max(duration, 8 * slot) > expires:
        raise table.fail("expires", "is earlier than the end of the experiment")
    if expires > LONGEST_EXPIRES:
        raise table.fail("expires", f"is more than {in_words(LONGEST_EXPIRES)}: hosts that cannot "
                         "be reached would keep switching")
    hosts = table.integer("max_hosts", 1000)
    if hosts > LARGEST_FLEET:
        raise table.fail("max_hosts", f"is more than {LARGEST_FLEET}")
    selector = table.text("selector", "")
    if not SELECTOR.fullmatch(selector):
        raise table.fail("selector", f"'{selector}' is not a list of label matchers: write "
                         "job=\"node\", without braces")
    for alert in table.texts("alerts"):
        if not ALERT.fullmatch(alert):
            raise table.fail("alerts", f"'{alert}' is not an alert: write HighErrorRate, or "
                             "HighErrorRate{cluster=\"db\"}")
    canary = table.texts("canary", CANARY)
    for stage in canary:
        if not re.fullmatch(r"[1-9][0-9]{0,4}|(?:[1-9]|[1-4][0-9]|50)%", stage):
            raise table.fail("canary", f"'{stage}' is neither a number of hosts nor a percentage "
                             "up to 50%: write [\"1\", \"5%\"], or [] for none")
    missing = table.fraction("allow_missing") if table.has("allow_missing") else 0.0
    if missing > MAX_MISSING:
        raise table.fail("allow_missing", f"is more than {MAX_MISSING:.0%}")
    mechanism = Table(values.get("mechanism", {}), f"{where}mechanism: ", ("query", "min", "arm"))
    transport = Table(values.get("transport", {}), f"{where}transport: ", ("command",))
    command = command_of(transport)
    guards = values.get("guard", [])
    if not isinstance(guards, list):
        raise Error(f"{where}guard: write [[guard]], with two brackets")
    minimum = mechanism.number("min")
    if minimum <= 0:
        raise mechanism.fail("min", "must be above 0, or a switch without anything to do passes")
    return Experiment(
        name, switch, arms[0], arms[1], design, slot, washout, expires, duration, min_duration,
        table.choice("unit", ("host", "stratum"), "host"),
        table.texts("strata"), server_url(table),
        table.text("inventory", "inventory.ini"), table.text("host_label", "instance"),
        selector, hosts, table.flag("isolated_cpus"), restart, table.texts("alerts"),
        blackouts(table), canary, missing, command,
        metric(values.get("primary", {}), f"{where}primary: "),
        tuple(metric(guard, f"{where}guard {number}: ", True)
              for number, guard in enumerate(guards, start=1)),
        # The stock value does nothing of its own.
        Mechanism(mechanism.query(), minimum, mechanism.choice(
            "arm", ("a", "b"), "a" if arms[1] == limits.stock else "b")))


def load(path: pathlib.Path) -> tuple[Experiment, dict[str, Any]]:
    """Read a file; also returns its contents."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as err:
        raise Error(f"cannot read {path}: {err.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise Error(f"{path}: {err}") from None
    except RecursionError:
        raise Error(f"{path}: brackets are nested too deep") from None
    return parse(values, f"{path}: "), values
