#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/fl build: when it runs make and with which arguments, and how it
# fails.
#
# The kernel tree is a stand-in of a few lines; tests/build/objects.py compiles real
# files.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export BUILD=$tmp/build FAULTLINE_KERNEL_DIR=$tmp/kernel SOURCE_DATE_EPOCH=86400
tree=$BUILD/tree
out=$BUILD/microvm-off
log=$BUILD/log/microvm-off.log

mkdir -p "$tree/scripts/kconfig" "$FAULTLINE_KERNEL_DIR/config"
echo CONFIG_ONE=y >"$FAULTLINE_KERNEL_DIR/config/flavour-microvm.config"
printf 'config ONE\n\tbool "one"\n' >"$tree/Kconfig"
cat >"$tree/scripts/kconfig/merge_config.sh" <<'END'
#!/bin/sh
shift 3
cat "$@" >"$KCONFIG_CONFIG"
END
chmod +x "$tree/scripts/kconfig/merge_config.sh"
printf 'int x;\n' >"$tree/one.c"
cat >"$tree/Makefile" <<'END'
bzImage: $(O)/one.o
	mkdir -p $(O)/arch/x86/boot
	cp $< $(O)/arch/x86/boot/bzImage
	touch $(O)/vmlinux
$(O)/one.o: one.c
	@echo '  CC      one.o'
	$(CC) -c -o $@ $<
	env >$(O)/env
vmlinux: one.c
	$(CC) -c -o $(O)/vmlinux $<
	env >$(O)/env
other:
	@echo '  GEN     other'
slow:
	touch $(O)/slow
	sleep 600
allnoconfig:
	cp $(KCONFIG_ALLCONFIG) $(KCONFIG_CONFIG)
END
g=(git -C "$tree" -c user.name=t -c user.email=t@example.org)
"${g[@]}" init -q -b faultline
"${g[@]}" add -A
"${g[@]}" commit -q -m 'a tree'

build() {
	tools/fl build "$@" 2>&1
}

# Whether make has run since the last call of this function.
made() {
	local status=1
	[ ! -f "$log" ] || status=0
	rm -f "$log"
	return "$status"
}
not() {
	! "$@"
}

check 'a flavour builds' build microvm-off
check 'the build runs make' made
check 'the image exists' [ -s "$out/arch/x86/boot/bzImage" ]
check 'the time is recorded' python3 -c '
import json, sys
entry, = json.load(open(sys.argv[1]))["microvm-off"]
assert entry["whole"] and entry["steps"] == 1 and entry["cpu_s"] >= 0, entry' "$BUILD/log/times.json"

check 'building again succeeds' build microvm-off
check 'building again does not run make' not made

check 'another target builds' build microvm-off other
check 'another target runs make' made
check 'building that target again succeeds' build microvm-off other
check 'building that target again does not run make' not made
check 'building the first target again succeeds' build microvm-off
check 'building the first target again does not run make' not made

echo 'int y;' >>"$tree/one.c"
check 'building after an edit succeeds' build microvm-off
check 'an edit runs make' made
check 'building with the uncommitted edit succeeds again' build microvm-off
check 'an uncommitted edit runs make each time' made
"${g[@]}" checkout -q one.c
check 'building after undoing the edit succeeds' build microvm-off
check 'undoing an edit runs make once more' made
check 'building once more succeeds' build microvm-off
check 'building once more does not run make' not made
echo 'int z;' >>"$tree/one.c"
"${g[@]}" commit -q -a -m more
check 'building after a commit succeeds' build microvm-off
check 'a commit runs make' made

rm "$out/arch/x86/boot/bzImage"
check 'building with a missing image succeeds' build microvm-off
check 'a missing image runs make' made
check 'the image exists again' [ -s "$out/arch/x86/boot/bzImage" ]

rm -r "$out"
MAKEFLAGS='KCFLAGS=-O9' KCFLAGS=-O9 LOCALVERSION=-mine ARCH=arm64 VERSION=7 build microvm-off >/dev/null
check 'the caller'\''s variables have no effect' not grep -E '^(KCFLAGS|ARCH|VERSION)=|-mine' "$out/env"
check 'the local version is set' grep -qx 'LOCALVERSION=-off' "$out/env"
check 'the date is fixed' grep -qx 'KBUILD_BUILD_TIMESTAMP=Fri Jan 02 00:00:00 UTC 1970' "$out/env"

echo 'int broken(' >>"$tree/one.c"
said=$(build microvm-off)
status=$?
check 'a compile error fails' [ $status -eq 1 ]
check 'the compiler'\''s error is shown' grep -q 'one.c:3:.*error:' <<<"$said"
check 'the error names the log' grep -q "build: error: microvm-off did not compile.*microvm-off.log" <<<"$said"
check 'the log has the compiler'\''s error' grep -q 'one.c:3:.*error:' "$log"
"${g[@]}" checkout -q one.c
rm -f "$log"
check 'building after the fix succeeds' build microvm-off
check 'the build after a fix runs make' made

# eventually COMMAND...: wait until it succeeds.
eventually() {
	local end=$((SECONDS + 120))
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || { echo "failed for two minutes: $*" && return 1; }
		sleep 0.1
	done
}

# A killed build also kills its make, and does not count as successful.
tools/fl build microvm-off slow >/dev/null 2>&1 &
victim=$!
check 'a slow build runs' eventually [ -e "$out/slow" ]
tools/fl build microvm-off >"$tmp/second" 2>&1 &
second=$!
check 'a second build of the same flavour waits' eventually grep -q 'waiting for another' "$tmp/second"
kill -TERM $second
wait $second
kill -TERM $victim
wait $victim
status=$?
check 'a killed build fails' [ $status -ne 0 ]
check 'a killed build kills its make' not pgrep -f "O=$out.* slow"
rm -f "$log"
check 'the next build succeeds' build microvm-off
check 'the build after a killed one runs make' made

# A flavour for another architecture, with a stand-in for the cross compiler.
printf 'CONFIG_ONE=y\n' >"$FAULTLINE_KERNEL_DIR/config/flavour-ppc64le.config"
touch "$FAULTLINE_KERNEL_DIR"/config/{faultline,faultline-ppc64le,guest,kunit}.config
mkdir "$tmp/bin"
for tool in gcc ld; do
	# shellcheck disable=SC2016 # for the stand-in to expand
	printf '#!/bin/sh\necho "$0" >>"%s/cross"\nexec %s "$@"\n' "$tmp" $tool \
		>"$tmp/bin/powerpc64le-linux-gnu-$tool"
	chmod +x "$tmp/bin/powerpc64le-linux-gnu-$tool"
done
check 'a cross-compiled flavour builds' env PATH="$tmp/bin:$PATH" tools/fl build ppc64le
check 'a cross-compiled image exists' [ -s "$BUILD/ppc64le/vmlinux" ]
check 'make gets the architecture' grep -qx 'ARCH=powerpc' "$BUILD/ppc64le/env"
check 'make gets the compiler prefix' grep -qx 'CROSS_COMPILE=powerpc64le-linux-gnu-' "$BUILD/ppc64le/env"
check 'the cross compiler was used' grep -q "powerpc64le-linux-gnu-gcc$" "$tmp/cross"
# A PATH with everything but a cross compiler.
mkdir "$tmp/native"
for tool in dirname env git grep gcc ld make readlink; do ln -s "$(command -v $tool)" "$tmp/native/"; done
ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$tmp/native/python3"
said=$(PATH=$tmp/native tools/fl build ppc64le 2>&1)
check 'the error for a missing cross compiler says how to install it' \
	grep -q "powerpc64le-linux-gnu-gcc is not installed: run 'packaging/build-deps/install ppc64le'" <<<"$said"

said=$(build microvm-nosuch)
check 'an unknown flavour gives one error line' [ "$(grep -c "^fl build: error: no flavour 'microvm-nosuch'" <<<"$said")" = 1 ]
said=$(SOURCE_DATE_EPOCH=yesterday build microvm-off)
check 'an invalid date gives one error line' [ "$(grep -c '^fl build: error: SOURCE_DATE_EPOCH=yesterday' <<<"$said")" = 1 ]
done_testing
