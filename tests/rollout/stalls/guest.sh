# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_kernels.py: faultline-stalls watches while survey and
# holders make each cause on purpose.  MIB is the memory of an operation, the other words are
# operations, as OPERATION/CALL/SWITCH.
#
# /out has what was seen of the causes, of those that holders makes in huge pages, of an idle host,
# and of waiters that were killed.
set -u
mib=$1
shift
# The other thread of survey may have no CPU while an operation has the lock, so that nobody waits
# for that: operations are repeated until their row is there, at most so often.
PASSES=5

# shellcheck source=watch.sh
. ./watch.sh

begin idle
sleep 5
end

# Whether a report has the row of an operation.
is_named() {
	call=${1#*/}
	switch=${call#*/}
	grep -F "\"holder\": \"survey\", \"call\": \"${call%/*}\", " /out/causes-*.json |
		grep -qF "\"switch\": $switch, "
}

pass=1
while [ $pass -le $PASSES ]; do
	begin causes-$pass --record /out/record
	for operation; do
		is_named "$operation" ||
			survey --arms x --rounds 3 --size "$mib" "${operation%%/*}" || exit 1
	done
	end
	faultline-stalls show /out/record --json >/out/shown-$pass.json || exit 1
	missing=
	for operation; do
		is_named "$operation" || missing=$operation
	done
	[ "$missing" ] || break
	pass=$((pass + 1))
done

# A page of hugetlb is cleared within a few milliseconds.
begin huge --min 200us
holders >/out/holders || exit 1
end

begin killed
for seconds in 1 2 3; do
	survey --arms x --rounds 100 --size "$mib" mlock mprotect_r >/dev/null &
	sleep $seconds
	kill -KILL $!
	wait $!
done
end

sleep 1000 &
ended=$!
begin ended --pid $ended
kill $ended
wait $ended
end

mount -t tmpfs none /sys/kernel/btf
faultline-stalls --seconds 1 2>/out/no-btf.err && exit 1
umount /sys/kernel/btf
faultline-stalls --seconds 1 --pid 999999 2>/out/no-process.err && exit 1
faultline-stalls --seconds 1 --cgroup nowhere 2>/out/no-cgroup.err && exit 1
exit 0
