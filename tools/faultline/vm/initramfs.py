# SPDX-License-Identifier: GPL-2.0-only
"""Writer for the guest's root file system: a cpio archive that the kernel unpacks.

The same contents give the same bytes: names are sorted, the owner is root, and
time stamps are zero.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from .errors import RunnerError

# The guest mounts these or the runner fills them; a file there is a mistake.
_RESERVED = ("/init", "/faultline", "/dev", "/proc", "/sys")

# The default search path of the dynamic loader.
_LIBRARY_DIRS = re.compile(r"/(?:usr/)?lib(?:32|64|x32)?(?:/[^/]+-linux-[^/]+)?$")


@dataclass
class _Entry:
    mode: int
    data: bytes = b""
    source: Path | None = None
    device: tuple[int, int] = (0, 0)

    @property
    def size(self) -> int:
        return self.source.stat().st_size if self.source else len(self.data)


class Archive:
    """The files of a root file system, finally written as cpio ("newc")."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def directory(self, path: str, mode: int = 0o755) -> None:
        """Add a directory and its parents; existing ones are kept."""
        for parent in reversed(PurePosixPath(path).parents):
            if parent.name:
                self._entries.setdefault(str(parent), _Entry(stat.S_IFDIR | 0o755))
        self._add(path, _Entry(stat.S_IFDIR | mode))

    def text(self, path: str, text: str, mode: int = 0o644) -> None:
        """Add a file with the given text."""
        self._leaf(path, _Entry(stat.S_IFREG | mode, data=text.encode()))

    def file(self, path: str, source: Path) -> None:
        """Add a copy of a host file."""
        mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
        self._leaf(path, _Entry(stat.S_IFREG | mode, source=source))

    def symlink(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._leaf(path, _Entry(stat.S_IFLNK | 0o777, data=target.encode()))

    def character_device(self, path: str, mode: int, major: int, minor: int) -> None:
        """Add a character device node."""
        self._leaf(path, _Entry(stat.S_IFCHR | mode, device=(major, minor)))

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    @property
    def size(self) -> int:
        """The total size of all files, in bytes."""
        return sum(entry.size for entry in self._entries.values())

    def write(self, out: BinaryIO) -> None:
        """Write the archive."""
        for inode, name in enumerate(sorted(self._entries), start=1):
            self._write_entry(out, inode, name.lstrip("/"), self._entries[name])
        self._write_entry(out, 0, "TRAILER!!!", _Entry(0))

    def _leaf(self, path: str, entry: _Entry) -> None:
        self.directory(str(PurePosixPath(path).parent))
        self._add(path, entry)

    def _add(self, path: str, entry: _Entry) -> None:
        if path == "/":
            return
        old = self._entries.setdefault(path, entry)
        same_directory = stat.S_ISDIR(old.mode) and stat.S_ISDIR(entry.mode)
        if not same_directory and old != entry:
            raise RunnerError(f"two --file options put different files at {path} in the guest; "
                              "give one of them another name (--file HOST:GUEST)")

    @staticmethod
    def _write_entry(out: BinaryIO, inode: int, name: str, entry: _Entry) -> None:
        size = entry.size
        if size > 0xFFFFFFFF:
            raise RunnerError(f"{entry.source} is larger than 4 GiB, "
                              "which the initramfs format does not support")
        encoded = name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        header = (inode, entry.mode, 0, 0, links, 0, size, 0, 0, *entry.device, len(encoded), 0)
        record = b"070701" + b"".join(b"%08X" % value for value in header) + encoded
        out.write(record + bytes(-len(record) % 4))
        if entry.source is None:
            out.write(entry.data)
        else:
            with entry.source.open("rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
                if source.tell() != size:
                    raise RunnerError(f"{entry.source} changed while being read; run this again")
        out.write(bytes(-size % 4))


class FileSet:
    """Collects the --file arguments and their dependencies."""

    def __init__(self, archive: Archive, elf_machine: int) -> None:
        self._archive = archive
        self._machine = elf_machine
        self._dynamic: list[Path] = []
        self._interpreters: set[str] = set()

    def add(self, spec: str) -> None:
        """Add one HOST[:GUEST]; HOST may be a directory."""
        host, colon, guest = spec.rpartition(":")
        if not colon or Path(spec).exists():
            host, guest = spec, ""
        source = Path(host)
        if not source.exists():
            raise RunnerError(f"--file {spec}: {host} does not exist")
        self._add_path(source, guest_path(guest, source.resolve().name
                                          if source.name in ("", ".", "..") else source.name))

    def finish(self) -> list[str]:
        """Add interpreters and shared libraries.

        Return the library directories to pass to the guest's loader.
        """
        for path in sorted(self._interpreters):
            if path not in self._archive and Path(path).is_file():
                self._archive.file(path, Path(path))
                self._note_needs(Path(path))
        directories = set()
        for library in shared_libraries(self._dynamic):
            directory = str(library.parent)
            if not _LIBRARY_DIRS.match(directory):
                directories.add(directory)
            if str(library) not in self._archive:
                self._archive.file(str(library), library)
        return sorted(directories)

    def _add_path(self, source: Path, guest: str) -> None:
        if not source.is_dir():
            if not source.is_file():
                raise RunnerError(f"--file {source}: only files and directories can be given")
            self._add_file(source, guest, named=True)
            return
        self._archive.directory(guest)
        for directory, names, files in os.walk(source):
            names.sort()
            here = PurePosixPath(guest) / Path(directory).relative_to(source).as_posix()
            for name in sorted(names + files):
                path = Path(directory) / name
                target = str(here / name)
                if path.is_symlink():
                    self._archive.symlink(target, os.readlink(path))
                elif path.is_dir():
                    self._archive.directory(target)
                elif path.is_file():
                    self._add_file(path, target)

    def _add_file(self, source: Path, guest: str, named: bool = False) -> None:
        try:
            self._archive.file(guest, source)
            self._note_needs(source, named)
        except OSError as err:
            raise RunnerError(f"--file {source}: {err.strerror}") from err

    def _note_needs(self, source: Path, named: bool = False) -> None:
        with source.open("rb") as file:
            head = file.read(4096)
        if head.startswith(b"#!"):
            words = head[2:].split(b"\n")[0].decode("utf-8", "replace").split()
            # /bin/sh and env are from busybox; any other interpreter is added.
            if words[:1] == ["/usr/bin/env"] and len(words) > 1:
                words = [shutil.which(words[1]) or ""]
            if words and words[0] not in ("", "/bin/sh"):
                self._interpreters.add(words[0])
        elif head.startswith(b"\x7fELF"):
            machine, dynamic = elf_facts(head)
            if machine == self._machine:
                if dynamic:
                    self._dynamic.append(source)
            elif named and source.stat().st_mode & 0o111:
                raise RunnerError(f"--file {source}: built for another machine "
                                  f"(ELF {machine}, the kernel's is {self._machine})")


def guest_path(guest: str, name: str) -> str:
    """Return the absolute path in the guest for the GUEST part of --file."""
    if guest == "" or guest.endswith("/"):
        guest += name
    path = PurePosixPath("/test") / guest
    if ".." in path.parts:
        raise RunnerError(f"--file: '..' is not allowed in the guest's path {guest}")
    text = str(path)
    if text == "/" or any(text == top or text.startswith(top + "/") for top in _RESERVED):
        raise RunnerError(f"--file: {text} is reserved in the guest; choose a path such as /test")
    return text


def elf_facts(head: bytes) -> tuple[int, bool]:
    """Return the machine of an ELF file and whether it needs a dynamic loader."""
    if len(head) < 64:
        return 0, False
    order = "<" if head[5] == 1 else ">"
    machine: int = struct.unpack_from(order + "H", head, 18)[0]
    if head[4] == 2:
        offset, size, count = struct.unpack_from(order + "Q", head, 32) + \
            struct.unpack_from(order + "HH", head, 54)
    else:
        offset, size, count = struct.unpack_from(order + "I", head, 28) + \
            struct.unpack_from(order + "HH", head, 42)
    for index in range(count):
        place = offset + index * size
        if place + 4 > len(head):
            break
        # A static PIE also has PT_DYNAMIC: ldd then reports no libraries.
        if struct.unpack_from(order + "I", head, place)[0] == 2:
            return machine, True
    return machine, False


def shared_libraries(programs: Iterable[Path]) -> list[Path]:
    """Return the libraries (and the loader) that programs need, according to ldd."""
    paths = [str(path.resolve()) for path in programs]
    found: set[str] = set()
    # Many programs per call: starting ldd costs more than its work.
    for start in range(0, len(paths), 200):
        try:
            result = subprocess.run(["ldd", *paths[start:start + 200]], text=True,
                                    capture_output=True, env={**os.environ, "LC_ALL": "C"},
                                    check=False)
        except FileNotFoundError as err:
            raise RunnerError("ldd is missing; install libc-bin (Debian) or "
                              "glibc-common (Fedora)") from err
        program = paths[start]
        for line in result.stdout.splitlines():
            if not line.startswith("\t"):
                program = line.rstrip(":")
            elif "not found" in line:
                raise RunnerError(f"{program} needs the library {line.split()[0]}, which this "
                                  "host does not have; install it or link statically")
            elif match := re.search(r"(/\S+) \(0x", line):
                found.add(match[1])
    return [Path(path) for path in sorted(found)]
