# SPDX-License-Identifier: GPL-2.0-only
"""Shared by test programs.

tap      prints results
boot     a row of suites.py in a VM
rules    a broken rule is noticed
herd     herd7, the simulator of memory models
touched  upstream files that our patches change
"""
