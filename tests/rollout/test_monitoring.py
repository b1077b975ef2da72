# SPDX-License-Identifier: GPL-2.0-only
"""rollout/monitoring: rules, alerts, dashboard and flags, with the real programs.

The series come from faultline-ab and faultline-boot, through node_exporter with the shipped
flags, into a Prometheus with the shipped rules.  Only /proc is made up.
"""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator

import pytest
import yaml

from faultline.common import ROOT
from lib import counters
from rollout import prometheus_lab, stalls_lab

from faultline_rollout import prometheus, switches

HERE = ROOT / "rollout/monitoring"
AGENT = ROOT / "rollout/host"
# The kernel that the hosts run.
RELEASE = "6.12.117-faultline1"
ALERTS = [rule["alert"] for group in yaml.safe_load((HERE / "rules.yml").read_text())["groups"]
          for rule in group["rules"] if "alert" in rule]
PANELS = json.loads((HERE / "dashboard.json").read_text())["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
STOCK = {name.removeprefix("vm."): row.stock for name, row in switches.switches().items()}
# How long to wait for data, at most.
SECONDS = 120

# Unit tests of the rules: two hours of a healthy experiment on two hosts, and for each alert what
# changes in it, the minute in which that alert fires, alone, and one in which none does.
H1, H2 = '{instance="h1"}', '{instance="h2"}'
SPF = "node_vmstat_spf_%s" + H1
DONE = ("zero", "anon", "cow", "reuse", "access", "raced", "hwpoison")
ABORTED = ("no_vma", "locked", "changed", "unsupported", "access", "no_table", "pte", "busy",
           "no_anon_vma", "no_memory")
AVOIDED = tuple(f"node_vmstat_pmd_clear_avoided_{what}{H1}"
                for what in ("collapse", "unshare", "table"))
FALLBACK = f"node_vmstat_pmd_clear_fallback{H1}"
AB1, AB2 = ('faultline_ab{instance="h%d",experiment="x",arm="%s",slot="1",plan="p"}' % host
            for host in ((1, "b"), (2, "a")))
KERNEL = 'node_uname_info{instance="h%d",release="6.12.%d-faultline1"}'
SWITCH = "node_sysctl_vm_speculative_page_fault"
BOOT = "node_boot_time_seconds"
TRIAL = 'faultline_trial_state{instance="h1",kernel="k"}'
NONCOMPLIANT = 'faultline_ab_noncompliant_total{instance="h1",experiment="x"}'
ENDED = 'faultline_ab_ended{instance="h1",experiment="x"}'
WRITTEN = 'node_textfile_mtime_seconds{instance="h1",file="/t/faultline_ab.prom"}'
COLLECTOR = 'node_scrape_collector_success{instance="h1",collector="sysctl"}'
OOM, ROLLBACK = f"node_vmstat_oom_kill{H1}", f"faultline_rollback_total{H1}"
NEWEST = 'faultline_newest_installed_seconds{instance="h1",kernel="6.12.%d-faultline1"}'
STALLED = ('faultline_stalls_waited_seconds{instance="h1",call="munmap",lock="mmap_lock",'
           'switch="vm.munmap_section_kbytes"}')
STALLS_WRITTEN = ('node_textfile_mtime_seconds{instance="h1",'
                  'file="/t/faultline_stalls.prom"}')
TEXTFILE = f"node_textfile_scrape_error{H1}"
HEALTHY = {
    AB1: "1x120", AB2: "1x120", KERNEL % (1, 1): "1x120", KERNEL % (2, 1): "1x120",
    SWITCH + H1: "1x120", SWITCH + H2: "0x120", f"node_sysctl_vm_hugetlb_pmd_sharing{H1}": "1x120",
    # A clock that is set.
    BOOT + H1: "1000x60 1090x60", BOOT + H2: "1000x120", NONCOMPLIANT: "0x120", OOM: "3x120",
    ENDED: "0x120",
    WRITTEN: "0+60x120", TEXTFILE: "0x120", COLLECTOR: "1x120", TRIAL: "3x120", ROLLBACK: "0x120",
    f"faultline_stalls_window_seconds{H1}": "60x120", STALLED: "0.5x120",
    STALLS_WRITTEN: "0+60x120",
    # Installed seven days ago, after 50 minutes, and running.
    NEWEST % 1: "-601800x120",
    **{SPF % what: "0+6000x120" for what in DONE},
    **{SPF % f"abort_{what}": "0+600x120" for what in ABORTED},
    **dict.fromkeys(AVOIDED, "0+600x120"), FALLBACK: "0+60x120"}
CASES: dict[str, tuple[dict[str, str], int, int]] = {
    "FaultlineAgentMissing": ({AB1: "1x60 stale", SWITCH + H1: "1x60 0x60"}, 70, 62),
    "FaultlineAgentSilent": ({WRITTEN: "0+60x60 3600x60"}, 70, 64),
    "FaultlineSwitchLeftOn": ({AB1: "1x60 stale", AB2: "1x60 stale"}, 75, 65),
    "FaultlineNoncompliant": ({NONCOMPLIANT: "0x60 1x60"}, 65, 55),
    "FaultlineEndedByHand": ({ENDED: "0x60 1x60"}, 65, 55),
    "FaultlineKernelsDiffer": (
        {KERNEL % (2, 1): "1x60 stale", KERNEL % (2, 2): "_x61 1x59"}, 66, 61),
    "FaultlineHostRebooted": ({BOOT + H1: "1000x60 5000x60"}, 65, 100),
    "FaultlineHostsReboot": ({BOOT + host: "1000x60 5000x60" for host in (H1, H2)}, 65, 55),
    "FaultlineOomKill": ({OOM: "3x60 4x60"}, 65, 55),
    "FaultlineSpfFallback": ({**{SPF % what: "0+600x120" for what in DONE},
                              **{SPF % f"abort_{what}": "0+6000x120" for what in ABORTED}}, 60, 20),
    "FaultlinePmdClearFallback": (
        {**dict.fromkeys(AVOIDED, "0+10x120"), FALLBACK: "0+600x120"}, 60, 20),
    "FaultlineTrialFailed": ({TRIAL: "2x60 4x60"}, 65, 20),
    "FaultlineTrialStuck": ({TRIAL: "1x120"}, 40, 20),
    "FaultlineRolledBack": ({ROLLBACK: "0x60 1x60"}, 65, 55),
    "FaultlineKernelOutdated": ({NEWEST % 1: "_x120", NEWEST % 2: "-601800x120"}, 55, 45),
    "FaultlineSwitchesUnseen": ({COLLECTOR: "1x60 0x60"}, 70, 62),
    "FaultlineStalls": ({STALLED: "0.5x60 6x60"}, 65, 55),
    "FaultlineTextfileBroken": ({TEXTFILE: "0x60 1x60"}, 70, 62)}
# The first rollback of a host: nobody has seen the counter before it.
FIRST_ROLLBACK = {ROLLBACK: "_x60 1x60", TRIAL: "3x60 4x60"}
# A window of the day before.
OLD_WINDOW = {STALLED: "6x120", STALLS_WRITTEN: "-86400x120"}
# Events of hosts, of which an experiment file may name those of its experiment.
OF_EXPERIMENT = ("FaultlineHostRebooted", "FaultlineHostsReboot", "FaultlineOomKill")
# Where another alert fires as well: how many of each.
FIRING = {"FaultlineHostsReboot": {"FaultlineHostRebooted": 2, "FaultlineHostsReboot": 1}}


def promtool(*words: object, folder: pathlib.Path = HERE) -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder."""
    return subprocess.run([prometheus_lab.programs() / "promtool", *map(str, words)], cwd=folder,
                          capture_output=True, text=True, check=False)


def case(name: str, changes: dict[str, str], *firing: tuple[int, dict[str, int]],
         matcher: str = "") -> object:
    """A unit test of promtool: a healthy experiment but for CHANGES, and the alerts that fire.

    FIRING are minutes, and how many of which alert fire in each, of those that MATCHER selects.
    """
    return {"name": name, "interval": "1m",
            "input_series": [{"series": series, "values": values}
                             for series, values in {**HEALTHY, **changes}.items()],
            "promql_expr_test": [
                {"expr": f'count by (alertname) (ALERTS{{alertstate="firing"{matcher}}})',
                 "eval_time": f"{minute}m", "exp_samples": [
                     {"labels": f'{{alertname="{alert}"}}', "value": count}
                     for alert, count in alerts.items()]} for minute, alerts in firing]}


def run_cases(rules: object, folder: pathlib.Path,
              alerts: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run the unit tests of ALERTS, and that of a healthy experiment, on rules."""
    cases = [case("healthy", {}, (65, {}), (100, {}))]
    if "FaultlineRolledBack" in alerts:
        cases.append(case("first rollback", FIRST_ROLLBACK, (55, {}), (
            65, {"FaultlineRolledBack": 1, "FaultlineTrialFailed": 1})))
    if "FaultlineStalls" in alerts:
        cases.append(case("old window", OLD_WINDOW, (65, {})))
    for alert in alerts:
        changes, fires, quiet = CASES[alert]
        cases.append(case(alert, changes, (fires, FIRING.get(alert, {alert: 1})), (quiet, {})))
        if alert in OF_EXPERIMENT:
            cases.append(case(f"{alert} of x", changes, (fires, FIRING.get(alert, {alert: 1})),
                              matcher=',experiment="x"'))
    for name, body in (("rules.yml", rules), ("rules_test.yml", {
            "rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases})):
        (folder / name).write_text(yaml.safe_dump(body))
    return promtool("test", "rules", "rules_test.yml", folder=folder)


def test_rules(tmp_path: pathlib.Path) -> None:
    """Promtool accepts the rules, and their unit tests pass; each alert has one."""
    for done in (promtool("check", "rules", "rules.yml"),
                 run_cases(yaml.safe_load((HERE / "rules.yml").read_text()), tmp_path, CASES)):
        assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(CASES) == sorted(ALERTS)


def test_rule_of_each_switch() -> None:
    """The rules know when a switch is on."""
    text = (HERE / "rules.yml").read_text()
    assert re.findall(r'node_sysctl_vm_(\w+) != bool (\d+), "switch", "vm.(\w+)"', text) == [
        (name, str(value), name) for name, value in STOCK.items()]


@pytest.mark.parametrize("alert", ALERTS)
@pytest.mark.parametrize("change", ["never", "always"])
def test_each_alert_is_tested(alert: str, change: str, tmp_path: pathlib.Path) -> None:
    """Its unit test notices if an alert never fires, the healthy experiment if it always does."""
    rules = yaml.safe_load((HERE / "rules.yml").read_text())
    rule, = (rule for group in rules["groups"] for rule in group["rules"]
             if rule.get("alert") == alert)
    rule["expr"] = {"never": "vector(1) < 0", "always": "vector(1)"}[change]
    done = run_cases(rules, tmp_path, [alert] if change == "never" else [])
    assert done.returncode == 1 and alert in done.stdout + done.stderr


def make_host(host: pathlib.Path, state: str, stalls: pathlib.Path) -> None:
    """A host in an experiment, with the result of a kernel's trial and metrics of stalls."""
    for name in ("root/etc/faultline", "root/etc/faultline/health.d", "run", "proc/sys/vm",
                 "textfile", "root/boot/grub", f"root/lib/modules/{RELEASE}"):
        (host / name).mkdir(parents=True)
    for name, value in STOCK.items():
        (host / "proc/sys/vm" / name).write_text(f"{value}\n")
    (host / "proc/vmstat").write_text(
        "".join(f"{name} 5\n" for name in (*counters.names(), "oom_kill", "nr_free_pages")))
    shutil.copy("/proc/stat", host / "proc/stat")
    (host / "cmdline").write_text("quiet\n")
    (host / f"root/lib/modules/{RELEASE}/modules.order").touch()
    (host / "root/boot/grub/grub.cfg").write_text(
        f"set default=\"0\"\nmenuentry 'x' $menuentry_id_option 'x' {{\n"
        f"\tlinux /boot/vmlinuz-{RELEASE} panic=30\n}}\n")
    (host / "root/etc/faultline/trial").write_text(
        f"kernel={RELEASE}\nstate=requested\nentry=x\nboot=y\n"
        "failed_before=\nreason=\n")
    (host / "systemctl").write_text("#!/bin/sh\n[ $1 != is-active ] || echo active\n")
    (host / "systemctl").chmod(0o755)
    check = host / "root/etc/faultline/health.d/10-test"
    check.write_text(f"#!/bin/sh\nexit {int(state == 'failed')}\n")
    check.chmod(0o755)
    subprocess.run([stalls, "show", stalls_lab.write_record(host / "record"), "--textfile",
                    host / "textfile/faultline_stalls.prom"], check=True,
                   stdout=subprocess.DEVNULL)
    environment = os.environ | {
        "FAULTLINE_LIB": str(AGENT), "FAULTLINE_SWITCHES": str(ROOT / "sysctl/switches"),
        "FAULTLINE_ROOT": str(host / "root"),
        "FAULTLINE_SYSCTL": str(host / "proc/sys"), "FAULTLINE_CMDLINE": str(host / "cmdline"),
        "FAULTLINE_RUN": str(host / "run"), "FAULTLINE_TEXTFILE": str(host / "textfile"),
        "FAULTLINE_TICK": "0", "FAULTLINE_SYSTEMCTL": str(host / "systemctl"),
        "FAULTLINE_HEALTHY_FOR": "0",
        "FAULTLINE_KERNEL": RELEASE}
    now = int(time.time())
    lines = ("format=1", "name=lab", "switch=vm.speculative_page_fault", "a=0", "b=1",
             f"start={now - 5}", "slot=600", "washout=120", f"expires={now + 9000}",
             f"plan={'0' * 64}", f"host={host.name}",
             f"arms={'ab' if state == 'failed' else 'ba'}")
    plan = host / "plan"
    plan.write_text("\n".join(lines) + "\n")
    total = subprocess.run(["sha256sum"], input=plan.read_bytes(), capture_output=True,
                           check=True).stdout.split()[0].decode()
    plan.write_text(plan.read_text() + f"sum={total}\n")
    for words, status in ((("faultline-ab", "start", str(plan)), 0),
                          (("faultline-ab", "apply", "lab"), 0),
                          (("faultline-boot", "gate"), int(state == "failed"))):
        done = subprocess.run([AGENT / words[0], *words[1:]], env=environment, text=True,
                              capture_output=True, check=False)
        assert done.returncode == status, done.stderr


@pytest.fixture(name="url", scope="module")
def fixture_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has scraped two hosts, and evaluated the rules."""
    folder = tmp_path_factory.mktemp("monitoring")
    flags = (HERE / "node_exporter.args").read_text().splitlines()
    flags = [flag for flag in flags if not flag.startswith("#")]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(folder / "log", "wb"))
        stalls = stalls_lab.build(folder / "stalls")

        def run(*words: object) -> subprocess.Popen[bytes]:
            process = stack.enter_context(
                subprocess.Popen([str(word) for word in words], stdout=log, stderr=log))
            stack.callback(process.terminate)
            return process

        ports = []
        for name, state in (("one", "passed"), ("two", "failed")):
            make_host(folder / name, state, stalls)
            ports += prometheus_lab.free_ports(1)
            run(prometheus_lab.node_exporter(), "--collector.disable-defaults",
                "--collector.vmstat", "--collector.stat", "--collector.uname",
                "--collector.textfile",
                *(flag.replace("/var/lib/prometheus/node-exporter",
                               str(folder / name / "textfile")) for flag in flags),
                f"--path.procfs={folder / name / 'proc'}",
                f"--web.listen-address=127.0.0.1:{ports[-1]}")
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(HERE / "rules.yml")],
            "scrape_configs": [{"job_name": "node", "static_configs": [
                {"targets": [f"127.0.0.1:{port}" for port in ports]}]}]}))
        port = prometheus_lab.free_ports(1)[0]
        url = f"http://127.0.0.1:{port}"
        process = run(prometheus_lab.programs() / "prometheus", f"--config.file={config}",
                      f"--storage.tsdb.path={folder / 'tsdb'}",
                      f"--web.listen-address=127.0.0.1:{port}")
        prometheus_lab.wait_for(lambda: prometheus_lab.ready(url), process)
        yield url


def ask(url: str, query: str) -> list[dict[str, dict[str, str]]]:
    """The series that a query gives now."""
    for name, value in (("$__rate_interval", "1m"), ("$experiment", ".*"), ("$instance", ".*")):
        query = query.replace(name, value)
    assert "$" not in query, query
    address = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        series: list[dict[str, dict[str, str]]] = json.load(answer)["data"]["result"]
    return series


def wait_for_data(url: str, query: str) -> list[dict[str, dict[str, str]]]:
    """The same, once there is data: rates need two scrapes, and rules an evaluation."""
    end = time.monotonic() + SECONDS
    while not (series := ask(url, query)) and time.monotonic() < end:
        time.sleep(0.5)
    return series


def short(text: object) -> str:
    """A shortened parameter, for the name of a test."""
    return str(text)[:60]


@pytest.mark.parametrize("title,query", QUERIES, ids=short)
def test_dashboard(url: str, title: str, query: str) -> None:
    """Each query of the dashboard has data."""
    assert wait_for_data(url, query), f"{title}: no data for {query}"


@pytest.mark.parametrize("title,query", QUERIES, ids=short)
def test_dashboard_typo(url: str, title: str, query: str) -> None:
    """A query with a misspelt metric has no data, so test_dashboard can fail."""
    wait_for_data(url, "ALERTS")
    typo = re.sub(r"(faultline(?:_|:)\w|node_\w|ALERTS)(?=[\w:]*\{)|faultline_ab(?= )",
                  r"\g<0>x", query)
    assert typo != query, title
    assert not ask(url, typo)


def test_every_counter_arrives(url: str) -> None:
    """The flags pass each counter of the kernel and each switch, but not everything."""
    names = counters.names()
    assert len(names) > 40
    wanted = {f"node_vmstat_{name}" for name in (*names, "oom_kill")} | {
        f"node_sysctl_vm_{name}" for name in STOCK}
    end = time.monotonic() + SECONDS
    # A scrape that takes longer than a second, on a busy machine, takes all series away until the
    # next one.
    while True:
        seen = {series["metric"]["__name__"] for series in ask(url, '{__name__=~"node_.*"}')}
        if not wanted - seen:
            break
        assert time.monotonic() < end, f"not within {SECONDS} s: {sorted(wanted - seen)}"
        time.sleep(0.5)
    assert "node_vmstat_nr_free_pages" not in seen


def test_metrics_of_rules(url: str) -> None:
    """Each metric that a rule reads exists."""
    text = (HERE / "rules.yml").read_text()
    names = set(re.findall(r"\b(?:node|faultline)_[a-z_]+|\bfaultline:[a-z0-9_:]+",
                           re.sub(r'#.*|summary:.*|description:.*|~"[^"]*"', "", text)))
    # Exists after a reboot only.
    names.discard("faultline:rebooted")
    assert len(names) > 30
    assert not sorted(name for name in names if not wait_for_data(url, name))


def test_alerts_have_rules(url: str) -> None:
    """faultline-rollout distinguishes the name of an alert from a typo."""
    client = prometheus.Prometheus(url)
    assert client.unknown([*ALERTS, "FaultlineHostRebotted"]) == ["FaultlineHostRebotted"]


def test_arms_as_observed(url: str) -> None:
    """The arm that the agent reports is the value of the switch that node_exporter sees."""
    for arm, value in (("a", 0), ("b", 1)):
        query = f'node_sysctl_vm_speculative_page_fault == {value} and on (instance) ' \
                f'faultline_ab{{experiment="lab",arm="{arm}"}}'
        assert len(wait_for_data(url, query)) == 1
