# SPDX-License-Identifier: GPL-2.0-only
"""The files in sysctl/ set existing switches to valid values and agree with each other.

Nothing is applied, because the host may run a kernel with these switches.
"""
from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from faultline.common import ROOT

SYSCTL = ROOT / "sysctl"
STOCK = SYSCTL / "60-faultline.conf"
PROFILES = {path.stem: path for path in sorted((SYSCTL / "profiles").glob("*.conf"))}
TUNED = {path.parent.name.removeprefix("faultline-"): path
         for path in sorted((SYSCTL / "tuned").glob("*/tuned.conf"))}
MANUAL = SYSCTL / "faultline-profiles.7"
OVERLAY = ROOT / "kernel" / "overlay" / "mm" / "faultline"
# Profiles of tuned in Debian 12 and 13.
TUNED_BASES = {"throughput-performance", "latency-performance", "virtual-host"}
SETTING = re.compile(r"(-?)(vm\.[a-z_]+) = (\d+)")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEMD = Path("/usr/lib/systemd/systemd-sysctl")


def readme() -> list[str]:
    """The rows of the table of switches in README.md."""
    return re.findall(r"(?m)^\| `(vm\.\w+)` \|.*\|$",
                      (ROOT / "README.md").read_text(encoding="utf-8"))


def manual() -> dict[str, tuple[int, int, int]]:
    """The switches of the manual page: least, greatest, stock."""
    rows = re.findall(r"(?m)^\.It (vm\.\w+) Ta (\d+) to (\d+)(?: KiB)? Ta (\d+)$",
                      MANUAL.read_text(encoding="utf-8"))
    return {name: (int(low), int(high), int(stock)) for name, low, high, stock in rows}


def kconfig() -> dict[str, tuple[int, int, int]]:
    """The switches in Kconfig: minimum, maximum, stock value."""
    # The first range is the widest: others are for kernels built without one of the values.
    rows = re.findall(r'(?m)^\tint "Value of (vm\.\w+) .*\n(?:\tdepends.*\n)*'
                      r"\trange (\d+) (\d+)(?: if .*)?\n(?:\trange .*\n)*\tdefault (\d+)$",
                      (OVERLAY / "Kconfig").read_text(encoding="utf-8"))
    return {name: (int(low), int(high), int(stock)) for name, low, high, stock in rows}


def toggles() -> set[str]:
    """The switches in the kernel's tables."""
    return {f"vm.{name}" for path in OVERLAY.glob("*.c") for name in re.findall(
        r'(?m)^\t\.name\s*= "(\w+)"', path.read_text(encoding="utf-8"))}


def blocks(path: Path) -> list[list[str]]:
    """The paragraphs of a file."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return [block.splitlines() for block in re.split(r"\n\n+", text)]


def settings(path: Path) -> dict[str, int]:
    """The settings of a profile; each paragraph after the header is a reason and one setting."""
    found: dict[str, int] = {}
    for block in blocks(path)[1:]:
        *reason, line = block
        match = SETTING.fullmatch(line)
        assert match and all(text.startswith("# ") for text in reason), \
            f"{path.name}: not comments and one '-vm.NAME = N': {block}"
        assert len(" ".join(reason)) >= 80, f"{path.name}: {match[2]} has no proper reason"
        assert match[1] == "-", f"{path.name}: the sign before {match[2]}"
        assert match[2] not in found, f"{path.name}: {match[2]} is set twice"
        found[match[2]] = int(match[3])
    return found


def run(*command: str | Path) -> str:
    """The output of a command that must succeed, stdout and stderr."""
    done = subprocess.run([str(word) for word in command], check=False, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={"LC_ALL": "C", "PATH": PATH})
    assert done.returncode == 0, f"status of {' '.join(map(str, command))} ({done.stdout})"
    return done.stdout


def test_same_switches() -> None:
    """60-faultline.conf, the manual page and README.md have the same switches."""
    known = sorted(readme())
    assert len(known) >= 4
    assert sorted(manual()) == known
    names = re.findall(r"(?m)^#-?(vm\.\w+) =", STOCK.read_text(encoding="utf-8"))
    assert sorted(names) == known


def test_kernel_has_them() -> None:
    """README.md lists each switch of the kernel once, and no other."""
    assert sorted(readme()) == sorted(toggles())


def test_kernel_ranges() -> None:
    """The manual page has the ranges and stock values of Kconfig."""
    assert manual() == kconfig()


def test_stock_file() -> None:
    """60-faultline.conf sets nothing and lists the stock values."""
    lines = STOCK.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
    values = {}
    for block in blocks(STOCK)[1:]:
        about, line = block
        assert about.startswith("# "), f"a line about {line}"
        match = SETTING.fullmatch(line.removeprefix("#"))
        assert match, f"not '#-vm.NAME = N': {line}"
        values[match[2]] = int(match[3])
    assert values == {name: row[2] for name, row in manual().items()}


def test_profiles() -> None:
    """Profiles set only our switches, each with a reason and a value in range."""
    assert sorted(PROFILES) == ["database", "jvm", "low-latency", "vm-host"]
    known = manual()
    for name, path in PROFILES.items():
        values = settings(path)
        for switch, value in values.items():
            assert switch in known, f"{path.name}: {switch} is not a switch of ours"
            low, high, _ = known[switch]
            assert low <= value <= high, f"{path.name}: {switch} = {value} is in range"
        useful = [switch for switch, value in values.items() if value != known[switch][2]]
        assert useful, f"{path.name} switches something on"
        assert f"\n.It Sy {name}\n" in MANUAL.read_text(encoding="utf-8")


def test_tuned() -> None:
    """tuned profiles have the same values."""
    assert sorted(TUNED) == sorted(PROFILES)
    for name, path in TUNED.items():
        parser = configparser.ConfigParser(interpolation=None, strict=True)
        parser.read(path, encoding="utf-8")
        assert parser["main"]["include"] in TUNED_BASES, f"{name}: include="
        values = settings(PROFILES[name])
        wanted = {"sysctl.faultline": {"type": "sysctl"} | {
            switch: str(value) for switch, value in values.items()}}
        got = {key: dict(parser[key]) for key in parser.sections() if key != "main"}
        for part in got.values():
            # tuned matches the full output of uname, including the host name.
            regex = re.compile(part.pop("uname_regex"))
            for release, match in (("6.12.117-faultline1.cloud", True),
                                   ("6.12.117-faultline1.2.generic", True),
                                   ("6.12.9+deb13-amd64", False)):
                text = f"Linux a-faultline-host {release} #1 SMP x86_64"
                assert bool(regex.search(text)) == match, f"{name}: uname_regex on {release}"
        assert got == wanted, f"sections of {name}"


def on_swappiness(folder: Path) -> list[Path]:
    """Copies of all files with all lines active and a key that every kernel has."""
    copies = []
    for path in (STOCK, *PROFILES.values()):
        text = re.sub(r"(?m)^#?-vm\.\w+ =", "-vm.swappiness =", path.read_text(encoding="utf-8"))
        copies.append(folder / path.name)
        copies[-1].write_text(text, encoding="utf-8")
    return copies


def test_procps(tmp_path: Path) -> None:
    """procps reads each line, and with -e ignores a missing key."""
    if not shutil.which("sysctl", path=PATH):
        pytest.skip("sysctl is not installed (package procps)")
    for path in on_swappiness(tmp_path):
        text = path.read_text(encoding="utf-8")
        values = re.findall(r"(?m)^-(vm\.swappiness = \d+)$", text)
        assert values, f"{path.name} has settings"
        assert run("sysctl", "--dry-run", "-p", path).splitlines() == values
        path.write_text(text.replace("vm.swappiness", "vm.faultline_no_such_switch"))
        assert run("sysctl", "-e", "--dry-run", "-p", path) == ""


def test_systemd(tmp_path: Path) -> None:
    """systemd-sysctl reads each file without complaints."""
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed")
    # Only keys below the prefix would be applied: none.
    command = (SYSTEMD, "--prefix=/net/faultline/none")
    for path in (STOCK, *PROFILES.values(), *on_swappiness(tmp_path)):
        assert run(*command, path) == ""
    bad = tmp_path / "bad.conf"
    bad.write_text("-vm.swappiness : 1\nno assignment\n", encoding="utf-8")
    done = subprocess.run([*command, bad], check=False, text=True, capture_output=True)
    assert "not an assignment" in done.stderr


def test_manual_form() -> None:
    """The manual page is well-formed."""
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed")
    assert run("mandoc", "-T", "lint", "-W", "warning", MANUAL) == ""
    text = re.sub(r"\s+", " ", re.sub(r".\x08", "", run("mandoc", "-T", "ascii", MANUAL)))
    assert "`-key = value'" in text
    assert "profiles/jvm.conf \\ /etc/sysctl.d" in text
