# SPDX-License-Identifier: GPL-2.0-only
"""Releases: the names of their kernels, such as 6.12.117-faultline1.2.cloud, and their entries in
CHANGELOG, such as 6.12.117-faultline1."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from .common import Fail, shown

RELEASE = r"(\d+\.\d+\.\d+)-faultline(\d+(?:\.\d+)?)"
# Both package formats allow it; rpm treats another dash as the start of its release.
KVER = RELEASE + r"\.([a-z][a-z0-9]*)"
FORM = "6.12.x-faultlineN"


@dataclass(frozen=True)
class Release:
    """A point release of the kernel, and our release based on it: N, or N.M for rebuild M."""

    upstream: str
    number: str

    @property
    def name(self) -> str:
        """Its name in CHANGELOG, and the beginning of its kernels' names."""
        return f"{self.upstream}-faultline{self.number}"

    def kver(self, flavour: str) -> str:
        """The output of `uname -r` of its kernel of a flavour."""
        return f"{self.name}.{flavour}"

    @property
    def version(self) -> str:
        """The version of the packages."""
        return f"{self.upstream}-{self.number}"

    @classmethod
    def parse(cls, kver: str, flavour: str, where: str) -> Release:
        """The release in the output of `uname -r`, which has to be a kernel of this flavour."""
        if not (match := re.fullmatch(KVER, kver)):
            raise Fail(f"{where}: the release KVER={kver} is not valid in a package name: it must "
                       f"have the form {FORM}.FLAVOUR")
        if match[3] != flavour:
            raise Fail(f"{where}: KVER={kver} is not a kernel of flavour {flavour}")
        return cls(match[1], match[2])

    @classmethod
    def ours(cls, kernel: Path, upstream: str, rebuild: str) -> Release:
        """The release that the overlay names, on a point release."""
        path = kernel / "overlay" / "localversion-faultline"
        name = upstream + path.read_text(encoding="utf-8").strip()
        name = f"{name}.{rebuild}" if rebuild else name
        if not (match := re.fullmatch(RELEASE, name)):
            raise Fail(f"{shown(path)}: the release {name} is not valid in a package name: it "
                       f"must have the form {FORM}")
        return cls(match[1], match[2])


@dataclass(frozen=True)
class Entry:
    """The CHANGELOG entry of a release; the date is midnight, UTC."""

    release: Release
    date: datetime.datetime
    text: str


def changelog(path: Path) -> list[Entry]:
    """The entries of a CHANGELOG, the newest first; there is at least one."""
    parts = re.split(rf"(?m)^{RELEASE} \((\d{{4}}-\d\d-\d\d)\)$", path.read_text(encoding="utf-8"))
    if len(parts) < 5:
        raise Fail(f"{shown(path)} has no entry of the form '{FORM} (YYYY-MM-DD)': add one")
    try:
        return [Entry(Release(parts[at], parts[at + 1]),
                      datetime.datetime.fromisoformat(f"{parts[at + 2]}T00:00:00+00:00"),
                      parts[at + 3].strip("\n")) for at in range(1, len(parts), 4)]
    except ValueError as error:
        raise Fail(f"{shown(path)}: {error}: correct the date of that entry") from None
