#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The guest side of tests/demo/run.sh.

vm=/proc/sys/vm
mib=512

echo "Linux $(uname -r), $(nproc) CPUs"
echo
echo "Switches, with the value of upstream in parentheses"
while read -r name _ _ stock _; do
	case $name in
	vm.*) printf '  %-27s %s (%s)\n' "$name" "$(cat "$vm/${name#vm.}" 2>/dev/null || echo missing)" "$stock" ;;
	esac
done <switches

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
