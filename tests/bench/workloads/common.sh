# shellcheck shell=dash disable=SC2034
# SPDX-License-Identifier: GPL-2.0-only
#
# Functions of the workloads' scripts, which run in the programs' root.
set -eu

export PATH=/usr/sbin:/usr/bin LC_ALL=C
export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack
variant=$1 out=$2 ms=$3 mib=$4

# Saves the kernel's counters.
counters() # before|after
{
	cat /proc/vmstat >"$out.$1"
}

# Waits at most two minutes for a command to succeed.
wait_for() # LOG COMMAND...
{
	local log=$1 tries=0
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ $tries = 240 ]; then
			echo "not ready: $*" >&2
			cat "$log" >&2
			exit 1
		fi
		sleep 0.5
	done
}

# Measures the memory that a process uses, as cAdvisor does with referenced_reset_interval: each
# second it reads what was referenced, and resets that.  Ends with the process.
watch_memory() # PID
{
	while sleep 1 && cat "/proc/$1/smaps" && echo 1 >"/proc/$1/clear_refs"; do
		:
	done >/dev/null 2>&1
}

# --- Redis, whose values have REDIS_SIZE bytes; its keys are "key:0" and so on.
REDIS_SIZE=2000
REDIS_SOCKET=/tmp/redis.sock
REDIS_LOG=/tmp/redis.log

redis() # WORD...
{
	redis-cli -s $REDIS_SOCKET "$@"
}

redis_ready()
{
	[ "$(redis ping)" = PONG ]
}

redis_saved()
{
	case $(redis info persistence) in
	*rdb_bgsave_in_progress:0*) return 0 ;;
	esac
	return 1
}

# Starts Redis with as many keys and values; $server is its process.
start_redis() # KEYS OPTION...
{
	local keys=$1
	shift
	redis-server --port 0 --unixsocket $REDIS_SOCKET --dir /tmp --save "" \
		--enable-debug-command yes "$@" >$REDIS_LOG 2>&1 &
	server=$!
	wait_for $REDIS_LOG redis_ready
	redis debug populate "$keys" key $REDIS_SIZE >/dev/null
}

# After the last save.
stop_redis()
{
	wait_for $REDIS_LOG redis_saved
	redis shutdown nosave || true
	wait "$server"
}

# Sets the size of the pool of 2 MiB pages.
huge_pages() # COUNT
{
	local pool=/proc/sys/vm/nr_hugepages

	echo "$1" >$pool
	if [ "$(cat $pool)" != "$1" ]; then
		echo "$(cat $pool) of $1 huge pages: give the VM more memory with --mem" >&2
		exit 1
	fi
}
