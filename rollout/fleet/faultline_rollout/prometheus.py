# SPDX-License-Identifier: GPL-2.0-only
"""Values of hosts, from the HTTP API of Prometheus."""
from __future__ import annotations

import dataclasses
import http.client
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import Error
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
        address = f"{self.url.rstrip('/')}/api/v1/{path}"
        body = urllib.parse.urlencode(parameters).encode()
        problem = ""
        for attempt in range(3):
            if attempt:
                time.sleep(0.5 * attempt)
            try:
                with urllib.request.urlopen(address, body, timeout=LIMIT) as answer:
                    return _series(json.load(answer)["data"]["result"])
            except urllib.error.HTTPError as err:
                problem = f"HTTP status {err.code}"
                try:
                    told = json.load(err)["error"]
                except (ValueError, KeyError, TypeError):
                    told = ""
                if err.code in (400, 422):
                    raise Error(f"Prometheus refuses the query {parameters.get('query')}: "
                                f"{told or problem}") from None
            except (OSError, http.client.HTTPException) as err:
                problem = str(getattr(err, "reason", err)) or type(err).__name__
            except (ValueError, KeyError, TypeError):
                raise Error(f"{self.url} does not answer like Prometheus: check the key "
                            "prometheus in the experiment file") from None
        raise Error(f"Prometheus at {self.url} cannot be reached ({problem}): start it, or "
                    "correct the key prometheus in the experiment file")

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
        """Those of the alerts that fire now."""
        answer = self.ask("query", query='ALERTS{alertstate="firing"}')
        names = {series["metric"].get("alertname", "") for series in answer}
        return [alert for alert in alerts if alert in names]

    def unknown(self, alerts: Sequence[str]) -> list[str]:
        """Those of the alerts that no rule has; none if this server does not tell its rules."""
        try:
            with urllib.request.urlopen(f"{self.url.rstrip('/')}/api/v1/rules?type=alert",
                                        timeout=LIMIT) as answer:
                known = {rule["name"] for group in json.load(answer)["data"]["groups"]
                         for rule in group["rules"]}
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return []
        return [alert for alert in alerts if alert not in known] if known else []


def _series(result: Any) -> list[Any]:
    """The series of a vector or matrix; ValueError if it is something else."""
    if not isinstance(result, list):
        raise ValueError
    for series in result:
        values = series["values"] if "values" in series else [series["value"]]
        if not isinstance(series["metric"], dict) or not values:
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
