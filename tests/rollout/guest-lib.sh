# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# For programs in a guest that try faultline-ab or faultline-bench: their environment,
# a plan in /tmp/plan, and results as TAP.  A command leaves its messages in /tmp/said.
export FAULTLINE_LIB=/test FAULTLINE_SWITCHES=/test/switches FAULTLINE_TEXTFILE=/tmp/textfile \
	FAULTLINE_SYSTEMCTL=true FAULTLINE_TICK=0 FAULTLINE_CLOCK=/tmp/clock TZ=UTC
mkdir -p /run /tmp/textfile
count=0

plan() { # SWITCH A B
	{
		printf 'format=1\nname=real\nswitch=vm.%s\na=%s\nb=%s\nstart=1000\nslot=60\n' "$1" "$2" "$3"
		printf 'washout=10\nexpires=9000\nhost=guest\narms=ab\n'
		printf 'plan=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n'
	} >/tmp/plan
	printf 'sum=%s\n' "$(sha256sum </tmp/plan | cut -d ' ' -f 1)" >>/tmp/plan
}

result() { # STATUS NAME
	count=$((count + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $count - $2"
	else
		sed 's/^/# /' /tmp/said
		echo "not ok $count - $2"
	fi
}
