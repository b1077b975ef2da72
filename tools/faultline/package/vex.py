# SPDX-License-Identifier: GPL-2.0-only
"""Make an OpenVEX document: which CVEs of Linux concern our kernel.

    fl package vex --cves vulns/cve/published --out 6.12.117-faultline1.openvex.json

--cves is a folder with the records of the kernel's CVE team, CVE-*.json at any depth: a copy
of its repository "vulns", or the records of the CVE program. Each record has the versions in
which the bug is (CVE JSON 5, containers.cna.affected, versions of type semver). The kernel is
the pinned point release with the patches of kernel/patches:

    fixed           the record says that a fix is in this point release, or a patch in the
                    queue has a line "CVE: CVE-..." before its "---"
    not_affected    the bug came with a later version, or is only in other series
    affected        otherwise; the statement names the point release with the fix, if any

Debian's own patches in the pinned source, and what the configuration leaves out, are not looked
at: a CVE may be stated as affected that is not. Rejected records, and those that are not about
versions of Linux, are left out and counted.

With a document in the place of --out, its version rises if a statement has changed, and
nothing is written otherwise. SOURCE_DATE_EPOCH in the environment sets the date.
"""
from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import re
import time
import uuid
from typing import Any

from ..common import Fail, Paths, say, shown, write_atomic
from ..patchqueue import series_names
from ..pin import Pin
from ..release import Release
from .documents import VEX

CONTEXT = "https://openvex.dev/ns/v0.2.0"
CVE = re.compile(r"CVE-\d{4}-\d{4,}")
# A final release is above its candidates, a version with "*" above all that it stands for.
FINAL, STAR = 1 << 30, 1 << 31

Version = tuple[int, int, int, int]


def parse(text: str) -> Version:
    """A version of Linux, such as 6.12, 6.12.35, 6.16-rc1, 6.12.* or 2.6.20."""
    if text == "*":
        return STAR, STAR, STAR, STAR
    found = re.fullmatch(r"(\d+)(?:\.(\d+|\*))?(?:\.(\d+|\*))?(?:\.(?:\d+|\*))?(?:-rc(\d+))?", text)
    if not found:
        raise ValueError(f"no version of Linux: {text}")
    first, second, third = (STAR if part == "*" else int(part or 0) for part in found.groups()[:3])
    return first, second, third, int(found[4] or FINAL)


@dataclasses.dataclass(frozen=True)
class Range:
    """Versions of one status: from `first` to `last`, with or without it."""

    first: str
    last: str
    inclusive: bool
    status: str

    @classmethod
    def of(cls, entry: dict[str, Any]) -> Range:
        """A range of a record; an entry without an end is one version."""
        first = str(entry["version"])
        last = entry.get("lessThan") or entry.get("lessThanOrEqual") or first
        return cls(first, str(last), "lessThan" not in entry, str(entry["status"]))

    def __contains__(self, version: Version) -> bool:
        end = parse(self.last)
        return parse(self.first) <= version and (version <= end if self.inclusive
                                                 else version < end)


@dataclasses.dataclass(frozen=True)
class Record:
    """What a CVE record says about versions."""

    name: str
    default: str
    ranges: tuple[Range, ...]

    @classmethod
    def load(cls, path: pathlib.Path) -> Record | None:
        """Read a record; None if it is not about versions of Linux."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            meta = body["cveMetadata"]
            # The team's repository and the CVE program spell it differently.
            name = str(meta.get("cveId") or meta["cveID"])
            if not CVE.fullmatch(name):
                raise ValueError(f"its name is {name}")
            if meta["state"] != "PUBLISHED":
                return None
            cna = body["containers"]["cna"]
            for product in cna.get("affected", []):
                if (product.get("vendor"), product.get("product")) != ("Linux", "Linux"):
                    continue
                entries = [Range.of(entry) for entry in product.get("versions", [])
                           if entry.get("versionType") != "git"]
                if entries:
                    entries += backports(cna)
                    for entry in entries:
                        _ = parse(entry.first), parse(entry.last)
                    return cls(name, str(product.get("defaultStatus", "unknown")),
                               tuple(entries))
            return None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Fail(f"{shown(path)} is not a CVE record in JSON 5 ({error}): get it again, "
                       "or remove it") from None

    def statement(self, kernel: str) -> dict[str, str]:
        """The statement about a version, without names."""
        version = parse(kernel)
        good = [entry for entry in self.ranges if entry.status == "unaffected"]
        bad = [entry for entry in self.ranges if entry.status != "unaffected"]
        if not bad and self.default != "unaffected":
            bad = [Range("0", "0", True, "affected")]  # the bug is as old as Linux
        hits = [entry for entry in good if version in entry]
        reached = [entry for entry in bad if reaches(parse(entry.first), version)]
        if any(version in entry for entry in bad) or not (hits or self.default == "unaffected"):
            return affected(good, bad, version)
        fixes = []
        for entry in reached:
            # Either the range of the bug ends before this version, or a fix came after it.
            after = [hit for hit in hits if parse(hit.first) > parse(entry.first)]
            if after:
                fixes.append(max((hit.first for hit in after), key=parse))
            elif entry.first != entry.last or self.default == "unaffected":
                fixes.append(entry.last)
            else:
                return affected(good, bad, version)
        if not fixes:
            return {"status": "not_affected", "justification": "vulnerable_code_not_present"}
        return {"status": "fixed", "status_notes": f"fixed in {max(fixes, key=parse)}"}


def backports(cna: dict[str, Any]) -> list[Range]:
    """The ranges of a bug that came with a backport: `affected` may have the mainline's only."""
    found = []
    for block in cna.get("cpeApplicability", []):
        for match in (match for node in block["nodes"] for match in node["cpeMatch"]):
            first = str(match.get("versionStartIncluding", "0"))
            if parse(first)[2] and parse(first)[0] >= 3:
                end = match.get("versionEndExcluding")
                series = ".".join(first.split(".")[:2])
                found.append(Range(first, str(end or f"{series}.*"), not end, "affected"))
    return found


def reaches(start: Version, version: Version) -> bool:
    """Whether a bug that came with version `start` can be in `version`: that of a point release
    is in its series only."""
    mainline = start[2] == 0 or start[0] < 3
    return start <= version and (mainline or start[:2] == version[:2])


def affected(good: list[Range], bad: list[Range], version: Version) -> dict[str, str]:
    """The statement about a version that has the bug: what to do."""
    fixes = [entry.first for entry in good] + [entry.last for entry in bad if not entry.inclusive]
    later = sorted((fix for fix in fixes if parse(fix) > version), key=parse)
    ours = [fix for fix in later if parse(fix)[:2] == version[:2]]
    if ours:
        action = f"Update to a kernel based on {ours[0]}, which has the fix."
    elif later:
        action = (f"No fix in this series is recorded; {later[0]} has one. Wait for a point "
                  "release, or add the fix to the patch queue.")
    else:
        action = "No fix is recorded yet."
    return {"status": "affected", "action_statement": action}


def patched(kernel: pathlib.Path) -> dict[str, str]:
    """The CVEs that patches of the queue name, with the file name of the patch."""
    found = {}
    for name in series_names((kernel / "patches/series").read_text(encoding="utf-8")):
        text = (kernel / "patches" / name).read_text(encoding="utf-8", errors="replace")
        for line in re.findall(r"(?m)^CVE: (.*)$", text.partition("\n---\n")[0]):
            found.update({cve: name for cve in CVE.findall(line)})
    return found


def statements(folder: pathlib.Path, kernel: str, queue: dict[str, str],
               products: list[str]) -> list[dict[str, object]]:
    """The statements about all records, by name."""
    records: dict[str, Record] = {}
    paths = sorted(folder.rglob("CVE-*.json"))
    if not folder.is_dir() or not paths:
        raise Fail(f"--cves {folder}: no CVE-*.json in it: give a copy of the records of the "
                   "kernel's CVE team (see fl package vex --help)")
    skipped = 0
    for path in paths:
        if record := Record.load(path):
            records[record.name] = record
        else:
            skipped += 1
    out: list[dict[str, object]] = []
    for name in sorted(records, key=lambda name: [int(part) for part in name.split("-")[1:]]):
        what = records[name].statement(kernel)
        if what["status"] == "affected" and name in queue:
            what = {"status": "fixed", "status_notes": f"fixed by patches/{queue[name]}"}
        out.append({"vulnerability": {"name": name},
                    "products": [{"@id": product} for product in products], **what})
    counts = {status: sum(entry["status"] == status for entry in out)
              for status in ("fixed", "not_affected", "affected")}
    say(f"Linux {kernel}: {', '.join(f'{count} {status}' for status, count in counts.items())}; "
        f"{skipped} records left out")
    if not out:
        raise Fail(f"--cves {folder}: no published record of the kernel's CVE team in it")
    return out


def previous(path: pathlib.Path) -> tuple[int, object]:
    """The version and the statements of a document; 0 if there is none."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return int(body["version"]), body["statements"]
    except FileNotFoundError:
        return 0, None
    except (KeyError, TypeError, ValueError):
        raise Fail(f"{shown(path)} is not an OpenVEX document: move it away") from None


def make(folder: pathlib.Path, out: pathlib.Path, author: str, products: list[str]) -> None:
    """Write the document, unless nothing has changed."""
    kernel = Paths.from_env().kernel
    pin = Pin.load(kernel)
    release = Release.ours(kernel, pin.upstream, os.environ.get("REBUILD", ""))
    products = products or [f"pkg:generic/linux-faultline@{release.version}"]
    found = statements(folder, pin.upstream, patched(kernel), products)
    number, before = previous(out)
    if before == found:
        say(f"{shown(out)} is up to date")
        return
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    text = json.dumps(found, sort_keys=True)
    body = {"@context": CONTEXT, "@id": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}",
            "author": author, "timestamp": f"{date:%Y-%m-%dT%H:%M:%SZ}", "version": number + 1,
            "tooling": "fl package vex", "statements": found}
    write_atomic(out, (json.dumps(body, indent=1) + "\n").encode())
    say(f"{shown(out)}: version {number + 1}, {len(found)} statements")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cves", required=True, type=pathlib.Path, metavar="DIR",
                        help="the records of the kernel's CVE team")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FILE",
                        help=f"the document; its name ends in {VEX}")
    parser.add_argument("--author", default="Faultline maintainers", help="who states this")
    parser.add_argument("--product", action="append", default=[], metavar="PURL",
                        help="what the statements are about (default: pkg:generic/linux-faultline "
                        "with the version of the packages)")
    args = parser.parse_args()
    if not args.out.name.endswith(VEX):
        raise Fail(f"--out {args.out}: its name must end in {VEX}")
    make(args.cves, args.out, args.author, args.product)
