# SPDX-License-Identifier: GPL-2.0-only
"""QEMU as a host of VMs: the memory of a guest changes beside reads of a disk that it exports.

A client reads blocks of the disk over NBD, a few at a time; an iothread of QEMU serves them, and
maps a buffer for each.  The latency is that of a read.  Meanwhile the monitor is told CHANGES
times to change memory of MIB.

A second connection to the monitor asks for the status; the longest wait for it is a fact.  QEMU's
big lock is held during a munmap or while memory is populated, so that the status waits for it
whatever the kernel does.

shared, private, hugetlb: memory is deleted, as after the removal of a DIMM, and another thread of
QEMU unmaps it.  It is a memfd, as for vhost-user or virtiofs; in huge pages; or a memfd of 2 MiB
pages from the pool, as for DPDK.

plugged: private memory is added, as when a DIMM is plugged in, and QEMU populates it.

There is no scene for background snapshots (UFFDIO_WRITEPROTECT): beside the reads of an iothread,
QEMU 7.2 hung in three of five runs, whatever the kernel.
"""

import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from timing import save, save_counters

DISK_MIB = 64
BACKENDS: dict[str, dict[str, object]] = {
    "shared": {"qom-type": "memory-backend-memfd"},
    "private": {"qom-type": "memory-backend-ram"},
    "hugetlb": {"qom-type": "memory-backend-memfd", "hugetlb": True, "hugetlbsize": 2 << 20},
    "plugged": {"qom-type": "memory-backend-ram"},
}
# Reads in flight, and their size.
DEPTH = 2
SIZE = 256 << 10
# A pause between questions for the status, in seconds.
PAUSE = 0.01

# Of the NBD protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
GREETING = b"NBDMAGICIHAVEOPT"
OPTION_EXPORT_NAME = 1
FLAGS_FIXED_NO_ZEROES = 3
REQUEST_MAGIC, REPLY_MAGIC, READ = 0x25609513, 0x67446698, 0
REQUEST, REPLY = struct.Struct(">IHHQQI"), struct.Struct(">IIQ")


def connect(path: Path, process: subprocess.Popen[bytes]) -> socket.socket:
    """Connect to a socket of QEMU, which may still be starting."""
    for _ in range(1200):
        if process.poll() is not None:
            raise SystemExit(f"QEMU ended with status {process.returncode}")
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
            time.sleep(0.1)
    raise SystemExit(f"QEMU does not answer on {path}")


class Monitor:
    """A connection to QEMU's monitor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lines = connection, connection.makefile("rb")
        self._lines.readline()
        self.call("qmp_capabilities")

    def call(self, command: str, **arguments: object) -> object:
        """Run COMMAND and return what it says."""
        text = json.dumps({"execute": command, "arguments": arguments})
        self._connection.sendall(text.encode())
        while line := self._lines.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise SystemExit(f"QEMU: {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        raise SystemExit(f"QEMU ended in {command}")


def receive(connection: socket.socket, view: memoryview) -> None:
    """Fill VIEW."""
    while view:
        got = connection.recv_into(view)
        if not got:
            raise SystemExit("QEMU closed the connection")
        view = view[got:]


class Disk:
    """A connection to the exported disk."""

    def __init__(self, connection: socket.socket, name: bytes) -> None:
        self._connection = connection
        self._data, self._reply = bytearray(SIZE), bytearray(REPLY.size)
        self._started: dict[int, float] = {}
        self._next = itertools.count()
        greeting = bytearray(len(GREETING) + 2)
        receive(connection, memoryview(greeting))
        if not greeting.startswith(GREETING):
            raise SystemExit("QEMU's server does not speak NBD")
        connection.sendall(struct.pack(">I8sII", FLAGS_FIXED_NO_ZEROES, GREETING[8:],
                                       OPTION_EXPORT_NAME, len(name)) + name)
        # The size of the disk and its flags.
        receive(connection, memoryview(bytearray(10)))

    def ask(self) -> None:
        """Send a request for the next block."""
        number = next(self._next)
        offset = number * SIZE % (DISK_MIB << 20)
        self._started[number] = time.monotonic()
        self._connection.sendall(REQUEST.pack(REQUEST_MAGIC, 0, READ, number, offset, SIZE))

    def answer(self) -> float:
        """Receive a block; return the seconds since the request for it."""
        receive(self._connection, memoryview(self._reply))
        magic, error, number = REPLY.unpack(self._reply)
        if magic != REPLY_MAGIC or error:
            raise SystemExit(f"a read of the disk failed with error {error}")
        receive(self._connection, memoryview(self._data))
        return time.monotonic() - self._started.pop(number)


def start(folder: Path) -> tuple[subprocess.Popen[bytes], Monitor, Monitor]:
    """Start QEMU with an exported disk; its files are in FOLDER."""
    (folder / "disk").write_bytes(os.urandom(1 << 20) * DISK_MIB)
    process = subprocess.Popen(
        ["qemu-system-x86_64", "-machine", "none", "-accel", "tcg", "-nodefaults",
         "-display", "none", "-object", "iothread,id=io",
         "-blockdev", f"driver=file,filename={folder}/disk,node-name=disk,read-only=on",
         *(word for name in ("first", "second")
           for word in ("-qmp", f"unix:{folder}/{name},server=on,wait=off"))],
        stdin=subprocess.DEVNULL)
    monitor = Monitor(connect(folder / "first", process))
    second = Monitor(connect(folder / "second", process))
    monitor.call("nbd-server-start", addr={"type": "unix", "data": {"path": f"{folder}/nbd"}})
    monitor.call("block-export-add", type="nbd", id="disk", iothread="io", **{"node-name": "disk"})
    return process, monitor, second


class Tasks:
    """Threads beside the reads."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[str] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:
        """Run WORK in a thread."""
        def run() -> None:
            try:
                work()
            except (SystemExit, OSError, ValueError) as err:
                self.errors.append(str(err))

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        """Wait for all of them."""
        self.stop.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise SystemExit(self.errors[0])


def measure(folder: Path, variant: str, out: str, ms: int, mib: int, changes: int) -> None:
    """Run QEMU and write the results."""
    process, monitor, second = start(folder)

    def delete(number: int) -> None:
        monitor.call("object-del", id=f"memory{number}")

    def plug(number: int) -> None:
        monitor.call("object-add", id=f"memory{number}", size=mib << 20, prealloc=True,
                     **BACKENDS[variant])

    if variant == "plugged":
        fact, change = "memory_added", plug
    else:
        fact, change = "memory_deleted", delete
        for number in range(changes):
            plug(number)
    disk = Disk(connect(folder / "nbd", process), b"disk")
    tasks = Tasks()
    status: list[float] = []
    changed: list[int] = []

    def change_all() -> None:
        for number in range(changes):
            tasks.stop.wait(ms / 1000 / (changes + 1))
            change(number)
            changed.append(number)

    def ask_status() -> None:
        while not tasks.stop.wait(PAUSE):
            before = time.monotonic()
            second.call("query-status")
            status.append(time.monotonic() - before)

    latency: list[float] = []
    save_counters(out, "before")
    begin = now = time.monotonic()
    tasks.start(change_all)
    tasks.start(ask_status)
    for _ in range(DEPTH):
        disk.ask()
    while now < begin + ms / 1000 and not tasks.errors:
        latency.append(disk.answer())
        disk.ask()
        now = time.monotonic()
    save_counters(out, "after")
    done = len(changed)
    tasks.end()
    # QEMU 7.2 aborts when the client of an iothread leaves.
    process.kill()
    process.wait()
    save(out, latency, now - begin, status_max_us=round(max(status) * 1e6), **{fact: done})


def main() -> None:
    """Run it with a folder for QEMU's files."""
    variant, out = sys.argv[1:3]
    ms, mib, changes = map(int, sys.argv[3:])
    if variant not in BACKENDS:
        raise SystemExit(f"qemu: no variant {variant}")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), variant, out, ms, mib, changes)


main()
