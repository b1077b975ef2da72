# SPDX-License-Identifier: GPL-2.0-only
"""What the test programs have in common: from packages to a host, and TAP."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from sourcelib.common import Fail, Paths, flag, run_main

from . import repository
from .host import Host
from .image import Images

GUEST = Path(__file__).resolve().parents[1] / "guest"
# The glob of the package that has the kernel, and what names its version.
KERNEL_PACKAGE = {"deb": "linux-image-*-faultline*_*.deb", "rpm": "kernel-faultline-core-*.rpm"}


def stages(paths: Paths, flavour: str) -> list[dict[str, str]]:
    """The stage.env of the two builds: the release, and the rebuild that has the number 2."""
    found = []
    for name in (flavour, f"{flavour}.2"):
        path = paths.build / "stage" / name / "stage.env"
        if not path.is_file():
            raise Fail(f"no {path}: run 'tests/images/tools/repository {flavour}'")
        found.append(dict(line.split("=", 1) for line in path.read_text().splitlines()
                          if "=" in line))
    return found


class Story:
    """A test program about one host: its boots, and one TAP line per check."""

    def __init__(self, form: str, name: str) -> None:
        self.form = form
        self.full = flag("FULL")
        paths = Paths.from_env()
        flavour = os.environ.get("FLAVOUR") or "microvm"
        first, second = stages(paths, flavour)
        self.kver = (first["KVER"], second["KVER"])
        images = Images(paths)
        disk = images.build(form)
        work = images.folder / "run" / f"{form}-{name}"
        self.host = Host(work, disk, images.kernel(), paths.build / "vm/kvm-probe.json")
        served = work / "served"
        repository.prepare(
            Path(os.environ.get("REPOSITORY") or images.folder / "repo" / flavour),
            form, KERNEL_PACKAGE[form], served)
        self.server = repository.Server(served)
        self._steps = "\n".join([
            *(f"{key}={shlex.quote(value)}" for key, value in {
                "KVER1": first["KVER"], "KVER2": second["KVER"],
                "VERSION1": f"{first['UPSTREAM']}-{first['RELEASE']}",
                "VERSION2": f"{second['UPSTREAM']}-{second['RELEASE']}",
                "URL": self.server.url, "FULL": "yes" if self.full else "",
                "STORY": name,
            }.items()),
            *((GUEST / f"{part}.sh").read_text() for part in ("lib", form, name))])
        self.count = self.failed = 0
        print("TAP version 13", flush=True)
        self.note(f"{self.host.accel.accel}: {self.host.accel.why}")

    def note(self, text: str) -> None:
        """A remark."""
        print(f"# {text}", flush=True)

    def result(self, passed: bool, name: str, why: str = "") -> None:
        """One check of the host's owner, that is, ours."""
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name}", flush=True)
        for line in why.splitlines() if not passed else []:
            print(f"#   {line}", flush=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What happens to the host in here has not happened to it afterwards."""
        state = self.host.disk, self.host.form, self.host.variables
        yield
        self.host.disk, self.host.form, self.host.variables = state

    def boot(self, step: str, *, name: str = "", setting: str = "", **options: object) -> bool:
        """Boot the host and have it do one step; the boot itself is a check as well.

        False: it makes no sense to go on. That is so when the boot failed, or the first
        check of the step, which asks whether the host came up as it should have.
        """
        results: list[bool] = []

        def line(text: str) -> None:
            if match := re.fullmatch(r"(not )?ok - (.*)", text):
                results.append(not match[1])
                self.result(not match[1], f"{step}: {match[2]}")
            elif text.startswith("#"):
                # What else comes over this port is the firmware's, which takes all for a
                # terminal.
                print(text, flush=True)

        step, function = name or step, f"step_{step}"
        boot = self.host.boot(step, f"{setting}\n{self._steps}\n{function}\n", on_line=line,
                              **options)
        self.note(f"{step}: {boot.seconds:.0f} s, up after {boot.boot_seconds or 0:.0f} s, "
                  f"{boot.cpu_seconds:.0f} CPU-s")
        if cut_at := options.get("cut_at"):
            self.result(boot.cut, f"{step}: the power is cut at '{cut_at}'",
                        f"{boot.fault or 'the steps ended before that'} ({boot.log})")
            return boot.cut
        self.result(not boot.fault, f"{step}: the host boots, and ends without trouble",
                    f"{boot.fault} ({boot.log})")
        if not results:
            self.result(False, f"{step}: it says something")
        return not boot.fault and results[:1] == [True]

    def end(self) -> None:
        """The plan; the program fails if a check did."""
        print(f"1..{self.count}", flush=True)
        if self.failed:
            sys.exit(1)


def lifecycle(form: str) -> None:
    """Install, use, upgrade, roll back, remove."""
    story = Story(form, "lifecycle")
    for step in ("install", "use", "rollback", "remove", "gone"):
        # Two CPUs for the races among the feature tests.
        if not story.boot(step, cpus=2 if step == "use" else 1):
            break
    story.end()


# Where else the power is cut in an upgrade, when nothing is to be left out: the numbers are
# those of kernel-install's plugins (50 is depmod, 55 the initrd, 90 the entry).
CUTS = ("preinst", "unpacking", "40", "60", "done")


def failures(form: str) -> None:
    """Power cuts, no room, repositories and packages that are no good, bad kernels."""
    story = Story(form, "failures")
    if story.boot("cut_install", cut_at="mark unpacking") and story.boot("repair_install"):
        for point in CUTS if story.full else ():
            if form == "rpm" and point == "preinst":
                continue
            with story.aside():
                if story.boot("cut_at", name=f"cut_at_{point}", setting=f"POINT={point}",
                              cut_at=f"mark {point}"):
                    story.boot("mend", name=f"mend_{point}")
        if story.boot("cut_upgrade", cut_at="mark entry"):
            story.boot("trial", reboots=True, expected=("panic",))
    story.end()


def main(form: str, tell: Callable[[str], None]) -> int:
    """Run a test program."""
    if os.geteuid() != 0:
        print("1..0 # SKIP mkosi makes the disks of the hosts: run this as root")
        return 0
    return run_main(f"tests/images/{Path(sys.argv[0]).name}", lambda: tell(form))
