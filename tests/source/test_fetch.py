# SPDX-License-Identifier: GPL-2.0-only
"""fetch: downloads, failures and recovery."""

import os
import shutil
import threading

from pathlib import Path

import pytest

from source import fake
from source.fake import PACKAGE, Archive, Host, Server, has, lacks


@pytest.fixture(scope="module")
def archive(place: Path) -> Archive:
    """Debian's archive."""
    return Archive(place, {
        "trixie": ["6.12.94-1"],
        "trixie-security": ["6.12.117-1", "6.12.116-1"],
        "bookworm-security": ["6.12.117-1~deb12u1"],
    })


@pytest.fixture
def server(archive: Archive) -> Server:
    """A web server with the archive."""
    return Server(archive.top)


@pytest.fixture
def pinned(archive: Archive) -> Path:
    """The pinned package."""
    return archive.packages["6.12.117-1"]


@pytest.fixture
def machine(tmp_path: Path, archive: Archive, pinned: Path) -> Host:
    """A machine whose pin is 6.12.117-1."""
    fresh = Host(tmp_path / "machine")
    fresh.use(archive, f"file:{archive.top}")
    fresh.pin(pinned)
    return fresh


def leftovers(machine: Host) -> list[str]:
    """Package files in the cache, finished or not."""
    return sorted(path.name for path in (machine.build / "cache").glob("*.deb"))


def test_from_bookworm_sources(machine: Host, pinned: Path) -> None:
    """A host with only bookworm suites gets the pinned package from trixie-security."""
    machine.script("fetch").good()
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()
    assert not machine.cached(pinned).is_symlink()


def test_one_line_sources(machine: Host, archive: Archive, pinned: Path) -> None:
    """A host with one-line sources for the main archive only gets it, too."""
    (machine.folder / "etc/sources.list.d/debian.sources").unlink()
    (machine.folder / "etc/sources.list").write_text(
        f"# deb file:/nowhere sid main\ndeb [arch=amd64] file:{archive.top}/debian/ trixie main\n")
    machine.script("fetch").good()
    assert leftovers(machine) == [pinned.name]


def test_cached(machine: Host, pinned: Path) -> None:
    """A second run uses the cache and needs no archive."""
    machine.script("fetch").good()
    before = machine.cached(pinned).stat().st_mtime_ns
    result = machine.script("fetch", FAULTLINE_APT_ETC="/nonexistent").good()
    assert "reading the package lists" not in result.out
    assert machine.cached(pinned).stat().st_mtime_ns == before


def test_truncated_cache(machine: Host, pinned: Path) -> None:
    """A truncated file in the cache is detected and fetched again."""
    machine.script("fetch").good()
    os.truncate(machine.cached(pinned), 1000)
    has(machine.script("fetch").good().out, "fetching it again", "1000 bytes")
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()


def test_altered_cache(machine: Host, pinned: Path) -> None:
    """A corrupted file in the cache is detected and fetched again."""
    machine.script("fetch").good()
    with open(machine.cached(pinned), "r+b") as file:
        file.seek(5000)
        file.write(b"?")
    has(machine.script("fetch").good().out, "wrong checksum", "fetching it again")
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()


def test_wrong_pin(machine: Host, pinned: Path) -> None:
    """A pinned checksum that differs from the registry's package is an error."""
    machine.pin(pinned, sha256="0" * 64)
    machine.script("fetch").bad("wrong checksum", "restore kernel/upstream")
    assert leftovers(machine) == []


def test_altered_on_mirror(machine: Host, tmp_path: Path) -> None:
    """A package altered by the mirror is refused."""
    mirror = Archive(tmp_path, {"trixie-security": ["6.12.117-1"]})
    machine.use(mirror, f"file:{mirror.top}")
    package = mirror.packages["6.12.117-1"]
    machine.pin(package)
    pool = mirror.top / "debian-security" / "pool" / package.name
    data = bytearray(pool.read_bytes())
    data[3000] ^= 1
    pool.write_bytes(data)
    machine.script("fetch").bad(package.name)
    assert leftovers(machine) == []


def test_wrong_key(machine: Host, tmp_path: Path) -> None:
    """An archive signed with another key is not trusted."""
    other = Archive(tmp_path, {})
    machine.script("fetch", FAULTLINE_APT_KEYRING=str(other.keyring)).bad("package lists")
    assert leftovers(machine) == []


def test_malformed_pin(machine: Host, pinned: Path) -> None:
    """A pin file with a malformed value is an error."""
    machine.pin(pinned, size="many")
    machine.script("fetch").bad("'size='", "restore the file")
    (machine.kernel / "upstream").unlink()
    machine.script("fetch").bad("upstream is missing")


def test_gone(machine: Host, pinned: Path) -> None:
    """If the pinned version has left the registry, the error lists the available versions."""
    machine.pin(pinned, version="6.12.90-1", upstream="6.12.90", file=f"{PACKAGE}_6.12.90-1.deb")
    machine.script("fetch").bad("6.12.90-1 is not in the registry", "6.12.117-1", "6.12.116-1",
                                "6.12.94-1", "UPSTREAM=latest")
    assert leftovers(machine) == []


def test_latest(machine: Host, archive: Archive, pinned: Path) -> None:
    """UPSTREAM=latest fetches the newest version and says that it is not the pin."""
    old = archive.packages["6.12.94-1"]
    machine.pin(old)
    result = machine.script("fetch", UPSTREAM="latest").good()
    assert "6.12.117-1, not the pin (6.12.94-1)" in result.out
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()
    assert "not the pin" not in machine.script("fetch").good().out


def test_listing(machine: Host) -> None:
    """--list prints all versions in Debian's order, newest first."""
    assert (machine.script("fetch", "--list").good().out.splitlines()[1:]
            == ["6.12.117-1 (the pin)", "6.12.117-1~deb12u1", "6.12.116-1", "6.12.94-1"])


def test_no_network(machine: Host, archive: Archive) -> None:
    """Without a network the error says so, and nothing is left behind."""
    machine.use(archive, "http://127.0.0.1:1")
    machine.script("fetch").bad("cannot read the package lists", "network", "UPSTREAM_TARBALL")
    assert leftovers(machine) == []


def test_lists_out_of_date(machine: Host, tmp_path: Path) -> None:
    """An index that does not match the signed one is an error, not an archive without it."""
    other = Archive(tmp_path, {"trixie": ["6.12.117-1"]})
    machine.use(other, f"file:{other.top}")
    for index in (other.top / "debian/dists/trixie/main").glob("*/Packages"):
        index.write_text("")
    machine.script("fetch").bad("cannot read the package lists (Hash Sum mismatch)",
                                "check the network")
    machine.script("fetch", FAULTLINE_APT_WAITS="5s").bad("FAULTLINE_APT_WAITS=5s is not a list")


def test_mirror_is_being_updated(machine: Host, tmp_path: Path) -> None:
    """Indexes may match the signed one a few seconds later."""
    other = Archive(tmp_path, {"trixie": ["6.12.117-1"]})
    machine.use(other, f"file:{other.top}")
    indexes = {path: path.read_text()
               for path in (other.top / "debian/dists/trixie/main").glob("*/Packages")}
    for path in indexes:
        path.write_text("")
    restore = threading.Timer(3, lambda: [path.write_text(text)
                                          for path, text in indexes.items()])
    restore.start()
    out = machine.script("fetch", "--list", FAULTLINE_APT_WAITS="").good().out
    restore.join()
    assert "6.12.117-1" in out and "out of date" not in out


def test_resume(machine: Host, archive: Archive, pinned: Path, server: Server) -> None:
    """An interrupted download resumes where it stopped."""
    machine.use(archive, server.url)
    server.cut = 150_000
    machine.script("fetch").bad("download", "run this again")
    assert leftovers(machine) == []
    server.cut = 0
    server.requests.clear()
    machine.script("fetch").good()
    ranges = [wanted for path, wanted in server.requests if path.endswith(".deb")]
    assert ranges == ["bytes=150000-"]
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()


def fill(machine: Host, leave: int) -> None:
    """Fill the machine's disk, leaving some space."""
    size = shutil.disk_usage(machine.build).free - leave
    try:
        with open(machine.build / "filler", "wb", buffering=0) as file:
            while size > 0:
                size -= file.write(bytes(min(size, 65536)))
    except OSError:
        pass


def test_no_space(machine: Host, archive: Archive, pinned: Path, server: Server,
                  small_disk: Path) -> None:
    """A disk without space for the package is detected before the download."""
    machine.use(archive, server.url)
    machine.env["BUILD"] = str(small_disk / "build")
    machine.script("fetch", "--list").good()
    fill(machine, pinned.stat().st_size - 300_000)
    server.requests.clear()
    machine.script("fetch").bad("disk full", "needs about", "free some space", "BUILD=")
    assert [path for path, _ in server.requests if path.endswith(".deb")] == []


def test_disk_fills(machine: Host, archive: Archive, pinned: Path, server: Server,
                    small_disk: Path) -> None:
    """A disk that fills up during the download is reported; with space it resumes."""
    machine.use(archive, server.url)
    machine.env["BUILD"] = str(small_disk / "build")
    server.cut, server.stop_at_cut = 100_000, False
    server.before_cut = lambda: fill(machine, 0)
    machine.script("fetch").bad("disk full (or quota", "free some space")
    assert leftovers(machine) == []
    server.cut = 0
    (machine.build / "filler").unlink()
    machine.script("fetch").good()
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()


def test_mirror_list(machine: Host, pinned: Path, server: Server) -> None:
    """A host whose sources are mirror lists (as in cloud images) gets the package."""
    for name in ("debian", "debian-security"):
        (machine.folder / f"{name}.list").write_text(f"{server.url}/{name}\n")
    (machine.folder / "etc/sources.list.d/debian.sources").write_text(
        f"Types: deb deb-src\nURIs: mirror+file:{machine.folder}/debian.list\n"
        f"Suites: bookworm\nComponents: main\n\nTypes: deb deb-src\n"
        f"URIs: mirror+file:{machine.folder}/debian-security.list\n"
        "Suites: bookworm-security\nComponents: main\n")
    machine.script("fetch").good()
    assert machine.cached(pinned).read_bytes() == pinned.read_bytes()


def test_no_apt(machine: Host) -> None:
    """Without apt, the error suggests UPSTREAM_TARBALL."""
    machine.script("fetch", PATH=str(machine.folder)).bad("no apt", "UPSTREAM_TARBALL")


def test_no_debian(machine: Host, archive: Archive) -> None:
    """apt sources without a Debian archive are an error."""
    (machine.folder / "etc/sources.list.d/debian.sources").write_text(
        f"Types: deb\nURIs: file:{archive.top}\nSuites: noble\nComponents: main\n")
    machine.script("fetch").bad("name no Debian archive", "UPSTREAM_TARBALL")


def test_odd_sources(machine: Host) -> None:
    """Credentials, disabled and foreign archives, CDs and deb-src are read as apt does."""
    (machine.folder / "etc/sources.list.d/debian.sources").write_text(
        "Enabled: no\nTypes: deb\nURIs: http://off.invalid/debian\nSuites: sid\n"
        "Components: main\n\nTypes: deb deb-src\nSuites: trixie-security\n"
        "URIs: http://me:p%40ss@127.0.0.1:1/debian-security/\nComponents: main contrib\n"
        "Architectures: amd64 arm64\nSigned-By: /nonexistent.gpg\n")
    (machine.folder / "etc/sources.list").write_text(
        "deb cdrom:[Debian GNU/Linux 12 - main]/ bookworm main\n"
        "deb-src http://source.invalid/debian trixie main\n"
        "deb http://ubuntu.invalid/ubuntu noble main\n"
        "deb http://contrib.invalid/debian trixie contrib\n"
        "deb [signed-by=/nonexistent.gpg] http://flat.invalid/ ./\n")
    machine.script("fetch").bad("package lists")
    written = (machine.build / "cache/apt/sources.list").read_text()
    has(written, "http://me:p%40ss@127.0.0.1:1/debian-security trixie-security main\n",
        "http://me:p%40ss@127.0.0.1:1/debian trixie main\n")
    lacks(written, "cdrom", ".invalid", "arm64", "/nonexistent")


def test_broken_sources(machine: Host) -> None:
    """If apt cannot read the host's sources, the error says what apt says."""
    (machine.folder / "etc/sources.list").write_text("deb http://mirror.invalid/debian\n")
    machine.script("fetch").bad("apt cannot read its sources (Malformed entry 1", "repair them")


def test_host_apt_untouched(machine: Host) -> None:
    """The host's apt hooks do not run, but its settings apply."""
    hook = machine.folder / "hook-ran"
    conf = machine.folder / "apt.conf"
    conf.write_text(conf.read_text() + f'APT::Update::Post-Invoke {{ "touch {hook}"; }};\n'
                    f'APT::Update::Pre-Invoke {{ "touch {hook}"; }};\n')
    machine.script("fetch").good()
    assert not hook.exists()


def test_unreadable_tarball(machine: Host, archive: Archive) -> None:
    """A missing UPSTREAM_TARBALL is an error; an existing one needs no download."""
    machine.use(archive, "http://127.0.0.1:1")
    machine.script("fetch", UPSTREAM_TARBALL="/nonexistent.tar.xz").bad("no such file")
    tarball = fake.kernel_tarball(machine.folder, "6.12.50")
    assert tarball.name in machine.script("fetch", UPSTREAM_TARBALL=str(tarball)).good().out


def test_help_names_environment(machine: Host) -> None:
    """--help of every script documents the environment."""
    for script in ("fetch", "tree", "export", "rebase"):
        has(machine.script(script, "--help").good().out, "UPSTREAM=latest",
            "UPSTREAM_TARBALL", "BUILD", "FAULTLINE_KERNEL_DIR")
