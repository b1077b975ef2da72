# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# The package manager of an RPM host.

# shellcheck disable=SC2034 # lib.sh and the steps use it
image=kernel-faultline$META
packages=("$image" faultline-profiles)
[ "$PERF" = no ] || packages+=("$image-tools")

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

install_selftests() {
	dnf -y install "$image-selftests-$VERSION1"
}

upgrade() {
	dnf -y --refresh upgrade
}

upgrade_differently() {
	upgrade
}

# --- The calls of kernel-install: each may make an initial RAM file system, which is slow

recorders=(/etc/kernel/install.d/45-test.install)

record_calls() {
	mkdir -p /etc/kernel/install.d
	# shellcheck disable=SC2016 # for the plugin
	printf '#!/bin/sh\necho "$1 $2" >>%s\n' "$calls" >"${recorders[0]}"
	chmod +x "${recorders[0]}"
}

calls_are_of_installation() {
	calls_are "add $1"
}

# --- Several builds side by side

# releases_are PACKAGE VERSION...: exactly these are installed.
releases_are() {
	diff <(printf '%s\n' "${@:2}") <(rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$1" | sort)
}

kernels_are() {
	local part
	for part in '' -core -modules; do
		releases_are "$image$part" "$@" || return 1
	done
}

next_packages=("/run/$image"{,-core,-modules}"-$VERSION3.$(uname -m).rpm")

download_third() {
	local file
	for file in "${next_packages[@]}"; do
		/usr/lib/apt/apt-helper download-file "$URL/next/${file##*/}" "$file" || return 1
	done
}

# No program on this host makes an initial RAM file system after kernel-install.
after_install() { :; }

# install_third OPTION...: dnf may keep two kernels only.
install_third() {
	dnf -y --setopt=installonly_limit=2 "$@" install "${next_packages[@]}"
}

# The second build runs.
while_second_runs() {
	check 'both builds are installed' kernels_are "$VERSION1" "$VERSION2"
	[ "$PERF" = no ] ||
		check 'tools of both builds are installed' releases_are "$image-tools" "$VERSION1" "$VERSION2"
	check 'a third kernel is downloaded' download_third
	install_third --assumeno >"$log" 2>&1
	sed -n '/^Removing/,$p' "$log" >"$log.part" && mv "$log.part" "$log"
	told 'a third kernel would replace the oldest' "$image-core .*${VERSION1//./\\.}[[:space:]]"
}

# The first build runs.
while_first_runs() {
	check 'a third kernel is downloaded' download_third
	check 'the third kernel is installed' install_third
	check 'the third kernel replaces the second, since the first is running' kernels_are "$VERSION1" "$VERSION3"
	check 'the boot entry of the third kernel is complete' bootable "$KVER3"
	check 'the boot entry of the second kernel is gone' test -z "$(entries_of "$KVER2")"
	check 'kernel-install is called once for each kernel' calls_are_sorted "add $KVER3" "remove $KVER2"
	check 'dnf undoes the installation of the third kernel' dnf -y history undo last
	check 'the second kernel is back, the third is not' kernels_are "$VERSION1" "$VERSION2"
	check 'the boot entry of the second kernel is complete' bootable "$KVER2"
	check 'nothing of the third kernel is left' absent "$KVER3"
	rm -f "$calls"

	check 'a kernel is installed in an image, without its modules' env KERNEL_INSTALL_BYPASS=yes \
		rpm --install --nosignature "${next_packages[1]}"
	check 'a kernel without modules gets no boot entry' test -z "$(entries_of "$KVER3")"
	check 'the modules are installed later' rpm --install --nosignature "${next_packages[2]}"
	check 'the installation of the modules calls kernel-install' calls_are "add $KVER3"
	check 'the boot entry is complete once the modules are there' bootable "$KVER3"
	check 'a kernel can be removed' dnf -y remove "$image-core-$VERSION3"
	check 'the removal calls kernel-install once' calls_are "remove $KVER3"
	check 'nothing of the removed kernel is left' absent "$KVER3"
	check 'the other kernels stay' kernels_are "$VERSION1" "$VERSION2"
}

# calls_are_sorted LINE...: exactly these calls, in any order.
calls_are_sorted() {
	local expected
	[ ! -e "$calls" ] || sort -o "$calls" "$calls"
	mapfile -t expected < <(printf '%s\n' "$@" | sort)
	calls_are "${expected[@]}"
}

after_removal() {
	check 'the removal calls kernel-install once for each kernel' calls_are_sorted "remove $KVER1" "remove $KVER2"
}

# Repeat what a power cut interrupted. rpm does not flush the files that it unpacks, so a package
# may be complete in its database but have empty files on disk: only rpm --verify shows that.
repair() {
	local kver=$1 version=$2
	dnf -y install "${packages[@]/%/-$version}" || return 1
	if ! intact "$version" || ! bootable "$kver"; then
		dnf -y reinstall "$image-core-$version" "$image-modules-$version" \
			"${packages[@]/%/-$version}"
	fi
}

intact() {
	rpm --verify "$image-core-$1" "$image-modules-$1" "${packages[@]/%/-$1}"
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
		dnf -y remove "$image-core-$VERSION1"
}

remove_all() {
	dnf -y --setopt=protect_running_kernel=0 remove 'kernel-faultline*' faultline-perf faultline-profiles
}

left() {
	rpm -qa '*faultline*' | grep -v '^faultline-debian-shim-'
}

kernel_image() {
	echo "/usr/lib/modules/$1/vmlinuz"
}

# kernel-install copies to /boot or, here, to /efi. rpm knows the sizes of the files in /boot.
small_places=(/boot /efi)

# says_full NAME PLACE
says_full() {
	if [ "$2" = /boot ]; then
		refused "$1" 'more space needed on the /boot' upgrade
		check 'nothing of the second build is installed' absent "$KVER2"
		return
	fi
	# rpm cannot roll back from %posttrans: dnf warns and reports success. The kernel is
	# installed, but not bootable.
	upgrade >"$log" 2>&1
	cp "$log" "$log.full"
	told "$1" 'no space left on device'
	check 'the error says what to do' grep -qF "run: dnf reinstall $image-core-$VERSION2" "$log.full"
	check 'the second build has no boot entry' test -z "$(entries_of "$KVER2")"
	check 'no incomplete kernel is left in /efi' test ! -e "/efi/$token/$KVER2"
}
