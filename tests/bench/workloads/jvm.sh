#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# A JVM with a heap of at most three times MIB, and requests: see Load.java.
#
# g1, zgc: the heap grows and shrinks beside the requests.  G1 gives memory back after a
# concurrent cycle, which System.gc() begins; ZGC, what was free for a second.
# watched: the heap has its full size from the start, all of it in memory, and an agent
# measures that.
# shellcheck shell=dash disable=SC1091,SC2154
. /bench/workloads/common.sh

batch=$mib
case $variant in
g1) set -- -XX:+UseG1GC -XX:+ExplicitGCInvokesConcurrent -XX:G1PeriodicGCInterval=1000 \
	-XX:MinHeapFreeRatio=5 -XX:MaxHeapFreeRatio=10 ;;
zgc) set -- -XX:+UseZGC -XX:+ZUncommit -XX:ZUncommitDelay=1 ;;
watched)
	set -- -XX:+UseG1GC -Xms$((3 * mib))m -XX:+AlwaysPreTouch
	batch=0
	;;
*)
	echo "jvm: no variant $variant" >&2
	exit 1
	;;
esac
/usr/lib/jvm/default-java/bin/java -Xms64m -Xmx$((3 * mib))m -XX:-UsePerfData "$@" \
	-Xlog:safepoint:file="$out.safepoints" -cp /bench/java Load "$out" "$ms" "$batch" &
java=$!
[ "$variant" != watched ] || watch_memory $java &
wait $java
