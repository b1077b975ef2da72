# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_faults.py: faultline-stalls watches while a writer waits
# for threads whose page faults stop half-way.
set -u
# shellcheck source=watch.sh
. ./watch.sh

for scene; do
	begin "$scene"
	spf --arms x --rounds 1 --ms 2000 --mib 8 "$scene" || exit 1
	end
done
exit 0
