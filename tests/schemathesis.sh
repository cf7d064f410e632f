#!/bin/bash
# schemathesis.sh [SECONDS] - requests that Schemathesis makes from the OpenAPI document of the control socket: no answer
# is an error of the server, and each one is documented. The default is 60 s for each of two targets, with and without a
# configuration file.
#
# Needs socat, and SCHEMATHESIS (default: schemathesis in PATH, else it is installed by pip into a temporary directory).
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/lib.sh"
seconds=${1:-60}
forwarder=

program() { # sets schemathesis
	schemathesis=${SCHEMATHESIS:-$(command -v schemathesis)} && [ -n "$schemathesis" ] && return
	python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q 'schemathesis>=4.32,<5' &&
		schemathesis=$work/venv/bin/schemathesis
}
forward() { # SOCKET: sets forwarder (PID) and port
	[ -z "$forwarder" ] || kill "$forwarder"
	port=$(free_port)
	socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,reuseaddr" "UNIX-CONNECT:$1" &
	forwarder=$!
	wait_for 30 curl -sf "http://127.0.0.1:$port/healthz"
}
describe() { # FILE
	cat > "$1" <<- END
		server.control-socket = "$work/file.sock"
		server.mode = "sleep"
		port = [{ name = "local", listen = "127.0.0.1:0" }]
		host = [{ name = "db1", nqn = "nqn.2014-08.org.example:db1" }]
		[[subsystem]]
		nqn = "$nqn"
		ports = ["local"]
		hosts = "any"
		namespace = [{ nsid = 1, volume = "mem:4M" }, { nsid = 2, volume = "null:1M" }]
	END
}
# Volumes and names that do not exist are valid JSON.
answers_as_documented() {
	"$schemathesis" run "http://127.0.0.1:$port/v1/openapi.json" --max-time "$seconds" --continue-on-failure \
		--exclude-checks positive_data_acceptance --exclude-path /v1/events/follow --warnings off \
		--generation-database none --request-timeout 30
}
still_serves() { # NAME
	kill -0 "${target_pid[$1]}" && curl -sf "http://127.0.0.1:$port/v1/namespaces" > /dev/null
}
no_panic() { # NAME
	! grep -n 'panicked' "$logs/target-$1.log"
}

cd "$work" || exit 1    # a relative path of a request is below it
status=0
check 'schemathesis is installed' program || exit 1
# An upgrade ends the connection without a response, so the program of the start is gone, and each one is refused.
cp "$isolane" "$work/isolane" && isolane=$work/isolane
describe "$work/isolane.toml"
start_target_with file --config "$work/isolane.toml" || exit 1
start_target_with plain --listen 127.0.0.1:0 --mode sleep --control-socket "$work/plain.sock" mem:4M null:1M || exit 1
rm "$isolane"
for name in file plain; do
	check "$name: the control socket is reachable" forward "$work/$name.sock" || exit 1
	check "$name: each answer is documented" answers_as_documented || status=1
	check "$name: the target still serves" still_serves "$name" || status=1
	check "$name: no panic" no_panic "$name" || status=1
done
kill "$forwarder"
exit $status
