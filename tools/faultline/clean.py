# SPDX-License-Identifier: GPL-2.0-only
"""Remove build output and results; with --all also the kernel branch,
downloads, the compiler cache and the key of test repositories.

A kernel branch with work that is not in kernel/ yet is not removed, unless
FORCE=1 is set.
"""
from __future__ import annotations

import argparse
import shutil

from .common import Fail, flag, shown
from .flavour import FLAVOURS, PATHS
from .worktree import WorkTree

# Kept by `clean`, along with their locks and unfinished copies.
KEPT = ("cache", "keys", "tree", "stock-tree", "peer-tree")


def check_tree() -> None:
    """Refuse to remove a developer's work."""
    work_tree = WorkTree(PATHS.tree)
    if flag("FORCE") or not work_tree.exists():
        return
    work = work_tree.unsaved_work(work_tree.load())
    if work:
        raise Fail(f"{shown(PATHS.tree)} has {work}: commit and run 'make export' first, "
                   "or discard it with FORCE=1")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="remove branch, downloads, cache too")
    args = parser.parse_args()
    build = PATHS.build
    if not build.exists():
        return
    # A folder set with BUILD= may hold other files: there, remove only files
    # that are known to be ours.
    ours = build == PATHS.kernel.parent / "build"
    known = {*FLAVOURS, *KEPT, "log", "test", "bench", "vm", "pycache", "stage",
             "packages", "repo", "perf", "package", "images", "debian-13",
             *(flavour.arch.selftests for flavour in FLAVOURS.values())}
    if args.all:
        check_tree()
    for path in sorted(build.iterdir()):
        name = path.name.lstrip(".").split(".")[0]
        if not args.all and name in KEPT or not ours and name not in known:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not any(build.iterdir()):
        build.rmdir()
