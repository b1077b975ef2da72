# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_estimate.py: for each word SCENE:SWITCH:ROUNDS:STOCK:ON,
# faultline-stalls watches while holders plays the scene with the switch off, and again with it on.
set -u
# shellcheck source=watch.sh
. ./watch.sh

for word; do
	scene=${word%%:*} rest=${word#*:}
	switch=${rest%%:*} rest=${rest#*:}
	rounds=${rest%%:*} values=${rest#*:}
	for arm in off on; do
		value=${values%%:*}
		[ $arm = off ] || value=${values#*:}
		echo "$value" >"/proc/sys/vm/$switch" || exit 1
		begin "$scene-$arm" --min 100us
		holders "$rounds" "$scene" || exit 1
		end
	done
	echo "${values%%:*}" >"/proc/sys/vm/$switch" || exit 1
done
exit 0
