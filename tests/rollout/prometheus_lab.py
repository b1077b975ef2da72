# SPDX-License-Identifier: GPL-2.0-only
"""Debian's Prometheus for tests, and a server that answers like one."""
from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import platform
import random
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

from lib import fetched


def programs() -> pathlib.Path:
    """The folder with Debian's prometheus and promtool; a package would start a service."""
    if (found := shutil.which("prometheus")) and shutil.which("promtool"):
        return pathlib.Path(found).parent
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    packages = {"prometheus": ["./usr/bin/prometheus"]}
    # It has a package of its own since Debian 13.
    packages.setdefault("prometheus" if suite == "bookworm" else "promtool", []).append(
        "./usr/bin/promtool")
    return fetched.folder_of("prometheus", suite, packages, 20 * len(packages),
                             "install prometheus") / "usr/bin"


def node_exporter() -> pathlib.Path:
    """Debian's node_exporter; its package would start a service."""
    if found := shutil.which("prometheus-node-exporter"):
        return pathlib.Path(found)
    return fetched.folder_of(
        "node-exporter", platform.freedesktop_os_release()["VERSION_CODENAME"],
        {"prometheus-node-exporter": ("./usr/bin/prometheus-node-exporter",)}, 5,
        "install prometheus-node-exporter") / "usr/bin/prometheus-node-exporter"


def free_ports(count: int) -> list[int]:
    """Free ports on 127.0.0.1, outside the range of ephemeral ports."""
    low, high = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    others = [*range(10000, low), *range(high + 1, 65536)]
    found: list[int] = []
    for port in random.SystemRandom().sample(others, len(others)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"{count} ports are not free")


def ready(url: str) -> bool:
    """Whether Prometheus answers."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait up to two minutes."""
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"Prometheus ended with status {process.returncode}"
        assert time.monotonic() < end, "Prometheus is not ready after two minutes"
        time.sleep(0.2)


@contextlib.contextmanager
def serving(answer: Callable[[int], tuple[int, bytes]], rules: bytes = b"") -> Iterator[str]:
    """A server whose answer to the n-th query is answer(n); gives its address."""
    count = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        """One question."""

        def do_POST(self) -> None:
            """Answer a query."""
            nonlocal count
            self.rfile.read(int(self.headers["Content-Length"]))
            status, text = answer(count)
            count += 1
            self.tell(status, text)

        def do_GET(self) -> None:
            """Answer with the rules, if there are any."""
            self.tell(200 if rules else 404, rules)

        def tell(self, status: int, text: bytes) -> None:
            """Send an answer."""
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Keep requests out of the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def answer_of(result: object, kind: str = "matrix") -> bytes:
    """Prometheus' answer with a result."""
    return json.dumps({"status": "success", "data": {"resultType": kind,
                                                     "result": result}}).encode()
