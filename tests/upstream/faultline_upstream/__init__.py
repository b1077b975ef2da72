# SPDX-License-Identifier: GPL-2.0-only
"""Runs tests that are not ours on several kernels and compares the results.

  arms     the kernels and settings of switches that are compared
  results  reads what the programs in the guest print
  compare  boots the arms, compares the results with stock's, prints TAP
"""
