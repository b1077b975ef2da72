#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Copy the files of the package faultline-rollout to their places below DESTDIR.
set -eu
[ $# -eq 1 ] || {
	echo 'usage: rollout/fleet/install.sh DESTDIR' >&2
	exit 2
}
here=$(dirname "$0")
usr=$1/usr
# Its modules are only for this program.
fleet=$usr/share/faultline-rollout
umask 022
mkdir -p "$usr/bin" "$fleet/ansible"
install -D -m 644 "$here"/faultline_rollout/*.py -t "$fleet/faultline_rollout"
install -m 755 "$here/faultline-rollout" "$here/simulate.py" "$fleet"
install -D -m 644 "$here"/../monitoring/* -t "$fleet/monitoring"
cp -R --no-preserve=mode,ownership "$here"/../ansible/*.yml "$here/../ansible/roles" "$fleet/ansible"
find "$fleet/ansible" -name __pycache__ -prune -exec rm -r {} +
ln -s ../share/faultline-rollout/faultline-rollout "$usr/bin"
install -D -m 644 "$here/completion/faultline-rollout" -t "$usr/share/bash-completion/completions"
install -D -m 644 "$here/faultline-rollout.1" -t "$usr/share/man/man1"
install -D -m 644 "$here/faultline-experiment.5" -t "$usr/share/man/man5"
install -D -m 644 "$here/README.md" -t "$usr/share/doc/faultline-rollout"
