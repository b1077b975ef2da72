#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: the file for node_exporter, also in a folder of another user.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# foreign_folder OWNER MODE COMMAND...: node_exporter's folder is OWNER's, who has run COMMAND in it.
foreign_folder() {
	local owner=$1 mode=$2
	shift 2
	started && at 1001200 && echo secret >"$work/root/shadow" && chmod 600 "$work/root/shadow" &&
		chmod 755 "$work/root" && mkdir -p "$work/root/evil" && chown "$owner" "$work/textfile" &&
		chmod "$mode" "$work/textfile" && (cd "$work/textfile" && "$@") || return 1
}

untouched() {
	is secret "$(cat "$work/root/shadow")" && is 600 "$(stat -c %a "$work/root/shadow")" &&
		is '' "$(find "$work/root/evil" -type f)"
}

links_refused() {
	foreign_folder "$1" "$2" ln -s "$work/root/shadow" .faultline_ab.prom.new || return 1
	# With the right to write there, or without it.
	ab apply spf-1 2>"$said"
	untouched || return 1
	rm -f "$work/textfile/.faultline_ab.prom.new"
	ln -s "$work/root/evil" "$work/textfile/faultline_ab.prom"
	ab apply spf-1 2>>"$said"
	is 1 "$(spf)" && untouched
}

written_anyway() {
	foreign_folder "$1" "$2" true && ab apply spf-1 2>"$said" && is '' "$(grep warning "$said")" &&
		grep -q 'arm="b"' "$work/textfile/faultline_ab.prom" && is "$3" "$(stat -c %u:%g "$work/textfile/faultline_ab.prom")" &&
		ab stop && is '' "$(find "$work/textfile" -type f)"
}

folder_replaced() {
	started && at 1001200 && rm -r "$work/textfile" && mkdir -p "$work/root/evil" &&
		ln -s "$work/root/evil" "$work/textfile" && ab apply spf-1 2>"$said" && is 1 "$(spf)" &&
		is '' "$(find "$work/root/evil" -type f)" && grep -q 'symbolic link leads to .*evil: set FAULTLINE_TEXTFILE' "$said"
}

# from_default FOLDER TEXT: /etc/default says where metrics go, for each command.
from_default() (
	new_host
	unset FAULTLINE_TEXTFILE
	mkdir -p "$work/root/etc/default" "$1"
	printf '%s\n' FAULTLINE_OTHER=x "$2" >"$work/root/etc/default/faultline-host"
	plan "$pushed" && ab start "$pushed" && at 1001200 && ab apply spf-1 && grep -q 'arm="b"' "$1/faultline_ab.prom" &&
		ab stop && is '' "$(find "$1" -type f)" || return 1
	# At boot, systemd-tmpfiles removes what a crash has left.
	generator "$work/root/generated" && echo old >"$1/faultline_ab.prom" &&
		systemd-tmpfiles --boot --remove "$work/root/run/tmpfiles.d/faultline-textfile.conf" &&
		is '' "$(find "$1" -type f)"
)

# Folders of distributions.
first_folder() (
	new_host
	unset FAULTLINE_TEXTFILE
	mkdir -p "$work/root/$1"
	plan "$pushed" && ab start "$pushed" && ab apply spf-1 && grep -q 'arm="stock"' "$work/root/$1/faultline_ab.prom"
)

# No folder for metrics, or one that is read-only: a warning, and nothing else.
metrics_fail() {
	started && at 1001200 && rm -r "$work/textfile" && ab apply spf-1 2>"$said" && is 1 "$(spf)" &&
		grep -q 'warning: cannot write .*prom' "$said" && ab stop 2>/dev/null && is 0 "$(spf)"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	if : >"$work/probe" && chown 65534:65533 "$work/probe" 2>/dev/null; then
		check "${s}metrics in a folder of another user" written_anyway 65534:65534 755 65534:65534
		check "${s}metrics in a folder of root that a group can write to" written_anyway 0:65533 2775 65534:65533
		check "${s}metrics in a folder that everybody can write to" written_anyway 0:0 1777 65534:65534
		check "${s}links in a folder of another user are not followed as root" links_refused 65534:65534 755
		check "${s}links in a folder of root and a group are not followed as root" links_refused 0:65533 2775
	else
		for what in 'metrics in a folder of another user' \
			'metrics in a folder of root that a group can write to' \
			'metrics in a folder that everybody can write to' \
			'links in a folder of another user are not followed as root' \
			'links in a folder of root and a group are not followed as root'; do
			ok "$s$what" 'takes a second user'
		done
	fi
	check "${s}a folder that was replaced by a link is refused" folder_replaced
	check "${s}the folder of metrics in /etc/default" from_default "$work/root/metrics" "FAULTLINE_TEXTFILE=$work/root/metrics/"
	check "${s}the folder of metrics in /etc/default, in quotes" from_default "$work/root/my metrics" \
		"  FAULTLINE_TEXTFILE=\"$work/root/my metrics\" "
	check "${s}the folder of metrics on Debian" first_folder var/lib/prometheus/node-exporter
	check "${s}the folder of metrics on EL" first_folder var/lib/node_exporter/textfile_collector
	check "${s}metrics cannot be written" metrics_fail
done
done_testing
