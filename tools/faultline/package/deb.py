# SPDX-License-Identifier: GPL-2.0-only
"""Build the Debian packages of a stage.

STAGE is the output of `fl stage`, such as build/stage/microvm; the
packages, a .changes and a .buildinfo go to OUTDIR.  They are byte-for-byte
reproducible.  After a failure OUTDIR is unchanged.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import tempfile

from ..common import Fail, Paths, logged, say, shown
from ..stage_env import check_stage
from .debtree import STAGE_PROFILE, version_of, write_debian

# Settings of dpkg-deb, for throw-away packages: gzip is 20 times as fast as xz.
KEPT = ("TMPDIR", "DPKG_DEB_COMPRESSOR_TYPE", "DPKG_DEB_COMPRESSOR_LEVEL")
LOGS = Paths.from_env().build / "log"


def environment(env: dict[str, str], stage: pathlib.Path, home: pathlib.Path) -> dict[str, str]:
    """An environment from which nothing of the caller's can leak into a package."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), "LC_ALL": "C.UTF-8",
            "TZ": "UTC", "SOURCE_DATE_EPOCH": env["SOURCE_DATE_EPOCH"],
            "FAULTLINE_STAGE": str(stage),
            **{key: os.environ[key] for key in KEPT if key in os.environ}}


def dpkg_buildpackage(tree: pathlib.Path, env: dict[str, str], stage: pathlib.Path) -> None:
    """Run dpkg-buildpackage in tree; the packages appear beside it."""
    for tool, package in (("dpkg-buildpackage", "dpkg-dev"), ("dh", "debhelper")):
        if not shutil.which(tool):
            raise Fail(f"{tool} (package {package}) is not installed: run 'make deps'")
    log = LOGS / f"deb-{env['KVER']}-{env['FLAVOUR']}.log"
    log.unlink(missing_ok=True)
    # Without the hook, .buildinfo and .changes would differ each time.
    logged("dpkg-buildpackage", log, "dpkg-buildpackage", "-b", "-us", "-uc", "-ui",
           f"-P{STAGE_PROFILE}", f"--host-arch={env['ARCH']}",
           "--hook-changes=sed -i /^Build-Date:/d ../*.buildinfo",
           cwd=tree, env=environment(env, stage, tree.parent))


def build(stage: pathlib.Path, out: pathlib.Path) -> list[pathlib.Path]:
    """Build the packages in out and return their files."""
    env = check_stage(stage)
    os.umask(0o022)
    existed = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    done = False
    try:
        # On the same file system as out, so that moving the packages is a rename.
        with tempfile.TemporaryDirectory(prefix=".deb-build-", dir=out) as work:
            tree = pathlib.Path(work) / "tree"
            write_debian(tree / "debian", env)
            dpkg_buildpackage(tree, env, stage)
            made = sorted(path for path in pathlib.Path(work).iterdir() if path.is_file())
            for path in made:
                path.replace(out / path.name)
        done = True
    finally:
        if not done and not existed:
            out.rmdir()
    say(f"{shown(out)}: linux-faultline {version_of(env)} ({env['FLAVOUR']}), "
        f"{sum(path.suffix == '.deb' for path in made)} packages")
    return [out / path.name for path in made]


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=pathlib.Path, metavar="STAGE")
    parser.add_argument("outdir", type=pathlib.Path, metavar="OUTDIR")
    args = parser.parse_args()
    build(args.stage.resolve(), args.outdir.resolve())
