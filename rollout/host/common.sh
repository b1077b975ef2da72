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
	sed -n "/^$1=/ { s///p; q; }" "$2" 2>/dev/null
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

# textfile: node_exporter's folder for .prom files, or nothing.
textfile() {
	textfile_set=$(setting FAULTLINE_TEXTFILE)
	for textfile_folder in "$textfile_set" "${FAULTLINE_ROOT-}/var/lib/prometheus/node-exporter" \
		"${FAULTLINE_ROOT-}/var/lib/node_exporter/textfile_collector"; do
		if [ -n "$textfile_folder" ] && { [ -n "$textfile_set" ] || [ -d "$textfile_folder" ]; }; then
			printf '%s\n' "${textfile_folder%/}"
			return
		fi
	done
}

# in_folder FOLDER COMMAND...: run a command in a folder that others may own, with the
# rights of those who can change the folder: they could lead root to any file, by a link.
# Their right to rename a folder on the way to it is of no use: a command that is there
# stays there, and with root's rights only in a folder that nobody else can change.
in_folder() {
	folder=$1
	shift
	cd -P "$folder" 2>/dev/null || {
		echo "there is no folder $folder"
		return 1
	}
	[ "$(pwd -P)" = "$folder" ] || {
		echo "a symbolic link leads to $(pwd -P): set FAULTLINE_TEXTFILE to a folder without links"
		return 1
	}
	# shellcheck disable=SC2046 # words
	set -- $(stat -c '%u %g %a' .) "$@"
	owner=$1 group=$2 mode=$3
	shift 3
	case $owner,$group,$mode in
	0,*,*[2367]) owner=65534 group=65534 ;;
	0,0,*) ;;
	0,*,*[2367]?) owner=65534 ;;
	esac
	if [ "$owner" != 0 ] && [ "$(id -u)" = 0 ]; then
		set -- /usr/bin/setpriv "--reuid=$owner" "--regid=$group" --clear-groups "$@"
	fi
	"$@" 2>/dev/null || {
		echo "user $owner cannot write to it"
		return 1
	}
}

# publish NAME: standard input becomes NAME.prom; empty input removes it.  Metrics
# are not worth failing for: a folder that cannot be written is only reported.
publish() {
	publish_folder=$(textfile)
	publish_text=$(cat)
	[ -n "$publish_folder" ] || return 0
	if [ -z "$publish_text" ]; then
		[ -d "$publish_folder" ] || return 0
		publish_why=$(in_folder "$publish_folder" rm -f "$1.prom") && return 0
	else
		# shellcheck disable=SC2016 # for sh -c
		publish_why=$(printf '%s\n' "$publish_text" | in_folder "$publish_folder" \
			sh -c 'cat >".$1.new" && mv -f ".$1.new" "$1" || { rm -f ".$1.new"; exit 1; }' sh "$1.prom") &&
			return 0
	fi
	say "warning: cannot write $publish_folder/$1.prom: $publish_why; Prometheus sees old values"
}
