# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
#
# The package manager of a DEB host.

image=linux-image-faultline$META
packages=("$image" faultline-profiles)
# Patterns for remove_all; each has to match a package of the repository.
ours=('linux-image-*faultline*' 'linux-headers-*faultline*' 'linux-selftests-*faultline*' faultline-perf
	faultline-profiles)
if [ "$PERF" = yes ]; then
	packages+=("linux-tools-faultline$META")
	ours+=('linux-tools-*faultline*')
fi

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

install_selftests() {
	apt-get -y install "linux-selftests-$KVER1"
}

upgrade() {
	apt-get update && apt-get -y --with-new-pkgs upgrade
}

# linux-base before 4.12 does not run the hooks: then the packages do it.
upgrade_differently() {
	local status
	mv /usr/bin/linux-run-hooks /run/ || return 1
	upgrade
	status=$?
	mv /run/linux-run-hooks /usr/bin/
	return $status
}

# --- The hooks that dpkg runs for a kernel, and their arguments

recorders=(/etc/kernel/{preinst,postinst,prerm,postrm}.d/zz-test)

record_calls() {
	local file action
	for file in "${recorders[@]}"; do
		action=$(basename "${file%.d/*}")
		mkdir -p "${file%/*}"
		# shellcheck disable=SC2016 # for the hook
		printf '#!/bin/sh\necho "%s $* [$DEB_MAINT_PARAMS]" >>%s\n' "$action" "$calls" >"$file"
		chmod +x "$file"
	done
}

calls_are_of_installation() {
	calls_are "preinst $1 /boot/vmlinuz-$1 [install]" "postinst $1 /boot/vmlinuz-$1 [configure]"
}

# --- Two builds side by side

# links_are DEFAULT OLD: the links of loaders that know no versions.
links_are() {
	diff <(printf 'boot/vmlinuz-%s\n' "$@") <(readlink /vmlinuz /vmlinuz.old)
}

status_is() {
	diff <(echo "$2") <(dpkg-query -W -f '${db:Status-Status}\n' "linux-image-$1")
}

# The second build runs.
while_second_runs() {
	only_first_initrd
	check 'the links in / lead to the second build, then to the first' links_are "$KVER2" "$KVER1"
	check 'the first build is reinstalled' apt-get -y --reinstall install "linux-image-$KVER1"
	check 'the kernel hooks of a reinstallation see an upgrade' calls_are "preinst $KVER1 /boot/vmlinuz-$KVER1 [upgrade]" \
		"postrm $KVER1 /boot/vmlinuz-$KVER1 [upgrade]" "postinst $KVER1 /boot/vmlinuz-$KVER1 [configure]"
	check 'a reinstallation does not change the links in /' links_are "$KVER2" "$KVER1"
}

# The first build runs.
while_first_runs() {
	only_first_initrd
	check 'apt autoremove keeps the running and the newest kernel' autoremove_keeps
	check 'the second build is removed' apt-get -y remove "linux-image-$KVER2"
	check 'a removal calls the kernel hooks once' calls_are \
		"prerm $KVER2 /boot/vmlinuz-$KVER2 [remove]" "postrm $KVER2 /boot/vmlinuz-$KVER2 [remove]"
	check 'dpkg keeps the configuration state of the second build' status_is "$KVER2" config-files
	check 'the links in / lead to the first build' test "$(readlink /vmlinuz)" = "boot/vmlinuz-$KVER1"
	check 'the second build is installed again' apt-get -y install "$image"
	check 'the links in / lead to the second build again' links_are "$KVER2" "$KVER1"
	check 'the files in the boot entry of the second build exist' bootable "$KVER2"
	rm -f "$calls"
	# The removal of the first build takes its initial RAM file system along.
	unset INITRD
}

# apt knows kernels by the names of their packages: it keeps the running one and the newest. Here
# are some older and some newer ones, in a copy of the database.
autoremove_keeps() {
	local release upstream=${KVER1%%-*} folder=/run/apt removed
	mkdir -p $folder/lists/partial
	cp /var/lib/dpkg/status /var/lib/apt/extended_states $folder/
	for release in 0.1 0.2 9.1 9.2; do
		dpkg-query -s "linux-image-$KVER1" |
			sed "s/$KVER1/$upstream-faultline$release/g; s/^Version: .*/Version: $upstream-$release/"
		echo
		printf 'Package: linux-image-%s\nArchitecture: %s\nAuto-Installed: 1\n\n' \
			"$upstream-faultline$release" "$(dpkg --print-architecture)" >>$folder/extended_states
	done >>$folder/status
	apt-get -s -o Dir::State=$folder -o Dir::State::status=$folder/status autoremove >$folder/log || return 1
	removed=$(sed -n 's/^Remv linux-image-\([^ ]*\) .*/\1/p' $folder/log)
	echo "removed: $removed"
	for release in 0.1 0.2; do
		grep -qxF "$upstream-faultline$release" <<<"$removed" || return 1
	done
	! grep -qxF -e "$KVER1" -e "$upstream-faultline9.2" <<<"$removed"
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

# linux-base asks; without a terminal the answer is "no". With the noninteractive frontend it
# would remove the kernel without asking.
refuse_removal() {
	refused 'automation does not remove the running kernel' 'set FAULTLINE_REMOVE_RUNNING=1' \
		env DEBIAN_FRONTEND=noninteractive apt-get -y purge "linux-image-$(uname -r)" "$image"
	check 'apt repairs the refused removal' apt-get -y -f install
	refused 'the running kernel is not removed without confirmation' 'Aborting removal of the running kernel' \
		env -u DEBIAN_FRONTEND apt-get -y purge "linux-image-$(uname -r)" "$image"
}

remove_all() {
	FAULTLINE_REMOVE_RUNNING=1 apt-get -y purge "${ours[@]}"
}

after_install() {
	check 'the boot entry has an initial RAM file system' grep -q ^initrd "$(entries_of "$KVER1")"
}

after_removal() {
	told 'dpkg warns of the removal of the running kernel' 'W: Removing the running kernel'
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
