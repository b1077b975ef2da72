#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-boot: what it decides for systemd-boot, GRUB and GRUB with BLS entries.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/boot-lib.sh
. tests/rollout/boot-lib.sh

# --- systemd-boot

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

# --- GRUB

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
	for arguments in '' fly next 'next a b' 'next --newest a' removed 'next --x' pin 'pin --x' 'back x' 'status x'; do
		# shellcheck disable=SC2086
		check "${s}usage: faultline-boot $arguments" refused 2 . boot $arguments
	done
done
done_testing
