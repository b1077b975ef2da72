#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The Debian source package is complete, reproducible, and its kernel is the one
# in build/tree.  (Compiling it takes long and is tested by hand: see
# packaging/README.md.)
set -uo pipefail

# shellcheck source=tests/lib/tap.sh
. "$(dirname "$0")/../lib/tap.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=(tools/fl package deb-source)
like() { grep -qE -- "$2" <<<"$1" || { printf '%s\nis not like %s\n' "$1" "$2"; return 1; }; }

check 'the source package is made' "${source[@]}" "$work/one"
dsc=$(echo "$work"/one/*.dsc)
[ -e "$dsc" ] || done_testing
orig=$(echo "$work"/one/*.orig.tar.xz)
files() { sed -n '/^Checksums-Sha256:/,/^[^ ]/s/^ \([0-9a-f]*\) [0-9]* \(.*\)/\1  \2/p' "$dsc"; }
check 'the checksums in the .dsc are correct' bash -c "cd '$work/one' && sha256sum -c --strict" < <(files)
check_empty 'the .dsc lists all files' "$(diff <(files | sed 's/.*  //' | sort) \
	<(cd "$work/one" && printf '%s\n' *.tar.* | sort))"
check 'the kernel tarball is the pinned one, byte for byte' cmp "$orig" \
	<(dpkg-deb --fsys-tarfile "$BUILD/cache/$(sed -n 's/^file=//p' kernel/upstream)" |
		tar -x -O --wildcards '*/usr/src/linux-source-*.tar.xz')
check 'the source package is made again with another umask and time zone' \
	bash -c "umask 077; TZ=Pacific/Auckland ${source[*]} '$work/two'"
check 'both source packages are identical byte for byte' diff -r "$work/one" "$work/two"

# --- Unpacked, as far as our patches go

tree=$work/tree
mkdir "$tree"
tar -x -f "$work"/one/*.debian.tar.xz -C "$tree"
check 'the patches are overlay and queue, in order' diff "$tree/debian/patches/series" \
	<(echo overlay.patch; grep -v '^#' kernel/patches/series | grep .)
touched=$(sed -n 's|^--- a/||p; s|^+++ b/||p' "$tree"/debian/patches/{,*/}*.patch | sort -u)
old=$(for file in $touched; do [ -e "kernel/overlay/$file" ] || echo "$file"; done)
mv "$tree/debian" "$work/debian"
# Files made by a patch in the queue are not in the tarball.
members=()
for file in $old; do
	members+=("*/$file")
done
tar -x -f "$orig" -C "$tree" --strip-components=1 --wildcards --no-wildcards-match-slash \
	"${members[@]}" 2>/dev/null
# The same source package with only those files, which is quick for lintian.
small=$work/small
mkdir "$small"
tar -c -J -f "$small/${orig##*/}" -C "$work" tree
mv "$work/debian" "$tree/debian"
cp -a "$tree" "$small/tree"
lint() {
	(cd "$small" && dpkg-source -b tree) >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
	lintian --fail-on error,warning --allow-root "$small"/*.dsc
}
check 'lintian reports neither errors nor warnings' lint
check 'the source format is 3.0 (quilt)' grep -qx '3.0 (quilt)' "$tree/debian/source/format"
check 'the patches apply without fuzz' dpkg-source --before-build "$tree"
check_empty 'the patched files are those of build/tree' "$(for file in $touched; do
	git -C "$BUILD/tree" show "HEAD:$file" | cmp - "$tree/$file" 2>&1
done)"

rules() { make -s -C "$tree" -n -f debian/rules override_dh_auto_build 2>&1; }
check 'the rules build the flavour generic by default' like "$(rules)" "tools/fl stage 'generic'"
check 'debian/control has packages with debug information' grep -q '^Package: linux-image-.*-dbg$' \
	"$tree/debian/control"
check_empty 'the source package has the programs and files of this commit' "$(
	for file in $(our_files tools kernel/config kernel/patches sysctl 'rollout/bench/*.[ch]' rollout/stalls); do
		cmp "$file" "$tree/debian/faultline/$file"
	done 2>&1)"
check 'the source package has the base configuration' grep -q CONFIG_MODULES=y \
	"$tree"/debian/base-configs/config.amd64_none_amd64

# --- Errors

refused() {
	local before after said
	before=$(ls -lA "$work/one")
	said=$("${@:2}" 2>&1) && { echo 'it was accepted'; return 1; }
	after=$(ls -lA "$work/one")
	[ "$before" = "$after" ] || { echo 'it changed the folder'; return 1; }
	like "$said" "error: .*$1"
}
check 'an unknown flavour is refused' refused 'no flavour' "${source[@]}" --flavour nonsense "$work/one"
check 'a missing tarball is refused' refused 'no such file' \
	env UPSTREAM_TARBALL=/nonexistent.tar.xz "${source[@]}" "$work/one"
done_testing
