#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# vm.pmd_clear_ipi_free on powerpc, in four arms: the unchanged upstream kernel,
# and ours with 0, 1 and 2 (IPIs as before Linux 5.8).  The counts are exact
# because the CPUs take turns on one host thread: the three other CPUs run threads
# of the process.  One operation is one huge page.
set -euo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh

flavour=ppc64le
program=$(CFLAGS=-Werror tests/lab compile tests/bench/pmd_clear.c $flavour)
# shellcheck source=../../lib/pmd_clear.sh
. tests/lib/pmd_clear.sh

# same MMU: the checks that do not depend on the MMU.
same() {
	local arm
	for arm in stock 0 1; do
		check "$1, $arm: unmapping a huge page sends no IPIs for walkers" \
			always zap_serialize $arm 0
	done
	check "$1, 2: unmapping a huge page interrupts the three other CPUs, as before 5.8" \
		between zap_serialize 2 2.7 3
	for arm in stock 0 2; do
		check "$1, $arm: a collapse interrupts all other CPUs" \
			always collapse_busy_walkers $arm 3
	done
}

measure Radix 0,1,2 '' collapse_busy zap
same Radix
check 'Radix, 1: a collapse interrupts no CPU' always collapse_busy_walkers 1 0
for arm in stock 0 1 2; do
	check "Radix, $arm: a collapse does not wait for hash_page()" always collapse_busy_serialize $arm 0
done

measure Hash 0,1,2 disable_radix collapse_busy zap
same Hash
check 'Hash, 1: a collapse interrupts all other CPUs' always collapse_busy_walkers 1 3
for arm in stock 0 1 2; do
	check "Hash, $arm: a collapse interrupts the CPUs of the process again, for hash_page()" \
		always collapse_busy_serialize $arm 3
done
done_testing
