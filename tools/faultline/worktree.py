# SPDX-License-Identifier: GPL-2.0-only
"""The work tree in build/tree: its state, and when it may be replaced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .branch import Builder
from .common import Fail, Paths, flag, lock, say, shown, write_atomic
from .importer import import_source
from .patchqueue import Queue
from .repo import BRANCH, UPSTREAM, Repo
from .source import Source, obtain


@dataclass
class State:
    """The inputs of a tree; kept inside its .git, so they go away with the tree."""

    source: str = ""    # key of the source under the tag `upstream`
    title: str = ""     # the same, human-readable
    queue: str = ""     # digest of overlay and patches
    pin: str = ""       # sha256 in the pin when the tree was made or exported
    made: str = ""      # tip that `make tree` made
    saved: str = ""     # tip whose contents are in kernel/: made, or exported since
    pending: str = ""   # tip being checked out: left over only from an interrupted run


def source_ref(source: Source) -> str:
    """The ref that keeps the commit of a source, so that switching back to it is free."""
    return "refs/faultline/source/" + hashlib.sha256(source.key.encode()).hexdigest()[:16]


class WorkTree:
    """A repository and its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = Repo(folder)
        self._file = self.repo.git_dir / "faultline.json"

    def exists(self) -> bool:
        """Whether the folder has a tree that we made."""
        if self._file.is_file():
            return True
        if self.folder.exists():
            raise Fail(f"{shown(self.folder)} was not made by `make tree`: move it away and run "
                       "this again")
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other runs."""
        with lock(self.folder.parent / f".{self.folder.name}.lock"):
            yield

    def load(self) -> State:
        """Load the state left by the last run."""
        try:
            return State(**json.loads(self._file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise Fail(f"{self._file} is damaged: move {shown(self.folder)} away and run "
                       "`make tree`") from error

    def store(self, state: State) -> None:
        """Save the state."""
        write_atomic(self._file, json.dumps(asdict(state), indent=1).encode())

    @contextlib.contextmanager
    def begin(self, source: Source, files_too: bool,
              alternate: Path | None = None) -> Iterator[WorkTree]:
        """Make a repository with the source as branch and tag, but no files yet.

        It is in a folder beside this one, and removed at the end unless it was finished.
        """
        part = WorkTree(self.folder.with_name(f".{self.folder.name}.part"))
        shutil.rmtree(part.folder, ignore_errors=True)
        part.folder.mkdir(parents=True)
        try:
            part.repo.init()
            if alternate:
                info = part.repo.git_dir / "objects" / "info"
                info.mkdir(parents=True, exist_ok=True)
                (info / "alternates").write_text(f"{alternate / 'objects'}\n", encoding="utf-8")
            commit = import_source(part.repo, source, files_too)
            for name in (f"refs/heads/{BRANCH}", f"refs/tags/{UPSTREAM}", source_ref(source)):
                part.repo.text("update-ref", name, commit)
            yield part
        finally:
            shutil.rmtree(part.folder, ignore_errors=True)

    def finish(self, source: Source, part: WorkTree) -> None:
        """Check out the branch of `part` and move it to the place of this tree."""
        tip = part.repo.commit_of("HEAD")
        say("writing the files ...")
        part.repo.checkout("", tip, True)
        part.store(State(source=source.key, title=source.title, made=tip, saved=tip))
        part.folder.rename(self.folder)

    def create(self, source: Source) -> None:
        """Make the tree of a source; the folder appears once it is complete."""
        with self.begin(source, True) as part:
            self.finish(source, part)

    def base_of(self, paths: Paths, source: Source) -> str:
        """The commit of a source, imported unless already present."""
        known = self.repo.commit_of(source_ref(source))
        if not known:
            known = import_source(self.repo, obtain(paths, source), False)
            self.repo.text("update-ref", source_ref(source), known)
        return known

    def require_branch(self, hint: str) -> str:
        """Require that our branch is checked out; return its tip."""
        branch = self.repo.head_branch()
        if branch != BRANCH:
            where = f"on branch {branch}" if branch else "on no branch (in a rebase or am?)"
            raise Fail(f"{shown(self.folder)} is {where}: finish there and "
                       f"`git checkout {BRANCH}`{hint}")
        return self.repo.commit_of("HEAD")

    def changes(self, state: State) -> list[str]:
        """Tracked files with uncommitted changes of the user."""
        self.repo.try_text("update-index", "-q", "--refresh")
        changed = self.repo.changed("HEAD")
        if state.pending and self.repo.commit_of(state.pending):
            # Files already written by an interrupted checkout are not the user's work.
            changed &= self.repo.changed(state.pending)
        return sorted(changed)

    def unsaved_work(self, state: State) -> str:
        """The work that replacing the branch would lose, for a message; or ""."""
        tip = self.repo.commit_of("HEAD")
        changed = self.changes(state)
        if changed:
            return f"uncommitted changes ({changed[0]}{', ...' if len(changed) > 1 else ''})"
        if tip not in (state.saved, state.made):
            count = self.repo.try_text("rev-list", "--count", f"{state.saved}..{tip}")
            return f"commits that are not in kernel/ ({count or 'some'} since the last export)"
        return ""

    def check_replaceable(self, state: State) -> None:
        """Refuse to replace a branch with work that is not in kernel/."""
        if flag("FORCE"):
            return
        self.require_branch(", or use FORCE=1 (your work is kept on a backup branch)")
        work = self.unsaved_work(state)
        if work:
            raise Fail(f"{shown(self.folder)} has {work}: commit and run `make export` first, or "
                       "use FORCE=1 (your work is kept on a backup branch)")

    def update(self, source: Source, base: str, queue: Queue, pin: str) -> None:
        """Build the branch from `base` and the queue, and update the work tree to it."""
        state = self.load()
        force = flag("FORCE")
        self._stale_lock(state)
        self.check_replaceable(state)
        tip = Builder(self.repo, base).build(queue)
        self._keep(state, force)
        for command in ("am", "rebase"):
            self.repo.try_text(command, "--quit")
        old = self.repo.commit_of("HEAD")
        discard = force or bool(state.pending)
        state.pending = tip
        self.store(state)
        if tip != old or discard:
            self.repo.checkout(old, tip, discard)
        self.repo.text("update-ref", f"refs/heads/{BRANCH}", tip)
        self.repo.text("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
        self.repo.text("update-ref", f"refs/tags/{UPSTREAM}", base)
        self.store(State(source.key, source.title, queue.digest(), pin, tip, tip))

    def _keep(self, state: State, force: bool) -> None:
        """Save the branch before it is replaced to a backup, unless `make tree` made it."""
        kept = self.repo.snapshot() if force else self.repo.commit_of("HEAD")
        for commit in dict.fromkeys([kept, self.repo.commit_of(f"refs/heads/{BRANCH}")]):
            if commit and commit not in (state.made, state.pending):
                say(f"the old branch is kept as {self.repo.backup(commit)}")

    def _stale_lock(self, state: State) -> None:
        """Remove the index lock left by one of our interrupted checkouts."""
        if state.pending:
            (self.repo.git_dir / "index.lock").unlink(missing_ok=True)
