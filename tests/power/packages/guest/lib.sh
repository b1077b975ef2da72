# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# Results of a step, which tests/power/packages/deb.sh reads.

# /mnt is the second disk.
# shellcheck disable=SC2034 # the steps use it
KVER=$(cat /mnt/kver)

# check NAME COMMAND...
check() {
	name=$1
	shift
	if "$@" >/tmp/check.log 2>&1; then
		echo "ok - $name"
	else
		sed 's/^/# /' /tmp/check.log | tail -n 40
		echo "not ok - $name"
	fi
}

# apt-get without questions.
apt_get() {
	DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends "$@"
}
