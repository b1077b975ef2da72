# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# In the guest of tests/rollout/stalls/test_kernels.py: faultline-stalls watches while survey and
# holders make each cause on purpose.  MIB is the memory of an operation, the other words are operations.
#
# /out has what was seen of the causes, of those that holders makes in huge pages, of an idle host,
# and of waiters that were killed.
set -u
mib=$1
shift

# begin NAME OPTION...: start watching; returns once it does.
begin() {
	name=$1
	shift
	faultline-stalls --seconds 500 --json "$@" >"/out/$name.json" 2>"/out/$name.err" &
	watcher=$!
	tries=0
	until grep -q 'watching for' "/out/$name.err"; do
		tries=$((tries + 1))
		if [ $tries = 300 ] || ! kill -0 $watcher; then
			echo "$name: it does not watch, after $tries s:"
			cat "/out/$name.err"
			exit 1
		fi
		sleep 1
	done
}

end() {
	kill -INT $watcher
	wait $watcher || exit 1
}

begin idle
sleep 5
end

begin causes --record /out/record
for operation; do
	survey --arms x --rounds 1 --size "$mib" "$operation" || exit 1
done
end
faultline-stalls show /out/record --json >/out/shown.json || exit 1

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

mount -t tmpfs none /sys/kernel/btf
faultline-stalls --seconds 1 2>/out/no-btf.err && exit 1
umount /sys/kernel/btf
faultline-stalls --seconds 1 --pid 999999 2>/out/no-process.err && exit 1
faultline-stalls --seconds 1 --cgroup nowhere 2>/out/no-cgroup.err && exit 1
exit 0
