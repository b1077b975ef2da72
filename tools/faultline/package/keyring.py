# SPDX-License-Identifier: GPL-2.0-only
"""The packages with which hosts follow a repository: its keys, and where it is.

    faultline-archive-keyring   for apt: the keys, faultline.sources
    faultline-release           for dnf: the keys, faultline.repo

Their version is the date of the last change of their contents: packages with the same
contents are not made again.
"""
from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import textwrap

from ..common import ROOT
from . import rpmtool
from .keys import Trust, run

DEB, RPM = "faultline-archive-keyring", "faultline-release"
DEB_KEYS = f"/usr/share/keyrings/{DEB}.asc"
RPM_KEYS = "/etc/pki/rpm-gpg/RPM-GPG-KEY-faultline"
SOURCES, REPO = "/etc/apt/sources.list.d/faultline.sources", "/etc/yum.repos.d/faultline.repo"
UNATTENDED = ROOT / "packaging/deb/52unattended-upgrades-faultline"
SUITE, COMPONENT = "stable", "main"
TEST_WARNING = "Signed with a THROW-AWAY TEST KEY: not for hosts that matter."
# In the description of both packages: a hash over what they contain.
MARK = "Contents: "

# A file that was put there by hand, with the keys of its day inside, makes way if it is for
# the same repository.
PREINST = """\
#!/bin/sh
set -e
file=$DPKG_ROOT{sources}
if [ "$1" = install ] && [ -z "$2" ] && grep -qxF {uri} "$file" 2>/dev/null; then
    mv -f "$file" "$file.dpkg-old"
fi
"""
POSTRM = """\
#!/bin/sh
set -e
file=$DPKG_ROOT{sources}
if [ "$1" = abort-install ] && [ ! -e "$file" ] && [ -e "$file.dpkg-old" ]; then
    mv -f "$file.dpkg-old" "$file"
fi
"""
# In Lua, as no shell may be installed yet.
PRETRANS = """\
local path = "{repo}"
local file = io.open(path)
if tonumber(arg[2]) == 1 and file then
  local text = "\\n" .. file:read("*a")
  file:close()
  if text:find("\\nbaseurl={uri}\\n", 1, true) then
    os.rename(path, path .. ".rpmsave")
  end
end
"""


@dataclasses.dataclass(frozen=True)
class Place:
    """A repository as hosts see it."""

    url: str
    trust: Trust
    test: bool

    @property
    def warning(self) -> str:
        """A comment for files of a repository that is signed with a throw-away key."""
        return f"# {TEST_WARNING}\n" if self.test else ""

    def sources(self, types: str, archs: list[str], keys: str = "") -> str:
        """The .sources file; without the path of a file with the keys, they are part of it."""
        inline = textwrap.indent(re.sub(r"(?m)^$", ".", self.trust.joined.rstrip()), " ")
        signed_by = f" {keys}" if keys else f"\n{inline}"
        # With several, apt would download those that are not the host's as well.
        only = f"Architectures: {archs[0]}\n" if len(archs) == 1 else ""
        return (f"# The Faultline kernel, for apt: put this file into /etc/apt/sources.list.d.\n"
                f"{self.warning}Types: {types}\nURIs: {self.url}/deb\nSuites: {SUITE}\n"
                f"Components: {COMPONENT}\n{only}Signed-By:{signed_by}\n")

    def repo(self, keys: str = "") -> str:
        """The .repo file; without the path of a file with the keys, it names their URL."""
        return (f"# The Faultline kernel, for dnf: put this file into /etc/yum.repos.d.\n"
                f"{self.warning}[faultline]\nname=Faultline kernel\nbaseurl={self.url}/rpm\n"
                "enabled=1\ngpgcheck=1\nrepo_gpgcheck=1\n"
                f"gpgkey={f'file://{keys}' if keys else f'{self.url}/rpm/faultline.asc'}\n")

    def about(self, what: str) -> list[str]:
        """The description, by line."""
        lines = [f"The keys of the Faultline repository at {self.url}, and {what} with its",
                 "address.  Upgrades of this package bring the next key before it signs."]
        return lines + ([TEST_WARNING] if self.test else [])


def summary(contents: dict[str, str]) -> str:
    """A hash over the contents of a package."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def version(epoch: int) -> str:
    """The version of a package whose contents changed at this time."""
    return f"{datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc):%Y%m%d.%H%M%S}"


def next_epoch(epoch: int, old: pathlib.Path | None) -> int:
    """The time of a change: it is later than the version in the name of the old package."""
    found = re.search(r"[_-](\d{8}\.\d{6})[_-]", old.name) if old else None
    if not found:
        return epoch
    then = datetime.datetime.strptime(f"{found[1]}+0000", "%Y%m%d.%H%M%S%z")
    return max(epoch, int(then.timestamp()) + 1)


def unchanged(old: pathlib.Path | None, description: str, contents: dict[str, str]) -> bool:
    """Whether the old package, with this description, has these contents."""
    return old is not None and MARK + summary(contents) in description


def deb(place: Place, archs: list[str], old: pathlib.Path | None, epoch: int,
        work: pathlib.Path) -> pathlib.Path:
    """The .deb: the old one if its contents are the same, else a new one in `work`."""
    uri = {"sources": SOURCES, "uri": shlex.quote(f"URIs: {place.url}/deb")}
    doc = f"/usr/share/doc/{DEB}"
    contents = {
        DEB_KEYS: place.trust.joined,
        SOURCES: place.sources("deb", archs, DEB_KEYS),
        f"{doc}/examples/{UNATTENDED.name}": UNATTENDED.read_text(encoding="utf-8"),
        f"{doc}/copyright": "Faultline is licensed under the GPL, version 2, which is in\n"
                            "/usr/share/common-licenses/GPL-2.\n",
        "/DEBIAN/conffiles": f"{SOURCES}\n",
        "/DEBIAN/preinst": PREINST.format(**uri),
        "/DEBIAN/postrm": POSTRM.format(**uri),
        "about": "\n".join(place.about("the .sources file")),
    }
    if old and unchanged(old, run("dpkg-deb", "--field", old, "Description"), contents):
        return old
    epoch = next_epoch(epoch, old)
    about = "".join(f" {line}\n" for line in contents["about"].splitlines())
    control = (f"Package: {DEB}\nVersion: {version(epoch)}\nArchitecture: all\n"
               f"Maintainer: {rpmtool.PACKAGER}\nSection: misc\nPriority: optional\n"
               f"Description: keys and address of the Faultline repository\n{about}"
               f" .\n {MARK}{summary(contents)}\n")
    tree = work / "deb"
    files = {**contents, "/DEBIAN/control": control}
    del files["about"]
    for name, text in files.items():
        path = tree / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if path.name in ("preinst", "postrm") else 0o644)
    for path in (tree, *tree.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (epoch, epoch))
    made = work / f"{DEB}_{version(epoch)}_all.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, made,
        env={"SOURCE_DATE_EPOCH": str(epoch)}, what=f"making {made.name}")
    return made


def rpm(place: Place, old: pathlib.Path | None, epoch: int, work: pathlib.Path) -> pathlib.Path:
    """The .rpm: the old one if its contents are the same, else a new one in `work`."""
    contents = {
        RPM_KEYS: place.trust.separate,
        REPO: place.repo(RPM_KEYS),
        "pretrans": PRETRANS.format(repo=REPO, uri=f"{place.url}/rpm"),
        "about": "\n".join(place.about("the .repo file")),
    }
    if old and unchanged(old, run("rpm", "-qp", "--nosignature", "--qf", "%{DESCRIPTION}", old),
                         contents):
        return old
    epoch = next_epoch(epoch, old)
    with rpmtool.workspace(work) as top:
        for name, text in (("keys", contents[RPM_KEYS]), ("repo", contents[REPO])):
            (top / "SOURCES" / name).write_text(text, encoding="utf-8")
        spec = top / "SPECS" / f"{RPM}.spec"
        spec.write_text(f"""\
Name: {RPM}
Version: {version(epoch)}
Release: 1
Summary: Keys and address of the Faultline repository
License: GPL-2.0-only
Packager: {rpmtool.PACKAGER}
BuildArch: noarch
%description
{contents["about"].replace("%", "%%")}

{MARK}{summary(contents)}
%install
install -Dpm 644 %{{_sourcedir}}/keys %{{buildroot}}{RPM_KEYS}
install -Dpm 644 %{{_sourcedir}}/repo %{{buildroot}}{REPO}
%pretrans -p <lua>
{contents["pretrans"].replace("%", "%%")}
%files
{RPM_KEYS}
%config(noreplace) {REPO}
""", encoding="utf-8")
        macros = {"_buildhost": "reproducible", "_build_id_links": "none",
                  "use_source_date_epoch_as_buildtime": "1",
                  "clamp_mtime_to_source_date_epoch": "1", "_binary_payload": "w9.gzdio",
                  "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
                  "_sourcedir": str(top / "SOURCES"), "_rpmdir": str(top / "RPMS")}
        rpmtool.rpmbuild(top, str(epoch), "-bb", "--target", "noarch-linux",
                         *(word for name, value in macros.items()
                           for word in ("--define", f"{name} {value}")), str(spec))
        made = next((top / "RPMS").rglob("*.rpm"))
        return made.rename(work / made.name)
