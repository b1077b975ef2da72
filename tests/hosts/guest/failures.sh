# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# Failures of a host, one function per boot.

plugins=/etc/kernel/install.d

# The stock kernel runs: refuse bad repositories and packages, then cut the power during an
# installation.
step_cut_install() {
	check 'the repository is added' repository_add
	refuse_repositories
	refuse_foreign
	# Our kernels are on trial: after one bad boot the loader falls back by itself.
	echo 1 >/etc/kernel/tries
	sync
	install_first >"$log" 2>&1 &
	until [ -e "/usr/lib/modules/$KVER1/kernel" ] || [ -e "/boot/vmlinuz-$KVER1.dpkg-new" ]; do
		kill -0 $! 2>/dev/null || break
		sleep 0.05
	done
	mark unpacking
	wait
	tail -n 30 "$log" | sed 's/^/# /'
}

# The stock kernel runs: finish the interrupted installation.
step_repair_install() {
	check 'the stock kernel runs' stock_runs
	check 'the incomplete kernel has no boot entry' test -z "$(entries_of "$KVER1")"
	check 'the package manager repairs the installation' repair_first
	check 'the packages are intact' sound "$KVER1" "$VERSION1"
	check 'the files in the boot entry exist' bootable "$KVER1"
	check 'the first build is on trial' test -e "$entries/$token-$KVER1+1.conf"
	check 'our newest kernel becomes the default' bootctl set-default "$token-*-faultline*"
}

# The first build runs: the disk is too full for the second; then the power is cut while that is
# made bootable.
step_cut_upgrade() {
	local place
	check "$KVER1 runs" running "$KVER1"
	check 'the first build has passed its trial' test -e "$entries/$token-$KVER1.conf"
	for place in "${small_places[@]}"; do
		check "$place is full" fill "$place"
		says_full "the upgrade says that $place is full" "$place"
		check 'the first build is still bootable' bootable "$KVER1"
		check "$place has free space again" make_room "$place"
	done
	plug_in 95 'echo mark entry >/dev/ttyS1; sleep 600'
	sync
	repair_second 2>&1 | sed 's/^/# /'
}

# The first build runs: cut the power at POINT during the upgrade.
step_cut_at() {
	check "$KVER1 runs" running "$KVER1"
	case $POINT in
	[0-9]*) plug_in "$POINT" "echo mark $POINT >/dev/ttyS1; sleep 600" ;;
	preinst)
		mkdir -p /etc/kernel/preinst.d
		printf '#!/bin/sh\necho mark preinst >/dev/ttyS1; sleep 600\n' >/etc/kernel/preinst.d/test
		chmod +x /etc/kernel/preinst.d/test
		;;
	esac
	sync
	upgrade >"$log" 2>&1 &
	if [ "$POINT" = unpacking ]; then
		until [ -e "/usr/lib/modules/$KVER2/kernel" ] || ! kill -0 $! 2>/dev/null; do
			sleep 0.05
		done
		mark unpacking
	fi
	wait
	[ "$POINT" != 'done' ] || mark 'done'
	tail -n 30 "$log" | sed 's/^/# /'
}

# Either kernel runs: repair the upgrade.
step_mend() {
	check 'one of our kernels runs' grep -qxF -e "$KVER1" -e "$KVER2" <(uname -r)
	say "it is $(uname -r)"
	rm -f $plugins/*-test.install /etc/kernel/preinst.d/test
	check 'the package manager repairs the upgrade' repair_second
	check 'the packages are intact' sound "$KVER2" "$VERSION2"
	check 'the files in the boot entry exist' bootable "$KVER2"
	check 'the first build still has its entry' bootable "$KVER1"
}

# plug_in NUMBER COMMANDS: kernel-install runs them at that stage. 95 is the latest: the entry
# is written, but perhaps not yet on disk.
plug_in() {
	mkdir -p $plugins
	cat >"$plugins/$1-test.install" <<-PLUGIN
		#!/bin/sh
		[ "\$1" = add ] || exit 0
		$2
	PLUGIN
	chmod +x "$plugins/$1-test.install"
}

# fill PLACE: uses up its free space.
fill() {
	# A folder of the root file system gets a small file system mounted on it.
	mountpoint -q "$1" || mount -t tmpfs -o size=4M tmpfs "$1" || return 1
	fallocate -l "$(df --output=avail -B1 "$1" | tail -n1)" "$1/filler" || return 1
	df "$1"
}

make_room() {
	rm "$1/filler"
	[ "$(findmnt -no FSTYPE "$1")" != tmpfs ] || umount "$1"
}

# One of our kernels runs and the upgrade is incomplete: repair it, then put the second build on
# trial. It fails twice, in two ways; this step runs again after the loader has fallen back.
step_trial() {
	if [ ! -e "$state" ]; then
		check 'one of our kernels runs' grep -qxF -e "$KVER1" -e "$KVER2" <(uname -r)
		say "it is $(uname -r)"
		rm -f $plugins/95-test.install
		echo 2 >/etc/kernel/tries
		check 'the package manager repairs the upgrade' repair_second
		check 'the packages are intact' sound "$KVER2" "$VERSION2"
		check 'the files in the boot entry exist' bootable "$KVER2"
		check 'the first build still has its entry' bootable "$KVER1"
		check 'kernel-install puts the second build on trial for two boots' retry 2
		mkdir "$state"
		say "entries: $(cd "$entries" && echo *)"
		check 'the second build is set up to fail' spoil
		reboot_host
	fi
	say "entries: $(cd "$entries" && echo *)"
	check 'after two bad boots the loader falls back to the first build' running "$KVER1"
	check 'the first boot ended in a panic' test -e "$state/panic"
	check 'the second boot never reached multi-user.target' test -e "$state/hang"
	check 'the loader has marked the second build as bad' test -e "$entries/$token-$KVER2+0-2.conf"
	check 'the first build is still marked as good' test -e "$entries/$token-$KVER1.conf"
}

# retry TRIES: as in /etc/kernel/tries.
retry() {
	kernel-install add "$KVER2" "$(kernel_image "$KVER2")" &&
		[ -e "$entries/$token-$KVER2+$1.conf" ] && bootable "$KVER2"
}

spoil() {
	spoil_boot "$KVER2" && cat >"$state/spoil" <<-SPOIL
		if [ ! -e $state/panic ]; then
			>$state/panic
			sync
			echo c >/proc/sysrq-trigger
		fi
		>$state/hang
		sync
		sleep infinity
	SPOIL
}

# The first build runs: the second hangs before systemd starts, and the watchdog of the BMC resets
# the machine. This step runs again after that.
step_early_hang() {
	check "$KVER1 runs" running "$KVER1"
	if ! modinfo ipmi_watchdog >/dev/null 2>&1; then
		say "this flavour has no driver for a BMC: left out"
		return
	fi
	if [ ! -e "$state/hung" ]; then
		check 'the BMC has a watchdog' bmc_watchdog
		check 'systemd is told to feed the watchdog' feed_watchdog
		check 'systemd feeds the watchdog' systemd_feeds
		echo 1 >/etc/kernel/tries
		check 'the second build is on trial for one boot' one_try
		check 'the second build is set up to wait for a disk that is not there' lose_root
		touch "$state/hung"
		sync
		reboot_host
	fi
	check 'the loader has marked the second build as bad' test -e "$entries/$token-$KVER2+0-1.conf"
	check 'systemd feeds the watchdog again' systemd_feeds
}

bmc_watchdog() {
	modprobe ipmi_si && modprobe ipmi_watchdog && udevadm settle && [ -c /dev/watchdog ]
}

# As packaging/README.md says; this image does without modules-load.d.
feed_watchdog() {
	systemctl unmask systemd-modules-load.service &&
		mkdir -p /etc/systemd/system.conf.d && echo ipmi_watchdog >/etc/modules-load.d/test.conf &&
		printf '[Manager]\nRuntimeWatchdogSec=1min\nRebootWatchdogSec=2min\n' \
			>/etc/systemd/system.conf.d/test.conf &&
		systemctl daemon-reload
}

# systemd tries to open a watchdog as often as it feeds it.
systemd_feeds() {
	within_a_minute watchdog_is_open
}

watchdog_is_open() {
	find /proc/1/fd -lname /dev/watchdog | grep .
}

one_try() {
	entries_of "$KVER2" | xargs rm && retry 1
}

# Without an initial RAM file system, the kernel itself waits: "rootwait".
lose_root() {
	sed -i '/^options/s/root=PARTLABEL=root/root=PARTLABEL=none/' "$entries/$token-$KVER2+1.conf" &&
		grep -w root=PARTLABEL=none "$entries/$token-$KVER2+1.conf"
}
