#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The demo of `make demo-rollout`: an A/B experiment on four small VMs, with the
# microvm kernel, faultline-ab, node_exporter, Prometheus and faultline-rollout.
# Files are left in build/demo-rollout.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
BUILD=$(realpath -m "${BUILD:-build}")
export BUILD PYTHONPATH=$PWD/tools:$PWD/rollout/fleet:$PWD/tests
exec /usr/bin/python3 -B -m demo.rollout
