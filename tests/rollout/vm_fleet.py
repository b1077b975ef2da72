# SPDX-License-Identifier: GPL-2.0-only
"""A fleet of small VMs with faultline-ab, node_exporter and a load, and a Prometheus.

The VMs have a network of their own each, which reaches nothing; ports on 127.0.0.1 lead
to node_exporter and to a login without a password, both as long as the fleet runs.
"""
from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from bench.guest import compile_program
from faultline.common import ROOT
from faultline.flavour import FLAVOURS
from rollout import prometheus_lab

FL = ROOT / "tools/fl"
KERNEL = FLAVOURS["microvm"].image
SWITCH = "vm.munmap_section_kbytes"
# The sizes of the range that is unmapped and of a guest, in MiB.
RANGE, MEMORY = 128, 384
SCRAPE = 3
# Limits for a laptop that is busy with something else: to boot all VMs, and to set a clock.
BOOT_SECONDS = 600
CLOCK_SECONDS = 180
# How far off a clock may be; faultline-rollout allows one second more.
CLOCK_OFF = 1


class Problem(Exception):
    """An error message for people."""


def reach(port: int, command: str, stdin: str = "", limit: float = 60) -> tuple[int, str, str]:
    """Run a command in a VM: exit status, output and errors; 255 if it cannot be reached."""
    lines = "".join(f"{start}{base64.b64encode(text.encode()).decode()}\n"
                    for start, text in (("", command), ("-", stdin)))
    try:
        with socket.create_connection(("127.0.0.1", port), limit) as link:
            link.sendall(lines.encode())
            data = b""
            while part := link.recv(65536):
                data += part
    except OSError as err:
        return 255, "", f"port {port}: {err}"
    head, newline, rest = data.decode(errors="replace").partition("\n")
    words = head.split()
    if not newline or len(words) != 2:
        return 255, "", f"port {port}: the VM does not answer"
    size = int(words[1])
    return int(words[0]), rest[:size], rest[size:]


@dataclasses.dataclass
class Guest:
    """A VM of the fleet."""

    name: str
    login: int
    metrics: int
    folder: pathlib.Path
    process: subprocess.Popen[bytes]

    def switch(self) -> str:
        """The value of the switch."""
        return reach(self.login, f"cat /proc/sys/{SWITCH.replace('.', '/')}")[1].strip()

    def set_clock(self, end: float) -> None:
        """Set the VM's clock until it is right; `end` is the last moment to try."""
        while True:
            asked = time.time()
            status, clock, error = reach(self.login, "date +%s")
            answered = time.time()
            # A clock in whole seconds is up to one behind.
            off = (max(asked - 1 - float(clock), float(clock) - answered)
                   if not status and clock.strip().isdecimal() else None)
            if off is not None and off <= CLOCK_OFF:
                return
            if time.monotonic() > end:
                state = f"is {off:.0f} s off" if off is not None else f"cannot be read: {error}"
                raise Problem(f"after {CLOCK_SECONDS} s, the clock of {self.name} {state}: "
                              "try again when this machine is less busy")
            if self.process.poll() is not None:
                raise Problem(f"{self.name} ended: {self.problem}")
            if off is not None:
                # Relative, as it may take seconds until the VM does this.
                shift = round((asked + answered) / 2 - float(clock))
                reach(self.login, f"date -s @$(($(date +%s) + {shift}))")
            time.sleep(0.5)

    def kill(self) -> None:
        """A power cut."""
        self.process.terminate()
        self.process.wait()

    @property
    def problem(self) -> str:
        """The last lines of the VM's runner."""
        text = (self.folder / "runner.log").read_text(errors="replace").strip()
        return text[-600:] or "no message"


@dataclasses.dataclass
class Fleet:
    """VMs, and the Prometheus that scrapes them."""

    folder: pathlib.Path
    url: str = ""
    guests: list[Guest] = dataclasses.field(default_factory=list)
    _tools: tuple[pathlib.Path, ...] = ()

    def prepare(self) -> None:
        """Find or make the programs and files of the guests."""
        if not KERNEL.is_file():
            raise Problem(f"there is no kernel {KERNEL}: run 'tools/fl tree' and "
                          "'tools/fl build microvm'")
        flock = shutil.which("flock")
        if not flock:
            raise Problem("flock is missing: install util-linux")
        self._tools = (compile_program(ROOT / "rollout/bench/munmap.c"),
                       prometheus_lab.node_exporter(), pathlib.Path(flock))

    def boot(self, name: str, ports: tuple[int, int] | None = None) -> Guest:
        """Start a VM."""
        login, metrics = ports or tuple(prometheus_lab.free_ports(2))
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        files = [*self._tools, ROOT / "rollout/host/faultline-ab",
                 *(ROOT / f"rollout/host/{name}.sh"
                   for name in ("common", "owners", "plan", "state")), ROOT / "sysctl/switches",
                 ROOT / "rollout/monitoring/node_exporter.args",
                 ROOT / "tests/rollout/fleet-guest.sh"]
        network = ("user,id=net,restrict=on,"
                   f"hostfwd=tcp:127.0.0.1:{login}-10.0.2.15:22,"
                   f"hostfwd=tcp:127.0.0.1:{metrics}-10.0.2.15:9100,"
                   # The VM asks for the time when it needs it, so the answer is not stale.
                   "guestfwd=tcp:10.0.2.100:37-cmd:date +%s")
        with open(folder / "runner.log", "wb") as log:
            process = subprocess.Popen(
                [FL, "vm", "run", "--kernel", KERNEL, "--name", name, "--out", folder,
                 "--cpus", "1", "--mem", str(MEMORY), "--timeout", "0", "--quiet",
                 "--qemu-arg=-netdev", f"--qemu-arg={network}", "--qemu-arg=-device",
                 "--qemu-arg=virtio-net-pci,netdev=net,romfile=",
                 *(word for file in files for word in ("--file", str(file))),
                 "--", "sh", "fleet-guest.sh", str(RANGE), name],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        guest = Guest(name, login, metrics, folder, process)
        self.guests = [one for one in self.guests if one.name != name] + [guest]
        return guest

    def wait(self) -> None:
        """Wait until all VMs answer and Prometheus has a value of each VM's load."""
        end = time.monotonic() + BOOT_SECONDS
        missing = {guest.name for guest in self.guests}
        while missing:
            for guest in self.guests:
                if guest.process.poll() is not None:
                    raise Problem(f"{guest.name} ended: {guest.problem}")
            missing -= {row["metric"]["instance"] for row in self.ask("load_rounds_total")}
            if time.monotonic() > end:
                raise Problem(f"after {BOOT_SECONDS} s there are no values of "
                              f"{', '.join(sorted(missing))}: see {self.folder}/*/console.log")
            time.sleep(1)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The current series of a query."""
        with urllib.request.urlopen(f"{self.url}/api/v1/query?query="
                                    f"{urllib.parse.quote(query)}", timeout=30) as told:
            result: list[dict[str, Any]] = json.load(told)["data"]["result"]
        return result

    def set_clocks(self) -> None:
        """Wait until the clocks of all VMs are right: a VM on a busy machine falls behind."""
        end = time.monotonic() + CLOCK_SECONDS
        for guest in self.guests:
            guest.set_clock(end)

    def inventory(self) -> str:
        """The inventory of the fleet."""
        return "".join(f"{guest.name} ansible_host={guest.login}\n" for guest in self.guests)

    def transport(self) -> list[str]:
        """The words of the experiment file that reach a host."""
        return [sys.executable, "-B", str(pathlib.Path(__file__)), "{address}", "{command}"]

    def kill(self) -> None:
        """Cut the power of all VMs."""
        for guest in self.guests:
            guest.kill()

    def end(self) -> list[str]:
        """Let the VMs end by themselves; returns their problems."""
        for guest in self.guests:
            reach(guest.login, "touch /tmp/end", limit=10)
        problems = []
        for guest in self.guests:
            try:
                if guest.process.wait(60):
                    problems.append(f"{guest.name}: {guest.problem}")
            except subprocess.TimeoutExpired:
                problems.append(f"{guest.name} does not end")
        return problems


@contextlib.contextmanager
def fleet(folder: pathlib.Path, count: int) -> Iterator[Fleet]:
    """Boot VMs vm1, vm2, ... and a Prometheus; all of them end with the context."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = Fleet(folder)
    found.prepare()
    # The transport of the plans is this machine's, too.
    settings = folder / "rollout.toml"
    settings.write_text(f"[transport]\ncommand = {json.dumps(found.transport())}\n")
    os.environ["FAULTLINE_ROLLOUT_CONFIG"] = str(settings)
    port, *ports = prometheus_lab.free_ports(1 + 2 * count)
    with contextlib.ExitStack() as stack:
        stack.callback(found.kill)
        for number in range(count):
            found.boot(f"vm{number + 1}", (ports[2 * number], ports[2 * number + 1]))
        found.url = stack.enter_context(scrape(found, port))
        found.wait()
        found.set_clocks()
        yield found


@contextlib.contextmanager
def scrape(found: Fleet, port: int, store: str = "tsdb", *before: str) -> Iterator[str]:
    """Run a Prometheus that scrapes all VMs, behind the command words in before."""
    targets = "".join(f"  - targets: ['127.0.0.1:{guest.metrics}']\n"
                      f"    labels: {{instance: {guest.name}}}\n" for guest in found.guests)
    config = found.folder / "prometheus.yml"
    config.write_text(f"global: {{scrape_interval: {SCRAPE}s, scrape_timeout: {SCRAPE}s}}\n"
                      f"scrape_configs:\n- job_name: node\n  static_configs:\n{targets}")
    with open(found.folder / f"{store}.log", "wb") as log, subprocess.Popen(
            [*before, prometheus_lab.programs() / "prometheus", f"--config.file={config}",
             f"--storage.tsdb.path={found.folder}/{store}",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            prometheus_lab.wait_for(lambda: prometheus_lab.ready(url), process)
            yield url
        finally:
            process.terminate()


def main() -> int:
    """The transport: run a command in the VM of a port, with this program's input."""
    status, out, error = reach(int(sys.argv[1]), sys.argv[2], sys.stdin.read())
    sys.stdout.write(out)
    sys.stderr.write(error)
    return status


if __name__ == "__main__":
    sys.exit(main())
