# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Common functions for the steps of a test. They run as root on the host under test; the test
# program concatenates this file, the one of the package format and the steps, and sets KVER1
# KVER2 KVER3 (uname -r of the builds), VERSION1 VERSION2 VERSION3 (of their packages), PERF (yes if
# they have perf), URL, SCENARIO, and FULL if nothing is to be left out.

set -u
umask 022
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
log=/run/faultline-test.log
calls=/run/faultline-calls
# Files that steps leave for the next boot.
state=/var/lib/faultline-test
# Most tests make no initial RAM file system, which a host does by default: each one costs a
# minute of emulation, and our kernels have the disk drivers built in.
case $SCENARIO in
lifecycle | release) ;;
*) [ -n "${INITRD-}" ] || [ -n "$FULL" ] || export INITRD=No ;;
esac
entries=/efi/loader/entries
token=$(cat /etc/machine-id)

say() {
	printf '# %s\n' "$*"
}

ok() {
	echo "ok - $1"
}

# not_ok NAME: the check failed; the log says why.
not_ok() {
	echo "not ok - $1"
	tail -n 30 "$log" | sed 's/^/#   /'
}

# told NAME PATTERN: passes if the log matches.
told() {
	if grep -qiE -e "$2" "$log"; then
		ok "$1"
		say "the log says: $(grep -iE -m1 -e "$2" "$log" | cut -c1-150)"
	else
		echo "no line matches: $2" >>"$log"
		not_ok "$1"
	fi
}

# check NAME COMMAND...: passes if the command succeeds.
check() {
	local name=$1 began=$SECONDS status
	shift
	"$@" >"$log" 2>&1 </dev/null
	status=$?
	if [ $status -eq 0 ]; then
		ok "$name"
	else
		echo "exit status $status" >>"$log"
		not_ok "$name"
	fi
	[ $((SECONDS - began)) -lt 5 ] || say "$((SECONDS - began)) s"
	return $status
}

# refused NAME PATTERN COMMAND...: passes if the command fails and its output matches.
refused() {
	local name=$1 pattern=$2
	shift 2
	if "$@" >"$log" 2>&1 </dev/null; then
		echo "it was not refused" >>"$log"
		not_ok "$name"
	else
		told "$name" "$pattern"
	fi
}

# within_a_minute COMMAND...: tries it once a second until it succeeds.
within_a_minute() {
	local left=60
	until "$@"; do
		[ $((left -= 1)) -gt 0 ] || return 1
		sleep 1
	done
}

# prints_nothing COMMAND...
prints_nothing() {
	local out
	out=$("$@")
	[ -z "$out" ] || {
		echo "$out"
		return 1
	}
}

# running KVER: this kernel is running.
running() {
	[ "$(uname -r)" = "$1" ] || {
		echo "$(uname -r) runs, not $1"
		return 1
	}
}

stock_runs() {
	case $(uname -r) in
	*faultline*)
		uname -r
		return 1
		;;
	esac
}

# The boot entries of a kernel, with or without boot counters.
entries_of() {
	find $entries -name "$token-$1.conf" -o -name "$token-$1+*.conf"
}

# bootable KVER: it has one entry, and the files in it exist.
bootable() {
	local list file
	mapfile -t list < <(entries_of "$1")
	[ ${#list[@]} -eq 1 ] || {
		echo "${#list[@]} entries: ${list[*]}"
		return 1
	}
	cat "${list[0]}"
	while read -r _ file; do
		[ -s "/efi$file" ] || {
			echo "/efi$file is missing or empty"
			return 1
		}
	done < <(grep -E '^(linux|initrd)[[:space:]]' "${list[0]}")
}

# absent KVER: nothing is left of this kernel.
absent() {
	local left
	left=$(find /boot /efi /usr/lib/modules /usr/lib/linux-tools /usr/lib/linux-selftests /usr/src \( -name "$1" -o -name "*-$1" \
		-o -name "*-$1[.+]*" \) 2>/dev/null)
	[ -z "$left" ] || {
		printf 'left behind: %s\n' "$left"
		return 1
	}
}

# The calls of kernel hooks that the recorder of the package format has written down: exactly
# these lines, since the last time. Of dpkg's parameters, in brackets, only the first counts.
calls_are() {
	local made
	made=$(sed 's/\(\[[a-z]*\).*]$/\1]/' "$calls" 2>/dev/null)
	rm -f "$calls"
	diff <(printf '%s\n' "$@") - <<<"$made"
}

# depmod knows each module of this kernel.
depmod_knows() {
	diff <(cd "/usr/lib/modules/$1" && find kernel -name '*.ko*' | sort) \
		<(cut -d: -f1 "/usr/lib/modules/$1/modules.dep" | sort)
}

# All files, except those that change in any case: databases of package managers, caches, the
# loader's own settings and what systemd and the test write. The links /vmlinuz are linux-base's:
# it removes them together with the last kernel in /boot, where the stock one has no image.
# rpm leaves folders that no package owns, such as /usr/share/licenses.
listing() {
	find / /efi -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp \
		-o -path /var/log -o -path /var/tmp -o -path /var/cache -o -path /var/lib/dpkg \
		-o -path /var/lib/apt -o -path /var/lib/dnf -o -path /var/lib/systemd \
		-o -path /var/lib/initramfs-tools -o -path /var/lib/rpm-state \
		-o -path /usr/lib/sysimage -o -path /efi/loader/loader.conf \
		-o -path /etc/apt -o -path /etc/yum.repos.d -o -path /etc/kernel \
		-o -path /root -o -path '/vmlinuz*' \) -prune -o \( ! -type d -o -name '*faultline*' \) -print | sort
}

# The switches in the package's table that this kernel has.
switches() {
	awk '/^vm[.]/ { print $1 }' /usr/share/faultline/switches | while read -r name; do
		[ ! -e "/proc/sys/${name//.//}" ] || echo "$name"
	done
}

# stock_value NAME, on_value NAME: as in the table.
stock_value() {
	awk -v name="$1" '$1 == name { print $4 }' /usr/share/faultline/switches
}

on_value() {
	awk -v name="$1" '$1 == name { print $5 }' /usr/share/faultline/switches
}

# value_is NAME VALUE
value_is() {
	[ "$(sysctl -n "$1")" = "$2" ] || {
		echo "$1 is $(sysctl -n "$1"), not $2"
		return 1
	}
}

# Flip a switch by sysctl.d and by hand, and back. Removing a file has no effect until the next
# boot, so use a file to switch back as well.
flip() {
	local name=$1 stock on file=/etc/sysctl.d/90-test.conf
	stock=$(stock_value "$name")
	on=$(on_value "$name")
	echo "$name: $stock, $on"
	value_is "$name" "$stock" || return 1
	echo "$name = $on" >$file
	sysctl --system >/dev/null && value_is "$name" "$on" || return 1
	echo "$name = $stock" >$file
	sysctl --system >/dev/null && value_is "$name" "$stock" || return 1
	rm $file
	sysctl -w "$name=$on" && value_is "$name" "$on" || return 1
	sysctl -w "$name=$stock" && value_is "$name" "$stock" || return 1
	# Each of the four changes is in the kernel's log.
	[ "$(dmesg | grep -cF "faultline: $name: ")" -ge 4 ] || {
		dmesg | tail
		return 1
	}
}

# spoil_boot KVER: when this kernel boots, $state/spoil runs before multi-user.target; the gate
# gives up a boot that does not get anywhere for 45 seconds.
spoil_boot() {
	echo FAULTLINE_GATE_SECONDS=45 >>/etc/default/faultline-host &&
		cat >/etc/systemd/system/spoil.service <<-UNIT &&
			[Unit]
			ConditionKernelVersion==$1
			Before=multi-user.target
			[Service]
			Type=oneshot
			TimeoutStartSec=infinity
			ExecStart=/bin/sh $state/spoil
			[Install]
			WantedBy=multi-user.target
		UNIT
		systemctl enable spoil.service
}

# Reboot the machine; these steps then run again.
reboot_host() {
	say 'restarting'
	systemctl reboot --force
	sleep infinity
}

# mark NAME: the test program cuts the power here if it is told to.
mark() {
	echo "mark $1"
}
