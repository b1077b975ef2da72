# SPDX-License-Identifier: GPL-2.0-only
"""Releases: their names, such as 6.12.117-faultline1.2, and their entries in CHANGELOG."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from .common import Fail, shown

# Both package formats allow it; rpm treats another dash as the start of its release.
KVER = r"(\d+\.\d+\.\d+)-faultline(\d+(?:\.\d+)?)"
FORM = "6.12.x-faultlineN"


@dataclass(frozen=True)
class Release:
    """A point release of the kernel, and our release based on it: N, or N.M for rebuild M."""

    upstream: str
    number: str

    @property
    def kver(self) -> str:
        """The output of `uname -r`."""
        return f"{self.upstream}-faultline{self.number}"

    @property
    def version(self) -> str:
        """The version of the packages."""
        return f"{self.upstream}-{self.number}"

    @classmethod
    def parse(cls, kver: str, where: str) -> Release:
        """Split the output of `uname -r`."""
        if not (match := re.fullmatch(KVER, kver)):
            raise Fail(f"{where}: the release KVER={kver} is not valid in a package name: it must "
                       f"have the form {FORM}")
        return cls(*match.groups())

    @classmethod
    def ours(cls, kernel: Path, upstream: str, rebuild: str) -> Release:
        """The release that the overlay names, on a point release."""
        path = kernel / "overlay" / "localversion-faultline"
        name = upstream + path.read_text(encoding="utf-8").strip()
        return cls.parse(f"{name}.{rebuild}" if rebuild else name, shown(path))


@dataclass(frozen=True)
class Entry:
    """What CHANGELOG says about a release; the date is midnight, UTC."""

    release: Release
    date: datetime.datetime
    text: str


def changelog(path: Path) -> list[Entry]:
    """The entries of a CHANGELOG, the newest first; there is at least one."""
    parts = re.split(rf"(?m)^{KVER} \((\d{{4}}-\d\d-\d\d)\)$", path.read_text(encoding="utf-8"))
    if len(parts) < 5:
        raise Fail(f"{shown(path)} has no entry of the form '{FORM} (YYYY-MM-DD)': add one")
    try:
        return [Entry(Release(parts[at], parts[at + 1]),
                      datetime.datetime.fromisoformat(f"{parts[at + 2]}T00:00:00+00:00"),
                      parts[at + 3].strip("\n")) for at in range(1, len(parts), 4)]
    except ValueError as error:
        raise Fail(f"{shown(path)}: {error}: correct the date of that entry") from None
