#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Copy the files of the package faultline-bench to their places below DESTDIR; PROGRAMS
# has the compiled programs.
set -eu
[ $# -eq 2 ] || {
	echo 'usage: rollout/bench/install.sh DESTDIR PROGRAMS' >&2
	exit 2
}
here=$(dirname "$0")
usr=$1/usr
umask 022
install -D -m 755 "$here/faultline-bench" -t "$usr/sbin"
install -D -m 755 "$2/micro" "$2/munmap" "$2/survey" -t "$usr/libexec/faultline-bench"
install -D -m 644 "$here/completion/faultline-bench" -t "$usr/share/bash-completion/completions"
install -D -m 644 "$here/faultline-bench.8" -t "$usr/share/man/man8"
