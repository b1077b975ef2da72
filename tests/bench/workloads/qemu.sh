#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# QEMU, which gives memory of its guest back beside reads of a disk: see teardown.py.
# shellcheck disable=SC1091,SC2154
. /bench/workloads/common.sh

PIECES=2

export PYTHONDONTWRITEBYTECODE=1
[ "$variant" != hugetlb ] || huge_pages $((PIECES * ((mib + 1) / 2)))
python3 /bench/workloads/teardown.py "$variant" "$out" "$ms" "$mib" $PIECES
huge_pages 0
