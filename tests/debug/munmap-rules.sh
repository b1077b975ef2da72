#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Race tests detect a violated rule.  The debug kernel breaks one rule of
# vm.munmap_section_kbytes; the race that the rule prevents must then fail, or the
# kernel must report a problem.  With all rules, the races must pass.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh
# shellcheck source=../lib/rules.sh
. tests/lib/rules.sh

tests/lib/selftests.sh microvm-debug

# SETTINGS are words FILE=VALUE for /sys/kernel/debug.
race() {
	local status=0 log=$BUILD/log/munmap-rule-$1.log program=munmap_race

	case $2 in
	munmap.*) program=munmap_semantics ;;
	esac
	in_vm microvm-debug "munmap-rule-$1" \
		--selftests "$program" \
		--quiet --cpus 4 --mem 2048 --timeout 240 \
		-- sh -c "for word in munmap_broken_rules=$1 $3; do
				echo \${word#*=} >/sys/kernel/debug/\${word%=*} || exit 1
			done
			export FAULTLINE_SECONDS=${EACH:-20} FAULTLINE_MIB=16
			exec $program -r $2" \
		>"$log" 2>&1 || status=$?
	verdict $status "$log"
}

# The numbers are those of enum munmap_rule in mm/faultline/munmap.h.
#
# Not here: T2 and T3 of page tables, whose windows no test hits; models break them
# (tests/models/munmap-tables.pml).
rule 1 'the wait for page faults' race.on.faults_in_progress
rule 2 'zapping marked mappings only' race.on.map_fixed
broken 4 'unmapping marked mappings only' race.on.map_fixed
rule 8 'zapping again what was left out' munmap.on.mixed_and_holes
rule 16 'keeping the mark to the end' race.on.map_limit munmap_finish_window_us=20000
# 32, the TLB flush before unlocking a mapping (T4): race.on.replaced_everywhere with
# munmap_flush_window_us=20000 has noticed it once in four runs.
broken 64 'the wait at a limit' race.on.map_limit
done_testing
