# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Counts of vm.pmd_clear_ipi_free on another architecture, of our kernel and of stock.
# Source it after tap.sh, vm.sh, flavour=FLAVOUR and program=FILE, tests/bench/pmd_clear.c
# compiled for it; there is a FLAVOUR-stock, too.
# The counts are exact because the CPUs take turns on one host thread.

: "${flavour:?}" "${program:?}"

# measure NAME VALUES PARAMETERS WORD...: sets $samples to the samples of all arms: our kernel
# with these values of the switch, and stock.  WORD... are options and scenes of the program.
measure() {
	local name=$1 values=$2 parameters=$3
	shift 3
	samples=$(for arms in "$flavour:$values" "$flavour-stock:stock"; do
		in_vm "${arms%:*}" "pmd_clear-${name,,}-${arms#*:}" --quiet --icount 4 --cpus 4 \
			--mem 4096 --timeout 900 --append "$parameters" --file "$program:/test/pmd_clear" \
			-- pmd_clear --arms "${arms#*:}" --rounds 2 --areas 16 "$@"
	done)
	grep -v vmstat <<<"$samples" | sed "s/^/# $name: /"
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

# between METRIC ARM LEAST MOST: there are samples, and all are within these values.
between() {
	awk -v metric="$1" -v arm="$2" -v least="$3" -v most="$4" '
		$2 == metric && $4 == arm { n++; bad += $5 > most || $5 < least }
		END { exit !n || bad }' <<<"$samples" || {
		echo "$1 $2: $(grep "^sample $1 per_op $2 " <<<"$samples"), not from $3 to $4"
		return 1
	}
}
