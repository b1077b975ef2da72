# SPDX-License-Identifier: GPL-2.0-only
"""A small kernel with a queue, for the tests of the source scripts; see fake.py."""
from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from source import fake
from source.fake import Host


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that the tests of a file share."""
    for tool in fake.NEEDED:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="faultline-source-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def package(place: Path) -> Path:
    """The pinned source package."""
    return fake.source_package(place, "6.12.117-1")


@pytest.fixture(scope="module")
def developed(place: Path, package: Path) -> Host:
    """A machine with a queue, whose kernel/ the tests copy."""
    host = fake.packaged_host(place / "developed", package)
    fake.develop(host)
    return host


@pytest.fixture
def empty(tmp_path: Path, package: Path) -> Host:
    """A machine without a queue."""
    return fake.packaged_host(tmp_path / "machine", package)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk],
                      capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root and mount")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=False)


@pytest.fixture
def machine(empty: Host, developed: Host) -> Host:
    """A machine with the queue, and its tree made."""
    shutil.copytree(developed.kernel, empty.kernel, dirs_exist_ok=True, symlinks=True)
    empty.script("tree").good()
    return empty
