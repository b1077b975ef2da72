# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Completion for faultline-rollout.

_faultline_rollout() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} options
	if [ "$COMP_CWORD" -eq 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W 'plan trial start status verdict stop --help' -- "$word")
		return
	fi
	case $before in
	-o | --output | --plot | --html)
		mapfile -t COMPREPLY < <(compgen -f -- "$word")
		return
		;;
	--rings | --soak | --wait | --reboot | --history | --seed | --at | --start | --lead | --every) return ;;
	esac
	case ${COMP_WORDS[1]} in
	plan) options='--output --history --seed --force --json --at --help' ;;
	trial) options='--rings --soak --wait --every --reboot --no-promote --dry-run --help' ;;
	start) options='--dry-run --lead --help' ;;
	status) options='--watch --every --stop-on-harm --json --at --start --help' ;;
	verdict) options='--plot --html --json --at --start --help' ;;
	*) options=--help ;;
	esac
	case $word in
	-*) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word") ;;
	*)
		local ending=json
		[[ ${COMP_WORDS[1]} != @(plan|trial) ]] || ending=toml
		mapfile -t COMPREPLY < <(compgen -d -S / -- "$word"; compgen -f -X "!*.$ending" -- "$word")
		compopt -o nospace 2>/dev/null
		;;
	esac
}
complete -o filenames -F _faultline_rollout faultline-rollout
