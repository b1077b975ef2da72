#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# ShellCheck for every shell script, found by first line or name.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

while read -r script; do
	# SC2317: tests call functions by name, through check.
	check "shellcheck $script" shellcheck --norc --external-sources --exclude=SC2317 \
		--source-path=SCRIPTDIR "$script"
done < <({ our_scripts sh; our_files '*.sh' '*/completion/*'; } | sort -u)
done_testing
