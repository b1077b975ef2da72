#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Compile faultline-stalls into the folder OUT.  Needs clang, bpftool and libbpf.
# BOUNDS has options for a test, such as -DMAX_WAITERS=16.
set -eu
[ $# -eq 1 ] || {
	echo 'usage: rollout/stalls/build.sh OUT' >&2
	exit 2
}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
CC=${CC:-cc}
# Where Debian has <asm/types.h>, which clang does not look for with this target.
multiarch=$($CC -print-multiarch 2>/dev/null || true)

# Rows of sysctl/switches, and names of system calls, as C.
awk '/^vm\./ { printf "\t{ \"%s\", %s, %s },\n", $1, $4, $5 }' \
	"$here/../../sysctl/switches" >"$out/switches.inc"
nr_switches=$(wc -l <"$out/switches.inc")
echo '#include <sys/syscall.h>' | $CC -E -dM -x c - |
	sed -n 's/^#define __NR_\([a-z0-9_]*\) [0-9].*/\t{ __NR_\1, "\1" },/p' |
	LC_ALL=C sort >"$out/syscalls.inc"
grep -q '__NR_munmap,' "$out/syscalls.inc" || {
	echo "rollout/stalls/build.sh: $CC -E lists no system calls of <sys/syscall.h>:" \
		'install the headers of the C library' >&2
	exit 1
}

# v3 has atomic operations that return the old value; kernels since 5.12 know it.
# shellcheck disable=SC2086 # words
clang -g -O2 -Wall -Werror -mcpu=v3 -target bpf -D__TARGET_ARCH_x86 \
	-fdebug-compilation-dir=. "-ffile-prefix-map=$here=." ${multiarch:+"-I/usr/include/$multiarch"} \
	${BOUNDS:-} -c "$here/stalls.bpf.c" -o "$out/stalls.bpf.full.o"
# Debug information beyond the types and relocations that libbpf reads.
bpftool gen object "$out/stalls.bpf.o" "$out/stalls.bpf.full.o"
bpftool gen skeleton "$out/stalls.bpf.o" name stalls_bpf >"$out/stalls.skel.h"

# shellcheck disable=SC2086 # words
$CC ${CFLAGS:--O2 -Wall} ${BOUNDS:-} -D_GNU_SOURCE "-DNR_SWITCHES=$nr_switches" \
	"-ffile-prefix-map=$here=." "-ffile-prefix-map=$out=." "-I$out" "-I$here" -o "$out/faultline-stalls" \
	"$here"/main.c "$here"/watch.c "$here"/report.c "$here"/causes.c "$here"/record.c \
	"$here"/output.c ${LDFLAGS:-} -lbpf
