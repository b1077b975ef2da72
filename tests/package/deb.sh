#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The Debian packages: contents, control fields, an external module, lintian and
# reproducibility.  The suites hosts/images and hosts/failures install them.
#
# DEB_TEST_STAGE=DIR uses an existing stage instead of making one.
set -uo pipefail
shopt -s nullglob

# shellcheck source=tests/lib/tap.sh
. "$(dirname "$0")/../lib/tap.sh"

bail() {
	printf 'Bail out! %s\n' "$1"
	printf 'deb: error: %s\n' "$1" >&2
	exit 1
}

for tool in dpkg-buildpackage dh lintian gcc; do
	command -v $tool >/dev/null || bail "$tool is not installed: run 'make deps'"
done

stage=${DEB_TEST_STAGE:-$BUILD/stage/microvm}
[ -e "$stage/stage.env" ] || tools/fl stage microvm >&2 ||
	bail 'there is no microvm stage'
work=$BUILD/package/deb

# quiet COMMAND...: shows its output only if it fails.
quiet() {
	local out
	out=$("$@" 2>&1) || {
		printf '%s: exit status %d\n%s\n' "$*" $? "$out"
		return 1
	}
}

mkdir -p "$BUILD/package"
exec 9>"$BUILD/package/.deb.lock"
flock 9
rm -rf "$work"
# lintian leaves files there.
export TMPDIR=$work/tmp
mkdir -p "$TMPDIR"
jobs_running=()
clean_up() {
	[ ${#jobs_running[@]} -eq 0 ] || kill "${jobs_running[@]}" 2>/dev/null
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

# Throw-away packages need not be small.
export DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1
build=(tools/fl package deb)

# --- Stages: the release; and a later build, of flavour generic and with debug information

# Copies a stage as links; a test replaces the files that it changes.
copy_stage() {
	mkdir "$work/$1"
	ln -s "$stage"/* "$work/$1/"
}

# set_env NAME KEY=VALUE...
set_env() {
	local file=$work/$1/stage.env pair
	shift
	cp "$file" "$file.new"
	for pair; do
		sed -i "s|^${pair%%=*}=.*|$pair|" "$file.new"
	done
	mv "$file.new" "$file"
}

# shellcheck source=/dev/null
. "$stage/stage.env"
# shellcheck disable=SC2153 # stage.env sets it
kver=$KVER version=$UPSTREAM-$RELEASE
kver2=$UPSTREAM-faultline${RELEASE%%.*}.99.generic
version2=$UPSTREAM-${RELEASE%%.*}.99
mkdir -p "$work/stage2/headers"
cp -a "$stage"/[!h]* "$work/stage2/"
# One full set of headers is enough.
cp -a "$stage/headers/Makefile" "$stage/headers/Module.symvers" "$work/stage2/headers/"
set_env stage2 "KVER=$kver2" "RELEASE=${RELEASE%%.*}.99" FLAVOUR=generic DEBUG=yes
mkdir -p "$work/stage2/debug/kernel/fs"
# Programs stand for the kernel and a module: only the sections count.
echo 'void _start(void) {}' | gcc -g -static -nostdlib -x c -o "$work/stage2/debug/vmlinux" - ||
	bail 'a program does not compile'
objcopy --only-keep-debug "$work"/stage2/debug/{vmlinux,kernel/fs/test.ko.debug}
out=$work/out out2=$work/out2

# deb NAME [OUT VERSION]: the file name of a package.
deb() { printf '%s\n' "${2:-$out}/$1_${3:-$version}"_*.deb; }

# --- Errors, while the packages are being built

(
	"${build[@]}" "$stage" "$out" >"$work/log1" 2>&1
	"${build[@]}" "$work/stage2" "$out2" >"$work/log2" 2>&1
) &
builds=$!
jobs_running+=("$builds")

# refused OUT MESSAGE STAGE: one error line with MESSAGE, and OUT is unchanged.
refused() {
	local before after said
	before=$(ls -lA --time-style=full-iso "$1" 2>&1)
	said=$("${build[@]}" "$3" "$1" 2>&1) && { echo 'it was accepted'; return 1; }
	after=$(ls -lA --time-style=full-iso "$1" 2>&1)
	[ "$before" = "$after" ] || { printf 'before:\n%s\nafter:\n%s\n' "$before" "$after"; return 1; }
	# Log lines quoted by an error are indented.
	if [ "$(grep -vc '^  ' <<<"$said")" -ne 1 ] || ! grep -q "error: .*$2" <<<"$said"; then
		printf 'it said:\n%s\n' "$said"
		return 1
	fi
}

copy_stage bare
rm "$work/bare/modules"
check 'a flavour without modules is refused' \
	refused "$work/none" 'has no modules' "$work/bare"
mkdir "$work/bare/modules"
check 'a flavour with an empty modules folder is refused' \
	refused "$work/none" 'has no modules' "$work/bare"
copy_stage odd
set_env odd "KVER=${UPSTREAM}_Faultline1.microvm"
check 'a release that is not valid in a package name is refused' \
	refused "$work/none" 'KVER=.*not valid in a package' "$work/odd"
check 'a missing stage is refused' \
	refused "$work/none" 'no stage at' "$work/nowhere"
copy_stage broken
rm "$work/broken/vmlinuz"
mkdir "$work/broken/vmlinuz" "$work/full"
echo 'an older package' >"$work/full/linux-image-faultline-microvm_${version}_$ARCH.deb"
check 'a failed build leaves the folder unchanged' \
	refused "$work/full" 'dpkg-buildpackage failed' "$work/broken"

wait $builds
jobs_running=()
check "the packages of $kver are made" grep -q ', 13 packages$' "$work/log1"
check "the packages of $kver2 are made" grep -q ', 14 packages$' "$work/log2"
[ $tap_failed -eq 0 ] || { cat "$work/log1" "$work/log2" >&2; done_testing; }

# These two take long and run in the background.
lintian --fail-on error,warning --allow-root "$out"/*.changes "$out2"/linux-image-faultline_*.deb "$out2"/*-dbg_*.deb \
	>"$work/lintian" 2>&1 &
lintian=$!
# Another umask, folder, locale and time zone must give the same bytes.
(
	umask 077
	TZ=Pacific/Auckland LC_ALL=C "${build[@]}" "$stage" "$work/a folder with another name" \
		>"$work/log3" 2>&1
) &
again=$!
jobs_running=("$lintian" "$again")

# --- Contents

kver_pattern=${kver//./[.]}
declare -A allowed=(
	[linux-image-$kver]="boot/(vmlinuz|config)-$kver_pattern|usr/lib/modules/$kver_pattern/(kernel/.*\.ko(\.(xz|zst|gz))?|modules\.(order|builtin|builtin\.modinfo)|System\.map)"
	[linux-headers-$kver]="usr/src/linux-headers-$kver_pattern/.*|usr/lib/modules/$kver_pattern/build"
	[linux-tools-$kver]="usr/lib/linux-tools/$kver_pattern/perf"
	[linux-selftests-$kver]="usr/lib/linux-selftests/$kver_pattern/[a-z0-9_]+"
	[faultline-perf]='usr/bin/faultline-perf|usr/share/man/man1/faultline-perf.1.gz'
	[linux-image-faultline-microvm]='-'
	[linux-headers-faultline-microvm]='-'
	[linux-tools-faultline-microvm]='-'
	[faultline-host]='usr/sbin/faultline-(ab|boot)|usr/lib/(faultline|systemd|tmpfiles\.d)/.*|usr/share/(bash-completion|man/man8)/.*faultline-(ab|boot).*'
	[faultline-bench]='usr/sbin/faultline-bench|usr/libexec/faultline-bench/(micro|munmap|survey)|usr/share/bash-completion/completions/faultline-bench|usr/share/man/man8/faultline-bench\.8\.gz'
	[faultline-stalls]='usr/sbin/faultline-stalls|usr/share/faultline-stalls/schema\.json|usr/share/bash-completion/completions/faultline-stalls|usr/share/man/man8/faultline-stalls\.8\.gz'
	[faultline-rollout]='usr/bin/faultline-rollout|usr/share/faultline-rollout/(faultline-rollout|simulate\.py|faultline_rollout/[a-z_]+\.py|monitoring/[A-Za-z_]+\.(args|json|md|yml)|ansible/(([a-z]+|roles/[a-z]+/[a-z]+/main)\.yml|roles/ab/filter_plugins/node_exporter\.py))|usr/share/bash-completion/completions/faultline-rollout|usr/share/man/man1/faultline-rollout\.1\.gz|usr/share/man/man5/faultline-experiment\.5\.gz'
	[faultline-profiles]='usr/lib/sysctl\.d/60-faultline\.conf|usr/share/faultline/(switches|profiles/.*)|usr/lib/tuned/.*|usr/share/man/man7/faultline-profiles\.7\.gz'
)

# files DEB: its files, without folders and link targets.
files() { dpkg-deb --fsys-tarfile "$1" | tar -t | grep -v '/$' | sed 's|^\./||' | sort; }

for package in "${!allowed[@]}"; do
	files "$(deb "$package")" >"$work/$package.files"
	check_empty "$package has only its own files" "$(grep -vE \
		"^(${allowed[$package]}|usr/share/doc/$package/.*|usr/share/lintian/overrides/$package)$" \
		"$work/$package.files")"
done

has() {
	local package=$1 path missing=0
	shift
	for path; do
		grep -qxE "$path" "$work/$package.files" || { echo "no $path"; missing=1; }
	done
	return "$missing"
}
doc=usr/share/doc/linux-image-$kver
check 'the image has kernel, configuration, pin, patches, bill of materials' \
	has "linux-image-$kver" "boot/vmlinuz-$kver" "boot/config-$kver" "$doc/upstream" \
	"$doc/config(.gz)?" "$doc/sbom.spdx.json(.gz)?" "$doc/patches/series(.gz)?" "$doc/copyright" \
	"$doc/changelog.Debian.gz"
patches() { find "$1" -name '*.patch*' | sed 's|.*/||; s|\.gz$||' | sort; }
mkdir "$work/image" "$work/headers" "$work/profiles"
dpkg-deb -x "$(deb "linux-image-$kver")" "$work/image"
check 'the image has all patches of the stage' \
	diff <(patches "$stage/doc/patches") <(patches "$work/image/$doc/patches")
check 'the image has the modules, unchanged' diff -r "$stage/modules/kernel" \
	"$work/image/usr/lib/modules/$kver/kernel"
check 'the image has the kernel' cmp "$stage/vmlinuz" "$work/image/boot/vmlinuz-$kver"
check 'the image has the bill of materials' cmp "$stage/doc/sbom.spdx.json" \
	<(zcat -f "$work/image/$doc/sbom.spdx.json"*)
check 'the headers package owns the build link' \
	has "linux-headers-$kver" "usr/lib/modules/$kver/build" \
	"usr/src/linux-headers-$kver/Module.symvers" "usr/src/linux-headers-$kver/Makefile"
check 'the tools package has perf' has "linux-tools-$kver" "usr/lib/linux-tools/$kver/perf"
check 'the selftests package has the selftests' \
	has "linux-selftests-$kver" "usr/lib/linux-selftests/$kver/run"

dpkg-deb -x "$(deb faultline-profiles)" "$work/profiles"
check 'the profiles package has the files of sysctl/install.sh' sysctl/install.sh "$work/profiles.wanted"
check_empty 'the package has no other files' "$(gunzip "$work"/profiles/usr/share/man/man7/*.gz &&
	rm -rf "$work/profiles/usr/share/doc" "$work/profiles/usr/share/lintian" &&
	diff -r "$work/profiles.wanted" "$work/profiles" 2>&1)"
# Debian 12's tuned reads /usr/lib/tuned, Debian 13's /usr/lib/tuned/profiles.
for folder in usr/lib/tuned usr/lib/tuned/profiles; do
	check_empty "tuned finds its profiles in $folder" "$(for profile in sysctl/profiles/*.conf; do
		profile=$(basename "$profile" .conf)
		[ -s "$work/profiles/$folder/faultline-$profile/tuned.conf" ] || echo "no $profile"
	done)"
done
check_empty 'the default sysctl file switches nothing on' \
	"$(grep -vE '^[[:space:]]*([#;]|$)' "$work/profiles/usr/lib/sysctl.d/60-faultline.conf")"

mkdir "$work/host"
dpkg-deb -x "$(deb faultline-host)" "$work/host"
check 'the host package has the files of rollout/host' rollout/host/install.sh "$work/host.wanted"
check_empty 'the host package has no files but those of rollout/host' "$(gunzip "$work"/host/usr/share/man/man8/*.gz &&
	rm -rf "$work/host/usr/share/doc" "$work/host/usr/share/lintian" &&
	diff -r "$work/host.wanted" "$work/host" 2>&1)"
check_empty 'the host package enables no unit' "$(find "$work/host" -type l)"
check 'removing the host package stops experiments' \
	grep -q 'faultline/before-removal.sh' <(dpkg-deb --ctrl-tarfile "$(deb faultline-host)" | tar -xO ./prerm)
check_empty 'installing the host package starts nothing' "$(dpkg-deb --ctrl-tarfile "$(deb faultline-host)" |
	tar -xO --wildcards './p*' | grep -E 'systemctl|systemd-invoke')"

# Each file belongs to root, is world-readable and writable only by root, and is
# not newer than the release.
check_empty 'files have the expected owner, mode and date' "$(for file in "$out"/*.deb; do
	dpkg-deb --fsys-tarfile "$file" | TZ=UTC tar -tv --numeric-owner --full-time |
		awk -v date="$(date -u -d "@$SOURCE_DATE_EPOCH" '+%F %T')" -v deb="${file##*/}" \
			'$2 != "0/0" || $4" "$5 > date ||
			 $1 !~ /^(-rw-r--r--|-rwxr-xr-x|drwxr-xr-x|lrwxrwxrwx)$/ { print deb": "$0 }'
done)"
check_empty 'no file is in two packages or in two versions' \
	"$(for file in "$out"/*.deb "$out2"/linux-*"$kver2"*.deb; do files "$file"; done | sort | uniq -d)"

# --- Control fields

field() { dpkg-deb -f "$(deb "$1" "${3:-$out}" "${4:-$version}")" "$2"; }
# hardened PROGRAM: position-independent, nothing writable is executable, all symbols are bound
# and read-only before it starts, and it checks its stack and buffers.
hardened() {
	local what
	what=$(readelf -W -h -l -d --dyn-syms "$1")
	if ! { grep -q 'Type: *DYN' <<<"$what" && grep -q 'GNU_RELRO' <<<"$what" &&
		grep -q 'BIND_NOW\|FLAGS.*NOW' <<<"$what" && grep -q 'GNU_STACK .* RW ' <<<"$what" &&
		grep -q '__stack_chk_fail' <<<"$what" && grep -q '__[a-z]*printf_chk' <<<"$what"; }; then
		echo "$what"
		return 1
	fi
}
is() { [ "$1" = "$2" ] || { printf 'is: %s\nnot: %s\n' "$1" "$2"; return 1; }; }
like() { grep -qE -- "$2" <<<"$1" || { printf '%s\nis not like %s\n' "$1" "$2"; return 1; }; }

for kind in image headers tools; do
	check "linux-$kind-faultline-microvm depends on exactly the newest version" \
		like ", $(field linux-$kind-faultline-microvm Depends)," ", linux-$kind-$kver \(= $version\),"
	check "linux-$kind-faultline follows generic" \
		like ", $(field linux-$kind-faultline Depends "$out2" "$version2")," \
		", linux-$kind-$kver2 \(= $version2\),"
done
check 'headers satisfy what DKMS recommends' \
	like "$(field linux-headers-faultline Provides "$out2" "$version2")" '^linux-headers-generic$'
check_empty 'debug information is where crash and drgn look' "$(
	files "$(deb "linux-image-$kver2-dbg" "$out2" "$version2")" | grep -v '^usr/share/doc/' |
		diff <(echo "usr/lib/debug/boot/vmlinux-$kver2"
			echo "usr/lib/debug/lib/modules/$kver2/kernel/fs/test.ko.debug"
			echo "usr/lib/debug/lib/modules/$kver2/vmlinux") -)"
check_empty 'a flavour without debug information has no such package' "$(find "$out" -name '*-dbg_*.deb')"
check 'the image pre-depends on linux-base' \
	like "$(field "linux-image-$kver" Pre-Depends)" '^linux-base \(>= 4\.'
check 'the image depends on kmod and any initramfs generator' like "$(field "linux-image-$kver" Depends)" \
	'kmod, initramfs-tools \| linux-initramfs-tool'
check 'the headers depend on the libraries of their programs' \
	like "$(field "linux-headers-$kver" Depends)" 'libc6 .*libelf1|libelf1.*libc6 '
check 'the headers recommend a compiler' \
	like "$(field "linux-headers-$kver" Recommends)" '\bgcc\b'
check 'the profiles are for all architectures' is "$(field faultline-profiles Architecture)" all
check 'faultline-rollout is for all architectures' is "$(field faultline-rollout Architecture)" all
mkdir "$work/rollout"
dpkg-deb -x "$(deb faultline-rollout)" "$work/rollout"
check 'faultline-rollout runs as it is installed' \
	env MPLCONFIGDIR="$work/rollout" "$work/rollout/usr/bin/faultline-rollout" --help
# starts_bench ROOT: faultline-bench as it is installed makes a dry run, with switches
# that are files and its own programs.
starts_bench() {
	local root=$1 vm=$work/bench-sys/vm said
	mkdir -p "$vm"
	for name in munmap_section_kbytes speculative_page_fault; do
		echo 0 >"$vm/$name"
	done
	"$root/usr/sbin/faultline-bench" --help >/dev/null &&
		said=$(cd "$work" && FAULTLINE_SYSCTL=${vm%/vm} FAULTLINE_RUN=$work/bench-run \
			FAULTLINE_LIB=$root/usr/lib/faultline \
			FAULTLINE_SWITCHES=$root/usr/share/faultline/switches FAULTLINE_CMDLINE=/dev/null "$root/usr/sbin/faultline-bench" --dry-run) || return 1
	if ! grep -qx 'vm.munmap_section_kbytes: 0 in arm off, 65536 in arm on, then 0 as now' <<<"$said" ||
		! grep -qx 'Nothing was changed.' <<<"$said"; then
		echo "$said"
		return 1
	fi
}
mkdir "$work/bench"
dpkg-deb -x "$(deb faultline-bench)" "$work/bench"
dpkg-deb -x "$(deb faultline-profiles)" "$work/bench"
dpkg-deb -x "$(deb faultline-host)" "$work/bench"
check 'faultline-bench starts as it is installed' starts_bench "$work/bench"
check 'the programs of faultline-bench are as staged' diff -r "$stage/bench" "$work/bench/usr/libexec/faultline-bench"
for program in micro munmap survey; do
	check "faultline-bench: $program starts" quiet "$work/bench/usr/libexec/faultline-bench/$program" --help
	check "faultline-bench: $program is hardened" hardened "$work/bench/usr/libexec/faultline-bench/$program"
done
check 'faultline-bench depends on Python and the C library' \
	like "$(field faultline-bench Depends)" 'python3 \(>= 3\.11\).*libc6 '
mkdir "$work/stalls"
dpkg-deb -x "$(deb faultline-stalls)" "$work/stalls"
check 'faultline-stalls is as staged' diff -r "$stage/stalls" "$work/stalls/usr/sbin"
check 'faultline-stalls is hardened' hardened "$work/stalls/usr/sbin/faultline-stalls"
check 'faultline-stalls starts as it is installed' quiet "$work/stalls/usr/sbin/faultline-stalls" --help
check 'faultline-stalls depends on libraries only' \
	like "$(field faultline-stalls Depends)" '^libbpf1 \([^)]*\), libc6 \([^)]*\)$'
for package in faultline-bench faultline-host faultline-rollout; do
	check "$package depends on the table of switches" \
		like "$(field $package Depends)" "faultline-profiles \(>= $version\)"
done
check 'the other packages are for one architecture' is "$(for file in "$out"/linux-*.deb; do
	dpkg-deb -f "$file" Architecture; done | sort -u)" "$ARCH"
check 'the later build has the higher version' dpkg --compare-versions "$version2" gt "$version"

# --- The hooks for DKMS

# header_hooks PATH: the calls of hooks that the headers' postinst makes with these programs.
header_hooks() {
	rm -f "$work/calls"
	PATH=$1 CALLS=$work/calls "$shell" "$work/control/postinst.here" configure '' || return 1
	cat "$work/calls"
}
shell=$(command -v sh)
mkdir -p "$work/old" "$work/new" "$work/hooks/header_postinst.d"
dpkg-deb -e "$(deb "linux-headers-$kver")" "$work/control"
sed "s|/etc/kernel|$work/hooks|g" "$work/control/postinst" >"$work/control/postinst.here"
ln -s "$(command -v run-parts)" "$work/old/"
# shellcheck disable=SC2016 # for the scripts
printf '#!%s\necho "$*" >"$CALLS"\n' "$shell" >"$work/new/linux-run-hooks"
# shellcheck disable=SC2016
printf '#!%s\necho "$* [$DEB_MAINT_PARAMS]" >"$CALLS"\n' "$shell" >"$work/hooks/header_postinst.d/test"
chmod +x "$work/new/linux-run-hooks" "$work/hooks/header_postinst.d/test"
check 'linux-base is asked to run the hooks for DKMS' \
	is "$(header_hooks "$work/new" 2>&1)" "headers postinst $kver -- configure "
check 'without such a linux-base, the package runs the hooks for DKMS' \
	is "$(header_hooks "$work/old" 2>&1)" "$kver [configure ]"

# --- An external module

dpkg-deb -x "$(deb "linux-headers-$kver")" "$work/headers"
kbuild=$work/headers/usr/lib/modules/$kver/build
mkdir "$work/module" "$work/wrong"
cat >"$work/module/hello.c" <<'END'
// SPDX-License-Identifier: GPL-2.0-only
#include <linux/init.h>
#include <linux/module.h>
#include <linux/mm.h>
#include <linux/slab.h>

static void *page;

static int __init hello_init(void)
{
	page = kzalloc(PAGE_SIZE, GFP_KERNEL);
	return page ? 0 : -ENOMEM;
}
module_init(hello_init);

static void __exit hello_exit(void)
{
	kfree(page);
}
module_exit(hello_exit);

MODULE_DESCRIPTION("built against the packaged headers");
MODULE_LICENSE("GPL");
END
echo 'obj-m := hello.o' >"$work/module/Makefile"
cp "$work/module/Makefile" "$work/wrong/"
sed 's/= kzalloc(/= no_such_function(/; 1a void *no_such_function(unsigned long, int);' \
	"$work/module/hello.c" >"$work/wrong/hello.c"
check 'a module builds against the headers package' \
	quiet make -C "$kbuild" "M=$work/module" modules
check 'the module is for this kernel' like "$(/sbin/modinfo -F vermagic "$work/module/hello.ko" 2>&1)" "^$kver "
check 'a symbol that the kernel does not export is refused' \
	like "$(make -C "$kbuild" "M=$work/wrong" modules 2>&1)" 'no_such_function.* undefined'
check_empty 'building leaves the headers unchanged' \
	"$(cd "$work/headers" && files "$(deb "linux-headers-$kver")" |
		diff - <(find . ! -type d | sed 's|^\./||' | sort))"

# --- Results of the background jobs

wait $again
check_empty 'the second build is identical byte for byte' "$(
	grep -v ', 13 packages$' "$work/log3"
	cd "$work/a folder with another name" && for file in *; do
		cmp "$file" "$out/$file" || {
			# diffoscope, if available, explains the difference.
			! command -v diffoscope >/dev/null || diffoscope --text - "$out/$file" "$file" | head -n 40
		}
	done 2>&1
	diff <(ls) <(ls "$out")
)"
wait $lintian
status=$?
# A killed lintian may leave no output.
passed() {
	[ "$status" -eq 0 ] && return
	echo "exit status $status"
	grep -E '^[EW]:' "$work/lintian" || cat "$work/lintian"
	return 1
}
check 'lintian reports neither errors nor warnings' passed
jobs_running=()
done_testing
