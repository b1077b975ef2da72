#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: the plans that it reads and refuses, and what status says.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# --- Plans from standard input

from_stdin() {
	new_host
	plan "$pushed"
	[[ $(ab start --dry-run - <"$pushed") == *'Nothing was changed.' ]] && is '' "$(find "$work/run" -type f)" &&
		[[ $(ab check - <"$pushed") == 'experiment spf-1'* ]] && ab start - <"$pushed" &&
		cmp "$pushed" "$work/run/ab/spf-1.plan" && ab stop || return 1
	head -c 100 "$pushed" >"$work/cut"
	stdin_cut() { ab start - <"$work/cut"; }
	refused 1 '-: ' stdin_cut
}

# --- Status

status_text() {
	started && is 'spf-1: starts at 1970-01-12 13:56:40' "$(ab status | head -n 1)" &&
		at 1001200 && ab apply spf-1 &&
		is 'spf-1: slot 2 of 6, arm b, until 1970-01-12 14:16:40
  vm.speculative_page_fault is 1, as it should be; 0 before the experiment
  it was not as it should be 0 times
  ends at the latest at 1970-01-12 16:33:20' "$(ab status)" || return 1
	echo 0 >"$work/sys/vm/speculative_page_fault"
	[[ $(ab status) == *'is 0, and should be 1'* ]] && ab stop &&
		is 'No experiment runs on this host.' "$(ab status)"
}

status_json() {
	new_host
	is '' "$(ab status --json | json name)" && started && at 1001200 && ab apply spf-1 &&
		is 'spf-1,running,b,1,6,1,1,0,0,running' \
			"$(ab status --json | json name state arm slot slots value assigned before noncompliant timers)" &&
		is 'waiting' "$(at 1000000 && ab status --json | json state)" &&
		is 'finished' "$(at 1005000 && ab status --json | json state)" &&
		echo x=y >>"$work/run/ab/spf-1.plan" && is 'damaged' "$(ab status --json | json state)" &&
		rm "$work/run/ab/spf-1.plan" && is stopping "$(ab status --json | json state)" &&
		: >"$work/run/ab/spf-1.before" && is 'stopping,None' "$(ab status --json | json state before)"
}

# --- Plans

# bad PATTERN CHANGE...: check and start refuse the plan, with one reason.
bad() {
	local pattern=$1
	shift
	new_host
	plan "$pushed" "$@"
	refused 1 "$pattern" ab check "$pushed" && refused 1 "$pattern" ab start "$pushed"
}

# Each beginning of a plan is refused: a push that was cut off.
truncated() {
	local size
	plan "$pushed"
	for size in $(seq 0 7 $(($(wc -c <"$pushed") - 1))) $(($(wc -c <"$pushed") - 1)); do
		head -c "$size" "$pushed" >"$work/cut"
		ab check "$work/cut" >/dev/null 2>&1 && { echo "accepted at $size bytes"; return 1; }
	done
	ab check "$pushed" >/dev/null
}

# Its end is gone: the newline.
unfinished() {
	new_host
	plan "$pushed"
	truncate -s -1 "$pushed"
	refused 1 'last line is incomplete' ab start "$pushed"
}

edited() {
	new_host
	plan "$pushed"
	sed -i "$1" "$pushed"
	refused 1 "$2" ab start "$pushed"
}

checked() {
	plan "$pushed" && is 'experiment spf-1, on the host that the fleet knows as db-17.example
  vm.speculative_page_fault is 0 in arm a, 1 in arm b
  6 slots of 600 s, of which 120 s are washout
  from 1970-01-12 13:56:40 to 1970-01-12 14:56:40, never after 1970-01-12 16:33:20
  plan 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef' "$(ab check "$pushed")"
}

dry_run() {
	local before
	new_host
	plan "$pushed"
	before=$(snapshot)
	[[ $(ab start --dry-run "$pushed") == *'Nothing was changed.' ]] && is "$before" "$(snapshot)" &&
		echo faultline=off >"$work/cmdline" && refused 1 'faultline=off' ab start --dry-run "$pushed"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}a plan from standard input" from_stdin
	check "${s}status" status_text
	check "${s}status --json" status_json
	check "${s}check" checked
	check "${s}start --dry-run" dry_run
	check "${s}a plan that is cut off" truncated
	check "${s}a plan without its last newline" unfinished
	check "${s}an edited plan" edited s/^b=1/b=0/ 'sum does not match'
	check "${s}a plan with its first line gone" edited 1d "format is ''"
	check "${s}a line after the sum" edited "\$aa=1" 'follows sum'
	check "${s}a plan from Windows" edited 's/$/\r/' 'printable ASCII'
	check "${s}a NUL byte" edited 's/spf-1/a\x00b/' 'printable ASCII'
	check "${s}no such file" refused 1 'no such file' ab check "$work/nowhere"
	check "${s}a folder" refused 1 'no such file' ab check "$work"
	check "${s}a huge plan" bad 'larger than' arms="$(printf "%70000s" "" | tr " " a)"
	check "${s}another format" bad 'reads format 1' format=2
	check "${s}an unknown switch" bad 'not a switch of the Faultline' switch=vm.swappiness
	check "${s}a switch with a path" bad 'not a switch of the Faultline' switch=vm/../kernel/panic
	check "${s}a value out of range" bad '=2 is out of range' b=2
	check "${s}a value that is not a number" bad "b is 'on'" b=on
	check "${s}a negative value" bad "a is '-1'" a=-1
	check "${s}a number with a leading zero" bad "slot is '0600'" slot=0600
	check "${s}a number that is too long" bad 'start is' start=12345678901234567890
	check "${s}no arms" bad 'arms are' arms=
	check "${s}other arms" bad 'arms are' arms=abc
	check "${s}a short slot" bad 'use 60 s or more' slot=59 washout=1
	check "${s}a washout that fills the slot" bad 'fills the slot' washout=600
	check "${s}a name with a path" bad 'other characters' name=../../etc/x
	check "${s}a name with a quote" bad 'other characters' 'name=a"b'
	check "${s}no name" bad 'other characters' name=
	check "${s}a host with a quote" bad 'not a name' 'host=a"b'
	check "${s}a malformed hash of the plan" bad 'sha256' plan=123
	check "${s}expiry before the start" bad 'expires before' expires=1000600
	check "${s}hugetlb_pmd_sharing does not alternate with 0" bad 'new mappings only' \
		switch=vm.hugetlb_pmd_sharing a=1 b=0
done
done_testing
