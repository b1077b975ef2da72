#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# run.sh SCENE,... ARM MS MIB [traced]: runs each scene in a VM whose disk has the programs.
# ARM is only a name: the kernel command line sets the switches.
#
# traced: also leaves OUT.allocations-before and OUT.allocations-after: how often the kernel
# had allocated pages, by stack and size, when the program started and when it had ended.  The
# scene's script, the commands that it calls and its clients are not counted.
#
# The VM has booted with one CPU: when the tracepoint is switched on, QEMU cannot reliably
# patch code that other CPUs run.
#
# A scene PROGRAM_VARIANT is done by the script PROGRAM.sh in this folder, in a
# root file system of its own, as: PROGRAM VARIANT OUT MS MIB.  It leaves
# OUT.before and OUT.after (/proc/vmstat), OUT.latency and OUT.work.
set -eu

sh switched.sh
scenes=$1 arm=$2 ms=$3 mib=$4 traced=${5-}
root=/programs
event=/sys/kernel/tracing/events/kmem/mm_page_alloc
helpers="sh cat rm sleep redis-cli client python3"

mkdir -p /disk /changes $root
mount -t ext4 -o ro /dev/vda /disk
mount -t tmpfs -o size=90% tmpfs /changes
mkdir /changes/upper /changes/work
mount -t overlay -o lowerdir=/disk,upperdir=/changes/upper,workdir=/changes/work overlay $root
mkdir -p $root/proc $root/sys $root/dev $root/tmp $root/out $root/bench $root/etc
mount -t proc proc $root/proc
mount --bind /sys $root/sys
mount --bind /dev $root/dev
mount --bind /dev/shm $root/dev/shm
mount -t tmpfs -o mode=1777,size=90% tmpfs $root/tmp
mount --bind /out $root/out
mount --bind /test $root/bench
cp /etc/passwd /etc/group /etc/hosts $root/etc
chmod 1777 /out
echo 1 >/proc/sys/vm/overcommit_memory
if [ "$traced" ]; then
	others=
	for name in $helpers; do
		others="$others${others:+ && }comm != \"$name\""
	done
	echo "hist:keys=common_stacktrace,order:size=65536 if $others" >$event/trigger
	for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
		echo 1 >"$cpu"
	done
fi

allocations() # before|after
{
	[ -z "$traced" ] || cat $event/hist >"/out/$scene.$arm.allocations-$1"
}

for scene in $(echo "$scenes" | tr , ' '); do
	echo "$scene $arm"
	# An earlier scene's page cache would count as memory in use.
	sync
	echo 3 >/proc/sys/vm/drop_caches
	allocations before
	chroot $root /bin/sh "/bench/workloads/${scene%%_*}.sh" "${scene#*_}" \
		"/out/$scene.$arm" "$ms" "$mib"
	allocations after
done
