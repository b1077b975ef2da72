#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Runs the categories of upstream's run_vmtests.sh in the guest one by one, so that
# each result belongs to a category, and a category can be repeated alone.
# vmtests.sh CATEGORY...

cd mm || exit
for category; do
	echo "category $category"
	bash ./run_vmtests.sh -t "$category" </dev/null 2>&1
done | awk '
	{ print; fflush() }
	# The time at which each test ended, to find slow ones.
	/^(not )?ok / {
		getline uptime <"/proc/uptime"
		close("/proc/uptime")
		split(uptime, part, " ")
		print "uptime " part[1]
	}'
