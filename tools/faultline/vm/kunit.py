# SPDX-License-Identifier: GPL-2.0-only
"""Boot a kernel and print the results of its mm/faultline KUnit suites, which run at boot."""
from __future__ import annotations

import argparse
import os

from ..common import Paths
from . import cli
from .console import kunit_lines


def main() -> int:
    """Boot, and print the kernel's KUnit output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", metavar="KERNEL")
    parser.add_argument("name", metavar="NAME", help="logs go to build/vm/NAME")
    parser.add_argument("options", metavar="OPTION", nargs=argparse.REMAINDER,
                        help="options of `fl vm run`")
    args = parser.parse_args()
    out = Paths.from_env().build / "vm" / args.name
    with open(os.devnull, "wb") as nowhere:
        status = cli.call(
            ["--kunit", "--quiet", "--out", str(out), "--mem", "2048",
             "--append", "kunit.enable=1", "--kernel", args.kernel, *args.options], nowhere)
    log = out / "console.log"
    for line in kunit_lines(log.read_text("utf-8", "replace")) if log.exists() else []:
        print(line)
    return status
