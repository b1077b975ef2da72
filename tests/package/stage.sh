#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# tools/fl stage: the contents of the packages.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

stage=$BUILD/stage/microvm
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT

# refused NAME PATTERN COMMAND...: exit status 1 and one error line that matches.
refused() {
	local name=$1 pattern=$2 out status
	shift 2
	out=$("$@" 2>&1 </dev/null)
	status=$?
	if [ $status -eq 1 ] && [ "$(grep -c 'error: ' <<<"$out")" -eq 1 ] &&
		grep -q -- "error: .*$pattern" <<<"$out"; then
		ok "$name"
	else
		not_ok "$name" <<<"status $status, output: $out"
	fi
}

# --- Content

# shellcheck disable=SC1091 # made by the stage
. "$stage/stage.env"
check 'the release in stage.env is valid in both package formats' \
	grep -qE '^KVER=6\.12\.[0-9]+-faultline[0-9]+(\.[0-9]+)?\.microvm$' "$stage/stage.env"
image_release() {
	# Not with grep -q, which would end a program in the middle of its output.
	strings -n 10 "$stage/vmlinuz" | grep "^$KVER (faultline@build)" ||
		file -b "$stage/vmlinuz" | grep "version $KVER "
}
check 'the image has the same release' image_release
check 'modules have the same release' \
	test "$(modinfo -F vermagic "$stage"/modules/kernel/fs/fat/vfat.ko* | cut -d' ' -f1)" = "$KVER"
check 'System.map belongs to this kernel' grep -q ' T munmap_section' "$stage/System.map"
check 'the configuration enables the features' grep -qx CONFIG_FAULTLINE=y "$stage/config"
check_empty 'no output of depmod, no link to the build' \
	"$(cd "$stage/modules" && find . -name 'modules.dep*' -o -name 'modules.alias*' -o -type l)"
check_empty 'no file contains the path of the build folder' \
	"$(grep -rlIF -e "$TOP" "$stage"; grep -rlF -e "$TOP" "$stage"/{modules,tools,selftests,bench,stalls})"
check_empty 'all files have the same date' "$(find "$stage" ! -newermt "@$((SOURCE_DATE_EPOCH - 1))" -o \
	-newermt "@$SOURCE_DATE_EPOCH")"
check_empty 'files have one of two modes' "$(find "$stage" ! -type l ! -perm 644 ! -perm 755)"
check 'perf runs' "$stage/tools/perf" version
check 'perf reads tracepoints' bash -c \
	"'$stage/tools/perf' version --build-options | grep -q 'libtraceevent: .* on '"
# A busy host may leave the thread no time: again, until there is a figure, for a minute.
measures() {
	local out end=$((SECONDS + 60))
	until out=$("$stage/bench/micro" --arms here --tasks 1 --ms 200 mmap1) &&
		grep -qE '^sample mmap1_threads_1 ops/s here [1-9]' <<<"$out"; do
		[ "$SECONDS" -lt "$end" ] || { printf 'no figure in a minute:\n%s\n' "$out"; return 1; }
	done
}
check 'a program of faultline-bench measures' measures
check 'the selftests are included' test -x "$stage/selftests/toggles"
refused 'the error names a missing test' "no test 'nonsense'" \
	bash -c "$stage/selftests/run nonsense 2>&1 | sed 's/^run: /run: error: /'; exit 1"

# --- Bill of materials

check 'the bill of materials is complete and correct' python3 -B - "$stage/doc" <<'PY'
import hashlib, json, pathlib, sys
doc = pathlib.Path(sys.argv[1])
sbom = json.loads((doc / "sbom.spdx.json").read_text())
assert sbom["spdxVersion"] == "SPDX-2.3", sbom["spdxVersion"]
known = {"SPDXRef-DOCUMENT"} | {entry["SPDXID"] for kind in ("packages", "files")
                                for entry in sbom[kind]}
assert len(known) == 1 + len(sbom["packages"]) + len(sbom["files"]), "an identifier is there twice"
for relation in sbom["relationships"]:
    for end in ("spdxElementId", "relatedSpdxElement"):
        assert relation[end] in known, relation
sums = {entry["fileName"]: {one["algorithm"]: one["checksumValue"] for one in entry["checksums"]}
        for entry in sbom["files"]}
series = [line for line in (doc / "patches/series").read_text().splitlines()
          if line and not line.startswith("#")]
for name in ["config", *(f"patches/{patch}" for patch in series)]:
    data = (doc / name).read_bytes()
    assert sums[f"./{name}"]["SHA256"] == hashlib.sha256(data).hexdigest(), name
pin = dict(line.split("=", 1) for line in (doc / "upstream").read_text().splitlines()
           if "=" in line)
sources = {entry["name"]: entry for entry in sbom["packages"]}
assert sources[pin["package"]]["checksums"][0]["checksumValue"] == pin["sha256"]
PY

# --- Made a second time

check 'a second run has nothing to do' bash -c \
	"tools/fl stage microvm | grep -q 'stage/microvm is up to date'"
cp -a "$stage/." "$again"
make_again() {
	rm "$BUILD/stage/.microvm.inputs" && tools/fl stage microvm && diff -r "$again" "$stage"
}
check 'a rebuilt stage is identical byte for byte' make_again

# --- Errors

refused 'a stock flavour' 'stock kernels come from' tools/fl stage microvm-stock
refused 'a flavour for tests only' 'no packages for ppc64le' tools/fl stage ppc64le
sed -i 's/\<microvm\>/tiny/' "$again/stage.env"
refused 'packages of a flavour that has none' 'flavour tiny has no packages: use generic' \
	tools/fl package deb "$again" "$again/packages"
refused 'an unknown flavour' 'flavours are: .*cloud' tools/fl stage nonsense
refused 'an invalid rebuild number' 'REBUILD=1.5 must be a number' \
	env REBUILD=1.5 tools/fl stage microvm
refused 'a missing base configuration' 'has no config.amd64_none_cloud-amd64' \
	env BASE_CONFIGS="$again" tools/fl configure cloud
refused 'a missing source tree' "no kernel tree at .*nowhere" \
	env KERNEL_TREE="$again/nowhere" tools/fl stage microvm
done_testing
