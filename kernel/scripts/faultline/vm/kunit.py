# SPDX-License-Identifier: GPL-2.0-only
"""Boot a kernel and print the results of its mm/faultline KUnit suites, which run at boot.

fl vm kunit KERNEL NAME [OPTION...] passes the options to `fl vm run`; logs go to build/vm/NAME.
"""
from __future__ import annotations

import subprocess
import sys

from ..common import ROOT, Paths
from .console import kunit_lines


def main() -> int:
    """Boot, and print the kernel's KUnit output."""
    kernel, name, *options = sys.argv[1:]
    out = Paths.from_env().build / "vm" / name
    status = subprocess.run(
        [ROOT / "kernel/scripts/fl", "vm", "run", "--kunit", "--quiet", "--out", out,
         "--mem", "2048", "--append", "kunit.enable=1", "--kernel", kernel, *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False).returncode
    log = out / "console.log"
    for line in kunit_lines(log.read_text("utf-8", "replace")) if log.exists() else []:
        print(line)
    return status
