# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_programs.py: faultline-stalls watches each of the scenes
# of tests/bench/workloads that is named as SCENE:MS:MIB.
set -u
# shellcheck source=watch.sh
. ./watch.sh

# For the scraper.
ip link set lo up || exit 1
for word; do
	scene=${word%%:*} rest=${word#*:}
	begin "$scene"
	# A disk is mounted once.
	unshare -m sh workloads/run.sh "$scene" x "${rest%%:*}" "${rest#*:}" || exit 1
	end
done
exit 0
