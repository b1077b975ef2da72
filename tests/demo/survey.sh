#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# In the second guest of tests/demo/run.sh, whose clock counts instructions, 64 ns each.

mib=128
# 2^6: --icount 6.
ns_per_instruction=64

echo
echo "One thread works on $mib MiB while another keeps mapping and unmapping a page: the longest wait"
echo "of the other one, every switch off and on (the two CPUs take turns, and an instruction counts"
echo "as 1 ns, so that a busy host does not count):"
survey --arms off,on --rounds 1 --size $mib --switches switches munmap dontneed populate_write mlock \
	munlock fixed_none >/tmp/survey || exit 1
awk -v scale=$ns_per_instruction '
	$1 == "sample" && sub(/_[0-9]+m_4k_wait_max$/, "", $2) {
		if (!($2 in off) && !($2 in on))
			names[++n] = $2
		if ($4 == "off")
			off[$2] = $5 / scale
		else
			on[$2] = $5 / scale
	}
	END {
		for (i = 1; i <= n; i++)
			printf "  %-16s off %7.1f ms   on %7.1f ms\n", names[i], off[names[i]], on[names[i]]
	}' /tmp/survey
