#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The demo of `make run`: boots the kernel in a VM, shows its switches, and
# flips section-wise munmap while a program runs.  Another VM shows how long a
# thread waits for other calls, with every switch off and on.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
BUILD=$(realpath -m "${BUILD:-build}")
export BUILD
# shellcheck source=../lib/vm.sh
. tests/lib/vm.sh

program=$(tests/lab compile rollout/bench/munmap.c)
survey=$(tests/lab compile rollout/bench/survey.c)

in_vm microvm demo --cpus 2 --mem 1536 --file "$program" \
	--file tests/demo/guest.sh --file sysctl/switches -- sh guest.sh
in_vm microvm demo-survey --cpus 2 --mem 1024 --icount 6 --icount-fair --file "$survey" \
	--file tests/demo/survey.sh --file sysctl/switches -- sh survey.sh
