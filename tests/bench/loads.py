# SPDX-License-Identifier: GPL-2.0-only
"""Loads of `lab bench workloads` that need more than one C file: the host makes them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from faultline.common import Fail, Paths, need_space, say, sha256, shown
from faultline.repo import UPSTREAM, Repo
from . import guest

# The oldest Java that Debian's releases run.
_JAVA_RELEASE = "17"
# Debian's Python, of the same release as that in the guest; others may come first in PATH.
_PYTHON = "/usr/bin/python3"
# Of the kernel's source, what it takes to compile parts of mm and lib; and all Kconfig files.
_KERNEL_PARTS = ("Makefile", "Kbuild", "scripts", "include", "arch/x86", "init", "kernel", "lib",
                 "mm", "tools/include", "usr", ":(glob)**/Kconfig*")
# That many bytes at most, as files and as an archive.
_KERNEL_SPACE = 400 << 20


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


def kernel() -> Path:
    """Pack what it takes to compile parts of the pinned kernel; return kernel.tar.gz.

    It is upstream's source, configured and with the build's own tools compiled, so that the guest
    compiles nothing but the kernel.
    """
    paths = Paths.from_env()
    repo = Repo(paths.tree)
    commit = repo.commit_of(f"refs/tags/{UPSTREAM}") if paths.tree.exists() else ""
    if not commit:
        raise Fail(f"{shown(paths.tree)}, the kernel's source, is missing: run make tree, or leave "
                   "this scene out with --scenes")
    folder = guest.BUILD / "bench/kernel" / commit[:12]
    made, tree = folder / "kernel.tar.gz", folder / "kernel"
    if made.exists():
        return made
    _remove(folder.parent)
    tree.mkdir(parents=True)
    need_space(folder, _KERNEL_SPACE, "the source of the kernel to compile")
    say("preparing a kernel for the guest to compile ...")
    packed = folder / "source.tar"
    repo.text("archive", "--format=tar", "--output", str(packed), commit, "--", *_KERNEL_PARTS)
    _step(["tar", "-x", "-C", str(tree), "-f", str(packed)])
    packed.unlink()
    for target in ("tinyconfig", "prepare"):
        _step(["make", "-s", f"-j{os.cpu_count()}", "-C", str(tree), target])
    new = made.with_suffix(".new")
    # PAX keeps fractions of a second, without which make would do some steps again.
    with tarfile.open(new, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as archive:
        archive.add(tree, "kernel")
    _remove(tree)
    new.rename(made)
    return made


def _step(command: list[str]) -> None:
    """Run a step of the preparation of the kernel."""
    result = _run(command)
    if result.returncode:
        raise Fail(f"'{' '.join(command)}' failed:\n{result.stderr.strip()}")


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
