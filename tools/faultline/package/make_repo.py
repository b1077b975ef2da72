# SPDX-License-Identifier: GPL-2.0-only
"""Make a signed apt repository and a signed dnf repository, or add to them.

    DIR/deb        for apt: dists/SUITE, pool/, faultline.sources, faultline.asc
    DIR/rpm        for dnf: Packages/, repodata/, faultline.repo, faultline.asc
    DIR/security   SPDX documents of the kernels, signed SHA256SUMS

Each half exists if there are packages for it. With --url, each half has a package with the
public keys and the address of the repository (faultline-archive-keyring, faultline-release).

Packages already in DIR are kept, so old versions can still be installed. To drop some, delete
their files and run this again. DIR is replaced in one step once the new state is complete and
signed: readers, and any interruption, see either the old state or the new one. Files named by
the previous metadata can still be fetched, for clients in the middle of an update.

What --next-key, --phase, --valid-days and --url set stays until they are given again. It is in
DIR/state.json with the checksum of each file. That is signed, too, and each run checks it first:
it signs no file that others have put into DIR or changed there.

Without --key, a throw-away key is made in build/keys: for tests, not for a fleet.

SOURCE_DATE_EPOCH in the environment sets the date of the metadata, which then depends on the
packages alone. Signatures have their own dates.
"""
from __future__ import annotations

import argparse
import ctypes
import dataclasses
import lzma
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate

from ..common import Fail, lock, say, sha256, shown
from . import documents, keyring, state
from .keyring import COMPONENT, SUITE, Place
from .keys import Key, run, run_test, signing_key, trust
from .state import State

PLACEHOLDER_URL = "https://packages.example/faultline"
DAY = 24 * 60 * 60
# Names that are valid in a URL, a path and a package list.
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~_^-]*")


# --- Packages

@dataclasses.dataclass(frozen=True)
class Package:
    """A package file."""

    path: pathlib.Path
    name: str           # canonical file name
    identity: str       # equal for packages with the same contents


def file_name(path: pathlib.Path, form: str, *fields: str) -> str:
    """The canonical file name of a package, made from fields of the package."""
    for field in fields:
        if not PLAIN.fullmatch(field):
            raise Fail(f"{shown(path)} has '{field}' as name, version or architecture: "
                       "the package is damaged")
    return form.format(*fields)


def read_deb(path: pathlib.Path) -> Package:
    """Check and read a .deb."""
    broken = f"{shown(path)} is a damaged .deb"
    text = run("dpkg-deb", "--showformat", "${Package}\n${Version}\n${Architecture}\n", "--show",
               path, what=broken)
    run("dpkg-deb", "--contents", path, what=broken)
    # The epoch is not part of a file name.
    fields = [re.sub(r"^\d+:", "", line) for line in text.splitlines()]
    return Package(path, file_name(path, "{}_{}_{}.deb", *fields), sha256(path))


def read_dsc(path: pathlib.Path) -> list[Package]:
    """A Debian source package: the .dsc and the files that it names."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = [Package(path, path.name, sha256(path))]
    section = re.search(r"(?m)^Checksums-Sha256:\n((?: .*\n)+)", text)
    if not section:
        raise Fail(f"{shown(path)} is a damaged .dsc: it has no Checksums-Sha256")
    for line in section[1].splitlines():
        digest, _, name = line.split()
        part = path.parent / pathlib.PurePath(name).name
        if not part.is_file() or sha256(part) != digest:
            raise Fail(f"{shown(part)}, listed in {path.name}, is missing or has another "
                       "checksum: make the source package again")
        found.append(Package(part, part.name, digest))
    return found


def read_rpm(path: pathlib.Path) -> Package:
    """Check and read an .rpm; its identity is the header's, which signing does not change."""
    broken = f"{shown(path)} is a damaged .rpm"
    run("rpmkeys", "--nosignature", "--checksig", path, what=broken)
    text = run("rpm", "-qp", "--nosignature", "--qf",
               "%{NAME}\n%{VERSION}\n%{RELEASE}\n%{ARCH}\n%{SOURCERPM}\n%{SHA256HEADER}\n",
               path, what=broken)
    name, version, release, arch, source, digest = text.splitlines()
    if digest == "(none)":
        raise Fail(f"{broken}: its header has no SHA256; it was made by an rpm before 4.14")
    arch = "src" if source == "(none)" else arch
    return Package(path, file_name(path, "{}-{}-{}.{}.rpm", name, version, release, arch), digest)


def inputs(option: str, folders: list[str], *endings: str) -> list[pathlib.Path]:
    """The package files in the folders given with an option."""
    found = []
    for folder in map(pathlib.Path, folders):
        if not folder.is_dir():
            raise Fail(f"{option} {folder}: no such folder")
        files = sorted(path for path in folder.iterdir()
                       if path.suffix in endings and path.is_file())
        if not files:
            raise Fail(f"{option} {folder}: no {' or '.join(endings)} files in it")
        found += files
    return found


def merge(old: Iterable[Package], new: Iterable[Package]) -> dict[str, Package]:
    """The new contents of the repository, by file name; existing packages win."""
    packages = {package.name: package for package in old}
    for package in new:
        there = packages.setdefault(package.name, package)
        if there.identity != package.identity:
            raise Fail(f"{shown(package.path)} differs from {shown(there.path)}: hosts may have "
                       "installed that one, so a rebuild needs a higher version "
                       "(make packages REBUILD=N)")
    return packages


# --- The two halves

@dataclasses.dataclass(frozen=True)
class Job:
    """Parameters of both halves."""

    key: Key
    place: Place
    epoch: int
    old: pathlib.Path
    rekey: bool
    # Percentage of hosts that upgrade to the newest kernel.  None: as before.
    phase: int | None
    before: State
    after: State


def write(path: pathlib.Path, text: str) -> None:
    """Write a file of a repository."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def add(package: Package, target: pathlib.Path, link: bool) -> None:
    """Add a package to the new state; a linked file must not be written to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if link:
        os.link(package.path, target)
    else:
        shutil.copyfile(package.path, target)


def old_packages(out: pathlib.Path, before: State) -> dict[str, list[Package]]:
    """The packages of the last run that are still there."""
    found: dict[str, list[Package]] = {"deb": [], "rpm": []}
    for name, digest in sorted(before.files.items()):
        path = out / name
        if name.startswith(state.PACKAGES) and path.is_file():
            found[name[:3]].append(Package(path, path.name, digest) if name[:3] == "deb"
                                   else read_rpm(path))
    return found


def adopted(out: pathlib.Path) -> dict[str, list[Package]]:
    """The packages in a folder without a state; those with keys are made anew."""
    found: dict[str, list[Package]] = {"deb": [], "rpm": []}
    for path in sorted((*out.glob("deb/pool/*"), *out.glob("rpm/Packages/*"))):
        if path.is_symlink() or not path.is_file():
            raise Fail(f"{shown(path)} is not a file: delete it")
        if path.name.startswith((f"{keyring.DEB}_", f"{keyring.RPM}-")):
            continue
        if path.suffix == ".dsc":
            found["deb"] += read_dsc(path)
        elif path.suffix == ".deb":
            found["deb"].append(read_deb(path))
        elif path.suffix == ".rpm":
            found["rpm"].append(read_rpm(path))
    return found


def dates(after: State) -> str:
    """The lines of Release with its date and, if it has one, its last day."""
    span = after.valid_days * DAY
    text = f"Date: {formatdate(after.date, usegmt=True)}"
    if not span:
        return text
    if after.date + span <= time.time():
        raise Fail(f"SOURCE_DATE_EPOCH is {after.valid_days} days old or more: apt would refuse "
                   "the repository from the beginning; unset it, or give more --valid-days")
    return f"{text}\nValid-Until: {formatdate(after.date + span, usegmt=True)}"


# --- Phased upgrades

def field(stanza: str, name: str) -> str:
    """A field of a stanza of Packages; "" if there is none."""
    found = re.search(rf"(?m)^{name}: (.*)", stanza)
    return found[1] if found else ""


def source(stanza: str) -> tuple[str, str]:
    """The source package and its version, by which apt draws hosts."""
    name, _, version = (field(stanza, "Source") or field(stanza, "Package")).partition(" ")
    return name, version.strip("()") or field(stanza, "Version")


def newest_kernel(stanzas: list[str]) -> tuple[str, str]:
    """The source package of the newest kernel, and its version."""
    newest = ("", "")
    for stanza in stanzas:
        name, version = source(stanza)
        if field(stanza, "Package").startswith("linux-image-") and (not newest[1] or run_test(
                "dpkg", "--compare-versions", version, "gt", newest[1])):
            newest = name, version
    return newest


def stanzas_of(text: str) -> list[str]:
    """The stanzas of an index."""
    return [stanza for stanza in text.split("\n\n") if stanza.strip()]


def set_phase(job: Job, texts: Iterable[str]) -> None:
    """Phase the newest kernel of all architectures, if this run asks for it."""
    if job.phase is None:
        return
    newest = newest_kernel([stanza for text in texts for stanza in stanzas_of(text)])
    if not newest[0]:
        raise Fail("--phase: the repository has no package linux-image-*, so no kernel")
    job.after.phased = (*newest, str(job.phase)) if job.phase < 100 else ()


def phased(text: str, job: Job) -> str:
    """Packages with Phased-Update-Percentage."""
    out = []
    for stanza in stanzas_of(text):
        line = (f"\nPhased-Update-Percentage: {job.after.phased[2]}"
                if job.after.phased and source(stanza) == job.after.phased[:2] else "")
        out.append(f"{stanza.strip()}{line}\n\n")
    return "".join(out)


def require_same(text: str, packages: dict[str, Package]) -> None:
    """Fail if an index has other contents than those that were checked.

    A package of the last run is the file that is published: others may write to it meanwhile.
    """
    found = {pathlib.PurePath(field(stanza, "Filename")).name: field(stanza, "SHA256")
             for stanza in text.split("\n\n") if "\nFilename: " in stanza}
    found |= {name: digest for digest, name
              in re.findall(r"(?m)^ ([0-9a-f]{64}) \d+ (\S+)$", text)}
    for name, digest in found.items():
        if packages[name].identity != digest:
            raise Fail(f"{shown(packages[name].path)} changes while this program signs it: "
                       f"{state.FIND_OUT}")


def architectures(packages: Iterable[str]) -> list[str]:
    """The architectures of an apt repository with these files."""
    archs = sorted({name.rpartition("_")[2].removesuffix(".deb") for name in packages
                    if name.endswith(".deb")} - {"all"})
    return archs or [run("dpkg", "--print-architecture").strip()]


def make_deb(job: Job, folder: pathlib.Path, packages: dict[str, Package]) -> None:
    """The apt repository: pool, indexes by suite and architecture, Release, signatures."""
    pool, dist, old = folder / "pool", folder / "dists" / SUITE, job.old / "dists" / SUITE
    for package in packages.values():
        add(package, pool / package.name, link=package.path.is_relative_to(job.old))
    archs = architectures(packages)
    hashes = [word for kind in ("MD5", "SHA1", "SHA512")
              for word in ("-o", f"APT::FTPArchive::{kind}=false")]
    indexes: dict[str, tuple[str, ...]] = {
        f"binary-{arch}/Packages": ("--arch", arch, "packages", "pool") for arch in archs}
    if any(name.endswith(".dsc") for name in packages):
        indexes["source/Sources"] = ("sources", "pool")
    texts = {name: run("apt-ftparchive", "-q", *hashes, *command, cwd=folder,
                       what="apt-ftparchive") for name, command in indexes.items()}
    for text in texts.values():
        require_same(text, packages)
    set_phase(job, (text for name, text in texts.items() if name.endswith("/Packages")))
    for name, text in texts.items():
        if name.endswith("/Packages"):
            text = phased(text, job)
        write(dist / COMPONENT / name, text)
        (dist / COMPONENT / f"{name}.xz").write_bytes(lzma.compress(text.encode()))

    fields = {"Origin": "Faultline", "Label": "Faultline", "Suite": SUITE, "Codename": SUITE,
              "Architectures": " ".join(archs), "Components": COMPONENT,
              "Description": "Faultline kernel", "Acquire-By-Hash": "yes"}
    options = [word for field, value in fields.items()
               for word in ("-o", f"APT::FTPArchive::Release::{field}={value}")]
    text = run("apt-ftparchive", "-q", *hashes, *options, "release", dist, what="apt-ftparchive")
    write(dist / "Release", re.sub(r"(?m)^Date: .*$", dates(job.after), text))
    job.key.sign("--clearsign", dist / "Release", dist / "InRelease")
    job.key.sign("--detach-sign", dist / "Release", dist / "Release.gpg")

    # Indexes by hash: ours, and those listed in the previous Release.
    for place in (dist, *([old] if f"deb/dists/{SUITE}/Release" in job.before.files else [])):
        for digest, name in release_files(place / "Release"):
            source = place / name
            target = dist / pathlib.Path(name).parent / "by-hash" / "SHA256" / digest
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_file() and not target.exists():
                os.link(source, target)

    types = "deb deb-src" if "source/Sources" in indexes else "deb"
    write(folder / "faultline.asc", job.place.trust.joined)
    write(folder / "faultline.sources", job.place.sources(types, archs))


def release_files(path: pathlib.Path) -> list[tuple[str, str]]:
    """The hash and name of each file listed in a Release."""
    if not path.is_file():
        return []
    return re.findall(r"(?m)^ ([0-9a-f]{64}) +\d+ (\S+)$", path.read_text(encoding="utf-8"))


def make_rpm(job: Job, folder: pathlib.Path, packages: dict[str, Package]) -> None:
    """The dnf repository: signed packages, signed repodata."""
    write(folder / "faultline.asc", job.place.trust.separate)
    targets = []
    for package in packages.values():
        target = folder / "Packages" / package.name
        # Signing writes to the file, so copy unsigned packages instead of linking them.
        signed = package.path.is_relative_to(job.old) and not job.rekey
        add(package, target, link=signed)
        if not signed:
            targets.append(target)
    with tempfile.TemporaryDirectory(prefix="faultline-rpmdb-") as database:
        run("rpmkeys", "--dbpath", database, "--import", folder / "faultline.asc",
            what="rpm does not accept the public key")
        check = ("rpmkeys", "--dbpath", database, "--define", "_pkgverify_level all", "--checksig")
        for target in targets:
            # Debian's rpm has the wrong default for the name of gpg, and rpmsign has been
            # seen to fail with status 0: so verify the result.
            run("rpmsign", "--define", f"__gpg {shutil.which('gpg')}",
                "--define", f"_gpg_name {job.key.fingerprint}",
                "--define", "_gpg_digest_algo sha256",
                *(["--define", f"_gpg_path {job.key.home}"] if job.key.home else []),
                "--resign", target, env={"GNUPGHOME": job.key.home} if job.key.home else {},
                what=f"signing {target.name}")
        for name in packages:
            run(*check, folder / "Packages" / name,
                what=f"{name} does not have the expected signature")

    # gzip: newer createrepo_c prefers zstd, which EL 8 does not support.
    run("createrepo_c", "--quiet", "--no-database", "--checksum", "sha256",
        "--general-compress-type", "gz", "--revision", str(job.epoch),
        "--set-timestamp-to-revision", folder, what="createrepo_c")
    repomd = folder / "repodata" / "repomd.xml"
    job.key.sign("--detach-sign", repomd, repomd.with_name("repomd.xml.asc"))
    old = job.old / "repodata" / "repomd.xml"
    if "rpm/repodata/repomd.xml" in job.before.files and old.is_file():
        for name in re.findall(r'href="repodata/([^"/]+)"', old.read_text(encoding="utf-8")):
            if not (folder / "repodata" / name).exists() and (old.parent / name).is_file():
                os.link(old.parent / name, folder / "repodata" / name)

    write(folder / "faultline.repo", job.place.repo())


# --- Replacing

def libc_call(name: str, *args: object) -> None:
    """Call a function of the C library; an error becomes an OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def replace(out: pathlib.Path, new: pathlib.Path) -> None:
    """Swap the new state and the old one."""
    folder = os.open(new, os.O_RDONLY)
    try:
        libc_call("syncfs", folder)  # else a power cut could leave new names with old contents
    finally:
        os.close(folder)
    if not out.exists():
        new.rename(out)
        return
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        libc_call("renameat2", here, os.fsencode(new), here, os.fsencode(out), swap)
    except OSError as error:
        raise Fail(f"the file system of {shown(out)} cannot swap two folders in one step "
                   f"({error.strerror}): put --out on ext4, xfs, btrfs or tmpfs") from None


def check_out(out: pathlib.Path) -> None:
    """Refuse to replace a folder with files that are not ours."""
    if out.exists() and not out.is_dir():
        raise Fail(f"--out {shown(out)} is not a folder")
    strange = sorted({path.name for path in out.glob("*")}
                     - {"deb", "rpm", "security", state.FILE, state.SIGNATURE})
    for half, mark in (("deb", "faultline.sources"), ("rpm", "faultline.repo"),
                       ("security", "SHA256SUMS")):
        if (out / half).exists() and not ((out / state.FILE).is_file()
                                          or (out / half / mark).is_file()):
            strange.append(half)
    if strange:
        raise Fail(f"--out {shown(out)} has '{strange[0]}', which this program did not make: "
                   "it replaces the whole folder, so give it a separate one")


def with_keyring(out: pathlib.Path, job: Job, wanted: dict[str, dict[str, Package]],
                 work: pathlib.Path) -> None:
    """Add the packages with the keys; --fresh does not drop them, as their version must rise."""
    for half, form in (("deb", f"deb/pool/{keyring.DEB}_"),
                       ("rpm", f"rpm/Packages/{keyring.RPM}-")):
        if not wanted[half]:
            continue
        old = max((out / name for name in job.before.files
                   if name.startswith(form) and (out / name).is_file()), default=None)
        if half == "deb":
            package = read_deb(keyring.deb(job.place, architectures(wanted[half]), old, job.epoch,
                                           work))
        else:
            package = read_rpm(keyring.rpm(job.place, old, job.epoch, work))
        wanted[half].setdefault(package.name, package)


def make(args: argparse.Namespace, out: pathlib.Path, key: Key) -> None:
    """Make the new state beside the old one, then swap them."""
    before, rekey = (State(), True) if args.adopt else state.load(out, key, args.rekey)
    there = adopted(out) if args.adopt else old_packages(out, before)
    if args.fresh:
        there = {"deb": [], "rpm": []}
    trusted = trust(key, args.next_key, "" if rekey else before.next_key)
    debs = [package for path in inputs("--deb", args.deb, ".deb", ".dsc")
            for package in (read_dsc(path) if path.suffix == ".dsc" else [read_deb(path)])]
    rpms = [read_rpm(path) for path in inputs("--rpm", args.rpm, ".rpm")]
    wanted = {"deb": merge(there["deb"], debs), "rpm": merge(there["rpm"], rpms)}
    if not any(wanted.values()):
        raise Fail(f"{shown(out)} has no packages yet: give some with --deb DIR or --rpm DIR")

    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    place = Place(args.url or before.url or PLACEHOLDER_URL, trusted, key.test)
    after = State(
        url=place.url, next_key="".join(trusted.blocks[1:]),
        # apt treats a Release older than its current one as an attack, and ignores it.
        date=max(epoch, before.date), phased=before.phased,
        valid_days=before.valid_days if args.valid_days is None else args.valid_days)
    new = out.with_name(f".{out.name}.part")
    shutil.rmtree(new, ignore_errors=True)  # left by an interrupted run
    try:
        with tempfile.TemporaryDirectory(prefix="faultline-keyring-") as work:
            job = Job(key, place, epoch, out, rekey, args.phase, before, after)
            if place.url == PLACEHOLDER_URL:
                say("no packages with the keys: give the repository's address with --url")
            else:
                with_keyring(out, job, wanted, pathlib.Path(work))
            for half, maker in (("deb", make_deb), ("rpm", make_rpm)):
                if wanted[half]:
                    maker(dataclasses.replace(job, old=out / half), new / half, wanted[half])
        documents.publish(key, new if args.adopt else out, new)
        after.files = {f"deb/pool/{name}": package.identity
                       for name, package in wanted["deb"].items()}
        after.write(new, key)
        for path in (new, *new.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        replace(out, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for half, packages in wanted.items():
        if packages:
            say(f"{shown(out / half)}: {len(packages)} package files, "
                f"signed by {'the THROW-AWAY test key ' if key.test else ''}{key.fingerprint}")


def number(option: str, low: int, high: int) -> Callable[[str], int]:
    """A reader of a number in a range, for an option."""
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not low <= int(text) <= high:
            raise Fail(f"{option} {text}: give a number from {low} to {high}")
        return int(text)
    return read


def fingerprint(text: str) -> str:
    """A reader of --rekey: a name could match other keys as well."""
    found = text.replace(" ", "").upper()
    if not re.fullmatch(r"[0-9A-F]{40}", found):
        raise Fail(f"--rekey {text}: give the fingerprint of the key that has signed DIR until "
                   "now, 40 digits")
    return found


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, or these arguments, and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR", help="the repository")
    parser.add_argument("--deb", action="append", default=[], metavar="DIR",
                        help="add the .deb and source packages (.dsc) in DIR")
    parser.add_argument("--rpm", action="append", default=[], metavar="DIR",
                        help="add the .rpm packages in DIR")
    parser.add_argument("--key", metavar="FINGERPRINT", help="sign with this RSA key of yours")
    parser.add_argument("--gnupghome", metavar="DIR", help="folder of that key, if not ~/.gnupg")
    parser.add_argument("--fresh", action="store_true",
                        help="drop the packages already in DIR (for development builds, which "
                        "change without a new version)")
    parser.add_argument("--rekey", metavar="OLD", type=fingerprint,
                        help="sign everything in DIR, which the key OLD has signed, with --key")
    parser.add_argument("--adopt", action="store_true",
                        help="sign the packages in DIR though no state.json of yours proves where "
                        "they come from; keys, address, last day and share are those of the "
                        "command line")
    parser.add_argument("--next-key", metavar="FINGERPRINT",
                        help="the key that will sign after this one (public part, in the same "
                        "folder): hosts learn to trust it with an upgrade; 'none': forget it")
    parser.add_argument("--valid-days", metavar="N", type=number("--valid-days", 0, 3650),
                        help="apt refuses the repository N days after the last run of this "
                        "program, so that nobody can withhold updates; 0: never (the default)")
    parser.add_argument("--phase", metavar="N", type=number("--phase", 0, 100),
                        help="let N percent of the hosts with apt upgrade to the newest kernel")
    parser.add_argument("--url", metavar="URL",
                        help="URL of DIR for hosts; used in faultline.sources and .repo "
                        f"(default: as before, initially {PLACEHOLDER_URL})")
    args = parser.parse_args(arguments)
    if args.gnupghome and not args.key:
        raise Fail("--gnupghome without --key: give the fingerprint of the key in it")
    if args.url is not None:
        args.url = args.url.rstrip("/")
        # The characters of RFC 3986, some of which are special in a shell.
        if not re.fullmatch(r"(https?|file)://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", args.url):
            raise Fail(f"--url {args.url}: give an http, https or file URL")
    if args.adopt and not args.url:
        raise Fail("--adopt without --url: give the address, as the one in the folder may be "
                   "another's")
    if not re.fullmatch(r"\d*", os.environ.get("SOURCE_DATE_EPOCH", "")):
        raise Fail("SOURCE_DATE_EPOCH is not a number of seconds: unset or correct it")
    out = pathlib.Path(args.out).resolve()
    check_out(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with lock(out.with_name(f".{out.name}.lock")), signing_key(args.key, args.gnupghome) as key:
        make(args, out, key)
