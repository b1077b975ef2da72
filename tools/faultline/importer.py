# SPDX-License-Identifier: GPL-2.0-only
"""Import a source tarball as a git commit, without writing files in between.

tarball | decompressor | here | git fast-import: each stage runs on its own CPU, and for a point
release only files that are not yet in the repository reach the disk.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

from .common import CHUNK, Fail, Progress, disk_full, need_space, sha256
from .repo import IDENTITY, Repo, stamp
from .source import SERIES, Source, decompressor, tar_stream

SCRATCH_REF = "refs/faultline/import"
DATE = "2000-01-01T00:00:00+00:00"

# For the check of free space only: a kernel tarball unpacks to about ten times its size, and
# the git objects made from it take a quarter of that.
UNPACK_RATIO = 10
OBJECT_SHARE = 4


def import_source(repo: Repo, source: Source, files_too: bool) -> str:
    """Commit a local source; return the commit's id.

    `files_too`: the work tree is written afterwards, so that needs space as well.
    """
    path = source.path
    assert path is not None
    unpacked = path.stat().st_size * UNPACK_RATIO
    need_space(repo.folder, unpacked // OBJECT_SHARE + files_too * unpacked, "the kernel source")
    try:
        stream_in(repo, source)
        tree = repo.tree_of(SCRATCH_REF)
        version = kernel_version(repo.try_text("show", f"{tree}:Makefile"), source.title,
                                 source.series)
    finally:
        repo.try_text("update-ref", "-d", SCRATCH_REF)
        for report in repo.git_dir.glob("fast_import_crash_*"):
            report.unlink()
    return repo.text("commit-tree", tree, "-F", "-", data=origin(source, version).encode(),
                     env=stamp(DATE))


def stream_in(repo: Repo, source: Source) -> None:
    """Run the pipeline; every stage must succeed."""
    path = source.path
    assert path is not None
    command = decompressor(path)
    progress = Progress(f"reading {path.name} into git", path.stat().st_size)
    reason = ""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        with (tar_stream(path) as packed,
              subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=log) as unpack,
              repo.start("-c", "core.compression=1", "-c", "fastimport.unpackLimit=0",
                         "fast-import", "--quiet", "--done", "--depth=0", log=log) as git):
            assert unpack.stdin and unpack.stdout and git.stdin
            feeder = threading.Thread(target=feed, args=(packed, unpack.stdin, progress))
            feeder.start()
            try:
                convert(unpack.stdout, git.stdin)
            except (tarfile.TarError, EOFError) as error:
                reason = str(error)
            except BrokenPipeError:
                reason = "git fast-import stopped"
            finally:
                unpack.stdout.close()
                feeder.join()
                with contextlib.suppress(BrokenPipeError):
                    git.stdin.close()
        log.seek(0)
        said = log.read()
    if "No space left on device" in said:
        raise disk_full(repo.folder.parent)
    if reason or unpack.returncode or git.returncode:
        first = next(iter(said.splitlines()), reason)
        raise Fail(f"{path.name} cannot be unpacked, it is truncated or damaged ({first}): "
                   "download it again")
    progress.finish()


def feed(packed: IO[bytes], pipe: IO[bytes], progress: Progress) -> None:
    """Feed the compressed data to the decompressor."""
    done = 0
    with contextlib.suppress(BrokenPipeError):
        with pipe:
            while chunk := packed.read(CHUNK):
                pipe.write(chunk)
                done += len(chunk)
                progress.update(done)


def convert(tar: IO[bytes], out: IO[bytes]) -> None:
    """Convert a tarball to git fast-import commands."""
    name = f"{IDENTITY['NAME']} <{IDENTITY['EMAIL']}>"
    out.write(f"commit {SCRATCH_REF}\ncommitter {name} 0 +0000\ndata 0\n".encode())
    with tarfile.open(fileobj=tar, mode="r|", bufsize=CHUNK) as archive:
        for member in archive:
            path = inner_path(member.name)
            if not path or member.isdir():
                continue
            # The member list is useless for a stream and would grow with every file; it is
            # not in mypy's description of the class.
            archive.members = []  # type: ignore[attr-defined]
            for part in entry(archive, member, path):
                out.write(part)
    # Without this, fast-import treats the end of the pipe as an error.
    out.write(b"done\n")


def entry(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Iterator[bytes]:
    """The fast-import commands for one file."""
    if member.islnk():
        yield b"C %s %s\n" % (quoted(inner_path(member.linkname)), quoted(path))
        return
    if member.issym():
        mode, data = "120000", member.linkname.encode(errors="surrogateescape")
    elif member.isfile():
        mode = "100755" if member.mode & 0o100 else "100644"
        file = archive.extractfile(member)
        assert file is not None
        data = file.read()
        if len(data) != member.size:
            raise tarfile.ReadError("the tarball ends early")
    else:
        raise tarfile.ReadError(f"{member.name} is neither file nor link")
    if path == ".gitignore":
        data = unignored(data)
    yield b"M %s inline %s\ndata %d\n" % (mode.encode(), quoted(path), len(data))
    yield data
    yield b"\n"


def inner_path(name: str) -> str:
    """A path in the tarball without the top-level folder."""
    return posixpath.normpath(name).partition("/")[2]


def quoted(path: str) -> bytes:
    """A path quoted for git fast-import."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'.encode(errors="surrogateescape")


def unignored(data: bytes) -> bytes:
    """.gitignore without the lines by which Debian's package ignores every file.

    Debian's own repository has only debian/; in ours, git would ignore every new file that a
    developer adds.
    """
    return b"".join(line for line in data.splitlines(keepends=True)
                    if line.strip() not in (b"/*", b"!/debian/"))


def kernel_version(makefile: str, title: str, series: str = SERIES) -> str:
    """Check by its Makefile that a source is a kernel of a series."""
    values = dict(re.findall(r"(?m)^(VERSION|PATCHLEVEL|SUBLEVEL)\s*=\s*(\d+)", makefile))
    version = ".".join(values.get(key, "?") for key in ("VERSION", "PATCHLEVEL", "SUBLEVEL"))
    if not re.fullmatch(rf"{re.escape(series)}\.\d+", version):
        found = "not a kernel tree" if "?" in version else f"Linux {version}"
        raise Fail(f"{title} is {found}, but Faultline is made for Linux 6.12.y: use such a "
                   "source")
    return version


def origin(source: Source, version: str) -> str:
    """The commit message: the origin of the source."""
    assert source.path is not None
    digest = source.pin.sha256 if source.pin else sha256(source.path)
    return f"Linux {version} ({source.title})\n\nsha256: {digest}\nfile: {source.path.name}\n"
