#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Redis with MIB of values of 2 KiB, and a client that sets and gets them.
#
# flush: after two seconds all of them are freed by another thread (FLUSHALL
# ASYNC).  bgsave: after two seconds a child writes all of them to a file.
# purge: as flush, and then a command gives all the free memory back (MEMORY
# PURGE), as a cron job may do.
#
# watched: half of the keys are new, so that Redis maps memory for them, beside an
# agent that measures its memory.
# shellcheck disable=SC1091,SC2154
. /bench/workloads/common.sh

keys=$((mib * 1024 / 2)) asked=$keys
[ "$variant" != watched ] || asked=$((2 * keys))

start_redis $keys --disable-thp no
counters before
/bench/client "$REDIS_SOCKET" "$ms" "$out" $asked "$REDIS_SIZE" &
client=$!
sleep 2
case $variant in
flush) redis flushall async >/dev/null ;;
purge)
	redis flushall async >/dev/null
	sleep 2
	redis memory purge >/dev/null
	;;
bgsave) redis bgsave >/dev/null ;;
watched) watch_memory "$server" & ;;
*)
	echo "redis: no variant $variant" >&2
	exit 1
	;;
esac
wait $client
counters after
stop_redis
rm -f /tmp/dump.rdb
