# SPDX-License-Identifier: GPL-2.0-only
"""The program faultline-stalls, a record for tests without a kernel, and VMs for the others."""
from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

from faultline.apt import Apt
from faultline.common import ROOT, Paths
from lib import fetched

PATHS = Paths.from_env()
STALLS = ROOT / "rollout/stalls"
GUEST = ROOT / "tests/rollout/stalls"
# Debian's kernels, and the releases whose they are.
KERNELS = {"6.1": "bookworm", "6.12": "trixie"}
PACKAGE = "linux-image-cloud-amd64"
# Text of the kernel is patched, so all CPUs share one host thread; each gets its turn, also on a
# busy host.
MACHINE = ("--cpus", "2", "--mem", "2048", "--icount", "4", "--icount-sleep", "--icount-fair")
# One CPU and a clock that counts its instructions: a fast host.
FAST = ("--cpus", "1", "--mem", "1024", "--icount", "0")
SWITCHES = {row.split()[0]: row.split()[3:5]
            for row in (ROOT / "sysctl/switches").read_text("utf-8").splitlines()
            if row.startswith("vm.")}
# Two waiters of one holder, a kernel thread, a hugetlb lock, a wait that nobody can attribute.
ROWS = (
    ("mmap_lock", 1, "db", 0, "munmap", "worker", "vm.munmap_section_kbytes",
     128, 2, 3_000_000_000, 2_000_000_000, "79:1,83:1"),
    ("mmap_lock", 0, "db", 0, "munmap", "other", "vm.munmap_section_kbytes",
     64, 1, 1_000_000_000, 1_000_000_000, "79:1"),
    ("mmap_lock", 1, "khugepaged", 1, "collapse", "worker", "-",
     0, 1, 500_000_000, 500_000_000, "75:1"),
    ("hugetlb-file", 1, "vm", 0, "munmap", "vm", "vm.hugetlb_pmd_sharing",
     0, 1, 250_000_000, 250_000_000, "71:1"),
    ("mmap_lock", 1, "-", 0, "unknown", "worker", "-", 0, 1, 2_000_000, 2_000_000, "43:1"),
    ("exit", 0, "vm", 0, "exit", "vm", "-", 0, 1, 800_000_000, 800_000_000, "78:1"))
LINES = ["faultline-stalls 1", "kernel\t6.12.1-test", "seconds\t10.000", "min_ns\t1000000",
         *(f"switch\t{name}\t-1" for name in SWITCHES),
         *(f"count\t{name}\t{count}" for name, count in (
             ("shorter_waits", 7), ("shorter_ns", 3_000_000), ("lost_waiters", 0),
             ("lost_waits", 4), ("lost_ns", 9_000_000), ("lost_stacks", 0),
             ("lost_broadcasts", 0), ("lost_exits", 3), ("lost_ends", 5), ("lost_calls", 6),
             ("unended_waits", 2), ("unended_longest_ns", 700_000_000))),
         "note\texits", "broadcasts\tjava\t0\t50", "broadcasts\tkhugepaged\t1\t20",
         *("\t".join(map(str, ("waits", *row))) for row in ROWS), "end"]


def build(out: Path, bounds: str = "") -> Path:
    """Compile the program without a warning, with other bounds of its maps than usual."""
    done = subprocess.run([STALLS / "build.sh", out], capture_output=True, text=True, check=False,
                          env={**os.environ, "CFLAGS": "-O2 -Wall -Werror", "BOUNDS": bounds})
    assert done.returncode == 0, done.stderr
    return out / "faultline-stalls"


def write_record(path: Path) -> Path:
    """Write the record to a file."""
    path.write_text("\n".join(LINES) + "\n", "ascii")
    return path


def kernel_of(version: str) -> Path:
    """The image of Debian's kernel, fetched once."""
    release = KERNELS[version]
    kept = PATHS.cache / f"stock-kernel-{release}"
    if not kept.is_dir():
        shown = Apt(PATHS, instead="leave out rollout/stalls", suite=release).update().run(
            "apt-cache", "depends", PACKAGE).stdout
        name = re.findall(r"Depends: (linux-image-\S+)", shown)
        assert name, f"{release} has no {PACKAGE}"
        fetched.folder_of("stock-kernel", release, {name[0]: ("./boot/vmlinuz-*",)}, 35,
                          "leave out rollout/stalls")
    image, = kept.glob("boot/vmlinuz-*")
    return image


def boot(kernel: Path, name: str, machine: Sequence[str], files: Sequence[Path | str],
         *words: str) -> tuple[Path, str]:
    """Run a script of GUEST, the first word, on a kernel: the files that it returns, its output."""
    out = PATHS.build / "vm" / name
    done = subprocess.run(
        [ROOT / "tools/fl", "vm", "run", "--kernel", kernel, "--out", out, "--quiet",
         "--timeout", "1500", *machine,
         *(f"--file={file}" for file in (*files, GUEST / "watch.sh", GUEST / words[0])),
         "--", "sh", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "files", done.stdout


def report(path: Path) -> dict[str, Any]:
    """A report in JSON, which follows the schema."""
    found: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(found, json.loads((STALLS / "schema.json").read_text()))
    return found
