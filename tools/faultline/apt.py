# SPDX-License-Identifier: GPL-2.0-only
"""Debian's archive, accessed through apt with a private configuration.

apt does what security depends on: it checks the signatures of the archive's metadata and the
checksums in it. The host's apt keeps its sources, lists and cache; only its settings
(proxy, credentials) and the addresses of its mirrors are reused. All callers go through Apt.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
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

# apt's errors for a mirror that is being updated.
MIRROR_SYNC = re.compile(r"(?m)^Err:.*\n  (File has unexpected size.*|Hash Sum mismatch)")
# apt's error for metadata whose Valid-Until has passed.
EXPIRED = re.compile(r"(?m)^E: Release file for .* is expired")


def waits() -> list[int]:
    """The seconds to wait for such a mirror, before each retry."""
    text = os.environ.get("FAULTLINE_APT_WAITS") or "5 20"
    if not re.fullmatch(r"[\d ]+", text, re.ASCII):
        raise Fail(f"FAULTLINE_APT_WAITS={text} is not a list of seconds: unset it")
    return [int(word) for word in text.split()]


def host_sources(etc: Path) -> list[tuple[str, str]]:
    """(URI, suite) of every Debian archive in the host's apt sources, as apt reads them."""
    # With release info, apt would leave out archives that the host has no lists of yet.
    result = subprocess.run(
        ["apt-get", "indextargets", "--no-release-info",
         "-o", f"Dir::Etc::SourceList={etc / 'sources.list'}",
         "-o", f"Dir::Etc::SourceParts={etc / 'sources.list.d'}",
         "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages", "Component: main"],
        env=environment(), stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False)
    if result.returncode:
        errors = re.findall(r"(?m)^E: (.*)", result.stderr) or [f"see {etc}"]
        raise Fail(f"apt cannot read its sources ({errors[0]}): repair them, check with "
                   "`apt-get indextargets`, and run this again")
    # One line per architecture.
    lines = dict.fromkeys(result.stdout.splitlines())
    return [(uri.rstrip("/"), suite) for suite, _, uri in (line.partition(" ") for line in lines)
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


def environment() -> dict[str, str]:
    """The environment of apt's programs: their messages must be in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def keyring() -> str:
    """The keys of Debian's archive."""
    path = os.environ.get("FAULTLINE_APT_KEYRING") or next(
        (path for path in KEYRINGS if os.path.exists(path)), "")
    if not path:
        raise Fail("the keys of Debian's archive are missing: run "
                   "`apt-get install debian-archive-keyring` as root")
    return path


class Apt:
    """A private apt: its configuration, lists and downloads are below build/cache/apt."""

    def __init__(self, paths: Paths, architecture: str = "", instead: str = BRING_YOUR_OWN,
                 suite: str = "") -> None:
        """An apt for the host's or another Debian architecture.

        `instead` tells the user what to do if a package is not available.  `suite` selects a
        single suite of the host's mirrors, which may be one that the host does not use.
        """
        self.cache = paths.cache
        self.folder = paths.cache / "-".join(filter(None, ("apt", architecture, suite)))
        self.architecture = architecture
        self.instead = instead
        self.suite = suite
        # Read lists after their last day (Valid-Until) as well; their signatures still count.
        self.accept_expired = False
        self.expired = False
        self.trouble = ""

    def sources(self) -> list[tuple[str, str]]:
        """(URI, suite) of the archives that this apt reads."""
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            raise Fail(f"this host has no apt (is it a Debian?): {self.instead}")
        etc = Path(os.environ.get("FAULTLINE_APT_ETC") or "/etc/apt")
        found = host_sources(etc)
        if not found:
            raise Fail(f"apt's sources in {etc} name no Debian archive: add one, or "
                       f"{self.instead}")
        wanted = wanted_sources(found)
        if self.suite:
            wanted = list(dict.fromkeys((uri, self.suite) for uri, suite in wanted
                                        if suite in ARCHIVE_SUITES))
        return wanted

    def update(self) -> Apt:
        """Read the archive's signed metadata; what it lacks is in `trouble`.

        `expired` says whether it lacks some because their last day has passed.
        """
        with lock(self.folder / "lock"):
            self._configure()
            say("reading the package lists of Debian's archive ...")
            for wait in (*waits(), 0):
                result = self.run("apt-get", "-q", "update")
                text = result.stdout + result.stderr
                if not MIRROR_SYNC.search(text):
                    break
                time.sleep(wait)
        if "No space left on device" in text:
            raise disk_full(self.folder)
        self.expired = bool(EXPIRED.search(text))
        # A mirror without one of the suites is harmless; anything else may not be.
        real = [error for error in re.findall(r"(?m)^[EW]: (.*)", text) if not re.search(
            r"does not have a Release file|404|Some index files failed|disabled by default",
            error)]
        # If such a suite is missing, apt does not repeat as an error what else went wrong.
        real += MIRROR_SYNC.findall(text)
        self.trouble = re.sub(r"\s+", " ", real[0]) if real else ""
        if self.trouble:
            say(f"note: some package lists are out of date ({self.trouble})")
        return self

    def run(self, program: str, *args: str,
            cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of apt's programs with the private configuration; its status is not checked."""
        return subprocess.run(self._command(program, *args), cwd=cwd, env=environment(),
                              stdin=subprocess.DEVNULL, text=True, capture_output=True,
                              check=False)

    def package(self, name: str, series: str = "") -> Package:
        """Update the lists and return the versions of a package: all of them, or a series."""
        form = rf"{re.escape(series)}\.\d+-" if series else r"\S"
        shown = self.update().run("apt-cache", "show", "--all-versions", name).stdout
        pins = {}
        # apt-cache lists the newest version first, by Debian's ordering.
        for stanza in shown.split("\n\n"):
            fields = dict(re.findall(r"(?m)^([A-Za-z0-9-]+): (.*)$", stanza))
            version = fields.get("Version", "")
            if re.match(form, version):
                pins[version] = archive_pin(name, fields)
        return Package(self, f"{name} {series}.y" if series else name, name, list(pins.values()))

    def fetch_unlisted(self, pin: Pin, source: str) -> Path | None:
        """Download a version that has left the lists.

        The archive's pool keeps it for some days.  It is checked like any other; None if
        no mirror has it.  `source` is the name of its source package.
        """
        for uri in dict.fromkeys(uri for uri, _ in self.sources()
                                 if not uri.startswith("mirror")):
            area = "pool/updates/main" if uri.endswith("-security") else "pool/main"
            try:
                return self.fetch(pin, f"{uri}/{area}/{source[0]}/{source}/{pin.file}")
            except Fail:
                continue
        return None

    def fetch(self, pin: Pin, address: str = "") -> Path:
        """Download the package to the cache, resuming a partial download."""
        target, part = self.cache / pin.file, self.folder / "download" / pin.file
        with lock(self.folder / "lock"):
            for other in part.parent.glob("*"):
                if other != part:
                    other.unlink()
            need_space(self.cache, max(0, pin.size - size_of(part)),
                       f"the download of {pin.file}")
            log = self._watch_download(pin, part, address)
            if log:
                raise self._download_error(pin, log)
            if part.is_symlink():  # made by apt for a file: URI
                shutil.copyfile(part, self.cache / f".{pin.file}.part")
                (self.cache / f".{pin.file}.part").replace(part)
            verify(part, pin)
            part.replace(target)
        return target

    def _download_command(self, pin: Pin, part: Path, address: str) -> list[str]:
        """apt-helper resumes a partial download, which `apt-get download` does not.

        The latter is only needed for mirror lists (mirror+file:), which apt-helper cannot use.
        Without an address, the lists have it.
        """
        if not address:
            name = f"{pin.package}={pin.version}"
            uris = self.run("apt-get", "-qq", "download", "--print-uris", name).stdout
            uri = re.match(r"'([^']+)' ", uris)
            if not uri or uri[1].startswith("mirror"):
                return self._command("apt-get", "-qq", "download", name)
            address = uri[1]
        return self._command("/usr/lib/apt/apt-helper", "-qq", "download-file", address,
                             str(part), f"SHA256:{pin.sha256}")

    def _watch_download(self, pin: Pin, part: Path, address: str) -> str:
        """Run the download and show progress; return apt's output if it failed."""
        command = self._download_command(pin, part, address)
        progress = Progress(f"downloading {pin.file}", pin.size)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            with subprocess.Popen(command, cwd=part.parent, env=environment(), stdout=log,
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

    def _command(self, program: str, *args: str) -> list[str]:
        return [program, "-c", str(self.folder / "apt.conf"), *args]

    def _configure(self) -> None:
        sources = self.sources()
        for name in ("lists/partial", "archives/partial", "state", "download"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        # Only the package index: no translations, no desktop metadata.
        options = f"target=Packages signed-by={keyring()}"
        if self.accept_expired:
            options += " check-valid-until=no"
        (self.folder / "sources.list").write_text("".join(
            f"deb [{options}] {uri} {suite} main\n" for uri, suite in sources),
            encoding="utf-8")
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


class Unread(Fail):
    """Some lists could not be read, and the others do not have this version."""


class Gone(Fail):
    """The lists were read, but do not have this version."""


@dataclass
class Package:
    """The versions of one package that the mirrors currently have, the newest first."""

    apt: Apt
    title: str
    name: str
    pins: list[Pin] = field(default_factory=list)

    def versions(self) -> str:
        """The available versions, for a message."""
        return ", ".join(pin.version for pin in self.pins)

    def find(self, version: str) -> Pin:
        """The pin for `latest`, 6.12.x (its newest revision) or 6.12.x-y."""
        for pin in self.pins:
            if version in ("latest", pin.version, pin.upstream):
                return pin
        instead, trouble = self.apt.instead, self.apt.trouble
        if trouble:
            raise Unread(f"cannot read the package lists ({trouble}): check the network and "
                         f"apt's sources and proxy, then run this again, or {instead}")
        if not self.pins:
            raise Fail(f"the mirrors in apt's sources have no {self.title}: "
                       f"add a mirror with trixie-security to apt's sources, or {instead}")
        raise Gone(f"{self.name} {version} is not in the registry (any more); it has "
                   f"{self.versions()}: use the newest with UPSTREAM=latest, or move the pin "
                   "with `make rebase VERSION=`")

    def nearest(self, wanted: Pin) -> Pin:
        """The version of another package's pin, else the nearest one that is there.

        Nearest is the fewest point releases away, the newer of two at the same distance, and
        its newest revision.  Incomplete lists are an error: they may lack the version itself.
        """
        try:
            return self.find(wanted.version)
        except Gone:
            # min() takes the first of equals; the newest version is the first.
            return min(self.pins, key=lambda pin: abs(pin.point - wanted.point))


def archive_pin(package: str, fields: dict[str, str]) -> Pin:
    """The pin for one of the archive's entries."""
    version = fields["Version"]
    epoch, _, rest = version.rpartition(":")
    name = os.path.basename(fields.get("Filename", ""))
    return Pin.parse({
        "package": package, "version": version, "upstream": rest.partition("-")[0],
        # The name that `apt-get download` uses; file names in the archive have no epoch.
        "file": name.replace("_", f"_{epoch}%3a", 1) if epoch else name,
        "size": fields.get("Size", ""), "sha256": fields.get("SHA256", ""),
    }, f"the archive's entry of {package} {version}")


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
