# SPDX-License-Identifier: GPL-2.0-only
"""Build the disks of the test hosts, build/images/FORMAT.raw, with mkosi if an input changed.

It needs root and a network. The output of mkosi goes to build/log/image-*.log.
"""

import argparse

from ..common import Paths, say, shown
from .image import FORMATS, Images


def main() -> None:
    """Build the named disks."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("format", nargs="*", metavar="FORMAT", help=" or ".join(FORMATS))
    args = parser.parse_args()
    if wrong := set(args.format) - set(FORMATS):
        parser.error(f"no format '{wrong.pop()}': give {' or '.join(FORMATS)}")
    images = Images(Paths.from_env())
    for package_format in args.format or FORMATS:
        say(shown(images.build(package_format)))
