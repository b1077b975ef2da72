# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For the test programs in this folder.  Source it after tap.sh.

# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

# selftests_with MMU [PARAMETER]: runs the selftests on a kernel booted with the
# parameter, after checking its MMU.
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

# faults_with MMU [PARAMETER]: the same for speculative page faults, also with wider
# windows and with flips.  The CPUs take turns on one host thread: with several
# threads, QEMU's tlbie does not wait until the other CPUs have flushed, so they
# write to read-only pages no matter what the kernel does.  The loop keeps CPUs from
# idling for long: where time is counted in instructions, a sleeping thread may
# otherwise not be woken for half a minute while others spin, even with the switch
# off.  The loop starts no programs, whose page faults would be counted.
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
