# SPDX-License-Identifier: GPL-2.0-only
"""Turns the outcome of a boot into an exit code and a reason."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

from . import console, ktap
from .errors import COMMAND_SIGNAL, KERNEL_TROUBLE, RUNNER_ERROR, TIMEOUT, RunnerError
from .session import Outcome, log_error


@dataclass
class Verdict:
    """The result of a run: exit code, one-line reason, and details."""

    exit: int
    reason: str = ""
    command_exit: int | None = None
    notes: list[str] = field(default_factory=list)


def judge(outcome: Outcome, *, allow_warn: bool, log: Path) -> Verdict:
    """Judge the kernel first, then the time, then the command."""
    records = outcome.records
    code = _number(records.get("exit"))
    notes = [f"allowed: {item.text} ({log}:{item.line})" for item in outcome.console.allowed]
    notes += outcome.console.killed

    if outcome.console.trouble:
        first = outcome.console.trouble[0]
        return Verdict(KERNEL_TROUBLE, f"kernel trouble ({first.kind}): {first.text} "
                       f"({log}:{first.line})", code, notes)
    if outcome.cut in ("timeout", "stall"):
        what = {"timeout": "time is up", "stall": "nothing was printed for too long"}[outcome.cut]
        where = "the command ran" if "start" in records else "the guest was still booting"
        hint = f"; the end of {log} shows where it was" if outcome.dumped else ""
        return Verdict(TIMEOUT, f"{what} ({outcome.seconds:.0f} s in all), {where}{hint}",
                       code, notes)
    taints = console.taint_trouble(_number(records.get("taint")) or 0, allow_warn)
    if taints:
        return Verdict(KERNEL_TROUBLE, f"the kernel is tainted: {', '.join(taints)}", code, notes)
    if outcome.cut == "reset":
        return Verdict(KERNEL_TROUBLE, f"the guest hung during reset ({log})", code, notes)
    if "end" not in records:
        if outcome.qemu_status != 0:
            said = (outcome.qemu_output.splitlines() or [f"status {outcome.qemu_status}"])[-1]
            return Verdict(RUNNER_ERROR, f"QEMU failed: {said}", code, notes)
        where = "while the command ran" if "start" in records else "before the command started"
        return Verdict(KERNEL_TROUBLE, f"the guest ended {where}, without a report ({log})",
                       code, notes)
    if code is None:
        return Verdict(KERNEL_TROUBLE, "the guest's exit record is damaged", None, notes)
    if code >= COMMAND_SIGNAL:
        how = f"signal {code - 128}" if 128 < code < 193 else f"exit code {code}"
        return Verdict(COMMAND_SIGNAL, f"the command ended with {how}", code, notes)
    return Verdict(code, f"the command ended with exit code {code}" if code else "", code, notes)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def read_results(verdict: Verdict, *, lines: ktap.Summary | None,
                 kunit: ktap.Summary | None) -> None:
    """Fail an otherwise successful run if test results failed."""
    for summary, what in ((lines, "the command"), (kunit, "KUnit")):
        if summary is not None and not summary.ok and verdict.exit == 0:
            verdict.exit = 1
            count = f"{summary.failed} failed" if summary.failed else "nothing ran"
            verdict.reason = f"test results of {what}: {count}"


def unpack(returned: Path, target: Path, status: str | None) -> int:
    """Unpack the tar archive of /out into target; return the number of files.

    Only plain files and directories are made, and only inside target: the guest
    is not trusted.
    """
    if returned.stat().st_size == 0 and status is None:
        return 0
    count = 0
    try:
        target.mkdir(exist_ok=True)
        with gzip.open(returned) as stream:
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
                for member in archive:
                    count += _unpack_member(archive, member, target)
            # Read to the end, where the checksum is.
            while stream.read(1 << 20):
                pass
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, KeyError) as err:
        raise RunnerError(f"the files from the guest are damaged ({err})") from err
    except OSError as err:
        raise log_error(target, err) from err
    if status != "0":
        raise RunnerError(f"the guest could not send all of /out (tar: {status or 'killed'})")
    return count


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> int:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise RunnerError(f"the guest sent a file with the path {member.name}; refused")
    place = target / path
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return 0
    # A hard link is a second name for a file in the archive.
    if not member.isfile() and not member.islnk():
        return 0
    place.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    if source is None:
        return 0
    with source, place.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    place.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    return 1
