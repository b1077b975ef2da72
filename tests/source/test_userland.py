# SPDX-License-Identifier: GPL-2.0-only
"""lab userland: the sources of its Debian 13, and how it fails; mmdebstrap has a stand-in.

`make test-debian-13` is the test with the real one.
"""
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lib.userland import SIZE
from source.fake import Archive, Host, has

VERSION = "6.12.117-1"
# Records its arguments, and fails.  Like the real one, it makes only the last folder of a path.
STAND_IN = """#!/bin/sh
cat >{folder}/sources
printf '%s\\n' "$@" >{folder}/arguments
for word; do
    case $word in */userland) mkdir "$word" || exit ;; esac
done
echo 'E: no space for base-files' >&2
exit 1
"""


@pytest.fixture(scope="module")
def archive(place: Path) -> Archive:
    """Debian's archive; it lacks trixie-updates."""
    suites = ("bookworm", "trixie", "trixie-security", "trixie-backports")
    return Archive(place, {suite: [VERSION] for suite in suites})


@pytest.fixture
def machine(tmp_path: Path, archive: Archive) -> Host:
    """A Debian 12 with the stand-in."""
    if os.geteuid():
        pytest.skip("lab userland needs root")
    fresh = Host(tmp_path / "machine")
    fresh.use(archive, f"file:{archive.top}")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "mmdebstrap"
    program.write_text(STAND_IN.format(folder=tmp_path), encoding="ascii")
    program.chmod(0o755)
    fresh.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    return fresh


def failed(machine: Host, *parts: str) -> str:
    """Run it; it must fail with one error that contains the parts.  Returns the error."""
    result = machine.script("userland", package="lib.lab")
    assert result.code == 1 and result.err.count("error: ") == 1, result
    has(result.err, *parts)
    return result.err


def test_sources(machine: Host, archive: Archive, tmp_path: Path) -> None:
    """mmdebstrap gets the suites of Debian 13 that the host's mirrors have, and only those."""
    if shutil.disk_usage(tmp_path).free < SIZE:
        pytest.skip(f"lab userland asks for {SIZE >> 30} GiB of free disk first")
    failed(machine, "mmdebstrap cannot make a Debian 13", "log/debian-13.log",
           "E: no space for base-files")
    begin = f"deb [signed-by={archive.keyring}] file:{archive.top}"
    assert sorted((tmp_path / "sources").read_text().splitlines()) == [
        f"{begin}/debian trixie main",
        f"{begin}/debian-security trixie-security main"]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[-3:] == ["trixie", str(machine.build / "debian-13/userland"), "-"]
    # A setting of the host's apt.
    assert '--aptopt=Acquire::http::Proxy::127.0.0.1 "DIRECT";' in arguments
    # It would name folders of the host.
    assert not [word for word in arguments if "Dir::" in word]
    assert not (machine.build / "debian-13/userland.inputs").exists()


def test_no_trixie(machine: Host, tmp_path: Path) -> None:
    """Mirrors without Debian 13 give one error, before anything is made."""
    other = Archive(tmp_path, {"bookworm": [VERSION], "trixie-security": [VERSION]})
    machine.use(other, f"file:{other.top}")
    failed(machine, "the mirrors in apt's sources have no trixie:")
    assert not (tmp_path / "sources").exists()


def test_no_network(machine: Host, archive: Archive, tmp_path: Path) -> None:
    """Mirrors that do not answer give one error that says so."""
    machine.use(archive, "http://127.0.0.1:1")
    failed(machine, "have no trixie (Failed to fetch", "check the network")
    assert not (tmp_path / "sources").exists()


def test_no_mmdebstrap(machine: Host, tmp_path: Path) -> None:
    """Without mmdebstrap the error names the command that installs it."""
    programs = tmp_path / "few"
    programs.mkdir()
    for name in ("apt-get", "apt-config", "git", "sh"):
        (programs / name).symlink_to(shutil.which(name) or "")
    machine.env["PATH"] = str(programs)
    failed(machine, "mmdebstrap is not installed", "packaging/build-deps/install image")
