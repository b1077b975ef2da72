# SPDX-License-Identifier: GPL-2.0-only
"""The counters that Faultline adds to /proc/vmstat."""
from __future__ import annotations

import functools
import re

from faultline.common import ROOT

HEADER = ROOT / "kernel/overlay/include/linux/faultline_vmstat.h"


@functools.cache
def names() -> frozenset[str]:
    """Their names, of all architectures."""
    return frozenset(re.findall(r'(?m)^\s+E\([A-Z0-9_]+, "([a-z0-9_]+)"\)',
                                HEADER.read_text("utf-8")))
