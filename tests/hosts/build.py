# SPDX-License-Identifier: GPL-2.0-only
"""Build the disks of the test hosts, build/images/DISK.raw, with mkosi if an input changed.

It needs root and a network. The output of mkosi goes to build/log/image-*.log.
"""

import argparse

from faultline.common import Paths, say, shown
from .image import DISKS, Images


def main() -> None:
    """Build the named disks."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("disk", nargs="*", metavar="DISK", help=", ".join(DISKS))
    args = parser.parse_args()
    if wrong := set(args.disk) - set(DISKS):
        parser.error(f"no disk '{wrong.pop()}': give {', '.join(DISKS)}")
    images = Images(Paths.from_env())
    for disk in args.disk or DISKS:
        say(shown(images.build(disk)))
