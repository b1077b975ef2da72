#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: start and stop, expiry, hosts without experiments, and two experiments at once.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# --- The end

expires() {
	started expires=1001300 && at 1001200 && ab apply spf-1 && is 1 "$(spf)" &&
		at 1001299 && "$@" && is 1 "$(spf)" && at 1001300 && "$@" && nothing_left 0
}

# Expiry restores the switch, whichever file is damaged.
damaged() {
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" || return 1
	case $1 in
	plan-gone) rm "$work/run/ab/spf-1.plan" ;;
	plan-cut) sed -i '$d' "$work/run/ab/spf-1.plan" ;;
	plan-edited) sed -i s/^b=1/b=0/ "$work/run/ab/spf-1.plan" ;;
	before-gone) rm "$work/run/ab/spf-1.before" ;;
	before-empty) : >"$work/run/ab/spf-1.before" ;;
	state-gone) rm "$work/run/ab/spf-1.state" ;;
	esac
	shift
	at 1010000
	"$@"
	nothing_left 0
}

edited_plan_ends() {
	started && at 1001200 && ab apply spf-1 && sed -i s/^b=1/b=0/ "$work/run/ab/spf-1.plan" || return 1
	ab apply spf-1 2>"$said" && { echo 'it was accepted'; return 1; }
	grep -q 'plan was changed' "$said" && nothing_left 0
}

stops() {
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" && ab stop "$@" && nothing_left 0 &&
		ab stop "$@" && is 0 "$(spf)"
}

# After the last slot, the switch belongs to the administrator: the value that was
# decided on stays, also when the experiment ends.
decided() {
	started && at 1003600 && ab apply spf-1 && at 1004200 && ab apply spf-1 && is 0 "$(spf)" || return 1
	echo 1 >"$work/sys/vm/speculative_page_fault"
	at 1004260
	ab apply spf-1 2>"$said" && is 1 "$(spf)" && is 0 "$(counted)" && is '' "$(cat "$said")" &&
		is 'finished,1,1,0' "$(ab status --json | json state value assigned before)" || return 1
	[ "$*" = stop ] || at 1010000
	ab "$@" 2>"$said" && grep -q 'stays 1' "$said" && nothing_left 1
}

# Until the old value is back, every end restores it.
ends_after_the_end() {
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" && at 1005000 && ab stop && nothing_left 0
}

# The value is lost and cannot be set back at once: it is not forgotten.
lost_and_refused() {
	started && at 1001200 && ab apply spf-1 && rm "$work/run/ab/spf-1.before" &&
		chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	[ "$1" = gone ] || echo switch=vm.speculative_page_fault >"$work/run/ab/spf-1.before"
	without_rights stop spf-1 2>/dev/null && { echo 'it succeeded'; return 1; }
	chmod 644 "$work/sys/vm/speculative_page_fault"
	ab apply spf-1
	nothing_left 0
}

# The value before the next experiment is not that of an arm of this one.
lost_and_next() {
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" && rm "$work/run/ab/spf-1.before" &&
		plan "$work/next" name=next && ab start "$work/next" &&
		is '0 -' "$(sed -n s/^vm.speculative_page_fault=//p "$work/run/ab/next.before")"
}

# hold_lock: take the lock of the host, until fd 8 is closed.
hold_lock() {
	local end=$((SECONDS + 60))
	# In a PID namespace, /proc/locks has no lock whose process has ended, and nobody who waits
	# for it.  This flock stays until cat ends.
	exec 8> >(exec flock "$work/run/lock" cat)
	while flock -n "$work/run/lock" true; do
		[ "$SECONDS" -lt "$end" ] || { echo 'the lock was not taken'; return 1; }
		sleep 0.05
	done
}

# waits_for_lock PID: until that process waits for the lock of the host, which hold_lock has taken.
waits_for_lock() {
	local inode end=$((SECONDS + 60))
	inode=$(stat -c %i "$work/run/lock")
	until grep -q -- "-> FLOCK .*:$inode " /proc/locks; do
		kill -0 "$1" 2>/dev/null || { echo 'it ended, and did not wait for the lock'; return 1; }
		[ "$SECONDS" -lt "$end" ] || { echo 'it neither ended nor waited for the lock'; return 1; }
		sleep 0.05
	done
}

# A stop waits for a start that has not made its files yet.
stop_during_start() {
	local pid status=0
	started && at 1001200 && ab apply spf-1 && mkdir "$work/run/later" &&
		mv "$work"/run/ab/spf-1.* "$work/run/later" && hold_lock || return 1
	ab stop --all 8>&- &
	pid=$!
	waits_for_lock "$pid" && mv "$work"/run/later/* "$work/run/ab/" || status=1
	exec 8>&-
	wait "$pid" && [ "$status" = 0 ] && nothing_left 0
}

# A soft reboot stops the timers, and keeps /run: the generator starts them again.
soft_reboot() {
	local folder=$work/root/generated
	generate() {
		rm -rf "$folder"
		mkdir -p "$folder"
		generator "$folder" && find "$folder" -type l -printf '%f\n' | sort
	}
	new_host
	is '' "$(generate)" && started && is 'faultline-ab-expire@spf-1.timer
faultline-ab@spf-1.timer' "$(generate)" && ab stop && is '' "$(generate)"
}

# --- No experiments on this host

blocks() {
	alternates && ab block incident 4711 2>"$said" && is 0 "$(section)" && is '' "$(find "$work/run/ab" -type f)" &&
		refused 1 'blocked on this host \(incident 4711\): .*faultline-ab unblock' ab start "$pushed" &&
		refused 1 'blocked on this host' ab start --dry-run "$pushed" &&
		refused 1 'blocked on this host' ab hold x $$ vm.munmap_section_kbytes &&
		is True "$(ab status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["blocked"])')" &&
		[[ $(ab status) == 'Experiments are blocked on this host: incident 4711'* ]] || return 1
	# A reboot.
	rm -r "$work/run"
	mkdir "$work/run"
	refused 1 'blocked on this host' ab start "$pushed" && ab unblock && ab start "$pushed"
}

# By configuration management, while an experiment runs.
blocked_by_file() {
	alternates && mkdir -p "$work/root/etc/faultline" && : >"$work/root/etc/faultline/no-experiments" &&
		ab apply spf-1 2>"$said" && is 0 "$(section)" && grep -q 'blocked on this host' "$said" &&
		is '' "$(find "$work/run/ab" -type f)"
}

blocks_idle_host() {
	new_host
	ab block && plan "$pushed" && refused 1 'blocked on this host \(by faultline-ab block\)' ab start "$pushed"
}

# --- Two experiments

two() {
	started && plan "$work/two" name=munmap switch=vm.munmap_section_kbytes b=65536 arms=baba &&
		ab start "$work/two" && at 1000600 && ab apply spf-1 && ab apply munmap || return 1
	is '0 65536' "$(spf) $(switch munmap_section_kbytes)" || return 1
	is 2 "$(grep -c '^faultline_ab{' "$work/textfile/faultline_ab.prom")" &&
		is 3 "$(grep -c '^# TYPE' "$work/textfile/faultline_ab.prom")" || return 1
	plan "$work/three" name=other
	refused 1 'experiment spf-1 uses vm.speculative_page_fault' ab start "$work/three" &&
		refused 1 'several experiments run.*--all' ab stop || return 1
	ab stop munmap && is '0' "$(switch munmap_section_kbytes)" && [ -e "$work/run/ab/spf-1.plan" ] &&
		at 1001200 && ab apply spf-1 && is 1 "$(spf)" && ab start "$work/two" &&
		ab stop --all && nothing_left 0
}

# Of experiments that start at the same moment on one switch, one wins.
race() {
	local n winners=0 pids=()
	new_host
	for n in 1 2 3 4 5 6; do
		plan "$work/race$n" name="race$n"
		ab start "$work/race$n" 2>/dev/null &
		pids+=($!)
	done
	for n in "${pids[@]}"; do
		wait "$n" && winners=$((winners + 1))
	done
	is 1 "$winners" && is 1 "$(find "$work/run/ab" -name '*.plan' | wc -l)"
}

held_lock() {
	local status
	started
	sed 's/^LOCK_SECONDS=.*/LOCK_SECONDS=1/' "$host/faultline-ab" >"$work/impatient"
	exec 8>>"$work/run/lock"
	flock 8
	# shellcheck disable=SC2086
	$shell "$work/impatient" stop 2>"$said" 8>&-
	status=$?
	exec 8>&-
	is 1 "$status" && grep -q 'has held' "$said"
}

again() {
	started && ab start "$pushed" && is 4 "$(wc -l <"$units")" || return 1
	plan "$work/other" arms=bbaa
	refused 1 'another plan runs.*stop spf-1' ab start "$work/other"
}

# An experiment that should have ended makes way.
makes_way() {
	started && at 1001200 && ab apply spf-1 && at 1010001 || return 1
	plan "$work/next" name=next start=1010600 expires=1020000
	ab start "$work/next" && is 0 "$(spf)" && [ ! -e "$work/run/ab/spf-1.plan" ] &&
		[ -e "$work/run/ab/next.plan" ]
}

units_do_not_start() {
	new_host
	plan "$pushed"
	: >"$work/systemctl-fails"
	ab start "$pushed" >"$said" 2>&1 && { echo 'it started'; return 1; }
	is 1 "$(grep -c error: "$said")" && grep -q 'does not start faultline-ab-expire@' "$said" &&
		is '' "$(find "$work/run/ab" -type f)" && is 0 "$(spf)"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}an experiment expires by the timer of slots" expires ab apply spf-1
	check "${s}an experiment expires by the timer of expiry" expires ab stop --expired spf-1
	for what in plan-gone plan-cut plan-edited before-gone before-empty state-gone; do
		check "${s}expiry works with $what" damaged $what ab stop --expired spf-1
		check "${s}apply ends an experiment with $what" damaged $what ab apply spf-1
		check "${s}stop works with $what" damaged $what ab stop spf-1
	done
	check "${s}a plan that is edited while it runs ends the experiment" edited_plan_ends
	check "${s}a value decided on after the last slot stays: stop" decided stop
	check "${s}a value decided on after the last slot stays: expiry" decided stop --expired
	check "${s}a value decided on after the last slot stays: apply" decided apply spf-1
	check "${s}a stop after the last slot" ends_after_the_end
	check "${s}a lost value that cannot be set back at once: no .before" lost_and_refused gone
	check "${s}a lost value that cannot be set back at once: a damaged one" lost_and_refused damaged
	check "${s}a lost value, and the next experiment" lost_and_next
	check "${s}stop during start" stop_during_start
	check "${s}a soft reboot" soft_reboot
	check "${s}stop" stops
	check "${s}stop NAME" stops spf-1
	check "${s}stop --all" stops --all
	check "${s}block ends experiments and allows none, also after a reboot" blocks
	check "${s}the file that blocks ends a running experiment" blocked_by_file
	check "${s}block where nothing runs" blocks_idle_host
	check "${s}two experiments" two
	check "${s}six experiments at once on one switch: one starts" race
	check "${s}a lock that is not given back" held_lock
	check "${s}start again" again
	check "${s}an expired experiment makes way" makes_way
	check "${s}timers that do not start" units_do_not_start
	new_host
	for arguments in '' fly 'start' 'start a b' 'start --now x' 'stop a b' 'stop --x' 'stop ../x' \
		'status x' 'apply' 'apply a/b' check; do
		# shellcheck disable=SC2086
		check "${s}usage: faultline-ab $arguments" refused 2 . ab $arguments
	done
	check "${s}stop where nothing runs" ab stop --all
	check "${s}a timer that is left over" ab apply gone
done
done_testing
