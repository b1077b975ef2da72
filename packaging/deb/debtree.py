# SPDX-License-Identifier: GPL-2.0-only
"""The debian/ folder of one release: the templates of packaging/deb/debian, filled in.

A kernel's packages have its version in their names, so debian/control and the
maintainer scripts differ from release to release.  Files that end in .in are
templates; KVER in a file's name stands for the kernel's release.
"""
from __future__ import annotations

import datetime
import pathlib
import re
import shutil
import subprocess
import sys

DEB = pathlib.Path(__file__).resolve().parent
TOP = DEB.parents[1]
sys.path.insert(0, str(TOP / "kernel" / "scripts"))
from sourcelib.common import Fail, shown  # noqa: E402

TEMPLATES = DEB / "debian"
SOURCE = "linux-faultline"
# dpkg-buildpackage runs with this build profile when the kernel is compiled already.
STAGE_PROFILE = f"pkg.{SOURCE}.stage"
# What the stage says, and the form that names of packages need.
FORMS = {
    "KVER": r"\d+\.\d+\.\d+-[a-z0-9.+~]+",
    "UPSTREAM": r"\d+\.\d+\.\d+",
    "RELEASE": r"\d+(\.\d+)?",
    "FLAVOUR": r"[a-z0-9][a-z0-9-]*",
    "ARCH": r"[a-z0-9][a-z0-9-]*",
    "SOURCE_DATE_EPOCH": r"\d+",
}
# Of the build group, these fetch and keep the branch, or make a second compile
# cheap; the next are in every Debian build environment by policy.
NOT_FOR_SOURCE = {"git", "debian-archive-keyring", "ccache",
                  "gcc", "make", "libc6-dev", "perl", "gzip"}
# Of the package group, these are for perf and type information; the rest handles
# packages that are ready.
FOR_STAGE = {"pkg-config", "libtraceevent-dev", "libdw-dev", "dwarves"}
CHANGELOG_HEAD = re.compile(r"(?m)^(\d+\.\d+\.\d+)-faultline(\d\S*) \((\d{4}-\d\d-\d\d)\)$")
FIRST_RELEASE = """\
# A first upload to Debian closes the bug that asked for the package; nobody
# uploads this one to Debian.
initial-upload-closes-no-bugs
"""
DATE_FORM = "%a, %d %b %Y %H:%M:%S +0000"


def check_env(env: dict[str, str], where: str) -> dict[str, str]:
    """The values, if they can name packages."""
    for key, form in FORMS.items():
        if not re.fullmatch(form, env.get(key, "")):
            raise Fail(f"{where}: {key}={env.get(key, '')} is missing or cannot name a package: "
                       "make the stage again with kernel/scripts/stage")
    return env


def read_env(path: pathlib.Path) -> dict[str, str]:
    """A stage.env."""
    lines = path.read_text(encoding="utf-8").splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return check_env(env, shown(path))


def version_of(env: dict[str, str]) -> str:
    """The packages' version."""
    return f"{env['UPSTREAM']}-{env['RELEASE']}"


def build_depends() -> str:
    """The host packages that the stage needs, as the source package asks for them."""
    path = TOP / "packaging" / "build-deps" / "debian.list"
    rows = [line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines()
            if line.strip() and not line.startswith("#")]
    missing = (FOR_STAGE | NOT_FOR_SOURCE) - {name for name, _ in rows}
    if missing:
        raise Fail(f"{shown(path)} has no {' '.join(sorted(missing))}: "
                   "packaging/deb/debtree.py sorts its packages and has to follow it")
    names = sorted({name for name, group in rows if name in FOR_STAGE
                    or group == "build" and name not in NOT_FOR_SOURCE})
    return ",\n".join(f" {name} <!{STAGE_PROFILE}>" for name in names)


def maintainer() -> str:
    """Who signs the changelog."""
    match = re.search(r"(?m)^Maintainer: (.*)$", (TEMPLATES / "control.in").read_text())
    assert match
    return match[1]


def entry(version: str, text: str, date: datetime.datetime) -> str:
    """One entry of a Debian changelog."""
    return (f"{SOURCE} ({version}) stable; urgency=medium\n\n{text}\n\n"
            f" -- {maintainer()}  {date.strftime(DATE_FORM)}\n")


def changelog(env: dict[str, str]) -> str:
    """Our CHANGELOG in Debian's form, the release of the stage on top."""
    path = TOP / "CHANGELOG"
    parts = CHANGELOG_HEAD.split(path.read_text(encoding="utf-8"))
    if len(parts) < 5:
        raise Fail(f"{shown(path)} has no entry 'VERSION-faultlineN (YYYY-MM-DD)': add one")
    entries = {f"{parts[at]}-{parts[at + 1]}": (parts[at + 2], parts[at + 3].strip("\n"))
               for at in range(1, len(parts), 4)}
    version = version_of(env)
    utc = datetime.timezone.utc
    made = datetime.datetime.fromtimestamp(int(env["SOURCE_DATE_EPOCH"]), utc)
    if version in entries:
        text = [entry(version, entries.pop(version)[1], made)]
    else:
        # A rebuild, or a kernel of another point release (UPSTREAM=).
        # Later than the release itself, by as little as can be.
        later = datetime.timedelta(seconds=int(env["RELEASE"].partition(".")[2] or 0))
        text = [entry(version, f"  * A build of kernel {env['KVER']}.", made + later)]
    for older, (date, what) in entries.items():
        if subprocess.run(["dpkg", "--compare-versions", older, "lt", version],
                          check=False).returncode == 0:
            text.append(entry(older, what, datetime.datetime.fromisoformat(f"{date}T00:00Z")))
    return "\n".join(text)


def fill(text: str, values: dict[str, str], where: str) -> str:
    """A template with its @NAMES@ replaced."""
    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise Fail(f"{where}: nothing is known of @{match[1]}@")
        return values[match[1]]
    return re.sub(r"@([A-Z_]+)@", value, text)


def write_debian(target: pathlib.Path, env: dict[str, str]) -> None:
    """Make target, a debian/ folder, for a release."""
    sysctl = TOP / "sysctl"
    if not (sysctl / "60-faultline.conf").is_file():
        raise Fail(f"{shown(sysctl)}/60-faultline.conf is missing: restore it with git")
    values = env | {"VERSION": version_of(env), "SOURCE": SOURCE,
                    "BUILD_DEPENDS": build_depends(),
                    "RUN_HOOKS": (TEMPLATES / "run-hooks.in").read_text().rstrip("\n")}
    for path in sorted(TEMPLATES.rglob("*")):
        if path.is_dir() or path.name == "run-hooks.in":
            continue
        name = path.relative_to(TEMPLATES).as_posix().replace("KVER", env["KVER"])
        new = target / name.removesuffix(".in")
        new.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".in":
            new.write_text(fill(fill(path.read_text(), values, name), values, name))
            new.chmod(path.stat().st_mode & 0o777)
        else:
            shutil.copy(path, new)
    log = changelog(env)
    (target / "changelog").write_text(log)
    if log.count("\n -- ") == 1 and version_of(env).endswith("-1"):
        for name in re.findall(r"(?m)^Package: (\S+)$", (target / "control").read_text()):
            with open(target / f"{name}.lintian-overrides", "a", encoding="utf-8") as file:
                file.write(FIRST_RELEASE)
    # debian/rules reads it: the names, the flavour that is built unless told otherwise,
    # and the date, which the changelog has only for the first build of a release.
    names = ("KVER", "RELEASE", "FLAVOUR", "SOURCE_DATE_EPOCH")
    (target / "release").write_text("".join(f"{name}={env[name]}\n" for name in names))
    shutil.copytree(sysctl, target / "faultline" / "sysctl")
