# SPDX-License-Identifier: GPL-2.0-only
"""Run test suites on a Debian 13, in a folder that mmdebstrap fills with its packages.

The folder, build/debian-13/userland, is a fresh Debian 13 with git and make, plus the packages of
packaging/build-deps/install.  The suites write to build/debian-13/build, where downloads and the
compiler cache are the host's.  The folder is made again after a week, and when the mirrors or the
list of packages change.

Mirrors and settings such as a proxy are those of the host's apt.  Root is needed for mounts; they
and all processes end with this program, as they are in namespaces of their own.
"""
from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from faultline import apt as archive
from faultline.apt import Apt, environment
from faultline.common import ROOT, Fail, Paths, lock, need_space, say, shown

RELEASE = "trixie"
SUITES = (RELEASE, f"{RELEASE}-updates", f"{RELEASE}-security")
# Those whose results depend on the programs of the host.
TESTED = ("lint", "models", "source", "build", "runner", "rollout")
# The packages that README expects of a fresh host.
FRESH = "git,make"
WEEK = 7 * 24 * 3600
# The packages, and below build/ a kernel branch and compiled kernels.
SIZE = 8 << 30
LOG_LINES = 12
# Settings of the host's apt without which its mirrors may be out of reach.
SETTING = re.compile(r"Acquire::(https?::|Check-|Force|Retries)")
# Variables that tests and downloads need.
KEPT = re.compile(r"CCACHE_\w+|(https?|no|ftp)_proxy|TERM", re.I)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Arguments: the folder, those to mount, --, the command.  /tmp is new, so it is empty.
ENTER = """
root=$1
shift
# pivot_root asks for a mount.
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
# Not chroot: tests make mount and user namespaces, for which / has to be a mount, and that of
# this namespace.  The old root ends up on top of the new one.
cd "$root"
pivot_root . .
umount -l .
# Not exec: this shell is process 1, and reaps what tests leave behind.
status=0
"$@" || status=$?
exit $status
"""


def settings() -> list[str]:
    """The settings of the host's apt that its mirrors need."""
    dump = subprocess.run(["apt-config", "dump"], env=environment(), text=True,
                          capture_output=True, check=True).stdout
    return [line for line in dump.splitlines() if SETTING.match(line)]


class Userland:
    """The folder build/debian-13."""

    def __init__(self, paths: Paths) -> None:
        """Nothing is made yet."""
        self.paths = paths
        self.folder = paths.build / "debian-13"
        self.root = self.folder / "userland"
        self.build = self.folder / "build"
        self.stamp = self.folder / "userland.inputs"
        self.log = paths.build / "log/debian-13.log"

    def make(self) -> None:
        """Make the userland, unless it is up to date."""
        if os.geteuid():
            raise Fail("a userland of Debian 13 needs root, to mount folders: run this as root")
        if not shutil.which("mmdebstrap"):
            raise Fail("mmdebstrap is not installed: run 'packaging/build-deps/install image'")
        sources = self.sources()
        inputs = self.inputs(sources)
        with contextlib.suppress(OSError):
            if (self.stamp.read_text(encoding="ascii") == inputs
                    and time.time() - self.stamp.stat().st_mtime < WEEK):
                return
        need_space(self.folder.parent, SIZE, "a Debian 13")
        self.stamp.unlink(missing_ok=True)
        if self.root.exists():
            shutil.rmtree(self.root)
        # mmdebstrap makes only the last folder of the path.
        self.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        say(f"making {shown(self.root)}: a minimal Debian 13 with {FRESH} ...")
        self._logged("mmdebstrap cannot make a Debian 13", [
            "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={FRESH}",
            *(f"--aptopt={line}" for line in settings()), RELEASE, str(self.root), "-"], sources)
        # The repository may belong to another user.
        (self.root / "etc/gitconfig").write_text("[safe]\n\tdirectory = *\n", encoding="ascii")
        self._logged("a Debian 13 cannot be entered", self._inside("true"))
        if subprocess.run(self._inside("packaging/build-deps/install"), check=False).returncode:
            raise Fail("Debian 13 does not get the packages of packaging/build-deps: read the "
                       "lines above")
        self.stamp.write_text(inputs, encoding="ascii")
        say(f"made {shown(self.root)} in {time.monotonic() - began:.0f} s")

    def sources(self) -> str:
        """One-line sources: the suites of Debian 13 that the host's mirrors have."""
        apt = Apt(self.paths).update()
        known = re.findall(r"(?m)^ *\d+ (\S+) (\S+)/main \S+ Packages$",
                           apt.run("apt-cache", "policy").stdout)
        wanted = [(uri, suite) for uri, suite in dict.fromkeys(known) if suite in SUITES]
        if RELEASE not in (suite for _, suite in wanted):
            why = f" ({apt.trouble})" if apt.trouble else ""
            raise Fail(f"the mirrors in apt's sources have no {RELEASE}{why}: add one that has it, "
                       "or check the network")
        return "".join(f"deb [signed-by={archive.keyring()}] {uri} {suite} main\n"
                       for uri, suite in wanted)

    @staticmethod
    def inputs(sources: str) -> str:
        """A digest of the userland's inputs."""
        total = hashlib.sha256(sources.encode())
        for path in (Path(__file__), ROOT / "packaging/build-deps/debian.list"):
            total.update(path.read_bytes())
        return f"{total.hexdigest()}\n"

    def test(self, suites: list[str]) -> int:
        """Run suites there; returns the status of tests/run."""
        self.build.mkdir(parents=True, exist_ok=True)
        self.paths.cache.mkdir(exist_ok=True)
        cache = self.build / "cache"
        if not cache.is_symlink():
            cache.symlink_to(self.paths.cache)
        for command in (["tools/fl", "tree"], ["tests/run", *suites]):
            status = subprocess.run(self._inside(*command), check=False).returncode
            if status:
                break
        return status

    def _inside(self, *command: str) -> list[str]:
        """The command that runs one at the top of the repository in the userland."""
        for name in ("resolv.conf", "hosts"):
            (self.root / "etc" / name).unlink(missing_ok=True)
            shutil.copyfile(f"/etc/{name}", self.root / "etc" / name)
        kept = {key: value for key, value in os.environ.items() if KEPT.fullmatch(key)}
        # The history of a work tree, and a compiler cache, may be elsewhere.
        history = subprocess.run(["git", "rev-parse", "--path-format=absolute",
                                  "--git-common-dir"], cwd=ROOT, text=True, capture_output=True,
                                 check=True).stdout.strip()
        mounted = [str(ROOT), str(self.paths.build), history]
        if "CCACHE_DIR" in kept:
            mounted.append(kept["CCACHE_DIR"])
        variables = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "CI": "true",
                     "BUILD": str(self.build), **kept}
        return ["unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                "--kill-child", "sh", "-euc", ENTER, "enter", str(self.root), *mounted, "--",
                "env", "-i", f"--chdir={ROOT}",
                *(f"{key}={value}" for key, value in variables.items()), *command]

    def _logged(self, problem: str, command: list[str], text: str = "") -> None:
        """Run a command that must succeed, with its output in the log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w", encoding="utf-8") as log:
            status = subprocess.run(command, input=text, text=True, stdout=log, stderr=log,
                                    check=False).returncode
        if status:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise Fail("\n".join((f"{problem}: see {shown(self.log)}, which ends",
                                  *(f"  {line}" for line in lines[-LOG_LINES:]))))


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", metavar="SUITE[/NAME]", default=TESTED,
                        help=f"default: {' '.join(TESTED)}")
    suites = list(parser.parse_args().suite)
    userland = Userland(Paths.from_env())
    with lock(userland.folder.with_name(".debian-13.lock")):
        userland.make()
        return userland.test(suites)
