#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The VM runner with the ports of arm64: the board's PL011, and PCI.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh

flavour=microvm-arm64
# shellcheck source=../../lib/ports.sh
. tests/lib/ports.sh
