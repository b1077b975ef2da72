#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs in the guest: runs a selftest in a cgroup of its own, and checks that the kernel
# has afterwards what it had before: no page, charge or reservation is lost.
#
#   kept.sh PROGRAM [ARGUMENT...]
# shellcheck disable=SC2317 # functions are arguments of others

# In kB: what an idle system may use more than before.  The counts of the kernel are kept
# per CPU, and summed up now and then.
slack=8192
# KASAN keeps freed objects for a while, and drivers of swap and loop devices stay.
memory_slack=65536
# Seconds until memory is back, which tasks may free a little later.
patience=60

group=/tmp/kept
before=/tmp/kept-before
now=/tmp/kept-now

pools() {
	for pool in /sys/kernel/mm/hugepages/* /sys/devices/system/node/node*/hugepages/*; do
		for count in nr_hugepages free_hugepages resv_hugepages surplus_hugepages; do
			[ ! -e "$pool/$count" ] || echo "$pool/$count $(cat "$pool/$count")"
		done
	done
}

# kbytes FIELD...: the sum of fields of /proc/meminfo
kbytes() {
	awk -v fields=" $* " '{ sub(":", "", $1); if (index(fields, " " $1 " ")) sum += $2 }
		END { print sum + 0 }' /proc/meminfo
}

# Memory that somebody uses, or that is free; nobody has the rest.  Free pages are in the
# lists of the CPUs as well, until memory is compacted.
accounted() {
	echo 1 >/proc/sys/vm/compact_memory
	kbytes MemFree Buffers Cached SwapCached AnonPages Slab KernelStack PageTables Percpu \
		VmallocUsed Hugetlb HardwareCorrupted
}

# The settled values, one a line: NAME VALUE.
used() {
	echo 3 >/proc/sys/vm/drop_caches
	for field in AnonPages AnonHugePages Committed_AS PageTables Mlocked Shmem; do
		echo "$field $(kbytes $field)"
	done
	echo "lost $(($(kbytes MemTotal) - $(accounted)))"
}

# within: nothing in $now is more than in $before, but for the slack
within() {
	awk -v slack="$slack" -v memory="$memory_slack" '
		NR == FNR { old[$1] = $2; next }
		$2 - old[$1] > ($1 == "lost" ? memory : slack) {
			print "# " $1 ": " old[$1] " kB before, " $2 " kB now"
			bad = 1
		}
		END { exit bad }' "$before.used" "$now.used"
}

# charges: those of the group, which has no members any more
charges() {
	sum=0
	for size in "$group"/faultline/hugetlb.*.current; do
		charge=$(cat "$size")
		[ "$charge" -eq 0 ] || echo "# ${size##*/} is $charge"
		sum=$((sum + charge))
	done
	for field in anon anon_thp shmem pagetables; do
		charge=$(sed -n "s/^$field //p" "$group/faultline/memory.stat")
		[ "${charge:-0}" -eq 0 ] || echo "# $field of memory.stat is $charge"
		# Counts of the CPUs, see above.
		[ "${charge:-0}" -lt $((slack * 1024)) ] || sum=$((sum + charge))
	done
	return $((sum != 0))
}

# soon COMMAND...: until it succeeds; then, or at the end, prints what it says.
soon() {
	tries=0
	until said=$("$@"); do
		tries=$((tries + 1))
		if [ "$tries" -ge "$patience" ]; then
			[ -z "$said" ] || echo "$said"
			return 1
		fi
		sleep 1
	done
	[ -z "$said" ] || echo "$said"
}

settled() {
	used >"$now.used"
	within
}

number=0
failed=0

# is TITLE COMMAND...
is() {
	number=$((number + 1))
	title=$1
	shift
	if "$@"; then
		echo "ok $number $title"
	else
		failed=1
		echo "not ok $number $title"
	fi
}

same_pools() {
	pools >"$now.pools"
	diff "$before.pools" "$now.pools" | sed -n 's/^[-+>< ]/# &/p'
	cmp -s "$before.pools" "$now.pools"
}

echo "KTAP version 1"
echo "1..6"
mkdir -p $group
mount -t cgroup2 none $group
echo "+memory +hugetlb" >$group/cgroup.subtree_control
is "the group is there" mkdir $group/faultline
pools >"$before.pools"
used >"$before.used"
number=$((number + 1))
{
	sh -c 'echo 0 >"$0/faultline/cgroup.procs" && exec ./"$@"' $group "$@" 2>&1 && code=0 ||
		code=$?
	echo "$code" >/tmp/kept-status
} | sed 's/^/  /'
case $(cat /tmp/kept-status) in
0) echo "ok $number $*" ;;
*)
	failed=1
	echo "not ok $number $*"
	;;
esac
is "the pools of huge pages are as before" soon same_pools
is "the group is charged for nothing" soon charges
is "the system uses as much memory as before" soon settled
sed 's/^/# before: /' "$before.used"
sed 's/^/# now: /' "$now.used"
is "the group can go" rmdir $group/faultline
umount $group
exit $failed
