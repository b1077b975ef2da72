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

program=$(CFLAGS=-Werror tests/lab compile tests/bench/pmd_clear.c ppc64le)

# measure MMU PARAMETER: sets $samples to the samples of all arms.
measure() {
	local mmu=$1
	shift
	samples=$(for arms in ppc64le:0,1,2 ppc64le-stock:stock; do
		in_vm "${arms%:*}" "pmd_clear-${mmu,,}-${arms#*:}" --quiet --icount 4 --cpus 4 \
			--mem 4096 --timeout 900 --append "$*" --file "$program:/test/pmd_clear" \
			-- pmd_clear --arms "${arms#*:}" --rounds 2 --areas 16 collapse_busy zap
	done)
	grep -v vmstat <<<"$samples" | sed "s/^/# $mmu: /"
}

# always METRIC ARM VALUE: there are samples, and all have this value.
always() {
	local found
	found=$(awk -v metric="$1" -v arm="$2" '$2 == metric && $4 == arm { print $5 }' <<<"$samples" |
		sort -u)
	[ "$found" = "$3" ] || {
		echo "$1 $2: ${found//$'\n'/ }, not $3"
		return 1
	}
}

# nearly METRIC ARM VALUE: the same with some slack, as a thread of the process may
# have been off its CPU.
nearly() {
	awk -v metric="$1" -v arm="$2" -v most="$3" '
		$2 == metric && $4 == arm { n++; bad += $5 > most || $5 < most * 0.9 }
		END { exit !n || bad }' <<<"$samples" || {
		echo "$1 $2: $(grep "^sample $1 per_op $2 " <<<"$samples"), not about $3"
		return 1
	}
}

# same MMU: the checks that do not depend on the MMU.
same() {
	local arm
	for arm in stock 0 1; do
		check "$1, $arm: unmapping a huge page sends no IPIs for walkers" \
			always zap_serialize $arm 0
	done
	check "$1, 2: unmapping a huge page interrupts the three other CPUs, as before 5.8" \
		nearly zap_serialize 2 3
	for arm in stock 0 2; do
		check "$1, $arm: a collapse interrupts all other CPUs" \
			always collapse_busy_walkers $arm 3
	done
}

measure Radix
same Radix
check 'Radix, 1: a collapse interrupts no CPU' always collapse_busy_walkers 1 0
for arm in stock 0 1 2; do
	check "Radix, $arm: a collapse does not wait for hash_page()" always collapse_busy_serialize $arm 0
done

measure Hash disable_radix
same Hash
check 'Hash, 1: a collapse interrupts all other CPUs' always collapse_busy_walkers 1 3
for arm in stock 0 1 2; do
	check "Hash, $arm: a collapse interrupts the CPUs of the process again, for hash_page()" \
		always collapse_busy_serialize $arm 3
done
done_testing
