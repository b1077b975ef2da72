#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=dash disable=SC1091,SC2154
#
# init of the test guest: mounts what tests expect, runs the command in
# /faultline/command and reports on separate serial ports, so that the runner
# need not parse the console:
#
#   $job_output    output of the command
#   $job_status    records, one per line: "start UPTIME", "exit CODE",
#                  "files CODE" (tar's), "taint NUMBER", "end"
#   $job_returned  a compressed tar archive of /out: an emulated serial port
#                  carries some 100 KB per second
#
# A missing "end" means that the guest died early; the runner judges that.
#
# It starts few processes: under emulation each takes ten milliseconds.

/bin/busybox --install -s
export PATH=/test:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux LC_ALL=C
. /faultline/job

# Sets a sysctl, if this kernel has it.
tune() # NAME VALUE
{
	[ ! -w "/proc/sys/$1" ] || echo "$2" >"/proc/sys/$1"
}

mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
cp -a /faultline/dev/. /dev

# Mounts those lines of /etc/fstab whose file system this kernel has.
known=" "
while read -r line; do
	known="$known${line##*[[:space:]]} "
done </proc/filesystems
while read -r what where type rest; do
	case $known in
	*" $type "*) echo "$what $where $type $rest" ;;
	esac
done </etc/fstab >/faultline/fstab
mount -a -T /faultline/fstab

echo faultline >/proc/sys/kernel/hostname
[ ! -d /sys/class/net/lo ] || ifconfig lo 127.0.0.1 up
[ -z "$job_library_path" ] || export LD_LIBRARY_PATH="$job_library_path"
ulimit -c 0

# Hang detectors: slow enough for a busy host that starves an emulated CPU for
# a minute, and fatal, since a hung guest has nothing more to report.
tune kernel/hung_task_timeout_secs 240
if [ -z "$job_allow_warn" ]; then
	tune kernel/softlockup_panic 1
	tune kernel/hung_task_panic 1
fi

show_toggles()
{
	local name
	for name in $job_toggles; do
		[ ! -r "/proc/sys/$name" ] || printf '  %-34s %s\n' \
			"$(echo "$name" | tr / .)" "$(cat "/proc/sys/$name")"
	done
}

if [ "$job_mode" = shell ]; then
	{
		echo
		echo "Linux $(uname -r), $job_about."
		echo "Leave with 'exit' or Ctrl-A X. Files given with --file are in /test."
		if [ -n "$(show_toggles)" ]; then
			echo "Switches (sysctl -w NAME=VALUE):"
			show_toggles
		else
			echo "This kernel has no Faultline switches."
		fi
		[ ! -d /sys/kernel/tracing/events/faultline ] ||
			echo "Trace events: /sys/kernel/tracing/events/faultline"
		echo
	} >/etc/motd
	stty -F "$job_console" sane rows "$job_rows" cols "$job_columns"
	cat /etc/motd
	cd /test || cd /
	PS1='faultline:\w# ' setsid cttyhack sh
	reboot -f
fi

# Keep the line discipline away from the command's output.  The ports stay
# open: a hypervisor's console loses its settings when it is closed.
exec 3>"$job_status" 4>"$job_output" 5>"$job_returned"
stty -F "$job_output" raw -echo
stty -F "$job_returned" raw -echo

read -r uptime _ </proc/uptime
echo "start $uptime" >&3
(cd /test && exec setsid sh /faultline/command) </dev/null >"$job_output" 2>&1 3>&- 4>&- 5>&-
code=$?
# Processes that the command left running would hold its output port open.
kill -KILL -1 2>/dev/null
echo "exit $code" >&3

# Changing a terminal's settings waits until its output has drained.
stty -F "$job_output" raw -echo
set -- /out/* /out/.[!.]* /out/..?*
if [ $# != 3 ] || [ -e "$1" ] || [ -e "$2" ] || [ -e "$3" ]; then
	tar -C /out -czf "$job_returned" .
	echo "files $?" >&3
	stty -F "$job_returned" raw -echo
fi
# Not with "read": it reads single bytes, and a sysctl returns only the first.
echo "taint $(cat /proc/sys/kernel/tainted)" >&3
echo "end" >&3
exec 3>&-
reboot -f
