# SPDX-License-Identifier: GPL-2.0-only
"""Make build/tree: the upstream source, kernel/overlay and kernel/patches as a git branch.

The branch is called `faultline`; the tag `upstream` is the unchanged source, the commit after
it holds the overlay, followed by one commit per patch. Running it again does nothing; if
overlay or patches have changed, only files that differ are written. Work in build/tree that
is not in kernel/ yet is never replaced: run `make export` first.
"""

import argparse
import shutil
from dataclasses import replace

from .common import Fail, Paths, say, shown
from .patchqueue import Queue
from .pin import Pin
from .repo import UPSTREAM, Repo
from .source import ENVIRONMENT, choose, obtain, pinned
from .worktree import WorkTree

MORE = "  FORCE=1                 replace unexported work; it is kept on a backup/... branch\n"


def make_tree(paths: Paths) -> WorkTree:
    """Bring build/tree up to date."""
    queue, source, pin = Queue.load(paths.kernel), choose(paths), Pin.load(paths.kernel)
    tree = WorkTree(paths.tree)
    with tree.locked():
        if tree.exists():
            state = tree.load()
            if (state.source, state.queue, state.pin, state.pending) == (
                    source.key, queue.digest(), pin.sha256, ""):
                say(f"{shown(paths.tree)} is up to date")
                return tree
            if state.source != source.key:
                tree.check_replaceable(state)
        else:
            tree.create(obtain(paths, source))
        base = tree.base_of(paths, source)
        tree.update(source, base, queue, pin.sha256)
    say(f"{shown(paths.tree)}: {source.title} + {len(queue.overlay)} overlay files + "
        f"{len(queue.patches)} patches")
    return tree


def make_stock(paths: Paths, tree: WorkTree) -> None:
    """Make build/stock-tree: a second work tree with the tag `upstream` checked out."""
    with tree.locked():
        base = tree.repo.commit_of(f"refs/tags/{UPSTREAM}")
        stock = Repo(paths.stock)
        if not paths.stock.exists():
            say(f"making {shown(paths.stock)} ...")
            part = paths.stock.with_name(".stock-tree.part")
            shutil.rmtree(part, ignore_errors=True)
            tree.repo.text("worktree", "prune")
            tree.repo.text("worktree", "add", "--quiet", "--detach", str(part), base)
            tree.repo.text("worktree", "move", str(part), str(paths.stock))
        elif not stock.commit_of("HEAD"):
            # The folders were moved: a work tree stores the absolute path of its repository.
            tree.repo.text("worktree", "repair", str(paths.stock))
        if stock.commit_of("HEAD") != base:
            if stock.changed("HEAD"):
                raise Fail(f"{shown(paths.stock)} has changes, but must be unchanged upstream: "
                           "undo them or remove the folder")
            stock.text("checkout", "--quiet", "--detach", base)
    say(f"{shown(paths.stock)}: the unchanged upstream")


def make_peer(paths: Paths) -> None:
    """Make build/peer-tree: the kernel of kernel/upstream-peer, fetched on demand."""
    pin = Pin.load(paths.kernel, "upstream-peer")
    source = replace(pinned(pin), series=pin.series)
    tree = WorkTree(paths.peer)
    with tree.locked():
        if tree.exists():
            if tree.load().source == source.key:
                say(f"{shown(paths.peer)} is up to date")
                return
            if tree.changes(tree.load()):
                raise Fail(f"{shown(paths.peer)} has changes, but must be unchanged upstream: "
                           "undo them or remove the folder")
            # Made anew: it has no history that would be worth keeping.
            shutil.rmtree(paths.peer)
        tree.create(obtain(paths, source))
    say(f"{shown(paths.peer)}: {source.title}, unchanged")


def main() -> None:
    """Make the tree; with --stock also the unchanged one; with --peer only the peer's."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=ENVIRONMENT + MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", action="store_true",
                        help="also make build/stock-tree, the unchanged upstream")
    parser.add_argument("--peer", action="store_true",
                        help="instead make build/peer-tree, the newest upstream kernel")
    args = parser.parse_args()
    paths = Paths.from_env()
    if args.peer:
        make_peer(paths)
        return
    tree = make_tree(paths)
    if args.stock:
        make_stock(paths, tree)
