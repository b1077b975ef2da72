# SPDX-License-Identifier: GPL-2.0-only
"""fl package vex: statements for records of our own making, in the form of the kernel's team."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from faultline.common import ROOT, Fail
from faultline.package import vex

Entry = dict[str, str]


def since(version: str) -> Entry:
    """The bug came with this version."""
    return {"version": version, "status": "affected"}


def clean(first: str, **end: str) -> Entry:
    """Versions without the bug."""
    return {"version": first, "status": "unaffected", "versionType": "semver", **end}


def before(version: str) -> Entry:
    """Versions before the bug."""
    return clean("0", lessThan=version)


def fixed(version: str) -> Entry:
    """A point release with the fix, and those after it."""
    return clean(version, lessThanOrEqual=f"{version.rpartition('.')[0]}.*")


def mainline(version: str) -> Entry:
    """The mainline release with the fix."""
    return {**clean(version, lessThanOrEqual="*"), "versionType": "original_commit_for_fix"}


def dirty(first: str, last: str) -> Entry:
    """Versions with the bug."""
    return {"version": first, "lessThan": last, "status": "affected", "versionType": "semver"}


def record(name: str, *versions: Entry, default: str = "affected", state: str = "PUBLISHED",
           spelling: str = "cveId", product: str = "Linux") -> dict[str, Any]:
    """A CVE record; the first product has git versions, as in real ones."""
    git = {"product": product, "vendor": "Linux", "defaultStatus": "unaffected", "versions": [
        {"version": "a" * 40, "lessThan": "b" * 40, "status": "affected", "versionType": "git"}]}
    semver = {"product": product, "vendor": "Linux", "defaultStatus": default,
              "versions": list(versions)}
    return {"cveMetadata": {spelling: name, "state": state, "assignerShortName": "Linux"},
            "containers": {"cna": {"affected": [git, semver]}}}


# What the record says, about Linux 6.12.117, and a word of the statement.
CASES = {
    "fixed in the series": (
        [since("5.8"), before("5.8"), fixed("6.6.64"), fixed("6.12.2"), mainline("6.13")],
        "affected", "fixed", "fixed in 6.12.2"),
    "fixed in this very version": (
        [since("5.8"), before("5.8"), fixed("6.12.117"), mainline("7.0")],
        "affected", "fixed", "fixed in 6.12.117"),
    "fixed in the next one": (
        [since("5.8"), before("5.8"), fixed("6.12.118"), mainline("7.0")],
        "affected", "affected", "based on 6.12.118"),
    "as old as 2.6": (
        [since("2.6.20"), before("2.6.20"), fixed("6.12.35"), mainline("6.16-rc1")],
        "affected", "fixed", "fixed in 6.12.35"),
    "fixed in an older mainline": (
        [since("5.8"), before("5.8"), mainline("6.10")], "affected", "fixed", "fixed in 6.10"),
    "fixed in a later mainline only": (
        [since("5.8"), before("5.8"), fixed("7.1.3"), mainline("7.2-rc1")],
        "affected", "affected", "7.1.3 has one"),
    "not fixed at all": ([since("5.8"), before("5.8")], "affected", "affected", "No fix"),
    "there from the beginning, fixed": (
        [fixed("6.12.2"), mainline("6.13")], "affected", "fixed", "fixed in 6.12.2"),
    "came later": (
        [since("6.13"), before("6.13"), mainline("6.15")], "affected", "not_affected",
        "vulnerable_code_not_present"),
    "came with the release candidate after it": (
        [since("6.13-rc1"), before("6.13-rc1"), mainline("6.15")], "affected", "not_affected",
        "vulnerable_code_not_present"),
    "came with a backport to another series": (
        [dirty("6.6.30", "6.6.40")], "unaffected", "not_affected", "vulnerable_code_not_present"),
    "came with a backport to this series, fixed there": (
        [dirty("6.12.5", "6.12.40")], "unaffected", "fixed", "fixed in 6.12.40"),
    "came with a backport to this series, fixed later": (
        [dirty("6.12.100", "6.12.130")], "unaffected", "affected", "based on 6.12.130"),
    "in this very version only": ([since("6.12.117")], "unaffected", "affected", "No fix"),
    "came with a later point release": (
        [dirty("6.12.120", "6.12.130")], "unaffected", "not_affected",
        "vulnerable_code_not_present"),
    "came with 6.13 and a backport, which is not fixed": (
        [since("6.13"), since("6.12.5"), before("6.13"), mainline("6.15")],
        "affected", "affected", "6.15 has one"),
    "came with 6.13 and a backport, which is fixed": (
        [since("6.13"), since("6.12.5"), before("6.13"), fixed("6.12.40"), mainline("6.15")],
        "affected", "fixed", "fixed in 6.12.40"),
    "fixed, and came back": (
        [since("4.12"), before("4.12"), clean("4.18", lessThan="5.8"), since("5.8"),
         mainline("7.0")], "affected", "affected", "7.0 has one"),
}


@pytest.mark.parametrize("name", list(CASES))
def test_statement(name: str, tmp_path: Path) -> None:
    """Each record leads to its statement."""
    versions, default, status, word = CASES[name]
    path = tmp_path / "CVE-2099-0001.json"
    path.write_text(json.dumps(record("CVE-2099-0001", *versions, default=default)))
    loaded = vex.Record.load(path)
    assert loaded
    found = loaded.statement("6.12.117")
    assert found["status"] == status
    assert word in " ".join(found.values())


@pytest.mark.parametrize(("end", "status"), [("6.12.40", "fixed"), ("6.12.118", "affected"),
                                             ("", "affected")])
def test_backport(end: str, status: str, tmp_path: Path) -> None:
    """A bug that came with a backport is seen, though `affected` has the mainline's range only."""
    body = record("CVE-2099-0001", since("6.13"), before("6.13"), mainline("6.15"))
    match = {"vulnerable": True, "versionStartIncluding": "6.12.5"}
    mainline_match = {"vulnerable": True, "versionStartIncluding": "6.13",
                      "versionEndExcluding": "6.15"}
    if end:
        match["versionEndExcluding"] = end
    body["containers"]["cna"]["cpeApplicability"] = [
        {"nodes": [{"operator": "OR", "cpeMatch": [match, mainline_match]}]}]
    path = tmp_path / "CVE-2099-0001.json"
    path.write_text(json.dumps(body))
    loaded = vex.Record.load(path)
    assert loaded and loaded.statement("6.12.117")["status"] == status


def test_order() -> None:
    """Versions sort as the kernel's do."""
    names = ["2.6.20", "5.8", "6.12-rc1", "6.12", "6.12.1", "6.12.117", "6.12.*", "6.13-rc1",
             "6.13", "*"]
    assert sorted(reversed(names), key=vex.parse) == names
    with pytest.raises(ValueError):
        vex.parse("next-20260101")


@pytest.fixture(name="cves")
def fixture_cves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records in folders by year, and a kernel folder with a pin and one patch."""
    kernel = tmp_path / "kernel"
    for name in ("upstream", "overlay/localversion-faultline"):
        (kernel / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "kernel" / name, kernel / name)
    text = (kernel / "upstream").read_text().replace("6.12.117", "6.12.50")
    text = text.replace(next(line for line in text.splitlines() if line.startswith("upstream=")),
                        "upstream=6.12.50")
    (kernel / "upstream").write_text(text)
    (kernel / "patches/fixes").mkdir(parents=True)
    (kernel / "patches/series").write_text("fixes/one.patch\n")
    (kernel / "patches/fixes/one.patch").write_text(
        "Subject: [PATCH] one\n\nCVE: CVE-2099-0004\n---\nCVE: CVE-2099-0003\n")
    monkeypatch.setenv("FAULTLINE_KERNEL_DIR", str(kernel))
    folder = tmp_path / "published"
    late = (since("5.8"), before("5.8"), fixed("6.12.60"), mainline("7.0"))
    for entry in (record("CVE-2098-0001", since("5.8"), before("5.8"), fixed("6.12.2")),
                  record("CVE-2099-0002", since("6.13"), before("6.13"), spelling="cveID"),
                  record("CVE-2099-0003", *late), record("CVE-2099-0004", *late),
                  record("CVE-2099-0005", *late, state="REJECTED"),
                  record("CVE-2099-0006", *late, product="Other")):
        meta = entry["cveMetadata"]
        name = meta.get("cveId") or meta["cveID"]
        path = folder / name[4:8] / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entry))
    return folder


def run(cves: Path, out: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run([ROOT / "tools/fl", "package", "vex", "--cves", cves,
                           "--out", out], env={**os.environ, **env}, check=False,
                          capture_output=True, text=True)


def test_document(cves: Path, tmp_path: Path) -> None:
    """The document has all that OpenVEX requires, and a statement for each record of Linux."""
    out = tmp_path / "test.openvex.json"
    done = run(cves, out, SOURCE_DATE_EPOCH="1700000000")
    assert done.returncode == 0, done.stderr
    assert "2 fixed, 1 not_affected, 1 affected; 2 records left out" in done.stdout
    body = json.loads(out.read_text())
    assert body["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert body["timestamp"] == "2023-11-14T22:13:20Z"
    assert body["version"] == 1 and body["author"] and body["@id"].startswith("urn:uuid:")
    status = {entry["vulnerability"]["name"]: entry["status"] for entry in body["statements"]}
    assert status == {"CVE-2098-0001": "fixed", "CVE-2099-0002": "not_affected",
                      "CVE-2099-0003": "affected", "CVE-2099-0004": "fixed"}
    for entry in body["statements"]:
        assert entry["products"] == [{"@id": "pkg:generic/linux-faultline@6.12.50-1"}]
        assert ("action_statement" in entry) == (entry["status"] == "affected")
        assert ("justification" in entry) == (entry["status"] == "not_affected")
    assert body["statements"][3]["status_notes"] == "fixed by patches/fixes/one.patch"


def test_version(cves: Path, tmp_path: Path) -> None:
    """The version rises with a change, and only then."""
    out = tmp_path / "test.openvex.json"
    run(cves, out)
    before_run = out.read_bytes()
    assert "up to date" in run(cves, out).stdout
    assert out.read_bytes() == before_run
    (cves / "2099/CVE-2099-0003.json").write_text(json.dumps(
        record("CVE-2099-0003", since("5.8"), before("5.8"), fixed("6.12.7"))))
    run(cves, out)
    body = json.loads(out.read_text())
    assert body["version"] == 2
    assert body["statements"][2]["status"] == "fixed"


def error(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.returncode == 1
    line, = done.stderr.splitlines()
    return line


def test_errors(cves: Path, tmp_path: Path) -> None:
    """Bad input gets one clear line, and nothing is written."""
    out = tmp_path / "test.openvex.json"
    (tmp_path / "empty").mkdir()
    assert "no CVE-*.json in it" in error(run(tmp_path / "empty", out))
    assert "must end in .openvex.json" in error(run(cves, tmp_path / "vex.json"))
    broken = cves / "2099/CVE-2099-0007.json"
    broken.write_text("{")
    assert "CVE-2099-0007.json is not a CVE record" in error(run(cves, out))
    assert not out.exists()
    broken.unlink()
    out.write_text("{}")
    assert "is not an OpenVEX document" in error(run(cves, out))
    assert out.read_text() == "{}"


def test_unknown_version(tmp_path: Path) -> None:
    """A version that cannot be compared is an error, not a guess."""
    path = tmp_path / "CVE-2099-0001.json"
    path.write_text(json.dumps(record("CVE-2099-0001", since("soon"))))
    with pytest.raises(Fail, match="no version of Linux: soon"):
        vex.Record.load(path)
