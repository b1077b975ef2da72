#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Collapse into huge pages during speculative page faults, on ppc64le with the
# hash MMU: a fault inserts a hash entry while the collapse flushes those of the
# table.  Runs longer than spf-hash and with a wider window.  It does not prove
# that the collapse has to drain the table (tests/models/protocol.py does): without
# the drain (EACH=60 BROKEN=32) it has passed as well.
#
# A stale hash entry translates for all threads alike, so that they agree on
# what they read from the old page.  init_on_free clears that page when the
# collapse frees it.
set -euo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh
# shellcheck source=../../lib/rules.sh
. tests/lib/rules.sh

tests/lib/selftests.sh ppc64le

race() {
	local status=0 log=$BUILD/log/ppc64le-collapse-hash.log

	in_vm ppc64le ppc64le-collapse-hash \
		--selftests spf_race --quiet --icount 4 --cpus 4 --mem 2048 \
		--timeout 1200 --append "disable_radix init_on_free=1" \
		--file tests/power/kernel/guest/mmu \
		-- env FAULTLINE_MMU=Hash FAULTLINE_SECONDS="${EACH:-30}" \
		FAULTLINE_WINDOWS="change=20000" \
		sh -c "mkfifo /tmp/never
			until read -r -t 1 nothing <>/tmp/never; do :; done &
			mmu >/dev/null || exit 1
			echo ${BROKEN:-0} >/sys/kernel/debug/spf_broken_rules
			exec spf_race -r spf_race.wide.$1" \
		>"$log" 2>&1 || status=$?
	verdict $status "$log"
}

for name in keep_collapse_writing keep_collapse; do
	check "$name passes beside collapses" test "$(race $name)" = passed
done
done_testing
