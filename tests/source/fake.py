# SPDX-License-Identifier: GPL-2.0-only
"""A small kernel, packages of it, a signed archive with them, and a web server for the archive.

With these the scripts run the real apt, gpg and git in seconds and without a network.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import http.server
import lzma
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

PACKAGE = "linux-source-6.12"
CONFIG = "linux-config-6.12"
NEEDED = ("apt-get", "apt-cache", "dpkg", "dpkg-deb", "gpg", "git", "tar", "xz")


@dataclass
class Result:
    """The result of a script."""

    code: int
    out: str
    err: str

    def good(self) -> Result:
        """It must have succeeded."""
        assert not self.code, f"exit status {self.code}\n{self.out}{self.err}"
        return self

    def bad(self, *parts: str) -> Result:
        """It must have failed with exactly one error line that contains all the parts."""
        assert self.code and len(self.err.splitlines()) == 1 and ": error: " in self.err, \
            f"not one error line: exit {self.code}\n{self.out}{self.err}"
        has(self.err, *parts)
        return self


def has(text: str, *parts: str) -> None:
    """Fail unless the text contains all the parts."""
    for part in parts:
        assert part in text, f"no {part!r} in:\n{text}"


def lacks(text: str, *parts: str) -> None:
    """Fail if the text contains one of the parts."""
    for part in parts:
        assert part not in text, f"unexpected {part!r} in:\n{text}"


def run(*command: object, cwd: Path | None = None, **env: str) -> str:
    """Run a helper program that must succeed; return its stdout."""
    result = subprocess.run([str(word) for word in command], cwd=cwd, text=True,
                            capture_output=True, env={**os.environ, **env}, check=False)
    assert not result.returncode, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def lines(name: str, first: int = 1, last: int = 60) -> str:
    """A C file of numbered lines, which are unique for patches, with some labels."""
    return "".join(f"int {name}_{number};\n" if number % 16 else "label:\n"
                   for number in range(first, last + 1))


# The line of mm/memory.c that differs in some point releases: one beside the line that the
# queue changes (see develop), or that line itself.
CHANGED = {"6.12.90": "memory_18", "6.12.91": "memory_20"}


def kernel_tree(folder: Path, version: str) -> Path:
    """A small kernel; the point release affects the line numbers in mm/mmap.c."""
    major, minor, point = version.split(".")
    changed = f"int {CHANGED.get(version, '')};"
    files = {
        "Makefile": f"VERSION = {major}\nPATCHLEVEL = {minor}\nSUBLEVEL = {point}\n",
        "mm/mmap.c": lines("old", 1, 200 - int(point)) + lines("mmap"),
        "mm/memory.c": lines("memory").replace(changed, f"/* changed */ {changed}"),
        "mm/Makefile": "obj-y += mmap.o\n",
        "scripts/tool.sh": "#!/bin/sh\n",
        # Like Debian's package: its last lines hide every new file from git.
        ".gitignore": "*.o\n/*\n!/debian/\n",
        ".gitattributes": "*.c diff=cpp\n",
        "lib/built.o": "a tracked file that .gitignore covers\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (folder / "scripts/tool.sh").chmod(0o755)
    (folder / "lib/link").symlink_to("built.o")
    (folder / "lib/noise").write_bytes(random.Random(1).randbytes(1_500_000))
    return folder


def kernel_tarball(folder: Path, version: str, suffix: str = "xz", top: str = "linux") -> Path:
    """A tarball of the small kernel."""
    tree = folder / f"{top}-{version}"
    if not tree.exists():
        kernel_tree(tree, version)
    option = {"xz": "-J", "gz": "-z", "zst": "--zstd"}[suffix]
    path = folder / f"{top}-{version}.tar.{suffix}"
    run("tar", "-c", option, "-f", path, "-C", folder, tree.name)
    return path


def build_package(root: Path, package: str, version: str, arch: str, description: str) -> Path:
    """Build a Debian package of the files in root beside it, and remove root."""
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(
        f"Package: {package}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: nobody\n"
        f"Description: {description}\n", encoding="utf-8")
    path = root.parent / f"{package}_{version}_{arch}.deb"
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", root, path)
    shutil.rmtree(root)
    return path


def source_package(folder: Path, version: str) -> Path:
    """A Debian source package of the small kernel, named as apt names it."""
    root = folder / f"deb-{version}"
    source = root / "usr" / "src"
    source.mkdir(parents=True)
    tarball = kernel_tarball(folder, version.partition("-")[0])
    shutil.copy(tarball, source / f"{PACKAGE}.tar.xz")
    return build_package(root, PACKAGE, version, "all", "a small kernel")


def config_package(folder: Path, version: str, arch: str, name: str, text: str) -> Path:
    """A Debian package with one configuration."""
    root = folder / f"config-{version}"
    configs = root / "usr" / "src" / CONFIG
    configs.mkdir(parents=True)
    (configs / f"{name}.xz").write_bytes(lzma.compress(text.encode()))
    return build_package(root, CONFIG, version, arch, "configurations")


class Archive:
    """A signed Debian archive: <top>/debian and <top>/debian-security.

    It lists configs and other_configs, versions of the packages of configurations for the
    host's architecture, and for ppc64el and arm64, without their files.
    """

    def __init__(self, folder: Path, suites: dict[str, list[str]],
                 configs: tuple[str, ...] = (), other_configs: tuple[str, ...] = ()) -> None:
        self.configs = {run("dpkg", "--print-architecture").strip(): configs}
        self.configs |= {"ppc64el": other_configs, "arm64": other_configs}
        self.top = folder / "www"
        self.keyring = folder / "keyring.gpg"
        self.packages: dict[str, Path] = {}
        self._home = Path(tempfile.mkdtemp(prefix="fl-gpg-"))
        atexit.register(self._close)
        run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key",
            "archive@example.invalid", "ed25519", "sign", "never", GNUPGHOME=str(self._home))
        run("gpg", "--batch", "--quiet", "--export", "--output", self.keyring,
            GNUPGHOME=str(self._home))
        for suite, versions in suites.items():
            self.publish(folder, suite, versions)

    def _close(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self._home), "--kill", "gpg-agent"],
                       check=False, capture_output=True)
        shutil.rmtree(self._home, ignore_errors=True)

    def publish(self, folder: Path, suite: str, versions: list[str], until: str = "") -> None:
        """Write a suite with these versions of the package; `until` is its last day."""
        root = self.top / ("debian-security" if suite.endswith("-security") else "debian")
        (root / "pool").mkdir(parents=True, exist_ok=True)
        stanzas = []
        for version in versions:
            if version not in self.packages:
                self.packages[version] = source_package(folder, version)
            package = self.packages[version]
            shutil.copy(package, root / "pool")
            stanzas.append(
                f"Package: {PACKAGE}\nVersion: {version}\nArchitecture: all\n"
                f"Maintainer: nobody\nFilename: pool/{package.name}\n"
                f"Size: {package.stat().st_size}\nSHA256: {digest(package)}\n"
                "Description: a small kernel\n")
        dist, listed = root / "dists" / suite, ""
        for arch, configs in self.configs.items():
            own = [f"Package: {CONFIG}\nVersion: {version}\nArchitecture: {arch}\n"
                   f"Maintainer: nobody\nFilename: pool/{CONFIG}_{version}_{arch}.deb\n"
                   f"Size: 1000\nSHA256: {hashlib.sha256(version.encode()).hexdigest()}\n"
                   "Description: its configurations\n"
                   for version in (configs if suite.endswith("-security") else ())]
            index = dist / "main" / f"binary-{arch}" / "Packages"
            index.parent.mkdir(parents=True, exist_ok=True)
            index.write_text("\n".join(stanzas + own), encoding="utf-8")
            listed += f" {digest(index)} {index.stat().st_size} {index.relative_to(dist)}\n"
        release = dist / "Release"
        release.write_text(
            f"Origin: Test\nSuite: {suite}\nCodename: {suite}\nDate: {formatdate(usegmt=True)}\n"
            + (f"Valid-Until: {until}\n" if until else "") +
            f"Architectures: {' '.join(self.configs)}\nComponents: main\nSHA256:\n{listed}",
            encoding="utf-8")
        run("gpg", "--batch", "--yes", "--quiet", "--clearsign", "--output", dist / "InRelease",
            release, GNUPGHOME=str(self._home))
        release.unlink()


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Listener(http.server.ThreadingHTTPServer):
    """Ignores that apt may close a connection at any time."""

    def handle_error(self, *_: object) -> None:
        """Be quiet."""


class Server:
    """Serves an archive on the loopback interface, with ranges, and fails on request."""

    def __init__(self, top: Path) -> None:
        self.cut = 0                      # close the connection after so many bytes of a .deb
        # Called before the rest of a cut file is sent.
        self.before_cut: Callable[[], None] = lambda: None
        self.stop_at_cut = True
        self.requests: list[tuple[str, str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """One request."""

            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Be quiet."""

            def do_GET(self) -> None:  # pylint: disable=invalid-name
                """Send a file or the rest of it."""
                wanted = self.headers.get("Range", "")
                outer.requests.append((self.path, wanted))
                path = top / self.path.lstrip("/")
                if not path.is_file():
                    self.send_error(404)
                    return
                data = path.read_bytes()
                start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
                self.send_response(206 if start else 200)
                self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
                self.send_header("Content-Length", str(len(data) - start))
                if start:
                    self.send_header("Content-Range",
                                     f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                if outer.cut and path.suffix == ".deb":
                    self.wfile.write(data[start:start + outer.cut])
                    self.wfile.flush()
                    outer.before_cut()
                    start += outer.cut
                    if outer.stop_at_cut:
                        self.close_connection = True
                        return
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(data[start:])

        self._server = Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"


def packaged_host(folder: Path, package: Path) -> Host:
    """A machine without a queue, with this package pinned and in its cache."""
    fresh = Host(folder)
    fresh.pin(package)
    (fresh.build / "cache").mkdir(parents=True)
    shutil.copy(package, fresh.cached(package))
    return fresh


@dataclass
class Host:
    """A machine with its own apt sources, kernel/ folder and build folder."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "etc" / "sources.list.d").mkdir(parents=True, exist_ok=True)
        (self.kernel / "patches").mkdir(parents=True, exist_ok=True)
        (self.kernel / "overlay").mkdir(exist_ok=True)
        (self.folder / "apt.conf").write_text(
            'Acquire::http::Proxy::127.0.0.1 "DIRECT";\nAcquire::Retries "0";\n',
            encoding="utf-8")

    @property
    def kernel(self) -> Path:
        """Stands for kernel/."""
        return self.folder / "kernel"

    @property
    def build(self) -> Path:
        """Stands for build/."""
        return Path(self.env.get("BUILD", self.folder / "build"))

    @property
    def tree(self) -> Path:
        """The work tree."""
        return self.build / "tree"

    def use(self, archive: Archive, url: str) -> None:
        """A Debian 12 machine: its sources have only bookworm suites."""
        (self.folder / "etc" / "sources.list.d" / "debian.sources").write_text(
            f"Types: deb\nURIs: {url}/debian\nSuites: bookworm bookworm-updates\n"
            f"Components: main\n\nTypes: deb\nURIs: {url}/debian-security\n"
            "Suites: bookworm-security\nComponents: main\n", encoding="utf-8")
        self.env["FAULTLINE_APT_KEYRING"] = str(archive.keyring)

    def pin(self, package: Path, **changes: str) -> None:
        """Write kernel/upstream for a package file."""
        version = package.name.split("_")[1]
        values = {"package": PACKAGE, "version": version,
                  "upstream": version.partition("-")[0], "file": package.name,
                  "size": str(package.stat().st_size), "sha256": digest(package), **changes}
        (self.kernel / "upstream").write_text(
            "# a comment that stays\n" + "".join(f"{key}={value}\n"
                                                 for key, value in values.items()),
            encoding="utf-8")

    def pin_config(self, version: str, arch: str = "amd64", package: Path | None = None) -> Path:
        """Write the pin of the configurations for a version, or for its package; returns it."""
        path = self.kernel / ("upstream-config" + ("" if arch == "amd64" else f"-{arch}"))
        size = package.stat().st_size if package else 1000
        sha = digest(package) if package else hashlib.sha256(version.encode()).hexdigest()
        path.write_text(
            f"# a comment that stays\npackage={CONFIG}\nversion={version}\n"
            f"upstream={version.partition('-')[0]}\nfile={CONFIG}_{version}_{arch}.deb\n"
            f"size={size}\nsha256={sha}\n", encoding="utf-8")
        return path

    def cached(self, package: Path) -> Path:
        """The package's place in the cache."""
        return self.build / "cache" / package.name

    def script(self, name: str, *args: str, package: str = "faultline", **env: str) -> Result:
        """Run a verb of fl on this machine, or of lab with the package lib.lab."""
        clean = {key: value for key, value in os.environ.items() if key not in (
            "UPSTREAM", "UPSTREAM_TARBALL", "FORCE", "DRY_RUN", "CONFIG", "CONTINUE", "VERSION")}
        full = {**clean, "FAULTLINE_KERNEL_DIR": str(self.kernel), "BUILD": str(self.build),
                "FAULTLINE_APT_ETC": str(self.folder / "etc"), "FAULTLINE_APT_WAITS": "0 0",
                "APT_CONFIG": str(self.folder / "apt.conf"), **self.env, **env}
        result = subprocess.run([sys.executable, "-B", "-m", package, name, *args], env=full,
                                text=True, capture_output=True, check=False)
        return Result(result.returncode, result.stdout, result.stderr)

    def overlay(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write an overlay file."""
        file = self.kernel / "overlay" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)

    def git(self, *args: str, cwd: Path | None = None) -> str:
        """git as a developer runs it in build/tree."""
        who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER")
               for key, value in (("NAME", "Zoë Dev"), ("EMAIL", "zoe@example.invalid"))}
        return run("git", "-c", "safe.directory=*", *args, cwd=cwd or self.tree,
                   **who, GIT_AUTHOR_DATE="2026-02-03T04:05:06+0100").strip()

    def change(self, path: str, old: str, new: str) -> None:
        """Edit a file of build/tree."""
        file = self.tree / path
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def commit(self, message: str) -> str:
        """Commit everything in build/tree."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD")


def develop(machine: Host) -> None:
    """Make a queue like a developer: two hooks, an overlay, then an export."""
    machine.overlay("mm/faultline/core.c", "int core;\n")
    machine.overlay("tools/faultline.sh", "#!/bin/sh\n", 0o755)
    machine.script("tree").good()
    machine.change("mm/mmap.c", "int mmap_30;\n", "int mmap_30;\nint hook;\n")
    machine.commit("mm: faultline: hook in mmap\n\nBecause.\n\nTopic: hooks\nOrigin: vendor\n"
                   "Forwarded: no")
    machine.change("mm/memory.c", "int memory_20;", "int memory_20_changed;")
    machine.change("mm/faultline/core.c", "core", "better_core")
    machine.commit("mm: memory: change Ünicode")
    machine.script("export").good()


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (0, os.readlink(path).encode())
        elif path.is_file():
            found[str(path.relative_to(folder))] = (path.stat().st_mode, path.read_bytes())
    return found


def mtimes(folder: Path) -> dict[str, int]:
    """The modification time of each file in a work tree."""
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns
            for path in folder.rglob("*")
            if ".git" not in path.relative_to(folder).parts and not path.is_dir()}
