#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The owner's certificate in an Image, of flavour tiny-arm64.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"

flavour=tiny-arm64
# The Image is the kernel, and nothing else.
unpack() {
	bare "$1"
}
expected() {
	aarch64-linux-gnu-objcopy -O binary -R .note -R .note.gnu.build-id -R .comment -S \
		"$1" "$tmp/vmlinux.bin" && cat "$tmp/vmlinux.bin"
}
layout() { :; }
# shellcheck source=tests/lib/certificate.sh
. "$TOP/tests/lib/certificate.sh"
done_testing
