#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# faultline-bench as it is installed, in a VM with the real kernel, whose switches it flips.
#
# BENCH_TEST_OPTIONS="OPTION..." replaces those of the run; BENCH_TEST_STAGE=DIR and KERNEL=IMAGE
# use another stage and kernel.
set -euo pipefail
. "$(dirname "$0")/../../lib/tap.sh"
# shellcheck source=../../lib/vm.sh
. tests/lib/vm.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=${BENCH_TEST_OPTIONS:---rounds 3 --seconds 1 --tests mmap1,munmap-stall,populate-stall,mlock-stall,fixed-stall,rollup-stall}
python=$(readlink -f /usr/bin/python3)
library=/usr/lib/${python##*/}
[ -d "$library" ] || {
	echo "Bail out! no $library: the test takes Python of a Debian host into its VM"
	exit 1
}
# The files of the packages.
rollout/host/install.sh "$work"
rollout/bench/install.sh "$work" "${BENCH_TEST_STAGE:-$BUILD/stage/microvm}/bench"
# The standard library, without the parts that servers lack.
mkdir "$work/lib"
cp -a "$library" "$work/lib/"
rm -rf "$work/lib/${library##*/}"/{test,ensurepip,idlelib,lib2to3,tkinter,turtledemo,config-*}
# QEMU cannot patch code that another CPU runs: all CPUs share one host thread.
tools/fl vm run --kernel "${KERNEL:-$(image microvm)}" --name fleet-bench \
	--out "$BUILD/vm/fleet-bench" --ktap --quiet --cpus 2 --icount 4 --mem 1536 --timeout 1500 \
	--file "$work/usr:/usr" --file "$work/lib/${library##*/}:$library" \
	--file "$python:/usr/bin/python3" --file rollout/host/common.sh \
	--file rollout/host/owners.sh --file rollout/host/plan.sh --file rollout/host/state.sh \
	--file sysctl/switches --file "$(command -v flock)" --file tests/rollout/guest-lib.sh --file tests/rollout/fleet/bench-guest.sh \
	-- sh -c "FAULTLINE_BENCH='$options' sh bench-guest.sh"
