#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs in the guest: checks that the MMU is $FAULTLINE_MMU, Radix or Hash, and that
# the page sizes are those of the flavour.

have=$(sed -n 's/^MMU[[:space:]]*: //p' /proc/cpuinfo)
huge=$(cat /sys/kernel/mm/transparent_hugepage/hpage_pmd_size)
base=$(sed -n 's/^KernelPageSize: *//p' /proc/self/smaps | sort -u)
failed=0

# is NUMBER NAME HAVE WANTED
is()
{
	if [ "$3" = "$4" ]; then
		echo "ok $1 $2 is $4"
	else
		failed=1
		echo "not ok $1 $2 is $4"
		echo "# it is '$3'"
	fi
}

case $FAULTLINE_MMU in
Radix) pmd=2097152 ;;
Hash) pmd=16777216 ;;
esac

echo "1..3"
is 1 "the MMU" "$have" "$FAULTLINE_MMU"
is 2 "the page" "$base" "64 kB"
is 3 "the huge page" "$huge" "$pmd"
exit $failed
