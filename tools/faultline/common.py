# SPDX-License-Identifier: GPL-2.0-only
"""Errors, progress, paths and locks of all programs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# The top of the repository, or of its copy in a source package.
ROOT = Path(__file__).resolve().parents[2]
CHUNK = 1 << 20
TTY_SECONDS = 0.2
LOG_SECONDS = 10.0
# Lines of a log that an error shows.
TAIL = 15
# Debian's packages of programs with another name.
PACKAGES = {"apt-ftparchive": "apt-utils", "createrepo_c": "createrepo-c", "dpkg-deb": "dpkg",
            "gpg": "gnupg", "qemu-img": "qemu-utils", "rpmbuild": "rpm", "rpmkeys": "rpm",
            "rpmsign": "rpm", "sbattach": "sbsigntool", "sbsign": "sbsigntool",
            "sbverify": "sbsigntool", "xz": "xz-utils"}


class Fail(Exception):
    """An error that the user can act on; its text is the only line shown."""

    # The exit status of the program.
    status = 1


@dataclass(frozen=True)
class Paths:
    """The folders that the scripts read and write."""

    kernel: Path
    build: Path

    @classmethod
    def from_env(cls) -> Paths:
        """FAULTLINE_KERNEL_DIR and BUILD, by default kernel/ and build/ of this repository."""
        kernel = Path(os.environ.get("FAULTLINE_KERNEL_DIR") or ROOT / "kernel")
        build = Path(os.environ.get("BUILD") or ROOT / "build")
        return cls(kernel.absolute(), build.absolute())

    @property
    def cache(self) -> Path:
        """Downloads and the private apt's state."""
        return self.build / "cache"

    @property
    def tree(self) -> Path:
        """The work tree of our kernel branch."""
        return self.build / "tree"

    @property
    def stock(self) -> Path:
        """The work tree of the unchanged upstream."""
        return self.build / "stock-tree"

    @property
    def peer(self) -> Path:
        """The work tree of the newest upstream kernel, which benchmarks compare with."""
        return self.build / "peer-tree"

    def rebase(self, version: str) -> Path:
        """The scratch tree of a rebase."""
        return self.build / f"rebase-{version}"


def say(text: str) -> None:
    """Print a line of progress at once, even if stdout is a pipe."""
    print(text, flush=True)


def flag(name: str) -> bool:
    """Whether a yes/no environment variable is on."""
    return os.environ.get(name, "") not in ("", "0", "no", "n")


def shown(path: Path) -> str:
    """A path as the user would type it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("../..") else relative


def mib(size: float) -> str:
    """A human-readable size."""
    return f"{size / (1 << 20):.1f} MiB" if size < 100 << 20 else f"{size / (1 << 20):.0f} MiB"


class Progress:
    """Progress of a long step: one updated line on a terminal, a line now and then in a log."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = max(total, 1)
        self.tty = sys.stdout.isatty()
        self.start = self.shown_at = time.monotonic()
        if not self.tty:
            say(f"{label} ({mib(total)}) ...")

    def update(self, done: int) -> None:
        """Show that `done` bytes are processed, at a limited rate."""
        now = time.monotonic()
        if now - self.shown_at < (TTY_SECONDS if self.tty else LOG_SECONDS):
            return
        self.shown_at = now
        line = f"{self.label}: {100 * done // self.total}% of {mib(self.total)}"
        print(f"\r{line}\033[K" if self.tty else line, end="" if self.tty else "\n", flush=True)

    def finish(self) -> None:
        """Print a final line with the time taken."""
        took = f"{self.label}: done in {time.monotonic() - self.start:.0f} s"
        print(f"\r{took}\033[K" if self.tty else took, flush=True)


def sha256(path: Path) -> str:
    """The sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file in one step, so that neither a reader nor a crash sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def disk_full(where: Path | str) -> Fail:
    """The error for a write that ran out of space."""
    return Fail(f"disk full (or quota exceeded) while writing below {where}: free some space "
                "there (or set BUILD= to a folder on a larger disk) and run this again")


def need_space(folder: Path, size: int, what: str) -> None:
    """Fail early if `size` bytes do not fit, rather than halfway through."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise Fail(f"disk full: {what} needs about {mib(size)} below {folder} and {mib(free)} "
                   "are free: free some space, or set BUILD= to a folder on a larger disk")


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Serialize runs that work in a folder; a second one waits and says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run in {shown(path.parent)} ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _missing(program: str) -> Fail:
    return Fail(f"{program} is not installed: run 'make deps' (package "
                f"{PACKAGES.get(program, program)})")


def call(*command: str | Path, what: str = "", data: bytes = b"", cwd: Path | None = None,
         env: Mapping[str, str] | None = None, start_new_session: bool = False) -> bytes:
    """The output of a program that must succeed; an error starts with `what`."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=data, capture_output=True, check=False, cwd=cwd, env=env,
                              start_new_session=start_new_session)
    except FileNotFoundError:
        raise _missing(words[0]) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace").splitlines()
        raise Fail(f"{what or ' '.join(words[:2])}: {said[-1].strip() if said else 'no message'}")
    return done.stdout


def logged(what: str, log: Path, *command: str | Path, cwd: Path | None = None,
           env: Mapping[str, str] | None = None, umask: int = -1, keep: bool = True) -> None:
    """Run a program that must succeed, and append its output to a log.

    An error shows the end of the log, and its place unless the caller does not keep it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(log, "ab") as sink:
            status = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                                    stdout=sink, stderr=sink, check=False, cwd=cwd, env=env,
                                    umask=umask).returncode
    except FileNotFoundError:
        raise _missing(str(command[0])) from None
    if status:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]:
            print(f"  {line}", file=sys.stderr)
        raise Fail(f"{what} failed: fix the errors above"
                   + (f"; the full log is {shown(log)}" if keep else ""))


def run_main(name: str, main: Callable[[], int | None]) -> int:
    """Run a program's main function; an error becomes one line on stderr and its status."""
    status = 1
    try:
        return main() or 0
    except Fail as error:
        text, status = str(error), error.status
    except OSError as error:
        if error.errno == errno.ENOSPC:
            text = str(disk_full(error.filename or Paths.from_env().build))
        else:
            text = f"{error.strerror}: {error.filename}: make it accessible and run this again"
    except KeyboardInterrupt:
        text, status = "interrupted; run this again", 128 + signal.SIGINT
    if sys.stdout.isatty():
        print(flush=True)
    print(f"{name}: error: {text}", file=sys.stderr)
    return status
