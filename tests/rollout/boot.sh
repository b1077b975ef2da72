#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-boot: what it decides for systemd-boot, GRUB and GRUB with BLS entries,
# on a tree in a namespace; GRUB's environment block is written by the real
# grub-editenv, bootctl and grub-probe are stand-ins.  And trials: checks, what the
# generator starts, rollbacks.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/lib.sh
. tests/rollout/lib.sh

command -v grub-editenv >/dev/null || {
	echo "Bail out! grub-editenv is not installed: run 'make deps'"
	exit 1
}

old=6.1.0-30-amd64 new=6.12.117-faultline1
guid=4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
root=$work/root efi=$root/sys/firmware/efi/efivars
export PATH=$work/bin:$PATH FAULTLINE_KERNEL=$old FAULTLINE_SLEEP=$work/sleep

boot() {
	# shellcheck disable=SC2086 # "busybox ash" are two words
	$shell "$host/faultline-boot" "$@"
}

# boots KERNEL: it is running, after a reboot.
boots() {
	export FAULTLINE_KERNEL=$1
	mkdir -p "$root/proc/sys/kernel/random"
	echo $((++boot_number)) >"$root/proc/sys/kernel/random/boot_id"
	echo 0 >"$root/proc/sys/kernel/tainted"
}
boot_number=0

# efi_set NAME TEXT: an EFI variable as the boot loader interface has it.
efi_set() {
	if [ -n "$2" ]; then
		printf '\6\0\0\0%s\0' "$2" | sed 's/[ -~]/&\x00/g; s/\x00\x00$/\x00\x00/' >"$efi/$1-$guid"
	else
		rm -f "$efi/$1-$guid"
	fi
}
# For the stand-in for bootctl.
{
	declare -f efi_set
	printf 'efi=%q guid=%q\n' "$efi" "$guid"
} >"$work/efi.sh"

common() {
	new_host
	mkdir -p "$work/bin" "$root/usr/lib/faultline/health.d" "$root/etc/faultline/health.d"
	cp "$host"/health.d/* "$root/usr/lib/faultline/health.d/"
	rm -f "$work/list-units" "$work/list-jobs" "$work/is-active"
	rm -rf "$work/systemd"
	# Time passes while a program sleeps, and after_sleep does what happens then.
	cat >"$work/sleep" <<-END
		#!/bin/sh
		echo "\$((\$(cut -d . -f 1 "$work/uptime") + \$1)).00 0.00" >"$work/uptime"
		[ ! -e "$work/after_sleep" ] || . "$work/after_sleep"
	END
	chmod +x "$work/sleep"
	rm -f "$work/after_sleep"
	echo active >"$work/is-active"
	echo RuntimeWatchdogUSec=30s >"$work/show"
	boots "$old"
}

# systemd-boot with a stand-in for bootctl that writes its variables, and prints
# what systemd 252 prints.
sdboot() {
	common
	mkdir -p "$efi"
	efi_set LoaderInfo 'systemd-boot 252'
	efi_set LoaderEntryDefault "x-$old.conf"
	options='root=/dev/vda1 panic=30' new_file=x-$new.conf
	cat >"$work/bin/bootctl" <<-'END'
		#!/bin/bash
		. "${0%/*}/../efi.sh"
		[ "$1" != --no-pager ] || shift
		get() { tail -c +5 "$efi/$1-$guid" 2>/dev/null | tr -d '\000'; }
		case $1 in
		set-oneshot) efi_set LoaderEntryOneShot "$2" ;;
		set-default) efi_set LoaderEntryDefault "$2" ;;
		list)
			first=$(get LoaderEntryOneShot)
			: "${first:=$(get LoaderEntryDefault)}"
			for entry in $(cat "$FAULTLINE_ROOT/entries"); do
				id=${entry%%:*} file=${entry##*:} kernel=${id#x-}
				mark=
				[ "$id" != "$first" ] || mark=' (default)'
				cat <<-LIST
				         type: Boot Loader Specification Type #1 (.conf)
				        title: Debian GNU/Linux 12 (bookworm)$mark
				           id: $id
				       source: /boot/efi/loader/entries/$file
				      version: ${kernel%.conf}
				        linux: /boot/efi/x/${kernel%.conf}/linux
				      options: $(cat "$FAULTLINE_ROOT/options")

				LIST
			done
			printf '         type: Automatic\n        title: Reboot Into Firmware Interface\n           id: auto-reboot\n'
			;;
		esac
	END
	chmod +x "$work/bin/bootctl"
	printf '%s\n' "x-$new.conf:$new_file" "x-$old.conf:x-$old.conf" >"$root/entries"
	echo "$options" >"$root/options"
}

# GRUB as Debian's update-grub sets it up.  $1: the default in grub.cfg.
grub() {
	local folder=$root/boot/grub kernel
	common
	mkdir -p "$folder"
	rm -f "$work/bin/bootctl"
	grub-editenv "$folder/grubenv" create
	{
		# shellcheck disable=SC2016 # text of grub.cfg
		printf '%s\n' 'if [ -s $prefix/grubenv ]; then' '  load_env' 'fi' \
			'if [ "${next_entry}" ] ; then' '   set default="${next_entry}"' \
			'   set next_entry=' '   save_env next_entry' '   set boot_once=true' 'else' \
			"   set default=\"$1\"" 'fi'
		printf "menuentry 'Debian GNU/Linux' --class debian \$menuentry_id_option 'gnulinux-simple-1234' {\n"
		printf '\tlinux\t/boot/vmlinuz-%s root=/dev/vda1 panic=30\n\tinitrd\t/boot/initrd.img-%s\n}\n' "$old" "$old"
		printf "submenu 'Advanced options for Debian GNU/Linux' \$menuentry_id_option 'gnulinux-advanced-1234' {\n"
		for kernel in "$old" "$new"; do
			printf "\tmenuentry 'Debian GNU/Linux, with Linux %s' --class debian \$menuentry_id_option 'gnulinux-%s-advanced-1234' {\n" "$kernel" "$kernel"
			printf '\t\tlinux\t/boot/vmlinuz-%s root=/dev/vda1 ro %s\n\t}\n' "$kernel" "${options-panic=30}"
			printf "\tmenuentry 'Debian GNU/Linux, with Linux %s (recovery mode)' --class debian \$menuentry_id_option 'gnulinux-%s-recovery-1234' {\n" "$kernel" "$kernel"
			printf '\t\tlinux\t/boot/vmlinuz-%s root=/dev/vda1 ro single\n\t}\n' "$kernel"
		done
		echo '}'
	} >"$folder/grub.cfg"
	stand_in_probe ext2 ''
}

# stand_in_probe FS ABSTRACTION
stand_in_probe() {
	# shellcheck disable=SC2016 # for the stand-in
	printf '#!/bin/sh\ncase $1 in --target=fs) echo "%s" ;; *) printf "%s" ;; esac\n' "$1" "$2" >"$work/bin/grub-probe"
	chmod +x "$work/bin/grub-probe"
}

# GRUB with BLS entries, as on Fedora.
bls() {
	common
	rm -f "$work/bin/bootctl"
	mkdir -p "$root/boot/grub2" "$root/boot/loader/entries" "$root/etc/sysconfig"
	grub-editenv "$root/boot/grub2/grubenv" create
	grub-editenv "$root/boot/grub2/grubenv" set saved_entry="abc-$old" "kernelopts=root=/dev/vda1 panic=30"
	# shellcheck disable=SC2016 # text of grub.cfg
	printf '%s\n' 'load_env' 'if [ "${next_entry}" ] ; then' '   set default="${next_entry}"' \
		'else' '   set default="${saved_entry}"' 'fi' 'insmod blscfg' 'blscfg' >"$root/boot/grub2/grub.cfg"
	for kernel in "$old" "$new"; do
		# shellcheck disable=SC2016 # GRUB expands it
		printf 'title Fedora (%s)\nversion %s\nlinux /vmlinuz-%s\noptions $kernelopts quiet\n' \
			"$kernel" "$kernel" "$kernel" >"$root/boot/loader/entries/abc-$kernel.conf"
	done
	stand_in_probe xfs ''
}

# in_grubenv KEY: what GRUB will read.
in_grubenv() {
	grub-editenv "$root"/boot/grub*/grubenv list | sed -n "s/^$1=//p"
}
in_efi() {
	tail -c +5 "$efi/$1-$guid" 2>/dev/null | tr -d '\000'
}
trial() {
	sed -n "s/^$1=//p" "$root/etc/faultline/trial" 2>/dev/null
}
metric() {
	sed -n "s/^$1[{ ]\(.*} \)\?//p" "$work/textfile/faultline_boot.prom"
}

# refused PATTERN ARGUMENT...: one error; no trial, no order to the loader.
boot_refused() {
	local pattern=$1 before after
	shift
	before=$(cd "$root" && find . -type f -exec md5sum {} + | sort)
	boot "$@" >"$said" 2>&1 && { echo 'it was accepted'; return 1; }
	after=$(cd "$root" && find . -type f -exec md5sum {} + | sort)
	is 1 "$(grep -c 'error: ' "$said")" || return 1
	grep -qE "error: .*$pattern" "$said" || { cat "$said"; return 1; }
	is "$before" "$after"
}

json() {
	boot status --json | python3 -c 'import json, sys
found = json.load(sys.stdin)
print(found["loader"], found["running"], found["default"], found["next"] or "-", found["trial"]["state"],
      found["rollbacks"], found["pinned"], sep=",")'
}

# --- systemd-boot

sd_next() {
	sdboot && boot next "$new" >"$said" 2>&1 && is "x-$new.conf" "$(in_efi LoaderEntryOneShot)" &&
		is "x-$old.conf" "$(in_efi LoaderEntryDefault)" && is requested "$(trial state)" &&
		is 1 "$(metric faultline_trial_state)" && boot next "$new" >/dev/null &&
		is "systemd-boot,$old,$new,$new,requested,0,False" "$(json)"
}
sd_back() {
	sd_next && boot back >"$said" && is '' "$(in_efi LoaderEntryOneShot)" && is '' "$(trial state)" &&
		is "systemd-boot,$old,$old,-,none,0,False" "$(json)" && is 0 "$(metric faultline_trial_state)"
}
sd_pin() {
	sdboot && boot pin "$new" >/dev/null && is "x-$new.conf" "$(in_efi LoaderEntryDefault)" &&
		boot pin "$old" >/dev/null && boot pin "$new" >/dev/null && boot back >/dev/null &&
		is "x-$old.conf" "$(in_efi LoaderEntryDefault)" || return 1
	# Nothing was saved before: nothing is saved again.
	sdboot && efi_set LoaderEntryDefault '' && boot pin "$new" >/dev/null && boot back >/dev/null &&
		is '' "$(in_efi LoaderEntryDefault)"
}
sd_counted() {
	sdboot && printf '%s\n' "x-$new.conf:x-$new+$1.conf" "x-$old.conf:x-$old.conf" >"$root/entries"
}
sd_counting() { sd_counted 3 && boot next "$new" >/dev/null && is "x-$new.conf" "$(in_efi LoaderEntryOneShot)"; }
sd_bad() { sd_counted 0-3 && boot_refused 'used up its tries' next "$new"; }
sd_default() { sdboot && efi_set LoaderEntryDefault "x-$new.conf" && boot_refused "is the default already.*pin $old" next "$new"; }
sd_no_default() { sdboot && efi_set LoaderEntryDefault '' && boot_refused 'unclear which kernel' next "$new" && boot next --force "$new" >/dev/null; }
sd_other_pending() { sdboot && efi_set LoaderEntryOneShot other.conf && boot_refused 'next boot is other.conf already' next "$new"; }
sd_ignores() {
	sdboot && sed -i 's/set-oneshot) .*/set-oneshot) ;;/' "$work/bin/bootctl" && boot_refused 'does not accept' next "$new"
}
no_panic() { "$@" && echo root=/dev/vda1 >"$root/options" && boot_refused 'no panic=.*add panic=30' next "$new" &&
	boot next --force "$new" >/dev/null 2>&1; }
panic_0() { sdboot && echo panic=0 >"$root/options" && boot_refused 'no panic=' next "$new"; }
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

# --- GRUB

saved="\${saved_entry}"
grub_id=gnulinux-advanced-1234\>gnulinux-$new-advanced-1234
grub_next() {
	grub "$1" && boot next "$new" >"$said" 2>&1 && is "$grub_id" "$(in_grubenv next_entry)" &&
		is '' "$(in_grubenv saved_entry)" && is requested "$(trial state)" && is 1024 "$(wc -c <"$root/boot/grub/grubenv")" &&
		is "GRUB,$old,$old,$new,requested,0,False" "$(json)" && boot back >/dev/null && is '' "$(in_grubenv next_entry)"
}
grub_pin() {
	grub "$saved" && boot pin "$new" >/dev/null && is "$grub_id" "$(in_grubenv saved_entry)" &&
		is "GRUB,$old,$new,-,none,0,True" "$(json)" &&
		boot_refused 'is the default already' next "$new" &&
		boot back >/dev/null && is '' "$(in_grubenv saved_entry)" && is "GRUB,$old,$old,-,none,0,False" "$(json)"
}
grub_not_saved() { grub 0 && boot_refused 'GRUB_DEFAULT=saved' pin "$new"; }
grub_first() { grub 0 && sed -i "0,/vmlinuz-$old/s//vmlinuz-$new/" "$root/boot/grub/grub.cfg" && boot_refused 'is the default already' next "$new"; }
# The first entry of the menu also has an id without the kernel, which is another
# kernel after an upgrade: pin and next do not use it.
grub_by_name() {
	grub "$saved" && boot pin "$old" >/dev/null &&
		is "gnulinux-advanced-1234>gnulinux-$old-advanced-1234" "$(in_grubenv saved_entry)" &&
		sed -i "0,/vmlinuz-$old/s//vmlinuz-$new/" "$root/boot/grub/grub.cfg" &&
		is "GRUB,$old,$old,-,none,0,True" "$(json)" && boot next "$new" >/dev/null &&
		is "$grub_id" "$(in_grubenv next_entry)"
}
grub_number() { grub '1>4' && boot_refused 'unclear' next "$new"; }
grub_on() { grub 0 && stand_in_probe "$1" "$2" && boot_refused 'GRUB cannot write' next "$new" && is '' "$(trial state)"; }
grub_env_gone() { grub 0 && rm "$root/boot/grub/grubenv" && boot_refused 'grubenv is missing.*create' next "$new"; }
grub_env_cut() { grub 0 && truncate -s 500 "$root/boot/grub/grubenv" && boot_refused 'grubenv is damaged' next "$new"; }
grub_old_cfg() { grub 0 && sed -i s/next_entry/other/ "$root/boot/grub/grub.cfg" && boot_refused 'does not know next_entry' next "$new"; }
grub_no_panic() { local options=quiet; grub 0 && boot_refused 'no panic=' next "$new"; }
grub_unknown() { grub 0 && boot_refused "no entry for 6.9.*$old $new" next 6.9; }
grub_running() { grub 0 && boot_refused 'already running' next "$old"; }

# --- BLS

bls_next() {
	bls && boot next "$new" >/dev/null && is "abc-$new" "$(in_grubenv next_entry)" &&
		is "abc-$old" "$(in_grubenv saved_entry)" && is "GRUB with BLS entries,$old,$old,$new,requested,0,False" "$(json)"
}
bls_pin() {
	bls && echo UPDATEDEFAULT=yes >"$root/etc/sysconfig/kernel" && boot pin "$new" >/dev/null 2>"$said" &&
		grep -q UPDATEDEFAULT "$said" && is "abc-$new" "$(in_grubenv saved_entry)" && boot back >/dev/null &&
		is "abc-$old" "$(in_grubenv saved_entry)"
}
bls_no_panic() { bls && grub-editenv "$root/boot/grub2/grubenv" set kernelopts=root=x && boot_refused 'no panic=' next "$new"; }
# The newest entry boots if none is saved.
bls_newest() { bls && grub-editenv "$root/boot/grub2/grubenv" unset saved_entry && boot_refused 'is the default already' next "$new"; }

no_loader() { common && rm -f "$work/bin/bootctl" && boot_refused 'neither systemd-boot nor GRUB' next "$new"; }

# --- Trials

# generated: what the generator lets systemd start.
generated() {
	rm -rf "$work/generated"
	mkdir "$work/generated"
	$shell "$host/faultline-trial-generator" "$work/generated" && (cd "$work/generated" && find . -type l | sed 's|.*/||' | sort | tr '\n' ' ' | sed 's/ $//')
}

# on_trial KERNEL: next, and a boot by GRUB after which KERNEL runs.
on_trial() {
	requested && grub-editenv "$root/boot/grub/grubenv" unset next_entry && boots "$1"
}
requested() {
	grub "$saved" && echo 'old.service loaded failed failed Old' >"$work/list-units" &&
		is '' "$(generated)" && boot next "$new" >/dev/null
}
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
tainted() { echo "$1" >"$root/proc/sys/kernel/tainted"; }
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

# --- Updates, and kernels that are removed

newer=6.12.130-faultline1
# install KERNEL: its package, for GRUB.
install() {
	sed -i "/^submenu/a \\\tmenuentry 'with Linux $1' \$menuentry_id_option 'gnulinux-$1-advanced-1234' {\n\t\tlinux /boot/vmlinuz-$1 root=/dev/vda1 panic=30\n\t}" "$root/boot/grub/grub.cfg" &&
		mkdir -p "$root/lib/modules/$1" && touch "$root/lib/modules/$1/modules.order" && boot installed
}
uninstall() {
	boot removed "$1" 2>"$said" || return 1
	sed -i "/^[[:space:]]*menuentry .*with Linux $1'/,/}/d" "$root/boot/grub/grub.cfg"
	rm -rf "${root:?}/lib/modules/$1"
}
pinned_metric() { grep -oE '^faultline_(pinned|newest_installed_seconds)[{]kernel="[^"]*"' "$work/textfile/faultline_boot.prom" | sed 's/faultline_//; s/_installed_seconds//; s/{kernel=/ /' | tr -d '"' | xargs; }
metrics_of_kernels() {
	grub "$saved" && install "$new" && is "newest $new" "$(pinned_metric)" && boot pin "$new" >/dev/null &&
		is "pinned $new newest $new" "$(pinned_metric)" && install "$newer" && is "pinned $new newest $newer" "$(pinned_metric)" &&
		[ $(($(date +%s) - $(sed -n 's/^faultline_newest_installed_seconds.* //p' "$work/textfile/faultline_boot.prom"))) -lt 100 ] &&
		boot back >/dev/null && is "newest $newer" "$(pinned_metric)"
}
next_newest() {
	grub "$saved" && boots "$new" && boot pin "$new" >/dev/null && boot next --newest >"$said"
	is 3 $? && grep -q 'is the newest' "$said" && is '' "$(in_grubenv next_entry)" && install "$newer" && boot next --newest >/dev/null &&
		is "$newer" "$(trial kernel)" && boots "$newer" && grub-editenv "$root/boot/grub/grubenv" unset next_entry && tainted 512 &&
		! boot gate 2>/dev/null && boots "$new" && boot health 2>/dev/null &&
		boot_refused 'has failed its trial .*name it to try it again' next --newest && boot next "$newer" >/dev/null
}
flavours() {
	grub "$saved" && boots "$old" && install "$new.generic" && install "$newer.cloud" && install "$new.2.generic" &&
		boot_refused 'several flavours .*name the kernel' next --newest && boots "$new.generic" && boot next --newest >/dev/null &&
		is "$new.2.generic" "$(trial kernel)"
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
# The default of before was removed while another kernel was pinned.
back_gone() {
	grub "$saved" && install "$newer" && boot pin "$newer" >/dev/null && boot back >/dev/null &&
		grub-editenv "$root/boot/grub/grubenv" set "saved_entry=gnulinux-advanced-1234>gnulinux-$newer-advanced-1234" &&
		boot pin "$new" >/dev/null && uninstall "$newer" || return 1
	boot back >"$said" 2>&1 && { echo 'back went well'; return 1; }
	grep -q "from before the pin, .*$newer.*, is not installed any more: the default stays $new;" "$said" && is "$grub_id" "$(in_grubenv saved_entry)"
}
removed_pinned() {
	grub "$saved" && install "$newer" && boots "$newer" && boot pin "$new" >/dev/null && boot next "$old" >/dev/null && uninstall "$new" &&
		grep -q "the default is $newer, which runs" "$said" && in_grubenv saved_entry | grep -q "gnulinux-$newer-advanced" &&
		is "$old" "$(trial kernel)"
}
removed_running() {
	grub "$saved" && grub-editenv "$root/boot/grub/grubenv" set "saved_entry=gnulinux-$old-advanced-1234" && boots "$new" && boot pin "$new" >/dev/null &&
		uninstall "$new" && grep -q "the default is that of before, gnulinux-$old" "$said" && is "gnulinux-$old-advanced-1234" "$(in_grubenv saved_entry)" || return 1
	# Without a default from before, the loader chooses, and that is said.
	grub "$saved" && boots "$new" && boot pin "$new" >/dev/null && uninstall "$new" && grep -q 'warning: .*may never have been tried; run: faultline-boot pin' "$said" &&
		boot status >"$said" 2>&1 && grep -q "$new.* is pinned, but not installed" "$said"
}
# prerm WORD...: the script of the DEB of $new.
prerm() {
	sed "s/@KVER@/$new/; s/@IMAGE@/vmlinuz/; s/^@RUN_HOOKS@/run_hooks() { :; }/" \
		packaging/deb/debian/linux-image-KVER.prerm.in >"$work/prerm"
	echo '#!/bin/sh' >"$work/bin/linux-check-removal"
	printf '#!/bin/sh\nexec %s "$@"\n' "$host/faultline-boot" >"$work/bin/faultline-boot"
	chmod +x "$work/bin"/*
	sh "$work/prerm" "$@" 2>"$said"
}
removed_deb() {
	grub "$saved" && boot pin "$new" >/dev/null && prerm upgrade && is "$grub_id" "$(in_grubenv saved_entry)" && is '' "$(cat "$said")" &&
		prerm remove && grep -q "the default is $old, which runs" "$said" && in_grubenv saved_entry | grep -q "gnulinux-$old-advanced" || return 1
	rm "$work/bin/faultline-boot" "$work/bin/linux-check-removal"
}
removed_next() {
	grub "$saved" && boot next "$new" >/dev/null && uninstall "$new" && is '' "$(in_grubenv next_entry)" && is '' "$(trial state)" || return 1
	grub "$saved" && uninstall "$new" && is '' "$(cat "$said")" && common && boot removed "$new"
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

# Removal of the package leaves no kernel on trial, and no metric; it cannot fail.
removed_armed() {
	sd_next && package "$1" "$2" && is '' "$(in_efi LoaderEntryOneShot)" && is '' "$(trial state)" &&
		is '' "$(find "$work/textfile" -type f)" && grep -q 'nothing is on trial' "$said"
}
removed_while_pinned() {
	sd_next && boot back >/dev/null && boot pin "$new" >/dev/null && package "$1" "$2" &&
		is "x-$new.conf" "$(in_efi LoaderEntryDefault)" && grep -q 'pin has chosen stays the default' "$said"
}
# The order is withdrawn, and the kernel that was pinned before it stays the default.
removed_armed_beside_pin() {
	sdboot && efi_set LoaderEntryDefault "x-$new.conf" && boot pin "$old" >/dev/null &&
		boot next "$new" >/dev/null 2>&1 && package "$1" "$2" &&
		is '' "$(in_efi LoaderEntryOneShot)" && is '' "$(trial state)" &&
		is "x-$old.conf" "$(in_efi LoaderEntryDefault)" && grep -q 'pin has chosen stays the default' "$said"
}
removed_without_loader() {
	sd_next && rm -r "$efi" && package "$1" "$2" && grep -q "warning: $new is still on trial" "$said"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}systemd-boot: next" sd_next
	check "${s}systemd-boot: back" sd_back
	check "${s}systemd-boot: pin and back" sd_pin
	check "${s}systemd-boot: an entry with tries left" sd_counting
	check "${s}systemd-boot: an entry without tries left" sd_bad
	check "${s}systemd-boot: the kernel is the default" sd_default
	check "${s}systemd-boot: no default" sd_no_default
	check "${s}systemd-boot: something else is next" sd_other_pending
	check "${s}systemd-boot: the firmware drops the variable" sd_ignores
	check "${s}systemd-boot: no panic=" no_panic sdboot
	check "${s}systemd-boot: panic=0" panic_0
	check "${s}no watchdog" no_watchdog
	check "${s}a watchdog that stops at a reboot" stopping_watchdog
	check "${s}GRUB: next, first entry is the default" grub_next 0
	check "${s}GRUB: next, saved default" grub_next "$saved"
	check "${s}GRUB: next, default by id" grub_next gnulinux-simple-1234
	check "${s}GRUB: pin and back" grub_pin
	check "${s}GRUB: pin without GRUB_DEFAULT=saved" grub_not_saved
	check "${s}GRUB: the kernel is first in the menu" grub_first
	check "${s}GRUB: the id has the kernel in it" grub_by_name
	check "${s}GRUB: a default by number" grub_number
	check "${s}GRUB: on btrfs" grub_on btrfs ''
	check "${s}GRUB: on LVM" grub_on ext2 'lvm\n'
	check "${s}GRUB: on RAID" grub_on ext2 'diskfilter\nmdraid1x\n'
	check "${s}GRUB: no grubenv" grub_env_gone
	check "${s}GRUB: grubenv cut off" grub_env_cut
	check "${s}GRUB: grub.cfg without next_entry" grub_old_cfg
	check "${s}GRUB: no panic=" grub_no_panic
	check "${s}GRUB: a kernel that is not there" grub_unknown
	check "${s}GRUB: the running kernel" grub_running
	check "${s}BLS: next" bls_next
	check "${s}BLS: pin and back" bls_pin
	check "${s}BLS: no panic= in kernelopts" bls_no_panic
	check "${s}BLS: the newest is the default" bls_newest
	check "${s}another boot loader" no_loader
	check "${s}a trial that passes" passes
	check "${s}a trial with a kernel warning" fails 'kernel is tainted' tainted 512
	check "${s}a trial with an oops" fails 'kernel is tainted' tainted 128
	check "${s}foreign modules do not fail a trial" not_bad
	check "${s}a trial in which a unit fails" fails 'db.service has failed' unit_failed
	check "${s}a trial with a check of the administrator" fails '50-own: too slow' own_check 'echo too slow; exit 3'
	check "${s}a check that says nothing" fails 'without a message' own_check 'exit 1'
	check "${s}a check that says odd things" fails '50-own: xy' own_check "printf 'x\"\\\\\\\\y\\n'; exit 1"
	check "${s}the environment of a check" sees
	check "${s}a kernel that dies before its checks" dies before
	check "${s}a kernel that dies in its checks" dies during
	check "${s}an order that the boot loader has not seen" not_seen
	check "${s}tries that systemd-boot counts" counted
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
	check "${s}no reboot yet" not_yet
	check "${s}metrics of the pinned and the newest kernel" metrics_of_kernels
	check "${s}next --newest" next_newest
	check "${s}next --newest: flavours" flavours
	check "${s}next --promote" promotes
	check "${s}back --next keeps the pin" back_next
	check "${s}back to a kernel that is gone" back_gone
	check "${s}the pinned kernel is removed" removed_pinned
	check "${s}the pinned and running kernel is removed" removed_running
	check "${s}the DEB of the pinned kernel is removed" removed_deb
	check "${s}the next kernel is removed" removed_next
	check "${s}nothing fails on a kernel that is not on trial" never_there
	check "${s}next during a trial" during_trial
	check "${s}a full disk" full_disk
	for removal in 'deb remove' 'rpm 0'; do
		# shellcheck disable=SC2086 # two words
		{
			check "${s}$removal: a kernel on trial" removed_armed $removal
			check "${s}$removal: a pinned kernel" removed_while_pinned $removal
			check "${s}$removal: a kernel on trial, and another one pinned" removed_armed_beside_pin $removal
			check "${s}$removal: the boot loader is gone" removed_without_loader $removal
		}
	done
	for arguments in '' fly next 'next a b' 'next --newest a' removed 'next --x' pin 'pin --x' 'back x' 'status x'; do
		# shellcheck disable=SC2086
		check "${s}usage: faultline-boot $arguments" refused 2 . boot $arguments
	done
done
done_testing
