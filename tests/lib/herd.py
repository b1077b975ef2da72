# SPDX-License-Identifier: GPL-2.0-only
"""Ask herd7 what the Linux kernel memory model, or that of arm64, allows in a litmus test.

The kernel's model is its own, in tools/memory-model; that of arm64 comes with herd7.  Debian 12
and 13 do not have herd7: unless the host has one, it comes from a later Debian, with the
libraries that it needs.
"""
from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from faultline.common import Fail, Paths
from . import fetched

MODEL = Path("tools") / "memory-model"
SUITE = "forky"
# Each package, and what herd7 needs of it.
PACKAGES = {
    "herdtools7": ("./usr/bin/herd7", "./usr/share/herdtools7/herd"),
    "libc6": ("./usr/lib/*/ld*.so.*", "./usr/lib/*/libc.so.*", "./usr/lib/*/libm.so.*"),
    "libgmp10": ("./usr/lib/*/libgmp.so.*",),
}
INSTEAD = "install herd7 of herdtools7, 7.52 or later, so that it is in PATH"

OBSERVATION = re.compile(r"^Observation .* (Never|Sometimes|Always) (\d+) (\d+)$", re.M)


class Herd:
    """herd7: the host's, or one that is fetched once."""

    def __init__(self) -> None:
        """Find or fetch it."""
        paths = Paths.from_env()
        self.tree = paths.tree
        if not (self.tree / MODEL / "linux-kernel.cfg").is_file():
            raise Fail(f"no memory model in {self.tree}: run 'make tree'")
        there = shutil.which("herd7")
        self._command = [there or ""]
        if not there:
            target = fetched.folder_of("herd7", SUITE, PACKAGES, 40, INSTEAD)
            # Its libraries are newer than the host's, so it needs their loader as well.
            loader = next(target.glob("usr/lib/*/ld*.so.*"), target / "ld.so")
            self._command = [str(loader), "--library-path", str(loader.parent),
                             str(target / "usr/bin/herd7"),
                             "-set-libdir", str(target / "usr/share/herdtools7/herd")]
        try:
            self.version = self._run("-version").partition(",")[0].strip()
        except OSError:
            self.version = ""
        if not re.match(r"\d", self.version):
            raise Fail(f"herd7 does not start: remove {there or target} and run this again")

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self._command, *arguments], cwd=self.tree / MODEL, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False).stdout

    def judge(self, text: str) -> tuple[str, str]:
        """The verdict on a test, in the words of the kernel's tests, and what herd7 printed.

        The first word of the test names its language: C for the kernel's model, or AArch64.
        """
        model = () if text.startswith("AArch64") else ("-conf", "linux-kernel.cfg")
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".litmus") as file:
            file.write(text)
            file.flush()
            output = self._run(*model, file.name)
        observed = OBSERVATION.search(output)
        if not observed:
            return "not understood", output
        if re.search(r"^Flag data-race", output, re.M):
            return "DATARACE", output
        return "DEADLOCK" if observed[2] == observed[3] == "0" else observed[1], output
