# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# The package manager of an RPM host.

# shellcheck disable=SC2034 # lib.sh and the steps use it
image=kernel-faultline
packages=(kernel-faultline kernel-faultline-tools faultline-profiles)

repository_add() {
	/usr/lib/apt/apt-helper download-file "$URL/good/rpm/faultline.repo" /etc/yum.repos.d/faultline.repo &&
		sed -i "s|^baseurl=.*|baseurl=$URL/good/rpm|; s|^gpgkey=.*|gpgkey=$URL/good/rpm/faultline.asc|" \
			/etc/yum.repos.d/faultline.repo &&
		dnf -y makecache
}

# with_repository KIND COMMAND...: runs dnf with only that repository.
with_repository() {
	local kind=$1 folder=/tmp/repos.$1
	shift
	mkdir -p "$folder"
	sed "s|$URL/good|$URL/$kind|" /etc/yum.repos.d/faultline.repo >"$folder/faultline.repo"
	dnf -y --setopt="reposdir=$folder" --setopt="cachedir=/tmp/cache.$kind" "$@"
}

refuse_repositories() {
	refused 'a repository without a signature is refused' 'repomd.xml.asc|signature' \
		with_repository unsigned makecache
	refused 'a repository with a changed list is refused' 'bad (gpg|pgp) signature|signature' \
		with_repository forged makecache
	refused 'a changed package is refused' 'checksum|signature|gpg check failed' \
		with_repository poisoned install "$image-$VERSION1"
	check 'nothing of the changed package is installed' absent "$KVER1"
}

refuse_foreign() {
	/usr/lib/apt/apt-helper download-file "$URL/foreign/foreign.rpm" /tmp/foreign.rpm >"$log" 2>&1
	refused 'a package for another architecture is refused' 'different architecture|not.*compatible|incompatible' \
		rpm --install --nodeps --nosignature /tmp/foreign.rpm
}

install_first() {
	dnf -y install "${packages[@]/%/-$VERSION1}"
}

upgrade() {
	dnf -y --refresh upgrade
}

# Repeat what a power cut interrupted. rpm does not flush the files that it unpacks, so a package
# may be complete in its database but have empty files on disk: only rpm --verify shows that.
repair() {
	local kver=$1 version=$2
	dnf -y install "${packages[@]/%/-$version}" || return 1
	if ! intact "$version" || ! bootable "$kver"; then
		dnf -y reinstall "kernel-faultline-core-$version" "kernel-faultline-modules-$version" \
			"${packages[@]/%/-$version}"
	fi
}

intact() {
	rpm --verify "kernel-faultline-core-$1" "kernel-faultline-modules-$1" "${packages[@]/%/-$1}"
}

repair_first() {
	repair "$KVER1" "$VERSION1"
}

repair_second() {
	repair "$KVER2" "$VERSION2"
}

sound() {
	dnf check && intact "${2:?}"
}

refuse_removal() {
	refused 'the running kernel is not removed without confirmation' 'protected|running kernel' \
		dnf -y remove "kernel-faultline-core-$VERSION1"
}

remove_all() {
	dnf -y --setopt=protect_running_kernel=0 remove 'kernel-faultline*' faultline-profiles
}

left() {
	rpm -qa '*faultline*' | grep -v '^faultline-debian-shim-'
}

kernel_image() {
	echo "/usr/lib/modules/$1/vmlinuz"
}

# The packages have no files in /boot; kernel-install copies to /efi.
small_places=(/efi)

# rpm cannot roll back from %posttrans: dnf warns and reports success. The kernel is installed,
# but not bootable.
says_full() {
	upgrade >"$log" 2>&1
	told "$1" 'no space left on device'
	check 'the second build has no boot entry' test -z "$(entries_of "$KVER2")"
}
