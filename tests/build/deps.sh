#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# packaging/build-deps/install with stand-ins for dpkg-query, apt-get, sudo and
# id: nothing is installed.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/bin"
install=packaging/build-deps/install

# stand_in NAME BODY: makes a command that records its calls.
stand_in() {
	printf '#!/bin/sh\nprintf "%%s\\n" "%s $*" >>"%s/calls"\n%s\n' "$1" "$tmp" "$2" >"$tmp/bin/$1"
	chmod +x "$tmp/bin/$1"
}
for tool in bash sh env dirname readlink mktemp rm tail sed cat; do
	ln -s "$(command -v $tool)" "$tmp/bin/$tool"
done

# Of the packages asked for, those in $tmp/have are installed.
# shellcheck disable=SC2016 # for the stand-in to expand
dpkg='shift 3
status=0
for p; do
	if grep -qx "$p" HAVE; then echo "$p:amd64 ii "; else status=1; fi
done
exit $status'
ln -s "$(command -v grep)" "$tmp/bin/grep"
stand_in dpkg-query "${dpkg/HAVE/$tmp/have}"
stand_in id 'echo 0'

# This apt-get fails as the environment says: STALE, BROKEN, UPDATE.
# shellcheck disable=SC2016
stand_in apt-get "case \"\$*\" in
*update*) touch $tmp/updated; exit \${UPDATE:-0} ;;
*' -s '*|'-s '*) [ -z \"\${STALE:-}\" ] || [ -f $tmp/updated ] ;;
*install*) [ -z \"\${BROKEN:-}\" ] || { echo 'E: broken'; exit 100; } ;;
esac"

# run [VAR=VALUE...] COMMAND...: sets $said, $status and $calls of this run.
run() {
	rm -f "$tmp/calls" "$tmp/updated"
	said=$(env -i PATH="$tmp/bin" "$@" 2>&1 </dev/null)
	status=$?
	calls=$(cat "$tmp/calls" 2>/dev/null)
}
names() {
	awk -v group="$1" '!/^#/ && index("," $2 ",", "," group ",") { print $1 }' \
		packaging/build-deps/debian.list
}
one_error() {
	[ "$status" -eq 1 ] && [ "$(grep -c '^build-deps: error: ' <<<"$said")" -eq 1 ] &&
		grep -q -- "$1" <<<"$said"
}

groups=(build vm package image test lint ppc64le arm64 upstream workloads)
for group in "${groups[@]::6}"; do names "$group"; done >"$tmp/have"
run "$install"
check 'install prints nothing if nothing is missing' [ "$status:$said" = 0: ]
check 'install only queries dpkg if nothing is missing' [ "$(cut -d' ' -f1 <<<"$calls" | sort -u)" = dpkg-query ]

sed -i '/^bison$/d; /^shellcheck$/d' "$tmp/have"
run "$install"
check 'two missing packages are installed' grep -q 'apt-get -y .*install bison shellcheck$' <<<"$calls"
check 'each missing package is listed with its reason' grep -qE '^  bison +parser of Kconfig$' <<<"$said"
check 'the package lists are not updated' sh -c '! grep -q update' <<<"$calls"
run "$install" build
check 'a group installs only its own packages' grep -q 'install bison$' <<<"$calls"
run "$install" vm test
check 'another group has nothing to install' [ "$status:$said" = 0: ]

run "$install" ppc64le
check 'the ppc64le group is installed on request' \
	grep -q 'install libc6-dev-ppc64el-cross ' <<<"$calls"
run "$install" arm64
check 'the arm64 group is installed on request' \
	grep -q 'install qemu-system-arm ' <<<"$calls"
sed -i '/^gcc-powerpc64le-linux-gnu$/d' "$tmp/have"
for group in ppc64le test; do
	run "$install" $group
	check "a package in two groups is installed for $group" \
		grep -q 'apt-get -y .*install.* gcc-powerpc64le-linux-gnu' <<<"$calls"
done
run "$install" ppc64le test
check 'a package in both groups is named once' [ "$(grep 'apt-get -y' <<<"$calls" | grep -o gcc-powerpc64le | wc -l)" = 1 ]
names test | sort -u >>"$tmp/have"
run "$install" upstream
check 'the upstream group is installed on request' grep -q 'install stress-ng ' <<<"$calls"
run "$install" workloads
check 'the workloads group is installed on request' \
	grep -q 'install default-jdk-headless$' <<<"$calls"

run STALE=1 "$install" build
check 'with empty package lists, install succeeds' [ "$status" = 0 ]
check 'with empty package lists, apt-get runs again after an update' [ "$(grep -c 'apt-get' <<<"$calls")" = 3 ]
run BROKEN=1 "$install" build
check 'a failed installation gives one error' one_error 'could not install'
check 'a failed installation is retried once, after one update' [ "$(grep -c 'apt-get -y' <<<"$calls"):$(grep -c update <<<"$calls")" = 2:1 ]
check 'the error shows the output of apt-get' grep -q '^  E: broken$' <<<"$said"
run BROKEN=1 UPDATE=100 "$install" build
check 'a missing network gives one error' one_error 'is there a network'
run STALE=1 UPDATE=100 "$install" build
check 'a failed update of another source does not matter' [ "$status" = 0 ]

stand_in id 'echo 1000'
run "$install" build
check 'without root and sudo, install fails with one error' one_error 'no sudo.*apt-get install bison'
check 'without root and sudo, install does not run apt-get' sh -c '! grep -q apt-get' <<<"$calls"
stand_in sudo 'exit 1'
run "$install" build
check 'sudo that needs a password without a terminal gives one error' one_error 'password.*apt-get install bison'
# shellcheck disable=SC2016
stand_in sudo '[ "$1" != -n ] || shift; "$@"'
run "$install" build
check 'install uses a working sudo' grep -q '^sudo env .* apt-get -y .*install bison$' <<<"$calls"
run "$install" nosuch
check 'an unknown group gives one error' one_error "no group 'nosuch'; groups are: build package vm image test workloads ppc64le lint arm64 upstream"

check_empty 'each line of a list has package, group and reason' \
	"$(awk -v groups=" ${groups[*]} " \
		'!/^#/ && NF {
			known = split($2, names, ",")
			for (i in names) known -= index(groups, " " names[i] " ") > 0
			if (NF < 3 || known) print FILENAME ": " $0
		}' \
		packaging/build-deps/*.list)"
check_empty 'no package is listed twice' \
	"$(for list in packaging/build-deps/*.list; do
		awk '!/^#/ && NF { print FILENAME ": " $1 }' "$list" | sort | uniq -d
	done)"
done_testing
