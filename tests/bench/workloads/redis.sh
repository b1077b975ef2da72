#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Redis with MIB of values of 2 KiB, and a client that sets and gets them.
#
# flush: after two seconds all of them are freed by another thread (FLUSHALL
# ASYNC).  bgsave: after two seconds a child writes all of them to a file.
# purge: as flush, and then a command gives all the free memory back (MEMORY
# PURGE), as a cron job may do.
# shellcheck disable=SC1091,SC2154
. /bench/workloads/common.sh

SIZE=2000
socket=/tmp/redis.sock
keys=$((mib * 1024 / 2))

command() # WORD...
{
	redis-cli -s $socket "$@"
}

ready()
{
	[ "$(command ping)" = PONG ]
}

saved()
{
	case $(command info persistence) in
	*rdb_bgsave_in_progress:0*) return 0 ;;
	esac
	return 1
}

redis-server --port 0 --unixsocket $socket --dir /tmp --save "" --enable-debug-command yes \
	--disable-thp no >/tmp/redis.log 2>&1 &
server=$!
wait_for /tmp/redis.log ready
command debug populate $keys key $SIZE >/dev/null
counters before
/bench/client $socket "$ms" "$out" $keys $SIZE &
client=$!
sleep 2
case $variant in
flush) command flushall async >/dev/null ;;
purge)
	command flushall async >/dev/null
	sleep 2
	command memory purge >/dev/null
	;;
bgsave) command bgsave >/dev/null ;;
*)
	echo "redis: no variant $variant" >&2
	exit 1
	;;
esac
wait $client
counters after
wait_for /tmp/redis.log saved
command shutdown nosave || true
wait $server
rm -f /tmp/dump.rdb
