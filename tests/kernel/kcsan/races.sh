#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The race programs under KCSAN, which reports unmarked racing memory accesses.  A
# report that involves one of our functions, or one with our hooks, fails the run.
# Upstream has other races: they are listed.
set -euo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh

tests/lib/selftests.sh microvm-kcsan

# Functions compiled from our files, and functions with our hooks.
functions=$BUILD/kcsan-functions
{
	nm "$BUILD"/microvm-kcsan/mm/faultline/*.o |
		sed -nE 's/^[0-9a-f]+ [tT] ([A-Za-z_0-9]+).*/\1/p' | grep -v '^__pfx_'
	printf '%s\n' gup_fast gup_fast_pte_range gup_fast_pmd_range collapse_huge_page \
		tlb_remove_table_one huge_pmd_unshare huge_pmd_share __huge_pmd_unshare \
		huge_pmd_unshare_flush hugetlb_fault hugetlb_vma_maps_page \
		hugetlb_unmap_file_folio __vm_munmap is_mergeable_vma ksys_shmdt \
		vma_start_write move_normal_pmd move_normal_pud \
		__mmu_notifier_register wp_can_reuse_anon_folio mm_account_fault \
		do_user_addr_fault enqueue_hugetlb_folio \
		dequeue_hugetlb_folio_node_exact dequeue_hugetlb_folio_nodemask \
		remove_hugetlb_folio alloc_hugetlb_folio hugetlb_no_page \
		rwsem_wait_turn gup_fast_fallback __get_user_pages __get_user_pages_locked \
		mlock_fixup mlock_pte_range mlock_vma_pages_range apply_vma_lock_flags \
		apply_mlockall_flags clear_refs_write do_pagemap_scan pagemap_scan_pmd_entry \
		pagemap_scan_pte_hole pagemap_scan_hugetlb_entry show_smap show_numa_map \
		show_smaps_rollup smaps_sum_walked mwriteprotect_range uffd_wp_range \
		userfaultfd_unregister userfaultfd_release userfaultfd_clear_vma \
		do_mbind migrate_to_node queue_pages_range task_numa_work
} | sort -u >"$functions"
check 'our functions are known' test "$(wc -l <"$functions")" -ge 60

readarray -t programs < <(PYTHONPATH=tools:tests python3 -B -c '
import suites
print(*suites.RACES, "hugetlb_zero_hold", sep="\n")')
status=0
out=$(in_vm microvm-kcsan kcsan \
	--selftests "${programs[*]}" \
	--ktap --quiet --cpus 4 --mem 4096 --append numa=fake=2 \
	--timeout 2400 \
	-- env FAULTLINE_SECONDS="${EACH:-3}" FAULTLINE_COUNT=300 sh -c '
		# Reports must not end the run: upstream has races, and all are listed.
		echo 0 >/proc/sys/kernel/panic_on_warn
		echo on >/sys/kernel/debug/kcsan
		exec sh ktap-all "$@"' sh "${programs[@]}") || status=$?
printf '%s\n' "$out" >"$BUILD/log/kcsan.log"

for program in "${programs[@]}"; do
	check "$program passes under KCSAN; see build/log/kcsan.log" \
		grep -qE "^ok [0-9]+ $program$" <<<"$out"
done

# reports: prints "FUNCTION FUNCTION" for each data race, and other problems as is.
reports() {
	python3 - "$BUILD/vm/kcsan/result.json" <<'END'
import json, re, sys
for item in json.load(open(sys.argv[1]))["trouble"]:
    race = re.search(r"data-race in (\S+)(?: / (\S+))?", item["text"])
    print(*filter(None, race.groups()) if race else ["TROUBLE", item["text"]])
END
}

found=$(reports)
# The compiler may have split a function: NAME.isra.0 and the like.
ours=$(sed -E 's/\.[a-z]+(\.[0-9]+)?//g' <<<"$found" | grep -wFf "$functions" | sort | uniq -c ||
	true)
check_empty 'no data race involves our code' "$ours"
check_empty 'the kernel reports no other problems' "$(grep '^TROUBLE' <<<"$found" || true)"
check 'the run succeeds, or only KCSAN reports fail it' \
	test $status -eq 0 -o \( $status -eq 126 -a -n "$found" \)
sort <<<"$found" | uniq -c | sed 's/^/# data race: /'
done_testing
