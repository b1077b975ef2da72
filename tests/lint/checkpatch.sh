#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The kernel's checkpatch --strict for the patch queue and the new files.
#
# checkpatch.allow lists exceptions: file pattern, type, reason.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

tree=$BUILD/tree
allow=$TOP/tests/lint/checkpatch.allow
checkpatch=(perl "$tree/scripts/checkpatch.pl" "--root=$tree" --strict --terse
	--no-summary --show-types)
used=$(mktemp)
trap 'rm -f "$used"' EXIT

# complaints NAME ARG...: checkpatch's complaints about a file, without exceptions.
complaints() {
	local name=$1 line type pattern allowed
	shift
	"${checkpatch[@]}" "$@" 2>&1 | sed "s#^-:#$name:#" | while read -r line; do
		while read -r pattern allowed _; do
			case $pattern in '' | '#'*) continue ;; esac
			# shellcheck disable=SC2053 # it is a pattern
			[[ $name == $pattern ]] || continue
			for type in ${allowed//,/ }; do
				if [[ $line == *[A-Z]:"$type":* ]]; then
					printf '%s %s\n' "$pattern" "$type" >>"$used"
					continue 3
				fi
			done
		done <"$allow"
		printf '%s\n' "$line"
	done
}

if [ ! -f "$tree/scripts/checkpatch.pl" ]; then
	not_ok 'checkpatch exists' <<<"no kernel tree: run 'make tree'"
	done_testing
fi

while read -r patch; do
	name=${patch#kernel/patches/}
	# Through a pipe: checkpatch treats a file tracked by git as source, not a patch.
	check_empty "checkpatch $name" "$(complaints "$name" - <"$patch")"
done < <(our_files 'kernel/patches/*.patch')

# Use each file's path in the kernel, as some checks depend on it.
cd kernel/overlay || exit 1
while read -r file; do
	check_empty "checkpatch $file" "$(complaints "$file" -f "$file")"
done < <(our_files . | grep -E '\.([chS]|rst)$|/(Kconfig|Makefile)[^/]*$')

unused=$(grep -vE '^(#|$)' "$allow" | while read -r pattern allowed _; do
	for type in ${allowed//,/ }; do
		grep -qxF "$pattern $type" "$used" || printf '%s %s\n' "$pattern" "$type"
	done
done)
check_empty 'each exception in checkpatch.allow is still needed' "$unused"
done_testing
