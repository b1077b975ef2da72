#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The switches on the kernel command line.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

# Of all switches: their names, lines with the values at boot, and parameters, lines and messages
# for "on".
names=() stock=() parameters=() on=()
while read -r switch _ _ off value _; do
	[[ $switch == vm.* ]] || continue
	names+=("${switch#vm.}")
	stock+=("$switch $off")
	parameters+=("sysctl.$switch=$value")
	on+=("$switch $value" "log $switch: $off -> $value by swapper/0[1]")
done <sysctl/switches

# booted PARAMETERS: prints the values, the effect of a write, and the kernel log.
# shellcheck disable=SC2016 # expanded in the guest
booted() {
	in_vm microvm boot --quiet --mem 512 --append "$1" -- sh -c '
		knob=/proc/sys/vm/munmap_section_kbytes
		for name; do
			echo "vm.$name $(cat /proc/sys/vm/$name)"
		done
		echo "mode $(stat -c %a $knob)"
		(echo 2048 >$knob) 2>/dev/null && echo "write ok" || echo "write refused"
		echo "then $(cat $knob)"
		dmesg | sed -n "s/.*faultline: /log /p; s/.*Failed to set sysctl/log sysctl/p"' \
		sh "${names[@]}"
}

# says NAME LINE...: $out has each of these lines.
says() {
	local name=$1 line missing=
	shift
	for line; do
		grep -qxF -- "$line" <<<"$out" || missing+="missing: $line"$'\n'
	done
	check_empty "$name" "${missing:+$missing$out}"
}

out=$(booted "")
says "without parameters, every switch is at its stock value" \
	"${stock[@]}" "mode 644" "write ok" "then 2048"
check_empty "without parameters, the kernel logs nothing about switches" \
	"$(grep -E '^log (sysctl|faultline=|.* at boot$|.*\[1\]$)' <<<"$out" || true)"

out=$(booted "faultline=off sysctl.vm.munmap_section_kbytes=65536")
says "faultline=off keeps the switches at stock, read-only" \
	"${stock[@]}" "mode 444" "write refused" "then 0" \
	"log disabled by boot parameter, all features behave as upstream" \
	"log sysctl parameter 'vm.munmap_section_kbytes=65536': permission denied (read-only?)"

bad="ignored, expected off; sysctl.vm.NAME=VALUE sets a switch"
out=$(booted "faultline faultline=on faultline=munmap_section_kbytes:65536")
says "any other value of faultline= is reported and ignored" "${stock[@]}" "mode 644" "write ok" \
	"log faultline=: bad value '' $bad" "log faultline=: bad value 'on' $bad" \
	"log faultline=: bad value 'munmap_section_kbytes:65536' $bad"

# The kernel sets these as process 1, before that becomes init.
out=$(booted "${parameters[*]}")
says "sysctl.vm.NAME=VALUE sets each switch" "${on[@]}" "write ok" "then 2048"

out=$(booted "sysctl.vm.bogus=1 sysctl.vm.munmap_section_kbytes=x sysctl.vm.munmap_section_kbytes=1048577 sysctl.vm.hugetlb_pmd_sharing=3 sysctl.vm.munmap_section_kbytes=4096")
says "sysctl.vm. with a bad name or value is reported and ignored, good ones still work" \
	"vm.munmap_section_kbytes 4096" "vm.hugetlb_pmd_sharing 1" \
	"log sysctl parameter 'vm.bogus=1': parameter not found" \
	"log sysctl parameter 'vm.munmap_section_kbytes=x': invalid value" \
	"log sysctl parameter 'vm.munmap_section_kbytes=1048577': invalid value" \
	"log sysctl parameter 'vm.hugetlb_pmd_sharing=3': invalid value"
done_testing
