# SPDX-License-Identifier: GPL-2.0-only
"""Write the branch in build/tree back to kernel/overlay and kernel/patches.

Files that upstream does not have go to the overlay as they are at the tip of the branch;
changes to files that upstream has become one patch per commit. `make tree` gives the same
files back, and a second export changes nothing. Before anything is written, the patches are
applied once to prove that.

A line `Topic: NAME` beside `Signed-off-by:` puts the patch into the folder patches/NAME; without
it, the patch is in patches/ itself. Its file is called after the subject, and keeps its name as
long as topic and subject stay.
"""

import argparse
import os

from .branch import Exporter
from .common import Fail, Paths, flag, say, shown
from .patchqueue import Queue
from .pin import Pin
from .source import ENVIRONMENT
from .worktree import State, WorkTree

MORE = "  FORCE=1                 export although kernel/ has changed since build/tree was made\n"


def check_clean(tree: WorkTree, state: State) -> None:
    """Require that all work is committed; untracked files count as well."""
    left = tree.changes(state) + tree.repo.untracked()
    if left:
        raise Fail(f"{shown(tree.folder)} has uncommitted changes ({left[0]}"
                   f"{', ...' if len(left) > 1 else ''}): commit them (or stash or remove them) "
                   "and run this again")


def check_current(paths: Paths, state: State, queue: Queue) -> None:
    """Refuse to overwrite changes made in kernel/ since the tree was made from it."""
    current = (queue.digest(), Pin.load(paths.kernel).sha256)
    if state.pending or not state.queue:
        raise Fail("the last `make tree` did not finish: run it again")
    if current != (state.queue, state.pin) and not flag("FORCE"):
        raise Fail("kernel/ has changed since build/tree was made, and an export would undo that: "
                   "run `make tree` (with FORCE=1 if you have commits; they are kept on a backup "
                   "branch, cherry-pick them from there)")


def main() -> None:
    """Export."""
    argparse.ArgumentParser(
        description=__doc__, epilog=ENVIRONMENT + MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    paths = Paths.from_env()
    tree = WorkTree(paths.tree)
    with tree.locked():
        if not tree.exists():
            raise Fail("there is no build/tree: run `make tree` first")
        state, queue = tree.load(), Queue.load(paths.kernel)
        tip = tree.require_branch(" and run this again")
        check_clean(tree, state)
        check_current(paths, state, queue)
        new = Exporter(tree.repo, queue).export()
        changed = new.save(paths.kernel)
        state.queue, state.saved = new.digest(), tip
        tree.store(state)
    for name in changed:
        there = os.path.lexists(paths.kernel / name)
        say(f"{shown(paths.kernel / name)} {'written' if there else 'removed'}")
    say(f"{len(new.overlay)} overlay files, {len(new.patches)} patches, {len(changed)} changed")
