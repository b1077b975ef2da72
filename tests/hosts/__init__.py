# SPDX-License-Identifier: GPL-2.0-only
"""Hosts with disks: install, boot, upgrade and remove our packages, with interruptions.

  image      builds the disks with mkosi when their inputs change
  host       one virtual host: a disk, firmware variables, and its boots
  repository the signed repositories, and corrupted ones, served over HTTP
  packages   makes packages and signed repositories
  story      shared code of the test programs: scenarios and TAP
"""
