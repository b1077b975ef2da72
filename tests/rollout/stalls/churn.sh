# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_kernels.py: each of the programs named watches while
# churn makes short waits.  /out has what they saw, and what churn has counted.
set -u
# shellcheck source=watch.sh
. ./watch.sh

for watch; do
	begin "$watch" --min 1us
	churn 16 1000 >"/out/$watch.churn" || exit 1
	end
done
exit 0
