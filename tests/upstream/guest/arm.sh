#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs a command in the guest and prints the state of our switches and counters
# before and after it.  arm.sh COMMAND...

state()
{
	sed -n 's/^vm\.\([^ ]*\).*/\1/p' switches | while read -r name; do
		[ ! -r "/proc/sys/vm/$name" ] ||
			echo "$1 switch vm.$name $(cat "/proc/sys/vm/$name")"
	done
	# The prefixes of all names in include/linux/faultline_vmstat.h.
	grep -E '^(spf|(munmap|madvise|walk)_section|hugetlb|pmd_clear)_' /proc/vmstat |
		sed "s/^/$1 counter /"
}

state before
"$@"
status=$?
state after
exit $status
