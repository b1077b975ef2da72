# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# The owner's certificate in the kernel: what sign-stage changes in a stage of the
# caller's flavour, compared with what the kernel's own programs make of it, and
# which modules the kernel then loads in VMs without a MOK or other key.
#
# Source it after tap.sh, with these of the architecture:
#
#   flavour=FLAVOUR
#   unpack VMLINUZ       prints the kernel in it
#   expected VMLINUX     prints the kernel that the build packs
#   layout VMLINUZ       prints what else is in it
: "${flavour:?}"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
stage=$BUILD/stage/$flavour
out=$BUILD/$flavour
signed=$tmp/signed

gcc -O1 -o "$tmp/insert-sys-cert" "$BUILD/tree/scripts/insert-sys-cert.c" || exit
for owner in ours others; do
	openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=throw-away $owner" \
		-addext basicConstraints=critical,CA:FALSE \
		-keyout "$tmp/$owner.key" -out "$tmp/$owner.crt" 2>/dev/null || exit
done
openssl x509 -in "$tmp/ours.crt" -outform der -out "$tmp/ours.der"

# sign OWNER SIGNED [STAGE]
sign() {
	tools/fl package sign-stage "${3:-$stage}" "$2" --key "$tmp/$1.key" --cert "$tmp/$1.crt"
}
# sums FOLDER
sums() {
	(cd "$1" && find . -type f -exec sha256sum {} + | sort -k 2)
}
# bare VMLINUZ: prints it without the signature and the checksum of the PE header.
bare() {
	cp "$1" "$tmp/bare"
	sbattach --remove "$tmp/bare" >/dev/null 2>&1
	dd if=/dev/zero of="$tmp/bare" bs=1 count=4 conv=notrunc status=none \
		seek=$(($(od -An -tu4 -j 60 -N 4 "$1") + 88))
	cat "$tmp/bare"
}

# --- What changes

before=$(sums "$stage")
check 'a stage is signed' sign ours "$signed"
check 'the stage itself is not changed' diff <(printf '%s\n' "$before") <(sums "$stage")
check 'only vmlinuz, the modules and the certificate for mokutil differ' diff \
	<(cd "$stage" && { find . -name '*.ko'; printf './%s\n' vmlinuz doc/secureboot.der; } | sort) \
	<(diff <(printf '%s\n' "$before") <(sums "$signed") | sed -n 's/^[<>] [0-9a-f]*  //p' | sort -u)

unpack "$stage/vmlinuz" >"$tmp/kernel"
check 'vmlinuz of the stage has the kernel of the build' cmp "$tmp/kernel" <(expected "$out/vmlinux")
bare "$signed/vmlinuz" >"$tmp/ours"
unpack "$tmp/ours" >"$tmp/kernel"
cp "$out/vmlinux" "$tmp/vmlinux"
"$tmp/insert-sys-cert" -b "$tmp/vmlinux" -c "$tmp/ours.der" 2>/dev/null
check 'insert-sys-cert makes the same kernel' cmp "$tmp/kernel" <(expected "$tmp/vmlinux")
check 'the sizes and offsets in vmlinuz do not change' cmp <(layout "$stage/vmlinuz") <(layout "$tmp/ours")
check 'without signature vmlinuz is as long as before' \
	test "$(stat -c %s "$tmp/ours")" = "$(stat -c %s "$stage/vmlinuz")"
check 'the stage is signed once more' sign ours "$tmp/again"
check 'without signature vmlinuz is the same in both signed stages' cmp <(bare "$tmp/again/vmlinuz") "$tmp/ours"
check 'others sign the stage' sign others "$tmp/others"
check 'we sign a stage that others have signed' sign ours "$tmp/back" "$tmp/others"
check 'nothing is left of the certificate of others' cmp <(bare "$tmp/back/vmlinuz") "$tmp/ours"

# --- What the kernel loads

cat >"$tmp/load" <<-'SH'
	#!/bin/sh
	for name in ours others nobodys; do
		echo "$name: $(insmod $name.ko 2>&1 && echo loaded)"
	done
SH
chmod +x "$tmp/load"

# loads TITLE KERNEL PARAMETER REGEX...: boots it and loads the module that we signed, the
# one that others signed, and the one that nobody signed; each answer matches its REGEX.
loads() {
	local title=$1 kernel=$2 parameter=$3 said name
	shift 3
	said=$(tools/fl vm run --kernel "$kernel" --name certificate --out "$tmp/vm" \
		--quiet --cpus 1 --mem 256 --append "$parameter" \
		--file "$signed/modules/kernel/lib/crc4.ko:ours.ko" \
		--file "$tmp/others/modules/kernel/lib/crc7.ko:others.ko" \
		--file "$stage/modules/kernel/lib/crc8.ko:nobodys.ko" --file "$tmp/load" -- load) || true
	for name in ours others nobodys; do
		if grep -qE "^$name: $1\$" <<<"$said"; then
			ok "$title: $name.ko $1"
		else
			not_ok "$title: $name.ko $1" <<<"$said"
		fi
		shift
	done
}
# certificates: the lines about them in the log of the last VM.
certificates() {
	grep -oE "Loaded X.509 cert '[^:]*|Problem loading in-kernel X.509.*" "$tmp/vm/console.log"
}
# reasons: why the last VM refused modules, and how often; busybox tries each twice.
reasons() {
	grep -oE 'Loading of .* is rejected' "$tmp/vm/console.log" | sort | uniq -c | sed 's/^ *//'
}
unsigned='Loading of unsigned module is rejected'
unknown='Loading of module with unavailable key is rejected'
refused="insmod: can't insert '.*': Key was rejected by service"
locked="insmod: can't insert '.*': Operation not permitted"

loads 'module.sig_enforce=1, with the certificate' "$signed/vmlinuz" module.sig_enforce=1 \
	loaded "$refused" "$refused"
check 'the kernel has read our certificate and no other' \
	test "$(certificates)" = "Loaded X.509 cert 'throw-away ours"
check 'the kernel logs which key or signature it misses' diff <(reasons) <(printf '2 %s\n' "$unknown" "$unsigned")
loads 'module.sig_enforce=1, without the certificate' "$stage/vmlinuz" module.sig_enforce=1 \
	"$refused" "$refused" "$refused"
check_empty 'the kernel of the stage has read no certificate' "$(certificates)"
check 'the kernel of the stage logs that it misses both keys' \
	diff <(reasons) <(printf '%s\n' "4 $unknown" "2 $unsigned")
loads 'lockdown=integrity, with the certificate' "$signed/vmlinuz" lockdown=integrity \
	loaded "$locked" "$locked"
loads 'lockdown=integrity, without the certificate' "$stage/vmlinuz" lockdown=integrity \
	"$locked" "$locked" "$locked"
