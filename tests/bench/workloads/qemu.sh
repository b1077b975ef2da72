#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# QEMU, which changes the memory of its guest beside reads of a disk: see vm_memory.py.
# shellcheck disable=SC1091,SC2154
. /bench/workloads/common.sh

CHANGES=2

export PYTHONDONTWRITEBYTECODE=1
[ "$variant" != hugetlb ] || huge_pages $((CHANGES * ((mib + 1) / 2)))
python3 /bench/workloads/vm_memory.py "$variant" "$out" "$ms" "$mib" $CHANGES
huge_pages 0
