# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# Shared by faultline-ab, faultline-boot and the trial generator.

program=${0##*/}
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin
export LC_ALL PATH
umask 022

say() {
	printf '%s: %s\n' "$program" "$*" >&2
}

die() {
	say "error: $*"
	exit 1
}

# put FILE: standard input becomes the contents of FILE, in one step.
put() {
	put_new=${1%/*}/.${1##*/}.new
	if cat 2>/dev/null >"$put_new" && mv -f "$put_new" "$1"; then
		return 0
	fi 2>/dev/null
	rm -f "$put_new" 2>/dev/null
	return 1
}

# field NAME FILE: the value of the line NAME=VALUE.
field() {
	sed -n "s/^$1=//p" "$2" 2>/dev/null | head -n 1
}

# is_number TEXT: digits without leading zeros, small enough for arithmetic.
is_number() {
	case $1 in
	'' | *[!0-9]* | 0?*) return 1 ;;
	esac
	[ ${#1} -le 15 ]
}

# setting NAME: a variable of the environment or of /etc/default/faultline-host, so that
# timers, ssh and package scripts agree.
setting() {
	eval "setting_value=\${$1-}"
	[ -n "$setting_value" ] ||
		setting_value=$(sed -n "s/^[[:space:]]*$1=//p" "${FAULTLINE_ROOT-}/etc/default/faultline-host" \
			2>/dev/null | tail -n 1 | sed "s/[[:space:]]*\$//; s/^\([\"']\)\(.*\)\1\$/\2/")
	printf '%s\n' "$setting_value"
}

# Sets textfile to node_exporter's folder for .prom files, or to nothing.
find_textfile() {
	textfile=${FAULTLINE_TEXTFILE-}
	[ -z "$textfile" ] || return 0
	for textfile in /var/lib/prometheus/node-exporter /var/lib/node_exporter/textfile_collector; do
		[ ! -d "$textfile" ] || return 0
	done
	textfile=
}

# publish NAME: standard input becomes NAME.prom; empty input removes it.  Metrics
# are not worth failing for: a folder that cannot be written is only reported.
publish() {
	find_textfile
	publish_text=$(cat)
	[ -n "$textfile" ] || return 0
	if [ -z "$publish_text" ]; then
		rm -f "$textfile/$1.prom" 2>/dev/null && return 0
	elif printf '%s\n' "$publish_text" | put "$textfile/$1.prom"; then
		return 0
	fi
	say "warning: cannot write $textfile/$1.prom: Prometheus sees old values"
}
