#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds tools/testing/selftests/mm/faultline for a flavour, into the folder that
# tests/lab names.  selftests FLAVOUR
set -euo pipefail
. "$(dirname "$0")/tap.sh"

out=$(tests/lab flavour selftests "$1")
cross=$(tests/lab flavour make "$1")
log=$BUILD/log/${out##*/}.log
mkdir -p "$BUILD/log" "$out"
# Two test programs may build them at the same time.
exec 9>>"$log.lock"
flock 9
# shellcheck disable=SC2086
make -C "$BUILD/tree/tools/testing/selftests/mm/faultline" \
	OUTPUT="$out" $cross >"$log" 2>&1 9>&- || {
	tail -20 "$log" >&2
	echo "the selftests do not build: see $log" >&2
	exit 1
}
