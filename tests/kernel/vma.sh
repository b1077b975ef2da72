#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# mm/vma.c in user space: the tests in tools/testing/vma, including the munmap
# mark.
set -euo pipefail
. "$(dirname "$0")/../lib/tap.sh"

# The harness writes to its own folder, and the tree must stay clean: copy the two
# folders that are compiled, and link everything they refer to.
tree=$BUILD/tree
copy=$BUILD/vma
rm -rf "$copy"
mkdir -p "$copy/tools/testing"
for name in include lib mm; do
	ln -s "$tree/$name" "$copy/$name"
done
for name in "$tree"/tools/*; do
	[ "${name##*/}" = testing ] || ln -s "$name" "$copy/tools/"
done
for name in "$tree"/tools/testing/*; do
	case ${name##*/} in
	vma | shared) cp -r "$name" "$copy/tools/testing/" ;;
	*) ln -s "$name" "$copy/tools/testing/" ;;
	esac
done

vma() {
	make -C "$copy/tools/testing/vma" >"$BUILD/log/vma.log" 2>&1 || {
		grep -E 'error:|undefined reference' "$BUILD/log/vma.log"
		return 1
	}
	"$copy/tools/testing/vma/vma"
}

mkdir -p "$BUILD/log"
check "tools/testing/vma builds and all its tests pass" vma
check "the tests of the munmap mark are included" \
	grep -q munmap_mark "$copy/tools/testing/vma/vma.c"
done_testing
