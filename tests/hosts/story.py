# SPDX-License-Identifier: GPL-2.0-only
"""Shared code of the test programs: scenarios on a host, and TAP."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from faultline.common import ROOT, Fail, Paths, flag
from faultline.flavour import find, meta_suffix
from faultline.stage_env import read_env

from . import repository
from .host import Host
from .image import DISKS, FORMATS, RELEASE, Images, suffix

GUEST = ROOT / "tests/hosts/guest"
# The glob of the package that contains the kernel.
KERNEL_PACKAGE = {"deb": "linux-image-*-faultline*_*.deb", "rpm": "kernel-faultline*-core-*.rpm"}


def builds(paths: Paths, names: tuple[str, ...], flavour: str) -> dict[str, str]:
    """The variables KVER1, VERSION1, ... of the builds, and PERF, from the stage.env of each."""
    found = {}
    for number, name in enumerate(names, 1):
        folder = paths.build / "stage" / name
        if not folder.is_dir():
            raise Fail(f"no {folder}: run 'tests/lab hosts packages {flavour}'")
        env = read_env(folder)
        found[f"KVER{number}"] = env["KVER"]
        found[f"VERSION{number}"] = f"{env['UPSTREAM']}-{env['RELEASE']}"
        found["PERF"] = env["PERF"]
    if len(names) == 2:
        # The third kernel is a copy of the second.
        found["KVER3"] = re.sub(r"\.2(?=\.[a-z]+$)", ".3", found["KVER2"])
        found["VERSION3"] = re.sub(r"\.2$", ".3", found["VERSION2"])
    return found


class Scenario:
    """A test program for one host: its boots, and one TAP line per check."""

    def __init__(self, package_format: str, name: str, *, disk: str = "",
                 only_first: bool = False, mem: int = 1536, timeout: float = 1800) -> None:
        """Prepare the host: `disk` names another disk than that of the format, `only_first`
        leaves out the second build; each boot has `mem` MiB and `timeout` seconds.  The steps
        of NAME-12, on Debian 12, are those of NAME.  The flavour is FLAVOUR, and the host is
        of its architecture."""
        self.package_format = package_format
        steps = name.partition("-")[0]
        self.mem, self.timeout = mem, timeout
        self.full = flag("FULL")
        paths = Paths.from_env()
        flavour = os.environ.get("FLAVOUR") or "microvm"
        arch, packaged = find(flavour, "").arch, find(flavour, "").packaged
        known = builds(paths, (flavour,) if only_first else (flavour, f"{flavour}.2"), flavour)
        images = Images(paths)
        disk = "-".join((disk or package_format, *suffix(arch)))
        if disk not in DISKS:
            raise Fail(f"there is no host for {name} on {arch.debian}")
        work = images.folder / "run" / "-".join((package_format, name, *suffix(arch)))
        self.host = Host(work, images.build(disk), images.kernel(arch),
                         paths.build / "vm/kvm-probe.json",
                         has_unit=DISKS[disk].release != RELEASE)
        served = work / "served"
        repository.prepare(
            Path(os.environ.get("REPOSITORY") or images.folder / "repo" / flavour),
            images.folder / "packages" / flavour / "next", package_format,
            KERNEL_PACKAGE[package_format], arch, served)
        self.server = repository.Server(served)
        self._steps = "\n".join([
            *(f"{key}={shlex.quote(value)}" for key, value in {
                **known, "FLAVOUR": packaged, "META": meta_suffix(packaged),
                "URL": self.server.url, "FULL": "yes" if self.full else "",
                "SCENARIO": steps,
            }.items()),
            *((GUEST / f"{part}.sh").read_text() for part in ("lib", package_format, steps))])
        self.count = self.failed = 0
        print("TAP version 13", flush=True)
        self.note(f"{self.host.accel.accel}: {self.host.accel.why}")

    def note(self, text: str) -> None:
        """Print a remark."""
        print(f"# {text}", flush=True)

    def result(self, passed: bool, name: str, why: str = "") -> None:
        """Print the result of one check."""
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name}", flush=True)
        for line in why.splitlines() if not passed else []:
            print(f"#   {line}", flush=True)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Restore the state of the host at the end of the block."""
        state = self.host.disk, self.host.disk_format, self.host.variables
        yield
        self.host.disk, self.host.disk_format, self.host.variables = state

    def boot(self, step: str, *, name: str = "", setting: str = "", cut_at: str = "",
             cpus: int = 1, reboots: bool = False, bmc: bool = False,
             expected: tuple[str, ...] = ()) -> bool:
        """Boot the host and run one step; the boot itself is a check as well.

        Return False if there is no point in continuing: if the boot failed, or the first
        check of the step, which tests whether the host came up as expected.
        """
        results: list[bool] = []

        def line(text: str) -> None:
            if match := re.fullmatch(r"(not )?ok - (.*)", text):
                results.append(not match[1])
                self.result(not match[1], f"{step}: {match[2]}")
            elif text.startswith("#"):
                # Other output on this port is from the firmware, which treats every port as
                # a terminal.
                print(text, flush=True)

        step, function = name or step, f"step_{step}"
        boot = self.host.boot(step, f"{setting}\n{self._steps}\n{function}\n", on_line=line,
                              cut_at=cut_at, cpus=cpus, reboots=reboots, bmc=bmc,
                              expected=expected, timeout=self.timeout, mem=self.mem)
        self.note(f"{step}: {boot.seconds:.0f} s, up after {boot.boot_seconds or 0:.0f} s, "
                  f"{boot.cpu_seconds:.0f} CPU-s")
        if cut_at:
            self.result(boot.cut, f"{step}: the power is cut at '{cut_at}'",
                        f"{boot.fault or 'the steps ended early'} ({boot.log})")
            return boot.cut
        self.result(not boot.fault, f"{step}: the host boots and ends without trouble",
                    f"{boot.fault} ({boot.log})")
        if not results:
            self.result(False, f"{step}: the step prints results")
        return not boot.fault and results[:1] == [True]

    def end(self) -> None:
        """Print the plan; exit with an error if a check failed."""
        print(f"1..{self.count}", flush=True)
        if self.failed:
            sys.exit(1)


def lifecycle(package_format: str) -> None:
    """Install, use, upgrade, roll back, remove."""
    test = Scenario(package_format, "lifecycle")
    for step in ("install", "use", "rollback", "remove", "gone"):
        # Two CPUs for the races among the feature tests.
        if not test.boot(step, cpus=2 if step == "use" else 1):
            break
    test.end()


# Further points to cut the power at during an upgrade, with FULL=1: the numbers are those of
# kernel-install's plugins (50 is depmod, 55 the initrd, 90 the entry).
CUTS = ("preinst", "unpacking", "40", "60", "done")


def failures(package_format: str) -> None:
    """Power cuts, full disks, bad repositories and packages, bad kernels."""
    test = Scenario(package_format, "failures")
    if test.boot("cut_install", cut_at="mark unpacking") and test.boot("repair_install"):
        for point in CUTS if test.full else ():
            if package_format == "rpm" and point == "preinst":
                continue
            with test.snapshot():
                if test.boot("cut_at", name=f"cut_at_{point}", setting=f"POINT={point}",
                             cut_at=f"mark {point}"):
                    test.boot("mend", name=f"mend_{point}")
        if (test.boot("cut_upgrade", cut_at="mark entry")
                and test.boot("trial", reboots=True, expected=("panic",))):
            test.boot("early_hang", reboots=True, bmc=True)
    test.end()


def release(package_format: str) -> None:
    """Modules of DKMS, BTF, a dump, and both programs for an initial RAM file system."""
    # The memory is for crash and drgn, which read the debug information, and for the kernel
    # that saves the dump.
    test = Scenario(package_format, "release", disk="release", only_first=True, mem=3072,
                    timeout=5400)
    if test.boot("install") and test.boot("use", reboots=True, expected=("panic",)):
        test.boot("dracut")
    test.end()


# When to cut the power: seconds after faultline-boot begins to change what boots next.
CUT_AFTER = ("3.0", "3.3", "3.7")


def loaders(package_format: str) -> None:
    """Trials by faultline-boot with systemd-boot, and again with GRUB."""
    test = Scenario(package_format, "loaders", disk="loaders", only_first=True)
    if (test.boot("install") and trials(test, 0)
            and test.boot("convert") and test.boot("sorted")):
        trials(test, 1)
    test.end()


def loaders_12(package_format: str) -> None:
    """The same with GRUB of Debian 12, on a host that has it before it has our kernel."""
    test = Scenario(package_format, "loaders-12", disk="loaders-12", only_first=True)
    if (test.boot("convert") and test.boot("install", setting="LOADER=GRUB")
            and test.boot("sorted")):
        trials(test, 0)
    test.end()


def trials(test: Scenario, number: int) -> bool:
    """A trial that passes, some that fail, and power cuts; the stock kernel is the default."""
    if not (test.boot("ask") and test.boot("pass") and test.boot("pin") and test.boot("undo")
            and test.boot("fail", setting=f"ROUND={number}", reboots=True, expected=("panic",))):
        return False
    for after in CUT_AFTER:
        with test.snapshot():
            if test.boot("cut", setting=f"AFTER={after}", cut_at="mark changing"):
                test.boot("after_cut")
    return True


SCENARIOS = {"lifecycle": lifecycle, "failures": failures, "loaders": loaders,
             "loaders-12": loaders_12, "release": release}
DEB_ONLY = ("loaders", "loaders-12", "release")


def main() -> None:
    """Run a test program."""
    parser = argparse.ArgumentParser(description="Test our packages on a test host; prints TAP.")
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--flavour", help="default: FLAVOUR, or else microvm")
    args = parser.parse_args()
    if args.flavour:
        os.environ["FLAVOUR"] = args.flavour
    if args.format != "deb" and args.scenario in DEB_ONLY:
        raise Fail(f"the scenario {args.scenario} needs a DEB host: say deb")
    if os.geteuid() != 0:
        print("1..0 # SKIP mkosi needs root to make the disks of the hosts")
        return
    SCENARIOS[args.scenario](args.format)
