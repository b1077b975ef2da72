# SPDX-License-Identifier: GPL-2.0-only
"""Make the debian/ folder of a release from the templates in packaging/deb/debian.

A kernel's packages have its version in their names, so debian/control and the
maintainer scripts differ between releases.  Files that end in .in are
templates; KVER in a file name stands for the kernel release.
"""
from __future__ import annotations

import datetime
import pathlib
import re
import shutil
import subprocess

from ..common import ROOT, Fail, shown
from ..flavour import ARCHES, AUDIENCE, meta_suffix
from ..release import Release, changelog as read_changelog
from ..stage_env import image_name

TEMPLATES = ROOT / "packaging/deb/debian"
SOURCE = "linux-faultline"
# The build profile that dpkg-buildpackage runs with if the kernel is already compiled.
STAGE_PROFILE = f"pkg.{SOURCE}.stage"
# Members of the build group that fetch and store the branch or make a second
# compile cheap, then those that every Debian build environment has by policy.
NOT_FOR_SOURCE = {"git", "debian-archive-keyring", "ccache",
                  "gcc", "make", "libc6-dev", "perl", "gzip"}
# Members of the package group for perf and faultline-stalls; the rest handles finished packages.
FOR_STAGE = {"pkg-config", "libtraceevent-dev", "libdw-dev", "clang", "bpftool", "libbpf-dev"}
FIRST_RELEASE = """\
# A first upload to Debian closes the bug that requests the package; this one is
# not uploaded to Debian.
initial-upload-closes-no-bugs
"""
DATE_FORM = "%a, %d %b %Y %H:%M:%S +0000"


def version_of(env: dict[str, str]) -> str:
    """The version of the packages."""
    return f"{env['UPSTREAM']}-{env['RELEASE']}"


def build_depends() -> str:
    """Build-Depends of the source package: the host packages that the stage needs."""
    path = ROOT / "packaging" / "build-deps" / "debian.list"
    rows = [line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip() and not line.startswith("#")]
    missing = (FOR_STAGE | NOT_FOR_SOURCE) - {name for name, _ in rows}
    if missing:
        raise Fail(f"{shown(path)} has no {' '.join(sorted(missing))}: "
                   "update the groups in faultline/package/debtree.py")
    names = sorted({name for name, group in rows if name in FOR_STAGE
                    or group == "build" and name not in NOT_FOR_SOURCE})
    return ",\n".join(f" {name} <!{STAGE_PROFILE}>" for name in names)


def maintainer() -> str:
    """The maintainer named in the changelog."""
    match = re.search(r"(?m)^Maintainer: (.*)$", (TEMPLATES / "control.in").read_text())
    assert match
    return match[1]


def entry(version: str, text: str, date: datetime.datetime) -> str:
    """One entry of a Debian changelog."""
    return (f"{SOURCE} ({version}) stable; urgency=medium\n\n{text}\n\n"
            f" -- {maintainer()}  {date.strftime(DATE_FORM)}\n")


def changelog(env: dict[str, str]) -> str:
    """Our CHANGELOG in Debian's format, with the release of the stage on top."""
    entries = {found.release: found for found in read_changelog(ROOT / "CHANGELOG")}
    release = Release(env["UPSTREAM"], env["RELEASE"])
    made = datetime.datetime.fromtimestamp(int(env["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    if release in entries:
        text = [entry(release.version, entries.pop(release).text, made)]
    else:
        # A rebuild, or a kernel of another point release (UPSTREAM=).
        # Only seconds later than the release itself.
        later = datetime.timedelta(seconds=int(release.number.partition(".")[2] or 0))
        text = [entry(release.version, f"  * A build of {release.name}.", made + later)]
    for older in entries.values():
        if subprocess.run(["dpkg", "--compare-versions", older.release.version, "lt",
                           release.version], check=False).returncode == 0:
            text.append(entry(older.release.version, older.text, older.date))
    return "\n".join(text)


def fill(text: str, values: dict[str, str], where: str) -> str:
    """Replace the @NAMES@ in a template."""
    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise Fail(f"{where}: unknown placeholder @{match[1]}@")
        return values[match[1]]
    return re.sub(r"@([A-Z_]+)@", value, text)


def without_missing(control: str, env: dict[str, str]) -> str:
    """debian/control without the packages whose contents the stage does not have."""
    for part, packages in (("DEBUG", r"\S+-dbg"),
                           ("PERF", r"(?:linux-tools-\S+|faultline-stalls)")):
        if env[part] == "no":
            control = re.sub(rf"(?ms)^Package: {packages}\n.*?\n\n", "", control)
            control = re.sub(rf"(?m)^ {packages},\n", "", control)
    return control


def write_debian(target: pathlib.Path, env: dict[str, str]) -> None:
    """Write the debian/ folder of a release to target."""
    sysctl = ROOT / "sysctl"
    if not (sysctl / "switches").is_file():
        raise Fail(f"{shown(sysctl)}/switches is missing: restore it with git")
    values = env | {"VERSION": version_of(env), "SOURCE": SOURCE,
                    "META": meta_suffix(env["FLAVOUR"]), "FOR": AUDIENCE[env["FLAVOUR"]],
                    "BUILD_DEPENDS": build_depends(),
                    "IMAGE": image_name(env), "LOADERS": ARCHES[env["ARCH"]].loaders,
                    "RUN_HOOKS": (TEMPLATES / "run-hooks.in").read_text().rstrip("\n")}
    for path in sorted(TEMPLATES.rglob("*")):
        if path.is_dir() or path.name == "run-hooks.in":
            continue
        name = path.relative_to(TEMPLATES).as_posix().replace("KVER", env["KVER"])
        new = target / name.removesuffix(".in")
        new.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".in":
            text = fill(fill(path.read_text(), values, name), values, name)
            if name == "control.in":
                text = without_missing(text, env)
            new.write_text(text)
            new.chmod(path.stat().st_mode & 0o777)
        else:
            shutil.copy(path, new)
    log = changelog(env)
    (target / "changelog").write_text(log)
    if log.count("\n -- ") == 1 and version_of(env).endswith("-1"):
        for name in re.findall(r"(?m)^Package: (\S+)$", (target / "control").read_text()):
            with open(target / f"{name}.lintian-overrides", "a", encoding="utf-8") as file:
                file.write(FIRST_RELEASE)
    # For debian/rules: the names, the default flavour, and the date, which the
    # changelog has only for the first build of a release.
    names = ("KVER", "RELEASE", "FLAVOUR", "DEBUG", "PERF", "SOURCE_DATE_EPOCH", "IMAGE")
    (target / "release").write_text("".join(f"{name}={values[name]}\n" for name in names))
    shutil.copytree(sysctl, target / "faultline" / "sysctl")
    shutil.copytree(ROOT / "rollout", target / "faultline" / "rollout",
                    ignore=shutil.ignore_patterns("__pycache__"))
