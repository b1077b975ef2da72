# SPDX-License-Identifier: GPL-2.0-only
"""Shared by rpm and rpm_source: the changelog, and a private rpmbuild."""
from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from ..common import ROOT, logged, say, shown
from ..release import Entry

SPEC = ROOT / "packaging/rpm/linux-faultline.spec"
# As in the patch queue.
PACKAGER = "Faultline maintainers <maintainers@faultline.invalid>"


def changes(entries: list[Entry], number: str) -> str:
    """CHANGELOG in rpm's format; a rebuild gets its own entry."""
    out: list[str] = []
    for entry in entries:
        head = f"* {entry.date:%a %b %d %Y} {PACKAGER} - {entry.release.upstream}-"
        if not out and number != entry.release.number:
            out += [f"{head}{number}", "- Rebuilt from the same source.", ""]
        out += [f"{head}{entry.release.number}", ""]
        for line in entry.text.splitlines():
            if line.startswith("  * "):
                out.append(f"- {line[4:]}")
            elif line == "" or line.startswith("    "):
                out.append(line[2:])
        out.append("")
    return "\n".join(out).replace("%", "%%").strip() + "\n"


def write_spec(work: pathlib.Path, head: str, changelog: str) -> pathlib.Path:
    """Write the spec, with lines put before it and the changelog at its end."""
    spec = work / "SPECS" / SPEC.name
    spec.write_text(head + SPEC.read_text(encoding="utf-8") + changelog, encoding="utf-8")
    return spec


@contextlib.contextmanager
def workspace(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder below the output, so that results can be renamed into place."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rpmbuild-", dir=out) as name:
        work = pathlib.Path(name)
        for folder in ("SPECS", "SOURCES", "BUILD", "tmp"):
            (work / folder).mkdir()
        yield work


def rpmbuild(work: pathlib.Path, epoch: str, stage: str, *arguments: str) -> None:
    """Run rpmbuild without the user's macros, database and environment."""
    # A source package keeps the spec with all macros expanded, including the
    # names of folders.  Scripts change directory and need absolute names.
    top = "." if stage == "-bs" else str(work)
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(work), "LC_ALL": "C",
           "TZ": "UTC", "SOURCE_DATE_EPOCH": epoch}
    logged("rpmbuild", work / "log", "rpmbuild", stage, "--quiet", "--define", f"_topdir {top}",
           "--define", f"_tmppath {top}/tmp", *arguments, cwd=work, env=env, umask=0o022,
           keep=False)


def publish(packages: list[pathlib.Path], out: pathlib.Path) -> None:
    """Move the packages into place, now that all are complete."""
    for path in sorted(packages):
        target = out / path.name
        path.replace(target)
        say(f"{shown(target)}  {target.stat().st_size / 1024:.0f} KiB")
