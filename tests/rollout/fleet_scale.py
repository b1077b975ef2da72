# SPDX-License-Identifier: GPL-2.0-only
"""Time plan, start, a look and stop of faultline-rollout with thousands of simulated hosts.

Instead of ssh, a shell answers as faultline-ab would; a server has values of all hosts.

    PYTHONPATH=tools:tests:rollout/fleet python3 tests/rollout/fleet_scale.py --hosts 5000
"""
from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import urllib.parse

import numpy as np

from rollout import fleet_lab

SSH = """#!/bin/sh
# ssh ADDRESS COMMAND: each host takes every plan, and runs it.
case $2 in
*--dry-run*) exec date +%s ;;
*status*) echo '{"experiments": []}' ;;
*) exec cat >/dev/null ;;
esac
"""


@functools.cache
def noise(hosts: int) -> list[str]:
    """Some values of a latency, for each host."""
    found = np.random.default_rng(1).lognormal(0, 0.04, hosts * 8)
    return [f"{value:.6f}" for value in found]


def series(hosts: int, query: str, moments: list[float]) -> list[dict[str, object]]:
    """The answer of Prometheus to a query."""
    def value(host: int, moment: float) -> str:
        if "latency" in query:
            return noise(hosts)[(host * 7 + int(moment) // 60 * 13) % (8 * hosts)]
        if "max_over_time(node_time" in query:
            return str(moment)
        return "0" if "abs(" in query or "sysctl" in query or "oom" in query else "1"

    return [{"metric": {"instance": f"h{host}:9100", "release": "6.12"},
             "values": [[moment, value(host, moment)] for moment in moments]}
            for host in range(hosts)]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers queries of a range."""

    hosts = 0

    def do_POST(self) -> None:
        """Answer."""
        fields = dict(urllib.parse.parse_qsl(self.rfile.read(
            int(self.headers["Content-Length"])).decode()))
        first, last, step = (float(fields[key]) for key in ("start", "end", "step"))
        moments = [first + number * step for number in range(int((last - first) // step) + 1)]
        body = json.dumps({"status": "success", "data": {"result": series(
            self.hosts, fields["query"], moments)}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Time each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=5000)
    hosts = parser.parse_args().hosts
    Handler.hosts = hosts
    with tempfile.TemporaryDirectory() as name, \
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder = pathlib.Path(name)
        (folder / "ssh").write_text(SSH)
        (folder / "ssh").chmod(0o755)
        (folder / "rollout.toml").write_text(
            f'[transport]\ncommand = ["{folder}/ssh", "{{address}}", "{{command}}"]\n')
        (folder / "inventory.ini").write_text("".join(
            f"h{host} ansible_host=10.{host >> 16}.{host >> 8 & 255}.{host & 255} "
            f"instance=h{host}:9100\n" for host in range(hosts)))
        (folder / "x.toml").write_text(f"""\
name = "x"
switch = "{fleet_lab.SWITCH}"
a = 0
b = 1
slot = "5min"
washout = "1min"
duration = "2h"
expires = "4h"
max_hosts = {hosts}
canary = []
prometheus = "http://127.0.0.1:{server.server_port}"
primary = {{query = "avg_over_time(latency[$slot])", better = "lower", margin = "1%"}}
mechanism = {{query = "rate(node_vmstat_spf_anon[$slot])", min = 1}}
""")
        env = os.environ | {"FAULTLINE_ROLLOUT_CONFIG": str(folder / "rollout.toml")}
        for title, *words in (
                ("plan", "plan", "x.toml", "--history", "1d"), ("start", "start", "x.plan.json"),
                ("one look at the values", "status", "x.plan.json", "--no-hosts",
                 "--start", "LATE"),
                ("one look at values and hosts", "status", "x.plan.json", "--start", "LATE"),
                ("stop", "stop", "x.plan.json")):
            words = [word if word != "LATE" else str(int(time.time()) - 4000) for word in words]
            begun, used = time.monotonic(), sum(os.times()[2:4])
            done = subprocess.run([fleet_lab.FLEET / "faultline-rollout", *words], cwd=folder,
                                  env=env, capture_output=True, text=True, check=False)
            took = time.monotonic() - begun
            used = sum(os.times()[2:4]) - used
            print(f"{title}: {took:.1f} s, {used:.1f} s of CPU, exit status {done.returncode}",
                  flush=True)
            if done.returncode == 2:
                raise SystemExit(done.stderr)


if __name__ == "__main__":
    main()
