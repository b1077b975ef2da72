# SPDX-License-Identifier: GPL-2.0-only
"""Benchmarks of the Faultline features, run in VMs."""
