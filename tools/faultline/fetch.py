# SPDX-License-Identifier: GPL-2.0-only
"""Fetch the pinned kernel source (kernel/upstream) into build/cache.

The package comes from the Debian mirrors in the host's apt sources, through apt's signed
metadata and a private apt configuration below build/cache/apt; the host's apt is not
touched, and root is not needed. An interrupted download resumes where it stopped.
"""

import argparse

from .apt import Apt
from .common import Paths, say
from .pin import Pin
from .source import ENVIRONMENT, choose, describe, obtain


def main() -> None:
    """Fetch, or list the available versions."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true",
                        help="list the versions in the registry, newest first")
    args = parser.parse_args()
    paths = Paths.from_env()
    if args.list:
        pin = Pin.load(paths.kernel)
        package = Apt(paths).package(pin.package, pin.series)
        package.find("latest")
        for there in package.pins:
            say(there.version + (" (the pin)" if there == pin else ""))
        return
    say(describe(obtain(paths, choose(paths))))
