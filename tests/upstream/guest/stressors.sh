#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs stress-ng in the guest, one stressor at a time, and prints how each ended.
# stressors.sh SECONDS "NAME [OPTION...]"...

seconds=$1
shift
cd /tmp || exit
for stressor; do
	echo "stressor $stressor"
	name=${stressor%% *}
	user=root
	# As root it would poison the memory that it uses, and be killed.
	[ "$name" != madvise ] || user=nobody
	# shellcheck disable=SC2086 # options
	sudo -u $user stress-ng --seed 1 --timeout "$seconds" --verify --temp-path /tmp \
		"--$name" 2 ${stressor#"$name"} </dev/null 2>&1
	status=$?
	read -r uptime _ </proc/uptime
	echo "status $status $uptime"
done
