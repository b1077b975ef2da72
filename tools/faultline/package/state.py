# SPDX-License-Identifier: GPL-2.0-only
"""The signed state of a repository, on which the next run of make-repo builds.

    DIR/state.json(.asc)   address, next key, dates, shares, and the checksum of each file in
                           DIR; its signature

make-repo takes packages over from the last run and signs them again. Others may be able to
write to DIR, so it believes nothing there that this signature does not cover.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import subprocess
import tempfile

from ..common import Fail, call, say, sha256, shown
from .keys import Key

FILE, SIGNATURE = "state.json", "state.json.asc"
# An administrator drops packages by deleting them here.
PACKAGES = ("deb/pool/", "rpm/Packages/")
FORMAT = 1
FIND_OUT = "find out who can write there"
ADOPT = "once you have compared its packages with your builds, sign them with --adopt --url URL"


@dataclasses.dataclass
class State:
    """A repository as make-repo left it."""

    url: str = ""
    # The public key that will sign next, in armor; "" if none is announced.
    next_key: str = ""
    # The date of the metadata, and the days for which apt accepts them; 0: forever.
    date: int = 0
    valid_days: int = 0
    # Source package and version of a kernel, and the percentage of hosts that upgrade to it;
    # empty if all of them do.
    phased: tuple[str, ...] = ()
    # SHA256 of each file, by its path in the repository.
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: pathlib.Path, key: Key) -> None:
        """Add the checksums of files that it does not have, write it, and sign it."""
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if path.is_file() and name not in self.files:
                self.files[name] = sha256(path)
        (folder / FILE).write_text(
            json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n",
            encoding="utf-8")
        key.sign("--detach-sign", folder / FILE, folder / SIGNATURE)


def signer(data: bytes, signature: bytes, blocks: list[str]) -> tuple[bool, str]:
    """Whether one of these public keys made a signature; the key that did, or claims to."""
    with tempfile.TemporaryDirectory(prefix="faultline-gpg-") as place:
        home = pathlib.Path(place)
        gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--no-autostart")
        call(*gpg, "--import", data="".join(blocks).encode(), what="reading the public keys")
        (home / "data").write_bytes(data)
        (home / "signature").write_bytes(signature)
        done = subprocess.run([*gpg, "--trust-model", "always", "--status-fd", "1", "--verify",
                               home / "signature", home / "data"],
                              capture_output=True, text=True, errors="replace", check=False)
    good = re.findall(r"(?m)^\[GNUPG:\] VALIDSIG .*\b([0-9A-F]{40})$", done.stdout)
    if good and " REVKEYSIG " in done.stdout:
        raise Fail(f"key {good[0]}, which signed the repository, is revoked, so its signature "
                   f"proves nothing: make the repository again in another folder, or {ADOPT}")
    if done.returncode == 0 and len(good) == 1:
        return True, good[0]
    # gpg says so of a key that it does not have.
    claims = re.search(r"(?m)^\[GNUPG:\] ERRSIG .*\b([0-9A-F]{40})$", done.stdout)
    return False, claims[1] if claims else ""


def load(out: pathlib.Path, key: Key, old_key: str | None) -> tuple[State, bool]:
    """The state of a repository, and whether the old key signed it; all of DIR is checked."""
    path, signature = out / FILE, out / SIGNATURE
    if not any(out.glob("*")):
        return State(), False
    if not path.is_file() or not signature.is_file():
        raise Fail(f"{shown(out)} has no {FILE} with a signature, so nothing proves that its "
                   f"packages are yours: restore the folder from a backup; or, {ADOPT}")
    data = path.read_bytes()
    blocks = [key.public()] + ([key.known(old_key)] if old_key else [])
    good, name = signer(data, signature.read_bytes(), blocks)
    if not good and name:
        raise Fail(f"{shown(out)} is signed with key {name}: give --key {name}, or --rekey "
                   f"{name} to sign all of it with {key.fingerprint}, which its hosts must then "
                   "trust")
    if not good:
        raise Fail(f"{shown(path)} has changed since it was signed: {FIND_OUT}, and "
                   f"restore the folder from a backup; or, {ADOPT}")
    values = json.loads(data)
    if values["format"] != FORMAT:
        raise Fail(f"{shown(path)} was made by another version of this program: use that one")
    state = State(**values)
    state.phased = tuple(state.phased)
    check(out, state)
    return state, name != key.fingerprint


def check(out: pathlib.Path, state: State) -> None:
    """Refuse files that are not as they were when this program signed them."""
    wrong = {}
    there = set()
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        package = name.startswith(PACKAGES)
        if path.is_dir() and not path.is_symlink() or name in (FILE, SIGNATURE):
            continue
        there.add(name)
        if name not in state.files or path.is_symlink() or not path.is_file():
            wrong[name] = "was not put there by this program: delete it" + (
                ", or move it to another folder and give that with --deb or --rpm if it is yours"
                if package else "")
        elif sha256(path) != state.files[name]:
            wrong[name] = "has changed since this program signed it: delete it" + (
                ", and give your own copy with --deb or --rpm" if package else
                ", as this program makes it again")
    if wrong:
        name, why = next(iter(wrong.items()))
        more = f" (and {len(wrong) - 1} more files)" if len(wrong) > 1 else ""
        raise Fail(f"{shown(out / name)}{more} {why}; {FIND_OUT}")
    gone = sorted(name for name in set(state.files) - there if name.startswith(PACKAGES))
    if gone:
        say(f"{shown(out)}: without {', '.join(gone)}, deleted since the last run")
