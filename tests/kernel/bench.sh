#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The benchmarks run and write their results.  The figures are not judged here:
# see `make bench`.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"

rows='
import json, sys
result = json.load(open(sys.argv[1]))
assert result["kernel"] and result["machine"], result
assert all(row["n"] >= 1 and row["min"] <= row["median"] <= row["max"]
           for row in result["rows"]) and result["rows"]
'
for name in munmap hugetlb hugetlb_zero pmd_clear spf micro survey; do
	if out=$(tests/lab bench "$name" --quick 2>&1); then
		ok "the $name benchmark runs"
		check "the $name benchmark writes its rows" python3 -c "$rows" "$BUILD/bench/$name-quick.json"
	else
		not_ok "the $name benchmark runs" <<<"$out"
	fi
done
done_testing
