#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The owner's certificate in a bzImage, of flavour tiny.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"

flavour=tiny
unpack() {
	sh "$BUILD/tree/scripts/extract-vmlinux" "$1"
}
build_id() {
	readelf -n "$1" | sed -n 's/.*Build ID: //p'
}
expected() {
	objcopy -R .comment -S "$1" "$tmp/vmlinux.bin" &&
		cat "$tmp/vmlinux.bin" "$out/arch/x86/boot/compressed/vmlinux.relocs"
}
# Everything but the packed kernel and the CRC behind it.
layout() {
	python3 - "$1" <<-'PYTHON'
		import pathlib, struct, sys
		data = pathlib.Path(sys.argv[1]).read_bytes()
		offset, size = struct.unpack_from("<II", data, 0x248)
		start = (data[0x1f1] + 1) * 512 + offset
		sys.stdout.buffer.write(data[:start] + data[start + size - 4:-4])
	PYTHON
}
# shellcheck source=tests/lib/certificate.sh
. "$TOP/tests/lib/certificate.sh"

check 'the signed kernel has the build ID of vmlinux and its debug information' \
	test "$(build_id "$tmp/kernel")" = "$(build_id "$out/vmlinux")"
done_testing
