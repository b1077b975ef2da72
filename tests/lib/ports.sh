# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Tests of the VM runner with the kernel of another architecture: its serial ports
# carry output, records and files, and SysRq and panics may work differently.
# Source it after tap.sh, vm.sh and flavour=FLAVOUR.

: "${flavour:?}"

# ends STATUS PATTERN NAME [OPTION...] -- COMMAND...: the run has this exit status,
# and a line in its console.log matches.
ends() {
	local wanted=$1 pattern=$2 name=$flavour-$3 status=0
	shift 3
	in_vm "$flavour" "$name" "$@" || status=$?
	[ "$status" -eq "$wanted" ] && grep -qE "$pattern" "$BUILD/vm/$name/console.log"
}

check 'a command runs and its exit status is returned' \
	ends 7 "Linux version .*-${flavour#microvm-} " status -- sh -c 'echo one; exit 7'
check 'the output of a command is returned unchanged' cmp "$BUILD/vm/$flavour-status/output.log" <(echo one)
# More than the consoles buffer, with all byte values.
payload=$(mktemp)
trap 'rm -f "$payload"' EXIT
head -c 300000 /dev/urandom >"$payload"
check 'a file is copied to the guest and back' \
	ends 0 'Linux version' files --file "$payload:/test/in" -- cp in /out/back
check 'the returned file is identical' cmp "$payload" "$BUILD/vm/$flavour-files/files/back"
check 'a panic is detected' \
	ends 126 'Kernel panic - not syncing: sysrq triggered crash' panic \
	-- sh -c 'echo c >/proc/sysrq-trigger; sleep 60'
check 'a hanging guest shows its tasks' \
	ends 124 'task:sleep +state:S' hang --timeout 40 -- sh -c 'sleep 1000; true'
done_testing
