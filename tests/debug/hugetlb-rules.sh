#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Race tests detect a violated rule.  The debug kernel skips one rule of lockless
# hugetlb page faults and unmaps; the race that the rule prevents must then fail,
# or the kernel must report a problem.  With all rules, the races must pass.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh
# shellcheck source=../lib/rules.sh
. tests/lib/rules.sh

flavour=${FLAVOUR:-microvm-debug}
tests/lib/selftests.sh "$flavour"

# SETTINGS are words FILE=VALUE for /proc/sys/vm, if there is such a sysctl, or
# for /sys/kernel/debug.
race() {
	local status=0 log=$BUILD/log/hugetlb-rule-$1.log

	in_vm "$flavour" "hugetlb-rule-$1" \
		--selftests "hugetlb_race" \
		--quiet --cpus 4 --mem 2048 --timeout 240 \
		--append "numa=fake=2" \
		-- sh -c "for word in hugetlb_broken_rules=$1 $3; do
				file=/proc/sys/vm/\${word%=*}
				[ -e \$file ] || file=/sys/kernel/debug/\${word%=*}
				echo \${word#*=} >\$file || exit 1
			done
			FAULTLINE_SECONDS=${EACH:-20} exec hugetlb_race -r hugetlb_race.$2" \
		>"$log" 2>&1 || status=$?
	verdict $status "$log"
}

# The numbers are those of enum hugetlb_rule in mm/faultline/tests.
#
# Not here: that entry_peek() must not use huge_ptep_get(), as that looks at
# neighbouring entries only on arm64; on x86 it is the same single read.
rule 1 'revalidation under the page table lock' revalidate.leave \
	'hugetlb_lock_window_us=20000 pmd_clear_ipi_free=1'
rule 2 'the check that the page is still in the file' off.truncate_exact \
	'hugetlb_find_window_us=20000'
rule 4 'the check that a neighbour is still in the file' off.punch_unmapped \
	'hugetlb_around_window_us=1000'
rule 8 'unsharing before the lock is dropped' revalidate.unmap ''
# The table is freed, and its lock with it.
rule 16 'interrupts off until the table is locked' revalidate.leave \
	'hugetlb_lock_window_us=100000 pmd_clear_ipi_free=1'
rule 32 'removing entry and rmap under one lock hold' off.forget \
	'hugetlb_zap_window_us=2000'
rule 64 'locking the table to look for a mapping' off.forget \
	'hugetlb_zap_window_us=20000'
# Hit once or twice in 20 s: the page must be cleared for its next user meanwhile.
EACH=${EACH:-60} rule 64 'locking the table to look at a page' off.scan \
	'hugetlb_entry_window_us=100000'
done_testing
