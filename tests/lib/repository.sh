# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For tests of repositories: small packages, and apt and dnf in private roots,
# from file:// URLs.  Source it behind tap.sh.

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export BUILD=$tmp/build HOME=$tmp/home LC_ALL=C.UTF-8
unset GNUPGHOME SOURCE_DATE_EPOCH
# Programs that a test kills leave their files there.
export TMPDIR=$tmp/tmp
mkdir -p "$HOME" "$TMPDIR"
# Debian's rpm has its database below ~, also in an installroot.
printf '%%_dbpath /var/lib/rpm\n' >"$HOME/.rpmmacros"
# shellcheck disable=SC2034 # used by the tests
make_repo=("$TOP/tools/fl" package make-repo)
repo=$tmp/repo
arch=$(dpkg --print-architecture)

# --- Packages

# deb FOLDER VERSION [TEXT]: makes faultline-tiny, which has one file.
deb() {
	local tree=$tmp/tree
	rm -rf "$tree"
	mkdir -p "$tree/DEBIAN" "$tree/usr/share/faultline-tiny" "$1"
	printf '%s\n' "${3:-$2}" >"$tree/usr/share/faultline-tiny/version"
	printf '%s\n' 'Package: faultline-tiny' "Version: $2" "Architecture: $arch" \
		'Maintainer: Nobody <nobody@faultline.invalid>' 'Description: test' >"$tree/DEBIAN/control"
	dpkg-deb --root-owner-group --build "$tree" "$1" >/dev/null
}

# rpm_package FOLDER VERSION [TEXT]: the same as an .rpm.
rpm_package() {
	mkdir -p "$1"
	cat >"$tmp/tiny.spec" <<-SPEC
		Name: faultline-tiny
		Version: $2
		Release: 1
		Summary: test
		License: GPL-2.0-only
		BuildArch: noarch
		%description
		test
		%install
		mkdir -p %{buildroot}/usr/share/faultline-tiny
		echo ${3:-$2} >%{buildroot}/usr/share/faultline-tiny/version
		%files
		/usr/share/faultline-tiny
	SPEC
	rpmbuild --quiet -bb --define "_topdir $tmp/rpmbuild" --define "_rpmdir $1" \
		--define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' "$tmp/tiny.spec"
}

# A minimal Debian source package.
dsc() {
	mkdir -p "$1" "$tmp/faultline-tiny-1.0"
	tar -C "$tmp" -cJf "$1/faultline-tiny_1.0.tar.xz" faultline-tiny-1.0
	(
		cd "$1" || exit
		printf '%s\n' 'Format: 3.0 (native)' 'Source: faultline-tiny' 'Binary: faultline-tiny' \
			'Architecture: any' 'Version: 1.0' 'Maintainer: Nobody <nobody@faultline.invalid>' \
			'Checksums-Sha256:' >faultline-tiny_1.0.dsc
		printf ' %s %s %s\n' "$(sha256sum <faultline-tiny_1.0.tar.xz | cut -d' ' -f1)" \
			"$(stat -c %s faultline-tiny_1.0.tar.xz)" faultline-tiny_1.0.tar.xz >>faultline-tiny_1.0.dsc
	)
}

# --- Clients

# apt_in STATE SOURCES COMMAND...: runs apt as on a host with this .sources file.
apt_in() {
	local state=$1 sources=$2
	shift 2
	mkdir -p "$state"/{lists/partial,archives/partial,sources.list.d,log}
	: >>"$state/status"
	cp "$sources" "$state/sources.list.d/faultline.sources"
	cat >"$state/apt.conf" <<-CONF
		Dir::State "$state";
		Dir::State::Lists "$state/lists";
		Dir::State::Status "$state/status";
		Dir::Cache "$state";
		Dir::Cache::Archives "$state/archives";
		Dir::Log "$state/log";
		Dir::Etc::Main "/dev/null";
		Dir::Etc::Parts "/dev/null";
		Dir::Etc::SourceList "/dev/null";
		Dir::Etc::SourceParts "$state/sources.list.d";
		Dir::Etc::Preferences "/dev/null";
		Dir::Etc::PreferencesParts "/dev/null";
		Dir::Etc::Trusted "/dev/null";
		Dir::Etc::TrustedParts "/dev/null";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		#clear APT::Architectures;
		#clear APT::Update::Pre-Invoke;
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
	CONF
	(cd "$state" && APT_CONFIG=$state/apt.conf "$@" 2>&1)
}

# A host that has never seen the repository.
# shellcheck disable=SC2120 # it is also called through check
apt_fresh() {
	rm -rf "$tmp/apt"
	apt_in "$tmp/apt" "${1:-$repo/deb/faultline.sources}" apt-get -q update
}
apt_again() { apt_in "$tmp/apt" "$repo/deb/faultline.sources" "$@"; }

# dnf insists on root, though it only writes to our folders.
as_root=()
[ "$(id -u)" = 0 ] || as_root=(unshare --map-root-user)

# dnf_in ROOT REPOFILE COMMAND...: runs dnf as on a host with this .repo file.
dnf_in() {
	local root=$1 file=$2
	shift 2
	mkdir -p "$root"/{repos,cache,log,persist,var/lib/rpm}
	cp "$file" "$root/repos/faultline.repo"
	# An empty file keeps the host's /etc/dnf out.  dnf does not prepend the root
	# to these folders.
	: >"$root/dnf.conf"
	"${as_root[@]}" dnf --config "$root/dnf.conf" --installroot "$root" --releasever 1 --setopt=reposdir="$root/repos" \
		--setopt=cachedir="$root/cache" --setopt=logdir="$root/log" --setopt=persistdir="$root/persist" \
		--setopt=varsdir="$root/vars" --noplugins --assumeyes "$@" 2>&1
}
dnf_fresh() {
	rm -rf "$tmp/root"
	dnf_in "$tmp/root" "${1:-$repo/rpm/faultline.repo}" install faultline-tiny
}

# has REGEX COMMAND...: it succeeds and its output matches.
has() {
	local regex=$1 text
	shift
	text=$("$@" 2>&1) || { printf 'failed:\n%s\n' "$text"; return 1; }
	grep -qE -- "$regex" <<<"$text" || { printf 'no %s in:\n%s\n' "$regex" "$text"; return 1; }
}

# host_apt NAME COMMAND...: runs apt as on the host NAME, which has a file system of its own
# with its .sources file in place; packages are installed there.
host_apt() {
	local root=$tmp/hosts/$1 from
	shift
	mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} "$root"/etc/apt/sources.list.d
	touch "$root"/var/lib/dpkg/{status,available}
	from=$root/etc/apt/sources.list.d/faultline.sources
	# apt looks for keys below the real root.
	sed "s|^Signed-By: /|Signed-By: $root/|" "$from" >"$root.sources"
	apt_in "$root.state" "$root.sources" "${as_root[@]}" "$@" \
		-o Dir::State::Status="$root/var/lib/dpkg/status" \
		-o DPkg::Options::=--root="$root" -o DPkg::Options::=--force-script-chrootless \
		-o DPkg::Options::=--log=/dev/null
}

# host_dnf NAME COMMAND...: the same with dnf.
host_dnf() {
	local root=$tmp/hosts/$1
	shift
	sed "s|file:///etc|file://$root/etc|" "$root/etc/yum.repos.d/faultline.repo" >"$root.repo"
	dnf_in "$root" "$root.repo" --refresh "$@"
}
