# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For test programs that boot a kernel.  Source it after tap.sh.

# image FLAVOUR: the path of its kernel image.
image() {
	case $1 in
	ppc64le*) printf '%s\n' "$BUILD/$1/vmlinux" ;;
	microvm-arm64*) printf '%s\n' "$BUILD/$1/arch/arm64/boot/Image" ;;
	*) printf '%s\n' "$BUILD/$1/arch/x86/boot/bzImage" ;;
	esac
}

# selftests_of FLAVOUR: the folder of its selftests below build/.
selftests_of() {
	case $1 in
	ppc64le*) echo selftests-ppc64le ;;
	microvm-arm64*) echo selftests-aarch64 ;;
	*) echo selftests ;;
	esac
}

# in_vm FLAVOUR NAME [--selftests "PROGRAM..."] [OPTION...] -- COMMAND...: calls
# tools/fl vm run with the kernel of the flavour, and with selftests from
# tests/lib/selftests.sh and ktap-all in the guest; logs go to build/vm/NAME.
in_vm() {
	local flavour=$1 name=$2 program files=()
	shift 2
	if [ "$1" = --selftests ]; then
		files=(--file packaging/share/run-selftests:ktap-all)
		for program in $2; do
			files+=(--file "$BUILD/$(selftests_of "$flavour")/$program")
		done
		shift 2
	fi
	tools/fl vm run --kernel "$(image "$flavour")" --name "$name" \
		--out "$BUILD/vm/$name" "${files[@]}" "$@"
}
