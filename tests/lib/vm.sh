# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# For test programs that boot a kernel.  Source it after tap.sh.

# image FLAVOUR: the path of its kernel image.
image() {
	tests/lab flavour image "$1"
}

# in_vm FLAVOUR NAME [--selftests "PROGRAM..."] [OPTION...] -- COMMAND...: calls
# tools/fl vm run with the kernel of the flavour, and with selftests from
# tests/lib/selftests.sh and ktap-all in the guest; logs go to build/vm/NAME.
in_vm() {
	local flavour=$1 name=$2 kernel program files=() selftests
	shift 2
	kernel=$(image "$flavour") || return
	if [ "$1" = --selftests ]; then
		selftests=$(tests/lab flavour selftests "$flavour") || return
		files=(--file packaging/share/run-selftests:ktap-all)
		for program in $2; do
			files+=(--file "$selftests/$program")
		done
		shift 2
	fi
	tools/fl vm run --kernel "$kernel" --name "$name" \
		--out "$BUILD/vm/$name" "${files[@]}" "$@"
}
