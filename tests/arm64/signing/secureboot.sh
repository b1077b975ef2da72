#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The firmware of a VM with Secure Boot on starts the Image of flavour tiny-arm64 if
# sign-stage has signed it with an enrolled key, and in no other case.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
machine=aarch64
# shellcheck source=tests/lib/secureboot.sh
. "$TOP/tests/lib/secureboot.sh"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
stage=$BUILD/stage/tiny-arm64
if ! has_secureboot; then
	ok 'firmware with Secure Boot' 'no qemu-efi-aarch64'
	done_testing
fi
make_key || exit
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=throw-away other' \
	-addext basicConstraints=critical,CA:FALSE \
	-keyout "$tmp/other.key" -out "$tmp/other.crt" 2>/dev/null || exit
for owner in enrolled other; do
	check "the stage is signed with the key $owner" tools/fl package sign-stage "$stage" "$tmp/$owner" \
		--key "$tmp/$owner.key" --cert "$tmp/$owner.crt"
done

boot() {
	secure_boot 512 900 'Access Denied|Secure [Bb]oot (is )?(enabled|disabled|could)' "$1" >"$tmp/said"
}
boots() {
	boot "$1"
	grep -qE 'Secure [Bb]oot (is )?enabled' "$tmp/said" || { tail -n 5 "$tmp/said"; return 1; }
}
denied() {
	boot "$1"
	grep -q 'Access Denied' "$tmp/said" && ! grep -qE 'EFI stub|Linux version' "$tmp/said" && return
	tail -n 5 "$tmp/said"
	return 1
}
check 'the firmware refuses an unsigned kernel' denied "$stage/vmlinuz"
check 'the firmware refuses a kernel signed with an unknown key' denied "$tmp/other/vmlinuz"
check 'the firmware starts a kernel signed with the enrolled key' boots "$tmp/enrolled/vmlinuz"
cp "$tmp/enrolled/vmlinuz" "$tmp/changed"
printf x | dd of="$tmp/changed" bs=1 seek=1000000 conv=notrunc status=none
check 'the firmware refuses a signed kernel after tampering' denied "$tmp/changed"
done_testing
