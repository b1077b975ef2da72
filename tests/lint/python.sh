#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# flake8 and mypy for every Python file, found by first line or name.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

mapfile -t files < <({ our_scripts python; our_files '*.py'; } | sort -u)
# One run for all files (it starts slowly), but one result per file.
complaints=$(flake8 --isolated --max-line-length 100 "${files[@]}" 2>&1)
status=$?
for file in "${files[@]}"; do
	check_empty "flake8 $file" "$(grep -F "$file:" <<<"$complaints")"
done
if [ $status -gt 1 ] || { [ $status -eq 1 ] && [ $tap_failed -eq 0 ]; }; then
	not_ok 'flake8 runs' <<<"$complaints"
fi

types() {
	command -v mypy >/dev/null || { echo "mypy is not installed: run 'make deps'" && return 1; }
	mypy --cache-dir "$BUILD/mypy" --no-error-summary "${files[@]}"
}
check 'mypy --strict (pyproject.toml)' types
done_testing
