# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_cost.py: programs in which nobody waits, with
# faultline-stalls running and without it, in turns.
set -u
# shellcheck source=watch.sh
. ./watch.sh

for turn in 1 2 3; do
	for arm in without with; do
		[ $arm = without ] || begin "$turn"
		munmap --arms $arm --rounds 1 cost || exit 1
		hugetlb --arms $arm --rounds 1 cost || exit 1
		micro --arms $arm --rounds 1 --mode processes --ms 100 page_fault1 page_fault3 mmap1 \
			threadspawn1 case-hugetlb || exit 1
		[ $arm = without ] || end
	done
done
exit 0
