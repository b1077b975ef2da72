# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For the test programs of this folder.  Source it after tap.sh.

# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

# selftests_with MMU [PARAMETER]: the selftests on a kernel that was booted with
# the parameter, after a test that its MMU is the one that was asked for.
selftests_with() {
	local programs=(toggles munmap_semantics munmap_race munmap_fault hugetlb_semantics)

	build_selftests ppc64le
	in_vm ppc64le "ppc64le-${1,,}" \
		--selftests "${programs[*]}" \
		--ktap --quiet --cpus 4 --mem 4096 --timeout 1500 \
		--append "${2:-}" --file tests/ppc64le/guest/mmu \
		-- env FAULTLINE_MMU="$1" FAULTLINE_SECONDS=1 FAULTLINE_COUNT=200 \
		sh ktap-all mmu "${programs[@]}"
}

# faults_with MMU [PARAMETER]: the same for page faults without locks, with wider
# windows and with flips as well.  The CPUs run in turns on one thread of the host:
# on more, QEMU's tlbie does not wait until the other CPUs have flushed, so that
# they write to what is read-only, whatever the kernel does.  The loop keeps CPUs from
# idling for long: where time is counted in instructions, a thread that sleeps may
# else not be woken for half a minute while others spin, with the switch off as well.
# It starts no programs, whose page faults would be counted.
faults_with() {
	build_selftests ppc64le
	in_vm ppc64le "ppc64le-spf-${1,,}" \
		--selftests "spf_semantics spf_race" \
		--ktap --quiet --icount 4 --cpus 4 --mem 4096 \
		--timeout 1500 --append "${2:-}" \
		--file tests/ppc64le/guest/mmu \
		-- env FAULTLINE_MMU="$1" FAULTLINE_SECONDS="${EACH:-1}" \
		sh -c "mkfifo /tmp/never
			until read -r -t 1 nothing <>/tmp/never; do :; done &
			exec sh ktap-all mmu spf_semantics spf_race"
}
