#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/fl configure: an option that does not take effect is an error, and
# the old .config is kept.  Uses the real tree with private fragments and O=.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

tree=$BUILD/tree
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/build" "$tmp/kernel"
ln -s "$tree" "$tmp/build/tree"
cp -r kernel/config "$tmp/kernel/config"
export BUILD=$tmp/build FAULTLINE_KERNEL_DIR=$tmp/kernel
config=$BUILD/microvm-off/.config
fragment=$tmp/kernel/config/flavour-microvm.config

configure() {
	tools/fl configure "$@" 2>&1
}

# refused NAME PATTERN... -- FLAVOUR: one error line that matches all patterns,
# and the old .config is unchanged.
refused() {
	local name=$1 out status pattern before
	shift
	before=$(stat -c %Y%i "$config" 2>/dev/null)
	out=$(configure "${@: -1}")
	status=$?
	for pattern in "${@:1:$#-2}"; do
		grep -q -- "configure: error: .*$pattern" <<<"$out" || status=0
	done
	if [ $status -eq 1 ] && [ "$(grep -c error: <<<"$out")" -eq 1 ] &&
		[ "$(stat -c %Y%i "$config" 2>/dev/null)" = "$before" ]; then
		ok "$name"
	else
		not_ok "$name" <<<"status $status, output: $out"
	fi
}

# with LINE...: adds these lines to the fragment.
with() {
	cp kernel/config/flavour-microvm.config "$fragment"
	printf '%s\n' "$@" >>"$fragment"
}

check 'a flavour is configured' configure microvm-off
check 'the result has the requested options' grep -qx CONFIG_TRANSPARENT_HUGEPAGE=y "$config"
check 'the result has none of our options' sh -c "! grep -q '^CONFIG_FAULTLINE=' '$config'"

before=$(stat -c %y%i "$config")
touch "$fragment"
check 'configuring again succeeds' configure microvm-off
check 'configuring again leaves .config alone' [ "$(stat -c %y%i "$config")" = "$before" ]

# As if the package were installed or upgraded after the first build.
mkdir "$tmp/bin"
printf '#!/bin/sh\necho v9.87\n' >"$tmp/bin/pahole"
chmod +x "$tmp/bin/pahole"
check 'configuring with another pahole succeeds' env PATH="$tmp/bin:$PATH" tools/fl configure microvm-off
check 'another pahole regenerates .config' grep -qx CONFIG_PAHOLE_VERSION=987 "$config"
before=$(stat -c %y%i "$config")
check 'configuring again with that pahole succeeds' env PATH="$tmp/bin:$PATH" tools/fl configure microvm-off
check 'the same pahole leaves .config alone' [ "$(stat -c %y%i "$config")" = "$before" ]

with CONFIG_NFS_FS=y
refused 'a missing dependency' 'flavour-microvm.config:[0-9]*: CONFIG_NFS_FS ' 'wanted y, got n' -- microvm-off
with '# CONFIG_MMU is not set'
refused 'an option that cannot be switched off' 'CONFIG_MMU .*wanted n, got y' -- microvm-off
with CONFIG_NO_SUCH_OPTION=y
refused 'an unknown option' 'CONFIG_NO_SUCH_OPTION' 'no Kconfig file' -- microvm-off
with CONFIG_SMP=y
refused 'an option set twice in a fragment' 'CONFIG_SMP is already set in line [0-9]' -- microvm-off
with CONFIG_WERROR
refused 'a malformed line' 'flavour-microvm.config:[0-9]*: write' -- microvm-off
with '#CONFIG_DEBUG_VM is not set'
refused 'a malformed request that looks like a comment' 'flavour-microvm.config:[0-9]*: write' -- microvm-off
with
refused 'an unknown flavour' "no flavour 'nosuch'" 'microvm-debug' -- nosuch

rm "$tmp/build/tree"
refused 'a missing kernel tree' "run 'make tree'" -- microvm-off
ln -s "$tree" "$tmp/build/tree"

sed -i 's/^CONFIG_DEBUG_LIST=y$/&\nCONFIG_NR_CPUS=32/' "$tmp/kernel/config/debug.config"
check 'a later fragment wins' configure microvm-debug
check 'the value of the later fragment is in .config' grep -qx CONFIG_NR_CPUS=32 "$BUILD/microvm-debug/.config"
check 'KASAN is really on' grep -qx CONFIG_KASAN_INLINE=y "$BUILD/microvm-debug/.config"
done_testing
