#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# vm.pmd_clear_ipi_free on arm64, in three arms: the unchanged upstream kernel, and ours
# with 0 and 1.  TLB flushes are broadcasts without interrupts there; what interrupts all
# CPUs is a collapse, and unsharing a hugetlb page table.  The last measurement isolates CPU 3.
set -euo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh

flavour=microvm-arm64
program=$(CFLAGS=-Werror tests/lab compile tests/bench/pmd_clear.c $flavour)
# shellcheck source=../../lib/pmd_clear.sh
. tests/lib/pmd_clear.sh

measure All 0,1 '' collapse collapse_busy zap unshare
for arm in stock 0; do
	check "$arm: a collapse interrupts the three other CPUs" always collapse_walkers $arm 3
	check "$arm: so it does when they run the process" always collapse_busy_walkers $arm 3
	check "$arm: unsharing a page table interrupts the three other CPUs" \
		always unshare_walkers $arm 3
done
for arm in stock 0 1; do
	check "$arm: unmapping a huge page interrupts no CPU for walkers" always zap_walkers $arm 0
done
for scene in collapse collapse_busy unshare; do
	check "1: $scene interrupts no CPU for walkers" always ${scene}_walkers 1 0
done

measure Isolated 0,1 isolcpus=3 --isolated 3 isolated
# A round of 16 huge pages can have one more call, of the scheduler.
for arm in stock 0; do
	check "$arm: a collapse interrupts the isolated CPU once" \
		between isolated_last_cpu_cal $arm 1 1.1
done
check '1: a collapse does not interrupt the isolated CPU' between isolated_last_cpu_cal 1 0 0.1
done_testing
