#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The guest side of tests/demo/run.sh.

vm=/proc/sys/vm
mib=512

echo "Linux $(uname -r), $(nproc) CPUs"
echo
echo "Switches (off, as upstream: 0; for hugetlb_pmd_sharing: 1)"
for name in munmap_section_kbytes madvise_section_kbytes hugetlb_pmd_sharing \
	pmd_clear_ipi_free speculative_page_fault; do
	if [ -e $vm/$name ]; then
		printf '  vm.%-24s %s\n' $name "$(cat $vm/$name)"
	else
		printf '  vm.%-24s %s\n' $name "not in this kernel yet"
	fi
done

echo
echo "One thread unmaps $mib MiB while another keeps mapping and unmapping a page:"
counters() {
	sed -n 's/^munmap_section_\(calls\|sections\|contended\) //p' /proc/vmstat |
		tr '\n' ' '
}
for kbytes in 0 65536 0 65536; do
	before=$(counters)
	munmap --arms $kbytes --rounds 1 --size $mib --fill 4k stall >/tmp/samples || exit 1
	# shellcheck disable=SC2046,SC2086 # word splitting is wanted
	set -- $before $(counters)
	awk -v sections=$(($5 - $2)) -v contended=$(($6 - $3)) -v kbytes=$kbytes '
		$2 ~ /_munmap$/ { total = $5 }
		# The samples named "quiet" are of the control, without a munmap.
		$2 ~ /_mmap_max$/ { stall = $5 }
		$2 ~ /_mmap_ratio$/ { ratio = $5 }
		$2 ~ /_mmap_n$/ { n = $5 }
		END {
			printf "  vm.munmap_section_kbytes=%-6d", kbytes
			printf " munmap %7.1f ms, longest wait of the other thread %7.1f ms", total, stall
			printf " (%3.0f%%), %5d pages mapped meanwhile", ratio * 100, n
			printf ", %2d sections\n", sections
		}' /tmp/samples
done
echo
dmesg | sed -n 's/.*\(faultline: vm\.\)/kernel log: \1/p' | tail -4
