# SPDX-License-Identifier: GPL-2.0-only
"""The plot, and the page with the plot."""
from __future__ import annotations

import atexit
import html
import io
import math
import os
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from . import Error
from .design import Plan, write
from .estimate import mean_of_known
from .experiment import in_words, relative
from .measured import Data
from .outcome import KINDS, Result, named
from .sample import Sample
from .types import Array

COLOURS = {"a": "#4c566a", "b": "#d1690e", "band": "#d8dee9", "good": "#2e7d32",
           "bad": "#b71c1c", "grey": "#8a8f98"}
VERDICT_COLOURS = {"BETTER": "good", "EQUIVALENT": "good", "WORSE": "bad", "INVALID": "bad"}
FORMATS = (".svg", ".png")
# Of hosts in a slot: more would hide the plot.
MOST_NAMES = 6

MEANING = {
    "BETTER": "Arm b is better than arm a. Set the value of b for good.",
    "WORSE": "Arm b does harm. The hosts keep the value of a.",
    "EQUIVALENT": "The arms differ by less than the margin. Decide on other grounds.",
    "INCONCLUSIVE": "Not decided. Run it for longer, or on more hosts.",
    "NOT EXERCISED": "The switch had nothing to do on these hosts under this load.",
    "INVALID": "The values do not allow a verdict. Repair the cause, and make a new plan.",
}


def percent(value: float) -> str:
    """An effect as a percentage."""
    return f"{relative(value):+.2%}" if math.isfinite(relative(value)) else "unknown"


def sentence(result: Result) -> str:
    """The effect and its interval in words."""
    found = result.estimate
    if found is None:
        return "no effect can be estimated"
    return (f"effect of b {percent(found.effect)}, {found.level:.0%} interval "
            f"{percent(found.low)} to {percent(found.high)}")


def events(result: Result, most: int) -> list[tuple[str, str]]:
    """Crashes and OOM kills of each kind, with hosts and slots of so many."""
    rows = []
    for kind, title in KINDS.items():
        parts = []
        for arm in "ab":
            there = [event for event in result.events if (event.kind, event.arm) == (kind, arm)]
            parts.append(f"{len(there)} in arm {arm}"
                         + (f" ({named(there, most)})" if there else ""))
        rows.append((title, ", ".join(parts)))
    return rows


def lines(result: Result) -> list[str]:
    """The verdict for a terminal."""
    text = [sentence(result), *result.reasons]
    text += [f"guard {guard.name}: {guard.metric.in_words(guard.effect)}, {guard.state}"
             for guard in result.guards]
    if result.mechanism:
        text.append("mechanism: " + ", ".join(f"{value:.4g} in arm {arm}"
                                              for arm, value in result.mechanism.items()))
    return text + [f"{title}: {told}" for title, told in events(result, 5)] + [meaning(result)]


def meaning(result: Result) -> str:
    """A verdict in words."""
    if result.vetoes and result.verdict == "INCONCLUSIVE":
        return "Hosts suffered in arm b. The hosts keep the value of a until you know why."
    return MEANING[result.verdict]


def _per_slot(values: Array, assigned: Any, arm: int) -> Array:
    """The mean over the hosts in an arm, per slot."""
    return mean_of_known(np.where(assigned == arm, values, np.nan), 0)


def _find_cache() -> None:
    """Give matplotlib a folder if there is no home for its cache.

    One that nobody else can have made: matplotlib also reads its settings there.
    """
    if "MPLCONFIGDIR" not in os.environ and not os.access(os.path.expanduser("~"), os.W_OK):
        folder = tempfile.mkdtemp(prefix="faultline-rollout-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["MPLCONFIGDIR"] = folder


def figure(plan: Plan, data: Data, result: Result) -> Any:
    """The plot as a figure of matplotlib."""
    _find_cache()
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    exp = plan.experiment
    sample = Sample(plan, data)
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                         "svg.hashsalt": plan.seed, "axes.titlesize": 10,
                         # Queries contain $slot: do not parse $...$ as TeX.
                         "axes.titlelocation": "left", "text.parse_math": False})
    fig = plt.figure(figsize=(11, 8), layout="constrained")
    grid = fig.add_gridspec(3, 2, width_ratios=(2.4, 1), height_ratios=(1.5, 1, 0.7))
    effect = fig.add_subplot(grid[0, 0])
    arms = fig.add_subplot(grid[1, 0], sharex=effect)
    mechanism = fig.add_subplot(grid[2, 0], sharex=effect)
    guards = fig.add_subplot(grid[:2, 1])
    notes = fig.add_subplot(grid[2, 1])
    fig.suptitle(f"{exp.name}: {result.verdict}", x=0.01, ha="left", fontsize=15, weight="bold",
                 color=COLOURS[_colour(result)])
    _draw_effect(effect, plan, result)
    _draw_events(arms, plan, result)
    hours = (np.arange(data.slots) + 0.5) * exp.slot / 3600
    levels = sample.logs - mean_of_known(sample.logs, 1)[:, None]
    for arm, number in (("a", 0), ("b", 1)):
        value = exp.a if arm == "a" else exp.b
        arms.plot(hours, 100 * np.expm1(_per_slot(levels, sample.assigned, number)), "o-",
                  color=COLOURS[arm], markersize=3, linewidth=1,
                  label=f"arm {arm}: {exp.switch}={value}")
        mechanism.plot(hours, _per_slot(data.mechanism, sample.assigned, number), "o-",
                       color=COLOURS[arm], markersize=3, linewidth=1)
    arms.set_title(f"{exp.primary.name[:50]}: each arm, against the host's own mean, %")
    arms.legend(frameon=False, loc="best", fontsize=8)
    mechanism.axhline(exp.mechanism.min, color=COLOURS["grey"], linestyle=":", linewidth=1)
    mechanism.set_title("mechanism counter; dotted: what it should reach")
    mechanism.set_xlabel("hours since the start")
    mechanism.set_ylim(bottom=0)
    _draw_guards(guards, result)
    notes.axis("off")
    told = [sentence(result).replace(", ", ",\n")] + result.reasons
    notes.text(0, 1, "\n".join(_wrapped(line, 46) for line in told)[:700], va="top",
               fontsize=8, transform=notes.transAxes)
    return fig


def _wrapped(text: str, width: int) -> str:
    import textwrap
    return "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, width))


def _colour(result: Result) -> str:
    return "bad" if result.vetoes else VERDICT_COLOURS.get(result.verdict, "grey")


def _draw_events(axes: Any, plan: Plan, result: Result) -> None:
    """A line where hosts crashed or had an OOM kill, in red if any of them was in arm b."""
    for slot in sorted({event.slot for event in result.events}):
        there = [event for event in result.events
                 if event.slot == slot and event.kind != "lost_together"]
        if not there:
            continue
        hour = (slot + 0.5) * plan.experiment.slot / 3600
        colour = COLOURS["bad" if any(event.arm == "b" for event in there) else "a"]
        names = [f"{event.host}: {event.kind.replace('_', ' ')}, arm {event.arm}"
                 for event in there[:MOST_NAMES]]
        if len(there) > MOST_NAMES:
            names.append(f"and {len(there) - MOST_NAMES} more")
        axes.axvline(hour, color=colour, linewidth=1, linestyle="--")
        axes.text(hour, 0.02, "\n".join(names), color=colour, rotation=90, fontsize=7,
                  va="bottom", ha="right", transform=axes.get_xaxis_transform())


def _draw_effect(axes: Any, plan: Plan, result: Result) -> None:
    exp = plan.experiment
    axes.axhline(0, color="black", linewidth=0.8)
    margin = exp.primary.margin * 100
    axes.axhspan(-margin, margin, color=COLOURS["band"], alpha=0.6, linewidth=0,
                 label=f"margin {exp.primary.margin:.1%}")
    axes.set_ylabel("effect of b, %")
    axes.set_title(f"effect so far; {exp.primary.better} is better")
    axes.set_xlim(0, plan.seconds / 3600)
    found = result.estimate
    if found is None:
        return
    slots = 2 if exp.design == "switchback" else plan.slots
    hours = (np.arange(len(result.path)) + 1) * slots * exp.slot / 3600
    mean, low, high = (np.expm1(np.array(column)) * 100 for column in zip(*result.path))
    points = np.expm1(np.array(result.effects)) * 100
    axes.plot(hours, points, ".", color=COLOURS["grey"], markersize=5, label="single pairs")
    axes.plot(hours, mean, color=COLOURS["b"], linewidth=1.5, label="mean")
    ok = np.isfinite(low) & np.isfinite(high)
    axes.fill_between(hours[ok], low[ok], high[ok], color=COLOURS["b"], alpha=0.18, linewidth=0,
                      label="99% interval, valid at each look")
    tops = [margin * 1.2, *np.abs(points[np.isfinite(points)])]
    late = ok & (np.arange(len(ok)) >= min(4, len(ok) - 1))
    tops += [*np.abs(low[late]), *np.abs(high[late])]
    if result.final and math.isfinite(found.low) and math.isfinite(found.high):
        middle, ends = relative(found.effect) * 100, np.expm1([found.low, found.high]) * 100
        axes.errorbar([plan.seconds / 3600], [middle],
                      [[middle - ends[0]], [ends[1] - middle]], fmt="o", color="black",
                      capsize=4, markersize=4, label=f"{found.level:.0%} interval at the end",
                      clip_on=False, zorder=5)
        tops += [*np.abs(ends)]
    top = max(tops) * 1.1
    axes.set_ylim(-top, top)
    axes.legend(frameon=False, loc="best", fontsize=8, ncols=2)


def _draw_guards(axes: Any, result: Result) -> None:
    rows = result.guards
    axes.set_title("guards: harm; black: what is accepted")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvline(1, color="black", linewidth=1.5)
    axes.set_xlabel("harm / accepted harm: found, and possible")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-max(len(rows), 3) + 0.2, 0.8)
    for number, guard in enumerate(rows):
        colour = COLOURS[{"failed": "bad", "passed": "good"}.get(guard.state, "grey")]
        found = guard.share(guard.effect)
        most = guard.share(guard.harm) if math.isfinite(guard.harm) else found
        axes.plot([found, most], [-number, -number], color=colour, linewidth=2)
        axes.plot([found], [-number], "o", color=colour)
        axes.text(0.01, -number + 0.25, f"{guard.name[:42]}: {guard.state}", color=colour,
                  fontsize=8, transform=axes.get_yaxis_transform())
    if not rows:
        axes.text(0.5, 0.5, "no guards", ha="center", transform=axes.transAxes,
                  color=COLOURS["grey"])


def rendered(fig: Any, kind: str) -> bytes:
    """The plot as a file; kind is svg or png."""
    out = io.BytesIO()
    metadata: dict[str, str | None] = {"Date": None} if kind == "svg" else {"Software": None}
    fig.savefig(out, format=kind, dpi=110, metadata=metadata)
    return out.getvalue()


def save_plot(path: pathlib.Path, plan: Plan, data: Data, result: Result) -> None:
    """Write the plot as .svg or .png."""
    if path.suffix not in FORMATS:
        raise Error(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    content = rendered(figure(plan, data, result), path.suffix[1:])
    try:
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as err:
        raise Error(f"cannot write {path}: {err.strerror}") from None


def page(plan: Plan, data: Data, result: Result) -> str:
    """A page that needs no other file and no network."""
    exp = plan.experiment
    svg = rendered(figure(plan, data, result), "svg").decode()
    svg = svg[svg.index("<svg"):]
    facts = [
        ("switch", f"{exp.switch}: {exp.a} in arm a, {exp.b} in arm b"),
        ("design", f"{exp.design}, {plan.slots} slots of {in_words(exp.slot)}, of which "
                   f"{in_words(exp.washout)} are washout"),
        ("hosts", f"{len(plan.hosts)} in {len(set(plan.strata.values()))} strata"),
        ("effect", sentence(result)),
        ("cross-check", "none" if result.clustered is None else
         f"t-test on the means of hosts: {percent(result.clustered[0])}, standard error "
         f"{result.clustered[1]:.2%}"),
        ("detectable", f"{percent(result.detectable)} with a probability of 90%"),
        ("pairs", f"{result.pairs_done} of {result.pairs}"),
        ("mechanism", ", ".join(f"{arm}: {value:.4g}"
                                for arm, value in result.mechanism.items()) or "no values"),
        *events(result, 1000),
        ("plan", plan.digest),
    ]
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>\n"
                   for name, value in facts)
    guards = "".join(
        f"<tr class={guard.state}><td>{html.escape(guard.name)}</td>"
        f"<td>{guard.metric.in_words(guard.effect)}</td>"
        f"<td>{guard.metric.in_words(guard.metric.harm_margin)}</td>"
        f"<td>{guard.p:.2g}</td><td>{guard.state}</td></tr>\n" for guard in result.guards)
    table = ("<table id=guards><tr><th>guard</th><th>effect</th><th>accepted harm</th>"
             f"<th>p</th><th>state</th></tr>\n{guards}</table>" if guards else "")
    colour = COLOURS[_colour(result)]
    reasons = "".join(f"<li>{html.escape(reason)}</li>\n" for reason in result.reasons)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{html.escape(exp.name)}: {result.verdict}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em;
  color: #20242b; }}
h1 b {{ color: {colour}; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ text-align: left; padding: .2em 1em .2em 0; border-bottom: 1px solid #d8dee9;
  overflow-wrap: anywhere; }}
.failed td:last-child {{ color: {COLOURS['bad']}; font-weight: bold; }}
.passed td:last-child {{ color: {COLOURS['good']}; }}
</style>
</head>
<body>
<h1>{html.escape(exp.name)}: <b id="verdict">{result.verdict}</b></h1>
<p>{html.escape(meaning(result))}</p>
<ul id="reasons">
{reasons}</ul>
{svg}
<table id="facts">
{rows}</table>
{table}
</body>
</html>
"""


def save_page(path: pathlib.Path, plan: Plan, data: Data, result: Result) -> None:
    """Write the page."""
    write(path, page(plan, data, result))
