# SPDX-License-Identifier: GPL-2.0-only
"""Tell a shell script about a flavour: lab flavour WHAT FLAVOUR."""
from __future__ import annotations

import argparse

from faultline.flavour import FLAVOURS, PATHS


def main() -> None:
    """Print the path of its kernel image or of its selftests, or the variables for make."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("image", "selftests", "make"))
    parser.add_argument("flavour", choices=FLAVOURS, metavar="FLAVOUR")
    args = parser.parse_args()
    flavour = FLAVOURS[args.flavour]
    if args.what == "make":
        for variable in flavour.arch.variables.items():
            print("=".join(variable))
    else:
        print(flavour.image if args.what == "image" else PATHS.build / flavour.arch.selftests)
