# SPDX-License-Identifier: GPL-2.0-only
#
# Programs that hold up others, and programs beside a monitor that reads their files in /proc.
#
# postgres: a connection of PostgreSQL that has used MIB of shared buffers ends.
# redis: Redis with MIB of values saves them five times by a child (BGSAVE), while something like
# ps reads its command line.
# jvm: the scene jvm_g1 of the benchmark, while prometheus-process-exporter reads smaps for a
# scraper that never pauses.
#
# As a scene of tests/bench/workloads/run.sh, it has the four words of one.
# shellcheck shell=sh disable=SC1091,SC2154
. /bench/workloads/common.sh

SAVES=5
PORT=9256

listens()
{
	python3 -c "import socket; socket.create_connection(('127.0.0.1', $PORT))"
}

# Until the file /tmp/done is there; fails if the program is in no page.
scrape() # PROGRAM
{
	python3 - <<-EOF
		import os, urllib.request
		seen = False
		while not os.path.exists("/tmp/done"):
		    with urllib.request.urlopen("http://127.0.0.1:$PORT/metrics", timeout=120) as page:
		        seen |= 'groupname="$1"' in page.read().decode()
		assert seen
	EOF
}

# Until the file /tmp/done is there; makes the file /tmp/watching.
watch() # PID
{
	python3 - <<-EOF
		import os, pathlib
		while not os.path.exists("/tmp/done"):
		    pathlib.Path("/proc/$1/cmdline").read_bytes()
		    pathlib.Path("/tmp/watching").touch()
	EOF
}

# Its programs refuse to run as root.
as_nobody() # WORD...
{
	setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
}

sql() # COMMAND...
{
	for word; do
		set -- "$@" -c "$word"
		shift
	done
	as_nobody psql -h /tmp -d postgres -q -v ON_ERROR_STOP=1 "$@"
}

# The rows fill the shared buffers, 4 KiB each.
monitored_postgres()
{
	PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
	as_nobody initdb -D /tmp/cluster -A trust --no-sync >/tmp/postgres.log
	as_nobody postgres -D /tmp/cluster -k /tmp -c listen_addresses= -c huge_pages=off \
		-c fsync=off -c autovacuum=off -c shared_buffers="$((mib + 64))MB" \
		>>/tmp/postgres.log 2>&1 &
	server=$!
	wait_for /tmp/postgres.log sql "select 1"
	sql "create extension pg_prewarm" "create unlogged table memory (word text)" \
		"alter table memory alter word set storage plain" \
		"insert into memory select repeat('x', 3900) from generate_series(1, $((mib * 256)))"
	sql "select pg_prewarm('memory')" >/dev/null
	as_nobody pg_ctl -D /tmp/cluster -m fast stop >/dev/null
	wait $server
}

monitored_redis()
{
	start_redis $((mib * 1024 / 2)) --rdbcompression no --rdbchecksum no
	watch "$server" &
	monitor=$!
	wait_for "$REDIS_LOG" test -e /tmp/watching
	saves=0
	while [ $saves -lt $SAVES ]; do
		redis bgsave >/dev/null
		wait_for "$REDIS_LOG" redis_saved
		saves=$((saves + 1))
	done
	: >/tmp/done
	wait $monitor
	stop_redis
}

monitored_jvm()
{
	prometheus-process-exporter -procnames java -web.listen-address 127.0.0.1:$PORT \
		>/tmp/exporter.log 2>&1 &
	exporter=$!
	wait_for /tmp/exporter.log listens
	scrape java &
	monitor=$!
	sh /bench/workloads/jvm.sh g1 "$out" "$ms" "$mib"
	: >/tmp/done
	wait $monitor || {
		cat /tmp/exporter.log >&2
		exit 1
	}
	kill $exporter
}

monitored_"$variant"
