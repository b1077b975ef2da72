# SPDX-License-Identifier: GPL-2.0-only
"""Open a root shell on a test host, for debugging.

    lab hosts shell deb            a new host with the stock kernel
    lab hosts shell DISK.qcow2     a host as left by a boot of a test, for example
                                            build/images/run/deb-lifecycle/02-use/disk.qcow2

Nothing is written to that disk. Leave with `poweroff -f` or Ctrl-A X. The repositories
made by `lab hosts packages` are at the address in the shell's variable URL.
"""

import argparse
import os
import pathlib
import subprocess

from faultline.common import Fail, Paths
from faultline.vm.qemu import find_qemu
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
    host = Host(images.folder / "run" / f"shell-{os.getpid()}", disk, images.kernel(),
                paths.build / "vm/kvm-probe.json")
    if not made:
        host.disk_format, host.variables = "qcow2", disk.with_name("variables.fd")
    server = Server(images.folder / "repo" / (os.environ.get("FLAVOUR") or "microvm"))
    # A shell on the console without login; the image has no getty.
    machine = host.machine(host.folder, {}, [
        "systemd.debug_shell=ttyS0", f"systemd.setenv=URL={server.url}"])
    command = machine.qemu_command(find_qemu(host.arch), {"console": "stdio,mux=on,signal=off"})
    subprocess.run([*command, "-mon", "chardev=console"], check=False)
