# SPDX-License-Identifier: GPL-2.0-only
"""Make the .config of a flavour from its fragments.

A fragment line that does not take effect is an error, and so is a symbol
that no Kconfig file defines or that a fragment sets twice.  An unchanged
.config is not rewritten, so that nothing is rebuilt.
"""
from __future__ import annotations

import argparse

from .common import lock, say, shown
from .flavour import FLAVOURS, check_symbols, configure, find, tree_state


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true",
                        help="only check the fragments; change nothing")
    parser.add_argument("flavour", help=", ".join(FLAVOURS))
    args = parser.parse_args()
    flavour = find(args.flavour)
    tree = tree_state(flavour)
    if args.lint:
        check_symbols(flavour)
        return
    with lock(flavour.lock):
        changed = configure(flavour, tree)
    say(f"{flavour.name}: {shown(flavour.config)} "
        f"{'written' if changed else 'is up to date'}")
