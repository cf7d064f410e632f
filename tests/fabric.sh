#!/bin/bash
# fabric.sh [--long] - run programs of libfabric over the provider; with --long also fabtests and MPI (fabric_long.sh).
#
# Needs target/release/libisolane_fabric.so and the packages of .ci/packages. Each server listens on loopback and ends
# with its client.
set -u
. "$(dirname "$0")/checks.sh"
tests=$(cd "$(dirname "$0")" && pwd)
built=$(dirname "${ISOLANE_BIN:-$tests/../target/release/isolane}")
work=$(mktemp -d "${TMPDIR:-/tmp}/fabric.XXXXXX")
trap 'rm -rf "$check_log" "$work"' EXIT
mkdir "$work/providers"
cp "$built/libisolane_fabric.so" "$work/providers/libisolane-fi.so" || exit 1
export FI_PROVIDER_PATH=$work/providers

is_listening_or_ended() { # PORT PID
	ss -Htln "sport = :$1" | grep -q . || ! kill -0 "$2"
}
pingpong() { # OPTION...: a server and a client, which both succeed
	local port server status
	port=$(free_port)
	timeout -k 5 60 fi_pingpong -B "$port" "$@" > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	timeout -k 5 60 fi_pingpong -P "$port" "$@" 127.0.0.1; status=$?
	wait $server && [ $status = 0 ] && return 0
	echo "client: status $status; server:"; cat "$work/server"
	return 1
}
offers() { fi_info -p isolane -t "$1" | grep -q "provider: $2\$"; }
edges() {
	cc -Wall -Werror -O1 -o "$work/edges" "$tests/fabric.c" -lfabric && timeout -k 5 60 "$work/edges"
}
repeats_edges() {
	local at
	for at in $(seq 20); do timeout -k 5 60 "$work/edges" || { echo "run $at"; return 1; }; done
}
refuses() { # VARIABLE=VALUE ERROR: the program fails, and names the cause
	env "$1" timeout -k 5 60 "$work/edges" > "$work/refused" 2>&1 && return 1
	grep -qxF "isolane: $2" "$work/refused" || { cat "$work/refused"; return 1; }
}
reads_its_variables() {
	local port taken status
	refuses ISOLANE_VERBS_LANES=9 "ISOLANE_VERBS_LANES=9: write 1 to 8" || return 1
	refuses ISOLANE_VERBS_CRC=yes "ISOLANE_VERBS_CRC=yes: write 0 or 1" || return 1
	refuses ISOLANE_VERBS_PROGRESS=x "ISOLANE_VERBS_PROGRESS=x: not a mode: write polling, or for example thread:1" || return 1
	port=$(free_port)
	ISOLANE_VERBS_LANES=2 ISOLANE_VERBS_CRC=1 ISOLANE_VERBS_PORTS=$port-$((port + 20)) timeout -k 5 60 "$work/edges" || return 1
	# Another program has the only port.
	timeout 60 python3 -c "import signal, socket; s = socket.create_server(('0.0.0.0', $port)); print(flush=True); signal.pause()" \
		> "$work/taken" & taken=$!
	wait_for 30 test -s "$work/taken" || { kill $taken; return 1; }
	ISOLANE_VERBS_PORTS=$port-$port timeout -k 5 60 "$work/edges" > "$work/refused" 2>&1; status=$?
	kill $taken
	[ $status = 1 ] && grep -q 'fi_enable' "$work/refused" && grep -q "no free port in $port-$port" "$work/refused" || { cat "$work/refused"; return 1; }
}
exports_one_function() {
	[ "$(nm -D --defined-only "$work/providers/libisolane-fi.so" | awk '{ print $3 }')" = fi_prov_ini ]
}

status=0
check "endpoints of the type message are offered" offers FI_EP_MSG isolane || status=1
check "reliable datagrams are layered" offers FI_EP_RDM "isolane;ofi_rxm" || status=1
check "only the entry is exported" exports_one_function || status=1
check "wrong arguments, waits, and ends" edges || status=1
check "the same 20 times" repeats_edges || status=1
check "variables of the environment" reads_its_variables || status=1
check "fi_pingpong, messages" pingpong -p isolane -e msg -I 200 -S all || status=1
check "fi_pingpong, messages, checked" pingpong -p isolane -e msg -I 20 -S 65536 -c || status=1
check "fi_pingpong, datagrams and tags" pingpong -p "isolane;ofi_rxm" -e rdm -I 100 -S all || status=1
[ "${1-}" != --long ] || . "$tests/fabric_long.sh"
exit $status
