# SPDX-License-Identifier: GPL-2.0-only
"""The command plan: replay the design on the history, and write the plan."""
from __future__ import annotations

import argparse
import json

from . import Error, design, experiment, planning
from .conditions import hosts_of
from .experiment import in_words
from .run import read_run, refuse_input, run_path
from .terminal import Progress, say, say_aside


def command_plan(args: argparse.Namespace) -> int:
    """Make a plan."""
    exp, source = experiment.load(args.file)
    out = args.output or args.file.with_suffix(".plan.json")
    refuse_input("-o", out, args.file, args.file.parent / exp.inventory)
    if out.suffix != ".json":
        raise Error(f"-o {out}: the name of a plan ends in .json")
    for window in exp.blackout:
        if window.over:
            say_aside(f"warning: blackout: '{window.text}' is over")
    if out.exists() and not args.force:
        raise Error(f"{out} exists: a plan is registered once; use --force, or another name")
    if run_path(out).exists() and "stopped" not in read_run(out):
        raise Error(f"{out} was started, says {run_path(out)}: run `faultline-rollout stop {out}` "
                    "first, or use another name")
    hosts = hosts_of(args.file, exp)
    plan, tried = planning.make(exp, source, hosts, seconds=experiment.seconds(args.history),
                                end=args.at, seed=args.seed,
                                tell=Progress("replays", planning.REPLAYS))
    chosen = tried[-1]
    design.write(out, plan.text())
    # The run file of an earlier plan with this name.
    run_path(out).unlink(missing_ok=True)
    flips = max(planning.flips(arms) for arms in plan.arms.values())
    if args.json:
        say(json.dumps({"plan": str(out), "sha256": plan.digest, "hosts": len(plan.hosts),
                        "slots": plan.slots, "seconds": plan.seconds, "flips": flips,
                        **plan.notes}))
        return 0
    say(f"{exp.name}: {exp.switch} {exp.a} (a) against {exp.b} (b), {exp.design}, "
        f"{len(plan.hosts)} hosts in {len(set(plan.strata.values()))} strata")
    say(f"  history            {in_words(plan.notes['history_seconds'])}")
    for noise in tried:
        say(f"  {in_words(noise.slots * exp.slot):<18} noise floor {noise.floor:.2%}, "
            f"detects {noise.detectable:.2%}")
    say(f"  chosen             {in_words(plan.seconds)}, at most {flips} flips per host")
    say(f"  A/A false verdicts {chosen.false_rate:.1%} of {planning.REPLAYS} replays")
    if chosen.detectable > exp.primary.margin:
        say(f"  warning: effects below {chosen.detectable:.2%} may stay INCONCLUSIVE, and the "
            f"margin is {exp.primary.margin:.2%}: use more hosts, or more history and time")
    say(f"{out} is written; next: faultline-rollout start {out} --dry-run")
    return 0
