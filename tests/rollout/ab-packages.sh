#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: removal and upgrades of its package.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# removed COMMAND...: after COMMAND, the package is removed, for both kinds of packages.
removed() {
	alternates && "$@" && package deb remove && is '' "$(find "$work/textfile" -type f)" &&
		grep -qF 'stop faultline-ab@* faultline-ab-expire@* faultline-hold@*' "$units" &&
		alternates && "$@" && package rpm 0 && is '' "$(find "$work/textfile" -type f)"
}

removed_cleanly() {
	removed true && is 0 "$(section)" && is '' "$(find "$work/run/ab" -type f)" && is '' "$(grep warning "$said")"
}

removed_damaged() {
	damage() { rm "$work/run/ab/spf-1.plan" && echo x >"$work/run/ab/spf-1.before"; }
	removed damage && grep -q 'warning: some switches may not be as before' "$said"
}

removed_locked() {
	local status sbin=$work/sbin
	mkdir -p "$sbin"
	sed 's/^LOCK_SECONDS=.*/LOCK_SECONDS=0/' "$host/faultline-ab" >"$sbin/faultline-ab"
	chmod 755 "$sbin/faultline-ab"
	alternates || return 1
	exec 8>>"$work/run/lock"
	flock 8
	package deb remove 8>&- && package rpm 0 8>&-
	status=$?
	exec 8>&-
	[ "$status" = 0 ] && grep -q 'has held' "$said" && grep -q 'warning: some switches' "$said"
}

removed_refused() {
	local as='setpriv --bounding-set=-dac_override,-dac_read_search'
	refuse() { chmod 444 "$work/sys/vm/munmap_section_kbytes"; }
	# The value is not lost: the package comes back, and the next command completes the stop.
	removed refuse && grep -q 'cannot be set back to 0' "$said" && is 65536 "$(section)" &&
		chmod 644 "$work/sys/vm/munmap_section_kbytes" && ab stop && is 0 "$(section)"
}

upgraded() {
	alternates && package "$1" "$2" && is '' "$(cat "$said")" && is 65536 "$(section)" &&
		at 1001800 && ab apply spf-1 && is 65536 "$(section)" && at 1002400 && ab apply spf-1 && is 0 "$(section)"
}

# old_files BACK: the files of 6.12.117 instead; the value before was 4096.
old_files() {
	printf '%s\n' switch=vm.munmap_section_kbytes value=4096 expires=1010000 deadline=20000 >"$work/run/ab/spf-1.before"
	printf '%s\n' applied=65536 going= back="$1" noncompliant=0 slot=1 arm=b >"$work/run/ab/spf-1.state"
}

upgraded_from_117() {
	local wanted=4096
	[ "$1" != back ] || wanted=2048
	alternates && old_files '' && is 'running,65536,4096' "$(ab status --json | json state value before)" &&
		at 1001800 && ab apply spf-1 && is 65536 "$(section)" || return 1
	case $1 in
	by-hand) set_section 4096 && at 1002400 && ab apply spf-1 2>"$said" && grep -q 'from 65536 to 4096 by hand' "$said" &&
		ab stop spf-1 ;;
	stop) ab stop spf-1 ;;
	refused)
		chmod 444 "$work/sys/vm/munmap_section_kbytes"
		old_files '' && rm "$work/run/ab/spf-1.plan"
		plan "$pushed" name=next switch=vm.munmap_section_kbytes b=65536
		without_rights start "$pushed" 2>"$said" && { echo 'it started'; return 1; }
		chmod 644 "$work/sys/vm/munmap_section_kbytes"
		ab stop --all
		;;
	# After the last slot.
	back) old_files 1 && set_section 2048 && ab stop spf-1 ;;
	esac && is "$wanted" "$(section)" && is '' "$(find "$work/run/ab" -type f)"
}

# A run of faultline-bench that was killed before the upgrade.
upgraded_bench() {
	new_host
	: >"$work/run/bench.before"
	plan "$pushed"
	refused 1 'bench.before has values that faultline-bench of 6.12.117' ab start --dry-run "$pushed" &&
		refused 1 'bench.before has values' ab hold bench $$ vm.munmap_section_kbytes
}

# The new version does not read the plan.
upgraded_format() {
	alternates && mkdir -p "$work/newer" && cp "$host"/*.sh "$work/newer" &&
		sed -i 's/!= 1 \]/!= 2 ]/; s/reads format 1/reads format 2/' "$work/newer/plan.sh" || return 1
	(FAULTLINE_LIB=$work/newer && ab apply spf-1 2>"$said") && { echo 'it succeeded'; return 1; }
	grep -q "is for another version (format is '1'; this program reads format 2)" "$said" && is 0 "$(section)" &&
		is '' "$(find "$work/run/ab" -type f)"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}removal ends an experiment" removed_cleanly
	check "${s}removal with a damaged .before" removed_damaged
	check "${s}removal while the lock is held" removed_locked
	check "${s}removal, and the kernel refuses the old value" removed_refused
	check "${s}an experiment goes on over an upgrade: deb" upgraded deb upgrade
	check "${s}an experiment goes on over an upgrade: rpm" upgraded rpm 1
	for how in stop by-hand refused back; do
		check "${s}an upgrade from 6.12.117 keeps the value from before: $how" upgraded_from_117 $how
	done
	check "${s}values of faultline-bench 6.12.117 are not taken for those from before" upgraded_bench
	check "${s}an upgrade to a version for other plans ends it" upgraded_format
done
done_testing
