# SPDX-License-Identifier: GPL-2.0-only
"""Values of hosts, from the HTTP API of Prometheus."""
from __future__ import annotations

import base64
import dataclasses
import functools
import http.client
import json
import math
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import Error, config
from .hosts import Host
from .types import Array

# Prometheus refuses more points per series than 11000.
POINTS = 10000
LIMIT = 60
# Seconds by which the moment of a value may differ from the one that was asked for.
MOVED = 0.1


@dataclasses.dataclass(frozen=True)
class Prometheus:
    """A server."""

    url: str
    label: str = "instance"

    def ask(self, path: str, **parameters: object) -> list[Any]:
        """The series that a query gives."""
        body = urllib.parse.urlencode(parameters).encode()
        try:
            answer = self._get(path, body, str(parameters.get("query")))
            warnings = [text for text in answer.get("warnings") or ()
                        # Before version 3 these were warnings, too.
                        if not str(text).startswith("PromQL info")]
            found = _series(answer["data"]["result"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise Error(f"{self.url} does not answer like Prometheus: check the key "
                        "prometheus in the experiment file") from None
        if warnings:
            raise Error(f"{self.url} warns that its answer is not complete: {warnings[0]}: values "
                        "of a part of the hosts would mislead; try again when it is whole")
        return found

    def _get(self, path: str, body: bytes | None = None, query: str = "") -> Any:
        """Ask, up to three times."""
        address = f"{self.url.rstrip('/')}/api/v1/{path}"
        server = config.server(self.url)
        problem = ""
        for attempt in range(3):
            if attempt:
                time.sleep(0.5 * attempt)
            try:
                request = urllib.request.Request(address, body, dict(server.headers))
                if server.username:
                    word = base64.b64encode(f"{server.username}:{server.password}".encode())
                    request.add_header("Authorization", f"Basic {word.decode()}")
                with _opener(server).open(request, timeout=LIMIT) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as err:
                problem = f"HTTP status {err.code}"
                self._explain(err, query)
            except (OSError, http.client.HTTPException) as err:
                # With TLS 1.3, a client hears that it is refused when it reads the answer: then it
                # is not in a URLError, and its own reason is one word.
                reason: object = err.reason if isinstance(err, urllib.error.URLError) else err
                if isinstance(reason, ssl.SSLError):
                    raise Error(f"{self.url}: TLS: {reason}: give ca_file or cert_file in "
                                f"[[prometheus]] of {config.path()}") from None
                problem = str(reason) or type(err).__name__
        raise Error(f"Prometheus at {self.url} cannot be reached ({problem}): start it, or "
                    "correct the key prometheus in the experiment file")

    def _explain(self, err: urllib.error.HTTPError, query: str) -> None:
        """Raise an error for an answer that will be the same the next time."""
        if err.code in (401, 403, 407):
            raise Error(f"{self.url} refuses access (HTTP status {err.code}): put the credentials "
                        f"for it into [[prometheus]] of {config.path()}, see "
                        "faultline-experiment(5)") from None
        if 300 <= err.code < 400:
            place = str(err.headers.get("Location", "another address")).partition("?")[0]
            raise Error(f"{self.url} redirects to {place}, as a page to sign in does: give the "
                        "address of Prometheus itself") from None
        if err.code in (400, 422):
            try:
                told = json.load(err)["error"]
            except (ValueError, KeyError, TypeError, RecursionError, OSError):
                told = f"HTTP status {err.code}"
            raise Error(f"Prometheus refuses the query {query}: {told}") from None
        if err.code in (404, 405):
            raise Error(f"{self.url} has no API of Prometheus (HTTP status {err.code}): check the "
                        "key prometheus in the experiment file") from None

    def host_of(self, hosts: Sequence[Host]) -> Callable[[dict[str, str]], int | None]:
        """A function from the labels of a series to the number of its host."""
        exact = {host.instance: number for number, host in enumerate(hosts)}
        bare: dict[str, int | None] = {}
        for place, host in enumerate(hosts):
            # Two hosts that differ by the port only.
            name = without_port(host.instance)
            bare[name] = None if name in bare else place

        def number(labels: dict[str, str]) -> int | None:
            value = labels.get(self.label, "")
            return exact.get(value, bare.get(without_port(value)))
        return number

    def series(self, query: str, first: float, last: float, step: int) -> list[Any]:
        """The series of a range query."""
        return self.ask("query_range", query=query, start=f"{first:.3f}", end=f"{last:.3f}",
                        step=step)

    def table(self, query: str, hosts: Sequence[Host], first: float, count: int,
              step: int) -> Array:
        """The values at count moments, a step apart: hosts x moments, NaN where none is."""
        values = np.full((len(hosts), count), np.nan)
        number_of = self.host_of(hosts)
        for begin in range(0, count, POINTS):
            length = min(POINTS, count - begin)
            start = first + begin * step
            owner: dict[int, dict[str, str]] = {}
            for series in self.series(query, start, start + (length - 1) * step, step):
                number = number_of(series["metric"])
                if number is None:
                    continue
                if number in owner:
                    raise Error(f"the query gives several series for host {hosts[number].name}: "
                                f"{query}: sum it by ({self.label}), or narrow the key selector "
                                "if it is not yours")
                owner[number] = series["metric"]
                for moment, text in series["values"]:
                    place, value = self._place(float(moment), start, length, step), float(text)
                    values[number, begin + place] = value if math.isfinite(value) else np.nan
        return values

    def _place(self, moment: float, start: float, count: int, step: int) -> int:
        """The number of a moment among those that were asked for."""
        place = round((moment - start) / step) if math.isfinite(moment) else -1
        # A proxy may move them to multiples of the step: that would mix the arms.
        if not 0 <= place < count or abs(start + place * step - moment) > MOVED:
            raise Error(f"{self.url} answers for other moments than it is asked for, as proxies do "
                        "that align ranges with the step: give the address of Prometheus itself")
        return place

    def texts(self, query: str, hosts: Sequence[Host], label: str, first: float,
              last: float, step: int) -> list[dict[str, float]]:
        """The values of a label over a time, and when each was seen first, for each host."""
        found: list[dict[str, float]] = [{} for _ in hosts]
        number_of = self.host_of(hosts)
        for series in self.series(query, first, last, step):
            number = number_of(series["metric"])
            if number is not None:
                text, seen = series["metric"].get(label, ""), float(series["values"][0][0])
                found[number][text] = min(seen, found[number].get(text, seen))
        return found

    def firing(self, alerts: Sequence[str]) -> list[str]:
        """Those of the alerts, with label matchers or without, that fire now."""
        found = []
        for alert in alerts:
            name, _, matchers = alert.rstrip("}").partition("{")
            labels = f'alertname="{name}",alertstate="firing"' + (
                f",{matchers}" if matchers.strip() else "")
            answer = self.ask("query", query=f"ALERTS{{{labels}}}")
            if any(series["metric"].get("alertname") == name for series in answer):
                found.append(alert)
        return found

    def unknown(self, alerts: Sequence[str]) -> list[str] | None:
        """Those of the alerts that no rule has; None if this server does not tell its rules."""
        try:
            known = {rule["name"] for group in self._get("rules?type=alert")["data"]["groups"]
                     for rule in group["rules"]}
        except (Error, ValueError, KeyError, TypeError, RecursionError):
            return None
        return [alert for alert in alerts if alert.partition("{")[0] not in known] \
            if known else None


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: it would take the credentials along, and the query would be lost."""

    def redirect_request(self, *_: Any) -> None:
        """Make an error of it."""


@functools.cache
def _opener(server: config.Server) -> urllib.request.OpenerDirector:
    """The client for a server."""
    try:
        context = ssl.create_default_context(cafile=server.ca_file or None)
        if server.cert_file:
            # With an empty password, OpenSSL does not ask for one on the terminal.
            context.load_cert_chain(server.cert_file, server.key_file or None, "")
    except (OSError, ValueError) as err:
        raise Error(f"{config.path()}: cannot read the certificates for {server.url}: "
                    f"{getattr(err, 'strerror', None) or err}") from None
    return urllib.request.build_opener(_Stay, urllib.request.HTTPSHandler(context=context))


def _series(result: Any) -> list[Any]:
    """The series of a vector or matrix; ValueError if it is something else."""
    if not isinstance(result, list):
        raise ValueError
    for series in result:
        values = series["values"] if "values" in series else [series["value"]]
        if not isinstance(series["metric"], dict) or not values or not all(
                isinstance(value, str) for value in series["metric"].values()):
            raise ValueError
        for moment, text in values:
            float(moment), float(text)
    return result


def without_port(instance: str) -> str:
    """HOST of HOST:PORT, as node_exporter's instance is; IPv6 addresses have brackets then."""
    return re.sub(r"^([^:]*|\[.*\]):\d+$", r"\1", instance)


def with_slot(query: str, seconds: int) -> str:
    """Replace $slot in a query."""
    return query.replace("$slot", f"{seconds}s")
