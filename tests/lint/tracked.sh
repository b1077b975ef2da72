#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Checks for every file of the repository.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

# --- Licence

# Files without the tag: kernel formats with fixed contents, mail (patches), and
# plain lists.
untagged() {
	our_files | while read -r file; do
		case $file in
		*.patch | *.md | CHANGELOG | */localversion-* | */selftests/*/config | */settings) continue ;;
		.gitignore | .gitattributes | */.gitignore | kernel/patches/series) continue ;;
		# debhelper formats without comments, and a fragment of files with the tag.
		*/debian/clean | */debian/copyright | */debian/source/format) continue ;;
		# JSON has no comments.
		rollout/monitoring/dashboard.json | rollout/stalls/schema.json | tests/bench/results/*.json) continue ;;
		*/debian/run-hooks.in) continue ;;
		# Files that are read as a single line.
		mkosi.*/etc/kernel/cmdline | mkosi.*/etc/dnf/vars/*) continue ;;
		esac
		if [ ! -s "$file" ] || [ -L "$file" ]; then continue; fi
		head -n 3 "$file" | grep -qE 'SPDX-License-Identifier: GPL-2\.0(-only)?( |$)' ||
			printf '%s: no SPDX-License-Identifier: GPL-2.0-only in its first lines\n' "$file"
	done
}
check_empty 'each file has its licence tag' "$(untagged)"
check 'COPYING is the GPL, version 2' grep -q 'Version 2, June 1991' COPYING

# --- No traces of this machine

# Hosts of the machine's own package sources, and the folder of the repository.
# For a nonstandard top-level folder (/NAME/...), only that part is searched for.
own_names() {
	grep -rhoE 'https?://[^/ ]+' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
		sed 's#.*//##' | sort -u
	local first=${TOP#/}
	first=/${first%%/*}
	case $first in
	/bin | /boot | /dev | /etc | /home | /lib* | /media | /mnt | /opt | /proc) first=$TOP ;;
	/root | /run | /sbin | /srv | /sys | /tmp | /usr | /var) first=$TOP ;;
	esac
	printf '%s/\n%s\n' "$first" "$TOP"
}
machine_names() {
	local files name longer
	mapfile -t files < <(our_files)
	own_names | while read -r name; do
		# In a container, the name of a host may be a plain word.
		[ ${#name} -gt 4 ] || continue
		# Not within a longer name: /tmp/n is not in /tmp/never.
		longer="[A-Za-z0-9_.}]$name"
		[[ $name = */ ]] || longer+="|${name}[A-Za-z0-9_]"
		grep -nIF -e "$name" -- "${files[@]}" | grep -vE "$longer" | cut -c1-160
	done
}
check_empty 'no package host or path of this machine' "$(machine_names)"

# --- Format

# Compare each file with nothing, so that files not yet added count as well.
whitespace() {
	our_files | while read -r file; do
		case $file in
		# Mail and licence text are left as they are.
		*.patch | COPYING) continue ;;
		esac
		git -c core.whitespace=blank-at-eol,blank-at-eof,space-before-tab \
			diff --no-index --check /dev/null "$file"
		[ ! -s "$file" ] || [ -z "$(tail -c1 "$file")" ] || printf '%s: no newline at its end\n' "$file"
	done
}
check_empty 'no stray white space' "$(whitespace)"

modes() {
	our_files | while read -r file; do
		local first=
		IFS= read -r first <"$file" 2>/dev/null || true
		if [[ $first == '#!/'* && ! -x $file ]]; then
			printf '%s: has an interpreter line, is not executable\n' "$file"
		elif [[ $first != '#!'* && -x $file ]]; then
			printf '%s: is executable, has no interpreter line\n' "$file"
		fi
	done
}
check_empty 'executables, and only they, have an interpreter line' "$(modes)"

mapfile -t prose < <(our_files | grep -vE '^COPYING$')
# damon is a subsystem, not a misspelt daemon.  Git may truncate the function name
# after a patch's @@ within a word.
check 'codespell' codespell --ignore-words-list damon,fpr,nd --ignore-regex '@@ .*' "${prose[@]}"

# --- The patch queue

queue() {
	diff <(our_files 'kernel/patches/*.patch' | sed 's#^kernel/patches/##' | sort) \
		<(grep -vE '^[[:space:]]*(#|$)' kernel/patches/series | awk '{print $1}' | sort) |
		sed -n 's/^< \(.*\)/\1: not in series/p; s/^> \(.*\)/\1: in series, but there is no such file/p'
	grep -vE '^[[:space:]]*(#|$)' kernel/patches/series | sort | uniq -d | sed 's/$/: twice in series/'
}
if [ -d kernel/patches ]; then
	check_empty 'series and patches agree' "$(queue)"
	check_empty 'each patch has a topic' "$(grep -vE '^#|/|^$' kernel/patches/series)"
fi

# --- Configuration fragments

while read -r fragment; do
	uses=$(grep -c "\"${fragment##*/}\"" tools/faultline/flavour.py)
	check "a flavour uses ${fragment##*/}" [ "$uses" -gt 0 ]
done < <(our_files 'kernel/config/*.config')
# microvm-debug has the most fragments; builds check that they take effect.
check 'fragments have no duplicate or unknown symbols' tools/fl configure --lint microvm-debug
done_testing
