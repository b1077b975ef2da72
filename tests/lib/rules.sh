# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For test programs that break a rule of a feature on purpose and check that a
# race test detects it.  Source it after tap.sh and vm.sh, and define
#
#	race RULE TEST SETTINGS
#
# which runs TEST with RULE broken (0: none) and ends with a call of verdict.

# verdict STATUS LOG: prints "passed", or why the race in LOG did not pass.
verdict() {
	if [ "$1" -eq 126 ]; then
		grep -m1 -o 'kernel trouble.*' "$2" || echo "kernel trouble"
	elif grep -q '^not ok 1 ' "$2"; then
		grep -m1 'Expected' "$2" || echo failed
	elif [ "$1" -eq 0 ] && grep -q '^ok 1 ' "$2" &&
		! grep -q '^ok 1 .*# SKIP' "$2"; then
		echo passed
	else
		echo "did not run: status $1"
	fi
}

# broken RULE NAME TEST SETTINGS: without the rule, the race must fail, in one of
# three runs: on a busy host, some races are not hit each time.
broken() {
	local said run

	for run in 1 2 3; do
		said=$(race "$1" "$3" "${4:-}")
		[ "$said" = passed ] || break
	done
	[ "$run" = 1 ] || printf '# run %s\n' "$run"
	case $said in
	passed | 'did not run'*) not_ok "without $2, $3 fails" <<<"$said" ;;
	*)
		ok "without $2, $3 fails"
		printf '# %s\n' "${said#\# }"
		;;
	esac
}

# rule RULE NAME TEST SETTINGS: the race passes, but fails without the rule.
rule() {
	check "with all rules, $3 passes where $2 matters" \
		test "$(race 0 "$3" "${4:-}")" = passed
	broken "$@"
}
