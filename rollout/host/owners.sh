# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154 # variables of faultline-ab
#
# For faultline-ab: which configuration files set a switch at boot.

# sysctl_files: the lines of sysctl.d in the order in which they take effect, each file after
# its name.  A file hides those of the same name in later folders.
sysctl_files() {
	systemd-analyze --root="${root:-/}" --no-pager cat-config sysctl.d 2>/dev/null || {
		for folder in etc run usr/local/lib usr/lib lib; do
			for file in "$root/$folder/sysctl.d"/*.conf; do
				[ ! -e "$file" ] || printf '%s\t%s\n' "${file##*/}" "$file"
			done
		done | awk -F '\t' '!seen[$1]++' | sort | cut -f 2 | while IFS= read -r file; do
			printf '\n# %s\n' "$file"
			cat "$file"
		done
	}
	if [ -r "$root/etc/sysctl.conf" ]; then
		printf '\n# %s\n' "$root/etc/sysctl.conf"
		cat "$root/etc/sysctl.conf"
	fi
}

# sysctl_owner SWITCH: "FILE VALUE" of the line in sysctl.d that takes effect, as
# systemd reads it at boot: a line with the name of a key goes before patterns, and
# one without a value takes a key out of patterns.
sysctl_owner() {
	sysctl_files | awk -v "wanted=$(echo "$1" | tr . /)" '
		/^# \// { file = substr($0, 3) }
		/^[ \t]*([#;]|$)/ { next }
		{
			key = $0
			value = ""
			if (i = index($0, "=")) {
				key = substr($0, 1, i - 1)
				value = substr($0, i + 1)
			} else if ($0 !~ /^[ \t]*-/)
				next
			sub(/^[ \t]*-?[ \t]*/, "", key)
			sub(/[ \t\r]*$/, "", key)
			gsub(/^[ \t]*|[ \t\r]*$/, "", value)
			# vm.x, or vm/x; in the first form, a slash stands for a dot.
			if (match(key, /[.\/]/) && substr(key, RSTART, 1) == ".") {
				gsub(/\//, "\n", key)
				gsub(/[.]/, "/", key)
				gsub(/\n/, ".", key)
			}
			if (key == wanted) {
				exact = value
				where = file
				found = 1
			} else if (key ~ /[*?[]/ && i) {
				gsub(/[.+(){}|^$\\]/, "\\\\&", key)
				gsub(/\[!/, "[^", key)
				gsub(/[*]/, "[^/]*", key)
				gsub(/[?]/, "[^/]", key)
				if (wanted ~ "^" key "$") {
					pattern = value
					pattern_where = file
				}
			}
		}
		END {
			if (!found) {
				exact = pattern
				where = pattern_where
			}
			if (exact != "")
				print where, exact
		}'
}

# tuned_lines SWITCH DEPTH PROFILE...: the same for profiles of tuned, the one that
# takes effect last.
tuned_lines() (
	key=$1 depth=$2
	shift 2
	[ "$depth" -lt 8 ] || exit
	for profile; do
		profile=${profile#-}
		for folder in etc/tuned/profiles etc/tuned usr/lib/tuned/profiles usr/lib/tuned; do
			file=$root/$folder/$profile/tuned.conf
			[ ! -r "$file" ] || break
		done
		[ -r "$file" ] || continue
		# shellcheck disable=SC2046 # a list of names
		tuned_lines "$key" $((depth + 1)) \
			$(sed -n 's/^[[:space:]]*include[[:space:]]*=//p' "$file" | tr ',\t' '  ')
		sed -n "s|^[[:space:]]*${key%%.*}[./]${key#*.}[[:space:]]*=[[:space:]]*|$file |p" "$file"
	done
)

tuned_owner() {
	# shellcheck disable=SC2046 # a list of names
	tuned_lines "$1" 0 $(cat "$root/etc/tuned/active_profile" 2>/dev/null) | tail -n 1
}

# configured SWITCH: "FILE VALUE" of the configuration file that sets it at boot; where
# both do, tuned lets sysctl.d have the last word.
configured() {
	for who in sysctl_owner tuned_owner; do
		owner=$($who "$1")
		if is_number "${owner##* }"; then
			echo "$owner"
			return
		fi
	done
}
