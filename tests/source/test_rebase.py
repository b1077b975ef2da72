# SPDX-License-Identifier: GPL-2.0-only
"""rebase: moves the pin if all patches apply, else reports and changes nothing."""

import shutil

from pathlib import Path

import pytest

from source import fake
from source.fake import Archive, Host, Result, snapshot, has


@pytest.fixture(scope="module")
def archive(place: Path) -> Archive:
    """Debian's archive."""
    return Archive(place, {"trixie": ["6.12.94-1"],
                           "trixie-security": ["6.12.118-1", "6.12.117-1", "6.12.116-2"]},
                   configs=("6.12.120-1", "6.12.118-1", "6.12.114-1"),
                   power_configs=("6.12.113-1", "6.12.107-1"))


@pytest.fixture(scope="module")
def package(archive: Archive) -> Path:
    """The pinned source package, from the archive."""
    return archive.packages["6.12.117-1"]


@pytest.fixture
def machine(empty: Host, developed: Host, archive: Archive) -> Host:
    """A machine with the queue and the archive, no tree yet."""
    empty.use(archive, f"file:{archive.top}")
    for name in ("overlay", "patches"):
        shutil.copytree(developed.kernel / name, empty.kernel / name, dirs_exist_ok=True)
    return empty


def stale(machine: Host) -> str:
    """Make the second patch one that does not apply; returns its name."""
    path = next((machine.kernel / "patches").glob("mm-memory-*"))
    path.write_text(path.read_text().replace(" int memory_19;", " int memory_gone;"))
    return path.name


def test_moves_the_pin(machine: Host, archive: Archive) -> None:
    """To an older release: offsets are reported, the pin moves, patches are refreshed."""
    result = machine.script("rebase", "6.12.94").good()
    has(result.out,
        "offset   hooks/mm-faultline-hook-in-mmap.patch: mm/mmap.c hunk 1: 23 lines",
        "applies  mm-memory-", "2 of 2 patches apply, 1 of them with an offset",
        "0 of 2 overlay files collide")
    pin = (machine.kernel / "upstream").read_text()
    package = archive.packages["6.12.94-1"]
    has(pin, "# a comment that stays", "version=6.12.94-1\n", "upstream=6.12.94\n",
        f"file={package.name}\n", f"size={package.stat().st_size}\n",
        f"sha256={fake.digest(package)}\n")
    assert not (machine.build / "rebase-6.12.94-1").exists()
    before = snapshot(machine.kernel)
    machine.script("tree").good()
    assert "Linux 6.12.94" in machine.git("show", "-s", "--format=%s", "upstream")
    assert ", 0 changed" in machine.script("export").good().out
    assert snapshot(machine.kernel) == before
    assert "offset   " not in machine.script("rebase", "6.12.94-1").good().out


def test_with_a_tree(machine: Host) -> None:
    """With an existing tree, the next make tree follows the new pin."""
    machine.script("tree").good()
    machine.script("rebase", VERSION="6.12.116").good()
    machine.script("tree").good()
    assert "SUBLEVEL = 116" in (machine.tree / "Makefile").read_text()
    assert "int hook;" in (machine.tree / "mm/mmap.c").read_text()


def test_latest(machine: Host) -> None:
    """VERSION=latest uses the newest; a dry run changes nothing."""
    before = snapshot(machine.kernel)
    for result in (machine.script("rebase", "--dry-run", "latest"),
                   machine.script("rebase", VERSION="latest", DRY_RUN="1")):
        has(result.good().out, "from 6.12.117-1 to 6.12.118-1", "dry run",
            "hunk 1: -1 lines")
        assert snapshot(machine.kernel) == before
    machine.script("rebase", "latest").good()
    assert "version=6.12.118-1" in (machine.kernel / "upstream").read_text()


@pytest.mark.parametrize("version, config", [("6.12.118-1", "6.12.118-1"),
                                             ("6.12.116-2", "6.12.118-1"),
                                             ("6.12.94-1", "6.12.114-1")])
def test_config_moves(machine: Host, version: str, config: str) -> None:
    """The configurations move along, or to the nearest version; of two to the newer one."""
    path = machine.pin_config("6.12.117-1")
    gone = f"configuration: linux-config-6.12 {version} is not in the registry (any more); "
    before = snapshot(machine.kernel)
    out = machine.script("rebase", version, DRY_RUN="1").good().out
    has(out, "2 of 2 patches apply", *([] if version == config else [
        f"{gone}{config} is the nearest"]))
    assert (gone in out) == (version != config)
    assert snapshot(machine.kernel) == before
    machine.script("rebase", version).good()
    has(path.read_text(), "# a comment that stays", f"version={config}\n",
        f"file=linux-config-6.12_{config}_")
    assert f"version={version}" in (machine.kernel / "upstream").read_text()


def test_config_alone(machine: Host) -> None:
    """CONFIG=nearest moves only the pin of the configurations, once."""
    path = machine.pin_config("6.12.117-1")
    before = snapshot(machine.kernel)
    has(machine.script("rebase", CONFIG="nearest", DRY_RUN="1").good().out,
        "would move to 6.12.118-1", "nothing was changed")
    assert snapshot(machine.kernel) == before
    machine.script("rebase", "--config").good()
    assert "version=6.12.118-1\n" in path.read_text()
    assert "version=6.12.117-1\n" in (machine.kernel / "upstream").read_text()
    has(machine.script("rebase", CONFIG="nearest").good().out, "is pinned already")


def test_config_of_power(machine: Host) -> None:
    """The configurations for another architecture move by themselves, to its nearest."""
    ours, power = machine.pin_config("6.12.114-1"), machine.pin_config("6.12.107-1", "ppc64el")
    out = machine.script("rebase", "6.12.118", DRY_RUN="1").good().out
    has(out, "configuration: linux-config-6.12 6.12.118-1 is there",
        "configuration: linux-config-6.12:ppc64el 6.12.118-1 is not in the registry (any more); "
        "6.12.113-1 is the nearest")
    machine.script("rebase", "6.12.118").good()
    has(ours.read_text(), "version=6.12.118-1\n", "_amd64.deb\n")
    has(power.read_text(), "version=6.12.113-1\n", "file=linux-config-6.12_6.12.113-1_ppc64el.deb")
    has(machine.script("rebase", CONFIG="nearest").good().out,
        "linux-config-6.12 6.12.118-1 is pinned already",
        "linux-config-6.12:ppc64el 6.12.113-1 is pinned already")


def test_config_unread(machine: Host, archive: Archive, tmp_path: Path) -> None:
    """If one architecture's lists cannot be read, its pin stays, and the others move."""
    www = shutil.copytree(archive.top, tmp_path / "www")
    machine.use(archive, f"file:{www}")
    (www / "debian-security/dists/trixie-security/main/binary-ppc64el/Packages").write_text("")
    ours, power = machine.pin_config("6.12.114-1"), machine.pin_config("6.12.107-1", "ppc64el")
    before = power.read_text()
    has(machine.script("rebase", "6.12.118").good().out,
        "configuration: linux-config-6.12:ppc64el stays at 6.12.107-1",
        "make rebase CONFIG=nearest")
    has(ours.read_text(), "version=6.12.118-1\n")
    assert power.read_text() == before
    machine.script("rebase", CONFIG="nearest").bad("cannot read the package lists")
    assert power.read_text() == before


def configured(machine: Host, flavour: str) -> Result:
    """Run configure; with this small tree it ends in an error, also if the base was there."""
    (machine.kernel / "config").mkdir(exist_ok=True)
    for name in ("faultline", "faultline-x86", "distribution", f"flavour-{flavour}"):
        (machine.kernel / "config" / f"{name}.config").write_text("")
    machine.script("tree").good()
    return machine.script("configure", flavour)


@pytest.mark.parametrize("flavour, arch", [("cloud", "amd64"), ("powerpc64le", "ppc64el")])
def test_config_gone(machine: Host, flavour: str, arch: str) -> None:
    """A build whose pinned configuration is gone names the command that moves the pin."""
    pin = machine.pin_config("6.12.117-1", arch)
    configured(machine, flavour).bad("linux-config-6.12 6.12.117-1", f"kernel/{pin.name} ",
                                     "not in the registry", "make rebase CONFIG=nearest")


def test_config_unlisted(machine: Host, archive: Archive, tmp_path: Path) -> None:
    """The pool still has a version that the lists have dropped; its checksum is checked."""
    name = "config.ppc64el_none_powerpc64le"
    package = fake.config_package(tmp_path, "6.12.99-1", "ppc64el", name, "CONFIG_POWER=y\n")
    machine.pin_config("6.12.99-1", "ppc64el", package)
    pool = archive.top / "debian-security/pool/updates/main/l/linux"
    pool.mkdir(parents=True, exist_ok=True)
    target = pool / package.name
    target.write_bytes(package.read_bytes()[:-1] + b"x")
    configured(machine, "powerpc64le").bad("not in the registry", "make rebase CONFIG=nearest")
    assert not machine.cached(package).exists()
    shutil.copy(package, target)
    configured(machine, "powerpc64le")
    found = machine.build / "cache/config" / fake.digest(package)[:12] / name
    assert found.read_text() == "CONFIG_POWER=y\n"


@pytest.mark.parametrize("tree, way", [(False, "git am --reject"), (True, "git am -3")])
def test_failing_patch(machine: Host, tree: bool, way: str) -> None:
    """If a patch fails, the report names file, hunk and lines, and nothing is changed.

    A 3-way merge needs the blobs of the old version, which only build/tree has.
    """
    if tree:
        machine.script("tree").good()
    name = stale(machine)
    before = snapshot(machine.kernel)
    result = machine.script("rebase", "6.12.116-2").bad(
        name, "nothing was changed", way, "CONTINUE=1", "rebase-6.12.116-2")
    has(result.out, f"FAILS    {name}: mm/memory.c hunk 1 (@@ -17,7 +17,7 @@)",
        "int memory_gone;", "1 of 2 patches apply")
    assert snapshot(machine.kernel) == before
    machine.script("rebase", "6.12.116-2").bad(name)
    assert snapshot(machine.kernel) == before


def test_go_on(machine: Host) -> None:
    """After manual work, CONTINUE=1 checks that no patch is missing and moves the pin."""
    name = stale(machine)
    machine.script("rebase", "6.12.116").bad(name)
    machine.script("rebase", "6.12.116", CONTINUE="1").bad(name, "is not on the branch")
    where = machine.build / "rebase-6.12.116-2"
    path = where / "mm/memory.c"
    path.write_text(path.read_text().replace("int memory_20;", "int by_hand;"))
    machine.script("rebase", "6.12.116", CONTINUE="1").bad("uncommitted changes (mm/memory.c)")
    machine.git("commit", "--quiet", "-a", "-m", "mm: memory: change Ünicode", cwd=where)
    machine.script("rebase", "6.12.116").bad("commits that are not in kernel/", "CONTINUE=1")
    mine = machine.kernel / "overlay/mm/mine.c"
    mine.write_text("int mine;\n")
    machine.script("rebase", "6.12.116", CONTINUE="1").bad("kernel/overlay has changed")
    assert mine.read_text() == "int mine;\n"
    mine.unlink()
    machine.script("rebase", "6.12.116", "--continue").good()
    assert "version=6.12.116-2" in (machine.kernel / "upstream").read_text()
    assert "+int by_hand;" in (machine.kernel / "patches" / name).read_text()
    machine.script("tree").good()
    assert "int by_hand;" in (machine.tree / "mm/memory.c").read_text()


def test_audited(machine: Host) -> None:
    """A changed audit site stops it; after updating the list it continues.  A dry run tells
    about the configurations as well."""
    machine.pin_config("6.12.117-1")
    machine.overlay("mm/site.c", "void site(void)\n{\n\tvma_start_write(vma);\n}\n")
    (machine.kernel / "audit").mkdir()
    sites = machine.kernel / "audit" / "spf.sites"
    sites.write_text("# a comment\nmm/gone.c: gone: vma_start_write()\n")
    before = snapshot(machine.kernel)
    result = machine.script("rebase", "6.12.116").bad(
        "spf.sites differs in 2 places", "nothing was changed", "--update", "CONTINUE=1")
    has(result.out, "2 of 2 patches apply", "AUDIT    - mm/gone.c: gone: vma_start_write()",
        "AUDIT    + mm/site.c: site: vma_start_write()")
    assert "configuration:" not in result.out
    result = machine.script("rebase", "6.12.116", DRY_RUN="1").bad("in 2 places")
    has(result.out, "configuration: linux-config-6.12 6.12.116-2 is not in the registry",
        "6.12.118-1 is the nearest", "dry run: nothing was changed")
    assert snapshot(machine.kernel) == before
    machine.script("rebase", "6.12.116", CONTINUE="1").bad("in 2 places")
    result = machine.script("rebase", "6.12.116", CONTINUE="1", DRY_RUN="1").bad("in 2 places")
    has(result.out, "6.12.118-1 is the nearest", "dry run: nothing was changed")
    assert snapshot(machine.kernel) == before
    where = machine.build / "rebase-6.12.116-2"
    machine.script("audit", "--update", "--tree", str(where)).good()
    result = machine.script("rebase", "6.12.116", CONTINUE="1").good()
    assert "1 sites are as in" in result.out
    assert "version=6.12.116-2" in (machine.kernel / "upstream").read_text()
    assert "1 sites are as in" in machine.script("rebase", "6.12.117").good().out


def test_overlay_collides(machine: Host) -> None:
    """An overlay file that the other release also has is reported, and nothing is changed."""
    machine.overlay("lib/link", "mine\n")
    before = snapshot(machine.kernel)
    result = machine.script("rebase", "6.12.94").bad("overlay file lib/link", "rename or remove")
    has(result.out, "FAILS    overlay file lib/link", "1 of 3 overlay files collide",
        "2 of 2 patches apply")
    assert snapshot(machine.kernel) == before


def test_unexported_work(machine: Host) -> None:
    """Unexported work in build/tree stops the rebase before any download."""
    machine.script("tree").good()
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    machine.script("rebase", "6.12.94").bad("uncommitted changes", "make export")
    machine.commit("mm: mine")
    result = machine.script("rebase", "6.12.94").bad("not in kernel/", "make export")
    assert "reading the package lists" not in result.out


def test_bad_versions(machine: Host) -> None:
    """A missing or unavailable version is an error that lists the available ones."""
    machine.script("rebase").bad("make rebase VERSION=")
    machine.script("rebase", "6.12.1").bad("6.12.1 is not in the registry", "6.12.118-1",
                                           "6.12.94-1")
    machine.script("rebase", "6.12.94", "--continue").bad("no ", "to continue in")
