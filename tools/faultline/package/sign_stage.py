# SPDX-License-Identifier: GPL-2.0-only
"""Make a copy of a stage that is signed for Secure Boot with the owner's key.

    fl package sign-stage STAGE SIGNED --key KEY.pem --cert CERT.pem

The certificate is put into the kernel, which then trusts it as if it had been built in, and is
written to SIGNED/doc/secureboot.der for mokutil. vmlinuz is signed for the firmware or shim
(with sbsign), each module for the kernel (with its own sign-file). Everything else is as in
STAGE: the addresses and the build ID of the kernel do not change.
Packages made from SIGNED include all of this; to sign and package in one go:
make packages SECUREBOOT_KEY=... SECUREBOOT_CERT=...

A kernel that would load any module with Secure Boot on is refused: a signature on it would
break the chain of trust of every host that knows the key.

A certificate that can sign others is refused: a host that enrols it trusts all of them. So is
a key file or PIN file that other users of this machine can read.

STAGE is not changed. SIGNED is made again if STAGE, SIGNED or the certificate has changed, and
is replaced in one step. Signatures in STAGE are replaced. Only openssl, sbsign and sign-file
read the key, which must not have a passphrase.

The key may be in a token (HSM, smart card): --key 'pkcs11:token=T;object=KEY;pin-source=file:PIN'.
openssl and sbsign then use OpenSSL's engine pkcs11, and sign-file attaches the signatures.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import tempfile
import urllib.parse

from ..common import Fail, Paths, call, lock, say, sha256, shown
from ..flavour import ARCHES, FLAVOURS
from ..stage_env import read_env
from . import certificate

# Compress like the kernel's scripts/Makefile.modinst; the kernel's decompressor requires it.
COMPRESS = {".xz": ("xz", "--threads=1", "--check=crc32", "--lzma2=dict=1MiB"),
            ".zst": ("zstd", "-q"), ".gz": ("gzip", "-n")}
# Appended by sign-file: signature, struct module_signature, mark.
MARK = b"~Module signature appended~\n"
TRAILER = 12
# How openssl and sbsign reach a token.
ENGINE = ("-engine", "--engine")
# Options of a kernel that refuses unsigned code with Secure Boot on.
LOCKDOWN = ("MODULE_SIG", "SECURITY_LOCKDOWN_LSM", "LOCK_DOWN_IN_EFI_SECURE_BOOT")
# The option of a kernel that takes a certificate.
ROOM = "SYSTEM_EXTRA_CERTIFICATE"


def run(*command: str | pathlib.Path, data: bytes = b"", what: str = "") -> bytes:
    """The output of a program that must succeed; `what` describes its purpose."""
    # Without a terminal, as the engine would ask there for a missing PIN.
    return call(*command, what=what or str(command[0]), data=data,
                start_new_session=any(word in ENGINE for word in command))


def require_private(option: str, path: pathlib.Path) -> None:
    """Refuse a file with a secret that every user of this machine can read or replace."""
    if path.stat().st_mode & 0o006:
        raise Fail(f"{option} {path} is open to other users of this machine: run chmod 600 "
                   f"{path}, and make a new key if one of them may have read it")


class Owner:
    """The key, as a PEM file or in a token, and its certificate."""

    def __init__(self, key: str, cert: pathlib.Path) -> None:
        self.token = key.startswith("pkcs11:")
        files = [("--cert", cert, "CERTIFICATE")]
        if not self.token:
            files.insert(0, ("--key", pathlib.Path(key), "PRIVATE KEY"))
        elif found := re.search(r"pin-source=(?:file:)?([^;&?]+)", key):
            pin = pathlib.Path(urllib.parse.unquote(found[1]))
            if pin.is_file():
                require_private("--key: the PIN file", pin)
        for option, path, kind in files:
            if not path.is_file():
                raise Fail(f"{option} {path}: no such file")
            if f"{kind}-----".encode() not in path.read_bytes():
                raise Fail(f"{option} {path}: no {kind.lower()} in PEM form "
                           "('openssl x509 -inform der' reads a certificate in DER form)")
            if option == "--key":
                require_private(option, path)
        self.key = key if self.token else str(pathlib.Path(key).absolute())
        self.cert = cert.absolute()
        of_key = self.token_key() if self.token else run(
            # Without -passin it would prompt; an empty passphrase fails if the key has one.
            "openssl", "pkey", "-in", key, "-passin", "pass:", "-pubout",
            what=f"cannot read --key {key} (does it have a passphrase?)")
        of_cert = run("openssl", "x509", "-in", cert, "-noout", "-pubkey",
                      what=f"cannot read --cert {cert}")
        if of_key != of_cert:
            raise Fail(f"--key {key} is not the key of --cert {cert}: "
                       "its signatures could not be verified")
        self.require_leaf()
        self.der = run("openssl", "x509", "-in", cert, "-outform", "der")

    def require_leaf(self) -> None:
        """Refuse a certificate that can sign other certificates."""
        text = run("openssl", "x509", "-in", self.cert, "-noout", "-text", "-certopt",
                   "no_subject,no_issuer,no_pubkey,no_sigdump").decode(errors="replace")
        # Version 1 has no extensions to say what it is for; openssl takes it for a CA.
        if re.search(r"CA:TRUE|Certificate Sign\b|Version: 1 ", text):
            raise Fail(f"--cert {self.cert} can sign other certificates, and hosts that enrol it "
                       "would trust those as well: make one with the openssl command in "
                       "packaging/README.md, which says CA:FALSE")

    def token_key(self) -> bytes:
        """The public key of the key in a token."""
        if "pin-value=" in self.key:
            raise Fail("--key has the PIN in it, which every user of this host could read in the "
                       "list of processes: use pin-source=file:PATH instead of pin-value=PIN")
        if b"[ available ]" not in run("openssl", "engine", "-t", "pkcs11",
                                       what="--key pkcs11: OpenSSL has no engine pkcs11: install "
                                       "libengine-pkcs11-openssl (Fedora: openssl-pkcs11)"):
            raise Fail("--key pkcs11: OpenSSL's engine pkcs11 does not start: see "
                       "openssl engine -t pkcs11")
        try:
            return run("openssl", "pkey", "-engine", "pkcs11", "-inform", "engine",
                       "-in", self.key, "-pubout")
        except Fail:
            raise Fail(f"cannot use --key {self.key}: is the token there (pkcs11-tool "
                       "--list-slots), does it have this object, and is its PIN in the file "
                       "of pin-source=file:PATH?") from None

    def sign_image(self, image: pathlib.Path, signed: pathlib.Path) -> None:
        """Sign an EFI program."""
        run("sbsign", *(["--engine", "pkcs11"] if self.token else []), "--key", self.key,
            "--cert", self.cert, "--output", signed, image, what="signing vmlinuz")

    def sign_module(self, sign_file: pathlib.Path, algorithm: str, module: pathlib.Path,
                    name: str) -> None:
        """Sign a module."""
        if not self.token:
            run(sign_file, algorithm, self.key, self.cert, module, what=f"signing {name}")
            return
        # sign-file would use OpenSSL's provider pkcs11, which Debian 12 does not have.
        signature = module.with_suffix(".sig")
        run("openssl", "cms", "-sign", "-engine", "pkcs11", "-keyform", "engine", "-inkey",
            self.key, "-signer", self.cert, "-md", algorithm, "-binary", "-nocerts", "-noattr",
            "-nosmimecap", "-outform", "DER", "-in", module, "-out", signature,
            what=f"signing {name}")
        run(sign_file, "-s", signature, algorithm, self.cert, module,
            what=f"attaching the signature of {name}")


class Stage:
    """An output folder of tools/fl stage, and the copy where signed files go."""

    def __init__(self, path: pathlib.Path, copy: pathlib.Path) -> None:
        self.path = path
        self.copy = copy
        self.modules = path / "modules"
        self.vmlinuz = path / "vmlinuz"
        self.env = read_env(path)
        self.arch = ARCHES[self.env["ARCH"]]
        if not self.arch.uefi:
            raise Fail(f"{shown(path)} is for {self.env['ARCH']}, where Secure Boot is not that of "
                       "UEFI: package it without SECUREBOOT_KEY and SECUREBOOT_CERT")
        if not self.vmlinuz.is_file():
            raise Fail(f"{shown(path)} has no vmlinuz: make it again with tools/fl stage")
        try:
            self.config = (path / "config").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise Fail(f"{shown(path)} has no config: make it again with "
                       "tools/fl stage") from None

    def write(self, path: pathlib.Path, data: bytes) -> None:
        """Write a file of the stage to the copy."""
        target = self.copy / path.relative_to(self.path)
        target.write_bytes(data)
        target.chmod(0o644)

    def date(self) -> None:
        """Give all files and folders of the copy the date of the stage."""
        epoch = int(self.env["SOURCE_DATE_EPOCH"])
        for path in [self.copy, *self.copy.rglob("*")]:
            os.utime(path, (epoch, epoch), follow_symlinks=False)

    def module_files(self) -> list[pathlib.Path]:
        """All modules, compressed or not."""
        return sorted(path for path in self.modules.rglob("*.ko*")
                      if path.suffix in (".ko", *COMPRESS))

    def require_lockdown(self) -> None:
        """Refuse a kernel that does not keep up the chain of trust."""
        missing = [f"CONFIG_{name}=y" for name in LOCKDOWN
                   if not re.search(rf"(?m)^CONFIG_{name}=y$", self.config)]
        if missing:
            raise Fail(f"{shown(self.path)}: with Secure Boot on, this kernel would load modules "
                       f"without a signature, as it has no {', '.join(missing)}: sign one that "
                       "locks itself down, such as flavour generic or cloud")

    @property
    def room(self) -> int:
        """How large a certificate in the kernel can be."""
        found = re.search(rf"(?m)^CONFIG_{ROOM}_SIZE=(\d+)$", self.config)
        return int(found[1]) if found else 0

    def require_room(self, owner: Owner) -> None:
        """Refuse a certificate that does not go into the kernel."""
        if not self.room:
            raise Fail(f"{shown(self.path)}: this kernel has no room for a certificate: build it "
                       f"with CONFIG_{ROOM}=y, as the flavours generic and cloud are")
        if len(owner.der) > self.room:
            raise Fail(f"{shown(self.path)}: --cert has {len(owner.der)} bytes, and the room for "
                       f"it in this kernel {self.room}: use a smaller certificate, or build the "
                       f"kernel with a larger CONFIG_{ROOM}_SIZE")
        if not (self.path / "System.map").is_file():
            raise Fail(f"{shown(self.path)} has no System.map: make it again with "
                       "tools/fl stage")

    @property
    def hash(self) -> str:
        """The hash algorithm for module signatures that the kernel was built with."""
        found = re.search(r'(?m)^CONFIG_MODULE_SIG_HASH="(\w+)"$', self.config)
        return found[1] if found else "sha256"

    def sign_file(self, given: str | None) -> pathlib.Path:
        """The kernel's program that signs modules."""
        if given and not os.access(given, os.X_OK):
            raise Fail(f"--sign-file {given}: no such program")
        # The headers have programs of the kernel's architecture, the build has those of this host.
        headers = [] if self.arch.cross else [self.path / "headers/scripts/sign-file"]
        places = [pathlib.Path(given)] if given else headers + [
            Paths.from_env().build / flavour.name / "scripts/sign-file"
            for flavour in FLAVOURS.values()
            if (flavour.arch, flavour.packaged) == (self.arch, self.env["FLAVOUR"])]
        for place in places:
            if os.access(place, os.X_OK) and place.is_file():
                return place.absolute()
        where = "its build has no " if self.arch.cross else "the stage has no headers/"
        raise Fail(f"{where}scripts/sign-file (the kernel's program that signs "
                   "modules; a kernel with CONFIG_MODULE_SIG builds it): give one with "
                   "--sign-file, for example from Debian's package linux-kbuild-6.12")


def sign_vmlinuz(stage: Stage, owner: Owner) -> None:
    """Put the certificate into the kernel, and sign it."""
    with tempfile.TemporaryDirectory(prefix="faultline-sign-") as place:
        image, signed = pathlib.Path(place) / "vmlinuz", pathlib.Path(place) / "signed"
        shutil.copyfile(stage.vmlinuz, image)
        # sbsign would append to other signatures.
        for _ in re.findall(rb"(?m)^signature \d+$", run(
                "sbverify", "--list", image,
                what=f"{shown(stage.vmlinuz)} is not an EFI program")):
            run("sbattach", "--remove", image, what="removing another signature of vmlinuz")
        system_map = (stage.path / "System.map").read_text(encoding="ascii")
        image.write_bytes(certificate.insert(image.read_bytes(), system_map, stage.room,
                                             owner.der, shown(stage.vmlinuz)))
        owner.sign_image(image, signed)
        run("sbverify", "--cert", owner.cert, signed, what="the signature of vmlinuz is bad")
        stage.write(stage.vmlinuz, signed.read_bytes())


def split(data: bytes) -> tuple[bytes, bytes]:
    """Split a module into its contents and its last signature."""
    end = len(data) - len(MARK)
    if not data.endswith(MARK) or end < TRAILER:
        return data, b""
    size = int.from_bytes(data[end - 4:end], "big")
    start = end - TRAILER - size
    if start <= 0:
        return data, b""
    return data[:start], data[start:end - TRAILER]


def sign_module(stage: Stage, owner: Owner, sign_file: pathlib.Path, path: pathlib.Path) -> None:
    """Sign one module."""
    name = shown(path)
    packer = COMPRESS.get(path.suffix)
    data = path.read_bytes()
    if packer:
        data = run(packer[0], "-dc", data=data, what=f"{name} is damaged")
    bare, signature = split(data)
    while signature:
        bare, signature = split(bare)
    with tempfile.TemporaryDirectory(prefix="faultline-sign-") as place:
        module = pathlib.Path(place) / "module.ko"
        module.write_bytes(bare)
        owner.sign_module(sign_file, stage.hash, module, name)
        data = module.read_bytes()
    if split(data)[0] != bare:
        raise Fail(f"{shown(sign_file)} did not sign {name}, but reported success")
    if packer:
        data = run(*packer, "-c", data=data, what=f"compressing {name}")
    stage.write(path, data)


def sign_modules(stage: Stage, owner: Owner, given: str | None) -> str:
    """Sign all modules, one per CPU at a time or one with a token; return a remark."""
    files = stage.module_files()
    sign_file = stage.sign_file(given)
    # Tokens have few sessions, and softhsm2 has been seen to fail with two at a time.
    with concurrent.futures.ThreadPoolExecutor(1 if owner.token else os.cpu_count()) as pool:
        jobs = [pool.submit(sign_module, stage, owner, sign_file, path) for path in files]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return f"{len(files)} modules signed"


def digest(*folders: pathlib.Path) -> str:
    """One hash over folders: names, modes, dates and contents."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            stat = path.lstat()
            what = os.readlink(path) if path.is_symlink() else (
                sha256(path) if path.is_file() else "")
            total.update(repr((str(path.relative_to(folder)), stat.st_mode, stat.st_mtime_ns,
                               what)).encode())
    return total.hexdigest()


def sign(source: pathlib.Path, out: pathlib.Path, owner: Owner, given: str | None) -> None:
    """Make the signed copy, unless it is up to date."""
    part, old, known = (out.with_name(f".{out.name}.{end}") for end in ("part", "old", "inputs"))
    stage = Stage(source, part)
    # Check for everything that may be missing before the work begins.
    stage.require_lockdown()
    stage.require_room(owner)
    stage.sign_file(given)
    if out.exists() and not (out / "stage.env").is_file():
        raise Fail(f"{shown(out)} exists and is not a stage: name another folder")
    if source.resolve() == out.resolve() or source.resolve() in out.resolve().parents:
        raise Fail(f"{shown(out)} is in the stage itself: name another folder")
    signer = "".join(sha256(path) for path in (
        owner.cert, pathlib.Path(__file__), pathlib.Path(certificate.__file__)))
    with lock(out.with_name(f".{out.name}.lock")):
        if known.is_file() and known.read_text(encoding="ascii") == signer + digest(source, out):
            say(f"{shown(out)} is up to date")
            return
        known.unlink(missing_ok=True)
        try:
            shutil.rmtree(part, ignore_errors=True)
            run("cp", "-a", source, part, what=f"copying {shown(source)}")
            sign_vmlinuz(stage, owner)
            remark = sign_modules(stage, owner, given)
            stage.write(source / "doc" / "secureboot.der", owner.der)
            stage.date()
            shutil.rmtree(old, ignore_errors=True)
            if out.exists():
                out.rename(old)
            part.rename(out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        known.write_text(signer + digest(source, out), encoding="ascii")
    say(f"{shown(out)}: certificate in vmlinuz, vmlinuz signed, {remark}")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", metavar="STAGE", help="a folder made by tools/fl stage")
    parser.add_argument("signed", metavar="SIGNED", help="output folder; it is replaced")
    parser.add_argument("--key", required=True, help="private key: PEM without a passphrase, or "
                        "pkcs11:... with pin-source")
    parser.add_argument("--cert", required=True, help="its certificate, PEM")
    parser.add_argument("--sign-file", metavar="PROGRAM",
                        help="the kernel's sign-file, if missing from the stage's headers")
    args = parser.parse_args()
    sign(pathlib.Path(args.stage).absolute(), pathlib.Path(args.signed).absolute(),
         Owner(args.key, pathlib.Path(args.cert)), args.sign_file)
