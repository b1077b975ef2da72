# SPDX-License-Identifier: GPL-2.0-only
"""Run a tool of the tests: tests/lab VERB [ARGUMENT...]."""

from __future__ import annotations

import sys

from faultline.verbs import dispatch

# The module and function of each verb, and what it does.
VERBS = {
    "bench": ("bench.cli:main", "measure a feature in VMs"),
    "boot": ("lib.boot:main", "boot a kernel and run its selftests: a row of suites.py"),
    "compile": ("bench.guest:compile_main", "compile a program of benchmarks; prints its path"),
    "flavour": ("lib.flavours:main", "print the image, the selftests or the make of a flavour"),
    "hosts build": ("hosts.build:main", "build the disks of the test hosts"),
    "hosts packages": ("hosts.packages:main", "make the repositories for the test hosts"),
    "hosts shell": ("hosts.shell:main", "open a shell on a test host"),
    "hosts test": ("hosts.story:main", "test packages on a test host"),
    "rules": ("lib.rules:main", "break the rules of a feature: a row of suites.py"),
    "upstream mm": ("upstream.mm:main", "compare upstream's mm selftests on stock and on ours"),
    "upstream stress-ng": ("upstream.stress_ng:main", "compare stress-ng on stock and on ours"),
    "userland": ("lib.userland:main", "run test suites on a Debian 13"),
}

if __name__ == "__main__":
    sys.exit(dispatch("lab", VERBS))
