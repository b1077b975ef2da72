# SPDX-License-Identifier: GPL-2.0-only
"""Runs upstream tests on several kernels and compares the results.

  arms     the kernels and switch settings to compare
  results  parses the output of the programs in the guest
  compare  boots the arms, compares the results with stock, prints TAP
"""
