#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: slots, expiry, clocks that jump, two experiments, and what goes
# wrong, on a host in a namespace, with dash; with FULL=1, also with busybox ash.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/lib.sh
. tests/rollout/lib.sh

spf() { switch speculative_page_fault; }
counted() { sed -n 's/^faultline_ab_noncompliant_total.* //p' "$work/textfile/faultline_ab.prom"; }
pushed=$work/spf.plan
json() {
	python3 -c 'import json, sys
found = json.load(sys.stdin)["experiments"]
print(*(",".join(str(one[key]) for key in sys.argv[1:]) for one in found))' "$@"
}

# started: a new host with the plan started, its first slot at 1000600.
started() {
	new_host
	plan "$pushed" "$@"
	ab start "$pushed" 2>"$said" || { cat "$said"; return 1; }
}

# nothing_left VALUE: the switch is VALUE and nothing of an experiment is there.
nothing_left() {
	is "$1" "$(spf)" && is '' "$(find "$work/run/ab" "$work/textfile" -type f)" &&
		is 'stop faultline-ab@spf-1.timer faultline-ab-expire@spf-1.timer' "$(tail -n 1 "$units")"
}

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

# But as long as the value from before is not back, each end puts it back.
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
		# shellcheck disable=SC2086 # "busybox ash" are two words
		$shell "$host/faultline-trial-generator" "$folder" && find "$folder" -type l -printf '%f\n' | sort
	}
	new_host
	is '' "$(generate)" && started && is 'faultline-ab-expire@spf-1.timer
faultline-ab@spf-1.timer' "$(generate)" && ab stop && is '' "$(generate)"
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

no_clock() {
	started && at 1001200 && ab apply spf-1 || return 1
	: >"$work/clock"
	refused 1 'clock does not give' ab apply spf-1
}

# With the real clock: it waits for the slot.
waits() {
	local now
	started start=$(($(date +%s) + 2)) expires=$(($(date +%s) + 3000)) && is 0 "$(spf)"
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

# --- Others who set the switch, and a kernel that does not obey

# section VALUE: the value of a switch that has more than two.
section() {
	[ $# -eq 0 ] || echo "$1" >"$work/sys/vm/munmap_section_kbytes"
	switch munmap_section_kbytes
}
# alternates: an experiment with that switch, in arm b.
alternates() {
	started switch=vm.munmap_section_kbytes b=65536 && at 1001200 && ab apply spf-1 && is 65536 "$(section)"
}
ended_metric() { sed -n 's/^faultline_ab_ended.* //p' "$work/textfile/faultline_ab.prom"; }
# says VALUE: sysctl.d sets the switch from now on.
says() {
	mkdir -p "$work/root/etc/sysctl.d"
	echo "vm.munmap_section_kbytes = $1" >"$work/root/etc/sysctl.d/70-x.conf"
}

# A program that sets the value it is used to, once.
somebody_else() {
	alternates && is 0 "$(counted)" && section 4096 && ab apply spf-1 2>"$said" &&
		grep -q 'somebody else sets it; the next time, the experiment ends' "$said" &&
		is 65536 "$(section)" && is '1 0' "$(counted) $(ended_metric)" && ab apply spf-1 &&
		is '1 0' "$(counted) $(ended_metric)"
}

# stays VALUE: after a tick, and in the slots after it, the switch has the value that was set.
stays() {
	ab apply spf-1 2>"$said" && grep -q "by hand, and stays so; to forget it: faultline-ab stop spf-1" "$said" &&
		is "$1 1" "$(section) $(ended_metric)" && at 1001800 && ab apply spf-1 && at 1002400 && ab apply spf-1 2>"$said" &&
		is "$1 1 $2" "$(section) $(ended_metric) $(counted)" && is '' "$(cat "$said")" &&
		is "ended,$1,$1,$1,stock" "$(ab status --json | json state value assigned set_by_hand arm)" &&
		[[ $(ab status) == "spf-1: ended on this host, because vm.munmap_section_kbytes was set to $1 by hand"* ]] || return 1
	refused 1 "was set to $1 by hand during experiment spf-1.*stop spf-1" ab start "$pushed" &&
		plan "$work/other" name=other switch=vm.munmap_section_kbytes b=65536 &&
		refused 1 "was set to $1 by hand during experiment spf-1" ab start "$work/other" || return 1
}
by_hand_stock() {
	alternates && section 0 && stays 0 1 && ab stop 2>"$said" && is 0 "$(section)" && ab start "$pushed"
}
by_hand_again() {
	alternates && section 4096 && ab apply spf-1 && section 4096 && stays 4096 2 && at 1010000 &&
		ab "$@" 2>"$said" && is 4096 "$(section)" && grep -q 'stays 4096, which somebody else set' "$said" &&
		is '' "$(find "$work/run/ab" -type f)"
}
by_hand_before() {
	new_host
	section 2048
	plan "$pushed" switch=vm.munmap_section_kbytes b=65536
	ab start "$pushed" && at 1001200 && ab apply spf-1 && section 2048 && stays 2048 1
}
by_hand_for_good() {
	alternates && says 4096 && section 4096 && stays 4096 1
}
# The timer has not seen it yet.
by_hand_and_stop() {
	alternates && section 4096 && ab stop 2>"$said" && is 4096 "$(section)" &&
		grep -q 'stays 4096' "$said" && is '' "$(find "$work/run/ab" -type f)"
}

# sysctl.d has changed since the start: its value is not undone at the end.
file_is_new() {
	alternates && says 4096 && ab stop 2>"$said" && is 4096 "$(section)" &&
		grep -q "is 4096, as $work/root/etc/sysctl.d/70-x.conf says" "$said"
}
# file_was_there COMMAND...: sysctl.d says 65536, and the host has 2048.
file_was_there() {
	new_host
	says 65536
	section 2048
	plan "$pushed" switch=vm.munmap_section_kbytes b=65536
	ab start "$pushed" && at 1001200 && ab apply spf-1 && "$@" && ab stop
}
file_is_gone() {
	file_was_there rm "$work/root/etc/sysctl.d/70-x.conf" 2>"$said" && is 0 "$(section)" &&
		grep -q 'no file sets it any more' "$said"
}
file_is_as_before() {
	file_was_there true && is 2048 "$(section)"
}
# A value that the kernel does not take.
file_is_wrong() {
	alternates && says 7 && mount --bind /dev/null "$work/sys/vm/munmap_section_kbytes" || return 1
	ab stop 2>"$said"
	umount "$work/sys/vm/munmap_section_kbytes"
	grep -q 'cannot be set back to 7' "$said" && ab apply spf-1 && is 7 "$(section)"
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
# By a configuration management, while an experiment runs.
blocked_by_file() {
	alternates && mkdir -p "$work/root/etc/faultline" && : >"$work/root/etc/faultline/no-experiments" &&
		ab apply spf-1 2>"$said" && is 0 "$(section)" && grep -q 'blocked on this host' "$said" &&
		is '' "$(find "$work/run/ab" -type f)"
}
blocks_idle_host() {
	new_host
	ab block && plan "$pushed" && refused 1 'blocked on this host \(by faultline-ab block\)' ab start "$pushed"
}

# --- Holds of other programs

# holds: process $holder holds two switches; it has set them once.
holds() {
	local status
	new_host
	section 4096 >/dev/null
	sleep 1000 &
	holder=$!
	mkdir -p "$work/root/run/systemd/system"
	ab hold bench "$holder" vm.munmap_section_kbytes vm.speculative_page_fault &&
		is 'start faultline-hold@bench.service' "$(cat "$units")" &&
		ab set bench vm.munmap_section_kbytes=0 vm.speculative_page_fault=1 &&
		is '0 1' "$(section) $(spf)" && "$@"
	status=$?
	kill "$holder" 2>/dev/null
	wait "$holder" 2>/dev/null
	return "$status"
}
kill_holder() {
	kill -KILL "$holder"
	wait "$holder" 2>/dev/null
	true
}
held_back() {
	is '4096 0' "$(section) $(spf)" && is '' "$(find "$work/run/ab" -type f)" &&
		is 'stop faultline-hold@bench.service' "$(tail -n 1 "$units")"
}
released() { ab release bench && held_back && refused 1 'holds no switches' ab set bench vm.speculative_page_fault=1; }
# A zombie has ended, too.
killed_and() { kill_holder && ab "$@" 2>"$said" && grep -q "process $holder has ended" "$said" && held_back; }
killed_and_start() {
	kill_holder && plan "$pushed" && ab start "$pushed" && is '4096 0' "$(section) $(spf)"
}
# The kernel refuses a value: it is not forgotten because of the next hold or experiment.
killed_and_refused() {
	local before
	kill_holder && chmod 444 "$work/sys/vm/speculative_page_fault" && before=$(cat "$work/run/ab/bench.before") &&
		plan "$pushed" switch=vm.munmap_section_kbytes b=65536 || return 1
	for order in "hold bench $$ vm.munmap_section_kbytes" "hold other $$ vm.munmap_section_kbytes" "start $pushed"; do
		# shellcheck disable=SC2086 # words
		without_rights $order 2>"$said" && { echo 'it succeeded'; return 1; }
		grep -q "bench, process $holder, has ended, and the kernel refuses" "$said" &&
			is "$before" "$(cat "$work/run/ab/bench.before")" || return 1
	done
	chmod 644 "$work/sys/vm/speculative_page_fault"
	ab hold bench $$ vm.munmap_section_kbytes && is '4096 0' "$(section) $(spf)" && ab release bench
}
# The same with an experiment, and the next one of its name has another switch.
stopped_and_refused() {
	started && at 1001200 && ab apply spf-1 && chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	without_rights stop spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	plan "$pushed" switch=vm.munmap_section_kbytes b=65536
	without_rights start "$pushed" 2>"$said" && { echo 'it started'; return 1; }
	chmod 644 "$work/sys/vm/speculative_page_fault"
	ab stop spf-1 && nothing_left 0
}
# Its number is another process's by now.
number_again() { sed -i "s/^born=.*/born=1/" "$work/run/ab/bench.before" && ab stop --expired bench && held_back; }
alive_and_expired() { ab stop --expired bench && is '0 1' "$(section) $(spf)"; }
hold_and_experiment() {
	plan "$pushed" switch=vm.pmd_clear_ipi_free &&
		refused 1 "bench, process $holder, changes switches on this host.*stop bench" ab start "$pushed" &&
		refused 1 "bench, process $holder, changes" ab hold bench $$ vm.pmd_clear_ipi_free &&
		is '' "$(ab status --json | json name)" && grep -q "bench: process $holder sets vm.mun" <(ab status)
}
hold_by_hand() {
	section 2048 && refused 1 'was set from 0 to 2048 by somebody else' ab set bench vm.munmap_section_kbytes=65536 vm.speculative_page_fault=0 &&
		ab release bench 2>"$said" && is '2048 0' "$(section) $(spf)" && grep -q 'stays 2048' "$said"
}
hold_stopped() { ab stop --all && held_back; }
hold_blocked() { ab block && held_back; }
hold_blocked_by_file() {
	mkdir -p "$work/root/etc/faultline" && echo incident >"$work/root/etc/faultline/no-experiments" &&
		! ab set bench vm.munmap_section_kbytes=65536 2>"$said" &&
		grep -q 'blocked on this host (incident)' "$said" && held_back
}
hold_soft_reboot() {
	# shellcheck disable=SC2086 # "busybox ash" are two words
	$shell "$host/faultline-trial-generator" "$work/root/generated" &&
		is faultline-hold@bench.service "$(find "$work/root/generated" -type l -printf '%f\n')"
}
# The process ends while somebody waits for that.
watched() {
	local watcher status=0 end=$((SECONDS + 60))
	# shellcheck disable=SC2086 # "busybox ash" are two words
	$shell "$host/faultline-ab" watch bench 2>"$said" &
	watcher=$!
	until tr '\0' ' ' <"/proc/$watcher/cmdline" | grep -q 'faultline-ab watch'; do
		[ "$SECONDS" -lt "$end" ] || { echo 'faultline-ab watch does not begin'; status=1; break; }
		sleep 0.05
	done
	kill_holder
	wait "$watcher" && [ "$status" = 0 ] && held_back
}
# Without systemd, a process of its own waits.
without_systemd() {
	local end=$((SECONDS + 60))
	new_host
	sleep 1000 &
	holder=$!
	ab hold bench "$holder" vm.munmap_section_kbytes 2>"$said" && ab set bench vm.munmap_section_kbytes=65536 &&
		grep -q 'warning: systemd does not run.*faultline-ab stop bench' "$said" || return 1
	kill_holder
	until [ "$(section)" = 0 ] && [ ! -e "$work/run/ab/bench.before" ]; do
		[ "$SECONDS" -lt "$end" ] || { echo 'nobody puts the switch back'; return 1; }
		sleep 0.1
	done
}
hold_refused() {
	alternates && refused 1 'experiment spf-1 runs on this host' ab hold x $$ vm.speculative_page_fault || return 1
	new_host
	ab hold --dry-run x $$ vm.munmap_section_kbytes && is '' "$(find "$work/run" -type f)" || return 1
	refused 1 'there is no process 4194305' ab hold x 4194305 vm.munmap_section_kbytes &&
		refused 2 'not a switch' ab hold x $$ vm.swappiness &&
		refused 1 'holds no switches' ab set x vm.munmap_section_kbytes=1 &&
		refused 1 'holds no switches' ab release x && ab watch x
}

# --- Package scripts

# removed COMMAND...: after COMMAND, the package is removed, for both kinds of packages.
removed() {
	alternates && "$@" && package deb remove && is '' "$(find "$work/textfile" -type f)" &&
		grep -qF 'stop faultline-ab@* faultline-ab-expire@* faultline-hold@*' "$units" &&
		alternates && "$@" && package rpm 0 && is '' "$(find "$work/textfile" -type f)"
}
removed_cleanly() {
	removed true && is 0 "$(section)" && is '' "$(find "$work/run/ab" -type f)" && is '' "$(grep warning "$said")"
}
removed_damaged() {
	damage() { rm "$work/run/ab/spf-1.plan" && echo x >"$work/run/ab/spf-1.before"; }
	removed damage && grep -q 'warning: some switches may not be as before' "$said"
}
removed_locked() {
	local status sbin=$work/sbin
	mkdir -p "$sbin"
	sed 's/^LOCK_SECONDS=.*/LOCK_SECONDS=0/' "$host/faultline-ab" >"$sbin/faultline-ab"
	chmod 755 "$sbin/faultline-ab"
	alternates || return 1
	exec 8>>"$work/run/lock"
	flock 8
	package deb remove 8>&- && package rpm 0 8>&-
	status=$?
	exec 8>&-
	[ "$status" = 0 ] && grep -q 'has held' "$said" && grep -q 'warning: some switches' "$said"
}
removed_refused() {
	local as='setpriv --bounding-set=-dac_override,-dac_read_search'
	refuse() { chmod 444 "$work/sys/vm/munmap_section_kbytes"; }
	# The value is not lost: the package comes back, and the next command completes the stop.
	removed refuse && grep -q 'cannot be set back to 0' "$said" && is 65536 "$(section)" &&
		chmod 644 "$work/sys/vm/munmap_section_kbytes" && ab stop && is 0 "$(section)"
}
upgraded() {
	alternates && package "$1" "$2" && is '' "$(cat "$said")" && is 65536 "$(section)" &&
		at 1001800 && ab apply spf-1 && is 65536 "$(section)" && at 1002400 && ab apply spf-1 && is 0 "$(section)"
}
# The new version does not read the plan.
# old_files BACK: the files of 6.12.117 instead; the value before was 4096.
old_files() {
	printf '%s\n' switch=vm.munmap_section_kbytes value=4096 expires=1010000 deadline=20000 >"$work/run/ab/spf-1.before"
	printf '%s\n' applied=65536 going= back="$1" noncompliant=0 slot=1 arm=b >"$work/run/ab/spf-1.state"
}
upgraded_from_117() {
	alternates && old_files '' && is 'running,65536,4096' "$(ab status --json | json state value before)" &&
		at 1001800 && ab apply spf-1 && is 65536 "$(section)" || return 1
	case $1 in
	by-hand) section 4096 && at 1002400 && ab apply spf-1 2>"$said" && grep -q 'from 65536 to 4096 by hand' "$said" &&
		ab stop spf-1 ;;
	stop) ab stop spf-1 ;;
	refused)
		chmod 444 "$work/sys/vm/munmap_section_kbytes"
		old_files '' && rm "$work/run/ab/spf-1.plan"
		plan "$pushed" name=next switch=vm.munmap_section_kbytes b=65536
		without_rights start "$pushed" 2>"$said" && { echo 'it started'; return 1; }
		chmod 644 "$work/sys/vm/munmap_section_kbytes"
		ab stop --all
		;;
	# After the last slot.
	back) old_files 1 && section 2048 && ab stop spf-1 && is 2048 "$(section)" && section 4096 ;;
	esac && is 4096 "$(section)" && is '' "$(find "$work/run/ab" -type f)"
}
# A run of faultline-bench that was killed before the upgrade.
upgraded_bench() {
	new_host
	: >"$work/run/bench.before"
	plan "$pushed"
	refused 1 'bench.before has values that faultline-bench of 6.12.117' ab start --dry-run "$pushed" &&
		refused 1 'bench.before has values' ab hold bench $$ vm.munmap_section_kbytes
}
upgraded_format() {
	alternates && mkdir -p "$work/newer" && cp "$host"/*.sh "$work/newer" &&
		sed -i 's/!= 1 \]/!= 2 ]/; s/reads format 1/reads format 2/' "$work/newer/plan.sh" || return 1
	(FAULTLINE_LIB=$work/newer && ab apply spf-1 2>"$said") && { echo 'it succeeded'; return 1; }
	grep -q "is for another version (format is '1'; this program reads format 2)" "$said" && is 0 "$(section)" &&
		is '' "$(find "$work/run/ab" -type f)"
}

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

# --- Metrics in a folder of another user

# foreign_folder OWNER MODE COMMAND...: node_exporter's folder is OWNER's, who has run COMMAND in it.
foreign_folder() {
	local owner=$1 mode=$2
	shift 2
	started && at 1001200 && echo secret >"$work/root/shadow" && chmod 600 "$work/root/shadow" &&
		chmod 755 "$work/root" && mkdir -p "$work/root/evil" && chown "$owner" "$work/textfile" &&
		chmod "$mode" "$work/textfile" && (cd "$work/textfile" && "$@") || return 1
}
untouched() {
	is secret "$(cat "$work/root/shadow")" && is 600 "$(stat -c %a "$work/root/shadow")" &&
		is '' "$(find "$work/root/evil" -type f)"
}
links_followed() {
	foreign_folder "$1" "$2" ln -s "$work/root/shadow" .faultline_ab.prom.new || return 1
	# With the right to write there, or without it.
	ab apply spf-1 2>"$said"
	untouched || return 1
	rm -f "$work/textfile/.faultline_ab.prom.new"
	ln -s "$work/root/evil" "$work/textfile/faultline_ab.prom"
	ab apply spf-1 2>>"$said"
	is 1 "$(spf)" && untouched
}
written_anyway() {
	foreign_folder "$1" "$2" true && ab apply spf-1 2>"$said" && is '' "$(grep warning "$said")" &&
		grep -q 'arm="b"' "$work/textfile/faultline_ab.prom" && is "$3" "$(stat -c %u:%g "$work/textfile/faultline_ab.prom")" &&
		ab stop && is '' "$(find "$work/textfile" -type f)"
}
folder_replaced() {
	started && at 1001200 && rm -r "$work/textfile" && mkdir -p "$work/root/evil" &&
		ln -s "$work/root/evil" "$work/textfile" && ab apply spf-1 2>"$said" && is 1 "$(spf)" &&
		is '' "$(find "$work/root/evil" -type f)" && grep -q 'symbolic link leads to .*evil: set FAULTLINE_TEXTFILE' "$said"
}
# from_default FOLDER TEXT: /etc/default says where metrics go, for each command.
from_default() (
	new_host
	unset FAULTLINE_TEXTFILE
	mkdir -p "$work/root/etc/default" "$1"
	printf '%s\n' FAULTLINE_OTHER=x "$2" >"$work/root/etc/default/faultline-host"
	plan "$pushed" && ab start "$pushed" && at 1001200 && ab apply spf-1 && grep -q 'arm="b"' "$1/faultline_ab.prom" &&
		ab stop && is '' "$(find "$1" -type f)" || return 1
	# At boot, systemd-tmpfiles removes what a crash has left.
	# shellcheck disable=SC2086 # "busybox ash" are two words
	$shell "$host/faultline-trial-generator" "$work/root/generated" && echo old >"$1/faultline_ab.prom" &&
		systemd-tmpfiles --boot --remove "$work/root/run/tmpfiles.d/faultline-textfile.conf" &&
		is '' "$(find "$1" -type f)"
)
# Folders of distributions.
first_folder() (
	new_host
	unset FAULTLINE_TEXTFILE
	mkdir -p "$work/root/$1"
	plan "$pushed" && ab start "$pushed" && ab apply spf-1 && grep -q 'arm="stock"' "$work/root/$1/faultline_ab.prom"
)

# eacces ARGUMENT...: as root of the host without the right to ignore file modes.
without_rights() {
	# shellcheck disable=SC2086 # "busybox ash" are two words
	setpriv --bounding-set=-dac_override,-dac_read_search $shell "$host/faultline-ab" "$@"
}

eacces() {
	started && at 1000600 && ab apply spf-1 && chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	at 1001200
	without_rights apply spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	grep -q 'error: spf-1: slot 1, arm b: the kernel refuses' "$said" && is 0 "$(spf)" &&
		is 1 "$(counted)" && grep -q 'arm="stock"' "$work/textfile/faultline_ab.prom" || return 1
	chmod 644 "$work/sys/vm/speculative_page_fault"
	ab apply spf-1 && is 1 "$(spf)" && is 1 "$(counted)"
}

# The switch cannot be set back: that is said, and tried again by the timer.
eacces_at_stop() {
	started && at 1001200 && ab apply spf-1 && chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	without_rights stop spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	grep -q 'cannot be set back to 0.*tried again' "$said" && is 1 "$(spf)" &&
		! grep -q '^stop' "$units" || return 1
	without_rights apply spf-1 2>/dev/null && { echo 'apply succeeded'; return 1; }
	refused 1 'uses vm' without_rights start "$pushed"
	chmod 644 "$work/sys/vm/speculative_page_fault"
	"$@" && nothing_left 0
}

enoent() {
	started && at 1001200 && rm "$work/sys/vm/speculative_page_fault" || return 1
	ab apply spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	grep -q 'this kernel has no vm.speculative_page_fault' "$said" &&
		[ ! -e "$work/sys/vm/speculative_page_fault" ] && is 1 "$(counted)"
}

# The file accepts each write and does not keep the value.
lies() {
	local status
	started && at 1001200 && mount --bind /dev/null "$work/sys/vm/speculative_page_fault" || return 1
	ab apply spf-1 2>"$said"
	status=$?
	umount "$work/sys/vm/speculative_page_fault"
	[ "$status" -eq 1 ] && grep -q "is '' after writing" "$said" && is 1 "$(counted)"
}

# The memory for /run is used up: nothing is set that cannot be noted; the stop still works.
full_run() {
	local status
	started arms=baabba && at 1000600 && ab apply spf-1 || return 1
	mount -t tmpfs -o size=64k tmpfs "$work/run2" && cp -a "$work/run/." "$work/run2/" &&
		mount --move "$work/run2" "$work/run" || return 1
	head -c 100000 /dev/zero >"$work/run/big" 2>/dev/null
	at 1001200
	not_noted() {
		ab apply spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
		is 1 "$(spf)" && grep -q 'is .* full' "$said" && ab stop 2>"$said" && is 0 "$(spf)" || return 1
		# It is smaller than a block of the file system that is left.
		head -c 100000 /dev/zero >"$work/run/big2" 2>/dev/null
		refused 1 'is it full' ab start "$pushed"
	}
	not_noted
	status=$?
	umount "$work/run"
	return "$status"
}

# No folder for metrics, or one that is read-only: a warning, and nothing else.
metrics_fail() {
	started && at 1001200 && rm -r "$work/textfile" && ab apply spf-1 2>"$said" && is 1 "$(spf)" &&
		grep -q 'warning: cannot write .*prom' "$said" && ab stop 2>/dev/null && is 0 "$(spf)"
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

# --- Hosts that cannot take part

# unfit PATTERN COMMAND...: after COMMAND, the host is refused.
unfit() {
	local pattern=$1
	shift
	new_host
	plan "$pushed"
	"$@"
	refused 1 "$pattern" ab start "$pushed" && is 0 "$(cat "$work/sys/vm/munmap_section_kbytes")"
}

# fit COMMAND...: after COMMAND, the host takes part.
fit() {
	new_host
	plan "$pushed"
	"$@"
	ab start "$pushed"
}

# A host without the table makes no experiment; one that runs ends, with the value from before.
without_table() (
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" || return 1
	FAULTLINE_SWITCHES=$work/none
	refused 1 'install the package faultline-profiles' ab check "$pushed" || return 1
	! ab apply spf-1 2>"$said" && nothing_left 0 && grep -q 'install the package' "$said" || return 1
	refused 1 'install the package faultline-profiles' ab start "$pushed"
)

# conf FILE LINE: a line in a configuration file.
conf() {
	mkdir -p "$(dirname "$work/root/$1")"
	printf '%b\n' "$2" >>"$work/root/$1"
}
line='vm.speculative_page_fault = 2'

hidden() {
	conf usr/lib/sysctl.d/70-x.conf "$line"
	mkdir -p "$work/root/etc/sysctl.d"
	ln -s /dev/null "$work/root/etc/sysctl.d/70-x.conf"
}
same_arms() {
	plan "$pushed" b=0
	conf etc/sysctl.d/70-x.conf 'vm.speculative_page_fault=0'
}
later_wins() {
	plan "$pushed" b=0
	conf etc/sysctl.d/70-x.conf "$line"
	conf usr/lib/sysctl.d/80-x.conf '-vm/speculative_page_fault=0'
}
excluded() {
	conf usr/lib/sysctl.d/60-x.conf 'vm.*=2'
	conf etc/sysctl.d/70-x.conf '-vm.speculative_page_fault'
}
name_wins() {
	conf etc/sysctl.d/10-x.conf 'vm.speculative_page_fault=1'
	conf etc/sysctl.d/90-x.conf 'vm.speculative*=2'
}
# By our own reading of the folders, where systemd-analyze cannot do it.
without_analyze() {
	local status
	mount --bind /bin/false /usr/bin/systemd-analyze || return 1
	"$@"
	status=$?
	umount /usr/bin/systemd-analyze
	return "$status"
}
tuned() {
	conf etc/tuned/active_profile mine
	conf "etc/tuned/$1mine/tuned.conf" '[main]\ninclude=base,faultline-jvm'
	conf "usr/lib/tuned/$1faultline-jvm/tuned.conf" "[sysctl.faultline]\ntype=sysctl\n$line"
}
tuned_other() {
	conf etc/tuned/active_profile balanced
	conf usr/lib/tuned/balanced/tuned.conf '[sysctl]\nvm.swappiness=10'
	conf usr/lib/tuned/faultline-jvm/tuned.conf "[sysctl]\n$line"
}
isolated() { conf sys/devices/system/cpu/isolated 2-15; }
isolated_accepted() {
	new_host
	plan "$pushed"
	isolated
	ab start --isolated-cpus "$pushed"
}
not_root() {
	new_host
	plan "$pushed"
	chmod 444 "$work/sys/vm/speculative_page_fault"
	refused 1 'cannot be written: run this as root' without_rights start "$pushed"
}
no_systemd() {
	local FAULTLINE_SYSTEMCTL=no-such-program
	new_host
	plan "$pushed"
	refused 1 'timers of systemd run experiments' ab start "$pushed"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}the switch follows the plan, in every slot" follows_the_plan
	check "${s}the value from before comes back, also if it is not upstream's" value_from_before
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
	check "${s}a clock that is lost: apply" clock_lost ab apply spf-1
	check "${s}a clock that is lost: expiry" clock_lost ab stop --expired spf-1
	check "${s}stop" stops
	check "${s}stop NAME" stops spf-1
	check "${s}stop --all" stops --all
	check "${s}the switch follows a clock that jumps" jumps
	check "${s}a clock that is set back does not prolong an experiment: apply" cannot_be_prolonged ab apply spf-1
	check "${s}a clock that is set back does not prolong an experiment: expiry" \
		cannot_be_prolonged ab stop --expired spf-1
	check "${s}no clock" no_clock
	check "${s}apply waits for a slot that is near" waits
	check "${s}a value that somebody else set is counted and put right, once" somebody_else
	check "${s}a stock value set by hand stays, and ends the experiment" by_hand_stock
	check "${s}the value from before, set by hand, stays" by_hand_before
	check "${s}a second value set by hand stays: stop" by_hand_again stop
	check "${s}a second value set by hand stays: expiry" by_hand_again stop --expired
	check "${s}a second value set by hand stays: apply at expiry" by_hand_again apply spf-1
	check "${s}a value set by hand and in sysctl.d stays" by_hand_for_good
	check "${s}a value set by hand just before the stop stays" by_hand_and_stop
	check "${s}stop leaves the value that sysctl.d says now" file_is_new
	check "${s}stop leaves the stock value if sysctl.d no longer has one" file_is_gone
	check "${s}stop puts back what was set against sysctl.d before" file_is_as_before
	check "${s}stop, and the kernel refuses the value of sysctl.d" file_is_wrong
	check "${s}block ends experiments and allows none, also after a reboot" blocks
	check "${s}the file that blocks ends a running experiment" blocked_by_file
	check "${s}block where nothing runs" blocks_idle_host
	check "${s}a hold and its release" holds released
	check "${s}a hold whose process was killed: expiry" holds killed_and stop --expired bench
	check "${s}a hold whose process was killed: watch" holds killed_and watch bench
	check "${s}a hold whose process is killed during watch" holds watched
	check "${s}a hold whose process was killed, and the next experiment" holds killed_and_start
	check "${s}a hold whose process was killed, and the kernel refuses its value" holds killed_and_refused
	check "${s}the next experiment of a name does not forget a value that the kernel refused" stopped_and_refused
	check "${s}a hold whose process has another one's number" holds number_again
	check "${s}a hold does not expire while its process lives" holds alive_and_expired
	check "${s}a hold and an experiment exclude each other" holds hold_and_experiment
	check "${s}a value set by hand during a hold stays" holds hold_by_hand
	check "${s}a hold, stopped" holds hold_stopped
	check "${s}a hold, blocked" holds hold_blocked
	check "${s}a hold, blocked by the file" holds hold_blocked_by_file
	check "${s}a hold and a soft reboot" holds hold_soft_reboot
	check "${s}a hold without systemd" without_systemd
	check "${s}holds that are refused" hold_refused
	check "${s}removal ends an experiment" removed_cleanly
	check "${s}removal with a damaged .before" removed_damaged
	check "${s}removal while the lock is held" removed_locked
	check "${s}removal, and the kernel refuses the old value" removed_refused
	check "${s}an experiment goes on over an upgrade: deb" upgraded deb upgrade
	check "${s}an experiment goes on over an upgrade: rpm" upgraded rpm 1
	for how in stop by-hand refused back; do
		check "${s}an upgrade from 6.12.117 keeps the value from before: $how" upgraded_from_117 $how
	done
	check "${s}values of faultline-bench 6.12.117 are not taken for those from before" upgraded_bench
	check "${s}an upgrade to a version for other plans ends it" upgraded_format
	check "${s}a plan from standard input" from_stdin
	if : >"$work/probe" && chown 65534:65533 "$work/probe" 2>/dev/null; then
		check "${s}metrics in a folder of another user" written_anyway 65534:65534 755 65534:65534
		check "${s}metrics in a folder of root that a group can write to" written_anyway 0:65533 2775 65534:65533
		check "${s}metrics in a folder that everybody can write to" written_anyway 0:0 1777 65534:65534
		check "${s}links in a folder of another user are not followed as root" links_followed 65534:65534 755
		check "${s}links in a folder of root and a group are not followed as root" links_followed 0:65533 2775
	else
		for what in 'of another user' 'of root and a group' 'of everybody'; do
			ok "${s}metrics in a folder $what" 'takes a second user'
		done
	fi
	check "${s}a folder that was replaced by a link is refused" folder_replaced
	check "${s}the folder of metrics in /etc/default" from_default "$work/root/metrics" "FAULTLINE_TEXTFILE=$work/root/metrics/"
	check "${s}the folder of metrics in /etc/default, in quotes" from_default "$work/root/my metrics" \
		"  FAULTLINE_TEXTFILE=\"$work/root/my metrics\" "
	check "${s}the folder of metrics on Debian" first_folder var/lib/prometheus/node-exporter
	check "${s}the folder of metrics on EL" first_folder var/lib/node_exporter/textfile_collector
	check "${s}EACCES" eacces
	check "${s}EACCES at the end: apply tries again" eacces_at_stop ab apply spf-1
	check "${s}EACCES at the end: expiry tries again" eacces_at_stop ab stop --expired spf-1
	check "${s}ENOENT" enoent
	check "${s}a switch that does not keep its value" lies
	mkdir -p "$work/run2"
	check "${s}/run is full" full_run
	check "${s}metrics cannot be written" metrics_fail
	check "${s}two experiments" two
	check "${s}six experiments at once on one switch: one starts" race
	check "${s}a lock that is not given back" held_lock
	check "${s}start again" again
	check "${s}an expired experiment makes way" makes_way
	check "${s}timers that do not start" units_do_not_start
	check "${s}status" status_text
	check "${s}status --json" status_json
	check "${s}check" checked
	check "${s}start --dry-run" dry_run

	check "${s}a plan that is cut off" truncated
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
	check "${s}hugetlb_pmd_sharing may differ between hosts" fit plan "$pushed" \
		switch=vm.hugetlb_pmd_sharing a=1 b=0 arms=bbbb
	check "${s}hugetlb_pmd_sharing alternates between 1 and 2" fit plan "$pushed" \
		switch=vm.hugetlb_pmd_sharing a=1 b=2

	check "${s}no table of switches" without_table

	check "${s}faultline=off" unfit 'faultline=off' tee "$work/cmdline" <<<'quiet faultline=off'
	check "${s}a kernel without the switch" unfit 'has no vm.spec' rm "$work/sys/vm/speculative_page_fault"
	check "${s}a schedule that is over" unfit 'schedule has ended' at 1005000
	check "${s}an expired plan" unfit 'plan has expired' at 1010000
	for folder in etc run usr/local/lib usr/lib lib; do
		check "${s}$folder/sysctl.d sets the switch" unfit "$folder/sysctl.d/70-x.conf sets" \
			conf "$folder/sysctl.d/70-x.conf" "  -$line"
	done
	check "${s}/etc/sysctl.conf sets the switch" unfit 'sysctl.conf sets' conf etc/sysctl.conf "$line"
	check "${s}a pattern in sysctl.d sets the switch" unfit 'sets' conf etc/sysctl.d/x.conf 'vm/spec* =2'
	for line in 'vm.speculative_page_f[a-c]ult=2' 'vm.s*_pag?_[!g]ault = 2' '-vm/speculative_page_faul?=2' '*/spec* = 2'; do
		check "${s}a pattern in sysctl.d sets the switch: $line" unfit 'x.conf sets' conf etc/sysctl.d/x.conf "$line"
	done
	for line in 'vm.speculative_page_f[b-c]ult=2' 'vm.s?_page_fault=2' 's*=2' 'vm/vm.spec*=2' 'vm.speculative.page.fault=2'; do
		check "${s}a pattern in sysctl.d does not set the switch: $line" fit conf etc/sysctl.d/x.conf "$line"
	done
	line='vm.speculative_page_fault = 2'
	check "${s}a key that sysctl.d takes out of patterns" fit excluded
	check "${s}a name in sysctl.d goes before a pattern" fit name_wins
	check "${s}sysctl.d sets an arm's value" fit conf etc/sysctl.d/x.conf 'vm.speculative_page_fault=1'
	if [ -e /usr/bin/systemd-analyze ]; then
		check "${s}without systemd-analyze: sysctl.d sets the switch" without_analyze \
			unfit "usr/lib/sysctl.d/70-x.conf sets" conf usr/lib/sysctl.d/70-x.conf "$line"
		check "${s}without systemd-analyze: a hidden file does not matter" without_analyze fit hidden
		check "${s}without systemd-analyze: the last file counts" without_analyze fit later_wins
	fi
	check "${s}a comment in sysctl.d does not set the switch" fit conf etc/sysctl.d/x.conf "# $line"
	check "${s}the package's own files do not set the switch" fit sysctl/install.sh "$work/root"
	check "${s}another key in sysctl.d does not matter" fit conf etc/sysctl.d/x.conf 'vm.speculative_page_fault_x=1'
	check "${s}a hidden file in sysctl.d does not matter" fit hidden
	check "${s}a file that agrees with both arms" fit same_arms
	check "${s}the last file counts" fit later_wins
	check "${s}tuned sets the switch, by an include" unfit 'tuned.conf sets' tuned ''
	check "${s}tuned of newer versions sets the switch" unfit 'tuned.conf sets' tuned profiles/
	check "${s}tuned does other things" fit tuned_other
	check "${s}isolated CPUs" unfit 'CPUs 2-15 are isolated' isolated
	check "${s}isolated CPUs, accepted" isolated_accepted
	check "${s}not root" not_root
	check "${s}no systemd" no_systemd
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
