#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Build an RPM that declares the programs of a Debian system to rpm and dnf.
#
#   tests/package/shim/build.sh OUTDIR [ROOT]
#
# Our tests cannot download Fedora, but Debian has rpm and dnf.  With this package
# in their database they install our packages on Debian.  It provides the entries
# of ./capabilities that exist in ROOT (by default /) and the shared libraries
# there, and nothing else, so that unmet dependencies are still detected.  For
# tests only.
set -euo pipefail

die() {
	printf 'shim: error: %s\n' "$1" >&2
	exit 1
}

[ $# -eq 1 ] || [ $# -eq 2 ] || die 'usage: tests/package/shim/build.sh OUTDIR [ROOT]'
here=$(dirname "$(readlink -f "$0")")
out=$1
root=$(realpath -m "${2:-/}")
[ -e "$root/bin/sh" ] || [ -L "$root/bin/sh" ] || die "${2:-/} has no /bin/sh: name the root of an installed system"
command -v rpmbuild >/dev/null || die "rpmbuild is not installed: run 'make deps'"

mkdir -p "$out"
work=$(mktemp -d "$out/.shim-XXXXXX")
trap 'rm -rf "$work"' EXIT

{
	cat <<-'SPEC'
	Name: faultline-debian-shim
	Version: 1
	Release: 1
	Summary: Capabilities of a Debian system for rpm
	License: GPL-2.0-only
	BuildArch: noarch
	SPEC
	while read -r capability file; do
		case $capability in '' | '#'*) continue ;; esac
		# A link may be absolute, so do not check its target.
		if [ -e "$root$file" ] || [ -L "$root$file" ]; then
			echo "Provides: ${capability/=/ = }"
		fi
	done <"$here/capabilities"
	find -L "$root"/lib/*-linux-gnu "$root"/usr/lib/*-linux-gnu -maxdepth 1 -name '*.so.*' -type f \
		-exec /usr/lib/rpm/elfdeps --provides {} + 2>/dev/null | sort -u | sed 's/^/Provides: /'
	cat <<-'SPEC'

	%description
	For tests on a Debian with rpm and dnf.

	%files
	SPEC
} >"$work/shim.spec"

env -i PATH="$PATH" HOME="$work" LC_ALL=C rpmbuild -bb --quiet --define "_topdir $work" \
	--define "_rpmdir $work" --define '_rpmfilename %%{NAME}.noarch.rpm' \
	"$work/shim.spec" >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	die 'rpmbuild failed: fix the errors above'
}
mv "$work/faultline-debian-shim.noarch.rpm" "$out/"
