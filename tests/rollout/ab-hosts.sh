#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: the hosts that cannot take part.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# unfit PATTERN COMMAND...: after COMMAND, the host is refused.
unfit() {
	local pattern=$1
	shift
	new_host
	plan "$pushed"
	"$@"
	refused 1 "$pattern" ab start "$pushed" && is 0 "$(spf 2>/dev/null || echo 0)"
}

# fit COMMAND...: after COMMAND, the host takes part.
fit() {
	new_host
	plan "$pushed"
	"$@"
	ab start "$pushed"
}

# A host without the table makes no experiment; one that runs ends, with the value from before.
without_table() (
	started && at 1001200 && ab apply spf-1 && is 1 "$(spf)" || return 1
	FAULTLINE_SWITCHES=$work/none
	refused 1 'install the package faultline-profiles' ab check "$pushed" || return 1
	! ab apply spf-1 2>"$said" && nothing_left 0 && grep -q 'install the package' "$said" || return 1
	refused 1 'install the package faultline-profiles' ab start "$pushed"
)

# conf FILE LINE: a line in a configuration file.
conf() {
	mkdir -p "$(dirname "$work/root/$1")"
	printf '%b\n' "$2" >>"$work/root/$1"
}

line='vm.speculative_page_fault = 2'

hidden() {
	conf usr/lib/sysctl.d/70-x.conf "$line"
	mkdir -p "$work/root/etc/sysctl.d"
	ln -s /dev/null "$work/root/etc/sysctl.d/70-x.conf"
}

same_arms() {
	plan "$pushed" b=0
	conf etc/sysctl.d/70-x.conf 'vm.speculative_page_fault=0'
}

later_wins() {
	plan "$pushed" b=0
	conf etc/sysctl.d/70-x.conf "$line"
	conf usr/lib/sysctl.d/80-x.conf '-vm/speculative_page_fault=0'
}

excluded() {
	conf usr/lib/sysctl.d/60-x.conf 'vm.*=2'
	conf etc/sysctl.d/70-x.conf '-vm.speculative_page_fault'
}

name_wins() {
	conf etc/sysctl.d/10-x.conf 'vm.speculative_page_fault=1'
	conf etc/sysctl.d/90-x.conf 'vm.speculative*=2'
}

# By our own reading of the folders, where systemd-analyze cannot do it.
without_analyze() {
	local status
	mount --bind /bin/false /usr/bin/systemd-analyze || return 1
	"$@"
	status=$?
	umount /usr/bin/systemd-analyze
	return "$status"
}

tuned() {
	conf etc/tuned/active_profile mine
	conf "etc/tuned/$1mine/tuned.conf" '[main]\ninclude=base,faultline-jvm'
	conf "usr/lib/tuned/$1faultline-jvm/tuned.conf" "[sysctl.faultline]\ntype=sysctl\n$line"
}

tuned_other() {
	conf etc/tuned/active_profile balanced
	conf usr/lib/tuned/balanced/tuned.conf '[sysctl]\nvm.swappiness=10'
	conf usr/lib/tuned/faultline-jvm/tuned.conf "[sysctl]\n$line"
}

isolated() { conf sys/devices/system/cpu/isolated 2-15; }

isolated_accepted() {
	new_host
	plan "$pushed"
	isolated
	ab start --isolated-cpus "$pushed"
}

not_root() {
	new_host
	plan "$pushed"
	chmod 444 "$work/sys/vm/speculative_page_fault"
	refused 1 'cannot be written: run this as root' without_rights start "$pushed"
}

no_systemd() {
	local FAULTLINE_SYSTEMCTL=no-such-program
	new_host
	plan "$pushed"
	refused 1 'timers of systemd run experiments' ab start "$pushed"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}hugetlb_pmd_sharing may differ between hosts" fit plan "$pushed" \
		switch=vm.hugetlb_pmd_sharing a=1 b=0 arms=bbbb
	check "${s}hugetlb_pmd_sharing alternates between 1 and 2" fit plan "$pushed" \
		switch=vm.hugetlb_pmd_sharing a=1 b=2
	check "${s}no table of switches" without_table
	check "${s}faultline=off" unfit 'faultline=off' tee "$work/cmdline" <<<'quiet faultline=off'
	check "${s}a kernel without the switch" unfit 'has no vm.spec' rm "$work/sys/vm/speculative_page_fault"
	check "${s}a schedule that is over" unfit 'schedule has ended' at 1005000
	check "${s}an expired plan" unfit 'plan has expired' at 1010000
	for folder in etc run usr/local/lib usr/lib lib; do
		check "${s}$folder/sysctl.d sets the switch" unfit "$folder/sysctl.d/70-x.conf sets" \
			conf "$folder/sysctl.d/70-x.conf" "  -$line"
	done
	check "${s}/etc/sysctl.conf sets the switch" unfit 'sysctl.conf sets' conf etc/sysctl.conf "$line"
	check "${s}a pattern in sysctl.d sets the switch" unfit 'sets' conf etc/sysctl.d/x.conf 'vm/spec* =2'
	for line in 'vm.speculative_page_f[a-c]ult=2' 'vm.s*_pag?_[!g]ault = 2' '-vm/speculative_page_faul?=2' '*/spec* = 2'; do
		check "${s}a pattern in sysctl.d sets the switch: $line" unfit 'x.conf sets' conf etc/sysctl.d/x.conf "$line"
	done
	for line in 'vm.speculative_page_f[b-c]ult=2' 'vm.s?_page_fault=2' 's*=2' 'vm/vm.spec*=2' 'vm.speculative.page.fault=2'; do
		check "${s}a pattern in sysctl.d does not set the switch: $line" fit conf etc/sysctl.d/x.conf "$line"
	done
	line='vm.speculative_page_fault = 2'
	check "${s}a key that sysctl.d takes out of patterns" fit excluded
	check "${s}a name in sysctl.d goes before a pattern" fit name_wins
	check "${s}sysctl.d sets an arm's value" fit conf etc/sysctl.d/x.conf 'vm.speculative_page_fault=1'
	if [ -e /usr/bin/systemd-analyze ]; then
		check "${s}without systemd-analyze: sysctl.d sets the switch" without_analyze \
			unfit "usr/lib/sysctl.d/70-x.conf sets" conf usr/lib/sysctl.d/70-x.conf "$line"
		check "${s}without systemd-analyze: a hidden file does not matter" without_analyze fit hidden
		check "${s}without systemd-analyze: the last file counts" without_analyze fit later_wins
	fi
	check "${s}a comment in sysctl.d does not set the switch" fit conf etc/sysctl.d/x.conf "# $line"
	check "${s}the package's own files do not set the switch" fit sysctl/install.sh "$work/root"
	check "${s}another key in sysctl.d does not matter" fit conf etc/sysctl.d/x.conf 'vm.speculative_page_fault_x=1'
	check "${s}a hidden file in sysctl.d does not matter" fit hidden
	check "${s}a file that agrees with both arms" fit same_arms
	check "${s}the last file counts" fit later_wins
	check "${s}tuned sets the switch, by an include" unfit 'tuned.conf sets' tuned ''
	check "${s}tuned of newer versions sets the switch" unfit 'tuned.conf sets' tuned profiles/
	check "${s}tuned does other things" fit tuned_other
	check "${s}isolated CPUs" unfit 'CPUs 2-15 are isolated' isolated
	check "${s}isolated CPUs, accepted" isolated_accepted
	check "${s}not root" not_root
	check "${s}no systemd" no_systemd
done
done_testing
