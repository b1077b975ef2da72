#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Copy the files of the package faultline-host to their places below DESTDIR.
set -eu
[ $# -eq 1 ] || {
	echo 'usage: rollout/host/install.sh DESTDIR' >&2
	exit 2
}
here=$(dirname "$0")
usr=$1/usr
umask 022

# put MODE FOLDER FILE...
put() {
	mode=$1 folder=$2
	shift 2
	mkdir -p "$folder"
	for file; do
		install -m "$mode" "$here/$file" "$folder/"
	done
}

put 755 "$usr/sbin" faultline-ab faultline-boot
put 644 "$usr/lib/faultline" common.sh owners.sh plan.sh state.sh units/boot-complete.conf
put 755 "$usr/lib/faultline" before-removal.sh
put 755 "$usr/lib/faultline/health.d" health.d/10-kernel health.d/20-units
put 755 "$usr/lib/systemd/system-generators" faultline-trial-generator
put 644 "$usr/lib/systemd/system" units/faultline-ab@.service units/faultline-ab@.timer \
	units/faultline-ab-expire@.service units/faultline-ab-expire@.timer \
	units/faultline-hold@.service units/faultline-gate.service units/faultline-health.service
mkdir -p "$usr/lib/tmpfiles.d"
install -m 644 "$here/units/tmpfiles.conf" "$usr/lib/tmpfiles.d/faultline-host.conf"
put 644 "$usr/share/bash-completion/completions" completion/faultline-ab completion/faultline-boot
put 644 "$usr/share/man/man8" faultline-ab.8 faultline-boot.8
