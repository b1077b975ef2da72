# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest: fails if a switch is not as on the kernel command line, as the kernel only
# logs that.  Prints the release of the kernel, which an image for arm64 does not carry.
# shellcheck disable=SC2013 # words
for word in $(cat /proc/cmdline); do
	setting=${word#sysctl.vm.}
	if [ "$setting" != "$word" ] && [ "$(cat "/proc/sys/vm/${setting%%=*}")" != "${setting#*=}" ]; then
		echo "the kernel does not have $word" >&2
		exit 1
	fi
done
echo "release $(cat /proc/sys/kernel/osrelease)"
