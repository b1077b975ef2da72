# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/ab-vm.sh: faultline-ab against the kernel's own
# switches.  It prints TAP.
set -u
# shellcheck source=tests/rollout/guest-lib.sh
. /test/guest-lib.sh
export FAULTLINE_RUN=/run/faultline

at() {
	echo "$1" >/tmp/clock
}

ab() {
	sh /test/faultline-ab "$@" >>/tmp/said 2>&1
}

reads() { # SWITCH VALUE
	[ "$(cat "/proc/sys/vm/$1")" = "$2" ] && return
	echo "vm.$1 is $(cat "/proc/sys/vm/$1"), not $2" >>/tmp/said
	return 1
}

# The whole way: stock, arm a, arm b, and stock again by stop and by expiry.
experiment() { # SWITCH STOCK A B
	reads "$1" "$2" && plan "$1" "$3" "$4" && at 900 && ab start /tmp/plan && ab apply real &&
		reads "$1" "$2" && at 1000 && ab apply real && reads "$1" "$3" &&
		at 1060 && ab apply real && reads "$1" "$4" &&
		grep -q 'arm="b",slot="1"' /tmp/textfile/faultline_ab.prom &&
		ab stop && reads "$1" "$2" && [ ! -e /tmp/textfile/faultline_ab.prom ] &&
		ab start /tmp/plan && ab apply real && reads "$1" "$4" && at 9000 &&
		ab stop --expired real && reads "$1" "$2"
}

flips() { # SWITCH STOCK A B
	: >/tmp/said
	experiment "$@"
	result $? "vm.$1: $2, $3, $4 and back, by stop and by expiry"
	[ "$(dmesg | grep -c "faultline: vm.$1: .* by ")" -ge 2 ]
	result $? "vm.$1: the kernel logs the changes"
}

if [ "$1" = off ]; then
	: >/tmp/said
	plan speculative_page_fault 0 1
	at 900
	! ab start /tmp/plan && grep -q 'faultline=off' /tmp/said && [ ! -e /run/faultline/ab/real.plan ]
	result $? 'faultline=off on the real command line'
	# A look at the switches alone would show it too.
	: >/tmp/said
	! FAULTLINE_CMDLINE=/dev/null ab start /tmp/plan && grep -q 'cannot be written' /tmp/said
	result $? 'switches that are read-only'
	echo "1..$count"
	exit
fi

while read -r switch _ max stock on _ new; do
	case $switch in vm.*) ;; *) continue ;; esac
	# A value that acts on new mappings only cannot alternate.
	[ "$on" != "$new" ] || on=$max
	flips "${switch#vm.}" "$stock" "$stock" "$on"
	# The kernel logs ten changes in five seconds at most.
	sleep 3
done <$FAULTLINE_SWITCHES

# 2 is only in kernels for comparisons, so this one refuses it with EINVAL.
: >/tmp/said
plan pmd_clear_ipi_free 0 2
at 900
ab start /tmp/plan && at 1060 && ! ab apply real && reads pmd_clear_ipi_free 0 &&
	grep -q 'the kernel refuses vm.pmd_clear_ipi_free=2' /tmp/said &&
	grep -q '_noncompliant_total.* 1$' /tmp/textfile/faultline_ab.prom
result $? 'EINVAL: the kernel keeps its value, and the refusal is counted'
ab stop --all && reads pmd_clear_ipi_free 0
result $? 'EINVAL: the experiment stops'
echo "1..$count"
