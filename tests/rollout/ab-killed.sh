#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab is killed with SIGKILL before each of its commands that changes
# something, in turn.  Whatever the moment: the switch has the value from before the
# experiment or that of the arm, no file is half written, the next run of a timer or
# command completes the work, and a false "not compliant" is never counted.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# bash runs this before the program, and the trap before each command of it, in
# subshells too.  $$ is the program itself everywhere.  Only commands that change
# something count: between two of them, it makes no difference when it dies.
cat >"$work/hook" <<'END'
kill_trap()
{
	case $BASH_COMMAND in
	mv\ * | rm\ * | cat* | printf\ * | mkdir\ * | true* | exec\ * | flock\ * | '$systemctl '*) ;;
	*) return ;;
	esac
	# A file, because a subshell has variables of its own.
	printf . >>"$KILL_STEPS"
	read -r kill_step <"$KILL_STEPS"
	[ ${#kill_step} -ne "$KILL_AT" ] || kill -KILL $$
}
set -o functrace
trap kill_trap DEBUG
END

# killed_at STEP ARGUMENT...: succeeds if it was killed, fails if it ended before.
killed_at() {
	local step=$1 status
	shift
	rm -f "$work/steps"
	# In a subshell, so that bash does not report the kill.
	(
		BASH_ENV=$work/hook KILL_AT=$step KILL_STEPS=$work/steps bash "$host/faultline-ab" "$@" >"$said" 2>&1
		exit $?
	) 2>/dev/null
	status=$?
	[ "$status" -eq 137 ] || [ "$status" -eq 0 ] || { echo "step $step: exit status $status"; cat "$said"; }
	# Children of the program may still run.
	flock "$work/run/lock" true 2>/dev/null
	[ "$status" -eq 137 ]
}

# whole: each file is complete.
whole() {
	local file
	if [ -e "$work/textfile/faultline_ab.prom" ]; then
		is 3 "$(grep -cE '^faultline_ab(_noncompliant_total|_ended)?\{.*\} [01]$' "$work/textfile/faultline_ab.prom")" &&
			is 9 "$(wc -l <"$work/textfile/faultline_ab.prom")" || return 1
	fi
	for file in "$work"/run/ab/*.plan; do
		[ ! -e "$file" ] || cmp "$file" "$pushed" || return 1
	done
	for file in "$work"/run/ab/*.before; do
		[ ! -e "$file" ] || is 3 "$(grep -cE '^(vm.*=[01] -|expires=.*|deadline=.*)$' "$file")" || return 1
	done
}

# gone: nothing is left of the experiment.
gone() {
	is 0 "$(spf)" && is '' "$(find "$work/run/ab" "$work/textfile" -name '[!.]*' -type f)"
}

running() {
	new_host
	plan "$pushed"
	dash "$host/faultline-ab" start "$pushed" && at 1000600 &&
		dash "$host/faultline-ab" apply spf-1
}

# Killed in start: nothing is switched; starting again works.
in_start() {
	new_host
	plan "$pushed"
	killed_at "$1" start "$pushed" || return 2
	is 0 "$(spf)" && whole && ab start "$pushed" && whole && at 1001200 && ab apply spf-1 &&
		is 1 "$(spf)" && at 1010000 && ab stop --expired spf-1 && gone
}

# Killed in start, and never started again: a timer, if one runs, or the next stop.
left_in_start() {
	new_host
	plan "$pushed"
	killed_at "$1" start "$pushed" || return 2
	ab stop --all && gone
}

# Killed while the arm changes: the timer completes it.
in_apply() {
	running && at 1001200 || return 1
	killed_at "$1" apply spf-1 || return 2
	whole && ab apply spf-1 && is 1 "$(spf)" && whole &&
		grep -q '^faultline_ab_noncompliant_total.* 0$' "$work/textfile/faultline_ab.prom" &&
		ab stop && gone
}

# Killed in stop: the experiment goes on as planned or is gone, never in between
# once a timer has run; and stopping again works.
in_stop() {
	local plan
	running && at 1001200 && ab apply spf-1 && is 1 "$(spf)" || return 1
	killed_at "$1" stop spf-1 || return 2
	whole || return 1
	plan=$work/run/ab/spf-1.plan
	if [ -e "$plan" ]; then
		is 1 "$(spf)" && ab apply spf-1 && is 1 "$(spf)" && ab stop spf-1
	else
		ab apply spf-1
	fi
	gone
}

# Killed while it expires: the other timer completes it.
in_expiry() {
	running && at 1001200 && ab apply spf-1 && at 1010000 || return 1
	killed_at "$1" apply spf-1 || return 2
	whole && ab stop --expired spf-1 && gone
}

# in_hold STEP COMMAND: the process of a hold and its command hold, set or release are killed.
in_hold() {
	local status words holder
	new_host
	mkdir -p "$work/root/run/systemd/system"
	sleep 1000 >/dev/null 2>&1 &
	holder=$!
	words="hold bench $holder vm.speculative_page_fault"
	# shellcheck disable=SC2086 # words
	[ "$2" = hold ] || ab $words
	[ "$2" = hold ] || words='set bench vm.speculative_page_fault=1'
	# shellcheck disable=SC2086 # words
	[ "$2" != release ] || { ab $words && words='release bench'; }
	# shellcheck disable=SC2086 # words
	killed_at "$1" $words
	status=$?
	kill -KILL "$holder"
	wait "$holder" 2>/dev/null
	[ "$status" = 0 ] || return 2
	whole_hold && ab stop --expired bench && gone
}
whole_hold() {
	local file=$work/run/ab/bench.before
	[ ! -e "$file" ] || is 3 "$(grep -cE '^(vm.*=[01] -|pid=.*|born=.*)$' "$file")"
}
in_set() { in_hold "$1" set; }
in_release() { in_hold "$1" release; }
in_begin() { in_hold "$1" hold; }

# each_step NAME FUNCTION: FUNCTION at each step until the program is not killed.
each_step() {
	local step=1 status out failed=
	while :; do
		out=$("$2" $step 2>&1)
		status=$?
		[ $status -ne 2 ] || break
		[ $status -eq 0 ] || { failed="at step $step: $out"; break; }
		step=$((step + 1))
	done
	[ $step -gt 10 ] || [ -n "$failed" ] || failed="only $step steps"
	check_empty "$1, at each of its steps" "$failed"
	echo "# $((step - 1)) steps"
}

each_step 'killed in start, and started again' in_start
each_step 'killed in start, and stopped' left_in_start
each_step 'killed while the arm changes' in_apply
each_step 'killed in stop' in_stop
each_step 'killed at the expiry' in_expiry
each_step 'killed in hold, with its process' in_begin
each_step 'killed in set, with its process' in_set
each_step 'killed in release, with its process' in_release
done_testing
