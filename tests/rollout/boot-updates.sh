#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-boot: kernels that come and go, and removal of its package.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/boot-lib.sh
. tests/rollout/boot-lib.sh

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
	local status
	grub "$saved" && boot pin "$new" >/dev/null && prerm upgrade && is "$grub_id" "$(in_grubenv saved_entry)" && is '' "$(cat "$said")" &&
		prerm remove && grep -q "the default is $old, which runs" "$said" && in_grubenv saved_entry | grep -q "gnulinux-$old-advanced"
	status=$?
	rm -f "$work/bin/faultline-boot" "$work/bin/linux-check-removal"
	return "$status"
}
removed_next() {
	grub "$saved" && boot next "$new" >/dev/null && uninstall "$new" && is '' "$(in_grubenv next_entry)" && is '' "$(trial state)" || return 1
	grub "$saved" && uninstall "$new" && is '' "$(cat "$said")" && common && boot removed "$new"
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
	check "${s}metrics of the pinned and the newest kernel" metrics_of_kernels
	check "${s}next --newest" next_newest
	check "${s}next --newest: flavours" flavours
	check "${s}back to a kernel that is gone" back_gone
	check "${s}the pinned kernel is removed" removed_pinned
	check "${s}the pinned and running kernel is removed" removed_running
	check "${s}the DEB of the pinned kernel is removed" removed_deb
	check "${s}the next kernel is removed" removed_next
	for removal in 'deb remove' 'rpm 0'; do
		# shellcheck disable=SC2086 # two words
		{
			check "${s}$removal: a kernel on trial" removed_armed $removal
			check "${s}$removal: a pinned kernel" removed_while_pinned $removal
			check "${s}$removal: a kernel on trial, and another one pinned" removed_armed_beside_pin $removal
			check "${s}$removal: the boot loader is gone" removed_without_loader $removal
		}
	done
done
done_testing
