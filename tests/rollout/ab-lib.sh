# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For the tests of faultline-ab: on a host in a namespace, with dash; with FULL=1, also with
# busybox ash.  Source it after tap.sh.

# shellcheck source=tests/rollout/lib.sh
. tests/rollout/lib.sh

spf() { switch speculative_page_fault; }
counted() { sed -n 's/^faultline_ab_noncompliant_total.* //p' "$work/textfile/faultline_ab.prom"; }
pushed=$work/spf.plan

json() {
	python3 -c 'import json, sys
found = json.load(sys.stdin)["experiments"]
print(*(",".join(str(one[key]) for key in sys.argv[1:]) for one in found))' "$@"
}

# started: a new host with the plan started, its first slot at 1000600.
started() {
	new_host
	plan "$pushed" "$@"
	ab start "$pushed" 2>"$said" || { cat "$said"; return 1; }
}

# nothing_left VALUE: the switch is VALUE and nothing of an experiment is there.
nothing_left() {
	is "$1" "$(spf)" && is '' "$(find "$work/run/ab" "$work/textfile" -type f)" &&
		is 'stop faultline-ab@spf-1.timer faultline-ab-expire@spf-1.timer' "$(tail -n 1 "$units")"
}

# A switch that has more than two values.
section() { switch munmap_section_kbytes; }
set_section() { echo "$1" >"$work/sys/vm/munmap_section_kbytes"; }
# alternates: an experiment with that switch, in arm b.
alternates() {
	started switch=vm.munmap_section_kbytes b=65536 && at 1001200 && ab apply spf-1 && is 65536 "$(section)"
}

# without_rights ARGUMENT...: faultline-ab as root of the host without the right to ignore file modes.
without_rights() {
	# shellcheck disable=SC2086 # "busybox ash" are two words
	setpriv --bounding-set=-dac_override,-dac_read_search $shell "$host/faultline-ab" "$@"
}
