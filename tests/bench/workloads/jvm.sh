#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# A JVM whose heap, of at most three times MIB, grows and shrinks beside requests:
# see Load.java.
#
# g1: G1, which gives memory back after a concurrent cycle; System.gc() begins one.
# zgc: ZGC, which gives memory back that was free for a second.
# shellcheck shell=dash disable=SC1091,SC2154
. /bench/workloads/common.sh

case $variant in
g1) set -- -XX:+UseG1GC -XX:+ExplicitGCInvokesConcurrent -XX:G1PeriodicGCInterval=1000 \
	-XX:MinHeapFreeRatio=5 -XX:MaxHeapFreeRatio=10 ;;
zgc) set -- -XX:+UseZGC -XX:+ZUncommit -XX:ZUncommitDelay=1 ;;
*)
	echo "jvm: no variant $variant" >&2
	exit 1
	;;
esac
/usr/lib/jvm/default-java/bin/java -Xms64m -Xmx$((3 * mib))m -XX:-UsePerfData "$@" \
	-Xlog:safepoint:file="$out.safepoints" -cp /bench/java Load "$out" "$ms" "$mib"
