#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# A Python program with numpy: see arrays.py.
# shellcheck disable=SC1091,SC2154
. /bench/workloads/common.sh

export PYTHONDONTWRITEBYTECODE=1
python3 /bench/workloads/arrays.py "$variant" "$out" "$ms" "$mib"
