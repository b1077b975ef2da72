# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/fleet/bench-vm.sh: faultline-bench as it is installed, against the
# kernel's own switches.  It prints TAP.
set -u
# shellcheck source=tests/rollout/guest-lib.sh
. /test/guest-lib.sh
names=$(sed -n 's/^vm\.\([^ ]*\).*/\1/p' $FAULTLINE_SWITCHES)
before=/run/faultline/ab/bench.before

bench() {
	/usr/sbin/faultline-bench "$@" >/tmp/said 2>&1
}

values() {
	for name in $names; do
		echo "$name $(cat "/proc/sys/vm/$name")"
	done
}

as_before() {
	values | diff /tmp/values - >>/tmp/said 2>&1 && [ ! -e $before ]
}

# wait_until COMMAND...
wait_until() {
	tries=0
	until "$@" 2>/dev/null; do
		tries=$((tries + 1))
		if [ $tries = 600 ]; then
			echo "not within a minute: $*" >>/tmp/said
			return 1
		fi
		sleep 0.1
	done
}

reads() { # SWITCH VALUE
	[ "$(cat "/proc/sys/vm/$1")" = "$2" ]
}

# Neither the stock values nor those of arm on: values of an administrator.
echo 4096 >/proc/sys/vm/munmap_section_kbytes
echo 2 >/proc/sys/vm/hugetlb_pmd_sharing
echo 1 >/proc/sys/vm/speculative_page_fault
values >/tmp/values

bench --dry-run && grep -qx 'Nothing was changed.' /tmp/said && as_before
result $? 'a dry run'

# --- An experiment

plan pmd_clear_ipi_free 0 1
echo 1000 >/tmp/clock
faultline-ab start /tmp/plan >/tmp/said 2>&1
result $? 'an experiment of faultline-ab begins'
! bench && grep -q 'error: experiment real runs on this host' /tmp/said &&
	[ "$(wc -l </tmp/said)" = 1 ] && [ ! -e $before ]
result $? 'faultline-bench refuses a host with an experiment'
faultline-ab stop --all >/tmp/said 2>&1 && as_before
result $? 'the experiment is over'

# --- A run, whose result goes to the host

# shellcheck disable=SC2086 # options
bench $FAULTLINE_BENCH --output /out/result.json --plot /out/plot.svg
result $? 'a run'
cp /tmp/said /out/table.txt
as_before
result $? 'every switch is as before'
[ -s /out/result.json ] && grep -q '<svg ' /out/plot.svg &&
	grep -qE '^mmap1_threads_2 .* [0-9.]+ +ops/s +[0-9.]+  [0-9.]+ to [0-9.]+' /tmp/said &&
	grep -qE '^stall_256m_4k_mmap_max .* [0-9.]+ +ms +[0-9.]+  [0-9.]+ to [0-9.]+' /tmp/said
result $? 'a table with intervals, a plot and JSON'
missing=$(for call in populate_write mlock fixed_none smaps_rollup; do
	grep -qE "^${call}_256m_4k_wait_max .* ms " /tmp/said || echo "$call"
done)
[ -z "$missing" ]
result $? "the table has the waits of each call: ${missing:-all}"
: >/tmp/said
for name in $names; do
	dmesg | grep -q "faultline: vm.$name: .* by " || echo "vm.$name was not flipped" >>/tmp/said
done
flipped=0
[ ! -s /tmp/said ] || flipped=1
result $flipped 'the kernel logged changes of each switch'

# --- Ended in the middle

# begin: a run that does not end soon, in arm on.
begin() {
	/usr/sbin/faultline-bench --tests mmap1 --seconds 300 --rounds 1 >/tmp/said 2>&1 &
	main=$!
	wait_until test -e $before && wait_until reads munmap_section_kbytes 0 &&
		wait_until reads speculative_page_fault 0
}

begin
result $? 'a run begins'
! faultline-ab start /tmp/plan >/tmp/ab 2>&1 && grep -q 'changes switches on this host' /tmp/ab
result $? 'faultline-ab begins no experiment meanwhile'
! /usr/sbin/faultline-bench >/tmp/second 2>&1 && grep -q "process $main, changes switches on this host" /tmp/second
result $? 'no second run begins'
kill -TERM $main
wait $main
status=$?
[ $status = 143 ] && as_before
result $? 'SIGTERM: every switch is as before'
begin && kill -KILL $main
wait $main
wait_until as_before
result $? 'SIGKILL: every switch is as before'
wait_until eval '! pidof micro >/dev/null'
result $? 'SIGKILL: the program that measures has ended'
# It ends even if this happens before it can ask for a signal.
! /usr/libexec/faultline-bench/micro --arms as-is --parent 4194304 mmap1 >/tmp/said 2>&1 &&
	[ "$(cat /tmp/said)" = 'micro: the process that started this one has ended' ]
result $? 'the program that measures does not begin after its parent has ended'

# Without systemd, with the process that waits killed as well, none is left to restore them.
begin
# shellcheck disable=SC2046 # one, or none if the test fails
kill -KILL $main $(for process in /proc/[0-9]*/cmdline; do
	! tr '\0' ' ' <"$process" | grep -q 'faultline-ab watch bench' || echo "${process%/*}" | cut -d / -f 3
done 2>/dev/null)
wait $main
[ -e $before ] && reads munmap_section_kbytes 0
result $? 'both killed: the switches stay as they are'
bench restore && as_before
result $? 'restore: every switch is as before'
echo "1..$count"
