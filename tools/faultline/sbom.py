# SPDX-License-Identifier: GPL-2.0-only
"""The bill of materials of a kernel, as SPDX 2.3 in JSON.

It lists the parts with a checksum each: upstream's source package, our
patches and files, and the configuration; and the tools that compiled them.
https://spdx.github.io/spdx-spec/v2.3/
"""
from __future__ import annotations

import datetime
import hashlib
import json
import os
import pathlib
import re
import uuid

from .common import Fail
from .flavour import PATHS, Flavour, output, tool
from .patchqueue import series_names
from .pin import Pin
from .source import config_pin

LICENSE = "GPL-2.0-only"
# The tools whose versions determine the result of a build.
BINARY_TOOLS = ("gcc", "ld")
TOOLS = ("make", "pahole")


def ident(kind: str, name: str) -> str:
    """An SPDX identifier: letters, digits, dots and dashes."""
    return f"SPDXRef-{kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', name)}"


def checksums(data: bytes) -> list[dict[str, str]]:
    """SHA1, which SPDX requires for files, and SHA256."""
    return [{"algorithm": name.upper(), "checksumValue": hashlib.new(name, data).hexdigest()}
            for name in ("sha1", "sha256")]


def file_entry(name: str, data: bytes, comment: str) -> dict[str, object]:
    """The entry for one of our files."""
    return {"SPDXID": ident("File", name), "fileName": f"./{name}",
            "checksums": checksums(data), "licenseConcluded": LICENSE,
            "licenseInfoInFiles": ["NOASSERTION"], "copyrightText": "NOASSERTION",
            "comment": comment}


def our_files(flavour: Flavour) -> list[dict[str, object]]:
    """Patches, new files and configuration."""
    kernel = PATHS.kernel
    found = [file_entry("config", flavour.config.read_bytes(), "the configuration in use")]
    series = series_names((kernel / "patches/series").read_text(encoding="utf-8"))
    for number, name in enumerate(series, 1):
        found.append(file_entry(f"patches/{name}", (kernel / "patches" / name).read_bytes(),
                                f"patch {number} of {len(series)}"))
    for path in sorted((kernel / "overlay").rglob("*")):
        if path.is_file():
            found.append(file_entry(f"overlay/{path.relative_to(kernel / 'overlay')}",
                                    path.read_bytes(), "new file, at its path in the kernel"))
    return found


def package(name: str, version: str, **more: object) -> dict[str, object]:
    """A package entry; unknown fields are NOASSERTION."""
    return {"SPDXID": ident("Package", name), "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", **more}


def sources(flavour: Flavour) -> list[dict[str, object]]:
    """The packages from upstream."""
    found = []
    for pin_name in ("upstream", config_pin(flavour.base)):
        if not (PATHS.kernel / pin_name).exists():
            continue
        pin = Pin.load(PATHS.kernel, pin_name)
        found.append(package(
            pin.package, pin.version, packageFileName=pin.file, licenseDeclared=LICENSE,
            supplier="Organization: Debian",
            checksums=[{"algorithm": "SHA256", "checksumValue": pin.sha256}],
            externalRefs=[{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                           "referenceLocator": f"pkg:deb/debian/{pin.package}@{pin.version}"}]))
    return found


def tools(flavour: Flavour) -> list[dict[str, object]]:
    """The tools that compiled it."""
    found = []
    for program in (*(tool(flavour, name) for name in BINARY_TOOLS), *TOOLS):
        try:
            version = output(program, "--version").splitlines()[0]
        except Fail:
            continue
        found.append(package(program, version))
    return found


def write(target: pathlib.Path, flavour: Flavour, env: dict[str, str]) -> None:
    """Write the document; the same input gives the same bytes."""
    name = f"linux-faultline-{env['KVER']}-{env['FLAVOUR']}"
    main = package("linux-faultline", f"{env['UPSTREAM']}-{env['RELEASE']}",
                   licenseDeclared=LICENSE, primaryPackagePurpose="OPERATING-SYSTEM",
                   comment=f"flavour {env['FLAVOUR']}, uname -r {env['KVER']}")
    upstream, compilers, files = sources(flavour), tools(flavour), our_files(flavour)
    top = str(main["SPDXID"])
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", top)]
    relations += [(top, "GENERATED_FROM", str(entry["SPDXID"])) for entry in upstream]
    relations += [(str(entry["SPDXID"]), "BUILD_TOOL_OF", top) for entry in compilers]
    relations += [(top, "GENERATED_FROM", str(entry["SPDXID"])) for entry in files]
    created = datetime.datetime.fromtimestamp(int(env["SOURCE_DATE_EPOCH"]),
                                              datetime.timezone.utc)
    body: dict[str, object] = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "creationInfo": {"created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
                         "creators": [f"Tool: faultline-{os.path.basename(__file__)}"]},
        "packages": [main, *upstream, *compilers], "files": files,
        "relationships": [{"spdxElementId": one, "relationshipType": kind,
                           "relatedSpdxElement": other} for one, kind, other in relations]}
    # Different documents need different names; equal ones keep theirs.
    text = json.dumps(body, sort_keys=True)
    body["documentNamespace"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    target.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
