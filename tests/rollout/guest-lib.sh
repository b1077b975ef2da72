# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# For programs in a guest that try faultline-ab or faultline-bench: their environment,
# and results as TAP.  A command leaves its messages in /tmp/said.
export FAULTLINE_LIB=/test FAULTLINE_SWITCHES=/test/switches FAULTLINE_TEXTFILE=/tmp/textfile \
	FAULTLINE_SYSTEMCTL=true FAULTLINE_TICK=0 FAULTLINE_CLOCK=/tmp/clock TZ=UTC
mkdir -p /run /tmp/textfile
count=0

result() { # STATUS NAME
	count=$((count + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $count - $2"
	else
		sed 's/^/# /' /tmp/said
		echo "not ok $count - $2"
	fi
}
