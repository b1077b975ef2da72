# SPDX-License-Identifier: GPL-2.0-only
"""export: from the branch to kernel/ and back, with the same bytes each time."""

import shutil
import tempfile
from pathlib import Path

from source import fake
from source.fake import Host, snapshot, has, lacks


def patches(machine: Host) -> list[str]:
    """The series, without comments."""
    text = (machine.kernel / "patches" / "series").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def there_and_back(machine: Host) -> None:
    """Export; a second export changes nothing, and a fresh tree from it has the same files."""
    machine.script("export").good()
    first = snapshot(machine.kernel)
    assert ", 0 changed" in machine.script("export").good().out
    assert snapshot(machine.kernel) == first
    with tempfile.TemporaryDirectory(prefix="faultline-") as place:
        other = fake.packaged_host(Path(place), next(machine.build.glob("cache/*.deb")))
        shutil.copytree(machine.kernel, other.kernel, dirs_exist_ok=True, symlinks=True)
        other.script("tree").good()
        assert other.git("rev-parse", "HEAD^{tree}") == machine.git("rev-parse", "HEAD^{tree}")
        assert ", 0 changed" in other.script("export").good().out
        assert snapshot(other.kernel) == first


def test_layout(developed: Host) -> None:
    """New files go to the overlay with their modes, changes become patches by subject."""
    assert (patches(developed)
            == ["hooks/mm-faultline-hook-in-mmap.patch", "mm-memory-change-nicode.patch"])
    assert (developed.kernel / "overlay/mm/faultline/core.c").read_text() == "int better_core;\n"
    assert (developed.kernel / "overlay/tools/faultline.sh").stat().st_mode & 0o111 == 0o111
    text = (developed.kernel / "patches" / patches(developed)[0]).read_text()
    has(text, "From 0000000000000000000000000000000000000000 Mon Sep 17",
        "Date: Tue, 3 Feb 2026 04:05:06 +0100", "Subject: [PATCH] mm: faultline: hook in mmap",
        "Origin: vendor", "Forwarded: no")
    lacks(text, "\n-- \n", "base-commit")
    second = (developed.kernel / "patches" / patches(developed)[1]).read_text()
    assert "faultline/core" not in second
    assert "@@ int memory_15;" in second  # and not the label


def test_round_trip(machine: Host) -> None:
    """Tree and export give identical bytes and an identical git tree."""
    there_and_back(machine)


def test_kinds_of_changes(machine: Host) -> None:
    """Modes, links, binary files, removed files, odd names and long subjects survive."""
    (machine.tree / "scripts/tool.sh").chmod(0o644)
    machine.commit("scripts: tool: mode only")
    (machine.tree / "lib/noise").write_bytes(bytes(range(256)) * 4)
    (machine.tree / "lib/link").unlink()
    (machine.tree / "lib/link").symlink_to("noise")
    machine.git("rm", "--quiet", "--cached", "mm/Makefile")
    (machine.tree / "mm/Makefile").unlink()
    machine.commit("lib: binary, link and removal, in one commit with a subject that is so long "
                   "that it has to be folded more than once in the header of a mail, äöü")
    (machine.tree / "mm/faultline/a b.txt").write_text("space\n")
    (machine.tree / "mm/faultline/lïnk").symlink_to("a b.txt")
    machine.git("rm", "--quiet", "tools/faultline.sh")
    machine.commit("faultline: overlay only")
    there_and_back(machine)
    assert len(patches(machine)) == 4
    assert not (machine.kernel / "overlay/tools").exists()
    assert (machine.kernel / "overlay/mm/faultline/lïnk").is_symlink()


def test_names_are_kept(machine: Host) -> None:
    """A patch keeps its file name if its subject is unchanged; series keeps its comments."""
    folder = machine.kernel / "patches"
    first, second = patches(machine)
    (folder / first).rename(folder / "hooks/0100-my-name.patch")
    (folder / "series").write_text(
        "# head of the file\n\n# about the first\nhooks/0100-my-name.patch\n"
        f"{second}  # why\n# end\n")
    machine.script("tree").good()
    machine.change("mm/memory.c", "int memory_40;", "int memory_40_changed;")
    machine.commit("mm: memory: a third")
    there_and_back(machine)
    assert ((folder / "series").read_text()
            == "# head of the file\n\n# about the first\nhooks/0100-my-name.patch\n"
            f"{second}  # why\nmm-memory-a-third.patch\n# end\n")


def test_amended(machine: Host) -> None:
    """An amended subject renames the patch and removes the old file."""
    machine.git("commit", "--quiet", "--amend", "-m", "mm: memory: other words")
    there_and_back(machine)
    assert patches(machine)[1] == "mm-memory-other-words.patch"
    folder = machine.kernel / "patches"
    assert ({path.relative_to(folder).as_posix() for path in folder.rglob("*.patch")}
            == set(patches(machine)))


def test_topics(machine: Host) -> None:
    """A line in the message names a patch's folder; its file moves when that line changes."""
    machine.git("commit", "--quiet", "--amend", "-m",
                "mm: memory: other words\n\nTopic: not a trailer here\n\nTopic: a_b\nForwarded: no")
    machine.change("mm/memory.c", "int memory_40;", "int memory_40_changed;")
    machine.commit("mm: memory: other words\n\nTopic: a_b")
    there_and_back(machine)
    assert patches(machine) == ["hooks/mm-faultline-hook-in-mmap.patch",
                                "a_b/mm-memory-other-words.patch",
                                "a_b/mm-memory-other-words-2.patch"]
    machine.git("commit", "--quiet", "--amend", "-m", "mm: memory: other words\n\nTopic: c")
    there_and_back(machine)
    assert (patches(machine)[1:]
            == ["a_b/mm-memory-other-words.patch", "c/mm-memory-other-words.patch"])
    machine.git("reset", "--quiet", "--hard", "HEAD~2")
    there_and_back(machine)
    assert not (machine.kernel / "patches" / "a_b").exists()
    for text in ("Topic: ../out", "Topic: two words", "Topic: a\nTopic: b", "Topic:"):
        machine.change("mm/memory.c", "int memory_50;", "int memory_50_changed;")
        machine.commit(f"mm: mine\n\n{text}")
        refused(machine, "mm: mine: 'Topic:", "one folder name")
        machine.git("reset", "--quiet", "--hard", "HEAD~1")


def test_misfiled(machine: Host) -> None:
    """A patch in another folder than its message says is an error of make tree."""
    folder = machine.kernel / "patches"
    first, second = patches(machine)
    (folder / "fixes").mkdir()
    (folder / second).rename(folder / "fixes" / second)
    (folder / "series").write_text(f"{first}\nfixes/{second}\n")
    machine.script("tree").bad(f"fixes/{second} belongs in patches, by the 'Topic:' line")
    text = (folder / "fixes" / second).read_text()
    (folder / "fixes" / second).write_text(text.replace("\n---\n", "\nTopic: fixes\n---\n", 1))
    machine.script("tree").good()
    before = snapshot(machine.kernel)
    assert ", 0 changed" in machine.script("export").good().out
    assert snapshot(machine.kernel) == before


def test_user_settings(machine: Host) -> None:
    """The user's git settings do not affect the patches."""
    before = snapshot(machine.kernel)
    (machine.folder / "gitconfig").write_text(
        "[diff]\nnoprefix = true\nalgorithm = patience\ncontext = 9\nrenames = copies\n"
        "[format]\nsignoff = true\nattach = true\nsubjectPrefix = X\nsignature = me\n"
        "numbered = true\nthread = true\nuseAutoBase = true\n[core]\nabbrev = 7\n")
    result = machine.script("export", GIT_CONFIG_GLOBAL=str(machine.folder / "gitconfig"),
                            COLUMNS="40", TZ="Asia/Tokyo", LC_ALL="C").good()
    assert ", 0 changed" in result.out
    assert snapshot(machine.kernel) == before


def refused(machine: Host, *parts: str, **env: str) -> None:
    """export must fail and change nothing in kernel/."""
    before = snapshot(machine.kernel)
    machine.script("export", **env).bad(*parts)
    assert snapshot(machine.kernel) == before


def test_uncommitted(machine: Host) -> None:
    """Uncommitted changes and untracked files are an error."""
    (machine.tree / "mm/faultline/new.c").write_text("int x;\n")
    refused(machine, "uncommitted changes (mm/faultline/new.c)", "commit them")
    (machine.tree / "mm/faultline/new.c").unlink()
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    refused(machine, "uncommitted changes (mm/memory.c)", "commit them")


def test_not_linear(machine: Host) -> None:
    """A merge, another branch, or a branch without the tag is an error."""
    machine.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    refused(machine, "on branch side", "git checkout faultline")
    machine.change("mm/memory.c", "int memory_50;", "int side;")
    machine.commit("mm: side")
    machine.git("checkout", "--quiet", "faultline")
    machine.git("merge", "--quiet", "--no-edit", "side")
    refused(machine, "is a merge", "git rebase upstream")
    tree = machine.git("rev-parse", "HEAD^{tree}")
    machine.git("reset", "--quiet", "--hard",
                machine.git("commit-tree", tree, "-m", "an orphan"))
    refused(machine, "does not contain the tag upstream")


def test_kernel_changed_meanwhile(machine: Host) -> None:
    """Changes in kernel/ since the tree was made are not overwritten."""
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    tip = machine.commit("mm: mine")
    machine.overlay("mm/faultline/core.c", "int pulled;\n")
    refused(machine, "kernel/ has changed", "make tree", "FORCE=1")
    # Following the advice of the message works.
    machine.script("tree", FORCE="1").good()
    machine.git("cherry-pick", f"backup/{tip[:12]}")
    there_and_back(machine)
    assert (machine.kernel / "overlay/mm/faultline/core.c").read_text() == "int pulled;\n"
    assert len(patches(machine)) == 3


def test_message_that_a_mail_cannot_hold(machine: Host) -> None:
    """A commit message that a mail would truncate is an error."""
    machine.change("mm/memory.c", "int memory_1;", "int edited;")
    machine.commit("mm: mine\n\nbefore\n---\nafter")
    refused(machine, "does not survive", "'---'")


def test_no_tree(empty: Host) -> None:
    """Without build/tree, the error says to run make tree."""
    empty.script("export").bad("no build/tree", "make tree")
