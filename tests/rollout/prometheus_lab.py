# SPDX-License-Identifier: GPL-2.0-only
"""Debian's Prometheus for tests."""
from __future__ import annotations

import pathlib
import platform
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable

from faultline.testing import fetched


def programs() -> pathlib.Path:
    """The folder with Debian's prometheus and promtool; a package would start a service."""
    if found := shutil.which("promtool"):
        return pathlib.Path(found).parent
    return fetched.folder_of(
        "prometheus", platform.freedesktop_os_release()["VERSION_CODENAME"],
        {"prometheus": ("./usr/bin/prometheus", "./usr/bin/promtool")}, 20,
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
    """Ports on 127.0.0.1 that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def ready(url: str) -> bool:
    """Whether Prometheus answers."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait up to two minutes."""
    for _ in range(600):
        if condition():
            return
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise AssertionError("Prometheus did not start")
