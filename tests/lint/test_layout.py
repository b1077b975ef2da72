# SPDX-License-Identifier: GPL-2.0-only
"""The product does not know its tests."""

import re
import subprocess

import pytest

from faultline.common import ROOT

PRODUCT = ("tools", "packaging", "rollout", "sysctl")
# tools/testing and usr/lib/linux-selftests are other folders; a page may tell how to run a test.
NAMED = re.compile(r"(?<![\w/-])tests/(?!run\b)")


def product() -> list[str]:
    """The files that are shipped, or make what is shipped; not the pages about them."""
    return subprocess.run(["git", "ls-files", *PRODUCT, ":!*/README.md"], cwd=ROOT, check=True,
                          text=True, capture_output=True).stdout.splitlines()


@pytest.mark.parametrize("folder", PRODUCT)
def test_names_no_test(folder: str) -> None:
    """No file of the product names a file in tests/."""
    found = [f"{name}:{number}: {line.strip()}" for name in product()
             if name.startswith(f"{folder}/") and (ROOT / name).is_file()
             for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
             if NAMED.search(line)]
    assert not found, "\n".join(found)


# Programs that people type, that are installed, and whose names others choose.
PLAIN = {
    ".ci/run", "packaging/build-deps/install", "tests/lab", "tests/run", "tools/fl",
    "packaging/share/faultline-perf", "packaging/share/run-selftests",
    "rollout/bench/faultline-bench", "rollout/fleet/faultline-rollout",
    "rollout/host/faultline-ab", "rollout/host/faultline-boot",
    "rollout/host/faultline-trial-generator", "rollout/host/health.d/10-kernel",
    "rollout/host/health.d/20-units", "packaging/deb/debian/rules"}


def test_programs_have_endings() -> None:
    """Any other program says by its ending in which language it is."""
    ours = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, check=True, text=True,
                          capture_output=True).stdout.splitlines()
    without = {name for mode, _, _, name in map(str.split, ours)
               if mode == "100755" and "." not in name.rpartition("/")[2]}
    assert without == PLAIN
