#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The demo of `make run`: boots the kernel in a VM, shows its switches, and
# flips section-wise munmap while a program runs.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
BUILD=$(realpath -m "${BUILD:-build}")
export BUILD
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

program=$BUILD/bench/munmap-guest
selftests=kernel/overlay/tools/testing/selftests/mm/faultline
mkdir -p "$BUILD/bench"
cc -D_GNU_SOURCE -O2 -Wall -static -pthread -I "$selftests" -o "$program" \
	rollout/bench/munmap.c rollout/bench/bench_util.c "$selftests/faultline_util.c"

in_vm microvm demo --cpus 2 --mem 1536 --file "$program:munmap" \
	--file tests/demo/guest.sh --file sysctl/switches -- sh guest.sh
