# SPDX-License-Identifier: GPL-2.0-only
"""The error that ends a run, and the exit codes of `fl vm run`."""

from ..common import Fail

COMMAND_SIGNAL = 123
TIMEOUT = 124
RUNNER_ERROR = 125
KERNEL_TROUBLE = 126


class RunnerError(Fail):
    """Wrong usage, a missing tool or an unsuitable host."""

    status = RUNNER_ERROR
