#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Builds tools/testing/selftests/mm/faultline for a flavour, into the folder that
# selftests_of (vm.sh) names.  selftests FLAVOUR
set -euo pipefail
. "$(dirname "$0")/tap.sh"
# shellcheck source=vm.sh
. tests/lib/vm.sh

name=$(selftests_of "$1")
log=$BUILD/log/$name.log
cross=()
case $1 in
ppc64le*) cross=(ARCH=powerpc CROSS_COMPILE=powerpc64le-linux-gnu-) ;;
microvm-arm64*) cross=(ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu-) ;;
esac
mkdir -p "$BUILD/log" "$BUILD/$name"
# Two test programs may build them at the same time.
exec 9>>"$log.lock"
flock 9
make -C "$BUILD/tree/tools/testing/selftests/mm/faultline" \
	OUTPUT="$BUILD/$name" "${cross[@]}" >"$log" 2>&1 9>&- || {
	tail -20 "$log" >&2
	echo "the selftests do not build: see $log" >&2
	exit 1
}
