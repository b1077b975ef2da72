# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# What goes wrong on a host, one function per boot.

plugins=/etc/kernel/install.d
state=/var/lib/faultline-test

# The stock kernel runs: refuse what is to be refused, cut the power in an install.
step_cut_install() {
	check 'the repository is added' repository_add
	refuse_repositories
	refuse_foreign
	# Our kernels are on trial: one boot, then the loader goes back by itself.
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

# The stock kernel runs: finish what was cut off.
step_repair_install() {
	check 'the stock kernel runs' stock_runs
	check 'the package manager repairs the install' repair_first
	check 'the packages are sound' sound "$KVER1" "$VERSION1"
	check 'the boot entry names files that are there' bootable "$KVER1"
	check 'it is on trial' test -e "$entries/$token-$KVER1+1.conf"
	check 'the default is the newest kernel of ours' bootctl set-default "$token-*-faultline*"
}

# The first build runs: no room for the second; then a cut while that is made bootable.
step_cut_upgrade() {
	local place
	check "$KVER1 runs" running "$KVER1"
	check 'its trial has ended, it is good' test -e "$entries/$token-$KVER1.conf"
	for place in "${small_places[@]}"; do
		check "$place is full" fill "$place"
		says_full "the upgrade says that $place is full"
		check 'the first build is bootable still' bootable "$KVER1"
		check "$place has room again" make_room "$place"
	done
	plug_in 95 'echo mark entry >/dev/ttyS1; sleep 600'
	sync
	repair_second 2>&1 | sed 's/^/# /'
}

# The first build runs: cut the power at POINT of the upgrade.
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

# Whatever good kernel runs: repair the upgrade.
step_mend() {
	check 'a kernel of ours runs' grep -qxF -e "$KVER1" -e "$KVER2" <(uname -r)
	say "it is $(uname -r)"
	rm -f $plugins/*-test.install /etc/kernel/preinst.d/test
	check 'the package manager repairs the upgrade' repair_second
	check 'the packages are sound' sound "$KVER2" "$VERSION2"
	check 'the boot entry names files that are there' bootable "$KVER2"
	check 'the first build has its entry still' bootable "$KVER1"
}

# plug_in NUMBER COMMANDS: kernel-install runs them when it has come that far. 95 is as
# late as can be: the entry is written, and perhaps nothing of it is on the disk.
plug_in() {
	mkdir -p $plugins
	cat >"$plugins/$1-test.install" <<-PLUGIN
		#!/bin/sh
		[ "\$1" = add ] || exit 0
		$2
	PLUGIN
	chmod +x "$plugins/$1-test.install"
}

# Takes all room at PLACE.
fill() {
	# What belongs to the root file system gets a small one of its own.
	mountpoint -q "$1" || mount -t tmpfs -o size=4M tmpfs "$1" || return 1
	fallocate -l "$(df --output=avail -B1 "$1" | tail -n1)" "$1/filler" || return 1
	df "$1"
}

make_room() {
	rm "$1/filler"
	[ "$(findmnt -no FSTYPE "$1")" != tmpfs ] || umount "$1"
}

# A good kernel runs, the upgrade is in pieces: repair it, then put the second build on trial.
# It fails twice, in two ways, and this is run again once the loader has gone back.
step_trial() {
	if [ ! -e $state ]; then
		check 'a kernel of ours runs' grep -qxF -e "$KVER1" -e "$KVER2" <(uname -r)
		say "it is $(uname -r)"
		rm -f $plugins/95-test.install
		echo 2 >/etc/kernel/tries
		check 'the package manager repairs the upgrade' repair_second
		check 'the packages are sound' sound "$KVER2" "$VERSION2"
		check 'the boot entry names files that are there' bootable "$KVER2"
		check 'the first build has its entry still' bootable "$KVER1"
		check 'kernel-install puts the second build on trial, twice' retry
		mkdir $state
		say "entries: $(cd "$entries" && echo *)"
		check 'the second build is made to fail' spoil
		reboot_host
	fi
	say "entries: $(cd "$entries" && echo *)"
	check 'after two bad boots the first build runs, by itself' running "$KVER1"
	check 'the first boot ended in a panic' test -e $state/panic
	check 'the second never came to multi-user.target' test -e $state/hang
	check 'the loader has it as bad' test -e "$entries/$token-$KVER2+0-2.conf"
	check 'the first build is good still' test -e "$entries/$token-$KVER1.conf"
}

retry() {
	kernel-install add "$KVER2" "$(kernel_image "$KVER2")" &&
		[ -e "$entries/$token-$KVER2+2.conf" ] && bootable "$KVER2"
}

spoil() {
	mkdir -p /etc/systemd/system/boot-complete.target.d &&
		printf '[Unit]\nJobTimeoutSec=45s\n' >/etc/systemd/system/boot-complete.target.d/sooner.conf &&
		cat >/etc/systemd/system/spoil.service <<-UNIT &&
			[Unit]
			ConditionKernelVersion==$KVER2
			Before=multi-user.target
			[Service]
			Type=oneshot
			TimeoutStartSec=infinity
			ExecStart=/bin/sh $state/spoil
			[Install]
			WantedBy=multi-user.target
		UNIT
		cat >$state/spoil <<-SPOIL &&
			if [ ! -e $state/panic ]; then
				>$state/panic
				sync
				echo c >/proc/sysrq-trigger
			fi
			>$state/hang
			sync
			sleep infinity
		SPOIL
		systemctl enable spoil.service
}

# The machine starts again, and these steps with it.
reboot_host() {
	say 'restarting'
	systemctl reboot --force
	sleep infinity
}
