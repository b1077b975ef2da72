# SPDX-License-Identifier: GPL-2.0-only
"""The command tests/bench/run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from . import munmap
from .guest import BUILD, BenchError

_ABOUT = """\
Measure a feature in VMs and print a table. The numbers also go to
build/bench/NAME.json (--quick: build/bench/NAME-quick.json). An aim that is not
met is printed as such and is no error.
"""

_MORE = """\
Every figure is a median with its range. Without KVM, times are those of an
emulated machine on this host: compare arms of one run, not runs. Ratios (stall
to the munmap's own time) and costs (instructions, counted on one emulated CPU)
do not depend on how busy the host is.

examples:
  tests/bench/run munmap
  tests/bench/run munmap --quick
"""

_IMAGE = "arch/x86/boot/bzImage"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"{message}; see tests/bench/run --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tests/bench/run", description=_ABOUT, epilog=_MORE,
                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("benchmark", choices=["munmap"])
    parser.add_argument("--kernel", metavar="IMAGE", type=Path,
                        default=BUILD / "microvm" / _IMAGE, help="our kernel (default: microvm)")
    parser.add_argument("--stock", metavar="IMAGE", type=Path,
                        help="the same configuration without our tree (default: microvm-stock, "
                        "if it was built)")
    parser.add_argument("--config-n", metavar="IMAGE", type=Path,
                        help="our tree with CONFIG_FAULTLINE=n")
    parser.add_argument("--rounds", metavar="N", type=int, help="rounds of each measurement")
    parser.add_argument("--quick", action="store_true",
                        help="one small round, to see that it works; the figures mean little")
    return parser


def _kernels(options: argparse.Namespace) -> munmap.Kernels:
    stock = options.stock
    if stock is None and not options.quick:
        built = BUILD / "microvm-stock" / _IMAGE
        stock = built if built.exists() else None
        if stock is None:
            print("# no stock kernel (--stock): what is compared with it is left out",
                  file=sys.stderr)
    for kernel in (options.kernel, stock, options.config_n):
        if kernel is not None and not kernel.is_file():
            raise BenchError(f"no kernel {kernel}; build it with make kernel, or name another one")
    return munmap.Kernels(options.kernel, stock, options.config_n)


def _run(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    plan = munmap.QUICK if options.quick else munmap.Plan()
    if options.rounds is not None:
        if options.rounds < 1:
            raise BenchError("--rounds must be 1 or more")
        plan.rounds = plan.cost_rounds = options.rounds
    report = munmap.run(_kernels(options), plan)
    if options.quick:
        # One small round is no ground for a verdict.
        report.aims.clear()
    name = options.benchmark + ("-quick" if options.quick else "")
    path = BUILD / "bench" / f"{name}.json"
    report.write(path)
    print(report.text())
    print(f"\nwritten to {path}")


def main(arguments: list[str]) -> int:
    """Run the program and return its exit code."""
    try:
        _run(arguments)
    except BenchError as err:
        print(f"tests/bench/run: {err}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tests/bench/run: interrupted", file=sys.stderr)
        return 130
    return 0
