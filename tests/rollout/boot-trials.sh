#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-boot: a kernel on trial: what the generator starts, the gate and its checks, rollbacks.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/boot-lib.sh
. tests/rollout/boot-lib.sh

# --- Trials

passes() {
	on_trial "$new" && is "50-faultline.conf boot-complete.target" "$(generated)" && boot gate 2>"$said" && is passed "$(trial state)" &&
		is 3 "$(metric faultline_trial_state)" && is 0 "$(metric faultline_rollback_total)" &&
		is '' "$(generated)" && boot gate && boot pin "$new" >/dev/null && is promoted "$(trial state)" &&
		boots "$old" && boot health && is '' "$(generated)" && is 0 "$(metric faultline_rollback_total)"
}
# fails PATTERN COMMAND...: the gate refuses the new kernel after COMMAND.
fails() {
	local pattern=$1
	shift
	on_trial "$new" && "$@" || return 1
	boot gate 2>"$said" && { echo 'it passed'; return 1; }
	is failed "$(trial state)" && grep -qE "$pattern" "$said" && is 4 "$(metric faultline_trial_state)" &&
		boot_refused 'has not passed' pin "$new" && boots "$old" && is faultline-health.service "$(generated)" &&
		boot health 2>"$said" && is rolled-back "$(trial state)" && is 1 "$(metric faultline_rollback_total)" &&
		grep -q "trial of $new failed" "$said" && boot health && is 1 "$(metric faultline_rollback_total)" &&
		is '' "$(generated)"
}
not_bad() { on_trial "$new" && tainted $((1 + 4096 + 8192)) && boot gate 2>/dev/null; }
unit_failed() { echo 'db.service loaded failed failed Database' >>"$work/list-units"; }
own_check() {
	printf '#!/bin/sh\n%s\n' "$1" >"$root/etc/faultline/health.d/50-own"
	chmod +x "$root/etc/faultline/health.d/50-own"
}
sees() {
	# shellcheck disable=SC2016 # for the check
	on_trial "$new" && own_check 'echo "$FAULTLINE_KERNEL $FAULTLINE_FAILED_BEFORE"; exit 1' &&
		! boot gate 2>"$said" && grep -q "50-own: $new old.service" "$said"
}
# It dies without a word, before or during its checks.
dies() {
	on_trial "$new" || return 1
	[ "$1" = before ] || sed -i s/^state=.*/state=trying/ "$root/etc/faultline/trial"
	boots "$old"
	is faultline-health.service "$(generated)" && boot health 2>"$said" && is rolled-back "$(trial state)" &&
		is 1 "$(metric faultline_rollback_total)" && is "GRUB,$old,$old,-,rolled-back,1,False" "$(json)"
}
# kexec, or the boot menu of a firmware: another kernel runs, and GRUB has not seen the order.
not_seen() {
	requested && boots "$old" && is faultline-health.service "$(generated)" && boot health 2>"$said" &&
		is rolled-back "$(trial state)" && is '' "$(in_grubenv next_entry)" && grep -q 'the order is withdrawn' "$said" || return 1
	sdboot && boot next "$new" >/dev/null && boots "$old" && boot health 2>"$said" && is rolled-back "$(trial state)" &&
		is '' "$(in_efi LoaderEntryOneShot)" || return 1
	# The order of somebody else stays.
	requested && grub-editenv "$root/boot/grub/grubenv" set next_entry=other && boots "$old" && boot health 2>/dev/null &&
		is rolled-back "$(trial state)" && is other "$(in_grubenv next_entry)" || return 1
	# kexec took the host to the kernel: a second boot of it would have no gate.
	requested && boots "$new" && boot gate 2>"$said" && is passed "$(trial state)" && is '' "$(in_grubenv next_entry)" &&
		requested && boots "$new" && tainted 512 && ! boot gate 2>"$said" && is failed "$(trial state)" && is '' "$(in_grubenv next_entry)"
}
counted() {
	common && mkdir -p "$efi" && : >"$efi/LoaderBootCountPath-$guid" && is '' "$(generated)" && boots "$new" &&
		is '50-faultline.conf boot-complete.target' "$(generated)" && boot gate && jobs_are 1 hang.service running &&
		! FAULTLINE_GATE_SECONDS=50 boot gate 2>"$said" && grep -q 'hang.service: still starting' "$said" && is '' "$(trial state)" || return 1
	rm "$efi/LoaderBootCountPath-$guid"
	is '' "$(generated)"
}

# A trial is requested, and units are loaded again before the reboot.
not_yet() {
	grub "$saved" && boot next "$new" >/dev/null && boot health && is requested "$(trial state)"
}
# On the old kernel, nothing fails, whatever the file is: that would reboot it.
never_there() {
	local text
	for text in '' 'kernel=' $'kernel=x\nstate=trying' $'kernel=x\nstate=what' 'garbage'; do
		grub "$saved"
		printf '%s\n' "$text" >"$root/etc/faultline/trial"
		[[ "$(generated)" != *boot-complete.target* ]] && boot health 2>/dev/null || return 1
	done
}
during_trial() {
	on_trial "$new" && sed -i s/^state=.*/state=trying/ "$root/etc/faultline/trial" && boot_refused 'on trial at the moment' next "$old"
}
full_disk() {
	local status
	grub "$saved"
	mount -t tmpfs -o size=16k,nr_inodes=20 tmpfs "$root/etc" && mkdir "$root/etc/faultline" || return 1
	head -c 100000 /dev/zero >"$root/etc/big" 2>/dev/null
	boot_refused 'cannot write .*trial' next "$new"
	status=$?
	umount "$root/etc"
	[ "$status" -eq 0 ] && is '' "$(in_grubenv next_entry)"
}
promotes() {
	grub 0 && boot_refused GRUB_DEFAULT=saved next --promote "$new" || return 1
	grub "$saved" && boot next --promote "$new" >/dev/null && boots "$new" && grub-editenv "$root/boot/grub/grubenv" unset next_entry &&
		boot gate 2>/dev/null && is promoted "$(trial state)" && is "GRUB,$new,$new,-,promoted,0,True" "$(json)"
}
back_next() {
	grub "$saved" && boot pin "$old" >/dev/null && boot next "$new" >/dev/null && boot back --next >/dev/null &&
		is "GRUB,$old,$old,-,none,0,True" "$(json)" && is '' "$(trial state)"
}
no_watchdog() { sdboot && echo RuntimeWatchdogUSec=0 >"$work/show" && boot next "$new" >/dev/null 2>"$said" && grep -q 'no watchdog' "$said"; }
# watchdog DEVICE IDENTITY: systemd feeds this one; what faultline-boot says about it is in $said.
watchdog() {
	sdboot && mkdir -p "$root/sys/class/watchdog/watchdog1" && echo "$2" >"$root/sys/class/watchdog/watchdog1/identity" &&
		printf 'RuntimeWatchdogUSec=30s\nWatchdogDevice=%s\n' "$1" >"$work/show" && boot next "$new" >/dev/null 2>"$said"
}
stopping_watchdog() {
	watchdog /dev/watchdog1 iTCO_wdt && grep -q 'iTCO_wdt stops at a reboot: ' "$said" &&
		watchdog /dev/watchdog1 'HPE iLO2+ HW Watchdog Timer' && is '' "$(cat "$said")" &&
		watchdog /dev/watchdog iTCO_wdt && is '' "$(cat "$said")"
}

# --- The gate: time limit, progress, health checks

# jobs_are [ID UNIT STATE]...: systemd's jobs; multi-user.target waits for them.
jobs_are() {
	echo inactive >"$work/is-active"
	echo '9 multi-user.target start waiting' >"$work/list-jobs"
	while [ $# -gt 0 ]; do
		echo "$1 $2 start $3" >>"$work/list-jobs"
		shift 3
	done
}
# seconds_passed: since the boot, which was 10,000 s ago.
seconds_passed() { echo $(($(cut -d . -f 1 "$work/uptime") - 10000)); }
# between LOW HIGH
between() {
	echo "it took $(seconds_passed) s"
	[ "$(seconds_passed)" -ge "$1" ] && [ "$(seconds_passed)" -le "$2" ]
}
# gate_fails PATTERN
gate_fails() {
	boot gate 2>"$said" && { echo 'it passed'; return 1; }
	trial reason
	is failed "$(trial state)" && grep -qE "$1" <<<"$(trial reason)"
}
# working UNIT SECONDS: the unit has used so much CPU time.
working() {
	mkdir -p "$work/systemd" "$root/sys/fs/cgroup/system.slice/$1"
	echo "ControlGroup=/system.slice/$1" >"$work/systemd/$1"
	printf 'usage_usec %s000000\nuser_usec 1\n' "$2" >"$root/sys/fs/cgroup/system.slice/$1/cpu.stat"
	echo 7 >"$root/sys/fs/cgroup/system.slice/$1/cgroup.procs"
}
hangs() {
	on_trial "$new" && jobs_are 1 hang.service running 2 late.service waiting && working hang.service 3 &&
		echo "echo \$((\$(cut -d . -f 1 '$work/uptime') + 90)).00 >'$work/uptime'" >"$work/after_sleep" &&
		gate_fails '^hang.service: still starting, and has not worked for 300 s$' && between 300 300
}
# A database replays its log for twice the limit, in CPU time or by reading.
recovers() {
	on_trial "$new" && jobs_are 1 db.service running && working db.service 0 && mkdir -p "$root/proc/7" || return 1
	cat >"$work/after_sleep" <<-END
		now=\$((\$(cut -d . -f 1 "$work/uptime") - 10000))
		case $1 in
		cpu) echo "usage_usec \${now}000000" >"$root/sys/fs/cgroup/system.slice/db.service/cpu.stat" ;;
		io) printf 'rchar: 1\nread_bytes: %s\nwrite_bytes: 0\n' "\${now}000000" >"$root/proc/7/io" ;;
		esac
		[ \$now -lt 110 ] || { : >"$work/list-jobs"; echo active >"$work/is-active"; }
	END
	FAULTLINE_GATE_SECONDS=50 boot gate 2>"$said" && is passed "$(trial state)" && between 170 190
}
jobs_end() {
	on_trial "$new" && jobs_are 1 a.service running 2 'dev-b\x2d1.device' running && cat >"$work/after_sleep" <<-END || return 1
		[ \$(cut -d . -f 1 "$work/uptime") -lt 10040 ] || sed -i /a.service/d "$work/list-jobs"
		# A timer runs again and again.
		if grep -q timer "$work/list-jobs"; then sed -i /timer/d "$work/list-jobs"; else echo '5 timer.service start running' >>"$work/list-jobs"; fi
	END
	FAULTLINE_GATE_SECONDS=50 gate_fails '^dev-bx2d1.device' && between 90 150 && json
}
too_long() {
	on_trial "$new" && jobs_are 1 db.service running && working db.service 0 && cat >"$work/after_sleep" <<-END || return 1
		echo "usage_usec \$(cut -d . -f 1 "$work/uptime")000000" >"$root/sys/fs/cgroup/system.slice/db.service/cpu.stat"
	END
	FAULTLINE_GATE_MAX=150 gate_fails '^db.service: still starting after 15[0-9]* s$' && between 150 160
}
settings() {
	on_trial "$new" && mkdir -p "$root/etc/default" && jobs_are 1 hang.service running || return 1
	printf 'FAULTLINE_GATE_SECONDS="50"\nFAULTLINE_GATE_MAX=3600\n' >"$root/etc/default/faultline-host"
	gate_fails '^hang.service' && between 50 60 || return 1
	requested && mkdir -p "$root/etc/default" && echo FAULTLINE_HEALTHY_FOR=5min >"$root/etc/default/faultline-host" && boot back >/dev/null &&
		boot_refused 'FAULTLINE_HEALTHY_FOR=5min is not a number of seconds' next "$new" &&
		echo FAULTLINE_GATE_MAX=0 >"$root/etc/default/faultline-host" && boot_refused 'at least 30' next "$new"
}
given_up() {
	on_trial "$new" && echo inactive >"$work/is-active" && : >"$work/list-jobs" && gate_fails 'multi-user.target was not reached' && between 0 0
}
silent_systemd() {
	on_trial "$new" && echo active >"$work/is-active" && printf '#!/bin/sh\nexit 1\n' >"$work/systemctl" && FAULTLINE_GATE_SECONDS=50 gate_fails '^systemd: still starting' && between 50 60
}
stays_healthy() {
	on_trial "$new" && boot gate 2>/dev/null && is passed "$(trial state)" && between 60 60 || return 1
	on_trial "$new" && echo "echo 512 >$root/proc/sys/kernel/tainted" >"$work/after_sleep" && gate_fails 'kernel is tainted' || return 1
	on_trial "$new" && FAULTLINE_HEALTHY_FOR=0 boot gate 2>/dev/null && is passed "$(trial state)" && between 0 0
}
masked() {
	on_trial "$new" && unit_failed && ln -s /dev/null "$root/etc/faultline/health.d/20-units" && boot gate 2>"$said" &&
		is passed "$(trial state)" && ! grep -q 20-units "$said"
}
replaced() {
	on_trial "$new" && unit_failed && printf '#!/bin/sh\necho mine; exit 1\n' >"$root/etc/faultline/health.d/20-units" &&
		chmod +x "$root/etc/faultline/health.d/20-units" && gate_fails '^20-units: mine$'
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}a trial that passes" passes
	check "${s}a trial with a kernel warning" fails 'kernel is tainted' tainted 512
	check "${s}a trial with an oops" fails 'kernel is tainted' tainted 128
	check "${s}out-of-tree modules do not fail a trial" not_bad
	check "${s}a trial in which a unit fails" fails 'db.service has failed' unit_failed
	check "${s}a trial with a check of the administrator" fails '50-own: too slow' own_check 'echo too slow; exit 3'
	check "${s}a check that says nothing" fails 'without a message' own_check 'exit 1'
	check "${s}a check that says odd things" fails '50-own: xy' own_check "printf 'x\"\\\\\\\\y\\n'; exit 1"
	check "${s}the environment of a check" sees
	check "${s}a kernel that dies before its checks" dies before
	check "${s}a kernel that dies in its checks" dies during
	check "${s}an order that the boot loader has not seen" not_seen
	check "${s}no reboot yet" not_yet
	check "${s}nothing fails on a kernel that is not on trial" never_there
	check "${s}next during a trial" during_trial
	check "${s}a full disk" full_disk
	check "${s}next --promote" promotes
	check "${s}back --next keeps the pin" back_next
	check "${s}tries that systemd-boot counts" counted
	check "${s}no watchdog" no_watchdog
	check "${s}a watchdog that stops at a reboot" stopping_watchdog
	check "${s}a boot that hangs" hangs
	check "${s}a unit that works for long" recovers cpu
	check "${s}a unit that reads for long" recovers io
	check "${s}jobs that end are progress, those that come are not" jobs_end
	check "${s}a boot without end" too_long
	check "${s}the settings of the gate" settings
	check "${s}a boot that systemd has given up" given_up
	check "${s}systemd does not answer" silent_systemd
	check "${s}the checks pass for a minute" stays_healthy
	check "${s}a check that is masked" masked
	check "${s}a check that is replaced" replaced
done
done_testing
