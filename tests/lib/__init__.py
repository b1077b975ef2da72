# SPDX-License-Identifier: GPL-2.0-only
"""Shared by test programs.

tap       prints results
boot      a row of BOOTS in a VM
rules     a row of RULES: a race notices a broken rule
switches  the table of switches
fetched   programs from Debian packages that are not installed
herd      herd7, the simulator of memory models
touched   upstream files that our patches change
userland  test suites in a Debian 13
lab       the command line of tests/lab
"""
