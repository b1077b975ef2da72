# SPDX-License-Identifier: GPL-2.0-only
"""The keys and certificates that sign-stage takes, and those of the documented command."""
from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from faultline.common import ROOT, Fail
from faultline.package.sign_stage import Owner

README = ROOT / "packaging/README.md"


def shell(folder: pathlib.Path, script: str) -> None:
    """Run a script in a folder."""
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the key and the certificate of the documented command."""
    found = re.search(r"(?m)^    (openssl req -x509 (?:.*\\\n)*.*)", README.read_text())
    assert found
    shell(tmp_path, found[1].replace("rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-256"))
    return tmp_path


def owner(folder: pathlib.Path, cert: str = "kernel.crt", key: str = "kernel.key") -> Owner:
    """The owner with a certificate and a key in the folder."""
    return Owner(key if ":" in key else str(folder / key), folder / cert)


def test_documented(folder: pathlib.Path) -> None:
    """sign-stage takes the certificate of the documented command, which can sign no other."""
    assert owner(folder).der
    shell(folder, "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
          "-subj /CN=issued -keyout issued.key -out issued.csr; "
          "openssl x509 -req -in issued.csr -CA kernel.crt -CAkey kernel.key -out issued.crt")
    done = subprocess.run(["openssl", "verify", "-partial_chain", "-CAfile", "kernel.crt",
                           "issued.crt"], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode and "invalid CA certificate" in done.stdout + done.stderr


@pytest.mark.parametrize("command", [
    "openssl req -x509 -key kernel.key -subj /CN=default -out other.crt",
    "openssl req -x509 -key kernel.key -subj /CN=usage -config none.cnf -out other.crt "
    "-addext keyUsage=keyCertSign",
    "openssl req -x509 -key kernel.key -subj /CN=version1 -config none.cnf -out other.crt",
], ids=["CA:TRUE", "keyCertSign", "version 1"])
def test_authority(folder: pathlib.Path, command: str) -> None:
    """sign-stage refuses a certificate that can sign others, and says how to make another."""
    (folder / "none.cnf").write_text("[req]\ndistinguished_name=name\n[name]\n")
    shell(folder, command)
    with pytest.raises(Fail, match="can sign other certificates.*packaging/README.md"):
        owner(folder, "other.crt")


def test_modes(folder: pathlib.Path) -> None:
    """sign-stage refuses a key file and a PIN file that other users can read."""
    key, pin = folder / "kernel.key", folder / "pin 1"
    key.chmod(0o640)
    assert owner(folder)
    key.chmod(0o644)
    with pytest.raises(Fail, match="open to other users.*chmod 600"):
        owner(folder)
    pin.write_text("1234")
    pin.chmod(0o644)
    with pytest.raises(Fail, match="PIN file .*open to other users"):
        owner(folder, key=f"pkcs11:token=t;object=k;pin-source=file:{folder}/pin%201")
