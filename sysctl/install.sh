#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Make the files of the package faultline-profiles at their places below DESTDIR.
set -eu
[ $# -eq 1 ] || {
	echo 'usage: sysctl/install.sh DESTDIR' >&2
	exit 2
}
here=$(dirname "$0")
usr=$1/usr
umask 022
mkdir -p "$usr/lib/sysctl.d" "$usr/lib/tuned/profiles" "$usr/share/faultline/profiles" \
	"$usr/share/man/man7"
install -m 644 "$here/switches" "$usr/share/faultline"
install -m 644 "$here"/profiles/*.conf "$usr/share/faultline/profiles"

{
	cat <<-END
		# SPDX-License-Identifier: GPL-2.0-only
		#
		# The switches of the Faultline kernel with their stock values: as upstream.
		# All lines are comments, so this file changes nothing.  To switch something on,
		# copy a line into a file of your own, such as /etc/sysctl.d/70-faultline.conf,
		# or use a profile from /usr/share/faultline/profiles as that file.  Units,
		# ranges and errors: faultline-profiles(7).
		#
		# With a leading '-', a kernel without the switch is not an error.
	END
	awk '/^#/ { about = $0 } /^vm[.]/ { printf "\n%s\n#-%s = %s\n", about, $1, $4 }' "$here/switches"
} >"$usr/lib/sysctl.d/60-faultline.conf"

# The rows follow the head of the table.
awk -v head='.It Sy sysctl Ta Sy range Ta Sy stock Ta Sy on' '
	FNR == NR {
		if (/^vm[.]/)
			rows = rows sprintf(".It %s Ta %s to %s%s Ta %s Ta %s\n", $1, $2, $3,
				$6 == "-" ? "" : " " $6, $4, $5)
		next
	}
	{ print }
	$0 == head { printf "%s", rows }' "$here/switches" "$here/faultline-profiles.7" \
	>"$usr/share/man/man7/faultline-profiles.7"

# tuned PROFILE BASE SUMMARY: the same values for tuned, on top of a profile of its own.
tuned() {
	folder=$usr/lib/tuned/profiles/faultline-$1
	mkdir -p "$folder"
	{
		cat <<-END
			# SPDX-License-Identifier: GPL-2.0-only
			#
			# The values of /usr/share/faultline/profiles/$1.conf, which has the reasons.

			[main]
			summary=Faultline kernel: $3
			include=$2

			# On a kernel without the switches, tuned would log errors.
			[sysctl.faultline]
			type=sysctl
			uname_regex=[0-9]-faultline[0-9]
		END
		sed -n 's/^-\(vm\..*\) = /\1=/p' "$here/profiles/$1.conf"
	} >"$folder/tuned.conf"
	# tuned reads profiles/ since 2.23, the folder above it before that.
	ln -s "profiles/faultline-$1" "$usr/lib/tuned/faultline-$1"
}
tuned database throughput-performance 'database on hugetlb'
tuned jvm throughput-performance 'JVM, or many threads on private memory'
tuned low-latency latency-performance 'low latency on isolated CPUs'
tuned vm-host virtual-host 'host of virtual machines'
