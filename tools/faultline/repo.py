# SPDX-License-Identifier: GPL-2.0-only
"""git, and the repository with our branch on top of the tag `upstream`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import IO

from .common import Fail, disk_full, shown

BRANCH = "faultline"
UPSTREAM = "upstream"

# Commits depend on kernel/ and the source only, not on the user's name or the clock.
IDENTITY = {"NAME": "Faultline", "EMAIL": "faultline@localhost"}

# The user's git settings must not change our output; the user's own git commands keep them.
# The patterns for function names in hunk headers differ between versions of git, so we set
# our own for every language, and for files without one (see attributes).
ATTRIBUTES = Path(__file__).with_name("attributes")
FUNCTION = r"!^[A-Za-z_][A-Za-z0-9_]*:[ \t]*$" + "\n" + r"^([A-Za-z_$].*)$"
SETTINGS = ["safe.directory=*", f"core.attributesFile={ATTRIBUTES}", "core.autocrlf=false",
            "core.quotePath=false", "gc.auto=0", "maintenance.auto=false",
            *(f"diff.{language}.xfuncname={FUNCTION}"
              for language in ("faultline", "cpp", "dts", "rust"))]

# (mode, object) of each path.
Tree = dict[str, tuple[str, str]]


class GitError(Fail):
    """A git command failed; the text is its error output."""


def stamp(date: str, **author: str) -> dict[str, str]:
    """The environment for a commit that is the same on every machine."""
    env = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    for key, value in IDENTITY.items():
        env[f"GIT_COMMITTER_{key}"] = value
        env[f"GIT_AUTHOR_{key}"] = author.get(key.lower(), value)
    return env


class Repo:
    """A repository and its work tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git_dir = folder / ".git"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        self._env = {**clean, "LC_ALL": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1",
                     "GIT_CONFIG_GLOBAL": "/dev/null"}
        self._settings = [part for setting in SETTINGS for part in ("-c", setting)]

    def call(self, *args: str, data: bytes = b"", env: dict[str, str] | None = None,
             cwd: Path | None = None) -> tuple[bytes, str]:
        """Run git and return stdout and stderr; raise GitError if it fails."""
        result = subprocess.run(["git", *self._settings, *args], cwd=cwd or self.folder,
                                input=data, env={**self._env, **(env or {})},
                                capture_output=True, check=False)
        errors = result.stderr.decode(errors="replace")
        # A checkout that runs out of space prints only the latter.
        if re.search("No space left on device|unable to write file", errors):
            raise disk_full(self.folder.parent)
        if result.returncode:
            raise GitError(errors or f"exit status {result.returncode}")
        return result.stdout, errors

    def start(self, *args: str, log: IO[str]) -> subprocess.Popen[bytes]:
        """Start a git command that reads from a pipe."""
        return subprocess.Popen(["git", *self._settings, *args], cwd=self.folder, env=self._env,
                                stdin=subprocess.PIPE, stdout=log, stderr=log)

    def text(self, *args: str, data: bytes = b"", env: dict[str, str] | None = None) -> str:
        """The output of git; an unexpected failure becomes the user's error line."""
        try:
            return self.call(*args, data=data, env=env)[0].decode(errors="replace").strip()
        except GitError as error:
            reason = str(error).strip().splitlines()[-1]
            raise Fail(f"git {args[0]} failed in {shown(self.folder)}: {reason}: check that "
                       "folder with git, or move it away") from error

    def try_text(self, *args: str) -> str:
        """The output of git, or "" if it failed."""
        try:
            return self.call(*args)[0].decode(errors="replace").strip()
        except GitError:
            return ""

    def names(self, *args: str) -> list[str]:
        """The names that git printed with -z."""
        return [name for name in self.text(*args).split("\0") if name]

    def commit_of(self, name: str) -> str:
        """The commit id of a name, or ""."""
        return self.try_text("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")

    def tree_of(self, commit: str) -> str:
        """The id of a commit's tree."""
        return self.text("rev-parse", f"{commit}^{{tree}}")

    def files(self, commit: str) -> Tree:
        """Every file of a commit."""
        found: Tree = {}
        for entry in self.names("ls-tree", "-r", "-z", "--full-tree", commit):
            meta, _, path = entry.partition("\t")
            mode, _, name = meta.split()
            found[path] = (mode, name)
        return found

    def head_branch(self) -> str:
        """The branch that is checked out, or ""."""
        return self.try_text("symbolic-ref", "--quiet", "--short", "HEAD")

    def init(self) -> None:
        """Create the repository, without the user's templates and hooks."""
        self.text("init", "--quiet", "--template=", f"--initial-branch={BRANCH}", ".")
        # git status of 86,000 files in 0.1 s; no repacking of gigabytes in the background.
        for key, value in (("feature.manyFiles", "true"), ("gc.auto", "0"),
                           ("core.autocrlf", "false"), ("checkout.workers", "0")):
            self.text("config", key, value)

    def backup(self, commit: str) -> str:
        """Keep a commit on a backup branch; return the branch."""
        name = f"backup/{commit[:12]}"
        self.text("branch", "--force", name, commit)
        return name

    def snapshot(self) -> str:
        """Commit the work tree as it is, including untracked files, on top of HEAD."""
        index = self.git_dir / "faultline-snapshot.index"
        env = {"GIT_INDEX_FILE": str(index)}
        try:
            shutil.copyfile(self.git_dir / "index", index)
            self.text("add", "--all", ".", env=env)
            tree = self.text("write-tree", env=env)
        finally:
            index.unlink(missing_ok=True)
        if tree == self.tree_of("HEAD"):
            return self.commit_of("HEAD")
        return self.text("commit-tree", tree, "-p", "HEAD", "-m", "uncommitted work",
                         env=stamp("2000-01-01T00:00:00+00:00"))

    def changed(self, commit: str) -> set[str]:
        """Tracked files that differ between the work tree and a commit."""
        return set(self.names("diff", "--no-renames", "--name-only", "-z", commit, "--"))

    def untracked(self) -> list[str]:
        """Untracked files that the kernel's .gitignore does not cover."""
        return self.names("ls-files", "--others", "--exclude-standard", "-z")

    def checkout(self, old: str, new: str, discard: bool) -> None:
        """Update the work tree from one commit to another, touching only files that differ."""
        try:
            self.call("update-index", "-q", "--refresh")
        except GitError:
            pass  # some files differ: the merge below checks again
        try:
            if discard:
                self.call("read-tree", "--reset", "-u", new)
            else:
                self.call("read-tree", "-m", "-u", old, new)
        except GitError as error:
            hit = re.search(r"Untracked working tree file '(.*)' would be", str(error))
            what = (f"the untracked file {hit[1]}" if hit
                    else str(error).strip().splitlines()[-1])
            raise Fail(f"{shown(self.folder)} cannot be updated because of {what}: move it away, "
                       "or use FORCE=1 (your files are kept on a backup branch)") from error
