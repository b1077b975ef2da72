# SPDX-License-Identifier: GPL-2.0-only
"""Run a program of Faultline: tools/fl VERB [ARGUMENT...]."""

from __future__ import annotations

import sys

from .verbs import dispatch

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
    "package sign-stage": ("package.sign_stage:main", "sign a stage for Secure Boot"),
    "release": ("make_release:main", "take the newest point release to tested repositories"),
    "vm run": ("vm.cli:run", "boot a kernel in a VM and run a command in it"),
    "vm shell": ("vm.cli:shell", "boot a kernel in a VM with a shell"),
    "vm busybox": ("vm.busybox:main", "download busybox for another architecture"),
}

if __name__ == "__main__":
    sys.exit(dispatch("fl", VERBS, "faultline."))
