#!/bin/bash
# static.sh - build the static program with scripts/build-static and start it: its version, a target, and a
# host that connects to it.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/lib.sh"
isolane=${CARGO_TARGET_DIR:-$root/target}/$(uname -m)-unknown-linux-musl/release/isolane

connects() {
	"$isolane" info "nvme+tcp://127.0.0.1:$port/$nqn" | grep -q '^namespace *1: 16.0 MiB'
}

check "scripts/build-static builds a program" "$root/scripts/build-static" || exit 1
check "the static program names its version" "$isolane" --version
port=$(free_port)
check "the static program serves a volume" start_target static "$port" mem:16M
check "the static program connects to it" connects
check "the static target ends with status 0" end_target static TERM
