#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Copy the files of the package faultline-stalls to their places below DESTDIR; PROGRAMS
# has the compiled program.
set -eu
[ $# -eq 2 ] || {
	echo 'usage: rollout/stalls/install.sh DESTDIR PROGRAMS' >&2
	exit 2
}
here=$(dirname "$0")
usr=$1/usr
umask 022
install -D -m 755 "$2/faultline-stalls" -t "$usr/sbin"
install -D -m 644 "$here/schema.json" -t "$usr/share/faultline-stalls"
install -D -m 644 "$here/completion/faultline-stalls" -t "$usr/share/bash-completion/completions"
install -D -m 644 "$here/faultline-stalls.8" -t "$usr/share/man/man8"
