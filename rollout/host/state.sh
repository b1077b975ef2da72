# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154 # variables of faultline-ab
#
# For faultline-ab: the switches that are not as before, and how they get back.
#
# An experiment, or the hold of another program, has the switches of its .before: no
# other one gets them, and their values come back.  State, in /run/faultline/ab, so
# that a reboot ends everything:
#
#   NAME.before  each switch, its value before, and that of configuration files then;
#                and when it ends: at a time (experiment), or with a process (hold)
#   NAME.plan    the plan of an experiment, exactly as it was pushed
#   NAME.state   each switch, the value set last and the one that is being set; how often
#                the switch had another one; who has ended it
#
# Each file is written in one step, and the order makes every interruption safe:
# a start writes .before, then .plan, and nothing is switched before both are
# there.  A stop removes .plan, puts the values back, and then removes .before.  So
# .before without .plan and without a process is a stop that still has to put values
# back; whichever command sees it completes it.
#
# A value that is neither the one set last nor the one being set is somebody else's.
# It is put right once, unless it is clear that it is to stay; nothing here overwrites
# a value that stays.

# row_of SWITCH: its lowest, highest and stock value, and those for new mappings only.
row_of() {
	awk -v "name=$1" '/^vm[.]/ && $1 == name { print $2, $3, $4, $7; found = 1 } END { exit !found }' \
		"$switches" 2>/dev/null
}

# --- Clock, lock, switches

# Sets now: seconds since 1970.
read_clock() {
	if [ -n "$clock" ]; then
		read -r now <"$clock"
	else
		now=$(date +%s)
	fi
	is_number "$now" || die "the clock does not give a number of seconds: '$now'"
}

# Sets up: seconds since boot, which no clock change moves.
read_uptime() {
	read -r up _ <"$uptime" || die "cannot read $uptime"
	up=${up%%.*}
}

# in_words SECONDS: a time for people.
in_words() {
	date -d "@$1" '+%Y-%m-%d %H:%M:%S' 2>/dev/null || echo "$1"
}

# The kernel drops the lock of a process that dies.
lock() {
	command -v flock >/dev/null || die 'flock is not installed (package util-linux)'
	mkdir -p "$ab" 2>/dev/null || die "cannot make $ab: run this as root"
	# exec itself would end the shell without a word.
	{ true >>"$run/lock"; } 2>/dev/null || die "cannot write $run/lock: run this as root"
	exec 9>>"$run/lock"
	flock -w "$LOCK_SECONDS" 9 ||
		die "another faultline-ab has held $run/lock for $LOCK_SECONDS seconds: look for it with ps"
}

unlock() {
	exec 9>&-
}

# file_of SWITCH: its file below /proc/sys.
file_of() {
	printf '%s/%s\n' "$sysctl" "$1" | sed 's|vm\.\([^/]*\)$|vm/\1|'
}

# Not with the shell's read: it reads single bytes, which a sysctl does not support.
value_of() {
	cat "$(file_of "$1")" 2>/dev/null
}

# set_switch SWITCH VALUE: writes it and reads it back; why says what went wrong.
set_switch() {
	why=
	file=$(file_of "$1")
	# A shell would create it.
	if [ ! -e "$file" ]; then
		why="this kernel has no $1"
		return 1
	fi
	{ printf '%s\n' "$2" >"$file"; } 2>/dev/null ||
		why="the kernel refuses $1=$2 (sysctl -w $1=$2 says why)"
	got=$(value_of "$1")
	[ "$got" != "$2" ] || return 0
	[ -n "$why" ] || why="$1 is '$got' after writing $2"
	return 1
}

# --- What is noted

# names: the experiments on this host.
names() {
	for file in "$ab"/*.before "$ab"/*.plan; do
		[ ! -e "$file" ] || printf '%s\n' "$file"
	done | sed 's|.*/||; s/\.[a-z]*$//' | sort -u
}

# read_before NAME: sets b_switches, lines of SWITCH VALUE CONFIGURED ("-" for nothing);
# b_switch and b_value, those of the first; b_expires and b_deadline, or b_pid and b_born.
read_before() {
	b_switches=$(sed -n 's/^\(vm[.].*\)=\(.*\) \(.*\)$/\1 \2 \3/p' "$ab/$1.before" 2>/dev/null)
	# 6.12.117 wrote one switch, and refused a host where a file sets it.
	[ -n "$b_switches" ] ||
		b_switches="$(field switch "$ab/$1.before") $(field value "$ab/$1.before") -"
	b_switch=${b_switches%% *} b_value=${b_switches#* }
	b_value=${b_value%% *}
	b_expires=$(field expires "$ab/$1.before")
	b_deadline=$(field deadline "$ab/$1.before")
	b_pid=$(field pid "$ab/$1.before")
	b_born=$(field born "$ab/$1.before")
	is_number "${b_pid:-$b_expires}" && is_number "${b_born:-$b_deadline}" || return 1
	while read -r switch value _; do
		# The value must come back even if the table is gone.
		is_number "$value" && { row_of "$switch" >/dev/null || [ ! -r "$switches" ]; } || return 1
	done <<-END
		$b_switches
	END
}

# recover_before NAME: for a .before that is missing or damaged; upstream's value
# of the plan's switch is the best there is.
recover_before() {
	b_pid='' b_switch=$(field switch "$ab/$1.plan")
	row=$(row_of "$b_switch") || return 1
	# shellcheck disable=SC2086 # words
	set -- "$1" $row
	b_value=$4
	b_switches="$b_switch $b_value -"
	say "warning: $1: the value of $b_switch before the experiment is lost: using upstream's, $b_value"
}

# write_before NAME SWITCH...: with the first lines from standard input.
write_before() {
	before=$1
	shift
	{
		cat
		for switch; do
			says=$(configured "$switch")
			says=${says##* }
			echo "$switch=$(value_of "$switch") ${says:--}"
		done
	} | put "$ab/$before.before" || die "cannot write to $ab: is it full?"
}

# read_state NAME: after read_before; sets s_switches, lines of SWITCH=LAST GOING, s_back,
# s_foreign, s_ended and s_noncompliant.
read_state() {
	s_switches=$(grep '^vm[.]' "$ab/$1.state" 2>/dev/null)
	s_last=$(field applied "$ab/$1.state")
	# As 6.12.117 wrote it.
	[ -z "$s_last" ] || s_switches="$b_switch=$s_last $(field going "$ab/$1.state")"
	s_back=$(field back "$ab/$1.state")
	s_foreign=$(field foreign "$ab/$1.state")
	s_ended=$(field ended "$ab/$1.state")
	s_noncompliant=$(field noncompliant "$ab/$1.state")
	is_number "$s_noncompliant" || s_noncompliant=0
}

# write_state NAME
write_state() {
	put "$ab/$1.state" <<-END && return 0
		$s_switches
		back=$s_back
		foreign=$s_foreign
		ended=$s_ended
		noncompliant=$s_noncompliant
		slot=$slot
		arm=$arm
		plan=$p_plan
	END
	say "warning: cannot write $ab/$1.state: is $run full?"
	return 1
}

# is_foreign SWITCH VALUE: whether somebody else has set that value; last is ours.
is_foreign() {
	# shellcheck disable=SC2046 # words
	set -- "$2" $(printf '%s\n' "$s_switches" | sed -n "s/^$1=//p")
	last=${2-}
	[ $# -gt 1 ] && [ "$1" != "$2" ] && [ "$1" != "${3-}" ]
}

# change NAME SWITCH=VALUE...: sets switches, with a note before and after, so that
# is_foreign tells the truth, whenever this is killed.  Fails if one is not set.
change() {
	experiment=$1 changed=0
	shift
	s_switches=$(for pair; do
		echo "${pair%%=*}=$(value_of "${pair%%=*}") ${pair#*=}"
	done)
	problem='the values cannot be noted, so none is set'
	write_state "$experiment" || return 2
	problem=
	for pair; do
		if ! set_switch "${pair%%=*}" "${pair#*=}"; then
			changed=1
			problem="${problem:+$problem; }$why"
		fi
	done
	s_switches=$(for pair; do
		echo "${pair%%=*}=$(value_of "${pair%%=*}")"
	done)
	return $changed
}

# Writes the metrics of all experiments.
metrics() {
	for file in "$ab"/*.state; do
		# A hold has no plan.
		[ -n "$(field plan "$file")" ] || continue
		name=${file##*/}
		name=${name%.state}
		printf 'faultline_ab_ended{experiment="%s"} %s\n' "$name" \
			"$([ -z "$(field ended "$file")" ] && echo 0 || echo 1)"
		printf 'faultline_ab{experiment="%s",arm="%s",slot="%s",plan="%s"} 1\n' "$name" \
			"$(field arm "$file")" "$(field slot "$file")" "$(field plan "$file")"
		printf 'faultline_ab_noncompliant_total{experiment="%s"} %s\n' "$name" \
			"$(field noncompliant "$file")"
	done | sort | awk '
		/^faultline_ab\{/ && !gauge++ {
			print "# HELP faultline_ab The arm and slot of this host, for each experiment."
			print "# TYPE faultline_ab gauge"
		}
		/^faultline_ab_e/ && !ended++ {
			print "# HELP faultline_ab_ended Whether somebody has set the switch by hand, which ends the experiment on this host."
			print "# TYPE faultline_ab_ended gauge"
		}
		/^faultline_ab_n/ && !counter++ {
			print "# HELP faultline_ab_noncompliant_total How often the switch did not have the value of the arm."
			print "# TYPE faultline_ab_noncompliant_total counter"
		}
		{ print }' | publish faultline_ab
}

# born PID: when a process was born; nothing if it is gone.
born() {
	sed -n 's/^.*) [^ZX] //p' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 19
}

# is_over: whether what is in b_* has expired, or its process has ended; over says it.
# The test of the time since boot holds even if the clock was set back.
is_over() {
	over="process $b_pid has ended"
	if [ -n "$b_pid" ]; then
		[ "$(born "$b_pid")" != "$b_born" ]
		return
	fi
	over='it has expired'
	read_uptime
	[ "$up" -lt "$b_deadline" ] || return 0
	read_clock
	[ "$now" -ge "$b_expires" ]
}

# find_due SWITCH VALUE CONFIGURED: sets due to the value that has to come back: that from
# before, unless configuration files say something else since; and source.
find_due() {
	due=$2 source=', as before'
	owner=$(configured "$1")
	says=${owner##* }
	[ "${says:--}" != "$3" ] || return 0
	if [ -n "$owner" ]; then
		due=$says source=", as ${owner% *} says"
	elif row=$(row_of "$1"); then
		# shellcheck disable=SC2086 # words
		set -- $row
		due=$3 source=', as in an unchanged kernel: no file sets it any more'
	fi
}

# put_back NAME: gives each switch in b_switches its value back, or leaves it to whoever
# has set it; sets told to what became of them.
put_back() {
	told='' problem=''
	read_state "$1"
	while read -r switch value configured; do
		is=$(value_of "$switch")
		find_due "$switch" "$value" "$configured"
		if [ "$is" = "$due" ]; then
			told="${told:+$told; }$switch is $due$source"
		elif [ -n "$s_ended" ] || is_foreign "$switch" "$is"; then
			told="${told:+$told; }$switch stays $is, which somebody else set"
		elif set_switch "$switch" "$due" || { [ "$due" != "$value" ] && set_switch "$switch" "$value"; }; then
			told="${told:+$told; }$switch is $(value_of "$switch")$source"
		else
			problem="${problem:+$problem; }$switch cannot be set back to $due: $why"
		fi
	done <<-END
		$b_switches
	END
	[ -z "$problem" ]
}

# units_of NAME: its units.
units_of() {
	if [ -n "$b_pid" ]; then
		echo "faultline-hold@$1.service"
	else
		echo "faultline-ab@$1.timer faultline-ab-expire@$1.timer"
	fi
}

# finish NAME REASON: puts the values from before back; with the lock held.
finish() {
	if read_before "$1"; then
		rm -f "$ab/$1.plan" 2>/dev/null || say "warning: cannot remove $ab/$1.plan"
	elif ! recover_before "$1"; then
		say "error: $1: $ab/$1.before is damaged: set the switches by hand (man faultline-profiles), and remove the file"
		return 1
	fi
	put_back "$1" || {
		say "error: $1: $problem. It is tried again until it works; a reboot also sets it back"
		return 1
	}
	# .before last: as long as it is there, somebody completes this.  A damaged one
	# is of no use without the plan.
	read_before "$1" || rm -f "$ab/$1.before" "$ab/$1.plan" 2>/dev/null
	rm -f "$ab/$1.state" 2>/dev/null
	metrics
	rm -f "$ab/$1.before" 2>/dev/null || {
		say "error: $1: cannot remove its files in $ab"
		return 1
	}
	say "$1: $2: $told"
	# Not to wait for: the caller may be one of them.
	# shellcheck disable=SC2046 # words
	$systemctl --no-block stop $(units_of "$1") 9>&- ||
		[ -n "$b_pid" ] || say "warning: the timers of $1 could not be stopped; they have nothing to do"
}

# finish_due NAME: ends what was being stopped, or should have ended.
finish_due() {
	if ! read_before "$1"; then
		finish "$1" "ended, because $ab/$1.before is missing or damaged"
	elif is_over; then
		finish "$1" "$over"
	elif [ ! -e "$ab/$1.plan" ] && [ -z "$b_pid" ]; then
		finish "$1" 'an unfinished stop is completed'
	fi
}

complete_stops() {
	for name in $(names); do
		finish_due "$name"
	done
}
