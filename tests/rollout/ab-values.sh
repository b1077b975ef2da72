#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab: somebody else sets the switch, or sysctl.d, and a kernel that does not obey.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=tests/rollout/ab-lib.sh
. tests/rollout/ab-lib.sh

# --- Others who set the switch, and a kernel that does not obey

ended_metric() { sed -n 's/^faultline_ab_ended.* //p' "$work/textfile/faultline_ab.prom"; }

# says VALUE: sysctl.d sets the switch from now on.
says() {
	mkdir -p "$work/root/etc/sysctl.d"
	echo "vm.munmap_section_kbytes = $1" >"$work/root/etc/sysctl.d/70-x.conf"
}

# A program sets its usual value once.
somebody_else() {
	alternates && is 0 "$(counted)" && set_section 4096 && ab apply spf-1 2>"$said" &&
		grep -q 'somebody else sets it; the next time, the experiment ends' "$said" &&
		is 65536 "$(section)" && is '1 0' "$(counted) $(ended_metric)" && ab apply spf-1 &&
		is '1 0' "$(counted) $(ended_metric)"
}

# stays VALUE: after a tick, and in the slots after it, the switch has the value that was set.
stays() {
	ab apply spf-1 2>"$said" && grep -q "by hand, and stays so; to forget it: faultline-ab stop spf-1" "$said" &&
		is "$1 1" "$(section) $(ended_metric)" && at 1001800 && ab apply spf-1 && at 1002400 && ab apply spf-1 2>"$said" &&
		is "$1 1 $2" "$(section) $(ended_metric) $(counted)" && is '' "$(cat "$said")" &&
		is "ended,$1,$1,$1,stock" "$(ab status --json | json state value assigned set_by_hand arm)" &&
		[[ $(ab status) == "spf-1: ended on this host, because vm.munmap_section_kbytes was set to $1 by hand"* ]] || return 1
	refused 1 "was set to $1 by hand during experiment spf-1.*stop spf-1" ab start "$pushed" &&
		plan "$work/other" name=other switch=vm.munmap_section_kbytes b=65536 &&
		refused 1 "was set to $1 by hand during experiment spf-1" ab start "$work/other" || return 1
}

by_hand_stock() {
	alternates && set_section 0 && stays 0 1 && ab stop 2>"$said" && is 0 "$(section)" && ab start "$pushed"
}

by_hand_again() {
	alternates && set_section 4096 && ab apply spf-1 && set_section 4096 && stays 4096 2 && at 1010000 &&
		ab "$@" 2>"$said" && is 4096 "$(section)" && grep -q 'stays 4096, which somebody else set' "$said" &&
		is '' "$(find "$work/run/ab" -type f)"
}

by_hand_before() {
	new_host
	set_section 2048
	plan "$pushed" switch=vm.munmap_section_kbytes b=65536
	ab start "$pushed" && at 1001200 && ab apply spf-1 && set_section 2048 && stays 2048 1
}

by_hand_for_good() {
	alternates && says 4096 && set_section 4096 && stays 4096 1
}

# The timer has not seen it yet.
by_hand_and_stop() {
	alternates && set_section 4096 && ab stop 2>"$said" && is 4096 "$(section)" &&
		grep -q 'stays 4096' "$said" && is '' "$(find "$work/run/ab" -type f)"
}

# sysctl.d has changed since the start: its value is not undone at the end.
file_is_new() {
	alternates && says 4096 && ab stop 2>"$said" && is 4096 "$(section)" &&
		grep -q "is 4096, as $work/root/etc/sysctl.d/70-x.conf says" "$said"
}

# file_was_there COMMAND...: sysctl.d says 65536, and the host has 2048.
file_was_there() {
	new_host
	says 65536
	set_section 2048
	plan "$pushed" switch=vm.munmap_section_kbytes b=65536
	ab start "$pushed" && at 1001200 && ab apply spf-1 && "$@" && ab stop
}

file_is_gone() {
	file_was_there rm "$work/root/etc/sysctl.d/70-x.conf" 2>"$said" && is 0 "$(section)" &&
		grep -q 'no file sets it any more' "$said"
}

file_is_as_before() {
	file_was_there true && is 2048 "$(section)"
}

# A value that the kernel does not take.
file_is_wrong() {
	alternates && says 7 && mount --bind /dev/null "$work/sys/vm/munmap_section_kbytes" || return 1
	ab stop 2>"$said"
	umount "$work/sys/vm/munmap_section_kbytes"
	grep -q 'cannot be set back to 7' "$said" && ab apply spf-1 && is 7 "$(section)"
}

# --- The kernel refuses

eacces() {
	started && at 1000600 && ab apply spf-1 && chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	at 1001200
	without_rights apply spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	grep -q 'error: spf-1: slot 1, arm b: the kernel refuses' "$said" && is 0 "$(spf)" &&
		is 1 "$(counted)" && grep -q 'arm="stock"' "$work/textfile/faultline_ab.prom" || return 1
	chmod 644 "$work/sys/vm/speculative_page_fault"
	ab apply spf-1 && is 1 "$(spf)" && is 1 "$(counted)"
}

# The switch cannot be set back: that is said, and tried again by the timer.
eacces_at_stop() {
	started && at 1001200 && ab apply spf-1 && chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	without_rights stop spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	grep -q 'cannot be set back to 0.*tried again' "$said" && is 1 "$(spf)" &&
		! grep -q '^stop' "$units" || return 1
	without_rights apply spf-1 2>/dev/null && { echo 'apply succeeded'; return 1; }
	# The next experiment has to wait: the error of the first one, and its own.
	without_rights start "$pushed" 2>"$said" && { echo 'it started'; return 1; }
	grep -q 'cannot be set back to 0' "$said" && grep -q 'cannot be written: run this as root' "$said" || return 1
	chmod 644 "$work/sys/vm/speculative_page_fault"
	"$@" && nothing_left 0
}

# The next experiment of that name has another switch.
stopped_and_refused() {
	started && at 1001200 && ab apply spf-1 && chmod 444 "$work/sys/vm/speculative_page_fault" || return 1
	without_rights stop spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	plan "$pushed" switch=vm.munmap_section_kbytes b=65536
	without_rights start "$pushed" 2>"$said" && { echo 'it started'; return 1; }
	chmod 644 "$work/sys/vm/speculative_page_fault"
	ab stop spf-1 && nothing_left 0
}

enoent() {
	started && at 1001200 && rm "$work/sys/vm/speculative_page_fault" || return 1
	ab apply spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
	grep -q 'this kernel has no vm.speculative_page_fault' "$said" &&
		[ ! -e "$work/sys/vm/speculative_page_fault" ] && is 1 "$(counted)"
}

# The file accepts each write and does not keep the value.
lies() {
	local status
	started && at 1001200 && mount --bind /dev/null "$work/sys/vm/speculative_page_fault" || return 1
	ab apply spf-1 2>"$said"
	status=$?
	umount "$work/sys/vm/speculative_page_fault"
	[ "$status" -eq 1 ] && grep -q "is '' after writing" "$said" && is 1 "$(counted)"
}

# The memory for /run is used up: nothing is set that cannot be noted; the stop still works.
full_run() {
	local status
	started arms=baabba && at 1000600 && ab apply spf-1 || return 1
	mount -t tmpfs -o size=64k tmpfs "$work/run2" && cp -a "$work/run/." "$work/run2/" &&
		mount --move "$work/run2" "$work/run" || return 1
	head -c 100000 /dev/zero >"$work/run/big" 2>/dev/null
	at 1001200
	not_noted() {
		ab apply spf-1 2>"$said" && { echo 'it succeeded'; return 1; }
		is 1 "$(spf)" && grep -q 'is .* full' "$said" && ab stop 2>"$said" && is 0 "$(spf)" || return 1
		# It is smaller than a block of the file system that is left.
		head -c 100000 /dev/zero >"$work/run/big2" 2>/dev/null
		refused 1 'is it full' ab start "$pushed"
	}
	not_noted
	status=$?
	umount "$work/run"
	return "$status"
}

for shell in "${shells[@]}"; do
	s="$shell: "
	check "${s}a value that somebody else set is counted and put right, once" somebody_else
	check "${s}a stock value set by hand stays, and ends the experiment" by_hand_stock
	check "${s}the value from before, set by hand, stays" by_hand_before
	check "${s}a second value set by hand stays: stop" by_hand_again stop
	check "${s}a second value set by hand stays: expiry" by_hand_again stop --expired
	check "${s}a second value set by hand stays: apply at expiry" by_hand_again apply spf-1
	check "${s}a value set by hand and in sysctl.d stays" by_hand_for_good
	check "${s}a value set by hand just before the stop stays" by_hand_and_stop
	check "${s}stop leaves the value that sysctl.d says now" file_is_new
	check "${s}stop leaves the stock value if sysctl.d no longer has one" file_is_gone
	check "${s}stop puts back what was set against sysctl.d before" file_is_as_before
	check "${s}stop, and the kernel refuses the value of sysctl.d" file_is_wrong
	check "${s}EACCES" eacces
	check "${s}EACCES at the end: apply tries again" eacces_at_stop ab apply spf-1
	check "${s}EACCES at the end: expiry tries again" eacces_at_stop ab stop --expired spf-1
	check "${s}the next experiment of a name does not forget a value that the kernel refused" stopped_and_refused
	check "${s}ENOENT" enoent
	check "${s}a switch that does not keep its value" lies
	mkdir -p "$work/run2"
	check "${s}/run is full" full_run
done
done_testing
