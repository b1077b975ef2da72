#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The RPM packages of a stage: contents, requires and provides, scriptlets,
# rpmlint, and reproducibility.
#
# STAGE=DIR tests another stage than microvm's.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

stage=${STAGE:-$BUILD/stage/microvm}
if [ ! -f "$stage/stage.env" ]; then
	not_ok 'a stage exists' <<<"no $stage: run 'tools/fl stage microvm'"
	done_testing
fi
mkdir -p "$BUILD/test"
# On the same file system as the stage, for hard links to its files.
work=$(mktemp -d -p "$BUILD/test")
trap 'rm -rf "$work"' EXIT
value() { sed -n "s/^$1=//p" "$stage/stage.env"; }
kver=$(value KVER)
version=$(value UPSTREAM)-$(value RELEASE)$(rpm -E '%{?dist}')
arch=$(value RPMARCH)
epoch=$(value SOURCE_DATE_EPOCH)

# --- Build twice, as two different users

mkdir "$work/home"
HOME=$work/home check 'packages are built' tools/fl package rpm "$stage" "$work/one"
# Of a stage whose files and folders are links.
mkdir "$work/links"
ln -s "$(realpath "$stage")"/* "$work/links/"
(umask 077 && HOME=$work/home TZ=Asia/Tokyo LC_ALL=C.UTF-8 tools/fl package rpm "$work/links" "$work/2/b/c") \
	>/dev/null 2>&1
check_empty 'a second build elsewhere is identical' "$(diff -rq "$work/one" "$work/2/b/c" 2>&1)"
rm -rf "$work/2"
check_empty 'the home folder is unchanged' "$(find "$work/home" -mindepth 1)"

parts='core modules devel devel-matched tools selftests'
# The packages of this flavour; those of generic have no suffix.
kernel='kernel-faultline-microvm'
expected=$(for part in '' $parts; do
	echo "$kernel${part:+-$part}-$version.$arch.rpm"
done; printf '%s\n' faultline-{host,perf,profiles,rollout}-"$version.noarch.rpm" \
	"faultline-bench-$version.$arch.rpm" "faultline-stalls-$version.$arch.rpm")
check_empty 'exactly the expected packages are made' \
	"$(diff <(sort <<<"$expected") <(find "$work/one" -mindepth 1 -printf '%f\n' | sort))"
if [ $tap_failed -gt 0 ]; then
	done_testing
fi

# The file name of a package: core, modules, ...; empty for the meta package.
package() {
	case ${1-} in
	bench | stalls) echo "$work/one/faultline-$1-$version.$arch.rpm" ;;
	host | perf | profiles | rollout) echo "$work/one/faultline-$1-$version.noarch.rpm" ;;
	*) echo "$work/one/$kernel${1:+-$1}-$version.$arch.rpm" ;;
	esac
}

# --- The source package

HOME=$work/home check 'the source package is made' tools/fl package rpm-source "$work/src"
source=$work/src/linux-faultline-$(rpm -qp --qf '%{VERSION}-%{RELEASE}' "$work"/src/*.rpm).src.rpm
check_empty 'nothing but the source package is written' "$(find "$work/src" -mindepth 1 ! -path "$source")"
mkdir "$work/unpacked-src"
(cd "$work/unpacked-src" && rpm2cpio "$source" | cpio -idm --quiet)
sum=$(dpkg-deb --fsys-tarfile "$BUILD/cache/$(sed -n 's/^file=//p' kernel/upstream)" |
	tar -xO --wildcards '*/usr/src/linux-source-*.tar.xz' | sha256sum)
check 'the kernel is the tarball of the pinned package' \
	[ "$(cat "$work"/unpacked-src/linux-source-*.tar.xz | sha256sum)" = "$sum" ]
check_empty 'the patches are the queue, in this order' "$(diff \
	<(sed 's/#.*//; /^$/d; s|.*/||' kernel/patches/series) \
	<(rpm -qp --qf '[%{PATCH}\n]' "$source" | sort | sed 's/^[0-9]*-//'))"
check_empty 'the patches are unchanged' "$(while read -r patch; do
	cmp "kernel/patches/$patch" "$work"/unpacked-src/[0-9][0-9][0-9][0-9]-"${patch##*/}" 2>&1
done < <(sed 's/#.*//; /^$/d' kernel/patches/series))"
mkdir "$work/ours"
tar -C "$work/ours" -xf "$work"/unpacked-src/faultline-*.tar.gz
check_empty 'the source package contains this repository' "$(our_files | while read -r file; do
	cmp "$file" "$work/ours/faultline/$file" 2>&1
done)"
check 'the contained repository can make a source package' "$work/ours/faultline/tools/fl" package rpm-source --help
check 'the spec in the source package has all versions' rpmspec -q --define "_sourcedir $work/unpacked-src" \
	"$work/unpacked-src/linux-faultline.spec"
rm -rf "$work/unpacked-src" "$work/ours"

# rpmlint takes half the total time, so it runs in the background.
# It also runs without the exceptions, to see whether each of them is needed.
sed '/^Filters = \[/,$d' packaging/rpm/rpmlint.toml >"$work/rpmlint-all.toml"
rpmlint --config packaging/rpm/rpmlint.toml "$work"/one/*.rpm "$source" >"$work/lint" 2>&1 &
lint=$!
rpmlint --config "$work/rpmlint-all.toml" "$work"/one/*.rpm "$source" >"$work/lint-all" 2>&1 &
lint_all=$!

# --- Contents

mkdir "$work/root"
for part in '' $parts bench host perf profiles rollout stalls; do
	(cd "$work/root" && rpm2cpio "$(package "$part")" | cpio -idm --quiet 2>&1)
done >"$work/unpacked"
check_empty 'the packages unpack' "$(cat "$work/unpacked")"
root=$work/root
moddir=$root/lib/modules/$kver

same() { cmp "$stage/$1" "$2"; }
for file in vmlinuz config System.map; do
	check "core has $file as staged" same $file "$moddir/$file"
done
check_empty 'all modules are as staged' "$(diff -r "$stage/modules/kernel" "$moddir/kernel" 2>&1)"
check_empty 'module lists are as staged, without output of depmod' \
	"$(diff <(cd "$stage/modules" && ls -d modules.*) <(cd "$moddir" && ls -d modules.*))"
check 'symvers.gz matches the headers' \
	cmp "$stage/headers/Module.symvers" <(zcat "$moddir/symvers.gz")
check_empty 'headers are as staged, except .gitignore' \
	"$(diff -r -x .gitignore "$stage/headers" "$root/usr/src/kernels/$kver" 2>&1)"
check '/lib/modules/.../build points to the headers' \
	[ "$(readlink "$moddir/build")" = "/usr/src/kernels/$kver" ]
check 'perf is as staged' same tools/perf "$root/usr/lib/linux-tools/$kver/perf"
check 'faultline-perf is as staged' same tools/faultline-perf "$root/usr/bin/faultline-perf"
check_empty 'selftests are as staged' "$(diff -r "$stage/selftests" "$root/usr/lib/linux-selftests/$kver" 2>&1)"
check_empty 'pin, patches, configuration and bill of materials are as staged' \
	"$(diff -r -x COPYING "$stage/doc" "$root/usr/share/doc/$kernel-core/$kver" 2>&1)"
check 'the licence is included' \
	cmp COPYING "$root/usr/share/licenses/$kernel-core/COPYING-$kver"

check_empty 'the profiles package has the files of sysctl/install.sh' "$(
	sysctl/install.sh "$work/profiles" && gzip -9n "$work"/profiles/usr/share/man/man7/*.7
	mkdir "$work/profiles.is" && cd "$work/profiles.is" && rpm2cpio "$(package profiles)" | cpio -idm --quiet
	diff -r "$work/profiles" "$work/profiles.is" 2>&1)"
for folder in /usr/lib/tuned /usr/lib/tuned/profiles; do
	check_empty "tuned finds its profiles in $folder" "$(for profile in sysctl/profiles/*.conf; do
		profile=$(basename "$profile" .conf)
		[ -s "$root$folder/faultline-$profile/tuned.conf" ] || echo "no $profile"
	done)"
done

check 'the host package has the files of rollout/host' rollout/host/install.sh "$work/host"
gzip -9n "$work"/host/usr/share/man/man8/*.8
check_empty 'the host package has no files but those of rollout/host' "$(diff <(cd "$work/host" && find . ! -type d -exec md5sum {} + | sort -k 2) \
		<(mkdir "$work/host.is" && cd "$work/host.is" &&
			rpm2cpio "$(package host)" | cpio -idm --quiet && find . ! -type d -exec md5sum {} + | sort -k 2))"

# Owner, time, mode and name of each file in all packages.
listing=$(for part in '' $parts bench host perf profiles rollout stalls; do
	rpm -qp --qf '[%{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEMTIMES} %{FILEMODES:perms} %{FILENAMES}\n]' \
		"$(package "$part")"
done)
check_empty 'all files belong to root and have the date of the release' \
	"$(grep -v "^root:root $epoch " <<<"$listing")"
check_empty 'only root may write to files' \
	"$(awk '$3 !~ /^l/ && ($3 ~ /^.....w/ || $3 ~ /^........w/)' <<<"$listing")"
# A file without the kernel's version in its path would clash with another
# version, unless all have the same.  Folders are shared.
needs_restarting=/etc/dnf/plugins/needs-restarting.d/$kernel.conf
suggest_reboot=/usr/share/dnf5/suggest-reboot.d/$kernel.conf
check_empty 'versions can be installed side by side' \
	"$(for part in '' core modules devel tools selftests; do
		rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$(package "$part")"
	done | grep -v '^d' | grep -vF "$kver" | grep -vE " ($needs_restarting|$suggest_reboot)$")"
check 'needs-restarting knows the kernel' grep -qx "$kernel-core" "$root$needs_restarting"
check 'needs-restarting of dnf 5 knows the kernel' grep -qx "$kernel-core" "$root$suggest_reboot"
ghosts=$(rpm -qp --qf '[%{FILEFLAGS:fflags} %{FILENAMES}\n]' "$(package core)" | sed -n 's/^[^ ]*g[^ ]* //p')
for file in vmlinuz config System.map; do
	check "/boot/$file of kernel-install goes with core" grep -qx "/boot/$file-$kver" <<<"$ghosts"
done
check '/boot/symvers of GRUB goes with core' grep -qx "/boot/symvers-$kver.gz" <<<"$ghosts"
check 'the initial RAM file system goes with core' grep -qx "/boot/initramfs-$kver.img" <<<"$ghosts"

# --- Provides and requires

# offers PART LINE...: its provides, except name = version.
offers() {
	local part=$1
	shift
	diff <(printf '%s\n' "$@" | grep . | sort) \
		<(rpm -qp --provides "$(package "$part")" |
			grep -vE '^(kernel-faultline|faultline-(bench|host|perf|profiles|rollout|stalls))[^ ]* = ' | sort)
}
check 'the metapackage offers' offers '' "config($kernel) = $version" 'installonlypkg(kernel)'
check 'core offers' offers core 'installonlypkg(kernel)' "kernel-uname-r = $kver" \
	"kernel-core-uname-r = $kver"
check 'modules offers' offers modules 'installonlypkg(kernel-module)' \
	"kernel-modules-uname-r = $kver" "kernel-modules-core-uname-r = $kver"
check 'devel offers' offers devel 'installonlypkg(kernel)' "kernel-devel-uname-r = $kver"
check 'devel-matched offers' offers devel-matched ''
check 'tools offers' offers tools 'installonlypkg(kernel)'
check 'selftests offers' offers selftests 'installonlypkg(kernel)'
check 'bench offers' offers bench ''
check 'perf offers' offers perf ''
check 'host offers' offers host ''
check 'profiles offers' offers profiles ''
check 'rollout offers' offers rollout ''
check 'stalls offers' offers stalls ''

# needs PART LINE...: its requires, except rpm features.
needs() {
	local part=$1
	shift
	diff <(printf '%s\n' "$@" | grep . | sort) \
		<(rpm -qp --requires "$(package "$part")" | grep -v '^rpmlib(' | sort -u)
}
check 'the metapackage needs' needs '' /bin/sh "$kernel-core = $version" "config($kernel) = $version" \
	"$kernel-modules = $version"
check 'core needs' needs core /bin/sh /usr/bin/kernel-install coreutils dracut
check 'modules needs' needs modules /bin/sh coreutils kmod "$kernel-core = $version"
check 'devel needs' needs devel bison elfutils-libelf-devel findutils flex gcc make perl-interpreter
check 'devel-matched needs' needs devel-matched "$kernel-core = $version" \
	"$kernel-devel = $version"
table="faultline-profiles >= $version"
check 'host needs' needs host /bin/sh coreutils "$table" gawk systemd util-linux
check 'profiles needs' needs profiles ''
check 'perf needs' needs perf ''
check 'selftests needs' needs selftests ''
check 'rollout needs' needs rollout "$table" 'python3 >= 3.11' python3-matplotlib python3-numpy python3-scipy
check 'faultline-rollout runs as it is installed' \
	env MPLCONFIGDIR="$work" "$root/usr/bin/faultline-rollout" --help
check_empty 'bench needs faultline-ab, the table and Python, and otherwise only libraries' "$(
	rpm -qp --requires "$(package bench)" | grep -vE '^(rpmlib\(|lib[^ ]+\.so\.[0-9]+\(|ld-|rtld\()' |
		sort | diff <(printf '%s\n' "${table/profiles/host}" "$table" 'python3 >= 3.11') - 2>&1)"
check_empty 'the bench package has the files of rollout/bench and the programs of the stage' "$(
	rollout/bench/install.sh "$work/bench" "$stage/bench" && gzip -9n "$work"/bench/usr/share/man/man8/*.8
	mkdir "$work/bench.is" && cd "$work/bench.is" && rpm2cpio "$(package bench)" | cpio -idm --quiet
	diff -r "$work/bench" "$work/bench.is" 2>&1)"
check_empty 'stalls needs only libraries' "$(
	rpm -qp --requires "$(package stalls)" | grep -vE '^(rpmlib\(|lib[^ ]+\.so\.[0-9]+\(|ld-|rtld\()')"
check 'stalls needs libbpf' grep -q '^libbpf\.so\.1(' <(rpm -qp --requires "$(package stalls)")
check_empty 'the stalls package has the files of rollout/stalls and the program of the stage' "$(
	rollout/stalls/install.sh "$work/stalls" "$stage/stalls" && gzip -9n "$work"/stalls/usr/share/man/man8/*.8
	mkdir "$work/stalls.is" && cd "$work/stalls.is" && rpm2cpio "$(package stalls)" | cpio -idm --quiet
	diff -r "$work/stalls" "$work/stalls.is" 2>&1)"
check 'faultline-stalls starts as it is installed' "$root/usr/sbin/faultline-stalls" --help
check 'faultline-bench starts as it is installed' "$root/usr/sbin/faultline-bench" --help
# perf's requires depend on the build machine; all of them must be libraries.
libraries=$(rpm -qp --requires "$(package tools)" | grep -v '^rpmlib(')
check 'tools needs faultline-perf' grep -qx faultline-perf <<<"$libraries"
check_empty 'tools needs only libraries otherwise' "$(grep -vx faultline-perf <<<"$libraries" | grep -vE '^(lib[^ ]+\.so\.[0-9]+\(|ld-|rtld\()')"
needed=$(readelf -d "$stage/tools/perf" | sed -n 's/.*(NEEDED).*\[\(lib[^]]*\)\]/\1/p')
check_empty 'tools needs each library of perf' "$(while read -r name; do
	grep -qF "$name(" <<<"$libraries" || echo "$name"
done <<<"$needed")"

# --- Scriptlets

scriptlets() {
	rpm -qp --qf "%|PREIN?{pre }|%|POSTIN?{post }|%|PREUN?{preun }|%|POSTUN?{postun }|\
%|PRETRANS?{pretrans }|%|POSTTRANS?{posttrans }|%|TRIGGERNAME?{trigger }|" "$(package "$1")"
}
check 'the metapackage: posttrans' [ "$(scriptlets '')" = 'posttrans ' ]
check 'core: post, preun, posttrans' [ "$(scriptlets core)" = 'post preun posttrans ' ]
check 'modules: post, postun, posttrans' [ "$(scriptlets modules)" = 'post postun posttrans ' ]
check 'host: preun' [ "$(scriptlets host)" = 'preun ' ]
for part in devel devel-matched tools selftests bench perf profiles rollout stalls; do
	check "$part: none" [ -z "$(scriptlets $part)" ]
done
for part in '' core modules host; do
	for tag in PREIN POSTIN PREUN POSTUN POSTTRANS; do
		text=$(rpm -qp --qf "%|$tag?{%{$tag}}|" "$(package "$part")")
		[ -z "$text" ] || check "shellcheck ${part:-metapackage} $tag" \
			shellcheck --norc --shell=sh - <<<"$text"
	done
done

# --- An external module

mkdir "$work/module"
cat >"$work/module/hello.c" <<-'C'
	#include <linux/module.h>
	MODULE_DESCRIPTION("A module that is not in the kernel");
	MODULE_LICENSE("GPL");
C
echo 'obj-m := hello.o' >"$work/module/Makefile"
check 'a module compiles against devel' \
	make -s -C "$root/usr/src/kernels/$kver" M="$work/module" modules
check 'the module is for this kernel' \
	[ "$(modinfo -F vermagic "$work/module/hello.ko" 2>/dev/null | cut -d' ' -f1)" = "$kver" ]

# --- Stages that cannot be packaged

# refused NAME TEXT COMMAND...: edits a copy of the stage with COMMAND; the build
# must print TEXT in its only line and write nothing.
refused() {
	local name=$1 text=$2
	shift 2
	rm -rf "$work/bad"
	cp -al "$stage" "$work/bad"
	if ! (cd "$work/bad" && "$@"); then
		not_ok "$name" <<<"the test could not edit its stage"
		return
	fi
	mkdir -p "$work/bad-out"
	if tools/fl package rpm "$work/bad" "$work/bad-out" >"$work/said" 2>&1; then
		not_ok "$name" <<<'it was packaged'
	elif [ "$(wc -l <"$work/said")" -ne 1 ] || ! grep -qF "error: $text" "$work/said" &&
		! grep -qF "$text" "$work/said"; then
		not_ok "$name" <"$work/said"
	else
		check_empty "$name" "$(find "$work/bad-out" -mindepth 1)"
	fi
}
# Not in place: the copy has hard links.
env_set() { sed "$1" stage.env >new.env && mv new.env stage.env; }
refused 'a flavour without modules is refused' 'has no modules' rm -r modules/kernel
refused 'a stage without its kernel is refused' 'has no vmlinuz' rm vmlinuz
refused 'a folder that is not a stage is refused' 'is not a stage' rm stage.env
refused 'a release with two dashes is refused' "must have the form" env_set 's/^KVER=.*/&-debug/'
refused 'a release that does not match the packages is refused' 'does not match' \
	env_set 's/^UPSTREAM=.*/&9/'
check 'the spec without versions is refused' \
	grep -q 'gets its versions from tools/fl package rpm' \
	<(HOME=$work/home rpmspec -P packaging/rpm/linux-faultline.spec 2>&1)

# --- rpmlint

wait $lint
if grep -q ' 0 errors, 0 warnings' "$work/lint"; then
	ok 'rpmlint reports neither errors nor warnings'
else
	not_ok 'rpmlint reports neither errors nor warnings' <"$work/lint"
fi
wait $lint_all
check_empty 'each exception in rpmlint.toml has a reason and is needed' "$(
	python3 - packaging/rpm/rpmlint.toml "$work/lint-all" <<-'PY'
		import re
		import sys
		import tomllib
		lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
		said = open(sys.argv[2], encoding="utf-8").read()
		before = ""
		for line in map(str.strip, lines):
		    if line.startswith("'"):
		        rule = tomllib.loads(f"rule = {line.rstrip(',')}")["rule"]
		        if not before or before.startswith("# ---"):
		            print("no reason:", rule)
		        if not re.search(rule, said):
		            print("not needed:", rule)
		    else:
		        before = line
	PY
)"
done_testing
