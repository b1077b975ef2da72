# SPDX-License-Identifier: GPL-2.0-only
"""A row more in the table of switches: the programs that read it have it without another edit.

Rules, panels and flags of rollout/monitoring name switches; test_monitoring.py compares them.
"""
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.common import ROOT
from faultline_rollout import design, switches
from rollout import fleet_lab

NAME = "vm.some_stall"
# Neither value is that of another switch.
LOW, HIGH, STOCK, ON = 3, 9, 4, 7
ROW = f"\n# The new stall: 4 as upstream, 7 not at all.\n{NAME} {LOW} {HIGH} {STOCK} {ON} KiB 9\n"
MICRO = f"""#!/bin/sh
echo "sample new operations/s $2 $(cat "$FAULTLINE_SYSCTL/vm/{NAME.removeprefix('vm.')}")"
"""


@pytest.fixture(name="sysctl")
def _sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of sysctl/ with one more row, and a host whose kernel has that switch."""
    folder = tmp_path / "sysctl"
    shutil.copytree(ROOT / "sysctl", folder)
    with open(folder / "switches", "a", encoding="utf-8") as table:
        table.write(ROW)
    for name in ("root/etc", "run", "sys/vm", "textfile"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cmdline").write_text("quiet\n")
    (tmp_path / "sys" / NAME.replace(".", "/")).write_text(f"{STOCK}\n")
    for name, path in (("SWITCHES", folder / "switches"), ("LIB", ROOT / "rollout/host"),
                       ("ROOT", tmp_path / "root"), ("SYSCTL", tmp_path / "sys"),
                       ("CMDLINE", tmp_path / "cmdline"), ("RUN", tmp_path / "run"),
                       ("TEXTFILE", tmp_path / "textfile"), ("CLOCK", tmp_path / "clock"),
                       ("TICK", 0), ("SYSTEMCTL", "true")):
        monkeypatch.setenv(f"FAULTLINE_{name}", str(path))
    switches.switches.cache_clear()
    yield folder
    switches.switches.cache_clear()


def run(*words: object, status: int = 0) -> str:
    """The output of a command, with its messages."""
    done = subprocess.run([str(word) for word in words], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == status, done.stdout
    return done.stdout


def test_experiment(sysctl: Path) -> None:
    """faultline-rollout plans an experiment with it, and faultline-ab flips it."""
    with pytest.raises(Exception, match=f"{HIGH + 1} is out of range: {NAME} takes 3 to 9"):
        fleet_lab.make_plan("new", switch=NAME, a=STOCK, b=HIGH + 1)
    with pytest.raises(Exception, match="between 4 and 9 acts on new mappings only"):
        fleet_lab.make_plan("new", switch=NAME, a=STOCK, b=9)
    plan = fleet_lab.make_plan("new", switch=NAME, a=STOCK, b=ON)
    path = sysctl.parent / "new.json"
    design.write(path, plan.text())
    assert design.read(path) == plan

    host, clock = plan.hosts[0], Path(os.environ["FAULTLINE_CLOCK"])
    pushed, value = sysctl.parent / "pushed", sysctl.parent / "sys" / NAME.replace(".", "/")
    pushed.write_text(design.host_file(plan, host, fleet_lab.START))
    clock.write_text(f"{fleet_lab.START - 60}\n")
    run(ROOT / "rollout/host/faultline-ab", "start", pushed)
    arms = plan.arms[host.name]
    for arm, wanted in (("b", ON), ("a", STOCK)):
        clock.write_text(f"{fleet_lab.START + arms.index(arm) * plan.experiment.slot}\n")
        run(ROOT / "rollout/host/faultline-ab", "apply", "new")
        assert value.read_text() == f"{wanted}\n"
    run(ROOT / "rollout/host/faultline-ab", "stop")
    assert value.read_text() == f"{STOCK}\n"


def test_bench(sysctl: Path) -> None:
    """faultline-bench measures it, and bash offers its name."""
    folder = sysctl.parent
    for name, text in (("micro", MICRO), ("munmap", "#!/bin/sh\n"), ("survey", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    said = run(ROOT / "rollout/bench/faultline-bench", "--programs", folder, "--tests", "new",
               "--switches", "some_stall", "--rounds", 3, "--output", folder / "out.json")
    assert f"\non: {NAME}={ON}\n" in said
    assert next(line for line in said.splitlines() if line.startswith("new ")).split()[1:4] \
        == [str(STOCK), "operations/s", f"{ON / STOCK:.3f}"]
    assert "is a number from 3 to 9, not '10'" in run(
        ROOT / "rollout/bench/faultline-bench", "--programs", folder, "--switches",
        "some_stall=10", status=1)
    offered = run("bash", "-c", '. "$0"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
                  "_faultline_bench; echo ${COMPREPLY[@]}",
                  ROOT / "rollout/bench/completion/faultline-bench",
                  "faultline-bench", "--switches", "s")
    assert offered.split() == ["speculative_page_fault", "some_stall"]


def test_package(sysctl: Path) -> None:
    """The files of faultline-profiles have it, and profiles stay as they are."""
    made, before = sysctl.parent / "made", sysctl.parent / "before"
    run(sysctl / "install.sh", made)
    run(ROOT / "sysctl/install.sh", before)
    assert f"\n.It {NAME} Ta 3 to 9 KiB Ta 4 Ta 7\n.El\n" in (
        made / "usr/share/man/man7/faultline-profiles.7").read_text()
    assert (made / "usr/lib/sysctl.d/60-faultline.conf").read_text().endswith(
        f"\n\n# The new stall: 4 as upstream, 7 not at all.\n#-{NAME} = 4\n")
    changed = run("diff", "-rq", before, made, status=1).splitlines()
    assert sorted(Path(line.split()[1]).name for line in changed) == [
        "60-faultline.conf", "faultline-profiles.7", "switches"]
