#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# README, CHANGELOG and the other documents name targets and features that exist.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

overlay=kernel/overlay
guide=$overlay/Documentation/admin-guide/mm/faultline

documents=(README.md CHANGELOG CONTRIBUTING.md SECURITY.md packaging/README.md)
for document in "${documents[@]}"; do
	check "$document is there" [ -s "$document" ]
done

# Each `make VERB` that a document promises: in code, and in CHANGELOG anywhere.
promised() {
	{
		grep -ohE '(^ {4,}|[`$] ?)make [a-z][a-z0-9-]*' "${documents[@]}"
		grep -ohE '(^| )make [a-z][a-z0-9-]*' CHANGELOG
	} 2>/dev/null | sed 's/.*make //' | sort -u
}
verbs=$(sed -n 's/^\([a-z][a-z0-9-]*\):.*## .*/\1/p' Makefile)
while read -r verb; do
	check "make $verb exists" grep -qxE "$verb|${verb/#test-*/test}" <<<"$verbs"
done < <(promised)
# A target without a comment would be missing from `make help`.
check_empty 'each target is in make help' \
	"$(sed -n 's/^\.PHONY: //p' Makefile | tr ' ' '\n' | grep -vxF "$verbs")"

check 'README.md names the version of the pin' \
	grep -qF "Debian's $(sed -n 's/^upstream=//p' kernel/upstream)," README.md
subject() { git mailinfo /dev/null /dev/null <"$1" | sed -n 's/^Subject: //p'; }
fixes=0
numbers=(no one two three four five six seven eight nine)
while read -r patch; do
	fixes=$((fixes + 1))
	check "SECURITY.md has a row for ${patch##*/}" grep -qF "| $(subject "$patch") |" SECURITY.md
done < <(grep -lx 'Forwarded: no, see SECURITY.md' -r kernel/patches)
check 'README.md has the number of bug fixes' \
	grep -qx "apart from ${numbers[fixes]} \[bug fixes\](SECURITY.md)" \
	<(tr '\n' ' ' <README.md | grep -o 'apart from [a-z]* \[bug fixes\](SECURITY.md)')

check 'the newest CHANGELOG entry has a date' grep -qE '\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b' CHANGELOG
release=$(cat $overlay/localversion-faultline)
check "CHANGELOG has an entry for ${release#-}" grep -qF -- "$release" CHANGELOG

# --- The interface for administrators

# names REGEX FILE...: the group in REGEX, for each line that starts with a match.
names() {
	local regex=$1
	shift
	sed -nE "s/^$regex.*/\\1/p" "$@" | sort -u
}
toggles=$(names '[[:space:]]+\.name[[:space:]]*= "([a-z0-9_]+)"' $overlay/mm/faultline/*.c)
counters=$(names '[[:space:]]+E\([A-Z0-9_]+, "([a-z0-9_]+)"\)' $overlay/include/linux/faultline_vmstat.h)
events=$(names 'TRACE_EVENT\(([a-z0-9_]+),' $overlay/include/trace/events/faultline.h)
check 'the overlay has switches, counters and trace events' \
	[ -n "$toggles" -a -n "$counters" -a -n "$events" ]
for name in $toggles; do
	check "vm.$name is in the admin guide" grep -qF "\`\`vm.$name\`\`" $guide/index.rst
	check "vm.$name has a page in the admin guide" \
		grep -rqxF "\`\`vm.$name\`\`" --exclude=index.rst $guide
	check "vm.$name is in the table of README.md" grep -qF "| \`vm.$name\` |" README.md
done
for name in $counters $events; do
	check "$name is in the admin guide" grep -rqwF "$name" $guide
done
for page in "$guide"/*.rst; do
	page=${page##*/}
	[ "$page" = index.rst ] ||
		check "the index of the admin guide has ${page%.rst}" \
			grep -qx "   ${page%.rst}" $guide/index.rst
done
done_testing
