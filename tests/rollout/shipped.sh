#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
#
# The files of faultline-host beside its two programs: units, man pages,
# completion.  They agree with the programs.
set -uo pipefail
. "$(dirname "$0")/../lib/tap.sh"

host=rollout/host
export FAULTLINE_LIB=$host
work=$BUILD/rollout/shipped
rm -rf "$work"
mkdir -p "$work"

check 'the files are installed' $host/install.sh "$work/root"
check 'install without a folder is refused' bash -c "! $host/install.sh 2>/dev/null"
check_empty 'each file of rollout/host is installed' "$(find $host -type f -printf '%f\n' |
	grep -vxE 'install\.sh|tmpfiles\.conf' | sort | comm -23 - <(find "$work/root" -type f -printf '%f\n' | sort))"
check_empty 'no unit is enabled' "$(grep -rn '^\[Install\]' "$work/root/usr/lib/systemd"; find "$work/root" -type l)"
# That would set every key of a live host again, not only the one of the experiment.
all_keys() {
	grep -rnE 'systemd-sysctl|sysctl (.*-[a-z]*p|--system|--load)' --exclude='*.[0-9]' --exclude='*.md' \
		"$@"
}
check_empty 'nothing of ours applies all of sysctl.d' "$(all_keys rollout packaging/deb packaging/rpm sysctl)"
echo 'systemctl restart systemd-sysctl' >"$work/script"
check 'a script of ours that applied all of sysctl.d would be found' all_keys "$work/script"

# --- Units

units=$work/root/usr/lib/systemd/system
# systemd-analyze wants the programs to be there, and instances.
verify() {
	local unit out
	rm -rf "$work/units"
	mkdir "$work/units"
	for unit in "$units"/*.service "$units"/*.timer; do
		sed "s|=/usr/sbin/|=$TOP/$host/|" "$unit" >"$work/units/$(basename "$unit" | sed 's/@/@jvm-spf-1/')"
	done
	out=$(cd "$work/units" && systemd-analyze verify --man=no ./*.service ./*.timer 2>&1 |
		grep -F faultline)
	[ -z "$out" ] || { echo "$out"; return 1; }
}
check 'systemd accepts the units' verify
broken() {
	local out
	verify && echo 'OnNothing=1' >>"$work/units/faultline-ab@jvm-spf-1.timer" || return 1
	# Not in a pipe: grep -q would end it in the middle of its output.
	out=$(systemd-analyze verify --man=no "$work/units/faultline-ab@jvm-spf-1.timer" 2>&1)
	grep OnNothing <<<"$out"
}
check 'systemd would report a unit that it does not accept' broken
for what in OnActiveSec OnUnitActiveSec OnClockChange; do
	for timer in faultline-ab@ faultline-ab-expire@; do
		check "$timer.timer has $what" grep -q "^$what=" "$units/$timer.timer"
	done
done
check 'the timer of slots is as often as apply expects' grep -qx \
	"OnUnitActiveSec=$(sed -n 's/^tick=.*:-\([0-9]*\)}$/\1/p' $host/faultline-ab)" "$units/faultline-ab@.timer"
# apply waits for less than a tick, for its lock, and up to four times.
check 'apply may take as long as it waits' [ \
	"$(sed -n 's/^TimeoutStartSec=//p' "$units/faultline-ab@.service")" -gt 90 ]
gate() {
	local line
	for line in 'Requires=multi-user.target faultline-gate.service' OnFailure=reboot.target \
		'After=multi-user.target faultline-gate.service'; do
		grep -qx "$line" "$work/root/usr/lib/faultline/boot-complete.conf" || { echo "no $line"; return 1; }
	done
}
check 'boot-complete.target waits for the gate' gate
check_empty 'other kernels have the boot-complete.target of systemd' "$(find "$work/root/usr/lib/systemd" -name '*boot-complete*')"
generated() {
	mkdir -p "$work/tree/etc/faultline" "$work/early"
	printf 'kernel=k\nstate=requested\n' >"$work/tree/etc/faultline/trial"
	FAULTLINE_ROOT=$work/tree FAULTLINE_KERNEL=k FAULTLINE_RUN=$work/run \
		"$work/root/usr/lib/systemd/system-generators/faultline-trial-generator" "$work/early"
	find "$work/early" -type l -printf '%l\n' | while read -r file; do
		[ -e "$work/root$file" ] || [ "${file##*/}" = boot-complete.target ] || { echo "no $file"; return 1; }
	done
}
check 'the generator links to files that are installed' generated
# Before other units, so that it sees a boot that does not get to them, and longer than its steps.
check 'the gate starts first' grep -qx 'DefaultDependencies=no' "$units/faultline-gate.service"
check 'the gate starts when / can be written' grep -qx 'After=systemd-remount-fs.service' "$units/faultline-gate.service"
check 'systemd waits for the gate for longer than for a check' [ \
	"$(sed -n 's/^LEASE_SECONDS=//p' $host/faultline-boot)" -gt "$(sed -n 's/^CHECK_SECONDS=//p' $host/faultline-boot)" ]
check 'the rollback is only recorded after a trial' grep -qx 'ConditionPathExists=/etc/faultline/trial' \
	"$units/faultline-health.service"
check_empty 'no other unit reboots a host' "$(grep -lE '^[^#]*(reboot|FailureAction)' "$units"/*.service "$units"/*.timer)"
check 'metrics of experiments are removed at boot only' \
	[ "$(grep -c '^r! .*/faultline_ab\.prom$' "$work/root/usr/lib/tmpfiles.d/faultline-host.conf")" -eq 2 ]

# --- Man pages and completion

for program in faultline-ab faultline-boot; do
	page=$host/$program.8
	check "$program.8 is well-formed" [ -z "$(mandoc -T lint -W warning $page 2>&1)" ]
	text=$(mandoc -T ascii $page | col -b)
	verbs=$($host/$program help 2>&1 | grep -oE "$program [a-z]+" | sort -u | cut -d ' ' -f 2)
	check "$program has commands" [ -n "$verbs" ]
	for verb in $verbs; do
		check "$program.8 has $verb" grep -qE "^ +$verb( |$)" <<<"$text"
		check "the completion of $program has $verb" grep -qw -- "$verb" $host/completion/$program
	done
	for option in $($host/$program help 2>&1 | grep -oE -- '--[a-z-]+' | sort -u); do
		check "$program.8 has $option" grep -qF -- "$option" <<<"$text"
		check "the completion of $program has $option" grep -qF -- "$option" $host/completion/$program
	done
	while read -r name; do
		check "a man page has $name" grep -qw "$name" $host/faultline-ab.8 $host/faultline-boot.8
	done < <(grep -ohE 'FAULTLINE_[A-Z_]+' $host/$program $host/common.sh | sort -u)
done

# completed WORD...: what bash offers after these words.
completed() {
	bash -c '. "$0/completion/$1"
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		"_${1//-/_}"
		printf "%s\n" "${COMPREPLY[@]}" | sort | xargs' "$host" "$@"
}
check 'completion of a command' [ "$(completed faultline-ab st)" = 'start status stop' ]
check 'completion of an option' [ "$(completed faultline-boot status --) $(completed faultline-boot back --)" = '--json --next' ]
mkdir -p "$work/run/ab" "$work/tree/lib/modules/6.12.117-faultline1"
touch "$work/run/ab/jvm-spf-1.before"
check 'completion of an experiment' \
	[ "$(FAULTLINE_RUN=$work/run completed faultline-ab stop jvm)" = jvm-spf-1 ]
check 'completion of a kernel' \
	[ "$(FAULTLINE_ROOT=$work/tree completed faultline-boot next 6)" = 6.12.117-faultline1 ]
done_testing
