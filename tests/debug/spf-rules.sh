#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Race tests detect a violated rule.  The debug kernel skips one check of
# speculative page faults; the race that the check prevents must then fail, or the
# kernel must report a problem.  With all rules, the races must pass.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh
# shellcheck source=../lib/rules.sh
. tests/lib/rules.sh

tests/lib/selftests.sh microvm-debug

# A slow VM must not make its races rare: a window is as long as QEMU may keep a
# CPU from running.

# A rule of another feature has the feature's name before a colon.
race() {
	local status=0 rules=spf_broken_rules log=$BUILD/log/spf-rule-${1/:/-}.log

	case $1 in
	*:*) rules=${1%:*}_broken_rules ;;
	esac
	in_vm microvm-debug "spf-rule-${1/:/-}" \
		--selftests "spf_race" \
		--quiet --cpus 4 --mem 2048 --timeout 240 \
		--append "numa=fake=2" \
		-- sh -c "echo ${1#*:} >/sys/kernel/debug/$rules
			export FAULTLINE_SECONDS=${EACH:-20} FAULTLINE_WINDOWS='$3'
			exec spf_race -r spf_race.wide.$2" \
		>"$log" 2>&1 || status=$?
	verdict $status "$log"
}

rule 1 'revalidation under the page table lock' stop_munmap lock=20000
rule 2 'the check for a concurrent VMA change' fork_order ''
rule 4 'the check for an unmapped VMA' stop_munmap find=20000
rule 8 'the second VMA lookup' stop_munmap_slow_memory sleep=80000
rule 16 'the check for MMU notifiers' stop_notifier 'lock=2000 change=2000'
rule 32 'the wait in mremap()' stop_stale change=100000
rule 64 'the wait in the first MMU notifier registration' stop_notifier change=50000
rule 128 'not touching a file that may be closed' stop_overlay lock=20000
rule 512 'the check of a VMA once it is locked' stop_shared vma=20000
rule pmd_clear:8 'freeing a collapsed table by RCU' stop_collapse walk=100000
rule pmd_clear:16 'freeing the only table of a munmap by RCU' stop_munmap_table walk=100000
done_testing
