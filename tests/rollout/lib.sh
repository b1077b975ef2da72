# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For the tests of rollout/host.  Source it after tap.sh, with the name of the
# test: it restarts the program in a mount namespace of its own, and makes a
# host in $work, on a tmpfs: switches, command line, clock, units.

if [ -z "${FAULTLINE_NAMESPACE-}" ]; then
	namespace=(unshare --mount --propagation private)
	[ "$(id -u)" -eq 0 ] || namespace+=(--map-root-user)
	"${namespace[@]}" true || {
		echo 'Bail out! this host has no mount namespaces: run this as root, or allow user namespaces'
		exit 1
	}
	exec env FAULTLINE_NAMESPACE=1 "${namespace[@]}" "$0" "$@"
fi

for tool in dash busybox flock setpriv unshare; do
	command -v "$tool" >/dev/null || {
		echo "Bail out! $tool is not installed: run 'make deps'"
		exit 1
	}
done

work=$BUILD/rollout/${0##*/}
mkdir -p "$work"
mount -t tmpfs -o size=16m tmpfs "$work"
host=$TOP/rollout/host
units=$work/units
said=$work/said
shell=dash
shells=(dash)
case ${FULL:-} in
'' | 0 | n | no) ;;
*) shells+=('busybox ash') ;;
esac

export FAULTLINE_LIB=$host FAULTLINE_SWITCHES=$TOP/sysctl/switches FAULTLINE_ROOT=$work/root FAULTLINE_SYSCTL=$work/sys \
	FAULTLINE_CMDLINE=$work/cmdline FAULTLINE_UPTIME=$work/uptime FAULTLINE_CLOCK=$work/clock \
	FAULTLINE_RUN=$work/run FAULTLINE_TEXTFILE=$work/textfile FAULTLINE_TICK=0 \
	FAULTLINE_SYSTEMCTL=$work/systemctl TZ=UTC

# new_host: a host on which nothing runs; it is 10,000 s after boot.
new_host() {
	local folder
	for folder in run sys root textfile; do
		rm -rf "${work:?}/$folder"
	done
	rm -f "$work/systemctl-fails"
	mkdir -p "$work/run" "$work/sys/vm" "$work/root/etc" "$work/textfile"
	awk -v folder="$work/sys/vm/" '/^vm[.]/ { print $4 >(folder substr($1, 4)) }' "$FAULTLINE_SWITCHES"
	echo 'root=/dev/vda quiet' >"$work/cmdline"
	: >"$units"
	at 1000000
	# It records its orders.  A timer runs if the last order was to start it.
	cat >"$work/systemctl" <<-END
		#!/bin/sh
		[ "\$1" != --no-block ] || shift
		case \$1 in
		--quiet)
			grep -q " \$3" "$units" && grep " \$3" "$units" | tail -n 1 | grep -q ^start
			exit
			;;
		show)
			# Of a unit, or of systemd itself.
			[ ! -e "$work/systemd/\$3" ] || { cat "$work/systemd/\$3"; exit 0; }
			cat "$work/show" 2>/dev/null
			exit 0
			;;
		list-units | list-jobs | is-active)
			cat "$work/\$1" 2>/dev/null
			exit 0
			;;
		esac
		[ ! -e "$work/systemctl-fails" ] || exit 1
		echo "\$*" >>"$units"
	END
	chmod +x "$work/systemctl"
}

# at TIME: the clock of the host, and seconds since its boot.
at() {
	echo "$1" >"$work/clock"
	echo "$(($1 - 990000)).25 0.00" >"$work/uptime"
}

# ab ARGUMENT...: faultline-ab, in $shell.
ab() {
	# shellcheck disable=SC2086 # "busybox ash" are two words
	$shell "$host/faultline-ab" "$@"
}

# generator FOLDER: the units that systemd starts besides, in FOLDER.
generator() {
	# shellcheck disable=SC2086 # "busybox ash" are two words
	$shell "$host/faultline-trial-generator" "$1"
}

# package KIND ARGUMENT: what a package of that kind, deb or rpm, runs before a removal or upgrade.
package() {
	case $1 in
	deb) cat packaging/deb/debian/faultline-host.prerm ;;
	rpm) sed -n '/^%preun -n faultline-host/,/^$/p' packaging/rpm/linux-faultline.spec | sed '1d; s|%{_prefix}|/usr|' ;;
	esac | sed "s|/usr/lib/faultline|$host|" >"$work/scriptlet"
	[ "$(grep -c before-removal "$work/scriptlet")" = 1 ] || { echo "no script of $1"; return 1; }
	# shellcheck disable=SC2086 # "busybox ash" are two words
	FAULTLINE_SBIN=${sbin:-$host} ${as-} $shell "$work/scriptlet" "$2" >"$said" 2>&1 ||
		{ echo "exit status $?"; cat "$said"; return 1; }
}

switch() {
	cat "$work/sys/vm/$1"
}

# plan FILE [KEY=VALUE]...: a plan that starts at 1000600, with changed lines; a
# line with an empty value is left out.
plan() {
	local file=$1 line changed
	shift
	for line in format=1 name=spf-1 switch=vm.speculative_page_fault a=0 b=1 start=1000600 \
		slot=600 washout=120 expires=1010000 \
		plan=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef \
		host=db-17.example arms=abbaab; do
		for changed; do
			[ "${changed%%=*}" != "${line%%=*}" ] || line=$changed
		done
		[ -z "${line#*=}" ] || printf '%s\n' "$line"
	done >"$file"
	printf 'sum=%s\n' "$(sha256sum <"$file" | cut -d ' ' -f 1)" >>"$file"
}

# is WANTED GOT
is() {
	[ "$1" = "$2" ] || {
		printf 'wanted: %s\ngot: %s\n' "$1" "$2"
		return 1
	}
}

# snapshot: all of the host that an experiment could change.
snapshot() {
	(cd "$work" && grep -r '' sys run/faultline run textfile 2>/dev/null | grep -v '^run/lock' | sort -u && cat "$units")
}

# refused STATUS PATTERN COMMAND...: fails with STATUS and exactly one error line,
# which matches; the host is as it was.
refused() {
	local status=$1 pattern=$2 before got
	shift 2
	before=$(snapshot)
	"$@" >"$said" 2>&1
	got=$?
	[ "$got" -eq "$status" ] || { echo "exit status $got"; cat "$said"; return 1; }
	if [ "$(grep -c 'error: ' "$said")" -ne 1 ] || [ "$(grep -vc '^usage\|^  ' "$said")" -ne 1 ]; then
		echo 'not one line:'
		cat "$said"
		return 1
	fi
	grep -qE "error: .*$pattern" "$said" || { cat "$said"; return 1; }
	is "$before" "$(snapshot)"
}
