# SPDX-License-Identifier: GPL-2.0-only
"""Open a root shell on a test host, for debugging.

    lab hosts shell deb            a new host with the stock kernel
    lab hosts shell deb-arm64      the same for arm64
    lab hosts shell DISK.qcow2     a host as left by a boot of a test, for example
                                            build/images/run/deb-lifecycle/02-use/disk.qcow2

Nothing is written to that disk. Leave with `poweroff -f` or Ctrl-A X. FLAVOUR says of which
flavour that host was, if not of microvm. The repositories made by `lab hosts packages` are at
the address in the shell's variable URL.
"""

import argparse
import os
import pathlib
import subprocess

from faultline.common import Fail, Paths
from faultline.flavour import X86, find
from faultline.vm.qemu import find_qemu
from suites import ARM64_HOST
from .host import Host
from .image import DISKS, Images
from .repository import Server


def main() -> None:
    """Boot the host with its console on this terminal."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host", metavar="NAME|DISK")
    host_name = parser.parse_args().host
    paths = Paths.from_env()
    images = Images(paths)
    made = host_name in DISKS
    disk = images.build(host_name) if made else pathlib.Path(host_name).absolute()
    if not disk.is_file():
        raise Fail(f"no disk {host_name}: give {', '.join(DISKS)}, or the disk of a boot")
    flavour = os.environ.get("FLAVOUR") or (
        ARM64_HOST if made and DISKS[host_name].arch != X86 else "microvm")
    host = Host(images.folder / "run" / f"shell-{os.getpid()}", disk,
                images.kernel(find(flavour, "").arch), paths.build / "vm/kvm-probe.json")
    if not made:
        host.disk_format, host.variables = "qcow2", disk.with_name("variables.fd")
    server = Server(images.folder / "repo" / flavour)
    # A shell on the console without login; the image has no getty.
    machine = host.machine(host.folder, {}, [
        f"systemd.debug_shell={host.arch.ports[0]}", f"systemd.setenv=URL={server.url}"])
    command = machine.qemu_command(find_qemu(host.arch), {"console": "stdio,mux=on,signal=off"})
    subprocess.run([*command, "-mon", "chardev=console"], check=False)
