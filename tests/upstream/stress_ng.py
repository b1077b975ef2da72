# SPDX-License-Identifier: GPL-2.0-only
"""stress-ng's mmap, fault and fork stressors give the results of stock, with switches off and on.

A stressor passes if it runs for its time and finds no errors (--verify); one that cannot run
here is a skip.  FULL=1 adds an arm with all switches on.
"""

import shutil
import subprocess
import sys

from faultline.common import Fail, flag
from faultline.vm.guest import Job
from .arms import HERE, Arm, Boot, boot, ours
from .compare import Load, compare
from .results import read_stressors

# Time for each stressor in the guest.
SECONDS = 2
# Stressors run for a fixed time even if slow, so two machines can share a small host.
JOBS = 2
# Stressors that the installed stress-ng lacks are left out.  mlockmany is not used: it takes so
# much memory that stress-ng itself advises against it.
STRESSORS = (
    "fault", "userfaultfd",
    "mmap --mmap-mprotect", "mmapaddr", "mmapfixed", "mmapfork", "mmaphuge", "mmapmany",
    "mmapcow", "mmaprandom", "mmaptorture", "vma",
    "mremap", "munmap", "remap", "pagemove", "rmap", "stackmmap",
    "madvise", "mprotect", "pkey", "mincore", "mlock", "msync", "msyncmany",
    "fork --fork-vm", "vfork", "clone", "exec", "forkheavy",
    "vm --vm-bytes 64m", "vm-addr", "vm-rw", "vm-segv", "vm-splice", "pageswap", "swap", "numa",
    "bigheap", "brk", "stack", "bad-altstack", "malloc --malloc-pthreads 4 --malloc-touch",
    "shm", "shm-sysv", "memfd", "secretmem", "sigsegv", "tmpfs",
)


def available() -> list[str]:
    """The stressors available in the host's stress-ng."""
    if not shutil.which("stress-ng"):
        raise Fail("no stress-ng: run 'packaging/build-deps/install upstream'")
    known = subprocess.run(["stress-ng", "--stressors"], stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, check=True).stdout.split()
    return [stressor for stressor in STRESSORS if stressor.split()[0] in known]


def run(arm: Arm, name: str, groups: list[str]) -> Boot:
    """Run stressors on an arm."""
    files = [str(HERE / "guest/stressors.sh"), f"{HERE / 'guest/sudo.sh'}:/bin/sudo",
             str(shutil.which("stress-ng"))]
    return boot(arm, name, Job(["stressors.sh", str(SECONDS), *groups], files), mem=3072,
                timeout=1200)


def main() -> None:
    """Run and compare."""
    sys.exit(compare(Load("stress-ng", available(), run, read_stressors, JOBS),
                     ours(flag("FULL"))))
