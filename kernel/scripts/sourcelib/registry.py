# SPDX-License-Identifier: GPL-2.0-only
"""Debian's archive, accessed through apt with a private configuration.

apt does what security depends on: it checks the signatures of the archive's metadata and the
checksums in it. The host's apt keeps its sources, lists and cache; only its settings
(proxy, credentials) and the addresses of its mirrors are reused.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .common import Fail, Paths, Progress, disk_full, lock, need_space, say, sha256
from .pin import Pin

BRING_YOUR_OWN = "get linux-6.12.y.tar.xz yourself and set UPSTREAM_TARBALL=path"

# The suites that have the package. Not every mirror has all of them.
ARCHIVE_SUITES = ("trixie", "trixie-updates", "trixie-proposed-updates", "trixie-backports",
                  "bookworm-backports")
SECURITY_SUITES = ("trixie-security", "bookworm-security")

DEBIAN_SUITE = re.compile(
    r"(bookworm|trixie|forky|sid|unstable|testing|stable|oldstable)"
    r"(-updates|-proposed-updates|-backports|-security|/updates)?$")
KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg",
            "/usr/share/keyrings/debian-archive-keyring.pgp")

# The hooks of the host's apt clean its cache or notify the desktop: we do not run them.
HOOKS = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke",
         "APT::Update::Post-Invoke-Success", "DPkg::Pre-Invoke", "DPkg::Post-Invoke")


def parse_one_line(text: str) -> list[tuple[str, str]]:
    """(URI, suite) of each `deb` line of a .list file that has the component main."""
    found = []
    for line in text.splitlines():
        line = re.sub(r"#.*|\[[^]]*\]", " ", line)
        words = line.split()
        if len(words) >= 4 and words[0] == "deb" and "main" in words[3:]:
            found.append((words[1], words[2]))
    return found


def parse_deb822(text: str) -> list[tuple[str, str]]:
    """(URI, suite) of each enabled stanza of a .sources file that has the component main."""
    found = []
    text = re.sub(r"(?m)^#.*\n?", "", text)
    for stanza in re.split(r"\n\s*\n", text):
        joined = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = (line.split(":", 1) for line in joined.splitlines() if ":" in line)
        fields = {key.strip().lower(): value.split() for key, value in pairs}
        off = [word.lower() for word in fields.get("enabled", [])] in (["no"], ["false"], ["0"])
        if off or "deb" not in fields.get("types", []) or "main" not in fields.get(
                "components", []):
            continue
        found += [(uri, suite) for uri in fields.get("uris", [])
                  for suite in fields.get("suites", [])]
    return found


def host_sources(etc: Path) -> list[tuple[str, str]]:
    """(URI, suite) of every Debian archive in the host's apt sources."""
    parts = etc / "sources.list.d"
    found = []
    for path in [etc / "sources.list", *sorted(parts.glob("*.list")),
                 *sorted(parts.glob("*.sources"))]:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found += (parse_deb822 if path.suffix == ".sources" else parse_one_line)(text)
    return [(uri.rstrip("/"), suite) for uri, suite in found
            if DEBIAN_SUITE.match(suite) and not uri.startswith("cdrom:")]


def wanted_sources(sources: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The host's archives, plus the suites that have the package."""
    security = [uri for uri, suite in sources if suite.endswith(("-security", "/updates"))]
    archive = [uri for uri, suite in sources if not suite.endswith(("-security", "/updates"))]
    # A host may name only one of the two; mirrors have both side by side under these names.
    if not security:
        security = [f"{uri}-security" for uri in archive if uri.endswith("/debian")]
    if not archive:
        archive = [uri.removesuffix("-security") for uri in security
                   if uri.endswith("/debian-security")]
    wanted = [(uri, suite) for uri in security for suite in SECURITY_SUITES]
    wanted += [(uri, suite) for uri in archive for suite in ARCHIVE_SUITES]
    return list(dict.fromkeys(wanted + sources))


def newer_first(pins: list[Pin]) -> list[Pin]:
    """Sort by Debian's version ordering."""
    def compare(one: Pin, other: Pin) -> int:
        if one.version == other.version:
            return 0
        later = subprocess.run(["dpkg", "--compare-versions", one.version, "gt", other.version],
                               check=False).returncode == 0
        return -1 if later else 1
    return sorted(pins, key=functools.cmp_to_key(compare))


class Registry:
    """The versions of one package that the mirrors currently have."""

    def __init__(self, paths: Paths, package: str, series: str = "", architecture: str = "",
                 instead: str = BRING_YOUR_OWN, source: bool = False, suite: str = "") -> None:
        """Select a series or all versions, for the host's or another Debian architecture.

        `instead` tells the user what to do if the package is not available.  `source` selects
        source packages, from the suites that the host itself installs from.  `suite` selects a
        single suite of the host's mirrors, which may be one that the host does not use.
        """
        self.cache = paths.cache
        self.folder = paths.cache / "-".join(
            filter(None, ("apt", architecture, suite, "source" if source else "")))
        self.package = package
        self.series = series
        self.architecture = architecture
        self.instead = instead
        self.source = source
        self.suite = suite
        self.trouble = ""
        self.pins: list[Pin] = []

    def open(self) -> Registry:
        """Read the archive's signed metadata, and select the versions."""
        self.update()
        self.pins = self._list()
        return self

    def update(self) -> Registry:
        """Read the archive's signed metadata; what it lacks is in `trouble`."""
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            raise Fail(f"this host has no apt (is it a Debian?): {self.instead}")
        with lock(self.folder / "lock"):
            self._configure()
            self._update()
        return self

    def run(self, program: str, *args: str,
            cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of apt's programs with the private configuration; its status is not checked."""
        return subprocess.run(self._command(program, *args), cwd=cwd, env=self._env(),
                              stdin=subprocess.DEVNULL, text=True, capture_output=True,
                              check=False)

    @property
    def _what(self) -> str:
        return f"{self.package} {self.series}.y" if self.series else self.package

    def versions(self) -> str:
        """The available versions, for a message."""
        return ", ".join(pin.version for pin in self.pins)

    def find(self, version: str) -> Pin:
        """The pin for `latest`, 6.12.x (its newest revision) or 6.12.x-y."""
        for pin in self.pins:
            if version in ("latest", pin.version, pin.upstream):
                return pin
        if self.trouble:
            raise Fail(f"cannot read the package lists ({self.trouble}): check the network and "
                       f"apt's sources and proxy, then run this again, or {self.instead}")
        if not self.pins:
            raise Fail(f"the mirrors in apt's sources have no {self._what}: "
                       f"add a mirror with trixie-security to apt's sources, or {self.instead}")
        raise Fail(f"{self.package} {version} is not in the registry (any more); it has "
                   f"{self.versions()}: use the newest with UPSTREAM=latest, or move the pin "
                   "with `make rebase VERSION=`")

    def download(self, pin: Pin) -> Path:
        """Download the package to the cache, resuming a partial download."""
        target, part = self.cache / pin.file, self.folder / "download" / pin.file
        with lock(self.folder / "lock"):
            for other in part.parent.glob("*"):
                if other != part:
                    other.unlink()
            need_space(self.cache, max(0, pin.size - size_of(part)),
                       f"the download of {pin.file}")
            log = self._watch_download(pin, part)
            if log:
                raise self._download_error(pin, log)
            if part.is_symlink():  # made by apt for a file: URI
                shutil.copyfile(part, self.cache / f".{pin.file}.part")
                (self.cache / f".{pin.file}.part").replace(part)
            verify(part, pin)
            part.replace(target)
        return target

    def _download_command(self, pin: Pin, part: Path) -> list[str]:
        """apt-helper resumes a partial download, which `apt-get download` does not.

        The latter is only needed for mirror lists (mirror+file:), which apt-helper cannot use.
        """
        download = self._command("apt-get", "-qq", "download", f"{pin.package}={pin.version}")
        uris = subprocess.run([*download, "--print-uris"], env=self._env(), text=True,
                              capture_output=True, check=False).stdout
        uri = re.match(r"'([^']+)' ", uris)
        if not uri or uri[1].startswith("mirror"):
            return download
        return self._command("/usr/lib/apt/apt-helper", "-qq", "download-file", uri[1],
                             str(part), f"SHA256:{pin.sha256}")

    def _watch_download(self, pin: Pin, part: Path) -> str:
        """Run the download and show progress; return apt's output if it failed."""
        command = self._download_command(pin, part)
        progress = Progress(f"downloading {pin.file}", pin.size)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            with subprocess.Popen(command, cwd=part.parent, env=self._env(), stdout=log,
                                  stderr=log, stdin=subprocess.DEVNULL) as apt:
                while apt.poll() is None:
                    time.sleep(0.1)
                    progress.update(size_of(part))
            if apt.returncode == 0:
                progress.finish()
                return ""
            log.seek(0)
            return log.read() or f"E: {command[0]} failed"

    def _download_error(self, pin: Pin, log: str) -> Fail:
        if "No space left on device" in log:
            return disk_full(self.cache)
        errors = re.findall(r"(?m)^[EW]: (.*)", log)
        reason = re.sub(r"\s+", " ", errors[0]) if errors else log.strip().splitlines()[-1]
        return Fail(f"the download of {pin.file} failed ({reason}): check the network and run "
                    "this again, it resumes where it stopped")

    def _env(self) -> dict[str, str]:
        return {**os.environ, "LC_ALL": "C.UTF-8"}

    def _command(self, program: str, *args: str) -> list[str]:
        return [program, "-c", str(self.folder / "apt.conf"), *args]

    def _configure(self) -> None:
        etc = Path(os.environ.get("FAULTLINE_APT_ETC") or "/etc/apt")
        sources = host_sources(etc)
        if not sources:
            raise Fail(f"apt's sources in {etc} name no Debian archive: add one, or "
                       f"{self.instead}")
        keyring = os.environ.get("FAULTLINE_APT_KEYRING") or next(
            filter(os.path.exists, KEYRINGS), None)
        if not keyring:
            raise Fail("the keys of Debian's archive are missing: run "
                       "`apt-get install debian-archive-keyring` as root")
        for name in ("lists/partial", "archives/partial", "state", "download"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        wanted = sources if self.source else wanted_sources(sources)
        if self.suite:
            wanted = list(dict.fromkeys((uri, self.suite) for uri, suite in wanted
                                        if suite in ARCHIVE_SUITES))
        # Only the package index: no translations, no desktop metadata.
        kind, target = ("deb-src", "Sources") if self.source else ("deb", "Packages")
        (self.folder / "sources.list").write_text("".join(
            f"{kind} [target={target} signed-by={keyring}] {uri} {suite} main\n"
            for uri, suite in wanted), encoding="utf-8")
        (self.folder / "apt.conf").write_text(self._conf(), encoding="utf-8")

    def _conf(self) -> str:
        folder = self.folder
        # apt's own user may not have access to the build folder, so apt must not switch to it.
        settings = {
            "Dir::State": folder / "state", "Dir::State::Lists": folder / "lists",
            "Dir::State::Status": folder / "status", "Dir::Cache": folder,
            "Dir::Cache::Archives": folder / "archives",
            "Dir::Cache::PkgCache": folder / "pkgcache.bin",
            "Dir::Cache::SrcPkgCache": folder / "srcpkgcache.bin",
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null", "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null", "Dir::Log": folder,
            "APT::Sandbox::User": "root", "APT::Get::List-Cleanup": "true",
            "Acquire::Languages": "none",
        }
        lines = [f"#clear {hook};" for hook in HOOKS]
        # The source package is listed for every architecture; the host's own is enough.
        lines += ["#clear APT::Architectures;"]
        if self.architecture:
            lines += [f'{key} "{self.architecture}";'
                      for key in ("APT::Architecture", "APT::Architectures::")]
        lines += [f'{key} "{value}";' for key, value in settings.items()]
        return "\n".join(lines) + "\n"

    def _update(self) -> None:
        say("reading the package lists of Debian's archive ...")
        result = subprocess.run(self._command("apt-get", "-q", "update"), env=self._env(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, check=False)
        if "No space left on device" in result.stdout:
            raise disk_full(self.folder)
        errors = re.findall(r"(?m)^[EW]: (.*)", result.stdout)
        # A mirror without one of the suites is harmless; anything else may not be.
        real = [error for error in errors if not re.search(
            r"does not have a Release file|404|Some index files failed|disabled by default",
            error)]
        self.trouble = re.sub(r"\s+", " ", real[0]) if real else ""
        if self.trouble:
            say(f"note: some package lists are out of date ({self.trouble})")

    def _list(self) -> list[Pin]:
        result = subprocess.run(self._command("apt-cache", "show", self.package),
                                env=self._env(), stdin=subprocess.DEVNULL, text=True,
                                capture_output=True, check=False)
        pins = {}
        form = rf"{re.escape(self.series)}\.\d+-" if self.series else r"\S"
        for stanza in result.stdout.split("\n\n"):
            fields = dict(re.findall(r"(?m)^([A-Za-z0-9-]+): (.*)$", stanza))
            version = fields.get("Version", "")
            if not re.match(form, version):
                continue
            epoch, _, rest = version.rpartition(":")
            name = os.path.basename(fields.get("Filename", ""))
            pins[version] = Pin.parse({
                "package": self.package, "version": version,
                "upstream": rest.partition("-")[0],
                # The name that `apt-get download` uses; file names in the archive have no epoch.
                "file": name.replace("_", f"_{epoch}%3a", 1) if epoch else name,
                "size": fields.get("Size", ""), "sha256": fields.get("SHA256", ""),
            }, f"the archive's entry of {self.package} {version}")
        return newer_first(list(pins.values()))


def size_of(path: Path) -> int:
    """The size of a file that apt may move away at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def verify(path: Path, pin: Pin) -> None:
    """Check size and sha256 of a package."""
    size, digest = path.stat().st_size, sha256(path)
    if size != pin.size:
        raise Fail(f"{path.name} has {size} bytes, expected {pin.size}: run this again")
    if digest != pin.sha256:
        raise Fail(f"{path.name} has the wrong checksum (sha256 {digest}, expected "
                   f"{pin.sha256}): do not use it; check kernel/upstream and the mirror")
