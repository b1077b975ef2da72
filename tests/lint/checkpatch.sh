#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The kernel's checkpatch --strict for the patch queue and the new files.
#
# checkpatch.allow lists exceptions: file pattern, type, reason.
#
# A file takes checkpatch up to several seconds of one CPU, so files are checked
# in parallel; their results are in the order of the files.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

tree=$BUILD/tree
allow=$TOP/tests/lint/checkpatch.allow
checkpatch=(perl "$tree/scripts/checkpatch.pl" "--root=$tree" --strict --terse
	--no-summary --show-types)
work=$(mktemp -d)
used=$work/used
: >"$used"
trap 'rm -rf "$work"' EXIT

# complaints NAME ARG...: checkpatch's complaints about a file, without exceptions.
complaints() {
	local name=$1 line type pattern allowed status
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
	status=${PIPESTATUS[0]}
	# 1: it has complaints.
	[ "$status" -le 1 ] || printf '%s: checkpatch ended with status %s\n' "$name" "$status"
	: >"$work/$checks.done"
}

checks=0
reported=0
names=()
pids=()
# With one more than CPUs, none is idle while the oldest one still runs.
running=$(($(nproc) + 1))

# report: wait for the oldest check and print its result.
report() {
	wait "${pids[reported]}"
	if [ -e "$work/$reported.done" ]; then
		check_empty "checkpatch ${names[reported]}" "$(cat "$work/$reported")"
	else
		not_ok "checkpatch ${names[reported]}" <<<'the check did not end by itself'
	fi
	reported=$((reported + 1))
}

# start NAME INPUT ARG...: check a file in the background.
start() {
	local name=$1 input=$2
	shift 2
	[ $((checks - reported)) -lt $running ] || report
	complaints "$name" "$@" <"$input" >"$work/$checks" &
	pids+=($!)
	names+=("$name")
	checks=$((checks + 1))
}

if [ ! -f "$tree/scripts/checkpatch.pl" ]; then
	not_ok 'checkpatch exists' <<<"no kernel tree: run 'make tree'"
	done_testing
fi

while read -r patch; do
	name=${patch#kernel/patches/}
	# Through a pipe: checkpatch treats a file tracked by git as source, not a patch.
	start "$name" "$patch" -
done < <(our_files 'kernel/patches/*.patch')

# Use each file's path in the kernel, as some checks depend on it.
cd kernel/overlay || exit 1
while read -r file; do
	start "$file" /dev/null -f "$file"
done < <(our_files . | grep -E '\.([chS]|rst)$|/(Kconfig|Makefile)[^/]*$')
while [ $reported -lt $checks ]; do
	report
done

unused=$(grep -vE '^(#|$)' "$allow" | while read -r pattern allowed _; do
	for type in ${allowed//,/ }; do
		grep -qxF "$pattern $type" "$used" || printf '%s %s\n' "$pattern" "$type"
	done
done)
check_empty 'each exception in checkpatch.allow is still needed' "$unused"
done_testing
