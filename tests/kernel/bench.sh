#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The benchmarks run and write their results.  The figures are not judged here:
# see `make bench`.  The coherence benchmark downloads QEMU's source package once
# for a header: 34 MB on Debian 12, 50 MB on 13.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"

rows='
import json, sys
result = json.load(open(sys.argv[1]))
assert result["kernel"] and result["machine"], result
assert all(row["n"] >= 1 and row["min"] <= row["median"] <= row["max"]
           for row in result["rows"]) and result["rows"]
'
for name in munmap hugetlb pmd_clear spf coherence micro; do
	if out=$(tests/lab bench "$name" --quick 2>&1); then
		ok "the $name benchmark runs"
		check "the $name benchmark writes its rows" python3 -c "$rows" "$BUILD/bench/$name-quick.json"
	elif grep -q 'of QEMU.*QEMU_PLUGIN_HEADER' <<<"$out"; then
		# Not every mirror has the source package.
		ok "the $name benchmark runs" "$(grep -m1 -o 'cannot get.*\|the download.*' <<<"$out")"
	else
		not_ok "the $name benchmark runs" <<<"$out"
	fi
done
done_testing
