#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Package scripts run this before faultline-host is removed: no switch is left on, no
# kernel is on trial without its checks, and no metric stays.  It reports problems, but
# never fails: a package that cannot be removed stops the upgrades of a host.
set -u
# shellcheck source=common.sh
. "${FAULTLINE_LIB:-/usr/lib/faultline}/common.sh" || exit 0
program=faultline-host
root=${FAULTLINE_ROOT-}
sbin=${FAULTLINE_SBIN:-/usr/sbin}
trial=$root/etc/faultline/trial

"$sbin/faultline-ab" stop --all ||
	say "warning: some switches may not be as before (above): set them with sysctl -w, or reboot; ${FAULTLINE_RUN:-/run/faultline}/ab has their values"
# Without the program they would fail each minute.
${FAULTLINE_SYSTEMCTL:-systemctl} stop 'faultline-ab@*' 'faultline-ab-expire@*' 'faultline-hold@*' 2>/dev/null

case $(field state "$trial") in
requested | trying | failed)
	kernel=$(field kernel "$trial")
	# A plain back would take back a pin, too.
	if "$sbin/faultline-boot" back --next; then
		rm -f "$trial"
		say "nothing is on trial any more: $kernel was"
	else
		say "warning: $kernel is still on trial (above): look at the order of boot (bootctl list, or grub-editenv list) before the next reboot"
	fi
	;;
esac
[ ! -e "$root/etc/faultline/default-before" ] ||
	say "the kernel that faultline-boot pin has chosen stays the default; see bootctl list, or grub-editenv list"
for metrics in faultline_ab faultline_boot; do
	publish $metrics </dev/null
done
exit 0
