# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# The life cycle of our kernel on a host, one function per boot.

# The stock kernel runs: install the first build.
step_install() {
	listing >/root/listing
	record_calls
	check 'the repository is added' repository_add
	check 'the first build is installed' install_first
	check 'the packages of the first build are intact' sound "$KVER1" "$VERSION1"
	check 'the files in the boot entry of the first build exist' bootable "$KVER1"
	after_install
	check 'depmod knows the modules of the first build' depmod_knows "$KVER1"
	check 'the installation calls the kernel hooks once' calls_are_of_installation "$KVER1"
	check 'the stock kernel still has its entry' bootable "$(uname -r)"
	# The loader orders entries by version; the owner of a host chooses the kernel to boot. With
	# a pattern it is our newest kernel, or any other once ours are removed.
	check 'our newest kernel becomes the default' bootctl set-default "$token-*-faultline*"
}

# The first build runs: use it, then upgrade.
step_use() {
	local name number=0
	check "$KVER1 runs" running "$KVER1"
	check 'the kernel has switches' grep -q . <(switches)
	for name in $(switches); do
		check "$name can be set by sysctl.d and by hand, and reset" flip "$name"
		# The kernel logs at most ten changes in five seconds, and flip expects all four of its own.
		[ $((number += 1, number % 2)) = 1 ] || sleep 5
	done
	check 'the selftests are installed' install_selftests
	check 'the feature selftests pass' selftests "$KVER1"
	if [ "$PERF" = yes ]; then
		check 'perf runs' faultline-perf version
		check 'perf counts speculative page faults' perf_counts faultline-perf
	fi
	for name in $(switches); do
		echo "$name = $(on_value "$name")" >>/etc/sysctl.d/90-test.conf
	done
	only_first_initrd
	check 'the upgrade installs the second build' upgrade_differently
	check 'the upgrade calls the kernel hooks once' calls_are_of_installation "$KVER2"
	check 'the packages of the second build are intact' sound "$KVER2" "$VERSION2"
	check 'the files in the boot entry of the second build exist' bootable "$KVER2"
	check 'the first build still has its entry' bootable "$KVER1"
}

# The first build boots with an initial RAM file system, the next ones without: our kernels have
# the disk drivers built in. Making one costs a minute of emulation.
only_first_initrd() {
	[ -n "$FULL" ] || export INITRD=No
}

# The selftests are a package of their own. Shorter than by default: this only checks that they are
# complete and run on a host. Failures are printed last, for the log.
selftests() {
	local status test out=/run/selftests dir=/usr/lib/linux-selftests/$1
	# The races take minutes; tests/kernel has them.
	set -- "$dir"/toggles "$dir"/*_semantics
	if [ "$FLAVOUR" = microvm ]; then
		# With this kernel, tests/kernel runs all of them: here they list their tests.
		set -- "$dir"/toggles "$dir"/munmap_semantics
		for test in "$dir"/*_semantics "$dir"/*_race; do
			set -- "$@" "$test -l"
		done
	fi
	[ -z "$FULL" ] || set --
	FAULTLINE_SECONDS=1 FAULTLINE_COUNT=100 "$dir/run" "${@##*/}" >$out
	status=$?
	[ $status -eq 0 ] || grep -B12 -E '^ *not ok' $out
	return $status
}

# perf counts the speculative page faults of a program, with the switch on and off.
perf_counts() {
	local on off
	sysctl -q -w vm.speculative_page_fault=1
	on=$("$1" stat -x, -e speculative-faults -- find /etc 2>&1 >/dev/null | tail -n1)
	sysctl -q -w vm.speculative_page_fault=0
	off=$("$1" stat -x, -e spf -- find /etc 2>&1 >/dev/null | tail -n1)
	echo "with 1: '$on', with 0: '$off'"
	[ "${on%%,*}" -gt 0 ] && [ "${off%%,*}" = 0 ]
}

# The second build runs: go back to the first.
step_rollback() {
	local name
	check "$KVER2 runs" running "$KVER2"
	for name in $(switches); do
		check "$name was set at boot by sysctl.d" value_is "$name" "$(on_value "$name")"
	done
	rm -f /etc/sysctl.d/90-test.conf
	while_second_runs
	check 'the first build is still bootable' bootable "$KVER1"
	check 'the first build is selected for the next boot' bootctl set-default "$token-$KVER1.conf"
}

# The first build runs again: remove everything.
step_remove() {
	local name
	check "$KVER1 runs again" running "$KVER1"
	for name in $(switches); do
		check "$name is as upstream again" value_is "$name" "$(stock_value "$name")"
	done
	while_first_runs
	refuse_removal
	check 'the running kernel is still bootable' bootable "$KVER1"
	check 'all our packages are removed on request' remove_all
	after_removal
	rm -f "${recorders[@]}"
}

# The stock kernel runs: nothing is left of our packages.
step_gone() {
	check 'the stock kernel runs' stock_runs
	check "nothing of $KVER1 is left" absent "$KVER1"
	check "nothing of $KVER2 is left" absent "$KVER2"
	check 'none of our packages is left' prints_nothing left
	check 'no switch is left' test ! -e /proc/sys/vm/munmap_section_kbytes
	check 'the other files are as before' diff /root/listing <(listing)
	check 'the stock kernel is the only entry' test "$(find "$entries" -name '*.conf' | wc -l)" = 1
	check 'no unit has failed' test -z "$(systemctl list-units --failed --no-legend)"
}
