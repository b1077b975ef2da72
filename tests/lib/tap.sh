# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# TAP for test programs in bash.  Source it, call check once per test, and
# done_testing at the end; a program that dies before that has no plan line,
# which tests/run counts as a failure.
#
# Sourcing it changes to the top of the repository.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
BUILD=$(realpath -m "${BUILD:-$TOP/build}")
export BUILD
cd "$TOP" || exit 1

tap_count=0
tap_failed=0
# The commands of the current check; a file without a name.
tap_file=$(mktemp)
exec {tap_trace}>>"$tap_file"
rm "$tap_file"

# ok NAME [REASON]: the test passes; with a REASON it is skipped.
ok() {
	tap_count=$((tap_count + 1))
	printf 'ok %d - %s%s\n' $tap_count "$1" "${2:+ # SKIP $2}"
}

# not_ok NAME: the test fails; standard input says why.
not_ok() {
	tap_count=$((tap_count + 1))
	tap_failed=$((tap_failed + 1))
	printf 'not ok %d - %s\n' $tap_count "$1"
	sed 's/^/# /'
}

# check NAME COMMAND...: the test passes if the command succeeds.  If it fails, the last commands
# that it ran are shown: they tell which link of a chain of && has failed.
check() {
	local name=$1 out trace=/proc/self/fd/$tap_trace
	shift
	: >"$trace"
	if out=$(BASH_XTRACEFD=$tap_trace && set -x && "$@" 2>&1); then
		ok "$name"
	else
		not_ok "$name" < <(
			[ -z "$out" ] || printf '%s\n' "$out"
			printf 'the last commands:\n'
			tail -n 4 "$trace" | cut -c 1-200
		)
	fi
}

# check_empty NAME TEXT: the test passes if TEXT is empty.
check_empty() {
	if [ -z "$2" ]; then
		ok "$1"
	else
		not_ok "$1" <<<"$2"
	fi
}

# refuses REGEX COMMAND...: it fails and its output matches.
refuses() {
	local regex=$1 text
	shift
	if text=$("$@" 2>&1); then
		printf 'succeeded:\n%s\n' "$text"
		return 1
	fi
	grep -qE -- "$regex" <<<"$text" || { printf 'failed, but no %s in:\n%s\n' "$regex" "$text"; return 1; }
}

# Print the plan and exit.
done_testing() {
	printf '1..%d\n' $tap_count
	[ $tap_failed -eq 0 ]
	exit
}

# our_files [PATHSPEC...]: existing files that git tracks or would add.
# shellcheck disable=SC2120 # other scripts pass arguments
our_files() {
	git ls-files -co --exclude-standard -- "$@" | while read -r file; do
		[ ! -f "$file" ] || printf '%s\n' "$file"
	done
}

# our_scripts INTERPRETER: our files whose first line names it.
our_scripts() {
	# shellcheck disable=SC2119
	our_files | while read -r file; do
		IFS= read -r first <"$file" 2>/dev/null || true
		[[ $first == '#!'*$1* ]] && printf '%s\n' "$file"
	done
}
