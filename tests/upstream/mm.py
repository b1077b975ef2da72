# SPDX-License-Identifier: GPL-2.0-only
"""Upstream's mm selftests give the same results as on stock, with our switches off and on.

It runs upstream's run_vmtests.sh, unchanged.  FULL=1 adds an arm with all switches on.
"""

import os
import re
import sys

from faultline.common import flag, logged
from faultline.vm.guest import Job
from .arms import BUILD, HERE, Arm, Boot, boot, ours
from .compare import Load, compare
from .results import read_vmtests

TREE = BUILD / "tree"
OUT = BUILD / "upstream"
PROGRAMS = OUT / "mm"
LOG = BUILD / "log/upstream.log"
# Commands that run_vmtests.sh needs besides those of busybox; bash is included automatically.
COMMANDS = ("killall", "pgrep")
# Time limit of a VM.
SECONDS = 2400
# The userfaultfd tests have threads that constantly wake each other: with two machines on a host
# with two CPUs, they took eight times as long.
JOBS = 1


def make(*command: str) -> None:
    """Run a step of the build."""
    logged("building the selftests", LOG, *command)


def build() -> None:
    """Compile the selftests like upstream, in a copy, as they write to their own folder."""
    source = OUT / "source"
    selftests = source / "tools/testing/selftests"
    for folder in (selftests, LOG.parent):
        folder.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    for name in ("include", "lib", "mm", "tools/include"):
        link = source / name
        link.unlink(missing_ok=True)
        link.symlink_to(TREE / name)
    origin = TREE / "tools/testing/selftests"
    make("rsync", "-a", "--exclude=local_config.*", str(origin / "mm"), str(origin / "x86"),
         *map(str, (*origin.glob("*.h"), *origin.glob("*.mk"))), f"{selftests}/")
    # The one in 6.12.117 uses KSFT_SKIP without including its definition.
    khugepaged = selftests / "mm/khugepaged.c"
    text = khugepaged.read_text(encoding="utf-8")
    if "KSFT_SKIP" in text and "kselftest.h" not in text:
        khugepaged.write_text('#include "../kselftest.h"\n' + text, encoding="utf-8")

    headers = OUT / "headers"
    make("make", "-s", "-C", str(TREE), f"O={headers}", "headers")
    (OUT / "objects").mkdir(exist_ok=True)
    make("make", f"-j{os.cpu_count()}", "-C", str(selftests / "mm"), "install",
         f"OUTPUT={OUT / 'objects'}", f"INSTALL_PATH={PROGRAMS}",
         f"KHDR_INCLUDES=-isystem {headers}/usr/include")


def categories() -> list[str]:
    """The categories of run_vmtests.sh, in the order in which it names them."""
    script = (PROGRAMS / "run_vmtests.sh").read_text(encoding="utf-8")
    return list(dict.fromkeys(re.findall(r'CATEGORY="(\w+)"', script)))


def run(arm: Arm, name: str, groups: list[str]) -> Boot:
    """Run categories on an arm."""
    files = [str(HERE / "guest/vmtests.sh"), f"{HERE / 'guest/sudo.sh'}:/bin/sudo", str(PROGRAMS),
             *(f"/usr/bin/{command}:/bin/{command}" for command in COMMANDS)]
    # Some tests need two memory nodes.
    return boot(arm, name, Job(["vmtests.sh", *groups], files), mem=4096, timeout=SECONDS,
                append="numa=fake=2")


def main() -> None:
    """Build and compare."""
    build()
    sys.exit(compare(Load("mm", categories(), run, read_vmtests, JOBS), ours(flag("FULL"))))
