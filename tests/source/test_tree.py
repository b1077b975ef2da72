# SPDX-License-Identifier: GPL-2.0-only
"""tree: the branch it makes, the work it preserves, how it fails."""

import os
import resource
import shutil

from pathlib import Path

from source import fake
from source.fake import Host, mtimes, snapshot, has


def patch(machine: Host, number: int) -> str:
    """The file name of a patch."""
    names = (machine.kernel / "patches" / "series").read_text().split("\n")
    return [name for name in names if name.endswith(".patch")][number]


def test_branch(machine: Host, package: Path) -> None:
    """The branch is upstream, the overlay, and one commit per patch with its author."""
    log = machine.git("log", "--reverse", "--format=%s|%an|%aI|%(trailers:only)", "--date-order")
    subjects = [line.split("|")[0] for line in log.splitlines() if "|" in line]
    assert (subjects
            == ["Linux 6.12.117 (linux-source-6.12 6.12.117-1)", "faultline: our files",
                "mm: faultline: hook in mmap", "mm: memory: change Ünicode"])
    has(log, "Zoë Dev|2026-02-03T04:05:06+01:00", "Origin: vendor", "Forwarded: no")
    assert machine.git("describe", "--tags", "--exact-match", "HEAD~3") == "upstream"
    assert fake.digest(package) in machine.git("show", "-s", "--format=%B", "upstream")
    assert machine.git("symbolic-ref", "HEAD") == "refs/heads/faultline"
    assert machine.git("status", "--porcelain", "--ignored") == ""


def test_upstream_content(machine: Host) -> None:
    """The tag has every file of the source: modes, links, and files in .gitignore."""
    listing = ("ls-tree", "-r", "--format=%(objectmode) %(path)")
    has(machine.git(*listing, "upstream"), "100755 scripts/tool.sh", "120000 lib/link",
        "100644 lib/built.o")
    assert "100755 tools/faultline.sh" in machine.git(*listing, "HEAD")


def test_new_files_are_seen(machine: Host) -> None:
    """A new file shows in git status, although the package's .gitignore hides everything."""
    (machine.tree / "mm/faultline/new.c").write_text("int x;\n")
    assert "mm/faultline/new.c" in machine.git("status", "--porcelain")


def test_deterministic(machine: Host, tmp_path: Path, package: Path) -> None:
    """The same inputs give the same commit ids, regardless of the user's git settings."""
    two = fake.packaged_host(tmp_path / "two", package)
    shutil.copytree(machine.kernel, two.kernel, dirs_exist_ok=True)
    (two.folder / "gitconfig").write_text(
        "[user]\nname = X\nemail = x@y\n[commit]\ngpgsign = true\n[apply]\nwhitespace = fix\n"
        "[core]\nautocrlf = true\n[diff]\nnoprefix = true\n[format]\nsignoff = true\n")
    two.script("tree", GIT_CONFIG_GLOBAL=str(two.folder / "gitconfig"), GIT_DIR="/nonexistent",
               TZ="Asia/Tokyo").good()
    assert two.git("rev-parse", "HEAD") == machine.git("rev-parse", "HEAD")


def children_cpu() -> float:
    """CPU time of programs that have ended: a busy host does not add to it, unlike to a clock."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_repeat(machine: Host) -> None:
    """Running it again is fast, does nothing and keeps a developer's edits."""
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    before = mtimes(machine.tree)
    start = children_cpu()
    assert "up to date" in machine.script("tree").good().out
    taken = children_cpu() - start
    assert mtimes(machine.tree) == before
    if taken > 2:
        raise AssertionError(f"a repeat took {taken:.1f} s of CPU time")


def test_only_changes_are_written(machine: Host) -> None:
    """Changing one overlay file writes only that file, without unpacking."""
    before = mtimes(machine.tree)
    machine.overlay("mm/faultline/core.c", "int newer;\n")
    assert "into git" not in machine.script("tree").good().out
    after = mtimes(machine.tree)
    assert [path for path in after if after[path] != before.get(path)] == ["mm/faultline/core.c"]
    assert (machine.tree / "mm/faultline/core.c").read_text() == "int newer;\n"


def test_dropped_patch(machine: Host) -> None:
    """Dropping a patch writes only its files; a dropped overlay file is removed."""
    before = mtimes(machine.tree)
    name = patch(machine, 0)
    (machine.kernel / "patches" / name).unlink()
    series = machine.kernel / "patches" / "series"
    series.write_text(series.read_text().replace(name + "\n", ""))
    (machine.kernel / "overlay/tools/faultline.sh").unlink()
    machine.script("tree").good()
    after = mtimes(machine.tree)
    assert [path for path in after if after[path] != before.get(path)] == ["mm/mmap.c"]
    assert set(before) - set(after) == {"tools/faultline.sh"}


def test_moved_pin(machine: Host, package: Path) -> None:
    """A moved pin replaces the source in the same repository; moving back unpacks nothing."""
    first = machine.git("rev-parse", "HEAD")
    before = mtimes(machine.tree)
    other = fake.source_package(machine.folder, "6.12.116-1")
    shutil.copy(other, machine.cached(other))
    machine.pin(other)
    machine.script("tree").good()
    after = mtimes(machine.tree)
    assert (sorted(path for path in after if after[path] != before.get(path))
            == ["Makefile", "mm/mmap.c"])
    assert machine.git("show", "upstream:Makefile").splitlines()[2] == "SUBLEVEL = 116"
    machine.pin(package)
    assert "into git" not in machine.script("tree").good().out
    assert machine.git("rev-parse", "HEAD") == first


def refused(machine: Host, *parts: str) -> None:
    """tree must fail and leave all files and the branch unchanged."""
    before, tip = mtimes(machine.tree), machine.git("rev-parse", "HEAD")
    machine.script("tree").bad("make export", "FORCE=1", *parts)
    assert mtimes(machine.tree) == before
    assert machine.git("rev-parse", "HEAD") == tip


def test_uncommitted_work(machine: Host) -> None:
    """Uncommitted work is never replaced; FORCE=1 keeps it on a backup branch."""
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    (machine.tree / "mm/untracked.c").write_text("int mine;\n")
    machine.overlay("mm/faultline/core.c", "int newer;\n")
    refused(machine, "uncommitted changes", "mm/memory.c")
    machine.script("tree", FORCE="1").good()
    backup = machine.git("branch", "--list", "backup/*", "--format=%(refname:short)")
    assert "int edited;" in machine.git("show", f"{backup}:mm/memory.c")
    assert machine.git("show", f"{backup}:mm/untracked.c") == "int mine;"
    assert "edited" not in (machine.tree / "mm/memory.c").read_text()
    assert (machine.tree / "mm/faultline/core.c").read_text() == "int newer;\n"


def test_unexported_commits(machine: Host) -> None:
    """Unexported commits are never replaced; FORCE=1 keeps them on a backup branch."""
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    tip = machine.commit("mm: mine")
    machine.overlay("mm/faultline/core.c", "int newer;\n")
    refused(machine, "commits that are not in kernel/ (1 ")
    assert f"backup/{tip[:12]}" in machine.script("tree", FORCE="1").good().out
    assert machine.git("rev-parse", f"backup/{tip[:12]}") == tip


def test_exported_commits(machine: Host) -> None:
    """Exported commits may be replaced."""
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    machine.commit("mm: mine")
    machine.script("export").good()
    machine.overlay("mm/faultline/core.c", "int newer;\n")
    machine.script("tree").good()
    assert "int edited;" in (machine.tree / "mm/memory.c").read_text()


def test_other_branch(machine: Host) -> None:
    """A developer's own branch is not replaced."""
    machine.git("checkout", "--quiet", "-b", "topic")
    machine.overlay("mm/faultline/core.c", "int newer;\n")
    machine.script("tree").bad("on branch topic", "git checkout faultline")


def test_untracked_in_the_way(machine: Host) -> None:
    """An untracked file in place of a new overlay file is not overwritten."""
    (machine.tree / "mm/faultline/new.c").write_text("mine\n")
    machine.overlay("mm/faultline/new.c", "int ours;\n")
    machine.script("tree").bad("untracked file mm/faultline/new.c", "move it away")
    assert (machine.tree / "mm/faultline/new.c").read_text() == "mine\n"
    (machine.tree / "mm/faultline/new.c").unlink()
    machine.script("tree").good()
    assert (machine.tree / "mm/faultline/new.c").read_text() == "int ours;\n"


def test_interrupted_checkout(machine: Host) -> None:
    """A run that is killed while writing files is completed by the next one."""
    old = machine.git("rev-parse", "HEAD")
    machine.overlay("mm/faultline/core.c", "int newer;\n")
    machine.overlay("mm/faultline/second.c", "int second;\n")
    machine.script("tree").good()
    new = machine.git("rev-parse", "HEAD")
    # The state after the kill: some new files are written, index and branch are still old.
    machine.git("update-ref", "refs/heads/faultline", old)
    machine.git("read-tree", old)
    state = machine.tree / ".git/faultline.json"
    text = state.read_text().replace('"pending": ""', f'"pending": "{new}"')
    state.write_text(text.replace(f'"made": "{new}"', f'"made": "{old}"'))
    (machine.tree / "mm/faultline/second.c").unlink()
    (machine.tree / ".git/index.lock").touch()
    machine.script("tree").good()
    assert machine.git("rev-parse", "HEAD") == new
    assert machine.git("status", "--porcelain") == ""


def test_failing_patch(machine: Host) -> None:
    """If a patch does not apply, the error names patch, file and hunk; the tree is unchanged."""
    path = machine.kernel / "patches" / patch(machine, 1)
    path.write_text(path.read_text().replace(" int memory_19;", " int memory_gone;"))
    before, tip = mtimes(machine.tree), machine.git("rev-parse", "HEAD")
    machine.script("tree").bad(path.name, "mm/memory.c hunk 1 (@@ -17,7 +17,7 @@)",
                               "int memory_gone;", "correct the patch")
    assert (mtimes(machine.tree), machine.git("rev-parse", "HEAD")) == (before, tip)


def test_failing_patch_first_time(empty: Host, developed: Host) -> None:
    """The same without a tree: after the fix the source is not unpacked again."""
    shutil.copytree(developed.kernel, empty.kernel, dirs_exist_ok=True)
    path = empty.kernel / "patches" / patch(empty, 1)
    good = path.read_text()
    path.write_text(good.replace(" int memory_19;", " int memory_gone;"))
    empty.script("tree").bad(path.name)
    empty.script("export").bad("did not finish", "run it again")
    path.write_text(good)
    assert "into git" not in empty.script("tree").good().out
    assert "memory_20_changed" in (empty.tree / "mm/memory.c").read_text()


def test_series_disagrees(empty: Host) -> None:
    """A mismatch of series and folder is an error before anything is unpacked."""
    series = empty.kernel / "patches" / "series"
    series.write_text("0001-not-there.patch\n")
    empty.script("tree").bad("0001-not-there.patch", "not in the folder")
    series.write_text("bad name.patch\n")
    empty.script("tree").bad("TOPIC/WHAT.patch")
    series.write_text("")
    (empty.kernel / "patches/0002-extra.patch").write_text("x\n")
    empty.script("tree").bad("0002-extra.patch", "not in patches/series")
    series.write_text("0002-extra.patch\n0002-extra.patch\n")
    empty.script("tree").bad("0002-extra.patch twice")
    assert not empty.tree.exists()
    series.write_text("0002-extra.patch\n")
    empty.script("tree").bad("0002-extra.patch has no", "git format-patch")


def test_overlay_collides(tmp_path: Path, package: Path) -> None:
    """An overlay file that collides with an upstream file or folder is an error."""
    for path in ("mm/mmap.c", "mm", "mm/mmap.c/x.c"):
        machine = fake.packaged_host(tmp_path / path, package)
        machine.overlay(path, "x\n")
        machine.script("tree").bad(f"overlay/{path} exists upstream", "kernel/patches")


def test_patch_of_new_file(machine: Host) -> None:
    """A patch that adds a file is an error: new files belong in the overlay."""
    path = machine.kernel / "patches" / patch(machine, 1)
    path.write_text(path.read_text() + "diff --git a/mm/n.c b/mm/n.c\nnew file mode 100644\n"
                    "--- /dev/null\n+++ b/mm/n.c\n@@ -0,0 +1 @@\n+int n;\n")
    machine.script("tree").bad("mm/n.c", "kernel/overlay")


def test_tarballs(tmp_path: Path, package: Path) -> None:
    """UPSTREAM_TARBALL works with xz, gz and zst."""
    for suffix, tool in (("xz", "xz"), ("gz", "gzip"), ("zst", "zstd")):
        if shutil.which(tool):
            machine = fake.packaged_host(tmp_path / suffix, package)
            tarball = fake.kernel_tarball(machine.folder, "6.12.50", suffix)
            machine.script("tree", UPSTREAM_TARBALL=str(tarball)).good()
            assert "up to date" in machine.script("tree", UPSTREAM_TARBALL=str(tarball)).good().out
            assert "Linux 6.12.50" in machine.git("show", "-s", "--format=%s", "upstream")


def unlocked(folder: Path) -> list[str]:
    """The contents of a folder, without lock files."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_bad_tarballs(empty: Host) -> None:
    """A tarball of another kernel or of none, a truncated one, or another file is an error."""
    def failing(path: object, *parts: str) -> None:
        empty.script("tree", UPSTREAM_TARBALL=str(path)).bad(*parts)
        assert unlocked(empty.build) == ["cache"]

    failing(fake.kernel_tarball(empty.folder, "6.13.1"), "Linux 6.13.1", "6.12.y")
    (empty.folder / "other").mkdir()
    (empty.folder / "other/README").write_text("no kernel\n")
    fake.run("tar", "-cJf", empty.folder / "other.tar.xz", "-C", empty.folder, "other")
    failing(empty.folder / "other.tar.xz", "not a kernel tree")
    for suffix in ("xz", "gz"):
        good = fake.kernel_tarball(empty.folder, "6.12.50", suffix)
        os.truncate(good, good.stat().st_size // 2)
        failing(good, "truncated or damaged")
    (empty.folder / "text").write_text("no tarball\n")
    failing(empty.folder / "text", "is not a .tar.xz")


def test_disk_full(empty: Host, small_disk: Path) -> None:
    """A disk that is too small or fills up while unpacking leaves no partial state."""
    empty.env["BUILD"] = str(small_disk / "build")
    tarball = fake.kernel_tarball(empty.folder, "6.12.50")
    empty.script("tree", UPSTREAM_TARBALL=str(tarball)).bad("disk full", "needs about", "BUILD=")
    # Repetitive data: the tarball is so small that the check beforehand passes.
    same = empty.folder / "linux-6.12.51"
    fake.kernel_tree(same, "6.12.51")
    (same / "lib/noise").write_bytes(b"same" * 10_000_000)
    tarball = fake.kernel_tarball(empty.folder, "6.12.51")
    empty.script("tree", UPSTREAM_TARBALL=str(tarball)).bad("disk full (or quota",
                                                            "free some space")
    assert unlocked(empty.build) == []


def test_stock(machine: Host) -> None:
    """--stock makes the unchanged upstream beside it, follows the pin and is fast when repeated."""
    machine.script("tree", "--stock").good()
    where = machine.build / "stock-tree"
    assert where.joinpath("mm/memory.c").read_text() == fake.lines("memory")
    before = mtimes(where)
    machine.script("tree", "--stock").good()
    assert mtimes(where) == before
    other = fake.source_package(machine.folder, "6.12.116-1")
    shutil.copy(other, machine.cached(other))
    machine.pin(other)
    (where / "mm/memory.c").write_text("changed\n")
    machine.script("tree", "--stock").bad("stock-tree has changes", "remove the folder")
    machine.git("checkout", "--quiet", ".", cwd=where)
    machine.script("tree", "--stock").good()
    assert "SUBLEVEL = 116" in (where / "Makefile").read_text()


def test_peer(machine: Host) -> None:
    """--peer makes another kernel beside our tree, and follows its pin."""
    where = machine.build / "peer-tree"
    machine.script("tree", "--peer").bad("upstream-peer is missing", "git")
    for version in ("7.3.4-1", "7.3.5-1"):
        package = fake.source_package(machine.folder, version)
        shutil.copy(package, machine.cached(package))
        pinned = (machine.kernel / "upstream").read_text()
        machine.pin(package)
        (machine.kernel / "upstream").rename(machine.kernel / "upstream-peer")
        (machine.kernel / "upstream").write_text(pinned)
        machine.script("tree", "--peer").good()
        assert f"SUBLEVEL = {version[4]}" in (where / "Makefile").read_text()
        assert "up to date" in machine.script("tree", "--peer").good().out
    assert "SUBLEVEL = 117" in (machine.tree / "Makefile").read_text()
    # Ours must be the kernel that the queue is for.
    shutil.copy(machine.kernel / "upstream-peer", machine.kernel / "upstream")
    machine.script("tree").bad("Linux 7.3.5", "6.12.y")


def test_foreign_folder(empty: Host) -> None:
    """A build/tree not made by the script is not touched."""
    empty.tree.mkdir()
    (empty.tree / "file").write_text("mine\n")
    empty.script("tree").bad("was not made by `make tree`", "move it away")
    assert snapshot(empty.tree)["file"][1] == b"mine\n"
