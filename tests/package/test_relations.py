# SPDX-License-Identifier: GPL-2.0-only
"""RPM packages provide and require what dnf, modules of others and scriptlets rely on, no more.

faultline-host brings no service that listens, in either format.

K is kernel-faultline with the suffix of the flavour, V the version; a scriptlet is in brackets.
"""
import os
import re
import subprocess

import pytest

from faultline.common import ROOT
from faultline.flavour import AUDIENCE, X86, find, meta_suffix

RELATIONS = """
K provides: installonlypkg(kernel)
K requires: K-core = V, K-modules = V
K-core provides: installonlypkg(kernel), kernel-core-uname-r = KVER, kernel-uname-r = KVER
K-core requires: /usr/bin/kernel-install [posttrans], /usr/bin/kernel-install [preun], dracut
K-core requires: coreutils [post], coreutils [posttrans], coreutils [preun]
K-modules provides: installonlypkg(kernel-module)
K-modules provides: kernel-modules-uname-r = KVER, kernel-modules-core-uname-r = KVER
K-modules requires: K-core = V, coreutils [post], kmod [post], kmod [postun]
K-devel provides: installonlypkg(kernel), kernel-devel-uname-r = KVER
K-devel requires: bison, elfutils-libelf-devel, findutils, flex, gcc, make, perl-interpreter
K-devel-matched requires: K-core = V, K-devel = V
K-tools provides: installonlypkg(kernel)
K-tools requires: faultline-perf
K-selftests provides: installonlypkg(kernel)
faultline-host requires: coreutils, gawk, systemd, util-linux, coreutils [preun]
faultline-host requires: gawk [preun], util-linux [preun], faultline-profiles >= V
faultline-bench requires: python3 >= 3.11, faultline-host >= V, faultline-profiles >= V
faultline-rollout requires: python3 >= 3.11, python3-matplotlib, python3-numpy, python3-scipy
faultline-rollout requires: faultline-profiles >= V
faultline-rollout recommends: ansible-core, openssh-clients
"""
DEBUG = "K-debuginfo provides: installonlypkg(kernel)"
MORE = {"cloud": DEBUG, "generic": f"{DEBUG}\nK-core recommends: K-modules = V, linux-firmware"}


@pytest.mark.parametrize("flavour", [name for name in AUDIENCE if find(name).arch is X86])
def test_relations(flavour: str) -> None:
    """Both directions: every relation is in the table, and every row is in the spec."""
    macros = {"flavour": flavour, "kver": f"6.12.117-faultline1.{flavour}", "upstream": "6.12.117",
              "faultline_release": "1", "epoch_seconds": "1700000000", "stage": "/", "repo": "/"}
    form = "".join(f"[%{{=NAME}} {kind.lower()}s: \t%{{{kind}NEVRS}}\t%{{{kind}FLAGS:deptype}}\n]"
                   for kind in ("PROVIDE", "REQUIRE", "RECOMMEND", "CONFLICT", "OBSOLETE"))
    shown = subprocess.run(
        ["rpmspec", "--target", "x86_64-linux", "-q", "--qf", form, "--define", "dist %{nil}",
         *(word for macro in macros.items() for word in ("--define", " ".join(macro))),
         ROOT / "packaging/rpm/linux-faultline.spec"], check=True, text=True, capture_output=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": "/nonexistent"}).stdout
    shown = shown.replace(f"kernel-faultline{meta_suffix(flavour)}", "K")
    shown = shown.replace("= 6.12.117-1\t", "= V\t").replace(macros["kver"], "KVER")
    found = {f"{of}{name}" + f" [{phase}]" * (phase != "manual")
             for of, name, phases in (line.split("\t") for line in shown.splitlines())
             # rpm adds the interpreter of scriptlets, and what each package is itself.
             if "interp" not in phases and name.split()[0].removesuffix("(x86-64)") != of.split()[0]
             for phase in phases.split(",")}
    rows = [row.partition(": ") for row in f"{RELATIONS}{MORE.get(flavour, '')}".split("\n") if row]
    assert found == {f"{of}: {name}" for of, _, names in rows for name in names.split(", ")}


def test_no_listener() -> None:
    """The installation of faultline-host on a fleet opens no port: node_exporter is suggested."""
    text = (ROOT / "packaging/deb/debian/control.in").read_text()
    stanza = next(one for one in text.split("\n\n") if "Package: faultline-host\n" in one)
    brought = re.findall(r"(?m)^(?:Pre-Depends|Depends|Recommends): (.*)$", stanza)
    assert brought == ["faultline-profiles (>= ${source:Version}), systemd, ${misc:Depends}"]
