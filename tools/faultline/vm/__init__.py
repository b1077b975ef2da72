# SPDX-License-Identifier: GPL-2.0-only
"""Boot a kernel under QEMU, run one command in it and judge the kernel.

The modules, from the inside out:

  errors     the one exception that ends a run with a clear line
  arch       the differences between machine types (a table)
  ktap       reads test results
  console    reads the kernel's log for signs of trouble
  initramfs  makes the guest's root file system
  guest      puts one job (command, files, settings) into a root file system
  qemu       the QEMU command line and process
  session    one boot: relays the channels, times and ends it
  accel      KVM or TCG, decided by a test boot
  verdict    turns the outcome of a boot into an exit code
  run        one run, from a machine and a job to a report
  cli        the commands run and shell
"""
