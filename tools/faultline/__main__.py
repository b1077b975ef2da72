# SPDX-License-Identifier: GPL-2.0-only
"""Run a program of Faultline: tools/fl VERB [ARGUMENT...]."""

from __future__ import annotations

import importlib
import signal
import sys

from .common import run_main

# The module and function of each verb, and what it does.
VERBS = {
    "fetch": ("fetch:main", "download the pinned kernel source"),
    "tree": ("tree:main", "make the kernel branch in build/tree"),
    "export": ("export:main", "write the branch back to kernel/overlay and kernel/patches"),
    "rebase": ("rebase:main", "move the pin to another point release"),
    "audit": ("audit:main", "compare the code that the proof of speculative faults relies on"),
    "configure": ("configure:main", "make the .config of a flavour"),
    "build": ("build:main", "compile a flavour"),
    "stage": ("stage:main", "compile a flavour and lay out the contents of its packages"),
    "clean": ("clean:main", "remove what was generated"),
    "package deb": ("package.deb:main", "make the DEB packages of a stage"),
    "package deb-source": ("package.deb_source:main", "make the DEB source package"),
    "package rpm": ("package.rpm:main", "make the RPM packages of a stage"),
    "package rpm-source": ("package.rpm_source:main", "make the RPM source package"),
    "package make-repo": ("package.make_repo:main", "make signed apt and dnf repositories"),
    "package vex": ("package.vex:main", "state which CVEs concern our kernel, as OpenVEX"),
    "package sign-stage": ("package.sign_stage:main", "sign a stage for Secure Boot"),
    "release": ("make_release:main", "take the newest point release to tested repositories"),
    "vm run": ("vm.cli:run", "boot a kernel in a VM and run a command in it"),
    "vm shell": ("vm.cli:shell", "boot a kernel in a VM with a shell"),
    "vm kunit": ("vm.kunit:main", "boot a kernel in a VM and print its KUnit results"),
    "vm busybox": ("vm.busybox:main", "download busybox for another architecture"),
    "userland": ("testing.userland:main", "run test suites on a Debian 13"),
    "bench": ("bench.cli:main", "measure a feature in VMs"),
    "images build": ("images.build:main", "build the disks of the test hosts"),
    "images packages": ("images.packages:main", "make the repositories for the test hosts"),
    "images shell": ("images.shell:main", "open a shell on a test host"),
    "images test": ("images.story:main", "test packages on a test host"),
    "upstream mm": ("upstream.mm:main", "compare upstream's mm selftests on stock and on ours"),
    "upstream stress-ng": ("upstream.stress_ng:main", "compare stress-ng on stock and on ours"),
}


def usage() -> str:
    """The list of all verbs."""
    lines = [f"  {verb:20}{text}" for verb, (_, text) in VERBS.items()]
    return "\n".join(["usage: fl VERB [ARGUMENT...]", "", *lines, "",
                      "fl VERB --help describes the arguments."])


def main() -> int:
    """Run the program that the first one or two arguments name."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    for count in (1, 2):
        verb = " ".join(words[:count])
        if verb in VERBS:
            module, _, function = VERBS[verb][0].partition(":")
            # As ^C: undo what is half done.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            sys.argv = [f"fl {verb}", *words[count:]]
            program = importlib.import_module(f".{module}", __package__)
            return run_main(sys.argv[0], getattr(program, function))
    print(f"fl: error: no verb '{' '.join(words[:2])}': `fl help` lists them", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
