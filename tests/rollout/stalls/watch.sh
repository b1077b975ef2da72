# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=sh
#
# Functions of the scripts in the guests of tests/rollout/stalls: begin and end watching.

# begin NAME OPTION...: returns once $watch, which is faultline-stalls unless set, watches; /out has
# what it sees, as NAME.json.
begin() {
	name=$1
	shift
	"${watch:-faultline-stalls}" --seconds 500 --json "$@" >"/out/$name.json" 2>"/out/$name.err" &
	watcher=$!
	tries=0
	until grep -qs 'watching for' "/out/$name.err"; do
		tries=$((tries + 1))
		if [ $tries = 300 ] || ! kill -0 "$watcher"; then
			echo "$name: it does not watch, after $tries s:"
			cat "/out/$name.err"
			exit 1
		fi
		sleep 1
	done
}

end() {
	kill -INT "$watcher"
	wait "$watcher" || exit 1
}
