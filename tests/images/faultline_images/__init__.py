# SPDX-License-Identifier: GPL-2.0-only
"""Hosts on disks: our packages installed, booted, upgraded, removed, and broken off.

  image      has mkosi build the disks, when their inputs changed
  host       one virtual host: a disk, firmware variables, and boots of it
  repository the signed repositories, and spoiled ones, served over HTTP
  story      what the test programs have in common: TAP, and the way to a host
"""
