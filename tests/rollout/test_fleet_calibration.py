# SPDX-License-Identifier: GPL-2.0-only
"""Calibration of rollout/fleet: simulated fleets in a real Prometheus, and their verdicts.

The noise is that of faultline_rollout/noise.py.
"""
from __future__ import annotations

import dataclasses
import functools
import html
import html.parser
import json
import math
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from rollout import fleet_lab
from rollout.fleet_lab import HOSTS, MINUTES, SLOT, START, Scenario

import numpy as np
from scipy import stats

from faultline_rollout import design, estimate, measured, noise, prometheus, sequential, verdict
from faultline_rollout.types import Array

AA_SETS = 300
# Further sets without effect, which bypass Prometheus.
MORE_AA_SETS = 900
POWER_SETS = {0.01: 100, 0.02: 40, 0.05: 40}
DRAWS = 999


def name_of(effect: float, number: int) -> str:
    """The name of a set."""
    return f"set-{round(effect * 100)}-{number}"


# --- One scenario for each cause of a verdict

Change = Callable[[Scenario], None]


def not_exercised(scenario: Scenario) -> None:
    """The mechanism's counter does not grow."""
    scenario.values["node_vmstat_spf_anon"][:] = 7


def wrong_arm(scenario: Scenario) -> None:
    """Somebody else sets the switch back on one host."""
    scenario.values["node_sysctl_vm_speculative_page_fault"][3] = 0


def sample_ratio(scenario: Scenario) -> None:
    """The metric is missing in 30 % of arm b's slots, where scrapes are complete."""
    slots = np.random.default_rng(1).random((HOSTS, MINUTES // SLOT)) < 0.3
    scenario.values["latency"][np.repeat(slots, SLOT, axis=1) & (scenario.on == 1)] = np.nan


def lost_scrapes(scenario: Scenario) -> None:
    """One scrape in four is lost in arm b, but every slot has values."""
    minute = np.arange(MINUTES) % SLOT == SLOT - 1
    for values in scenario.values.values():
        values[(scenario.on == 1) & minute] = np.nan


def clock_off(scenario: Scenario) -> None:
    """The clock of one host runs ahead."""
    scenario.values["node_time_seconds"][5] += 40


def kernels_differ(scenario: Scenario) -> None:
    """One host has another kernel."""
    scenario.releases[2] = "6.12-other"


def carry_over(scenario: Scenario) -> None:
    """Half of an effect lasts into the slot after arm b."""
    after = np.roll(scenario.on, SLOT, axis=1)
    after[:, :SLOT] = 0
    scenario.values["latency"] *= np.exp(0.06 * after)


def prometheus_killed(scenario: Scenario) -> None:
    """All series end half-way through."""
    for values in scenario.values.values():
        values[:, MINUTES // 2:] = np.nan


def guard_gone(scenario: Scenario) -> None:
    """The guard has no values."""
    scenario.values["throughput"][:] = np.nan


def crashes(scenario: Scenario) -> None:
    """Eight hosts panic in arm b and stay away."""
    for host in range(8):
        minute = 30 + int(np.flatnonzero(scenario.on[host, 30:])[0])
        for values in scenario.values.values():
            values[host, minute:] = np.nan


def vanishes(scenario: Scenario) -> None:
    """One host disappears in arm b for good."""
    minute = 30 + int(np.flatnonzero(scenario.on[4, 30:])[0])
    for values in scenario.values.values():
        values[4, minute:] = np.nan


def reboot(scenario: Scenario) -> None:
    """A host reboots; its switch is stock from then on, which is an outcome and not a cause."""
    scenario.values["node_boot_time_seconds"][4, 62:] = START + 62 * 60
    scenario.values["node_sysctl_vm_speculative_page_fault"][4, 62:] = 0


def quiet(scenario: Scenario) -> None:
    """Nothing is switched but on one host; two reboot, others have OOM kills, a new time, a gap."""
    switch = scenario.values["node_sysctl_vm_speculative_page_fault"]
    switch[:8] = switch[9:] = 0
    switch[:, 82:] = 0
    for host in (4, 8):
        scenario.values["node_boot_time_seconds"][host, 82:] = START + 82 * 60
    for minute in (87, 102):
        scenario.values["node_vmstat_oom_kill"][7, minute:] += 1
    for name in ("node_time_seconds", "node_boot_time_seconds"):
        scenario.values[name][5, 90:] += 45
    for values in scenario.values.values():
        values[6, 85:105] = np.nan


def unchanged(_: Scenario) -> None:
    """Leave the simulated values alone."""


CAUSES: dict[str, tuple[float, float, Change, str, str]] = {
    # name: effect, effect on the guard, change, verdict, part of a reason
    "better": (-0.03, 0.0, unchanged, "BETTER", "excludes no effect"),
    "worse": (0.03, 0.0, unchanged, "WORSE", "excludes no effect"),
    "equivalent": (0.0, 0.0, unchanged, "EQUIVALENT", "within 1.0%"),
    "guard": (-0.03, -0.08, unchanged, "WORSE", "guard failed: throughput"),
    "crashes": (0.0, 0.0, crashes, "WORSE", "crashes: 8 in arm b, 0 in arm a"),
    "vanishes": (-0.03, 0.0, vanishes, "INCONCLUSIVE", "vanished hosts in arm b: host04 in slot"),
    "reboot": (-0.03, 0.0, reboot, "INCONCLUSIVE", "reboots in arm b: host04 in slot 12"),
    "quiet": (-0.03, 0.0, quiet, "INVALID", "clock of host05 is 45 s off"),
    "not-exercised": (0.0, 0.0, not_exercised, "NOT EXERCISED", "nothing to do"),
    "wrong-arm": (0.0, 0.0, wrong_arm, "INVALID", "most often on host03"),
    "sample-ratio": (0.0, 0.0, sample_ratio, "INVALID", "sample ratio"),
    "lost-scrapes": (0.0, 0.0, lost_scrapes, "INVALID", "more in arm b"),
    "clock-off": (0.0, 0.0, clock_off, "INVALID", "clock of host05 is 40 s off"),
    "kernels-differ": (0.0, 0.0, kernels_differ, "INVALID", "6.12-faultline1, 6.12-other"),
    "carry-over": (0.0, 0.0, carry_over, "INVALID", "longer washout"),
    "prometheus-killed": (0.0, 0.0, prometheus_killed, "INVALID", "missing"),
    "guard-gone": (0.0, 0.0, guard_gone, "INVALID", "guard 'throughput' has no values"),
}
STATUS = {"BETTER": 0, "EQUIVALENT": 0, "WORSE": 10, "INCONCLUSIVE": 20, "NOT EXERCISED": 20,
          "INVALID": 30}


@pytest.fixture(scope="module", name="server")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with all sets and a history."""
    scenarios = [Scenario(fleet_lab.make_plan(name_of(effect, number)), effect, full=False)
                 for effect, count in ({0.0: AA_SETS} | POWER_SETS).items()
                 for number in range(count)]
    for name, (effect, guard, change, _, _) in CAUSES.items():
        scenario = Scenario(fleet_lab.make_plan(name), effect, guard)
        change(scenario)
        scenarios.append(scenario)
    history = np.exp(noise.Noise().draw(HOSTS, 24 * 60, np.random.default_rng(7)))
    with fleet_lab.prometheus(tmp_path_factory.mktemp("prometheus"), scenarios, history) as url:
        yield url


@dataclasses.dataclass
class Outcome:
    """The outcome of one set."""

    final: estimate.Estimate
    # The pair after which the e-process ended the experiment, or 0.
    ended: int
    # Whether a Mann-Whitney test on the slots of both arms finds something.
    pooled: bool

    @property
    def verdict(self) -> bool:
        """Whether the set gets BETTER or WORSE at any look."""
        return bool(self.ended) or self.final.sign != 0


def judge(plan: design.Plan, logs: Array) -> Outcome:
    """Judge the logarithms of the slot means of one set."""
    panel = plan.panel(logs)
    effects, _ = estimate.pair_effects(panel)
    crossed = np.flatnonzero(sequential.log_e(effects) >= -math.log(verdict.LOOKS))
    # Some hosts against others, as canary analysis does.
    half = np.arange(HOSTS) < HOSTS // 2
    p = stats.mannwhitneyu(logs[half].ravel(), logs[~half].ravel()).pvalue
    return Outcome(
        estimate.randomisation(panel, verdict.ALPHA, verdict.LOOKS, draws=DRAWS, seed=plan.seed),
        int(crossed[0]) + 1 if len(crossed) else 0, bool(p <= 0.05))


@functools.lru_cache
def outcomes(server: str, effect: float) -> list[Outcome]:
    """Query and judge all sets with this effect."""
    client = prometheus.Prometheus(server)
    found = []
    for number in range(AA_SETS if not effect else POWER_SETS[effect]):
        plan = fleet_lab.make_plan(name_of(effect, number))
        exp = plan.experiment
        logs = measured.logarithms(client.table(
            prometheus.with_slot(exp.primary.query, exp.window), plan.hosts, START + exp.slot,
            plan.slots, exp.slot))
        assert np.isfinite(logs).all()
        found.append(judge(plan, logs))
    return found


def more_false_verdicts() -> int:
    """How many further sets without effect get a verdict.

    Their slots are averaged here instead of by Prometheus.  Their intervals are not computed, only
    the p-value of no effect, which is at most LOOKS if the e-process has ended the experiment.
    """
    false = 0
    for number in range(AA_SETS, AA_SETS + MORE_AA_SETS):
        scenario = Scenario(fleet_lab.make_plan(name_of(0.0, number)), full=False)
        slots = scenario.values["latency"].reshape(HOSTS, MINUTES // SLOT, SLOT)
        panel = scenario.plan.panel(np.log(slots[:, :, fleet_lab.WASHOUT:].mean(axis=2)))
        drawn = estimate.redraw(panel, DRAWS, scenario.plan.seed)
        false += estimate.chance(panel, drawn, 0.0, verdict.LOOKS) <= verdict.ALPHA
    return false


def test_false_verdicts(server: str, record_property: Callable[[str, object], None]) -> None:
    """At most 5 % of the A/A sets get BETTER or WORSE, with a look after every pair."""
    found = outcomes(server, 0.0)
    false = sum(outcome.verdict for outcome in found)
    record_property("false verdicts", f"{false} of {len(found)}")
    # The standard deviation of a count over 300 sets is 3.4: a limit of 5 % needs more sets.
    assert false <= stats.binom.ppf(0.99, len(found), 0.05)
    # more_false_verdicts() relies on it.
    assert all(outcome.verdict == (outcome.final.p <= verdict.ALPHA) for outcome in found)
    false += more_false_verdicts()
    record_property("false verdicts with further sets",
                    f"{false} of {len(found) + MORE_AA_SETS}")
    assert false <= 0.05 * (len(found) + MORE_AA_SETS)
    # A test that pools the slots of hosts does far worse on the same values.
    pooled = sum(outcome.pooled for outcome in found)
    record_property("false verdicts of Mann-Whitney on pooled slots", f"{pooled} of {len(found)}")
    assert pooled > 0.3 * len(found)


def test_coverage(server: str, record_property: Callable[[str, object], None]) -> None:
    """93 to 97 % of the intervals contain the true effect, 0 included."""
    for effect in (0.0, 0.01):
        found = outcomes(server, effect)
        share = np.mean([outcome.final.low <= math.log1p(effect) <= outcome.final.high
                         for outcome in found])
        record_property(f"coverage at {effect:.0%}", f"{share:.1%} of {len(found)}")
        # 100 sets are too few for these limits; 3 standard errors wider.
        slack = 0.0 if len(found) >= AA_SETS else 3 * math.sqrt(0.04 * 0.96 / len(found))
        assert 0.93 - slack <= share <= 0.97 + slack


@pytest.mark.parametrize("effect,least", [(0.01, 0.9), (0.02, 1.0), (0.05, 1.0)])
def test_power(server: str, effect: float, least: float,
               record_property: Callable[[str, object], None]) -> None:
    """An effect is found, with the right sign."""
    found = outcomes(server, effect)
    share = np.mean([outcome.verdict and outcome.final.effect > 0 for outcome in found])
    record_property(f"power at {effect:.0%}", f"{share:.1%} of {len(found)}")
    assert share >= least


def plan_at(server: str, name: str) -> design.Plan:
    """The plan of a cause, with the address of this server."""
    return fleet_lab.make_plan(name, prometheus=server)


@pytest.mark.parametrize("name", CAUSES)
def test_verdict(server: str, name: str, tmp_path: pathlib.Path) -> None:
    """Each cause gives its verdict, reason and exit status."""
    _, _, _, wanted, reason = CAUSES[name]
    path = fleet_lab.write_plan(tmp_path, plan_at(server, name))
    done = fleet_lab.rollout("verdict", path, "--json", "--at", START + 86400)
    assert not done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == wanted, result
    assert reason in "\n".join(result["reasons"])
    assert done.returncode == result["exit_status"] == STATUS[wanted]


def test_events_of_the_days_before(server: str) -> None:
    """Events of hosts in no experiment are counted; a clock that is set is not one."""
    plan = plan_at(server, "quiet")
    client = prometheus.Prometheus(server)
    # The first steps have no hour before them, nor has the host that alternates.
    for kind, host, count in (("reboots", 4, 1), ("oom_kills", 7, 2), ("vanished", 6, 1)):
        rates = measured.usual(client, plan, kind, START + 60 * MINUTES)
        assert np.isnan(rates[8]) and np.isfinite(np.delete(rates, 8)).all()
        # In steps of two slots.
        assert count / 24 <= rates[host] <= count / 14 and np.nansum(rates) == rates[host]
        # The days before belong to one kernel.
        assert np.isnan(measured.usual(client, plan_at(server, "kernels-differ"), kind,
                                       START + 60 * MINUTES)).all()
    found = verdict.Judge(plan, measured.collect(plan, START, START + 86400)).events
    assert [(event.kind, event.host, event.slot) for event in found] == [
        ("reboots", "host04", 16), ("reboots", "host08", 16),
        *(("oom_kills", "host07", slot) for slot in (17, 20))]


def test_while_running(server: str, tmp_path: pathlib.Path) -> None:
    """Early looks are inconclusive until the effect is clear, before the end."""
    path = fleet_lab.write_plan(tmp_path, plan_at(server, "better"))
    for minutes, wanted in ((1, "INCONCLUSIVE"), (25, "INCONCLUSIVE"), (115, "BETTER")):
        done = fleet_lab.rollout("verdict", path, "--json", "--at", START + minutes * 60)
        result = json.loads(done.stdout)
        assert result["verdict"] == wanted, (minutes, result, done.stderr)
        assert not result["final"]


class Page(html.parser.HTMLParser):
    """Collects the links of a page, and the text of its elements with an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.texts: dict[str, str] = {}
        self._id = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links, and an id."""
        self.links += [value or "" for key, value in attrs
                       if key in ("src", "href", "xlink:href") and not str(value).startswith("#")]
        self._id = dict(attrs).get("id") or self._id

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.texts[self._id] = self.texts.get(self._id, "") + data


@pytest.mark.parametrize("name", ["better", "wrong-arm", "prometheus-killed"])
def test_report(server: str, name: str, tmp_path: pathlib.Path) -> None:
    """Every verdict has plots and a page; the page links to no other place."""
    path = fleet_lab.write_plan(tmp_path, plan_at(server, name))
    files = [tmp_path / f"plot{suffix}" for suffix in (".svg", ".png", ".html")]
    done = fleet_lab.rollout("verdict", path, "--plot", files[0], "--plot", files[1],
                             "--html", files[2], "--at", START + 86400)
    assert done.returncode == STATUS[CAUSES[name][3]], done.stderr
    assert files[0].read_text().count("<svg") == 1
    assert files[1].read_bytes().startswith(b"\x89PNG")
    page = Page(files[2].read_text())
    assert page.texts["verdict"].startswith(CAUSES[name][3])
    assert not page.links


# The page in a browser: the size of the plot, and whether an element overflows.
MEASURE = """<script>
const plot = document.querySelector("svg").getBoundingClientRect();
document.title = JSON.stringify({width: plot.width, height: plot.height,
  wider: document.documentElement.scrollWidth - innerWidth,
  color: getComputedStyle(document.getElementById("verdict")).color});
</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
@pytest.mark.parametrize("width", [1300, 600])
def test_page_in_a_browser(server: str, width: int, tmp_path: pathlib.Path) -> None:
    """A browser shows the page without overflow in wide and narrow windows."""
    path = fleet_lab.write_plan(tmp_path, plan_at(server, "better"))
    page = tmp_path / "page.html"
    fleet_lab.rollout("verdict", path, "--html", page, "--at", START + 86400)
    page.write_text(page.read_text().replace("</body>", MEASURE + "</body>"))
    dom = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--dump-dom",
         page.as_uri()], capture_output=True, text=True, check=True, timeout=900).stdout
    found = json.loads(html.unescape(dom.split("<title>")[1].split("</title>")[0]))
    assert 0.8 * width < found["width"] <= width and found["height"] > 0.5 * found["width"]
    assert found["wider"] <= 0
    assert found["color"] == "rgb(46, 125, 50)"


def experiment_file(folder: pathlib.Path, server: str, **changes: str) -> pathlib.Path:
    """An experiment file on the history, and its inventory."""
    lines = {
        "name": '"history"', "switch": f'"{fleet_lab.SWITCH}"', "a": "0", "b": "1",
        "slot": '"5min"', "washout": '"1min"', "expires": '"48h"', "min_duration": '"1h"',
        "prometheus": f'"{server}"',
        "primary.query": "'avg_over_time(latency{set=\"history\"}[$slot])'",
        "primary.better": '"lower"', "primary.margin": '"1%"',
        "mechanism.query": "'rate(node_vmstat_spf_anon[$slot])'", "mechanism.min": "1",
    } | changes
    (folder / "inventory.ini").write_text("[db]\n" + "".join(
        f"host{number:02} instance=host{number:02}:9100\n" for number in range(HOSTS)))
    path = folder / "history.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    return path


def test_plan(server: str, tmp_path: pathlib.Path) -> None:
    """A plan has the shortest length that detects the margin, and an A/A rate."""
    path = experiment_file(tmp_path, server)
    out = tmp_path / "plan.json"
    done = fleet_lab.rollout("plan", path, "-o", out, "--json", "--history", "1d", "--seed", "1",
                             "--at", START)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 3600 <= told["seconds"] <= 3 * 3600
    assert told["detectable"] <= 0.01
    assert told["false_rate"] <= 0.1
    plan = design.read(out)
    assert plan.digest == told["sha256"]
    # The same seed gives the same file.
    again = tmp_path / "again.json"
    fleet_lab.rollout("plan", path, "-o", again, "--history", "1d", "--seed", "1", "--at", START)
    assert again.read_bytes() == out.read_bytes()
    # A plan is not overwritten.
    done = fleet_lab.rollout("plan", path, "-o", out, "--history", "1d", "--at", START)
    assert done.returncode == 2 and "exists" in done.stderr


@pytest.mark.parametrize("changes,reason", [
    ({"primary.query": "'avg_over_time(latncy[$slot])'"}, "gives no values in the last"),
    ({"primary.query": "'avg_over_time(latency{set=\"history\"}[$slot]'"}, "refuses the query"),
    ({"primary.query": "'avg_over_time(latency{set=~\"history|better\"}[$slot])'"},
     "several series for host"),
    ({"host_label": '"set"'}, "but for no host of the inventory"),
    ({"strata": '["machine"]'}, "the inventory has no machine for host host00"),
    ({"duration": '"20h"'}, "too little for an experiment of 20 h"),
    ({"min_duration": '"24h"'}, "too little for an experiment of 24 h: wait, give --history"),
    ({"min_duration": '"3d"'}, "expires: an experiment lasts 3 d or longer, and expires before"),
    ({"max_hosts": "10"}, "has 16 hosts, and max_hosts is 10"),
])
def test_plan_refuses(server: str, tmp_path: pathlib.Path, changes: dict[str, str],
                      reason: str) -> None:
    """Bad input gives one clear error, and no plan."""
    path = experiment_file(tmp_path, server, **changes)
    done = fleet_lab.rollout("plan", path, "--history", "1d", "--at", START + 3600)
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*plan*"))
