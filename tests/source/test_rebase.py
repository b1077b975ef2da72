# SPDX-License-Identifier: GPL-2.0-only
"""rebase: moves the pin if all patches apply, else reports and changes nothing."""

import shutil

from pathlib import Path

import pytest

from source import fake
from source.fake import Archive, Host, Result, snapshot, has, lacks


@pytest.fixture(scope="module")
def archive(place: Path) -> Archive:
    """Debian's archive."""
    return Archive(place, {"trixie": ["6.12.94-1", "6.12.91-1", "6.12.90-1"],
                           "trixie-security": ["6.12.118-1", "6.12.117-1", "6.12.116-2"]},
                   configs=("6.12.120-1", "6.12.118-1", "6.12.114-1"),
                   other_configs=("6.12.113-1", "6.12.107-1"))


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


@pytest.mark.parametrize("arch", ["ppc64el", "arm64"])
def test_config_of_other(machine: Host, arch: str) -> None:
    """The configurations for another architecture move by themselves, to its nearest."""
    ours, other = machine.pin_config("6.12.114-1"), machine.pin_config("6.12.107-1", arch)
    out = machine.script("rebase", "6.12.118", DRY_RUN="1").good().out
    has(out, "configuration: linux-config-6.12 6.12.118-1 is there",
        f"configuration: linux-config-6.12:{arch} 6.12.118-1 is not in the registry (any more); "
        "6.12.113-1 is the nearest")
    machine.script("rebase", "6.12.118").good()
    has(ours.read_text(), "version=6.12.118-1\n", "_amd64.deb\n")
    has(other.read_text(), "version=6.12.113-1\n", f"file=linux-config-6.12_6.12.113-1_{arch}.deb")
    has(machine.script("rebase", CONFIG="nearest").good().out,
        "linux-config-6.12 6.12.118-1 is pinned already",
        f"linux-config-6.12:{arch} 6.12.113-1 is pinned already")


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
    for name in ("faultline", "faultline-hugetlb", "faultline-arm64", "distribution",
                 f"flavour-{flavour}"):
        (machine.kernel / "config" / f"{name}.config").write_text("")
    machine.script("tree").good()
    return machine.script("configure", flavour)


@pytest.mark.parametrize("flavour, arch", [("cloud", "amd64"), ("powerpc64le", "ppc64el"),
                                           ("generic-arm64", "arm64")])
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


@pytest.mark.parametrize("tree", [False, True])
def test_failing_patch(machine: Host, tree: bool) -> None:
    """If a patch fails, the report names file, hunk and lines, and nothing is changed.

    This one was edited, so that it cannot be merged either.  A second run starts over, as long
    as nobody has worked in the scratch tree.
    """
    if tree:
        machine.script("tree").good()
    name = stale(machine)
    before = snapshot(machine.kernel)
    result = machine.script("rebase", "6.12.116-2").bad(
        name, "nothing was changed", "apply by hand mm/memory.c.rej", "`git am --continue`",
        "make rebase CONTINUE=1", "rebase-6.12.116-2")
    has(result.out, f"FAILS    {name}: mm/memory.c hunk 1 (@@ -17,7 +17,7 @@)",
        "int memory_gone;", "1 of 2 patches apply")
    has((machine.build / "rebase-6.12.116-2/mm/memory.c.rej").read_text(), "-int memory_20;")
    assert snapshot(machine.kernel) == before
    machine.script("rebase", "6.12.116-2").bad(name)
    assert snapshot(machine.kernel) == before
    (machine.build / "rebase-6.12.116-2/mm/memory.c").write_text("int by_hand;\n")
    machine.script("rebase", "6.12.116-2").bad("uncommitted changes (mm/memory.c)", "CONTINUE=1")


@pytest.mark.parametrize("tree", [False, True])
def test_merged_patch(machine: Host, tree: bool) -> None:
    """A patch whose surroundings have changed is merged, and shown for the review."""
    if tree:
        machine.script("tree").good()
    name = next((machine.kernel / "patches").glob("mm-memory-*")).name
    before = snapshot(machine.kernel)
    has(machine.script("rebase", "6.12.90", DRY_RUN="1").good().out, f"merged   {name}")
    assert snapshot(machine.kernel) == before
    review = machine.build / "rebase-6.12.90-1.patches.diff"
    has(machine.script("rebase", "6.12.90").good().out, f"merged   {name}",
        "2 of 2 patches apply, 1 of them with an offset and 1 by a 3-way merge",
        "1 patches are not only moved", review.name)
    has(review.read_text(), f"--- a/{name}\n+++ b/{name}\n",
        "- int memory_18;\n+ /* changed */ int memory_18;\n")
    lacks(review.read_text(), "mmap", "@@ -17,7", "index ")
    assert "version=6.12.90-1" in (machine.kernel / "upstream").read_text()
    machine.script("tree").good()
    has((machine.tree / "mm/memory.c").read_text(), "/* changed */ int memory_18;\n",
        "int memory_20_changed;")
    machine.script("rebase", "6.12.90").good()
    assert not review.exists()


def test_conflict(machine: Host) -> None:
    """A conflict is left to `git am`, which goes on with the rest; CONTINUE=1 needs no version."""
    machine.script("tree").good()
    machine.change("mm/memory.c", "int memory_40;", "int memory_40_changed;")
    machine.commit("mm: memory: [again] change")
    machine.script("export").good()
    shutil.rmtree(machine.tree)
    first, second = sorted((machine.kernel / "patches").glob("mm-memory-*"), reverse=True)
    where = machine.build / "rebase-6.12.91-1"
    result = machine.script("rebase", "6.12.91").bad(
        first.name, "resolve the conflicts in mm/memory.c", "`git add`", "`git am --continue`",
        "make rebase CONTINUE=1", where.name)
    has(result.out, f"FAILS    {first.name}", "2 of 3 patches apply")
    machine.script("rebase", "6.12.91").bad("resolve the conflicts in mm/memory.c")
    machine.script("rebase", CONTINUE="1").bad("uncommitted changes (mm/memory.c)", where.name)
    path = where / "mm/memory.c"
    has(path.read_text(), "<<<<<<<", "int memory_20_changed;", "/* changed */ int memory_20;")
    path.write_text(fake.lines("memory").replace("int memory_20;", "int by_hand;"))
    machine.script("rebase", "6.12.91").bad("uncommitted changes (mm/memory.c)")
    machine.git("commit", "--quiet", "-a", "-m", "mm: memory: change Ünicode", cwd=where)
    machine.script("rebase", CONTINUE="1").bad("`git am` has not finished", where.name)
    machine.git("reset", "--quiet", "--soft", "HEAD^", cwd=where)
    machine.git("am", "--continue", cwd=where)
    (machine.build / "rebase-6.12.94-1").mkdir()
    machine.script("rebase", CONTINUE="1").bad("which version?", "6.12.91-1 and 6.12.94-1")
    (machine.build / "rebase-6.12.94-1").rmdir()
    has(machine.script("rebase", CONTINUE="1").good().out, "1 patches are not only moved")
    assert "version=6.12.91-1" in (machine.kernel / "upstream").read_text()
    has(first.read_text(), "+int by_hand;", "From: =?UTF-8?q?Zo=C3=AB=20Dev?=")
    has(second.read_text(), "[PATCH] mm: memory: [again] change", "+int memory_40_changed;")
    machine.script("rebase", CONTINUE="1").bad("to continue in")


def test_old_source_gone(machine: Host, archive: Archive, package: Path, tmp_path: Path) -> None:
    """Without the old source nothing is merged, and the rest of the patch is there as .rej."""
    www = shutil.copytree(archive.top, tmp_path / "www")
    machine.use(archive, f"file:{www}")
    machine.cached(package).unlink()
    (www / "debian-security/pool" / package.name).unlink()
    name = next((machine.kernel / "patches").glob("mm-memory-*")).name
    has(machine.script("rebase", "6.12.90").bad("apply by hand mm/memory.c.rej").out,
        "the old source cannot be had", f"FAILS    {name}")


def test_go_on(machine: Host) -> None:
    """After manual work, CONTINUE=1 checks that no patch is missing and moves the pin."""
    name = stale(machine)
    machine.script("rebase", "6.12.116").bad(name)
    where = machine.build / "rebase-6.12.116-2"
    (where / "mm/memory.c.rej").unlink()
    machine.script("rebase", "6.12.116", CONTINUE="1").bad("`git am` has not finished")
    machine.git("am", "--quit", cwd=where)
    machine.script("rebase", "6.12.116", CONTINUE="1").bad(name, "is not on the branch")
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
    # Both branches have the same code: there is nothing to compare.
    lacks(result.err, ".sites.diff")
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


def test_audited_diff(machine: Host) -> None:
    """The functions whose sites differ are compared, old with new, each once and whole."""
    code = "{\n\tint a; /* a comment */\n\n\tvma_start_write(vma);\n"
    machine.overlay("mm/site.c", f"int other(void)\n{{\n}}\n\nvoid site(void)\n{code}}}\n")
    machine.overlay("mm/kept.c", f"void kept(void)\n{code}}}\n")
    machine.script("tree").good()
    (machine.kernel / "audit").mkdir()
    machine.script("audit", "--update").good()
    machine.script("rebase", "6.12.116").good()
    stale(machine)
    machine.script("rebase", "6.12.94").bad("does not apply")
    where = machine.build / "rebase-6.12.94-1"
    machine.git("am", "--quit", cwd=where)
    machine.git("checkout", "--quiet", "--force", "faultline", cwd=where)
    (where / "mm/memory.c.rej").unlink()
    text = (where / "mm/memory.c").read_text()
    (where / "mm/memory.c").write_text(text.replace("int memory_20;", "int by_hand;"))
    site = (where / "mm/site.c").read_text()
    (where / "mm/site.c").write_text(
        site.replace("\tvma_start_write(vma);\n", "\tvma_start_write(vma);\n" * 2
                     + "\tvma_mark_detached(vma, true);\n"))
    machine.git("commit", "--quiet", "-a", "-m", "mm: memory: change Ünicode", cwd=where)
    diff = machine.build / "rebase-6.12.94-1.sites.diff"
    machine.script("rebase", CONTINUE="1").bad("differs in 3 places", diff.name)
    assert diff.read_text() == (
        "--- a/mm/site.c site()\n+++ b/mm/site.c site()\n@@ -1,5 +1,7 @@\n {\n"
        " \tint a; /* a comment */\n \n \tvma_start_write(vma);\n+\tvma_start_write(vma);\n"
        "+\tvma_mark_detached(vma, true);\n }\n")


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
    machine.script("rebase", CONTINUE="1").bad("no ", "to continue in")
    machine.script("rebase", "6.12.1").bad("6.12.1 is not in the registry", "6.12.118-1",
                                           "6.12.94-1")
    machine.script("rebase", "6.12.94", "--continue").bad("no ", "to continue in")
