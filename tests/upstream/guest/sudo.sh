#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# A stand-in for sudo in the guest, as used by run_vmtests.sh: sudo [-u USER] COMMAND.

[ "$1" = -u ] || exec "$@"
user=$2
shift 2
# Keep su from parsing options of the command.
# shellcheck disable=SC2016 # for the other shell
exec su -s /bin/sh -c 'exec "$@"' -- "$user" sh "$@"
