#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The demo of `make run` shows what README.md says of it: the stall with the
# switch off, and sections with the switch on.  It ends with waits for other calls.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"

# turns KBYTES CONDITION (of awk) COUNT: do so many of the two munmaps with that value meet it?
turns() {
	sed -n "s/^ *vm\.munmap_section_kbytes=$1 .*( *\([0-9]*\)%).* \([0-9]*\) sections\$/\1 \2/p" \
		<<<"$said" | awk "$2"' { n++ } END { exit n < '"$3"' }' || { echo "$said" && return 1; }
}

if said=$(tests/demo/run.sh 2>&1); then
	ok "the demo runs"
	# The wait is as long as the munmap; the control, without a munmap, waits
	# for a few percent of that time.  A host that takes the other thread's CPU
	# away can hide one wait.
	# shellcheck disable=SC2016 # for awk
	check "with 0, the other thread waits for the munmap" turns 0 '$1 >= 30' 1
	# shellcheck disable=SC2016
	check "with 0, the munmap has no sections" turns 0 '$2 == 0' 2
	# shellcheck disable=SC2016
	check "with 65536, the munmap has sections" turns 65536 '$2 > 0' 2
	for call in munmap dontneed populate_write mlock munlock fixed_none; do
		# shellcheck disable=SC2016 # for awk
		check "with every switch on, the wait for $call is shorter" awk -v call="$call" '
			$1 == call && $2 == "off" && $5 == "on" { found = 1; shorter = $6 + 0 < $3 + 0 }
			END { exit !found || !shorter }' <<<"$said"
	done
else
	not_ok "the demo runs" <<<"$said"
fi
done_testing
