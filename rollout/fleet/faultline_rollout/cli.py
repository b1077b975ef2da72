# SPDX-License-Identifier: GPL-2.0-only
"""The command line of faultline-rollout; see faultline-rollout(1)."""
from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import re
import signal
import sys
from typing import Any, NoReturn

from . import Error, experiment, trial
from .command_plan import command_plan
from .command_start import LEAD, command_start
from .command_status import command_status
from .command_stop import command_stop
from .command_trial import command_trial
from .command_verdict import command_verdict
from .terminal import printable, say_aside

USAGE = 2
# As of a program that SIGPIPE ends.
BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """One line for an error, and no option by a part of its name."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings["allow_abbrev"] = False
        super().__init__(*args, **settings)

    def error(self, message: str) -> NoReturn:
        """End with the error."""
        line = " ".join(printable(message).split())
        self.exit(USAGE, f"{self.prog}: error: {line}; see {self.prog} --help\n")


def moment(text: str) -> float:
    """A moment: seconds since 1970, or ISO 8601."""
    try:
        if re.fullmatch(r"[0-9]{1,12}(\.[0-9]*)?", text):
            return datetime.datetime.fromtimestamp(float(text)).timestamp()
        found = datetime.datetime.fromisoformat(text)
        # At the end of summer time, an hour is there twice.
        if found.tzinfo is None or not text.isascii():
            raise ValueError
        return found.timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a time with its zone: write 2026-11-23T12:00+00:00 or seconds "
            "since 1970") from None


def duration(text: str) -> str:
    """A duration that can be read."""
    try:
        experiment.seconds(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from None
    return text


def whole(text: str) -> int:
    """A whole number of seconds, up to a day."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds from 0 to 86400")
    return int(text)


def count(text: str) -> int:
    """A whole number from 1 to 1000."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 to 1000")
    return int(text)


def share(text: str) -> float:
    """A share of the hosts; 0 for none."""
    try:
        found = 0.0 if text in ("0", "0%") else experiment.fraction(text)
        if found > experiment.MAX_MISSING:
            raise ValueError(f"'{text}' is more than {experiment.MAX_MISSING:.0%}")
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from None
    return found


def pause(text: str) -> float:
    """A duration in seconds, or 0."""
    return 0 if text == "0" else experiment.seconds(duration(text))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main_parser = Parser(
        prog="faultline-rollout",
        description="A/B experiments with the switches of the Faultline kernel.",
        epilog="exit status: 0 better or equivalent, 10 worse, 20 inconclusive or not exercised, "
               "30 invalid, 2 errors")
    verbs = main_parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    path = pathlib.Path

    plan = verbs.add_parser("plan", help="make a plan from an experiment file")
    plan.add_argument("file", type=path, metavar="FILE", help="see faultline-experiment(5)")
    plan.add_argument("-o", "--output", type=path, metavar="PLAN", help="default: FILE.plan.json")
    plan.add_argument("--history", type=duration, default="7d", metavar="TIME",
                      help="how much history to replay (default: 7d)")
    plan.add_argument("--seed", default="", help="default: drawn from the system")
    plan.add_argument("--force", action="store_true", help="overwrite a plan")
    plan.set_defaults(run=command_plan)

    ring = verbs.add_parser("trial", help="take the fleet to another kernel, ring by ring")
    ring.add_argument("kernel", metavar="KERNEL",
                      help="what uname -r prints, or newest: the newest one that all hosts have")
    ring.add_argument("file", type=path, metavar="FILE",
                      help="the experiment file, for inventory, transport and alerts")
    ring.add_argument("--rings", default=trial.RINGS, metavar="LIST",
                      help="hosts that have it after each ring (default: %(default)s)")
    ring.add_argument("--soak", type=pause, default="10min", metavar="TIME",
                      help="how long a ring has to do well before the kernel becomes its "
                           "default (default: 10min)")
    ring.add_argument("--max-unavailable", default=trial.MAX_UNAVAILABLE, metavar="COUNT",
                      help="how many hosts may be down at once, and the same share of each "
                           "stratum (default: %(default)s, and always one)")
    ring.add_argument("--retry-failed", action="store_true",
                      help="hosts that failed boot the kernel again")
    ring.add_argument("--wait", type=duration, default="20min", metavar="TIME",
                      help="how long a host may take to come back (default: 20min)")
    ring.add_argument("--every", type=whole, default=10, metavar="SECONDS",
                      help="pause between looks (default: 10)")
    ring.add_argument("--reboot", default=trial.REBOOT, metavar="COMMAND",
                      help=f"how a host reboots (default: {trial.REBOOT})")
    ring.add_argument("--no-promote", action="store_true",
                      help="the next boot is the old default again")
    ring.add_argument("--dry-run", action="store_true", help="show the rings, change nothing")
    ring.set_defaults(run=command_trial)

    start = verbs.add_parser("start", help="start a plan on its hosts")
    start.add_argument("plan", type=path, metavar="PLAN")
    start.add_argument("--dry-run", action="store_true", help="check everything, change nothing")
    start.add_argument("--lead", type=whole, metavar="SECONDS",
                       help="time to reach all hosts before slot 0 (default: "
                       f"{LEAD}, or twice as long as their check takes)")
    start.add_argument("--allow-missing", type=share, metavar="PERCENT",
                       help="start without so many hosts, if they cannot be reached")
    start.add_argument("--no-canary", action="store_true",
                       help="start on half of the fleet at once")
    start.add_argument("--every", type=whole, default=15, metavar="SECONDS",
                       help="pause between looks at the canary (default: 15)")
    start.set_defaults(run=command_start)

    status = verbs.add_parser("status", help="show how it is going")
    status.add_argument("plan", type=path, metavar="PLAN")
    status.add_argument("--watch", action="store_true", help="again and again, until the end")
    status.add_argument("--every", type=whole, default=60, metavar="SECONDS",
                        help="pause between looks (default: 60)")
    status.add_argument("--stop-on-harm", action="store_true",
                        help="stop everywhere if b does harm, or a host in arm b crashes")
    status.add_argument("--blind", type=count, default=3, metavar="LOOKS",
                        help="with --stop-on-harm, also after so many looks without values "
                        "(default: 3)")
    status.add_argument("--no-hosts", action="store_true",
                        help="ask Prometheus only, not the hosts")
    status.add_argument("--detach", action="store_true",
                        help="watch as a unit of systemd, which a logout does not end")
    status.set_defaults(run=command_status)

    verdict = verbs.add_parser("verdict", help="judge an experiment")
    verdict.add_argument("plan", type=path, metavar="PLAN")
    verdict.add_argument("--plot", type=path, action="append", default=[], metavar="FILE",
                         help="write a plot, .svg or .png")
    verdict.add_argument("--html", type=path, metavar="FILE", help="write a page")
    verdict.set_defaults(run=command_verdict)

    stop = verbs.add_parser("stop", help="set every host back; needs no Prometheus")
    stop.add_argument("plan", type=path, nargs="?", metavar="PLAN")
    stop.add_argument("--inventory", type=path, metavar="FILE",
                      help="without a plan: the hosts, see faultline-experiment(5)")
    stop.add_argument("--name", metavar="NAME", help="the experiment, with --inventory")
    stop.add_argument("--all", action="store_true", help="every experiment, with --inventory")
    stop.set_defaults(run=command_stop)

    for verb in (start, status, stop):
        verb.add_argument("--parallel", type=count, default=0, metavar="NUMBER",
                          help="hosts at a time (default: that of the configuration, or 32)")
        verb.add_argument("--accept-transport", action="store_true",
                          help="run the command of transport that the plan names")

    for verb in (plan, status, verdict):
        verb.add_argument("--json", action="store_true", help="for programs")
        verb.add_argument("--at", type=moment, metavar="TIME",
                          help="as if it were that time: values after it do not count")
    for verb in (status, verdict):
        verb.add_argument("--start", type=moment, metavar="TIME",
                          help="when slot 0 began, if PLAN.run.json is lost")
    return main_parser


def _drop_output() -> None:
    """Keep Python from writing again at exit, and failing with lines and a status of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> int:
    """Run a command; returns the exit status."""
    args = parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The terminal is gone; with nohup it is ignored.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except Error as err:
        say_aside(f"faultline-rollout: error: {err}")
        return USAGE
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as err:
        say_aside(f"faultline-rollout: error: {err}")
        _drop_output()
        return USAGE
    except KeyboardInterrupt:
        print("faultline-rollout: interrupted", file=sys.stderr)
        return 130
