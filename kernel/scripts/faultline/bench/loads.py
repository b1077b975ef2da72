# SPDX-License-Identifier: GPL-2.0-only
"""Loads of `fl bench workloads` that are not C: made on the host, run in the guest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ..common import Fail, sha256, shown
from . import guest

# The oldest Java that Debian's releases run.
_JAVA_RELEASE = "17"
# Debian's Python, of the same release as that in the guest; others may come first in PATH.
_PYTHON = "/usr/bin/python3"


def java(source: Path) -> Path:
    """Compile SOURCE; return the folder with its classes, whose name is java."""
    made = guest.BUILD / "bench/java"
    command = ["javac", "--release", _JAVA_RELEASE, "-Xlint:all", "-Werror", "-d"]
    _compile(source, made, command, "default-jdk-headless")
    return made


def go(source: Path) -> Path:
    """Link SOURCE statically; return the program, whose name is load."""
    made = guest.BUILD / "bench/load"
    command = ["go", "build", "-trimpath", "-o"]
    # Nothing of it is downloaded: neither another compiler nor modules.
    _compile(source, made, command, "golang-go", {
        "CGO_ENABLED": "0", "GO111MODULE": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "",
        "GOOS": "linux", "GOCACHE": str(guest.BUILD / "cache/go")})
    return made


def wheel(requirements: Path) -> Path:
    """Download the only package in REQUIREMENTS from PyPI; return the wheel, renamed NAME.whl."""
    made = guest.BUILD / "bench" / f"{requirements.stem}.whl"
    wanted = re.findall(r"--hash=sha256:([0-9a-f]{64})", requirements.read_text("utf-8"))
    if made.exists() and sha256(made) in wanted:
        return made
    if _run([_PYTHON, "-m", "pip", "--version"]).returncode:
        raise Fail("pip is missing: install python3-pip")
    new = made.with_suffix(".new")
    _remove(new)
    new.mkdir(parents=True)
    result = _run([_PYTHON, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                   "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(new),
                   "--requirement", str(requirements)])
    found = list(new.glob("*.whl"))
    if result.returncode or len(found) != 1:
        _remove(new)
        reasons = [line for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = reasons[-1].removeprefix("ERROR: ") if reasons else "no reason given"
        raise Fail(f"the download of {requirements.stem} from PyPI failed ({reason}): check the "
                   "network and run this again, or leave its scenes out with --scenes")
    found[0].replace(made)
    _remove(new)
    return made


def _compile(source: Path, made: Path, command: list[str], package: str,
             environment: dict[str, str] | None = None) -> None:
    """Make MADE, a file or folder, from SOURCE with COMMAND of PACKAGE, if it is not newer."""
    if not shutil.which(command[0]):
        raise Fail(f"{command[0]} is missing: install {package}")
    if made.exists() and made.stat().st_mtime > source.stat().st_mtime:
        return
    made.parent.mkdir(parents=True, exist_ok=True)
    new = made.with_suffix(".new")
    _remove(new)
    result = _run([*command, str(new), str(source)], environment)
    if result.returncode:
        _remove(new)
        raise Fail(f"cannot compile {shown(source)}:\n{(result.stderr or result.stdout).strip()}")
    _remove(made)
    new.rename(made)


def _run(command: list[str],
         environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, **(environment or {})})


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
