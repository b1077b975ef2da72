# SPDX-License-Identifier: GPL-2.0-only
"""Move the pin to another 6.12 point release that the registry has.

The overlay and each patch are tried on it in build/rebase-VERSION. The report says for each
patch whether it applies, with what offset, whether it needs a 3-way merge with the old source,
or where it fails. If all apply or merge, the pins and the refreshed patches are written.
Otherwise nothing in kernel/ changes, and `git am` has stopped in build/rebase-VERSION at the
first conflict: resolve it there, `git am --continue`, then run this with --continue.

Two files are for the review: build/rebase-VERSION.patches.diff compares each patch that is not
only moved with the old one, build/rebase-VERSION.sites.diff each audited function that differs.

If the registry does not have the distribution's configurations of that version any more, those
of the nearest point release are pinned, for each architecture by itself.  The pin of an
architecture whose package lists cannot be read stays.
"""

import argparse
import difflib
import functools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import audit
from .apt import Apt, Unread
from .branch import Builder, Exporter, Outcome, parse_mail
from .common import Fail, Paths, flag, say, shown, write_atomic
from .patchqueue import Queue
from .pin import Pin
from .repo import BRANCH, IDENTITY, UPSTREAM, GitError, Repo
from .source import CONFIG_PINS, ENVIRONMENT, Source, obtain, pinned
from .worktree import WorkTree, source_ref

MORE = """\
  DRY_RUN=1               only report, like --dry-run
  CONFIG=nearest          move only the pins of the configurations, like --config
  CONTINUE=1              continue in build/rebase-VERSION, like --continue
"""

# The work tree as `git am` left it when it stopped.
STOPPED = "refs/faultline/stopped"


class Old:
    """The branch on the old source: its files are what patches are merged and compared with.

    It is made when it is first needed, in the repository of the scratch tree.
    """

    def __init__(self, paths: Paths, scratch: WorkTree, queue: Queue, source: Source) -> None:
        self.paths = paths
        self.scratch = scratch
        self.queue = queue
        self.source = source

    @functools.cached_property
    def tip(self) -> str:
        """The last commit, or "" if the old source cannot be had."""
        tree, repo = Repo(self.paths.tree), self.scratch.repo
        known = tree.commit_of(source_ref(self.source)) if tree.git_dir.is_dir() else ""
        try:
            base = (repo.commit_of(known) if known else "") or self.scratch.base_of(
                self.paths, self.source)
        except Fail as error:
            say(f"the old source cannot be had, so nothing is merged or compared: {error}")
            return ""
        say("making the branch on the old source ...")
        return Builder(repo, base).build(self.queue, lambda outcome: None)

    def provide(self) -> bool:
        """Make sure that the repository has the files; return False if it cannot."""
        return bool(self.tip)


def verdict(outcome: Outcome) -> str:
    """The report line of one patch."""
    if outcome.problems:
        return f"FAILS    {outcome.name}: {'; '.join(outcome.problems)}"
    if outcome.merged:
        return f"merged   {outcome.name}"
    if outcome.offsets:
        return f"offset   {outcome.name}: {', '.join(outcome.offsets)}"
    return f"applies  {outcome.name}"


def check_unfinished(scratch: WorkTree) -> None:
    """Refuse to start over while conflicts are being resolved."""
    if scratch.exists():
        stopped = scratch.repo.commit_of(STOPPED)
        if stopped and scratch.repo.snapshot() == stopped:
            return
        work = scratch.unsaved_work(scratch.load())
        if work:
            raise Fail(f"{shown(scratch.folder)} has {work}: continue with CONTINUE=1, or "
                       "remove the folder")


def try_queue(repo: Repo, queue: Queue, old: Old) -> tuple[str, list[str]]:
    """Build the branch as far as possible and report.

    Returns the error, if any, and the names of the patches from the first failing one on.
    """
    base = repo.commit_of(f"refs/tags/{UPSTREAM}")
    builder = Builder(repo, base, old.provide)
    collisions = builder.collisions(queue.overlay)
    for path in collisions:
        say(f"FAILS    overlay file {path}: upstream has it now")
    fitting = {path: entry for path, entry in queue.overlay.items() if path not in collisions}
    outcomes: list[Outcome] = []

    def report(outcome: Outcome) -> None:
        outcomes.append(outcome)
        say(verdict(outcome))

    tip = builder.build(Queue(fitting, queue.patches), report)
    repo.text("update-ref", f"refs/heads/{BRANCH}", tip)
    failed = [outcome.name for outcome in outcomes if outcome.problems]
    say(f"{len(outcomes) - len(failed)} of {len(outcomes)} patches apply, "
        f"{sum(bool(outcome.offsets) for outcome in outcomes)} of them with an offset and "
        f"{sum(outcome.merged for outcome in outcomes)} by a 3-way merge; "
        f"{len(collisions)} of {len(queue.overlay)} overlay files collide")
    if collisions:
        return (f"overlay file {collisions[0]} exists upstream now; nothing was changed: "
                "rename or remove it in kernel/overlay and run this again"), []
    if failed:
        names = [outcome.name for outcome in outcomes]
        return (f"{failed[0]} does not apply; nothing was changed",
                names[names.index(failed[0]):])
    return "", []


def apply_rest(repo: Repo, mails: list[bytes]) -> str:
    """Run `git am` on the patches from the first failing one on; return the next steps."""
    folder = repo.git_dir / "faultline-rest"
    folder.mkdir()
    for number, data in enumerate(mails):
        (folder / f"{number:04}").write_bytes(data)
    identity = {f"GIT_COMMITTER_{key}": value for key, value in IDENTITY.items()}
    try:
        repo.call("am", "--3way", "--keep-non-patch", "--whitespace=nowarn",
                  *(str(path) for path in sorted(folder.iterdir())), env=identity)
        return f"`git am` could apply it and the rest in {shown(repo.folder)}: review that"
    except GitError:
        pass
    finally:
        shutil.rmtree(folder)
    files = repo.names("diff", "--name-only", "--diff-filter=U", "-z")
    task = f"resolve the conflicts in {' and '.join(files)}"
    if not files:
        # The old versions of the files are not there, for example as the patch was edited.
        patch = repo.git_dir / "rebase-apply" / "patch"
        try:
            repo.call("apply", "--reject", "--whitespace=nowarn", str(patch))
        except GitError as error:
            files = re.findall(r"(?m)^Applying patch (\S+) with \d+ reject", str(error))
        task = f"apply by hand {' and '.join(f'{name}.rej' for name in files) or shown(patch)}"
    repo.text("update-ref", STOPPED, repo.snapshot())
    return (f"in {shown(repo.folder)} {task}, `git add` the files, and `git am --continue`, "
            "which goes on with the rest of the queue")


def text_in(repo: Repo, commit: str) -> audit.Texts:
    """The texts of the files in a commit."""
    return lambda path: repo.try_text("show", f"{commit}:{path}")


def check_sites(paths: Paths, repo: Repo, folder: Path, old: Old) -> str:
    """Compare the audited sites with the new kernel; return the error, if any."""
    path = audit.list_of(paths)
    if not path.exists():
        return ""
    found = audit.sites(audit.in_commit(repo, repo.commit_of(f"refs/heads/{BRANCH}")))
    differences = audit.changes(audit.read(path), found)
    for line in differences:
        say(f"AUDIT    {line}")
    if not differences:
        say(f"{len(found)} sites are as in {shown(path)}")
        return ""
    path_of_diff, where = folder.with_name(f"{folder.name}.sites.diff"), ""
    diff = audit.compare(differences, text_in(repo, old.tip),
                         text_in(repo, f"refs/heads/{BRANCH}")) if old.tip else ""
    if diff:
        write_atomic(path_of_diff, diff.encode())
        where = f" in {shown(path_of_diff)}"
    return (f"{shown(path)} differs in {len(differences)} places; nothing was changed: review "
            f"them{where} as described at its top, run "
            f"`tools/fl audit --update --tree {shown(folder)}`, then `make rebase "
            "CONTINUE=1`")


def note_overlay(scratch: WorkTree, queue: Queue) -> None:
    """Note the overlay that the scratch branch was made from; the digest leaves out patches."""
    state = scratch.load()
    state.queue = Queue(queue.overlay).digest()
    scratch.store(state)


def check_overlay(scratch: WorkTree, queue: Queue) -> None:
    """Refuse to overwrite changes that were made in kernel/overlay since the branch was begun."""
    if Queue(queue.overlay).digest() != scratch.load().queue:
        raise Fail(f"kernel/overlay has changed since {shown(scratch.folder)} was made, and this "
                   "would undo that: commit the change there, undo it in kernel/overlay, and run "
                   "this again")


def check_complete(scratch: WorkTree, queue: Queue) -> None:
    """Check manual work: nothing is uncommitted and no patch is missing."""
    scratch.require_branch(" and run this again")
    left = scratch.changes(scratch.load()) + scratch.repo.untracked()
    if left:
        raise Fail(f"{shown(scratch.folder)} has uncommitted changes ({left[0]}): finish "
                   "`git am` and run this again")
    if (scratch.repo.git_dir / "rebase-apply").is_dir():
        raise Fail(f"`git am` has not finished in {shown(scratch.folder)}: run `git am "
                   "--continue` there, then this again")
    subjects = scratch.repo.text("log", "--format=%s", f"{UPSTREAM}..HEAD").splitlines()
    for name, data in queue.patches:
        if parse_mail(scratch.repo, data).subject not in subjects:
            raise Fail(f"{name} is not on the branch in {shown(scratch.folder)}: apply it there, "
                       "or drop it from kernel/patches and run this again")


def config_pins(paths: Paths, new: Pin, stay: bool) -> dict[str, Pin]:
    """The pins of the distribution's configurations for the new version, by file name.

    If its package lists cannot be read, a pin stays, or (stay is false) that is an error.
    """
    found = {}
    for name, architecture in CONFIG_PINS.items():
        if not (paths.kernel / name).exists():
            continue
        old = Pin.load(paths.kernel, name)
        what = f"configuration: {title(old, architecture)}"
        package = Apt(paths, architecture).package(old.package, old.series)
        try:
            nearest = package.nearest(new)
        except Unread:
            if not stay:
                raise
            say(f"{what} stays at {old.version}, as package lists cannot be read: run "
                "`make rebase CONFIG=nearest` when they can")
            continue
        if nearest.version != new.version:
            say(f"{what} {new.version} is not in the registry (any more); {nearest.version} is "
                "the nearest")
        found[name] = nearest
    return found


def title(pin: Pin, architecture: str) -> str:
    """The name of a package of configurations, as dpkg writes it."""
    return f"{pin.package}:{architecture}" if architecture else pin.package


def write_config_pin(paths: Paths, name: str, config: Pin) -> None:
    """Write a pin of the configurations."""
    path = paths.kernel / name
    write_atomic(path, config.rewrite(path.read_text(encoding="utf-8")).encode())
    say(f"{shown(path)} written")


def move_config(paths: Paths, dry: bool) -> None:
    """Move only the pins of the configurations: to those of the pinned release, or the nearest."""
    configs = config_pins(paths, Pin.load(paths.kernel), stay=False)
    if not configs:
        raise Fail(f"there is no {shown(paths.kernel / next(iter(CONFIG_PINS)))} to move")
    for name, config in configs.items():
        what = f"configuration: {title(config, CONFIG_PINS[name])}"
        if config == Pin.load(paths.kernel, name):
            say(f"{what} {config.version} is pinned already")
        elif dry:
            say(f"{what} would move to {config.version}; dry run: nothing was changed")
        else:
            write_config_pin(paths, name, config)


def content(mail: bytes) -> list[str]:
    """The diff in a patch without line numbers and checksums."""
    text = mail.decode(errors="replace").partition("\ndiff --git ")[2]
    return [re.sub(r"^@@ .*", "@@", line) for line in text.splitlines(keepends=True)
            if not line.startswith("index ")]


def changed_patches(old: Queue, new: Queue) -> Iterator[str]:
    """Diffs between the old and the new version of each patch that is not only moved."""
    before = dict(old.patches)
    for name, data in new.patches:
        if name in before:
            diff = "".join(difflib.unified_diff(content(before[name]), content(data),
                                                f"a/{name}", f"b/{name}"))
            if diff:
                yield diff


def move(paths: Paths, repo: Repo, folder: Path, queue: Queue, new: Pin, dry: bool) -> None:
    """Write the refreshed queue and the pins."""
    exported = Exporter(repo, queue).export()
    changed = list(changed_patches(queue, exported))
    if changed:
        review = folder.with_name(f"{folder.name}.patches.diff")
        write_atomic(review, "\n".join(changed).encode())
        say(f"{len(changed)} patches are not only moved: review {shown(review)}")
    configs = config_pins(paths, new, stay=True)
    for name, config in configs.items():
        if config.version == new.version:
            say(f"configuration: {title(config, CONFIG_PINS[name])} {config.version} is there")
    if dry:
        say("dry run: nothing was changed")
        return
    pin_text = new.rewrite((paths.kernel / "upstream").read_text(encoding="utf-8"))
    for name in exported.save(paths.kernel, pin_text):
        say(f"{shown(paths.kernel / name)} written")
    for name, config in configs.items():
        write_config_pin(paths, name, config)
    say(f"the pin is now {new.version}; `make tree` updates build/tree")


def audit_and_move(paths: Paths, repo: Repo, folder: Path, queue: Queue, new: Pin,
                   dry: bool, old: Old) -> str:
    """Write the queue and the pins if the audited sites are as before; return the error, if any."""
    error = check_sites(paths, repo, folder, old)
    # A dry run reports the configurations in any case.
    if dry or not error:
        move(paths, repo, folder, queue, new, dry)
    return error


def go_on(paths: Paths, scratch: WorkTree, queue: Queue, was: Source, new: Pin,
          dry: bool) -> None:
    """Continue with the branch as the developer left it in the scratch tree."""
    if not scratch.exists():
        raise Fail(f"there is no {shown(scratch.folder)} to continue in: run this without "
                   "CONTINUE=1 first")
    check_overlay(scratch, queue)
    check_complete(scratch, queue)
    error = audit_and_move(paths, scratch.repo, scratch.folder, queue, new, dry,
                           Old(paths, scratch, queue, was))
    if error:
        raise Fail(error)
    if not dry:
        shutil.rmtree(scratch.folder)


def begin(paths: Paths, scratch: WorkTree, queue: Queue, was: Source, source: Source,
          dry: bool) -> None:
    """Try the queue on the new source. The scratch tree is kept only on failure."""
    check_unfinished(scratch)
    for review in paths.build.glob(f"{scratch.folder.name}.*.diff"):
        review.unlink()
    source, tree_git = obtain(paths, source), paths.tree / ".git"
    # Most of the source is already among the objects of build/tree.
    with scratch.begin(source, False, tree_git if tree_git.is_dir() else None) as part:
        old = Old(paths, part, queue, was)
        error, rest = try_queue(part.repo, queue, old)
        assert source.pin is not None
        error = error or audit_and_move(paths, part.repo, scratch.folder, queue, source.pin, dry,
                                        old)
        shutil.rmtree(scratch.folder, ignore_errors=True)
        if error:
            scratch.finish(source, part)
            note_overlay(scratch, queue)
            if rest:
                mails = dict(queue.patches)
                error += (f": {apply_rest(scratch.repo, [mails[name] for name in rest])}; then "
                          "run `make rebase CONTINUE=1`")
            raise Fail(error)


def unfinished(paths: Paths) -> str:
    """The version of the only scratch tree."""
    found = sorted(path.name.removeprefix("rebase-") for path in paths.build.glob("rebase-*")
                   if path.is_dir())
    if not found:
        raise Fail(f"there is no {shown(paths.rebase('VERSION'))} to continue in: run `make "
                   "rebase VERSION=6.12.x` (or latest) first")
    if len(found) > 1:
        raise Fail(f"which version? there are {' and '.join(found)}: run `make rebase CONTINUE=1 "
                   "VERSION=6.12.x`")
    return found[0]


def rebase(paths: Paths, version: str, dry: bool, continued: bool) -> None:
    """Find the version, then begin or continue."""
    old, queue = Pin.load(paths.kernel), Queue.load(paths.kernel)
    tree = WorkTree(paths.tree)
    if not dry and tree.exists():
        tree.check_replaceable(tree.load())
    package = Apt(paths).package(old.package, old.series)
    new = package.find(version)
    say(f"from {old.version} to {new.version}")
    scratch, was = WorkTree(paths.rebase(new.version)), pinned(old, package=package)
    with scratch.locked():
        if continued:
            go_on(paths, scratch, queue, was, new, dry)
        else:
            begin(paths, scratch, queue, was, pinned(new, package=package), dry)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=ENVIRONMENT + MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", default=os.environ.get("VERSION", ""),
                        help="6.12.x, 6.12.x-y or latest (default: $VERSION)")
    parser.add_argument("--dry-run", action="store_true", help="only report; change nothing")
    parser.add_argument("--continue", action="store_true", dest="continued",
                        help="continue with the branch in build/rebase-VERSION")
    parser.add_argument("--config", action="store_true",
                        help="move only the pins of the configurations: to the pinned release, "
                        "or the nearest one that the registry has")
    args = parser.parse_args()
    if args.config or os.environ.get("CONFIG") == "nearest":
        move_config(Paths.from_env(), args.dry_run or flag("DRY_RUN"))
        return
    paths, continued = Paths.from_env(), args.continued or flag("CONTINUE")
    if not args.version and not continued:
        raise Fail("which version? run `make rebase VERSION=6.12.x` (or latest)")
    rebase(paths, args.version or unfinished(paths), args.dry_run or flag("DRY_RUN"), continued)
