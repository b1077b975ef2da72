# SPDX-License-Identifier: GPL-2.0-only
"""The command verdict: judge an experiment."""
from __future__ import annotations

import argparse
import json

from . import Error, design, report
from .measured import collect
from .run import absent, leave_out, refuse_input, run_path, started, until
from .terminal import say
from .verdict import judge


def command_verdict(args: argparse.Namespace) -> int:
    """Judge an experiment."""
    plan = design.read(args.plan)
    for path in args.plot:
        if path.suffix not in report.FORMATS:
            raise Error(f"--plot {path}: the name must end in {' or '.join(report.FORMATS)}")
    for option, path in [*(("--plot", path) for path in args.plot), ("--html", args.html)]:
        if path:
            refuse_input(option, path, args.plan, run_path(args.plan))
    if args.html and args.html.suffix not in (".html", ".htm"):
        raise Error(f"--html {args.html}: the name must end in .html")
    start = started(args.plan, plan) if args.start is None else args.start
    data = leave_out(plan, collect(plan, start, until(args.plan, args.at)), absent(args.plan))
    result = judge(plan, data)
    for path in args.plot:
        report.save_plot(path, plan, data, result)
    if args.html:
        report.save_page(args.html, plan, data, result)
    if args.json:
        say(json.dumps({"name": plan.experiment.name, "plan": plan.digest, "start": start,
                        **result.to_json()}))
        return result.exit_status
    say(f"{plan.experiment.name}: {result.verdict}")
    for line in report.lines(result):
        say(f"  {line}")
    return result.exit_status
