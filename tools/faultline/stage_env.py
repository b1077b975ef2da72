# SPDX-License-Identifier: GPL-2.0-only
"""The metadata of a stage, the output of tools/fl stage, for packages and tests."""

from __future__ import annotations

import re
from pathlib import Path

from .common import Fail, shown
from .flavour import ARCHES, AUDIENCE, X86, Arch
from .release import Release

# The fields of stage.env, and the form that package names require.
FORMS = {
    "UPSTREAM": r"\d+\.\d+\.\d+",
    "RELEASE": r"\d+(\.\d+)?",
    "FLAVOUR": r"[a-z][a-z0-9]*",
    "ARCH": r"[a-z0-9][a-z0-9-]*",
    "RPMARCH": r"[a-z0-9_]+",
    "SOURCE_DATE_EPOCH": r"\d+",
    # Whether there are packages with debug information, and with perf and faultline-stalls,
    # which are not cross-compiled.
    "DEBUG": r"yes|no",
    "PERF": r"yes|no",
}
# Where PERF is yes.
NATIVE = ("tools/perf", "stalls/faultline-stalls")
PARTS = ("config", "System.map", "headers/Module.symvers",
         "tools/faultline-perf", "tools/faultline-perf.1", "selftests/run",
         "bench/micro", "bench/munmap", "bench/survey", "doc/sbom.spdx.json")
MAKE_ONE = "make one with tools/fl stage FLAVOUR"
AGAIN = "make the stage again with tools/fl stage"


def image_name(env: dict[str, str]) -> str:
    """The name of the image in the stage, and in /boot before the release."""
    return ARCHES[env["ARCH"]].boot


def make_env(release: Release, flavour: str, epoch: int, debug: bool,
             arch: Arch = X86) -> dict[str, str]:
    """The contents of stage.env."""
    return {"KVER": release.kver(flavour), "UPSTREAM": release.upstream, "RELEASE": release.number,
            "FLAVOUR": flavour, "ARCH": arch.debian, "RPMARCH": arch.rpm,
            "SOURCE_DATE_EPOCH": str(epoch), "DEBUG": "yes" if debug else "no",
            "PERF": "no" if arch.cross else "yes"}


def write_env(stage: Path, env: dict[str, str]) -> None:
    """Write stage.env."""
    (stage / "stage.env").write_text("".join(f"{key}={value}\n" for key, value in env.items()),
                                     encoding="ascii")


def read_env(stage: Path) -> dict[str, str]:
    """Read and check stage.env."""
    path = stage / "stage.env"
    if not stage.is_dir():
        raise Fail(f"no stage at {shown(stage)}: {MAKE_ONE}")
    if not path.is_file():
        raise Fail(f"{shown(stage)} is not a stage (it has no stage.env): {MAKE_ONE}")
    lines = path.read_text(encoding="utf-8").splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    release = Release.parse(env.get("KVER", ""), env.get("FLAVOUR", ""), shown(path))
    for key, form in FORMS.items():
        if not re.fullmatch(form, env.get(key, "")):
            raise Fail(f"{shown(path)}: {key}={env.get(key, '')} is missing or not valid in a "
                       f"package name: {AGAIN}")
    if env["ARCH"] not in ARCHES:
        raise Fail(f"{shown(path)}: ARCH={env['ARCH']} is not {', '.join(ARCHES)}: {AGAIN}")
    if (release.upstream, release.number) != (env["UPSTREAM"], env["RELEASE"]):
        raise Fail(f"{shown(path)}: KVER does not match UPSTREAM and RELEASE: {AGAIN}")
    return env


def check_stage(stage: Path) -> dict[str, str]:
    """Check that a stage is complete and return the contents of stage.env."""
    env = read_env(stage)
    if env["FLAVOUR"] not in AUDIENCE:
        raise Fail(f"flavour {env['FLAVOUR']} has no packages: use {', '.join(AUDIENCE)}")
    if next((stage / "modules").rglob("*.ko*"), None) is None:
        raise Fail(f"flavour {env['FLAVOUR']} has no modules, so it cannot be packaged: use a "
                   "flavour with CONFIG_MODULES=y, such as generic or cloud")
    for part in (image_name(env), *PARTS, *(NATIVE if env["PERF"] == "yes" else ())):
        if not (stage / part).exists():
            raise Fail(f"{shown(stage)} has no {part}: {AGAIN}")
    if env["DEBUG"] == "yes" and not (stage / "debug/vmlinux").exists():
        raise Fail(f"{shown(stage)} has no debug/vmlinux: {AGAIN}")
    return env
