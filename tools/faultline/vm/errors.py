# SPDX-License-Identifier: GPL-2.0-only
"""The error that ends a run, and the exit codes of `fl vm run`."""

COMMAND_SIGNAL = 123
TIMEOUT = 124
RUNNER_ERROR = 125
KERNEL_TROUBLE = 126
INTERRUPTED = 130


class RunnerError(Exception):
    """Wrong usage, a missing tool or an unsuitable host.

    The text is shown to the user unchanged: one line that says what to do.
    """
