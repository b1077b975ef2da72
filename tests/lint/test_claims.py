# SPDX-License-Identifier: GPL-2.0-only
"""Figures in README, the admin guide and the man pages agree with tests/bench/results.

A figure without a result file is listed with the command that measures it.
"""

import re
from collections.abc import Iterator

import pytest

from faultline.common import ROOT

RESULTS = ROOT / "tests/bench/results"
PATHS = [ROOT / "README.md", *(ROOT / "kernel/overlay/Documentation").rglob("*.rst"),
         *(path for folder in ("sysctl", "rollout", "packaging")
           for path in (ROOT / folder).rglob("*.[1-9]"))]
# In one line each, for patterns.
DOCUMENTS = {path.name: " ".join(path.read_text("utf-8").split()) for path in PATHS}
NUMBER = re.compile(r"\d+(?:\.\d+)?")
# A measured figure: a share, a time, or a ratio; not a version.
FIGURE = re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?(?: ?%| ms\b| times\b)|[0-2]\.\d{2,4}(?![\w.]*\d))")

# Document, the words around its figures, file, row.  Each group has the name of a column; its
# figures are those of the first such row, rounded.
QEMU = ("workloads.md", r"\*\*shared max\*\*, three|QEMU, shared")
LATER = ("workloads.md", r"\*\*shared max\*\* \||the same, another day \| 3")
PYTHON = ("workloads.md", r"mapped max|Python, mapped")
ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("README.md", r"longest NBD read meanwhile \| (?P<stock>.*?\)) \| (?P<on>.*?\))", *QEMU),
    ("README.md", r"step of its other thread \| (?P<stock>.*?\)) \| (?P<on>.*?\))", *PYTHON),
    ("objections.rst", r"longest read takes (?P<on>.*?\)) with the switch on, "
     r"(?P<off>.*?\)) with it off and (?P<stock>.*?\)) on stock", *QEMU),
    ("objections.rst", r"it took (?P<on>.*?\)) here, (?P<peer>.*?\)) on 7.3.4 and (?P<stock>.*?\))",
     *LATER),
    ("objections.rst", r"step of that thread takes (?P<on>.*?\)) with the switch on, "
     r"(?P<off>.*?\)) with it off, (?P<peer>.*?\)) on 7.3.4 and (?P<stock>.*?\))", *PYTHON),
)
# The rows of a table in the guide, and those of the survey: the parts.
SURVEY = {
    r"``MAP_POPULATE``: longest wait / time": "MAP_POPULATE",
    r"``MADV_POPULATE_WRITE``: the same": "MADV_POPULATE_WRITE",
    r"``MADV_POPULATE_READ``: the same": "MADV_POPULATE_READ",
    r"mlock\(\) of memory that is not there: the same": "mlock, not there yet",
    r"mlock\(\) of memory that is there: the same": "mlock",
    r"munlock\(\): the same": "munlock",
    r"mlockall\(\): the same": "mlockall",
    r"``smaps_rollup``: the same": "smaps_rollup",
    r"``smaps``: the same": "smaps",
    r"``numa_maps``: the same": "numa_maps",
    r"``clear_refs`` \(1\): the same": "clear_refs, 1",
    r"``clear_refs`` \(4\): the same": "clear_refs, 4",
    r"``UFFDIO_WRITEPROTECT``: the same": "UFFDIO_WRITEPROTECT",
    r"close\(\) of a userfaultfd: the same": "close, userfaultfd",
    r"mbind\(\) with ``MPOL_MF_MOVE``: the same": "mbind, MOVE",
}
ROWS += tuple(("walk.rst", rf"{words} (?P<stock>[\d.]+) (?P<on>[\d.]+)", "survey.md", rf"{call} \|")
              for words, call in SURVEY.items())
# The same without another thread that waits: parts of the instructions.
COSTS = {
    "``MAP_POPULATE``": "MAP_POPULATE", "``MADV_POPULATE_WRITE``": "MADV_POPULATE_WRITE",
    "``MADV_POPULATE_READ``": "MADV_POPULATE_READ", r"mlock\(\) of memory that is there": "mlock",
    r"munlock\(\)": "munlock", r"mlockall\(\)": "mlockall", "``smaps``": "smaps",
    "``smaps_rollup``": "smaps_rollup", "``numa_maps``": "numa_maps",
    r"``clear_refs`` \(1\)": "clear_refs, 1", r"``clear_refs`` \(4\)": "clear_refs, 4",
    "``UFFDIO_WRITEPROTECT``": "UFFDIO_WRITEPROTECT",
    r"close\(\) of a userfaultfd": "close, userfaultfd",
    r"mbind\(\) with ``MPOL_MF_MOVE``": "mbind, MOVE",
    r"mremap\(\) that moves": "mremap that moves",
}
ROWS += tuple(("walk.rst", rf"{words} 1.000 (?P<on>[\d.]+)", "survey_cost.md", rf"{call} \|")
              for words, call in COSTS.items())
# The time beside a thread that maps without a pause.
TIMES = {"``MADV_POPULATE_WRITE``": "MADV_POPULATE_WRITE",
         "``MADV_POPULATE_READ``": "MADV_POPULATE_READ", "``numa_maps``": "numa_maps",
         r"``clear_refs`` \(4\)": "clear_refs, 4", "``UFFDIO_WRITEPROTECT``": "UFFDIO_WRITEPROTECT"}
ROWS += tuple(("walk.rst", rf"time of {words}, off is 1.00 (?P<on>[\d.]+)", "survey_time.md",
               rf"{call}, without pauses \|") for words, call in TIMES.items())
ROWS += (("README.md", r"(?P<on>[\d.]+) times for `UFFDIO_WRITEPROTECT`", "survey_time.md",
          "UFFDIO_WRITEPROTECT, without pauses"),)
ROWS += (("munmap.rst", r"for 30,000 mappings without pages 1.000 (?P<on>[\d.]+)", "survey_cost.md",
          r"munmap of 30,000 \|"),)
ROWS += tuple(("README.md", rf"{words}.*? \| (?P<stock>.*?\)) \| (?P<on>.*?\))",
               "workloads.md", row)
              for words, row in (("Redis, 4 GiB: longest request", "Redis beside the agent"),
                                 ("longest request, GC pauses excluded", "JVM beside the agent"),
                                 ("plugged into QEMU: longest NBD read", "QEMU, two DIMMs")))
ROWS += tuple(("walk.rst", rf"{words} (?P<stock>\d.*?\)) (?P<on>.*?\))", "workloads.md", row)
              for words, row in (("beside an agent", "Redis beside the agent"),
                                 ("GC excluded", "JVM beside the agent"),
                                 ("plugged in", "QEMU, two DIMMs")))
ROWS += tuple(("spf.rst", rf"{words} (?P<stock>.*?\)) (?P<on>.*?\))", "spf.md", row)
              for words, row in (
                  ("p99 of a writer, huge pages compacted, us", "compacted, writer, p99"),
                  ("longest, huge pages compacted, us", "compacted, writer, longest"),
                  ("p99 of a writer, huge pages cleared, us", "cleared, writer, p99")))
ROWS += tuple(("spf.rst", rf"instructions: {row} 1.000 (?P<on>[\d.]+)", "spf.md", row)
              for row in ("first touch of a table", "huge page", "first write of a mapping"))
ROWS += tuple(("spf.rst", rf"instructions per fault: {row} 1.000 (?P<on>[\d.]+)", "spf.md", row)
              for row in ("zero page", "new memory", "copy on write", "page reused"))
ROWS += tuple(("README.md", rf"write, reuse \| 1 \| (?:[\d.]+, ){{{number}}}(?P<on>[\d.]+)",
               "spf.md", row)
              for number, row in enumerate(("zero page", "new memory", "copy on write",
                                            "page reused")))
ROWS += (("spf.rst", r"instructions per fault: in the kernel 1.000 (?P<on>[\d.]+)", "spf.md",
          "new memory, in the kernel"),)
ROWS += tuple(("spf.rst", rf"allocations with a lock: {words} 1.000 (?P<on>.*?\))",
               "workloads.md", rf"{row} \| \d")
              for words, row in (("QEMU", "QEMU, private"), (r"JVM \(G1\)", "JVM, G1"),
                                 ("Redis", "Redis, FLUSHALL ASYNC")))
ROWS += (("spf.rst", r"Without these, at most (?P<files>[\d.]+)", "workloads.md",
          r"Redis, FLUSHALL ASYNC \| \d"),)
ROWS += tuple(("hugetlb_zero.rst",
               rf"{words} (?P<stock>[\d.]+) (?P<peer>[\d.]+) (?P<off>[\d.]+) (?P<on>[\d.]+)",
               "hugetlb_zero.md", row)
              for words, row in (
                  ("2 MiB, wait of a thread that changes the mapping", "2m, writer, p50"),
                  ("99th percentile", "2m, writer, p99"),
                  ("of a thread that maps a page of its own", "2m, mapper, p99"),
                  ("1 GiB, longest wait of the first", "1g, writer, longest"),
                  ("the same, of the second", "1g, mapper, longest"),
                  ("instructions of a fault on 2 MiB that nobody delays", "2 MiB")))
# The same for the largest figure of all such rows; "%" is the excess over 1.
LARGEST = (
    ("README.md", r"all the time (?P<on>[\d.]+ %) for pages", "survey_time.md",
     "MADV_POPULATE_WRITE, without pauses"),
    ("README.md", r"at most (?P<off>[\d.]+); at most (?P<on>[\d.]+)", "micro.md", ""),
    ("README.md", r"1 to (?P<on>[\d.]+ %) for faults that fall back", "micro.md",
     "page_fault3|brk1"),
    ("objections.rst", r"takes more than (?P<on>[\d.]+ %)", "micro.md", "(?!page_fault3)"),
    ("objections.rst", r"shared file mapping: (?P<on>[\d.]+ %)", "micro.md", "page_fault3"),
    ("symptoms.rst", r"and up to (?P<on>[\d.]+ %) where a fault falls back", "micro.md",
     "page_fault3|brk1"),
    ("spf.rst", r"every switch off, take up to (?P<off>[\d.]+ %) more", "micro.md", ""),
    ("spf.rst", r"shared file, first touch 1.000 (?P<on>[\d.]+)", "micro.md", "page_fault3"),
    ("spf.rst", r"private file, first write 1.000 (?P<on>[\d.]+)", "micro.md", "page_fault2"),
    ("spf.rst", r"move back 1.000 (?P<on>[\d.]+)", "micro.md", "brk1"),
)
# Figures without a result file: their number in a document, and the commands that measure them.
WITHOUT_FILE = {
    "README.md": (38, "make run, rollout/fleet/simulate.py, faultline-stalls in a VM; the guide "
                  "has those of the tables"),
    "hugetlb_zero.rst": (2, "make bench BENCH=hugetlb_zero"),
    "madvise.rst": (26, "make bench BENCH=munmap"),
    "munmap.rst": (38, "make bench BENCH=munmap and survey, make run; and a limit"),
    "objections.rst": (23, "make bench BENCH=munmap, BENCH=hugetlb, BENCH=spf, BENCH=workloads"),
    "pmd_clear.rst": (1, "the entries of a page table"),
    "spf.rst": (20, "make bench BENCH=spf"),
    "symptoms.rst": (6, "from the pages of munmap, madvise and spf"),
    "walk.rst": (2, "make bench BENCH=survey"),
    "faultline-experiment.5": (1, "an example"),
    "faultline-stalls.8": (28, "a limit, an example, tests/rollout/stalls/test_estimate.py"),
}


def table(file: str, row: str) -> Iterator[dict[str, list[list[float]]]]:
    """The figures of matching rows in a result file, by the last word of their column's head."""
    head: list[str] = []
    for line in (RESULTS / file).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and "stock" in line:
            head = [cell.rpartition(" ")[2] for cell in cells]
        elif line.startswith("| ") and re.match(row, line[2:]):
            found: dict[str, list[list[float]]] = {name: [] for name in head}
            for name, cell in zip(head, cells):
                found[name].append([float(one) for one in NUMBER.findall(cell)])
            yield found


@pytest.mark.parametrize("claim", [*ROWS, *LARGEST])
def test_result(claim: tuple[str, str, str, str]) -> None:
    """The figures of a claim are those of its result file."""
    document, words, file, row = claim
    match = re.search(words, DOCUMENTS[document])
    assert match, f"{document} does not say this any more: {words}"
    rows = list(table(file, row))
    assert rows, f"{file} has no row {row}"
    for column, text in match.groupdict().items():
        # Only tables of medians without ranges have a largest figure.
        result = (rows[0][column][0] if claim in ROWS else
                  max(cell for found in rows for cell in found[column] if len(cell) == 1))
        numbers = NUMBER.findall(text)
        assert len(numbers) in (1, len(result)), f"{document}: {match[0]}: a part of the range"
        for said, measured in zip(numbers, result, strict=False):
            value = 100 * (measured - 1) if text.endswith("%") else measured
            assert float(said) == round(value, len(said.partition(".")[2])), \
                f"{document}: {match[0]}: {column} is {result} in {file}"


def figures(name: str, text: str) -> list[str]:
    """The figures of a document that no result file has."""
    for document, words, _, _ in (*ROWS, *LARGEST):
        text = re.sub(words, "", text) if document == name else text
    # Shares in man pages are limits of a design, not results.
    return [one for one in FIGURE.findall(text)
            if name.endswith((".md", ".rst")) or not one.endswith("%")]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_without_file(name: str) -> None:
    """Other figures are listed with the command that measures them."""
    found, (count, command) = figures(name, DOCUMENTS[name]), WITHOUT_FILE.get(name, (0, ""))
    assert len(found) == count, f"{name} has {len(found)} of {count} figures: {found}"
    for bench in re.findall(r"BENCH=(\w+)", command):
        assert (ROOT / f"tests/bench/{bench}.py").is_file(), bench


def test_readme() -> None:
    """The figures in README's tables that no result file has are in the guide."""
    guide = {float(one) for name, text in DOCUMENTS.items() if name.endswith(".rst")
             for one in NUMBER.findall(text)}
    guide |= {round(100 * (one - 1), 1) for one in guide if 1 < one < 2}
    rows = " ".join(re.findall(r"(?m)^\|.*", (ROOT / "README.md").read_text("utf-8")))
    assert not [one for one in figures("README.md", rows)
                if float(NUMBER.findall(one)[0]) not in guide]
