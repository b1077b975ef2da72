# SPDX-License-Identifier: GPL-2.0-only
"""Build the RPM packages of a stage (see `fl stage`).

It needs no root and leaves nothing behind.  Packages of other versions in
OUTDIR are kept; either all packages of this version are written, or none.
"""
from __future__ import annotations

import argparse
import pathlib

from ..common import ROOT, Fail
from ..flavour import ARCHES
from ..release import changelog
from ..stage_env import check_stage
from . import rpmtool


def build(stage: pathlib.Path, out: pathlib.Path) -> None:
    """Build the packages in out."""
    values = check_stage(stage)
    if not ARCHES[values["ARCH"]].uefi:
        raise Fail(f"there are no RPM packages for {values['RPMARCH']}: make DEB packages with "
                   f"`make deb FLAVOUR={values['FLAVOUR']}`")
    macros = {
        "stage": str(stage), "repo": str(ROOT),
        "kver": values["KVER"], "upstream": values["UPSTREAM"],
        "faultline_release": values["RELEASE"], "flavour": values["FLAVOUR"],
        "epoch_seconds": values["SOURCE_DATE_EPOCH"], "debug": values["DEBUG"],
        "perf": values["PERF"],
    }
    changes = rpmtool.changes(changelog(stage / "doc/CHANGELOG"), values["RELEASE"])
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    with rpmtool.workspace(out) as work:
        spec = rpmtool.write_spec(work, "", changes)
        rpmtool.rpmbuild(work, values["SOURCE_DATE_EPOCH"], "-bb",
                         "--target", f"{values['RPMARCH']}-linux", *defines, str(spec))
        rpmtool.publish(list((work / "RPMS").rglob("*.rpm")), out)


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=pathlib.Path, help="such as build/stage/microvm")
    parser.add_argument("outdir", type=pathlib.Path, help="output folder for the .rpm files")
    args = parser.parse_args()
    build(args.stage.absolute(), args.outdir.absolute())
