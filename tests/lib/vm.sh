# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For test programs that boot a kernel.  Source it after tap.sh.

# The image of a flavour.
image() {
	case $1 in
	ppc64le*) printf '%s\n' "$BUILD/$1/vmlinux" ;;
	*) printf '%s\n' "$BUILD/$1/arch/x86/boot/bzImage" ;;
	esac
}

# in_vm FLAVOUR NAME [OPTION...] -- COMMAND...: tests/vm/run with the kernel of
# the flavour; logs go to build/vm/NAME.
in_vm() {
	local flavour=$1 name=$2
	shift 2
	tests/vm/run --kernel "$(image "$flavour")" --name "$name" \
		--out "$BUILD/vm/$name" "$@"
}

# The programs of tools/testing/selftests/mm/faultline, in build/selftests.
build_selftests() {
	build_selftests_in selftests
}

# build_selftests_in FOLDER [VARIABLE=VALUE...]: the same in build/FOLDER; the
# variables are for make.
build_selftests_in() {
	local name=$1
	local log=$BUILD/log/$name.log

	mkdir -p "$BUILD/log" "$BUILD/$name"
	make -C "$BUILD/tree/tools/testing/selftests/mm/faultline" \
		OUTPUT="$BUILD/$name" "${@:2}" >"$log" 2>&1 || {
		tail -20 "$log" >&2
		echo "the selftests do not build: see $log" >&2
		return 1
	}
}
