# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# Trials of our kernel by faultline-boot, one function per boot. All but the first and the two
# that change the boot loader run with systemd-boot and then with GRUB. On Debian 12 the host
# changes over to GRUB first.

stock=$(cd /usr/lib/modules && printf '%s\n' * | grep -v faultline)
# Bad boots, in this order: a panic, a unit that never ends, and a health check that fails.
kinds=(panic hang unhealthy)

# GRUB writes to all ports, and does not end its last line.
echo

# The stock kernel runs: install the first build, with systemd-boot unless LOADER is another one.
step_install() {
	check 'the stock kernel runs' stock_runs
	mkdir -p /boot/grub
	check 'the repository is added' repository_add
	check 'our kernel and faultline-host are installed' install_with_host
	check 'the checks have to pass once' sh -c 'echo FAULTLINE_HEALTHY_FOR=0 >/etc/default/faultline-host'
	check 'faultline-boot knows the boot loader' status_has "\"loader\": \"${LOADER:=systemd-boot}\""
	# GRUB boots the newest version: step_sorted.
	[ "$LOADER" = GRUB ] ||
		check 'the stock kernel is still the default' status_has "\"default\": \"$stock\""
}

install_with_host() {
	apt-get -y --no-install-recommends install "$image=$VERSION1" faultline-host
}

# status_has TEXT [-E]: it is in the status, as JSON; with -E it is an extended regular expression.
status_has() {
	local status
	status=$(faultline-boot status --json) || return 1
	echo "$status"
	grep -q "${2--F}" -e "$1" <<<"$status"
}

# trial_is STATE REASON, which is an extended regular expression.  The service that says so may
# still run.
trial_is() {
	within_a_minute status_has \
		"\"trial\": \{\"kernel\": \"$KVER1\", \"state\": \"$1\", \"reason\": \"($2)" -E
}

# The stock kernel runs: ask for a trial, first on a full disk.
step_ask() {
	check 'the stock kernel runs' stock_runs
	check 'the disk is full' fill_root
	# With systemd-boot, its folder in /etc is not there yet.
	refused 'a full disk is reported' 'no space left on device|is the file system full' \
		faultline-boot next "$KVER1"
	check 'nothing is next' status_has '"next": "", "pinned": false'
	check 'nothing is on trial' status_has '"trial": {"kernel": "", "state": "none"'
	rm -f /filler /filler.[23]
	check 'a trial is requested' faultline-boot next "$KVER1"
	check 'our kernel is next' status_has "\"next\": \"$KVER1\""
}

# Root may use the blocks that are reserved for it; ext4 keeps some for itself.
fill_root() {
	# Blocks of the file's own metadata are among the free ones.
	fallocate -l $(($(stat -f -c '%f * %S' /) * 98 / 100)) /filler || return 1
	cat /dev/zero >/filler.2
	stat -f /
	! echo full >/filler.3
}

# Our kernel runs, on trial.
step_pass() {
	check "$KVER1 runs" running "$KVER1"
	check 'the trial has passed' trial_is passed ''
	check 'the stock kernel is next, and the default' status_has "\"default\": \"$stock\", \"next\": \"\""
	check 'the switch of a session that is killed as a whole is put back' killed_session
}

# The session holds the switch as faultline-bench does.  Its control group is killed at once;
# faultline-hold@.service is outside of it.
killed_session() {
	local name=vm.walk_section_kbytes on
	on=$(on_value "$name")
	echo "faultline-ab hold test \$\$ $name && faultline-ab set test $name=$on && sleep infinity" \
		>/run/test-session &&
		systemd-run --quiet --collect --unit=test-session sh /run/test-session &&
		within_a_minute value_is "$name" "$on" &&
		systemctl is-active faultline-hold@test.service &&
		systemctl kill --signal=KILL test-session.service &&
		within_a_minute value_is "$name" "$(stock_value "$name")" &&
		within_a_minute hold_is_over && ! ls /run/faultline/ab/test.*
}

# The unit has ended by itself.
hold_is_over() {
	[ "$(systemctl is-active faultline-hold@test.service)" = inactive ]
}

# The stock kernel runs again: make ours the default.
step_pin() {
	check 'the stock kernel runs again' stock_runs
	check 'our kernel becomes the default' faultline-boot pin "$KVER1"
}

# Our kernel runs, as the default: undo that.
step_undo() {
	check "$KVER1 runs" running "$KVER1"
	check 'our kernel is the default' status_has "\"default\": \"$KVER1\""
	check 'faultline-boot restores the default' faultline-boot back
	check 'the stock kernel is the default again' status_has "\"default\": \"$stock\""
}

# The stock kernel runs: each trial fails in another way. This step runs again after each.
step_fail() {
	local kind rest
	check 'the stock kernel runs' stock_runs
	if [ ! -e "$state/kinds" ]; then
		mkdir -p "$state"
		printf '%s\n' "${kinds[@]}" >"$state/kinds"
		check 'our kernel is set up to fail' spoil
	else
		kind=$(head -n 1 "$state/kinds")
		check "our kernel was booted ($kind)" test -e "$state/booted-$kind"
		case $kind in
		# The gate may have begun.
		panic)
			check 'the trial has failed' trial_is rolled-back \
				'it was not booted, or did not get far enough|it did not finish its checks'
			;;
		hang) check 'the trial has failed' trial_is rolled-back 'spoil.service: still starting, and has not worked for' ;;
		unhealthy) check 'the trial has failed' trial_is rolled-back '50-test: the test says so' ;;
		esac
		sed -i 1d "$state/kinds"
	fi
	if [ -s "$state/kinds" ]; then
		check "a trial that fails is requested ($(head -n 1 "$state/kinds"))" faultline-boot next "$KVER1"
		sync
		reboot_host
	fi
	check 'each failure was counted' test "$(rollbacks)" = $(((ROUND + 1) * ${#kinds[@]}))
	check 'our kernel works again' mend_spoiled
	check 'nothing is on trial' faultline-boot back
}

rollbacks() {
	faultline-boot status --json | sed 's/.*"rollbacks": \([0-9]*\).*/\1/'
}

# The steps of this test do not run on the spoiled kernel: they would end the machine.
spoil() {
	mkdir -p /etc/systemd/system/faultline-test.service.d /etc/faultline/health.d &&
		printf '[Unit]\nConditionKernelVersion=!%s\n' "$KVER1" \
			>/etc/systemd/system/faultline-test.service.d/stock.conf &&
		spoil_boot "$KVER1" &&
		cat >"$state/spoil" <<-SPOIL &&
			read -r kind <$state/kinds
			>$state/booted-\$kind
			sync
			case \$kind in
			panic) echo c >/proc/sysrq-trigger ;;
			hang) sleep infinity ;;
			esac
		SPOIL
		cat >/etc/faultline/health.d/50-test <<-CHECK &&
			#!/bin/sh
			echo 'the test says so'
			exit 1
		CHECK
		chmod +x /etc/faultline/health.d/50-test
}

mend_spoiled() {
	systemctl disable spoil.service &&
		sed -i /^FAULTLINE_GATE_SECONDS=/d /etc/default/faultline-host &&
		rm -r "$state" /etc/systemd/system/spoil.service /etc/faultline/health.d/50-test \
			/etc/systemd/system/faultline-test.service.d
}

# The stock kernel runs: the power is cut while faultline-boot changes what boots next.
step_cut() {
	check 'the stock kernel runs' stock_runs
	while :; do
		faultline-boot next "$KVER1"
		faultline-boot back
	done >/dev/null 2>&1 &
	sleep "$AFTER"
	mark changing
	wait
}

# One of the two kernels runs.
step_after_cut() {
	check 'one of the two kernels runs' grep -qxF -e "$KVER1" -e "$stock" <(uname -r)
	say "it is $(uname -r)"
	[ "$(uname -r)" = "$stock" ] || check 'the trial has passed' trial_is passed ''
	check 'faultline-boot undoes the interrupted change' faultline-boot back
	check 'the stock kernel is the default' status_has "\"default\": \"$stock\", \"next\": \"\""
}

# --- GRUB instead of systemd-boot

# The stock kernel runs: as a Debian host, GRUB boots the first entry of its menu.
step_convert() {
	check 'the stock kernel runs' stock_runs
	# The image has the kernel only where systemd-boot looks for it.
	[ -e "/boot/vmlinuz-$stock" ] || cp "/efi/$token/$stock/linux" "/boot/vmlinuz-$stock"
	printf '%s\n' GRUB_DEFAULT=0 GRUB_TIMEOUT=0 "GRUB_CMDLINE_LINUX='$(cat /proc/cmdline)'" >/etc/default/grub
	check 'GRUB replaces systemd-boot' grub-install --target="$(uname -m | sed s/aarch64/arm64/)-efi" \
		--efi-directory=/efi --removable --no-nvram
	check 'the menu of GRUB is written' update-grub
	sync
}

# Our kernel runs, since it is the first of the menu: packaging/README.md says so.
step_sorted() {
	check "$KVER1 runs" running "$KVER1"
	check 'faultline-boot knows the boot loader' status_has '"loader": "GRUB"'
	check 'our kernel is the default' status_has "\"default\": \"$KVER1\""
	refused 'a default that GRUB would ignore is refused' 'GRUB_DEFAULT=saved' faultline-boot pin "$stock"
	sed -i s/^GRUB_DEFAULT=.*/GRUB_DEFAULT=saved/ /etc/default/grub
	check 'the menu is written with a saved default' update-grub
	check 'the owner chooses the stock kernel' grub-set-default "$(grub_entry "$stock")"
	check 'our kernel is installed again' apt-get -y --reinstall install "linux-image-$KVER1"
	check 'a reinstallation does not change the default' status_has "\"default\": \"$stock\""
	sync
}

# grub_entry KVER: the path of its entry in the menu.
grub_entry() {
	local cfg=/boot/grub/grub.cfg
	printf '%s>%s\n' "$(sed -n "s/^submenu .*menuentry_id_option '\([^']*\)'.*/\1/p" $cfg)" \
		"$(sed -n "s/.*menuentry_id_option '\(gnulinux-$1-advanced-[^']*\)'.*/\1/p" $cfg)"
}
