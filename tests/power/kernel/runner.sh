#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The VM runner with the ports of ppc64le: the hypervisor's consoles.
set -uo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh

flavour=ppc64le
# shellcheck source=../../lib/ports.sh
. tests/lib/ports.sh
