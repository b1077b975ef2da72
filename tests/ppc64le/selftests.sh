# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For the test programs of this folder.  Source it after tap.sh.

# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

# selftests_with MMU [PARAMETER]: the selftests on a kernel that was booted with
# the parameter, after a test that its MMU is the one that was asked for.
selftests_with() {
	local folder=selftests-ppc64le

	build_selftests_in $folder ARCH=powerpc CROSS_COMPILE=powerpc64le-linux-gnu-
	in_vm ppc64le "ppc64le-${1,,}" --ktap --quiet --cpus 4 --mem 4096 --timeout 2400 \
		--append "numa=fake=2 ${2:-}" --file tests/lib/ktap-all \
		--file tests/ppc64le/guest/mmu \
		--file "$BUILD/$folder/toggles" --file "$BUILD/$folder/munmap_semantics" \
		--file "$BUILD/$folder/munmap_race" --file "$BUILD/$folder/munmap_fault" \
		--file "$BUILD/$folder/hugetlb_semantics" \
		--file "$BUILD/$folder/spf_semantics" --file "$BUILD/$folder/spf_race" \
		-- env FAULTLINE_MMU="$1" FAULTLINE_SECONDS=1 FAULTLINE_COUNT=200 \
		sh ktap-all mmu toggles munmap_semantics munmap_race munmap_fault \
		hugetlb_semantics spf_semantics spf_race
}
