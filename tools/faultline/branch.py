# SPDX-License-Identifier: GPL-2.0-only
"""Convert the queue to commits on top of `upstream`, and such commits to a queue."""

from __future__ import annotations

import bisect
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .common import Fail, shown
from .patchqueue import TOPIC, Queue, series_text
from .repo import UPSTREAM, GitError, Repo, Tree, stamp

OVERLAY_MESSAGE = "faultline: our files\n\nEverything in kernel/overlay, at its path.\n"

FORMAT = ["-1", "--stdout", "--zero-commit", "--no-signature", "--no-numbered", "--full-index",
          "--binary", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--no-base",
          "--no-notes", "--no-attach", "--no-thread", "--no-to", "--no-cc", "--no-add-header",
          "--subject-prefix=PATCH", "--unified=3", "--diff-algorithm=myers", "--stat=72",
          "--src-prefix=a/", "--dst-prefix=b/", "--encode-email-headers"]


@dataclass
class Mail:
    """A parsed patch file."""

    subject: str
    author: dict[str, str]
    date: str
    message: str
    diff: bytes


@dataclass
class Outcome:
    """The result of applying one patch."""

    name: str
    offsets: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    merged: bool = False


def tidy(message: str) -> str:
    """Normalise a commit message as git does: no trailing space, no runs of empty lines."""
    lines = "\n".join(line.rstrip() for line in message.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"


def parse_mail(repo: Repo, data: bytes) -> Mail:
    """Parse a patch in git-am format."""
    with tempfile.TemporaryDirectory() as scratch:
        body, diff = Path(scratch, "body"), Path(scratch, "diff")
        info = repo.text("mailinfo", "-b", "--encoding=UTF-8", str(body), str(diff), data=data)
        fields = dict(re.findall(r"(?m)^(Author|Email|Subject|Date): (.*)$", info))
        subject = fields.get("Subject", "")
        text = tidy(f"{subject}\n\n{body.read_text(encoding='utf-8')}")
        author = {"name": fields.get("Author", ""), "email": fields.get("Email", "")}
        return Mail(subject, author, fields.get("Date", ""), text, diff.read_bytes())


def topic_of(message: str, name: str) -> str:
    """The folder of a patch: the line `Topic: NAME` in the last paragraph of its message, if any.

    The name is that of the patch, for errors.
    """
    last = message.partition("\n\n")[2].rstrip("\n").rpartition("\n\n")[2]
    topics: list[str] = re.findall(r"(?m)^Topic:[ \t]*(.*?)[ \t]*$", last)
    if len(topics) > 1 or topics and not TOPIC.fullmatch(topics[0]):
        raise Fail(f"{name}: 'Topic: {topics[-1]}' in the message must be one folder name "
                   "(a-z, 0-9, _ and -), and the only one: correct it")
    return topics[0] if topics else ""


class Builder:
    """Builds the branch with git plumbing: no work tree is touched, no file changes its date.

    `provide`, if given, puts the versions of files that the patches were made from into the
    repository, or returns False.  A patch that does not apply is then merged with them.
    """

    def __init__(self, repo: Repo, base: str,
                 provide: Callable[[], bool] = lambda: False) -> None:
        self.repo = repo
        self.provide = provide
        self.base = base
        self.upstream = repo.files(base)
        self.sorted = sorted(self.upstream)
        # One for each builder: provide() may use another one.
        self.index = repo.git_dir / f"faultline-build-{id(self)}.index"
        self.env = {"GIT_INDEX_FILE": str(self.index)}

    def build(self, queue: Queue, report: Callable[[Outcome], None] | None = None) -> str:
        """Commit overlay and patches; return the tip.

        With `report`, each patch's outcome goes there, failing patches are left out, and the
        returned tip is the commit before the first failure. Without it, a failure is an error.
        """
        try:
            self.repo.text("read-tree", self.base, env=self.env)
            tip = self._overlay(queue) if queue.overlay else self.base
            good = tip
            failed = False
            for name, data in queue.patches:
                outcome = Outcome(name)
                tip = self._patch(tip, outcome, data)
                failed = failed or bool(outcome.problems)
                good = good if failed else tip
                if report:
                    report(outcome)
                elif outcome.problems:
                    raise Fail(f"{name} does not apply to the upstream source: "
                               f"{outcome.problems[0]}: correct the patch (or remove it from "
                               "series) and run this again")
            return good
        finally:
            self.index.unlink(missing_ok=True)

    def collisions(self, overlay: dict[str, tuple[str, bytes]]) -> list[str]:
        """Overlay paths that upstream also has, as a file or as a folder."""
        return [path for path in overlay if self._taken(path)]

    def _taken(self, path: str) -> bool:
        after = bisect.bisect_left(self.sorted, path + "/")
        is_folder = after < len(self.sorted) and self.sorted[after].startswith(path + "/")
        above = {str(parent) for parent in Path(path).parents}
        return is_folder or path in self.upstream or bool(above & self.upstream.keys())

    def _overlay(self, queue: Queue) -> str:
        for path in self.collisions(queue.overlay):
            raise Fail(f"kernel/overlay/{path} exists upstream: the overlay is for new files, "
                       "change it with a patch in kernel/patches")
        entries = []
        for path, (mode, data) in queue.overlay.items():
            name = self.repo.text("hash-object", "-w", "--stdin", data=data)
            entries.append(f"{mode} {name}\t{path}\0")
        self.repo.text("update-index", "-z", "--index-info", env=self.env,
                       data="".join(entries).encode(errors="surrogateescape"))
        date = self.repo.text("show", "-s", "--format=%cI", self.base)
        return self._commit(self.base, OVERLAY_MESSAGE, stamp(date))

    def _commit(self, parent: str, message: str, env: dict[str, str]) -> str:
        tree = self.repo.text("write-tree", env=self.env)
        return self.repo.text("commit-tree", tree, "-p", parent, "-F", "-",
                              data=message.encode(), env=env)

    def _patch(self, parent: str, outcome: Outcome, data: bytes) -> str:
        mail = parse_mail(self.repo, data)
        for key, value in {"Subject": mail.subject, "Date": mail.date,
                           "From": mail.author["email"]}.items():
            if not value:
                raise Fail(f"{outcome.name} has no '{key}:' header: write the patch with "
                           "git format-patch")
        topic = topic_of(mail.message, outcome.name)
        if topic != outcome.name.rpartition("/")[0]:
            there = f"patches/{topic}" if topic else "patches"
            raise Fail(f"{outcome.name} belongs in {there}, by the 'Topic:' line of its message: "
                       "move it (and change series), or correct that line")
        try:
            _, log = self.repo.call("apply", "--cached", "-v", "-p1", "--whitespace=nowarn",
                                    data=mail.diff, env={**self.env, "LC_ALL": "C"})
        except GitError as error:
            if not self._merge(parent, mail.diff):
                outcome.problems = explain(str(error), mail.diff.decode(errors="replace"))
                return parent
            log, outcome.merged = "", True
        outcome.offsets = offsets(log)
        commit = self._commit(parent, mail.message, stamp(mail.date, **mail.author))
        for path in self.repo.names("diff-tree", "-r", "--no-renames", "--name-only", "-z",
                                    parent, commit):
            if path not in self.upstream:
                raise Fail(f"{outcome.name} touches {path}, which upstream does not have: new "
                           "files belong in kernel/overlay, remove it from the patch")
        return commit

    def _merge(self, parent: str, diff: bytes) -> bool:
        """Apply a patch by a 3-way merge; a conflict leaves the index as it was."""
        if not self.provide():
            return False
        try:
            self.repo.call("apply", "--cached", "--3way", "-p1", "--whitespace=nowarn",
                           data=diff, env=self.env)
            return True
        except GitError:
            self.repo.text("read-tree", parent, env=self.env)
            return False


def offsets(log: str) -> list[str]:
    """`file hunk N: M lines` for every hunk that git applied with an offset."""
    found, path = [], ""
    for line in log.splitlines():
        if line.startswith("Checking patch "):
            path = line.removeprefix("Checking patch ").removesuffix("...")
        elif hit := re.match(r"Hunk #(\d+) succeeded at \d+ \(offset (-?\d+) lines?\)", line):
            found.append(f"{path} hunk {hit[1]}: {hit[2]} lines")
    return found


def explain(log: str, diff: str) -> list[str]:
    """The complaints of git apply, with the hunk's number and first lines."""
    problems, searched = [], ""
    for hit in re.finditer(r"(?m)^error: while searching for:\n((?:(?!error:).*\n)*)|"
                           r"^error: patch failed: (.+):(\d+)$|^error: (.*)$", log):
        if hit[1] is not None:
            lines = [line.strip() for line in hit[1].splitlines() if line.strip()]
            searched = "; upstream no longer has: " + " / ".join(lines[:3]) if lines else ""
        elif hit[2]:
            problems.append(f"{hit[2]} {hunk_at(diff, hit[2], hit[3])}{searched}")
            searched = ""
        elif not hit[4].endswith("patch does not apply"):
            problems.append(hit[4])
    return problems or [log.strip().splitlines()[-1] if log.strip() else "git apply failed"]


def hunk_at(diff: str, path: str, line: str) -> str:
    """`hunk N (@@ ... @@)`: the hunk of a file that starts at the given line."""
    section = diff.partition(f"\n--- a/{path}\n")[2].partition("\ndiff --git ")[0]
    headers = re.findall(r"(?m)^@@ -\d+.*? @@", section)
    for number, header in enumerate(headers, 1):
        if re.match(rf"@@ -{line}\b", header):
            return f"hunk {number} ({header})"
    return f"at line {line}"


def slug(subject: str) -> str:
    """The file name of a patch with this subject, without the suffix."""
    words = re.sub(r"[^a-z0-9_.+]+", "-", subject.lower()).strip("-.+_")
    return words[:72].rstrip("-.") or "patch"


def new_name(topic: str, subject: str, taken: list[str]) -> str:
    """A name below patches/ that is not taken."""
    stem = f"{topic}/{slug(subject)}" if topic else slug(subject)
    name, number = f"{stem}.patch", 2
    while name in taken:
        name, number = f"{stem}-{number}.patch", number + 1
    return name


class Exporter:
    """Converts a branch to a queue."""

    def __init__(self, repo: Repo, old: Queue) -> None:
        self.repo = repo
        self.old = old
        self.base = repo.commit_of(f"refs/tags/{UPSTREAM}")
        self.tip = repo.commit_of("HEAD")
        self.upstream = repo.files(self.base)

    def export(self) -> Queue:
        """Make a queue that reproduces the files of this branch."""
        patches, overlay_only = [], Queue(self._overlay(self.repo.files(self.tip)))
        for commit in self._commits():
            paths = self._upstream_paths(commit)
            if paths:
                data, _ = self.repo.call("--literal-pathspecs", "format-patch", *FORMAT, commit,
                                         "--", *paths)
                self._check_message(commit, data)
                patches.append(data)
        names = self._names([parse_mail(self.repo, data) for data in patches])
        queue = Queue(overlay_only.overlay, list(zip(names, patches)),
                      series_text(self.old.series, names))
        self._check_tree(queue)
        return queue

    def _commits(self) -> list[str]:
        try:
            self.repo.call("merge-base", "--is-ancestor", self.base, self.tip)
        except GitError as error:
            raise Fail(f"the branch in {shown(self.repo.folder)} does not contain the tag "
                       f"{UPSTREAM}: rebase it onto {UPSTREAM}") from error
        lines = self.repo.text("rev-list", "--reverse", "--topo-order", "--parents",
                               f"{self.base}..{self.tip}").splitlines()
        for line in lines:
            if len(line.split()) != 2:
                raise Fail(f"commit {line[:12]} is a merge, which a patch queue cannot hold: "
                           f"make the branch linear with `git rebase {UPSTREAM}`")
        return [line.split()[0] for line in lines]

    def _upstream_paths(self, commit: str) -> list[str]:
        names = self.repo.names("diff-tree", "-r", "--no-renames", "--name-only", "-z",
                                f"{commit}^", commit)
        return [name for name in names if name in self.upstream]

    def _overlay(self, files: Tree) -> dict[str, tuple[str, bytes]]:
        found = {}
        for path, (mode, name) in files.items():
            if path not in self.upstream:
                if mode == "160000":
                    raise Fail(f"{path} is a git submodule, which the overlay cannot hold: "
                               "remove it")
                found[path] = (mode, self.repo.call("cat-file", "blob", name)[0])
        return found

    def _names(self, mails: list[Mail]) -> list[str]:
        """The topic of the message and the old file name, or for a new patch its subject."""
        known: dict[tuple[str, str], list[str]] = {}
        for name, data in self.old.patches:
            topic = name.rpartition("/")[0]
            known.setdefault((topic, parse_mail(self.repo, data).subject), []).append(name)
        topics = [topic_of(mail.message, mail.subject) for mail in mails]
        names = [known[key].pop(0) if known.get(key) else ""
                 for key in zip(topics, (mail.subject for mail in mails))]
        for place, (topic, mail) in enumerate(zip(topics, mails)):
            if not names[place]:
                names[place] = new_name(topic, mail.subject, names)
        return names

    def _check_message(self, commit: str, data: bytes) -> None:
        message = tidy(self.repo.text("show", "-s", "--format=%B", commit))
        if parse_mail(self.repo, data).message != message:
            subject = message.partition("\n")[0]
            raise Fail(f"the message of commit {commit[:12]} ({subject}) does not survive as a "
                       "patch: remove lines such as '---', 'diff -' or a leading 'From:'")

    def _check_tree(self, queue: Queue) -> None:
        tip = Builder(self.repo, self.base).build(queue)
        if self.repo.tree_of(tip) != self.repo.tree_of(self.tip):
            raise Fail("the exported patches do not reproduce the branch's files; nothing was "
                       "written; please report this together with the branch")
