# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154 # variables of faultline-ab
#
# For faultline-ab: plans, and what they say for a moment.

# read_plan FILE: sets p_NAME for each line of the plan; why says what is wrong.
read_plan() {
	p_format='' p_name='' p_switch='' p_a='' p_b='' p_start='' p_slot='' p_washout=''
	p_expires='' p_plan='' p_host='' p_arms='' p_sum='' seen=' ' why=''
	if [ ! -f "$1" ] || [ ! -r "$1" ]; then
		why='there is no such file, or it cannot be read'
	elif [ "$(wc -c <"$1")" -gt "$MAX_BYTES" ]; then
		why="it is larger than $MAX_BYTES bytes"
	elif [ "$(tr -d '\n -~' <"$1" | wc -c)" -ne 0 ]; then
		why='it contains other characters than printable ASCII'
	elif [ -n "$(tail -c 1 "$1")" ] || [ ! -s "$1" ]; then
		why='its last line is incomplete'
	fi
	[ -z "$why" ] || return 1
	while IFS= read -r line; do
		key=${line%%=*}
		case " $seen" in
		*' sum '*) why="a line follows sum=: '$line'" ;;
		*" $key "*) why="two lines set $key" ;;
		esac
		case $line in
		format=* | name=* | switch=* | a=* | b=* | start=* | slot=* | washout=* | expires=* | \
			plan=* | host=* | arms=* | sum=*)
			eval "p_$key=\${line#*=}"
			;;
		*) why="unknown line '$line'" ;;
		esac
		[ -z "$why" ] || return 1
		seen="$seen$key "
	done <"$1"
	check_plan "$1"
	[ -z "$why" ]
}

# Sets why if the plan in p_* is wrong.
check_plan() {
	if [ "$p_format" != 1 ]; then
		why="format is '$p_format'; this program reads format 1"
		return
	fi
	sum=$(sed '$d' "$1" | sha256sum)
	if [ "$p_sum" != "${sum%% *}" ]; then
		why='its sum does not match: it was edited, or is incomplete'
		return
	fi
	for key in start slot washout expires a b; do
		eval "value=\$p_$key"
		if ! is_number "$value"; then
			why="$key is '$value', not a number"
			return
		fi
	done
	case $p_name in
	'' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*)
		why="the name '$p_name' has other characters than letters, digits, '.', '_' and '-'"
		;;
	esac
	[ ${#p_name} -le 64 ] || why='the name is longer than 64 characters'
	case $p_plan in
	*[!0-9a-f]*) why='plan is not the sha256 of a plan.json' ;;
	esac
	[ ${#p_plan} -eq 64 ] || why='plan is not the sha256 of a plan.json'
	case $p_host in
	'' | *[\ \"\\]*) why="the host '$p_host' is not a name" ;;
	esac
	case $p_arms in
	'' | *[!ab]*) why="arms are the letters a and b, one for each slot" ;;
	esac
	slots=${#p_arms}
	[ "$slots" -le "$MAX_SLOTS" ] || why="there are more than $MAX_SLOTS slots"
	[ "$p_slot" -ge "$MIN_SLOT" ] ||
		why="a slot of $p_slot s is too short: each change interrupts every CPU; use $MIN_SLOT s or more"
	[ "$p_washout" -lt "$p_slot" ] || why="the washout ($p_washout s) fills the slot ($p_slot s)"
	[ "$p_expires" -gt "$p_start" ] || why='it expires before it starts'
	if row=$(row_of "$p_switch"); then
		# shellcheck disable=SC2086 # words
		set -- $row
		for value in "$p_a" "$p_b"; do
			[ "$value" -ge "$1" ] && [ "$value" -le "$2" ] ||
				why="$p_switch=$value is out of range ($1 to $2)"
			# Old mappings keep what they were made with.
			case $p_arms:,$4, in
			*ab*:*,$value,* | *ba*:*,$value,*)
				[ "$p_a" = "$p_b" ] ||
					why="$p_switch does not alternate between $value and another value: $value acts on new mappings only"
				;;
			esac
		done
	else
		why="$p_switch is not a switch of the Faultline kernel"
		[ -r "$switches" ] || why="cannot read $switches: install the package faultline-profiles"
	fi
	end=$((p_start + slots * p_slot))
}

# assigned TIME: sets slot (-1 outside the schedule), arm and wanted at that time.
assigned() {
	slot=-1 arm=stock wanted=$b_value
	if [ "$1" -ge "$p_start" ] && [ "$1" -lt "$end" ]; then
		slot=$((($1 - p_start) / p_slot))
		arm=$(printf '%s\n' "$p_arms" | cut -c $((slot + 1)))
		eval "wanted=\$p_$arm"
	fi
}
