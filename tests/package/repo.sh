#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# make-repo as seen by apt and dnf: both run in private roots, from
# file:// URLs, with small packages made here.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"
. "$TOP/tests/lib/repository.sh"

deb "$tmp/deb1" 1.0-1 && deb "$tmp/deb2" 1.0-1.2 && deb "$tmp/debx" 1.0-1 other &&
	rpm_package "$tmp/rpm1" 1.0 && rpm_package "$tmp/rpm2" 1.1 && rpm_package "$tmp/rpmx" 1.0 other &&
	dsc "$tmp/source" && mkdir "$tmp/forged.deb" && cp "$tmp/deb1"/*.deb "$tmp/forged.deb/forged_9_all.deb" || exit

# The state of a tree: names, modes, contents.
state() { (cd "$1" && find . -printf '%p %m\n' | sort && find . -type f -exec sha256sum {} + | sort); }

# Save and restore the good repository around each forgery.
keep() { rm -rf "$tmp/kept" && cp -a "$repo" "$tmp/kept"; }
restore() { rm -rf "$repo" && cp -a "$tmp/kept" "$repo"; }

# --- A repository with a throw-away key, and another version

check 'a repository is made without an owner'\''s key' has 'THROW-AWAY' "${make_repo[@]}" --out "$repo" \
	--deb "$tmp/deb1" --rpm "$tmp/rpm1" --url "file://$repo"
check 'faultline.sources and .repo warn about the throw-away key' grep -q 'THROW-AWAY' "$repo/deb/faultline.sources" "$repo/rpm/faultline.repo"
check 'apt accepts the new repository' apt_fresh
check 'apt sees the package' has '1\.0-1 ' apt_again apt-cache madison faultline-tiny
check 'dnf installs from the new repository' dnf_fresh
check 'dnf installed the package' grep -qx 1.0 "$tmp/root/usr/share/faultline-tiny/version"

indexes=$(cd "$repo/deb" && find dists -path '*by-hash*' -type f)
check 'a second version is added' "${make_repo[@]}" --out "$repo" --deb "$tmp/deb2" --deb "$tmp/source" --rpm "$tmp/rpm2"
check 'the URL is unchanged' grep -qx "URIs: file://$repo/deb" "$repo/deb/faultline.sources"
check 'apt updates its lists' apt_again apt-get -q update
both() {
	has '1\.0-1 ' apt_again apt-cache madison faultline-tiny &&
		has '1\.0-1\.2 ' apt_again apt-cache madison faultline-tiny
}
check 'apt sees both versions' both
check 'apt would install the newer version' has 'Candidate: 1\.0-1\.2' apt_again apt-cache policy faultline-tiny
printf '%s\n' 'Package: faultline-tiny' 'Pin: version 1.0-1' 'Pin-Priority: 1001' >"$tmp/preferences"
check 'a fleet can pin the older version' has 'Candidate: 1\.0-1$' \
	apt_again apt-cache -o Dir::Etc::Preferences="$tmp/preferences" policy faultline-tiny
check 'apt fetches the older version' apt_again apt-get -q download faultline-tiny=1.0-1
check 'apt fetched the package' cmp "$tmp/deb1/faultline-tiny_1.0-1_$arch.deb" "$tmp/apt/faultline-tiny_1.0-1_$arch.deb"
check 'apt fetches the source package' apt_again apt-get -q source --download-only faultline-tiny
check 'dnf sees both versions' has '1\.0-1' dnf_in "$tmp/root" "$repo/rpm/faultline.repo" --refresh list --showduplicates faultline-tiny
check 'dnf upgrades' dnf_in "$tmp/root" "$repo/rpm/faultline.repo" upgrade
check 'dnf has the newer version' grep -qx 1.1 "$tmp/root/usr/share/faultline-tiny/version"
check 'dnf downgrades' dnf_in "$tmp/root" "$repo/rpm/faultline.repo" downgrade faultline-tiny-1.0
check 'dnf has the older version' grep -qx 1.0 "$tmp/root/usr/share/faultline-tiny/version"
gone() {
	local index
	for index in $indexes; do
		[ -f "$repo/deb/$index" ] || printf '%s is gone\n' "$index"
	done
}
check 'the previous state has indexes by hash' [ -n "$indexes" ]
check_empty 'indexes of the previous state can still be fetched' "$(gone)"
check 'the repository has no secret key' bash -c "! grep -rlE 'PRIVATE KEY' '$repo'"
check_empty 'the repository is world-readable' "$(find "$repo" ! -perm -o=r; find "$repo" -type d ! -perm -o=x)"

# --- Without changes

# The indexes with the hashes of packages, without dates and signatures.
current() {
	cat "$repo/deb/dists/stable/main/binary-$arch/Packages"
	grep -o 'repodata/[^"/]*' "$repo/rpm/repodata/repomd.xml"
}
before=$(current)
check 'existing packages can be added again' "${make_repo[@]}" --out "$repo" --deb "$tmp/deb1" --rpm "$tmp/rpm1"
check 'no index changes' diff <(printf '%s\n' "$before") <(current)
for copy in a b; do
	SOURCE_DATE_EPOCH=1700000000 "${make_repo[@]}" --out "$tmp/epoch-$copy" --deb "$tmp/deb1" >/dev/null
done
check 'Release is the same for the same packages and SOURCE_DATE_EPOCH' \
	cmp "$tmp"/epoch-{a,b}/deb/dists/stable/Release
check 'Release has the date of SOURCE_DATE_EPOCH' grep -qx 'Date: Tue, 14 Nov 2023 22:13:20 GMT' "$tmp/epoch-a/deb/dists/stable/Release"
SOURCE_DATE_EPOCH=1600000000 "${make_repo[@]}" --out "$tmp/epoch-a" --deb "$tmp/deb2" >/dev/null
check 'Release never gets an older date, which apt would ignore' \
	grep -qx 'Date: Tue, 14 Nov 2023 22:13:20 GMT' "$tmp/epoch-a/deb/dists/stable/Release"

# --- apt refuses

dist=$repo/deb/dists/stable
other=$tmp/other-key
mkdir -m 700 "$other"
gpg --homedir "$other" --batch --quiet --passphrase '' --quick-generate-key 'Another key' rsa3072 sign never 2>/dev/null
other_print=$(gpg --homedir "$other" --with-colons --list-keys 2>/dev/null | sed -n 's/^fpr:*\([0-9A-F]*\):/\1/p')
gpg --homedir "$other" --batch --armor --export >"$tmp/other.asc" 2>/dev/null
{
	sed '/^Signed-By:/,$d' "$repo/deb/faultline.sources"
	printf 'Signed-By: %s\n' "$tmp/other.asc"
} >"$tmp/wrong.sources"
keep
check 'apt refuses a repository with another key' refuses 'not signed|NO_PUBKEY' apt_fresh "$tmp/wrong.sources"
rm "$dist/InRelease"
check 'apt accepts Release with Release.gpg as well' apt_fresh
rm "$dist/Release.gpg"
check 'apt refuses an unsigned Release' refuses 'not signed' apt_fresh
restore
sed -i 's/^Origin: Faultline/Origin: Someone/' "$dist/InRelease" && rm "$dist/Release" "$dist/Release.gpg"
check 'apt refuses a tampered InRelease' refuses 'BADSIG|not signed|invalid' apt_fresh
restore
# In place: the index by hash is the same file.
index=$dist/main/binary-$arch/Packages
text=$(sed 's/^Version: 1.0-1$/Version: 9.0-1/' "$index")
printf '%s\n\n' "$text" >"$tmp/forged" && xz -k "$tmp/forged"
cat "$tmp/forged" >"$index" && cat "$tmp/forged.xz" >"$index.xz"
check 'apt refuses tampered Packages' refuses 'unexpected size|Hash Sum mismatch' apt_fresh
restore
deb_file=$repo/deb/pool/faultline-tiny_1.0-1.2_$arch.deb
printf x | dd of="$deb_file" bs=1 seek=100 conv=notrunc status=none
apt_fresh "$repo/deb/faultline.sources" >/dev/null
check 'apt refuses a tampered .deb' refuses 'Hash Sum mismatch' apt_again apt-get -q download faultline-tiny
restore
check 'apt accepts the good repository again' apt_fresh

# --- dnf refuses

# Signs metadata of the current contents with the throw-away key.
resign() {
	createrepo_c --quiet --no-database "$repo/rpm"
	rm -f "$repo/rpm/repodata/repomd.xml.asc"
	gpg --homedir "$BUILD/keys/throw-away" --batch --armor --detach-sign "$repo/rpm/repodata/repomd.xml" 2>/dev/null
}
resign
check 'dnf accepts metadata signed by this test' dnf_fresh
cp "$tmp/rpm2"/*.rpm "$repo/rpm/Packages/" && resign
check 'dnf refuses an unsigned .rpm' refuses 'GPG check FAILED' dnf_fresh
restore
sed "s|^gpgkey=.*|gpgkey=file://$tmp/other.asc|" "$repo/rpm/faultline.repo" >"$tmp/wrong.repo"
check 'dnf refuses a repository with another key' refuses 'Bad GPG signature' dnf_fresh "$tmp/wrong.repo"
sed 's/^repo_gpgcheck=.*/repo_gpgcheck=0/' "$tmp/wrong.repo" >"$tmp/half.repo"
check 'dnf refuses packages signed with another key' refuses 'GPG check FAILED' dnf_fresh "$tmp/half.repo"
printf '<!-- -->\n' >>"$repo/rpm/repodata/repomd.xml"
check 'dnf refuses a tampered repomd.xml' refuses 'Bad GPG signature' dnf_fresh
restore
rm "$repo/rpm/repodata/repomd.xml.asc"
check 'dnf refuses an unsigned repomd.xml' refuses 'signature is not available' dnf_fresh
restore
rpm_file=$repo/rpm/Packages/faultline-tiny-1.1-1.noarch.rpm
printf x | dd of="$rpm_file" bs=1 seek=$(($(stat -c %s "$rpm_file") - 10)) conv=notrunc status=none
check 'dnf refuses a tampered .rpm' refuses 'incorrect checksum|checksum doesn.t match' dnf_fresh
check 'dnf installs nothing of a tampered .rpm' [ ! -e "$tmp/root/usr/share/faultline-tiny" ]
resign
check 'rpm also refuses a tampered .rpm behind valid metadata' refuses 'GPG check FAILED' dnf_fresh
restore
check 'dnf accepts the good repository again' dnf_fresh

# --- Nothing is half-written

mkdir "$tmp/bin"
# make-repo is killed, as by a power cut, when one half is done.
# shellcheck disable=SC2016 # expanded by that program
printf '#!/bin/sh\nkill -9 $PPID\n' >"$tmp/bin/createrepo_c"
chmod +x "$tmp/bin/createrepo_c"
deb "$tmp/deb3" 1.0-1.3
before=$(state "$repo")
{ PATH=$tmp/bin:$PATH "${make_repo[@]}" --out "$repo" --deb "$tmp/deb3"; } >/dev/null 2>&1
check 'make-repo is killed halfway through' [ -f "$tmp/.repo.part/deb/dists/stable/InRelease" ]
check 'the old state is untouched' diff <(printf '%s\n' "$before") <(state "$repo")
check 'the next run succeeds' "${make_repo[@]}" --out "$repo" --deb "$tmp/deb3"
check 'apt sees the added package' has '1\.0-1\.3 ' eval 'apt_fresh >/dev/null && apt_again apt-cache madison faultline-tiny'
check 'no partial state is left over' [ ! -e "$tmp/.repo.part" ]

# Readers while it is replaced, again and again: there is always a whole one.
readers() {
	local missing=0 end=$((SECONDS + 60))
	while [ ! -e "$tmp/replaced" ] && [ $SECONDS -lt $end ]; do
		[ -f "$repo/deb/dists/stable/InRelease" ] && [ -f "$repo/rpm/repodata/repomd.xml.asc" ] || missing=$((missing + 1))
	done
	echo $missing >"$tmp/missing"
}
readers &
for _ in 1 2 3; do
	"${make_repo[@]}" --out "$repo" >/dev/null || break
done
: >"$tmp/replaced"
wait
check 'a reader finds every file at any time' [ "$(cat "$tmp/missing")" = 0 ]

# --- An owner's key

check 'another key for the same repository is refused' refuses 'signed with key [0-9A-F]{40}.*--rekey' \
	"${make_repo[@]}" --out "$repo" --key "$other_print" --gnupghome "$other"
test_print=$(gpg --homedir "$BUILD/keys/throw-away" --with-colons --list-keys 2>/dev/null | sed -n 's/^fpr:*\([0-9A-F]*\):/\1/p')
check '--rekey needs the public part of the old key' refuses 'import it there' \
	"${make_repo[@]}" --out "$repo" --key "$other_print" --gnupghome "$other" --rekey "$test_print"
gpg --homedir "$BUILD/keys/throw-away" --batch --armor --export >"$tmp/test.asc" 2>/dev/null
gpg --homedir "$other" --batch --quiet --import "$tmp/test.asc" 2>/dev/null
check '--rekey signs everything again' "${make_repo[@]}" --out "$repo" --key "$other_print" --gnupghome "$other" --rekey "$test_print"
check 'faultline.sources and .repo do not mention a throw-away key' bash -c "! grep -q THROW-AWAY '$repo/deb/faultline.sources' '$repo/rpm/faultline.repo'"
check 'apt accepts the repository with the new key' apt_fresh "$tmp/wrong.sources"
check 'dnf accepts the repository with the new key' dnf_fresh "$tmp/wrong.repo"
check 'the throw-away key is refused afterwards' refuses 'signed with key' "${make_repo[@]}" --out "$repo" --deb "$tmp/deb1"

# --- One clear line for what is wrong

# wrong NAME REGEX ARG...: refused in one line, with nothing changed.
wrong() {
	local name=$1 regex=$2 text status=0
	shift 2
	text=$("${make_repo[@]}" "$@" 2>&1 >/dev/null) || status=$?
	if [ $status -eq 1 ] && grep -qxE "fl package make-repo: error: .*($regex).*" <<<"$text" &&
		[ "$(wc -l <<<"$text")" = 1 ] && [ "$before" = "$(state "$repo")" ]; then
		ok "refused: $name"
	else
		not_ok "refused: $name" <<<"status $status: $text"
	fi
}
key=(--key "$other_print" --gnupghome "$other")
before=$(state "$repo")
mkdir -p "$tmp/empty" "$tmp/broken" "$tmp/brokenrpm" "$tmp/brokendsc" "$tmp/foreign"
: >"$tmp/foreign/thesis.txt"
head -c 400 "$tmp/deb1"/*.deb >"$tmp/broken/x_1_$arch.deb"
head -c 1500 "$tmp/rpm1"/*.rpm >"$tmp/brokenrpm/x-1-1.noarch.rpm"
cp "$tmp/source"/*.dsc "$tmp/brokendsc"
wrong 'a missing folder' 'no such folder' --out "$repo" "${key[@]}" --deb "$tmp/none"
wrong 'a folder without packages' 'no \.deb' --out "$repo" "${key[@]}" --deb "$tmp/empty"
wrong 'a damaged .deb' 'damaged \.deb' --out "$repo" "${key[@]}" --deb "$tmp/broken"
wrong 'a damaged .rpm' 'damaged \.rpm' --out "$repo" "${key[@]}" --rpm "$tmp/brokenrpm"
wrong 'a source package with a file missing' 'faultline-tiny_1\.0\.tar\.xz' --out "$repo" "${key[@]}" --deb "$tmp/brokendsc"
wrong 'a .deb of the same version with other contents' 'higher version' --out "$repo" "${key[@]}" --deb "$tmp/debx"
wrong 'an .rpm of the same version with other contents' 'higher version' --out "$repo" "${key[@]}" --rpm "$tmp/rpmx"
wrong 'a missing key' 'no secret key' --out "$repo" --key 0123456789ABCDEF0123456789ABCDEF01234567 --gnupghome "$other"
wrong 'a missing key folder' 'no folder' --out "$repo" --key "$other_print" --gnupghome "$tmp/none"
wrong 'a key folder without a key' 'fingerprint' --out "$repo" --gnupghome "$other"
wrong 'an invalid URL' 'give an http' --out "$repo" "${key[@]}" --url packages.example
wrong 'a URL with a character that is none of a URL' 'give an http' --out "$repo" "${key[@]}" --url 'https://packages.example/"'
wrong 'an old key that is not a fingerprint' 'give the fingerprint' --out "$repo" "${key[@]}" --rekey Faultline
wrong "a folder with other files" 'thesis\.txt' --out "$tmp/foreign" --deb "$tmp/deb1"
wrong 'a repository without packages' 'no packages yet' --out "$tmp/nothing"
gpg --homedir "$other" --batch --quiet --passphrase '' --quick-generate-key 'A curve' ed25519 sign never 2>/dev/null
wrong 'a key that rpm of EL 8 does not support' 'not RSA' --out "$repo" --key '=A curve' --gnupghome "$other"
gpg --homedir "$other" --batch --quiet --passphrase '' --faked-system-time 20200101T000000 --quick-generate-key 'Too old' rsa2048 sign 1d 2>/dev/null
wrong 'an expired key' 'has expired' --out "$repo" --key '=Too old' --gnupghome "$other"
check 'the foreign folder is unchanged' [ "$(ls "$tmp/foreign")" = thesis.txt ]

# A shell of the host would run what this address has between its quotes.
printed=$tmp/printed
"${make_repo[@]}" --out "$tmp/quoted" "${key[@]}" --deb "$tmp/deb1" --url "https://x.example/';touch\$IFS$printed;'" >/dev/null
mkdir "$tmp/control" && dpkg-deb --ctrl-tarfile "$tmp"/quoted/deb/pool/faultline-archive-keyring_*.deb | tar -x -C "$tmp/control"
host=$tmp/quoted.host/etc/apt/sources.list.d/faultline.sources
install -D "$tmp/quoted/deb/faultline.sources" "$host"
check 'preinst runs with an address that has quotes' env DPKG_ROOT="$tmp/quoted.host" sh "$tmp/control/preinst" install
check 'a command in the address does not run' [ ! -e "$printed" ]
check 'the file with this address makes way' [ -e "$host.dpkg-old" ]

# --- Files that others have put there

# forged NAME REGEX: refused with nothing changed; afterwards the good repository is back.
keep
forged() {
	before=$(state "$repo")
	wrong "$1" "$2" --out "$repo" "${key[@]}"
	restore
}
pool=$repo/deb/pool
cp "$tmp/forged.deb/forged_9_all.deb" "$pool"
forged 'a .deb that somebody has put into the pool' 'forged_9_all\.deb was not put there.*delete it'
ln -s "$tmp/forged.deb/forged_9_all.deb" "$pool/link.deb"
forged 'a link that somebody has put into the pool' 'link\.deb was not put there'
# A new file: the old one has another link in the good copy.
rm "$pool/faultline-tiny_1.0-1_$arch.deb"
cp "$tmp/debx/faultline-tiny_1.0-1_$arch.deb" "$pool"
forged 'a .deb that somebody has replaced' 'faultline-tiny_1\.0-1_.*\.deb has changed.*delete it'
cp "$tmp/rpmx/faultline-tiny-1.0-1.noarch.rpm" "$repo/rpm/Packages"
forged 'an .rpm that somebody has replaced' 'tiny-1\.0-1\.noarch\.rpm has changed'
cat "$tmp/test.asc" >>"$repo/deb/faultline.asc"
forged 'a key that somebody has appended for apt' 'deb/faultline\.asc has changed.*makes it again'
cat "$tmp/test.asc" >>"$repo/rpm/faultline.asc"
forged 'a key that somebody has appended for dnf' 'rpm/faultline\.asc has changed.*makes it again'
sed -i 's|^URIs: .*|URIs: http://evil.example/deb|' "$repo/deb/faultline.sources"
forged 'an address that somebody has edited for apt' 'faultline\.sources has changed.*makes it again'
sed -i 's|^baseurl=.*|baseurl=http://evil.example/rpm|' "$repo/rpm/faultline.repo"
forged 'an address that somebody has edited for dnf' 'faultline\.repo has changed.*makes it again'
sed -i 's|"url": ".*"|"url": "http://evil.example"|' "$repo/state.json"
forged 'an edited state' 'state\.json has changed.*--adopt'
rm "$repo/state.json.asc"
forged 'a state without a signature' 'no state\.json with a signature.*--adopt'
gpg --homedir "$BUILD/keys/throw-away" --batch --yes --armor --output "$repo/state.json.asc" --detach-sign "$repo/state.json" 2>/dev/null
forged 'a state that another key has signed' "signed with key $test_print: "
mkdir "$tmp/bin2"
# Somebody replaces a package between the check and the index.
printf '#!/bin/sh\n[ ! -e "%s" ] || { cat "%s" >"%s"; rm "%s"; }\nexec %s "$@"\n' "$tmp/swap" "$tmp/debx/faultline-tiny_1.0-1_$arch.deb" \
	"$pool/faultline-tiny_1.0-1_$arch.deb" "$tmp/swap" "$(command -v apt-ftparchive)" >"$tmp/bin2/apt-ftparchive"
chmod +x "$tmp/bin2/apt-ftparchive"
: >"$tmp/swap"
check 'a .deb that changes while it is signed is refused' refuses 'changes while' \
	env PATH="$tmp/bin2:$PATH" "${make_repo[@]}" --out "$repo" "${key[@]}"
check_empty 'what it changed to is not in the index' "$(grep -F "$(sha256sum <"$pool/faultline-tiny_1.0-1_$arch.deb" | cut -d' ' -f1)" \
	"$repo/deb/dists/stable/main/binary-$arch/Packages")"
restore
url=$(sed -n 's|^URIs: \(.*\)/deb|\1|p' "$repo/deb/faultline.sources")
rm "$repo/deb/faultline.sources" "$repo/rpm/faultline.asc" "$pool/faultline-tiny_1.0-1.3_$arch.deb"
check 'a package is dropped by deleting it' has "without deb/pool/faultline-tiny_1\.0-1\.3_$arch\.deb" \
	"${make_repo[@]}" --out "$repo" "${key[@]}"
check 'a deleted file that make-repo made is made again' cmp "$repo/rpm/faultline.asc" "$tmp/kept/rpm/faultline.asc"
check 'the address is that of the signed state' grep -qx "URIs: $url/deb" "$repo/deb/faultline.sources"
rm "$repo/state.json"
printf '#' >>"$repo/deb/faultline.asc"
before=$(state "$repo")
wrong 'a lost state, and no address' '--adopt without --url' --out "$repo" "${key[@]}" --adopt
check 'with a lost state, the packages are taken over on request' \
	"${make_repo[@]}" --out "$repo" "${key[@]}" --adopt --url "$url"
check 'the next run needs no such request' "${make_repo[@]}" --out "$repo" "${key[@]}"
check 'apt accepts the repository that was taken over' apt_fresh "$tmp/wrong.sources"
check 'apt sees the packages that were taken over' has '1\.0-1\.2 ' apt_again apt-cache madison faultline-tiny
check 'dnf accepts the repository that was taken over' dnf_fresh "$tmp/wrong.repo"

# --- Under development

check '--fresh drops the existing packages' "${make_repo[@]}" --out "$repo" "${key[@]}" --fresh --deb "$tmp/debx"
check 'with --fresh the same version may have other contents' [ "$(echo "$repo"/deb/pool/faultline-tiny*)" = "$repo/deb/pool/faultline-tiny_1.0-1_$arch.deb" ]
check 'with --fresh the package is the new one' cmp "$tmp/debx/faultline-tiny_1.0-1_$arch.deb" "$repo"/deb/pool/faultline-tiny*.deb
check 'apt accepts the fresh repository' apt_fresh "$tmp/wrong.sources"
gpgconf --homedir "$other" --kill gpg-agent
done_testing
