# SPDX-License-Identifier: GPL-2.0-only
"""The pins: the source package that our files are made for (kernel/upstream), and the
packages with the distribution's configurations (kernel/upstream-config and, for other
architectures, kernel/upstream-config-ARCHITECTURE)."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .common import Fail

FORMS = {
    "package": r"[a-z0-9][a-z0-9.+-]+",
    "version": r"(\d+:)?\d+\.\d+\.\d+-\S+",
    "upstream": r"\d+\.\d+\.\d+",
    "file": r"[^/\s]+\.deb",
    "size": r"[1-9]\d*",
    "sha256": r"[0-9a-f]{64}",
}


@dataclass(frozen=True)
class Pin:
    """One version of the source package."""

    package: str
    version: str
    upstream: str
    file: str
    size: int
    sha256: str

    @property
    def series(self) -> str:
        """The kernel series, such as 6.12."""
        return self.upstream.rpartition(".")[0]

    @property
    def point(self) -> int:
        """The number of the point release: 117 of 6.12.117."""
        return int(self.upstream.rpartition(".")[2])

    @classmethod
    def parse(cls, values: dict[str, str], origin: str) -> Pin:
        """Validate the values and make a pin from them."""
        for key, form in FORMS.items():
            if not re.fullmatch(form, values.get(key, "")):
                raise Fail(f"{origin}: '{key}=' is missing or malformed: restore the file with "
                           "git, or move the pin with `make rebase VERSION=`")
        return cls(values["package"], values["version"], values["upstream"], values["file"],
                   int(values["size"]), values["sha256"])

    @classmethod
    def load(cls, kernel: Path, name: str = "upstream") -> Pin:
        """Read kernel/upstream, or another pin beside it."""
        path = kernel / name
        if not path.is_file():
            raise Fail(f"{path} is missing: restore it with git")
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
        values = {pair[0]: pair[-1] for pair in pairs}
        return cls.parse({key: values.get(key, "") for key in FORMS}, str(path))

    def rewrite(self, text: str) -> str:
        """The text of a pin file with this pin's values; everything else is kept."""
        for key, value in asdict(self).items():
            text = re.sub(rf"(?m)^{key}=.*$", f"{key}={value}", text)
        return text
