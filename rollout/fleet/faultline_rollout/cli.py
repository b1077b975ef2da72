# SPDX-License-Identifier: GPL-2.0-only
"""The command faultline-rollout; see faultline-rollout(1)."""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import pathlib
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import Error, design, experiment, planning, report, trial
from .design import Plan
from .experiment import in_words
from .hosts import Answer, Host, Transport, inventory, with_file
from .prometheus import Prometheus
from .verdict import Result, collect, crashed_in_b, judge

USAGE = 2
# Between `start` and slot 0, so that all hosts have the plan in time.
LEAD = 120
# Between the change of a switch and the first restart of a service, in seconds.
RESTART = 20
CLOCK_SECONDS = 2
LOCK_SECONDS = 15
MISSING = 127
UNREACHABLE = 255
UNFINISHED = ("has not finished: if it does not run any more, use `faultline-rollout stop {}`, "
              "and start it again")


class Progress:
    """A bar on a terminal; nothing elsewhere."""

    WIDTH = 30

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = max(1, total)
        self._on = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        if not self._on:
            return
        full = self.WIDTH * done // self._total
        end = "\n" if done >= self._total else ""
        print(f"\r{self._title} [{'#' * full}{'.' * (self.WIDTH - full)}] {done}/{self._total}",
              end=end, file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def say_aside(text: str) -> None:
    """The same, where it does not disturb output for programs."""
    print(text, file=sys.stderr, flush=True)


def local_time(moment: float) -> str:
    """A moment for people."""
    return datetime.datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


# --- The time of the start, beside the plan

def run_path(plan: pathlib.Path) -> pathlib.Path:
    """The file that says when a plan was started."""
    return plan.with_suffix(".run.json")


def _moment(value: Any) -> float:
    """A time in a file; ValueError if it is not a time."""
    found = float(value)
    datetime.datetime.fromtimestamp(found)
    return found


def started(path: pathlib.Path, plan: Plan) -> float:
    """When slot 0 of a plan began."""
    place = run_path(path)
    try:
        run = json.loads(place.read_text(encoding="utf-8"))
        digest, start = run["plan"], _moment(run["start"])
    except FileNotFoundError:
        raise Error(f"{path} has not been started: there is no {place}") from None
    except (OSError, ValueError, OverflowError, KeyError, TypeError):
        raise Error(f"{place} cannot be read: delete it, and give --start, which "
                    "`faultline-ab status --json` on a host shows") from None
    if digest != plan.digest:
        raise Error(f"{place} belongs to another plan: was {path} made again after the start?")
    return start


def until(path: pathlib.Path, at: float | None) -> float | None:
    """The time until which values count: after a stop, hosts do not follow the plan."""
    try:
        ended = _moment(json.loads(run_path(path).read_text(encoding="utf-8"))["stopped"])
    except (OSError, ValueError, OverflowError, KeyError, TypeError):
        return at
    return ended if at is None else min(at, ended)


@contextlib.contextmanager
def _alone(path: pathlib.Path) -> Iterator[None]:
    """Keep other commands from changing what is known of a plan, each for a moment."""
    end = time.monotonic() + LOCK_SECONDS
    with open(path, "rb") as file:
        # A stop goes on even if another command hangs.
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                # The file system has no locks.
                break
        yield


def _note_stop(path: pathlib.Path) -> None:
    """Write the time of the first stop of a plan that was started."""
    place = run_path(path)
    try:
        with _alone(path):
            run = json.loads(place.read_text(encoding="utf-8"))
            if "stopped" not in run:
                design.write(place, json.dumps({**run, "stopped": int(time.time())}) + "\n")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, Error) as err:
        say(f"warning: {place} does not say when it was stopped ({err}): give verdict --at")


def _note_complete(path: pathlib.Path) -> bool:
    """Write when all hosts had the plan, without which the start was interrupted.

    False if it was stopped meanwhile.
    """
    with _alone(path):
        run = _read_run(path)
        if not run or "stopped" in run:
            return False
        design.write(run_path(path), json.dumps({**run, "complete": int(time.time())}) + "\n")
    return True


def _read_run(path: pathlib.Path) -> dict[str, Any]:
    """The run file of a plan; empty if it cannot be read."""
    try:
        run = json.loads(run_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return run if isinstance(run, dict) else {}


def unfinished(path: pathlib.Path) -> bool:
    """Whether a start has not reached all hosts, and nothing was stopped yet."""
    run = _read_run(path)
    return bool(run) and "complete" not in run and "stopped" not in run


def _check_not_started(path: pathlib.Path) -> None:
    """A plan runs once; only after an interrupted start and a stop it may start again."""
    place = run_path(path)
    if not place.exists():
        return
    if unfinished(path):
        raise Error(f"{path} was already started, but that start {UNFINISHED.format(path)}")
    run = _read_run(path)
    if not run or "complete" in run:
        raise Error(f"{path} was already started: there is {place}; make a new plan for another "
                    "run")


def _hosts_of(file: pathlib.Path, exp: experiment.Experiment) -> list[Host]:
    """The hosts of an experiment file."""
    hosts = inventory(file.parent / exp.inventory)
    if len(hosts) > exp.max_hosts:
        raise Error(f"the inventory has {len(hosts)} hosts, and max_hosts is {exp.max_hosts}")
    return hosts


def _firing(exp: experiment.Experiment) -> str:
    """The alerts of an experiment file that fire now; warns of names that can never fire."""
    if not exp.alerts:
        return ""
    server = Prometheus(exp.prometheus, exp.host_label)
    for alert in server.unknown(exp.alerts):
        say_aside(f"warning: alerts: no rule of {exp.prometheus} is named {alert}")
    return ", ".join(server.firing(exp.alerts))


def _blackout(exp: experiment.Experiment, first: float, last: float) -> str:
    """The blackout that a time would run into, in words; nothing if there is none."""
    for begin, end in exp.blackout:
        if begin < last and first < end:
            return f"the blackout from {local_time(begin)} to {local_time(end)}"
    return ""


# --- plan

def command_plan(args: argparse.Namespace) -> int:
    """Make a plan."""
    exp, source = experiment.load(args.file)
    out = args.output or args.file.with_suffix(".plan.json")
    if out.exists() and not args.force:
        raise Error(f"{out} exists: a plan is registered once; use --force, or another name")
    if run_path(out).exists() and "stopped" not in _read_run(out):
        raise Error(f"{out} was started, says {run_path(out)}: run `faultline-rollout stop {out}` "
                    "first, or use another name")
    hosts = _hosts_of(args.file, exp)
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


# --- trial

def command_trial(args: argparse.Namespace) -> int:
    """Take a fleet to another kernel, ring by ring."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*", args.kernel):
        raise Error(f"'{args.kernel}' is not a kernel release: write what uname -r prints")
    exp, _ = experiment.load(args.file)
    hosts = _hosts_of(args.file, exp)

    def hold(step: str, reboots: bool) -> None:
        if reboots and (blackout := _blackout(exp, time.time(), time.time() + work.wait)):
            raise Error(f"{step} would run into {blackout}, and was not started")
        if firing := _firing(exp):
            raise Error(f"these alerts fire: {firing}: {step} was not started")

    work = trial.Trial(
        args.kernel, hosts, Transport(exp.transport), args.reboot, experiment.seconds(args.wait),
        args.every, args.soak, trial.share(args.max_unavailable, len(hosts)),
        lambda host: "/".join(host.facts.get(key, "") for key in exp.strata),
        args.retry_failed, say, hold)
    if args.kernel == trial.NEWEST:
        work.kernel = trial.newest(work.ask(hosts))
    work.hosts = trial.order(work.kernel, hosts)
    sizes = trial.rings(args.rings, len(hosts))
    if args.dry_run:
        states = work.ask(hosts)
        for number, (first, last) in enumerate(zip([0, *sizes], sizes), start=1):
            say(f"ring {number}: " + ", ".join(
                f"{host.name} ({states[host.name].kind})" for host in work.hosts[first:last]))
        say("Nothing was changed.")
        return 0
    for number, (first, last) in enumerate(zip([0, *sizes], sizes), start=1):
        if problems := work.ring(number, first, last, not args.no_promote):
            say(f"ring {number} failed, no other host was touched:")
            for problem in problems:
                say(f"  {problem}")
            return 10
    say(f"{work.kernel}: {sizes[-1]} of {len(hosts)} hosts have it"
        + ("; it is not their default" if args.no_promote else ""))
    return 0


# --- start

def _explain(answer: Answer) -> str:
    if answer.status == MISSING:
        return f"{answer.host.name}: faultline-ab is not there: install faultline-host"
    if answer.status == UNREACHABLE:
        return f"{answer.host.name}: cannot be reached: {answer.reason}"
    return f"{answer.host.name}: {answer.reason}"


def _check_hosts(plan: Plan, start: int, transport: Transport) -> list[str]:
    """Ask each host whether it can take part; returns the problems."""
    option = " --isolated-cpus" if plan.experiment.isolated_cpus else ""
    command = with_file(f'date +%s; faultline-ab start --dry-run{option} "$f"')
    problems = []
    for answer in transport.everywhere(
            plan.hosts, lambda host: (command, design.host_file(plan, host, start)),
            Progress("check", len(plan.hosts))):
        if answer.status:
            problems.append(_explain(answer))
            continue
        clock = answer.out.partition("\n")[0]
        if not clock.isdecimal() or not answer.asked - CLOCK_SECONDS <= float(clock) \
                <= answer.answered + CLOCK_SECONDS:
            problems.append(f"{answer.host.name}: its clock says '{clock}', and here it is "
                            f"{answer.answered:.0f}: synchronise clocks")
    return sorted(problems)


def _check_time(plan: Plan, start: int) -> None:
    exp = plan.experiment
    if blackout := _blackout(exp, start, start + plan.seconds):
        raise Error(f"the experiment would run into {blackout}: start it at another time")
    if firing := _firing(exp):
        raise Error(f"these alerts fire: {firing}: start when they do not")


def _check(plan: Plan, start: int, transport: Transport) -> None:
    """Check whether a plan can be started at a time."""
    _check_time(plan, start)
    problems = _check_hosts(plan, start, transport)
    if problems:
        raise Error(f"nothing was changed; {len(problems)} of {len(plan.hosts)} hosts cannot take "
                    "part:\n  " + "\n  ".join(problems))


def _stop_hosts(name: str, hosts: tuple[Host, ...], transport: Transport,
                restart: bool = False) -> list[str]:
    """Stop an experiment; returns the problems."""
    command = f"faultline-ab stop {name}"
    if restart:
        command = f"systemctl stop faultline-ab-restart-{name}.timer 2>/dev/null; {command}"
    problems = []
    for answer in transport.everywhere(hosts, lambda host: (command, ""),
                                       Progress("stop", len(hosts))):
        if answer.status:
            problems.append(f"{_explain(answer)}; it ends by itself when it expires, and by a "
                            "reboot")
    return sorted(problems)


def _set_back(path: pathlib.Path, plan: Plan, transport: Transport) -> list[str]:
    """Undo a start; returns the problems."""
    exp = plan.experiment
    # In case that this is killed.
    _note_stop(path)
    problems = _stop_hosts(exp.name, plan.hosts, transport, bool(exp.restart))
    if problems:
        return [*problems, f"use `faultline-rollout stop {path}` when they can be reached"]
    run_path(path).unlink(missing_ok=True)
    return []


def _push(path: pathlib.Path, plan: Plan, start: int, transport: Transport) -> None:
    """Start on every host, or on none."""
    exp = plan.experiment
    option = " --isolated-cpus" if exp.isolated_cpus else ""

    def command(host: Host) -> tuple[str, str]:
        text = f'faultline-ab start{option} "$f"'
        if exp.restart:
            # One after the other, within the first washout.
            share = plan.hosts.index(host) / len(plan.hosts)
            when = datetime.datetime.fromtimestamp(
                start + RESTART + share * max(0, exp.washout - 2 * RESTART), datetime.timezone.utc)
            text += (f" && systemd-run --quiet --unit=faultline-ab-restart-{exp.name} "
                     f"--on-calendar='{when:%Y-%m-%d %H:%M:%S} UTC' "
                     f"systemctl restart {shlex.quote(exp.restart)}")
        return with_file(text), design.host_file(plan, host, start)

    problems: list[str] = []
    try:
        for answer in transport.everywhere(
                plan.hosts, command, Progress("start", len(plan.hosts))):
            if answer.status:
                problems.append(_explain(answer))
        if not problems and time.time() > start:
            problems.append(f"slot 0 began at {local_time(start)}, before all hosts had the "
                            "plan: use a longer --lead")
        if not problems and not _note_complete(path):
            problems.append("it was stopped meanwhile")
    except BaseException:
        say("interrupted: every host is set back")
        for problem in _set_back(path, plan, transport):
            say(f"  {problem}")
        raise
    if problems:
        left = _set_back(path, plan, transport)
        raise Error(f"not started, {'not every' if left else 'every'} host was set back:\n  "
                    + "\n  ".join(sorted(problems) + left))


def command_start(args: argparse.Namespace) -> int:
    """Start a plan on all its hosts."""
    plan = design.read(args.plan)
    exp = plan.experiment
    transport = Transport(exp.transport)
    start = (int(time.time()) + args.lead + 59) // 60 * 60
    end = start + plan.seconds
    if args.dry_run:
        _check(plan, start, transport)
        say(f"{exp.name} would run from {local_time(start)} to {local_time(end)} on "
            f"{len(plan.hosts)} hosts. Nothing was changed.")
        return 0
    place = run_path(args.plan)
    with _alone(args.plan):
        _check_not_started(args.plan)
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        # Before any host, so that a stop and a verdict find it whatever happens.
        design.write(place, json.dumps({"plan": plan.digest, "start": start}) + "\n")
    try:
        _check(plan, start, transport)
        if "stopped" in _read_run(args.plan):
            raise Error("nothing was changed: it was stopped meanwhile")
    except BaseException:
        if before:
            design.write(place, before)
        else:
            place.unlink(missing_ok=True)
        raise
    _push(args.plan, plan, start, transport)
    say(f"{exp.name} runs from {local_time(start)} to {local_time(end)} on {len(plan.hosts)} "
        f"hosts; next: faultline-rollout status {args.plan}")
    return 0


# --- status

@dataclasses.dataclass
class Look:
    """One look at a running experiment."""

    share: float
    hosts: dict[str, str]
    result: Result | None
    problem: str


def _look(plan: Plan, start: float, transport: Transport, at: float | None) -> Look:
    states: dict[str, str] = {}
    for answer in transport.everywhere(plan.hosts, lambda host: ("faultline-ab status --json", "")):
        name = answer.host.name
        if answer.status:
            states[name] = _explain(answer).partition(": ")[2]
            continue
        try:
            row: dict[str, Any] = next((row for row in json.loads(answer.out)["experiments"]
                                        if row.get("name") == plan.experiment.name), {})
        except (ValueError, KeyError, TypeError, AttributeError):
            states[name] = "its faultline-ab is of another version: update faultline-host"
            continue
        if not row:
            states[name] = "is not in the experiment: not started yet, stopped, expired or rebooted"
        elif row.get("plan") != plan.digest:
            states[name] = "runs another plan"
        elif row.get("value") != row.get("assigned"):
            states[name] = f"has {row.get('value')}, and should have {row.get('assigned')}"
        else:
            states[name] = str(row.get("state"))
    result, problem = None, ""
    try:
        result = judge(plan, collect(plan, start, at), draws=499)
    except Error as err:
        problem = str(err)
    moment = time.time() if at is None else at
    return Look(min(1.0, max(0.0, (moment - start) / plan.seconds)), states, result, problem)


GOOD_STATES = ("waiting", "running", "finished")


def _show(plan: Plan, start: float, look: Look, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"name": plan.experiment.name, "progress": round(look.share, 4),
                        "hosts": look.hosts, "problem": look.problem or None,
                        "result": look.result.to_json() if look.result else None}))
        return
    full = int(40 * look.share)
    say(f"{plan.experiment.name} [{'#' * full}{'.' * (40 - full)}] {look.share:.0%}, until "
        f"{local_time(start + plan.seconds)}")
    counts: dict[str, int] = {}
    for state in look.hosts.values():
        counts[state] = counts.get(state, 0) + 1
    say("  hosts: " + (", ".join(f"{counts[state]} {state}" for state in GOOD_STATES
                                 if state in counts) or "none in the experiment"))
    for name, state in sorted(look.hosts.items()):
        if state not in GOOD_STATES:
            say(f"  {name}: {state}")
    if look.problem:
        say(f"  {look.problem}")
    if look.result:
        say(f"  {look.result.verdict}: {report.sentence(look.result)}")
        for reason in look.result.reasons:
            say(f"    {reason}")


def _harmed(plan: Plan, start: float, look: Look, at: float | None,
            tell: Callable[[str], None]) -> bool:
    """Has arm b done harm?  Says which hosts crashed in a slot that is not over."""
    found = look.result
    if found and found.harmful:
        return True
    try:
        hosts = crashed_in_b(plan, start, time.time() if at is None else at)
    except Error as err:
        if str(err) != look.problem:
            tell(f"  {err}")
        return False
    for host in hosts:
        tell(f"  {host}: crashed in arm b")
    return bool(hosts)


def command_status(args: argparse.Namespace) -> int:
    """Show how an experiment is going."""
    plan = design.read(args.plan)
    start = started(args.plan, plan) if args.start is None else args.start
    transport = Transport(plan.experiment.transport)
    tell = say_aside if args.json else say
    while True:
        look = _look(plan, start, transport, until(args.plan, args.at))
        if unfinished(args.plan):
            look.problem = "; ".join(filter(None, [
                f"the start {UNFINISHED.format(args.plan)}", look.problem]))
        _show(plan, start, look, args.json)
        if args.stop_on_harm and _harmed(plan, start, look, until(args.plan, args.at), tell):
            tell("harm: every host is set back")
            _note_stop(args.plan)
            problems = _stop_hosts(plan.experiment.name, plan.hosts, transport,
                                   bool(plan.experiment.restart))
            if problems:
                problems.append(f"use `faultline-rollout stop {args.plan}` when they can be "
                                "reached")
            for problem in problems:
                tell(f"  {problem}")
            return 10
        if not args.watch or look.share >= 1 or "stopped" in _read_run(args.plan):
            return 0
        time.sleep(args.every)


# --- verdict, stop

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
    for line in report.lines(result):
        say(f"  {line}")
    return result.exit_status


def command_stop(args: argparse.Namespace) -> int:
    """Set every host back.  Needs neither Prometheus nor a plan that is intact."""
    try:
        body = json.loads(args.plan.read_text(encoding="utf-8"))
        hosts = tuple(Host(row["name"], row["address"], "", {}) for row in body["hosts"])
        if not hosts or not all(isinstance(text, str) for host in hosts
                                for text in (host.name, host.address)):
            raise ValueError
        name = body["experiment"]["name"]
        words = body["experiment"].get("transport", {}).get("command", list(experiment.SSH))
    except OSError as err:
        raise Error(f"cannot read {args.plan}: {err.strerror}: run `faultline-ab stop --all` on "
                    "the hosts") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Error(f"{args.plan} is not a plan: run `faultline-ab stop --all` on the hosts") \
            from None
    # faultline-ab takes '' and --all, too.
    if not isinstance(name, str) or not experiment.NAME.fullmatch(name):
        raise Error(f"{args.plan} has no name: run `faultline-ab stop --all` on the hosts")
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise Error(f"{args.plan} has no transport: run `faultline-ab stop --all` on the hosts")
    _note_stop(args.plan)
    service = body["experiment"].get("restart")
    problems = _stop_hosts(name, hosts, Transport(words), bool(service))
    if service:
        say(f"{service} keeps what its arm decided for its mappings until it restarts")
    say(f"{name}: stopped on {len(hosts) - len(problems)} of {len(hosts)} hosts")
    if problems:
        raise Error(f"{len(problems)} hosts could not be stopped:\n  " + "\n  ".join(problems))
    return 0


# --- Command line

def moment(text: str) -> float:
    """A moment: seconds since 1970, or ISO 8601."""
    try:
        return datetime.datetime.fromtimestamp(float(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a time: write 2026-11-23T12:00+00:00 or seconds since 1970") from None
    return found.timestamp()


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


def pause(text: str) -> float:
    """A duration in seconds, or 0."""
    return 0 if text == "0" else experiment.seconds(duration(text))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main_parser = argparse.ArgumentParser(
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
    start.add_argument("--lead", type=whole, default=LEAD, metavar="SECONDS",
                       help=f"time to reach all hosts before slot 0 (default: {LEAD})")
    start.set_defaults(run=command_start)

    status = verbs.add_parser("status", help="show how it is going")
    status.add_argument("plan", type=path, metavar="PLAN")
    status.add_argument("--watch", action="store_true", help="again and again, until the end")
    status.add_argument("--every", type=whole, default=60, metavar="SECONDS",
                        help="pause between looks (default: 60)")
    status.add_argument("--stop-on-harm", action="store_true",
                        help="stop everywhere if b does harm, or a host in arm b crashes")
    status.set_defaults(run=command_status)

    verdict = verbs.add_parser("verdict", help="judge an experiment")
    verdict.add_argument("plan", type=path, metavar="PLAN")
    verdict.add_argument("--plot", type=path, action="append", default=[], metavar="FILE",
                         help="write a plot, .svg or .png")
    verdict.add_argument("--html", type=path, metavar="FILE", help="write a page")
    verdict.set_defaults(run=command_verdict)

    stop = verbs.add_parser("stop", help="set every host back; needs no Prometheus")
    stop.add_argument("plan", type=path, metavar="PLAN")
    stop.set_defaults(run=command_stop)

    for verb in (plan, status, verdict):
        verb.add_argument("--json", action="store_true", help="for programs")
        verb.add_argument("--at", type=moment, metavar="TIME",
                          help="as if it were that time: values after it do not count")
    for verb in (status, verdict):
        verb.add_argument("--start", type=moment, metavar="TIME",
                          help="when slot 0 began, if PLAN.run.json is lost")
    return main_parser


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
        print(f"faultline-rollout: error: {err}", file=sys.stderr)
        return USAGE
    except OSError as err:
        print(f"faultline-rollout: error: {err}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            # Python would flush again at exit, and fail with lines and a status of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USAGE
    except KeyboardInterrupt:
        print("faultline-rollout: interrupted", file=sys.stderr)
        return 130
