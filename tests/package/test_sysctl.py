# SPDX-License-Identifier: GPL-2.0-only
"""The files of faultline-profiles, and the table of switches that they are made from.

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
from lib.switches import TABLE

SYSCTL = ROOT / "sysctl"
PROFILES = {path.stem: path for path in sorted((SYSCTL / "profiles").glob("*.conf"))}
OVERLAY = ROOT / "kernel/overlay"
# Profiles of tuned in Debian 12 and 13.
TUNED_BASES = {"throughput-performance", "latency-performance", "virtual-host"}
SETTING = re.compile(r"(-?)(vm\.[a-z_]+) = (\d+)")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEMD = Path("/usr/lib/systemd/systemd-sysctl")
# Of the table, elsewhere in the kernel's source.
TEXTS = {
    # The first range is the widest: others are for kernels built without one of the values.
    "mm/faultline/Kconfig": r'(?m)^\tint "Value of (?P<name>vm\.\w+) .*\n(?:\tdepends.*\n)*'
    r"\trange (?P<low>\d+) (?P<high>\d+)(?: if .*)?\n(?:\trange .*\n)*\tdefault (?P<stock>\d+)$",
    "Documentation/admin-guide/mm/faultline/index.rst":
    r"(?m)^``(?P<name>vm\.\w+)`` +``\w+`` +(?P<stock>\d+) +(?P<low>\d+) to (?P<high>\d+)(?: KiB)?$",
}


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the package."""
    folder = tmp_path_factory.mktemp("made")
    run(SYSCTL / "install.sh", folder)
    return folder / "usr"


def stock(made: Path) -> Path:
    """The file with the stock values."""
    return made / "lib/sysctl.d/60-faultline.conf"


def number(text: str, names: dict[str, int]) -> int:
    """A constant of C, or the quotient of two."""
    first, *rest = (int(names.get(word, word)) for word in text.split(" / "))
    return first // rest[0] if rest else first


def toggles() -> dict[str, tuple[int, set[int], int]]:
    """The switches of the kernel: lowest value, highest by configuration, stock value."""
    folder = OVERLAY / "mm/faultline"
    listed = re.findall(r"\t&(\w+)_toggle,", (folder / "toggles.c").read_text("utf-8"))
    found = {}
    for path in folder.glob("*.c"):
        text = path.read_text("utf-8")
        names = {"SZ_1K": 1 << 10, "SZ_1G": 1 << 30}
        for enum in re.findall(r"(?m)^enum \{\n((?:\t[A-Z_]+,\n)+)\};$", text):
            names |= {name: value for value, name in enumerate(re.findall(r"\w+", enum))}
        for name, body in re.findall(r"(?s)toggle (\w+)_toggle = \{(.*?)\};", text):
            listed.remove(name)
            # A field that is missing is 0.
            fields = {"min": "0", "stock": "0"} | dict(re.findall(r"\.(\w+)\s*= ([^,]*),", body))
            high = re.sub(r"IS_ENABLED\(\w+\) \?", "", fields["max"]).split(":")
            found["vm." + fields["name"].strip('"')] = (
                number(fields["min"], names), {number(part.strip(), names) for part in high},
                number(fields["stock"], names))
    assert not listed
    return found


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


def test_table() -> None:
    """Values are in range, and "on" is not the stock value."""
    for name, row in TABLE.items():
        assert re.fullmatch(r"vm\.[a-z_]+", name) and row.unit in ("KiB", "-")
        new = [int(value) for value in row.new.split(",") if row.new != "-"]
        assert all(row.low <= value <= row.high for value in (row.stock, row.on, *new)), name
        assert row.on != row.stock, name


def test_kernel() -> None:
    """The table has the switches of the kernel, with its ranges and stock values."""
    assert {name: (low, max(high), value) for name, (low, high, value) in toggles().items()} == \
        {name: row[:3] for name, row in TABLE.items()}


@pytest.mark.parametrize("path", TEXTS)
def test_kernel_texts(path: str) -> None:
    """Kconfig and the admin guide have them, too, maybe without a value that few kernels have."""
    found = {match["name"]: tuple(int(match[key]) for key in ("low", "high", "stock"))
             for match in re.finditer(TEXTS[path], (OVERLAY / path).read_text("utf-8"))}
    wanted = toggles()
    assert set(found) == set(wanted)
    for name, (low, high, value) in found.items():
        assert (low, value) == wanted[name][::2] and high in wanted[name][1], name


def test_readme() -> None:
    """README.md has a row for each switch, with the value that turns it on."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"(?m)^\|.*\| `(vm\.\w+)` \| (\d+) \|.*\|$", text))
    assert told == {name: str(row.on) for name, row in TABLE.items()}


def test_manual(made: Path) -> None:
    """The manual page has the rows of the table, and a paragraph about each switch."""
    text = (made / "share/man/man7/faultline-profiles.7").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\.It (vm\..*)$", text) == [
        f"{name} Ta {row.low} to {row.high} {row.unit} Ta {row.stock} Ta {row.on}".replace(" -", "")
        for name, row in TABLE.items()]
    assert re.findall(r"(?m)^\.It Sy (vm\.\w+)$", text) == list(TABLE)


def test_stock_file(made: Path) -> None:
    """60-faultline.conf sets nothing and lists the stock values."""
    lines = stock(made).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []
    values = {}
    for block in blocks(stock(made))[1:]:
        about, line = block
        assert about.startswith("# "), f"a line about {line}"
        match = SETTING.fullmatch(line.removeprefix("#"))
        assert match, f"not '#-vm.NAME = N': {line}"
        values[match[2]] = int(match[3])
    assert values == {name: row.stock for name, row in TABLE.items()}


def test_profiles() -> None:
    """Profiles set only our switches, each with a reason and a value in range."""
    assert sorted(PROFILES) == ["database", "jvm", "low-latency", "vm-host"]
    manual = (SYSCTL / "faultline-profiles.7").read_text(encoding="utf-8")
    for name, path in PROFILES.items():
        values = settings(path)
        for switch, value in values.items():
            assert switch in TABLE, f"{path.name}: {switch} is not a switch of ours"
            row = TABLE[switch]
            assert row.low <= value <= row.high, f"{path.name}: {switch} = {value} is in range"
        useful = [switch for switch, value in values.items() if value != TABLE[switch].stock]
        assert useful, f"{path.name} switches something on"
        assert f"\n.It Sy {name}\n" in manual


def test_tuned(made: Path) -> None:
    """tuned profiles have the same values."""
    tuned = {path.parent.name.removeprefix("faultline-"): path
             for path in (made / "lib/tuned/profiles").glob("*/tuned.conf")}
    assert sorted(tuned) == sorted(PROFILES)
    for name, path in tuned.items():
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


def on_swappiness(made: Path, folder: Path) -> list[Path]:
    """Copies of all files with all lines active and a key that every kernel has."""
    copies = []
    for path in (stock(made), *PROFILES.values()):
        text = re.sub(r"(?m)^#?-vm\.\w+ =", "-vm.swappiness =", path.read_text(encoding="utf-8"))
        copies.append(folder / path.name)
        copies[-1].write_text(text, encoding="utf-8")
    return copies


def test_procps(made: Path, tmp_path: Path) -> None:
    """procps reads each line, and with -e ignores a missing key."""
    if not shutil.which("sysctl", path=PATH):
        pytest.skip("sysctl is not installed (package procps)")
    for path in on_swappiness(made, tmp_path):
        text = path.read_text(encoding="utf-8")
        values = re.findall(r"(?m)^-(vm\.swappiness = \d+)$", text)
        assert values, f"{path.name} has settings"
        assert run("sysctl", "--dry-run", "-p", path).splitlines() == values
        path.write_text(text.replace("vm.swappiness", "vm.faultline_no_such_switch"))
        assert run("sysctl", "-e", "--dry-run", "-p", path) == ""


def test_systemd(made: Path, tmp_path: Path) -> None:
    """systemd-sysctl reads each file without complaints."""
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed")
    # Only keys below the prefix would be applied: none.
    command = (SYSTEMD, "--prefix=/net/faultline/none")
    for path in (stock(made), *PROFILES.values(), *on_swappiness(made, tmp_path)):
        assert run(*command, path) == ""
    bad = tmp_path / "bad.conf"
    bad.write_text("-vm.swappiness : 1\nno assignment\n", encoding="utf-8")
    done = subprocess.run([*command, bad], check=False, text=True, capture_output=True)
    assert "not an assignment" in done.stderr


def test_manual_form(made: Path) -> None:
    """The manual page is well-formed."""
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed")
    page = made / "share/man/man7/faultline-profiles.7"
    assert run("mandoc", "-T", "lint", "-W", "warning", page) == ""
    text = re.sub(r"\s+", " ", re.sub(r".\x08", "", run("mandoc", "-T", "ascii", page)))
    assert "`-key = value'" in text
    assert "profiles/jvm.conf \\ /etc/sysctl.d" in text
