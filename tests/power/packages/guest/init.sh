#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# The first process of a VM of tests/power/packages/deb.sh: it runs the step that the
# kernel's command line names, and powers off.  Output and status go to the
# second console.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
step=$(sed -n 's/.*\<faultline_step=\([a-z]*\).*/\1/p' /proc/cmdline)
status=0
if [ -e /dev/vdb ]; then
	mkdir -p /mnt
	mount -o ro /dev/vdb /mnt || status=$?
fi
if [ "$status" -eq 0 ]; then
	sh "/faultline/$step.sh" >/dev/hvc1 2>&1 </dev/null || status=$?
fi
echo "exit $status" >/dev/hvc1
sync
# debootstrap unmounts it.
[ -e /proc/sysrq-trigger ] || mount -t proc proc /proc
for key in s u o; do
	echo $key >/proc/sysrq-trigger
	sleep 2
done
sleep 1000
