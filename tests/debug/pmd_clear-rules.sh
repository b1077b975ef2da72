#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Race tests detect a violated rule.  The debug kernel breaks one rule of
# vm.pmd_clear_ipi_free (enum pmd_clear_rule); the race that the rule prevents must
# then fail, or the kernel must report a problem.  With all rules, the races must
# pass.
#
# The kernel behaves like a guest whose hypervisor flushes TLBs: on bare x86 a
# flush waits for all walkers, no matter which rule is broken.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh
# shellcheck source=../lib/rules.sh
. tests/lib/rules.sh

tests/lib/selftests.sh microvm-debug

# A slow VM must not make the race rare: the other process changes the table while
# a walker is in a window.
race() {
	local status=0 log=$BUILD/log/pmd_clear-rule-$1.log window=

	[ "$2" != unshare ] || window=FAULTLINE_WINDOW=20000

	in_vm microvm-debug "pmd_clear-rule-$1" \
		--selftests "pmd_clear_race" \
		--quiet --cpus 4 --mem 2048 --timeout 240 \
		--append "pmd_clear_guest" \
		-- sh -c "echo $1 >/sys/kernel/debug/pmd_clear_broken_rules
			export FAULTLINE_SECONDS=${EACH:-20} $window
			exec pmd_clear_race -r pmd_clear_race.ipi_free.$2" \
		>"$log" 2>&1 || status=$?
	verdict $status "$log"
}

for name in unshare collapse table; do
	check "with all rules, $name passes" test "$(race 0 $name)" = passed
done

broken 1 'rechecking the sequence number' unshare
broken 2 'a new sequence number when unsharing' unshare
broken 4 'checking the sequence number where a flush does not wait' unshare
# 8, the old table of a collapse without a grace period: see spf-rules.  Here the
# window of get_user_pages_fast() is shorter than a collapse.
broken 16 'the grace period for a table without a batch' table
done_testing
