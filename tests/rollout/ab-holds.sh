#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: the switches that another program holds.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# holds: process $holder holds two switches; it has set them once.
holds() {
	local status
	new_host
	set_section 4096
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

# The process ID was used again.
number_again() {
	sed -i "s/^born=.*/born=1/" "$work/run/ab/bench.before" && plan "$pushed" && ab start --dry-run "$pushed" &&
		ab stop --expired bench && held_back
}

alive_and_expired() { ab stop --expired bench && is '0 1' "$(section) $(spf)"; }

hold_and_experiment() {
	plan "$pushed" switch=vm.pmd_clear_ipi_free &&
		refused 1 "bench, process $holder, changes switches on this host.*stop bench" ab start "$pushed" &&
		refused 1 "bench, process $holder, changes" ab hold bench $$ vm.pmd_clear_ipi_free &&
		is '' "$(ab status --json | json name)" && grep -q "bench: process $holder sets vm.mun" <(ab status)
}

hold_by_hand() {
	set_section 2048 && refused 1 'was set from 0 to 2048 by somebody else' ab set bench vm.munmap_section_kbytes=65536 vm.speculative_page_fault=0 &&
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
	generator "$work/root/generated" &&
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

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}a hold and its release" holds released
	check "${s}a hold whose process was killed: expiry" holds killed_and stop --expired bench
	check "${s}a hold whose process was killed: watch" holds killed_and watch bench
	check "${s}a hold whose process is killed during watch" holds watched
	check "${s}a hold whose process was killed, and the next experiment" holds killed_and_start
	check "${s}a hold whose process was killed, and the kernel refuses its value" holds killed_and_refused
	check "${s}a hold whose process ID was used again" holds number_again
	check "${s}a hold does not expire while its process lives" holds alive_and_expired
	check "${s}a hold and an experiment exclude each other" holds hold_and_experiment
	check "${s}a value set by hand during a hold stays" holds hold_by_hand
	check "${s}a hold, stopped" holds hold_stopped
	check "${s}a hold, blocked" holds hold_blocked
	check "${s}a hold, blocked by the file" holds hold_blocked_by_file
	check "${s}a hold and a soft reboot" holds hold_soft_reboot
	check "${s}a hold without systemd" without_systemd
	check "${s}holds that are refused" hold_refused
done
done_testing
