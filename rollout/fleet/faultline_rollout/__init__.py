# SPDX-License-Identifier: GPL-2.0-only
"""A/B experiments with the switches of the Faultline kernel, on a fleet of hosts."""


class Error(Exception):
    """A problem that the user can solve; the text says how."""
