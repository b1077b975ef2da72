#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The kernel's kernel-doc for the C files of the overlay.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

script=$BUILD/tree/scripts/kernel-doc
if [ ! -f "$script" ]; then
	not_ok 'kernel-doc exists' <<<"no kernel tree: run 'make tree'"
	done_testing
fi
while read -r file; do
	# It exits with 0 after warnings, so check its output.
	check_empty "kernel-doc ${file#kernel/overlay/}" "$(perl "$script" -none -Wall "$file" 2>&1)"
done < <(our_files 'kernel/overlay/*.[ch]')
done_testing
