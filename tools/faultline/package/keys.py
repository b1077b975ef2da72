# SPDX-License-Identifier: GPL-2.0-only
"""The OpenPGP keys of a repository: the one that signs, and those that hosts trust."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator

from ..common import Fail, Paths, call, lock, say, shown

TEST_KEY_NAME = "Faultline throw-away test key (trust nothing that it signs)"


def run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None,
        env: dict[str, str] | None = None, what: str = "") -> str:
    """The output of a program that must succeed, as text."""
    return call(*command, what=what, cwd=cwd, env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
                ).decode(errors="replace")


def run_test(*command: str) -> bool:
    """Whether a program succeeds that tests something."""
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


class Key:
    """The signing key and its GnuPG folder."""

    def __init__(self, home: str, fingerprint: str, test: bool) -> None:
        self._env = {"GNUPGHOME": home} if home else {}
        self.home = home
        self.fingerprint = fingerprint
        self.test = test

    def gpg(self, *args: str | pathlib.Path, what: str = "") -> str:
        """Run gpg with the key's folder."""
        return run("gpg", "--batch", "--no-tty", "--quiet", *args, env=self._env,
                   what=what or "gpg")

    def sign(self, mode: str, source: pathlib.Path, target: pathlib.Path) -> None:
        """Sign a file: --clearsign or --detach-sign."""
        self.gpg("--yes", "--armor", "--digest-algo", "SHA512", "--local-user",
                 f"{self.fingerprint}!", "--output", target, mode, source,
                 what=f"signing {source.name}")

    def public(self, fingerprint: str = "") -> str:
        """The public key for clients, or another one, without third-party signatures."""
        return self.gpg("--armor", "--export-options", "export-minimal", "--export",
                        fingerprint or self.fingerprint)

    def known(self, fingerprint: str) -> str:
        """A public key in the key's folder, which may have expired."""
        try:
            block = self.public(fingerprint)
        except Fail:
            block = ""
        if not block:
            where = f"in {self.home}" if self.home else "in your GnuPG folder"
            raise Fail(f"no public key {fingerprint} {where}: import it there, from a place that "
                       "you trust, with gpg --import")
        return block

    def stop_agent(self) -> None:
        """Stop the agent started for a test key; leave an owner's agent alone."""
        if self.test:
            subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=False,
                           env={**os.environ, **self._env}, capture_output=True)


@contextlib.contextmanager
def short_path(folder: pathlib.Path) -> Iterator[str]:
    """A short name for a folder: the path of the agent's socket is limited to 107 characters."""
    with tempfile.TemporaryDirectory(prefix="faultline-gpg-") as place:
        link = pathlib.Path(place) / "home"
        link.symlink_to(folder, target_is_directory=True)
        yield str(link)


def check_key(home: str, wanted: str, kind: str = "secret") -> str:
    """Check that `wanted` names one usable secret or public key; return its fingerprint."""
    probe = Key(home, wanted, test=False)
    option, record_type = {"secret": ("--list-secret-keys", "sec"),
                           "public": ("--list-keys", "pub")}[kind]
    where = f"in {home}" if home else "in your GnuPG folder (is it in another? --gnupghome)"
    try:
        listing = probe.gpg("--with-colons", "--fixed-list-mode", option, wanted)
    except Fail:
        listing = ""
    records = [line.split(":") for line in listing.splitlines()]
    primary = [record for record in records if record[0] == record_type]
    prints = [record[9] for record in records if record[0] == "fpr"]
    if not primary:
        raise Fail(f"no {kind} key '{wanted}' {where}: list them with gpg {option}")
    if len(primary) > 1:
        raise Fail(f"'{wanted}' matches {len(primary)} keys: give the fingerprint")
    validity, bits, algorithm, uses = (primary[0][i] for i in (1, 2, 3, 11))
    if validity in "edr" and validity:
        state = {"e": "has expired", "d": "is disabled", "r": "is revoked"}[validity]
        raise Fail(f"key {prints[0]} {state}: use another one")
    # rpm uses the primary key; rpm of EL 8 and 9 supports RSA, but no curves.
    if algorithm != "1" or int(bits or 0) < 2048:
        raise Fail(f"key {prints[0]} is not RSA with 2048 bits or more, which rpm of EL 8 and 9 "
                   "requires: make one with gpg --quick-generate-key NAME rsa4096 sign")
    if "s" not in uses:
        raise Fail(f"the primary key of {prints[0]} cannot sign, which rpm requires: make one "
                   "with gpg --quick-generate-key NAME rsa4096 sign")
    return prints[0]


@contextlib.contextmanager
def signing_key(wanted: str | None, home: str | None) -> Iterator[Key]:
    """The owner's key, or a test key, which is made the first time."""
    if wanted:
        if home and not pathlib.Path(home).is_dir():
            raise Fail(f"no folder {home}: --gnupghome is the folder with the owner's keyring")
        home = str(pathlib.Path(home).absolute()) if home else ""
        yield Key(home, check_key(home, wanted), test=False)
        return
    folder = Paths.from_env().build / "keys" / "throw-away"
    with lock(folder.parent / "lock"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with short_path(folder) as short:
            key = Key(short, "", test=True)
            try:
                if TEST_KEY_NAME not in key.gpg("--with-colons", "--list-secret-keys"):
                    say(f"making a throw-away key in {shown(folder)}: for tests, not for a fleet")
                    key.gpg("--passphrase", "", "--quick-generate-key", TEST_KEY_NAME,
                            "rsa3072", "sign", "never", what="making the throw-away key")
                key.fingerprint = check_key(short, f"={TEST_KEY_NAME}")
                yield key
            finally:
                key.stop_agent()


# --- What hosts trust

@dataclasses.dataclass(frozen=True)
class Trust:
    """The public keys that hosts trust: the one that signs comes first."""

    blocks: tuple[str, ...]

    @property
    def separate(self) -> str:
        """One armored block for each key, as dnf and rpm want it."""
        return "".join(self.blocks)

    @property
    def joined(self) -> str:
        """One armored block with all keys, as apt wants it: it reads only the first block."""
        if len(self.blocks) == 1:
            return self.blocks[0]
        with tempfile.TemporaryDirectory(prefix="faultline-gpg-") as home:
            gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--no-autostart")
            for number, block in enumerate(self.blocks):
                path = pathlib.Path(home) / f"{number}.asc"
                path.write_text(block, encoding="ascii")
                run(*gpg, "--import", path, what="joining the public keys")
            return run(*gpg, "--armor", "--export", what="joining the public keys")


def trust(key: Key, wanted: str | None, announced: str) -> Trust:
    """The signing key, and the next one: the wanted one, or the one announced before."""
    blocks = [key.public()]
    if wanted is None and announced:
        blocks.append(announced)
    elif wanted not in (None, "none"):
        following = check_key(key.home, str(wanted), "public")
        if following == key.fingerprint:
            raise Fail(f"--next-key {wanted} is the key that signs now: give the one that will "
                       "sign after it")
        blocks.append(key.public(following))
    return Trust(tuple(blocks))
