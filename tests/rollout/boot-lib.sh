# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For the tests of faultline-boot, on a tree in a namespace: GRUB's environment block is written
# by the real grub-editenv; bootctl and grub-probe are stand-ins.  Source it after tap.sh.

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

# shellcheck disable=SC2034 # of the tests
saved="\${saved_entry}" grub_id=gnulinux-advanced-1234\>gnulinux-$new-advanced-1234

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

# boot_refused PATTERN ARGUMENT...: one error; no trial, no order to the loader.
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

# The order to systemd-boot, and all that shows it.
sd_next() {
	sdboot && boot next "$new" >"$said" 2>&1 && is "x-$new.conf" "$(in_efi LoaderEntryOneShot)" &&
		is "x-$old.conf" "$(in_efi LoaderEntryDefault)" && is requested "$(trial state)" &&
		is 1 "$(metric faultline_trial_state)" && boot next "$new" >/dev/null &&
		is "systemd-boot,$old,$new,$new,requested,0,False" "$(json)"
}

# generated: what the generator lets systemd start.
generated() {
	rm -rf "$work/generated"
	mkdir "$work/generated"
	generator "$work/generated" && (cd "$work/generated" && find . -type l | sed 's|.*/||' | sort | tr '\n' ' ' | sed 's/ $//')
}

# on_trial KERNEL: next, and a boot by GRUB after which KERNEL runs.
on_trial() {
	requested && grub-editenv "$root/boot/grub/grubenv" unset next_entry && boots "$1"
}

requested() {
	grub "$saved" && echo 'old.service loaded failed failed Old' >"$work/list-units" &&
		is '' "$(generated)" && boot next "$new" >/dev/null
}

tainted() { echo "$1" >"$root/proc/sys/kernel/tainted"; }
