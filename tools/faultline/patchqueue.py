# SPDX-License-Identifier: GPL-2.0-only
"""kernel/overlay and kernel/patches on disk."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from .common import Fail

TOPIC = re.compile(r"[a-z0-9][a-z0-9_-]*")
# Relative to patches/: at most one folder, the topic.
PATCH_NAME = re.compile(rf"(?:{TOPIC.pattern}/)?[A-Za-z0-9][A-Za-z0-9._+-]*\.patch")
SERIES_HEAD = ("# SPDX-License-Identifier: GPL-2.0-only\n"
               "# The patches, in the order in which they apply.\n\n")


@dataclass
class Queue:
    """Our files and patches, as bytes."""

    overlay: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # path: git mode, content
    patches: list[tuple[str, bytes]] = field(default_factory=list)       # file name, mail
    series: str = ""

    @classmethod
    def load(cls, kernel: Path) -> Queue:
        """Read overlay/ and patches/, and check that series and folder agree."""
        series = kernel / "patches" / "series"
        text = series.read_text(encoding="utf-8") if series.is_file() else ""
        return cls(read_overlay(kernel / "overlay"),
                   read_patches(kernel / "patches", series_names(text)), text)

    def digest(self) -> str:
        """A checksum of everything that goes into the branch."""
        total = hashlib.sha256()
        for path, (mode, data) in sorted(self.overlay.items()):
            total.update(f"{mode} {path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
        for name, data in self.patches:
            total.update(f"{name}\0{len(data)}\0".encode() + data)
        return total.hexdigest()

    def save(self, kernel: Path, pin: str | None = None) -> list[str]:
        """Write the files that differ (and the pin, if given); return the changed names.

        Everything is first written to a staging folder, so a full disk changes nothing.
        """
        old = Queue.load_lenient(kernel)
        new_files, old_files = self._files(), old._files()
        if pin is not None:
            new_files["upstream"] = ("100644", pin.encode())
            old_files["upstream"] = ("100644", (kernel / "upstream").read_bytes())
        changed = [path for path, entry in new_files.items() if old_files.get(path) != entry]
        gone = [path for path in old_files if path not in new_files]
        stage = kernel / ".export-stage"
        shutil.rmtree(stage, ignore_errors=True)
        try:
            for number, path in enumerate(changed):
                stage.mkdir(exist_ok=True)
                write_entry(stage / str(number), *new_files[path])
            for path in gone:
                (kernel / path).unlink()
                prune(kernel / path, kernel)
            for number, path in enumerate(changed):
                (kernel / path).parent.mkdir(parents=True, exist_ok=True)
                (stage / str(number)).replace(kernel / path)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return sorted(changed + gone)

    @classmethod
    def load_lenient(cls, kernel: Path) -> Queue:
        """Read the folders as they are, even if series does not match."""
        series = kernel / "patches" / "series"
        folder = kernel / "patches"
        names = sorted(patch_files(folder))
        return cls(read_overlay(kernel / "overlay"),
                   [(name, (folder / name).read_bytes()) for name in names],
                   series.read_text(encoding="utf-8") if series.is_file() else "")

    def _files(self) -> dict[str, tuple[str, bytes]]:
        files = {f"overlay/{path}": entry for path, entry in self.overlay.items()}
        files |= {f"patches/{name}": ("100644", data) for name, data in self.patches}
        if self.series:
            files["patches/series"] = ("100644", self.series.encode())
        return files


def series_names(text: str) -> list[str]:
    """The file names in a series; text after # is a comment."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def series_text(old: str, names: list[str]) -> str:
    """A series with these names, keeping the header and comments of the old one."""
    if series_names(old) == names:
        return old
    head, comments, pending = "", {}, ""
    for line in old.splitlines(keepends=True):
        name = line.partition("#")[0].strip()
        if name:
            comments[name] = (pending, line)
            pending = ""
        elif not line.strip() and not head and not comments:
            head, pending = pending + line, ""
        else:
            pending += line
    if not comments and not head:
        head, pending = pending, ""
    body = "".join("".join(comments.get(name, ("", f"{name}\n"))) for name in names)
    return (head or ("" if comments else SERIES_HEAD)) + body + pending


def patch_files(folder: Path) -> set[str]:
    """The patches in the folder and below it, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.patch")}


def read_patches(folder: Path, names: list[str]) -> list[tuple[str, bytes]]:
    """The patches in the order of the series."""
    there = patch_files(folder)
    for name in names:
        if not PATCH_NAME.fullmatch(name):
            raise Fail(f"{folder / 'series'} names '{name}': a patch is called "
                       "WHAT.patch or TOPIC/WHAT.patch; rename it")
        if names.count(name) > 1:
            raise Fail(f"{folder / 'series'} names {name} twice: remove one of the lines")
        if name not in there:
            raise Fail(f"{folder / 'series'} names {name}, which is not in the folder: add the "
                       "file or remove the line")
    for name in sorted(there - set(names)):
        raise Fail(f"{folder / name} is not in {folder.name}/series: add a line for it or remove "
                   "the file")
    return [(name, (folder / name).read_bytes()) for name in names]


def read_overlay(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Read every file of the overlay with its git mode."""
    found = {}
    for parent, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in names + links:
            path = Path(parent, name)
            if path.is_symlink():
                entry = ("120000", os.fsencode(os.readlink(path)))
            elif path.is_file():
                entry = ("100755" if path.stat().st_mode & 0o100 else "100644", path.read_bytes())
            else:
                raise Fail(f"{path} is neither a file nor a symbolic link: remove it")
            found[path.relative_to(folder).as_posix()] = entry
    return found


def write_entry(path: Path, mode: str, data: bytes) -> None:
    """Write a file or symbolic link with its git mode."""
    if mode == "120000":
        path.symlink_to(os.fsdecode(data))
        return
    path.write_bytes(data)
    path.chmod(path.stat().st_mode | 0o111 if mode == "100755" else path.stat().st_mode & ~0o111)


def prune(path: Path, top: Path) -> None:
    """Remove folders left empty by a removed file."""
    for folder in path.parents:
        if folder == top or any(folder.iterdir()):
            return
        folder.rmdir()
