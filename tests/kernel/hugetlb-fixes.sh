#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The hugetlb fixes of SECURITY.md work in our kernel at every value of the
# switch, and the test detects the bugs in a stock kernel of the same
# configuration, if one has been built.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

program=$BUILD/test/hugetlb_fixes
selftests=kernel/overlay/tools/testing/selftests/mm/faultline
mkdir -p "$BUILD/test"
cc -D_GNU_SOURCE -O2 -Wall -Wextra -Wno-unused-parameter -static -pthread -I "$selftests" \
	-o "$program" tests/kernel/programs/hugetlb_fixes.c "$selftests/faultline_util.c"

# fixed FLAVOUR PARAMETERS WHAT: the exit status of the program in a fresh VM.
fixed() {
	in_vm "$1" hugetlb-fixes --quiet --cpus 4 --mem 768 --timeout 600 \
		--append "$2" --file "$program" -- env FAULTLINE_GUEST=1 hugetlb_fixes "$3"
}

# sees WHAT: the stock kernel has the bug.
sees() {
	local status=0
	fixed microvm-stock "" "$1" || status=$?
	[ "$status" = 1 ]
}

for mode in 0 1 2; do
	check "moving a mapping does not deadlock, mode $mode" \
		fixed microvm "sysctl.vm.hugetlb_pmd_sharing=$mode" move
	check "a truncated file has no pages beyond its end, mode $mode" \
		fixed microvm "sysctl.vm.hugetlb_pmd_sharing=$mode" truncate
	check "truncation and a page fault in flight agree on the size, mode $mode" \
		fixed microvm "sysctl.vm.hugetlb_pmd_sharing=$mode" own
	check "truncation does not wait for page faults of other files, mode $mode" \
		fixed microvm "sysctl.vm.hugetlb_pmd_sharing=$mode" other
	check "a page fault does not spin while a truncation cannot run, mode $mode" \
		fixed microvm "sysctl.vm.hugetlb_pmd_sharing=$mode" starved
done
# userfaultfd works the same in every mode.
check "UFFDIO_COPY beyond the end of a truncated file uses no reservation" \
	fixed microvm "" copy
check "UFFDIO_COPY does not spin while a truncation cannot run" \
	fixed microvm "" starved-copy
# This fix only matters with sharing.
check "unsharing flushes a page table from an idle CPU" \
	fixed microvm "sysctl.vm.hugetlb_pmd_sharing=1" lazy
# These do not depend on sharing.
check "discarded pages of a pool that has shrunk keep their reservations" \
	fixed microvm "" discard
check "pages that are kept for a reservation leave when pages of another node serve it" \
	fixed microvm "numa=fake=2" nodes
check "a mount with min_size in a pool that has shrunk keeps its pages" \
	fixed microvm "" min-size
for kbytes in 0 2048; do
	check "a page that is pinned while its mapping goes is not lost, sections of $kbytes KiB" \
		fixed microvm "sysctl.vm.munmap_section_kbytes=$kbytes" pinned
done
check "a page that is pinned while its file goes is not lost to a mount with min_size" \
	fixed microvm "" pinned-mount
for what in move truncate own copy lazy discard min-size pinned; do
	if [ -e "$(image microvm-stock)" ]; then
		check "the test detects the bug in a stock kernel: $what" sees "$what"
	else
		ok "the test detects the bug in a stock kernel: $what" \
			"no stock kernel: tools/fl build microvm-stock"
	fi
done
done_testing
