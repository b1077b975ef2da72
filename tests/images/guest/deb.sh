# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# The package manager of a DEB host.

image=linux-image-faultline
packages=(linux-image-faultline linux-tools-faultline faultline-profiles)

# Add the repository to apt's sources.
repository_add() {
	/usr/lib/apt/apt-helper download-file "$URL/good/deb/faultline.sources" \
		/etc/apt/sources.list.d/faultline.sources || return 1
	sed -i "s|^URIs:.*|URIs: $URL/good/deb|" /etc/apt/sources.list.d/faultline.sources
	apt-get update
}

# with_repository KIND COMMAND...: runs apt-get with only that repository.
with_repository() {
	local kind=$1 lists=/tmp/lists.$1
	shift
	mkdir -p "$lists/partial"
	sed "s|^URIs:.*|URIs: $URL/$kind/deb|" /etc/apt/sources.list.d/faultline.sources >"/tmp/$kind.sources"
	local options=(-o "Dir::State::Lists=$lists" -o Dir::Etc::SourceList="/tmp/$kind.sources"
		-o Dir::Etc::SourceParts=/dev/null)
	apt-get "${options[@]}" "$@"
}

refuse_repositories() {
	refused 'a repository without a signature is refused' 'not signed|no longer signed' \
		with_repository unsigned update
	refused 'a repository with a changed list is refused' 'BADSIG|signature verification failed' \
		with_repository forged update -o APT::Update::Error-Mode=any
	check 'the lists of a repository with a changed package are valid' with_repository poisoned update
	refused 'a changed package is refused' 'Hash Sum mismatch|unexpected size' \
		with_repository poisoned -y --no-install-recommends install "$image=$VERSION1"
	check 'nothing of the changed package is installed' absent "$KVER1"
}

refuse_foreign() {
	/usr/lib/apt/apt-helper download-file "$URL/foreign/foreign.deb" /tmp/foreign.deb >"$log" 2>&1
	refused 'a package for another architecture is refused' \
		'does not match system|not installable|unable to locate|wrong|impossible|unsatisf' \
		dpkg --install /tmp/foreign.deb
}

install_first() {
	apt-get -y install "${packages[@]/%/=$VERSION1}"
}

upgrade() {
	apt-get update && apt-get -y --with-new-pkgs upgrade
}

# The commands that apt suggests. The first one fails if a package is unpacked but one of its
# dependencies is not; the second one fixes that.
mend() {
	dpkg --configure -a
	apt-get -y --fix-broken install
}

repair_first() {
	mend && install_first
}

repair_second() {
	mend && upgrade
}

# All our installed packages are intact.
sound() {
	local broken
	dpkg --audit
	broken=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | grep -v '^ii ' | grep -v '^rc ')
	[ -z "$(dpkg --audit)$broken" ] || {
		echo "$broken"
		return 1
	}
	dpkg --verify "linux-image-$1" faultline-profiles
}

# linux-base asks; without a terminal the answer is no. With the noninteractive frontend it
# removes the kernel without asking.
refuse_removal() {
	refused 'the running kernel is not removed without confirmation' 'Aborting removal of the running kernel' \
		env -u DEBIAN_FRONTEND apt-get -y purge "linux-image-$(uname -r)" linux-image-faultline
}

remove_all() {
	apt-get -y purge 'linux-image-*faultline*' 'linux-headers-*faultline*' 'linux-tools-*faultline*' \
		faultline-profiles
}

left() {
	dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' '*faultline*' 2>/dev/null
}

kernel_image() {
	echo "/boot/vmlinuz-$1"
}

# dpkg unpacks to /boot, kernel-install copies to /efi.
# shellcheck disable=SC2034
small_places=(/boot /efi)

says_full() {
	refused "$1" 'no space left on device' repair_second
}
