# SPDX-License-Identifier: GPL-2.0-only
"""Programs that tests unpack from Debian packages: where they come from, and what can be wrong."""
from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path

import pytest

from faultline.common import Fail
from lib import fetched
from source.fake import PACKAGE, Archive, Host

DAY = 24 * 3600
VERSION = "6.12.117-1"


@pytest.fixture(scope="module")
def archive(place: Path) -> Archive:
    """Debian's archive with a suite that the host does not use."""
    return Archive(place, {"forky": [VERSION]})


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Host:
    """This process works as on a machine of its own, which refuses expired metadata."""
    fresh = Host(tmp_path / "machine")
    fresh.use(archive, f"file:{archive.top}")
    with (fresh.folder / "apt.conf").open("a", encoding="utf-8") as conf:
        conf.write('Dir::Etc::Parts "/dev/null";\nDir::Etc::Main "/dev/null";\n')
    for name, value in (("BUILD", fresh.build), ("FAULTLINE_APT_ETC", fresh.folder / "etc"),
                        ("APT_CONFIG", fresh.folder / "apt.conf"), *fresh.env.items()):
        monkeypatch.setenv(name, str(value))
    return fresh


def fetch(suite: str = "forky") -> Path:
    """Fetch the file in the package."""
    return fetched.folder_of("tool", suite, {PACKAGE: ("./usr/src/*",)}, 1, "install tool")


def test_fetched_once(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """It is fetched from a suite that the host does not use, once, and kept by suite."""
    assert (fetch() / "usr/src" / f"{PACKAGE}.tar.xz").is_file()
    assert "downloading" in capsys.readouterr().err
    assert fetch().name == "tool-forky"
    assert capsys.readouterr() == ("", "")
    archive.publish(archive.keyring.parent, "sid", [VERSION])
    assert fetch("sid").name == "tool-sid"


def test_expired(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Metadata after their last day are accepted, with a note that says so."""
    archive.publish(archive.keyring.parent, "forky", [VERSION],
                    until=formatdate(time.time() - 3 * DAY, usegmt=True))
    assert (fetch() / "usr/src" / f"{PACKAGE}.tar.xz").is_file()
    assert "forky has passed its last day" in capsys.readouterr().err


def test_expired_and_forged(archive: Archive, tmp_path: Path) -> None:
    """Expired metadata with the signature of another key are not accepted."""
    other = Archive(tmp_path, {})
    other.publish(tmp_path, "forky", [VERSION],
                  until=formatdate(time.time() - 3 * DAY, usegmt=True))
    (archive.top / "debian/dists/forky/InRelease").write_bytes(
        (other.top / "debian/dists/forky/InRelease").read_bytes())
    with pytest.raises(Fail, match=r"cannot get tool-forky \(.*install tool"):
        fetch()


def test_no_network(machine: Host, archive: Archive) -> None:
    """Without a network the error says so, and what to do instead."""
    machine.use(archive, "http://127.0.0.1:1")
    with pytest.raises(Fail, match="check the network .*, or install tool"):
        fetch()
