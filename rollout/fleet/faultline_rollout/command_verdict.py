# SPDX-License-Identifier: GPL-2.0-only
"""The command verdict: judge an experiment."""
from __future__ import annotations

import argparse
import json
import math

from . import Error, design, report
from .run import started, until
from .terminal import say
from .verdict import collect, judge


def command_verdict(args: argparse.Namespace) -> int:
    """Judge an experiment."""
    plan = design.read(args.plan)
    for path in args.plot:
        if path.suffix not in report.FORMATS:
            raise Error(f"--plot {path}: the name must end in {' or '.join(report.FORMATS)}")
    start = started(args.plan, plan) if args.start is None else args.start
    data = collect(plan, start, until(args.plan, args.at))
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
    say(f"  {report.sentence(result)}")
    for reason in result.reasons:
        say(f"  {reason}")
    for guard in result.guards:
        if math.isfinite(guard.effect):
            say(f"  guard {guard.name}: {report.percent(guard.effect)}, {guard.state}")
    if result.mechanism:
        say("  mechanism: " + ", ".join(f"{value:.4g} in arm {arm}"
                                        for arm, value in result.mechanism.items()))
    say(f"  {report.MEANING[result.verdict]}")
    return result.exit_status
