# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_kernels.py: each of the programs named watches while
# churn makes short waits.  /out has what they saw, and what churn has counted.
set -u
for watcher; do
	"$watcher" --seconds 500 --min 1us --json >"/out/$watcher.json" 2>"/out/$watcher.err" &
	tries=0
	until grep -q 'watching for' "/out/$watcher.err"; do
		tries=$((tries + 1))
		if [ $tries = 300 ] || ! kill -0 $!; then
			echo "$watcher: it does not watch, after $tries s:"
			cat "/out/$watcher.err"
			exit 1
		fi
		sleep 1
	done
	churn 16 1000 >"/out/$watcher.churn" || exit 1
	kill -INT $!
	wait $! || exit 1
done
exit 0
