# SPDX-License-Identifier: GPL-2.0-only
"""The survey of operations: its boots, its tables, and its pictures as XML."""

import re
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import pytest

from bench import cli, guest, picture, survey
from bench.guest import BenchError, Boot, Kernels, Sample
from bench.report import Report, rows_of
from faultline.common import ROOT
from faultline.vm.qemu import Machine

KERNELS = Kernels(Path("ours"), Path("stock"), Path("peer"))
SVG = "{http://www.w3.org/2000/svg}"


def samples(name: str, arm: str) -> list[Sample]:
    """Those of an operation that takes 200 ms; with its switch, nobody waits longer than 3 ms."""
    operation = re.sub(r"_\d+m_\w+$", "", name)
    wait = 3 if arm == "on" and operation in survey.HELPED else 190
    return [Sample(f"{name}_wait_max", "ms", arm, wait),
            Sample(f"{name}_wait_p99", "ms", arm, wait - 1),
            Sample(f"{name}_wait_ratio", "of_call", arm, wait / 200)]


def run(plan: survey.Plan, kernels: Kernels = KERNELS) -> tuple[Report, list[str]]:
    """Run PLAN without VMs; return also the names of the boots."""
    booted = []

    def boot(machine: Machine, _program: Path, commands: list[list[str]], name: str) -> Boot:
        booted.append(name)
        words, = commands
        option = {one: words[words.index(one) + 1] for one in ("--arms", "--size", "--fill")}
        scenes = words[words.index("--switches") + 2:]
        # Twice the memory, as mbind moves it.
        assert machine.mem > 2 * int(option["--size"])
        return Boot([sample for arm in option["--arms"].split(",") for scene in scenes
                     for sample in samples(scene if scene in survey.SMALL else
                                           f"{scene}_{option['--size']}m_{option['--fill']}", arm)],
                    f"6.12-{machine.kernel}", "tcg")

    with mock.patch.object(guest, "boot", boot), mock.patch.object(guest, "compile_program"):
        return survey.run(kernels, plan), booted


def test_names() -> None:
    """Each operation has words for people, and each that has an aim exists."""
    assert set(survey.CALLS) == set(survey.SCENES)
    assert set(survey.HELPED) < set(survey.SCENES)
    assert survey.SMALL and len(set(survey.CALLS.values())) == len(survey.CALLS)


def test_boots() -> None:
    """Each size, then each other kind of memory; all kernels beside each other."""
    report, booted = run(survey.Plan())
    assert booted == [f"survey-{group}{kernel}" for group in (
        "512m-4k", "2048m-4k", "2048m-thp", "2048m-hugetlb", "2048m-file")
        for kernel in ("", "-stock", "-peer")]
    assert report.kernel == "6.12-ours"
    # Small mappings are measured once.
    assert [row.n for row in report.rows if row.metric == "munmap_small_wait_max"] == [1] * 4
    assert all(aim.met for aim in report.aims)
    small = len(set(survey.HELPED) & set(survey.SMALL))
    assert len(report.aims) == 2 * (len(survey.HELPED) - small) + small
    # Nothing is left for the other groups.
    assert run(survey.Plan(scenes=("munmap_small",)))[1] == [
        "survey-512m-4k", "survey-512m-4k-stock", "survey-512m-4k-peer"]


def test_table() -> None:
    """A table for each kind of memory has the longest wait, p99 and the part of each arm."""
    report = run(survey.Plan(scenes=("populate_write", "fork", "fork_small")))[0]
    text = report.text()
    heads = [line for line in text.splitlines() if "stock, ms" in line]
    assert [head.partition("  ")[0] for head in heads] == [
        "512 MiB of 4 KiB pages", "2 GiB of 4 KiB pages", "2 GiB of transparent huge pages",
        "2 GiB of huge pages of hugetlb", "2 GiB of a shared file in memory", "small mappings"]
    assert {tuple(re.split("  +", head)[1:]) for head in heads} == {tuple(
        word for arm in ("stock", "peer", "off", "on") for word in (f"{arm}, ms", "p99", "part"))}
    stalled = ["190.0", "189.0", "0.950"]
    page = report.page().splitlines()
    assert page[0] == "| 512 MiB of 4 KiB pages | " + " | ".join(
        f"{what}, {arm}" for what in ("part", "ms", "p99")
        for arm in ("stock", "peer", "off", "on")) + " |"
    assert page.count("| MADV_POPULATE_WRITE | 0.950 | 0.950 | 0.950 | 0.015 | 190.0 | 190.0"
                      " | 190.0 | 3.0 | 189.0 | 189.0 | 189.0 | 2.0 |") == 5
    rows = [line.split() for line in text.splitlines()]
    assert rows.count(["populate_write", *3 * stalled, "3.0", "2.0", "0.015"]) == 5
    assert rows.count(["fork", *4 * stalled]) == 5 and rows.count(["fork_small", *4 * stalled]) == 1


def test_without_others() -> None:
    """An operation that an arm leaves out has a dash there; other kernels may be missing."""
    report, _ = run(survey.Plan(mib=(64,), kinds=("4k",)), Kernels(Path("ours"), None))
    report.rows = [row for row in report.rows
                   if not row.metric.startswith("mlock_64m") or row.arm == "on"]
    rows = [line.split() for line in report.text().splitlines()]
    assert ["mlock", "-", "-", "-", "3.0", "2.0", "0.015"] in rows
    bars = [mark for mark in drawn(report.pictures()["64m-4k"])
            if mark.find(f"{SVG}title") is not None]
    assert len(bars) == 2 * len(survey.SCENES) - 1


def drawn(text: str) -> list[ElementTree.Element]:
    """The marks of a picture, which is well-formed."""
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    return list(root)


def number(mark: ElementTree.Element, name: str) -> float:
    """A figure of a mark."""
    return float(mark.get(name, "nan"))


def test_picture() -> None:
    """A bar for each operation and arm is as long as its part of the time, and in the page."""
    report, _ = run(survey.Plan(mib=(512,), kinds=("4k", "thp")))
    pictures = report.pictures()
    assert list(pictures) == ["512m-4k", "512m-thp"]
    marks = drawn(pictures["512m-4k"])
    page = next(mark for mark in marks if mark.get("class") == "page")
    words = [mark.text for mark in marks if mark.tag == f"{SVG}text"]
    assert {*survey.CALLS.values(), *(arm.words for arm in survey.ARMS.values()),
            "with a switch", "as upstream"} <= set(words)
    bars = {}
    for mark in marks:
        assert number(mark, "x") >= 0 or mark.tag in (f"{SVG}title", f"{SVG}style")
        about = mark.find(f"{SVG}title")
        if about is not None:
            assert about.text
            call, _, rest = about.text.partition(", Faultline, ")
            bars[call, rest[:2]] = mark
            assert number(mark, "y") + number(mark, "height") < number(page, "height")
            assert number(mark, "x") + number(mark, "width") + picture.TEXT <= picture.WIDTH
    for name, call in survey.CALLS.items():
        part = 0.015 if name in survey.HELPED else 0.95
        assert number(bars[call, "on"], "width") == pytest.approx(
            max(1, picture.BAR * part), abs=0.05), name
        assert number(bars[call, "of"], "width") == picture.BAR * 0.95
    places = [(mark.get("x"), mark.get("y")) for mark in marks if mark.get("x")]
    assert len(places) == len(set(places))
    # The second one has no small mappings.
    assert survey.CALLS["fork_small"] not in pictures["512m-thp"]
    assert "512 MiB of transparent huge pages" in pictures["512m-thp"]


def test_dark() -> None:
    """On a dark page, each class has another fill: text, page, and the bars of each arm."""
    text = run(survey.Plan(mib=(512,), kinds=("4k",)))[0].pictures()["512m-4k"]
    light, _, dark = text.partition("@media (prefers-color-scheme:dark)")

    def fills(part: str) -> dict[str, str]:
        return {name: fill for names, fill in re.findall(r"([\w.,]+)\{[^}]*fill:(#\w{6})", part)
                for name in names.split(",")}
    assert set(fills(light)) - {".value"} == set(fills(dark)) - {".value"} == {
        "text", ".note", ".page", ".arm0", ".arm1", ".arm2", ".arm3"}
    for part in (light, dark):
        page, words = (sum(bytes.fromhex(fills(part)[name][1:])) for name in (".page", "text"))
        assert abs(page - words) > 500
    assert not {name for name, fill in fills(light).items() if fills(dark)[name] == fill}


def test_words_in_picture() -> None:
    """Characters of XML are escaped, and a long wait is no longer than a full bar."""
    row = picture.Row("a < b & c", (picture.Bar("x", 1.0, "<1", '"'),))
    marks = drawn(picture.draw("t & t", "n", {"x": picture.Arm("<x>", "red", "blue")}, [row]))
    assert {"a < b & c", "<1", "<x>"} <= {mark.text for mark in marks}
    report = survey.Survey("k", "m", rows_of([Sample("fork_64m_4k_wait_max", "ms", "on", 3),
                                              Sample("fork_64m_4k_wait_ratio", "", "on", 1.5)]))
    widths = [mark.get("width") for mark in drawn(report.pictures()["64m-4k"])]
    assert f"{picture.BAR:.1f}" in widths


def test_columns() -> None:
    """A heading is not the last of a column, and all rows are drawn in their order."""
    bars = (picture.Bar("x", 1.0, "", ""),)
    for first in range(1, 12):
        rows = [picture.Row("A"), *(picture.Row(f"a{n}", bars) for n in range(first)),
                picture.Row("B"), *(picture.Row(f"b{n}", bars) for n in range(12 - first))]
        columns = picture._columns(rows)
        assert [row for column in columns for row in column] == rows
        assert len(columns) == picture.COLUMNS
        assert all(column[-1].bars or column[-1] is rows[-1] for column in columns)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
               capsys: pytest.CaptureFixture[str]) -> None:
    """--from prints and draws a report again, and says which files it has written."""
    report, _ = run(survey.Plan(mib=(512,), kinds=("4k",)))
    paths = report.write(tmp_path / "survey.json")
    assert [path.name for path in paths] == ["survey.json", "survey.md", "survey-512m-4k.svg"]
    made = tmp_path / "made"
    monkeypatch.setattr(cli, "BUILD", made)
    monkeypatch.setattr("sys.argv", ["bench", "survey", "--from", str(paths[0])])
    cli.main()
    said = capsys.readouterr().out
    assert said.startswith(report.text())
    for path in paths:
        again = made / "bench" / path.name
        assert str(again) in said and again.read_text() == path.read_text()
    paths[0].write_text('{"kernel": "k"}')
    with pytest.raises(BenchError, match="not a report of lab bench"):
        cli.main()
    monkeypatch.setattr("sys.argv", ["bench", "munmap", "--from", str(paths[0])])
    with pytest.raises(BenchError, match="not for munmap"):
        cli.main()


@pytest.mark.parametrize(("words", "error"), [
    (("survey", "--kinds", "4k,big"), "no 'big' in 4k, thp"),
    (("spf", "--kinds", "4k"), "not for spf"), (("survey", "--mib", "0"), "1 or more")])
def test_errors(words: tuple[str, ...], error: str) -> None:
    """One clear error."""
    with pytest.raises(BenchError, match=error):
        cli._resize(cli._BENCHMARKS[words[0]].Plan(), cli._parser().parse_args(words))


@pytest.mark.parametrize("virtual", [False, True])
def test_clock(virtual: bool) -> None:
    """In virtual time the CPUs take turns, and the report says so."""
    plan = survey.Plan(mib=(64,), kinds=("4k",))
    words = ["survey", *(["--virtual-time"] if virtual else [])]
    cli._resize(plan, cli._parser().parse_args(words))
    with mock.patch.object(guest, "boot") as boot, mock.patch.object(guest, "compile_program"):
        boot.return_value = Boot(samples("fork_64m_4k", "on"), "6.12", "tcg")
        report = survey.run(KERNELS, plan)
    machines = [call.args[0] for call in boot.call_args_list]
    assert len(machines) == 3
    assert {(machine.cpus, machine.icount, machine.icount_fair) for machine in machines} == {
        (2, survey.SHIFT, True) if virtual else (2, None, False)}
    assert (survey.VIRTUAL in report.text()) == virtual
    # In ms of 1 ns per instruction; a part stays as it is.
    assert report.median("fork_64m_4k_wait_max", "on") == 190 / (64 if virtual else 1)
    assert report.median("fork_64m_4k_wait_ratio", "on") == 0.95


def test_results() -> None:
    """Each collected result has its tables in its page, and its pictures beside it."""
    folder = ROOT / "tests/bench/results"
    pictures: dict[str, str] = {}
    for path in (folder / "survey.json", *folder.glob("survey-*.json")):
        report = survey.Survey.read(path)
        assert report.page() in path.with_suffix(".md").read_text("utf-8"), \
            f"lab bench survey --from {path.name}"
        pictures |= {f"survey-{end}.svg": text for end, text in report.pictures().items()}
    found = {path.name: path.read_text("utf-8") for path in folder.glob("survey*.svg")}
    assert found == pictures, "lab bench survey --from"
    assert "(tests/bench/results/survey-512m-4k.svg)" in (ROOT / "README.md").read_text("utf-8")


def test_options() -> None:
    """--mib and --kinds take several, in the order of the plan for kinds."""
    plan = survey.Plan()
    cli._resize(plan, cli._parser().parse_args(
        ["survey", "--mib", "64,128", "--kinds", "file,4k"]))
    assert plan.groups() == [(64, "4k"), (128, "4k"), (128, "file")]
