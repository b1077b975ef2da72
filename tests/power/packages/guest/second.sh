# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# The second stage of debootstrap, which runs programs of the guest.
set -e
/debootstrap/debootstrap --second-stage
echo faultline >/etc/hostname
