# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# On the installed kernel: flip the switches, run selftests, and remove it.
# shellcheck source=lib.sh
. /faultline/lib.sh

tests=/usr/lib/linux-selftests/$KVER
headers=/usr/src/linux-headers-$KVER

check "$KVER runs" test "$(uname -r)" = "$KVER"
check 'the machine is a POWER9 with the radix MMU' sh -c \
	"grep -q 'POWER9' /proc/cpuinfo && grep -q '^MMU.*Radix' /proc/cpuinfo"
check 'the kernel has loaded a module of the package' grep -q '^virtio_blk ' /proc/modules

# flips NAME STOCK ON: the switch has the stock value at boot, takes the other one, and is
# as at boot again.
flips() {
	test "$(sysctl -n "$1")" = "$2" && sysctl -w "$1=$3" &&
		test "$(sysctl -n "$1")" = "$3" && sysctl -w "$1=$2" &&
		test "$(sysctl -n "$1")" = "$2"
}
table=/usr/share/faultline/switches
check 'the package has the table of switches' test -s $table
while read -r switch _ _ stock on _; do
	case $switch in
	vm.hugetlb_pmd_sharing)
		check "$switch is absent, as POWER shares no tables" \
			test ! -e /proc/sys/vm/hugetlb_pmd_sharing
		;;
	vm.*) check "$switch is $on, and $stock again" flips "$switch" "$stock" "$on" ;;
	esac
done <$table
check 'the profile of the package is in range' sh -c \
	'sysctl -e -p /usr/share/faultline/profiles/jvm.conf && sysctl -e -p /usr/lib/sysctl.d/60-faultline.conf'

for test in toggles munmap_semantics madvise_semantics hugetlb_semantics spf_semantics \
	walk_semantics; do
	check "selftest $test" env FAULTLINE_SECONDS=1 FAULTLINE_COUNT=100 "$tests/run" "$test"
done

# runs PROGRAM: one for this machine; without arguments it shows its usage.
runs() {
	code=0
	"$1" </dev/null || code=$?
	test $code -ne 126 && test $code -ne 127
}
for program in scripts/basic/fixdep scripts/mod/modpost scripts/sign-file tools/objtool/objtool; do
	[ ! -e "$headers/$program" ] || check "the headers' $program runs here" runs "$headers/$program"
done
check 'the headers have modpost' test -x "$headers/scripts/mod/modpost"
check 'a program of faultline-bench measures' sh -c \
	"/mnt/faultline-bench/usr/libexec/faultline-bench/micro --arms here --tasks 1 --ms 200 mmap1 |
	grep -E '^sample mmap1_threads_1 ops/s here [1-9]'"
check 'the kernel logs no warning' sh -c \
	"! dmesg | grep -E 'WARNING:|BUG:|Oops|Call Trace'"

check 'the running kernel is not removed by accident' sh -c \
	"! DEBIAN_FRONTEND=noninteractive apt-get -y remove linux-image-$KVER && test -s /boot/vmlinux-$KVER"
FAULTLINE_REMOVE_RUNNING=1
export FAULTLINE_REMOVE_RUNNING
check 'apt removes all packages' apt_get purge '?name(faultline)'
check 'nothing of the kernel is left in /boot' sh -c "! ls /boot | grep $KVER"
check 'the modules of the kernel are gone' test ! -e "/lib/modules/$KVER"
check 'dpkg has nothing left to do' sh -c '! dpkg --audit | grep -q .'
