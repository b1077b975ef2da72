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
export PATH=$work/bin:$PATH FAULTLINE_KERNEL=$old

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
	rm -f "$work/list-units"
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
	$shell "$host/faultline-trial-generator" "$work/generated" && (cd "$work/generated" && find . -type l | sed 's|.*/||')
}

# trial_of KERNEL CHECK...: next, and a boot of KERNEL.
on_trial() {
	grub "$saved" && echo 'old.service loaded failed failed Old' >"$work/list-units" &&
		is '' "$(generated)" && boot next "$new" >/dev/null && boots "$1"
}
passes() {
	on_trial "$new" && is boot-complete.target "$(generated)" && boot health 2>"$said" && is passed "$(trial state)" &&
		is 3 "$(metric faultline_trial_state)" && is 0 "$(metric faultline_rollback_total)" &&
		is '' "$(generated)" && boot health && boot pin "$new" >/dev/null && is promoted "$(trial state)" &&
		boots "$old" && boot health && is '' "$(generated)" && is 0 "$(metric faultline_rollback_total)"
}
# fails PATTERN COMMAND...: the gate refuses the new kernel after COMMAND.
fails() {
	local pattern=$1
	shift
	on_trial "$new" && "$@" || return 1
	boot health 2>"$said" && { echo 'it passed'; return 1; }
	is failed "$(trial state)" && grep -qE "$pattern" "$said" && is 4 "$(metric faultline_trial_state)" &&
		boot_refused 'has not passed' pin "$new" && boots "$old" && is faultline-health.service "$(generated)" &&
		boot health 2>"$said" && is rolled-back "$(trial state)" && is 1 "$(metric faultline_rollback_total)" &&
		grep -q "trial of $new failed" "$said" && boot health && is 1 "$(metric faultline_rollback_total)" &&
		is '' "$(generated)"
}
tainted() { echo "$1" >"$root/proc/sys/kernel/tainted"; }
not_bad() { on_trial "$new" && tainted $((1 + 4096 + 8192)) && boot health 2>/dev/null; }
unit_failed() { echo 'db.service loaded failed failed Database' >>"$work/list-units"; }
own_check() {
	printf '#!/bin/sh\n%s\n' "$1" >"$root/etc/faultline/health.d/50-own"
	chmod +x "$root/etc/faultline/health.d/50-own"
}
sees() {
	# shellcheck disable=SC2016 # for the check
	on_trial "$new" && own_check 'echo "$FAULTLINE_KERNEL $FAULTLINE_FAILED_BEFORE"; exit 1' &&
		! boot health 2>"$said" && grep -q "50-own: $new old.service" "$said"
}
# It dies without a word, before or during its checks.
dies() {
	on_trial "$new" || return 1
	[ "$1" = before ] || sed -i s/^state=.*/state=trying/ "$root/etc/faultline/trial"
	boots "$old"
	is faultline-health.service "$(generated)" && boot health 2>"$said" && is rolled-back "$(trial state)" &&
		is 1 "$(metric faultline_rollback_total)" && is "GRUB,$old,$old,$new,rolled-back,1,False" "$(json)"
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
		[ "$(generated)" != boot-complete.target ] && boot health 2>/dev/null || return 1
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

for shell in dash 'busybox ash'; do
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
	check "${s}no reboot yet" not_yet
	check "${s}nothing fails on a kernel that is not on trial" never_there
	check "${s}next during a trial" during_trial
	check "${s}a full disk" full_disk
	for arguments in '' fly next 'next a b' 'next --x' pin 'pin --x' 'back x' 'status x'; do
		# shellcheck disable=SC2086
		check "${s}usage: faultline-boot $arguments" refused 2 . boot $arguments
	done
done
done_testing
