#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The kernel of FLAVOUR as its owner signs it, on a machine with Secure Boot on: it locks
# itself down, loads its modules and no others, boots itself by kexec, and is not tainted.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=tests/lib/secureboot.sh
. "$(dirname "$0")/../../lib/secureboot.sh"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
stage=$BUILD/stage/${FLAVOUR:-microvm}
signed=$tmp/signed/stage
KVER=$(sed -n s/^KVER=//p "$stage/stage.env")
root=$tmp/root
modules=$root/lib/modules/$KVER
# NAME=VALUE that turns each switch on.
mapfile -t switches < <(awk '/^vm[.]/ { print $1 "=" $5 }' sysctl/switches)

has_secureboot || {
	echo '1..0 # SKIP no ovmf with the snakeoil key or no systemd-boot-efi'
	exit
}

sign() {
	tools/fl package sign-stage "$stage" "$signed" --key "$tmp/enrolled.key" --cert "$tmp/enrolled.crt"
}
# unsigned STAGE: prints the modules without a signature.
unsigned() {
	find "$1/modules" -name '*.ko*' | while read -r file; do
		[ "$(modinfo -F sig_id "$file")" = PKCS#7 ] || echo "$file"
	done
}

# pack FOLDER FILE
pack() {
	(cd "$1" && find . | cpio -o -H newc -R 0:0 --quiet) >"$2"
}

# begin FOLDER: makes a root file system; the caller appends to its init, which has mounted /proc and so on.
begin() {
	mkdir -p "$1"/{bin,sbin,proc,sys,dev}
	cp /bin/busybox "$1/bin/"
	cat >"$1/init" <<-'INIT'
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		mount -t proc proc /proc
		mount -t sysfs sysfs /sys
		mount -t devtmpfs devtmpfs /dev
		mount -t securityfs securityfs /sys/kernel/security
		say() { echo "said: $*"; }
	INIT
	chmod +x "$1/init"
}

# The file system of the kernel that is booted by kexec.
make_second() {
	begin "$tmp/second"
	cat >>"$tmp/second/init" <<-'INIT'
		say "second lockdown $(cat /sys/kernel/security/lockdown)"
		say "second parameters $(cat /proc/cmdline)"
		say second end
		poweroff -f
	INIT
	pack "$tmp/second" "$root/second"
}

make_initrd() {
	# Modules that need no particular hardware.
	local names=(arch crypto fs lib net drivers/block drivers/net drivers/virtio)
	begin "$root"
	mkdir -p "$modules"
	cp -a "$signed/modules/." "$modules"
	# tcrypt only tests algorithms, for minutes, and never stays.
	(cd "$modules" && find "${names[@]/#/kernel/}" -name '*.ko*' ! -name 'tcrypt.*') |
		sed 's:.*/::; s/\.ko.*//' | sort >"$root/names"
	depmod -b "$root" "$KVER" || return
	cp "$stage/modules/kernel/drivers/net/dummy.ko.xz" "$root/unsigned.ko.xz" || return
	gcc -static -O2 -Wall -Werror -o "$root/bin/kexec" tests/hosts/release/kexec.c || return
	cp "$signed/vmlinuz" "$root/signed" && cp "$stage/vmlinuz" "$root/unsigned" && make_second || return
	# For modules that ask the kernel for others.
	ln -s ../bin/busybox "$root/sbin/modprobe"
	echo "switches='${switches[*]}'" >>"$root/init"
	cat >>"$root/init" <<-'INIT'
		say "lockdown $(cat /sys/kernel/security/lockdown)"
		say "unsigned $(insmod /unsigned.ko.xz 2>&1 && echo loaded)"
		# Before the modules load: their messages push this one out of the log.
		dmesg | grep X.509 | sed 's/^/said: log /'
		while read -r name; do
			modprobe $name 2>>/errors && echo $name >>/loaded
		done </names
		sed 's/^/said: error /' /errors
		say "loaded $(wc -l </loaded)"
		for switch in $switches; do
			sysctl -qw $switch && say "switch $(sysctl ${switch%=*})"
		done
		dmesg | grep 'verification failed' | sed 's/^/said: log /'
		say "taint $(cat /proc/sys/kernel/tainted)"
		say "kexec of the unsigned kernel $(kexec load /unsigned /second '' 2>&1 && echo loaded)"
		say "kexec of the signed kernel $(kexec load /signed /second 'console=ttyS0 no_timer_check second' 2>&1 && echo loaded)"
		say end
		kexec boot
	INIT
	pack "$root" "$tmp/initrd"
}

check 'a boot loader is signed with a key that the firmware knows' make_loader
began=$SECONDS
check 'the stage is signed' sign
[ -f "$signed/vmlinuz" ] || done_testing
echo "# $((SECONDS - began)) s for $(find "$signed/modules" -name '*.ko*' | wc -l) modules"
check 'no module of the stage is signed' test "$(unsigned "$stage" | wc -l)" = "$(find "$stage/modules" -name '*.ko*' | wc -l)"
check_empty 'each module of the signed stage is signed' "$(unsigned "$signed")"
check 'sbverify accepts vmlinuz' sbverify --cert "$snakeoil.pem" "$signed/vmlinuz"
check 'an initial RAM file system is made' make_initrd

secure_boot 2048 3000 'said: second end|Error loading|Kernel panic|Power down' "$signed/vmlinuz" "$tmp/initrd" >"$tmp/serial.txt"
grep -o 'said: .*' "$tmp/serial.txt" >"$tmp/said"
denied='(Operation not permitted|Key was rejected by service|Required key not available)'
said() {
	grep -qE "^said: $1\$" "$tmp/said" || { tail -n 20 "$tmp/said" "$tmp/serial.txt"; return 1; }
}
check 'the kernel boots, and knows that Secure Boot is on' grep -q 'secureboot: Secure boot enabled' "$tmp/serial.txt"
check 'the init of the test gets to its end' said end
check 'the kernel is locked down' said 'lockdown none \[integrity\] confidentiality'
check 'the kernel refuses a module without our signature' said "unsigned .*$denied"
check 'the kernel has our certificate' said "log .*Loaded X.509 cert 'SnakeOil: .*"
total=$(wc -l <"$root/names")
loaded=$(sed -n 's/^said: loaded //p' "$tmp/said")
sed -n 's/^said: error /# /p' "$tmp/said"
echo "# $loaded of $total modules loaded"
check 'most modules load' [ "$((${loaded:-0} * 4))" -ge "$((total * 3))" ]
check_empty 'none of our modules is refused for its signature' \
	"$(grep -E "^said: error .*$denied" "$tmp/said")"
for switch in "${switches[@]}"; do
	check "${switch%=*} is turned on" said "switch ${switch%=*} = ${switch#*=}"
done
check 'the kernel is not tainted' said 'taint 0'
# ENODATA: it has no signature.
check 'kexec refuses the unsigned kernel' said 'kexec of the unsigned kernel kexec_file_load: No data available'
check 'kexec loads the signed kernel' said 'kexec of the signed kernel loaded'
check 'the kernel that kexec loaded boots' said 'second parameters .*no_timer_check second'
check 'the kernel that kexec loaded is locked down, too' said 'second lockdown none \[integrity\] confidentiality'
done_testing
