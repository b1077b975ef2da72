#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# A repository for several architectures, as seen by apt and dnf of each: both run in
# private roots, from file:// URLs, with small packages made here.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
. "$TOP/tests/lib/repository.sh"

# package FOLDER NAME VERSION ARCH: a .deb of a kernel's source package.
package() {
	local tree=$tmp/tree
	rm -rf "$tree"
	mkdir -p "$tree/DEBIAN" "$1"
	printf '%s\n' "Package: $2" "Version: $3" 'Source: linux-faultline' "Architecture: $4" \
		'Maintainer: Nobody <nobody@faultline.invalid>' 'Description: test' >"$tree/DEBIAN/control"
	dpkg-deb --root-owner-group --build "$tree" "$1" >/dev/null
}
# compiled FOLDER VERSION ARCH: an .rpm for one architecture.
compiled() {
	mkdir -p "$1"
	printf '%s\n' 'Name: kernel-faultline' "Version: $2" 'Release: 1' 'Summary: test' \
		'License: GPL-2.0-only' '%description' 'test' '%install' \
		'mkdir -p %{buildroot}/usr/share/kernel-faultline' \
		'echo %{_target_cpu} >%{buildroot}/usr/share/kernel-faultline/arch' \
		'%files' '/usr/share/kernel-faultline' >"$tmp/compiled.spec"
	rpmbuild --quiet -bb --target "$3-linux" --define "_topdir $tmp/rpmbuild" --define "_rpmdir $1" \
		--define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' "$tmp/compiled.spec" >/dev/null 2>&1
}
for each in amd64:x86_64 arm64:aarch64; do
	package "$tmp/${each%:*}" linux-image-faultline 6.12.2-1 "${each%:*}" &&
		package "$tmp/${each%:*}" faultline-profiles 6.12.2-1 all &&
		compiled "$tmp/${each%:*}" 6.12.2 "${each#*:}" || exit
done
# The same file, whichever build it is from.
cp -p "$tmp"/amd64/faultline-profiles_*.deb "$tmp/arm64/" || exit
# One architecture may be behind the other.
package "$tmp/amd64-next" linux-image-faultline 6.12.3-1 amd64 || exit
dist=$repo/deb/dists/stable/main
publish() { "${make_repo[@]}" --out "$repo" "$@"; }

# as DEBIAN COMMAND...: apt on a host of this architecture, which has only that one.
as() {
	local of=$1 command=$2
	shift 2
	apt_in "$tmp/apt-$of" "$repo/deb/faultline.sources" "$command" \
		-o APT::Architecture="$of" -o APT::Architectures="$of" "$@"
}
# dnf_as RPM COMMAND...: dnf on a host of this architecture.
dnf_as() {
	local of=$1
	shift
	dnf_in "$tmp/root-$of" "$repo/rpm/faultline.repo" --forcearch "$of" "$@"
}

check 'a repository of one architecture is made' publish --deb "$tmp/amd64" --rpm "$tmp/amd64" --url "file://$repo"
check 'faultline.sources names it' grep -qx 'Architectures: amd64' "$repo/deb/faultline.sources"
check 'another architecture is added' publish --deb "$tmp/arm64" --rpm "$tmp/arm64"
check 'Release names both' grep -qx 'Architectures: amd64 arm64' "$repo/deb/dists/stable/Release"
check 'with both, faultline.sources leaves the choice to the host' refuses '' grep '^Architectures:' "$repo/deb/faultline.sources"
check 'the packages for all architectures are there once' [ "$(find "$repo/deb/pool" -name 'faultline-profiles_*' | wc -l)" = 1 ]
for each in amd64:x86_64 arm64:aarch64; do
	debian=${each%:*} rpm=${each#*:}
	check "$debian: apt accepts the repository" as "$debian" apt-get -q update
	check_empty "$debian: apt has read the lists of no other architecture" \
		"$(find "$tmp/apt-$debian/lists" -name '*binary-*' | grep -v "binary-$debian")"
	check "$debian: apt fetches the kernel" as "$debian" apt-get -q download linux-image-faultline
	check "$debian: apt fetched its own" cmp "$tmp/apt-$debian/linux-image-faultline_6.12.2-1_$debian.deb" \
		"$tmp/$debian/linux-image-faultline_6.12.2-1_$debian.deb"
	check "$debian: apt sees the packages for all architectures" has '6\.12\.2-1 ' \
		as "$debian" apt-cache madison faultline-profiles
	check "$rpm: dnf installs the kernel" dnf_as "$rpm" install kernel-faultline
	check "$rpm: dnf installed its own" grep -qx "$rpm" "$tmp/root-$rpm/usr/share/kernel-faultline/arch"
done

# --- A share of hosts, while one architecture has no newest kernel yet

phased() { grep -c '^Phased-Update-Percentage: 10$' "$dist/binary-$1/Packages"; }
check 'the newest kernel, of one architecture, is for a tenth of the hosts' publish --deb "$tmp/amd64-next" --phase 10
check 'the newest kernel is phased' [ "$(phased amd64)" = 1 ]
check 'the older kernel of the other architecture is not' [ "$(phased arm64)" = 0 ]
check 'the next run' publish
check 'the share of the newest kernel stays' [ "$(phased amd64) $(phased arm64)" = '1 0' ]
done_testing
