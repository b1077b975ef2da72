#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs in the guest, last: checks that page faults took folios of 64 KiB, whose 16 entries
# are contiguous.

folios=$(cat /sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/anon_fault_alloc)

echo "1..1"
if [ "${folios:-0}" -gt 0 ]; then
	echo "ok 1 page faults took folios of 64 KiB"
	echo "# $folios"
else
	echo "not ok 1 page faults took folios of 64 KiB"
	exit 1
fi
