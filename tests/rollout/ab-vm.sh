#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-ab in a VM, with the switches of the real kernel.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

# guest NAME ARGUMENT [OPTION...]
guest() {
	local name=$1 argument=$2
	shift 2
	# busybox has no flock.  QEMU cannot patch code that another CPU runs, so one CPU.
	in_vm microvm "rollout-$name" --ktap --quiet --cpus 1 --mem 512 --timeout 900 \
		--file rollout/host/faultline-ab --file rollout/host/common.sh \
		--file rollout/host/owners.sh --file rollout/host/plan.sh --file rollout/host/state.sh \
		--file sysctl/switches \
		--file tests/rollout/guest-lib.sh --file tests/rollout/ab-guest.sh --file "$(command -v flock)" "$@" \
		-- sh ab-guest.sh "$argument"
}
status=0
out=$(guest switches on) || status=1
off=$(guest off off --append faultline=off) || status=1
# Two runs, one list of results.
printf '%s\n%s\n' "$out" "$off" | grep -v '^TAP version\|^1\.\.' |
	awk '/^(not )?ok [0-9]+/ { sub(/ok [0-9]+/, "ok " ++n) } { print } END { print "1.." n }'
exit $status
