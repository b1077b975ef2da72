# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# A host of the fleet of vm_fleet.py: faultline-ab and node_exporter as on a real one,
# and a load that stalls.  busybox has neither systemd nor ssh: a loop stands for the
# timers, and a port for the login, which only the host of the VM reaches.  Another loop
# stands for NTP.
set -u
mib=$1 name=$2
text=/var/lib/prometheus/node-exporter
mkdir -p /usr/sbin /usr/lib/faultline /usr/share/faultline /run/timers $text
cp faultline-ab /usr/sbin/
cp common.sh owners.sh plan.sh state.sh /usr/lib/faultline/
cp switches /usr/share/faultline/
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up

# --- systemctl, as far as faultline-ab uses it

cat >/usr/sbin/systemctl <<'END'
#!/bin/sh
quiet='' verb=''
for word; do
	case $word in
	--quiet) quiet=1 ;;
	--*) ;;
	start | stop | is-active) verb=$word ;;
	*)
		[ -n "$verb" ] || exit 1
		case $verb in
		is-active) [ -e "/run/timers/$word" ] || exit 3 ;;
		stop) rm -f "/run/timers/$word" ;;
		start)
			[ -e "/run/timers/$word" ] && continue
			echo >"/run/timers/$word"
			name=${word#*@}
			name=${name%.timer}
			command="apply $name"
			[ "${word#*-expire@}" = "$word" ] || command="stop --expired $name"
			# An emulated clock is set right all the time: a long sleep would end late.
			setsid sh -c 'while [ -e "/run/timers/$1" ]; do
				FAULTLINE_TICK=10 faultline-ab $2 2>>/tmp/agent.log
				sleep 4
			done' timer "$word" "$command" </dev/null >/dev/null 2>&1 &
			;;
		esac
		;;
	esac
done
exit 0
END

# --- The login: a line with a command and one with its input, both in base64

cat >/usr/sbin/answer <<'END'
#!/bin/sh
read -r command
read -r input
command=$(echo "$command" | base64 -d)
echo "${input#-}" | base64 -d | sh -c "$command" >/tmp/out.$$ 2>/tmp/error.$$
echo "$? $(wc -c </tmp/out.$$)"
cat /tmp/out.$$ /tmp/error.$$
rm -f /tmp/out.$$ /tmp/error.$$
END
cat >/usr/sbin/right-time <<'END'
#!/bin/sh
# 10.0.2.100 is the host of the VM.  On a busy machine its answer takes seconds, and was right
# in the middle of them, give or take the half: a clock that is closer than that stays.
read -r asked _ </proc/uptime
right=$(nc -w 20 10.0.2.100 37 </dev/null)
read -r answered _ </proc/uptime
half=$(((${answered%.*} - ${asked%.*}) / 2))
off=$((${right:-0} + half - $(date +%s)))
[ -z "$right" ] || [ ${off#-} -le $((half + 1)) ] || date -s "@$(($(date +%s) + off))" >/dev/null
END
chmod 755 /usr/sbin/systemctl /usr/sbin/answer /usr/sbin/right-time
nc -ll -p 22 -e answer &

# An emulated CPU that is busy while it boots loses ten seconds.
until [ -e /tmp/no-ntp ]; do
	right-time
	sleep 5
done &

set --
while read -r word; do
	case $word in
	--*) set -- "$@" "$word" ;;
	esac
done <node_exporter.args
prometheus-node-exporter --web.listen-address=:9100 --collector.disable-defaults \
	--collector.time --collector.uname --collector.stat --collector.vmstat \
	--collector.textfile "$@" >/tmp/node_exporter.log 2>&1 &

# --- The load: one thread unmaps a range, another one maps and unmaps a page

#
# Beside that, a service whose latency is drawn, and is 10 % lower when the switch of this
# kernel reads what arm b sets; and one that does not care.

latency='
	BEGIN {
		# Otherwise awk seeds itself with the second.
		srand(seed)
		for (draw = 0; draw < 200; draw++)
			sum += 10000 * (1 + 0.3 * (rand() + rand() + rand() - 1.5))
		printf "%d\n", sum * scale
	}'
draws=0 scaled=0 same=0
rounds=0 microseconds=0
until [ -e /tmp/end ]; do
	scale=1
	[ "$(cat /proc/sys/vm/munmap_section_kbytes)" = 0 ] || scale=0.9
	seed=$((${name#vm} * 100000 + rounds))
	scaled=$((scaled + $(awk -v seed=$seed -v scale=$scale "$latency" </dev/null)))
	same=$((same + $(awk -v seed=$((seed + 50000)) -v scale=1 "$latency" </dev/null)))
	draws=$((draws + 200))
	munmap --arms as-is --rounds 1 --size "$mib" --fill 4k stall >/tmp/samples || exit 1
	wait=$(awk '$2 ~ /_mmap_max$/ { printf "%d", $5 * 1000 }' /tmp/samples)
	rounds=$((rounds + 1)) microseconds=$((microseconds + wait))
	{
		echo "load_rounds_total $rounds"
		echo "load_longest_wait_microseconds_total $microseconds"
		echo "load_draws_total $draws"
		echo "load_scaled_microseconds_total $scaled"
		echo "load_same_microseconds_total $same"
	} >$text/.load.new
	mv $text/.load.new $text/load.prom
	sleep 1
done
# An experiment must have restored the switch.
[ "$(cat /proc/sys/vm/munmap_section_kbytes)" = 0 ]
