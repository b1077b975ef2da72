#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The guarantees of a repository over time, as seen by apt and dnf: its
# last day, the next key, phased upgrades, and the documents beside it.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
. "$TOP/tests/lib/repository.sh"

dist=$repo/deb/dists/stable
url=file://$repo

# own_key NAME: makes a key in the owner's folder; prints its fingerprint.
owner=$tmp/owner
mkdir -m 700 "$owner"
own_key() {
	gpg --homedir "$owner" --batch --quiet --passphrase '' --quick-generate-key "$1" rsa2048 sign never 2>/dev/null
	gpg --homedir "$owner" --with-colons --list-keys "=$1" 2>/dev/null | sed -n 's/^fpr:*\([0-9A-F]*\):/\1/p'
}
first=$(own_key First) && second=$(own_key Second) && third=$(own_key Third) || exit
publish() { "${make_repo[@]}" --out "$repo" --gnupghome "$owner" "$@"; }

# kernel FOLDER NUMBER [TEXT]: makes the packages of release NUMBER of a kernel.
kernel() {
	local tree=$tmp/tree kver=6.12.$2-faultline1.test doc
	for name in "linux-image-$kver" linux-image-faultline-test; do
		rm -rf "$tree"
		doc=$tree/usr/share/doc/$name
		mkdir -p "$tree/DEBIAN" "$doc" "$1"
		printf '%s\n' "Package: $name" "Version: 6.12.$2-1" 'Source: linux-faultline' "Architecture: $arch" \
			'Maintainer: Nobody <nobody@faultline.invalid>' 'Description: test' >"$tree/DEBIAN/control"
		case $name in
		*-faultline-test) printf 'Depends: linux-image-%s\n' "$kver" >>"$tree/DEBIAN/control" ;;
		*) printf '{"name": "%s"}\n' "${3:-$kver}" | gzip -n >"$doc/sbom.spdx.json.gz" ;;
		esac
		dpkg-deb --root-owner-group --build "$tree" "$1" >/dev/null || return
	done
	cat >"$tmp/kernel.spec" <<-SPEC
		Name: kernel-faultline-test-core
		Version: 6.12.$2
		Release: 1
		Summary: test
		License: GPL-2.0-only
		BuildArch: noarch
		%description
		test
		%install
		mkdir -p %{buildroot}/usr/share/doc/%{name}/$kver
		echo '{"name": "$kver"}' >%{buildroot}/usr/share/doc/%{name}/$kver/sbom.spdx.json
		%files
		/usr/share/doc/%{name}
	SPEC
	rpmbuild --quiet -bb --define "_topdir $tmp/rpmbuild" --define "_rpmdir $1" \
		--define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' "$tmp/kernel.spec"
}
deb "$tmp/deb1" 1.0-1 && deb "$tmp/deb2" 1.1-1 && rpm_package "$tmp/rpm1" 1.0 && rpm_package "$tmp/rpm2" 1.1 &&
	kernel "$tmp/kernel1" 1 && kernel "$tmp/kernel2" 2 &&
	kernel "$tmp/kernel2x" 2 other || exit

# wrong NAME REGEX ARG...: refused in one line, with nothing changed.
wrong() {
	local name=$1 regex=$2 text status=0 before
	shift 2
	before=$(find "$repo" -type f -exec sha256sum {} + | sort)
	text=$(publish "$@" 2>&1 >/dev/null) || status=$?
	if [ $status -eq 1 ] && grep -qxE "fl package make-repo: error: .*($regex).*" <<<"$text" &&
		[ "$(wc -l <<<"$text")" = 1 ] && [ "$before" = "$(find "$repo" -type f -exec sha256sum {} + | sort)" ]; then
		ok "refused: $name"
	else
		not_ok "refused: $name" <<<"status $status: $text"
	fi
}

# --- The last day

# later DAYS: apt on a fresh host, with the clock that many days ahead.
later() {
	rm -rf "$tmp/apt"
	apt_in "$tmp/apt" "$repo/deb/faultline.sources" faketime -f "+$1d" apt-get -q update
}
publish --key "$first" --deb "$tmp/deb1" --rpm "$tmp/rpm1" --url "$url" >/dev/null
check_empty 'a repository has no last day by default' "$(grep Valid-Until "$dist/InRelease")"
check 'apt accepts a repository without a last day a year later' later 365
check 'the repository is given a last day' publish --key "$first" --valid-days 7
check 'apt accepts the repository before its last day' later 6
check 'apt refuses a frozen mirror after its last day' refuses 'is expired' later 8
rm -rf "$repo"
SOURCE_DATE_EPOCH=$(($(date +%s) - 3 * 86400)) publish --key "$first" --deb "$tmp/deb1" --rpm "$tmp/rpm1" --url "$url" \
	--valid-days 7 >/dev/null
check 'the days count from the date of the metadata' refuses 'is expired' later 5
check 'make-repo without packages renews the last day' publish --key "$first"
check 'apt accepts the renewed repository' later 5
check 'make-repo keeps the number of days' refuses 'is expired' later 8
check 'make-repo accepts --valid-days 0' publish --key "$first" --valid-days 0
check_empty '--valid-days 0 removes the last day' "$(grep Valid-Until "$dist/InRelease")"
wrong 'days that are not a number' '--valid-days soon: give a number' --key "$first" --valid-days soon
SOURCE_DATE_EPOCH=1700000000 wrong 'a last day that is already over' 'unset it' --key "$first" --valid-days 7 \
	--out "$tmp/over" --deb "$tmp/deb1"

# --- Packages with the keys

# packages: their file names, without the folder.
packages() { find "$repo" -name 'faultline-archive-keyring_*.deb' -o -name 'faultline-release-*.rpm' | sed 's|.*/||' | sort; }
before=$(packages)
check 'each format has a package with the keys' [ "$(wc -l <<<"$before")" = 2 ]
publish --key "$first" --deb "$tmp/deb2" >/dev/null
check 'packages with the keys stay as long as their contents do' [ "$before" = "$(packages)" ]
publish --key "$first" --fresh --deb "$tmp/deb1" --rpm "$tmp/rpm1" >/dev/null
check '--fresh does not drop the packages with the keys' [ "$before" = "$(packages)" ]
for copy in a b; do
	SOURCE_DATE_EPOCH=1700000000 "${make_repo[@]}" --gnupghome "$owner" --key "$first" --out "$tmp/copy-$copy" \
		--deb "$tmp/deb1" --rpm "$tmp/rpm1" --url "$url" >/dev/null
done
same() {
	cmp "$tmp"/copy-{a,b}/deb/pool/faultline-archive-keyring_20231114.221320_all.deb || return
	local copy
	for copy in a b; do
		rpm -qp --nosignature --qf '%{SHA256HEADER}\n' "$tmp/copy-$copy"/rpm/Packages/faultline-release-20231114.221320-1.noarch.rpm
	done >"$tmp/headers"
	[ "$(wc -l <"$tmp/headers")" = 2 ] && [ "$(sort -u "$tmp/headers" | wc -l)" = 1 ]
}
check 'packages with the same date and contents are identical' same
SOURCE_DATE_EPOCH=1600000000 "${make_repo[@]}" --gnupghome "$owner" --key "$first" --out "$tmp/copy-a" --url "$url/moved" >/dev/null
check 'another address raises the .deb version, even with an older date' \
	[ -f "$tmp/copy-a/deb/pool/faultline-archive-keyring_20231114.221321_all.deb" ]
check 'another address raises the .rpm version, even with an older date' \
	[ -f "$tmp/copy-a/rpm/Packages/faultline-release-20231114.221321-1.noarch.rpm" ]
check 'a repository without an address has no packages with the keys' has 'no packages with the keys' \
	"${make_repo[@]}" --gnupghome "$owner" --key "$first" --out "$tmp/nowhere" --deb "$tmp/deb1"

# new_host NAME: a host with the two files that administrators distribute.
new_host() {
	local root=$tmp/hosts/$1
	mkdir -p "$root/etc/apt/sources.list.d" "$root/etc/yum.repos.d"
	cp "$repo/deb/faultline.sources" "$root/etc/apt/sources.list.d/"
	cp "$repo/rpm/faultline.repo" "$root/etc/yum.repos.d/"
}
apt_update() { host_apt "$1" apt-get -q update; }
apt_install() { apt_update "$1" && host_apt "$1" apt-get -q -y install "${@:2}"; }
for host in here offline; do
	new_host $host
	check "$host: apt installs the keys" apt_install $host faultline-archive-keyring
	check "$host: dnf installs the keys" host_dnf $host install faultline-release
done
sources=$tmp/hosts/here/etc/apt/sources.list.d/faultline.sources
check 'the package replaces faultline.sources' grep -qx 'Signed-By: /usr/share/keyrings/faultline-archive-keyring.asc' "$sources"
check 'the old faultline.sources is kept' cmp "$repo/deb/faultline.sources" "$sources.dpkg-old"
check 'apt accepts the repository with the new file' has '1\.0-1' eval \
	'apt_update here >/dev/null && host_apt here apt-get -qs install faultline-tiny'
check 'the package replaces faultline.repo' grep -qx 'gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-faultline' \
	"$tmp/hosts/here/etc/yum.repos.d/faultline.repo"
new_host mirror
sed -i 's|^URIs: .*|URIs: https://mirror.example/deb|' "$tmp/hosts/mirror/etc/apt/sources.list.d/faultline.sources"
sed -i 's|^baseurl=.*|baseurl=https://mirror.example/rpm|' "$tmp/hosts/mirror/etc/yum.repos.d/faultline.repo"
dpkg_mirror() {
	local root=$tmp/hosts/mirror
	mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} && touch "$root"/var/lib/dpkg/{status,available}
	"${as_root[@]}" dpkg --root="$root" --log=/dev/null --force-script-chrootless --force-confold \
		-i "$repo"/deb/pool/faultline-archive-keyring_*.deb
	"${as_root[@]}" rpm --root="$root" --nosignature -U "$repo"/rpm/Packages/faultline-release-*.rpm
}
check 'a host with another mirror installs the keys' dpkg_mirror
check 'the mirror address for apt stays' grep -qx 'URIs: https://mirror.example/deb' \
	"$tmp/hosts/mirror/etc/apt/sources.list.d/faultline.sources"
check 'the mirror address for dnf stays' grep -qx 'baseurl=https://mirror.example/rpm' \
	"$tmp/hosts/mirror/etc/yum.repos.d/faultline.repo"

# --- The next key

# asc FILE: the fingerprints in it, in one line.
asc() { gpg --homedir "$owner" --show-keys --with-colons "$1" 2>/dev/null | sed -n 's/^fpr:*\([0-9A-F]*\):/\1/p' | tr '\n' ' '; }
wrong 'a next key that is not there' 'no public key' --key "$first" --next-key 0123456789ABCDEF0123456789ABCDEF01234567
wrong 'the key that signs as the next one' 'signs now' --key "$first" --next-key "$first"
gpg --homedir "$owner" --batch --quiet --passphrase '' --quick-generate-key 'A curve' ed25519 sign never 2>/dev/null
wrong 'a next key that rpm of EL 8 does not support' 'not RSA' --key "$first" --next-key '=A curve'
check 'a next key is announced' publish --key "$first" --next-key "$second"
check 'the next key is behind the first in both formats' [ "$(asc "$repo/deb/faultline.asc")$(asc "$repo/rpm/faultline.asc")" = \
	"$first $second $first $second " ]
check 'the next key for rpm is in a block of its own' [ "$(grep -c 'BEGIN PGP' "$repo/rpm/faultline.asc")" = 2 ]
check 'the next key for apt is in the same block' [ "$(grep -c 'BEGIN PGP' "$repo/deb/faultline.sources")" = 1 ]
check 'the version of the packages rises' [ "$(packages | wc -l)" = 4 ]
before=$(packages)
publish --key "$first" >/dev/null
check 'the next key stays announced' [ "$(asc "$repo/deb/faultline.asc")" = "$first $second " ]
check 'the packages stay as well' [ "$before" = "$(packages)" ]
publish --key "$first" --next-key none >/dev/null
check 'the next key is forgotten on request' [ "$(asc "$repo/deb/faultline.asc")" = "$first " ]
publish --key "$first" --next-key "$second" >/dev/null
apt_upgrade() { apt_update "$1" && host_apt "$1" apt-get -q -y upgrade; }
check 'apt upgrades the keys' apt_upgrade here
check 'apt has both keys' [ "$(asc "$tmp/hosts/here/usr/share/keyrings/faultline-archive-keyring.asc")" = "$first $second " ]
check 'dnf upgrades the keys' host_dnf here upgrade
check 'dnf has both keys' [ "$(asc "$tmp/hosts/here/etc/pki/rpm-gpg/RPM-GPG-KEY-faultline")" = "$first $second " ]
new_host bystander
cp "$repo/deb/faultline.sources" "$tmp/both.sources"

check 'another key still needs --rekey' refuses '--rekey' publish --key "$second"
check '--rekey signs with the next key' publish --key "$second" --rekey "$first" --deb "$tmp/deb2" --rpm "$tmp/rpm2"
check '--rekey is done, and may be given again' publish --key "$second" --rekey "$first"
check 'only the new key is left' [ "$(asc "$repo/deb/faultline.asc")$(asc "$repo/rpm/faultline.asc")" = "$second $second " ]
check 'apt on the host with both keys upgrades' apt_upgrade here
check 'apt has the new key only' [ "$(asc "$tmp/hosts/here/usr/share/keyrings/faultline-archive-keyring.asc")" = "$second " ]
check 'apt with the new key installs packages' apt_install here faultline-tiny=1.1-1
check 'dnf on the host with both keys upgrades' host_dnf here upgrade
check 'dnf with the new key installs packages' host_dnf here install faultline-tiny-1.1
check 'a faultline.sources with both keys works as well' apt_fresh "$tmp/both.sources"
check 'an older faultline.repo works, as its key is in the repository' host_dnf bystander install faultline-tiny

check 'apt on the host that was offline keeps its state and says why' has "NO_PUBKEY ${second: -16}" apt_update offline
check 'apt on the host that was offline does not see the new version' refuses 'not found' host_apt offline apt-get -qs install faultline-tiny=1.1-1
check 'dnf on the host that was offline refuses the repository' refuses 'Bad GPG signature' host_dnf offline makecache
cp "$repo/deb/faultline.asc" "$tmp/hosts/offline/usr/share/keyrings/faultline-archive-keyring.asc"
check 'with faultline.asc in place apt works again' apt_install offline faultline-tiny
check 'with faultline.asc in place apt upgrades the keys' apt_upgrade offline
cp "$repo/rpm/faultline.asc" "$tmp/hosts/offline/etc/pki/rpm-gpg/RPM-GPG-KEY-faultline"
check 'with faultline.asc in place dnf works again' host_dnf offline upgrade
check 'the package upgrades both to the new key' [ "$(asc "$tmp/hosts/offline/usr/share/keyrings/faultline-archive-keyring.asc")$(
	asc "$tmp/hosts/offline/etc/pki/rpm-gpg/RPM-GPG-KEY-faultline")" = "$second $second " ]
publish --key "$second" --next-key "$third" >/dev/null
gpg --homedir "$owner" --batch --yes --delete-keys '=A curve' 2>/dev/null
check 'a next key can follow' [ "$(asc "$repo/deb/faultline.asc")" = "$second $third " ]

# --- unattended-upgrades

snippet=$tmp/hosts/here/usr/share/doc/faultline-archive-keyring/examples/52unattended-upgrades-faultline
check_empty 'the example for unattended-upgrades changes nothing as it is' "$(apt-config dump -c "$snippet" | grep Unattended)"
sed -n 's|^// \(Unattended-Upgrade::Origins\)|\1|p; s|^//\(\t"\)|\1|p; s|^// };|};|p' "$snippet" >"$tmp/origins"
pattern=$(apt-config dump -c "$tmp/origins" | sed -n 's/^Unattended-Upgrade::Origins-Pattern:: "\(.*\)";/\1/p')
matches() {
	local part
	[ -n "$pattern" ] || return
	for part in ${pattern//,/ }; do
		grep -qix "${part%%=*}: ${part#*=}" "$dist/InRelease" || { echo "no $part"; return 1; }
	done
}
check 'the example for unattended-upgrades without its slashes matches the repository' matches

# --- Phased upgrades

check 'a kernel is published' publish --key "$second" --deb "$tmp/kernel1" --rpm "$tmp/kernel1"
new_host fleet
check 'a host installs the kernel' apt_install fleet linux-image-faultline-test
# upgrades MACHINE [OPTION...]: whether apt would upgrade that machine.
upgrades() { has '^Inst linux-image-faultline-test' host_apt fleet apt-get -qs -o APT::Machine-ID="$(printf %032x "$1")" "${@:2}" dist-upgrade; }
# check_phased NAME COMMAND...: a check; skipped where apt knows no phases, as in a chroot.
check_phased() {
	if ischroot; then ok "$1" 'apt ignores phases in a chroot or mount namespace'; else check "$@"; fi
}
# share: the number of 30 machines that upgrade.
share() {
	local machine count=0
	for machine in $(seq 30); do
		if upgrades "$machine" >/dev/null; then count=$((count + 1)) && echo "$machine" >&3; fi
	done 3>"$tmp/chosen"
	echo $count
}
check 'the next kernel is for a third of the hosts' publish --key "$second" --deb "$tmp/kernel2" --rpm "$tmp/kernel2" --phase 33
apt_update fleet >/dev/null
count=$(share)
check_phased "apt upgrades some hosts, not all ($count of 30)" [ "$count" -ge 2 -a "$count" -le 20 ]
chosen=$(head -n 1 "$tmp/chosen")
other=$(seq 30 | grep -vxFf "$tmp/chosen" | head -n 1)
check 'a chosen host stays chosen' upgrades "$chosen"
check 'another host can ask for the kernel' upgrades "$other" -o APT::Get::Always-Include-Phased-Updates=true
check 'a chosen host can decline' refuses '' upgrades "$chosen" -o APT::Get::Never-Include-Phased-Updates=true
check 'only the newest kernel is phased' [ "$(grep -c '^Phased' "$dist/main/binary-$arch/Packages")" = 2 ]
cp "$tmp/chosen" "$tmp/chosen.before"
publish --key "$second" >/dev/null && apt_update fleet >/dev/null
check 'the share stays in the next run' upgrades "$chosen"
check_phased 'a host that was not chosen stays out in the next run' refuses '' upgrades "$other"
publish --key "$second" --phase 70 >/dev/null && apt_update fleet >/dev/null
count=$(share)
check "a larger share keeps the chosen hosts ($count of 30)" [ -z "$(grep -vxFf "$tmp/chosen" "$tmp/chosen.before")" ]
publish --key "$second" --phase 0 >/dev/null && apt_update fleet >/dev/null
check_phased 'at 0 percent no host upgrades' refuses '' upgrades "$chosen"
new_host newcomer
check 'a host without a kernel installs the newest all the same' has 'Inst linux-image-faultline-test \(6\.12\.2-1' \
	eval 'apt_update newcomer >/dev/null && host_apt newcomer apt-get -qs install linux-image-faultline-test'
publish --key "$second" --phase 100 >/dev/null && apt_update fleet >/dev/null
check 'at 100 percent all hosts upgrade' [ "$(share)" = 30 ]
wrong 'a share above 100' '--phase 101: give a number from 0 to 100' --key "$second" --phase 101

# --- SPDX

sbom=$repo/security/linux-image-6.12.1-faultline1.test_6.12.1-1_$arch.deb.spdx.json
check 'the bill of materials of a .deb kernel is beside the repository' grep -qx '{"name": "6.12.1-faultline1.test"}' "$sbom"
check 'the bill of materials of an .rpm kernel is beside the repository' grep -qx '{"name": "6.12.2-faultline1.test"}' "$repo/security/kernel-faultline-test-core-6.12.2-1.noarch.rpm.spdx.json"
sums() {
	gpg --homedir "$tmp/verify" --batch --verify "$repo"/security/SHA256SUMS{.asc,} 2>&1 &&
		(cd "$repo/security" && sha256sum --strict --quiet -c SHA256SUMS) &&
		[ "$(wc -l <"$repo/security/SHA256SUMS")" = "$(find "$repo/security" -name '*.json' | wc -l)" ]
}
mkdir -m 700 "$tmp/verify" && gpg --homedir "$tmp/verify" --batch --import "$repo/deb/faultline.asc" 2>/dev/null
check 'the signature covers all documents' sums
printf ' ' >>"$sbom"
check 'a changed document is found' refuses 'FAILED' sums
wrong 'to sign a changed document again' 'spdx\.json has changed' --key "$second"
rm "$sbom"
publish --key "$second" --fresh --deb "$tmp/kernel2" >/dev/null
check_empty 'documents of a kernel are removed with the kernel' "$(find "$repo/security" -name '*6.12.1*')"
publish --key "$second" --fresh --deb "$tmp/kernel2x" >/dev/null
check 'another package of the same name brings its own document' grep -qx '{"name": "other"}' "${sbom//6.12.1/6.12.2}"

# --- A key that was stolen

sed 's/^:-----/-----/' "$owner/openpgp-revocs.d/$second.rev" | gpg --homedir "$owner" --batch --quiet --import 2>/dev/null
wrong 'a state that a revoked key has signed' "$second.*is revoked.*in another folder" --key "$third" --rekey "$second"
gpgconf --homedir "$owner" --kill gpg-agent
gpgconf --homedir "$tmp/verify" --kill gpg-agent
done_testing
