#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: the switch follows the plan in every slot, and a clock that jumps.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# --- Every slot

follows_the_plan() {
	local slot second arms=abbaab want
	started || return 1
	is 'start faultline-ab-expire@spf-1.timer
start faultline-ab@spf-1.timer' "$(cat "$units")" || return 1
	at 1000599
	ab apply spf-1 && is 0 "$(spf)" || return 1
	for slot in 0 1 2 3 4 5; do
		want=0
		[ "${arms:slot:1}" = a ] || want=1
		for second in 0 1 599; do
			at $((1000600 + slot * 600 + second))
			ab apply spf-1 2>"$said" || { cat "$said"; return 1; }
			is "$slot $second $want" "$slot $second $(spf)" || return 1
			is "faultline_ab{experiment=\"spf-1\",arm=\"${arms:slot:1}\",slot=\"$slot\",plan=\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"} 1" \
				"$(grep '^faultline_ab{' "$work/textfile/faultline_ab.prom")" || return 1
		done
	done
	at $((1000600 + 6 * 600))
	ab apply spf-1 2>/dev/null
	is 0 "$(spf)" && is 0 "$(counted)" &&
		grep -q 'arm="stock",slot="-1"' "$work/textfile/faultline_ab.prom"
}

# The value from before is not upstream's.
value_from_before() {
	new_host
	echo 1 >"$work/sys/vm/speculative_page_fault"
	plan "$pushed"
	ab start "$pushed" && at 1000600 && ab apply spf-1 && is 0 "$(spf)" && at 1004200 &&
		ab apply spf-1 && is 1 "$(spf)" && at 1000600 && ab apply spf-1 && is 0 "$(spf)" &&
		ab stop && nothing_left 1
}

# --- The clock

# The time since boot is enough to end it.
clock_lost() {
	started && at 1001200 && ab apply spf-1 && at 1010000 && : >"$work/clock" && "$@" && nothing_left 0
}

jumps() {
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" || return 1
	# Only the clock jumps, not the time since boot.
	echo 1004300 >"$work/clock"
	ab apply spf-1 && is 0 "$(spf)" || return 1
	echo 1000700 >"$work/clock"
	ab apply spf-1 && is 0 "$(spf)" || return 1
	echo 1001900 >"$work/clock"
	ab apply spf-1 && is 1 "$(spf)" || return 1
	echo 900000 >"$work/clock"
	ab apply spf-1 && is 0 "$(spf)" && is 0 "$(counted)"
}

# A clock that is set back does not prolong an experiment.
cannot_be_prolonged() {
	started && at 1001200 && ab apply spf-1 && at 1009999 || return 1
	echo 1001200 >"$work/clock"
	ab apply spf-1 && is 1 "$(spf)" || return 1
	at 1010000
	echo 1001200 >"$work/clock"
	"$@" && nothing_left 0
}

# Exactly at the plan's expiry, by the clock alone: by the time since boot, it is still to come.
expires_by_clock() {
	started expires=1001300 && at 1001200 && ab apply spf-1 && echo 1001299 >"$work/clock" && "$@" && is 1 "$(spf)" &&
		echo 1001300 >"$work/clock" && "$@" && nothing_left 0
}

no_clock() {
	started && at 1001200 && ab apply spf-1 || return 1
	: >"$work/clock"
	refused 1 'clock does not give' ab apply spf-1
}

# With the real clock: it waits for the slot.
waits() {
	local now
	started start=$(($(date +%s) + 2)) expires=$(($(date +%s) + 3000)) && is 0 "$(spf)" || return 1
	new_host
	now=$(date +%s)
	plan "$pushed" start=$((now + 2)) expires=$((now + 3000)) arms=ba
	echo "$now" >"$work/clock"
	ab start "$pushed" && FAULTLINE_CLOCK='' FAULTLINE_TICK=60 ab apply spf-1 || return 1
	now=$(date +%s)
	# Before the next tick; a busy host may be late.
	is 1 "$(spf)" && [ "$now" -ge "$(sed -n s/^start=//p "$pushed")" ] &&
		[ "$now" -lt $(($(sed -n s/^start=//p "$pushed") + 60)) ]
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}the switch follows the plan, in every slot" follows_the_plan
	check "${s}the value from before comes back, also if it is not upstream's" value_from_before
	check "${s}a clock that is lost: apply" clock_lost ab apply spf-1
	check "${s}a clock that is lost: expiry" clock_lost ab stop --expired spf-1
	check "${s}the switch follows a clock that jumps" jumps
	check "${s}a clock that is set back does not prolong an experiment: apply" cannot_be_prolonged ab apply spf-1
	check "${s}a clock that is set back does not prolong an experiment: expiry" \
		cannot_be_prolonged ab stop --expired spf-1
	check "${s}a clock that jumps to the expiry: apply" expires_by_clock ab apply spf-1
	check "${s}a clock that jumps to the expiry: expiry" expires_by_clock ab stop --expired spf-1
	check "${s}no clock" no_clock
	check "${s}apply waits for a slot that is near" waits
done
done_testing
