#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The packages of flavour powerpc64le on a POWER9 machine with a Debian userland:
# apt installs them, the kernel boots with the initramfs that the hooks made, and
# apt removes them.
#
# There is no boot loader: QEMU loads the kernel in /boot of the disk.  The userland,
# whose second stage runs in a VM as well, is kept in build/cache; SUITE_DEBIAN
# selects another release of Debian than the host's.
set -uo pipefail
shopt -s nullglob
. "$(dirname "$0")/../../lib/tap.sh"

bail() {
	printf 'Bail out! %s\n' "$1"
	printf 'deb: error: %s\n' "$1" >&2
	exit 1
}

[ "$(id -u)" -eq 0 ] || bail 'debootstrap needs root: run this as root'
for tool in debootstrap qemu-system-ppc64 mke2fs debugfs cpio depmod; do
	command -v $tool >/dev/null || bail "$tool is not installed: run 'packaging/build-deps/install ppc64le'"
done

stage=$BUILD/stage/powerpc64le
# shellcheck disable=SC1091 # made by the stage
. "$stage/stage.env"
# shellcheck disable=SC1091
release=${SUITE_DEBIAN:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
userland=$BUILD/cache/userland-ppc64el-$release.ext4
guest=$TOP/tests/power/packages/guest
work=$BUILD/vm/powerpc64le
mkdir -p "$work"
exec 9>"$work/.lock"
flock 9
rm -rf "${work:?}"/*

# run_vm STEP SECONDS KERNEL INITRD [QEMU OPTION...]: the output of the step is in
# STEP.out, and the status is that of the step.  On one host thread: switches patch
# kernel text, which QEMU cannot do while other CPUs run it.
run_vm() {
	local step=$1 seconds=$2 kernel=$3 initrd=$4
	shift 4
	timeout -k 10 "$seconds" qemu-system-ppc64 -nodefaults -no-user-config -display none \
		-no-reboot -accel tcg,thread=single -cpu power9 -smp 2 -m 2048 \
		-machine pseries,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,cap-ccf-assist=off \
		-chardev "file,id=console,path=$work/$step.console" -device spapr-vty,chardev=console \
		-chardev "file,id=out,path=$work/$step.out" -device spapr-vty,chardev=out \
		-kernel "$kernel" -initrd "$initrd" "$@" \
		-append "console=hvc0 root=/dev/vda rw panic=-1 init=/faultline/init.sh faultline_step=$step" \
		</dev/null >"$work/$step.qemu" 2>&1 9>&-
	tr -d '\r' <"$work/$step.out" >"$work/$step.log"
	grep -qx 'exit 0' "$work/$step.log" && return
	tail -n 30 "$work/$step.qemu" "$work/$step.console" "$work/$step.log"
	return 1
}

disk() { printf -- '-drive\nfile=%s,format=raw,if=none,id=%s,%s\n-device\nvirtio-blk-pci,drive=%s\n' "$1" "$2" "$3" "$2"; }

# results STEP: each line of the guest is a test.
results() {
	local line remarks='' count=0
	while IFS= read -r line; do
		case $line in
		'ok - '*) ok "$1: ${line#ok - }"; count=$((count + 1)); remarks='' ;;
		'not ok - '*) not_ok "$1: ${line#not ok - }" <<<"$remarks"; remarks='' ;;
		'# '*) remarks+=${line#\# }$'\n' ;;
		esac
	done <"$work/$1.log"
	[ $count -gt 0 ] || not_ok "$1 has results" <<<"no line 'ok' in $work/$1.log"
}

# --- An initramfs with the modules that the disk needs, until there is one of the packages

# bootstrap_initramfs FILE
bootstrap_initramfs() {
	local root=$work/initramfs modules=$work/modules number=10 name line
	mkdir -p "$root"/{bin,modules,proc,sys,dev,root} "$modules/lib/modules"
	cp -al "$stage/modules" "$modules/lib/modules/$KVER" || return
	depmod -b "$modules" "$KVER" || return
	for name in virtio_blk crc32c ext4; do
		while read -r line; do
			case $line in
			'insmod '*)
				line=${line#insmod }
				line=${line%% *}
				case $line in
				*.xz) xz -dc "$line" ;;
				*) cat "$line" ;;
				esac >"$root/modules/$number.ko" || return
				number=$((number + 1))
				;;
			esac
		done < <(modprobe -d "$modules" -S "$KVER" --show-depends "$name")
	done
	cp "$BUILD/cache/busybox-ppc64le" "$root/bin/busybox" || return
	cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do
	/bin/busybox insmod $module
done
# The disk may not be there yet.
for second in 1 2 3 4 5 6 7 8 9 10; do
	/bin/busybox mount -t ext4 /dev/vda /root && break
	/bin/busybox sleep 1
done
/bin/busybox mount --move /dev /root/dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /faultline/init.sh
INIT
	chmod +x "$root/init"
	(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$1"
}
check 'an initramfs for the first boot is made' bootstrap_initramfs "$work/first.img"
first=(600 "$stage/vmlinux" "$work/first.img")

# --- The userland

# put_steps FOLDER: the guest's scripts.
put_steps() {
	mkdir -p "$1/faultline"
	install -m 644 "$guest"/*.sh "$1/faultline"
	chmod 755 "$1/faultline/init.sh"
}

make_userland() {
	local root=$work/userland mirror name
	# shellcheck disable=SC2016 # apt-get fills it in
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
		"Codename: $release" | head -n 1)
	[ -n "$mirror" ] || {
		echo "apt's sources have no $release: name another with SUITE_DEBIAN"
		return 1
	}
	debootstrap --foreign --arch=ppc64el --variant=minbase \
		--include=linux-base,initramfs-tools,kmod,udev,zstd,procps \
		"$release" "$root" "$mirror" || return
	# In a container it makes links to those of the host.
	for name in proc sys dev; do
		[ ! -L "$root/$name" ] || rm "$root/$name"
		mkdir -p "$root/$name"
	done
	put_steps "$root"
	mke2fs -q -F -t ext4 -O ^orphan_file -d "$root" "$work/userland.ext4" 4G || return
	rm -rf "$root"
	mapfile -t drive < <(disk "$work/userland.ext4" root cache=unsafe)
	run_vm second 3600 "${first[@]:1}" "${drive[@]}" || return
	# debugfs writes to it, which a journal that is not replayed would undo.
	e2fsck -fp "$work/userland.ext4" && mv "$work/userland.ext4" "$userland"
}
if [ ! -s "$userland" ]; then
	check "a userland of Debian's $release is made" make_userland
	[ $tap_failed -eq 0 ] || done_testing
fi

# --- Install

# Throw-away packages need not be small.
export DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1
check 'the packages are made' tools/fl package deb "$stage" "$work/packages"
check_empty 'the packages are for ppc64el, or for all' "$(for package in "$work"/packages/*.deb; do
	dpkg-deb -f "$package" Package Architecture | paste - - | grep -vE 'Architecture: (ppc64el|all)$'
done)"
# debug_matches: the symbols of -dbg are those of the image, and name source lines.
debug_matches() {
	local image=$work/debug/boot/vmlinux-$KVER name
	local symbols=$work/debug/usr/lib/debug/boot/vmlinux-$KVER
	mkdir "$work/debug" || return
	for name in "linux-image-$KVER" "linux-image-$KVER-dbg"; do
		dpkg-deb --fsys-tarfile "$work/packages/${name}"_*.deb |
			tar -x -C "$work/debug" --wildcards '*/boot/vmlinux-*' || return
	done
	readelf -n "$image" | grep 'Build ID' || return
	diff <(readelf -n "$image" | grep 'Build ID') <(readelf -n "$symbols" | grep 'Build ID') &&
		addr2line -f -e "$symbols" "$(nm "$symbols" | sed -n 's/ T spf_fault$//p')" |
		grep -q 'mm/faultline/spf.c:[0-9]' && rm -r "$work/debug"
}
[ "$DEBUG" != yes ] || check 'the debug symbols are those of the image' debug_matches

mkdir "$work/install"
echo "$KVER" >"$work/install/kver"
for name in "linux-image-$KVER" linux-image-faultline-powerpc64le "linux-headers-$KVER" \
	linux-headers-faultline-powerpc64le "linux-selftests-$KVER" faultline-profiles; do
	cp "$work/packages/${name}"_*.deb "$work/install" ||
		bail "there is no package $name"
done
# It would need Python there; its programs do not.
dpkg-deb -x "$work"/packages/faultline-bench_*.deb "$work/install/faultline-bench" ||
	bail 'there is no package faultline-bench'
disk_image() {
	cp --sparse=always "$userland" "$work/disk.ext4" &&
		for file in init.sh lib.sh install.sh boot.sh; do
			debugfs -w -R "rm /faultline/$file" "$work/disk.ext4"
			debugfs -w -R "write $guest/$file /faultline/$file" "$work/disk.ext4"
		done && debugfs -w -R 'sif /faultline/init.sh mode 0100755' "$work/disk.ext4" &&
		mke2fs -q -F -t ext4 -O ^orphan_file -d "$work/install" "$work/install.ext4" 1G
}
check 'the disks are made' disk_image
mapfile -t drives < <(disk "$work/disk.ext4" root cache=unsafe; disk "$work/install.ext4" packages readonly=on)
check 'the packages are installed in the VM' run_vm install 3600 "${first[@]:1}" "${drives[@]}"
results install

# --- Boot the kernel in /boot

dump() {
	debugfs -R "dump /boot/vmlinux-$KVER $work/vmlinux" "$work/disk.ext4" 2>&1 &&
		debugfs -R "dump /boot/initrd.img-$KVER $work/initrd.img" "$work/disk.ext4" 2>&1 &&
		test -s "$work/vmlinux" && test -s "$work/initrd.img"
}
check 'kernel and initramfs are on the disk' dump
check 'the installed kernel boots, and its steps end' run_vm boot 3600 \
	"$work/vmlinux" "$work/initrd.img" "${drives[@]}"
results boot
done_testing
